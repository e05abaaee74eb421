//! Every raw system call, and every `unsafe` block, of the package.

pub mod inside;
pub mod mountattr;
pub mod proc;
pub mod signal;
