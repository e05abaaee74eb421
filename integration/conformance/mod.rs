//! What the specification and runc promise, and what users of runtimes have reported: each test says what must hold, and
//! where runc is there runs the same through it.

mod exec;
mod hooks;
mod lab;
mod life;
mod mounts;
mod process;
mod reports;
