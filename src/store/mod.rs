//! What persists: containers, their generations, execs, layers and the event log.
//!
//! Metadata is in SQLite, file trees in `layers/`; docs/on-disk-format.md has the layout and the invariants. The store
//! never mounts and never walks a layer (deleting one in `trash/` apart). Many short-lived processes use it at once:
//! each opens a [`Store`] of its own. Create = data, then row; delete = row, then data.
//!
//! Times are nanoseconds since 1970 UTC, sizes bytes.

mod check;
mod container;
mod cow;
mod dropping;
mod error;
mod event;
mod exec;
mod finish;
pub mod gc;
mod generation;
mod layer;
mod lock;
mod look;
mod retention;
mod room;
mod schema;
#[cfg(test)]
mod tests;
mod trash;

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::MAIN_DB;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use rustix::fs::{Mode, OFlags};

use crate::durable::{self, fault};
use crate::id::Generation;

pub use check::Finding;
pub use container::{Container, ContainerKey, NewContainer, RemovedContainer};
pub use cow::CowMount;
pub use dropping::{Dropping, Told};
pub use error::StoreError;
pub use event::{EventLines, LogEntry};
pub use exec::{Begun, ExecRecord, NewExec};
pub use finish::{Ending, Finished, Outcome};
pub use generation::{CommitInfo, GenerationRow, Lower, Rollback, Squash};
pub use layer::{Released, StagedLayer};
pub use lock::{Abandoned, CommitLock, DropLock, ExecLock, LockOf, ReadLock, RetentionLock};
pub use look::Leftovers;
pub use retention::{Dropped, Fold, MAX_FOLDS, Replaced, RetentionPlan, Stale};

use error::{DbContext, IoContext};

/// The longest JSON text of an exec's result, in bytes.
pub const MAX_RESULT: usize = 1 << 20;
/// The longest JSON text of an exec's end, usage or summary, and of its arguments, in bytes.
pub const MAX_FIELD: usize = 64 << 10;
/// How many exec rows that kept no layer are kept for one container; and of those whose generation was dropped as many.
pub const MAX_LIGHT_ROWS: u64 = 1000;

/// The database's name in the store's root, and those of its log and of the log's index.
const DATABASE: &str = "db.sqlite";
const LOG: &str = "db.sqlite-wal";
const INDEX: &str = "db.sqlite-shm";
/// Size of the write-ahead log, bytes, from which on it is moved into the database when the store is closed. An exec writes
/// some 40 KiB. The next process reads all that is there (some 2 µs a page), moving it syncs (a millisecond or more).
///
/// SQLite's own rule would do it in the middle of an exec; and as what was moved already is forgotten with the last process,
/// the log would be read, and moved, again by the next. It still has its way from 1000 pages on, for when others always
/// have the store open.
const LOG_SIZE: u64 = 512 << 10;
/// How long a writer waits for the others.
const BUSY_LIMIT: Duration = Duration::from_secs(30);

/// An open store. Use one per thread; opening one takes well under a millisecond.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    layers: PathBuf,
    conn: Connection,
    /// See [`room::is_fragile`].
    fragile: bool,
    keep_events: u64,
}

/// The time now, in nanoseconds since 1970 UTC.
pub fn now_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

impl Store {
    /// Whether the store at `root` can be opened, as far as that is seen without reading its database: for those who do not
    /// need it yet. Makes what is missing.
    ///
    /// # Errors
    /// As [`Store::open`], but for a database that is damaged behind its header.
    pub fn prepare(root: &Path) -> Result<(), StoreError> {
        let path = root.join(DATABASE);
        let mut header = [0; schema::HEADER];
        // Without waiting for who would write to a pipe of that name.
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let read = opened.and_then(|mut file| file.read_exact(&mut header));
        if read.is_err() || !schema::is_current(&header) {
            // Not there yet, or not as it should be.
            return Store::open(root).map(drop);
        }
        check_root(root, &open_root(root)?).map(drop)
    }

    /// Opens the store at `root` if there is one, as [`Store::open`] does.
    pub fn open_existing(root: &Path) -> Result<Store, StoreError> {
        require_there(root)?;
        Store::open(root)
    }

    /// Opens the store at `root`, making what is missing (with its parents) and migrating an older format.
    ///
    /// Fails if the file system can't hold overlay layers, the directory is open to others, or the format is newer.
    pub fn open(root: &Path) -> Result<Store, StoreError> {
        Store::open_for(root, room::For::Work)
    }

    /// Opens the store at `root`, if there is one, for who is about to free space: on a full file system the last reserve is
    /// given up for it.
    pub fn open_to_free(root: &Path) -> Result<Store, StoreError> {
        require_there(root)?;
        Store::open_for(root, room::For::Freeing)
    }

