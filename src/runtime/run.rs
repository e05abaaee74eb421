//! `run`: create and start in one, and in the foreground stay for the container's life: signals are forwarded, a terminal
//! is copied, the exit code becomes ours.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::create::CreateRequest;
use super::delete::DeleteRequest;
use super::error::{On, RuntimeError};
use super::relay::{Relay, callers_terminal};
use super::start::start;
use super::state::Record;
use crate::spec::Config;
use crate::sys::proc::PidFd;
use crate::sys::process::{self, Exit};
use crate::sys::signal::SignalFd;
use crate::sys::socket;

/// What `run` is asked for.
#[derive(Debug)]
pub struct RunRequest {
    /// The container to be.
    pub create: CreateRequest,
    /// Return once it runs.
    pub detach: bool,
    /// Do not delete it when it has ended.
    pub keep: bool,
    /// Do not adopt processes whose parents end.
    pub no_subreaper: bool,
}

/// How a `run` went.
#[derive(Debug, Default)]
pub struct Ran {
    /// How the first process ended; `None` when detached.
    pub ended: Option<Exit>,
    /// Hooks that failed without stopping anything.
    pub warnings: Vec<RuntimeError>,
}

/// A deletion, with what failed without stopping it.
type Deleted<E> = Result<Option<RuntimeError>, E>;

/// How a container is made and removed; the caller may do more than the runtime does.
pub struct Steps<'a, E> {
    /// [`super::create()`], at least.
    pub create: &'a dyn Fn(&CreateRequest) -> Result<Record, E>,
    /// [`super::delete_seen()`], at least.
    pub delete: &'a dyn Fn(&DeleteRequest, &Record) -> Deleted<E>,
}

/// Runs a container. In the foreground all signals of this process are blocked from here on.
pub fn run<E: From<RuntimeError>>(mut request: RunRequest, steps: &Steps<'_, E>) -> Result<Ran, E> {
    let mut ran = Ran::default();
    if request.detach {
        let record = (steps.create)(&request.create)?;
        let started = start_or_delete(&request.create.root, &record, steps)?;
        ran.warnings.extend(started);
        return Ok(ran);
    }
    if request.create.console_socket.is_some() {
        return Err(RuntimeError::ConsoleSocketUnused.into());
    }
    let terminal = Config::load(&request.create.bundle).is_ok_and(|c| c.terminal());
    if terminal {
        callers_terminal()?;
    }
    // Before anything is forked: a signal that comes from now on is forwarded, not lost. The payload unblocks its own.
    let signals = SignalFd::block_all().during("block signals")?;
    if !request.no_subreaper {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).during("become subreaper")?;
    }
    let console = if terminal { Some(Console::listen(&request.create.root)?) } else { None };
    request.create.console_socket = console.as_ref().map(|c| c.path.clone());
    let record = (steps.create)(&request.create)?;
    let outcome = attend(&request, &record, signals, console, &mut ran);
    if outcome.is_err() || !request.keep {
        let id = record.id.clone();
        let gone = (steps.delete)(&DeleteRequest { root: request.create.root.clone(), id, force: true }, &record);
        match (&outcome, gone) {
            (Ok(_), Ok(warning)) => ran.warnings.extend(warning),
            (Ok(_), Err(err)) => return Err(err),
            // The first failure is the one to tell.
            (Err(_), _) => {}
        }
    }
    ran.ended = Some(outcome?);
    Ok(ran)
}

fn start_or_delete<E: From<RuntimeError>>(
    root: &Path,
    record: &Record,
    steps: &Steps<'_, E>,
) -> Result<Option<RuntimeError>, E> {
    match start(root, &record.id) {
        Ok(started) => Ok(started.warning),
        Err(err) => {
            // The first failure is the one to tell.
            let request = DeleteRequest { root: root.to_owned(), id: record.id.clone(), force: true };
            let _ = (steps.delete)(&request, record);
            Err(err.into())
        }
    }
}

fn attend(
    request: &RunRequest,
    record: &Record,
    signals: SignalFd,
    console: Option<Console>,
    ran: &mut Ran,
) -> Result<Exit, RuntimeError> {
    let init = record.init()?.ok_or(RuntimeError::NotRunning)?;
    let terminal = console.map(|c| c.accept()).transpose()?;
    ran.warnings.extend(start(&request.create.root, &record.id)?.warning);
    wait(record, &init, &signals, terminal)
}

/// Waits for `init`, our child, to end; forwards what `signals` yields; copies between our terminal and `terminal`.
fn wait(record: &Record, init: &PidFd, signals: &SignalFd, mut terminal: Option<Relay>) -> Result<Exit, RuntimeError> {
    loop {
        let mut fds = vec![
            PollFd::from_borrowed_fd(init.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        let first_of_terminal = fds.len();
        if let Some(terminal) = &terminal {
            terminal.watch(&mut fds);
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(err) => return Err(err).during("poll"),
        }
        let ready: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
        drop(fds);
        if let Some(terminal) = &mut terminal {
            terminal.pump(&ready[first_of_terminal..]);
        }
        while let Some(signal) = signals.next().during("read signals")? {
            match signal {
                libc::SIGCHLD => reap_adopted(record.pid),
                // Sent by runtimes to themselves; runc leaves it out too.
                libc::SIGURG => {}
                libc::SIGWINCH if terminal.is_some() => terminal.iter().for_each(Relay::resize),
                // It may have ended meanwhile.
                signal => drop(init.send(signal)),
            }
        }
        if ready[0]
            && let Some(ended) = init.try_reap().during("wait for the container")?
        {
            if let Some(terminal) = terminal {
                terminal.finish(None);
            }
            return Ok(ended);
        }
    }
}

/// Reaps processes that became ours because their parent ended; the container's first is waited for by its pidfd.
fn reap_adopted(first: i32) {
    let Ok(text) = std::fs::read_to_string("/proc/thread-self/children") else { return };
    for pid in text.split_ascii_whitespace().filter_map(|p| p.parse::<i32>().ok()).filter(|p| *p != first) {
        // Not ours any more, or still running: nothing to do.
        let _ = process::wait(pid, false);
    }
}

/// The socket on which we get the terminal's master side from libcontainer.
struct Console {
    listener: UnixListener,
    path: PathBuf,
}

impl Console {
    fn listen(root: &Path) -> Result<Console, RuntimeError> {
        std::fs::create_dir_all(root).on("make directory", root)?;
        let root = std::path::absolute(root).on("resolve", root)?;
        let path = root.join(format!(".console-{}", std::process::id()));
        // Of a process that was killed, and had our id.
        let _ = std::fs::remove_file(&path);
        let listener = socket::listen(&path).on("listen at", &path)?.into();
        Ok(Console { listener, path })
    }

    fn accept(self) -> Result<Relay, RuntimeError> {
        let (stream, _) = self.listener.accept().on("accept at", &self.path)?;
        let master = socket::receive_fd(stream.as_fd()).on("receive terminal at", &self.path)?;
        Relay::start(master).during("pass on the terminal")
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        // Left over only if the directory is gone too.
        let _ = std::fs::remove_file(&self.path);
    }
}
