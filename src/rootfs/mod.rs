//! The root filesystem of one exec: committed layers stacked over the container's own root, a fresh layer on top.

pub mod cow;
mod gone;
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
    /// A file is gone from the host, and the view can have no copy of it.
    #[error(
        "volume {path}: it was removed or replaced on the host, and {why}, so no copy of it is made: make the container anew, or run the exec with layer mode `shared`"
    )]
    Gone {
        /// Where it is mounted, inside the container.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// What a copy-on-write mount shows was exchanged.
    #[error(
        "copy-on-write mount {at}: {host} is not the directory any more that it was when the container was made: put that one back, or make the container anew"
    )]
    SourceReplaced {
        /// The mount, inside the container.
        at: PathBuf,
        /// The host's directory.
        host: PathBuf,
    },
}

impl Classify for RootfsError {
    fn kind(&self) -> Kind {
        match self {
            RootfsError::Sys { source, .. } => source.kind(),
            RootfsError::MountInfo { source, .. } => Kind::of_io(source),
            RootfsError::MountInfoLine { .. } => Kind::System,
            RootfsError::MountPoint { .. } | RootfsError::Gone { .. } | RootfsError::SourceReplaced { .. } => {
                Kind::WrongState
            }
        }
    }
}

/// Names what a failing call was for.
pub(crate) fn doing<T>(what: impl FnOnce() -> String, result: Result<T, SysError>) -> Result<T, RootfsError> {
    result.map_err(|source| RootfsError::Sys { doing: what(), source })
}

/// The lower directories of an exec, opened: the newest committed layer first, the container's own root last.
#[derive(Debug)]
pub struct Lowers {
    paths: Vec<PathBuf>,
    dirs: Vec<OwnedFd>,
}

impl Lowers {
    /// Opens the uppers of the committed layers (newest first) and the container's root.
    ///
    /// The paths are the runtime's own or the engine's; no container can change what they name.
    pub fn open(layers: &[PathBuf], rootfs: &Path) -> Result<Lowers, RootfsError> {
        let paths: Vec<PathBuf> = layers.iter().map(PathBuf::as_path).chain([rootfs]).map(Path::to_owned).collect();
        let dirs = paths.iter().map(|path| open_dir(path)).collect::<Result<_, _>>()?;
        Ok(Lowers { paths, dirs })
    }

    /// The directories, the one that shows first in front.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.dirs.iter().map(AsFd::as_fd).collect()
    }

    /// The committed layers' uppers, newest first.
    fn uppers(&self) -> impl Iterator<Item = (&Path, BorrowedFd<'_>)> {
        let count = self.dirs.len().saturating_sub(1);
        self.paths.iter().map(PathBuf::as_path).zip(self.dirs.iter().map(AsFd::as_fd)).take(count)
    }

    fn planned(&self, upper: &Path, work: &Path, userxattr: bool) -> Root {
        let (lowers, upper, work) = (self.paths.clone(), upper.to_owned(), work.to_owned());
        Root::Planned(Layers { lowers, upper, work, userxattr })
    }
}

/// Opens a directory for reading.
pub fn open_dir(path: &Path) -> Result<OwnedFd, RootfsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    doing(|| "open a layer".to_owned(), opened.map_err(|e| SysError::new("open", path.display().to_string(), e)))
}

/// A layered root: mounted and detached, or still to be mounted by whoever enters it.
#[derive(Debug)]
pub enum Root {
    /// A detached overlay.
    Mounted(OwnedFd),
    /// For kernels that take all layers in one string only, which must be done in a mount namespace of its own.
    Planned(Layers),
}

/// What a root is made of, by paths of the host.
#[derive(Debug)]
pub struct Layers {
    /// The layers, the one that shows first in front.
    lowers: Vec<PathBuf>,
    /// Where writes go.
    upper: PathBuf,
    /// An empty directory on the upper's filesystem.
    work: PathBuf,
    /// Overlayfs's own attributes are `user.overlay.*`.
    userxattr: bool,
}

