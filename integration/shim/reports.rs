//! What users of other shims have reported, each a test of how it should be.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use containerd_shim_protos::ttrpc::Code;
use containerd_shim_protos::types::task::Status;
use rustix::process::Signal;

use super::census;
use super::daemon::{Containerd, Release, SOON, Shim, Task, signal};
use super::events::{Event, Subscription, lines};
use super::task_api;
use crate::support::env::{program, unique};
use crate::support::{Cmd, wait_until};

fn newest() -> &'static Containerd {
    Containerd::shared(Release::C2)
}

/// runc #2530, containerd #4434: an error of more than 64 KiB filled a pipe that nobody read, and `exec` never returned.
#[test]
fn a_very_long_error_returns() {
    let task = Task::idle(newest(), &[]);
    let begun = Instant::now();
    let output = task.exec(&[], &[&format!("/{}", "x/".repeat(50_000))]).limit(SOON * 2).run();
    assert!(output.code != 0 && begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(output.both().contains("OCI runtime exec failed"), "{}", output.both().get(..200).unwrap_or_default());
    task.sh("exit 4").expect(4);
}

/// What the runtime says of a command that it can't start is told to who asked for it, and once: it is no output of the command,
/// and no line of the container's log.
#[test]
fn a_failed_start_is_no_output() {
    for shim in [Shim::Stock, Shim::under_test()] {
        let task = Task::of(newest(), shim, &[], &["sleep", "100000"]);
        let output = task.exec(&[], &["no-such-program"]).run();
        assert_ne!(output.code, 0);
        assert_eq!(output.both().matches("no-such-program").count(), 1, "{shim:?}: {}", output.both());
        let id = unique("bad");
        let output = newest().run_with(shim, &id, &[], &["no-such-program"]).run();
        assert_ne!(output.code, 0);
        // containerd may name the command once more.
        let lines = output.both().lines().filter(|line| line.contains("create failed")).count();
        assert_eq!(lines, 1, "{shim:?}: {}", output.both());
        newest().ctr(["containers", "delete", &id]).run();
    }
    let task = Task::idle(newest(), &[]);
    let log = newest().data().join("failed-start.log");
    let shim = task_api::Shim::of(&task);
    shim.exec_with("bad", &["no-such-program"], &format!("file://{}", log.display()), "").expect("exec");
    let (_, text) = shim.start("bad").expect_err("there is no such program");
    assert!(text.contains("no-such-program"), "{text}");
    assert_eq!(shim.delete("bad").expect("delete"), 0);
    assert_eq!(fs::read_to_string(log).expect("read"), "");
}

/// Two containerds of a host, of one namespace, share the runtime's state. One that asks for an id that the other has is
/// refused, and does not end the other's container; what each has made itself it deletes.
#[test]
fn another_containerds_container_is_left_alone() {
    let first = Containerd::start(Release::C2);
    let second = Containerd::start_in(Release::C16, Some(first.namespace.clone()));
    let task = Task::idle(&first, &[]);
    let refused = second.run(&task.id, &[], &["true"]).run();
    assert_ne!(refused.code, 0);
    assert!(refused.both().contains("already exists"), "{}", refused.both());
    assert_eq!(task.status(), "RUNNING");
    assert_eq!(task.sh("echo here").ok(), "here");
    second.ctr(["containers", "delete", &task.id]).run();
    let own = Task::idle(&second, &[]);
    assert_eq!(own.sh("echo there").ok(), "there");
    own.remove();
    let id = task.id.clone();
    task.remove();
    // Nobody has it any more.
    second.run(&id, &["--rm"], &["true"]).run().expect(0);
}

/// containerd #5708, #4016: a pod was `Terminating` for ever, since `kill` of what had ended gave no error that containerd
/// knows.
#[test]
fn kill_of_what_has_ended_or_was_never_there() {
    let task = Task::of(newest(), Shim::under_test(), &[], &["sh", "-c", "exit 3"]);
    let live = Task::idle(newest(), &[]);
    task.wait_status("STOPPED");
    let shim = task_api::Shim::of(&task);
    let (code, text) = shim.kill("", 9, false).expect_err("it has ended");
    assert_eq!(code, Code::NOT_FOUND, "{text}");
    assert!(text.contains("process already finished"), "{text}");
    // To kill all of nothing may also be said to be done.
    if let Err((code, text)) = shim.kill("", 9, true) {
        assert_eq!(code, Code::NOT_FOUND, "{text}");
    }
    let (code, text) = shim.kill("nobody", 9, false).expect_err("there is no such exec");
    assert_eq!(code, Code::NOT_FOUND, "{text}");
    let (code, text) = shim.for_container("nobody").kill("", 9, false).expect_err("there is no such container");
    assert_eq!(code, Code::NOT_FOUND, "{text}");
    let shim = task_api::Shim::of(&live);
    shim.exec("gone", &["true"]).expect("exec");
    let (code, text) = shim.kill("gone", 9, false).expect_err("it has not begun");
    assert_eq!(code, Code::FAILED_PRECONDITION, "{text}");
    shim.start("gone").expect("start");
    assert_eq!(shim.wait("gone").expect("wait"), 0);
    let (code, text) = shim.kill("gone", 9, false).expect_err("it has ended");
    assert_eq!(code, Code::NOT_FOUND, "{text}");
    assert!(text.contains("process already finished"), "{text}");
    assert_eq!(shim.delete("gone").expect("delete"), 0);
}

/// An exec that is deleted before it was started is answered as by containerd's own shim: with 0. Who waits for it must not
/// take it for a success.
#[test]
fn an_exec_that_was_never_started_is_deleted() {
    let task = Task::idle(newest(), &[]);
    let shim = task_api::Shim::of(&task);
    shim.exec("unborn", &["true"]).expect("exec");
    std::thread::scope(|scope| {
        let (entered, waits) = std::sync::mpsc::channel();
        let waiting = scope.spawn({
            let shim = shim.clone();
            move || {
                entered.send(()).expect("send");
                shim.wait("unborn")
            }
        });
        waits.recv().expect("recv");
        // The wait is on its way; a second is enough for a call on this machine.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(shim.delete("unborn").expect("delete"), 0);
        assert_eq!(waiting.join().expect("join").expect("wait"), 255);
    });
    let (code, text) = shim.start("unborn").expect_err("it is deleted");
    assert_eq!(code, Code::NOT_FOUND, "{text}");
}

/// Whether there is a terminal is the request's to say: Go clients leave it out of the process.
#[test]
fn an_execs_terminal_is_the_requests() {
    let task = Task::idle(newest(), &[]);
    let shim = task_api::Shim::of(&task);
    let fifo = newest().data().join("terminal.fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("mkfifo");
    shim.exec_on_terminal("tty", &["sh", "-c", "tty; exit 6"], &fifo.to_string_lossy()).expect("exec");
    let reading = std::thread::spawn(move || std::fs::read_to_string(fifo).expect("read"));
    shim.start("tty").expect("start");
    assert_eq!(shim.wait("tty").expect("wait"), 6);
    assert_eq!(shim.delete("tty").expect("delete"), 6);
    assert_eq!(reading.join().expect("join"), "/dev/pts/0\r\n");
}

/// The size that a client asks for before the exec runs was dropped, and the command began on a terminal of no size.
#[test]
fn a_size_that_is_asked_for_before_the_start_is_the_terminals_from_the_beginning() {
    let task = Task::idle(newest(), &[]);
    let shim = task_api::Shim::of(&task);
    let fifo = newest().data().join("size.fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("mkfifo");
    shim.exec_on_terminal("size", &["stty", "size"], &fifo.to_string_lossy()).expect("exec");
    shim.resize("size", 80, 25).expect("resize");
    // The last one counts.
    shim.resize("size", 132, 43).expect("resize");
    let reading = std::thread::spawn(move || std::fs::read_to_string(fifo).expect("read"));
    shim.start("size").expect("start");
    assert_eq!(shim.wait("size").expect("wait"), 0);
    assert_eq!(shim.delete("size").expect("delete"), 0);
    assert_eq!(reading.join().expect("join"), "43 132\r\n");
    // One without a terminal has no size.
    shim.exec("plain", &["true"]).expect("exec");
    shim.resize("plain", 80, 25).expect("resize");
    shim.start("plain").expect("start");
    assert_eq!(shim.wait("plain").expect("wait"), 0);
    shim.delete("plain").expect("delete");
}

/// crun #1642, vscode-remote-release #10843: without a terminal an exec was in its caller's session.
#[test]
fn an_exec_leads_its_session() {
    let task = Task::idle(newest(), &[]);
    let script = "read -r stat </proc/self/stat; set -- $stat; echo $1 $5 $6";
    let ids = task.sh(script).ok();
    let ids: Vec<&str> = ids.split(' ').collect();
    assert!(ids[0] == ids[1] && ids[0] == ids[2] && ids[0] != "0", "pid, group, session: {ids:?}");
}

/// gVisor #6225: each exec left a file in the bundle or in the state directory.
#[test]
fn a_hundred_execs_leave_no_files() {
    let containerd = Containerd::start(Release::C2);
    let task = Task::idle(&containerd, &[]);
    task.sh("true").expect(0);
    let before = census::census(&containerd);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..25).for_each(|n| drop(task.sh(&format!("exit {n}")).expect(n))));
        }
    });
    census::assert_unchanged(&containerd, &before, "after 100 execs");
    let descriptors = || {
        let shim = containerd.shims(Some(&task.id)).first().copied().expect("a shim");
        fs::read_dir(format!("/proc/{shim}/fd")).expect("list descriptors").count()
    };
    let first = descriptors();
    (0..20).for_each(|_| drop(task.sh("true").expect(0)));
    // containerd's own connections may come and go.
    assert!(descriptors() <= first + 1, "{} descriptors, then {}", first, descriptors());
}

