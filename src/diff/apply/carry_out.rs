//! The plan carried out: what goes first, the deepest before what it is in; then what comes, directories before what is in
//! them. Each file is written beside its place and renamed to it. Done half, it can be planned and done again.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType as RawType, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags, chownat, fchmod, fchown,
    fremovexattr, fsetxattr, mkdirat, mknodat, openat, readlinkat, renameat, renameat_with, statat, symlinkat,
    unlinkat, utimensat,
};
use rustix::io::Errno;

use super::host::{Mount, beneath, mount_of};
use super::plan::{Action, Node, Past, Plan, Seen, Step, Wanted, copied, in_layers, key};
use crate::diff::change::FileType;
use crate::diff::content::open_file;
use crate::diff::descent::{DIR_FLAGS, Side};
use crate::diff::error::DiffError;
use crate::diff::locate::{Locator, file_type};
use crate::diff::merge::copy_data;
use crate::diff::path::PathBytes;
use crate::diff::seal::times;
use crate::diff::xattr::{Namespace, Reader};
use crate::durable::{self, fault};

/// Carries out a plan made of the same mounts and uppers. Stops where the host is not as it was when it was planned.
///
/// # Errors
/// [`DiffError::Host`] where the kernel refuses, [`DiffError::HostChanged`]; what was done before stays.
pub fn carry_out(plan: &Plan, mounts: &[Mount<'_>], uppers: &[BorrowedFd<'_>]) -> Result<(), DiffError> {
    let mut worker = Worker {
        layers: Locator::new(Side::layers(uppers), Namespace::Trusted, usize::MAX)?,
        xattrs: Reader::new(Namespace::Trusted),
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
    as_seen(&dir, &name, step.seen).map_err(|errno| refused(mount, &step.path, "newfstatat", errno))?;
    Ok((dir, name))
}

/// `ESTALE` where what is there now is not what was `seen`.
fn as_seen(dir: &OwnedFd, name: &CStr, seen: Seen) -> Result<(), Errno> {
    let now = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Some(key(&stat)),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(errno),
    };
    if now == seen { Ok(()) } else { Err(Errno::STALE) }
}

fn refused(mount: &Mount<'_>, path: &PathBytes, call: &'static str, errno: Errno) -> DiffError {
    match errno {
        Errno::STALE => DiffError::HostChanged { path: mount.host_path(path) },
        errno => mount.failed(call, path, errno),
    }
}

fn delete(mount: &Mount<'_>, step: &Step) -> Result<(), DiffError> {
    fault::step("apply: delete").map_err(|err| mount_error(mount, &step.path, &err))?;
    let (dir, name) = place(mount, step)?;
    let directory = step.file_type == FileType::Directory;
    let mut removed = remove(&dir, &name, directory);
    if directory && matches!(removed, Err(Errno::NOTEMPTY | Errno::EXIST)) {
        // What an earlier run that was killed left in it is not in the plan.
        let swept = openat(&dir, &name, DIR_FLAGS, Mode::empty()).map_err(io::Error::from).and_then(|dir| sweep(&dir));
        swept.map_err(|err| mount_error(mount, &step.path, &err))?;
        removed = remove(&dir, &name, directory);
    }
    removed.map_err(|source| mount.failed("unlinkat", &step.path, source))
}

fn remove(dir: &OwnedFd, name: &CStr, directory: bool) -> Result<(), Errno> {
    unlinkat(dir, name, if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() })
}

