//! Whose turn it is with a container's freezer.
//!
//! Whoever signals all processes of a container may freeze them for a moment, so that none forks away. To the kernel that is
//! the same as a pause. So whoever freezes or thaws has a lock meanwhile, and who finds a container frozen waits for that one
//! before it is taken for paused ([`Record::status`]); and nobody thaws for another what that one has just paused.

use std::time::Duration;

use super::state::Record;
use crate::durable::LockFile;

/// The lock's file in the container's state directory.
const FILE: &str = "freezer.lock";
/// How long another's turn is waited for. Freezing takes milliseconds, unless a process is stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(2);

/// A turn, until it is dropped or the process ends in whatever way.
#[derive(Debug)]
#[must_use = "the turn is over once this is dropped"]
pub(super) struct Turn(#[allow(dead_code)] Option<LockFile>);

impl Turn {
    /// Waits for it, at most [`PATIENCE`]. What is asked for is done without it then, and where there can be no lock: a full
    /// disk or somebody who hangs must not keep a container from being killed.
    pub fn take(record: &Record) -> Turn {
        Turn(LockFile::lock_for(&record.dir.join(FILE), PATIENCE).ok().flatten())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::runtime::state::tests::sample;

    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let record = sample(dir.path());
        let turn = Turn::take(&record);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(Turn::take(&record)));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            drop(turn);
            waiting.join().unwrap();
        });
    }

    #[test]
    fn without_a_lock_it_is_anybodys_turn() {
        let dir = tempfile::tempdir().unwrap();
        let record = sample(&dir.path().join("none"));
        let begun = Instant::now();
        let _turns = [Turn::take(&record), Turn::take(&record)];
        assert!(begun.elapsed() < PATIENCE);
    }
}
