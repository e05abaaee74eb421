//! Mounts are those of the configuration, whatever the image has at their places.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};

use super::lab::{BOTH, Container, Runtime, add_mount, alike, side_by_side, with_user_namespace, without_namespace};
use crate::support::bundle::Bundle;
use crate::support::env::process;
use crate::support::{Cmd, Env};

fn bind(source: &std::path::Path, destination: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": "bind", "source": source, "options": options})
}

/// All forms of a root's propagation, and of a volume's: those of runc and CRI (`rslave`, `rshared`) among them. The volume
/// is compared with runc's (whose 1.1 has no shared root).
#[test]
fn propagation_is_as_asked_for() {
    let env = Env::new();
    // The optional fields of a mount's line, without their numbers: shared:, master:, or none for a private one.
    let script = "f() { while read id parent dev root point rest; do [ $point = $1 ] && echo \"$1 ${rest%% - *}\"; done \
        </proc/self/mountinfo | tr -d 0-9; }; f / | cut -d' ' -f1,3-; f /volume | cut -d' ' -f1,3-";
    for word in ["private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable"] {
        // runc 1.1 cannot bind what is not bindable.
        let runtimes = if word.ends_with("unbindable") { &BOTH[..1] } else { &BOTH[..] };
        let change = |bundle: &mut Bundle<'_>| {
            bundle.config["linux"]["rootfsPropagation"] = json!(word);
            let volume = bundle.dir.join("volume");
            fs::create_dir(&volume).expect("mkdir");
            let own = if word.ends_with("unbindable") { "rprivate" } else { word };
            add_mount(bundle, bind(&volume, "/volume", &["rbind", own]));
        };
        let told: Vec<Vec<String>> = runtimes
            .iter()
            .map(|runtime| Container::new(&env, *runtime, script, change).run().expect(0).stdout)
            .map(|out| out.lines().map(str::to_owned).collect())
            .collect();
        let ours = &told[0];
        assert!(ours.len() == 2 && told.iter().all(|lines| lines[1] == ours[1]), "{word}: {told:?}");
        let want = match word {
            "private" | "rprivate" => "/ ",
            "shared" | "rshared" => "/ shared:",
            "unbindable" | "runbindable" => "/ unbindable",
            // Of what depends on the host: where its own mount is private there is no master.
            _ => {
                if ours[0].contains("master:") {
                    "/ master:"
                } else {
                    "/ "
                }
            }
        };
        assert_eq!(ours[0].trim_end(), want.trim_end(), "{word}");
    }
}

/// The source of a mount is optional: for proc, sysfs, tmpfs, mqueue, devpts and cgroup.
#[test]
fn a_source_is_optional() {
    let env = Env::new();
    let script = "while read what point type rest; do echo $type $point; done </proc/mounts | grep -E ' /(proc|sys|t|dev/pts|dev/mqueue)$'";
    let [ours, _] = side_by_side(&env, script, |bundle| {
        add_mount(bundle, json!({"destination": "/t", "type": "tmpfs"}));
        for mount in bundle.config["mounts"].as_array_mut().expect("mounts") {
            mount.as_object_mut().expect("a mount").remove("source");
        }
    });
    let mut lines: Vec<String> = ours.ok().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["devpts /dev/pts", "mqueue /dev/mqueue", "proc /proc", "sysfs /sys", "tmpfs /t"]);
}

