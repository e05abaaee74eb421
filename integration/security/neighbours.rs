//! One exec against another, against the first process, and the first process against execs: the same container, often
//! the same user, and yet none can look into the other.

use std::fs;
use std::time::Duration;

use super::lab::{Asks, Place, all_capabilities, at, hostile, order, outcomes, serving, strict};
use crate::support::bundle::Bundle;
use crate::support::{Cmd, Env, wait_for};

/// What the kernel may answer. ENODATA: a file that is empty for who may not look.
const REFUSALS: &[&str] = &["EPERM", "EACCES", "ENOSYS", "ENODATA"];

/// The ways into another process that are tried.
const WAYS: usize = 24;

/// Starts an exec that waits with a secret; its pid inside. `options` are exec's.
fn victim(bundle: &Bundle<'_>, options: &[&str]) -> (u32, std::path::PathBuf) {
    let out = bundle.dir.join(crate::support::env::unique("victim"));
    let start = bundle.env.cmd(["exec", "--detach", "--env", "SECRET=in-the-environment"]).args(options);
    start.args([&bundle.id, "/attack", "victim"]).output_to(&out).run().expect(0);
    let pid = wait_for("the victim", Duration::from_secs(10), || {
        fs::read_to_string(&out).ok()?.lines().find_map(|line| line.strip_prefix("pid ")?.parse().ok())
    });
    (pid, out)
}

#[track_caller]
fn assert_refused(what: &str, text: &str) {
    let got = outcomes(text);
    assert!(got.len() >= WAYS, "{what}: {} ways: {text}", got.len());
    let wrong: Vec<_> = got.iter().filter(|(_, outcome)| !REFUSALS.contains(&outcome.as_str())).collect();
    assert!(wrong.is_empty(), "{what}: {wrong:?}");
}

/// Memory, files, descriptors, working directory and environment of an exec are closed to all other execs and to the
/// first process; those of the first process to every exec.
#[test]
fn no_exec_looks_into_another() {
    let env = strict();
    let bundle = serving(&env, Asks::Usual);
    let (layered, layered_out) = victim(&bundle, &[]);
    let (shared, shared_out) = victim(&bundle, &["--layer", "shared"]);
    let (user, user_out) = victim(&bundle, &["--layer", "shared", "--user", "1000:1000", "--cwd", "/tmp"]);
    for (name, pid) in [("the first process", 1), ("an exec", layered), ("a shared exec", shared), ("a user's", user)] {
        for place in [Place::First, Place::Exec, Place::Shared, Place::User] {
            if place == Place::First && pid == 1 {
                continue;
            }
            let output = at(place, &bundle, &["against", &pid.to_string()]);
            assert_refused(&format!("{place:?} against {name}"), &output.stdout);
        }
    }
    for out in [layered_out, shared_out, user_out] {
        let said = fs::read_to_string(out).expect("read");
        assert!(!said.contains("overwritten"), "{said}");
    }
}

/// The same ways where nothing stands in them.
#[test]
fn the_ways_into_another_process_are_ways() {
    let env = Env::with_config("profile = 'oci'\n");
    let mut bundle = hostile(&env, Asks::Everything, ["/attack", "serve"]);
    bundle.config["process"]["capabilities"]["bounding"] = serde_json::json!(all_capabilities());
    bundle.start();
    let (pid, _) = victim(&bundle, &[]);
    let got = outcomes(&at(Place::Exec, &bundle, &["against", &pid.to_string()]).stdout);
    let closed: Vec<_> =
        got.iter().filter(|(name, outcome)| REFUSALS.contains(&outcome.as_str()) && *name != "move_pages").collect();
    assert!(got.len() >= WAYS && closed.is_empty(), "{closed:?} of {got:?}");
}

