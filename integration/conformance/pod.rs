//! Containers that join the pid namespace of another, as in a pod with `shareProcessNamespace`: a number in it is of another
//! process on the host, or of none.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::lab::{Container, Runtime, add_mount, cgroups_of};
use crate::support::bundle::Bundle;
use crate::support::env::process;
use crate::support::{Cmd, Env, wait_until};

fn join(bundle: &mut Bundle<'_>, kind: &str, path: &str) {
    let list = bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces");
    list.retain(|ns| ns["type"] != kind);
    list.push(json!({"type": kind, "path": path}));
}

fn mount_cgroups(bundle: &mut Bundle<'_>, options: &[&str]) {
    let mount = json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": options});
    add_mount(bundle, mount);
}

/// The process's number in its own pid namespace.
fn inner_pid(pid: i32) -> i32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("read");
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).expect("NSpid");
    line.split_whitespace().last().expect("a number").parse().expect("a number")
}

/// Has the next processes of the pid namespace of `pid` get numbers that no process of the host has.
fn set_next_pid_apart(pid: i32) {
    let is_free = |n: &i32| (*n..*n + 100).all(|n| !Path::new("/proc").join(n.to_string()).exists());
    let free = (20_000..32_000).step_by(100).find(is_free).expect("a hundred numbers without a process");
    let script = format!("echo {free} >/proc/sys/kernel/ns_last_pid");
    Cmd::new("nsenter").args(["--target", &pid.to_string(), "--pid", "sh", "-c", &script]).ok();
}

/// The container's cgroup in each v1 hierarchy of the host: the name of the hierarchy's directory, and the cgroup's.
fn own_cgroups(pid: i32) -> Vec<(String, PathBuf)> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("read");
    let v1 = text.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let name = controllers.strip_prefix("name=").unwrap_or(controllers);
        (!name.is_empty()).then(|| (name.to_owned(), Path::new("/sys/fs/cgroup").join(name).join(&path[1..])))
    });
    v1.filter(|(_, path)| path.exists()).collect()
}

/// On cgroup v1 no such container with a cgroup mount could be made: "failed to mount cgroup v1: procfs failed". A pid of
/// the joined namespace was looked up among the host's. What is mounted is the container's own cgroup of each hierarchy.
#[test]
fn a_cgroup_mount_is_the_containers_own_in_a_joined_pid_namespace() {
    let env = Env::new();
    let pod = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    pod.start();
    let namespace = format!("/proc/{}/ns/pid", pod.pid());
    for own_namespace in [false, true] {
        let member = Container::new(&env, Runtime::Ours, "exec sleep 100000", |bundle| {
            join(bundle, "pid", &namespace);
            mount_cgroups(bundle, &["nosuid", "noexec", "nodev", "ro"]);
            if own_namespace {
                let list = bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces");
                list.push(json!({"type": "cgroup"}));
            }
        });
        set_next_pid_apart(pod.pid());
        member.start();
        let pid = member.pid();
        assert!(inner_pid(pid) > 20_000 && inner_pid(pid) != pid, "{}", inner_pid(pid));
        let identity = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).map_err(|e| e.kind());
        let inside = PathBuf::from(format!("/proc/{pid}/root/sys/fs/cgroup"));
        let own = own_cgroups(pid);
        for (name, path) in &own {
            assert!(path.ends_with(&member.bundle.id), "{}", path.display());
            assert_eq!(identity(&inside.join(name)), identity(path), "{name}");
        }
        if !own.is_empty() {
            assert_eq!(fs::read_dir(&inside).expect("read").count(), own.len());
            let made = member.sh("mkdir /sys/fs/cgroup/made /sys/fs/cgroup/pids/made");
            assert_eq!(made.stderr.matches("Read-only file system").count(), 2, "{}", made.stderr);
        }
    }
}

