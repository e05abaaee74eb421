//! A cgroup mount on a host with v1 hierarchies, written out for libcontainer as what it is: a tmpfs, and on it a bind mount
//! of the container's own cgroup of each hierarchy.
//!
//! libcontainer would find out by itself what to mount, by looking up its parent's pid in the host's `/proc`. In a pid
//! namespace that the container joins, that number is one of the namespace's: of no process, and the mount fails, or of
//! another one, and another cgroup is mounted. Here nothing is looked up: the container's cgroup is known.
//!
//! In a cgroup namespace of its own the same cgroup is the top of what the container sees, and is mounted in the same way.
//! Where `/sys/fs/cgroup` is cgroup v2 all stays libcontainer's work.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::cgroup::{self, Hierarchy};
use crate::spec::{Config, Mount};

/// Where hosts have their hierarchies, or the one of v2.
const TOP: &str = "/sys/fs/cgroup";
/// Flags that the mounts of the hierarchies take from the cgroup mount.
const FLAGS: [&str; 4] = ["ro", "nosuid", "nodev", "noexec"];

/// One hierarchy as the container sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// The directory's name, as on the host: `memory`, `cpu,cpuacct`, `systemd`.
    name: String,
    /// The container's cgroup on the host.
    source: PathBuf,
}

/// What cgroup mounts are made of on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    parts: Vec<Part>,
    /// The container has a cgroup namespace.
    namespaced: bool,
}

impl Parts {
    /// What the container in the cgroup `path` (absolute) sees of the hierarchies `all`; makes its cgroups in those that
    /// libcgroups does not join. `None` where libcontainer mounts them right, or none is asked for.
    ///
    /// A hierarchy in which the container gets no cgroup is left out: what it is in there is somebody else's.
    pub fn prepare(config: &Config, path: &Path, all: &[Hierarchy]) -> Option<Parts> {
        let unified = all.iter().any(|h| h.controllers.is_empty() && h.mount_point == Path::new(TOP));
        let v1 = all.iter().any(|h| !h.controllers.is_empty());
        if !v1 || unified || !path.is_absolute() || !config.mounts().iter().any(is_cgroup) {
            return None;
        }
        let mut parts: Vec<Part> = Vec::new();
        for (hierarchy, dir) in all.iter().zip(cgroup::of_path(path, all)) {
            let name = hierarchy.mount_point.file_name().and_then(|name| name.to_str());
            let Some(name) = name.filter(|_| !hierarchy.controllers.is_empty()) else { continue };
            let there = cgroup::is_found_by_libcgroups(hierarchy) || cgroup::make_extra(hierarchy, &dir);
            if there && dir.path.to_str().is_some() && parts.iter().all(|part| part.name != name) {
                parts.push(Part { name: name.to_owned(), source: dir.path });
            }
        }
        Some(Parts { parts, namespaced: config.has_namespace("cgroup") })
    }

    /// The symbolic links that stand beside a directory of several controllers, `cpu` for `cpu,cpuacct`: name and target.
    pub fn links(&self) -> Vec<(&str, &str)> {
        let several = self.parts.iter().filter(|part| part.name.contains(','));
        several.flat_map(|part| part.name.split(',').map(|name| (name, part.name.as_str()))).collect()
    }

    /// Replaces each cgroup mount of `config` by what it consists of. What is said later of a place below one of the links,
    /// which are made at the end, is said of where the link will lead.
    pub fn write_out(&self, config: &mut Config) {
        let Some(list) = config.value_mut().get_mut("mounts").and_then(Value::as_array_mut) else { return };
        let mut tops: Vec<PathBuf> = Vec::new();
        for mut mount in std::mem::take(list) {
            let Some(given) = Mount::of(&mount) else {
                list.push(mount);
                continue;
            };
            if is_cgroup(&given) {
                list.extend(self.mounts(&given));
                tops.push(given.destination);
            } else if let Some(to) = self.led(&tops, &given.destination) {
                mount["destination"] = json!(to);
                list.push(mount);
            } else {
                list.push(mount);
            }
        }
        for key in ["maskedPaths", "readonlyPaths"] {
            let paths = config.value_mut()["linux"].get_mut(key).and_then(Value::as_array_mut);
            for path in paths.into_iter().flatten() {
                if let Some(to) = path.as_str().and_then(|path| self.led(&tops, Path::new(path))) {
                    *path = json!(to);
                }
            }
        }
    }

