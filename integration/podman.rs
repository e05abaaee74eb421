//! podman, with the binary under test as its runtime: conmon calls it, not containerd's shim.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::time::Duration;

use serde_json::Value;

use crate::support::engines::{Podman, podman};
use crate::support::env::{binary, process};
use crate::support::images::BUSYBOX;
use crate::support::{Cmd, Output, result, wait_until};

/// A container, removed by force at the end.
struct Container {
    podman: &'static Podman,
    id: String,
}

impl Container {
    #[track_caller]
    fn idle<const N: usize>(options: [&str; N]) -> Container {
        let podman = podman();
        let id = podman.start(options, &["sleep", "100000"]);
        Container { podman, id }
    }

    fn exec<const N: usize>(&self, options: [&str; N], args: &[&str]) -> Cmd {
        self.podman.cmd(["exec"]).args(options).arg(&self.id).args(args)
    }

    fn sh(&self, script: &str) -> Output {
        self.exec([], &["sh", "-c", script]).run()
    }

    fn agentsbx<const N: usize>(&self, args: [&str; N]) -> Cmd {
        Cmd::new(binary()).env("AGENTSBX_CONFIG", &process().config).arg("--store").arg(&self.podman.store).args(args)
    }

    #[track_caller]
    fn show(&self) -> Value {
        serde_json::from_str(&self.agentsbx(["show", &self.id, "--json"]).ok()).expect("JSON")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.podman.run(["rm", "--force", "--time", "0", &self.id]);
    }
}

fn run<const N: usize>(options: [&str; N], args: &[&str]) -> Output {
    let cgroup = format!("{}/podman", process().cgroup);
    let run = podman().cmd(["run", "--rm", "--network", "none", "--cgroup-parent", &cgroup]);
    run.args(options).arg(BUSYBOX).args(args).run()
}

/// `podman run` gives output and exit codes, those for commands that cannot be started among them.
#[test]
fn podman_run_gives_output_and_exit_codes() {
    let output = run([], &["sh", "-c", "echo out; echo err >&2; exit 7"]).expect(7);
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
    let missing = run([], &["no-such-command"]).expect(127);
    assert!(missing.stderr.contains("no-such-command"), "{}", missing.stderr);
    run([], &["/etc/passwd"]).expect(126);
}

/// `podman exec` has a layer of its own, the codes of Docker, and Docker's way with what it leaves running.
#[test]
fn podman_exec_commits_and_has_all_exit_codes() {
    let container = Container::idle([]);
    container.sh("echo x >/x; exit 3").expect(3);
    assert_eq!(result::end(&container.show()), ("exited", Some(3)));
    assert_eq!(container.sh("cat /x").ok(), "x");
    container.sh("kill -KILL $$").expect(137);
    container.sh("kill -TERM $$").expect(143);
    container.exec([], &["no-such-command"]).run().expect(127);
    container.exec([], &["/etc/passwd"]).run().expect(126);
    container.exec(["-e", "AGENTSBX_TIMEOUT=1"], &["sleep", "1000"]).run().expect(124);
    let output = container.sh("sleep 54321 & echo started").expect(0);
    assert!(output.took < Duration::from_secs(10), "{:?}", output.took);
    assert!(!container.sh("ps").ok().contains("54321"));
    container.exec(["-e", "AGENTSBX_LAYER=discard"], &["sh", "-c", "echo x >/y"]).run().expect(0);
    container.sh("ls /y").expect(1);
    container.agentsbx(["rollback", &container.id, "0"]).ok();
    container.sh("ls /x").expect(1);
}

/// An exec on a terminal, with input.
#[test]
fn podman_exec_has_a_terminal() {
    let container = Container::idle([]);
    let script = "tty; read line; echo \"got $line\"";
    let output = container.exec(["-it"], &["sh", "-c", script]).on_terminal().stdin("typed\n").run().expect(0);
    assert!(output.stdout.contains("/dev/pts/") && output.stdout.contains("got typed"), "{}", output.stdout);
    assert_eq!(container.exec(["-i"], &["cat"]).stdin("piped").ok(), "piped");
}

/// A container in a user namespace: an exec is in that namespace, too, and its layer works there.
#[test]
fn podman_exec_joins_the_user_namespace() {
    let container = Container::idle(["--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536"]);
    let map = container.exec([], &["cat", "/proc/self/uid_map"]).ok();
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), ["0", "100000", "65536"]);
    container.sh("echo x >/x; rm /bin/vi; chmod 600 /etc/group").expect(0);
    assert_eq!(container.sh("cat /x; stat -c %u /x; ls /bin/vi 2>&1 | grep -c such").ok(), "x\n0\n1");
    container.sh("mount -t tmpfs none /mnt").expect(1);
}

