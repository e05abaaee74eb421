//! Whether all fields of a configuration have values of the right type: a policy that takes a string for no list at all would
//! judge other than what is carried out, and a library that can't read it does not say where.

use oci_spec::runtime::Spec;
use serde_json::Value;

use super::{Config, SpecError, drop_unknown_capabilities, typed};

/// The longest list in which the one that is wrong is looked for.
const LIST_MAX: usize = 1000;

impl Config {
    /// Refuses values that their fields can't have. What others look at more closely is left to them:
    /// `linux.seccomp`, capabilities that are not known here.
    pub fn check_types(&self) -> Result<(), SpecError> {
        let mut document = self.value().clone();
        if let Some(process) = document.get_mut("process") {
            drop_unknown_capabilities(process);
        }
        if let Some(linux) = document.get_mut("linux").and_then(Value::as_object_mut) {
            linux.shift_remove("seccomp");
        }
        match fault(&document) {
            None => Ok(()),
            Some(why) => Err(SpecError::Type { field: place(&document), why }),
        }
    }
}

fn fault(document: &Value) -> Option<String> {
    typed::<Spec>(document).err().map(|err| err.to_string())
}

/// The field without which there would be no fault, as deep as there is one: `linux.resources.pids`, `mounts[2].type`. Of several
/// that are wrong the first.
fn place(document: &Value) -> String {
    let mut document = document.clone();
    let mut pointer = String::new();
    let mut name = String::new();
    while let Some(step) = step(&document, &pointer).or_else(|| first_of(&document, &pointer)) {
        pointer = step.pointer;
        name.push_str(&step.name);
        document = step.document.unwrap_or(document);
    }
    match name.trim_start_matches('.') {
        "" => "fields".to_owned(),
        name => name.to_owned(),
    }
}

struct Step {
    pointer: String,
    name: String,
    /// What to go on in, if not in the same document.
    document: Option<Value>,
}

fn below(pointer: &str, token: &str) -> String {
    format!("{pointer}/{}", token.replace('~', "~0").replace('/', "~1"))
}

fn step(document: &Value, pointer: &str) -> Option<Step> {
    let found = |pointer, name| Step { pointer, name, document: None };
    match document.pointer(pointer)? {
        Value::Object(map) => map.keys().find_map(|key| {
            let mut without = document.clone();
            without.pointer_mut(pointer)?.as_object_mut()?.shift_remove(key);
            fault(&without).is_none().then(|| found(below(pointer, key), format!(".{key}")))
        }),
        Value::Array(list) if list.len() <= LIST_MAX => (0..list.len()).find_map(|n| {
            let mut without = document.clone();
            without.pointer_mut(pointer)?.as_array_mut()?.remove(n);
            fault(&without).is_none().then(|| found(below(pointer, &n.to_string()), format!("[{n}]")))
        }),
        _ => None,
    }
}