    fn open_for(root: &Path, who: room::For) -> Result<Store, StoreError> {
        let dir = open_root(root)?;
        let fs = check_root(root, &dir)?;
        for name in ["layers", "trash", "locks"] {
            match rustix::fs::mkdirat(&dir, name, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(e).at("mkdir", &root.join(name)),
            }
        }
        room::require(dir.as_fd(), &fs, who).at("write to", root)?;
        let path = root.join(DATABASE);
        let conn = connect(&path).map_err(|err| err.of_database(&path))?;
        Ok(Store {
            root: root.to_owned(),
            layers: root.join("layers"),
            conn,
            fragile: room::is_fragile(&fs),
            keep_events: 0,
        })
    }

    /// The same store with a bound for its event log: about so many events are kept; all, as at first, with 0.
    pub fn keeping_events(mut self, keep_events: u64) -> Store {
        self.keep_events = keep_events;
        self
    }

    /// The store's root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Moves the write-ahead log into the database and empties it, if it is long and nobody else uses the store. Done when
    /// the store is closed; to be called besides where nobody waits (while a command runs for long).
    pub fn maintain(&self) -> Result<(), StoreError> {
        const OP: &str = "empty the write-ahead log";
        // Who only looks must not write.
        if self.conn.is_readonly(MAIN_DB).during(OP)?
            || !std::fs::metadata(self.root.join(LOG)).is_ok_and(|meta| meta.len() >= LOG_SIZE)
        {
            return Ok(());
        }
        // Those who are in the way do it themselves, at their end.
        PATIENT.set(false);
        let emptied = self.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        PATIENT.set(true);
        match emptied {
            Err(err) if schema::is_busy(&err) => Ok(()),
            other => other.during(OP),
        }
    }

    /// Closes the store for a process that is about to end: what the kernel takes back by itself is left to it.
    pub fn leave(self) {
        // A log that stays is only longer to read.
        let _ = self.maintain();
        std::mem::forget(self);
    }

    /// One transaction that may write. It is committed if `f` returns `Ok`, else rolled back.
    fn write<T>(
        &self,
        op: &'static str,
        f: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.require_room()?;
        let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate).during(op)?;
        let value = f(&tx)?;
        // The row written last is mostly the event: by its number, as any other would do.
        if matches!(tx.last_insert_rowid(), row if row != 0 && row % event::PRUNE_EVERY == 0) {
            event::prune(&tx, self.keep_events)?;
        }
        fault::step("commit").at(op, &self.root)?;
        tx.commit().during(op)?;
        Ok(value)
    }

    /// One transaction that reads one state of the database.
    fn read<T>(&self, op: &'static str, f: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Deferred).during(op)?;
        f(&tx)
    }

    fn locks_dir(&self) -> PathBuf {
        self.root.join("locks")
    }

    fn trash_dir(&self) -> PathBuf {
        self.root.join("trash")
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // A log that stays is only longer to read.
        let _ = self.maintain();
    }
}

/// The database, with what is missing in it made, ready for use.
fn connect(path: &Path) -> Result<Connection, StoreError> {
    let mut conn = open_database(path)?;
    conn.set_prepared_statement_cache_capacity(64);
    conn.busy_handler(Some(wait_for_others)).during("set the busy handler")?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).during("configure")?;
    schema::migrate(&conn, path, schema::MIGRATIONS)?;
    conn.execute_batch("PRAGMA synchronous=NORMAL").during("configure")?;
    Ok(conn)
}

fn open_database(path: &Path) -> Result<Connection, StoreError> {
    open_database_by(path, || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Connection::open_with_flags(path, flags)
    })
}

/// As [`open_database`], with the call that opens the file given: SQLite tries again for reading only where writing fails,
/// for whatever reason. A database that another process made between the two attempts is then open for reading only, so
/// one that may not be written is opened once more before that is believed.
fn open_database_by(path: &Path, open: impl Fn() -> rusqlite::Result<Connection>) -> Result<Connection, StoreError> {
    match open() {
        Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::CannotOpen) => create_database(path)?,
        Ok(conn) if conn.is_readonly(MAIN_DB).during("open")? => drop(conn),
        other => return other.during("open"),
    }
    open().during("open")
}

/// Makes the file of a database that is not there.
fn create_database(path: &Path) -> Result<(), StoreError> {
    if schema::has_layers(path) && path.symlink_metadata().is_err() {
        return Err(StoreError::Emptied { path: path.to_owned() });
    }
    // SQLite would make it 0644, and gives its other files the mode of this one.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let database = rustix::fs::open(path, flags, mode).at("create", path)?;
    if room::is_fragile(&rustix::fs::fstatfs(&database).at("statfs", path)?) {
        // Written in place, so that a page that was written once can be written again when the disk is full. Where that
        // can't be had, it is so.
        for name in [DATABASE, LOG, INDEX] {
            if let Ok(file) = rustix::fs::open(path.with_file_name(name), flags, mode) {
                let _ = rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::NOCOW);
            }
        }
    }
    Ok(())
}

