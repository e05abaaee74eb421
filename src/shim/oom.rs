//! Whether processes of a container were killed for want of memory: told while it runs, and again on demand, so that the
//! event for it comes before that of the process's end.
//!
//! v2 counts such kills in the container's group for all below it, and wakes who polls the file. v1 counts them in the group
//! of the very process, which for an exec's is gone soon after, and wakes who registered an eventfd, also when only a group
//! above was out of memory and somebody else was killed. So on v1 a wake-up counts if a counter shows a kill, or if the group
//! above was not woken with the container's: then it was the container's own limit.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::EventfdFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::ShimError;
use super::cgroup::CgroupPaths;
use crate::sys::cgroup::Files;
use crate::sys::watch::watch_for;

/// Kills that come faster are told as one.
const APART: Duration = Duration::from_millis(100);
/// How long after a v1 wake-up, which comes before the kill, the counters are looked at.
const COUNTED_WITHIN: Duration = Duration::from_millis(100);
/// How long after a v2 wake-up the counter is looked at again and again: the kernel wakes at once when the limit is reached, and
/// of the kill soon after only 10 ms later. By then systemd may have removed the group of a container that has ended of it.
const KILLED_WITHIN: Duration = Duration::from_millis(50);
/// How often it is looked whether a v2 group is still there: the kernel does not tell who polls.
const GONE_EVERY: Duration = Duration::from_secs(60);
/// How many groups below the container's are looked at: it may be able to make as many as it likes.
const MAX_GROUPS: usize = 256;

/// A watch of one container.
#[derive(Debug)]
pub struct Watch {
    source: Source,
    /// Before this nothing is told.
    quiet_until: Instant,
}

#[derive(Debug)]
enum Source {
    /// The host does not account for memory.
    None,
    V1(V1),
    V2(V2),
}

#[derive(Debug)]
struct V1 {
    dir: PathBuf,
    own: AsyncFd<OwnedFd>,
    /// How often it has been woken.
    woken: u64,
    /// The same of the group above; none where that is the hierarchy's root, which has no limit.
    above: Option<OwnedFd>,
    above_woken: u64,
    /// How many wake-ups by the container's own limit have been told, or explained by a counter.
    told: u64,
    /// A wake-up of which it is not known yet what it was.
    pending: bool,
    /// By inode number, how many kills each group had counted.
    counted: HashMap<u64, u64>,
}

#[derive(Debug)]
struct V2 {
    dir: PathBuf,
    events: AsyncFd<OwnedFd>,
    kills: u64,
}

impl Watch {
    /// Begins to watch, in the running tokio runtime. What was killed before is not told.
    ///
    /// # Errors
    /// If the kernel refuses to tell; [`ShimError::NotFound`] if the cgroup is gone.
    pub fn new(cgroups: &CgroupPaths) -> Result<Watch, ShimError> {
        if !cgroups.exist() {
            return Err(ShimError::NotFound("cgroup of the container".into()));
        }
        let source = match (cgroups.is_v2(), cgroups.files("memory").0) {
            (true, Some(dir)) if dir.join("memory.events").exists() => Source::V2(V2::new(dir)?),
            (false, Some(dir)) => Source::V1(V1::new(dir)?),
            _ => Source::None,
        };
        Ok(Watch { source, quiet_until: Instant::now() })
    }

    /// Waits until a process of the container, or of one of its execs, was killed for want of memory: true. False once the
    /// cgroup is gone. Waiting can be given up at any time, and nothing is lost by it.
    pub async fn next(&mut self) -> bool {
        sleep_until(self.quiet_until).await;
        let killed = match &mut self.source {
            Source::None => std::future::pending().await,
            Source::V1(v1) => v1.next().await,
            Source::V2(v2) => v2.next().await,
        };
        if killed {
            self.quiet_until = Instant::now() + APART;
        }
        killed
    }

    /// Whether that happened since it was last told, by this or by [`Watch::next`]. Reads a few files, and never waits: for
    /// the moment before the event of a process's end.
    pub fn killed_since_last(&mut self) -> bool {
        match &mut self.source {
            Source::None => false,
            Source::V1(v1) => v1.look() || v1.is_own_limit(),
            Source::V2(v2) => v2.look(),
        }
    }
}

impl V1 {
    fn new(dir: &Path) -> Result<V1, ShimError> {
        let own = watch_for(eventfd_of(dir)?, Interest::READABLE).map_err(|err| gone_or(dir)(err.into()))?;
        // Without it a neighbour's kill may be told as the container's.
        let above = dir.parent().and_then(|above| eventfd_of(above).ok());
        let counted = HashMap::new();
        let mut watch =
            V1 { dir: dir.to_owned(), own, woken: 0, above, above_woken: 0, told: 0, pending: false, counted };
        watch.count();
        Ok(watch)
    }

