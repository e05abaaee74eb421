//! Histories at random, and a crash at every step, held against a model that forgets nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::*;
use crate::durable::{self, fault};
use crate::id::{ExecId, Generation, Revision};
use crate::ops::commit::onto_head;
use crate::ops::fixture::{self, Exec, Fixture};
use crate::store::{Begun, CommitInfo, Ending, ExecLock, Lower, Squash};

/// What a generation shows: the content of each file.
type View = BTreeMap<String, String>;

/// Numbers by xorshift, so that a failure can be had again by its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// What was ever committed.
struct Told {
    parent: Generation,
    view: View,
    touched: Vec<Touched>,
}

/// An exec that is held, or runs.
struct Open {
    exec: ExecId,
    base: Generation,
    layer: LayerId,
    view: View,
    touched: Vec<Touched>,
    /// What it has mounted, while it runs.
    chain: Vec<Lower>,
    lock: Option<ExecLock>,
}

struct Lab {
    _dir: tempfile::TempDir,
    store: Store,
    root: PathBuf,
    container: Container,
    told: BTreeMap<Generation, Told>,
    held: Vec<Open>,
    running: Vec<Open>,
    writes: u64,
}

impl Lab {
    fn new() -> Lab {
        let Fixture { dir, store, container } = Fixture::new(|_| {});
        let root = dir.path().join("store");
        let (told, held, running) = (BTreeMap::new(), Vec::new(), Vec::new());
        Lab { _dir: dir, store, root, container, told, held, running, writes: 0 }
    }

    fn key(&self) -> ContainerKey {
        self.container.key
    }

    fn head(&self) -> Generation {
        self.store.head(self.key()).unwrap()
    }

    fn view(&self, of: Generation) -> View {
        self.told.get(&of).map(|told| told.view.clone()).unwrap_or_default()
    }

    /// An exec that has written something at random.
    fn exec(&mut self, dice: &mut Dice) -> Open {
        let mut view = View::new();
        let write = |upper: &Path, begun: &Begun| {
            view = self.view(begun.base);
            for _ in 0..1 + dice.roll(3) {
                self.write(dice, upper, &mut view);
            }
        };
        let Exec { id, layer, begun, touched, lock } = fixture::exec(&self.store, &self.container, write);
        Open { exec: id, base: begun.base, layer, view, touched, chain: begun.chain, lock: Some(lock) }
    }

    /// One change, as overlayfs would have it in `upper`.
    fn write(&self, dice: &mut Dice, upper: &Path, view: &mut View) {
        let dir = ["a", "a/in", "b"][dice.roll(3) as usize];
        let full = upper.join(dir);
        let below = |view: &View| view.keys().any(|path| path.starts_with(&format!("{dir}/")));
        let whiteout = |path: &Path| {
            if path.is_dir() {
                std::fs::remove_dir_all(path).unwrap();
            }
            let _ = std::fs::remove_file(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let kind = rustix::fs::FileType::CharacterDevice;
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, rustix::fs::Mode::empty(), 0).unwrap();
        };
        match dice.roll(10) {
            // A directory is removed with what is in it; or is made anew over it.
            how @ 0..=1 if below(view) => {
                view.retain(|path, _| !path.starts_with(&format!("{dir}/")));
                whiteout(&full);
                if how == 1 {
                    std::fs::remove_file(&full).unwrap();
                    std::fs::create_dir(&full).unwrap();
                    let opaque = rustix::fs::XattrFlags::empty();
                    rustix::fs::setxattr(&full, c"trusted.overlay.opaque", b"y", opaque).unwrap();
                    self.put(&full.join("new"), dice);
                    view.insert(format!("{dir}/new"), std::fs::read_to_string(full.join("new")).unwrap());
                }
            }
            2..=3 if below(view) => {
                let paths: Vec<String> = view.keys().filter(|p| p.starts_with(&format!("{dir}/"))).cloned().collect();
                let path = &paths[dice.roll(paths.len() as u64) as usize];
                view.remove(path);
                whiteout(&upper.join(path));
            }
            _ => {
                let path = format!("{dir}/{}", dice.roll(4));
                let mut at = upper.to_owned();
                for part in dir.split('/') {
                    at.push(part);
                    if at.symlink_metadata().is_ok_and(|meta| !meta.is_dir()) {
                        // What was removed is made anew.
                        std::fs::remove_file(&at).unwrap();
                        std::fs::create_dir(&at).unwrap();
                        let none = rustix::fs::XattrFlags::empty();
                        rustix::fs::setxattr(&at, c"trusted.overlay.opaque", b"y", none).unwrap();
                    }
                    let _ = std::fs::create_dir(&at);
                }
                let file = upper.join(&path);
                let _ = std::fs::remove_file(&file);
                self.put(&file, dice);
                view.insert(path, std::fs::read_to_string(file).unwrap());
            }
        }
    }

