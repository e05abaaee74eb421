//! `docker exec`: what the command sees, how it ends, and what it leaves running.

use std::fs;
use std::time::Duration;

use crate::support::docker::Container;
use crate::support::env::process;
use crate::support::images::BUSYBOX;
use crate::support::{Cmd, result, wait_until};

/// Output, input and codes come through; a signal's death is 128 + its number, a timeout is 124.
#[test]
fn exec_has_all_exit_codes() {
    let container = Container::idle([]);
    let output = container.sh("echo out; echo err >&2").expect(0);
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
    container.sh("exit 3").expect(3);
    container.sh("kill -KILL $$").expect(137);
    container.sh("kill -TERM $$").expect(143);
    container.sh("no-such-command").expect(127);
    container.sh("/etc/passwd").expect(126);
    container.exec_with(["-e", "AGENTSBX_TIMEOUT=1"], &["sleep", "1000"]).run().expect(124);
    assert_eq!(container.exec_with(["-i"], &["cat"]).stdin("piped").ok(), "piped");
    // None of it harmed the container.
    assert_eq!(container.inspect("{{.State.Status}}"), "running");
}

/// What cannot be started fails as it does under runc, with the code that this Docker makes of it (20.10 has 126 for
/// all, later ones 127 for what is missing), and with the reason.
#[test]
fn exec_cannot_start_what_runc_cannot() {
    let (ours, runc) = (Container::idle([]), Container::idle(["--runtime", "runc"]));
    for (options, command, reason) in [
        (["-w", "/"], "no-such-command", "executable file not found in $PATH"),
        (["-w", "/"], "/no/such/file", "no such file or directory"),
        (["-w", "/"], "/etc/passwd", "permission denied"),
        (["-w", "/no/such"], "true", "no such file or directory"),
    ] {
        let expected = runc.exec_with(options, &[command]).run();
        let output = ours.exec_with(options, &[command]).run().expect(expected.code);
        for said in [expected.both(), output.both()] {
            assert!(said.contains(reason), "{command}: {reason} not in {said}");
        }
    }
    ours.sh("true").expect(0);
}

/// A command that ignores TERM when its time is over is killed after the grace of five seconds.
#[test]
fn timeout_kills_what_ignores_term() {
    let container = Container::idle([]);
    let script = "trap '' TERM; while :; do sleep 1; done";
    let output = container.exec_with(["-e", "AGENTSBX_TIMEOUT=1"], &["sh", "-c", script]).run().expect(124);
    assert!(output.took >= Duration::from_secs(5), "{:?}", output.took);
    assert!(output.took < Duration::from_secs(20), "{:?}", output.took);
    assert_eq!(result::end(&container.show()).0, "timeout");
}

/// `exec -it`: a terminal of its own, what is typed comes in, the size is the user's.
#[test]
fn exec_it_has_a_terminal() {
    let container = Container::idle([]);
    let script = "tty; test -t 0 && test -t 1 && test -t 2 && echo three; read line; echo \"got $line\"; exit 4";
    let output = container.exec_with(["-it"], &["sh", "-c", script]).on_terminal().stdin("typed\n").run().expect(4);
    for expected in ["/dev/pts/", "three", "got typed"] {
        assert!(output.stdout.contains(expected), "{expected} not in {}", output.stdout);
    }
}

/// Without a terminal, too, the command leads a session of its own, as under runc.
#[test]
fn exec_leads_its_session() {
    let container = Container::idle([]);
    let stat = container.sh("cut -d' ' -f1,6 /proc/self/stat; echo $$").ok();
    let words: Vec<&str> = stat.split_whitespace().collect();
    assert_eq!(words[1], words[2], "session {} of process {}", words[1], words[2]);
}

/// `exec -d` returns at once; the command goes on, and its work is committed when it ends.
#[test]
fn exec_detached_goes_on() {
    let container = Container::idle([]);
    let output = container.exec_with(["--detach"], &["sh", "-c", "sleep 1; echo done >/late"]).run().expect(0);
    assert!(output.took < Duration::from_millis(900), "{:?}", output.took);
    wait_until("the detached exec's file", Duration::from_secs(20), || container.sh("cat /late").stdout == "done\n");
}

