//! Mounts below which layers lie over another tree: told, sealed, refreshed and printed as the rest is.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::lab::patch_of;
use crate::diff::{Diff, Graft, Kind, Namespace, Options, PathBytes, View, compare, lookup, refresh_passed, seal};

/// Trees made by hand.
pub(crate) struct Trees(tempfile::TempDir);

impl Trees {
    pub(crate) fn new() -> Trees {
        Trees(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes a tree: a path with a slash at its end is a directory, others are files with the text behind `=`.
    pub(crate) fn tree(&self, name: &str, entries: &[&str]) -> File {
        let top = self.path(name);
        fs::create_dir_all(&top).unwrap();
        for entry in entries {
            let (path, text) = entry.split_once('=').unwrap_or((entry, ""));
            let path = top.join(path);
            if entry.ends_with('/') {
                fs::create_dir_all(&path).unwrap();
                continue;
            }
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            crate::durable::replace_unsynced(&path, text.as_bytes(), 0o644).unwrap();
            let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        File::open(top).unwrap()
    }

    pub(crate) fn whiteout(&self, path: &str) {
        let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::empty());
        rustix::fs::mknodat(rustix::fs::CWD, self.path(path), kind, mode, 0).unwrap();
    }
}

pub(crate) fn view<'a>(layers: &'a [&File], grafts: &'a [(&str, &[&File])]) -> View<'a> {
    let fds = |files: &'a [&File]| -> Vec<BorrowedFd<'a>> { files.iter().map(|file| file.as_fd()).collect() };
    let graft = |(at, base): &(&str, &'a [&File])| Graft { at: PathBytes::from(*at), base: fds(base) };
    View { layers: fds(layers), grafts: grafts.iter().map(graft).collect() }
}

fn told(diff: &Diff) -> Vec<String> {
    diff.changes.iter().map(|c| format!("{:?} {}", c.kind, c.path).to_lowercase()).collect()
}

/// The tree of a mount is what counts below it, under the layers that have something there; the root's own is not looked at.
#[test]
fn below_a_mount_another_tree_counts() {
    let t = Trees::new();
    let upper = t.tree("u", &["a/work/new=n", "a/work/same=1", "a/work/mod=2", "a/work/layer=2", "a/b=1", "top=top"]);
    t.whiteout("u/a/work/gone");
    t.whiteout("u/a/work/nothing");
    let layer = t.tree("l", &["a/work/layer=1", "a/x=1"]);
    let root = t.tree("r", &["a/work/new=not looked at", "a/work/hidden=1", "a/b=1"]);
    let first = t.tree("f", &["mod=1", "first=1"]);
    let host = t.tree("h", &["same=1", "mod=0", "gone=1", "layer=0"]);
    let grafts: [(&str, &[&File]); 1] = [("/a/work", &[&first, &host])];
    let layers = [&layer, &root];
    let view = view(&layers, &grafts);
    let diff = compare(&[upper.as_fd()], &view, &Options::default()).unwrap();
    let want = ["modified /a/work/layer", "modified /a/work/mod"];
    assert_eq!(told(&diff), [&["deleted /a/work/gone"], &want[..], &["added /a/work/new", "added /top"]].concat());
    assert_eq!(diff.unchanged, ["/a/b", "/a/work/same"].map(PathBytes::from));
    assert_eq!(lookup(&view, &"/a/work/first".into(), Namespace::Trusted).unwrap().map(|e| e.layer), Some(2));
    assert_eq!(lookup(&view, &"/a/work/hidden".into(), Namespace::Trusted).unwrap(), None);
    let text = patch_of(&[upper.as_fd()], &view, &diff, &|uid, gid| (uid, gid));
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("--- a/a/work/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-1"), "{text}");
    assert!(text.contains("--- a/a/work/mod\n+++ b/a/work/mod\n@@ -1 +1 @@\n-1"), "{text}");
    // Sealed, the changes are left, and nothing else.
    assert_eq!(seal(upper.as_fd(), &view, &Options::default()).unwrap(), diff);
    let left = |path: &str| t.path("u").join(path).symlink_metadata().is_ok();
    assert!(left("a/work/new") && left("a/work/gone"));
    assert!(!left("a/work/same") && !left("a/work/nothing") && !left("a/b"));
}

/// Directories that the runtime made to get to a mount are told only where something beside the mount is in them.
#[test]
fn what_leads_to_a_mount_is_no_change() {
    let t = Trees::new();
    let (root, host) = (t.tree("r", &[]), t.tree("h", &["f=1"]));
    let layers = [&root];
    let grafts: [(&str, &[&File]); 2] = [("/p/q/w", &[&host]), ("/p/q/w/in/ner", &[&host])];
    let view = view(&layers, &grafts);
    let run = |name: &str, entries: &[&str]| {
        let upper = t.tree(name, entries);
        let diff = seal(upper.as_fd(), &view, &Options::default()).unwrap();
        (told(&diff), fs::read_dir(t.path(name)).unwrap().count())
    };
    assert_eq!(run("1", &["p/q/w/in/ner/"]), (Vec::new(), 0));
    assert_eq!(run("2", &["p/q/w/in/ner/f=1", "p/q/w/f=1"]), (Vec::new(), 0));
    assert_eq!(run("3", &["p/q/w/x=1"]), (vec!["added /p/q/w/x".into()], 1));
    assert_eq!(run("4", &["p/q/w/in/ner/x=1"]), (vec!["added /p/q/w/in/ner/x".into()], 1));
    assert_eq!(run("5", &["p/q/w/x=1", "p/y=1"]).0, ["added /p", "added /p/q/w/x", "added /p/y"]);
}

/// A layer that has no directory where a mount is, which no exec can have made, breaks nothing.
#[test]
fn layers_that_lie_about_a_mount_point() {
    let t = Trees::new();
    let (root, host) = (t.tree("r", &["a/w/"]), t.tree("h", &["f=1"]));
    let layers = [&root];
    let grafts: [(&str, &[&File]); 1] = [("/a/w", &[&host])];
    let under = view(&layers, &grafts);
    let file = t.tree("1", &["a/w=file"]);
    let none = t.tree("2", &["a/"]);
    t.whiteout("2/a/w");
    let link = t.tree("3", &["a/"]);
    std::os::unix::fs::symlink(t.path("h"), t.path("3/a/w")).unwrap();
    for upper in [&file, &none, &link] {
        assert!(compare(&[upper.as_fd()], &under, &Options::default()).unwrap().changes.is_empty());
        let stack = [upper, &root];
        let over = view(&stack, &grafts);
        assert_eq!(lookup(&over, &"/a/w/f".into(), Namespace::Trusted).unwrap().map(|e| e.size), Some(1));
    }
}

/// Deeper than descriptors are kept open for: the way back is found from the mount's own root.
#[test]
fn deep_below_a_mount() {
    let t = Trees::new();
    let deep = |end: &str| format!("{}{end}", "d/".repeat(400));
    let (root, upper) = (t.tree("r", &["m/w/"]), t.tree("u", &[]));
    let host = t.tree("h", &[&deep("f=1"), "z=1"]);
    let top = t.path("u/m/w");
    fs::create_dir_all(&top).unwrap();
    t.tree("u/m/w", &[&deep("f=2"), "z=2", "d/d/z=1"]);
    let layers = [&root];
    let grafts: [(&str, &[&File]); 1] = [("/m/w", &[&host])];
    let diff = compare(&[upper.as_fd()], view(&layers, &grafts), &Options::default()).unwrap();
    let kinds: Vec<Kind> = diff.changes.iter().map(|change| change.kind).collect();
    assert_eq!(kinds, [Kind::Modified, Kind::Added, Kind::Modified]);
}

/// Directories that were passed through take the attributes that others gave them, below a mount too.
#[test]
fn passed_directories_are_refreshed() {
    let t = Trees::new();
    let upper = t.tree("u", &["p/w/d/x=1"]);
    let (root, host) = (t.tree("r", &[]), t.tree("h", &["d/"]));
    let theirs = t.tree("theirs", &["p/w/d/"]);
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&t.path("theirs/p/w/d"), 0o700);
    let grafts: [(&str, &[&File]); 1] = [("/p/w", &[&host])];
    let (before, after) = ([&root], [&theirs, &root]);
    let (base, head) = (view(&before, &grafts), view(&after, &grafts));
    refresh_passed(upper.as_fd(), &base, &head, None, &Options::default()).unwrap();
    assert_eq!(t.path("u/p/w/d").metadata().unwrap().permissions().mode() & 0o7777, 0o700);
}
