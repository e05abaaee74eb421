//! The truth that a diff is held against: a walk of the whole tree before and after, compared entry by entry.
//!
//! It reads everything through the mounted root filesystem and knows nothing of layers, whiteouts or overlayfs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::Cmd;

/// All that an entry is, but its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    kind: &'static str,
    content: Vec<u8>,
    mode: u32,
    owner: (u32, u32),
    mtime: Option<(i64, i64)>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A whole tree: path inside the container -> entry.
pub type Tree = BTreeMap<String, Entry>;

/// Walks everything below `root`, staying on its filesystem. The root itself is `/`.
pub fn walk(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let device = fs::symlink_metadata(root).expect("stat the root").dev();
    visit(root, "", device, &mut tree, &digests(root));
    tree
}

/// The digest of every file's bytes, by path: of b2sum, since half a gigabyte is slow to hash in an unoptimised test.
fn digests(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let script = "cd \"$1\" && find . -xdev -type f -print0 | xargs --null --no-run-if-empty b2sum --zero";
    let text = Cmd::new("sh").args(["-c", script, "sh"]).arg(root).limit(Duration::from_secs(300)).ok();
    let lines = text.split('\0').filter_map(|line| line.split_once("  ."));
    lines.map(|(digest, path)| (path.to_owned(), digest.as_bytes().to_vec())).collect()
}

fn visit(path: &Path, name: &str, device: u64, tree: &mut Tree, digests: &BTreeMap<String, Vec<u8>>) {
    let meta = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file_type = meta.file_type();
    let (kind, content) = if file_type.is_dir() {
        ("directory", Vec::new())
    } else if file_type.is_symlink() {
        ("symlink", fs::read_link(path).expect("readlink").into_os_string().as_bytes().to_vec())
    } else if file_type.is_file() {
        ("file", digests.get(name).unwrap_or_else(|| panic!("{name}: no digest")).clone())
    } else {
        let kind = if file_type.is_fifo() {
            "fifo"
        } else if file_type.is_socket() {
            "socket"
        } else if file_type.is_char_device() {
            "char"
        } else {
            "block"
        };
        (kind, meta.rdev().to_le_bytes().to_vec())
    };
    let entry = Entry {
        kind,
        content,
        mode: meta.mode() & 0o7777,
        owner: (meta.uid(), meta.gid()),
        mtime: (kind == "file").then(|| (meta.mtime(), meta.mtime_nsec())),
        xattrs: xattrs(path),
    };
    let shown = if name.is_empty() { "/" } else { name };
    tree.insert(shown.to_owned(), entry);
    if kind == "directory" && meta.dev() == device {
        for child in fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
            let child = child.expect("readdir");
            let child_name = format!("{name}/{}", child.file_name().to_string_lossy());
            visit(&child.path(), &child_name, device, tree, digests);
        }
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 64 * 1024];
    let n = rustix::fs::llistxattr(path, &mut list[..]).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let names = list[..n].split(|b| *b == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 64 * 1024];
            let n = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).expect("lgetxattr");
            (name.to_vec(), value[..n].to_vec())
        })
        .collect()
}

/// What happened between two walks, as `kind path` words: added, modified, metadata, deleted, replaced.
pub fn compare(before: &Tree, after: &Tree) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in before.keys().chain(after.keys()) {
        let kind = match (before.get(path), after.get(path)) {
            (Some(old), Some(new)) if old == new => continue,
            (Some(old), Some(new)) if old.kind != new.kind => "replaced",
            (Some(old), Some(new)) if old.content != new.content => "modified",
            (Some(_), Some(_)) => "metadata",
            (None, _) => "added",
            (_, None) => "deleted",
        };
        found.insert(format!("{kind} {path}"));
    }
    found
}

/// A diff's `changes` in the same words. What a walk sees apart is told apart here too: a rename is one path deleted and
/// one added, and what lay below a directory that went (or was moved) went with it.
pub fn words(diff: &Value, before: &Tree, after: &Tree) -> BTreeSet<String> {
    let below = |tree: &Tree, dir: &str| -> Vec<String> {
        let prefix = format!("{dir}/");
        tree.keys().filter(|path| path.starts_with(&prefix)).cloned().collect()
    };
    let text = |change: &Value, field: &str| -> String {
        match (&change[field], change[field]["pathBase64"].as_str()) {
            (Value::String(text), _) => text.clone(),
            // As the walk has it: lossily.
            (_, Some(base64)) => String::from_utf8_lossy(&from_base64(base64)).into_owned(),
            _ => panic!("no {field} in {change}"),
        }
    };
    let mut words = BTreeSet::new();
    for change in diff["changes"].as_array().unwrap_or_else(|| panic!("no changes in {diff}")) {
        let (kind, path) = (text(change, "kind"), text(change, "path"));
        let gone = match kind.as_str() {
            "renamed" => {
                let from = text(change, "from");
                words.extend([format!("deleted {from}"), format!("added {path}")]);
                if change["type"] == "directory" {
                    words.extend(below(after, &path).into_iter().map(|p| format!("added {p}")));
                }
                from
            }
            _ => {
                words.insert(format!("{kind} {path}"));
                path.clone()
            }
        };
        let was_directory = before.get(&gone).is_some_and(|entry| entry.kind == "directory");
        if was_directory && matches!(kind.as_str(), "renamed" | "deleted" | "replaced") {
            words.extend(below(before, &gone).into_iter().map(|p| format!("deleted {p}")));
        }
    }
    words
}

fn from_base64(text: &str) -> Vec<u8> {
    let output =
        std::process::Command::new("sh").args(["-c", "printf %s \"$1\" | base64 --decode", "sh", text]).output();
    output.expect("run base64").stdout
}

/// Asserts that the diff says exactly what the two walks show.
#[track_caller]
pub fn assert_same(diff: &Value, before: &Tree, after: &Tree) {
    let told = words(diff, before, after);
    let truth = compare(before, after);
    let some = |words: BTreeSet<String>| words.into_iter().take(20).map(|w| w.chars().take(200).collect()).collect();
    let invented: Vec<String> = some(&told - &truth);
    let missed: Vec<String> = some(&truth - &told);
    assert!(invented.is_empty() && missed.is_empty(), "told but not so: {invented:#?}\nso but not told: {missed:#?}");
}

#[test]
fn a_walk_tells_every_kind_of_change() {
    let dir = tempfile::tempdir().expect("tempdir");
    let at = |name: &str| dir.path().join(name);
    for name in ["same", "content", "mode", "gone", "type"] {
        fs::write(at(name), name).expect("write");
    }
    let before = walk(dir.path());
    fs::write(at("content"), "other").expect("write");
    fs::set_permissions(at("mode"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
    fs::remove_file(at("gone")).expect("unlink");
    fs::remove_file(at("type")).expect("unlink");
    fs::create_dir(at("type")).expect("mkdir");
    fs::write(at("type/new"), "x").expect("write");
    let found: Vec<_> = compare(&before, &walk(dir.path())).into_iter().collect();
    assert_eq!(found, ["added /type/new", "deleted /gone", "metadata /mode", "modified /content", "replaced /type"]);
}
