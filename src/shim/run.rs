//! The shim's front door: the command line and the environment are read here, and this is where answers and errors leave.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use super::args::{self, Action, Args};
use super::bootstrap::{self, Env, Started};
use super::container::Shared;
use super::daemon::{self, Setup};
use super::service::Service;
use super::{ShimError, delete, info};
use crate::sys;

/// The program's name.
const PROGRAM: &str = "containerd-shim-agentsbx-v1";
/// The exit code for a command line that is not understood, as Go's.
const USAGE: u8 = 2;

/// Does what the command line says. On success nothing is written to standard error: containerd 1.6 reads it with the
/// answer.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match args::parse(argv.into_iter().skip(1)) {
        Ok(args) => args,
        Err(err) => {
            complain(&err);
            return USAGE.into();
        }
    };
    match obey(args) {
        Ok(started) => match io::stdout().write_all(&started.answer).and_then(|()| io::stdout().flush()) {
            Ok(()) => {
                started.answered();
                ExitCode::SUCCESS
            }
            Err(err) => fail(&ShimError::io("write", "standard output")(err)),
        },
        Err(err) => fail(&err),
    }
}

/// What is to be written to standard output.
fn obey(args: Args) -> Result<Started, ShimError> {
    let answer = match args.action {
        Action::Help => Ok(args::USAGE.as_bytes().to_vec()),
        Action::Version => {
            Ok(format!("{PROGRAM}:\n  Version:  {}\n  Revision: {}\n\n", info::VERSION, info::REVISION).into_bytes())
        }
        Action::Info => info::info(&bootstrap::read_input(io::stdin())?),
        Action::Start => {
            let bundle = delete::bundle(args.bundle.clone())?;
            let input = bootstrap::read_input(io::stdin())?;
            return bootstrap::start(&program()?, &args, &environment(), &bundle, &input);
        }
        Action::Delete => {
            let bundle = delete::bundle(args.bundle)?;
            let deleted = delete::delete(&bundle, &args.namespace, &args.id);
            deleted.failed.iter().for_each(complain);
            Ok(deleted.answer)
        }
        Action::Serve => serve(args).map(|()| Vec::new()),
    };
    answer.map(Started::of)
}

/// Serves on the socket that `start` has bound.
fn serve(args: Args) -> Result<(), ShimError> {
    // Nothing has been opened yet; what is there was left open by whoever called `start`, who may wait for its end.
    sys::process::close_others_in_child(&[]);
    let socket = args.socket.unwrap_or_default();
    let listener = daemon::inherited_socket(&socket)?;
    let told = daemon::inherited_output()?;
    let env = environment();
    let setup = Setup {
        ttrpc_address: env.ttrpc_address.unwrap_or_else(|| format!("{}.ttrpc", args.address)),
        namespace: args.namespace,
        id: args.id,
        socket,
        bundle: delete::bundle(args.bundle)?,
        debug: args.debug,
        core_scheduling: std::env::var_os("SCHED_CORE").is_some(),
        idle: daemon::IDLE,
    };
    daemon::serve(&setup, listener, told, |parts| {
        let (namespace, debug) = (setup.namespace.clone(), setup.debug);
        let daemon::Parts { events, reaper, moves, newcomers } = parts;
        Arc::new(Service::new(Shared { namespace, events, reaper, moves, newcomers, debug }))
    })
}

/// This program's file, by the name that shows in lists of processes.
fn program() -> Result<std::path::PathBuf, ShimError> {
    std::env::current_exe().map_err(ShimError::io("readlink", "/proc/self/exe"))
}

fn environment() -> Env {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    Env { ttrpc_address: variable("TTRPC_ADDRESS"), grpc_address: variable("GRPC_ADDRESS") }
}

fn fail(err: &ShimError) -> ExitCode {
    complain(err);
    ExitCode::FAILURE
}

fn complain(err: &ShimError) {
    let text = err.to_string().replace('\n', " ");
    // Nobody may be there to read it, which is no reason to end by a signal.
    let _ = writeln!(io::stderr(), "{PROGRAM}: {text}");
}
