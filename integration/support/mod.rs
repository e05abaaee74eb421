//! What the tests share: bounded commands, a hermetic environment, engines, images, a full walk of a tree.

pub mod bundle;
pub mod cmd;
pub mod docker;
pub mod engines;
pub mod env;
pub mod images;
pub mod named;
pub mod result;
pub mod walk;

pub use cmd::{Cmd, Output};
pub use env::Env;

use std::time::{Duration, Instant};

/// Asks `probe` every 20 ms until it has an answer; panics, saying `what` was awaited, after `limit`.
pub fn wait_for<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// As [`wait_for`], for a condition.
pub fn wait_until(what: &str, limit: Duration, mut probe: impl FnMut() -> bool) {
    wait_for(what, limit, || probe().then_some(()));
}
