//! Where copy-on-write mounts can be, and what can't be one.
