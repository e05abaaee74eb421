//! Generations: the tree that commits make, HEAD's place in it, and the chain of layers to mount for one of them.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::json;

use crate::id::{ExecId, Generation, LayerId, Revision};

use super::container::{by_key, live};
use super::error::DbContext;
use super::event::append;
use super::{Container, ContainerKey, Store, StoreError, generation, now_ns, number, parsed};

/// A committed generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationRow {
    /// Its number, from 1.
    pub number: Generation,
    /// What HEAD was when it was committed.
    pub parent: Generation,
    /// Its layer.
    pub layer: LayerId,
    /// The exec that made it.
    pub exec: ExecId,
    /// The layer's digest as its committer gave it.
    pub digest: Option<String>,
    /// The layer's size in bytes as its committer gave it.
    pub bytes: Option<u64>,
    /// When, in nanoseconds since 1970 UTC.
    pub committed_ns: i64,
    /// How many commits lead from the parent to it: 1, or more where those in between were dropped and merged into it.
    pub steps: u64,
}

/// What a committer says of the layer that it commits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitInfo {
    /// A digest of the layer, such as `sha256:…`; at most 128 bytes.
    pub digest: Option<String>,
    /// The layer's size in bytes.
    pub bytes: Option<u64>,
}

/// A merged layer: what the generations from `last` down to, and without, `below` changed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Squash {
    /// The newest generation in it.
    pub last: Generation,
    /// The ancestor of `last` on which it lies.
    pub below: Generation,
    /// How many times merged layers were merged again.
    pub level: u32,
    /// Its layer.
    pub layer: LayerId,
}

/// One layer to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lower {
    /// The layer.
    pub layer: LayerId,
    /// The newest generation in it.
    pub last: Generation,
    /// The generation on which it lies.
    pub below: Generation,
}

/// What a rollback did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rollback {
    /// HEAD before.
    pub from: Generation,
    /// HEAD now.
    pub to: Generation,
}

const COLUMNS: &str = "number, parent, layer, exec, digest, bytes, committed_ns, steps";

impl GenerationRow {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<GenerationRow> {
        Ok(GenerationRow {
            number: generation(row, 0)?,
            parent: generation(row, 1)?,
            layer: parsed(row, 2)?,
            exec: parsed(row, 3)?,
            digest: row.get(4)?,
            bytes: row.get::<_, Option<i64>>(5)?.map(|n| n as u64),
            committed_ns: row.get(6)?,
            steps: row.get::<_, i64>(7)? as u64,
        })
    }
}

impl Store {
    /// A container's HEAD.
    pub fn head(&self, key: ContainerKey) -> Result<Generation, StoreError> {
        Ok(live(&self.conn, key)?.head)
    }

    /// A generation's row; there is none for 0.
    pub fn generation(&self, key: ContainerKey, of: Generation) -> Result<GenerationRow, StoreError> {
        match row(&self.conn, key, of)? {
            Some(row) => Ok(row),
            None => Err(missing(&self.conn, key, of)),
        }
    }

    /// A generation and its ancestors, newest first, without 0 (which has no row).
    pub fn chain(&self, key: ContainerKey, from: Generation) -> Result<Vec<GenerationRow>, StoreError> {
        self.read("read chain", |tx| {
            // Every chain ends at 0.
            Ok(between(tx, key, Generation::ZERO, from)?.unwrap_or_default())
        })
    }

    /// All generations of a container, oldest first, also those that HEAD has left.
    pub fn generations(&self, key: ContainerKey) -> Result<Vec<GenerationRow>, StoreError> {
        all(&self.conn, key)
    }

    /// The generations after `base` up to `head`, newest first; `None` if `base` is no ancestor of `head` (nor `head`
    /// itself). Costs one look-up for each.
    pub fn between(
        &self,
        key: ContainerKey,
        base: Generation,
        head: Generation,
    ) -> Result<Option<Vec<GenerationRow>>, StoreError> {
        self.read("read chain", |tx| between(tx, key, base, head))
    }

    /// Whether `old` is `new` or an ancestor of it.
    pub fn is_ancestor(&self, key: ContainerKey, old: Generation, new: Generation) -> Result<bool, StoreError> {
        Ok(self.between(key, old, new)?.is_some())
    }

    /// The generation that a person named.
    pub fn resolve(&self, key: ContainerKey, revision: Revision) -> Result<Generation, StoreError> {
        self.read("resolve generation", |tx| {
            let head = live(tx, key)?.head;
            match revision {
                Revision::Number(number) => require(tx, key, number).map(|()| number),
                Revision::Ancestor(back) => {
                    let (mut at, mut depth) = (head, 0);
                    while depth < back {
                        if at == Generation::ZERO {
                            return Err(StoreError::TooFarBack { back, depth });
                        }
                        let found = row(tx, key, at)?.ok_or(StoreError::GenerationNotFound { generation: at })?;
                        depth += found.steps;
                        if depth > back {
                            return Err(StoreError::DroppedBack { back, on: at, parent: found.parent });
                        }
                        at = found.parent;
                    }
                    Ok(at)
                }
            }
        })
    }

