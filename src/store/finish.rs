//! How an exec ends: committed, discarded, held and so on, with its event, in one transaction; and what a person
//! decides later about a layer that was held.

use rusqlite::{Connection, params};
use serde_json::{Map, Value, json};

use crate::durable::fault;
use crate::id::{ExecId, Generation, LayerId};
use crate::terms::Disposition;

use super::container::{by_key, live, purge, running};
use super::error::{DbContext, IoContext};
use super::event::{self, append};
use super::exec::by_id;
use super::generation::commit;
use super::layer::Released;
use super::{
    CommitInfo, Container, ContainerKey, ExecRecord, MAX_FIELD, MAX_LIGHT_ROWS, MAX_RESULT, Store, StoreError, now_ns,
    number,
};

/// What is to become of an ending exec's layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// Make it a generation, if HEAD still is what the conflict check was made against.
    Commit {
        /// HEAD as it must be.
        expected_head: Generation,
        /// What is known of the layer.
        info: CommitInfo,
    },
    /// Drop it.
    Discard,
    /// Keep it for a later decision.
    Hold,
    /// Keep it: committing would lose an update.
    Conflict,
    /// Drop it: it changed nothing.
    Empty,
    /// Keep it: the supervisor died.
    Abort,
    /// There is none.
    Shared,
}

/// How an exec ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What is to become of its layer.
    pub ending: Ending,
    /// How the command ended, as in the result document; at most 64 KiB of JSON, like the next two.
    pub end: Option<Value>,
    /// What it cost, as in the result document.
    pub usage: Option<Value>,
    /// How many changes of which kind, as in the result document.
    pub summary: Option<Value>,
    /// The result document as JSON text, at most 1 MiB.
    pub result: Option<String>,
    /// How many processes it left behind that were killed.
    pub survivors: Option<u64>,
    /// When, in nanoseconds since 1970 UTC.
    pub finished_ns: i64,
}

/// What the end of an exec came to.
#[derive(Debug)]
#[must_use = "a released layer's data is still there: give it to Store::delete_layer once it is unmounted"]
pub struct Finished {
    /// What became of the layer. `Discarded` as well where it was to be held but the container is gone.
    pub disposition: Disposition,
    /// The generation that it became.
    pub generation: Option<Generation>,
    /// HEAD now.
    pub head: Generation,
    /// Layers that no row names any more: its own, if that was not kept; all of the container's, if that was removed
    /// meanwhile and this was its last exec.
    pub released: Vec<Released>,
}

const UPDATE: &str = "UPDATE execs SET layer = ?, disposition = ?, finished_ns = ?, generation = ?, event = ?,
         survivors = ?, \"end\" = ?, usage = ?, summary = ?, result = ?
     WHERE container = ? AND id = ?";

impl Store {
    /// Has what [`Store::finish_exec`] needs compiled and read, for a process that has nothing to do meanwhile.
    pub fn expect_end(&self, key: ContainerKey, exec: &ExecId) {
        // What fails here fails again when it is needed, and is told then.
        let _ = by_id(&self.conn, key, exec);
        for sql in [event::HEAD, event::INSERT, event::MOVE_HEAD, UPDATE] {
            let _ = self.conn.prepare_cached(sql);
        }
    }

