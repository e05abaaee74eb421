//! Mounts that libcontainer does not get, put in their place before the container's root is entered, where createRuntime hooks
//! are run: so masked paths, the working directory and the program can lie on them, and later hooks see them. libcontainer has
//! mounted an empty placeholder at each.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::thread::{capabilities, set_capabilities, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

use crate::error::chain;
use crate::rootfs::cow::First;
use crate::rootfs::{RootfsError, view};
use crate::spec::normalise::clean_absolute;
use crate::spec::{Config, inroot};
use crate::sys::{inside, mount};

/// One mount to be put in place: plain data, which goes to the process that does it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// Where, absolute inside the container, without symbolic links.
    at: PathBuf,
    what: What,
    /// What is mounted below it, and is to be so again.
    again: Vec<PathBuf>,
    /// The first process's working directory, relative to it, if it is on it.
    cwd: Option<PathBuf>,
    /// Whose what is made in it is, if not root's: the host's user and group.
    owner: Option<(u32, u32)>,
}

/// What is put there.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum What {
    /// An overlay, to be made.
    Overlay {
        /// The host's directory.
        source: PathBuf,
        /// Its device and inode.
        identity: (u64, u64),
        /// `MOUNT_ATTR_*` flags of the mount.
        flags: u64,
        /// What the first process writes.
        upper: PathBuf,
        /// Overlayfs's own; see [`First::overlay`].
        works: [PathBuf; 2],
    },
    /// A detached mount: a descriptor of the process that makes the container, as a path in `/proc`.
    Tree(PathBuf),
}

impl Place {
    /// The place of `what` at `at`, which is the last mount there of the configuration that libcontainer gets. What is made
    /// in it is `owner`'s.
    pub(super) fn of(at: &Path, what: What, normalised: &Config, owner: Option<(u32, u32)>) -> Place {
        let mounts: Vec<PathBuf> = normalised.mounts().into_iter().map(|mount| mount.destination).collect();
        // What was mounted before it is hidden by it.
        let from = mounts.iter().rposition(|mount| mount == at).map_or(mounts.len(), |n| n + 1);
        let again = seen_below(&mounts[from..], at);
        let cwd = clean_absolute(Path::new(normalised.cwd()));
        let inside = cwd.strip_prefix(at).ok().filter(|_| !again.iter().any(|mount| cwd.starts_with(mount)));
        Place {
            at: at.to_owned(),
            what,
            cwd: inside.map(Path::to_owned),
            again,
            owner: owner.filter(|ids| *ids != (0, 0)),
        }
    }

    /// The mount, attached nowhere.
    fn tree(&self) -> Result<OwnedFd, String> {
        let at = self.at.display();
        match &self.what {
            What::Overlay { source, identity, flags, upper, works } => {
                let first = First { at: &self.at, source, identity: *identity };
                first
                    .overlay(upper, [&works[0], &works[1]], *flags)
                    .map_err(|err| format!("copy-on-write mount {at} of {}: {}", source.display(), chain(&err)))
            }
            What::Tree(path) => rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| format!("open the mount for {at}, {}: {errno}", path.display())),
        }
    }
}

/// Puts all in their places in the mount namespace of process `pid`, which has its mounts but has
/// not entered its root at `rootfs` yet. This process is the host's root, in the host's namespaces, and single-threaded.
///
/// What is below must come first ([`order`]): then all that leads to a place is libcontainer's placeholders yet, and not what
/// others can change meanwhile.
pub(super) fn put(places: &[Place], rootfs: &Path, pid: i32) -> Result<(), String> {
    let trees = places.iter().map(Place::tree).collect::<Result<Vec<_>, _>>()?;
    let path = format!("/proc/{pid}");
    let said = |err: std::io::Error| format!("enter the mount namespace of process {pid}: {err}");
    let dir = rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let dir = dir.map_err(|errno| said(errno.into()))?;
    inside::in_mount_namespace(&dir, |top| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let root = rustix::fs::openat2(top, rootfs, flags, Mode::empty(), resolve);
        let root = root.map_err(|errno| format!("open {}: {errno}", rootfs.display()))?;
        for (place, tree) in places.iter().zip(&trees) {
            exchange(
                &root,
                &place.at,
                tree,
                &place.again,
                Some(&|path: &Path, directory: bool| {
                    as_owner(place.owner, || mount_point(tree, path, directory))?
                        .map_err(|why| format!("mount on {}: {why}", place.at.join(path).display()))
                }),
            )?;
            if let Some(cwd) = &place.cwd {
                // What fails here shows as a failed chdir, with the text that callers know.
                let _ = as_owner(place.owner, || inroot::make_dirs(tree, cwd, 0o755, None))?;
            }
        }
        Ok(())
    })
    .map_err(said)?
}

/// Which of `mounts`, in the order in which they are made, are below `at` and to be seen there: what a later one covers can't
/// be found any more.
pub(super) fn seen_below(mounts: &[PathBuf], at: &Path) -> Vec<PathBuf> {
    let below = |mount: &Path| mount != at && mount.starts_with(at);
    let covered = |n: usize| mounts[n + 1..].iter().any(|later| below(later) && mounts[n].starts_with(later));
    let all = mounts.iter().enumerate().filter(|(n, mount)| below(mount) && !covered(*n));
    all.map(|(_, mount)| mount.clone()).collect()
}