/// A volume on a symbolic link of the image lies where the link leads inside the root: as with `/etc/resolv.conf` of an
/// image with systemd-resolved. Links that dangle, that lead up out of the root, that are absolute, and chains of them.
#[test]
fn a_volume_on_a_link_lies_where_the_link_leads_inside() {
    let env = Env::new();
    let outside = env.dir.join("outside");
    fs::create_dir(&outside).expect("mkdir");
    let script = "cat /etc/resolv.conf /etc/localtime /chain /up; ls -d /target/dir/marker; readlink /etc/resolv.conf; \
        ls /run/systemd/resolve";
    let change = |bundle: &mut Bundle<'_>| {
        let root = bundle.rootfs.clone();
        fs::create_dir_all(root.join("etc")).expect("mkdir");
        symlink("../run/systemd/resolve/stub-resolv.conf", root.join("etc/resolv.conf")).expect("symlink");
        symlink("/usr/share/zoneinfo/UTC", root.join("etc/localtime")).expect("symlink");
        symlink("chain2", root.join("chain")).expect("symlink");
        symlink("/deep/chain3", root.join("chain2")).expect("symlink");
        symlink(format!("../../../../../..{}/x", outside.display()), root.join("up")).expect("symlink");
        symlink("/target", root.join("dirlink")).expect("symlink");
        let file = bundle.dir.join("file");
        fs::write(&file, "bound\n").expect("write");
        let dir = bundle.dir.join("dir");
        fs::create_dir(&dir).expect("mkdir");
        fs::write(dir.join("marker"), "").expect("write");
        for place in ["/etc/resolv.conf", "/etc/localtime", "/chain", "/up"] {
            add_mount(bundle, bind(&file, place, &["bind", "ro"]));
        }
        add_mount(bundle, bind(&dir, "/dirlink/dir", &["bind"]));
    };
    let out = alike(&env, script, change);
    let want =
        "bound\nbound\nbound\nbound\n/target/dir/marker\n../run/systemd/resolve/stub-resolv.conf\nstub-resolv.conf\n";
    assert_eq!(out, want);
    assert_eq!(fs::read_dir(&outside).expect("read").count(), 0, "nothing was made outside");
}

/// `-v /dev:/dev`: the host's devices, and the host's /dev is as before.
#[test]
fn the_hosts_dev_can_be_a_volume() {
    let env = Env::new();
    let listing = || {
        let mut names: Vec<_> = fs::read_dir("/dev").expect("read").map(|e| e.expect("an entry").file_name()).collect();
        names.retain(|name| !name.to_string_lossy().starts_with("null."));
        names.sort();
        (names, fs::read_link("/dev/fd").ok(), fs::symlink_metadata("/dev/ptmx").map(|m| m.file_type()).ok())
    };
    let before = listing();
    let script =
        "echo x >/dev/null && head -c 2 /dev/zero | wc -c; ls -1d /dev/fd /dev/pts; grep -c ' /dev ' /proc/mounts";
    for terminal in [false, true] {
        let mut container = Container::new(&env, Runtime::Ours, script, |bundle| {
            bundle.config["mounts"]
                .as_array_mut()
                .expect("mounts")
                .retain(|mount| !mount["destination"].as_str().is_some_and(|d| d.starts_with("/dev")));
            add_mount(bundle, bind("/dev".as_ref(), "/dev", &["rbind", "rprivate"]));
            bundle.config["linux"]["resources"] = json!({});
            bundle.config["process"]["terminal"] = terminal.into();
        });
        let run = container.cmd(["run", "--bundle"]).arg(&container.bundle.dir).arg(&container.bundle.id);
        let out = if terminal { run.on_terminal().run() } else { run.run() }.ok().replace('\r', "").replace("^@", "");
        assert_eq!(out, "2\n/dev/fd\n/dev/pts\n1", "terminal {terminal}");
        container.bundle.config = Value::Null;
    }
    assert_eq!(listing(), before);
}

/// A root filesystem that holds `/dev` itself can be used again and again, by either runtime after the other.
#[test]
fn a_root_filesystem_with_its_own_dev_can_be_used_again() {
    let env = Env::new();
    let mut container =
        Container::new(&env, Runtime::Ours, "echo x >/dev/null && ls -d /dev/fd /dev/stdin /dev/zero", |bundle| {
            bundle.config["mounts"]
                .as_array_mut()
                .expect("mounts")
                .retain(|mount| !mount["destination"].as_str().is_some_and(|d| d.starts_with("/dev")));
        });
    for runtime in [Runtime::Ours, Runtime::Ours, Runtime::Runc, Runtime::Ours] {
        container.runtime = runtime;
        assert_eq!(container.run().ok(), "/dev/fd\n/dev/stdin\n/dev/zero", "{runtime:?}");
    }
}

