//! Kubernetes' side: pods of class `agentsbx`, made by the CRI plugins of containerd 1.6, 1.7 and 2.x, as a kubelet drives
//! them. `policy` has what kubelets ask for and the profile strict changes or refuses, `systemd` nodes whose
//! cgroups are systemd's, `kills` what is killed.

mod client;
mod kills;
mod node;
mod policy;
mod stream;
mod systemd;
mod userns;

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::shim::daemon::{Release, SOON, Shim, signal};
use crate::support::{result, wait_until};
use node::{Container, Node};

/// One test for each release, of a function of that name.
macro_rules! of_each_release {
    ($name:ident) => {
        mod $name {
            use crate::shim::daemon::Release;

            #[test]
            fn containerd_1_6() {
                super::$name(Release::C16);
            }

            #[test]
            fn containerd_1_7() {
                super::$name(Release::C17);
            }

            #[test]
            fn containerd_2() {
                super::$name(Release::C2);
            }

            #[test]
            fn containerd_2_asking_as_2_3() {
                super::$name(Release::C23);
            }
        }
    };
}
use of_each_release;

/// What a call that waits for nobody may take on a busy machine: half of the grace that stops have here.
const AT_ONCE: Duration = Duration::from_secs(15);
/// That grace, in seconds.
const GRACE: u32 = 30;

#[track_caller]
fn took_less(limit: Duration, what: &str, act: impl FnOnce()) {
    let begun = Instant::now();
    act();
    let took = begun.elapsed();
    assert!(took < limit, "{what} took {took:?}");
}

/// The results of a container's execs whose shell ran `script`.
fn results(container: &Container<'_>, script: &str) -> Vec<Value> {
    let all = result::in_bundle(&container.pod.node.containerd.bundle(&container.id));
    all.into_iter().filter(|result| result["args"][2] == script).collect()
}

of_each_release!(a_pod_of_two);

