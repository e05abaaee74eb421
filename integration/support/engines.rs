//! Debian's containerd and dockerd, started once a test process by `hack/engines.sh`, with the binary under test as
//! Docker's default runtime; and a podman with storage of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use super::env::{binary, process};
use super::images::{self, repository};
use super::{Cmd, Output};

/// The running engines.
#[derive(Debug)]
pub struct Engines {
    /// Docker's socket.
    docker: PathBuf,
    /// containerd's socket.
    containerd: PathBuf,
    /// The store that the runtime was registered with.
    pub store: PathBuf,
    /// The runtime as one program without arguments, for callers that take no more than a path.
    pub wrapper: PathBuf,
    /// Sockets and state.
    run: PathBuf,
    /// The daemons' mount namespace, where it is not the test's.
    own_mounts: Option<String>,
    /// Where programs are looked for first.
    path: Option<PathBuf>,
}

/// The engines, started when they are first asked for, with the busybox image in Docker.
pub fn engines() -> &'static Engines {
    static ENGINES: OnceLock<Engines> = OnceLock::new();
    ENGINES.get_or_init(|| Engines::start(&process().run, &process().data, &process().cgroup, None, None))
}

/// Others, whose Docker gives each container a user namespace with ids from 300,000 on (`userns-remap`).
pub fn remapping_engines() -> &'static Engines {
    static ENGINES: OnceLock<Engines> = OnceLock::new();
    ENGINES.get_or_init(|| {
        let cgroup = format!("{}/remap", process().cgroup);
        Engines::start(&process().run.join("remap"), &process().data.join("remap"), &cgroup, Some("300000"), None)
    })
}

/// The daemons of another release, which are in the directory `path` together with whatever they shall find there. `name`
/// is that of their own directories.
pub fn other_engines(name: &str, path: &Path) -> Engines {
    let cgroup = format!("{}/{name}", process().cgroup);
    Engines::start(&process().run.join(name), &process().data.join(name), &cgroup, None, Some(path))
}

impl Engines {
    fn start(run: &Path, data: &Path, cgroup: &str, remap: Option<&str>, path: Option<&Path>) -> Engines {
        let archive = images::busybox_archive();
        for dir in [run, data] {
            fs::create_dir_all(dir).expect("make a directory");
        }
        let store = data.join("store");
        let wrapper = data.join("agentsbx");
        let wrap = |wrapper: &Path, variables: &str| {
            let (binary, store) = (binary(), store.display());
            let script = format!("#!/bin/sh\n{variables} exec '{}' --store '{store}' \"$@\"\n", binary.display());
            fs::write(wrapper, script).expect("write the wrapper");
            fs::set_permissions(wrapper, fs::Permissions::from_mode(0o755)).expect("chmod");
        };
        wrap(&wrapper, "");
        // The second runtime: strict, with all volumes copy on write. This Docker's client can't give annotations.
        let config = data.join("cow.toml");
        let exec = process().data.display();
        let text = format!("profile = 'strict'\n[mounts]\ndefault = 'cow'\nexec = ['{exec}']\n");
        fs::write(&config, text).expect("write a configuration");
        wrap(&data.join("agentsbx-cow"), &format!("AGENTSBX_CONFIG='{}'", config.display()));
        let apart = remap.is_some() || path.is_some();
        let logs = if apart { process().logs.join(run.file_name().expect("a name")) } else { process().logs.clone() };
        let mut start = Cmd::new(repository().join("hack/engines.sh"))
            .args([run, data])
            .arg(cgroup)
            .args([&logs, &binary(), &store])
            .env("AGENTSBX_CONFIG", &process().defaults)
            .limit(Duration::from_secs(200));
        if let Some(first) = remap {
            start = start.env("AGENTSBX_IT_REMAP", first);
        }
        if let Some(path) = path {
            // Our shim's runtime is told its store by the environment.
            start = start.env("AGENTSBX_IT_PATH", path).env("AGENTSBX_STORE", &store);
        }
        start.ok();
        let own_mounts = remap.map(|_| {
            let pid = fs::read_to_string(run.join("dockerd.pid")).expect("read dockerd.pid");
            format!("/proc/{}/ns/mnt", pid.trim())
        });
        let (docker, containerd) = (run.join("docker.sock"), run.join("containerd.sock"));
        let path = path.map(Path::to_owned);
        let engines = Engines { docker, containerd, run: run.to_owned(), store, wrapper, own_mounts, path };
        engines.docker(["load", "-i"]).arg(archive).ok();
        engines
    }

    fn own(&self) -> Cmd {
        match &self.own_mounts {
            Some(mounts) => Cmd::new("nsenter").arg(format!("--mount={mounts}")).arg(binary()),
            None => Cmd::new(binary()),
        }
    }
}

impl Engines {
    /// `docker ARGS…`
    pub fn docker<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd {
        let config = process().data.join("docker-client");
        let program = self.path.as_ref().map_or("docker".into(), |path| path.join("docker"));
        Cmd::new(program).arg("--host").arg(self.docker_host()).args(args).env("DOCKER_CONFIG", config)
    }

    /// Docker's address.
    pub fn docker_host(&self) -> String {
        format!("unix://{}", self.docker.display())
    }

