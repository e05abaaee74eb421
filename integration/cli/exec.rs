//! `agentsbx exec` in the foreground, without an engine between.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::support::bundle::Bundle;
use crate::support::{Cmd, Env, result};

/// The command's code, 128 + a signal's number, 124 for a timeout; runc's 255 with runc's words when it cannot start.
#[test]
fn exec_has_all_exit_codes() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("exit 0").expect(0);
    bundle.sh("exit 3").expect(3);
    bundle.sh("kill -KILL $$").expect(137);
    bundle.sh("kill -TERM $$").expect(143);
    bundle.sh_with(["--timeout", "1"], "sleep 1000").expect(124);
    assert_eq!(bundle.show()["end"]["message"], "it ran longer than 1s");
    for (command, words) in [
        ("no-such-command", "executable file not found in $PATH"),
        ("/no/such/file", "no such file or directory"),
        ("/etc/passwd", "permission denied"),
    ] {
        let output = bundle.exec([command]).expect(255);
        assert!(output.stderr.contains(words), "{words} not in {}", output.stderr);
    }
    assert_eq!(bundle.state()["status"], "running");
}

/// Input, output and the streams' separation.
#[test]
fn exec_carries_stdio() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let output = env.cmd(["exec", &bundle.id, "sh", "-c", "cat; echo err >&2"]).stdin("in\n").run().expect(0);
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("in\n", "err\n"));
}

/// A process that the supervisor left with the command's output open would keep a reader waiting: it does not.
#[test]
fn background_children_do_not_hold_the_output() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let output = bundle.sh("sleep 54321 & (setsid sleep 54322 &); echo started").expect(0);
    assert_eq!(output.stdout, "started\n");
    assert!(output.took < Duration::from_secs(5), "{:?}", output.took);
    assert!(!bundle.exec(["ps"]).ok().contains("5432"));
    assert!(!fs::read_dir("/proc").expect("read /proc").flatten().any(|process| {
        fs::read(process.path().join("cmdline")).is_ok_and(|text| text.starts_with(b"sleep\x005432"))
    }));
}

/// A system call that the bundle's filter refuses is refused to an exec, with `noNewPrivileges` true, false and absent.
#[test]
fn exec_is_filtered_by_seccomp() {
    for no_new_privileges in [json!(true), json!(false), json!(null)] {
        let env = Env::new();
        let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
        match no_new_privileges.as_bool() {
            Some(value) => bundle.config["process"]["noNewPrivileges"] = value.into(),
            None => drop(bundle.config["process"].as_object_mut().expect("process").remove("noNewPrivileges")),
        }
        bundle.config["linux"]["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]
        });
        bundle.start();
        assert_eq!(bundle.exec(["grep", "Seccomp:", "/proc/self/status"]).ok(), "Seccomp:\t2", "{no_new_privileges}");
        let refused = bundle.exec(["mkdir", "/made"]).expect(1);
        assert!(refused.stderr.contains("Operation not permitted"), "{}", refused.stderr);
    }
}

/// A masked comparison of a seccomp rule compares, in the first process and in an exec: mode 0777 is refused by
/// `mode & 01700 == 0700`, and would not be with mask and value in each other's place.
#[test]
fn masked_seccomp_rules_hold_for_the_first_process_and_for_execs() {
    let env = Env::new();
    let mut bundle = Bundle::new(&env, ["sh", "-c", "umask 0; mkdir /first 2>/dev/shm/said; exec sleep 100000"]);
    let rule = |name: &str, index: u32| {
        let masked = json!({"index": index, "value": 0o1700, "valueTwo": 0o700, "op": "SCMP_CMP_MASKED_EQ"});
        json!({"names": [name], "action": "SCMP_ACT_ERRNO", "args": [masked]})
    };
    bundle.config["linux"]["seccomp"] =
        json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule("mkdir", 1), rule("mkdirat", 2)]});
    bundle.start();
    crate::support::wait_until("the first process", std::time::Duration::from_secs(10), || {
        bundle.sh("grep -q 'not permitted' /dev/shm/said").code == 0
    });
    assert!(!bundle.rootfs.join("first").exists());
    let refused = bundle.exec(["mkdir", "/second"]).expect(1);
    assert!(refused.stderr.contains("Operation not permitted"), "{}", refused.stderr);
}

