//! What else of a configuration loosens: propagation of the root, cgroup files by name, realtime shares, network devices.

use serde_json::{Value, json};

use super::{Refusal, Work};
use crate::terms::Allow;

/// See docs/strict.md for what is left as it is, and why.
pub(super) fn pass(work: &mut Work<'_>) -> Result<(), Refusal> {
    propagation(work);
    unified(work)?;
    realtime(work);
    network_devices(work)
}

/// The host would be without them, its address and all.
fn network_devices(work: &Work<'_>) -> Result<(), Refusal> {
    let given = work.spec["linux"]["netDevices"].as_object();
    let Some(name) = given.and_then(|map| map.keys().next()) else { return Ok(()) };
    if work.policy.rules.allows(Allow::HostNetwork) {
        return Ok(());
    }
    let word = Allow::HostNetwork.as_str();
    Err(Refusal {
        what: format!("linux.netDevices {name:?}"),
        why: "a network device of the host would be the container's, and the host without it".to_owned(),
        remedy: format!("leave it out, or have {word:?} in the configuration's allow"),
    })
}

fn propagation(work: &mut Work<'_>) {
    let given = work.spec["linux"]["rootfsPropagation"].clone();
    let private = matches!(given.as_str(), Some("private" | "rprivate"));
    if !private && !work.policy.rules.allows(Allow::MountPropagation) {
        work.spec["linux"]["rootfsPropagation"] = json!("rprivate");
        // Where the engine leaves it open, it is no change of what it asks for.
        if given.as_str().is_some_and(|text| !text.is_empty()) {
            let why = "mounts of the host would show in the container, or the container's on the host";
            work.decide("linux.rootfsPropagation", given, json!("rprivate"), why);
        }
    }
}

/// Files of the cgroup by name: only a controller's, and none that moves processes or delegates.
fn unified(work: &mut Work<'_>) -> Result<(), Refusal> {
    let given = work.spec["linux"]["resources"]["unified"].as_object();
    for (name, value) in given.into_iter().flatten() {
        let plain = !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            && !name.starts_with('.');
        if !plain || name.starts_with("cgroup.") {
            return Err(Refusal {
                what: format!("linux.resources.unified {name} = {value}"),
                why: "it is no setting of a controller".to_owned(),
                remedy: "leave it out".to_owned(),
            });
        }
    }
    Ok(())
}

fn realtime(work: &mut Work<'_>) {
    for name in ["realtimeRuntime", "realtimePeriod"] {
        if let Some(cpu) = work.spec.pointer_mut("/linux/resources/cpu").and_then(Value::as_object_mut)
            && cpu.get(name).is_some_and(|value| value.as_i64().is_some_and(|n| n != 0))
        {
            let from = cpu.shift_remove(name).unwrap_or_default();
            let why = "realtime processes keep the host's from running";
            work.decide(format!("linux.resources.cpu.{name}"), from, Value::Null, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Rules;
    use crate::policy::tests::{minimal, strict_with};

    #[test]
    fn what_loosens_goes() {
        let mut spec = minimal();
        spec["linux"]["rootfsPropagation"] = json!("rshared");
        spec["linux"]["resources"] = json!({"cpu": {"realtimeRuntime": 950000, "shares": 7}});
        let got = strict_with(spec.clone(), Rules::default()).unwrap();
        let linux = &got.spec.value()["linux"];
        assert_eq!(linux["rootfsPropagation"], "rprivate");
        assert_eq!(linux["resources"]["cpu"]["shares"], 7);
        assert!(linux["resources"]["cpu"]["realtimeRuntime"].is_null());
        let allow = Rules { allow: vec![Allow::MountPropagation], ..Rules::default() };
        assert_eq!(strict_with(spec, allow).unwrap().spec.value()["linux"]["rootfsPropagation"], "rshared");
    }

    #[test]
    fn cgroup_files_are_controllers() {
        let with = |name: &str| {
            let mut spec = minimal();
            spec["linux"]["resources"] = json!({"unified": {name: "1"}});
            strict_with(spec, Rules::default()).map(drop).map_err(|err| err.to_string())
        };
        with("memory.high").unwrap();
        for name in ["cgroup.procs", "../x", "a/b", "", ".."] {
            with(name).unwrap_err();
        }
    }

    #[test]
    fn the_hosts_network_devices_stay() {
        let mut spec = minimal();
        spec["linux"]["netDevices"] = json!({"eth0": {"name": "eth1"}});
        let err = strict_with(spec.clone(), Rules::default()).unwrap_err().to_string();
        assert!(err.starts_with("linux.netDevices \"eth0\": ") && err.contains("\"host-network\""), "{err}");
        strict_with(spec.clone(), Rules { allow: vec![Allow::HostNetwork], ..Rules::default() }).unwrap();
        spec["linux"]["netDevices"] = json!({});
        strict_with(spec, Rules::default()).unwrap();
    }
}