/// `exec -u -w -e`: user with the image's groups, directory, environment.
#[test]
fn exec_user_directory_and_environment() {
    let container = Container::idle(["-e", "BASE=run"]);
    let script = "id; pwd; echo $BASE $MORE $HOME";
    let output = container.exec_with(["-u", "user", "-w", "/home/user", "-e", "MORE=exec"], &["sh", "-c", script]).ok();
    let expected = "uid=1000(user) gid=1000(user) groups=1000(user),2000(extra)\n/home/user\nrun exec /home/user";
    assert_eq!(output, expected);
    assert_eq!(container.exec_with(["-u", "77:88"], &["sh", "-c", "id -u; id -g"]).ok(), "77\n88");
}

/// Variables that are for the runtime do not reach the command.
#[test]
fn runtime_variables_are_taken_out() {
    let container = Container::idle([]);
    let env =
        container.exec_with(["-e", "AGENTSBX_LAYER=discard", "-e", "AGENTSBX_X=1", "-e", "KEPT=1"], &["env"]).ok();
    assert!(env.contains("KEPT=1"), "{env}");
    assert!(!env.contains("AGENTSBX"), "{env}");
}

/// What an exec may do is what the first process may: filtered system calls, the same or fewer capabilities, no new
/// privileges where the first has none, the same user namespace.
#[test]
fn exec_is_as_confined_as_the_first_process() {
    let container = Container::idle(["--security-opt", "no-new-privileges"]);
    let fields = ["Seccomp:", "NoNewPrivs:", "CapBnd:", "CapEff:", "CapPrm:", "CapInh:"];
    let of = |status: &str| -> Vec<(String, String)> {
        let lines = status.lines().filter_map(|line| line.split_once('\t'));
        lines.filter(|(name, _)| fields.contains(name)).map(|(n, v)| (n.to_owned(), v.trim().to_owned())).collect()
    };
    let first = of(&fs::read_to_string(format!("/proc/{}/status", container.pid())).expect("read status"));
    let exec = of(&container.exec_with([], &["cat", "/proc/self/status"]).ok());
    assert_eq!(first, exec);
    assert!(exec.contains(&("Seccomp:".into(), "2".into())), "{exec:?}");
    let map = fs::read_to_string(format!("/proc/{}/uid_map", container.pid())).expect("read uid_map");
    assert_eq!(container.exec_with([], &["cat", "/proc/self/uid_map"]).ok(), map.trim_end());
    // Docker's filter refuses this one.
    assert_ne!(container.exec_with([], &["unshare", "-m", "true"]).run().code, 0);
}

/// An exec is in the container's namespaces and its cgroup, but for the mount namespace, which is its own.
#[test]
fn exec_joins_the_containers_namespaces() {
    let container = Container::idle([]);
    for name in ["ipc", "net", "pid", "user", "uts"] {
        let first = fs::read_link(format!("/proc/{}/ns/{name}", container.pid())).expect("readlink");
        let exec = container.exec_with([], &["readlink", &format!("/proc/self/ns/{name}")]).ok();
        assert_eq!(exec, first.to_string_lossy(), "{name}");
    }
    let first = fs::read_link(format!("/proc/{}/ns/mnt", container.pid())).expect("readlink");
    assert_ne!(container.exec_with([], &["readlink", "/proc/self/ns/mnt"]).ok(), first.to_string_lossy());
    // Its pid inside is one of the container's PID namespace, /proc is that namespace's.
    assert_eq!(container.sh("cat /proc/1/cmdline | tr '\\0' ' '").ok().trim(), "sleep 100000");
}

/// The mounts of the container are all there in an exec: volumes, tmpfs, /proc, /dev, /sys, masked paths.
#[test]
fn exec_sees_the_containers_mounts() {
    let container = Container::idle(["--tmpfs", "/scratch", "-v", "/volume"]);
    let points = |text: &str| -> Vec<String> {
        let mut points: Vec<_> = text.lines().filter_map(|l| l.split(' ').nth(4)).map(str::to_owned).collect();
        points.sort();
        points
    };
    let first = fs::read_to_string(format!("/proc/{}/mountinfo", container.pid())).expect("read mountinfo");
    let exec = container.exec_with([], &["cat", "/proc/self/mountinfo"]).ok();
    assert_eq!(points(&first), points(&exec));
    assert_eq!(container.sh("cat /proc/kcore | wc -c; echo 1 >/proc/sys/kernel/core_uses_pid").stdout, "0\n");
}

