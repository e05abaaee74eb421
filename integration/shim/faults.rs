//! What goes wrong around a shim: a containerd that stands still or is impatient, clients that ask twice or go away, no threads
//! and no descriptors to be had.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use containerd_shim_protos::ttrpc::Code;
use containerd_shim_protos::types::task::Status;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::census;
use super::daemon::{Containerd, Release, SOON, Task, signal};
use super::events::{Subscription, lines};
use super::task_api;
use crate::support::cmd::Running;
use crate::support::env::{binary, program, unique};
use crate::support::wait_until;

fn pid_of(containerd: &Containerd) -> i32 {
    let text = fs::read_to_string(containerd.run.join("containerd.pid")).expect("read the pid");
    text.trim().parse().expect("a pid")
}

/// A runtime that does `instead` for calls that have the word `verb`, and is ours for others.
fn runtime(verb: &str, instead: &str) -> String {
    let ours = binary();
    let script =
        format!("#!/bin/sh\ncase \" $* \" in *' {verb} '*) {instead};; esac\nexec {} \"$@\"\n", ours.display());
    program(&script).display().to_string()
}

fn status(shim: &task_api::Shim) -> Status {
    shim.state("").expect("state").status.enum_value().expect("a status")
}

/// A second container for a task's shim, which containerd knows nothing of: the root file system is the task's.
struct Second {
    shim: task_api::Shim,
    bundle: PathBuf,
    rootfs: PathBuf,
    runtime: String,
}

impl Second {
    fn of(task: &Task<'_>) -> Second {
        let theirs = task.containerd.bundle(&task.id);
        let id = unique("second");
        let bundle = task.containerd.run.join("tmp").join(&id);
        fs::create_dir_all(bundle.join("rootfs")).expect("mkdir");
        let text = fs::read_to_string(theirs.join("config.json")).expect("read config.json");
        let mut config: Value = serde_json::from_str(&text).expect("config.json is JSON");
        config["linux"]["cgroupsPath"] = json!(format!("{}/{id}", task.containerd.cgroup));
        fs::write(bundle.join("config.json"), config.to_string()).expect("write config.json");
        let shim = task_api::Shim::of(task).for_container(&id);
        Second { shim, bundle, rootfs: theirs.join("rootfs"), runtime: String::new() }
    }

    fn create(&self) -> task_api::Answer<u32> {
        self.shim.create(&self.bundle, &self.rootfs, &self.runtime)
    }
}

/// A containerd that stood still for a while found an end as often as the shim had tried to tell it, and told it so often.
#[test]
fn a_containerd_that_stood_still_tells_an_end_once() {
    let containerd = Containerd::start(Release::C2);
    let task = Task::idle(&containerd, &[]);
    let events = Subscription::new(&containerd);
    let (pid, daemon) = (task.pid(), pid_of(&containerd));
    signal(daemon, Signal::STOP);
    signal(pid, Signal::KILL);
    thread::sleep(Duration::from_secs(12));
    signal(daemon, Signal::CONT);
    task.wait_status("STOPPED");
    let all = events.during(Duration::from_secs(3));
    let exits = all.iter().filter(|event| event.container() == task.id && event.topic == "/tasks/exit").count();
    assert_eq!(exits, 1, "{}", lines(&all));
    task.remove();
}

/// A second pause is refused; after that a container that was frozen was told as running.
#[test]
fn a_refused_pause_changes_nothing() {
    let task = Task::idle(Containerd::shared(Release::C2), &[]);
    let shim = task_api::Shim::of(&task);
    shim.pause().expect("pause");
    shim.pause().expect_err("it is paused");
    assert_eq!(status(&shim), Status::PAUSED);
    let (_, text) = shim.exec("x", &["true"]).expect_err("it is paused");
    assert!(text.contains("cannot exec in a paused state"), "{text}");
    shim.resume().expect("resume");
    assert_eq!(status(&shim), Status::RUNNING);
    assert_eq!(task.sh("exit 4").code, 4);
}

