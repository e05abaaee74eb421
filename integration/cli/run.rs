//! From a bundle to a container and back to nothing.

use std::fs;
use std::time::Duration;

use crate::support::bundle::Bundle;
use crate::support::{Env, wait_until};

/// `run` in the foreground: output, exit code, and no container left.
#[test]
fn run_in_the_foreground_leaves_nothing() {
    let env = Env::new();
    for (script, code) in [("echo out; echo err >&2", 0), ("exit 7", 7), ("sh -c 'kill -9 $$'; exit $?", 137)] {
        let output = Bundle::new(&env, ["sh", "-c", script]).run().expect(code);
        if code == 0 {
            assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
        }
    }
    assert_eq!(env.ok(["list", "-q"]), "");
    let left: Vec<_> = fs::read_dir(&env.root).map(|d| d.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    assert!(left.is_empty(), "{left:?}");
}

/// `create`, `start`, `kill`, `delete`, with the states between and runc's words for what is refused.
#[test]
fn a_container_goes_through_its_states() {
    let env = Env::new();
    let bundle = Bundle::new(&env, ["sh", "-c", "trap 'exit 3' TERM; echo run >/ran; while :; do sleep 0.1; done"]);
    let id = bundle.id.as_str();
    bundle.write();
    let create = env.cmd(["create", "--bundle"]).arg(&bundle.dir).arg(id);
    create.output_to(bundle.dir.join("out")).run().expect(0);
    assert_eq!(bundle.state()["status"], "created");
    assert!(!bundle.rootfs.join("ran").exists());
    env.ok(["start", id]);
    assert_eq!(bundle.state()["status"], "running");
    wait_until("the first process", Duration::from_secs(10), || bundle.rootfs.join("ran").exists());
    let again = env.run(["start", id]).expect(1);
    assert!(again.stderr.contains("cannot start an already running container"), "{}", again.stderr);
    let running = env.run(["delete", id]).expect(1);
    assert!(running.stderr.contains("that is not stopped"), "{}", running.stderr);
    env.ok(["kill", id, "TERM"]);
    wait_until("the end", Duration::from_secs(10), || bundle.state()["status"] == "stopped");
    let dead = env.run(["kill", id, "KILL"]).expect(1);
    assert!(dead.stderr.contains("container not running"), "{}", dead.stderr);
    env.ok(["delete", id]);
    let gone = env.run(["state", id]).expect(1);
    assert!(gone.stderr.contains("does not exist"), "{}", gone.stderr);
    env.ok(["delete", "--force", id]);
}

/// The same bundle can be run again, with the same id and with another.
#[test]
fn a_bundle_can_be_used_again() {
    let env = Env::new();
    let bundle = Bundle::new(&env, ["sh", "-c", "cat /proc/sys/kernel/hostname"]);
    for _ in 0..3 {
        assert_eq!(bundle.run().ok(), "box");
    }
}

/// What cannot be started says so in runc's words, with exit code 1, and leaves no container.
#[test]
fn what_cannot_be_started_says_so() {
    let env = Env::new();
    for (args, words) in [
        (["no-such-command"], "executable file not found in $PATH"),
        (["/no/such/file"], "no such file or directory"),
        (["/etc/passwd"], "permission denied"),
    ] {
        let output = Bundle::new(&env, args).run();
        assert_ne!(output.code, 0);
        assert!(output.stderr.contains(words), "{words} not in {}", output.stderr);
    }
    assert_eq!(env.ok(["list", "-q"]), "");
}

/// An unfit bundle is refused with a message that names what is wrong.
#[test]
fn unfit_bundles_are_refused() {
    let env = Env::new();
    let bundle = Bundle::new(&env, ["true"]);
    let path = bundle.dir.join("config.json");
    for text in ["", "{", "[]", "null", r#"{"ociVersion": "1.0.2"}"#, "\u{0}"] {
        fs::write(&path, text).expect("write");
        let output = env.cmd(["run", "--bundle"]).arg(&bundle.dir).arg(&bundle.id).run();
        assert_ne!(output.code, 0, "{text:?}");
        assert!(!output.stderr.trim().is_empty() && !output.stderr.contains("panicked"), "{text:?}: {}", output.stderr);
    }
    fs::remove_file(&path).expect("unlink");
    let output = env.cmd(["run", "--bundle"]).arg(&bundle.dir).arg(&bundle.id).run().expect(1);
    assert!(output.stderr.contains("config.json"), "{}", output.stderr);
    assert_eq!(env.ok(["list", "-q"]), "");
}
