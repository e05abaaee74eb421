//! The cgroup hierarchies of the host: which are mounted, in which group of each a process is, and what the files of a group
//! say.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Call, SysError, mountinfo, proc};

/// A cgroup in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupDir {
    /// `memory`, `cpu,cpuacct`, `name=systemd`; empty for v2.
    pub controllers: String,
    /// Its directory on the host.
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
}

/// The hierarchies that this process can reach by its mounts, each once.
pub fn hierarchies() -> Result<Vec<Hierarchy>, SysError> {
    let path = "/proc/self/mountinfo";
    let bytes = proc::read(Path::new(path)).call("read", || path.into())?;
    Ok(parse_mountinfo(&bytes, shows_cgroups))
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
pub fn of_process(pid: i32, all: &[Hierarchy]) -> Result<Vec<CgroupDir>, SysError> {
    let path = format!("/proc/{pid}/cgroup");
    let text = proc::read_text(Path::new(&path)).call("read", || path)?;
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

/// Has the kernel do what it does before a process is moved between cgroups by another, or with all its threads.
///
/// Such a move takes a lock against which all forks of the machine are readers, and whose first writer waits for an RCU
/// grace period, some ten milliseconds (percpu_down_write in kernel/locking/percpu-rwsem.c). Those who come soon after it
/// do not. So this asks for the lock, by a move of the calling thread to where it is already, and returns when the kernel
/// has waited. Nothing else happens: were the process moved meanwhile, this thread alone would be elsewhere, so it should
/// be one that ends here.
///
/// # Errors
/// Where the thread's cgroup can't be told, or its file not be written to, as without the right to. Then nothing was waited
/// for, or it was and the kernel refused the move.
pub fn wait_before_moves() -> Result<(), SysError> {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let Some(home) = of_process(tid, &hierarchies()?)?.into_iter().next() else { return Ok(()) };
    // Its number: for 0, which stands for the thread itself, the kernel does not take the lock.
    let path = home.path.join(if home.is_v2() { "cgroup.threads" } else { "tasks" });
    let opened = std::fs::OpenOptions::new().write(true).open(&path);
    opened.and_then(|mut file| file.write_all(tid.to_string().as_bytes())).call("write", || path.display().to_string())
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

/// The files of one group; of none, if the host lacks the controller.
///
/// A controller that the kernel does not have, or has without a file, says nothing: that is no error.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a>(pub Option<&'a Path>);

impl Files<'_> {
    /// A file's text.
    pub fn text(&self, name: &str) -> Option<String> {
        proc::read_text(&self.0?.join(name)).ok()
    }

    /// A single number; `None` for `max`.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.trim().parse().ok()
    }

    /// Numbers with blanks between them.
    pub fn numbers(&self, name: &str) -> Vec<u64> {
        self.text(name).unwrap_or_default().split_whitespace().filter_map(|n| n.parse().ok()).collect()
    }

    /// `key value` lines, in order.
    pub fn pairs(&self, name: &str) -> Pairs {
        let text = self.text(name).unwrap_or_default();
        let lines = text.lines().filter_map(|l| l.split_once(' '));
        Pairs(lines.filter_map(|(k, v)| Some((k.to_owned(), v.trim().parse().ok()?))).collect())
    }

    /// `major:minor operation value` lines, and those without an operation; the closing total has no device.
    pub fn devices(&self, name: &str) -> Vec<Device> {
        let text = self.text(name).unwrap_or_default();
        text.lines().filter_map(Device::parse).collect()
    }

    /// `io.stat` of v2, one entry a key: `op` is `rbytes`, `wios` …
    pub fn io(&self) -> Vec<Device> {
        let text = self.text("io.stat").unwrap_or_default();
        let mut all = Vec::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let device = words.next().unwrap_or_default();
            let values = words.filter_map(|word| word.split_once('='));
            all.extend(values.filter_map(|(key, value)| Device::parse(&format!("{device} {key} {value}"))));
        }
        all
    }

    /// The page sizes that the group has hugetlb files for, such as `2MB`, sorted; `suffix` is that of a file that each has.
    pub fn huge_pages(&self, suffix: &str) -> Vec<String> {
        let Some(entries) = self.0.and_then(|dir| std::fs::read_dir(dir).ok()) else { return Vec::new() };
        let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
        let mut sizes: Vec<String> = names
            .filter_map(|n| Some(n.strip_prefix("hugetlb.")?.strip_suffix(suffix)?.to_owned()))
            .filter(|size| !size.contains("rsvd"))
            .collect();
        sizes.sort();
        sizes
    }
}

/// The lines of a file of keys and numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pairs(pub Vec<(String, u64)>);

impl Pairs {
    /// The number of a key; 0 if it is not there.
    pub fn value(&self, key: &str) -> u64 {
        self.0.iter().find(|(k, _)| k == key).map_or(0, |(_, v)| *v)
    }
}

/// What was counted of a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its major number.
    pub major: u64,
    /// Its minor number.
    pub minor: u64,
    /// `Read`, `Write` …, or empty.
    pub op: String,
    /// The number.
    pub value: u64,
}

impl Device {
    fn parse(line: &str) -> Option<Device> {
        let (device, op, value) = match line.split_whitespace().collect::<Vec<_>>()[..] {
            [device, op, value] => (device, op, value),
            [device, value] => (device, "", value),
            _ => return None,
        };
        let (major, minor) = device.split_once(':')?;
        Some(Device {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            op: op.to_owned(),
            value: value.parse().ok()?,
        })
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
    }

    #[test]
    fn a_hierarchy_mounted_from_below_its_root_is_stripped() {
        let h = Hierarchy { controllers: "pids".into(), mount_point: "/m".into(), root: "/docker/x".into() };
        assert_eq!(h.dir(Path::new("/docker/x/a/b")).path, Path::new("/m/a/b"));
        assert_eq!(h.dir(Path::new("/other")).path, Path::new("/m/other"));
    }

    #[test]
    fn waiting_moves_nobody() {
        let place = || std::fs::read_to_string("/proc/thread-self/cgroup").unwrap();
        let before = place();
        let refused = wait_before_moves().err().map(|err| err.errno());
        // Without the right to write there is nothing to wait for.
        let rightless = [libc::EACCES, libc::EPERM, libc::EROFS];
        assert!(refused.is_none_or(|errno| errno.is_some_and(|errno| rightless.contains(&errno))), "{refused:?}");
        assert_eq!(place(), before);
    }

    #[test]
    fn roots_are_never_the_containers() {
        let all = parse_mountinfo(HYBRID, |_| true);
        assert_eq!(without_roots(of_path(Path::new("/"), &all), &all), []);
        assert_eq!(without_roots(of_path(Path::new("/a/b"), &all), &all).len(), 4);
    }
}
