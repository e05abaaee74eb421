//! Mounts as the configuration asks for them, where libcontainer leaves them otherwise: a list of repairs, made in the
//! container's mount namespace while its first process waits for `start`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, Uid};

use super::cgroup_mount::{Parts, is_cgroup};
use super::copyup;
use super::error::{On, RuntimeError};
use super::facts::Judged;
use super::place::{self, open};
use super::volumes::{Namespaces, clone_source, propagation};
use crate::policy::Confinement;
use crate::spec::{Config, inroot};
use crate::sys::mountattr::{self, MountAttr};
use crate::sys::{inside, proc};

/// One repair.
#[derive(Debug)]
enum Fixup {
    /// Flags or propagation that libcontainer does not apply.
    Attr { at: PathBuf, attr: MountAttr, recursive: bool, why: &'static str },
    /// A clone of the engine's `/dev`, put in the place of the one that libcontainer worked in. What was mounted below is mounted
    /// below the new one again.
    Put { at: PathBuf, tree: OwnedFd, again: Vec<PathBuf> },
    /// What is mounted there must be what was judged.
    Same { at: PathBuf, identity: (u64, u64) },
    /// A file that is masked by a device: it can't be opened either, so that nothing is lost in it.
    Deny { at: PathBuf },
    /// A tmpfs that is to start with what it covers.
    CopyUp { at: PathBuf, from: OwnedFd },
    /// Symbolic links, name and target, on a cgroup mount's tmpfs.
    Links { at: PathBuf, links: Vec<(String, String)> },
}

/// The repairs that a container needs.
#[derive(Debug)]
pub struct Fixups(Vec<Fixup>);

impl Fixups {
    /// Plans them. `engine` is the configuration as the engine wrote it, `normalised` what libcontainer got (the same
    /// mounts in the same order, then perhaps more). `bundle` is where relative sources are. `cgroups` is what cgroup mounts
    /// are made of, if they are written out. At the places `placed` all is as it should be.
    pub fn plan(
        engine: &Config,
        normalised: &Config,
        root: &OwnedFd,
        bundle: &Path,
        cgroups: Option<&Parts>,
        placed: &[&Path],
    ) -> Result<Fixups, RuntimeError> {
        let mut list = Vec::new();
        let mut given = normalised.mounts();
        given.truncate(engine.mounts().len());
        let masked = masked(engine);
        let places: Vec<PathBuf> = given.iter().map(|mount| mount.destination.clone()).collect();
        for (index, (wanted, at)) in engine.mounts().iter().zip(given.iter().map(|m| m.destination.clone())).enumerate()
        {
            if wanted.is_dev_bind() {
                let at = PathBuf::from("/dev");
                let tree = clone_source(wanted, &at, bundle, engine, &mut Namespaces::default())?;
                let mut again = place::seen_below(&places, &at);
                if engine.terminal() {
                    again.push("/dev/console".into());
                }
                list.push(Fixup::Put { at, tree, again });
                continue;
            }
            if placed.contains(&&*at) || wanted.is_withheld(engine, bundle) {
                continue;
            }
            // One that is covered nobody sees.
            let covered = masked.iter().any(|path| at.starts_with(path))
                || given[index + 1..].iter().any(|later| at.starts_with(&later.destination));
            if let Some(parts) = cgroups.filter(|_| is_cgroup(wanted) && !covered) {
                let links = parts.links();
                if !links.is_empty() {
                    let links = links.into_iter().map(|(name, to)| (name.to_owned(), to.to_owned())).collect();
                    list.push(Fixup::Links { at: at.clone(), links });
                }
                // Its other flags libcontainer sets. What is mounted on it has flags of its own.
                if wanted.has("ro") {
                    let attr = MountAttr { set: mountattr::RDONLY, propagation: 0 };
                    list.push(Fixup::Attr { at: at.clone(), attr, recursive: false, why: "cgroup mount flags" });
                }
            }
            if let Some((propagation, recursive)) = propagation(wanted) {
                let attr = MountAttr { set: 0, propagation };
                list.push(Fixup::Attr { at: at.clone(), attr, recursive, why: "propagation" });
            }
            if wanted.kind == "tmpfs" && wanted.has("tmpcopyup") {
                // A place that the root filesystem does not have has nothing to copy.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                if let Ok(from) = inroot::open(root, &at, flags) {
                    list.push(Fixup::CopyUp { at, from });
                }
            }
        }
        Ok(Fixups(list))
    }

