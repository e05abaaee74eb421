//! Directories that a layer only passed through take the attributes that they have by now.
//!
//! Overlayfs copies a directory up, with its attributes, when something in it changes, and the newest layer's are
//! those that are seen. Committed onto a newer generation, the copy would undo a change of mode made meanwhile.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, Stat, Uid, XattrFlags, fchmod, fchown, fremovexattr, fsetxattr, futimens, readlinkat, unlinkat,
};
use rustix::io::Errno;

use super::Options;
use super::change::FileType;
use super::content::{Comparer, open_file};
use super::descent::{Descent, Found, Side};
use super::error::DiffError;
use super::locate::{file_type, mtime, rdev, size};
use super::seal::times;
use super::touch::Touched;
use super::view::View;
use super::xattr::{Namespace, Reader, Xattrs};

const UPPER: usize = 0;
const BASE: usize = 1;
const HEAD: usize = 2;

/// Gives the directories of a sealed layer whose mode, owner and extended attributes are those of the base's view the
/// ones, and the times, of the head's view. Both lists are newest first and end with the plain tree. Directories that
/// the layer made, made anew or changed are left as they are, and those that the head has not.
///
/// An unchanged copy that was kept for a hard link's sake goes where the head shows something else by now.
///
/// `again`: an earlier call on this layer, for another head, may have been cut short, or its commit came to nothing. What
/// its directories have then is that head's, so those count as unchanged that are not in this set of what the layer
/// touched (as [`super::touched`] gives it).
///
/// # Errors
/// [`DiffError::NoLayers`] for an empty list, [`DiffError::TooDeep`], [`DiffError::Call`] where the kernel refuses.
pub fn refresh_passed<'a, 'b>(
    upper: BorrowedFd<'_>,
    base_lowers: impl Into<View<'a>>,
    head_lowers: impl Into<View<'b>>,
    again: Option<&[Touched]>,
    options: &Options,
) -> Result<(), DiffError> {
    let (base_lowers, head_lowers) = (base_lowers.into(), head_lowers.into());
    if base_lowers.layers.is_empty() || head_lowers.layers.is_empty() {
        return Err(DiffError::NoLayers { operation: "refresh_passed" });
    }
    let uppers = [upper];
    let sides = [Side::layers(&uppers), Side::view(&base_lowers), Side::view(&head_lowers)];
    let list = [true, false, false];
    let mut descent = Descent::new(sides, list, options.namespace, options.max_depth, ())?;
    let mut xattrs = Reader::new(options.namespace);
    let mut content = Comparer::new();
    descent.select(b"");
    refresh(&descent, &mut xattrs, again, options.namespace)?;
    loop {
        while descent.advance() {
            let upper = descent.resolve(UPPER)?;
            if let Found::Node { stat, .. } = &upper {
                if stat.st_nlink > 1 {
                    drop_stale_link(&descent, stat, &mut xattrs, &mut content)?;
                }
                continue;
            }
            let Found::Dir { dirs: upper, closed: false, .. } = upper else { continue };
            let dirs_of = |found| if let Found::Dir { dirs, .. } = found { dirs } else { Vec::new() };
            let (base, head) = (dirs_of(descent.resolve(BASE)?), dirs_of(descent.resolve(HEAD)?));
            // What leads to a mount may have been made by the runtime to mount on.
            if (base.is_empty() || head.is_empty()) && !descent.leads_to_graft(BASE) {
                continue;
            }
            descent.enter([upper, base, head], list, ())?;
            descent.select(b"");
            refresh(&descent, &mut xattrs, again, options.namespace)?;
        }
        if descent.leave()?.is_none() {
            return Ok(());
        }
    }
}

/// Takes the current entry, a name of an inode that has several, out of the layer if it is as it was in the base and
/// not as it is in the head.
fn drop_stale_link(
    descent: &Descent<()>,
    stat: &Stat,
    xattrs: &mut Reader,
    content: &mut Comparer,
) -> Result<(), DiffError> {
    let mut as_in = |side: usize| match descent.resolve(side)? {
        Found::Node { at, stat: other } => same_node(descent, (0, stat), (side, at, &other), xattrs, content),
        _ => Ok(false),
    };
    if !as_in(BASE)? || as_in(HEAD)? {
        return Ok(());
    }
    let dir = &descent.frame().dirs[UPPER][0];
    let gone = unlinkat(dir.fd(), descent.name(), AtFlags::empty());
    gone.map_err(|source| descent.failed("unlinkat", UPPER, dir.layer, source))
}

