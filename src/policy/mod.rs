//! What a container may do: pure functions from what its engine asks for to what it gets, each change with its reason.
//!
//! [`harden`] is called once, when a container is created; its result is what libcontainer and our own code then carry out.
//! What must hold for every exec of the container too is in its [`Confinement`], which is kept in the container's record:
//! a configuration that changes later does not change a container that runs.

pub mod capabilities;
mod confinement;
mod cow;
mod decision;
mod devices;
pub mod files;
mod host;
mod limits;
mod mounts;
mod namespaces;
mod paths;
mod process;
mod rest;
pub mod seccomp;
mod sources;
mod strict;
mod sysctls;

pub use confinement::Confinement;
pub use decision::{Decision, Refusal};
pub use host::{Host, Link, Node, Source, SourceKind};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::{Device, Rules};
use crate::spec::Config as Spec;
use crate::spec::annotations;
use crate::spec::file_rules::FileRules;
use crate::spec::mount_rules::MountRule;
use crate::terms::Profile;

/// What is asked of [`harden`]: the profile that holds for this container, and what the configuration says of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policy {
    /// The profile.
    pub profile: Profile,
    /// What the configuration lets pass or takes besides.
    pub rules: Rules,
    /// What the container's annotation says of its bind mounts, by destination.
    pub mounts: BTreeMap<PathBuf, MountRule>,
    /// Where files can be read and written: what configuration and annotation say together.
    pub files: FileRules,
    /// Directories of this runtime, such as the store: nothing in them is for containers.
    pub own: Vec<PathBuf>,
}

impl Policy {
    /// The devices that the configuration lists by their paths on the host.
    pub fn device_paths(&self) -> impl Iterator<Item = &Path> {
        self.rules.devices.allow.iter().filter_map(|device| match device {
            Device::Path(path) => Some(path.as_path()),
            Device::Rule { .. } => None,
        })
    }
}

/// A hardened configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Hardened {
    /// The configuration that is carried out.
    pub spec: Spec,
    /// What was changed, and why; empty where nothing was.
    pub decisions: Vec<Decision>,
    /// What holds for every exec.
    pub confinement: Confinement,
}

/// One part of a profile: changes what it finds fault with, and says so.
type Pass = fn(&mut Work<'_>) -> Result<(), Refusal>;

/// The parts of every profile: they only tighten, and only where they are asked to.
const EVERY: &[Pass] = &[cow::destinations];

/// The parts of `strict`, in order.
const STRICT: &[Pass] = &[
    namespaces::pass,
    process::first,
    sources::root,
    mounts::pass,
    paths::pass,
    devices::pass,
    sysctls::pass,
    rest::pass,
    files::pass,
    // Behind the fence of `files`, on which it depends who may be traced.
    seccomp::pass,
    limits::limits,
];

/// What the passes work on.
struct Work<'a> {
    spec: &'a mut Value,
    policy: &'a Policy,
    host: &'a Host,
    confinement: &'a mut Confinement,
    decisions: &'a mut Vec<Decision>,
}

impl Work<'_> {
    /// Notes a change of `field`.
    fn decide(&mut self, field: impl Into<String>, from: Value, to: Value, why: &'static str) {
        self.decisions.push(Decision { field: field.into(), from, to, why: why.into() });
    }
}

/// Hardens an engine's configuration. With profile `oci` it is the engine's, untouched.
pub fn harden(engine: &Spec, policy: &Policy, host: &Host) -> Result<Hardened, Refusal> {
    let mut spec = engine.clone();
    let mut decisions = Vec::new();
    let mut confinement = Confinement { profile: policy.profile, ..Confinement::default() };
    let mut work =
        Work { spec: spec.value_mut(), policy, host, confinement: &mut confinement, decisions: &mut decisions };
    EVERY.iter().try_for_each(|pass| pass(&mut work))?;
    if policy.profile == Profile::Oci && !policy.files.is_empty() {
        return Err(Refusal {
            what: "file rules".to_owned(),
            why: "profile oci takes the engine's configuration exactly as given".to_owned(),
            remedy: format!("use profile strict, or leave out {} and [files] of the configuration", annotations::FILES),
        });
    }
    if policy.profile == Profile::Strict {
        STRICT.iter().try_for_each(|pass| pass(&mut work))?;
    }
    Ok(Hardened { spec, decisions, confinement })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// The least that `strict` takes.
    pub(crate) fn minimal() -> Value {
        let kinds = ["pid", "mount", "ipc", "uts", "network", "cgroup"].map(|kind| json!({"type": kind}));
        json!({"process": {}, "mounts": [], "linux": {"namespaces": kinds}})
    }

    pub(crate) fn strict_on(spec: Value, rules: Rules, host: &Host) -> Result<Hardened, Refusal> {
        harden(&Spec::from_value(spec), &Policy { rules, ..Policy::default() }, host)
    }

    pub(crate) fn strict_with(spec: Value, rules: Rules) -> Result<Hardened, Refusal> {
        strict_on(spec, rules, &Host::default())
    }

    #[test]
    fn oci_is_the_engines_untouched() {
        let spec = Spec::from_value(json!({"process": {"noNewPrivileges": false}, "linux": {}}));
        let policy = Policy { profile: Profile::Oci, ..Policy::default() };
        let got = harden(&spec, &policy, &Host::default()).unwrap();
        assert_eq!((got.spec, got.decisions), (spec, Vec::new()));
    }
}
