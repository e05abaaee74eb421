//! Containers, generations, execs and the log: what the rows say after what was done.

use super::*;
use crate::terms::{Disposition, LayerMode};

#[test]
fn containers_are_found_by_id_prefix_and_root() {
    let f = fixture();
    let s = &f.store;
    let add = |id: &str, root: &str| s.add_container(&NewContainer { root: root.into(), ..new_container(id) }).unwrap();
    let abc = add("abc", "/run/a");
    let abcd = add("abcd", "/run/a");
    add("xy", "/run/a");
    let xy_b = add("xy", "/run/b");
    assert_eq!(s.find("abc").unwrap().key, abc, "the whole id wins");
    assert_eq!(s.find("abcd").unwrap().key, abcd);
    assert_eq!(s.find("x").unwrap().key, xy_b, "the newest of one id");
    assert_eq!(s.find("xy").unwrap().key, xy_b);
    match s.find("ab").unwrap_err() {
        StoreError::ContainerAmbiguous { matches, .. } => assert_eq!(matches, ["abc", "abcd"]),
        e => panic!("{e}"),
    }
    for missing in ["", "z", "abcde", "%", "a%", "a*", "ABC", "a\0", "é"] {
        let err = s.find(missing).unwrap_err();
        assert!(
            matches!(err, StoreError::ContainerNotFound { .. })
                || (missing.is_empty() && matches!(err, StoreError::ContainerAmbiguous { .. })),
            "{missing:?}: {err}"
        );
    }
    // Whatever the engine is: none of them alone is told of.
    let told = s.find("z").unwrap_err().to_string();
    for word in ["\"z\" not found", "agentsbx log", "docker ps", "podman ps", "nerdctl ps", "crictl ps", "ctr has ids"]
    {
        assert!(told.contains(word), "{word}: {told}");
    }
    assert_eq!(s.find_in(Path::new("/run/b"), &cid("xy")).unwrap().key, xy_b);
    assert!(s.find_in(Path::new("/run/c"), &cid("xy")).is_err());
    assert_eq!(s.containers().unwrap().len(), 4);
}

#[test]
fn a_container_made_again_is_another_one() {
    let f = fixture();
    let s = &f.store;
    let first = s.add_container(&new_container("c")).unwrap();
    commit(s, first);
    let second = s.add_container(&new_container("c")).unwrap();
    assert_ne!(first, second);
    assert_eq!(s.head(second).unwrap(), Generation::ZERO);
    assert!(matches!(s.container(first), Err(StoreError::ContainerRemoved { .. })));
    let removed = s.remove_container(second).unwrap();
    assert_eq!((removed.released.len(), removed.running), (0, 0));
    let third = s.add_container(&new_container("c")).unwrap();
    assert!(third > second, "keys are never given out again");
    assert_sound(s);
}

#[test]
fn commits_chain_and_rollback_branches() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    assert_eq!([1, 2, 3].map(|_| commit(s, key).0), [1, 2, 3]);
    assert_eq!(s.rollback(key, Generation(1)).unwrap(), Rollback { from: Generation(3), to: Generation(1) });
    assert_eq!(commit(s, key), Generation(4), "numbers are never given out again");
    assert_eq!(numbers(&s.chain(key, Generation(4)).unwrap()), [4, 1]);
    assert_eq!(numbers(&s.chain(key, Generation(3)).unwrap()), [3, 2, 1]);
    assert_eq!(numbers(&s.chain(key, Generation::ZERO).unwrap()), [] as [u64; 0]);
    assert!(s.is_ancestor(key, Generation(1), Generation(4)).unwrap());
    assert!(s.is_ancestor(key, Generation(4), Generation(4)).unwrap());
    assert!(s.is_ancestor(key, Generation::ZERO, Generation(3)).unwrap());
    assert!(!s.is_ancestor(key, Generation(2), Generation(4)).unwrap());
    assert!(!s.is_ancestor(key, Generation(4), Generation(3)).unwrap());
    assert_eq!(numbers(&s.between(key, Generation(1), Generation(3)).unwrap().unwrap()), [3, 2]);
    // The rollback is undone by another, and one to 0 is possible.
    s.rollback(key, Generation(3)).unwrap();
    s.rollback(key, Generation::ZERO).unwrap();
    assert_eq!(commit(s, key), Generation(5));
    assert_eq!(s.generation(key, Generation(5)).unwrap().parent, Generation::ZERO);
    for missing in [6, 99, u64::MAX] {
        assert!(matches!(s.rollback(key, Generation(missing)), Err(StoreError::GenerationNotFound { .. })));
        assert!(s.chain(key, Generation(missing)).is_err());
    }
    assert_eq!(s.head(key).unwrap(), Generation(5));
    assert_eq!(s.generations(key).unwrap().len(), 5);
    assert_sound(s);
}

