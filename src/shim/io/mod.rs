//! The streams of one process, a container's first or an exec's: between what the client named and what the process has.
//!
//! The process gets pipes or a terminal, never what the client named itself, and the shim copies. So a client may go away
//! and come back, and nothing that the process does to its descriptors reaches the client's.

mod binary;
mod copy;
mod fifo;
mod file;
mod output;
mod target;
mod terminal;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::watch::{self as flag, Receiver};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use self::binary::Logger;
use self::output::{Sink, Source};
use self::target::Target;
use self::terminal::Console;
use crate::shim::ShimError;
use crate::shim::reaper::Reaper;
use crate::sys::{proc, tty, watch};

/// What a request names as a process's streams: an empty string (none), the path of a fifo or `fifo://PATH`, and for
/// output `file://PATH` or `binary://PATH?KEY=VALUE&…` too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stdio {
    /// What the process reads.
    pub stdin: String,
    /// Where its output goes.
    pub stdout: String,
    /// Where its error output goes. Unused with a terminal, and with a logger, which takes both.
    pub stderr: String,
    /// Whether it has a terminal.
    pub terminal: bool,
}

/// Who owns the process's ends of its pipes, so that it can open them again by `/dev/stdout`. Host ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What a logging program is told of what it logs.
#[derive(Debug, Clone, Copy)]
pub struct Identity<'a> {
    /// `CONTAINER_NAMESPACE`
    pub namespace: &'a str,
    /// `CONTAINER_ID`: a container's id for its first process, an exec's for an exec.
    pub id: &'a str,
}

/// What the runtime's command is started with. The process sees the end of its input, and the client that of the output,
/// only when the command's value is gone too.
#[derive(Debug)]
pub struct ChildStdio {
    /// What becomes its descriptor 0.
    pub stdin: process::Stdio,
    /// 1.
    pub stdout: process::Stdio,
    /// 2.
    pub stderr: process::Stdio,
    /// The argument of `--console-socket`; with it the three are /dev/null.
    pub console_socket: Option<PathBuf>,
}

/// The streams of one process. When it is dropped everything goes at once: descriptors, tasks, the console socket; a
/// logger gets SIGTERM, and SIGKILL 12 s later.
#[derive(Debug)]
pub struct Streams {
    state: Mutex<State>,
    draining: flag::Sender<bool>,
    /// The process has ended: nobody opens its terminal again.
    over: flag::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// Until the command is made.
    child: Option<ChildStdio>,
    /// Until the terminal is there.
    waiting: Option<Waiting>,
    /// The shim's writing end of the stdin fifo, until CloseIO.
    hold: Option<OwnedFd>,
    /// Until the command has done its work.
    pending: Vec<Pending>,
    tasks: Vec<Task>,
    terminal: Option<Terminal>,
    logger: Option<Arc<Logger>>,
}

/// What waits for the terminal's master.
struct Waiting {
    console: Console,
    sink: Sink,
    input: Option<AsyncFd<OwnedFd>>,
}

#[derive(Debug, Default)]
struct Terminal {
    master: Option<Arc<OwnedFd>>,
    /// Rows and columns that were asked for before the master was there.
    size: Option<(u16, u16)>,
}

/// A copy in one direction that has not begun.
struct Pending {
    copy: Pin<Box<dyn Future<Output = bool> + Send>>,
    is_output: bool,
}

/// A copy in one direction. It ends when this is dropped.
#[derive(Debug)]
struct Task {
    abort: AbortHandle,
    /// Closed when the copy has ended and its descriptors are closed; then whether all was delivered.
    ended: Receiver<bool>,
    is_output: bool,
}

