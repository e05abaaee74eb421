//! What the policy has to know of the host and of the paths that a configuration names, looked up once.
//!
//! The source of each bind mount is opened without following a symbolic link, and the descriptor stays open until its
//! mount is there: what was judged is what is mounted ([`Facts::judged`]), whatever happens to the path meanwhile.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::cgroup::Hierarchy;
use super::error::{On, RuntimeError};
use super::host;
use crate::policy::{Host, Link, Node, Policy, Source, SourceKind};
use crate::spec::{Config, inroot, normalise};
use crate::sys::{mountinfo, proc};
use crate::terms::Profile;

/// What is mounted on the host.
const MOUNTS: &str = "/proc/self/mountinfo";

/// The kernel's own limit for links in one path.
const LINKS_MAX: usize = 40;

/// A bind mount's source, held open.
#[derive(Debug)]
pub struct Judged {
    /// The mount's place in `mounts`.
    pub mount: usize,
    /// Device and inode.
    pub identity: (u64, u64),
    // Keeps the inode from being given to another file.
    _held: OwnedFd,
}

/// The facts, and the sources that they are about.
#[derive(Debug, Default)]
pub struct Facts {
    /// For the policy.
    pub host: Host,
    /// The sources of bind mounts; none for profile `oci`.
    pub judged: Vec<Judged>,
}

impl Facts {
    /// Looks them up for `engine` in `bundle`; a policy that changes nothing asks for none. `root` is the directory of the
    /// state directories, `all` are the host's cgroup hierarchies.
    pub fn gather(
        engine: &Config,
        bundle: &Path,
        rootfs: &Path,
        root: &Path,
        policy: &Policy,
        all: &[Hierarchy],
    ) -> Result<Facts, RuntimeError> {
        if policy.profile == Profile::Oci {
            return Ok(Facts::default());
        }
        let mut facts = Facts {
            host: Host {
                namespaces: host_namespaces(engine),
                own: policy.own.iter().map(PathBuf::as_path).chain([root]).map(canonical).collect(),
                nofile: rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum,
                devices: nodes(engine, policy),
                ..host::look(engine, all)
            },
            judged: Vec::new(),
        };
        facts.look_at_mounts(engine, bundle, rootfs)?;
        Ok(facts)
    }

    /// What is mounted below the root filesystem's directory and comes with it: where it is in the container.
    pub fn carried(&self) -> Vec<PathBuf> {
        let of = |root: &Source| -> Vec<PathBuf> {
            let inside = root.below.iter().filter_map(|(at, _)| at.strip_prefix(&root.path).ok());
            inside.map(|inside| Path::new("/").join(inside)).collect()
        };
        self.host.root.as_ref().map(of).unwrap_or_default()
    }

    fn look_at_mounts(&mut self, engine: &Config, bundle: &Path, rootfs: &Path) -> Result<(), RuntimeError> {
        let all = proc::read(Path::new(MOUNTS)).on("read", Path::new(MOUNTS))?;
        let root = inroot::open_root(rootfs).on("open root filesystem", rootfs)?;
        self.host.root = Some(Source {
            path: rootfs.to_owned(),
            links: Vec::new(),
            kind: SourceKind::Directory,
            filesystem: magic(&root).on("look at filesystem of", rootfs)?,
            below: mountinfo::below(&all, rootfs),
        });
        let mut covered = Vec::new();
        let list = engine.value()["mounts"].as_array();
        for (n, mount) in list.into_iter().flatten().enumerate() {
            let Some(mount) = crate::spec::Mount::of(mount) else { continue };
            let clean = normalise::clean_absolute(&mount.destination);
            let place = normalise::place(&root, &mount.kind, &clean, &covered)?;
            covered.push(place.clone());
            self.host.destinations.insert(n, place);
            if !mount.is_bind() {
                continue;
            }
            let path = bundle.join(mount.source.as_deref().unwrap_or(Path::new("none")));
            // What is not there now may be there when it is mounted, and nobody has judged it.
            let (fd, links) = open(&path).map_err(|err| RuntimeError::Source {
                at: mount.destination.clone(),
                of: path.clone(),
                source: err,
            })?;
            let stat = rustix::fs::fstat(&fd).on("look at source of a bind mount", &path)?;
            let filesystem = magic(&fd).on("look at filesystem of", &path)?;
            let path = path_of(&fd).on("find the path of", &path)?;
            let below = if mount.has("rbind") { mountinfo::below(&all, &path) } else { Vec::new() };
            let source = Source { path, links, kind: kind(&stat), filesystem, below };
            self.host.sources.insert(n, source);
            self.judged.push(Judged { mount: n, identity: (stat.st_dev, stat.st_ino), _held: fd });
        }
        Ok(())
    }
}

