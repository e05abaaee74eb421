//! Garbage: what may be deleted is computed by reachability from the rows, planned, and then deleted as planned.
//!
//! A plan is data: `gc --dry-run` prints it. Between plan and execution the world goes on, so each item is checked
//! again, under its lock, before it goes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;

use rusqlite::Connection;
use rustix::fs::FlockOperation;

use crate::durable::{LockFile, flock, is_at};
use crate::id::{ExecId, LayerId};

use super::error::{DbContext, IoContext};
use super::layer::open_dir;
use super::lock::LockOf;
use super::{ContainerKey, Store, StoreError, trash};

/// Who keeps a layer, and the query for the layers that they keep. Snapshots will be a line here.
pub(super) const REACHABLE: [(&str, &str); 5] = [
    ("generation", "SELECT layer FROM generations"),
    ("squash", "SELECT layer FROM squashes"),
    ("first process", "SELECT layer FROM cow_mounts"),
    (
        "exec that runs on it",
        "SELECT layer FROM retired r WHERE EXISTS(SELECT 1 FROM execs e WHERE e.container = r.container
             AND e.disposition IS NULL AND e.base >= r.number AND e.seq <= r.exec)",
    ),
    (
        "exec that runs or waits for a decision",
        "SELECT layer FROM execs WHERE layer IS NOT NULL
             AND (disposition IS NULL OR disposition IN ('held', 'conflict', 'aborted'))",
    ),
];

/// What is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Garbage {
    /// A layer's directory that no row names.
    Layer(LayerId),
    /// Something in the trash.
    Trash(OsString),
    /// The lock file of an exec that is not running.
    ExecLock(ExecId),
    /// A lock of a container that is gone.
    ContainerLock(LockOf, ContainerKey),
}

impl std::fmt::Display for Garbage {
    /// For people; a name in the trash may hold anything.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Garbage::Layer(layer) => write!(f, "layer {layer}"),
            Garbage::Trash(name) => write!(f, "trash {}", name.to_string_lossy()),
            Garbage::ExecLock(exec) => write!(f, "lock of exec {exec}"),
            Garbage::ContainerLock(kind, key) => write!(f, "{kind} lock of container {}", key.0),
        }
    }
}

impl Garbage {
    /// Why it may go.
    pub fn reason(&self) -> &'static str {
        match self {
            Garbage::Layer(_) => "no generation, squash, running or held exec, copy-on-write mount has this layer",
            Garbage::Trash(_) => "its deletion was begun",
            Garbage::ExecLock(_) => "no running exec has this lock",
            Garbage::ContainerLock(..) => "its container is gone",
        }
    }
}

/// What a collection would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GcPlan {
    /// What is to be deleted, in this order.
    pub delete: Vec<Garbage>,
    /// How many layers are kept, because somebody needs them.
    pub kept: usize,
    /// Layers without a row that are being made just now.
    pub staged: Vec<LayerId>,
    /// Entries of `layers/` and `locks/` that are not ours; never deleted.
    pub foreign: Vec<OsString>,
    /// Layers that a row names but that have no directory: damage, for `check` to report.
    pub missing: Vec<LayerId>,
    /// Layers that were sealed, and of which neither a row nor the event log tells: a database that has lost its newest
    /// rows looks like this (a damaged log, an older copy put in its place). Never deleted.
    pub unknown: Vec<LayerId>,
}

/// What a collection did.
#[derive(Debug, Default)]
pub struct GcReport {
    /// What is gone.
    pub deleted: Vec<Garbage>,
    /// What was left alone because somebody needs or holds it now.
    pub skipped: Vec<Garbage>,
    /// What could not be deleted, and why; what was moved to the trash already stays there for the next time.
    pub failed: Vec<(Garbage, io::Error)>,
}

/// The layers that somebody needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// How many, all in all.
    pub layers: usize,
    /// How many of them are of dropped generations: they go when the execs that run on them have ended.
    pub retired: usize,
}

impl Store {
    /// How many layers somebody needs.
    pub fn kept(&self) -> Result<Kept, StoreError> {
        self.read("count layers", |tx| {
            let retired = column::<i64>(tx, "SELECT count(*) FROM retired")?.into_iter().sum::<i64>();
            Ok(Kept { layers: reachable(tx)?.len(), retired: usize::try_from(retired).unwrap_or(0) })
        })
    }

