//! Namespaces: which ones a process has, how ours differ, and joining them through its pidfd.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

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

/// Opens the namespace that `path` names, which must be of the kind `name` of [`KINDS`]. It does not wait for anything, whatever
/// is there.
///
/// # Errors
/// `EINVAL` for another file, or a namespace of another kind; what open(2) gives.
pub fn open(path: &Path, name: &str) -> Result<OwnedFd, SysError> {
    // On a device, opening alone may do something.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = rustix::fs::open(path, flags, Mode::empty()).call("open", || path.display().to_string())?;
    let wrong = || SysError::new("open", format!("{}: not a {name} namespace", path.display()), Errno::INVAL);
    let kind = rustix::fs::fstat(&place).map(|stat| FileType::from_raw_mode(stat.st_mode));
    if kind.call("fstat", || path.display().to_string())? != FileType::RegularFile {
        return Err(wrong());
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(super::mount::fd_path(place.as_fd()), flags, Mode::empty());
    let namespace = opened.call("open", || path.display().to_string())?;
    let wanted = KINDS.iter().find(|(known, _)| *known == name).map(|(_, flag)| *flag);
    if wanted.is_some() && kind_of(namespace.as_fd()) == wanted { Ok(namespace) } else { Err(wrong()) }
}

/// The kind of a namespace, as its clone flag (`NS_GET_NSTYPE` of ioctl_nsfs(2)); none where the descriptor is another file's.
fn kind_of(namespace: BorrowedFd<'_>) -> Option<i32> {
    /// `_IO(0xb7, 3)`.
    const NS_GET_NSTYPE: u32 = 0xb703;
    // SAFETY: this request takes no argument.
    let kind = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_NSTYPE as _) };
    (kind >= 0).then_some(kind)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `create` waited for ever at a fifo.
    #[test]
    fn only_a_namespace_of_its_kind_is_one() {
        for (name, _) in KINDS {
            match open(Path::new(&format!("/proc/self/ns/{name}")), name) {
                Err(err) => assert_eq!(err.errno(), Some(libc::ENOENT), "{err}"),
                Ok(namespace) => drop(namespace),
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let file = dir.path().join("file");
        std::fs::File::create(&file).unwrap();
        for path in [&fifo, &file, dir.path(), Path::new("/proc/self/ns/mnt"), Path::new("/dev/null")] {
            let err = open(path, "user").unwrap_err();
            assert_eq!(err.errno(), Some(libc::EINVAL), "{err}");
            assert!(err.to_string().contains(&format!("{}: not a user namespace", path.display())), "{err}");
        }
        let err = open(&dir.path().join("none"), "user").unwrap_err();
        assert_eq!(err.errno(), Some(libc::ENOENT), "{err}");
    }
}