/// The current entry of the layer and of another side: the same in all that is told.
fn same_node(
    descent: &Descent<()>,
    (at, stat): (usize, &Stat),
    (side, other_at, other): (usize, usize, &Stat),
    xattrs: &mut Reader,
    content: &mut Comparer,
) -> Result<bool, DiffError> {
    let key = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid, mtime(stat), size(stat), rdev(stat));
    if key(stat) != key(other) {
        return Ok(false);
    }
    let (dir, other_dir) = (&descent.frame().dirs[UPPER][at], &descent.frame().dirs[side][other_at]);
    let name = descent.name();
    let failed = |call, source| descent.failed(call, UPPER, dir.layer, source);
    // What can't be read in a live tree is not the same.
    let same = match file_type(stat) {
        FileType::File => {
            let file = open_file(dir.fd(), name).map_err(|source| failed("openat", source))?;
            let Ok(other) = open_file(other_dir.fd(), name) else { return Ok(false) };
            match content.same(file.as_fd(), other.as_fd(), size(stat)) {
                Err(e) if !e.second => return Err(failed(e.call, e.source)),
                same => same.unwrap_or(false),
            }
        }
        FileType::Symlink => {
            let target = readlinkat(dir.fd(), name, Vec::new()).map_err(|source| failed("readlinkat", source))?;
            readlinkat(other_dir.fd(), name, Vec::new()).is_ok_and(|other| other == target)
        }
        _ => true,
    };
    if !same {
        return Ok(false);
    }
    let own = xattrs.read(dir.fd(), name).map_err(|source| failed("listxattrat", source))?;
    Ok(xattrs.read(other_dir.fd(), name).is_ok_and(|other| other == own))
}

/// The innermost frame's directory.
fn refresh(
    descent: &Descent<()>,
    xattrs: &mut Reader,
    again: Option<&[Touched]>,
    ns: Namespace,
) -> Result<(), DiffError> {
    if descent.frame().dirs[BASE].is_empty() || descent.frame().dirs[HEAD].is_empty() {
        return Ok(());
    }
    let own = attributes(descent, UPPER, xattrs)?;
    let head = attributes(descent, HEAD, xattrs)?;
    let same = |a: &(Stat, Xattrs), b: &(Stat, Xattrs)| {
        let key = |stat: &Stat| (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid, file_type(stat));
        key(&a.0) == key(&b.0) && a.1 == b.1
    };
    let passed = match again {
        Some(touched) => touched.binary_search_by(|touched| touched.path.cmp(&descent.path())).is_err(),
        None => same(&own, &attributes(descent, BASE, xattrs)?),
    };
    if !passed {
        return Ok(());
    }
    let dir = &descent.frame().dirs[UPPER][0];
    if !same(&own, &head) {
        apply(dir.fd(), &own, &head, ns).map_err(|(call, source)| descent.failed(call, UPPER, dir.layer, source))?;
    }
    futimens(dir.fd(), &times(&head.0)).map_err(|source| descent.failed("utimensat", UPPER, dir.layer, source))
}

fn attributes(descent: &Descent<()>, side: usize, xattrs: &mut Reader) -> Result<(Stat, Xattrs), DiffError> {
    let dir = &descent.frame().dirs[side][0];
    let stat = rustix::fs::fstat(dir.fd()).map_err(|source| descent.failed("fstat", side, dir.layer, source))?;
    let read = xattrs.read(dir.fd(), c".");
    Ok((stat, read.map_err(|source| descent.failed("listxattrat", side, dir.layer, source))?))
}

fn apply(
    dir: BorrowedFd<'_>,
    own: &(Stat, Xattrs),
    new: &(Stat, Xattrs),
    ns: Namespace,
) -> Result<(), (&'static str, Errno)> {
    for (name, _) in own.1.iter().filter(|(name, _)| new.1.binary_search_by(|(other, _)| other.cmp(name)).is_err()) {
        fremovexattr(dir, stored(name, ns)).map_err(|errno| ("fremovexattr", errno))?;
    }
    set_attributes(dir, &new.0, &new.1, ns)
}

/// Owner, then mode (which a change of owner may clear bits of), then extended attributes, of which an ACL may be one.
pub(crate) fn set_attributes(
    fd: BorrowedFd<'_>,
    stat: &Stat,
    xattrs: &Xattrs,
    ns: Namespace,
) -> Result<(), (&'static str, Errno)> {
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    fchown(fd, Some(uid), Some(gid)).map_err(|errno| ("fchown", errno))?;
    fchmod(fd, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(|errno| ("fchmod", errno))?;
    for (name, value) in xattrs {
        fsetxattr(fd, stored(name, ns), value, XattrFlags::empty()).map_err(|errno| ("fsetxattr", errno))?;
    }
    Ok(())
}

/// The name that a visible attribute is stored by in a layer: one like overlayfs's own is escaped.
pub(crate) fn stored(visible: &[u8], ns: Namespace) -> Vec<u8> {
    match visible.strip_prefix(ns.prefix()) {
        Some(rest) => [ns.prefix(), b"overlay.", rest].concat(),
        None => visible.to_vec(),
    }
}
