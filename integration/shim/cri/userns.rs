//! Pods with a user namespace (`hostUsers: false`): the kubelet chooses the ids, and asks for the same at each volume.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::node::{Container, Node, Pod};
use super::{of_each_release, stream};
use crate::shim::daemon::{Release, Shim};
use crate::support::Cmd;
use crate::support::env::unique;

/// The first of the pod's ids, as kubelets choose them: a multiple of how many there are.
const FIRST: u32 = 160 * SIZE;
const SIZE: u32 = 65536;

fn ids() -> Value {
    json!([{ "host_id": FIRST, "container_id": 0, "length": SIZE }])
}

/// The pod's part of a request; a container's is the same.
fn with_users() -> Value {
    json!({ "linux": { "security_context": { "namespace_options": namespace_options() } } })
}

/// The part of it that speaks of namespaces.
pub fn namespace_options() -> Value {
    json!({ "userns_options": { "mode": "POD", "uids": ids(), "gids": ids() } })
}

/// A container that waits, with these mounts.
fn container<'a>(pod: &'a Pod<'_>, mounts: &Value) -> Container<'a> {
    let mut config = with_users();
    config["mounts"] = mounts.clone();
    pod.run(&["sh", "-c", "echo first >/root/first; trap 'exit 5' TERM; sleep 100000 & wait"], &config)
}

/// A volume with files of two of the host's users, and of one of the pod's.
fn volume(node: &Node) -> PathBuf {
    let volume = node.containerd.data().join(unique("volume"));
    fs::create_dir_all(&volume).expect("make a directory");
    for (name, owner) in [("of-0", 0), ("of-1000", 1000), ("of-pod", FIRST + 7)] {
        fs::write(volume.join(name), name).expect("write a file");
        chown(volume.join(name), Some(owner), Some(owner)).expect("chown");
    }
    volume
}

/// Its mount in a request.
fn mount(volume: &Path, at: &str, mapped: bool, readonly: bool) -> Value {
    let mut mount = json!({ "host_path": volume, "container_path": at, "readonly": readonly });
    if mapped {
        mount["uidMappings"] = ids();
        mount["gidMappings"] = ids();
    }
    mount
}

fn owner(path: &Path) -> (u32, u32) {
    let stat = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    (stat.uid(), stat.gid())
}

/// The owners of what is at this path in a snapshot or a layer of the node, but for the host's root.
fn on_host(node: &Node, path: &str) -> Vec<(u32, u32)> {
    let found = Cmd::new("find").arg(node.containerd.data()).args(["-path", &format!("*{path}")]).ok();
    found.lines().map(|line| owner(Path::new(line))).filter(|ids| *ids != (0, 0)).collect()
}

/// The user namespace of a container's first process, from outside.
fn namespace(node: &Node, id: &str) -> String {
    let file = node.containerd.bundle(id).join("init.pid");
    let pid = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    user_namespace(pid.trim())
}

fn user_namespace(pid: &str) -> String {
    let link = fs::read_link(format!("/proc/{pid}/ns/user")).expect("a namespace");
    link.to_string_lossy().into_owned()
}

/// Owners as a command in the container sees them.
fn owners(container: &Container<'_>, paths: &str) -> String {
    container.out(&format!("stat -c '%n %u:%g' {paths}"))
}

#[test]
fn containerd_1_6_knows_no_users_of_pods() {
    // The field came after it: under whatever shim such a pod has the host's ids.
    let node = Node::shared(Release::C16);
    let pod = node.pod(&with_users());
    let a = container(&pod, &json!([]));
    assert_eq!(namespace(node, &a.id), user_namespace("self"));
    assert_eq!(owners(&a, "/bin/busybox"), "/bin/busybox 0:0");
    pod.remove();
}

#[test]
fn containerd_1_7_changes_the_owners_of_a_copy() {
    let node = Node::shared(Release::C17);
    let volume = volume(node);
    let pod = node.pod(&with_users());
    // Under whatever shim: it is containerd that has none.
    let mut config = with_users();
    config["mounts"] = json!([mount(&volume, "/volume", true, false)]);
    let refused = pod.try_create(&["true"], &config).expect_err("a mapped volume");
    assert!(refused.message.contains("idmap mounts not yet supported"), "{refused}");

    let a = container(&pod, &json!([mount(&volume, "/plain", false, false)]));
    let b = container(&pod, &json!([]));
    story(node, &pod, &a, &b);
    pod.remove();
}