/// systemd gives a service 1024 descriptors unless it asks for more, and from 2.0 on containerd's unit does not: a pod with some
/// hundred processes had "too many open files", though the shim may have as many as it likes. What it starts keeps the limit.
#[test]
fn a_shim_has_as_many_descriptors_as_it_may() {
    let containerd = Containerd::start(Release::C2);
    let link = containerd.run.join("bin/containerd-shim-agentsbx-v1");
    let real = fs::read_link(&link).expect("a link");
    fs::remove_file(&link).expect("remove the link");
    let script = format!("#!/bin/sh\nulimit -Sn 64\nulimit -Hn 5000\nexec {} \"$@\"\n", real.display());
    std::os::unix::fs::symlink(program(&script), link).expect("link");
    let config = containerd.run.join("oci.toml");
    fs::write(&config, "profile = 'oci'\n").expect("write a configuration");
    // With no limit of its own a container has the runtime's.
    let task = Task::idle(&containerd, &["--runtime-config-path", &config.display().to_string()]);
    let shim = containerd.shims(Some(&task.id)).first().copied().expect("a shim");
    let limits = |pid: i32| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("read the limits");
        let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line").to_owned();
        line.split_whitespace().skip(3).take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(limits(shim), ["5000", "5000"]);
    let api = task_api::Shim::of(&task);
    api.exec("limited", &["sleep", "1000"]).expect("exec");
    let supervisor = api.start("limited").expect("start");
    assert_eq!(limits(i32::try_from(supervisor).expect("a pid")), ["64", "5000"]);
    api.kill("limited", 9, false).expect("kill");
    api.wait("limited").expect("wait");
    api.delete("limited").expect("delete");
    thread::scope(|scope| {
        for n in 0..20 {
            let task = &task;
            scope.spawn(move || task.sh(&format!("sleep 3; exit {n}")).expect(n));
        }
    });
}

