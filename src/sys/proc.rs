//! Processes, each known by its pid and start time together, or by a pidfd; never by a pid alone.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions};

/// What `/proc/PID/stat` says that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// State letter: `R`, `S`, `D`, `T`, `Z` (ended, not yet reaped), `X` …
    pub state: char,
    /// Field 22: start time in clock ticks since boot.
    pub start_time: u64,
}

impl Stat {
    /// Ended, waiting only to be reaped.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// Reads `/proc/PID/stat`; `None` if there is no such process.
pub fn stat(pid: i32) -> io::Result<Option<Stat>> {
    if pid <= 0 {
        return Ok(None);
    }
    let bytes = match fs::read(format!("/proc/{pid}/stat")) {
        Ok(bytes) => bytes,
        Err(err) if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => return Ok(None),
        Err(err) => return Err(err),
    };
    parse_stat(&bytes).map(Some).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The command name (field 2) may hold any byte, so fields are counted from the last `)`.
fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let close = bytes.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(&bytes[close + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // `state` is field 3, so field 22 is the 19th after it.
    let start_time = fields.nth(18)?.parse().ok()?;
    Some(Stat { state, start_time })
}

/// True if `pid` is the process that started at `start_time`, and it has not ended.
pub fn is_alive(pid: i32, start_time: u64) -> io::Result<bool> {
    Ok(stat(pid)?.is_some_and(|s| s.start_time == start_time && !s.is_dead()))
}

/// This process, as others will find it.
pub fn this() -> io::Result<(i32, u64)> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let stat = stat(pid)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok((pid, stat.start_time))
}

/// A reference to one process that a reused pid cannot redirect.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// exit(2) with this code.
    Exited(u8),
    /// Killed by this signal.
    Signaled(u8),
}

impl Ended {
    /// The exit code of a command that stands for the process: its own, or 128 + signal.
    pub fn exit_code(self) -> u8 {
        match self {
            Ended::Exited(code) => code,
            Ended::Signaled(signal) => 128u8.wrapping_add(signal),
        }
    }
}

impl PidFd {
    /// Opens `pid` if it still is the process that started at `start_time`; `None` if that one is gone or a zombie.
    pub fn open(pid: i32, start_time: u64) -> io::Result<Option<PidFd>> {
        let Some(raw) = Pid::from_raw(pid) else { return Ok(None) };
        let fd = match rustix::process::pidfd_open(raw, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(err) => return Err(err.into()),
        };
        // Checked after the open: from here on the pid cannot be given to another process unnoticed.
        Ok(is_alive(pid, start_time)?.then_some(PidFd { fd }))
    }

    /// Sends signal number `signal` (0 only checks); ESRCH if the process has ended.
    pub fn send(&self, signal: i32) -> io::Result<()> {
        // SAFETY: the descriptor is open for as long as `self` lives, and a null siginfo asks the kernel to make one.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0u32,
            )
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until the process has ended, child or not; false after `timeout`.
    pub fn wait_ended(&self, timeout: Duration) -> io::Result<bool> {
        poll_readable(self.fd.as_fd(), Some(timeout))
    }

    /// Reaps the process, which must be our child; `None` if it has not ended.
    pub fn try_reap(&self) -> io::Result<Option<Ended>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let Some(status) = rustix::process::waitid(WaitId::PidFd(self.fd.as_fd()), options)? else { return Ok(None) };
        Ok(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Ended::Exited((code & 0xff) as u8)),
            (_, Some(signal)) => Some(Ended::Signaled((signal & 0x7f) as u8)),
            _ => None,
        })
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until `fd` is readable; false after `timeout` (`None`: no limit).
pub fn poll_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let deadline = timeout.map(|t| std::time::Instant::now() + t);
    loop {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let left = deadline.map(|d| d.saturating_duration_since(std::time::Instant::now()));
        let spec = left.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: i64::from(l.subsec_nanos()) });
        match poll(&mut fds, spec.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => continue,
            Err(err) => return Err(err.into()),
        }
    }
}

