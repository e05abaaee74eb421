//! Keeping histories within their bounds: old generations are merged into what was made on them, and go.
//!
//! What is merged is read without any lock that a commit waits for; only the rows' change is under one. After an exec it is
//! done by a process of its own, so that who waits for the exec does not wait for it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::commit::{remember_touched, touched_of};
use super::{Context, OpsError};
use crate::diff::apply::Base;
use crate::diff::{self, Touched};
use crate::id::LayerId;
use crate::rootfs::open_dir;
use crate::store::{
    Container, ContainerKey, Fold, MAX_FOLDS, Released, Replaced, RetentionPlan, StagedLayer, Stale, Store, StoreError,
};
use crate::sys::process::{Fork, close_others_in_child, exit_now, fork};
use crate::terms::Retention;

/// How many layers are merged at once: each costs a descriptor for each level of directories.
const WIDTH: usize = 16;
/// How long who reads layers is waited for, and by who is exact, who drops generations already.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
/// How often a history that changes meanwhile is looked at again.
const TRIES: usize = 3;
/// The most paths of which a merged layer keeps a list; without it the layer is walked.
const TOUCHED_MAX: usize = 1 << 20;

/// How exactly bounds are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rigour {
    /// What is over a bound goes.
    Exact,
    /// It goes when there is enough of it.
    Rough,
}

/// The histories that are over their bounds, each with what is to go.
pub fn plans(store: &Store, bounds: &Retention) -> Result<Vec<(Container, RetentionPlan)>, OpsError> {
    let mut plans = Vec::new();
    if bounds.is_unbounded() {
        return Ok(plans);
    }
    for container in store.containers()? {
        match store.plan_retention(container.key, bounds, None) {
            Ok(plan) if !plan.dropped.is_empty() => plans.push((container, plan)),
            // Removed meanwhile.
            Ok(_) | Err(StoreError::ContainerRemoved { .. }) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(plans)
}

/// What went of a history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gone {
    /// How many generations.
    pub generations: usize,
    /// How many layers were deleted: theirs, but for those that an exec still runs on, and those that merged ones replaced.
    pub layers: usize,
}

/// Brings a container's history within `bounds`: what went. Nothing where another process is at it, or where all the time
/// somebody reads the layers.
pub fn apply(store: &Store, container: &Container, bounds: &Retention, rigour: Rigour) -> Result<Gone, OpsError> {
    let patience = if rigour == Rigour::Exact { PATIENCE } else { Duration::ZERO };
    let Some(_lock) = store.retention_lock(container.key, patience)? else { return Ok(Gone::default()) };
    let mut gone = Gone { layers: delete(store, store.release_retired(Some(container.key))?)?, ..Gone::default() };
    let mut stale = 0;
    loop {
        let plan = store.plan_retention(container.key, bounds, Some(MAX_FOLDS))?;
        if plan.dropped.is_empty() {
            return Ok(gone);
        }
        // What this plan leaves for the next one counts too: where each generation that goes is merged into another one, it
        // is never more than a few.
        let enough = rigour == Rigour::Exact
            || gone.generations > 0
            || plan.is_worth(bounds)
            || store.plan_retention(container.key, bounds, None)?.is_worth(bounds);
        if !enough {
            return Ok(gone);
        }
        // Layers may be read for long (by a patch that somebody pages through): nothing is merged in vain meanwhile.
        if rigour == Rigour::Rough && store.drop_lock(container.key)?.is_none() {
            return Ok(gone);
        }
        match carry_out(store, container, &plan)? {
            Some(Ok(layers)) => {
                gone.generations += plan.dropped.len();
                gone.layers += layers;
            }
            Some(Err(Stale)) if stale < TRIES => stale += 1,
            Some(Err(Stale)) | None => return Ok(gone),
        }
    }
}

/// Whether a commit has made it worth while to look at the container's history. A failure to look is none of the commit's.
pub fn is_due(store: &Store, key: ContainerKey, bounds: &Retention) -> bool {
    store.is_retention_due(key, bounds).unwrap_or(false)
}

/// Has a process of its own bring a container's history within its bounds. Best effort: the next commit tries again.
///
/// The calling process must be single-threaded. Its store is closed before, as the child opens its own: what SQLite knows of
/// locks is wrong in a child.
pub fn in_background(context: &Context, store: Store, key: ContainerKey) {
    drop(store);
    let Ok(Fork::Child) = fork() else { return };
    let _ = rustix::process::setsid();
    let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty());
    if let Ok(null) = &null {
        let _ = rustix::stdio::dup2_stdin(null);
        let _ = rustix::stdio::dup2_stdout(null);
        let _ = rustix::stdio::dup2_stderr(null);
    }
    close_others_in_child(&[]);
    // Nobody is there to be told; the descriptors of who would write it down are closed.
    let done = tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || {
        let store = context.store_to_free()?;
        let container = store.container(key)?;
        apply(&store, &container, &context.config.retention, Rigour::Rough).map(drop)
    });
    exit_now(i32::from(done.is_err()))
}

