//! The container's cgroup in every hierarchy of the host: v1, v2, and both at once (hybrid).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::{On, RuntimeError};
use super::members::{self, CgroupError, write};
use crate::sys::cgroup::wait_before_moves;
pub use crate::sys::cgroup::{CgroupDir, Hierarchy, of_path, without_roots};
use crate::sys::proc;
use crate::sys::process::{Fork, exit_now, fork, wait};

/// Controllers that libcgroups joins by itself on v1; all other hierarchies are joined by us.
const LIBCGROUPS_V1: [&str; 12] = [
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "hugetlb",
    "memory",
    "pids",
    "perf_event",
    "blkio",
    "net_prio",
    "net_cls",
    "freezer",
];
/// How long processes get to be gone after SIGKILL, or to freeze.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Whether a hierarchy is not among those that libcgroups joins.
fn is_extra(hierarchy: &Hierarchy, hybrid: bool) -> bool {
    let controllers = &hierarchy.controllers;
    if controllers.is_empty() {
        return hybrid;
    }
    !controllers.split(',').any(|c| LIBCGROUPS_V1.contains(&c))
}

/// Whether libcgroups finds a hierarchy, and joins it: by the name of the directory that it is mounted on.
pub fn is_found_by_libcgroups(hierarchy: &Hierarchy) -> bool {
    /// Directories of two controllers that it knows.
    const PAIRS: [&str; 3] = ["cpu,cpuacct", "net_cls,net_prio", "net_prio,net_cls"];
    let name = hierarchy.mount_point.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| (LIBCGROUPS_V1.contains(&name) || PAIRS.contains(&name)) && !is_extra(hierarchy, true))
}

/// Makes the cgroup `dir` of a hierarchy that is joined by [`join_extra`]; whether there is one.
pub fn make_extra(hierarchy: &Hierarchy, dir: &CgroupDir) -> bool {
    // Whoever joins it says why it can't be made, if that is an error.
    is_extra(hierarchy, true) && fs::create_dir_all(&dir.path).is_ok()
}

/// The hierarchies that this process can reach by its mounts, each once.
pub fn hierarchies() -> Result<Vec<Hierarchy>, RuntimeError> {
    crate::sys::cgroup::hierarchies().during("list the cgroup hierarchies")
}

/// The directories of the cgroups that process `pid` is in, by `/proc/PID/cgroup`.
pub fn of_process(pid: i32, all: &[Hierarchy]) -> Result<Vec<CgroupDir>, RuntimeError> {
    crate::sys::cgroup::of_process(pid, all).on("read", &PathBuf::from(format!("/proc/{pid}/cgroup")))
}

/// Fails if any of `dirs` has a process: a new container must not share its cgroup, since ending it ends them.
pub fn require_empty(dirs: &[CgroupDir]) -> Result<(), RuntimeError> {
    for dir in dirs {
        let count = members::pids(&[dir])?.len();
        if count > 0 {
            return Err(RuntimeError::CgroupNotEmpty { path: dir.path.clone(), count });
        }
    }
    Ok(())
}

/// The hierarchies that libcgroups leaves out, joined by this process so that the container's processes start in them,
/// until [`Joined::leave`].
#[derive(Debug)]
#[must_use = "this process stays in the container's cgroups until it leaves"]
pub struct Joined {
    back: Vec<PathBuf>,
}

/// Makes cgroup `path` in the hierarchies that libcgroups leaves out and moves this process there.
/// Without the right to (rootless) it stays where it is.
pub fn join_extra(path: &Path, all: &[Hierarchy]) -> Result<Joined, RuntimeError> {
    let hybrid = all.iter().any(|h| !h.controllers.is_empty());
    let extra: Vec<Hierarchy> = all.iter().filter(|h| is_extra(h, hybrid)).cloned().collect();
    let mut joined = Joined { back: Vec::new() };
    if extra.is_empty() {
        return Ok(joined);
    }
    let (pid, _) = proc::this().during("read /proc/self/stat")?;
    let home = of_process(pid, &extra)?;
    for dir in of_path(path, &extra) {
        let Some(from) = home.iter().find(|h| h.controllers == dir.controllers) else { continue };
        match fs::create_dir_all(&dir.path).and_then(|()| write(&dir.path.join(dir.door()), "0")) {
            Ok(()) => joined.back.push(from.path.join(from.door())),
            Err(err) if matches!(err.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS)) => {}
            Err(err) => {
                // The first failure is what is reported; going back is best effort then.
                let _ = joined.leave();
                return Err(err).on("join cgroup", &dir.path);
            }
        }
    }
    Ok(joined)
}

impl Joined {
    /// Moves this process back to where it was.
    pub fn leave(self) -> Result<(), RuntimeError> {
        for file in self.back {
            write(&file, "0").on("return to cgroup", &file)?;
        }
        Ok(())
    }
}

/// The kernel's wait before a process is moved between cgroups ([`wait_before_moves`]), begun ahead of time.
///
/// libcontainer moves the first process, so a child of ours has the kernel wait while everything else is prepared.
#[derive(Debug)]
#[must_use = "the child is reaped when this goes out of scope"]
pub struct EarlyWait(Option<i32>);

