//! For the tests of several use cases: a store with one container, and its execs.

use std::os::fd::AsFd;
use std::path::Path;

use super::commit::remember_touched;
use super::stack;
use crate::diff::{self, Touched};
use crate::id::{ExecId, LayerId};
use crate::rootfs::open_dir;
use crate::store::{
    Begun, Container, ContainerKey, Ending, ExecLock, Finished, NewContainer, NewExec, Outcome, Store, StoreError,
    now_ns,
};
use crate::terms::LayerMode;

/// A store, and a container in it, whose root filesystem is an ordinary directory.
pub(super) struct Fixture {
    pub dir: tempfile::TempDir,
    pub store: Store,
    pub container: Container,
}

/// An exec whose command has ended.
pub(super) struct Exec {
    pub id: ExecId,
    pub layer: LayerId,
    pub begun: Begun,
    pub touched: Vec<Touched>,
    pub lock: ExecLock,
}

impl Fixture {
    /// `fill` gets the root filesystem, an empty directory.
    pub fn new(fill: impl FnOnce(&Path)) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let rootfs = dir.path().join("rootfs");
        std::fs::create_dir(&rootfs).unwrap();
        fill(&rootfs);
        let store = Store::open(&dir.path().join("store")).unwrap();
        let new = NewContainer {
            id: "c".parse().unwrap(),
            root: dir.path().join("run"),
            bundle: dir.path().to_owned(),
            rootfs,
            created_ns: now_ns(),
            told: serde_json::Map::new(),
            cow_mounts: Vec::new(),
        };
        let container = store.container(store.add_container(&new).unwrap()).unwrap();
        Fixture { dir, store, container }
    }

    /// An exec, as [`exec`] makes it.
    pub fn exec(&self, write: impl FnOnce(&Path, &Begun)) -> Exec {
        exec(&self.store, &self.container, write)
    }

    /// Writes down its end.
    pub fn finish(&self, exec: &ExecId, ending: Ending) -> Result<Finished, StoreError> {
        finish(&self.store, self.container.key, exec, ending)
    }
}

/// An exec; `write` does with its upper directory what its command does.
pub(super) fn exec(store: &Store, container: &Container, write: impl FnOnce(&Path, &Begun)) -> Exec {
    let key = container.key;
    let staged = store.create_layer().unwrap();
    let new = NewExec {
        id: ExecId::new(),
        engine_exec: None,
        args: Vec::new(),
        cwd: "/".into(),
        uid: 0,
        gid: 0,
        mode: LayerMode::Commit,
        layer: Some(staged.id()),
        supervisor_pid: 1,
        cgroups: Vec::new(),
        started_ns: now_ns(),
    };
    let lock = ExecLock::create(store, &new.id).unwrap();
    let begun = store.begin_exec(key, &new).unwrap();
    let layer = staged.keep();
    write(&store.upper(&layer), &begun);
    let upper = open_dir(&store.upper(&layer)).unwrap();
    let lowers = stack::lowers_at(store, container, begun.base).unwrap();
    let touched = diff::touched(&diff::seal(upper.as_fd(), lowers.view(), &diff::Options::default()).unwrap());
    remember_touched(store, &layer, &touched);
    Exec { id: new.id, layer, begun, touched, lock }
}

/// Writes down the end of an exec.
pub(super) fn finish(store: &Store, key: ContainerKey, exec: &ExecId, ending: Ending) -> Result<Finished, StoreError> {
    let (end, usage, summary, result, survivors) = (None, None, None, None, None);
    let outcome = Outcome { ending, end, usage, summary, result, survivors, finished_ns: now_ns() };
    store.finish_exec(key, exec, &outcome)
}
