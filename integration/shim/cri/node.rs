//! A node of Kubernetes without its kubelet: a containerd with its CRI plugin, CNI plugins and a network namespace of its
//! own, and pods made of the requests that a kubelet sends.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use super::client::{Client, Refusal, text};
use crate::shim::daemon::{Containerd, Release, SOON, Setup, Shim, processes};
use crate::support::env::{binary, process, shim_binary, unique};
use crate::support::images::{self, BUSYBOX};
use crate::support::{Cmd, wait_until};

/// What a kubelet gives a call that is not about time.
const CALL: Duration = Duration::from_secs(120);
/// The namespace in which containerd's CRI plugin keeps everything.
const NAMESPACE: &str = "k8s.io";

/// The node.
#[derive(Debug)]
pub struct Node {
    pub containerd: Containerd,
    client: Client,
}

/// How a command in a container ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i64,
    pub stdout: String,
    pub stderr: String,
}

impl Node {
    /// The one that tests share which do not restart it.
    pub fn shared(release: Release) -> &'static Node {
        static ALL: [OnceLock<Node>; Release::ALL.len()] = [const { OnceLock::new() }; Release::ALL.len()];
        ALL[release as usize].get_or_init(|| Node::start(release))
    }

    /// A new one.
    pub fn start(release: Release) -> Node {
        // Below containerd's usual directory: a pod's shared memory there is what the policy must let pass by its defaults.
        let usual = Path::new("/run/containerd");
        let run = usual.join(process().run.file_name().expect("a name"));
        fs::create_dir_all(usual).expect("make a directory");
        // As containerd makes it; where a shim of its own was there first, the roots of user namespaces would not get through.
        fs::set_permissions(usual, fs::Permissions::from_mode(0o711)).expect("chmod");
        let settings = process().data.join("node.toml");
        fs::write(&settings, "").expect("write a configuration");
        let namespace = Some(NAMESPACE.to_owned());
        let containerd = Containerd::start_with(release, Setup { run, namespace, config, settings, own_network: true });
        containerd.ctr(["images", "import"]).arg(images::pause_archive()).ok();
        let node = Node { client: Client::new(containerd.run.join("containerd.sock")), containerd };
        node.wait_ready();
        node
    }

    /// Waits until the CRI plugin serves, with the images and a network.
    pub fn wait_ready(&self) {
        let is = |status: &Value, condition: &str| {
            let all = status["status"]["conditions"].as_array().expect("a list");
            all.iter().any(|c| c["type"] == condition && c["status"] == true)
        };
        wait_until("a node that is ready", SOON * 2, || {
            let status = self.try_call("Status", &json!({}));
            status.is_ok_and(|status| is(&status, "RuntimeReady") && is(&status, "NetworkReady"))
        });
        for image in [BUSYBOX, images::PAUSE] {
            let request = json!({ "image": { "image": image } });
            let known = || self.client.call("ImageService", "ImageStatus", &request, CALL).expect("ImageStatus");
            wait_until(image, SOON, || known()["image"]["id"].as_str().is_some_and(|id| !id.is_empty()));
        }
    }

    /// A call of the runtime's service.
    pub fn try_call(&self, method: &str, request: &Value) -> Result<Value, Refusal> {
        self.client.call("RuntimeService", method, request, CALL)
    }

    /// The same with a kubelet's deadline.
    pub fn try_call_within(&self, method: &str, request: &Value, deadline: Duration) -> Result<Value, Refusal> {
        self.client.call("RuntimeService", method, request, deadline)
    }

    /// A call that must succeed.
    #[track_caller]
    pub fn call(&self, method: &str, request: &Value) -> Value {
        self.try_call(method, request).unwrap_or_else(|e| panic!("{method} {request}: {e}"))
    }

    /// A connection to an address of the node's own network.
    #[track_caller]
    pub fn connect(&self, address: &str) -> TcpStream {
        let network = fs::File::open(self.containerd.network().expect("a network of its own")).expect("open it");
        // Namespaces are a thread's own; a socket stays in the one that it was made in.
        let connected = thread::scope(|scope| {
            let enter = || {
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
                TcpStream::connect(address)
            };
            scope.spawn(enter).join().expect("connect")
        });
        connected.unwrap_or_else(|e| panic!("{address}: {e}"))
    }

    /// A pod; `more` is merged into its configuration.
    #[track_caller]
    pub fn pod(&self, more: &Value) -> Pod<'_> {
        self.try_pod("agentsbx", more).unwrap_or_else(|e| panic!("RunPodSandbox: {e}"))
    }

    /// A pod of another class.
    pub fn try_pod(&self, handler: &str, more: &Value) -> Result<Pod<'_>, Refusal> {
        let (config, logs) = self.pod_config(&unique("pod"), more);
        let request = json!({ "config": config, "runtime_handler": handler });
        let id = self.try_call("RunPodSandbox", &request)?["pod_sandbox_id"].as_str().expect("an id").to_owned();
        let socket = self.containerd.socket(&id);
        Ok(Pod { node: self, id, config, logs, socket, gone: false })
    }

    /// What a kubelet says of a pod of this name, and where its logs are; `more` is merged into it.
    pub fn pod_config(&self, name: &str, more: &Value) -> (Value, PathBuf) {
        let logs = self.containerd.data().join("pods").join(name);
        fs::create_dir_all(&logs).expect("make a directory");
        let mut config = json!({
            "metadata": { "name": name, "uid": format!("uid-{name}"), "namespace": "default", "attempt": 0 },
            "hostname": name,
            "log_directory": logs,
            "dns_config": { "servers": ["10.96.0.10"], "searches": ["default.svc.cluster.local"], "options": ["ndots:5"] },
            "labels": { "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "default" },
            "linux": {
                "cgroup_parent": format!("{}/kubepods/burstable/{name}", self.containerd.cgroup),
                "security_context": {
                    "namespace_options": { "network": "POD", "pid": "CONTAINER", "ipc": "POD" },
                    "seccomp": { "profile_type": "RuntimeDefault" },
                },
            },
        });
        merge(&mut config, more);
        (config, logs)
    }
}

