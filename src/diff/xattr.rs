//! Extended attributes as a container sees them: overlayfs's own left out, escaped ones by their real name.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;

use rustix::fs::{fgetxattr, flistxattr};
use rustix::io::Errno;

use super::change::Attribute;
use crate::sys::fs::{getxattr_at, listxattr_at};

/// The largest value the kernel allows (`XATTR_SIZE_MAX`) and the longest list (`XATTR_LIST_MAX`).
const MAX: usize = 65536;

/// Which extended attributes overlayfs keeps its marks in. A mount uses exactly one of the two: taking marks from the
/// other would let a container, which may set them freely, forge whiteouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Namespace {
    /// `trusted.overlay.*`: a mount without `userxattr`.
    #[default]
    Trusted,
    /// `user.overlay.*`: a mount with `userxattr`.
    User,
}

impl Namespace {
    /// The prefix of overlayfs's own attributes.
    pub fn prefix(self) -> &'static [u8] {
        match self {
            Namespace::Trusted => b"trusted.overlay.",
            Namespace::User => b"user.overlay.",
        }
    }

    pub(crate) fn opaque(self) -> &'static CStr {
        match self {
            Namespace::Trusted => c"trusted.overlay.opaque",
            Namespace::User => c"user.overlay.opaque",
        }
    }

    pub(crate) fn whiteout(self) -> &'static CStr {
        match self {
            Namespace::Trusted => c"trusted.overlay.whiteout",
            Namespace::User => c"user.overlay.whiteout",
        }
    }

    /// Empty: copied up, from where is not known.
    pub(crate) fn origin(self) -> &'static CStr {
        match self {
            Namespace::Trusted => c"trusted.overlay.origin",
            Namespace::User => c"user.overlay.origin",
        }
    }

    /// The name that a container sees of a stored attribute: None for overlayfs's own; an escaped one has one
    /// `overlay.` removed, in place.
    pub(crate) fn visible(self, stored: &[u8]) -> Option<std::borrow::Cow<'_, [u8]>> {
        let Some(rest) = stored.strip_prefix(self.prefix()) else { return Some(stored.into()) };
        rest.strip_prefix(b"overlay.").map(|name| [self.prefix(), name].concat().into())
    }
}

/// What a mark says of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opaque {
    /// It merges with what is below.
    No,
    /// It hides what is below.
    Yes,
    /// It merges, and whiteouts in it may be empty files with a whiteout attribute.
    Whiteouts,
}

/// The opaque mark of an open directory. Not being allowed to read it, or a filesystem without attributes, is `No`.
pub(crate) fn opaque(dir: BorrowedFd<'_>, ns: Namespace) -> Result<Opaque, Errno> {
    let mut buf = [0u8; 8];
    match fgetxattr(dir, ns.opaque(), &mut buf[..]) {
        Ok(1) if buf[0] == b'y' => Ok(Opaque::Yes),
        Ok(1) if buf[0] == b'x' => Ok(Opaque::Whiteouts),
        Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(Opaque::No),
        Err(errno) => Err(errno),
    }
}

/// Buffers for reading attributes, kept from file to file.
pub(crate) struct Reader {
    ns: Namespace,
    names: Vec<u8>,
    value: Vec<u8>,
}

/// The visible attributes of one inode: name and value, sorted by name.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

impl Reader {
    pub(crate) fn new(ns: Namespace) -> Self {
        Reader { ns, names: vec![0; 1024], value: vec![0; 1024] }
    }

    /// The attributes of `name` in `dir`, not followed; `.` for the directory itself. An inode with none costs one
    /// system call and no allocation. One removed while they are read is left out.
    pub(crate) fn read(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Xattrs, Errno> {
        self.read_by(|names| listxattr_at(dir, name, names), |attr, value| getxattr_at(dir, name, attr, value))
    }

    /// Those of an open file: cheaper where it is open anyhow.
    pub(crate) fn read_open(&mut self, file: BorrowedFd<'_>) -> Result<Xattrs, Errno> {
        self.read_by(|names| flistxattr(file, names), |attr, value| fgetxattr(file, attr, value))
    }

    fn read_by(
        &mut self,
        list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
        get: impl Fn(&CStr, &mut [u8]) -> Result<usize, Errno>,
    ) -> Result<Xattrs, Errno> {
        let len = loop {
            match list(&mut self.names) {
                Ok(len) => break len,
                Err(Errno::RANGE) if self.names.len() < MAX => self.names.resize(MAX, 0),
                Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
                Err(errno) => return Err(errno),
            }
        };
        let mut found = Vec::new();
        for stored in self.names[..len].split(|b| *b == 0).filter(|stored| !stored.is_empty()) {
            let Some(visible) = self.ns.visible(stored) else { continue };
            let Ok(attr) = CString::new(stored) else { continue };
            let value = loop {
                match get(&attr, &mut self.value) {
                    Ok(len) => break &self.value[..len],
                    Err(Errno::RANGE) if self.value.len() < MAX => self.value.resize(MAX, 0),
                    Err(Errno::NODATA) => break &[][..],
                    Err(errno) => return Err(errno),
                }
            };
            found.push((visible.into_owned(), value.to_vec()));
        }
        found.sort_unstable();
        Ok(found)
    }
}

/// Which attributes differ, by what they are told as; sorted.
pub(crate) fn differing(above: &Xattrs, below: &Xattrs) -> Vec<Attribute> {
    if above == below {
        return Vec::new();
    }
    let only = |these: &Xattrs, those: &Xattrs| -> Vec<Attribute> {
        let differing = these.iter().filter(|pair| those.binary_search(pair).is_err());
        differing.map(|(name, _)| Attribute::of_xattr(name)).collect()
    };
    let mut found = only(above, below);
    found.extend(only(below, above));
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_seen() {
        for (ns, stored, seen) in [
            (Namespace::Trusted, "trusted.overlay.origin", None),
            (Namespace::Trusted, "trusted.overlay.overlay.opaque", Some("trusted.overlay.opaque")),
            (Namespace::Trusted, "trusted.overlay.overlay.overlay.x", Some("trusted.overlay.overlay.x")),
            (Namespace::Trusted, "user.overlay.opaque", Some("user.overlay.opaque")),
            (Namespace::User, "user.overlay.opaque", None),
            (Namespace::User, "user.overlay.overlay.a", Some("user.overlay.a")),
            (Namespace::User, "user.a", Some("user.a")),
        ] {
            assert_eq!(ns.visible(stored.as_bytes()).as_deref(), seen.map(str::as_bytes), "{stored}");
        }
    }
}
