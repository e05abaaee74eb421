//! `exec`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{Global, NAME};
use crate::ops::exec::{Overrides, Request, exec};
use crate::ops::{ProcessFlags, ProcessSource};

/// Execute a command in a running container, on a writable layer of its own
///
/// What the command changes is told when it ends ("show", "diff") and is committed, held or dropped as --layer says.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Path to an AF_UNIX socket which will receive the master end of the console's pseudoterminal
    #[arg(long, value_name = "SOCKET")]
    console_socket: Option<PathBuf>,
    /// Path to an AF_UNIX socket which will receive a pidfd of the exec's supervisor
    #[arg(long, value_name = "SOCKET")]
    pidfd_socket: Option<PathBuf>,
    /// Current working directory in the container
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Set an environment variable (NAME=value); AGENTSBX_* are for the runtime itself
    #[arg(long, short, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Allocate a pseudo-TTY
    #[arg(long, short)]
    tty: bool,
    /// UID (format: <uid>[:<gid>])
    #[arg(long, short, value_name = "UID[:GID]")]
    user: Option<String>,
    /// Additional gids
    #[arg(long, short = 'g', value_name = "GID")]
    additional_gids: Vec<u32>,
    /// Path to the process.json
    #[arg(long, short, value_name = "FILE")]
    process: Option<PathBuf>,
    /// Return as soon as the command runs
    #[arg(long, short)]
    detach: bool,
    /// File to write the process id to
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Set the asm process label for the process commonly used with selinux
    #[arg(long, value_name = "LABEL")]
    process_label: Option<String>,
    /// Set the apparmor profile for the process
    #[arg(long, value_name = "PROFILE")]
    apparmor: Option<String>,
    /// Set the no new privileges value for the process
    #[arg(long)]
    no_new_privs: bool,
    /// Add a capability to the bounding set for the process
    #[arg(long = "cap", short = 'c', value_name = "CAP")]
    caps: Vec<String>,
    /// Pass N additional file descriptors to the container (stdio + N in total)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65536))]
    preserve_fds: u32,
    /// Run the process in an (existing) sub-cgroup of the container
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// Allow exec in a paused container
    #[arg(long)]
    ignore_paused: bool,
    /// What becomes of the exec's layer: commit (the default), commit-on-success, discard, hold, shared
    #[arg(long, value_name = "MODE")]
    layer: Option<String>,
    /// How long the command may run: seconds, or a number with ms, s, m, h; 0 is for ever. By default 300 s, and for ever with
    /// a terminal
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// What becomes of processes that the command leaves running: kill (the default), wait
    #[arg(long, value_name = "POLICY")]
    orphans: Option<String>,
    /// Also write the result document to this file
    #[arg(long, value_name = "FILE")]
    result: Option<PathBuf>,
    /// The container
    #[arg(value_name = "CONTAINER-ID")]
    id: String,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let context = global.context()?;
    let process = match args.process {
        Some(path) => ProcessSource::File(path),
        None => ProcessSource::Flags(ProcessFlags {
            args: args.command,
            cwd: args.cwd,
            env: args.env,
            tty: args.tty,
            user: args.user,
            additional_gids: args.additional_gids,
            process_label: args.process_label,
            apparmor: args.apparmor,
            no_new_privs: args.no_new_privs,
            caps: args.caps,
        }),
    };
    let cgroup = args.cgroup.filter(|path| path != "/").map(|path| sub_cgroup(&path)).transpose()?;
    let (root, id) = global.place(&args.id)?;
    let request = Request {
        root: std::path::absolute(root)?,
        id,
        process,
        detach: args.detach,
        console_socket: args.console_socket.map(std::path::absolute).transpose()?,
        pidfd_socket: args.pidfd_socket.map(std::path::absolute).transpose()?,
        pid_file: args.pid_file.map(std::path::absolute).transpose()?,
        preserve_fds: args.preserve_fds,
        cgroup,
        ignore_paused: args.ignore_paused,
        overrides: Overrides { layer: args.layer, timeout: args.timeout, orphans: args.orphans },
        result: args.result.map(std::path::absolute).transpose()?,
    };
    let done = exec(&context, request).map_err(|err| anyhow::anyhow!("exec failed: {}", crate::error::chain(&err)))?;
    if let Some(warning) = done.warning {
        super::warn(global, &crate::error::chain(&warning));
    }
    Ok(done.code)
}

/// A path below the container's cgroup: no component may lead out of it.
fn sub_cgroup(path: &str) -> anyhow::Result<PathBuf> {
    let relative = PathBuf::from(path.trim_start_matches('/'));
    let inside = relative.components().all(|c| matches!(c, std::path::Component::Normal(_)));
    anyhow::ensure!(inside && !path.contains(':'), "{NAME}: {path:?} is not a sub cgroup path");
    Ok(relative)
}