/// gVisor #120, gvisor-containerd-shim #4: `start` of an exec came back before its pid was written.
#[test]
fn a_started_exec_has_its_pid() {
    let task = Task::idle(newest(), &[]);
    let shim = task_api::Shim::of(&task);
    for _ in 0..20 {
        let exec = unique("pid");
        shim.exec(&exec, &["sleep", "0.3"]).expect("exec");
        let pid = shim.start(&exec).expect("start");
        assert!(Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
        assert_eq!(shim.state(&exec).expect("state").pid, pid);
        assert_eq!(shim.wait(&exec).expect("wait"), 0);
        assert_eq!(shim.delete(&exec).expect("delete"), 0);
    }
}

/// gVisor #77, #95: `run` of a command that is missing hung, and its shim stayed.
#[test]
fn a_missing_command_leaves_no_shim() {
    for release in Release::ALL {
        let containerd = Containerd::shared(release);
        let id = unique("missing");
        let begun = Instant::now();
        let output = containerd.run(&id, &["--rm", "--null-io"], &["nonexist"]).run();
        assert!(
            output.code != 0 && begun.elapsed() < Duration::from_secs(5),
            "{}: {:?}",
            output.both(),
            begun.elapsed()
        );
        assert!(output.both().contains("executable file not found in $PATH"), "{}", output.both());
        wait_until("the end of the shim", SOON, || containerd.shims(Some(&id)).is_empty());
        assert!(!containerd.bundle(&id).exists());
        let socket = census::socket_file(containerd, &id);
        assert!(!socket.exists(), "{}", socket.display());
        containerd.ctr(["containers", "delete", &id]).run();
    }
}

/// A FIFO that is read until its end, by a thread.
fn read_fifo(path: &Path) -> mpsc::Receiver<Vec<u8>> {
    let path = path.to_owned();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut file = fs::File::open(&path).expect("open the FIFO");
        file.read_to_end(&mut bytes).expect("read the FIFO");
        // The test may be over.
        let _ = sender.send(bytes);
    });
    receiver
}

