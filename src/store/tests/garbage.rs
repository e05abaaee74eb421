//! The collector takes what nobody needs, nothing else, and only what it planned.

use super::super::gc::{Garbage, GcPlan};
use super::*;
use crate::terms::Disposition;

/// The lock file of an exec whose supervisor was killed.
fn left_by_a_kill(store: &Store, exec: &ExecId) {
    durable::replace(&store.exec_lock_path(exec), b"", 0o600).unwrap();
}

fn collect(store: &Store) -> gc::GcReport {
    store.execute_gc(&store.plan_gc().unwrap()).unwrap()
}

#[test]
fn only_what_is_unreachable_goes() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    commit(s, key);
    commit(s, key);
    s.rollback(key, Generation(1)).unwrap();
    run(s, key, Ending::Hold);
    run(s, key, Ending::Conflict);
    let (running, _) = begin(s, key);
    let lock = ExecLock::create(s, &running).unwrap();
    let (aborted, _) = begin(s, key);
    let finished = s.mark_aborted(key, &aborted, Some(2)).unwrap();
    assert_eq!((finished.disposition, finished.released.len()), (Disposition::Aborted, 0));
    let merged = s.create_layer().unwrap();
    s.add_squash(key, &Squash { last: Generation(2), below: Generation::ZERO, level: 1, layer: merged.id() }).unwrap();
    merged.keep();
    let staged = s.create_layer().unwrap();
    let orphan = s.create_layer().unwrap().keep();
    // Litter of every kind, some of it not ours.
    let (discarded, _) = begin(s, key);
    let _ = s.finish_exec(key, &discarded, &outcome(Ending::Discard)).unwrap();
    std::fs::create_dir_all(f.root().join("trash/x/upper")).unwrap();
    std::fs::create_dir(f.root().join("layers/lost+found")).unwrap();
    std::fs::create_dir(f.root().join("layers").join(LayerId::new().to_string().to_lowercase())).unwrap();
    let dead = ExecId::new();
    left_by_a_kill(s, &dead);
    drop(s.commit_lock(ContainerKey(99)).unwrap());
    drop(s.commit_lock(key).unwrap());
    durable::replace(&f.root().join("locks/README"), b"", 0o600).unwrap();

    let plan = s.plan_gc().unwrap();
    let layers: Vec<_> = plan.delete.iter().filter(|g| matches!(g, Garbage::Layer(_))).collect();
    assert_eq!(layers.len(), 2, "{plan:#?}");
    assert!(plan.delete.contains(&Garbage::Layer(orphan)));
    for garbage in
        [Garbage::Trash("x".into()), Garbage::ExecLock(dead), Garbage::ContainerLock(LockOf::Commit, ContainerKey(99))]
    {
        assert!(plan.delete.contains(&garbage), "{garbage:?}");
    }
    assert_eq!(plan.delete.len(), 5, "{plan:#?}");
    assert_eq!((plan.kept, &plan.staged[..]), (7, &[staged.id()][..]));
    assert_eq!(plan.foreign.len(), 3, "{plan:#?}");
    assert_eq!(layers_on_disk(&f.root()), 12, "a plan changes nothing");

    let report = s.execute_gc(&plan).unwrap();
    assert_eq!(report.deleted, plan.delete);
    assert!(report.skipped.is_empty() && report.failed.is_empty(), "{report:?}");
    assert_eq!(layers_on_disk(&f.root()), 10);
    assert!(staged.upper().is_dir() && s.plan_gc().unwrap().delete.is_empty());
    assert_sound(s);
    drop(lock);
}

