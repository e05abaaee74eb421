//! The `agentsbx` command.

fn main() {}
