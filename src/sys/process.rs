//! This process and its children: forking, becoming another program, waiting.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;

use rustix::fs::{Mode, OFlags};

use super::{Call, SysError, check};

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Fork {
    /// The new process.
    Child,
    /// The old one, with the child's id in its own pid namespace.
    Parent(i32),
}

/// Copies this process. It must be single-threaded: the child may then do all that the parent could.
pub fn fork() -> Result<Fork, SysError> {
    // SAFETY: the program has a single thread (nothing in the runtime starts one), so no lock is held by a thread that
    // the child lacks.
    let pid = unsafe { libc::fork() };
    check(pid.into()).call("fork", String::new)?;
    Ok(if pid == 0 { Fork::Child } else { Fork::Parent(pid) })
}

/// `CLONE_INTO_CGROUP` of `<linux/sched.h>`; the binding's constant is too narrow for it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Copies this process, as [`fork`] does, the child being in the v2 cgroup `group` from its beginning.
///
/// Moving a process between groups makes the kernel wait for all processors; being born in one costs nothing.
///
/// # Errors
/// `ENOSYS` or `E2BIG` before Linux 5.7; whatever else keeps a process out of the group.
pub fn fork_into(group: BorrowedFd<'_>) -> Result<Fork, SysError> {
    let group = group.as_raw_fd();
    let into = |args: &mut libc::clone_args| {
        args.flags = CLONE_INTO_CGROUP;
        args.exit_signal = libc::SIGCHLD as u64;
        args.cgroup = group as u64;
    };
    clone3(into, || format!("into the cgroup of fd {group}"))
}

/// Copies this process, as [`fork`] does, the child being a child of this process's parent.
pub fn fork_sibling() -> Result<Fork, SysError> {
    // What the parent is told of the child's end is what it is told of this process's: the kernel takes no other signal.
    clone3(|args| args.flags = libc::CLONE_PARENT as u64, || "CLONE_PARENT".into())
}

/// Copies this process as `set` says, which must ask for no shared memory and give no stack.
fn clone3(set: impl FnOnce(&mut libc::clone_args), on: impl FnOnce() -> String) -> Result<Fork, SysError> {
    // SAFETY: clone_args is plain data for which all-zero is a value.
    let mut args = unsafe { std::mem::zeroed::<libc::clone_args>() };
    set(&mut args);
    // SAFETY: no memory is shared and no stack given, so the child goes on with a copy of everything, as after fork(2).
    // The program has a single thread, so no lock is held. The C library is not told: what it remembers of the thread's
    // id is the parent's, which only functions on threads would use.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    check(pid).call("clone3", on)?;
    Ok(if pid == 0 { Fork::Child } else { Fork::Parent(pid as i32) })
}

/// The open `tasks` (v1) or `cgroup.procs` (v2) file of a cgroup.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    file: OwnedFd,
}

impl Door {
    /// Opens the file.
    pub fn open(path: &Path) -> Result<Door, SysError> {
        let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        Ok(Door { file: file.call("open", || path.display().to_string())?, path: path.to_owned() })
    }

