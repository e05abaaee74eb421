//! Repairing what a killed supervisor left: processes, cgroups, an unsealed layer, a row that still says "running"; and
//! what any killed process left that nothing refers to.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::commit::{refresh, remember_base, remember_touched};
use super::{Context, OpsError, delete, gc, publish, stack};
use crate::diff::{self, Diff};
use crate::durable;
use crate::id::LayerId;
use crate::report::End;
use crate::rootfs::open_dir;
use crate::runtime::RuntimeError;
use crate::runtime::exec::cgroup::KILL_PATIENCE;
use crate::runtime::exec::roster;
use crate::runtime::members;
use crate::runtime::state::Record;
use crate::store::{Abandoned, Container, ContainerKey, Ending, ExecRecord, Outcome, Store, StoreError, now_ns};
use crate::terms::EndKind;

/// One repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The container's id.
    pub container: String,
    /// The exec.
    pub exec: String,
    /// Processes that were killed.
    pub killed: u32,
    /// Whether its layer is held now; else it had changed nothing, or had none.
    pub held: bool,
}

/// Repairs one container. Cheap where there is nothing to do; every command that touches a container calls it.
pub fn container(store: &Store, key: ContainerKey) -> Result<Vec<Repaired>, OpsError> {
    store.abandoned(Some(key))?.into_iter().map(|lost| repair(store, lost)).collect()
}

/// What was repaired.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Execs whose supervisors had died.
    pub execs: Vec<Repaired>,
    /// Ids of containers that no runtime knows any more, and whose history was dropped.
    pub containers: Vec<String>,
    /// How many layers, locks and the like were deleted that nothing refers to any more.
    pub collected: usize,
    /// How many generations went to keep histories within their bounds.
    pub dropped: usize,
    /// What could not be repaired, and why; the rest was all the same.
    pub failed: Vec<OpsError>,
}

/// Repairs all.
pub fn all(context: &Context) -> Result<Recovered, OpsError> {
    let store = context.store_to_free()?;
    let mut recovered = Recovered::default();
    for lost in store.abandoned(None)? {
        match repair(&store, lost) {
            Ok(repaired) => recovered.execs.push(repaired),
            Err(err) => recovered.failed.push(err),
        }
    }
    // Whose row is damaged may seem to be gone.
    if let Err(err) = store.require_sound() {
        recovered.failed.push(err.into());
        return Ok(recovered);
    }
    for container in store.containers()? {
        let dropped = match is_gone(&container) {
            Ok(true) => delete::forget(&store, container.key).map(|()| true),
            other => other,
        };
        match sweep(&container) {
            Ok(swept) => recovered.collected += swept,
            Err(err) => recovered.failed.push(err),
        }
        match dropped {
            Ok(true) => recovered.containers.push(container.id.to_string()),
            Ok(false) => {}
            Err(err) => recovered.failed.push(err),
        }
    }
    match gc::collect(context, false) {
        Ok(gc::Collected { done, .. }) => {
            let done = done.unwrap_or_default();
            recovered.collected += done.report.deleted.len();
            recovered.dropped = done.gone.generations;
            recovered.failed.extend(done.over.into_iter().map(|(_, err)| err));
        }
        Err(err) => recovered.failed.push(err),
    }
    Ok(recovered)
}

/// The directories in which a container's files are replaced whole.
fn written_dirs(container: &Container) -> [PathBuf; 3] {
    let state = Record::dir_of(&container.root, &container.id);
    [state, container.bundle.clone(), container.bundle.join("agentsbx/execs")]
}

/// The temporary files that killed processes left of a container.
pub fn litter(container: &Container) -> Result<Vec<PathBuf>, OpsError> {
    let mut found = Vec::new();
    for dir in written_dirs(container) {
        let left = durable::litter(&dir);
        found.extend(left.map_err(|source| OpsError::File { doing: "list", path: dir, source })?);
    }
    Ok(found)
}

/// Removes them: how many there were.
pub fn sweep(container: &Container) -> Result<usize, OpsError> {
    let mut swept = 0;
    for dir in written_dirs(container) {
        swept += durable::sweep(&dir).map_err(|source| OpsError::File { doing: "clean up", path: dir, source })?;
    }
    Ok(swept + roster::sweep(&Record::dir_of(&container.root, &container.id))?)
}

/// How long a container that is gone is waited for: whoever deletes it waits for its execs before he drops its history.
const DELETE_PATIENCE: Duration = Duration::from_secs(5);

