//! Sources of bind mounts: which of the host's files a container may be given.
//!
//! A source is judged by what it is, not by how it is called: its path without symbolic links, its type, its filesystem.

use std::path::{Path, PathBuf};

use super::host::{Host, Source, SourceKind};
use super::strict::{self, Reach};
use super::{Refusal, Work, devices};
use crate::config::Rules;

/// Judges the source of the mount at `at`; `written`: the container can write to it.
pub(super) fn judge(source: &Source, at: &Path, written: bool, rules: &Rules, host: &Host) -> Result<(), Refusal> {
    let refuse = |why: String, remedy: String| {
        let what = format!("mounts[{}]: the host's {}", at.display(), source.path.display());
        Err(Refusal { what, why, remedy })
    };
    let path = source.path.as_path();
    if let Some(refused) = rules.mounts.refuse.iter().find(|p| path.starts_with(p) || p.starts_with(path)) {
        let remedy = "mount something else, or take it out of mounts.refuse".to_owned();
        return refuse(format!("the configuration's mounts.refuse has {}", refused.display()), remedy);
    }
    if !is_listed(path, rules)
        && let Some((why, remedy)) = fault(source, written, rules, host)
    {
        return refuse(why, remedy);
    }
    if let Some(why) = carries(source, rules) {
        let remedy = "unmount it, mount the source without what is below (\"bind\" for \"rbind\"), or list it in mounts.allow of the configuration";
        return refuse(why, remedy.to_owned());
    }
    // Whatever is allowed.
    if is_own(path, host) {
        return refuse("it is, or holds, what this runtime keeps".to_owned(), "mount something else".to_owned());
    }
    Ok(())
}

/// The root filesystem: a directory of the host as well, and what is mounted below it comes with it.
pub(super) fn root(work: &mut Work<'_>) -> Result<(), Refusal> {
    let Some(root) = &work.host.root else { return Ok(()) };
    let rules = &work.policy.rules;
    let path = root.path.as_path();
    let refuse = |why: String, remedy: &str| {
        Err(Refusal { what: format!("root.path {}", path.display()), why, remedy: remedy.to_owned() })
    };
    let copy = "give the container a copy, or list it in mounts.allow of the configuration";
    if !is_listed(path, rules) {
        if let Some((of, _, why)) = strict::SOURCES.iter().find(|(of, ..)| Path::new(of).starts_with(path)) {
            return refuse(format!("it is or holds the host's {of}: {why}"), copy);
        }
        if let Some(name) = kernels(root.filesystem) {
            return refuse(format!("it is on a filesystem of the kernel's own, {name}"), copy);
        }
    }
    if let Some(why) = carries(root, rules) {
        return refuse(why, "unmount it: the container's own mounts are those of its configuration");
    }
    if is_own(path, work.host) {
        return refuse("it is, or holds, what this runtime keeps".to_owned(), "use another directory");
    }
    Ok(())
}

fn is_own(path: &Path, host: &Host) -> bool {
    host.own.iter().any(|own| path.starts_with(own) || own.starts_with(path))
}

/// Whether the configuration lets it pass.
fn is_listed(path: &Path, rules: &Rules) -> bool {
    rules.mounts.allow.iter().any(|allowed| path.starts_with(allowed))
}

fn kernels(filesystem: i64) -> Option<&'static str> {
    strict::MAGIC.iter().find(|(magic, _)| *magic == filesystem).map(|(_, name)| *name)
}

/// Why what is mounted below a source cannot come with it.
fn carries(source: &Source, rules: &Rules) -> Option<String> {
    let is_fault = |(path, kind): &&(PathBuf, String)| {
        strict::MAGIC.iter().any(|(_, name)| name == kind) && !is_listed(path, rules)
    };
    let (path, kind) = source.below.iter().find(is_fault)?;
    Some(format!("below it, on {}, a filesystem of the kernel's own is mounted, {kind}", path.display()))
}

