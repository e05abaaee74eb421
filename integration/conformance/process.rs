//! The first process is the one that the configuration asks for: user, directory, environment, privileges, filter, keyring.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::lab::{self, BOTH, Container, Runtime, add_mount, alike, side_by_side, with_user_namespace};
use crate::support::bundle::Bundle;
use crate::support::env::process;
use crate::support::{Cmd, Env, wait_until};

/// A working directory that is missing is made, with its parents, for whoever runs there.
#[test]
fn a_missing_working_directory_is_made() {
    let env = Env::new();
    let out = alike(&env, "pwd; stat -c '%a %u:%g' /made /made/for/it", |bundle| {
        bundle.config["process"]["cwd"] = json!("/made/for/it");
        bundle.config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
    });
    assert_eq!(out, "/made/for/it\n755 0:0\n755 0:0\n");
}

/// In a volume, too: an image's working directory may lie where a volume is mounted.
#[test]
fn a_missing_working_directory_is_made_in_a_volume() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "pwd", |bundle| {
        let volume = bundle.dir.join("volume");
        fs::create_dir(&volume).expect("mkdir");
        add_mount(bundle, json!({"destination": "/v", "type": "bind", "source": volume, "options": ["bind"]}));
        bundle.config["process"]["cwd"] = json!("/v/in");
    });
    assert_eq!(container.run().ok(), "/v/in");
    assert!(container.bundle.dir.join("volume/in").is_dir());
}

/// A working directory that only root may enter is entered as root, one that only the user may enter as the user: in a user
/// namespace the root there has no power over a directory of a group that the namespace does not know.
#[test]
fn a_working_directory_may_be_closed_to_root_or_to_the_user() {
    let env = Env::new();
    let user = json!({"uid": 1000, "gid": 1000});
    let out = alike(&env, "pwd; id -u", |bundle| {
        Cmd::new("install").args(["-d", "-m", "0700"]).arg(bundle.rootfs.join("roots")).ok();
        bundle.config["process"]["cwd"] = json!("/roots");
        bundle.config["process"]["user"] = user.clone();
    });
    assert_eq!(out, "/roots\n1000\n");
    let out = alike(&env, "pwd; id -u; ls -d .", |bundle| {
        with_user_namespace(bundle);
        let dir = bundle.rootfs.join("users");
        Cmd::new("install").args(["-d", "-m", "0700", "-o", "101000", "-g", "5"]).arg(dir).ok();
        bundle.config["process"]["cwd"] = json!("/users");
        bundle.config["process"]["user"] = user.clone();
    });
    assert_eq!(out, "/users\n1000\n.\n");
}

/// A directory that nobody concerned may enter, and a file, fail the create in runc's words.
#[test]
fn a_working_directory_that_cannot_be_entered_is_said() {
    let env = Env::new();
    for (cwd, why) in [("/etc/passwd", "not a directory"), ("/users", "permission denied")] {
        let [ours, runc] = side_by_side(&env, "true", |bundle| {
            with_user_namespace(bundle);
            let dir = bundle.rootfs.join("users");
            Cmd::new("install").args(["-d", "-m", "0700", "-o", "102000", "-g", "5"]).arg(dir).ok();
            bundle.config["process"]["cwd"] = json!(cwd);
            bundle.config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
        });
        let ours = ours.expect(1).stderr;
        runc.expect(1);
        let want = format!("set in config.json failed: {why}");
        assert!(ours.contains("chdir to cwd") && ours.contains(&want), "{ours}");
        assert_eq!(env.ok(["list", "-q"]), "");
    }
}

/// The user, its groups, its mask and all capability sets, with and without a change of user; a configuration without
/// capabilities gives none.
#[test]
fn identity_and_capabilities_are_the_configurations() {
    let env = Env::new();
    let script = "id -u; id -g; id -G; umask; grep -E '^(Cap...|NoNewPrivs):' /proc/self/status; pwd";
    let caps = json!(["CAP_KILL", "CAP_CHOWN", "CAP_SETPCAP"]);
    let sets = json!({"bounding": caps, "effective": caps, "permitted": caps, "inheritable": ["CAP_KILL"],
        "ambient": ["CAP_KILL"]});
    for user in [json!({"uid": 0, "gid": 0}), json!({"uid": 1000, "gid": 7, "additionalGids": [8, 9], "umask": 0o27})] {
        for sets in [sets.clone(), json!({"bounding": caps}), json!(null)] {
            for userns in [false, true] {
                let out = alike(&env, script, |bundle| {
                    if userns {
                        with_user_namespace(bundle);
                    }
                    bundle.config["process"]["user"] = user.clone();
                    match sets.is_null() {
                        true => drop(bundle.config["process"].as_object_mut().expect("process").remove("capabilities")),
                        false => bundle.config["process"]["capabilities"] = sets.clone(),
                    }
                });
                assert!(out.lines().count() >= 10, "{out}");
            }
        }
    }
}

