//! Verbs beside `create` and `delete` of the same id: what each says, and what it does to whom.
//!
//! Needs root; starts no engine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde_json::{Value, json};

use agentsbx::durable::LockFile;

use crate::support::bundle::Bundle;
use crate::support::{Env, Output, wait_until};

/// All that a verb may say that meets the container before its start, at its end, or not at all. They are runc's words where
/// the verb is runc's.
const WORDS: [&str; 19] = [
    "container does not exist",
    "container not running",
    "container not paused",
    "cannot start an already running container",
    "cannot start a container in the paused state",
    "cannot start a container that has stopped",
    "cannot delete container ID that is not stopped: ",
    "container with id ID is not running",
    "exec failed: container does not exist",
    "exec failed: cannot exec in a stopped container",
    "exec failed: cannot exec in a paused container",
    "agentsbx create failed: container with given ID already exists",
    "agentsbx create failed: the container was deleted while it was made",
    "agentsbx create failed: unable to start container process: the first process ended before it was started",
    "container \"ID\" not found",
    "container was removed (key ",
    "container ID has had no exec yet",
    "exec 0 does not exist",
    "exec \"",
];

/// What a failed verb said, without the time.
fn words(output: &Output, id: &str) -> String {
    let text = output.stderr.split_once("msg=").map_or(&*output.stderr, |(_, text)| text).trim().trim_matches('"');
    text.replace(id, "ID").replace("\\\"", "\"")
}

