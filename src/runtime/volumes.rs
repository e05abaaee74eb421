//! Bind mounts that libcontainer is not given: those that map ids, which it can't make, and those whose source the root of the
//! container's user namespace can't get to. Each is made detached before anything else is, so that what is wrong with one is
//! found before there is a container, and is put in its [`Place`] later.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::mount::OpenTreeFlags;

use super::cow::CowSource;
use super::error::{On, RuntimeError};
use super::facts::Judged;
use super::place::{Place, What};
use crate::spec::idmap::{IdMaps, IdSource, Mapping, MountIds};
use crate::spec::{Config, Mount};
use crate::sys::mountattr::{self, ATIME, MountAttr};
use crate::sys::userns::{self, IdRange};
use crate::sys::{SysError, locked, mountinfo, ns, proc};

/// What is mounted on the host.
const MOUNTS: &str = "/proc/self/mountinfo";
/// `STATX_MNT_ID` of statx(2).
const MOUNT_ID: StatxFlags = StatxFlags::MNT_ID;

/// One that is ready.
#[derive(Debug)]
pub(super) struct Volume {
    /// Where it goes, absolute inside the container, without symbolic links.
    pub at: PathBuf,
    tree: OwnedFd,
    owner: Option<(u32, u32)>,
}

/// User namespaces for the ids of one container's mounts: those with the same ranges share one.
#[derive(Debug, Default)]
pub(super) struct Namespaces(Vec<(IdSource, OwnedFd)>);

impl Namespaces {
    fn of(&mut self, by: &IdSource) -> Result<&OwnedFd, SysError> {
        let n = match self.0.iter().position(|(known, _)| known == by) {
            Some(n) => n,
            None => {
                let namespace = match by {
                    IdSource::Ranges(IdMaps { uids, gids }) => userns::with_maps(&ranges(uids), &ranges(gids))?,
                    IdSource::Namespace(path) => ns::open(path, "user")?,
                };
                self.0.push((by.clone(), namespace));
                self.0.len() - 1
            }
        };
        Ok(&self.0[n].1)
    }
}

fn ranges(maps: &[Mapping]) -> Vec<IdRange> {
    maps.iter().map(|m| IdRange { inside: m.inside, outside: m.outside, size: m.size }).collect()
}

/// Makes them. `engine` is the configuration as the engine wrote it, `normalised` has the same mounts first, in the same order;
/// `bundle` is where relative sources are. Where the policy has judged a source, it must be that very one. Copy-on-write
/// mounts are another matter.
pub(super) fn prepare(
    engine: &Config,
    normalised: &Config,
    bundle: &Path,
    cows: &[CowSource],
    judged: &[Judged],
) -> Result<Vec<Volume>, RuntimeError> {
    let given = normalised.mounts();
    let places: Vec<PathBuf> = given.iter().map(|mount| mount.destination.clone()).collect();
    let own_mounts = engine.namespaces().iter().any(|(kind, path)| kind == "mount" && path.is_none());
    let root = engine.host_uid(0).zip(engine.host_gid(0));
    let (mut found, mut namespaces) = (Vec::new(), Namespaces::default());
    for (n, (mount, at)) in engine.mounts().iter().zip(&places).enumerate() {
        // Who can get to a source may have changed since libcontainer was given a placeholder for it.
        let withheld =
            mount.is_withheld(engine, bundle) || given.get(n).is_some_and(|given| mount.is_replaced_by(given));
        if !withheld || cows.iter().any(|cow| cow.at == *at) {
            continue;
        }
        let source = source_of(mount, bundle);
        if !own_mounts {
            let why = "the container has no mount namespace of its own, so it would be mounted nowhere: give it one, or \
                       leave the mount out";
            return Err(RuntimeError::Volume { at: at.clone(), of: source, why: why.into() });
        }
        let tree = clone_source(mount, at, bundle, engine, &mut namespaces)?;
        let stat = rustix::fs::fstat(&tree).on("look at mount", at)?;
        if judged.iter().any(|judged| judged.mount == n && judged.identity != (stat.st_dev, stat.st_ino)) {
            let why = "its source was replaced while the container was being made: try again".to_owned();
            return Err(RuntimeError::Volume { at: at.clone(), of: source, why });
        }
        // One that is covered nobody sees.
        if places[n + 1..].iter().any(|later| at.starts_with(later)) {
            continue;
        }
        // In a namespace that is joined nobody knows who is root; who has the volume is somebody there.
        let owner = root.or(Some((stat.st_uid, stat.st_gid)));
        found.push(Volume { at: at.clone(), tree, owner });
    }
    Ok(found)
}

/// Their places. This process must keep them open until all are put there.
pub(super) fn places(volumes: &[Volume], normalised: &Config) -> Vec<Place> {
    let ours = std::process::id();
    let tree = |volume: &Volume| What::Tree(format!("/proc/{ours}/fd/{}", volume.tree.as_raw_fd()).into());
    volumes.iter().map(|volume| Place::of(&volume.at, tree(volume), normalised, volume.owner)).collect()
}

