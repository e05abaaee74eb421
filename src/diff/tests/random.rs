//! Random histories: whatever is done through the mount, the diff is the truth.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

use super::lab::{Lab, open_all};
use super::walk::{lines, truth};
use crate::diff::{Namespace, conflicts, merge, refresh_passed, seal, touched};

/// A small generator (xorshift), so that a failing seed can be run again.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// A path of one to three components out of few names.
fn path(random: &mut Random, root: &Path) -> PathBuf {
    let mut path = root.to_path_buf();
    for _ in 0..=random.below(3) {
        path.push(["a", "b", "a-c", ".wh.a"][random.below(4) as usize]);
    }
    path
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    let status = std::process::Command::new("cp").args(["-aT", "--remove-destination"]).args([from, to]).output()?;
    if status.status.success() { Ok(()) } else { Err(std::io::ErrorKind::Other.into()) }
}

/// How many paths are under a directory.
fn entries(dir: &Path) -> usize {
    let Ok(list) = std::fs::read_dir(dir) else { return 0 };
    list.flatten().map(|entry| 1 + if entry.path().is_symlink() { 0 } else { entries(&entry.path()) }).sum()
}

/// One thing that a program may do; failures are as good.
pub fn step(random: &mut Random, root: &Path) {
    let at = path(random, root);
    let other = path(random, root);
    let is = |path: &Path| std::fs::symlink_metadata(path).map(|meta| meta.file_type());
    let plain = is(&at).is_ok_and(|kind| kind.is_file() || kind.is_dir());
    let _ = match random.below(16) {
        0 | 1 => std::fs::create_dir_all(&at),
        2 | 3 if plain || is(&at).is_err() => std::fs::File::create(&at).and_then(|mut f| {
            use std::io::Write;
            f.write_all(&b"xyz"[..random.below(3) as usize])
        }),
        4 => std::fs::remove_file(&at),
        5 => std::fs::remove_dir_all(&at),
        6 | 7 => rustix::fs::rename(&at, &other).map_err(Into::into),
        8 => symlink(["a", "b/c", "gone"][random.below(3) as usize], &at),
        9 if plain => std::fs::set_permissions(
            &at,
            std::fs::Permissions::from_mode([0o700, 0o755, 0o4755, 0][random.below(4) as usize]),
        ),
        10 if plain => chown(&at, Some(random.below(2) as u32), Some(random.below(2) as u32)),
        11 if plain => setxattr(&at, "user.t", &[random.below(2) as u8], XattrFlags::empty()).map_err(Into::into),
        12 => std::fs::hard_link(&at, &other),
        // Opened for writing and left as it is: copied up, no change.
        13 if plain => std::fs::OpenOptions::new().write(true).open(&at).map(|_| ()),
        14 => {
            let kind = [FileType::Fifo, FileType::CharacterDevice, FileType::BlockDevice][random.below(3) as usize];
            let dev = rustix::fs::makedev(240, random.below(2) as u32);
            mknodat(CWD, &at, kind, Mode::from_raw_mode(0o600), dev).map_err(Into::into)
        }
        15 if entries(&at) < 6 => copy_tree(&at, &other),
        _ => Ok(()),
    };
}

/// A root filesystem and layers of random steps. The seed also chooses the kind of mount.
pub fn history(seed: u64, layers: usize) -> (Lab, Random) {
    let mut random = Random::new(seed);
    let mut lab = Lab::new(|root| (0..80).for_each(|_| step(&mut random, root)));
    match seed % 4 {
        0 => lab.flags = vec![("xino", "on")],
        1 => lab.namespace = Namespace::User,
        _ => {}
    }
    for _ in 0..layers {
        lab.exec(|root| (0..40).for_each(|_| step(&mut random, root)));
    }
    (lab, random)
}

#[test]
fn one_layer_is_the_truth() {
    let mut kinds = std::collections::BTreeMap::new();
    for seed in 0..60 {
        let (mut lab, mut random) = history(seed, (seed % 3) as usize);
        let (before, after) = lab.exec(|root| (0..60).for_each(|_| step(&mut random, root)));
        let diff = lab.diff(1, &lab.options());
        assert_eq!(lines(&diff), truth(&before, &after), "seed {seed}");
        diff.changes.iter().for_each(|change| *kinds.entry(change.kind).or_insert(0) += 1);
    }
    // The histories are worth something: each kind comes often.
    use crate::diff::Kind::{Added, Deleted, Metadata, Modified, Replaced};
    for kind in [Added, Deleted, Metadata, Modified, Replaced] {
        assert!(kinds.get(&kind).is_some_and(|count| *count > 20), "{kinds:?}");
    }
}

#[test]
fn several_layers_compose() {
    for seed in 1000..1016 {
        let (lab, _) = history(seed, 4);
        let stack = lab.lowers();
        for count in 1..=4 {
            let (before, after) = (lab.view(&stack[count..]), lab.view(&stack));
            assert_eq!(lines(&lab.diff(count, &lab.options())), truth(&before, &after), "seed {seed}, {count} layers");
        }
    }
}

