//! Unix stream sockets by paths of any length, and descriptors passed over them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::{Call, SysError, mount};

/// Connects to the stream socket at `path`.
pub fn connect(path: &Path) -> Result<OwnedFd, SysError> {
    let on = || path.display().to_string();
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .call("socket", on)?;
    with_address(path, |address| rustix::net::connect(&socket, address).call("connect", on))?;
    Ok(socket)
}

/// A stream socket that listens at `path`, which must not exist.
pub fn listen(path: &Path) -> Result<OwnedFd, SysError> {
    let on = || path.display().to_string();
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .call("socket", on)?;
    with_address(path, |address| rustix::net::bind(&socket, address).call("bind", on))?;
    rustix::net::listen(&socket, 1).call("listen", on)?;
    Ok(socket)
}

/// Calls `f` with the address of `path`. One that is longer than an address can be (107 bytes) goes through a descriptor
/// of its directory, which stays open for the call.
fn with_address<T>(path: &Path, f: impl FnOnce(&SocketAddrUnix) -> Result<T, SysError>) -> Result<T, SysError> {
    let on = || path.display().to_string();
    if let Ok(address) = SocketAddrUnix::new(path) {
        return f(&address);
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(SysError::new("connect", on(), rustix::io::Errno::INVAL));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let dir = mount::open_dir_path(parent)?;
    let short = Path::new(&mount::fd_path(dir.as_fd())).join(name);
    f(&SocketAddrUnix::new(&short).call("connect", on)?)
}

/// Connects to the stream socket at `path`, writes all of `bytes` and closes.
pub fn tell(path: &Path, mut bytes: &[u8]) -> Result<(), SysError> {
    let socket = connect(path)?;
    while !bytes.is_empty() {
        match rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL) {
            Ok(n) => bytes = &bytes[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(SysError::new("send", path.display().to_string(), errno)),
        }
    }
    Ok(())
}

/// A connected pair of stream sockets.
pub fn pair() -> Result<(OwnedFd, OwnedFd), SysError> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .call("socketpair", || "AF_UNIX".into())
}

/// Receives one descriptor, close-on-exec; the data that comes with it is dropped.
pub fn receive_fd(socket: BorrowedFd<'_>) -> Result<OwnedFd, SysError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [0u8; 4096];
    let on = || "terminal socket".to_owned();
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut data)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .call("recvmsg", on)?;
    let fds =
        control.drain().filter_map(|m| if let RecvAncillaryMessage::ScmRights(fds) = m { Some(fds) } else { None });
    fds.flatten().next().ok_or_else(|| SysError::new("recvmsg", on(), rustix::io::Errno::NOMSG))
}

/// Sends one descriptor with `data`, at least one byte, as the message's bytes (`SCM_RIGHTS`).
pub fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>, data: &[u8]) -> Result<(), SysError> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(socket, &[IoSlice::new(data)], &mut control, SendFlags::NOSIGNAL)
        .map(drop)
        .call("sendmsg", || "a descriptor".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn long_paths_and_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["d".repeat(120), "d".into()] {
            let path = dir.path().join(name).join("s");
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            let socket = |()| rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
            let listener = socket(());
            with_address(&path, |address| rustix::net::bind(&listener, address).call("bind", String::new)).unwrap();
            rustix::net::listen(&listener, 1).unwrap();
            let client = connect(&path).unwrap();
            let server = rustix::net::accept(&listener).unwrap();
            let (mut read, write) = std::io::pipe().unwrap();
            send_fd(client.as_fd(), write.as_fd(), b"/dev/ptmx").unwrap();
            drop(write);
            let fd = receive_fd(server.as_fd()).unwrap();
            std::fs::File::from(fd).write_all(b"through").unwrap();
            let mut text = String::new();
            read.read_to_string(&mut text).unwrap();
            assert_eq!(text, "through");
            tell(&path, b"start container").unwrap();
            let mut told = String::new();
            std::fs::File::from(rustix::net::accept(&listener).unwrap()).read_to_string(&mut told).unwrap();
            assert_eq!(told, "start container");
        }
    }

    #[test]
    fn a_message_without_a_descriptor_is_an_error() {
        let (ours, theirs) = pair().unwrap();
        rustix::net::send(&theirs, b"x", SendFlags::NOSIGNAL).unwrap();
        assert_eq!(receive_fd(ours.as_fd()).unwrap_err().errno(), Some(libc::ENOMSG));
    }
}
