//! Sealing: what an exec's layer holds without having changed it is taken out, so that only changes are committed.
//!
//! A copy that equals the lower view (a file opened for writing and left as it was) would, committed later, undo what
//! somebody else committed meanwhile. A directory's opaque mark over nothing would hide what others put into the same
//! new directory: overlayfs sets one on every directory that takes the place of a whiteout or is the target of a
//! rename, and on every new directory when `xino=on`.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, fstat, futimens, openat, unlinkat};
use rustix::io::Errno;

use super::Options;
use super::change::Diff;
use super::compare::{Prune, run};
use super::descent::{DIR_FLAGS, Side};
use super::error::DiffError;
use super::locate::Locator;
use super::path::PathBytes;
use super::view::View;

/// Compares one layer with what is below it, and then takes out of it what is no change: unchanged copies, whiteouts
/// over nothing, mount points of the runtime, opaque marks over nothing, and directories that were passed through.
/// A layer that changed nothing is empty afterwards. What is seen through the layer stays the same.
///
/// Two kinds of unchanged copies are kept: those in an opaque directory in which anything differs, which are all that
/// is seen of these files, and those that a changed path is a hard link of, without which it would be a link of
/// nothing.
///
/// # Errors
/// As [`super::compare`]; then part of it may be pruned. To seal again is safe.
pub fn seal<'a>(upper: BorrowedFd<'_>, lowers: impl Into<View<'a>>, options: &Options) -> Result<Diff, DiffError> {
    let (diff, mut plan) = run(&[upper], &lowers.into(), options)?;
    // What is inside comes before the directory.
    plan.sort_by(|a, b| path_of(b).cmp(path_of(a)));
    let mut pruner = Pruner {
        locator: Locator::new(
            Side { layers: &[upper], plain_last: true, grafts: &[] },
            options.namespace,
            options.max_depth,
        )?,
        kept: None,
    };
    for step in &plan {
        pruner.step(step, options)?;
    }
    pruner.restore_times();
    Ok(diff)
}

fn path_of(step: &Prune) -> &PathBytes {
    match step {
        Prune::Entry(path) | Prune::Directory(path) | Prune::Opaque(path) => path,
    }
}

struct Pruner {
    locator: Locator,
    /// The directory last changed, and its times before.
    kept: Option<(rustix::fd::OwnedFd, Timestamps, Vec<u8>)>,
}

impl Pruner {
    fn step(&mut self, step: &Prune, options: &Options) -> Result<(), DiffError> {
        let path = path_of(step);
        if !self.locator.go(path)? {
            return Ok(());
        }
        let parent = &path.as_bytes()[..path.as_bytes().len() - path.file_name().len()];
        let removes = !matches!(step, Prune::Opaque(_));
        if removes && self.kept.as_ref().is_none_or(|(_, _, kept)| kept != parent) {
            self.restore_times();
            self.keep_times(parent)?;
        }
        let Some(dir) = self.locator.dirs().first() else { return Ok(()) };
        let name = self.locator.name();
        let (call, done) = match step {
            Prune::Entry(_) => ("unlinkat", unlinkat(dir.fd(), name, AtFlags::empty())),
            Prune::Directory(_) => match unlinkat(dir.fd(), name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => ("unlinkat", Ok(())),
                done => ("unlinkat", done),
            },
            Prune::Opaque(_) => {
                let done = openat(dir.fd(), name, DIR_FLAGS, Mode::empty())
                    .and_then(|fd| clear_opaque(fd.as_fd(), options.namespace));
                ("fremovexattr", done)
            }
        };
        match done {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(source) => Err(self.locator.failed(call, 0, source)),
        }
    }

    fn keep_times(&mut self, parent: &[u8]) -> Result<(), DiffError> {
        let Some(dir) = self.locator.dirs().first() else { return Ok(()) };
        let fd = openat(dir.fd(), c".", DIR_FLAGS, Mode::empty());
        let fd = fd.map_err(|source| self.locator.failed("openat", 0, source))?;
        let stat = fstat(&fd).map_err(|source| self.locator.failed("fstat", 0, source))?;
        self.kept = Some((fd, times(&stat), parent.to_vec()));
        Ok(())
    }

    /// A directory's times are told by no change, so failing to restore them is no failure.
    fn restore_times(&mut self) {
        if let Some((fd, times, _)) = self.kept.take() {
            let _ = futimens(fd, &times);
        }
    }
}

/// Only the mark that hides what is below: that of whiteouts by attribute stays.
fn clear_opaque(dir: BorrowedFd<'_>, ns: super::Namespace) -> Result<(), Errno> {
    if super::xattr::opaque(dir, ns)? != super::xattr::Opaque::Yes {
        return Ok(());
    }
    rustix::fs::fremovexattr(dir, ns.opaque())
}

pub(crate) fn times(stat: &rustix::fs::Stat) -> Timestamps {
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec as _),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec as _),
    }
}
