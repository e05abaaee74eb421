//! Many processes at once, and processes killed at any moment. Each child is this test binary again, told by its
//! environment what to do.

use crate::terms::Disposition;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::*;

const ROLE: &str = "AGENTSBX_TEST_ROLE";
const ROOT: &str = "AGENTSBX_TEST_STORE";

/// What a child does; without its role set, this is no test of anything and passes.
#[test]
fn child() {
    let (Ok(role), Some(root)) = (std::env::var(ROLE), std::env::var_os(ROOT)) else { return };
    let store = Store::open(Path::new(&root)).unwrap();
    match role.as_str() {
        "commit 25" => (0..25).for_each(|_| commit_with_retries(&store)),
        "commit for ever" => loop {
            commit_with_retries(&store);
        },
        "run for ever" => {
            let key = store.find("c").unwrap().key;
            let staged = store.create_layer().unwrap();
            let exec = new_exec(Some(staged.id()));
            let _lock = ExecLock::create(&store, &exec.id).unwrap();
            store.begin_exec(key, &exec).unwrap();
            staged.keep();
            println!("\nsupervises {}", exec.id);
            std::thread::sleep(Duration::from_secs(600));
        }
        "drop a layer" => {
            let staged = store.create_layer().unwrap();
            for (n, mode) in [(0, 0o000), (1, 0o100), (2, 0o555), (3, 0o333)] {
                // Deeper than the descriptors that deleting uses, so that a directory is moved up as well.
                let top = staged.upper().join(n.to_string());
                let bottom = (0..40).fold(top.clone(), |path, _| path.join("d"));
                std::fs::create_dir_all(&bottom).unwrap();
                durable::replace_unsynced(&bottom.join("f"), b"", 0o000).unwrap();
                for dir in bottom.ancestors().take_while(|dir| dir.starts_with(&top)) {
                    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
                }
            }
            drop(staged);
            let left = |name: &str| std::fs::read_dir(store.root().join(name)).unwrap().count();
            assert_eq!((left("layers"), left("trash")), (0, 0));
        }
        other => panic!("{other}"),
    }
}