/// Where several are wrong at `pointer`: the first one that is so by itself, in a document without the others.
fn first_of(document: &Value, pointer: &str) -> Option<Step> {
    match document.pointer(pointer)? {
        Value::Object(map) => {
            let with = |names: &[&str]| {
                let mut document = document.clone();
                let object = document.pointer_mut(pointer)?.as_object_mut()?;
                object.retain(|name, _| names.contains(&name.as_str()));
                Some(document)
            };
            let found = |key: &str, document| {
                Some(Step { pointer: below(pointer, key), name: format!(".{key}"), document: Some(document) })
            };
            // Those that must be there.
            let mut needed: Vec<&str> = Vec::new();
            loop {
                let document = with(&needed)?;
                let Some(why) = fault(&document) else { break };
                let missing = why.strip_prefix("missing field `").and_then(|why| why.strip_suffix('`'));
                match missing.and_then(|name| map.get_key_value(name)) {
                    Some((name, _)) if !needed.contains(&name.as_str()) => needed.push(name),
                    _ => return found(needed.last()?, document),
                }
            }
            map.keys().find_map(|key| {
                let alone = with(&[&[key.as_str()], &needed[..]].concat())?;
                fault(&alone)?;
                found(key, alone)
            })
        }
        Value::Array(list) if list.len() <= LIST_MAX => (0..list.len()).find_map(|n| {
            let mut alone = document.clone();
            *alone.pointer_mut(pointer)? = Value::Array(Vec::new());
            if fault(&alone).is_some() {
                return None;
            }
            *alone.pointer_mut(pointer)? = Value::Array(vec![list[n].clone()]);
            fault(&alone)?;
            Some(Step { pointer: below(pointer, "0"), name: format!("[{n}]"), document: Some(alone) })
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document() -> Value {
        json!({"ociVersion": "1.0.2",
            "process": {"cwd": "/", "args": ["a"], "user": {"uid": 0, "gid": 0}, "capabilities": {"bounding": ["CAP_NEW"]}},
            "root": {"path": "r"},
            "mounts": [{"destination": "/proc", "type": "proc"}, {"destination": "/x", "source": null}],
            "linux": {"resources": {"pids": {"limit": 3}}, "seccomp": "another's", "unknown": 7},
            "hooks": {"poststop": [{"path": "/x", "timeout": 3}], "unknown": 7}})
    }

    #[test]
    fn what_is_right_passes() {
        Config::from_value(document()).check_types().unwrap();
    }

    /// Of two that were wrong, as mappings of users and groups mostly are, none was told.
    #[test]
    fn the_first_of_several_fields_is_told() {
        let map = |host: i64| json!([{"containerID": 0, "hostID": 1, "size": 1}, {"containerID": 1, "hostID": host, "size": 1}]);
        let mount = json!({"destination": "/y", "uidMappings": map(1), "gidMappings": map(-1), "options": "bind"});
        let other = json!({"destination": "/z", "options": "bind"});
        for (pointer, value, field) in [
            ("/linux", json!({"uidMappings": map(-1), "gidMappings": map(-1)}), "linux.uidMappings[1].hostID"),
            ("/mounts/1", mount, "mounts[1].gidMappings[1].hostID"),
            ("/mounts", json!([{"destination": "/proc"}, other.clone(), other]), "mounts[1].options"),
            ("/process/user", json!({"uid": "0", "gid": "0"}), "process.user"),
        ] {
            let mut document = document();
            *document.pointer_mut(pointer).unwrap() = value;
            let err = Config::from_value(document).check_types().unwrap_err().to_string();
            assert!(err.starts_with(&format!("invalid {field} in config.json: ")), "{pointer}: {err}");
        }
    }

    #[test]
    fn the_field_is_told() {
        for (pointer, value, field) in [
            ("/mounts/1/options", json!("rbind,exec"), "mounts[1].options"),
            ("/mounts", json!({"a": 1}), "mounts"),
            ("/mounts/0/type", json!(["proc"]), "mounts[0].type"),
            ("/mounts/1", json!(["/x", "bind", "/", ["rbind"]]), "mounts[1]"),
            ("/process/capabilities", json!([["CAP_SYS_ADMIN"]]), "process.capabilities"),
            ("/linux/resources/pids", json!([3]), "linux.resources.pids"),
            ("/linux/namespaces", json!([{"type": "pid"}, {"type": {"pid": null}}]), "linux.namespaces[1].type"),
            (
                "/process/rlimits",
                json!([{"type": {"RLIMIT_CPU": null}, "soft": 1, "hard": 1}]),
                "process.rlimits[0].type",
            ),
            ("/hooks", json!("x"), "hooks"),
            ("/hooks/poststop", json!({"path": "/x"}), "hooks.poststop"),
            ("/hooks/poststop/0", json!(["/x"]), "hooks.poststop[0]"),
            ("/hooks/poststop/0/timeout", json!("3"), "hooks.poststop[0].timeout"),
            (
                "/linux/uidMappings",
                json!([{"hostID": 1, "containerID": 0, "size": 1}, [0, 1000, 1]]),
                "linux.uidMappings[1]",
            ),
            ("/linux/resources", json!("x"), "linux.resources"),
            ("/linux/resources/pids/limit", json!("x"), "linux.resources.pids.limit"),
            ("/linux/maskedPaths", json!("/proc/kcore"), "linux.maskedPaths"),
            ("/linux/sysctl", json!({"a/b": "1", "net.x": 1}), "linux.sysctl.net.x"),
            ("/linux/namespaces", json!([{"type": "pid"}, {"type": "Network"}]), "linux.namespaces[1].type"),
            ("/process/noNewPrivileges", json!("false"), "process.noNewPrivileges"),
            ("/process/capabilities/bounding", json!("CAP_SYS_ADMIN"), "process.capabilities.bounding"),
        ] {
            let mut document = document();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            let parent = document.pointer_mut(parent).unwrap();
            match parent.as_array_mut() {
                Some(list) => list[key.parse::<usize>().unwrap()] = value,
                None => parent[key] = value,
            }
            let err = Config::from_value(document).check_types().unwrap_err().to_string();
            assert!(err.starts_with(&format!("invalid {field} in config.json: ")), "{pointer}: {err}");
        }
    }
}
