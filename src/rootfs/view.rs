//! One exec's view: its own mount namespace, with the layered root in place of the container's and all of the
//! container's volumes, tmpfs and kernel filesystems moved over.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::{RootfsError, doing};
use crate::sys::{mount, mountinfo, ns, proc};

/// The mount points directly below the root of the process `pid`, in the order they were mounted, as paths inside.
///
/// Read from outside: once the supervisor's child has joined the container it has no entry in the container's `/proc`.
pub fn submounts(pid: i32) -> Result<Vec<PathBuf>, RootfsError> {
    let path = PathBuf::from(format!("/proc/{pid}/mountinfo"));
    let text = proc::read(&path).map_err(|source| RootfsError::MountInfo { path: path.clone(), source })?;
    direct_children(&text)
        .map_err(|line| RootfsError::MountInfoLine { path, line: String::from_utf8_lossy(line).into_owned() })
}

/// Whether something is mounted over the root of the process `pid`. It would not see that, but who joins its mount
/// namespace would see nothing else.
pub fn root_is_covered(pid: i32) -> Result<bool, RootfsError> {
    let path = PathBuf::from(format!("/proc/{pid}/mountinfo"));
    let text = proc::read(&path).map_err(|source| RootfsError::MountInfo { path, source })?;
    Ok(roots(&text) > 1)
}

/// How many mounts have the root as their mount point: the fifth field.
fn roots(text: &[u8]) -> usize {
    text.split(|b| *b == b'\n').filter(|line| line.split(|b| *b == b' ').nth(4) == Some(b"/")).count()
}

/// Parses mountinfo (proc(5)): fields are mount id, parent id, major:minor, root, mount point, …
fn direct_children(text: &[u8]) -> Result<Vec<PathBuf>, &[u8]> {
    let mut root = None;
    let mut mounts = Vec::new();
    for line in text.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        let mut fields = line.split(|b| *b == b' ');
        let number = |field: Option<&[u8]>| std::str::from_utf8(field?).ok()?.parse::<u64>().ok();
        let (Some(id), Some(parent), Some(point)) = (number(fields.next()), number(fields.next()), fields.nth(2))
        else {
            return Err(line);
        };
        let point = mountinfo::unescape(point);
        if point == Path::new("/") {
            // The first is the process's root; later ones are mounted over it, where the process does not look.
            root.get_or_insert(id);
            continue;
        }
        mounts.push((parent, point));
    }
    let inside = mounts.into_iter().filter(|(parent, _)| Some(*parent) == root);
    Ok(inside.map(|(_, point)| point).collect())
}

/// Makes the view and enters it: afterwards this process's root and working directory are the layered root.
///
/// Runs in the child, which is in the container's namespaces already. `root` is a detached mount.
pub fn enter(root: BorrowedFd<'_>, submounts: &[PathBuf]) -> Result<(), RootfsError> {
    let step = |what: &'static str| move || what.to_owned();
    doing(step("make the exec's mount namespace"), ns::unshare_mounts())?;
    let old = doing(step("open the container's root"), mount::root_dir())?;
    // Only the old root itself: the submounts stay members of their peer groups, so that a shared volume still is one.
    doing(step("detach the container's root from its peers"), mount::make_private("/", false))?;
    doing(step("attach the layered root"), mount::attach(root, old.as_fd(), &"/"))?;
    for path in submounts {
        move_over(old.as_fd(), root, path)?;
    }
    doing(step("change to the layered root"), mount::pivot_into(root))
}

fn move_over(old: BorrowedFd<'_>, root: BorrowedFd<'_>, path: &Path) -> Result<(), RootfsError> {
    let source = match mount::open_beneath(old, path) {
        Ok(fd) => fd,
        // Unmounted, or hidden by a later mount, since the list was read.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(()),
        Err(errno) => return Err(bad_point(path, &format!("open it in the container: {errno}"))),
    };
    let stat = rustix::fs::fstat(&source).map_err(|errno| bad_point(path, &format!("stat: {errno}")))?;
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let target = mount_point(root, path, directory)?;
    let tree = doing(
        || format!("copy the mount {}", path.display()),
        mount::clone_tree(source.as_fd(), true, &path.display()),
    )?;
    doing(
        || format!("put the mount {} into the view", path.display()),
        mount::attach(tree.as_fd(), target.as_fd(), &path.display()),
    )
}

/// The object in the layered root that `path` is mounted on, made anew where a layer or the first process removed it.
/// No symbolic link is followed: what is below `root` is the container's to shape.
fn mount_point(root: BorrowedFd<'_>, path: &Path, directory: bool) -> Result<OwnedFd, RootfsError> {
    let opened = match mount::open_beneath(root, path) {
        Err(rustix::io::Errno::NOENT) => make_mount_point(root, path, directory)?,
        Err(errno) => return Err(bad_point(path, &errno.to_string())),
        Ok(fd) => fd,
    };
    let stat = rustix::fs::fstat(&opened).map_err(|errno| bad_point(path, &format!("stat: {errno}")))?;
    if (FileType::from_raw_mode(stat.st_mode) == FileType::Directory) != directory {
        let (want, have) = if directory { ("a directory", "no directory") } else { ("a file", "a directory") };
        return Err(bad_point(path, &format!("{want} is mounted there, but the layer has {have}")));
    }
    Ok(opened)
}

fn make_mount_point(root: BorrowedFd<'_>, path: &Path, directory: bool) -> Result<OwnedFd, RootfsError> {
    let fail = |errno: rustix::io::Errno| bad_point(path, &format!("make it: {errno}"));
    let names: Vec<_> =
        path.components().filter_map(|c| if let Component::Normal(n) = c { Some(n) } else { None }).collect();
    let mut at = mount::open_beneath(root, Path::new("/")).map_err(fail)?;
    for (n, name) in names.iter().enumerate() {
        let last = n + 1 == names.len();
        let made = if last && !directory {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&at, *name, flags, Mode::from_raw_mode(0o644)).map(drop)
        } else {
            rustix::fs::mkdirat(&at, *name, Mode::from_raw_mode(0o755))
        };
        if let Err(errno) = made
            && errno != rustix::io::Errno::EXIST
        {
            return Err(fail(errno));
        }
        at = mount::open_beneath(at.as_fd(), Path::new(name)).map_err(fail)?;
    }
    Ok(at)
}

fn bad_point(path: &Path, reason: &str) -> RootfsError {
    RootfsError::MountPoint { path: path.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_on_the_root_mount_are_direct() {
        let text = b"610 500 0:50 / / rw,relatime master:1 - overlay overlay rw\n\
            611 610 0:51 / /proc rw - proc proc rw\n\
            612 610 0:52 / /dev rw - tmpfs tmpfs rw\n\
            613 612 0:53 / /dev/pts rw - devpts devpts rw\n\
            614 611 0:51 /sys /proc/sys ro - proc proc rw\n\
            615 610 8:1 /x /a\\040b\\134c rw - ext4 /dev/vda rw\n\
            616 610 0:60 / / rw - tmpfs tmpfs rw\n";
        let got = direct_children(text).unwrap();
        assert_eq!(got, [PathBuf::from("/proc"), PathBuf::from("/dev"), PathBuf::from("/a b\\c")]);
        assert_eq!(roots(text), 2);
        assert_eq!(direct_children(b"junk\n").unwrap_err(), b"junk");
        assert!(direct_children(b"").unwrap().is_empty());
    }
}
