//! `state`: what the runtime knows of a container, with the annotations that we wrote for it.

use std::collections::BTreeMap;

use super::{OpsError, publish};
use crate::runtime::state::Record;

/// The container's annotations: the engine's at create, and ours as they are now.
pub fn annotations(record: &Record) -> Result<BTreeMap<String, String>, OpsError> {
    let mut all = record.annotations.clone();
    for (name, value) in publish::written(&record.dir)? {
        if let Some(text) = value.as_str() {
            all.insert(name, text.to_owned());
        }
    }
    Ok(all)
}