fn make_fifo(dir: &Path) -> PathBuf {
    let path = dir.join(unique("fifo"));
    Cmd::new("mkfifo").arg(&path).ok();
    path
}

/// containerd #7802, #10094, #9568: an exec never ended, since a process that it had started in the background held its
/// output.
#[test]
fn a_background_process_holds_the_output() {
    let containerd = newest();
    let task = Task::idle(containerd, &[]);
    let shim = task_api::Shim::of(&task);
    let [stdout, stderr] = [(); 2].map(|()| make_fifo(&containerd.run.join("tmp")));
    let (output, _errors) = (read_fifo(&stdout), read_fifo(&stderr));
    let script = ["sh", "-c", "sleep 100 & echo x"];
    let (out, err) = (stdout.display().to_string(), stderr.display().to_string());
    shim.exec_with("background", &script, &out, &err).expect("exec");
    let begun = Instant::now();
    shim.start("background").expect("start");
    assert_eq!(shim.wait("background").expect("wait"), 0);
    assert!(begun.elapsed() < Duration::from_secs(3), "the end after {:?}", begun.elapsed());
    assert_eq!(shim.delete("background").expect("delete"), 0);
    assert!(begun.elapsed() < Duration::from_secs(12), "deleted after {:?}", begun.elapsed());
    // The FIFO is closed: its reader has seen the end.
    assert_eq!(output.recv_timeout(SOON).expect("the end of the output"), b"x\n");
    for fifo in [stdout, stderr] {
        fs::remove_file(fifo).expect("remove the FIFO");
    }
}

