//! mount_setattr(2): the flags and the propagation of a mount that is there already.

use std::os::fd::{AsFd, AsRawFd};

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
    let attr_raw =
        libc::mount_attr { attr_set: attr.set, attr_clr: clear, propagation: attr.propagation, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: `attr_raw` has the size that is passed, the path is an empty NUL-terminated string, the descriptor is open.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr_raw,
            size_of::<libc::mount_attr>(),
        )
    };
    check(ret)
        .map(drop)
        .call("mount_setattr", || format!("set {:#x}, clear {clear:#x}, propagation {:#x}", attr.set, attr.propagation))
}