#[test]
fn revisions_resolve() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    commit_times(s, key, 3);
    s.rollback(key, Generation(1)).unwrap();
    commit(s, key);
    let resolve = |text: &str| s.resolve(key, text.parse::<Revision>().unwrap());
    for (text, want) in [("@", 4), ("@-1", 1), ("@-2", 0), ("3", 3), ("0", 0)] {
        assert_eq!(resolve(text).unwrap(), Generation(want), "{text}");
    }
    assert!(matches!(resolve("@-3"), Err(StoreError::TooFarBack { back: 3, depth: 2 })));
    assert!(matches!(resolve("@-18446744073709551615"), Err(StoreError::TooFarBack { .. })));
    assert!(matches!(resolve("5"), Err(StoreError::GenerationNotFound { .. })));
}

#[test]
fn a_commit_onto_another_head_writes_nothing() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    let (slow, begun) = begin(s, key);
    assert_eq!(begun.base, Generation::ZERO);
    commit(s, key);
    let before = s.chain_head().unwrap();
    let err = s.finish_exec(key, &slow, &outcome(commit_on(begun.base))).unwrap_err();
    assert!(matches!(err, StoreError::HeadMoved { expected: Generation(0), head: Generation(1) }), "{err}");
    assert_eq!(err.kind(), Kind::Conflict);
    assert_eq!(s.chain_head().unwrap(), before);
    assert_eq!(s.running(key).unwrap().len(), 1);
    // Checked again, against the new HEAD.
    let finished = s.finish_exec(key, &slow, &outcome(commit_on(Generation(1)))).unwrap();
    assert_eq!((finished.generation, finished.head), (Some(Generation(2)), Generation(2)));
    assert!(finished.released.is_empty());
    let err = s.finish_exec(key, &slow, &outcome(Ending::Discard)).unwrap_err();
    assert!(matches!(err, StoreError::ExecEnded { disposition: Disposition::Committed, .. }), "{err}");
    assert_sound(s);
}

#[test]
fn held_layers_are_committed_or_discarded_later() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    let (held, _) = run(s, key, Ending::Hold);
    let (conflict, _) = run(s, key, Ending::Conflict);
    let (empty, _) = run(s, key, Ending::Empty);
    let info = CommitInfo::default();
    assert!(matches!(
        s.commit_held(key, &held, Generation(7), &info),
        Err(StoreError::HeadMoved { head: Generation(0), .. })
    ));
    assert_eq!(s.commit_held(key, &held, Generation::ZERO, &info).unwrap(), Generation(1));
    let record = s.exec(key, &held.to_string()).unwrap();
    assert_eq!((record.disposition, record.generation), (Some(Disposition::Committed), Some(Generation(1))));
    assert_eq!(record.layer, Some(s.generation(key, Generation(1)).unwrap().layer));
    let layer = s.exec(key, &conflict.to_string()).unwrap().layer.unwrap();
    let released = s.discard_held(key, &conflict).unwrap();
    assert_eq!(released.id(), layer);
    assert!(s.layer_dir(&layer).exists(), "row first");
    s.delete_layer(released).unwrap();
    assert!(!s.layer_dir(&layer).exists());
    for (exec, disposition) in
        [(held, Disposition::Committed), (conflict, Disposition::Discarded), (empty, Disposition::Empty)]
    {
        let wrong = |e| matches!(e, StoreError::NotHeld { disposition: Some(d), .. } if d == disposition);
        assert!(wrong(s.commit_held(key, &exec, Generation(1), &info).unwrap_err()));
        assert!(wrong(s.discard_held(key, &exec).unwrap_err()));
    }
    assert_sound(s);
}