impl EarlyWait {
    /// Begins it. The caller must be single-threaded (see [`fork`]). Best effort: without it the wait is only later.
    pub fn begin() -> EarlyWait {
        match fork() {
            Ok(Fork::Child) => {
                // What it says is for nobody.
                let _ = wait_before_moves();
                exit_now(0)
            }
            Ok(Fork::Parent(pid)) => EarlyWait(Some(pid)),
            Err(_) => EarlyWait(None),
        }
    }
}

impl Drop for EarlyWait {
    fn drop(&mut self) {
        // A child that somebody else has reaped is gone as well.
        let _ = self.0.map(|pid| wait(pid, true));
    }
}

/// True if the freezer holds the container's processes, or is about to.
pub fn is_frozen(dirs: &[CgroupDir]) -> bool {
    dirs.iter().any(|dir| {
        let read = |name| proc::read_text(&dir.path.join(name)).unwrap_or_default();
        if dir.has("freezer") {
            matches!(read("freezer.state").trim(), "FROZEN" | "FREEZING")
        } else {
            dir.is_v2() && read("cgroup.freeze").trim() == "1"
        }
    })
}

/// Freezes or thaws everything in the container's cgroup and waits until the kernel says so.
pub fn freeze(dirs: &[CgroupDir], frozen: bool) -> Result<(), RuntimeError> {
    let v1 = dirs.iter().find(|d| d.has("freezer"));
    let v2 = dirs.iter().find(|d| d.is_v2() && d.path.join("cgroup.freeze").exists());
    if let Some(dir) = v1 {
        return freeze_v1(&dir.path.join("freezer.state"), frozen);
    }
    let Some(dir) = v2 else { return Err(RuntimeError::Unsupported("pausing without a freezer cgroup")) };
    let file = dir.path.join("cgroup.freeze");
    write(&file, if frozen { "1" } else { "0" }).on("write", &file)?;
    let events = dir.path.join("cgroup.events");
    let want = if frozen { "frozen 1" } else { "frozen 0" };
    let deadline = Instant::now() + GONE_WITHIN;
    while !proc::read_text(&events).on("read", &events)?.lines().any(|l| l == want) {
        if Instant::now() > deadline {
            // What would freeze later, unseen, would be a container that runs, and does nothing.
            write(&file, "0").on("write", &file)?;
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)).on("freeze", &dir.path);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn freeze_v1(file: &Path, frozen: bool) -> Result<(), RuntimeError> {
    let want = if frozen { "FROZEN" } else { "THAWED" };
    let deadline = Instant::now() + GONE_WITHIN;
    let mut round = 0u32;
    loop {
        write(file, want).on("write", file)?;
        // v1 may hang in FREEZING while tasks fork: write again, and now and then let them run a little.
        for _ in 0..25 {
            if proc::read_text(file).on("read", file)?.trim() == want {
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        if Instant::now() > deadline {
            write(file, "THAWED").on("write", file)?;
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)).on("freeze", file);
        }
        round += 1;
        if frozen && round.is_multiple_of(20) {
            write(file, "THAWED").on("write", file)?;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Sends `signal` to every process in the container's cgroup. They are frozen meanwhile where that is possible, so that
/// none forks away; SIGKILL thaws.
pub fn signal_all(dirs: &[CgroupDir], signal: i32) -> Result<(), RuntimeError> {
    let was_frozen = is_frozen(dirs);
    let v1_freezer = dirs.iter().any(|d| d.has("freezer") && d.path.exists());
    // Best effort: without a freezer the loop of `kill_all` catches who forked away.
    let froze = !was_frozen && v1_freezer && freeze(dirs, true).is_ok();
    let outcome = members::signal(dirs, signal);
    if froze || (was_frozen && signal == libc::SIGKILL) {
        match freeze(dirs, false) {
            // Removed by somebody who deletes the same container: nobody is left to thaw.
            Err(RuntimeError::Io { source, .. }) if members::is_gone(&source) => {}
            other => other?,
        }
    }
    Ok(outcome?)
}

/// Kills everything in the container's cgroup and waits until it is gone.
pub fn kill_all(dirs: &[CgroupDir]) -> Result<(), RuntimeError> {
    match members::kill(dirs, GONE_WITHIN)?.left {
        None => Ok(()),
        Some(pid) => {
            let path = PathBuf::from(format!("/proc/{pid}"));
            Err(CgroupError { doing: "end", path, source: io::Error::from_raw_os_error(libc::EBUSY) }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_that_libcgroups_leaves_out() {
        let of = |controllers: &str| Hierarchy {
            controllers: controllers.into(),
            mount_point: "/m".into(),
            root: "/".into(),
        };
        let all = [of("cpu,cpuacct"), of("name=systemd"), of("misc"), of("")];
        let extra: Vec<_> = all.iter().filter(|h| is_extra(h, true)).map(|h| h.controllers.as_str()).collect();
        assert_eq!(extra, ["name=systemd", "misc", ""]);
        assert!(!is_extra(&all[3], false), "on a pure v2 host libcgroups joins it");
    }
}
