//! Processes: forking, waiting, identities, capabilities, filters and signals.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

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

/// The signal that this process gets when its parent ends; 0 for none.
pub fn set_parent_death_signal(signal: i32) -> Result<(), SysError> {
    // SAFETY: PR_SET_PDEATHSIG takes one integer.
    let ret = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) };
    check(ret.into()).map(drop).call("prctl", || format!("PR_SET_PDEATHSIG {signal}"))
}

/// Makes this process the parent that orphans below it fall to.
pub fn set_subreaper() -> Result<(), SysError> {
    // SAFETY: PR_SET_CHILD_SUBREAPER takes one integer.
    let ret = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1 as libc::c_ulong) };
    check(ret.into()).map(drop).call("prctl", || "PR_SET_CHILD_SUBREAPER".into())
}

/// Hides this process's memory and `/proc` entries from those that it shares a namespace with.
pub fn set_dumpable(dumpable: bool) -> Result<(), SysError> {
    // SAFETY: PR_SET_DUMPABLE takes one integer.
    let ret = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(dumpable)) };
    check(ret.into()).map(drop).call("prctl", || format!("PR_SET_DUMPABLE {dumpable}"))
}

/// Sets `no_new_privs`: from here on no execve can add a privilege.
pub fn set_no_new_privs() -> Result<(), SysError> {
    // SAFETY: PR_SET_NO_NEW_PRIVS takes four integers.
    let ret = unsafe {
        libc::prctl(
            libc::PR_SET_NO_NEW_PRIVS,
            1 as libc::c_ulong,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
        )
    };
    check(ret.into()).map(drop).call("prctl", || "PR_SET_NO_NEW_PRIVS".into())
}

/// Real, effective and saved user and group ids, all at once; groups first.
pub fn set_ids(uid: u32, gid: u32) -> Result<(), SysError> {
    // SAFETY: setresgid(2) takes three integers; the raw call changes this thread only, which is the only one.
    let ret = unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) };
    check(ret).map(drop).call("setresgid", || gid.to_string())?;
    // SAFETY: as above, for setresuid(2).
    let ret = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
    check(ret).map(drop).call("setresuid", || uid.to_string())
}

/// Replaces the supplementary groups.
pub fn set_groups(groups: &[u32]) -> Result<(), SysError> {
    // SAFETY: the pointer and the count describe one live slice, which the kernel reads.
    let ret = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    check(ret).map(drop).call("setgroups", || format!("{groups:?}"))
}

/// Keeps permitted capabilities across the change of user ids that follows.
pub fn keep_capabilities(keep: bool) -> Result<(), SysError> {
    // SAFETY: PR_SET_KEEPCAPS takes one integer.
    let ret = unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, libc::c_ulong::from(keep)) };
    check(ret.into()).map(drop).call("prctl", || format!("PR_SET_KEEPCAPS {keep}"))
}

/// Drops from the bounding set all capabilities that are not in `mask` (bit N is capability N).
pub fn limit_bounding_set(mask: u64) -> Result<(), SysError> {
    for cap in 0..64u32 {
        // SAFETY: PR_CAPBSET_READ takes one integer.
        let have = unsafe { libc::prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(cap)) };
        if have == -1 {
            // The first number that this kernel does not know.
            break;
        }
        if have == 1 && mask & (1 << cap) == 0 {
            // SAFETY: PR_CAPBSET_DROP takes one integer.
            let ret = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(cap)) };
            check(ret.into()).map(drop).call("prctl", || format!("PR_CAPBSET_DROP {cap}"))?;
        }
    }
    Ok(())
}

/// Sets the effective, permitted and inheritable sets (bit N is capability N).
pub fn set_capabilities(effective: u64, permitted: u64, inheritable: u64) -> Result<(), SysError> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let half = |shift: u32| Data {
        effective: (effective >> shift) as u32,
        permitted: (permitted >> shift) as u32,
        inheritable: (inheritable >> shift) as u32,
    };
    let data = [half(0), half(32)];
    // SAFETY: version 3 of capset(2) reads a header and an array of two data structs, which is what is passed.
    let ret = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    check(ret)
        .map(drop)
        .call("capset", || format!("effective {effective:#x} permitted {permitted:#x} inheritable {inheritable:#x}"))
}