#[test]
fn an_exec_without_a_layer_cannot_commit() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    let exec = new_exec(None);
    s.begin_exec(key, &exec).unwrap();
    for ending in [commit_on(Generation::ZERO), Ending::Hold, Ending::Conflict] {
        assert!(matches!(s.finish_exec(key, &exec.id, &outcome(ending)), Err(StoreError::NoLayer { .. })));
    }
    let finished = s.finish_exec(key, &exec.id, &outcome(Ending::Shared)).unwrap();
    assert_eq!((finished.disposition, finished.released.len()), (Disposition::Shared, 0));
    assert_sound(s);
}

#[test]
fn what_was_given_is_what_is_read() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    let staged = s.create_layer().unwrap();
    let hostile = "a\"b\\c\n\u{0}\u{1b}[31m'; DROP TABLE execs; --\u{10ffff}";
    let exec = NewExec {
        args: vec![hostile.into(), String::new()],
        cwd: <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(b"/\xff\n".to_vec()).into(),
        engine_exec: Some(hostile.into()),
        uid: u32::MAX,
        mode: LayerMode::CommitOnSuccess,
        ..new_exec(Some(staged.id()))
    };
    s.begin_exec(key, &exec).unwrap();
    let layer = staged.keep();
    let given = Outcome { survivors: Some(3), ..outcome(commit_on(Generation::ZERO)) };
    let _ = s.finish_exec(key, &exec.id, &given).unwrap();
    let read = s.exec(key, hostile).unwrap();
    assert_eq!((read.id, read.args, read.args_dropped), (exec.id, exec.args, 0));
    assert_eq!((read.cwd, read.uid, read.gid, read.mode), (exec.cwd, exec.uid, exec.gid, exec.mode));
    assert_eq!((read.cgroups, read.started_ns, read.layer), (exec.cgroups, exec.started_ns, Some(layer)));
    assert_eq!((read.end, read.usage, read.summary), (given.end, None, given.summary));
    assert_eq!((read.survivors, read.finished_ns), (Some(3), Some(given.finished_ns)));
    assert_eq!(s.result(key, &exec.id).unwrap(), given.result);
    let row = s.generation(key, Generation(1)).unwrap();
    assert_eq!((row.exec, row.digest.as_deref(), row.bytes), (exec.id, Some("sha256:00"), Some(3)));
    assert_sound(s);
    let lines: Vec<String> = s.export_events(0).collect::<Result<_, _>>().unwrap();
    assert!(lines.iter().all(|line| !line.contains('\n')));
}

#[test]
fn long_arguments_are_cut_and_long_results_refused() {
    use super::super::exec::bounded_args;
    for (args, kept) in [
        (vec!["x".repeat(MAX_FIELD)], 1),
        (vec!["\u{1}".repeat(20_000), "y".into()], 1),
        (vec!["é\"\\".repeat(30_000)], 1),
        (vec!["short".into(), "z".repeat(100_000), "tail".into()], 2),
        ((0..70_000).map(|_| String::new()).collect(), 0),
    ] {
        let (text, dropped) = bounded_args(&args);
        assert!(text.len() <= MAX_FIELD && text.len() > MAX_FIELD - 20, "{}", text.len());
        let read: Vec<String> = serde_json::from_str(&text).unwrap();
        assert!(dropped > 0);
        if kept > 0 {
            assert_eq!(read.len(), kept);
            assert!(read.iter().zip(&args).all(|(r, a)| a.starts_with(r.as_str())));
            let bytes = |list: &[String]| list.iter().map(String::len).sum::<usize>();
            assert_eq!(dropped as usize, bytes(&args) - bytes(&read));
        }
    }
    let whole = vec!["x".repeat(MAX_FIELD - 4)];
    assert_eq!(bounded_args(&whole).1, 0);

    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    let staged = s.create_layer().unwrap();
    let exec = NewExec { args: vec!["\u{1}".repeat(1 << 20)], ..new_exec(Some(staged.id())) };
    s.begin_exec(key, &exec).unwrap();
    staged.keep();
    let big = Outcome { result: Some("x".repeat(MAX_RESULT + 1)), ..outcome(Ending::Hold) };
    assert!(matches!(s.finish_exec(key, &exec.id, &big), Err(StoreError::TooLarge { what: "result", .. })));
    let big = Outcome { end: Some("x".repeat(MAX_FIELD).into()), ..outcome(Ending::Hold) };
    assert!(matches!(s.finish_exec(key, &exec.id, &big), Err(StoreError::TooLarge { what: "end", .. })));
    // The largest that is allowed fits into an event too.
    let end = serde_json::Value::from("\u{1}".repeat((MAX_FIELD - 2) / 6));
    let largest = Outcome { end: Some(end), result: Some("x".repeat(MAX_RESULT)), ..outcome(Ending::Hold) };
    let _ = s.finish_exec(key, &exec.id, &largest).unwrap();
    assert_sound(s);
}

