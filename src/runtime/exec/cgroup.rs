//! The cgroup of one exec: a child of the container's, so that what the command left running can be found and killed,
//! and what it used can be read.
//!
//! On v1 the exec gets a child in the hierarchies that count or kill (freezer, pids, memory, cpuacct) and joins the
//! container's own group in the others; on v2 there is one hierarchy.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::ExecError;
use crate::runtime::cgroup::CgroupDir;
use crate::sys::ns::PidFd;

/// The v1 controllers in whose hierarchies an exec has a group of its own.
const OWN: [&str; 4] = ["freezer", "pids", "memory", "cpuacct"];

/// How long killed processes may take to go before they are given up.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// An exec's groups.
#[derive(Debug)]
pub struct ExecCgroup {
    /// Directories made for this exec, with the controllers of their hierarchy ("" is v2).
    own: Vec<(String, PathBuf)>,
    /// Directories of the container that the command joins besides.
    joined: Vec<PathBuf>,
}

/// What a group counted; `None` where the kernel can't tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// User CPU time, nanoseconds.
    pub user_ns: Option<u64>,
    /// System CPU time, nanoseconds.
    pub system_ns: Option<u64>,
    /// Highest memory use, bytes.
    pub peak_memory: Option<u64>,
    /// Highest number of processes and threads.
    pub max_pids: Option<u64>,
    /// Processes that the kernel killed for want of memory.
    pub oom_kills: Option<u64>,
}

impl ExecCgroup {
    /// Makes the groups, named `name`, below the container's (`sub` is runc's `--cgroup`: a group below the container's).
    pub fn create(container: &[CgroupDir], sub: Option<&Path>, name: &str) -> Result<ExecCgroup, ExecError> {
        let mut made = ExecCgroup { own: Vec::new(), joined: Vec::new() };
        for dir in container {
            let base = match sub {
                Some(sub) => dir.path.join(sub.strip_prefix("/").unwrap_or(sub)),
                None => dir.path.clone(),
            };
            if !base.is_dir() {
                if sub.is_some() {
                    return Err(ExecError::NoSubCgroup(base));
                }
                // A hierarchy that the container was not put into.
                continue;
            }
            let controllers: Vec<&str> = dir.controllers.split(',').collect();
            let owns = dir.controllers.is_empty() || controllers.iter().any(|c| OWN.contains(c));
            // A new cpuset group is unusable until its parent's masks are copied into it.
            if owns && !controllers.contains(&"cpuset") {
                let path = base.join(name);
                std::fs::DirBuilder::new().mode(0o755).create(&path).map_err(|source| ExecError::Cgroup {
                    doing: "make",
                    path: path.clone(),
                    source,
                })?;
                made.own.push((dir.controllers.clone(), path));
            } else {
                made.joined.push(base);
            }
        }
        Ok(made)
    }

    /// Directories made for this exec, for whoever has to clean up after a killed supervisor.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.own.iter().map(|(_, path)| path.clone()).collect()
    }

    /// Moves a process (by its id in our pid namespace) into all the groups.
    pub fn add(&self, pid: i32) -> Result<(), ExecError> {
        for dir in self.own.iter().map(|(_, path)| path).chain(&self.joined) {
            let path = dir.join("cgroup.procs");
            write_existing(&path, &pid.to_string()).map_err(|source| ExecError::Cgroup {
                doing: "join",
                path,
                source,
            })?;
        }
        Ok(())
    }

    /// The processes of the exec, in nested groups too.
    pub fn pids(&self) -> Vec<i32> {
        pids_of(&self.paths())
    }

    /// Sends a signal to every process of the exec.
    pub fn signal(&self, signal: i32) {
        for pid in self.pids() {
            signal_member(&self.paths(), pid, signal);
        }
    }

    /// Kills every process of the exec and waits until they are gone: how many there were, and whether all went.
    pub fn kill_all(&self) -> (u32, bool) {
        kill_groups(&self.paths())
    }

    /// Reads the counters.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let field = |path: PathBuf, key: &str| {
            let text = std::fs::read_to_string(path).ok()?;
            text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
        };
        for (controllers, dir) in &self.own {
            let has = |name: &str| controllers.is_empty() || controllers.split(',').any(|c| c == name);
            if controllers.is_empty() {
                let micro = |key: &str| field(dir.join("cpu.stat"), key).map(|us| us * 1000);
                usage.user_ns = usage.user_ns.or_else(|| micro("user_usec"));
                usage.system_ns = usage.system_ns.or_else(|| micro("system_usec"));
                usage.peak_memory = usage.peak_memory.or_else(|| number(dir.join("memory.peak")));
                usage.oom_kills = usage.oom_kills.or_else(|| field(dir.join("memory.events"), "oom_kill"));
            } else {
                if has("cpuacct")
                    && let Some(total) = number(dir.join("cpuacct.usage"))
                {
                    // The sum is exact; its parts are counted in ticks, so they only say in what proportion.
                    let user = number(dir.join("cpuacct.usage_user")).unwrap_or(0);
                    let system = number(dir.join("cpuacct.usage_sys")).unwrap_or(0);
                    let (user, system) = in_proportion(total, user, system);
                    (usage.user_ns, usage.system_ns) = (Some(user), Some(system));
                }
                if has("memory") {
                    usage.peak_memory = number(dir.join("memory.max_usage_in_bytes")).or(usage.peak_memory);
                    usage.oom_kills = field(dir.join("memory.oom_control"), "oom_kill").or(usage.oom_kills);
                }
            }
            if has("pids") {
                usage.max_pids = number(dir.join("pids.peak")).or(usage.max_pids);
            }
        }
        usage
    }

    /// Removes the groups; they must be empty of processes.
    pub fn remove(&self) -> Result<(), ExecError> {
        remove_groups(&self.paths())
    }
}

