//! What happens at once in a shim, and what a runtime leaves that dies half-way.
//!
//! Needs root. The shim is the real one; the runtime is a script that takes as long as a test needs and tells how it was
//! called, so that the order of things is no matter of chance.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use agentsbx::durable::LockFile;
use containerd_shim_protos::api::{
    CreateTaskRequest, DeleteRequest, ExecProcessRequest, KillRequest, ShutdownRequest, StartRequest, StateRequest,
    StateResponse, WaitRequest,
};
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::ttrpc::{self, Client, Code};
use containerd_shim_protos::types::task::Status;

use crate::boot::{Lab, ask, within};

const ID: &str = "c";

/// Reads its options, notes how it was called, and does what the test says for the verb. `say` is an error as the shim
/// reads it; `orphan` starts a process that is handed to the shim.
const RUNTIME: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
all=$*
while [ $# -gt 0 ]; do
    case $1 in
    --log) log=$2 && shift ;;
    --pid-file) pid_file=$2 && shift ;;
    --root | --log-format | --bundle | --process | --result | --exec) shift ;;
    create | start | exec | kill | delete) verb=$1 ;;
    esac
    shift
done
echo "$verb $all" >>calls
say() { echo "{\"level\": \"error\", \"msg\": \"$1\"}" >"$log"; exit 1; }
orphan() { "$@" & echo -n $! >"$pid_file"; }
case $verb in
"#;

/// The rest of it: what a verb does that the test says nothing of.
const USUAL: &str = r#"
create) orphan sleep 60 </dev/null >/dev/null 2>&1; cp "$pid_file" first ;;
exec) orphan sleep 60 </dev/null >/dev/null 2>&1 ;;
delete) kill -9 "$(cat first)" 2>/dev/null ;;
esac
exit 0
"#;

struct Scene {
    lab: Lab,
    client: Client,
}

impl Scene {
    /// A shim with a runtime of these cases.
    fn new(cases: &str) -> Scene {
        let lab = Lab::new(r#"{"linux": {"namespaces": [{"type": "pid"}]}}"#);
        let program = lab.bundle().join("runtime");
        fs::write(&program, format!("{RUNTIME}{cases}{USUAL}")).expect("write");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, mode).expect("chmod");
        let client = Client::connect(&lab.start(ID)).expect("connect");
        Scene { lab, client }
    }

    fn ask<M: Message>(&self, method: &str, request: &M) -> Result<Vec<u8>, (Code, String)> {
        let payload = request.write_to_bytes().expect("encode");
        ask(&self.client, "containerd.task.v2.Task", method, payload).map_err(|err| match err {
            ttrpc::Error::RpcStatus(status) => (status.code(), status.message),
            other => panic!("{method}: {other}"),
        })
    }

    fn create(&self) -> Result<Vec<u8>, (Code, String)> {
        let binary_name = self.lab.bundle().join("runtime").display().to_string();
        let options = Options { binary_name, root: self.lab.bundle().display().to_string(), ..Options::default() };
        let value = options.write_to_bytes().expect("encode");
        let options = Any { type_url: "containerd.runc.v1.Options".into(), value, ..Any::default() };
        let bundle = self.lab.bundle().display().to_string();
        let request =
            CreateTaskRequest { id: ID.into(), bundle, options: Some(options).into(), ..CreateTaskRequest::default() };
        self.ask("Create", &request)
    }

    fn exec(&self, stdout: &str) {
        let request = ExecProcessRequest {
            id: ID.into(),
            exec_id: "e".into(),
            stdout: stdout.into(),
            ..ExecProcessRequest::default()
        };
        self.ask("Exec", &request).expect("exec");
    }

    fn start(&self, exec: &str) -> Result<Vec<u8>, (Code, String)> {
        self.ask("Start", &StartRequest { id: ID.into(), exec_id: exec.into(), ..StartRequest::default() })
    }

    fn delete(&self, exec: &str) -> Result<Vec<u8>, (Code, String)> {
        self.ask("Delete", &DeleteRequest { id: ID.into(), exec_id: exec.into(), ..DeleteRequest::default() })
    }

    fn kill(&self, exec: &str) -> Result<Vec<u8>, (Code, String)> {
        let request = KillRequest { id: ID.into(), exec_id: exec.into(), signal: 9, ..KillRequest::default() };
        self.ask("Kill", &request)
    }

    fn state(&self, exec: &str) -> Result<Status, (Code, String)> {
        let request = StateRequest { id: ID.into(), exec_id: exec.into(), ..StateRequest::default() };
        let answer = self.ask("State", &request)?;
        Ok(StateResponse::parse_from_bytes(&answer).expect("decode").status.enum_value_or_default())
    }

