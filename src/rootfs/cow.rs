//! Copy-on-write bind mounts: overlays of their own, whose changes lie in the exec's layer below the mount's path.
//!
//! What an exec sees at such a mount, the one that shows first in front: its own layer's `upper/DEST`; the same directory of
//! the committed layers that have it; what the first process wrote (a layer of the container's own); the host's directory.
//! All are named by the store or by the host, none through the container's mounts, which the container can move about.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Timestamps};
use rustix::io::Errno;

use super::{Lowers, Root, RootfsError, copy_attributes, doing, open_dir};
use crate::sys::mountattr::{self, MountAttr};
use crate::sys::process::{Fork, exit_now, fork, wait};
use crate::sys::{SysError, mount, socket};

/// A copy-on-write mount of a container, opened.
#[derive(Debug)]
pub struct Cow {
    /// Where it is, absolute inside the container.
    pub at: PathBuf,
    /// `MOUNT_ATTR_*` flags of the mount.
    pub flags: u64,
    first: (PathBuf, OwnedFd),
    source: (PathBuf, OwnedFd),
    /// The source without what the host mounts in it: an overlay shows none of that.
    plain: OwnedFd,
}

impl Cow {
    /// Opens what lies under all layers of the mount at `at`: `first`, the directory with the first process's changes, and
    /// `source`, the host's directory, which must still be the one of this device and inode.
    pub fn open(at: &Path, flags: u64, first: &Path, source: &Path, identity: (u64, u64)) -> Result<Cow, RootfsError> {
        let opened = open_source(at, source, identity)?;
        let first = (first.to_owned(), open_dir(first)?);
        let plain = without_mounts(opened.as_fd())?;
        Ok(Cow { at: at.to_owned(), flags, first, source: (source.to_owned(), opened), plain })
    }

    /// The host's directory.
    pub fn source(&self) -> BorrowedFd<'_> {
        self.source.1.as_fd()
    }

    /// Its path.
    pub fn source_path(&self) -> &Path {
        &self.source.0
    }

    /// What lies under the layers, the one that shows first in front, the plain tree last: as an exec sees it, without what
    /// the host mounts in it.
    pub fn base(&self) -> [BorrowedFd<'_>; 2] {
        [self.first.1.as_fd(), self.plain.as_fd()]
    }

    /// The directories that an exec sees here below its own layer. `layers` are the root's.
    fn lowers(&self, layers: &Lowers) -> Result<Lowers, RootfsError> {
        let fail = |errno| {
            let path = self.at.display().to_string();
            doing(|| "open a layer".to_owned(), Err(SysError::new("openat2", path, errno)))
        };
        let (mut paths, mut dirs) = (Vec::new(), Vec::new());
        for (path, dir) in layers.uppers() {
            if let Some(dir) = dir_beneath(dir, &self.at).or_else(fail)? {
                paths.push(path.join(relative(&self.at)));
                dirs.push(dir);
            }
        }
        for (path, dir) in [&self.first, &self.source] {
            paths.push(path.clone());
            dirs.push(reopen(dir.as_fd())?);
        }
        Ok(Lowers { paths, dirs })
    }
}

/// Opens a host's directory by a path that must have no symbolic link in it, so that it can't have been led elsewhere, and
/// makes sure that it is the one of this device and inode.
fn open_source(at: &Path, source: &Path, identity: (u64, u64)) -> Result<OwnedFd, RootfsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::io::retry_on_intr(|| {
        rustix::fs::openat2(rustix::fs::CWD, source, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
    });
    let what = || format!("open the host's directory of the copy-on-write mount {}", at.display());
    let fail = |call: &'static str| move |errno| SysError::new(call, source.display().to_string(), errno);
    let opened = doing(what, opened.map_err(fail("openat2")))?;
    let stat = doing(what, rustix::fs::fstat(&opened).map_err(fail("fstat")))?;
    if (stat.st_dev, stat.st_ino) == identity {
        return Ok(opened);
    }
    Err(RootfsError::SourceReplaced { at: at.to_owned(), host: source.to_owned() })
}

fn relative(path: &Path) -> &Path {
    let relative = path.strip_prefix("/").unwrap_or(path);
    if relative.as_os_str().is_empty() { Path::new(".") } else { relative }
}

fn reopen(dir: BorrowedFd<'_>) -> Result<OwnedFd, RootfsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(dir, ".", flags, Mode::empty());
    doing(|| "open a layer".to_owned(), opened.map_err(|e| SysError::new("openat", ".", e)))
}