/// Containers whose history [`all`] would drop. Where there seem to be some, it waits until nobody can be deleting them.
pub fn gone(store: &Store) -> Result<Vec<Container>, OpsError> {
    let begun = Instant::now();
    let mut gone = store.containers()?;
    loop {
        let live = store.containers()?;
        let mut left = Vec::new();
        for container in gone {
            // One whose record can't be read is not gone.
            if live.contains(&container) && is_gone(&container).unwrap_or(false) {
                left.push(container);
            }
        }
        if left.is_empty() || begun.elapsed() > DELETE_PATIENCE {
            return Ok(left);
        }
        gone = left;
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whether the runtime's state of a container is gone (after a reboot, or a kill -9 in the middle of `delete`), or is of
/// a later container with its id.
fn is_gone(container: &Container) -> Result<bool, OpsError> {
    match Record::load(&container.root, &container.id) {
        // Between the making of the row and its number in the record there is none.
        Ok(record) => Ok(record.store_key.is_some_and(|key| key != container.key.0)),
        Err(RuntimeError::NotFound) => Ok(true),
        Err(err) => Err(err.into()),
    }
}

fn seal(store: &Store, container: &Container, layer: &LayerId, record: &ExecRecord) -> Result<Diff, OpsError> {
    // Its supervisor was killed while it committed: what the directories took over of HEAD is no change of the exec's.
    if store.is_refreshed(layer)
        && let Some(touched) = store.read_touched(layer)?.and_then(|bytes| diff::decode_touched(&bytes).ok())
    {
        refresh(store, container, layer, &touched, record.base, record.base)?;
    }
    // The layer was mounted in the command's own mount namespace, which went with its last process.
    let upper = open_dir(&store.upper(layer))?;
    let lowers = stack::lowers_at(store, container, record.base)?;
    let found = diff::seal(upper.as_fd(), lowers.view(), &stack::options_of(container))?;
    remember_base(store, layer, &lowers, &found, record.started_ns);
    remember_touched(store, layer, &diff::touched(&found));
    Ok(found)
}

fn repair(store: &Store, lost: Abandoned) -> Result<Repaired, OpsError> {
    let record = &lost.record;
    let ended = members::kill(&record.cgroups, KILL_PATIENCE)?;
    let (killed, gone) = (ended.seen, ended.left.is_none());
    if gone {
        members::remove(&record.cgroups)?;
    }
    let container = store.container(record.container)?;
    let sealed = match &record.layer {
        Some(layer) if container.removed_ns.is_none() && gone => seal(store, &container, layer, record),
        _ => Ok(Diff::default()),
    };
    let found = sealed.unwrap_or_else(|err| {
        // A root filesystem that the engine has unmounted, say: the layer is kept as it is.
        tracing::warn!(exec = %record.id, error = %err, "layer could not be sealed");
        Diff::default()
    });
    let end = End { kind: EndKind::Error, code: None, signal: None, message: Some("its supervisor was killed".into()) };
    let outcome = Outcome {
        ending: Ending::Abort,
        end: serde_json::to_value(end).ok(),
        usage: None,
        summary: serde_json::to_value(found.summary).ok(),
        result: publish::details(&found.changes, None, &[]),
        survivors: Some(u64::from(killed)),
        finished_ns: now_ns(),
    };
    let finished = match store.finish_exec(record.container, &record.id, &outcome) {
        Ok(finished) => finished,
        // Its supervisor had ended it after all, between our two looks.
        Err(StoreError::ExecEnded { .. } | StoreError::ExecNotFound { .. }) => {
            let exec = record.id.to_string();
            lost.recovered()?;
            return Ok(Repaired { container: container.id.to_string(), exec, killed, held: false });
        }
        Err(err) => return Err(err.into()),
    };
    let repaired = Repaired {
        container: container.id.to_string(),
        exec: record.id.to_string(),
        killed,
        held: record.layer.is_some() && finished.released.is_empty(),
    };
    for released in finished.released {
        store.delete_layer(released)?;
    }
    if let Some(layer) = &record.layer {
        // Litter in a layer's own directory goes with the layer at the latest.
        let _ = durable::sweep(&store.layer_dir(layer));
    }
    // `recover` tells of what could not be swept.
    let _ = sweep(&container);
    if container.removed_ns.is_none()
        && let Err(err) = publish::decided(store, &container, &record.id)
    {
        // The row tells it too; a bundle that can't be written must not keep its container from being used.
        tracing::warn!(exec = %record.id, error = %err, "the result could not be published");
    }
    lost.recovered()?;
    Ok(repaired)
}