    fn put(&self, file: &Path, dice: &mut Dice) {
        let text = format!("{} {}", self.writes, dice.roll(1000));
        durable::replace_unsynced(file, text.as_bytes(), 0o644).unwrap();
    }

    fn finish(&self, open: &Open, ending: Ending) -> Result<Option<Generation>, StoreError> {
        let finished = fixture::finish(&self.store, self.key(), &open.exec, ending)?;
        delete(&self.store, finished.released).unwrap();
        Ok(finished.generation)
    }

    /// Commits an exec that runs, or is held, and holds what comes of it against the model.
    fn commit(&mut self, mut open: Open, held: bool) {
        let (key, head) = (self.key(), self.head());
        let want = self.conflicts(&open, head);
        let info = CommitInfo { digest: None, bytes: Some(open.view.len() as u64) };
        let done = onto_head(&self.store, &self.container, &open.layer, open.base, &open.touched, false, |head| {
            if held {
                return self.store.commit_held(key, &open.exec, head, &info);
            }
            let ending = Ending::Commit { expected_head: head, info: info.clone() };
            Ok(self.finish(&open, ending)?.unwrap())
        });
        match done.unwrap() {
            Ok(generation) => {
                assert!(!want, "{generation} on {head}, from {}: a conflict was not found", open.base);
                // Its changes upon what HEAD showed.
                let before = self.view(open.base);
                let mut view = self.view(head);
                view.retain(|path, _| open.view.contains_key(path) || !before.contains_key(path));
                for (path, text) in &open.view {
                    if before.get(path) != Some(text) {
                        view.insert(path.clone(), text.clone());
                    }
                }
                self.told.insert(generation, Told { parent: head, view, touched: open.touched });
            }
            Err(conflict) => {
                assert!(want, "on {head}, from {}: {conflict:?}", open.base);
                if !held {
                    self.finish(&open, Ending::Conflict).unwrap();
                }
                open.lock = None;
                self.held.push(open);
            }
        }
    }

    /// Whether an exec's commit onto HEAD conflicts, by what was ever committed.
    fn conflicts(&self, open: &Open, head: Generation) -> bool {
        let mut at = head;
        while at > open.base {
            let told = &self.told[&at];
            if !diff::conflicts(&open.touched, &told.touched).is_empty() {
                return true;
            }
            at = told.parent;
        }
        at != open.base
    }

