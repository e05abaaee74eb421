//! `start`: the waiting first process is told to go on, then the poststart hooks run.

use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::error::{On, RuntimeError};
use super::hooks;
use super::leaf;
use super::state::{Record, Status};
use crate::id::ContainerId;
use crate::sys::socket;

/// A started container.
#[derive(Debug)]
pub struct Started {
    /// Its record.
    pub record: Record,
    /// A poststart hook that failed: by the runtime specification (1.0.2 and later) a warning, the container runs on.
    pub warning: Option<RuntimeError>,
}

/// Starts the created container `id`.
pub fn start(root: &Path, id: &ContainerId) -> Result<Started, RuntimeError> {
    let record = Record::load(root, id)?;
    {
        // Two starts at once: one starts, the other finds it running.
        let lock = rustix::fs::open(&record.dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .on("open", &record.dir)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).on("lock", &record.dir)?;
        match record.status()? {
            Status::Created => {}
            Status::Stopped => return Err(RuntimeError::StartStopped),
            Status::Paused => return Err(RuntimeError::StartPaused),
            Status::Creating | Status::Running => return Err(RuntimeError::AlreadyStarted),
        }
        if !record.manages_cgroups {
            leaf::settle(&record.cgroups, record.pid);
        }
        let path = record.start_socket();
        socket::tell(&path, b"start container").on("tell the first process to start at", &path)?;
        // Its absence is what says "started" from now on.
        std::fs::remove_file(&path).on("remove", &path)?;
    }
    let warning = hooks::run("poststart", record.hooks_of("poststart"), &record, Status::Running).err();
    Ok(Started { record, warning })
}