fn source_of(mount: &Mount, bundle: &Path) -> PathBuf {
    bundle.join(mount.source.as_deref().unwrap_or(Path::new("")))
}

/// The source of a bind mount at `at` as a detached tree, with the mount's flags, propagation and ids.
pub(super) fn clone_source(
    mount: &Mount,
    at: &Path,
    bundle: &Path,
    engine: &Config,
    namespaces: &mut Namespaces,
) -> Result<OwnedFd, RuntimeError> {
    let source = &source_of(mount, bundle);
    let mut how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    how.set(OpenTreeFlags::AT_RECURSIVE, mount.has("rbind"));
    let tree = rustix::mount::open_tree(rustix::fs::CWD, source, how).map_err(|err| RuntimeError::Source {
        at: mount.destination.clone(),
        of: source.clone(),
        source: err.into(),
    })?;
    if let Some(ids) = mount.ids(engine)? {
        map(&tree, &ids, namespaces).map_err(|err| {
            let hint = hint(&err, source, mount, &ids, namespaces);
            RuntimeError::MountIds { at: at.to_owned(), of: source.clone(), hint, source: err }
        })?;
    }
    // What it is a peer of is the host's own.
    if let Some(propagation) = of_the_hosts(engine) {
        mountattr::set(&tree, MountAttr { set: 0, propagation }, true).on("set propagation of", source)?;
    }
    let user = engine.has_namespace("user");
    for (flags, deep) in [(flags(mount, ""), false), (flags(mount, "r"), true)] {
        // What the host has its mounts read-only for, say, holds for a user namespace too.
        let clear = if user { flags.clear & ATIME } else { flags.clear };
        if (flags.set, clear) != (0, 0) {
            let attr = MountAttr { set: flags.set, propagation: 0 };
            mountattr::change(&tree, attr, clear, deep).on("set flags of", source)?;
        }
    }
    let tree = if user { locked::copy(tree.as_fd()).on("lock the mount of", source)? } else { tree };
    let (propagation, deep) = propagation(mount).unwrap_or((libc::MS_PRIVATE, true));
    mountattr::set(&tree, MountAttr { set: 0, propagation }, deep).on("set propagation of", source)?;
    Ok(tree)
}

fn map(tree: &OwnedFd, ids: &MountIds, namespaces: &mut Namespaces) -> Result<(), SysError> {
    mountattr::map_ids(tree, namespaces.of(&ids.by)?.as_fd(), ids.recursive)
}

/// What an error in mapping ids comes from, and what to do.
fn hint(err: &SysError, source: &Path, mount: &Mount, ids: &MountIds, namespaces: &mut Namespaces) -> String {
    match (err.call, err.errno()) {
        ("write", Some(libc::EINVAL)) => {
            "the kernel refuses these ranges: take fewer, as all of them, written out, have to be shorter than a page of memory"
                .to_owned()
        }
        ("mount_setattr", Some(libc::EINVAL)) => {
            let below = if mount.has("rbind") && ids.recursive { mounted_below(source) } else { Vec::new() };
            match below.into_iter().find(|(path, _)| !can_map(path, &ids.by, namespaces)) {
                Some((path, kind)) if can_map(source, &ids.by, namespaces) => format!(
                    "the file system ({kind}) that is mounted below, on {}, can't do that with this kernel: unmount it, or \
                     take idmap in the place of ridmap, which maps the top alone",
                    path.display()
                ),
                _ => {
                    let kind = kind_of(source).map_or_else(String::new, |kind| format!(" ({kind})"));
                    format!("its file system{kind} can't do that with this kernel: take a directory of another one, or leave the mapping out")
                }
            }
        }
        ("mount_setattr", Some(libc::EPERM)) => {
            "it maps ids already, or the namespace is the host's own: bind the original directory, or leave the mapping out"
                .to_owned()
        }
        ("clone3", Some(libc::ENOSPC | libc::EUSERS)) => {
            "no more user namespaces may be made: see /proc/sys/user/max_user_namespaces".to_owned()
        }
        (_, Some(libc::EPERM)) => "only the host's root can: leave the mapping out".to_owned(),
        ("open", _) => "it takes the user namespace that the container is to join".to_owned(),
        _ => "it can't be done".to_owned(),
    }
}

/// The type of the file system of `source`, if that can be found out.
fn kind_of(source: &Path) -> Option<String> {
    let id = rustix::fs::statx(rustix::fs::CWD, source, AtFlags::empty(), MOUNT_ID).ok()?.stx_mnt_id;
    mountinfo::kind_of(&proc::read(Path::new(MOUNTS)).ok()?, id)
}

/// What is mounted below `source`, with the types of the file systems; none where that can't be found out.
fn mounted_below(source: &Path) -> Vec<(PathBuf, String)> {
    let (Ok(top), Ok(all)) = (std::fs::canonicalize(source), proc::read(Path::new(MOUNTS))) else { return Vec::new() };
    mountinfo::below(&all, &top)
}

