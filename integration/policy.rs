//! The profile `strict` on real containers: what they get of what they are given, what is refused, and how that is told.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::support::bundle::Bundle;
use crate::support::docker::Container;
use crate::support::engines::engines;
use crate::support::images::BUSYBOX;
use crate::support::{Cmd, Env, Output};

fn bind(source: &Path, at: &str, options: &[&str]) -> Value {
    json!({"destination": at, "type": "bind", "source": source, "options": options})
}

/// A bundle that only waits, changed by `change`, not yet started.
fn bundle<'e>(env: &'e Env, change: impl FnOnce(&mut Value)) -> Bundle<'e> {
    let mut bundle = Bundle::new(env, ["sleep", "100000"]);
    change(&mut bundle.config);
    bundle
}

fn mount(config: &mut Value, mount: Value) {
    config["mounts"].as_array_mut().expect("mounts").push(mount);
}

/// What is said when the container is refused.
#[track_caller]
fn refused(env: &Env, change: impl FnOnce(&mut Value)) -> String {
    let mut bundle = bundle(env, change);
    bundle.config["process"]["args"] = json!(["true"]);
    let output = bundle.run().expect(1);
    assert!(bundle.env.run(["state", &bundle.id]).code != 0, "nothing is left");
    output.stderr
}

fn started<'e>(env: &'e Env, change: impl FnOnce(&mut Value)) -> Bundle<'e> {
    let bundle = bundle(env, change);
    bundle.start();
    bundle
}

/// Value of a line of /proc/PID/status as an exec sees it.
fn status(bundle: &Bundle<'_>, options: &[&str], pid: &str, name: &str) -> String {
    let cmd = bundle.env.cmd(["exec"]).args(options).args([&bundle.id, "cat", &format!("/proc/{pid}/status")]);
    let text = cmd.run().expect(0).stdout;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).expect("the line");
    line.trim().to_owned()
}

/// Whatever an engine or a caller of exec asks for: CHOWN and NET_BIND_SERVICE are on the list, SYS_ADMIN is not, FOWNER is
/// but the container was not given it.
#[test]
fn capabilities_and_new_privileges_of_the_first_process_and_of_execs() {
    let env = Env::with_config("");
    let bundle = started(&env, |config| {
        let caps = json!(["CAP_CHOWN", "CAP_NET_BIND_SERVICE", "CAP_SYS_ADMIN"]);
        for set in ["bounding", "effective", "permitted", "inheritable", "ambient"] {
            config["process"]["capabilities"][set] = caps.clone();
        }
        config["process"]["noNewPrivileges"] = json!(false);
    });
    let options: [&[&str]; 3] = [&[], &["--cap", "CAP_SYS_ADMIN"], &["--cap", "CAP_FOWNER"]];
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(&bundle, &[], "1", set), "0000000000000401", "{set} of the first process");
        for options in options {
            assert_eq!(status(&bundle, options, "self", set), "0000000000000401", "{set} of an exec with {options:?}");
        }
    }
    for pid in ["1", "self"] {
        assert_eq!(status(&bundle, &[], pid, "NoNewPrivs"), "1", "{pid}");
    }
    let oci = Env::new();
    let given = started(&oci, |config| {
        config["process"]["capabilities"]["bounding"] = json!(["CAP_CHOWN", "CAP_SYS_ADMIN"]);
    });
    assert_eq!(status(&given, &[], "1", "CapBnd"), "0000000000200001", "profile oci gives what is asked for");
}

/// The error names the word of the configuration that would allow it, and with the word it works.
#[test]
fn the_hosts_namespaces_are_refused() {
    let env = Env::with_config("");
    let without = |kind: &'static str| {
        move |config: &mut Value| {
            config["linux"]["namespaces"].as_array_mut().expect("namespaces").retain(|ns| ns["type"] != kind);
            if kind == "uts" {
                config.as_object_mut().expect("an object").remove("hostname");
            }
        }
    };
    for kind in ["pid", "ipc", "uts", "network", "mount"] {
        let err = refused(&env, without(kind));
        assert!(err.contains(&format!("the host's {kind} namespace")), "{err}");
        assert!(err.contains(&format!("\\\"host-{kind}\\\" in the configuration's allow")), "{err}");
    }
    let err = refused(&env, |config| {
        config["linux"]["namespaces"][4] =
            json!({"type": "network", "path": format!("/proc/{}/ns/net", std::process::id())})
    });
    assert!(err.contains("the host's network namespace"), "{err}");
    let open = Env::with_config("allow = ['host-uts']\n");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("hostname");
    assert_eq!(started(&open, without("uts")).sh("hostname").stdout.trim(), host.trim());
}

/// Of another container's namespaces, as those of a pod are, nobody is kept.
#[test]
fn another_containers_namespaces_can_be_joined() {
    let env = Env::with_config("");
    let pod = started(&env, |config| config["hostname"] = json!("pod"));
    let pid = pod.state()["pid"].to_string();
    let member = started(&env, |config| {
        config["linux"]["namespaces"][2] = json!({"type": "uts", "path": format!("/proc/{pid}/ns/uts")});
        config.as_object_mut().expect("an object").remove("hostname");
    });
    assert_eq!(member.sh("hostname").stdout, "pod\n");
}

