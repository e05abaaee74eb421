//! The failures of walking, comparing and rewriting layers.

use rustix::io::Errno;

use super::path::PathBytes;
use crate::error::{Classify, Kind};

/// A failed walk, comparison or rewrite of layers.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// A system call failed on a path of a layer. `layer` counts from the newest, uppers first, then lowers.
    #[error("{call} {path} (layer {layer})")]
    Call {
        /// The system call's name.
        call: &'static str,
        /// The path inside the container.
        path: PathBytes,
        /// The index of the layer.
        layer: usize,
        /// What the kernel answered.
        #[source]
        source: Errno,
    },
    /// A file could not be made in the output of a merge.
    #[error("{call} {path} (output)")]
    Output {
        /// The system call's name.
        call: &'static str,
        /// The path inside the container.
        path: PathBytes,
        /// What the kernel answered.
        #[source]
        source: Errno,
    },
    /// A system call failed on the host's directory of a copy-on-write mount.
    #[error("{call} {path} (on the host)")]
    Host {
        /// The system call's name.
        call: &'static str,
        /// The path on the host.
        path: std::path::PathBuf,
        /// What the kernel answered.
        #[source]
        source: Errno,
    },
    /// Somebody else was at work on the host meanwhile.
    #[error("{path} was changed on the host meanwhile: run it again")]
    HostChanged {
        /// The path on the host.
        path: std::path::PathBuf,
    },
    /// Directories nest deeper than the walk follows.
    #[error("{path}: directories nest deeper than {limit} levels")]
    TooDeep {
        /// The first hundred bytes of the path.
        path: PathBytes,
        /// [`super::Options::max_depth`].
        limit: usize,
    },
    /// The paths to be told together take more memory than allowed.
    #[error("the paths of the changes take more than {limit} bytes")]
    TooLarge {
        /// [`super::Options::max_path_bytes`].
        limit: usize,
    },
    /// A stack of no directory.
    #[error("no directory was given to {operation}")]
    NoLayers {
        /// The function's name.
        operation: &'static str,
    },
    /// The output directory of a merge has entries.
    #[error("the output directory of the merge is not empty")]
    OutputNotEmpty,
    /// The set of touched paths is not one that [`super::encode_touched`] wrote.
    #[error("the set of touched paths is damaged at byte {offset}: {reason}")]
    Damaged {
        /// Where.
        offset: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// The set of touched paths has a version that is not known.
    #[error("the set of touched paths has version {version}, this program reads 1")]
    Version {
        /// The version found.
        version: u8,
    },
    /// Writing a patch failed.
    #[error("write the patch")]
    Write(#[source] std::io::Error),
}

impl Classify for DiffError {
    fn kind(&self) -> Kind {
        match self {
            DiffError::Call { source, .. } | DiffError::Output { source, .. } | DiffError::Host { source, .. } => {
                Kind::of_errno(source.raw_os_error())
            }
            DiffError::TooDeep { .. } | DiffError::TooLarge { .. } => Kind::Exhausted,
            DiffError::NoLayers { .. } => Kind::InvalidInput,
            DiffError::HostChanged { .. } => Kind::Conflict,
            DiffError::OutputNotEmpty => Kind::AlreadyExists,
            DiffError::Damaged { .. } => Kind::Corrupt,
            DiffError::Version { .. } => Kind::Unsupported,
            DiffError::Write(source) => Kind::of_io(source),
        }
    }
}