/// Annotations given to podman reach the runtime.
#[test]
fn podman_annotations_are_read() {
    let container = Container::idle(["--annotation", "dev.agentsbx.layer=hold"]);
    container.sh("echo x >/x").expect(0);
    let result = container.show();
    assert_eq!(result::disposition(&result), "held");
    container.sh("ls /x").expect(1);
    container.agentsbx(["commit", &container.id, result::exec(&result)]).ok();
    container.sh("cat /x").expect(0);
}

/// `stop`, `start`, `kill`, `pause`, `top`, `logs`, `inspect`.
#[test]
fn podman_verbs_work() {
    let podman = podman();
    let script = "echo ready; trap 'exit 5' TERM; while :; do sleep 0.1; done";
    let container = Container { podman, id: podman.start([], &["sh", "-c", script]) };
    let id = container.id.as_str();
    wait_until("ready", Duration::from_secs(10), || podman.run(["logs", id]).stdout.contains("ready"));
    assert!(podman.run(["top", id]).ok().contains("trap"), "top");
    podman.run(["pause", id]).ok();
    assert_eq!(podman.run(["inspect", "--format", "{{.State.Status}}", id]).ok(), "paused");
    podman.run(["unpause", id]).ok();
    podman.run(["stop", "--time", "20", id]).ok();
    assert_eq!(podman.run(["inspect", "--format", "{{.State.ExitCode}}", id]).ok(), "5");
    podman.run(["start", id]).ok();
    container.sh("true").expect(0);
    podman.run(["kill", id]).ok();
    assert_eq!(podman.run(["wait", id]).ok(), "137");
}

/// A container with a user namespace of its own: its execs are in it, have layers, and their changes can be told with the
/// owners that the container sees, gone back from and gone forward to.
#[test]
fn podman_with_mapped_ids_has_layers_and_history() {
    let container = Container::idle(["--uidmap", "0:200000:65536", "--gidmap", "0:200000:65536"]);
    assert_eq!(
        container.sh("cat /proc/self/uid_map").ok().split_whitespace().collect::<Vec<_>>(),
        ["0", "200000", "65536"]
    );
    container.sh("echo one > /root/f; adduser -D -u 1234 agent 2>/dev/null; chown 1234:1234 /root/f").expect(0);
    let result = container.show();
    assert_eq!(result["disposition"], "committed", "{result}");
    let change = |path: &str| {
        let changes = result["changes"].as_array().expect("changes").iter();
        changes.filter(|c| c["path"] == path).map(|c| (c["uid"].clone(), c["gid"].clone())).next()
    };
    assert_eq!(change("/root/f"), Some((1234.into(), 1234.into())), "{result}");
    container.exec(["--user", "1234"], &["sh", "-c", "id -u > /tmp/own; test ! -w /etc/passwd"]).ok();
    assert_eq!(container.sh("stat -c %u /tmp/own; cat /tmp/own").ok(), "1234\n1234");
    assert_eq!(container.sh("rm /root/f; mkdir /root/d").ok(), "");
    container.agentsbx(["rollback", &container.id, "1"]).ok();
    assert_eq!(container.sh("cat /root/f; ls /root /tmp").ok(), "one\n/root:\nf\n\n/tmp:");
    container.agentsbx(["rollback", &container.id, "3"]).ok();
    assert_eq!(container.sh("ls /root").ok(), "d");
}

/// A volume with podman's option `idmap`: its files belong to whom they belong to on the host, and so does what is made there.
#[test]
fn podman_volumes_map_ids() {
    let dir = tempfile::tempdir_in(&process().data).expect("a directory");
    let file = dir.path().join("f");
    fs::write(&file, "volume\n").expect("write");
    chown(&file, Some(1234), Some(1235)).expect("chown");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
    let volume = |at: &str, option: &str| format!("{}:{at}:{option}", dir.path().display());
    let (mapped, plain) = (volume("/mapped", "idmap"), volume("/plain", "rw"));
    let ids = ["--uidmap", "0:200000:65536", "--gidmap", "0:200000:65536"];
    let container = Container::idle([ids[0], ids[1], ids[2], ids[3], "-v", &mapped, "-v", &plain]);
    let script = "stat -c %u:%g /mapped /mapped/f /plain; cat /mapped/f; echo x >/mapped/made";
    assert_eq!(container.sh(script).ok(), "0:0\n1234:1235\n65534:65534\nvolume");
    let meta = dir.path().join("made").metadata().expect("it is the host's directory");
    assert_eq!((meta.uid(), meta.gid()), (0, 0));
}
