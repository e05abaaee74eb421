//! Descriptors by which the kernel wakes a tokio runtime: eventfds, and files that are polled for what is exceptional.

use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{Call, SysError};

/// Has the running tokio runtime watch `fd` for one interest.
///
/// # Errors
/// `EPERM` for what can't be polled, such as a regular file.
pub fn wakes(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>, SysError> {
    // SAFETY: the descriptor is owned, so it is open and keeps its number and its file until the value that owns it is
    // dropped, which is with the AsyncFd; nothing in the crate replaces it through `AsyncFd::get_mut`.
    let watched = unsafe { AsyncFd::register_with_interest(fd, interest) };
    watched.map_err(std::io::Error::from).call("epoll_ctl", || "a descriptor".into())
}
