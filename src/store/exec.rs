//! Exec records: begun in one transaction with reading HEAD, found by ULID, prefix or the engine's name.

use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use crate::durable::fault;
use crate::id::{ExecId, Generation, LayerId};
use crate::terms::{Bound, Disposition, LayerMode};

use super::container::live;
use super::error::{DbContext, IoContext};
use super::generation::mount_chain;
use super::{
    ContainerKey, Lower, MAX_FIELD, Store, StoreError, blob_path, generation, number, parsed, parsed_opt, path_blob,
};

/// The fewest characters of a prefix by which an exec can be named.
const MIN_PREFIX: usize = 4;

/// What is known of an exec when it begins.
#[derive(Debug, Clone)]
pub struct NewExec {
    /// Its id.
    pub id: ExecId,
    /// The engine's own id for it.
    pub engine_exec: Option<String>,
    /// Its arguments; of more than 64 KiB (as JSON) only the start is kept.
    pub args: Vec<String>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its user, inside the container.
    pub uid: u32,
    /// Its group, inside the container.
    pub gid: u32,
    /// What is to become of its layer.
    pub mode: LayerMode,
    /// Its layer, staged; `None` if it runs without one (shared, or a read-only root).
    pub layer: Option<LayerId>,
    /// The supervisor's pid in the host's namespace: for people; whether it lives is told by its lock.
    pub supervisor_pid: i32,
    /// The exec's own cgroup directories, absolute, one for each hierarchy.
    pub cgroups: Vec<PathBuf>,
    /// When, in nanoseconds since 1970 UTC.
    pub started_ns: i64,
}

/// What an exec starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// HEAD when it began.
    pub base: Generation,
    /// The generation that the root file system itself shows.
    pub settled: Generation,
    /// The layers to mount over the root file system, newest first.
    pub chain: Vec<Lower>,
}

/// An exec as the store has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecRecord {
    /// Its id.
    pub id: ExecId,
    /// Its container.
    pub container: ContainerKey,
    /// The engine's own id for it.
    pub engine_exec: Option<String>,
    /// Its arguments, or their start.
    pub args: Vec<String>,
    /// How many bytes of the arguments are left out; 0 if they are whole.
    pub args_dropped: u64,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its user, inside the container.
    pub uid: u32,
    /// Its group, inside the container.
    pub gid: u32,
    /// What was to become of its layer.
    pub mode: LayerMode,
    /// Its layer, as long as there is one.
    pub layer: Option<LayerId>,
    /// HEAD when it began.
    pub base: Generation,
    /// The supervisor's pid.
    pub supervisor_pid: i32,
    /// Its cgroup directories.
    pub cgroups: Vec<PathBuf>,
    /// When it began, in nanoseconds since 1970 UTC.
    pub started_ns: i64,
    /// What became of its layer; `None` while it runs.
    pub disposition: Option<Disposition>,
    /// When it ended, in nanoseconds since 1970 UTC.
    pub finished_ns: Option<i64>,
    /// The generation that it became.
    pub generation: Option<Generation>,
    /// The bound by which that generation was dropped; none while it is there.
    pub dropped: Option<Bound>,
    /// The seq of the event that tells its end.
    pub event: Option<u64>,
    /// How many processes it left behind that were killed.
    pub survivors: Option<u64>,
    /// How the command ended.
    pub end: Option<Value>,
    /// What it cost.
    pub usage: Option<Value>,
    /// How many changes of which kind.
    pub summary: Option<Value>,
}

const COLUMNS: &str = "id, container, engine_exec, args, args_dropped, cwd, uid, gid, mode, layer, base, supervisor_pid, \
     cgroups, started_ns, disposition, finished_ns, generation, event, survivors, \"end\", usage, summary, dropped";

