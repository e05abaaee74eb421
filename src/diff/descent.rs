//! Going down several stacks of layers at once, by directory descriptors, at bounded depth and with bounded descriptors.
//!
//! A [`Descent`] holds up to three *sides*, each a stack of directories, newest first (uppers and lowers; layers and
//! the output of a merge). At each level it has the directories of every layer that takes part there: a layer drops
//! out where it has no such directory or where a newer one hides it. Every step is one `openat` that follows no link,
//! relative to the directory above, so a path may be longer than `PATH_MAX` and nothing can lead out of a layer. The
//! frames are on the heap; when many descriptors are open, those of the outermost frames are closed, and opened again
//! from the layer's root on the way back.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType as RawType, Mode, OFlags, RawDir, Stat, openat, statat};
use rustix::io::Errno;

use super::error::DiffError;
use super::path::PathBytes;
use super::view::{Graft, View};
use super::xattr::{Namespace, Opaque, opaque};
use crate::sys::fs::getxattr_at;

/// How many stacks a descent takes.
pub(crate) const SIDES: usize = 3;
/// Above so many open descriptors, the outermost frames are closed.
const OPEN_MAX: usize = 256;
/// How many frames are opened again together, so that coming back through a deep tree stays linear.
const REOPEN: usize = 32;
const DIR_BUFFER: usize = 64 * 1024;

pub(crate) const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Root {
    fd: OwnedFd,
    /// A plain tree: its marks are not looked at.
    plain: bool,
    /// It may be written to meanwhile, so what vanishes in it is taken as not there.
    live: bool,
    /// How much of a path is above it: the length of the mount's path that it is grafted at.
    above: usize,
}

/// See [`super::View`].
struct Grafted {
    at: Vec<u8>,
    /// Its layers' indices.
    layers: std::ops::Range<usize>,
}

/// One layer's directory at a level.
pub(crate) struct LayerDir {
    /// The index in its side.
    pub layer: usize,
    fd: Option<OwnedFd>,
    /// Empty files with the whiteout attribute are whiteouts here.
    attr_whiteouts: bool,
}

impl LayerDir {
    /// The descriptor; those of the innermost frame are always open.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("the innermost frame is open"),
        }
    }
}

/// What a side shows at a name.
pub(crate) enum Found {
    Absent,
    Whiteout,
    /// Not a directory, in the frame's directory of this index.
    Node {
        at: usize,
        stat: Stat,
    },
    Dir {
        /// Of the newest layer: it is what is seen.
        stat: Stat,
        dirs: Vec<LayerDir>,
        /// What older layers (of this side and of those below) have here is hidden.
        closed: bool,
    },
}

#[derive(Default)]
struct Names {
    /// Each ended by NUL.
    bytes: Vec<u8>,
    spans: Vec<(usize, usize)>,
}

pub(crate) struct Frame<T> {
    pub dirs: [Vec<LayerDir>; SIDES],
    path_len: usize,
    names: Names,
    next: usize,
    pub data: T,
}

/// A stack that a side is made of.
pub(crate) struct Side<'a> {
    pub layers: &'a [BorrowedFd<'a>],
    /// Its last layer is a plain tree.
    pub plain_last: bool,
    /// Where other layers take the plain tree's place.
    pub grafts: &'a [Graft<'a>],
}

impl<'a> Side<'a> {
    /// Layers in overlayfs's upper format.
    pub fn layers(layers: &'a [BorrowedFd<'a>]) -> Self {
        Side { layers, plain_last: false, grafts: &[] }
    }

    /// A lower view.
    pub fn view(view: &'a View<'a>) -> Self {
        Side { layers: &view.layers, plain_last: true, grafts: &view.grafts }
    }
}

pub(crate) struct Descent<T> {
    roots: [Vec<Root>; SIDES],
    grafts: [Vec<Grafted>; SIDES],
    ns: Namespace,
    max_depth: usize,
    /// The path of the current entry: empty for the root.
    pub path: Vec<u8>,
    /// The name of the current entry, ended by NUL.
    name: Vec<u8>,
    frames: Vec<Frame<T>>,
    open: usize,
    buffer: Vec<u8>,
}

