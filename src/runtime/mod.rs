//! Processes: containers made, signalled and removed, commands run in them.

pub mod exec;
pub mod state;