/// Why a source that the configuration does not list is refused, and what to do.
fn fault(source: &Source, written: bool, rules: &Rules, host: &Host) -> Option<(String, String)> {
    let path = source.path.as_path();
    let listed = || "mount something else, or list it in mounts.allow of the configuration".to_owned();
    if let Some(link) = source.links.iter().find(|link| leads_out(link)) {
        let at = link.at.display();
        let why = format!("{at} is a symbolic link out of its directory, which a container may have made");
        let path = path.display();
        return Some((why, format!("mount {path} by that name, or list it in mounts.allow of the configuration")));
    }
    match source.kind {
        SourceKind::Channel => {
            let why = "it is a socket or pipe: a program of the host is at its other end";
            return Some((why.to_owned(), listed()));
        }
        SourceKind::Device(node) if devices::is_allowed(node, rules, host) => return None,
        SourceKind::Device(_) => {
            let remedy = "leave it out, or list it in devices.allow of the configuration";
            return Some(("it is a device, and none of the standard ones".to_owned(), remedy.to_owned()));
        }
        SourceKind::Directory | SourceKind::File => {}
    }
    if let Some(why) = protected(path, source.kind, written) {
        return Some((why, listed()));
    }
    if host.root.as_ref().is_some_and(|root| root.path.starts_with(path)) {
        return Some((
            "it holds the container's own root filesystem: it is an engine's directory".to_owned(),
            listed(),
        ));
    }
    kernels(source.filesystem).map(|name| (format!("it is on a filesystem of the kernel's own, {name}"), listed()))
}

/// Why a path of the host cannot be mounted; `written`: so that the container can write to it.
fn protected(path: &Path, kind: SourceKind, written: bool) -> Option<String> {
    if let Some((of, _, why)) = strict::SOURCES.iter().find(|(of, ..)| Path::new(of).starts_with(path)) {
        return Some(if Path::new(of) == path { (*why).to_owned() } else { format!("it holds {of}: {why}") });
    }
    // The entry that is nearest to it tells of what is below.
    let above = strict::SOURCES.iter().filter(|(of, ..)| path.starts_with(of));
    if let Some((of, reach, why)) = above.max_by_key(|(of, ..)| of.len()) {
        let refused = match reach {
            Reach::Itself => None,
            Reach::Read => written.then_some("can be mounted read-only or copy-on-write"),
            Reach::Directories => (kind == SourceKind::Directory).then_some("only single files can be mounted"),
            Reach::Below => Some("nothing can be mounted"),
        };
        if let Some(what) = refused {
            return Some(format!("it is below {of}, of which {what}: {why}"));
        }
    }
    (written && is_hidden_in_home(path)).then(|| {
        "hidden files in home directories say what their owners' programs do; read-only it can be mounted".to_owned()
    })
}

