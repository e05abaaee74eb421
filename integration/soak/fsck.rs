//! `fsck` itself: no false alarm on a store at work, what it repairs and what it leaves alone, its codes and its JSON.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{assert_clean, fsck};
use crate::support::bundle::Bundle;
use crate::support::{Cmd, Env, wait_until};

/// Looks again and again while execs of every kind run and containers come and go.
fn at_work(limit: Duration) {
    let env = Env::new();
    let bundle = Bundle::new(&env, super::leaks::REAPER);
    bundle.start();
    let done = AtomicBool::new(false);
    let working = || !done.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (bundle, working) = (&bundle, &working);
            scope.spawn(move || {
                for n in 0.. {
                    if !working() {
                        return;
                    }
                    let script = format!("echo {n} >/f-{worker}-{n}; mkdir /d-{worker}-{n}");
                    let layer = ["commit", "discard", "hold", "commit"][n % 4];
                    bundle.sh_with(["--layer", layer], &script).expect(0);
                    if layer == "hold" {
                        let results = crate::support::result::in_bundle(&bundle.dir);
                        let held =
                            results.iter().find(|r| r["args"].to_string().contains(&script)).expect("its result");
                        bundle.env.ok(["discard", &bundle.id, crate::support::result::exec(held)]);
                    }
                }
            });
        }
        scope.spawn(|| {
            while working() {
                let other = Bundle::running(&env);
                other.sh("echo x >/x").expect(0);
                env.ok(["delete", "--force", &other.id]);
                fs::remove_dir_all(&other.dir).expect("remove the bundle");
            }
        });
        let look = || {
            let begun = Instant::now();
            let mut looks = 0;
            while begun.elapsed() < limit {
                let report = fsck(&env);
                assert_eq!(report["problems"], serde_json::json!([]), "{report:#}");
                looks += 1;
            }
            looks
        };
        let looks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
        done.store(true, Ordering::Relaxed);
        match looks {
            Ok(looks) => println!("{looks} looks"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    });
    assert_clean(&env, "after all");
}

/// The short form.
#[test]
fn a_store_at_work_is_clean() {
    at_work(Duration::from_secs(3));
}

/// The long one.
#[test]
#[ignore = "a minute"]
fn a_store_at_work_is_clean_long() {
    at_work(Duration::from_secs(super::rounds(60)));
}

/// What killed processes left is told, with what would be done; `--dry-run` does nothing, `--repair` does it.
#[test]
fn what_was_left_is_repaired() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("echo 1 >/x").expect(0);
    let exec = env.cmd(["exec", &bundle.id, "sh", "-c", "echo 2 >/x; touch /dev/shm/ready; sleep 65436"]).spawn();
    wait_until("the exec", Duration::from_secs(10), || {
        bundle.sh_with(["--layer", "shared"], "ls /dev/shm/ready").code == 0
    });
    assert_clean(&env, "an exec that runs");
    exec.signal(Signal::KILL);
    exec.wait();
    let stray = "01JDVW3K6Q8ZJ4M2T9X5R7C1AB";
    fs::create_dir_all(env.store.join("layers").join(stray).join("upper/d")).expect("make a stray layer");
    fs::create_dir_all(env.store.join("trash/x")).expect("make trash");
    fs::write(env.store.join("locks").join(stray), "").expect("make a stray lock");
    fs::write(bundle.dir.join(".agentsbx-tmp-1-1"), "").expect("make litter");
    let group = Cmd::new("find").args(["/sys/fs/cgroup/pids", "-type", "d", "-name", &bundle.id]).ok();
    fs::create_dir(format!("{group}/agentsbx-{stray}")).expect("make a stray cgroup");

    let told = env.run(["fsck"]).expect(1).stdout;
    let words =
        ["has no end", &format!("layer {stray}"), "trash x", &format!("lock of exec {stray}"), "-tmp-1-1", "cgroup "];
    for word in words {
        assert!(told.contains(word), "no {word:?} in {told}");
    }
    assert!(told.contains("6 problems, 6 of which"), "{told}");
    let planned = env.run(["fsck", "--repair", "--dry-run"]).expect(1).stdout;
    assert_eq!(planned.matches("would be").count(), 6, "{planned}");
    assert_eq!(env.run(["fsck"]).expect(1).stdout, told, "looking changes nothing");
    let repaired = env.run(["fsck", "--repair"]).expect(0).stdout;
    assert!(repaired.contains("repaired") && repaired.ends_with("clean\n"), "{repaired}");
    assert_clean(&env, "repaired");
    assert!(!env.store.join("layers").join(stray).exists() && !bundle.dir.join(".agentsbx-tmp-1-1").exists());
    // What the killed exec had done is held.
    let results = crate::support::result::in_bundle(&bundle.dir);
    let aborted = results.iter().find(|r| r["disposition"] == "aborted").expect("the killed exec's result");
    env.ok(["commit", &bundle.id, crate::support::result::exec(aborted)]);
    assert_eq!(bundle.sh("cat /x").ok(), "2");
}

