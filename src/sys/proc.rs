//! Processes, each known by its pid and start time together, or by a pidfd; never by a pid alone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::process::{Exit, reap_pidfd};
use super::{Call, SysError, check};

/// A flag of a thread that is ending (include/linux/sched.h).
const PF_EXITING: u32 = 0x4;

/// What `/proc/PID/stat` says that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// State letter: `R`, `S`, `D`, `T`, `Z` (ended, not yet reaped), `X` …
    pub state: char,
    /// Field 9 has PF_EXITING (include/linux/sched.h): the first thread is ending, and may have let go of its namespaces.
    pub exiting: bool,
    /// Field 20: threads that have not ended, the first one counted until it is reaped.
    pub threads: u32,
    /// Field 22: start time in clock ticks since boot.
    pub start_time: u64,
}

impl Stat {
    /// Ended, waiting only to be reaped. A process whose first thread has ended shows as `Z` while others still run: it
    /// lives, and signals reach it.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'X' | 'x') || (self.state == 'Z' && self.threads <= 1)
    }
}

/// Reads `/proc/PID/stat`; `None` if there is no such process.
pub fn stat(pid: i32) -> io::Result<Option<Stat>> {
    if pid <= 0 {
        return Ok(None);
    }
    let bytes = match read(Path::new(&format!("/proc/{pid}/stat"))) {
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
    // `state` is field 3, so field 9 is the sixth after it, field 20 the eleventh after that, and field 22 the second.
    let exiting = fields.nth(5)?.parse::<u32>().ok()? & PF_EXITING != 0;
    let threads = fields.nth(10)?.parse().ok()?;
    let start_time = fields.nth(1)?.parse().ok()?;
    Some(Stat { state, exiting, threads, start_time })
}

/// True if `pid` is the process that started at `start_time`, and it has not ended.
///
/// # Errors
/// Besides what reading gives, `Unsupported` if `/proc` is of another pid namespace.
pub fn is_alive(pid: i32, start_time: u64) -> io::Result<bool> {
    require_own()?;
    Ok(stat(pid)?.is_some_and(|s| s.start_time == start_time && !s.is_dead()))
}

/// Reads a file of a filesystem that does not tell sizes (proc, cgroup) to its end, in large pieces.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    const PIECE: usize = 16 << 10;
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(PIECE);
    loop {
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes)) {
            Ok(0) => return Ok(bytes),
            Ok(_) => bytes.reserve(PIECE),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The same as text.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|err| io::Error::new(io::ErrorKind::InvalidData, err))
}

/// The bytes that a process, and those of its children that it waited for, made the kernel write to files on disk: pages
/// that became dirty by them, and direct writes. It is read of one that has ended and is not reaped, too. `None` where it
/// can't be read, or the kernel does not count it (`CONFIG_TASK_IO_ACCOUNTING`).
pub fn written_bytes(pid: i32) -> Option<u64> {
    let text = read_text(Path::new(&format!("/proc/{pid}/io"))).ok()?;
    text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.trim().parse().ok())
}

/// This process, as others will find it.
///
/// # Errors
/// As [`is_alive`].
pub fn this() -> io::Result<(i32, u64)> {
    require_own()?;
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let stat = stat(pid)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok((pid, stat.start_time))
}

/// Fails if `/proc` is of another pid namespace than this process: under the pids that we know it has others, and what is
/// meant for a container would be done to them.
fn require_own() -> io::Result<()> {
    let shown = rustix::fs::readlink("/proc/self", Vec::new());
    let pid = rustix::process::getpid().as_raw_nonzero().to_string();
    match shown {
        Ok(shown) if shown.as_bytes() == pid.as_bytes() => Ok(()),
        // No process of this number there, as far as that namespace can see.
        Ok(_) | Err(rustix::io::Errno::NOENT) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "/proc is not that of this process's pid namespace; mount it there (mount -t proc proc /proc)",
        )),
        Err(errno) => Err(errno.into()),
    }
}

/// A reference to one process that a reused pid cannot redirect.
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
}

impl PidFd {
    /// Opens `pid` if it still is the process that started at `start_time`; `None` if that one is gone or a zombie.
    ///
    /// # Errors
    /// As [`is_alive`], and those of pidfd_open(2) but ESRCH.
    pub fn open(pid: i32, start_time: u64) -> Result<Option<PidFd>, SysError> {
        // First: there may be no such process in this pid namespace, and yet in that of `/proc`.
        require_own().call("readlink", || "/proc/self".into())?;
        let pidfd = match PidFd::of(pid) {
            Err(err) if err.errno() == Some(libc::ESRCH) => return Ok(None),
            other => other?,
        };
        // Checked after the open: from here on the pid cannot be given to another process unnoticed.
        let alive = is_alive(pid, start_time).call("read", || format!("/proc/{pid}/stat"))?;
        Ok(alive.then_some(pidfd))
    }