/// Where the host has v1 hierarchies as where it has v2: the container is at the top of what it sees, and can't write there.
#[test]
fn cgroups_are_the_containers_own_and_read_only() {
    let env = Env::with_config("");
    let at = json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"]});
    let bundle = started(&env, |config| mount(config, at));
    let first = bundle.sh("cat /proc/1/cgroup").stdout;
    assert!(!first.is_empty() && first.lines().all(|line| line.ends_with(":/")), "{first}");
    let own = bundle.sh("cat /proc/self/cgroup").stdout;
    assert!(own.lines().all(|line| line.ends_with(":/") || line.contains(":/agentsbx-")), "{own}");
    for script in [
        "mkdir /sys/fs/cgroup/x",
        "mkdir /sys/fs/cgroup/pids/x /sys/fs/cgroup/x",
        "echo 1 > /sys/fs/cgroup/cgroup.procs",
    ] {
        let got = bundle.sh(script);
        assert!(got.code != 0 && got.stderr.contains("Read-only file system"), "{script}: {}", got.stderr);
    }
}

/// Flags of the mount at `at`, as the process `pid` of the container has it.
fn flags(bundle: &Bundle<'_>, pid: &str, at: &str) -> Vec<String> {
    let text = bundle.sh(&format!("cat /proc/{pid}/mountinfo")).stdout;
    let line = text.lines().find(|line| line.split(' ').nth(4) == Some(at)).unwrap_or_else(|| panic!("{at}: {text}"));
    line.split(' ').nth(5).expect("flags").split(',').map(str::to_owned).collect()
}

#[test]
fn mounts_bring_no_programs_no_devices_and_no_setuid() {
    let env = Env::with_config("");
    let (tools, tree) = (env.dir.join("tools"), env.dir.join("tree"));
    fs::create_dir_all(tree.join("below")).expect("make a directory");
    fs::create_dir_all(&tools).expect("make a directory");
    fs::write(tools.join("tool"), "#!/bin/sh\necho ran\n").expect("write");
    Cmd::new("chmod").arg("755").arg(tools.join("tool")).ok();
    Cmd::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(tree.join("below")).ok();
    let bundle = started(&env, |config| {
        mount(config, bind(&tools, "/tools", &["rbind", "exec", "suid"]));
        mount(config, bind(&tree, "/tree", &["rbind"]));
        mount(
            config,
            json!({"destination": "/scratch", "type": "tmpfs", "source": "tmpfs", "options": ["exec", "dev"]}),
        );
    });
    Cmd::new("umount").arg(tree.join("below")).ok();
    for at in ["/tools", "/tree", "/tree/below", "/scratch", "/dev/shm", "/proc"] {
        for pid in ["1", "self"] {
            let got = flags(&bundle, pid, at);
            assert!(
                ["nosuid", "nodev", "noexec"].iter().all(|flag| got.iter().any(|f| f == flag)),
                "{at} of {pid}: {got:?}"
            );
        }
    }
    for pid in ["1", "self"] {
        let got = flags(&bundle, pid, "/");
        assert!(["nosuid", "nodev"].iter().all(|flag| got.iter().any(|f| f == flag)), "the root of {pid}: {got:?}");
    }
    let got = bundle.sh("/tools/tool");
    assert!(got.code == 126 && got.stderr.contains("Permission denied"), "{} {}", got.code, got.stderr);
    let open = Env::with_config(&format!("[mounts]\nexec = ['{}']\n", tools.display()));
    let bundle = started(&open, |config| mount(config, bind(&tools, "/tools", &["rbind"])));
    assert_eq!(bundle.sh("/tools/tool").stdout, "ran\n");
}

#[test]
fn what_is_the_hosts_cannot_be_mounted() {
    let env = Env::with_config("");
    let socket = env.dir.join("service.sock");
    let _listener = UnixListener::bind(&socket).expect("bind");
    let escape = env.dir.join("vol");
    fs::create_dir_all(&escape).expect("make a directory");
    symlink("/var/tmp", escape.join("sub")).expect("symlink");
    let cases = [
        (Path::new("/"), "it holds /bin"),
        (Path::new("/etc"), "the host's configuration"),
        (Path::new("/proc"), "the host's processes"),
        (Path::new("/proc/sys"), "the host's processes"),
        (Path::new("/sys/fs/cgroup"), "the host's devices and kernel"),
        (Path::new("/dev"), "the host's devices"),
        (Path::new("/var/run"), "sockets of the host's services"),
        (&socket, "it is a socket"),
        (&env.store, "what this runtime keeps"),
        (&env.root, "no such file or directory"),
        (&escape.join("sub"), "is a symbolic link out of its directory"),
    ];
    for (source, words) in cases {
        let err = refused(&env, |config| mount(config, bind(source, "/x", &["rbind"])));
        assert!(err.contains(words) && err.contains("mount"), "{}: {err}", source.display());
    }
    // What is not there is not waited for, and what this runtime keeps is there once a container is.
    started(&env, |_| ());
    let err = refused(&env, |config| mount(config, bind(&env.root, "/x", &["rbind"])));
    assert!(err.contains("mounts[/x]: the host's ") && err.contains("only single files can be mounted"), "{err}");
    for (fs_type, at) in [("ext4", "/x"), ("proc", "/x"), ("overlay", "/x")] {
        let one = json!({"destination": at, "type": fs_type, "source": "none"});
        let err = refused(&env, |config| mount(config, one));
        assert!(err.contains(&format!("filesystem \\\"{fs_type}\\\"")), "{err}");
    }
    let err = refused(&env, |config| mount(config, bind(&escape, "/proc/sys", &["bind"])));
    assert!(err.contains("mounts[/proc/sys]"), "{err}");
    let open = Env::with_config(&format!("[mounts]\nallow = ['{}', '/var/tmp']\n", socket.display()));
    let bundle = started(&open, |config| {
        mount(config, bind(&socket, "/s", &["bind"]));
        mount(config, bind(&escape.join("sub"), "/x", &["bind"]));
    });
    bundle.sh("test -S /s && test -d /x").expect(0);
}

