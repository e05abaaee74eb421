//! A store that is looked at and not changed: opened without a write, its files' kinds, owners and modes, and what was
//! left behind in it, told apart from what somebody is deleting just now.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::durable::LockFile;
use crate::id::{ExecId, LayerId};

use super::error::{DbContext, IoContext};
use super::gc::{Garbage, names, reachable};
use super::room::{self, RESERVES};
use super::{
    ContainerKey, DATABASE, ExecRecord, Finding, INDEX, LOG, Store, StoreError, check_root, exec, open_root_if_there,
    schema, trash, wait_for_others, without_database,
};

/// How often leftovers are looked for again before they are told.
const LOOKS: u32 = 4;
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(25);
/// How long to wait for those who are deleting to be done.
const PATIENCE: Duration = Duration::from_secs(3);

/// What was left behind.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// What the collector would delete.
    pub garbage: Vec<Garbage>,
    /// Somebody was deleting all the time: some of it may be his.
    pub unsure: bool,
    /// Entries of `layers/` and `locks/` that are not ours.
    pub foreign: Vec<OsString>,
    /// Layers that the database should know of.
    pub unknown: Vec<LayerId>,
}

impl Store {
    /// Opens the store at `root` without writing to it; it may be mounted read-only. Every call that writes fails.
    ///
    /// Fails with [`StoreError::NoStore`] where there is none, and as [`Store::open`] does for a format that is not known
    /// here. What the directory's owner and mode are is for [`Store::check_files`] to tell.
    pub fn open_to_read(root: &Path) -> Result<Store, StoreError> {
        let dir = open_root_if_there(root)?.ok_or_else(|| without_database(root))?;
        if let Err(err @ StoreError::Filesystem { .. }) = check_root(root, &dir) {
            return Err(err);
        }
        room::require_for_index(dir.as_fd()).at("write the log's index in", root)?;
        let path = root.join(DATABASE);
        match std::fs::metadata(&path) {
            Err(_) if path.symlink_metadata().is_err() => return Err(without_database(root)),
            // A pipe would be waited for.
            Ok(meta) if !meta.is_file() => return Err(StoreError::NotOurs { path }),
            _ => {}
        }
        match connect(&path).map_err(|err| err.of_database(&path))? {
            Some(conn) => {
                Ok(Store { root: root.to_owned(), layers: root.join("layers"), conn, fragile: false, keep_events: 0 })
            }
            None => Err(StoreError::NoStore { path: root.to_owned() }),
        }
    }

    /// What is wrong with the files that the store consists of: one that is missing, of another kind, of another owner, or
    /// open to others. What is inside the layers is not looked at.
    pub fn check_files(root: &Path) -> Result<Vec<Finding>, StoreError> {
        let mut files = Files { owner: rustix::process::geteuid().as_raw(), findings: Vec::new() };
        files.check(root, Want::Directory, true)?;
        for name in ["layers", "trash", "locks"] {
            files.check(&root.join(name), Want::Directory, true)?;
        }
        files.check(&root.join(DATABASE), Want::File, true)?;
        for name in [LOG, INDEX].into_iter().chain(RESERVES) {
            files.check(&root.join(name), Want::File, false)?;
        }
        Ok(files.findings)
    }

    /// The same for the layers that somebody needs.
    pub fn check_layer_files(&self) -> Result<Vec<Finding>, StoreError> {
        let mut files = Files { owner: rustix::process::geteuid().as_raw(), findings: Vec::new() };
        for layer in reachable(&self.conn)? {
            let Ok(id) = layer.parse::<LayerId>() else { continue };
            let before = files.findings.len();
            let dir = self.layer_dir(&id);
            files.check(&dir, Want::Directory, true)?;
            for path in [self.upper(&id), self.work(&id)] {
                files.kind_only(&path, Want::Directory, true)?;
            }
            for name in ["touched", "base"] {
                files.kind_only(&dir.join(name), Want::File, false)?;
            }
            if files.findings.len() > before && !self.is_needed(&id)? {
                // Released and deleted since we read the rows.
                files.findings.truncate(before);
            }
        }
        Ok(files.findings)
    }

    /// The ids of the execs of a container that are on record.
    pub fn exec_ids(&self, key: ContainerKey) -> Result<HashSet<String>, StoreError> {
        self.conn
            .prepare_cached("SELECT id FROM execs WHERE container = ?")
            .and_then(|mut s| s.query_map([key.0], |row| row.get(0))?.collect())
            .during("list execs")
    }

    /// Whether some row needs the layer now.
    pub fn is_needed(&self, layer: &LayerId) -> Result<bool, StoreError> {
        Ok(reachable(&self.conn)?.contains(&layer.to_string()))
    }

