//! Pseudo-terminals and passing descriptors over a socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::termios::Winsize;

use super::{Call, SysError, check};

/// A new pseudo-terminal of the devpts instance that is at /dev/pts here: master and slave.
///
/// The slave is opened through the master, not by a path that a container could have prepared.
pub fn open_pty() -> Result<(OwnedFd, OwnedFd), SysError> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::open("/dev/ptmx", flags, Mode::empty())
        .or_else(|_| rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty()))
        .call("open", || "/dev/ptmx".into())?;
    // A file that merely bears the name is no multiplexer: unlocking it fails.
    rustix::pty::unlockpt(&master).call("ioctl", || "/dev/ptmx, TIOCSPTLCK".into())?;
    let slave = rustix::pty::ioctl_tiocgptpeer(
        &master,
        rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY | rustix::pty::OpenptFlags::CLOEXEC,
    )
    .call("ioctl", || "/dev/ptmx, TIOCGPTPEER".into())?;
    Ok((master, slave))
}

/// Sets the size of a terminal, in characters.
pub fn set_size(fd: BorrowedFd<'_>, rows: u16, columns: u16) -> Result<(), SysError> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(fd, size).call("ioctl", || "terminal, TIOCSWINSZ".into())
}

/// Makes `slave` the controlling terminal of this session, which must have none.
pub fn set_controlling(slave: BorrowedFd<'_>) -> Result<(), SysError> {
    // SAFETY: TIOCSCTTY takes an integer; the borrowed descriptor is open for the call.
    let ret = unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCSCTTY, 0) };
    check(ret.into()).map(drop).call("ioctl", || "terminal, TIOCSCTTY".into())
}

/// Connects to a stream socket. A path longer than a socket address can be goes through a descriptor of its directory.
pub fn connect(path: &Path) -> Result<OwnedFd, SysError> {
    let on = || path.display().to_string();
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .call("socket", on)?;
    match SocketAddrUnix::new(path) {
        Ok(address) => rustix::net::connect(&socket, &address).call("connect", on)?,
        Err(_) => {
            let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(SysError::new("connect", on(), rustix::io::Errno::INVAL));
            };
            let dir = super::mount::open_dir_path(dir)?;
            let short = Path::new(&super::mount::fd_path(dir.as_fd())).join(name);
            let address = SocketAddrUnix::new(&short).call("connect", on)?;
            rustix::net::connect(&socket, &address).call("connect", on)?;
        }
    }
    Ok(socket)
}

/// A connected pair of stream sockets.
pub fn socket_pair() -> Result<(OwnedFd, OwnedFd), SysError> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .call("socketpair", || "AF_UNIX".into())
}

/// Receives one descriptor, close-on-exec.
pub fn receive_fd(socket: BorrowedFd<'_>) -> Result<OwnedFd, SysError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [0u8; 64];
    let on = || "terminal socket".to_owned();
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut data)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .call("recvmsg", on)?;
    let fds =
        control.drain().filter_map(|m| if let RecvAncillaryMessage::ScmRights(fds) = m { Some(fds) } else { None });
    fds.flatten().next().ok_or_else(|| SysError::new("recvmsg", on(), rustix::io::Errno::NOMSG))
}

/// Sends one descriptor with `data` as the message's bytes (`SCM_RIGHTS`).
pub fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>, data: &[u8]) -> Result<(), SysError> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(socket, &[IoSlice::new(data)], &mut control, SendFlags::NOSIGNAL)
        .map(drop)
        .call("sendmsg", || "console socket".into())
}
