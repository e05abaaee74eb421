//! Container records: one row for each time a container was made, found by id, prefix or key.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::json;

use crate::durable;
use crate::id::{ContainerId, Generation};

use super::error::DbContext;
use super::event::append;
use super::layer::{Released, released};
use super::lock::LockOf;
use super::{CowMount, Store, StoreError, blob_path, generation, number, parsed, path_blob};

/// One incarnation of a container; the number is never given out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerKey(pub i64);

/// What is known of a container when it is made.
#[derive(Debug, Clone)]
pub struct NewContainer {
    /// Its id.
    pub id: ContainerId,
    /// The runtime's root directory (`--root`) that it is made under.
    pub root: PathBuf,
    /// Its bundle directory, absolute.
    pub bundle: PathBuf,
    /// Its root file system, absolute.
    pub rootfs: PathBuf,
    /// When, in nanoseconds since 1970 UTC.
    pub created_ns: i64,
    /// What is told of it besides, a JSON object: members of its event.
    pub told: serde_json::Map<String, serde_json::Value>,
    /// Its copy-on-write mounts, whose layers are staged.
    pub cow_mounts: Vec<CowMount>,
}

/// A container as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// This incarnation's key.
    pub key: ContainerKey,
    /// Its id.
    pub id: ContainerId,
    /// The runtime's root directory.
    pub root: PathBuf,
    /// Its bundle directory.
    pub bundle: PathBuf,
    /// Its root file system.
    pub rootfs: PathBuf,
    /// When it was made, in nanoseconds since 1970 UTC.
    pub created_ns: i64,
    /// The generation that its next exec sees.
    pub head: Generation,
    /// The highest number given out.
    pub last_generation: Generation,
    /// The generation that the root file system itself shows.
    pub settled: Generation,
    /// When it was removed; it stays only while execs of it still run.
    pub removed_ns: Option<i64>,
    /// How many of its generations were dropped to keep its history within bounds.
    pub dropped: u64,
}

/// What removing a container left to do.
#[derive(Debug)]
#[must_use = "the layers' data is still there: give each to Store::delete_layer"]
pub struct RemovedContainer {
    /// Layers that no row names any more: all, or none while execs run, which have them mounted.
    pub released: Vec<Released>,
    /// How many execs of it still run; the last one to end takes the rows away and is told of the layers.
    pub running: u64,
}

const COLUMNS: &str = "key, id, root, bundle, rootfs, created_ns, head, last_generation, settled, removed_ns, dropped";

impl Container {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<Container> {
        Ok(Container {
            key: ContainerKey(row.get(0)?),
            id: parsed(row, 1)?,
            root: blob_path(row.get(2)?),
            bundle: blob_path(row.get(3)?),
            rootfs: blob_path(row.get(4)?),
            created_ns: row.get(5)?,
            head: generation(row, 6)?,
            last_generation: generation(row, 7)?,
            settled: generation(row, 8)?,
            removed_ns: row.get(9)?,
            dropped: row.get::<_, i64>(10)? as u64,
        })
    }
}

impl Store {
    /// Records a container, with HEAD at generation 0.
    ///
    /// A live record of the same id under the same root is a leftover (its runtime state is gone, or the caller could
    /// not have made it again): it is removed first, in the same transaction; the collector finds its layers.
    pub fn add_container(&self, new: &NewContainer) -> Result<ContainerKey, StoreError> {
        self.write("add container", |tx| {
            if let Some(old) = find_in(tx, &new.root, &new.id)? {
                // Its layers may still be mounted for all we know here: left to recovery and the collector.
                let _ = remove(tx, &old, "superseded")?;
            }
            tx.prepare_cached("INSERT INTO containers(id, root, bundle, rootfs, created_ns) VALUES(?, ?, ?, ?, ?)")
                .and_then(|mut s| {
                    s.insert(params![
                        new.id.as_str(),
                        path_blob(&new.root),
                        path_blob(&new.bundle),
                        path_blob(&new.rootfs),
                        new.created_ns
                    ])
                })
                .during("add container")
                .and_then(|key| {
                    let mut payload = json!({
                        "root": new.root.to_string_lossy(),
                        "bundle": new.bundle.to_string_lossy(),
                        "rootfs": new.rootfs.to_string_lossy(),
                    });
                    if let Some(members) = payload.as_object_mut() {
                        members.extend(new.told.clone());
                    }
                    append(tx, new.created_ns, Some((ContainerKey(key), &new.id)), "container-created", &payload)?;
                    super::cow::add(tx, ContainerKey(key), &new.cow_mounts)?;
                    Ok(ContainerKey(key))
                })
        })
    }

    /// The container with this key: live, or removed with execs still running.
    pub fn container(&self, key: ContainerKey) -> Result<Container, StoreError> {
        by_key(&self.conn, key)
    }

    /// The live container that `prefix` names: by its whole id, else by a prefix that fits one id only. Of several with
    /// that id (under several roots) the newest.
    pub fn find(&self, prefix: &str) -> Result<Container, StoreError> {
        let found = self
            .conn
            .prepare_cached(&format!(
                "SELECT {COLUMNS} FROM containers WHERE removed_ns IS NULL AND substr(id, 1, length(?1)) = ?1 ORDER BY key"
            ))
            .and_then(|mut s| s.query_map([prefix], Container::from_row)?.collect::<rusqlite::Result<Vec<_>>>())
            .during("find container")?;
        if let Some(exact) = found.iter().rfind(|c| c.id.as_str() == prefix) {
            return Ok(exact.clone());
        }
        let mut matches: Vec<&str> = found.iter().map(|c| c.id.as_str()).collect();
        matches.sort_unstable();
        matches.dedup();
        match (matches.len(), found.last()) {
            (1, Some(newest)) if !prefix.is_empty() => Ok(newest.clone()),
            (0 | 1, _) => Err(StoreError::ContainerNotFound { name: prefix.to_owned() }),
            _ => Err(StoreError::ContainerAmbiguous {
                prefix: prefix.to_owned(),
                matches: matches.into_iter().take(10).map(str::to_owned).collect(),
            }),
        }
    }

