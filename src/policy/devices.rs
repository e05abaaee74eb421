//! Device files and device rules: the standard ones, and what the configuration lists.

use serde_json::{Map, Value, json};

use super::host::Node;
use super::{Host, Refusal, Work, strict};
use crate::config::{Device, Rules};

const WHY: &str = "the device is none of the standard ones; devices.allow of the configuration lets it in";
const RULE: &str = "it allows more than the standard devices; devices.allow of the configuration lets them in";

/// Takes out what is neither standard nor listed.
pub(super) fn pass(work: &mut Work<'_>) -> Result<(), Refusal> {
    let (rules, host) = (&work.policy.rules, work.host);
    if let Some(list) = work.spec.pointer_mut("/linux/devices").and_then(Value::as_array_mut) {
        let gone: Vec<Value> = list.extract_if(.., |device| !may_have(device, rules, host)).collect();
        if !gone.is_empty() {
            let names: Vec<Value> = gone.iter().map(|device| device["path"].clone()).collect();
            work.decide("linux.devices", json!(names), Value::Null, WHY);
        }
    }
    rules_of_the_cgroup(work);
    Ok(())
}

fn rules_of_the_cgroup(work: &mut Work<'_>) {
    let (rules, host) = (&work.policy.rules, work.host);
    let linux = &mut work.spec["linux"];
    if !linux["resources"].is_object() {
        linux["resources"] = Value::Object(Map::new());
    }
    if !linux["resources"]["devices"].is_array() {
        linux["resources"]["devices"] = json!([]);
    }
    let Some(list) = linux["resources"]["devices"].as_array_mut() else { return };
    let mut changed = Vec::new();
    list.retain_mut(|rule| {
        if rule["allow"] != true {
            return true;
        }
        let given = rule["access"].as_str().unwrap_or_default();
        let granted = may_use(rule, rules, host);
        let left: String = given.chars().filter(|c| granted.contains(c)).collect();
        if left == given && !granted.is_empty() {
            return true;
        }
        let before = rule.clone();
        rule["access"] = json!(left);
        changed.push((before, if left.is_empty() { Value::Null } else { rule.clone() }));
        !left.is_empty()
    });
    // Without this as the first, everything is allowed that no rule forbids.
    let deny = json!({"allow": false, "access": "rwm"});
    if !list.first().is_some_and(denies_all) {
        list.insert(0, deny);
    }
    for (from, to) in changed {
        work.decide("linux.resources.devices", from, to, RULE);
    }
}

fn denies_all(rule: &Value) -> bool {
    let any = |name: &str| rule[name].as_i64().is_none_or(|n| n < 0);
    let kind = rule["type"].as_str().unwrap_or("a");
    let all = rule["access"].as_str().is_some_and(|access| "rwm".chars().all(|c| access.contains(c)));
    rule["allow"] != true && matches!(kind, "a" | "") && any("major") && any("minor") && all
}

fn number(value: &Value) -> Option<u32> {
    value.as_i64().and_then(|n| u32::try_from(n).ok())
}

/// Whether a container may have this device file.
fn may_have(device: &Value, rules: &Rules, host: &Host) -> bool {
    let block = match device["type"].as_str() {
        // A pipe is no device.
        Some("p") => return true,
        Some("b") => true,
        Some("c" | "u") => false,
        _ => return false,
    };
    let (Some(major), Some(minor)) = (number(&device["major"]), number(&device["minor"])) else { return false };
    is_allowed(Node { block, major, minor }, rules, host)
}

/// Whether a node is one that a container may use.
pub(super) fn is_allowed(node: Node, rules: &Rules, host: &Host) -> bool {
    let standard = |(_, major, minor): &(&str, u32, Option<u32>)| {
        !node.block && *major == node.major && minor.is_none_or(|minor| minor == node.minor)
    };
    strict::DEVICES.iter().any(standard)
        || host.devices.contains(&node)
        || rules.devices.allow.iter().any(|device| match device {
            Device::Path(_) => false,
            Device::Rule { kind, major, minor, .. } => {
                (*kind == 'b') == node.block
                    && major.is_none_or(|n| n == node.major)
                    && minor.is_none_or(|n| n == node.minor)
            }
        })
}

/// All that can be done with a device: read, write, make a file of it.
const ALL: &[char] = &['r', 'w', 'm'];