    /// The layers to mount, newest first, so that the container's root file system under them shows `of`.
    ///
    /// Starts at `of`, takes the longest squash where there is one, ends at the settled generation or at 0. If the
    /// settled generation is no ancestor of `of`, the chain goes down to 0 and the root file system must be undone
    /// first.
    pub fn mount_chain(&self, key: ContainerKey, of: Generation) -> Result<Vec<Lower>, StoreError> {
        self.read("read mount chain", |tx| {
            let container = live(tx, key)?;
            mount_chain(tx, &container, of)
        })
    }

    /// The layers after `base` up to `of`, newest first, with the longest squashes that fit in between; `None` if `base` is
    /// no ancestor of `of` (nor `of` itself).
    pub fn layers_between(
        &self,
        key: ContainerKey,
        base: Generation,
        of: Generation,
    ) -> Result<Option<Vec<Lower>>, StoreError> {
        self.read("read layers", |tx| {
            if between(tx, key, base, of)?.is_none() {
                return Ok(None);
            }
            layers_down_to(tx, live(tx, key)?.key, of, base).map(Some)
        })
    }

    /// Moves HEAD to `to`, which must exist. What HEAD leaves stays, so this can be undone by another rollback.
    ///
    /// The caller holds the container's commit lock, so that no conflict check is under way.
    pub fn rollback(&self, key: ContainerKey, to: Generation) -> Result<Rollback, StoreError> {
        self.write("roll back", |tx| {
            let container = live(tx, key)?;
            require(tx, key, to)?;
            move_head(tx, &container, to)?;
            let payload = json!({"from": container.head, "to": to});
            append(tx, now_ns(), Some((key, &container.id)), "rollback", &payload)?;
            Ok(Rollback { from: container.head, to })
        })
    }

    /// Moves HEAD to 0, as [`Store::rollback`] does, after `killed` execs were killed for it.
    pub fn reset(&self, key: ContainerKey, killed: u64) -> Result<Rollback, StoreError> {
        self.write("reset", |tx| {
            let container = live(tx, key)?;
            let to = Generation::ZERO;
            move_head(tx, &container, to)?;
            let payload = json!({"from": container.head, "to": to, "killed": killed});
            append(tx, now_ns(), Some((key, &container.id)), "reset", &payload)?;
            Ok(Rollback { from: container.head, to })
        })
    }

    /// Records a merged layer, whose data is complete. `below` must be an ancestor of `last`.
    pub fn add_squash(&self, key: ContainerKey, squash: &Squash) -> Result<(), StoreError> {
        self.write("add squash", |tx| {
            live(tx, key)?;
            require(tx, key, squash.last)?;
            if squash.below >= squash.last || between(tx, key, squash.below, squash.last)?.is_none() {
                return Err(StoreError::GenerationNotFound { generation: squash.below });
            }
            tx.prepare_cached(
                "INSERT INTO squashes(container, last, below, level, layer, created_ns) VALUES(?, ?, ?, ?, ?, ?)",
            )
            .and_then(|mut s| {
                s.execute(params![
                    key.0,
                    number(squash.last.0),
                    number(squash.below.0),
                    squash.level,
                    squash.layer.to_string(),
                    now_ns()
                ])
            })
            .during("add squash")?;
            Ok(())
        })
    }

    /// A container's merged layers, by their newest generation, then the longest first.
    pub fn squashes(&self, key: ContainerKey) -> Result<Vec<Squash>, StoreError> {
        squashes(&self.conn, key)
    }
}

/// See [`Store::generations`].
pub(super) fn all(conn: &Connection, key: ContainerKey) -> Result<Vec<GenerationRow>, StoreError> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM generations WHERE container = ? ORDER BY number"))
        .and_then(|mut s| s.query_map([key.0], GenerationRow::from_row)?.collect())
        .during("list generations")
}

/// See [`Store::squashes`].
pub(super) fn squashes(conn: &Connection, key: ContainerKey) -> Result<Vec<Squash>, StoreError> {
    conn.prepare_cached("SELECT last, below, level, layer FROM squashes WHERE container = ? ORDER BY last, below")
        .and_then(|mut s| {
            s.query_map([key.0], |row| {
                Ok(Squash {
                    last: generation(row, 0)?,
                    below: generation(row, 1)?,
                    level: row.get(2)?,
                    layer: parsed(row, 3)?,
                })
            })?
            .collect()
        })
        .during("list squashes")
}

fn row(conn: &Connection, key: ContainerKey, of: Generation) -> Result<Option<GenerationRow>, StoreError> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM generations WHERE container = ? AND number = ?"))
        .and_then(|mut s| s.query_row(params![key.0, number(of.0)], GenerationRow::from_row).optional())
        .during("read generation")
}

/// Fails unless the generation is 0 or has a row.
pub(super) fn require(conn: &Connection, key: ContainerKey, of: Generation) -> Result<(), StoreError> {
    if of != Generation::ZERO && row(conn, key, of)?.is_none() {
        return Err(missing(conn, key, of));
    }
    Ok(())
}

