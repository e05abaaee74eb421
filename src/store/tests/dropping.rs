//! Generations that are dropped: which they are, and what their rows, and those of others, say afterwards.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::super::retention::choose;
use super::super::schema::{MIGRATIONS, migrate};
use super::*;
use crate::terms::{Bound, Retention};

fn bounds(generations: u64) -> Retention {
    Retention { generations: Some(generations), ..Retention::default() }
}

/// A row of 10 bytes, committed in the second of its number.
fn row((number, parent): (u64, u64)) -> GenerationRow {
    GenerationRow {
        number: Generation(number),
        parent: Generation(parent),
        layer: LayerId::new(),
        exec: ExecId::new(),
        digest: None,
        bytes: Some(10),
        committed_ns: number as i64 * 1_000_000_000,
        steps: 1,
    }
}

#[test]
fn the_oldest_go_and_what_is_needed_stays() {
    use Bound::{Age, Bytes, Generations as Count};
    const LINE: &[(u64, u64)] = &[(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)];
    // 2 and 3 were left for 4; 5 and 6 for 7; both on 1.
    const TREE: &[(u64, u64)] = &[(1, 0), (2, 1), (3, 2), (4, 1), (5, 4), (6, 5), (7, 4)];
    let none = Retention::default();
    let most = |n| bounds(n);
    let bytes = |n| Retention { bytes: Some(n), ..none };
    let age = |s| Retention { age: Some(Duration::from_secs(s)), ..none };
    type Case<'a> = (&'a [(u64, u64)], u64, &'a [u64], Retention, &'a [(u64, Bound)]);
    let cases: &[Case<'_>] = &[
        (LINE, 5, &[], none, &[]),
        (LINE, 5, &[], most(5), &[]),
        (LINE, 5, &[], most(3), &[(1, Count), (2, Count)]),
        (LINE, 5, &[2], most(3), &[(1, Count), (3, Count)]),
        (LINE, 5, &[], most(1), &[(1, Count), (2, Count), (3, Count), (4, Count)]),
        // HEAD was reset: all is left behind.
        (LINE, 0, &[], most(2), &[(1, Count), (2, Count), (3, Count)]),
        // HEAD was rolled back: what comes after it is newer.
        (LINE, 2, &[], most(3), &[(1, Count), (3, Count)]),
        // 2, 3 and 4 count; then 3 and 4, since 2 is what all stands on.
        (LINE, 5, &[], bytes(30), &[]),
        (LINE, 5, &[], bytes(29), &[(1, Bytes)]),
        (LINE, 5, &[], bytes(1), &[(1, Bytes), (2, Bytes), (3, Bytes)]),
        // It is the tenth second.
        (LINE, 5, &[], age(7), &[(1, Age), (2, Age)]),
        (LINE, 5, &[], age(1), &[(1, Age), (2, Age), (3, Age), (4, Age)]),
        (LINE, 5, &[], Retention { age: Some(Duration::from_secs(8)), ..most(3) }, &[(1, Age), (2, Count)]),
        // What several were made on stays until the others have gone.
        (TREE, 7, &[], most(6), &[(2, Count)]),
        (TREE, 7, &[], most(5), &[(2, Count), (3, Count)]),
        (TREE, 7, &[], most(4), &[(2, Count), (3, Count), (1, Count)]),
        (TREE, 7, &[], most(2), &[(2, Count), (3, Count), (1, Count), (5, Count), (6, Count)]),
        (TREE, 7, &[3], most(2), &[(2, Count), (5, Count), (6, Count), (4, Count)]),
    ];
    for (tree, head, pins, bounds, want) in cases {
        let rows: Vec<GenerationRow> = tree.iter().copied().map(row).collect();
        let pins: BTreeSet<Generation> = pins.iter().copied().map(Generation).collect();
        let got = choose(&rows, Generation(*head), &pins, bounds, 10_000_000_000);
        let got: Vec<(u64, Bound)> = got.into_iter().map(|(g, why)| (g.0, why)).collect();
        assert_eq!(&got, want, "{tree:?}, HEAD {head}, pinned {pins:?}, {bounds:?}");
    }
}

/// Carries a plan out with empty layers.
fn carry_out(store: &Store, key: ContainerKey, plan: &RetentionPlan) -> Result<Vec<Released>, Stale> {
    let lock = store.drop_lock(key).unwrap().unwrap();
    let mut replaced = Vec::new();
    let mut staged = Vec::new();
    for fold in &plan.folds {
        let layer = match fold.layers.as_slice() {
            [one] => one.layer,
            _ => {
                let new = store.create_layer().unwrap();
                let id = new.id();
                staged.push(new);
                id
            }
        };
        replaced.push(Replaced { into: fold.into, layer, bytes: Some(7) });
    }
    let released = store.drop_generations(key, plan, &replaced).unwrap()?;
    staged.into_iter().for_each(|layer| {
        layer.keep();
    });
    drop(lock);
    Ok(released)
}

