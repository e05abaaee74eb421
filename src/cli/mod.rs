//! The command line: runc's verbs, flags, output and exit codes.
//!
//! Arguments come in Go's style and are first brought into clap's (`argv`); errors leave in one place (`report`).

mod apply;
mod argv;
mod check;
mod checkpoint;
mod commit;
mod config;
mod create;
mod decisions;
mod delete;
mod diff;
mod discard;
mod events;
mod exec;
mod features;
mod fsck;
mod gc;
mod graph;
mod hints;
mod hooks;
mod kill;
mod list;
mod log;
mod pause;
mod ps;
mod recover;
mod render;
mod report;
mod reset;
mod restore;
mod resume;
mod rollback;
mod run;
mod show;
mod spec;
mod start;
mod state;
mod update;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args as _, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::config::{self as configuration, Sources};
use crate::id::ContainerId;
use crate::ops::{Context, Done};
use crate::runtime::{NAME, Record, idmaps};
use crate::store::Store;

/// Open Container Initiative runtime with a writable layer of its own for every exec
#[derive(Debug, Parser)]
#[command(name = NAME, disable_version_flag = true, args_override_self = true)]
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
    /// Directory of the layer store (default: AGENTSBX_STORE, the configuration, /var/lib/agentsbx)
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
    /// It was named, not the usual one.
    pub root_given: bool,
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
            root_given: args.root.is_some(),
            root: args.root.unwrap_or_else(default_root),
            log: args.log,
            log_format: args.log_format,
            debug: args.debug,
            systemd_cgroup: args.systemd_cgroup,
            rootless: args.rootless.parse().ok(),
            store: args.store,
        }
    }

    /// Where the container that `name` names has its state, and its id. Engines have directories of their own, which they
    /// name; without `--root`, a container that is not in the usual one is looked for in the store. There only a whole id
    /// counts, or its first twelve digits as Docker prints them: what is signalled must be no other's whose name begins
    /// alike.
    fn place(&self, name: &str) -> anyhow::Result<(PathBuf, ContainerId)> {
        let usual = (self.root.clone(), id(name)?);
        if self.root_given || Record::dir_of(&usual.0, &usual.1).exists() {
            return Ok(usual);
        }
        let (config, _) = configuration::load_or_least(&self.sources());
        let found = Store::open_to_read(&config.store).and_then(|store| store.find(name)).ok();
        let is_short = name.len() >= SHORT_ID && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        // Where there is none, the usual place says so.
        let found = found.filter(|found| found.id.as_str() == name || is_short);
        Ok(found.map_or(usual, |found| (found.root, found.id)))
    }

    /// As `context`, for what must work with a configuration that can't be read. What is wrong with it is told: in the log
    /// file, and on stderr if `told` says that this is a person's.
    fn context_or_least(&self, told: Told) -> Context {
        let (config, err) = configuration::load_or_least(&self.sources());
        if let Some(err) = err {
            let store = config.store.display();
            let text = format!(
                "{}; without it the store is {store}, and nothing is dropped by [retention] or [log]",
                report::plain_errno(&crate::error::chain(&err))
            );
            report::warning(&report::Target::of(self), &text);
            if told == Told::Person || rustix::termios::isatty(rustix::stdio::stderr()) {
                let _ = writeln!(std::io::stderr(), "{NAME}: {}", render::visible(&text));
            }
        }
        Context { config }
    }

    /// The configuration, and what use cases need besides.
    fn context(&self) -> anyhow::Result<Context> {
        Ok(Context { config: configuration::load(&self.sources())? })
    }

    /// What flags and the environment say of the configuration.
    fn sources(&self) -> Sources {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let root = rustix::process::geteuid().is_root();
        let data = || var("XDG_DATA_HOME").or_else(|| Some(var("HOME")?.join(".local/share")));
        Sources {
            file: var("AGENTSBX_CONFIG"),
            // What can't be made absolute is refused as it is.
            store_flag: self.store.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())),
            store_env: var("AGENTSBX_STORE"),
            user_data: if root { None } else { data().map(|dir| dir.join(NAME)) },
        }
    }

    /// The file for debug events: none without `--debug` and `--log`, since stderr may be the container's.
    fn debug_log(&self) -> Option<File> {
        let path = self.log.as_deref().filter(|_| self.debug)?;
        report::open_log(path).ok()
    }
}

