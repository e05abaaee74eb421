//! A fence around each exec, and where its processes can read and write.
//!
//! Paths that are denied or read-only are mounts, in the container and so in every exec; that writing is limited to some
//! paths is Landlock's work, and so is the fence (see [`crate::sys::landlock`]).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Refusal, Work};
use crate::spec::annotations;
use crate::spec::normalise::clean_absolute;
use crate::sys::landlock::{AUDIT, FENCE, WRITES};

/// What the first process and every exec put themselves behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Fence {
    /// Writing is possible beneath these paths only; none: wherever it is otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_write: Option<Vec<PathBuf>>,
    /// The kernel's audit log tells of refusals.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub audit: bool,
}

/// Adds the paths to those that are masked or read-only, and decides on the fence.
pub(super) fn pass(work: &mut Work<'_>) -> Result<(), Refusal> {
    let rules = &work.policy.files;
    let version = work.host.landlock.unwrap_or(0);
    for (list, paths, why) in [
        ("maskedPaths", &rules.deny, "a file rule denies it: something empty is mounted there, if it is there"),
        ("readonlyPaths", &rules.read_only, "a file rule makes it read-only: it is mounted so, if it is there"),
    ] {
        for path in paths {
            check(work.spec, path, list == "maskedPaths")?;
            add_path(work, list, path, why);
        }
    }
    work.confinement.denied = rules.deny.clone();
    if version < FENCE {
        if rules.allow_write.is_some() {
            return Err(cannot_limit(version, WRITES));
        }
        let why = "the kernel has no Landlock (version 2, Linux 5.19): the container's execs can look into each other by /proc";
        work.decide("landlock", Value::Null, Value::Null, why);
        return Ok(());
    }
    if rules.allow_write.is_some() && version < WRITES {
        return Err(cannot_limit(version, WRITES));
    }
    if let Some(paths) = &rules.allow_write {
        work.decide("files.allowWrite", Value::Null, json!(paths), "a file rule: enforced by Landlock");
    }
    if rules.audit {
        let (to, why) = match version >= AUDIT {
            true => (json!(true), "a file rule: the kernel's audit log tells what Landlock refuses"),
            false => (Value::Null, "the kernel can't log what Landlock refuses (version 7, Linux 6.15)"),
        };
        work.decide("files.audit", Value::Null, to, why);
    }
    let fence = Fence { allow_write: rules.allow_write.clone(), audit: rules.audit && version >= AUDIT };
    work.confinement.fence = Some(fence);
    work.decide(
        "landlock",
        Value::Null,
        json!(format!("version {version}")),
        "processes of one exec cannot trace those of another, nor reach their files by /proc",
    );
    Ok(())
}

/// Refuses rules for paths at which mounts would take the root, or each other, away.
fn check(spec: &Value, path: &Path, deny: bool) -> Result<(), Refusal> {
    let refuse = |why: String, remedy: &str| {
        let what = format!("file rule {} for {}", if deny { "deny" } else { "read-only" }, path.display());
        Err(Refusal { what, why, remedy: format!("{remedy} ({} or [files] of the configuration)", annotations::FILES) })
    };
    if path == Path::new("/") {
        let remedy = "name what is below it; have the engine make the root read-only";
        return refuse("it would cover the root, with its layers".to_owned(), remedy);
    }
    let destinations = spec["mounts"].as_array().into_iter().flatten().filter_map(|m| m["destination"].as_str());
    let below = destinations.map(|at| clean_absolute(Path::new(at))).find(|at| at != path && at.starts_with(path));
    match below.filter(|_| deny) {
        Some(at) => {
            let why = format!("{} is mounted there, which would be taken away too", at.display());
            refuse(why, "deny what is beside it, path by path")
        }
        None => Ok(()),
    }
}

fn cannot_limit(version: u32, needed: u32) -> Refusal {
    Refusal {
        what: format!("allowWrite of {} or of the configuration's [files]", annotations::FILES),
        why: format!("it needs Landlock of version {needed} (Linux 6.2), and the kernel has version {version}"),
        remedy: "leave it out, or enable Landlock (kernel parameter lsm=landlock,…)".to_owned(),
    }
}