/// In the order in which [`put`] takes them.
pub(super) fn order(places: &mut [Place]) {
    places.sort_by(|a, b| b.at.cmp(&a.at));
}

/// Does `work` as the host's user and group `owner`: a mount that maps ids, or a file system of a user namespace, takes no
/// files of an id that it does not know. Of root's capabilities none is lost. The process must be a single-threaded helper,
/// which goes no further after an error.
fn as_owner<T>(owner: Option<(u32, u32)>, work: impl FnOnce() -> T) -> Result<T, String> {
    let Some((uid, gid)) = owner else { return Ok(work()) };
    let (root_uid, root_gid) = (Uid::ROOT, Gid::ROOT);
    let said = |errno: Errno| format!("become user {uid} and group {gid} of the host: {errno}");
    let before = capabilities(None).map_err(said)?;
    set_thread_res_gid(root_gid, Gid::from_raw(gid), root_gid).map_err(said)?;
    set_thread_res_uid(root_uid, Uid::from_raw(uid), root_uid).map_err(said)?;
    set_capabilities(None, before).map_err(said)?;
    let done = work();
    set_thread_res_uid(root_uid, root_uid, root_uid).map_err(said)?;
    set_thread_res_gid(root_gid, root_gid, root_gid).map_err(said)?;
    Ok(done)
}

/// The object at `path` in the mount `tree`, made if there is none. What is in the tree was made by anybody: links are followed
/// as long as they stay in it.
fn mount_point(tree: &OwnedFd, path: &Path, directory: bool) -> Result<OwnedFd, String> {
    let remedy = "remove it there, or mount at another place";
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let open = || rustix::fs::openat2(tree, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    let found = match open() {
        Ok(found) => found,
        // A rename somewhere on the system made the kernel unsure (openat2(2)).
        Err(Errno::AGAIN) => return mount_point(tree, path, directory),
        Err(Errno::NOENT) => {
            return view::mount_point(tree.as_fd(), path, directory).map_err(|err| match err {
                RootfsError::MountPoint { reason, .. } => format!("{reason}: {remedy}"),
                err => chain(&err),
            });
        }
        Err(Errno::XDEV) => return Err(format!("a symbolic link leads out of the volume above: {remedy}")),
        Err(errno) => return Err(format!("{errno}: {remedy}")),
    };
    let stat = rustix::fs::fstat(&found).map_err(|errno| format!("stat: {errno}"))?;
    match (FileType::from_raw_mode(stat.st_mode) == FileType::Directory, directory) {
        (true, false) => Err(format!("a file is mounted there, but the volume above has a directory: {remedy}")),
        (false, true) => Err(format!("a directory is mounted there, but the volume above has no directory: {remedy}")),
        _ => Ok(found),
    }
}

/// Opens a mount point in a tree, given its path in the tree, and whether it is a directory; makes it if the tree lacks it. No
/// symbolic link may be followed out of the tree.
pub(super) type Make<'a> = &'a dyn Fn(&Path, bool) -> Result<OwnedFd, String>;

/// Puts `tree` at `at` below `root`, in the place of what is mounted there. What is mounted below, `again`, is mounted below
/// it again, where `make`, if there is one, says; else where the tree leads to.
pub(super) fn exchange(
    root: &OwnedFd,
    at: &Path,
    tree: &OwnedFd,
    again: &[PathBuf],
    make: Option<Make<'_>>,
) -> Result<(), String> {
    let mut kept = Vec::new();
    for at in again {
        let said = |err: std::io::Error| format!("clone {}: {err}", at.display());
        let place = open(root, at, OFlags::PATH).map_err(said)?;
        kept.push((at, mount::clone_tree(place.as_fd(), true, &at.display()).map_err(|err| said(err.into()))?));
    }
    // A mount that lies in another of them is a part of its clone.
    let inner = |path: &Path| again.iter().any(|other| path != other && path.starts_with(other));
    if make.is_some() {
        kept.retain(|(path, _)| !inner(path));
    }
    unmount(root, at).map_err(|err| match Errno::from_io_error(&err) {
        // It was mounted where the link led to.
        Some(Errno::INVAL) => format!(
            "mount on {0}: {0} is a symbolic link, or has just been exchanged, in what is mounted above it: remove it there, or \
             mount at another place",
            at.display()
        ),
        _ => format!("unmount {}: {err}", at.display()),
    })?;
    attach(root, tree, at)?;
    for (path, kept) in &kept {
        let Some(make) = make else {
            attach(root, kept, path)?;
            continue;
        };
        let stat = rustix::fs::fstat(kept).map_err(|err| format!("stat {}: {err}", path.display()))?;
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let place = make(path.strip_prefix(at).unwrap_or(path), directory)?;
        mount::attach(kept.as_fd(), place.as_fd(), &path.display())
            .map_err(|err| format!("mount on {}: {err}", path.display()))?;
    }
    Ok(())
}

/// Opens `path` below `root`, symbolic links resolved inside it.
pub(super) fn open(root: &OwnedFd, path: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
    inroot::open(root, path, flags)
}

/// Unmounts what is at `at`, by its name in the directory that it leads to: nothing on the way is followed out of the root.
fn unmount(root: &OwnedFd, at: &Path) -> std::io::Result<()> {
    let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
        return Err(Errno::INVAL.into());
    };
    // This is a helper process: its current directory is nobody else's.
    rustix::process::fchdir(open(root, parent, OFlags::PATH | OFlags::DIRECTORY)?)?;
    let off = rustix::mount::UnmountFlags::DETACH | rustix::mount::UnmountFlags::NOFOLLOW;
    Ok(rustix::mount::unmount(name, off)?)
}

