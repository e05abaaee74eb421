//! What can go wrong with the store, and what a person can do about it.

use std::io;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::audit::AuditError;
use crate::error::{Classify, Kind};
use crate::id::{ExecId, Generation};

use super::{ContainerKey, Dropping};
use crate::terms::{Bound, Disposition};

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file operation of the store failed.
    #[error("store: {op} {}: {source}", path.display())]
    Io {
        /// The operation.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The store lies on a file system on which overlayfs can't keep its upper directories.
    #[error(
        "the store {} is on {filesystem}, which cannot hold overlay layers: choose a directory on a local disk file \
         system (ext4, xfs, btrfs) with --store or AGENTSBX_STORE", path.display()
    )]
    Filesystem {
        /// The store's root.
        path: PathBuf,
        /// The file system's name.
        filesystem: &'static str,
    },
    /// The store's root belongs to somebody else or is open to others.
    #[error(
        "the store {} is not private: owner {owner}, mode {mode:04o}; it must belong to the caller with mode 0700: \
         chown or chmod it, or choose another directory with --store or AGENTSBX_STORE", path.display()
    )]
    NotPrivate {
        /// The store's root.
        path: PathBuf,
        /// Its owner's uid.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// A newer program wrote the store.
    #[error(
        "the store's database {} has format {found}; this agentsbx knows formats up to {known}: use the newer agentsbx",
        path.display()
    )]
    NewerFormat {
        /// The database.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format known here.
        known: i64,
    },
    /// SQLite can't keep a write-ahead log there, say because the file system has no shared memory maps.
    #[error("{}: no write-ahead log on this file system (journal mode {mode}): choose another with --store", path.display())]
    NoWal {
        /// The database.
        path: PathBuf,
        /// The journal mode that it has instead.
        mode: String,
    },
    /// There is a database in the store's place that is not ours.
    #[error("{} is a database of another application: choose another directory with --store", path.display())]
    NotOurs {
        /// The database.
        path: PathBuf,
    },
    /// The database is empty or was not there, and yet the store has layers.
    #[error(
        "the database {} is empty or was lost, but the store has layers: put db.sqlite and db.sqlite-wal back, or move \
         the store away", path.display()
    )]
    Emptied {
        /// The database.
        path: PathBuf,
    },
    /// There is no store where one was looked for; only making a container makes one.
    #[error(
        "there is no store at {}: no container was made with it yet; if one was, it was with another --store, \
         AGENTSBX_STORE or configuration", path.display()
    )]
    NoStore {
        /// The store's root.
        path: PathBuf,
    },
    /// What is to be deleted can't be told from a database that is damaged.
    #[error("the store's database is damaged ({what}), so nothing is deleted: see `agentsbx fsck`")]
    Damaged {
        /// The first damage.
        what: String,
    },
    /// The database refused an operation; [`Classify::kind`] tells full, read-only, damaged and the rest apart.
    #[error("store database: {op}: {}{}", source, hint(source))]
    Database {
        /// The operation.
        op: &'static str,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// As above, while the store was being opened.
    #[error("the store's database {}: {op}: {}{}", path.display(), source, hint(source))]
    Open {
        /// The database.
        path: PathBuf,
        /// The operation.
        op: &'static str,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The event log is damaged.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// There is no such container, live, in the store.
    #[error(
        "container {name:?} not found: it takes an id, or the start of one, as `agentsbx log` lists them; a name is the \
         engine's own, whose list has the id beside it (docker ps, podman ps, nerdctl ps, crictl ps; ctr has ids alone)"
    )]
    ContainerNotFound {
        /// The id or prefix asked for.
        name: String,
    },
    /// A prefix fits several containers.
    #[error("container {prefix:?} is ambiguous: {}", matches.join(", "))]
    ContainerAmbiguous {
        /// The prefix.
        prefix: String,
        /// Ids that it fits, at most 10.
        matches: Vec<String>,
    },
    /// The container was removed meanwhile (or its key was never given out).
    #[error("container was removed (key {})", key.0)]
    ContainerRemoved {
        /// Its key.
        key: ContainerKey,
    },
    /// There is no such exec of this container.
    #[error("exec {name:?} not found")]
    ExecNotFound {
        /// The id, prefix or engine's id asked for.
        name: String,
    },
    /// A prefix fits several execs of the container.
    #[error("exec {prefix:?} is ambiguous: {}", matches.join(", "))]
    ExecAmbiguous {
        /// The prefix.
        prefix: String,
        /// Ids that it fits, at most 10.
        matches: Vec<String>,
    },
    /// The exec has ended already.
    #[error("exec {exec} has ended already: {disposition}")]
    ExecEnded {
        /// The exec.
        exec: ExecId,
        /// How it ended.
        disposition: Disposition,
    },
    /// The exec is not one whose layer is held.
    #[error("exec {exec} has no held layer: it is {}", disposition.map_or("still running", Disposition::as_str))]
    NotHeld {
        /// The exec.
        exec: ExecId,
        /// What it is instead; `None` while it runs.
        disposition: Option<Disposition>,
    },
    /// The exec's layer was committed, and was dropped since to keep the container's history within bounds.
    #[error(
        "exec {exec} has no held layer: it was committed as generation {}, which was dropped {dropping}",
        dropping.generation
    )]
    LayerDropped {
        /// The exec.
        exec: ExecId,
        /// How it was dropped.
        dropping: Dropping,
    },
    /// The exec ran without a layer of its own, so there is none to commit or hold.
    #[error("exec {exec} has no layer of its own")]
    NoLayer {
        /// The exec.
        exec: ExecId,
    },
    /// The container has no such generation.
    #[error("generation {generation} not found")]
    GenerationNotFound {
        /// Its number.
        generation: Generation,
    },
    /// The generation was dropped to keep the container's history within bounds.
    #[error("generation {generation} was dropped to keep the history within bounds ({})", bound(*why))]
    GenerationDropped {
        /// Its number.
        generation: Generation,
        /// By which bound; none where that is not on record any more.
        why: Option<Bound>,
    },
    /// `@-N` is a generation that was dropped.
    #[error(
        "@-{back} was dropped to keep the history within bounds (retention in the configuration): what is left below \
         generation {on} is {parent}"
    )]
    DroppedBack {
        /// N.
        back: u64,
        /// The generation it was merged into.
        on: Generation,
        /// What that lies on now.
        parent: Generation,
    },
    /// `@-N` reaches behind generation 0.
    #[error("@-{back} reaches behind generation 0: HEAD has {} below it", crate::terms::count(*depth, "generation"))]
    TooFarBack {
        /// N.
        back: u64,
        /// How far one can go back.
        depth: u64,
    },
    /// HEAD is not what the committer expected; nothing was written.
    #[error("HEAD moved from {expected} to {head} meanwhile")]
    HeadMoved {
        /// What was expected.
        expected: Generation,
        /// What it is.
        head: Generation,
    },
    /// Something is larger than the format allows.
    #[error("{what} of {size} bytes is too large: at most {limit}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A kind of event that is not `[a-z-]{1,32}`, or a payload that is no JSON object.
    #[error("not an event: kind {kind:?}")]
    BadEvent {
        /// The kind given.
        kind: String,
    },
}

