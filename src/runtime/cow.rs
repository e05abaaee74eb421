//! Copy-on-write bind mounts of the first process: the host's directory looked at before anything is made, and an overlay of
//! it to be put in its [`Place`]. libcontainer never has the directory.

use std::error::Error;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::{On, RuntimeError};
use super::facts::Judged;
use super::place::{Place, What};
use crate::spec::normalise::clean_absolute;
use crate::spec::{Config, Mount};
use crate::sys::{mountattr, mountinfo};

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
    /// Overlayfs's own: two, see [`crate::rootfs::cow::First::overlay`].
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

/// Makes the layers; the places, and the descriptors that the first process is not to keep. `normalised` is the
/// configuration that libcontainer gets.
pub(super) fn plan(
    cows: &[CowSource],
    normalised: &Config,
    make_layer: &MakeLayer<'_>,
) -> Result<(Vec<Place>, Vec<RawFd>), RuntimeError> {
    let owner = normalised.host_uid(0).zip(normalised.host_gid(0));
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
        let (source, identity, flags) = (source.clone(), *identity, *flags);
        places.push(Place::of(at, What::Overlay { source, identity, flags, upper, works }, normalised, owner));
    }
    Ok((places, locks))
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
