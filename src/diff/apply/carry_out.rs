//! The plan carried out: what goes first, the deepest before what it is in; then what comes, directories before what is in
//! them. Each file is written beside its place and renamed to it. Done half, it can be planned and done again.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType as RawType, Gid, Mode, Uid, XattrFlags, chmodat, chownat, fchmod, fchown, fremovexattr,
    fsetxattr, mkdirat, mknodat, openat, readlinkat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::host::{Mount, mount_of};
use super::plan::{Action, Node, Plan, Step, Wanted, in_layers, key};
use crate::diff::change::FileType;
use crate::diff::content::open_file;
use crate::diff::descent::{DIR_FLAGS, Side};
use crate::diff::error::DiffError;
use crate::diff::locate::{Locator, file_type};
use crate::diff::merge::copy_data;
use crate::diff::path::PathBytes;
use crate::diff::seal::times;
use crate::diff::xattr::{Namespace, Reader};
use crate::durable;

/// Carries out a plan made of the same mounts and uppers. Stops where the host is not as it was when it was planned.
///
/// # Errors
/// [`DiffError::Host`] where the kernel refuses, [`DiffError::HostChanged`]; what was done before stays.
pub fn carry_out(plan: &Plan, mounts: &[Mount<'_>], uppers: &[BorrowedFd<'_>]) -> Result<(), DiffError> {
    let mut worker = Worker {
        layers: Locator::new(Side::layers(uppers), Namespace::Trusted, usize::MAX)?,
        xattrs: Reader::new(Namespace::Trusted),
        swept: HashSet::new(),
    };
    let of = |step: &Step| mount_of(mounts, &step.path);
    for step in plan.steps.iter().rev().filter(|step| step.action == Action::Delete) {
        if let Some(mount) = of(step) {
            delete(mount, step)?;
        }
    }
    for step in plan.steps.iter().filter(|step| step.action != Action::Delete) {
        if let Some(mount) = of(step) {
            worker.make(mount, step)?;
        }
    }
    for mount in mounts {
        rustix::fs::syncfs(mount.dir).map_err(|source| mount.failed("syncfs", &mount.at, source))?;
    }
    Ok(())
}

/// The directory that holds the step's path, still as it was planned.
fn place(mount: &Mount<'_>, step: &Step) -> Result<(OwnedFd, std::ffi::CString), DiffError> {
    let (dir, name) = mount.parent(&step.path)?;
    let now = match statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Some(key(&stat)),
        Err(Errno::NOENT) => None,
        Err(source) => return Err(mount.failed("newfstatat", &step.path, source)),
    };
    if now == step.seen { Ok((dir, name)) } else { Err(DiffError::HostChanged { path: mount.host_path(&step.path) }) }
}

fn delete(mount: &Mount<'_>, step: &Step) -> Result<(), DiffError> {
    let (dir, name) = place(mount, step)?;
    remove(&dir, &name, step.file_type == FileType::Directory)
        .map_err(|source| mount.failed("unlinkat", &step.path, source))
}

fn remove(dir: &OwnedFd, name: &CStr, directory: bool) -> Result<(), Errno> {
    unlinkat(dir, name, if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() })
}

/// A failed call and the kernel's answer.
type Done = Result<(), (&'static str, Errno)>;

struct Worker {
    layers: Locator,
    xattrs: Reader,
    /// Directories that hold nothing any more that an earlier run left.
    swept: HashSet<(u64, u64)>,
}

impl Worker {
    fn make(&mut self, mount: &Mount<'_>, step: &Step) -> Result<(), DiffError> {
        let (dir, name) = place(mount, step)?;
        let fail = |(call, source)| mount.failed(call, &step.path, source);
        let was = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let was_dir = was.as_ref().is_some_and(|stat| file_type(stat) == FileType::Directory);
        if step.file_type != FileType::Directory && step.action != Action::Metadata {
            let stat = rustix::fs::fstat(&dir).map_err(|errno| fail(("fstat", errno)))?;
            if self.swept.insert((stat.st_dev, stat.st_ino)) {
                sweep(&dir).map_err(|err| mount_error(mount, &step.path, &err))?;
            }
        }
        let xattrs = &mut self.xattrs;
        in_layers(&mut self.layers, &step.path, |layer| {
            let Some(layer) = layer else { return Err(fail(("openat", Errno::NOENT))) };
            let host = was.as_ref().map(|stat| Node { dir: dir.as_fd(), name: &name, stat });
            let wanted = Wanted::of(&step.path, &layer, host.as_ref(), xattrs)?;
            let directory = file_type(layer.stat) == FileType::Directory;
            if step.action == Action::Metadata {
                return attributes_of(&dir, &name, &layer, &wanted, xattrs).map_err(fail);
            }
            if directory {
                if was.is_some() && !was_dir {
                    remove(&dir, &name, false).map_err(|errno| fail(("unlinkat", errno)))?;
                }
                if !was_dir {
                    mkdirat(&dir, &name, Mode::RWXU).map_err(|errno| fail(("mkdirat", errno)))?;
                }
                return attributes_of(&dir, &name, &layer, &wanted, xattrs).map_err(fail);
            }
            if was_dir {
                remove(&dir, &name, true).map_err(|errno| fail(("unlinkat", errno)))?;
            }
            put(&dir, &name, &layer, &wanted).map_err(|err| mount_error(mount, &step.path, &err))
        })
    }
}

fn mount_error(mount: &Mount<'_>, path: &PathBytes, err: &io::Error) -> DiffError {
    mount.failed("write", path, Errno::from_io_error(err).unwrap_or(Errno::IO))
}

/// Removes what an earlier run that was killed left in a directory. Nobody else applies to it: its lock is ours.
fn sweep(dir: &OwnedFd) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if durable::is_temporary(name.to_bytes()) && !matches!(entry.file_type(), RawType::Directory) {
            unlinkat(dir, name, AtFlags::empty())?;
        }
    }
    Ok(())
}

