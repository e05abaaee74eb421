//! Layers without an engine: the diff against a full walk, modes by flag and annotation, many at a time.

use serde_json::json;

use crate::support::bundle::Bundle;
use crate::support::walk::{Tree, assert_same, compare, walk};
use crate::support::{Cmd, Env, result};

/// Changes of every kind, each script an exec of its own.
pub const SCRIPTS: &[&str] = &[
    "echo x >/new; mkdir -p /d/e/f; echo y >/d/e/f/y; ln -s /nowhere /link; mkfifo /pipe; : >/empty",
    "echo more >>/new; echo z >/d/e/f/y; ln -sf /elsewhere /link",
    "chmod 4755 /new; chown 5:6 /d/e; touch -d @1000000000 /etc/passwd; chmod 0 /d/e/f",
    "rm -r /d; rm /link; echo file >/d",
    "rm /d; mkdir /d; echo again >/d/again; rm -r /home; mkdir -p /home/new; echo o >/home/new/o",
    "mv /etc/passwd /etc/passwd.old; mv /bin /bin2; mkdir /bin; /bin2/busybox cp -a /bin2/busybox /bin/busybox; /bin2/busybox --install -s /bin",
    "ln /bin/busybox /hard; ln /d/again /d/again2; rm /pipe; mkdir /pipe; cp /bin/busybox /bin/copy",
    "cd /d; : >'.wh.again'; : >'a,b:c'; mkdir 'x\\y'; : >\"$(printf 'new\\nline')\"; rm again",
    "dd if=/dev/zero of=/sparse bs=1 count=1 seek=5000000 2>/dev/null; mv /d/again2 /d/third",
];

/// Runs the scripts one by one. `see` is the truth, a full walk of HEAD: each exec's result and the diff since the
/// beginning are held against it, and each generation against what a rollback shows.
pub fn assert_told_and_undone(bundle: &Bundle, see: &dyn Fn() -> Tree) {
    let (env, id) = (bundle.env, bundle.id.as_str());
    let mut states = vec![see()];
    for (n, script) in SCRIPTS.iter().enumerate() {
        bundle.sh_with(["--env", "PATH=/bin:/bin2"], script).expect(0);
        let result = bundle.show();
        assert_eq!(result::disposition(&result), "committed", "{script}");
        assert_eq!(result::head(&result), n as u64 + 1);
        let now = see();
        assert_same(&result, &states[n], &now);
        assert_same(&env.json(["diff", id, "--recursive", "--json"]), &states[0], &now);
        states.push(now);
    }
    for n in [4, 7, 0, 9, 2, 6, 1, 8, 3, 5, 9, 0] {
        env.ok(["rollback", id, &n.to_string()]);
        let different = compare(&states[n], &see());
        assert!(different.is_empty(), "rollback {n}: {different:#?}");
    }
}

/// Every change is told and undone in what an exec sees, where layers are only stacked.
#[test]
fn every_change_is_told_and_undone_without_settling() {
    let env = Env::new();
    let bundle = Bundle::new(&env, ["sleep", "100000"]).annotate("dev.agentsbx.settle", "never");
    bundle.start();
    let before = walk(&bundle.rootfs);
    assert_told_and_undone(&bundle, &|| bundle.walk_as_exec());
    assert!(compare(&before, &walk(&bundle.rootfs)).is_empty());
}

/// Modes by flag, by annotation, and which of them wins.
#[test]
fn modes_come_from_flags_environment_and_annotations() {
    let env = Env::new();
    let bundle = Bundle::new(&env, ["sleep", "100000"]).annotate("dev.agentsbx.layer", "discard");
    bundle.start();
    let disposition = |options: &[&str]| {
        env.cmd(["exec"]).args(options).args([&bundle.id, "sh", "-c", "date +%s%N >/x"]).run().expect(0);
        result::disposition(&bundle.show()).to_owned()
    };
    assert_eq!(disposition(&[]), "discarded");
    assert_eq!(disposition(&["--env", "AGENTSBX_LAYER=hold"]), "held");
    assert_eq!(disposition(&["--layer", "commit", "--env", "AGENTSBX_LAYER=hold"]), "committed");
    assert_eq!(disposition(&["--layer", "commit-on-success"]), "committed");
    assert_eq!(disposition(&["--layer", "shared"]), "shared");
    let wrong = bundle.sh_with(["--layer", "no-such-mode"], "true");
    assert_ne!(wrong.code, 0);
    assert!(wrong.stderr.contains("no-such-mode"), "{}", wrong.stderr);
}

