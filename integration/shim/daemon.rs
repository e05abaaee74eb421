//! A containerd of a given release, with directories, sockets, a namespace and cgroups of its own, and the shim and the
//! runtime under test first in its PATH. It can be killed and started again.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::env::{binary, process, program, shim_binary, unique};
use crate::support::images::{self, BUSYBOX, repository};
use crate::support::{Cmd, Output, cmd, wait_until};

/// A release of containerd, from hack/containerds.sh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// 1.6 of Debian 12.
    C16,
    /// 1.7 of Debian 13.
    C17,
    /// 2.x of unstable.
    C2,
    /// The same, with a go-between that starts the shim, and reads its answer, in the form of 2.3 and later.
    C23,
}

/// Who stands between containerd and the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shim {
    /// Ours, with our runtime.
    Ours,
    /// containerd's own, with our runtime.
    StockOurs,
    /// containerd's own, with runc.
    Stock,
}

impl Release {
    /// All of them.
    pub const ALL: [Release; 4] = [Release::C16, Release::C17, Release::C2, Release::C23];

    fn all() -> &'static Path {
        static ONCE: OnceLock<PathBuf> = OnceLock::new();
        ONCE.get_or_init(|| {
            let dir = repository().join("target/containerd");
            Cmd::new(repository().join("hack/containerds.sh")).arg(&dir).limit(Duration::from_secs(600)).ok();
            dir
        })
    }

    /// Where Kubernetes' side of them is: `api.proto`, and plugins for networks in `cni/`.
    pub fn cri() -> PathBuf {
        Release::all().join("cri")
    }

    fn dir(self) -> PathBuf {
        Release::all().join(match self {
            Release::C16 => "1.6",
            Release::C17 => "1.7",
            Release::C2 | Release::C23 => "2",
        })
    }

    /// Where its programs are.
    pub fn bin(self) -> PathBuf {
        self.dir().join("bin")
    }

    /// What exactly it is: `containerd 1.7.24, docker 26.1.5`.
    pub fn version(self) -> String {
        let version = fs::read_to_string(self.dir().join("version")).expect("read the version");
        let form = if self == Release::C23 { " asking as 2.3" } else { "" };
        version.trim().replacen(',', &format!("{form},"), 1)
    }

    /// Whether it is of 2.x.
    pub fn is_2(self) -> bool {
        matches!(self, Release::C2 | Release::C23)
    }

    fn short(self) -> &'static str {
        match self {
            Release::C16 => "c16",
            Release::C17 => "c17",
            Release::C2 => "c2",
            Release::C23 => "c23",
        }
    }
}

impl Shim {
    /// The one that the tests are about. `AGENTSBX_IT_SHIM=runc` puts containerd's own in its place, with our runtime: so
    /// one sees whether a failure is the test's, the runtime's or the shim's.
    pub fn under_test() -> Shim {
        match std::env::var("AGENTSBX_IT_SHIM").as_deref() {
            Ok("runc") => Shim::StockOurs,
            Ok("stock") => Shim::Stock,
            _ => Shim::Ours,
        }
    }

    /// The runtime as containerd's clients name it.
    pub fn runtime(self) -> &'static str {
        match self {
            Shim::Ours => "io.containerd.agentsbx.v1",
            Shim::StockOurs | Shim::Stock => "io.containerd.runc.v2",
        }
    }
}

/// Makes `dir` a PATH that has the release's programs, and ours.
pub fn fill_path(release: Release, dir: &Path) {
    fs::create_dir_all(dir).expect("make a directory");
    let link = |from: &Path, name: &str| {
        let to = dir.join(name);
        std::os::unix::fs::symlink(from, &to).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
    };
    for entry in fs::read_dir(release.bin()).expect("list the programs") {
        let path = entry.expect("readdir").path();
        link(&path, &path.file_name().expect("a name").to_string_lossy());
    }
    link(&binary(), "agentsbx");
    let shim = match release {
        Release::C23 => {
            program(&include_str!("asks-as-2.3.py").replace("@SHIM@", &shim_binary().display().to_string()))
        }
        _ => shim_binary(),
    };
    link(&shim, "containerd-shim-agentsbx-v1");
}

