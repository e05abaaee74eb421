//! A container's kills for want of memory, told to containerd: when they are noticed, and at the latest before an end that
//! one of them explains.

use std::time::Instant;

use containerd_shim_protos::events::task as event;
use containerd_shim_protos::topics;
use tokio::sync::{mpsc, oneshot};

use super::events::Events;
use super::oom;

/// Has the kills of one container told, for as long as it lives.
#[derive(Debug)]
pub struct Kills(mpsc::Sender<Look>);

/// Asks for a look at what was killed, and hears when it is told.
#[derive(Debug)]
struct Look {
    known: Option<Instant>,
    done: oneshot::Sender<()>,
}

impl Kills {
    /// Begins to tell those of the container `id`, in a task of the running tokio runtime.
    pub fn tell(id: String, events: Events, watch: oom::Watch) -> Kills {
        let (looks, asked) = mpsc::channel(1);
        tokio::spawn(tell_all(id, events, watch, asked));
        Kills(looks)
    }

    /// Returns when a kill is told that had not been noticed yet; `known` is when a process began that is known to have been
    /// killed so.
    pub async fn look(&self, known: Option<Instant>) {
        let (done, looked) = oneshot::channel();
        if self.0.send(Look { known, done }).await.is_ok() {
            // Without an answer there is nobody who could tell.
            let _ = looked.await;
        }
    }
}

async fn tell_all(id: String, events: Events, mut watch: oom::Watch, mut asked: mpsc::Receiver<Look>) {
    let mut told = None;
    let mut there = true;
    loop {
        let (killed, done) = tokio::select! {
            killed = watch.next(), if there => {
                // Once the group is gone there is nothing to be seen any more.
                there = killed;
                (killed, None)
            }
            look = asked.recv() => {
                let Some(Look { known, done }) = look else { return };
                let missed = known.is_some_and(|begun| told.is_none_or(|told| told < begun));
                (watch.killed_since_last() || missed, Some(done))
            }
        };
        if killed {
            told = Some(Instant::now());
            let oom = event::TaskOOM { container_id: id.clone(), ..Default::default() };
            events.add_unless_waiting(topics::TASK_OOM_EVENT_TOPIC, &oom);
        }
        // Who asked waits, or is gone.
        let _ = done.map(|done| done.send(()));
    }
}