/// Replaces the ambient set; capabilities that are not both permitted and inheritable are left out by the kernel's rule.
pub fn set_ambient(mask: u64) -> Result<(), SysError> {
    // SAFETY: PR_CAP_AMBIENT takes four integers.
    let ambient = |op: i32, cap: u32| unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            op as libc::c_ulong,
            libc::c_ulong::from(cap),
            0 as libc::c_ulong,
            0 as libc::c_ulong,
        )
    };
    check(ambient(libc::PR_CAP_AMBIENT_CLEAR_ALL, 0).into()).call("prctl", || "PR_CAP_AMBIENT_CLEAR_ALL".into())?;
    for cap in (0..64).filter(|cap| mask & (1 << cap) != 0) {
        check(ambient(libc::PR_CAP_AMBIENT_RAISE, cap).into())
            .call("prctl", || format!("PR_CAP_AMBIENT_RAISE {cap}"))?;
    }
    Ok(())
}

/// Loads a seccomp filter: `program` is an array of 8-byte `struct sock_filter`, as libseccomp exports it.
///
/// Needs `no_new_privs` or `CAP_SYS_ADMIN`.
pub fn load_seccomp(program: &[u8], flags: u32) -> Result<(), SysError> {
    let instructions: Vec<libc::sock_filter> = program
        .chunks_exact(size_of::<libc::sock_filter>())
        .map(|b| libc::sock_filter {
            code: u16::from_ne_bytes([b[0], b[1]]),
            jt: b[2],
            jf: b[3],
            k: u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
        })
        .collect();
    let len = u16::try_from(instructions.len()).map_err(|_| {
        SysError::new("seccomp", format!("{} instructions", instructions.len()), rustix::io::Errno::TOOBIG)
    })?;
    let filter = libc::sock_fprog { len, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: `filter` points to `len` instructions that outlive the call; the kernel copies and checks them.
    let ret = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) };
    check(ret).map(drop).call("seccomp", || format!("SECCOMP_SET_MODE_FILTER, {len} instructions, flags {flags:#x}"))
}

/// Marks every descriptor from `first` up close-on-exec.
pub fn close_on_exec_from(first: u32) -> Result<(), SysError> {
    // SAFETY: close_range(2) takes three integers; with CLOSE_RANGE_CLOEXEC no descriptor in use is closed.
    let ret = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(ret).map(drop).call("close_range", || format!("{first}.., CLOSE_RANGE_CLOEXEC"))
}

/// Joins (making it if need be) the session keyring of this name, so that the caller's keys are out of reach.
pub fn join_session_keyring(name: &CStr) -> Result<(), SysError> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: the name is a live NUL-terminated string, which the kernel copies.
    let ret = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name.as_ptr()) };
    check(ret).map(drop).call("keyctl", || format!("join session keyring {}", name.to_string_lossy()))
}

/// Sets one resource limit by its number (`RLIMIT_*`).
pub fn set_rlimit(resource: u32, soft: u64, hard: u64) -> Result<(), SysError> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    // SAFETY: prlimit64 reads one live struct; pid 0 is this process and no old value is asked for.
    let ret = unsafe { libc::prlimit64(0, resource, &raw const limit, ptr::null_mut()) };
    check(ret.into()).map(drop).call("prlimit", || format!("resource {resource}, soft {soft}, hard {hard}"))
}

/// Sets the I/O priority (`class << 13 | level`).
pub fn set_io_priority(class: u32, level: u32) -> Result<(), SysError> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    // SAFETY: ioprio_set(2) takes three integers; 0 is this process.
    let ret = unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, (class << 13) | level) };
    check(ret).map(drop).call("ioprio_set", || format!("class {class} level {level}"))
}

/// The attributes of sched_setattr(2).
#[repr(C)]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchedAttr {
    size: u32,
    /// `SCHED_*`.
    pub policy: u32,
    /// `SCHED_FLAG_*`.
    pub flags: u64,
    /// Nice value, for the normal and batch policies.
    pub nice: i32,
    /// Static priority, for FIFO and round robin.
    pub priority: u32,
    /// Nanoseconds, for the deadline policy.
    pub runtime: u64,
    /// Nanoseconds, for the deadline policy.
    pub deadline: u64,
    /// Nanoseconds, for the deadline policy.
    pub period: u64,
}