/// What is of another kind than its name says, or gone, is told in words; the rest is looked at all the same, and nothing
/// is made by looking.
#[test]
fn odd_and_missing_entries_are_told() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("echo 1 >/x").expect(0);
    // A plain file with a layer's name stopped every check and collection.
    fs::write(env.store.join("layers/01JDVW3K6Q8ZJ4M2T9X5R7C1AB"), "").expect("make a file");
    let told = env.run(["fsck"]).expect(0).stdout;
    assert!(told.contains("01JDVW3K6Q8ZJ4M2T9X5R7C1AB: not of the store's making"), "{told}");
    env.ok(["gc"]);
    env.ok(["recover"]);
    fs::remove_file(env.store.join("layers/01JDVW3K6Q8ZJ4M2T9X5R7C1AB")).expect("remove it");
    // The error about a lost database made an empty one.
    let kept = env.dir.join("kept");
    fs::create_dir(&kept).expect("make a directory");
    Cmd::new("sh").args(["-c", "mv \"$0\"/db.sqlite* \"$1\""]).arg(&env.store).arg(&kept).ok();
    let lost = env.run(["log"]).expect(1).stderr;
    assert!(lost.contains("db.sqlite") && !env.store.join("db.sqlite").exists(), "{lost}");
    Cmd::new("sh").args(["-c", "mv \"$1\"/db.sqlite* \"$0\""]).arg(&env.store).arg(&kept).ok();
    let layer = fs::read_dir(env.store.join("layers")).expect("layers").flatten().next().expect("a layer").path();
    let away = env.dir.join("away");
    fs::rename(layer.join("work"), &away).expect("take a directory away");
    let told = env.run(["fsck"]).expect(1).stdout;
    assert!(told.contains(": a directory is missing: it does not hold that"), "{told}");
    assert!(told.contains("were not looked at"), "{told}");
    fs::rename(&away, layer.join("work")).expect("put it back");
    assert_clean(&env, "put back");
}

/// A mount inside the store is for a person to look at: it is told and left alone, and so is what lies under it.
#[test]
fn a_mount_in_the_store_is_told() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("mkdir /d").expect(0);
    let layer = fs::read_dir(env.store.join("layers")).expect("layers").flatten().next().expect("a layer").path();
    let point = layer.join("upper/d");
    Cmd::new("mount").args(["-t", "tmpfs", "none"]).arg(&point).ok();
    let report = fsck(&env);
    env.run(["fsck", "--repair"]).expect(1);
    let still = crate::support::engines::mounts_below(&env.store);
    Cmd::new("umount").arg(&point).ok();
    assert_eq!(report["problems"][0]["repair"], "hand", "{report:#}");
    assert!(report["problems"].to_string().contains("mounted inside the store"), "{report:#}");
    assert_eq!(still.len(), 1);
    assert_clean(&env, "after all");
}

/// Containers that no runtime knows any more, as after a restart of the host.
#[test]
fn a_lost_runtime_root_is_told() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("echo 1 >/x").expect(0);
    env.ok(["kill", &bundle.id, "KILL"]);
    wait_until("the end", Duration::from_secs(10), || bundle.state()["status"] == "stopped");
    Cmd::new("rm").arg("-r").arg(&env.root).ok();
    // It said that the layer would be kept.
    let planned = env.run(["fsck", "--repair", "--dry-run"]).expect(1).stdout;
    assert!(planned.contains("would be dropped, with all its generations"), "{planned}");
    let report = fsck(&env);
    assert!(report["problems"].to_string().contains("does not know it any more"), "{report:#}");
    env.ok(["fsck", "--repair"]);
    assert_clean(&env, "repaired");
    let group = format!("*{}/{}*", crate::support::env::process().cgroup, bundle.id);
    Cmd::new("find").args(["/sys/fs/cgroup", "-depth", "-type", "d", "-path", &group, "-delete"]).run();
}

/// No store is not a clean store.
#[test]
fn there_is_nothing_to_check() {
    let env = Env::new();
    let output = env.run(["fsck"]).expect(2);
    assert!(output.stderr.contains("there is no store at"), "{}", output.stderr);
    assert!(!env.store.exists(), "looking makes nothing");
    env.run(["fsck", "--dry-run"]).expect(1);
}