    /// `ctr ARGS…`, in a namespace of its own.
    pub fn ctr<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd {
        let program = self.path.as_ref().map_or("ctr".into(), |path| path.join("ctr"));
        Cmd::new(program).arg("--address").arg(&self.containerd).args(["--namespace", "it"]).args(args)
    }

    /// A verb of the binary under test on the engines' store: containers are found whatever root they were made with.
    pub fn agentsbx<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd {
        self.own().env("AGENTSBX_CONFIG", &process().defaults).arg("--store").arg(&self.store).args(args)
    }

    /// The same with `--json`, parsed.
    #[track_caller]
    pub fn json<const N: usize>(&self, args: [&str; N]) -> Value {
        let text = self.agentsbx(args).arg("--json").ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e} in {text}"))
    }

    /// The bundle of a container in containerd's `namespace` (Docker's is `moby`).
    pub fn bundle(&self, namespace: &str, id: &str) -> PathBuf {
        self.run.join("containerd/io.containerd.runtime.v2.task").join(namespace).join(id)
    }

    /// The results of all execs of a container that have ended, from its bundle.
    pub fn results(&self, namespace: &str, id: &str) -> Vec<Value> {
        super::result::in_bundle(&self.bundle(namespace, id))
    }

    /// Makes the Debian image known to Docker: once, since it is half a gigabyte.
    pub fn with_debian(&self) -> &Engines {
        static ONCE: OnceLock<()> = OnceLock::new();
        ONCE.get_or_init(|| {
            let archive = images::debian_archive();
            self.docker(["load", "-i"]).arg(archive).limit(Duration::from_secs(300)).ok();
        });
        self
    }

    /// Makes the busybox image known to containerd's own namespace.
    pub fn with_ctr_image(&self) -> &Engines {
        static ONCE: OnceLock<()> = OnceLock::new();
        ONCE.get_or_init(|| {
            self.ctr(["images", "import"]).arg(images::busybox_archive()).ok();
        });
        self
    }

    /// A container's config.json, as the runtime left it.
    #[track_caller]
    pub fn config(&self, namespace: &str, id: &str) -> Value {
        let path = self.bundle(namespace, id).join("config.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).expect("config.json is JSON")
    }
}

/// A podman with storage, state and configuration of its own and the binary under test as its runtime.
#[derive(Debug)]
pub struct Podman {
    dir: PathBuf,
    run: PathBuf,
    /// The runtime's store.
    pub store: PathBuf,
}

/// The podman, with the busybox image.
pub fn podman() -> &'static Podman {
    static PODMAN: OnceLock<Podman> = OnceLock::new();
    PODMAN.get_or_init(|| {
        let process = process();
        let podman = Podman {
            dir: process.data.join("podman"),
            run: process.run.join("podman"),
            store: process.data.join("store"),
        };
        fs::create_dir_all(&podman.dir).expect("make a directory");
        fs::create_dir_all(&podman.run).expect("make a directory");
        // Nothing of the host's configuration, and no limits that need CAP_SYS_RESOURCE.
        let conf = format!(
            "[containers]\ndefault_ulimits = []\nlog_driver = \"k8s-file\"\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
             [engine.runtimes]\nagentsbx = [\"{}\"]\n",
            binary().display()
        );
        fs::write(podman.dir.join("containers.conf"), conf).expect("write containers.conf");
        let storage = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n",
            podman.dir.join("storage").display(),
            podman.run.join("storage").display()
        );
        fs::write(podman.dir.join("storage.conf"), storage).expect("write storage.conf");
        fs::write(podman.dir.join("policy.json"), r#"{"default": [{"type": "insecureAcceptAnything"}]}"#)
            .expect("write policy.json");
        podman
            .cmd(["load", "--signature-policy"])
            .arg(podman.dir.join("policy.json"))
            .arg("-i")
            .arg(images::busybox_archive())
            .ok();
        podman
    })
}

impl Podman {
    /// `podman --runtime agentsbx ARGS…`
    pub fn cmd<A: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Cmd {
        Cmd::new("podman")
            .env("AGENTSBX_CONFIG", &process().defaults)
            .env("CONTAINERS_CONF", self.dir.join("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", self.dir.join("storage.conf"))
            .arg("--tmpdir")
            .arg(self.run.join("libpod"))
            .arg("--runtime")
            .arg(binary())
            .arg("--runtime-flag")
            .arg(format!("store={}", self.store.display()))
            .args(args)
    }

    /// Runs it.
    pub fn run<const N: usize>(&self, args: [&str; N]) -> Output {
        self.cmd(args).run()
    }

    /// `podman run -d` of the busybox image, in this run's cgroups and without a network.
    #[track_caller]
    pub fn start<const N: usize>(&self, options: [&str; N], args: &[&str]) -> String {
        let cgroup = format!("{}/podman", process().cgroup);
        self.cmd(["run", "--detach", "--network", "none", "--cgroup-parent", &cgroup])
            .args(options)
            .arg(images::BUSYBOX)
            .args(args)
            .ok()
    }
}

/// The mount points of the host below `dir`.
pub fn mounts_below(dir: &Path) -> Vec<String> {
    let prefix = format!("{}/", dir.display());
    fs::read_to_string("/proc/self/mountinfo")
        .expect("mountinfo")
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|point| point.starts_with(&prefix))
        .map(str::to_owned)
        .collect()
}