/// A running containerd. Dropping it ends it with all its tasks; the guard does that for those that are never dropped.
#[derive(Debug)]
pub struct Containerd {
    /// Which.
    pub release: Release,
    /// Sockets, state, FIFOs, temporary files.
    pub run: PathBuf,
    /// Images and snapshots.
    data: PathBuf,
    /// The runtime's store.
    pub store: PathBuf,
    /// Parent of its containers' cgroups.
    pub cgroup: String,
    /// containerd's namespace: runtimes' roots on this machine are named after it, so it is nobody else's.
    pub namespace: String,
    log: PathBuf,
    /// The runtime's configuration.
    pub settings: PathBuf,
    child: Mutex<Option<Child>>,
    // A process in the network namespace that is the daemon's, where it has one of its own.
    network: Option<Child>,
}

/// What differs between containerds besides the release.
#[derive(Debug)]
pub struct Setup {
    /// Sockets and state go below it.
    pub run: PathBuf,
    /// containerd's namespace; none: one that is nobody else's.
    pub namespace: Option<String>,
    /// The configuration, but for what all have alike; the first word is `version`.
    pub config: fn(&Containerd) -> String,
    /// The runtime's configuration.
    pub settings: PathBuf,
    /// Whether it has a network namespace of its own.
    pub own_network: bool,
}