    /// Puts this process, which must have no other threads, into the cgroup.
    pub fn enter(&self) -> Result<(), SysError> {
        rustix::io::write(&self.file, b"0").map(drop).call("write", || self.path.display().to_string())
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Puts this process, which must have no other threads, into cgroups, by the paths of their doors. Stops at the first that
/// fails.
pub fn join_cgroups(doors: &[PathBuf]) -> Result<(), SysError> {
    doors.iter().try_for_each(|path| Door::open(path)?.enter())
}

/// The longest text that a child of [`in_child`] can send back, in bytes.
const TEXT_MAX: u64 = 4096;

/// Runs `work` in a child and waits for its end: how it ended (its code is what `work` returns), and what `work` wrote to
/// the pipe that it gets.
///
/// The caller must be single-threaded (see [`fork`]).
pub fn in_child(work: impl FnOnce(OwnedFd) -> i32) -> Result<(Exit, Vec<u8>), SysError> {
    let (read, write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).call("pipe2", || "of a child".into())?;
    let pid = match fork()? {
        Fork::Child => {
            drop(read);
            exit_now(work(write))
        }
        Fork::Parent(pid) => pid,
    };
    drop(write);
    let mut text = Vec::new();
    let read = std::fs::File::from(read).take(TEXT_MAX).read_to_end(&mut text);
    let exit = wait(pid, true)?.ok_or_else(|| SysError::new("waitid", pid.to_string(), rustix::io::Errno::CHILD))?;
    read.call("read", || "what a child says".into())?;
    Ok((exit, text))
}

/// Ends this process at once: no destructor, no buffered output.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit(2) takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Borrows a descriptor that stays open until this process ends or becomes another program.
pub fn borrow_for_life(fd: i32) -> BorrowedFd<'static> {
    assert!(fd >= 0, "a descriptor is never negative");
    // SAFETY: the number is not -1. The callers pass descriptors that nothing closes before execve or exit; a call on a
    // number that is not open fails with EBADF and touches no memory.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain(std::iter::once(ptr::null())).collect()
}

/// Replaces this program by the file at `path`; returns only on failure.
pub fn exec(path: &CStr, argv: &[CString], env: &[CString]) -> SysError {
    let (argv_ptrs, env_ptrs) = (pointers(argv), pointers(env));
    // SAFETY: both vectors end with a null pointer and point to strings that outlive the call.
    let ret = unsafe { libc::execve(path.as_ptr(), argv_ptrs.as_ptr(), env_ptrs.as_ptr()) };
    exec_error(ret.into(), "execve", path.to_string_lossy().into_owned())
}

/// Replaces this program by the file that `fd` is open on; returns only on failure.
pub fn exec_fd(fd: BorrowedFd<'_>, argv: &[CString], env: &[CString]) -> SysError {
    let (argv_ptrs, env_ptrs) = (pointers(argv), pointers(env));
    // SAFETY: as in `exec`; the path is an empty literal, which AT_EMPTY_PATH allows.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_execveat,
            fd.as_raw_fd(),
            c"".as_ptr(),
            argv_ptrs.as_ptr(),
            env_ptrs.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    exec_error(ret, "execveat", format!("fd {}", fd.as_raw_fd()))
}

fn exec_error(ret: libc::c_long, call: &'static str, on: String) -> SysError {
    let source = check(ret).err().unwrap_or_else(|| std::io::Error::other("exec returned"));
    SysError { call, on, source }
}

/// How a child ended and what it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, where it ended by itself.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// User CPU time of it and its waited-for children, nanoseconds.
    pub user_ns: u64,
    /// System CPU time, likewise.
    pub system_ns: u64,
}

impl Exit {
    /// The exit code of a command that stands for the process: its own, or 128 + signal.
    pub fn exit_code(&self) -> u8 {
        match (self.code, self.signal) {
            (Some(code), _) => code as u8,
            (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
            (None, None) => u8::MAX,
        }
    }
}

/// How the child `pid` ended, without reaping it; `None` if it has not.
pub fn peek(pid: i32) -> Result<Option<Exit>, SysError> {
    wait_id(libc::P_PID, pid, libc::WNOHANG | libc::WNOWAIT)
}

/// Reaps the child `pid`; `None` if it has not ended yet and `block` is false.
pub fn wait(pid: i32, block: bool) -> Result<Option<Exit>, SysError> {
    wait_id(libc::P_PID, pid, if block { 0 } else { libc::WNOHANG })
}

/// Reaps the child behind the pidfd; `None` if it has not ended.
pub(super) fn reap_pidfd(pidfd: BorrowedFd<'_>) -> Result<Option<Exit>, SysError> {
    wait_id(libc::P_PIDFD, pidfd.as_raw_fd(), libc::WNOHANG)
}

/// Reaps the child behind the pidfd when it has ended, whatever signal it was made to tell of its end with.
pub(super) fn reap_clone(pidfd: BorrowedFd<'_>) -> Result<Option<Exit>, SysError> {
    wait_id(libc::P_PIDFD, pidfd.as_raw_fd(), libc::__WALL)
}

/// waitid(2) for an end, with what the child used.
///
/// A child that asked to be traced by its parent (`PTRACE_TRACEME`) would be taken for ended when it only stops: waitid
/// tells a tracer of stops unasked. It is let go.
fn wait_id(kind: libc::idtype_t, id: i32, flags: i32) -> Result<Option<Exit>, SysError> {
    let flags = flags | libc::WEXITED;
    let (info, usage, status) = loop {
        // SAFETY: siginfo_t and rusage are plain data for which all-zero is a value.
        let (mut info, mut usage) =
            unsafe { (std::mem::zeroed::<libc::siginfo_t>(), std::mem::zeroed::<libc::rusage>()) };
        // SAFETY: both pointers are to live locals of the types that waitid(2) writes.
        let ret = unsafe { libc::syscall(libc::SYS_waitid, kind, id, &raw mut info, flags, &raw mut usage) };
        match check(ret) {
            Err(err) if err.kind() == std::io::ErrorKind::Interrupted => continue,
            other => other.map(drop).call("waitid", || id.to_string())?,
        }
        // SAFETY: waitid has filled the fields of a SIGCHLD siginfo, or left all of it zero where no child has ended.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        if pid == 0 {
            return Ok(None);
        }
        if ![libc::CLD_TRAPPED, libc::CLD_STOPPED].contains(&info.si_code) {
            break (info, usage, status);
        }
        untrace(pid, status);
        if flags & libc::WNOHANG != 0 {
            return Ok(None);
        }
    };
    let exited = info.si_code == libc::CLD_EXITED;
    Ok(Some(Exit {
        code: exited.then_some(status),
        signal: (!exited).then_some(status),
        user_ns: nanoseconds(usage.ru_utime),
        system_ns: nanoseconds(usage.ru_stime),
    }))
}