/// Every way to say that a flag is not to be: libcontainer applies what is recursive last, to the mount itself too. A writable
/// sysfs came of it, and bind mounts with devices and setuid programs.
#[test]
fn flags_hold_however_they_are_undone() {
    let env = Env::with_config("");
    let dir = env.dir.join("volume");
    fs::create_dir_all(&dir).expect("make a directory");
    let all = ["rw", "rrw", "suid", "rsuid", "dev", "rdev", "exec", "rexec"];
    let with = |first: &[&str]| -> Value { first.iter().chain(&all).copied().collect() };
    let bundle = started(&env, |config| {
        config["mounts"][5]["options"] = with(&[]);
        for (at, kind, source, first) in [
            ("/plain", "bind", dir.to_str(), "bind"),
            ("/deep", "bind", dir.to_str(), "rbind"),
            ("/option", "none", dir.to_str(), "bind"),
            ("/read", "bind", dir.to_str(), "ro"),
            ("/scratch", "tmpfs", None, "size=1m"),
        ] {
            mount(config, json!({"destination": at, "type": kind, "source": source, "options": with(&[first])}));
        }
    });
    for at in ["/plain", "/deep", "/option", "/read", "/scratch", "/sys"] {
        for pid in ["1", "self"] {
            let got = flags(&bundle, pid, at);
            let want: &[&str] = if matches!(at, "/read" | "/sys") {
                &["nosuid", "nodev", "noexec", "ro"]
            } else {
                &["nosuid", "nodev", "noexec"]
            };
            assert!(want.iter().all(|flag| got.iter().any(|f| f == flag)), "{at} of {pid}: {got:?}");
        }
    }
}

/// libcontainer looked at the type where the policy looked at the options: cgroups that can be written were mounted in the
/// place of a directory, and an empty path to mask kept anybody from looking whether it is that directory.
#[test]
fn a_bind_mount_is_one_whatever_its_type() {
    let env = Env::with_config("");
    let dir = env.dir.join("volume");
    fs::create_dir_all(&dir).expect("make a directory");
    fs::write(dir.join("file"), "theirs\n").expect("write");
    let bundle = started(&env, |config| {
        for kind in ["cgroup", "proc", "sysfs", "tmpfs", "none", ""] {
            let at = format!("/as-{kind}");
            mount(config, json!({"destination": at, "type": kind, "source": dir, "options": ["bind"]}));
        }
        config["linux"]["maskedPaths"] = json!([""]);
    });
    let got = bundle.sh("cat /as-*/file | sort | uniq -c; grep -c ' - cgroup' /proc/self/mountinfo").stdout;
    assert_eq!(got.split_whitespace().collect::<Vec<_>>(), ["6", "theirs", "0"]);
}

/// A chroot with its own /proc, given as a volume or as the root filesystem, let a container write to core_pattern.
#[test]
fn what_is_mounted_below_a_directory_of_the_host_is_judged_too() {
    let env = Env::with_config("");
    let chroot = env.dir.join("chroot");
    fs::create_dir_all(chroot.join("proc")).expect("make a directory");
    let mut own = Bundle::new(&env, ["sleep", "100000"]);
    fs::create_dir_all(own.rootfs.join("below")).expect("make a directory");
    let mount_of = |kind: &str, at: &Path| Cmd::new("mount").args(["-t", kind, kind]).arg(at).ok();
    mount_of("proc", &chroot.join("proc"));
    mount_of("proc", &own.rootfs.join("below"));
    let as_volume = |how: &'static str| {
        let mut bundle = bundle(&env, |config| mount(config, bind(&chroot, "/c", &[how])));
        bundle.config["process"]["args"] = json!(["ls", "/c/proc"]);
        bundle.run()
    };
    let (deep, plain, root) = (as_volume("rbind"), as_volume("bind"), own.run());
    Cmd::new("umount").arg(chroot.join("proc")).ok();
    Cmd::new("umount").arg(own.rootfs.join("below")).ok();
    let err = deep.expect(1).stderr;
    assert!(
        err.contains("mounts[/c]: the host's ") && err.contains("chroot/proc, a filesystem of the kernel's own"),
        "{err}"
    );
    assert_eq!(plain.expect(0).stdout, "", "without what is mounted below");
    let err = root.expect(1).stderr;
    assert!(err.contains("root.path ") && err.contains("below, a filesystem of the kernel's own"), "{err}");

    // What else is mounted below the root filesystem brings no devices and no setuid programs.
    mount_of("tmpfs", &own.rootfs.join("below"));
    own.config["root"]["readonly"] = json!(false);
    own.start();
    Cmd::new("umount").arg(own.rootfs.join("below")).ok();
    for pid in ["1", "self"] {
        let got = flags(&own, pid, "/below");
        assert!(["nosuid", "nodev"].iter().all(|flag| got.iter().any(|f| f == flag)), "of {pid}: {got:?}");
    }
}

