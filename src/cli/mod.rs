//! The command line: runc's verbs, flags, output and exit codes.
//!
//! Arguments come in Go's style and are first brought into clap's ([`argv`]); errors leave in one place ([`report`]).

mod argv;
mod checkpoint;
mod create;
mod delete;
mod events;
mod features;
mod kill;
mod list;
mod pause;
mod ps;
mod report;
mod restore;
mod resume;
mod run;
mod spec;
mod start;
mod state;
mod update;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::id::ContainerId;
use crate::runtime::NAME;

/// Open Container Initiative runtime with a writable layer of its own for every exec
#[derive(Debug, Parser)]
#[command(name = NAME, disable_version_flag = true, disable_help_subcommand = true)]
struct Cli {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

/// The options before the command, as typed.
#[derive(Debug, clap::Args)]
struct GlobalArgs {
    /// Enable debug logging (to the file given with --log)
    #[arg(long)]
    debug: bool,
    /// Set the log file to write errors to (default: stderr)
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Set the log format
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Root directory for storage of container state (should be on tmpfs)
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Accepted and ignored, as in runc
    #[arg(long, value_name = "PATH", hide = true)]
    criu: Option<PathBuf>,
    /// Enable systemd cgroup support; cgroupsPath is then "slice:prefix:name"
    #[arg(long)]
    systemd_cgroup: bool,
    /// Ignore cgroup permission errors: true, false or auto
    #[arg(long, value_name = "BOOL", default_value = "auto", value_parser = ["true", "false", "auto"])]
    rootless: String,
    /// Directory of the layer store
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Print the version
    #[arg(long, short)]
    version: bool,
}

/// How errors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// logfmt.
    Text,
    /// One JSON object a line.
    Json,
}

/// The options before the command, resolved.
#[derive(Debug)]
pub struct Global {
    /// Directory of the state directories.
    pub root: PathBuf,
    /// File that errors are written to.
    pub log: Option<PathBuf>,
    /// In which form.
    pub log_format: LogFormat,
    /// Also write debug events there.
    pub debug: bool,
    /// Use the systemd cgroup driver.
    pub systemd_cgroup: bool,
    /// `true`, `false`, or `None` for auto.
    pub rootless: Option<bool>,
    /// Directory of the layer store.
    pub store: Option<PathBuf>,
}

impl Global {
    fn resolve(args: GlobalArgs) -> Global {
        Global {
            root: args.root.unwrap_or_else(default_root),
            log: args.log,
            log_format: args.log_format,
            debug: args.debug,
            systemd_cgroup: args.systemd_cgroup,
            rootless: args.rootless.parse().ok(),
            store: args.store,
        }
    }

    /// The file for debug events: none without `--debug` and `--log`, since stderr may be the container's.
    fn debug_log(&self) -> Option<File> {
        let path = self.log.as_deref().filter(|_| self.debug)?;
        report::open_log(path).ok()
    }
}

/// `/run/agentsbx`; for a user without root below `XDG_RUNTIME_DIR`.
fn default_root() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !rustix::process::geteuid().is_root());
    own.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join(NAME)
}

#[derive(Debug, Subcommand)]
enum Command {
    Checkpoint(checkpoint::Args),
    Create(create::Args),
    Delete(delete::Args),
    Events(events::Args),
    Features(features::Args),
    Kill(kill::Args),
    List(list::Args),
    Pause(pause::Args),
    Ps(ps::Args),
    Restore(restore::Args),
    Resume(resume::Args),
    Run(run::Args),
    Spec(spec::Args),
    Start(start::Args),
    State(state::Args),
    Update(Box<update::Args>),
}

impl Command {
    fn run(self, global: &Global) -> anyhow::Result<u8> {
        match self {
            Command::Checkpoint(args) => checkpoint::run(global, args),
            Command::Create(args) => create::run(global, args),
            Command::Delete(args) => delete::run(global, args),
            Command::Events(args) => events::run(global, args),
            Command::Features(args) => features::run(global, args),
            Command::Kill(args) => kill::run(global, args),
            Command::List(args) => list::run(global, args),
            Command::Pause(args) => pause::run(global, args),
            Command::Ps(args) => ps::run(global, args),
            Command::Restore(args) => restore::run(global, args),
            Command::Resume(args) => resume::run(global, args),
            Command::Run(args) => run::run(global, args),
            Command::Spec(args) => spec::run(global, args),
            Command::Start(args) => start::run(global, args),
            Command::State(args) => state::run(global, args),
            Command::Update(args) => update::run(global, *args),
        }
    }

    /// The exit code when the command itself failed.
    fn failure_code(&self) -> u8 {
        1
    }
}

/// Parses `argv` (the program's name first), runs the command, reports what failed. The exit code.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let argv = argv::normalise(argv.into_iter().collect(), &Cli::command());
    let matches = match Cli::command().try_get_matches_from(&argv) {
        Ok(matches) => matches,
        Err(err) if !err.use_stderr() => {
            print(&err.to_string());
            return ExitCode::SUCCESS;
        }
        Err(err) => {
            let code = if argv::names(&argv, "exec") { 255 } else { 1 };
            report::failure(&report::Target::of_argv(&argv), &report::usage(&err.to_string()));
            return ExitCode::from(code);
        }
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(err) => {
            report::failure(&report::Target::of_argv(&argv), &report::usage(&err.to_string()));
            return ExitCode::from(1);
        }
    };
    if cli.global.version {
        print(&version());
        return ExitCode::SUCCESS;
    }
    let global = Global::resolve(cli.global);
    let Some(command) = cli.command else {
        print(&Cli::command().render_help().to_string());
        return ExitCode::SUCCESS;
    };
    let failure_code = command.failure_code();
    match command.run(&global) {
        Ok(code) => ExitCode::from(code),
        Err(err) => {
            report::failure(&report::Target::of(&global), &report::text(&err));
            ExitCode::from(failure_code)
        }
    }
}

fn version() -> String {
    let commit = option_env!("AGENTSBX_COMMIT").unwrap_or("unknown");
    format!("{NAME} version {}\ncommit: {commit}\nspec: {}\n", env!("CARGO_PKG_VERSION"), features::SPEC_VERSION)
}

/// Prints on stdout. A reader that has gone away is no failure of ours.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Tells of something that failed without failing the command, in the log file only: stderr may be the container's.
fn warn(global: &Global, text: &str) {
    report::warning(&report::Target::of(global), text);
}

/// Parses a container id.
fn id(text: &str) -> anyhow::Result<ContainerId> {
    Ok(text.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn version_has_the_lines_that_docker_splits() {
        let lines: Vec<String> = version().lines().map(str::to_owned).collect();
        assert!(lines[0].starts_with("agentsbx version "), "{lines:?}");
        assert!(lines[1].starts_with("commit: ") && lines[2].starts_with("spec: 1."), "{lines:?}");
    }
}