    fn step(&mut self, dice: &mut Dice) {
        self.writes += 1;
        let kept: Vec<Generation> = self.store.generations(self.key()).unwrap().iter().map(|row| row.number).collect();
        let pick = |dice: &mut Dice, from: usize| dice.roll(from as u64) as usize;
        match dice.roll(20) {
            0 if !kept.is_empty() => {
                let to = if dice.roll(4) == 0 { Generation::ZERO } else { kept[pick(dice, kept.len())] };
                self.store.rollback(self.key(), to).unwrap();
            }
            1 => {
                let mut open = self.exec(dice);
                self.finish(&open, Ending::Hold).unwrap();
                open.lock = None;
                self.held.push(open);
            }
            2 if !self.held.is_empty() => {
                let open = self.held.swap_remove(pick(dice, self.held.len()));
                self.commit(open, true);
            }
            3 if !self.held.is_empty() => {
                let open = self.held.swap_remove(pick(dice, self.held.len()));
                let released = self.store.discard_held(self.key(), &open.exec).unwrap();
                delete(&self.store, vec![released]).unwrap();
            }
            4 => {
                let open = self.exec(dice);
                self.running.push(open);
            }
            5..=6 if !self.running.is_empty() => {
                let open = self.running.swap_remove(pick(dice, self.running.len()));
                self.commit(open, false);
            }
            7 => {
                let chain = self.store.mount_chain(self.key(), self.head()).unwrap();
                let from = pick(dice, chain.len() + 1);
                let to = (from + 2 + pick(dice, 4)).min(chain.len());
                if to >= from + 2 {
                    self.squash(&chain[from..to]);
                }
            }
            _ => {
                let open = self.exec(dice);
                self.commit(open, false);
            }
        }
    }

    fn squash(&self, chain: &[Lower]) {
        let layers: Vec<LayerId> = chain.iter().map(|lower| lower.layer).collect();
        let (staged, _) = merge(&self.store, &layers).unwrap();
        let (last, below) = (chain[0].last, chain[chain.len() - 1].below);
        self.store.add_squash(self.key(), &Squash { last, below, level: 1, layer: staged.id() }).unwrap();
        staged.keep();
    }

    /// All that is left shows what it showed, and what is gone is told to be.
    fn check(&self, when: &str) {
        let findings = self.store.check().unwrap();
        assert!(findings.is_empty(), "{when}: {findings:#?}");
        let rows = self.store.generations(self.key()).unwrap();
        let kept: BTreeSet<Generation> = rows.iter().map(|row| row.number).collect();
        for (generation, told) in &self.told {
            match self.store.mount_chain(self.key(), *generation) {
                Ok(chain) => {
                    assert!(kept.contains(generation), "{when}: {generation}");
                    assert_eq!(self.shown(&chain), told.view, "{when}: {generation}");
                }
                Err(StoreError::GenerationDropped { .. }) => assert!(!kept.contains(generation), "{when}"),
                Err(err) => panic!("{when}: {generation}: {err}"),
            }
        }
        for open in &self.running {
            assert_eq!(self.shown(&open.chain), self.view(open.base), "{when}: what {} has mounted", open.exec);
        }
        for open in self.held.iter().chain(&self.running) {
            assert!(open.base == Generation::ZERO || kept.contains(&open.base), "{when}: {}", open.exec);
        }
        // @-N counts what was, not what is left.
        let (mut at, mut back) = (self.head(), 0);
        loop {
            match self.store.resolve(self.key(), Revision::Ancestor(back)) {
                Ok(found) => assert_eq!(found, at, "{when}: @-{back}"),
                Err(StoreError::DroppedBack { .. }) => assert!(!kept.contains(&at), "{when}: @-{back} is {at}"),
                Err(err) => panic!("{when}: @-{back}: {err}"),
            }
            let Some(told) = self.told.get(&at) else { break };
            (at, back) = (told.parent, back + 1);
        }
    }

    fn shown(&self, chain: &[Lower]) -> View {
        let mut view = View::new();
        show(&chain.iter().map(|lower| self.store.upper(&lower.layer)).collect::<Vec<_>>(), "", &mut view);
        view
    }

    fn collect(&self, when: &str) {
        let plan = self.store.plan_gc().unwrap();
        let odd = (&plan.missing, &plan.unknown, &plan.foreign, &plan.staged);
        assert!(
            plan.missing.len() + plan.unknown.len() + plan.foreign.len() + plan.staged.len() == 0,
            "{when}: {odd:?}"
        );
        let report = self.store.execute_gc(&plan).unwrap();
        assert!(report.failed.is_empty() && report.skipped.is_empty(), "{when}: {report:?}");
    }
}

