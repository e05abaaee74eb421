//! The truth that a diff is held against: a walk of the whole tree before and after, compared entry by entry.
//!
//! It reads everything through the mounted root filesystem, by descriptors, so that no name and no depth is too long,
//! and knows nothing of layers, whiteouts or overlayfs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat, openat, readlinkat, seek, statat};
use rustix::io::Errno;
use serde_json::Value;

/// All that an entry is, but its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As a diff names it: file, directory, symlink, fifo, socket, char, block.
    pub kind: &'static str,
    /// Of a regular file a hash of its bytes, of a symbolic link its target.
    pub content: Vec<u8>,
    /// Of a regular file, in bytes.
    pub size: Option<u64>,
    /// Of a regular file, what its blocks take, in bytes.
    pub blocks: u64,
    /// Permission bits.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Seconds and nanoseconds.
    pub mtime: (i64, u64),
    /// Of a device.
    pub rdev: Option<(u32, u32)>,
    /// All extended attributes, ACLs and capabilities among them.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Device and inode, where it has more than one name.
    pub link: Option<(u64, u64)>,
}

impl Entry {
    /// The same but for the times of directories, which no diff tells, for inode numbers, and for where it has holes.
    fn same_as(&self, other: &Entry) -> bool {
        let seen = |e: &Entry| Entry {
            mtime: if e.kind == "directory" { (0, 0) } else { e.mtime },
            link: None,
            blocks: 0,
            ..e.clone()
        };
        seen(self) == seen(other)
    }

    /// The same bytes, target or device.
    pub fn same_content(&self, other: &Entry) -> bool {
        (self.size, &self.content, self.rdev) == (other.size, &other.content, other.rdev)
    }
}

/// A whole tree: path inside the container, as bytes -> entry.
pub type Tree = BTreeMap<Vec<u8>, Entry>;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Walks everything below `root`, staying on its filesystem. The root itself is `/`.
pub fn walk(root: &Path) -> Tree {
    let dir = rustix::fs::open(root, DIRECTORY, Mode::empty()).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
    let stat = rustix::fs::fstat(&dir).expect("stat the root");
    let mut tree = Tree::new();
    tree.insert(b"/".to_vec(), entry(dir.as_fd(), c".", &stat));
    visit(dir.as_fd(), &mut Vec::new(), stat.st_dev, &mut tree);
    tree
}

fn visit(dir: BorrowedFd<'_>, path: &mut Vec<u8>, device: u64, tree: &mut Tree) {
    for child in Dir::read_from(dir).expect("opendir") {
        let child = child.expect("readdir");
        let name = child.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let above = path.len();
        path.push(b'/');
        path.extend_from_slice(name.to_bytes());
        let at = |call: &str, errno: Errno| -> ! { panic!("{call} {}: {errno}", shown(path)) };
        let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            // An overlay lists a device 0:0 of the image and has none.
            Err(Errno::NOENT) => {
                path.truncate(above);
                continue;
            }
            stat => stat.unwrap_or_else(|e| at("stat", e)),
        };
        let found = entry(dir, name, &stat);
        if found.kind == "directory" && stat.st_dev == device {
            let inner =
                openat(dir, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).unwrap_or_else(|e| at("open", e));
            tree.insert(path.clone(), found);
            visit(inner.as_fd(), path, device, tree);
        } else {
            tree.insert(path.clone(), found);
        }
        path.truncate(above);
    }
}

fn entry(dir: BorrowedFd<'_>, name: &std::ffi::CStr, stat: &Stat) -> Entry {
    let mut found = Entry {
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => "directory",
            FileType::Symlink => "symlink",
            FileType::Fifo => "fifo",
            FileType::Socket => "socket",
            FileType::CharacterDevice => "char",
            FileType::BlockDevice => "block",
            FileType::RegularFile | FileType::Unknown => "file",
        },
        content: Vec::new(),
        size: None,
        blocks: 0,
        mode: stat.st_mode & 0o7777,
        owner: (stat.st_uid, stat.st_gid),
        mtime: (stat.st_mtime, stat.st_mtime_nsec),
        rdev: None,
        xattrs: xattrs(dir, name),
        link: None,
    };
    if found.kind != "directory" && stat.st_nlink > 1 {
        found.link = Some((stat.st_dev, stat.st_ino));
    }
    match found.kind {
        "file" => {
            found.size = Some(stat.st_size as u64);
            found.blocks = stat.st_blocks as u64 * 512;
            if stat.st_size > 0 {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = openat(dir, name, flags, Mode::empty()).unwrap_or_else(|e| panic!("open {name:?}: {e}"));
                found.content = hash(file.as_fd(), stat.st_size as u64).to_vec();
            }
        }
        "symlink" => found.content = readlinkat(dir, name, Vec::new()).expect("readlink").into_bytes(),
        "char" | "block" => {
            found.rdev = Some((rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)));
        }
        _ => {}
    }
    found
}