/// rust-extensions #276, #236: containers ended with EPIPE when containerd, or whoever read their output, was gone.
#[test]
fn a_container_writes_on_without_containerd() {
    let containerd = Containerd::start(Release::C2);
    let id = unique("writer");
    let script = "i=0; while :; do i=$((i+1)); echo line $i || exit 1; echo $i >/count; sleep 0.02; done";
    let ctr = containerd.run(&id, &[], &["sh", "-c", script]).limit(SOON * 10).spawn();
    let task = Task { containerd: &containerd, id };
    task.wait_status("RUNNING");
    let pid = task.pid();
    let count = || -> u64 {
        let text = fs::read_to_string(format!("/proc/{pid}/root/count")).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    };
    wait_until("the first lines", SOON, || count() > 5);
    drop(ctr);
    containerd.kill(Signal::KILL);
    let before = count();
    wait_until("more lines without containerd", SOON, || count() > before + 20);
    containerd.launch();
    assert_eq!(task.status(), "RUNNING");
    let before = count();
    wait_until("more lines with the new containerd", SOON, || count() > before + 20);
    task.remove();
}

/// rust-extensions #337: a shim never ended, since a thread waited for its container's out-of-memory event.
#[test]
fn shims_end_with_their_containers() {
    let containerd = newest();
    let ids: Vec<String> = (0..20).map(|_| unique("limited")).collect();
    for id in &ids {
        containerd.run(id, &["--rm", "--null-io", "--memory-limit", "33554432"], &["true"]).run().expect(0);
    }
    wait_until("the end of the shims", SOON, || ids.iter().all(|id| containerd.shims(Some(id)).is_empty()));
    for id in &ids {
        assert!(!census::socket_file(containerd, id).exists(), "{id}");
    }
}

/// containerd #9719, #10589: the exit of a container came before its execs', or never.
#[test]
fn the_first_process_exits_last() {
    let containerd = newest();
    let events = Subscription::new(containerd);
    let task = Task::idle(containerd, &[]);
    let shim = task_api::Shim::of(&task);
    let execs: Vec<String> = (0..40).map(|_| unique("flying")).collect();
    thread::scope(|scope| {
        for some in execs.chunks(10) {
            let shim = shim.clone();
            scope.spawn(move || {
                for exec in some {
                    shim.exec(exec, &["sleep", "1000"]).expect("exec");
                    shim.start(exec).expect("start");
                }
            });
        }
    });
    signal(task.pid(), Signal::KILL);
    let all = events.until(&task.id, SOON * 3, |event| event.topic == "/tasks/exit" && event.process() == task.id);
    let exits: Vec<&Event> = all.iter().filter(|event| event.topic == "/tasks/exit").collect();
    assert_eq!(exits.len(), execs.len() + 1, "{}", lines(&all));
    assert!(exits.iter().all(|event| event.status() == 137), "{}", lines(&all));
    // What started later is refused, in words that say why.
    let (_, text) = shim.exec("late", &["true"]).and_then(|()| shim.start("late").map(drop)).expect_err("it has ended");
    assert!(text.contains("in a stopped state") || text.contains("is not running"), "{text}");
    let after = events.during(Duration::from_secs(1));
    let late = after.iter().filter(|event| event.container() == task.id && event.topic == "/tasks/exit").count();
    assert_eq!(late, 0, "{}", lines(&after));
    task.remove();
}