/// Whose the standard error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// A verb that people call.
    Person,
    /// A verb that engines call, which may read it for their answer; at a terminal it is a person all the same.
    Engine,
}

/// `/run/agentsbx`; for a user without root below `XDG_RUNTIME_DIR`.
fn default_root() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !rustix::process::geteuid().is_root());
    own.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join(NAME)
}

#[derive(Debug, Subcommand)]
enum Command {
    Create(create::Args),
    Start(start::Args),
    Run(run::Args),
    Exec(Box<exec::Args>),
    State(state::Args),
    List(list::Args),
    Ps(ps::Args),
    Kill(kill::Args),
    Delete(delete::Args),
    Pause(pause::Args),
    Resume(resume::Args),
    Update(Box<update::Args>),
    Events(events::Args),
    Log(log::Args),
    Show(show::Args),
    Diff(diff::Args),
    Commit(commit::Args),
    Discard(discard::Args),
    Rollback(rollback::Args),
    Reset(reset::Args),
    Apply(apply::Args),
    Recover(recover::Args),
    Gc(gc::Args),
    Fsck(fsck::Args),
    Check(check::Args),
    Config(config::Args),
    Spec(spec::Args),
    Features(features::Args),
    Checkpoint(checkpoint::Args),
    Restore(restore::Args),
    #[command(name = crate::runtime::hooks::RELAY_VERB, hide = true)]
    CreateHooks(hooks::Args),
}

impl Command {
    fn run(self, global: &Global) -> anyhow::Result<u8> {
        match self {
            Command::Apply(args) => apply::run(global, args),
            Command::Check(args) => check::run(global, args),
            Command::Checkpoint(args) => checkpoint::run(global, args),
            Command::Commit(args) => commit::run(global, args),
            Command::Config(args) => config::run(global, args),
            Command::Create(args) => create::run(global, args),
            Command::CreateHooks(args) => hooks::run(global, args),
            Command::Delete(args) => delete::run(global, args),
            Command::Diff(args) => diff::run(global, args),
            Command::Discard(args) => discard::run(global, args),
            Command::Exec(args) => exec::run(global, *args),
            Command::Fsck(args) => fsck::run(global, args),
            Command::Gc(args) => gc::run(global, args),
            Command::Events(args) => events::run(global, args),
            Command::Features(args) => features::run(global, args),
            Command::Kill(args) => kill::run(global, args),
            Command::List(args) => list::run(global, args),
            Command::Log(args) => log::run(global, args),
            Command::Pause(args) => pause::run(global, args),
            Command::Ps(args) => ps::run(global, args),
            Command::Recover(args) => recover::run(global, args),
            Command::Reset(args) => reset::run(global, args),
            Command::Restore(args) => restore::run(global, args),
            Command::Resume(args) => resume::run(global, args),
            Command::Rollback(args) => rollback::run(global, args),
            Command::Run(args) => run::run(global, args),
            Command::Show(args) => show::run(global, args),
            Command::Spec(args) => spec::run(global, args),
            Command::Start(args) => start::run(global, args),
            Command::State(args) => state::run(global, args),
            Command::Update(args) => update::run(global, *args),
        }
    }

    /// The exit code when the command itself failed.
    fn failure_code(&self) -> u8 {
        match self {
            Command::Exec(_) => 255,
            Command::Fsck(_) => 2,
            _ => 1,
        }
    }

