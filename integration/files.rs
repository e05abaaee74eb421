//! Fences between execs, and rules of where a container's processes read and write.

use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::support::bundle::Bundle;
use crate::support::{Env, wait_for};

/// Starts an exec that waits, and gives its command's pid in the container's own pid namespace, which it writes to
/// /dev/shm/NAME: a tmpfs that all execs share.
#[track_caller]
fn waiting(bundle: &Bundle<'_>, name: &str) -> i32 {
    let script = format!("echo secret > /mine-{name}; echo $$ > /dev/shm/{name}; exec sleep 99999");
    let out = bundle.dir.join(format!("{name}.out"));
    let options = ["exec", "--detach", "--env", "TOKEN=hidden", "--timeout", "0", &bundle.id, "sh", "-c", &script];
    bundle.env.cmd(options).output_to(&out).run().expect(0);
    wait_for("the waiting exec", Duration::from_secs(10), || {
        bundle.sh_with(["--layer", "discard"], &format!("cat /dev/shm/{name}")).stdout.trim().parse().ok()
    })
}

/// What `/proc` has of a process for who may trace it: its environment, its files by its own view, its memory.
const PRIVATE: &[&str] = &[
    "cat /proc/PID/environ",
    "ls /proc/PID/root/",
    "ls /proc/PID/cwd/",
    "readlink /proc/PID/fd/1",
    "cat /proc/PID/maps",
    "head -c1 /proc/PID/mem",
    "echo x > /proc/PID/root/planted",
];

/// An exec is as closed to its neighbours and to the first process as they are to it, whatever their user; of itself and of
/// its children it sees everything. Without the fence (profile `oci`) each of these works.
#[test]
fn execs_do_not_look_into_each_other() {
    for (config, closed) in [("", true), ("profile = 'oci'\n", false)] {
        let env = Env::with_config(config);
        let bundle = Bundle::running(&env);
        let other = waiting(&bundle, "other");
        for pid in [1, other] {
            for command in PRIVATE {
                let command = command.replace("PID", &pid.to_string());
                let got = bundle.sh(&command);
                // Reading memory at address 0 fails of itself.
                let refused = got.code != 0 && !got.stderr.contains("Input/output error");
                assert_eq!(refused, closed, "{command} with {config:?}: {} {}", got.code, got.stderr);
            }
            assert!(bundle.sh(&format!("cat /proc/{pid}/cmdline")).ok().contains("sleep"), "ps goes on to work");
        }
        let own = "sleep 9 & for f in /proc/$!/environ /proc/self/maps; do cat $f > /dev/null || exit 1; done; \
            ls /proc/$!/root/ /proc/self/fd > /dev/null; kill $!";
        bundle.sh(own).expect(0);
    }
}

/// Moving and linking between directories is what a fence of an old version, or one made carelessly, takes away.
#[test]
fn files_can_be_moved_as_ever() {
    let env = Env::with_config("");
    let bundle = Bundle::running(&env);
    let script = "set -e; mkdir /a /b; echo x > /a/f; mv /a/f /b/g; ln /b/g /a/h; mv /b /a/b; cat /a/b/g /a/h";
    assert_eq!(bundle.sh(script).ok(), "x\nx");
    assert_eq!(bundle.sh("mv /a/b/g /g; mkfifo /a/p; mv /a /c; ls /c").ok(), "b\nh\np");
}

/// The annotation's three lists, in the first process and in execs.
#[test]
fn rules_of_files_hold_everywhere() {
    let env = Env::with_config("");
    let rules =
        json!({"deny": ["/secret", "/etc/token"], "readOnly": ["/fixed"], "allowWrite": ["/work", "/fixed", "/file"]});
    let script = "(echo x > /work/first && echo wrote; echo x > /elsewhere; cat /etc/token; exec sleep 99999) 2>&1";
    let mut bundle = Bundle::new(&env, ["sh", "-c", script]).annotate("dev.agentsbx.files", &rules.to_string());
    bundle.config["process"]["user"] = json!({"uid": 0, "gid": 0});
    for dir in ["secret", "fixed", "work"] {
        fs::create_dir_all(bundle.rootfs.join(dir)).unwrap();
    }
    for (file, text) in [("secret/key", "KEY\n"), ("etc/token", "TOKEN\n"), ("fixed/f", "same\n"), ("file", "old\n")] {
        fs::write(bundle.rootfs.join(file), text).unwrap();
    }
    bundle.start();
    let said = wait_for("the first process", Duration::from_secs(10), || {
        fs::read_to_string(bundle.dir.join("out")).ok().filter(|text| text.contains("denied"))
    });
    assert!(said.starts_with("wrote\n") && said.contains("/elsewhere: Permission denied"), "{said}");
    assert!(!said.contains("TOKEN"), "{said}");
    assert!(!bundle.rootfs.join("elsewhere").exists());

    for (script, words) in [
        ("echo x > /tmp/x", "Permission denied"),
        ("mkdir /new", "Permission denied"),
        ("rm /bin/busybox", "Permission denied"),
        ("truncate -s0 /etc/passwd", "Permission denied"),
        ("mv /work/first /outside", "denied"),
        ("echo x > /fixed/f", "Read-only file system"),
        ("rm /fixed/f", "Read-only file system"),
        ("ln -s / /work/l; echo x > /work/l/through", "Permission denied"),
    ] {
        let got = bundle.sh(script);
        assert!(got.code != 0 && got.stderr.contains(words), "{script}: {} {}", got.code, got.stderr);
    }
    assert_eq!(bundle.sh("ls /secret").ok(), "", "nothing is there");
    for script in ["cat /etc/token", "echo lost > /etc/token", "ls /etc/token/x"] {
        let got = bundle.sh(script);
        assert!(got.code != 0, "{script}: {}", got.both());
    }
    let writes = "set -e; echo new > /file; echo x > /work/x; mkdir /work/d; mv /work/x /work/d/y; rm /work/d/y; \
        echo x > /dev/null; echo x > /dev/shm/x; cat /fixed/f";
    assert_eq!(bundle.sh(writes).ok(), "same");
    let paths: Vec<String> =
        bundle.show()["changes"].as_array().unwrap().iter().map(|c| c["path"].as_str().unwrap().into()).collect();
    assert_eq!(paths, ["/file", "/work/d"]);
}

