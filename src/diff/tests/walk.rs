//! The truth: a full walk of a mounted tree by path, and the comparison of two such walks. It shares no code with what
//! it tests.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// All that a container can see of an inode, but for times of directories, access times and inode numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub file_type: &'static str,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: Option<(i64, i64)>,
    pub content: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub type Tree = BTreeMap<Vec<u8>, Item>;

/// Every path under `root`, as seen inside (`/` first).
pub fn walk(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![Vec::new()];
    while let Some(path) = todo.pop() {
        // With the slash, the root's own descriptor link is followed.
        let full = [root.as_os_str().as_bytes(), if path.is_empty() { b"/." } else { &path[..] }].concat();
        let full = Path::new(OsStr::from_bytes(&full));
        let item = item(full);
        if item.file_type == "directory" {
            for entry in std::fs::read_dir(full).unwrap() {
                let name = entry.unwrap().file_name().into_vec();
                todo.push([&path[..], b"/", &name].concat());
            }
        }
        tree.insert(if path.is_empty() { b"/".to_vec() } else { path }, item);
    }
    tree
}

fn item(path: &Path) -> Item {
    let meta = std::fs::symlink_metadata(path).unwrap();
    let kind = meta.file_type();
    let (file_type, content) = if kind.is_dir() {
        ("directory", Vec::new())
    } else if kind.is_symlink() {
        ("symlink", std::fs::read_link(path).unwrap().into_os_string().into_vec())
    } else if kind.is_fifo() {
        ("fifo", Vec::new())
    } else if kind.is_socket() {
        ("socket", Vec::new())
    } else if kind.is_char_device() {
        ("char", meta.rdev().to_le_bytes().to_vec())
    } else if kind.is_block_device() {
        ("block", meta.rdev().to_le_bytes().to_vec())
    } else {
        ("file", std::fs::read(path).unwrap())
    };
    let mut list = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut list[..]).unwrap();
    let mut xattrs = BTreeMap::new();
    for name in list[..len].split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(len);
        // What is named like a mark of an overlay is the overlay's, wherever it shows.
        if !name.starts_with(b"trusted.overlay.") {
            xattrs.insert(name.to_vec(), value);
        }
    }
    Item {
        file_type,
        mode: meta.mode() & 0o7777,
        owner: (meta.uid(), meta.gid()),
        mtime: (!kind.is_dir()).then(|| (meta.mtime(), meta.mtime_nsec())),
        content,
        xattrs,
    }
}

/// One line a changed path: `KIND PATH TYPE`, with what else the kind tells; sorted by path.
pub fn truth(before: &Tree, after: &Tree) -> Vec<String> {
    let mut paths: Vec<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    let mut lines = Vec::new();
    for path in paths {
        let name = path.escape_ascii();
        match (before.get(path), after.get(path)) {
            (None, Some(new)) => lines.push(format!("added {name} {} {:04o} {:?}", new.file_type, new.mode, new.owner)),
            (Some(old), None) => {
                lines.push(format!("deleted {name} {} {:04o} {:?}", old.file_type, old.mode, old.owner));
            }
            (Some(old), Some(new)) if old.file_type != new.file_type => {
                let owner = new.owner;
                let types = format!("{} {:04o} {owner:?} was {}", new.file_type, new.mode, old.file_type);
                lines.push(format!("replaced {name} {types}"));
            }
            (Some(old), Some(new)) => {
                let mut what = Vec::new();
                let content = old.content != new.content;
                for (differs, attribute) in [
                    (old.mode != new.mode, "mode"),
                    (old.owner != new.owner, "owner"),
                    (!content && old.mtime != new.mtime, "mtime"),
                ] {
                    if differs {
                        what.push(attribute.to_owned());
                    }
                }
                for name in old.xattrs.keys().chain(new.xattrs.keys()) {
                    if old.xattrs.get(name) != new.xattrs.get(name) {
                        what.push(match &name[..] {
                            b"security.capability" => "capability".to_owned(),
                            b"system.posix_acl_access" | b"system.posix_acl_default" => "acl".to_owned(),
                            name => format!("xattr:{}", String::from_utf8_lossy(name)),
                        });
                    }
                }
                what.sort();
                what.dedup();
                if content || !what.is_empty() {
                    let kind = if content { "modified" } else { "metadata" };
                    let (mode, owner) = (new.mode, new.owner);
                    lines.push(format!("{kind} {name} {} {mode:04o} {owner:?} {what:?}", new.file_type));
                }
            }
            (None, None) => {}
        }
    }
    lines
}

/// The lines of [`truth`] from a diff, made with `recursive` and without `renames`.
pub fn lines(diff: &crate::diff::Diff) -> Vec<String> {
    use crate::diff::Kind;
    let word = |value: &dyn erased::Word| value.word();
    diff.changes
        .iter()
        .map(|change| {
            let head = format!(
                "{} {} {} {} {:?}",
                word(&change.kind),
                change.path.as_bytes().escape_ascii(),
                word(&change.file_type),
                change.mode,
                (change.uid, change.gid)
            );
            let mut attributes: Vec<String> = change.attributes.iter().map(ToString::to_string).collect();
            attributes.sort();
            match change.kind {
                Kind::Replaced => format!("{head} was {}", word(&change.from_type.unwrap())),
                Kind::Modified | Kind::Metadata => format!("{head} {attributes:?}"),
                _ => head,
            }
        })
        .collect()
}

mod erased {
    /// The word that a unit variant is in JSON.
    pub trait Word {
        fn word(&self) -> String;
    }

    impl<T: serde::Serialize> Word for T {
        fn word(&self) -> String {
            serde_json::to_value(self).unwrap().as_str().unwrap().to_owned()
        }
    }
}

/// One path of the host.
pub fn walk_one(path: &Path) -> Item {
    item(path)
}
