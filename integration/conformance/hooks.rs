//! Hooks: when each phase runs, where, with what, and what its failure means.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::lab::{BOTH, Container, Runtime, with_user_namespace};
use crate::support::bundle::Bundle;
use crate::support::{Env, wait_until};

/// The phases whose hooks are programs of the host.
const HOST: [&str; 5] = ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];

/// A hook that appends `PHASE|DIRECTORY|STATE` to the file `hooks` beside the bundles.
fn telling(env: &Env, phase: &str) -> Value {
    let script = format!("printf '%s|%s|%s\\n' {phase} \"$(pwd)\" \"$(cat)\" >>{}", log_of(env).display());
    json!({"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/usr/bin:/bin"]})
}

fn log_of(env: &Env) -> PathBuf {
    env.dir.join("hooks")
}

/// What the hooks told, in order: phase, directory, state.
fn told(env: &Env) -> Vec<(String, String, Value)> {
    let text = fs::read_to_string(log_of(env)).unwrap_or_default();
    let _ = fs::remove_file(log_of(env));
    text.lines()
        .map(|line| {
            let mut parts = line.splitn(3, '|').map(str::to_owned);
            let mut next = || parts.next().expect("three parts");
            let (phase, dir, state) = (next(), next(), next());
            (phase, dir, serde_json::from_str(&state).expect("a state"))
        })
        .collect()
}

/// Each phase runs once, in order, in the bundle, with the container's state: its id, bundle, status, annotations, and the
/// first process's id as the namespaces that the hook runs in know it.
#[test]
fn hooks_get_the_state_in_order() {
    let env = Env::new();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "true", |bundle| {
            bundle.config["annotations"] = json!({"org.example.note": "here"});
            for phase in HOST {
                bundle.config["hooks"][phase] = json!([telling(&env, phase)]);
            }
        });
        container.create().expect(0);
        let pid = container.pid();
        container.verb("start").expect(0);
        wait_until("the end", std::time::Duration::from_secs(10), || container.status() == "stopped");
        container.verb("delete").expect(0);
        let all = told(&env);
        assert_eq!(all.iter().map(|t| t.0.as_str()).collect::<Vec<_>>(), HOST, "{runtime:?}");
        for (phase, dir, state) in all {
            let bundle = &container.bundle;
            let place = if phase == "createContainer" { &bundle.rootfs } else { &bundle.dir };
            // runc runs the last two where it was called itself.
            if runtime == Runtime::Ours || state["status"] == "creating" {
                assert_eq!(dir, place.display().to_string(), "{runtime:?} {phase}");
            }
            assert_eq!(state["id"], bundle.id.as_str(), "{runtime:?} {phase}");
            assert_eq!(state["bundle"], bundle.dir.display().to_string(), "{runtime:?} {phase}");
            assert_eq!(state["annotations"]["org.example.note"], "here", "{runtime:?} {phase}");
            assert_eq!(state["ociVersion"].as_str().map(|v| &v[..2]), Some("1."), "{runtime:?} {phase}");
            let (status, pid) = match phase.as_str() {
                "poststart" => ("running", Some(pid)),
                "poststop" => ("stopped", None),
                "createContainer" => ("creating", Some(1)),
                _ => ("creating", Some(pid)),
            };
            // runc 1.1 says "created" to poststart.
            if runtime == Runtime::Ours || phase != "poststart" {
                assert_eq!(state["status"], status, "{runtime:?} {phase}");
            }
            assert_eq!(state["pid"].as_i64().filter(|p| *p != 0), pid.map(i64::from), "{runtime:?} {phase}");
        }
    }
}