    /// The live container with this id under this runtime root.
    pub fn find_in(&self, root: &Path, id: &ContainerId) -> Result<Container, StoreError> {
        find_in(&self.conn, root, id)?.ok_or_else(|| StoreError::ContainerNotFound { name: id.to_string() })
    }

    /// All live containers, oldest first.
    pub fn containers(&self) -> Result<Vec<Container>, StoreError> {
        self.conn
            .prepare_cached(&format!("SELECT {COLUMNS} FROM containers WHERE removed_ns IS NULL ORDER BY key"))
            .and_then(|mut s| s.query_map([], Container::from_row)?.collect())
            .during("list containers")
    }

    /// Removes a container's record and history: its rows go in one transaction, their layers are handed back to be
    /// deleted once unmounted ([`Store::delete_layer`]; the collector finds those that never are). While execs of it
    /// run it is only marked, and the last of them to end does the rest.
    pub fn remove_container(&self, key: ContainerKey) -> Result<RemovedContainer, StoreError> {
        let removed = self.write("remove container", |tx| remove(tx, &live(tx, key)?, "removed"))?;
        // Whoever still waits for it will find the container gone; if it stays, the collector takes it.
        for kind in LockOf::ALL {
            let _ = durable::remove_file(&self.container_lock_path(kind, key));
        }
        Ok(removed)
    }

    /// Records that the container's root file system itself now shows `generation` (which must exist).
    pub fn set_settled(&self, key: ContainerKey, generation: Generation) -> Result<(), StoreError> {
        self.write("set settled generation", |tx| {
            live(tx, key)?;
            super::generation::require(tx, key, generation)?;
            tx.prepare_cached("UPDATE containers SET settled = ? WHERE key = ?")
                .and_then(|mut s| s.execute(params![number(generation.0), key.0]))
                .during("set settled generation")?;
            Ok(())
        })
    }
}

fn find_in(conn: &Connection, root: &Path, id: &ContainerId) -> Result<Option<Container>, StoreError> {
    conn.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM containers WHERE removed_ns IS NULL AND id = ? AND root = ? ORDER BY key DESC LIMIT 1"
    ))
    .and_then(|mut s| s.query_row(params![id.as_str(), path_blob(root)], Container::from_row).optional())
    .during("find container")
}

/// The container with this key, removed or not.
pub(super) fn by_key(conn: &Connection, key: ContainerKey) -> Result<Container, StoreError> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM containers WHERE key = ?"))
        .and_then(|mut s| s.query_row([key.0], Container::from_row).optional())
        .during("read container")?
        .ok_or(StoreError::ContainerRemoved { key })
}

/// The container with this key if it is not removed.
pub(super) fn live(conn: &Connection, key: ContainerKey) -> Result<Container, StoreError> {
    let container = by_key(conn, key)?;
    if container.removed_ns.is_some() { Err(StoreError::ContainerRemoved { key }) } else { Ok(container) }
}

fn remove(tx: &Connection, container: &Container, reason: &str) -> Result<RemovedContainer, StoreError> {
    const OP: &str = "remove container";
    let key = container.key;
    let now = super::now_ns();
    let running = running(tx, key)?;
    tx.prepare_cached("UPDATE containers SET removed_ns = ? WHERE key = ?")
        .and_then(|mut s| s.execute([now, key.0]))
        .during(OP)?;
    let payload = json!({"head": container.head, "reason": reason, "running": running});
    append(tx, now, Some((key, &container.id)), "container-removed", &payload)?;
    let released = if running == 0 { purge(tx, key)? } else { Vec::new() };
    Ok(RemovedContainer { released, running })
}

/// How many execs of a container have no end on record.
pub(super) fn running(tx: &Connection, key: ContainerKey) -> Result<u64, StoreError> {
    tx.prepare_cached("SELECT count(*) FROM execs WHERE container = ? AND disposition IS NULL")
        .and_then(|mut s| s.query_row([key.0], |row| row.get::<_, i64>(0)))
        .map(|n| n as u64)
        .during("count running execs")
}

/// Deletes all rows of a container without running execs and says which layers they named.
pub(super) fn purge(tx: &Connection, key: ContainerKey) -> Result<Vec<Released>, StoreError> {
    const OP: &str = "remove container";
    let layers: Vec<String> = tx
        .prepare_cached(
            "SELECT layer FROM generations WHERE container = ?1
             UNION SELECT layer FROM squashes WHERE container = ?1
             UNION SELECT layer FROM cow_mounts WHERE container = ?1
             UNION SELECT layer FROM retired WHERE container = ?1
             UNION SELECT layer FROM execs WHERE container = ?1 AND layer IS NOT NULL",
        )
        .and_then(|mut s| s.query_map([key.0], |row| row.get(0))?.collect())
        .during(OP)?;
    for sql in [
        "DELETE FROM generations WHERE container = ?",
        "DELETE FROM squashes WHERE container = ?",
        "DELETE FROM execs WHERE container = ?",
        "DELETE FROM cow_mounts WHERE container = ?",
        "DELETE FROM retired WHERE container = ?",
        "DELETE FROM applied WHERE container = ?",
        "DELETE FROM containers WHERE key = ?",
    ] {
        tx.prepare_cached(sql).and_then(|mut s| s.execute([key.0])).during(OP)?;
    }
    released(layers)
}
