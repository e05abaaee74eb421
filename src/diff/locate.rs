//! Finding single paths in a stack of layers, from where the last one was found.

use rustix::fs::{FileType as RawType, Stat, readlinkat};
use rustix::io::Errno;

use super::change::{FileMode, FileType};
use super::descent::{Descent, Found, LayerDir, SIDES, Side};
use super::error::DiffError;
use super::path::PathBytes;
use super::view::View;
use super::xattr::Namespace;

/// What a stack shows at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The type.
    pub file_type: FileType,
    /// Bytes; of a symbolic link, of its target.
    pub size: u64,
    /// Permission bits.
    pub mode: FileMode,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time: seconds since the epoch, nanoseconds.
    pub mtime: (i64, u32),
    /// Of a symbolic link.
    pub target: Option<PathBytes>,
    /// Of a device: major, minor.
    pub rdev: Option<(u32, u32)>,
    /// The index in the stack of the layer that it is seen of.
    pub layer: usize,
}

/// Looks one path up in a stack, newest layer first, the last a plain tree. Nothing is followed: a path through a
/// symbolic link, or with `.` or `..` in it, is not found.
///
/// # Errors
/// [`DiffError::NoLayers`] for an empty stack, [`DiffError::Call`] where the kernel refuses.
pub fn lookup<'a>(stack: impl Into<View<'a>>, path: &PathBytes, ns: Namespace) -> Result<Option<Entry>, DiffError> {
    let stack = stack.into();
    if stack.layers.is_empty() {
        return Err(DiffError::NoLayers { operation: "lookup" });
    }
    let mut locator = Locator::new(Side::view(&stack), ns, usize::MAX)?;
    let (stat, layer) = match locator.find(path)? {
        Found::Absent | Found::Whiteout => return Ok(None),
        Found::Node { at, stat } => (stat, locator.dirs()[at].layer),
        Found::Dir { stat, dirs, .. } => (stat, dirs.first().map_or(0, |dir| dir.layer)),
    };
    let file_type = file_type(&stat);
    let target = match file_type {
        FileType::Symlink => Some(locator.read_link(layer)?),
        _ => None,
    };
    Ok(Some(Entry {
        file_type,
        size: size(&stat),
        mode: FileMode(stat.st_mode & 0o7777),
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: mtime(&stat),
        target,
        rdev: rdev(&stat),
        layer,
    }))
}

/// A descent that goes to the parent of one path after the other; near ones are cheap.
pub(crate) struct Locator {
    descent: Descent<()>,
}

impl Locator {
    pub(crate) fn new(stack: Side<'_>, ns: Namespace, max_depth: usize) -> Result<Self, DiffError> {
        let sides = [stack, Side::layers(&[]), Side::layers(&[])];
        let max_depth = max_depth.saturating_add(1).min(usize::MAX - 1);
        Ok(Locator { descent: Descent::new(sides, [false; SIDES], ns, max_depth, ())? })
    }

    /// Goes to the directory that holds `path`; false where the stack has no such directory. The root is its own
    /// parent, by the name `.`.
    pub(crate) fn go(&mut self, path: &PathBytes) -> Result<bool, DiffError> {
        let bytes = path.as_bytes();
        let parent = &bytes[..bytes.len() - path.file_name().len().min(bytes.len())];
        let parent = parent.strip_suffix(b"/").unwrap_or(parent);
        while self.descent.depth() > 1 && !self.descent.is_at_or_above(parent) {
            self.descent.leave()?;
        }
        while self.descent.frame_path_len() < parent.len() {
            let rest = &parent[self.descent.frame_path_len()..];
            let rest = rest.strip_prefix(b"/").unwrap_or(rest);
            let part = rest.split(|b| *b == b'/').next().unwrap_or_default();
            if !is_name(part) {
                return Ok(false);
            }
            self.descent.select(part);
            match self.descent.resolve(0)? {
                Found::Dir { dirs, .. } => self.descent.enter([dirs, Vec::new(), Vec::new()], [false; SIDES], ())?,
                _ => return Ok(false),
            }
        }
        let name = path.file_name();
        self.descent.select(name);
        Ok(name.is_empty() || is_name(name))
    }

    /// What the stack shows at `path`.
    pub(crate) fn find(&mut self, path: &PathBytes) -> Result<Found, DiffError> {
        if self.go(path)? { self.descent.resolve(0) } else { Ok(Found::Absent) }
    }

    /// The layers of the directory last gone to, newest first.
    pub(crate) fn dirs(&self) -> &[LayerDir] {
        &self.descent.frame().dirs[0]
    }

    /// The name last looked for.
    pub(crate) fn name(&self) -> &std::ffi::CStr {
        self.descent.name()
    }

    pub(crate) fn failed(&self, call: &'static str, layer: usize, source: Errno) -> DiffError {
        self.descent.failed(call, 0, layer, source)
    }

    fn read_link(&self, layer: usize) -> Result<PathBytes, DiffError> {
        let dir = self.dirs().iter().find(|dir| dir.layer == layer);
        let dir = dir.ok_or_else(|| self.failed("readlinkat", layer, Errno::NOENT))?;
        let target = readlinkat(dir.fd(), self.name(), Vec::new());
        Ok(PathBytes::new(target.map_err(|source| self.failed("readlinkat", layer, source))?.into_bytes()))
    }
}

/// What a directory can have an entry of; `..` would lead out of the layer.
fn is_name(part: &[u8]) -> bool {
    !matches!(part, b"" | b"." | b"..") && part.len() <= 255 && !part.contains(&0)
}

pub(crate) fn file_type(stat: &Stat) -> FileType {
    match RawType::from_raw_mode(stat.st_mode) {
        RawType::Directory => FileType::Directory,
        RawType::Symlink => FileType::Symlink,
        RawType::Fifo => FileType::Fifo,
        RawType::Socket => FileType::Socket,
        RawType::CharacterDevice => FileType::Char,
        RawType::BlockDevice => FileType::Block,
        RawType::RegularFile | RawType::Unknown => FileType::File,
    }
}

pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

pub(crate) fn mtime(stat: &Stat) -> (i64, u32) {
    (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0))
}

pub(crate) fn rdev(stat: &Stat) -> Option<(u32, u32)> {
    let device = matches!(file_type(stat), FileType::Char | FileType::Block);
    device.then(|| (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)))
}
