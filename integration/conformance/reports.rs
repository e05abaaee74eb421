//! What users have reported of other runtimes, as small black-box tests: each says the symptom.
//!
//! Reports that another test covers are in the table of `docs/conformance.md`.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::lab::{self, BOTH, Container, Runtime, add_mount, alike, cgroups_of, without_namespace};
use crate::support::bundle::Bundle;
use crate::support::engines::{engines, podman};
use crate::support::env::{binary, process};
use crate::support::images::BUSYBOX;
use crate::support::{Cmd, Env, Output, wait_until};

/// An exec was in the host's pid namespace: it saw the host's processes, and `$$` was a number of the host's.
#[test]
fn an_exec_is_in_the_containers_pid_namespace() {
    let env = Env::new();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "exec sleep 100000", |_| {});
        container.start();
        let out = container.sh("grep NSpid /proc/self/status | wc -w; readlink /proc/self | wc -c; echo $$; ls -d /proc/[0-9]* | wc -l").ok();
        let lines: Vec<u32> = out.lines().map(|line| line.trim().parse().expect("a number")).collect();
        assert!(lines[2] < 1000 && lines[3] < 6, "{runtime:?}: {lines:?}");
        let namespaces = container.sh("readlink /proc/self/ns/pid").ok();
        let first = fs::read_link(format!("/proc/{}/ns/pid", container.pid())).expect("readlink");
        assert_eq!(namespaces, first.to_string_lossy(), "{runtime:?}");
    }
}

/// An exec of a program that does not exist stopped the container.
#[test]
fn an_exec_of_nothing_leaves_the_container_running() {
    let env = Env::new();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "exec sleep 100000", |_| {});
        container.start();
        let failed = container.cmd(["exec", &container.bundle.id, "/nope"]).run().expect(255);
        let words = "exec failed: unable to start container process: exec: \\\"/nope\\\": stat /nope: no such file or directory";
        assert!(failed.stderr.contains(words), "{runtime:?}: {}", failed.stderr);
        assert_eq!(container.status(), "running", "{runtime:?}");
        container.sh("true").expect(0);
    }
}

/// Calls a number of the future, one that the profile leaves out, and one that it refuses by its argument; prints errnos.
const CALLS: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
static int errno_of(long number, long first) { errno = 0; syscall(number, first, 0, 0, 0, 0, 0); return errno; }
int main(void) {
    printf("%d %d %d %d %d\n", errno_of(600, 0), errno_of(SYS_swapon, 0), errno_of(SYS_personality, 8),
           errno_of(SYS_personality, 0xffffffff), errno_of(SYS_personality, 0));
    return 0;
}"#;

/// Databases and .NET failed under a default profile: a call that the profile cannot know of was EPERM, at which programs
/// give up, and not ENOSYS, at which they take an older call; and of several rules with arguments for one call only the
/// first held. The first process and an exec alike.
#[test]
fn a_default_profile_does_not_break_new_programs() {
    let env = Env::new();
    // The first ones are what a runtime needs while the container waits for its start, where the filter is loaded before
    // the privileges for it are dropped.
    let names = "sendmsg recvmsg accept4 accept sendto recvfrom socket openat2 faccessat2 fchmodat2 execve exit exit_group read write openat open close fstat newfstatat \
        stat lstat statx brk mmap munmap mprotect mremap arch_prctl set_tid_address set_robust_list rseq \
        prlimit64 readlink readlinkat getrandom uname rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack \
        getuid geteuid getgid getegid getpid getppid getcwd fcntl ioctl dup dup2 dup3 clone fork vfork wait4 \
        access faccessat chdir lseek poll ppoll futex futex_waitv tgkill capget capset prctl setuid setgid \
        setresuid setresgid setgroups setsid getpgrp getpgid kill pipe pipe2 epoll_pwait epoll_ctl \
        epoll_create1 nanosleep clock_nanosleep sched_yield gettid getdents64 statfs fstatfs umask unshare \
        mount seccomp";
    let names: Vec<&str> = names.split_whitespace().collect();
    let on_argument = |value: u64| json!({"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": value, "op": "SCMP_CMP_EQ"}]});
    let change = |bundle: &mut Bundle<'_>| {
        lab::install(bundle, "calls", CALLS);
        bundle.config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
            "syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}, on_argument(0), on_argument(0xffff_ffff)]
        });
    };
    let want = format!("{} {} {} 0 0", libc::ENOSYS, libc::EPERM, libc::EPERM);
    for runtime in BOTH {
        for privileges in [true, false] {
            let container = Container::new(&env, runtime, "/calls; exec sleep 100000", |bundle| {
                change(bundle);
                bundle.config["process"]["noNewPrivileges"] = privileges.into();
            });
            container.start();
            wait_until("the calls", Duration::from_secs(10), || container.out().contains('\n'));
            assert_eq!(container.out().trim(), want, "{runtime:?}, {privileges}");
            assert_eq!(container.sh("/calls").ok(), want, "{runtime:?}, {privileges}: an exec");
        }
    }
}