impl Streams {
    /// Opens what `stdio` names, and starts the logger where there is one. Does not wait for the client. Runs in the
    /// shim's tokio runtime.
    ///
    /// # Errors
    /// `Invalid` for a scheme that is not known and for a path that is no fifo; what opening gives; a logger that does not
    /// become ready.
    pub async fn open(
        stdio: &Stdio,
        owner: Owner,
        identity: Identity<'_>,
        reaper: &Reaper,
    ) -> Result<Streams, ShimError> {
        let streams =
            Streams { state: Mutex::default(), draining: flag::channel(false).0, over: flag::channel(false).0 };
        let (stdout, stderr) = (Target::parse(&stdio.stdout)?, Target::parse(&stdio.stderr)?);
        let mut state = State::default();
        let input = match Target::parse(&stdio.stdin)? {
            Target::Null => None,
            Target::Fifo(path) => {
                let input = fifo::Input::open(&path)?;
                state.hold = Some(input.hold);
                Some(input.reader)
            }
            Target::File(_) | Target::Logger(_) => {
                return Err(ShimError::Invalid(format!("stdin {}: this must be a fifo", stdio.stdin)));
            }
        };
        let mut child = ChildStdio {
            stdin: process::Stdio::null(),
            stdout: process::Stdio::null(),
            stderr: process::Stdio::null(),
            console_socket: None,
        };
        if stdio.terminal {
            let sink = match stdout {
                Target::Logger(command) => {
                    let (logger, pipes) = Logger::start(&command, identity, reaper).await?;
                    state.logger = Some(Arc::new(logger));
                    Sink::Pipe(watch::watch(pipes.stdout).map_err(pipe_error)?)
                }
                stdout => sink(stdout).await?.unwrap_or(Sink::Nowhere),
            };
            let console = Console::listen()?;
            child.console_socket = Some(console.path().to_owned());
            state.waiting = Some(Waiting { console, sink, input });
            state.terminal = Some(Terminal::default());
        } else {
            if let Some(fifo) = input {
                let (ours, theirs) = pipe(owner, Towards::Process)?;
                child.stdin = theirs.into();
                state.pending.push(Pending { copy: Box::pin(input_task(fifo, ours)), is_output: false });
            }
            if let Target::Logger(command) = stdout {
                let (logger, pipes) = Logger::start(&command, identity, reaper).await?;
                state.logger = Some(Arc::new(logger));
                give(&pipes.stdout, owner)?;
                give(&pipes.stderr, owner)?;
                (child.stdout, child.stderr) = (pipes.stdout.into(), pipes.stderr.into());
            } else {
                for (target, end) in [(stdout, &mut child.stdout), (stderr, &mut child.stderr)] {
                    let Some(sink) = sink(target).await? else { continue };
                    let (ours, theirs) = pipe(owner, Towards::Client)?;
                    *end = theirs.into();
                    let copy = output::run(Source::Pipe(ours), sink, streams.draining.subscribe());
                    state.pending.push(Pending { copy: Box::pin(copy), is_output: true });
                }
            }
        }
        state.child = Some(child);
        *streams.lock() = state;
        Ok(streams)
    }

    /// What to start the runtime's command with; once.
    ///
    /// # Errors
    /// `State` the second time, and after [`Streams::started`] or [`Streams::drain`].
    pub fn child(&mut self) -> Result<ChildStdio, ShimError> {
        let taken = || ShimError::State("the process's streams have been given away".into());
        self.lock().child.take().ok_or_else(taken)
    }

    /// To be called when the command has done its work: begins to copy, with a terminal after taking the master. The command's
    /// value, which holds the process's ends, is to be dropped before.
    ///
    /// Where it is not called, because the command failed, the client gets nothing: what the command itself said was no
    /// output of a process, and is told in the answer.
    ///
    /// # Errors
    /// With a terminal: if the runtime sends no master within 10 s.
    pub async fn started(&mut self) -> Result<(), ShimError> {
        let waiting = {
            let mut state = self.lock();
            state.child = None;
            for Pending { copy, is_output } in std::mem::take(&mut state.pending) {
                state.tasks.push(Task::spawn(copy, is_output));
            }
            state.waiting.take()
        };
        let Some(Waiting { console, sink, input }) = waiting else { return Ok(()) };
        let master = console.receive().await?;
        let master = Arc::new(master);
        let reader = terminal::Reader::new(master.clone(), self.over.subscribe())
            .map_err(ShimError::io("epoll_ctl", "the terminal's master"))?;
        let draining = self.draining.subscribe();
        let mut state = self.lock();
        let size = state.terminal.as_ref().and_then(|terminal| terminal.size);
        state.terminal = Some(Terminal { master: Some(master.clone()), size });
        state.tasks.push(Task::spawn(output::run(Source::Terminal(reader), sink, draining), true));
        if let Some(input) = input {
            let master = master.clone();
            state.tasks.push(Task::spawn(async { stopped(terminal::type_in(input, master).await) }, false));
        }
        match size {
            Some((rows, columns)) => set_size(&master, rows, columns),
            None => Ok(()),
        }
    }

    /// Sets the terminal's size, in characters. What is asked for before the terminal is there is done when it is; without
    /// one nothing is done.
    ///
    /// # Errors
    /// What the kernel gives.
    pub fn resize(&self, width: u16, height: u16) -> Result<(), ShimError> {
        let mut state = self.lock();
        let Some(terminal) = &mut state.terminal else { return Ok(()) };
        match &terminal.master {
            Some(master) => set_size(master, height, width),
            None => {
                terminal.size = Some((height, width));
                Ok(())
            }
        }
    }

    /// Lets the process see the end of its input when the client has closed the fifo, or at once if it has.
    pub fn close_stdin(&self) {
        self.lock().hold = None;
    }

    /// To be called when the process has ended. The client sees the end of the output when nobody else has it open, and does
    /// not have to delete the process for that: Docker waits two seconds for it before it does.
    pub fn over(&self) {
        self.over.send_replace(true);
    }

