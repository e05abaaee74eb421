//! The configuration made into one that libcontainer takes and that means the same: a list of small, named steps.
//!
//! Each step closes one gap between what the runtime specification (and runc) allows and what libcontainer 0.7 accepts.

use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use serde_json::{Map, Value, json};

use super::{Config, SpecError, annotations, inroot, passwd};

/// What the steps may look at besides the configuration.
#[derive(Debug)]
pub struct Context<'a> {
    /// The container's id.
    pub id: &'a str,
    /// The root filesystem's directory.
    pub root: &'a OwnedFd,
    /// The bundle: relative sources are taken from it.
    pub bundle: &'a Path,
    /// The systemd form of `cgroupsPath` (`slice:prefix:name`) is meant.
    pub systemd_cgroup: bool,
    /// Destinations of copy-on-write mounts, cleaned.
    pub copy_on_write: &'a [PathBuf],
}

/// One step.
#[derive(Debug)]
pub struct Step {
    /// Its name, for decisions and logs.
    pub name: &'static str,
    run: fn(&mut Config, &Context<'_>) -> Result<(), SpecError>,
}

/// All steps, in order.
pub const STEPS: &[Step] = &[
    Step { name: "own-annotations", run: own_annotations },
    Step { name: "cgroups-path", run: cgroups_path },
    Step { name: "rootfs-propagation", run: rootfs_propagation },
    Step { name: "no-new-privileges", run: no_new_privileges },
    Step { name: "capabilities", run: capabilities },
    Step { name: "bind-type", run: bind_type },
    Step { name: "mount-source", run: mount_source },
    Step { name: "mount-options", run: mount_options },
    Step { name: "copy-on-write", run: copy_on_write },
    Step { name: "mount-destination", run: mount_destination },
    Step { name: "dev-bind", run: dev_bind },
    Step { name: "withheld-source", run: withheld_source },
    Step { name: "tmpfs-mode", run: tmpfs_mode },
    Step { name: "device-rules", run: device_rules },
    Step { name: "home", run: home },
];

/// Runs all steps; the names of those that changed something.
pub fn normalise(config: &mut Config, context: &Context<'_>) -> Result<Vec<&'static str>, SpecError> {
    let mut changed = Vec::new();
    for step in STEPS {
        let before = config.clone();
        (step.run)(config, context)?;
        if *config != before {
            changed.push(step.name);
        }
    }
    Ok(changed)
}

fn object<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    value.get_mut(key).and_then(Value::as_object_mut)
}

/// A generation or a result left from an earlier container of this bundle would be told as this one's.
fn own_annotations(config: &mut Config, _: &Context<'_>) -> Result<(), SpecError> {
    let Some(document) = config.value_mut().as_object_mut() else {
        return Err(SpecError::Field { field: "document", why: "not an object".into() });
    };
    let entry = document.entry("annotations").or_insert_with(|| json!({}));
    if entry.is_null() {
        *entry = json!({});
    }
    let Some(map) = entry.as_object_mut() else {
        return Err(SpecError::Field { field: "annotations", why: "not an object".into() });
    };
    map.remove(annotations::DIFF);
    map.insert(annotations::GENERATION.to_owned(), json!("0"));
    Ok(())
}

/// libcontainer's default is `:youki:ID`, taken literally by the cgroupfs driver. Ours is `/agentsbx/ID`; a relative path
/// is taken from the hierarchy's root. A path below ours was written here for an earlier container of the same bundle.
fn cgroups_path(config: &mut Config, context: &Context<'_>) -> Result<(), SpecError> {
    let given = config.cgroups_path().filter(|p| !p.starts_with("/agentsbx/") && !p.starts_with(":agentsbx:"));
    let path = match given {
        None if context.systemd_cgroup => format!(":agentsbx:{}", context.id),
        None => format!("/agentsbx/{}", context.id),
        Some(path) if context.systemd_cgroup => path.to_owned(),
        Some(path) => {
            let clean = clean_absolute(Path::new(path));
            if clean == Path::new("/") {
                return Err(SpecError::Field {
                    field: "linux.cgroupsPath",
                    why: "the root of the hierarchy cannot be a container's cgroup".into(),
                });
            }
            clean.to_string_lossy().into_owned()
        }
    };
    if let Some(linux) = object(config.value_mut(), "linux") {
        linux.insert("cgroupsPath".to_owned(), json!(path));
    }
    Ok(())
}

/// `path` from the root, with `.` and `..` taken out by their text.
pub fn clean_absolute(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}

/// The recursive forms mean the same here: the root is changed recursively either way.
fn rootfs_propagation(config: &mut Config, _: &Context<'_>) -> Result<(), SpecError> {
    let Some(linux) = object(config.value_mut(), "linux") else { return Ok(()) };
    let plain = match linux.get("rootfsPropagation").and_then(Value::as_str) {
        Some("rprivate") => "private",
        Some("rslave") => "slave",
        Some("rshared") => "shared",
        Some("runbindable") => "unbindable",
        Some("") => {
            linux.shift_remove("rootfsPropagation");
            return Ok(());
        }
        _ => return Ok(()),
    };
    linux.insert("rootfsPropagation".to_owned(), json!(plain));
    Ok(())
}

/// Written `false` is taken for "given", and seccomp is then loaded after the capabilities it needs are gone.
fn no_new_privileges(config: &mut Config, _: &Context<'_>) -> Result<(), SpecError> {
    if let Some(process) = object(config.value_mut(), "process")
        && process.get("noNewPrivileges") == Some(&Value::Bool(false))
    {
        process.shift_remove("noNewPrivileges");
    }
    Ok(())
}

/// libcontainer takes a name that it does not know for a mistake in the whole configuration; see [`super::process`].
fn capabilities(config: &mut Config, _: &Context<'_>) -> Result<(), SpecError> {
    if let Some(process) = config.value_mut().get_mut("process") {
        super::drop_unknown_capabilities(process);
    }
    Ok(())
}

fn mounts_mut(config: &mut Config) -> impl Iterator<Item = &mut Map<String, Value>> {
    config
        .value_mut()
        .get_mut("mounts")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// An option makes a bind mount, as in runc. libcontainer looks at the type first, and would mount cgroups there, or a proc.
fn bind_type(config: &mut Config, _: &Context<'_>) -> Result<(), SpecError> {
    let binds: Vec<bool> = config.mounts().iter().map(super::Mount::is_bind).collect();
    let with_place = mounts_mut(config).filter(|mount| mount.get("destination").is_some_and(Value::is_string));
    for (mount, _) in with_place.zip(binds).filter(|(_, bind)| *bind) {
        mount.insert("type".to_owned(), json!("bind"));
    }
    Ok(())
}

/// The source is optional in the specification; filesystems without a device take any.
fn mount_source(config: &mut Config, _: &Context<'_>) -> Result<(), SpecError> {
    for mount in mounts_mut(config) {
        let missing = mount.get("source").and_then(Value::as_str).is_none_or(str::is_empty);
        if missing {
            let kind = mount.get("type").and_then(Value::as_str).filter(|k| !k.is_empty() && *k != "bind");
            let kind = kind.unwrap_or("none").to_owned();
            mount.insert("source".to_owned(), json!(kind));
        }
    }
    Ok(())
}

/// `tmpcopyup` is done by us once the mount is there; libcontainer would hand it to the kernel.
fn mount_options(config: &mut Config, _: &Context<'_>) -> Result<(), SpecError> {
    for mount in mounts_mut(config) {
        if let Some(options) = mount.get_mut("options").and_then(Value::as_array_mut) {
            options.retain(|o| o.as_str() != Some("tmpcopyup"));
        }
    }
    Ok(())
}

/// libcontainer must not write to a directory that is never to be written. It gets an empty place; an overlay of the source
/// is put over it afterwards.
fn copy_on_write(config: &mut Config, context: &Context<'_>) -> Result<(), SpecError> {
    for mount in mounts_mut(config) {
        let at = clean_absolute(Path::new(mount.get("destination").and_then(Value::as_str).unwrap_or_default()));
        if context.copy_on_write.contains(&at) {
            placeholder(mount);
        }
    }
    Ok(())
}

/// An empty directory in the place of a bind mount's.
fn placeholder(mount: &mut Map<String, Value>) {
    mount.insert("type".to_owned(), json!("tmpfs"));
    mount.insert("source".to_owned(), json!("tmpfs"));
    mount.insert("options".to_owned(), json!(["mode=755", "size=4k"]));
}

/// Where the destination `clean` of a mount of type `kind` is in the root filesystem. `covered` are the places of the mounts
/// before it.
pub fn place(root: &OwnedFd, kind: &str, clean: &Path, covered: &[PathBuf]) -> Result<PathBuf, SpecError> {
    // libcontainer refuses a symlink as the place of these two, which is right.
    if matches!(kind, "proc" | "sysfs") || covered.iter().any(|c| clean.starts_with(c)) {
        return Ok(clean.to_owned());
    }
    inroot::resolve(root, clean).map_err(|source| SpecError::Resolve { path: clean.to_owned(), source })
}

/// A destination that is, or passes, a symlink of the root filesystem is replaced by what it leads to inside it, and so is
/// one with `..`, which a library that follows links before it goes up would take for another.
/// What lies under an earlier mount is not the root filesystem's to resolve.
fn mount_destination(config: &mut Config, context: &Context<'_>) -> Result<(), SpecError> {
    let mut covered: Vec<PathBuf> = Vec::new();
    for mount in mounts_mut(config) {
        let Some(written) = mount.get("destination").and_then(Value::as_str) else {
            return Err(SpecError::Field { field: "mounts", why: "a mount has no destination".into() });
        };
        let kind = mount.get("type").and_then(Value::as_str).unwrap_or_default();
        let clean = clean_absolute(Path::new(written));
        let target = place(context.root, kind, &clean, &covered)?;
        covered.push(target.clone());
        if target.as_os_str() != written {
            let text = target.to_str().ok_or_else(|| SpecError::Field {
                field: "mounts",
                why: format!("destination {written} leads to a name that is not UTF-8"),
            })?;
            mount.insert("destination".to_owned(), json!(text));
        }
    }
    Ok(())
}

/// On a `/dev` that is bound from the host libcontainer would make its links and replace ptmx in the host's. It gets one
/// of its own to work in; the bind mount is put over it afterwards.
fn dev_bind(config: &mut Config, _: &Context<'_>) -> Result<(), SpecError> {
    let before = config.mounts();
    let binds: Vec<bool> = before.iter().map(super::Mount::is_dev_bind).collect();
    let source = before.iter().rfind(|m| m.is_dev_bind()).and_then(|m| m.source.clone());
    let own_pts = before.iter().any(|m| clean_absolute(&m.destination) == Path::new("/dev/pts"));
    for (mount, _) in mounts_mut(config).zip(binds).filter(|(_, bind)| *bind) {
        mount.insert("type".to_owned(), json!("tmpfs"));
        mount.insert("source".to_owned(), json!("tmpfs"));
        mount.insert("options".to_owned(), json!(["nosuid", "strictatime", "mode=755", "size=65536k"]));
    }
    // A terminal is then one of the devpts that will be at /dev/pts.
    if let Some(source) = source.filter(|_| config.terminal() && !own_pts)
        && let Some(list) = config.value_mut().get_mut("mounts").and_then(Value::as_array_mut)
    {
        list.push(
            json!({"destination": "/dev/pts", "type": "bind", "source": source.join("pts"), "options": ["bind"]}),
        );
    }
    Ok(())
}

/// What stands for a file until the right one is put over it.
pub(super) const NO_FILE: &str = "/dev/null";

/// libcontainer refuses mounts that map ids. And in a user namespace it looks for a bind mount's source as that namespace's
/// root, who may not be let through to it (a 0750 directory of the kubelet). It gets an empty place; the source is put over it
/// before the container's root is entered.
fn withheld_source(config: &mut Config, context: &Context<'_>) -> Result<(), SpecError> {
    let mounts = config.mounts();
    let withheld: Vec<bool> = mounts.iter().map(|m| m.is_withheld(config, context.bundle)).collect();
    let sources: Vec<PathBuf> = mounts.into_iter().map(|m| context.bundle.join(m.source.unwrap_or_default())).collect();
    for ((mount, withheld), source) in mounts_mut(config).zip(withheld).zip(sources) {
        // Of one on /dev too, which has been taken away already.
        for name in ["uidMappings", "gidMappings"] {
            mount.shift_remove(name);
        }
        if !withheld {
            continue;
        }
        if source.is_dir() {
            placeholder(mount);
        } else {
            mount.insert("type".to_owned(), json!("bind"));
            mount.insert("source".to_owned(), json!(NO_FILE));
            mount.insert("options".to_owned(), json!(["bind"]));
        }
    }
    Ok(())
}

/// A tmpfs over a directory of the root filesystem takes that directory's mode, as in runc; the kernel's default is 1777.
fn tmpfs_mode(config: &mut Config, context: &Context<'_>) -> Result<(), SpecError> {
    for mount in mounts_mut(config) {
        if mount.get("type").and_then(Value::as_str) != Some("tmpfs") {
            continue;
        }
        let has_mode = mount
            .get("options")
            .and_then(Value::as_array)
            .is_some_and(|list| list.iter().any(|o| o.as_str().is_some_and(|o| o.starts_with("mode="))));
        let destination = PathBuf::from(mount.get("destination").and_then(Value::as_str).unwrap_or_default());
        if has_mode || destination.as_os_str().is_empty() {
            continue;
        }
        // A place that is not there yet has no mode to keep.
        let Ok(dir) = inroot::open(context.root, &destination, OFlags::PATH | OFlags::DIRECTORY) else { continue };
        let Ok(stat) = rustix::fs::fstat(&dir) else { continue };
        let options = mount.entry("options").or_insert_with(|| json!([]));
        if options.is_null() {
            *options = json!([]);
        }
        if let Some(list) = options.as_array_mut() {
            list.push(json!(format!("mode={:o}", stat.st_mode & 0o7777)));
        }
    }
    Ok(())
}

/// Any number of a device rule is -1 or nothing, as in runc. libcontainer writes -1 to the cgroup, which refuses it.
fn device_rules(config: &mut Config, _: &Context<'_>) -> Result<(), SpecError> {
    let rules = config.value_mut().pointer_mut("/linux/resources/devices").and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten().filter_map(Value::as_object_mut) {
        for name in ["major", "minor"] {
            if rule.get(name).and_then(Value::as_i64) == Some(-1) {
                rule.shift_remove(name);
            }
        }
    }
    Ok(())
}

/// Without HOME libcontainer asks the C library, which loads what the container's nsswitch.conf names.
fn home(config: &mut Config, context: &Context<'_>) -> Result<(), SpecError> {
    if home_of(&config.env()).is_some() {
        return Ok(());
    }
    let (uid, _) = config.user();
    let found = inroot::open(context.root, Path::new("/etc/passwd"), OFlags::PATH)
        .and_then(passwd::reopen)
        .and_then(|file| passwd::home(file, uid));
    // An image without a readable passwd file is an ordinary image.
    let home = found.ok().flatten().unwrap_or_else(|| "/".to_owned());
    let Some(process) = object(config.value_mut(), "process") else { return Ok(()) };
    let env = process.entry("env").or_insert_with(|| json!([]));
    if env.is_null() {
        *env = json!([]);
    }
    if let Some(list) = env.as_array_mut() {
        list.retain(|e| e.as_str() != Some("HOME="));
        list.push(json!(format!("HOME={home}")));
    }
    Ok(())
}

/// The value of HOME, if it is set to something.
pub fn home_of(env: &[String]) -> Option<&str> {
    env.iter().rev().find_map(|e| e.strip_prefix("HOME=")).filter(|home| !home.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn context<'a>(root: &'a OwnedFd, bundle: &'a Path, copy_on_write: &'a [PathBuf]) -> Context<'a> {
        Context { id: "c", root, bundle, systemd_cgroup: false, copy_on_write }
    }

    fn check(name: &str, before: Value, after: Value) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::create_dir_all(dir.path().join("etc")).unwrap();
        std::fs::create_dir(dir.path().join("sticky")).unwrap();
        std::fs::set_permissions(dir.path().join("sticky"), std::fs::Permissions::from_mode(0o1750)).unwrap();
        symlink("../run/stub.conf", dir.path().join("etc/resolv.conf")).unwrap();
        symlink("/target", dir.path().join("link")).unwrap();
        crate::durable::replace_unsynced(&dir.path().join("etc/passwd"), b"u:x:7:7::/home/u:/bin/sh\n", 0o644).unwrap();
        let root = inroot::open_root(dir.path()).unwrap();
        let step = STEPS.iter().find(|s| s.name == name).unwrap();
        let mut config = Config::from_value(before);
        (step.run)(&mut config, &context(&root, dir.path(), &["/cow".into()])).unwrap();
        assert_eq!(config.value(), &after, "{name}");
    }

