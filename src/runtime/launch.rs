//! The configuration that libcontainer gets: the normalised one, without what the payload does itself.
//!
//! The payload takes the identity, enters the working directory and loads the filter: libcontainer tries a directory only
//! as root, and loads a filter without `no_new_privs` only where the field is absent, compiled otherwise than for execs.
//! A profile with a listener stays libcontainer's whole business, identity included: it has the way to hand the descriptor
//! on, and such a filter is in force before the payload's turn comes.
//!
//! It lies in a bundle of its own in the state directory, so that the engine's `config.json` is never less than it was.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::cgroup_mount::Parts;
use super::error::{On, RuntimeError};
use super::hooks::Errand;
use super::joined::Joined;
use super::place::Place;
use super::seccomp::Filter;
use super::state::Record;
use crate::spec::Config;

/// libcontainer's bundle in the container's state directory.
const BUNDLE: &str = "bundle";

/// Who makes the first process what it is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// The payload.
    Payload,
    /// libcontainer, since the filter has a listener.
    Libcontainer,
}

impl Identity {
    /// By the filter that execs get.
    pub fn of(filter: &Filter) -> Identity {
        match filter {
            Filter::Refused(_) => Identity::Libcontainer,
            Filter::None | Filter::Compiled(_) => Identity::Payload,
        }
    }
}

/// Writes the bundle; its directory. `report` is the inherited descriptor that takes what failing hooks say.
/// `places` are the mounts that are put in place later, `cgroups` what its cgroup mounts are made of, `joined` the namespaces
/// that it joins.
pub fn write(
    record: &Record,
    normalised: &Config,
    cgroups: Option<&Parts>,
    joined: &Joined,
    identity: Identity,
    report: i32,
    places: Vec<Place>,
) -> Result<PathBuf, RuntimeError> {
    let dir = record.dir.join(BUNDLE);
    std::fs::create_dir_all(&dir).on("make directory", &dir)?;
    let hooks = [
        ("createRuntime", Errand::hook(record, &["prestart", "createRuntime"], report, places)),
        ("createContainer", Errand::hook(record, &["createContainer"], report, Vec::new())),
    ];
    let mut config = reduced(normalised, identity, &record.rootfs, hooks);
    if let Some(parts) = cgroups {
        parts.write_out(&mut config);
    }
    joined.write_out(&mut config);
    config.store(&dir)?;
    Ok(dir)
}

fn reduced(normalised: &Config, identity: Identity, rootfs: &Path, hooks: [(&str, Option<Value>); 2]) -> Config {
    let mut config = normalised.clone();
    let document = config.value_mut();
    document["root"]["path"] = json!(rootfs);
    if let Some(map) = document.as_object_mut() {
        map.shift_remove("hooks");
    }
    for (phase, hook) in hooks {
        if let Some(hook) = hook {
            document["hooks"][phase] = json!([hook]);
        }
    }
    match identity {
        Identity::Payload => {
            let umask = document.pointer("/process/user/umask").cloned();
            let process = &mut document["process"];
            process["cwd"] = json!("/");
            process["user"] = json!({"uid": 0, "gid": 0});
            if let Some(umask) = umask {
                process["user"]["umask"] = umask;
            }
            for (of, name) in [("process", "capabilities"), ("linux", "seccomp")] {
                if let Some(map) = document[of].as_object_mut() {
                    map.shift_remove(name);
                }
            }
        }
        Identity::Libcontainer => masked(document),
    }
    config
}

/// libcontainer passes a masked comparison's two values to the library in each other's place: with the mask 0, which
/// compares nothing, Docker's rule that keeps `clone` from making namespaces lets all of them pass. The values change
/// places here, so that they come out right.
fn masked(document: &mut Value) {
    let rules = document.pointer_mut("/linux/seccomp/syscalls").and_then(Value::as_array_mut);
    let args = rules.into_iter().flatten().filter_map(|rule| rule.get_mut("args")?.as_array_mut()).flatten();
    for arg in args.filter_map(Value::as_object_mut) {
        if arg.get("op").and_then(Value::as_str) == Some("SCMP_CMP_MASKED_EQ") {
            let mask = arg.get("value").cloned().unwrap_or(json!(0));
            let compared = arg.get("valueTwo").filter(|v| !v.is_null()).cloned().unwrap_or(json!(0));
            arg.insert("value".to_owned(), compared);
            arg.insert("valueTwo".to_owned(), mask);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let masked = json!({"index": 0, "value": 7, "valueTwo": 3, "op": "SCMP_CMP_MASKED_EQ"});
        let plain = json!({"index": 1, "value": 5, "op": "SCMP_CMP_EQ"});
        let bare = json!({"index": 0, "value": 9, "op": "SCMP_CMP_MASKED_EQ"});
        Config::from_value(json!({
            "root": {"path": "rootfs", "readonly": true},
            "process": {"cwd": "/work", "user": {"uid": 7, "gid": 8, "umask": 18, "additionalGids": [9]},
                "capabilities": {"bounding": []}, "noNewPrivileges": true},
            "hooks": {"poststop": []},
            "linux": {"seccomp": {"syscalls": [{"args": [masked, plain]}, {"args": [bare]}]}, "x": 1}
        }))
    }

    #[test]
    fn what_the_payload_does_is_left_out() {
        let hooks = [("createRuntime", None), ("createContainer", Some(json!({"path": "/h"})))];
        let want = json!({
            "root": {"path": "/r", "readonly": true},
            "process": {"cwd": "/", "user": {"uid": 0, "gid": 0, "umask": 18}, "noNewPrivileges": true},
            "linux": {"x": 1},
            "hooks": {"createContainer": [{"path": "/h"}]}
        });
        assert_eq!(reduced(&config(), Identity::Payload, Path::new("/r"), hooks).value(), &want);
    }

    #[test]
    fn with_a_listener_it_is_libcontainers_and_masked_rules_compare() {
        let hooks = [("createRuntime", None), ("createContainer", None)];
        let made = reduced(&config(), Identity::Libcontainer, Path::new("/r"), hooks);
        assert_eq!(made.value()["process"], config().value()["process"]);
        assert_eq!(made.value().get("hooks"), None);
        let rules = &made.value()["linux"]["seccomp"]["syscalls"];
        assert_eq!(rules[0]["args"][0], json!({"index": 0, "value": 3, "valueTwo": 7, "op": "SCMP_CMP_MASKED_EQ"}));
        assert_eq!(rules[0]["args"][1], json!({"index": 1, "value": 5, "op": "SCMP_CMP_EQ"}));
        assert_eq!(rules[1]["args"][0], json!({"index": 0, "value": 0, "op": "SCMP_CMP_MASKED_EQ", "valueTwo": 9}));
    }
}
