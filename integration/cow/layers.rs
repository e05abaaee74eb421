//! What execs write at a copy-on-write mount: in their layers, told, committed, undone, dropped like all else.

use std::time::Duration;

use super::{assert_sound, assert_untouched, bundle, layers, project, seen, told};
use crate::support::walk::{assert_same, compare, walk};
use crate::support::{Env, result, wait_until};

/// Changes of every kind, each script an exec of its own, with `/work` as working directory.
const SCRIPTS: &[&str] = &[
    "echo x >new; mkdir -p d/e/f; echo y >d/e/f/y; ln -s /nowhere newlink; mkfifo newpipe; : >nothing",
    "echo more >>src/one; echo z >d/e/f/y; ln -sf /elsewhere link; chmod 4755 run; chown 5:6 src",
    "rm -r src/deep; rm link pipe; echo file >src/deep; touch -d @1234567890 src/two",
    "rm src/deep; mkdir src/deep; echo again >src/deep/again; rm -r empty; mkdir -p empty/new",
    "mv src/one src/first; mv src moved; mkdir src; cp -a moved/two src/two; chmod 700 .",
    "ln moved/two linked; rm 'a,b:c' \"$(printf 'new\\nline')\"; mkdir 'back\\dir'; : >'.wh.again'",
    "dd if=/dev/zero of=sparse bs=1 count=1 seek=6000000 conv=notrunc 2>/dev/null; rm -r d; echo root >/root-too",
];

/// A file with a hole counts alike in the root filesystem and at a copy-on-write mount: with what it takes.
#[test]
fn holes_count_nothing_wherever_they_are() {
    let env = Env::new();
    let host = project(&env);
    let bundle = bundle(&env, &host);
    bundle.start();
    for dir in ["/work", "/root"] {
        let script =
            format!("dd if=/dev/zero of={dir}/big bs=1M count=2 conv=fsync 2>/dev/null; truncate -s 100G {dir}/big");
        bundle.sh(&script).expect(0);
        let result = bundle.show();
        let bytes = result["summary"]["bytes"].as_u64().expect("a number");
        assert!((2 << 20..3 << 20).contains(&bytes), "{dir}: {result}");
        assert_eq!(result["changes"][0]["size"], 100_u64 << 30, "{dir}: {result}");
        let stat = env.ok(["diff", &bundle.id, "@-1..@", "--stat"]);
        assert!(stat.contains("2.0 MiB") && !stat.contains("GiB"), "{dir}: {stat}");
    }
}

/// Every change is told and undone, in what an exec sees; the host's directory stays as it is all the time, and when the
/// container is gone nothing of it is left in the store.
#[test]
fn every_change_is_told_and_undone_and_the_host_is_never_written() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let bundle = bundle(&env, &host);
    bundle.start();
    let id = bundle.id.as_str();
    let mut states = vec![seen(&bundle)];
    assert!(compare(&super::below("/work", walk(&host)), &states[0]).is_empty());
    for (n, script) in SCRIPTS.iter().enumerate() {
        bundle.sh_with(["--cwd", "/work"], script).expect(0);
        let result = bundle.show();
        assert_eq!(result::disposition(&result), "committed", "{script}: {result}");
        let now = seen(&bundle);
        let mine = |diff: &serde_json::Value| {
            let mut diff = diff.clone();
            diff["changes"].as_array_mut().expect("changes").retain(|c| c["path"] != "/root-too");
            diff
        };
        assert_same(&mine(&result), &states[n], &now);
        assert_same(&mine(&env.json(["diff", id, "--recursive", "--json"])), &states[0], &now);
        assert_untouched(&before, &host);
        states.push(now);
    }
    for n in [3, 7, 0, 5, 2, 6, 1, 4, 7, 0] {
        env.ok(["rollback", id, &n.to_string()]);
        let different = compare(&states[n], &seen(&bundle));
        assert!(different.is_empty(), "rollback {n}: {different:#?}");
    }
    assert_sound(&env);
    assert_untouched(&before, &host);
    env.ok(["delete", "--force", id]);
    assert_eq!(layers(&env), 0);
    assert_sound(&env);
    assert_untouched(&before, &host);
}

