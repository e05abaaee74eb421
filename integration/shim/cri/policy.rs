//! What kubelets put into a pod's containers, under the profile strict as it is by default.

use std::fs;

use serde_json::{Value, json};

use super::node::{Container, Node};
use super::of_each_release;
use crate::shim::daemon::Release;
use crate::support::Cmd;
use crate::support::env::unique;

/// A line of `/proc/self/status`.
fn status(container: &Container<'_>, field: &str) -> String {
    container.out(&format!("grep '^{field}:' /proc/self/status | cut -f 2"))
}

of_each_release!(volumes_users_and_limits);

/// The files, volumes, users and limits of an ordinary pod work.
fn volumes_users_and_limits(release: Release) {
    let node = Node::shared(release);
    let volumes = node.containerd.data().join(unique("volumes"));
    for dir in ["token", "empty", "host"] {
        fs::create_dir_all(volumes.join(dir)).expect("make a directory");
    }
    for (file, text) in [("etc-hosts", "10.1.2.3 other\n"), ("termination", ""), ("token/token", "secret")] {
        fs::write(volumes.join(file), text).expect("write a file");
    }
    // What is mounted on the host later may only be asked for where the host passes it on.
    let host = volumes.join("host");
    Cmd::new("mount").arg("--bind").args([&host, &host]).ok();
    Cmd::new("mount").arg("--make-shared").arg(&host).ok();
    for path in ["empty", "termination"] {
        std::os::unix::fs::chown(volumes.join(path), Some(1000), Some(2000)).expect("chown");
    }
    let mount = |source: &str, at: &str, readonly: bool, propagation: &str| json!({ "host_path": volumes.join(source), "container_path": at, "readonly": readonly, "propagation": propagation });
    let pod = node.pod(&json!({ "linux": { "sysctls": { "net.ipv4.ip_local_port_range": "20000 30000" } } }));
    let config = json!({
        "envs": [{ "key": "GREETING", "value": "hello" }],
        "working_dir": "/cache",
        "mounts": [
            mount("token", "/var/run/secrets/kubernetes.io/serviceaccount", true, "PROPAGATION_PRIVATE"),
            mount("empty", "/cache", false, "PROPAGATION_PRIVATE"),
            mount("host", "/host", true, "PROPAGATION_HOST_TO_CONTAINER"),
            mount("etc-hosts", "/etc/hosts", false, "PROPAGATION_PRIVATE"),
            mount("termination", "/dev/termination-log", false, "PROPAGATION_PRIVATE"),
        ],
        "linux": {
            "resources": {
                "cpu_period": 100_000, "cpu_quota": 50_000, "cpu_shares": 512, "memory_limit_in_bytes": 64 << 20,
                "oom_score_adj": 900,
            },
            "security_context": {
                "run_as_user": { "value": 1000 }, "run_as_group": { "value": 1000 }, "supplemental_groups": [2000],
                "no_new_privs": true, "readonly_rootfs": true,
                "capabilities": { "add_capabilities": ["NET_RAW", "CHOWN"], "drop_capabilities": ["ALL"] },
            },
        },
    });
    let a = pod.run(&["sh", "-c", "trap 'exit 0' TERM; echo bye >/dev/termination-log; sleep 100000 & wait"], &config);
    assert_eq!(a.out("echo $(id -u) $(id -G); pwd; echo $GREETING"), "1000 1000 2000\n/cache\nhello");
    assert_eq!(a.out("cat /etc/hosts /var/run/secrets/kubernetes.io/serviceaccount/token"), "10.1.2.3 other\nsecret");
    assert!(a.out("cat /etc/resolv.conf").contains("nameserver 10.96.0.10"));
    a.out("echo kept >/cache/file");
    assert_eq!(fs::read_to_string(volumes.join("empty/file")).expect("the file of the volume"), "kept\n");
    assert_eq!(fs::read_to_string(volumes.join("termination")).expect("the message"), "bye\n");
    for refused in ["echo x >/var/run/secrets/kubernetes.io/serviceaccount/token", "echo x >/host/x", "echo x >/bin/x"]
    {
        assert_ne!(a.sh(refused).code, 0, "{refused}");
    }
    // What the host mounts later is not passed on, and programs on volumes are not executed.
    let line = a.out("grep ' /host ' /proc/self/mountinfo");
    assert!(!line.contains("master:") && !line.contains("shared:"), "{line}");
    assert_eq!(a.sh("cp /bin/busybox /cache/true; chmod 755 /cache/true; /cache/true").code, 126);
    assert_eq!(a.out("echo x >/dev/shm/x; cat /dev/shm/x"), "x");
    assert_eq!(a.cgroup("memory/memory.limit_in_bytes", "memory.max"), (64 << 20).to_string());
    assert_eq!(a.cgroup("cpu/cpu.cfs_quota_us", "cpu.max").split(' ').next(), Some("50000"));
    assert_eq!(a.out("cat /proc/sys/net/ipv4/ip_local_port_range"), "20000\t30000");
    assert_eq!(a.out("cat /proc/1/oom_score_adj /proc/self/oom_score_adj"), "900\n900");
    assert_eq!((status(&a, "NoNewPrivs"), status(&a, "Seccomp")), ("1".into(), "2".into()));
    // The pod's shared memory is that of all its containers.
    let b = pod.idle();
    assert_eq!(b.out("cat /dev/shm/x"), "x");
    pod.remove();
    Cmd::new("umount").arg(&host).ok();
}

