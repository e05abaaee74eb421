//! Room to write rows when the file system is full: files of no use that are given up then.
//!
//! What frees space (discarding a layer, deleting a container, collecting) writes a row first, so a store that a command
//! filled to the last block could not be got out of that by any command. The rows written with the room that the reserve
//! leaves are what frees more. What an exec gives up the next command may fill again: a last reserve is given up only by
//! who is about to free space.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatFs};
use rustix::io::Errno;

use super::error::IoContext;
use super::{Store, StoreError};

/// The files, in the store's root: given up by all, and by who frees space.
pub(super) const RESERVES: [&str; 2] = ["reserve", "reserve-last"];
/// The size of each in bytes: the longest row (1 MiB), written once to the log and once to the database, and some.
const SIZES: [u64; 2] = [4 << 20, 2 << 20];
/// With less than this free a reserve is given up.
const LOW: u64 = 1 << 20;
/// With more than this free they are made.
const AMPLE: u64 = 16 << 20;
/// With less than this free, the index of SQLite's log can't be made. Where running out is SIGBUS ([`is_fragile`]) there
/// must be [`LOW`]: room for a whole transaction.
const NEEDED: u64 = 64 << 10;
/// Blocks smaller than this may be missing in a page of a file that has its last byte.
const PAGE: i64 = 4096;
const BTRFS: u64 = 0x9123_683e;
/// How long that which was given up may take to be free, in steps of 10 ms.
const FREED_WITHIN: u32 = 20;
/// `ST_RDONLY`: the file system, or the mount, is read-only.
const READ_ONLY: u64 = 1;

/// Who asks for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    /// Anybody.
    Work,
    /// One who frees space.
    Freeing,
}

impl Store {
    /// Gives up the reserve if the file system is (nearly) full. To be called before rows are written by a process that
    /// opened the store a while ago; opening does it too. A failure shows when the rows are written.
    pub fn make_room(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(dir) = rustix::fs::open(&self.root, flags, Mode::empty())
            && let Ok(fs) = rustix::fs::fstatfs(&dir)
        {
            tend(dir.as_fd(), &fs, For::Work);
        }
    }

    /// Fails if there is no space, where the kernel would end this process with SIGBUS instead of telling.
    pub(super) fn require_room(&self) -> Result<(), StoreError> {
        if !self.fragile {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&self.root, flags, Mode::empty()).at("open", &self.root)?;
        let fs = rustix::fs::fstatfs(&dir).at("statfs", &self.root)?;
        has_room(dir.as_fd(), &fs).at("write to", &self.root)
    }
}

/// Makes or gives up the reserves in `dir`, as the free space of its file system asks for. Whether one was given up.
pub(super) fn tend(dir: BorrowedFd<'_>, fs: &StatFs, who: For) -> bool {
    let free = fs.f_bavail.saturating_mul(fs.f_bsize.cast_unsigned());
    let mut given = false;
    for (name, size) in RESERVES.into_iter().zip(SIZES) {
        if free < LOW && (name == RESERVES[0] || who == For::Freeing) {
            // None there: somebody else has given it up.
            given |= rustix::fs::unlinkat(dir, name, AtFlags::empty()).is_ok();
        } else if free > AMPLE && !is_whole(dir, name, size) {
            // A store without a reserve works all the same.
            let _ = make(dir, name, size);
        }
    }
    given
}

fn make(dir: BorrowedFd<'_>, name: &str, size: u64) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
        // A file system that can't set space aside: it is written to (ext4 without extents, say).
        Err(Errno::OPNOTSUPP) => {
            let mut file = std::fs::File::from(file);
            (0..size >> 16).try_for_each(|_| file.write_all(&[0; 1 << 16]))
        }
        other => Ok(other?),
    }
}

/// What this process may use: root also what is set aside for root.
fn usable(fs: &StatFs) -> u64 {
    let blocks = if rustix::process::geteuid().is_root() { fs.f_bfree } else { fs.f_bavail };
    blocks.saturating_mul(fs.f_bsize.cast_unsigned())
}

/// Tends the reserves; fails if there is no room even to open the database.
pub(super) fn require(dir: BorrowedFd<'_>, fs: &StatFs, who: For) -> Result<(), Errno> {
    let given = tend(dir, fs, who);
    let mut room = has_room(dir, fs);
    if given && room == Err(Errno::NOSPC) {
        // Where what was given up is free only after a commit (btrfs), or a moment later (xfs).
        rustix::fs::syncfs(dir)?;
        for _ in 0..FREED_WITHIN {
            room = has_room(dir, &rustix::fs::fstatfs(dir)?);
            if room.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    room
}

/// Fails where there is no room to open the database.
fn has_room(dir: BorrowedFd<'_>, fs: &StatFs) -> Result<(), Errno> {
    if fs.f_flags as u64 & READ_ONLY != 0 {
        return Err(Errno::ROFS);
    }
    if usable(fs) < if is_fragile(fs) { LOW } else { NEEDED } {
        return Err(Errno::NOSPC);
    }
    if kind(fs) == BTRFS {
        // A quota shows only by trying, and then in a mapped file too late.
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LOW)?;
    }
    Ok(())
}

fn kind(fs: &StatFs) -> u64 {
    fs.f_type as u64 & 0xffff_ffff
}

/// For who only reads: the index of SQLite's log is a mapped file that the first reader makes too. On a read-only file
/// system none is made.
pub(super) fn require_for_index(dir: BorrowedFd<'_>) -> Result<(), Errno> {
    let fs = rustix::fs::fstatfs(dir)?;
    match has_room(dir, &fs) {
        Err(Errno::NOSPC | Errno::DQUOT) if !is_fragile(&fs) => Ok(()),
        Err(Errno::ROFS) => Ok(()),
        other => other,
    }
}

/// Whether a write to a page of a mapped file may find no space although the page was written before: where blocks are
/// smaller than pages, or are written anew elsewhere. It is SIGBUS, then, instead of an error.
pub(super) fn is_fragile(fs: &StatFs) -> bool {
    fs.f_bsize < PAGE || kind(fs) == BTRFS
}

/// False too for one whose maker was killed before it had its size, or ran out of space.
fn is_whole(dir: BorrowedFd<'_>, name: &str, size: u64) -> bool {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| stat.st_size.cast_unsigned() >= size)
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
        let sizes = || RESERVES.map(|name| std::fs::metadata(root.path().join(name)).map(|m| m.len()).ok());
        let both = SIZES.map(Some);
        for (free, who, want) in [
            (8 << 20, For::Work, [None, None]),
            (100 << 20, For::Work, both),
            (8 << 20, For::Freeing, both),
            (1 << 19, For::Work, [None, both[1]]),
            (0, For::Work, [None, both[1]]),
            (0, For::Freeing, [None, None]),
        ] {
            fs.f_bavail = free / 4096;
            tend(dir.as_fd(), &fs, who);
            assert_eq!(sizes(), want, "{free} bytes free for {who:?}");
        }
        // One that was left without its size was taken for whole, and there was no room when it was needed.
        drop(std::fs::File::create(root.path().join(RESERVES[0])).unwrap());
        fs.f_bavail = (100 << 20) / 4096;
        tend(dir.as_fd(), &fs, For::Work);
        assert_eq!(sizes(), both);
    }
}
