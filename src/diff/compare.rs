//! The comparison: walks the uppers, looks each entry up in the lower view, and says what differs.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Stat, readlinkat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::Options;
use super::change::{Attribute, Change, Diff, FileMode, FileType, Kind, Summary};
use super::content::{Comparer, open_file};
use super::descent::{Descent, Found, LayerDir, Side};
use super::error::DiffError;
use super::locate::{file_type, mtime, rdev, size};
use super::path::PathBytes;
use super::rename::{Candidate, Candidates, Key};
use super::size::taken;
use super::view::View;
use super::xattr::{Reader, Xattrs};

pub(crate) const UPPER: usize = 0;
pub(crate) const LOWER: usize = 1;

/// What may be taken out of an upper without changing what is seen through it. Paths are those of the upper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prune {
    /// An entry that is not a directory: an unchanged copy, or a whiteout over nothing.
    Entry(PathBytes),
    /// A directory, if nothing is left in it.
    Directory(PathBytes),
    /// The opaque mark of a directory over nothing.
    Opaque(PathBytes),
}

/// What a frame of the walk is, and so what is to be done when it is left.
enum Role {
    /// In both views.
    Merged {
        /// Its own attributes are the lower's.
        equal: bool,
        /// It was made anew over the lower one, and no directory around it was. The plan's length before it.
        hiding: Option<usize>,
    },
    /// In the uppers only. `pending`: told only if something in it changed, else it is a mount point.
    Added { pending: Option<Box<Change>> },
    /// In the lower view only, the change that tells it being this one, if it is listed. The count of gone paths before.
    Gone { change: Option<usize>, before: u64 },
}

struct Level {
    role: Role,
    /// What the lower layers have here is not seen through the uppers.
    hidden: bool,
    /// The changes counted before it.
    before: u64,
    /// Of these, the ones at and below grafts.
    grafted: u64,
}

/// Names of one inode of an upper: (layer, device, inode) to paths, with the index of their change.
type Links = HashMap<(usize, u64, u64), Vec<(PathBytes, Option<usize>)>>;

pub(crate) struct Comparison<'o> {
    options: &'o Options,
    descent: Descent<Level>,
    xattrs: Reader,
    content: Comparer,
    diff: Diff,
    links: Links,
    candidates: Candidates,
    /// Paths met that are gone, listed or not.
    gone: u64,
    /// The changes counted at and below grafts.
    grafted: u64,
    path_bytes: usize,
    plan: Vec<Prune>,
}

/// An entry of one layer, not a directory or a directory seen from above.
#[derive(Clone, Copy)]
struct Seen<'s> {
    side: usize,
    at: usize,
    stat: &'s Stat,
}

/// Whether two contents differ.
struct Compared {
    differs: bool,
    /// The upper and the lower file, where they had to be opened.
    open: Option<(OwnedFd, OwnedFd)>,
}

/// Compares `uppers` with what `lowers` show, both newest first; the last of `lowers` is a plain tree, all others are
/// in overlayfs's upper format. See the module's documentation for what each kind means.
///
/// # Errors
/// [`DiffError::NoLayers`] for an empty list, [`DiffError::TooDeep`] and [`DiffError::TooLarge`] at the bounds of
/// `options`, [`DiffError::Call`] where the kernel refuses. What vanishes in the plain tree meanwhile is no error.
pub fn compare<'a>(
    uppers: &[BorrowedFd<'_>],
    lowers: impl Into<View<'a>>,
    options: &Options,
) -> Result<Diff, DiffError> {
    Ok(run(uppers, &lowers.into(), options)?.0)
}