/// What of the access that a rule gives is listed, for all the devices that it names.
fn may_use(rule: &Value, rules: &Rules, host: &Host) -> Vec<char> {
    let (major, minor) = (number(&rule["major"]), number(&rule["minor"]));
    let block = match rule["type"].as_str() {
        Some("b") => true,
        Some("c" | "u") => false,
        _ => return Vec::new(),
    };
    let standard = |(_, of, n): &(&str, u32, Option<u32>)| {
        !block && major == Some(*of) && (n.is_none() || minor.is_some() && minor == *n)
    };
    let by_path = |major, minor| host.devices.contains(&Node { block, major, minor });
    if strict::DEVICES.iter().any(standard) || major.zip(minor).is_some_and(|(major, minor)| by_path(major, minor)) {
        return ALL.to_vec();
    }
    let covers = |kind: char, m: Option<u32>, n: Option<u32>| {
        (kind == 'b') == block && (m.is_none() || m == major) && (n.is_none() || n == minor)
    };
    let listed = rules.devices.allow.iter().filter_map(|device| match device {
        Device::Rule { kind, major, minor, access } if covers(*kind, *major, *minor) => Some(access.chars()),
        _ => None,
    });
    listed.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Devices;
    use crate::policy::tests::{minimal, strict_on};

    fn hardened(devices: &[&str], spec: Value) -> (Vec<Value>, Vec<Value>, usize) {
        let mut config = minimal();
        config["linux"]["devices"] = spec["devices"].clone();
        config["linux"]["resources"] = json!({"devices": spec["rules"]});
        let allow = devices.iter().map(|text| text.parse().unwrap()).collect();
        let rules = Rules { devices: Devices { allow }, ..Rules::default() };
        let host = Host { devices: vec![Node { block: false, major: 226, minor: 128 }], ..Host::default() };
        let got = strict_on(config, rules, &host).unwrap();
        let linux = &got.spec.value()["linux"];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let told = got.decisions.iter().filter(|d| d.field.contains("devices")).count();
        (list(&linux["devices"]), list(&linux["resources"]["devices"]), told)
    }

    fn node(kind: &str, major: u32, minor: u32) -> Value {
        json!({"path": format!("/dev/{kind}{major}:{minor}"), "type": kind, "major": major, "minor": minor})
    }

    fn rule(allow: bool, kind: &str, major: i64, minor: i64) -> Value {
        json!({"allow": allow, "type": kind, "major": major, "minor": minor, "access": "rwm"})
    }

    #[test]
    fn device_files() {
        let given = json!([node("c", 1, 3), node("b", 8, 0), node("b", 1, 3), node("c", 10, 229), node("c", 226, 128)]);
        let with = |allow: &[&str]| hardened(allow, json!({"devices": given, "rules": []})).0;
        assert_eq!(with(&[]), [node("c", 1, 3), node("c", 226, 128)]);
        assert_eq!(with(&["c 10:* rw"]).len(), 3);
        assert_eq!(with(&["b *:* rw"]).len(), 4);
    }

    #[test]
    fn rules_of_the_device_cgroup() {
        let deny = json!({"allow": false, "access": "rwm"});
        let of = |allow: &[&str], rules: Value| {
            let (_, rules, told) = hardened(allow, json!({"rules": rules}));
            (rules, told)
        };
        // A privileged container's.
        assert_eq!(of(&[], json!([{"allow": true, "access": "rwm"}])), (vec![deny.clone()], 1));
        assert_eq!(of(&[], json!(null)), (vec![deny.clone()], 0));
        // Docker's own.
        let docker = [deny.clone(), rule(true, "c", 1, 5), rule(true, "c", 136, -1), rule(false, "c", 10, 229)];
        assert_eq!(of(&[], json!(docker)), (docker.to_vec(), 0));
        let more = json!([deny, rule(true, "c", 10, 200), rule(true, "b", 8, -1), rule(true, "c", -1, -1)]);
        assert_eq!(of(&[], more.clone()), (vec![deny.clone()], 3));
        assert_eq!(of(&["b 8:* rwm"], more.clone()).1, 2);
        assert_eq!(of(&["b 8:0 rwm"], more.clone()).1, 3, "one device is not all of them");
        // No more can be done with it than is listed.
        let reduced = json!({"allow": true, "type": "b", "major": 8, "minor": -1, "access": "rm"});
        assert_eq!(of(&["b 8:* r", "b *:* m"], more), (vec![deny.clone(), reduced], 3));
        assert_eq!(of(&["c 226:129 r"], json!([deny, rule(true, "c", 226, 128)])).1, 0, "listed by its path");
    }
}
