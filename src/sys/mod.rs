//! Raw system calls: the only home of `unsafe`, for what `rustix` has no safe wrapper of.

pub mod fs;
