//! The parts of the host that are ours to use, tried as an exec uses them: the store's filesystem and the cgroups.
//!
//! All that is made is a staged layer (which the collector knows, should this process be killed), an empty cgroup with one
//! waiting process, and where there is no store yet one of a few files beside its place. All of it is taken away again.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

use crate::error::chain;
use crate::rootfs::{Lowers, RootfsError, layered_root, open_dir};
use crate::runtime::cgroup::{self, CgroupDir};
use crate::runtime::exec::ExecError;
use crate::runtime::exec::cgroup::{ExecCgroup, OWN, Usage};
use crate::store::{Finding, Store};
use crate::sys::SysError;
use crate::sys::probe::{self, Failure, Tried, Waiting};
use crate::sys::process::join_cgroups;
use crate::sys::quota;

/// What was found out about the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreTrial {
    /// The store's directory.
    pub root: PathBuf,
    /// The directory in which a store was made for the trial, because there is none at `root` yet.
    pub instead: Option<PathBuf>,
    /// Whether it opens.
    pub open: Tried,
    /// What must not be in it and is.
    pub findings: Result<Vec<Finding>, Failure>,
    /// Whether a layer of it can be mounted, and what is written there arrives.
    pub overlay: Tried,
    /// Whether it can hold `trusted.*` attributes.
    pub trusted_xattr: Tried,
    /// Whether its filesystem holds a layer to a limit by itself.
    pub quota: Tried,
}

