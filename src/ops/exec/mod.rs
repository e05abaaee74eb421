//! `exec`: a command on a layer of its own, watched to its end, its changes told, kept or dropped.
//!
//! One process, the supervisor, lives as long as the exec; its pid is what the engine is told, and it exits with the
//! command's code after the result is written. A detached exec forks it first; the caller's process ends as soon as the
//! command runs. docs/exec-protocol.md has the order of steps.

mod settings;
mod supervisor;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use oci_spec::runtime::Process;

use super::{Context, OpsError, ProcessSource, process};
use crate::id::ContainerId;
use crate::policy::Decision;
use crate::runtime::state::{Record, Status};
use crate::sys::SysError;
use crate::sys::process::{Fork, exit_now, fork};

use settings::Settings;
pub use settings::{Overrides, check_annotations};

/// What a front door asks for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The runtime's root directory.
    pub root: PathBuf,
    /// The container.
    pub id: ContainerId,
    /// What to run.
    pub process: ProcessSource,
    /// Return when the command runs.
    pub detach: bool,
    /// Where the terminal's master is sent.
    pub console_socket: Option<PathBuf>,
    /// Where a pidfd of the supervisor is sent.
    pub pidfd_socket: Option<PathBuf>,
    /// Where the supervisor's pid is written.
    pub pid_file: Option<PathBuf>,
    /// Descriptors from 3 on that the command inherits.
    pub preserve_fds: u32,
    /// A cgroup below the container's.
    pub cgroup: Option<PathBuf>,
    /// Exec in a paused container too (it then waits to be resumed).
    pub ignore_paused: bool,
    /// What flags say of layer, timeout and orphans.
    pub overrides: Overrides,
    /// Where the result document is written besides.
    pub result: Option<PathBuf>,
}

/// A request whose container and process are known to be fit.
struct Prepared {
    request: Request,
    record: Record,
    process: Process,
    settings: Settings,
    /// What the container's profile took of what was asked for beyond the container.
    decisions: Vec<Decision>,
    engine_exec: Option<String>,
}

/// An exec that has come as far as its caller waits for it.
#[derive(Debug)]
pub struct Done {
    /// What this process exits with: 0 as soon as a detached command runs, else the command's code.
    pub code: u8,
    /// What failed after the command's end, and does not change its code.
    pub warning: Option<OpsError>,
}

/// Runs the command.
///
/// The process must be single-threaded and protected (`sys::exe::protect`).
pub fn exec(context: &Context, request: Request) -> Result<Done, OpsError> {
    let prepared = prepare(context, request)?;
    if !prepared.request.detach {
        return supervisor::run(context, prepared, || ());
    }
    let (ours, theirs) = pipe()?;
    match sys("start the supervisor", fork())? {
        Fork::Parent(_) => {
            drop(theirs);
            wait_for_start(&ours)?;
            Ok(Done { code: 0, warning: None })
        }
        Fork::Child => {
            drop(ours);
            exit_now(i32::from(detached(context, prepared, theirs)));
        }
    }
}

fn sys<T>(doing: &'static str, result: Result<T, SysError>) -> Result<T, OpsError> {
    result.map_err(|source| OpsError::Sys { doing, source })
}

fn pipe() -> Result<(OwnedFd, OwnedFd), OpsError> {
    let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    sys("make a channel to the supervisor", pipe.map_err(|e| SysError::new("pipe2", "", e)))
}