/// In a container with a user namespace an exec is in that namespace; root there is not the host's.
#[test]
fn exec_joins_the_user_namespace() {
    let env = Env::new();
    let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
    let map = json!([{"containerID": 0, "hostID": 100000, "size": 65536}]);
    bundle.config["linux"]["uidMappings"] = map.clone();
    bundle.config["linux"]["gidMappings"] = map;
    bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces").push(json!({"type": "user"}));
    Cmd::new("chown").args(["-R", "100000:100000"]).arg(&bundle.rootfs).ok();
    bundle.start();
    let seen = bundle.sh("id -u; cat /proc/self/uid_map; readlink /proc/self/ns/user").ok();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[0], "0");
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["0", "100000", "65536"]);
    let pid = bundle.state()["pid"].as_i64().expect("a pid");
    let first = fs::read_link(format!("/proc/{pid}/ns/user")).expect("readlink");
    assert_eq!(lines[2], first.to_string_lossy());
    bundle.sh("echo x >/x; rm /bin/vi; mkdir /d; chown 5:6 /d").expect(0);
    assert_eq!(bundle.sh("stat -c %u:%g /x /d; ls /bin/vi 2>&1 | grep -c such").ok(), "0:0\n5:6\n1");
}

/// The flags that runc has: user, groups, directory, environment, and the whole process from a file.
#[test]
fn exec_has_runcs_flags() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let options = ["--user", "1000:1000", "--additional-gids", "77", "--cwd", "/tmp", "--env", "A=1"];
    let output = bundle.sh_with(options, "id -u; id -G; pwd; echo $A").ok();
    assert_eq!(output, "1000\n1000 77\n/tmp\n1");
    let process = json!({
        "args": ["sh", "-c", "id -u; pwd; echo $B; ulimit -n"], "cwd": "/bin", "env": ["PATH=/bin", "B=2"],
        "user": {"uid": 7, "gid": 8}, "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 99, "hard": 99}]
    });
    let file = env.dir.join("process.json");
    fs::write(&file, process.to_string()).expect("write");
    let output = env.cmd(["exec", "--process"]).arg(&file).arg(&bundle.id).run().ok();
    assert_eq!(output, "7\n/bin\n2\n99");
    let output = bundle.sh_with(["--cwd", "/no/such"], "true").expect(255);
    assert!(output.stderr.contains("no such file or directory"), "{}", output.stderr);
}

/// Everything that a process.json says of its process holds: limits, scores, priorities, mask, groups, capabilities, order of
/// the environment. Values are such that a host without `CAP_SYS_RESOURCE` can set them.
#[test]
fn exec_is_the_process_that_was_asked_for() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let script = "grep -E '^(Groups|CapEff|CapBnd|CapAmb|NoNewPrivs):' /proc/self/status; umask; ulimit -n; ulimit -H -n; \
        cat /proc/self/oom_score_adj; ionice -p $$; cut -d' ' -f19,41 /proc/self/stat; env | grep -E '^(Z|A|M)='";
    let caps = ["CAP_KILL", "CAP_CHOWN"];
    let process = json!({
        "args": ["sh", "-c", script], "cwd": "/", "env": ["PATH=/bin", "Z=1", "A=2", "M=3", "Z=4"],
        "user": {"uid": 0, "gid": 0, "additionalGids": [77, 88], "umask": 0o27},
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 55, "hard": 66}], "oomScoreAdj": 700, "noNewPrivileges": true,
        "capabilities": {"bounding": caps, "effective": caps, "permitted": caps, "inheritable": caps, "ambient": ["CAP_KILL"]},
        "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 6},
        "scheduler": {"policy": "SCHED_BATCH", "nice": 5}
    });
    let file = env.dir.join("process.json");
    fs::write(&file, process.to_string()).expect("write");
    let output = env.cmd(["exec", "--process"]).arg(&file).arg(&bundle.id).run().ok();
    let lines: Vec<String> = output.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let mask = "0000000000000021";
    let want = [
        "Groups: 77 88",
        &format!("CapEff: {mask}"),
        &format!("CapBnd: {mask}"),
        "CapAmb: 0000000000000020",
        "NoNewPrivs: 1",
        "0027",
        "55",
        "66",
        "700",
        "best-effort: prio 6",
        // Nice value, and SCHED_BATCH.
        "5 3",
        "Z=4",
        "A=2",
        "M=3",
    ];
    assert_eq!(lines, want);
}

