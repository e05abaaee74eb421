//! A logging program: it reads the process's pipes itself, so that no output passes through the shim.
//!
//! Descriptor 3 is the output, 4 the error output, and on 5 it says that it is ready: by a byte, or by closing it. It ends
//! when both pipes have ended; one that waits for SIGTERM instead gets it.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::runtime::Handle;
use tokio::sync::watch::{self as flag, Receiver};
use tokio::time::timeout;

use super::target::LoggerCommand;
use super::{Identity, copy};
use crate::shim::ShimError;
use crate::shim::reaper::Reaper;
use crate::sys::{spawn, watch};

/// How long it may take to become ready.
const READY: Duration = Duration::from_secs(10);
/// How long one that has read everything may take to see that itself, before it is asked to end.
const SEE: Duration = Duration::from_millis(250);
/// How long it may take to end when asked to.
const GRACE: Duration = Duration::from_secs(12);

/// A logger that runs. Dropped, it is asked to end, and killed 12 s later.
#[derive(Debug)]
pub(super) struct Logger {
    path: PathBuf,
    process: Process,
    /// Its ends of the pipes, to see what it has not read. They go when it has ended, so that a process without its logger
    /// learns that nobody reads.
    unread: Arc<Mutex<Vec<OwnedFd>>>,
    ended: Receiver<bool>,
}

/// What is written to a logger; both ends are blocking.
pub(super) struct Pipes {
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// A process by its descriptor, killed when this is dropped armed.
#[derive(Debug)]
struct Process {
    pidfd: OwnedFd,
    armed: bool,
}

impl Logger {
    /// Starts the program and waits until it is ready.
    ///
    /// # Errors
    /// If it cannot be started or is not ready within 10 s; `State` if it ended, or closed its descriptor, without a word
    /// where one is needed.
    pub async fn start(
        command: &LoggerCommand,
        identity: Identity<'_>,
        reaper: &Reaper,
    ) -> Result<(Logger, Pipes), ShimError> {
        let pipe = || copy::pipe().map_err(ShimError::io("make pipes for", &command.path));
        let ((stdout_read, stdout), (stderr_read, stderr), (ready_read, ready)) = (pipe()?, pipe()?, pipe()?);
        let fds = [stdout_read.as_fd(), stderr_read.as_fd(), ready.as_fd()];
        let (path, argv, env) = strings(command, identity)?;
        let ended = {
            // No await in here: the process is not reaped, and its pid not another's, before it has a descriptor.
            let nursery = reaper.nursery();
            let pid = spawn::spawn(&path, &argv, &env, &fds);
            let pid = pid.map_err(|err| ShimError::io("start the logging program", &command.path)(err.into()))?;
            let exit = nursery.adopt(pid);
            let number = Pid::from_raw(pid.cast_signed()).ok_or(rustix::io::Errno::SRCH);
            let pidfd = number.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()));
            if let (Err(_), Ok(pid)) = (&pidfd, number) {
                // It is being given up already: what becomes of the call is no matter.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            let pidfd = pidfd.map_err(|errno| ShimError::io("pidfd_open", &command.path)(errno.into()))?;
            (exit, Process { pidfd, armed: true })
        };
        let (exit, process) = ended;
        drop(ready);
        let unread = Arc::new(Mutex::new(vec![stdout_read, stderr_read]));
        let (sender, ended) = flag::channel(false);
        tokio::spawn({
            let (unread, path) = (unread.clone(), command.path.clone());
            async move {
                // An error is the end of the reaper, that is of the shim.
                if let Ok(exit) = exit.await {
                    tracing::debug!(path = %path.display(), code = exit.code, "a logging program has ended");
                }
                unread.lock().unwrap_or_else(PoisonError::into_inner).clear();
                sender.send_replace(true);
            }
        });
        let logger = Logger { path: command.path.clone(), process, unread, ended };
        logger.wait_until_ready(ready_read, command.must_say).await?;
        Ok((logger, Pipes { stdout, stderr }))
    }

    async fn wait_until_ready(&self, ready: OwnedFd, must_say: bool) -> Result<(), ShimError> {
        let failed = || ShimError::io("wait for the logging program", &self.path);
        let ready = watch::watch(ready).map_err(|err| failed()(err.into()))?;
        let late =
            |_| io::Error::new(io::ErrorKind::TimedOut, "it neither wrote to nor closed its descriptor 5 in 10 s");
        let said = timeout(READY, copy::read(&ready, 1)).await.map_err(late).and_then(|said| said).map_err(failed())?;
        if must_say && said.is_empty() {
            let what = "logging program did not say that it is ready: it closed its descriptor 5, or ended";
            return Err(ShimError::State(format!("{what}: {}", self.path.display())));
        }
        Ok(())
    }

    /// Waits until it has read everything, which needs the writing ends to be closed; asks it to end if it does not by
    /// itself; and waits for that.
    pub async fn finish(&self) {
        let mut pause = Duration::from_millis(1);
        while !self.has_read_everything() && !self.has_ended() {
            if timeout(pause, self.end()).await.is_err() {
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
        if timeout(SEE, self.end()).await.is_err() {
            self.process.signal(Signal::TERM);
            self.end().await;
        }
    }

    async fn end(&self) {
        // An error is the same: nothing is known of it any more.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    fn has_read_everything(&self) -> bool {
        let unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        unread.iter().all(|pipe| {
            // Nothing in it, and nobody who could write.
            watch::ready(pipe, PollFlags::IN) == PollFlags::HUP
        })
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        if self.has_ended() {
            self.process.let_go();
            return;
        }
        self.process.signal(Signal::TERM);
        let (Ok(runtime), Ok(pidfd)) = (Handle::try_current(), self.process.pidfd.try_clone()) else { return };
        self.process.let_go();
        let (mut process, mut ended) = (Process { pidfd, armed: true }, self.ended.clone());
        // When the shim ends before, this goes, and the logger with it.
        runtime.spawn(async move {
            if timeout(GRACE, ended.wait_for(|ended| *ended)).await.is_ok() {
                process.let_go();
            }
        });
    }
}

impl Process {
    /// It has ended, or another value watches over it.
    fn let_go(&mut self) {
        self.armed = false;
    }

    fn signal(&self, signal: Signal) {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(err) => tracing::warn!(%err, "a logging program could not be signalled"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.armed {
            self.signal(Signal::KILL);
        }
    }
}

/// Path, arguments and environment.
fn strings(
    command: &LoggerCommand,
    identity: Identity<'_>,
) -> Result<(CString, Vec<CString>, Vec<CString>), ShimError> {
    let string = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| ShimError::Invalid("a logging program's arguments hold a NUL".into()))
    };
    let path = string(command.path.as_os_str().as_bytes())?;
    let arguments = command.args.iter().map(|argument| string(argument.as_bytes()));
    let argv = [Ok(path.clone())].into_iter().chain(arguments).collect::<Result<_, _>>()?;
    let told = [("CONTAINER_ID", identity.id), ("CONTAINER_NAMESPACE", identity.namespace)];
    let is_told = |name: &OsStr| told.iter().any(|(known, _)| name == *known);
    let given = command.env.iter().filter(|(name, _)| !is_told(name)).map(|(n, v)| (n.as_os_str(), v.as_os_str()));
    let env = told.iter().map(|(n, v)| (OsStr::new(n), OsStr::new(v))).chain(given);
    let env = env.map(|(name, value)| string(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
    Ok((path, argv, env.collect::<Result<_, _>>()?))
}