#[test]
fn a_directory_of_the_hosts_is_no_root_filesystem() {
    let env = Env::with_config("");
    started(&env, |_| ());
    for (root, words) in [
        (Path::new("/"), "it is or holds the host's"),
        (Path::new("/etc"), "the host's configuration"),
        (Path::new("/usr"), "the host's programs"),
        (&env.store, "what this runtime keeps"),
        (&env.root, "what this runtime keeps"),
    ] {
        let err = refused(&env, |config| config["root"]["path"] = json!(root));
        assert!(err.contains(&format!("root.path {}: ", root.display())) && err.contains(words), "{err}");
    }
}

/// What a pass took for nothing said was something else to who carries it out, or the other way round.
#[test]
fn a_value_of_the_wrong_type_is_told_with_its_field() {
    let env = Env::with_config("");
    for (pointer, value, words) in [
        ("/linux/resources", json!("x"), "invalid linux.resources in config.json: invalid type"),
        ("/linux/maskedPaths", json!("/proc/kcore"), "invalid linux.maskedPaths in config.json"),
        ("/mounts/2/options", json!("rw,exec"), "invalid mounts[2].options in config.json"),
        ("/process/noNewPrivileges", json!("false"), "invalid process.noNewPrivileges in config.json"),
        ("/linux/namespaces", json!({"0": {"type": "pid"}}), "invalid linux.namespaces in config.json"),
        ("/linux/namespaces/1", json!({"type": "pid"}), "invalid linux.namespaces in config.json: duplicated ns"),
    ] {
        let err = refused(&env, |config| {
            let (parent, key) = pointer.rsplit_once('/').expect("a parent");
            let parent = config.pointer_mut(parent).expect("it is there");
            match parent.as_array_mut() {
                Some(list) => list[key.parse::<usize>().expect("a number")] = value,
                None => parent[key] = value,
            }
        });
        assert!(err.contains(words), "{pointer}: {err}");
    }
}

/// Lists of values, in the order in which a library declares its fields, were objects to that library and nothing to the policy:
/// the host's root was mounted, and capabilities were kept.
#[test]
fn a_list_in_the_place_of_an_object_is_refused() {
    let env = Env::with_config("");
    let root = refused(&env, |c| mount(c, json!(["/host", "bind", "/", ["rbind"]])));
    assert!(root.contains("invalid mounts[6] in config.json: invalid type: a list, expected an object"), "{root}");
    let all = json!([["CAP_SYS_ADMIN"], ["CAP_SYS_ADMIN"], null, ["CAP_SYS_ADMIN"], null]);
    let capabilities = refused(&env, |c| c["process"]["capabilities"] = all.clone());
    assert!(capabilities.contains("invalid process.capabilities in config.json: "), "{capabilities}");
}

/// `{"pid": null}` was a word to a library and none to the policy: beside a namespace of its own the container had the host's.
#[test]
fn an_object_in_the_place_of_a_word_is_refused() {
    let env = Env::with_config("");
    let hosts = json!({"type": {"pid": null}, "path": "/proc/self/ns/pid"});
    let pid = refused(&env, |c| c["linux"]["namespaces"].as_array_mut().unwrap().push(hosts.clone()));
    assert!(pid.contains(".type in config.json: invalid type: an object, expected a string"), "{pid}");
    let seccomp = refused(&env, |c| c["linux"]["seccomp"] = json!({"defaultAction": {"SCMP_ACT_ALLOW": null}}));
    assert!(
        seccomp.contains("invalid linux.seccomp in config.json: invalid type: an object, expected a string"),
        "{seccomp}"
    );
}

/// libcontainer wrote "136:-1" to the cgroup.
#[test]
fn any_number_of_a_device_rule_may_be_minus_one() {
    let env = Env::with_config("");
    started(&env, |config| {
        let rules = config["linux"]["resources"]["devices"].as_array_mut().expect("rules");
        rules.push(json!({"allow": true, "type": "c", "major": 136, "minor": -1, "access": "rwm"}));
    })
    .sh("test -c /dev/null")
    .expect(0);
}

/// It would be gone from the host.
#[test]
fn a_network_device_of_the_host_is_not_moved() {
    let env = Env::with_config("");
    let err = refused(&env, |config| config["linux"]["netDevices"] = json!({"lo": {"name": "eth7"}}));
    assert!(err.contains("linux.netDevices \\\"lo\\\"") && err.contains("host-network"), "{err}");
}