    /// Computes what may be deleted. Changes nothing.
    pub fn plan_gc(&self) -> Result<GcPlan, StoreError> {
        // Directories before rows: a layer that gets its row in between is seen as reachable.
        let (layers, mut foreign) = self.layer_dirs()?;
        let locks = names(&self.locks_dir())?;
        let trash = names(&self.trash_dir())?;
        let (reachable, running, containers) = self.read("plan collection", |tx| {
            let text = |sql| column::<String>(tx, sql);
            let running = text("SELECT id FROM execs WHERE disposition IS NULL")?;
            let containers = column::<i64>(tx, "SELECT key FROM containers")?;
            Ok((reachable(tx)?, running, containers))
        })?;
        let mut plan = GcPlan { kept: reachable.len(), ..GcPlan::default() };
        for layer in &layers {
            if reachable.contains(&layer.to_string()) {
                continue;
            }
            let dir = self.layer_dir(layer);
            match dir_is_free(&dir) {
                Ok(true) => plan.delete.push(Garbage::Layer(*layer)),
                Ok(false) => plan.staged.push(*layer),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                // No directory, so none of ours, whatever its name.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => {
                    foreign.push(layer.to_string().into());
                }
                Err(e) => return Err(e).at("lock", &dir),
            }
        }
        plan.unknown = self.unknown(&plan.delete)?;
        plan.delete.retain(|garbage| !matches!(garbage, Garbage::Layer(layer) if plan.unknown.contains(layer)));
        plan.delete.extend(trash.into_iter().map(Garbage::Trash));
        for name in locks {
            let Some(garbage) = lock_of(&name) else {
                foreign.push(name);
                continue;
            };
            let used = match &garbage {
                Garbage::ExecLock(exec) => running.contains(&exec.to_string()),
                Garbage::ContainerLock(_, key) => containers.contains(&key.0),
                Garbage::Layer(_) | Garbage::Trash(_) => true,
            };
            let path = self.locks_dir().join(&name);
            // One that is gone by now was let go of by its owner.
            if !used && LockFile::is_free(&path).at("lock", &path)? && path.symlink_metadata().is_ok() {
                plan.delete.push(garbage);
            }
        }
        for layer in &reachable {
            match layer.parse::<LayerId>() {
                Ok(id) if layers.contains(&id) || self.layer_dir(&id).exists() => {}
                // Not if it was released and deleted since we read the rows.
                Ok(id) if self::reachable(&self.conn)?.contains(layer) => plan.missing.push(id),
                Ok(_) => {}
                // `check` reports ids that are none.
                Err(_) => {}
            }
        }
        plan.foreign = foreign;
        Ok(plan)
    }

    /// Of layers without a row, those that have a list of what they touch and that no event tells of. An exec's end is an
    /// event, and such a list is made just before it; what ended before the oldest event is not judged.
    fn unknown(&self, garbage: &[Garbage]) -> Result<Vec<LayerId>, StoreError> {
        let sealed = |garbage: &Garbage| match garbage {
            Garbage::Layer(layer) => self.layer_dir(layer).join("touched").symlink_metadata().is_ok().then_some(*layer),
            _ => None,
        };
        let mut unknown: Vec<LayerId> = garbage.iter().filter_map(sealed).collect();
        if unknown.is_empty() {
            return Ok(unknown);
        }
        let oldest: Option<i64> = self
            .conn
            .query_row("SELECT min(time_ns) FROM events", [], |row| row.get(0))
            .during("read the event log")?;
        let told = column::<String>(
            &self.conn,
            "SELECT coalesce(payload ->> '$.layer', '') FROM events WHERE kind IN ('exec', 'retention') AND json_valid(payload)",
        )?;
        let told: BTreeSet<String> = told.into_iter().collect();
        unknown.retain(|layer| {
            !told.contains(&layer.to_string()) && oldest.is_none_or(|oldest| layer.made_ms() >= oldest / 1_000_000)
        });
        Ok(unknown)
    }

    /// Deletes what the plan names, as far as it is still garbage. Goes on after what can't be deleted.
    ///
    /// Nothing planned may be mounted; where something is, it is moved to the trash and stays there, and is said.
    pub fn execute_gc(&self, plan: &GcPlan) -> Result<GcReport, StoreError> {
        let mut report = GcReport::default();
        for garbage in &plan.delete {
            let result = match garbage {
                Garbage::Layer(layer) => self.collect_layer(layer)?,
                Garbage::Trash(name) => Some(trash::empty(&self.trash_dir(), name)),
                Garbage::ExecLock(exec) => self.collect_lock(&self.exec_lock_path(exec), |tx| {
                    let running = "SELECT id FROM execs WHERE disposition IS NULL";
                    Ok(column::<String>(tx, running)?.contains(&exec.to_string()))
                })?,
                Garbage::ContainerLock(kind, key) => self
                    .collect_lock(&self.container_lock_path(*kind, *key), |tx| {
                        Ok(column::<i64>(tx, "SELECT key FROM containers")?.contains(&key.0))
                    })?,
            };
            match result {
                Some(Ok(())) => report.deleted.push(garbage.clone()),
                Some(Err(e)) => report.failed.push((garbage.clone(), e)),
                None => report.skipped.push(garbage.clone()),
            }
        }
        Ok(report)
    }

    /// `None`: it is no garbage any more.
    fn collect_layer(&self, layer: &LayerId) -> Result<Option<io::Result<()>>, StoreError> {
        let dir = self.layer_dir(layer);
        let lock = match open_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Ok(Some(Err(e))),
            Ok(lock) => lock,
        };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() || !is_at(&lock, &dir).at("stat", &dir)? {
            return Ok(None);
        }
        // With its directory locked nobody can be about to give it a row.
        if reachable(&self.conn)?.contains(&layer.to_string()) {
            return Ok(None);
        }
        Ok(Some(trash::discard(&dir, &self.trash_dir(), &layer.to_string())))
    }

    fn collect_lock(
        &self,
        path: &Path,
        used: impl FnOnce(&Connection) -> Result<bool, StoreError>,
    ) -> Result<Option<io::Result<()>>, StoreError> {
        let lock = match LockFile::try_lock(path) {
            Ok(Some(lock)) => lock,
            Ok(None) => return Ok(None),
            Err(e) => return Ok(Some(Err(e))),
        };
        if used(&self.conn)? { Ok(None) } else { Ok(Some(lock.unlink())) }
    }

    /// The layers that have a directory, and what else is there.
    pub(super) fn layer_dirs(&self) -> Result<(BTreeSet<LayerId>, Vec<OsString>), StoreError> {
        let (mut layers, mut foreign) = (BTreeSet::new(), Vec::new());
        for name in names(&self.layers)? {
            // Only the canonical spelling: ULIDs can be parsed from lower case too.
            match name.to_str().and_then(|n| n.parse::<LayerId>().ok().filter(|id| id.to_string() == n)) {
                Some(layer) => {
                    layers.insert(layer);
                }
                None => foreign.push(name),
            }
        }
        Ok((layers, foreign))
    }
}