impl Containerd {
    /// The one that tests share which do not kill it.
    pub fn shared(release: Release) -> &'static Containerd {
        static ALL: [OnceLock<Containerd>; Release::ALL.len()] = [const { OnceLock::new() }; Release::ALL.len()];
        ALL[release as usize].get_or_init(|| Containerd::start(release))
    }

    /// A new one, with the busybox image.
    pub fn start(release: Release) -> Containerd {
        Containerd::start_in(release, None)
    }

    /// The same, in this namespace of containerd's.
    pub fn start_in(release: Release, namespace: Option<String>) -> Containerd {
        // Without CRI, and without what listens where all containerds of a machine would.
        fn config(_: &Containerd) -> String {
            "version = 2\ndisabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', \
             'io.containerd.cri.v1.runtime', 'io.containerd.podsandbox.controller.v1.podsandbox', \
             'io.containerd.nri.v1.nri']\n"
                .to_owned()
        }
        let process = process();
        let (run, settings) = (process.run.clone(), process.defaults.clone());
        Containerd::start_with(release, Setup { run, namespace, config, settings, own_network: false })
    }

    /// A new one of another kind, with the busybox image.
    pub fn start_with(release: Release, setup: Setup) -> Containerd {
        let process = process();
        let name = unique(release.short());
        let own = || format!("agentsbx-it-{}-{name}", std::process::id());
        let mut containerd = Containerd {
            release,
            run: setup.run.join(&name),
            data: process.data.join(&name),
            store: process.data.join(&name).join("store"),
            cgroup: format!("{}/{name}", process.cgroup),
            log: process.logs.join(format!("{name}.log")),
            namespace: setup.namespace.unwrap_or_else(own),
            settings: setup.settings,
            child: Mutex::new(None),
            network: None,
        };
        for dir in ["tmp", "fifo"] {
            fs::create_dir_all(containerd.run.join(dir)).expect("make a directory");
        }
        fs::create_dir_all(&containerd.data).expect("make a directory");
        fill_path(release, &containerd.run.join("bin"));
        let (data, run) = (containerd.data.display(), containerd.run.display());
        // What is at the top comes first, tables last.
        let top = format!("root = '{data}/containerd'\nstate = '{run}/containerd'\noom_score = 0\n");
        let tables = format!(
            "[grpc]\n  address = '{run}/containerd.sock'\n[debug]\n  level = 'debug'\n\
             [plugins.'io.containerd.internal.v1.opt']\n  path = '{data}/opt'\n"
        );
        let config = top + &(setup.config)(&containerd) + &tables;
        fs::write(containerd.run.join("containerd.toml"), config).expect("write a configuration");
        fs::write(&containerd.log, "").expect("make a log");
        containerd.network = setup.own_network.then(|| own_network(&containerd.run));
        containerd.launch();
        containerd.ctr(["images", "import"]).arg(images::busybox_archive()).ok();
        containerd
    }

    /// Starts the daemon, after [`Containerd::kill`].
    pub fn launch(&self) {
        let log = fs::OpenOptions::new().append(true).open(&self.log).expect("open the log");
        let program = self.run.join("bin/containerd");
        let mut command = match self.network() {
            Some(network) => {
                let mut enter = Command::new("/usr/bin/nsenter");
                enter.arg(format!("--net={}", network.display())).arg(program);
                enter
            }
            None => Command::new(program),
        };
        let child = command
            .arg("--config")
            .arg(self.run.join("containerd.toml"))
            .env("PATH", format!("{}/bin:{}", self.run.display(), cmd::PATH))
            .env("AGENTSBX_STORE", &self.store)
            .env("AGENTSBX_CONFIG", &self.settings)
            .env("TMPDIR", self.run.join("tmp"))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("dup"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("start containerd");
        fs::write(self.run.join("containerd.pid"), child.id().to_string()).expect("write the pid");
        *self.child() = Some(child);
        wait_until(&format!("an answer of {} ({})", self.release.version(), self.log.display()), SOON * 3, || {
            self.ctr(["version"]).run().code == 0
        });
    }

    /// The network namespace, where it has one of its own.
    pub fn network(&self) -> Option<PathBuf> {
        self.network.as_ref().map(|holder| Path::new("/proc").join(holder.id().to_string()).join("ns/net"))
    }

    /// Where the engine keeps images, snapshots and records.
    pub fn data(&self) -> &Path {
        &self.data
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the daemon by `signal`; its tasks go on.
    pub fn kill(&self, signal: Signal) {
        let Some(mut child) = self.child().take() else { return };
        kill_process(Pid::from_child(&child), signal).expect("kill containerd");
        child.wait().expect("wait for containerd");
    }

    /// `ctr ARGS…`
    pub fn ctr<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd {
        let ctr = Cmd::new(self.run.join("bin/ctr")).arg("--address").arg(self.run.join("containerd.sock"));
        ctr.args(["--namespace", &self.namespace]).args(args)
    }

    /// `agentsbx ARGS…` on its store.
    pub fn agentsbx<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd {
        Cmd::new(binary()).env("AGENTSBX_CONFIG", &self.settings).arg("--store").arg(&self.store).args(args)
    }

    /// The same with `--json`, parsed.
    #[track_caller]
    pub fn json<const N: usize>(&self, args: [&str; N]) -> Value {
        let text = self.agentsbx(args).arg("--json").ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e} in {text}"))
    }

    /// A task's bundle.
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.run.join("containerd/io.containerd.runtime.v2.task").join(&self.namespace).join(id)
    }

    /// What containerd has written down of the shim's answer, from 1.7 on.
    fn answer(&self, id: &str) -> Option<Value> {
        let text = fs::read_to_string(self.bundle(id).join("bootstrap.json")).ok()?;
        Some(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }

    /// The socket of a task's shim, without a scheme.
    #[track_caller]
    pub fn socket(&self, id: &str) -> PathBuf {
        let address = match self.answer(id) {
            Some(answer) => answer["address"].as_str().expect("an address").to_owned(),
            // The shim's own file, of which 1.6 knows.
            None => fs::read_to_string(self.bundle(id).join("address")).expect("read the address"),
        };
        PathBuf::from(address.trim().trim_start_matches("unix://"))
    }

    /// The version of the task service that a task's shim has spoken of.
    pub fn task_version(&self, id: &str) -> u64 {
        self.answer(id).and_then(|answer| answer["version"].as_u64()).unwrap_or(2)
    }

    /// The pids of its shims, of all tasks or of one.
    pub fn shims(&self, id: Option<&str>) -> Vec<i32> {
        let has = |words: &[&[u8]], name: &str, value: &str| {
            words.windows(2).any(|pair| pair[0] == name.as_bytes() && pair[1] == value.as_bytes())
        };
        let socket = self.run.join("containerd.sock").display().to_string();
        let of = |words: &[&[u8]]| {
            has(words, "-namespace", &self.namespace)
                && has(words, "-address", &socket)
                && id.is_none_or(|id| has(words, "-id", id))
        };
        processes()
            .into_iter()
            .filter(|(_, line)| of(&line.split(|b| *b == 0).collect::<Vec<_>>()))
            .map(|p| p.0)
            .collect()
    }

    /// What its log says since byte `from`.
    pub fn log(&self, from: u64) -> String {
        let bytes = fs::read(&self.log).expect("read the log");
        String::from_utf8_lossy(&bytes[usize::try_from(from).expect("small")..]).into_owned()
    }

    /// How long its log is.
    pub fn log_len(&self) -> u64 {
        fs::metadata(&self.log).expect("stat the log").len()
    }

    /// `ctr run OPTIONS… IMAGE ID ARGS…` with the given shim.
    pub fn run_with(&self, shim: Shim, id: &str, options: &[&str], args: &[&str]) -> Cmd {
        let mut ctr = self.ctr(["run", "--runtime", shim.runtime()]);
        if shim == Shim::StockOurs {
            ctr = ctr.arg("--runc-binary").arg(binary());
        }
        let cgroup = format!("{}/{id}", self.cgroup);
        let fifos = self.run.join("fifo");
        ctr.args(["--cgroup", &cgroup, "--fifo-dir"]).arg(fifos).args(options).args([BUSYBOX, id]).args(args)
    }

    /// The same with the shim under test.
    pub fn run(&self, id: &str, options: &[&str], args: &[&str]) -> Cmd {
        self.run_with(Shim::under_test(), id, options, args)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if self.child().is_some() {
            let tasks = self.ctr(["tasks", "list", "--quiet"]).run().stdout;
            for id in tasks.split_whitespace() {
                self.ctr(["tasks", "delete", "--force", id]).run();
            }
            self.kill(Signal::TERM);
        }
        for pid in self.shims(None) {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if let Some(holder) = &mut self.network {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

/// A process that holds a new network namespace, with its loopback device up. The guard knows it by its arguments.
fn own_network(run: &Path) -> Child {
    let mut holder = Command::new("/usr/bin/unshare")
        .args(["--net", "/bin/sh", "-c", ": >\"$0\" && ip link set lo up && echo up && exec tail -f \"$0\" >/dev/null"])
        .arg(run.join("network"))
        .env("PATH", cmd::PATH)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("start unshare");
    let mut word = String::new();
    let mut output = BufReader::new(holder.stdout.take().expect("a pipe"));
    output.read_line(&mut word).expect("read");
    assert_eq!(word, "up\n", "no network namespace");
    holder
}

/// How long something may take that should be done at once.
pub const SOON: Duration = Duration::from_secs(10);

/// Sends `signal` to the process `pid`, which must be there.
#[track_caller]
pub fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("kill");
}

/// All processes: pids and arguments, each with a NUL after it.
pub fn processes() -> Vec<(i32, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("list /proc").flatten() {
        if let Ok(pid) = entry.file_name().to_string_lossy().parse() {
            found.push((pid, fs::read(entry.path().join("cmdline")).unwrap_or_default()));
        }
    }
    found
}

/// A container and its task, ended by force when it goes out of scope.
#[derive(Debug)]
pub struct Task<'a> {
    /// Its containerd.
    pub containerd: &'a Containerd,
    /// Its id.
    pub id: String,
}

impl<'a> Task<'a> {
    /// One whose first process only waits.
    #[track_caller]
    pub fn idle(containerd: &'a Containerd, options: &[&str]) -> Task<'a> {
        Task::of(containerd, Shim::under_test(), options, &["sleep", "100000"])
    }

    /// One with a first process of its own, without streams.
    #[track_caller]
    pub fn of(containerd: &'a Containerd, shim: Shim, options: &[&str], args: &[&str]) -> Task<'a> {
        let task = Task { containerd, id: unique("task") };
        let options = [&["--detach", "--null-io"], options].concat();
        containerd.run_with(shim, &task.id, &options, args).run().expect(0);
        task
    }

    /// `ctr tasks exec OPTIONS… ID ARGS…`
    pub fn exec(&self, options: &[&str], args: &[&str]) -> Cmd {
        let exec = unique("exec");
        let named = options.contains(&"--exec-id");
        let name: &[&str] = if named { &[] } else { &["--exec-id", &exec] };
        let fifos = self.containerd.run.join("fifo");
        let ctr = self.containerd.ctr(["tasks", "exec", "--fifo-dir"]).arg(fifos);
        ctr.args(name).args(options).arg(&self.id).args(args)
    }

    /// `ctr tasks exec ID sh -c SCRIPT`
    pub fn sh(&self, script: &str) -> Output {
        self.exec(&[], &["sh", "-c", script]).run()
    }

    /// `ctr tasks VERB OPTIONS… ID`
    pub fn verb(&self, verb: &str, options: &[&str]) -> Output {
        self.containerd.ctr(["tasks", verb]).args(options).arg(&self.id).run()
    }

    /// What `ctr tasks list` says: `RUNNING`, `STOPPED`, nothing when it is gone.
    pub fn status(&self) -> String {
        let list = self.containerd.ctr(["tasks", "list"]).ok();
        let mut words = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let line = words.find(|words| words.first() == Some(&self.id.as_str()));
        line.and_then(|words| words.last().map(|&word| word.to_owned())).unwrap_or_default()
    }

    /// Waits for a status.
    #[track_caller]
    pub fn wait_status(&self, status: &str) {
        let begun = Instant::now();
        loop {
            let now = self.status();
            if now == status {
                return;
            }
            let name = self.containerd.release.version();
            assert!(begun.elapsed() < SOON, "{name}: {} is {now:?}, not {status}", self.id);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The first process's pid, from containerd.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        let list = self.containerd.ctr(["tasks", "list"]).ok();
        let line = list.lines().find(|line| line.starts_with(&format!("{} ", self.id)));
        let pid = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        pid.unwrap_or_else(|| panic!("no pid of {} in {list}", self.id))
    }

    /// `kill -KILL` of the first process, from outside.
    #[track_caller]
    pub fn kill_first_process(&self) {
        signal(self.pid(), Signal::KILL);
    }

    /// Ends it and takes it away; nothing may go wrong.
    #[track_caller]
    pub fn remove(self) {
        if self.status() != "STOPPED" {
            self.verb("kill", &["--signal", "KILL"]).expect(0);
            self.wait_status("STOPPED");
        }
        self.verb("delete", &[]);
        self.containerd.ctr(["containers", "delete", &self.id]).run().expect(0);
        std::mem::forget(self);
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        if self.containerd.child().is_none() {
            return;
        }
        // Of a test that fails anyway it does not matter what of this hangs.
        let put_away = std::panic::AssertUnwindSafe(|| {
            self.verb("kill", &["--signal", "KILL"]);
            self.verb("delete", &["--force"]);
            self.containerd.ctr(["containers", "delete", &self.id]).run();
        });
        if let Err(panic) = std::panic::catch_unwind(put_away)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}