    /// Whether the command makes processes that enter a container and could then reach this program's file. The entry
    /// point (`sys::start`) knows these verbs too.
    fn enters(&self) -> bool {
        matches!(self, Command::Create(_) | Command::Exec(_) | Command::Run(_))
    }
}

/// Parses `argv` (the program's name first), runs the command, reports what failed. The exit code.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    crate::sys::process::hurry_heap();
    crate::sys::signal::keep_children();
    let argv: Vec<OsString> = argv.into_iter().collect();
    if let Some(done) = idmaps::stand_in(&argv, || std::env::var_os(idmaps::REPORT)) {
        return ExitCode::from(u8::from(!done));
    }
    if let Some(matches) = short_cut(&argv) {
        return match Cli::from_arg_matches(&matches) {
            Ok(cli) => obey(cli),
            Err(err) => refuse(&argv, &err),
        };
    }
    let definition = Cli::command();
    let argv = argv::normalise(argv, &definition);
    match definition.try_get_matches_from(&argv) {
        Err(err) if !err.use_stderr() => told(&report::Target::of_argv(&argv), &err.to_string()),
        Err(err) => refuse(&argv, &err),
        Ok(matches) => match Cli::from_arg_matches(&matches) {
            Ok(cli) => obey(cli),
            Err(err) => refuse(&argv, &err),
        },
    }
}

/// A verb's name and what makes its definition.
type Verb = (&'static str, fn(clap::Command) -> clap::Command);

/// The verbs that engines call for each container and each exec.
const FREQUENT: [Verb; 7] = [
    ("exec", exec::Args::augment_args),
    ("create", create::Args::augment_args),
    ("start", start::Args::augment_args),
    ("state", state::Args::augment_args),
    ("kill", kill::Args::augment_args),
    ("delete", delete::Args::augment_args),
    ("run", run::Args::augment_args),
];

/// The arguments by the definition of one verb: to define all thirty takes longer than to parse one of them. `None` where
/// that does not do: another verb, help, a mistake.
fn short_cut(argv: &[OsString]) -> Option<clap::ArgMatches> {
    let (name, augment) =
        argv.iter().skip(1).find_map(|word| FREQUENT.iter().find(|(name, _)| OsStr::new(name) == word))?;
    let top = clap::Command::new(NAME).disable_version_flag(true).args_override_self(true);
    let definition = GlobalArgs::augment_args(top).subcommand(augment(clap::Command::new(*name)));
    let argv = argv::normalise(argv.to_vec(), &definition);
    definition.try_get_matches_from(argv).ok().filter(|matches| matches.subcommand().is_some())
}

/// Reports arguments that can't be understood; the exit code.
fn refuse(argv: &[OsString], err: &clap::Error) -> ExitCode {
    let code = if argv::names(argv, "exec") { 255 } else { 1 };
    let text = misplaced(err).or_else(|| missing(argv, err)).unwrap_or_else(|| report::usage(&err.to_string()));
    report::failure(&report::Target::of_argv(argv), &text);
    ExitCode::from(code)
}

/// What is wrong with an option of the program behind a verb, where verbs have theirs.
fn misplaced(err: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(arg)) = err.get(ContextKind::InvalidArg) else { return None };
    let name = arg.split('=').next()?.strip_prefix("--")?;
    let global = GlobalArgs::augment_args(clap::Command::new(NAME));
    let known = global.get_arguments().any(|option| option.get_long() == Some(name));
    let unknown_there = err.kind() == ErrorKind::UnknownArgument;
    (known && unknown_there).then(|| format!("--{name} comes before the verb: {NAME} --{name} … VERB …"))
}

