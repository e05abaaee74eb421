//! Integrity: whether the database is sound and every invariant of docs/on-disk-format.md holds.

use std::collections::HashMap;

use rusqlite::Connection;

use crate::error::{Classify, Kind};
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

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: it does not hold that {}", self.what, self.invariant)
    }
}

const STRUCTURE: &str = "SQLite's own structure";
const QUICK: &str = "SELECT quick_check FROM pragma_quick_check WHERE quick_check <> 'ok'";
const WHOLE: &str = "SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'";

/// Each query yields one text for each row that breaks the invariant.
const INVARIANTS: &[(&str, &str)] = &[
    (
        "rows refer to containers that exist",
        "SELECT \"table\" || ' row ' || coalesce(rowid, '?') FROM pragma_foreign_key_check",
    ),
    (
        "HEAD exists",
        "SELECT 'container ' || id || ': HEAD is ' || head FROM containers c WHERE head <> 0
             AND NOT EXISTS(SELECT 1 FROM generations WHERE container = c.key AND number = c.head)",
    ),
    (
        "the settled generation exists",
        "SELECT 'container ' || id || ': ' || settled FROM containers c WHERE settled <> 0
             AND NOT EXISTS(SELECT 1 FROM generations WHERE container = c.key AND number = c.settled)",
    ),
    (
        "a generation's parent exists",
        "SELECT 'container ' || coalesce((SELECT id FROM containers WHERE key = g.container), g.container) || ': generation '
             || number || ' on ' || parent FROM generations g WHERE parent <> 0
             AND NOT EXISTS(SELECT 1 FROM generations WHERE container = g.container AND number = g.parent)",
    ),
    (
        "no generation's number is above the last one given out",
        "SELECT 'container ' || c.id || ': ' || g.number FROM generations g JOIN containers c ON c.key = g.container
             WHERE g.number > c.last_generation",
    ),
    (
        "each number that was given out is a generation, or counted as dropped",
        "SELECT 'container ' || id || ': ' || last_generation || ' numbers, ' || n || ' generations, ' || dropped || ' dropped'
             FROM (SELECT *, (SELECT count(*) FROM generations WHERE container = c.key) n FROM containers c)
             WHERE n + dropped <> last_generation",
    ),
    (
        "a squash's ends exist",
        "SELECT 'container ' || coalesce((SELECT id FROM containers WHERE key = s.container), s.container) || ': '
             || last || ' to ' || below FROM squashes s
             WHERE NOT EXISTS(SELECT 1 FROM generations WHERE container = s.container AND number = s.last)
                OR (below <> 0
                    AND NOT EXISTS(SELECT 1 FROM generations WHERE container = s.container AND number = s.below))",
    ),
    (
        "a layer belongs to one generation or squash or copy-on-write mount, or is retired",
        "SELECT layer FROM (SELECT layer FROM generations UNION ALL SELECT layer FROM squashes
                                UNION ALL SELECT layer FROM cow_mounts UNION ALL SELECT layer FROM retired)
             GROUP BY layer HAVING count(*) > 1",
    ),
    (
        "a committed exec's generation is of its layer, or was dropped, or has others merged into it",
        "SELECT 'exec ' || e.id FROM execs e WHERE disposition = 'committed' AND dropped IS NULL
             AND NOT EXISTS(SELECT 1 FROM generations g WHERE g.container = e.container AND g.number = e.generation
                                AND g.exec = e.id AND (g.layer = e.layer OR (g.steps > 1 AND e.layer IS NULL)))",
    ),
    (
        "a generation that was dropped is none, and has no layer",
        "SELECT 'exec ' || e.id FROM execs e WHERE dropped IS NOT NULL AND (layer IS NOT NULL OR generation IS NULL
             OR dropped NOT IN ('generations', 'bytes', 'age')
             OR EXISTS(SELECT 1 FROM generations g WHERE g.container = e.container AND g.number = e.generation))",
    ),
    (
        "what a running exec or a held layer is based on exists",
        "SELECT 'exec ' || e.id || ': ' || base FROM execs e WHERE base <> 0
             AND (disposition IS NULL OR (disposition IN ('held', 'conflict', 'aborted') AND layer IS NOT NULL))
             AND NOT EXISTS(SELECT 1 FROM generations g WHERE g.container = e.container AND g.number = e.base)",
    ),
    (
        "an exec that waits for a decision has a layer, one that dropped it has none",
        "SELECT 'exec ' || id || ' ' || disposition FROM execs
             WHERE (disposition IN ('held', 'conflict') AND layer IS NULL)
                OR (disposition IN ('empty', 'discarded', 'shared') AND layer IS NOT NULL)",
    ),
    (
        "an exec that ended has its end and its event",
        "SELECT 'exec ' || id FROM execs e WHERE disposition IS NOT NULL AND (finished_ns IS NULL OR event IS NULL
             OR (event > (SELECT base_seq FROM chain)
                 AND NOT EXISTS(SELECT 1 FROM events WHERE seq = e.event AND kind = 'exec')))",
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

