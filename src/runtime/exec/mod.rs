//! The parent side of exec: from a plan to a running command, watched until it and all that it left have ended.

pub mod budget;
pub mod cgroup;
pub mod process;
pub mod quota;
pub mod roster;
pub mod strays;
pub mod supervise;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use crate::error::{Classify, Kind};
use crate::init::MAX_ERROR;
pub use crate::init::{Plan, Stdio};
use crate::rootfs::RootfsError;
use crate::runtime::members::CgroupError;
use crate::sys::proc::PidFd;
use crate::sys::process::{Fork, HiddenCommandLine, fork, fork_into, wait};
use crate::sys::signal::SignalFd;
use crate::sys::{SysError, ns, socket};
use cgroup::ExecCgroup;

/// Why a command could not be started, or not be watched to its end. The texts are runc's where it has one.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The engine named no command.
    #[error("process args cannot be empty")]
    NoArgs,
    /// The engine's working directory is relative.
    #[error("Cwd must be an absolute path")]
    CwdNotAbsolute,
    /// A string that a C program can't be given.
    #[error("{0}: a string has a NUL byte")]
    NulByte(&'static str),
    /// A value out of its range.
    #[error("{field}: invalid value {value}")]
    Invalid {
        /// The field of `process.json`.
        field: &'static str,
        /// What it had.
        value: String,
    },
    /// The container's first process ended, or its id belongs to another process now.
    #[error("cannot exec in a stopped container")]
    Stopped,
    /// `--cgroup` names a group that does not exist.
    #[error("cgroup {0} does not exist: make it before an exec is put into it")]
    NoSubCgroup(PathBuf),
    /// A cgroup operation failed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The root filesystem could not be put together.
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    /// A system call failed.
    #[error("{doing}")]
    Sys {
        /// What it was needed for.
        doing: &'static str,
        /// The call.
        #[source]
        source: SysError,
    },
    /// The process that makes the command was killed: by who ends the container, or for want of memory.
    #[error("unable to start container process: its first process was killed")]
    Killed,
    /// The child could not become the command; it says why.
    #[error("unable to start container process: {0}")]
    Start(String),
}

impl Classify for ExecError {
    fn kind(&self) -> Kind {
        match self {
            ExecError::NoArgs | ExecError::CwdNotAbsolute | ExecError::NulByte(_) | ExecError::Invalid { .. } => {
                Kind::InvalidInput
            }
            ExecError::Stopped => Kind::WrongState,
            ExecError::NoSubCgroup(_) => Kind::NotFound,
            ExecError::Cgroup(err) => err.kind(),
            ExecError::Rootfs(err) => err.kind(),
            ExecError::Sys { source, .. } => source.kind(),
            ExecError::Start(_) | ExecError::Killed => Kind::System,
        }
    }
}

fn sys<T>(doing: &'static str, result: Result<T, SysError>) -> Result<T, ExecError> {
    result.map_err(|source| ExecError::Sys { doing, source })
}

/// A command that runs.
#[derive(Debug)]
pub struct Running {
    /// Its id in our pid namespace.
    pub pid: i32,
    /// A handle on it.
    pub pidfd: PidFd,
    /// The groups of it and of what it starts.
    pub cgroup: ExecCgroup,
    /// When it was let go.
    pub started: Instant,
    signals: SignalFd,
}

/// How the command comes into the container's pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Birth {
    /// It is this process's own too.
    Here,
    /// The process that prepares itself is in it from its beginning.
    Inside,
    /// A first process prepares outside, unseen by who may trace in there; a second one is born inside and becomes the
    /// command.
    Unseen,
}

/// Starts the command. On failure nothing of it is left but the (empty) groups, which are removed.
///
/// `meanwhile` is called once, while the command's process prepares itself.
///
/// From here on this process reads its signals from a descriptor; with [`Birth::Inside`] its further children are in the
/// container's pid namespace.
pub fn spawn(plan: Plan, birth: Birth, cgroup: ExecCgroup, meanwhile: impl FnOnce()) -> Result<Running, ExecError> {
    match try_spawn(plan, birth, &cgroup, meanwhile) {
        Ok((pid, pidfd, signals, started)) => Ok(Running { pid, pidfd, cgroup, started, signals }),
        Err(err) => {
            // The error that is on its way says more than one about a directory that stays.
            let _ = cgroup.kill_all().and_then(|_| cgroup.remove());
            Err(err)
        }
    }
}