impl ExecRecord {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<ExecRecord> {
        Ok(ExecRecord {
            id: parsed(row, 0)?,
            container: ContainerKey(row.get(1)?),
            engine_exec: row.get(2)?,
            args: serde_json::from_str(row.get_ref(3)?.as_str()?)
                .map_err(|e| rusqlite::Error::FromSqlConversionFailure(3, rusqlite::types::Type::Text, Box::new(e)))?,
            args_dropped: row.get::<_, i64>(4)? as u64,
            cwd: blob_path(row.get(5)?),
            uid: row.get(6)?,
            gid: row.get(7)?,
            mode: parsed(row, 8)?,
            layer: parsed_opt(row, 9)?,
            base: generation(row, 10)?,
            supervisor_pid: row.get(11)?,
            cgroups: split_paths(row.get_ref(12)?.as_blob()?),
            started_ns: row.get(13)?,
            disposition: parsed_opt(row, 14)?,
            finished_ns: row.get(15)?,
            generation: row.get::<_, Option<i64>>(16)?.map(|n| Generation(n as u64)),
            event: row.get::<_, Option<i64>>(17)?.map(|n| n as u64),
            survivors: row.get::<_, Option<i64>>(18)?.map(|n| n as u64),
            end: parsed_opt(row, 19)?,
            usage: parsed_opt(row, 20)?,
            summary: parsed_opt(row, 21)?,
            dropped: parsed_opt(row, 22)?,
        })
    }
}

impl Store {
    /// Records that an exec begins and says what it starts from: one transaction reads HEAD and inserts the row.
    ///
    /// Before: the layer is made ([`Store::create_layer`]) and the [`super::ExecLock`] taken. After: keep the layer.
    pub fn begin_exec(&self, key: ContainerKey, new: &NewExec) -> Result<Begun, StoreError> {
        let (args, dropped) = bounded_args(&new.args);
        let cgroups = join_paths(&new.cgroups);
        fault::step("begin exec").at("begin exec", &self.root)?;
        self.write("begin exec", |tx| {
            let container = live(tx, key)?;
            let chain = mount_chain(tx, &container, container.head)?;
            tx.prepare_cached(
                "INSERT INTO execs(id, container, engine_exec, args, args_dropped, cwd, uid, gid, mode, layer, base,
                     supervisor_pid, cgroups, started_ns)
                 VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .and_then(|mut s| {
                s.execute(params![
                    new.id.to_string(),
                    key.0,
                    new.engine_exec,
                    args,
                    number(dropped),
                    path_blob(&new.cwd),
                    new.uid,
                    new.gid,
                    new.mode.as_str(),
                    new.layer.map(|l| l.to_string()),
                    number(container.head.0),
                    new.supervisor_pid,
                    cgroups,
                    new.started_ns
                ])
            })
            .during("begin exec")?;
            Ok(Begun { base: container.head, settled: container.settled, chain })
        })
    }

    /// A container's execs, oldest first.
    pub fn execs(&self, key: ContainerKey) -> Result<Vec<ExecRecord>, StoreError> {
        of_container(&self.conn, key)
    }

    /// The execs of a container that have no end on record: running, or abandoned by a supervisor that was killed.
    pub fn running(&self, key: ContainerKey) -> Result<Vec<ExecRecord>, StoreError> {
        running(&self.conn, Some(key))
    }

