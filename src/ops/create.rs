//! `create` and the first half of `run`: the container, then its row in the store.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::{Context, OpsError, publish};
use crate::runtime::claim::Claim;
use crate::runtime::cow::{CowLayer, CowSource};
use crate::runtime::{
    self, CreateRequest, DeleteRequest, Ran, Record, RunRequest, RuntimeError, Steps, create as make,
    delete_seen as remove,
};
use crate::spec::{Config, annotations};
use crate::store::{CowMount, NewContainer, StagedLayer, Store, now_ns};

/// Creates the container and registers it. On failure nothing of it is left.
pub fn create(context: &Context, request: &CreateRequest) -> Result<Record, OpsError> {
    // Before anything is made: a store that can't be used must not leave a container without history. It is not opened
    // yet, since the first process would inherit its descriptors until it is started.
    Store::prepare(&context.config.store)?;
    require_descriptors()?;
    let notes = Config::load(&request.bundle).map_err(RuntimeError::from)?.annotations();
    refuse_reserved(&notes)?;
    let policy = super::policy::of(&context.config, &notes)?;
    let staged = RefCell::new(Vec::new());
    let record = make(request, &policy, &|| stage(context, &mut staged.borrow_mut()))?;
    let made = record.clone();
    let staged = staged.into_inner();
    let registered = context.store().and_then(|store| register(&store, record, &staged)).inspect_err(|_| {
        // The error that is on its way is the one to tell. Before the layers go that it has mounted.
        let request = DeleteRequest { root: request.root.clone(), id: made.id.clone(), force: true };
        let _ = remove(&request, Some(&made));
    })?;
    for layer in staged {
        layer.keep();
    }
    Ok(registered)
}

/// A layer for what the first process writes to a copy-on-write mount. It goes again if the container does not come to be.
fn stage(context: &Context, staged: &mut Vec<StagedLayer>) -> Result<CowLayer, Box<dyn Error + Send + Sync>> {
    let layer = context.store()?.create_layer()?;
    let made = CowLayer {
        upper: layer.upper(),
        works: [layer.work(), layer.make_work_of(0)?],
        lock: layer.as_fd().as_raw_fd(),
    };
    staged.push(layer);
    Ok(made)
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
    // A word that is spelt wrong asked for something, of which the container would have nothing.
    let ours = notes.keys().filter(|name| name.starts_with(annotations::PREFIX));
    if let Some(name) = ours.into_iter().find(|name| !annotations::is_known(name)) {
        return Err(OpsError::UnknownAnnotation(name.clone()));
    }
    super::exec::check_annotations(notes)
}

/// `run`: create and start in one, and in the foreground stay until it has ended and is deleted.
pub fn run(context: &Context, request: RunRequest) -> Result<Ran, OpsError> {
    let steps = Steps {
        create: &|request: &CreateRequest| create(context, request),
        delete: &|request: &DeleteRequest, made: &Record| super::delete::delete_seen(context, request, made),
    };
    runtime::run(request, &steps)
}

fn register(store: &Store, mut record: Record, staged: &[StagedLayer]) -> Result<Record, OpsError> {
    let cow_mount = |(cow, layer): (&CowSource, &StagedLayer)| CowMount {
        destination: cow.at.clone(),
        source: cow.source.clone(),
        identity: cow.identity,
        flags: cow.flags,
        layer: layer.id(),
    };
    let container = NewContainer {
        id: record.id.clone(),
        root: record.root().to_owned(),
        bundle: record.bundle.clone(),
        rootfs: record.rootfs.clone(),
        created_ns: now_ns(),
        told: super::policy::told(record.confinement.profile, &record.decisions),
        cow_mounts: record.cows.iter().zip(staged).map(cow_mount).collect(),
    };
    // Whoever has deleted it found no row to drop.
    let Some((claim, _)) = Claim::of(&record)? else { return Err(OpsError::DeletedEarly) };
    let key = store.add_container(&container)?;
    record.store_key = Some(key.0);
    record.save()?;
    drop(claim);
    publish::annotate(store, &store.container(key)?, None)?;
    Ok(record)
}