#[test]
fn execs_are_found_by_ulid_prefix_and_alias() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    let other = s.add_container(&new_container("d")).unwrap();
    assert_eq!(s.last_exec(key).unwrap(), None);
    let add = |key, alias: Option<&str>| {
        let exec = NewExec { engine_exec: alias.map(str::to_owned), ..new_exec(None) };
        s.begin_exec(key, &exec).unwrap();
        exec.id
    };
    let first = add(key, Some("f00d1234"));
    let second = add(key, Some("f00d5678"));
    let foreign = add(other, Some("beef"));
    let text = first.to_string();
    for name in [text.as_str(), &text.to_lowercase(), &text[..25], "f00d1", "f00d1234"] {
        assert_eq!(s.exec(key, name).unwrap().id, first, "{name}");
    }
    assert!(matches!(s.exec(key, "f00d"), Err(StoreError::ExecAmbiguous { .. })));
    assert!(matches!(s.exec(key, &text[..4]), Err(StoreError::ExecAmbiguous { .. })));
    for missing in ["", "zzz", "%", "beef", "F00D1234", &foreign.to_string()] {
        assert!(matches!(s.exec(key, missing), Err(StoreError::ExecNotFound { .. })), "{missing:?}");
    }
    assert_eq!(s.last_exec(key).unwrap().unwrap().id, second);
    let again = add(key, Some("f00d1234"));
    assert_eq!(s.exec(key, "f00d1234").unwrap().id, again, "the newest of an alias used again");
}

#[test]
fn the_log_tells_everything_in_order() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    let (running, _) = begin(s, key);
    let (slow, _) = begin(s, key);
    let (quick, _) = run(s, key, commit_on(Generation::ZERO));
    let finished = s.finish_exec(key, &slow, &outcome(Ending::Hold)).unwrap();
    assert_eq!(finished.disposition, Disposition::Held);
    s.rollback(key, Generation::ZERO).unwrap();
    s.append_event(Some(key), "settled", &serde_json::json!({"to": 0})).unwrap();
    s.commit_held(key, &slow, Generation::ZERO, &CommitInfo::default()).unwrap();
    let told: Vec<String> = s
        .log(key)
        .unwrap()
        .into_iter()
        .map(|entry| match entry {
            LogEntry::Exec(exec) => format!("exec {}", exec.id),
            LogEntry::Event(event) => event.kind,
        })
        .collect();
    let want = [
        "container-created".to_owned(),
        format!("exec {quick}"),
        "rollback".into(),
        "settled".into(),
        format!("exec {slow}"),
        "commit".into(),
        format!("exec {running}"),
    ];
    assert_eq!(told, want);
    assert_eq!(s.verify_events().unwrap().count, 6);
    for (kind, payload) in [("", "{}"), ("Bad", "{}"), ("a b", "{}"), (&"x".repeat(33), "{}"), ("ok", "[]")] {
        let err = s.append_event(None, kind, &serde_json::from_str(payload).unwrap()).unwrap_err();
        assert!(matches!(err, StoreError::BadEvent { .. }), "{kind:?} {payload}");
    }
}

