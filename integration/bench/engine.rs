//! A containerd of the benchmarks' own, under which shims are measured: all in one, so that they differ in nothing else.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, ensure};

use super::lab::{Lab, wait_for};

/// The image that hack/images.sh makes of the root filesystem.
const IMAGE: &str = "localhost/agentsbx-test/busybox:latest";

/// What takes part: a shim, and the runtime that it runs.
#[derive(Debug, Clone)]
pub struct Shim {
    /// Its name in tables.
    pub name: &'static str,
    /// What `ctr run` is told.
    options: Vec<String>,
    /// The shim's program, by name.
    program: &'static str,
    /// The runtime's, by name.
    runtime: String,
}

/// A running containerd.
#[derive(Debug)]
pub struct Engine<'a> {
    /// Where.
    pub lab: &'a Lab,
    namespace: String,
    child: Child,
}

impl Engine<'_> {
    /// Starts it, with the image. Directories and images are those of the one before, if there was one.
    pub fn start(lab: &Lab) -> anyhow::Result<Engine<'_>> {
        let run = lab.run.display();
        let name = lab.run.file_name().and_then(OsStr::to_str).context("a name")?;
        // The guard looks for state by this name.
        let namespace = format!("{name}-shim");
        for dir in ["tmp", "fifo"] {
            fs::create_dir_all(lab.run.join(dir))?;
        }
        // Without CRI, and without what listens where all containerds of a machine would: names of 1.x and of 2.x.
        writeln!(
            fs::File::create(lab.run.join("containerd.toml"))?,
            "version = 2\nroot = '{data}/containerd'\nstate = '{run}/containerd'\noom_score = 0\n\
             disabled_plugins = ['io.containerd.grpc.v1.cri', 'io.containerd.cri.v1.images', \
             'io.containerd.cri.v1.runtime', 'io.containerd.podsandbox.controller.v1.podsandbox', \
             'io.containerd.nri.v1.nri']\n\
             [grpc]\n  address = '{run}/containerd.sock'\n\
             [plugins.'io.containerd.internal.v1.opt']\n  path = '{data}/opt'",
            data = lab.dir.display(),
        )?;
        let log = fs::File::create(lab.dir.join("containerd.log"))?;
        let beside = lab.subject().program.parent().context("the subject's directory")?;
        let path = format!("{}:{}:/usr/sbin:/usr/bin:/sbin:/bin", beside.display(), lab.containerd.display());
        let child = Command::new(lab.containerd.join("containerd"))
            .arg("--config")
            .arg(lab.run.join("containerd.toml"))
            .env_clear()
            .env("PATH", path)
            .env("AGENTSBX_STORE", lab.dir.join("store"))
            .env("AGENTSBX_CONFIG", lab.dir.join("config.toml"))
            .env("TMPDIR", lab.run.join("tmp"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("start containerd")?;
        let engine = Engine { lab, namespace, child };
        write!(fs::File::create(lab.run.join("containerd.pid"))?, "{}", engine.child.id())?;
        wait_for("an answer of containerd", || lab.timed(engine.ctr(["version"]), 0).ok())?;
        let image = lab.rootfs.with_extension("image.tar");
        lab.timed(engine.ctr(["images".as_ref(), "import".as_ref(), image.as_os_str()]), 0)?;
        Ok(engine)
    }

    /// `ctr ARGS…`
    pub fn ctr<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut ctr = Command::new(self.lab.containerd.join("ctr"));
        ctr.arg("--address")
            .arg(self.lab.run.join("containerd.sock"))
            .args(["--namespace", &self.namespace])
            .args(args);
        ctr
    }

    /// `ctr run OPTIONS… IMAGE ID ARGS…`, with the seccomp profile that Docker and Kubernetes give.
    pub fn run(&self, shim: &Shim, options: &[&str], id: &str, args: &[&str]) -> Command {
        let mut ctr = self.ctr(["run", "--seccomp", "--cgroup"]);
        ctr.arg(format!("{}/{id}", self.lab.cgroup)).arg("--fifo-dir").arg(self.lab.run.join("fifo"));
        ctr.args(&shim.options).args(options).args([IMAGE, id]).args(args);
        ctr
    }

    /// `ctr tasks exec OPTIONS… ID ARGS…`
    pub fn exec(&self, options: &[&str], id: &str, args: &[&str]) -> Command {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mut ctr = self.ctr(["tasks", "exec", "--exec-id"]);
        ctr.arg(format!("e{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        ctr.arg("--fifo-dir").arg(self.lab.run.join("fifo")).args(options).arg(id).args(args);
        ctr
    }

    /// Makes a container whose first process sleeps; `options` are of `ctr run`.
    pub fn container(&self, shim: &Shim, options: &[&str], id: &str) -> anyhow::Result<()> {
        let options = [&["--detach", "--null-io"], options].concat();
        self.lab.timed(self.run(shim, &options, id, &["sleep", "100000"]), 0).map(drop)
    }

    /// Takes it away.
    pub fn remove(&self, id: &str) -> anyhow::Result<()> {
        self.lab.timed(self.ctr(["tasks", "kill", "--signal", "KILL", id]), 0)?;
        wait_for("the end of a task", || {
            let list = self.lab.output(self.ctr(["tasks", "list"])).ok()?;
            let line = list.lines().find(|line| line.split_whitespace().next() == Some(id));
            line.is_none_or(|line| line.ends_with("STOPPED")).then_some(())
        })?;
        self.lab.timed(self.ctr(["tasks", "delete", id]), 0)?;
        self.lab.timed(self.ctr(["containers", "delete", id]), 0).map(drop)
    }

    /// The containers that there are.
    pub fn containers(&self) -> anyhow::Result<String> {
        self.lab.output(self.ctr(["containers", "list", "--quiet"]))
    }

    /// The pids of the processes that serve this containerd with a shim's program.
    pub fn serving(&self, shim: &Shim) -> Vec<u32> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let serves = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|byte| *byte == 0).collect();
            words.windows(2).any(|pair| pair == [b"-namespace", self.namespace.as_bytes()]) && runs(*pid, shim.program)
        };
        pids.filter(serves).collect()
    }

    /// KiB in memory of what is kept for containers: bundles, and the runtime's state.
    pub fn kept(&self, shim: &Shim) -> anyhow::Result<f64> {
        let bundles = self.lab.run.join("containerd/io.containerd.runtime.v2.task").join(&self.namespace);
        let root = if shim.program == OURS { "agentsbx" } else { "runc" };
        let state = Path::new("/run/containerd").join(root).join(&self.namespace);
        let mut all = 0.0;
        for dir in [bundles, state] {
            // Of a container's root filesystem, which is mounted in a bundle, nothing.
            let mut du = Command::new("du");
            du.args(["-s", "-k", "-x"]).arg(&dir);
            let text = self.lab.output(du)?;
            let size: f64 = text.split_whitespace().next().context("what du says")?.parse()?;
            all += size;
        }
        Ok(all)
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        // What goes wrong here the guard puts right.
        let tasks = self.lab.output(self.ctr(["tasks", "list", "--quiet"])).unwrap_or_default();
        for id in tasks.split_whitespace() {
            let _ = self.lab.timed(self.ctr(["tasks", "delete", "--force", id]), 0);
            let _ = self.lab.timed(self.ctr(["containers", "delete", id]), 0);
        }
        let _ =
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM);
        let _ = wait_for("the end of containerd", || self.child.try_wait().ok().flatten());
    }
}