#[test]
fn containerd_2_maps_layers_and_volumes() {
    let node = Node::shared(Release::C2);
    let status = node.call("Status", &json!({}));
    let handlers = status["runtime_handlers"].as_array().expect("a list");
    let can = |class: &str| {
        let handler = handlers.iter().find(|handler| handler["name"] == class).expect(class);
        handler["features"]["user_namespaces"] == true
    };
    // By this a kubelet decides. containerd asks no other type of runtime.
    assert_eq!((can("users"), can("agentsbx")), (true, Shim::under_test() != Shim::Ours), "{status}");

    let volume = volume(node);
    let pod = node.try_pod("users", &with_users()).unwrap_or_else(|e| panic!("RunPodSandbox: {e}"));
    let a = container(
        &pod,
        &json!([
            mount(&volume, "/volume", true, false),
            mount(&volume, "/read-only", true, true),
            mount(&volume, "/plain", false, false),
        ]),
    );
    let b = container(&pod, &json!([mount(&volume, "/volume", true, false)]));
    story(node, &pod, &a, &b);

    // On a mapped volume the users are those of the files; the pod's own are nobody there.
    let at = |dir: &str| ["of-0", "of-1000", "of-pod"].map(|name| format!("{dir}/{name}")).join(" ");
    for dir in ["/volume", "/read-only"] {
        let want = format!("{dir}/of-0 0:0\n{dir}/of-1000 1000:1000\n{dir}/of-pod 65534:65534");
        assert_eq!(owners(&a, &at(dir)), want);
    }
    a.out("echo mine >/volume/mine; chown 9:10 /volume/mine; echo more >>/volume/of-1000");
    assert_eq!((owner(&volume.join("mine")), owner(&volume.join("of-1000"))), ((9, 10), (1000, 1000)));
    assert_eq!(owners(&b, "/volume/mine"), "/volume/mine 9:10");
    assert_ne!(a.sh("echo x >/read-only/mine").code, 0);
    assert_ne!(a.sh("echo x >/volume/of-pod").code, 0);
    // The profile's flags are on it as on others.
    for dir in ["/volume", "/read-only"] {
        let line = a.out(&format!("grep ' {dir} ' /proc/self/mountinfo"));
        assert!(["nosuid", "nodev", "noexec", "idmapped"].iter().all(|flag| line.contains(flag)), "{line}");
    }
    // The files that containerd itself gives a pod are mapped too.
    assert_eq!(owners(&a, "/etc/hosts /etc/hostname"), "/etc/hosts 0:0\n/etc/hostname 0:0");
    stream::on_terminals_and_pipes(&pod, &with_users());
    pod.remove();
}

/// What holds with each release that knows users of pods: `a` has a volume at `/plain` that is not mapped.
fn story(node: &Node, pod: &Pod<'_>, a: &Container<'_>, b: &Container<'_>) {
    let containerd = &node.containerd;
    let pods = namespace(node, &pod.id);
    assert_ne!(pods, user_namespace("self"));
    for each in [a, b] {
        assert_eq!(namespace(node, &each.id), pods);
        assert!(each.out("ls -l /proc/self/ns/user").ends_with(&pods), "an exec in another namespace");
        for file in ["uid_map", "gid_map"] {
            let map = each.out(&format!("cat /proc/self/{file}"));
            assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", &FIRST.to_string(), &SIZE.to_string()]);
        }
        assert_eq!(owners(each, "/ /bin/busybox /root/first"), "/ 0:0\n/bin/busybox 0:0\n/root/first 0:0");
    }
    assert_eq!(on_host(node, "/fs/root/first"), [(FIRST, FIRST); 2]);
    assert!(a.out("ip addr show eth0").contains("inet 10."), "no network");
    a.out("echo x >/dev/shm/x");
    assert_eq!(owners(b, "/dev/shm/x"), "/dev/shm/x 0:0");
    assert_eq!(owners(a, "/plain/of-0 /plain/of-pod"), "/plain/of-0 65534:65534\n/plain/of-pod 7:7");

    // Layers: kept apart, told, taken over, gone back from.
    let ran = a.sh("echo x >/root/x; chown 7:8 /root/x; rm /root/first; echo y >>/etc/group; exit 3");
    assert_eq!(ran.code, 3, "{ran:?}");
    let shown = containerd.json(["show", &a.id]);
    let change =
        |path: &str| shown["changes"].as_array().expect("changes").iter().find(|c| c["path"] == path).expect(path);
    assert_eq!((&shown["disposition"], &shown["end"]["code"]), (&json!("committed"), &json!(3)), "{shown}");
    assert_eq!((&change("/root/x")["uid"], &change("/root/x")["gid"]), (&json!(7), &json!(8)), "{shown}");
    assert_eq!(
        (&change("/etc/group")["kind"], &change("/root/first")["kind"]),
        (&json!("modified"), &json!("deleted"))
    );
    assert_eq!(on_host(node, "/upper/root/x"), [(FIRST + 7, FIRST + 8)]);
    let looks = |container: &Container<'_>| owners(container, "/root/* /etc/group");
    assert_eq!(looks(a), "/root/x 7:8\n/etc/group 0:0");
    assert_eq!(looks(b), "/root/first 0:0\n/etc/group 0:0");
    containerd.agentsbx(["rollback", &a.id, "0"]).ok();
    assert_eq!(looks(a), "/root/first 0:0\n/etc/group 0:0");
    containerd.agentsbx(["rollback", &a.id, "1"]).ok();
    assert_eq!(looks(a), "/root/x 7:8\n/etc/group 0:0");

    strict(a);
    for each in [a, b] {
        let stats = each.stats();
        let number = |value: &Value| value["value"].as_str().and_then(|n| n.parse::<u64>().ok()).unwrap_or_default();
        assert!(number(&stats["memory"]["working_set_bytes"]) > 0, "{stats}");
        assert!(number(&stats["cpu"]["usage_core_nano_seconds"]) > 0, "{stats}");
    }
}

