//! Which policy holds for a container: its annotations before the configuration, where the configuration lets them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::OpsError;
use crate::config::{Config, Files};
use crate::policy::{Decision, Policy, Refusal};
use crate::runtime::RuntimeError;
use crate::spec::file_rules::{self, FileRules};
use crate::spec::{annotations, mount_rules};
use crate::terms::{Allow, LayerMode, Profile};

/// The policy for a container with these annotations.
pub fn of(config: &Config, notes: &BTreeMap<String, String>) -> Result<Policy, OpsError> {
    let asked = notes.get(annotations::PROFILE).filter(|value| !value.is_empty());
    let asked: Option<Profile> = asked
        .map(|value| value.parse())
        .transpose()
        .map_err(|source| OpsError::Setting { from: format!("annotation {}", annotations::PROFILE), source })?;
    if asked == Some(Profile::Oci) && config.profile == Profile::Strict {
        let why = "the container would run without the hardening that this host has configured";
        require(config, Allow::Profile, annotations::PROFILE, "oci", why)?;
    }
    let profile = asked.unwrap_or(config.profile);
    let shared = LayerMode::Shared.as_str();
    if profile == Profile::Strict && notes.get(annotations::LAYER).is_some_and(|mode| mode == shared) {
        let why = "its execs would leave no record of what they change";
        require(config, Allow::SharedLayer, annotations::LAYER, shared, why)?;
    }
    let mounts = notes.get(annotations::MOUNTS).filter(|value| !value.is_empty());
    let mounts = mounts.map(|text| mount_rules::parse(text)).transpose().map_err(RuntimeError::from)?;
    let files = match notes.get(annotations::FILES).filter(|value| !value.is_empty()) {
        Some(text) => file_rules::parse(text).map_err(RuntimeError::from)?,
        None => FileRules::default(),
    };
    // What the configuration says is part of strict; what an annotation says is asked of this container.
    let files = if profile == Profile::Strict { files.and(file_rules(&config.rules.files)) } else { files };
    let own = vec![config.store.clone()];
    Ok(Policy { profile, rules: config.rules.clone(), mounts: mounts.unwrap_or_default(), files, own })
}

/// Refuses a value of an annotation unless the configuration has the word for it.
fn require(config: &Config, word: Allow, annotation: &str, value: &str, why: &str) -> Result<(), OpsError> {
    if config.rules.allows(word) {
        return Ok(());
    }
    let what = format!("annotation {annotation}: {value:?}");
    let remedy = format!("leave it out, or have {:?} in the configuration's allow", word.as_str());
    Err(RuntimeError::from(Refusal { what, why: why.to_owned(), remedy }).into())
}

/// The longest list of decisions that an event carries, in bytes of JSON.
const TOLD_MAX: usize = 128 << 10;

/// What the event of a container's creation tells of its policy.
pub fn told(profile: Profile, decisions: &[Decision]) -> Map<String, Value> {
    let mut room = TOLD_MAX;
    // An engine's configuration can be of any size; the log's events cannot.
    let kept = crate::report::fitting(decisions, &mut room).unwrap_or_default();
    let told = Told { profile, left_out: decisions.len() - kept.len(), decisions: kept };
    let value = serde_json::to_value(told).unwrap_or_default();
    Map::from_iter([(MEMBER.to_owned(), value)])
}

/// The event's member that [`told`] makes.
const MEMBER: &str = "policy";

/// What a container's profile made of its engine's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    /// The profile.
    pub profile: Profile,
    /// What was changed, and why.
    pub decisions: Vec<Decision>,
    /// How many more there were than the log can hold.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Told {
    /// Reads it from the payload of a `container-created` event; none if that is of an older version.
    pub fn of(payload: &Value) -> Option<Told> {
        serde_json::from_value(payload.get(MEMBER)?.clone()).ok()
    }
}

fn file_rules(files: &Files) -> FileRules {
    FileRules {
        deny: files.deny.clone(),
        read_only: files.read_only.clone(),
        allow_write: files.allow_write.clone(),
        audit: files.audit,
    }
}