/// kill(2) with any signal number.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes no pointers.
    if unsafe { libc::kill(pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Replaces this process; returns only on failure. Nothing of `argv` and `envp` is changed or reordered.
pub fn execve(path: &CString, argv: &[CString], envp: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|s| s.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let (argv, envp) = (pointers(argv), pointers(envp));
    // SAFETY: both arrays end with a null pointer and borrow from slices that outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends this process at once: no destructors, no exit handlers. For forked children.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Runs `child` in a forked process and returns its pid. The caller must be single-threaded: `child` may allocate.
/// The child exits with what the closure returns.
pub fn fork(child: impl FnOnce() -> i32) -> io::Result<i32> {
    // SAFETY: this process is single-threaded (a rule of this package for whoever clones), so the child finds no lock
    // held by a thread that does not exist in it; it leaves by _exit without running the parent's destructors.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => exit_now(child()),
        pid => Ok(pid),
    }
}

/// Waits for child `pid` to end.
pub fn reap(pid: i32) -> io::Result<Ended> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    loop {
        match rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED) {
            Ok(Some(status)) => {
                return Ok(match status.terminating_signal() {
                    Some(signal) => Ended::Signaled((signal & 0x7f) as u8),
                    None => Ended::Exited((status.exit_status().unwrap_or(255) & 0xff) as u8),
                });
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(err) => return Err(err.into()),
        }
    }
}

/// Closes a descriptor that this forked child has from its parent and that no value in the child will use again.
pub fn close_in_child(fd: std::os::fd::RawFd) {
    // SAFETY: close takes no pointers; by the contract no owner in this process touches the number afterwards.
    unsafe { libc::close(fd) };
}

/// Takes a variable out of this process's environment. The caller must be single-threaded.
pub fn remove_env(name: &str) {
    // SAFETY: single-threaded by the caller's contract, so nobody reads the environment meanwhile.
    unsafe { std::env::remove_var(name) }
}

/// Joins a new session keyring called `name`, so that the caller's keys are not the container's (keyctl(2)).
/// A kernel without keyrings has none to share: not an error.
pub fn join_session_keyring(name: &str) -> io::Result<()> {
    let name = CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    let rc = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, name.as_ptr()) };
    if rc >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        err if err.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        err => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_counts_from_the_last_parenthesis() {
        let line = b"7 (a) S (b\n)) Z 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 0 0";
        assert_eq!(parse_stat(line), Some(Stat { state: 'Z', start_time: 98765 }));
        for bad in [&b"7 (x"[..], b"7 (x) S 1", b""] {
            assert_eq!(parse_stat(bad), None);
        }
    }

    #[test]
    fn a_process_is_known_by_pid_and_start_time() {
        let (pid, start) = this().unwrap();
        assert!(is_alive(pid, start).unwrap());
        assert!(!is_alive(pid, start + 1).unwrap());
        assert!(PidFd::open(pid, start + 1).unwrap().is_none());
        PidFd::open(pid, start).unwrap().unwrap().send(0).unwrap();
    }

    #[test]
    fn an_ended_child_is_not_alive_and_is_reaped_once() {
        #[allow(clippy::zombie_processes)] // reaped through the pidfd, which is what this test is about
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read x; exit 7"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let start = stat(pid).unwrap().unwrap().start_time;
        let pidfd = PidFd::open(pid, start).unwrap().unwrap();
        assert_eq!(pidfd.try_reap().unwrap(), None);
        drop(child.stdin.take());
        assert!(pidfd.wait_ended(Duration::from_secs(10)).unwrap());
        assert!(!is_alive(pid, start).unwrap(), "a zombie counts as ended");
        assert_eq!(pidfd.try_reap().unwrap(), Some(Ended::Exited(7)));
        assert_eq!(pidfd.send(0).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn exit_codes() {
        assert_eq!(Ended::Exited(3).exit_code(), 3);
        assert_eq!(Ended::Signaled(9).exit_code(), 137);
    }
}
