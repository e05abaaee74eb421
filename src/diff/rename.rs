//! Renames: an added and a deleted path that are the same file.
//!
//! Overlayfs turns a rename into a copy and a whiteout, so identity is gone; what is left is the content, and size,
//! modification time, mode and owner, which a rename keeps (extended attributes may differ, and are told). Pairs are told only where all of these agree. Where
//! several deleted files agree, one of the same name is preferred, and then the first by path. An empty file is told
//! only where no other looks the same. Of a moved directory the files are renamed, and the directories are deleted and
//! added.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Stat, readlinkat};

use super::Options;
use super::change::{Attribute, Diff, FileType, Kind};
use super::compare::vanished;
use super::content::{Comparer, open_file};
use super::descent::{Found, LayerDir, Side};
use super::error::DiffError;
use super::locate::{Locator, file_type, mtime, size};
use super::path::PathBytes;
use super::view::View;
use super::xattr::{Reader, differing};

/// How many deleted files of the same look an added one is compared with.
const TRIES: usize = 8;

/// What must agree before content is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    file_type: FileType,
    size: u64,
    mtime: (i64, u32),
    mode: u32,
    owner: (u32, u32),
}

impl Key {
    /// None for what can't be told to be the same: devices, pipes, sockets.
    pub(crate) fn of(stat: &Stat) -> Option<Key> {
        let file_type = file_type(stat);
        matches!(file_type, FileType::File | FileType::Symlink).then(|| Key {
            file_type,
            size: size(stat),
            mtime: mtime(stat),
            mode: stat.st_mode & 0o7777,
            owner: (stat.st_uid, stat.st_gid),
        })
    }
}

/// One half of a possible rename: its change, or its path where it is not listed.
pub(crate) struct Candidate {
    pub key: Key,
    pub change: Option<usize>,
    pub path: Option<PathBytes>,
}

#[derive(Default)]
pub(crate) struct Candidates {
    pub added: Vec<Candidate>,
    pub deleted: Vec<Candidate>,
}

/// A deleted file, until it is found elsewhere.
struct Gone {
    path: PathBytes,
    change: Option<usize>,
    taken: bool,
}

/// What is needed to look at files again.
pub(crate) struct Pairing<'a> {
    pub uppers: &'a [BorrowedFd<'a>],
    pub lowers: &'a View<'a>,
    pub options: &'a Options,
    pub content: &'a mut Comparer,
    /// How many bytes of names may still be kept.
    pub room: usize,
}

impl Pairing<'_> {
    /// Finds the pairs and turns each into one `renamed` change.
    pub(crate) fn pair(&mut self, candidates: Candidates, diff: &mut Diff) -> Result<(), DiffError> {
        let options = self.options;
        if candidates.added.is_empty() || candidates.deleted.is_empty() {
            return Ok(());
        }
        let mut by_key: HashMap<Key, Vec<Gone>> = HashMap::new();
        let mut wanted: HashMap<Key, u32> = HashMap::new();
        for added in &candidates.added {
            *wanted.entry(added.key).or_default() += 1;
        }
        for deleted in candidates.deleted.into_iter().filter(|deleted| wanted.contains_key(&deleted.key)) {
            let Some(path) = deleted.path.or_else(|| deleted.change.map(|index| diff.changes[index].path.clone()))
            else {
                continue;
            };
            by_key.entry(deleted.key).or_default().push(Gone { path, change: deleted.change, taken: false });
        }
        if by_key.is_empty() {
            return Ok(());
        }
        let mut by_name: HashMap<Key, HashMap<Vec<u8>, Vec<usize>>> = HashMap::new();
        for (key, gone) in &mut by_key {
            gone.sort_by(|a, b| a.path.cmp(&b.path));
            let names = by_name.entry(*key).or_default();
            for (index, gone) in gone.iter().enumerate().rev() {
                names.entry(gone.path.file_name().to_vec()).or_default().push(index);
            }
        }
        let mut above = Locator::new(Side::layers(self.uppers), options.namespace, options.max_depth)?;
        let mut below = Locator::new(Side::view(self.lowers), options.namespace, options.max_depth)?;
        let mut xattrs = Reader::new(options.namespace);
        let mut dropped = vec![false; diff.changes.len()];
        // Files of the same name first, so that no other takes what is theirs.
        for same_name in [true, false] {
            let mut start: HashMap<Key, usize> = HashMap::new();
            for added in &candidates.added {
                let (Some(index), Some(gone)) = (added.change, by_key.get_mut(&added.key)) else { continue };
                if diff.changes[index].kind != Kind::Added
                    || (added.key.size == 0 && (gone.len() > 1 || wanted[&added.key] > 1))
                {
                    continue;
                }
                let path = diff.changes[index].path.clone();
                let tries: Vec<usize> = if same_name {
                    let names = by_name.get_mut(&added.key).and_then(|names| names.get_mut(path.file_name()));
                    names.map(|names| names.pop().into_iter().collect()).unwrap_or_default()
                } else {
                    let start = start.entry(added.key).or_default();
                    while gone.get(*start).is_some_and(|gone| gone.taken) {
                        *start += 1;
                    }
                    (*start..gone.len()).filter(|i| !gone[*i].taken).take(TRIES).collect()
                };
                for at in tries {
                    let old = &gone[at].path;
                    let same = same(&mut above, &path, &mut below, old, &added.key, self.content, &mut xattrs)?;
                    let Some(attributes) = same else { continue };
                    let names: usize = attributes.iter().map(Attribute::name_len).sum();
                    let limit = options.max_path_bytes;
                    self.room = self.room.checked_sub(names).ok_or(DiffError::TooLarge { limit })?;
                    gone[at].taken = true;
                    let change = &mut diff.changes[index];
                    change.kind = Kind::Renamed;
                    change.from = Some(gone[at].path.clone());
                    change.attributes = attributes;
                    diff.summary.merge_rename(change.taken());
                    if let Some(old) = gone[at].change {
                        dropped[old] = true;
                    }
                    break;
                }
            }
        }
        let mut index = 0;
        diff.changes.retain(|_| {
            index += 1;
            !dropped[index - 1]
        });
        Ok(())
    }
}

