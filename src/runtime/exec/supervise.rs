//! Watching a command: signals go to it, a timeout ends it, and what it left running is ended with it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::budget::{Budget, Over};
use super::cgroup::{KILL_PATIENCE, Usage};
use super::strays::Strays;
use super::{ExecError, Running, sys};
use crate::runtime::members::Killed;
use crate::runtime::relay::Relay;
use crate::sys::SysError;
use crate::sys::proc::written_bytes;
use crate::sys::process::{Exit, peek};
use crate::terms::{EndKind, Orphans};

/// How long a command has between SIGTERM and SIGKILL when its time is up.
pub const GRACE: Duration = Duration::from_secs(5);

/// How long a command runs before its supervisor does what is best done while nobody waits for it.
const IDLE_AFTER: Duration = Duration::from_millis(20);

/// The rules for one command.
#[derive(Debug)]
pub struct Limits {
    /// How long it may run.
    pub timeout: Option<Duration>,
    /// What becomes of what it leaves running.
    pub orphans: Orphans,
    /// What its layer may take on disk.
    pub budget: Option<Budget>,
    /// Where its processes can have gone besides.
    pub strays: Option<Strays>,
}

/// A command that has ended, and all that it started with it.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub kind: EndKind,
    /// What the supervisor exits with: the command's code, 128 + signal, or 124 for a timeout.
    pub code: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Processes that it left running and that were killed.
    pub survivors: u32,
    /// Whether every process of the exec is gone. If not, its layer may still change.
    pub all_gone: bool,
    /// The limit of its layer that it exceeded: it was ended for that, and its layer is not to be kept.
    pub over: Option<Over>,
    /// What it used.
    pub usage: Usage,
    /// Wall clock time from start to the end of the command.
    pub wall: Duration,
}

/// The code that timeout(1) made known.
const TIMEOUT_CODE: u8 = 124;
/// The code of one that was killed, also where it had ended by itself when its layer was found to be too large.
const OVER_CODE: u8 = 128 + libc::SIGKILL as u8;

/// Waits for the command's end, but does not reap it.
///
/// The kernel lets the first process of a pid namespace end only when all others in it have been reaped. As long as the
/// command is not, the container's end is not seen, so an engine hears of the exec's end first, result and all; in the
/// other order Docker forgets the exec. The command is left to whoever takes the supervisor's children over (the shim).
///
/// `terminal` is the master of its terminal, where this process passes on its own. `idle` is called once, if the command
/// runs for longer than most.
pub fn supervise(
    running: Running,
    limits: Limits,
    terminal: Option<OwnedFd>,
    idle: impl FnOnce(),
) -> Result<Ended, ExecError> {
    let begun = running.started;
    let mut relay = terminal.map(|master| sys("pass on the terminal", Relay::start(master))).transpose()?;
    let deadline = limits.timeout.map(|t| begun + t);
    let Limits { budget, strays, .. } = limits;
    let mut watch = Watch { running: &running, deadline, terminated: None, budget, over: None, strays, written: 0 };
    let exit = watch.until_end(relay.as_mut(), idle)?;
    let wall = begun.elapsed();
    let timed_out = watch.terminated.is_some();

    let emptied = match limits.orphans {
        Orphans::Kill => watch.kill(),
        Orphans::Wait => watch.until_empty(relay.as_mut()),
    };
    let (survivors, all_gone) = match emptied {
        Ok(killed) => (killed.seen, killed.left.is_none()),
        // The command has its end and its code all the same; a group that can't be read may not be empty.
        Err(err) => {
            tracing::warn!(error = %err, "the exec's cgroup could not be emptied");
            (0, false)
        }
    };
    if let Some(relay) = relay {
        // Whose time is up, or whose layer is full, has its end told, whoever stands still.
        let ours = watch.terminated.is_some() || watch.over.is_some();
        relay.finish(ours.then_some(GRACE));
    }
    if all_gone && watch.over.is_none() {
        watch.over = watch.budget.as_mut().and_then(Budget::last_look);
    }
    let mut usage = running.cgroup.usage();
    // Of the command while it is not reaped; its children's once it has waited for them.
    usage.written = written_bytes(running.pid).map(|own| own + watch.written);
    usage.user_ns = usage.user_ns.or(Some(exit.user_ns));
    usage.system_ns = usage.system_ns.or(Some(exit.system_ns));
    if all_gone {
        running.cgroup.remove()?;
    }
    let over = watch.over;
    let (kind, code) = match over {
        Some(_) => (EndKind::Error, OVER_CODE),
        None => classify(&exit, timed_out, usage.oom_kills.unwrap_or(0) > 0),
    };
    Ok(Ended { kind, code, signal: exit.signal, survivors, all_gone, over, usage, wall })
}

/// Tells the ends apart. A command that the kernel killed for memory dies of SIGKILL, or reports 137 for a child that did.
fn classify(exit: &Exit, timed_out: bool, oom: bool) -> (EndKind, u8) {
    let code = exit.exit_code();
    match exit.signal {
        _ if timed_out => (EndKind::Timeout, TIMEOUT_CODE),
        _ if oom && code == 128 + libc::SIGKILL as u8 => (EndKind::Oom, code),
        Some(_) => (EndKind::Signaled, code),
        None => (EndKind::Exited, code),
    }
}

struct Watch<'a> {
    running: &'a Running,
    deadline: Option<Instant>,
    /// When SIGTERM was sent because the time was up.
    terminated: Option<Instant>,
    budget: Option<Budget>,
    over: Option<Over>,
    strays: Option<Strays>,
    /// What processes had written that were killed, and so are in no other process's account.
    written: u64,
}

