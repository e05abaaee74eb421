//! The client's fifos. Opening one never waits for the client, and while a process lives the client may come and go.
//!
//! A fifo keeps what is in it only while somebody has it open, breaks a writer that has no reader, and ends a reader that
//! has no writer. So the shim holds the end that is the client's, too: an output fifo's reading end, until the output has
//! ended and the client is there to read the rest; the input fifo's writing end, until CloseIO.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{FileType, Mode, OFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch::Receiver;

use super::copy;
use crate::shim::ShimError;
use crate::sys::watch;

/// How often a client that is away is looked for, at first and at last.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(500));

/// A fifo that the shim writes to.
#[derive(Debug)]
pub(super) struct Output {
    writer: AsyncFd<OwnedFd>,
    /// What keeps the fifo's content and its writer alive while the client is away.
    reader: Option<OwnedFd>,
}

/// A fifo that the shim reads from: the reading end, and the writing end that stands for a client that is away.
pub(super) struct Input {
    pub reader: AsyncFd<OwnedFd>,
    pub hold: OwnedFd,
}

/// Opens one end; neither kind of end waits.
fn open(path: &Path, end: OFlags) -> Result<OwnedFd, ShimError> {
    rustix::fs::open(path, end | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| ShimError::io("open", path)(errno.into()))
}

/// The reading end of the fifo at `path`; `None` if that is another kind of file.
fn open_reader(path: &Path) -> Result<Option<OwnedFd>, ShimError> {
    let is_fifo = |mode| FileType::from_raw_mode(mode) == FileType::Fifo;
    // Looked at before, since opening a device may do something; and after, since it may be another one by then.
    let stat = rustix::fs::stat(path).map_err(|errno| ShimError::io("stat", path)(errno.into()))?;
    if !is_fifo(stat.st_mode) {
        return Ok(None);
    }
    let reader = open(path, OFlags::RDONLY)?;
    let stat = rustix::fs::fstat(&reader).map_err(|errno| ShimError::io("fstat", path)(errno.into()))?;
    Ok(is_fifo(stat.st_mode).then_some(reader))
}

/// The writing end of the same fifo.
fn open_writer(reader: &OwnedFd, path: &Path) -> Result<OwnedFd, ShimError> {
    reopen(reader, OFlags::WRONLY).map_err(ShimError::io("open", path))
}

fn reopen(end: &OwnedFd, other: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", end.as_raw_fd());
    Ok(rustix::fs::open(path, other | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

fn watched(end: OwnedFd, path: &Path) -> Result<AsyncFd<OwnedFd>, ShimError> {
    watch::watch(end).map_err(|err| ShimError::io("watch", path)(err.into()))
}

impl Output {
    /// Opens the fifo at `path`; `None` if that is another kind of file.
    ///
    /// # Errors
    /// If it is not there or may not be opened.
    pub fn open(path: &Path) -> Result<Option<Output>, ShimError> {
        let Some(reader) = open_reader(path)? else { return Ok(None) };
        let writer = watched(open_writer(&reader, path)?, path)?;
        Ok(Some(Output { writer, reader: Some(reader) }))
    }

    /// Copies from a pipe until its end. When `draining` begins, a client that is away is not waited for any more.
    pub async fn copy_from(&mut self, pipe: &AsyncFd<OwnedFd>, draining: &mut Receiver<bool>) -> io::Result<()> {
        let copy = copy::pipe_to_pipe(pipe, &self.writer);
        tokio::pin!(copy);
        tokio::select! {
            biased;
            result = &mut copy => return result,
            () = begun(draining) => drop(self.reader.take()),
        }
        copy.await
    }

    /// Writes all of `bytes`, under the same conditions.
    pub async fn write(&mut self, bytes: &[u8], draining: &mut Receiver<bool>) -> io::Result<()> {
        let write = copy::write_all(&self.writer, bytes);
        tokio::pin!(write);
        tokio::select! {
            biased;
            result = &mut write => return result,
            () = begun(draining) => drop(self.reader.take()),
        }
        write.await
    }

    /// Closes the fifo after the last byte, which gives the client its end. A client that is away, or has not come yet, is
    /// waited for until `draining` begins: with the last descriptor what it has not read would go, and its opening of a
    /// fifo without a writer would never return. Whether nothing was left unread without a reader.
    pub async fn end(mut self, draining: &mut Receiver<bool>) -> bool {
        let mut pause = LOOK.0;
        loop {
            if self.has_client() {
                return true;
            }
            if *draining.borrow() {
                return rustix::io::ioctl_fionread(&self.writer).is_ok_and(|unread| unread == 0);
            }
            match reopen(self.writer.get_ref(), OFlags::RDONLY) {
                Ok(reader) => self.reader = Some(reader),
                // The fifo itself is open, so what is in it stays; a client is still seen when it comes.
                Err(err) => tracing::warn!(%err, "the reading end of a fifo could not be opened"),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LOOK.1),
                () = begun(draining) => {}
            }
        }
    }

    /// Whether somebody else has the fifo open for reading. The shim's own reading end goes.
    fn has_client(&mut self) -> bool {
        drop(self.reader.take());
        // Without a reader a fifo reports an error.
        !watch::ready(&self.writer, PollFlags::empty()).contains(PollFlags::ERR)
    }
}

impl Input {
    /// Opens the fifo at `path`.
    ///
    /// # Errors
    /// If it is not there, may not be opened, or is no fifo.
    pub fn open(path: &Path) -> Result<Input, ShimError> {
        let reader = open_reader(path)?.ok_or_else(|| not_a_fifo(path))?;
        let hold = open_writer(&reader, path)?;
        let reader = watched(reader, path)?;
        Ok(Input { reader, hold })
    }
}

/// What is neither a fifo nor a file.
pub(super) fn not_a_fifo(path: &Path) -> ShimError {
    ShimError::Invalid(format!("stdio {}: this is not a fifo", path.display()))
}

/// Returns when draining has begun. Where it never will, because the streams go, the task that waits goes too.
pub(super) async fn begun(draining: &mut Receiver<bool>) {
    if draining.wait_for(|begun| *begun).await.is_err() {
        std::future::pending::<()>().await;
    }
}