/// [`compare`], and what can be pruned of a single upper.
pub(crate) fn run(
    uppers: &[BorrowedFd<'_>],
    lowers: &View<'_>,
    options: &Options,
) -> Result<(Diff, Vec<Prune>), DiffError> {
    if uppers.is_empty() || lowers.layers.is_empty() {
        return Err(DiffError::NoLayers { operation: "compare" });
    }
    let sides = [Side::layers(uppers), Side::view(lowers), Side::layers(&[])];
    let root = Level { role: Role::Merged { equal: false, hiding: None }, hidden: false, before: 0, grafted: 0 };
    let descent = Descent::new(sides, [true, false, false], options.namespace, options.max_depth, root)?;
    let mut comparison = Comparison {
        options,
        descent,
        xattrs: Reader::new(options.namespace),
        content: Comparer::new(),
        diff: Diff::default(),
        links: Links::new(),
        candidates: Candidates::default(),
        gone: 0,
        grafted: 0,
        path_bytes: 0,
        plan: Vec::new(),
    };
    comparison.own_attributes()?;
    comparison.walk()?;
    comparison.finish(uppers, lowers)
}

impl Comparison<'_> {
    /// The innermost frame's own directory, which both sides have.
    fn own_attributes(&mut self) -> Result<(), DiffError> {
        self.descent.select(b"");
        let stat = |side: usize| {
            let fd = self.descent.frame().dirs[side][0].fd();
            rustix::fs::fstat(fd).map_err(|source| self.descent.failed("fstat", side, 0, source))
        };
        let (upper, lower) = (stat(UPPER)?, stat(LOWER)?);
        let upper = Seen { side: UPPER, at: 0, stat: &upper };
        let own = self.metadata(upper, Seen { side: LOWER, at: 0, stat: &lower })?;
        if let Role::Merged { equal, .. } = &mut self.descent.frame_mut().data.role {
            *equal = own;
        }
        Ok(())
    }

    fn walk(&mut self) -> Result<(), DiffError> {
        loop {
            while self.descent.advance() {
                self.visit()?;
            }
            let Some(frame) = self.descent.leave()? else { return Ok(()) };
            self.left(frame.data)?;
        }
    }

    fn visit(&mut self) -> Result<(), DiffError> {
        let dirs = &self.descent.frame().dirs;
        let none = |side: usize| dirs[side].is_empty();
        let upper = if none(UPPER) { Found::Absent } else { self.descent.resolve(UPPER)? };
        if self.descent.is_graft(LOWER) {
            return self.graft(upper);
        }
        let lower = if none(LOWER) { Found::Absent } else { self.descent.resolve(LOWER)? };
        match (upper, lower) {
            (Found::Absent, Found::Absent | Found::Whiteout) => Ok(()),
            (Found::Whiteout, Found::Absent | Found::Whiteout) => {
                self.plan.push(Prune::Entry(self.descent.path()));
                Ok(())
            }
            (Found::Absent | Found::Whiteout, Found::Node { at, stat }) => {
                let lower = Seen { side: LOWER, at, stat: &stat };
                self.deleted(lower, Vec::new())
            }
            (Found::Absent | Found::Whiteout, Found::Dir { stat, dirs, .. }) => {
                let at = self.index(LOWER, &dirs);
                self.deleted(Seen { side: LOWER, at, stat: &stat }, dirs)
            }
            (Found::Node { at, stat }, Found::Absent | Found::Whiteout) => {
                self.added_node(Seen { side: UPPER, at, stat: &stat })
            }
            (Found::Node { at, stat }, Found::Node { at: lower_at, stat: lower }) => {
                let upper = Seen { side: UPPER, at, stat: &stat };
                self.nodes(upper, Seen { side: LOWER, at: lower_at, stat: &lower })
            }
            (Found::Node { at, stat }, Found::Dir { stat: lower, dirs, .. }) => {
                let seen = Seen { side: UPPER, at, stat: &stat };
                let mut change = self.change(Kind::Replaced, seen)?;
                change.from_type = Some(file_type(&lower));
                let index = self.emit(change)?;
                self.link(seen, Some(index));
                self.enter_gone(dirs, Some(index))
            }
            (Found::Dir { stat, dirs, .. }, Found::Absent | Found::Whiteout) => self.added_dir(&stat, dirs, None),
            (Found::Dir { stat, dirs, .. }, Found::Node { stat: lower, .. }) => {
                self.added_dir(&stat, dirs, Some(file_type(&lower)))
            }
            (Found::Dir { stat, dirs, closed }, Found::Dir { stat: lower_stat, dirs: lower_dirs, .. }) => {
                let before = self.diff.summary.changes();
                let upper = Seen { side: UPPER, at: self.index(UPPER, &dirs), stat: &stat };
                let lower = Seen { side: LOWER, at: self.index(LOWER, &lower_dirs), stat: &lower_stat };
                let hidden_above = self.descent.frame().data.hidden;
                let hiding = (closed && !hidden_above).then_some(self.plan.len());
                let equal = self.metadata(upper, lower)?;
                let hidden = hidden_above || closed;
                let level = Level { role: Role::Merged { equal, hiding }, hidden, before, grafted: self.grafted };
                self.descent.enter([dirs, lower_dirs, Vec::new()], [true, hidden, false], level)
            }
        }
    }

    /// A mount point, below which the lower view is another. The mount kept it from being removed or replaced.
    fn graft(&mut self, upper: Found) -> Result<(), DiffError> {
        let (Found::Dir { dirs, .. }, Found::Dir { dirs: lower, .. }) = (upper, self.descent.resolve(LOWER)?) else {
            return Ok(());
        };
        let before = self.diff.summary.changes();
        let role = Role::Merged { equal: false, hiding: None };
        let level = Level { role, hidden: false, before, grafted: self.grafted };
        self.descent.enter([dirs, lower, Vec::new()], [true, false, false], level)?;
        self.own_attributes()
    }

    /// The index, in the current frame, of the layer whose directory is seen.
    fn index(&self, side: usize, dirs: &[LayerDir]) -> usize {
        let layer = dirs.first().map_or(0, |dir| dir.layer);
        self.descent.frame().dirs[side].iter().position(|dir| dir.layer == layer).unwrap_or(0)
    }

    fn added_node(&mut self, seen: Seen<'_>) -> Result<(), DiffError> {
        if self.is_empty_mount_point(seen.stat) {
            self.plan.push(Prune::Entry(self.descent.path()));
            return Ok(());
        }
        let change = self.change(Kind::Added, seen)?;
        let index = self.emit(change)?;
        self.link(seen, Some(index));
        if self.options.renames
            && let Some(key) = Key::of(seen.stat)
        {
            self.candidates.added.push(Candidate { key, change: Some(index), path: None });
        }
        Ok(())
    }

    fn is_empty_mount_point(&self, stat: &Stat) -> bool {
        file_type(stat) == FileType::File
            && stat.st_size == 0
            && !self.options.ignore.is_empty()
            && self.options.ignore.contains(self.descent.path.as_slice())
    }

    /// A directory that the lower view has not; `from_type` is what it has instead.
    fn added_dir(&mut self, stat: &Stat, dirs: Vec<LayerDir>, from_type: Option<FileType>) -> Result<(), DiffError> {
        let before = self.diff.summary.changes();
        let seen = Seen { side: UPPER, at: self.index(UPPER, &dirs), stat };
        let mut change = self.change(if from_type.is_some() { Kind::Replaced } else { Kind::Added }, seen)?;
        change.from_type = from_type;
        let mut pending = None;
        if from_type.is_none() {
            change.attributes_digest = Some(digest(stat, &self.read_xattrs(seen)?));
            if self.options.leads_to_ignored(&self.descent.path) || self.descent.leads_to_graft(LOWER) {
                pending = Some(Box::new(change));
            } else {
                self.emit(change)?;
            }
            // Over nothing a mark hides nothing now, and would hide what others add to the same new directory.
            self.plan.push(Prune::Opaque(self.descent.path()));
        } else {
            self.emit(change)?;
        }
        let level = Level { role: Role::Added { pending }, hidden: true, before, grafted: self.grafted };
        self.descent.enter([dirs, Vec::new(), Vec::new()], [true, false, false], level)
    }

    fn deleted(&mut self, seen: Seen<'_>, dirs: Vec<LayerDir>) -> Result<(), DiffError> {
        self.gone += 1;
        let inside = matches!(self.descent.frame().data.role, Role::Gone { .. });
        let index = if inside && !self.options.recursive {
            self.diff.summary.count(Kind::Deleted);
            None
        } else {
            let change = self.change(Kind::Deleted, seen)?;
            Some(self.emit(change)?)
        };
        if file_type(seen.stat) == FileType::Directory {
            return self.enter_gone(dirs, index);
        }
        if self.options.renames
            && let Some(key) = Key::of(seen.stat)
        {
            let path = if index.is_none() { Some(self.keep_path()?) } else { None };
            self.candidates.deleted.push(Candidate { key, change: index, path });
        }
        Ok(())
    }

    fn enter_gone(&mut self, dirs: Vec<LayerDir>, change: Option<usize>) -> Result<(), DiffError> {
        let role = Role::Gone { change, before: self.gone };
        let level = Level { role, hidden: true, before: self.diff.summary.changes(), grafted: self.grafted };
        self.descent.enter([Vec::new(), dirs, Vec::new()], [false, true, false], level)
    }

    /// Neither is a directory.
    fn nodes(&mut self, upper: Seen<'_>, lower: Seen<'_>) -> Result<(), DiffError> {
        let (kind, from) = (file_type(upper.stat), file_type(lower.stat));
        if kind != from {
            let mut change = self.change(Kind::Replaced, upper)?;
            change.from_type = Some(from);
            let index = self.emit(change)?;
            self.link(upper, Some(index));
            return Ok(());
        }
        let Compared { differs: content, open } = self.compare_content(kind, upper, lower)?;
        let mut attributes = self.attributes(upper, lower, open.as_ref())?;
        if content {
            attributes.retain(|attribute| *attribute != Attribute::Mtime);
        }
        let mount_point = size(lower.stat) == 0 && self.is_empty_mount_point(upper.stat);
        if mount_point || (!content && attributes.is_empty()) {
            let path = self.keep_path()?;
            self.plan.push(Prune::Entry(path.clone()));
            self.diff.unchanged.push(path);
            self.diff.summary.unchanged += 1;
            self.link(upper, None);
            return Ok(());
        }
        let mut change = self.change(if content { Kind::Modified } else { Kind::Metadata }, upper)?;
        change.attributes = attributes;
        let index = self.emit(change)?;
        self.link(upper, Some(index));
        Ok(())
    }

    fn compare_content(&mut self, kind: FileType, upper: Seen<'_>, lower: Seen<'_>) -> Result<Compared, DiffError> {
        let unopened = |differs| Ok(Compared { differs, open: None });
        match kind {
            FileType::File => {
                if upper.stat.st_size != lower.stat.st_size {
                    return unopened(true);
                }
                if upper.stat.st_size == 0 || same_inode(upper.stat, lower.stat) {
                    return unopened(false);
                }
                let open = |seen: Seen<'_>| open_file(self.dir(seen).fd(), self.descent.name());
                let above = open(upper).map_err(|source| self.failed("openat", upper, source))?;
                let below = match open(lower) {
                    Ok(below) => below,
                    Err(errno) if vanished(errno) => return unopened(true),
                    Err(source) => return Err(self.failed("openat", lower, source)),
                };
                match self.content.same(above.as_fd(), below.as_fd(), size(upper.stat)) {
                    Ok(same) => Ok(Compared { differs: !same, open: Some((above, below)) }),
                    Err(e) if e.second && vanished(e.source) => unopened(true),
                    Err(e) => Err(self.failed(e.call, if e.second { lower } else { upper }, e.source)),
                }
            }
            FileType::Symlink => unopened(Some(self.read_link(upper)?) != self.read_lower_link(lower)?),
            FileType::Char | FileType::Block => unopened(upper.stat.st_rdev != lower.stat.st_rdev),
            FileType::Directory | FileType::Fifo | FileType::Socket => unopened(false),
        }
    }

    fn read_link(&self, seen: Seen<'_>) -> Result<Vec<u8>, DiffError> {
        let target = readlinkat(self.dir(seen).fd(), self.descent.name(), Vec::new());
        Ok(target.map_err(|source| self.failed("readlinkat", seen, source))?.into_bytes())
    }

    fn read_lower_link(&self, seen: Seen<'_>) -> Result<Option<Vec<u8>>, DiffError> {
        match readlinkat(self.dir(seen).fd(), self.descent.name(), Vec::new()) {
            Ok(target) => Ok(Some(target.into_bytes())),
            Err(errno) if vanished(errno) => Ok(None),
            Err(source) => Err(self.failed("readlinkat", seen, source)),
        }
    }

    /// Tells a directory in both views if its own attributes differ; true where they do not.
    fn metadata(&mut self, upper: Seen<'_>, lower: Seen<'_>) -> Result<bool, DiffError> {
        let attributes = self.attributes(upper, lower, None)?;
        if attributes.is_empty() {
            return Ok(true);
        }
        let mut change = self.change(Kind::Metadata, upper)?;
        change.attributes = attributes;
        self.emit(change)?;
        Ok(false)
    }

    /// What differs, sorted. `open`: the two files, where they are open.
    fn attributes(
        &mut self,
        upper: Seen<'_>,
        lower: Seen<'_>,
        open: Option<&(OwnedFd, OwnedFd)>,
    ) -> Result<Vec<Attribute>, DiffError> {
        let mut attributes = Vec::new();
        let (a, b) = (upper.stat, lower.stat);
        if same_inode(a, b) {
            return Ok(attributes);
        }
        if a.st_mode & 0o7777 != b.st_mode & 0o7777 {
            attributes.push(Attribute::Mode);
        }
        if (a.st_uid, a.st_gid) != (b.st_uid, b.st_gid) {
            attributes.push(Attribute::Owner);
        }
        if file_type(a) != FileType::Directory && mtime(a) != mtime(b) {
            attributes.push(Attribute::Mtime);
        }
        let (above, below) = match open {
            Some((above, below)) => {
                let above = self.xattrs.read_open(above.as_fd());
                let above = above.map_err(|source| self.failed("flistxattr", upper, source))?;
                (above, self.xattrs.read_open(below.as_fd()))
            }
            None => {
                let above = self.read_xattrs(upper)?;
                let dir = self.descent.frame().dirs[LOWER][lower.at].fd();
                (above, self.xattrs.read(dir, self.descent.name()))
            }
        };
        let below = match below {
            Ok(below) => below,
            Err(errno) if vanished(errno) => Vec::new(),
            Err(source) => return Err(self.failed("listxattrat", lower, source)),
        };
        // Those come first in order.
        attributes.extend(super::xattr::differing(&above, &below));
        self.spend(attributes.iter().map(Attribute::name_len).sum())?;
        Ok(attributes)
    }

    fn read_xattrs(&mut self, seen: Seen<'_>) -> Result<Xattrs, DiffError> {
        let read = self.xattrs.read(self.descent.frame().dirs[seen.side][seen.at].fd(), self.descent.name());
        read.map_err(|source| self.failed("listxattrat", seen, source))
    }

    fn dir(&self, seen: Seen<'_>) -> &LayerDir {
        &self.descent.frame().dirs[seen.side][seen.at]
    }

    fn failed(&self, call: &'static str, seen: Seen<'_>, source: Errno) -> DiffError {
        self.descent.failed(call, seen.side, self.dir(seen).layer, source)
    }

    fn keep_path(&mut self) -> Result<PathBytes, DiffError> {
        self.spend(self.descent.path.len())?;
        Ok(self.descent.path())
    }

    /// Counts what is kept of names that a container chose.
    fn spend(&mut self, bytes: usize) -> Result<(), DiffError> {
        self.path_bytes = self.path_bytes.saturating_add(bytes);
        if self.path_bytes > self.options.max_path_bytes {
            return Err(DiffError::TooLarge { limit: self.options.max_path_bytes });
        }
        Ok(())
    }

    /// The current entry as a change.
    fn change(&mut self, kind: Kind, seen: Seen<'_>) -> Result<Change, DiffError> {
        let file_type = file_type(seen.stat);
        let target = match (file_type, seen.side) {
            (FileType::Symlink, LOWER) => self.read_lower_link(seen)?.map(PathBytes::new),
            (FileType::Symlink, _) => Some(PathBytes::new(self.read_link(seen)?)),
            _ => None,
        };
        self.spend(target.as_ref().map_or(0, |target| target.as_bytes().len()))?;
        Ok(Change {
            kind,
            path: self.keep_path()?,
            file_type,
            size: (file_type == FileType::File).then(|| size(seen.stat)),
            mode: FileMode(seen.stat.st_mode & 0o7777),
            uid: seen.stat.st_uid,
            gid: seen.stat.st_gid,
            from: None,
            from_type: None,
            attributes: Vec::new(),
            target,
            link_to: None,
            entries: None,
            rdev: rdev(seen.stat).map(|(major, minor)| format!("{major}:{minor}")),
            attributes_digest: None,
            taken: (file_type == FileType::File).then(|| taken(seen.stat)).filter(|taken| *taken < size(seen.stat)),
        })
    }

    fn emit(&mut self, change: Change) -> Result<usize, DiffError> {
        self.diff.summary.tell(&change);
        self.diff.changes.push(change);
        Ok(self.diff.changes.len() - 1)
    }

    /// Remembers a name of an upper's inode that has several.
    fn link(&mut self, seen: Seen<'_>, change: Option<usize>) {
        if seen.stat.st_nlink > 1 {
            let key = (self.dir(seen).layer, seen.stat.st_dev, seen.stat.st_ino);
            let path = self.descent.path();
            self.links.entry(key).or_default().push((path, change));
        }
    }

    fn left(&mut self, level: Level) -> Result<(), DiffError> {
        let changes = self.diff.summary.changes() - level.before;
        if self.descent.is_graft(LOWER) {
            self.grafted = level.grafted + changes;
        }
        // What is told of a mount is not told of the directories that lead to it.
        let quiet = changes == self.grafted - level.grafted;
        match level.role {
            Role::Gone { change, before } => {
                let entries = self.gone - before;
                if let Some(change) = change {
                    self.diff.changes[change].entries = Some(entries);
                }
            }
            Role::Added { pending: None } => {}
            Role::Added { pending: Some(change) } => {
                if quiet {
                    self.plan.push(Prune::Directory(self.descent.path()));
                } else {
                    self.emit(*change)?;
                }
            }
            Role::Merged { equal, hiding: None } => {
                // The root itself is never taken away.
                if equal && !self.descent.path.is_empty() {
                    self.plan.push(Prune::Directory(self.descent.path()));
                }
            }
            Role::Merged { hiding: Some(plan), .. } => {
                if quiet {
                    self.plan.push(Prune::Directory(self.descent.path()));
                } else {
                    // Copies in it that equal the lower's are all that is seen of those: they stay.
                    self.plan.truncate(plan);
                    let path = self.keep_path()?;
                    self.diff.hides.push(path);
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, uppers: &[BorrowedFd<'_>], lowers: &View<'_>) -> Result<(Diff, Vec<Prune>), DiffError> {
        let linked = tell_links(std::mem::take(&mut self.links), &mut self.diff.changes);
        if !linked.is_empty() {
            self.plan.retain(|step| !matches!(step, Prune::Entry(path) if linked.contains(path)));
        }
        let candidates = std::mem::take(&mut self.candidates);
        let room = self.options.max_path_bytes.saturating_sub(self.path_bytes);
        super::rename::Pairing { uppers, lowers, options: self.options, content: &mut self.content, room }
            .pair(candidates, &mut self.diff)?;
        self.diff.changes.sort_by(|a, b| a.path.cmp(&b.path));
        self.diff.unchanged.sort();
        self.diff.hides.sort();
        Ok((self.diff, self.plan))
    }
}

fn same_inode(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// A name of the live lower tree has gone, or is something else now.
pub(crate) fn vanished(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::STALE
            | Errno::LOOP
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::INVAL
            | Errno::NXIO
            | Errno::SPIPE
    )
}

fn digest(stat: &Stat, xattrs: &Xattrs) -> [u8; 16] {
    let mut hash = Sha256::new();
    for number in [stat.st_mode & 0o7777, stat.st_uid, stat.st_gid] {
        hash.update(number.to_le_bytes());
    }
    for (name, value) in xattrs {
        for part in [name, value] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    let mut short = [0; 16];
    short.copy_from_slice(&hash.finalize()[..16]);
    short
}

/// Tells hard links. The unchanged copies that changes are links of: these stay, or the links would be none.
fn tell_links(links: Links, changes: &mut [Change]) -> HashSet<PathBytes> {
    let mut kept = HashSet::new();
    for mut names in links.into_values().filter(|names| names.len() > 1) {
        let is_new = |change: &Option<usize>, changes: &[Change]| {
            change.is_some_and(|index| matches!(changes[index].kind, Kind::Added | Kind::Replaced))
        };
        names.sort_by_cached_key(|(path, change)| (is_new(change, changes), path.clone()));
        let Some((first, rest)) = names.split_first() else { continue };
        for index in rest.iter().filter_map(|(_, change)| *change) {
            changes[index].link_to = Some(first.0.clone());
        }
        if names.iter().any(|(_, change)| change.is_some()) {
            kept.extend(names.into_iter().filter(|(_, change)| change.is_none()).map(|(path, _)| path));
        }
    }
    kept
}

impl Summary {
    /// An added and a deleted path turned out to be one.
    pub(crate) fn merge_rename(&mut self, bytes: u64) {
        self.added -= 1;
        self.deleted -= 1;
        self.renamed += 1;
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