    /// Opens whatever process has this id now: a child that is not reaped yet, this process, or one that the caller tells
    /// by other means once the descriptor is open. ESRCH if there is none.
    pub fn of(pid: i32) -> Result<PidFd, SysError> {
        let opened = match Pid::from_raw(pid) {
            Some(id) => rustix::process::pidfd_open(id, PidfdFlags::empty()).map_err(|errno| match errno {
                // The number is a thread's, or has stayed a group's or a session's whose leader was reaped, for as long as
                // anybody is in it, be it a zombie. Before Linux 6.16 both were EINVAL.
                Errno::INVAL | Errno::NOENT => Errno::SRCH,
                other => other,
            }),
            None => Err(Errno::SRCH),
        };
        opened.map(|fd| PidFd { fd }).call("pidfd_open", || pid.to_string())
    }

    /// Sends signal number `signal`, 0 to 64 (0 only checks); ESRCH if the process has ended.
    pub fn send(&self, signal: i32) -> Result<(), SysError> {
        // SAFETY: the descriptor is open for as long as `self` lives, and a null siginfo asks the kernel to make one.
        let ret = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                signal,
                ptr::null::<libc::siginfo_t>(),
                0u32,
            )
        };
        check(ret).map(drop).call("pidfd_send_signal", || format!("signal {signal}"))
    }

    /// Waits until the process has ended, child or not; false after `timeout`.
    pub fn wait_ended(&self, timeout: Duration) -> io::Result<bool> {
        poll_readable(self.fd.as_fd(), Some(timeout))
    }

    /// Reaps the process, which must be our child; `None` if it has not ended.
    pub fn try_reap(&self) -> Result<Option<Exit>, SysError> {
        reap_pidfd(self.fd.as_fd())
    }
}

impl From<PidFd> for OwnedFd {
    fn from(pidfd: PidFd) -> OwnedFd {
        pidfd.fd
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_counts_from_the_last_parenthesis() {
        let line = b"7 (a) S (b\n)) Z 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 0 0";
        let mut want = Stat { state: 'Z', exiting: false, threads: 1, start_time: 98765 };
        assert_eq!(parse_stat(line), Some(want));
        want.exiting = true;
        assert_eq!(parse_stat(b"7 (a) Z 1 7 7 0 -1 4228364 1 2 3 4 5 6 7 8 20 0 1 0 98765 0 0"), Some(want));
        for (state, threads, dead) in [('Z', 1, true), ('Z', 2, false), ('Z', 0, true), ('X', 2, true), ('S', 1, false)]
        {
            assert_eq!(Stat { state, exiting: false, threads, start_time: 1 }.is_dead(), dead, "{state} {threads}");
        }
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

    /// A container of a shared pid namespace could not be deleted: the kernel's answer for its first process was EINVAL.
    #[test]
    fn a_number_that_is_no_processs_any_more_is_nobody() {
        let thread = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get()).join().unwrap();
        assert_eq!(PidFd::of(thread).unwrap_err().errno(), Some(libc::ESRCH), "a thread that has ended");
        let (told, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            told.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = ended.recv();
        });
        let tid = tid.recv().unwrap();
        assert_eq!(PidFd::of(tid).unwrap_err().errno(), Some(libc::ESRCH), "a thread");
        assert!(PidFd::open(tid, this().unwrap().1).unwrap().is_none());
        drop(end);
        thread.join().unwrap();

        // A leader that is reaped, and one of its group that lives on.
        let mut leader = std::process::Command::new("sh");
        std::os::unix::process::CommandExt::process_group(&mut leader, 0);
        let mut leader =
            leader.args(["-c", "sleep 60 >/dev/null & echo $!"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let pid = leader.id() as i32;
        let mut member = String::new();
        io::Read::read_to_string(leader.stdout.as_mut().unwrap(), &mut member).unwrap();
        leader.wait().unwrap();
        let left = PidFd::of(member.trim().parse().unwrap()).unwrap();
        assert_eq!(PidFd::of(pid).unwrap_err().errno(), Some(libc::ESRCH), "a group's number");
        left.send(libc::SIGKILL).unwrap();
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
        assert_eq!(pidfd.try_reap().unwrap().unwrap().code, Some(7));
        assert_eq!(pidfd.send(0).unwrap_err().errno(), Some(libc::ESRCH));
    }
}
