//! The host's directory of a mount, looked at beneath its descriptor only.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, Stat, fstat};
use rustix::io::Errno;

use crate::diff::error::DiffError;
use crate::diff::path::PathBytes;

/// A copy-on-write mount and the host's directory under it.
#[derive(Debug, Clone)]
pub struct Mount<'a> {
    /// Where it is in the container.
    pub at: PathBytes,
    /// The host's directory.
    pub dir: BorrowedFd<'a>,
    /// Its path, to be told.
    pub path: &'a std::path::Path,
}

impl Mount<'_> {
    /// The part of a container's path that is inside; empty for the mount itself.
    pub(super) fn inside<'p>(&self, path: &'p PathBytes) -> &'p [u8] {
        let rest = path.as_bytes().strip_prefix(self.at.as_bytes()).unwrap_or_default();
        rest.strip_prefix(b"/").unwrap_or(rest)
    }

    /// The host's path of a container's one.
    pub(super) fn host_path(&self, path: &PathBytes) -> PathBuf {
        let inside = self.inside(path);
        if inside.is_empty() { self.path.to_owned() } else { self.path.join(OsStr::from_bytes(inside)) }
    }

    /// The directory that holds `path`, and the name in it; of the mount itself, it and `.`.
    pub(super) fn parent(&self, path: &PathBytes) -> Result<(OwnedFd, CString), DiffError> {
        let inside = self.inside(path);
        let (parent, name) = match inside.iter().rposition(|b| *b == b'/') {
            Some(slash) => (&inside[..slash], &inside[slash + 1..]),
            None => (&b""[..], inside),
        };
        let name = if inside.is_empty() { &b"."[..] } else { name };
        let name = CString::new(name).map_err(|_| self.failed("openat2", path, Errno::INVAL))?;
        let dir = beneath(self.dir, parent).map_err(|source| self.failed("openat2", path, source))?;
        Ok((dir, name))
    }

    /// What is at `path`, nothing followed. `None` also where a directory on the way is missing or is none. `EXDEV` where
    /// something is mounted there or on the way.
    pub(super) fn find(&self, path: &PathBytes) -> Result<Option<HostNode>, DiffError> {
        let (dir, name) = match self.parent(path) {
            Ok(found) => found,
            Err(DiffError::Host { source: Errno::NOENT | Errno::NOTDIR | Errno::LOOP, .. }) => return Ok(None),
            Err(err) => return Err(err),
        };
        match stat_beneath(dir.as_fd(), &name) {
            Ok(stat) => Ok(Some(HostNode { dir, name, stat })),
            Err(Errno::NOENT) => Ok(None),
            Err(source) => Err(self.failed("openat2", path, source)),
        }
    }

    /// What is in a directory of the host: names, and paths in the container.
    pub(super) fn list(&self, dir: &PathBytes) -> Result<Vec<(Vec<u8>, PathBytes)>, DiffError> {
        let failed = |source| self.failed("getdents64", dir, source);
        let open = beneath(self.dir, self.inside(dir)).map_err(|source| self.failed("openat2", dir, source))?;
        let mut found = Vec::new();
        for entry in Dir::read_from(&open).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
            if !matches!(&name[..], b"." | b"..") {
                let path = PathBytes::new([dir.as_bytes(), b"/", &name].concat());
                found.push((name, path));
            }
        }
        Ok(found)
    }

    pub(super) fn failed(&self, call: &'static str, path: &PathBytes, source: Errno) -> DiffError {
        DiffError::Host { call, path: self.host_path(path), source }
    }
}

/// The innermost mount that a path is in.
pub(super) fn mount_of<'m, 'a>(mounts: &'m [Mount<'a>], path: &PathBytes) -> Option<&'m Mount<'a>> {
    let inside = mounts.iter().filter(|mount| path.is_below(&mount.at));
    inside.max_by_key(|mount| mount.at.as_bytes().len())
}

/// Something that is there on the host.
#[derive(Debug)]
pub(super) struct HostNode {
    pub dir: OwnedFd,
    pub name: CString,
    pub stat: Stat,
}

/// The kernel takes no longer path in one call, and a container can nest directories deeper.
const MAX_PATH: usize = 4000;

/// A directory below `dir`, through no symbolic link and onto no other filesystem.
pub(super) fn beneath(dir: BorrowedFd<'_>, inside: &[u8]) -> Result<OwnedFd, Errno> {
    let (mut rest, mut above) = (inside, None::<OwnedFd>);
    while rest.len() > MAX_PATH {
        let slash = rest[..MAX_PATH].iter().rposition(|b| *b == b'/').ok_or(Errno::NAMETOOLONG)?;
        let from = above.as_ref().map_or(dir, AsFd::as_fd);
        above = Some(open_beneath(from, OsStr::from_bytes(&rest[..slash]), OFlags::PATH | OFlags::DIRECTORY)?);
        rest = &rest[slash + 1..];
    }
    let rest = if rest.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(rest) };
    open_beneath(above.as_ref().map_or(dir, AsFd::as_fd), rest, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// What is at a name in `dir`, which may be a symbolic link itself.
fn stat_beneath(dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat, Errno> {
    fstat(open_beneath(dir, OsStr::from_bytes(name.to_bytes()), OFlags::PATH)?)
}

fn open_beneath(dir: BorrowedFd<'_>, inside: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    loop {
        match rustix::fs::openat2(dir, inside, flags, Mode::empty(), how) {
            // A rename somewhere on the system made the kernel unsure; it asks to try again.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}