    /// What the profile `strict` needs besides: the sources of bind mounts are the ones that were judged, and nothing of the
    /// image is a device or setuid, nor of what is mounted below it on the host (`carried`).
    pub fn confine(
        &mut self,
        engine: &Config,
        normalised: &Config,
        judged: &[Judged],
        carried: &[PathBuf],
        confinement: &Confinement,
    ) -> Result<(), RuntimeError> {
        let places: Vec<PathBuf> = normalised.mounts().into_iter().map(|m| m.destination).collect();
        let masked = masked(engine);
        let mut first = Vec::new();
        for Judged { mount, identity, .. } in judged {
            // Who makes overlays of some looks at their sources himself.
            let Some(at) = places.get(*mount).filter(|at| !confinement.copy_on_write.contains(at)) else { continue };
            // What is covered by a later mount nobody sees.
            let covered = places[mount + 1..].iter().any(|later| at.starts_with(later));
            if !covered && !masked.iter().any(|path| at.starts_with(path)) {
                first.push(Fixup::Same { at: at.clone(), identity: *identity });
            }
        }
        let attr = MountAttr { set: confinement.root_flags, propagation: 0 };
        // Places of mounts may be named by the links.
        self.0.sort_by_key(|fixup| !matches!(fixup, Fixup::Links { .. }));
        let links = self.0.iter().take_while(|fixup| matches!(fixup, Fixup::Links { .. })).count();
        self.0.splice(links..links, first);
        self.0.push(Fixup::Attr { at: "/".into(), attr, recursive: false, why: "flags" });
        self.0.extend(confinement.denied.iter().map(|at| Fixup::Deny { at: at.clone() }));
        for at in carried.iter().filter(|at| !places.iter().any(|place| at.starts_with(place))) {
            let attr = MountAttr { set: mountattr::NOSUID | mountattr::NODEV, propagation: 0 };
            self.0.push(Fixup::Attr { at: at.clone(), attr, recursive: false, why: "flags" });
        }
        Ok(())
    }

    /// Makes them in the mount namespace of process `pid`.
    pub fn apply(&self, pid: i32) -> Result<(), RuntimeError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let path = PathBuf::from(format!("/proc/{pid}"));
        let dir = rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .on("open", &path)?;
        inside::in_mount_namespace(&dir, |root| self.0.iter().try_for_each(|fixup| fixup.apply(root)))
            .during("run a helper in the container's mount namespace")?
            .map_err(RuntimeError::Fixup)
    }
}

impl Fixup {
    fn apply(&self, root: &OwnedFd) -> Result<(), String> {
        match self {
            Fixup::Attr { at, attr, recursive, why } => open(root, at, OFlags::PATH)
                .and_then(|mount| Ok(mountattr::set(mount, *attr, *recursive)?))
                .map_err(|err| format!("{why} of {}: {err}", at.display())),
            Fixup::Put { at, tree, again } => place::exchange(root, at, tree, again, None),
            Fixup::Same { at, identity } => open(root, at, OFlags::PATH)
                .and_then(|mount| Ok(rustix::fs::fstat(mount)?))
                .map_err(|err| format!("look at mount {}: {err}", at.display()))
                .and_then(|stat| same(at, *identity, &stat)),
            Fixup::Deny { at } => deny(root, at).map_err(|err| format!("deny {}: {err}", at.display())),
            Fixup::CopyUp { at, from } => open(root, at, OFlags::RDONLY | OFlags::DIRECTORY)
                .and_then(|to| copyup::copy(from, &to))
                .map_err(|err| format!("tmpcopyup to {}: {err}", at.display())),
            Fixup::Links { at, links } => open(root, at, OFlags::PATH | OFlags::DIRECTORY)
                .and_then(|dir| link(&dir, links))
                .map_err(|err| format!("make symbolic links in {}: {err}", at.display())),
        }
    }
}

/// The masked paths of a configuration. An empty one would be the beginning of all.
fn masked(config: &Config) -> Vec<&Path> {
    let paths = config.value()["linux"]["maskedPaths"].as_array();
    paths.into_iter().flatten().filter_map(|p| p.as_str().map(Path::new)).filter(|path| path.is_absolute()).collect()
}

/// Makes symbolic links in the directory `dir`, as its owner: the file system of a user namespace takes no others' files.
fn link(dir: &OwnedFd, links: &[(String, String)]) -> std::io::Result<()> {
    use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
    let stat = rustix::fs::fstat(dir)?;
    let (root_uid, root_gid) = (Uid::ROOT, Gid::ROOT);
    // This is a helper process of one thread.
    set_thread_res_gid(root_gid, Gid::from_raw(stat.st_gid), root_gid)?;
    set_thread_res_uid(root_uid, Uid::from_raw(stat.st_uid), root_uid)?;
    let made = links.iter().try_for_each(|(name, to)| match rustix::fs::symlinkat(to.as_str(), dir, name.as_str()) {
        // A mount's place.
        Err(rustix::io::Errno::EXIST) => Ok(()),
        made => made,
    });
    set_thread_res_uid(root_uid, root_uid, root_uid)?;
    set_thread_res_gid(root_gid, root_gid, root_gid)?;
    Ok(made?)
}