/// A cgroup mount is as the configuration says: read-only unless it says otherwise, the container's own part of every
/// hierarchy and nothing of the host's.
#[test]
fn cgroup_mounts_show_the_containers_own_and_read_only() {
    let env = Env::new();
    let script = "grep -E ' cgroup2? ' /proc/self/mountinfo | while read id parent dev root point options rest; do \
        case $options in ro,*nosuid*nodev*noexec*) how=ro;; *) how=$options;; esac; echo $point ${root##*/c-} $how; done; \
        mkdir /sys/fs/cgroup/pids/made /sys/fs/cgroup/made 2>/dev/null && echo made; true";
    for runtime in BOTH {
        let container = Container::new(&env, runtime, script, |bundle| {
            add_mount(
                bundle,
                json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
                    "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]}),
            );
        });
        let out = container.run().ok();
        assert!(!out.contains("made") && out.lines().count() > 0, "{runtime:?}: {out}");
        let number = container.bundle.id.trim_start_matches("c-");
        for line in out.lines() {
            assert!(line.ends_with(&format!(" {number} ro")), "{runtime:?}: {line}");
        }
    }
}

/// Each flag of a cgroup mount holds for its hierarchies, and what another mount puts on it has flags of its own. One that
/// nobody sees is no error.
#[test]
fn flags_of_a_cgroup_mount_are_its_own() {
    let env = Env::new();
    let script = "while read id parent dev root point options rest; do case $point in /sys/fs/cgroup/pids|*/below) \
        echo $point $options;; esac; done </proc/self/mountinfo; ls -d /sys/fs/cgroup";
    let cgroup = |options: &[&str]| {
        let options = json!(options);
        move |bundle: &mut Bundle<'_>| {
            add_mount(bundle, json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "options": options}));
        }
    };
    for options in [&["nosuid", "noexec", "nodev"][..], &["nosuid", "ro"], &["rw"]] {
        let out = alike(&env, script, |bundle| {
            cgroup(options)(bundle);
            add_mount(bundle, json!({"destination": "/sys/fs/cgroup/below", "type": "tmpfs", "source": "tmpfs"}));
        });
        assert!(out.contains("/sys/fs/cgroup/below rw,relatime"), "{out}");
    }
    for hide in [
        |bundle: &mut Bundle<'_>| bundle.config["linux"]["maskedPaths"] = json!(["/sys/fs"]),
        |bundle: &mut Bundle<'_>| {
            add_mount(bundle, json!({"destination": "/sys/fs", "type": "tmpfs", "source": "tmpfs"}));
        },
    ] {
        let outs = side_by_side(&env, "ls -A /sys/fs; echo nothing", |bundle| {
            cgroup(&["nosuid", "ro"])(bundle);
            hide(bundle);
        });
        assert_eq!(outs.map(|out| out.ok()), ["nothing", "nothing"].map(str::to_owned));
    }
}

