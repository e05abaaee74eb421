//! Copy-on-write mounts: which bind mounts the annotation makes ones. Asking for them only tightens, so every profile has
//! this pass.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Refusal, Work};
use crate::spec::mount_rules::{Access, MountRule};
use crate::spec::normalise::clean_absolute;
use crate::spec::{Config as Spec, Mount};

/// Notes the destinations that the annotation gives the word `cow`, as the configuration has them, cleaned.
pub(super) fn destinations(work: &mut Work<'_>) -> Result<(), Refusal> {
    if work.policy.mounts.values().any(|rule| rule.access == Some(Access::CopyOnWrite)) {
        let mounts = Spec::from_value(work.spec.clone()).mounts();
        work.confinement.copy_on_write = asked_for(&work.policy.mounts, &mounts)?;
    }
    Ok(())
}

fn asked_for(rules: &BTreeMap<PathBuf, MountRule>, mounts: &[Mount]) -> Result<Vec<PathBuf>, Refusal> {
    let mut found = Vec::new();
    for (at, _) in rules.iter().filter(|(_, rule)| rule.access == Some(Access::CopyOnWrite)) {
        let refuse = |why: &str, remedy: &str| {
            Err(Refusal {
                what: format!("copy-on-write mount {}", at.display()),
                why: why.into(),
                remedy: remedy.into(),
            })
        };
        let here: Vec<&Mount> = mounts.iter().filter(|mount| clean_absolute(&mount.destination) == *at).collect();
        match here.as_slice() {
            _ if at == Path::new("/") => return refuse("the root is layered anyway", "leave it out"),
            [mount] if !mount.is_bind() => {
                let why = format!("a {} is mounted there, which has no host directory to protect", mount.kind);
                return refuse(&why, "name a bind mount of a directory");
            }
            [mount] if mount.options.iter().any(|o| matches!(o.as_str(), "ro" | "rro")) => {
                return refuse("it is mounted read-only", "mount it writable, or leave out the rule");
            }
            [mount] if mount.maps_ids() => {
                let remedy = "mount it without id mapping, or leave out the rule";
                return refuse("an overlay of it would not map ids as the mount does", remedy);
            }
            [_] => found.push(at.clone()),
            [] => return refuse("nothing is mounted there", "name the destination of a bind mount"),
            _ => return refuse("several mounts are there", "leave one"),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::mount_rules;
    use serde_json::json;

    #[test]
    fn only_a_writable_bind_mount_can_be_one() {
        let spec = Spec::from_value(json!({"mounts": [
            {"destination": "/work/", "type": "bind", "source": "/h", "options": ["rbind", "rw"]},
            {"destination": "/ro", "source": "/h", "options": ["bind", "ro"]},
            {"destination": "/ids", "source": "/h", "options": ["bind", "idmap"]},
            {"destination": "/maps", "source": "/h", "options": ["bind"], "uidMappings": [{"size": 1}]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/two", "source": "/h", "options": ["bind"]},
            {"destination": "/two", "source": "/i", "options": ["bind"]}
        ]}));
        let asked = |text: &str| {
            asked_for(&mount_rules::parse(text).unwrap(), &spec.mounts()).map_err(|refusal| refusal.to_string())
        };
        assert_eq!(asked(r#"{"/work": "cow,exec", "/tmp": "ro"}"#), Ok(vec![PathBuf::from("/work")]));
        for (at, words) in [
            ("/", "the root is layered anyway"),
            ("/ro", "it is mounted read-only"),
            ("/ids", "would not map ids"),
            ("/maps", "would not map ids"),
            ("/tmp", "a tmpfs is mounted there"),
            ("/two", "several mounts are there"),
            ("/none", "nothing is mounted there"),
        ] {
            let err = asked(&format!(r#"{{"{at}": "cow"}}"#)).unwrap_err();
            assert!(err.contains(words) && err.contains(at), "{err}");
        }
    }
}
