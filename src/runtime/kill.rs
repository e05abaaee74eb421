//! Signals, pause and resume. A signal goes to the very process that was created, or to nobody.

use std::path::PathBuf;

use super::cgroup;
use super::error::{On, RuntimeError};
use super::state::{Record, Status};
use crate::id::ContainerId;

/// What `kill` is asked for.
#[derive(Debug)]
pub struct KillRequest {
    /// Directory of the state directories.
    pub root: PathBuf,
    /// The container.
    pub id: ContainerId,
    /// Signal number, 0 to 64.
    pub signal: i32,
    /// To every process of the container, not only the first; then one that has stopped is no error.
    pub all: bool,
}

/// Sends the signal. The state is not touched: a created container stays created.
pub fn kill(request: &KillRequest) -> Result<(), RuntimeError> {
    let record = Record::load(&request.root, &request.id)?;
    if request.all {
        return cgroup::signal_all(&record.cgroups, request.signal);
    }
    let init = record.init()?.ok_or(RuntimeError::NotRunning)?;
    match init.send(request.signal) {
        Ok(()) => {}
        Err(err) if err.errno() == Some(libc::ESRCH) => return Err(RuntimeError::NotRunning),
        Err(err) => return Err(err).during("kill"),
    }
    if request.signal == libc::SIGKILL {
        if !record.has_own_pid_namespace() {
            // The kernel ends the others only together with their pid namespace.
            cgroup::signal_all(&record.cgroups, libc::SIGKILL)?;
        } else if cgroup::is_frozen(&record.cgroups) {
            // A frozen v1 process does not even die.
            cgroup::freeze(&record.cgroups, false)?;
        }
    }
    Ok(())
}

/// Freezes a running or created container.
pub fn pause(root: &std::path::Path, id: &ContainerId) -> Result<(), RuntimeError> {
    let record = Record::load(root, id)?;
    match record.status()? {
        Status::Running | Status::Created => cgroup::freeze(&record.cgroups, true),
        Status::Creating | Status::Paused | Status::Stopped => Err(RuntimeError::NotRunning),
    }
}

/// Thaws a paused container.
pub fn resume(root: &std::path::Path, id: &ContainerId) -> Result<(), RuntimeError> {
    let record = Record::load(root, id)?;
    match record.status()? {
        Status::Paused => cgroup::freeze(&record.cgroups, false),
        _ => Err(RuntimeError::NotPaused),
    }
}
