//! The event log's rows: appended in the transaction that they tell of, listed, verified, exported.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::{Value, json};

use crate::audit::{AuditError, Break, Event, Hash, Head, Verified, Verifier};
use crate::id::ContainerId;

use super::error::DbContext;
use super::{ContainerKey, ExecRecord, Store, StoreError, number};

/// The longest payload of an event, in bytes.
const MAX_PAYLOAD: usize = 160 << 10;
/// Of so many rows that are written, about one looks whether events are to be dropped.
pub(super) const PRUNE_EVERY: i64 = 256;
/// How many events are dropped at once: some milliseconds' worth.
const PRUNE_MOST: u64 = 4096;
/// The kind of the event that tells that older ones were dropped.
/// What appending an event takes.
pub(super) const INSERT: &str = "INSERT INTO events VALUES(?, ?, ?, ?, ?, ?, ?, ?)";
pub(super) const MOVE_HEAD: &str = "UPDATE chain SET last_seq = ?, head_hash = ?";
pub(super) const HEAD: &str = "SELECT last_seq, head_hash FROM chain";

const PRUNED: &str = "log-pruned";
/// How many events a page of the export holds.
const PAGE: u64 = 256;

/// One line of a container's history.
#[derive(Debug, Clone)]
pub enum LogEntry {
    /// An exec, ended or running.
    Exec(Box<ExecRecord>),
    /// Anything else that happened: a later commit, a discard, a rollback, what ops added.
    Event(Event),
}

/// Appends an event and moves the chain's head.
pub(super) fn append(
    tx: &Connection,
    time_ns: i64,
    container: Option<(ContainerKey, &ContainerId)>,
    kind: &str,
    payload: &Value,
) -> Result<u64, StoreError> {
    const OP: &str = "append event";
    let payload = payload.to_string();
    if payload.len() > MAX_PAYLOAD {
        return Err(StoreError::TooLarge {
            what: "event payload",
            size: payload.len() as u64,
            limit: MAX_PAYLOAD as u64,
        });
    }
    let last = head(tx)?;
    let mut event = Event {
        seq: last.seq + 1,
        time_ns,
        container: container.map_or(0, |(key, _)| key.0),
        container_id: container.map_or_else(String::new, |(_, id)| id.to_string()),
        kind: kind.to_owned(),
        payload,
        prev: last.hash,
        hash: Hash::ZERO,
    };
    event.hash = event.expected_hash();
    tx.prepare_cached(INSERT)
        .and_then(|mut s| {
            s.execute(params![
                number(event.seq),
                event.time_ns,
                event.container,
                event.container_id,
                event.kind,
                event.payload,
                event.prev.0,
                event.hash.0
            ])
        })
        .during(OP)?;
    tx.prepare_cached(MOVE_HEAD).and_then(|mut s| s.execute(params![number(event.seq), event.hash.0])).during(OP)?;
    Ok(event.seq)
}

/// Drops the oldest events of more than `keep`. The chain then starts from the last one dropped, and an event in it tells so.
pub(super) fn prune(tx: &Connection, keep: u64) -> Result<(), StoreError> {
    const OP: &str = "drop old events";
    let (base, last) = (base(tx)?, head(tx)?);
    let excess = (last.seq - base.seq.min(last.seq)).saturating_sub(keep);
    if keep == 0 || excess == 0 {
        return Ok(());
    }
    let upto = base.seq + excess.min(PRUNE_MOST);
    let hash: Option<[u8; 32]> = tx
        .prepare_cached("SELECT hash FROM events WHERE seq = ?")
        .and_then(|mut s| s.query_row([number(upto)], |row| row.get(0)).optional())
        .during(OP)?;
    // A log that is damaged is kept as it is.
    let Some(hash) = hash.map(Hash) else { return Ok(()) };
    tx.prepare_cached("DELETE FROM events WHERE seq <= ?").and_then(|mut s| s.execute([number(upto)])).during(OP)?;
    tx.prepare_cached("UPDATE chain SET base_seq = ?, base_hash = ?")
        .and_then(|mut s| s.execute(params![number(upto), hash.0]))
        .during(OP)?;
    let payload = json!({"upTo": upto, "hash": hash.to_string()});
    append(tx, super::now_ns(), None, PRUNED, &payload)?;
    Ok(())
}

fn base(conn: &Connection) -> Result<Head, StoreError> {
    chain_end(conn, "SELECT base_seq, base_hash FROM chain")
}

/// What an event tells of the place from which the chain starts, if that is what it tells.
fn told_base(event: &Event) -> Option<(u64, String)> {
    let payload: Value = serde_json::from_str(&event.payload).ok().filter(|_| event.kind == PRUNED)?;
    Some((payload["upTo"].as_u64()?, payload["hash"].as_str()?.to_owned()))
}

fn head(conn: &Connection) -> Result<Head, StoreError> {
    chain_end(conn, HEAD)
}

