//! `state`.

use serde_json::{Map, Value, json};

use super::Global;
use crate::ops::{self, OpsError};
use crate::runtime::{Record, Status};

/// Output the state of a container
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The container
    #[arg(value_name = "CONTAINER-ID")]
    pub id: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let (root, id) = global.place(&args.id)?;
    let record = Record::load(&root, &id)?;
    let status = record.status()?;
    let text = serde_json::to_string_pretty(&document(&record, status, "")?)?;
    super::print(&format!("{text}\n"))?;
    Ok(0)
}

/// One container as `state` and `list` show it (the shape that go-runc decodes).
pub fn document(record: &Record, status: Status, owner: &str) -> Result<Value, OpsError> {
    let mut map = Map::new();
    map.insert("ociVersion".into(), json!(record.oci_version));
    map.insert("id".into(), json!(record.id));
    map.insert("pid".into(), json!(record.shown_pid(status)));
    map.insert("status".into(), json!(status.to_string()));
    map.insert("bundle".into(), json!(record.bundle));
    map.insert("rootfs".into(), json!(record.rootfs));
    map.insert("created".into(), json!(record.created));
    let annotations = ops::state::annotations(record)?;
    if !annotations.is_empty() {
        map.insert("annotations".into(), json!(annotations));
    }
    map.insert("owner".into(), json!(owner));
    Ok(Value::Object(map))
}