fn add_path(work: &mut Work<'_>, list: &str, path: &Path, why: &'static str) {
    let value = json!(path);
    let all = &mut work.spec["linux"][list];
    if !all.is_array() {
        *all = json!([]);
    }
    let Some(all) = all.as_array_mut() else { return };
    if !all.contains(&value) {
        all.push(value.clone());
        work.decide(format!("linux.{list}"), Value::Null, value, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Host, Policy, harden};
    use crate::spec::Config;
    use crate::spec::file_rules::{FileRules, parse};
    use crate::terms::Profile;

    fn hardened(rules: &str, landlock: Option<u32>) -> Result<crate::policy::Hardened, Refusal> {
        let mut spec = crate::policy::tests::minimal();
        spec["linux"]["maskedPaths"] = json!(["/proc/kcore"]);
        let spec = Config::from_value(spec);
        let files = if rules.is_empty() { FileRules::default() } else { parse(rules).unwrap() };
        let policy = Policy { profile: Profile::Strict, files, ..Policy::default() };
        harden(&spec, &policy, &Host { landlock, ..Host::default() })
    }

    fn fence(rules: &str, landlock: Option<u32>) -> Option<Fence> {
        hardened(rules, landlock).unwrap().confinement.fence
    }

    #[test]
    fn the_fence_is_there_where_the_kernel_has_it() {
        assert_eq!(fence("", Some(2)), Some(Fence::default()));
        assert_eq!(fence("", Some(1)), None, "it would break renames");
        assert_eq!(fence("", None), None);
        let told = hardened("", None).unwrap().decisions;
        assert!(told.iter().any(|d| d.field == "landlock" && d.to.is_null()), "{told:?}");
    }

    #[test]
    fn paths_are_mounts_and_writing_is_landlocks() {
        let rules =
            r#"{"deny": ["/proc/kcore", "/secret"], "readOnly": ["/etc"], "allowWrite": ["/work"], "audit": true}"#;
        let got = hardened(rules, Some(7)).unwrap();
        assert_eq!(
            got.spec.value()["linux"]["maskedPaths"].as_array().unwrap().iter().filter(|p| **p == "/secret").count(),
            1
        );
        assert_eq!(
            got.spec.value()["linux"]["maskedPaths"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|p| **p == "/proc/kcore")
                .count(),
            1
        );
        assert!(got.spec.value()["linux"]["readonlyPaths"].as_array().unwrap().contains(&json!("/etc")));
        let want = Fence { allow_write: Some(vec!["/work".into()]), audit: true };
        assert_eq!(got.confinement.fence, Some(want));
        assert_eq!(fence(rules, Some(6)).map(|f| f.audit), Some(false));
    }

    #[test]
    fn rules_that_would_take_mounts_away_are_refused() {
        let told = |rules: &str| {
            let mut spec = crate::policy::tests::minimal();
            spec["mounts"] = json!([{"destination": "/etc/hosts", "type": "tmpfs"}]);
            let policy = Policy { files: parse(rules).unwrap(), ..Policy::default() };
            let host = Host { landlock: Some(7), ..Host::default() };
            harden(&Config::from_value(spec), &policy, &host).err().map(|err| err.to_string())
        };
        assert!(told(r#"{"deny": ["/"]}"#).unwrap().contains("it would cover the root"));
        assert!(told(r#"{"readOnly": ["/"]}"#).unwrap().contains("have the engine make the root read-only"));
        assert!(told(r#"{"deny": ["/etc"]}"#).unwrap().contains("/etc/hosts is mounted there"));
        for fine in [r#"{"deny": ["/etc/hosts", "/etc/host"]}"#, r#"{"readOnly": ["/etc"]}"#] {
            assert_eq!(told(fine), None, "{fine}");
        }
    }

    #[test]
    fn what_cannot_be_enforced_is_refused() {
        for version in [None, Some(1), Some(2)] {
            let err = hardened(r#"{"allowWrite": []}"#, version).unwrap_err().to_string();
            assert!(err.contains("needs Landlock of version 3"), "{err}");
        }
    }
}