/// What a generation without a row is: one that was dropped, or none there ever was.
fn missing(conn: &Connection, key: ContainerKey, of: Generation) -> StoreError {
    let told = || -> Result<StoreError, StoreError> {
        if of > by_key(conn, key)?.last_generation {
            return Ok(StoreError::GenerationNotFound { generation: of });
        }
        let why = conn
            .prepare_cached("SELECT dropped FROM execs WHERE container = ? AND generation = ? AND dropped IS NOT NULL")
            .and_then(|mut s| s.query_row(params![key.0, number(of.0)], |row| parsed(row, 0)).optional())
            .during("read generation")?;
        Ok(StoreError::GenerationDropped { generation: of, why })
    };
    told().unwrap_or_else(|err| err)
}

fn between(
    conn: &Connection,
    key: ContainerKey,
    base: Generation,
    head: Generation,
) -> Result<Option<Vec<GenerationRow>>, StoreError> {
    by_key(conn, key)?;
    let mut rows = Vec::new();
    let mut at = head;
    // A parent's number is less than its child's (the table checks it), so this ends.
    while at > base {
        let Some(found) = row(conn, key, at)? else { return Err(missing(conn, key, at)) };
        at = found.parent;
        rows.push(found);
    }
    Ok((at == base).then_some(rows))
}

/// See [`Store::mount_chain`].
pub(super) fn mount_chain(conn: &Connection, container: &Container, of: Generation) -> Result<Vec<Lower>, StoreError> {
    let settled = container.settled;
    // Above the settled generation a squash must not reach behind it; below it (the root file system shows something that
    // is no ancestor) any will do.
    let mut chain = layers_down_to(conn, container.key, of, settled)?;
    let last = chain.last().map_or(of, |lower| lower.below);
    if last < settled {
        chain.extend(layers_down_to(conn, container.key, last, Generation::ZERO)?);
    }
    Ok(chain)
}

/// The layers of `of` and its ancestors, newest first, as far as `floor`, or the first generation below that: none of them
/// reaches across it.
fn layers_down_to(
    conn: &Connection,
    key: ContainerKey,
    of: Generation,
    floor: Generation,
) -> Result<Vec<Lower>, StoreError> {
    const OP: &str = "read mount chain";
    let mut squash = conn
        .prepare_cached(
            "SELECT below, layer FROM squashes WHERE container = ? AND last = ? AND below >= ? ORDER BY below LIMIT 1",
        )
        .during(OP)?;
    let mut single =
        conn.prepare_cached("SELECT parent, layer FROM generations WHERE container = ? AND number = ?").during(OP)?;
    let lower =
        |last: Generation| move |row: &Row<'_>| Ok(Lower { below: generation(row, 0)?, layer: parsed(row, 1)?, last });
    let mut chain = Vec::new();
    let mut at = of;
    while at > floor {
        let merged =
            squash.query_row(params![key.0, number(at.0), number(floor.0)], lower(at)).optional().during(OP)?;
        let next = match merged {
            Some(found) => found,
            None => single
                .query_row(params![key.0, number(at.0)], lower(at))
                .optional()
                .during(OP)?
                .ok_or_else(|| missing(conn, key, at))?,
        };
        at = next.below;
        chain.push(next);
    }
    Ok(chain)
}

/// Points HEAD at a generation that exists. Where it was is kept, so that there is a way back.
fn move_head(tx: &Connection, container: &Container, to: Generation) -> Result<(), StoreError> {
    tx.prepare_cached("UPDATE containers SET head = ?, moved_from = ? WHERE key = ?")
        .and_then(|mut s| s.execute(params![number(to.0), number(container.head.0), container.key.0]))
        .during("move HEAD")?;
    Ok(())
}

/// Makes the next generation on HEAD, which must be `expected`, and moves HEAD to it.
pub(super) fn commit(
    tx: &Connection,
    container: &Container,
    expected: Generation,
    exec: &ExecId,
    layer: &LayerId,
    info: &CommitInfo,
    now: i64,
) -> Result<Generation, StoreError> {
    if container.removed_ns.is_some() {
        return Err(StoreError::ContainerRemoved { key: container.key });
    }
    if container.head != expected {
        return Err(StoreError::HeadMoved { expected, head: container.head });
    }
    if let Some(digest) = info.digest.as_ref().filter(|d| d.len() > 128) {
        return Err(StoreError::TooLarge { what: "layer digest", size: digest.len() as u64, limit: 128 });
    }
    let new = Generation(container.last_generation.0 + 1);
    tx.prepare_cached(
        "INSERT INTO generations(container, number, parent, layer, exec, digest, bytes, committed_ns)
         VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .and_then(|mut s| {
        s.execute(params![
            container.key.0,
            number(new.0),
            number(expected.0),
            layer.to_string(),
            exec.to_string(),
            info.digest,
            info.bytes.map(number),
            now
        ])
    })
    .during("add generation")?;
    tx.prepare_cached("UPDATE containers SET head = ?1, last_generation = ?1 WHERE key = ?2")
        .and_then(|mut s| s.execute(params![number(new.0), container.key.0]))
        .during("move HEAD")?;
    Ok(new)
}