/// What the first process writes is seen by execs and not by the host; an exec that runs in its namespace writes as it does.
#[test]
fn the_first_process_and_shared_execs_write_to_a_layer_too() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let mut bundle = bundle(&env, &host);
    let script =
        "echo first >/work/first; echo more >>/work/src/one; rm /work/src/two; echo ready >/dev/shm/go; sleep 99999";
    bundle.config["process"]["args"] = serde_json::json!(["sh", "-c", script]);
    bundle.config["process"]["cwd"] = "/work/made/for/it".into();
    bundle.start();
    wait_until("the first process", Duration::from_secs(10), || bundle.sh("test -e /dev/shm/go").code == 0);
    assert_eq!(
        bundle.sh("cd /work; cat first src/one; ls src; pwd -P").ok(),
        "first\none\nmore\ndeep\nhard\none\n/work"
    );
    assert_eq!(bundle.sh("cd /work/made/for/it && ls -d .").ok(), ".");
    bundle.sh("echo exec >>/work/first; echo exec >>/work/src/hard").expect(0);
    assert_eq!(told(&bundle.show()), ["modified /work/first", "modified /work/src/hard"].map(String::from).into());
    bundle.sh_with(["--layer", "shared"], "echo shared >/work/shared; cat /work/first").expect(0);
    assert_eq!(bundle.sh("cat /work/shared /work/first").ok(), "shared\nfirst\nexec");
    assert_untouched(&before, &host);
    env.ok(["delete", "--force", &bundle.id]);
    assert_eq!(layers(&env), 0);
    assert_untouched(&before, &host);
}

/// Twenty execs at once lose nothing, and two that change the same file conflict, below the mount as elsewhere.
#[test]
fn parallel_execs_merge_or_conflict() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let bundle = bundle(&env, &host);
    bundle.start();
    let children: Vec<_> = (0..20)
        .map(|n| {
            env.cmd(["exec", &bundle.id, "sh", "-c", &format!("mkdir -p /work/all; echo {n} >/work/all/{n}")]).spawn()
        })
        .collect();
    for child in children {
        child.wait().expect(0);
    }
    assert_eq!(bundle.sh("ls /work/all | wc -l").ok(), "20");
    let gate = "touch /dev/shm/ready; while [ ! -e /dev/shm/go ]; do sleep 0.02; done";
    let late = env.cmd(["exec", &bundle.id, "sh", "-c", &format!("{gate}; echo late >>/work/src/one")]).spawn();
    wait_until("ready", Duration::from_secs(10), || bundle.sh("test -e /dev/shm/ready").code == 0);
    bundle.sh("echo early >>/work/src/one").expect(0);
    bundle.sh("touch /dev/shm/go").expect(0);
    late.wait().expect(0);
    let results = result::in_bundle(&bundle.dir);
    let late = results.iter().find(|r| r["args"].to_string().contains("late")).expect("a result");
    assert_eq!(result::disposition(late), "conflict", "{late}");
    assert!(result::conflicts(late).contains("/work/src/one"), "{late}");
    env.ok(["commit", "--force", &bundle.id, result::exec(late)]);
    assert_eq!(bundle.sh("cat /work/src/one").ok(), "one\nlate");
    assert_sound(&env);
    assert_untouched(&before, &host);
}