/// Seals the newest layer.
fn seal_newest(lab: &Lab) -> crate::diff::Diff {
    let fds = open_all(&lab.lowers());
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    seal(fds[0], &fds[1..], &lab.options()).unwrap()
}

#[test]
fn a_sealed_layer_shows_the_same() {
    let mut pruned = 0;
    for seed in 2000..2040 {
        let (lab, _) = history(seed, 2);
        let stack = lab.lowers();
        let before = lab.view(&stack);
        let found = lab.diff(1, &lab.options());
        let sealed = seal_newest(&lab);
        assert_eq!(found, sealed, "seed {seed}");
        assert!(lab.view(&stack) == before, "seed {seed}");
        let again = lab.diff(1, &lab.options());
        assert_eq!(lines(&again), lines(&sealed), "seed {seed}");
        for path in &again.unchanged {
            let under = |dir: &crate::diff::PathBytes| crate::diff::path::is_below(path.as_bytes(), dir.as_bytes());
            let linked = again.changes.iter().any(|change| change.link_to.is_some());
            assert!(again.hides.iter().any(under) || linked, "seed {seed}: {path} was left");
        }
        pruned += found.unchanged.len() - again.unchanged.len();
        if sealed.summary.is_empty() {
            assert_eq!(std::fs::read_dir(&stack[0]).unwrap().count(), 0, "seed {seed}");
        }
    }
    assert!(pruned > 2, "{pruned}");
}

#[test]
fn a_merged_layer_shows_what_its_layers_show() {
    for seed in 3000..3020 {
        let (lab, _) = history(seed, 4);
        let stack = lab.lowers();
        let whole = lab.view(&stack);
        // Linked on the same filesystem, copied onto another.
        let shm = tempfile::Builder::new().prefix("diff-").tempdir_in("/dev/shm").unwrap();
        let near = [lab.scratch("merged1"), lab.scratch("merged2"), lab.scratch("merged3")];
        let far = [shm.path().join("1"), shm.path().join("2"), shm.path().join("3")];
        far.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        for (i, out) in near.iter().chain(&far).enumerate() {
            let (from, to) = [(0, 2), (0, 4), (1, 4)][i % 3];
            let fds = open_all(&stack[from..to]);
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            merge(&fds, std::fs::File::open(out).unwrap().as_fd(), &lab.options()).unwrap();
            let merged: Vec<PathBuf> = [&stack[..from], std::slice::from_ref(out), &stack[to..]].concat();
            assert!(lab.view(&merged) == whole, "seed {seed}, layers {from}..{to}");
        }
    }
}

/// Two layers over the same base: where the check finds no conflict, one after the other loses nothing of either.
#[test]
fn layers_without_conflict_lose_nothing() {
    let (mut agree, mut conflict) = (0, 0);
    for seed in 4000..4120 {
        let (mut lab, mut random) = history(seed, 1);
        let base = lab.view(&lab.lowers());
        let few = |random: &mut Random, root: &Path| (0..4).for_each(|_| step(random, root));
        lab.exec(|root| few(&mut random, root));
        let theirs = seal_newest(&lab);
        let their_layer = lab.layers.pop().unwrap();
        let their_kept = their_layer.with_extension("theirs");
        rustix::fs::rename(&their_layer, &their_kept).unwrap();
        std::fs::remove_dir_all(their_layer.with_extension("work")).unwrap();
        lab.exec(|root| few(&mut random, root));
        let ours = seal_newest(&lab);
        let our_layer = lab.layers.pop().unwrap();
        let base_stack = lab.lowers();
        let head_stack = [vec![their_kept.clone()], base_stack.clone()].concat();
        if !conflicts(&touched(&ours), &touched(&theirs)).is_empty() {
            conflict += 1;
            continue;
        }
        agree += 1;
        let (our_view, their_view) =
            (lab.view(&[vec![our_layer.clone()], base_stack.clone()].concat()), lab.view(&head_stack));
        let (base_files, head_files) = (open_all(&base_stack), open_all(&head_stack));
        let base_fds: Vec<BorrowedFd<'_>> = base_files.iter().map(AsFd::as_fd).collect();
        let head_fds: Vec<BorrowedFd<'_>> = head_files.iter().map(AsFd::as_fd).collect();
        let upper = std::fs::File::open(&our_layer).unwrap();
        refresh_passed(upper.as_fd(), &base_fds, &head_fds, None, &lab.options()).unwrap();
        let both = lab.view(&[vec![our_layer.clone()], head_stack.clone()].concat());
        // Every path is as the one who changed it left it, and else as it was.
        let mut want = base.clone();
        for view in [&our_view, &their_view] {
            for path in base.keys().chain(view.keys()) {
                match view.get(path) {
                    new if new == base.get(path) => {}
                    Some(new) => drop(want.insert(path.clone(), new.clone())),
                    None => drop(want.remove(path)),
                }
            }
        }
        assert!(both == want, "seed {seed}: {:#?}", truth(&want, &both));
    }
    assert!(agree > 20 && conflict > 5, "{agree} {conflict}");
}
