//! Extended attributes of a directory's entry, read without following it and without opening it.
//!
//! Linux 6.13 has `listxattrat` and `getxattrat`; before that the same is had, in one call too, through
//! `/proc/self/fd/DIRFD/NAME`, whose last component is not followed. Which of the two works is found by trying.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// The same number on every architecture (those introduced after Linux 5.0 are).
const SYS_GETXATTRAT: libc::c_long = 464;
/// See [`SYS_GETXATTRAT`].
const SYS_LISTXATTRAT: libc::c_long = 465;

/// Set once the kernel has answered ENOSYS (or a filter EPERM for a call it does not know).
static NO_XATTRAT: AtomicBool = AtomicBool::new(false);

/// `struct xattr_args` of `linux/xattr.h`.
#[repr(C)]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// Lists the attributes of `name` in `dir` (not followed) into `buf`: NUL-terminated names, their length returned.
///
/// # Errors
/// `ERANGE` where `buf` is too small; what listxattr(2) gives.
pub fn listxattr_at(dir: BorrowedFd<'_>, name: &CStr, buf: &mut [u8]) -> Result<usize, Errno> {
    if !NO_XATTRAT.load(Ordering::Relaxed) {
        // SAFETY: `name` is NUL-terminated and `buf` is writable for the length passed, both alive for the call,
        // which keeps neither; the descriptor is borrowed, so open.
        let got = unsafe {
            libc::syscall(
                SYS_LISTXATTRAT,
                dir.as_raw_fd(),
                name.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                buf.as_mut_ptr(),
                buf.len(),
            )
        };
        match usize::try_from(got) {
            Ok(len) => return Ok(len),
            Err(_) => match last_errno() {
                Errno::NOSYS | Errno::PERM => NO_XATTRAT.store(true, Ordering::Relaxed),
                errno => return Err(errno),
            },
        }
    }
    rustix::fs::llistxattr(proc_path(dir, name), buf)
}

/// Reads attribute `attr` of `name` in `dir` (not followed) into `buf`; its length is returned.
///
/// # Errors
/// `ENODATA` where there is none, `ERANGE` where `buf` is too small; what getxattr(2) gives.
pub fn getxattr_at(dir: BorrowedFd<'_>, name: &CStr, attr: &CStr, buf: &mut [u8]) -> Result<usize, Errno> {
    if !NO_XATTRAT.load(Ordering::Relaxed) {
        let args =
            XattrArgs { value: buf.as_mut_ptr() as u64, size: u32::try_from(buf.len()).unwrap_or(u32::MAX), flags: 0 };
        // SAFETY: both names are NUL-terminated; `args` has the size passed and points at `buf`, writable for
        // `args.size` (never above its length); all outlive the call, which keeps none of them.
        let got = unsafe {
            libc::syscall(
                SYS_GETXATTRAT,
                dir.as_raw_fd(),
                name.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                attr.as_ptr(),
                &raw const args,
                size_of::<XattrArgs>(),
            )
        };
        match usize::try_from(got) {
            Ok(len) => return Ok(len),
            Err(_) => match last_errno() {
                Errno::NOSYS | Errno::PERM => NO_XATTRAT.store(true, Ordering::Relaxed),
                errno => return Err(errno),
            },
        }
    }
    rustix::fs::lgetxattr(proc_path(dir, name), attr, buf)
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// `/proc/self/fd/DIRFD/NAME`: the link of the descriptor is followed, the entry is not by the `l*` calls.
pub fn proc_path(dir: BorrowedFd<'_>, name: &CStr) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn both_ways_read_the_link_and_not_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::File::create(&path).unwrap();
        std::os::unix::fs::symlink("f", dir.path().join("l")).unwrap();
        rustix::fs::setxattr(&path, "user.one", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        let mut buf = [0u8; 256];
        for old_kernel in [false, true] {
            NO_XATTRAT.store(old_kernel, Ordering::Relaxed);
            let n = listxattr_at(fd.as_fd(), c"f", &mut buf).unwrap();
            assert_eq!(&buf[..n], b"user.one\0");
            let n = getxattr_at(fd.as_fd(), c"f", c"user.one", &mut buf).unwrap();
            assert_eq!(&buf[..n], b"1");
            assert_eq!(listxattr_at(fd.as_fd(), c"l", &mut buf), Ok(0));
            assert_eq!(getxattr_at(fd.as_fd(), c"f", c"user.two", &mut buf), Err(Errno::NODATA));
            assert_eq!(listxattr_at(fd.as_fd(), c"f", &mut buf[..3]), Err(Errno::RANGE));
        }
        NO_XATTRAT.store(false, Ordering::Relaxed);
    }
}
