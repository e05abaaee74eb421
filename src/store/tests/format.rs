//! Opening: what is made, what is refused and in which words, migrations, and a database or disk that fails.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rusqlite::Connection;

use super::super::schema::{MIGRATIONS, migrate};
use super::*;
use crate::durable::fault;

#[test]
fn opening_makes_a_private_store_and_opens_it_again() {
    let f = fixture();
    let mode = |p: &Path| p.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&f.root()), 0o700);
    for name in ["layers", "trash", "locks"] {
        assert_eq!(mode(&f.root().join(name)), 0o700, "{name}");
    }
    for name in ["db.sqlite", "db.sqlite-wal", "db.sqlite-shm"] {
        assert_eq!(mode(&f.root().join(name)), 0o600, "{name}");
    }
    let key = f.store.add_container(&new_container("c")).unwrap();
    let again = Store::open(&f.root()).unwrap();
    assert_eq!(again.container(key).unwrap().id, cid("c"));
    assert_sound(&again);
}

/// A create waited for ever.
#[test]
fn a_pipe_in_the_databases_place_is_refused_at_once() {
    let f = fixture();
    let path = f.root().join(DATABASE);
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    let root = f.root();
    std::thread::spawn(move || done.send(Store::prepare(&root).is_err() && Store::open_to_read(&root).is_err()));
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Ok(true));
}

#[test]
fn a_directory_open_to_others_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let err = Store::open(dir.path()).unwrap_err();
    assert!(matches!(err, StoreError::NotPrivate { mode: 0o755, .. }), "{err}");
    assert!(err.to_string().contains("--store"), "{err}");
    assert_eq!(dir.path().metadata().unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_newer_format_is_refused() {
    let f = fixture();
    f.store.conn.pragma_update(None, "user_version", 99).unwrap();
    let err = Store::open(&f.root()).unwrap_err();
    assert!(matches!(err, StoreError::NewerFormat { found: 99, .. }), "{err}");
    assert_eq!(err.kind(), Kind::Unsupported);
}

#[test]
fn a_foreign_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let conn = Connection::open(dir.path().join("db.sqlite")).unwrap();
    conn.execute_batch("CREATE TABLE theirs(x)").unwrap();
    drop(conn);
    assert!(matches!(Store::open(dir.path()).unwrap_err(), StoreError::NotOurs { .. }));
}

#[test]
fn a_damaged_database_says_so() {
    let f = fixture();
    let root = f.root();
    drop(f.store);
    let db = root.join("db.sqlite");
    for name in ["db.sqlite-wal", "db.sqlite-shm"] {
        std::fs::remove_file(root.join(name)).unwrap();
    }
    durable::replace(&db, &[b'x'; 8192], 0o600).unwrap();
    let err = Store::open(&root).unwrap_err();
    assert_eq!(err.kind(), Kind::Corrupt, "{err}");
    assert!(err.to_string().contains("damaged"), "{err}");
}

#[test]
fn a_row_that_we_cannot_have_written_is_damage() {
    let f = fixture();
    let key = f.store.add_container(&new_container("c")).unwrap();
    commit(&f.store, key);
    f.store.conn.execute("UPDATE generations SET layer = '../../etc'", []).unwrap();
    let err = f.store.generation(key, Generation(1)).unwrap_err();
    assert_eq!(err.kind(), Kind::Corrupt, "{err}");
    assert!(!f.store.check().unwrap().is_empty());
}

/// Version 0 (an empty file) and a fixture of the first version go to the newest; a crash on the way leaves the old
/// one.
#[test]
fn migrations_go_step_by_step_or_not_at_all() {
    const NEXT: &str = "ALTER TABLE containers ADD COLUMN note TEXT; UPDATE containers SET note = 'migrated ' || id";
    let steps = [MIGRATIONS[0], NEXT];
    for k in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sqlite");
        let conn = Connection::open(&path).unwrap();
        migrate(&conn, &path, &steps[..1]).unwrap();
        conn.execute(
            "INSERT INTO containers(id, root, bundle, rootfs, created_ns) VALUES('c', x'2f', x'2f', x'2f', 1)",
            [],
        )
        .unwrap();
        let (result, _) = fault::stop_after(k, || migrate(&conn, &path, &steps));
        let done = result.is_ok();
        drop(conn);
        let conn = Connection::open(&path).unwrap();
        let version: i64 = conn.pragma_query_value(None, "user_version", |r| r.get(0)).unwrap();
        assert_eq!(version, if done { 2 } else { 1 }, "stopped after {k}");
        migrate(&conn, &path, &steps).unwrap();
        let note: String = conn.query_row("SELECT note FROM containers", [], |r| r.get(0)).unwrap();
        assert_eq!(note, "migrated c");
        // The older program.
        assert!(matches!(migrate(&conn, &path, &steps[..1]), Err(StoreError::NewerFormat { found: 2, known: 1, .. })));
        if done {
            assert_eq!(k, 2);
            break;
        }
    }
}

