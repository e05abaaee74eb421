//! One exec's view: its own mount namespace, with the layered root in place of the container's and all of the
//! container's volumes, tmpfs and kernel filesystems moved over.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::{RootfsError, doing, gone};
use crate::sys::mountattr::{self, MountAttr};
use crate::sys::{mount, mountinfo, ns, proc};

/// What is put at a mount point of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submount {
    /// The container's own mount, with all below it.
    Clone(PathBuf),
    /// The exec's own overlay of a copy-on-write mount.
    Layered(PathBuf),
}

impl Submount {
    /// The mount point, as a path inside.
    pub fn at(&self) -> &Path {
        match self {
            Submount::Clone(at) | Submount::Layered(at) => at,
        }
    }
}

/// The mount points to be filled in a view of the process `pid`, in the order to fill them: those directly below the root,
/// in the order they were mounted, and those of `cows`, the container's copy-on-write mounts, with what is directly below
/// them.
///
/// Read from outside: once the supervisor's child has joined the container it has no entry in the container's `/proc`.
pub fn submounts(pid: i32, cows: &[PathBuf]) -> Result<Vec<Submount>, RootfsError> {
    let path = PathBuf::from(format!("/proc/{pid}/mountinfo"));
    let text = proc::read(&path).map_err(|source| RootfsError::MountInfo { path: path.clone(), source })?;
    let found = plan(&text, cows)
        .map_err(|line| RootfsError::MountInfoLine { path, line: String::from_utf8_lossy(line).into_owned() })?;
    match cows.iter().find(|cow| !found.iter().any(|s| matches!(s, Submount::Layered(at) if at == *cow))) {
        Some(cow) => Err(bad_point(cow, "the container has moved or unmounted its copy-on-write mount")),
        None => Ok(found),
    }
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
fn plan<'t>(text: &'t [u8], cows: &[PathBuf]) -> Result<Vec<Submount>, &'t [u8]> {
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
        mounts.push(Seen { id, parent, point });
    }
    let mut found = Vec::new();
    if let Some(root) = root {
        fill(&mounts, root, cows, true, &mut found);
    }
    Ok(found)
}

/// A mount of the list.
struct Seen {
    id: u64,
    parent: u64,
    point: PathBuf,
}

/// Adds what is to be put onto the mount `on` (a clone has it already unless `bare`).
fn fill(mounts: &[Seen], on: u64, cows: &[PathBuf], bare: bool, found: &mut Vec<Submount>) {
    for mount in mounts.iter().filter(|mount| mount.parent == on) {
        let again = |s: &Submount| matches!(s, Submount::Layered(at) if *at == mount.point);
        // What was mounted over one later hides it, as it does for the first process.
        let layered = cows.contains(&mount.point) && !found.iter().any(again);
        if layered {
            found.push(Submount::Layered(mount.point.clone()));
        } else if bare {
            found.push(Submount::Clone(mount.point.clone()));
        }
        if !cows.is_empty() {
            fill(mounts, mount.id, cows, layered, found);
        }
    }
}

/// Makes the view and enters it: afterwards this process's root and working directory are the layered root.
///
/// Runs in the child, which is in the container's namespaces already. `root` is a detached mount, and so are `layered`, the
/// exec's overlays of copy-on-write mounts with their places. With `read_only` the root can't be written afterwards.
pub fn enter(
    root: BorrowedFd<'_>,
    submounts: &[Submount],
    layered: &[(PathBuf, OwnedFd)],
    read_only: bool,
) -> Result<(), RootfsError> {
    let step = |what: &'static str| move || what.to_owned();
    doing(step("make the exec's mount namespace"), ns::unshare_mounts())?;
    let old = doing(step("open the container's root"), mount::root_dir())?;
    // Only the old root itself: the submounts stay members of their peer groups, so that a shared volume still is one.
    doing(step("detach the container's root from its peers"), mount::make_private("/", false))?;
    doing(step("attach the layered root"), mount::attach(root, old.as_fd(), &"/"))?;
    for submount in submounts {
        match submount {
            Submount::Clone(path) => move_over(old.as_fd(), root, path)?,
            Submount::Layered(path) => {
                let Some((_, overlay)) = layered.iter().find(|(at, _)| at == path) else { continue };
                let target = mount_point(root, path, true)?;
                doing(
                    || format!("put the layer of {} into the view", path.display()),
                    mount::attach(overlay.as_fd(), target.as_fd(), &path.display()),
                )?;
            }
        }
    }
    if read_only {
        let set = MountAttr { set: mountattr::RDONLY, propagation: 0 };
        doing(step("make the layered root read-only"), mountattr::set(root, set, false))?;
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
    let attach = |tree: &OwnedFd| mount::attach(tree.as_fd(), target.as_fd(), &path.display());
    let attached = match attach(&tree) {
        Err(err) if err.errno() == Some(libc::ENOENT) => attach(&gone::stand_in(source.as_fd(), old, path, &stat)?),
        attached => attached,
    };
    doing(|| format!("put the mount {} into the view", path.display()), attached)
}

/// The object below `root` that `path` is to be mounted on, made anew where a layer or the first process removed it.
/// No symbolic link is followed: what is below `root` is the container's to shape.
pub fn mount_point(root: BorrowedFd<'_>, path: &Path, directory: bool) -> Result<OwnedFd, RootfsError> {
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
        let got = plan(text, &[]).unwrap();
        assert_eq!(got, ["/proc", "/dev", "/a b\\c"].map(|at| Submount::Clone(at.into())));
        assert_eq!(roots(text), 2);
        assert_eq!(plan(b"junk\n", &[]).unwrap_err(), b"junk");
        assert!(plan(b"", &[]).unwrap().is_empty());
    }

    /// A volume in a copy-on-write mount is moved over on its own, one beside it is not; a copy-on-write mount in a volume
    /// goes onto the clone of the volume.
    #[test]
    fn copy_on_write_mounts_take_the_place_of_the_containers() {
        let text = b"10 1 0:50 / / rw - overlay overlay rw\n\
            11 10 0:51 / /work rw - overlay agentsbx rw\n\
            12 11 8:1 /c /work/cache rw - ext4 /dev/vda rw\n\
            13 12 0:60 / /work/cache/in rw - tmpfs tmpfs rw\n\
            14 10 8:1 /d /data rw - ext4 /dev/vda rw\n\
            15 14 0:52 / /data/x rw - overlay agentsbx rw\n\
            16 14 8:1 /e /data/y rw - ext4 /dev/vda rw\n\
            17 11 0:53 / /work/sub rw - overlay agentsbx rw\n\
            18 17 0:61 / /work/sub rw - tmpfs tmpfs rw\n";
        let cows = ["/data/x", "/work", "/work/sub"].map(PathBuf::from);
        let clone = |at: &str| Submount::Clone(at.into());
        let layered = |at: &str| Submount::Layered(at.into());
        let want = [
            layered("/work"),
            clone("/work/cache"),
            layered("/work/sub"),
            clone("/work/sub"),
            clone("/data"),
            layered("/data/x"),
        ];
        assert_eq!(plan(text, &cows).unwrap(), want);
    }
}