/// With `settle=never` HEAD lives in the store alone: execs see it, the root filesystem does not.
#[test]
fn settle_never_only_stacks() {
    let env = Env::new();
    let bundle = Bundle::new(&env, ["sleep", "100000"]).annotate("dev.agentsbx.settle", "never");
    bundle.start();
    let before = walk(&bundle.rootfs);
    for n in 0..30 {
        bundle.sh(&format!("echo {n} >/n; echo {n} >/file{n}; rm -f /file{}", n - 1)).expect(0);
    }
    assert_eq!(bundle.sh("cat /n; ls / | grep file").ok(), "29\nfile29");
    assert_same(&json!({"changes": []}), &before, &walk(&bundle.rootfs));
    env.ok(["rollback", &bundle.id, "10"]);
    assert_eq!(bundle.sh("cat /n; ls / | grep file").ok(), "9\nfile9");
    let diff = env.json(["diff", &bundle.id, "--json"]);
    let mut paths: Vec<_> =
        diff["changes"].as_array().expect("changes").iter().filter_map(|c| c["path"].as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["/file9", "/n"]);
}

/// Fifty at a time, with the same directory and different files in it: nothing is lost, numbers are never given twice.
#[test]
fn fifty_parallel_execs_lose_nothing() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let children: Vec<_> = (0..50)
        .map(|n| {
            let script = format!("mkdir -p /shared/dir; echo {n} >/shared/dir/{n}");
            env.cmd(["exec", &bundle.id, "sh", "-c", &script]).spawn()
        })
        .collect();
    for child in children {
        child.wait().expect(0);
    }
    let results = result::in_bundle(&bundle.dir);
    assert!(results.iter().all(|r| result::disposition(r) == "committed"), "{results:#?}");
    let mut heads: Vec<_> = results.iter().map(result::head).collect();
    heads.sort_unstable();
    assert_eq!(heads, (1..=50).collect::<Vec<_>>());
    assert_eq!(bundle.sh("ls /shared/dir | wc -l").ok(), "50");
}

/// A layer that was held and committed later stood in the log where its exec had been, above its own parent.
#[test]
fn the_log_has_no_generation_above_its_parent() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh_with(["--layer", "hold"], "echo held >/h").expect(0);
    let held = result::exec(&result::in_bundle(&bundle.dir)[0]).to_owned();
    bundle.sh("echo 1 >/1").expect(0);
    bundle.sh("echo 2 >/2").expect(0);
    env.ok(["commit", &bundle.id, &held]);
    let log = env.ok(["log", &bundle.id]);
    let rows: Vec<&str> =
        log.lines().filter_map(|line| line.strip_prefix(['*', '@'])?.split_whitespace().next()).collect();
    assert_eq!(rows, ["0", "1", "2", "3"], "{log}");
    assert!(log.lines().any(|line| line.starts_with("@  3") && line.contains("held")), "{log}");
}

/// What conflicts and what does not, each pair run at once from the same generation.
#[test]
fn conflicts_are_found_where_an_update_would_be_lost() {
    let env = Env::new();
    for (ours, theirs, conflict) in [
        ("echo a >/etc/passwd", "echo b >/etc/passwd", Some("/etc/passwd")),
        ("echo a >/etc/a", "echo b >/etc/b", None),
        ("rm -r /home", "echo b >/home/user/b", Some("/home")),
        ("echo a >/home/user/a", "rm -r /home", Some("/home")),
        ("chmod 600 /etc/group", "echo b >>/etc/group", Some("/etc/group")),
        ("mkdir /d; echo a >/d/a", "mkdir /d; echo b >/d/b", None),
        ("mkdir /d; echo a >/d/same", "mkdir /d; echo b >/d/same", Some("/d/same")),
        ("mv /etc/group /etc/moved", "echo b >>/etc/group", Some("/etc/group")),
        ("rm /etc/group", "rm /etc/passwd", None),
        ("rm -r /home; mkdir -p /home/user", "echo b >/home/user/b", Some("/home")),
    ] {
        let bundle = Bundle::running(&env);
        let gate = "while [ ! -e /dev/shm/go ]; do sleep 0.02; done";
        let late =
            env.cmd(["exec", &bundle.id, "sh", "-c", &format!("touch /dev/shm/ready; {gate}; {theirs}")]).spawn();
        crate::support::wait_until("ready", std::time::Duration::from_secs(10), || {
            bundle.sh_with(["--layer", "discard"], "ls /dev/shm/ready").code == 0
        });
        bundle.sh(ours).expect(0);
        let first = bundle.show();
        assert_eq!(result::disposition(&first), "committed", "{ours}");
        bundle.sh_with(["--layer", "discard"], "touch /dev/shm/go").expect(0);
        late.wait().expect(0);
        let results = result::in_bundle(&bundle.dir);
        let second =
            results.iter().find(|r| r["args"].to_string().contains("/dev/shm/ready; while")).expect("a result");
        match conflict {
            None => assert_eq!(result::disposition(second), "committed", "{ours} | {theirs}: {second}"),
            Some(path) => {
                assert_eq!(result::disposition(second), "conflict", "{ours} | {theirs}: {second}");
                assert!(result::conflicts(second).contains(path), "{ours} | {theirs}: {second}");
                assert_eq!(second["generation"]["head"], first["generation"]["head"]);
                // Decided, it is in conflict with nobody any more.
                let exec = result::exec(second);
                env.ok(["commit", &bundle.id, exec, "--force"]);
                let decided = env.json(["show", &bundle.id, exec, "--json"]);
                assert_eq!(result::disposition(&decided), "committed");
                assert_eq!(result::conflicts(&decided), "[]", "{decided}");
            }
        }
        env.ok(["delete", "--force", &bundle.id]);
    }
}

