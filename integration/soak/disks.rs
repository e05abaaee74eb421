//! Disks that fail: full at any moment, over quota, read-only; and the kinds of file system that a store can be on.

use super::assert_clean;
use super::census::assert_gone;
use super::disk::Disk;
use super::leaks::REAPER;
use super::random::Random;
use crate::support::bundle::Bundle;
use crate::support::{Cmd, Env, Output};

fn on(disk: &Disk) -> Env {
    let mut env = Env::new();
    env.store = disk.dir.join("store");
    env
}

/// It did not work because there was no room, or it did.
#[track_caller]
fn assert_full_or(output: &Output, codes: &[i32], when: &str) {
    let full = ["o space left", "disk is full", "quota exceeded"].iter().any(|w| output.both().contains(w));
    let code = output.code;
    assert!(codes.contains(&code) || (full && [1, 255].contains(&code)), "{when}: code {code}: {}", output.both());
}

/// With any amount of room left, every verb works or says that the disk is full; what was committed stays, and once there
/// is room all goes on as if nothing had been.
fn full(lefts: &[u64]) {
    let disk = Disk::ext4(64);
    let env = on(&disk);
    for left in lefts {
        let when = format!("with {left} KiB left");
        let bundle = Bundle::new(&env, REAPER);
        bundle.start();
        let id = bundle.id.as_str();
        for n in 1..=3 {
            bundle.sh(&format!("echo {n} >/x")).expect(0);
        }
        // Held, so that there is something to decide on.
        bundle.sh_with(["--layer", "hold"], "echo held >/held; head -c 100000 /dev/zero >/big").expect(0);
        let held = bundle.show()["exec"].as_str().expect("an exec").to_owned();
        disk.fill(*left);
        // The command's own code, whether its layer can be committed or not.
        let output = bundle.sh(&format!("echo {when} >/x || exit 9; exit 5"));
        assert_full_or(&output, &[5, 9], &format!("exec {when}"));
        let output = bundle.sh("dd if=/dev/zero of=/fills bs=64k; exit 7");
        assert_full_or(&output, &[7], &format!("an exec that fills the disk, {when}"));
        assert_full_or(&bundle.sh("exit 3"), &[3], &format!("an exec that writes nothing, {when}"));
        for verb in [&["log", id][..], &["show", id], &["diff", id], &["rollback", id, "3"], &["fsck"]] {
            // fsck may have found what an exec could not take away itself.
            let codes: &[i32] = if verb[0] == "fsck" { &[0, 1] } else { &[0] };
            assert_full_or(&env.cmd(verb).run(), codes, &format!("{verb:?} {when}"));
        }
        assert_full_or(&env.run(["discard", id, &held]), &[0], &format!("discard {when}"));
        assert_full_or(&env.run(["recover"]), &[0], &format!("recover {when}"));
        let other = Bundle::new(&env, REAPER);
        other.write();
        let run = env.cmd(["run", "--detach", "--bundle"]).arg(&other.dir).arg(&other.id);
        let output = run.output_to(other.dir.join("out")).run();
        assert_full_or(&output, &[0], &format!("run {when}"));
        env.cmd(["delete", "--force", &other.id]).run().expect(0);
        assert_gone(&env, &other.id);
        disk.drain();
        env.ok(["recover"]);
        assert_clean(&env, &when);
        let shows = bundle.sh_with(["--layer", "discard"], "cat /x").ok();
        assert!(shows == "3" || shows == when, "{when}: {shows:?}");
        env.ok(["rollback", id, "3"]);
        assert_eq!(bundle.sh("cat /x").ok(), "3", "{when}");
        env.ok(["delete", "--force", id]);
        env.ok(["recover"]);
        assert_clean(&env, "after delete");
        assert_eq!(std::fs::read_dir(env.store.join("layers")).expect("layers").count(), 0);
    }
}

/// A few amounts.
#[test]
fn a_full_disk() {
    full(&[0, 64, 2000]);
}

/// Many.
#[test]
#[ignore = "a minute"]
fn a_full_disk_long() {
    let mut random = Random::new("room left, KiB");
    let lefts: Vec<u64> = (0..super::rounds(30)).map(|n| random.below(10 << (n % 10))).collect();
    full(&lefts);
}

/// A quota on the store is as a full disk, in other words. (Of btrfs: the kernel at hand may know no quotas of ext4.)
#[test]
fn over_quota() {
    let disk = Disk::new(&["mkfs.btrfs", "-q"], 256, "rw");
    let btrfs = |args: &[&str]| Cmd::new("btrfs").args(args).ok();
    let volume = disk.dir.join("volume").display().to_string();
    btrfs(&["quota", "enable", &disk.dir.display().to_string()]);
    btrfs(&["subvolume", "create", &volume]);
    Cmd::new("chmod").args(["0700", &volume]).ok();
    let mut env = Env::new();
    env.store = disk.dir.join("volume/store");
    let bundle = Bundle::new(&env, REAPER);
    bundle.start();
    bundle.sh("echo 1 >/x").expect(0);
    btrfs(&["qgroup", "limit", "24M", &volume]);
    let output = bundle.sh("dd if=/dev/zero of=/big bs=64k count=1000; exit 7");
    assert_full_or(&output, &[7], "over quota");
    assert!(output.both().contains("uota exceeded"), "no quota: {}", output.both());
    assert_full_or(&bundle.sh("exit 3"), &[3], "over quota, nothing written");
    assert_full_or(&env.run(["rollback", &bundle.id, "1"]), &[0], "rollback over quota");
    btrfs(&["qgroup", "limit", "none", &volume]);
    env.ok(["recover"]);
    assert_clean(&env, "after the quota");
    env.ok(["rollback", &bundle.id, "1"]);
    assert_eq!(bundle.sh("cat /x").ok(), "1");
}