fn same(at: &Path, identity: (u64, u64), stat: &rustix::fs::Stat) -> Result<(), String> {
    if (stat.st_dev, stat.st_ino) == identity {
        return Ok(());
    }
    let at = at.display();
    Err(format!("mount on {at}: its source was replaced while the container was being made; try again"))
}

/// Where nothing is there is nothing to deny.
fn deny(root: &OwnedFd, at: &Path) -> std::io::Result<()> {
    let masked = match open(root, at, OFlags::PATH) {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let stat = rustix::fs::fstat(&masked)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device() {
        mountattr::set(&masked, MountAttr { set: mountattr::NODEV, propagation: 0 }, false)?;
    }
    Ok(())
}

/// Gives the first process's stdio to the user it runs as, as runc does: else a pipe or terminal that root opened could
/// not be reopened through `/proc/self/fd`. `/dev/null` is left alone: it may be the host's.
pub fn own_stdio(pid: i32, config: &Config) {
    let (uid, _) = config.user();
    let Some(host) = config.host_uid(uid).filter(|host| *host != 0) else { return };
    if proc::stat(pid).ok().flatten().is_none() {
        return;
    }
    let null = rustix::fs::makedev(1, 3);
    for fd in 0..3 {
        // Through the magic link, to the very file. Not being allowed to (EROFS, EPERM) is no reason to fail.
        let path = format!("/proc/{pid}/fd/{fd}");
        let Ok(stat) = rustix::fs::stat(&path) else { continue };
        if stat.st_uid != host && stat.st_rdev != null {
            let _ = rustix::fs::chown(&path, Some(rustix::fs::Uid::from_raw(host)), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::cgroup::Hierarchy;
    use serde_json::json;

    fn plan(mounts: serde_json::Value, all: &[Hierarchy]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("run")).unwrap();
        let root = inroot::open_root(dir.path()).unwrap();
        let config = Config::from_value(json!({"mounts": mounts, "linux": {"maskedPaths": ["", "/sys/masked"]}}));
        let parts = Parts::prepare(&config, Path::new("/a"), all);
        Fixups::plan(&config, &config, &root, Path::new("/"), parts.as_ref(), &[])
            .unwrap()
            .0
            .iter()
            .map(|f| match f {
                Fixup::Attr { at, attr, recursive, .. } => format!("{} {attr:?} {recursive}", at.display()),
                Fixup::Put { at, again, .. } => format!("{} {again:?}", at.display()),
                Fixup::CopyUp { at, .. } => format!("{} copy", at.display()),
                Fixup::Deny { at } => format!("{} deny", at.display()),
                Fixup::Same { at, .. } => format!("{} same", at.display()),
                Fixup::Links { at, links } => format!("{} {links:?}", at.display()),
            })
            .collect()
    }

    #[test]
    fn plans() {
        let v1 = |controllers: &str| Hierarchy {
            controllers: controllers.into(),
            mount_point: Path::new("/sys/fs/cgroup").join(controllers),
            root: "/".into(),
        };
        let all = [v1("memory"), v1("cpu,cpuacct")];
        let at = |at: &str| json!({"destination": at, "type": "cgroup", "options": ["ro", "nosuid"]});
        let read_only = MountAttr { set: mountattr::RDONLY, propagation: 0 };
        let flags = format!("/c {read_only:?} false");
        let links = r#"/c [("cpu", "cpu,cpuacct"), ("cpuacct", "cpu,cpuacct")]"#.to_owned();
        assert_eq!(plan(json!([at("/c")]), &all), [&*links, &*flags]);
        assert_eq!(plan(json!([at("/c"), {"destination": "/c/cpu"}]), &all[..1]), [flags]);
        for covered in [json!([at("/sys/c"), {"destination": "/sys"}]), json!([at("/sys/masked/c")])] {
            assert_eq!(plan(covered, &all), <[String; 0]>::default());
        }
        assert!(plan(json!([at("/c")]), &[]).is_empty());
        let binds = json!([{"destination": "/a", "type": "bind", "options": ["rbind", "rprivate"]},
            {"destination": "/b", "type": "bind", "options": ["rbind", "shared"]}, {"destination": "/c"}]);
        let attr = |propagation| MountAttr { set: 0, propagation };
        assert_eq!(
            plan(binds, &all),
            [format!("/a {:?} true", attr(libc::MS_PRIVATE)), format!("/b {:?} false", attr(libc::MS_SHARED))]
        );
        let tmpfs = json!([{"destination": "/run", "type": "tmpfs", "options": ["tmpcopyup"]},
            {"destination": "/none", "type": "tmpfs", "options": ["tmpcopyup"]}]);
        assert_eq!(plan(tmpfs, &all), ["/run copy"]);
    }
}