    fn shutdown(&self) {
        self.ask("Shutdown", &ShutdownRequest { id: ID.into(), ..ShutdownRequest::default() }).expect("shutdown");
    }

    /// Ends the first process, from outside.
    fn end(&self) {
        let pid = fs::read_to_string(self.file("first")).expect("read").trim().parse().expect("a pid");
        let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
        let wait = WaitRequest { id: ID.into(), ..WaitRequest::default() };
        self.ask("Wait", &wait).expect("wait");
    }

    fn socket(&self) -> PathBuf {
        let address = fs::read_to_string(self.file("address")).expect("read the address");
        address.trim_start_matches("unix://").into()
    }

    /// How the runtime was called, each line with the verb first.
    fn calls(&self) -> String {
        fs::read_to_string(self.lab.bundle().join("calls")).unwrap_or_default()
    }

    fn called(&self, verb: &str) -> bool {
        self.calls().lines().any(|line| line.starts_with(verb))
    }

    fn wait_for_call(&self, verb: &str) {
        within(Duration::from_secs(10), verb, || self.called(verb));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.lab.bundle().join(name)
    }
}

/// A client that went away while its container was made left a container of which nobody knew: containerd deletes it at
/// once, was told that there is none, and never asked again.
#[test]
fn a_container_that_is_deleted_while_it_is_made_goes() {
    let scene = Scene::new(
        "create) until [ -e go ]; do sleep 0.05; done; orphan sleep 60 >/dev/null 2>&1; cp \"$pid_file\" first ;;",
    );
    thread::scope(|scope| {
        let create = scope.spawn(|| scene.create());
        scene.wait_for_call("create");
        assert_eq!(scene.delete("").expect_err("it is not there yet").0, Code::NOT_FOUND);
        fs::write(scene.file("go"), "").expect("write");
        let (code, text) = create.join().expect("join").expect_err("nobody wants it");
        assert!(code == Code::FAILED_PRECONDITION && text.contains("deleted while it was made"), "{text}");
    });
    assert!(scene.called("delete"), "{}", scene.calls());
    assert_eq!(scene.state("").expect_err("it is gone").0, Code::NOT_FOUND);
}

/// An exec that was deleted twice at once took the next one of its id with it.
#[test]
fn an_exec_that_is_deleted_twice_takes_no_other_with_it() {
    // Something holds its output, so that the first deletion takes a second. The exec ends only when the shell has: that
    // would reap it, as no runtime does.
    let scene = Scene::new("exec) sleep 1 & orphan sh -c \"while kill -0 $$ 2>/dev/null; do sleep 0.01; done\" ;;");
    scene.create().expect("create");
    scene.start("").expect("start");
    let fifo = scene.file("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).expect("mkfifo");
    scene.exec(&fifo.display().to_string());
    scene.start("e").expect("start");
    let wait = WaitRequest { id: ID.into(), exec_id: "e".into(), ..WaitRequest::default() };
    scene.ask("Wait", &wait).expect("wait");
    thread::scope(|scope| {
        let first = scope.spawn(|| scene.delete("e"));
        thread::sleep(Duration::from_millis(200));
        let second = scene.delete("e");
        scene.exec("");
        first.join().expect("join").expect("delete");
        assert_eq!(second.expect_err("the first did it").0, Code::NOT_FOUND);
    });
    assert_eq!(scene.state("e").expect("the other one is there"), Status::CREATED);
    scene.kill("").expect("kill");
}

/// An exec that was killed while it was being started ran on: the answer was that there is none, as for one that has ended.
#[test]
fn a_kill_during_the_start_of_an_exec_reaches_it() {
    let cases = "exec) until grep -q ^kill calls; do sleep 0.05; done; orphan sleep 60 >/dev/null 2>&1; touch known ;;
        kill) [ -e known ] || say 'exec e does not exist' ;;";
    let scene = Scene::new(cases);
    scene.create().expect("create");
    scene.start("").expect("start");
    scene.exec("");
    thread::scope(|scope| {
        let start = scope.spawn(|| scene.start("e"));
        scene.wait_for_call("exec");
        scene.kill("e").expect("a kill");
        start.join().expect("join").expect("start");
    });
    assert_eq!(scene.calls().lines().last().map(|line| line.starts_with("kill ")), Some(true), "{}", scene.calls());
}

