//! Copy-on-write mounts of a container: where each is, the host's directory that it shows, and the layer that takes what
//! the first process writes there.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use crate::id::{Generation, LayerId};

use super::container::live;
use super::error::DbContext;
use super::event::append;
use super::{ContainerKey, Store, StoreError, blob_path, number, parsed, path_blob};

/// One copy-on-write mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CowMount {
    /// Where it is, absolute inside the container, no symbolic link on the way.
    pub destination: PathBuf,
    /// The host's directory, canonical. Never written but by `apply`.
    pub source: PathBuf,
    /// Device and inode of the source when the container was made: what has its path later may be another directory.
    pub identity: (u64, u64),
    /// `MOUNT_ATTR_*` flags (mount_setattr(2)) of the mount.
    pub flags: u64,
    /// The layer whose `upper` takes the first process's writes.
    pub layer: LayerId,
}

impl Store {
    /// A container's copy-on-write mounts, by destination: what is above comes first.
    pub fn cow_mounts(&self, key: ContainerKey) -> Result<Vec<CowMount>, StoreError> {
        self.conn
            .prepare_cached(
                "SELECT destination, source, device, inode, flags, layer FROM cow_mounts
                     WHERE container = ? ORDER BY destination",
            )
            .and_then(|mut s| {
                s.query_map([key.0], |row| {
                    Ok(CowMount {
                        destination: blob_path(row.get(0)?),
                        source: blob_path(row.get(1)?),
                        identity: (row.get::<_, i64>(2)? as u64, row.get::<_, i64>(3)? as u64),
                        flags: row.get::<_, i64>(4)? as u64,
                        layer: parsed(row, 5)?,
                    })
                })?
                .collect()
            })
            .during("list copy-on-write mounts")
    }

    /// Records that `apply` is about to bring `generation` to the host at `path`, one of the container's, and below; `/` is
    /// all of it. The event's seq. By its layers the host's state is known again later, so it is not dropped.
    pub fn append_applied(
        &self,
        key: ContainerKey,
        path: &Path,
        of: Generation,
        payload: &serde_json::Value,
    ) -> Result<u64, StoreError> {
        const OP: &str = "record what is applied";
        self.write(OP, |tx| {
            let container = live(tx, key)?;
            super::generation::require(tx, key, of)?;
            if path == Path::new("/") {
                tx.prepare_cached("DELETE FROM applied WHERE container = ?")
                    .and_then(|mut s| s.execute([key.0]))
                    .during(OP)?;
            }
            tx.prepare_cached("INSERT OR REPLACE INTO applied VALUES(?, ?, ?)")
                .and_then(|mut s| s.execute(params![key.0, path_blob(path), number(of.0)]))
                .during(OP)?;
            append(tx, super::now_ns(), Some((key, &container.id)), "apply", payload)
        })
    }
}

/// Records the mounts of a container that is being added.
pub(super) fn add(tx: &Connection, key: ContainerKey, mounts: &[CowMount]) -> Result<(), StoreError> {
    for mount in mounts {
        tx.prepare_cached(
            "INSERT INTO cow_mounts(container, destination, source, device, inode, flags, layer)
                 VALUES(?, ?, ?, ?, ?, ?, ?)",
        )
        .and_then(|mut s| {
            s.execute(params![
                key.0,
                path_blob(&mount.destination),
                path_blob(&mount.source),
                mount.identity.0 as i64,
                mount.identity.1 as i64,
                mount.flags as i64,
                mount.layer.to_string()
            ])
        })
        .during("add copy-on-write mount")?;
    }
    Ok(())
}
