//! The child side of exec: a fixed list of steps from a copy of the supervisor to the command.
//!
//! Single-threaded, no tracing, no store, no configuration. Everything that needs the host is in the [`Plan`]; from the
//! step that joins the namespaces on, nothing may be looked up by a path that the host means.
//!
//! The protocol with the supervisor, on one socket pair (`docs/exec-protocol.md`):
//!
//! | direction | message | meaning |
//! |---|---|---|
//! | supervisor → child | end of file | the supervisor is dead; so is the child, at once |
//! | child → supervisor | end of file | execve has succeeded: the socket is close-on-exec |
//! | child → supervisor | text, then end of file | a step failed; the text is for people and engines |
//!
//! Where processes of the container may trace others ([`Plan`] does not say; the supervisor knows), a process that is in
//! their pid namespace before it is in their view would show them the host's files (`/proc/PID/root`). There the process
//! that takes the steps up to the view stays outside, unseen; then a second one is born in the pid namespace, with the
//! container's root and no descriptor of the host's, and goes on. Its pid comes to the supervisor by a pipe.

pub(crate) mod program;
mod steps;

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use crate::policy::capabilities::Sets;
use crate::policy::files::Fence;
use crate::policy::seccomp::Program;
use crate::rootfs::cow::Layered;
use crate::rootfs::view::Submount;
use crate::rootfs::{Root, RootfsError};
use crate::sys::SysError;
use crate::sys::attributes::SchedAttr;
use crate::sys::landlock::LandlockError;

/// All that the child needs to know; plain data and open descriptors.
#[derive(Debug)]
pub struct Plan {
    /// The first process of the container.
    pub pidfd: OwnedFd,
    /// Clone flags of the namespaces to join; the pid namespace is the supervisor's business, but where a second process
    /// becomes the command.
    pub namespaces: i32,
    /// The layered root; `None` runs in the container's own mount namespace.
    pub root: Option<Root>,
    /// `MOUNT_ATTR_*` flags of the layered root.
    pub root_flags: u64,
    /// Mount points to move into the layered root.
    pub submounts: Vec<Submount>,
    /// Its overlays of copy-on-write mounts.
    pub layered: Vec<Layered>,
    /// The layered root can't be written.
    pub read_only_root: bool,
    /// The command and its arguments; never empty.
    pub argv: Vec<CString>,
    /// `NAME=value`, in order.
    pub env: Vec<CString>,
    /// Absolute, inside.
    pub cwd: PathBuf,
    /// Who runs it.
    pub user: User,
    /// The five capability sets.
    pub capabilities: Sets,
    /// Set `no_new_privs`.
    pub no_new_privileges: bool,
    /// The container's filter.
    pub seccomp: Option<Program>,
    /// What fences it off from the container's other processes.
    pub fence: Option<Fence>,
    /// `RLIMIT_*`, soft, hard.
    pub rlimits: Vec<(u32, u64, u64)>,
    /// `oom_score_adj`, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// I/O class and level.
    pub io_priority: Option<(u32, u32)>,
    /// Scheduling policy.
    pub scheduler: Option<SchedAttr>,
    /// Execution domain, for personality(2).
    pub personality: Option<u64>,
    /// Written to `attr/apparmor/exec`.
    pub apparmor: Option<String>,
    /// Written to `attr/exec`.
    pub selinux: Option<String>,
    /// The session keyring to join.
    pub keyring: Option<CString>,
    /// Standard input, output and error.
    pub stdio: Stdio,
    /// Descriptors from 3 on that the command inherits.
    pub preserve_fds: u32,
}

/// The user of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// User id, inside.
    pub uid: u32,
    /// Group id, inside.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// File mode creation mask.
    pub umask: u32,
}

/// Where the command's standard streams go.
#[derive(Debug)]
pub enum Stdio {
    /// Descriptors 0 to 2 as they are.
    Inherit,
    /// A new pseudo-terminal of the container; its master is sent over this socket.
    Terminal {
        /// A connected stream socket.
        console: OwnedFd,
        /// Rows and columns.
        size: Option<(u16, u16)>,
    },
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error("{doing}")]
    Sys {
        doing: &'static str,
        #[source]
        source: SysError,
    },
    #[error("{doing}")]
    Io {
        doing: String,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    #[error(transparent)]
    Fence(#[from] LandlockError),
    #[error(transparent)]
    Program(#[from] program::ProgramError),
    #[error("chdir to cwd ({cwd:?}) set in config.json failed: {reason}")]
    Cwd { cwd: PathBuf, reason: String },
    #[error(
        "current working directory is outside of the container's mount namespace root: refusing to run the command there"
    )]
    CwdOutside,
    #[error("{label} profile {profile:?} can't be applied: the host's kernel has no {label}")]
    Label { label: &'static str, profile: String },
}

/// The longest text that a failing child sends: enough for a path of `PATH_MAX` and what was done with it.
pub const MAX_ERROR: usize = 8192;

/// Carries the plan out. Does not return: either the command runs, or the reason is written to `channel`.
///
/// `cgroups` are the files by which this process, which has no other threads, joins its groups. With `second` it is a
/// second process that becomes the command, this one's sibling, whose pid (four bytes, native order) is written there.
pub fn run(plan: Plan, cgroups: &[PathBuf], channel: BorrowedFd<'_>, second: Option<OwnedFd>) -> ! {
    let mut state = steps::State::new(plan, cgroups, channel.as_raw_fd(), second);
    for (_, step) in steps::STEPS {
        if let Err(err) = step(&mut state) {
            let mut text = crate::error::chain(&err);
            text.truncate(text.floor_char_boundary(MAX_ERROR));
            // If the supervisor is gone there is nobody left to tell.
            let _ = rustix::io::write(channel.as_fd(), text.as_bytes());
            crate::sys::process::exit_now(255);
        }
    }
    crate::sys::process::exit_now(255)
}
