//! The command line itself, on a busybox bundle, without any engine.

mod exec;
mod hostile;
mod layers;
mod leaks;
mod recovery;
mod retention;
mod run;
mod seccomp;
mod signals;
mod verbs;