/// All layers that somebody keeps, as text. One statement, so that a layer that passes from an exec to a generation
/// meanwhile is seen with one of them.
pub(super) fn reachable(conn: &Connection) -> Result<BTreeSet<String>, StoreError> {
    let sql = REACHABLE.map(|(_, sql)| sql).join(" UNION ");
    Ok(column(conn, &sql)?.into_iter().collect())
}

/// The first column of a query.
pub(super) fn column<T: rusqlite::types::FromSql>(conn: &Connection, sql: &str) -> Result<Vec<T>, StoreError> {
    conn.prepare_cached(sql)
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .during("read what is reachable")
}

pub(super) fn names(dir: &Path) -> Result<Vec<OsString>, StoreError> {
    let mut names = std::fs::read_dir(dir)
        .and_then(|entries| entries.map(|e| Ok(e?.file_name())).collect::<io::Result<Vec<_>>>())
        .at("list", dir)?;
    names.sort_unstable();
    Ok(names)
}

fn lock_of(name: &OsString) -> Option<Garbage> {
    let name = name.to_str()?;
    for kind in LockOf::ALL {
        if let Some(key) = name.strip_prefix(kind.prefix()) {
            return key.parse().ok().map(|key| Garbage::ContainerLock(kind, ContainerKey(key)));
        }
    }
    name.parse().ok().map(Garbage::ExecLock)
}

fn dir_is_free(dir: &Path) -> io::Result<bool> {
    let fd = open_dir(dir)?;
    match flock(&fd, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