/// What one exec wrote is not in any other's files until it is committed, and its layer's own directory is not to be
/// found from inside.
#[test]
fn the_upper_directory_of_an_exec_is_out_of_reach() {
    let env = strict();
    let bundle = serving(&env, Asks::Usual);
    let (_, _) = victim(&bundle, &[]);
    for place in [Place::First, Place::Exec, Place::Shared] {
        let seen = outcomes(&at(place, &bundle, &["find", "victims-file"]).stdout);
        assert!(seen["looked"].parse::<u32>().expect("a number") > 100, "{place:?}: {seen:?}");
        assert_eq!(seen["found"], "0", "{place:?}: {seen:?}");
    }
    // The mount table tells where the layers are on the host; no such place is inside.
    let script = "tr ',' '\n' </proc/self/mountinfo | sed -n 's/.*upperdir=\\([^ ]*\\).*/\\1/p' | while read d; do ls -d $d; done";
    let output = bundle.sh(script);
    assert_eq!(output.stdout, "", "{}", output.both());
}

/// Characters cannot be typed into the terminal of an exec, of the first process, or of who called them.
#[test]
fn terminals_cannot_be_typed_into() {
    let env = strict();
    let bundle = serving(&env, Asks::Everything);
    let attack = |options: &[&str]| {
        let exec = env.cmd(["exec"]).args(options).args([bundle.id.as_str(), "/attack", "tables", "tioc"]);
        outcomes(&exec.on_terminal().run().stdout.replace('\r', ""))
    };
    for options in [&["-t"] as &[&str], &[], &["-t", "--layer", "shared"], &["-t", "--user", "1000:1000"]] {
        let got = attack(options);
        assert!(got.len() == 4 && got.values().all(|outcome| outcome == "EPERM"), "{options:?}: {got:?}");
    }
    let mut first = hostile(&env, Asks::Everything, ["/attack", "tables", "tioc"]);
    for terminal in [true, false] {
        first.config["process"]["terminal"] = terminal.into();
        first.write();
        let run: Cmd = env.cmd(["run", "--bundle"]).arg(&first.dir).arg(&first.id);
        let got = outcomes(&run.on_terminal().run().stdout.replace('\r', ""));
        assert!(got.len() == 4 && got.values().all(|outcome| outcome == "EPERM"), "terminal {terminal}: {got:?}");
    }
}

/// The first process is killed while execs run: they end, and nothing of them is left.
#[test]
fn execs_end_with_the_first_process() {
    let env = strict();
    let bundle = serving(&env, Asks::Usual);
    let running = env.cmd(["exec", &bundle.id, "/attack", "victim"]).spawn();
    let seen = |text: &str| text.contains("process 1 attack");
    assert!(seen(&order(&bundle, "processes")));
    let pid = i32::try_from(bundle.state()["pid"].as_i64().expect("a pid")).expect("a pid");
    wait_for("the exec", Duration::from_secs(10), || {
        let text = at(Place::Exec, &bundle, &["processes"]).stdout;
        (text.lines().filter(|line| line.contains("attack")).count() >= 3).then_some(())
    });
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).expect("a pid"), rustix::process::Signal::KILL)
        .expect("kill");
    assert_eq!(running.wait().code, 137);
    assert_eq!(at(Place::Exec, &bundle, &["identity"]).code, 255, "no exec in what has ended");
    env.ok(["delete", "--force", &bundle.id]);
}

/// A command that has cleared its parent-death signal and ignores SIGTERM outlives a supervisor that was killed, until the
/// next command comes by.
#[test]
fn a_command_that_outlives_its_supervisor_is_ended() {
    let env = strict();
    let bundle = serving(&env, Asks::Usual);
    let file = bundle.dir.join("supervisor.pid");
    let (pid, _) = victim(&bundle, &["--pid-file", file.to_str().expect("a path")]);
    let supervisor: i32 = fs::read_to_string(&file).expect("read").parse().expect("a pid");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(supervisor).expect("a pid"),
        rustix::process::Signal::KILL,
    )
    .expect("kill");
    let alive = || order(&bundle, "processes").contains(&format!("process {pid} "));
    assert!(alive(), "it was not even tried");
    env.ok(["recover"]);
    assert!(!alive());
    assert_eq!(bundle.sh("echo fine").ok(), "fine");
}
