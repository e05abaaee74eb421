//! The events of a task's life: those of containerd's own shim, in its order, with its fields; and after an exec's one more,
//! its result.

use std::collections::HashMap;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::daemon::{Containerd, Release, SOON, Shim, Task};
use super::events::{Event, Subscription, lines};
use crate::support::env::unique;
use crate::support::wait_until;

/// What our shim tells besides.
const RESULT: &str = "/agentsbx/exec-result";

/// One life: execs that end well and badly, a command that is missing, signals, a pause, the end by `last`.
fn live(containerd: &Containerd, shim: Shim, last: Signal) -> Vec<Event> {
    let events = Subscription::new(containerd);
    let task = Task::of(containerd, shim, &[], &["sh", "-c", "trap 'exit 5' TERM; while :; do sleep 0.05; done"]);
    task.exec(&["--exec-id", "well"], &["true"]).run().expect(0);
    task.exec(&["--exec-id", "badly"], &["sh", "-c", "echo x >/x; exit 3"]).run().expect(3);
    assert_ne!(task.exec(&["--exec-id", "missing"], &["/no/such/program"]).run().code, 0);
    task.verb("pause", &[]).expect(0);
    task.verb("resume", &[]).expect(0);
    let killed = task.exec(&["--exec-id", "killed"], &["sleep", "1000"]).spawn();
    let kill = || task.verb("kill", &["--exec-id", "killed", "--signal", "KILL"]).code == 0;
    wait_until("the exec is killed", SOON, kill);
    killed.wait().expect(137);
    task.verb("kill", &["--signal", &last.as_raw().to_string()]).expect(0);
    task.wait_status("STOPPED");
    let id = task.id.clone();
    task.remove();
    // A second longer than is needed: for what should not come.
    events.during(Duration::from_secs(2)).into_iter().filter(|event| event.container() == id).collect()
}

/// One under containerd's own shim. That of 2.x sometimes ends before it has told its last event.
fn live_under_stock(containerd: &Containerd, last: Signal) -> Vec<Event> {
    let whole = |events: &Vec<Event>| events.last().is_some_and(|event| event.topic == "/tasks/delete");
    let tries = (0..5).map(|_| live(containerd, Shim::Stock, last));
    tries.into_iter().find(whole).expect("a life that is told to its end")
}

/// Events without what is another's in each life: ids, pids, paths, times.
fn normal(events: &[Event], id: &str) -> Vec<Value> {
    let mut pids = HashMap::new();
    let normal = |event: &Event| {
        let mut fields = event.fields.clone();
        for (name, value) in fields.as_object_mut().expect("an object") {
            *value = match (name.as_str(), &*value) {
                ("pid", Value::Number(pid)) if pid.as_u64() != Some(0) => {
                    let next = pids.len();
                    json!(format!("{}th pid", pids.entry(pid.as_u64()).or_insert(next)))
                }
                ("exited_at", Value::Number(at)) => json!(at.as_i64().is_some_and(|at| at > 1_700_000_000)),
                (_, Value::String(text)) => json!(text.replace(id, "ID")),
                (_, other) => other.clone(),
            };
        }
        json!([event.topic, event.type_url, fields])
    };
    events.iter().map(normal).collect()
}

fn same_events(release: Release) {
    let containerd = Containerd::shared(release);
    for signal in [Signal::TERM, Signal::KILL] {
        let theirs = live_under_stock(containerd, signal);
        let mut ours = live(containerd, Shim::under_test(), signal);
        let results: Vec<Event> = ours.extract_if(.., |event| event.topic == RESULT).collect();
        let id = |events: &[Event]| events[0].container().to_owned();
        let (left, right) = (normal(&theirs, &id(&theirs)), normal(&ours, &id(&ours)));
        assert_eq!(left, right, "{release:?}\ntheirs:\n{}ours:\n{}", lines(&theirs), lines(&ours));
        if Shim::under_test() != Shim::Ours {
            continue;
        }
        // What ran has a result: the first is told before the second, each with what it changed.
        let told: Vec<_> = results.iter().map(|event| &event.fields["engineExec"]).collect();
        assert_eq!(told, ["well", "badly", "killed"], "{}", lines(&results));
        let ends: Vec<_> =
            results.iter().map(|event| (&event.fields["end"]["kind"], &event.fields["end"]["code"])).collect();
        assert_eq!(ends[0], (&json!("exited"), &json!(0)));
        assert_eq!(ends[1], (&json!("exited"), &json!(3)));
        assert_eq!(ends[2].0, "signaled");
        assert_eq!(results[1].fields["disposition"], "committed", "{}", results[1]);
        assert_eq!(results[1].fields["summary"]["added"], 1, "{}", results[1]);
        assert!(
            results.iter().all(|event| event.type_url == "types.agentsbx.dev/exec-result/v1"),
            "{}",
            lines(&results)
        );
    }
}

/// containerd 1.6.
#[test]
fn the_events_are_those_of_the_stock_shim_with_containerd_16() {
    same_events(Release::C16);
}

/// containerd 1.7.
#[test]
fn the_events_are_those_of_the_stock_shim_with_containerd_17() {
    same_events(Release::C17);
}

/// containerd 2.x.
#[test]
fn the_events_are_those_of_the_stock_shim_with_containerd_2() {
    same_events(Release::C2);
}

/// containerd 2.x, asking as 2.3.
#[test]
fn the_events_are_those_of_the_stock_shim_with_containerd_23() {
    same_events(Release::C23);
}

/// A container that ends at once, 40 times: `create` before `start` before `exit` before `delete`, each once.
#[test]
fn a_short_life_is_told_in_order() {
    let containerd = Containerd::shared(Release::C2);
    let events = Subscription::new(containerd);
    let mut ids = Vec::new();
    for n in 0..40 {
        let id = unique("short");
        let code = n % 3;
        containerd.run(&id, &["--rm", "--null-io"], &["sh", "-c", &format!("exit {code}")]).run().expect(code);
        ids.push((id, code));
    }
    let all = events.during(Duration::from_secs(2));
    for (id, code) in ids {
        let mine: Vec<Event> = all.iter().filter(|event| event.container() == id).cloned().collect();
        let topics: Vec<&str> = mine.iter().map(|event| event.topic.as_str()).collect();
        assert_eq!(topics, ["/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"], "{}", lines(&mine));
        let code = u64::try_from(code).expect("positive");
        assert_eq!((mine[2].status(), mine[3].status()), (code, code), "{}", lines(&mine));
    }
}
