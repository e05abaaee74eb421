//! A container's life by the command line alone: what engines see of create, start, state, kill, delete, run, update,
//! events, pause and resume. Needs root and a static busybox; starts nothing else.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A state directory and a bundle of their own; what still lives is deleted at the end.
struct Host {
    dir: tempfile::TempDir,
    id: String,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.agentsbx(&["delete", "--force", &self.id]).output();
    }
}

impl Host {
    /// A bundle whose command is `script`, run by a shell; `change` may edit the configuration.
    fn new(script: &str, change: impl FnOnce(&mut Value)) -> Host {
        let host = Host {
            dir: tempfile::tempdir().unwrap(),
            id: format!("life-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)),
        };
        // Containers with a user namespace pass through here as another user.
        fs::set_permissions(host.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let bin = host.rootfs().join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy("/bin/busybox", bin.join("busybox")).unwrap();
        for tool in ["sh", "cat", "sleep", "mkdir", "stty", "tty", "kill", "true", "env", "grep", "id", "pwd", "echo"] {
            std::os::unix::fs::symlink("busybox", bin.join(tool)).unwrap();
        }
        assert!(host.agentsbx(&["spec", "--bundle", host.bundle().to_str().unwrap()]).status().unwrap().success());
        host.edit(|config| {
            config["process"]["terminal"] = json!(false);
            config["process"]["args"] = json!(["sh", "-c", script]);
            config["process"]["rlimits"] = json!([]);
            config["root"]["readonly"] = json!(false);
            change(config);
        });
        host
    }

    fn bundle(&self) -> PathBuf {
        self.dir.path().join("bundle")
    }

    fn rootfs(&self) -> PathBuf {
        self.bundle().join("rootfs")
    }

    fn edit(&self, change: impl FnOnce(&mut Value)) {
        let path = self.bundle().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut config);
        fs::write(&path, config.to_string()).unwrap();
    }

    fn agentsbx(&self, args: &[&str]) -> Command {
        let binary = std::env::var_os("AGENTSBX_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_agentsbx").into());
        let mut command = Command::new(binary);
        command.arg("--root").arg(self.dir.path().join("root"));
        command.arg("--store").arg(self.dir.path().join("store"));
        command.env("AGENTSBX_CONFIG", &crate::support::env::process().config);
        command.args(args).current_dir("/").stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.agentsbx(args).output().unwrap()
    }

    /// The command's stdout; it must succeed.
    fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// The command's message; it must fail with code 1.
    fn fails(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    }

    /// `create` or `run --detach`, with stdout and stderr in files so that no pipe stays open.
    fn detached(&self, verb: &[&str]) {
        let file = fs::File::create(self.dir.path().join("out")).unwrap();
        let bundle = self.bundle();
        let mut command = self.agentsbx(verb);
        command.arg("--bundle").arg(&bundle).arg(&self.id);
        command.stdout(file.try_clone().unwrap()).stderr(file);
        assert!(command.status().unwrap().success(), "{verb:?}: {}", self.out());
    }

    fn out(&self) -> String {
        fs::read_to_string(self.dir.path().join("out")).unwrap()
    }

    fn state(&self) -> Value {
        serde_json::from_str(&self.ok(&["state", &self.id])).unwrap()
    }

    fn status(&self) -> String {
        self.state()["status"].as_str().unwrap().to_owned()
    }

    /// `run` in the foreground.
    fn foreground(&self) -> Output {
        self.run(&["run", "--bundle", self.bundle().to_str().unwrap(), &self.id])
    }

