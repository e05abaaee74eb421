//! Under Debian's Docker, with the binary under test as its default runtime.

mod exec;
mod layers;
mod remap;
mod results;
mod run;
mod tools;