/// How many layers were deleted. `None`: somebody reads the layers.
fn carry_out(
    store: &Store,
    container: &Container,
    plan: &RetentionPlan,
) -> Result<Option<Result<usize, Stale>>, OpsError> {
    let merged: Vec<Merged> =
        plan.folds.iter().map(|fold| Merged::make(store, container, fold)).collect::<Result<_, _>>()?;
    let replaced: Vec<Replaced> = merged.iter().map(|merged| merged.replaced.clone()).collect();
    let begun = Instant::now();
    let lock = loop {
        if let Some(lock) = store.drop_lock(container.key)? {
            break lock;
        }
        if begun.elapsed() > PATIENCE {
            return Ok(None);
        }
        std::thread::sleep(PAUSE);
    };
    let released = match store.drop_generations(container.key, plan, &replaced)? {
        Ok(released) => released,
        Err(stale) => return Ok(Some(Err(stale))),
    };
    for one in merged {
        one.keep(store);
    }
    drop(lock);
    Ok(Some(Ok(delete(store, released)?)))
}

/// How many there were.
fn delete(store: &Store, layers: Vec<Released>) -> Result<usize, OpsError> {
    let all = layers.len();
    // What one of them is in the way of is no reason to leave the others.
    let deleted: Vec<Result<(), StoreError>> = layers.into_iter().map(|layer| store.delete_layer(layer)).collect();
    deleted.into_iter().collect::<Result<(), _>>()?;
    Ok(all)
}

/// The layer of a generation that others are merged into, not yet in its row.
struct Merged {
    replaced: Replaced,
    /// None where it is a squash's.
    staged: Option<StagedLayer>,
    touched: Option<Vec<Touched>>,
}

impl Merged {
    fn make(store: &Store, container: &Container, fold: &Fold) -> Result<Merged, OpsError> {
        let recorded = fold.rows.iter().map(|row| row.bytes.unwrap_or(0)).sum();
        let layers: Vec<LayerId> = fold.layers.iter().map(|lower| lower.layer).collect();
        let (staged, layer, bytes) = match layers.as_slice() {
            [one] => (None, *one, recorded),
            many => {
                let (staged, bytes) = merge(store, many)?;
                let layer = staged.id();
                (Some(staged), layer, bytes)
            }
        };
        // Oldest first.
        let touched: Result<Vec<Vec<Touched>>, OpsError> =
            fold.rows.iter().rev().map(|row| touched_of(store, container, &row.layer, row.parent)).collect();
        // Say, because the root filesystem is not mounted any more.
        let touched = touched.ok();
        if let Some(touched) = &touched
            && !store.cow_mounts(container.key)?.is_empty()
        {
            let mut layers = Vec::new();
            for (row, touched) in fold.rows.iter().rev().zip(touched) {
                let base = store.read_base(&row.layer)?.and_then(|bytes| Base::decode(&bytes));
                layers.push((touched.clone(), base));
            }
            // Without it `apply` finds conflicts.
            if let Some(base) = Base::united(&layers) {
                store.write_base(&layer, &base.encode())?;
            }
        }
        let touched = touched.map(diff::union).filter(|touched| touched.len() <= TOUCHED_MAX);
        Ok(Merged { replaced: Replaced { into: fold.into, layer, bytes: Some(bytes) }, staged, touched })
    }

    /// To be called when its row is there.
    fn keep(self, store: &Store) {
        self.staged.map(StagedLayer::keep);
        // Only now: a layer without a row that has this list is one that a damaged database has lost.
        if let Some(touched) = &self.touched {
            remember_touched(store, &self.replaced.layer, touched);
        }
    }
}

/// Merges layers (newest first), some at a time, into a new one: with the sum of the sizes of its files.
fn merge(store: &Store, layers: &[LayerId]) -> Result<(StagedLayer, u64), OpsError> {
    let mut parts: Vec<LayerId> = layers.to_vec();
    // Gone with their directories when the last of them is made.
    let mut between: Vec<StagedLayer> = Vec::new();
    while parts.len() > WIDTH {
        let mut next = Vec::new();
        for group in parts.chunks(WIDTH) {
            match group {
                [one] => next.push(*one),
                many => {
                    let (staged, _) = merge_few(store, many)?;
                    next.push(staged.id());
                    between.push(staged);
                }
            }
        }
        parts = next;
    }
    merge_few(store, &parts)
}

fn merge_few(store: &Store, layers: &[LayerId]) -> Result<(StagedLayer, u64), OpsError> {
    let staged = store.create_layer()?;
    let out = open_dir(&staged.upper())?;
    let opened: Vec<OwnedFd> = layers.iter().map(|id| open_dir(&store.upper(id))).collect::<Result<_, _>>()?;
    let fds: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
    let bytes = diff::merge(&fds, out.as_fd(), &diff::Options::default())?;
    Ok((staged, bytes))
}

#[cfg(test)]
mod tests;
