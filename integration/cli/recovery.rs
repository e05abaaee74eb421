//! SIGKILL at any point: the next command repairs.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::bundle::Bundle;
use crate::support::engines::mounts_below;
use crate::support::env::unique;
use crate::support::{Cmd, Env, result, wait_until};

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

/// A small file system, mounted as long as this lives.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(size: &str) -> Tmpfs {
        let path = Env::new().dir.join(unique("tmpfs"));
        std::fs::create_dir_all(&path).expect("make a mount point");
        Cmd::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "none"]).arg(&path).ok();
        Tmpfs(path)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        Cmd::new("umount").arg(&self.0).run();
    }
}

/// A command that fills the store keeps its exit code, and the container and the store can be worked with and cleared
/// afterwards: every command on them failed, since each had a row or a file to write first.
#[test]
fn a_full_store_is_not_the_end() {
    let disk = Tmpfs::new("32m");
    let mut env = Env::new();
    env.store = disk.0.join("store");
    let bundle = Bundle::running(&env);
    bundle.sh("echo small >/small").expect(0);
    bundle.sh("head -c 100000000 /dev/zero >/big; exit 7").expect(7);
    assert_eq!(bundle.sh("cat /small").ok(), "small");
    bundle.sh("exit 3").expect(3);
    env.ok(["log", &bundle.id]);
    env.ok(["recover"]);
    env.ok(["delete", "--force", &bundle.id]);
    env.ok(["gc"]);
    let left: Vec<_> = std::fs::read_dir(env.store.join("layers")).expect("the store").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// What a killed supervisor left is repaired as far as it can be: the root file system of its container is gone, but
/// that of another is not, and nor is the way to either's history.
#[test]
fn a_lost_root_filesystem_does_not_stop_repairs() {
    let env = Env::new();
    let kill_one = |bundle: &Bundle| {
        let exec = env.cmd(["exec", &bundle.id, "sh", "-c", "touch /x /dev/shm/ready; sleep 65435"]).spawn();
        wait_until("the exec", Duration::from_secs(10), || {
            bundle.sh_with(["--layer", "discard"], "ls /dev/shm/ready").code == 0
        });
        exec.signal(Signal::KILL);
        exec.wait().expect(137);
    };
    let (lost, other) = (Bundle::running(&env), Bundle::running(&env));
    kill_one(&lost);
    kill_one(&other);
    std::fs::remove_dir_all(&lost.dir).expect("remove the bundle");
    let told = env.ok(["recover"]);
    assert_eq!(told.matches("aborted").count(), 2, "{told}");
    assert!(env.ok(["log", &lost.id]).contains("aborted"));
}

/// A supervisor that is killed before its exec has a row leaves no cgroup: it made them first, and nothing named them.
#[test]
fn no_cgroup_without_a_row() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("true").expect(0);
    let groups = || {
        let below = Cmd::new("find").args(["/sys/fs/cgroup", "-type", "d", "-name", "agentsbx-*"]).run();
        below.stdout.lines().filter(|l| l.contains(&bundle.id)).count()
    };
    let database = rusqlite::Connection::open(env.store.join("db.sqlite")).expect("the database");
    database.execute_batch("BEGIN IMMEDIATE").expect("lock the database");
    let exec = env.cmd(["exec", &bundle.id, "true"]).spawn();
    let locks = || std::fs::read_dir(env.store.join("locks")).expect("locks").count();
    wait_until("the exec", Duration::from_secs(10), || locks() > 0);
    // It waits for the database now, or is just about to.
    std::thread::sleep(Duration::from_millis(200));
    exec.signal(Signal::KILL);
    exec.wait().expect(137);
    database.execute_batch("ROLLBACK").expect("unlock the database");
    assert_eq!(groups(), 0);
}
