//! Tests of the store as a whole, against a real directory and database: format, history, crashes, many processes.

mod crash;
mod dropping;
mod format;
mod garbage;
mod history;
mod processes;
mod retention;
mod timing;

use crate::terms::LayerMode;
use std::path::{Path, PathBuf};

use super::*;
use crate::error::{Classify, Kind};
use crate::id::{ContainerId, ExecId, LayerId, Revision};

/// A store of its own in a temporary directory.
struct Fixture {
    dir: tempfile::TempDir,
    store: Store,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    Fixture { dir, store }
}

impl Fixture {
    fn root(&self) -> PathBuf {
        self.dir.path().join("store")
    }
}

fn cid(id: &str) -> ContainerId {
    id.parse().unwrap()
}

fn new_container(id: &str) -> NewContainer {
    NewContainer {
        id: cid(id),
        root: "/run/agentsbx".into(),
        bundle: "/bundle".into(),
        rootfs: "/bundle/rootfs".into(),
        created_ns: now_ns(),
        told: serde_json::Map::new(),
        cow_mounts: Vec::new(),
    }
}

fn new_exec(layer: Option<LayerId>) -> NewExec {
    NewExec {
        id: ExecId::new(),
        engine_exec: None,
        args: vec!["sh".into(), "-c".into(), "touch f".into()],
        cwd: "/work".into(),
        uid: 1000,
        gid: 100,
        mode: LayerMode::Commit,
        layer,
        supervisor_pid: std::process::id() as i32,
        cgroups: vec!["/sys/fs/cgroup/pids/x".into(), "/sys/fs/cgroup/a\nb".into()],
        started_ns: now_ns(),
    }
}

fn outcome(ending: Ending) -> Outcome {
    Outcome {
        ending,
        end: Some(serde_json::json!({"kind": "exited", "code": 0})),
        usage: None,
        summary: Some(serde_json::json!({"added": 1})),
        result: Some("{\"schema\":\"x\"}".into()),
        survivors: Some(0),
        finished_ns: now_ns(),
    }
}

fn commit_on(expected_head: Generation) -> Ending {
    Ending::Commit { expected_head, info: CommitInfo { digest: Some("sha256:00".into()), bytes: Some(3) } }
}

/// A running exec with a layer, without a lock.
fn begin(store: &Store, key: ContainerKey) -> (ExecId, Begun) {
    let staged = store.create_layer().unwrap();
    let exec = new_exec(Some(staged.id()));
    let begun = store.begin_exec(key, &exec).unwrap();
    staged.keep();
    (exec.id, begun)
}

/// One whole exec; its released layer is deleted.
fn run(store: &Store, key: ContainerKey, ending: Ending) -> (ExecId, Option<Generation>) {
    let (exec, _) = begin(store, key);
    let finished = store.finish_exec(key, &exec, &outcome(ending)).unwrap();
    finished.released.into_iter().for_each(|layer| store.delete_layer(layer).unwrap());
    (exec, finished.generation)
}

/// One whole exec that commits onto HEAD.
fn commit(store: &Store, key: ContainerKey) -> Generation {
    run(store, key, commit_on(store.head(key).unwrap())).1.unwrap()
}

fn commit_times(store: &Store, key: ContainerKey, times: u64) {
    for _ in 0..times {
        commit(store, key);
    }
}

fn numbers(chain: &[GenerationRow]) -> Vec<u64> {
    chain.iter().map(|row| row.number.0).collect()
}

#[track_caller]
fn assert_sound(store: &Store) {
    let findings = store.check().unwrap();
    assert!(findings.is_empty(), "{findings:#?}");
}

fn layers_on_disk(root: &Path) -> usize {
    std::fs::read_dir(root.join("layers")).unwrap().count()
}