of_each_release!(what_a_privileged_pod_gets);

/// It runs, with what others have: no capability, device or writable kernel file more.
fn what_a_privileged_pod_gets(release: Release) {
    let more =
        json!({ "linux": { "security_context": { "privileged": true, "seccomp": { "profile_type": "Unconfined" } } } });
    let pod = Node::shared(release).pod(&more);
    let mut config = more;
    for list in ["masked_paths", "readonly_paths"] {
        config["linux"]["security_context"][list] = json!([]);
    }
    config["linux"]["security_context"]["capabilities"] = json!({ "add_capabilities": ["ALL"] });
    let (plain, privileged) = (pod.idle(), pod.run(&["sleep", "100000"], &config));
    for field in ["CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"] {
        assert_eq!(status(&plain, field), status(&privileged, field), "{field}");
    }
    assert_eq!(plain.out("ls /dev"), privileged.out("ls /dev"));
    for refused in [
        "mount -t tmpfs x /mnt",
        "echo 1 >/proc/sys/kernel/printk",
        "mkdir /sys/fs/cgroup/x || mkdir /sys/fs/cgroup/pids/x",
        "head -c 1 /proc/kcore | grep .",
    ] {
        assert_ne!(privileged.sh(refused).code, 0, "{refused}");
    }
    pod.remove();
}

of_each_release!(what_is_the_hosts_is_refused);

/// The host's namespaces and directories are refused, with the reason and the remedy in the error that Kubernetes shows; a
/// class with a configuration of its own may have them.
fn what_is_the_hosts_is_refused(release: Release) {
    let node = Node::shared(release);
    let with = |namespace: &str, of: &str| json!({ "linux": { "security_context": { "namespace_options": { namespace: of } } } });
    for (namespace, word) in [("network", "host-network"), ("pid", "host-pid"), ("ipc", "host-ipc")] {
        let refused = node.try_pod("agentsbx", &with(namespace, "NODE")).expect_err("a namespace of the host's");
        assert!(refused.message.contains(word) && refused.message.contains("allow"), "{refused}");
    }
    let pod = node.pod(&json!({}));
    let mounts = |mount: Value| pod.try_create(&["true"], &json!({ "mounts": [mount] }));
    for source in ["/", "/etc", "/var/lib/kubelet", "/run/containerd"] {
        let created = mounts(json!({ "host_path": source, "container_path": "/host" }));
        let started = created.and_then(|c| node.try_call("StartContainer", &json!({ "container_id": c.id })));
        let refused = started.expect_err("a directory of the host's");
        assert!(refused.message.contains("mounts") && refused.message.contains(source), "{refused}");
    }
    pod.remove();

    // A kubelet gives a pod of the node's network no name, and containerd gives it the node's UTS namespace.
    let mut nodes = with("network", "NODE");
    nodes["hostname"] = json!("");
    let own = node.try_pod("own", &nodes).unwrap_or_else(|e| panic!("the class's own: {e}"));
    let container = own.run(&["sh", "-c", "sleep 100000"], &with("network", "NODE"));
    assert!(container.out("ip addr").contains("pods0"), "not the node's network");
    assert_eq!(container.cgroup("pids/pids.max", "pids.max"), "77");
    own.remove();
}
