//! The diff, held against walks of the whole tree that know nothing of it: every way to change a filesystem, each by an
//! exec, on the image, on layers, and after a rollback.

mod cases;
mod random;
mod session;
mod special;
mod table;
mod truth;
