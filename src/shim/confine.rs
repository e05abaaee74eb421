//! Where the shim's long-lived process stands on the host: its cgroup, and when the kernel may kill it.

use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use super::ShimError;

/// Where cgroup hierarchies are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The highest value of `oom_score_adj`.
const OOM_MAX: i32 = 1000;

/// Puts process `pid` into the cgroup that the options name (`ShimCgroup`), in each hierarchy that has it.
///
/// # Errors
/// [`ShimError::Invalid`] for the root or a path with `..`, or where no hierarchy has it; [`ShimError::Io`] if one refuses.
pub fn enter_cgroup(pid: u32, group: &Path) -> Result<(), ShimError> {
    let relative: PathBuf = group.components().filter(|c| *c != Component::RootDir).collect();
    if relative.as_os_str().is_empty() || relative.components().any(|c| !matches!(c, Component::Normal(_))) {
        return Err(ShimError::Invalid(format!("shim_cgroup {group:?}")));
    }
    let doors = doors(Path::new(CGROUPS), &relative).map_err(ShimError::io("list", CGROUPS))?;
    if doors.is_empty() {
        return Err(ShimError::Invalid(format!("shim_cgroup {group:?}: there is no such cgroup, make it first")));
    }
    doors.into_iter().try_for_each(|door| tell(&door, &pid.to_string()).map_err(ShimError::io("write", door)))
}

/// The `cgroup.procs` files of a cgroup: one, or with cgroup v1 one for each hierarchy.
fn doors(mounts: &Path, relative: &Path) -> io::Result<Vec<PathBuf>> {
    let door = |root: &Path| root.join(relative).join("cgroup.procs");
    if mounts.join("cgroup.procs").exists() {
        return Ok([door(mounts)].into_iter().filter(|door| door.exists()).collect());
    }
    let mut doors = Vec::new();
    for entry in std::fs::read_dir(mounts)? {
        let entry = entry?;
        // The names of controllers that share a hierarchy are links to it.
        if entry.file_type()?.is_dir() && door(&entry.path()).exists() {
            doors.push(door(&entry.path()));
        }
    }
    Ok(doors)
}

/// Makes `pid` a little more likely to be killed when memory runs out than `parent`, containerd, which is protected: a shim
/// costs one pod, containerd all.
pub fn adjust_oom_score(pid: u32, parent: u32) -> Result<(), ShimError> {
    let score = |pid: u32| -> Option<i32> { std::fs::read_to_string(file(pid)).ok()?.trim().parse().ok() };
    let Some(wanted) = score(parent).map(|score| (score + 1).min(OOM_MAX)) else { return Ok(()) };
    match tell(&file(pid), &wanted.to_string()) {
        // To lower it needs a right. It inherited its parent's, so it has asked for more by itself.
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied && score(pid).is_some_and(|own| own > wanted) => {
            Ok(())
        }
        told => told.map_err(ShimError::io("write", file(pid))),
    }
}

fn file(pid: u32) -> PathBuf {
    format!("/proc/{pid}/oom_score_adj").into()
}

fn tell(path: &Path, text: &str) -> io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn one_hierarchy_or_several() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["pids/shims/a", "cpu,cpuacct/shims/a", "memory"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
            std::fs::File::create(dir.path().join(path).join("cgroup.procs")).unwrap();
        }
        std::os::unix::fs::symlink("cpu,cpuacct", dir.path().join("cpu")).unwrap();
        let of = |relative: &str| {
            let mut doors = doors(dir.path(), Path::new(relative)).unwrap();
            doors.sort();
            doors.into_iter().map(|d| d.strip_prefix(dir.path()).unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of("shims/a"), ["cpu,cpuacct/shims/a/cgroup.procs", "pids/shims/a/cgroup.procs"].map(PathBuf::from));
        assert!(of("none").is_empty());
        std::fs::File::create(dir.path().join("cgroup.procs")).unwrap();
        assert!(of("shims/a").is_empty());
        assert_eq!(of("memory"), [PathBuf::from("memory/cgroup.procs")]);
    }

    #[test]
    fn what_is_no_cgroup() {
        // No process has this number.
        let nobody = i32::MAX as u32;
        for group in ["../x", "/a/../../b", "", "/", "/no-such-cgroup-of-ours"] {
            assert!(matches!(enter_cgroup(nobody, Path::new(group)), Err(ShimError::Invalid(_))), "{group:?}");
        }
    }

    #[test]
    fn a_shim_goes_before_containerd() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let own = std::fs::read_to_string(file(std::process::id())).unwrap().trim().parse::<i32>().unwrap();
        adjust_oom_score(child.id(), std::process::id()).unwrap();
        let got = std::fs::read_to_string(file(child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(got.trim().parse::<i32>().unwrap(), (own + 1).min(OOM_MAX));
    }
}
