//! One output stream: from what the process writes to where the client wants it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::{copy, fifo, file, terminal};

/// How much is taken from a pipe for a file at a time, in bytes: what a pipe holds.
const FILE_BUFFER: usize = 64 << 10;

/// Where the output comes from.
pub(super) enum Source {
    /// The process's other end is a pipe.
    Pipe(AsyncFd<OwnedFd>),
    /// The process has a terminal.
    Terminal(terminal::Reader),
}

/// Where the output goes.
pub(super) enum Sink {
    /// A fifo of the client's.
    Fifo(fifo::Output),
    /// A log file.
    File(Arc<File>),
    /// A logger's pipe.
    Pipe(AsyncFd<OwnedFd>),
    /// A terminal whose output nobody wants: it is read, or its process would stop.
    Nowhere,
}

/// Copies until the process has ended its output, then gives the sink its end. Whether all was delivered.
///
/// When `draining` begins nobody is waited for who may never come: a client that is away, a terminal's next user.
pub(super) async fn run(mut source: Source, mut sink: Sink, mut draining: watch::Receiver<bool>) -> bool {
    let copied = match (&mut source, &mut sink) {
        (Source::Pipe(pipe), Sink::Fifo(fifo)) => fifo.copy_from(pipe, &mut draining).await,
        (source, sink) => relay(source, sink, &mut draining).await,
    };
    if let Err(err) = &copied {
        tracing::warn!(%err, "the copying of an output stopped");
    }
    // Whoever still writes is told that nobody reads.
    drop(source);
    match sink {
        Sink::Fifo(fifo) => fifo.end(&mut draining).await && copied.is_ok(),
        Sink::File(_) | Sink::Pipe(_) | Sink::Nowhere => copied.is_ok(),
    }
}

async fn relay(source: &mut Source, sink: &mut Sink, draining: &mut watch::Receiver<bool>) -> io::Result<()> {
    let mut failed = false;
    loop {
        let bytes = match source {
            Source::Pipe(pipe) => next(pipe).await?,
            Source::Terminal(reader) => reader.next(draining).await?,
        };
        let Some(bytes) = bytes else { return Ok(()) };
        match sink {
            Sink::Fifo(fifo) => fifo.write(&bytes, draining).await?,
            Sink::Pipe(pipe) => copy::write_all(pipe, &bytes).await?,
            Sink::Nowhere => {}
            // A full disk costs lines of the log; it does not stop the process for good.
            Sink::File(log) => match file::append(log, bytes).await {
                Ok(()) => failed = false,
                Err(err) if failed => tracing::debug!(%err, "a log file still takes no output"),
                Err(err) => {
                    tracing::warn!(%err, "a log file takes no output: it is dropped");
                    failed = true;
                }
            },
        }
    }
}

/// The next bytes of a pipe, `None` at its end.
async fn next(pipe: &AsyncFd<OwnedFd>) -> io::Result<Option<Vec<u8>>> {
    loop {
        drop(pipe.readable().await?);
        if let Some(bytes) = copy::read_some(pipe, FILE_BUFFER)? {
            return Ok((!bytes.is_empty()).then_some(bytes));
        }
    }
}
