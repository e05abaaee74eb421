//! A subscriber to containerd's events: all of them, those too whose type `ctr events` does not know and leaves out.
//!
//! containerd tells events by gRPC only. What this one call needs of HTTP/2 is little: a request without compression, whose
//! answer's headers need not be understood.

use std::fmt::{self, Display};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use containerd_shim_protos::events::task::{
    TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit, TaskOOM, TaskPaused, TaskResumed, TaskStart,
};
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::shim::event::Envelope;
use serde_json::{Value, json};

use super::daemon::Containerd;

/// One event.
#[derive(Debug, Clone)]
pub struct Event {
    /// `/tasks/exit`
    pub topic: String,
    /// `containerd.events.TaskExit`
    pub type_url: String,
    /// What it says: the fields of those of the task API, the JSON of ours.
    pub fields: Value,
}

impl Event {
    /// Of which container.
    pub fn container(&self) -> &str {
        ["container_id", "container"].iter().find_map(|name| self.fields[name].as_str()).unwrap_or_default()
    }

    /// Which process has exited: the exec's id, or the container's.
    pub fn process(&self) -> &str {
        self.fields["id"].as_str().unwrap_or_default()
    }

    /// The exit status.
    pub fn status(&self) -> u64 {
        self.fields["exit_status"].as_u64().unwrap_or_else(|| panic!("no exit status in {self}"))
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.topic, self.type_url, self.fields)
    }
}

/// Receives the events of one containerd's namespace from the moment on that it was made.
#[derive(Debug)]
pub struct Subscription {
    events: Receiver<Event>,
    stream: UnixStream,
}

impl Subscription {
    /// Subscribes; on return containerd has the subscription.
    #[track_caller]
    pub fn new(containerd: &Containerd) -> Subscription {
        let path = containerd.run.join("containerd.sock");
        let stream = UnixStream::connect(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let reader = stream.try_clone().expect("dup");
        let (sender, events) = channel();
        let filter = format!("namespace=={}", containerd.namespace);
        request(&stream, &filter).expect("subscribe");
        thread::spawn(move || {
            // It ends with the connection.
            let _ = read_frames(reader, &sender);
        });
        let subscription = Subscription { events, stream };
        subscription.until_answered(containerd);
        subscription
    }

    /// containerd does not answer before there is an event, so one is made: that of a namespace's label.
    #[track_caller]
    fn until_answered(&self, containerd: &Containerd) {
        let begun = Instant::now();
        for n in 0.. {
            let label = format!("subscribed={n}");
            containerd.ctr(["namespaces", "label", &containerd.namespace, &label]).ok();
            match self.events.recv_timeout(Duration::from_millis(200)) {
                Ok(_) => break,
                Err(err) => assert!(begun.elapsed() < Duration::from_secs(10), "no event: {err}"),
            }
        }
        // The others that were made.
        while self.events.recv_timeout(Duration::from_millis(100)).is_ok() {}
    }

    /// Events of a container until one for which `last` holds, which must come within `limit`.
    #[track_caller]
    pub fn until(&self, container: &str, limit: Duration, last: impl Fn(&Event) -> bool) -> Vec<Event> {
        let deadline = Instant::now() + limit;
        let mut found: Vec<Event> = Vec::new();
        loop {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(event) if event.container() == container => {
                    found.push(event);
                    if last(found.last().expect("just put in")) {
                        return found;
                    }
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("no such event within {limit:?}, but\n{}", lines(&found)),
                Err(RecvTimeoutError::Disconnected) => panic!("containerd has hung up after\n{}", lines(&found)),
            }
        }
    }

    /// What comes within `time`, of any container.
    pub fn during(&self, time: Duration) -> Vec<Event> {
        let deadline = Instant::now() + time;
        let mut found = Vec::new();
        while let Ok(event) = self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            found.push(event);
        }
        found
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Events a line each, for messages.
pub fn lines(events: &[Event]) -> String {
    events.iter().map(|event| format!("  {event}\n")).collect()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("small").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// HTTP/2 (RFC 9113) and its header fields as literals without indexing (RFC 7541, 6.2.2).
fn request(mut stream: &UnixStream, filter: &str) -> io::Result<()> {
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/containerd.services.events.v1.Events/Subscribe"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).expect("below 127"));
            headers.extend(text.as_bytes());
        }
    }
    // SubscribeRequest { repeated string filters = 1 }, after gRPC's flag and length.
    let mut message = vec![0x0a, u8::try_from(filter.len()).expect("below 128")];
    message.extend(filter.as_bytes());
    let mut body = vec![0];
    body.extend(u32::try_from(message.len()).expect("small").to_be_bytes());
    body.extend(message);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frame(HEADERS, END_HEADERS, 1, &headers));
    bytes.extend(frame(DATA, END_STREAM, 1, &body));
    stream.write_all(&bytes)
}

