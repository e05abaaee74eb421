//! Project quotas: a directory tree with a limit of its own on blocks and inodes, kept by the filesystem (ext4, XFS).
//!
//! A file belongs to a project by a number in its inode; a directory with `FS_XFLAG_PROJINHERIT` gives its own to what is
//! made in it. `ioctl_xfs_fsgetxattr(2)`, `quotactl(2)`; the structures are those of `<linux/fs.h>`, `<linux/quota.h>` and
//! `<linux/dqblk_xfs.h>`.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Call, SysError, check};

/// `_IOR('X', 31, struct fsxattr)`, `_IOW('X', 32, struct fsxattr)`.
const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801c_581f;
const FS_IOC_FSSETXATTR: libc::c_ulong = 0x401c_5820;
const FS_XFLAG_PROJINHERIT: u32 = 0x200;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    project: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// The same number on every architecture (those introduced after Linux 5.0 are).
const SYS_QUOTACTL_FD: libc::c_long = 443;
const PROJECT: u32 = 2;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
/// `XQM_CMD(8)`.
const Q_XGETQSTATV: u32 = (b'X' as u32) << 8 | 8;
/// Limits of projects are enforced, not only counted.
const FS_QUOTA_PDQ_ENFD: u16 = 1 << 5;
const QIF_LIMITS: u32 = 1 | 4;
/// The unit of limits on space, bytes.
const BLOCK: u64 = 1024;

/// `struct if_dqblk`.
#[repr(C)]
#[derive(Default)]
struct Dqblk {
    block_hard: u64,
    block_soft: u64,
    space: u64,
    inode_hard: u64,
    inode_soft: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

/// What a project takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

/// Makes the directory `dir` one of `project`, and with it all that is made in it from now on.
///
/// # Errors
/// `EOPNOTSUPP`, `ENOTTY` where the filesystem has no projects.
pub fn set_project(dir: BorrowedFd<'_>, project: u32) -> Result<(), SysError> {
    let on = || format!("fd {}", dir.as_raw_fd());
    let mut attr = FsXattr::default();
    // SAFETY: the kernel writes a struct fsxattr, whose layout the type has, to the place, which outlives the call.
    let got = unsafe { libc::ioctl(dir.as_raw_fd(), FS_IOC_FSGETXATTR as _, &raw mut attr) };
    check(got.into()).call("FS_IOC_FSGETXATTR", on)?;
    attr.project = project;
    attr.xflags |= FS_XFLAG_PROJINHERIT;
    // SAFETY: the kernel reads a struct fsxattr from the place, which outlives the call.
    let set = unsafe { libc::ioctl(dir.as_raw_fd(), FS_IOC_FSSETXATTR as _, &raw const attr) };
    check(set.into()).call("FS_IOC_FSSETXATTR", on).map(drop)
}

/// Calls `quotactl_fd` for project quotas.
///
/// # Safety
/// `at` must point to what `command` reads or writes.
unsafe fn quotactl(
    name: &'static str,
    fs: BorrowedFd<'_>,
    command: u32,
    project: u32,
    at: *mut libc::c_void,
) -> Result<(), SysError> {
    let command = command << 8 | PROJECT;
    // SAFETY: by this function's contract; the descriptor is borrowed, so open.
    let ret = unsafe { libc::syscall(SYS_QUOTACTL_FD, fs.as_raw_fd(), command, project, at) };
    check(ret).call("quotactl_fd", || format!("{name} of project {project}")).map(drop)
}

/// Whether the filesystem that `fs` is on holds projects to their limits.
///
/// # Errors
/// `ENOSYS` before Linux 5.14 or on a filesystem without quotas; `ESRCH` where they are off.
pub fn is_enforced(fs: BorrowedFd<'_>) -> Result<bool, SysError> {
    /// `struct fs_quota_statv`: its version, then flags; 160 bytes in all, here with some to spare.
    const WORDS: usize = 32;
    let mut state = [0u64; WORDS];
    // The version that is asked for, FS_QSTATV_VERSION1, is its first byte.
    state[0] = u64::from_ne_bytes([1, 0, 0, 0, 0, 0, 0, 0]);
    // SAFETY: the structure is 160 bytes of integers, for which there is room, aligned as its largest field.
    unsafe { quotactl("Q_XGETQSTATV", fs, Q_XGETQSTATV, 0, state.as_mut_ptr().cast()) }?;
    let [_, _, low, high, ..] = state[0].to_ne_bytes();
    Ok(u16::from_ne_bytes([low, high]) & FS_QUOTA_PDQ_ENFD != 0)
}

/// What `project` takes; nothing, if the filesystem has not heard of it.
pub fn usage(fs: BorrowedFd<'_>, project: u32) -> Result<Usage, SysError> {
    let mut block = MaybeUninit::<Dqblk>::zeroed();
    // SAFETY: the kernel writes a struct if_dqblk, whose layout the type has.
    match unsafe { quotactl("Q_GETQUOTA", fs, Q_GETQUOTA, project, block.as_mut_ptr().cast()) } {
        // XFS has no record of a project that never had a file.
        Err(err) if err.errno() == Some(libc::ENOENT) => Ok(Usage { bytes: 0, inodes: 0 }),
        Err(err) => Err(err),
        Ok(()) => {
            // SAFETY: all-zero is a value of the type, and the kernel has put others over it.
            let block = unsafe { block.assume_init() };
            Ok(Usage { bytes: block.space, inodes: block.inodes })
        }
    }
}

/// Sets the hard limits of `project`, bytes and inodes; 0 is none.
pub fn limit(fs: BorrowedFd<'_>, project: u32, bytes: u64, inodes: u64) -> Result<(), SysError> {
    let block_hard = bytes.div_ceil(BLOCK);
    let mut block = Dqblk { block_hard, inode_hard: inodes, valid: QIF_LIMITS, ..Dqblk::default() };
    // SAFETY: the kernel reads a struct if_dqblk, whose layout the type has.
    unsafe { quotactl("Q_SETQUOTA", fs, Q_SETQUOTA, project, (&raw mut block).cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<FsXattr>(), size_of::<Dqblk>()), (28, 72));
    }

    /// Nowhere is a project's limit held that does not exist: a tmpfs has none.
    #[test]
    fn a_filesystem_without_quotas_says_so() {
        let shm = std::fs::File::open("/dev/shm").unwrap();
        let err = is_enforced(shm.as_fd()).unwrap_err();
        assert!(matches!(err.errno(), Some(libc::ENOSYS | libc::ESRCH | libc::EINVAL)), "{err}");
        assert!(err.to_string().starts_with("quotactl_fd(Q_XGETQSTATV of project 0): "), "{err}");
    }
}