/// A pause that the end overtakes was told after the end: for Docker the container was then paused for good.
#[test]
fn no_pause_is_told_after_the_end() {
    let task = Task::idle(Containerd::shared(Release::C2), &[]);
    let mut second = Second::of(&task);
    let [there, go] = ["there", "go"].map(|name| second.bundle.join(name));
    let wait = format!(": >{}; while [ ! -e {} ]; do sleep 0.02; done; exit 0", there.display(), go.display());
    second.runtime = runtime("pause", &wait);
    second.create().expect("create");
    second.shim.start("").expect("start");
    let id = second.bundle.file_name().expect("a name").to_string_lossy().into_owned();
    let events = Subscription::new(task.containerd);
    thread::scope(|scope| {
        let pausing = scope.spawn(|| second.shim.pause());
        wait_until("the pause", SOON, || there.exists());
        second.shim.kill("", 9, false).expect("kill");
        assert_eq!(second.shim.wait("").expect("wait"), 137);
        fs::write(&go, "").expect("let it come back");
        let (code, text) = pausing.join().expect("join").expect_err("it has ended");
        assert_eq!(code, Code::NOT_FOUND, "{text}");
    });
    assert_eq!(status(&second.shim), Status::STOPPED);
    let told = events.during(Duration::from_secs(1));
    let mine = told.iter().filter(|event| event.container() == id).map(|event| event.topic.as_str());
    assert_eq!(mine.collect::<Vec<_>>(), ["/tasks/exit"], "{}", lines(&told));
    second.shim.delete("").expect("delete");
    fs::remove_dir_all(&second.bundle).expect("remove the bundle");
}

/// Of two who delete a container at once one does. The other asked the runtime again, when there was another container with
/// the id by then: that was killed, and the shim forgot it.
#[test]
fn who_deletes_second_deletes_nothing() {
    let task = Task::idle(Containerd::shared(Release::C2), &[]);
    let mut second = Second::of(&task);
    let dir = second.bundle.display().to_string();
    // Each deletion says that it is there, and waits.
    let wait =
        format!("n=1; [ -e {dir}/there1 ] && n=2; : >{dir}/there$n; while [ ! -e {dir}/go$n ]; do sleep 0.02; done");
    second.runtime = runtime("delete", &wait);
    second.create().expect("create");
    thread::scope(|scope| {
        let (one, other) = (second.shim.clone(), second.shim.clone());
        let one = scope.spawn(move || one.delete(""));
        wait_until("the first deletion", SOON, || second.bundle.join("there1").exists());
        let other = scope.spawn(move || other.delete(""));
        // Until it waits for the first.
        thread::sleep(Duration::from_secs(2));
        fs::write(second.bundle.join("go1"), "").expect("write");
        assert_eq!(one.join().expect("join").expect("delete"), 137);
        second.create().expect("create");
        fs::write(second.bundle.join("go2"), "").expect("write");
        let (code, text) = other.join().expect("join").expect_err("it was deleted");
        assert_eq!(code, Code::NOT_FOUND, "{text}");
    });
    assert_eq!(status(&second.shim), Status::CREATED);
    second.shim.start("").expect("start");
    assert_eq!(status(&second.shim), Status::RUNNING);
    second.shim.kill("", 9, false).expect("kill");
    assert_eq!(second.shim.wait("").expect("wait"), 137);
    second.shim.delete("").expect("delete");
    fs::remove_dir_all(&second.bundle).expect("remove the bundle");
}

/// A container that is being made for as long as its logger is not ready, by a client that waits for it.
struct Making {
    id: String,
    client: Running,
    files: [PathBuf; 2],
}

impl Making {
    fn of(containerd: &Containerd) -> Making {
        let dir = containerd.run.join("tmp");
        let files = ["there", "go"].map(|name| dir.join(unique(name)));
        let [there, go] = &files;
        let wait = format!(": >{}; while [ ! -e {} ]; do sleep 0.02; done", there.display(), go.display());
        let logger = program(&format!("#!/bin/sh\n{wait}\nexec 5>&-\ncat <&3\n"));
        let id = unique("making");
        let address = format!("binary://{}", logger.display());
        let client = containerd.run(&id, &["--detach", "--log-uri", &address], &["sleep", "1000"]).spawn();
        wait_until("the logger", SOON, || there.exists());
        Making { id, client, files }
    }