/// A container in the host's mount namespace: its root is a directory there. Mounts were repaired at their places below the
/// host's root, so that the host's own cgroup mount became read-only. (Here it is that of a namespace of the test's.)
#[test]
fn without_a_mount_namespace_the_hosts_mounts_stay_as_they_are() {
    let env = Env::new();
    let script = "mount --make-rprivate / && grep -E ' /sys/fs/cgroup|[0-9]+ / / ' /proc/self/mountinfo >$0.before; \"$@\"; code=$?; \
        grep -E ' /sys/fs/cgroup|[0-9]+ / / ' /proc/self/mountinfo >$0.after; exit $code";
    let container = Container::new(&env, Runtime::Ours, "mkdir /sys/fs/cgroup/made || echo read-only", |bundle| {
        without_namespace(bundle, "mount");
        for paths in ["maskedPaths", "readonlyPaths"] {
            bundle.config["linux"].as_object_mut().expect("linux").remove(paths);
        }
        let options = ["nosuid", "nodev", "noexec", "ro", "rprivate"];
        add_mount(bundle, json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "options": options}));
    });
    let list = env.dir.join("mounts");
    let run = Cmd::new("unshare").args(["--mount", "sh", "-c", script]).arg(&list);
    let run = run.args(container.runtime.words(&env)).args(["run", "--bundle"]);
    let run = run.arg(&container.bundle.dir).arg(&container.bundle.id).env("AGENTSBX_CONFIG", &process().config);
    assert_eq!(run.run().ok(), "read-only");
    let read = |when: &str| fs::read_to_string(env.dir.join(format!("mounts.{when}"))).expect("read");
    assert!(read("before").contains(" /sys/fs/cgroup "), "{}", read("before"));
    assert_eq!(read("before"), read("after"));
}

/// A hierarchy of two controllers has a link for each: where the host has `cpu,cpuacct`, as most have. Masks and mounts may
/// be given by the link's name. (A host is made of this one, in a mount namespace of its own.)
#[test]
fn controllers_that_share_a_hierarchy_have_links_to_it() {
    if !Path::new("/sys/fs/cgroup/cpu/cgroup.procs").exists() || Path::new("/sys/fs/cgroup/cpu").is_symlink() {
        eprintln!("skipped: this host has no v1 hierarchy named cpu");
        return;
    }
    let env = Env::new();
    let made = env.dir.join("groups");
    fs::create_dir(&made).expect("mkdir");
    let host = "set -e; cd $0; mount -t tmpfs tmpfs . && cd $0; for h in /sys/fs/cgroup/*; do n=${h##*/}; \
        case $n in cpuacct) continue;; cpu) n=cpu,cpuacct;; esac; mkdir $n; mount --bind $h $n; done; \
        umount --recursive --lazy /sys/fs/cgroup; mount --rbind . /sys/fs/cgroup; exec \"$@\"";
    let script = "cd /sys/fs/cgroup; readlink cpu; readlink cpuacct; stat -c '%a %u:%g %F' cpu,cpuacct; stat -c %u:%g cpu; \
        ls -d cpu/cpu.stat cpu/tasks; wc -c <cpu/cpu.shares; grep -c ' /sys/fs/cgroup/cpu,cpuacct/' /proc/self/mountinfo; \
        ls | wc -l; ln -s a b 2>/dev/null || echo read-only";
    let count = fs::read_dir("/sys/fs/cgroup").expect("read").flatten().filter(|e| e.path().join("tasks").exists());
    // cpuacct's own directory is gone, and two links are there.
    let count = count.count() - 1 + 2;
    for (users, namespaced) in [(false, false), (false, true), (true, true)] {
        let container = Container::new(&env, Runtime::Ours, script, |bundle| {
            if users {
                with_user_namespace(bundle);
            }
            if namespaced {
                let list = bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces");
                list.push(json!({"type": "cgroup"}));
            }
            add_mount(
                bundle,
                json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "options": ["nosuid", "noexec", "nodev", "ro"]}),
            );
            add_mount(bundle, bind("/dev/null".as_ref(), "/sys/fs/cgroup/cpuacct/cpu.stat", &["bind", "ro"]));
            bundle.config["linux"]["maskedPaths"] = json!(["/sys/fs/cgroup/cpu/cpu.shares"]);
        });
        let run = Cmd::new("unshare").args(["--mount", "sh", "-c", host]).arg(&made);
        let run = run.args(container.runtime.words(&env)).args(["run", "--bundle"]);
        let run = run.arg(&container.bundle.dir).arg(&container.bundle.id).env("AGENTSBX_CONFIG", &process().config);
        let owner = if users { "65534:65534" } else { "0:0" };
        let want = format!(
            "cpu,cpuacct\ncpu,cpuacct\n755 {owner} directory\n0:0\ncpu/cpu.stat\ncpu/tasks\n0\n2\n{count}\nread-only"
        );
        assert_eq!(run.run().ok(), want, "users {users}, namespaced {namespaced}");
    }
}

