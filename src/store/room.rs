//! Room to write rows when the file system is full: a file of no use that is given up then.
//!
//! What frees space (discarding a layer, deleting a container, collecting) writes a row first, so a store that a command
//! filled to the last block could not be got out of that by any command. The rows written with the room that the reserve
//! leaves are what frees more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatFs};

use super::Store;

/// The file, in the store's root.
pub(super) const RESERVE: &str = "reserve";
/// Its size in bytes: the longest row (1 MiB), written once to the log and once to the database, and some.
const SIZE: u64 = 4 << 20;
/// With less than this free the reserve is given up.
const LOW: u64 = 1 << 20;
/// With more than this free it is made.
const AMPLE: u64 = 16 << 20;

impl Store {
    /// Gives up the reserve if the file system is (nearly) full. To be called before rows are written by a process that
    /// opened the store a while ago; opening does it too. A failure shows when the rows are written.
    pub fn make_room(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(dir) = rustix::fs::open(&self.root, flags, Mode::empty())
            && let Ok(fs) = rustix::fs::fstatfs(&dir)
        {
            tend(dir.as_fd(), &fs);
        }
    }
}

/// Makes or gives up the reserve in `dir`, as the free space of its file system asks for.
pub(super) fn tend(dir: BorrowedFd<'_>, fs: &StatFs) {
    let free = fs.f_bavail.saturating_mul(fs.f_bsize.cast_unsigned());
    if free < LOW {
        // None there: somebody else has given it up.
        let _ = rustix::fs::unlinkat(dir, RESERVE, AtFlags::empty());
    } else if free > AMPLE && !is_whole(dir) {
        // A store without a reserve works all the same.
        let _ = make(dir);
    }
}

/// False too for one whose maker was killed before it had its size, or ran out of space.
fn is_whole(dir: BorrowedFd<'_>) -> bool {
    let stat = rustix::fs::statat(dir, RESERVE, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| stat.st_size.cast_unsigned() >= SIZE)
}

fn make(dir: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, RESERVE, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, SIZE)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_comes_and_goes_with_the_free_space() {
        let root = tempfile::tempdir().unwrap();
        let dir = std::fs::File::open(root.path()).unwrap();
        let mut fs = rustix::fs::fstatfs(&dir).unwrap();
        fs.f_bsize = 4096;
        let size = || std::fs::metadata(root.path().join(RESERVE)).map(|m| m.len()).ok();
        for (free, want) in
            [(8 << 20, None), (100 << 20, Some(SIZE)), (8 << 20, Some(SIZE)), (1 << 19, None), (0, None)]
        {
            fs.f_bavail = free / 4096;
            tend(dir.as_fd(), &fs);
            assert_eq!(size(), want, "{free} bytes free");
        }
        // One that was left without its size was taken for whole, and there was no room when it was needed.
        drop(std::fs::File::create(root.path().join(RESERVE)).unwrap());
        fs.f_bavail = (100 << 20) / 4096;
        tend(dir.as_fd(), &fs);
        assert_eq!(size(), Some(SIZE));
    }
}
