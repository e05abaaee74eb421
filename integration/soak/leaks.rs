//! After any number of execs, however they ended, everything is as it was before.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use super::census::Census;
use super::{assert_clean, rounds};
use crate::support::bundle::Bundle;
use crate::support::{Cmd, Env};

/// Its first process reaps what is orphaned: one that does not collects zombies, under any runtime.
pub const REAPER: [&str; 3] = ["sh", "-c", "while :; do sleep 0.2017; done"];
/// The command line of its only child, which is there most of the time.
pub const REAPERS_CHILD: &[u8] = b"sleep\x000.2017\0";

/// A container with a seccomp rule that refuses `mkdir` with EACCES, and a limit of memory.
fn confined(env: &Env) -> Bundle<'_> {
    let mut bundle = Bundle::new(env, REAPER);
    bundle.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13}]
    });
    bundle.config["linux"]["resources"]["memory"] = json!({"limit": 64 << 20});
    bundle.start();
    bundle
}

/// A way to run an exec that leaves no layer, and the code that it ends with.
type Way = (&'static str, fn(&Bundle, u64) -> Cmd, i32);

fn sh<const N: usize>(bundle: &Bundle, options: [&str; N], script: &str) -> Cmd {
    bundle.env.cmd(["exec"]).args(options).args([&bundle.id, "sh", "-c", script])
}

fn process(bundle: &Bundle, n: u64, text: &str) -> Cmd {
    let file = bundle.env.dir.join(format!("process-{n}.json"));
    fs::write(&file, text).expect("write process.json");
    bundle.env.cmd(["exec", "--process"]).arg(file).arg(&bundle.id)
}

const WAYS: &[Way] = &[
    ("nothing", |b, _| sh(b, [], "true"), 0),
    ("a code", |b, _| sh(b, [], "exit 3"), 3),
    ("discarded", |b, _| sh(b, ["--layer", "discard"], "echo x >/x; rm -r /etc"), 0),
    ("an orphan", |b, _| sh(b, ["--layer", "discard"], "echo x >/x; setsid sleep 1000 & exit 4"), 4),
    ("shared", |b, _| sh(b, ["--layer", "shared"], "true"), 0),
    ("a signal", |b, _| sh(b, [], "kill -9 $$"), 137),
    ("terminated", |b, _| sh(b, [], "kill -15 $$"), 143),
    ("no such command", |b, _| b.env.cmd(["exec", &b.id, "no-such-command"]), 255),
    ("not executable", |b, _| b.env.cmd(["exec", &b.id, "/etc/passwd"]), 255),
    ("a directory", |b, _| b.env.cmd(["exec", &b.id, "/etc"]), 255),
    ("refused by seccomp", |b, _| sh(b, [], "mkdir /refused 2>/dev/null"), 1),
    ("no such user", |b, _| b.env.cmd(["exec", "--user", "nobody-there", &b.id, "true"]), 255),
    ("a bad process.json", |b, n| process(b, n, "{\"args\": 5"), 255),
    ("no args", |b, n| process(b, n, "{\"args\": [], \"cwd\": \"/\"}"), 255),
    ("a cwd that is no directory", |b, _| b.env.cmd(["exec", "--cwd", "/etc/passwd", &b.id, "true"]), 255),
    ("a bad mode", |b, _| sh(b, ["--layer", "no"], "true"), 255),
    ("no such cgroup", |b, _| sh(b, ["--cgroup", "no/such"], "true"), 255),
    ("much output", |b, _| sh(b, [], "head -c 300000 /dev/zero"), 0),
    ("many processes", |b, _| sh(b, ["--layer", "discard"], "for i in $(seq 20); do sleep 100 & done; exit 6"), 6),
];

/// Those that take a second or more.
const SLOW: &[Way] = &[
    ("out of time", |b, _| sh(b, ["--timeout", "1"], "sleep 1000"), 124),
    ("out of memory", |b, _| sh(b, [], "head -c 200000000 /dev/zero | tail"), 137),
    (
        "out of time, deaf",
        |b, _| sh(b, ["--timeout", "1"], "trap '' TERM; while :; do sleep 1; done & sleep 1000"),
        124,
    ),
];

/// Files of results, which an exec that failed or was dropped leaves in the bundle, are no leak: they are taken away.
fn forget_results(bundle: &Bundle) {
    let dir = bundle.dir.join("agentsbx/execs");
    for entry in fs::read_dir(dir).expect("results") {
        fs::remove_file(entry.expect("readdir").path()).expect("remove");
    }
}

/// `in_a_row` execs one after the other, `at_once` at a time, and each kind of failure `failing` times.
fn leak(in_a_row: u64, at_once: u64, failing: u64) {
    let env = Env::new();
    let bundle = confined(&env);
    sh(&bundle, ["--layer", "discard"], "echo x >/x").ok();
    forget_results(&bundle);
    let before = Census::at_rest(&env, &bundle);
    for n in 0..in_a_row {
        let (what, cmd, code) = &WAYS[(n % 4) as usize];
        let output = cmd(&bundle, n).run();
        assert_eq!(output.code, *code, "{what}: {}", output.both());
    }
    forget_results(&bundle);
    Census::assert_unchanged(&env, &bundle, &before, "in a row");

    let mut n = 0;
    while n < at_once {
        let batch: Vec<_> = (n..at_once.min(n + 25)).map(|n| (n, WAYS[(n % WAYS.len() as u64) as usize])).collect();
        n += batch.len() as u64;
        let running: Vec<_> =
            batch.iter().map(|(n, (what, cmd, code))| (what, cmd(&bundle, *n).spawn(), code)).collect();
        for (what, running, code) in running {
            let output = running.wait();
            assert_eq!(output.code, *code, "at once, {what}: {}", output.both());
        }
    }
    forget_results(&bundle);
    for entry in fs::read_dir(&env.dir).expect("scratch files").flatten() {
        if entry.path().extension().is_some_and(|e| e == "json") {
            fs::remove_file(entry.path()).expect("remove");
        }
    }
    Census::assert_unchanged(&env, &bundle, &before, "at once");

    for n in 0..failing {
        for (what, cmd, code) in WAYS {
            let output = cmd(&bundle, n).run();
            assert_eq!(output.code, *code, "{what}: {}", output.both());
        }
    }
    let slow: Vec<_> = SLOW[..if failing > 10 { 3 } else { 2 }]
        .iter()
        .map(|(what, cmd, code)| (what, cmd(&bundle, 0).spawn(), code))
        .collect();
    for (what, running, code) in slow {
        let output = running.wait();
        assert_eq!(output.code, *code, "{what}: {}", output.both());
    }
    forget_results(&bundle);
    Census::assert_unchanged(&env, &bundle, &before, "failing");
    assert_clean(&env, "after all");
}

/// Execs in a row, at once and failing in every way leave nothing behind.
#[test]
fn nothing_is_left_behind() {
    leak(40, 38, 1);
}

/// The same, 10,000 in a row, 1,000 at once and 100 failing in each way.
#[test]
#[ignore = "fifteen minutes"]
fn nothing_is_left_behind_long() {
    let n = rounds(10_000);
    leak(n, n / 10, n / 100);
}

/// Conflicts hold their layer, and only that: when it is dropped, everything is as before.
#[test]
fn conflicts_leave_their_layer_only() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("echo 0 >/same").expect(0);
    // Locks stay as long as the container: of who changes HEAD, and of who reads layers.
    env.ok(["rollback", &bundle.id, "1"]);
    env.ok(["diff", &bundle.id]);
    forget_results(&bundle);
    let before = Census::at_rest(&env, &bundle);
    let script = |n| format!("until [ -e /dev/shm/go ]; do usleep 2000; done; echo {n} >/same");
    let running: Vec<_> = (0..4).map(|n| sh(&bundle, [], &script(n)).spawn()).collect();
    std::thread::sleep(Duration::from_millis(200));
    sh(&bundle, ["--layer", "discard"], "touch /dev/shm/go").ok();
    running.into_iter().for_each(|exec| drop(exec.wait().expect(0)));
    let results = crate::support::result::in_bundle(&bundle.dir);
    let held: Vec<_> = results.iter().filter(|r| r["disposition"] == "conflict").collect();
    assert_eq!(held.len(), 3, "{results:#?}");
    for result in held {
        let exec = crate::support::result::exec(result);
        env.cmd(["commit", &bundle.id, exec]).run().expect(1);
        env.ok(["discard", &bundle.id, exec]);
    }
    env.ok(["rollback", &bundle.id, "1"]);
    bundle.sh("exit 0").expect(0);
    assert_clean(&env, "after the conflicts");
    forget_results(&bundle);
    // The one that was committed has its layer; the census counts layers by name.
    let mut after = Census::at_rest(&env, &bundle);
    after.forget_layers();
    let mut before = before;
    before.forget_layers();
    assert_eq!(after, before);
    assert_eq!(fs::read_dir(env.store.join("layers")).expect("layers").count(), 2);
}

/// What stays grows by rows alone, and these are bounded: so is the database.
#[test]
#[ignore = "a minute"]
fn the_database_is_bounded() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let size = || fs::metadata(env.store.join("db.sqlite")).expect("the database").len();
    let log = || fs::metadata(env.store.join("db.sqlite-wal")).expect("the log").len();
    let begun = Instant::now();
    let mut sizes = Vec::new();
    let mut longest = 0;
    for n in 0..rounds(3_000) {
        bundle.exec(["true"]).expect(0);
        longest = longest.max(log());
        if n % 500 == 499 {
            sizes.push(size());
        }
    }
    println!("{sizes:?} bytes, log at most {longest}, {:?} an exec", begun.elapsed() / 3_000);
    assert!(longest < 4 << 20, "{longest}");
    assert!(sizes.iter().all(|size| *size < 8 << 20), "{sizes:?}");
    assert_clean(&env, "after all");
}