fn drop_to(store: &Store, key: ContainerKey, generations: u64) -> Vec<Released> {
    let plan = store.plan_retention(key, &bounds(generations), None).unwrap();
    carry_out(store, key, &plan).unwrap()
}

fn delete_all(store: &Store, layers: Vec<Released>) {
    layers.into_iter().for_each(|layer| store.delete_layer(layer).unwrap());
}

#[test]
fn rows_tell_what_was_dropped() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    commit_times(s, key, 8);
    let third = s.generation(key, Generation(3)).unwrap();
    let released = drop_to(s, key, 4);
    assert_eq!(released.len(), 5, "four that went, and the own one of 5");
    delete_all(s, released);
    assert_sound(s);
    assert!(s.plan_gc().unwrap().delete.is_empty());
    assert_eq!(layers_on_disk(&f.root()), 4);
    let chain = s.chain(key, Generation(8)).unwrap();
    assert_eq!(numbers(&chain), [8, 7, 6, 5]);
    assert_eq!((chain[3].parent, chain[3].steps, chain[3].bytes), (Generation::ZERO, 5, Some(7)));
    let container = s.container(key).unwrap();
    assert_eq!((container.dropped, container.last_generation), (4, Generation(8)));

    // Numbers and @-N mean what they meant, or are told to be gone.
    let resolve = |revision| s.resolve(key, revision).map(|g| g.0);
    assert_eq!(resolve(Revision::Number(Generation(5))).unwrap(), 5);
    assert_eq!([0, 3, 8].map(|back| resolve(Revision::Ancestor(back)).unwrap()), [8, 5, 0]);
    for back in 4..8 {
        let err = resolve(Revision::Ancestor(back)).unwrap_err();
        assert!(matches!(err, StoreError::DroppedBack { .. }), "@-{back}: {err}");
    }
    assert!(matches!(resolve(Revision::Ancestor(9)), Err(StoreError::TooFarBack { depth: 8, .. })));
    let is_dropped = |err: &StoreError| matches!(err, StoreError::GenerationDropped { .. });
    let err = s.rollback(key, Generation(3)).unwrap_err();
    assert!(is_dropped(&err) && err.to_string().contains("retention.generations"), "{err}");
    assert!(is_dropped(&s.generation(key, Generation(4)).unwrap_err()));
    assert!(is_dropped(&s.mount_chain(key, Generation(2)).unwrap_err()));
    assert!(matches!(s.rollback(key, Generation(9)), Err(StoreError::GenerationNotFound { .. })));

    // The execs' rows stay.
    let exec = s.exec(key, &third.exec.to_string()).unwrap();
    assert_eq!((exec.dropped, exec.generation, exec.layer), (Some(Bound::Generations), Some(Generation(3)), None));
    assert!(s.result(key, &third.exec).unwrap().is_some());
    let told: Vec<serde_json::Value> = s
        .log(key)
        .unwrap()
        .iter()
        .filter_map(|entry| match entry {
            LogEntry::Event(event) if event.kind == "retention" => serde_json::from_str(&event.payload).ok(),
            _ => None,
        })
        .collect();
    let layer = chain[3].layer;
    let want = serde_json::json!({"from": 1, "to": 4, "layers": 4, "bytes": 12, "why": "generations", "into": 5, "layer": layer,
        "generations": [[1, 4]]});
    assert_eq!(told, [want]);
    let at_ns = s.log(key).unwrap().iter().rev().find_map(|entry| match entry {
        LogEntry::Event(event) if event.kind == "retention" => Some(event.time_ns),
        _ => None,
    });
    let told = Some(Told { at_ns: at_ns.unwrap(), into: Some(Generation(5)) });
    let dropping = Dropping { generation: Generation(3), why: Bound::Generations, told };
    assert_eq!(s.dropping(key, &exec).unwrap(), Some(dropping));
    let refused = s.not_held(key, &exec).to_string();
    assert!(refused.ends_with(&format!("committed as generation 3, which was dropped {dropping}")), "{refused}");

    // Once more, over what was merged before.
    commit_times(s, key, 4);
    delete_all(s, drop_to(s, key, 4));
    assert_sound(s);
    let chain = s.chain(key, Generation(12)).unwrap();
    assert_eq!((numbers(&chain), chain[3].steps), (vec![12, 11, 10, 9], 9));
    assert_eq!(layers_on_disk(&f.root()), 4);
    // What the events tell of the merged layer is held against its row.
    s.conn.execute("UPDATE generations SET layer = ? WHERE number = 9", [LayerId::new().to_string()]).unwrap();
    let found = s.check().unwrap();
    assert!(found.iter().any(|f| f.what.contains("generation 9: its layer or digest is another one")), "{found:#?}");
}

