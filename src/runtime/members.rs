//! The processes of some cgroups and of all that is nested in them: found, signalled, killed, and the groups removed.
//!
//! A container's groups and an exec's are treated alike. Groups are given as directories, one in each hierarchy; what a
//! hierarchy can do (freeze, kill at once) is seen by the files that the directory has.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::error::{Classify, Kind};
use crate::sys::SysError;
use crate::sys::mount::fd_path;
use crate::sys::proc::{self, PidFd};

/// How long a group may stay busy after its last process has gone.
const REMOVABLE_WITHIN: Duration = Duration::from_secs(10);
/// How long processes get to freeze before they are signalled all the same.
const FROZEN_WITHIN: Duration = Duration::from_millis(5);
/// The longest path, in bytes, to which a name (255) and a file's are still added: the kernel takes 4095.
const LONG: usize = 3500;
/// How many pidfds are open at a time.
const BATCH: usize = 64;

/// An operation on a group that failed.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {path}: {source}")]
pub struct CgroupError {
    /// What was done, as a verb and its object.
    pub doing: &'static str,
    /// The directory or file.
    pub path: PathBuf,
    /// The kernel's answer.
    #[source]
    pub source: io::Error,
}

impl Classify for CgroupError {
    fn kind(&self) -> Kind {
        Kind::of_io(&self.source)
    }
}

/// Names the operation that failed.
pub(super) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError { doing, path, source }
}

/// Writes one value to a control file, which must exist.
pub fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// True for what a call says of a group that has been removed.
pub(super) fn is_gone(err: &io::Error) -> bool {
    matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

/// A group on the way down.
struct Level {
    /// Its path.
    path: PathBuf,
    /// What those of its children begin with: its path too, or a short one for the same directory.
    base: PathBuf,
    children: Vec<OsString>,
    /// What the short one stands for.
    _held: Option<OwnedFd>,
}

impl Level {
    fn enter(path: PathBuf) -> Result<Level, CgroupError> {
        let mut level = Level { base: path.clone(), path, children: Vec::new(), _held: None };
        // Whoever manages a group can nest groups below it deeper than a path can be long.
        if level.path.as_os_str().len() > LONG {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::open(&level.path, flags, Mode::empty()).map_err(io::Error::from) {
                Ok(dir) => {
                    level.base = fd_path(dir.as_fd()).into();
                    level._held = Some(dir);
                }
                Err(err) if is_gone(&err) => return Ok(level),
                Err(err) => return Err(failed("open", &level.path)(err)),
            }
        }
        // cgroupfs counts a directory's links as older filesystems do: two, and one for each directory in it.
        if fs::metadata(&level.base).is_ok_and(|meta| meta.nlink() == 2) {
            return Ok(level);
        }
        let entries = match fs::read_dir(&level.base) {
            Ok(entries) => entries,
            Err(err) if is_gone(&err) => return Ok(level),
            Err(err) => return Err(failed("read directory", &level.path)(err)),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(err) if is_gone(&err) => break,
                Err(err) => return Err(failed("read directory", &level.path)(err)),
            };
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                level.children.push(entry.file_name());
            }
        }
        Ok(level)
    }
}

/// Visits the group `dir` and every one below it: `down` before its children, `up` behind them. One that does not exist is
/// visited as well. A path holds only during the visit.
fn walk(
    dir: &Path,
    mut down: impl FnMut(&Path) -> Result<(), CgroupError>,
    mut up: impl FnMut(&Path),
) -> Result<(), CgroupError> {
    let mut levels = Vec::new();
    let mut next = Some(dir.to_owned());
    loop {
        if let Some(path) = next {
            down(&path)?;
            levels.push(Level::enter(path)?);
        }
        let Some(level) = levels.last_mut() else { return Ok(()) };
        next = level.children.pop().map(|name| level.base.join(name));
        if next.is_none() {
            up(&level.path);
            levels.pop();
        }
    }
}

/// The pids in `groups` and all below them, ascending, each once; none of a group that does not exist.
///
/// The kernel leaves out a process once all its threads have ended, reaped or not. One whose first thread alone has ended
/// is a zombie to /proc and yet runs: it is listed.
pub fn pids(groups: &[impl AsRef<Path>]) -> Result<Vec<i32>, CgroupError> {
    let mut pids = BTreeSet::new();
    for group in groups {
        let look = |dir: &Path| {
            let file = dir.join("cgroup.procs");
            match proc::read_text(&file) {
                // 0 stands for a process of a pid namespace that is not below ours.
                Ok(text) => pids.extend(text.lines().filter_map(|l| l.parse::<i32>().ok()).filter(|p| *p > 0)),
                // Gone meanwhile, or a threaded v2 group, whose processes are listed at its domain.
                Err(err) if is_gone(&err) || err.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                Err(err) => return Err(failed("read", &file)(err)),
            }
            Ok(())
        };
        walk(group.as_ref(), look, |_| {})?;
    }
    Ok(pids.into_iter().collect())
}

