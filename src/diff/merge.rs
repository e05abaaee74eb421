//! One layer made of several, so that a stack stays shallow: hard links where possible, copies where not.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType as RawType, Gid, Mode, OFlags, SeekFrom, Stat, Uid, XattrFlags, chmodat, chownat, fsetxattr,
    fstat, ftruncate, linkat, lsetxattr, mkdirat, mknodat, openat, readlinkat, seek, symlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite};

use super::Options;
use super::content::open_file;
use super::descent::{DIR_FLAGS, Descent, Found, Side};
use super::error::DiffError;
use super::refresh::{set_attributes, stored};
use super::seal::times;
use super::size::taken;
use super::xattr::{Reader, Xattrs};
use crate::sys::fs::proc_path;

const LAYERS: usize = 0;
const OUT: usize = 1;

/// A failure in the output, by its system call.
type Made = Result<(), (&'static str, Errno)>;

struct Level {
    /// What is below the merged layer is hidden here, so that whiteouts are not needed.
    hidden: bool,
    /// Whiteouts were made here.
    whiteouts: bool,
}

/// Makes in `out`, an empty directory on the layers' filesystem, one layer that over anything shows what `layers`
/// (newest first, all in overlayfs's upper format) show over it. Files are hard links to the layers' files, which
/// must therefore never be written again; where a link can't be made they are copied. Whiteouts in `out` are devices,
/// whatever they were. On an error `out` is left half-made. Returns what its regular files take, in bytes, without the holes
/// in them; each hard link counts.
///
/// # Errors
/// [`DiffError::OutputNotEmpty`], [`DiffError::NoLayers`], [`DiffError::TooDeep`]; [`DiffError::Call`] and
/// [`DiffError::Output`] where the kernel refuses.
pub fn merge(layers: &[BorrowedFd<'_>], out: BorrowedFd<'_>, options: &Options) -> Result<u64, DiffError> {
    if layers.is_empty() {
        return Err(DiffError::NoLayers { operation: "merge" });
    }
    let out_layers = [out];
    let sides = [Side::layers(layers), Side::layers(&out_layers), Side::layers(&[])];
    let level = Level { hidden: false, whiteouts: false };
    let mut check = Descent::new(
        [Side { layers: &[out], plain_last: true, grafts: &[] }, Side::layers(&[]), Side::layers(&[])],
        [true, false, false],
        options.namespace,
        1,
        (),
    )?;
    if check.advance() {
        return Err(DiffError::OutputNotEmpty);
    }
    let descent = Descent::new(sides, [true, false, false], options.namespace, options.max_depth, level)?;
    let mut merger = Merger { descent, xattrs: Reader::new(options.namespace), options, bytes: 0 };
    loop {
        while merger.descent.advance() {
            merger.visit()?;
        }
        merger.descent.select(b"");
        merger.finish_directory()?;
        merger.descent.leave()?;
        if merger.descent.depth() == 0 {
            return Ok(merger.bytes);
        }
    }
}

struct Merger<'o> {
    descent: Descent<Level>,
    xattrs: Reader,
    options: &'o Options,
    bytes: u64,
}

impl Merger<'_> {
    fn visit(&mut self) -> Result<(), DiffError> {
        let frame = self.descent.frame();
        let hidden = frame.data.hidden;
        let out = frame.dirs[OUT][0].fd();
        let name = self.descent.name();
        match self.descent.resolve(LAYERS)? {
            Found::Absent => Ok(()),
            Found::Whiteout if hidden => Ok(()),
            Found::Whiteout => {
                let made = mknodat(out, name, RawType::CharacterDevice, Mode::empty(), 0);
                made.map_err(|source| self.failed("mknodat", source))?;
                self.descent.frame_mut().data.whiteouts = true;
                Ok(())
            }
            Found::Node { at, stat } => {
                if RawType::from_raw_mode(stat.st_mode) == RawType::RegularFile {
                    self.bytes = self.bytes.saturating_add(taken(&stat));
                }
                self.node(at, &stat)
            }
            Found::Dir { dirs, closed, .. } => {
                mkdirat(out, name, Mode::RWXU).map_err(|source| self.failed("mkdirat", source))?;
                let dir = openat(out, name, DIR_FLAGS, Mode::empty());
                let dir = dir.map_err(|source| self.failed("openat", source))?;
                if closed && !hidden {
                    let set = fsetxattr(&dir, self.options.namespace.opaque(), b"y", XattrFlags::empty());
                    set.map_err(|source| self.failed("fsetxattr", source))?;
                }
                let Found::Dir { dirs: out, .. } = self.descent.resolve(OUT)? else {
                    return Err(self.failed("openat", Errno::NOTDIR));
                };
                let level = Level { hidden: hidden || closed, whiteouts: false };
                self.descent.enter([dirs, out, Vec::new()], [true, false, false], level)
            }
        }
    }

    fn node(&mut self, at: usize, stat: &Stat) -> Result<(), DiffError> {
        let name = self.descent.name();
        let frame = self.descent.frame();
        let from = &frame.dirs[LAYERS][at];
        let out = frame.dirs[OUT][0].fd();
        match linkat(from.fd(), name, out, name, AtFlags::empty()) {
            Ok(()) => return Ok(()),
            Err(Errno::XDEV | Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP) => {}
            Err(source) => return Err(self.failed("linkat", source)),
        }
        let xattrs = self.xattrs.read(from.fd(), name);
        let xattrs = xattrs.map_err(|source| self.descent.failed("listxattrat", LAYERS, from.layer, source))?;
        let made = match RawType::from_raw_mode(stat.st_mode) {
            RawType::RegularFile => {
                let file = open_file(from.fd(), name);
                let file = file.map_err(|source| self.descent.failed("openat", LAYERS, from.layer, source))?;
                self.copy_file(&file, out, name, stat, &xattrs)
            }
            RawType::Symlink => {
                let target = readlinkat(from.fd(), name, Vec::new());
                let target = target.map_err(|source| self.descent.failed("readlinkat", LAYERS, from.layer, source))?;
                symlinkat(&target, out, name)
                    .map_err(|errno| ("symlinkat", errno))
                    .and_then(|()| self.set_on_name(out, name, stat, &xattrs))
            }
            kind => mknodat(out, name, kind, Mode::empty(), stat.st_rdev)
                .map_err(|errno| ("mknodat", errno))
                .and_then(|()| self.set_on_name(out, name, stat, &xattrs)),
        };
        made.map_err(|(call, source)| self.failed(call, source))
    }

    fn copy_file(&self, from: &OwnedFd, out: BorrowedFd<'_>, name: &CStr, stat: &Stat, xattrs: &Xattrs) -> Made {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = openat(out, name, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| ("openat", errno))?;
        copy_data(from, &to)?;
        set_attributes(to.as_fd(), stat, xattrs, self.options.namespace)?;
        rustix::fs::futimens(&to, &times(stat)).map_err(|errno| ("utimensat", errno))
    }

    /// For what can't be opened.
    fn set_on_name(&self, out: BorrowedFd<'_>, name: &CStr, stat: &Stat, xattrs: &Xattrs) -> Made {
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        chownat(out, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| ("fchownat", errno))?;
        if RawType::from_raw_mode(stat.st_mode) != RawType::Symlink {
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
            chmodat(out, name, mode, AtFlags::empty()).map_err(|errno| ("fchmodat", errno))?;
        }
        for (attr, value) in xattrs {
            let attr = stored(attr, self.options.namespace);
            lsetxattr(proc_path(out, name), attr, value, XattrFlags::empty()).map_err(|errno| ("lsetxattr", errno))?;
        }
        utimensat(out, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| ("utimensat", errno))
    }

    /// The innermost frame's directory takes the attributes and times of the newest layer's.
    fn finish_directory(&mut self) -> Result<(), DiffError> {
        let frame = self.descent.frame();
        let (from, out) = (&frame.dirs[LAYERS][0], frame.dirs[OUT][0].fd());
        let stat = fstat(from.fd()).map_err(|source| self.descent.failed("fstat", LAYERS, from.layer, source))?;
        let xattrs = self.xattrs.read(from.fd(), c".");
        let xattrs = xattrs.map_err(|source| self.descent.failed("listxattrat", LAYERS, from.layer, source))?;
        // In a directory that no other layer has, the kernel would list whiteouts as entries, unless the directory
        // says that it was copied up.
        if frame.data.whiteouts {
            let set = fsetxattr(out, self.options.namespace.origin(), b"", XattrFlags::empty());
            set.map_err(|source| self.failed("fsetxattr", source))?;
        }
        set_attributes(out, &stat, &xattrs, self.options.namespace)
            .and_then(|()| rustix::fs::futimens(out, &times(&stat)).map_err(|errno| ("utimensat", errno)))
            .map_err(|(call, source)| self.failed(call, source))
    }

    fn failed(&self, call: &'static str, source: Errno) -> DiffError {
        DiffError::Output { call, path: self.descent.path(), source }
    }
}