/// Sets this process's scheduling policy.
pub fn set_scheduler(attr: &SchedAttr) -> Result<(), SysError> {
    let attr = SchedAttr { size: size_of::<SchedAttr>() as u32, ..attr.clone() };
    // SAFETY: `attr` is live and says its own size; the kernel only reads it.
    let ret = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    check(ret).map(drop).call("sched_setattr", || format!("policy {}", attr.policy))
}

/// Sets the execution domain (`PER_LINUX`, `PER_LINUX32`).
pub fn set_personality(domain: u64) -> Result<(), SysError> {
    // SAFETY: personality(2) takes an integer.
    let ret = unsafe { libc::personality(domain as libc::c_ulong) };
    check(ret.into()).map(drop).call("personality", || format!("{domain:#x}"))
}

/// Blocks every signal of this process and returns a descriptor from which they are read instead.
pub fn signals_as_fd() -> Result<OwnedFd, SysError> {
    // SAFETY: the set is initialised by sigfillset before it is used; all calls take pointers to it only.
    let fd = unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut set);
        check(libc::sigprocmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut()).into())
            .call("sigprocmask", || "all".into())?;
        check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())
            .call("signalfd", || "all".into())?
    };
    // SAFETY: signalfd returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// One signal from a descriptor of [`signals_as_fd`]: its number. `None` when there is none.
pub fn next_signal(fd: BorrowedFd<'_>) -> Result<Option<i32>, SysError> {
    let mut buffer = [0u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(fd, &mut buffer) {
        // ssi_signo is the first field, a u32.
        Ok(n) if n == buffer.len() => Ok(Some(u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]) as i32)),
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(errno) => Err(SysError::new("read", "signalfd", errno)),
    }
}

/// Gives every signal its default action and lets all through, as a new program expects.
pub fn reset_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: SIG_DFL is a valid action for every signal; those that can't be changed answer EINVAL.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the set is initialised by sigemptyset before sigprocmask reads it.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut());
    }
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

/// How the child `pid` ended, without reaping it; `None` if it has not.
pub fn peek(pid: i32) -> Result<Option<Exit>, SysError> {
    // SAFETY: siginfo_t and rusage are plain data for which all-zero is a value.
    let (mut info, mut usage) = unsafe { (std::mem::zeroed::<libc::siginfo_t>(), std::mem::zeroed::<libc::rusage>()) };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    loop {
        // SAFETY: both pointers are to live locals of the types that waitid(2) writes.
        let ret = unsafe { libc::syscall(libc::SYS_waitid, libc::P_PID, pid, &raw mut info, flags, &raw mut usage) };
        match check(ret) {
            Err(err) if err.kind() == std::io::ErrorKind::Interrupted => continue,
            other => break other.map(drop).call("waitid", || pid.to_string())?,
        }
    }
    // SAFETY: waitid has filled the fields of a SIGCHLD siginfo, or left all of it zero where no child has ended.
    let (ended, status) = unsafe { (info.si_pid(), info.si_status()) };
    if ended == 0 {
        return Ok(None);
    }
    let exited = info.si_code == libc::CLD_EXITED;
    Ok(Some(Exit {
        code: exited.then_some(status),
        signal: (!exited).then_some(status),
        user_ns: nanoseconds(usage.ru_utime),
        system_ns: nanoseconds(usage.ru_stime),
    }))
}

fn nanoseconds(time: libc::timeval) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000
}

/// Reaps the child `pid`; `None` if it has not ended yet and `block` is false.
pub fn wait(pid: i32, block: bool) -> Result<Option<Exit>, SysError> {
    let mut status = 0;
    // SAFETY: rusage is plain data for which all-zero is a value.
    let mut usage = unsafe { std::mem::zeroed::<libc::rusage>() };
    let flags = if block { 0 } else { libc::WNOHANG };
    let got = loop {
        // SAFETY: both pointers are to live locals of the right types.
        let ret = unsafe { libc::wait4(pid, &raw mut status, flags, &raw mut usage) };
        match check(ret.into()) {
            Err(err) if err.kind() == std::io::ErrorKind::Interrupted => continue,
            other => break other.call("wait4", || pid.to_string())?,
        }
    };
    if got == 0 {
        return Ok(None);
    }
    Ok(Some(Exit {
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        user_ns: nanoseconds(usage.ru_utime),
        system_ns: nanoseconds(usage.ru_stime),
    }))
}
