//! Containers from the outside: create, start, kill, delete and what else the parent side does with them.
//!
//! libcontainer sets up the first process; everything that engines see of a container's life is decided here.

pub mod cgroup;
mod cgroup_mount;
pub mod claim;
mod copyup;
pub mod cow;
pub mod create;
mod create_text;
pub mod delete;
mod devices;
mod error;
pub mod events;
pub mod exec;
mod facts;
mod filters;
mod fixup;
mod freezer;
pub mod hooks;
mod host;
pub mod idmaps;
mod joined;
mod kill;
mod launch;
mod leaf;
pub mod members;
mod payload;
mod place;
mod prepare;
mod relay;
mod run;
pub mod seccomp;
mod start;
pub mod state;
pub mod stats;
mod systemd;
pub mod update;
mod volumes;

pub use create::{CreateRequest, create};
pub use delete::{DeleteRequest, delete, delete_seen};
pub use error::RuntimeError;
pub use kill::{KillRequest, kill, kill_exec, pause, resume};
pub use relay::{callers_size, callers_terminal};
pub use run::{Ran, RunRequest, Steps, run};
pub use start::{Started, start};
pub use state::{Gone, Record, Status, pids};

/// The runtime's name, as it stands in messages.
pub const NAME: &str = "agentsbx";
