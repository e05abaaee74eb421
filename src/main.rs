//! The `agentsbx` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    agentsbx::cli::main(std::env::args_os())
}