/// A damaged write-ahead log takes the newest rows along, and then every layer that they told of was garbage.
#[test]
fn layers_whose_rows_were_lost_are_left_alone() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    commit(s, key);
    let sealed = |s: &Store, key| {
        let staged = s.create_layer().unwrap();
        let exec = new_exec(Some(staged.id()));
        s.begin_exec(key, &exec).unwrap();
        let layer = staged.keep();
        s.write_touched(&layer, b"x").unwrap();
        (exec.id, layer)
    };
    let (discarded, left) = sealed(s, key);
    let _ = s.finish_exec(key, &discarded, &outcome(Ending::Discard)).unwrap();
    let before = f.dir.path().join("before");
    s.conn.execute("VACUUM INTO ?", [before.to_str().unwrap()]).unwrap();
    let (exec, lost) = sealed(s, key);
    assert!(s.finish_exec(key, &exec, &outcome(commit_on(Generation(1)))).unwrap().generation.is_some());
    assert_eq!(s.plan_gc().unwrap().delete, [Garbage::Layer(left)], "its event tells that it was dropped");
    let root = f.root();
    drop(f.store);
    for name in ["db.sqlite-wal", "db.sqlite-shm"] {
        std::fs::remove_file(root.join(name)).unwrap();
    }
    let status = std::process::Command::new("cp").arg(&before).arg(root.join("db.sqlite")).status();
    assert!(status.unwrap().success());
    let s = Store::open(&root).unwrap();
    let plan = s.plan_gc().unwrap();
    assert_eq!((&plan.delete[..], &plan.unknown[..]), (&[Garbage::Layer(left)][..], &[lost][..]));
    assert!(s.execute_gc(&plan).unwrap().failed.is_empty() && s.upper(&lost).is_dir());
}

#[test]
fn what_came_into_use_after_the_plan_is_left_alone() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    let layer = s.create_layer().unwrap().keep();
    let exec = ExecId::new();
    left_by_a_kill(s, &exec);
    let plan = s.plan_gc().unwrap();
    assert_eq!(plan.delete.len(), 2);
    s.begin_exec(key, &NewExec { id: exec, ..new_exec(Some(layer)) }).unwrap();
    let lock = ExecLock::create(s, &exec).unwrap();
    let report = s.execute_gc(&plan).unwrap();
    assert_eq!(report.skipped, plan.delete);
    assert!(s.upper(&layer).is_dir());
    drop(lock);
    // Free again, but a running row has it: it tells that the exec was abandoned.
    assert_eq!(s.execute_gc(&plan).unwrap().skipped, plan.delete);
    assert_sound(s);
}

#[test]
fn a_staged_layer_that_is_dropped_goes_and_one_kept_stays() {
    let f = fixture();
    let staged = f.store.create_layer().unwrap();
    let upper = staged.upper();
    assert!(upper.is_dir() && staged.work().is_dir());
    durable::replace(&upper.join("f"), b"x", 0o600).unwrap();
    drop(staged);
    assert_eq!(layers_on_disk(&f.root()), 0);
    let layer = f.store.create_layer().unwrap().keep();
    assert!(f.store.upper(&layer).is_dir());
}

#[test]
fn touched_paths_are_opaque_bytes() {
    let f = fixture();
    let layer = f.store.create_layer().unwrap().keep();
    assert_eq!(f.store.read_touched(&layer).unwrap(), None);
    for bytes in [&b"a\0\xff\n"[..], b"", b"again"] {
        f.store.write_touched(&layer, bytes).unwrap();
        assert_eq!(f.store.read_touched(&layer).unwrap().as_deref(), Some(bytes));
    }
    std::fs::remove_file(f.store.layer_dir(&layer).join("touched")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", f.store.layer_dir(&layer).join("touched")).unwrap();
    assert!(f.store.read_touched(&layer).is_err(), "not followed");
}

/// Layers are made, committed and dropped while the collector runs all the time: it never takes one in use.
#[test]
fn the_collector_and_the_makers_do_not_meet() {
    let f = fixture();
    let root = f.root();
    let keys: Vec<_> = (0..3).map(|i| f.store.add_container(&new_container(&format!("c{i}"))).unwrap()).collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let collectors = (0..2).map(|_| {
            scope.spawn(|| {
                let store = Store::open(&root).unwrap();
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let report = collect(&store);
                    assert!(report.failed.is_empty(), "{report:?}");
                }
            })
        });
        let collectors: Vec<_> = collectors.collect();
        let makers: Vec<_> = keys
            .iter()
            .map(|key| {
                let root = &root;
                scope.spawn(move || {
                    let store = Store::open(root).unwrap();
                    for i in 0..60 {
                        let staged = store.create_layer().unwrap();
                        let (upper, exec) = (staged.upper(), new_exec(Some(staged.id())));
                        durable::replace_unsynced(&upper.join("f"), b"x", 0o600).unwrap();
                        store.begin_exec(*key, &exec).unwrap();
                        staged.keep();
                        assert!(upper.join("f").exists());
                        let head = store.head(*key).unwrap();
                        let ending = if i % 2 == 0 { commit_on(head) } else { Ending::Discard };
                        let _ = store.finish_exec(*key, &exec.id, &outcome(ending)).unwrap();
                    }
                })
            })
            .collect();
        let results: Vec<_> = makers.into_iter().map(|maker| maker.join()).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let collectors: Vec<_> = collectors.into_iter().map(|collector| collector.join()).collect();
        assert!(results.iter().all(Result::is_ok) && collectors.iter().all(Result::is_ok));
    });
    collect(&f.store);
    assert_eq!(layers_on_disk(&root), 90);
    assert_eq!(f.store.plan_gc().unwrap(), GcPlan { kept: 90, ..GcPlan::default() });
    assert_sound(&f.store);
}

