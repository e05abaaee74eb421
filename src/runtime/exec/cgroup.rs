//! The cgroup of one exec: a child of the container's, so that what the command left running can be found and killed,
//! and what it used can be read.
//!
//! On v1 the exec gets a child in the hierarchies that count or kill (freezer, pids, memory, cpuacct) and joins the
//! container's own group in the others. On v2 there is one hierarchy, and the exec's group has controllers, since the first
//! process has moved to a group of its own ([`leaf`]). Where it has not (a container that manages its groups itself), memory
//! and processes are counted for the whole container only, which tells that something was killed for want of memory, but not
//! how much one exec used. Where both are mounted, v2 kills and counts CPU time (which takes no controller), and v1 counts
//! the rest.

use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::ExecError;
use crate::runtime::cgroup::CgroupDir;
use crate::runtime::leaf;
use crate::runtime::members::{self, Killed, failed};
use crate::sys::proc;

/// The v1 controllers in whose hierarchies an exec has a group of its own.
pub const OWN: [&str; 4] = ["freezer", "pids", "memory", "cpuacct"];

/// Those of them that a v2 hierarchy makes needless.
const IN_V2: [&str; 2] = ["freezer", "cpuacct"];

/// How long killed processes may take to go before they are given up.
pub const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// An exec's groups.
#[derive(Debug)]
pub struct ExecCgroup {
    /// Directories of this exec alone.
    own: Vec<CgroupDir>,
    /// Directories of the container that the command joins besides.
    joined: Vec<CgroupDir>,
    /// On v2, the container's directory and how many of its processes had been killed for want of memory before.
    killed_before: Option<(PathBuf, u64)>,
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
    /// Bytes of files on disk that were made to be written. No group counts it: see [`proc::written_bytes`].
    pub written: Option<u64>,
}

impl ExecCgroup {
    /// Finds where the groups, named `name`, go below the container's (`sub` is runc's `--cgroup`: a group below the
    /// container's). Makes nothing: whoever cleans up after a killed supervisor must know of them first.
    pub fn plan(container: &[CgroupDir], sub: Option<&Path>, name: &str) -> Result<ExecCgroup, ExecError> {
        let mut plan = ExecCgroup { own: Vec::new(), joined: Vec::new(), killed_before: None };
        let has_v2 = container.iter().any(|dir| dir.is_v2() && dir.path.join("cgroup.kill").exists());
        let counts = |name: &str| OWN.contains(&name) && !(has_v2 && IN_V2.contains(&name));
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
            if dir.is_v2() {
                plan.killed_before = killed_for_memory(&dir.path).map(|count| (dir.path.clone(), count));
            }
            let owns = dir.is_v2() || dir.controllers.split(',').any(counts);
            // A new cpuset group is unusable until its parent's masks are copied into it.
            if owns && !dir.has("cpuset") {
                plan.own.push(CgroupDir { controllers: dir.controllers.clone(), path: base.join(name) });
            } else {
                plan.joined.push(CgroupDir { controllers: dir.controllers.clone(), path: base });
            }
        }
        Ok(plan)
    }

    /// Makes the groups. On failure those that were made are removed.
    pub fn create(&self) -> Result<(), ExecError> {
        for dir in &self.own {
            let made = std::fs::DirBuilder::new().mode(0o755).create(&dir.path);
            let made = made.map_err(failed("make cgroup", &dir.path));
            if let Err(err) = made {
                // The first error is the one to tell.
                let _ = self.remove();
                return Err(err.into());
            }
            if dir.is_v2()
                && let Some(above) = dir.path.parent()
            {
                leaf::mirror(above, &dir.path);
            }
        }
        Ok(())
    }

    /// The exec's own directories, for whoever has to clean up after a killed supervisor.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.own.iter().map(|dir| dir.path.clone()).collect()
    }

    /// The group that a process can be born in (v2), opened.
    pub fn birthplace(&self) -> Result<Option<OwnedFd>, ExecError> {
        let Some(group) = self.own.iter().find(|dir| dir.is_v2()) else { return Ok(None) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&group.path, flags, Mode::empty());
        Ok(Some(opened.map_err(|errno| failed("open cgroup", &group.path)(errno.into()))?))
    }

    /// The files by which a process joins all the groups ([`CgroupDir::door`]); `born` if it was born in the
    /// [`birthplace`](Self::birthplace).
    pub fn doors(&self, born: bool) -> Vec<PathBuf> {
        let all = self.own.iter().filter(|dir| !(born && dir.is_v2())).chain(&self.joined);
        all.map(|dir| dir.path.join(dir.door())).collect()
    }

    /// Whether no process of the exec is left, in nested groups too.
    pub fn is_empty(&self) -> Result<bool, ExecError> {
        Ok(members::pids(&self.own)?.is_empty())
    }

    /// Sends a signal to every process of the exec.
    pub fn signal(&self, signal: i32) -> Result<(), ExecError> {
        Ok(members::signal(&self.own, signal)?)
    }

    /// Kills every process of the exec and waits until they are gone.
    pub fn kill_all(&self) -> Result<Killed, ExecError> {
        self.kill_noting(|_| {})
    }

    /// The same; each process is noted once, before it is killed.
    pub fn kill_noting(&self, note: impl FnMut(i32)) -> Result<Killed, ExecError> {
        Ok(members::kill_noting(&self.own, KILL_PATIENCE, note)?)
    }

    /// The processes of the exec; none where they can't be told.
    pub fn processes(&self) -> Vec<i32> {
        members::pids(&self.own).unwrap_or_default()
    }

    /// Reads the counters.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        let number = |path: PathBuf| proc::read_text(&path).ok()?.trim().parse::<u64>().ok();
        for group in &self.own {
            let dir = &group.path;
            let has = |name: &str| group.is_v2() || group.has(name);
            if group.is_v2() {
                let micro = |key: &str| field(dir.join("cpu.stat"), key).map(|us| us * 1000);
                usage.user_ns = usage.user_ns.or_else(|| micro("user_usec"));
                usage.system_ns = usage.system_ns.or_else(|| micro("system_usec"));
                usage.peak_memory = usage.peak_memory.or_else(|| number(dir.join("memory.peak")));
                usage.oom_kills = usage.oom_kills.or_else(|| killed_for_memory(dir));
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
        if usage.oom_kills.is_none()
            && let Some((dir, before)) = &self.killed_before
        {
            // Another exec of the container may have been the one. That this one's end is taken for a kill for memory
            // needs its own SIGKILL besides.
            usage.oom_kills = killed_for_memory(dir).map(|now| now.saturating_sub(*before));
        }
        usage
    }

    /// Removes the groups; they must be empty of processes.
    pub fn remove(&self) -> Result<(), ExecError> {
        Ok(members::remove(&self.own)?)
    }
}

