//! Looking back: the log, one exec's result, the difference between generations.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::policy::Told;
use super::{Context, OpsError, owners, publish, stack, unless_removed};
use crate::diff::{self, Diff, PathBytes};
use crate::id::{Generation, Revision};
use crate::report::ResultDocument;
use crate::rootfs::open_dir;
use crate::spec::idmap::IdMaps;
use crate::store::{Container, ExecRecord, LogEntry, ReadLock, Store, StoreError};
use crate::terms::Disposition;

/// The containers that have a history, oldest first.
pub fn containers(context: &Context) -> Result<Vec<Container>, OpsError> {
    Ok(context.store_to_read()?.containers()?)
}

/// A container's history.
#[derive(Debug)]
pub struct History {
    /// The container, with its HEAD.
    pub container: Container,
    /// What happened, oldest first.
    pub entries: Vec<LogEntry>,
    /// Each generation's parent.
    pub parents: BTreeMap<Generation, Generation>,
}

/// A container's history.
pub fn log(context: &Context, container: &str) -> Result<History, OpsError> {
    let (store, container) = context.container_to_read(container)?;
    let entries = store.log(container.key)?;
    let parents = store.generations(container.key)?.into_iter().map(|row| (row.number, row.parent)).collect();
    Ok(History { container, entries, parents })
}

/// What a container's profile made of its engine's configuration.
pub fn policy(context: &Context, container: &str) -> Result<Told, OpsError> {
    let (store, container) = context.container_to_read(container)?;
    let told = store.log(container.key)?.into_iter().find_map(|entry| match entry {
        LogEntry::Event(event) if event.kind == CREATED => Told::of(&serde_json::from_str(&event.payload).ok()?),
        _ => None,
    });
    told.ok_or_else(|| OpsError::PolicyUntold(container.id.to_string()))
}

/// The kind of the event that tells that a container was made.
pub const CREATED: &str = "container-created";

/// One exec's result; the last one's if `exec` is none. With `wait`, not before it has ended.
pub fn show(context: &Context, container: &str, exec: Option<&str>, wait: bool) -> Result<ResultDocument, OpsError> {
    let (store, container) = context.container_to_read(container)?;
    let mut pause = Duration::from_millis(2);
    let mut name = exec.map(str::to_owned);
    loop {
        let record = match &name {
            Some(name) => store.exec(container.key, name)?,
            None => store.last_exec(container.key)?.ok_or_else(|| OpsError::NoExec(container.id.to_string()))?,
        };
        if record.disposition.is_some() || !wait {
            return publish::document(&store, &container, &record);
        }
        // The same one, even if another begins meanwhile.
        name = Some(record.id.to_string());
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
        super::recover::container(&store, container.key)?;
    }
}

/// What to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Range {
    /// From one generation to a later one.
    Generations(Revision, Revision),
    /// What one exec did, whatever became of it, as long as its layer is there.
    Exec(String),
}

impl Range {
    /// Reads `FROM`, `FROM..TO`, `FROM..`, `..TO`, or an exec's name. Nothing is `0..@`.
    pub fn parse(text: Option<&str>) -> Result<Range, crate::id::IdError> {
        const ZERO: Revision = Revision::Number(Generation::ZERO);
        const HEAD: Revision = Revision::Ancestor(0);
        let Some(text) = text else { return Ok(Range::Generations(ZERO, HEAD)) };
        if let Some((from, to)) = text.split_once("..") {
            let end = |text: &str, default| if text.is_empty() { Ok(default) } else { text.parse() };
            return Ok(Range::Generations(end(from, ZERO)?, end(to, HEAD)?));
        }
        match text.parse() {
            Ok(from) => Ok(Range::Generations(from, HEAD)),
            Err(_) if text.starts_with('@') => text.parse().map(|from| Range::Generations(from, HEAD)),
            Err(_) => Ok(Range::Exec(text.to_owned())),
        }
    }
}

/// Two views of a container, opened, and the difference between them.
#[derive(Debug)]
pub struct Comparison {
    uppers: Vec<OwnedFd>,
    lowers: stack::Lowers,
    /// Keeps what is opened from being deleted.
    _lock: Option<ReadLock>,
    /// The container's ids, where they are not the host's.
    maps: Option<IdMaps>,
    /// The changes that were asked for.
    pub diff: Diff,
}

impl Comparison {
    /// Writes a unified patch of the changes.
    pub fn patch(&self, out: &mut dyn Write) -> Result<(), OpsError> {
        if self.uppers.is_empty() {
            return Ok(());
        }
        let uppers: Vec<_> = self.uppers.iter().map(AsFd::as_fd).collect();
        Ok(diff::patch(
            &uppers,
            self.lowers.view(),
            &self.diff.changes,
            diff::Namespace::Trusted,
            &diff::PatchLimits::default(),
            &|uid, gid| self.maps.as_ref().map_or((uid, gid), |maps| maps.inside(uid, gid)),
            out,
        )?)
    }
}

