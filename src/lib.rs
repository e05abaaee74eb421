//! `agentsbx`: an OCI runtime that gives every exec a writable layer of its own, and tells what it changed.
//!
//! `docs/architecture.md` has the map of the modules and which may use which.

pub mod audit;
pub mod cli;
pub mod config;
pub mod diff;
pub mod durable;
pub mod error;
pub mod id;
pub mod init;
pub mod ops;
pub mod policy;
pub mod report;
pub mod rootfs;
pub mod runtime;
pub mod shim;
pub mod spec;
pub mod store;
pub mod sys;
pub mod telemetry;
pub mod terms;
