//! What people do with `docker run` and the verbs around it works as with runc.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::docker::Container;
use crate::support::engines::engines;
use crate::support::images::BUSYBOX;
use crate::support::{Cmd, Output, wait_until};

fn run<const N: usize>(options: [&str; N], script: &str) -> Output {
    engines().docker(["run", "--rm"]).args(options).args([BUSYBOX, "sh", "-c", script]).run()
}

/// The output and the exit code of the first process come through.
#[test]
fn run_gives_output_and_exit_code() {
    let output = run([], "echo out; echo err >&2; exit 7").expect(7);
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
}

/// Docker tells a command that is missing (127), one that cannot be executed (126) and one that was killed (137) apart.
#[test]
fn run_has_dockers_exit_codes() {
    let docker = |args: &[&str]| engines().docker(["run", "--rm", BUSYBOX]).args(args).run();
    docker(&["no-such-command"]).expect(127);
    docker(&["/no/such/file"]).expect(127);
    docker(&["/etc/passwd"]).expect(126);
    docker(&["/etc"]).expect(126);
    // The first process of a PID namespace cannot kill itself: its child can.
    docker(&["sh", "-c", "sh -c 'kill -9 $$'; exit $?"]).expect(137);
}

/// What could not be started is told as with runc: once, in runc's words, but for the program's name. Whoever reads more
/// than that in Docker's line reads Docker's own.
#[test]
fn what_fails_is_told_once_as_with_runc() {
    // A line more comes of the client's own race with the container's removal, under either runtime.
    let said = |runtime: &[&str], what: &[&str]| -> Vec<String> {
        let output = engines().docker(["run", "--rm"]).args(runtime).arg(BUSYBOX).args(what).run();
        let lines = output.stderr.lines().filter(|line| !line.contains("error waiting for container"));
        lines.map(str::to_owned).collect()
    };
    for (what, once) in [
        (vec!["no-such-command"], "executable file not found in $PATH"),
        (vec!["/no/such/file"], "no such file or directory"),
        (vec!["/etc"], "permission denied"),
    ] {
        let ours = said(&[], &what);
        let lines = ours.iter().filter(|line| line.contains(once)).count();
        assert_eq!((lines, ours.len()), (1, 1), "{ours:#?}");
        assert!(ours[0].contains("OCI runtime create failed: agentsbx create failed: "), "{ours:#?}");
        let as_theirs = ours[0].replace("agentsbx create failed", "runc create failed");
        assert_eq!([as_theirs], said(&["--runtime", "runc"], &what).as_slice());
    }
    let [ours, theirs] = [Container::idle([]), Container::idle(["--runtime", "runc"])];
    for what in [&["no-such-command"][..], &["/no/such/file"], &["/etc"]] {
        let [ours, theirs] = [&ours, &theirs].map(|container| container.exec_with([], what).run());
        assert_eq!((ours.code, ours.both()), (theirs.code, theirs.both()), "{what:?}");
    }
    let [ours, theirs] = [&ours, &theirs].map(|one| one.exec_with(["-w", "/nowhere"], &["true"]).run().both());
    assert_eq!(ours, theirs);
}

/// A terminal: the command has one, reads what is typed, and knows the size that the user's has.
#[test]
fn run_it_has_a_terminal() {
    let command =
        engines().docker(["run", "--rm", "-it", BUSYBOX, "sh", "-c", "tty; read line; echo \"got $line\"; stty size"]);
    let output = command.on_terminal().stdin("typed\n").run().expect(0);
    assert!(output.stdout.contains("/dev/pts/0"), "{}", output.stdout);
    assert!(output.stdout.contains("got typed"), "{}", output.stdout);
    let interactive = engines().docker(["run", "--rm", "-i", BUSYBOX, "cat"]).stdin("piped").run().expect(0);
    assert_eq!(interactive.stdout, "piped");
}