/// Compares. `paths`, if any, leaves only changes at or below one of them, those that went with a directory above them
/// too; the summary then counts those alone.
pub fn compare(
    context: &Context,
    container: &str,
    range: &Range,
    recursive: bool,
    paths: &[PathBytes],
) -> Result<Comparison, OpsError> {
    let (store, container) = context.container_to_read(container)?;
    unless_removed(&store, container.key, || compare_in(&store, &container, range, recursive, paths))
}

fn compare_in(
    store: &Store,
    container: &Container,
    range: &Range,
    recursive: bool,
    paths: &[PathBytes],
) -> Result<Comparison, OpsError> {
    let lock = store.read_lock(container.key)?;
    let (uppers, lowers) = match range {
        Range::Generations(from, to) => {
            let from = store.resolve(container.key, *from)?;
            let to = store.resolve(container.key, *to)?;
            (uppers_between(store, container, from, to)?, stack::lowers_at(store, container, from)?)
        }
        Range::Exec(name) => {
            let exec = store.exec(container.key, name)?;
            let layer = exec.layer.filter(|_| exec.disposition.is_some()).ok_or_else(|| without_layer(&exec))?;
            let lowers = match (stack::lowers_at(store, container, exec.base), exec.generation) {
                // What it was committed onto shows the same, but for what others have committed meanwhile.
                (Err(OpsError::Store(StoreError::GenerationDropped { .. })), Some(generation)) => {
                    let parent = store.generation(container.key, generation)?.parent;
                    stack::lowers_at(store, container, parent)?
                }
                (lowers, _) => lowers?,
            };
            (vec![open_dir(&store.upper(&layer))?], lowers)
        }
    };
    // What lies below a directory that is gone may be what is asked for.
    let options = diff::Options { recursive: recursive || !paths.is_empty(), ..stack::options_of(container) };
    let fds: Vec<_> = uppers.iter().map(AsFd::as_fd).collect();
    // Nothing lies between a generation and itself.
    let mut diff = if fds.is_empty() { Diff::default() } else { diff::compare(&fds, lowers.view(), &options)? };
    if !paths.is_empty() {
        diff.keep(|path| paths.iter().any(|want| path.is_below(want)), recursive);
    }
    let maps = owners::maps_of(container);
    diff.changes = owners::as_inside(diff.changes, maps.as_ref());
    Ok(Comparison { uppers, lowers, _lock: lock, maps, diff })
}

/// Why an exec has no layer of its own.
fn without_layer(exec: &ExecRecord) -> OpsError {
    match (exec.generation, exec.dropped, exec.disposition) {
        (Some(generation), Some(why), _) => StoreError::GenerationDropped { generation, why: Some(why) }.into(),
        (Some(into), None, Some(Disposition::Committed)) => OpsError::Merged { exec: exec.id.to_string(), into },
        (_, _, disposition) => {
            OpsError::NoLayer(exec.id.to_string(), disposition.map_or("it still runs", Disposition::as_str))
        }
    }
}

/// Why there is no way up from `from` to `to`.
fn unrelated(store: &Store, container: &Container, from: Generation, to: Generation) -> Result<OpsError, OpsError> {
    if store.is_ancestor(container.key, to, from)? {
        return Ok(OpsError::Backwards { from, to });
    }
    let numbers = |of| Ok::<Vec<_>, StoreError>(store.chain(container.key, of)?.iter().map(|row| row.number).collect());
    let (one, other) = (numbers(from)?, numbers(to)?);
    let fork = one.into_iter().find(|number| other.contains(number)).unwrap_or(Generation::ZERO);
    Ok(OpsError::Apart { from, to, fork })
}

/// The layers after `from` up to `to`, newest first, merged ones where they fit in between.
pub(super) fn uppers_between(
    store: &Store,
    container: &Container,
    from: Generation,
    to: Generation,
) -> Result<Vec<OwnedFd>, OpsError> {
    let Some(layers) = store.layers_between(container.key, from, to)? else {
        return Err(unrelated(store, container, from, to)?);
    };
    Ok(layers.iter().map(|lower| open_dir(&store.upper(&lower.layer))).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let number = |n| Revision::Number(Generation(n));
        let head = |n| Revision::Ancestor(n);
        for (text, want) in [
            (None, Range::Generations(number(0), head(0))),
            (Some("3"), Range::Generations(number(3), head(0))),
            (Some("@-1"), Range::Generations(head(1), head(0))),
            (Some("3..5"), Range::Generations(number(3), number(5))),
            (Some("3.."), Range::Generations(number(3), head(0))),
            (Some("..5"), Range::Generations(number(0), number(5))),
            (Some("01JDV"), Range::Exec("01JDV".into())),
        ] {
            assert_eq!(Range::parse(text).unwrap(), want, "{text:?}");
        }
        for bad in ["@x", "1..x", "x..1"] {
            assert!(Range::parse(Some(bad)).is_err(), "{bad}");
        }
    }
}
