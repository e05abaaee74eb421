//! What a layer takes on disk, as far as it is known without walking it: a file with holes takes less than its size.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};

use super::{Change, Kind};

/// From this size on, in bytes, it is looked how much of a file is really there.
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

/// What a file takes of which this is the status, in bytes; at most its size.
pub(super) fn allocated(stat: &rustix::fs::Stat) -> u64 {
    let whole = |n| u64::try_from(n).unwrap_or(0);
    whole(stat.st_size).min(whole(stat.st_blocks).saturating_mul(BLOCK))
}

fn found(upper: BorrowedFd<'_>, change: &Change) -> Option<u64> {
    let path = change.path.as_bytes().strip_prefix(b"/")?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = openat2(upper, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve).ok()?;
    fstat(file).ok().map(|stat| allocated(&stat))
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
