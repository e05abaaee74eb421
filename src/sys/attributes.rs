//! What a process sets on itself before it becomes a command: identity, privileges, limits, priorities, filter.

use std::ffi::CStr;
use std::ptr;

use super::{Call, SysError, check};

/// The signal that this process gets when its parent ends; 0 for none.
pub fn set_parent_death_signal(signal: i32) -> Result<(), SysError> {
    // SAFETY: PR_SET_PDEATHSIG takes one integer.
    let ret = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) };
    check(ret.into()).map(drop).call("prctl", || format!("PR_SET_PDEATHSIG {signal}"))
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

/// Joins a new session keyring of this name (or the one there is, if the caller may), so that the caller's keys are out of
/// reach. False on a kernel without keyrings: it has none to share.
pub fn join_session_keyring(name: &CStr) -> Result<bool, SysError> {
    // SAFETY: the name is a live NUL-terminated string, which the kernel copies.
    let ret = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, name.as_ptr()) };
    match check(ret) {
        Err(err) if err.raw_os_error() == Some(libc::ENOSYS) => Ok(false),
        other => other.map(|_| true).call("keyctl", || format!("join session keyring {}", name.to_string_lossy())),
    }
}

/// Lets processes of this user find this process's session keyring by its name, to join it: a new one can't be found. No
/// error on a kernel without keyrings.
pub fn open_session_keyring() -> Result<(), SysError> {
    const POSSESSOR_ALL: libc::c_ulong = 0x3f00_0000;
    // View, read and link, as the kernel gives them to the owner of a new session keyring; and search.
    const USER: libc::c_ulong = 0x001b_0000;
    let session = libc::KEY_SPEC_SESSION_KEYRING;
    // SAFETY: KEYCTL_SETPERM takes two integers.
    let ret = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_SETPERM, session, POSSESSOR_ALL | USER) };
    match check(ret) {
        Err(err) if err.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        other => other.map(drop).call("keyctl", || "set permissions of the session keyring".into()),
    }
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
