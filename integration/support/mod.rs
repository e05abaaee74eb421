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

/// The child of `parent`'s first thread that has executed the program `name`, waited for. The kernel's list of children
/// is asked again as long as it is not there: of a list that changes while it is read the kernel may leave out the
/// last ones.
pub fn child_running(parent: i32, name: &str) -> i32 {
    let children = format!("/proc/{parent}/task/{parent}/children");
    wait_for(&format!("{name}, a child of {parent}"), Duration::from_secs(10), || {
        let children = std::fs::read_to_string(&children).ok()?;
        children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child: &i32| {
            std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim_end() == name)
        })
    })
}

/// As [`wait_for`], for a condition.
pub fn wait_until(what: &str, limit: Duration, mut probe: impl FnMut() -> bool) {
    wait_for(what, limit, || probe().then_some(()));
}
