//! Bind mounts that map ids: files have other owners in the container than on the host, and what is made there is on the host
//! as if those were its owners. Debian's runc has none (1.2 is the first that does), so the values are those of the runtime
//! specification.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use agentsbx::sys::userns::{self, IdRange};
use agentsbx::sys::{mount, mountattr};
use serde_json::{Value, json};

use super::lab::{Container, Runtime, add_mount, with_user_namespace, without_namespace};
use crate::support::bundle::Bundle;
use crate::support::{Cmd, Env};

/// What a first process ends in that is to be looked at.
const IDLE: &str = "exec sleep 100000";

fn ranges(ranges: &[(u32, u32, u32)]) -> Value {
    ranges.iter().map(|(inside, host, size)| json!({"containerID": inside, "hostID": host, "size": size})).collect()
}

/// The ranges of [`with_user_namespace`].
fn containers() -> Value {
    ranges(&[(0, 100_000, 65_536)])
}

fn bind(source: &Path, destination: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": "bind", "source": source, "options": options})
}

fn mapped(source: &Path, destination: &str, options: &[&str], map: &Value) -> Value {
    let mut mount = bind(source, destination, options);
    mount["uidMappings"] = map.clone();
    mount["gidMappings"] = map.clone();
    mount
}

/// A directory of the host's root that all may write to, with files of users 0, 1000 and 70000, which the container does not
/// have.
fn volume(env: &Env, name: &str) -> PathBuf {
    let dir = env.dir.join(name);
    fs::create_dir_all(&dir).expect("mkdir");
    for id in [0, 1000, 70_000] {
        let file = dir.join(format!("f{id}"));
        fs::write(&file, format!("{id}\n")).expect("write");
        chown(&file, Some(id), Some(id + 1)).expect("chown");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("chmod");
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    dir
}

#[track_caller]
fn owner(file: &Path) -> (u32, u32) {
    let meta = file.symlink_metadata().unwrap_or_else(|err| panic!("{}: {err}", file.display()));
    (meta.uid(), meta.gid())
}

/// Who owns what is in a directory, as the container sees it.
fn owners(at: &str) -> String {
    format!("stat -c %u:%g {at} {at}/f0 {at}/f1000 {at}/f70000 | tr '\\n' ' '")
}

/// The options with the container's ranges, mappings with and without an option, at the same source as a mount without: who
/// owns what, for the first process and for execs, in both profiles; and what each of them makes is on the host.
#[test]
fn files_have_the_owners_that_they_have_on_the_host() {
    for env in [Env::new(), Env::with_config("")] {
        let dir = volume(&env, "volume");
        let names = ["plain", "option", "mappings", "both", "shifted"];
        let looks: Vec<String> = names.iter().map(|name| owners(&format!("/{name}"))).collect();
        let look = looks.join("; echo; ") + "; echo";
        let make = |by: &str| {
            format!(
                "for d in option mappings both shifted; do echo {by} >/$d/{by}-$d && chown 1000:7 /$d/{by}-$d; done; touch /option/root-{by}"
            )
        };
        let script = format!("{look}; {}; {IDLE}", make("first"));
        let container = Container::new(&env, Runtime::Ours, &script, |bundle| {
            with_user_namespace(bundle);
            add_mount(bundle, bind(&dir, "/plain", &["bind"]));
            add_mount(bundle, bind(&dir, "/option", &["bind", "idmap"]));
            add_mount(bundle, mapped(&dir, "/mappings", &["rbind"], &containers()));
            add_mount(bundle, mapped(&dir, "/both", &["rbind", "ridmap"], &containers()));
            // Ids that the container's are not: 0 is seen as its 5, 1000 as 1005, and 70000 as its root.
            let map = ranges(&[(0, 100_005, 60_000), (70_000, 100_000, 5)]);
            add_mount(bundle, mapped(&dir, "/shifted", &["bind", "idmap"], &map));
            // Its root owns nothing there.
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("chmod");
        });
        container.start();
        let (nobody, same) = ("65534:65534 ".repeat(4), "0:0 0:1 1000:1001 65534:65534 ");
        let want = format!("{nobody}\n{same}\n{same}\n{same}\n5:5 5:6 1005:1006 0:1 \n");
        crate::support::wait_until("the first process", std::time::Duration::from_secs(20), || {
            dir.join("root-first").exists()
        });
        assert_eq!(container.out(), want, "the first process");
        assert_eq!(container.sh(&look).expect(0).stdout, want, "an exec");
        container.sh(&make("exec")).expect(0);
        let shared = ["--layer", "shared"];
        if env.config == crate::support::env::process().config {
            assert_eq!(container.bundle.sh_with(shared, &look).expect(0).stdout, want, "without a layer");
        }
        for by in ["first", "exec"] {
            assert_eq!(owner(&dir.join(format!("root-{by}"))), (0, 0));
            for name in ["option", "mappings", "both"] {
                assert_eq!(owner(&dir.join(format!("{by}-{name}"))), (1000, 7), "{by} {name}");
            }
            assert_eq!(owner(&dir.join(format!("{by}-shifted"))), (995, 2), "{by}");
        }
    }
}

/// Without a user namespace ids are the host's, and a mount may map them all the same. What has no other id on the file
/// system can't be made there.
#[test]
fn ids_are_mapped_without_a_user_namespace() {
    for env in [Env::new(), Env::with_config("")] {
        let dir = volume(&env, "volume");
        let script = format!("{}; touch /v/made; touch /w/other 2>&1 | sed 's/.*: //'", owners("/v"));
        let container = Container::new(&env, Runtime::Ours, &script, |bundle| {
            // 1000 is seen as root, and root as 1.
            add_mount(bundle, mapped(&dir, "/v", &["bind", "idmap"], &ranges(&[(1000, 0, 2), (0, 10, 2)])));
            add_mount(bundle, mapped(&dir, "/w", &["bind", "idmap"], &ranges(&[(1000, 10, 2)])));
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("chmod");
        });
        let out = container.run().expect(0).stdout;
        assert_eq!(out, "10:10 10:11 0:1 65534:65534 Value too large for defined data type\n");
        assert_eq!(owner(&dir.join("made")), (1000, 1000));
    }
}

/// `ridmap` maps what is mounted below the source, `idmap` and mappings alone don't; `bind` has nothing below.
#[test]
fn mounts_below_the_source_are_mapped_by_ridmap() {
    let env = Env::new();
    let dir = volume(&env, "volume");
    fs::create_dir(dir.join("sub")).expect("mkdir");
    let inner = volume(&env, "inner");
    Cmd::new("mount").arg("--bind").arg(&inner).arg(dir.join("sub")).ok();
    let looks: Vec<String> =
        ["a", "b", "c"].map(|at| format!("stat -c %u /{at}/f1000 /{at}/sub/f1000 | tr '\\n' ' '")).into();
    let script = format!(
        "{}; ls /d/sub | wc -l; grep -c ' /c/sub ro,' /proc/self/mountinfo; touch /a/sub/made",
        looks.join("; ")
    );
    let output = Container::new(&env, Runtime::Ours, &script, |bundle| {
        with_user_namespace(bundle);
        add_mount(bundle, bind(&dir, "/a", &["rbind", "ridmap"]));
        add_mount(bundle, bind(&dir, "/b", &["rbind", "idmap"]));
        add_mount(bundle, mapped(&dir, "/c", &["rbind", "rro"], &containers()));
        add_mount(bundle, bind(&dir, "/d", &["bind", "ridmap"]));
    })
    .run();
    Cmd::new("umount").arg(dir.join("sub")).ok();
    assert_eq!(output.expect(0).stdout, "1000 1000 1000 65534 1000 65534 0\n1\n");
    assert_eq!(owner(&inner.join("made")), (0, 0));
}

/// They are bind mounts as any other: flags, propagation, files, relative sources, links of the image at their place, mounts
/// on, below and above them, masks in them, a working directory on them that has to be made, hooks that look, execs.
#[test]
fn they_are_as_other_bind_mounts() {
    for env in [Env::new(), Env::with_config("")] {
        let dir = volume(&env, "volume");
        fs::create_dir_all(dir.join("secret")).expect("mkdir");
        fs::write(dir.join("secret/key"), "key\n").expect("write");
        let hidden = volume(&env, "hidden");
        let script = "pwd; cat /ro/f0; touch /ro/x 2>&1 | sed 's/.*: //'; touch /rro/x 2>&1 | sed 's/.*: //'; \
            for at in /ro /rro /atime; do grep \" $at \" /proc/self/mounts | cut -d' ' -f4 | tr , '\\n' | \
            grep -E '^(ro|nosuid|nodev|noexec|noatime)$' | tr '\\n' ' '; done; echo; \
            cat /etc/file /v/own/f1000; stat -c %u /etc/file /v/own/f1000 /v/new /v/cwd/deep; \
            ls /v/secret | wc -l; stat -f -c %T /v/new /v; ls /covered; cat /image/real/f0; touch /v/made /v/own/made; ls -d /v/file";
        let container = Container::new(&env, Runtime::Ours, &format!("{script}; {IDLE}"), |bundle| {
            with_user_namespace(bundle);
            fs::create_dir_all(bundle.rootfs.join("image/real")).expect("mkdir");
            symlink("real", bundle.rootfs.join("image/link")).expect("symlink");
            Cmd::new("chown").args(["-hR", "100000:100000"]).arg(bundle.rootfs.join("image")).ok();
            fs::write(bundle.dir.join("file"), "file\n").expect("write");
            bundle.config["process"]["cwd"] = "/v/cwd/deep".into();
            bundle.config["linux"]["maskedPaths"].as_array_mut().expect("a list").push("/v/secret".into());
            add_mount(bundle, bind(&hidden, "/covered/below", &["bind", "idmap"]));
            add_mount(bundle, json!({"destination": "/covered", "type": "tmpfs", "source": "tmpfs"}));
            add_mount(bundle, bind(&dir, "/v", &["rbind", "rprivate", "idmap"]));
            // Where there is nothing in the volume yet.
            add_mount(bundle, json!({"destination": "/v/new", "type": "tmpfs", "source": "tmpfs"}));
            add_mount(bundle, bind(&hidden, "/v/own", &["bind", "ridmap"]));
            add_mount(bundle, bind(Path::new("file"), "/v/file", &["bind", "idmap"]));
            add_mount(bundle, bind(&dir, "/ro", &["bind", "ro", "nosuid", "nodev", "noexec", "idmap"]));
            add_mount(bundle, bind(&dir, "/rro", &["rbind", "rro", "rnosuid", "rnodev", "rnoexec", "ridmap"]));
            add_mount(bundle, bind(&dir, "/atime", &["bind", "nosuid", "nodev", "noexec", "noatime", "idmap"]));
            add_mount(bundle, bind(Path::new("file"), "/etc/file", &["bind", "ro", "idmap"]));
            add_mount(bundle, bind(&dir, "/image/link", &["bind", "idmap"]));
            // It begins in the root filesystem.
            let looking = json!({"path": "/bin/sh", "args": ["sh", "-c", "test \"$(cat v/own/f1000)\" = 1000"]});
            bundle.config["hooks"] = json!({"createContainer": [looking]});
        });
        container.start();
        crate::support::wait_until("the script", std::time::Duration::from_secs(20), || {
            container.out().ends_with("/v/file\n")
        });
        let flags = "ro nosuid nodev noexec ".repeat(2);
        let want = format!(
            "/v/cwd/deep\n0\nRead-only file system\nRead-only file system\n{flags}nosuid nodev noexec noatime \n\
             file\n1000\n0\n1000\n0\n0\n0\ntmpfs\next2/ext3\nbelow\n0\n/v/file\n"
        );
        let type_of = Cmd::new("stat").args(["-f", "-c", "%T"]).arg(&dir).ok();
        let want = want.replace("ext2/ext3", &type_of).replace("\nbelow\n", "\n");
        assert_eq!(container.out(), want);
        assert_eq!(container.sh(script).expect(0).stdout.replacen("/\n", "/v/cwd/deep\n", 1), want, "an exec");
        for made in ["made", "new", "own", "file", "cwd/deep"] {
            assert_eq!(owner(&dir.join(made)), (0, 0), "{made}");
        }
        assert_eq!(owner(&hidden.join("made")), (0, 0));
        assert_eq!(fs::read_to_string(dir.join("secret/key")).expect("read"), "key\n");
    }
}

/// Of mounts in a volume, one that a later one covers is not to be seen; links that stay in it lead to a place, those that
/// leave it don't. `create` failed for want of the first one's place, and at any link.
#[test]
fn what_is_mounted_in_a_volume() {
    let env = Env::new();
    let (dir, other) = (volume(&env, "volume"), volume(&env, "other"));
    fs::create_dir_all(dir.join("releases/1/deep")).expect("mkdir");
    for (link, to) in [("current", "releases/1"), ("file", "releases/1/f"), ("out", "/etc"), ("up", "../../etc")] {
        symlink(to, dir.join(link)).expect("symlink");
    }
    fs::write(dir.join("releases/1/f"), "in the volume\n").expect("write");
    let tmpfs = |at: &str| json!({"destination": at, "type": "tmpfs", "source": "tmpfs"});
    let script =
        "ls /v/a | wc -l; stat -c %u /v/f1000 /v/current/deep/f1000 /v/releases/1/deep/f1000; cat /v/releases/1/f";
    let container = Container::new(&env, Runtime::Ours, script, |bundle| {
        with_user_namespace(bundle);
        add_mount(bundle, bind(&dir, "/v", &["bind", "idmap"]));
        add_mount(bundle, bind(&other, "/v/a/b", &["bind", "idmap"]));
        add_mount(bundle, tmpfs("/v/a/c"));
        add_mount(bundle, tmpfs("/v/a"));
        add_mount(bundle, bind(&other, "/v/current/deep", &["bind", "idmap"]));
        add_mount(bundle, bind(&other.join("f1000"), "/v/file", &["bind", "idmap"]));
    });
    assert_eq!(container.run().expect(0).stdout, "0\n1000\n1000\n1000\n1000\n");
    for (volume, at, words) in [
        (&["bind", "idmap"][..], "/v/out", "mount on /v/out: a symbolic link leads out of the volume"),
        (&["bind", "idmap"], "/v/up", "mount on /v/up: a symbolic link leads out of the volume"),
        (&["bind"], "/v/out", "mount on /v/out: /v/out is a symbolic link, or"),
    ] {
        let container = Container::new(&env, Runtime::Ours, "true", |bundle| {
            with_user_namespace(bundle);
            add_mount(bundle, bind(&dir, "/v", volume));
            add_mount(bundle, bind(&other, at, &["bind", "idmap"]));
        });
        let said = container.run().expect(1).stderr;
        assert!(said.contains(words), "{said}");
    }
}

/// What a container with a user namespace mounts in a shared volume stays in it, and so does what another mounts, unless its
/// root filesystem is shared. It was mounted on the host.
#[test]
fn what_is_mounted_in_a_shared_volume_by_a_container() {
    let env = Env::new();
    let dir = volume(&env, "volume");
    fs::create_dir(dir.join("in")).expect("mkdir");
    Cmd::new("mount").arg("--bind").args([&dir, &dir]).ok();
    Cmd::new("mount").arg("--make-shared").arg(&dir).ok();
    let at = dir.join("in").display().to_string();
    let on_the_host = || fs::read_to_string("/proc/self/mountinfo").expect("read").contains(&format!(" {at} "));
    let mut seen = Vec::new();
    for (propagation, user) in [(None, true), (Some("rshared"), true), (None, false), (Some("rshared"), false)] {
        let out =
            Container::new(&env, Runtime::Ours, "mount -t tmpfs t /v/in && grep -c ' /v/in ' /proc/mounts", |bundle| {
                if user {
                    with_user_namespace(bundle);
                }
                for set in ["bounding", "effective", "permitted"] {
                    let set = bundle.config["process"]["capabilities"][set].as_array_mut().expect("a set");
                    set.push("CAP_SYS_ADMIN".into());
                }
                bundle.config["linux"]["rootfsPropagation"] = json!(propagation);
                add_mount(bundle, mapped(&dir, "/v", &["rbind", "rshared", "idmap"], &containers()));
            })
            .run();
        seen.push((out.stdout.clone(), on_the_host()));
        if on_the_host() {
            Cmd::new("umount").arg(&at).ok();
        }
    }
    Cmd::new("umount").arg(&dir).ok();
    assert_eq!(seen, [false, false, false, true].map(|host| ("1\n".to_owned(), host)));
}

/// The root of a user namespace who may mount could write where the host, or his engine, had mounted read-only, and see what the
/// host had covered: such mounts were his own. Other volumes are locked by the kernel.
#[test]
fn mounts_of_the_host_are_locked_for_a_user_namespace() {
    let env = Env::new();
    let dir = volume(&env, "closed/volume");
    fs::create_dir(dir.join("below")).expect("mkdir");
    fs::write(dir.join("below/covered"), "covered\n").expect("write");
    Cmd::new("mount").arg("--bind").args([&dir, &dir]).ok();
    // Of the same file system: others, as a tmpfs, are mapped by newer kernels only.
    let cover = env.dir.join("cover");
    fs::create_dir(&cover).expect("mkdir");
    Cmd::new("mount").arg("--bind").args([&cover, &dir.join("below")]).ok();
    Cmd::new("mount").args(["-o", "remount,bind,ro,nosuid"]).arg(&dir).ok();
    fs::set_permissions(env.dir.join("closed"), fs::Permissions::from_mode(0o700)).expect("chmod");
    let writable = volume(&env, "writable");
    fs::set_permissions(&writable, fs::Permissions::from_mode(0o777)).expect("chmod");
    let script = "for at in /ids /far /ro /file; do for flags in rw suid rw,suid; do \
        mount -o remount,bind,$flags $at 2>/dev/null && echo remounted $at; done; done; \
        for at in /ids /far; do umount $at/below 2>/dev/null && echo unmounted; cat $at/below/covered 2>/dev/null; done; \
        touch /ids/x /far/x /ro/x 2>/dev/null; mount -t tmpfs own /ids/below && echo mounted";
    let out = Container::new(&env, Runtime::Ours, script, |bundle| {
        with_user_namespace(bundle);
        for set in ["bounding", "effective", "permitted"] {
            let set = bundle.config["process"]["capabilities"][set].as_array_mut().expect("a set");
            set.push("CAP_SYS_ADMIN".into());
        }
        add_mount(bundle, bind(&dir, "/ids", &["rbind", "rw", "ridmap"]));
        add_mount(bundle, bind(&dir, "/far", &["rbind", "rw"]));
        add_mount(bundle, bind(&writable, "/ro", &["bind", "ro", "nosuid", "idmap"]));
        add_mount(bundle, bind(&dir.join("f0"), "/file", &["bind", "idmap"]));
    })
    .run();
    let made = ["x", "below/x"].map(|name| dir.join(name).exists());
    Cmd::new("umount").arg(dir.join("below")).ok();
    Cmd::new("umount").arg(&dir).ok();
    assert_eq!((out.stdout.as_str(), made), ("mounted\n", [false; 2]), "{out:?}");
    assert!(!writable.join("x").exists());
}

/// A mount on `/dev` itself, and a root that is moved instead of pivoted into.
#[test]
fn a_dev_that_maps_ids() {
    let env = Env::new();
    let dir = volume(&env, "volume");
    ["pts", "shm", "mqueue"].iter().for_each(|name| fs::create_dir(dir.join(name)).expect("mkdir"));
    Cmd::new("mknod").arg(dir.join("null")).args(["c", "1", "3"]).ok();
    let script = "stat -c %u /dev/f1000 /v/f1000 /dev/pts; cat /v/f0";
    for flags in [&[][..], &["--no-pivot"]] {
        let container = Container::new(&env, Runtime::Ours, script, |bundle| {
            with_user_namespace(bundle);
            let mounts = bundle.config["mounts"].as_array_mut().expect("mounts");
            let dev = mounts.iter_mut().find(|mount| mount["destination"] == "/dev").expect("/dev");
            *dev = bind(&dir, "/dev", &["bind", "idmap"]);
            add_mount(bundle, bind(&dir, "/v", &["bind", "idmap"]));
        });
        let run = container.cmd(["run"]).args(flags).arg("--bundle").arg(&container.bundle.dir);
        assert_eq!(run.arg(&container.bundle.id).run().expect(0).stdout, "1000\n1000\n0\n0\n", "{flags:?}");
    }
}

/// A process that holds a user namespace of its own, as an engine's sandbox does.
struct Holder(Child);

impl Holder {
    fn start() -> Holder {
        let holder = Holder(Command::new("unshare").args(["--user", "sleep", "100000"]).spawn().expect("unshare"));
        let file = |name: &str| format!("/proc/{}/{name}", holder.0.id());
        crate::support::wait_until("the namespace", std::time::Duration::from_secs(20), || {
            fs::read_to_string(file("comm")).unwrap_or_default() == "sleep\n"
        });
        for name in ["uid_map", "gid_map"] {
            fs::write(file(name), "0 100000 65536\n").expect("write the ranges");
        }
        holder
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/user", self.0.id())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }
}

/// In a user namespace that the container joins, the options take that one; mounts below find their places made.
#[test]
fn a_joined_user_namespace_maps_ids() {
    let env = Env::new();
    let holder = Holder::start();
    let dir = volume(&env, "volume");
    let joins = |bundle: &mut Bundle<'_>, path: &str| {
        let namespaces = bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces");
        namespaces.push(json!({"type": "user", "path": path}));
        Cmd::new("chown").args(["-R", "100000:100000"]).arg(&bundle.rootfs).ok();
    };
    let script = format!("{}; touch /v/made", owners("/v"));
    let container = Container::new(&env, Runtime::Ours, &script, |bundle| {
        joins(bundle, &holder.path());
        add_mount(bundle, bind(&dir, "/v", &["bind", "idmap"]));
        add_mount(bundle, json!({"destination": "/v/new", "type": "tmpfs", "source": "tmpfs"}));
    });
    assert_eq!(container.run().expect(0).stdout, "0:0 0:1 1000:1001 65534:65534 ");
    assert_eq!((owner(&dir.join("made")), owner(&dir.join("new"))), ((0, 0), (0, 0)));
    let failed = Container::new(&env, Runtime::Ours, "true", |bundle| {
        joins(bundle, "/proc/self/ns/mnt");
        add_mount(bundle, bind(&dir, "/v", &["bind", "idmap"]));
    });
    let said = failed.run().expect(1).stderr;
    assert!(said.contains("/proc/self/ns/mnt is not a user namespace"), "{said}");
    // It was waited for.
    let fifo = env.dir.join("fifo");
    Cmd::new("mkfifo").arg(&fifo).ok();
    for kind in ["user", "network"] {
        let failed = Container::new(&env, Runtime::Ours, "true", |bundle| {
            without_namespace(bundle, kind);
            let namespaces = bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces");
            namespaces.push(json!({"type": kind, "path": fifo}));
        });
        let said = failed.run().expect(1).stderr;
        assert!(said.contains(&format!("fifo is not a {kind} namespace")), "{said}");
    }
}

/// What is written beside a user namespace that is joined may be missing, or not be so: who has what was told by that, and a
/// volume that only the host's root can get to was not found.
#[test]
fn the_ids_of_a_joined_user_namespace_are_its_own() {
    let env = Env::new();
    let holder = Holder::start();
    let dir = volume(&env, "closed/volume");
    Cmd::new("chown").args(["-R", "100005:100006"]).arg(&dir).ok();
    fs::set_permissions(env.dir.join("closed"), fs::Permissions::from_mode(0o700)).expect("chmod");
    for beside in [Value::Null, containers(), ranges(&[(0, 200_000, 65_536)]), ranges(&[(0, 100_000, 1)])] {
        let container = Container::new(&env, Runtime::Ours, IDLE, |bundle| {
            let linux = &mut bundle.config["linux"];
            linux["namespaces"].as_array_mut().expect("a list").push(json!({"type": "user", "path": holder.path()}));
            linux["uidMappings"] = beside.clone();
            linux["gidMappings"] = beside.clone();
            Cmd::new("chown").args(["-R", "100000:100000"]).arg(&bundle.rootfs).ok();
            add_mount(bundle, bind(&dir, "/v", &["bind"]));
            add_mount(bundle, json!({"destination": "/v/new", "type": "tmpfs", "source": "tmpfs"}));
        });
        container.start();
        assert_eq!(container.sh("stat -c %u:%g /v/f0; echo x >/x; chown 3:4 /x").expect(0).stdout, "5:6\n");
        let shown = container.bundle.show();
        let change = &shown["changes"][0];
        assert_eq!((&change["path"], &change["uid"], &change["gid"]), (&json!("/x"), &json!(3), &json!(4)), "{shown}");
        assert_eq!(owner(&dir.join("new")), (100_000, 100_000), "{beside}");
        fs::remove_dir(dir.join("new")).expect("remove");
    }
    let own = Container::new(&env, Runtime::Ours, "true", |bundle| {
        let namespaces = bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces");
        namespaces.push(json!({"type": "user", "path": "/proc/self/ns/user"}));
    });
    let said = own.run().expect(1).stderr;
    assert!(said.contains("user: /proc/self/ns/user is the one that agentsbx is in"), "{said}");
}

/// What can't be is refused before there is a container, with the mount's name and what to do; nothing is left.
#[test]
fn what_can_not_be_mapped_is_refused() {
    let env = Env::new();
    let dir = volume(&env, "volume");
    let one = containers();
    let user = |bundle: &mut Bundle<'_>| with_user_namespace(bundle);
    let plain = |_: &mut Bundle<'_>| {};
    let elsewhere = |bundle: &mut Bundle<'_>| {
        without_namespace(bundle, "mount");
        for paths in ["maskedPaths", "readonlyPaths"] {
            bundle.config["linux"].as_object_mut().expect("linux").remove(paths);
        }
    };
    let half = |name: &str| {
        let mut mount = bind(&dir, "/v", &["bind", "idmap"]);
        mount[name] = one.clone();
        mount
    };
    let overlap = ranges(&[(0, 100_000, 10), (5, 300_000, 10)]);
    let many: Vec<(u32, u32, u32)> = (0..500).map(|n| (n, 100_000 + n, 1)).collect();
    let long: Vec<(u32, u32, u32)> = (0..340).map(|n| (n, 4_000_000_000 + n, 1)).collect();
    let bare = |bundle: &mut Bundle<'_>| {
        with_user_namespace(bundle);
        for name in ["uidMappings", "gidMappings"] {
            bundle.config["linux"].as_object_mut().expect("linux").remove(name);
        }
    };
    let malformed = json!([{"containerID": 0, "hostID": -1, "size": 1}]);
    let already = env.dir.join("already");
    fs::create_dir(&already).expect("mkdir");
    let once = [IdRange { inside: 0, outside: 100_000, size: 65_536 }];
    let namespace = userns::with_maps(&once, &once).expect("a user namespace");
    let tree = mount::clone_tree(fs::File::open(&dir).expect("open").as_fd(), false, &"the volume").expect("clone");
    mountattr::map_ids(&tree, namespace.as_fd(), false).expect("map ids");
    let place = fs::File::open(&already).expect("open");
    mount::attach(tree.as_fd(), place.as_fd(), &"the place").expect("mount");
    drop(tree);
    let over = env.dir.join("over");
    let parts = ["l", "u", "w", "m"].map(|name| over.join(name));
    parts.iter().for_each(|part| fs::create_dir_all(part).expect("mkdir"));
    let text =
        format!("lowerdir={},upperdir={},workdir={}", parts[0].display(), parts[1].display(), parts[2].display());
    Cmd::new("mount").args(["-t", "overlay", "over", "-o", &text]).arg(&parts[3]).ok();
    type Change<'c> = &'c dyn Fn(&mut Bundle<'_>);
    let cases: [(Change<'_>, Value, &[&str]); 17] = [
        (&user, half("uidMappings"), &["mounts[/v]", "no gidMappings: both are needed"]),
        (&user, half("gidMappings"), &["mounts[/v]", "no uidMappings: both are needed"]),
        (&plain, bind(&dir, "/v", &["bind", "idmap"]), &["mounts[/v]", "or the container a user namespace"]),
        (&user, mapped(&dir, "/v", &["bind"], &json!([])), &["mounts[/v]", "uidMappings is empty"]),
        (
            &user,
            mapped(&dir, "/v", &["bind"], &overlap),
            &["invalid mounts[/v]", "uidMappings: ranges (0 100000 10) and (5 300000 10) overlap in containerID"],
        ),
        (
            &user,
            mapped(&dir, "/v", &["bind"], &ranges(&[(0, 100_000, 0)])),
            &["invalid mounts[/v]", "range (0 100000 0) is empty"],
        ),
        (
            &user,
            mapped(&dir, "/v", &["bind"], &ranges(&[(0, u32::MAX, 2)])),
            &["mounts[/v]", "range (0 4294967295 2) goes past"],
        ),
        (&user, mapped(&dir, "/v", &["bind"], &ranges(&many)), &["mounts[/v]", "500 ranges: at most 340"]),
        (&user, mapped(&dir, "/v", &["bind"], &ranges(&long)), &["mount /v of", "(340 in all)", "shorter than a page"]),
        (&bare, bind(&dir, "/v", &["bind", "idmap"]), &["invalid linux.uidMappings", "missing"]),
        (
            &user,
            bind(&over, "/v", &["rbind", "ridmap"]),
            &[
                "mount /v of",
                "(overlay) that is mounted below, on ",
                "/over/m, can't",
                "take idmap in the place of ridmap",
            ],
        ),
        (
            &user,
            mapped(&dir, "/v", &["bind"], &malformed),
            &["invalid mounts[6].uidMappings[0].hostID in config.json", "integer `-1`"],
        ),
        (
            &user,
            json!({"destination": "/v", "type": "tmpfs", "source": "tmpfs", "options": ["idmap"]}),
            &["mounts[/v]", "only bind mounts can map ids"],
        ),
        (&user, bind(&dir, "/v", &["bind", "idmap=uids=0-1-10"]), &["mounts[/v]", "not given in an option"]),
        (&user, bind(&parts[3], "/v", &["bind", "idmap"]), &["mount /v of", "its file system (overlay) can't do that"]),
        (
            &user,
            bind(&env.dir.join("none"), "/v", &["bind", "idmap"]),
            &["mounts[/v]: open source of a bind mount ", "none: no such file or directory"],
        ),
        (&elsewhere, mapped(&dir, "/v", &["bind"], &one), &["mount /v of", "no mount namespace of its own"]),
    ];
    let refuse = |change: Change<'_>, mount: Value, words: &[&str]| {
        let container = Container::new(&env, Runtime::Ours, "true", |bundle| {
            change(bundle);
            add_mount(bundle, mount);
        });
        let said = container.run().expect(1).stderr;
        for word in words {
            assert!(said.contains(word), "{word} not in {said}");
        }
        assert_eq!(env.ok(["list", "-q"]), "");
        assert_eq!(fs::read_dir(&env.root).map_or(0, Iterator::count), 0, "{said}");
        assert!(!container.bundle.dir.join("config.engine.json").exists(), "{said}");
    };
    cases.into_iter().for_each(|(change, mount, words)| refuse(change, mount, words));
    refuse(&user, bind(&already, "/v", &["bind", "idmap"]), &["mount /v of", "it maps ids already"]);
    for mounted in [&already, &parts[3]] {
        Cmd::new("umount").arg(mounted).ok();
    }
    let features: Value = serde_json::from_str(&env.ok(["features"])).expect("JSON");
    assert_eq!(features["linux"]["mountExtensions"]["idmap"]["enabled"], true);
}

