//! What a use case can fail with.

use std::path::PathBuf;

use crate::diff::DiffError;
use crate::error::{Classify, Kind};
use crate::id::Generation;
use crate::rootfs::RootfsError;
use crate::runtime::RuntimeError;
use crate::runtime::exec::ExecError;
use crate::runtime::members::CgroupError;
use crate::store::StoreError;
use crate::terms::UnknownValue;

/// A use case that failed.
#[derive(Debug, thiserror::Error)]
pub enum OpsError {
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A container's life.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A command could not be run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// A cgroup could not be emptied or removed.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A layer could not be read.
    #[error(transparent)]
    Diff(#[from] DiffError),
    /// A root filesystem could not be put together.
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    /// An annotation, variable or flag with a value that it can't have.
    #[error("{from}")]
    Setting {
        /// Where the value came from.
        from: String,
        /// What is wrong with it.
        #[source]
        source: UnknownValue,
    },
    /// A variable asks for no layer.
    #[error(
        "environment variable AGENTSBX_LAYER: \"shared\" leaves no record of what the command changes: use --layer, or have \
         \"shared-layer\" in the configuration's allow when the container is created"
    )]
    SharedLayer,
    /// An annotation that asks for something that this version does not do.
    #[error("annotation {name}: {value:?} is not supported by this version: leave it out")]
    Reserved {
        /// The annotation.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// An annotation of ours that does not exist.
    #[error("annotation {0} is not known: there are {list}", list = crate::spec::annotations::SETTABLE.join(", "))]
    UnknownAnnotation(String),
    /// The container was made without a store, or the store has lost it.
    #[error("container {0} has no history in the store {1}: was it created with another --store?")]
    NotInStore(String, PathBuf),
    /// Somebody deleted a container that was not there yet.
    #[error("the container was deleted while it was made")]
    DeletedEarly,
    /// exec in a state that does not allow it; runc's texts.
    #[error("cannot exec in a stopped container")]
    ExecStopped,
    /// As above.
    #[error("cannot exec in a paused container (use --ignore-paused to override)")]
    ExecPaused,
    /// Somebody else applies to a directory of the host, or just holds its lock.
    #[error("{0} is locked by another process (flock): let it end, and try again")]
    Locked(PathBuf),
    /// A file of the engine's or ours.
    #[error("{doing} {path}")]
    File {
        /// read, write, parse …
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The answer.
        #[source]
        source: std::io::Error,
    },
    /// A JSON file that is not what it should be.
    #[error("parse {path}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's answer.
        #[source]
        source: serde_json::Error,
    },
    /// A flag's value.
    #[error("{flag}: {reason}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A system call outside the places that have words of their own.
    #[error("{doing}")]
    Sys {
        /// What it was needed for.
        doing: &'static str,
        /// The call.
        #[source]
        source: crate::sys::SysError,
    },
    /// A process that has too few descriptors left.
    #[error("creating a container takes up to {needed} more descriptors: raise the limit (ulimit -n)")]
    Descriptors {
        /// How many.
        needed: usize,
        /// The answer to opening so many.
        #[source]
        source: std::io::Error,
    },
    /// The detached supervisor died before the command was running.
    #[error("the exec's supervisor ended before the command was running: see its result with `agentsbx show`")]
    SupervisorLost,
    /// The detached supervisor could not start the command; it says why.
    #[error("{0}")]
    Supervisor(String),
    /// A commit that would lose an update.
    #[error("exec {exec} conflicts: {reason}{}: `agentsbx commit --force` lets it win, `agentsbx discard` drops it",
            paths.first().map(|p| format!(" ({p}{})", if paths.len() > 1 { format!(" and {} more", paths.len() - 1) } else { String::new() })).unwrap_or_default())]
    Conflict {
        /// The exec.
        exec: String,
        /// Why.
        reason: String,
        /// The paths, for people.
        paths: Vec<String>,
    },
    /// HEAD moved on each of many tries.
    #[error("HEAD kept moving while the layer was being committed: try again")]
    Restless,
    /// `diff FROM..TO` where FROM comes after TO.
    #[error("generation {from} comes after {to}")]
    Backwards {
        /// FROM.
        from: Generation,
        /// TO.
        to: Generation,
    },
    /// `diff FROM..TO` of generations on different branches.
    #[error("generations {from} and {to} are on branches that part at {fork}")]
    Apart {
        /// FROM.
        from: Generation,
        /// TO.
        to: Generation,
        /// Their newest common ancestor.
        fork: Generation,
    },
    /// An exec whose layer is no longer there.
    #[error("exec {0} has no layer any more ({1}): there is nothing to compare")]
    NoLayer(String, &'static str),
    /// An exec whose layer is not to be told from older ones any more.
    #[error(
        "what exec {exec} alone changed is not kept any more: older generations were merged into its generation {into} to keep \
         the history within bounds (retention in the configuration); `agentsbx show` has its result"
    )]
    Merged {
        /// The exec.
        exec: String,
        /// Its generation.
        into: Generation,
    },
    /// The event that tells it is gone, or is of a version that did not tell it.
    #[error(
        "the log does not tell the policy of container {0} (any more): its record in the runtime's root has what holds"
    )]
    PolicyUntold(String),
    /// `apply` of a container without copy-on-write mounts.
    #[error(
        "container {0} has no copy-on-write mount: there is nothing to apply (annotation dev.agentsbx.mounts makes them, or mounts.default of the configuration)"
    )]
    NoCowMount(String),
    /// `apply` of a path that is on none.
    #[error("{path} is on no copy-on-write mount: the container has {}", known.join(", "))]
    NotOnCowMount {
        /// The path.
        path: String,
        /// Where the mounts are.
        known: Vec<String>,
    },
    /// The container has no exec yet.
    #[error("container {0} has had no exec yet")]
    NoExec(String),
}

impl Classify for OpsError {
    fn kind(&self) -> Kind {
        match self {
            OpsError::Store(err) => err.kind(),
            OpsError::Runtime(err) => err.kind(),
            OpsError::Exec(err) => err.kind(),
            OpsError::Cgroup(err) => err.kind(),
            OpsError::Diff(err) => err.kind(),
            OpsError::Rootfs(err) => err.kind(),
            OpsError::Setting { .. }
            | OpsError::Flag { .. }
            | OpsError::Json { .. }
            | OpsError::Backwards { .. }
            | OpsError::Apart { .. } => Kind::InvalidInput,
            OpsError::NotOnCowMount { .. } | OpsError::UnknownAnnotation(_) => Kind::InvalidInput,
            OpsError::SharedLayer => Kind::Denied,
            OpsError::Reserved { .. } => Kind::Unsupported,
            OpsError::NotInStore(..)
            | OpsError::PolicyUntold(_)
            | OpsError::NoLayer(..)
            | OpsError::Merged { .. }
            | OpsError::NoExec(_)
            | OpsError::NoCowMount(_) => Kind::NotFound,
            OpsError::ExecStopped | OpsError::ExecPaused | OpsError::Locked(_) | OpsError::DeletedEarly => {
                Kind::WrongState
            }
            OpsError::File { source, .. } | OpsError::Descriptors { source, .. } => Kind::of_io(source),
            OpsError::Sys { source, .. } => source.kind(),
            OpsError::SupervisorLost | OpsError::Supervisor(_) | OpsError::Restless => Kind::System,
            OpsError::Conflict { .. } => Kind::Conflict,
        }
    }
}
