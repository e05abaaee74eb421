//! What a request to the shim fails with, and the status and text that containerd is told.
//!
//! containerd, Docker and Kubernetes match on the texts (`OCI runtime create failed: …`, `process already finished`), so
//! they are those of containerd's own shim.

use std::io;
use std::path::PathBuf;

use containerd_shim_protos::ttrpc;
use ttrpc::{Code, get_status};

use crate::error::{Classify, Kind};
use crate::sys::SysError;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// What the request names is not there: `container c`, `process x`.
    #[error("{0}: not found")]
    NotFound(String),
    /// What was to be signalled has ended.
    #[error("process already finished: not found")]
    Finished,
    /// An id that is taken.
    #[error("id {0}: already exists")]
    AlreadyExists(String),
    /// The object's state does not allow it; the text says which state.
    #[error("{0}")]
    State(String),
    /// The request is wrong.
    #[error("{0}: invalid argument")]
    Invalid(String),
    /// The runtime has no such thing.
    #[error("{0}: not implemented")]
    Unimplemented(String),
    /// The runtime refused or failed; `doing` is `create`, `start`, `exec` …
    #[error("OCI runtime {doing} failed: {message}")]
    Runtime {
        /// The runtime's verb.
        doing: &'static str,
        /// The last error of its log, or what it wrote to stderr.
        message: String,
    },
    /// The runtime ended without a word, as when it is killed: it may have left its work half done.
    #[error("OCI runtime {doing} failed: it ended with {code} and said nothing")]
    Silent {
        /// The runtime's verb.
        doing: &'static str,
        /// Its exit code, or 128 and the signal that killed it.
        code: u32,
    },
    /// A system call on a file, a socket, a mount.
    #[error("{doing} {}: {}", path.display(), crate::error::errno_text(source))]
    Io {
        /// The operation: `open`, `mount`.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A mount that could not be made.
    #[error("mount {what} on {}: {source}", target.display())]
    Mount {
        /// Its type and source.
        what: String,
        /// Where it was to be.
        target: PathBuf,
        /// The call that failed.
        source: SysError,
    },
}

impl ShimError {
    /// A `map_err` for operations on files.
    pub fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> ShimError {
        let path = path.into();
        move |source| ShimError::Io { doing, path, source }
    }

    /// What a task of its own has come to.
    pub fn of_task<T>(done: Result<Result<T, ShimError>, tokio::task::JoinError>) -> Result<T, ShimError> {
        done.unwrap_or_else(|_| Err(ShimError::broken()))
    }

    /// What a request comes to in which the shim has panicked.
    pub fn broken() -> ShimError {
        ShimError::State("the shim failed in this request; its log tells".into())
    }

    fn code(&self) -> Code {
        match self {
            ShimError::NotFound(_) | ShimError::Finished => Code::NOT_FOUND,
            ShimError::AlreadyExists(_) => Code::ALREADY_EXISTS,
            ShimError::State(_) => Code::FAILED_PRECONDITION,
            ShimError::Invalid(_) => Code::INVALID_ARGUMENT,
            ShimError::Unimplemented(_) => Code::UNIMPLEMENTED,
            ShimError::Runtime { .. } | ShimError::Silent { .. } | ShimError::Io { .. } | ShimError::Mount { .. } => {
                Code::UNKNOWN
            }
        }
    }
}

impl Classify for ShimError {
    fn kind(&self) -> Kind {
        match self {
            ShimError::NotFound(_) | ShimError::Finished => Kind::NotFound,
            ShimError::AlreadyExists(_) => Kind::AlreadyExists,
            ShimError::State(_) => Kind::WrongState,
            ShimError::Invalid(_) => Kind::InvalidInput,
            ShimError::Unimplemented(_) => Kind::Unsupported,
            ShimError::Runtime { .. } | ShimError::Silent { .. } => Kind::System,
            ShimError::Io { source, .. } => Kind::of_io(source),
            ShimError::Mount { source, .. } => source.kind(),
        }
    }
}

impl From<ShimError> for ttrpc::Error {
    fn from(err: ShimError) -> ttrpc::Error {
        ttrpc::Error::RpcStatus(get_status(err.code(), err.to_string()))
    }
}