/// The number after `key` in a file of lines `key number`.
fn field(path: PathBuf, key: &str) -> Option<u64> {
    let text = proc::read_text(&path).ok()?;
    text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
}

/// How many processes of a v2 group the kernel has killed for want of memory.
fn killed_for_memory(dir: &Path) -> Option<u64> {
    field(dir.join("memory.events"), "oom_kill")
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

#[cfg(test)]
mod tests {
    use super::*;

    /// They were made before their exec had its row: a kill -9 between the two left them for ever.
    #[test]
    fn groups_are_known_before_they_are_made() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().to_owned();
        let container = [CgroupDir { controllers: "pids".into(), path: path.clone() }];
        let plan = ExecCgroup::plan(&container, None, "x").unwrap();
        assert_eq!(plan.paths(), [path.join("x")]);
        assert!(!path.join("x").exists());
        plan.create().unwrap();
        assert!(path.join("x").is_dir());
        // A second one of that name fails, and there is nothing of it.
        plan.create().unwrap_err();
        plan.remove().unwrap();
    }

    /// The group of an exec on v2 has no memory controller, so each kill for memory was told as any SIGKILL.
    #[test]
    fn on_v2_the_containers_kills_for_memory_are_counted_from_the_execs_begin() {
        let top = tempfile::tempdir().unwrap();
        let kills = |n: u32| {
            let text = format!("low 0\nmax {n}\noom {n}\noom_kill {n}\noom_group_kill 9\n");
            crate::durable::replace_unsynced(&top.path().join("memory.events"), text.as_bytes(), 0o644).unwrap();
        };
        let container = [CgroupDir { controllers: String::new(), path: top.path().to_owned() }];
        kills(3);
        let plan = ExecCgroup::plan(&container, None, "x").unwrap();
        plan.create().unwrap();
        assert_eq!(plan.usage().oom_kills, Some(0));
        kills(5);
        assert_eq!(plan.usage().oom_kills, Some(2));
        assert_eq!(plan.usage().peak_memory, None);
    }

    #[test]
    fn proportions() {
        for (total, a, b, want) in
            [(10, 0, 0, (10, 0)), (10, 1, 1, (5, 5)), (10, 0, 7, (0, 10)), (u64::MAX, u64::MAX, 0, (u64::MAX, 0))]
        {
            assert_eq!(in_proportion(total, a, b), want);
        }
    }
}
