//! Committing a layer onto HEAD, as a fast-forward or past what others committed meanwhile, never over it.

use std::os::fd::{AsFd, OwnedFd};

use super::{Context, Done, OpsError, publish, retain, stack};
use crate::diff::apply::Base;
use crate::diff::{self, Diff, PathBytes, Touched};
use crate::id::{Generation, LayerId};
use crate::rootfs::open_dir;
use crate::store::{CommitInfo, Container, ExecRecord, Store, StoreError};
use crate::terms::noun;

/// How often a commit starts over because HEAD moved between its check and its transaction.
const MAX_TRIES: usize = 1000;

/// Why a layer can't follow HEAD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// For people.
    pub reason: String,
    /// The paths that both changed; empty where the history itself is in the way.
    pub paths: Vec<PathBytes>,
}

/// Commits by calling `attempt` with the HEAD that the layer was checked against, until one attempt finds it unmoved.
///
/// `base` is what the exec saw. With `force`, nothing is checked: the layer wins where both changed a path. Directories
/// that the layer only passes through take over what HEAD shows, so that it reverts nobody's change of their attributes.
/// An attempt that fails leaves them so, as a kill does: the next one has to know.
pub fn onto_head<T>(
    store: &Store,
    container: &Container,
    layer: &LayerId,
    base: Generation,
    touched: &[Touched],
    force: bool,
    mut attempt: impl FnMut(Generation) -> Result<T, StoreError>,
) -> Result<Result<T, Conflict>, OpsError> {
    // Nobody committed meanwhile: the common case needs no lock, the transaction itself sees to it.
    if !store.is_refreshed(layer) {
        match attempt(base) {
            Err(StoreError::HeadMoved { .. }) => {}
            other => return Ok(Ok(other?)),
        }
    }
    let _lock = store.commit_lock(container.key)?;
    for _ in 0..MAX_TRIES {
        let head = store.head(container.key)?;
        if let Some(conflict) = check(store, container, base, head, touched)?
            && !force
        {
            return Ok(Err(conflict));
        }
        refresh(store, container, layer, touched, base, head)?;
        match attempt(head) {
            Err(StoreError::HeadMoved { .. }) => {}
            other => return Ok(Ok(other?)),
        }
    }
    Err(OpsError::Restless)
}

/// What `touched` and the generations between `base` and `head` both changed.
fn check(
    store: &Store,
    container: &Container,
    base: Generation,
    head: Generation,
    touched: &[Touched],
) -> Result<Option<Conflict>, OpsError> {
    let Some(between) = store.between(container.key, base, head)? else {
        return Ok(Some(Conflict { reason: rolled_back(base, head), paths: Vec::new() }));
    };
    let mut paths = Vec::new();
    let mut generations = Vec::new();
    for row in between.iter().rev() {
        let theirs = touched_of(store, container, &row.layer, row.parent)?;
        let found = diff::conflicts(touched, &theirs);
        if !found.is_empty() {
            generations.push(row.number);
            paths.extend(found);
        }
    }
    paths.sort();
    paths.dedup();
    Ok((!paths.is_empty()).then(|| Conflict { reason: changed_too(&generations), paths }))
}

fn rolled_back(base: Generation, head: Generation) -> String {
    format!("it started from generation {base}, and HEAD was rolled back to {head} since")
}

fn changed_too(generations: &[Generation]) -> String {
    let list: Vec<String> = generations.iter().take(5).map(Generation::to_string).collect();
    let more = if generations.len() > list.len() { " and others" } else { "" };
    let word = noun(generations.len(), "generation");
    format!("{word} {}{more} changed the same paths", list.join(", "))
}

/// The paths that a layer touched: from its record, or by looking again where that is missing or damaged (it is not
/// synced to disk, so a loss of power can take it).
pub fn touched_of(
    store: &Store,
    container: &Container,
    layer: &LayerId,
    below: Generation,
) -> Result<Vec<Touched>, OpsError> {
    if let Some(bytes) = store.read_touched(layer)?
        && let Ok(touched) = diff::decode_touched(&bytes)
    {
        return Ok(touched);
    }
    let lowers = stack::lowers_at(store, container, below)?;
    let upper = open_dir(&store.upper(layer))?;
    let found = diff::compare(&[upper.as_fd()], lowers.view(), &stack::options_of(container))?;
    Ok(diff::touched(&found))
}