impl Root {
    /// The overlay, detached. Where it is not mounted yet, this process gets a mount namespace of its own, so it must be
    /// one that will leave for the container's.
    pub fn mounted(self) -> Result<OwnedFd, RootfsError> {
        let layers = match self {
            Root::Mounted(fd) => return Ok(fd),
            Root::Planned(layers) => layers,
        };
        doing(|| "make a mount namespace for the exec's layer".into(), mount::unshare_private())?;
        // Opened in there: the kernel takes no layers of another mount namespace.
        let lowers: Vec<OwnedFd> = layers.lowers.iter().map(|p| open_dir(p)).collect::<Result<_, _>>()?;
        let fds: Vec<BorrowedFd<'_>> = lowers.iter().map(AsFd::as_fd).collect();
        let (upper, work) = (open_dir(&layers.upper)?, open_dir(&layers.work)?);
        let parts =
            mount::Overlay { lowers: &fds, upper: upper.as_fd(), work: work.as_fd(), userxattr: layers.userxattr };
        doing(|| "mount the exec's layer".into(), mount::overlay_by_options(&parts, &layers.work))
    }
}

/// Lays `upper` over `lowers`. `upper` and `work` are empty directories of the store.
///
/// An overlay's root shows the attributes of its upper, so they are taken over from the root below first.
pub fn layered_root(lowers: Lowers, upper: &Path, work: &Path, userxattr: bool) -> Result<Root, RootfsError> {
    let fds = lowers.fds();
    let (upper_fd, work_fd) = (open_dir(upper)?, open_dir(work)?);
    let below = fds.first().copied().unwrap_or(upper_fd.as_fd());
    doing(|| "give the layer's root its attributes".into(), copy_attributes(below, upper_fd.as_fd()))?;
    let parts = mount::Overlay { lowers: &fds, upper: upper_fd.as_fd(), work: work_fd.as_fd(), userxattr };
    let mounted = doing(|| "mount the exec's layer".into(), mount::overlay(&parts))?;
    Ok(mounted.map_or_else(|| lowers.planned(upper, work, userxattr), Root::Mounted))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process::{Fork, exit_now, fork, wait};

    /// Both ways of mounting show the same tree: sixty lowers, each with a file of its own, and one that all have.
    #[test]
    fn older_kernels_get_the_same_root() {
        assert!(rustix::process::geteuid().is_root(), "mounting needs root");
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let layers: Vec<PathBuf> = (0..60).map(|n| make(&format!("l{n}"))).collect();
        for (n, layer) in layers.iter().enumerate() {
            for name in [format!("only{n}"), "all".to_owned()] {
                std::io::Write::write_all(
                    &mut std::fs::File::create(layer.join(name)).unwrap(),
                    n.to_string().as_bytes(),
                )
                .unwrap();
            }
        }
        for way in ["new", "options"] {
            let lowers = Lowers::open(&layers[..59], &layers[59]).unwrap();
            let (upper, work) = (make(&format!("u-{way}")), make(&format!("w-{way}")));
            let root = match way {
                "new" => layered_root(lowers, &upper, &work, false).unwrap(),
                _ => lowers.planned(&upper, &work, false),
            };
            // A process of its own, since it changes its mount namespace.
            match fork().unwrap() {
                Fork::Child => exit_now(i32::from(!shows_all(root))),
                Fork::Parent(pid) => assert_eq!(wait(pid, true).unwrap().unwrap().code, Some(0), "{way}"),
            }
        }
    }

    fn shows_all(root: Root) -> bool {
        let root = match root.mounted() {
            Ok(root) => root,
            Err(err) => {
                eprintln!("{}", crate::error::chain(&err));
                return false;
            }
        };
        let read = |name: &str| {
            let file = rustix::fs::openat(&root, name, OFlags::RDONLY, Mode::empty()).ok()?;
            std::io::read_to_string(std::fs::File::from(file)).ok()
        };
        read("all").as_deref() == Some("0") && (0..60).all(|n| read(&format!("only{n}")) == Some(n.to_string()))
    }
}