    /// Lets it be made; its shim must end then, and its bundle be gone.
    fn assert_ends(&self, containerd: &Containerd) {
        fs::write(&self.files[1], "").expect("let the logger be ready");
        wait_until("the end of the shim", SOON, || containerd.shims(Some(&self.id)).is_empty());
        assert!(!census::socket_file(containerd, &self.id).exists(), "{:?}", containerd.release);
    }

    fn remove(self, containerd: &Containerd) {
        wait_until("the end of the bundle", SOON, || !containerd.bundle(&self.id).exists());
        self.client.wait();
        containerd.ctr(["containers", "delete", &self.id]).run();
        for file in self.files {
            fs::remove_file(file).expect("remove a file");
        }
    }
}

/// A client that goes away while its container is made: containerd gives the container up, and asks the shim to end before it
/// is made. The shim stayed for five minutes.
#[test]
fn a_shim_ends_whose_container_was_given_up() {
    for release in Release::ALL {
        let containerd = Containerd::shared(release);
        let making = Making::of(containerd);
        making.client.signal(Signal::KILL);
        wait_until("the end of the bundle", SOON, || !containerd.bundle(&making.id).exists());
        making.assert_ends(containerd);
        making.remove(containerd);
    }
}

/// A containerd that is ended itself may give the container up and not come to asking the shim to end. The next containerd
/// connects to that, and it stayed, without a container, and the bundle with it.
#[test]
fn a_shim_ends_whose_container_was_given_up_and_that_nobody_asks_to() {
    let containerd = Containerd::start(Release::C16);
    let making = Making::of(&containerd);
    let shim = task_api::Shim::at(&containerd, &making.id);
    signal(pid_of(&containerd), Signal::STOP);
    let (code, text) = shim.delete("").expect_err("it is being made");
    assert_eq!(code, Code::NOT_FOUND, "{text}");
    making.assert_ends(&containerd);
    signal(pid_of(&containerd), Signal::CONT);
    making.remove(&containerd);
}

/// A task that a containerd, started anew, has deleted while its shim, the pid, stood still. The shim goes on now.
fn deleted_without_its_shim(containerd: &Containerd) -> (Task<'_>, i32) {
    let task = Task::idle(containerd, &[]);
    let shim = containerd.shims(Some(&task.id))[0];
    containerd.kill(Signal::KILL);
    signal(shim, Signal::STOP);
    containerd.launch();
    wait_until("the end of the bundle", SOON * 2, || !containerd.bundle(&task.id).exists());
    signal(shim, Signal::CONT);
    (task, shim)
}

/// A containerd that starts gives a shim five seconds to answer, then has its container deleted without it. The shim kept it
/// for ever, and the next container with the id, which has the same socket, was refused as already there.
#[test]
fn a_container_that_was_deleted_without_its_shim() {
    let containerd = Containerd::start(Release::C2);
    let (task, shim) = deleted_without_its_shim(&containerd);
    let id = task.id.clone();
    assert_eq!(task.status(), "");
    containerd.ctr(["containers", "delete", &id]).run().expect(0);
    // The deletion killed it; the shim hears of that now.
    thread::sleep(Duration::from_secs(1));
    containerd.run(&id, &["--detach", "--null-io"], &["sleep", "1000"]).run().expect(0);
    assert_eq!(containerd.shims(Some(&id)), [shim]);
    assert_eq!(task.sh("exit 5").code, 5);
    task.remove();
    wait_until("the end of the shim", SOON, || containerd.shims(Some(&id)).is_empty());
}

/// The same without a next container: the shim ends by itself, although containerd stays connected.
#[test]
#[ignore = "a minute"]
fn a_shim_ends_whose_container_was_deleted_without_it() {
    let containerd = Containerd::start(Release::C2);
    let (task, shim) = deleted_without_its_shim(&containerd);
    let id = task.id.clone();
    assert_eq!(containerd.shims(Some(&id)), [shim]);
    wait_until("the end of the shim", Duration::from_secs(75), || containerd.shims(Some(&id)).is_empty());
    assert!(!census::socket_file(&containerd, &id).exists());
    containerd.ctr(["containers", "delete", &id]).run().expect(0);
    std::mem::forget(task);
}

