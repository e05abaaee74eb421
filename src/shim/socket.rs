//! The socket of a group of containers: where it is, and who of several that start at once binds it.
//!
//! A socket file says little: its server may be gone, or not be there yet. So whoever wants to bind it, or to remove it,
//! holds the lock beside it, and a server counts only if a connection is taken. The lock is kept until the server runs.

use std::fs::DirBuilder;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sha2::{Digest, Sha256};

use super::ShimError;
use crate::durable::{self, LockFile};

/// Where the sockets are, unless containerd names a directory.
pub const DIR: &str = "/run/containerd/s";
/// How long another start of the same group may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The path of the socket for `group` in `dir`. It tells containerd's instance and namespace apart, and this shim from
/// others, which would else be taken for ours when they serve a group of the same name.
pub fn path(dir: &Path, address: &str, namespace: &str, group: &str) -> PathBuf {
    dir.join(durable::hex(&Sha256::digest(format!("{address}/{namespace}/{group}/agentsbx"))))
}

/// The address of a socket as containerd takes it.
pub fn address(path: &Path) -> String {
    format!("unix://{}", path.display())
}

/// The path in an address.
pub fn of_address(address: &str) -> &Path {
    Path::new(address.strip_prefix("unix://").unwrap_or(address))
}

/// A group's socket, looked at under its lock.
#[derive(Debug)]
pub enum Found {
    /// Somebody serves it.
    Served,
    /// Nobody does. There is no socket.
    Free(Place),
}

/// The right to bind a group's socket, for as long as it is held.
#[must_use = "the lock beside the socket is let go"]
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    lock: LockFile,
}

/// Looks whether somebody serves the socket at `path`; removes it if nobody does. Makes its directory.
///
/// # Errors
/// [`ShimError::Io`] for the directory, the lock and the socket; [`ShimError::State`] where another start takes too long.
pub fn look(path: &Path) -> Result<Found, ShimError> {
    if let Some(dir) = path.parent() {
        // As containerd makes it: others may pass through to the sockets, which are root's.
        let made = DirBuilder::new().recursive(true).mode(0o711).create(dir);
        made.map_err(ShimError::io("mkdir", dir))?;
    }
    look_within(path, PATIENCE, Looker::Start)?.ok_or_else(|| {
        let path = path.display();
        ShimError::State(format!("another start of the group has held {path}.lock for {} s", PATIENCE.as_secs()))
    })
}

/// Removes the socket at `path` if nobody serves it. Where its lock is held for longer than `patience`, somebody is at it
/// and it is left.
pub fn remove_unserved(path: &Path, patience: Duration) -> Result<(), ShimError> {
    match look_within(path, patience, Looker::Cleanup)? {
        Some(Found::Free(place)) => place.release(),
        Some(Found::Served) | None => Ok(()),
    }
}

/// Who looks. What `start` has found served gets a container; a server that ends must not wait for one because of
/// `delete`, which containerd runs at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looker {
    Start,
    Cleanup,
}

/// Whether the peer of a connection is `delete`, by the name that its end has. One that can't be told is none.
pub fn is_cleanup(connection: impl AsFd) -> bool {
    let peer = rustix::net::getpeername(connection).ok().flatten();
    peer.and_then(|peer| SocketAddrUnix::try_from(peer).ok())
        .is_some_and(|peer| peer.abstract_name().is_some_and(|name| !name.is_empty()))
}

fn look_within(path: &Path, patience: Duration, looker: Looker) -> Result<Option<Found>, ShimError> {
    let Some(lock) = lock(path, patience)? else { return Ok(None) };
    let place = Place { path: path.to_owned(), lock };
    if is_served(path, looker)? {
        place.release()?;
        return Ok(Some(Found::Served));
    }
    durable::remove_file(path).map_err(ShimError::io("unlink", path))?;
    Ok(Some(Found::Free(place)))
}

fn lock(path: &Path, patience: Duration) -> Result<Option<LockFile>, ShimError> {
    let lock = path.with_extension("lock");
    LockFile::lock_for(&lock, patience).map_err(ShimError::io("lock", lock))
}

/// Whether a connection is taken at `path`.
fn is_served(path: &Path, looker: Looker) -> Result<bool, ShimError> {
    // A server that takes none any more, with a full queue, would else be waited for.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = SocketAddrUnix::new(path).and_then(|address| {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        if looker == Looker::Cleanup {
            // The kernel chooses the name (unix(7), autobind).
            rustix::net::bind(&socket, &SocketAddrUnix::new_unnamed())?;
        }
        rustix::net::connect(&socket, &address)
    });
    match connected {
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(errno) => Err(ShimError::io("connect", path)(errno.into())),
    }
}