/// containerd's own test for #10589 adds a second exec while the first is still being started and the first process was
/// killed. The end is not told yet, so the container runs as far as anybody knows, and the exec may be added; ours said that
/// the container is stopped, and then that it is not.
#[test]
fn an_exec_is_added_before_the_end_is_told() {
    let containerd = newest();
    let task = Task::idle(containerd, &[]);
    let shim = task_api::Shim::of(&task);
    // The first exec is being started for as long as its logger is not ready.
    let dir = containerd.run.join("tmp");
    let (there, go) = (dir.join(unique("there")), dir.join(unique("go")));
    let wait = format!("touch {}; while [ ! -e {} ]; do sleep 0.02; done", there.display(), go.display());
    let program = program(&format!("#!/bin/sh\n{wait}\nexec 5>&-\ncat <&3\n"));
    shim.exec_with("first", &["true"], &format!("binary://{}", program.display()), "").expect("exec");
    thread::scope(|scope| {
        let first = scope.spawn(|| shim.start("first"));
        wait_until("the logger", SOON, || there.exists());
        let pid = task.pid();
        task.kill_first_process();
        wait_until("the end", SOON, || !Path::new(&format!("/proc/{pid}")).exists());
        assert_eq!(task.status(), "RUNNING");
        shim.exec("second", &["true"]).expect("exec");
        let (_, text) = shim.start("second").expect_err("the first process has ended");
        assert!(text.contains("is not running"), "{text}");
        fs::write(&go, "").expect("let the logger be ready");
        first.join().expect("join").expect_err("the first process has ended");
    });
    task.wait_status("STOPPED");
    for exec in ["first", "second"] {
        let status = shim.state(exec).expect("state").status.enum_value().expect("a status");
        assert_eq!(status, Status::CREATED, "{exec}");
    }
    let (_, text) = shim.exec("third", &["true"]).expect_err("its end was told");
    assert!(text.contains("in a stopped state"), "{text}");
    task.remove();
    for file in [there, go, program] {
        fs::remove_file(file).expect("remove a file");
    }
}

/// containerd #6771, #12600, #9309: what ended while containerd was away was never seen to end, and its shim stayed.
#[test]
fn an_end_while_containerd_is_away() {
    for release in [Release::C16, Release::C2, Release::C17] {
        let containerd = Containerd::start(release);
        let script = "trap 'exit 6' TERM; echo >/ready; while :; do sleep 0.05; done";
        let task = Task::of(&containerd, Shim::under_test(), &[], &["sh", "-c", script]);
        let pid = task.pid();
        wait_until("the trap", SOON, || Path::new(&format!("/proc/{pid}/root/ready")).exists());
        containerd.kill(Signal::KILL);
        signal(pid, Signal::TERM);
        wait_until("the end of the process", SOON, || !Path::new(&format!("/proc/{pid}/root/ready")).exists());
        containerd.launch();
        task.wait_status("STOPPED");
        let deleted = task.verb("delete", &[]);
        assert!(deleted.code == 6 || deleted.both().contains("exit code 6"), "{}: {}", deleted.code, deleted.both());
        wait_until("the end of the shim", SOON, || containerd.shims(Some(&task.id)).is_empty());
        assert!(!census::socket_file(&containerd, &task.id).exists());
    }
}

/// containerd #6429: after the shim's death containerd told a second exit, with 137, of what had ended with another code.
#[test]
fn the_shims_death_changes_no_exit_code() {
    for release in Release::ALL {
        let containerd = Containerd::shared(release);
        let events = Subscription::new(containerd);
        let task = Task::of(containerd, Shim::under_test(), &[], &["sh", "-c", "exit 3"]);
        let exited = |event: &Event| event.topic == "/tasks/exit";
        let first = events.until(&task.id, SOON, exited);
        assert_eq!(first.last().expect("an exit").status(), 3, "{}", lines(&first));
        containerd.shims(Some(&task.id)).into_iter().for_each(|pid| signal(pid, Signal::KILL));
        let after = events.during(Duration::from_secs(4));
        let after: Vec<Event> = after.into_iter().filter(|event| event.container() == task.id).collect();
        let codes: Vec<u64> =
            after.iter().filter(|event| !event.fields["exit_status"].is_null()).map(Event::status).collect();
        assert!(codes.iter().all(|&code| code == 3), "{release:?}\n{}", lines(&after));
        wait_until("the end of the bundle", SOON, || !containerd.bundle(&task.id).exists());
        let socket = census::socket_file(containerd, &task.id);
        assert!(!socket.exists(), "{}", socket.display());
    }
}

