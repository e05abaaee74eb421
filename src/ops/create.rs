//! `create` and the first half of `run`: the container, then its row in the store.

use super::{Context, OpsError, publish};
use crate::runtime::create::{CreateRequest, create as make};
use crate::runtime::delete::{DeleteRequest, delete};
use crate::runtime::seccomp;
use crate::runtime::state::Record;
use crate::store::{NewContainer, Store, now_ns};

/// Creates the container and registers it. On failure nothing of it is left.
pub fn create(context: &Context, request: &CreateRequest) -> Result<Record, OpsError> {
    // Before anything is made: a store that can't be used must not leave a container without history.
    let store = context.store()?;
    let record = make(request)?;
    match register(&store, record) {
        Ok(record) => Ok(record),
        Err(err) => {
            // The error that is on its way is the one to tell.
            let _ = delete(&DeleteRequest { root: request.root.clone(), id: request.id.clone(), force: true });
            Err(err)
        }
    }
}

fn register(store: &Store, mut record: Record) -> Result<Record, OpsError> {
    seccomp::save(&mut record)?;
    let container = NewContainer {
        id: record.id.clone(),
        root: record.root(),
        bundle: record.bundle.clone(),
        rootfs: record.rootfs.clone(),
        created_ns: now_ns(),
    };
    let key = store.add_container(&container)?;
    record.store_key = Some(key.0);
    record.save()?;
    publish::annotate(store, &store.container(key)?, None)?;
    Ok(record)
}