/// Sends `signal` to every process in `groups`. One that has ended meanwhile is no error; after another's failure the rest
/// are still signalled, and the first failure is returned.
///
/// A pid may be given to another process at any time, so each is signalled through a pidfd, and only if it is still listed
/// once that is open.
pub fn signal(groups: &[impl AsRef<Path>], signal: i32) -> Result<(), CgroupError> {
    let mut outcome = Ok(());
    let mut note = |pid: i32, err: SysError| {
        if err.errno() != Some(libc::ESRCH) && outcome.is_ok() {
            outcome = Err(failed("signal", Path::new(&format!("/proc/{pid}")))(err.into()));
        }
    };
    for batch in pids(groups)?.chunks(BATCH) {
        let mut open = Vec::with_capacity(batch.len());
        for pid in batch {
            match PidFd::of(*pid) {
                Ok(pidfd) => open.push((*pid, pidfd)),
                Err(err) => note(*pid, err),
            }
        }
        let still = pids(groups)?;
        for (pid, pidfd) in open.iter().filter(|(pid, _)| still.binary_search(pid).is_ok()) {
            if let Err(err) = pidfd.send(signal) {
                note(*pid, err);
            }
        }
    }
    outcome
}

/// What [`kill`] came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Killed {
    /// How many processes were seen.
    pub seen: u32,
    /// One that was still there when the patience was over.
    pub left: Option<i32>,
}

/// Kills every process in `groups` and waits until they are gone, at most `patience`.
///
/// By `cgroup.kill` where there is one. Where there is none, or it did not do (a process may have been moved out of that
/// one hierarchy, and one that a v1 freezer holds does not die), they are frozen so that none can fork away, killed one by
/// one, and thawed.
pub fn kill(groups: &[impl AsRef<Path>], patience: Duration) -> Result<Killed, CgroupError> {
    kill_noting(groups, patience, |_| {})
}