/// containerd #8180, #8893: the reason `OOMKilled` was missing, since the event came after the exit or not at all.
#[test]
fn out_of_memory_is_told_before_the_exit() {
    let containerd = newest();
    let events = Subscription::new(containerd);
    let id = unique("oom");
    // A string that is doubled for ever.
    let script = "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done";
    let run = containerd.run(&id, &["--rm", "--null-io", "--memory-limit", "16777216"], &["sh", "-c", script]);
    run.limit(SOON * 3).run().expect(137);
    let all = events.until(&id, SOON, |event| event.topic == "/tasks/exit");
    let topics: Vec<&str> = all.iter().map(|event| event.topic.as_str()).collect();
    assert_eq!(topics, ["/tasks/create", "/tasks/start", "/tasks/oom", "/tasks/exit"], "{}", lines(&all));
    assert_eq!(all[3].status(), 137, "{}", lines(&all));
}

/// containerd #802: a bundle could not be deleted, since something was still mounted in it.
#[test]
fn bundles_are_never_busy() {
    for release in Release::ALL {
        let containerd = Containerd::shared(release);
        let from = containerd.log_len();
        for n in 0..15 {
            let output =
                containerd.run(&unique("busy"), &["--rm", "--null-io"], &["sh", "-c", &format!("exit {n}")]).run();
            assert_eq!((output.code, output.both().contains("busy")), (n, false), "{}", output.both());
        }
        let log = containerd.log(from);
        let busy: Vec<&str> = log.lines().filter(|line| line.contains("resource busy")).collect();
        assert!(busy.is_empty(), "{busy:#?}");
    }
}

/// containerd #13377: where the pid namespace is shared, a child that held the output kept `delete` waiting for longer than
/// Kubernetes waits.
#[test]
fn delete_runs_though_the_output_is_held() {
    let containerd = newest();
    let pod = Task::idle(containerd, &[]);
    let namespace = format!("pid:/proc/{}/ns/pid", pod.pid());
    let (id, fifo) = (unique("holder"), containerd.run.join("fifo"));
    let options = ["--with-ns", &namespace];
    let script = "sleep 1000 & echo x; exit 2";
    let begun = Instant::now();
    // In the foreground, so that its output is a FIFO.
    let output = containerd.run(&id, &[&["--rm"][..], &options].concat(), &["sh", "-c", script]).run().expect(2);
    assert_eq!(output.stdout, "x\n");
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    wait_until("the end of the shim", SOON, || containerd.shims(Some(&id)).is_empty());
    let left = Cmd::new("find").arg(fifo).args(["-name", &format!("{id}-*")]).ok();
    assert_eq!(left, "");
    pod.remove();
}

/// Both names of the service, and a second exec of the same name: rust-extensions let it replace the first.
#[test]
fn an_execs_name_is_its_own() {
    let task = Task::idle(newest(), &[]);
    let shim = task_api::Shim::of(&task);
    let pid = u32::try_from(task.pid()).expect("positive");
    if Shim::under_test() == Shim::Ours {
        for shim in shim.by_each_name() {
            assert_eq!(shim.connect().expect("connect").task_pid, pid);
        }
    }
    shim.exec("twice", &["sleep", "1000"]).expect("exec");
    let (code, text) = shim.exec("twice", &["true"]).expect_err("the name is taken");
    assert_eq!(code, Code::ALREADY_EXISTS, "{text}");
    assert!(text.contains("twice"), "{text}");
    shim.start("twice").expect("start");
    let (code, _) = shim.exec("twice", &["true"]).expect_err("the name is taken");
    assert_eq!(code, Code::ALREADY_EXISTS);
    // A real-time signal made that shim panic.
    shim.kill("twice", 40, false).expect("kill");
    assert_eq!(shim.wait("twice").expect("wait"), 128 + 40);
    assert_eq!(shim.delete("twice").expect("delete"), 128 + 40);
    shim.exec("twice", &["true"]).expect("the name is free again");
    shim.start("twice").expect("start");
    assert_eq!(shim.wait("twice").expect("wait"), 0);
}

