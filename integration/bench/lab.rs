//! Where the benchmarks take place: directories of their own, the runtimes, containers; all put away in the end.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::{Args, config};

/// The name of the subject in every table.
pub const SUBJECT: &str = "agentsbx";

/// A runtime, with the options that it gets before every command.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// Its name in tables.
    pub name: String,
    /// Its file.
    pub program: PathBuf,
    options: Vec<String>,
}

impl Runtime {
    /// A command of it.
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.options).args(args);
        command
    }

    /// Whether it is the one that is measured against the others.
    pub fn is_subject(&self) -> bool {
        self.name == SUBJECT
    }
}

/// The place.
#[derive(Debug)]
pub struct Lab {
    /// The subject, then those of its peers that can run a container here.
    pub runtimes: Vec<Runtime>,
    /// Peers that can't, and why.
    pub left_out: Vec<(String, String)>,
    /// Measured rounds.
    pub runs: usize,
    /// Stores and bundles.
    pub dir: PathBuf,
    /// State of runtimes and engines; a short path.
    pub run: PathBuf,
    /// Parent of the containers' cgroups.
    pub cgroup: String,
    /// The root filesystem's tar.
    pub rootfs: PathBuf,
    /// Where containerd, `ctr` and containerd's own shim are.
    pub containerd: PathBuf,
    // Its stdin is the pipe whose end tells it to put everything away.
    guard: Child,
}

