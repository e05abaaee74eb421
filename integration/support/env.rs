//! The hermetic environment of one test process: own directories, store, cgroups, and the guard that removes them.
//!
//! ```text
//! RUN    /run/agentsbx-it-PID        sockets and runtime state: short paths
//! DATA   target/it/PID               store, bundles, the engines' images: a filesystem that can hold overlay uppers
//! CGROUP /agentsbx-it-PID            parent of every container's cgroup
//! LOGS   target/it/logs              the daemons' output, kept
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::images::repository;
use super::{Cmd, Output, cmd};

/// The directories that all tests of this process share.
#[derive(Debug)]
pub struct Process {
    /// Sockets and runtime state.
    pub run: PathBuf,
    /// Store, bundles, images.
    pub data: PathBuf,
    /// Parent of every container's cgroup, such as `/agentsbx-it-123`.
    pub cgroup: String,
    /// The daemons' output.
    pub logs: PathBuf,
    /// A configuration file of the tests' own, so that the host's has no say: profile `oci`.
    pub config: PathBuf,
    /// The same for what engines start: the defaults, which are people's, but that execs may ask for no layer.
    pub defaults: PathBuf,
    // Its stdin is the pipe whose end tells it to put everything away; held, never used.
    _guard: Child,
}

/// The environment, made (and its guard started) when it is first asked for.
pub fn process() -> &'static Process {
    static PROCESS: OnceLock<Process> = OnceLock::new();
    PROCESS.get_or_init(|| {
        assert!(rustix::process::geteuid().is_root(), "the integration tests need root");
        let name = format!("agentsbx-it-{}", std::process::id());
        let run = Path::new("/run").join(&name);
        let it = repository().join("target/it");
        let data = it.join(std::process::id().to_string());
        let logs = it.join("logs");
        let cgroup = format!("/{name}");
        for dir in [&run, &data, &logs] {
            fs::create_dir_all(dir).expect("make a directory");
        }
        // runc refuses a root filesystem whose path has a symlink in it.
        let [run, data, logs] = [run, data, logs].map(|dir| fs::canonicalize(dir).expect("resolve a directory"));
        let config = data.join("config.toml");
        fs::write(&config, "profile = 'oci'\n").expect("write a configuration");
        let defaults = data.join("defaults.toml");
        fs::write(&defaults, "allow = ['shared-layer']\n").expect("write a configuration");
        let log = fs::File::create(logs.join("guard.log")).expect("make the guard's log");
        let guard = Command::new("setsid")
            .arg(repository().join("hack/guard.sh"))
            .args([run.as_os_str(), data.as_os_str(), cgroup.as_ref()])
            .env("PATH", cmd::PATH)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("dup"))
            .stderr(log)
            .spawn()
            .expect("start hack/guard.sh");
        Process { run, data, cgroup, logs, config, defaults, _guard: guard }
    })
}

/// The binary under test.
pub fn binary() -> PathBuf {
    match std::env::var_os("AGENTSBX_BIN") {
        Some(path) => fs::canonicalize(&path).unwrap_or_else(|e| panic!("AGENTSBX_BIN {path:?}: {e}")),
        None => PathBuf::from(env!("CARGO_BIN_EXE_agentsbx")),
    }
}

/// containerd's shim under test: beside the runtime's.
pub fn shim_binary() -> PathBuf {
    match std::env::var_os("AGENTSBX_BIN") {
        Some(_) => binary().with_file_name("containerd-shim-agentsbx-v1"),
        None => PathBuf::from(env!("CARGO_BIN_EXE_containerd-shim-agentsbx-v1")),
    }
}

/// A new program that is this script. It is where programs may be: hosts have `/run` mounted `noexec`.
pub fn program(script: &str) -> PathBuf {
    let program = process().data.join(unique("program"));
    fs::write(&program, script).expect("write a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");
    program
}

/// A name that no other test of this process has.
pub fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// One test's own runtime root and store, without any engine. Dropping it deletes its containers.
#[derive(Debug)]
pub struct Env {
    /// `--root`
    pub root: PathBuf,
    /// `--store`
    pub store: PathBuf,
    /// Bundles and other scratch files.
    pub dir: PathBuf,
    /// `AGENTSBX_CONFIG`
    pub config: PathBuf,
    /// The binary.
    pub binary: PathBuf,
}

impl Env {
    /// A new one, empty.
    pub fn new() -> Env {
        let name = unique("env");
        let env = Env {
            root: process().run.join(&name),
            store: process().data.join(&name).join("store"),
            dir: process().data.join(&name),
            config: process().config.clone(),
            binary: binary(),
        };
        fs::create_dir_all(&env.dir).expect("make a directory");
        env
    }

    /// A new one with a configuration of its own; one without a word in it is the default: profile `strict`.
    pub fn with_config(text: &str) -> Env {
        let mut env = Env::new();
        env.config = env.dir.join("config.toml");
        fs::write(&env.config, text).expect("write a configuration");
        env
    }

    /// An `agentsbx` command with this environment's root and store.
    pub fn cmd<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd {
        let places = [&"--root".into(), &self.root, &"--store".into(), &self.store];
        // A process that shows no arguments of its own is known by its environment.
        Cmd::new(&self.binary).env("AGENTSBX_CONFIG", &self.config).env("TEST_ROOT", &self.root).args(places).args(args)
    }

    /// Runs `agentsbx` with this environment's root and store.
    pub fn run<const N: usize>(&self, args: [&str; N]) -> Output {
        self.cmd(args).run()
    }

    /// Runs it, asserts success, and gives standard output.
    #[track_caller]
    pub fn ok<const N: usize>(&self, args: [&str; N]) -> String {
        self.run(args).ok()
    }

    /// Runs `agentsbx … --json` and parses what it prints.
    #[track_caller]
    pub fn json<const N: usize>(&self, args: [&str; N]) -> serde_json::Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e} in {text}"))
    }
}

impl Drop for Env {
    fn drop(&mut self) {
        let ids = self.run(["list", "-q"]);
        for id in ids.stdout.split_whitespace() {
            self.run(["delete", "--force", id]);
        }
    }
}