/// Docker in Docker on cgroup v1: a hierarchy of /proc/self/cgroup that is mounted nowhere made each create fail.
#[test]
fn a_hierarchy_that_is_not_mounted_is_no_obstacle() {
    if !Path::new("/sys/fs/cgroup/systemd/cgroup.procs").exists() {
        eprintln!("skipped: this host has no named v1 hierarchy");
        return;
    }
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "cat /proc/self/cgroup; ls /sys/fs/cgroup", |bundle| {
        add_mount(
            bundle,
            json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro", "nosuid"]}),
        );
    });
    // In a mount namespace of its own: the host keeps the hierarchy.
    let script = "umount /sys/fs/cgroup/systemd && exec \"$@\"";
    let run = container.cmd(["run", "--bundle"]).arg(&container.bundle.dir).arg(&container.bundle.id);
    let inside = Cmd::new("unshare").args(["--mount", "sh", "-c", script, "sh"]);
    let output = inside
        .args(container.runtime.words(&env))
        .args(["run", "--bundle"])
        .arg(&container.bundle.dir)
        .arg(&container.bundle.id)
        .env("AGENTSBX_CONFIG", &process().config)
        .run();
    let out = output.ok();
    assert!(out.lines().any(|line| line == "pids") && !out.lines().any(|line| line == "systemd"), "{out}");
    assert!(Path::new("/sys/fs/cgroup/systemd/cgroup.procs").exists());
    run.run().expect(0);
}

/// On cgroup v2 an exec failed with EBUSY once the container had moved its processes into a cgroup of their own and turned
/// controllers on, as Docker in Docker does.
#[test]
fn an_exec_follows_a_container_that_moved_in_its_cgroup() {
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        eprintln!("skipped: this host has cgroup v1, where no controller keeps processes out of a cgroup");
        return;
    }
    let env = Env::new();
    let script = "mkdir /sys/fs/cgroup/init; echo 1 >/sys/fs/cgroup/init/cgroup.procs; echo +pids >/sys/fs/cgroup/cgroup.subtree_control; \
        echo moved; exec sleep 100000";
    let container = Container::new(&env, Runtime::Ours, script, |bundle| {
        bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces").push(json!({"type": "cgroup"}));
        add_mount(
            bundle,
            json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"]}),
        );
    });
    container.start();
    wait_until("the move", Duration::from_secs(10), || container.out() == "moved\n");
    container.sh("true").expect(0);
}

/// `docker info` showed a runtime's version as ": 0.5.7", since the first line of `--version` had a colon more than runc's.
#[test]
fn docker_reads_the_version() {
    let info =
        engines().docker(["version", "--format", "{{range .Server.Components}}{{.Name}} {{.Version}};{{end}}"]).ok();
    let want = format!("agentsbx {};", env!("CARGO_PKG_VERSION"));
    assert!(info.contains(&want), "{want} not in {info}");
    let version = Cmd::new(binary()).arg("--version").run().expect(0);
    assert_eq!(version.stderr, "", "callers read both streams");
}

