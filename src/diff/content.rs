//! Whether two regular files have the same bytes, holes skipped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, SeekFrom, fstat, openat, seek};
use rustix::io::{Errno, pread};

/// Read-only, following nothing and waiting for nobody, whatever has taken the name meanwhile.
pub(crate) const FILE_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

const CHUNK: usize = 64 * 1024;

/// Two buffers, kept from file to file.
pub(crate) struct Comparer {
    a: Vec<u8>,
    b: Vec<u8>,
}

/// The failure of a read, and which of the two files it was.
pub(crate) struct ReadError {
    pub call: &'static str,
    pub second: bool,
    pub source: Errno,
}

/// Opens a name that was seen to be a regular file. Where it may be, its access time is left as it is: looking changes
/// nothing, and no inode has to be written back.
pub(crate) fn open_file(dir: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    match openat(dir, name, FILE_FLAGS.union(OFlags::NOATIME), Mode::empty()) {
        // Of another owner, without the capability.
        Err(Errno::PERM) => openat(dir, name, FILE_FLAGS, Mode::empty()),
        opened => opened,
    }
}

impl Comparer {
    pub(crate) fn new() -> Self {
        Comparer { a: Vec::new(), b: Vec::new() }
    }

    /// Compares two regular files of this same size in bytes. One that has become shorter differs.
    pub(crate) fn same(&mut self, a: BorrowedFd<'_>, b: BorrowedFd<'_>, size: u64) -> Result<bool, ReadError> {
        self.a.resize(CHUNK, 0);
        self.b.resize(CHUNK, 0);
        if size <= CHUNK as u64 {
            return self.same_range(a, b, 0, size);
        }
        let mut pos = 0;
        while pos < size {
            let (data_a, hole_a) = extent(a, pos, size).map_err(|source| error("lseek", false, source))?;
            let (data_b, hole_b) = extent(b, pos, size).map_err(|source| error("lseek", true, source))?;
            let start = data_a.min(data_b);
            // What is a hole in one only is compared, with zeros.
            let end = match data_a.cmp(&data_b) {
                std::cmp::Ordering::Less => hole_a,
                std::cmp::Ordering::Greater => hole_b,
                std::cmp::Ordering::Equal => hole_a.max(hole_b),
            };
            if start < size && !self.same_range(a, b, start, end)? {
                return Ok(false);
            }
            pos = end.max(pos + 1);
        }
        Ok(true)
    }

    fn same_range(&mut self, a: BorrowedFd<'_>, b: BorrowedFd<'_>, start: u64, end: u64) -> Result<bool, ReadError> {
        let mut pos = start;
        while pos < end {
            let want = usize::try_from(end - pos).map_or(CHUNK, |left| left.min(CHUNK));
            let got_a = read_full(a, &mut self.a[..want], pos).map_err(|source| error("pread64", false, source))?;
            let got_b = read_full(b, &mut self.b[..want], pos).map_err(|source| error("pread64", true, source))?;
            if got_a != want || got_b != want || self.a[..want] != self.b[..want] {
                return Ok(false);
            }
            pos += want as u64;
        }
        Ok(true)
    }
}

fn error(call: &'static str, second: bool, source: Errno) -> ReadError {
    ReadError { call, second, source }
}

/// The next data at or after `pos` and where it ends; (`size`, `size`) where only a hole is left.
fn extent(fd: BorrowedFd<'_>, pos: u64, size: u64) -> Result<(u64, u64), Errno> {
    let data = match seek(fd, SeekFrom::Data(pos)) {
        Ok(data) => data.min(size),
        Err(Errno::NXIO) => return Ok((size, size)),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((pos, size)),
        Err(errno) => return Err(errno),
    };
    let hole = match seek(fd, SeekFrom::Hole(data)) {
        Ok(hole) => hole.min(size),
        Err(_) => size,
    };
    Ok((data, hole.max(data)))
}

fn read_full(fd: BorrowedFd<'_>, buf: &mut [u8], pos: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buf.len() {
        match pread(fd, &mut buf[done..], pos + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// The file's bytes, None where it has more than `limit` of them or is no regular file.
pub(crate) fn read_bounded(fd: &OwnedFd, limit: u64) -> Result<Option<Vec<u8>>, Errno> {
    let stat = fstat(fd)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size > limit || rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    let got = read_full(fd.as_fd(), &mut bytes, 0)?;
    bytes.truncate(got);
    Ok(Some(bytes))
}
