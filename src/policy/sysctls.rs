//! Kernel parameters: those that a namespace of the container's own keeps from the host, and what the configuration lists.

use serde_json::Value;

use super::namespaces::Namespace;
use super::{Refusal, Work, strict};

/// Refuses all others: left out, the container would not be what its owner believes.
pub(super) fn pass(work: &mut Work<'_>) -> Result<(), Refusal> {
    let given = work.spec["linux"]["sysctl"].as_object();
    let names: Vec<(String, String)> =
        given.into_iter().flatten().map(|(name, value)| (name.clone(), Value::to_string(value))).collect();
    for (name, value) in names {
        let refuse = |why: String, remedy: &str| {
            Err(Refusal { what: format!("linux.sysctl {name} = {value}"), why, remedy: remedy.to_owned() })
        };
        let dotted = dotted(&name);
        // libcontainer makes a path of it.
        if dotted.split('.').any(|part| part.is_empty() || part.contains('/')) || name.contains("..") {
            return refuse("it is no parameter's name".to_owned(), "correct it");
        }
        if work.policy.rules.sysctl.allow.iter().any(|pattern| fits(pattern, &name) || fits(pattern, &dotted)) {
            continue;
        }
        let remedy = "leave it out, or list it in sysctl.allow of the configuration";
        match strict::SYSCTLS.iter().find(|(pattern, _)| fits(pattern, &dotted)) {
            Some((_, kind)) if work.namespace(kind) == Namespace::Own => {}
            Some((_, kind)) => {
                return refuse(format!("without a {kind} namespace of its own it is the host's"), remedy);
            }
            None => return refuse("it holds for the whole host, or nobody has looked at it".to_owned(), remedy),
        }
    }
    Ok(())
}

/// The name with dots between its parts: in `net/ipv4/conf/eth0.1/x` a dot is part of one (sysctl(8)).
fn dotted(name: &str) -> String {
    match name.find(['.', '/']).map(|at| name.as_bytes()[at]) {
        Some(b'/') => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '_'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use crate::config::{Rules, Sysctl};
    use crate::policy::Host;
    use crate::policy::tests::{minimal, strict_on};
    use crate::terms::Allow;
    use serde_json::json;

    fn set(name: &str, host: &[&str], allow: &[&str]) -> Result<(), String> {
        let mut spec = minimal();
        spec["linux"]["sysctl"] = json!({name: "1"});
        let sysctl = Sysctl { allow: allow.iter().map(|s| (*s).to_owned()).collect() };
        let rules = Rules { sysctl, allow: vec![Allow::HostNetwork], ..Rules::default() };
        let host = Host { namespaces: host.iter().map(|h| (*h).to_owned()).collect(), ..Host::default() };
        strict_on(spec, rules, &host).map(drop).map_err(|err| err.to_string())
    }

    #[test]
    fn namespaced_ones_pass() {
        for name in
            ["net.ipv4.ping_group_range", "net/ipv4/conf/eth0.1/forwarding", "kernel.shmmax", "fs.mqueue.msg_max"]
        {
            set(name, &[], &[]).unwrap();
        }
        for (name, words) in [
            ("kernel.core_pattern", "sysctl.allow of the configuration"),
            ("vm.overcommit_memory", "it holds for the whole host"),
            ("net/../kernel/core_pattern", "no parameter's name"),
            ("net.ipv4./x", "no parameter's name"),
            ("net...kernel.core_pattern", "no parameter's name"),
            ("kernel.shmmaxx", "it holds for the whole host"),
            ("network.x", "it holds for the whole host"),
        ] {
            let err = set(name, &[], &[]).unwrap_err();
            assert!(err.contains(words) && err.contains(name), "{err}");
        }
        assert!(set("net.core.somaxconn", &["network"], &[]).unwrap_err().contains("without a network namespace"));
        set("vm.overcommit_memory", &[], &["vm.overcommit_memory"]).unwrap();
        set("vm.swappiness", &[], &["vm.*"]).unwrap();
    }
}