/// `stop` sends TERM, the trap's code is the container's; one that ignores TERM is killed and has 137.
#[test]
fn stop_is_term_then_kill() {
    let polite = Container::of(BUSYBOX, [], &["sh", "-c", "trap 'exit 5' TERM; while :; do sleep 0.1; done"]);
    polite.verb(["stop", "--time", "20"]).ok();
    assert_eq!(polite.inspect("{{.State.ExitCode}}"), "5");
    let deaf = Container::of(BUSYBOX, [], &["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]);
    deaf.verb(["stop", "--time", "1"]).ok();
    assert_eq!(deaf.inspect("{{.State.Status}} {{.State.ExitCode}}"), "exited 137");
}

/// `kill` sends any signal, also a real-time one, and a container that is gone says so.
#[test]
fn kill_sends_any_signal() {
    let script = "trap 'echo usr1' USR1; trap 'echo rt' 37; echo ready; while :; do sleep 0.1; done";
    let container = Container::of(BUSYBOX, [], &["sh", "-c", script]);
    let logs = || container.verb(["logs"]).run().stdout;
    wait_until("ready", Duration::from_secs(10), || logs().contains("ready"));
    container.verb(["kill", "--signal", "USR1"]).ok();
    wait_until("USR1", Duration::from_secs(10), || logs().contains("usr1"));
    container.verb(["kill", "--signal", "37"]).ok();
    wait_until("signal 37", Duration::from_secs(10), || logs().contains("rt"));
    container.verb(["kill"]).ok();
    assert_eq!(container.verb(["wait"]).ok(), "137");
    let again = container.verb(["kill"]).run().expect(1);
    assert!(again.stderr.contains("is not running"), "{}", again.stderr);
}

/// A container can be restarted, and stopped and started, and keeps its files.
#[test]
fn restart_keeps_the_files() {
    let container = Container::of(
        BUSYBOX,
        [],
        &["sh", "-c", "echo start >>/starts; trap 'exit 0' TERM; while :; do sleep 0.1; done"],
    );
    let starts = |n: usize| {
        wait_until("a start", Duration::from_secs(10), || container.sh("cat /starts").stdout.lines().count() == n);
    };
    starts(1);
    container.verb(["restart"]).ok();
    starts(2);
    container.verb(["stop"]).ok();
    container.verb(["start"]).ok();
    starts(3);
}

/// A paused container stands still, refuses an exec, and goes on afterwards.
#[test]
fn pause_freezes_and_unpause_thaws() {
    let container = Container::of(BUSYBOX, [], &["sh", "-c", "while :; do date +%s%N >/now; sleep 0.05; done"]);
    let now = || fs::read_to_string(container.merged().join("now")).unwrap_or_default();
    wait_until("the clock", Duration::from_secs(10), || !now().is_empty());
    container.verb(["pause"]).ok();
    assert_eq!(container.inspect("{{.State.Status}}"), "paused");
    let frozen = now();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(now(), frozen);
    let refused = container.sh("true");
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("paused"), "{}", refused.stderr);
    container.verb(["unpause"]).ok();
    wait_until("the clock again", Duration::from_secs(10), || now() != frozen);
    container.sh("true").expect(0);
}

/// `update` changes limits of a running container, in the kernel and not just on paper.
#[test]
fn update_changes_limits() {
    let container = Container::idle(["--memory", "64m", "--memory-swap", "64m", "--pids-limit", "50"]);
    assert_eq!(limit(&container, "memory", "memory.limit_in_bytes", "memory.max"), "67108864");
    assert_eq!(limit(&container, "pids", "pids.max", "pids.max"), "50");
    container.verb(["update", "--memory", "96m", "--memory-swap", "96m", "--pids-limit", "77", "--cpus", "0.5"]).ok();
    assert_eq!(limit(&container, "memory", "memory.limit_in_bytes", "memory.max"), "100663296");
    assert_eq!(limit(&container, "pids", "pids.max", "pids.max"), "77");
    let quota = limit(&container, "cpu", "cpu.cfs_quota_us", "cpu.max");
    assert_eq!(quota.split(' ').next(), Some("50000"));
}

/// A file of the container's cgroup, on either hierarchy.
fn limit(container: &Container, controller: &str, v1: &str, v2: &str) -> String {
    let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", container.pid())).expect("read /proc/PID/cgroup");
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        if names.split(',').any(|name| name == controller) {
            let file = format!("/sys/fs/cgroup/{names}{path}/{v1}");
            return fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}")).trim().to_owned();
        }
    }
    let unified = cgroups.lines().find_map(|line| line.strip_prefix("0::")).expect("a cgroup v2 path");
    let file = format!("/sys/fs/cgroup{unified}/{v2}");
    fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}")).trim().to_owned()
}