/// The directory by a mount of its own, in which nothing else is mounted. Where what is mounted in it is locked (the runtime
/// is in a user namespace), the directory as it is.
fn without_mounts(dir: BorrowedFd<'_>) -> Result<OwnedFd, RootfsError> {
    let alone = mount::clone_tree(dir, false, &"a directory of the host");
    reopen(alone.as_ref().map_or(dir, AsFd::as_fd))
}

/// The directory `path` beneath `dir`, no symbolic link followed; `None` where there is none.
fn dir_beneath(dir: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(dir, relative(path), flags, Mode::empty(), how) {
            // A rename somewhere on the system made the kernel unsure; it asks to try again.
            Err(Errno::AGAIN) => {}
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            other => return other.map(Some),
        }
    }
}

/// An exec's overlay of one copy-on-write mount.
#[derive(Debug)]
pub struct Layered {
    /// Where it goes.
    pub at: PathBuf,
    root: Root,
    flags: u64,
}

impl Layered {
    /// The overlay, detached, with the flags of the mount; see [`Root::mounted`].
    pub fn mounted(self) -> Result<(PathBuf, OwnedFd), RootfsError> {
        let overlay = self.root.mounted()?;
        set_flags(&overlay, self.flags, &self.at)?;
        Ok((self.at, overlay))
    }
}

fn set_flags(overlay: &OwnedFd, flags: u64, at: &Path) -> Result<(), RootfsError> {
    if flags == 0 {
        return Ok(());
    }
    let set = mountattr::set(overlay, MountAttr { set: flags, propagation: 0 }, false);
    doing(|| format!("set the flags of the mount {}", at.display()), set)
}

/// Lays an exec's layer over each of `cows` (those above before those below). `upper` is the layer's, empty; `works` makes
/// the `n`th work directory. To be called before the root's overlay is mounted: the kernel warns of an upper directory that
/// lies in one that is in use, and not the other way round.
///
/// In `upper` the directories that lead to each mount are made, with the attributes of those that they cover: no change.
pub fn layered<E: From<RootfsError>>(
    cows: &[Cow],
    layers: &Lowers,
    upper: &Path,
    mut works: impl FnMut(usize) -> Result<PathBuf, E>,
) -> Result<Vec<Layered>, E> {
    if cows.is_empty() {
        return Ok(Vec::new());
    }
    let stacks = cows.iter().map(|cow| cow.lowers(layers)).collect::<Result<Vec<_>, _>>()?;
    let top = open_dir(upper)?;
    let mut uppers = Vec::new();
    let mut made = Vec::new();
    for cow in cows {
        let dir = lead_to(top.as_fd(), &cow.at, &mut made);
        uppers.push(doing(|| format!("make {} in the layer", cow.at.display()), dir)?);
    }
    // What is inside first: making an entry changes the times of the directory.
    for (path, dir) in made.iter().rev() {
        let nearest = cows.iter().zip(&stacks).rev().filter(|(cow, _)| path.starts_with(&cow.at));
        let nearest = nearest.max_by_key(|(cow, _)| cow.at.components().count());
        let (stack, inside) = match nearest {
            Some((cow, stack)) => (stack, path.strip_prefix(&cow.at).unwrap_or(Path::new(""))),
            None => (layers, path.as_path()),
        };
        let covered = stack.dirs.iter().find_map(|below| dir_beneath(below.as_fd(), inside).ok().flatten());
        let Some(covered) = covered else { continue };
        doing(|| format!("give {} in the layer its attributes", path.display()), take_over(&covered, dir))?;
    }
    // Those below first, for the kernel's sake as above.
    let mut layered = Vec::new();
    for (n, ((cow, stack), dir)) in cows.iter().zip(stacks).zip(uppers).enumerate().rev() {
        let work = works(n)?;
        let work_fd = open_dir(&work)?;
        let root = overlay(stack, dir.as_fd(), &upper.join(relative(&cow.at)), work_fd.as_fd(), &work)?;
        layered.push(Layered { at: cow.at.clone(), root, flags: cow.flags });
    }
    layered.reverse();
    Ok(layered)
}

fn overlay(
    lowers: Lowers,
    upper: BorrowedFd<'_>,
    upper_path: &Path,
    work: BorrowedFd<'_>,
    work_path: &Path,
) -> Result<Root, RootfsError> {
    let fds = lowers.fds();
    let parts = mount::Overlay { lowers: &fds, upper, work, userxattr: false };
    let mounted = doing(|| "mount a copy-on-write layer".into(), mount::overlay(&parts))?;
    Ok(mounted.map_or_else(|| lowers.planned(upper_path, work_path, false), Root::Mounted))
}