/// Whether the two paths are the same file; if so, which extended attributes differ: what `setcap` adds after `mv` is
/// a change too.
fn same(
    above: &mut Locator,
    new: &PathBytes,
    below: &mut Locator,
    old: &PathBytes,
    key: &Key,
    content: &mut Comparer,
    xattrs: &mut Reader,
) -> Result<Option<Vec<Attribute>>, DiffError> {
    let (Found::Node { at: a, stat: _ }, Found::Node { at: b, stat }) = (above.find(new)?, below.find(old)?) else {
        return Ok(None);
    };
    if Key::of(&stat) != Some(*key) {
        return Ok(None);
    }
    let (upper, lower) = (&above.dirs()[a], &below.dirs()[b]);
    if !same_content((above, upper), (below, lower), key, content)? {
        return Ok(None);
    }
    let new = xattrs.read(upper.fd(), above.name());
    let new = new.map_err(|source| above.failed("listxattrat", upper.layer, source))?;
    let old = match xattrs.read(lower.fd(), below.name()) {
        Err(errno) if vanished(errno) => Vec::new(),
        old => old.map_err(|source| below.failed("listxattrat", lower.layer, source))?,
    };
    Ok(Some(differing(&new, &old)))
}

fn same_content(
    (above, upper): (&Locator, &LayerDir),
    (below, lower): (&Locator, &LayerDir),
    key: &Key,
    content: &mut Comparer,
) -> Result<bool, DiffError> {
    if key.file_type == FileType::Symlink {
        let target = readlinkat(upper.fd(), above.name(), Vec::new());
        let target = target.map_err(|source| above.failed("readlinkat", upper.layer, source))?;
        return Ok(readlinkat(lower.fd(), below.name(), Vec::new()).is_ok_and(|was| was == target));
    }
    let file = open_file(upper.fd(), above.name());
    let file = file.map_err(|source| above.failed("openat", upper.layer, source))?;
    let was = match open_file(lower.fd(), below.name()) {
        Ok(was) => was,
        Err(errno) if vanished(errno) => return Ok(false),
        Err(source) => return Err(below.failed("openat", lower.layer, source)),
    };
    match content.same(file.as_fd(), was.as_fd(), key.size) {
        Ok(same) => Ok(same),
        Err(e) if e.second && vanished(e.source) => Ok(false),
        Err(e) if e.second => Err(below.failed(e.call, lower.layer, e.source)),
        Err(e) => Err(above.failed(e.call, upper.layer, e.source)),
    }
}
