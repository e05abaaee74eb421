//! The event log's rows: appended in the transaction that they tell of, listed, verified, exported.

use rusqlite::{Connection, Row, params};
use serde_json::Value;

use crate::audit::{Event, Hash, Head, Verified, Verifier};
use crate::id::ContainerId;

use super::error::DbContext;
use super::{ContainerKey, ExecRecord, Store, StoreError, number};

/// The longest payload of an event, in bytes.
const MAX_PAYLOAD: usize = 160 << 10;
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
    tx.prepare_cached("INSERT INTO events VALUES(?, ?, ?, ?, ?, ?, ?, ?)")
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
    tx.prepare_cached("UPDATE chain SET last_seq = ?, head_hash = ?")
        .and_then(|mut s| s.execute(params![number(event.seq), event.hash.0]))
        .during(OP)?;
    Ok(event.seq)
}

fn head(conn: &Connection) -> Result<Head, StoreError> {
    chain_end(conn, "SELECT last_seq, head_hash FROM chain")
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
            let mut verifier = Verifier::new(chain_end(tx, "SELECT base_seq, base_hash FROM chain")?);
            let mut select = tx.prepare_cached(&format!("SELECT {COLUMNS} FROM events ORDER BY seq")).during(OP)?;
            let mut rows = select.query([]).during(OP)?;
            while let Some(row) = rows.next().during(OP)? {
                verifier.push(&from_row(row).during(OP)?)?;
            }
            Ok(verifier.finish(head(tx)?)?)
        })
    }

    /// The events after `seq` (0: all), each as one JSON object without line end, oldest first. Read page by page, so
    /// that a slow reader holds no transaction open.
    pub fn export_events(&self, after: u64) -> EventLines<'_> {
        EventLines { store: self, after, page: Vec::new().into_iter(), ended: false }
    }

    /// A container's history, oldest first: execs where they ended, other events in their place, running execs last.
    pub fn log(&self, key: ContainerKey) -> Result<Vec<LogEntry>, StoreError> {
        self.read("read log", |tx| {
            super::container::by_key(tx, key)?;
            let events: Vec<Event> = tx
                .prepare_cached(&format!("SELECT {COLUMNS} FROM events WHERE container = ? AND kind <> 'exec'"))
                .and_then(|mut s| s.query_map([key.0], from_row)?.collect())
                .during("read log")?;
            let execs = super::exec::of_container(tx, key)?;
            let mut entries: Vec<(u64, LogEntry)> =
                events.into_iter().map(|event| (event.seq, LogEntry::Event(event))).collect();
            entries
                .extend(execs.into_iter().map(|exec| (exec.event.unwrap_or(u64::MAX), LogEntry::Exec(Box::new(exec)))));
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