/// Ends the tracing of a child that stopped at `signal`, which it then gets; the trap of an execve is only a tracer's.
fn untrace(pid: i32, signal: i32) {
    let signal = if signal == libc::SIGTRAP { 0 } else { signal as libc::c_long };
    // SAFETY: PTRACE_DETACH takes no pointers. Whom this process does not trace, or who was killed, is left alone (ESRCH).
    unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0 as libc::c_long, signal) };
}

fn nanoseconds(time: libc::timeval) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000
}

/// Closes a descriptor that this forked child has from its parent and that no value in the child will use again.
pub fn close_in_child(fd: std::os::fd::RawFd) {
    // SAFETY: close takes no pointers; by the contract no owner in this process touches the number afterwards.
    unsafe { libc::close(fd) };
}

/// The highest descriptor that [`cover_directories_in_child`] looks at. The lowest free number is given out, so this
/// program's own are low, unless it was started with as many.
const DESCRIPTORS: std::os::fd::RawFd = 1024;

/// Puts an empty file in the place of every directory that this forked child has open to its next execve: through one of
/// them who may look into this process would reach all that is above. No owner in the child may need one again; it may
/// close it.
pub fn cover_directories_in_child() -> Result<(), SysError> {
    let empty = rustix::fs::memfd_create("", rustix::fs::MemfdFlags::CLOEXEC).call("memfd_create", String::new)?;
    for fd in 3..DESCRIPTORS {
        // SAFETY: fcntl(F_GETFD) takes no pointers; EBADF says that nothing is open there.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags < 0 || flags & libc::FD_CLOEXEC == 0 {
            continue;
        }
        // SAFETY: it was found open, and this process has one thread, so it stays open for the call.
        let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).call("fstat", || fd.to_string())?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory {
            // SAFETY: dup3 takes no pointers; whoever owns the number goes on owning an open descriptor.
            let ret = unsafe { libc::dup3(empty.as_raw_fd(), fd, libc::O_CLOEXEC) };
            check(ret.into()).map(drop).call("dup3", || fd.to_string())?;
        }
    }
    Ok(())
}

/// What is shown while the command line is hidden.
const SHOWN: &[u8] = b"agentsbx init";

/// While it lives, `/proc/PID/cmdline` of this process, and for good that of children which are forked meanwhile, does not show
/// the arguments that the program was started with: anybody in the pid namespace of a child may read them, and they are paths
/// of the host. Nobody may ask for the arguments meanwhile, nor in a child.
#[derive(Debug)]
pub struct HiddenCommandLine {
    arguments: &'static mut [u8],
    before: Vec<u8>,
}

impl HiddenCommandLine {
    /// Hides it. The caller must be single-threaded, and has no other one.
    pub fn hide() -> HiddenCommandLine {
        unsafe extern "C" {
            /// What the C library keeps of the first argument (glibc and musl).
            static program_invocation_name: *mut libc::c_char;
        }
        let length: usize = std::env::args_os().map(|arg| arg.len() + 1).sum();
        // SAFETY: the kernel has laid the arguments one behind the other (execve(2)), each with a NUL, from the first on,
        // which the C library's pointer was set to and nobody here sets again. So as many bytes as they have in all are
        // theirs, for as long as the program runs. They are the program's to write, and by the contract nobody else looks
        // at them meanwhile.
        let arguments = unsafe { std::slice::from_raw_parts_mut(program_invocation_name.cast::<u8>(), length) };
        let before = arguments.to_vec();
        arguments.fill(0);
        // The last byte stays NUL: else the kernel shows what is behind it, too (proc_pid_cmdline(5)).
        let shown = SHOWN.len().min(length.saturating_sub(1));
        arguments[..shown].copy_from_slice(&SHOWN[..shown]);
        HiddenCommandLine { arguments, before }
    }
}

