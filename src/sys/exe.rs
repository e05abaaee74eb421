//! Keeps a container from overwriting the runtime through `/proc/PID/exe`.
//!
//! A process of the container can reach the binary of a runtime process that is about to become, or was asked to run, a
//! command inside (CVE-2019-5736). The binary is therefore run from a read-only, detached clone of its mount: opening
//! it for writing gives `EROFS` whoever asks, the mount is in no namespace and so can't be remounted, and nothing is
//! copied. A second `execve` of the same page-cached file is all that it costs.

use std::ffi::{CString, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{Mode, OFlags};

use super::{Call, SysError, mount};

/// Runs this program again from a read-only mount, with the same arguments and environment, unless it already does.
///
/// Must be called before any thread exists. Returns only when the program is already safe to enter a container.
///
/// # Errors
/// Where the kernel refuses a step (before Linux 5.12, or without `CAP_SYS_ADMIN`); the caller must not go on into a
/// container then.
pub fn protect(args: &[OsString]) -> Result<(), SysError> {
    let exe = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .call("open", || "/proc/self/exe".into())?;
    if mount::is_read_only(exe.as_fd())? {
        return Ok(());
    }
    let copy = mount::read_only_file(exe.as_fd())?;
    // Arguments and environment come from the kernel as NUL-terminated strings, so none of them can have one inside.
    let argv: Vec<CString> = args.iter().filter_map(|a| CString::new(a.clone().into_vec()).ok()).collect();
    let env: Vec<CString> = std::env::vars_os()
        .filter_map(|(k, v)| {
            let mut pair = k.into_vec();
            pair.push(b'=');
            pair.extend(v.into_vec());
            CString::new(pair).ok()
        })
        .collect();
    Err(super::process::exec_fd(copy.as_fd(), &argv, &env))
}
