//! Many containers, many execs, and `kill -9` of the shim, of containerd, of the first process in the middle of it: no exit
//! code is lost or wrong, and nothing is left behind.
//!
//! The short forms take a minute together. The long ones are `#[ignore]`d: `make soak`. `AGENTSBX_SOAK_SEED` repeats what
//! was random, `AGENTSBX_SOAK_ROUNDS` sets how many rounds they take.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::census;
use super::daemon::{Containerd, Release, SOON, Shim, Task, signal};
use super::events::{Subscription, lines};
use super::task_api;
use crate::soak::random::Random;
use crate::soak::rounds;
use crate::support::env::unique;
use crate::support::wait_until;

/// The shims' sockets that are left of these containers; they are in a directory that all containerds share.
fn assert_no_sockets(containerd: &Containerd, ids: &[String]) {
    let left = || ids.iter().map(|id| census::socket_file(containerd, id)).find(|socket| socket.exists());
    wait_until("the sockets are gone", SOON, || left().is_none());
}

#[track_caller]
fn assert_clean(containerd: &Containerd, when: &str) {
    let output = containerd.agentsbx(["fsck"]).run();
    assert_eq!(output.code, 0, "{when}: {}", output.both());
}

/// Containers, `width` at a time, each with execs one after the other, and their ends.
fn containers(release: Release, count: usize, execs: i32, width: usize) {
    let containerd = Containerd::start(release);
    let before = census::census(&containerd);
    let (next, ids) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..width {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::Relaxed) < count {
                    let task = Task::idle(&containerd, &[]);
                    ids.lock().expect("ids").push(task.id.clone());
                    for n in 0..execs {
                        let output = task.sh(&format!("echo {n} >/file-{n}; echo out {n}; exit {n}")).expect(n);
                        assert_eq!(output.stdout, format!("out {n}\n"));
                    }
                    let last = task.sh("ls / | grep -c file-").ok();
                    assert_eq!(last, execs.to_string());
                    task.remove();
                }
            });
        }
    });
    census::assert_unchanged(&containerd, &before, &format!("after {count} containers"));
    assert_no_sockets(&containerd, &ids.into_inner().expect("ids"));
    assert_clean(&containerd, "after the containers");
}

/// A dozen with each release.
#[test]
fn a_dozen_containers() {
    for release in Release::ALL {
        containers(release, 12, 3, 6);
    }
}

/// Fifty, of twenty execs each.
#[test]
#[ignore = "ten minutes"]
fn fifty_containers_with_twenty_execs() {
    for release in Release::ALL {
        for _ in 0..rounds(2) {
            containers(release, 50, 20, 10);
        }
    }
}

/// Execs on one task, all at once: rust-extensions #316, #270 (execs hung when the channel of exits was full).
fn parallel(count: u32) {
    let containerd = Containerd::shared(Release::C2);
    let events = Subscription::new(containerd);
    let task = Task::idle(containerd, &["--annotation", "dev.agentsbx.layer=discard"]);
    let shim = task_api::Shim::of(&task);
    let code = |n: u32| n % 100;
    thread::scope(|scope| {
        for n in 0..count {
            let shim = shim.clone();
            scope.spawn(move || {
                let exec = format!("parallel-{n}");
                shim.exec(&exec, &["sh", "-c", &format!("exit {}", code(n))]).expect("exec");
                shim.start(&exec).expect("start");
                assert_eq!(shim.wait(&exec).expect("wait"), code(n), "{exec}");
                assert_eq!(shim.delete(&exec).expect("delete"), code(n), "{exec}");
            });
        }
    });
    let mut exits: HashMap<String, Vec<u64>> = HashMap::new();
    let all = events.during(Duration::from_secs(2));
    for event in all.iter().filter(|event| event.container() == task.id && event.topic == "/tasks/exit") {
        exits.entry(event.process().to_owned()).or_default().push(event.status());
    }
    for n in 0..count {
        assert_eq!(exits.remove(&format!("parallel-{n}")), Some(vec![code(n).into()]), "parallel-{n}");
    }
    assert!(exits.is_empty(), "{exits:?}\n{}", lines(&all));
    task.remove();
}