fn prepare(context: &Context, request: Request) -> Result<Prepared, OpsError> {
    let record = Record::load(&request.root, &request.id)?;
    match record.status()? {
        Status::Stopped | Status::Creating => return Err(supervisor::or_stopped(&record, OpsError::ExecStopped)),
        Status::Paused if !request.ignore_paused => return Err(OpsError::ExecPaused),
        _ => {}
    }
    // A bundle may go with its container.
    let own = || own_process(&record.bundle).map_err(|err| supervisor::or_stopped(&record, err));
    let mut process = process::build(&request.process, own)?;
    settings::drop_inherited(&mut process, own)?;
    record.inherited.complete(&mut process);
    let decisions = record.confinement.harden(&mut process);
    let terminal = process.terminal().unwrap_or(false);
    if request.console_socket.is_some() && !(request.detach && terminal) {
        return Err(crate::runtime::RuntimeError::ConsoleSocketUnused.into());
    }
    if request.detach && terminal && request.console_socket.is_none() {
        return Err(crate::runtime::RuntimeError::ConsoleSocketMissing.into());
    }
    if terminal && !request.detach {
        crate::runtime::callers_terminal()?;
    }
    if let Some(path) = &request.result {
        // Before the command runs; afterwards a failure can only be warned of.
        let dir = path.parent().unwrap_or(path);
        let missing = |source| OpsError::File { doing: "write", path: path.clone(), source };
        if !std::fs::metadata(dir).map_err(missing)?.is_dir() {
            return Err(missing(std::io::ErrorKind::NotADirectory.into()));
        }
    }
    let layered = record.confinement.layered;
    let settings = Settings::resolve(&context.config, &record.annotations, &mut process, &request.overrides, layered)?;
    let engine_exec = request.pid_file.as_deref().and_then(engine_name);
    Ok(Prepared { request, record, process, settings, decisions, engine_exec })
}

/// The process of the container's configuration; the rest of it is not looked at.
fn own_process(bundle: &std::path::Path) -> Result<Option<Process>, OpsError> {
    #[derive(serde::Deserialize)]
    struct Config {
        process: Option<Process>,
    }
    let path = bundle.join("config.json");
    let text = std::fs::read(&path).map_err(|source| OpsError::File { doing: "read", path: path.clone(), source })?;
    let config: Config = serde_json::from_slice(&text).map_err(|source| OpsError::Json { path, source })?;
    Ok(config.process)
}

/// The engine's own id for the exec: containerd's shims name the pid file after it, conmon the directory of it.
fn engine_name(pid_file: &std::path::Path) -> Option<String> {
    let stem = pid_file.file_stem()?.to_str()?;
    let name = if stem == "exec_pid" { pid_file.parent()?.file_name()?.to_str()? } else { stem };
    Some(name.trim_start_matches('.').to_owned()).filter(|n| !n.is_empty())
}

/// First byte of what a detached supervisor says: the command runs.
const STARTED: u8 = b'+';
/// First byte: it does not; the reason follows.
const FAILED: u8 = b'-';

fn detached(context: &Context, prepared: Prepared, channel: OwnedFd) -> u8 {
    // Out of the caller's session: its terminal's signals are not for the command.
    let _ = rustix::process::setsid();
    let mut channel = Some(channel);
    let outcome = supervisor::run(context, prepared, || {
        let channel = channel.take();
        // The caller may have been killed; the command runs all the same, as its engine will find out.
        let _ = channel.map(|fd| rustix::io::write(fd.as_fd(), &[STARTED]));
    });
    match outcome {
        // Nobody listens any more; the exec's row tells.
        Ok(done) => done.code,
        Err(err) => {
            if let Some(fd) = channel {
                let text = crate::error::chain(&err);
                let text = [&[FAILED], text.as_bytes()].concat();
                let _ = rustix::io::write(fd.as_fd(), &text);
            }
            255
        }
    }
}

fn wait_for_start(channel: &OwnedFd) -> Result<(), OpsError> {
    let mut text = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        match rustix::io::read(channel, &mut buffer) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(&buffer[..n]),
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
        }
        if text.first() == Some(&STARTED) {
            return Ok(());
        }
    }
    match text.split_first() {
        Some((&FAILED, reason)) => Err(OpsError::Supervisor(String::from_utf8_lossy(reason).into_owned())),
        _ => Err(OpsError::SupervisorLost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_names() {
        for (path, want) in [
            ("/run/b/0ab1.pid", Some("0ab1")),
            ("/run/x/exec/77cd/exec_pid", Some("77cd")),
            ("/tmp/.probe.pid", Some("probe")),
            ("/", None),
        ] {
            assert_eq!(engine_name(path.as_ref()).as_deref(), want, "{path}");
        }
    }
}