/// One shim for the pod; annotations, results, layers, statistics, logs, exit codes as they should be; and nothing is left.
fn a_pod_of_two(release: Release) {
    let node = Node::shared(release);
    let pod = node.pod(&json!({ "annotations": { "dev.agentsbx.layer": "hold", "example.com/x": "y" } }));
    let (a, b) = (pod.idle(), pod.idle());
    let containerd = &node.containerd;
    assert_eq!(containerd.shims(Some(&pod.id)).len(), 1);
    for container in [&a, &b] {
        assert!(containerd.shims(Some(&container.id)).is_empty(), "a shim of its own");
        assert_eq!(containerd.socket(&container.id), containerd.socket(&pod.id));
        assert_eq!(container.config()["annotations"]["dev.agentsbx.layer"], "hold");
        // Only what the class lets through.
        assert_eq!(container.config()["annotations"]["example.com/x"], Value::Null);
        assert_eq!(container.status()["state"], "CONTAINER_RUNNING");
    }

    let script = "echo out; echo err >&2; echo x >/root/x; exit 3";
    let ran = a.sh(script);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (3, "out\n", "err\n"));
    let shown = containerd.json(["show", &a.id]);
    assert_eq!((&shown["disposition"], &shown["end"]["code"]), (&json!("held"), &json!(3)), "{shown}");
    assert_eq!(shown["changes"][0]["path"], "/root/x", "{shown}");
    // The engine's id of the exec is its name everywhere.
    let by_name = containerd.json(["show", &a.id, shown["engineExec"].as_str().expect("an engine's id")]);
    assert_eq!(by_name["exec"], shown["exec"]);

    let codes = |container: &Container<'_>| -> Vec<i64> {
        thread::scope(|scope| {
            let each = |n: i32| {
                scope.spawn(move || {
                    container.sh(&format!("sleep 0.3; echo {n} >/root/n; test $(cat /root/n) = {n}; exit {n}"))
                })
            };
            let all: Vec<_> = (1..=5).map(each).collect();
            all.into_iter().map(|one| one.join().expect("an exec").code).collect()
        })
    };
    thread::scope(|scope| {
        let others = scope.spawn(|| codes(&b));
        assert_eq!(codes(&a), [1, 2, 3, 4, 5]);
        assert_eq!(others.join().expect("the execs"), [1, 2, 3, 4, 5]);
    });
    let held = |container| result::in_bundle(&containerd.bundle(container)).len();
    assert_eq!((held(&a.id), held(&b.id)), (6, 5));

    network(&a, &b);
    for container in [&a, &b] {
        let stats = container.stats();
        let number = |value: &Value| value["value"].as_str().and_then(|n| n.parse::<u64>().ok()).unwrap_or_default();
        assert!(number(&stats["memory"]["working_set_bytes"]) > 0, "{stats}");
        assert!(number(&stats["cpu"]["usage_core_nano_seconds"]) > 0, "{stats}");
    }
    let list = node.call("ListContainerStats", &json!({ "filter": { "pod_sandbox_id": pod.id } }));
    assert_eq!(list["stats"].as_array().expect("a list").len(), 2, "{list}");

    let job = pod.run(&["sh", "-c", "echo one; echo two >&2; exit 6"], &json!({}));
    let ended = job.ended();
    assert_eq!((&ended["exit_code"], &ended["reason"]), (&json!(6), &json!("Error")), "{ended}");
    assert!(job.log().contains(" stdout F one\n") && job.log().contains(" stderr F two\n"), "{}", job.log());

    took_less(AT_ONCE, "the stop by SIGTERM", || a.stop(GRACE));
    assert_eq!(a.status()["exit_code"], 5);
    let deaf = pod.run(&["sh", "-c", "trap '' TERM; echo deaf; sleep 100000 & wait; wait"], &json!({}));
    wait_until("a first process that is deaf", SOON, || deaf.log().contains("deaf"));
    let begun = Instant::now();
    took_less(AT_ONCE + Duration::from_secs(2), "the stop by SIGKILL", || deaf.stop(2));
    assert!(begun.elapsed() >= Duration::from_secs(2), "killed before the grace was over");
    assert_eq!(deaf.status()["exit_code"], 137);

    a.remove();
    assert_eq!(b.out("echo still here"), "still here");
    pod.remove();
}

/// Both are in the pod's network, under its address and its name, and reach each other by localhost.
fn network(a: &Container<'_>, b: &Container<'_>) {
    let status = a.pod.status();
    let address = status["network"]["ip"].as_str().expect("an address");
    assert!(a.out("ip addr show eth0").contains(&format!("inet {address}/")), "{status}");
    assert_eq!(
        (a.out("hostname"), b.out("hostname")),
        (status["metadata"]["name"].as_str().expect("a name").to_owned(), a.out("hostname"))
    );
    thread::scope(|scope| {
        let server = scope.spawn(|| a.out("echo hello | nc -l -p 7000"));
        let read = b.out("for i in $(seq 15); do sleep 1 | nc 127.0.0.1 7000 && exit; done; exit 1");
        assert_eq!(read, "hello");
        server.join().expect("the server");
    });
}

of_each_release!(what_hangs_holds_up_nobody);