#[test]
fn tampering_with_the_log_is_found() {
    let tampers = [
        ("UPDATE events SET payload = '{}' WHERE seq = 3", 3),
        ("UPDATE events SET time_ns = time_ns + 1 WHERE seq = 2", 2),
        ("DELETE FROM events WHERE seq = 2", 2),
        ("DELETE FROM events WHERE seq > 3", 4),
        ("DELETE FROM events", 1),
        ("UPDATE chain SET last_seq = 3", 4),
        ("UPDATE events SET seq = seq + 1 WHERE seq = (SELECT max(seq) FROM events)", 5),
    ];
    for (sql, seq) in tampers {
        let f = fixture();
        let key = f.store.add_container(&new_container("c")).unwrap();
        commit_times(&f.store, key, 4);
        assert_eq!(f.store.verify_events().unwrap().count, 5);
        assert!(f.store.conn.execute(sql, []).unwrap() > 0, "{sql}");
        match f.store.verify_events().unwrap_err() {
            StoreError::Audit(e) => assert_eq!(e.seq, seq, "{sql}: {e}"),
            e => panic!("{sql}: {e}"),
        }
        assert!(f.store.check().unwrap().iter().any(|finding| finding.invariant.contains("event log")));
    }
}

#[test]
fn the_export_pages_and_can_be_verified_from_outside() {
    let f = fixture();
    for n in 0..600 {
        f.store.append_event(None, "note", &serde_json::json!({"n": n})).unwrap();
    }
    let lines: Vec<String> = f.store.export_events(0).collect::<Result<_, _>>().unwrap();
    assert_eq!(lines.len(), 600);
    assert_eq!(f.store.export_events(590).count(), 10);
    let mut prev = serde_json::Value::from("0".repeat(64));
    for (n, line) in lines.iter().enumerate() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&value["seq"], &value["payload"]["n"]), (&(n + 1).into(), &n.into()));
        assert_eq!(value["prev"], prev);
        prev = value["hash"].clone();
    }
    assert_eq!(prev, f.store.chain_head().unwrap().hash.to_string());
}

#[test]
fn the_mount_chain_takes_squashes_and_ends_at_what_is_settled() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    commit_times(s, key, 8);
    let squash = |last, below, level| {
        let staged = s.create_layer().unwrap();
        let squash = Squash { last: Generation(last), below: Generation(below), level, layer: staged.id() };
        s.add_squash(key, &squash).map(|()| staged.keep())
    };
    let spans = |of| -> Vec<(u64, u64)> {
        s.mount_chain(key, Generation(of)).unwrap().iter().map(|l| (l.last.0, l.below.0)).collect()
    };
    assert_eq!(spans(8).len(), 8);
    let four = squash(4, 0, 1).unwrap();
    squash(6, 4, 1).unwrap();
    squash(6, 0, 2).unwrap();
    assert_eq!(spans(8), [(8, 7), (7, 6), (6, 0)], "the longest");
    assert_eq!(spans(5), [(5, 4), (4, 0)]);
    assert_eq!(s.mount_chain(key, Generation(4)).unwrap()[0].layer, four);
    assert_eq!(begin(s, key).1.chain.len(), 3);
    let between = |base, of| -> Option<Vec<(u64, u64)>> {
        let layers = s.layers_between(key, Generation(base), Generation(of)).unwrap();
        layers.map(|layers| layers.iter().map(|l| (l.last.0, l.below.0)).collect())
    };
    assert_eq!(between(0, 8).unwrap(), spans(8));
    assert_eq!(between(4, 8).unwrap(), [(8, 7), (7, 6), (6, 4)], "the longest that fits in between");
    assert_eq!(between(3, 7).unwrap(), [(7, 6), (6, 4), (4, 3)]);
    assert_eq!((between(4, 4), between(5, 4)), (Some(Vec::new()), None));
    s.set_settled(key, Generation(4)).unwrap();
    assert_eq!(spans(8), [(8, 7), (7, 6), (6, 4)], "none that reaches below what is settled");
    assert_eq!(spans(4), []);
    s.set_settled(key, Generation(5)).unwrap();
    assert_eq!(spans(8), [(8, 7), (7, 6), (6, 5)]);
    assert_eq!(spans(3), [(3, 2), (2, 1), (1, 0)], "older than what is settled: down to 0");
    // A branch that the settled generation is not on.
    s.rollback(key, Generation(4)).unwrap();
    let nine = commit(s, key);
    assert_eq!(spans(nine.0), [(9, 4), (4, 0)]);
    assert_eq!((between(4, 9).unwrap(), between(5, 9)), (vec![(9, 4)], None));
    for (last, below) in [(3, 3), (2, 3), (99, 1), (9, 6)] {
        assert!(squash(last, below, 1).is_err(), "{last} {below}");
    }
    assert!(s.set_settled(key, Generation(99)).is_err());
    assert_eq!(s.squashes(key).unwrap().len(), 3);
    assert_sound(s);
}

