//! `agentsbx`: an OCI runtime that gives every exec a writable layer of its own, and tells what it changed.
//!
//! `docs/architecture.md` has the map of the modules and which may use which.

pub mod cli;
pub mod durable;
pub mod error;
pub mod id;
pub mod runtime;
pub mod spec;
pub mod sys;
pub mod telemetry;