    async fn next(&mut self) -> bool {
        loop {
            if self.pending || self.drain() {
                // A wait that is given up here is taken up again by the next call.
                if let Some(killed) = self.settle().await {
                    return killed;
                }
                continue;
            }
            if !self.exists() {
                return false;
            }
            match self.own.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                // The runtime is being shut down.
                Err(_) => return false,
            }
        }
    }

    /// What came of a wake-up. `None` if it was another's.
    async fn settle(&mut self) -> Option<bool> {
        let (begun, mut pause) = (Instant::now(), Duration::from_millis(1));
        loop {
            if self.look() {
                return Some(true);
            }
            // The group's removal wakes, too.
            if !self.exists() {
                return Some(false);
            }
            if begun.elapsed() > COUNTED_WITHIN {
                return self.is_own_limit().then_some(true);
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Takes wake-ups out of the descriptors; whether there is one that nobody has explained yet.
    fn drain(&mut self) -> bool {
        // The kernel wakes the group above first: in this order no wake-up of both is taken for one of this alone.
        let fresh = taken(self.own.get_ref());
        self.woken += fresh;
        self.above_woken += self.above.as_ref().map_or(0, taken);
        self.pending |= fresh > 0;
        self.pending
    }

    /// Whether a counter shows a kill that has not been told.
    fn look(&mut self) -> bool {
        self.drain();
        let killed = self.count() > 0;
        if killed {
            // It explains what there was of wake-ups.
            self.pending = false;
            self.told = self.told.max(self.by_own_limit());
        }
        killed
    }

    fn by_own_limit(&self) -> u64 {
        self.woken.saturating_sub(self.above_woken)
    }

    /// Whether a wake-up that no counter explains was for the container's own limit: the killed process was of an exec
    /// whose group is gone by now. The wake-up of the container's removal is none.
    fn is_own_limit(&mut self) -> bool {
        self.pending = false;
        let by_own_limit = self.by_own_limit();
        let fresh = by_own_limit > self.told;
        self.told = self.told.max(by_own_limit);
        fresh && self.exists()
    }

    fn exists(&self) -> bool {
        self.dir.join("memory.oom_control").exists()
    }

    /// How many kills the container's group, and those below it, have counted since this was last called.
    fn count(&mut self) -> u64 {
        let (mut counted, mut fresh) = (HashMap::new(), 0);
        let mut todo = vec![self.dir.clone()];
        while let Some(dir) = todo.pop() {
            let Ok(inode) = fs::metadata(&dir).map(|meta| meta.ino()) else { continue };
            let kills = Files(Some(&dir)).pairs("memory.oom_control").value("oom_kill");
            fresh += kills.saturating_sub(self.counted.get(&inode).copied().unwrap_or(0));
            counted.insert(inode, kills);
            let below = fs::read_dir(&dir).into_iter().flatten().flatten();
            let below =
                below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path());
            todo.extend(below.take(MAX_GROUPS.saturating_sub(counted.len() + todo.len())));
        }
        self.counted = counted;
        fresh
    }
}

/// An eventfd that the kernel adds one to when the group, or one above it, is out of memory, and when it is removed.
fn eventfd_of(dir: &Path) -> Result<OwnedFd, ShimError> {
    let made = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let eventfd =
        made.map_err(|errno| ShimError::Io { doing: "make", path: "an eventfd".into(), source: errno.into() })?;
    let path = dir.join("memory.oom_control");
    let control = File::open(&path).map_err(gone_or(&path))?;
    let path = dir.join("cgroup.event_control");
    let line = format!("{} {}", eventfd.as_raw_fd(), control.as_raw_fd());
    let registered = File::options().write(true).open(&path).and_then(|mut file| file.write_all(line.as_bytes()));
    registered.map_err(gone_or(&path))?;
    Ok(eventfd)
}

/// What has been added to an eventfd since it was last asked.
fn taken(eventfd: &OwnedFd) -> u64 {
    let mut count = [0u8; 8];
    match rustix::io::read(eventfd, &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        // Nothing.
        _ => 0,
    }
}

impl V2 {
    fn new(dir: &Path) -> Result<V2, ShimError> {
        let path = dir.join("memory.events");
        let events = File::open(&path).map_err(gone_or(&path))?.into();
        // Not by inotify, of which a user has 128 instances by default, as many as there may be containers.
        let events = watch_for(events, Interest::PRIORITY).map_err(|err| gone_or(&path)(err.into()))?;
        let mut watch = V2 { dir: dir.to_owned(), events, kills: 0 };
        watch.look();
        Ok(watch)
    }

    async fn next(&mut self) -> bool {
        loop {
            if self.look() {
                return true;
            }
            if !self.dir.join("memory.events").exists() {
                return false;
            }
            match timeout(GONE_EVERY, self.events.ready(Interest::PRIORITY)).await {
                Ok(Ok(mut ready)) => {
                    ready.clear_ready();
                    if self.soon().await {
                        return true;
                    }
                }
                Ok(Err(_)) => return false,
                // Only to look whether it is still there.
                Err(_) => {}
            }
        }
    }

    /// Whether the counter grows within a moment.
    async fn soon(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < KILLED_WITHIN {
            if self.look() {
                return true;
            }
            sleep(Duration::from_millis(1)).await;
        }
        false
    }

    /// Whether the counter has grown.
    fn look(&mut self) -> bool {
        let text = read_again(self.events.get_ref());
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        kills.is_some_and(|kills: u64| kills > std::mem::replace(&mut self.kills, kills))
    }
}

/// The file from its beginning; that also arms the poll anew. Empty if its group is gone.
fn read_again(file: &OwnedFd) -> String {
    let mut buffer = [0u8; 512];
    let length = rustix::io::pread(file, &mut buffer, 0).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

/// A `map_err` for the files of a group, which may have been removed.
fn gone_or(path: &Path) -> impl FnOnce(std::io::Error) -> ShimError {
    move |err| match err.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV) => ShimError::NotFound("cgroup of the container".into()),
        _ => ShimError::io("watch", path)(err),
    }
}