/// The death of the command by a signal was told as 0, or as the signal's number.
#[test]
fn a_death_by_a_signal_is_128_and_its_number() {
    let env = Env::new();
    for runtime in BOTH {
        for (signal, code) in [(9, 137), (15, 143), (6, 134)] {
            let script = format!("kill -{signal} $$; sleep 5");
            let container = Container::new(&env, runtime, &script, |bundle| without_namespace(bundle, "pid"));
            container.run().expect(code);
        }
        let container = Container::new(&env, runtime, "exec sleep 100000", |_| {});
        container.start();
        for (signal, code) in [(9, 137), (15, 143), (6, 134)] {
            container.sh(&format!("kill -{signal} $$; sleep 5")).expect(code);
        }
    }
}

fn podman_run(args: &[&str]) -> Output {
    let cgroup = format!("{}/podman", process().cgroup);
    podman().cmd(["run", "--rm", "--network", "none", "--cgroup-parent", &cgroup, BUSYBOX]).args(args).run()
}

/// podman said only that conmon had no logs, and mixed up 126 and 127.
#[test]
fn podman_tells_why_and_with_which_code() {
    for (command, code, why) in [
        ("no-such-command", 127, "executable file `no-such-command` not found in $PATH"),
        ("/no/such", 127, "no such file or directory"),
        ("/etc", 126, "permission denied"),
        ("/etc/passwd", 126, "permission denied"),
    ] {
        let failed = podman_run(&[command]).expect(code);
        let why = why.replace('`', "\"");
        let said = failed.stderr.replace("\\\"", "\"");
        assert!(
            said.contains(&why) || said.contains("executable file not found in $PATH"),
            "{command}: {why} not in {said}"
        );
    }
}

/// podman and Docker lost the code 127 of an exec, since its failure was two lines in the log.
#[test]
fn an_exec_in_a_missing_directory_is_one_line_of_the_log() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    container.start();
    let log = env.dir.join("log.json");
    let exec = env.cmd(["--log"]).arg(&log).args([
        "--log-format",
        "json",
        "exec",
        "--cwd",
        "/missing",
        &container.bundle.id,
        "true",
    ]);
    exec.run().expect(255);
    let text = fs::read_to_string(&log).expect("read");
    assert_eq!(text.lines().count(), 1, "{text}");
    let line: Value = serde_json::from_str(&text).expect("JSON");
    assert!(line["msg"].as_str().is_some_and(|msg| msg.contains("no such file or directory")), "{line}");
    let id = podman().start([], &["sleep", "100000"]);
    podman().cmd(["exec", "--workdir", "/missing", &id, "true"]).run().expect(127);
    podman().run(["rm", "--force", "--time", "0", &id]);
}

/// `delete --force` failed with EBUSY, or left cgroups and processes, when execs were alive in a container that shares the
/// host's pid namespace and its first process had been killed.
#[test]
fn a_forced_delete_ends_what_execs_left() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |bundle| without_namespace(bundle, "pid"));
    container.start();
    let exec = [
        "exec",
        "--detach",
        "--timeout",
        "0",
        &container.bundle.id,
        "sh",
        "-c",
        "sleep 77001 & setsid sleep 77002 & sleep 77003",
    ];
    container.cmd(exec).output_to(env.dir.join("detached")).run().expect(0);
    let sleepers = || {
        let all = fs::read_dir("/proc").expect("read /proc").flatten();
        all.filter(|p| fs::read(p.path().join("cmdline")).is_ok_and(|text| text.starts_with(b"sleep\x007700"))).count()
    };
    wait_until("three sleepers", Duration::from_secs(10), || sleepers() == 3);
    Cmd::new("kill").args(["-KILL", &container.pid().to_string()]).ok();
    container.cmd(["delete", "--force", &container.bundle.id]).run().expect(0);
    wait_until("no sleeper", Duration::from_secs(10), || sleepers() == 0);
    assert!(cgroups_of(&container.bundle.id).is_empty());
    assert_eq!(env.ok(["list", "--quiet"]), "");
}