/// What a verb lacks, how it is called, and the command that shows what can be given.
fn missing(argv: &[OsString], err: &clap::Error) -> Option<String> {
    let names = match (err.kind(), err.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(names))) => names,
        _ => return None,
    };
    let whole = err.to_string();
    let line = whole.split_once("\nUsage: ").and_then(|(_, rest)| rest.lines().next());
    let usage = line.map(|line| format!(": usage: {line}")).unwrap_or_default();
    // Behind the verb.
    let mut words = argv.iter().skip(1).filter(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let container = words.nth(1).map(|word| word.to_string_lossy());
    let hint = hints::missing(names, container.as_deref()).map(|hint| format!(": {hint}")).unwrap_or_default();
    Some(format!("{}{usage}{hint}", report::usage(&whole)))
}

/// Runs the command; the exit code.
fn obey(cli: Cli) -> ExitCode {
    let version_wanted = cli.global.version;
    let global = Global::resolve(cli.global);
    let target = report::Target::of(&global);
    if version_wanted {
        return told(&target, &version());
    }
    let Some(command) = cli.command else {
        return told(&target, &Cli::command().render_help().to_string());
    };
    let failure_code = command.failure_code();
    let protected = if command.enters() { protect() } else { Ok(()) };
    match protected.and_then(|()| command.run(&global)) {
        Ok(code) => ExitCode::from(code),
        Err(err) => failed(&target, &err, failure_code),
    }
}

/// Prints what was asked for instead of a command; the exit code.
fn told(target: &report::Target, text: &str) -> ExitCode {
    match print(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => failed(target, &err.into(), 1),
    }
}

/// Runs this program from where a container can't write to it. Returns if it does so already.
fn protect() -> anyhow::Result<()> {
    let args: Vec<OsString> = std::env::args_os().collect();
    crate::sys::exe::protect(&args).map_err(|err| anyhow::anyhow!("protect the runtime's own binary: {err}"))
}

fn version() -> String {
    let commit = option_env!("AGENTSBX_COMMIT").unwrap_or("unknown");
    format!("{NAME} version {}\ncommit: {commit}\nspec: {}\n", env!("CARGO_PKG_VERSION"), features::SPEC_VERSION)
}

/// Standard output could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write to standard output")]
struct PrintError(#[source] std::io::Error);

/// What a program that is killed by SIGPIPE seems to exit with.
const READER_GONE: u8 = 128 + 13;

/// Prints on stdout. That the reader has gone away ends the command, with nothing said ([`failed`]).
fn print(text: &str) -> Result<(), PrintError> {
    print_bytes(text.as_bytes())
}

/// The same of what need not be text.
fn print_bytes(bytes: &[u8]) -> Result<(), PrintError> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(PrintError)
}

/// Reports what failed; the exit code, `code` unless only a reader has gone away, who knows it himself.
fn failed(target: &report::Target, err: &anyhow::Error, code: u8) -> ExitCode {
    if err.downcast_ref().is_some_and(|PrintError(err)| err.kind() == std::io::ErrorKind::BrokenPipe) {
        return ExitCode::from(READER_GONE);
    }
    report::failure(target, &report::text(err));
    ExitCode::from(code)
}

/// Tells of something that failed without failing the command, in the log file only: stderr may be the container's.
fn warn(global: &Global, text: &str) {
    report::warning(&report::Target::of(global), text);
}

/// What is done, once what failed after it is told, on stderr and in the log file. It fails no command: who would do it
/// again would do it twice.
fn done<T>(global: &Global, done: Done<T>) -> T {
    if let Some(warning) = &done.warning {
        let text = report::plain_errno(&crate::error::chain(warning));
        let text = format!("it is done, and `agentsbx log` and `show` have it; but not everything after it: {text}");
        report::warning(&report::Target::of(global), &text);
        // A closed stderr is the caller's choice.
        let _ = writeln!(std::io::stderr(), "{NAME}: {}", render::visible(&text));
    }
    done.what
}