/// The container is in its cgroup in every hierarchy that runc uses, those without a controller among them.
#[test]
fn every_hierarchy_is_joined() {
    let env = Env::new();
    let paths = BOTH.map(|runtime| {
        let container = Container::new(&env, runtime, "cat /proc/self/cgroup", |_| {});
        let out = container.run().ok();
        let mut lines: Vec<String> = out.lines().map(|l| l.replace(&container.bundle.id, "ID")).collect();
        lines.sort();
        lines
    });
    assert_eq!(paths[0], paths[1]);
    assert!(paths[0].iter().all(|line| line.ends_with("/ID")), "{:?}", paths[0]);
}

/// `tmpcopyup`: the tmpfs begins with what the image has there, with modes, owners, links and times; what is written to it
/// does not reach the image.
#[test]
fn tmpcopyup_copies_what_is_covered() {
    let env = Env::new();
    let script = "cd /up; find . | sort; cat d/f; stat -c '%a %u:%g %Y %n' . d d/f suid; readlink l; \
        grep -c '^tmpfs /up ' /proc/mounts; echo new >d/f; rm suid";
    let mut roots = Vec::new();
    let outs = BOTH.map(|runtime| {
        let container = Container::new(&env, runtime, script, |bundle| {
            let up = bundle.rootfs.join("up");
            fs::create_dir_all(up.join("d")).expect("mkdir");
            fs::write(up.join("d/f"), "copied\n").expect("write");
            fs::write(up.join("suid"), "x").expect("write");
            symlink("d/f", up.join("l")).expect("symlink");
            for (path, mode, owner) in [("", 0o2755, 7), ("d", 0o1777, 8), ("d/f", 0o640, 1000), ("suid", 0o4755, 9)] {
                std::os::unix::fs::chown(up.join(path), Some(owner), Some(owner)).expect("chown");
                fs::set_permissions(up.join(path), fs::Permissions::from_mode(mode)).expect("chmod");
            }
            for path in ["suid", "d/f", "d", ""] {
                Cmd::new("touch").args(["-d", "2001-02-03 04:05:06 UTC"]).arg(up.join(path)).ok();
            }
            add_mount(
                bundle,
                json!({"destination": "/up", "type": "tmpfs", "source": "tmpfs", "options": ["tmpcopyup", "rw", "size=1m"]}),
            );
        });
        roots.push(container.bundle.rootfs.clone());
        container.run().ok()
    });
    let names = ".\n./d\n./d/f\n./l\n./suid\ncopied\n";
    let rest =
        ["1777 8:8 981173106 d", "640 1000:1000 981173106 d/f", "4755 9:9 981173106 suid", "d/f", "1"].join("\n");
    assert!(outs[0].starts_with(names) && outs[0].ends_with(&rest), "{}", outs[0]);
    let first = outs[0].lines().nth(6).expect("the tmpfs itself");
    assert!(first.starts_with("2755 "), "{first}");
    // runc 1.1 copies neither owners nor times.
    assert!(outs[1].starts_with(names), "{}", outs[1]);
    for root in roots {
        assert_eq!(fs::read_to_string(root.join("up/d/f")).expect("read"), "copied\n");
        assert!(root.join("up/suid").exists());
    }
}

