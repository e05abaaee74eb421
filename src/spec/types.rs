//! Whether all fields of a configuration have values of the right type: a policy that takes a string for no list at all would
//! judge other than what is carried out, and a library that can't read it does not say where.

use oci_spec::runtime::Spec;
use serde_json::Value;

use super::{Config, SpecError, drop_unknown_capabilities};

/// The longest list in which the one that is wrong is looked for.
const LIST_MAX: usize = 1000;

impl Config {
    /// Refuses values that their fields can't have. What others look at more closely is left to them: `hooks`,
    /// `linux.seccomp`, capabilities that are not known here.
    pub fn check_types(&self) -> Result<(), SpecError> {
        let mut document = self.value().clone();
        if let Some(process) = document.get_mut("process") {
            drop_unknown_capabilities(process);
        }
        if let Some(map) = document.as_object_mut() {
            map.shift_remove("hooks");
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
    serde_json::from_value::<Spec>(document.clone()).err().map(|err| err.to_string())
}

/// The field without which there would be no fault, as deep as there is one: `linux.resources.pids`, `mounts[2].type`.
fn place(document: &Value) -> String {
    let mut pointer = String::new();
    let mut name = String::new();
    while let Some(Step { pointer: next, name: part }) = step(document, &pointer) {
        pointer = next;
        name.push_str(&part);
    }
    match name.trim_start_matches('.') {
        "" => "fields".to_owned(),
        name => name.to_owned(),
    }
}

struct Step {
    pointer: String,
    name: String,
}

fn step(document: &Value, pointer: &str) -> Option<Step> {
    let below = |token: &str| format!("{pointer}/{}", token.replace('~', "~0").replace('/', "~1"));
    match document.pointer(pointer)? {
        Value::Object(map) => map.keys().find_map(|key| {
            let mut without = document.clone();
            without.pointer_mut(pointer)?.as_object_mut()?.shift_remove(key);
            fault(&without).is_none().then(|| Step { pointer: below(key), name: format!(".{key}") })
        }),
        Value::Array(list) if list.len() <= LIST_MAX => (0..list.len()).find_map(|n| {
            let mut without = document.clone();
            without.pointer_mut(pointer)?.as_array_mut()?.remove(n);
            fault(&without).is_none().then(|| Step { pointer: below(&n.to_string()), name: format!("[{n}]") })
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
            "hooks": "another's"})
    }

    #[test]
    fn what_is_right_passes() {
        Config::from_value(document()).check_types().unwrap();
    }

    #[test]
    fn the_field_is_told() {
        for (pointer, value, field) in [
            ("/mounts/1/options", json!("rbind,exec"), "mounts[1].options"),
            ("/mounts", json!({"a": 1}), "mounts"),
            ("/mounts/0/type", json!(["proc"]), "mounts[0].type"),
            ("/linux/resources", json!("x"), "linux.resources"),
            ("/linux/resources/pids/limit", json!("x"), "linux.resources.pids.limit"),
            ("/linux/maskedPaths", json!("/proc/kcore"), "linux.maskedPaths"),
            ("/linux/sysctl", json!({"a/b": "1", "net.x": 1}), "linux.sysctl.net.x"),
            ("/linux/namespaces", json!([{"type": "pid"}, {"type": "Network"}]), "linux.namespaces[1]"),
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