/// An overlay of a mount that maps ids would not map them: such a mount is not made copy on write. Where the configuration
/// says that all are to be, it is read-only, and beside others that are it is as ever.
#[test]
fn a_copy_on_write_mount_is_none_that_maps_ids() {
    let env = Env::new();
    let (dir, other) = (volume(&env, "volume"), volume(&env, "other"));
    Cmd::new("chown").args(["-R", "100000:100000"]).arg(&other).ok();
    let with = |rules: &str, mount: &Value, env: &Env, script: &str| {
        let mut bundle = Bundle::new(env, ["sh", "-c", script]);
        with_user_namespace(&mut bundle);
        bundle.config["annotations"]["dev.agentsbx.mounts"] = rules.into();
        add_mount(&mut bundle, bind(&other, "/cow", &["bind"]));
        add_mount(&mut bundle, mount.clone());
        bundle.write();
        let run = env.cmd(["run", "--detach", "--bundle"]).arg(&bundle.dir).arg(&bundle.id);
        (
            run.output_to(bundle.dir.join("out")).run(),
            fs::read_to_string(bundle.dir.join("out")).unwrap_or_default(),
            bundle.id,
        )
    };
    for mount in [bind(&dir, "/v", &["bind", "idmap"]), mapped(&dir, "/v", &["bind"], &containers())] {
        let (run, said, _) = with(r#"{"/v": "cow"}"#, &mount, &env, IDLE);
        assert!(run.code == 1 && said.contains("copy-on-write mount /v: an overlay of it would not map ids"), "{said}");
        let strict = Env::with_config("[mounts]\ndefault = 'cow'\n");
        let (run, said, id) = with("{}", &mount, &strict, IDLE);
        assert_eq!(run.code, 0, "{said}");
        let sh = |env: &Env, id: &str, script: &str| env.cmd(["exec", id, "sh", "-c", script]).run().expect(0).stdout;
        assert_eq!(
            sh(&strict, &id, "stat -c %u /v/f1000; touch /v/x 2>&1 | sed 's/.*: //'"),
            "1000\nRead-only file system\n"
        );
        // One in a layered mount, whose directory the layer has to have.
        let mut inner = mount.clone();
        inner["destination"] = "/cow/in".into();
        let (run, said, id) = with(r#"{"/cow": "cow"}"#, &inner, &env, IDLE);
        assert_eq!(run.code, 0, "{said}");
        for _ in 0..2 {
            assert_eq!(
                sh(&env, &id, "stat -c %u /cow /cow/in /cow/in/f1000; echo x >>/cow/new; echo x >>/cow/in/new"),
                "0\n0\n1000\n"
            );
        }
        assert_eq!(sh(&env, &id, "cat /cow/new /cow/in/new"), "x\n".repeat(4));
        assert_eq!(owner(&dir.join("new")), (0, 0));
        fs::remove_file(dir.join("new")).expect("remove");
        assert!(!other.join("new").exists() && !other.join("in").exists());
        env.ok(["delete", "--force", &id]);
    }
}