/// Makes the directories on the way to `at`, and `at`, in a layer that nobody else writes to. What was made is added to
/// `made`, what is above first.
fn lead_to(top: BorrowedFd<'_>, at: &Path, made: &mut Vec<(PathBuf, OwnedFd)>) -> Result<OwnedFd, SysError> {
    let fail = |call: &'static str| move |errno| SysError::new(call, at.display().to_string(), errno);
    let mut path = PathBuf::from("/");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut dir = rustix::fs::openat(top, ".", flags, Mode::empty()).map_err(fail("openat"))?;
    for name in relative(at) {
        path.push(name);
        let new = match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => false,
            other => other.map(|()| true).map_err(fail("mkdirat"))?,
        };
        dir = rustix::fs::openat(&dir, name, flags, Mode::empty()).map_err(fail("openat"))?;
        if new {
            let again = rustix::fs::openat(&dir, ".", flags, Mode::empty()).map_err(fail("openat"))?;
            made.push((path.clone(), again));
        }
    }
    Ok(dir)
}

/// Mode, owner, extended attributes and times, as a copy-up does.
fn take_over(from: &OwnedFd, to: &OwnedFd) -> Result<(), SysError> {
    copy_attributes(from.as_fd(), to.as_fd())?;
    let fail = |call: &'static str| move |errno| SysError::new(call, "a layer's directory", errno);
    let stat = rustix::fs::fstat(from).map_err(fail("fstat"))?;
    let time = |tv_sec, nsec: u64| rustix::fs::Timespec { tv_sec, tv_nsec: nsec as _ };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    rustix::fs::utimensat(to, c"", &times, AtFlags::EMPTY_PATH)
        .or_else(|_| rustix::fs::futimens(to, &times))
        .map_err(fail("utimensat"))
}

/// What the first process is to have copy on write.
#[derive(Debug, Clone, Copy)]
pub struct First<'a> {
    /// Where, inside the container.
    pub at: &'a Path,
    /// The host's directory.
    pub source: &'a Path,
    /// Its device and inode.
    pub identity: (u64, u64),
}

impl First<'_> {
    /// The first process's overlay, detached, with `flags`. `upper` and both `works` are empty directories of one of the
    /// store's layers.
    ///
    /// Later the directory `upper` is a lower one of execs' overlays, of which the kernel would warn each time, since it is
    /// in use as an upper one. It counts as in use for the overlay that took it first: that is one that goes at once.
    pub fn overlay(&self, upper: &Path, works: [&Path; 2], flags: u64) -> Result<OwnedFd, RootfsError> {
        let First { at, source, identity } = *self;
        let opened = open_source(at, source, identity)?;
        let upper_fd = open_dir(upper)?;
        doing(
            || format!("give the layer of {} its attributes", at.display()),
            copy_attributes(opened.as_fd(), upper_fd.as_fd()),
        )?;
        let mount = |work: &Path| -> Result<OwnedFd, RootfsError> {
            let lowers = Lowers { paths: vec![source.to_owned()], dirs: vec![reopen(opened.as_fd())?] };
            bring(overlay(lowers, upper_fd.as_fd(), upper, open_dir(work)?.as_fd(), work)?)
        };
        let taker = mount(works[0])?;
        let overlay = mount(works[1])?;
        drop(taker);
        set_flags(&overlay, flags, at)?;
        Ok(overlay)
    }
}