/// A new network namespace begins with its loopback interface down; runc brings it up, and so nothing is told that it can't
/// reach 127.0.0.1. A namespace that is given is as it was.
#[test]
fn the_loopback_interface_is_up() {
    let env = Env::new();
    for userns in [false, true] {
        let out = alike(
            &env,
            "ip -o addr show lo | grep -o 'inet 127.0.0.1/8'; ping -c 1 -W 5 127.0.0.1 | grep -o '0% packet loss'",
            |bundle| {
                bundle.config["linux"]["sysctl"] = json!({"net.ipv4.ping_group_range": "0 0"});
                if userns {
                    with_user_namespace(bundle);
                }
            },
        );
        assert!(out.contains("inet 127.0.0.1/8"), "{out}");
        assert!(userns || out.contains("0% packet loss"), "{out}");
    }
}

/// The first process runs under the filter with `noNewPrivileges` true, false and absent, as any user; and the field is what
/// was asked for.
#[test]
fn the_first_process_is_filtered_by_seccomp() {
    let env = Env::new();
    let script =
        "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status; mkdir /made 2>&1 | grep -o 'Operation not permitted'";
    for privileges in [json!(true), json!(false), json!(null)] {
        for uid in [0, 1000] {
            let out = alike(&env, script, |bundle| {
                match privileges.is_null() {
                    true => drop(bundle.config["process"].as_object_mut().expect("process").remove("noNewPrivileges")),
                    false => bundle.config["process"]["noNewPrivileges"] = privileges.clone(),
                }
                bundle.config["process"]["user"] = json!({"uid": uid, "gid": uid});
                bundle.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW",
                    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]});
            });
            let set = i32::from(privileges == true);
            assert_eq!(out, format!("NoNewPrivs:\t{set}\nSeccomp:\t2\nOperation not permitted\n"));
        }
    }
}

/// What a waiting or starting runtime does itself need not be in the profile: here only what the command does.
#[test]
fn a_narrow_profile_is_enough_for_a_narrow_command() {
    let env = Env::new();
    let source = "#include <unistd.h>\n#include <sys/syscall.h>\n\
        int main(void) { syscall(SYS_write, 1, \"narrow\\n\", 7); syscall(SYS_exit_group, 0); }";
    let container = Container::new(&env, Runtime::Ours, "", |bundle| {
        lab::install(bundle, "narrow", source);
        bundle.config["process"]["args"] = json!(["/narrow"]);
        // What a static program's start-up takes.
        let names = [
            "execve",
            "write",
            "exit_group",
            "brk",
            "arch_prctl",
            "set_tid_address",
            "set_robust_list",
            "rseq",
            "prlimit64",
            "readlinkat",
            "readlink",
            "getrandom",
            "mprotect",
            "fstat",
            "newfstatat",
            "uname",
        ];
        bundle.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_KILL_PROCESS",
            "syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}]});
    });
    assert_eq!(container.run().ok(), "narrow");
}

/// Standard input, output and error at /dev/null can be read and written, in every combination.
#[test]
fn dev_null_as_stdio_can_be_read_and_written() {
    let env = Env::new();
    let script = "echo x >&1 && echo y >&2 && ! read line && echo fine >/report";
    for runtime in BOTH {
        let container = Container::new(&env, runtime, script, |_| {});
        let (dir, id) = (container.bundle.dir.display().to_string(), container.bundle.id.clone());
        let run = container.cmd(["run", "--bundle", &dir, &id]).output_to("/dev/null");
        run.run().expect(0);
        assert!(container.bundle.rootfs.join("report").exists(), "{runtime:?}");
    }
    assert!(fs::metadata("/dev/null").is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_char_device(&m.file_type())));
}