/// `docker exec` returns as soon as the command ends, although a background child still holds its output; that child
/// is gone with the exec's cgroup, and the result counts it.
#[test]
fn background_children_end_with_their_exec() {
    let container = Container::idle([]);
    let output = container.sh("sleep 54321 & (setsid sleep 54322 &) ; echo started").expect(0);
    assert_eq!(output.stdout, "started\n");
    assert!(output.took < Duration::from_secs(10), "{:?}", output.took);
    let result = container.show();
    assert_eq!(result["survivorsKilled"], 2, "{result}");
    let processes = container.sh("ps").ok();
    assert!(!processes.contains("5432"), "{processes}");
}

/// With `orphans = wait` the exec is over when the last of its processes is.
#[test]
fn orphans_can_be_waited_for() {
    let container = Container::idle([]);
    let script = "(sleep 1; echo late >/late) & echo started";
    container.exec_with(["-e", "AGENTSBX_ORPHANS=wait"], &["sh", "-c", script]).run().expect(0);
    assert_eq!(container.sh("cat /late").ok(), "late");
}

/// Execs have file descriptors 0, 1 and 2 and no other, whatever the engine had open.
#[test]
fn exec_inherits_no_descriptors() {
    let container = Container::idle([]);
    // 3 is the directory that ls itself reads.
    assert_eq!(container.exec_with([], &["ls", "/proc/self/fd"]).ok().split_whitespace().collect::<String>(), "0123");
}

/// An exec in a stopped container fails at once and leaves nothing.
#[test]
fn exec_in_a_stopped_container_is_refused() {
    let container = Container::of(BUSYBOX, [], &["true"]);
    container.verb(["wait"]).ok();
    let output = container.sh("true").expect(1);
    assert!(output.stderr.contains("is not running"), "{}", output.stderr);
}

/// When the container is stopped, its running execs end with it, and their results say so.
#[test]
fn execs_end_with_the_container() {
    let container = Container::idle([]);
    let exec = container.exec_with([], &["sleep", "100001"]).spawn();
    wait_until("the exec", Duration::from_secs(10), || container.verb(["top"]).run().stdout.contains("100001"));
    container.verb(["stop", "--time", "1"]).ok();
    exec.wait().expect(137);
    container.verb(["start"]).ok();
    container.sh("true").expect(0);
}

/// A hundred execs that change nothing leave the host as it was: cgroups, state files, the bundle, processes.
#[test]
fn execs_leave_nothing_behind() {
    let container = Container::idle([]);
    container.sh("true").expect(0);
    let run = &process().run;
    let find = |args: &[&str]| Cmd::new("find").args(args).run().stdout.lines().count();
    let state = run.join("docker/runtime-runc/moby").join(&container.id);
    let counts = || {
        let named = format!("*{}*", container.id);
        let bundle = container.engines.bundle("moby", &container.id);
        let processes = fs::read_dir("/proc").expect("read /proc").filter(|entry| {
            let cmdline = entry.as_ref().expect("readdir").path().join("cmdline");
            fs::read(cmdline).is_ok_and(|text| String::from_utf8_lossy(&text).contains(&container.id))
        });
        [
            find(&["/sys/fs/cgroup", "-type", "d", "-path", &named]),
            find(&[&state.to_string_lossy(), "-mindepth", "1"]),
            find(&[&bundle.to_string_lossy(), "-mindepth", "1", "-not", "-path", "*/agentsbx/execs/*"]),
            processes.count(),
        ]
    };
    let before = counts();
    for _ in 0..100 {
        container.exec_with([], &["true"]).run().expect(0);
    }
    wait_until("the same counts as before", Duration::from_secs(10), || counts() == before);
}
