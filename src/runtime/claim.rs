//! The lock on a container's state directory: who makes, starts or deletes the container has it while it does so.
//!
//! It is a flock on `ROOT/ID` itself. Holding it means holding the directory that is at that path now: one that was removed
//! while somebody waited for it is not taken. So between two holders of one id the container may be another one, and who
//! goes on with one that it saw before asks for that one ([`Claim::of`]).

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::{On, RuntimeError};
use super::state::Record;

/// How long the lock is waited for. Nobody has it for longer than processes may take to be gone when they are killed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Held until it is dropped, or the process ends in whatever way.
#[derive(Debug)]
#[must_use = "the directory is anybody's again once this is dropped"]
pub struct Claim {
    fd: OwnedFd,
    path: PathBuf,
}

impl Claim {
    /// Makes the state directory `dir` (0711), which is its id's taken; [`RuntimeError::Exists`] if there is one.
    pub fn make(dir: &Path) -> Result<Claim, RuntimeError> {
        loop {
            match std::fs::DirBuilder::new().mode(0o711).create(dir) {
                Ok(()) => {}
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => return Err(RuntimeError::Exists),
                Err(err) => return Err(err).on("make directory", dir),
            }
            // A delete may have taken it for the leftover of a create that was killed.
            if let Some(claim) = Claim::lock(dir)? {
                return Ok(claim);
            }
        }
    }

    /// Waits for the lock of the state directory `dir`; `None` if there is no such directory.
    pub fn lock(dir: &Path) -> Result<Option<Claim>, RuntimeError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = match rustix::fs::open(dir, flags, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
                opened => opened.on("open", dir)?,
            };
            wait_for(&fd, end).on("lock", dir)?;
            let claim = Claim { fd, path: dir.to_owned() };
            if claim.is_at_its_path()? {
                return Ok(Some(claim));
            }
        }
    }

    /// Waits for the lock of the container of `record`, as it is recorded by now; `None` if it was deleted since, whatever
    /// has its id now.
    pub fn of(record: &Record) -> Result<Option<(Claim, Record)>, RuntimeError> {
        let Some(claim) = Claim::lock(&record.dir)? else { return Ok(None) };
        match Record::load(record.root(), &record.id) {
            Ok(now) => Ok(now.is_same(record).then_some((claim, now))),
            Err(RuntimeError::NotFound) => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn is_at_its_path(&self) -> Result<bool, RuntimeError> {
        let held = rustix::fs::fstat(&self.fd).on("stat", &self.path)?;
        match rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok((there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(errno).on("stat", &self.path),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the same lock, which closing alone would leave to it.
        let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
    }
}

/// The lock on a bundle, by which they exclude each other who replace its configuration or put the engine's back. Who takes
/// a [`Claim`] too takes this one first.
#[derive(Debug)]
#[must_use = "the bundle is anybody's again once this is dropped"]
pub struct BundleLock(OwnedFd);

impl BundleLock {
    /// Waits for it, without bound.
    pub fn lock(bundle: &Path) -> Result<BundleLock, RuntimeError> {
        let fd = open_bundle(bundle).on("open", bundle)?;
        rustix::fs::flock(&fd, FlockOperation::LockExclusive).on("lock", bundle)?;
        Ok(BundleLock(fd))
    }

    /// Waits for it at most `patience`; `None` if somebody had it all the time, or there is no such bundle any more.
    pub fn wait(bundle: &Path, patience: Duration) -> Result<Option<BundleLock>, RuntimeError> {
        let fd = match open_bundle(bundle) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            opened => opened.on("open", bundle)?,
        };
        match wait_for(&fd, Instant::now() + patience) {
            Ok(()) => Ok(Some(BundleLock(fd))),
            Err(err) if err.raw_os_error() == Some(libc::ETIMEDOUT) => Ok(None),
            Err(err) => Err(err).on("lock", bundle),
        }
    }
}

impl AsRawFd for BundleLock {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn open_bundle(bundle: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(bundle, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Waits for an exclusive flock on `fd`; ETIMEDOUT at `end`.
fn wait_for(fd: &OwnedFd, end: Instant) -> std::io::Result<()> {
    let mut pause = Duration::from_micros(100);
    loop {
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < end => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => return Err(std::io::Error::from_raw_os_error(libc::ETIMEDOUT)),
            locked => return Ok(locked?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::state::tests::sample;

    #[test]
    fn one_at_a_time_and_only_what_is_there() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("c1");
        assert!(Claim::lock(&dir).unwrap().is_none());
        let claim = Claim::make(&dir).unwrap();
        assert!(matches!(Claim::make(&dir), Err(RuntimeError::Exists)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| Claim::lock(&dir).unwrap().is_none());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            std::fs::remove_dir(claim.path()).unwrap();
            drop(claim);
            assert!(waiting.join().unwrap(), "what was removed meanwhile is not taken");
        });
    }

    #[test]
    fn a_container_with_the_id_of_one_that_was_seen_is_another() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("c1");
        let seen = sample(&dir);
        assert!(Claim::of(&seen).unwrap().is_none());
        drop(Claim::make(&dir).unwrap());
        assert!(Claim::of(&seen).unwrap().is_none(), "it has no record");
        let mut there = seen.clone();
        there.pid = 7;
        there.save().unwrap();
        assert_eq!(Claim::of(&seen).unwrap().map(|(_, now)| now.pid), Some(7));
        there.created = "2024-01-01T00:00:00.000000001Z".into();
        there.save().unwrap();
        assert!(Claim::of(&seen).unwrap().is_none());
    }
}