/// A create or an exec hung when its error was longer than a pipe holds and nobody read the pipe.
#[test]
fn a_long_error_does_not_hang_whom_nobody_reads() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    container.start();
    let long = format!("/{}", "x/".repeat(50_000));
    let without_reader = |command: &mut Command| {
        let mut child = command
            .env("AGENTSBX_CONFIG", &process().config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("spawn");
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("wait") {
                break status;
            }
            if start.elapsed() > Duration::from_secs(20) {
                child.kill().expect("kill");
                panic!("still there after {:?}", start.elapsed());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut text = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
        (status.code(), text)
    };
    let ours = || {
        let mut command = Command::new(binary());
        command.arg("--root").arg(&env.root).arg("--store").arg(&env.store);
        command
    };
    let (code, text) = without_reader(ours().args(["exec", &container.bundle.id, &long]));
    assert_eq!(code, Some(255), "{} bytes", text.len());
    assert!(text.contains("file name too long") && text.len() < 65_536, "{} bytes: {:.300}", text.len(), text);
    let other = Container::new(&env, Runtime::Ours, "", |bundle| bundle.config["process"]["args"] = json!([long]));
    let (code, text) = without_reader(ours().args(["create", "--bundle"]).arg(&other.bundle.dir).arg(&other.bundle.id));
    assert_eq!(code, Some(1), "{} bytes", text.len());
    assert!(!text.is_empty() && text.len() < 65_536, "{} bytes", text.len());
}

/// A pod stayed in Terminating for ever: engines look for these very words to know that a container has ended or is gone.
#[test]
fn what_has_ended_and_what_is_gone_is_said_in_the_words_that_engines_know() {
    let env = Env::new();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "true", |_| {});
        container.create().expect(0);
        container.verb("start").expect(0);
        wait_until("the end", Duration::from_secs(10), || container.status() == "stopped");
        let said = |args: &[&str], code: i32, words: &str| {
            let output = container.runtime.cmd(&env, args.iter().copied()).run().expect(code);
            assert!(output.stderr.contains(words), "{runtime:?} {args:?}: {words} not in {}", output.stderr);
        };
        let id = container.bundle.id.as_str();
        said(&["kill", id, "KILL"], 1, "container not running");
        said(&["kill", id, "15"], 1, "container not running");
        said(&["kill", "--all", id, "9"], 0, "");
        said(&["start", id], 1, "cannot start a container that has stopped");
        said(&["pause", id], 1, "container not running");
        said(&["exec", id, "true"], 255, "exec failed: cannot exec in a stopped container");
        for args in [
            &["kill", "unknown", "KILL"][..],
            &["delete", "unknown"],
            &["state", "unknown"],
            &["start", "unknown"],
            &["pause", "unknown"],
        ] {
            said(args, 1, "container does not exist");
        }
        said(&["delete", "--force", "unknown"], 0, "");
    }
}

/// Images with systemd could not be stopped: their signal, SIGRTMIN+3, was refused.
#[test]
fn a_stop_signal_of_real_time_is_delivered() {
    let script = "trap 'echo got; exit 5' 37; echo ready; while :; do sleep 0.05; done";
    let id = podman().start(["--stop-signal", "37"], &["sh", "-c", script]);
    wait_until("ready", Duration::from_secs(10), || podman().run(["logs", &id]).stdout.contains("ready"));
    podman().cmd(["stop", "--time", "20", &id]).ok();
    assert_eq!(podman().run(["inspect", "--format", "{{.State.ExitCode}}", &id]).ok(), "5");
    podman().run(["rm", "--force", "--time", "0", &id]);
}

/// A signal to a container that is created was refused, or made it impossible to start; one to a paused container left it
/// frozen for ever.
#[test]
fn a_signal_before_the_start_or_in_a_pause_changes_no_state() {
    let env = Env::new();
    let container =
        Container::new(&env, Runtime::Ours, "trap 'echo usr' USR1; echo up; while :; do sleep 0.05; done", |_| {});
    container.create().expect(0);
    let kill = |signal: &str| container.cmd(["kill", &container.bundle.id, signal]).run().expect(0);
    for signal in ["CHLD", "WINCH", "0"] {
        kill(signal);
        assert_eq!(container.status(), "created", "{signal}");
    }
    container.verb("start").expect(0);
    wait_until("it is up", Duration::from_secs(10), || container.out() == "up\n");
    container.verb("pause").expect(0);
    kill("USR1");
    assert_eq!(container.status(), "paused");
    let refused = container.sh("true").expect(255);
    assert!(refused.stderr.contains("exec failed: cannot exec in a paused container"), "{}", refused.stderr);
    container.verb("resume").expect(0);
    wait_until("the signal came", Duration::from_secs(10), || container.out() == "up\nusr\n");
    assert_eq!(container.status(), "running");
    container.sh("true").expect(0);
    // TERM and KILL end one that was never started.
    for signal in ["TERM", "KILL"] {
        let created = Container::new(&env, Runtime::Ours, "echo never", |_| {});
        created.create().expect(0);
        created.cmd(["kill", &created.bundle.id, signal]).run().expect(0);
        wait_until(signal, Duration::from_secs(10), || created.status() == "stopped");
        assert_eq!(created.out(), "");
    }
}

