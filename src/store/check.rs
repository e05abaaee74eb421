//! Integrity: whether the database is sound and every invariant of docs/on-disk-format.md holds.

use rusqlite::Connection;

use crate::id::LayerId;

use super::error::DbContext;
use super::gc::reachable;
use super::{Store, StoreError};

/// Something that must not be. Garbage is not: a crash may leave it, the collector takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which invariant is broken.
    pub invariant: &'static str,
    /// By what.
    pub what: String,
}

/// Each query yields one text for each row that breaks the invariant.
const INVARIANTS: &[(&str, &str)] = &[
    ("SQLite's own structure", "SELECT quick_check FROM pragma_quick_check WHERE quick_check <> 'ok'"),
    (
        "rows refer to containers that exist",
        "SELECT \"table\" || ' row ' || coalesce(rowid, '?') FROM pragma_foreign_key_check",
    ),
    (
        "HEAD exists",
        "SELECT 'container ' || id || ': ' || head FROM containers c WHERE head <> 0
             AND NOT EXISTS(SELECT 1 FROM generations WHERE container = c.key AND number = c.head)",
    ),
    (
        "the settled generation exists",
        "SELECT 'container ' || id || ': ' || settled FROM containers c WHERE settled <> 0
             AND NOT EXISTS(SELECT 1 FROM generations WHERE container = c.key AND number = c.settled)",
    ),
    (
        "a generation's parent exists",
        "SELECT 'container ' || container || ': ' || number || ' on ' || parent FROM generations g WHERE parent <> 0
             AND NOT EXISTS(SELECT 1 FROM generations WHERE container = g.container AND number = g.parent)",
    ),
    (
        "no generation's number is above the last one given out",
        "SELECT 'container ' || c.id || ': ' || g.number FROM generations g JOIN containers c ON c.key = g.container
             WHERE g.number > c.last_generation",
    ),
    (
        "a squash's ends exist",
        "SELECT 'container ' || container || ': ' || last || ' to ' || below FROM squashes s
             WHERE NOT EXISTS(SELECT 1 FROM generations WHERE container = s.container AND number = s.last)
                OR (below <> 0
                    AND NOT EXISTS(SELECT 1 FROM generations WHERE container = s.container AND number = s.below))",
    ),
    (
        "a layer belongs to one generation or squash",
        "SELECT layer FROM (SELECT layer FROM generations UNION ALL SELECT layer FROM squashes)
             GROUP BY layer HAVING count(*) > 1",
    ),
    (
        "a committed exec's generation is of its layer",
        "SELECT 'exec ' || e.id FROM execs e WHERE disposition = 'committed'
             AND NOT EXISTS(SELECT 1 FROM generations g WHERE g.container = e.container AND g.number = e.generation
                                AND g.layer = e.layer AND g.exec = e.id)",
    ),
    (
        "an exec that waits for a decision or committed has a layer, one that dropped it has none",
        "SELECT 'exec ' || id || ' ' || disposition FROM execs
             WHERE (disposition IN ('held', 'conflict', 'committed') AND layer IS NULL)
                OR (disposition IN ('empty', 'discarded', 'shared') AND layer IS NOT NULL)",
    ),
    (
        "an exec that ended has its end and its event",
        "SELECT 'exec ' || id FROM execs e WHERE disposition IS NOT NULL AND (finished_ns IS NULL OR event IS NULL
             OR NOT EXISTS(SELECT 1 FROM events WHERE seq = e.event AND kind = 'exec'))",
    ),
    (
        "a removed container stays only while execs of it run",
        "SELECT 'container ' || id FROM containers c WHERE removed_ns IS NOT NULL
             AND NOT EXISTS(SELECT 1 FROM execs WHERE container = c.key AND disposition IS NULL)",
    ),
    (
        "one live container for a root and id",
        "SELECT id FROM containers WHERE removed_ns IS NULL GROUP BY id, root HAVING count(*) > 1",
    ),
];

impl Store {
    /// Looks for everything that must not be: damage of the database, broken invariants, layers without a directory, a
    /// broken event log. An empty list means that all is well.
    pub fn check(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        for (invariant, sql) in INVARIANTS {
            let broken = texts(&self.conn, sql)?;
            findings.extend(broken.into_iter().map(|what| Finding { invariant, what }));
        }
        for layer in reachable(&self.conn)? {
            let invariant = "a layer that a row names has its directories";
            match layer.parse::<LayerId>() {
                Ok(id) if self.upper(&id).is_dir() && self.work(&id).is_dir() => {}
                // It may have been released and deleted since we read the rows.
                Ok(_) if !reachable(&self.conn)?.contains(&layer) => {}
                Ok(_) | Err(_) => findings.push(Finding { invariant, what: layer }),
            }
        }
        match self.verify_events() {
            Ok(_) => {}
            Err(StoreError::Audit(e)) => {
                findings.push(Finding { invariant: "the event log is unbroken", what: e.to_string() });
            }
            Err(e) => return Err(e),
        }
        Ok(findings)
    }
}

fn texts(conn: &Connection, sql: &str) -> Result<Vec<String>, StoreError> {
    let mut select = conn.prepare(sql).during("check")?;
    let rows = select.query_map([], |row| row.get(0)).during("check")?;
    rows.collect::<rusqlite::Result<_>>().during("check")
}