/// The configuration of the CRI plugin, in the form of each release.
fn config(containerd: &Containerd) -> String {
    let run = containerd.run.display();
    let (version, runtime, images, streams) = match containerd.release {
        Release::C16 | Release::C17 => {
            let cri = "plugins.'io.containerd.grpc.v1.cri'";
            (2, cri, format!("[{cri}]\n"), String::new())
        }
        Release::C2 | Release::C23 => (
            3,
            "plugins.'io.containerd.cri.v1.runtime'",
            "[plugins.'io.containerd.cri.v1.images'.pinned_images]\n".to_owned(),
            "[plugins.'io.containerd.grpc.v1.cri']\n".to_owned(),
        ),
    };
    let stream = "stream_server_address = '127.0.0.1'\nstream_server_port = '0'\n";
    let is_2 = containerd.release.is_2();
    let pause = format!("{} = '{}'\n", if is_2 { "sandbox" } else { "sandbox_image" }, images::PAUSE);
    // A score below that of containerd needs CAP_SYS_RESOURCE, which not every machine has.
    let settings = "restrict_oom_score_adj = true\nnetns_mounts_under_state_dir = true\n\
                    tolerate_missing_hugetlb_controller = true\n";
    let tables = if is_2 {
        format!("{images}{pause}{streams}{stream}[{runtime}]\n{settings}")
    } else {
        format!("{images}{pause}{stream}{settings}")
    };
    let conf = containerd.run.join("cni");
    fs::create_dir_all(&conf).expect("make a directory");
    let network = json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge", "bridge": "pods0", "isGateway": true,
            "ipam": {
                "type": "host-local", "dataDir": containerd.run.join("addresses"),
                "ranges": [[{ "subnet": "10.88.0.0/16" }]], "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    });
    fs::write(conf.join("pods.conflist"), network.to_string()).expect("write a network");
    let plugins = Release::cri().join("cni").display().to_string();
    let plugins = if is_2 { format!("bin_dirs = ['{plugins}']") } else { format!("bin_dir = '{plugins}'") };
    let classes = classes(containerd, runtime);
    format!(
        "version = {version}\n{tables}[{runtime}.cni]\n{plugins}\nconf_dir = '{conf}'\n\
         [{runtime}.containerd]\ndefault_runtime_name = 'agentsbx'\n{classes}\
         [plugins.'io.containerd.nri.v1.nri']\ndisable = true\nsocket_path = '{run}/nri.sock'\n",
        conf = conf.display()
    )
}

/// The classes of pods, as tables of the plugin `runtime`'s.
fn classes(containerd: &Containerd, runtime: &str) -> String {
    let shim = Shim::under_test();
    let own = containerd.run.join("class.toml");
    fs::write(&own, "allow = ['host-network', 'host-uts']\nlimits.pids = 77\n").expect("write a configuration");
    let own = format!("ConfigPath = '{}'", own.display());
    let by_path = format!("runtime_path = '{}'", shim_binary().display());
    let by_path = if shim == Shim::Ours { by_path.as_str() } else { "" };
    let sandboxer = if containerd.release.is_2() { "sandboxer = 'shim'" } else { "" };
    let mut classes = String::new();
    for (class, kind, more, options) in [
        // What Kubernetes' users have, one with a configuration of its own, one as kubeadm's nodes have it.
        ("agentsbx", shim.runtime(), "", ""),
        ("own", shim.runtime(), "", &own),
        ("systemd", shim.runtime(), "", "SystemdCgroup = true"),
        // One that containerd takes for runc's, and so asks for what it can do.
        ("users", Shim::Stock.runtime(), by_path, ""),
        // One whose shim is to make pods' sandboxes.
        ("sandboxer", shim.runtime(), sandboxer, ""),
    ] {
        let table = format!("{runtime}.containerd.runtimes.{class}");
        let options = match shim {
            Shim::Ours => options.to_owned(),
            Shim::StockOurs => format!("BinaryName = '{}'", binary().display()),
            Shim::Stock => String::new(),
        };
        writeln!(
            classes,
            "[{table}]\nruntime_type = '{kind}'\npod_annotations = ['dev.agentsbx.*']\n{more}\n\
             [{table}.options]\n{options}"
        )
        .expect("write");
    }
    classes
}

/// What a kubelet says of a container that runs `args`; `more` is merged into it.
pub fn container_config(args: &[&str], more: &Value) -> Value {
    let name = unique("container");
    let mut config = json!({
        "metadata": { "name": name, "attempt": 0 },
        "image": { "image": BUSYBOX },
        "command": args,
        "log_path": format!("{name}.log"),
        "labels": { "io.kubernetes.container.name": name },
        "linux": {
            "resources": { "cpu_shares": 102, "oom_score_adj": 1000 },
            "security_context": {
                "namespace_options": { "network": "POD", "pid": "CONTAINER", "ipc": "POD" },
                "seccomp": { "profile_type": "RuntimeDefault" },
                "masked_paths": ["/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/sys/firmware"],
                "readonly_paths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            },
        },
    });
    merge(&mut config, more);
    config
}

/// Puts `more` into `value`, objects field by field.
fn merge(value: &mut Value, more: &Value) {
    match (value, more) {
        (Value::Object(fields), Value::Object(more)) => {
            for (name, more) in more {
                merge(fields.entry(name).or_insert(Value::Null), more);
            }
        }
        (value, more) => value.clone_from(more),
    }
}

/// A pod, removed when it goes out of scope.
#[derive(Debug)]
pub struct Pod<'a> {
    pub node: &'a Node,
    pub id: String,
    config: Value,
    logs: PathBuf,
    socket: PathBuf,
    gone: bool,
}

impl<'a> Pod<'a> {
    /// A container that is created; `more` is merged into its configuration.
    pub fn try_create(&self, args: &[&str], more: &Value) -> Result<Container<'_>, Refusal> {
        let config = container_config(args, more);
        let log = self.logs.join(config["log_path"].as_str().expect("a path"));
        let request = json!({ "pod_sandbox_id": self.id, "config": config, "sandbox_config": self.config });
        let id = self.node.try_call("CreateContainer", &request)?["container_id"].as_str().expect("an id").to_owned();
        Ok(Container { pod: self, id, log })
    }

    /// A container that runs.
    #[track_caller]
    pub fn run(&self, args: &[&str], more: &Value) -> Container<'_> {
        let container = self.try_create(args, more).unwrap_or_else(|e| panic!("CreateContainer {args:?}: {e}"));
        container.start();
        container
    }

    /// One that only waits, as its first process that ends at SIGTERM.
    #[track_caller]
    pub fn idle(&self) -> Container<'_> {
        self.run(&["sh", "-c", "trap 'exit 5' TERM; sleep 100000 & wait"], &json!({}))
    }

    /// `PodSandboxStatus`
    #[track_caller]
    pub fn status(&self) -> Value {
        self.node.call("PodSandboxStatus", &json!({ "pod_sandbox_id": self.id }))["status"].clone()
    }

    /// `StopPodSandbox`
    #[track_caller]
    pub fn stop(&self) {
        self.node.call("StopPodSandbox", &json!({ "pod_sandbox_id": self.id }));
    }

    /// Stops and removes it, with its containers; nothing may be left of it.
    #[track_caller]
    pub fn remove(self) {
        let before = self.traces(&self.containers());
        assert!(before.iter().any(|trace| trace.contains("shim")), "no shim: {before:#?}");
        self.remove_all_traces();
    }

    /// The same of one whose shim may have gone.
    #[track_caller]
    pub fn remove_all_traces(mut self) {
        let containers = self.containers();
        self.stop();
        self.node.call("RemovePodSandbox", &json!({ "pod_sandbox_id": self.id }));
        self.gone = true;
        let begun = Instant::now();
        loop {
            let left = self.traces(&containers);
            if left.is_empty() {
                return;
            }
            assert!(begun.elapsed() < SOON, "left of the pod: {left:#?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn containers(&self) -> Vec<String> {
        let request = json!({ "filter": { "pod_sandbox_id": self.id } });
        let list = self.node.call("ListContainers", &request);
        let ids = list["containers"].as_array().expect("a list").iter();
        ids.map(|container| container["id"].as_str().expect("an id").to_owned()).collect()
    }

    /// The pids in its cgroups.
    pub fn processes(&self) -> BTreeSet<String> {
        let below = self.config["linux"]["cgroup_parent"].as_str().expect("a path");
        let list = "find /sys/fs/cgroup -path \"*$0/*\" -name cgroup.procs -exec cat {} + 2>/dev/null; true";
        let pids = Cmd::new("sh").args(["-c", list, below.trim_start_matches('/')]).ok();
        pids.split_whitespace().map(str::to_owned).collect()
    }

    /// All that there is of it: shim and other processes, files, sockets, mounts, cgroups, addresses, the runtime's state.
    fn traces(&self, containers: &[String]) -> BTreeSet<String> {
        let containerd = &self.node.containerd;
        let mut found = BTreeSet::new();
        let all: Vec<&str> = containers.iter().chain([&self.id]).map(String::as_str).collect();
        let ours = |text: &str| all.iter().any(|id| text.contains(id));
        for (pid, line) in processes() {
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if ours(&line) {
                found.insert(format!("process {pid}: {line}"));
            }
        }
        // Those of all ids: containerd's, the runtime's, cgroups.
        for dir in [containerd.run.as_path(), Path::new("/run/containerd/agentsbx"), Path::new("/sys/fs/cgroup")] {
            let listed = Cmd::new("find").arg(dir).args(["-not", "-path", "*/layers/*"]).run().stdout;
            found.extend(listed.lines().filter(|line| ours(line)).map(str::to_owned));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        found.extend(mounts.lines().filter(|line| ours(line)).map(|line| format!("mount: {line}")));
        for path in [self.socket.clone(), self.socket.with_extension("lock")] {
            if path.exists() {
                found.insert(path.display().to_string());
            }
        }
        let addresses = Cmd::new("grep").args(["-rls", &self.id]).arg(containerd.run.join("addresses")).run().stdout;
        found.extend(addresses.lines().map(|line| format!("address: {line}")));
        found
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        if !self.gone {
            let request = json!({ "pod_sandbox_id": self.id });
            let _ = self.node.try_call_within("StopPodSandbox", &request, SOON);
            let _ = self.node.try_call_within("RemovePodSandbox", &request, SOON);
        }
    }
}

/// Whether all of the machine's cgroups are version 2.
pub fn cgroup_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// A container of a pod; it goes with it.
#[derive(Debug, Clone)]
pub struct Container<'a> {
    pub pod: &'a Pod<'a>,
    pub id: String,
    log: PathBuf,
}

impl Container<'_> {
    fn request(&self) -> Value {
        json!({ "container_id": self.id })
    }

    /// `StartContainer`
    #[track_caller]
    pub fn start(&self) {
        self.pod.node.call("StartContainer", &self.request());
    }

    /// `ExecSync` with a time limit in seconds; 0: none.
    pub fn try_exec(&self, args: &[&str], timeout: u32) -> Result<Ran, Refusal> {
        let request = json!({ "container_id": self.id, "cmd": args, "timeout": timeout });
        let answer = self.pod.node.try_call("ExecSync", &request)?;
        let code = answer["exit_code"].as_i64().expect("a number");
        Ok(Ran { code, stdout: text(&answer["stdout"]), stderr: text(&answer["stderr"]) })
    }

    /// The same of a shell's line.
    #[track_caller]
    pub fn sh(&self, script: &str) -> Ran {
        self.try_exec(&["sh", "-c", script], 20).unwrap_or_else(|e| panic!("ExecSync {script}: {e}"))
    }

    /// What a shell's line prints, which must succeed.
    #[track_caller]
    pub fn out(&self, script: &str) -> String {
        let ran = self.sh(script);
        assert_eq!(ran.code, 0, "{script}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    /// What the container sees of its own cgroup: of a file by its path on v1, or by its name on v2.
    #[track_caller]
    pub fn cgroup(&self, v1: &str, v2: &str) -> String {
        self.out(&format!("cat /sys/fs/cgroup/{}", if cgroup_v2() { v2 } else { v1 }))
    }

    /// `StopContainer` with a grace in seconds.
    #[track_caller]
    pub fn stop(&self, grace: u32) {
        self.pod.node.call("StopContainer", &json!({ "container_id": self.id, "timeout": grace }));
    }

    /// `RemoveContainer`
    #[track_caller]
    pub fn remove(&self) {
        self.pod.node.call("RemoveContainer", &self.request());
    }

    /// `ContainerStatus`
    #[track_caller]
    pub fn status(&self) -> Value {
        self.pod.node.call("ContainerStatus", &self.request())["status"].clone()
    }

    /// Waits until it has ended; its status.
    #[track_caller]
    pub fn ended(&self) -> Value {
        wait_until("the end of the container", SOON, || self.status()["state"] == "CONTAINER_EXITED");
        self.status()
    }

    /// `ContainerStats`
    #[track_caller]
    pub fn stats(&self) -> Value {
        self.pod.node.call("ContainerStats", &self.request())["stats"].clone()
    }

    /// The log that kubelets read: each line with time, stream and a tag.
    #[track_caller]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_else(|e| panic!("{}: {e}", self.log.display()))
    }

    /// The whole of what the runtime made of the container's configuration.
    #[track_caller]
    pub fn config(&self) -> Value {
        let path = self.pod.node.containerd.bundle(&self.id).join("config.json");
        let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_slice(&bytes).expect("JSON")
    }
}
