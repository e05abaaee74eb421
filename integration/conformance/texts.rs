//! What a verb says in a state that it can't be used in: the exit code and the words of runc, which engines look for and
//! people know.

use std::time::Duration;

use super::lab::{BOTH, Container, Runtime};
use crate::support::{Env, wait_until};

/// The words of an error, without the time, and what stands for what is not the same in both.
fn words(stderr: &str, container: &Container<'_>) -> String {
    let message = stderr.split_once("msg=").map_or(stderr, |(_, message)| message).trim();
    let name = match container.runtime {
        Runtime::Ours => "agentsbx",
        Runtime::Runc => "runc",
    };
    message.replace(&container.bundle.id, "ID").replace(name, "NAME")
}

/// The verbs, `ID` being the container's; all of them fail, change nothing, or do so under both runtimes.
const VERBS: [&[&str]; 14] = [
    &["resume", "ID"],
    &["start", "ID"],
    &["exec", "ID", "true"],
    &["exec", "ID", "no-such"],
    &["exec", "ID", "/etc"],
    &["exec", "ID"],
    &["exec", "--cwd", "relative", "ID", "true"],
    &["exec", "--tty", "--detach", "ID", "true"],
    &["exec", "--console-socket", "/x", "ID", "true"],
    &["kill", "ID", "NOSUCH"],
    &["kill", "ID", "0"],
    &["kill", "--all", "ID", "0"],
    &["delete", "ID"],
    &["update", "--pids-limit", "50", "ID"],
];

/// Runs the verbs that `pick` takes under both runtimes, on `ID` or what stands for it: the same codes and words.
#[track_caller]
fn compare(state: &str, both: &[Container<'_>; 2], id: Option<&str>, pick: impl Fn(&[&str]) -> bool) {
    for verb in VERBS.iter().copied().chain([&["pause", "ID"][..]]).filter(|verb| pick(verb)) {
        let [ours, theirs] = both.each_ref().map(|container| {
            let id = id.unwrap_or(&container.bundle.id);
            let args = verb.iter().map(|arg| if *arg == "ID" { id } else { arg });
            let output = container.runtime.cmd(container.bundle.env, args).run();
            (output.code, words(&output.stderr, container))
        });
        assert_eq!(ours, theirs, "{state}: {verb:?}");
    }
}

#[test]
fn in_each_state_each_verb_says_what_runc_says() {
    let env = Env::new();
    let both = BOTH.map(|runtime| Container::new(&env, runtime, "sleep 1000", |_| {}));
    let all = |verb: &str| {
        for container in &both {
            container.verb(verb).expect(0);
        }
    };
    compare("unknown", &both, Some("no-such-container"), |verb| !verb.contains(&"NOSUCH"));
    for container in &both {
        container.create().expect(0);
    }
    // To start it or delete it would change it.
    compare("created", &both, None, |verb| !["start", "delete", "pause"].contains(&verb[0]));
    // With --all runc thaws a container that is paused.
    let frozen = |verb: &[&str]| verb[0] != "resume" && !verb.contains(&"--all");
    all("pause");
    compare("created, paused", &both, None, |verb| frozen(verb) && verb[0] != "delete");
    all("resume");
    all("start");
    compare("running", &both, None, |verb| verb[0] != "pause");
    all("pause");
    compare("paused", &both, None, frozen);
    all("resume");
    for container in &both {
        container.cmd(["kill", &container.bundle.id, "KILL"]).run().expect(0);
        wait_until("the end", Duration::from_secs(10), || container.status() == "stopped");
    }
    compare("stopped", &both, None, |verb| verb[0] != "delete");
    all("delete");
    compare("deleted", &both, None, |verb| !verb.contains(&"NOSUCH"));
}
