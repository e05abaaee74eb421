//! Nodes whose cgroups are systemd's, as kubeadm sets them up: the kubelet makes a slice for the pod, and each of its
//! containers is a scope in it. Needs systemd as the machine's first process: `hack/vm.sh integration shim::cri`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::node::{Container, Node, cgroup_v2};
use super::{of_each_release, results};
use crate::shim::daemon::{Release, SOON};
use crate::support::env::{process, unique};
use crate::support::{Cmd, wait_until};

/// A pod's slice with a limit of its own, stopped when it goes out of scope.
struct Slice {
    unit: String,
    /// As the kubelet names it to containerd: from the root of the cgroups.
    parent: String,
}

impl Slice {
    /// None where systemd is not there.
    fn of_a_pod(memory: u64) -> Option<Slice> {
        if !Path::new("/run/systemd/system").is_dir() || !cgroup_v2() {
            eprintln!(
                "skipped: the machine's first process is not systemd with cgroup v2; hack/vm.sh has such a machine"
            );
            return None;
        }
        // A dash leads one slice down: the kubelet, too, has none in a pod's id.
        let run = process().cgroup.trim_start_matches('/');
        let unit = format!("{run}-{}.slice", unique("pod").replace('-', "_"));
        let properties = ["MemoryMax", "t", &memory.to_string(), "CPUAccounting", "b", "true"].map(str::to_owned);
        Cmd::new("busctl")
            .args(["call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"])
            .args(["org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))", &unit, "fail", "2"])
            .args(properties)
            .arg("0")
            .ok();
        let shown = || show(&unit, "ControlGroup");
        wait_until("the pod's slice", SOON, || !shown().is_empty());
        Some(Slice { parent: shown(), unit })
    }

    fn dir(&self) -> PathBuf {
        Path::new("/sys/fs/cgroup").join(self.parent.trim_start_matches('/'))
    }

    /// Where a container's group is.
    fn scope(&self, id: &str) -> PathBuf {
        self.dir().join(unit(id))
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        Cmd::new("systemctl").args(["stop", &self.unit]).run();
    }
}

/// The unit of a container.
fn unit(id: &str) -> String {
    format!("cri-containerd-{id}.scope")
}

/// A property of a unit.
#[track_caller]
fn show(unit: &str, property: &str) -> String {
    Cmd::new("systemctl").args(["show", "--value", "--property", property, unit]).ok()
}

/// A file of a cgroup.
#[track_caller]
fn file(dir: &Path, name: &str) -> String {
    let path = dir.join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_owned()
}