/// How many digits Docker prints of an id.
const SHORT_ID: usize = 12;

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

    /// As with Go's flags the last one counts: an engine's wrapper gives options before those of the engine itself.
    #[test]
    fn options_may_be_repeated() {
        let line = "agentsbx --root /a --systemd-cgroup --log /x --root /b --log /y --systemd-cgroup exec --cwd /a -t \
                    --env A=1 --cwd /b -t --env B=2 c1 true";
        let matches = Cli::command().try_get_matches_from(line.split_whitespace()).unwrap();
        assert_eq!(matches.get_one::<std::path::PathBuf>("root").unwrap().to_str(), Some("/b"));
        let exec = matches.subcommand_matches("exec").unwrap();
        assert_eq!(exec.get_one::<std::path::PathBuf>("cwd").unwrap().to_str(), Some("/b"));
        assert_eq!(exec.get_many::<String>("env").unwrap().collect::<Vec<_>>(), ["A=1", "B=2"]);
    }

    /// What [`short_cut`] understands, it understands as the whole definition does; all else is left to that.
    #[test]
    fn the_short_cut_means_the_same() {
        let words: Vec<&str> = "exec create start state kill delete run log help --help -h -help --version -v -- - -x --bad \
            --root --root=/r -root --log=/l -log --log-format=json --log-format=odd --debug=false -debug=true \
            --debug=maybe --systemd-cgroup --rootless=true --store=/s -b --bundle=/b -bundle --pid-file=/p -pid-file -d \
            -detach=true -t -tty -u=1:2 --user -e A=1 -e=B=2 --env -c=CAP_KILL --cap --preserve-fds=1 --preserve-fds -1 \
            --cwd=/ -g 5 -g=6 -p --process=/p --layer=hold --timeout=1s --ignore-paused --no-pivot -no-new-keyring \
            --keep -f -force -a --all 9 KILL c1 c2 true"
            .split_whitespace()
            .chain([""])
            .collect();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |n: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % n
        };
        let whole = Cli::command();
        let told = |matches: clap::ArgMatches| {
            Cli::from_arg_matches(&matches).map(|cli| format!("{cli:?}")).map_err(|err| err.to_string())
        };
        let mut understood = 0;
        for _ in 0..4000 {
            let (before, after) = (below(3), below(6));
            let mut line = vec![NAME];
            line.extend((0..before).map(|_| words[below(words.len())]));
            line.push(FREQUENT[below(FREQUENT.len())].0);
            line.extend((0..after).map(|_| words[below(words.len())]));
            let argv: Vec<OsString> = line.iter().map(OsString::from).collect();
            let Some(short) = short_cut(&argv) else { continue };
            let by_whole = whole.clone().try_get_matches_from(argv::normalise(argv, &whole));
            let by_whole = by_whole.unwrap_or_else(|err| panic!("{line:?}: {err}"));
            assert_eq!(told(short), told(by_whole), "{line:?}");
            understood += 1;
        }
        assert!(understood > 100, "{understood}");
    }

    #[test]
    fn version_has_the_lines_that_docker_splits() {
        let lines: Vec<String> = version().lines().map(str::to_owned).collect();
        assert!(lines[0].starts_with("agentsbx version "), "{lines:?}");
        assert!(lines[1].starts_with("commit: ") && lines[2].starts_with("spec: 1."), "{lines:?}");
    }

    /// Only release builds told it.
    #[test]
    fn the_commit_is_one_of_the_repository() {
        let git = |args: &[&str]| {
            let output = std::process::Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(args).output();
            output.ok().filter(|output| output.status.success()).map(|output| output.stdout)
        };
        let top = git(&["rev-parse", "--show-toplevel"]).unwrap_or_default();
        if String::from_utf8_lossy(&top).trim() != env!("CARGO_MANIFEST_DIR") {
            eprintln!("skipped: what is built is no repository");
            return;
        }
        let version = version();
        let commit = version.lines().nth(1).and_then(|line| line.strip_prefix("commit: ")).unwrap();
        assert_eq!(git(&["cat-file", "-t", commit]).as_deref(), Some(&b"commit\n"[..]), "{commit}");
    }
}
