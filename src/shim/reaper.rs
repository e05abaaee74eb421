//! Every child of the shim, reaped in one place: the runtime's processes, which it starts, and the containers' and execs',
//! which are handed to it as the nearest subreaper when the runtime that started them has ended.
//!
//! The pid of such an orphan is known only after it may have ended. Who waits for one to appear opens a [`Nursery`] first:
//! ends that nobody was waiting for are kept for as long as a nursery is open.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// A process's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, or 128 and the signal that killed it.
    pub code: u32,
    /// When it was reaped.
    pub at: SystemTime,
}

/// The end of one child. An error means that the shim itself is ending.
pub type ExitReceiver = oneshot::Receiver<Exit>;

#[derive(Debug, Default)]
struct Children {
    waiting: HashMap<u32, oneshot::Sender<Exit>>,
    /// Ends of children that nobody waited for, while a nursery is open.
    early: HashMap<u32, Exit>,
    nurseries: usize,
}

/// Reaps the shim's children.
#[derive(Debug, Clone, Default)]
pub struct Reaper(Arc<Mutex<Children>>);

/// While it lives no end of an unknown child is forgotten.
#[derive(Debug)]
pub struct Nursery(Reaper);

impl Reaper {
    /// Begins to reap, in a task of the running tokio runtime.
    ///
    /// # Errors
    /// If the handler for SIGCHLD could not be installed.
    pub fn start() -> io::Result<Reaper> {
        let reaper = Reaper::default();
        let mut children_ended = signal(SignalKind::child())?;
        let this = reaper.clone();
        tokio::spawn(async move {
            loop {
                this.reap();
                if children_ended.recv().await.is_none() {
                    return;
                }
            }
        });
        Ok(reaper)
    }

    /// Starts a command. Its end comes through the receiver; [`std::process::Child`] is never waited for.
    pub fn spawn(&self, command: &mut Command) -> io::Result<(u32, ExitReceiver)> {
        // Nothing is reaped between the start and the entry.
        let mut children = self.lock();
        let pid = command.spawn()?.id();
        let (sender, receiver) = oneshot::channel();
        children.waiting.insert(pid, sender);
        Ok((pid, receiver))
    }

    /// Sends SIGKILL to a child, if it has not been reaped: by its pid there may be another process by then.
    pub fn kill(&self, pid: u32) {
        // Nothing is reaped meanwhile.
        let children = self.lock();
        if children.waiting.contains_key(&pid) {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            // A child that has ended is one as long as it is not reaped: it can be killed, to no effect.
            let _ = pid.map(|pid| rustix::process::kill_process(pid, Signal::KILL));
        }
    }

    /// To be opened before a process is started that will be handed to the shim.
    pub fn nursery(&self) -> Nursery {
        self.lock().nurseries += 1;
        Nursery(self.clone())
    }

    fn reap(&self) {
        let mut children = self.lock();
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
            let Some(code) = code else { continue };
            let exit = Exit { code: u32::try_from(code).unwrap_or(255), at: SystemTime::now() };
            let pid = Pid::as_raw(Some(pid)).unsigned_abs();
            match children.waiting.remove(&pid) {
                // Who waited may have given up.
                Some(sender) => drop(sender.send(exit)),
                None if children.nurseries > 0 => drop(children.early.insert(pid, exit)),
                None => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Children> {
        // Each change of the maps is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Nursery {
    /// The end of a child that was handed to the shim while the nursery was open, whether it is still to come or not.
    pub fn adopt(&self, pid: u32) -> ExitReceiver {
        let (sender, receiver) = oneshot::channel();
        let mut children = self.0.lock();
        match children.early.remove(&pid).filter(|_| !is_child(pid)) {
            Some(exit) => drop(sender.send(exit)),
            None => drop(children.waiting.insert(pid, sender)),
        }
        receiver
    }
}

/// Whether this is a child that has not been reaped. A nursery can be open for long, and pids come again: an end that was
/// kept is then one of another process that had this pid before.
fn is_child(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(rustix::process::waitid(WaitId::Pid(pid), options), Err(Errno::CHILD))
}

impl Drop for Nursery {
    fn drop(&mut self) {
        let mut children = self.0.lock();
        children.nurseries -= 1;
        if children.nurseries == 0 {
            children.early.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The test program has children of other tests: only these are named. `reap` would take theirs, so it is not called.
    #[test]
    fn an_end_before_the_pid_is_known_is_kept_while_a_nursery_is_open() {
        let reaper = Reaper::default();
        let exit = Exit { code: 3, at: SystemTime::now() };
        let nursery = reaper.nursery();
        let other = reaper.nursery();
        reaper.lock().early.insert(7, exit);
        drop(other);
        assert_eq!(nursery.adopt(7).try_recv(), Ok(exit));
        assert!(nursery.adopt(7).try_recv().is_err(), "an end is told once");
        reaper.lock().early.insert(8, exit);
        drop(nursery);
        assert!(reaper.lock().early.is_empty());
    }

    /// A process that lives was taken for ended, since one that had its pid before had ended while the nursery was open.
    #[test]
    fn an_end_of_another_process_with_the_same_pid_is_not_told() {
        let reaper = Reaper::default();
        let nursery = reaper.nursery();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        reaper.lock().early.insert(child.id(), Exit { code: 3, at: SystemTime::now() });
        let mut end = nursery.adopt(child.id());
        let told = end.try_recv();
        child.kill().unwrap();
        child.wait().unwrap();
        told.unwrap_err();
        assert!(reaper.lock().waiting.contains_key(&child.id()));
    }

    /// The process of a pid that is not the shim's child any more is somebody else's.
    #[test]
    fn only_a_child_that_is_not_reaped_is_killed() {
        let reaper = Reaper::default();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        reaper.kill(child.id());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(child.try_wait().unwrap(), None);
        let _end = reaper.nursery().adopt(child.id());
        reaper.kill(child.id());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
    }
}