impl Drop for HiddenCommandLine {
    fn drop(&mut self) {
        self.arguments.copy_from_slice(&self.before);
    }
}

/// Closes every descriptor from 3 on that this child has from its parent, but `keep`; no value in the child may use
/// one of them again. Without close_range(2) they stay open, as they would have without the call.
pub fn close_others_in_child(keep: &[BorrowedFd<'_>]) {
    let mut keep: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd() as u32).filter(|fd| *fd >= 3).collect();
    keep.sort_unstable();
    let mut first = 3;
    for end in keep.into_iter().chain([u32::MAX]) {
        if first < end {
            // SAFETY: close_range(2) takes three integers; by the contract no owner in this process touches the numbers
            // afterwards.
            unsafe { libc::syscall(libc::SYS_close_range, first, end - 1, 0) };
        }
        first = end.saturating_add(1);
    }
}

/// Sets the C library's heap up for a program that runs for milliseconds: memory is taken from the kernel in larger pieces,
/// and neither given back nor tidied up.
pub fn hurry_heap() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_TOP_PAD, 512 << 10), (libc::M_TRIM_THRESHOLD, i32::MAX), (libc::M_MXFAST, 0)] {
        // SAFETY: mallopt(3) takes two integers; what it refuses stays as it was.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Sets the C library's heap up for a program that lives for long and does little: one arena for all threads, and what is
/// free at the end goes back to the kernel.
pub fn thrifty_heap() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_ARENA_MAX, 1), (libc::M_TOP_PAD, 16 << 10), (libc::M_TRIM_THRESHOLD, 64 << 10)]
    {
        // SAFETY: mallopt(3) takes two integers; what it refuses stays as it was.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives this process, and those that it will start, a core scheduling group of their own (`PR_SCHED_CORE`, Linux 5.14):
/// none of them shares a core with a process of another group.
///
/// # Errors
/// `EINVAL` where the kernel has no core scheduling, `ENODEV` where the processor has one thread a core.
pub fn own_core_scheduling() -> Result<(), SysError> {
    /// `PIDTYPE_TGID`: all threads of the process.
    const THREAD_GROUP: libc::c_long = 1;
    // SAFETY: PR_SCHED_CORE_CREATE takes a pid (0: this process), a scope and a null pointer.
    let ret = unsafe { libc::prctl(libc::PR_SCHED_CORE, libc::PR_SCHED_CORE_CREATE, 0, THREAD_GROUP, 0) };
    check(ret.into()).map(drop).call("prctl", || "PR_SCHED_CORE".into())
}

/// Sets a variable of this process's environment, or takes it out; what it was. The caller must be single-threaded.
pub fn replace_env(name: &str, value: Option<&OsStr>) -> Option<OsString> {
    let before = std::env::var_os(name);
    match value {
        // SAFETY: single-threaded by the caller's contract, so nobody reads the environment meanwhile.
        Some(value) => unsafe { std::env::set_var(name, value) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var(name) },
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes() {
        let exit = |code, signal| Exit { code, signal, user_ns: 0, system_ns: 0 }.exit_code();
        assert_eq!(exit(Some(3), None), 3);
        assert_eq!(exit(None, Some(9)), 137);
    }

    #[test]
    fn a_child_is_seen_before_it_is_reaped() {
        #[allow(clippy::zombie_processes)] // reaped by pid, which is what this test is about
        let child = std::process::Command::new("sh").args(["-c", "kill -TERM $$"]).spawn().unwrap();
        let pid = child.id() as i32;
        let seen = loop {
            if let Some(exit) = peek(pid).unwrap() {
                break exit;
            }
            std::thread::yield_now();
        };
        assert_eq!((seen.code, seen.signal), (None, Some(libc::SIGTERM)));
        assert_eq!(wait(pid, true).unwrap().unwrap().signal, Some(libc::SIGTERM));
        assert_eq!(wait(pid, true).unwrap_err().errno(), Some(libc::ECHILD));
    }
}