/// One exec as a supervisor does it: begin at some HEAD, and on a HEAD that moved look again.
fn commit_with_retries(store: &Store) {
    let key = store.find("c").unwrap().key;
    let staged = store.create_layer().unwrap();
    let exec = new_exec(Some(staged.id()));
    let lock = ExecLock::create(store, &exec.id).unwrap();
    let mut expected = store.begin_exec(key, &exec).unwrap().base;
    staged.keep();
    loop {
        match store.finish_exec(key, &exec.id, &outcome(commit_on(expected))) {
            Ok(finished) => {
                assert!(finished.generation.unwrap() > expected);
                return lock.release().unwrap();
            }
            Err(StoreError::HeadMoved { head, .. }) => expected = head,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Without root, the directories that a container made unreadable or unwritable are deleted all the same. Needs root,
/// to become nobody; proves nothing without.
#[test]
fn an_unprivileged_user_can_delete_a_hostile_layer() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The test binary where nobody can read it: the build directory may be private.
    let binary = dir.path().join("test");
    // By another process: a child of another test would inherit a descriptor open for writing, and keep it from running.
    assert!(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&binary).status().unwrap().success());
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    let mut child = Command::new(&binary);
    child
        .args(["--exact", "store::tests::processes::child", "--nocapture"])
        .env(ROLE, "drop a layer")
        .env(ROOT, dir.path().join("store"))
        .uid(65534)
        .gid(65534)
        .current_dir("/");
    // A test beside this one that forked while the copy was open for writing keeps it "busy" until it calls execve.
    let output = loop {
        match child.output() {
            Err(err) if err.raw_os_error() == Some(libc::ETXTBSY) => {
                std::thread::sleep(std::time::Duration::from_millis(5))
            }
            other => break other.unwrap(),
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(dir.path().join("store/layers").is_dir(), "the child did nothing");
}

fn spawn(role: &str, root: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::processes::child", "--nocapture"])
        .env(ROLE, role)
        .env(ROOT, root)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Sixteen at a time open a store that is not there yet, as the containers of a pod do after an installation.
#[test]
fn a_new_store_can_be_opened_by_many_at_once() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let gate = std::sync::Barrier::new(16);
        std::thread::scope(|scope| {
            let open = || {
                gate.wait();
                Store::open(&root).map(drop)
            };
            let opened: Vec<_> = (0..16).map(|_| scope.spawn(open)).collect();
            for one in opened {
                one.join().unwrap().unwrap();
            }
        });
    }
}

#[test]
fn eight_processes_commit_and_lose_nothing() {
    let f = fixture();
    let key = f.store.add_container(&new_container("c")).unwrap();
    let children: Vec<_> = (0..8).map(|_| spawn("commit 25", &f.root())).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let head = f.store.head(key).unwrap();
    assert_eq!(head, Generation(200));
    let chain = f.store.chain(key, head).unwrap();
    assert_eq!(numbers(&chain), (1..=200).rev().collect::<Vec<_>>());
    let layers: std::collections::HashSet<_> = chain.iter().map(|row| row.layer).collect();
    assert_eq!(layers.len(), 200);
    assert_eq!(f.store.verify_events().unwrap().count, 201);
    assert!(f.store.running(key).unwrap().is_empty());
    assert_sound(&f.store);
    assert!(f.store.plan_gc().unwrap().delete.is_empty());
}

#[test]
fn a_killed_supervisor_is_found_and_its_layer_held() {
    let f = fixture();
    let key = f.store.add_container(&new_container("c")).unwrap();
    let mut child = spawn("run for ever", &f.root());
    let exec: ExecId = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .find_map(|line| line.unwrap().strip_prefix("supervises ").map(|id| id.parse().unwrap()))
        .unwrap();
    assert!(f.store.abandoned(None).unwrap().is_empty(), "it lives");
    assert_eq!(f.store.running(key).unwrap().len(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let store = Store::open(&f.root()).unwrap();
    let mut found = store.abandoned(Some(key)).unwrap();
    assert_eq!(found.iter().map(|a| a.record.id).collect::<Vec<_>>(), [exec]);
    assert!(f.store.abandoned(None).unwrap().is_empty(), "claimed by who found it");
    drop(found.pop());
    let found = store.abandoned(None).unwrap().pop().expect("given back, it can be claimed again");
    assert_eq!(found.record.cgroups.len(), 2);
    let finished = store.mark_aborted(key, &exec, Some(1)).unwrap();
    assert_eq!(finished.disposition, Disposition::Aborted);
    found.recovered().unwrap();
    assert!(store.abandoned(None).unwrap().is_empty());
    assert!(store.plan_gc().unwrap().delete.is_empty());
    // What it did can still be had.
    assert_eq!(store.commit_held(key, &exec, Generation::ZERO, &CommitInfo::default()).unwrap(), Generation(1));
    assert_sound(&store);
}

#[test]
fn killed_at_any_moment_the_store_is_sound_and_nothing_reported_is_lost() {
    let f = fixture();
    let key = f.store.add_container(&new_container("c")).unwrap();
    let mut before = 0;
    for round in 0..12u64 {
        let mut children: Vec<_> = (0..2).map(|_| spawn("commit for ever", &f.root())).collect();
        let end = std::time::Instant::now() + Duration::from_secs(20);
        while f.store.head(key).unwrap().0 < before + 3 {
            assert!(std::time::Instant::now() < end, "the children do not get on");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_micros(kill_delay(round)));
        let seen = f.store.head(key).unwrap().0;
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let store = Store::open(&f.root()).unwrap();
        assert_sound(&store);
        before = store.head(key).unwrap().0;
        assert!(before >= seen, "HEAD {seen} was seen, then {before}");
        assert_eq!(numbers(&store.chain(key, Generation(before)).unwrap()), (1..=before).rev().collect::<Vec<_>>());
        let found = store.abandoned(None).unwrap();
        assert!(found.len() <= 2);
        for abandoned in found {
            let _ = store.mark_aborted(key, &abandoned.record.id, None).unwrap();
            abandoned.recovered().unwrap();
        }
        let report = store.execute_gc(&store.plan_gc().unwrap()).unwrap();
        assert!(report.failed.is_empty() && report.skipped.is_empty(), "{report:?}");
        assert_eq!(layers_on_disk(&f.root()), store.plan_gc().unwrap().kept);
        assert_sound(&store);
    }
}

/// Microseconds to wait before the kill, spread so that the rounds end at different moments of an exec.
fn kill_delay(round: u64) -> u64 {
    round * 137 % 1900
}

/// SQLite could not open a database for writing, as it was not there yet, and then could for reading, as another process
/// had just made it: the store was open for reading only.
#[test]
fn a_database_made_while_it_is_opened_can_be_written() {
    let f = fixture();
    let path = f.root().join(DATABASE);
    let calls = Cell::new(0);
    let conn = open_database_by(&path, || {
        calls.set(calls.get() + 1);
        let access =
            if calls.get() == 1 { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
        Connection::open_with_flags(&path, access)
    });
    assert!(!conn.unwrap().is_readonly(MAIN_DB).unwrap());
    assert_eq!(calls.get(), 2);
}