fn bound(why: Option<Bound>) -> String {
    why.map_or_else(
        || "retention in the configuration".to_owned(),
        |why| format!("retention.{why} in the configuration"),
    )
}

fn hint(err: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode as Code;
    match err.sqlite_error_code() {
        Some(Code::DiskFull) => " (no space left for the store: `agentsbx gc` frees what nothing needs)",
        Some(Code::ReadOnly | Code::PermissionDenied) => " (the store must be writable; --store chooses another)",
        Some(Code::DatabaseCorrupt | Code::NotADatabase) => {
            " (db.sqlite in the store is damaged: restore it, or move it away)"
        }
        Some(Code::CannotOpen | Code::SystemIoFailure) => {
            " (see what is at db.sqlite in the store, and what its disk says)"
        }
        Some(Code::DatabaseBusy | Code::DatabaseLocked) => " (another process held the store for too long)",
        _ => "",
    }
}

impl Classify for StoreError {
    fn kind(&self) -> Kind {
        use StoreError as E;
        use rusqlite::ErrorCode as Code;
        match self {
            E::Io { source, .. } => Kind::of_io(source),
            E::Filesystem { .. } | E::NewerFormat { .. } | E::NoWal { .. } => Kind::Unsupported,
            E::NotPrivate { .. } => Kind::Denied,
            E::NotOurs { .. } => Kind::InvalidInput,
            // A row that holds what we can't have written.
            E::Database { source: rusqlite::Error::FromSqlConversionFailure(..), .. }
            | E::Database { source: rusqlite::Error::InvalidColumnType(..), .. } => Kind::Corrupt,
            E::Database { source, .. } | E::Open { source, .. } => match source.sqlite_error_code() {
                Some(Code::DiskFull | Code::OutOfMemory) => Kind::Exhausted,
                Some(Code::ReadOnly | Code::PermissionDenied) => Kind::Denied,
                Some(Code::DatabaseCorrupt | Code::NotADatabase) => Kind::Corrupt,
                Some(Code::DatabaseBusy | Code::DatabaseLocked) => Kind::WrongState,
                _ => Kind::System,
            },
            E::Audit(_) | E::Emptied { .. } | E::Damaged { .. } => Kind::Corrupt,
            E::NoStore { .. }
            | E::ContainerNotFound { .. }
            | E::ContainerRemoved { .. }
            | E::ExecNotFound { .. }
            | E::GenerationNotFound { .. }
            | E::GenerationDropped { .. }
            | E::DroppedBack { .. }
            | E::TooFarBack { .. } => Kind::NotFound,
            E::ContainerAmbiguous { .. } | E::ExecAmbiguous { .. } | E::TooLarge { .. } | E::BadEvent { .. } => {
                Kind::InvalidInput
            }
            E::ExecEnded { .. } | E::NotHeld { .. } | E::LayerDropped { .. } | E::NoLayer { .. } => Kind::WrongState,
            E::HeadMoved { .. } => Kind::Conflict,
        }
    }
}

