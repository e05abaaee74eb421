//! The root filesystem of one exec: committed layers stacked over the container's own root, a fresh layer on top.

pub mod view;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::error::{Classify, Kind};
use crate::sys::{SysError, mount};

/// Why a root filesystem could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// A system call failed.
    #[error("{doing}")]
    Sys {
        /// What it was needed for.
        doing: String,
        /// The call.
        #[source]
        source: SysError,
    },
    /// The list of mounts could not be read.
    #[error("read {path}")]
    MountInfo {
        /// The file.
        path: PathBuf,
        /// The answer.
        #[source]
        source: std::io::Error,
    },
    /// A line of the list of mounts is not in the kernel's format.
    #[error("{path}: not a mountinfo line: {line:?}")]
    MountInfoLine {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
    },
    /// The place where a volume goes is gone, and something else is in its way.
    #[error(
        "mount point {path}: {reason}: remove what is in its way, roll back, or run the exec with layer mode `shared`"
    )]
    MountPoint {
        /// The mount point, inside the container.
        path: PathBuf,
        /// What is wrong there.
        reason: String,
    },
}

impl Classify for RootfsError {
    fn kind(&self) -> Kind {
        match self {
            RootfsError::Sys { source, .. } => source.kind(),
            RootfsError::MountInfo { source, .. } => Kind::of_io(source),
            RootfsError::MountInfoLine { .. } => Kind::System,
            RootfsError::MountPoint { .. } => Kind::WrongState,
        }
    }
}

/// Names what a failing call was for.
pub(crate) fn doing<T>(what: impl FnOnce() -> String, result: Result<T, SysError>) -> Result<T, RootfsError> {
    result.map_err(|source| RootfsError::Sys { doing: what(), source })
}

/// The lower directories of an exec, opened: the newest committed layer first, the container's own root last.
#[derive(Debug)]
pub struct Lowers(Vec<OwnedFd>);

impl Lowers {
    /// Opens the uppers of the committed layers (newest first) and the container's root.
    ///
    /// The paths are the runtime's own or the engine's; no container can change what they name.
    pub fn open(layers: &[PathBuf], rootfs: &Path) -> Result<Lowers, RootfsError> {
        layers
            .iter()
            .map(PathBuf::as_path)
            .chain(std::iter::once(rootfs))
            .map(open_dir)
            .collect::<Result<_, _>>()
            .map(Lowers)
    }

    /// The directories, the one that shows first in front.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }
}

/// Opens a directory for reading.
pub fn open_dir(path: &Path) -> Result<OwnedFd, RootfsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    doing(|| "open a layer".to_owned(), opened.map_err(|e| SysError::new("open", path.display().to_string(), e)))
}

/// Mounts `upper` over `lowers`, detached. `upper` and `work` are empty directories of the store.
///
/// An overlay's root shows the attributes of its upper, so they are taken over from the root below first.
pub fn mount_layer(
    lowers: &Lowers,
    upper: BorrowedFd<'_>,
    work: &Path,
    userxattr: bool,
) -> Result<OwnedFd, RootfsError> {
    let fds = lowers.fds();
    let below = fds.first().copied().unwrap_or(upper);
    doing(|| "give the layer's root its attributes".into(), copy_attributes(below, upper))?;
    let work = open_dir(work)?;
    let parts = mount::Overlay { lowers: &fds, upper, work: work.as_fd(), userxattr };
    doing(|| "mount the exec's layer".into(), mount::overlay(&parts))
}

/// Copies mode, owner and extended attributes (overlayfs's own left out) from one directory to another.
fn copy_attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), SysError> {
    let fail = |call: &'static str| move |errno| SysError::new(call, "a layer's root", errno);
    let stat = rustix::fs::fstat(from).map_err(fail("fstat"))?;
    let (uid, gid) = (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
    rustix::fs::fchown(to, Some(uid), Some(gid)).map_err(fail("fchown"))?;
    rustix::fs::fchmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(fail("fchmod"))?;
    let mut names = vec![0u8; 4096];
    let length = match rustix::fs::flistxattr(from, &mut names[..]) {
        Err(rustix::io::Errno::RANGE) => {
            names.resize(65536, 0);
            rustix::fs::flistxattr(from, &mut names[..])
        }
        other => other,
    };
    let length = match length {
        Ok(n) => n,
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(()),
        Err(errno) => return Err(fail("flistxattr")(errno)),
    };
    for name in names[..length].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        if name.starts_with(b"trusted.overlay.") || name.starts_with(b"user.overlay.") {
            continue;
        }
        let mut value = vec![0u8; 65536];
        let n = rustix::fs::fgetxattr(from, name, &mut value[..]).map_err(fail("fgetxattr"))?;
        rustix::fs::fsetxattr(to, name, &value[..n], rustix::fs::XattrFlags::empty()).map_err(fail("fsetxattr"))?;
    }
    Ok(())
}