/// Whether it is a hidden file or directory of a user, or below one.
fn is_hidden_in_home(path: &Path) -> bool {
    let below = path.strip_prefix("/root").or_else(|_| {
        path.strip_prefix("/home").map(|rest| rest.strip_prefix(rest.iter().next().unwrap_or_default()).unwrap_or(rest))
    });
    below.is_ok_and(|rest| rest.iter().next().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")))
}

/// Whether a link leads out of a directory that containers may write to. They cannot write to those that cannot be
/// mounted: links of the host's own, such as /var/run, are fine.
fn leads_out(link: &super::Link) -> bool {
    link.at
        .parent()
        .is_some_and(|dir| !link.to.starts_with(dir) && protected(dir, SourceKind::Directory, true).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Device, Devices, Mounts};
    use crate::policy::tests::{minimal, strict_on};
    use crate::policy::{Link, Node};

    fn file(path: &str) -> Source {
        Source { path: path.into(), links: Vec::new(), kind: SourceKind::File, filesystem: 0xef53, below: Vec::new() }
    }

    fn told(source: &Source, rules: &Rules) -> Option<String> {
        told_of(source, true, rules)
    }

    fn told_of(source: &Source, written: bool, rules: &Rules) -> Option<String> {
        let root = Some(file("/data/engine/overlay/1/merged"));
        let host = Host { own: vec!["/srv/store".into()], root, ..Host::default() };
        judge(source, Path::new("/x"), written, rules, &host).err().map(|err| err.to_string())
    }

    fn directory(path: &str) -> Source {
        Source { kind: SourceKind::Directory, ..file(path) }
    }

    #[test]
    fn the_hosts_own_directories() {
        for path in [
            "/",
            "/etc",
            "/etc/shadow",
            "/etc/docker/daemon.json",
            "/proc",
            "/proc/sys",
            "/sys/fs/cgroup",
            "/dev",
            "/dev/shm",
            "/run",
            "/var",
            "/var/lib",
            "/var/lib/docker",
            "/var/lib/docker/volumes",
            "/boot/vmlinuz",
            "/srv",
            "/srv/store/layers",
            "/root/.ssh/id_rsa",
            "/usr",
        ] {
            let err = told(&file(path), &Rules::default()).unwrap_or_else(|| panic!("{path} passes"));
            assert!(err.starts_with(&format!("mounts[/x]: the host's {path}: ")), "{err}");
        }
        for path in [
            "/home/u/project",
            "/srv/data",
            "/root/project",
            "/tmp",
            "/run/app/token",
            "/data/engine-of-others",
            "/var/lib/docker/containers/0a/hosts",
            "/var/lib/docker/volumes/v/_data",
            "/run/containerd/x/shm",
            "/var/lib/kubelet/pods/1/volumes/x",
            "/var/lib/containers/storage/overlay/x/merged",
            "/mnt",
            "/etcetera",
        ] {
            assert_eq!(told(&file(path), &Rules::default()), None, "{path}");
        }
        // Whoever can write to these is root of the host, or another user, before long.
        for path in [
            "/etc/hosts",
            "/etc/cron.d",
            "/etc/ssl/certs",
            "/usr/local/go",
            "/usr/bin",
            "/bin/sh",
            "/var/lib/dpkg/info",
            "/root/.cargo",
            "/root/.bashrc",
            "/home/u/.config/autostart",
        ] {
            let err = told(&directory(path), &Rules::default()).unwrap_or_else(|| panic!("{path} passes"));
            assert!(err.contains("read-only"), "{err}");
            assert_eq!(told_of(&directory(path), false, &Rules::default()), None, "{path}, read-only");
        }
        assert!(told_of(&file("/root/.ssh/id_rsa"), false, &Rules::default()).is_some());
        // Where engines keep the shared memory of a pod.
        for path in ["/run/containerd/x/shm", "/run/k3s/containerd/x/shm", "/run/containers/x/shm"] {
            assert_eq!(told(&directory(path), &Rules::default()), None, "{path}");
        }
        for path in ["/run/k3s", "/run/k3s/containerd"] {
            told_of(&directory(path), false, &Rules::default()).unwrap_or_else(|| panic!("{path} passes"));
        }
        for path in ["/run/podman", "/run/user/1000", "/run/dbus"] {
            let err = told_of(&directory(path), false, &Rules::default()).unwrap_or_else(|| panic!("{path} passes"));
            assert!(err.contains("sockets of the host's services"), "{err}");
        }
        for path in ["/data/engine", "/data"] {
            let err = told(&directory(path), &Rules::default()).unwrap();
            assert!(err.contains("the container's own root filesystem"), "{err}");
        }
    }

    #[test]
    fn the_configuration_allows_and_refuses() {
        let mounts =
            Mounts { allow: vec!["/etc".into(), "/".into()], refuse: vec!["/data/secret".into()], ..Mounts::default() };
        let rules = Rules { mounts, ..Rules::default() };
        assert_eq!(told(&file("/etc/shadow"), &rules), None);
        let socket = Source { kind: SourceKind::Channel, ..file("/run/docker.sock") };
        assert_eq!(told(&socket, &rules), None);
        assert!(told(&socket, &Rules::default()).unwrap().contains("a socket or pipe"));
        for path in ["/data", "/data/secret", "/data/secret/x"] {
            assert!(told(&file(path), &rules).unwrap().contains("mounts.refuse has /data/secret"), "{path}");
        }
        assert!(told(&file("/srv/store"), &rules).unwrap().contains("what this runtime keeps"), "whatever is allowed");
    }

    #[test]
    fn devices_and_filesystems_of_the_kernel() {
        let device =
            |block, major, minor| Source { kind: SourceKind::Device(Node { block, major, minor }), ..file("/dev/x") };
        assert_eq!(told(&device(false, 1, 3), &Rules::default()), None, "/dev/null");
        for (block, major, minor) in [(false, 10, 229), (true, 8, 0), (true, 1, 3)] {
            assert!(told(&device(block, major, minor), &Rules::default()).unwrap().contains("devices.allow"));
        }
        let rule = Device::Rule { kind: 'c', major: Some(10), minor: Some(229), access: "rw".into() };
        let rules = Rules { devices: Devices { allow: vec![rule] }, ..Rules::default() };
        assert_eq!(told(&device(false, 10, 229), &rules), None);
        for (magic, name) in strict::MAGIC {
            let err = told(&Source { filesystem: *magic, ..file("/mnt/x") }, &Rules::default()).unwrap();
            assert!(err.contains(name), "{err}");
        }
    }

    #[test]
    fn what_is_mounted_below_comes_with_it() {
        let below =
            |kind: &str| vec![("/data/chroot/x".into(), "ext4".to_owned()), ("/data/chroot/p".into(), kind.to_owned())];
        let with = |kind: &str| Source { below: below(kind), ..file("/data/chroot") };
        for (_, name) in strict::MAGIC {
            let err = told(&with(name), &Rules::default()).unwrap();
            assert!(
                err.contains(&format!("/data/chroot/p, a filesystem of the kernel's own is mounted, {name};")),
                "{err}"
            );
        }
        assert_eq!(told(&with("xfs"), &Rules::default()), None);
        for listed in ["/data/chroot", "/data/chroot/p"] {
            let mounts = Mounts { allow: vec![listed.into()], ..Mounts::default() };
            assert_eq!(told(&with("proc"), &Rules { mounts, ..Rules::default() }), None, "{listed}");
        }
    }

    #[test]
    fn the_root_filesystem_is_no_directory_of_the_hosts() {
        let of = |root: Source, allow: &[&str]| {
            let mounts = Mounts { allow: allow.iter().map(|path| path.into()).collect(), ..Mounts::default() };
            let host = Host { root: Some(root), own: vec!["/srv/store".into()], ..Host::default() };
            strict_on(minimal(), Rules { mounts, ..Rules::default() }, &host).map(drop).map_err(|err| err.to_string())
        };
        for path in ["/", "/etc", "/usr", "/var", "/var/lib/docker", "/home", "/srv", "/srv/store/layers/x"] {
            let err = of(file(path), &[]).unwrap_err();
            assert!(err.starts_with(&format!("root.path {path}: it is")), "{err}");
        }
        for path in ["/var/lib/docker/overlay2/x/merged", "/run/containerd/x/rootfs", "/dev/shm/b/rootfs", "/root/b"] {
            assert_eq!(of(file(path), &[]), Ok(()), "{path}");
        }
        assert_eq!(of(file("/usr"), &["/usr"]), Ok(()));
        assert!(of(file("/srv"), &["/"]).is_err(), "whatever is allowed");
        assert!(of(Source { filesystem: 0x9fa0, ..file("/mnt/p") }, &[]).unwrap_err().contains("kernel's own, proc"));
        let chroot = Source { below: vec![("/c/proc".into(), "proc".into())], ..file("/c") };
        assert!(of(chroot, &[]).unwrap_err().contains("below it, on /c/proc"));
    }

    /// A container made a link in its volume, and a path below the volume is another container's source.
    #[test]
    fn links_that_a_container_may_have_made() {
        let with = |at: &str, to: &str| Source { links: vec![Link { at: at.into(), to: to.into() }], ..file(to) };
        let err = told(&with("/data/vol/sub", "/home/u/keys"), &Rules::default()).unwrap();
        assert!(err.contains("/data/vol/sub is a symbolic link out of its directory"), "{err}");
        assert!(err.contains("mount /home/u/keys by that name"), "{err}");
        assert_eq!(told(&with("/data/vol/current", "/data/vol/1"), &Rules::default()), None, "stays where it is");
        assert_eq!(told(&with("/var/lib/docker", "/data/docker/v/x"), &Rules::default()), None, "the host's own");
        assert_eq!(told(&with("/data", "/mnt/disk/x"), &Rules::default()), None, "the host's own");
    }
}