/// What directories (newest first) show as an overlay, by the rules of the kernel's documentation and nothing of ours.
fn show(dirs: &[PathBuf], at: &str, view: &mut View) {
    let mut names = BTreeSet::new();
    for dir in dirs {
        names.extend(std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()));
    }
    for name in names {
        let path = if at.is_empty() { name.clone() } else { format!("{at}/{name}") };
        let mut merged = Vec::new();
        for dir in dirs {
            let entry = dir.join(&name);
            let Ok(meta) = entry.symlink_metadata() else { continue };
            if meta.is_dir() {
                let mut value = [0; 8];
                let opaque = rustix::fs::getxattr(&entry, c"trusted.overlay.opaque", &mut value[..]).is_ok();
                merged.push(entry);
                if opaque {
                    break;
                }
                continue;
            }
            if merged.is_empty() && !meta.file_type().is_char_device() {
                view.insert(path.clone(), std::fs::read_to_string(&entry).unwrap());
            }
            break;
        }
        if !merged.is_empty() {
            show(&merged, &path, view);
        }
    }
}

fn bounds(dice: &mut Dice) -> Retention {
    let generations = (dice.roll(3) > 0).then(|| 1 + dice.roll(12));
    let bytes = (dice.roll(3) == 0).then(|| 1 + dice.roll(60));
    Retention { generations, bytes, age: (dice.roll(20) == 0).then(|| Duration::from_nanos(1)) }
}

#[test]
fn random_histories_show_what_they_showed() {
    for seed in 1..=12 {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (seed << 17) ^ seed);
        let mut lab = Lab::new();
        let mut dropped = 0;
        for n in 0..120 {
            lab.step(&mut dice);
            if dice.roll(8) == 0 {
                let bounds = bounds(&mut dice);
                dropped += apply(&lab.store, &lab.container, &bounds, Rigour::Exact).unwrap().generations;
                let plan = lab.store.plan_retention(lab.key(), &bounds, None).unwrap();
                assert!(plan.dropped.is_empty(), "seed {seed}, step {n}: {plan:?}");
                lab.check(&format!("seed {seed}, step {n}, {bounds:?}"));
            }
        }
        for open in std::mem::take(&mut lab.running) {
            lab.commit(open, false);
        }
        delete(&lab.store, lab.store.release_retired(None).unwrap()).unwrap();
        lab.check(&format!("seed {seed}, at the end"));
        let plan = lab.store.plan_gc().unwrap();
        assert!(plan.delete.is_empty(), "seed {seed}: {plan:#?}");
        let layers = std::fs::read_dir(lab.root.join("layers")).unwrap().count();
        assert_eq!(layers, plan.kept, "seed {seed}");
        assert!(dropped > 20, "seed {seed}: only {dropped} dropped");
    }
}

/// A line of commits with a branch, a held exec, a squash, and an exec that runs.
fn history() -> Lab {
    let mut dice = Dice(7);
    let mut lab = Lab::new();
    let commit = |lab: &mut Lab, dice: &mut Dice, times: usize| {
        for _ in 0..times {
            lab.writes += 1;
            let open = lab.exec(dice);
            lab.commit(open, false);
        }
    };
    commit(&mut lab, &mut dice, 4);
    lab.squash(&lab.store.mount_chain(lab.key(), Generation(4)).unwrap()[1..3]);
    lab.store.rollback(lab.key(), Generation(2)).unwrap();
    commit(&mut lab, &mut dice, 2);
    let mut open = lab.exec(&mut dice);
    lab.finish(&open, Ending::Hold).unwrap();
    open.lock = None;
    lab.held.push(open);
    commit(&mut lab, &mut dice, 2);
    let open = lab.exec(&mut dice);
    lab.running.push(open);
    commit(&mut lab, &mut dice, 3);
    lab
}