    /// To be called when the process has ended: waits until everything that it has written is delivered, at most `limit`;
    /// then ends what is left, and everything is closed. Whether all was delivered.
    ///
    /// What a process left in the background holds is what is waited for. A client that is away is not.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.over();
        self.draining.send_replace(true);
        let (outputs, logger) = {
            let mut state = self.lock();
            (state.child, state.waiting) = (None, None);
            state.pending.clear();
            let outputs = state.tasks.iter().filter(|task| task.is_output);
            (outputs.map(|task| task.ended.clone()).collect::<Vec<_>>(), state.logger.clone())
        };
        let delivered = timeout(limit, async {
            let mut whole = true;
            for output in outputs {
                whole &= ended(output).await;
            }
            if let Some(logger) = logger {
                logger.finish().await;
            }
            whole
        })
        .await;
        let mut rest = std::mem::take(&mut *self.lock());
        for task in std::mem::take(&mut rest.tasks) {
            task.abort.abort();
            ended(task.ended.clone()).await;
        }
        delivered.unwrap_or(false)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the directories of console sockets whose shim was killed.
pub fn remove_lost_consoles() {
    // One that was killed and is not reaped yet is no more, either. What can't be told lives.
    let is_there = |pid| proc::stat(pid).map_or(true, |stat| stat.is_some_and(|stat| !stat.is_dead()));
    terminal::remove_lost(&terminal::PLACES.map(Path::new), is_there);
}

impl Task {
    fn spawn(copy: impl Future<Output = bool> + Send + 'static, is_output: bool) -> Task {
        let (sender, ended) = flag::channel(false);
        let task = tokio::spawn(async move {
            let whole = copy.await;
            sender.send_replace(whole);
        });
        Task { abort: task.abort_handle(), ended, is_output }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_output", &self.is_output).finish_non_exhaustive()
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("console", &self.console).finish_non_exhaustive()
    }
}

/// Waits for the end of a copy, whether it ends by itself or is ended.
async fn ended(mut copy: Receiver<bool>) -> bool {
    while copy.changed().await.is_ok() {}
    *copy.borrow()
}

/// Opens where output goes; `None` for nowhere.
async fn sink(target: Target) -> Result<Option<Sink>, ShimError> {
    match target {
        Target::Null => Ok(None),
        Target::File(path) => Ok(Some(Sink::File(file::create(path).await?))),
        Target::Fifo(path) => match fifo::Output::open(&path)? {
            Some(fifo) => Ok(Some(Sink::Fifo(fifo))),
            None => Ok(Some(Sink::File(file::existing(path).await?))),
        },
        Target::Logger(_) => {
            Err(ShimError::Invalid("stderr binary://…: a logger takes both, so stdout must name it too".into()))
        }
    }
}

async fn input_task(fifo: AsyncFd<OwnedFd>, pipe: AsyncFd<OwnedFd>) -> bool {
    stopped(copy::pipe_to_pipe(&fifo, &pipe).await)
}

/// The end of a copy of input.
fn stopped(copied: std::io::Result<()>) -> bool {
    match &copied {
        // The process does not want the rest.
        Err(err) if err.kind() == std::io::ErrorKind::BrokenPipe => {}
        Err(err) => tracing::warn!(%err, "the copying of an input stopped"),
        Ok(()) => {}
    }
    copied.is_ok()
}

#[derive(Clone, Copy)]
enum Towards {
    Process,
    Client,
}

/// A pipe: our end, non-blocking, and the process's.
fn pipe(owner: Owner, towards: Towards) -> Result<(AsyncFd<OwnedFd>, OwnedFd), ShimError> {
    let (read, write) = copy::pipe().map_err(pipe_error)?;
    let (ours, theirs) = match towards {
        Towards::Process => (write, read),
        Towards::Client => (read, write),
    };
    give(&theirs, owner)?;
    Ok((watch::watch(ours).map_err(pipe_error)?, theirs))
}

/// Makes a pipe the owner's.
fn give(pipe: &OwnedFd, owner: Owner) -> Result<(), ShimError> {
    // It is root's already, or that of who runs the shim without root.
    if owner == Owner::default() {
        return Ok(());
    }
    std::os::unix::fs::fchown(pipe, Some(owner.uid), Some(owner.gid)).map_err(ShimError::io("fchown", "a stdio pipe"))
}

fn pipe_error(err: impl Into<std::io::Error>) -> ShimError {
    ShimError::io("make", "a stdio pipe")(err.into())
}

fn set_size(master: &OwnedFd, rows: u16, columns: u16) -> Result<(), ShimError> {
    use std::os::fd::AsFd;
    tty::set_size(master.as_fd(), rows, columns).map_err(|err| ShimError::io("resize", "the terminal")(err.into()))
}
