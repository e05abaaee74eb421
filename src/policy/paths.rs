//! Masked and read-only paths: the engine's and the profile's.

use std::path::Path;

use serde_json::{Value, json};

use super::{Refusal, Work, strict};

/// Adds what the engine leaves out. A path that is not there is no fault.
pub(super) fn pass(work: &mut Work<'_>) -> Result<(), Refusal> {
    let rules = &work.policy.rules.paths;
    let more = |paths: &'_ [std::path::PathBuf]| -> Vec<String> {
        paths.iter().map(|p| p.to_string_lossy().into_owned()).collect()
    };
    let (mask, read_only) = (more(&rules.mask), more(&rules.read_only));
    add(work, "maskedPaths", strict::MASKED, &mask);
    add(work, "readonlyPaths", strict::READ_ONLY, &read_only);
    Ok(())
}

fn add(work: &mut Work<'_>, list: &str, ours: &[(&str, &str)], configured: &[String]) {
    let given = &mut work.spec["linux"][list];
    if !given.is_array() {
        *given = json!([]);
    }
    let Some(all) = given.as_array_mut() else { return };
    // What lies below a path that is listed is covered with it.
    let known =
        |all: &[Value], path: &str| all.iter().filter_map(Value::as_str).any(|p| Path::new(path).starts_with(p));
    let mut added = Vec::new();
    for path in ours.iter().map(|(path, _)| *path).chain(configured.iter().map(String::as_str)) {
        if !known(all, path) {
            all.push(json!(path));
            added.push(path.to_owned());
        }
    }
    if !added.is_empty() {
        let why = "the engine leaves them out; docs/strict.md says of each why it is there";
        work.decide(format!("linux.{list}"), Value::Null, json!(added), why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Paths, Rules};
    use crate::policy::tests::{minimal, strict_with};

    #[test]
    fn the_engines_stay_and_ours_are_added_once() {
        let mut spec = minimal();
        spec["linux"]["maskedPaths"] = json!(["/proc/kcore", "/engine", "/sys/firmware"]);
        let paths = Paths { mask: vec!["/secret".into(), "/engine/x".into()], read_only: vec!["/etc".into()] };
        let got = strict_with(spec, Rules { paths, ..Rules::default() }).unwrap();
        let list =
            |name: &str| -> Vec<String> { serde_json::from_value(got.spec.value()["linux"][name].clone()).unwrap() };
        let masked = list("maskedPaths");
        for (path, _) in strict::MASKED {
            assert_eq!(masked.iter().filter(|p| p == path).count(), 1, "{path}");
        }
        assert_eq!(masked[..3], ["/proc/kcore", "/engine", "/sys/firmware"]);
        assert!(masked.contains(&"/secret".to_owned()) && !masked.contains(&"/engine/x".to_owned()));
        assert!(list("readonlyPaths").contains(&"/etc".to_owned()));
        assert!(list("readonlyPaths").contains(&"/proc/sys".to_owned()));
        let told: Vec<&str> = got.decisions.iter().map(|d| d.field.as_str()).collect();
        assert!(told.contains(&"linux.maskedPaths") && told.contains(&"linux.readonlyPaths"), "{told:?}");
    }
}
