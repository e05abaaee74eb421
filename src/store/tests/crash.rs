//! Stop at every durable step, open again, check: every invariant holds, nothing reported is lost, and what is left
//! over is garbage that the collector takes.

use super::*;
use crate::durable::fault;

/// What a caller was told before the crash.
#[derive(Debug, Default)]
struct Told {
    head: u64,
    last: u64,
    removing: bool,
    removed: bool,
}

/// A container's whole life. Stops with the first error, as its process would have died there.
fn life(root: &Path, told: &mut Told) -> Result<(), StoreError> {
    let store = Store::open(root)?;
    let key = store.add_container(&new_container("c"))?;
    let start = |told: &mut Told, ending: Ending| -> Result<ExecId, StoreError> {
        let staged = store.create_layer()?;
        let exec = new_exec(Some(staged.id()));
        let lock = ExecLock::create(&store, &exec.id)?;
        store.begin_exec(key, &exec)?;
        let layer = staged.keep();
        store.write_touched(&layer, b"f")?;
        let finished = store.finish_exec(key, &exec.id, &outcome(ending))?;
        if let Some(generation) = finished.generation {
            (told.head, told.last) = (generation.0, generation.0);
        }
        finished.released.into_iter().try_for_each(|layer| store.delete_layer(layer))?;
        lock.release()?;
        Ok(exec.id)
    };
    start(told, commit_on(Generation::ZERO))?;
    start(told, commit_on(Generation(1)))?;
    start(told, Ending::Empty)?;
    let held = start(told, Ending::Hold)?;
    let dropped = start(told, Ending::Conflict)?;
    let merged = store.create_layer()?;
    let squash = Squash { last: Generation(2), below: Generation::ZERO, level: 1, layer: merged.id() };
    store.add_squash(key, &squash)?;
    merged.keep();
    store.rollback(key, Generation(1))?;
    told.head = 1;
    store.commit_held(key, &held, Generation(1), &CommitInfo::default())?;
    (told.head, told.last) = (3, 3);
    let released = store.discard_held(key, &dropped)?;
    store.delete_layer(released)?;
    told.removing = true;
    let removed = store.remove_container(key)?;
    told.removed = true;
    removed.released.into_iter().try_for_each(|layer| store.delete_layer(layer))
}

#[test]
fn stopped_at_any_step_all_invariants_hold() {
    let mut steps = 0;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let mut told = Told::default();
        let (result, _) = fault::stop_after(steps, || life(&root, &mut told));
        let store = Store::open(&root).unwrap();
        let at = format!("stopped after {steps} steps: {result:?}, told {told:?}");
        let findings = store.check().unwrap();
        assert!(findings.is_empty(), "{at}: {findings:#?}");

        // Nothing that was reported is lost.
        match store.find("c") {
            Ok(container) => {
                assert!(!told.removed, "{at}: removed, but it is there");
                assert!(container.last_generation.0 >= told.last, "{at}: {container:?}");
                // Only the step that was under way may have gone further than was told.
                let possible = [told.head, told.head + 1, if told.last == 2 { 1 } else { told.head }, 3];
                assert!(possible.contains(&container.head.0), "{at}: {container:?}");
                let chain = store.chain(container.key, container.head).unwrap();
                assert!(chain.iter().all(|row| store.upper(&row.layer).is_dir()), "{at}");
            }
            Err(_) => assert!(told.last == 0 || told.removing, "{at}: it is gone"),
        }

        // Whoever ran is found; when it is recovered, only garbage is left over, and it goes.
        for abandoned in store.abandoned(None).unwrap() {
            let record = &abandoned.record;
            let _ = store.mark_aborted(record.container, &record.id, None).unwrap();
            abandoned.recovered().unwrap();
        }
        assert!(store.abandoned(None).unwrap().is_empty());
        let plan = store.plan_gc().unwrap();
        assert!(plan.staged.is_empty() && plan.missing.is_empty() && plan.foreign.is_empty(), "{at}: {plan:#?}");
        let report = store.execute_gc(&plan).unwrap();
        assert_eq!((report.skipped.len(), report.failed.len()), (0, 0), "{at}: {report:?}");
        assert!(store.plan_gc().unwrap().delete.is_empty(), "{at}");
        let left = store.check().unwrap();
        assert!(left.is_empty(), "{at}: {left:#?}");
        assert_eq!(layers_on_disk(&root), store.plan_gc().unwrap().kept, "{at}");

        if result.is_ok() {
            assert!(steps > 70, "only {steps} steps");
            break;
        }
        steps += 1;
    }
}
