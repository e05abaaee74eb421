//! The container's cgroup in every hierarchy of the host: v1, v2, and both at once (hybrid).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::error::{On, RuntimeError};
use super::members::{self, CgroupError, write};
use crate::sys::process::{Fork, exit_now, fork, wait};
use crate::sys::{mountinfo, proc};

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

/// The container's cgroup in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupDir {
    /// `memory`, `cpu,cpuacct`, `name=systemd`; empty for v2.
    pub controllers: String,
    /// The cgroup's directory on the host.
    pub path: PathBuf,
}

impl AsRef<Path> for CgroupDir {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl CgroupDir {
    /// Has this v1 controller.
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|c| c == controller)
    }

    /// The v2 hierarchy.
    pub fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }

    /// The file to which a process without other threads writes `0` to be in the group.
    ///
    /// On v1 that is `tasks`: by it a thread that moves itself moves without the lock that keeps all processes of the
    /// machine from forking, and for which the kernel waits several milliseconds (cgroup_procs_write_start in
    /// kernel/cgroup/cgroup.c).
    pub fn door(&self) -> &'static str {
        if self.is_v2() { "cgroup.procs" } else { "tasks" }
    }
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// As in [`CgroupDir`].
    pub controllers: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The path in the hierarchy that is mounted there; `/` unless we are in somebody's container.
    pub root: PathBuf,
}

impl Hierarchy {
    /// The directory of cgroup `path` (as `/proc/PID/cgroup` names it).
    fn dir(&self, path: &Path) -> CgroupDir {
        let inner = path.strip_prefix(&self.root).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
        CgroupDir { controllers: self.controllers.clone(), path: self.mount_point.join(inner) }
    }

    /// Not among those that libcgroups joins.
    fn is_extra(&self, hybrid: bool) -> bool {
        if self.controllers.is_empty() {
            return hybrid;
        }
        !self.controllers.split(',').any(|c| LIBCGROUPS_V1.contains(&c))
    }
}

/// The hierarchies that this process can reach by its mounts, each once.
pub fn hierarchies() -> Result<Vec<Hierarchy>, RuntimeError> {
    let path = Path::new("/proc/self/mountinfo");
    Ok(parse_mountinfo(&proc::read(path).on("read", path)?, shows_cgroups))
}

/// Whether what is mounted last at the place, and so is seen there, is a hierarchy.
fn shows_cgroups(point: &Path) -> bool {
    /// `CGROUP_SUPER_MAGIC`, `CGROUP2_SUPER_MAGIC` of `<linux/magic.h>`.
    const MAGIC: [u64; 2] = [0x0027_e0eb, 0x6367_7270];
    rustix::fs::statfs(point).is_ok_and(|fs| MAGIC.contains(&(fs.f_type as u64)))
}

fn parse_mountinfo(bytes: &[u8], is_seen: impl Fn(&Path) -> bool) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in bytes.split(|b| *b == b'\n') {
        let Some(at) = line.windows(3).position(|w| w == b" - ") else { continue };
        let before: Vec<&[u8]> = line[..at].split(|b| *b == b' ').collect();
        let after: Vec<&[u8]> = line[at + 3..].split(|b| *b == b' ').collect();
        let (Some(root), Some(point), Some(kind), Some(options)) =
            (before.get(3), before.get(4), after.first(), after.get(2))
        else {
            continue;
        };
        let controllers = match *kind {
            b"cgroup2" => String::new(),
            b"cgroup" => {
                let options = String::from_utf8_lossy(options).into_owned();
                let names: Vec<&str> = options
                    .split(',')
                    .filter(|o| {
                        !matches!(*o, "rw" | "ro" | "noprefix" | "xattr" | "clone_children" | "cpuset_v2_mode")
                            && !o.starts_with("release_agent=")
                    })
                    .collect();
                names.join(",")
            }
            _ => continue,
        };
        let mount_point = mountinfo::unescape(point);
        if found.iter().all(|h| h.controllers != controllers) && is_seen(&mount_point) {
            found.push(Hierarchy { controllers, mount_point, root: mountinfo::unescape(root) });
        }
    }
    found
}

/// The directories of the cgroups that process `pid` is in, by `/proc/PID/cgroup`.
pub fn of_process(pid: i32, all: &[Hierarchy]) -> Result<Vec<CgroupDir>, RuntimeError> {
    let path = PathBuf::from(format!("/proc/{pid}/cgroup"));
    let text = proc::read_text(&path).on("read", &path)?;
    Ok(text
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let same = |h: &&Hierarchy| {
                let names = |s: &str| s.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
                h.controllers == controllers || names(&h.controllers) == names(controllers)
            };
            Some(all.iter().find(same)?.dir(Path::new(path)))
        })
        .collect())
}

