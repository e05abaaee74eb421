//! Who is still at work on a container: each supervisor holds a shared lock from its start until its process is gone, so
//! that `delete` can wait for the last of them. An engine takes its shim away when `delete` is done, and would never
//! hear of an exec that ended later.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::OpsError;
use crate::runtime::Record;

const FILE: &str = "supervisors.lock";

fn open(record: &Record) -> Result<OwnedFd, OpsError> {
    let path = record.dir.join(FILE);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(|errno| OpsError::File {
        doing: "open",
        path,
        source: errno.into(),
    })
}

/// Held by a supervisor for its life; the kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
#[must_use = "the supervisor counts as gone when this is dropped"]
pub struct Presence(#[allow(dead_code)] OwnedFd);

impl Presence {
    /// Announces a supervisor.
    pub fn announce(record: &Record) -> Result<Presence, OpsError> {
        let fd = open(record)?;
        rustix::fs::flock(&fd, FlockOperation::LockShared).map_err(|errno| OpsError::File {
            doing: "lock",
            path: record.dir.join(FILE),
            source: errno.into(),
        })?;
        Ok(Presence(fd))
    }
}

/// For waiting until the last supervisor is gone; stays usable when the container's state directory is removed.
#[derive(Debug)]
pub struct Absence(OwnedFd);

impl Absence {
    /// Looks at a container's supervisors; `None` if its state directory is gone.
    pub fn of(record: &Record) -> Result<Option<Absence>, OpsError> {
        match open(record) {
            Err(OpsError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            opened => Ok(Some(Absence(opened?))),
        }
    }

    /// Waits at most `patience` until no supervisor is left; whether that is so.
    pub fn wait(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        let mut pause = Duration::from_micros(200);
        loop {
            if rustix::fs::flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return true;
            }
            if begun.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}