/// Writes a file, symbolic link or pipe beside its place and renames it there.
fn put(dir: &OwnedFd, name: &CStr, layer: &Node<'_>, wanted: &Wanted) -> io::Result<()> {
    match file_type(layer.stat) {
        FileType::File => durable::place(dir, name, |file| {
            let from = open_file(layer.dir, layer.name)?;
            copy_data(&from, &file.try_clone()?.into()).map_err(|(_, errno)| errno)?;
            set(file.as_fd(), layer, wanted).map_err(|(_, errno)| errno)?;
            rustix::fs::futimens(file, &times(layer.stat))?;
            Ok(())
        }),
        kind => {
            let temporary = durable::temporary_name();
            let ids = (Uid::from_raw(layer.stat.st_uid), Gid::from_raw(layer.stat.st_gid));
            if kind == FileType::Symlink {
                symlinkat(readlinkat(layer.dir, layer.name, Vec::new())?, dir, temporary.as_str())?;
            } else {
                mknodat(dir, temporary.as_str(), RawType::Fifo, Mode::empty(), 0)?;
            }
            let owned = chownat(dir, temporary.as_str(), Some(ids.0), Some(ids.1), AtFlags::SYMLINK_NOFOLLOW);
            let set = owned.and_then(|()| match kind {
                FileType::Symlink => Ok(()),
                _ => chmodat(dir, temporary.as_str(), Mode::from_raw_mode(wanted.mode), AtFlags::empty()),
            });
            let times = times(layer.stat);
            let placed = set
                .and_then(|()| utimensat(dir, temporary.as_str(), &times, AtFlags::SYMLINK_NOFOLLOW))
                .and_then(|()| renameat(dir, temporary.as_str(), dir, name));
            placed.map_err(|errno| {
                // The first error is the one to tell.
                let _ = unlinkat(dir, temporary.as_str(), AtFlags::empty());
                errno.into()
            })
        }
    }
}

/// Gives what is there the layer's attributes.
fn attributes_of(dir: &OwnedFd, name: &CStr, layer: &Node<'_>, wanted: &Wanted, xattrs: &mut Reader) -> Done {
    let kind = file_type(layer.stat);
    let fd = match kind {
        FileType::Directory => openat(dir, name, DIR_FLAGS, Mode::empty()),
        FileType::File => open_file(dir.as_fd(), name),
        _ => {
            let ids = (Uid::from_raw(layer.stat.st_uid), Gid::from_raw(layer.stat.st_gid));
            chownat(dir, name, Some(ids.0), Some(ids.1), AtFlags::SYMLINK_NOFOLLOW).map_err(|e| ("fchownat", e))?;
            // A pipe: no link, and no device, since types were the same.
            return match kind {
                FileType::Fifo => {
                    let temporary = chmodat(dir, name, Mode::from_raw_mode(wanted.mode), AtFlags::SYMLINK_NOFOLLOW);
                    temporary.map_err(|e| ("fchmodat", e))
                }
                _ => Ok(()),
            };
        }
    };
    let fd = fd.map_err(|errno| ("openat", errno))?;
    for (old, _) in xattrs.read_open(fd.as_fd()).unwrap_or_default() {
        let ours = old.starts_with(b"user.") || old.starts_with(b"system.posix_acl_");
        if ours && !wanted.xattrs.iter().any(|(name, _)| *name == old) {
            fremovexattr(&fd, &old).map_err(|errno| ("fremovexattr", errno))?;
        }
    }
    set(fd.as_fd(), layer, wanted)?;
    if kind == FileType::File {
        rustix::fs::futimens(&fd, &times(layer.stat)).map_err(|errno| ("utimensat", errno))?;
    }
    Ok(())
}

/// Owner, then mode (which a change of owner may clear bits of), then extended attributes.
fn set(fd: BorrowedFd<'_>, layer: &Node<'_>, wanted: &Wanted) -> Done {
    let (uid, gid) = (Uid::from_raw(layer.stat.st_uid), Gid::from_raw(layer.stat.st_gid));
    fchown(fd, Some(uid), Some(gid)).map_err(|errno| ("fchown", errno))?;
    fchmod(fd, Mode::from_raw_mode(wanted.mode)).map_err(|errno| ("fchmod", errno))?;
    for (name, value) in &wanted.xattrs {
        match fsetxattr(fd, name.as_slice(), value, XattrFlags::empty()) {
            // A filesystem without them has none to lose.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(("fsetxattr", errno)),
        }
    }
    Ok(())
}