#[test]
fn rows_that_kept_no_layer_are_bounded_and_their_events_stay() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    let execs: Vec<ExecId> = (0..6).map(|_| run(s, key, Ending::Empty).0).collect();
    let kept = run(s, key, commit_on(Generation::ZERO)).0;
    let held = run(s, key, Ending::Hold).0;
    assert_eq!(s.trim(key, 2).unwrap(), 4);
    let left: Vec<ExecId> = s.execs(key).unwrap().iter().map(|e| e.id).collect();
    assert_eq!(left, [execs[4], execs[5], kept, held]);
    assert_eq!(s.trim(key, 2).unwrap(), 0);
    assert_eq!(s.verify_events().unwrap().count, 9);
    assert_sound(s);
}

/// Probes every few seconds: nobody calls `trim`, and the rows stay bounded all the same.
#[test]
fn endings_trim_by_themselves() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    for _ in 0..1600 {
        let exec = new_exec(None);
        s.begin_exec(key, &exec).unwrap();
        let _ = s.finish_exec(key, &exec.id, &outcome(Ending::Empty)).unwrap();
    }
    let rows = s.execs(key).unwrap().len() as u64;
    // By chance alone more than 400 endings in a row without a trim happen once in 300,000 runs.
    assert!((MAX_LIGHT_ROWS..MAX_LIGHT_ROWS + 400).contains(&rows), "{rows}");
}

#[test]
fn removing_a_container_hands_back_its_layers() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    commit(s, key);
    run(s, key, Ending::Hold);
    run(s, key, Ending::Discard);
    drop(s.commit_lock(key).unwrap());
    let removed = s.remove_container(key).unwrap();
    assert_eq!((removed.released.len(), removed.running), (2, 0));
    assert_eq!(layers_on_disk(&f.root()), 2, "row first");
    removed.released.into_iter().for_each(|layer| s.delete_layer(layer).unwrap());
    assert_eq!(layers_on_disk(&f.root()), 0);
    for result in [s.remove_container(key).err(), s.head(key).err(), s.rollback(key, Generation::ZERO).err()] {
        assert!(matches!(result, Some(StoreError::ContainerRemoved { .. })));
    }
    assert!(s.begin_exec(key, &new_exec(None)).is_err());
    assert!(s.find("c").is_err());
    assert_eq!(std::fs::read_dir(f.root().join("locks")).unwrap().count(), 0);
    assert_eq!(s.verify_events().unwrap().count, 5, "events stay");
    assert_sound(s);
}

#[test]
fn a_container_removed_under_running_execs_goes_with_the_last() {
    let f = fixture();
    let s = &f.store;
    let key = s.add_container(&new_container("c")).unwrap();
    commit(s, key);
    let (one, _) = begin(s, key);
    let (two, _) = begin(s, key);
    let removed = s.remove_container(key).unwrap();
    assert_eq!((removed.released.len(), removed.running), (0, 2));
    assert!(s.find("c").is_err());
    assert!(s.container(key).unwrap().removed_ns.is_some());
    assert!(s.plan_gc().unwrap().delete.is_empty(), "running execs have the layers mounted");
    let err = s.finish_exec(key, &one, &outcome(commit_on(Generation(1)))).unwrap_err();
    assert!(matches!(err, StoreError::ContainerRemoved { .. }), "{err}");
    let finished = s.finish_exec(key, &one, &outcome(Ending::Hold)).unwrap();
    assert_eq!((finished.disposition, finished.released.len()), (Disposition::Discarded, 1));
    finished.released.into_iter().for_each(|layer| s.delete_layer(layer).unwrap());
    assert_sound(s);
    let finished = s.mark_aborted(key, &two, None).unwrap();
    assert_eq!(finished.released.len(), 2);
    finished.released.into_iter().for_each(|layer| s.delete_layer(layer).unwrap());
    assert_eq!(layers_on_disk(&f.root()), 0);
    assert!(s.container(key).is_err());
    assert_sound(s);
}