/// `start` and others answered with a file's "no such file or directory" where another command had just deleted the
/// container; a plain `delete`, refused, took the directory from under a `create`, and `kill --all` killed it.
#[test]
fn beside_create_and_delete_each_verb_says_what_engines_know() {
    const VERBS: [&[&str]; 20] = [
        &["start"],
        &["exec", "-", "true"],
        &["kill", "-", "0"],
        &["state"],
        &["start"],
        &["update", "--pids-limit", "50"],
        &["pause"],
        &["resume"],
        &["exec", "-", "touch", "/x"],
        &["ps", "--format", "json"],
        &["events", "--stats"],
        &["kill", "--all", "-", "0"],
        &["diff"],
        &["log"],
        &["show"],
        &["commit", "-", "0"],
        &["discard", "-", "0"],
        &["rollback", "-", "0"],
        &["delete"],
        &["kill", "--exec", "0", "-", "9"],
    ];
    let env = Env::new();
    let bundle = Bundle::new(&env, ["sleep", "100000"]);
    // It makes the store.
    bundle.start();
    let id = &*bundle.id;
    let (over, others) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
    let note = |output: Output| {
        let text = words(&output, id);
        // The exec's command and a `create` are killed with the container.
        let known = [0, 137].contains(&output.code) || WORDS.iter().any(|known| text.starts_with(known));
        if !known {
            others.lock().expect("lock").insert((output.line, output.code, text));
        }
    };
    let create = || {
        let output = bundle.dir.join("create.out");
        let mut made = env.cmd(["create", "--bundle"]).arg(&bundle.dir).arg(id).output_to(output).run();
        // The container's output, which it keeps, is the command's.
        made.stderr = std::mem::take(&mut made.stdout);
        note(made);
    };
    let begun = Instant::now();
    thread::scope(|scope| {
        for first in [0, VERBS.len() / 3, VERBS.len() * 2 / 3] {
            let (over, note, env) = (&over, &note, &env);
            scope.spawn(move || {
                for verb in VERBS.iter().cycle().skip(first).take_while(|_| !over.load(Ordering::Relaxed)) {
                    let mut args: Vec<&str> = verb.iter().map(|arg| if *arg == "-" { id } else { arg }).collect();
                    if !args.contains(&id) {
                        args.push(id);
                    }
                    note(env.cmd(args).run());
                }
            });
        }
        for round in 0.. {
            create();
            // Now and then there is time for more than a start.
            thread::sleep(Duration::from_millis(round % 4 * 25));
            note(env.run(["delete", "--force", id]));
            if begun.elapsed() > Duration::from_secs(15) {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let others = others.into_inner().expect("lock");
    assert!(others.is_empty(), "{others:#?}");
}

fn locked(path: &Path, how: FlockOperation) -> std::os::fd::OwnedFd {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).expect("open");
    flock(&file, how).expect("lock");
    file
}

/// A hook that notes that it runs, and waits until there is a file of its number.
fn waiting_hook(dir: &Path) -> Value {
    let script = "cd DIR; n=1; until mkdir began$n 2>/dev/null; do n=$((n + 1)); done; \
                  until [ -e go$n ]; do sleep 0.02; done";
    json!([{"path": "/bin/sh", "args": ["sh", "-c", script.replace("DIR", &dir.display().to_string())],
            "env": ["PATH=/usr/bin:/bin"]}])
}

/// Of two deletes the slower one killed the container that had the id by then.
#[test]
fn a_delete_takes_only_the_container_that_it_saw() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let id = &*bundle.id;
    env.ok(["kill", id, "KILL"]);
    wait_until("the end", Duration::from_secs(10), || bundle.state()["status"] == "stopped");
    // As an exec that is writing its result: a delete waits for it, but not one that comes when the file is new.
    let path = env.root.join(id).join("supervisors.lock");
    fs::write(&path, "").expect("write");
    let writing = locked(&path, FlockOperation::LockShared);
    let slow = env.cmd(["delete", "--force", id]).spawn();
    thread::sleep(Duration::from_millis(500));
    fs::remove_file(&path).expect("unlink");
    env.ok(["delete", id]);
    bundle.start();
    drop(writing);
    slow.wait().expect(0);
    assert_eq!(bundle.state()["status"], "running", "it is another one");
    bundle.sh("echo here").expect(0);
    assert!(env.ok(["log", id, "--json"]).contains("echo here"), "and has its history");
}

/// The same where both have ended the container: the slower one took the other container's state. And both ran its hooks.
#[test]
fn a_delete_that_comes_late_leaves_the_next_containers_state() {
    let env = Env::new();
    let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
    bundle.config["hooks"]["poststop"] = waiting_hook(&bundle.dir);
    bundle.start();
    let id = &*bundle.id;
    let first = env.cmd(["delete", "--force", id]).spawn();
    wait_until("the hook", Duration::from_secs(10), || bundle.dir.join("began1").exists());
    let second = env.cmd(["delete", "--force", id]).spawn();
    let waits = || {
        let at = fs::read_to_string(format!("/proc/{}/wchan", second.pid())).expect("read");
        at.contains("nanosleep")
    };
    wait_until("the second one to wait", Duration::from_secs(10), waits);
    second.signal(rustix::process::Signal::STOP);
    fs::write(bundle.dir.join("go1"), "").expect("write");
    first.wait().expect(0);
    bundle.config["hooks"] = Value::Null;
    bundle.start();
    second.signal(rustix::process::Signal::CONT);
    second.wait().expect(0);
    assert!(!bundle.dir.join("began2").exists(), "the hooks ran twice");
    assert_eq!(bundle.state()["status"], "running", "it is another one");
    env.ok(["exec", id, "true"]);
}

/// While a container was made in a bundle, the delete of another one put the engine's configuration in the place of the one
/// that it was being made with.
#[test]
fn a_delete_leaves_the_bundle_to_a_create_that_is_at_work_there() {
    let env = Env::new();
    let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
    // Without a source there is something to change.
    let mounts = bundle.config["mounts"].as_array_mut().expect("mounts");
    mounts.push(json!({"destination": "/t", "type": "tmpfs"}));
    bundle.start();
    let other = format!("{}-2", bundle.id);
    let cgroup = bundle.config["linux"]["cgroupsPath"].as_str().expect("a path").to_owned();
    bundle.config["linux"]["cgroupsPath"] = format!("{cgroup}-2").into();
    bundle.config["hooks"]["createRuntime"] = waiting_hook(&bundle.dir);
    bundle.write();
    let engine = fs::read_to_string(bundle.dir.join("config.json")).expect("read");
    let create = env.cmd(["create", "--bundle"]).arg(&bundle.dir).arg(&other);
    let create = create.output_to(bundle.dir.join("create.out")).spawn();
    wait_until("the hook", Duration::from_secs(10), || bundle.dir.join("began1").exists());
    let made = fs::read_to_string(bundle.dir.join("config.json")).expect("read");
    assert_ne!(made, engine);
    env.ok(["delete", "--force", &bundle.id]);
    assert_eq!(fs::read_to_string(bundle.dir.join("config.json")).expect("read"), made);
    fs::write(bundle.dir.join("go1"), "").expect("write");
    create.wait().expect(0);
    env.ok(["delete", "--force", &other]);
    assert_eq!(fs::read_to_string(bundle.dir.join("config.json")).expect("read"), engine);
}

/// `kill --all` killed who was making the container, who is in some of its cgroups meanwhile.
#[test]
fn who_makes_a_container_is_not_signalled_for_it() {
    let env = Env::new();
    let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
    bundle.config["hooks"]["createRuntime"] = waiting_hook(&bundle.dir);
    bundle.write();
    let create = env.cmd(["create", "--bundle"]).arg(&bundle.dir).arg(&bundle.id);
    let create = create.output_to(bundle.dir.join("create.out")).spawn();
    wait_until("the hook", Duration::from_secs(10), || bundle.dir.join("began1").exists());
    let kill = env.run(["kill", "--all", &bundle.id, "KILL"]).expect(1);
    assert!(kill.stderr.contains("container not running"), "{}", kill.stderr);
    fs::write(bundle.dir.join("go1"), "").expect("write");
    create.wait().expect(0);
    assert_eq!(bundle.state()["status"], "created");
}

/// A delete that was killed while its hooks ran is made up for by the next one, hooks included.
#[test]
fn hooks_that_were_cut_short_run_again() {
    let env = Env::new();
    let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
    bundle.config["hooks"]["poststop"] = waiting_hook(&bundle.dir);
    bundle.start();
    let first = env.cmd(["delete", "--force", &bundle.id]).spawn();
    wait_until("the hook", Duration::from_secs(10), || bundle.dir.join("began1").exists());
    first.signal(rustix::process::Signal::KILL);
    first.wait().expect(137);
    fs::write(bundle.dir.join("go2"), "").expect("write");
    env.ok(["delete", "--force", &bundle.id]);
    assert!(bundle.dir.join("began2").exists());
    // The one that nobody waits for any more.
    fs::write(bundle.dir.join("go1"), "").expect("write");
}

/// `kill --all` freezes a container for a moment. An exec that met that was refused as in a paused one, and the pause of
/// somebody else came to nothing.
#[test]
fn what_is_frozen_to_be_signalled_is_not_paused() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let id = &*bundle.id;
    let over = AtomicBool::new(false);
    let (execs, paused) = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    env.ok(["kill", "--all", id, "0"]);
                }
            });
        }
        let execs: Vec<Output> = (0..40).map(|_| bundle.exec(["true"])).collect();
        let pause = |_| {
            let output = env.run(["pause", id]);
            let status = bundle.state()["status"].clone();
            env.run(["resume", id]);
            (output, status)
        };
        let paused: Vec<(Output, Value)> = (0..20).map(pause).collect();
        over.store(true, Ordering::Relaxed);
        (execs, paused)
    });
    execs.into_iter().for_each(|output| drop(output.expect(0)));
    for (output, status) in paused {
        output.expect(0);
        assert_eq!(status, "paused");
    }
    assert_eq!(bundle.state()["status"], "running");
}

/// The same at the end of a container: it is stopped, not paused.
#[test]
fn what_is_frozen_to_be_killed_is_not_paused() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let pid = i32::try_from(bundle.state()["pid"].as_i64().expect("a pid")).expect("a pid");
    let cgroup = bundle.config["linux"]["cgroupsPath"].as_str().expect("a path");
    env.ok(["pause", &bundle.id]);
    // As a delete that is at work.
    let turn = LockFile::lock(&env.root.join(&bundle.id).join("freezer.lock")).expect("lock");
    let exec = env.cmd(["exec", &bundle.id, "true"]).spawn();
    thread::sleep(Duration::from_millis(500));
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
    let v1 = Path::new("/sys/fs/cgroup/freezer").join(cgroup.trim_start_matches('/')).join("freezer.state");
    if v1.exists() {
        fs::write(v1, "THAWED").expect("thaw");
    }
    wait_until("its end", Duration::from_secs(10), || {
        !Path::new(&format!("/proc/{}/ns/pid", pid.as_raw_nonzero())).exists()
    });
    drop(turn);
    let exec = exec.wait().expect(255);
    assert!(exec.stderr.contains("cannot exec in a stopped container"), "{}", exec.stderr);
}