#[test]
fn many_may_make_the_store_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("a/b/store");
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| Store::open(&root).unwrap().add_container(&new_container("c")).unwrap());
        }
    });
    let store = Store::open(&root).unwrap();
    assert_eq!(store.containers().unwrap().len(), 1);
    assert_sound(&store);
}

#[test]
fn file_systems_that_cannot_hold_layers_are_known() {
    for (magic, name) in [(0x794c_7630, Some("overlayfs")), (0x6969, Some("NFS")), (0xef53, None), (0x5846_5342, None)]
    {
        assert_eq!(unsuitable(magic), name, "{magic:x}");
    }
}

/// Something mounted on a temporary directory for as long as this lives.
struct Mounted {
    at: tempfile::TempDir,
}

impl Mounted {
    fn new(kind: &str, options: &str) -> Mounted {
        let at = tempfile::tempdir().unwrap();
        let status = Command::new("mount").args(["-t", kind, "-o", options, "none"]).arg(at.path()).status();
        assert!(status.unwrap().success(), "mount -t {kind} -o {options}");
        Mounted { at }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("-l").arg(self.at.path()).status();
        assert!(status.is_ok_and(|s| s.success()), "umount {:?}", self.at.path());
    }
}

/// Needs root, to mount; proves nothing without.
#[test]
fn an_overlay_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let layers = tempfile::tempdir().unwrap();
    for name in ["l", "u", "w"] {
        std::fs::create_dir(layers.path().join(name)).unwrap();
    }
    let at = |name| layers.path().join(name).display().to_string();
    let options = format!("lowerdir={},upperdir={},workdir={}", at("l"), at("u"), at("w"));
    let overlay = Mounted::new("overlay", &options);
    let err = Store::open(&overlay.at.path().join("store")).unwrap_err();
    assert!(matches!(err, StoreError::Filesystem { filesystem: "overlayfs", .. }), "{err}");
    assert!(err.to_string().contains("AGENTSBX_STORE"), "{err}");
}

/// Needs root, to mount; proves nothing without.
#[test]
fn a_full_disk_is_exhausted_and_loses_nothing() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let disk = Mounted::new("tmpfs", "size=1m,mode=0700");
    let root = disk.at.path().join("store");
    let store = Store::open(&root).unwrap();
    let key = store.add_container(&new_container("c")).unwrap();
    let mut before = Generation::ZERO;
    let err = loop {
        let staged = match store.create_layer() {
            Ok(staged) => staged,
            Err(e) => break e,
        };
        let exec = NewExec { args: vec!["x".repeat(20_000)], ..new_exec(Some(staged.id())) };
        if let Err(e) = store.begin_exec(key, &exec) {
            break e;
        }
        staged.keep();
        match store.finish_exec(key, &exec.id, &outcome(commit_on(before))) {
            Ok(finished) => before = finished.generation.unwrap(),
            Err(e) => break e,
        }
        assert!(before.0 < 1000, "the disk does not fill up");
    };
    assert_eq!(err.kind(), Kind::Exhausted, "{err:?}");
    drop(store);
    let status = Command::new("mount").args(["-o", "remount,size=16m"]).arg(disk.at.path()).status();
    assert!(status.unwrap().success());
    let store = Store::open(&root).unwrap();
    assert_eq!(store.head(key).unwrap(), before);
    assert_sound(&store);
    assert_eq!(commit(&store, key).0, before.0 + 1);
}

