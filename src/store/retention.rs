//! Old generations: which of them go by the bounds of a history, and their rows' going. A plan is data, as the collector's;
//! it is carried out in one transaction, if the history still is what it was made of.
//!
//! The oldest go first, wherever they are in the tree. One that goes is merged into what was made on it; so one that
//! several are made on stays until at most one of them is left.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rusqlite::{Connection, params};
use serde_json::json;

use crate::id::{Generation, LayerId};
use crate::terms::{Bound, Retention};

use super::container::live;
use super::dropping::runs;
use super::error::DbContext;
use super::event::append;
use super::generation::{all, squashes};
use super::layer::{Released, released};
use super::{
    Container, ContainerKey, GenerationRow, Lower, MAX_LIGHT_ROWS, Squash, Store, StoreError, generation, now_ns,
    number,
};

/// How many generations at most get a new layer by one plan that is carried out.
pub const MAX_FOLDS: usize = 64;

/// Of a history, about so many looks are made while it grows to twice its size.
const LOOKS: u64 = 64;

/// Who keeps a generation: the queries for the numbers that they keep, of the container ?1. Snapshots will be a line here.
const PINS: [&str; 5] = [
    "SELECT head FROM containers WHERE key = ?1",
    "SELECT settled FROM containers WHERE key = ?1",
    "SELECT base FROM execs WHERE container = ?1
         AND (disposition IS NULL OR (disposition IN ('held', 'conflict', 'aborted') AND layer IS NOT NULL))",
    // Where the last rollback came from, so that it can be undone however old that is.
    "SELECT moved_from FROM containers WHERE key = ?1 AND moved_from IS NOT NULL",
    // What `apply` has last brought to the host, whole or in part: by its layers the host's state is known again.
    "SELECT generation FROM applied WHERE container = ?1",
];

/// A generation that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Its row.
    pub row: GenerationRow,
    /// By which bound.
    pub why: Bound,
    /// The generation that it is merged into; none for the end of a branch that was left.
    pub into: Option<Generation>,
}

/// A generation that others are merged into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fold {
    /// The generation.
    pub into: Generation,
    /// Its parent then.
    pub parent: Generation,
    /// The layers whose merging is its layer then, newest first; one alone is a squash that takes its place.
    pub layers: Vec<Lower>,
    /// The generations in them, newest first: itself, and those that go.
    pub rows: Vec<GenerationRow>,
}

impl Fold {
    /// How many commits lead from the new parent to it.
    fn steps(&self) -> u64 {
        self.rows.iter().map(|row| row.steps).sum()
    }
}

/// What is to go of a container's history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetentionPlan {
    /// What goes, in the order in which it was chosen.
    pub dropped: Vec<Dropped>,
    /// What is merged.
    pub folds: Vec<Fold>,
    /// How many generations stay.
    pub kept: u64,
}

/// The layer that takes the place of a [`Fold`]'s layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// The generation.
    pub into: Generation,
    /// Its layer, whole.
    pub layer: LayerId,
    /// The sum of the sizes of its files, bytes.
    pub bytes: Option<u64>,
}

/// The history is another than the plan was made of: make a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale;

impl RetentionPlan {
    /// What goes, by what it is merged into and by which bound.
    pub fn places(&self) -> BTreeMap<(Option<Generation>, Bound), Vec<&Dropped>> {
        let mut places: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for dropped in &self.dropped {
            places.entry((dropped.into, dropped.why)).or_default().push(dropped);
        }
        places
    }

    /// Whether it does so much that it pays to carry it out now rather than later: by age always.
    pub fn is_worth(&self, bounds: &Retention) -> bool {
        let of = |why| self.dropped.iter().filter(move |dropped| dropped.why == why);
        let bytes: u64 = of(Bound::Bytes).filter_map(|dropped| dropped.row.bytes).sum();
        of(Bound::Age).next().is_some()
            || bounds.generations.is_some_and(|most| of(Bound::Generations).count() as u64 > most / 10)
            || bounds.bytes.is_some_and(|most| bytes > most / 10)
    }
}

