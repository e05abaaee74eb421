//! Every raw system call of the crate, and every `unsafe`; the rest of the code sees owned descriptors and errors that
//! read like a line of strace.

pub mod attributes;
pub mod bpf;
pub mod cgroup;
pub mod exe;
pub mod fs;
pub mod fsmount;
pub mod image;
pub mod inside;
pub mod landlock;
pub mod locked;
pub mod loopback;
pub mod loopdev;
pub mod mapped;
pub mod mount;
pub mod mountattr;
pub mod mountinfo;
pub mod ns;
pub mod open_files;
pub mod probe;
pub mod proc;
pub mod process;
pub mod quota;
pub mod signal;
pub mod socket;
pub mod spawn;
mod start;
pub mod tty;
pub mod userns;
pub mod watch;

use crate::error::{Classify, Kind};

/// A system call that failed: its name, what it was called on, and the kernel's answer.
#[derive(Debug, thiserror::Error)]
#[error("{call}({on}): {source}")]
pub struct SysError {
    /// The call's name, as in section 2 of the manual.
    pub call: &'static str,
    /// Its object: a path, or a descriptor with what it stands for.
    pub on: String,
    /// The kernel's answer.
    #[source]
    pub source: std::io::Error,
}

impl SysError {
    /// The error of `call` on `on` with the given errno.
    pub fn new(call: &'static str, on: impl Into<String>, errno: rustix::io::Errno) -> SysError {
        SysError { call, on: on.into(), source: errno.into() }
    }

    /// The `errno` value, where the kernel gave one.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

/// For callers whose own error names the operation and its object already.
impl From<SysError> for std::io::Error {
    fn from(err: SysError) -> std::io::Error {
        err.source
    }
}

impl Classify for SysError {
    fn kind(&self) -> Kind {
        Kind::of_io(&self.source)
    }
}

/// Names the call and its object when a call fails.
pub(crate) trait Call<T> {
    /// Turns the bare errno into a [`SysError`].
    fn call(self, call: &'static str, on: impl FnOnce() -> String) -> Result<T, SysError>;
}

impl<T> Call<T> for Result<T, rustix::io::Errno> {
    fn call(self, call: &'static str, on: impl FnOnce() -> String) -> Result<T, SysError> {
        self.map_err(|errno| SysError::new(call, on(), errno))
    }
}

impl<T> Call<T> for Result<T, std::io::Error> {
    fn call(self, call: &'static str, on: impl FnOnce() -> String) -> Result<T, SysError> {
        self.map_err(|source| SysError { call, on: on(), source })
    }
}

/// The result of a libc call that returns -1 and sets `errno`.
pub(crate) fn check(ret: libc::c_long) -> Result<libc::c_long, std::io::Error> {
    if ret == -1 { Err(std::io::Error::last_os_error()) } else { Ok(ret) }
}