/// An absolute command needs no PATH; a bare name without one is not found.
#[test]
fn a_command_needs_a_path_only_for_a_bare_name() {
    let env = Env::new();
    let with = |args: serde_json::Value| {
        side_by_side(&env, "", |bundle| {
            bundle.config["process"]["env"] = json!([]);
            bundle.config["process"]["args"] = args.clone();
        })
    };
    let [ours, runc] = with(json!(["/bin/env"])).map(|output| output.expect(0));
    assert_eq!((ours.stdout.as_str(), runc.stdout.as_str()), ("HOME=/root\n", "HOME=/root\n"));
    let [ours, runc] = with(json!(["env"])).map(|output| output.expect(1));
    let words = "exec: \\\"env\\\": executable file not found in $PATH";
    assert!(ours.stderr.contains(words) && runc.stderr.contains(words), "{} / {}", ours.stderr, runc.stderr);
}

/// The environment is as written: its order, the last of a repeated name, values with `=`, and a host variable that is no
/// text does not matter.
#[test]
fn the_environment_is_as_written() {
    let env = Env::new();
    let with_env = |list: serde_json::Value| {
        Container::new(&env, Runtime::Ours, "", |bundle| {
            bundle.config["process"]["args"] = json!(["/bin/env"]);
            bundle.config["process"]["env"] = list;
            fs::write(bundle.rootfs.join("etc/passwd"), "root:x:0:0::/the/home:/bin/sh\n").expect("write");
        })
    };
    // Without HOME it is the image's own for the user.
    assert_eq!(with_env(json!(["Z=1", "PATH=/bin"])).run().ok(), "Z=1\nPATH=/bin\nHOME=/the/home");
    let container = with_env(json!(["Z=1", "A=2=3", "PATH=/bin", "M=", "Z=4", "HOME=/h"]));
    let odd: std::ffi::OsString = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff, b'x']);
    let run = container.cmd(["run", "--bundle"]).arg(&container.bundle.dir).arg(&container.bundle.id);
    assert_eq!(run.env("ODD", odd).ok(), "A=2=3\nPATH=/bin\nM=\nZ=4\nHOME=/h");
}

/// Prints the session keyring's serial number and description.
const KEYRING: &str = r#"
#include <stdio.h>
#include <unistd.h>
#include <sys/syscall.h>
int main(void) {
    char text[256] = "";
    long serial = syscall(SYS_keyctl, 0, -3, 0);
    if (serial < 0) { perror("keyctl"); return 1; }
    if (syscall(SYS_keyctl, 6, serial, text, sizeof text) < 0) { perror("describe"); return 1; }
    printf("%ld %s\n", serial, text);
    return 0;
}"#;

/// A container has a session keyring of its own, which its execs share; with `--no-new-keyring` it has its creator's.
#[test]
fn a_container_has_a_session_keyring_of_its_own() {
    let env = Env::new();
    let mine = Cmd::new(lab::compile(&env, "keyring", KEYRING)).ok();
    for runtime in BOTH {
        let container = Container::new(&env, runtime, "/keyring; exec sleep 100000", |bundle| {
            lab::install(bundle, "keyring", KEYRING);
        });
        container.start();
        wait_until("the keyring", std::time::Duration::from_secs(10), || container.out().contains('\n'));
        let own = container.out().trim().to_owned();
        assert_ne!(own, mine, "{runtime:?}");
        assert!(own.ends_with(&format!(";_ses.{}", container.bundle.id)), "{runtime:?}: {own}");
        assert_eq!(container.sh("/keyring").ok(), own, "{runtime:?}: an exec");
        let keeping = Container::new(&env, runtime, "/keyring", |bundle| lab::install(bundle, "keyring", KEYRING));
        let run = keeping.cmd(["run", "--no-new-keyring", "--bundle"]);
        assert_eq!(run.arg(&keeping.bundle.dir).arg(&keeping.bundle.id).ok(), mine, "{runtime:?}");
    }
}

/// What is not supported is refused with a reason, and said by `features`: less than was asked for is never run.
#[test]
fn what_is_not_supported_is_refused() {
    let env = Env::new();
    let refused = |words: &str, change: &dyn Fn(&mut Bundle<'_>)| {
        let failed = Container::new(&env, Runtime::Ours, "true", change).run().expect(1);
        assert!(failed.stderr.contains(words), "{words} not in {}", failed.stderr);
        assert_eq!(env.ok(["list", "-q"]), "");
    };
    if !Path::new("/sys/fs/selinux/enforce").exists() {
        refused("selinux label is specified in config, but selinux is not supported", &|bundle| {
            bundle.config["process"]["selinuxLabel"] = json!("system_u:system_r:container_t:s0");
        });
    }
    let features: serde_json::Value = serde_json::from_str(&env.ok(["features"])).expect("JSON");
    assert_eq!(features["linux"]["selinux"]["enabled"], false, "{features}");
}