/// Keeps the paths that a layer touched beside it. Where that fails (the disk is full) [`touched_of`] looks again.
pub fn remember_touched(store: &Store, layer: &LayerId, touched: &[Touched]) {
    if let Err(err) = store.write_touched(layer, &diff::encode_touched(touched)) {
        tracing::warn!(layer = %layer, error = %err, "the touched paths could not be kept");
    }
}

/// Keeps beside a layer what the host has where the layer changed something at a copy-on-write mount, for `apply` to see
/// what others changed since. `since_ns`: when the exec began. Where it can't be kept, `apply` finds conflicts instead.
pub fn remember_base(store: &Store, layer: &LayerId, lowers: &stack::Lowers, found: &Diff, since_ns: i64) {
    if lowers.cows.is_empty() {
        return;
    }
    let since = (since_ns.div_euclid(1_000_000_000), since_ns.rem_euclid(1_000_000_000) as u32);
    let kept = Base::record(found, &lowers.mounts(), since)
        .map_err(OpsError::from)
        .and_then(|base| Ok(store.write_base(layer, &base.encode())?));
    if let Err(err) = kept {
        tracing::warn!(layer = %layer, error = %crate::error::chain(&err), "the host's state could not be kept");
    }
}

/// The directories that a layer only passes through, as `head` shows them.
pub fn refresh(
    store: &Store,
    container: &Container,
    layer: &LayerId,
    touched: &[Touched],
    base: Generation,
    head: Generation,
) -> Result<(), OpsError> {
    let upper: OwnedFd = open_dir(&store.upper(layer))?;
    let before = stack::lowers_at(store, container, base)?;
    let now = stack::lowers_at(store, container, head)?;
    let again = store.is_refreshed(layer).then_some(touched);
    store.mark_refreshed(layer)?;
    Ok(diff::refresh_passed(upper.as_fd(), before.view(), now.view(), again, &diff::Options::default())?)
}

/// Commits a held layer: the generation that it became.
pub fn held(
    context: &Context,
    container: &str,
    exec: &str,
    force: bool,
) -> Result<Done<(ExecRecord, Generation)>, OpsError> {
    let (store, container) = context.container(container)?;
    let record = store.exec(container.key, exec)?;
    let layer = match (record.disposition, record.layer) {
        (Some(d), Some(layer)) if d.is_held() => layer,
        _ => return Err(store.not_held(container.key, &record).into()),
    };
    let touched = {
        let _lock = store.read_lock(container.key)?;
        touched_of(&store, &container, &layer, record.base)?
    };
    let bytes = match publish::recorded(&store, &container, &record.id)? {
        Some((changes, true)) => Some(diff::size_of(open_dir(&store.upper(&layer))?.as_fd(), &changes)),
        _ => record.summary.as_ref().and_then(|summary| summary["bytes"].as_u64()),
    };
    let info = CommitInfo { digest: None, bytes };
    let done = onto_head(&store, &container, &layer, record.base, &touched, force, |head| {
        store.commit_held(container.key, &record.id, head, &info)
    })?;
    match done {
        Ok(generation) => {
            let squashed = super::squash::if_deep(&store, &container, generation);
            let told = publish::decided(&store, &container, &record.id);
            if retain::is_due(&store, container.key, &context.config.retention) {
                retain::in_background(context, store, container.key);
            }
            Ok(Done { what: (record, generation), warning: told.and(squashed).err() })
        }
        Err(conflict) => Err(OpsError::Conflict {
            exec: record.id.to_string(),
            reason: conflict.reason,
            paths: conflict.paths.iter().map(|p| p.to_string_lossy().into_owned()).collect(),
        }),
    }
}

#[cfg(test)]
mod tests;