/// The order in which generations go, each with the bound by which it does.
///
/// `rows`: the whole history. HEAD and what is pinned stay.
pub(super) fn choose(
    rows: &[GenerationRow],
    head: Generation,
    pinned: &BTreeSet<Generation>,
    bounds: &Retention,
    now: i64,
) -> Vec<(Generation, Bound)> {
    struct Node {
        parent: Generation,
        children: BTreeSet<Generation>,
        bytes: u64,
        committed_ns: i64,
    }
    let mut nodes: BTreeMap<Generation, Node> = BTreeMap::new();
    for row in rows {
        let node = Node {
            parent: row.parent,
            children: BTreeSet::new(),
            bytes: row.bytes.unwrap_or(0),
            committed_ns: row.committed_ns,
        };
        nodes.insert(row.number, node);
        if let Some(parent) = nodes.get_mut(&row.parent) {
            parent.children.insert(row.number);
        }
    }
    // The oldest of HEAD's line is what all of it stands on: it is no history.
    let mut bottom = head;
    while let Some(node) = nodes.get(&bottom).filter(|node| node.parent != Generation::ZERO) {
        bottom = node.parent;
    }
    let mut bytes: u64 =
        nodes.iter().filter(|(g, _)| **g != head && **g != bottom).map(|(_, n)| n.bytes).fold(0, u64::saturating_add);
    let cutoff = bounds.age.map(|age| now.saturating_sub(i64::try_from(age.as_nanos()).unwrap_or(i64::MAX)));
    let stays = |g: &Generation| *g == head || pinned.contains(g);
    let mut next: BTreeSet<Generation> =
        nodes.iter().filter(|(g, n)| n.children.len() < 2 && !stays(g)).map(|(g, _)| *g).collect();
    let mut order = Vec::new();
    while let Some(oldest) = next.pop_first() {
        let Some(node) = nodes.get(&oldest) else { continue };
        let why = if cutoff.is_some_and(|cutoff| node.committed_ns < cutoff) {
            Bound::Age
        } else if bounds.generations.is_some_and(|most| nodes.len() as u64 > most) {
            Bound::Generations
        } else if bounds.bytes.is_some_and(|most| bytes > most) {
            Bound::Bytes
        } else {
            break;
        };
        let Some(node) = nodes.remove(&oldest) else { continue };
        let heir = node.children.first().copied();
        if let Some(heir) = heir.and_then(|heir| nodes.get_mut(&heir)) {
            heir.parent = node.parent;
        }
        if oldest == bottom {
            bottom = heir.unwrap_or(head);
            let state = nodes.get(&bottom).filter(|_| bottom != head);
            bytes = bytes.saturating_sub(state.map_or(0, |node| node.bytes));
        } else {
            bytes = bytes.saturating_sub(node.bytes);
        }
        if let Some(parent) = nodes.get_mut(&node.parent) {
            parent.children.remove(&oldest);
            parent.children.extend(heir);
            if parent.children.len() < 2 && !stays(&node.parent) {
                next.insert(node.parent);
            }
        }
        order.push((oldest, why));
    }
    order
}

/// What follows from dropping generations, in this order: the first so many of it that no more than `folds` are merged
/// into.
fn plan(rows: &[GenerationRow], merged: &[Squash], order: &[(Generation, Bound)], folds: usize) -> RetentionPlan {
    let by_number: BTreeMap<Generation, &GenerationRow> = rows.iter().map(|row| (row.number, row)).collect();
    let mut take = order.len();
    loop {
        let gone: BTreeMap<Generation, Bound> = order[..take].iter().copied().collect();
        let kept = rows.iter().filter(|row| !gone.contains_key(&row.number));
        let into: Vec<&GenerationRow> = kept.filter(|row| gone.contains_key(&row.parent)).collect();
        if into.len() > folds {
            take /= 2;
            continue;
        }
        let folds: Vec<Fold> = into.into_iter().map(|row| fold(row, &by_number, merged, &gone)).collect();
        let heirs: HashMap<Generation, Generation> =
            folds.iter().flat_map(|fold| fold.rows.iter().map(|row| (row.number, fold.into))).collect();
        let dropped = order[..take].iter().filter_map(|(g, why)| {
            let row = (*by_number.get(g)?).clone();
            Some(Dropped { row, why: *why, into: heirs.get(g).copied() })
        });
        return RetentionPlan { dropped: dropped.collect(), folds, kept: (rows.len() - take) as u64 };
    }
}

