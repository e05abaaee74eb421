//! What is dropped with time: old events, whose chain can be verified all the same, and rows of execs without a layer.

use rusqlite::Connection;

use super::super::event::{PRUNE_EVERY, prune};
use super::super::schema::{MIGRATIONS, migrate};
use super::*;
use crate::audit::Break;

/// Execs that change nothing, without a layer.
fn checks(store: &Store, key: ContainerKey, times: u64) {
    for _ in 0..times {
        let exec = new_exec(None);
        store.begin_exec(key, &exec).unwrap();
        let _ = store.finish_exec(key, &exec.id, &outcome(Ending::Shared)).unwrap();
    }
}

#[test]
fn the_event_log_is_bounded_and_can_be_verified() {
    let f = fixture();
    let s = f.store.keeping_events(300);
    let key = s.add_container(&new_container("c")).unwrap();
    commit(&s, key);
    let mut most = 0;
    for _ in 0..30 {
        checks(&s, key, 60);
        most = most.max(s.verify_events().unwrap().count);
    }
    assert!((300..=300 + 2 * PRUNE_EVERY as u64).contains(&most), "{most}");
    assert!(s.verify_events().unwrap().head.seq > 1800);
    assert_sound(&s);
    assert!(s.export_events(0).all(|line| line.is_ok()));
    assert_eq!(s.log(key).unwrap().len() as u64, s.execs(key).unwrap().len() as u64);
    // With more to keep nothing is lost, and with everything nothing is dropped.
    let before = s.verify_events().unwrap();
    let s = s.keeping_events(0);
    checks(&s, key, 600);
    assert_eq!(s.verify_events().unwrap().count, before.count + 600);
}

/// Taking the oldest events away and moving the base behind them is found: the event that tells so is missing, or tells of
/// another place.
#[test]
fn a_start_that_no_event_tells_of_is_found() {
    for pruned_before in [false, true] {
        let f = fixture();
        let s = &f.store;
        let key = s.add_container(&new_container("c")).unwrap();
        checks(s, key, 20);
        if pruned_before {
            prune(&s.conn, 10).unwrap();
            s.verify_events().unwrap();
        }
        s.conn
            .execute_batch(
                "UPDATE chain SET base_seq = 15, base_hash = (SELECT hash FROM events WHERE seq = 15);
                 DELETE FROM events WHERE seq <= 15",
            )
            .unwrap();
        match s.verify_events() {
            Err(StoreError::Audit(err)) => assert_eq!((err.seq, err.what), (15, Break::Base)),
            other => panic!("{other:?}"),
        }
    }
}

/// Execs in a container with a read-only root have no layer: their rows were never dropped.
#[test]
fn rows_without_a_layer_are_bounded_in_every_mode() {
    let f = fixture();
    let key = f.store.add_container(&new_container("c")).unwrap();
    checks(&f.store, key, 1600);
    let rows = f.store.execs(key).unwrap().len() as u64;
    assert!((MAX_LIGHT_ROWS..MAX_LIGHT_ROWS + 400).contains(&rows), "{rows}");
}

/// A database of version 1.
#[test]
fn version_1_is_brought_to_version_2() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db.sqlite");
    let conn = Connection::open(&path).unwrap();
    migrate(&conn, &path, &MIGRATIONS[..1]).unwrap();
    conn.execute_batch(
        "INSERT INTO containers(id, root, bundle, rootfs, created_ns) VALUES('c', x'2f', x'2f', x'2f', 1);
         INSERT INTO execs(id, container, args, args_dropped, cwd, uid, gid, mode, base, supervisor_pid, cgroups,
                           started_ns, disposition) VALUES('e', 1, '[]', 0, x'2f', 0, 0, 'shared', 0, 1, x'', 1, 'shared')",
    )
    .unwrap();
    migrate(&conn, &path, &MIGRATIONS[..2]).unwrap();
    let index: String =
        conn.query_row("SELECT sql FROM sqlite_schema WHERE name = 'execs_light'", [], |row| row.get(0)).unwrap();
    assert!(index.contains("'shared'"), "{index}");
    assert_eq!(conn.query_row("SELECT count(*) FROM execs", [], |row| row.get::<_, i64>(0)).unwrap(), 1);
}