/// A tmpfs has the mode of the directory that it covers, unless one is given.
#[test]
fn a_tmpfs_keeps_the_mode_of_what_it_covers() {
    let env = Env::new();
    let [ours, runc] = side_by_side(&env, "stat -c '%a %n' /a /c /b", |bundle| {
        for (name, mode) in [("a", 0o1750), ("b", 0o711)] {
            fs::create_dir(bundle.rootfs.join(name)).expect("mkdir");
            fs::set_permissions(bundle.rootfs.join(name), fs::Permissions::from_mode(mode)).expect("chmod");
        }
        for (name, options) in [("/a", json!([])), ("/b", json!(["mode=700"])), ("/c", json!(["mode=1777"]))] {
            add_mount(bundle, json!({"destination": name, "type": "tmpfs", "source": "tmpfs", "options": options}));
        }
    });
    assert_eq!(ours.ok(), "1750 /a\n1777 /c\n700 /b");
    // runc 1.1 puts the covered mode over one that is given, later ones do not.
    assert!(runc.ok().starts_with("1750 /a\n1777 /c\n"));
}

/// A container with a user namespace gets volumes whose host directories only the host's root may pass: directories and
/// files, read-only too, with other mounts on and below them, masked paths and the working directory, for the first process
/// and for execs.
#[test]
fn a_user_namespace_gets_volumes_that_only_root_can_reach() {
    let env = Env::new();
    let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |bundle| {
        with_user_namespace(bundle);
        let private = bundle.dir.join("private");
        fs::create_dir_all(private.join("volume/below")).expect("mkdir");
        fs::write(private.join("volume/f"), "volume\n").expect("write");
        fs::write(private.join("file"), "file\n").expect("write");
        Cmd::new("chown").args(["-R", "100000:100000"]).arg(&private).ok();
        Cmd::new("chown").arg("0:0").arg(&private).ok();
        fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).expect("chmod");
        add_mount(bundle, bind(&private.join("volume"), "/v", &["rbind", "rprivate"]));
        add_mount(bundle, bind(&private.join("volume"), "/ro", &["bind", "ro", "nosuid"]));
        add_mount(bundle, bind(&private.join("file"), "/etc/file", &["bind"]));
        for (at, mode) in [("/v/below", "mode=700"), ("/v/unmade/x", "mode=750")] {
            add_mount(bundle, json!({"destination": at, "type": "tmpfs", "source": "tmpfs", "options": [mode]}));
        }
        fs::create_dir(private.join("volume/secret")).expect("mkdir");
        fs::write(private.join("volume/secret/key"), "key\n").expect("write");
        bundle.config["linux"]["maskedPaths"].as_array_mut().expect("a list").push("/v/secret".into());
        bundle.config["process"]["cwd"] = "/v/cwd".into();
    });
    container.start();
    let pid = container.pid();
    let script = "cat /v/f /ro/f /etc/file; echo new >/v/made; echo x 2>/dev/null >/ro/x || echo read-only; \
        stat -f -c %T /v/below; stat -c '%a %u' /v/below /v/unmade/x; \
        stat -c %u /v/unmade /v/cwd; ls /v/secret | wc -l; grep -E '^[^ ]+ /ro ' /proc/mounts | cut -d' ' -f4 | cut -d, -f1,2";
    let want = "volume\nvolume\nfile\nread-only\ntmpfs\n700 0\n750 0\n0\n0\n0\nro,nosuid";
    assert_eq!(container.sh(script).ok(), want);
    let enter =
        ["--target", &pid.to_string(), "--user", "--mount", "--pid", "--root", "sh", "-c", script].map(str::to_owned);
    assert_eq!(Cmd::new("nsenter").args(enter).env("PATH", "/usr/bin:/bin").ok(), want, "the first process's own view");
    let made = container.bundle.dir.join("private/volume/made");
    assert_eq!(fs::read_to_string(made).expect("it is the host's directory"), "new\n");
    drop(container);
    // A source that does not exist is said as ever.
    let container = Container::new(&env, Runtime::Ours, "true", |bundle| {
        with_user_namespace(bundle);
        add_mount(bundle, bind(&bundle.dir.join("none"), "/v", &["bind"]));
        without_namespace(bundle, "ipc");
        bundle.config["mounts"].as_array_mut().expect("mounts").retain(|m| m["type"] != "mqueue");
    });
    assert!(container.run().expect(1).stderr.contains("no such file or directory"));
}