/// The same; each process is noted once, before it is killed.
pub fn kill_noting(
    groups: &[impl AsRef<Path>],
    patience: Duration,
    mut note: impl FnMut(i32),
) -> Result<Killed, CgroupError> {
    let mut seen = BTreeSet::new();
    let begun = Instant::now();
    let mut pause = Duration::from_micros(100);
    let mut again = false;
    loop {
        let found = pids(groups)?;
        let told = |left| Killed { seen: seen.len() as u32, left };
        let Some(first) = found.first().copied() else { return Ok(told(None)) };
        if again && begun.elapsed() > patience {
            return Ok(told(Some(first)));
        }
        found.into_iter().for_each(|pid| {
            if seen.insert(pid) {
                note(pid);
            }
        });
        // Each hierarchy knows only those that are in its own group.
        let at_once = groups.iter().filter(|d| write(&d.as_ref().join("cgroup.kill"), "1").is_ok()).count() > 0;
        if !at_once || again {
            let freezers: Vec<PathBuf> =
                groups.iter().map(|d| d.as_ref().join("freezer.state")).filter(|p| p.exists()).collect();
            freeze_briefly(&freezers);
            let signalled = signal(groups, libc::SIGKILL);
            for file in &freezers {
                // Removed meanwhile: nobody is left to thaw.
                let _ = write(file, "THAWED");
            }
            signalled?;
        }
        again = true;
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Asks v1 freezers to hold their processes. Best effort: who still forks away is found in the next round.
fn freeze_briefly(freezers: &[PathBuf]) {
    let begun = Instant::now();
    for file in freezers {
        let _ = write(file, "FROZEN");
    }
    let waiting = |file: &PathBuf| proc::read_text(file).is_ok_and(|text| text.trim() == "FREEZING");
    while freezers.iter().any(waiting) && begun.elapsed() < FROZEN_WITHIN {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Removes `groups` with all that is nested in them, children first. A group stays busy for a moment after its last
/// process has ended; one that does not exist is no error.
pub fn remove(groups: &[impl AsRef<Path>]) -> Result<(), CgroupError> {
    for group in groups {
        let deadline = Instant::now() + REMOVABLE_WITHIN;
        let mut pause = Duration::from_micros(100);
        loop {
            let mut busy = None;
            let take = |path: &Path| match fs::remove_dir(path) {
                Ok(()) => {}
                Err(err) if is_gone(&err) => {}
                Err(err) => busy = busy.take().or_else(|| Some((path.to_owned(), err))),
            };
            walk(group.as_ref(), |_| Ok(()), take)?;
            let Some((path, source)) = busy else { break };
            if source.raw_os_error() != Some(libc::EBUSY) || Instant::now() > deadline {
                return Err(failed("remove cgroup", &path)(source));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    /// A directory that looks like a group with these processes in it.
    fn group(dir: &Path, pids: &[i32]) -> PathBuf {
        fs::create_dir_all(dir).unwrap();
        let text: String = pids.iter().map(|p| format!("{p}\n")).collect();
        crate::durable::replace_unsynced(&dir.join("cgroup.procs"), text.as_bytes(), 0o600).unwrap();
        dir.to_owned()
    }

    #[test]
    fn processes_of_nested_groups_are_found_each_once() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (group(&dir.path().join("a"), &[7, 3, 0]), group(&dir.path().join("b"), &[3]));
        group(&a.join("nested/deep"), &[9]);
        assert_eq!(pids(&[a, b, dir.path().join("none")]).unwrap(), [3, 7, 9]);
    }

    #[test]
    fn a_group_that_cannot_be_read_is_not_taken_for_empty() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("cgroup.procs")).unwrap();
        assert_eq!(pids(&[dir.path()]).unwrap_err().source.raw_os_error(), Some(libc::EISDIR));
        assert!(kill(&[dir.path()], Duration::ZERO).is_err());
    }

    #[test]
    fn more_processes_than_a_batch_are_all_signalled() {
        let dir = tempfile::tempdir().unwrap();
        let mut children: Vec<Child> = (0..BATCH + 3).map(|_| sleeper()).collect();
        let listed: Vec<i32> = children.iter().map(|c| c.id() as i32).collect();
        signal(&[group(dir.path(), &listed)], libc::SIGTERM).unwrap();
        for child in &mut children {
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        }
        // All ended and reaped by now, but listed all the same: no error.
        signal(&[dir.path()], libc::SIGTERM).unwrap();
    }

    #[test]
    fn a_process_that_does_not_go_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = sleeper();
        let pid = child.id() as i32;
        // Nobody takes the line out of the file, so it looks as if it stayed.
        let killed = kill(&[group(dir.path(), &[pid])], Duration::from_millis(5)).unwrap();
        assert_eq!(killed, Killed { seen: 1, left: Some(pid) });
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert_eq!(kill(&[group(dir.path(), &[])], Duration::ZERO).unwrap(), Killed::default());
    }

    #[test]
    fn a_freezer_is_thawed_after_the_kill() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = sleeper();
        let dir = group(dir.path(), &[child.id() as i32]);
        crate::durable::replace_unsynced(&dir.join("freezer.state"), b"", 0o600).unwrap();
        kill(&[&dir], Duration::ZERO).unwrap();
        child.wait().unwrap();
        assert_eq!(fs::read_to_string(dir.join("freezer.state")).unwrap(), "THAWED");
    }

    /// A container that manages its groups could make one that nobody could list, kill or delete.
    #[test]
    fn groups_deeper_than_a_path_is_long_are_emptied_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("c");
        fs::create_dir(&top).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::open(&top, flags, Mode::empty()).unwrap();
        let name = "x".repeat(250);
        for _ in 0..60 {
            rustix::fs::mkdirat(&at, &name, Mode::from_raw_mode(0o700)).unwrap();
            at = rustix::fs::openat(&at, &name, flags, Mode::empty()).unwrap();
        }
        group(Path::new(&fd_path(at.as_fd())), &[7]);
        assert_eq!(pids(&[&top]).unwrap(), [7]);
        rustix::fs::unlinkat(&at, "cgroup.procs", rustix::fs::AtFlags::empty()).unwrap();
        remove(&[&top]).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn nested_directories_are_removed_bottom_up() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("c");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::create_dir_all(top.join("d")).unwrap();
        remove(&[&top]).unwrap();
        assert!(!top.exists());
        assert_eq!(pids(&[&top]).unwrap(), Vec::<i32>::new());
        remove(&[&top]).unwrap();
    }
}