impl Lab {
    /// Makes the directories, and tries which of the peers can run a container.
    pub fn new(args: &Args) -> anyhow::Result<Lab> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("agentsbx-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let run = Path::new("/run").join(&name);
        let dir = args.dir.join(&name);
        fs::create_dir_all(&run).with_context(|| format!("make {}", run.display()))?;
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        // runc refuses a root filesystem whose path has a symlink in it.
        let dir = fs::canonicalize(&dir)?;
        let cgroup = format!("/{name}");
        let guard = Command::new("setsid")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("hack/guard.sh"))
            .args([run.as_os_str(), dir.as_os_str(), cgroup.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start hack/guard.sh")?;
        let subject = fs::canonicalize(&args.subject).with_context(|| args.subject.display().to_string())?;
        let option = |name: &str, value: &Path| vec![name.to_owned(), value.display().to_string()];
        let root = |name: &str| option("--root", &run.join(name));
        // The default, but for the containers that take part with both profiles.
        writeln!(fs::File::create(dir.join("config.toml"))?, "allow = ['profile']")?;
        let mut lab = Lab {
            runtimes: vec![Runtime {
                name: SUBJECT.into(),
                program: subject,
                options: [root(SUBJECT), option("--store", &dir.join("store"))].concat(),
            }],
            left_out: Vec::new(),
            runs: args.runs,
            rootfs: args.rootfs.clone(),
            containerd: args.containerd.clone(),
            dir,
            run: run.clone(),
            cgroup,
            guard,
        };
        let no_cgroups = [root("crun-nocg"), vec!["--cgroup-manager=disabled".into()]].concat();
        let mut peers = vec![
            ("runc".to_owned(), PathBuf::from("runc"), root("runc")),
            ("crun".to_owned(), "crun".into(), [root("crun"), vec!["--cgroup-manager=cgroupfs".into()]].concat()),
            ("crun, no cgroups".to_owned(), "crun".into(), no_cgroups),
        ];
        for peer in &args.peers {
            let (name, file) = peer.split_once('=').with_context(|| format!("--peer {peer}: not NAME=FILE"))?;
            peers.push((name.to_owned(), file.into(), root(name)));
        }
        for (name, program, options) in peers {
            let peer = Runtime { name, program, options };
            let tried = lab.container(&peer, &["sleep", "1000"]).map(drop);
            match tried {
                Ok(()) => lab.runtimes.push(peer),
                Err(err) => lab.left_out.push((peer.name, format!("{err:#}"))),
            }
        }
        // The subject has to.
        lab.container(lab.subject(), &["sleep", "1000"])?;
        Ok(lab)
    }

    /// What is measured.
    pub fn subject(&self) -> &Runtime {
        &self.runtimes[0]
    }

    /// The layers that the subject's store has.
    pub fn layers(&self) -> anyhow::Result<Vec<PathBuf>> {
        let list = fs::read_dir(self.dir.join("store/layers"))?;
        Ok(list.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?)
    }

    fn prepared<'c>(&self, command: &'c mut Command) -> anyhow::Result<&'c mut Command> {
        let path = "/usr/sbin:/usr/bin:/sbin:/bin";
        let stderr = fs::File::create(self.dir.join("stderr"))?;
        command.env_clear().env("PATH", path).env("AGENTSBX_CONFIG", self.dir.join("config.toml"));
        Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr))
    }

    fn limit(&self, command: &Command) -> Duration {
        if command.get_program() == self.runtimes[0].program { LONG_LIMIT } else { LIMIT }
    }

    fn checked(&self, command: &Command, status: ExitStatus, want: i32) -> anyhow::Result<()> {
        if status.code() == Some(want) {
            return Ok(());
        }
        let stderr = fs::read_to_string(self.dir.join("stderr")).unwrap_or_default();
        let line: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        let program = command.get_program().to_string_lossy();
        bail!("{program} {}: {status} and not {want}: {}", line.join(" "), stderr.trim());
    }

    /// Runs it without output, asserts its exit code, and gives the nanoseconds from before its start to after its end.
    pub fn timed(&self, mut command: Command, want: i32) -> anyhow::Result<f64> {
        self.prepared(&mut command)?;
        let begun = Instant::now();
        let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
        let status = within(&mut child, self.limit(&command))?;
        let took = begun.elapsed();
        self.checked(&command, status, want)?;
        Ok(took.as_nanos() as f64)
    }

    /// Starts all of them, waits for all of them, asserts their exit codes; the nanoseconds from first to last.
    pub fn timed_together(&self, commands: Vec<(Command, i32)>) -> anyhow::Result<f64> {
        let mut commands = commands;
        for (command, _) in &mut commands {
            self.prepared(command)?;
        }
        let begun = Instant::now();
        let mut children = Vec::new();
        for (command, want) in &mut commands {
            children.push((command.spawn()?, *want));
        }
        let mut ends = Vec::new();
        for (child, want) in &mut children {
            ends.push((within(child, LIMIT)?, *want));
        }
        let took = begun.elapsed();
        for ((command, _), (status, want)) in commands.iter().zip(ends) {
            self.checked(command, status, want)?;
        }
        Ok(took.as_nanos() as f64)
    }

    /// Starts it and does not wait.
    pub fn started(&self, mut command: Command) -> anyhow::Result<Child> {
        Ok(self.prepared(&mut command)?.spawn()?)
    }

    /// Runs it and gives what it prints.
    pub fn output(&self, mut command: Command) -> anyhow::Result<String> {
        let path = self.dir.join("stdout");
        let mut child = self.prepared(&mut command)?.stdout(fs::File::create(&path)?).spawn()?;
        let status = within(&mut child, self.limit(&command))?;
        self.checked(&command, status, 0)?;
        fs::read_to_string(&path).with_context(|| format!("{command:?}"))
    }

    /// Runs it and parses the JSON that it prints.
    pub fn json(&self, command: Command) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.output(command)?)?)
    }

    /// A bundle of the root filesystem, whose first process is `args`; the container's id is the directory's name.
    pub fn bundle(&self, args: &[&str]) -> anyhow::Result<PathBuf> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let id = format!("b{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let bundle = self.dir.join(&id);
        let rootfs = bundle.join("rootfs");
        fs::create_dir_all(&rootfs)?;
        let status = Command::new("tar").arg("-C").arg(&rootfs).arg("-xf").arg(&self.rootfs).status()?;
        ensure!(status.success(), "tar -xf {}: {status}", self.rootfs.display());
        let config = config::config(args, &format!("{}/{id}", self.cgroup));
        let file = fs::File::create(bundle.join("config.json"))?;
        serde_json::to_writer_pretty(file, &config)?;
        Ok(bundle)
    }

    /// The same for the subject, with another profile than the default.
    pub fn bundle_of(&self, args: &[&str], profile: &str) -> anyhow::Result<PathBuf> {
        let bundle = self.bundle(args)?;
        let path = bundle.join("config.json");
        let mut config: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        config["annotations"]["dev.agentsbx.profile"] = profile.into();
        serde_json::to_writer_pretty(fs::File::create(&path)?, &config)?;
        Ok(bundle)
    }

    /// A running container of a runtime.
    pub fn container<'a>(&'a self, runtime: &Runtime, args: &[&str]) -> anyhow::Result<Container<'a>> {
        self.container_of(runtime, self.bundle(args)?)
    }

    /// The same of a bundle that is there.
    pub fn container_of<'a>(&'a self, runtime: &Runtime, bundle: PathBuf) -> anyhow::Result<Container<'a>> {
        let id = bundle.file_name().and_then(OsStr::to_str).context("a bundle has a name")?.to_owned();
        let container = Container { lab: self, runtime: runtime.clone(), id, bundle };
        let bundle = container.bundle.as_os_str();
        let run = ["run".as_ref(), "--detach".as_ref(), "--bundle".as_ref(), bundle, container.id.as_ref()];
        self.timed(runtime.command::<&OsStr>(run), 0)?;
        Ok(container)
    }
}