fn chain_end(conn: &Connection, sql: &str) -> Result<Head, StoreError> {
    conn.prepare_cached(sql)
        .and_then(|mut s| {
            s.query_row([], |row| Ok(Head { seq: row.get::<_, i64>(0)? as u64, hash: Hash(row.get(1)?) }))
        })
        .during("read the event log's head")
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<Event> {
    Ok(Event {
        seq: row.get::<_, i64>(0)? as u64,
        time_ns: row.get(1)?,
        container: row.get(2)?,
        container_id: row.get(3)?,
        kind: row.get(4)?,
        payload: row.get(5)?,
        prev: Hash(row.get(6)?),
        hash: Hash(row.get(7)?),
    })
}

const COLUMNS: &str = "seq, time_ns, container, container_id, kind, payload, prev, hash";

impl Store {
    /// Adds an event that no other call of the store writes (a settle, a snapshot, a decision of the policy). Returns
    /// its seq. `kind` is `[a-z-]{1,32}`, `payload` a JSON object of at most 160 KiB.
    pub fn append_event(&self, key: Option<ContainerKey>, kind: &str, payload: &Value) -> Result<u64, StoreError> {
        let kind_fits = (1..=32).contains(&kind.len()) && kind.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        if !kind_fits || !payload.is_object() {
            return Err(StoreError::BadEvent { kind: kind.to_owned() });
        }
        self.write("append event", |tx| {
            let container = key.map(|key| super::container::by_key(tx, key)).transpose()?;
            append(tx, super::now_ns(), container.as_ref().map(|c| (c.key, &c.id)), kind, payload)
        })
    }

    /// The newest event's seq and hash. A copy of it elsewhere shows later whether the log was cut or rewritten.
    pub fn chain_head(&self) -> Result<Head, StoreError> {
        head(&self.conn)
    }

    /// Checks the whole event log; `StoreError::Audit` says what is wrong at which event.
    pub fn verify_events(&self) -> Result<Verified, StoreError> {
        const OP: &str = "verify the event log";
        self.read(OP, |tx| {
            let base = base(tx)?;
            let mut told = None;
            let mut verifier = Verifier::new(base);
            let mut select = tx.prepare_cached(&format!("SELECT {COLUMNS} FROM events ORDER BY seq")).during(OP)?;
            let mut rows = select.query([]).during(OP)?;
            while let Some(row) = rows.next().during(OP)? {
                let event = from_row(row).during(OP)?;
                verifier.push(&event)?;
                told = told_base(&event).or(told);
            }
            if base.seq > 0 && told != Some((base.seq, base.hash.to_string())) {
                return Err(AuditError { seq: base.seq, what: Break::Base }.into());
            }
            Ok(verifier.finish(head(tx)?)?)
        })
    }

    /// The events after `seq` (0: all), each as one JSON object without line end, oldest first. Read page by page, so
    /// that a slow reader holds no transaction open.
    pub fn export_events(&self, after: u64) -> EventLines<'_> {
        EventLines { store: self, after, page: Vec::new().into_iter(), ended: false }
    }

    /// A container's history, oldest first: execs where they ended, or where they were committed later; other events in
    /// their place; running execs last.
    pub fn log(&self, key: ContainerKey) -> Result<Vec<LogEntry>, StoreError> {
        self.read("read log", |tx| {
            super::container::by_key(tx, key)?;
            let events: Vec<Event> = tx
                .prepare_cached(&format!("SELECT {COLUMNS} FROM events WHERE container = ? AND kind <> 'exec'"))
                .and_then(|mut s| s.query_map([key.0], from_row)?.collect())
                .during("read log")?;
            let execs = super::exec::of_container(tx, key)?;
            // An exec whose layer was held stands where it became a generation, so that no generation is above its parent.
            let committed: HashMap<String, u64> = events
                .iter()
                .filter(|event| event.kind == "commit")
                .filter_map(|event| {
                    let payload: Value = serde_json::from_str(&event.payload).ok()?;
                    Some((payload["exec"].as_str()?.to_owned(), event.seq))
                })
                .collect();
            let place = |exec: &ExecRecord| {
                let later = exec.generation.and_then(|_| committed.get(&exec.id.to_string()).copied());
                later.or(exec.event).unwrap_or(u64::MAX)
            };
            let mut entries: Vec<(u64, LogEntry)> =
                execs.into_iter().map(|exec| (place(&exec), LogEntry::Exec(Box::new(exec)))).collect();
            entries.extend(events.into_iter().map(|event| (event.seq, LogEntry::Event(event))));
            // Stable: running execs stay in the order in which they began.
            entries.sort_by_key(|(place, _)| *place);
            Ok(entries.into_iter().map(|(_, entry)| entry).collect())
        })
    }

    fn events_page(&self, after: u64) -> Result<Vec<Event>, StoreError> {
        self.conn
            .prepare_cached(&format!("SELECT {COLUMNS} FROM events WHERE seq > ? ORDER BY seq LIMIT {PAGE}"))
            .and_then(|mut s| s.query_map([number(after)], from_row)?.collect())
            .during("export events")
    }
}

/// See [`Store::export_events`]. Ends after the first error.
#[derive(Debug)]
pub struct EventLines<'a> {
    store: &'a Store,
    after: u64,
    page: std::vec::IntoIter<Event>,
    ended: bool,
}

impl Iterator for EventLines<'_> {
    type Item = Result<String, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.len() == 0 && !self.ended {
            match self.store.events_page(self.after) {
                Ok(page) => {
                    self.ended = page.is_empty();
                    self.page = page.into_iter();
                }
                Err(e) => {
                    self.ended = true;
                    return Some(Err(e));
                }
            }
        }
        let event = self.page.next()?;
        self.after = event.seq;
        Some(Ok(event.to_json_line()))
    }
}
