//! One exec that plays changes and waits while its view is walked.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::bundle::Bundle;
use crate::support::images::repository;
use crate::support::walk::{Tree, walk};
use crate::support::{Cmd, child_running, env};

/// The longest that one answer of an exec may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The static program that plays changes, built once from `play.c`.
pub fn player() -> &'static Path {
    static ONCE: OnceLock<PathBuf> = OnceLock::new();
    ONCE.get_or_init(|| {
        let program = env::process().data.join("play");
        let source = repository().join("integration/diff/play.c");
        Cmd::new("gcc").args(["-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source).ok();
        program
    })
}

/// A small bundle whose first process only waits: busybox for its shell, the player, `lines` played on its root
/// filesystem. It may make devices and, as `CAP_SYS_ADMIN` goes, any extended attribute.
pub fn bundle<'e>(env: &'e env::Env, lines: &[String]) -> Bundle<'e> {
    let mut bundle = Bundle::new(env, ["/bin/busybox", "sleep", "100000"]);
    let busybox = bundle.rootfs.join("bin/busybox");
    fs::rename(&busybox, bundle.dir.join("busybox")).expect("rename");
    fs::remove_dir_all(&bundle.rootfs).expect("remove");
    for dir in ["bin", "proc", "dev", "sys", "tmp"] {
        fs::create_dir_all(bundle.rootfs.join(dir)).expect("mkdir");
    }
    fs::rename(bundle.dir.join("busybox"), &busybox).expect("rename");
    for applet in ["sh", "mv", "cp", "rm", "touch"] {
        std::os::unix::fs::symlink("busybox", bundle.rootfs.join("bin").join(applet)).expect("symlink");
    }
    fs::copy(player(), bundle.rootfs.join("play")).expect("copy");
    bundle.config["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]);
    for set in ["bounding", "effective", "permitted"] {
        let set = &mut bundle.config["process"]["capabilities"][set];
        set.as_array_mut().expect("capabilities").push("CAP_SYS_ADMIN".into());
    }
    play_here(&bundle.rootfs, lines);
    bundle
}

/// Plays on a directory of the host.
pub fn play_here(dir: &Path, lines: &[String]) {
    // By the player's own rules the paths are relative to where it is.
    let script = script(lines);
    let player = player().to_owned();
    let mut child = Command::new(player)
        .arg("--here")
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start the player");
    child.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("write");
    let output = child.wait_with_output().expect("wait");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn script(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// A running exec of the player.
pub struct Session {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    complaints: Receiver<String>,
    /// The player's pid on the host.
    pid: i32,
    result: PathBuf,
}

impl Session {
    /// `exec OPTIONS… CONTAINER /play`, waited for until it runs.
    pub fn start(bundle: &Bundle<'_>, options: &[&str]) -> Session {
        let places = [("--root", &bundle.env.root), ("--store", &bundle.env.store)];
        let mut command = Command::new(env::binary());
        command.env("PATH", crate::support::cmd::PATH).env("AGENTSBX_CONFIG", &env::process().config);
        for (flag, path) in places {
            command.arg(flag).arg(path);
        }
        let result = bundle.dir.join(env::unique("result"));
        command.arg("exec").arg("--result").arg(&result).args(options).args(["--timeout", "0", &bundle.id, "/play"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("start agentsbx");
        let input = child.stdin.take().expect("a pipe");
        let (sender, answers) = channel();
        let output = child.stdout.take().expect("a pipe");
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let (sender, complaints) = channel();
        let mut errors = child.stderr.take().expect("a pipe");
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
        });
        let supervisor = child.id().cast_signed();
        let mut session = Session { child, input, answers, complaints, pid: 0, result };
        session.play(&[]);
        session.pid = child_running(supervisor, "play");
        session
    }

    /// Plays, and waits until all of it is done.
    #[track_caller]
    pub fn play(&mut self, lines: &[String]) {
        let told = self.input.write_all(format!("{}sync\n", script(lines)).as_bytes());
        if told.is_err() || self.answers.recv_timeout(PATIENCE).is_err() {
            let _ = self.child.kill();
            let complaint = self.complaints.recv_timeout(Duration::from_secs(2)).unwrap_or_default();
            panic!("the player has stopped: {complaint}");
        }
    }

    /// What it sees now: the whole tree.
    pub fn walk(&self) -> Tree {
        walk(Path::new(&format!("/proc/{}/root/", self.pid)))
    }

    /// Ends it; its result.
    #[track_caller]
    pub fn end(mut self) -> Value {
        drop(self.input);
        // Its output ends with the supervisor, or earlier: the wait that follows is short.
        while self.answers.recv_timeout(PATIENCE).is_ok() {}
        let status = self.child.wait().expect("wait");
        let complaint = self.complaints.recv_timeout(Duration::from_secs(2)).unwrap_or_default();
        assert!(status.success(), "{status}: {complaint}");
        let text = fs::read_to_string(&self.result).expect("read the result");
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e} in {text}"))
    }
}

/// What an exec sees at HEAD.
pub fn view(bundle: &Bundle<'_>) -> Tree {
    let session = Session::start(bundle, &["--layer", "discard"]);
    let tree = session.walk();
    session.end();
    tree
}

/// An argument of the player: any bytes.
pub fn quote(bytes: &[u8]) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._-".contains(b);
    bytes.iter().map(|b| if plain(b) { char::from(*b).to_string() } else { format!("%{b:02x}") }).collect()
}