fn attach(root: &OwnedFd, tree: &OwnedFd, at: &Path) -> Result<(), String> {
    open(root, at, OFlags::PATH)
        .and_then(|place| Ok(mount::attach(tree.as_fd(), place.as_fd(), &at.display())?))
        .map_err(|err| format!("mount on {}: {err}", at.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_goes_with_a_place() {
        let config = |cwd: &str| {
            let at = ["/v/early", "/v", "/v/a", "/v/a/b", "/other", "/w"].map(|at| json!({"destination": at}));
            Config::from_value(json!({"process": {"cwd": cwd}, "mounts": at}))
        };
        for (cwd, inside) in [("/v/x/y", Some("x/y")), ("/v", Some("")), ("/v/a/c", None), ("/w", None)] {
            let place = Place::of(Path::new("/v"), What::Tree("/t".into()), &config(cwd), Some((7, 8)));
            assert_eq!(place.again, ["/v/a", "/v/a/b"].map(PathBuf::from));
            assert_eq!(place.cwd.as_deref(), inside.map(Path::new), "{cwd}");
            assert_eq!(place.owner, Some((7, 8)));
        }
        let of = |at: &str| Place::of(Path::new(at), What::Tree("/t".into()), &config("/"), Some((0, 0)));
        assert_eq!((of("/w").again.len(), of("/w").owner), (0, None));
        let mut places = ["/v", "/w", "/v/a", "/v-b"].map(of);
        order(&mut places);
        let index = |at: &str| places.iter().position(|place| place.at == Path::new(at)).unwrap();
        assert!(index("/v/a") < index("/v"));
    }

    /// A container with one that was hidden was not made: its place could not be found.
    #[test]
    fn what_is_covered_is_not_mounted_again() {
        let all =
            ["/v/early", "/v/a/b", "/v/a", "/v/a/c", "/v/twice", "/v", "/v/twice", "/v-b", "/w"].map(PathBuf::from);
        let want = ["/v/early", "/v/a", "/v/a/c", "/v/twice"].map(PathBuf::from);
        assert_eq!(seen_below(&all, Path::new("/v")), want);
        assert_eq!(seen_below(&all[3..], Path::new("/v/a")), ["/v/a/c"].map(PathBuf::from));
    }

    #[test]
    fn links_are_followed_in_the_volume_alone() {
        use std::os::unix::fs::{MetadataExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("tree/real/deep")).unwrap();
        std::fs::File::create(at("tree/file")).unwrap();
        let outside = at("outside");
        std::fs::create_dir(&outside).unwrap();
        for (name, to) in [
            ("near", "real"),
            ("up", "../outside"),
            ("far", outside.to_str().unwrap()),
            ("loop", "loop"),
            ("new", "none"),
        ] {
            symlink(to, at("tree").join(name)).unwrap();
        }
        let tree = inroot::open_root(&at("tree")).unwrap();
        let found = |path: &str, directory: bool| {
            mount_point(&tree, Path::new(path), directory).map(|fd| rustix::fs::fstat(fd).unwrap().st_ino)
        };
        let inode = |name: &str| at("tree").join(name).metadata().unwrap().ino();
        assert_eq!(found("near/deep", true), Ok(inode("real/deep")));
        assert_eq!(found("near", true), Ok(inode("real")));
        let made = found("made/file", false);
        assert_eq!(made, Ok(inode("made/file")));
        for (path, directory, words) in [
            ("up", true, "leads out of the volume"),
            ("far", true, "leads out of the volume"),
            ("far/made", true, "leads out of the volume"),
            ("loop", true, "symbolic links"),
            ("new", true, "symbolic links"),
            ("file", true, "has no directory"),
            ("file/below", true, "directory"),
            ("real", false, "has a directory"),
        ] {
            let why = found(path, directory).unwrap_err();
            assert!(why.contains(words) && why.contains("mount at another place"), "{path}: {why}");
        }
        assert_eq!(outside.read_dir().unwrap().count(), 0);
    }

    #[test]
    fn what_is_made_has_its_owner() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root becomes another user");
            return;
        }
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let at = dir.path().join("made");
        // In a child, since a thread's identity is all that is changed.
        std::thread::scope(|scope| {
            scope.spawn(|| as_owner(Some((54_321, 54_322)), || std::fs::create_dir(&at)).unwrap().unwrap());
        });
        let meta = at.metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), (54_321, 54_322));
    }
}
