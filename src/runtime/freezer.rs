//! Whose turn it is with a container's freezer.
//!
//! Whoever signals all processes of a container may freeze them for a moment, so that none forks away. To the kernel that is
//! the same as a pause. So whoever freezes or thaws has a lock meanwhile, and who finds a container frozen waits for that one
//! before it is taken for paused ([`Record::status`]); and nobody thaws for another what that one has just paused.
//!
//! Who freezes for a moment notes it in the lock's file: its size is 1 then, and 0 else. One that was killed meanwhile has left
//! the note, and the next one whose turn it is thaws: nobody has paused the container, and nobody would resume it.

use std::time::Duration;

use super::cgroup;
use super::state::Record;
use crate::durable::LockFile;

/// The lock's file in the container's state directory.
const FILE: &str = "freezer.lock";
/// How long another's turn is waited for. Freezing takes milliseconds, unless a process is stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(2);

/// A turn, until it is dropped or the process ends in whatever way.
#[derive(Debug)]
#[must_use = "the turn is over once this is dropped"]
pub(super) struct Turn {
    lock: Option<LockFile>,
    noted: bool,
}

impl Turn {
    /// Waits for it, at most [`PATIENCE`]. What is asked for is done without it then, and where there can be no lock: a full
    /// disk or somebody who hangs must not keep a container from being killed.
    pub fn take(record: &Record) -> Turn {
        let turn = Turn { lock: LockFile::lock_for(&record.dir.join(FILE), PATIENCE).ok().flatten(), noted: false };
        // Where it can't be thawed, the next one tries again.
        if turn.has_note() && cgroup::freeze(&record.cgroups, false).is_ok() {
            turn.note(false);
        }
        turn
    }

    /// The same for whoever may freeze the processes for a moment to send them `signal`. A paused container stays so, if it is
    /// not to be killed.
    pub fn take_to_signal(record: &Record, signal: i32) -> Turn {
        let mut turn = Turn::take(record);
        if signal == libc::SIGKILL || !cgroup::is_frozen(&record.cgroups) {
            turn.noted = turn.note(true);
        }
        turn
    }

    fn has_note(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| rustix::fs::fstat(lock).is_ok_and(|stat| stat.st_size != 0))
    }

    /// Makes the note or takes it away; whether there was a file for it. A size takes no space: a full disk has it too.
    fn note(&self, made: bool) -> bool {
        self.lock.as_ref().is_some_and(|lock| rustix::fs::ftruncate(lock, made.into()).is_ok())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.noted {
            // One that stays has somebody thaw what is thawed.
            let _ = self.note(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::durable;
    use crate::runtime::cgroup::CgroupDir;
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

    /// Who was killed while it signalled all left a container that nobody had paused, and that stayed so.
    #[test]
    fn what_a_killed_one_left_frozen_is_thawed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("freezer.state");
        let group = CgroupDir { controllers: "freezer".into(), path: dir.path().to_owned() };
        let record = Record { cgroups: vec![group], ..sample(dir.path()) };
        let frozen = || std::fs::read_to_string(&file).unwrap() == "FROZEN";
        let freeze = || cgroup::freeze(&record.cgroups, true).unwrap();
        // The kernel lets go of the lock, and no more.
        let killed = |mut turn: Turn| turn.noted = false;
        durable::replace_unsynced(&file, b"THAWED", 0o600).unwrap();

        let turn = Turn::take_to_signal(&record, libc::SIGTERM);
        freeze();
        killed(turn);
        drop(Turn::take(&record));
        assert!(!frozen());

        freeze();
        drop(Turn::take(&record));
        drop(Turn::take_to_signal(&record, libc::SIGKILL));
        killed(Turn::take_to_signal(&record, libc::SIGTERM));
        drop(Turn::take(&record));
        assert!(frozen(), "it is paused");

        killed(Turn::take_to_signal(&record, libc::SIGKILL));
        drop(Turn::take(&record));
        assert!(!frozen(), "a frozen process would not even die");
    }
}
