//! A container's life: run, kill, update, state.

use std::fs;
use std::time::Duration;

use serde_json::json;

use super::lab::{self, BOTH, Container, Runtime, cgroup_file, cgroups_of, without_namespace};
use crate::support::{Cmd, Env, wait_until};

/// A start that was killed when the first process had been told, and the socket was not removed yet: the container was
/// "created" for ever, though its command ran, and a second start said "connection refused".
#[test]
fn a_start_that_was_killed_has_started_it() {
    use std::io::Write as _;
    let env = Env::new();
    let hook = "while ! test -e /go; do sleep 0.05; done";
    for (hooks, before) in
        [(json!([]), "running"), (json!([{"path": "/bin/sh", "args": ["sh", "-c", hook]}]), "created")]
    {
        let container = Container::new(&env, Runtime::Ours, "echo runs; exec sleep 100000", |bundle| {
            bundle.config["hooks"] = json!({"startContainer": hooks});
        });
        container.create().expect(0);
        assert_eq!(container.status(), "created");
        let id = &container.bundle.id;
        let socket = env.root.join(id).join("libcontainer").join(id).join("notify.sock");
        let mut told = std::os::unix::net::UnixStream::connect(&socket).expect("connect");
        told.write_all(b"start container").expect("tell");
        drop(told);
        wait_until("it is started", Duration::from_secs(10), || {
            container.status() == before && std::os::unix::net::UnixStream::connect(&socket).is_err()
        });
        let refused = container.verb("start").expect(1);
        assert!(refused.stderr.contains("cannot start an already running container"), "{}", refused.stderr);
        fs::write(container.bundle.dir.join("rootfs/go"), "").expect("write");
        wait_until("the command runs", Duration::from_secs(10), || container.status() == "running");
        wait_until("its output", Duration::from_secs(10), || container.out() == "runs\n");
        assert!(socket.exists());
        assert_eq!(container.sh("echo exec").ok(), "exec");
        container.cmd(["delete", id]).run().expect(1);
        container.cmd(["kill", id, "KILL"]).run().expect(0);
        wait_until("its end", Duration::from_secs(10), || container.status() == "stopped");
        container.cmd(["delete", id]).run().expect(0);
    }
}

/// A hundred commands that end at once: none hangs the `run` that waits for it, none is missed, none is left.
#[test]
fn a_run_of_a_fast_command_ends() {
    let env = Env::new();
    let container =
        Container::new(&env, Runtime::Ours, "", |bundle| bundle.config["process"]["args"] = json!(["true"]));
    for n in 0..100 {
        let run = container.cmd(["run", "--bundle"]).arg(&container.bundle.dir).arg(&container.bundle.id);
        let output = run.limit(Duration::from_secs(20)).run();
        assert_eq!((output.code, output.both().as_str()), (0, ""), "run {n}");
    }
    assert_eq!(env.ok(["list", "--quiet"]), "");
    assert!(cgroups_of(&container.bundle.id).is_empty());
}

/// A signal right after `start` reaches the command and not the runtime before it: one without a handler takes no notice, as
/// the first process of its namespace.
#[test]
fn a_signal_right_after_start_is_the_commands() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "", |bundle| {
        bundle.config["process"]["args"] = json!(["sleep", "100000"]);
    });
    for n in 0..40 {
        container.create().expect(0);
        container.verb("start").expect(0);
        container.cmd(["kill", &container.bundle.id, "TERM"]).run().expect(0);
        let exe = fs::read_link(format!("/proc/{}/exe", container.pid())).expect("readlink");
        assert!(exe.ends_with("busybox"), "{n}: {exe:?}");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(container.status(), "running", "{n}");
        container.cmd(["delete", "--force", &container.bundle.id]).run().expect(0);
    }
}

