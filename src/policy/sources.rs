//! Sources of bind mounts: which of the host's files a container may be given.
//!
//! A source is judged by what it is, not by how it is called: its path without symbolic links, its type, its filesystem.

use std::path::Path;

use super::host::{Host, Source, SourceKind};
use super::strict::{self, Reach};
use super::{Refusal, devices};
use crate::config::Rules;

/// Judges the source of the mount at `at`.
pub(super) fn judge(source: &Source, at: &Path, rules: &Rules, host: &Host) -> Result<(), Refusal> {
    let refuse = |why: String, remedy: String| {
        let what = format!("mounts[{}]: the host's {}", at.display(), source.path.display());
        Err(Refusal { what, why, remedy })
    };
    let path = source.path.as_path();
    if let Some(refused) = rules.mounts.refuse.iter().find(|p| path.starts_with(p) || p.starts_with(path)) {
        let remedy = "mount something else, or take it out of mounts.refuse".to_owned();
        return refuse(format!("the configuration's mounts.refuse has {}", refused.display()), remedy);
    }
    if !rules.mounts.allow.iter().any(|allowed| path.starts_with(allowed))
        && let Some((why, remedy)) = fault(source, rules, host)
    {
        return refuse(why, remedy);
    }
    // Whatever is allowed.
    if host.own.iter().any(|own| path.starts_with(own) || own.starts_with(path)) {
        return refuse("it is, or holds, what this runtime keeps".to_owned(), "mount something else".to_owned());
    }
    Ok(())
}

/// Why a source that the configuration does not list is refused, and what to do.
fn fault(source: &Source, rules: &Rules, host: &Host) -> Option<(String, String)> {
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
    if let Some((of, why)) = protected(path) {
        let why = if Path::new(of) == path { (*why).to_owned() } else { format!("it is or holds {of}: {why}") };
        return Some((why, listed()));
    }
    let kernels = strict::MAGIC.iter().find(|(magic, _)| *magic == source.filesystem);
    kernels.map(|(_, name)| (format!("it is on a filesystem of the kernel's own, {name}"), listed()))
}

/// The entry of the table by which a path cannot be mounted, and why.
fn protected(path: &Path) -> Option<(&'static str, &'static str)> {
    let hit = |(of, reach, _): &&(&str, Reach, &str)| {
        Path::new(of).starts_with(path) || (*reach == Reach::Below && path.starts_with(of))
    };
    strict::SOURCES.iter().find(hit).map(|(of, _, why)| (*of, *why))
}

/// Whether a link leads out of a directory that containers may write to. They cannot write to those that cannot be
/// mounted: links of the host's own, such as /var/run, are fine.
fn leads_out(link: &super::Link) -> bool {
    link.at.parent().is_some_and(|dir| !link.to.starts_with(dir) && protected(dir).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Device, Devices, Mounts};
    use crate::policy::{Link, Node};

    fn file(path: &str) -> Source {
        Source { path: path.into(), links: Vec::new(), kind: SourceKind::File, filesystem: 0xef53 }
    }

    fn told(source: &Source, rules: &Rules) -> Option<String> {
        let host = Host { own: vec!["/srv/store".into()], ..Host::default() };
        judge(source, Path::new("/x"), rules, &host).err().map(|err| err.to_string())
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
            "/etc/hosts",
            "/etc/ssl/certs",
            "/root/project",
            "/tmp",
            "/usr/local/go",
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
