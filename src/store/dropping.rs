//! What is on record of a generation that was dropped: the exec's row has the bound, the log's event when, and what became
//! of its layer.

use std::fmt;

use rusqlite::params;
use serde_json::{Value, json};

use crate::id::Generation;
use crate::terms::Bound;

use super::error::DbContext;
use super::{ContainerKey, ExecRecord, Store, StoreError};

/// The most runs of numbers that an event lists. More there are only where many branches were made in turn.
const MAX_RUNS: usize = 1000;

/// How a committed layer was dropped to keep its container's history within bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropping {
    /// The generation that it was.
    pub generation: Generation,
    /// By which bound.
    pub why: Bound,
    /// What the log tells of it; none where the event is gone, or does not say for which generations it stands.
    pub told: Option<Told>,
}

/// What the event of a dropping tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// When, in nanoseconds since 1970 UTC.
    pub at_ns: i64,
    /// What the layer was merged into; none where a rollback had left the generation, and nothing stood on it.
    pub into: Option<Generation>,
}

impl fmt::Display for Dropping {
    /// For people, what follows "dropped".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(told) = &self.told {
            let at = chrono::DateTime::from_timestamp_nanos(told.at_ns);
            write!(f, "at {} ", at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true))?;
        }
        write!(f, "to keep the history within retention.{}", self.why)?;
        match self.told.map(|told| told.into) {
            Some(Some(into)) => write!(f, ", merged into generation {into}"),
            Some(None) => f.write_str(", left by a rollback"),
            None => Ok(()),
        }
    }
}

/// Numbers as an event lists them: the first and the last of each run. None where there are too many runs.
pub(super) fn runs(numbers: impl Iterator<Item = Generation>) -> Option<Value> {
    let mut numbers: Vec<u64> = numbers.map(|number| number.0).collect();
    numbers.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    (runs.len() <= MAX_RUNS).then(|| json!(runs))
}

/// Whether an event is of a generation: as it lists them, or where it does not, by the lowest and the highest.
fn names(payload: &Value, generation: Generation) -> bool {
    let within = |from: &Value, to: &Value| {
        from.as_u64().zip(to.as_u64()).is_some_and(|(from, to)| (from..=to).contains(&generation.0))
    };
    match payload["generations"].as_array() {
        Some(runs) => runs.iter().any(|run| within(&run[0], &run[1])),
        None => within(&payload["from"], &payload["to"]),
    }
}

impl Store {
    /// How an exec's layer was dropped, if it was.
    pub fn dropping(&self, key: ContainerKey, exec: &ExecRecord) -> Result<Option<Dropping>, StoreError> {
        const OP: &str = "read log";
        let Some((generation, why)) = exec.generation.zip(exec.dropped) else { return Ok(None) };
        let mut events = self
            .conn
            .prepare_cached(
                "SELECT time_ns, payload FROM events WHERE container = ?1 AND kind <> 'exec' AND kind = 'retention'
                     AND json_valid(payload) AND payload ->> '$.why' = ?2 ORDER BY seq",
            )
            .during(OP)?;
        let mut rows = events.query(params![key.0, why.as_str()]).during(OP)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().during(OP)? {
            let (at_ns, payload): (i64, String) = (row.get(0).during(OP)?, row.get(1).during(OP)?);
            let payload: Value = serde_json::from_str(&payload).unwrap_or(Value::Null);
            if names(&payload, generation) {
                found.push(Told { at_ns, into: payload["into"].as_u64().map(Generation) });
            }
        }
        // Several: their numbers are not listed, and it is among those of one of them.
        let told = if let [told] = found.as_slice() { Some(*told) } else { None };
        Ok(Some(Dropping { generation, why, told }))
    }

    /// Why an exec's layer is not one to commit or discard.
    pub fn not_held(&self, key: ContainerKey, exec: &ExecRecord) -> StoreError {
        match self.dropping(key, exec) {
            Ok(Some(dropping)) => StoreError::LayerDropped { exec: exec.id, dropping },
            Ok(None) => StoreError::NotHeld { exec: exec.id, disposition: exec.disposition },
            Err(err) => err,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_generations_an_event_is_of() {
        let listed = runs([4, 1, 2, 7].into_iter().map(Generation));
        assert_eq!(listed, Some(json!([[1, 2], [4, 4], [7, 7]])));
        assert_eq!(runs((0..3000).step_by(2).map(Generation)), None);
        let with = json!({"from": 1, "to": 7, "generations": listed});
        let without = json!({"from": 1, "to": 7});
        for (number, listed, spanned) in [(1, true, true), (3, false, true), (7, true, true), (8, false, false)] {
            assert_eq!((names(&with, Generation(number)), names(&without, Generation(number))), (listed, spanned));
        }
    }

    #[test]
    fn how_it_reads() {
        let mut dropping = Dropping { generation: Generation(3), why: Bound::Age, told: None };
        assert_eq!(dropping.to_string(), "to keep the history within retention.age");
        dropping.told = Some(Told { at_ns: 1_700_000_000_123_456_789, into: Some(Generation(4)) });
        let at = "at 2023-11-14T22:13:20Z to keep the history within retention.age";
        assert_eq!(dropping.to_string(), format!("{at}, merged into generation 4"));
        dropping.told = Some(Told { at_ns: 1_700_000_000_123_456_789, into: None });
        assert_eq!(dropping.to_string(), format!("{at}, left by a rollback"));
    }
}