impl<T> Descent<T> {
    /// At the roots, before any entry. `list[s]`: the entries are the names in side `s`.
    pub fn new(
        sides: [Side<'_>; SIDES],
        list: [bool; SIDES],
        ns: Namespace,
        max_depth: usize,
        data: T,
    ) -> Result<Self, DiffError> {
        let mut descent = Descent {
            roots: Default::default(),
            grafts: Default::default(),
            ns,
            max_depth,
            path: Vec::new(),
            name: vec![0],
            frames: Vec::new(),
            open: 0,
            buffer: Vec::with_capacity(DIR_BUFFER),
        };
        let mut dirs: [Vec<LayerDir>; SIDES] = Default::default();
        for (s, side) in sides.iter().enumerate() {
            for (layer, fd) in side.layers.iter().enumerate() {
                let plain = side.plain_last && layer + 1 == side.layers.len();
                let root = openat(fd, c".", DIR_FLAGS, Mode::empty());
                let root = root.map_err(|source| descent.failed("openat", s, layer, source))?;
                let again = openat(fd, c".", DIR_FLAGS, Mode::empty());
                let again = again.map_err(|source| descent.failed("openat", s, layer, source))?;
                let mark = if plain { Ok(Opaque::No) } else { opaque(again.as_fd(), ns) };
                let mark = mark.map_err(|source| descent.failed("fgetxattr", s, layer, source))?;
                descent.roots[s].push(Root { fd: root, plain, live: plain, above: 0 });
                dirs[s].push(LayerDir { layer, fd: Some(again), attr_whiteouts: mark == Opaque::Whiteouts });
            }
            for graft in side.grafts {
                let start = descent.roots[s].len();
                for (n, fd) in graft.base.iter().enumerate() {
                    let root = openat(fd, c".", DIR_FLAGS, Mode::empty());
                    let root = root.map_err(|source| descent.failed("openat", s, start + n, source))?;
                    let plain = n + 1 == graft.base.len();
                    descent.roots[s].push(Root { fd: root, plain, live: true, above: graft.at.as_bytes().len() });
                }
                let layers = start..descent.roots[s].len();
                descent.grafts[s].push(Grafted { at: graft.at.as_bytes().to_vec(), layers });
            }
        }
        descent.enter(dirs, list, data)?;
        Ok(descent)
    }

    pub fn depth(&self) -> usize {
        self.frames.len()
    }

    /// How many descriptors of directories are open, the roots' apart.
    #[cfg(test)]
    pub fn open(&self) -> usize {
        let open = self.frames.iter().flat_map(|frame| frame.dirs.iter().flatten()).filter(|dir| dir.fd.is_some());
        assert_eq!(open.count(), self.open);
        self.open
    }

    pub fn frame(&self) -> &Frame<T> {
        self.frames.last().unwrap_or_else(|| unreachable!("a descent has a frame until it is left"))
    }

    pub fn frame_mut(&mut self) -> &mut Frame<T> {
        self.frames.last_mut().unwrap_or_else(|| unreachable!("a descent has a frame until it is left"))
    }

    /// The length of the innermost frame's path.
    pub fn frame_path_len(&self) -> usize {
        self.frame().path_len
    }

    /// True where the innermost frame is `dir` (no trailing slash, empty for the root) or a directory above it.
    pub fn is_at_or_above(&self, dir: &[u8]) -> bool {
        let own = &self.path[..self.frame().path_len];
        dir.starts_with(own) && (dir.len() == own.len() || dir[own.len()] == b'/')
    }

    /// Makes `name` the current entry of the innermost frame; an empty one is the directory itself.
    pub fn select(&mut self, name: &[u8]) {
        self.path.truncate(self.frame().path_len);
        self.name.clear();
        if name.is_empty() {
            self.name.push(b'.');
        } else {
            self.path.push(b'/');
            self.path.extend_from_slice(name);
            self.name.extend_from_slice(name);
        }
        self.name.push(0);
    }

    /// The current entry's name.
    pub fn name(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.name).unwrap_or(c"")
    }

    /// The current entry's path, `/` for the root.
    pub fn path(&self) -> PathBytes {
        if self.path.is_empty() { PathBytes::from("/") } else { PathBytes::new(self.path.as_slice()) }
    }

    /// An error on the current entry.
    pub fn failed(&self, call: &'static str, side: usize, layer: usize, source: Errno) -> DiffError {
        let layer = self.roots[..side].iter().map(Vec::len).sum::<usize>() + layer;
        DiffError::Call { call, path: self.path(), layer, source }
    }

    /// Goes to the next entry of the innermost frame; false where there is none (then [`Self::leave`]).
    pub fn advance(&mut self) -> bool {
        let Some(frame) = self.frames.last_mut() else { return false };
        self.path.truncate(frame.path_len);
        let Some((start, end)) = frame.names.spans.get(frame.next).copied() else { return false };
        frame.next += 1;
        self.name.clear();
        self.name.extend_from_slice(&frame.names.bytes[start..=end]);
        self.path.push(b'/');
        self.path.extend_from_slice(&frame.names.bytes[start..end]);
        true
    }