#[test]
fn bases_of_what_runs_or_is_held_stay() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    commit_times(s, key, 2);
    let (held, _) = run(s, key, Ending::Hold);
    commit_times(s, key, 2);
    let (running, begun) = begin(s, key);
    commit_times(s, key, 4);
    let released = drop_to(s, key, 1);
    assert_eq!(numbers(&s.chain(key, Generation(8)).unwrap()), [8, 4, 2]);
    assert_sound(s);
    // 1 to 4 are mounted by the exec that runs; 5 to 8 are not.
    assert_eq!(released.len(), 4);
    delete_all(s, released);
    assert!(begun.chain.iter().all(|lower| s.upper(&lower.layer).is_dir()));
    let plan = s.plan_gc().unwrap();
    assert!(plan.delete.is_empty() && plan.missing.is_empty(), "{plan:#?}");
    assert!(s.release_retired(None).unwrap().is_empty());
    // An exec that begins later has the new ones.
    let (later, since) = begin(s, key);
    let finished = s.finish_exec(key, &running, &outcome(commit_on(Generation(8)))).unwrap();
    assert_eq!(finished.generation, Some(Generation(9)));
    let released = s.release_retired(Some(key)).unwrap();
    assert_eq!(released.len(), 4, "begun later, and so has none of them");
    delete_all(s, released);
    assert!(since.chain.iter().all(|lower| s.upper(&lower.layer).is_dir()));
    let _ = s.finish_exec(key, &later, &outcome(Ending::Hold)).unwrap();
    assert_eq!(s.commit_held(key, &held, Generation(9), &CommitInfo::default()).unwrap(), Generation(10));
    assert_sound(s);
    assert!(s.plan_gc().unwrap().delete.is_empty());
    assert_eq!(layers_on_disk(&f.root()), s.plan_gc().unwrap().kept);
    // Removed while layers are retired: they go with the rest.
    let (last, _) = begin(s, key);
    assert!(drop_to(s, key, 1).is_empty(), "all are mounted by the one that runs");
    let _ = s.finish_exec(key, &last, &outcome(Ending::Hold)).unwrap();
    delete_all(s, s.remove_container(key).unwrap().released);
    assert_eq!(layers_on_disk(&f.root()), 0);
    assert_sound(s);
}

#[test]
fn a_squash_that_fits_is_the_new_layer() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    commit_times(s, key, 9);
    let squash = |last: u64, below: u64| {
        let merged = s.create_layer().unwrap();
        let (last, below) = (Generation(last), Generation(below));
        s.add_squash(key, &Squash { last, below, level: 1, layer: merged.id() }).unwrap();
        merged.keep()
    };
    let (fits, _inside, _over, above) = (squash(5, 0), squash(4, 2), squash(7, 3), squash(9, 5));
    let plan = s.plan_retention(key, &bounds(5), None).unwrap();
    assert_eq!(plan.folds.len(), 1);
    assert_eq!(plan.folds[0].layers.iter().map(|lower| lower.layer).collect::<Vec<_>>(), [fits]);
    delete_all(s, carry_out(s, key, &plan).unwrap());
    assert_eq!(s.generation(key, Generation(5)).unwrap().layer, fits);
    assert_eq!(s.squashes(key).unwrap().iter().map(|s| s.layer).collect::<Vec<_>>(), [above]);
    assert_eq!(s.mount_chain(key, Generation(9)).unwrap().iter().map(|l| l.layer).collect::<Vec<_>>(), [above, fits]);
    assert_sound(s);
    assert!(s.plan_gc().unwrap().delete.is_empty());
}

