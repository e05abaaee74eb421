//! Which policy holds for a container: its annotations before the configuration, where the configuration lets them.

use std::collections::BTreeMap;

use super::OpsError;
use crate::config::{Config, Files};
use crate::policy::{Policy, Refusal};
use crate::runtime::RuntimeError;
use crate::spec::file_rules::{self, FileRules};
use crate::spec::{annotations, mount_rules};
use crate::terms::{Allow, Profile};

/// The policy for a container with these annotations.
pub fn of(config: &Config, notes: &BTreeMap<String, String>) -> Result<Policy, OpsError> {
    let asked = notes.get(annotations::PROFILE).filter(|value| !value.is_empty());
    let asked: Option<Profile> = asked
        .map(|value| value.parse())
        .transpose()
        .map_err(|source| OpsError::Setting { from: format!("annotation {}", annotations::PROFILE), source })?;
    if asked == Some(Profile::Oci) && config.profile == Profile::Strict && !config.rules.allows(Allow::Profile) {
        return Err(RuntimeError::from(Refusal {
            what: format!("annotation {}: \"oci\"", annotations::PROFILE),
            why: "the container would run without the hardening that this host has configured".to_owned(),
            remedy: "leave it out, or have \"profile\" in the configuration's allow".to_owned(),
        })
        .into());
    }
    let mounts = notes.get(annotations::MOUNTS).filter(|value| !value.is_empty());
    let mounts = mounts.map(|text| mount_rules::parse(text)).transpose().map_err(RuntimeError::from)?;
    let files = match notes.get(annotations::FILES).filter(|value| !value.is_empty()) {
        Some(text) => file_rules::parse(text).map_err(RuntimeError::from)?,
        None => FileRules::default(),
    };
    let profile = asked.unwrap_or(config.profile);
    // What the configuration says is part of strict; what an annotation says is asked of this container.
    let files = if profile == Profile::Strict { files.and(file_rules(&config.rules.files)) } else { files };
    let own = vec![config.store.clone()];
    Ok(Policy { profile, rules: config.rules.clone(), mounts: mounts.unwrap_or_default(), files, own })
}

fn file_rules(files: &Files) -> FileRules {
    FileRules {
        deny: files.deny.clone(),
        read_only: files.read_only.clone(),
        allow_write: files.allow_write.clone(),
        audit: files.audit,
    }
}
