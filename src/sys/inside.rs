//! Doing something in another process's mount namespace: a forked helper joins it, works, and reports how it went.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::process::in_child;

/// Runs `work` in the mount namespace of the process whose `/proc/PID` directory is `proc_dir`, in a child of ours.
///
/// `work` gets that process's root directory (`O_PATH`), which is not the namespace's where the process is in the host's and
/// has changed its root by chroot(2). Its error text (the first 4096 bytes) comes back as the
/// error. The caller must be single-threaded (see [`in_child`]).
pub fn in_mount_namespace(
    proc_dir: &OwnedFd,
    work: impl FnOnce(&OwnedFd) -> Result<(), String>,
) -> io::Result<Result<(), String>> {
    let ns = rustix::fs::openat(proc_dir, "ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(proc_dir, "root", flags, Mode::empty())?;
    let (exit, text) = in_child(|channel| {
        let joined = move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Mount));
        match joined.map_err(|errno| format!("join mount namespace: {errno}")).and_then(|()| work(&root)) {
            Ok(()) => 0,
            Err(text) => {
                // Without a reader nobody is left to tell; the exit code still says that it failed.
                let _ = std::fs::File::from(channel).write_all(text.as_bytes());
                1
            }
        }
    })?;
    Ok(match exit.exit_code() {
        0 => Ok(()),
        code if text.is_empty() => Err(format!("helper ended with {code}")),
        _ => Err(String::from_utf8_lossy(&text).into_owned()),
    })
}
