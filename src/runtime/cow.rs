//! Copy-on-write bind mounts of the first process: the host's directory looked at before anything is made, and an overlay of
//! it put in place before the container's root is entered, where createRuntime hooks are run. libcontainer never has the
//! directory: it mounts an empty placeholder.

use std::error::Error;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};

use super::error::{On, RuntimeError};
use super::facts::Judged;
use super::fixup;
use crate::error::chain;
use crate::rootfs;
use crate::spec::normalise::clean_absolute;
use crate::spec::{Config, Mount, inroot};
use crate::sys::{inside, mountattr, mountinfo};

/// A copy-on-write mount whose source was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CowSource {
    /// Where it goes, absolute inside the container, symbolic links of the root filesystem resolved.
    pub at: PathBuf,
    /// The host's directory, canonical.
    pub source: PathBuf,
    /// Its device and inode.
    pub identity: (u64, u64),
    /// `MOUNT_ATTR_*` flags of the mount.
    pub flags: u64,
}

/// Where the first process's writes to one mount go: empty directories of one layer.
#[derive(Debug)]
pub struct CowLayer {
    /// What it writes.
    pub upper: PathBuf,
    /// Overlayfs's own: two, see [`rootfs::cow::First::overlay`].
    pub works: [PathBuf; 2],
    /// A descriptor that the first process is not to keep.
    pub lock: RawFd,
}

/// Makes the layer of one more copy-on-write mount.
pub type MakeLayer<'a> = dyn Fn() -> Result<CowLayer, Box<dyn Error + Send + Sync>> + 'a;

/// Looks at the sources of the mounts at `cows`, the destinations as the engine has them, cleaned. `normalised` has the
/// engine's mounts first, in the same order. Where the policy has judged a source, it must be that very one.
pub(super) fn sources(
    engine: &Config,
    normalised: &Config,
    bundle: &Path,
    cows: &[PathBuf],
    judged: &[Judged],
) -> Result<Vec<CowSource>, RuntimeError> {
    let mut found = Vec::new();
    let placed: Vec<PathBuf> = normalised.mounts().into_iter().map(|mount| mount.destination).collect();
    for (n, mount) in engine.mounts().iter().enumerate() {
        let Some(at) = placed.get(n).filter(|_| cows.contains(&clean_absolute(&mount.destination))) else { continue };
        if !engine.namespaces().iter().any(|(kind, path)| kind == "mount" && path.is_none()) {
            let why = "the container has no mount namespace of its own: give it one, or leave out the rule".to_owned();
            return Err(RuntimeError::CopyOnWrite { at: at.clone(), why });
        }
        if let Some(over) = placed[n + 1..].iter().find(|later| at.starts_with(later)) {
            let why = format!("it is hidden by the mount {} that comes later: put it behind that one", over.display());
            return Err(RuntimeError::CopyOnWrite { at: at.clone(), why });
        }
        let source = look(mount, at.clone(), bundle)?;
        if judged.iter().any(|judged| judged.mount == n && judged.identity != source.identity) {
            let why = format!("{} was exchanged meanwhile: try again", source.source.display());
            return Err(RuntimeError::CopyOnWrite { at: at.clone(), why });
        }
        found.push(source);
    }
    // What is above comes first.
    found.sort_by(|a, b| a.at.cmp(&b.at));
    Ok(found)
}

fn look(mount: &Mount, at: PathBuf, bundle: &Path) -> Result<CowSource, RuntimeError> {
    let given = bundle.join(mount.source.as_deref().unwrap_or(Path::new("")));
    let source = std::fs::canonicalize(&given).on("resolve the source of a copy-on-write mount", &given)?;
    let refuse = |why: String| Err(RuntimeError::CopyOnWrite { at: at.clone(), why });
    let meta = source.metadata().on("stat", &source)?;
    if !meta.is_dir() {
        return refuse(format!("{} is not a directory: mount the directory that it is in", source.display()));
    }
    if at == Path::new("/dev") || ["/proc", "/sys"].iter().any(|kernel| at.starts_with(kernel)) {
        return refuse("a mount there can't be layered".to_owned());
    }
    if mount.has("rbind")
        && let Some(inner) = mounted_in(&source)?
    {
        return refuse(format!(
            "{} is mounted in {}, and an overlay would not show it: bind that directory too, with a rule of its own, and \
             this one with `bind` instead of `rbind`",
            inner.display(),
            source.display()
        ));
    }
    Ok(CowSource { at, source, identity: (meta.dev(), meta.ino()), flags: flags(mount) })
}

/// Something that is mounted below a directory of the host.
fn mounted_in(dir: &Path) -> Result<Option<PathBuf>, RuntimeError> {
    let path = Path::new("/proc/self/mountinfo");
    let text = std::fs::read(path).on("read", path)?;
    let points = text.split(|b| *b == b'\n').filter_map(|line| line.split(|b| *b == b' ').nth(4));
    Ok(points.map(mountinfo::unescape).find(|point| point != dir && point.starts_with(dir)))
}

fn flags(mount: &Mount) -> u64 {
    mount.options.iter().fold(0, |set, option| {
        set | match option.as_str() {
            "nosuid" => mountattr::NOSUID,
            "nodev" => mountattr::NODEV,
            "noexec" => mountattr::NOEXEC,
            _ => 0,
        }
    })
}

