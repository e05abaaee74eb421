//! Doing something in another process's mount namespace: a forked helper joins it, works, and reports how it went.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::process::{Fork, exit_now, fork, wait};

/// Longest message that a helper can send back, in bytes.
const MESSAGE_MAX: u64 = 4096;

/// Runs `work` in the mount namespace of the process whose `/proc/PID` directory is `proc_dir`, in a child of ours.
///
/// `work` gets the root directory of that namespace (`O_PATH`). Its error text comes back as the error.
/// The caller must be single-threaded (see [`fork`]).
pub fn in_mount_namespace(
    proc_dir: &OwnedFd,
    work: impl FnOnce(&OwnedFd) -> Result<(), String>,
) -> io::Result<Result<(), String>> {
    let ns = rustix::fs::openat(proc_dir, "ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let child = || {
        let outcome = join(&ns).map_err(|err| format!("join mount namespace: {err}")).and_then(|root| work(&root));
        match outcome {
            Ok(()) => 0,
            Err(text) => {
                let bytes = &text.as_bytes()[..text.len().min(MESSAGE_MAX as usize)];
                // Without a reader nobody is left to tell; the exit code still says that it failed.
                let _ = std::fs::File::from(write.try_clone().unwrap_or_else(|_| exit_now(2))).write_all(bytes);
                1
            }
        }
    };
    let pid = match fork()? {
        Fork::Child => exit_now(child()),
        Fork::Parent(pid) => pid,
    };
    drop(write);
    let mut text = Vec::new();
    let read = std::fs::File::from(read).take(MESSAGE_MAX).read_to_end(&mut text);
    let exit = wait(pid, true)?;
    read?;
    Ok(match exit {
        Some(exit) if exit.code == Some(0) => Ok(()),
        other if text.is_empty() => Err(format!("helper ended with {}", other.map_or(255, |exit| exit.exit_code()))),
        _ => Err(String::from_utf8_lossy(&text).into_owned()),
    })
}

fn join(ns: impl AsFd) -> io::Result<OwnedFd> {
    move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Mount))?;
    Ok(rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