/// Whether the mount at `path` alone takes the mapping: the kernel does not say which of several does not.
fn can_map(path: &Path, by: &IdSource, namespaces: &mut Namespaces) -> bool {
    let how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_NO_AUTOMOUNT;
    let Ok(tree) = rustix::mount::open_tree(rustix::fs::CWD, path, how) else { return false };
    map(&tree, &MountIds { by: by.clone(), recursive: false }, namespaces).is_ok()
}

/// Flags to set, after others have been cleared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Flags {
    set: u64,
    clear: u64,
}

/// What the options with this prefix make of a mount's flags: of two that contradict each other the last. With an `r` in front
/// they hold for what is mounted below, too.
fn flags(mount: &Mount, prefix: &str) -> Flags {
    let known = |option: &String| mountattr::flags_of(option.strip_prefix(prefix)?);
    mount.options.iter().filter_map(known).fold(Flags::default(), |flags, (set, clear)| Flags {
        set: flags.set & !clear | set,
        clear: flags.clear & !(set & !ATIME) | clear,
    })
}

/// The propagation that mounts of the host have in the container's mount namespace, before a mount's own options; none if as
/// on the host. In a user namespace nothing that is mounted reaches the host: it would be the mount of somebody who is not
/// root there (mount_namespaces(7)).
fn of_the_hosts(engine: &Config) -> Option<u64> {
    match engine.value()["linux"]["rootfsPropagation"].as_str() {
        Some("shared" | "rshared") if !engine.has_namespace("user") => None,
        Some("private" | "rprivate" | "unbindable" | "runbindable") => Some(libc::MS_PRIVATE),
        _ => Some(libc::MS_SLAVE),
    }
}

/// The last propagation option of a mount, and whether it is recursive.
pub(super) fn propagation(mount: &Mount) -> Option<(u64, bool)> {
    mount.options.iter().rev().find_map(|option| mountattr::propagation_of(option))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn flags_of_options() {
        let with = |options: &[&str]| Mount::of(&json!({"destination": "/x", "options": options})).unwrap();
        let (ro, noexec) = (mountattr::RDONLY, mountattr::NOEXEC);
        let noatime = libc::MOUNT_ATTR_NOATIME;
        for (options, plain, recursive) in [
            (&["rbind", "rprivate", "idmap"][..], (0, 0), (0, 0)),
            (&["ro", "noexec", "exec"], (ro, noexec), (0, 0)),
            (&["rw", "ro", "rro", "rrw"], (ro, 0), (0, ro)),
            (&["noatime", "relatime"], (0, ATIME), (0, 0)),
            (&["relatime", "noatime", "ratime", "rstrictatime"], (noatime, ATIME), (0x20, ATIME)),
            (&["rnosuid", "nodev"], (mountattr::NODEV, 0), (mountattr::NOSUID, 0)),
        ] {
            let mount = with(options);
            let got = |prefix| flags(&mount, prefix);
            assert_eq!(got(""), Flags { set: plain.0, clear: plain.1 }, "{options:?}");
            assert_eq!(got("r"), Flags { set: recursive.0, clear: recursive.1 }, "{options:?}");
        }
    }

    #[test]
    fn what_reaches_the_host() {
        let with = |propagation: Value, namespaces: Value| {
            let linux = json!({"rootfsPropagation": propagation, "namespaces": namespaces});
            of_the_hosts(&Config::from_value(json!({ "linux": linux })))
        };
        let (none, user) = (json!([]), json!([{"type": "user"}]));
        for (propagation, namespaces, want) in [
            (Value::Null, &none, Some(libc::MS_SLAVE)),
            (json!("rslave"), &none, Some(libc::MS_SLAVE)),
            (json!("rshared"), &none, None),
            (json!("shared"), &none, None),
            (json!("rshared"), &user, Some(libc::MS_SLAVE)),
            (json!("private"), &user, Some(libc::MS_PRIVATE)),
        ] {
            assert_eq!(with(propagation.clone(), namespaces.clone()), want, "{propagation} {namespaces}");
        }
    }

    #[test]
    fn the_same_ranges_are_one_namespace() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root maps ids that are not its own");
            return;
        }
        let by = |outside| {
            let maps = vec![Mapping { inside: 0, outside, size: 10 }];
            IdSource::Ranges(IdMaps { uids: maps.clone(), gids: maps })
        };
        let mut namespaces = Namespaces::default();
        let mut inode = |by| rustix::fs::fstat(namespaces.of(&by).unwrap()).unwrap().st_ino;
        let own = IdSource::Namespace("/proc/self/ns/user".into());
        let found = [inode(by(1)), inode(by(2)), inode(by(1)), inode(own)];
        assert_eq!(found[0], found[2]);
        assert_ne!(found[0], found[1]);
        assert_ne!(found[0], found[3]);
        assert_eq!(namespaces.0.len(), 3);
    }
}