const OURS: &str = "containerd-shim-agentsbx-v1";
const STOCK: &str = "containerd-shim-runc-v2";

impl Shim {
    /// Ours, containerd's own with runc, and containerd's own with our runtime.
    pub fn all(lab: &Lab) -> anyhow::Result<[Shim; 3]> {
        let subject = &lab.subject().program;
        let beside = subject.with_file_name(OURS);
        ensure!(beside.is_file(), "{} is not there: hack/build-static.sh builds both programs", beside.display());
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let runtime = subject.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let with_ours = ["--runtime", "io.containerd.runc.v2", "--runc-binary", &subject.to_string_lossy()];
        Ok([
            Shim {
                name: "agentsbx",
                options: words(&["--runtime", "io.containerd.agentsbx.v1"]),
                program: OURS,
                runtime: runtime.clone(),
            },
            Shim {
                name: "runc",
                options: words(&["--runtime", "io.containerd.runc.v2"]),
                program: STOCK,
                runtime: "runc".into(),
            },
            Shim { name: "agentsbx, runc's shim", options: words(&with_ours), program: STOCK, runtime },
        ])
    }

    /// Whether a process is one of this shim's or of its runtime's, and no container's.
    pub fn owns(&self, pid: u32) -> bool {
        runs(pid, self.program) || runs(pid, &self.runtime)
    }
}

/// By its arguments: of an exec's supervisor, which keeps nothing of the host in view, /proc does not tell the file.
fn runs(pid: u32, program: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let word = line.split(|byte| *byte == 0).next().unwrap_or_default();
    Path::new(OsStr::from_bytes(word)).file_name().is_some_and(|name| name == program)
}
