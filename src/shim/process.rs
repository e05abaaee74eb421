//! One process that containerd knows: a container's first process, or an exec. Its streams, its phase, its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use containerd_shim_protos::types::task::Status;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::ShimError;
use super::io::{Stdio, Streams};
use super::reaper::Exit;

/// What phase of its life a process is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It is known; an exec has no process yet.
    Created,
    /// The runtime is starting it.
    Starting,
    /// It runs.
    Running,
    /// It has ended.
    Stopped,
}

/// A process.
#[derive(Debug)]
pub struct Process {
    /// The exec's id; empty for the first process.
    pub id: String,
    /// Its streams as the client named them.
    pub stdio: Stdio,
    /// An exec's process as JSON.
    spec: Vec<u8>,
    inner: Mutex<Inner>,
    end: watch::Sender<Option<Exit>>,
    /// It is being deleted.
    pub deleting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    pid: u32,
    streams: Option<Arc<Streams>>,
    /// Whether the client has nothing more to type.
    stdin_closed: bool,
    /// Columns and rows that were asked for while there was no terminal.
    size: Option<(u16, u16)>,
}

/// What [`Process::now`] saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Its phase.
    pub phase: Phase,
    /// Its pid; 0 while there is none.
    pub pid: u32,
    /// Its end, once it has ended.
    pub exit: Option<Exit>,
}

impl Process {
    /// One that has not been started.
    pub fn new(id: &str, stdio: Stdio) -> Process {
        let inner = Inner { phase: Phase::Created, pid: 0, streams: None, stdin_closed: false, size: None };
        Process {
            id: id.to_owned(),
            stdio,
            spec: Vec::new(),
            inner: Mutex::new(inner),
            end: watch::Sender::new(None),
            deleting: tokio::sync::Mutex::default(),
        }
    }

    /// The same, to be started as `spec` says: the runtime specification's `process` as JSON.
    pub fn with_spec(self, spec: Vec<u8>) -> Process {
        Process { spec, ..self }
    }

    /// An exec's process as JSON, with the size that its terminal is to have from the beginning.
    pub fn spec(&self) -> Vec<u8> {
        match self.lock().size {
            Some((width, height)) => with_field(&self.spec, "consoleSize", json!({"width": width, "height": height})),
            None => self.spec.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is one assignment.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is now.
    pub fn now(&self) -> Now {
        let inner = self.lock();
        Now { phase: inner.phase, pid: inner.pid, exit: *self.end.borrow() }
    }

    /// What containerd calls its state; `paused` is its container's.
    pub fn status(&self, paused: Status) -> Status {
        match self.lock().phase {
            Phase::Created | Phase::Starting => Status::CREATED,
            Phase::Running => paused,
            Phase::Stopped => Status::STOPPED,
        }
    }

    /// From `from` to `to`; whether it was in that phase.
    pub fn advance(&self, from: Phase, to: Phase) -> bool {
        let mut inner = self.lock();
        let expected = inner.phase == from;
        if expected {
            inner.phase = to;
        }
        expected
    }

    /// It has a pid, and streams that are being copied.
    pub fn born(&self, pid: u32, streams: Streams) {
        let mut inner = self.lock();
        inner.pid = pid;
        if inner.stdin_closed {
            streams.close_stdin();
        }
        if let Some((width, height)) = inner.size.take()
            && let Err(err) = streams.resize(width, height)
        {
            // It runs, and can be asked for again.
            tracing::warn!(process = self.id, %err, "a terminal has not the size that was asked for");
        }
        inner.streams = Some(Arc::new(streams));
    }

    /// Sets its terminal's size, in characters: at its start, where it has not been started. Docker asks for it when it may not
    /// be there yet. Without a terminal nothing is done.
    pub fn resize(&self, width: u16, height: u16) -> Result<(), ShimError> {
        let mut inner = self.lock();
        if let Some(streams) = &inner.streams {
            return streams.resize(width, height);
        }
        inner.size = Some((width, height));
        Ok(())
    }

    /// The client has nothing more to type. It may say so while the process is being started: what it has typed is in the
    /// pipes by then.
    pub fn close_stdin(&self) {
        let mut inner = self.lock();
        inner.stdin_closed = true;
        if let Some(streams) = &inner.streams {
            streams.close_stdin();
        }
    }

    /// Its end is known: to be called once, when everything that has to come before is done.
    pub fn ended(&self, exit: Exit) {
        let mut inner = self.lock();
        inner.phase = Phase::Stopped;
        if let Some(streams) = &inner.streams {
            streams.over();
        }
        drop(inner);
        self.end.send_replace(Some(exit));
    }

    /// Waits for its end, however long that takes.
    pub async fn wait(&self) -> Result<Exit, ShimError> {
        let mut end = self.end.subscribe();
        let seen = end.wait_for(Option::is_some).await.map(|exit| *exit);
        seen.ok().flatten().ok_or_else(|| ShimError::State("the shim is ending".into()))
    }

    /// Its streams, while there are any.
    pub fn streams(&self) -> Option<Arc<Streams>> {
        self.lock().streams.clone()
    }

    /// Takes its streams away.
    pub fn take_streams(&self) -> Option<Arc<Streams>> {
        self.lock().streams.take()
    }
}

/// A process as JSON with one field as it is given. What is no process stays as it is: the runtime says what is wrong with it.
pub fn with_field(process: &[u8], name: &str, value: Value) -> Vec<u8> {
    match serde_json::from_slice(process) {
        Ok(Value::Object(mut fields)) => {
            fields.insert(name.to_owned(), value);
            // What was read can be written.
            serde_json::to_vec(&fields).unwrap_or_default()
        }
        _ => process.to_vec(),
    }
}
