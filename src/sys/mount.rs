//! Mounts by the new mount API: built detached, moved into place when they are right.

use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use super::mountattr::{self, MountAttr};
use super::{Call, SysError};

/// Opens `path` as a directory descriptor without the right to read it (`O_PATH`).
pub fn open_dir_path(path: &Path) -> Result<OwnedFd, SysError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .call("open", || path.display().to_string())
}

/// A path that names an open descriptor, for calls that only take paths.
pub fn fd_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// What an overlay is made of. `lowers` is newest first; none of the directories needs a path in this namespace.
pub struct Overlay<'a> {
    /// The read-only layers, the one that shows first in front.
    pub lowers: &'a [BorrowedFd<'a>],
    /// Where writes go.
    pub upper: BorrowedFd<'a>,
    /// An empty directory on the upper's filesystem.
    pub work: BorrowedFd<'a>,
    /// Store overlayfs's own attributes as `user.overlay.*` (an unprivileged runtime).
    pub userxattr: bool,
}

/// Mounts an overlay that is attached nowhere yet. It goes away with the descriptor unless it is moved.
///
/// Every option that distributions set differently by default is pinned.
pub fn overlay(parts: &Overlay<'_>) -> Result<OwnedFd, SysError> {
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).call("fsopen", || "overlay".into())?;
    let set = |key: &'static str, value: &str| {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)
            .call("fsconfig", || format!("overlay {key}={value}"))
    };
    // The name shows in /proc/self/mountinfo of the command.
    set("source", "agentsbx")?;
    set_lowers(context.as_fd(), parts.lowers)?;
    set("upperdir", &fd_path(parts.upper))?;
    set("workdir", &fd_path(parts.work))?;
    for (key, value) in [("redirect_dir", "off"), ("metacopy", "off"), ("index", "off")] {
        set(key, value)?;
    }
    if parts.userxattr {
        rustix::mount::fsconfig_set_flag(context.as_fd(), "userxattr")
            .call("fsconfig", || "overlay userxattr".into())?;
    }
    rustix::mount::fsconfig_create(context.as_fd()).call("fsconfig", || {
        format!("overlay create, {} lower layers{}", parts.lowers.len(), kernel_log(context.as_fd()))
    })?;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        .call("fsmount", || "overlay".into())
}

/// `lowerdir+` takes one layer a call (Linux 6.7); before, all go in one option of at most a page.
fn set_lowers(context: BorrowedFd<'_>, lowers: &[BorrowedFd<'_>]) -> Result<(), SysError> {
    for (n, lower) in lowers.iter().enumerate() {
        let path = fd_path(*lower);
        match rustix::mount::fsconfig_set_string(context, "lowerdir+", &path) {
            Ok(()) => {}
            Err(rustix::io::Errno::INVAL) if n == 0 => {
                let all = lowers.iter().map(|fd| fd_path(*fd)).collect::<Vec<_>>().join(":");
                return rustix::mount::fsconfig_set_string(context, "lowerdir", &all)
                    .call("fsconfig", || format!("overlay lowerdir of {} layers", lowers.len()));
            }
            Err(errno) => return Err(SysError::new("fsconfig", format!("overlay lowerdir+={path}"), errno)),
        }
    }
    Ok(())
}

/// What the kernel says about a failed mount, read from the filesystem context.
fn kernel_log(context: BorrowedFd<'_>) -> String {
    let mut text = String::new();
    let mut buffer = [0u8; 512];
    while let Ok(n) = rustix::io::read(context, &mut buffer) {
        if n == 0 {
            break;
        }
        text.push_str("; ");
        text.push_str(String::from_utf8_lossy(&buffer[..n]).trim_end());
    }
    text
}

/// A detached copy of the mount tree at `fd` (the mount itself and, if `recursive`, all below it).
pub fn clone_tree(fd: BorrowedFd<'_>, recursive: bool, on: &dyn Display) -> Result<OwnedFd, SysError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(fd, "", flags).call("open_tree", || on.to_string())
}

/// Attaches the detached mount `from` at the object that `to` stands for.
pub fn attach(from: BorrowedFd<'_>, to: BorrowedFd<'_>, on: &dyn Display) -> Result<(), SysError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(from, "", to, "", flags).call("move_mount", || on.to_string())
}

/// Opens what `path` names beneath `root`, following no symbolic link and leaving no mount behind (`O_PATH`).
pub fn open_beneath(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, rustix::io::Errno> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(root, relative, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how) {
            // A rename somewhere on the system made the kernel unsure; it asks to try again.
            Err(rustix::io::Errno::AGAIN) => continue,
            other => return other,
        }
    }
}

/// Stops mount events from leaving or reaching the mount at `path` (with `recursive`, those below it too).
pub fn make_private(path: &str, recursive: bool) -> Result<(), SysError> {
    let mut flags = MountPropagationFlags::PRIVATE;
    if recursive {
        flags |= MountPropagationFlags::REC;
    }
    rustix::mount::mount_change(path, flags).call("mount", || format!("{path}, private"))
}

/// Makes `new_root` (an attached mount) the root of this mount namespace and lazily unmounts the old one.
///
/// The old tree is made private first, so that its unmounting reaches no peer.
pub fn pivot_into(new_root: BorrowedFd<'_>) -> Result<(), SysError> {
    rustix::process::fchdir(new_root).call("fchdir", || "new root".into())?;
    rustix::process::pivot_root(".", ".").call("pivot_root", || "., .".into())?;
    // The old root is now mounted over the new one at "/", and the working directory is still the new one below it.
    make_private("/", true)?;
    rustix::mount::unmount("/", UnmountFlags::DETACH).call("umount2", || "old root".into())?;
    rustix::process::chdir("/").call("chdir", || "/".into())
}

/// A detached, read-only copy of the mount of one file.
pub fn read_only_file(fd: BorrowedFd<'_>) -> Result<OwnedFd, SysError> {
    let tree = clone_tree(fd, false, &"a file")?;
    let read_only = MountAttr { set: mountattr::RDONLY, propagation: 0 };
    mountattr::set(&tree, read_only, false)?;
    Ok(tree)
}

/// Whether the mount that `fd` lies on is read-only.
pub fn is_read_only(fd: BorrowedFd<'_>) -> Result<bool, SysError> {
    let stat = rustix::fs::fstatvfs(fd).call("fstatvfs", || fd_path(fd))?;
    Ok(stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// The root directory of this process as a descriptor.
pub fn root_dir() -> Result<OwnedFd, SysError> {
    rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .call("open", || "/".into())
}
