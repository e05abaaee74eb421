//! The kernel's wait before a process is moved between cgroups, begun as soon as it is known that one will be.
//!
//! It takes some ten milliseconds ([`wait_before_moves`]), in which the root file system is mounted and the runtime started.
//! A server knows of its first container from its own start on: nobody starts one for anything else.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::thread::aside;
use crate::sys::cgroup::wait_before_moves;

/// For how long a wait is good, from its beginning on: as long as it takes at least. What it brings about lasts as long again.
const GOOD: Duration = Duration::from_millis(10);

/// The moves that are to come. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Moves(Arc<Mutex<Option<Instant>>>);

impl Moves {
    /// A process is going to be moved. Whether the wait begins now, and has not begun just before.
    pub fn expect(&self) -> bool {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.is_some_and(|begun| begun.elapsed() < GOOD) {
            return false;
        }
        *begun = Some(Instant::now());
        // Where it fails the move itself waits.
        aside(|| drop(wait_before_moves()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wait_for_who_comes_at_once() {
        let moves = Moves::default();
        let begun = Instant::now();
        assert!(moves.expect());
        let second = moves.clone().expect();
        // A machine that is busy may have taken longer.
        assert!(!second || begun.elapsed() >= GOOD);
        std::thread::sleep(GOOD);
        assert!(moves.expect());
    }
}
