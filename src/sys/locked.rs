//! Mounts of the host as a user namespace gets them.
//!
//! Whoever makes a mount namespace in a user namespace of his own has the mounts in it locked: he can't clear their flags, nor
//! unmount what covers something (mount_namespaces(7)). The kernel locks what it copies for him, and nothing that the host's root
//! mounts there later. So that is copied for somebody like him first.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::{Call, SysError, fsmount, mount, ns, process, socket};

/// Where the tree is put to be copied.
const NAME: &str = "tree";
/// A directory that is there wherever this runs.
const ANYWHERE: &str = "/proc";

/// A copy of the detached `tree`, detached as well: all flags that its mounts have stay, and so do the mounts below its root. It
/// has no peers: what was shared receives alone. The process must be single-threaded.
///
/// # Errors
/// What a call gives, in a child or in this process: `ENOSPC` where no user namespace may be made, `EPERM` without the right to.
pub fn copy(tree: BorrowedFd<'_>) -> Result<OwnedFd, SysError> {
    let (ours, theirs) = socket::pair()?;
    let (exit, text) = process::in_child(|channel| match copy_to(tree, theirs.as_fd()) {
        Ok(()) => 0,
        Err(err) => {
            let errno = err.errno().unwrap_or(libc::EIO);
            // Without a reader nobody is left to tell; the exit code still says that it failed.
            let _ = std::fs::File::from(channel).write_all(format!("{errno} {}({})", err.call, err.on).as_bytes());
            1
        }
    })?;
    if exit.exit_code() == 0 {
        return socket::receive_fd(ours.as_fd());
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let (errno, what) = text.split_once(' ').unwrap_or_default();
    let errno = errno.parse().map_or(Errno::CHILD, Errno::from_raw_os_error);
    Err(SysError::new("unshare", format!("to have a mount locked: {what}"), errno))
}

fn copy_to(tree: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<(), SysError> {
    let on = || NAME.to_owned();
    mount::unshare_private()?;
    let place = fsmount::detached("tmpfs", "", &[], MountAttrFlags::empty())?;
    let place = place.ok_or_else(|| SysError::new("fsmount", "tmpfs", Errno::INVAL))?;
    // Anywhere, but not on the root: who is not at his namespace's root makes no user namespace.
    mount::attach(place.as_fd(), mount::open_dir_path(Path::new(ANYWHERE))?.as_fd(), &ANYWHERE)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(tree).call("fstat", on)?.st_mode);
    if kind == FileType::Directory {
        rustix::fs::mkdirat(&place, NAME, Mode::RWXU).call("mkdirat", on)?;
    } else {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&place, NAME, flags, Mode::RUSR).map(drop).call("openat", on)?;
    }
    let target = mount::open_beneath(place.as_fd(), Path::new(NAME)).call("openat2", on)?;
    mount::attach(tree, target.as_fd(), &NAME)?;
    // A working directory goes along into the new namespace.
    rustix::process::fchdir(&place).call("fchdir", on)?;
    ns::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copied = rustix::fs::openat(CWD, NAME, flags, Mode::empty()).call("openat", on)?;
    let copy = mount::clone_tree(copied.as_fd(), true, &NAME)?;
    socket::send_fd(to, copy.as_fd(), b"m")
}