fn fold(
    into: &GenerationRow,
    rows: &BTreeMap<Generation, &GenerationRow>,
    merged: &[Squash],
    gone: &BTreeMap<Generation, Bound>,
) -> Fold {
    let mut chain = vec![into.clone()];
    let mut parent = into.parent;
    while let Some(row) = rows.get(&parent).filter(|_| gone.contains_key(&parent)) {
        chain.push((*row).clone());
        parent = row.parent;
    }
    let mut layers = Vec::new();
    let mut at = into.number;
    // As for mounting: the longest squash that does not reach further.
    for row in &chain {
        if row.number > at || at == parent {
            continue;
        }
        let squash = merged.iter().filter(|s| s.last == at && s.below >= parent).min_by_key(|s| s.below);
        let next = match squash {
            Some(squash) => Lower { layer: squash.layer, last: at, below: squash.below },
            None => Lower { layer: row.layer, last: at, below: row.parent },
        };
        at = next.below;
        layers.push(next);
    }
    Fold { into: into.number, parent, layers, rows: chain }
}

impl Store {
    /// Whether a container's history may have outgrown its bounds by a fifth, or layers wait for being deleted: a rough
    /// look of some microseconds, which a growing history gets less often.
    pub fn is_retention_due(&self, key: ContainerKey, bounds: &Retention) -> Result<bool, StoreError> {
        let retired = "SELECT EXISTS(SELECT 1 FROM retired WHERE container = ?)";
        let retired: bool = self
            .conn
            .prepare_cached(retired)
            .and_then(|mut s| s.query_row([key.0], |row| row.get(0)))
            .during("look for old generations")?;
        if retired {
            return Ok(true);
        }
        if bounds.is_unbounded() {
            return Ok(false);
        }
        let container = live(&self.conn, key)?;
        let count = container.last_generation.0.saturating_sub(container.dropped);
        if count < 2 || !container.last_generation.0.is_multiple_of((count / LOOKS).max(1)) {
            return Ok(false);
        }
        let over = |most: u64| most.saturating_add((most / 5).max(1));
        if bounds.generations.is_some_and(|most| count > over(most)) {
            return Ok(true);
        }
        if bounds.bytes.is_none() && bounds.age.is_none() {
            return Ok(false);
        }
        // The merged layer at the bottom, and HEAD's, are mostly what HEAD shows.
        let (bytes, oldest): (Option<i64>, Option<i64>) = self
            .conn
            .prepare_cached(
                "SELECT sum(bytes) FILTER (WHERE number <> ?2 AND (parent <> 0 OR steps = 1)), min(committed_ns)
                 FROM generations WHERE container = ?1 AND number <> ?2",
            )
            .and_then(|mut s| {
                s.query_row(params![key.0, number(container.head.0)], |row| Ok((row.get(0)?, row.get(1)?)))
            })
            .during("look for old generations")?;
        let old = bounds.age.zip(oldest).is_some_and(|(age, oldest)| {
            let most = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
            now_ns().saturating_sub(oldest) > most.saturating_add(most / 5)
        });
        Ok(old || bounds.bytes.is_some_and(|most| bytes.unwrap_or(0) as u64 > over(most)))
    }

    /// What is to go of a container's history by its bounds. With `folds`, only so much of it that no more generations than
    /// that are merged into. Changes nothing.
    pub fn plan_retention(
        &self,
        key: ContainerKey,
        bounds: &Retention,
        folds: Option<usize>,
    ) -> Result<RetentionPlan, StoreError> {
        self.read("look for old generations", |tx| {
            let container = live(tx, key)?;
            let rows = all(tx, key)?;
            let order = choose(&rows, container.head, &pinned(tx, key)?, bounds, now_ns());
            let merged = if order.is_empty() { Vec::new() } else { squashes(tx, key)? };
            Ok(plan(&rows, &merged, &order, folds.unwrap_or(usize::MAX)))
        })
    }

