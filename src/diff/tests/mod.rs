//! Tests against real overlay mounts (as root), with a full walk of the mounted tree as the truth.

pub(crate) mod graft;
mod lab;
mod random;
mod table;
mod timing;
mod walk;
