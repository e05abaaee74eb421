//! The event stream of one container: statistics at an interval, and out-of-memory kills as they happen.

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

use super::error::{On, RuntimeError};
use super::members;
use super::state::Record;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It is time for statistics.
    Tick,
    /// The kernel killed a process of the container for want of memory.
    Oom,
    /// The container has ended.
    Ended,
}

/// A container's events.
#[derive(Debug)]
pub struct Events {
    init: Option<crate::sys::proc::PidFd>,
    oom: Option<Oom>,
    next_tick: Instant,
    interval: Duration,
}

#[derive(Debug)]
enum Oom {
    /// An eventfd that the v1 memory controller writes to; the control file must stay open.
    V1(fs::File, #[allow(dead_code)] fs::File),
    /// v2 counts in a file that can be watched.
    V2 { watch: OwnedFd, file: PathBuf, seen: u64 },
}

impl Events {
    /// Watches the container of `record`.
    pub fn watch(record: &Record, interval: Duration) -> Result<Events, RuntimeError> {
        let ended = || RuntimeError::IsNotRunning(record.id.to_string());
        let init = record.init()?.ok_or_else(ended)?;
        let v1 = record.cgroups.iter().find(|d| d.has("memory"));
        let v2 = record.cgroups.iter().find(|d| d.is_v2() && d.path.join("memory.events").exists());
        let oom = match (v1, v2) {
            (Some(dir), _) => Oom::watch_v1(&dir.path).map(Some),
            (None, Some(dir)) => Oom::watch_v2(&dir.path).map(Some),
            // Without a memory controller nothing is killed on its account.
            (None, None) => Ok(None),
        };
        let oom = oom.map_err(|err| record.or_gone(err, ended()))?;
        Ok(Events { init: Some(init), oom, next_tick: Instant::now() + interval, interval })
    }

    /// Waits for the next event; after [`Event::Ended`] there is no other.
    pub fn wait(&mut self) -> Result<Event, RuntimeError> {
        loop {
            let Some(init) = &self.init else { return Ok(Event::Ended) };
            let left = self.next_tick.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut fds = vec![PollFd::from_borrowed_fd(init.as_fd(), PollFlags::IN)];
            fds.extend(self.oom.as_ref().map(|oom| PollFd::from_borrowed_fd(oom.fd(), PollFlags::IN)));
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => {
                    self.next_tick += self.interval;
                    return Ok(Event::Tick);
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(err) => return Err(err).during("poll"),
            }
            let ready: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
            drop(fds);
            // A kill for memory is told before the end that it causes. On v2 the kernel tells of a change at most every 10 ms,
            // so the end may be seen first.
            if (ready[0] || ready.get(1) == Some(&true)) && self.oom.as_mut().is_some_and(Oom::happened) {
                return Ok(Event::Oom);
            }
            if ready[0] {
                self.init = None;
                return Ok(Event::Ended);
            }
        }
    }
}

impl Oom {
    fn watch_v1(dir: &Path) -> Result<Oom, RuntimeError> {
        let control_path = dir.join("memory.oom_control");
        let control = fs::File::open(&control_path).on("open", &control_path)?;
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).during("eventfd")?;
        let register = dir.join("cgroup.event_control");
        members::write(&register, &format!("{} {}", event.as_raw_fd(), control.as_raw_fd())).on("write", &register)?;
        Ok(Oom::V1(event.into(), control))
    }

    fn watch_v2(dir: &Path) -> Result<Oom, RuntimeError> {
        let file = dir.join("memory.events");
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let watch = inotify::init(flags).during("inotify_init")?;
        inotify::add_watch(&watch, &file, inotify::WatchFlags::MODIFY).on("watch", &file)?;
        let seen = kills(&file);
        Ok(Oom::V2 { watch, file, seen })
    }

    fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Oom::V1(event, _) => event.as_fd(),
            Oom::V2 { watch, .. } => watch.as_fd(),
        }
    }

    /// Reads what made the descriptor readable. The removal of a v1 cgroup also does; its directory is gone then.
    fn happened(&mut self) -> bool {
        match self {
            Oom::V1(event, control) => {
                let mut count = [0u8; 8];
                event.read_exact(&mut count).is_ok() && {
                    let mut text = String::new();
                    control.try_clone().is_ok_and(|mut c| c.read_to_string(&mut text).is_ok())
                }
            }
            Oom::V2 { watch, file, seen } => {
                let mut buffer = [0u8; 1024];
                // Only to make it unreadable; the file says what happened.
                let _ = rustix::io::read(&*watch, &mut buffer);
                let now = kills(file);
                let more = now > *seen;
                *seen = now;
                more
            }
        }
    }
}

fn kills(file: &Path) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().find_map(|l| l.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end was seen before the kernel told of the kill, and the kill was never told.
    #[test]
    fn a_kill_for_memory_is_told_before_the_end_though_it_is_notified_later() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory.events");
        crate::durable::replace_unsynced(&file, b"oom 1\noom_kill 1\n", 0o644).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let init = crate::sys::proc::PidFd::of(child.id() as i32).unwrap();
        // Nothing is watched, so nothing is notified.
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
        let long = Duration::from_secs(60);
        let oom = Some(Oom::V2 { watch, file, seen: 0 });
        let mut events = Events { init: Some(init), oom, next_tick: Instant::now() + long, interval: long };
        assert!(matches!(events.wait().unwrap(), Event::Oom));
        assert!(matches!(events.wait().unwrap(), Event::Ended));
        child.wait().unwrap();
    }
}