/// The files that each flag of `update` writes, v1 and v2; the two runtimes write the same.
#[test]
fn each_limit_that_is_updated_is_in_force() {
    let env = Env::new();
    // Flags, and for each file it writes: controller, v1 name, v2 name, v1 content.
    type File = (&'static str, &'static str, &'static str, &'static str);
    let cases: &[(&[&str], &[File])] = &[
        (&["--pids-limit", "77"], &[("pids", "pids.max", "pids.max", "77")]),
        (&["--pids-limit", "-1"], &[("pids", "pids.max", "pids.max", "max")]),
        (&["--memory", "64m"], &[("memory", "memory.limit_in_bytes", "memory.max", "67108864")]),
        (&["--memory", "33554432"], &[("memory", "memory.limit_in_bytes", "memory.max", "33554432")]),
        (&["--memory-reservation", "16m"], &[("memory", "memory.soft_limit_in_bytes", "memory.low", "16777216")]),
        (
            &["--memory", "128m", "--memory-swap", "256m"],
            &[
                ("memory", "memory.limit_in_bytes", "memory.max", "134217728"),
                ("memory", "memory.memsw.limit_in_bytes", "memory.swap.max", "268435456"),
            ],
        ),
        (&["--cpu-share", "512"], &[("cpu", "cpu.shares", "cpu.weight", "512")]),
        (
            &["--cpu-period", "50000", "--cpu-quota", "25000"],
            &[("cpu", "cpu.cfs_period_us", "cpu.max", "50000"), ("cpu", "cpu.cfs_quota_us", "cpu.max", "25000")],
        ),
        (&["--cpu-quota", "30000"], &[("cpu", "cpu.cfs_quota_us", "cpu.max", "30000")]),
        (&["--cpuset-cpus", "0"], &[("cpuset", "cpuset.cpus", "cpuset.cpus", "0")]),
        (&["--cpuset-mems", "0"], &[("cpuset", "cpuset.mems", "cpuset.mems", "0")]),
    ];
    let containers = BOTH.map(|runtime| {
        let container = Container::new(&env, runtime, "exec sleep 100000", |_| {});
        container.start();
        container
    });
    for (flags, files) in cases {
        for (controller, v1, v2, want) in *files {
            let seen = [0, 1].map(|n: usize| {
                let container = &containers[n];
                container.cmd(["update"]).args(*flags).arg(&container.bundle.id).run().expect(0);
                cgroup_file(container.pid(), controller, v1, v2)
            });
            let on_v1 = fs::metadata(format!("/sys/fs/cgroup/{controller}")).is_ok();
            // runc before 1.3.2 had another formula.
            if *v2 == "cpu.weight" && !on_v1 {
                assert_eq!(seen[0], "59", "{flags:?}");
                continue;
            }
            assert_eq!(seen[0], seen[1], "{flags:?} {v1}: ours, and runc's");
            assert!(!on_v1 || seen[0] == *want, "{flags:?} {v1}: {} and not {want}", seen[0]);
        }
    }
}

/// Flags whose controllers this kernel need not have, by what the file says afterwards: where it is not there, both
/// runtimes say that they cannot.
#[test]
fn rarer_limits_are_updated_or_refused_as_runc_does() {
    let env = Env::new();
    for (flags, controller, v1) in [
        (["--blkio-weight", "300"], "blkio", "blkio.weight"),
        (["--cpu-rt-period", "500000"], "cpu", "cpu.rt_period_us"),
        (["--cpu-rt-runtime", "0"], "cpu", "cpu.rt_runtime_us"),
    ] {
        let seen = BOTH.map(|runtime| {
            let container = Container::new(&env, runtime, "exec sleep 100000", |_| {});
            container.start();
            let code = container.cmd(["update"]).args(flags).arg(&container.bundle.id).run().code;
            let dirs = cgroups_of(&container.bundle.id);
            let dir = dirs.iter().find(|d| d.starts_with(format!("/sys/fs/cgroup/{controller}")));
            (code, dir.and_then(|dir| fs::read_to_string(dir.join(v1)).ok()))
        });
        assert_eq!(seen[0], seen[1], "{flags:?}: ours, and runc's");
    }
    // Flags that runc 1.1 lacks: the kernel's file tells.
    let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    container.start();
    let id = container.bundle.id.as_str();
    container.cmd(["update", "--cpu-period", "100000", "--cpu-quota", "50000", id]).run().expect(0);
    for (flags, v1, v2) in
        [(["--cpu-burst", "20000"], "cpu.cfs_burst_us", "cpu.max.burst"), (["--cpu-idle", "1"], "cpu.idle", "cpu.idle")]
    {
        let there = cgroups_of(id).iter().any(|dir| dir.join(v1).exists() || dir.join(v2).exists());
        let code = container.cmd(["update"]).args(flags).arg(id).run().code;
        assert_eq!(code == 0, there, "{flags:?}");
        if there {
            assert_eq!(cgroup_file(container.pid(), "cpu", v1, v2), flags[1], "{flags:?}");
        }
    }
}

