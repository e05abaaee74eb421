//! What can go wrong with a container's life, in the words that engines match on.

use std::path::{Path, PathBuf};

use super::members::CgroupError;
use super::state::Status;
use super::systemd::SystemdError;
use crate::error::{Classify, Kind};
use crate::policy::Refusal;
use crate::spec::SpecError;

/// A failed operation on a container. Texts without a name of ours are runc's own: engines look for them.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// No container has this id.
    #[error("container does not exist")]
    NotFound,
    /// A container has this id already.
    #[error("container with given ID already exists")]
    Exists,
    /// The first process has ended.
    #[error("container not running")]
    NotRunning,
    /// An exec that does not run. Whether there was one, only the store knows.
    #[error("exec {0} does not exist")]
    NoExec(String),
    /// The command of an exec has ended; Go's text, which engines look for.
    #[error("process already finished")]
    Finished,
    /// A command that is being started, and takes long.
    #[error("the command of exec {0} has not been started yet: try again")]
    ExecStarting(String),
    /// `resume` of a container that is not paused.
    #[error("container not paused")]
    NotPaused,
    /// `start` of a container that has been started.
    #[error("cannot start an already running container")]
    AlreadyStarted,
    /// `start` of a container that is paused, whether it was started before or not.
    #[error("cannot start a container in the paused state")]
    StartPaused,
    /// `start` of a container whose first process has ended.
    #[error("cannot start a container that has stopped")]
    StartStopped,
    /// `delete` without `--force` of one that lives.
    #[error("cannot delete container {id} that is not stopped: {status}")]
    NotStopped {
        /// The container.
        id: String,
        /// Its status.
        status: Status,
    },
    /// `delete` beside another one whose hooks take long.
    #[error("container {0} is being deleted by another command, whose poststop hooks take long: end them, or wait")]
    HooksRun(String),
    /// `events`, `ps` or `update` of a container that has ended.
    #[error("container with id {0} is not running")]
    IsNotRunning(String),
    /// The bundle or its configuration.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// What the profile does not let a container have.
    #[error(transparent)]
    Policy(#[from] Refusal),
    /// `--console-socket` where there is no use for it.
    #[error("cannot use console socket if {} will not detach or allocate tty", super::NAME)]
    ConsoleSocketUnused,
    /// A detached terminal that nobody would receive.
    #[error("cannot allocate tty if {} will detach without setting console socket", super::NAME)]
    ConsoleSocketMissing,
    /// A terminal in the foreground whose caller has none. It begins as runc's text does.
    #[error(
        "open /dev/tty: {}: there is no terminal to pass on: run it on one, or set process.terminal to false in config.json \
         (for an exec leave -t out), or give --detach and --console-socket",
        crate::error::errno_text(source)
    )]
    NoTerminal {
        /// Why the controlling terminal can't be opened.
        source: std::io::Error,
    },
    /// Processes that are not ours are in the cgroup that the container is to have.
    #[error("container's cgroup is not empty: {count} process(es) found in {path}")]
    CgroupNotEmpty {
        /// The cgroup's directory.
        path: PathBuf,
        /// How many.
        count: usize,
    },
    /// The container's first process could not be set up; the text is what libcontainer or the process said.
    #[error("unable to start container process: {0}")]
    Start(String),
    /// The container was deleted, but its history is still in the store.
    #[error("the container's history could not be dropped (`agentsbx recover` will do it): {0}")]
    History(String),
    /// The record of a container cannot be read.
    #[error("read state of container {id}: {source}")]
    Record {
        /// The container.
        id: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file operation.
    #[error("{op} {path}: {source}")]
    Io {
        /// What was done, as a verb.
        op: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A system call without a path.
    #[error("{op}: {source}")]
    System {
        /// What was done.
        op: &'static str,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A repair inside the container's mount namespace.
    #[error("prepare the container's mounts: {0}")]
    Fixup(String),
    /// The source of a bind mount.
    #[error("mounts[{}]: open source of a bind mount {}: {source}", at.display(), of.display())]
    Source {
        /// Where it was to go, as written.
        at: PathBuf,
        /// What.
        of: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A bind mount that is not left to libcontainer.
    #[error("mount {} of {}: {why}", at.display(), of.display())]
    Volume {
        /// Where it was to go.
        at: PathBuf,
        /// What.
        of: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// A mount whose ids can't be mapped.
    #[error("map the ids of the mount {} of {}: {hint}: {source}", at.display(), of.display())]
    MountIds {
        /// Where it was to go.
        at: PathBuf,
        /// What.
        of: PathBuf,
        /// What the error comes from, and what to do.
        hint: String,
        /// The kernel's answer.
        #[source]
        source: crate::sys::SysError,
    },
    /// A bind mount that can't be copy on write.
    #[error("copy-on-write mount {}: {why}", at.display())]
    CopyOnWrite {
        /// Where it was to go.
        at: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// The layer of a copy-on-write mount could not be made.
    #[error("make the layer of the copy-on-write mount {}: {source}", at.display())]
    CowLayer {
        /// Where it was to go.
        at: PathBuf,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A mount, a masked or a read-only path leads to the root of the container.
    #[error(
        "something is mounted over the container's root: a mount's destination, a masked or a read-only path leads to /, \
         perhaps by a symbolic link in the image; take it out"
    )]
    CoveredRoot,
    /// What the mounts of a container are was not to be found out.
    #[error(transparent)]
    Mounts(#[from] crate::rootfs::RootfsError),
    /// A hook failed.
    #[error("{phase} hook {path}: {why}")]
    Hook {
        /// `poststart` …
        phase: &'static str,
        /// The hook's program.
        path: String,
        /// How it failed.
        why: String,
    },
    /// A cgroup could not be read, emptied or removed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The container's scope.
    #[error("systemd cgroup driver: {0}")]
    Systemd(#[from] SystemdError),
    /// A value that cannot be.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// Flag or field.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Not something this runtime does.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
}

impl Classify for RuntimeError {
    fn kind(&self) -> Kind {
        use RuntimeError as E;
        match self {
            E::NotFound | E::NoExec(_) | E::Finished => Kind::NotFound,
            E::Exists => Kind::AlreadyExists,
            E::NotRunning
            | E::NotPaused
            | E::ExecStarting(_)
            | E::AlreadyStarted
            | E::StartPaused
            | E::StartStopped
            | E::NotStopped { .. }
            | E::HooksRun(_)
            | E::IsNotRunning(_)
            | E::CgroupNotEmpty { .. } => Kind::WrongState,
            E::Spec(err) => err.kind(),
            E::Policy(err) => err.kind(),
            E::ConsoleSocketUnused
            | E::ConsoleSocketMissing
            | E::NoTerminal { .. }
            | E::Invalid { .. }
            | E::CoveredRoot
            | E::Volume { .. }
            | E::CopyOnWrite { .. } => Kind::InvalidInput,
            E::MountIds { source, .. } => source.kind(),
            E::Mounts(err) => err.kind(),
            E::CowLayer { .. } => Kind::System,
            E::Start(_) | E::History(_) | E::Fixup(_) | E::Hook { .. } => Kind::System,
            E::Record { source, .. } | E::Source { source, .. } | E::Io { source, .. } | E::System { source, .. } => {
                Kind::of_io(source)
            }
            E::Cgroup(err) => err.kind(),
            E::Systemd(err) => err.kind(),
            E::Unsupported(_) => Kind::Unsupported,
        }
    }
}

/// Names what an I/O call was for.
pub(crate) trait On<T> {
    /// `op` on `path`.
    fn on(self, op: &'static str, path: &Path) -> Result<T, RuntimeError>;
    /// `op` on nothing that has a path.
    fn during(self, op: &'static str) -> Result<T, RuntimeError>;
}

impl<T, E: Into<std::io::Error>> On<T> for Result<T, E> {
    fn on(self, op: &'static str, path: &Path) -> Result<T, RuntimeError> {
        self.map_err(|err| RuntimeError::Io { op, path: path.to_owned(), source: err.into() })
    }

    fn during(self, op: &'static str) -> Result<T, RuntimeError> {
        self.map_err(|err| RuntimeError::System { op, source: err.into() })
    }
}
