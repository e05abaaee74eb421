//! What a user does with a sandbox, from `run` to `delete`, with each release of containerd and of Docker: the same steps
//! with the same outcome, and a table of them.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::daemon::{Containerd, Release, SOON, Shim, Task, fill_path};
use crate::support::engines::{Engines, other_engines};
use crate::support::env::{process, unique};
use crate::support::images::BUSYBOX;
use crate::support::{Cmd, Output, result, wait_until};

/// A client and what is behind it.
enum Front {
    Ctr(Box<Containerd>),
    Docker(Box<Engines>),
}

/// A front and the container of the story.
struct Scene {
    front: Front,
    id: String,
}

impl Scene {
    fn is_docker(&self) -> bool {
        matches!(self.front, Front::Docker(..))
    }

    fn docker<const N: usize>(&self, args: [&str; N]) -> Cmd {
        match &self.front {
            Front::Docker(engines) => engines.docker(args),
            Front::Ctr(_) => panic!("not a step of ctr"),
        }
    }

    fn ctr<const N: usize>(&self, args: [&str; N]) -> Cmd {
        match &self.front {
            Front::Ctr(containerd) => containerd.ctr(args),
            Front::Docker(..) => panic!("not a step of Docker"),
        }
    }

    /// `run` in the foreground; the container is gone afterwards.
    fn run(&self, options: &[&str], args: &[&str]) -> Cmd {
        match &self.front {
            Front::Ctr(containerd) => containerd.run(&unique("task"), &[&["--rm"], options].concat(), args),
            Front::Docker(engines) => {
                let docker = engines.docker(["run", "--rm", "--runtime", docker_runtime()]);
                docker.args(options).arg(BUSYBOX).args(args)
            }
        }
    }

    /// A container in the background; its id.
    fn start(&self, annotations: &[&str], args: &[&str]) -> String {
        let options: Vec<&str> = annotations.iter().flat_map(|a| ["--annotation", *a]).collect();
        match &self.front {
            Front::Ctr(containerd) => {
                let task = Task::of(containerd, Shim::under_test(), &options, args);
                let id = task.id.clone();
                std::mem::forget(task);
                id
            }
            Front::Docker(engines) => {
                let docker = engines.docker(["run", "--detach", "--runtime", docker_runtime()]);
                docker.args(options).arg(BUSYBOX).args(args).ok()
            }
        }
    }

    fn exec_in(&self, id: &str, options: &[&str], args: &[&str]) -> Cmd {
        match &self.front {
            Front::Ctr(containerd) => {
                let fifos = containerd.run.join("fifo");
                let ctr = containerd.ctr(["tasks", "exec", "--exec-id", &unique("exec"), "--fifo-dir"]).arg(fifos);
                ctr.args(options).arg(id).args(args)
            }
            Front::Docker(engines) => engines.docker(["exec"]).args(options).arg(id).args(args),
        }
    }

    fn sh(&self, script: &str) -> Output {
        self.exec_in(&self.id, &[], &["sh", "-c", script]).run()
    }

    fn agentsbx(&self, args: &[&str]) -> Cmd {
        match &self.front {
            Front::Ctr(containerd) => containerd.agentsbx(args),
            Front::Docker(engines) => engines.agentsbx(args),
        }
    }

    fn show(&self, id: &str) -> Value {
        let text = self.agentsbx(&["show", id, "--json"]).ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    fn status(&self, id: &str) -> String {
        match &self.front {
            Front::Ctr(containerd) => {
                let list = containerd.ctr(["tasks", "list"]).ok();
                let line = list.lines().find(|line| line.starts_with(&format!("{id} "))).unwrap_or_default();
                line.split_whitespace().last().unwrap_or_default().to_owned()
            }
            Front::Docker(engines) => {
                let status = engines.docker(["inspect", "--format", "{{.State.Status}}", id]).run().stdout;
                status.trim().to_uppercase()
            }
        }
    }

    fn remove(&self, id: &str) {
        match &self.front {
            Front::Ctr(containerd) => {
                containerd.ctr(["tasks", "kill", "--signal", "KILL", id]).run();
                wait_until("the end of the task", SOON, || ["STOPPED", ""].contains(&self.status(id).as_str()));
                containerd.ctr(["tasks", "delete", id]).run();
                containerd.ctr(["containers", "delete", id]).ok();
            }
            Front::Docker(engines) => drop(engines.docker(["rm", "--force", id]).ok()),
        }
    }
}

/// Docker knows containerd's own shim by the runtime's path alone.
fn docker_runtime() -> &'static str {
    match Shim::under_test() {
        Shim::Ours => Shim::Ours.runtime(),
        Shim::StockOurs => "agentsbx",
        Shim::Stock => "runc",
    }
}