/// `stats` shows memory and pids of a running container.
#[test]
fn stats_shows_memory_and_pids() {
    let container = Container::of(BUSYBOX, ["--memory", "64m"], &["sh", "-c", "sleep 1000 & sleep 1000 & wait"]);
    wait_until("three processes", Duration::from_secs(20), || {
        let stats = container.verb(["stats", "--no-stream", "--format", "{{.PIDs}} {{.MemUsage}}"]).ok();
        stats.starts_with("3 ") && stats.ends_with("/ 64MiB")
    });
}

/// `top` lists the first process, and what an exec started while it runs.
#[test]
fn top_lists_first_process_and_execs() {
    let container = Container::idle([]);
    container.exec_with(["--detach"], &["sleep", "4321"]).ok();
    wait_until("both processes", Duration::from_secs(10), || {
        let top = container.verb(["top"]).ok();
        top.contains("sleep 100000") && top.contains("sleep 4321")
    });
}

/// `logs` has both streams, in order.
#[test]
fn logs_has_both_streams() {
    let container = Container::of(BUSYBOX, [], &["sh", "-c", "echo one; echo two >&2; echo three"]);
    container.verb(["wait"]).ok();
    let logs = container.verb(["logs"]).run().expect(0);
    assert_eq!((logs.stdout.as_str(), logs.stderr.as_str()), ("one\nthree\n", "two\n"));
}

/// A read-only root refuses writes, from the first process and from an exec; a tmpfs in it takes them.
#[test]
fn read_only_root_with_a_tmpfs() {
    let container = Container::idle(["--read-only", "--tmpfs", "/scratch:size=1m,mode=1777"]);
    for script in ["echo x >/file", "mkdir /dir", "rm /etc/passwd"] {
        let output = container.sh(script);
        assert_ne!(output.code, 0, "{script}");
        assert!(output.stderr.contains("Read-only file system"), "{}", output.stderr);
    }
    container.sh("echo kept >/scratch/file").expect(0);
    assert_eq!(container.sh("cat /scratch/file").ok(), "kept");
    container.sh("dd if=/dev/zero of=/scratch/big bs=1M count=2").expect(1);
    run(["--read-only"], "echo x >/file").expect(1);
}

/// A volume is the same directory for the host, the first process and every exec; `:ro` is read-only.
#[test]
fn volumes_are_shared_with_the_host() {
    let host = tempfile::tempdir().expect("tempdir");
    fs::write(host.path().join("from-host"), "hello").expect("write");
    let path = host.path().display();
    let container = Container::idle(["-v", &format!("{path}:/rw"), "-v", &format!("{path}:/ro:ro")]);
    assert_eq!(container.sh("cat /rw/from-host; echo back >/rw/from-exec").ok(), "hello");
    assert_eq!(fs::read_to_string(host.path().join("from-exec")).expect("read"), "back\n");
    assert!(container.sh("echo x >/ro/file").stderr.contains("Read-only file system"));
    // What goes to a volume is nobody's layer.
    assert!(!container.diff([]).to_string().contains("from-exec"));
}