/// Detached: the pid file is whole when the command returns, and the pid is a live process.
#[test]
fn exec_detached_writes_a_pid_file() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    for n in 0..20 {
        let file = env.dir.join(format!("pid{n}"));
        let cmd = env.cmd(["exec", "--detach", "--pid-file"]).arg(&file).args([&bundle.id, "sleep", "0.3"]);
        cmd.output_to(env.dir.join("out")).run().expect(0);
        let pid: u32 = fs::read_to_string(&file).expect("read").parse().expect("digits and nothing else");
        assert!(fs::metadata(format!("/proc/{pid}")).is_ok(), "{pid}");
    }
}

/// What is refused, in runc's words: a container that is unknown, paused, stopped; nothing to run; a relative directory.
#[test]
fn exec_refuses_in_runcs_words() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let refused = |output: crate::support::Output, words: &str| {
        let output = output.expect(255);
        assert!(output.stderr.contains(words), "{words} not in {}", output.stderr);
    };
    refused(env.run(["exec", "no-such", "true"]), "container does not exist");
    refused(bundle.sh_with(["--cwd", "relative"], "true"), "Cwd must be an absolute path");
    env.ok(["pause", &bundle.id]);
    refused(bundle.sh("true"), "cannot exec in a paused container");
    env.ok(["resume", &bundle.id]);
    bundle.sh("true").expect(0);
    env.ok(["kill", &bundle.id, "KILL"]);
    crate::support::wait_until("the end", Duration::from_secs(10), || bundle.state()["status"] == "stopped");
    refused(bundle.sh("true"), "cannot exec in a stopped container");
}

/// With `--log`, a failure is exactly one line of JSON, as podman needs it.
#[test]
fn a_failure_is_one_line_of_json() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let log = env.dir.join("log.json");
    let cmd = env.cmd(["--log"]).arg(&log).args(["--log-format", "json", "exec", &bundle.id, "no-such-command"]);
    cmd.run().expect(255);
    let text = fs::read_to_string(&log).expect("read");
    assert_eq!(text.lines().count(), 1, "{text}");
    let line: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(line["level"], "error");
    assert!(line["msg"].as_str().is_some_and(|m| m.contains("executable file not found in $PATH")), "{line}");
    assert!(line["time"].as_str().is_some_and(|t| t.contains('T')), "{line}");
}

/// The supervisor hands on the signals that it gets.
#[test]
fn exec_forwards_signals() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let script = "trap 'echo got; exit 9' TERM; touch /dev/shm/ready; while :; do sleep 0.1; done";
    let child = env.cmd(["exec", &bundle.id, "sh", "-c", script]).spawn();
    crate::support::wait_until("ready", Duration::from_secs(10), || bundle.exec(["ls", "/dev/shm/ready"]).code == 0);
    child.signal(Signal::TERM);
    assert_eq!(child.wait().expect(9).stdout, "got\n");
}

/// `--result` writes the result document to a file of the caller's, the same that `show --json` prints.
#[test]
fn result_goes_to_a_file() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let file = env.dir.join("result.json");
    let cmd = env.cmd(["exec", "--result"]).arg(&file).args([&bundle.id, "sh", "-c", "echo x >/x; exit 4"]);
    cmd.run().expect(4);
    let text = fs::read_to_string(&file).expect("read");
    let written: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(written, bundle.show());
    assert_eq!(result::end(&written), ("exited", Some(4)));
    assert_eq!(written["container"], bundle.id.as_str());
}

/// Under a caller that ignores SIGCHLD, which is inherited, no end was learned of: execs failed with "no child processes".
#[test]
fn a_caller_may_ignore_its_children() {
    let env = Env::new();
    let ignoring = |cmd: crate::support::Cmd| cmd.in_shell("exec env --ignore-signal=CHLD \"$@\"").run();
    let bundle = Bundle::new(&env, ["sh", "-c", "grep SigIgn /proc/self/status; exit 3"]);
    bundle.write();
    let run = ignoring(env.cmd(["run", "--bundle"]).arg(&bundle.dir).arg(&bundle.id)).expect(3);
    let ignored =
        run.stdout.trim().strip_prefix("SigIgn:\t").map(|mask| u64::from_str_radix(mask, 16).expect("a mask"));
    assert_eq!(ignored.expect("the line") & 1 << (17 - 1), 0, "the container's program would inherit it");
    let bundle = Bundle::running(&env);
    let exec = ignoring(env.cmd(["exec", &bundle.id, "sh", "-c", "touch /x; exit 4"]));
    exec.expect(4);
    assert_eq!(result::end(&bundle.show()), ("exited", Some(4)));
}

