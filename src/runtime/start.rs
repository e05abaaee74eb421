//! `start`: the waiting first process is told to go on, and once it is the container's command the poststart hooks run.
//!
//! Until then a signal would reach the runtime in its place, which ends by it, also where the command would take no notice.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::claim::Claim;
use super::error::{On, RuntimeError};
use super::hooks;
use super::leaf;
use super::state::{Record, Status};
use crate::id::ContainerId;
use crate::sys::{proc, socket};

/// A pipe by name, that the waiting first process holds open until it becomes the command.
const GATE: &str = "starting";

/// How long the command is waited for: startContainer hooks run before it, and may take their time.
const PATIENCE: Duration = Duration::from_secs(10);

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
    let record;
    let gate;
    {
        // Two starts at once: one starts, the other finds it running. And nobody deletes it meanwhile.
        let _claim = Claim::lock(&Record::dir_of(root, id))?.ok_or(RuntimeError::NotFound)?;
        record = Record::load(root, id)?;
        match record.status()? {
            Status::Created => {}
            Status::Stopped => return Err(RuntimeError::StartStopped),
            Status::Paused => return Err(RuntimeError::StartPaused),
            Status::Creating | Status::Running => return Err(RuntimeError::AlreadyStarted),
        }
        if !record.manages_cgroups {
            leaf::settle(&record.cgroups, record.pid);
        }
        gate = open_gate(&record.dir)?;
        let path = record.start_socket();
        match socket::tell(&path, b"start container") {
            // Nobody listens any more: it has ended, or a start that was killed before it removed the socket has told it.
            Err(err) if err.errno() == Some(libc::ECONNREFUSED) => {
                return Err(record.or_gone(RuntimeError::AlreadyStarted, RuntimeError::StartStopped));
            }
            told => {
                let told = told.on("tell the first process to start at", &path);
                told.map_err(|err| record.or_gone(err, RuntimeError::StartStopped))?
            }
        }
        // Its absence is what says "started" from now on.
        std::fs::remove_file(&path).on("remove", &path)?;
    }
    if let Some(gate) = gate {
        wait_for_command(&gate);
    }
    let warning = hooks::run("poststart", record.hooks_of("poststart"), &record, Status::Running).err();
    Ok(Started { record, warning })
}

/// Makes the gate in a container's state directory, for the first process to inherit. execve closes it.
pub(super) fn make_gate(dir: &Path) -> Result<OwnedFd, RuntimeError> {
    let path = dir.join(GATE);
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).on("make pipe", &path)?;
    rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).on("open", &path)
}

/// The gate to wait at, to be opened before the first process is told. None where an older release made the container.
fn open_gate(dir: &Path) -> Result<Option<OwnedFd>, RuntimeError> {
    let path = dir.join(GATE);
    match rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        Ok(gate) => Ok(Some(gate)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno).on("open", &path),
    }
}

/// Whether the first process of a created container, which lives, has become the command. False where an older release made
/// the container.
pub(super) fn is_past(dir: &Path) -> bool {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // fifo(7): there is nobody who has it open for reading.
    matches!(rustix::fs::open(dir.join(GATE), flags, Mode::empty()), Err(Errno::NXIO))
}

/// Until nobody holds the gate: the command runs, or the first process has ended. Not longer than [`PATIENCE`].
fn wait_for_command(gate: &OwnedFd) {
    let until = Instant::now() + PATIENCE;
    while matches!(rustix::io::read(gate, &mut [0u8; 16]), Err(Errno::AGAIN | Errno::INTR)) {
        let left = until.saturating_duration_since(Instant::now());
        // It is started, whatever becomes of the wait.
        if left.is_zero() || proc::poll_readable(gate.as_fd(), Some(left)).is_err() {
            break;
        }
    }
}
