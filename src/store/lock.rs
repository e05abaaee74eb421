//! Locks that say who lives: a supervisor's for its exec, and the one by which a container's HEAD is decided.

use std::path::PathBuf;
use std::time::Duration;

use crate::durable::LockFile;
use crate::id::ExecId;

use super::error::IoContext;
use super::{ContainerKey, ExecRecord, Store, StoreError, exec};

/// Held by an exec's supervisor from before its row is made until after it has ended.
#[derive(Debug)]
#[must_use = "an exec that has not ended counts as abandoned when the lock is dropped"]
pub struct ExecLock {
    /// Taken out only at its end.
    lock: Option<LockFile>,
}

impl ExecLock {
    /// Takes the lock of a new exec. The descriptor is close-on-exec.
    pub fn create(store: &Store, exec: &ExecId) -> Result<ExecLock, StoreError> {
        let path = store.exec_lock_path(exec);
        Ok(ExecLock { lock: Some(LockFile::lock(&path).at("lock", &path)?) })
    }

    /// Removes the lock: to be called when the exec's end is recorded. Merely dropped, it is removed too, and a failure
    /// is not told.
    pub fn release(mut self) -> Result<(), StoreError> {
        let Some(lock) = self.lock.take() else { return Ok(()) };
        let path = lock.path().to_owned();
        lock.unlink().at("unlink", &path)
    }
}

impl Drop for ExecLock {
    fn drop(&mut self) {
        // A file that stays is for the collector.
        let _ = self.lock.take().map(LockFile::unlink);
    }
}

/// Held while a container's HEAD is being decided (conflict check and commit, rollback, settle), so that the database
/// need not be locked for that long.
#[derive(Debug)]
#[must_use = "the lock ends when it is dropped"]
pub struct CommitLock {
    _lock: LockFile,
}

/// Held by who reads a container's layers by what its rows say, while no running exec of his keeps them: nobody drops them.
#[derive(Debug)]
#[must_use = "the lock ends when it is dropped"]
pub struct ReadLock {
    _lock: LockFile,
}

/// Held while rows that name layers go: nobody reads these layers then.
#[derive(Debug)]
#[must_use = "the lock ends when it is dropped"]
pub struct DropLock {
    _commit: CommitLock,
    _readers: LockFile,
}

/// Held by who drops old generations of a container.
#[derive(Debug)]
#[must_use = "the lock ends when it is dropped"]
pub struct RetentionLock {
    _lock: LockFile,
}

/// A lock that each container has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOf {
    /// [`CommitLock`].
    Commit,
    /// [`ReadLock`].
    Layers,
    /// [`RetentionLock`].
    Retention,
}

impl LockOf {
    pub(super) const ALL: [LockOf; 3] = [LockOf::Commit, LockOf::Layers, LockOf::Retention];

    /// What the names of its files begin with.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            LockOf::Commit => "c-",
            LockOf::Layers => "h-",
            LockOf::Retention => "r-",
        }
    }
}

impl std::fmt::Display for LockOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LockOf::Commit => "commit",
            LockOf::Layers => "layers'",
            LockOf::Retention => "retention",
        })
    }
}

/// An exec whose supervisor was killed, claimed by us: nobody else recovers it while this is held.
#[derive(Debug)]
pub struct Abandoned {
    /// What is known of it.
    pub record: ExecRecord,
    lock: LockFile,
}

impl Abandoned {
    /// Removes the lock's file: to be called when the exec's end is recorded ([`Store::finish_exec`] with [`super::Ending::Abort`]). Merely dropped,
    /// the exec can be claimed again.
    pub fn recovered(self) -> Result<(), StoreError> {
        let path = self.lock.path().to_owned();
        self.lock.unlink().at("unlink", &path)
    }
}

impl Store {
    /// Takes a container's commit lock, waiting as long as it takes.
    pub fn commit_lock(&self, key: ContainerKey) -> Result<CommitLock, StoreError> {
        let path = self.container_lock_path(LockOf::Commit, key);
        Ok(CommitLock { _lock: LockFile::lock(&path).at("lock", &path)? })
    }

    /// Takes a container's commit lock, waiting for at most `timeout`; `None` if somebody had it all the time.
    pub fn commit_lock_for(&self, key: ContainerKey, timeout: Duration) -> Result<Option<CommitLock>, StoreError> {
        let path = self.container_lock_path(LockOf::Commit, key);
        Ok(LockFile::lock_for(&path, timeout).at("lock", &path)?.map(|lock| CommitLock { _lock: lock }))
    }

    /// Keeps a container's layers where they are for who reads them, waiting for who just drops some. None where no lock
    /// can be made: on a file system that can't be written nobody drops any.
    pub fn read_lock(&self, key: ContainerKey) -> Result<Option<ReadLock>, StoreError> {
        let path = self.container_lock_path(LockOf::Layers, key);
        match LockFile::share(&path) {
            Err(err) if err.raw_os_error() == Some(libc::EROFS) => Ok(None),
            other => Ok(Some(ReadLock { _lock: other.at("lock", &path)? })),
        }
    }

    /// Takes what is needed to drop layers, if nobody reads any. Waits only for who decides of HEAD.
    pub fn drop_lock(&self, key: ContainerKey) -> Result<Option<DropLock>, StoreError> {
        let commit = self.commit_lock(key)?;
        let path = self.container_lock_path(LockOf::Layers, key);
        let readers = LockFile::try_lock(&path).at("lock", &path)?;
        Ok(readers.map(|readers| DropLock { _commit: commit, _readers: readers }))
    }

    /// Claims the dropping of a container's old generations; `None` if somebody does it for all of `timeout`.
    pub fn retention_lock(&self, key: ContainerKey, timeout: Duration) -> Result<Option<RetentionLock>, StoreError> {
        let path = self.container_lock_path(LockOf::Retention, key);
        Ok(LockFile::lock_for(&path, timeout).at("lock", &path)?.map(|lock| RetentionLock { _lock: lock }))
    }

    /// The execs, of one container or of all, whose supervisors were killed, each claimed for the caller to recover:
    /// kill what is left in its cgroups, unmount, seal its layer, [`Store::finish_exec`] with [`super::Ending::Abort`], [`Abandoned::recovered`].
    ///
    /// Cheap where nothing runs. Those that another process is recovering are left out.
    pub fn abandoned(&self, key: Option<ContainerKey>) -> Result<Vec<Abandoned>, StoreError> {
        let mut found = Vec::new();
        for record in exec::running(&self.conn, key)? {
            let path = self.exec_lock_path(&record.id);
            let Some(lock) = LockFile::try_lock(&path).at("lock", &path)? else { continue };
            // It may have ended between the two look-ups, and its lock file then is one that we have just made.
            match exec::by_id(&self.conn, record.container, &record.id) {
                Ok(record) if record.disposition.is_none() => found.push(Abandoned { record, lock }),
                Ok(_) | Err(StoreError::ExecNotFound { .. }) => lock.unlink().at("unlink", &path)?,
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    pub(super) fn exec_lock_path(&self, exec: &ExecId) -> PathBuf {
        self.locks_dir().join(exec.to_string())
    }

    pub(super) fn container_lock_path(&self, kind: LockOf, key: ContainerKey) -> PathBuf {
        self.locks_dir().join(format!("{}{}", kind.prefix(), key.0))
    }
}
