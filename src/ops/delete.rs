//! `delete`: the container first, then, when its execs have written their results, its history.

use std::time::{Duration, Instant};

use super::{Context, OpsError, recover};
use crate::runtime::{DeleteRequest, Record, RuntimeError, delete as remove};
use crate::store::{ContainerKey, Store, StoreError};

/// How long `delete` waits for supervisors that are writing results. Engines give up on a delete after 5 to 10 s.
const PATIENCE: Duration = Duration::from_secs(4);

/// Deletes the container and drops its history. `Some` is a `poststop` hook that failed, which is only told.
pub fn delete(context: &Context, request: &DeleteRequest) -> Result<Option<RuntimeError>, OpsError> {
    let key = Record::load(&request.root, &request.id).ok().and_then(|record| record.store_key).map(ContainerKey);
    let warning = remove(request)?;
    if let Some(key) = key {
        forget(&context.store()?, key)?;
    }
    Ok(warning)
}

/// Drops a container's rows, then the layers that nothing else refers to. Execs that still run keep theirs to their end.
pub fn forget(store: &Store, key: ContainerKey) -> Result<(), OpsError> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    while !store.running(key)?.is_empty() && begun.elapsed() < PATIENCE {
        recover::container(store, key)?;
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    let removed = match store.remove_container(key) {
        Err(StoreError::ContainerNotFound { .. } | StoreError::ContainerRemoved { .. }) => return Ok(()),
        other => other?,
    };
    for released in removed.released {
        store.delete_layer(released)?;
    }
    Ok(())
}
