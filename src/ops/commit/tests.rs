//! Commits that are cut short, and made again.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::ops::fixture::{Exec, Fixture};
use crate::ops::recover;
use crate::store::Ending;

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

impl Fixture {
    /// The container has a directory `/d`, of mode 0755.
    fn with_directory() -> Fixture {
        Fixture::new(|rootfs| {
            chmod(rootfs, 0o755);
            std::fs::create_dir(rootfs.join("d")).unwrap();
            chmod(&rootfs.join("d"), 0o755);
        })
    }

    /// An exec in whose layer `/d` is a copy with this mode, and a file.
    fn adding(&self, mode: u32, file: &str) -> Exec {
        self.exec(|upper, _| {
            let d = upper.join("d");
            std::fs::create_dir(&d).unwrap();
            std::fs::File::create(d.join(file)).unwrap();
            chmod(&d, mode);
        })
    }

    /// Gives `/d` another mode, as a generation on HEAD.
    fn commit_mode(&self, mode: u32, file: &str) {
        let exec = self.adding(mode, file);
        let info = CommitInfo::default();
        drop(self.finish(&exec.id, Ending::Commit { expected_head: exec.begun.base, info }).unwrap());
    }

    fn onto_head(
        &self,
        exec: &Exec,
        attempt: impl FnMut(Generation) -> Result<Generation, StoreError>,
    ) -> Result<Generation, OpsError> {
        let (store, container) = (&self.store, &self.container);
        onto_head(store, container, &exec.layer, exec.begun.base, &exec.touched, false, attempt).map(Result::unwrap)
    }

    fn commit_held(&self, exec: &Exec, head: Generation) -> Result<Generation, StoreError> {
        self.store.commit_held(self.container.key, &exec.id, head, &CommitInfo::default())
    }

    fn mode_in(&self, layer: &LayerId) -> u32 {
        self.store.upper(layer).join("d").metadata().unwrap().permissions().mode() & 0o7777
    }
}

/// A layer that follows HEAD takes over the modes of directories that it only passes through. Where HEAD moved before it was
/// committed, or the commit failed, these were then taken for its own: the next try undid what others had changed.
#[test]
fn a_commit_that_is_made_again_undoes_nobodys_modes() {
    let lab = Fixture::with_directory();
    let held = lab.adding(0o755, "x");
    drop(lab.finish(&held.id, Ending::Hold).unwrap());
    lab.commit_mode(0o700, "one");
    // HEAD moves once more between the look at it and the commit, whose maker needs no lock.
    let mut moved = false;
    let made = lab.onto_head(&held, |head| {
        if head == Generation(1) && !moved {
            moved = true;
            lab.commit_mode(0o711, "two");
        }
        lab.commit_held(&held, head)
    });
    assert_eq!((made.unwrap(), moved), (Generation(3), true));
    assert_eq!(lab.mode_in(&held.layer), 0o711);
}

/// The same where HEAD is back at what the layer is based on.
#[test]
fn a_failed_commit_leaves_nothing_of_a_head_that_is_left() {
    let lab = Fixture::with_directory();
    let held = lab.adding(0o755, "x");
    drop(lab.finish(&held.id, Ending::Hold).unwrap());
    lab.commit_mode(0o700, "one");
    let failed = lab.onto_head(&held, |head| match head {
        Generation(1) => Err(StoreError::NoLayer { exec: held.id }),
        head => lab.commit_held(&held, head),
    });
    failed.unwrap_err();
    assert_eq!(lab.mode_in(&held.layer), 0o700);
    lab.store.rollback(lab.container.key, Generation::ZERO).unwrap();
    lab.onto_head(&held, |head| lab.commit_held(&held, head)).unwrap();
    assert_eq!(lab.mode_in(&held.layer), 0o755);
}

/// A supervisor that is killed in the middle of its commit: what its layer took over is no change of the exec's.
#[test]
fn an_aborted_commit_changes_no_modes() {
    let lab = Fixture::with_directory();
    let exec = lab.adding(0o755, "x");
    lab.commit_mode(0o700, "one");
    let failed = lab.onto_head(&exec, |head| match head {
        Generation(1) => Err(StoreError::NoLayer { exec: exec.id }),
        head => Err(StoreError::HeadMoved { expected: head, head: Generation(1) }),
    });
    failed.unwrap_err();
    drop(exec.lock);
    let repaired = recover::container(&lab.store, lab.container.key).unwrap();
    assert!(repaired.iter().any(|one| one.exec == exec.id.to_string() && one.held), "{repaired:?}");
    let touched = touched_of(&lab.store, &lab.container, &exec.layer, exec.begun.base).unwrap();
    assert_eq!(touched, exec.touched);
    assert_eq!(lab.mode_in(&exec.layer), 0o755);
}

/// Other execs end while a discarded layer is being deleted, and its row may be the oldest of too many: the discard was told
/// as failed, by an exec that is not there.
#[test]
fn a_result_whose_row_is_gone_is_not_missed() {
    let lab = Fixture::with_directory();
    let held = lab.adding(0o755, "x");
    drop(lab.finish(&held.id, Ending::Hold).unwrap());
    let (store, key) = (&lab.store, lab.container.key);
    store.delete_layer(store.discard_held(key, &held.id).unwrap()).unwrap();
    assert_eq!(store.trim(key, 0).unwrap(), 1);
    crate::ops::publish::decided(store, &lab.container, &held.id).unwrap();
}