/// A directory is new for a moment before its maker locks it, and just then the collector may come.
#[test]
fn a_layer_that_is_collected_while_it_is_made_is_made_again() {
    let f = fixture();
    let root = f.root();
    while_running(
        || (0..1000).for_each(|_| drop(f.store.create_layer().unwrap())),
        || drop(collect(&Store::open(&root).unwrap())),
    );
    assert_eq!(layers_on_disk(&root), 0);
}

/// Between an exec's end and the end of its lock it looks abandoned to who read its row before.
#[test]
fn an_exec_that_ends_is_never_taken_for_abandoned() {
    let f = fixture();
    let root = f.root();
    let key = f.store.add_container(&new_container("c")).unwrap();
    while_running(
        || {
            for _ in 0..1000 {
                let exec = new_exec(None);
                let lock = ExecLock::create(&f.store, &exec.id).unwrap();
                f.store.begin_exec(key, &exec).unwrap();
                let _ = f.store.finish_exec(key, &exec.id, &outcome(Ending::Empty)).unwrap();
                lock.release().unwrap();
            }
        },
        || {
            let store = Store::open(&root).unwrap();
            for _ in 0..100 {
                let found = store.abandoned(None).unwrap();
                assert!(found.is_empty(), "{found:?}");
            }
        },
    );
    assert_eq!(std::fs::read_dir(root.join("locks")).unwrap().count(), 0, "no lock file is left over");
}

/// Runs `work` here and, until it ends, `meanwhile` again and again on another thread.
fn while_running(work: impl FnOnce(), meanwhile: impl Fn() + Send) {
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ended = &done;
        let other = scope.spawn(move || {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                meanwhile();
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        other.join().unwrap();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

/// The first process's layers of copy-on-write mounts are kept as long as their container, and go with it.
#[test]
fn layers_of_copy_on_write_mounts_go_with_their_container() {
    let f = fixture();
    let staged: Vec<StagedLayer> = (0..2).map(|_| f.store.create_layer().unwrap()).collect();
    let mount = |at: &str, staged: &StagedLayer| CowMount {
        destination: at.into(),
        source: "/host/a\nb".into(),
        identity: (u64::MAX, 7),
        flags: 3,
        layer: staged.id(),
    };
    let mounts = vec![mount("/work/sub", &staged[0]), mount("/work", &staged[1])];
    let key = f.store.add_container(&NewContainer { cow_mounts: mounts.clone(), ..new_container("c") }).unwrap();
    staged.into_iter().for_each(|layer| {
        layer.keep();
    });
    assert_eq!(f.store.cow_mounts(key).unwrap(), [mounts[1].clone(), mounts[0].clone()], "what is above first");
    assert_eq!((f.store.plan_gc().unwrap().kept, f.store.plan_gc().unwrap().delete.len()), (2, 0));
    assert!(f.store.is_needed(&mounts[0].layer).unwrap());
    assert_sound(&f.store);
    let other = f.store.add_container(&new_container("d")).unwrap();
    assert!(f.store.cow_mounts(other).unwrap().is_empty());
    let removed = f.store.remove_container(key).unwrap();
    assert_eq!(removed.released.len(), 2);
    removed.released.into_iter().for_each(|layer| f.store.delete_layer(layer).unwrap());
    assert_eq!(layers_on_disk(&f.root()), 0);
    assert_sound(&f.store);
}

/// A create that ends before its container has a row leaves no layer; one that is killed leaves garbage.
#[test]
fn staged_layers_of_a_create_that_fails() {
    let f = fixture();
    let staged = f.store.create_layer().unwrap();
    staged.make_work_of(0).unwrap();
    assert!(f.store.plan_gc().unwrap().delete.is_empty(), "it is being made");
    drop(staged);
    assert_eq!(layers_on_disk(&f.root()), 0);
}
