//! A process's terminal: the socket on which the runtime hands over the master, and the copying from and to it.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::termios::SpecialCodeIndex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixListener;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};
use ulid::Ulid;

use super::{copy, fifo};
use crate::shim::ShimError;
use crate::sys::{socket, watch};

/// How long a runtime that has ended well may take to hand over the master.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where the sockets' directories are made: the first that can be written. Short, since an address has 107 bytes.
pub(super) const PLACES: [&str; 2] = ["/run", "/tmp"];
/// The socket's name in its directory.
const SOCKET: &str = "s";
/// How the directories' names begin; the shim's pid follows.
const PREFIX: &str = "agentsbx-pty-";
/// How long is waited, at first and at last, for a terminal to become usable, of which the kernel does not tell.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// A directory of our own that goes with this value.
#[derive(Debug)]
struct PrivateDir(PathBuf);

impl PrivateDir {
    fn make() -> Result<PrivateDir, ShimError> {
        let mut failed = None;
        for place in PLACES {
            let path = Path::new(place).join(format!("{PREFIX}{}-{}", std::process::id(), Ulid::generate()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(PrivateDir(path)),
                Err(err) => failed = Some(ShimError::io("mkdir", path)(err)),
            }
        }
        Err(failed.unwrap_or_else(|| ShimError::State("no place for a console socket".into())))
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        if let Err(err) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %err, "the directory of a console socket stays behind");
        }
    }
}

/// Removes the directories of shims that are no more. A pid that is another's by now keeps its directory until that one ends.
pub(super) fn remove_lost(places: &[&Path], is_there: impl Fn(i32) -> bool) {
    for entry in places.iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok());
        let Some(pid) = pid.filter(|pid| !is_there(*pid)) else { continue };
        // Others may write to one of the places: what is theirs is left. Nothing below ours is.
        let own = |meta: std::fs::Metadata| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
        if !entry.metadata().is_ok_and(own) {
            continue;
        }
        // Another that cleans up may be faster.
        let _ = std::fs::remove_file(path.join(SOCKET));
        if let Err(err) = std::fs::remove_dir(&path)
            && err.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(pid, path = %path.display(), %err, "the directory of a console socket stays behind");
        }
    }
}

/// The socket that a runtime sends a terminal's master to. It goes with this value.
#[derive(Debug)]
pub(super) struct Console {
    listener: UnixListener,
    path: PathBuf,
    /// Behind the listener, so that it goes after it.
    _dir: PrivateDir,
}

impl Console {
    /// Makes the socket and listens.
    pub fn listen() -> Result<Console, ShimError> {
        let dir = PrivateDir::make()?;
        let path = dir.0.join(SOCKET);
        let listener = UnixListener::bind(&path).map_err(ShimError::io("bind", &path))?;
        Ok(Console { listener, path, _dir: dir })
    }

    /// What the runtime is told with `--console-socket`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The master that the runtime has sent.
    ///
    /// # Errors
    /// If none comes in time, or what comes is no terminal.
    pub async fn receive(self) -> Result<OwnedFd, ShimError> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the runtime sent no terminal");
        let received = timeout(PATIENCE, self.accept()).await.map_err(late).and_then(|received| received);
        let master = received.and_then(|master| {
            rustix::termios::tcgetwinsize(&master)?;
            Ok(master)
        });
        master.map_err(ShimError::io("receive the terminal from", &self.path))
    }

    async fn accept(&self) -> io::Result<OwnedFd> {
        let (stream, _) = self.listener.accept().await?;
        loop {
            stream.readable().await?;
            match stream.try_io(Interest::READABLE, || Ok(socket::receive_fd(stream.as_fd())?)) {
                Err(err) if matches!(err.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                received => return received,
            }
        }
    }
}

/// What is written on a terminal, read from its master.
#[derive(Debug)]
pub(super) struct Reader {
    master: Arc<OwnedFd>,
    /// `None` while no process has the terminal open.
    watched: Option<AsyncFd<OwnedFd>>,
    /// Whether the process has ended whose terminal it is.
    over: Receiver<bool>,
}

