//! SIGKILL at any point: the next command repairs.

use std::time::Duration;

use rustix::process::Signal;

use crate::support::bundle::Bundle;
use crate::support::engines::mounts_below;
use crate::support::{Env, result, wait_until};

/// A supervisor that is killed takes its command along; the next command finds the exec `aborted`, its layer held, and
/// nothing of it running or mounted.
#[test]
fn a_killed_supervisor_is_repaired() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let mounts = mounts_below(&env.dir).len();
    let script = "echo done >/done; (setsid sleep 65432 &); touch /dev/shm/ready; sleep 65433";
    let supervisor = env.cmd(["exec", &bundle.id, "sh", "-c", script]).spawn();
    wait_until("the exec", Duration::from_secs(10), || {
        bundle.sh_with(["--layer", "discard"], "ls /dev/shm/ready").code == 0
    });
    supervisor.signal(Signal::KILL);
    supervisor.wait().expect(137);
    // The next command on the container does it by the way.
    bundle.sh("ls /done").expect(1);
    let processes = bundle.exec(["ps"]).ok();
    assert!(!processes.contains("6543"), "{processes}");
    assert_eq!(mounts_below(&env.dir).len(), mounts);
    let results = result::in_bundle(&bundle.dir);
    let aborted = results.iter().find(|r| r["args"].to_string().contains("65433")).expect("the killed exec's result");
    assert_eq!(result::disposition(aborted), "aborted");
    // What it had done is not lost.
    env.ok(["commit", &bundle.id, result::exec(aborted)]);
    assert_eq!(bundle.sh("cat /done").ok(), "done");
}

/// Killed at random points of its life, never does an exec lose what was committed or leave the container unfit for work.
#[test]
fn kills_at_any_point_lose_nothing() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let mut committed = Vec::new();
    for n in 0..40u64 {
        let script = format!("echo {n} >/file{n}; mkdir /dir{n}; echo {n} >/dir{n}/file");
        let child = env.cmd(["exec", &bundle.id, "sh", "-c", &script]).spawn();
        std::thread::sleep(Duration::from_micros(n * 997 % 40_000));
        child.signal(Signal::KILL);
        if child.wait().code == 0 {
            committed.push(n);
        }
        bundle.sh(&format!("echo {n} >/after{n}")).expect(0);
    }
    env.ok(["recover"]);
    for n in 0..40 {
        assert_eq!(bundle.sh(&format!("cat /after{n}")).ok(), n.to_string());
        let file = bundle.sh(&format!("cat /file{n} /dir{n}/file 2>/dev/null")).stdout;
        // All of it or none of it.
        assert!(file == format!("{n}\n{n}\n") || (file.is_empty() && !committed.contains(&n)), "{n}: {file:?}");
    }
    let history = env.ok(["log", &bundle.id]);
    assert!(history.contains("aborted"), "{history}");
}

/// The container's first process is killed while execs run: they end, their results are written, delete works.
#[test]
fn the_first_process_dies_under_its_execs() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let exec = env.cmd(["exec", &bundle.id, "sh", "-c", "echo x >/x; touch /dev/shm/ready; sleep 65434"]).spawn();
    wait_until("the exec", Duration::from_secs(10), || {
        bundle.sh_with(["--layer", "discard"], "ls /dev/shm/ready").code == 0
    });
    env.ok(["kill", &bundle.id, "KILL"]);
    exec.wait().expect(137);
    let results = result::in_bundle(&bundle.dir);
    assert!(results.iter().any(|r| r["args"].to_string().contains("65434")), "{results:#?}");
    wait_until("the end", Duration::from_secs(10), || bundle.state()["status"] == "stopped");
    env.ok(["delete", &bundle.id]);
    assert!(mounts_below(&env.dir).is_empty());
}