#[test]
fn stopped_at_any_step_nothing_is_lost() {
    let bounds = Retention { generations: Some(3), ..Retention::default() };
    let mut steps = 0;
    loop {
        let lab = history();
        let (result, _) = fault::stop_after(steps, || apply(&lab.store, &lab.container, &bounds, Rigour::Exact));
        let when = format!("stopped after {steps} steps: {:?}", result.as_ref().err());
        // As after the process has died: what it had staged is nobody's.
        let lab = Lab { store: Store::open(&lab.root).unwrap(), ..lab };
        lab.check(&when);
        lab.collect(&when);
        lab.check(&when);
        apply(&lab.store, &lab.container, &bounds, Rigour::Exact).unwrap();
        lab.collect(&when);
        lab.check(&when);
        let left: Vec<u64> = lab.store.generations(lab.key()).unwrap().iter().map(|row| row.number.0).collect();
        // 4 is where the rollback came from, and 2 is what it and 5 were made on.
        assert_eq!(left, [2, 4, 6, 8, 11], "{when}");
        if result.is_ok() {
            assert!(steps > 25, "only {steps} steps");
            break;
        }
        steps += 1;
    }
}

/// Who reads layers keeps them; who drops them goes away.
#[test]
fn layers_that_are_read_stay() {
    let lab = history();
    let bounds = Retention { generations: Some(3), ..Retention::default() };
    let plan = lab.store.plan_retention(lab.key(), &bounds, None).unwrap();
    let reading = Store::open(&lab.root).unwrap();
    let lock = reading.read_lock(lab.key()).unwrap();
    assert!(lab.store.drop_lock(lab.key()).unwrap().is_none());
    assert!(lab.store.commit_lock_for(lab.key(), Duration::ZERO).unwrap().is_some(), "nobody waits for who waits");
    assert_eq!(apply(&lab.store, &lab.container, &bounds, Rigour::Rough).unwrap(), Gone::default());
    drop(lock);
    // One at a time.
    let theirs = reading.retention_lock(lab.key(), Duration::ZERO).unwrap().unwrap();
    assert_eq!(apply(&lab.store, &lab.container, &bounds, Rigour::Rough).unwrap(), Gone::default());
    drop(theirs);
    assert_eq!(apply(&lab.store, &lab.container, &bounds, Rigour::Rough).unwrap().generations, plan.dropped.len());
}

/// More layers than are merged at once.
#[test]
fn many_layers_are_merged_in_steps() {
    let mut dice = Dice(11);
    let mut lab = Lab::new();
    for n in 0..70 {
        lab.writes = n;
        let open = lab.exec(&mut dice);
        lab.commit(open, false);
    }
    let bounds = Retention { generations: Some(2), ..Retention::default() };
    assert_eq!(apply(&lab.store, &lab.container, &bounds, Rigour::Exact).unwrap().generations, 68);
    lab.check("after");
    assert!(lab.store.plan_gc().unwrap().delete.is_empty());
    let bottom = lab.store.generation(lab.key(), Generation(69)).unwrap();
    let files: u64 = lab.view(Generation(69)).values().map(|text| text.len() as u64).sum();
    assert_eq!(bottom.bytes, Some(files), "the size of what is left");
}

/// A history that grew in breadth: of many branches each generation that goes is merged into one of its own, and a plan holds
/// only some. Held against what it does at once, it was never worth while, and the history grew to more than it may.
#[test]
fn a_broad_history_is_kept_within_its_bounds_too() {
    let mut dice = Dice(5);
    let mut lab = Lab::new();
    let most = 330;
    let branches = MAX_FOLDS as u64 + 3;
    for n in 1..=most + branches {
        lab.writes = n;
        let on = n.saturating_sub(most);
        lab.store.rollback(lab.key(), Generation(on)).unwrap();
        let open = lab.exec(&mut dice);
        lab.commit(open, false);
    }
    let bounds = Retention { generations: Some(most), ..Retention::default() };
    let gone = apply(&lab.store, &lab.container, &bounds, Rigour::Rough).unwrap();
    assert_eq!(lab.store.generations(lab.key()).unwrap().len() as u64, most, "{gone:?}");
    lab.check("after");
}