    /// Takes the rows of dropped generations away, and gives those that they were merged into their new layers, one in
    /// `replaced` for each of the plan's folds. Layers that an exec may have mounted are kept until it has ended.
    ///
    /// The caller holds the container's [`super::DropLock`]; the new layers are whole.
    pub fn drop_generations(
        &self,
        key: ContainerKey,
        plan: &RetentionPlan,
        replaced: &[Replaced],
    ) -> Result<Result<Vec<Released>, Stale>, StoreError> {
        self.write("drop old generations", |tx| {
            let container = live(tx, key)?;
            let fits = plan.folds.iter().map(|fold| fold.into).eq(replaced.iter().map(|new| new.into));
            if !fits || !holds(tx, &container, plan)? {
                return Ok(Err(Stale));
            }
            let layers = take(tx, key, plan, replaced)?;
            for ((into, why), dropped) in plan.places() {
                let new = replaced.iter().find(|new| Some(new.into) == into);
                tell(tx, &container, why, &dropped, new)?;
            }
            trim(tx, key)?;
            let newest = newest_base(tx, key)?;
            let (retired, free): (Vec<_>, Vec<_>) =
                layers.into_iter().partition(|(_, last)| newest.is_some_and(|base| base >= *last));
            for (layer, last) in retired {
                tx.prepare_cached(
                    "INSERT INTO retired(layer, container, number, exec)
                     SELECT ?1, ?2, ?3, max(seq) FROM execs WHERE container = ?2",
                )
                .and_then(|mut s| s.execute(params![layer, key.0, number(last.0)]))
                .during("drop old generations")?;
            }
            Ok(Ok(released(free.into_iter().map(|(layer, _)| layer).collect())?))
        })
    }

    /// The retired layers, of one container or of all, whose execs have ended: nothing names them any more.
    pub fn release_retired(&self, key: Option<ContainerKey>) -> Result<Vec<Released>, StoreError> {
        const OP: &str = "release layers";
        let none: bool =
            self.conn.query_row("SELECT NOT EXISTS(SELECT 1 FROM retired)", [], |row| row.get(0)).during(OP)?;
        if none {
            return Ok(Vec::new());
        }
        self.write(OP, |tx| {
            let ids: Vec<String> = tx
                .prepare_cached(
                    "DELETE FROM retired WHERE (?1 IS NULL OR container = ?1)
                         AND NOT EXISTS(SELECT 1 FROM execs e WHERE e.container = retired.container
                             AND e.disposition IS NULL AND e.base >= retired.number AND e.seq <= retired.exec)
                     RETURNING layer",
                )
                .and_then(|mut s| s.query_map([key.map(|k| k.0)], |row| row.get(0))?.collect())
                .during(OP)?;
            released(ids)
        })
    }
}

/// The generations that somebody keeps.
fn pinned(tx: &Connection, key: ContainerKey) -> Result<BTreeSet<Generation>, StoreError> {
    tx.prepare_cached(&PINS.join(" UNION "))
        .and_then(|mut s| s.query_map([key.0], |row| generation(row, 0))?.collect())
        .during("look for old generations")
}

/// Whether the history is as far as the plan goes what it was made of.
fn holds(tx: &Connection, container: &Container, plan: &RetentionPlan) -> Result<bool, StoreError> {
    let pins = pinned(tx, container.key)?;
    let rows = all(tx, container.key)?;
    let is: HashMap<Generation, &GenerationRow> = rows.iter().map(|row| (row.number, row)).collect();
    let gone: HashMap<Generation, Option<Generation>> = plan.dropped.iter().map(|d| (d.row.number, d.into)).collect();
    let same = |row: &GenerationRow| is.get(&row.number).is_some_and(|now| **now == *row);
    let planned = plan.dropped.iter().map(|dropped| &dropped.row).chain(plan.folds.iter().flat_map(|fold| &fold.rows));
    if plan.dropped.iter().any(|dropped| pins.contains(&dropped.row.number)) || !planned.into_iter().all(same) {
        return Ok(false);
    }
    // Nothing else was made on what goes.
    let heir = |row: &GenerationRow| match gone.get(&row.parent) {
        Some(into) => gone.contains_key(&row.number) || *into == Some(row.number),
        None => true,
    };
    let squash = |lower: &Lower| {
        let merged = squashes(tx, container.key)?;
        Ok::<_, StoreError>(
            merged.iter().any(|s| s.layer == lower.layer && (s.last, s.below) == (lower.last, lower.below)),
        )
    };
    for fold in &plan.folds {
        if let [lower] = fold.layers.as_slice()
            && !squash(lower)?
        {
            return Ok(false);
        }
    }
    Ok(rows.iter().all(heir))
}