/// A generation, by its container's key and its number.
type Place = (i64, i64);

impl Store {
    /// Looks for everything that must not be: damage of the database, broken invariants, layers without a directory, a
    /// broken event log. An empty list means that all is well.
    pub fn check(&self) -> Result<Vec<Finding>, StoreError> {
        self.check_with(QUICK)
    }

    /// The same with every index and every page of the database: slower where it is large.
    pub fn check_whole(&self) -> Result<Vec<Finding>, StoreError> {
        self.check_with(WHOLE)
    }

    /// Fails if the rows can't be relied on: SQLite's structure is damaged, or an invariant that they have among
    /// themselves is broken. What nobody seems to need may be needed then.
    pub fn require_sound(&self) -> Result<(), StoreError> {
        match self.broken_rows(WHOLE)?.into_iter().next() {
            Some(Finding { invariant, what }) => {
                Err(StoreError::Damaged { what: Finding { invariant, what }.to_string() })
            }
            None => Ok(()),
        }
    }

    fn broken_rows(&self, structure: &'static str) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        for (invariant, sql) in [(STRUCTURE, structure)].iter().chain(INVARIANTS) {
            match texts(&self.conn, sql) {
                Ok(broken) => findings.extend(broken.into_iter().map(|what| Finding { invariant, what })),
                // What can't be read because of damage is damage.
                Err(err) => findings.push(Finding { invariant, what: damage(err)? }),
            }
        }
        let told: [(_, fn(&Connection) -> _); 2] = [
            ("a generation is what the event log says of it", untold_generations),
            ("a container is what the event log says of it", untold_containers),
        ];
        for (invariant, look) in told {
            match self.read("check", look) {
                Ok(broken) => findings.extend(broken.into_iter().map(|what| Finding { invariant, what })),
                Err(err) => findings.push(Finding { invariant, what: damage(err)? }),
            }
        }
        Ok(findings)
    }

    fn check_with(&self, structure: &'static str) -> Result<Vec<Finding>, StoreError> {
        let mut findings = self.broken_rows(structure)?;
        match reachable(&self.conn) {
            Ok(layers) => {
                for layer in layers {
                    self.check_layer(layer, &mut findings)?;
                }
            }
            Err(err) => findings.push(Finding { invariant: STRUCTURE, what: damage(err)? }),
        }
        let invariant = "the event log is unbroken";
        match self.verify_events() {
            Ok(_) => {}
            Err(StoreError::Audit(e)) => findings.push(Finding { invariant, what: e.to_string() }),
            Err(err) => findings.push(Finding { invariant, what: damage(err)? }),
        }
        Ok(findings)
    }

    fn check_layer(&self, layer: String, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
        let invariant = "a layer that a row names has its directories";
        match layer.parse::<LayerId>() {
            Ok(id) if self.upper(&id).is_dir() && self.work(&id).is_dir() => {}
            // It may have been released and deleted since we read the rows.
            Ok(_) if !reachable(&self.conn)?.contains(&layer) => {}
            Ok(_) | Err(_) => {
                findings.push(Finding { invariant, what: format!("layer {layer}: a directory is missing") })
            }
        }
        Ok(())
    }
}

/// What a failure says of the data; a failure that is none of the data's is one of checking.
fn damage(err: StoreError) -> Result<String, StoreError> {
    if err.kind() == Kind::Corrupt { Ok(err.to_string()) } else { Err(err) }
}