/// What the documents say that a limit on writing does not cover, and what becomes of a link at an allowed path.
#[test]
fn what_a_limit_on_writing_leaves() {
    let env = Env::with_config("");
    let bundle = Bundle::new(&env, ["sleep", "100000"])
        .annotate("dev.agentsbx.files", r#"{"allowWrite": ["/work", "/work/sub", "/later"]}"#);
    for dir in ["work/sub", "out"] {
        fs::create_dir_all(bundle.rootfs.join(dir)).unwrap();
    }
    fs::write(bundle.rootfs.join("out/f"), "same\n").unwrap();
    bundle.start();
    // Attributes are the layer's, and told; /proc is as ever; what is not there is not allowed.
    let script =
        "chmod 700 /out/f && chown 5:6 /out/f && touch -d @5 /out/f && echo name >/proc/self/comm; mkdir /later";
    let got = bundle.sh(script).expect(1);
    assert_eq!(got.stderr.lines().count(), 1, "{}", got.stderr);
    let changes = bundle.show()["changes"].clone();
    assert_eq!((changes[0]["kind"].as_str(), changes[0]["path"].as_str()), (Some("metadata"), Some("/out/f")));
    assert_eq!(fs::read_to_string(bundle.rootfs.join("out/f")).unwrap(), "same\n");
    // A link that an exec puts there gives the next one nothing.
    bundle.sh("rmdir /work/sub; ln -s /out /work/sub").expect(0);
    let got = bundle.sh("echo x >/work/sub/x").expect(255);
    assert!(got.stderr.contains("open /work/sub for a file rule"), "{}", got.stderr);
    env.ok(["rollback", &bundle.id, "@-1"]);
    bundle.sh("echo x >/work/sub/x").expect(0);
}

/// What can't be meant is an error, and makes nothing.
#[test]
fn wrong_file_rules_make_no_container() {
    let env = Env::with_config("");
    for (rules, words) in [
        ("/work", "invalid dev.agentsbx.files in config.json"),
        (r#"{"denied": ["/x"]}"#, "unknown field `denied`"),
        (r#"{"allowWrite": ["x"]}"#, "is not an absolute path"),
        (r#"{"deny": ["/dev"]}"#, "/dev/pts is mounted there"),
    ] {
        let bundle = Bundle::new(&env, ["true"]).annotate("dev.agentsbx.files", rules);
        let got = bundle.run().expect(1);
        assert!(got.stderr.contains(words), "{rules}: {}", got.stderr);
    }
    let bundle = Bundle::new(&env, ["true"]).annotate("dev.agentsbx.file", "{}");
    let got = bundle.run().expect(1);
    // Those that can be set; others are not for users, or not yet.
    let list = ["layer", "timeout", "orphans", "profile", "mounts", "files"].map(|name| format!("dev.agentsbx.{name}"));
    let wanted = format!("annotation dev.agentsbx.file is not known: there are {}\"", list.join(", "));
    assert!(got.stderr.contains(&wanted), "{}", got.stderr);
    let bundle = Bundle::new(&env, ["true"]).annotate("dev.agentsbx.files", r#"{"allowWrite": ["/out"]}"#);
    std::os::unix::fs::symlink("/", bundle.rootfs.join("out")).unwrap();
    let got = bundle.run();
    assert!(
        got.code != 0 && got.stderr.contains("open /out for a file rule (it must not lead through a symbolic link"),
        "{} {}",
        got.code,
        got.stderr
    );
    assert_eq!(env.ok(["list", "-q"]), "");
    let oci = Env::with_config("profile = 'oci'\n");
    let got = Bundle::new(&oci, ["true"]).annotate("dev.agentsbx.files", "{\"deny\": [\"/x\"]}").run().expect(1);
    assert!(got.stderr.contains("profile oci takes the engine's configuration exactly as given"), "{}", got.stderr);
}
