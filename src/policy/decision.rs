//! What was changed of an engine's configuration, and what was refused.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Classify, Kind};

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The field, as a path in `config.json` or `process.json` such as `process.noNewPrivileges` or `mounts[/data].options`.
    pub field: String,
    /// What the engine asked for; null if it said nothing.
    pub from: Value,
    /// What the container gets; null if the field was taken away.
    pub to: Value,
    /// Why.
    pub why: Cow<'static, str>,
}

/// Something that a container is not made with: hardening it away would leave it other than its owner believes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}; {remedy}")]
pub struct Refusal {
    /// The field or object, with its value.
    pub what: String,
    /// Why it is refused.
    pub why: String,
    /// What to do, with the key of the configuration that would allow it.
    pub remedy: String,
}

impl Classify for Refusal {
    fn kind(&self) -> Kind {
        Kind::InvalidInput
    }
}