thread_local! {
    /// Whether this thread waits for others that use the database.
    static PATIENT: Cell<bool> = const { Cell::new(true) };
}

/// SQLite's own handler sleeps up to 100 ms at a time; our transactions take about 0.1 ms, so short steps.
fn wait_for_others(attempt: i32) -> bool {
    if !PATIENT.get() {
        return false;
    }
    let micros = (50u64 << attempt.clamp(0, 5)).min(2000);
    std::thread::sleep(Duration::from_micros(micros));
    (attempt as u64) * 1600 < BUSY_LIMIT.as_micros() as u64
}

fn open_root_if_there(root: &Path) -> Result<Option<rustix::fd::OwnedFd>, StoreError> {
    match rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => Ok(None),
        other => other.map(Some).at("open", root),
    }
}

/// What a directory without a database is: no store, or, which is worse, one whose database is gone.
fn without_database(root: &Path) -> StoreError {
    let path = root.join(DATABASE);
    if schema::has_layers(&path) { StoreError::Emptied { path } } else { StoreError::NoStore { path: root.to_owned() } }
}

/// Fails where there is no database.
fn require_there(root: &Path) -> Result<(), StoreError> {
    let path = root.join(DATABASE);
    match rustix::fs::stat(&path) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Err(without_database(root)),
        // What else is wrong with it shows when it is opened.
        _ => Ok(()),
    }
}

fn open_root(root: &Path) -> Result<rustix::fd::OwnedFd, StoreError> {
    if let Some(dir) = open_root_if_there(root)? {
        return Ok(dir);
    }
    if let Some(parent) = root.parent() {
        std::fs::create_dir_all(parent).at("mkdir", parent)?;
    }
    match durable::make_dir(root, 0o700) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e).at("mkdir", root),
        _ => {}
    }
    open_root_if_there(root)?.ok_or_else(|| StoreError::NoStore { path: root.to_owned() })
}

/// File systems that overlayfs refuses as upper, or on which SQLite's locks and shared memory can't be relied on.
const UNSUITABLE: &[(u64, &str)] = &[
    (0x794c_7630, "overlayfs"),
    (0x6969, "NFS"),
    (0x6573_5546, "FUSE"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x4d44, "FAT"),
    (0x2011_bab0, "exFAT"),
    (0x5346_544e, "NTFS"),
    (0xf15f, "eCryptfs"),
    (0x7371_7368, "squashfs"),
    (0xe0f5_e1e2, "EROFS"),
    (0x9660, "ISO 9660"),
    (0x8584_58f6, "ramfs"),
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
];

fn unsuitable(magic: u64) -> Option<&'static str> {
    UNSUITABLE.iter().find(|(m, _)| *m == magic).map(|(_, name)| *name)
}

fn check_root(root: &Path, dir: &rustix::fd::OwnedFd) -> Result<rustix::fs::StatFs, StoreError> {
    let fs = rustix::fs::fstatfs(dir).at("statfs", root)?;
    if let Some(filesystem) = unsuitable(fs.f_type as u64 & 0xffff_ffff) {
        return Err(StoreError::Filesystem { path: root.to_owned(), filesystem });
    }
    let stat = rustix::fs::fstat(dir).at("stat", root)?;
    let mode = stat.st_mode & 0o7777;
    if stat.st_uid != rustix::process::geteuid().as_raw() || mode & 0o077 != 0 {
        return Err(StoreError::NotPrivate { path: root.to_owned(), owner: stat.st_uid, mode });
    }
    Ok(fs)
}

/// A path as the blob that the database holds.
fn path_blob(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

/// A path from the blob that the database holds.
fn blob_path(blob: Vec<u8>) -> PathBuf {
    PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(blob))
}

/// A column's text, parsed; text that can't be parsed is a damaged row.
fn parsed<T>(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    row.get_ref(column)?
        .as_str()?
        .parse()
        .map_err(|e| rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(e)))
}

/// Like [`parsed`] for a column that may be null.
fn parsed_opt<T>(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Option<T>>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    if row.get_ref(column)? == rusqlite::types::ValueRef::Null { Ok(None) } else { parsed(row, column).map(Some) }
}

/// A generation's number from its column.
fn generation(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Generation> {
    Ok(Generation(row.get::<_, i64>(column)? as u64))
}

/// A number for a column: SQLite's integers are signed.
fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
