//! `create`.

use std::path::PathBuf;

use super::Global;
use crate::ops;
use crate::runtime::{CreateRequest, NAME};

/// Create a container from a bundle
///
/// The bundle is a directory with a specification file named "config.json" and a root filesystem. The command waits in
/// the container until "start".
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: CommonArgs,
    /// Accepted for callers that pass it; create always detaches
    #[arg(long, short, hide = true)]
    pub detach: bool,
}

/// What `create` and `run` share.
#[derive(Debug, clap::Args)]
pub struct CommonArgs {
    /// Path to the root of the bundle directory
    #[arg(long, short, value_name = "DIR", default_value = ".")]
    pub bundle: PathBuf,
    /// Path to an AF_UNIX socket which will receive the master end of the console's pseudoterminal
    #[arg(long, value_name = "SOCKET")]
    pub console_socket: Option<PathBuf>,
    /// Path to an AF_UNIX socket which will receive a pidfd of the init process
    #[arg(long, value_name = "SOCKET")]
    pub pidfd_socket: Option<PathBuf>,
    /// File to write the process id to
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Do not use pivot root to jail the process inside the root filesystem
    #[arg(long)]
    pub no_pivot: bool,
    /// Do not create a new session keyring for the container
    #[arg(long)]
    pub no_new_keyring: bool,
    /// Pass N additional file descriptors to the container (stdio + $LISTEN_FDS + N in total)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..=65536))]
    pub preserve_fds: i32,
    /// The container's id, unique below the root
    #[arg(value_name = "CONTAINER-ID")]
    pub id: String,
}

impl CommonArgs {
    /// The runtime's request.
    pub fn request(self, global: &Global, verb: &str) -> anyhow::Result<CreateRequest> {
        Ok(CreateRequest {
            root: global.root.clone(),
            id: Some(self.id.parse::<crate::id::ContainerId>().map_err(|err| failed(verb, err))?),
            bundle: self.bundle,
            console_socket: self.console_socket,
            pid_file: self.pid_file,
            pidfd_socket: self.pidfd_socket,
            no_pivot: self.no_pivot,
            no_new_keyring: self.no_new_keyring,
            preserve_fds: self.preserve_fds,
            listen_fds: listen_fds(),
            systemd_cgroup: global.systemd_cgroup,
            store_key: None,
            debug_log: global.debug_log(),
        })
    }
}

/// The sockets that systemd (or who acts like it) passes on, from descriptor 3; only if they are meant for this process
/// (sd_listen_fds(3)). libcontainer looks at the variable itself, so one that is not for us is taken out.
fn listen_fds() -> Option<u32> {
    let number = |name: &str| std::env::var_os(name)?.to_str()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        crate::sys::process::replace_env("LISTEN_FDS", None);
        return None;
    }
    number("LISTEN_FDS")
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let request = args.common.request(global, "create")?;
    ops::create::create(&global.context()?, &request).map_err(|err| failed("create", err))?;
    Ok(0)
}

/// An error of `create` or `run` as engines know it.
pub fn failed(verb: &str, err: impl std::error::Error + 'static) -> anyhow::Error {
    anyhow::anyhow!("{NAME} {verb} failed: {}", crate::error::chain(&err))
}