impl Place {
    /// Binds the socket and listens. Only root may connect.
    pub fn listen(&self) -> Result<OwnedFd, ShimError> {
        let bound = || {
            let address = SocketAddrUnix::new(&self.path)?;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            // The file gets the socket's mode: it is never there with another one.
            rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            rustix::net::bind(&socket, &address)?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        bound().map_err(|errno: Errno| ShimError::io("bind", &self.path)(errno.into()))
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the next one look.
    pub fn release(self) -> Result<(), ShimError> {
        let path = self.lock.path().to_owned();
        self.lock.unlink().map_err(ShimError::io("unlink", path))
    }

    /// Removes the socket, and lets the next one look.
    pub fn clear(self) -> Result<(), ShimError> {
        durable::remove_file(&self.path).map_err(ShimError::io("unlink", &self.path))?;
        self.release()
    }
}

/// The file of a socket that this process serves.
#[derive(Debug, Clone)]
pub struct Served {
    path: PathBuf,
    file: FileId,
}

/// Device, number, and the time of the last change: a number is given again to the next file.
type FileId = (u64, u64, i64, u64);

impl Served {
    /// To be taken while whoever bound it still holds the lock.
    pub fn of(path: &Path) -> Result<Served, ShimError> {
        Ok(Served { path: path.to_owned(), file: file_of(path).map_err(ShimError::io("lstat", path))? })
    }

    /// Keeps others from looking. `None` where the lock is held for longer than `patience`: it is done without then.
    pub fn lock(&self, patience: Duration) -> Result<Option<LockFile>, ShimError> {
        lock(&self.path, patience)
    }

    /// Removes the file, unless another server has put its own there, so that who looks now starts a new server.
    pub fn remove(&self, lock: Option<LockFile>) -> Result<(), ShimError> {
        if file_of(&self.path).is_ok_and(|file| file == self.file) {
            durable::remove_file(&self.path).map_err(ShimError::io("unlink", &self.path))?;
        }
        self.leave(lock)
    }

    /// Lets others look again.
    pub fn leave(&self, lock: Option<LockFile>) -> Result<(), ShimError> {
        lock.map_or(Ok(()), |lock| Place { path: self.path.clone(), lock }.release())
    }
}

fn file_of(path: &Path) -> std::io::Result<FileId> {
    let stat = rustix::fs::lstat(path)?;
    Ok((stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names(dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn a_path_for_each_group() {
        let of = |address, namespace, group| path(Path::new(DIR), address, namespace, group);
        let one = of("/run/c.sock", "n", "g");
        assert_eq!(one.as_os_str().len(), DIR.len() + 1 + 64);
        for other in [of("/run/d.sock", "n", "g"), of("/run/c.sock", "m", "g"), of("/run/c.sock", "n", "h")] {
            assert_ne!(one, other);
        }
        assert_eq!(of_address(&address(&one)), one);
    }

    #[test]
    fn free_served_and_stale() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s/x");
        let Found::Free(place) = look(&path).unwrap() else { panic!("nobody is there") };
        assert!(
            look_within(&path, Duration::from_millis(50), Looker::Start).unwrap().is_none(),
            "another one is looking"
        );
        let listener = place.listen().unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        place.release().unwrap();
        assert!(matches!(look(&path).unwrap(), Found::Served));
        remove_unserved(&path, Duration::ZERO).unwrap();
        assert!(path.exists(), "it is served");
        drop(listener);
        let Found::Free(place) = look(&path).unwrap() else { panic!("nobody serves it") };
        assert!(!path.exists());
        place.clear().unwrap();
        assert_eq!(names(path.parent().unwrap()), 0, "no lock is left");
    }

    /// What is removed at the end is one's own.
    #[test]
    fn anothers_socket_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let place = || match look(&path).unwrap() {
            Found::Free(place) => place,
            Found::Served => panic!("nobody serves it"),
        };
        let first = place();
        let listener = first.listen().unwrap();
        let served = Served::of(&path).unwrap();
        first.release().unwrap();
        drop(listener);
        // The kernel's clock for files ticks every few milliseconds.
        std::thread::sleep(Duration::from_millis(30));
        let second = place();
        let _listener = second.listen().unwrap();
        let again = Served::of(&path).unwrap();
        served.remove(served.lock(Duration::from_millis(10)).unwrap()).unwrap();
        assert!(path.exists());
        second.release().unwrap();
        again.remove(again.lock(Duration::from_millis(10)).unwrap()).unwrap();
        assert_eq!(names(dir.path()), 0);
    }
}