/// The filesystem's magic number.
#[allow(clippy::unnecessary_cast, reason = "unsigned with musl")]
fn magic(fd: &OwnedFd) -> Result<i64, Errno> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as i64)
}

fn canonical(path: &Path) -> PathBuf {
    // What is not there yet is where it is called.
    std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

fn kind(stat: &rustix::fs::Stat) -> SourceKind {
    let node = |block| {
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        SourceKind::Device(Node { block, major, minor })
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => SourceKind::Directory,
        FileType::Socket | FileType::Fifo => SourceKind::Channel,
        FileType::BlockDevice => node(true),
        FileType::CharacterDevice => node(false),
        _ => SourceKind::File,
    }
}

fn open_plain(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    loop {
        match rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // A rename somewhere on the system made the kernel unsure; it asks to try again.
            Err(Errno::AGAIN) => continue,
            other => return other,
        }
    }
}

/// Opens `path`, with the symbolic links on the way. Each is read once, and what they lead to is opened without following
/// any: a link that changes meanwhile is an error, not another file.
fn open(path: &Path) -> io::Result<(OwnedFd, Vec<Link>)> {
    match open_plain(path) {
        Ok(fd) => return Ok((fd, Vec::new())),
        Err(Errno::LOOP) => {}
        Err(err) => return Err(err.into()),
    }
    let (real, links) = follow(path)?;
    Ok((open_plain(&real)?, links))
}

/// What `path` leads to, and the links on the way. Parts that are not there stay as they are.
fn follow(path: &Path) -> io::Result<(PathBuf, Vec<Link>)> {
    let mut todo: Vec<PathBuf> = parts(path);
    let (mut done, mut links) = (PathBuf::from("/"), Vec::new());
    // Links whose own parts are still to be followed: which, and how many parts are left when they are.
    let mut open: Vec<(usize, usize)> = Vec::new();
    while let Some(part) = todo.pop() {
        if part == Path::new("..") {
            done.pop();
        } else {
            let next = done.join(&part);
            match rustix::fs::readlink(&next, Vec::new()) {
                Ok(target) => {
                    if links.len() == LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
                    open.push((links.len(), todo.len()));
                    links.push(Link { at: next, to: PathBuf::new() });
                    if target.is_absolute() {
                        done = PathBuf::from("/");
                    }
                    todo.extend(parts(&target));
                }
                Err(_) => done = next,
            }
        }
        while let Some((link, _)) = open.pop_if(|(_, left)| todo.len() <= *left) {
            links[link].to = done.clone();
        }
    }
    Ok((done, links))
}

/// The parts of a path, the last first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let part = |c: Component<'_>| {
        matches!(c, Component::Normal(_) | Component::ParentDir).then(|| PathBuf::from(c.as_os_str()))
    };
    path.components().rev().filter_map(part).collect()
}

