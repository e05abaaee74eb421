//! Moving bytes, without holding memory for a stream on which nothing moves.
//!
//! Much is spliced from pipe to pipe: the kernel passes its pages on. Little is read and written, since a spliced page
//! takes a whole slot of the pipe it goes to, however little is in it, and a pipe has sixteen.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::PollFlags;
use rustix::pipe::SpliceFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::watch;

/// The size of a buffer, in bytes. A pipe takes so many as one whole or not at all.
pub(super) const BUFFER: usize = 4096;
/// What is spliced at a time at most, in bytes: as much as a large pipe holds.
const SPLICE: usize = 1 << 20;
/// How many times a copy goes on before it lets others run.
const TURNS: u32 = 32;

/// Copies until the end of `from`; both are pipes or fifos and do not block.
///
/// # Errors
/// `EPIPE` when nobody reads `to` any more; what read(2), write(2) and splice(2) give.
pub(super) async fn pipe_to_pipe(from: &AsyncFd<OwnedFd>, to: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let mut turns = 0;
    loop {
        turns += 1;
        if turns % TURNS == 0 {
            tokio::task::yield_now().await;
        }
        drop(from.readable().await?);
        if rustix::io::ioctl_fionread(from)? > BUFFER as u64 {
            splice_some(from, to).await?;
            continue;
        }
        let Some(bytes) = read_some(from, BUFFER)? else { continue };
        if bytes.is_empty() {
            return Ok(());
        }
        write_all(to, &bytes).await?;
    }
}

/// What can be read now, at most `limit` bytes: empty at the end, `None` if nothing is there.
pub(super) fn read_some(from: &AsyncFd<OwnedFd>, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; limit];
    match from.try_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut *buffer)?)) {
        Ok(n) => {
            buffer.truncate(n);
            Ok(Some(buffer))
        }
        Err(err) if retry(&err) => Ok(None),
        Err(err) => Err(err),
    }
}

/// Writes all of `bytes`, waiting where `to` is full.
pub(super) async fn write_all(to: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?)).await {
            Ok(n) => bytes = &bytes[n..],
            Err(err) if retry(&err) => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// Splices what is there, as far as it fits.
async fn splice_some(from: &AsyncFd<OwnedFd>, to: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let splice = |to: &OwnedFd| {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        match rustix::pipe::splice(from, None, to, None, SPLICE, flags) {
            // Either one is full or the other empty: the process can read its own pipe.
            Err(rustix::io::Errno::AGAIN) if !watch::ready(to, PollFlags::OUT).is_empty() => Ok(()),
            moved => Ok(moved.map(drop)?),
        }
    };
    match to.async_io(Interest::WRITABLE, splice).await {
        Err(err) if retry(&err) => Ok(()),
        moved => moved,
    }
}

pub(super) fn retry(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// A pipe: the end to read from and the end to write to, closed on exec, both blocking.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}
