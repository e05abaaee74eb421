//! containerd's shim, `io.containerd.agentsbx.v1`: the process that stands between containerd and a pod's containers.
//!
//! It keeps no truth of its own: what a container is, and what its execs changed, is the runtime's, whose program it runs
//! for each step. It holds what must outlive those processes: their streams, their exit codes, and the order of events.
//! It has threads, so it never clones: it only starts programs.

pub mod args;
pub mod bootstrap;
pub mod cgroup;
mod confine;
pub mod container;
pub mod daemon;
pub mod delete;
pub mod error;
pub mod events;
pub mod info;
pub mod io;
mod kills;
pub mod log;
pub mod metrics;
pub mod mounts;
pub mod moves;
pub mod newcomers;
pub mod oom;
pub mod options;
pub mod process;
pub mod reaper;
pub mod record;
pub mod run;
pub mod runtime;
pub mod service;
mod signals;
pub mod socket;
mod thread;

pub use error::ShimError;
