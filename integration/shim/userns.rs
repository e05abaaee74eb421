//! Containers with a user namespace of their own, as `ctr run` makes them: the image's files belong to its users by mapped mounts
//! (containerd 2), or by a copy whose owners are changed (before, and without `--remap-labels`).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::json;

use super::daemon::{Containerd, Release, Shim, Task};
use crate::support::Cmd;

const ONE_RANGE: [&str; 4] = ["--uidmap", "0:100000:65536", "--gidmap", "0:200000:65536"];
const TWO_RANGES: [&str; 8] = [
    "--uidmap",
    "0:100000:1000",
    "--uidmap",
    "1000:300000:64536",
    "--gidmap",
    "0:200000:1000",
    "--gidmap",
    "1000:400000:64536",
];

/// The first process leaves files of two owners.
const FIRST: &str = "echo first >/root/first; chown 5:6 /root/first; echo other >/root/other; chown 1001:1002 /root/other; \
                     sed -i s/x/y/ /etc/passwd; echo ready >/root/ready; exec sleep 100000";

/// What a container says of itself.
#[track_caller]
fn seen(task: &Task<'_>) -> String {
    let script = "until [ -e /root/ready ]; do sleep 0.1; done; cat /proc/self/uid_map /proc/self/gid_map; id; \
                  stat -c '%n %u %g' / /bin/busybox /etc/group /etc/passwd /root/first /root/other";
    task.sh(script).expect(0).stdout
}

/// Owners on the host of what is at `path` in snapshots and layers, but for the host's root.
fn on_host(containerd: &Containerd, path: &str) -> BTreeSet<(u32, u32)> {
    let found = Cmd::new("find").arg(containerd.data()).args(["-path", &format!("*{path}")]).ok();
    let stats = found.lines().map(|line| fs::symlink_metadata(line).expect(line));
    stats.map(|stat| (stat.uid(), stat.gid())).filter(|ids| *ids != (0, 0)).collect()
}

/// Mounts of which somebody knows by this word.
fn mounts(word: &str) -> usize {
    let all = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    all.lines().filter(|line| line.contains(word)).count()
}

fn snapshots(containerd: &Containerd) -> usize {
    let dir = containerd.data().join("containerd/io.containerd.snapshotter.v1.overlayfs/snapshots");
    fs::read_dir(dir).expect("list the snapshots").count()
}

fn with(release: Release, options: &[&str], first: (u32, u32), other: (u32, u32)) {
    let containerd = Containerd::start(release);
    let before = snapshots(&containerd);
    let args = ["sh", "-c", FIRST];
    let stock = Task::of(&containerd, Shim::Stock, options, &args);
    let wanted = seen(&stock);
    let kept = snapshots(&containerd) - before;

    let before = snapshots(&containerd);
    let task = Task::of(&containerd, Shim::Ours, options, &args);
    assert_eq!(seen(&task), wanted);
    assert!(wanted.contains("/bin/busybox 0 0") && wanted.contains("/etc/passwd 0 0"), "{wanted}");
    // Whoever makes copies has made one for the first container already.
    assert!(snapshots(&containerd) - before <= kept);
    // The two root filesystems.
    assert_eq!((mounts(&task.id), mounts(&containerd.run.display().to_string())), (1, 2));
    assert_eq!(on_host(&containerd, "/fs/root/first"), [first].into());
    assert_eq!(on_host(&containerd, "/fs/root/other"), [other].into());

    task.sh("echo x >/root/x; chown 5:6 /root/x; rm /root/other; echo y >>/etc/group").expect(0);
    let shown = containerd.json(["show", &task.id]);
    let change =
        |path: &str| shown["changes"].as_array().expect("changes").iter().find(|c| c["path"] == path).expect(path);
    assert_eq!(shown["disposition"], "committed", "{shown}");
    assert_eq!((&change("/root/x")["uid"], &change("/root/x")["gid"]), (&json!(5), &json!(6)), "{shown}");
    assert_eq!(
        (&change("/etc/group")["kind"], &change("/root/other")["kind"]),
        (&json!("modified"), &json!("deleted"))
    );
    assert_eq!(on_host(&containerd, "/upper/root/x"), [first].into());
    let looks = "stat -c '%n %u %g' /root/* /etc/group";
    let after = task.sh(looks).expect(0).stdout;
    assert!(after.contains("/root/x 5 6") && after.contains("/etc/group 0 0") && !after.contains("other"), "{after}");
    containerd.agentsbx(["rollback", &task.id, "0"]).ok();
    let back = task.sh(looks).expect(0).stdout;
    assert!(!back.contains("/root/x") && back.contains("/root/other 1001 1002"), "{back}");
    let id = task.id.clone();
    task.remove();
    assert_eq!(mounts(&id), 0);
    // Its copy would be collected, at a time of containerd's choice, while the other's container is made of it.
    stock.remove();
}

#[test]
fn containerd_1_6_changes_the_owners_of_a_copy() {
    with(Release::C16, &ONE_RANGE, (100_005, 200_006), (101_001, 201_002));
}

#[test]
fn containerd_1_7_changes_the_owners_of_a_copy() {
    with(Release::C17, &[&["--remap-labels"][..], &ONE_RANGE].concat(), (100_005, 200_006), (101_001, 201_002));
}

#[test]
fn containerd_2_maps_the_layers() {
    with(Release::C2, &[&["--remap-labels"][..], &ONE_RANGE].concat(), (100_005, 200_006), (101_001, 201_002));
}

#[test]
fn containerd_2_asking_as_2_3_maps_the_layers() {
    with(Release::C23, &[&["--remap-labels"][..], &ONE_RANGE].concat(), (100_005, 200_006), (101_001, 201_002));
}

#[test]
fn containerd_2_maps_the_layers_by_several_ranges() {
    with(Release::C2, &[&["--remap-labels"][..], &TWO_RANGES].concat(), (100_005, 200_006), (300_001, 400_002));
}