/// 300.
#[test]
fn three_hundred_execs_at_once() {
    parallel(300);
}

/// 300, again and again.
#[test]
#[ignore = "ten minutes"]
fn three_hundred_execs_at_once_long() {
    (0..rounds(30)).for_each(|_| parallel(300));
}

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Shim,
    Containerd,
    FirstProcess,
}

const VICTIMS: [Victim; 3] = [Victim::Shim, Victim::Containerd, Victim::FirstProcess];

/// Kills the victim while execs begin, run and end.
fn kill_amid(containerd: &Containerd, victim: Victim, delay: Duration) {
    let mut before = census::census(containerd);
    let task = Task::idle(containerd, &[]);
    let id = task.id.clone();
    let pid = task.pid();
    let shims = containerd.shims(Some(&id));
    let execs: Vec<_> = (0..6)
        .map(|n| {
            let code = 40 + n;
            let script = format!("echo {n} >/file-{n}; sleep 0.0{n}; exit {code}");
            (code, task.exec(&[], &["sh", "-c", &script]).spawn())
        })
        .collect();
    thread::sleep(delay);
    let kill = |pid| signal(pid, Signal::KILL);
    match victim {
        Victim::Shim => shims.into_iter().for_each(kill),
        Victim::Containerd => containerd.kill(Signal::KILL),
        Victim::FirstProcess => kill(pid),
    }
    for (code, exec) in execs {
        let output = exec.wait();
        // Its own; or it was killed; or ctr says why it knows of none.
        let told = output.code == 137 || output.code == 1 && output.stderr.contains("ctr: ");
        assert!(
            output.code == code || told,
            "{victim:?} after {delay:?}: {}, not {code}: {}",
            output.code,
            output.both()
        );
    }
    if victim == Victim::Containerd {
        containerd.launch();
        assert_eq!(task.status(), "RUNNING", "{victim:?} after {delay:?}");
        task.sh("exit 9").expect(9);
    } else {
        // containerd finds its shim gone, or is told of the end.
        wait_until(&format!("the end of the task, {victim:?} after {delay:?}"), SOON, || {
            ["STOPPED", ""].contains(&task.status().as_str())
        });
    }
    drop(task);
    let when = format!("{victim:?} killed after {delay:?}");
    if victim != Victim::FirstProcess {
        // FIFOs are ctr's; it leaves them when an answer is an error.
        let mut now = census::census(containerd);
        now.retain(|line| line.contains("/fifo/"));
        before.extend(now);
    }
    census::assert_unchanged(containerd, &before, &when);
    assert_no_sockets(containerd, &[id]);
    assert_clean(containerd, &when);
}

fn kills(release: Release, rounds: u64) {
    let containerd = Containerd::start(release);
    let mut random = Random::new("shim");
    for _ in 0..rounds {
        for victim in VICTIMS {
            kill_amid(&containerd, victim, Duration::from_micros(random.below(250_000)));
        }
    }
}

/// A few with each release.
#[test]
fn kills_amid_execs() {
    if Shim::under_test() == Shim::Ours {
        Release::ALL.into_iter().for_each(|release| kills(release, 1));
    }
}

/// Many.
#[test]
#[ignore = "ten minutes"]
fn kills_amid_execs_long() {
    Release::ALL.into_iter().for_each(|release| kills(release, rounds(50)));
}

/// `kill -9` of a shim between two others: those that share a containerd with it do not notice.
#[test]
fn one_shims_death_is_its_own() {
    let containerd = Containerd::shared(Release::C17);
    let (one, other) = (Task::idle(containerd, &[]), Task::idle(containerd, &[]));
    let name = unique("long");
    let exec = other.exec(&["--exec-id", &name], &["sh", "-c", "sleep 2; exit 6"]).spawn();
    for pid in containerd.shims(Some(&one.id)) {
        signal(pid, Signal::KILL);
    }
    wait_until("the end of the task", SOON, || ["STOPPED", ""].contains(&one.status().as_str()));
    exec.wait().expect(6);
    assert_eq!(other.status(), "RUNNING");
}