/// An exec that hangs is ended by its time limit. Meanwhile others are stopped, at once; so is its own container.
fn what_hangs_holds_up_nobody(release: Release) {
    let pod = Node::shared(release).pod(&json!({}));
    let (a, b) = (pod.idle(), pod.idle());
    let script = "echo begun | tee /root/begun; sleep 100000";
    let hangs = ["sh", "-c", script];
    thread::scope(|scope| {
        let limited = scope.spawn(|| {
            let begun = Instant::now();
            (a.try_exec(&hangs, 4), begun.elapsed())
        });
        let longer = scope.spawn(|| a.try_exec(&hangs, 90));
        thread::sleep(Duration::from_secs(1));
        took_less(AT_ONCE, "the stop of the other container", || b.stop(GRACE));
        assert_eq!(b.status()["exit_code"], 5);
        took_less(AT_ONCE, "its removal", || b.remove());
        assert_eq!(a.out("echo more"), "more");

        let (limited, took) = limited.join().expect("the exec");
        let refused = limited.expect_err("a time limit");
        assert!(refused.message.contains("timeout") && refused.message.contains("exceeded"), "{refused}");
        assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(4) + AT_ONCE, "{took:?}");
        let ended = results(&a, script);
        assert_eq!(ended.len(), 1, "{ended:?}");
        assert_eq!((&ended[0]["end"]["kind"], &ended[0]["end"]["signal"]), (&json!("signaled"), &json!(9)));

        took_less(AT_ONCE, "the stop of its own container", || a.stop(GRACE));
        assert_eq!(a.status()["exit_code"], 5);
        let killed = longer.join().expect("the exec").expect("an exit code");
        assert_eq!((killed.code, killed.stdout.as_str()), (137, "begun\n"));
    });
    pod.remove();
}

of_each_release!(a_kill_for_want_of_memory_is_the_reason);

/// containerd#8180, containerd#8893: the reason was missing where the kill came soon.
fn a_kill_for_want_of_memory_is_the_reason(release: Release) {
    let pod = Node::shared(release).pod(&json!({}));
    let limit = json!({ "linux": { "resources": { "memory_limit_in_bytes": 32 << 20 } } });
    for _ in 0..3 {
        // It reads a line that never ends.
        let greedy = pod.run(&["tail", "/dev/zero"], &limit);
        let ended = greedy.ended();
        assert_eq!((&ended["exit_code"], &ended["reason"]), (&json!(137), &json!("OOMKilled")), "{ended}");
    }
    let patient = pod.run(&["sleep", "100000"], &limit);
    let script = "echo x >/root/x; tail /dev/zero";
    assert_eq!(patient.sh(script).code, 137);
    assert_eq!(results(&patient, script)[0]["end"]["kind"], "oom");
    assert_eq!(
        (patient.status()["state"].clone(), patient.out("echo x")),
        (json!("CONTAINER_RUNNING"), "x".to_owned())
    );
    // A resize of the pod.
    let more = json!({ "container_id": patient.id, "linux": { "memory_limit_in_bytes": 48 << 20 } });
    patient.pod.node.call("UpdateContainerResources", &more);
    assert_eq!(patient.cgroup("memory/memory.limit_in_bytes", "memory.max"), (48 << 20).to_string());
    pod.remove();
}

of_each_release!(containerd_is_killed_and_comes_back);

/// What ended meanwhile has its own exit code, what runs goes on, under the same shim; then nothing is left.
fn containerd_is_killed_and_comes_back(release: Release) {
    let node = Node::start(release);
    let pod = node.pod(&json!({}));
    let stays = pod.run(&["sh", "-c", "trap 'exit 5' TERM; while :; do echo tick; sleep 0.2; done"], &json!({}));
    let ends = pod.run(&["sh", "-c", "sleep 2; exit 7"], &json!({}));
    let limit = json!({ "linux": { "resources": { "memory_limit_in_bytes": 32 << 20 } } });
    let greedy = pod.run(&["sh", "-c", "sleep 1; exec tail /dev/zero"], &limit);
    let shims = node.containerd.shims(None);
    assert_eq!(shims.len(), 1);
    node.containerd.kill(Signal::KILL);
    thread::sleep(Duration::from_millis(2500));
    node.containerd.launch();
    node.wait_ready();
    assert_eq!((&ends.ended()["exit_code"], &ends.status()["reason"]), (&json!(7), &json!("Error")));
    assert_eq!(greedy.ended()["exit_code"], 137);
    wait_until("the reason", SOON, || greedy.status()["reason"] == "OOMKilled");
    assert_eq!(stays.status()["state"], "CONTAINER_RUNNING");
    assert_eq!((stays.sh("exit 9").code, node.containerd.shims(None)), (9, shims));
    let lines = || stays.log().lines().count();
    let before = lines();
    thread::sleep(Duration::from_secs(1));
    assert!(lines() > before, "no more lines in the log");
    took_less(AT_ONCE, "the stop", || stays.stop(GRACE));
    assert_eq!(stays.status()["exit_code"], 5);
    pod.remove();
}