    /// Goes into the current entry, a directory of which these are the layers.
    pub fn enter(&mut self, dirs: [Vec<LayerDir>; SIDES], list: [bool; SIDES], data: T) -> Result<(), DiffError> {
        if self.frames.len() > self.max_depth {
            let path = PathBytes::new(&self.path[..self.path.len().min(100)]);
            return Err(DiffError::TooDeep { path, limit: self.max_depth });
        }
        let mut names = Names::default();
        let mut listed = 0;
        for (s, dirs) in dirs.iter().enumerate().filter(|(s, _)| list[*s]) {
            for dir in dirs {
                let read = read_names(dir.fd(), &mut self.buffer, &mut names);
                match read {
                    Err(Errno::NOENT) if self.roots[s][dir.layer].live => {}
                    read => read.map_err(|source| self.failed("getdents64", s, dir.layer, source))?,
                }
                listed += 1;
            }
        }
        let Names { bytes, spans } = &mut names;
        spans.sort_unstable_by(|a, b| bytes[a.0..a.1].cmp(&bytes[b.0..b.1]));
        if listed > 1 {
            spans.dedup_by(|a, b| bytes[a.0..a.1] == bytes[b.0..b.1]);
        }
        self.open += dirs.iter().map(Vec::len).sum::<usize>();
        self.frames.push(Frame { dirs, path_len: self.path.len(), names, next: 0, data });
        self.park();
        Ok(())
    }

    /// Leaves the innermost frame. The current entry is then that directory.
    pub fn leave(&mut self) -> Result<Option<Frame<T>>, DiffError> {
        let Some(frame) = self.frames.pop() else { return Ok(None) };
        self.path.truncate(frame.path_len);
        self.open -= frame.dirs.iter().flatten().filter(|dir| dir.fd.is_some()).count();
        if let Some(top) = self.frames.last() {
            let start = top.path_len;
            self.name.clear();
            self.name.extend_from_slice(self.path.get(start + 1..).unwrap_or_default());
            self.name.push(0);
            if top.dirs.iter().flatten().any(|dir| dir.fd.is_none()) {
                self.reopen()?;
            }
        }
        Ok(Some(frame))
    }

    /// Whether another tree is grafted at the current entry.
    pub fn is_graft(&self, side: usize) -> bool {
        self.graft(side).is_some()
    }

    /// Whether one is grafted at the current entry or below it.
    pub fn leads_to_graft(&self, side: usize) -> bool {
        let below = |at: &[u8]| at == self.path || super::path::is_below(at, &self.path);
        self.grafts[side].iter().any(|graft| below(&graft.at))
    }

    fn graft(&self, side: usize) -> Option<&Grafted> {
        self.grafts[side].iter().find(|graft| graft.at == self.path)
    }

    /// What a side shows at the current entry.
    pub fn resolve(&self, side: usize) -> Result<Found, DiffError> {
        match self.graft(side) {
            Some(graft) => self.resolve_graft(side, graft),
            None => self.resolve_in(side, &self.frame().dirs[side]),
        }
    }

    /// A mount point is a directory and stays one: whatever else a layer has at its path is not looked at.
    fn resolve_graft(&self, side: usize, graft: &Grafted) -> Result<Found, DiffError> {
        let mut dirs = Vec::new();
        let own = |layer: usize| !self.roots[side][layer].plain && self.roots[side][layer].above == 0;
        for dir in self.frame().dirs[side].iter().filter(|dir| own(dir.layer)) {
            match openat(dir.fd(), self.name(), DIR_FLAGS, Mode::empty()) {
                Ok(fd) => dirs.push((dir.layer, fd)),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(source) => return Err(self.failed("openat", side, dir.layer, source)),
            }
        }
        for layer in graft.layers.clone() {
            let fd = openat(&self.roots[side][layer].fd, c".", DIR_FLAGS, Mode::empty());
            dirs.push((layer, fd.map_err(|source| self.failed("openat", side, layer, source))?));
        }
        let Some((layer, fd)) = dirs.first() else { return Ok(Found::Absent) };
        let stat = rustix::fs::fstat(fd).map_err(|source| self.failed("fstat", side, *layer, source))?;
        let mut found = Vec::new();
        for (layer, fd) in dirs {
            let mark = if self.roots[side][layer].plain { Ok(Opaque::No) } else { opaque(fd.as_fd(), self.ns) };
            let mark = mark.map_err(|source| self.failed("fgetxattr", side, layer, source))?;
            found.push(LayerDir { layer, fd: Some(fd), attr_whiteouts: mark == Opaque::Whiteouts });
        }
        Ok(Found::Dir { stat, dirs: found, closed: false })
    }