    #[test]
    fn each_step() {
        check("own-annotations", json!({}), json!({"annotations": {"dev.agentsbx.generation": "0"}}));
        check(
            "own-annotations",
            json!({"annotations": {"a": "b", "dev.agentsbx.diff": "{}", "dev.agentsbx.generation": "9"}}),
            json!({"annotations": {"a": "b", "dev.agentsbx.generation": "0"}}),
        );
        for (before, after) in [
            (json!({}), "/agentsbx/c"),
            (json!({"cgroupsPath": "p/./q"}), "/p/q"),
            (json!({"cgroupsPath": "/d/../e"}), "/e"),
        ] {
            check("cgroups-path", json!({"linux": before}), json!({"linux": {"cgroupsPath": after}}));
        }
        for (before, after) in [("rprivate", "private"), ("rslave", "slave"), ("rshared", "shared"), ("slave", "slave")]
        {
            let linux = |p| json!({"linux": {"rootfsPropagation": p}});
            check("rootfs-propagation", linux(before), linux(after));
        }
        let rules = |list: Value| json!({"linux": {"resources": {"devices": list}}});
        check(
            "device-rules",
            rules(
                json!([{"allow": true, "type": "c", "major": 136, "minor": -1}, {"major": -1, "minor": -1}, {"major": 0}]),
            ),
            rules(json!([{"allow": true, "type": "c", "major": 136}, {}, {"major": 0}])),
        );
        let mount = |kind: &str, options: Value| json!({"destination": "/x", "type": kind, "options": options});
        for (given, kind) in [
            (mount("cgroup", json!(["bind", "ro"])), "bind"),
            (mount("proc", json!(["ro", "rbind"])), "bind"),
            (mount("tmpfs", json!(["ro"])), "tmpfs"),
        ] {
            let mut after = given.clone();
            after["type"] = json!(kind);
            check("bind-type", json!({"mounts": [given]}), json!({"mounts": [after]}));
        }
        check("no-new-privileges", json!({"process": {"noNewPrivileges": false}}), json!({"process": {}}));
        check(
            "capabilities",
            json!({"process": {"capabilities": {"bounding": ["CAP_KILL", "CAP_NEW"]}}}),
            json!({"process": {"capabilities": {"bounding": ["CAP_KILL"]}}}),
        );
        check(
            "no-new-privileges",
            json!({"process": {"noNewPrivileges": true}}),
            json!({"process": {"noNewPrivileges": true}}),
        );
        check(
            "mount-source",
            json!({"mounts": [{"type": "proc", "destination": "/proc"}, {"destination": "/x", "source": "y"}]}),
            json!({"mounts": [{"type": "proc", "destination": "/proc", "source": "proc"}, {"destination": "/x", "source": "y"}]}),
        );
        check(
            "mount-options",
            json!({"mounts": [{"options": ["tmpcopyup", "size=1m"]}]}),
            json!({"mounts": [{"options": ["size=1m"]}]}),
        );
        check(
            "mount-destination",
            json!({"mounts": [{"destination": "/etc/resolv.conf"}, {"destination": "/link"}, {"destination": "/plain"}]}),
            json!({"mounts": [{"destination": "/run/stub.conf"}, {"destination": "/target"}, {"destination": "/plain"}]}),
        );
        check(
            "mount-destination",
            json!({"mounts": [{"destination": "/link/../plain"}, {"destination": "relative"}]}),
            json!({"mounts": [{"destination": "/plain"}, {"destination": "/relative"}]}),
        );
        check(
            "mount-destination",
            json!({"mounts": [{"destination": "/etc"}, {"destination": "/etc/resolv.conf"}]}),
            json!({"mounts": [{"destination": "/etc"}, {"destination": "/etc/resolv.conf"}]}),
        );
        check(
            "dev-bind",
            json!({"mounts": [{"type": "bind", "destination": "/dev/", "source": "/dev"}, {"type": "bind", "destination": "/dev/x"}]}),
            json!({"mounts": [{"type": "tmpfs", "destination": "/dev/", "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]}, {"type": "bind", "destination": "/dev/x"}]}),
        );
        let user = |mounts: Value| {
            let map = json!([{"containerID": 0, "hostID": 100000, "size": 10}]);
            json!({"mounts": mounts, "linux": {"namespaces": [{"type": "user"}], "uidMappings": map, "gidMappings": map}})
        };
        // The bundle's directory here has mode 0700.
        let bind =
            |source: &str| json!({"type": "bind", "destination": "/x", "source": source, "options": ["rbind", "ro"]});
        check(
            "withheld-source",
            user(json!([bind("etc"), bind("etc/passwd"), bind("/usr/bin")])),
            user(json!([
                {"type": "tmpfs", "destination": "/x", "source": "tmpfs", "options": ["mode=755", "size=4k"]},
                {"type": "bind", "destination": "/x", "source": "/dev/null", "options": ["bind"]},
                bind("/usr/bin")
            ])),
        );
        check("withheld-source", json!({"mounts": [bind("etc")]}), json!({"mounts": [bind("etc")]}));
        let mut mapped = [bind("/usr/bin"), bind("/usr/bin"), json!({"destination": "/dev", "type": "tmpfs"})];
        mapped[0]["options"] = json!(["bind", "idmap"]);
        mapped[1]["uidMappings"] = json!([{"containerID": 0, "hostID": 1, "size": 1}]);
        mapped[2]["gidMappings"] = json!([]);
        let place =
            json!({"type": "tmpfs", "destination": "/x", "source": "tmpfs", "options": ["mode=755", "size=4k"]});
        let after = json!({"mounts": [place, place, {"destination": "/dev", "type": "tmpfs"}]});
        check("withheld-source", json!({"mounts": mapped}), after);
        check(
            "tmpfs-mode",
            json!({"mounts": [{"type": "tmpfs", "destination": "/sticky"}, {"type": "tmpfs", "destination": "/none"},
                {"type": "tmpfs", "destination": "/sticky", "options": ["mode=700"]}]}),
            json!({"mounts": [{"type": "tmpfs", "destination": "/sticky", "options": ["mode=1750"]},
                {"type": "tmpfs", "destination": "/none"},
                {"type": "tmpfs", "destination": "/sticky", "options": ["mode=700"]}]}),
        );
        let process = |uid: u32, env: Value| json!({"process": {"user": {"uid": uid}, "env": env}});
        check("home", process(7, json!(["A=b"])), process(7, json!(["A=b", "HOME=/home/u"])));
        check("home", process(8, json!(["HOME="])), process(8, json!(["HOME=/"])));
        check("home", process(7, json!(["HOME=/x"])), process(7, json!(["HOME=/x"])));
    }

    #[test]
    fn the_hierarchy_root_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = inroot::open_root(dir.path()).unwrap();
        let mut config = Config::from_value(json!({"linux": {"cgroupsPath": "/a/.."}}));
        assert!(cgroups_path(&mut config, &context(&root, dir.path(), &[])).is_err());
    }
}
