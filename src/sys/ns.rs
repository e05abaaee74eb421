//! Namespaces: which ones a process has, how ours differ, and joining them through its pidfd.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};

use super::{Call, SysError, check};

/// The kinds of namespace, with their names under `/proc/PID/ns` and their clone flags.
pub const KINDS: [(&str, i32); 8] = [
    ("user", libc::CLONE_NEWUSER),
    ("mnt", libc::CLONE_NEWNS),
    ("pid", libc::CLONE_NEWPID),
    ("net", libc::CLONE_NEWNET),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
    ("time", CLONE_NEWTIME),
];

/// `CLONE_NEWTIME` of `<linux/sched.h>`, which the libc crate does not name.
pub const CLONE_NEWTIME: i32 = 0x80;

/// The clone flags of the namespaces in which the process `pid` differs from this one. A kind that the kernel does not
/// have is left out.
pub fn differing(pid: i32) -> Result<i32, SysError> {
    let open = |path: String| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty()).call("open", || path)
    };
    let (ours, theirs) = (open("/proc/self/ns".into())?, open(format!("/proc/{pid}/ns"))?);
    let mut flags = 0;
    for (name, flag) in KINDS {
        let Some(our) = target(ours.as_fd(), name)? else { continue };
        match target(theirs.as_fd(), name)? {
            Some(their) if their != our => flags |= flag,
            _ => {}
        }
    }
    Ok(flags)
}

/// What the link of a namespace says: its kind and its inode's number, which no other has as long as it lives (proc(5)).
fn target(dir: BorrowedFd<'_>, name: &'static str) -> Result<Option<CString>, SysError> {
    match rustix::fs::readlinkat(dir, name, Vec::new()) {
        Ok(text) => Ok(Some(text)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(SysError::new("readlink", format!("{name} of /proc/PID/ns"), errno)),
    }
}

/// Joins the namespaces in `flags` of the process behind `pidfd`; the kernel takes the user namespace first.
pub fn join(pidfd: BorrowedFd<'_>, flags: i32) -> Result<(), SysError> {
    if flags == 0 {
        return Ok(());
    }
    // SAFETY: setns(2) takes two integers; the borrowed descriptor is open for the call.
    let ret = unsafe { libc::setns(pidfd.as_raw_fd(), flags) };
    check(ret.into()).map(drop).call("setns", || format!("the container's namespaces, flags {flags:#x}"))
}

/// Gives this thread, and with it a process that has no other, a mount namespace of its own, a copy of the one it is in. Its
/// current directory is its own from then on.
pub fn unshare_mounts() -> Result<(), SysError> {
    unshare(libc::CLONE_NEWNS)
}

/// Gives this thread namespaces of its own, of the kinds in `flags` ([`KINDS`]). For one of users the process must be
/// single-threaded; one of pids is for later children.
pub fn unshare(flags: i32) -> Result<(), SysError> {
    // SAFETY: unshare(2) takes an integer; it changes what this thread sees, and no other's.
    let ret = unsafe { libc::unshare(flags) };
    check(ret.into()).map(drop).call("unshare", || names(flags))
}

fn names(flags: i32) -> String {
    KINDS.iter().filter(|(_, flag)| flags & flag != 0).map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
