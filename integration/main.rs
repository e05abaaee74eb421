//! The integration tests: one binary, a module a subject.

fn main() {}