    /// Cgroup directories of the container, in every hierarchy.
    fn cgroups(&self) -> Vec<PathBuf> {
        fn walk(dir: &Path, name: &str, depth: u32, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
                if entry.file_name() == name {
                    found.push(entry.path());
                } else if depth > 0 {
                    walk(&entry.path(), name, depth - 1, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(Path::new("/sys/fs/cgroup"), &self.id, 2, &mut found);
        found
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_foreground_code_is_the_commands() {
    for (script, code) in [("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143), ("true", 0)] {
        let host = Host::new(script, |config| {
            // In a pid namespace of its own the shell would be its first process, which ignores its own signals.
            config["linux"]["namespaces"].as_array_mut().unwrap().retain(|ns| ns["type"] != "pid");
        });
        let out = host.foreground();
        assert_eq!(out.status.code(), Some(code), "{script}: {}", text(&out.stderr));
        assert_eq!(host.ok(&["list", "--quiet"]), "");
        assert_eq!(host.cgroups(), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_foreground_run_forwards_signals() {
    let host = Host::new("trap 'echo got; exit 9' TERM; echo up; while :; do sleep 0.05; done", |_| {});
    let out = fs::File::create(host.dir.path().join("out")).unwrap();
    let mut child = host
        .agentsbx(&["run", "--bundle", host.bundle().to_str().unwrap(), &host.id])
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .spawn()
        .unwrap();
    until("the container is up", || host.out().contains("up"));
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(9), None));
    assert_eq!(host.out(), "up\ngot\n");
}

#[test]
fn a_terminal_is_sent_with_its_size() {
    let host = Host::new("stty size; tty; exit 3", |config| {
        config["process"]["terminal"] = json!(true);
        config["process"]["consoleSize"] = json!({"height": 33, "width": 77});
    });
    let bundle = host.bundle();
    let args = ["create", "--bundle", bundle.to_str().unwrap(), &host.id];
    let missing = "cannot allocate tty if agentsbx will detach without setting console socket";
    assert!(host.fails(&args).contains(missing));
    let path = host.dir.path().join("console");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    host.detached(&["create", "--console-socket", path.to_str().unwrap()]);
    let socket = listener.accept().unwrap().0;
    let master = agentsbx::sys::socket::receive_fd(std::os::fd::AsFd::as_fd(&socket)).unwrap();
    host.ok(&["start", &host.id]);
    let mut shown = Vec::new();
    // The read ends with EIO once nobody has the other side open.
    let _ = std::io::Read::read_to_end(&mut fs::File::from(master), &mut shown);
    assert_eq!(text(&shown), "33 77\r\n/dev/pts/0\r\n");
}

/// Signals that the library under us refuses, and those that it answers by changing the state.
#[test]
fn any_signal_reaches_the_first_process_and_changes_no_state() {
    let host = Host::new("trap 'echo usr' USR1; trap 'echo rt' 37; echo up; while :; do sleep 0.05; done", |_| {});
    host.detached(&["create"]);
    host.ok(&["kill", &host.id, "0"]);
    assert_eq!(host.status(), "created");
    host.ok(&["start", &host.id]);
    until("the container is up", || host.out().contains("up"));
    for (n, signal) in ["USR1", "sigusr1", "10", "37", "SIGRTMIN+3"].iter().enumerate() {
        host.ok(&["kill", &host.id, signal]);
        until(signal, || host.out().lines().count() == n + 2);
    }
    assert_eq!(host.out(), "up\nusr\nusr\nusr\nrt\nrt\n");
    host.ok(&["pause", &host.id]);
    host.ok(&["kill", &host.id, "USR1"]);
    assert_eq!(host.status(), "paused");
    host.ok(&["resume", &host.id]);
    until("the signal came after resume", || host.out().lines().count() == 7);
    assert_eq!(host.status(), "running");
    host.ok(&["pause", &host.id]);
    host.ok(&["kill", &host.id, "KILL"]);
    until("a paused container dies of SIGKILL", || host.status() == "stopped");
    assert!(host.fails(&["kill", &host.id, "NOPE"]).contains("unknown signal \\\"NOPE\\\""));
}

#[test]
fn a_created_container_ends_when_asked() {
    let host = Host::new("echo never", |_| {});
    host.detached(&["create"]);
    host.ok(&["kill", &host.id]);
    until("SIGTERM ends it", || host.status() == "stopped");
    assert_eq!(host.state()["pid"], 0);
    assert!(host.fails(&["start", &host.id]).contains("cannot start a container that has stopped"));
    assert!(host.fails(&["kill", &host.id]).contains("container not running"));
    host.ok(&["kill", "--all", &host.id, "KILL"]);
    host.ok(&["delete", &host.id]);
    assert!(host.fails(&["delete", &host.id]).contains("container does not exist"));
    host.ok(&["delete", "--force", &host.id]);
}

/// A container that may write to its cgroups could nest them deeper than a path is long: then nobody could list, signal or
/// delete it any more.
#[test]
fn cgroups_nested_without_end_are_deleted() {
    let script = "d=/sys/fs/cgroup/pids; [ -d $d ] || d=/sys/fs/cgroup; cd $d; n=$(printf %0250d 1); i=0
        while [ $i -lt 40 ] && mkdir $n && cd $n 2>/dev/null; do i=$((i + 1)); done; [ $i -gt 14 ] && echo up; exec sleep 1000";
    let host = Host::new(script, |config| {
        let mounts = config["mounts"].as_array_mut().unwrap();
        mounts.retain(|mount| mount["type"] != "cgroup");
        mounts.push(json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"]}));
    });
    host.detached(&["run", "--detach"]);
    until("it is deep down", || host.out() == "up\n");
    let pids: Value = serde_json::from_str(&host.ok(&["ps", "--format", "json", &host.id])).unwrap();
    assert_eq!(pids.as_array().map(Vec::len), Some(1), "{pids}");
    host.ok(&["kill", "--all", &host.id, "KILL"]);
    until("it stopped", || host.status() == "stopped");
    host.ok(&["delete", &host.id]);
}

/// The socket for the terminal of a foreground container lies below the root, and its path had to fit into an address.
#[test]
fn a_terminal_comes_through_a_root_of_any_length() {
    let host = Host::new("tty", |config| config["process"]["terminal"] = json!(true));
    let root = host.dir.path().join("r".repeat(150));
    let run = host.agentsbx(&[
        "--root",
        root.to_str().unwrap(),
        "run",
        "--bundle",
        host.bundle().to_str().unwrap(),
        &host.id,
    ]);
    let line = std::iter::once(run.get_program()).chain(run.get_args()).map(|word| word.to_str().unwrap());
    let line = line.collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).stdin(Stdio::null());
    let output = script.env("AGENTSBX_CONFIG", &crate::support::env::process().config).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("/dev/pts/0"), "{text}");
}

/// Nested cgroups and processes that outlive the first one once blocked a delete for ever.
#[test]
fn delete_takes_nested_cgroups_and_orphans() {
    let script = "d=/sys/fs/cgroup/pids; [ -d $d ] || d=/sys/fs/cgroup; mkdir -p $d/a/b;
        (echo 0 >$d/a/b/cgroup.procs; exec sleep 1001) & sleep 1002 & echo up; exec sleep 1003";
    let host = Host::new(script, |config| {
        config["linux"]["namespaces"].as_array_mut().unwrap().retain(|ns| ns["type"] != "pid");
        for mount in config["mounts"].as_array_mut().unwrap().iter_mut().filter(|m| m["type"] == "cgroup") {
            mount["options"] = json!(["nosuid", "noexec", "nodev"]);
        }
    });
    host.detached(&["run", "--detach"]);
    let pids = || -> Vec<i32> { serde_json::from_str(&host.ok(&["ps", "--format", "json", &host.id])).unwrap() };
    until("all three are there", || pids().len() == 3);
    let all = pids();
    host.ok(&["delete", "--force", &host.id]);
    assert_eq!(host.cgroups(), Vec::<PathBuf>::new());
    let alive = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "));
    until("none of them is left", || !all.iter().any(alive));
}

#[test]
fn a_cgroup_in_use_is_refused_and_its_processes_live() {
    let parent = format!("agentsbx-test-{}", std::process::id());
    let path = format!("/{parent}/shared");
    let (first, second) = (Host::new("sleep 1000", |_| {}), Host::new("true", |_| {}));
    for other in [&first, &second] {
        other.edit(|config| config["linux"]["cgroupsPath"] = json!(path));
    }
    first.detached(&["run", "--detach"]);
    let out = second.foreground();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("container's cgroup is not empty"), "{}", text(&out.stderr));
    assert_eq!(first.status(), "running");
    first.ok(&["delete", "--force", &first.id]);
    // The parent is not the container's, so it stays for us to remove.
    let hierarchies: Vec<PathBuf> = fs::read_dir("/sys/fs/cgroup").unwrap().map(|e| e.unwrap().path()).collect();
    for dir in hierarchies.iter().map(|h| h.join(&parent)).chain([Path::new("/sys/fs/cgroup").join(&parent)]) {
        let _ = fs::remove_dir(dir);
    }
    assert!(second.fails(&["state", &second.id]).contains("does not exist"));
}

#[test]
fn what_cannot_be_executed_is_said_as_engines_know_it() {
    let host = Host::new("", |_| {});
    fs::write(host.rootfs().join("plain"), "").unwrap();
    for (args, want) in [
        (json!(["nosuch"]), "exec: \\\"nosuch\\\": executable file not found in $PATH"),
        (json!(["/nosuch"]), "exec: \\\"/nosuch\\\": stat /nosuch: no such file or directory"),
        (json!(["/bin"]), "exec: \\\"/bin\\\": permission denied"),
        (json!(["/plain"]), "exec: \\\"/plain\\\": permission denied"),
    ] {
        host.edit(|config| config["process"]["args"] = args.clone());
        let out = host.foreground();
        let want = format!("agentsbx run failed: unable to start container process: {want}\"");
        assert!(text(&out.stderr).contains(&want), "{args}: {}", text(&out.stderr));
        assert_eq!(host.ok(&["list", "-q"]), "", "nothing is left of {args}");
        assert_eq!(host.cgroups(), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_failed_command_writes_one_line_to_the_log() {
    let host = Host::new("", |config| config["process"]["args"] = json!(["nosuch"]));
    let log = host.dir.path().join("log.json");
    let bundle = host.bundle();
    let global = ["--log", log.to_str().unwrap(), "--log-format", "json"];
    let mut args = global.to_vec();
    args.extend(["create", "-bundle", bundle.to_str().unwrap(), &host.id]);
    host.fails(&args);
    let lines: Vec<Value> =
        fs::read_to_string(&log).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["level"], "error");
    assert!(lines[0]["msg"].as_str().unwrap().ends_with("executable file not found in $PATH"));
}

#[test]
fn limits_are_updated_and_counted() {
    let host = Host::new("echo up; exec sleep 1000", |_| {});
    host.detached(&["run", "--detach"]);
    host.ok(&["update", "--pids-limit", "20", "--memory", "32m", &host.id]);
    let stats = |host: &Host| -> Value { serde_json::from_str(&host.ok(&["events", "--stats", &host.id])).unwrap() };
    let first = stats(&host);
    assert_eq!((first["type"].as_str(), first["id"].as_str()), (Some("stats"), Some(host.id.as_str())));
    assert_eq!(first["data"]["pids"]["limit"], 20);
    assert_eq!(first["data"]["pids"]["current"], 1);
    assert_eq!(first["data"]["memory"]["usage"]["limit"], 32 << 20);
    let mut child = host.agentsbx(&["update", "--resources=-", &host.id]).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"{\"pids\": {\"limit\": 30}}").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(stats(&host)["data"]["pids"]["limit"], 30);
    host.ok(&["kill", &host.id, "KILL"]);
    until("it stopped", || host.status() == "stopped");
    assert!(
        host.fails(&["events", "--stats", &host.id]).contains(&format!("container with id {} is not running", host.id))
    );
    assert!(host.fails(&["update", "--pids-limit", "9", &host.id]).contains("container not running"));
}

/// A value that fits only what is written after it was refused, and what had been written by then stayed.
#[test]
fn limits_are_updated_together_or_not_at_all() {
    let host = Host::new("echo up; exec sleep 1000", |_| {});
    host.detached(&["run", "--detach"]);
    fn update<'a>(host: &'a Host, args: &[&'a str]) -> Vec<&'a str> {
        [&["update"], args, &[host.id.as_str()]].concat()
    }
    host.ok(&update(&host, &["--cpu-period", "100000", "--cpu-quota", "40000", "--cpu-burst", "40000"]));
    host.ok(&update(&host, &["--cpu-quota", "20000", "--cpu-burst", "10000", "--pids-limit", "20"]));
    let text = host.fails(&update(&host, &["--cpu-quota", "30000", "--cpu-period", "5", "--pids-limit", "30"]));
    assert!(text.contains("invalid argument"), "{text}");
    let stats: Value = serde_json::from_str(&host.ok(&["events", "--stats", &host.id])).unwrap();
    assert_eq!(stats["data"]["pids"]["limit"], 20);
    let exec = host.ok(&["exec", "--layer", "discard", &host.id, "cat", "/proc/self/cgroup"]);
    let cpu = exec.lines().find_map(|l| l.split_once(":cpu,cpuacct:").or(l.split_once(":cpu:"))).map(|(_, path)| path);
    if let Some(path) = cpu.filter(|path| path.contains(&host.id)) {
        let quota = fs::read_to_string(format!("/sys/fs/cgroup/cpu{path}/cpu.cfs_quota_us")).unwrap();
        assert_eq!(quota, "20000\n");
    }
}

/// `/etc/passwd` is the image's: what has no end, or waits for somebody, held up `start` for as long as that waits.
#[test]
fn a_user_database_that_is_no_file_is_none() {
    let host = Host::new("echo \"$HOME\"", |config| config["process"]["env"] = json!(["PATH=/bin"]));
    fs::create_dir_all(host.rootfs().join("etc")).unwrap();
    assert!(Command::new("mkfifo").arg(host.rootfs().join("etc/passwd")).status().unwrap().success());
    let mut run = host.agentsbx(&["run", "--bundle", host.bundle().to_str().unwrap(), &host.id]);
    let mut run = run.stdout(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(8);
    while run.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            run.kill().unwrap();
            panic!("it waits");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(run.wait_with_output().unwrap().stdout, b"/\n");
}

#[test]
fn a_kill_for_memory_is_an_event() {
    let host = Host::new("sleep 1; x=a; while :; do x=$x$x; done", |config| {
        config["linux"]["resources"]["memory"] = json!({"limit": 20_000_000, "swap": 20_000_000});
    });
    host.detached(&["run", "--detach"]);
    let out = host.ok(&["events", "--interval", "10m", &host.id]);
    assert_eq!(out, format!("{{\"type\":\"oom\",\"id\":\"{}\"}}\n", host.id));
}

/// SIGKILL of a create at any moment leaves nothing that a forced delete does not find.
#[test]
fn a_create_that_is_killed_is_deleted_whole() {
    let host = Host::new("sleep 1234", |_| {});
    for delay in (0..60).step_by(4) {
        let mut child = host
            .agentsbx(&["create", "--bundle", host.bundle().to_str().unwrap(), &host.id])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        child.wait().unwrap();
        host.ok(&["delete", "--force", &host.id]);
        assert_eq!(host.ok(&["list", "-q"]), "", "after {delay} ms");
        assert_eq!(host.cgroups(), Vec::<PathBuf>::new(), "after {delay} ms");
    }
}

#[test]
fn a_root_filesystem_that_leads_out_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    let host = Host::new("true", |_| {});
    std::os::unix::fs::symlink(outside.path(), host.rootfs().join("dev")).unwrap();
    assert_eq!(host.foreground().status.code(), Some(1));
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "nothing was made outside");
}