/// Takes and changes the rows: the layers that no row names any more, each with the newest generation in it.
fn take(
    tx: &Connection,
    key: ContainerKey,
    plan: &RetentionPlan,
    replaced: &[Replaced],
) -> Result<Vec<(String, Generation)>, StoreError> {
    const OP: &str = "drop old generations";
    let gone: BTreeSet<Generation> = plan.dropped.iter().map(|dropped| dropped.row.number).collect();
    let mut layers: Vec<(String, Generation)> = Vec::new();
    for squash in squashes(tx, key)? {
        let taken = replaced.iter().any(|new| new.layer == squash.layer);
        if !taken && !gone.contains(&squash.last) && !gone.contains(&squash.below) {
            continue;
        }
        tx.prepare_cached("DELETE FROM squashes WHERE container = ? AND last = ? AND below = ?")
            .and_then(|mut s| s.execute(params![key.0, number(squash.last.0), number(squash.below.0)]))
            .during(OP)?;
        if !taken {
            layers.push((squash.layer.to_string(), squash.last));
        }
    }
    for dropped in &plan.dropped {
        tx.prepare_cached("DELETE FROM generations WHERE container = ? AND number = ?")
            .and_then(|mut s| s.execute(params![key.0, number(dropped.row.number.0)]))
            .during(OP)?;
        tx.prepare_cached("UPDATE execs SET layer = NULL, dropped = ? WHERE container = ? AND id = ?")
            .and_then(|mut s| s.execute(params![dropped.why.as_str(), key.0, dropped.row.exec.to_string()]))
            .during(OP)?;
        layers.push((dropped.row.layer.to_string(), dropped.row.number));
    }
    for (fold, new) in plan.folds.iter().zip(replaced) {
        let Some(own) = fold.rows.first() else { continue };
        tx.prepare_cached(
            "UPDATE generations SET parent = ?, layer = ?, bytes = ?, steps = ? WHERE container = ? AND number = ?",
        )
        .and_then(|mut s| {
            s.execute(params![
                number(fold.parent.0),
                new.layer.to_string(),
                new.bytes.map(number),
                number(fold.steps()),
                key.0,
                number(fold.into.0)
            ])
        })
        .during(OP)?;
        tx.prepare_cached("UPDATE execs SET layer = NULL WHERE container = ? AND id = ?")
            .and_then(|mut s| s.execute(params![key.0, own.exec.to_string()]))
            .during(OP)?;
        layers.push((own.layer.to_string(), own.number));
    }
    tx.prepare_cached("UPDATE containers SET dropped = dropped + ? WHERE key = ?")
        .and_then(|mut s| s.execute(params![number(plan.dropped.len() as u64), key.0]))
        .during(OP)?;
    Ok(layers)
}

/// Appends the event of what went into one place by one bound.
fn tell(
    tx: &Connection,
    container: &Container,
    why: Bound,
    dropped: &[&Dropped],
    new: Option<&Replaced>,
) -> Result<(), StoreError> {
    let numbers = || dropped.iter().map(|dropped| dropped.row.number);
    let bytes: u64 = dropped.iter().filter_map(|dropped| dropped.row.bytes).sum();
    let mut payload = json!({
        "from": numbers().min(), "to": numbers().max(), "layers": dropped.len(), "bytes": bytes, "why": why.as_str(),
    });
    if let Some((runs, members)) = runs(numbers()).zip(payload.as_object_mut()) {
        members.insert("generations".into(), runs);
    }
    if let Some((new, members)) = new.zip(payload.as_object_mut()) {
        members.insert("into".into(), json!(new.into));
        members.insert("layer".into(), json!(new.layer));
    }
    append(tx, now_ns(), Some((container.key, &container.id)), "retention", &payload)?;
    Ok(())
}

/// Removes the oldest exec rows whose generations were dropped. Their events stay.
fn trim(tx: &Connection, key: ContainerKey) -> Result<(), StoreError> {
    tx.prepare_cached(
        "DELETE FROM execs WHERE seq IN (
             SELECT seq FROM execs WHERE container = ? AND dropped IS NOT NULL ORDER BY seq DESC LIMIT -1 OFFSET ?)",
    )
    .and_then(|mut s| s.execute(params![key.0, number(MAX_LIGHT_ROWS)]))
    .map(drop)
    .during("drop old generations")
}

/// Of the running execs of a container the newest base, if there are any.
fn newest_base(tx: &Connection, key: ContainerKey) -> Result<Option<Generation>, StoreError> {
    let base: Option<i64> = tx
        .prepare_cached("SELECT max(base) FROM execs WHERE container = ? AND disposition IS NULL")
        .and_then(|mut s| s.query_row([key.0], |row| row.get(0)))
        .during("drop old generations")?;
    Ok(base.map(|base| Generation(base as u64)))
}