/// The pids in a group and in those below it.
fn members(dir: &Path) -> Vec<String> {
    Cmd::new("find")
        .arg(dir)
        .args(["-name", "cgroup.procs", "-exec", "cat", "{}", "+"])
        .ok()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn number(value: &Value) -> u64 {
    value["value"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

of_each_release!(the_option_is_runcs_alone);

/// A class with `SystemdCgroup` and a path that is not systemd's: where the shim was told it, no pod could be made.
fn the_option_is_runcs_alone(release: Release) {
    let pod = Node::shared(release).try_pod("systemd", &json!({})).unwrap_or_else(|e| panic!("RunPodSandbox: {e}"));
    assert_eq!(pod.idle().sh("exit 3").code, 3);
    pod.remove();
}

of_each_release!(a_pod_in_a_slice);

/// Scopes in the pod's slice that have the limits, in the cgroup's files and in systemd's own properties, which it writes
/// again when it is reloaded; execs within them; statistics, kills for want of memory, changes of limits; one shim; and with
/// the pod its scopes go.
fn a_pod_in_a_slice(release: Release) {
    let Some(slice) = Slice::of_a_pod(512 << 20) else { return };
    let node = Node::shared(release);
    let parent = json!({ "linux": { "cgroup_parent": slice.parent } });
    let pod = node.try_pod("systemd", &parent).unwrap_or_else(|e| panic!("RunPodSandbox: {e}"));
    let resources = json!({
        "cpu_period": 100_000, "cpu_quota": 50_000, "cpu_shares": 512, "memory_limit_in_bytes": 64 << 20,
    });
    let a = pod
        .run(&["sh", "-c", "trap 'exit 5' TERM; sleep 100000 & wait"], &json!({ "linux": { "resources": resources } }));
    let b = pod.idle();
    assert_eq!(node.containerd.shims(Some(&pod.id)).len(), 1);
    for id in [&pod.id, &a.id, &b.id] {
        assert_eq!((show(&unit(id), "ActiveState"), show(&unit(id), "Slice")), ("active".into(), slice.unit.clone()));
        assert!(!members(&slice.scope(id)).is_empty(), "nobody is in {}", slice.scope(id).display());
        assert_eq!(node.containerd.socket(id), node.containerd.socket(&pod.id), "a shim of its own");
    }

    let limits = |memory: u64, cpu: &str, per_second: &str| {
        let scope = slice.scope(&a.id);
        assert_eq!((file(&scope, "memory.max"), file(&scope, "cpu.max").as_str()), (memory.to_string(), cpu));
        assert_eq!(a.cgroup("", "memory.max"), memory.to_string(), "what the container sees");
        let unit = unit(&a.id);
        assert_eq!(
            (show(&unit, "MemoryMax"), show(&unit, "CPUQuotaPerSecUSec").as_str()),
            (memory.to_string(), per_second)
        );
    };
    limits(64 << 20, "50000 100000", "500ms");
    assert_eq!(file(&slice.scope(&a.id), "cpu.weight"), "59");
    // Those of the profile, where the pod asks for none.
    assert_eq!(
        (file(&slice.scope(&b.id), "pids.max"), file(&slice.scope(&b.id), "memory.max")),
        ("256".to_owned(), (2_u64 << 30).to_string())
    );
    Cmd::new("systemctl").arg("daemon-reload").ok();
    limits(64 << 20, "50000 100000", "500ms");

    execs(&slice, &a);
    statistics(&a, &b);
    let limit = json!({ "linux": { "resources": { "memory_limit_in_bytes": 32 << 20 } } });
    for _ in 0..3 {
        // When its last process is gone systemd removes the group, and the counter of such kills with it.
        let greedy = pod.run(&["tail", "/dev/zero"], &limit);
        let ended = greedy.ended();
        assert_eq!((&ended["exit_code"], &ended["reason"]), (&json!(137), &json!("OOMKilled")), "{ended}");
    }

    let more = json!({ "container_id": a.id, "linux": { "memory_limit_in_bytes": 96 << 20, "cpu_period": 100_000, "cpu_quota": 25_000 } });
    node.call("UpdateContainerResources", &more);
    limits(96 << 20, "25000 100000", "250ms");
    Cmd::new("systemctl").arg("daemon-reload").ok();
    limits(96 << 20, "25000 100000", "250ms");

    a.stop(30);
    assert_eq!(a.status()["exit_code"], 5);
    a.remove();
    assert_eq!(b.out("echo still here"), "still here");
    // Without the class's option: the kubelet's path is enough.
    let other = node.pod(&parent);
    let c = other.run(&["sleep", "100000"], &json!({ "linux": { "resources": resources } }));
    assert_eq!(
        (show(&unit(&c.id), "ActiveState"), file(&slice.scope(&c.id), "cpu.weight")),
        ("active".into(), "59".into())
    );
    assert_eq!(c.sh("exit 3").code, 3);
    let ids = [&pod.id, &a.id, &b.id, &other.id, &c.id].map(String::clone);
    other.remove();
    pod.remove();
    for id in &ids {
        wait_until("a scope that is gone", SOON, || show(&unit(id), "LoadState") == "not-found");
        assert!(!slice.scope(id).exists());
    }
    // As the kubelet does then; it would go on to be there with anything in it.
    let dir = slice.dir();
    assert_eq!(members(&dir), Vec::<String>::new());
    assert!(
        fs::read_dir(&dir).expect("list").flatten().all(|entry| !entry.path().is_dir()),
        "groups in {}",
        dir.display()
    );
    drop(slice);
    wait_until("a slice that is gone", SOON, || !dir.exists());
}

/// Codes, output, results; a command is within its container's scope, and its group goes with it.
fn execs(slice: &Slice, a: &Container<'_>) {
    let script = "echo out; echo err >&2; echo x >/root/x; exit 3";
    let ran = a.sh(script);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (3, "out\n", "err\n"));
    let ended = results(a, script);
    assert_eq!((&ended[0]["disposition"], &ended[0]["end"]["code"]), (&json!("committed"), &json!(3)), "{ended:?}");
    let scope = slice.scope(&a.id);
    let before = members(&scope).len();
    std::thread::scope(|all| {
        let waits = all.spawn(|| a.sh("sleep 4; exit 4"));
        wait_until("the exec in the scope", SOON, || members(&scope).len() > before);
        assert_eq!(waits.join().expect("the exec").code, 4);
    });
    assert_eq!(members(&scope).len(), before);
    let greedy = "echo y >/root/y; tail /dev/zero";
    assert_eq!(a.sh(greedy).code, 137);
    assert_eq!(results(a, greedy)[0]["end"]["kind"], "oom");
    assert_eq!(a.status()["state"], "CONTAINER_RUNNING");
    let groups = fs::read_dir(&scope).expect("list").flatten().filter(|entry| entry.path().is_dir());
    let groups: Vec<_> = groups.map(|entry| entry.file_name()).collect();
    assert_eq!(groups, ["agentsbx-first"], "groups of ended execs");
}

/// The containers', and the pod's, which containerd reads from the slice.
fn statistics(a: &Container<'_>, b: &Container<'_>) {
    let node = a.pod.node;
    for (container, limit) in [(a, 64 << 20), (b, 2 << 30)] {
        let stats = container.stats();
        let used = number(&stats["memory"]["working_set_bytes"]);
        assert!(used > 0 && used < limit, "{stats}");
        assert!(number(&stats["cpu"]["usage_core_nano_seconds"]) > 0, "{stats}");
    }
    let request = json!({ "pod_sandbox_id": a.pod.id });
    let stats = node.call("PodSandboxStats", &request)["stats"]["linux"].clone();
    assert!(number(&stats["memory"]["working_set_bytes"]) > 0, "{stats}");
    assert_eq!(stats["containers"].as_array().expect("a list").len(), 2, "{stats}");
}