impl StoreError {
    /// Whether it came of a file system that can't be written.
    pub fn is_read_only(&self) -> bool {
        match self {
            StoreError::Io { source, .. } => source.raw_os_error() == Some(libc::EROFS),
            StoreError::Database { source, .. } | StoreError::Open { source, .. } => {
                source.sqlite_error_code() == Some(rusqlite::ErrorCode::ReadOnly)
            }
            _ => false,
        }
    }

    /// The same with the database's path, where it is about the database.
    pub(super) fn of_database(self, path: &std::path::Path) -> StoreError {
        match self {
            StoreError::Database { op, source } => StoreError::Open { path: path.to_owned(), op, source },
            other => other,
        }
    }
}

/// Names the operation and the path of an I/O error.
pub(super) trait IoContext<T> {
    fn at(self, op: &'static str, path: &std::path::Path) -> Result<T, StoreError>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn at(self, op: &'static str, path: &std::path::Path) -> Result<T, StoreError> {
        self.map_err(|e| StoreError::Io { op, path: path.to_owned(), source: e.into() })
    }
}

/// SQLite says "unable to open database file" where a process has no descriptors left.
fn out_of_descriptors(err: &rusqlite::Error) -> Option<io::Error> {
    if err.sqlite_error_code() != Some(rusqlite::ErrorCode::CannotOpen) {
        return None;
    }
    // As many as SQLite has open at once: the database, its log, the log's index.
    let open = || rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let probe: Result<Vec<_>, Errno> = (0..3).map(|_| open()).collect();
    probe.err().filter(|e| [Errno::MFILE, Errno::NFILE].contains(e)).map(Into::into)
}

/// Names the operation of a database error.
pub(super) trait DbContext<T> {
    fn during(self, op: &'static str) -> Result<T, StoreError>;
}

impl<T> DbContext<T> for rusqlite::Result<T> {
    fn during(self, op: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| match out_of_descriptors(&source) {
            Some(cause) => StoreError::Io { op, path: "db.sqlite".into(), source: cause },
            None => StoreError::Database { op, source },
        })
    }
}
