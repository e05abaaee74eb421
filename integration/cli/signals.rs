//! Signals for one exec, and whose a process is: what containerd's shim asks for instead of a bare `kill(2)`.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::bundle::Bundle;
use crate::support::result::end;
use crate::support::{Env, wait_until};

const SOON: Duration = Duration::from_secs(20);

/// Starts an exec that its engine calls `name`, its output in a file.
fn begin<const N: usize>(bundle: &Bundle<'_>, name: &str, options: [&str; N], script: &str) {
    let dir = bundle.env.dir.join(&bundle.id);
    let cmd = bundle.env.cmd(["exec", "--detach", "--pid-file"]).arg(dir.join(format!("{name}.pid")));
    let cmd = cmd.args(options).args([&bundle.id, "sh", "-c", script]);
    cmd.output_to(dir.join(format!("{name}.out"))).run().expect(0);
}

fn out(bundle: &Bundle<'_>, name: &str) -> String {
    fs::read_to_string(bundle.env.dir.join(&bundle.id).join(format!("{name}.out"))).expect("read")
}

/// The result of an exec, once it has ended.
fn result(bundle: &Bundle<'_>, name: &str) -> Value {
    bundle.env.json(["show", &bundle.id, name, "--json", "--wait"])
}

fn kill(bundle: &Bundle<'_>, name: &str, signal: &str) {
    bundle.env.ok(["kill", "--exec", name, &bundle.id, signal]);
}

/// The message of a signal that does not find anybody.
fn refused(bundle: &Bundle<'_>, name: &str, signal: &str) -> String {
    bundle.env.run(["kill", "--exec", name, &bundle.id, signal]).expect(1).stderr
}

fn execs(bundle: &Bundle<'_>) -> Vec<(i64, Option<String>)> {
    let listed = bundle.env.json(["ps", "--format", "json", "--execs", &bundle.id]);
    let one = |process: &Value| (process["pid"].as_i64().expect("a pid"), process["exec"].as_str().map(str::to_owned));
    listed.as_array().expect("an array").iter().map(one).collect()
}

#[test]
fn any_signal_reaches_the_command_of_an_exec_by_either_name() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let script = "trap 'echo usr' USR1; trap 'echo rt' 37; trap 'echo last' 64; trap 'echo term; exit 3' TERM; echo up; \
                  while :; do sleep 0.05; done";
    begin(&bundle, "engines-id", [], script);
    wait_until("the command is up", SOON, || out(&bundle, "engines-id").contains("up"));
    let ours = execs_id(&bundle, "engines-id");
    kill(&bundle, "engines-id", "0");
    for (n, (name, signal)) in
        [("engines-id", "USR1"), (&*ours, "10"), (&ours[..12], "RTMIN+3"), ("engines-id", "37"), (&ours, "64")]
            .into_iter()
            .enumerate()
    {
        kill(&bundle, name, signal);
        wait_until(signal, SOON, || out(&bundle, "engines-id").lines().count() == n + 2);
    }
    kill(&bundle, "engines-id", "STOP");
    kill(&bundle, "engines-id", "CONT");
    kill(&bundle, "engines-id", "TERM");
    assert_eq!(end(&result(&bundle, "engines-id")), ("exited", Some(3)));
    assert_eq!(out(&bundle, "engines-id"), "up\nusr\nusr\nrt\nrt\nlast\nterm\n");
}

/// Our id of an exec that runs.
fn execs_id(bundle: &Bundle<'_>, name: &str) -> String {
    bundle.env.json(["show", &bundle.id, name, "--json"])["exec"].as_str().expect("an id").to_owned()
}

/// SIGKILL ends all that the exec started, whatever it does to stay, and the result is written: the supervisor lives.
#[test]
fn sigkill_ends_the_whole_exec_with_a_result() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let script = "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 0.01; done' & setsid sleep 1000 & echo x >/x; \
                  echo up; exec sleep 1000";
    for orphans in ["kill", "wait"] {
        begin(&bundle, orphans, ["--orphans", orphans], script);
        wait_until("the command is up", SOON, || out(&bundle, orphans).contains("up"));
        let supervisor = env.dir.join(&bundle.id).join(format!("{orphans}.pid"));
        let supervisor: u32 = fs::read_to_string(supervisor).expect("read").parse().expect("a pid");
        kill(&bundle, orphans, "KILL");
        let result = result(&bundle, orphans);
        assert_eq!(result["end"], json!({"kind": "signaled", "code": 137, "signal": 9, "message": null}));
        assert_eq!(result["disposition"], "committed");
        wait_until("the supervisor's end", SOON, || {
            fs::read_to_string(format!("/proc/{supervisor}/stat")).map_or(true, |stat| stat.contains(") Z "))
        });
        assert_eq!(execs(&bundle).len(), 1, "only the first process is left");
    }
    // In the foreground its own code tells it, too.
    let running = env.cmd(["exec", &bundle.id, "sleep", "1000"]).spawn();
    wait_until("the exec", SOON, || execs(&bundle).len() == 2);
    let (_, id) = execs(&bundle).into_iter().find(|(_, exec)| exec.is_some()).expect("an exec's process");
    kill(&bundle, &id.expect("an id"), "9");
    running.wait().expect(137);
    assert_eq!(fs::read_dir(env.root.join(&bundle.id).join("execs")).expect("list").count(), 0);
}