/// Nothing is done by a plan that was made of another history.
#[test]
fn a_plan_is_for_the_history_that_it_was_made_of() {
    let f = fixture();
    let s = &f.store;
    type Change = fn(&Store, ContainerKey);
    let changes: [(&str, Change); 4] = [
        ("HEAD is what was to go", |s, key| {
            s.rollback(key, Generation(2)).unwrap();
        }),
        ("an exec runs on it", |s, key| {
            s.rollback(key, Generation(2)).unwrap();
            begin(s, key);
            s.rollback(key, Generation(6)).unwrap();
        }),
        ("another was made on it", |s, key| {
            s.rollback(key, Generation(2)).unwrap();
            commit(s, key);
            s.rollback(key, Generation(6)).unwrap();
        }),
        ("it went already", |s, key| delete_all(s, drop_to(s, key, 3))),
    ];
    for (n, (what, change)) in changes.into_iter().enumerate() {
        let key = s.add_container(&new_container(&format!("c{n}"))).unwrap();
        commit_times(s, key, 6);
        let plan = s.plan_retention(key, &bounds(3), None).unwrap();
        change(s, key);
        let before = s.generations(key).unwrap();
        assert_eq!(carry_out(s, key, &plan), Err(Stale), "{what}");
        assert_eq!(s.generations(key).unwrap(), before, "{what}");
        assert_sound(s);
    }
}

/// Rows of execs whose generations went were kept for ever.
#[test]
fn rows_of_dropped_generations_are_bounded() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    for _ in 0..3 {
        commit_times(s, key, 500);
        delete_all(s, drop_to(s, key, 10));
    }
    let execs = s.execs(key).unwrap();
    assert_eq!(execs.iter().filter(|exec| exec.dropped.is_some()).count() as u64, MAX_LIGHT_ROWS);
    assert_eq!(execs.len() as u64, MAX_LIGHT_ROWS + 10);
    // Of one that has no row any more it is known that it was dropped, not by which bound.
    match s.generation(key, Generation(1)) {
        Err(err @ StoreError::GenerationDropped { why: None, .. }) => assert!(err.to_string().contains("retention in")),
        other => panic!("{other:?}"),
    }
    assert_sound(s);
}

#[test]
fn it_is_due_when_a_fifth_is_over() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    let due = |bounds: Retention| s.is_retention_due(key, &bounds).unwrap();
    let bytes = |n| Retention { bytes: Some(n), ..Retention::default() };
    let age = |ns| Retention { age: Some(Duration::from_nanos(ns)), ..Retention::default() };
    commit_times(s, key, 12);
    assert!(!due(Retention::default()));
    assert_eq!([12, 10, 9].map(|n| due(bounds(n))), [false, false, true]);
    // Eleven besides HEAD, of three bytes each.
    assert_eq!([33, 28, 27].map(|n| due(bytes(n))), [false, false, true]);
    assert_eq!([3_600_000_000_000, 1].map(|n| due(age(n))), [false, true]);
    let worth = |plan: &RetentionPlan, bounds: Retention| plan.is_worth(&bounds);
    let plan = s.plan_retention(key, &bounds(10), None).unwrap();
    assert!(worth(&plan, bounds(10)) && !worth(&plan, bounds(20)));
    // Layers that wait for their deletion are due, too.
    let (exec, _) = begin(s, key);
    let _ = drop_to(s, key, 5);
    assert!(due(Retention::default()));
    let _ = s.finish_exec(key, &exec, &outcome(Ending::Hold)).unwrap();
    delete_all(s, s.release_retired(Some(key)).unwrap());
    assert!(!due(Retention::default()));
}

/// A database of version 3.
#[test]
fn version_3_is_brought_to_version_4() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db.sqlite");
    let conn = Connection::open(&path).unwrap();
    migrate(&conn, &path, &MIGRATIONS[..3]).unwrap();
    conn.execute_batch(
        "INSERT INTO containers(id, root, bundle, rootfs, created_ns, head, last_generation)
             VALUES('c', x'2f', x'2f', x'2f', 1, 1, 1);
         INSERT INTO generations VALUES(1, 1, 0, '01J00000000000000000000000', '01J00000000000000000000001', NULL, 3, 1);
         INSERT INTO execs(id, container, args, args_dropped, cwd, uid, gid, mode, base, supervisor_pid, cgroups,
                           started_ns, disposition, generation)
             VALUES('e', 1, '[]', 0, x'2f', 0, 0, 'commit', 0, 1, x'', 1, 'committed', 1)",
    )
    .unwrap();
    migrate(&conn, &path, &MIGRATIONS[..4]).unwrap();
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("SELECT dropped FROM containers"), 0);
    assert_eq!(number("SELECT steps FROM generations"), 1);
    assert_eq!(number("SELECT count(*) FROM execs WHERE dropped IS NULL"), 1);
    assert_eq!(number("SELECT count(*) FROM retired"), 0);
}
