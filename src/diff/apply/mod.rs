//! Committed changes of a copy-on-write mount copied to the host's directory: planned, then carried out as planned.
//!
//! The layers are hostile and the directory is the host's: all is done beneath its descriptor, through no symbolic link and
//! onto no other filesystem; devices and sockets are never made; set-user-ID bits and file capabilities are left out unless
//! the host's file has them. What somebody else has changed on the host since is a conflict: it is found by a fingerprint
//! that was taken when the layer was sealed ([`Base`]), and by what the generations show.

mod base;
mod carry_out;
mod host;
mod plan;
#[cfg(test)]
mod tests;

pub use base::Base;
pub use carry_out::{carry_out, tidy};
pub use host::Mount;
pub use plan::{Action, Clash, Past, Plan, Skipped, Step, plan};
