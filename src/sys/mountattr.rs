//! mount_setattr(2): the flags and the propagation of a mount that is there already.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::{Call, SysError, check};

/// Flags to set and the propagation to give; see mount_setattr(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MountAttr {
    /// `MOUNT_ATTR_*` bits to set.
    pub set: u64,
    /// `MS_SHARED`, `MS_SLAVE`, `MS_PRIVATE`, `MS_UNBINDABLE`, or 0 to leave it.
    pub propagation: u64,
}

/// Read-only.
pub const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
/// No setuid, no setgid, no file capabilities.
pub const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
/// No device files.
pub const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
/// No execution.
pub const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Applies `attr` to the mount whose root is `mount` (an `O_PATH` descriptor will do), and to all under it if
/// `recursive`.
pub fn set(mount: impl AsFd, attr: MountAttr, recursive: bool) -> Result<(), SysError> {
    change(mount, attr, 0, recursive)
}

/// As [`set`], after the flags `clear` have been taken away. They must have all bits of the access time field if `attr` has
/// one of them.
pub fn change(mount: impl AsFd, attr: MountAttr, clear: u64, recursive: bool) -> Result<(), SysError> {
    let raw = libc::mount_attr { attr_set: attr.set, attr_clr: clear, propagation: attr.propagation, userns_fd: 0 };
    let on = || format!("set {:#x}, clear {clear:#x}, propagation {:#x}", attr.set, attr.propagation);
    call(mount.as_fd(), &raw, recursive).call("mount_setattr", on)
}

/// Maps the ids of the mount whose root is `tree`, and of all under it if `recursive`: files of an id inside `userns` are seen
/// as belonging to what that id is outside it. The mount must not be attached anywhere yet.
///
/// # Errors
/// `EINVAL` where a file system of the tree cannot (overlayfs, most network and FUSE ones, others with older kernels), or the
/// mount is attached.
/// `EPERM` where the mount maps ids already, or the namespace has no ranges, or is the initial one.
pub fn map_ids(tree: impl AsFd, userns: BorrowedFd<'_>, recursive: bool) -> Result<(), SysError> {
    let raw = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: userns.as_raw_fd() as u64,
    };
    call(tree.as_fd(), &raw, recursive).call("mount_setattr", || "MOUNT_ATTR_IDMAP".into())
}

fn call(mount: BorrowedFd<'_>, attr: &libc::mount_attr, recursive: bool) -> Result<(), std::io::Error> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: `attr` has the size that is passed, the path is an empty NUL-terminated string, the descriptor is open.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<libc::mount_attr>(),
        )
    };
    check(ret).map(drop)
}