fn failure(err: &(dyn std::error::Error + 'static)) -> Failure {
    Failure { text: chain(err), errno: None }
}

fn io_failure(what: &str, err: &std::io::Error) -> Failure {
    Failure { text: format!("{what}: {err}"), errno: err.raw_os_error() }
}

/// Tries the store at `root`, or one beside it if there is none.
pub fn store(root: &Path) -> StoreTrial {
    let not_tried = || Failure { text: "not tried: the store does not open".into(), errno: None };
    let mut trial = StoreTrial {
        root: root.to_owned(),
        instead: None,
        open: Ok(()),
        findings: Err(not_tried()),
        overlay: Err(not_tried()),
        trusted_xattr: Err(not_tried()),
        quota: Err(not_tried()),
    };
    let scratch = if root.exists() { None } else { Scratch::beside(root) };
    trial.instead = scratch.as_ref().and_then(|s| s.0.parent()).map(Path::to_owned);
    match Store::open(scratch.as_ref().map_or(root, |s| &s.0)) {
        Ok(store) => {
            trial.findings = store.check().map_err(|err| failure(&err));
            (trial.overlay, trial.trusted_xattr) = layer(&store);
            trial.quota = quota(store.root());
        }
        Err(err) => trial.open = Err(failure(&err)),
    }
    trial
}

fn quota(root: &Path) -> Tried {
    let dir = open_dir(root).map_err(rootfs_failure)?;
    match quota::is_enforced(dir.as_fd())? {
        true => Ok(()),
        false => Err(Failure { text: "limits of projects are not enforced".into(), errno: None }),
    }
}

/// A directory that is removed, with all in it, when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    /// A name in the nearest directory above `path` that there is.
    fn beside(path: &Path) -> Option<Scratch> {
        let parent = path.ancestors().skip(1).find(|p| p.is_dir())?;
        Some(Scratch(parent.join(format!(".agentsbx-check-{}", std::process::id()))))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Where it could not be made there is nothing to remove.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Mounts a layer over another as an exec's is mounted, and writes to it.
fn layer(store: &Store) -> (Tried, Tried) {
    let staged = store.create_layer().and_then(|upper| Ok((upper, store.create_layer()?)));
    let (upper, lower) = match staged {
        Ok(staged) => staged,
        Err(err) => return (Err(failure(&err)), Err(failure(&err))),
    };
    let xattr = match open_dir(&upper.upper()) {
        Ok(dir) => probe::trusted_xattr(dir.as_fd()),
        Err(err) => Err(rootfs_failure(err)),
    };
    let overlay = || -> Tried {
        let dir = lower.upper();
        File::create(dir.join("gone")).map_err(|err| io_failure("make a file in the store", &err))?;
        rustix::fs::mkdir(dir.join("anew"), Mode::RWXU)
            .map_err(|errno| io_failure("make a directory in the store", &errno.into()))?;
        let lowers = Lowers::open(&[], &dir).map_err(rootfs_failure)?;
        let upper_dir = open_dir(&upper.upper()).map_err(rootfs_failure)?;
        let root = layered_root(lowers, &upper.upper(), &upper.work(), false).map_err(rootfs_failure)?;
        // Older kernels mount in a namespace of this process's own; it stays there for the rest of its short life.
        let mounted = root.mounted().map_err(rootfs_failure)?;
        probe::overlay_writes(mounted.as_fd(), upper_dir.as_fd())
    };
    (overlay(), xattr)
}

fn rootfs_failure(err: RootfsError) -> Failure {
    let errno = match &err {
        RootfsError::Sys { source, .. } => SysError::errno(source),
        _ => None,
    };
    Failure { text: chain(&err), errno }
}

/// What was found out about cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupTrial {
    /// Controllers of the v1 hierarchies that are mounted.
    pub v1: Vec<String>,
    /// Controllers of the v2 hierarchy, if it is mounted.
    pub v2: Option<Vec<String>>,
    /// Whether a group can be made in each hierarchy that an exec has one in, a process be put there and killed there.
    pub group: Tried,
    /// Whether such a group can be killed at once (`cgroup.kill`).
    pub kill: bool,
    /// Whether such a group can be frozen.
    pub freeze: bool,
    /// What such a group counts.
    pub usage: Usage,
}

impl CgroupTrial {
    /// Whether a controller is to be had, on v1 or v2.
    pub fn has(&self, controller: &str) -> bool {
        let named = |list: &Vec<String>| list.iter().any(|c| c == controller);
        named(&self.v1) || self.v2.as_ref().is_some_and(named)
    }
}

/// Tries the cgroup hierarchies that are mounted here.
pub fn cgroups() -> CgroupTrial {
    let mut trial =
        CgroupTrial { v1: Vec::new(), v2: None, group: Ok(()), kill: false, freeze: false, usage: Usage::default() };
    let all = match cgroup::hierarchies() {
        Ok(all) => all,
        Err(err) => {
            trial.group = Err(failure(&err));
            return trial;
        }
    };
    for hierarchy in &all {
        if hierarchy.controllers.is_empty() {
            let text = std::fs::read_to_string(hierarchy.mount_point.join("cgroup.controllers")).unwrap_or_default();
            trial.v2 = Some(text.split_ascii_whitespace().map(str::to_owned).collect());
        } else {
            trial.v1.extend(hierarchy.controllers.split(',').map(str::to_owned));
        }
    }
    let mut roots = cgroup::of_path(Path::new("/"), &all);
    // An exec joins its container's group in the others.
    roots.retain(|dir| dir.is_v2() || OWN.iter().any(|name| dir.has(name)));
    trial.group = group(&roots, &mut trial);
    trial
}

fn group(roots: &[CgroupDir], trial: &mut CgroupTrial) -> Tried {
    if roots.is_empty() {
        return Err(Failure { text: "no cgroup hierarchy is mounted".into(), errno: Some(libc::ENOENT) });
    }
    let name = format!("agentsbx-check-{}", std::process::id());
    let made = ExecCgroup::plan(roots, None, &name).map_err(exec_failure)?;
    if made.paths().is_empty() {
        // What is mounted over the mount points hides them.
        return Err(Failure { text: "no cgroup hierarchy can be reached".into(), errno: Some(libc::ENOENT) });
    }
    made.create().map_err(exec_failure)?;
    let outcome = in_group(&made, trial);
    let removed = made.remove().map_err(exec_failure);
    outcome.and(removed)
}

fn in_group(made: &ExecCgroup, trial: &mut CgroupTrial) -> Tried {
    let has = |file: &str| made.paths().iter().any(|dir| dir.join(file).exists());
    (trial.kill, trial.freeze) = (has("cgroup.kill"), has("freezer.state") || has("cgroup.freeze"));
    let doors = made.doors(false);
    let _waiting = Waiting::start(|| join_cgroups(&doors))?;
    trial.usage = made.usage();
    let killed = made.kill_all().map_err(exec_failure)?;
    match (killed.seen, killed.left) {
        (1, None) => Ok(()),
        (0, _) => Err(Failure { text: "the process put into the group is not listed there".into(), errno: None }),
        _ => Err(Failure { text: "the process put into the group could not be killed there".into(), errno: None }),
    }
}

fn exec_failure(err: ExecError) -> Failure {
    let errno = match &err {
        ExecError::Cgroup(err) => err.source.raw_os_error(),
        _ => None,
    };
    Failure { text: chain(&err), errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<std::ffi::OsString> {
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect()
    }

    #[test]
    fn a_store_that_is_not_there_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let trial = store(&dir.path().join("a/b"));
        assert_eq!(trial.open, Ok(()));
        assert_eq!(trial.findings, Ok(Vec::new()));
        assert_eq!(trial.instead.as_deref(), Some(dir.path()));
        assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
    }

    #[test]
    fn a_store_keeps_nothing_of_a_trial() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let opened = Store::open(&root).unwrap();
        let trial = store(&root);
        assert_eq!((trial.open, trial.instead), (Ok(()), None));
        assert!(names(&root.join("layers")).is_empty() && names(&root.join("trash")).is_empty());
        assert_eq!(opened.check().unwrap(), []);
    }

    /// A store that is open to others is refused, and the rest is not tried.
    #[test]
    fn a_store_that_does_not_open_says_why() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let trial = store(dir.path());
        assert!(trial.open.unwrap_err().text.contains("not private"));
        assert!(trial.overlay.unwrap_err().text.contains("not tried"));
        assert!(names(dir.path()).is_empty());
    }
}