/// A profile with `SCMP_ACT_NOTIFY`: the listener gets the filter's descriptor before the command runs, calls wait for it,
/// the identity is the configuration's; and no exec is run with less than the whole filter.
#[test]
fn a_seccomp_listener_gets_its_descriptor() {
    let env = Env::new();
    for privileges in [true, false] {
        let script = "id -u; grep Seccomp: /proc/self/status; mkdir /made 2>&1 | grep -o 'Function not implemented'; exec sleep 100000";
        let socket = env.dir.join(format!("listener-{privileges}"));
        let listener = std::os::unix::net::UnixListener::bind(&socket).expect("bind");
        let accepting = std::thread::spawn(move || {
            let stream = listener.accept().expect("accept").0;
            agentsbx::sys::socket::receive_fd(std::os::fd::AsFd::as_fd(&stream)).expect("a descriptor")
        });
        let container = Container::new(&env, Runtime::Ours, script, |bundle| {
            bundle.config["process"]["noNewPrivileges"] = privileges.into();
            bundle.config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
            bundle.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": socket,
                "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_NOTIFY"}]});
        });
        container.start();
        let filter = accepting.join().expect("the listener's thread");
        let link =
            fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&filter))).expect("readlink");
        assert_eq!(link.to_string_lossy(), "anon_inode:seccomp notify");
        wait_until("the command waits", std::time::Duration::from_secs(10), || container.out().lines().count() == 2);
        let refused = container.sh("true").expect(255);
        assert!(refused.stderr.contains("SCMP_ACT_NOTIFY is not supported for exec"), "{}", refused.stderr);
        // Calls fail with ENOSYS once nobody listens.
        drop(filter);
        wait_until("the command goes on", std::time::Duration::from_secs(10), || container.out().lines().count() == 3);
        assert_eq!(container.out(), "1000\nSeccomp:\t2\nFunction not implemented\n");
    }
}

/// The first process has descriptors 0, 1 and 2 and those that `--preserve-fds` names, whatever the caller had open, also
/// with hooks.
#[test]
fn only_the_named_descriptors_are_inherited() {
    let env = Env::new();
    for runtime in BOTH {
        for (flags, want) in [(&["--preserve-fds", "1"][..], "0 1 2 3"), (&[], "0 1 2")] {
            let script = "cat <&3 2>/dev/null; echo /proc/self/fd/* | sed 's,/proc/self/fd/,,g'";
            let container = Container::new(&env, runtime, script, |bundle| {
                bundle.config["hooks"]["createRuntime"] = json!([{"path": "/bin/true"}]);
            });
            let kept = env.dir.join("kept");
            fs::write(&kept, "kept\n").expect("write");
            // 3 is preserved, 4 and 5 are not.
            let opening = format!("exec 3<{0} 4<{0} 5>>{0}; exec \"$@\"", kept.display());
            let run = Cmd::new("sh").args(["-c", &opening, "sh"]).args(runtime.words(&env));
            let run = run.args(["run", "--bundle"]).arg(&container.bundle.dir).args(flags).arg(&container.bundle.id);
            let out = run.env("AGENTSBX_CONFIG", &process().config).run().expect(0).stdout;
            // The shell's own descriptor for the directory that it lists is the next one.
            let seen = out.lines().last().expect("a line").trim();
            let seen = seen.strip_suffix(&format!(" {}", want.len() / 2 + 1)).unwrap_or(seen);
            assert_eq!(seen, want, "{runtime:?} {flags:?}");
            assert_eq!(out.starts_with("kept\n"), !flags.is_empty(), "{runtime:?} {flags:?}: {out}");
        }
    }
}

