//! containerd's own client, `ctr`: tasks and execs with the binary under test.

use std::time::Duration;

use serde_json::Value;

use crate::support::engines::{Engines, engines};
use crate::support::env::{process, unique};
use crate::support::images::BUSYBOX;
use crate::support::{Cmd, Output, result, wait_until};

/// A container and its task, ended by force.
struct Task {
    engines: &'static Engines,
    id: String,
}

fn run_options(id: &str) -> Vec<String> {
    let wrapper = engines().with_ctr_image().wrapper.display().to_string();
    let cgroup = format!("{}/ctr/{id}", process().cgroup);
    ["--runtime", "io.containerd.runc.v2", "--runc-binary", &wrapper, "--cgroup", &cgroup].map(str::to_owned).to_vec()
}

impl Task {
    #[track_caller]
    fn idle(options: &[&str]) -> Task {
        let id = unique("task");
        let engines = engines();
        let ctr = engines.ctr(["run", "--detach"]).args(run_options(&id)).args(options);
        ctr.args([BUSYBOX, &id, "sleep", "100000"]).ok();
        Task { engines, id }
    }

    fn exec(&self, options: &[&str], args: &[&str]) -> Output {
        self.exec_cmd(options, args).run()
    }

    fn exec_cmd(&self, options: &[&str], args: &[&str]) -> Cmd {
        let exec = unique("exec");
        self.engines.ctr(["tasks", "exec", "--exec-id", &exec]).args(options).arg(&self.id).args(args)
    }

    fn sh(&self, script: &str) -> Output {
        self.exec(&[], &["sh", "-c", script])
    }

    #[track_caller]
    fn show(&self) -> Value {
        self.engines.json(["show", &self.id])
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.engines.ctr(["tasks", "kill", "--signal", "KILL", &self.id]).run();
        self.engines.ctr(["tasks", "delete", "--force", &self.id]).run();
        self.engines.ctr(["containers", "delete", &self.id]).run();
    }
}

/// `ctr run` gives output and exit code.
#[test]
fn ctr_run_gives_output_and_exit_code() {
    let id = unique("task");
    let ctr = engines().ctr(["run", "--rm"]).args(run_options(&id));
    let output = ctr.args([BUSYBOX, &id, "sh", "-c", "echo out; exit 7"]).run().expect(7);
    assert_eq!(output.stdout, "out\n");
}

/// `ctr tasks exec` has a layer of its own, which the next exec sees committed.
#[test]
fn ctr_exec_commits() {
    let task = Task::idle(&[]);
    task.sh("echo x >/x; rm /bin/vi; exit 3").expect(3);
    assert_eq!(result::end(&task.show()), ("exited", Some(3)));
    assert_eq!(task.sh("cat /x; ls /bin/vi 2>&1 | grep -c such").ok(), "x\n1");
    task.engines.agentsbx(["rollback", &task.id, "0"]).ok();
    task.sh("ls /x").expect(1);
    task.sh("ls /bin/vi").expect(0);
}

/// Annotations choose the layer's mode, and what the runtime tells is written back beside them.
#[test]
fn annotations_are_read_and_written() {
    let task = Task::idle(&["--annotation", "dev.agentsbx.layer=discard", "--annotation", "dev.agentsbx.timeout=2"]);
    task.sh("echo x >/x").expect(0);
    assert_eq!(result::disposition(&task.show()), "discarded");
    task.sh("ls /x").expect(1);
    task.sh("sleep 1000").expect(124);
    let annotations = &task.engines.config("it", &task.id)["annotations"];
    assert_eq!(annotations["dev.agentsbx.layer"], "discard");
    assert_eq!(annotations["dev.agentsbx.generation"], "0");
    let diff: Value = serde_json::from_str(annotations["dev.agentsbx.diff"].as_str().expect("a diff")).expect("JSON");
    assert_eq!(result::end(&diff).0, "timeout");
}

/// containerd's exec id is a name for the exec in every verb.
#[test]
fn containerds_exec_id_is_an_alias() {
    let task = Task::idle(&["--annotation", "dev.agentsbx.layer=hold"]);
    let name = unique("alias");
    let exec = task.engines.ctr(["tasks", "exec", "--exec-id", &name, &task.id, "sh", "-c", "echo x >/x"]);
    exec.run().expect(0);
    let result = task.engines.json(["show", &task.id, &name]);
    assert_eq!(result["engineExec"], name.as_str(), "{result}");
    task.engines.agentsbx(["commit", &task.id, &name]).ok();
    task.sh("cat /x").expect(0);
}

/// An exec on a terminal, a signal to the task, and the state that containerd is told.
#[test]
fn ctr_terminal_kill_and_state() {
    let task = Task::idle(&[]);
    let output = task.exec_cmd(&["--tty"], &["sh", "-c", "tty"]).on_terminal().run().expect(0);
    assert!(output.stdout.contains("/dev/pts/"), "{}", output.stdout);
    let status = || -> String {
        let list = task.engines.ctr(["tasks", "list"]).ok();
        let line = list.lines().find(|l| l.starts_with(&format!("{} ", task.id))).unwrap_or_default().to_owned();
        line.split_whitespace().last().unwrap_or_default().to_owned()
    };
    assert_eq!(status(), "RUNNING");
    task.engines.ctr(["tasks", "pause", &task.id]).ok();
    assert_eq!(status(), "PAUSED");
    task.engines.ctr(["tasks", "resume", &task.id]).ok();
    task.engines.ctr(["tasks", "kill", "--signal", "KILL", &task.id]).ok();
    wait_until("the end of the task", Duration::from_secs(10), || status() == "STOPPED");
}
