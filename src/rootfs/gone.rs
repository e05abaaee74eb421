//! Stand-ins for volumes that are gone from the host: removed, or replaced by a rename, as editors do with a file.
//!
//! The container's first process keeps what it was given. But the kernel mounts nothing anywhere that has no name any more, so a
//! view can't have it. It gets what there is to see of it, read-only: of a directory nothing, since it was emptied to be
//! removed; of a file a copy; of a socket, a pipe, a device, or a file that the container's root can't read, an empty file without any rights.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Gid, Mode, OFlags, ResolveFlags, Stat, StatVfsMountFlags, Uid};
use rustix::mount::MountAttrFlags;

use super::{RootfsError, doing};
use crate::sys::mountattr::{self, MountAttr};
use crate::sys::{Call, SysError, fsmount, mount};

/// The longest file that is copied, in bytes: it takes memory for as long as the exec runs.
const COPY_MAX: u64 = 16 << 20;
/// The copy's name in its own file system.
const NAME: &str = "copy";

/// A detached mount that stands for `source`, which is at `path` below `root`; `stat` is of it. Programs can't be executed on
/// it if they can't there.
///
/// # Errors
/// [`RootfsError::Gone`] for a file that is too long, or can't be read; [`RootfsError::Sys`] for the mount.
pub(super) fn stand_in(
    source: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    path: &Path,
    stat: &Stat,
) -> Result<OwnedFd, RootfsError> {
    let named = |what: &'static str| move || format!("{what} {}, which is gone from the host", path.display());
    let tmpfs = doing(named("mount in the place of"), empty(source, stat))?;
    let tree = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => tmpfs,
        FileType::RegularFile => {
            let content = content(root, path, stat).map_err(|why| RootfsError::Gone { path: path.to_owned(), why })?;
            let mode = if content.is_some() { stat.st_mode } else { 0 };
            doing(named("copy"), file(&tmpfs, &content.unwrap_or_default(), mode, stat))?
        }
        _ => doing(named("make a file for"), file(&tmpfs, b"", 0, stat))?,
    };
    let attr = MountAttr { set: mountattr::RDONLY, propagation: 0 };
    doing(named("make read-only"), mountattr::set(&tree, attr, false))?;
    Ok(tree)
}

/// A file system whose root has the mode and the owner of `stat`.
fn empty(source: BorrowedFd<'_>, stat: &Stat) -> Result<OwnedFd, SysError> {
    let option = |key: &str, value: String| (key.to_owned(), Some(value));
    let options = [option("mode", format!("{:o}", stat.st_mode & 0o777)), option("size", format!("{}", 2 * COPY_MAX))];
    let theirs = rustix::fs::fstatvfs(source).call("fstatvfs", || mount::fd_path(source))?.f_flag;
    let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, theirs.contains(StatVfsMountFlags::NOEXEC));
    let tmpfs = fsmount::detached("tmpfs", "", &options, flags)?;
    let tmpfs = tmpfs.ok_or_else(|| SysError::new("fsmount", "tmpfs", rustix::io::Errno::INVAL))?;
    own(tmpfs.as_fd(), "", stat);
    Ok(tmpfs)
}

/// Gives the owner of `stat`; where the container has no such user it stays root's.
fn own(dir: BorrowedFd<'_>, name: &str, stat: &Stat) {
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let flags = rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    let _ = rustix::fs::chownat(dir, name, Some(uid), Some(gid), flags);
}

/// What is in the file; none where it may not be read.
fn content(root: BorrowedFd<'_>, path: &Path, stat: &Stat) -> Result<Option<Vec<u8>>, String> {
    let long = || format!("it is longer than {} MiB", COPY_MAX >> 20);
    if u64::try_from(stat.st_size).is_ok_and(|size| size > COPY_MAX) {
        return Err(long());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let relative = path.strip_prefix("/").unwrap_or(path);
    let read = || -> io::Result<Vec<u8>> {
        let file = File::from(rustix::fs::openat2(root, relative, flags, Mode::empty(), how)?);
        let mut bytes = Vec::new();
        file.take(COPY_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) if bytes.len() as u64 > COPY_MAX => Err(long()),
        Ok(bytes) => Ok(Some(bytes)),
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(err) => Err(format!("it can't be read: {err}")),
    }
}

/// A mount of one file of `tmpfs` with this content.
fn file(tmpfs: &OwnedFd, content: &[u8], mode: u32, stat: &Stat) -> Result<OwnedFd, SysError> {
    let on = || "a copy".to_owned();
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let mut made = File::from(rustix::fs::openat(tmpfs, NAME, flags, Mode::empty()).call("openat", on)?);
    made.write_all(content).call("write", on)?;
    own(tmpfs.as_fd(), NAME, stat);
    rustix::fs::fchmod(&made, Mode::from_raw_mode(mode & 0o777)).call("fchmod", on)?;
    let copy = mount::open_beneath(tmpfs.as_fd(), Path::new(NAME)).call("openat2", on)?;
    mount::clone_tree(copy.as_fd(), false, &"a copy")
}