impl Watch<'_> {
    /// Until the command itself has ended.
    fn until_end(&mut self, mut relay: Option<&mut Relay>, idle: impl FnOnce()) -> Result<Exit, ExecError> {
        let mut idle = Some(idle);
        loop {
            if let Some(exit) = sys("wait for the command", peek(self.running.pid))? {
                return Ok(exit);
            }
            let left = IDLE_AFTER.saturating_sub(self.running.started.elapsed());
            if left.is_zero()
                && let Some(idle) = idle.take()
            {
                idle();
            }
            self.step(relay.as_deref_mut(), true, idle.is_some().then_some(left))?;
        }
    }

    /// Until nothing that the command started runs any more; signals and the timeout still hold.
    fn until_empty(&mut self, mut relay: Option<&mut Relay>) -> Result<Killed, ExecError> {
        let mut pause = Duration::from_millis(1);
        loop {
            if self.terminated.is_some() || self.over.is_some() {
                return self.kill();
            }
            if self.running.cgroup.is_empty()? {
                // Those that moved themselves out of the group have not waited to be waited for.
                return self.kill();
            }
            self.step(relay.as_deref_mut(), false, Some(pause))?;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Kills every process of the exec.
    fn kill(&mut self) -> Result<Killed, ExecError> {
        let (command, written) = (self.running.pid, &mut self.written);
        let mut note = |pid| {
            if pid != command {
                *written += written_bytes(pid).unwrap_or(0);
            }
        };
        let killed = self.running.cgroup.kill_noting(&mut note)?;
        let Some(strays) = &self.strays else { return Ok(killed) };
        let more = strays.kill(KILL_PATIENCE, note)?;
        Ok(Killed { seen: killed.seen + more.seen, left: killed.left.or(more.left) })
    }

    /// One wait for whatever comes first, and what it asks for.
    fn step(&mut self, relay: Option<&mut Relay>, alive: bool, at_most: Option<Duration>) -> Result<(), ExecError> {
        let now = Instant::now();
        let next = match self.terminated {
            Some(at) => Some(at + GRACE),
            None => self.deadline,
        };
        let look = self.budget.as_ref().filter(|_| self.over.is_none()).map(|budget| budget.due_in(now));
        let wait = [next.map(|t| t.saturating_duration_since(now)), at_most, look].into_iter().flatten().min();
        let timeout = wait.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: d.subsec_nanos().into() });
        let mut fds = vec![PollFd::new(&self.running.signals, PollFlags::IN)];
        if alive {
            fds.push(PollFd::from_borrowed_fd(self.running.pidfd.as_fd(), PollFlags::IN));
        }
        let first_of_relay = fds.len();
        if let Some(relay) = &relay {
            relay.watch(&mut fds);
        }
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return sys("wait for the command", Err(SysError::new("poll", "the command", e))),
        }
        let ready: Vec<bool> = fds[first_of_relay..].iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        while let Some(signal) = sys("read a signal", self.running.signals.next())? {
            self.forward(signal, relay.as_deref());
        }
        if let Some(relay) = relay {
            relay.pump(&ready);
        }
        self.enforce(Instant::now());
        Ok(())
    }

    fn forward(&self, signal: i32, relay: Option<&Relay>) {
        match signal {
            // Ours: children, urgent data of sockets, pipes that a reader closed.
            libc::SIGCHLD | libc::SIGURG | libc::SIGPIPE => {}
            libc::SIGWINCH if relay.is_some() => {
                if let Some(relay) = relay {
                    relay.resize();
                }
            }
            // A command that has just ended takes no signal, and that is no error.
            _ => drop(self.running.pidfd.send(signal)),
        }
    }

    fn enforce(&mut self, now: Instant) {
        match self.terminated {
            None if self.deadline.is_some_and(|t| now >= t) => {
                // What it does not reach is killed after the grace.
                let _ = self.running.cgroup.signal(libc::SIGTERM);
                self.terminated = Some(now);
            }
            Some(at) if now >= at + GRACE => drop(self.kill()),
            _ => {}
        }
        let cgroup = &self.running.cgroup;
        if self.over.is_none()
            && let Some(over) = self.budget.as_mut().and_then(|budget| budget.look(now, || cgroup.processes()))
        {
            self.over = Some(over);
            // At once: in the time that a timeout gives, the host's disk could be filled.
            drop(self.kill());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart() {
        let exit = |code, signal| Exit { code, signal, user_ns: 0, system_ns: 0 };
        for (e, timed_out, oom, want) in [
            (exit(Some(0), None), false, false, (EndKind::Exited, 0)),
            (exit(Some(3), None), false, false, (EndKind::Exited, 3)),
            (exit(Some(137), None), false, false, (EndKind::Exited, 137)),
            (exit(Some(137), None), false, true, (EndKind::Oom, 137)),
            (exit(Some(1), None), false, true, (EndKind::Exited, 1)),
            (exit(None, Some(9)), false, false, (EndKind::Signaled, 137)),
            (exit(None, Some(9)), false, true, (EndKind::Oom, 137)),
            (exit(None, Some(15)), false, false, (EndKind::Signaled, 143)),
            (exit(None, Some(15)), true, false, (EndKind::Timeout, 124)),
            (exit(Some(0), None), true, true, (EndKind::Timeout, 124)),
        ] {
            assert_eq!(classify(&e, timed_out, oom), want);
        }
    }
}
