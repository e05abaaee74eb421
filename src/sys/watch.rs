//! Descriptors that a tokio runtime watches, so that nothing ever blocks on them.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{Call, SysError};

/// Makes what is open by `fd` non-blocking, for all who share the open file, and has the running tokio runtime watch it.
/// The other end of a pipe is another open file and stays as it is.
///
/// # Errors
/// `EPERM` for what is always ready, such as a regular file.
pub fn watch(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, SysError> {
    let flags = rustix::fs::fcntl_getfl(&fd).call("fcntl", || "F_GETFL".into())?;
    if !flags.contains(OFlags::NONBLOCK) {
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).call("fcntl", || "F_SETFL".into())?;
    }
    watch_for(fd, Interest::READABLE | Interest::WRITABLE)
}

/// Has the running tokio runtime watch `fd`, which is left as it is, for `interest` alone: an eventfd, a file that tells by
/// poll(2) that it has changed.
///
/// # Errors
/// As [`watch`].
pub fn watch_for(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>, SysError> {
    // SAFETY: the descriptor is owned, so it is open and keeps its number and its file until the value that owns it is
    // dropped, which is with the AsyncFd; nothing in the crate replaces it through `AsyncFd::get_mut`.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    watched.map_err(std::io::Error::from).call("epoll_ctl", || "a descriptor".into())
}

/// Which of `events`, of a hang-up and of an error are there at this moment; none if poll(2) fails.
pub fn ready(fd: impl AsFd, events: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(&fd, events)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut fds, Some(&now)) {
        Ok(_) => fds[0].revents(),
        // Only for lack of memory: without a timeout no signal interrupts it.
        Err(_) => PollFlags::empty(),
    }
}
