//! Bundles for tests without an engine: the busybox root filesystem and a `config.json` like the one of `runc spec`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::env::{process, unique};
use super::walk::{Tree, walk};
use super::{Cmd, Env, Output, child_running, images, wait_until};

/// A bundle of its own, and a container's id to go with it.
#[derive(Debug)]
pub struct Bundle<'e> {
    /// The environment that its containers live in.
    pub env: &'e Env,
    /// The container's id.
    pub id: String,
    /// The bundle directory.
    pub dir: PathBuf,
    /// The root filesystem.
    pub rootfs: PathBuf,
    /// What will be config.json: change it before the container is made.
    pub config: Value,
}

impl<'e> Bundle<'e> {
    /// A bundle whose first process is `args`.
    pub fn new<const N: usize>(env: &'e Env, args: [&str; N]) -> Bundle<'e> {
        let id = unique("c");
        let dir = env.dir.join(&id);
        let rootfs = dir.join("rootfs");
        fs::create_dir_all(&rootfs).expect("make a bundle");
        Cmd::new("tar").args([&"-C".into(), &rootfs, &"-xf".into(), &images::busybox_tar()]).ok();
        let config = config(&args, &format!("{}/{id}", process().cgroup));
        Bundle { env, id, dir, rootfs, config }
    }

    /// A bundle whose first process only waits, and its container, running.
    #[track_caller]
    pub fn running(env: &'e Env) -> Bundle<'e> {
        let bundle = Bundle::new(env, ["sleep", "100000"]);
        bundle.start();
        bundle
    }

    /// Sets an annotation.
    pub fn annotate(mut self, name: &str, value: &str) -> Bundle<'e> {
        self.config["annotations"][name] = value.into();
        self
    }

    /// Writes config.json.
    pub fn write(&self) {
        let text = serde_json::to_string_pretty(&self.config).expect("JSON");
        fs::write(self.dir.join("config.json"), text).expect("write config.json");
    }

    /// config.json as it is now on disk.
    pub fn read(&self) -> Value {
        let text = fs::read_to_string(self.dir.join("config.json")).expect("read config.json");
        serde_json::from_str(&text).expect("config.json is JSON")
    }

    /// `run --detach`, asserted to succeed.
    #[track_caller]
    pub fn start(&self) {
        self.write();
        // The container's stdio is the command's own.
        let run = self.env.cmd(["run", "--detach", "--bundle"]).arg(&self.dir).arg(&self.id);
        run.output_to(self.dir.join("out")).run().expect(0);
    }

    /// `run` in the foreground.
    pub fn run(&self) -> Output {
        self.write();
        self.env.cmd(["run", "--bundle"]).arg(&self.dir).arg(&self.id).run()
    }

    /// `exec ID ARGS…` in the foreground.
    pub fn exec<const N: usize>(&self, args: [&str; N]) -> Output {
        self.env.cmd(["exec", &self.id]).args(args).run()
    }

    /// `exec OPTIONS… ID sh -c SCRIPT` in the foreground.
    pub fn sh_with<const N: usize>(&self, options: [&str; N], script: &str) -> Output {
        self.env.cmd(["exec"]).args(options).args([&self.id, "sh", "-c", script]).run()
    }

    /// `exec ID sh -c SCRIPT` in the foreground.
    pub fn sh(&self, script: &str) -> Output {
        self.sh_with([], script)
    }

    /// A full walk of what an exec sees, through the eyes of one that waits meanwhile and is discarded.
    pub fn walk_as_exec(&self) -> Tree {
        self.walk_as_exec_at("")
    }

    /// The same of a directory, which may be a mount; relative to it.
    pub fn walk_as_exec_at(&self, dir: &str) -> Tree {
        let file = self.dir.join("walker.pid");
        let options =
            ["exec", "--detach", "--layer", "discard", "--timeout", "0", "--env", "PATH=/bin:/bin2", "--pid-file"];
        self.env
            .cmd(options)
            .arg(&file)
            .args([&self.id, "sleep", "99999"])
            .output_to(self.dir.join("walker.out"))
            .run()
            .expect(0);
        let supervisor: i32 = fs::read_to_string(&file).expect("read").parse().expect("a pid");
        let command = child_running(supervisor, "sleep");
        let tree = walk(Path::new(&format!("/proc/{command}/root/{dir}")));
        let pid = rustix::process::Pid::from_raw(command).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
        // Ended is ended, also where the host's pid 1 is slow to reap.
        wait_until("the end of the walker", Duration::from_secs(10), || {
            fs::read_to_string(format!("/proc/{supervisor}/stat")).map_or(true, |stat| stat.contains(") Z "))
        });
        tree
    }

    /// `show ID --json`: the last exec's result.
    #[track_caller]
    pub fn show(&self) -> Value {
        self.env.json(["show", &self.id, "--json"])
    }

    /// `state ID`.
    #[track_caller]
    pub fn state(&self) -> Value {
        self.env.json(["state", &self.id])
    }
}

fn config(args: &[&str], cgroup: &str) -> Value {
    let caps = crate::bench::config::CAPABILITIES;
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": args,
            "env": ["PATH=/bin:/sbin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": {"bounding": caps, "effective": caps, "permitted": caps},
            "noNewPrivileges": true
        },
        "root": {"path": "rootfs", "readonly": false},
        "hostname": "box",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
             "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
             "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
             "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]},
            {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue",
             "options": ["nosuid", "noexec", "nodev"]},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}
        ],
        "linux": {
            "cgroupsPath": cgroup,
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "namespaces": [
                {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}
            ],
            "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
        }
    })
}