/// createContainer hooks are programs of the host that run in the container's namespaces, before its root is entered;
/// those of startContainer are the container's own, run as its user with its environment, right before its command.
#[test]
fn hooks_run_in_their_namespaces() {
    let env = Env::new();
    for runtime in BOTH {
        let outside = env.dir.join("namespaces");
        let container = Container::new(&env, runtime, "cat /started; readlink /proc/self/ns/uts", |bundle| {
            let script = format!("readlink /proc/self/ns/uts /proc/self/ns/mnt >{}", outside.display());
            bundle.config["hooks"]["createContainer"] = json!([{"path": "/bin/sh", "args": ["sh", "-c", script]}]);
            let script = "echo \"$(id -u) $GREETING $(grep -o '\"status\":\"[a-z]*\"' -) $(pwd)\" >/started";
            bundle.config["hooks"]["startContainer"] = json!([
                {"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/bin", "GREETING=hello"]}
            ]);
            bundle.config["process"]["cwd"] = json!("/tmp");
        });
        let out = container.run().expect(0).stdout;
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0], "0 hello \"status\":\"created\" /tmp", "{runtime:?}");
        let hooks = fs::read_to_string(&outside).expect("the hook wrote");
        let namespaces: Vec<&str> = hooks.lines().collect();
        assert_eq!(namespaces[0], lines[1], "{runtime:?}");
        let ours = fs::read_link("/proc/self/ns/mnt").expect("readlink");
        assert_ne!(namespaces[1], ours.to_string_lossy(), "{runtime:?}");
    }
}

/// A hook of startContainer knows the process's id inside, and is held by the container's filter.
#[test]
fn start_container_hooks_are_confined() {
    let env = Env::new();
    let script = "cat >/state; echo >>/state; grep -E '^(Seccomp|NoNewPrivs|CapEff):' /proc/self/status >/confined";
    let container = Container::new(&env, Runtime::Ours, "cat /state /confined", |bundle| {
        bundle.config["hooks"]["startContainer"] =
            json!([{"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/bin"]}]);
        bundle.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["swapon"], "action": "SCMP_ACT_ERRNO"}]});
        let caps = json!(["CAP_KILL"]);
        bundle.config["process"]["capabilities"] = json!({"bounding": caps, "effective": caps, "permitted": caps});
    });
    let out = container.run().expect(0).stdout;
    assert!(out.contains("\"pid\":1"), "{out}");
    let lines: Vec<&str> = out.lines().filter(|l| !l.contains("ociVersion")).collect();
    assert_eq!(lines, ["CapEff:\t0000000000000020", "NoNewPrivs:\t1", "Seccomp:\t2"]);
}

/// A state that a pipe cannot hold (by its annotations) was written until the hook had read it: a time limit did not hold
/// before, and where the first process is not the first of its pid namespace, a hook of startContainer that closed its stdin
/// ended it.
#[test]
fn hooks_need_not_read_a_long_state() {
    let env = Env::new();
    let pod = Container::new(&env, Runtime::Ours, "exec sleep 100000", |_| {});
    pod.start();
    let namespace = format!("/proc/{}/ns/pid", pod.pid());
    for runtime in BOTH {
        let long =
            |bundle: &mut Bundle<'_>| bundle.config["annotations"] = json!({"org.example.long": "x".repeat(100 << 10)});
        let late = Container::new(&env, runtime, "true", |bundle| {
            long(bundle);
            bundle.config["hooks"]["prestart"] = json!([{"path": "/bin/sleep", "args": ["sleep", "60"], "timeout": 1}]);
        });
        let begun = std::time::Instant::now();
        late.create().expect(1);
        assert!(begun.elapsed() < Duration::from_secs(20), "{runtime:?}");
        if runtime == Runtime::Runc {
            // It waits for what is left of the state to be read.
            continue;
        }
        let deaf = Container::new(&env, runtime, "echo here; exec sleep 100000", |bundle| {
            long(bundle);
            let list = bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces");
            list.retain(|ns| ns["type"] != "pid");
            list.push(json!({"type": "pid", "path": namespace}));
            let args = ["sh", "-c", "exec <&-; sleep 1"];
            bundle.config["hooks"]["startContainer"] = json!([{"path": "/bin/sh", "args": args, "env": ["PATH=/bin"]}]);
        });
        deaf.start();
        wait_until("the command", Duration::from_secs(10), || deaf.out() == "here\n");
        assert_eq!(deaf.status(), "running");
    }
}

