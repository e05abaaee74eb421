//! Layers in a temporary directory, mounted as a real overlay to be changed and looked at. Needs root. The mounts are
//! detached, so they go with their descriptor.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use tempfile::TempDir;

use super::walk::{Tree, lines, truth, walk};
use crate::diff::{Diff, Namespace, Options, PatchLimits, View, compare, patch};

/// A container's root filesystem, with layers over it.
pub struct Lab {
    dir: TempDir,
    /// Oldest first.
    pub layers: Vec<PathBuf>,
    pub namespace: Namespace,
    /// More mount options.
    pub flags: Vec<(&'static str, &'static str)>,
}

/// A mounted overlay.
pub struct Mounted {
    fd: OwnedFd,
}

impl Mounted {
    /// A path that leads into the mount, for child processes too.
    pub fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Lab {
    /// `fill` makes the root filesystem.
    pub fn new(fill: impl FnOnce(&Path)) -> Lab {
        assert!(rustix::process::geteuid().is_root(), "these tests mount overlays: run them as root");
        let dir = tempfile::Builder::new().prefix("diff-").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("rootfs")).unwrap();
        fill(&dir.path().join("rootfs"));
        Lab { dir, layers: Vec::new(), namespace: Namespace::Trusted, flags: Vec::new() }
    }

    pub fn rootfs(&self) -> PathBuf {
        self.dir.path().join("rootfs")
    }

    /// A new empty directory beside the layers.
    pub fn scratch(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// Mounts `upper` (made if need be, with its work directory) over `lowers`, newest first.
    pub fn mount(&self, upper: &Path, lowers: &[PathBuf]) -> Mounted {
        let work = upper.with_extension("work");
        for dir in [upper, &work] {
            if !dir.exists() {
                std::fs::create_dir(dir).unwrap();
            }
        }
        if self.namespace == Namespace::User {
            // Else the removal of the last mount's work directory fails on its marks.
            std::fs::set_permissions(&work, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        }
        let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        for lower in lowers {
            fsconfig_set_string(fs.as_fd(), "lowerdir+", lower).unwrap();
        }
        fsconfig_set_string(fs.as_fd(), "upperdir", upper).unwrap();
        fsconfig_set_string(fs.as_fd(), "workdir", &work).unwrap();
        // The kernel takes no other value together with userxattr.
        let redirect = if self.namespace == Namespace::User { "nofollow" } else { "off" };
        for (key, value) in [("redirect_dir", redirect), ("metacopy", "off"), ("index", "off")] {
            fsconfig_set_string(fs.as_fd(), key, value).unwrap();
        }
        for (key, value) in &self.flags {
            fsconfig_set_string(fs.as_fd(), *key, *value).unwrap();
        }
        if self.namespace == Namespace::User {
            fsconfig_set_flag(fs.as_fd(), "userxattr").unwrap();
        }
        fsconfig_create(fs.as_fd()).unwrap();
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        Mounted { fd: fsmount(fs.as_fd(), flags, MountAttrFlags::empty()).unwrap() }
    }

    /// The lowers of a new layer, newest first.
    pub fn lowers(&self) -> Vec<PathBuf> {
        self.layers.iter().rev().cloned().chain([self.rootfs()]).collect()
    }

    /// Plays `change` on a new layer over all others; what was there before and after, as seen through the mount.
    pub fn exec(&mut self, change: impl FnOnce(&Path)) -> (Tree, Tree) {
        let upper = self.dir.path().join(format!("layer{}", self.layers.len()));
        std::fs::create_dir(&upper).unwrap();
        // As the runtime does: an overlay's root shows the upper's attributes.
        copy_root(&self.lowers()[0], &upper);
        let mounted = self.mount(&upper, &self.lowers());
        let root = mounted.root();
        let before = walk(&root);
        change(&root);
        let after = walk(&root);
        self.layers.push(upper);
        (before, after)
    }

    /// The tree that a stack shows, newest first.
    pub fn view(&self, stack: &[PathBuf]) -> Tree {
        let upper = self.scratch("view");
        copy_root(&stack[0], &upper);
        let tree = walk(&self.mount(&upper, stack).root());
        for dir in [upper.clone(), upper.with_extension("work")] {
            std::fs::remove_dir_all(dir).unwrap();
        }
        tree
    }

    pub fn options(&self) -> Options {
        Options { recursive: true, renames: false, namespace: self.namespace, ..Options::default() }
    }

    /// Compares the newest `count` layers with what is below them.
    pub fn diff(&self, count: usize, options: &Options) -> Diff {
        let stack = self.lowers();
        let fds = open_all(&stack);
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        compare(&fds[..count], &fds[count..], options).unwrap()
    }

    /// Plays `change`, and checks the diff of its layer against the truth.
    #[track_caller]
    pub fn check(&mut self, change: impl FnOnce(&Path)) -> Diff {
        let (before, after) = self.exec(change);
        let diff = self.diff(1, &self.options());
        assert_eq!(lines(&diff), truth(&before, &after));
        assert_eq!(diff.summary.changes(), diff.changes.len() as u64);
        diff
    }
}

/// Gives `to` the mode, owner and extended attributes (not an overlay's) of `from`.
pub fn copy_root(from: &Path, to: &Path) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let meta = std::fs::metadata(from).unwrap();
    chown(to, Some(meta.uid()), Some(meta.gid())).unwrap();
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(meta.mode() & 0o7777)).unwrap();
    for (name, value) in super::walk::walk_one(from).xattrs {
        rustix::fs::setxattr(to, &name[..], &value, rustix::fs::XattrFlags::empty()).unwrap();
    }
}

/// The directories, open.
pub fn open_all(paths: &[PathBuf]) -> Vec<File> {
    paths.iter().map(|path| File::open(path).unwrap()).collect()
}

/// The changes as a patch, whose owners are what `owners` makes of those of the layers.
pub fn patch_of<'a>(
    uppers: &[BorrowedFd<'_>],
    lowers: impl Into<View<'a>>,
    diff: &Diff,
    owners: &dyn Fn(u32, u32) -> (u32, u32),
) -> Vec<u8> {
    let mut text = Vec::new();
    let (namespace, limits) = (Namespace::Trusted, PatchLimits::default());
    patch(uppers, lowers, &diff.changes, namespace, &limits, owners, &mut text).unwrap();
    text
}