/// Parts `total` as `a` is to `b`; all of it is the first part where both are 0.
fn in_proportion(total: u64, a: u64, b: u64) -> (u64, u64) {
    if a == 0 && b == 0 {
        return (total, 0);
    }
    let first = u128::from(total) * u128::from(a) / (u128::from(a) + u128::from(b));
    let first = first as u64;
    (first, total - first)
}

/// The processes of some groups and of those nested in them, each once.
pub fn pids_of(groups: &[PathBuf]) -> Vec<i32> {
    let mut pids: Vec<i32> = groups.iter().flat_map(|dir| tree(dir)).flat_map(|dir| procs(&dir)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

fn procs(dir: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    // 0 stands for a process of a pid namespace that is not below ours.
    text.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid > 0).collect()
}

/// A group and all below it, the deepest first.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        open.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
        found.push(dir);
    }
    found.reverse();
    found
}

/// Signals `pid` if it still is in one of the groups once its pidfd is open: an id may have been taken over meanwhile.
fn signal_member(groups: &[PathBuf], pid: i32, signal: i32) {
    let Ok(pidfd) = PidFd::open(pid) else { return };
    if pids_of(groups).contains(&pid) {
        // Gone meanwhile is as good as signalled.
        let _ = pidfd.kill(signal);
    }
}

/// Kills all processes of some groups: by `cgroup.kill` where there is one, else frozen first so that none can fork away.
/// Returns how many were seen, and whether all are gone.
pub fn kill_groups(groups: &[PathBuf]) -> (u32, bool) {
    let mut seen = std::collections::BTreeSet::new();
    let begun = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        let pids = pids_of(groups);
        if pids.is_empty() {
            return (seen.len() as u32, true);
        }
        seen.extend(pids.iter().copied());
        let at_once = groups.iter().any(|dir| write_existing(&dir.join("cgroup.kill"), "1").is_ok());
        if !at_once {
            let freezers: Vec<PathBuf> =
                groups.iter().map(|d| d.join("freezer.state")).filter(|p| p.exists()).collect();
            for path in &freezers {
                let _ = write_existing(path, "FROZEN");
            }
            for pid in pids_of(groups) {
                seen.insert(pid);
                signal_member(groups, pid, libc::SIGKILL);
            }
            for path in &freezers {
                let _ = write_existing(path, "THAWED");
            }
        }
        if begun.elapsed() > KILL_PATIENCE {
            return (seen.len() as u32, false);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Removes groups with all that is nested in them. A group whose last process has just gone can be busy for a moment.
pub fn remove_groups(groups: &[PathBuf]) -> Result<(), ExecError> {
    for dir in groups.iter().flat_map(|dir| tree(dir)) {
        let begun = Instant::now();
        let mut pause = Duration::from_micros(100);
        loop {
            match std::fs::remove_dir(&dir) {
                Ok(()) => break,
                Err(err) if err.kind() == ErrorKind::NotFound => break,
                Err(err) if err.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < Duration::from_secs(2) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(20));
                }
                Err(source) => return Err(ExecError::Cgroup { doing: "remove", path: dir, source }),
            }
        }
    }
    Ok(())
}

/// Writes to a control file, which must exist.
fn write_existing(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::File::options().write(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proportions() {
        for (total, a, b, want) in
            [(10, 0, 0, (10, 0)), (10, 1, 1, (5, 5)), (10, 0, 7, (0, 10)), (u64::MAX, u64::MAX, 0, (u64::MAX, 0))]
        {
            assert_eq!(in_proportion(total, a, b), want);
        }
    }
}