fn path_of(fd: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Kinds of namespaces that are joined by a path to the runtime's own, or to the one of the host's first process.
fn host_namespaces(engine: &Config) -> Vec<String> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let joined = engine.namespaces().into_iter().filter_map(|(kind, path)| Some((kind, identity(&path?)?)));
    let is_host = |(kind, theirs): &(String, (u64, u64))| {
        let name = match kind.as_str() {
            "mount" => "mnt",
            "network" => "net",
            other => other,
        };
        ["self", "1"].iter().any(|pid| identity(Path::new(&format!("/proc/{pid}/ns/{name}"))) == Some(*theirs))
    };
    joined.filter(is_host).map(|(kind, _)| kind).collect()
}

/// The devices that the configuration lists by their paths, if the container asks for any.
fn nodes(engine: &Config, policy: &Policy) -> Vec<Node> {
    let asks =
        engine.value().pointer("/linux/devices").and_then(serde_json::Value::as_array).is_some_and(|d| !d.is_empty())
            || engine.mounts().iter().any(crate::spec::Mount::is_bind);
    let node = |path: &Path| match kind(&rustix::fs::stat(path).ok()?) {
        SourceKind::Device(node) => Some(node),
        _ => None,
    };
    policy.device_paths().filter(|_| asks).filter_map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::symlink;

    fn gather(dir: &Path, mounts: serde_json::Value) -> Facts {
        try_gather(dir, mounts).unwrap()
    }

    fn try_gather(dir: &Path, mounts: serde_json::Value) -> Result<Facts, RuntimeError> {
        std::fs::create_dir_all(dir.join("rootfs")).unwrap();
        let config = Config::from_value(json!({"mounts": mounts}));
        Facts::gather(&config, dir, &dir.join("rootfs"), Path::new("/run/none"), &Policy::default(), &[])
    }

    #[test]
    fn sources_are_what_they_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        std::fs::create_dir_all(dir.join("real/sub")).unwrap();
        symlink("real", dir.join("link")).unwrap();
        symlink("../link/sub", dir.join("real/deep")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        let bind = |source: &str| json!({"destination": "/x", "type": "bind", "source": source, "options": ["bind"]});
        let of = |source: &str| gather(&dir, json!([bind(source)])).host.sources.remove(&0);
        let plain = of("real/../real/sub").unwrap();
        assert_eq!((plain.path, plain.links), (dir.join("real/sub"), Vec::new()));
        let linked = of("real/deep").unwrap();
        assert_eq!(linked.path, dir.join("real/sub"));
        assert_eq!(linked.kind, SourceKind::Directory);
        let ats: Vec<_> = linked.links.iter().map(|link| (link.at.clone(), link.to.clone())).collect();
        let want = [(dir.join("real/deep"), dir.join("real/sub")), (dir.join("link"), dir.join("real"))];
        assert_eq!(ats, want);
        for missing in ["none", "none/x", "loop"] {
            assert!(try_gather(&dir, json!([bind(missing)])).is_err(), "{missing}");
        }
        assert_eq!(of("/dev/null").unwrap().kind, SourceKind::Device(Node { block: false, major: 1, minor: 3 }));
        assert_eq!(of("/proc/self").map(|s| s.filesystem), Some(0x9fa0));
    }

    #[test]
    fn destinations_are_what_the_image_makes_of_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("rootfs/etc")).unwrap();
        symlink("/proc", dir.path().join("rootfs/work")).unwrap();
        let facts = gather(dir.path(), json!([{"destination": "/work/sys", "type": "tmpfs"}]));
        assert_eq!(facts.host.destinations[&0], Path::new("/proc/sys"));
    }

    #[test]
    fn the_hosts_namespaces_are_known_by_what_they_are() {
        let of = |kind: &str, path: &str| {
            let namespaces = json!([{"type": kind, "path": path}]);
            host_namespaces(&Config::from_value(json!({"linux": {"namespaces": namespaces}})))
        };
        assert_eq!(of("network", "/proc/self/ns/net"), ["network"]);
        assert_eq!(of("mount", "/proc/thread-self/ns/mnt"), ["mount"]);
        assert!(of("network", "/proc/self/ns/uts").is_empty());
        assert!(of("network", "").is_empty());
    }
}
