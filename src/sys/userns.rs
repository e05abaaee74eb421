//! The ranges of ids of user namespaces: those of one that is there, and a namespace of given ones that no process is in, from
//! which the kernel takes them for a mount that maps ids.
//!
//! Such a namespace is made together with a process. That one is a copy of the caller which only waits, and it is gone when the
//! namespace's descriptor is there. The caller may have threads, and wait for children of its own elsewhere: the copy runs
//! nothing but system calls, tells nobody of its end, and is seen by no wait(2) that does not ask for such children.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::process::{self, Fork};
use super::{Call, SysError, check};

/// `CLONE_CLEAR_SIGHAND` of `<linux/sched.h>`; the binding's constant is too narrow for it.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// How many ranges the text of an error shows.
const SHOWN: usize = 8;

/// A range of ids of a user namespace; see user_namespaces(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// Its first id in the namespace.
    pub inside: u32,
    /// What that one is in the caller's namespace.
    pub outside: u32,
    /// How many there are.
    pub size: u32,
}

impl std::fmt::Display for IdRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.inside, self.outside, self.size)
    }
}

/// A new user namespace with these ranges of users and groups. It lives as long as the descriptor, or what is made of it.
///
/// # Errors
/// Ranges that the kernel refuses (none, overlapping ones, more than fit into a page) are in the text: `EINVAL`. `EPERM` where
/// the caller may not give all of the ids away. `ENOSPC` where no more namespaces may be made
/// (`/proc/sys/user/max_user_namespaces`).
pub fn with_maps(uids: &[IdRange], gids: &[IdRange]) -> Result<OwnedFd, SysError> {
    let sleeper = Sleeper::start()?;
    sleeper.map("uid_map", uids)?;
    sleeper.map("gid_map", gids)?;
    let path = format!("/proc/{}/ns/user", sleeper.pid);
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .call("open", || "a new user namespace".into())
}

/// The ranges of users and of groups of a namespace, `outside` as this process sees them. The process must be
/// single-threaded: a child of its own enters the namespace, where `/proc` shows them of it.
///
/// # Errors
/// `EINVAL` where it is the caller's own; `EPERM` where it may not be entered; what the calls give.
pub fn maps_of(namespace: BorrowedFd<'_>) -> Result<[Vec<IdRange>; 2], SysError> {
    let (mut ours, mut theirs) = UnixStream::pair().call("socketpair", || "for a user namespace".into())?;
    let pid = match process::fork()? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            drop(ours);
            let entered = move_into_link_name_space(namespace, Some(LinkNameSpaceType::User));
            let answer = entered.err().map_or(0, Errno::raw_os_error);
            // It is looked at until the other end is closed.
            let _ = theirs.write_all(&answer.to_ne_bytes()).and_then(|()| theirs.read(&mut [0]));
            process::exit_now(0)
        }
    };
    drop(theirs);
    let mut answer = [0; 4];
    let told = ours.read_exact(&mut answer).call("read", || "what a child says of a user namespace".into());
    let maps = told.and_then(|()| match i32::from_ne_bytes(answer) {
        0 => Ok([ranges_of(pid, "uid_map")?, ranges_of(pid, "gid_map")?]),
        errno => Err(SysError::new("setns", "a user namespace", Errno::from_raw_os_error(errno))),
    });
    drop(ours);
    process::wait(pid, true)?;
    maps
}

fn ranges_of(pid: i32, name: &str) -> Result<Vec<IdRange>, SysError> {
    let path = format!("/proc/{pid}/{name}");
    let text = std::fs::read_to_string(&path).call("read", || path.clone())?;
    let range = |line: &str| {
        let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(IdRange { inside: next()?, outside: next()?, size: next()? })
    };
    let ranges: Option<Vec<IdRange>> = text.lines().map(range).collect();
    ranges.ok_or_else(|| SysError::new("read", format!("{path}: {text:?}"), Errno::INVAL))
}

/// A process in a new user namespace; it ends with this value.
struct Sleeper {
    pid: libc::pid_t,
    pidfd: OwnedFd,
}

impl Sleeper {
    fn start() -> Result<Sleeper, SysError> {
        let mut pidfd: libc::c_int = -1;
        // SAFETY: clone_args is plain data for which all-zero is a value.
        let mut args = unsafe { std::mem::zeroed::<libc::clone_args>() };
        // The descriptors are shared, not copied: the end of a pipe that another thread closes meanwhile is closed.
        let flags = libc::CLONE_NEWUSER | libc::CLONE_PIDFD | libc::CLONE_FILES;
        args.flags = flags as u64 | CLONE_CLEAR_SIGHAND;
        args.pidfd = (&raw mut pidfd) as u64;
        let parent = std::process::id();
        // SAFETY: no memory is shared and no stack given, so the child goes on with a copy of both, as after fork(2). It has
        // only this thread, and others may hold locks in the copy: it runs `sleep`, which takes none and allocates nothing.
        // No handler of the caller's runs in it, as all signals have their default actions.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
        if pid == 0 {
            sleep(parent);
        }
        check(pid).call("clone3", || "for a new user namespace".into())?;
        // SAFETY: the call has succeeded, so the kernel has put a new descriptor into `pidfd`, which nobody else knows.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        Ok(Sleeper { pid: pid as libc::pid_t, pidfd })
    }