/// The first thread ends, others go on.
const LEADERLESS: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void told(int signal) { (void)signal; static const char text[] = "term\n"; (void)!write(1, text, 5); _exit(7); }
static void *live(void *none) { (void)none; for (;;) pause(); return 0; }
int main(void) {
    pthread_t thread;
    signal(SIGTERM, told);
    if (pthread_create(&thread, 0, live, 0)) return 1;
    write(1, "up\n", 3);
    pthread_exit(0);
}"#;

/// A first process whose first thread has ended while others run shows as a zombie in /proc. It runs: it is told as running
/// (runc 1.1 says stopped), gets signals, counts until it ends, and its code is the one it ends with.
#[test]
fn a_first_process_without_its_first_thread_runs() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "", |bundle| {
        lab::install(bundle, "leaderless", LEADERLESS);
        bundle.config["process"]["args"] = json!(["/leaderless"]);
        without_namespace(bundle, "pid");
    });
    container.start();
    let pid = container.pid();
    wait_until("the first thread's end", Duration::from_secs(10), || {
        container.out() == "up\n" && fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z "))
    });
    assert_eq!(container.status(), "running");
    assert_eq!(container.pid(), pid);
    let refused = container.verb("delete").expect(1);
    assert!(refused.stderr.contains("is not stopped: running"), "{}", refused.stderr);
    container.verb("pause").expect(0);
    assert_eq!(container.status(), "paused");
    container.verb("resume").expect(0);
    container.verb("kill").expect(0);
    wait_until("the end", Duration::from_secs(10), || container.status() == "stopped");
    assert_eq!(container.out(), "up\nterm\n");
    container.verb("delete").expect(0);
    // In the foreground the code is that of the whole process.
    let running = container.cmd(["run", "--bundle"]).arg(&container.bundle.dir).arg(&container.bundle.id).spawn();
    wait_until("it runs again", Duration::from_secs(10), || {
        env.run(["state", &container.bundle.id]).code == 0 && {
            let pid = container.pid();
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z "))
        }
    });
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.wait().expect(7).stdout, "up\nterm\n");
}

/// A pid that the kernel has given to another process is not the container's: nobody else gets the signal.
#[test]
fn a_pid_that_was_given_again_is_left_alone() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    container.start();
    let pid = container.pid();
    Cmd::new("kill").args(["-KILL", &pid.to_string()]).ok();
    wait_until("the zombie is reaped", Duration::from_secs(10), || !fs::exists(format!("/proc/{pid}")).expect("stat"));
    // Other processes of the machine may take the number first: then once more, when they are gone.
    let mut innocent = None;
    wait_until("a process with that pid", Duration::from_secs(60), || {
        if fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).is_err() {
            return false;
        }
        let mut child = std::process::Command::new("/bin/sleep").arg("100000").spawn().expect("spawn");
        if child.id() as i32 == pid {
            innocent = Some(child);
            return true;
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
        false
    });
    let mut innocent = innocent.expect("found");
    assert_eq!(container.state()["pid"], 0);
    assert_eq!(container.status(), "stopped");
    for signal in ["KILL", "TERM", "0"] {
        let refused = container.cmd(["kill", &container.bundle.id, signal]).run().expect(1);
        assert!(refused.stderr.contains("container not running"), "{}", refused.stderr);
    }
    container.cmd(["kill", "--all", &container.bundle.id, "KILL"]).run().expect(0);
    container.cmd(["delete", "--force", &container.bundle.id]).run().expect(0);
    assert!(innocent.try_wait().expect("wait").is_none(), "the other process lives");
    innocent.kill().expect("kill");
    innocent.wait().expect("wait");
}

/// A `run` with a terminal to pass on, and none at hand, waited for input for ever: runc fails, and makes nothing.
#[test]
fn a_run_on_no_terminal_is_refused() {
    let env = Env::new();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "exec cat", |bundle| {
            bundle.config["process"]["terminal"] = true.into();
        });
        let run = container.cmd(["run", "--bundle"]).arg(&container.bundle.dir).arg(&container.bundle.id);
        let run = run.in_shell("exec setsid --wait \"$@\"").limit(Duration::from_secs(20)).run().expect(1);
        assert!(run.stderr.contains("open /dev/tty: no such device or address"), "{runtime:?}: {}", run.stderr);
        assert_eq!(run.stderr.contains("set process.terminal to false"), runtime == Runtime::Ours, "{}", run.stderr);
        assert_eq!(container.verb("state").code, 1, "{runtime:?}: nothing is left");
    }
}