/// The verbs know the container's processes from the pod's.
#[test]
fn verbs_in_a_joined_pid_namespace() {
    let env = Env::new();
    let pod = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    pod.start();
    let script = "sleep 100001 & echo $$; trap : USR1; while :; do wait; done";
    let member = Container::new(&env, Runtime::Ours, script, |bundle| {
        join(bundle, "pid", &format!("/proc/{}/ns/pid", pod.pid()));
        mount_cgroups(bundle, &["nosuid", "noexec", "nodev", "ro"]);
    });
    set_next_pid_apart(pod.pid());
    member.start();
    wait_until("it runs", Duration::from_secs(10), || member.out().ends_with('\n'));
    let pid = member.pid();
    assert_eq!(member.out().trim(), inner_pid(pid).to_string());
    // An exec is in the namespace, and in the container's cgroups.
    let seen = member.sh("tr '\\0' ' ' </proc/1/cmdline; echo; cat /proc/self/cgroup").ok();
    let mut lines = seen.lines();
    assert_eq!(lines.next().map(str::trim), Some("sleep 100000"), "{seen}");
    assert!(lines.all(|line| line.contains(&member.bundle.id)), "{seen}");
    let list = member.cmd(["ps", "--format", "json", &member.bundle.id]).run().ok();
    let pids: Vec<i32> = serde_json::from_str(&list).expect("JSON");
    assert!(pids.len() == 2 && pids.contains(&pid) && !pids.contains(&pod.pid()), "{pids:?}, {pid}");
    // An exec that is killed takes nobody with it.
    member.cmd(["exec", &member.bundle.id, "sh", "-c", "kill -9 $$"]).run().expect(137);
    member.cmd(["kill", &member.bundle.id, "USR1"]).run().expect(0);
    assert_eq!((member.status().as_str(), pod.status().as_str()), ("running", "running"));
    member.cmd(["kill", &member.bundle.id, "KILL"]).run().expect(0);
    wait_until("its end", Duration::from_secs(10), || member.status() == "stopped");
    assert_eq!(pod.status(), "running");
    member.cmd(["delete", &member.bundle.id]).run().expect(0);
    assert_eq!(cgroups_of(&member.bundle.id), Vec::<PathBuf>::new());
    let gone = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |s| s.contains(") Z "));
    wait_until("its processes' end", Duration::from_secs(10), || pids.iter().all(gone));
    let state: Value = pod.state();
    assert_eq!(state["status"], "running");
    assert_eq!(pod.sh("echo still here").ok(), "still here");
}

/// A container in the cgroup namespace of another sees its own cgroups, not the other's.
#[test]
fn a_cgroup_mount_is_the_containers_own_in_a_joined_cgroup_namespace() {
    let env = Env::new();
    let pod = Container::new(&env, Runtime::Ours, "exec sleep 100000", |bundle| {
        bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces").push(json!({"type": "cgroup"}));
    });
    pod.start();
    let member = Container::new(&env, Runtime::Ours, "exec sleep 100000", |bundle| {
        join(bundle, "cgroup", &format!("/proc/{}/ns/cgroup", pod.pid()));
        mount_cgroups(bundle, &["rw"]);
    });
    member.start();
    for (name, path) in own_cgroups(member.pid()) {
        let inside = format!("/proc/{}/root/sys/fs/cgroup/{name}", member.pid());
        let inode = |path: &Path| fs::metadata(path).expect("stat").ino();
        assert_eq!(inode(inside.as_ref()), inode(&path), "{name}");
    }
}

/// Where `/proc` is of another pid namespace, the container's pid is another process's there: the container's mounts were
/// repaired in that one's mount namespace. Such a place is refused, with what to do.
#[test]
fn a_proc_of_another_pid_namespace_is_refused() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "echo ran", |_| {});
    let run = |options: &[&str]| {
        let unshare = Cmd::new("unshare").args(["--pid", "--fork", "--mount"]).args(options);
        let run = unshare.args(container.runtime.words(&env)).args(["run", "--bundle"]).arg(&container.bundle.dir);
        run.arg(&container.bundle.id).env("AGENTSBX_CONFIG", &process().config).run()
    };
    let refused = run(&[]).expect(1);
    assert!(refused.stderr.contains("pid namespace; mount it there"), "{}", refused.stderr);
    assert_eq!(refused.stdout, "");
    assert_eq!(run(&["--mount-proc"]).ok(), "ran");
    // Nor is a container of the host taken for ended.
    let living = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    living.start();
    for verb in ["state", "delete", "kill"] {
        let asked = Cmd::new("unshare").args(["--pid", "--fork"]).args(living.runtime.words(&env));
        let told = asked.args([verb, &living.bundle.id]).env("AGENTSBX_CONFIG", &process().config).run();
        assert!(told.code != 0 && told.stderr.contains("pid namespace; mount it there"), "{verb}: {}", told.stderr);
    }
    assert_eq!(living.status(), "running");
}