of_each_release!(a_pods_shim_is_killed);

/// `kill -9` of a pod's shim: containerd finds the pod and its containers ended, and has them deleted, each; an exec of
/// one ended with it. Another pod goes on. With the pod's removal nothing is left.
fn a_pods_shim_is_killed(release: Release) {
    let node = Node::shared(release);
    let (pod, other) = (node.pod(&json!({})), node.pod(&json!({})));
    let (a, b, spared) = (pod.idle(), pod.idle(), other.idle());
    assert!(pod.processes().len() >= 3);
    let [shim] = node.containerd.shims(Some(&pod.id))[..] else { panic!("not one shim") };
    thread::scope(|scope| {
        let exec = scope.spawn(|| a.try_exec(&["sh", "-c", "touch /dev/shm/begun; sleep 100000"], 60));
        wait_until("the exec", SOON, || b.sh("test -e /dev/shm/begun").code == 0);
        signal(shim, Signal::KILL);
        // containerd says that it does not know how it ended, or what the runtime made of it.
        let ran = exec.join().expect("the call");
        assert!(ran.as_ref().map_or(true, |ran| [137, 255].contains(&ran.code)), "{ran:?}");
    });
    for container in [&a, &b] {
        container.ended();
    }
    wait_until("the end of the pod", SOON, || pod.status()["state"] == "SANDBOX_NOTREADY");
    // Before anyone asks for its removal.
    wait_until("the end of its processes", SOON, || pod.processes().is_empty());
    assert_eq!(spared.out("echo still here"), "still here");
    pod.remove_all_traces();
    other.remove();
}

of_each_release!(a_child_that_holds_the_output);

/// containerd#13377: the container's end was told late, and its removal took longer than Kubernetes waits. Where the pod's
/// first process reaps nobody, the child stays as a zombie of the first process's session: before Linux 6.16 the container
/// could not be deleted any more.
fn a_child_that_holds_the_output(release: Release) {
    let shared = json!({ "linux": { "security_context": { "namespace_options": { "pid": "POD" } } } });
    let pod = Node::shared(release).pod(&shared);
    // Of one pid namespace: the child outlives the first process, unless it is killed.
    let container = pod.run(&["sh", "-c", "sleep 100000 & sleep 0.5; echo done; exit 4"], &shared);
    let other = pod.run(&["sleep", "100000"], &shared);
    assert!(other.out("ps -o args").contains("sleep 1000000000"), "the pod's first process is not seen");
    assert_eq!(container.ended()["exit_code"], 4);
    took_less(Duration::from_secs(10), "the removal", || {
        container.stop(1);
        container.remove();
    });
    assert!(!other.out("ps -o args").contains("sleep 0.5"));
    assert_eq!(other.out("ps -o args | grep -c '^sleep 100000$'"), "1", "the child is still there");
    pod.remove();
}

/// containerd 2 can have a shim make sandboxes without a container. Neither shim can; ours says what to do.
#[test]
fn sandboxes_are_containers() {
    let node = Node::start(Release::C2);
    let refused = node.try_pod("sandboxer", &json!({})).expect_err("a sandbox");
    let remedy =
        "sandboxer = \"shim\" (take it out of the runtime's table in containerd's configuration): not implemented";
    let words = if Shim::under_test() == Shim::Ours { remedy } else { "open config.json: no such file or directory" };
    assert!(refused.message.contains(words), "{refused}");
    assert!(node.containerd.shims(None).is_empty());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    assert!(!mounts.contains(&node.containerd.run.display().to_string()), "{mounts}");
    assert_eq!(node.call("ListPodSandbox", &json!({}))["items"], json!([]));
    node.pod(&json!({})).remove();
}