/// A cgroup that can have no more processes, with a shim in it. It is emptied and removed in the end.
struct Full(PathBuf);

/// Where the groups are that count processes, on v1 and v2.
fn groups() -> &'static str {
    let v1 = "/sys/fs/cgroup/pids";
    if Path::new(v1).exists() { v1 } else { "/sys/fs/cgroup" }
}

impl Full {
    fn of(task: &Task<'_>, shim: i32) -> Full {
        let group = format!("{}{}/{}", groups(), task.containerd.cgroup, unique("full"));
        let full = Full(group.into());
        fs::create_dir(&full.0).expect("make a cgroup");
        fs::write(full.0.join("cgroup.procs"), shim.to_string()).expect("move the shim");
        full
    }

    fn limit(&self, limit: &str) {
        fs::write(self.0.join("pids.max"), limit).expect("set a limit");
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        self.limit("max");
        // On v2 a group with groups below has no processes.
        let above = format!("{}/cgroup.procs", groups());
        for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            // It may have ended.
            let _ = fs::write(&above, pid);
        }
        wait_until("the cgroup is removed", SOON, || fs::remove_dir(&self.0).is_ok());
    }
}

/// Where no thread can be had a request fails, and the next one does not notice. A container's id was taken for ever, and who
/// asked for metrics was never answered.
#[test]
fn without_threads_requests_fail() {
    let task = Task::idle(Containerd::shared(Release::C2), &[]);
    let shim = task_api::Shim::of(&task);
    let pid = task.containerd.shims(Some(&task.id))[0];
    let second = Second::of(&task);
    let full = Full::of(&task, pid);
    full.limit("1");
    // Threads that have no work end within a second.
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).expect("threads").count();
    wait_until("one thread", SOON, || threads() == 1);
    let (_, text) = shim.stats().expect_err("there is no thread");
    assert!(text.contains("start a thread"), "{text}");
    let (_, text) = second.create().expect_err("there is no thread");
    assert!(text.contains("start a thread"), "{text}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    assert!(!mounts.contains(&second.bundle.display().to_string()), "{mounts}");
    full.limit("max");
    shim.stats().expect("stats");
    second.create().expect("create");
    assert_eq!(second.shim.delete("").expect("delete"), 137);
    fs::remove_dir_all(&second.bundle).expect("remove the bundle");
}

