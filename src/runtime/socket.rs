//! Unix sockets by paths of any length, descriptors sent and received over them, and errno in the words engines match.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// `path` through a descriptor of its directory: sun_path holds 107 bytes only. The descriptor must stay open.
fn short(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let dir = rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
    Ok((dir, path))
}

/// Connects to the stream socket at `path`.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let (_dir, path) = short(path)?;
    UnixStream::connect(path)
}

/// Connects, writes `bytes` and closes.
pub fn tell(path: &Path, bytes: &[u8]) -> io::Result<()> {
    connect(path)?.write_all(bytes)
}

/// Sends `fd` with `data` (at least one byte) as SCM_RIGHTS.
pub fn send_fd(socket: impl AsFd, fd: BorrowedFd<'_>, data: &[u8]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(socket, &[IoSlice::new(data)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one descriptor; any data that comes with it is dropped.
pub fn receive_fd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [0u8; 4096];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut data)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fd = fds.next().and_then(|mut fds| fds.next());
    fd.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no descriptor in the message"))
}

/// The text of an errno as C and Go programs print it: lower case, without the number.
pub fn errno_text(err: &io::Error) -> String {
    let text = err.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|c| c.to_ascii_lowercase().to_string() + chars.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    #[test]
    fn long_paths_and_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let (_keep, path) = short(&deep.join("s")).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        let client = connect(&deep.join("s")).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (read, write) = io::pipe().unwrap();
        send_fd(&client, write.as_fd(), b"/dev/ptmx").unwrap();
        drop(write);
        let fd = receive_fd(&server).unwrap();
        std::fs::File::from(fd).write_all(b"through").unwrap();
        let mut text = String::new();
        { read }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn errno_words() {
        for (errno, want) in [
            (libc::ENOENT, "no such file or directory"),
            (libc::EACCES, "permission denied"),
            (libc::ESRCH, "no such process"),
        ] {
            assert_eq!(errno_text(&io::Error::from_raw_os_error(errno)), want);
        }
    }
}