impl Reader {
    /// Makes the master non-blocking, for all who have it. `over` tells when its process has ended.
    pub fn new(master: Arc<OwnedFd>, over: Receiver<bool>) -> io::Result<Reader> {
        Ok(Reader { watched: Some(watched(&master)?), master, over })
    }

    /// The next bytes; none when no process has the terminal open and its own has ended. Before that, one may open it again:
    /// an init does that with its console.
    pub async fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut pause = PAUSE.0;
        loop {
            if let Some(watched) = &self.watched {
                match copy::read(watched, copy::BUFFER).await {
                    Ok(bytes) if !bytes.is_empty() => return Ok(bytes),
                    // Tokio takes a hang-up for final, so what is watched is registered anew when the terminal is back.
                    Ok(_) => self.watched = None,
                    Err(err) if err.raw_os_error() == Some(libc::EIO) => self.watched = None,
                    Err(err) => return Err(err),
                }
            }
            let mut buffer = vec![0; copy::BUFFER];
            match rustix::io::read(&*self.master, &mut *buffer) {
                Ok(n @ 1..) => {
                    self.watched = Some(watched(&self.master)?);
                    buffer.truncate(n);
                    return Ok(buffer);
                }
                Err(Errno::AGAIN) => self.watched = Some(watched(&self.master)?),
                Ok(0) | Err(Errno::IO) if *self.over.borrow() => return Ok(Vec::new()),
                Ok(0) | Err(Errno::IO | Errno::INTR) => {
                    drop(buffer);
                    tokio::select! {
                        () = sleep(pause) => pause = (pause * 2).min(PAUSE.1),
                        () = fifo::begun(&mut self.over) => {}
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn watched(master: &OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    Ok(watch::watch(master.try_clone()?)?)
}

/// Types what comes from the client's fifo. At its end the terminal's end-of-file character is typed: the terminal stays,
/// with what its process still has to say.
pub(super) async fn type_in(input: AsyncFd<OwnedFd>, master: Arc<OwnedFd>) -> io::Result<()> {
    let mut at_line_start = true;
    loop {
        let bytes = copy::read(&input, copy::BUFFER).await?;
        let Some(&last) = bytes.last() else { break };
        type_all(&master, &bytes).await?;
        at_line_start = matches!(last, b'\n' | b'\r');
    }
    drop(input);
    let end = rustix::termios::tcgetattr(&*master)?.special_codes[SpecialCodeIndex::VEOF];
    if end != 0 {
        // Within a line the first only passes on what is there of it.
        let twice = [end, end];
        type_all(&master, if at_line_start { &twice[1..] } else { &twice }).await?;
    }
    Ok(())
}

/// A master that takes nothing, or whose terminal no process has open, is tried again: the kernel's notice that it takes
/// something can come before it does.
async fn type_all(master: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    let mut pause = PAUSE.0;
    while !bytes.is_empty() {
        match rustix::io::write(master, bytes) {
            Ok(n @ 1..) => (bytes, pause) = (&bytes[n..], PAUSE.0),
            Ok(0) | Err(Errno::AGAIN | Errno::IO | Errno::INTR) => {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each shim that was killed while a terminal was on its way left a directory in /run.
    #[test]
    fn directories_of_shims_that_are_no_more_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let names = ["agentsbx-pty-7-A", "agentsbx-pty-8-B", "agentsbx-pty-8-C", "agentsbx-pty-x-D", "other-8-E"];
        for name in names {
            std::fs::create_dir(place.path().join(name)).unwrap();
        }
        std::fs::File::create(place.path().join("agentsbx-pty-8-B/s")).unwrap();
        std::fs::File::create(place.path().join("agentsbx-pty-8-C/something")).unwrap();
        std::os::unix::fs::symlink("other-8-E", place.path().join("agentsbx-pty-9-F")).unwrap();
        remove_lost(&[Path::new("/no/such/place"), place.path()], |pid| pid == 7);
        let mut left: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        let want = ["agentsbx-pty-7-A", "agentsbx-pty-8-C", "agentsbx-pty-9-F", "agentsbx-pty-x-D", "other-8-E"];
        assert_eq!(left, want);
    }
}