/// One overlay to be made and put in place: plain data, which goes to the process that does it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    at: PathBuf,
    source: PathBuf,
    identity: (u64, u64),
    flags: u64,
    upper: PathBuf,
    works: [PathBuf; 2],
    /// What is mounted below it, and is to be so again.
    again: Vec<PathBuf>,
    /// The first process's working directory, relative to it, if it is on it.
    cwd: Option<PathBuf>,
    /// Whose what is made for that is, if not root's.
    owner: Option<(u32, u32)>,
}

/// Makes the layers; the places, and the descriptors that the first process is not to keep. `normalised` is the
/// configuration that libcontainer gets.
pub(super) fn plan(
    cows: &[CowSource],
    normalised: &Config,
    make_layer: &MakeLayer<'_>,
) -> Result<(Vec<Place>, Vec<RawFd>), RuntimeError> {
    let mounts: Vec<PathBuf> = normalised.mounts().into_iter().map(|mount| mount.destination).collect();
    let cwd = clean_absolute(Path::new(normalised.cwd()));
    let (mut places, mut locks) = (Vec::new(), Vec::new());
    for CowSource { at, source, identity, flags } in cows {
        let CowLayer { upper, works, lock } =
            make_layer().map_err(|source| RuntimeError::CowLayer { at: at.clone(), source })?;
        locks.push(lock);
        if upper.starts_with(source) {
            let why =
                format!("the layers are in {}: mount another directory, or set another --store", source.display());
            return Err(RuntimeError::CopyOnWrite { at: at.clone(), why });
        }
        // What was mounted before it is hidden by it.
        let later = mounts.iter().skip_while(|mount| *mount != at).skip(1);
        let again: Vec<PathBuf> = later.filter(|mount| mount.starts_with(at)).cloned().collect();
        let inside = cwd.strip_prefix(at).ok().filter(|_| !again.iter().any(|mount| cwd.starts_with(mount)));
        places.push(Place {
            cwd: inside.map(Path::to_owned),
            at: at.clone(),
            source: source.clone(),
            identity: *identity,
            flags: *flags,
            upper,
            works,
            again,
            owner: normalised.host_uid(0).zip(normalised.host_gid(0)).filter(|ids| *ids != (0, 0)),
        });
    }
    Ok((places, locks))
}

/// Makes the overlays and puts them in place, in the mount namespace of process `pid`, which has its mounts but has not
/// entered its root at `rootfs` yet. This process is the host's root, in the host's namespaces, and single-threaded.
pub(super) fn put(places: &[Place], rootfs: &Path, pid: i32) -> Result<(), String> {
    let overlay = |place: &Place| -> Result<OwnedFd, String> {
        let works = [place.works[0].as_path(), place.works[1].as_path()];
        let first = rootfs::cow::First { at: &place.at, source: &place.source, identity: place.identity };
        first.overlay(&place.upper, works, place.flags).map_err(|err| {
            format!("copy-on-write mount {} of {}: {}", place.at.display(), place.source.display(), chain(&err))
        })
    };
    let overlays = places.iter().map(overlay).collect::<Result<Vec<_>, _>>()?;
    let path = format!("/proc/{pid}");
    let said = |err: std::io::Error| format!("enter the mount namespace of process {pid}: {err}");
    let dir = rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let dir = dir.map_err(|errno| said(errno.into()))?;
    inside::in_mount_namespace(&dir, |top| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let root = rustix::fs::openat2(top, rootfs, flags, Mode::empty(), resolve);
        let root = root.map_err(|errno| format!("open {}: {errno}", rootfs.display()))?;
        for (place, overlay) in places.iter().zip(&overlays) {
            fixup::put(&root, &place.at, overlay, &place.again, true)?;
            if let Some(cwd) = &place.cwd {
                // What fails here shows as a failed chdir, with the text that callers know.
                let _ = inroot::make_dirs(overlay, cwd, 0o755, place.owner);
            }
        }
        Ok(())
    })
    .map_err(said)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sources_are_directories_without_mounts() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().canonicalize().unwrap();
        std::fs::create_dir(host.join("d")).unwrap();
        std::os::unix::fs::symlink("d", host.join("link")).unwrap();
        crate::durable::replace_unsynced(&host.join("f"), b"", 0o600).unwrap();
        let sources = |source: &str, option: &str, at: &str| {
            let mount = json!({"destination": "/w/", "type": "bind", "source": source, "options": [option, "nodev"]});
            let linux = json!({"namespaces": if at == "/host" { json!([]) } else { json!([{"type": "mount"}]) }});
            let engine = Config::from_value(json!({"mounts": [{"destination": "/p"}, mount], "linux": linux}));
            let placed = Config::from_value(json!({"mounts": [{"destination": "/p"}, {"destination": at}]}));
            super::sources(&engine, &placed, &host, &["/w".into()], &[]).map_err(|err| err.to_string())
        };
        let found = sources("link", "rbind", "/real/w").unwrap();
        let meta = host.join("d").metadata().unwrap();
        let want = CowSource {
            at: "/real/w".into(),
            source: host.join("d"),
            identity: (meta.dev(), meta.ino()),
            flags: mountattr::NODEV,
        };
        assert_eq!(found, [want]);
        assert!(sources("f", "bind", "/w").unwrap_err().contains("is not a directory"));
        assert!(sources("none", "bind", "/w").unwrap_err().contains("none"));
        assert!(sources("d", "bind", "/proc/w").unwrap_err().contains("can't be layered"));
        assert!(sources("d", "bind", "/host").unwrap_err().contains("no mount namespace of its own"));
        assert!(sources("/", "rbind", "/w").unwrap_err().contains("an overlay would not show it"));
        sources("/", "bind", "/w").unwrap();
    }
}