/// The generations of which the event log says something else, or should say something and does not.
fn untold_generations(tx: &Connection) -> Result<Vec<String>, StoreError> {
    const OP: &str = "check";
    let base: i64 = tx.query_row("SELECT base_seq FROM chain", [], |row| row.get(0)).during(OP)?;
    let mut told: HashMap<Place, (Option<String>, Option<String>)> = HashMap::new();
    let mut select = tx
        .prepare(
            "SELECT container, payload ->> '$.generation', payload ->> '$.layer', payload ->> '$.digest' FROM events
             WHERE kind IN ('exec', 'commit') AND json_valid(payload) AND payload ->> '$.generation' IS NOT NULL",
        )
        .during(OP)?;
    let mut rows = select.query([]).during(OP)?;
    while let Some(row) = rows.next().during(OP)? {
        let read = || Ok(((row.get(0)?, row.get(1)?), (row.get(2)?, row.get(3)?)));
        let (place, what) = read().during(OP)?;
        told.insert(place, what);
    }
    // Layers that took over from those at the commit, the newest last.
    let mut select = tx
        .prepare(
            "SELECT container, payload ->> '$.into', payload ->> '$.layer' FROM events
             WHERE kind = 'retention' AND json_valid(payload) AND payload ->> '$.into' IS NOT NULL ORDER BY seq",
        )
        .during(OP)?;
    let mut rows = select.query([]).during(OP)?;
    while let Some(row) = rows.next().during(OP)? {
        let read = || Ok(((row.get(0)?, row.get(1)?), row.get(2)?));
        let (place, layer): (Place, Option<String>) = read().during(OP)?;
        // Where the event of the commit is gone, so is what was said of the digest.
        if let Some((told, _)) = told.get_mut(&place) {
            *told = layer;
        }
    }
    let mut broken = Vec::new();
    let mut select = tx
        .prepare("SELECT c.id, g.container, g.number, g.layer, g.digest FROM generations g JOIN containers c ON c.key = g.container")
        .during(OP)?;
    let mut rows = select.query([]).during(OP)?;
    while let Some(row) = rows.next().during(OP)? {
        let read = || {
            let id: String = row.get(0)?;
            let place: Place = (row.get(1)?, row.get(2)?);
            let is: (Option<String>, Option<String>) = (row.get(3)?, row.get(4)?);
            Ok((id, place, is))
        };
        let (id, place, is) = read().during(OP)?;
        let why = match told.get(&place) {
            Some(told) if *told != is => "its layer or digest is another one",
            // Its event may be among those that retention has dropped.
            None if base == 0 => "no event tells of it",
            _ => continue,
        };
        broken.push(format!("container {id}: generation {}: {why}", place.1));
    }
    Ok(broken)
}

/// The same for containers: their ids and places.
fn untold_containers(tx: &Connection) -> Result<Vec<String>, StoreError> {
    const OP: &str = "check";
    let base: i64 = tx.query_row("SELECT base_seq FROM chain", [], |row| row.get(0)).during(OP)?;
    let mut select = tx
        .prepare(
            "SELECT c.key, c.id, c.root, c.bundle, c.rootfs, e.container_id, e.payload FROM containers c
             LEFT JOIN events e ON e.container = c.key AND e.kind <> 'exec' AND e.kind = 'container-created'",
        )
        .during(OP)?;
    let mut rows = select.query([]).during(OP)?;
    let mut broken = Vec::new();
    while let Some(row) = rows.next().during(OP)? {
        let read = || {
            let place = |n| -> rusqlite::Result<String> {
                Ok(String::from_utf8_lossy(row.get_ref(n)?.as_blob()?).into_owned())
            };
            let is: [String; 3] = [place(2)?, place(3)?, place(4)?];
            let told: (Option<String>, Option<String>) = (row.get(5)?, row.get(6)?);
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, is, told))
        };
        let (key, id, is, told) = read().during(OP)?;
        let why = match told {
            (Some(told_id), Some(payload)) => {
                let payload: serde_json::Value = serde_json::from_str(&payload).unwrap_or_default();
                let same = ["root", "bundle", "rootfs"].iter().zip(&is).all(|(name, is)| payload[name] == is.as_str());
                if same && told_id == id { continue } else { "its id or place is another one" }
            }
            // Its event may be among those that retention has dropped.
            _ if base > 0 => continue,
            _ => "no event tells of it",
        };
        broken.push(format!("container {id} ({key}): {why}"));
    }
    Ok(broken)
}

fn texts(conn: &Connection, sql: &str) -> Result<Vec<String>, StoreError> {
    let mut select = conn.prepare(sql).during("check")?;
    let rows = select.query_map([], |row| row.get(0)).during("check")?;
    rows.collect::<rusqlite::Result<_>>().during("check")
}
