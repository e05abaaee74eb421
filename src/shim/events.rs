//! Events, told to containerd in the order in which they happened.
//!
//! A request only puts its event into a queue; one task sends them, each until containerd has taken it. So an event never
//! overtakes another and no request waits for containerd, which may be away.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use containerd_shim_protos::api::ForwardRequest;
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use containerd_shim_protos::shim::event::Envelope;
use containerd_shim_protos::shim_async::EventsClient;
use containerd_shim_protos::ttrpc;
use tokio::sync::Notify;
use tokio::time::timeout;

/// How many events wait for containerd at most. It is away for a minute or so while it is updated; an event takes some
/// three hundred bytes.
const CAPACITY: usize = 8192;
/// How many times an event is sent that containerd answers with an error.
const REFUSALS: u32 = 5;

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Envelope>,
    /// How many were dropped since that was last said.
    dropped: u64,
    /// Whether one has been taken out and is being sent.
    sending: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    added: Notify,
    sent: Notify,
    namespace: String,
}

/// Where the events of a shim go in.
#[derive(Debug, Clone)]
pub struct Events(Arc<Shared>);

impl Events {
    /// Begins to send to the containerd that listens at `address` (a path, or `unix://` and a path), in a task of the
    /// running tokio runtime.
    pub fn start(address: &str, namespace: &str) -> Events {
        let events = Events(Arc::new(Shared {
            queue: Mutex::default(),
            added: Notify::new(),
            sent: Notify::new(),
            namespace: namespace.to_owned(),
        }));
        let path = PathBuf::from(address.strip_prefix("unix://").unwrap_or(address));
        tokio::spawn(send_all(events.0.clone(), path));
        events
    }

    /// Adds one of containerd's own events.
    pub fn add<M: Message>(&self, topic: &'static str, event: &M) {
        match event.write_to_bytes() {
            Ok(value) => self.add_any(topic, &full_name::<M>(), value),
            Err(err) => tracing::error!(topic, %err, "an event could not be encoded"),
        }
    }

    /// Adds one that a container can bring about as often as it likes; where the same one waits already, that one is enough.
    /// So no container fills the queue while containerd is away, and costs others their ends.
    pub fn add_unless_waiting<M: Message>(&self, topic: &'static str, event: &M) {
        let Ok(value) = event.write_to_bytes() else { return self.add(topic, event) };
        let waits =
            self.0.lock().events.iter().any(|envelope| envelope.topic == topic && envelope.event.value == value);
        if !waits {
            self.add(topic, event);
        }
    }

    /// Adds an event whose payload is encoded already.
    pub fn add_any(&self, topic: &'static str, type_url: &str, value: Vec<u8>) {
        let payload = Any { type_url: type_url.to_owned(), value, ..Any::default() };
        let envelope = Envelope {
            timestamp: Some(Timestamp::from(SystemTime::now())).into(),
            namespace: self.0.namespace.clone(),
            topic: topic.to_owned(),
            event: Some(payload).into(),
            ..Envelope::default()
        };
        let mut queue = self.0.lock();
        if queue.events.len() >= CAPACITY {
            queue.events.pop_front();
            queue.dropped += 1;
        }
        queue.events.push_back(envelope);
        drop(queue);
        self.0.added.notify_one();
    }

    /// Waits until all that was added before has been sent, at most `limit`; whether it was.
    pub async fn flush(&self, limit: Duration) -> bool {
        let emptied = async {
            loop {
                let sent = self.0.sent.notified();
                if self.0.is_idle() {
                    return;
                }
                sent.await;
            }
        };
        timeout(limit, emptied).await.is_ok()
    }
}