/// A runtime that was killed while it made a container left its state and its cgroups: containerd never asks for what was
/// not made.
#[test]
fn what_a_runtime_leaves_that_dies_in_create_is_deleted() {
    let scene = Scene::new("create) orphan sleep 60 >/dev/null 2>&1; cp \"$pid_file\" first; kill -9 $$ ;;");
    let (_, text) = scene.create().expect_err("the runtime died");
    assert_eq!(text, "OCI runtime create failed: it ended with 137 and said nothing");
    assert!(scene.called("delete"), "{}", scene.calls());
    // One that says why has put away what it made; and what has the id may be another's.
    let scene = Scene::new("create) say 'the id is taken' ;;");
    let (_, text) = scene.create().expect_err("the runtime refused");
    assert_eq!(text, "OCI runtime create failed: the id is taken");
    assert!(!scene.called("delete"), "{}", scene.calls());
}

/// The command of an exec whose starter was killed ran, and nobody knew of it; the next one of that id was not the one
/// that a kill reached.
#[test]
fn an_exec_whose_starter_dies_is_ended() {
    let cases = "exec) orphan sleep 60 >/dev/null 2>&1; kill -9 $$ ;;
        kill) [ -e killed ] && say 'process already finished'; touch killed ;;";
    let scene = Scene::new(cases);
    scene.create().expect("create");
    scene.start("").expect("start");
    scene.exec("");
    let (_, text) = scene.start("e").expect_err("the runtime died");
    assert_eq!(text, "OCI runtime exec failed: it ended with 137 and said nothing");
    let kills = scene.calls().lines().filter(|line| line.starts_with("kill ") && line.contains("--exec e ")).count();
    assert_eq!(kills, 2, "{}", scene.calls());
    scene.delete("e").expect("delete");
    assert_eq!(scene.state("").expect("it runs"), Status::RUNNING);
}

/// Between the end of the last container and the removal of the socket another one is made; it was refused, though `start`
/// had told containerd that this shim serves it.
#[test]
fn a_container_that_comes_at_the_last_moment_is_made() {
    let scene = Scene::new("");
    let socket = scene.socket();
    // As somebody who looks whether it is served.
    let lock = LockFile::lock_for(&socket.with_extension("lock"), Duration::from_secs(5)).expect("lock").expect("free");
    scene.shutdown();
    let newcomer = Client::connect(&format!("unix://{}", socket.display())).expect("connect");
    let scene = Scene { client: newcomer, ..scene };
    scene.create().expect("create");
    lock.unlink().expect("unlock");
    scene.start("").expect("start");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(scene.state("").expect("it is served"), Status::RUNNING);
    assert!(socket.exists());
    scene.end();
    scene.delete("").expect("delete");
    within(Duration::from_secs(10), "the shim ends", || scene.lab.servers().is_empty());
    assert!(!socket.exists());
}

/// A shim that ends since nothing runs made what was asked for in its last seconds, and left it behind.
#[test]
fn nothing_is_made_when_the_end_has_begun() {
    let scene = Scene::new("");
    let socket = scene.socket();
    scene.create().expect("create");
    scene.start("").expect("start");
    scene.end();
    scene.delete("").expect("delete");
    // Its events wait for a containerd that is not there: that takes five seconds.
    let server = rustix::process::Pid::from_raw(scene.lab.servers()[0]).expect("a pid");
    rustix::process::kill_process(server, rustix::process::Signal::TERM).expect("kill");
    within(Duration::from_secs(4), "the socket goes", || !socket.exists());
    let (code, text) = scene.create().expect_err("it ends");
    assert!(code == Code::FAILED_PRECONDITION && text.contains("the shim is ending"), "{text}");
    within(Duration::from_secs(10), "the shim ends", || scene.lab.servers().is_empty());
}

/// A supervisor that hangs kept its container from ending: the kernel ends no first process before every command in its pid
/// namespace is reaped.
#[test]
#[ignore = "a minute"]
fn a_supervisor_that_hangs_is_ended_with_its_container() {
    // The first process ends when the supervisor has.
    let cases = "create) orphan sh -c 'until [ -e pid ] && ! kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done' \\
            >/dev/null 2>&1; cp \"$pid_file\" first ;;
        exec) orphan sleep 600 >/dev/null 2>&1; cp \"$pid_file\" pid ;;";
    let scene = Scene::new(cases);
    scene.create().expect("create");
    scene.start("").expect("start");
    scene.exec("");
    scene.start("e").expect("start");
    scene.kill("").expect("kill");
    within(Duration::from_secs(90), "the end", || scene.state("") == Ok(Status::STOPPED));
}