/// The directories that cgroup `path` (absolute) will have.
pub fn of_path(path: &Path, all: &[Hierarchy]) -> Vec<CgroupDir> {
    all.iter()
        .map(|h| CgroupDir {
            controllers: h.controllers.clone(),
            path: h.mount_point.join(path.strip_prefix("/").unwrap_or(path)),
        })
        .collect()
}

/// Takes out hierarchy roots: a directory that holds other people's processes must never be emptied or removed.
pub fn without_roots(dirs: Vec<CgroupDir>, all: &[Hierarchy]) -> Vec<CgroupDir> {
    dirs.into_iter().filter(|d| all.iter().all(|h| d.path != h.mount_point)).collect()
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
    let extra: Vec<Hierarchy> = all.iter().filter(|h| h.is_extra(hybrid)).cloned().collect();
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

/// The kernel's wait before a process is moved between cgroups, begun ahead of time.
///
/// Such a move takes a lock against which all forks of the machine are readers, and whose first writer waits for an RCU
/// grace period, some ten milliseconds (percpu_down_write in kernel/locking/percpu-rwsem.c). Those who come soon after it
/// do not. libcontainer moves the first process, so a child of ours asks for the lock first, by a move to where it is
/// already, and waits while everything else is prepared.
#[derive(Debug)]
#[must_use = "the child is reaped when this goes out of scope"]
pub struct EarlyWait(Option<i32>);

impl EarlyWait {
    /// Begins it. The caller must be single-threaded (see [`fork`]). Best effort: without it the wait is only later.
    pub fn begin() -> EarlyWait {
        match fork() {
            Ok(Fork::Child) => {
                // What it says is for nobody.
                let _ = move_nowhere();
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

fn move_nowhere() -> Result<(), RuntimeError> {
    let (pid, _) = proc::this().during("read /proc/self/stat")?;
    let Some(home) = of_process(pid, &hierarchies()?)?.into_iter().next() else { return Ok(()) };
    let file = home.path.join("cgroup.procs");
    write(&file, "0").on("write", &file)
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

    const HYBRID: &[u8] = b"31 24 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 31 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
34 31 0:30 / /sys/fs/cgroup/with\\040space rw shared:9 - cgroup cgroup rw,misc
35 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
36 31 0:28 / /elsewhere rw - cgroup cgroup rw,cpu,cpuacct
";

    #[test]
    fn hierarchies_of_a_hybrid_host() {
        let hidden = parse_mountinfo(HYBRID, |point| !point.ends_with("unified"));
        assert!(!hidden.is_empty() && hidden.iter().all(|h| !h.controllers.is_empty()), "{hidden:?}");
        let all = parse_mountinfo(HYBRID, |_| true);
        let names: Vec<_> = all.iter().map(|h| (h.controllers.as_str(), h.mount_point.to_str().unwrap())).collect();
        assert_eq!(
            names,
            [
                ("cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"),
                ("name=systemd", "/sys/fs/cgroup/systemd"),
                ("misc", "/sys/fs/cgroup/with space"),
                ("", "/sys/fs/cgroup/unified"),
            ]
        );
        let extra: Vec<_> = all.iter().filter(|h| h.is_extra(true)).map(|h| h.controllers.as_str()).collect();
        assert_eq!(extra, ["name=systemd", "misc", ""]);
        assert!(!all[3].is_extra(false), "on a pure v2 host libcgroups joins it");
    }

    #[test]
    fn a_hierarchy_mounted_from_below_its_root_is_stripped() {
        let h = Hierarchy { controllers: "pids".into(), mount_point: "/m".into(), root: "/docker/x".into() };
        assert_eq!(h.dir(Path::new("/docker/x/a/b")).path, Path::new("/m/a/b"));
        assert_eq!(h.dir(Path::new("/other")).path, Path::new("/m/other"));
    }

    #[test]
    fn roots_are_never_the_containers() {
        let all = parse_mountinfo(HYBRID, |_| true);
        assert_eq!(without_roots(of_path(Path::new("/"), &all), &all), []);
        assert_eq!(without_roots(of_path(Path::new("/a/b"), &all), &all).len(), 4);
    }
}