/// A directory that the host removed, a file that an editor replaced, a socket whose server began anew: the container keeps what
/// it had. After any of them no exec could be run in it.
#[test]
fn volumes_that_are_gone_from_the_host_do_not_stop_execs() {
    let script = "ls -A /v | wc -l; touch /v/x 2>&1 | sed 's/.*: //'; cat /etc/file; stat -c '%a %u' /etc/file; \
        echo x 2>/dev/null >/etc/file || echo no; [ -f /sock ] && cat /sock 2>/dev/null; cat /secret; /tool 2>/dev/null && echo ran; echo x >/new";
    for user in [false, true] {
        for env in [Env::new(), Env::with_config("")] {
            let dir = env.dir.join("host");
            fs::create_dir_all(dir.join("v")).expect("mkdir");
            fs::write(dir.join("v/f"), "f\n").expect("write");
            fs::write(dir.join("file"), "first\n").expect("write");
            fs::set_permissions(dir.join("file"), fs::Permissions::from_mode(0o640)).expect("chmod");
            fs::write(dir.join("secret"), "the host's root's\n").expect("write");
            fs::set_permissions(dir.join("secret"), fs::Permissions::from_mode(0o600)).expect("chmod");
            fs::write(dir.join("tool"), "#!/bin/sh\n").expect("write");
            fs::set_permissions(dir.join("tool"), fs::Permissions::from_mode(0o755)).expect("chmod");
            let strict = env.config != process().config;
            let socket = std::os::unix::net::UnixListener::bind(dir.join("sock")).expect("bind");
            let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |bundle| {
                let mut owner = 7;
                if user {
                    with_user_namespace(bundle);
                    owner = 100_007;
                }
                Cmd::new("chown").arg(format!("{owner}:{owner}")).args([dir.join("file"), dir.join("v")]).ok();
                add_mount(bundle, bind(&dir.join("v"), "/v", &["bind"]));
                add_mount(bundle, bind(&dir.join("file"), "/etc/file", &["bind"]));
                add_mount(bundle, bind(&dir.join("tool"), "/tool", &["bind"]));
                add_mount(bundle, bind(&dir.join("secret"), "/secret", &["bind"]));
                if !strict {
                    add_mount(bundle, bind(&dir.join("sock"), "/sock", &["bind"]));
                }
            });
            container.start();
            drop(socket);
            fs::remove_dir_all(dir.join("v")).expect("remove");
            for name in ["file", "tool", "secret"] {
                fs::write(dir.join("new"), "second\n").expect("write");
                rustix::fs::rename(dir.join("new"), dir.join(name)).expect("rename");
            }
            fs::remove_file(dir.join("sock")).expect("remove");
            let ran = if strict { "" } else { "ran\n" };
            let secret = if user { "" } else { "the host's root's\n" };
            let want = format!("0\nRead-only file system\nfirst\n640 7\nno\n{secret}{ran}");
            assert_eq!(container.sh(script).expect(0).stdout, want, "user namespace: {user}, strict: {strict}");
            let shown = container.bundle.show();
            assert_eq!(shown["summary"]["added"], 1, "{shown}");
            assert_eq!(fs::read_to_string(dir.join("file")).expect("read"), "second\n");
        }
    }
    // There is a limit to what is copied.
    let env = Env::new();
    let big = env.dir.join("big");
    fs::File::create(&big).and_then(|file| file.set_len(17 << 20)).expect("make a file");
    let container = Container::new(&env, Runtime::Ours, "exec sleep 100000", |bundle| {
        add_mount(bundle, bind(&big, "/big", &["bind"]));
    });
    container.start();
    fs::remove_file(&big).expect("remove");
    let refused = container.sh("true");
    assert!(refused.code != 0 && refused.stderr.contains("volume /big: it was removed or replaced"), "{refused:?}");
    assert_eq!(container.bundle.sh_with(["--layer", "shared"], "stat -c %s /big").expect(0).stdout, "17825792\n");
}
