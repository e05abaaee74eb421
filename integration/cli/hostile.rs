//! Commands that mean harm, or are merely odd: nothing of theirs reaches the host or stays.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::conformance::lab::install;
use crate::support::bundle::Bundle;
use crate::support::{Env, result};

/// Processes that ignore every signal they can and left their session are all gone when their exec is over its time.
#[test]
fn runaway_processes_are_all_ended() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let script =
        "for n in $(seq 60); do (setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 7654; done' &); done; sleep 1000";
    bundle.sh_with(["--timeout", "2"], script).expect(124);
    let killed = bundle.show()["survivorsKilled"].as_u64();
    assert!(killed.is_some_and(|n| n >= 60), "{killed:?}");
    let processes = bundle.exec(["ps"]).ok();
    assert!(!processes.contains("7654"), "{processes}");
}

/// Odd arguments reach the command as they are, whatever they are the command runs, and the result is still JSON.
#[test]
fn odd_arguments_come_through() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let dump = |arg: &[u8]| {
        let script = "printf %s \"$1\" | od -An -tx1";
        let output =
            env.cmd(["exec", &bundle.id, "sh", "-c", script, "sh"]).arg(OsStr::from_bytes(arg)).run().expect(0);
        output.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(dump(b"\n\"\\\x01\xc3\xa4"), "0a 22 5c 01 c3 a4");
    assert_eq!(bundle.show()["args"][4], "\n\"\\\u{1}ä");
    // What is no UTF-8 cannot be in an OCI process document: runc hands on U+FFFD in its place.
    assert!(["ff 41", "ef bf bd 41"].contains(&dump(b"\xffA").as_str()));
    assert_eq!(result::disposition(&bundle.show()), "empty");
    let long = "x".repeat(100_000);
    let script = "printf %s \"$1\" | wc -c";
    assert_eq!(env.cmd(["exec", &bundle.id, "sh", "-c", script, "sh", &long]).run().ok(), "100000");
    assert!(bundle.show().to_string().len() < 80_000);
    assert!(env.ok(["log", &bundle.id]).lines().all(|line| line.len() < 1000), "the log is for people");
}

/// Output of any size comes through whole, while nobody reads fast.
#[test]
fn large_output_is_whole() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let output = bundle.sh("dd if=/dev/zero bs=1M count=16 2>/dev/null | tr '\\0' x; seq 100000 >&2").expect(0);
    assert_eq!((output.stdout.len(), output.stderr.lines().count()), (16 << 20, 100_000));
}

/// A first process or an exec that writes `dev.agentsbx` files, `.wh.` names or whiteout-like devices of its own changes
/// nothing for anybody else.
#[test]
fn names_of_ours_are_just_names() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle
        .sh("mkdir -p /agentsbx/execs; echo '{}' >/agentsbx/execs/x.json; : >/.wh.etc; : >/.wh..wh..opq; mkdir /.wh.d")
        .expect(0);
    assert_eq!(bundle.sh("ls -d /etc /.wh.etc /.wh..wh..opq /.wh.d /agentsbx/execs/x.json | wc -l").ok(), "5");
    let results = result::in_bundle(&bundle.dir);
    assert!(!results.is_empty() && results.iter().all(|r| r["container"] == bundle.id.as_str()), "{results:#?}");
    // A character device 0:0 is overlayfs' own mark: making one is refused, or makes no file to be seen.
    bundle.sh("mknod /etc/passwd2 c 0 0; ls /etc/passwd").expect(0);
    assert_eq!(bundle.sh("ls /etc/passwd").ok(), "/etc/passwd");
}

/// A container that fills its disk gets ENOSPC and nothing else breaks: here a tmpfs stands for the disk.
#[test]
fn a_full_disk_is_the_commands_own_trouble() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let output = bundle.sh("dd if=/dev/zero of=/dev/shm/big bs=1M count=100; echo code $?");
    assert!(output.stdout.contains("code 1") && output.stderr.contains("No space left"), "{}", output.both());
    bundle.sh("echo x >/x").expect(0);
    assert_eq!(bundle.sh("cat /x").ok(), "x");
}

/// A result or a pid that nobody wants: the host's own device was replaced by a regular file.
#[test]
fn results_and_pids_can_go_to_dev_null() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    // A link of its own, so that a failure of this test does not take the host's device away.
    let null = env.dir.join("null");
    std::os::unix::fs::symlink("/dev/null", &null).expect("symlink");
    let null = null.display().to_string();
    bundle.sh_with(["--result", &null], "echo x >/x").expect(0);
    let detached = env.cmd(["exec", "--detach", "--pid-file", &null, &bundle.id, "true"]);
    detached.output_to(env.dir.join("detached.out")).run().expect(0);
    assert!(std::fs::symlink_metadata(&null).expect("stat").is_symlink());
}

/// A command that makes its parent, the supervisor, its tracer stops at signals and at execve. That is not its end: it goes
/// on, and what it did afterwards is in its layer.
#[test]
fn a_command_that_wants_to_be_traced_is_not_over_when_it_stops() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    install(
        &bundle,
        "traced",
        r#"
        #include <fcntl.h>
        #include <signal.h>
        #include <sys/ptrace.h>
        #include <unistd.h>
        static void got(int signal) { (void)signal; creat("/got", 0600); }
        int main(int argc, char **argv) {
            signal(SIGUSR1, got);
            if (ptrace(PTRACE_TRACEME, 0, 0, 0)) return 9;
            if (argc > 1) execv(argv[1], argv + 1);
            raise(SIGUSR1);
            return 7;
        }"#,
    );
    bundle.exec(["/traced"]).expect(7);
    assert_eq!(bundle.show()["end"]["code"], 7);
    bundle.exec(["/traced", "/bin/touch", "/touched"]).expect(0);
    assert_eq!(bundle.sh("ls /got /touched").ok(), "/got\n/touched");
}
