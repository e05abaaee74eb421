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
/// The bits of a mount's access time field, of which one at most is set (`MOUNT_ATTR__ATIME`).
pub const ATIME: u64 = 0x70;

/// What the option `name` of mount(8) sets and clears of a mount's flags; none if it is no flag of a mount.
pub fn flags_of(name: &str) -> Option<(u64, u64)> {
    Some(match name {
        "ro" => (RDONLY, 0),
        "rw" => (0, RDONLY),
        "nosuid" => (NOSUID, 0),
        "suid" => (0, NOSUID),
        "nodev" => (NODEV, 0),
        "dev" => (0, NODEV),
        "noexec" => (NOEXEC, 0),
        "exec" => (0, NOEXEC),
        "noatime" => (libc::MOUNT_ATTR_NOATIME, ATIME),
        "strictatime" | "norelatime" => (libc::MOUNT_ATTR_STRICTATIME, ATIME),
        "atime" | "relatime" | "nostrictatime" => (0, ATIME),
        "nodiratime" => (libc::MOUNT_ATTR_NODIRATIME, 0),
        "diratime" => (0, libc::MOUNT_ATTR_NODIRATIME),
        "nosymfollow" => (libc::MOUNT_ATTR_NOSYMFOLLOW, 0),
        "symfollow" => (0, libc::MOUNT_ATTR_NOSYMFOLLOW),
        _ => return None,
    })
}

/// The propagation that the option `name` of mount(8) gives (see [`MountAttr`]), and whether to all below too; none if it is
/// another option.
pub fn propagation_of(name: &str) -> Option<(u64, bool)> {
    Some(match name {
        "private" => (libc::MS_PRIVATE, false),
        "rprivate" => (libc::MS_PRIVATE, true),
        "slave" => (libc::MS_SLAVE, false),
        "rslave" => (libc::MS_SLAVE, true),
        "shared" => (libc::MS_SHARED, false),
        "rshared" => (libc::MS_SHARED, true),
        "unbindable" => (libc::MS_UNBINDABLE, false),
        "runbindable" => (libc::MS_UNBINDABLE, true),
        _ => return None,
    })
}

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
