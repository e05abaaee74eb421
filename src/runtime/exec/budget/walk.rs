//! What a directory tree takes, measured while hostile processes change it.
//!
//! Nothing is followed, and no path is longer than a name. Memory is bounded whatever the tree is: of each directory on the
//! way down some names of subdirectories are kept, some tens of kilobytes in all. Of deep trees only the first descriptors
//! are held; further up it goes by `..`, which must be the directory that it was: one that was moved away meanwhile is left
//! with what has been counted.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Taken;
use crate::sys::{Call, SysError};

/// How many directories are open at a time.
const OPEN: usize = 64;
/// About how many bytes of names are kept.
const NAMES: usize = 64 << 10;
/// No deeper: an exec's layer that deep is none that could be committed.
const DEEPEST: usize = 8192;

struct Level {
    /// None if it was closed for want of room.
    dir: Option<OwnedFd>,
    id: (u64, u64),
    /// Subdirectories that are still to be measured.
    todo: Vec<CString>,
    /// Where reading goes on when these are done; none at the end.
    more: Option<i64>,
}

struct Walk {
    found: Taken,
    most: u64,
    /// Files of several names that have been counted.
    seen: HashSet<(u64, u64)>,
    /// Bytes of names that are kept.
    names: usize,
}

/// Allocated bytes and the number of names below `top`, which is not counted itself; no longer than until there are more
/// than `most` names.
pub fn measure(top: BorrowedFd<'_>, most: u64) -> Result<Taken, SysError> {
    let mut walk = Walk { found: Taken::default(), most, seen: HashSet::new(), names: 0 };
    let top = open(top, c".").call("openat", || "the layer".to_owned())?;
    let mut levels = vec![walk.level(top, 0).call("getdents64", || "the layer".to_owned())?];
    while let Some(level) = levels.last_mut() {
        if walk.found.files > walk.most {
            break;
        }
        if let Some(name) = level.todo.pop() {
            walk.names -= name.as_bytes().len();
            let Some(dir) = &level.dir else { break };
            // Gone or replaced meanwhile: the next walk sees what there is then.
            let Ok(below) = open(dir.as_fd(), &name) else { continue };
            if levels.len() < DEEPEST
                && let Ok(next) = walk.level(below, 0)
            {
                levels.push(next);
                let far = levels.len().checked_sub(OPEN + 1);
                // The top is held: to it everything comes back.
                if let Some(far) = far.filter(|far| *far > 0) {
                    levels[far].dir = None;
                }
            }
            continue;
        }
        if let (Some(from), Some(dir)) = (level.more.take(), level.dir.take()) {
            match walk.level(dir, from) {
                Ok(same) => *level = same,
                Err(_) => walk.ascend(&mut levels),
            }
            continue;
        }
        walk.ascend(&mut levels);
    }
    Ok(walk.found)
}

fn open(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

fn id_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl Walk {
    /// Reads `dir` from position `from` on until enough names of subdirectories are kept; counts what it reads.
    fn level(&mut self, dir: OwnedFd, from: i64) -> Result<Level, Errno> {
        let id = id_of(&rustix::fs::fstat(&dir)?);
        let mut level = Level { dir: None, id, todo: Vec::new(), more: None };
        let mut entries = Dir::read_from(&dir)?;
        if from != 0 {
            entries.seek(from)?;
        }
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            self.count(&stat);
            if self.found.files > self.most {
                break;
            }
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                self.names += name.to_bytes().len();
                level.todo.push(name.to_owned());
                if self.names > NAMES {
                    level.more = Some(entry.offset());
                    break;
                }
            }
        }
        level.dir = Some(dir);
        Ok(level)
    }

    fn count(&mut self, stat: &Stat) {
        self.found.files += 1;
        let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
        if is_dir || stat.st_nlink < 2 || self.seen.insert(id_of(stat)) {
            self.found.bytes += stat.st_blocks.cast_unsigned().saturating_mul(512);
        }
    }

    /// Leaves the last level; the one above is opened again if it was closed.
    fn ascend(&mut self, levels: &mut Vec<Level>) {
        let Some(left) = levels.pop() else { return };
        let Some(above) = levels.last_mut() else { return };
        if above.dir.is_some() {
            return;
        }
        let up = left.dir.and_then(|dir| open(dir.as_fd(), c"..").ok());
        match up.filter(|up| rustix::fs::fstat(up).is_ok_and(|stat| id_of(&stat) == above.id)) {
            Some(up) => above.dir = Some(up),
            // Moved away. What is open above is what can still be got at.
            None => {
                while levels.last().is_some_and(|level| level.dir.is_none()) {
                    let lost = levels.pop().into_iter().flat_map(|level| level.todo);
                    self.names -= lost.map(|name| name.as_bytes().len()).sum::<usize>();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::path::Path;

    fn of(dir: &Path) -> Taken {
        measure(File::open(dir).unwrap().as_fd(), u64::MAX).unwrap()
    }

    #[test]
    fn hard_links_count_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        let empty = of(dir.path());
        assert_eq!(empty.files, 1);
        let file = File::create(dir.path().join("f")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 1 << 20], 0).unwrap();
        fs::hard_link(dir.path().join("f"), dir.path().join("d/g")).unwrap();
        std::os::unix::fs::symlink("/usr", dir.path().join("usr")).unwrap();
        let full = of(dir.path());
        assert_eq!(full.files, 4);
        let grown = full.bytes - empty.bytes;
        assert!((1 << 20..(1 << 20) + 64 * 1024).contains(&grown), "{grown}");
    }

    #[test]
    fn wide_and_deep_trees_are_counted_whole() {
        let dir = tempfile::tempdir().unwrap();
        // More names than are kept at a time.
        let wide = dir.path().join("wide");
        let long = "n".repeat(200);
        for n in 0..600 {
            fs::create_dir_all(wide.join(format!("{long}{n}"))).unwrap();
            File::create(wide.join(format!("{long}{n}/f"))).unwrap();
        }
        assert_eq!(of(dir.path()).files, 1 + 2 * 600);
        // Deeper than descriptors are held, and longer than a path may be.
        let mut at = open(File::open(dir.path()).unwrap().as_fd(), c".").unwrap();
        for _ in 0..1500 {
            for name in [c"a", c"deeper"] {
                rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
            }
            at = open(at.as_fd(), c"deeper").unwrap();
        }
        assert_eq!(of(dir.path()).files, 1 + 2 * 600 + 2 * 1500);
        drop(at);
        // Too deep for the standard library's removal by path.
        assert!(std::process::Command::new("rm").arg("-rf").arg(dir.path().join("deeper")).status().unwrap().success());
    }

    #[test]
    fn it_stops_at_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..100 {
            File::create(dir.path().join(n.to_string())).unwrap();
        }
        let top = File::open(dir.path()).unwrap();
        assert_eq!(measure(top.as_fd(), 10).unwrap().files, 11);
        assert_eq!(measure(top.as_fd(), 100).unwrap().files, 100);
    }
}