/// A container with a user namespace: the host's hooks run in it too, and cannot be kept from the state by their rights.
#[test]
fn hooks_run_in_a_user_namespace() {
    let env = Env::new();
    let out = env.dir.join("out-of-userns");
    fs::write(&out, "").expect("write");
    let container = Container::new(&env, Runtime::Ours, "true", |bundle| {
        with_user_namespace(bundle);
        let script = format!("id -u >{0}; grep -o '\"pid\":[0-9]*' >>{0}", out.display());
        bundle.config["hooks"]["createContainer"] =
            json!([{"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/usr/bin:/bin"]}]);
    });
    crate::support::Cmd::new("chmod").arg("666").arg(&out).ok();
    container.run().expect(0);
    assert_eq!(fs::read_to_string(&out).expect("read"), "0\n\"pid\":1\n");
}

/// A failing hook before the start stops the create, says what it printed, and nothing of the container is left.
#[test]
fn a_failing_hook_stops_a_create_and_is_told() {
    let env = Env::new();
    for phase in &HOST[..3] {
        let container = Container::new(&env, Runtime::Ours, "true", |bundle| {
            bundle.config["hooks"][*phase] =
                json!([{"path": "/bin/sh", "args": ["sh", "-c", "echo because >&2; exit 3"]}]);
        });
        let failed = container.run().expect(1);
        let want = format!("{phase} hook /bin/sh: exit status: 3: because");
        assert!(failed.stderr.contains(&want), "{want} not in {}", failed.stderr);
        assert_eq!(env.ok(["list", "--quiet"]), "");
        assert_eq!(super::lab::cgroups_of(&container.bundle.id), Vec::<PathBuf>::new());
    }
}

/// A failing startContainer hook, or one that takes too long, ends the container before its command, and is told on its
/// standard error.
#[test]
fn a_failing_start_container_hook_ends_the_container() {
    let env = Env::new();
    for (hook, why) in [
        (json!({"path": "/bin/sh", "args": ["sh", "-c", "echo because >&2; exit 3"]}), "exit status: 3: because"),
        (json!({"path": "/bin/sleep", "args": ["sleep", "98764"], "timeout": 1}), "timed out after 1 s"),
        (json!({"path": "/none"}), "No such file or directory"),
    ] {
        for runtime in BOTH {
            let container = Container::new(&env, runtime, "echo ran", |bundle| {
                bundle.config["hooks"]["startContainer"] = json!([hook]);
            });
            let failed = container.run();
            assert_ne!(failed.code, 0, "{runtime:?} {hook}");
            assert_eq!(failed.stdout, "", "{runtime:?} {hook}");
            if runtime == Runtime::Ours {
                assert_eq!(failed.code, 1);
                assert!(
                    failed.stderr.contains("startContainer hook") && failed.stderr.contains(why),
                    "{}",
                    failed.stderr
                );
            }
        }
    }
}

/// A hook that takes longer than its limit fails, in every phase; its process is gone.
#[test]
fn a_hook_that_takes_too_long_is_ended() {
    let env = Env::new();
    for phase in &HOST[..3] {
        let container = Container::new(&env, Runtime::Ours, "true", |bundle| {
            bundle.config["hooks"][*phase] = json!([{"path": "/bin/sleep", "args": ["sleep", "98765"], "timeout": 1}]);
        });
        let failed = container.run().expect(1);
        assert!(failed.stderr.contains("timed out after 1 s"), "{}", failed.stderr);
        assert!(failed.took < std::time::Duration::from_secs(8), "{:?}", failed.took);
    }
    let alive = fs::read_dir("/proc")
        .expect("read /proc")
        .flatten()
        .any(|process| fs::read(process.path().join("cmdline")).is_ok_and(|text| text.starts_with(b"sleep\x0098765")));
    assert!(!alive);
}

