//! An exec is in the container, and is the process that was asked for.

use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;

use serde_json::json;

use super::lab::{self, BOTH, Container, Runtime};
use crate::support::bundle::Bundle;
use crate::support::{Env, wait_until};

/// Without `--process` an exec has all that the container's own process has: user, groups, directory, environment, limits,
/// privileges, score, capabilities.
#[test]
fn an_exec_from_flags_is_like_the_containers_process() {
    let env = Env::new();
    let script = "id -u; id -g; id -G; pwd; echo $GREETING; ulimit -n; grep -E '^(NoNewPrivs|Cap...):' /proc/self/status; \
        cat /proc/self/oom_score_adj; umask";
    let change = |bundle: &mut Bundle<'_>| {
        let caps = json!(["CAP_KILL", "CAP_NET_RAW"]);
        let process = &mut bundle.config["process"];
        process["user"] = json!({"uid": 1000, "gid": 1001, "additionalGids": [5, 6]});
        process["cwd"] = json!("/tmp");
        process["env"] = json!(["PATH=/bin", "GREETING=hello"]);
        process["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1234, "hard": 2047}]);
        process["noNewPrivileges"] = json!(false);
        process["oomScoreAdj"] = json!(123);
        process["capabilities"] = json!({"bounding": caps, "effective": caps, "permitted": caps});
    };
    let outs = BOTH.map(|runtime| {
        let container = Container::new(&env, runtime, &format!("{script}; exec sleep 100000"), change);
        container.start();
        wait_until("the first process", Duration::from_secs(10), || container.out().lines().count() == 14);
        let exec = container.sh(script).ok();
        // As root of the container a process has what the configuration gives, as another user what execve leaves of it.
        (container.out().trim_end().to_owned(), exec)
    });
    assert_eq!(outs[0].0, outs[0].1, "the first process, and an exec");
    assert_eq!(outs[0].0, outs[1].0, "ours, and runc's");
    assert!(outs[0].1.starts_with("1000\n1001\n1001 5 6\n/tmp\nhello\n1234\n"), "{}", outs[0].1);
}

/// An exec is possible once the container is created, before it is started; the container can then be started.
#[test]
fn an_exec_is_possible_before_the_start() {
    let env = Env::new();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "cat /dev/shm/left; exec sleep 100000", |_| {});
        container.create().expect(0);
        let seen = container.sh("echo left >/dev/shm/left; hostname; tr '\\0' ' ' </proc/1/cmdline | wc -w").ok();
        // Two words: what waits for the start shows nothing of how it came about.
        assert_eq!(seen, "box\n2", "{runtime:?}");
        assert_eq!(container.status(), "created", "{runtime:?}");
        container.verb("start").expect(0);
        wait_until("the first process", Duration::from_secs(10), || container.out() == "left\n");
        assert_eq!(container.status(), "running", "{runtime:?}");
        container.sh("true").expect(0);
    }
}

/// `exec -t -d --console-socket`: the terminal's master side comes over the socket, under its name, with the size that the
/// process was given.
#[test]
fn an_exec_has_a_terminal_of_its_own_with_its_size() {
    let env = Env::new();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "exec sleep 100000", |_| {});
        container.start();
        let process = json!({"terminal": true, "consoleSize": {"height": 33, "width": 77}, "cwd": "/",
            "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"], "args": ["sh", "-c", "stty size; tty; exit 3"]});
        let file = container.bundle.dir.join("process.json");
        fs::write(&file, process.to_string()).expect("write");
        let path = container.bundle.dir.join("console");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("bind");
        let exec =
            container.cmd(["exec", "--detach", "--tty", "--console-socket"]).arg(&path).arg("--process").arg(&file);
        exec.arg(&container.bundle.id).output_to(env.dir.join("exec.out")).run().expect(0);
        let socket = listener.accept().expect("accept").0;
        let master = agentsbx::sys::socket::receive_fd(socket.as_fd()).expect("a descriptor");
        let mut shown = Vec::new();
        // The read ends with EIO once nobody has the other side open.
        let _ = std::io::Read::read_to_end(&mut fs::File::from(master), &mut shown);
        assert_eq!(String::from_utf8_lossy(&shown), "33 77\r\n/dev/pts/0\r\n", "{runtime:?}");
        // runc's words for flags that do not go together.
        let lonely =
            container.cmd(["exec", "--tty", "--console-socket", "/x", &container.bundle.id, "true"]).run().expect(255);
        assert!(lonely.stderr.contains("cannot use console socket if "), "{runtime:?}: {}", lonely.stderr);
    }
}

/// In a container with a user namespace an exec has the capabilities of that namespace and no other: what the host's root
/// may do it may not.
#[test]
fn an_exec_in_a_user_namespace_has_no_power_outside() {
    let env = Env::new();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "exec sleep 100000", lab::with_user_namespace);
        container.start();
        let seen = container
            .sh("cat /proc/self/uid_map | tr -s ' '; readlink /proc/self/ns/user; readlink /proc/1/ns/user")
            .ok();
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!(lines[0].trim(), "0 100000 65536", "{runtime:?}");
        assert_eq!(lines[1], lines[2], "{runtime:?}");
        // The host's own name: a right over its namespace of names.
        container.sh("echo x >/proc/sys/kernel/core_pattern").expect(1);
        container.sh("mknod /tmp/sda b 8 0").expect(1);
    }
}

/// Execs leave nothing in the state directory or the bundle, whether they run, fail or are refused: a hundred of them
/// leave it as one does.
#[test]
fn execs_do_not_pile_up_files() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    container.start();
    let count = || {
        let dirs = [env.root.join(&container.bundle.id), container.bundle.dir.clone()];
        dirs.map(|dir| {
            let found = crate::support::Cmd::new("find").arg(dir).args([
                "-path",
                "*/agentsbx/execs/*",
                "-prune",
                "-o",
                "-print",
            ]);
            found.ok().lines().map(str::to_owned).collect::<Vec<_>>()
        })
    };
    container.sh("true").expect(0);
    container.cmd(["exec", &container.bundle.id, "/nope"]).run().expect(255);
    let before = count();
    for n in 0..50 {
        container.sh("true").expect(0);
        container.cmd(["exec", &container.bundle.id, "/nope"]).run().expect(255);
        let pid_file = container.bundle.dir.join("exec.pid");
        let detached =
            container.cmd(["exec", "--detach", "--pid-file"]).arg(&pid_file).args([&container.bundle.id, "true"]);
        detached.output_to(env.dir.join("detached")).run().expect(0);
        let pid = fs::read_to_string(&pid_file).expect("the pid file is there when the command returns");
        assert!(pid.parse::<u32>().is_ok(), "{n}: {pid:?}");
        fs::remove_file(&pid_file).expect("remove");
    }
    // The last one was detached, and may still be at work.
    let began = std::time::Instant::now();
    while count() != before && began.elapsed() < std::time::Duration::from_secs(10) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(count(), before);
}
