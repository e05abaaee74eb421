//! Namespaces: a container has its own, or shares those of other containers, never the host's.

use serde_json::{Value, json};

use super::{Refusal, Work, strict};
use crate::terms::Allow;

/// Refuses the host's namespaces, and adds one for cgroups.
pub(super) fn pass(work: &mut Work<'_>) -> Result<(), Refusal> {
    for (kind, word, why) in strict::NAMESPACES {
        let what = match work.namespace(kind) {
            Namespace::Own => continue,
            Namespace::Host => format!("the host's {kind} namespace"),
            Namespace::Missing => format!("linux.namespaces without {kind} is the host's {kind} namespace"),
        };
        if !work.policy.rules.allows(*word) {
            let remedy =
                format!("give the container its own, or have {:?} in the configuration's allow", word.as_str());
            return Err(Refusal { what, why: (*why).to_owned(), remedy });
        }
    }
    if work.namespace("cgroup") != Namespace::Own && !work.policy.rules.allows(Allow::HostCgroup) {
        add_cgroup(work);
    }
    Ok(())
}

fn add_cgroup(work: &mut Work<'_>) {
    let linux = &mut work.spec["linux"];
    if !linux["namespaces"].is_array() {
        linux["namespaces"] = json!([]);
    }
    let Some(list) = linux["namespaces"].as_array_mut() else { return };
    list.retain(|ns| ns["type"] != "cgroup");
    list.push(json!({"type": "cgroup"}));
    let why = "the names and places of the host's other cgroups would be told";
    work.decide("linux.namespaces[cgroup]", Value::Null, json!("own"), why);
}

/// Whose namespace of a kind a container has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Namespace {
    /// Its own, or another container's.
    Own,
    /// The host's, joined by its path.
    Host,
    /// The host's, since the configuration has none.
    Missing,
}

impl Work<'_> {
    /// Whose namespace of `kind` the container has.
    pub(super) fn namespace(&self, kind: &str) -> Namespace {
        let list = self.spec["linux"]["namespaces"].as_array();
        match list.into_iter().flatten().any(|ns| ns["type"] == kind) {
            true if self.host.namespaces.iter().any(|host| host == kind) => Namespace::Host,
            true => Namespace::Own,
            false => Namespace::Missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Rules;
    use crate::policy::{Host, Policy, harden};
    use crate::spec::Config;

    fn hardened(kinds: &[&str], host: &[&str], allow: &[Allow]) -> Result<Value, String> {
        let list: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
        let spec = Config::from_value(json!({"process": {}, "linux": {"namespaces": list}}));
        let rules = Rules { allow: allow.to_vec(), ..Rules::default() };
        let host = Host { namespaces: host.iter().map(|h| (*h).to_owned()).collect(), ..Host::default() };
        let got = harden(&spec, &Policy { rules, ..Policy::default() }, &host).map_err(|err| err.to_string())?;
        Ok(got.spec.value()["linux"]["namespaces"].clone())
    }

    const ALL: [&str; 5] = ["pid", "mount", "ipc", "uts", "network"];

    #[test]
    fn the_hosts_are_refused_by_the_word_that_allows_them() {
        for (kind, word, _) in strict::NAMESPACES {
            let others: Vec<&str> = ALL.into_iter().filter(|other| other != kind).collect();
            let missing = hardened(&others, &[], &[]).unwrap_err();
            let joined = hardened(&ALL, &[kind], &[]).unwrap_err();
            for err in [missing, joined] {
                assert!(err.contains(&format!("the host's {kind} namespace")), "{err}");
                assert!(err.contains(&format!("{:?} in the configuration's allow", word.as_str())), "{err}");
            }
            hardened(&others, &[], &[*word]).unwrap();
            hardened(&ALL, &[kind], &[*word]).unwrap();
        }
    }

    #[test]
    fn a_cgroup_namespace_is_added() {
        let count = |got: Value| got.as_array().unwrap().iter().filter(|ns| ns["type"] == "cgroup").count();
        assert_eq!(count(hardened(&ALL, &[], &[]).unwrap()), 1);
        let given: Vec<&str> = ALL.into_iter().chain(["cgroup", "user"]).collect();
        let kept = hardened(&given, &[], &[]).unwrap();
        assert_eq!(count(kept.clone()), 1);
        assert!(kept.as_array().unwrap().iter().any(|ns| ns["type"] == "user"), "one that is given stays");
        assert_eq!(count(hardened(&given, &["cgroup"], &[]).unwrap()), 1);
        assert_eq!(count(hardened(&ALL, &[], &[Allow::HostCgroup]).unwrap()), 0);
    }
}