/// Copies the data and keeps the holes.
pub(crate) fn copy_data(from: &OwnedFd, to: &OwnedFd) -> Made {
    let size = fstat(from).map_err(|errno| ("fstat", errno))?.st_size;
    let size = u64::try_from(size).unwrap_or(0);
    ftruncate(to, size).map_err(|errno| ("ftruncate", errno))?;
    let mut buffer = vec![0; 128 * 1024];
    let mut pos = 0;
    while pos < size {
        let data = match seek(from, SeekFrom::Data(pos)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(()),
            Err(Errno::INVAL) => pos,
            Err(errno) => return Err(("lseek", errno)),
        };
        let hole = seek(from, SeekFrom::Hole(data)).unwrap_or(size).min(size);
        pos = data;
        while pos < hole {
            let want = usize::try_from(hole - pos).map_or(buffer.len(), |left| left.min(buffer.len()));
            let got = pread(from, &mut buffer[..want], pos).map_err(|errno| ("pread64", errno))?;
            if got == 0 {
                return Ok(());
            }
            let mut done = 0;
            while done < got {
                let written = pwrite(to, &buffer[done..got], pos + done as u64);
                done += written.map_err(|errno| ("pwrite64", errno))?;
            }
            pos += got as u64;
        }
    }
    Ok(())
}
