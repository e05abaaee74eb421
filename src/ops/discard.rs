//! Dropping a held layer.

use super::{Context, Done, OpsError, publish};
use crate::store::ExecRecord;
use crate::terms::Disposition;

/// Drops the layer of a held exec: first its row, then its data.
pub fn held(context: &Context, container: &str, exec: &str) -> Result<Done<ExecRecord>, OpsError> {
    let (store, container) = context.container_to_free(container)?;
    let record = store.exec(container.key, exec)?;
    if !record.disposition.is_some_and(Disposition::is_held) {
        return Err(store.not_held(container.key, &record).into());
    }
    let released = store.discard_held(container.key, &record.id)?;
    let dropped = store.delete_layer(released).map_err(OpsError::from);
    let told = publish::decided(&store, &container, &record.id);
    Ok(Done { what: record, warning: told.and(dropped).err() })
}