/// For whom a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    All,
    Ctr,
    Docker,
}

type Step = (Of, &'static str, fn(&mut Scene));

const STEPS: &[Step] = &[
    (Of::All, "run: output and exit code", run),
    (Of::All, "run: a command that is missing", run_missing),
    (Of::All, "run: what is typed is read", run_stdin),
    (Of::All, "run in the background", start),
    (Of::All, "exec: output and exit code", exec),
    (Of::All, "exec: a command that is missing", exec_missing),
    (Of::All, "exec on a terminal", exec_terminal),
    (Of::All, "exec: what is typed is read", exec_stdin),
    (Of::All, "8 execs in parallel", parallel),
    (Of::All, "diff", diff),
    (Of::All, "roll back", rollback),
    (Of::All, "hold, and commit", hold),
    (Of::All, "pause and resume", pause),
    (Of::Ctr, "kill an exec", kill_exec),
    (Of::Ctr, "ps", ps),
    (Of::All, "metrics, stats", metrics),
    (Of::Docker, "logs", logs),
    (Of::Docker, "top", top),
    (Of::Docker, "stop and start", stop),
    (Of::Docker, "restart", restart),
    (Of::All, "kill: the code is told", kill),
    (Of::All, "delete: nothing is left", delete),
];

fn run(scene: &mut Scene) {
    let output = scene.run(&[], &["sh", "-c", "echo out; echo err >&2; exit 7"]).run().expect(7);
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
}

fn run_missing(scene: &mut Scene) {
    let output = scene.run(&[], &["/no/such/program"]).run();
    assert_eq!(output.code, if scene.is_docker() { 127 } else { 1 }, "{}", output.both());
    assert!(output.both().contains("no such file or directory"), "{}", output.both());
    assert!(output.both().contains("OCI runtime create failed"), "{}", output.both());
}

fn run_stdin(scene: &mut Scene) {
    let options: &[&str] = if scene.is_docker() { &["--interactive"] } else { &[] };
    // ctr 1.6 and 1.7 lose the end of what is typed if it comes before the task is there.
    let late = "{ sleep 1; cat; } | \"$@\"";
    let run = scene.run(options, &["wc", "-c"]).in_shell(late).stdin("x".repeat(100_000));
    assert_eq!(run.run().expect(0).stdout.trim(), "100000");
}

fn start(scene: &mut Scene) {
    scene.id = scene.start(&[], &["sh", "-c", "echo the first process; exec sleep 100000"]);
    assert_eq!(scene.status(&scene.id), "RUNNING");
}

fn exec(scene: &mut Scene) {
    let output = scene.sh("echo out; echo err >&2; exit 3").expect(3);
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(result::end(&scene.show(&scene.id)), ("exited", Some(3)));
}

fn exec_missing(scene: &mut Scene) {
    let output = scene.exec_in(&scene.id, &[], &["/no/such/program"]).run();
    // Docker 26 says 126 of an exec, with runc too.
    let codes: &[i32] = if scene.is_docker() { &[126, 127] } else { &[1] };
    assert!(codes.contains(&output.code), "{}: {}", output.code, output.both());
    assert!(output.both().contains("no such file or directory"), "{}", output.both());
    assert_eq!(scene.status(&scene.id), "RUNNING");
}

fn exec_terminal(scene: &mut Scene) {
    let options: &[&str] = if scene.is_docker() { &["--interactive", "--tty"] } else { &["--tty"] };
    // The size is set when the command runs already.
    let script = "tty; sleep 1; stty size; exit 5";
    let line = "stty rows 33 cols 77; exec \"$@\"";
    let exec = scene.exec_in(&scene.id, options, &["sh", "-c", script]).in_shell(line).on_terminal();
    let output = exec.run().expect(5);
    assert!(output.stdout.contains("/dev/pts/"), "{}", output.stdout);
    assert!(output.stdout.contains("33 77"), "{}", output.stdout);
}

fn exec_stdin(scene: &mut Scene) {
    let options: &[&str] = if scene.is_docker() { &["--interactive"] } else { &[] };
    let output = scene.exec_in(&scene.id, options, &["wc", "-c"]).stdin("x".repeat(100_000)).run().expect(0);
    assert_eq!(output.stdout.trim(), "100000");
}

fn parallel(scene: &mut Scene) {
    let exec = |n: usize| {
        let script = format!("echo {n} >/file-{n}; echo {n}; exit {n}");
        scene.exec_in(&scene.id, &[], &["sh", "-c", &script]).spawn()
    };
    let execs: Vec<_> = (0..8).map(exec).collect();
    for (n, exec) in execs.into_iter().enumerate() {
        let output = exec.wait().expect(i32::try_from(n).expect("small"));
        assert_eq!(output.stdout, format!("{n}\n"));
    }
    assert_eq!(scene.sh("cat /file-?").ok(), "0\n1\n2\n3\n4\n5\n6\n7");
}

fn diff(scene: &mut Scene) {
    scene.sh("rm /bin/vi; echo more >>/etc/passwd").expect(0);
    let diff = scene.agentsbx(&["diff", &scene.id, "--name-only"]).ok();
    let has = |path: &str| diff.lines().any(|line| line.ends_with(path));
    assert!(has("/file-0") && has("/file-7") && has("/bin/vi") && has("/etc/passwd"), "{diff}");
}

fn rollback(scene: &mut Scene) {
    scene.agentsbx(&["rollback", &scene.id, "0"]).ok();
    scene.sh("ls /file-0").expect(1);
    scene.sh("ls /bin/vi && ! grep more /etc/passwd").expect(0);
}

fn hold(scene: &mut Scene) {
    let id = scene.start(&["dev.agentsbx.layer=hold"], &["sleep", "100000"]);
    scene.exec_in(&id, &[], &["sh", "-c", "echo held >/held"]).run().expect(0);
    let result = scene.show(&id);
    assert_eq!(result::disposition(&result), "held");
    scene.exec_in(&id, &[], &["ls", "/held"]).run().expect(1);
    scene.agentsbx(&["commit", &id, result::exec(&result)]).ok();
    assert_eq!(scene.exec_in(&id, &[], &["cat", "/held"]).ok(), "held");
    scene.remove(&id);
}

fn pause(scene: &mut Scene) {
    let verbs = |verb: &str| match scene.is_docker() {
        true => scene.docker([if verb == "resume" { "unpause" } else { verb }, &scene.id]).ok(),
        false => scene.ctr(["tasks", verb, &scene.id]).ok(),
    };
    verbs("pause");
    assert_eq!(scene.status(&scene.id), "PAUSED");
    let output = scene.exec_in(&scene.id, &[], &["true"]).run();
    assert!(output.code != 0 && output.both().contains("paused"), "{}", output.both());
    verbs("resume");
    assert_eq!(scene.status(&scene.id), "RUNNING");
    scene.sh("true").expect(0);
}

fn kill_exec(scene: &mut Scene) {
    for (signal, code) in [("TERM", 143), ("KILL", 137)] {
        let name = unique("killed");
        let exec = scene.ctr(["tasks", "exec", "--exec-id", &name, &scene.id, "sleep", "1000"]).spawn();
        let kill = || scene.ctr(["tasks", "kill", "--exec-id", &name, "--signal", signal, &scene.id]).run().code == 0;
        wait_until("the signal is sent", SOON, kill);
        exec.wait().expect(code);
    }
    assert_eq!(scene.status(&scene.id), "RUNNING");
}

fn ps(scene: &mut Scene) {
    let name = unique("seen");
    let exec = scene.ctr(["tasks", "exec", "--exec-id", &name, &scene.id, "sleep", "2"]).spawn();
    let listed = || scene.ctr(["tasks", "ps", &scene.id]).ok();
    wait_until("the exec among the processes", SOON, || listed().contains(&name));
    exec.wait().expect(0);
    wait_until("it is no longer", SOON, || !listed().contains(&name));
}

fn metrics(scene: &mut Scene) {
    if scene.is_docker() {
        let stats = scene.docker(["stats", "--no-stream", "--format", "{{.PIDs}} {{.MemUsage}}", &scene.id]).ok();
        assert!(stats.starts_with("1 ") && !stats.contains(" 0B /"), "{stats}");
    } else {
        let metrics = scene.ctr(["tasks", "metrics", "--format", "json", &scene.id]).ok();
        let value: Value = serde_json::from_str(&metrics).unwrap_or_else(|e| panic!("{e}: {metrics}"));
        assert_eq!(value["pids"]["current"], 1, "{value}");
        assert!(value["memory"]["usage"]["usage"].as_u64().is_some_and(|bytes| bytes > 0), "{value}");
    }
}

fn logs(scene: &mut Scene) {
    assert_eq!(scene.docker(["logs", &scene.id]).ok(), "the first process");
}

fn top(scene: &mut Scene) {
    let top = scene.docker(["top", &scene.id]).ok();
    assert!(top.contains("sleep 100000"), "{top}");
}

fn stop(scene: &mut Scene) {
    scene.docker(["stop", "--time", "1", &scene.id]).ok();
    assert_eq!(scene.docker(["inspect", "--format", "{{.State.ExitCode}}", &scene.id]).ok(), "137");
    assert_eq!(scene.status(&scene.id), "EXITED");
    scene.docker(["start", &scene.id]).ok();
    scene.sh("exit 4").expect(4);
}

fn restart(scene: &mut Scene) {
    scene.docker(["restart", "--time", "1", &scene.id]).ok();
    scene.sh("exit 4").expect(4);
    assert_eq!(scene.docker(["logs", &scene.id]).ok().lines().count(), 3);
}

fn kill(scene: &mut Scene) {
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let id = scene.start(&[], &["sh", "-c", script]);
    thread::sleep(Duration::from_millis(500));
    if scene.is_docker() {
        scene.docker(["kill", "--signal", "TERM", &id]).ok();
        assert_eq!(scene.docker(["wait", &id]).ok(), "9");
    } else {
        scene.ctr(["tasks", "kill", "--signal", "TERM", &id]).ok();
        wait_until("the end of the task", SOON, || scene.status(&id) == "STOPPED");
        let deleted = scene.ctr(["tasks", "delete", &id]).run();
        assert!(deleted.both().contains("exit code 9") || deleted.code == 9, "{}: {}", deleted.code, deleted.both());
    }
    scene.remove(&id);
}

fn delete(scene: &mut Scene) {
    scene.remove(&scene.id);
    let left = || scene.agentsbx(&["log"]).ok();
    assert!(!left().contains(&scene.id), "{}", left());
    match &scene.front {
        Front::Ctr(containerd) => super::census::assert_empty(containerd),
        Front::Docker(..) => assert_eq!(scene.docker(["ps", "--all", "--quiet"]).ok(), ""),
    }
}

/// What became of the steps with one front: its title, a word for each step, and the failures.
fn play(column: &Column) -> (Vec<String>, Vec<String>) {
    let (mut cells, mut failures) = (vec!["-".to_owned(); STEPS.len()], Vec::new());
    let mut failed = |name: &str, panic: Box<dyn std::any::Any + Send>| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        failures.push(format!("{}: {name}: {}", column.title, text.unwrap_or_default()));
    };
    let mut scene = match catch_unwind(column.scene) {
        Ok(scene) => scene,
        Err(panic) => {
            failed("start the daemons", panic);
            return (cells, failures);
        }
    };
    for ((of, name, step), cell) in STEPS.iter().zip(&mut cells) {
        let kind = if scene.is_docker() { Of::Docker } else { Of::Ctr };
        if ![Of::All, kind].contains(of) {
            continue;
        }
        let begun = Instant::now();
        *cell = match catch_unwind(AssertUnwindSafe(|| step(&mut scene))) {
            Ok(()) => format!("{:.1} s", begun.elapsed().as_secs_f64()),
            Err(panic) => {
                failed(name, panic);
                "FAILED".to_owned()
            }
        };
    }
    (cells, failures)
}

