//! The database's format: its tables, and the steps from each version to the next.
//!
//! docs/on-disk-format.md explains the tables; a change here is a new step there, here, and in the tests.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::error::{DbContext, IoContext};
use super::{BUSY_LIMIT, StoreError};
use crate::durable::fault;

/// "asbx": marks a database as ours.
const APPLICATION_ID: i64 = 0x6173_6278;

/// Length of an SQLite database's header, bytes.
pub(super) const HEADER: usize = 100;

/// Whether a database whose file begins so is one of ours in the present format (sqlite.org/fileformat2.html, 1.3).
pub(super) fn is_current(header: &[u8; HEADER]) -> bool {
    let number =
        |at: usize| i64::from(u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]));
    header.starts_with(b"SQLite format 3\0") && number(60) == MIGRATIONS.len() as i64 && number(68) == APPLICATION_ID
}

/// Step N (from 0) takes format N to N + 1.
pub(super) const MIGRATIONS: &[&str] = &[V1, V2, V3, V4, V5];

const V1: &str = "
CREATE TABLE containers(
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    root BLOB NOT NULL,
    bundle BLOB NOT NULL,
    rootfs BLOB NOT NULL,
    created_ns INTEGER NOT NULL,
    head INTEGER NOT NULL DEFAULT 0,
    last_generation INTEGER NOT NULL DEFAULT 0,
    settled INTEGER NOT NULL DEFAULT 0,
    removed_ns INTEGER
) STRICT;
CREATE INDEX containers_live ON containers(id) WHERE removed_ns IS NULL;
CREATE TABLE generations(
    container INTEGER NOT NULL REFERENCES containers(key),
    number INTEGER NOT NULL,
    parent INTEGER NOT NULL CHECK(parent < number),
    layer TEXT NOT NULL,
    exec TEXT NOT NULL,
    digest TEXT,
    bytes INTEGER,
    committed_ns INTEGER NOT NULL,
    PRIMARY KEY(container, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE squashes(
    container INTEGER NOT NULL REFERENCES containers(key),
    last INTEGER NOT NULL,
    below INTEGER NOT NULL CHECK(below < last),
    level INTEGER NOT NULL,
    layer TEXT NOT NULL,
    created_ns INTEGER NOT NULL,
    PRIMARY KEY(container, last, below)
) STRICT, WITHOUT ROWID;
CREATE TABLE execs(
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    container INTEGER NOT NULL REFERENCES containers(key),
    engine_exec TEXT,
    args TEXT NOT NULL,
    args_dropped INTEGER NOT NULL,
    cwd BLOB NOT NULL,
    uid INTEGER NOT NULL,
    gid INTEGER NOT NULL,
    mode TEXT NOT NULL,
    layer TEXT,
    base INTEGER NOT NULL,
    supervisor_pid INTEGER NOT NULL,
    cgroups BLOB NOT NULL,
    started_ns INTEGER NOT NULL,
    disposition TEXT,
    finished_ns INTEGER,
    generation INTEGER,
    event INTEGER,
    survivors INTEGER,
    \"end\" TEXT,
    usage TEXT,
    summary TEXT,
    result TEXT
) STRICT;
CREATE UNIQUE INDEX execs_id ON execs(container, id);
CREATE INDEX execs_running ON execs(container) WHERE disposition IS NULL;
CREATE INDEX execs_light ON execs(container) WHERE disposition IN ('empty', 'discarded');
CREATE TABLE events(
    seq INTEGER PRIMARY KEY,
    time_ns INTEGER NOT NULL,
    container INTEGER NOT NULL,
    container_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    prev BLOB NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE INDEX events_not_exec ON events(container) WHERE kind <> 'exec';
CREATE TABLE chain(
    one INTEGER PRIMARY KEY CHECK(one = 1),
    base_seq INTEGER NOT NULL,
    base_hash BLOB NOT NULL,
    last_seq INTEGER NOT NULL,
    head_hash BLOB NOT NULL
) STRICT;
INSERT INTO chain VALUES(1, 0, zeroblob(32), 0, zeroblob(32));
";

/// Rows of execs without a layer are bounded too: health checks of a container with a read-only root make nothing else.
const V2: &str = "
DROP INDEX execs_light;
CREATE INDEX execs_light ON execs(container) WHERE disposition IN ('empty', 'discarded', 'shared');
";

/// Bind mounts whose writes go to layers.
const V3: &str = "
CREATE TABLE cow_mounts(
    container INTEGER NOT NULL REFERENCES containers(key),
    destination BLOB NOT NULL,
    source BLOB NOT NULL,
    device INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    layer TEXT NOT NULL,
    PRIMARY KEY(container, destination)
) STRICT, WITHOUT ROWID;
";

/// Generations can be dropped.
const V4: &str = "
ALTER TABLE containers ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE generations ADD COLUMN steps INTEGER NOT NULL DEFAULT 1 CHECK(steps > 0);
ALTER TABLE execs ADD COLUMN dropped TEXT;
CREATE TABLE retired(
    layer TEXT PRIMARY KEY,
    container INTEGER NOT NULL REFERENCES containers(key),
    number INTEGER NOT NULL,
    exec INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

/// What retention keeps is not told by the event log alone, of which the oldest events go.
const V5: &str = "
ALTER TABLE containers ADD COLUMN moved_from INTEGER;
CREATE TABLE applied(
    container INTEGER NOT NULL REFERENCES containers(key),
    path BLOB NOT NULL,
    generation INTEGER NOT NULL,
    PRIMARY KEY(container, path)
) STRICT, WITHOUT ROWID;
UPDATE containers SET moved_from = (
    SELECT CAST(payload ->> '$.from' AS INTEGER) FROM events
    WHERE container = containers.key AND kind <> 'exec' AND kind IN ('rollback', 'reset') AND json_valid(payload)
    ORDER BY seq DESC LIMIT 1);
INSERT OR REPLACE INTO applied
    SELECT container, CAST(payload ->> '$.path' AS BLOB), CAST(payload ->> '$.generation' AS INTEGER) FROM events e
    WHERE kind <> 'exec' AND kind = 'apply' AND json_valid(payload) AND container IN (SELECT key FROM containers)
        AND payload ->> '$.path' IS NOT NULL AND payload ->> '$.generation' IS NOT NULL
        AND seq >= coalesce((SELECT max(seq) FROM events w WHERE w.container = e.container AND w.kind <> 'exec'
                                 AND w.kind = 'apply' AND json_valid(w.payload) AND w.payload ->> '$.path' = '/'), 0)
    ORDER BY seq;
";

/// Brings the database to the newest format of `steps`, or says why not. One pragma where there is nothing to do.
pub(super) fn migrate(conn: &Connection, path: &Path, steps: &[&str]) -> Result<(), StoreError> {
    let known = steps.len() as i64;
    let version = user_version(conn)?;
    // Other applications count from 1 too.
    if version != 0 && application_id(conn)? != APPLICATION_ID {
        return Err(StoreError::NotOurs { path: path.to_owned() });
    }
    if version == known {
        return Ok(());
    }
    refuse_newer(path, version, known)?;
    if version == 0 {
        refuse_used(conn, path)?;
        let mode = switch_to_wal(conn)?;
        if mode != "wal" {
            return Err(StoreError::NoWal { path: path.to_owned(), mode });
        }
    }
    fault::step("migrate").at("migrate", path)?;
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate).during("begin migration")?;
    // Another process may have done it while we waited.
    let version = user_version(&tx)?;
    refuse_newer(path, version, known)?;
    if version == 0 {
        refuse_used(&tx, path)?;
        tx.pragma_update(None, "application_id", APPLICATION_ID).during("mark the database")?;
    }
    for step in steps.iter().skip(version as usize) {
        tx.execute_batch(step).during("migrate")?;
    }
    tx.pragma_update(None, "user_version", known).during("set the format version")?;
    fault::step("commit migration").at("migrate", path)?;
    tx.commit().during("commit migration")
}

/// Persistent in the file; can't be changed inside a transaction, and SQLite asks no busy handler for it: of several that
/// open a new store at once, all but one are told that it is locked.
fn switch_to_wal(conn: &Connection) -> Result<String, StoreError> {
    let begun = Instant::now();
    loop {
        let switched = conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0));
        match switched {
            Err(err) if is_busy(&err) && begun.elapsed() < BUSY_LIMIT => std::thread::sleep(Duration::from_millis(1)),
            other => return other.during("switch to WAL mode"),
        }
    }
}

pub(super) fn is_busy(err: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    matches!(err.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
}

/// Whether a database is one of ours, of a format that can be read here; an error says what it is instead. False for one
/// that is still being made.
pub(super) fn is_known(conn: &Connection, path: &Path) -> Result<bool, StoreError> {
    let version = user_version(conn)?;
    if version == 0 {
        return refuse_used(conn, path).map(|()| false);
    }
    if application_id(conn)? != APPLICATION_ID {
        return Err(StoreError::NotOurs { path: path.to_owned() });
    }
    refuse_newer(path, version, MIGRATIONS.len() as i64)?;
    Ok(true)
}

/// For a database without a version: it must be empty, and so must the store.
fn refuse_used(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let tables: i64 =
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).during("read the schema")?;
    if tables != 0 {
        // Made by somebody else, or by us since we read the version.
        return if user_version(conn)? == 0 { Err(StoreError::NotOurs { path: path.to_owned() }) } else { Ok(()) };
    }
    // Starting anew would make garbage of every layer there is.
    if has_layers(path) && user_version(conn)? == 0 {
        return Err(StoreError::Emptied { path: path.to_owned() });
    }
    Ok(())
}

fn application_id(conn: &Connection) -> Result<i64, StoreError> {
    conn.pragma_query_value(None, "application_id", |row| row.get(0)).during("read the application id")
}

/// Whether there are layers beside the database, which it should know of.
pub(super) fn has_layers(path: &Path) -> bool {
    std::fs::read_dir(path.with_file_name("layers")).is_ok_and(|mut entries| entries.next().is_some())
}

fn refuse_newer(path: &Path, found: i64, known: i64) -> Result<(), StoreError> {
    if (0..=known).contains(&found) {
        Ok(())
    } else {
        Err(StoreError::NewerFormat { path: path.to_owned(), found, known })
    }
}

fn user_version(conn: &Connection) -> Result<i64, StoreError> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0)).during("read the format version")
}
