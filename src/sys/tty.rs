//! Pseudo-terminals.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
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