/// The node's default profile is in force: being root of a user namespace gives nothing more.
fn strict(a: &Container<'_>) {
    let field = |name: &str| a.out(&format!("grep '^{name}:' /proc/self/status | cut -f 2"));
    assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1".into(), "2".into()));
    let plain = a.pod.node.pod(&json!({}));
    let other = plain.idle();
    for name in ["CapEff", "CapBnd", "CapAmb"] {
        let theirs = other.out(&format!("grep '^{name}:' /proc/self/status | cut -f 2"));
        assert_eq!(field(name), theirs, "{name}");
    }
    plain.remove();
    for refused in
        ["mount -t tmpfs x /mnt", "unshare -r true", "mknod /root/sda b 8 0", "echo 1 >/proc/sys/kernel/printk"]
    {
        assert_ne!(a.sh(refused).code, 0, "{refused}");
    }
}

/// A shim that is named by its path, and its pods, are found again by a containerd that was killed.
#[test]
fn containerd_2_finds_a_shim_by_its_path() {
    let node = Node::start(Release::C2);
    let pod = node.try_pod("users", &with_users()).unwrap_or_else(|e| panic!("RunPodSandbox: {e}"));
    let a = container(&pod, &json!([]));
    let (pods, shims) = (namespace(&node, &a.id), node.containerd.shims(None));
    assert_eq!(shims.len(), 1);
    node.containerd.kill(Signal::KILL);
    node.containerd.launch();
    node.wait_ready();
    assert_eq!(a.status()["state"], "CONTAINER_RUNNING");
    assert_eq!((a.sh("exit 9").code, node.containerd.shims(None)), (9, shims));
    let b = container(&pod, &json!([]));
    assert_eq!((namespace(&node, &a.id), namespace(&node, &b.id)), (pods.clone(), pods));
    assert_eq!(owners(&b, "/bin/busybox"), "/bin/busybox 0:0");
    a.stop(30);
    assert_eq!(a.status()["exit_code"], 5);
    pod.remove();
}

of_each_release!(held_layers);

/// `hold`, `diff`, `commit`, with owners as the pod sees them.
fn held_layers(release: Release) {
    let node = Node::shared(release);
    let containerd = &node.containerd;
    let mut more = with_users();
    more["annotations"] = json!({ "dev.agentsbx.layer": "hold" });
    let pod = node.pod(&more);
    let a = container(&pod, &json!([]));
    a.out("echo x >/root/x; chown 7:8 /root/x");
    let shown = containerd.json(["show", &a.id]);
    assert_eq!(shown["disposition"], "held", "{shown}");
    assert_ne!(a.sh("cat /root/x").code, 0);
    containerd.agentsbx(["commit", &a.id, shown["exec"].as_str().expect("an exec")]).ok();
    assert_eq!(owners(&a, "/root/x"), "/root/x 7:8");
    let diff = containerd.json(["diff", &a.id]);
    let text = diff.to_string();
    assert!(text.contains("/root/x") && text.contains("\"uid\":7") && text.contains("\"gid\":8"), "{text}");
    pod.remove();
}