/// While it waits for `start` the first process has no directory of the host open. With `CAP_SYS_PTRACE` an exec, or a
/// container that shares the pid namespace, reached the host's root directory through one.
#[test]
fn a_first_process_that_waits_holds_no_directory() {
    let env = Env::new();
    let given = env.dir.join("given");
    fs::create_dir_all(given.join("inside")).expect("mkdir");
    for flags in [&[][..], &["--preserve-fds", "1"]] {
        let script = "ls /proc/self/fd/3/ 2>/dev/null; echo started; exec sleep 100000";
        let container = Container::new(&env, Runtime::Ours, script, |bundle| {
            for set in ["bounding", "effective", "permitted"] {
                bundle.config["process"]["capabilities"][set] = json!(["CAP_SYS_PTRACE"]);
            }
        });
        let opening = format!("exec 3<{}; exec \"$@\"", given.display());
        let create = Cmd::new("sh").args(["-c", &opening, "sh"]).args(container.runtime.words(&env));
        let create =
            create.args(["create", "--bundle"]).arg(&container.bundle.dir).args(flags).arg(&container.bundle.id);
        let out = container.bundle.dir.join("out");
        create.env("AGENTSBX_CONFIG", &process().config).output_to(out).run().expect(0);
        let look = "test -e /proc/1/fd/1 && for fd in /proc/1/fd/*; do test -d $fd/ && echo $fd; done; echo looked";
        // What the engine gives by name it keeps, whatever it is.
        let want = if flags.is_empty() { "looked" } else { "/proc/1/fd/3\nlooked" };
        assert_eq!(container.sh(look).ok(), want);
        container.verb("start").expect(0);
        let want = if flags.is_empty() { "started\n" } else { "inside\nstarted\n" };
        wait_until("its output", std::time::Duration::from_secs(10), || container.out() == want);
    }
}

/// A user namespace of several ranges is made by root without help: `newuidmap`, which may be missing, would want ranges for
/// root in `/etc/subuid`. Ranges that the kernel does not take are named.
#[test]
fn a_user_namespace_of_several_ranges() {
    let env = Env::new();
    let ranges = |second: u32| json!([{"containerID": 0, "hostID": 100000, "size": 10}, {"containerID": second, "hostID": 300000, "size": 65526}]);
    let with = |second: u32, bundle: &mut Bundle<'_>| {
        lab::with_user_namespace(bundle);
        bundle.config["linux"]["uidMappings"] = ranges(10);
        bundle.config["linux"]["gidMappings"] = ranges(second);
    };
    let script = "cat /proc/self/uid_map /proc/self/gid_map; id -u; id -g";
    let container = Container::new(&env, Runtime::Ours, script, |bundle| {
        with(10, bundle);
        bundle.config["process"]["user"] = json!({"uid": 12, "gid": 0});
    });
    let map = "0 100000 10\n10 300000 65526\n".repeat(2);
    let seen = container.run().expect(0).stdout;
    let words: Vec<String> = seen.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(words.join("\n") + "\n", format!("{map}12\n0\n"));
    // Execs are in it, too.
    let container = Container::new(&env, Runtime::Ours, "sleep 100000", |bundle| with(10, bundle));
    container.start();
    assert_eq!(container.sh("id -u; wc -l </proc/self/gid_map").ok(), "0\n2");
    let container = Container::new(&env, Runtime::Ours, "true", |bundle| with(5, bundle));
    let refused = container.run();
    assert_ne!(refused.code, 0);
    let why =
        "invalid linux.gidMappings in config.json: ranges (0 100000 10) and (5 300000 65526) overlap in containerID";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    // What only the kernel refuses: more than a page of text. Both are told, as two.
    let long: Vec<_> =
        (0..340).map(|n| json!({"containerID": n, "hostID": 4_000_000_000_u32 + n, "size": 1})).collect();
    let container = Container::new(&env, Runtime::Ours, "true", |bundle| {
        lab::with_user_namespace(bundle);
        bundle.config["linux"]["uidMappings"] = json!(long);
        bundle.config["linux"]["gidMappings"] = json!(long);
    });
    let refused = container.run().expect(1);
    let text = "7 4000000007 1, … (340 in all)): invalid argument: written out they have 5670 bytes";
    assert_eq!(refused.stderr.matches(text).count(), 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("take fewer; linux.gidMappings: the kernel refuses"), "{}", refused.stderr);
    for (uids, gids, missing) in [(json!([]), json!([]), "uid"), (ranges(10), serde_json::Value::Null, "gid")] {
        let container = Container::new(&env, Runtime::Ours, "true", |bundle| {
            lab::with_user_namespace(bundle);
            bundle.config["linux"]["uidMappings"] = uids;
            bundle.config["linux"]["gidMappings"] = gids;
        });
        let said = container.run().expect(1).stderr;
        assert!(said.contains(&format!("invalid linux.{missing}Mappings in config.json: missing: ")), "{said}");
    }
    assert!(!env.root.join(&container.bundle.id).exists(), "nothing is left");

    // The colon of a list of paths may be in the path.
    let mut env = Env::new();
    env.root = env.root.with_extension("a:b");
    let container = Container::new(&env, Runtime::Ours, script, |bundle| with(10, bundle));
    assert!(container.run().expect(0).stdout.ends_with("\n0\n0\n"));
}
