//! Which policy holds for a container: its annotations before the configuration, where the configuration lets them.

use std::collections::BTreeMap;

use super::OpsError;
use crate::config::Config;
use crate::policy::Policy;
use crate::runtime::RuntimeError;
use crate::spec::annotations;
use crate::spec::file_rules::{self, FileRules};
use crate::terms::Profile;

/// The policy for a container with these annotations.
pub fn of(config: &Config, notes: &BTreeMap<String, String>) -> Result<Policy, OpsError> {
    let asked = notes.get(annotations::PROFILE).filter(|value| !value.is_empty());
    let asked: Option<Profile> = asked
        .map(|value| value.parse())
        .transpose()
        .map_err(|source| OpsError::Setting { from: format!("annotation {}", annotations::PROFILE), source })?;
    let files = match notes.get(annotations::FILES).filter(|value| !value.is_empty()) {
        Some(text) => file_rules::parse(text).map_err(RuntimeError::from)?,
        None => FileRules::default(),
    };
    Ok(Policy { profile: asked.unwrap_or(config.profile), files })
}
