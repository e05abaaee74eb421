//! containerd's shim for `agentsbx`: `io.containerd.agentsbx.v1`.

use std::process::ExitCode;

fn main() -> ExitCode {
    agentsbx::shim::run::main(std::env::args_os())
}