/// On a read-only store: what only reads works, all else says so, and nothing of it stays.
#[test]
fn a_read_only_store() {
    let disk = Disk::ext4(64);
    let env = on(&disk);
    let bundle = Bundle::new(&env, REAPER);
    bundle.start();
    bundle.sh("echo 1 >/x").expect(0);
    bundle.sh("echo 2 >/x").expect(0);
    disk.remount("ro");
    // With the log beside the database, and without.
    for log in ["with a log", "without a log"] {
        assert_clean(&env, &format!("read-only, {log}"));
        assert!(env.ok(["log", &bundle.id]).contains("echo 2"), "{log}");
        assert!(env.ok(["log"]).contains(&bundle.id), "{log}");
        assert_eq!(env.json(["show", &bundle.id, "--json"])["generation"]["head"], 2, "{log}");
        assert_eq!(env.ok(["diff", &bundle.id, "1..2", "--name-only"]), "/x", "{log}");
        for verb in [&["exec", &bundle.id, "true"][..], &["rollback", &bundle.id, "1"], &["gc"], &["fsck", "--repair"]]
        {
            let output = env.cmd(verb).run();
            // There is nothing for these to do.
            let fine = ["fsck", "gc"].contains(&verb[0]) && output.code == 0;
            let said = output.both().to_lowercase();
            let told = output.code != 0 && (said.contains("read-only") || said.contains("readonly"));
            assert!(fine || told, "{verb:?}, {log}: code {}, {said}", output.code);
        }
        disk.remount("rw");
        let db = rusqlite::Connection::open(env.store.join("db.sqlite")).expect("open");
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("checkpoint");
        drop(db);
        disk.remount("ro");
    }
    // A container is there no less: it can be deleted, and its history goes when it can.
    env.ok(["delete", "--force", &bundle.id]);
    assert_gone(&env, &bundle.id);
    disk.remount("rw");
    env.ok(["recover"]);
    assert_clean(&env, "after all");
    assert_eq!(std::fs::read_dir(env.store.join("layers")).expect("layers").count(), 0);
}

/// A runtime root that can't be written: nothing is made.
#[test]
fn a_read_only_runtime_root() {
    let disk = Disk::ext4(16);
    let mut env = Env::new();
    env.root = disk.dir.join("root");
    disk.remount("ro");
    let bundle = Bundle::new(&env, REAPER);
    bundle.write();
    let run = env.cmd(["run", "--detach", "--bundle"]).arg(&bundle.dir).arg(&bundle.id);
    let output = run.output_to(bundle.dir.join("out")).run().expect(1);
    assert!(output.both().to_lowercase().contains("read-only file system"), "{}", output.both());
    assert_clean(&env, "after all");
}

/// Stores on every kind of file system that can hold one.
#[test]
fn kinds_of_file_systems() {
    let kinds: [(&[&str], u64, &str); 4] = [
        (&["mkfs.ext4", "-q"], 64, "rw"),
        (&["mkfs.xfs", "-q"], 300, "rw"),
        (&["mkfs.btrfs", "-q"], 128, "rw"),
        // Without space made sure of beforehand.
        (&["mkfs.ext4", "-q", "-b", "1024", "-O", "^has_journal,^extents,^64bit"], 64, "rw"),
    ];
    for (mkfs, size, options) in kinds {
        let disk = Disk::new(mkfs, size, options);
        let env = on(&disk);
        let bundle = Bundle::new(&env, REAPER);
        bundle.start();
        bundle.sh("echo 1 >/x; mkdir /d; mv /etc/passwd /d/p; ln -s x /l; chmod 600 /etc/group").expect(0);
        bundle.sh("rm -r /d; echo 2 >/x").expect(0);
        assert_eq!(bundle.sh("cat /x /l; ls -d /d").stdout, "2\n2\n", "{mkfs:?}");
        env.ok(["rollback", &bundle.id, "1"]);
        assert_eq!(bundle.sh("cat /x; ls /d").ok(), "1\np", "{mkfs:?}");
        bundle.sh("dd if=/dev/zero of=/big bs=64k; exit 7").expect(7);
        env.ok(["recover"]);
        assert_clean(&env, mkfs[0]);
        env.ok(["delete", "--force", &bundle.id]);
        env.ok(["recover"]);
        assert_clean(&env, mkfs[0]);
    }
}
