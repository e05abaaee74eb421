//! Signals, pause and resume. A signal goes to the very process that was created, or to nobody.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::cgroup;
use super::error::{On, RuntimeError};
use super::exec::roster::{self, Entry};
use super::freezer::Turn;
use super::members;
use super::state::{ProcessId, Record, Status};
use crate::id::ContainerId;
use crate::sys::proc::PidFd;

/// How long a signal waits for the command of an exec that is being started.
const STARTED_WITHIN: Duration = Duration::from_secs(5);
/// How long one waits until the killed processes of an exec are gone. Those that take longer go when the kernel lets them.
const GONE_WITHIN: Duration = Duration::from_secs(1);

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
        if record.status()? == Status::Creating {
            // Who makes it is in some of its cgroups meanwhile, and would be the one to get it.
            return Err(RuntimeError::NotRunning);
        }
        let _turn = Turn::take_to_signal(&record, request.signal);
        return cgroup::signal_all(&record.cgroups, request.signal);
    }
    let init = record.init()?.ok_or(RuntimeError::NotRunning)?;
    match init.send(request.signal) {
        Ok(()) => {}
        Err(err) if err.errno() == Some(libc::ESRCH) => return Err(RuntimeError::NotRunning),
        Err(err) => return Err(err).during("kill"),
    }
    if request.signal == libc::SIGKILL {
        let _turn = Turn::take_to_signal(&record, libc::SIGKILL);
        if !record.has_own_pid_namespace() {
            // The kernel ends the others only together with their pid namespace.
            cgroup::signal_all(&record.cgroups, libc::SIGKILL)?;
        } else if cgroup::is_frozen(&record.cgroups) {
            // A frozen v1 process does not even die.
            match cgroup::freeze(&record.cgroups, false) {
                Err(_) if record.gone()?.is_some() => {}
                thawed => thawed?,
            }
        }
    }
    Ok(())
}

/// Sends a signal to the command of an exec, named by its id or by its engine's, and SIGKILL to all that the command has
/// started. The supervisor lives on, and writes the result.
///
/// In a paused container a process gets its signal when it is resumed; SIGKILL at once where the kernel has a freezer that
/// lets it through (v2).
///
/// # Errors
/// [`RuntimeError::NoExec`] if no exec of that name runs, [`RuntimeError::Finished`] if its command has ended.
pub fn kill_exec(record: &Record, name: &str, signal: i32) -> Result<(), RuntimeError> {
    let entry = roster::find(record, name)?.ok_or_else(|| RuntimeError::NoExec(name.to_owned()))?;
    let hit = match started(record, entry.clone())? {
        Some(ProcessId { pid, start_time }) => {
            let command = PidFd::open(pid, start_time).during("open pidfd of the command")?;
            match command.map(|command| command.send(signal)) {
                None => false,
                Some(Err(err)) if err.errno() == Some(libc::ESRCH) => false,
                Some(sent) => sent.during("kill").map(|()| true)?,
            }
        }
        None if signal != libc::SIGKILL => return Err(RuntimeError::ExecStarting(name.to_owned())),
        // Whoever is on the way to become the command.
        None => false,
    };
    let killed = if signal == libc::SIGKILL { kill_all_of(record, &entry)? } else { false };
    if hit || killed { Ok(()) } else { Err(RuntimeError::Finished) }
}

/// Kills what is in the groups of an exec; whether there was anything.
fn kill_all_of(record: &Record, entry: &Entry) -> Result<bool, RuntimeError> {
    let groups = entry.cgroups();
    if record.cgroups.iter().any(|dir| dir.has("freezer")) && cgroup::is_frozen(&record.cgroups) {
        // A frozen v1 process does not even die, and who paused the container has not asked for it to be thawed.
        let any = !members::pids(groups)?.is_empty();
        members::signal(groups, libc::SIGKILL)?;
        return Ok(any);
    }
    Ok(members::kill(groups, GONE_WITHIN)?.seen > 0)
}

/// The command of an exec, which may be about to be started; `None` if it is still not after a while.
fn started(record: &Record, mut entry: Entry) -> Result<Option<ProcessId>, RuntimeError> {
    let begun = Instant::now();
    let mut pause = Duration::from_micros(200);
    while entry.command.is_none() && begun.elapsed() < STARTED_WITHIN {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
        // It could not be started, or has ended already.
        entry = roster::look(record, entry.id)?.ok_or(RuntimeError::Finished)?;
    }
    Ok(entry.command)
}

/// Freezes a running or created container.
pub fn pause(root: &std::path::Path, id: &ContainerId) -> Result<(), RuntimeError> {
    let record = Record::load(root, id)?;
    let _turn = Turn::take(&record);
    match record.status_now()? {
        Status::Running | Status::Created => {
            cgroup::freeze(&record.cgroups, true).map_err(|err| record.or_gone(err, RuntimeError::NotRunning))
        }
        Status::Creating | Status::Paused | Status::Stopped => Err(RuntimeError::NotRunning),
    }
}

/// Thaws a paused container.
pub fn resume(root: &std::path::Path, id: &ContainerId) -> Result<(), RuntimeError> {
    let record = Record::load(root, id)?;
    let _turn = Turn::take(&record);
    match record.status_now()? {
        Status::Paused => {
            cgroup::freeze(&record.cgroups, false).map_err(|err| record.or_gone(err, RuntimeError::NotPaused))
        }
        _ => Err(RuntimeError::NotPaused),
    }
}