/// Longest time that a command may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The same for the subject's, which also make 100,000 files: minutes, on a busy disk.
const LONG_LIMIT: Duration = Duration::from_secs(900);

/// Waits for a child, which is killed when it takes too long. By its pidfd, so that its end is seen at once.
fn within(child: &mut Child, limit: Duration) -> anyhow::Result<ExitStatus> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let pid = rustix::process::Pid::from_child(child);
    let ended = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let timeout = Timespec { tv_sec: i64::try_from(limit.as_secs())?, tv_nsec: 0 };
    let mut fds = [PollFd::new(&ended, PollFlags::IN)];
    if rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))? == 0 {
        child.kill()?;
        child.wait()?;
        bail!("it took more than {} s and was killed", limit.as_secs());
    }
    Ok(child.wait()?)
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The guard removes all that is left when its input ends; it may take as long as there are files.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        if self.run.exists() || self.dir.exists() {
            eprintln!("bench: {} or {} could not be removed", self.run.display(), self.dir.display());
        }
    }
}

/// A running container; deleted when it goes out of scope.
#[derive(Debug)]
pub struct Container<'a> {
    /// Where.
    pub lab: &'a Lab,
    /// Whose.
    pub runtime: Runtime,
    /// Its id.
    pub id: String,
    /// Its bundle.
    pub bundle: PathBuf,
}

impl Container<'_> {
    /// `RUNTIME VERB FLAGS… ID ARGS…`
    pub fn command<'x>(&'x self, verb: &'x str, flags: &[&'x str], args: &[&'x str]) -> Command {
        self.runtime.command([&[verb], flags, &[self.id.as_str()], args].concat())
    }

    /// `exec ID ARGS…`
    pub fn exec(&self, args: &[&str]) -> Command {
        self.command("exec", &[], args)
    }

    /// What the host sees of the container's root filesystem.
    pub fn path(&self, name: &str) -> PathBuf {
        self.bundle.join("rootfs").join(name)
    }

    /// The last exec's result document.
    pub fn show(&self) -> anyhow::Result<Value> {
        self.lab.json(self.command("show", &["--json"], &[]))
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        if self.lab.timed(self.command("delete", &["--force"], &[]), 0).is_ok() {
            // What stays, the guard removes.
            let _ = fs::remove_dir_all(&self.bundle);
        }
    }
}

/// Asks every millisecond until there is an answer, for at most 20 s.
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(answer) = probe() {
            return Ok(answer);
        }
        ensure!(begun.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}