    /// Writes the file `name` in one go, as the kernel wants it.
    fn map(&self, name: &str, ranges: &[IdRange]) -> Result<(), SysError> {
        let on = || format!("{name} of a new user namespace: {}", shown(ranges));
        if ranges.is_empty() {
            return Err(SysError::new("write", on(), Errno::INVAL));
        }
        let path = format!("/proc/{}/{name}", self.pid);
        let file = rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).call("open", on)?;
        let text: String = ranges.iter().map(|range| format!("{range}\n")).collect();
        // Not a part of it: it takes all, or nothing.
        rustix::io::write(&file, text.as_bytes()).map(drop).call("write", on)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // The maker of a user namespace may end what is in it. Whoever could not be ended would be waited for in vain.
        if rustix::process::pidfd_send_signal(self.pidfd.as_fd(), rustix::process::Signal::KILL).is_ok() {
            let _ = process::reap_clone(self.pidfd.as_fd());
        }
    }
}

/// What the child does: it waits to be killed, and does not outlive `parent`.
fn sleep(parent: u32) -> ! {
    // SAFETY: plain system calls; prctl and getppid take integers, ppoll(2) with no descriptors and no time waits for a
    // signal, and exit_group does not return. Nothing of the C library's state is touched but this thread's `errno`, and
    // there is one thread.
    unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        // Who has died before that is nobody's parent any more.
        while libc::syscall(libc::SYS_getppid) == libc::c_long::from(parent) {
            let none = std::ptr::null::<u8>();
            libc::syscall(libc::SYS_ppoll, none, 0, none, none, 0);
        }
        loop {
            libc::syscall(libc::SYS_exit_group, 0);
        }
    }
}

/// Ranges as the text of an error has them: not more of them than a person reads.
pub fn shown(ranges: &[IdRange]) -> String {
    let first: Vec<String> = ranges.iter().take(SHOWN).map(IdRange::to_string).collect();
    match ranges.len() {
        0 => "no ranges".into(),
        n if n > SHOWN => format!("{}, … ({n} in all)", first.join(", ")),
        _ => first.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    const fn range(inside: u32, outside: u32, size: u32) -> IdRange {
        IdRange { inside, outside, size }
    }

    fn is_root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            eprintln!("skipped: only root maps ids that are not its own");
        }
        root
    }

    /// The children of this thread: other tests have others.
    fn children() -> Vec<i32> {
        let text = std::fs::read_to_string("/proc/thread-self/children").unwrap();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    #[test]
    fn the_ranges_are_those_of_the_namespace() {
        if !is_root() {
            return;
        }
        let uids = [range(0, 100_000, 1000), range(5000, 7, 1)];
        let namespace = with_maps(&uids, &[range(3, 300_000, 65_536)]).unwrap();
        let at = format!("--user=/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
        let args = [at.as_str(), "--preserve-credentials", "cat", "/proc/self/uid_map", "/proc/self/gid_map"];
        let output = Command::new("nsenter").args(args).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let want = ["0", "100000", "1000", "5000", "7", "1", "3", "300000", "65536"];
        assert_eq!(words, want, "{}", String::from_utf8_lossy(&output.stderr));
        assert!(children().is_empty(), "its process is gone");
    }

    #[test]
    fn children_of_the_caller_are_left_to_it() {
        if !is_root() {
            return;
        }
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        while process::peek(pid).unwrap().is_none() {
            std::thread::yield_now();
        }
        with_maps(&[range(0, 1, 1)], &[range(0, 1, 1)]).unwrap();
        assert!(child.wait().unwrap().success(), "it was not reaped by another");
    }

    #[test]
    fn an_ordinary_wait_does_not_see_the_process() {
        let sleeper = match Sleeper::start() {
            Err(err) if !rustix::process::geteuid().is_root() => return eprintln!("skipped: {err}"),
            started => started.unwrap(),
        };
        assert_eq!(children(), [sleeper.pid]);
        rustix::process::pidfd_send_signal(sleeper.pidfd.as_fd(), rustix::process::Signal::KILL).unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", sleeper.pid)).unwrap();
        while !stat().contains(") Z ") {
            std::thread::yield_now();
        }
        assert_eq!(process::wait(sleeper.pid, false).unwrap_err().errno(), Some(libc::ECHILD));
        drop(sleeper);
        assert!(children().is_empty());
    }

    #[test]
    fn what_the_kernel_refuses_is_told_and_leaves_no_child() {
        if !is_root() {
            return;
        }
        let (good, none) = ([range(0, 100_000, 10)], []);
        let overlap = [range(0, 100_000, 10), range(5, 300_000, 10)];
        let empty = [range(0, 100_000, 0)];
        let many: Vec<IdRange> = (0..1000).map(|n| range(n, 100_000 + n, 1)).collect();
        for (uids, gids, words) in [
            (&overlap[..], &good[..], "uid_map of a new user namespace: 0 100000 10, 5 300000 10)"),
            (&good[..], &overlap[..], "gid_map of a new user namespace: 0 100000 10, 5 300000 10)"),
            (&none[..], &good[..], "uid_map of a new user namespace: no ranges)"),
            (&good[..], &none[..], "gid_map of a new user namespace: no ranges)"),
            (&empty[..], &good[..], "uid_map of a new user namespace: 0 100000 0)"),
            (&many[..], &good[..], "7 100007 1, … (1000 in all))"),
        ] {
            let err = with_maps(uids, gids).unwrap_err();
            assert!(err.to_string().contains(words), "{err}");
            assert_eq!((err.call, err.errno()), ("write", Some(libc::EINVAL)), "{err}");
            assert!(children().is_empty(), "{words}");
        }
    }
}