    fn mounts(&self, given: &Mount) -> impl Iterator<Item = Value> {
        let top = json!({"destination": given.destination, "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "nodev", "noexec", "mode=755"]});
        let always = if self.namespaced { &FLAGS[1..] } else { &[] };
        let flags = FLAGS.into_iter().filter(|flag| given.has(flag) || always.contains(flag));
        let options: Vec<&str> = ["rbind"].into_iter().chain(flags).collect();
        let bind = move |part: &Part| {
            json!({"destination": given.destination.join(&part.name), "type": "bind", "source": part.source,
                "options": options})
        };
        std::iter::once(top).chain(self.parts.iter().map(bind).collect::<Vec<_>>())
    }

    /// Where `path` leads by a link on one of the cgroup mounts `tops`.
    fn led(&self, tops: &[PathBuf], path: &Path) -> Option<PathBuf> {
        let (top, inside) = tops.iter().rev().find_map(|top| Some((top, path.strip_prefix(top).ok()?)))?;
        let (to, rest) = self.links().into_iter().find_map(|(name, to)| Some((to, inside.strip_prefix(name).ok()?)))?;
        let led = top.join(to);
        Some(if rest.as_os_str().is_empty() { led } else { led.join(rest) })
    }
}

/// A mount of the hierarchies: by its type, unless an option makes a bind mount of it.
pub fn is_cgroup(mount: &Mount) -> bool {
    mount.kind == "cgroup"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(controllers: &str, mount_point: &str) -> Hierarchy {
        Hierarchy { controllers: controllers.into(), mount_point: mount_point.into(), root: "/".into() }
    }

    fn config(mount: Value, kinds: &[&str]) -> Config {
        let namespaces: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
        Config::from_value(json!({
            "mounts": [{"destination": "/sys", "type": "sysfs"}, mount, {"destination": "/c/cpu/x", "type": "tmpfs"},
                {"destination": "/cpu", "type": "tmpfs"}],
            "linux": {"namespaces": namespaces, "maskedPaths": ["/c/cpuacct", "/c/pids", "/c/cpu,cpuacct/y"],
                "readonlyPaths": null}
        }))
    }

    #[test]
    fn a_mount_is_written_out() {
        let all = [of("cpu,cpuacct", "/h/cpu,cpuacct"), of("pids", "/h/pids"), of("", "/h/unified")];
        for (kinds, options, want) in [
            (&[][..], json!(["nosuid", "relatime", "ro"]), json!(["rbind", "ro", "nosuid"])),
            (&[][..], Value::Null, json!(["rbind"])),
            (&["cgroup"][..], json!(["rw"]), json!(["rbind", "nosuid", "nodev", "noexec"])),
        ] {
            let mut config = config(json!({"destination": "/c", "type": "cgroup", "options": options}), kinds);
            let parts = Parts::prepare(&config, Path::new("/a/b"), &all).unwrap();
            assert_eq!(parts.links(), [("cpu", "cpu,cpuacct"), ("cpuacct", "cpu,cpuacct")]);
            parts.write_out(&mut config);
            let bind = |name: &str| {
                json!({"destination": format!("/c/{name}"), "type": "bind", "source": format!("/h/{name}/a/b"),
                    "options": want})
            };
            let top = json!({"destination": "/c", "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "nodev", "noexec", "mode=755"]});
            let mounts = json!([{"destination": "/sys", "type": "sysfs"}, top, bind("cpu,cpuacct"), bind("pids"),
                {"destination": "/c/cpu,cpuacct/x", "type": "tmpfs"}, {"destination": "/cpu", "type": "tmpfs"}]);
            assert_eq!(config.value()["mounts"], mounts);
            let masked = json!(["/c/cpu,cpuacct", "/c/pids", "/c/cpu,cpuacct/y"]);
            assert_eq!(config.value()["linux"]["maskedPaths"], masked);
        }
    }

    #[test]
    fn what_stays_as_it_is() {
        let v1 = of("pids", "/sys/fs/cgroup/pids");
        let cgroup = json!({"destination": "/c", "type": "cgroup"});
        let bind = json!({"destination": "/c", "type": "cgroup", "options": ["rbind"]});
        for (mount, all) in [
            (&cgroup, vec![of("", TOP)]),
            (&cgroup, vec![of("", TOP), v1.clone()]),
            (&cgroup, vec![]),
            (&bind, vec![v1.clone()]),
            (&json!({"destination": "/c", "type": "cgroup2"}), vec![v1.clone()]),
        ] {
            assert_eq!(Parts::prepare(&config(mount.clone(), &[]), Path::new("/a"), &all), None, "{mount} {all:?}");
        }
        assert_eq!(Parts::prepare(&config(cgroup, &[]), Path::new("a:b:c"), &[v1]), None);
    }

    #[test]
    fn a_hierarchy_without_a_cgroup_of_the_containers_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir(dir.path().join("systemd")).unwrap();
        crate::durable::replace_unsynced(&dir.path().join("misc"), b"", 0o600).unwrap();
        let all = [of("name=systemd", &at("systemd")), of("misc", &at("misc")), of("cpu", &at("odd"))];
        let config = config(json!({"destination": "/c", "type": "cgroup"}), &[]);
        let parts = Parts::prepare(&config, Path::new("/a/b"), &all).unwrap();
        let names: Vec<_> = parts.parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["systemd"]);
        assert!(dir.path().join("systemd/a/b").is_dir());
    }
}