/// The log is bounded, what it told of may be needed for longer: where the last rollback came from, and what `apply` has
/// brought to the host.
#[test]
fn what_is_kept_does_not_depend_on_how_much_is_logged() {
    let f = fixture();
    let s = f.store.keeping_events(100);
    let key = s.add_container(&new_container("c")).unwrap();
    commit_times(&s, key, 6);
    s.append_applied(key, Path::new("/work"), Generation(3), &serde_json::json!({})).unwrap();
    s.append_applied(key, Path::new("/"), Generation(4), &serde_json::json!({})).unwrap();
    s.append_applied(key, Path::new("/work"), Generation(2), &serde_json::json!({})).unwrap();
    s.rollback(key, Generation(1)).unwrap();
    let bounds = crate::terms::Retention { generations: Some(1), ..Default::default() };
    let dropped = || -> Vec<u64> {
        s.plan_retention(key, &bounds, None).unwrap().dropped.iter().map(|dropped| dropped.row.number.0).collect()
    };
    let before = dropped();
    assert_eq!(before, [3, 5]);
    checks(&s, key, 600);
    assert_eq!(dropped(), before);
    assert_sound(&s);
    for released in s.remove_container(key).unwrap().released {
        s.delete_layer(released).unwrap();
    }
    assert_sound(&s);
}

/// A database of version 4: what was told by the log alone is taken from there.
#[test]
fn version_4_is_brought_to_version_5() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db.sqlite");
    let conn = Connection::open(&path).unwrap();
    migrate(&conn, &path, &MIGRATIONS[..4]).unwrap();
    let event = |seq: u64, key: u64, kind: &str, payload: &str| {
        format!("INSERT INTO events VALUES({seq}, 1, {key}, 'c', '{kind}', '{payload}', x'', x'');")
    };
    let events: Vec<String> = [
        (1, "rollback", r#"{"from": 7, "to": 1}"#),
        (1, "rollback", r#"{"from": 5, "to": 2}"#),
        (1, "exec", r#"{"from": 9, "path": "/", "generation": 9}"#),
        (1, "apply", r#"{"path": "/old", "generation": 1}"#),
        (1, "apply", r#"{"path": "/", "generation": 2}"#),
        (1, "apply", r#"{"path": "/work", "generation": 3}"#),
        (1, "apply", r#"{"path": "/work", "generation": 4}"#),
        (1, "apply", "{"),
        (2, "apply", r#"{"path": "/a", "generation": 6}"#),
        (3, "apply", r#"{"path": "/", "generation": 8}"#),
    ]
    .iter()
    .zip(1..)
    .map(|((key, kind, payload), seq)| event(seq, *key, kind, payload))
    .collect();
    let add = |id: &str| {
        format!("INSERT INTO containers(id, root, bundle, rootfs, created_ns) VALUES('{id}', x'2f', x'2f', x'2f', 1);")
    };
    conn.execute_batch(&[add("c"), add("d"), events.concat()].concat()).unwrap();
    migrate(&conn, &path, &MIGRATIONS[..5]).unwrap();
    let rows = |sql: &str| -> Vec<String> {
        let mut select = conn.prepare(sql).unwrap();
        select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(rows("SELECT id || ' ' || coalesce(moved_from, 'none') FROM containers"), ["c 5", "d none"]);
    let applied = rows("SELECT container || ' ' || CAST(path AS TEXT) || ' ' || generation FROM applied");
    assert_eq!(applied, ["1 / 2", "1 /work 4", "2 /a 6"]);
}
