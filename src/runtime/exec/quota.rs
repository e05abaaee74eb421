//! A layer as a project with a quota, where the store's filesystem has project quotas: then a command that writes too much
//! gets `ENOSPC` (XFS) or `EDQUOT` (ext4) from the kernel, and goes on.
//!
//! Projects are numbers. A store takes those of a range of its own, by its filesystem and inode, of which each that has no
//! file is free: nothing is written down, and a number is free again when the last file of its layer has gone (squashed
//! layers share files with those that they were made of). Two execs that try the same at once see more inodes than they made,
//! and both go on to another.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::budget::Limit;
use crate::sys::quota;
use crate::sys::{Call, SysError};

/// The first number of all stores. Engines and administrators count from 1, or from about a million.
const FIRST: u32 = 1 << 30;
/// How many ranges there are.
const RANGES: u32 = 1 << 14;
/// How many numbers a range has: XFS keeps a record for each that was ever used, some ten megabytes for all of them.
const NUMBERS: u32 = 1 << 16;
/// How many numbers are tried.
const TRIES: u32 = 16;

/// A layer's quota, in force until this value goes: then the layer changes no more.
#[derive(Debug)]
pub struct Quota {
    layer: OwnedFd,
    project: u32,
}

impl Quota {
    /// Gives a layer, by its directory, a quota. Its `upper` and `work` must be empty and not be mounted yet. `None` where the
    /// filesystem has none, or no number was free.
    pub fn set(layer: &Path, limit: Limit) -> Option<Quota> {
        let dir = open(layer, layer).ok()?;
        if !quota::is_enforced(dir.as_fd()).unwrap_or(false) {
            return None;
        }
        let given = (0..TRIES).find_map(|attempt| match claim(layer, dir.as_fd(), attempt, limit) {
            Ok(project) => project,
            Err(err) => {
                tracing::warn!(error = %err, "a layer could not be given a quota");
                None
            }
        });
        Some(Quota { project: given?, layer: dir })
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // On ext4 nothing is left of a project without limits and files. A limit that stays harms nobody: a number's next
        // owner sets his own.
        let _ = quota::limit(self.layer.as_fd(), self.project, 0, 0);
    }
}

fn open(path: &Path, name: &Path) -> Result<OwnedFd, SysError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).call("open", || name.display().to_string())
}

/// Takes a number for the layer; none if it was somebody else's.
fn claim(layer: &Path, dir: BorrowedFd<'_>, attempt: u32, limit: Limit) -> Result<Option<u32>, SysError> {
    let parts = [layer.join("upper"), layer.join("work")];
    let opened = parts.iter().map(|part| open(part, part)).collect::<Result<Vec<_>, _>>()?;
    let project = number(layer, attempt);
    if quota::usage(dir, project)?.inodes > 0 {
        return Ok(None);
    }
    let mine = 1 + opened.len() as u64;
    for part in std::iter::once(dir).chain(opened.iter().map(AsFd::as_fd)) {
        quota::set_project(part, project)?;
    }
    if quota::usage(dir, project)?.inodes > mine {
        return Ok(None);
    }
    quota::limit(dir, project, limit.bytes, limit.files + mine)?;
    Ok(Some(project))
}

/// The number that a layer tries: of its store's range, as its name has it.
fn number(layer: &Path, attempt: u32) -> u32 {
    let hash = |value: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        value(&mut hasher);
        hasher.finish() as u32
    };
    let store = layer.parent().and_then(|layers| rustix::fs::stat(layers).ok()).map(|stat| (stat.st_dev, stat.st_ino));
    let range = hash(&|h| store.hash(h)) % RANGES;
    FIRST + range * NUMBERS + hash(&|h| (layer.file_name(), attempt).hash(h)) % NUMBERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_of_the_stores_range() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let range = |layer: &Path, attempt| (number(layer, attempt) - FIRST) / NUMBERS;
        let of_a: Vec<u32> = (0..50).map(|n| range(&a.path().join(n.to_string()), n)).collect();
        assert!(of_a.iter().all(|r| *r == of_a[0] && *r < RANGES));
        assert_ne!(number(&a.path().join("x"), 0), number(&a.path().join("x"), 1));
        assert_ne!(number(&a.path().join("x"), 0), number(&a.path().join("y"), 0));
        assert_ne!(range(&b.path().join("x"), 0), of_a[0]);
    }

    /// Most filesystems have none: then the layer's directories are left as they are.
    #[test]
    fn without_quotas_there_is_none() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        assert!(Quota::set(dir.path(), Limit::of_bytes(1 << 20)).is_none());
    }
}