    /// The execs without an end whose supervisors are gone. Unlike [`Store::abandoned`] it claims none of them.
    pub fn lost(&self) -> Result<Vec<ExecRecord>, StoreError> {
        let mut lost = Vec::new();
        for record in exec::running(&self.conn, None)? {
            let path = self.exec_lock_path(&record.id);
            if !LockFile::is_free(&path).at("lock", &path)? {
                continue;
            }
            match exec::by_id(&self.conn, record.container, &record.id) {
                Ok(record) if record.disposition.is_none() => lost.push(record),
                Ok(_) | Err(StoreError::ExecNotFound { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(lost)
    }

    /// What nobody needs and nobody is deleting. Where there seems to be something, it takes a tenth of a second to make
    /// sure, and up to three where others delete meanwhile.
    pub fn leftovers(&self) -> Result<Leftovers, StoreError> {
        let plan = self.plan_gc()?;
        let mut found = Leftovers { garbage: plan.delete, unsure: false, foreign: plan.foreign, unknown: plan.unknown };
        let begun = Instant::now();
        let mut looks = 0;
        while !found.garbage.is_empty() && looks < LOOKS {
            std::thread::sleep(PAUSE);
            // Asked before looking: who begins later has not made what is there already.
            let quiet = trash::is_idle(&self.trash_dir()).at("lock", &self.trash_dir())? && !self.is_ending()?;
            let now = self.plan_gc()?.delete;
            let before = found.garbage.len();
            found.garbage.retain(|garbage| now.contains(garbage));
            looks = if quiet && found.garbage.len() == before { looks + 1 } else { 0 };
            if begun.elapsed() > PATIENCE {
                found.unsure = true;
                break;
            }
        }
        Ok(found)
    }

    /// Whether some exec has ended whose supervisor still holds its lock: it is about to delete its layer.
    fn is_ending(&self) -> Result<bool, StoreError> {
        let running = exec::running(&self.conn, None)?;
        for name in names(&self.locks_dir())? {
            let Some(id) = name.to_str().and_then(|n| n.parse::<ExecId>().ok()) else { continue };
            let path = self.exec_lock_path(&id);
            if running.iter().all(|record| record.id != id) && !LockFile::is_free(&path).at("lock", &path)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// `None` where it is only just being made.
fn connect(path: &Path) -> Result<Option<Connection>, StoreError> {
    let mut conn = open_database(path)?;
    conn.busy_handler(Some(wait_for_others)).during("set the busy handler")?;
    Ok(if schema::is_known(&conn, path)? { Some(conn) } else { None })
}

fn open_database(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let readable =
        |conn: Connection| conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map(|()| conn);
    let opened = Connection::open_with_flags(path, flags).and_then(readable);
    match opened {
        // On a read-only file system SQLite can't make the index of the log. Where there is no log it needs none.
        Err(e)
            if matches!(e.sqlite_error_code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly)) && !has_log(path) =>
        {
            let mut uri = "file:".to_owned();
            for byte in path.as_os_str().as_bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => uri.push(char::from(*byte)),
                    other => uri.push_str(&format!("%{other:02x}")),
                }
            }
            Connection::open_with_flags(uri + "?immutable=1", flags | OpenFlags::SQLITE_OPEN_URI).during("open")
        }
        other => other.during("open"),
    }
}

fn has_log(path: &Path) -> bool {
    path.with_file_name(LOG).symlink_metadata().is_ok_and(|log| log.len() > 0)
}

/// What a file should be.
#[derive(Clone, Copy, PartialEq)]
enum Want {
    Directory,
    File,
}

struct Files {
    owner: u32,
    findings: Vec<Finding>,
}

impl Files {
    fn found(&mut self, invariant: &'static str, path: &Path, what: &str) {
        self.findings.push(Finding { invariant, what: format!("{}: {what}", path.display()) });
    }

    fn check(&mut self, path: &Path, want: Want, needed: bool) -> Result<(), StoreError> {
        let Some(meta) = self.kind_only(path, want, needed)? else { return Ok(()) };
        if meta.uid() != self.owner {
            self.found("the store belongs to its user", path, &format!("it belongs to user {}", meta.uid()));
        }
        if meta.mode() & 0o077 != 0 {
            let mode = meta.mode() & 0o7777;
            self.found("the store is private", path, &format!("mode {mode:04o}: others can look in or change it"));
        }
        Ok(())
    }

    fn kind_only(&mut self, path: &Path, want: Want, needed: bool) -> Result<Option<std::fs::Metadata>, StoreError> {
        let meta = match path.symlink_metadata() {
            Ok(meta) => meta,
            Err(err) if matches!(err.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                if needed {
                    self.found("the store has its files", path, "it is missing");
                }
                return Ok(None);
            }
            Err(err) => return Err(err).at("stat", path),
        };
        let right = match want {
            Want::Directory => meta.is_dir(),
            Want::File => meta.is_file(),
        };
        if !right {
            let what = if want == Want::Directory { "it is no directory" } else { "it is no regular file" };
            self.found("the store has its files", path, what);
            return Ok(None);
        }
        Ok(Some(meta))
    }
}
