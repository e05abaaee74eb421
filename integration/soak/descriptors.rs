//! Too few descriptors, or none: at each limit a verb works or says what failed, and leaves nothing.

use super::assert_clean;
use super::census::{Census, assert_gone};
use super::leaks::REAPER;
use crate::support::bundle::Bundle;
use crate::support::env::binary;
use crate::support::{Cmd, Env, Output};

/// Runs `agentsbx ARGS…` with at most `limit` descriptors.
fn limited(env: &Env, limit: u64, args: &[&str]) -> Output {
    let places = ["--root".as_ref(), env.root.as_os_str(), "--store".as_ref(), env.store.as_os_str()];
    Cmd::new("sh")
        .env("AGENTSBX_CONFIG", &crate::support::env::process().config)
        .args(["-c", &format!("ulimit -n {limit}; exec \"$@\""), "sh"])
        .arg(binary())
        .args(places)
        .args(args)
        .output_to(env.dir.join("limited.out"))
        .run()
}

/// A failure says something, and what it says names the cause.
#[track_caller]
fn assert_told(output: &Output, when: &str) {
    // The loader of a dynamic binary fails by itself, in its own words.
    let told = ["oo many open files", "error while loading shared libraries"].iter().any(|t| output.stdout.contains(t));
    assert!(told, "{when}: code {}, {:?}", output.code, output.stdout);
}

/// An exec at each limit from 3 on until it has worked five times.
#[test]
fn an_exec_with_few_descriptors() {
    let env = Env::new();
    let bundle = Bundle::new(&env, REAPER);
    bundle.start();
    bundle.sh_with(["--layer", "discard"], "echo x >/x").expect(0);
    let mut before = Census::at_rest(&env, &bundle);
    before.forget_results();
    let mut worked = 0;
    for limit in 3..200 {
        let when = format!("exec with {limit} descriptors");
        let output =
            limited(&env, limit, &["exec", "--layer", "discard", &bundle.id, "sh", "-c", "echo x >/x; exit 7"]);
        match output.code {
            7 => worked += 1,
            255 | 127 => assert_told(&output, &when),
            other => panic!("{when}: code {other}: {}", output.stdout),
        }
        if limit % 5 == 0 || worked == 5 {
            // Deleting a layer takes descriptors too: what could not be deleted is for the collector, and nothing else is left.
            let report = super::fsck(&env);
            let problems = report["problems"].as_array().expect("problems");
            assert!(problems.iter().all(|p| p["repair"] == "collect"), "{when}: {report:#}");
            env.ok(["gc"]);
            assert_clean(&env, &when);
            Census::assert_unchanged_but(&env, &bundle, &before, &when, Census::forget_results);
        }
        if worked == 5 {
            println!("an exec needs {} descriptors", limit - 4);
            return;
        }
    }
    panic!("it never worked");
}

/// The other verbs.
#[test]
fn verbs_with_few_descriptors() {
    let env = Env::new();
    let bundle = Bundle::new(&env, REAPER);
    bundle.start();
    for n in 0..3 {
        bundle.sh(&format!("echo {n} >/x")).expect(0);
    }
    let id = bundle.id.as_str();
    let verbs: [&[&str]; 7] =
        [&["log", id], &["diff", id], &["show", id], &["rollback", id, "2"], &["fsck"], &["gc"], &["recover"]];
    for verb in verbs {
        let mut worked = 0;
        for limit in 3..100 {
            let when = format!("{verb:?} with {limit} descriptors");
            let output = limited(&env, limit, verb);
            if output.code == 0 {
                worked += 1;
                if worked == 3 {
                    break;
                }
            } else {
                assert_told(&output, &when);
            }
        }
        assert_eq!(worked, 3, "{verb:?}");
    }
    assert_clean(&env, "after all");
    assert_eq!(bundle.sh("cat /x").ok(), "1");
}

/// A container that can't be made leaves nothing.
#[test]
fn a_run_with_few_descriptors() {
    let env = Env::new();
    let mut worked = 0;
    for limit in (4..200).step_by(3) {
        let bundle = Bundle::new(&env, REAPER);
        bundle.write();
        let when = format!("run with {limit} descriptors");
        let dir = bundle.dir.display().to_string();
        let output = limited(&env, limit, &["run", "--detach", "--bundle", &dir, &bundle.id]);
        if output.code == 0 {
            worked += 1;
            assert_eq!(bundle.sh("echo x").ok(), "x", "{when}");
            env.ok(["delete", "--force", &bundle.id]);
        } else {
            assert_told(&output, &when);
        }
        assert_gone(&env, &bundle.id);
        assert!(!bundle.dir.join("config.engine.json").exists(), "{when}");
        std::fs::remove_dir_all(&bundle.dir).expect("remove the bundle");
        if worked == 3 {
            assert_clean(&env, "after all");
            return;
        }
    }
    panic!("it never worked");
}