    /// The exec of this container that `name` names: a ULID or the engine's id, else a prefix of one that fits only one
    /// exec (case does not matter in ULIDs). If the engine used an id again, the newest.
    pub fn exec(&self, key: ContainerKey, name: &str) -> Result<ExecRecord, StoreError> {
        let upper = name.to_ascii_uppercase();
        // Compared here: an engine's id may hold anything, and SQLite's text functions stop at a NUL.
        let mut found: Vec<(String, Option<String>)> = self
            .conn
            .prepare_cached("SELECT id, engine_exec FROM execs WHERE container = ? ORDER BY seq")
            .and_then(|mut s| s.query_map([key.0], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
            .during("find exec")?;
        found.retain(|(id, alias)| id.starts_with(&upper) || alias.as_ref().is_some_and(|a| a.starts_with(name)));
        let exact = found.iter().rfind(|(id, alias)| *id == upper || alias.as_deref() == Some(name));
        let id = match (exact, found.as_slice()) {
            // A prefix of a few characters fits by chance: "1" is more likely a generation in the wrong place.
            _ if name.len() < MIN_PREFIX && exact.is_none() => {
                return Err(StoreError::ExecNotFound { name: name.to_owned() });
            }
            (Some((id, _)), _) | (None, [(id, _)]) => id,
            (None, []) => return Err(StoreError::ExecNotFound { name: name.to_owned() }),
            (None, many) => {
                return Err(StoreError::ExecAmbiguous {
                    prefix: name.to_owned(),
                    matches: many.iter().take(10).map(|(id, _)| id.clone()).collect(),
                });
            }
        };
        by_text(&self.conn, key, id)?.ok_or_else(|| StoreError::ExecNotFound { name: name.to_owned() })
    }

    /// The exec of this container that began last.
    pub fn last_exec(&self, key: ContainerKey) -> Result<Option<ExecRecord>, StoreError> {
        self.conn
            .prepare_cached(&format!(
                "SELECT {COLUMNS} FROM execs WHERE seq = (SELECT max(seq) FROM execs WHERE container = ?)"
            ))
            .and_then(|mut s| s.query_row([key.0], ExecRecord::from_row).optional())
            .during("read exec")
    }

    /// An exec's result document, if one was stored.
    pub fn result(&self, key: ContainerKey, exec: &ExecId) -> Result<Option<String>, StoreError> {
        self.conn
            .prepare_cached("SELECT result FROM execs WHERE container = ? AND id = ?")
            .and_then(|mut s| s.query_row(params![key.0, exec.to_string()], |row| row.get(0)).optional())
            .during("read result")?
            .ok_or_else(|| StoreError::ExecNotFound { name: exec.to_string() })
    }
}

/// All execs of a container, oldest first.
pub(super) fn of_container(conn: &Connection, key: ContainerKey) -> Result<Vec<ExecRecord>, StoreError> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM execs WHERE container = ? ORDER BY seq"))
        .and_then(|mut s| s.query_map([key.0], ExecRecord::from_row)?.collect())
        .during("list execs")
}

/// Execs without an end, of one container or of all, oldest first.
pub(super) fn running(conn: &Connection, key: Option<ContainerKey>) -> Result<Vec<ExecRecord>, StoreError> {
    let sql = match key {
        Some(_) => format!("SELECT {COLUMNS} FROM execs WHERE disposition IS NULL AND container = ? ORDER BY seq"),
        None => format!("SELECT {COLUMNS} FROM execs WHERE disposition IS NULL AND ? IS NULL ORDER BY seq"),
    };
    conn.prepare_cached(&sql)
        .and_then(|mut s| s.query_map([key.map(|k| k.0)], ExecRecord::from_row)?.collect())
        .during("list running execs")
}

/// The exec with this id.
pub(super) fn by_id(conn: &Connection, key: ContainerKey, exec: &ExecId) -> Result<ExecRecord, StoreError> {
    let id = exec.to_string();
    by_text(conn, key, &id)?.ok_or(StoreError::ExecNotFound { name: id })
}

fn by_text(conn: &Connection, key: ContainerKey, id: &str) -> Result<Option<ExecRecord>, StoreError> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM execs WHERE container = ? AND id = ?"))
        .and_then(|mut s| s.query_row(params![key.0, id], ExecRecord::from_row).optional())
        .during("read exec")
}

/// The arguments as JSON text of at most [`MAX_FIELD`] bytes, and how many bytes of them were left out.
pub(super) fn bounded_args(args: &[String]) -> (String, u64) {
    let whole = serde_json::Value::from(args).to_string();
    if whole.len() <= MAX_FIELD {
        return (whole, 0);
    }
    // JSON needs at most six bytes for a byte (a control character), and each argument its quotes and comma.
    let mut room = MAX_FIELD - 2;
    let mut kept: Vec<&str> = Vec::new();
    let mut dropped = 0u64;
    for arg in args {
        let mut end = 0;
        let mut cost = 3;
        for (at, c) in arg.char_indices() {
            let one = match c {
                '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
                c if (c as u32) < 0x20 => 6,
                c => c.len_utf8(),
            };
            if cost + one > room {
                break;
            }
            cost += one;
            end = at + c.len_utf8();
        }
        if dropped > 0 || cost > room {
            dropped += arg.len().max(1) as u64;
            continue;
        }
        dropped += (arg.len() - end) as u64;
        room -= cost;
        kept.push(&arg[..end]);
    }
    (serde_json::Value::from(kept).to_string(), dropped)
}

fn join_paths(paths: &[PathBuf]) -> Vec<u8> {
    // A path can't have a NUL in it.
    paths.iter().flat_map(|p| path_blob(p).iter().copied().chain([0])).collect()
}

fn split_paths(blob: &[u8]) -> Vec<PathBuf> {
    blob.split_inclusive(|b| *b == 0).map(|part| blob_path(part.strip_suffix(&[0]).unwrap_or(part).to_vec())).collect()
}
