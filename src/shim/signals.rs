//! Signals that are being sent to a container's first process: whoever asked for one is answered before the end is told.
//!
//! Told of the end containerd has the container deleted, and closes its connection with the requests that are on it: the one
//! that had brought the end about failed, and with it the stop of a pod.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// How many are being sent.
#[derive(Debug, Default)]
pub struct Signals(watch::Sender<usize>);

/// One that is being sent, until it is dropped.
#[must_use = "the end is told when it is dropped"]
#[derive(Debug)]
pub struct Sending<'a>(&'a Signals);

impl Signals {
    /// One is about to be sent.
    pub fn sending(&self) -> Sending<'_> {
        self.0.send_modify(|count| *count += 1);
        Sending(self)
    }

    /// Waits until none is being sent, at the longest for `limit`: whether that is so.
    pub async fn sent(&self, limit: Duration) -> bool {
        let mut count = self.0.subscribe();
        // The sender lives as long as `self`.
        timeout(limit, count.wait_for(|count| *count == 0)).await.is_ok()
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_waited_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (signals, short) = (Signals::default(), Duration::from_millis(50));
            assert!(signals.sent(short).await);
            let (one, other) = (signals.sending(), signals.sending());
            drop(one);
            assert!(!signals.sent(short).await);
            let (sent, ()) = tokio::join!(signals.sent(Duration::from_secs(10)), async { drop(other) });
            assert!(sent);
        });
    }
}
