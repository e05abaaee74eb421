//! `delete`: the container first, then, when its execs have written their results, its history.

use std::time::Duration;

use super::presence::Absence;
use super::{Context, OpsError, recover, row_of};
use crate::runtime::{DeleteRequest, Record, RuntimeError, Status, delete_seen as remove};
use crate::store::{ContainerKey, Store, StoreError};

/// How long `delete` waits for supervisors that are writing results. Engines give up on a delete after 5 to 10 s.
const PATIENCE: Duration = Duration::from_secs(4);

/// Deletes the container and drops its history. `Some` is what failed without keeping the container: a `poststop` hook, or
/// the store, whose leftovers `recover` drops.
pub fn delete(context: &Context, request: &DeleteRequest) -> Result<Option<RuntimeError>, OpsError> {
    // What can't be loaded is told, or forced away, by the runtime.
    let record = Record::load(&request.root, &request.id).ok();
    delete_of(context, request, record.as_ref())
}

/// The same for the container `seen`, and no other that has its id by now.
pub fn delete_seen(
    context: &Context,
    request: &DeleteRequest,
    seen: &Record,
) -> Result<Option<RuntimeError>, OpsError> {
    delete_of(context, request, Some(seen))
}

fn delete_of(
    context: &Context,
    request: &DeleteRequest,
    record: Option<&Record>,
) -> Result<Option<RuntimeError>, OpsError> {
    let absence = record.map(Absence::of).transpose()?.flatten();
    if let (Some(record), Some(absence)) = (record, &absence)
        && record.status()? == Status::Stopped
        && record.has_own_pid_namespace()
    {
        // Their commands ended with the first process: they are writing results into what is about to be removed.
        absence.wait(PATIENCE);
    }
    let warning = remove(request, record)?;
    if let Some(absence) = absence {
        absence.wait(PATIENCE);
    }
    // The container is gone: an engine must not be told otherwise because the store is full or broken.
    let dropped = drop_history(context, request, record);
    Ok(warning.or(dropped.err().map(|err| RuntimeError::History(crate::error::chain(&err)))))
}

fn drop_history(context: &Context, request: &DeleteRequest, record: Option<&Record>) -> Result<(), OpsError> {
    let store = match context.store_to_free() {
        // Somebody has taken it away: there is no history to drop.
        Err(OpsError::Store(StoreError::NoStore { .. })) => return Ok(()),
        other => other?,
    };
    let row = match record {
        Some(record) if record.store_key.is_some() => row_of(&store, record)?,
        // A record that a kill -9 took away, or kept from being finished.
        _ => {
            let root = std::path::absolute(&request.root).unwrap_or_default();
            // A row is made while the container has its directory: where there is none now, it is nobody's.
            store.find_in(&root, &request.id).ok().filter(|_| !Record::dir_of(&root, &request.id).exists())
        }
    };
    row.map_or(Ok(()), |row| forget(&store, row.key))
}

/// Drops a container's rows, then the layers that nothing else refers to. Execs that still run keep theirs to their end.
pub fn forget(store: &Store, key: ContainerKey) -> Result<(), OpsError> {
    recover::container(store, key)?;
    // A bundle outlives its container where its engine keeps it. What can't be removed there is no reason to stay.
    let _ = store.container(key).map(|container| recover::sweep(&container));
    let removed = match store.remove_container(key) {
        Err(StoreError::ContainerNotFound { .. } | StoreError::ContainerRemoved { .. }) => return Ok(()),
        other => other?,
    };
    for released in removed.released {
        store.delete_layer(released)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::ops::fixture::Fixture;
    use crate::store::Container;

    /// A forced delete that had found no container dropped the rows of one that was made just then.
    #[test]
    fn rows_of_a_container_that_is_there_are_not_taken_for_leftovers() {
        let fixture = Fixture::new(|_| ());
        let context = Context { config: Config { store: fixture.store.root().to_owned(), ..Config::default() } };
        let Container { root, id, key, .. } = &fixture.container;
        let request = DeleteRequest { root: root.clone(), id: id.clone(), force: true };
        let there = || fixture.store.container(*key).is_ok();
        let dir = Record::dir_of(root, id);
        std::fs::create_dir_all(&dir).unwrap();
        drop_history(&context, &request, None).unwrap();
        assert!(there());
        std::fs::remove_dir(&dir).unwrap();
        drop_history(&context, &request, None).unwrap();
        assert!(!there());
    }
}