/// `--init` puts a reaper in front of the command.
#[test]
fn init_is_pid_one() {
    let output = run(
        ["--init"],
        "cat /proc/1/comm; sh -c 'sleep 0.1 & exit 0'; sleep 0.3; grep -c Z /proc/[0-9]*/stat | grep -v ':0' || echo none",
    );
    assert!(output.stdout.contains("init"), "{}", output.stdout);
    assert!(output.stdout.ends_with("none\n"), "{}", output.stdout);
}

/// A container that needs more memory than it may have is killed, and Docker knows why. (This containerd's shim loses the
/// event now and then on a busy machine, with runc too: one of three must tell.)
#[test]
fn memory_limit_kills() {
    let told = (0..3).any(|_| {
        let container = Container::of(
            BUSYBOX,
            ["--memory", "16m", "--memory-swap", "16m"],
            &["sh", "-c", "sleep 1; exec dd if=/dev/zero of=/dev/null bs=200M count=1"],
        );
        assert_eq!(container.verb(["wait"]).ok(), "137");
        container.inspect("{{.State.OOMKilled}}") == "true"
    });
    assert!(told, "Docker was not told why");
}

/// A fork bomb stops at the limit.
#[test]
fn pids_limit_holds() {
    let output = run(["--pids-limit", "20"], "for i in $(seq 40); do sleep 5 & done; echo made");
    assert!(
        output.both().contains("Resource temporarily unavailable") || output.both().contains("can't fork"),
        "{}",
        output.both()
    );
}

/// `--user` by number and by name, with the image's groups.
#[test]
fn user_by_number_and_name() {
    assert_eq!(run(["--user", "1234:4321"], "id -u; id -g").ok(), "1234\n4321");
    assert_eq!(run(["--user", "user"], "id").ok(), "uid=1000(user) gid=1000(user) groups=1000(user),2000(extra)");
}

/// `--hostname`, `--env`, `--workdir` reach the command; the working directory is made.
#[test]
fn hostname_environment_and_directory() {
    let output = run(["--hostname", "sandbox", "--env", "A=1", "--workdir", "/made/for/it"], "hostname; echo $A; pwd");
    assert_eq!(output.ok(), "sandbox\n1\n/made/for/it");
}

/// Without a network there is but the loopback device.
#[test]
fn network_none_has_loopback_only() {
    assert_eq!(run(["--network", "none"], "ls /sys/class/net").ok(), "lo");
}

/// On the bridge, containers reach one another, and a published port answers.
#[test]
fn bridge_carries_traffic() {
    let server = Container::of(
        BUSYBOX,
        ["--publish", "127.0.0.1:18080:80"],
        &["sh", "-c", "echo hello >/tmp/index.html; exec httpd -f -p 80 -h /tmp"],
    );
    let address = server.inspect("{{.NetworkSettings.IPAddress}}");
    wait_until("an answer over the bridge", Duration::from_secs(20), || {
        run([], &format!("wget -qO- http://{address}/")).stdout == "hello\n"
    });
    let daemon = fs::read_to_string(crate::support::env::process().run.join("containerd.pid")).expect("a pid file");
    let published = ["--net", "busybox", "wget", "-qO-", "http://127.0.0.1:18080/"];
    assert_eq!(Cmd::new("nsenter").args(["--target", daemon.trim()]).args(published).ok(), "hello");
    // An exec is in the same network.
    assert_eq!(server.sh("wget -qO- http://127.0.0.1/").ok(), "hello");
}

/// `docker run` in the foreground hands on the signals that it gets.
#[test]
fn run_forwards_signals() {
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let name = crate::support::env::unique("forward");
    let child = engines().docker(["run", "--rm", "--name", &name, BUSYBOX, "sh", "-c", script]).spawn();
    wait_until("ready", Duration::from_secs(20), || engines().docker(["logs", &name]).run().stdout.contains("ready"));
    child.signal(Signal::TERM);
    child.wait().expect(9);
}