/// Of the blocks that are not all zeros, and where they are: a hole is what its zeros are. Fast enough without any
/// optimisation, and only ever asked whether two trees of a test are the same.
fn hash(file: BorrowedFd<'_>, size: u64) -> [u8; 16] {
    const BLOCK: usize = 4096;
    let (mut a, mut b) = (0x9e37_79b9_7f4a_7c15_u64, size);
    let mut buffer = vec![0; 64 * BLOCK];
    let mut at = 0;
    while at < size {
        at = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data / BLOCK as u64 * BLOCK as u64,
            Err(Errno::NXIO) => break,
            Err(errno) => panic!("SEEK_DATA: {errno}"),
        };
        let hole = seek(file, SeekFrom::Hole(at)).unwrap_or(size).max(at + 1);
        while at < hole {
            let got = rustix::io::pread(file, &mut buffer, at).expect("read");
            if got == 0 {
                break;
            }
            for (n, block) in buffer[..got].chunks(BLOCK).enumerate() {
                if block.iter().all(|byte| *byte == 0) {
                    continue;
                }
                a ^= at + (n * BLOCK) as u64;
                for word in block.chunks(8) {
                    let mut bytes = [0; 8];
                    bytes[..word.len()].copy_from_slice(word);
                    a = (a ^ u64::from_le_bytes(bytes)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31);
                    b = b.rotate_left(17) ^ a;
                }
            }
            at += got as u64;
        }
    }
    (u128::from(a) << 64 | u128::from(b)).to_le_bytes()
}

fn xattrs(dir: BorrowedFd<'_>, name: &std::ffi::CStr) -> BTreeMap<Vec<u8>, Vec<u8>> {
    // The descriptor's link is followed, the entry is not.
    let path = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name.to_bytes()].concat();
    let mut list = vec![0; 1024];
    let n = loop {
        match rustix::fs::llistxattr(&path[..], &mut list[..]) {
            Err(Errno::RANGE) if list.len() < 64 * 1024 => list.resize(64 * 1024, 0),
            Err(Errno::OPNOTSUPP) => break 0,
            other => break other.unwrap_or_else(|e| panic!("listxattr {name:?}: {e}")),
        }
    };
    let names = list[..n].split(|b| *b == 0).filter(|name| !name.is_empty());
    names
        .map(|attribute| {
            let mut value = vec![0; 64 * 1024];
            let n = rustix::fs::lgetxattr(&path[..], attribute, &mut value[..]).expect("lgetxattr");
            (attribute.to_vec(), value[..n].to_vec())
        })
        .collect()
}

/// A path for people.
pub fn shown(path: &[u8]) -> String {
    let text = path.escape_ascii().to_string();
    if text.len() <= 200 { text } else { format!("{}…{}", &text[..100], &text[text.len() - 90..]) }
}

/// What happened between two walks, as `kind path` words: added, modified, metadata, deleted, replaced.
pub fn compare(before: &Tree, after: &Tree) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in before.keys().chain(after.keys()) {
        if let Some(kind) = kind_of_change(before.get(path), after.get(path)) {
            found.insert(format!("{kind} {}", path.escape_ascii()));
        }
    }
    found
}

/// How a path changed, by what it was and what it is.
pub fn kind_of_change(before: Option<&Entry>, after: Option<&Entry>) -> Option<&'static str> {
    match (before, after) {
        (Some(old), Some(new)) if old.kind != new.kind => Some("replaced"),
        (Some(old), Some(new)) if !old.same_content(new) => Some("modified"),
        (Some(old), Some(new)) => (!old.same_as(new)).then_some("metadata"),
        (None, Some(_)) => Some("added"),
        (Some(_), None) => Some("deleted"),
        (None, None) => None,
    }
}

/// The paths below a directory.
pub fn below<'t>(tree: &'t Tree, dir: &[u8]) -> impl Iterator<Item = &'t Vec<u8>> {
    let prefix = [dir.strip_suffix(b"/").unwrap_or(dir), b"/"].concat();
    let start = prefix.clone();
    tree.range(start..).map(|(path, _)| path).take_while(move |path| path.starts_with(&prefix)).filter(|p| p.len() > 1)
}

/// A path or target of a document: text, or base64 where it is not UTF-8.
pub fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Object(map) => from_base64(map.get("pathBase64")?.as_str()?),
        _ => None,
    }
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut word, mut bits) = (0u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        word = word << 6 | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    Some(bytes)
}

/// A diff's `changes` in the same words. What a walk sees apart is told apart here too: a rename is one path deleted and
/// one added, and what lay below a directory that went (or was moved) went with it.
pub fn words(diff: &Value, before: &Tree, after: &Tree) -> BTreeSet<String> {
    let word = |kind: &str, path: &[u8]| format!("{kind} {}", path.escape_ascii());
    let mut words = BTreeSet::new();
    for change in diff["changes"].as_array().unwrap_or_else(|| panic!("no changes in {diff}")) {
        let kind = change["kind"].as_str().unwrap_or_else(|| panic!("no kind in {change}"));
        let path = |field| bytes_of(&change[field]).unwrap_or_else(|| panic!("no {field} in {change}"));
        let gone = if kind == "renamed" {
            words.extend([word("deleted", &path("from")), word("added", &path("path"))]);
            if change["type"] == "directory" {
                words.extend(below(after, &path("path")).map(|p| word("added", p)));
            }
            path("from")
        } else {
            words.insert(word(kind, &path("path")));
            path("path")
        };
        let was_directory = before.get(&gone).is_some_and(|entry| entry.kind == "directory");
        if was_directory && matches!(kind, "renamed" | "deleted" | "replaced") {
            words.extend(below(before, &gone).map(|p| word("deleted", p)));
        }
    }
    words
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