/// A capability that only the engine knows is left out, as runc does it, in a container and in an exec.
#[test]
fn unknown_capabilities_are_left_out() {
    let env = Env::new();
    let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
    for set in ["bounding", "effective", "permitted"] {
        bundle.config["process"]["capabilities"][set] = serde_json::json!(["CAP_KILL", "CAP_OF_TOMORROW"]);
    }
    bundle.start();
    let bounding = "grep CapBnd /proc/self/status";
    assert_eq!(bundle.sh(bounding).expect(0).stdout, "CapBnd:\t0000000000000020\n");
    let file = env.dir.join("process.json");
    let mut process = bundle.read()["process"].clone();
    process["args"] = serde_json::json!(["sh", "-c", bounding]);
    process["capabilities"] = serde_json::json!({"bounding": ["CAP_CHOWN", "CAP_OF_TOMORROW"]});
    fs::write(&file, process.to_string()).expect("write");
    let out = env.cmd(["exec", "--process"]).arg(&file).arg(&bundle.id).run().expect(0);
    assert_eq!(out.stdout, "CapBnd:\t0000000000000001\n");
}

/// While nobody read what a command wrote to its terminal, the supervisor waited in a write, and its time limit did not
/// hold. What is read is read whole.
#[test]
fn a_time_limit_holds_while_nobody_reads_the_terminal() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let exec = env.cmd(["exec", "-t", "--timeout", "1", &bundle.id, "yes"]);
    let out = exec.in_shell("{ \"$@\" </dev/null 2>&1; echo $? >\"$CODE\"; } | { sleep 15; cat \"$CODE\"; }");
    let out = out.on_terminal().env("CODE", env.dir.join("code")).limit(Duration::from_secs(60));
    assert_eq!(out.run().ok().trim(), "124");
    let script = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i + 1)); done";
    let exec = env.cmd(["exec", "-t", &bundle.id, "sh", "-c", script]);
    let numbers = exec.in_shell("\"$@\" </dev/null | { sleep 1; tr -d '\\r'; }").on_terminal().run().ok();
    assert!(numbers.lines().map(str::parse).eq((0..20000).map(Ok::<i32, std::num::ParseIntError>)));
}

/// With a terminal to pass on and none at hand an exec waited for input for ever. The controlling one is enough, as under runc.
#[test]
fn a_terminal_is_passed_on_or_refused() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let exec = env.cmd(["exec", "-t", &bundle.id, "sh"]).in_shell("exec setsid --wait \"$@\"");
    let out = exec.limit(Duration::from_secs(20)).run().expect(255);
    let (tty, remedy) = ("open /dev/tty: no such device or address: ", "leave -t out");
    assert!(out.stderr.contains(tty) && out.stderr.contains(remedy), "{}", out.stderr);
    assert!(!env.cmd(["log", &bundle.id]).run().ok().contains("e1"), "no exec was made");
    let exec = env.cmd(["exec", "-t", &bundle.id, "sh", "-c", "stty size; tty"]);
    let line = "stty rows 33 cols 77; \"$@\" </dev/null 2>&1 | cat";
    assert_eq!(exec.in_shell(line).on_terminal().run().ok().replace('\r', ""), "33 77\n/dev/pts/0");
}

/// The size came when the command ran already: one that asked at its beginning was told 0 by 0.
#[test]
fn a_terminal_has_its_size_from_the_beginning() {
    const TIMES: usize = 10;
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let exec = env.cmd(["exec", "-t", &bundle.id, "stty", "size"]);
    let line = format!("stty rows 33 cols 77; for i in $(seq {TIMES}); do \"$@\" </dev/null 2>&1 | cat; done");
    let sizes = exec.in_shell(&line).on_terminal().run().ok().replace('\r', "");
    assert_eq!(sizes.lines().collect::<Vec<_>>(), ["33 77"; TIMES]);
    // That of a container is told in its configuration, for callers who have none.
    let mut bundle = Bundle::new(&env, ["stty", "size"]);
    bundle.config["process"]["terminal"] = true.into();
    bundle.config["process"]["consoleSize"] = serde_json::json!({"height": 10, "width": 20});
    bundle.write();
    for (rows, columns, want) in [(33, 77, "33 77"), (0, 0, "10 20")] {
        let run = env.cmd(["run", "--bundle"]).arg(&bundle.dir).arg(&bundle.id);
        let line =
            format!("stty rows {rows} cols {columns}; for i in $(seq {TIMES}); do \"$@\" </dev/null 2>&1 | cat; done");
        let sizes = run.in_shell(&line).on_terminal().run().ok().replace('\r', "");
        assert_eq!(sizes.lines().collect::<Vec<_>>(), [want; TIMES]);
    }
}
