//! containerd's shim for `agentsbx`: `io.containerd.agentsbx.v1`.

fn main() {}