/// Needs root, to mount; proves nothing without.
#[test]
fn a_read_only_store_says_so() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let disk = Mounted::new("tmpfs", "size=16m,mode=0700");
    let root = disk.at.path().join("store");
    drop(Store::open(&root).unwrap());
    let status = Command::new("mount").args(["-o", "remount,ro"]).arg(disk.at.path()).status();
    assert!(status.unwrap().success());
    let err = Store::open(&root).and_then(|s| s.add_container(&new_container("c"))).unwrap_err();
    assert_eq!(err.kind(), Kind::Denied, "{err:?}");
}

/// Each kind of damage that `check` knows is seen when it is done, and nothing is seen before.
#[test]
fn check_sees_each_broken_invariant() {
    let damages = [
        ("UPDATE containers SET head = 9", "HEAD exists"),
        ("UPDATE containers SET settled = 9", "settled generation exists"),
        ("DELETE FROM generations WHERE number = 1", "parent exists"),
        ("UPDATE containers SET last_generation = 1", "above the last one"),
        ("DELETE FROM containers", "containers that exist"),
        ("UPDATE squashes SET last = 9", "squash's ends"),
        ("UPDATE squashes SET layer = (SELECT layer FROM generations WHERE number = 1)", "one generation or squash"),
        ("UPDATE execs SET generation = 1 WHERE generation = 2", "generation is of its layer"),
        ("UPDATE execs SET layer = NULL WHERE disposition = 'held'", "has a layer"),
        ("UPDATE execs SET layer = 'x' WHERE disposition = 'empty'", "has a layer"),
        ("UPDATE execs SET event = 1 WHERE disposition = 'held'", "its end and its event"),
        ("UPDATE execs SET finished_ns = NULL", "its end and its event"),
        ("UPDATE containers SET removed_ns = 1", "removed container stays"),
        (
            "INSERT INTO containers(id, root, bundle, rootfs, created_ns)
                 SELECT id, root, bundle, rootfs, 1 FROM containers",
            "one live container",
        ),
        ("UPDATE execs SET layer = '01JDVW3K6Q8ZJ4M2T9X5R7C1AB' WHERE disposition = 'held'", "has its directories"),
        ("UPDATE events SET time_ns = 1 WHERE seq = 2", "event log"),
    ];
    for (sql, invariant) in damages {
        let f = fixture();
        let s = &f.store;
        let key = s.add_container(&new_container("c")).unwrap();
        commit_times(s, key, 2);
        run(s, key, Ending::Hold);
        run(s, key, Ending::Empty);
        let merged = s.create_layer().unwrap();
        let squash = Squash { last: Generation(2), below: Generation::ZERO, level: 1, layer: merged.id() };
        s.add_squash(key, &squash).unwrap();
        merged.keep();
        assert_sound(s);
        s.conn.pragma_update(None, "foreign_keys", false).unwrap();
        assert!(s.conn.execute(sql, []).unwrap() > 0, "{sql}");
        let findings = s.check().unwrap();
        assert!(findings.iter().any(|f| f.invariant.contains(invariant)), "{sql}: {findings:#?}");
    }
}

/// The log was read, and moved, again by each next process: that it had been moved is known as long as one has it open.
#[test]
fn the_write_ahead_log_is_emptied_when_nobody_else_uses_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let size = || std::fs::metadata(root.join("db.sqlite-wal")).map_or(0, |meta| meta.len());
    let store = Store::open(&root).unwrap();
    let key = store.add_container(&new_container("c")).unwrap();
    let other = Store::open(&root).unwrap();
    let in_use = rusqlite::Transaction::new_unchecked(&other.conn, rusqlite::TransactionBehavior::Deferred).unwrap();
    assert_eq!(in_use.query_row("SELECT count(*) FROM execs", [], |row| row.get::<_, i64>(0)).unwrap(), 0);
    while size() < super::super::LOG_SIZE {
        run(&store, key, Ending::Empty);
    }
    let begun = std::time::Instant::now();
    store.maintain().unwrap();
    assert!(begun.elapsed() < super::super::BUSY_LIMIT / 10, "it waited for a reader");
    assert!(size() >= super::super::LOG_SIZE);
    drop(in_use);
    drop(other);
    assert_eq!(size(), 0, "who leaves last empties it");
    run(&store, key, Ending::Empty);
    assert_eq!(store.check().unwrap(), []);
}