    /// Records how an exec ended, in one transaction with all that follows from it.
    ///
    /// Nothing is written, and the exec still counts as running, where this fails: with [`StoreError::HeadMoved`]
    /// (check for conflicts again, then call again), [`StoreError::ContainerRemoved`] (a commit is not possible any
    /// more, discard), [`StoreError::ExecEnded`] (somebody recovered it), [`StoreError::NoLayer`],
    /// [`StoreError::TooLarge`].
    pub fn finish_exec(&self, key: ContainerKey, exec: &ExecId, outcome: &Outcome) -> Result<Finished, StoreError> {
        let end = bounded("end", outcome.end.as_ref())?;
        let usage = bounded("usage", outcome.usage.as_ref())?;
        let summary = bounded("summary", outcome.summary.as_ref())?;
        if let Some(size) = outcome.result.as_ref().map(String::len).filter(|n| *n > MAX_RESULT) {
            return Err(StoreError::TooLarge { what: "result", size: size as u64, limit: MAX_RESULT as u64 });
        }
        fault::step("finish exec").at("finish exec", &self.root)?;
        self.write("finish exec", |tx| {
            let container = by_key(tx, key)?;
            let record = by_id(tx, key, exec)?;
            if let Some(disposition) = record.disposition {
                return Err(StoreError::ExecEnded { exec: *exec, disposition });
            }
            let gone = container.removed_ns.is_some();
            let (mut disposition, wants_layer) = match outcome.ending {
                Ending::Commit { .. } => (Disposition::Committed, true),
                Ending::Discard => (Disposition::Discarded, false),
                Ending::Hold => (Disposition::Held, true),
                Ending::Conflict => (Disposition::Conflict, true),
                Ending::Empty => (Disposition::Empty, false),
                Ending::Abort => (Disposition::Aborted, false),
                Ending::Shared => (Disposition::Shared, false),
            };
            if wants_layer && record.layer.is_none() {
                return Err(StoreError::NoLayer { exec: *exec });
            }
            let (mut generation, mut info) = (None, None);
            if let (Ending::Commit { expected_head, info: given }, Some(layer)) = (&outcome.ending, &record.layer) {
                let now = outcome.finished_ns;
                generation = Some(commit(tx, &container, *expected_head, exec, layer, given, now)?);
                info = Some(given);
            } else if gone && disposition.is_held() && record.layer.is_some() {
                disposition = Disposition::Discarded;
            }
            let kept = record.layer.filter(|_| disposition == Disposition::Committed || disposition.is_held());
            let payload = exec_event(&record, disposition, generation, info, outcome);
            let event = append(tx, outcome.finished_ns, Some((key, &container.id)), "exec", &payload)?;
            let released = if gone {
                forget(tx, key, &record)?
            } else {
                tx.prepare_cached(UPDATE)
                    .and_then(|mut s| {
                        s.execute(params![
                            kept.map(|l| l.to_string()),
                            disposition.as_str(),
                            outcome.finished_ns,
                            generation.map(|g| number(g.0)),
                            number(event),
                            outcome.survivors.map(number),
                            end,
                            usage,
                            summary,
                            outcome.result,
                            key.0,
                            exec.to_string()
                        ])
                    })
                    .during("finish exec")?;
                // One ending in 32, by the random part of the id: cheap on average and no container is left out.
                if exec.to_string().ends_with('0') {
                    trim(tx, key, MAX_LIGHT_ROWS)?;
                }
                record.layer.filter(|_| kept.is_none()).map(Released).into_iter().collect()
            };
            Ok(Finished { disposition, generation, head: generation.unwrap_or(container.head), released })
        })
    }

    /// For tests: records that an exec's supervisor died. Its layer, if it had one, is held.
    #[cfg(test)]
    pub fn mark_aborted(
        &self,
        key: ContainerKey,
        exec: &ExecId,
        survivors: Option<u64>,
    ) -> Result<Finished, StoreError> {
        let end = json!({"kind": "error", "code": null, "signal": null, "message": "the supervisor was killed"});
        let outcome = Outcome {
            ending: Ending::Abort,
            end: Some(end),
            usage: None,
            summary: None,
            result: None,
            survivors,
            finished_ns: now_ns(),
        };
        self.finish_exec(key, exec, &outcome)
    }

    /// Makes a held layer a generation, if HEAD still is `expected_head`.
    pub fn commit_held(
        &self,
        key: ContainerKey,
        exec: &ExecId,
        expected_head: Generation,
        info: &CommitInfo,
    ) -> Result<Generation, StoreError> {
        self.write("commit held layer", |tx| {
            let (container, record, layer) = held(tx, key, exec)?;
            let now = now_ns();
            let new = commit(tx, &container, expected_head, exec, &layer, info, now)?;
            tx.prepare_cached(
                "UPDATE execs SET disposition = 'committed', generation = ? WHERE container = ? AND id = ?",
            )
            .and_then(|mut s| s.execute(params![number(new.0), key.0, exec.to_string()]))
            .during("commit held layer")?;
            let payload = json!({
                "exec": exec, "layer": layer, "was": record.disposition.map(Disposition::as_str),
                "base": record.base, "parent": expected_head, "generation": new, "digest": info.digest,
            });
            append(tx, now, Some((key, &container.id)), "commit", &payload)?;
            Ok(new)
        })
    }

