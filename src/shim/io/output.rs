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
/// When `draining` begins a client that is away is not waited for any more: it may never come.
pub(super) async fn run(mut source: Source, mut sink: Sink, mut draining: watch::Receiver<bool>) -> bool {
    let copied = match (&mut source, &mut sink) {
        (Source::Pipe(pipe), Sink::Fifo(fifo)) => fifo.copy_from(pipe, &mut draining).await.map(|()| true),
        (source, sink) => relay(source, sink, &mut draining).await,
    };
    match &copied {
        // Whose process is being deleted, and nobody reads it.
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe && *draining.borrow() => {}
        Err(err) => tracing::warn!(%err, "the copying of an output stopped"),
        Ok(_) => {}
    }
    let whole = copied.unwrap_or(false);
    // Whoever still writes is told that nobody reads.
    drop(source);
    match sink {
        Sink::Fifo(fifo) => fifo.end(&mut draining).await && whole,
        Sink::File(_) | Sink::Pipe(_) | Sink::Nowhere => whole,
    }
}

/// Copies to the end of the source; whether the sink took everything.
async fn relay(source: &mut Source, sink: &mut Sink, draining: &mut watch::Receiver<bool>) -> io::Result<bool> {
    let mut whole = true;
    loop {
        let bytes = match source {
            Source::Pipe(pipe) => copy::read(pipe, FILE_BUFFER).await?,
            Source::Terminal(reader) => reader.read().await?,
        };
        if bytes.is_empty() {
            return Ok(whole);
        }
        match sink {
            Sink::Fifo(fifo) => fifo.write(&bytes, draining).await?,
            // A terminal is read on: its process would stop.
            Sink::Pipe(pipe) => {
                if let Err(err) = copy::write_all(pipe, &bytes).await {
                    tracing::warn!(%err, "a logging program takes no output: it is dropped");
                    (*sink, whole) = (Sink::Nowhere, false);
                }
            }
            Sink::Nowhere => {}
            // A full disk costs lines of the log; it does not stop the process for good.
            Sink::File(log) => match file::append(log, bytes).await {
                Ok(()) => {}
                Err(err) if !whole => tracing::debug!(%err, "a log file takes no output, again"),
                Err(err) => {
                    tracing::warn!(%err, "a log file takes no output: it is dropped");
                    whole = false;
                }
            },
        }
    }
}
