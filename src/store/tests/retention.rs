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