    /// Drops a held layer: its row goes now, its data when the caller gives it to [`Store::delete_layer`].
    pub fn discard_held(&self, key: ContainerKey, exec: &ExecId) -> Result<Released, StoreError> {
        self.write("discard held layer", |tx| {
            let (container, record, layer) = held(tx, key, exec)?;
            tx.prepare_cached(
                "UPDATE execs SET disposition = 'discarded', layer = NULL WHERE container = ? AND id = ?",
            )
            .and_then(|mut s| s.execute(params![key.0, exec.to_string()]))
            .during("discard held layer")?;
            let was = record.disposition.map(Disposition::as_str);
            let payload = json!({"exec": exec, "layer": layer, "was": was});
            append(tx, now_ns(), Some((key, &container.id)), "discard", &payload)?;
            Ok(Released(layer))
        })
    }

    /// Removes the oldest exec rows of a container that kept no layer (`empty`, `discarded`) beyond `max`; says how
    /// many. Their events stay.
    pub fn trim(&self, key: ContainerKey, max: u64) -> Result<u64, StoreError> {
        self.write("trim", |tx| trim(tx, key, max))
    }
}

fn trim(tx: &Connection, key: ContainerKey, max: u64) -> Result<u64, StoreError> {
    tx.prepare_cached(
        "DELETE FROM execs WHERE seq IN (
             SELECT seq FROM execs WHERE container = ? AND disposition IN ('empty', 'discarded', 'shared')
             ORDER BY seq DESC LIMIT -1 OFFSET ?)",
    )
    .and_then(|mut s| s.execute(params![key.0, number(max)]))
    .map(|n| n as u64)
    .during("trim")
}

/// The exec if its layer waits for a decision.
fn held(tx: &Connection, key: ContainerKey, exec: &ExecId) -> Result<(Container, ExecRecord, LayerId), StoreError> {
    let container = live(tx, key)?;
    let record = by_id(tx, key, exec)?;
    if !record.disposition.is_some_and(Disposition::is_held) {
        return Err(StoreError::NotHeld { exec: *exec, disposition: record.disposition });
    }
    let layer = record.layer.ok_or(StoreError::NoLayer { exec: *exec })?;
    Ok((container, record, layer))
}

/// Takes away the row of an exec whose container was removed, and with the last of them all that the container had.
fn forget(tx: &Connection, key: ContainerKey, record: &ExecRecord) -> Result<Vec<Released>, StoreError> {
    tx.prepare_cached("DELETE FROM execs WHERE container = ? AND id = ?")
        .and_then(|mut s| s.execute(params![key.0, record.id.to_string()]))
        .during("finish exec")?;
    let mut released: Vec<Released> = record.layer.map(Released).into_iter().collect();
    if running(tx, key)? == 0 {
        released.extend(purge(tx, key)?);
    }
    Ok(released)
}

fn exec_event(
    record: &ExecRecord,
    disposition: Disposition,
    generation: Option<Generation>,
    info: Option<&CommitInfo>,
    outcome: &Outcome,
) -> Value {
    let mut event = Map::new();
    let mut put = |name: &str, value: Value| event.insert(name.to_owned(), value);
    put("exec", json!(record.id));
    if let Some(alias) = &record.engine_exec {
        put("engineExec", json!(alias));
    }
    put("args", json!(record.args));
    if record.args_dropped > 0 {
        put("argsDropped", json!(record.args_dropped));
    }
    put("cwd", json!(record.cwd.to_string_lossy()));
    put("uid", json!(record.uid));
    put("gid", json!(record.gid));
    put("mode", json!(record.mode.as_str()));
    put("base", json!(record.base));
    put("disposition", json!(disposition.as_str()));
    if let Some(generation) = generation {
        put("generation", json!(generation));
    }
    if let Some(layer) = &record.layer {
        put("layer", json!(layer));
    }
    if let Some(digest) = info.and_then(|i| i.digest.as_ref()) {
        put("digest", json!(digest));
    }
    put("startedNs", json!(record.started_ns));
    put("finishedNs", json!(outcome.finished_ns));
    if let Some(end) = &outcome.end {
        put("end", end.clone());
    }
    Value::Object(event)
}

fn bounded(what: &'static str, value: Option<&Value>) -> Result<Option<String>, StoreError> {
    let Some(text) = value.map(Value::to_string) else { return Ok(None) };
    if text.len() > MAX_FIELD {
        return Err(StoreError::TooLarge { what, size: text.len() as u64, limit: MAX_FIELD as u64 });
    }
    Ok(Some(text))
}