/// A failing poststart hook is a warning, by the specification since 1.0.2: the container runs on. A failing poststop hook
/// does not keep the container from going.
#[test]
fn a_failing_late_hook_is_a_warning() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "sleep 100000", |bundle| {
        for phase in ["poststart", "poststop"] {
            bundle.config["hooks"][phase] = json!([{"path": "/bin/false"}]);
        }
    });
    let log = env.dir.join("log.json");
    container.create().expect(0);
    let with_log = |args: [&str; 2]| env.cmd(["--log"]).arg(&log).args(["--log-format", "json"]).args(args).run();
    with_log(["start", &container.bundle.id]).expect(0);
    assert_eq!(container.status(), "running");
    let delete = env.cmd(["--log"]).arg(&log).args(["--log-format", "json", "delete", "--force", &container.bundle.id]);
    delete.run().expect(0);
    let text = fs::read_to_string(&log).expect("read");
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let said = |n: usize| lines[n]["msg"].as_str().expect("a message").to_owned();
    assert_eq!(
        lines.iter().map(|l| l["level"].as_str().expect("a level")).collect::<Vec<_>>(),
        ["warning"; 2],
        "{text}"
    );
    assert!(said(0).contains("poststart hook /bin/false") && said(1).contains("poststop hook /bin/false"), "{text}");
    assert_eq!(env.ok(["list", "--quiet"]), "");
}

/// A hook sees the arguments and the environment that it was given, and no other.
#[test]
fn a_hook_has_its_own_arguments_and_environment() {
    let env = Env::new();
    let out = env.dir.join("given");
    let container = Container::new(&env, Runtime::Ours, "true", |bundle: &mut Bundle<'_>| {
        let script =
            format!("echo \"$0 $1 $2\" >>{0}; env | grep -v -E '^(PWD|SHLVL|_|OLDPWD)=' | sort >>{0}", out.display());
        for phase in &HOST[..3] {
            bundle.config["hooks"][*phase] = json!([{
                "path": "/bin/sh", "args": ["the-name", "-c", script, phase, "a b", "=c"],
                "env": ["PATH=/usr/bin:/bin", "X=1=2"]
            }]);
        }
    });
    container
        .cmd(["run", "--bundle"])
        .arg(&container.bundle.dir)
        .arg(&container.bundle.id)
        .env("SECRET", "s")
        .run()
        .expect(0);
    let text = fs::read_to_string(&out).expect("read");
    let want: String = HOST[..3].iter().map(|phase| format!("{phase} a b =c\nPATH=/usr/bin:/bin\nX=1=2\n")).collect();
    assert_eq!(text, want);
}

/// Hooks of more than 128 KiB together ran nowhere: the kernel takes no longer string in an environment, and they were one.
#[test]
fn many_hooks_run() {
    let env = Env::new();
    let out = env.dir.join("ran");
    let container = Container::new(&env, Runtime::Ours, "true", |bundle: &mut Bundle<'_>| {
        let script = format!("echo >>{}", out.display());
        let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", script], "env": [format!("A={}", "y".repeat(2000))]});
        for phase in &HOST[..3] {
            bundle.config["hooks"][*phase] = vec![hook.clone(); 50].into();
        }
    });
    container.cmd(["run", "--bundle"]).arg(&container.bundle.dir).arg(&container.bundle.id).run().expect(0);
    assert_eq!(fs::read_to_string(&out).expect("read").len(), 150);
}

/// `start` returns when the first process is the command, after its startContainer hooks, and only then run those of
/// poststart. It does not wait for ever.
#[test]
fn start_returns_once_the_command_runs() {
    let env = Env::new();
    for (seconds, at_least, at_most) in [(2, 2, 8), (30, 10, 20)] {
        let seen = env.dir.join(format!("seen-{seconds}"));
        let container = Container::new(&env, Runtime::Ours, "exec sleep 98764", |bundle| {
            let hook = format!("sleep {seconds}");
            bundle.config["hooks"]["startContainer"] =
                json!([{"path": "/bin/sh", "args": ["sh", "-c", hook], "env": ["PATH=/bin"]}]);
            let pid = r#"p=$(sed 's/.*"pid":\([0-9]*\).*/\1/')"#;
            let look = format!("{pid}; readlink /proc/$p/exe >{}", seen.display());
            bundle.config["hooks"]["poststart"] = json!([{"path": "/bin/sh", "args": ["sh", "-c", look]}]);
        });
        container.create().expect(0);
        let start = container.verb("start").expect(0);
        let range = Duration::from_secs(at_least)..Duration::from_secs(at_most);
        assert!(range.contains(&start.took), "{:?}", start.took);
        let exe = fs::read_to_string(&seen).expect("the hook wrote");
        let is_command = exe.trim_end().ends_with("/bin/busybox");
        assert_eq!(is_command, seconds == 2, "{exe}");
    }
}