/// The overlay, for a process that is not about to leave its mount namespace: where it must be mounted in one of its own, a
/// child does it and hands it over. The caller must be single-threaded.
fn bring(root: Root) -> Result<OwnedFd, RootfsError> {
    if let Root::Mounted(overlay) = root {
        return Ok(overlay);
    }
    let what = || "mount a copy-on-write layer".to_owned();
    let (ours, theirs) = doing(what, socket::pair())?;
    match doing(what, fork())? {
        Fork::Child => {
            drop(ours);
            let sent = root
                .mounted()
                .map_err(|err| crate::error::chain(&err))
                .and_then(|fd| socket::send_fd(theirs.as_fd(), fd.as_fd(), b"+").map_err(|err| err.to_string()));
            exit_now(i32::from(sent.is_err()))
        }
        Fork::Parent(pid) => {
            drop(theirs);
            let overlay = socket::receive_fd(ours.as_fd());
            doing(what, wait(pid, true))?;
            doing(what, overlay)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dir: &OwnedFd, name: &str) -> Option<String> {
        let file = rustix::fs::openat(dir, name, OFlags::RDONLY, Mode::empty()).ok()?;
        std::io::read_to_string(std::fs::File::from(file)).ok()
    }

    fn write(dir: impl AsFd, name: &str, text: &str) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644)).unwrap();
        std::io::Write::write_all(&mut std::fs::File::from(file), text.as_bytes()).unwrap();
    }

    /// On a kernel that takes all layers in one string only, a child mounts and hands over.
    #[test]
    fn older_kernels_get_the_same_overlay() {
        assert!(rustix::process::geteuid().is_root(), "mounting needs root");
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let host = make("host");
        write(std::fs::File::open(&host).unwrap(), "one", "host");
        let lowers = Lowers { paths: vec![host.clone()], dirs: vec![open_dir(&host).unwrap()] };
        let overlay = bring(lowers.planned(&make("u"), &make("w"), false)).unwrap();
        assert_eq!(read(&overlay, "one").as_deref(), Some("host"));
        write(&overlay, "two", "first");
        assert_eq!(std::fs::read_to_string(dir.path().join("u/two")).unwrap(), "first");
        assert!(!host.join("two").exists());
        set_flags(&overlay, mountattr::RDONLY, Path::new("/work")).unwrap();
        rustix::fs::mkdirat(&overlay, "three", Mode::RWXU).unwrap_err();
    }

    /// The whole of it: the first process's overlay, an exec's over it and over a committed layer; nested mounts; the host's
    /// directories are never written, and the layer's directories that only lead there have the attributes of the others.
    #[test]
    fn writes_go_to_the_layer() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        assert!(rustix::process::geteuid().is_root(), "mounting needs root");
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let (host, inner, rootfs) = (make("host"), make("inner"), make("rootfs"));
        make("rootfs/a/work");
        make("host/sub");
        let chmod = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        chmod(&host, 0o1777);
        let top = std::fs::File::open(&host).unwrap();
        for name in ["one", "two", "three"] {
            write(&top, name, "host");
        }
        let identity = |path: &Path| {
            let meta = path.metadata().unwrap();
            (meta.dev(), meta.ino())
        };
        let first = First { at: Path::new("/a/work"), source: &host, identity: identity(&host) };
        let overlay = first.overlay(&make("fu"), [&make("fw0"), &make("fw1")], mountattr::NODEV).unwrap();
        assert_eq!(read(&overlay, "one").as_deref(), Some("host"));
        write(&overlay, "two", "first");
        let layer = make("layer/a/work");
        chmod(&layer, 0o1770);
        chmod(&dir.path().join("layer/a"), 0o2751);
        write(std::fs::File::open(layer).unwrap(), "three", "layer");

        let open = |at: &str, source: &Path| {
            Cow::open(Path::new(at), mountattr::NODEV, &make(&format!("first{}", at.len())), source, identity(source))
        };
        let outer = Cow::open(Path::new("/a/work"), 0, &dir.path().join("fu"), &host, identity(&host)).unwrap();
        let cows = [outer, open("/a/work/sub/x", &inner).unwrap()];
        let layers = Lowers::open(&[dir.path().join("layer")], &rootfs).unwrap();
        let upper = make("upper");
        let layered =
            layered::<RootfsError>(&cows, &layers, &upper, |n| Ok(make(&format!("work{n}")))).unwrap().into_iter();
        let mut mounted = layered.map(|one| one.mounted().unwrap());
        let (at, exec) = mounted.next().unwrap();
        assert_eq!(at, Path::new("/a/work"));
        assert_eq!(["one", "two", "three"].map(|name| read(&exec, name).unwrap()), ["host", "first", "layer"]);
        write(&exec, "new", "exec");
        assert_eq!(std::fs::read_to_string(upper.join("a/work/new")).unwrap(), "exec");
        assert_eq!(std::fs::read_dir(&host).unwrap().count(), 4);
        assert!(!host.join("new").exists() && !dir.path().join("fu/new").exists());
        let mode = |path: &str| upper.join(path).metadata().unwrap().mode() & 0o7777;
        assert_eq!((mode("a"), mode("a/work"), mode("a/work/sub")), (0o2751, 0o1770, 0o755));
        let (_, nested) = mounted.next().unwrap();
        write(&nested, "n", "exec");
        assert!(upper.join("a/work/sub/x/n").exists() && !inner.join("n").exists());
        assert!(mounted.next().is_none());

        let moved = dir.path().join("moved");
        crate::durable::rename(&host, &moved).unwrap();
        make("host");
        let err = open("/a/work", &host).map(drop);
        assert!(err.is_ok(), "another container may have it");
        let err = Cow::open(Path::new("/a/work"), 0, &moved, &host, identity(&moved)).unwrap_err();
        assert!(err.to_string().contains("is not the directory"), "{err}");
        std::fs::remove_dir(&host).unwrap();
        std::os::unix::fs::symlink(&moved, &host).unwrap();
        Cow::open(Path::new("/a/work"), 0, &moved, &host, identity(&moved)).unwrap_err();
    }
}