/// Someone else's container exchanges a directory of its volume for a link to where it has nothing to look for, over and
/// over: a container is made with the directory, or not at all.
#[test]
fn a_source_that_changes_while_it_is_mounted_is_never_another() {
    let env = Env::with_config("");
    let (volume, secret) = (env.dir.join("volume"), env.dir.join("secret"));
    fs::create_dir_all(volume.join("sub")).expect("make a directory");
    fs::create_dir_all(&secret).expect("make a directory");
    fs::write(volume.join("sub/name"), "sub").expect("write");
    fs::write(secret.join("name"), "secret").expect("write");
    symlink(&secret, volume.join("link")).expect("symlink");
    let stop = AtomicBool::new(false);
    let (mut made, mut told) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let dir = rustix::fs::open(&volume, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).expect("open");
            let mut pause = 1;
            while !stop.load(Ordering::Relaxed) {
                let how = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&dir, "sub", &dir, "link", how).expect("exchange");
                pause = (pause * 7 + 311) % 3000;
                std::thread::sleep(std::time::Duration::from_micros(pause));
            }
        });
        // What was seen is looked at when the other thread has ended.
        for _ in 0..30 {
            let mut bundle = Bundle::new(&env, ["cat", "/x/name"]);
            mount(&mut bundle.config, bind(&volume.join("sub"), "/x", &["bind"]));
            let output = bundle.run();
            if output.code == 0 { made.push(output.stdout) } else { told.push(output.stderr) }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(made.iter().all(|name| name == "sub"), "{made:?}");
    let replaced = told.iter().filter(|err| err.contains("its source was replaced")).count();
    assert!(made.len() + replaced > 0 && !told.is_empty(), "{made:?} {told:?}: the race was not one");
    let reasons = ["is a symbolic link out of its directory", "its source was replaced", "open source of a bind mount"];
    let known = |err: &String| reasons.iter().any(|reason| err.contains(reason));
    assert!(told.iter().all(known), "{told:?}");
}