/// The command has ended, and what it left is waited for: there is no command to take a signal, but all can be killed.
#[test]
fn what_an_ended_command_left_can_be_killed() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    begin(&bundle, "left", ["--orphans", "wait"], "sleep 1000 & exit 4");
    wait_until("the command's end", SOON, || {
        env.run(["kill", "--exec", "left", &bundle.id, "0"]).stderr.contains("process already finished")
    });
    kill(&bundle, "left", "KILL");
    assert_eq!(end(&result(&bundle, "left")), ("exited", Some(4)));
}

#[test]
fn who_is_not_there_is_told_in_the_words_that_engines_know() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    begin(&bundle, "short", [], "exit 5");
    assert_eq!(end(&result(&bundle, "short")), ("exited", Some(5)));
    for signal in ["TERM", "KILL", "0"] {
        assert!(refused(&bundle, "short", signal).contains("process already finished"), "{signal}");
        let told = refused(&bundle, "no-such", signal);
        assert!(told.contains("exec no-such does not exist"), "{told}");
    }
    assert!(env.run(["kill", "--exec", "short", "no-such", "9"]).expect(1).stderr.contains("container does not exist"));
    env.run(["kill", "--exec", "short", "--all", &bundle.id, "9"]).expect(1);
    assert!(refused(&bundle, "short", "NOPE").contains("unknown signal"));
    // An engine may use an id again: the one that runs is meant.
    begin(&bundle, "short", [], "trap 'exit 6' TERM; echo up; while :; do sleep 0.05; done");
    wait_until("the second one is up", SOON, || out(&bundle, "short").contains("up"));
    kill(&bundle, "short", "TERM");
    assert_eq!(end(&result(&bundle, "short")), ("exited", Some(6)));
    env.ok(["kill", &bundle.id, "KILL"]);
    wait_until("the end", SOON, || bundle.state()["status"] == "stopped");
    assert!(refused(&bundle, "short", "9").contains("process already finished"));
    assert!(refused(&bundle, "no-such", "9").contains("container not running"));
}

/// A signal that comes while the exec is being started finds it, or nobody; it never hits one half-way.
#[test]
fn a_signal_during_the_start_waits_for_the_command() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    for n in 0..15 {
        let name = format!("race{n}");
        std::thread::scope(|scope| {
            scope.spawn(|| begin(&bundle, &name, [], "sleep 1000"));
            wait_until("the signal is taken", SOON, || {
                let told = env.run(["kill", "--exec", &name, &bundle.id, "KILL"]);
                assert!(told.code == 0 || told.stderr.contains("does not exist"), "{}", told.stderr);
                told.code == 0
            });
        });
        assert_eq!(end(&result(&bundle, &name)), ("signaled", Some(137)));
    }
}

/// In a paused container: as by kill(2), when it is resumed at the latest, and the container stays paused.
#[test]
fn an_exec_of_a_paused_container_is_killed_when_that_goes_on() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    begin(&bundle, "e", [], "echo up; sleep 1000");
    wait_until("the command is up", SOON, || out(&bundle, "e").contains("up"));
    env.ok(["pause", &bundle.id]);
    kill(&bundle, "e", "KILL");
    assert_eq!(bundle.state()["status"], "paused");
    env.ok(["resume", &bundle.id]);
    assert_eq!(end(&result(&bundle, "e")), ("signaled", Some(137)));
    assert_eq!(bundle.state()["status"], "running");
}

/// A supervisor that was killed: its exec is over, and leaves nothing in the state directory once that is repaired.
#[test]
fn a_killed_supervisors_exec_is_over() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    begin(&bundle, "e", [], "echo up; sleep 1000");
    wait_until("the command is up", SOON, || out(&bundle, "e").contains("up"));
    let supervisor = fs::read_to_string(env.dir.join(&bundle.id).join("e.pid")).expect("read");
    let pid = rustix::process::Pid::from_raw(supervisor.parse().expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
    wait_until("the end", SOON, || env.run(["kill", "--exec", "e", &bundle.id, "TERM"]).code == 1);
    assert!(refused(&bundle, "e", "TERM").contains("process already finished"));
    bundle.sh("true").expect(0);
    assert_eq!(fs::read_dir(env.root.join(&bundle.id).join("execs")).expect("list").count(), 0);
}

#[test]
fn processes_are_listed_with_their_execs() {
    let env = Env::new();
    let bundle = Bundle::new(&env, ["sh", "-c", "sleep 100000 & exec sleep 100000"]);
    bundle.start();
    begin(&bundle, "one", [], "sleep 1000 & setsid sleep 1000 & echo up; exec sleep 1000");
    begin(&bundle, "two", [], "echo up; exec sleep 1000");
    wait_until("the commands are up", SOON, || {
        ["one", "two"].iter().all(|name| out(&bundle, name).contains("up")) && execs(&bundle).len() == 6
    });
    let listed = execs(&bundle);
    let count = |name: Option<&str>| listed.iter().filter(|(_, exec)| exec.as_deref() == name).count();
    assert_eq!((count(None), count(Some("one")), count(Some("two"))), (2, 3, 1), "{listed:?}");
    let plain: Vec<i64> = env
        .json(["ps", "--format", "json", &bundle.id])
        .as_array()
        .expect("an array")
        .iter()
        .map(|pid| pid.as_i64().expect("a pid"))
        .collect();
    assert_eq!(plain, listed.iter().map(|(pid, _)| *pid).collect::<Vec<_>>());
    assert!(env.run(["ps", "--execs", &bundle.id]).expect(1).stderr.contains("--format json"));
}
