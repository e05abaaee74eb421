//! BPF programs that decide which devices the processes of a cgroup may use: loaded, and attached to the cgroup.
//!
//! See bpf(2), and "BPF_PROG_TYPE_CGROUP_DEVICE" in the kernel's `bpf/bpf_cgroup_dev_ctx`.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Call, SysError, check};

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 2;

/// One instruction, `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insn {
    /// Operation.
    pub code: u8,
    /// Destination register in the low four bits, source register in the high four.
    pub registers: u8,
    /// Offset of a jump or of memory.
    pub offset: i16,
    /// Constant.
    pub immediate: i32,
}

/// The part of `union bpf_attr` that loading a program uses. The kernel takes what is left out for 0.
#[repr(C)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

/// The part of `union bpf_attr` that attaching a program uses.
#[repr(C)]
struct Attach {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

fn bpf<T>(command: libc::c_int, attr: &T) -> Result<libc::c_long, std::io::Error> {
    // SAFETY: `attr` is a `repr(C)` prefix of `union bpf_attr` without padding, and its true size is passed; the kernel
    // reads it and what its pointers name during the call only, and both callers keep that alive until then.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), std::mem::size_of::<T>()) })
}

/// Loads a program that decides on devices.
pub fn load_device_program(program: &[Insn]) -> Result<OwnedFd, SysError> {
    let license = c"Apache-2.0";
    let mut prog_name = [0; 16];
    prog_name[..8].copy_from_slice(b"agentsbx");
    let attr = Load {
        prog_type: BPF_PROG_TYPE_CGROUP_DEVICE,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name,
    };
    let fd = bpf(BPF_PROG_LOAD, &attr).call("bpf", || format!("load, {} instructions", program.len()))?;
    // SAFETY: the kernel has just made this descriptor (close-on-exec, as all of bpf's), and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Attaches a device program to the cgroup whose directory is open as `cgroup`, beside those that are there: what one
/// denies is denied. It stays when the descriptors are closed and goes with the cgroup.
pub fn attach_device_program(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<(), SysError> {
    let attr = Attach {
        target_fd: cgroup.as_raw_fd() as u32,
        attach_bpf_fd: program.as_raw_fd() as u32,
        attach_type: BPF_CGROUP_DEVICE,
        attach_flags: BPF_F_ALLOW_MULTI,
    };
    bpf(BPF_PROG_ATTACH, &attr).map(drop).call("bpf", || "attach to cgroup".into())
}