/// Held, committed later, discarded; forty generations, merged for mounting, and back.
#[test]
fn held_discarded_and_merged_layers() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let bundle = bundle(&env, &host);
    bundle.start();
    let id = bundle.id.as_str();
    bundle.sh_with(["--layer", "hold"], "echo held >/work/held").expect(0);
    let held = result::exec(&bundle.show()).to_owned();
    bundle.sh_with(["--layer", "discard"], "echo gone >/work/gone").expect(0);
    bundle.sh_with(["--layer", "hold"], "echo dropped >/work/dropped").expect(0);
    let dropped = result::exec(&bundle.show()).to_owned();
    env.ok(["discard", id, &dropped]);
    bundle.sh("ls /work/held /work/gone /work/dropped").expect(1);
    env.ok(["commit", id, &held]);
    assert_eq!(bundle.sh("cat /work/held").ok(), "held");
    for n in 0..40 {
        bundle.sh(&format!("cd /work; echo {n} >n; echo {n} >f{n}; rm -f f{} src/two; rm -r src/deep; mkdir src/deep; echo {n} >src/deep/n", n - 1)).expect(0);
    }
    assert_eq!(bundle.sh("cd /work; cat n src/deep/*; ls -d f*; ls src").ok(), "39\n39\nf39\ndeep\nhard\none");
    let now = seen(&bundle);
    assert_same(&env.json(["diff", id, "--recursive", "--json"]), &super::below("/work", walk(&host)), &now);
    env.ok(["rollback", id, "11"]);
    assert_eq!(bundle.sh("cd /work; cat n src/deep/*; ls -d f*; ls held").ok(), "9\n9\nf9\nheld");
    env.ok(["rollback", id, "0"]);
    assert!(compare(&super::below("/work", walk(&host)), &seen(&bundle)).is_empty());
    let patch = env.ok(["diff", id, "0..3", "--patch"]);
    assert!(patch.contains("+++ b/work/f1") && patch.contains("--- a/work/src/two"), "{patch}");
    assert_sound(&env);
    env.ok(["gc"]);
    assert_sound(&env);
    assert_untouched(&before, &host);
}

/// A supervisor that is killed leaves a layer that is held, with what the command wrote at the mount.
#[test]
fn a_killed_supervisor_is_repaired() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let bundle = bundle(&env, &host);
    bundle.start();
    bundle.sh("echo one >/work/committed").expect(0);
    let exec =
        env.cmd(["exec", &bundle.id, "sh", "-c", "echo lost >/work/lost; touch /dev/shm/ready; sleep 99999"]).spawn();
    wait_until("ready", Duration::from_secs(10), || bundle.sh("test -e /dev/shm/ready").code == 0);
    exec.signal(rustix::process::Signal::KILL);
    exec.wait();
    env.ok(["recover"]);
    let results = result::in_bundle(&bundle.dir);
    let lost = results.iter().find(|r| r["args"].to_string().contains("lost")).expect("a result");
    assert_eq!(result::disposition(lost), "aborted");
    assert!(told(lost).contains("added /work/lost"), "{lost}");
    assert_sound(&env);
    env.ok(["commit", &bundle.id, result::exec(lost)]);
    assert_eq!(bundle.sh("cat /work/lost /work/committed").ok(), "lost\none");
    assert_untouched(&before, &host);
}

/// The record of a container that is gone goes with its layers, those of the first process too.
#[test]
fn recover_drops_the_layers_of_a_container_that_is_gone() {
    let env = Env::new();
    let host = project(&env);
    let bundle = bundle(&env, &host);
    bundle.start();
    bundle.sh("echo one >/work/one").expect(0);
    let pid = bundle.state()["pid"].as_i64().expect("a pid") as i32;
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).expect("a pid"), rustix::process::Signal::KILL)
        .expect("kill");
    wait_until("the end", Duration::from_secs(10), || bundle.state()["status"] == "stopped");
    assert!(told(&env.json(["diff", &bundle.id, "--json"])).contains("added /work/one"), "also when it has ended");
    std::fs::remove_dir_all(env.root.join(&bundle.id)).expect("remove the state directory");
    env.ok(["recover"]);
    assert_eq!(layers(&env), 0);
    assert_sound(&env);
}