/// An exec lost the additional groups of its process.json.
#[test]
fn an_exec_has_its_additional_groups() {
    let env = Env::new();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "exec sleep 100000", |_| {});
        container.start();
        let process = json!({"cwd": "/", "user": {"uid": 1000, "gid": 1000, "additionalGids": [5, 2_000_000_000u32]},
            "env": ["PATH=/bin"], "args": ["id", "-G"]});
        let file = container.bundle.dir.join("process.json");
        fs::write(&file, process.to_string()).expect("write");
        let groups = container.cmd(["exec", "--process"]).arg(&file).arg(&container.bundle.id).ok();
        assert_eq!(groups, "1000 5 2000000000", "{runtime:?}");
    }
}

/// An exec without a terminal led no session: `setsid` failed or not as nobody expected, and job control told the wrong group.
#[test]
fn an_exec_without_a_terminal_leads_a_session() {
    let env = Env::new();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "exec sleep 100000", |_| {});
        container.start();
        // Pid, process group, session.
        let out = container.sh("cut -d' ' -f1,5,6 /proc/$$/stat").ok();
        let ids: Vec<&str> = out.split(' ').collect();
        assert!(ids[0] == ids[1] && ids[0] == ids[2], "{runtime:?}: {out}");
    }
}

/// A reader found the pid file of a detached exec empty, or not there yet, when the command had returned.
#[test]
fn a_pid_file_is_whole_when_the_command_returns() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    container.start();
    let file = container.bundle.dir.join("exec.pid");
    for n in 0..200 {
        let exec = container.cmd(["exec", "--detach", "--layer", "shared", "--pid-file"]).arg(&file);
        exec.args([&container.bundle.id, "true"]).output_to(env.dir.join("detached")).run().expect(0);
        let text = fs::read_to_string(&file).expect("it is there");
        assert!(text.parse::<u32>().is_ok(), "{n}: {text:?}");
        fs::remove_file(&file).expect("remove");
    }
}

/// A root filesystem that is not the container's own, and is read-only, can be used by several containers at once.
#[test]
fn a_read_only_root_filesystem_is_shared() {
    let env = Env::new();
    let out = alike(&env, "echo x 2>/dev/null >/x || echo read-only; grep -c ' / ' /proc/mounts", |bundle| {
        bundle.config["root"]["readonly"] = json!(true);
        fs::set_permissions(&bundle.rootfs, fs::Permissions::from_mode(0o755)).expect("chmod");
    });
    assert_eq!(out, "read-only\n1\n");
}

/// `--pid-file /dev/null` and the like left a regular file in the device's place, for the whole host.
#[test]
fn a_device_that_is_named_for_output_stays_one() {
    let env = Env::new();
    let null = env.dir.join("null");
    Cmd::new("mknod").args(["-m", "666"]).arg(&null).args(["c", "1", "3"]).ok();
    let is_device = || {
        let kind = fs::symlink_metadata(&null).expect("it is there").file_type();
        std::os::unix::fs::FileTypeExt::is_char_device(&kind)
    };
    let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    let run = container.cmd(["run", "--detach", "--pid-file"]).arg(&null).arg("--bundle").arg(&container.bundle.dir);
    run.arg(&container.bundle.id).output_to(env.dir.join("out")).run().expect(0);
    assert!(is_device(), "run");
    let exec = container.cmd(["exec", "--detach", "--pid-file"]).arg(&null).args([&container.bundle.id, "true"]);
    exec.output_to(env.dir.join("detached")).run().expect(0);
    assert!(is_device(), "exec --detach");
    container.cmd(["exec", "--result"]).arg(&null).args([&container.bundle.id, "true"]).run().expect(0);
    assert!(is_device(), "exec --result");
}
