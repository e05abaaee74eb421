//! Layers as directories: staged before their row, kept with it, deleted after it.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::durable::{self, flock, is_at};
use crate::id::LayerId;

use super::error::IoContext;
use super::{Store, StoreError, trash};

/// The longest file beside a layer's trees that is read back, in bytes.
const MAX_BESIDE: u64 = 256 << 20;
/// The empty file beside a layer's trees of [`Store::mark_refreshed`].
const REFRESHED: &str = "refreshed";

/// A new layer without a row. Dropping it removes its directory; [`StagedLayer::keep`] leaves it.
///
/// It holds a lock on its directory, by which the collector knows that it is no garbage.
#[derive(Debug)]
#[must_use = "dropping a staged layer removes it"]
pub struct StagedLayer {
    id: LayerId,
    dir: PathBuf,
    trash: PathBuf,
    kept: bool,
    lock: OwnedFd,
}

impl StagedLayer {
    /// The layer's id.
    pub fn id(&self) -> LayerId {
        self.id
    }

    /// Its `upper` directory.
    pub fn upper(&self) -> PathBuf {
        self.dir.join("upper")
    }

    /// Its `work` directory.
    pub fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// The work directory of the layer's `n`th further overlay (0700, empty, made by this call).
    pub fn make_work_of(&self, n: usize) -> Result<PathBuf, StoreError> {
        make_work(&self.dir, n)
    }

    /// Leaves the layer where it is: to be called when a row names it.
    pub fn keep(mut self) -> LayerId {
        self.kept = true;
        self.id
    }
}

impl AsFd for StagedLayer {
    /// The directory, locked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

impl Drop for StagedLayer {
    fn drop(&mut self) {
        if !self.kept {
            // What can't be removed here (say, because it is still mounted) is garbage for the collector.
            let _ = trash::discard(&self.dir, &self.trash, &self.id.to_string());
        }
    }
}

/// A layer that no row names any more, by the transaction that took the last one away. Its data is still there.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the layer's data is still there: give it to Store::delete_layer"]
pub struct Released(pub(super) LayerId);

impl Released {
    /// The layer's id.
    pub fn id(&self) -> LayerId {
        self.0
    }
}

/// Layer ids from a query.
pub(super) fn released(ids: Vec<String>) -> Result<Vec<Released>, StoreError> {
    ids.into_iter()
        .map(|id| {
            id.parse().map(Released).map_err(|e: crate::id::IdError| StoreError::Database {
                op: "read layer",
                source: rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(e)),
            })
        })
        .collect()
}

impl Store {
    /// Makes the directories of a new layer: `upper` (0755) and `work` (0700), both empty.
    pub fn create_layer(&self) -> Result<StagedLayer, StoreError> {
        // Twice only if the collector sees the directory before we lock it.
        loop {
            let id = LayerId::new();
            let dir = self.layer_dir(&id);
            durable::make_dir(&dir, 0o700).at("mkdir", &dir)?;
            let lock = match open_dir(&dir) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => {
                    // What is not removed here is garbage for the collector.
                    let _ = rustix::fs::rmdir(&dir);
                    return Err(e).at("open", &dir);
                }
                Ok(lock) => lock,
            };
            let free = match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => false,
                other => other.map(|()| true).at("flock", &dir)?,
            };
            if !free || !is_at(&lock, &dir).at("stat", &dir)? {
                continue;
            }
            let staged = StagedLayer { id, trash: self.trash_dir(), kept: false, lock, dir };
            for (path, mode) in [(staged.upper(), 0o755), (staged.work(), 0o700)] {
                durable::make_dir(&path, mode).at("mkdir", &path)?;
            }
            return Ok(staged);
        }
    }

    /// The directory that all layers are in. With it as working directory, `LAYERID/upper` names a layer in 32 bytes.
    pub fn layers_dir(&self) -> &Path {
        &self.layers
    }

    /// A layer's own directory.
    pub fn layer_dir(&self, layer: &LayerId) -> PathBuf {
        self.layers.join(layer.to_string())
    }

    /// A layer's `upper` directory.
    pub fn upper(&self, layer: &LayerId) -> PathBuf {
        self.layer_dir(layer).join("upper")
    }

    /// A layer's `work` directory.
    pub fn work(&self, layer: &LayerId) -> PathBuf {
        self.layer_dir(layer).join("work")
    }

    /// Makes the work directory of the layer's `n`th further overlay: a copy-on-write mount is an overlay of its own.
    pub fn make_work_of(&self, layer: &LayerId, n: usize) -> Result<PathBuf, StoreError> {
        make_work(&self.layer_dir(layer), n)
    }

    /// Writes the list of paths that a layer touches, whole or not at all. Opaque to the store. Like the layer itself
    /// it is not synced: after a power loss it may be missing or empty, and can be had again by walking the layer.
    pub fn write_touched(&self, layer: &LayerId, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.layer_dir(layer).join("touched");
        durable::replace_unsynced(&path, bytes, 0o600).at("write", &path)
    }

    /// Writes what the host had where a layer touches copy-on-write mounts, whole or not at all. Opaque to the store, and
    /// not synced; it can't be had again.
    pub fn write_base(&self, layer: &LayerId, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.layer_dir(layer).join("base");
        durable::replace_unsynced(&path, bytes, 0o600).at("write", &path)
    }

    /// Notes that a layer without a generation is about to be changed to follow a HEAD: a commit that comes to nothing, or
    /// is killed, leaves it so.
    pub fn mark_refreshed(&self, layer: &LayerId) -> Result<(), StoreError> {
        let path = self.layer_dir(layer).join(REFRESHED);
        durable::replace_unsynced(&path, b"", 0o600).at("write", &path)
    }

    /// Whether [`Store::mark_refreshed`] was called.
    pub fn is_refreshed(&self, layer: &LayerId) -> bool {
        self.layer_dir(layer).join(REFRESHED).symlink_metadata().is_ok()
    }

    /// What [`Store::write_base`] wrote; `None` if nothing was written. Fails if it is longer than 256 MiB.
    pub fn read_base(&self, layer: &LayerId) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_beside(layer, "base", "state of the host")
    }

    /// The list of paths that a layer touches; `None` if none was written. Fails if it is longer than 256 MiB.
    pub fn read_touched(&self, layer: &LayerId) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_beside(layer, "touched", "list of touched paths")
    }

    fn read_beside(&self, layer: &LayerId, name: &str, what: &'static str) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.layer_dir(layer).join(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&path, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            other => std::fs::File::from(other.at("open", &path)?),
        };
        let mut bytes = Vec::new();
        file.take(MAX_BESIDE + 1).read_to_end(&mut bytes).at("read", &path)?;
        if bytes.len() as u64 > MAX_BESIDE {
            return Err(StoreError::TooLarge { what, size: bytes.len() as u64, limit: MAX_BESIDE });
        }
        Ok(Some(bytes))
    }

    /// Deletes the data of a layer that no row names. It must not be mounted any more. Never leaves the file system
    /// that the store is on: something mounted inside makes it fail with `EXDEV` or `EBUSY`; the rest stays in the
    /// trash for the collector.
    pub fn delete_layer(&self, released: Released) -> Result<(), StoreError> {
        let dir = self.layer_dir(&released.0);
        trash::discard(&dir, &self.trash_dir(), &released.0.to_string()).at("delete layer", &dir)
    }
}

fn make_work(layer: &Path, n: usize) -> Result<PathBuf, StoreError> {
    let path = layer.join(format!("work-{n}"));
    durable::make_dir(&path, 0o700).at("mkdir", &path)?;
    Ok(path)
}

pub(super) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}
