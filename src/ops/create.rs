//! `create` and the first half of `run`: the container, then its row in the store.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use super::{Context, OpsError, publish};
use crate::runtime::{
    self, CreateRequest, DeleteRequest, Ran, Record, RunRequest, RuntimeError, Steps, create as make, delete as remove,
};
use crate::spec::{Config, annotations};
use crate::store::{NewContainer, Store, now_ns};

/// Creates the container and registers it. On failure nothing of it is left.
pub fn create(context: &Context, request: &CreateRequest) -> Result<Record, OpsError> {
    // Before anything is made: a store that can't be used must not leave a container without history. It is not opened
    // yet, since the first process would inherit its descriptors until it is started.
    Store::prepare(&context.config.store)?;
    require_descriptors()?;
    let notes = Config::load(&request.bundle).map_err(RuntimeError::from)?.annotations();
    refuse_reserved(&notes)?;
    let policy = super::policy::of(&context.config, &notes)?;
    let record = make(request, &policy)?;
    let id = record.id.clone();
    register(&context.store()?, record).inspect_err(|_| {
        // The error that is on its way is the one to tell.
        let _ = remove(&DeleteRequest { root: request.root.clone(), id, force: true });
    })
}

/// How many descriptors making a container takes at once, and some.
const DESCRIPTORS: usize = 48;

/// Fails where a container could be made only halfway: libraries that run out of descriptors end the process.
fn require_descriptors() -> Result<(), OpsError> {
    let open = || rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let opened: Result<Vec<OwnedFd>, _> = (0..DESCRIPTORS).map(|_| open()).collect();
    opened.map(drop).map_err(|errno| OpsError::Descriptors { needed: DESCRIPTORS, source: errno.into() })
}

/// Annotations that ask for what this version does not do, or for what cannot be.
fn refuse_reserved(notes: &BTreeMap<String, String>) -> Result<(), OpsError> {
    for (name, allowed) in annotations::RESERVED {
        if let Some(value) = notes.get(*name).filter(|value| !value.is_empty() && !allowed.contains(&value.as_str())) {
            return Err(OpsError::Reserved { name, value: value.clone() });
        }
    }
    super::exec::check_annotations(notes)
}

/// `run`: create and start in one, and in the foreground stay until it has ended and is deleted.
pub fn run(context: &Context, request: RunRequest) -> Result<Ran, OpsError> {
    let steps = Steps {
        create: &|request: &CreateRequest| create(context, request),
        delete: &|request: &DeleteRequest| super::delete::delete(context, request),
    };
    runtime::run(request, &steps)
}

fn register(store: &Store, mut record: Record) -> Result<Record, OpsError> {
    let container = NewContainer {
        id: record.id.clone(),
        root: record.root().to_owned(),
        bundle: record.bundle.clone(),
        rootfs: record.rootfs.clone(),
        created_ns: now_ns(),
        told: super::policy::told(record.confinement.profile, &record.decisions),
    };
    let key = store.add_container(&container)?;
    record.store_key = Some(key.0);
    record.save()?;
    publish::annotate(store, &store.container(key)?, None)?;
    Ok(record)
}