/// Images have their resolv.conf as a link to where their own service would put it.
#[test]
fn a_destination_that_is_a_link_of_the_image_works() {
    let env = Env::with_config("");
    let shared = env.dir.join("shared");
    fs::create_dir_all(&shared).expect("make a directory");
    let file = shared.join("resolv.conf");
    fs::write(&file, "nameserver 192.0.2.1\n").expect("write");
    let bundle = bundle(&env, |config| mount(config, bind(&file, "/etc/resolv.conf", &["rbind", "rprivate"])));
    symlink("../run/systemd/stub.conf", bundle.rootfs.join("etc/resolv.conf")).expect("symlink");
    bundle.start();
    assert_eq!(bundle.sh("cat /etc/resolv.conf").stdout, "nameserver 192.0.2.1\n");
    let cow = self::bundle(&env, |config| {
        config["annotations"]["dev.agentsbx.mounts"] = json!(r#"{"/link": "cow"}"#);
        mount(config, bind(&shared, "/link", &["bind"]));
    });
    symlink("/mnt", cow.rootfs.join("link")).expect("symlink");
    cow.start();
    cow.sh("test -s /mnt/resolv.conf && echo x > /mnt/resolv.conf").expect(0);
    assert_eq!(fs::read_to_string(&file).expect("the host's"), "nameserver 192.0.2.1\n");
    let astray = self::bundle(&env, |config| mount(config, bind(&file, "/work", &["bind"])));
    symlink("/proc/sys", astray.rootfs.join("work")).expect("symlink");
    let err = astray.run().expect(1).stderr;
    assert!(err.contains("mounts[/work] (which is /proc/sys)"), "{err}");
}

#[test]
fn masked_and_read_only_paths_hold_in_execs() {
    let env = Env::with_config("[paths]\nmask = ['/etc/secret']\nread-only = ['/usr']\n");
    let bundle = bundle(&env, |config| {
        config["linux"]["maskedPaths"] = json!([]);
        config["linux"]["readonlyPaths"] = json!([]);
    });
    fs::write(bundle.rootfs.join("etc/secret"), "secret").expect("write");
    bundle.start();
    let read = "for f in /proc/kcore /proc/keys /proc/timer_list /proc/interrupts /proc/kallsyms /etc/secret; do \
                head -c1 $f 2>/dev/null; done; ls /sys/firmware /proc/acpi 2>/dev/null | grep -v :; true";
    let got = bundle.sh(read).expect(0);
    assert_eq!(got.stdout.trim(), "", "nothing can be read");
    for script in ["echo 1 > /proc/sys/kernel/dmesg_restrict", "touch /usr/x", "touch /sys/x"] {
        let got = bundle.sh(script);
        assert!(got.code != 0 && got.stderr.contains("Read-only file system"), "{script}: {}", got.stderr);
    }
}

#[test]
fn devices_are_the_standard_ones() {
    let device = |path: &str, kind: &str, major: u32, minor: u32| json!({"path": path, "type": kind, "major": major, "minor": minor, "fileMode": 438});
    let ask = |config: &mut Value| {
        config["linux"]["devices"] = json!([device("/dev/fuse", "c", 10, 229), device("/dev/disk", "b", 254, 0)]);
        config["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]);
    };
    let env = Env::with_config("");
    let got = started(&env, ask).sh("ls /dev; head -c1 /dev/zero | wc -c; echo > /dev/null");
    let names: Vec<&str> = got.stdout.split_whitespace().collect();
    assert!(names.contains(&"zero") && !names.contains(&"fuse") && !names.contains(&"disk"), "{names:?}");
    assert!(names.contains(&"1"), "{names:?}");
    // Nor does the cgroup let anything else be used, where v1 can be asked: libcontainer adds /dev/net/tun.
    let plain = started(&env, |_| ());
    let group = plain.config["linux"]["cgroupsPath"].as_str().expect("a path").to_owned();
    if let Ok(list) = fs::read_to_string(format!("/sys/fs/cgroup/devices{group}/devices.list")) {
        let usable = list.lines().filter(|line| line.rsplit(' ').next().is_some_and(|access| access != "m"));
        let numbers: Vec<&str> = usable.filter_map(|line| line.split(' ').nth(1)).collect();
        let standard = ["1:3", "1:5", "1:7", "1:8", "1:9", "5:0", "5:1", "5:2", "136:*"];
        assert!(!numbers.is_empty() && numbers.iter().all(|number| standard.contains(number)), "{list}");
    }
    let open = Env::with_config("[devices]\nallow = ['c 10:229 rwm']\n");
    let names = started(&open, ask).sh("ls /dev").stdout;
    assert!(names.contains("fuse") && !names.contains("disk"), "{names}");
}

#[test]
fn kernel_parameters_are_a_namespaces() {
    let env = Env::with_config("");
    let set = |name: &'static str| move |config: &mut Value| config["linux"]["sysctl"] = json!({name: "1"});
    let bundle = started(&env, set("net.ipv4.ip_forward"));
    assert_eq!(bundle.sh("cat /proc/sys/net/ipv4/ip_forward").stdout, "1\n");
    for name in ["kernel.panic_on_oops", "vm.overcommit_memory", "net/../kernel/panic_on_oops"] {
        let err = refused(&env, set(name));
        assert!(err.contains(&format!("linux.sysctl {name} = ")), "{err}");
    }
}

/// What an annotation asks and may not have is refused, by the key that would allow it.
#[test]
fn annotations_that_loosen_are_refused() {
    let env = Env::with_config("[mounts]\ndefault = 'ro'\n");
    let dir = env.dir.join("data");
    fs::create_dir_all(&dir).expect("make a directory");
    let with = |config: &mut Value, name: &str, value: &str| {
        config["annotations"][name] = json!(value);
        mount(config, bind(&dir, "/data", &["bind"]));
    };
    for (name, value, words) in [
        ("dev.agentsbx.profile", "oci", "\\\"profile\\\" in the configuration's allow"),
        ("dev.agentsbx.mounts", r#"{"/data": "exec"}"#, "\\\"mount-exec\\\" in the configuration's allow"),
        ("dev.agentsbx.mounts", r#"{"/data": "rw"}"#, "\\\"mount-write\\\" in the configuration's allow"),
        ("dev.agentsbx.mounts", r#"{"/none": "ro"}"#, "no bind mount has this destination"),
        ("dev.agentsbx.layer", "shared", "\\\"shared-layer\\\" in the configuration's allow"),
    ] {
        let err = refused(&env, |config| with(config, name, value));
        assert!(err.contains(&format!("annotation {name}")) && err.contains(words), "{err}");
    }
    let strict = started(&env, |config| with(config, "dev.agentsbx.profile", "strict"));
    assert!(strict.sh("touch /data/x").stderr.contains("Read-only file system"));
    let open = Env::with_config(
        "allow = ['profile', 'mount-exec', 'mount-write', 'shared-layer']\n[mounts]\ndefault = 'ro'\n",
    );
    let oci = started(&open, |config| with(config, "dev.agentsbx.profile", "oci"));
    oci.sh("touch /data/x").expect(0);
    let rw = started(&open, |config| with(config, "dev.agentsbx.mounts", r#"{"/data": "rw,exec"}"#));
    rw.sh("printf '#!/bin/sh\necho ran' > /data/tool; chmod +x /data/tool; /data/tool").expect(0);
    started(&open, |config| with(config, "dev.agentsbx.layer", "shared"));
}

/// An exec without a layer leaves no trace: what asks for it may be the image.
#[test]
fn a_variable_cannot_ask_for_no_layer() {
    let ask = |env: &Env| {
        let bundle = started(env, |_| ());
        bundle.sh_with(["--env", "AGENTSBX_LAYER=shared"], "true")
    };
    let err = ask(&Env::with_config("")).expect(255).stderr;
    assert!(err.contains("AGENTSBX_LAYER") && err.contains("shared-layer"), "{err}");
    ask(&Env::with_config("allow = ['shared-layer']\n")).expect(0);
    ask(&Env::new()).expect(0);
}

/// Neither a container nor an exec is started with a configuration that was not understood.
#[test]
fn a_mistake_in_the_configuration_stops_everything() {
    let env = Env::with_config("");
    let bundle = started(&env, |_| ());
    for (text, words) in [
        ("[exec]\nlayr = 'hold'\n", "line 2, exec.layr: unknown field"),
        ("allow = ['everything']\n", "line 1, allow: unknown variant `everything`, expected one of `profile`"),
        ("[limits]\nmemory = 'much'\n", "line 2, limits.memory: "),
        ("[mounts]\nexec = ['relative']\n", "line 2, mounts.exec: "),
        ("profile = ", "line 1, profile: "),
    ] {
        fs::write(&env.config, text).expect("write");
        for output in [bundle.sh("true").expect(255), Bundle::new(&env, ["true"]).run().expect(1)] {
            let place = format!("configuration {}, {words}", env.config.display());
            assert!(output.stderr.contains(&place.replace('"', "\\\"")), "{text}: {}", output.stderr);
        }
    }
    fs::write(&env.config, "").expect("write");
}

#[test]
fn the_configuration_is_shown_with_where_it_comes_from() {
    let env = Env::with_config("allow = ['host-network']\n[limits]\npids = 7\n");
    let lines = env.ok(["config", "show", "--json"]);
    let of = |key: &str| -> Value {
        let entries = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        entries.into_iter().find(|entry| entry["key"] == key).expect("the key")
    };
    assert_eq!(of("limits.pids"), json!({"key": "limits.pids", "value": 7, "source": "file"}));
    assert_eq!(of("limits.memory"), json!({"key": "limits.memory", "value": "2GiB", "source": "default"}));
    assert_eq!(of("allow")["value"], json!(["host-network"]));
    assert_eq!(of("store")["source"], "flag");
    let table = env.ok(["config", "show"]);
    assert!(table.lines().any(|line| line.contains("limits.pids") && line.contains(&env.config.display().to_string())));
    // What it prints to start from is a configuration, and the default one.
    let defaults = Env::with_config(&env.ok(["config", "show", "--defaults"]));
    let again = defaults.ok(["config", "show", "--json"]);
    assert!(again.lines().filter(|line| !line.contains("\"store\"")).all(|line| line.contains("\"source\":\"file\"")));
    started(&defaults, |_| ()).sh("true").expect(0);
}

#[test]
fn decisions_are_told() {
    let env = Env::with_config("");
    let bundle =
        started(&env, |config| config["process"]["capabilities"]["bounding"] = json!(["CAP_CHOWN", "CAP_SYS_BOOT"]));
    let told = bundle.env.json(["show", &bundle.id, "--policy", "--json"]);
    assert_eq!(told["profile"], "strict");
    let decisions = told["decisions"].as_array().expect("decisions");
    let caps = decisions.iter().find(|d| d["field"] == "process.capabilities").expect("a decision on capabilities");
    assert!(caps["from"].as_array().expect("names").contains(&json!("CAP_SYS_BOOT")), "{caps}");
    assert!(!caps["to"].as_array().expect("names").contains(&json!("CAP_SYS_BOOT")), "{caps}");
    assert!(decisions.iter().all(|d| d["why"].as_str().is_some_and(|why| !why.is_empty())), "{told}");
    let text = bundle.env.ok(["show", &bundle.id, "--policy"]);
    assert!(text.starts_with(&format!("profile strict, {} decisions\n", decisions.len())), "{text}");
    assert!(text.contains("-CAP_SYS_BOOT"), "{text}");
    let log = bundle.env.ok(["log", &bundle.id]);
    assert!(log.contains(&format!("as created; profile strict, {} decisions)", decisions.len())), "{log}");
    // What the engine wrote is kept.
    let engine = fs::read_to_string(bundle.dir.join("config.engine.json")).expect("config.engine.json");
    assert!(engine.contains("CAP_SYS_BOOT"));

    bundle.sh("true").expect(0);
    assert!(bundle.show().get("policy").is_none(), "an exec that asks for nothing more has nothing to tell");
    bundle.sh_with(["--cap", "CAP_SYS_ADMIN"], "touch /x").expect(0);
    let shown = bundle.show();
    assert_eq!(shown["policy"][0]["field"], "process.capabilities");
    assert_eq!(shown["policy"].as_array().map(Vec::len), Some(1));
    assert!(bundle.env.ok(["show", &bundle.id]).contains("-CAP_SYS_ADMIN"));
    let exec = shown["exec"].as_str().expect("an id");
    let file = bundle.dir.join("agentsbx/execs").join(format!("{exec}.json"));
    let file: Value = serde_json::from_str(&fs::read_to_string(file).expect("the result")).expect("JSON");
    assert_eq!(file["policy"], shown["policy"]);
}

fn docker<const N: usize>(options: [&str; N], script: &str) -> Output {
    engines().docker(["run", "--rm"]).args(options).args([BUSYBOX, "sh", "-c", script]).run()
}

/// A privileged container runs, and is as any other.
#[test]
fn docker_privileged_gets_no_more() {
    let script = "grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; ls /dev; mount -t tmpfs none /mnt 2>&1; \
                  echo 1 > /proc/sys/kernel/panic; head -c1 /proc/kcore | wc -c";
    for options in [["--privileged"], ["--cap-add=ALL"]] {
        let got = docker(options, script);
        let text = format!("{}{}", got.stdout, got.stderr);
        assert!(text.contains("NoNewPrivs:\t1") && text.contains("Seccomp:\t2"), "{text}");
        let bounding = text.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).expect("CapBnd");
        let mask = u64::from_str_radix(bounding, 16).expect("a mask");
        // SETPCAP, NET_ADMIN, NET_RAW, SYS_MODULE, SYS_CHROOT, SYS_PTRACE, SYS_ADMIN, SYS_TIME, MKNOD; and CHOWN.
        let taken = [8u64, 12, 13, 16, 18, 19, 21, 25, 27].map(|n| mask >> n & 1);
        assert_eq!((taken.iter().sum::<u64>(), mask & 1), (0, 1), "{bounding}");
        assert!(!text.lines().any(|line| line == "mem" || line == "kmsg" || line.starts_with("vd")), "{text}");
        assert!(text.contains("mount: permission denied"), "{text}");
        assert!(text.contains("Read-only file system") || text.contains("nonexistent"), "{text}");
    }
    let plain = Container::idle(["--privileged"]);
    let policy = plain.agentsbx("show", ["--policy"]).ok();
    assert!(policy.contains("linux.devices") && policy.contains("linux.resources.devices"), "{policy}");
    // What Docker sends for an exec is what it has sent for the container; what it adds for a privileged one is told.
    plain.sh("true").expect(0);
    assert!(plain.show().get("policy").is_none());
}

#[test]
fn docker_exec_privileged_gets_no_more() {
    let container = Container::idle([]);
    let masks = |options: &[&str]| {
        let exec = engines().docker(["exec"]).args(options).args([&container.id, "grep", "Cap", "/proc/self/status"]);
        exec.run().expect(0).stdout
    };
    let plain = masks(&[]);
    assert!(container.show().get("policy").is_none(), "nothing that its container had not asked for");
    assert_eq!(masks(&["--privileged"]), plain);
    let told = container.show();
    assert_eq!(told["policy"][0]["field"], "process.capabilities", "{told}");
}

#[test]
fn docker_cannot_give_the_host_away() {
    for (options, words) in [
        (["--network", "host"], "the host's network namespace"),
        (["--pid", "host"], "the host's pid namespace"),
        (["--ipc", "host"], "the host's ipc namespace"),
        (["--uts", "host"], "the host's uts namespace"),
        (["--volume", "/:/host"], "it holds /bin"),
        (["--volume", "/var/run:/x"], "sockets of the host's services"),
        (["--volume", "/dev:/dev"], "a container has a /dev of its own"),
        (["--volume", "/proc:/p"], "the host's processes"),
        (["--sysctl", "kernel.shm_rmid_forced=1"], ""),
    ] {
        let got = docker(options, "echo ran");
        match words {
            "" => assert_eq!(got.expect(0).stdout, "ran\n", "{options:?}"),
            words => {
                let err = got.expect(125).stderr;
                assert!(err.contains(words), "{options:?}: {err}");
            }
        }
    }
    let socket = engines().docker_host().trim_start_matches("unix://").to_owned();
    let err = docker(["--volume", &format!("{socket}:/var/run/docker.sock")], "echo ran").expect(125).stderr;
    assert!(err.contains("it is a socket"), "{err}");
}

/// What people use every day works with the profile: volumes, tmpfs, an init, a read-only root, users, shared memory.
#[test]
fn docker_everyday_options_work() {
    let dir = Env::new();
    let host = dir.dir.join("work");
    fs::create_dir_all(&host).expect("make a directory");
    let volume = format!("{}:/work", host.display());
    let name = crate::support::env::unique("policy-volume");
    let named = format!("{name}:/data");
    for (options, script, want) in [
        (vec!["--init"], "cat /proc/1/comm", "docker-init\n"),
        (vec!["-v", &volume], "echo x > /work/file; cat /work/file", "x\n"),
        (vec!["-v", &named], "echo y > /data/file; cat /data/file", "y\n"),
        (vec!["--tmpfs", "/scratch"], "echo z > /scratch/f; cat /scratch/f", "z\n"),
        (vec!["--read-only"], "touch /x 2>/dev/null; echo $?", "1\n"),
        (vec!["--user", "1000:1000"], "id -u", "1000\n"),
        (vec!["--shm-size", "8m"], "df -k /dev/shm | tail -n1 | awk '{print $2}'", "8192\n"),
        (vec!["--ulimit", "nofile=100:200"], "ulimit -n; ulimit -Hn; ulimit -c", "100\n200\n0\n"),
        (vec!["--hostname", "box"], "hostname", "box\n"),
        (vec!["--cap-drop", "ALL"], "grep CapEff /proc/self/status", "CapEff:\t0000000000000000\n"),
        (vec!["--network", "none"], "cat /etc/hostname | wc -l; test -s /etc/hosts; echo $?", "1\n0\n"),
    ] {
        let got = engines().docker(["run", "--rm"]).args(&options).args([BUSYBOX, "sh", "-c", script]).run().expect(0);
        assert_eq!(got.stdout, want, "{options:?}: {}", got.stderr);
    }
    engines().docker(["volume", "rm", &name]).ok();
    assert_eq!(fs::read_to_string(host.join("file")).expect("the file"), "x\n");
}