/// Ends a command of which nobody was told: kills it with all that it started, and reaps it.
pub fn abandon(running: Running) -> Result<(), ExecError> {
    running.cgroup.kill_all()?;
    sys("reap the command", wait(running.pid, true))?;
    running.cgroup.remove()
}

type Spawned = (i32, PidFd, SignalFd, Instant);

fn try_spawn(
    mut plan: Plan,
    birth: Birth,
    cgroup: &ExecCgroup,
    meanwhile: impl FnOnce(),
) -> Result<Spawned, ExecError> {
    let (ours, childs) = sys("make a channel to the command", socket::pair())?;
    let second = match birth {
        Birth::Unseen => {
            plan.namespaces |= libc::CLONE_NEWPID;
            let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
            Some(sys("make a channel to the command", pipe.map_err(|e| SysError::new("pipe2", "", e)))?)
        }
        Birth::Here | Birth::Inside => None,
    };
    // Before the fork: a command that ends at once must not end unseen.
    let signals = sys("take over the signals", SignalFd::block_all())?;
    if birth == Birth::Inside {
        sys("enter the container's pid namespace", ns::join(plan.pidfd.as_fd(), libc::CLONE_NEWPID))?;
    }
    let at = Instant::now();
    let birthplace = cgroup.birthplace()?;
    let hidden = HiddenCommandLine::hide();
    let (forked, born) = match birthplace.as_ref().map(|group| fork_into(group.as_fd())) {
        Some(Ok(forked)) => (forked, true),
        // An old kernel, or a group that takes nobody: the child finds out by asking to be let in.
        Some(Err(_)) | None => (sys("start the command", fork())?, false),
    };
    let first = match forked {
        Fork::Child => {
            drop((ours, birthplace));
            let report = second.map(|(_, write)| write);
            crate::init::run(plan, &cgroup.doors(born), childs.as_fd(), report);
        }
        Fork::Parent(pid) => pid,
    };
    drop((childs, birthplace, hidden));
    // The layered root is the child's now: our copy would keep it mounted after the command has ended.
    drop(plan);
    meanwhile();
    let pid = match second {
        Some((read, write)) => {
            drop(write);
            second_pid(&read, first, &ours)?
        }
        None => first,
    };
    let started = sys("open the command", PidFd::of(pid)).and_then(|pidfd| {
        let text = read_all(&ours);
        if text.is_empty() { Ok(pidfd) } else { Err(ExecError::Start(text)) }
    });
    match started {
        Ok(pidfd) => Ok((pid, pidfd, signals, at)),
        Err(err) => {
            drop(ours);
            // Its own message, or the closed channel, has ended it; if not, this does.
            let _ = PidFd::of(pid).and_then(|child| child.send(libc::SIGKILL));
            sys("reap the command", wait(pid, true))?;
            Err(err)
        }
    }
}

/// The pid of the process that becomes the command, once the first has made it and ended; or why it did not.
fn second_pid(report: &OwnedFd, first: i32, channel: &OwnedFd) -> Result<i32, ExecError> {
    let mut pid = [0u8; 4];
    let read = loop {
        match rustix::io::read(report, &mut pid) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.unwrap_or(0),
        }
    };
    sys("reap the first process of an exec", wait(first, true))?;
    if read == pid.len() {
        return Ok(i32::from_ne_bytes(pid));
    }
    let text = read_all(channel);
    Err(if text.is_empty() { ExecError::Killed } else { ExecError::Start(text) })
}

/// What the child says until it becomes the command: nothing, if all went well.
fn read_all(channel: &OwnedFd) -> String {
    let mut text = Vec::new();
    let mut buffer = [0u8; 1024];
    while text.len() < MAX_ERROR {
        match rustix::io::read(channel, &mut buffer) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(&buffer[..n]),
            Err(rustix::io::Errno::INTR) => {}
            // The child was killed while it wrote.
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}
