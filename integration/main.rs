//! The integration tests: one binary, a module a subject.
//!
//! They need root. What needs an engine starts Debian's own containerd and dockerd itself, once, in directories, cgroups
//! and a network namespace of their own; a guard process puts everything away when this process ends, however it ends.
//! `AGENTSBX_BIN` names the binary under test when it is not the one that cargo has just built.
#![allow(clippy::disallowed_methods, reason = "scratch files of tests need no durability")]

mod bench;
mod beside;
mod boot;
mod cli;
mod conformance;
mod cow;
mod ctr;
mod diff;
mod docker;
mod files;
mod honest;
mod install;
mod layering;
mod lifecycle;
mod limits;
mod podman;
mod policy;
mod races;
mod schema;
mod security;
mod shim;
mod soak;
mod support;
mod watch;