fn table(columns: &[Column], cells: &[Vec<String>]) -> String {
    let first = STEPS.iter().map(|(_, name, _)| name.chars().count()).max().unwrap_or_default();
    let mut text = format!("\n{:first$}", "");
    for column in columns {
        write!(text, "  {:>18}", column.title).expect("write");
    }
    for (row, (_, name, _)) in STEPS.iter().enumerate() {
        write!(text, "\n{name:first$}").expect("write");
        for column in cells {
            write!(text, "  {:>18}", column[row]).expect("write");
        }
    }
    text + "\n"
}

fn ctr_scene(release: Release) -> Scene {
    Scene { front: Front::Ctr(Box::new(Containerd::start(release))), id: String::new() }
}

fn docker_scene(release: Release) -> Scene {
    let name = unique("docker");
    let path = process().run.join(format!("{name}-bin"));
    fill_path(release, &path);
    Scene { front: Front::Docker(Box::new(other_engines(&name, &path))), id: String::new() }
}

struct Column {
    title: String,
    scene: fn() -> Scene,
}

/// Every step with containerd 1.6, 1.7, 2.x and 2.x asking as 2.3, and with Docker 26 and 28. `AGENTSBX_IT_ONLY=1.7` leaves out those whose
/// name has no such text in it.
#[test]
fn a_users_story_with_every_release() {
    let containerds: [(Release, fn() -> Scene); 4] = [
        (Release::C16, || ctr_scene(Release::C16)),
        (Release::C17, || ctr_scene(Release::C17)),
        (Release::C2, || ctr_scene(Release::C2)),
        (Release::C23, || ctr_scene(Release::C23)),
    ];
    let dockers: [(Release, fn() -> Scene); 2] =
        [(Release::C17, || docker_scene(Release::C17)), (Release::C2, || docker_scene(Release::C2))];
    let named = |n: usize, (release, scene): (Release, fn() -> Scene)| {
        let version = release.version();
        Column { title: version.split(", ").nth(n).expect("a version").to_owned(), scene }
    };
    let containerds = containerds.into_iter().map(|c| named(0, c));
    let only = std::env::var("AGENTSBX_IT_ONLY").unwrap_or_default();
    let columns: Vec<Column> = containerds.chain(dockers.into_iter().map(|c| named(1, c))).collect();
    let columns: Vec<Column> = columns.into_iter().filter(|column| column.title.contains(&only)).collect();
    let (cells, failures) = (Mutex::new(vec![Vec::new(); columns.len()]), Mutex::new(Vec::new()));
    // Two at a time: the machine has two cores.
    let next = Mutex::new(columns.iter().enumerate());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((n, column)) = next.lock().expect("next").next() else { return };
                    let (played, failed) = play(column);
                    cells.lock().expect("cells")[n] = played;
                    failures.lock().expect("failures").extend(failed);
                }
            });
        }
    });
    let table = table(&columns, &cells.into_inner().expect("cells"));
    let failures = failures.into_inner().expect("failures");
    // The test's output: what the releases are, and what was done.
    println!("{table}");
    assert!(failures.is_empty(), "{table}\n\n{}", failures.join("\n\n"));
}