    fn resolve_in(&self, side: usize, dirs: &[LayerDir]) -> Result<Found, DiffError> {
        let name = self.name();
        let mut first: Option<Stat> = None;
        let mut found = Vec::new();
        let mut closed = false;
        for (at, dir) in dirs.iter().enumerate() {
            let (plain, live) = (self.roots[side][dir.layer].plain, self.roots[side][dir.layer].live);
            let stat = match statat(dir.fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(Errno::STALE) if live => continue,
                Err(source) => return Err(self.failed("newfstatat", side, dir.layer, source)),
            };
            if self.is_whiteout(side, dir, name, &stat)? {
                if first.is_none() {
                    return Ok(Found::Whiteout);
                }
                closed = true;
                break;
            }
            if RawType::from_raw_mode(stat.st_mode) != RawType::Directory {
                if first.is_none() {
                    return Ok(Found::Node { at, stat });
                }
                closed = true;
                break;
            }
            let fd = match openat(dir.fd(), name, DIR_FLAGS, Mode::empty()) {
                Ok(fd) => fd,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) if live => continue,
                Err(source) => return Err(self.failed("openat", side, dir.layer, source)),
            };
            let mark = if plain { Ok(Opaque::No) } else { opaque(fd.as_fd(), self.ns) };
            let mark = mark.map_err(|source| self.failed("fgetxattr", side, dir.layer, source))?;
            first.get_or_insert(stat);
            found.push(LayerDir { layer: dir.layer, fd: Some(fd), attr_whiteouts: mark == Opaque::Whiteouts });
            if mark == Opaque::Yes {
                closed = true;
                break;
            }
        }
        Ok(match first {
            Some(stat) => Found::Dir { stat, dirs: found, closed },
            None => Found::Absent,
        })
    }

    /// A plain tree's device 0:0 counts too: an overlay over it does not show it.
    fn is_whiteout(&self, side: usize, dir: &LayerDir, name: &CStr, stat: &Stat) -> Result<bool, DiffError> {
        match RawType::from_raw_mode(stat.st_mode) {
            RawType::CharacterDevice => Ok(stat.st_rdev == 0),
            RawType::RegularFile if dir.attr_whiteouts && stat.st_size == 0 => {
                match getxattr_at(dir.fd(), name, self.ns.whiteout(), &mut [0; 8]) {
                    Ok(_) | Err(Errno::RANGE) => Ok(true),
                    Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
                    Err(source) => Err(self.failed("getxattrat", side, dir.layer, source)),
                }
            }
            _ => Ok(false),
        }
    }

    /// Closes the outermost frames but the innermost two where too many descriptors are open.
    fn park(&mut self) {
        let keep = self.frames.len().saturating_sub(2);
        for frame in &mut self.frames[..keep] {
            if self.open <= OPEN_MAX {
                return;
            }
            for dir in frame.dirs.iter_mut().flatten() {
                self.open -= usize::from(dir.fd.take().is_some());
            }
        }
    }

    /// Opens the innermost frame's directories again, and those of some frames around it.
    fn reopen(&mut self) -> Result<(), DiffError> {
        let top = self.frames.len() - 1;
        let ends: Vec<usize> = self.frames.iter().map(|frame| frame.path_len).collect();
        for side in 0..SIDES {
            let layers: Vec<usize> = self.frames[top].dirs[side].iter().map(|dir| dir.layer).collect();
            for layer in layers {
                let mut at: Option<OwnedFd> = None;
                // The level of the layer's own root.
                let first = ends.iter().position(|end| *end == self.roots[side][layer].above).unwrap_or(0);
                for level in first..=top {
                    let from = at.as_ref().map_or(self.roots[side][layer].fd.as_fd(), |fd| fd.as_fd());
                    let part = if level == first { &b"."[..] } else { &self.path[ends[level - 1] + 1..ends[level]] };
                    let next = match openat(from, part, DIR_FLAGS, Mode::empty()) {
                        Ok(next) => next,
                        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE)
                            if self.roots[side][layer].live =>
                        {
                            self.frames[top].dirs[side].retain(|dir| dir.layer != layer);
                            at = None;
                            break;
                        }
                        Err(source) => return Err(self.failed("openat", side, layer, source)),
                    };
                    if let Some(done) = at.replace(next)
                        && level + REOPEN > top
                        && level > first
                    {
                        self.put(level - 1, side, layer, done);
                    }
                }
                if let Some(fd) = at {
                    self.put(top, side, layer, fd);
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, level: usize, side: usize, layer: usize, fd: OwnedFd) {
        let dir = self.frames[level].dirs[side].iter_mut().find(|dir| dir.layer == layer);
        if let Some(dir) = dir
            && dir.fd.is_none()
        {
            dir.fd = Some(fd);
            self.open += 1;
        }
    }
}

fn read_names(dir: BorrowedFd<'_>, buffer: &mut Vec<u8>, names: &mut Names) -> Result<(), Errno> {
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let start = names.bytes.len();
        names.bytes.extend_from_slice(name.to_bytes_with_nul());
        names.spans.push((start, names.bytes.len() - 1));
    }
    Ok(())
}