/// The result of an exec that changed a million files was read on the thread that serves everybody: for as long as that took
/// nobody was answered.
#[test]
fn a_long_result_keeps_nobody_waiting() {
    let containerd = Containerd::shared(Release::C2);
    let task = Task::idle(containerd, &[]);
    let shim = task_api::Shim::of(&task);
    // A result as it is written, but long.
    shim.exec("real", &["sh", "-c", "echo >/x"]).expect("exec");
    shim.start("real").expect("start");
    assert_eq!(shim.wait("real").expect("wait"), 0);
    let real = fs::read(containerd.bundle(&task.id).join("shim/real.json")).expect("read a result");
    let mut long: Value = serde_json::from_slice(&real).expect("a result is JSON");
    let change = long["changes"][0].clone();
    long["changes"] = vec![change; 600_000].into();
    let mut second = Second::of(&task);
    let id = second.bundle.file_name().expect("a name").to_string_lossy().into_owned();
    long["container"] = json!(id);
    let document = second.bundle.join("long.json");
    fs::write(&document, long.to_string()).expect("write");
    // In the place of an exec's supervisor is one that has it already.
    let options = "while [ $# -gt 0 ]; do case $1 in --pid-file) pid=$2;; --result) result=$2;; esac; shift; done";
    let exec = format!("{options}; mv {} $result; sleep 0.5 & echo $! >$pid; exit 0", document.display());
    second.runtime = runtime("exec", &exec);
    second.create().expect("create");
    let events = Subscription::new(containerd);
    second.shim.exec_of(&second.bundle, "long", &["true"]).expect("exec");
    second.shim.start("long").expect("start");
    let waiting = thread::spawn({
        let shim = second.shim.clone();
        move || shim.wait("long")
    });
    let mut longest = Duration::ZERO;
    while !waiting.is_finished() {
        let asked = Instant::now();
        shim.connect().expect("connect");
        longest = longest.max(asked.elapsed());
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(waiting.join().expect("join").expect("wait"), 0);
    // Some five seconds, as it was.
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    // It is told all the same, before the end.
    let told = events.during(Duration::from_secs(1));
    let mine = told.iter().filter(|event| event.container() == id).map(|event| event.topic.as_str());
    let ends: Vec<_> = mine.filter(|topic| ["/agentsbx/exec-result", "/tasks/exit"].contains(topic)).collect();
    assert_eq!(ends, ["/agentsbx/exec-result", "/tasks/exit"], "{}", lines(&told));
    second.shim.delete("").expect("delete");
    fs::remove_dir_all(&second.bundle).expect("remove the bundle");
}

/// A runtime that does not come back from starting an exec is not waited for longer than a minute once the container has ended.
/// It stayed for good, and the end was told ten seconds later.
#[test]
#[ignore = "a minute"]
fn a_runtime_that_hangs_is_ended_with_its_container() {
    let task = Task::idle(Containerd::shared(Release::C2), &[]);
    let mut second = Second::of(&task);
    let there = second.bundle.join("pid");
    let hang = format!("echo $$ >{}; exec sleep 1000", there.display());
    second.runtime = runtime("exec", &hang);
    second.create().expect("create");
    second.shim.start("").expect("start");
    second.shim.exec_of(&second.bundle, "hangs", &["true"]).expect("exec");
    let pid = || fs::read_to_string(&there).unwrap_or_default().trim().to_owned();
    thread::scope(|scope| {
        // Its answer may come when nobody waits for it any more.
        scope.spawn(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| second.shim.start("hangs"))));
        wait_until("the runtime", SOON, || !pid().is_empty());
        second.shim.kill("", 9, false).expect("kill");
        let stopped = || status(&second.shim) == Status::STOPPED;
        wait_until("the end", Duration::from_secs(66), stopped);
    });
    assert!(!Path::new("/proc").join(pid()).exists(), "{}", pid());
    assert_eq!(second.shim.wait("").expect("wait"), 137);
    assert_eq!(second.shim.delete("").expect("delete"), 137);
    fs::remove_dir_all(&second.bundle).expect("remove the bundle");
}

/// The end was told while the signal that had brought it about was being sent. containerd 1.7 then deleted the container,
/// closed its connection, and the stop of a pod failed: `ttrpc: closed`.
#[test]
fn a_signal_is_answered_before_the_end_is_told() {
    let containerd = Containerd::shared(Release::C17);
    let task = Task::idle(containerd, &[]);
    let events = Subscription::new(containerd);
    let mut second = Second::of(&task);
    let id = second.bundle.file_name().expect("a name").to_string_lossy().into_owned();
    second.runtime = runtime("kill", &format!("{} \"$@\"; code=$?; sleep 1.5; exit $code", binary().display()));
    second.create().expect("create");
    second.shim.start("").expect("start");
    let begun = Instant::now();
    let (killed, waited) = thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            assert_eq!(second.shim.wait("").expect("wait"), 137);
            begun.elapsed()
        });
        second.shim.kill("", 9, false).expect("kill");
        (begun.elapsed(), waiting.join().expect("the wait"))
    });
    assert!(killed >= Duration::from_millis(1500) && waited >= Duration::from_millis(1400), "{killed:?} {waited:?}");
    second.shim.delete("").expect("delete");
    let ends = events.during(Duration::from_secs(1));
    let ends = ends.iter().filter(|event| event.topic == "/tasks/exit" && event.container() == id);
    assert_eq!(ends.count(), 1);
    task.remove();
}