/// An exec that started before a rollback cannot commit onto what it was rolled back to.
#[test]
fn a_rollback_meanwhile_is_a_conflict() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("echo 1 >/n").expect(0);
    let script = "touch /dev/shm/ready; while [ ! -e /dev/shm/go ]; do sleep 0.02; done; echo late >/late";
    let late = env.cmd(["exec", &bundle.id, "sh", "-c", script]).spawn();
    crate::support::wait_until("ready", std::time::Duration::from_secs(10), || {
        bundle.sh_with(["--layer", "discard"], "ls /dev/shm/ready").code == 0
    });
    env.ok(["rollback", &bundle.id, "0"]);
    bundle.sh_with(["--layer", "discard"], "touch /dev/shm/go").expect(0);
    late.wait().expect(0);
    let results = result::in_bundle(&bundle.dir);
    let second = results.iter().find(|r| r["args"].to_string().contains("late")).expect("a result");
    assert_eq!(result::disposition(second), "conflict", "{second}");
    bundle.sh("ls /late /n").expect(1);
}

/// A container of another store is told from the one that has its number here. Their layers were mixed up: the exec ran
/// in the other's root filesystem, and `delete` dropped the other's history.
#[test]
fn stores_are_not_mixed_up() {
    let env = Env::new();
    let here = Bundle::running(&env);
    here.sh("echo here >/x").expect(0);
    let elsewhere = Env {
        store: env.dir.join("elsewhere"),
        root: env.root.clone(),
        dir: env.dir.clone(),
        config: env.config.clone(),
        binary: env.binary.clone(),
    };
    let there = Bundle::running(&elsewhere);
    there.sh("echo there >/x").expect(0);
    // Each is the first of its store.
    let refused = env.run(["exec", &there.id, "cat", "/x"]).expect(255);
    assert!(refused.stderr.contains("another --store"), "{}", refused.stderr);
    env.ok(["delete", "--force", &there.id]);
    assert_eq!(here.sh("cat /x").ok(), "here");
    let told = elsewhere.ok(["recover"]);
    assert!(told.contains("its history dropped"), "{told}");
}

/// A directory of the host's that can only be read, for as long as this is there.
struct ReadOnly<'a>(&'a std::path::Path);

impl<'a> ReadOnly<'a> {
    fn make(dir: &'a std::path::Path) -> ReadOnly<'a> {
        Cmd::new("mount").arg("--bind").args([dir, dir]).ok();
        let made = ReadOnly(dir);
        Cmd::new("mount").args(["-o", "remount,bind,ro"]).arg(dir).ok();
        made
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        Cmd::new("umount").arg(self.0).run();
    }
}

/// commit, discard, rollback and reset failed where the store had done it and only the bundle could not be written: whoever
/// does again what failed got an error, or went back twice.
#[test]
fn what_the_store_has_done_is_done_whatever_the_bundle_takes() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let id = &*bundle.id;
    let held = |script: &str| {
        bundle.sh_with(["--layer", "hold"], script).expect(0);
        bundle.show()["exec"].as_str().expect("an exec").to_owned()
    };
    let (one, other) = (held("echo 1 >/one"), held("echo 2 >/other"));
    bundle.sh("echo 3 >/x").expect(0);
    let read_only = ReadOnly::make(&bundle.dir);
    for (verb, more, done) in [
        ("commit", Some(&*one), format!("{one} committed as generation 2")),
        ("discard", Some(&*other), format!("{other} discarded")),
        ("rollback", Some("@-1"), "HEAD 2 -> 1".to_owned()),
        ("reset", None, "0 execs killed, HEAD 1 -> 0".to_owned()),
    ] {
        let log = env.dir.join(format!("{verb}.log"));
        let output = env.cmd(["--log"]).arg(&log).args([verb, id]).args(more).run().expect(0);
        assert_eq!(output.stdout.trim_end(), done);
        for told in [&output.stderr, &std::fs::read_to_string(&log).expect("a log")] {
            let why = ["it is done", &*bundle.dir.to_string_lossy(), "ead-only file system"];
            assert!(why.iter().all(|word| told.contains(word)), "{verb}: {told}");
        }
    }
    // The state directory is somewhere else, and has it.
    assert_eq!(bundle.state()["annotations"]["dev.agentsbx.generation"], "0");
    assert_eq!(env.json(["show", id, &one, "--json"])["disposition"], "committed");
    // As at an exec's end: its code is the command's.
    bundle.sh("echo 4 >/y; exit 7").expect(7);
    assert_eq!(bundle.state()["annotations"]["dev.agentsbx.generation"], "3");
    drop(read_only);
    bundle.sh("echo 5 >/z").expect(0);
    assert_eq!(bundle.read()["annotations"]["dev.agentsbx.generation"], "4");
}