/// The full name of one of containerd's events. Not from its descriptor: the library would build those of all events, a
/// third of a megabyte that stays.
fn full_name<M: Message>() -> String {
    format!("containerd.events.{}", M::NAME)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self) -> bool {
        let queue = self.lock();
        queue.events.is_empty() && !queue.sending
    }

    fn take(&self) -> Option<Envelope> {
        let mut queue = self.lock();
        if queue.dropped > 0 {
            tracing::error!(dropped = queue.dropped, "containerd took no events for long: the oldest were dropped");
            queue.dropped = 0;
        }
        let event = queue.events.pop_front();
        queue.sending = event.is_some();
        event
    }
}

async fn send_all(shared: Arc<Shared>, path: PathBuf) {
    let mut client = None;
    loop {
        let Some(event) = shared.take() else {
            shared.sent.notify_waiters();
            shared.added.notified().await;
            continue;
        };
        send(&path, &mut client, event).await;
        shared.lock().sending = false;
    }
}

/// Sends until containerd has taken it, or has refused it several times.
async fn send(path: &std::path::Path, client: &mut Option<EventsClient>, event: Envelope) {
    let request = ForwardRequest { envelope: Some(event).into(), ..ForwardRequest::default() };
    let (mut refused, mut pause) = (0, Duration::from_millis(10));
    loop {
        match try_send(path, client, &request).await {
            Ok(()) => return,
            Err(ttrpc::Error::RpcStatus(status)) => {
                refused += 1;
                if refused >= REFUSALS {
                    tracing::error!(topic = %request.envelope.topic, status = %status.message, "containerd refuses an event");
                    return;
                }
            }
            // It is away: the connection is made anew.
            Err(err) => {
                if client.take().is_some() {
                    tracing::warn!(%err, "the connection to containerd broke");
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

async fn try_send(
    path: &std::path::Path,
    client: &mut Option<EventsClient>,
    request: &ForwardRequest,
) -> ttrpc::Result<()> {
    let connected = match client {
        Some(client) => client,
        None => client.insert(EventsClient::new(connect(path).await?)),
    };
    // However long that takes: a containerd that stands still finds each request that waits for it when it goes on, and
    // would tell the event once for each. If it dies the connection breaks.
    connected.forward(ttrpc::context::Context::default(), request).await.map(drop)
}

async fn connect(path: &std::path::Path) -> ttrpc::Result<ttrpc::r#async::Client> {
    ttrpc::r#async::Client::connect(&format!("unix://{}", path.display())).await
}

#[cfg(test)]
mod tests {
    use containerd_shim_protos::events::task as event;
    use containerd_shim_protos::protobuf::MessageFull;

    use super::*;

    #[test]
    fn names_of_events_are_those_of_their_descriptors() {
        fn check<M: MessageFull>() {
            assert_eq!(full_name::<M>(), M::descriptor().full_name());
        }
        check::<event::TaskCreate>();
        check::<event::TaskStart>();
        check::<event::TaskDelete>();
        check::<event::TaskExit>();
        check::<event::TaskOOM>();
        check::<event::TaskExecAdded>();
        check::<event::TaskExecStarted>();
        check::<event::TaskPaused>();
        check::<event::TaskResumed>();
    }

    /// A container whose processes are killed for want of memory again and again, while containerd was away, pushed the
    /// ends of others out of the queue.
    #[test]
    fn what_a_container_repeats_waits_once() {
        let shared =
            Shared { queue: Mutex::default(), added: Notify::new(), sent: Notify::new(), namespace: "n".into() };
        let events = Events(Arc::new(shared));
        let oom = |id: &str| event::TaskOOM { container_id: id.into(), ..event::TaskOOM::default() };
        for _ in 0..3 {
            events.add_unless_waiting("/tasks/oom", &oom("a"));
            events.add_unless_waiting("/tasks/oom", &oom("b"));
        }
        assert_eq!(events.0.lock().events.len(), 2);
        // One that has gone out is told again.
        events.0.take();
        events.add_unless_waiting("/tasks/oom", &oom("a"));
        assert_eq!(events.0.lock().events.len(), 2);
        events.add("/tasks/oom", &oom("a"));
        assert_eq!(events.0.lock().events.len(), 3);
    }
}
