//! A signal for one exec: its files in the container's state directory lead to its processes; what has ended, only the store
//! knows.

use super::{Context, OpsError, row_of};
use crate::runtime::{Record, RuntimeError, kill_exec};
use crate::store::{ExecRecord, StoreError};

/// Sends `signal` (0 to 64) to the command of an exec of the container; SIGKILL to all that the exec has started.
///
/// `name` is the exec's id, its engine's id, or the beginning of one.
///
/// # Errors
/// In runc's words: `process already finished`, `exec … does not exist`, `container not running`.
pub fn exec(context: &Context, record: &Record, name: &str, signal: i32) -> Result<(), OpsError> {
    match kill_exec(record, name, signal) {
        Err(RuntimeError::NoExec(_)) => {}
        told => return Ok(told?),
    }
    match known(context, record, name)? {
        // Named by the beginning of its id.
        Some(exec) => match kill_exec(record, &exec.id.to_string(), signal) {
            Err(RuntimeError::NoExec(_)) => Err(RuntimeError::Finished.into()),
            told => Ok(told?),
        },
        None if record.init()?.is_none() => Err(RuntimeError::NotRunning.into()),
        None => Err(RuntimeError::NoExec(name.to_owned()).into()),
    }
}

fn known(context: &Context, record: &Record, name: &str) -> Result<Option<ExecRecord>, OpsError> {
    let store = match context.store_to_read() {
        Err(OpsError::Store(StoreError::NoStore { .. })) => return Ok(None),
        other => other?,
    };
    let Some(row) = row_of(&store, record)? else { return Ok(None) };
    match store.exec(row.key, name) {
        Err(StoreError::ExecNotFound { .. }) => Ok(None),
        found => Ok(Some(found?)),
    }
}
