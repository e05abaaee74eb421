//! A container's cgroups, looked up once, while its first process is sure to be in them.

use std::path::Path;

use super::ShimError;
use crate::sys::cgroup::{self, CgroupDir, Files};
use crate::terms::FIRST_GROUP;

/// The container's group in each hierarchy; none in one where it has no group of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupPaths {
    dirs: Vec<CgroupDir>,
}

impl CgroupPaths {
    /// Of the container whose first process is `pid`. Reads `/proc`.
    pub fn of(pid: u32) -> Result<CgroupPaths, ShimError> {
        let failed = |err: crate::sys::SysError| ShimError::Io {
            doing: "read",
            path: format!("/proc/{pid}/cgroup").into(),
            source: err.into(),
        };
        let all = cgroup::hierarchies().map_err(failed)?;
        let pid = i32::try_from(pid).map_err(|_| ShimError::Invalid(format!("pid {pid}")))?;
        let dirs = cgroup::of_process(pid, &all).map_err(failed)?;
        // What the host has at its roots is not the container's.
        let mut dirs = cgroup::without_roots(dirs.into_iter().map(above_first).collect(), &all);
        dirs.shrink_to_fit();
        Ok(CgroupPaths { dirs })
    }

    /// Whether v2 is all that counts, as containerd sees it: where both are mounted, v1 counts.
    pub(super) fn is_v2(&self) -> bool {
        self.dirs.iter().all(|dir| dir.is_v2() || dir.controllers.starts_with("name="))
    }

    /// The container's group of a v1 controller.
    pub(super) fn v1(&self, controller: &str) -> Option<&Path> {
        self.dirs.iter().find(|dir| dir.has(controller)).map(|dir| dir.path.as_path())
    }

    /// Its group on v2.
    pub(super) fn v2(&self) -> Option<&Path> {
        self.dirs.iter().find(|dir| dir.is_v2()).map(|dir| dir.path.as_path())
    }

    /// The files that count for a controller.
    pub(super) fn files(&self, controller: &str) -> Files<'_> {
        Files(if self.is_v2() { self.v2() } else { self.v1(controller) })
    }

    /// Whether any of them is still there.
    pub(super) fn exist(&self) -> bool {
        self.dirs.iter().any(|dir| dir.path.is_dir())
    }

    #[cfg(test)]
    pub(super) fn from_dirs(dirs: Vec<CgroupDir>) -> CgroupPaths {
        CgroupPaths { dirs }
    }
}

/// On v2 the runtime moves the first process one down when it is started.
fn above_first(mut dir: CgroupDir) -> CgroupDir {
    if dir.is_v2() && dir.path.file_name().is_some_and(|name| name == FIRST_GROUP) {
        dir.path.pop();
    }
    dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processs_own_group_is_not_the_containers() {
        let dir = |controllers: &str, path: &str| CgroupDir { controllers: controllers.into(), path: path.into() };
        assert_eq!(above_first(dir("", "/g/c/agentsbx-first")), dir("", "/g/c"));
        assert_eq!(above_first(dir("", "/g/c")), dir("", "/g/c"));
        assert_eq!(above_first(dir("pids", "/g/c/agentsbx-first")), dir("pids", "/g/c/agentsbx-first"));
    }

    #[test]
    fn where_both_are_mounted_v1_counts() {
        let dir =
            |controllers: &str| CgroupDir { controllers: controllers.into(), path: format!("/{controllers}").into() };
        assert!(CgroupPaths::from_dirs(vec![dir("")]).is_v2());
        assert!(CgroupPaths::from_dirs(vec![dir("name=systemd"), dir("")]).is_v2());
        let hybrid = CgroupPaths::from_dirs(vec![dir("cpu,cpuacct"), dir("memory"), dir("")]);
        assert!(!hybrid.is_v2());
        assert_eq!(hybrid.files("cpuacct").0, Some(Path::new("/cpu,cpuacct")));
        assert_eq!(hybrid.files("pids").0, None);
    }

    /// Whatever groups this process is in, none of them is a hierarchy's root.
    #[test]
    fn a_living_process_has_groups() {
        let found = CgroupPaths::of(std::process::id()).unwrap();
        assert!(found.dirs.iter().all(|dir| dir.path.is_dir()));
        assert!(CgroupPaths::of(u32::MAX).is_err());
    }
}
