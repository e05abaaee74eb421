//! Containers that are to come: `start` has told containerd of this server, which has not asked for the container yet.
//!
//! `start` looks by a connection on which it says nothing ([`super::socket`]); containerd says something on each of its own. So a
//! connection that says nothing is a container that is to come, until one is asked for, or containerd is done with it. A server
//! that ended in between took containerd's next request with it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long containerd may take from `start` to a container.
const PATIENCE: Duration = Duration::from_secs(30);

/// The containers that are to come. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Newcomers(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Open connections on which nothing has been said.
    silent: usize,
    /// Containers for which `start` has looked.
    promised: usize,
    /// Those that were asked for and that containerd is not done with.
    came: BTreeSet<String>,
    /// When the last connection was taken.
    last: Option<Instant>,
}

impl Default for State {
    /// For the first container the server itself was started, without a look.
    fn default() -> State {
        State { silent: 0, promised: 1, came: BTreeSet::new(), last: None }
    }
}

impl Newcomers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was taken, on which nothing has been said yet.
    pub fn connected(&self) {
        let mut state = self.lock();
        state.silent += 1;
        state.last = Some(Instant::now());
    }

    /// Something was said on such a connection.
    pub fn spoke(&self) {
        let mut state = self.lock();
        state.silent = state.silent.saturating_sub(1);
    }

    /// Such a connection was closed: `start` has looked.
    pub fn looked(&self) {
        let mut state = self.lock();
        state.silent = state.silent.saturating_sub(1);
        state.promised += 1;
    }

    /// The container `id` was asked for.
    pub fn came(&self, id: &str) {
        let mut state = self.lock();
        state.came.insert(id.to_owned());
        state.promised = state.promised.saturating_sub(1);
    }

    /// containerd is done with the container `id` (`Shutdown`), for which it may never have asked.
    pub fn done(&self, id: &str) {
        let mut state = self.lock();
        if !state.came.remove(id) {
            state.promised = state.promised.saturating_sub(1);
        }
    }

    /// Whether one is to come. Who has not come for half a minute does not come.
    pub fn expected(&self) -> bool {
        let state = self.lock();
        state.silent + state.promised > 0 && state.last.is_some_and(|last| last.elapsed() < PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_look_is_a_container() {
        let newcomers = Newcomers::default();
        // Nobody but the one that the server was started for, which need not come.
        assert!(!newcomers.expected());
        // containerd's own connection.
        newcomers.connected();
        assert!(newcomers.expected(), "it may be a look");
        newcomers.spoke();
        newcomers.came("c1");
        assert!(!newcomers.expected());
        // Two looks; in between containerd has come for one of them.
        newcomers.connected();
        newcomers.looked();
        newcomers.connected();
        newcomers.connected();
        newcomers.spoke();
        newcomers.came("c2");
        assert!(newcomers.expected());
        newcomers.looked();
        assert!(newcomers.expected());
        newcomers.came("c3");
        assert!(!newcomers.expected());
        // Who comes without a look leaves the next one's alone.
        newcomers.came("c4");
        newcomers.connected();
        newcomers.looked();
        assert!(newcomers.expected());
        // containerd is done with one that came, and gives up the one that did not.
        newcomers.done("c1");
        assert!(newcomers.expected());
        newcomers.done("other");
        assert!(!newcomers.expected());
        newcomers.connected();
        newcomers.looked();
        assert!(newcomers.expected());
        newcomers.0.lock().unwrap().last = Instant::now().checked_sub(PATIENCE);
        assert!(!newcomers.expected());
    }
}
