//! What a container may do, as pure functions from a spec to values that other modules enforce.

pub mod capabilities;
mod enosys;
pub mod seccomp;
