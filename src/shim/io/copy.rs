//! Moving bytes, without holding memory for a stream on which nothing moves.
//!
//! Much is spliced from pipe to pipe: the kernel passes its pages on. Little is read and written, since a spliced page
//! takes a whole slot of the pipe it goes to, however little is in it, and a pipe has sixteen.
//!
//! Tokio keeps it for good that all at the other end had closed it at a moment. A process can open its own pipe again
//! after that; waiting would then return at once, for ever. So what is neither there nor open for good has ended.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;
use tokio::io::unix::AsyncFd;
use tokio::task::coop::consume_budget;

use crate::sys::watch;

/// The size of a buffer, in bytes. A pipe takes so many as one whole or not at all.
pub(super) const BUFFER: usize = 4096;
/// What is spliced at a time at most, in bytes: as much as a large pipe holds.
const SPLICE: usize = 1 << 20;

/// Copies until the end of `from`; both are pipes or fifos and do not block.
///
/// # Errors
/// `EPIPE` when nobody reads `to` any more; what read(2), write(2) and splice(2) give.
pub(super) async fn pipe_to_pipe(from: &AsyncFd<OwnedFd>, to: &AsyncFd<OwnedFd>) -> io::Result<()> {
    loop {
        drop(from.readable().await?);
        if rustix::io::ioctl_fionread(from)? > BUFFER as u64 {
            splice(from, to).await?;
            continue;
        }
        let bytes = read(from, BUFFER).await?;
        if bytes.is_empty() {
            return Ok(());
        }
        write_all(to, &bytes).await?;
    }
}

/// Waits for bytes and reads at most `limit`; none at the end.
pub(super) async fn read(from: &AsyncFd<OwnedFd>, limit: usize) -> io::Result<Vec<u8>> {
    loop {
        // A stream that is always ready lets others run.
        consume_budget().await;
        let mut ready = from.readable().await?;
        let was_closed = ready.ready().is_read_closed();
        let mut buffer = vec![0; limit];
        match ready.try_io(|from| Ok(rustix::io::read(from, &mut *buffer)?)) {
            Ok(Ok(n)) => {
                buffer.truncate(n);
                return Ok(buffer);
            }
            Ok(Err(err)) if err.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(err)) => return Err(err),
            Err(_) if was_closed => return Ok(Vec::new()),
            Err(_) => {}
        }
    }
}

/// Writes all of `bytes`, waiting where `to` is full.
///
/// # Errors
/// `EPIPE` when nobody reads `to`; what write(2) gives.
pub(super) async fn write_all(to: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = when_writable(to, |to| rustix::io::write(to, bytes)).await?;
        bytes = &bytes[n..];
    }
    Ok(())
}

/// Splices what is there, as far as it fits.
async fn splice(from: &AsyncFd<OwnedFd>, to: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    let splice = |to: &OwnedFd| match rustix::pipe::splice(from, None, to, None, SPLICE, flags) {
        // It is not that this is full but that the other is empty: the process can read its own pipe.
        Err(Errno::AGAIN) if !watch::ready(to, PollFlags::OUT).is_empty() => Ok(0),
        moved => moved,
    };
    when_writable(to, splice).await.map(drop)
}

/// Does one write of some kind when there is room for it.
async fn when_writable(
    to: &AsyncFd<OwnedFd>,
    mut write: impl FnMut(&OwnedFd) -> Result<usize, Errno>,
) -> io::Result<usize> {
    loop {
        consume_budget().await;
        let mut ready = to.writable().await?;
        let was_closed = ready.ready().is_write_closed();
        match ready.try_io(|to| Ok(write(to.get_ref())?)) {
            Ok(Err(err)) if err.kind() == io::ErrorKind::Interrupted => {}
            Ok(done) => return done,
            Err(_) if was_closed => return Err(Errno::PIPE.into()),
            Err(_) => {}
        }
    }
}

/// A pipe: the end to read from and the end to write to, closed on exec, both blocking.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}
