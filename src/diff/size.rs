//! What files and layers take on disk, as far as it is known without walking them: a file with holes takes less than its
//! size. The one measure of the summary's `bytes`, and of what the store knows of a layer.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};

use super::{Change, Kind};

/// From this size on, in bytes, it is looked how much of a file is really there. Filesystems may keep what is small in the
/// inode, and tell of no blocks.
const LOOK_FROM: u64 = 1 << 20;
/// What `st_blocks` counts in, whatever the filesystem's own blocks are (inode(7)).
const BLOCK: u64 = 512;

/// The sum of what the regular files take that a layer with these changes holds, in bytes: also those that only got other
/// metadata or another name, which overlayfs copies whole. Each hard link counts. `upper` is the layer's directory; a file
/// that is not found there counts with its size.
pub fn size_of(upper: BorrowedFd<'_>, changes: &[Change]) -> u64 {
    let held = changes.iter().filter(|change| change.kind != Kind::Deleted);
    let sizes = held.filter_map(|change| match change.size {
        Some(size) if size >= LOOK_FROM => Some(found(upper, change).unwrap_or(size).min(size)),
        small => small,
    });
    // Files with holes may have any size.
    sizes.fold(0, u64::saturating_add)
}

/// What a file takes of which this is the status, in bytes: at most its size, and that if it is small.
pub(super) fn taken(stat: &rustix::fs::Stat) -> u64 {
    let whole = |n| u64::try_from(n).unwrap_or(0);
    match whole(stat.st_size) {
        small if small < LOOK_FROM => small,
        size => size.min(whole(stat.st_blocks).saturating_mul(BLOCK)),
    }
}

fn found(upper: BorrowedFd<'_>, change: &Change) -> Option<u64> {
    let path = change.path.as_bytes().strip_prefix(b"/")?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = openat2(upper, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve).ok()?;
    fstat(file).ok().map(|stat| taken(&stat))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    fn change(path: &str, size: u64) -> Change {
        let json = serde_json::json!({
            "kind": "added", "path": path, "type": "file", "size": size, "mode": "0644", "uid": 0, "gid": 0
        });
        serde_json::from_value(json).unwrap()
    }

    /// What a summary says is what the store would record.
    #[test]
    fn the_summary_has_the_same_measure() {
        let dir = tempfile::tempdir().unwrap();
        let (upper, below) = (dir.path().join("upper"), dir.path().join("below"));
        for dir in [&upper, &below] {
            std::fs::create_dir(dir).unwrap();
        }
        std::fs::create_dir(upper.join("work")).unwrap();
        for name in ["sparse", "sparse2", "sparse3", "work/sparse"] {
            File::create(upper.join(name)).unwrap().set_len(i64::MAX as u64 >> 24).unwrap();
        }
        File::create(upper.join("small")).unwrap().set_len(1000).unwrap();
        let mut half = File::create(upper.join("work/half")).unwrap();
        half.write_all(&vec![1; 2 << 20]).unwrap();
        half.set_len(1 << 30).unwrap();
        half.sync_all().unwrap();
        let (upper, below) = (File::open(&upper).unwrap(), File::open(&below).unwrap());
        let options = crate::diff::Options::default();
        let mut diff = crate::diff::compare(&[upper.as_fd()], &[below.as_fd()], &options).unwrap();
        let blocks = fstat(&half).unwrap().st_blocks as u64 * BLOCK;
        assert!((2 << 20..3 << 20).contains(&blocks), "{blocks}");
        assert_eq!((diff.summary.added, diff.summary.bytes), (7, blocks + 1000));
        assert_eq!(size_of(upper.as_fd(), &diff.changes), diff.summary.bytes);
        // The sizes of the files are told as they are.
        let of = |diff: &crate::diff::Diff, name: &str| {
            diff.changes.iter().find(|change| change.path.as_bytes() == name.as_bytes()).unwrap().size
        };
        assert_eq!(of(&diff, "/work/half"), Some(1 << 30));
        diff.keep(|path| path.as_bytes().starts_with(b"/work/"), false);
        assert_eq!((diff.summary.added, diff.summary.bytes), (2, blocks));
    }

    #[test]
    fn holes_take_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        File::create(dir.path().join("d/sparse")).unwrap().set_len(1 << 40).unwrap();
        let mut full = File::create(dir.path().join("full")).unwrap();
        full.write_all(&vec![1; 3 << 20]).unwrap();
        full.sync_all().unwrap();
        std::os::unix::fs::symlink("full", dir.path().join("link")).unwrap();
        let upper = File::open(dir.path()).unwrap();
        let size = |changes: &[Change]| size_of(upper.as_fd(), changes);
        assert_eq!(size(&[change("/d/sparse", 1 << 40)]), 0);
        assert_eq!(size(&[change("/full", 3 << 20), change("/small", 10)]), (3 << 20) + 10);
        // Not there, and not reached through a link.
        assert_eq!(size(&[change("/gone", 5 << 20), change("/link/x", 5 << 20)]), 10 << 20);
        assert_eq!(size(&[change("/gone", u64::MAX), change("/gone", u64::MAX)]), u64::MAX);
    }
}