fn read_frames(mut stream: UnixStream, events: &Sender<Event>) -> io::Result<()> {
    let mut data = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).expect("24 bits")];
        stream.read_exact(&mut payload)?;
        match (head[3], head[4]) {
            (SETTINGS, flags) if flags & ACK == 0 => stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?,
            (PING, flags) if flags & ACK == 0 => stream.write_all(&frame(PING, ACK, 0, &payload))?,
            (GOAWAY, _) => return Ok(()),
            (DATA, _) if length > 0 => {
                // What was read may be sent again, on the stream and on the connection.
                for id in [0, 1] {
                    stream.write_all(&frame(WINDOW_UPDATE, 0, id, &length.to_be_bytes()))?;
                }
                data.extend(payload);
                while let Some(message) = take_message(&mut data) {
                    if events.send(decode(&message)).is_err() {
                        return Ok(());
                    }
                }
            }
            _ => {}
        }
    }
}

/// A whole gRPC message, out of what has come.
fn take_message(data: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(data.get(1..5)?.try_into().ok()?);
    let end = 5 + usize::try_from(length).ok()?;
    (data.len() >= end).then(|| data.drain(..end).skip(5).collect())
}

fn decode(message: &[u8]) -> Event {
    let envelope = Envelope::parse_from_bytes(message).expect("an envelope");
    let any = envelope.event.unwrap_or_default();
    let fields = fields(&any.type_url, &any.value);
    Event { topic: envelope.topic, type_url: any.type_url, fields }
}

fn fields(type_url: &str, bytes: &[u8]) -> Value {
    fn message<M: Message>(bytes: &[u8]) -> M {
        M::parse_from_bytes(bytes).expect("an event")
    }
    match type_url {
        "containerd.events.TaskCreate" => {
            let e: TaskCreate = message(bytes);
            let io = e.io.unwrap_or_default();
            json!({
                "container_id": e.container_id, "bundle": e.bundle, "checkpoint": e.checkpoint, "pid": e.pid,
                "rootfs": e.rootfs.iter().map(|mount| &mount.type_).collect::<Vec<_>>(),
                "stdin": io.stdin, "stdout": io.stdout, "stderr": io.stderr, "terminal": io.terminal,
            })
        }
        "containerd.events.TaskStart" => {
            let e: TaskStart = message(bytes);
            json!({ "container_id": e.container_id, "pid": e.pid })
        }
        "containerd.events.TaskExit" => {
            let e: TaskExit = message(bytes);
            let at = e.exited_at.seconds;
            json!({ "container_id": e.container_id, "id": e.id, "pid": e.pid, "exit_status": e.exit_status, "exited_at": at })
        }
        "containerd.events.TaskDelete" => {
            let e: TaskDelete = message(bytes);
            let at = e.exited_at.seconds;
            json!({ "container_id": e.container_id, "id": e.id, "pid": e.pid, "exit_status": e.exit_status, "exited_at": at })
        }
        "containerd.events.TaskExecAdded" => {
            let e: TaskExecAdded = message(bytes);
            json!({ "container_id": e.container_id, "exec_id": e.exec_id })
        }
        "containerd.events.TaskExecStarted" => {
            let e: TaskExecStarted = message(bytes);
            json!({ "container_id": e.container_id, "exec_id": e.exec_id, "pid": e.pid })
        }
        "containerd.events.TaskOOM" => json!({ "container_id": message::<TaskOOM>(bytes).container_id }),
        "containerd.events.TaskPaused" => json!({ "container_id": message::<TaskPaused>(bytes).container_id }),
        "containerd.events.TaskResumed" => json!({ "container_id": message::<TaskResumed>(bytes).container_id }),
        _ => serde_json::from_slice(bytes).unwrap_or(Value::Null),
    }
}