/// A failed call and the kernel's answer.
type Done = Result<(), (&'static str, Errno)>;

struct Worker {
    layers: Locator,
    xattrs: Reader,
}

impl Worker {
    fn make(&mut self, mount: &Mount<'_>, step: &Step) -> Result<(), DiffError> {
        let (dir, name) = place(mount, step)?;
        let fail = |(call, source)| refused(mount, &step.path, call, source);
        let was = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let was_dir = was.as_ref().is_some_and(|stat| file_type(stat) == FileType::Directory);
        let xattrs = &mut self.xattrs;
        in_layers(&mut self.layers, &step.path, |layer| {
            let Some(layer) = layer else { return Err(fail(("openat", Errno::NOENT))) };
            let host = was.as_ref().map(|stat| Node { dir: dir.as_fd(), name: &name, stat });
            let wanted = Wanted::of(&step.path, &layer, host.as_ref(), xattrs)?;
            let directory = file_type(layer.stat) == FileType::Directory;
            if step.action == Action::Metadata {
                return attributes_of(&dir, &name, &layer, &wanted, xattrs).map_err(fail);
            }
            let made = if directory {
                put_directory(&dir, &name, (was.as_ref(), step.seen), &layer, &wanted, xattrs)
            } else {
                put(&dir, &name, (was_dir, step.seen), &layer, &wanted)
            };
            made.map_err(|err| mount_error(mount, &step.path, &err))
        })
    }
}

fn mount_error(mount: &Mount<'_>, path: &PathBytes, err: &io::Error) -> DiffError {
    refused(mount, path, "write", Errno::from_io_error(err).unwrap_or(Errno::IO))
}

/// Removes what an earlier run that was killed left beside the paths that generations touched and `wanted` takes, also where
/// all else of it was done, and no diff tells of them any more. To be called with the lock of the mounts' directories.
///
/// # Errors
/// [`DiffError::Host`] where the kernel refuses.
pub fn tidy(mounts: &[Mount<'_>], past: &[Past], wanted: impl Fn(&PathBytes) -> bool) -> Result<(), DiffError> {
    let mut swept = HashSet::new();
    for touched in past.iter().flat_map(|past| &past.touched).filter(|touched| wanted(&touched.path)) {
        let Some(mount) = mount_of(mounts, &touched.path) else { continue };
        let inside = mount.inside(&touched.path);
        let parent = &inside[..inside.iter().rposition(|b| *b == b'/').unwrap_or(0)];
        if !swept.insert((mount.at.as_bytes(), parent)) {
            continue;
        }
        match beneath(mount.dir, parent) {
            Ok(dir) => sweep(&dir).map_err(|err| mount_error(mount, &touched.path, &err))?,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
            Err(source) => return Err(mount.failed("openat2", &touched.path, source)),
        }
    }
    Ok(())
}

/// Removes what an earlier run that was killed left in a directory. Nobody else applies to it: its lock is ours.
fn sweep(dir: &OwnedFd) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if durable::is_temporary(name.to_bytes()) {
            match remove(dir, name, entry.file_type() == RawType::Directory) {
                // One with something in it is none of ours.
                Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

/// Renames what was made beside its place to it, if that is still as it was `seen`: writing a large file takes its time. Of a
/// directory and something else the one takes the other's place at once;
/// it is undone where the directory has got something in it meanwhile.
fn swap(dir: &OwnedFd, temporary: &str, name: &CStr, (was_dir, seen): (bool, Seen), is_dir: bool) -> io::Result<()> {
    fault::step("apply: rename")?;
    as_seen(dir, name, seen)?;
    if was_dir == is_dir {
        return Ok(renameat(dir, temporary, dir, name)?);
    }
    let exchange = || renameat_with(dir, temporary, dir, name, RenameFlags::EXCHANGE);
    let old = CString::new(temporary)?;
    match exchange() {
        // Not every filesystem can: then the place is empty for a moment.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            remove(dir, name, was_dir)?;
            return Ok(renameat(dir, temporary, dir, name)?);
        }
        exchanged => exchanged?,
    }
    fault::step("apply: remove the old one")?;
    remove(dir, &old, was_dir).map_err(|errno| {
        // The first error is the one to tell.
        let _ = exchange();
        errno.into()
    })
}

/// Makes a directory beside its place, with its attributes, and renames it there.
fn put_directory(
    dir: &OwnedFd,
    name: &CStr,
    (was, seen): (Option<&rustix::fs::Stat>, Seen),
    layer: &Node<'_>,
    wanted: &Wanted,
    xattrs: &mut Reader,
) -> io::Result<()> {
    if was.is_some_and(|stat| file_type(stat) == FileType::Directory) {
        return attributes_of(dir, name, layer, wanted, xattrs).map_err(|(_, errno)| errno.into());
    }
    let temporary = durable::temporary_name();
    fault::step("apply: mkdir")?;
    mkdirat(dir, temporary.as_str(), Mode::RWXU)?;
    let made = CString::new(temporary.as_str())?;
    attributes_of(dir, &made, layer, wanted, xattrs)
        .map_err(|(_, errno)| io::Error::from(errno))
        .and_then(|()| swap(dir, &temporary, name, (was.is_none(), seen), true))
        .inspect_err(|_| {
            // The first error is the one to tell.
            let _ = remove(dir, &made, true);
        })
}

/// Writes a file, symbolic link or pipe beside its place and renames it there.
fn put(dir: &OwnedFd, name: &CStr, was: (bool, Seen), layer: &Node<'_>, wanted: &Wanted) -> io::Result<()> {
    let kind = file_type(layer.stat);
    if kind == FileType::File {
        let fill = |file: &std::fs::File| {
            let from = open_file(layer.dir, layer.name)?;
            copy_data(&from, &file.try_clone()?.into()).map_err(|(_, errno)| errno)?;
            set(file.as_fd(), layer, wanted).map_err(|(_, errno)| errno)?;
            rustix::fs::futimens(file, &times(layer.stat))?;
            Ok(())
        };
        return durable::place(dir, fill, |temporary| swap(dir, temporary, name, was, false));
    }
    let temporary = durable::temporary_name();
    let made = CString::new(temporary.as_str())?;
    let ids = (Uid::from_raw(layer.stat.st_uid), Gid::from_raw(layer.stat.st_gid));
    fault::step("apply: make")?;
    if kind == FileType::Symlink {
        symlinkat(readlinkat(layer.dir, layer.name, Vec::new())?, dir, temporary.as_str())?;
    } else {
        mknodat(dir, temporary.as_str(), RawType::Fifo, Mode::empty(), 0)?;
    }
    chownat(dir, temporary.as_str(), Some(ids.0), Some(ids.1), AtFlags::SYMLINK_NOFOLLOW)
        .and_then(|()| match kind {
            FileType::Symlink => Ok(()),
            _ => dress_pipe(dir, &made, wanted),
        })
        .and_then(|()| utimensat(dir, temporary.as_str(), &times(layer.stat), AtFlags::SYMLINK_NOFOLLOW))
        .map_err(io::Error::from)
        .and_then(|()| swap(dir, &temporary, name, was, false))
        .inspect_err(|_| {
            // The first error is the one to tell.
            let _ = unlinkat(dir, temporary.as_str(), AtFlags::empty());
        })
}

/// Gives a named pipe, and nothing else, its mode and access list: who can write to the directory may have put a symbolic
/// link there meanwhile. It is not opened as a pipe, which whoever has the other end would notice.
fn dress_pipe(dir: &OwnedFd, name: &CStr, wanted: &Wanted) -> Result<(), Errno> {
    let pipe = openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if file_type(&rustix::fs::fstat(&pipe)?) != FileType::Fifo {
        return Err(Errno::STALE);
    }
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    unless_there_is_none(rustix::fs::removexattr(&path, ACCESS_LIST))?;
    rustix::fs::chmod(&path, Mode::from_raw_mode(wanted.mode))?;
    match wanted.xattrs.iter().find(|(name, _)| name == ACCESS_LIST.to_bytes()) {
        Some((_, list)) => unless_there_is_none(rustix::fs::setxattr(&path, ACCESS_LIST, list, XattrFlags::empty())),
        None => Ok(()),
    }
}

/// What a file has for more users than its owner; a new one inherits it of its directory.
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

fn unless_there_is_none(done: Result<(), Errno>) -> Result<(), Errno> {
    match done {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        done => done,
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
                FileType::Fifo => dress_pipe(dir, name, wanted).map_err(|e| ("fchmodat", e)),
                _ => Ok(()),
            };
        }
    };
    let fd = fd.map_err(|errno| ("openat", errno))?;
    for (old, _) in xattrs.read_open(fd.as_fd()).unwrap_or_default() {
        if copied(&old) && !wanted.xattrs.iter().any(|(name, _)| *name == old) {
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
    // One that is inherited; what the layer has comes below.
    unless_there_is_none(fremovexattr(fd, ACCESS_LIST)).map_err(|errno| ("fremovexattr", errno))?;
    fault::step("apply: chmod").map_err(|_| ("fchmod", Errno::IO))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A pipe that was exchanged for a link meanwhile, by a container that has the directory as an ordinary mount: what the
    /// link leads to keeps its mode.
    #[test]
    fn only_a_pipe_gets_a_pipes_mode() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        crate::durable::replace_unsynced(&file, b"", 0o600).unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        let fd: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        mknodat(&fd, c"pipe", RawType::Fifo, Mode::RUSR, 0).unwrap();
        let mode = |name: &str| dir.path().join(name).symlink_metadata().unwrap().permissions().mode() & 0o7777;
        let wanted = |mode| Wanted { mode, xattrs: Vec::new(), dropped: Vec::new() };
        dress_pipe(&fd, c"pipe", &wanted(0o640)).unwrap();
        assert_eq!(mode("pipe"), 0o640);
        for name in [c"link", c"file"] {
            assert_eq!(dress_pipe(&fd, name, &wanted(0o666)), Err(Errno::STALE));
        }
        assert_eq!(mode("file"), 0o600);
    }

    /// What the host writes while a file is being copied is not overwritten: neither where something was, nor where nothing
    /// was.
    #[test]
    fn what_changes_while_it_is_copied_stays() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            crate::durable::replace_unsynced(&dir.path().join(name), text.as_bytes(), 0o600).unwrap();
        };
        let fd: OwnedFd = std::fs::File::open(dir.path()).unwrap().into();
        let seen = || statat(&fd, c"file", AtFlags::SYMLINK_NOFOLLOW).ok().map(|stat| key(&stat));
        write("copy", "ours");
        let nothing = seen();
        write("file", "theirs");
        let before = seen();
        write("file", "theirs again");
        for old in [nothing, before] {
            let err = swap(&fd, "copy", c"file", (false, old), false).unwrap_err();
            assert_eq!(Errno::from_io_error(&err), Some(Errno::STALE));
            assert_eq!(std::fs::read_to_string(dir.path().join("file")).unwrap(), "theirs again");
        }
        swap(&fd, "copy", c"file", (false, seen()), false).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("file")).unwrap(), "ours");
    }
}