/// rust-extensions let `Wait` of a paused task return at once.
#[test]
fn wait_of_a_paused_task_waits() {
    let task = Task::idle(newest(), &[]);
    let shim = task_api::Shim::of(&task);
    task.verb("pause", &[]).expect(0);
    let (sender, receiver) = mpsc::channel();
    let waiter = shim.clone();
    thread::spawn(move || sender.send(waiter.wait("")));
    assert!(receiver.recv_timeout(Duration::from_secs(1)).is_err(), "it came back from a task that runs");
    task.verb("resume", &[]).expect(0);
    task.kill_first_process();
    assert_eq!(receiver.recv_timeout(SOON).expect("the end").expect("wait"), 137);
}

/// rust-extensions dropped the output that was to go to a file.
#[test]
fn output_goes_to_a_file() {
    let containerd = newest();
    let log = containerd.run.join("tmp").join(unique("log"));
    let address = format!("file://{}", log.display());
    let id = unique("logged");
    let options = ["--detach", "--log-uri", &address];
    containerd.run(&id, &options, &["sh", "-c", "echo out; echo err >&2; sleep 1000"]).run().expect(0);
    let task = Task { containerd, id };
    let text = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("both lines", SOON, || text().contains("out\n") && text().contains("err\n"));
    task.remove();
    fs::remove_file(&log).expect("remove the log");
}

/// And to a program, which gets three descriptors and says when it is ready.
#[test]
fn output_goes_to_a_program() {
    let containerd = newest();
    let dir = containerd.run.join("tmp");
    let log = dir.join(unique("log"));
    let script = "#!/bin/sh\nexec 5>&-\necho \"$CONTAINER_NAMESPACE $CONTAINER_ID $*\" >\"$2\"\ncat <&3 >>\"$2\"\n";
    let program = program(script);
    let address = format!("binary://{}?file={}", program.display(), log.display());
    let id = unique("logged");
    containerd
        .run(&id, &["--detach", "--log-uri", &address], &["sh", "-c", "echo out; exec sleep 1000"])
        .run()
        .expect(0);
    let task = Task { containerd, id };
    let expected = format!("{} {} file {}\nout\n", containerd.namespace, task.id, log.display());
    wait_until("the line", SOON, || fs::read_to_string(&log).unwrap_or_default() == expected);
    task.remove();
    wait_until("the end of the logger", SOON, || {
        let name = program.display().to_string();
        !super::daemon::processes().iter().any(|(_, line)| String::from_utf8_lossy(line).contains(&name))
    });
    fs::remove_file(&log).expect("remove the log");
    fs::remove_file(&program).expect("remove the program");
}

/// The program of an exec was told the container's id; containerd's own shim tells it the exec's.
#[test]
fn an_execs_program_is_told_the_execs_id() {
    let containerd = newest();
    let task = Task::idle(containerd, &[]);
    let shim = task_api::Shim::of(&task);
    let dir = containerd.run.join("tmp");
    let log = dir.join(unique("log"));
    let script = "#!/bin/sh\nexec 5>&-\necho \"$CONTAINER_NAMESPACE $CONTAINER_ID\" >\"$2\"\ncat <&3 >>\"$2\"\n";
    let program = program(script);
    let address = format!("binary://{}?file={}", program.display(), log.display());
    shim.exec_with("told", &["echo", "out"], &address, "").expect("exec");
    shim.start("told").expect("start");
    assert_eq!(shim.wait("told").expect("wait"), 0);
    shim.delete("told").expect("delete");
    let expected = format!("{} told\nout\n", containerd.namespace);
    wait_until("the line", SOON, || fs::read_to_string(&log).unwrap_or_default() == expected);
    fs::remove_file(&log).expect("remove the log");
    fs::remove_file(&program).expect("remove the program");
}
