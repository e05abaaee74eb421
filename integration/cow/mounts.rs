//! Where copy-on-write mounts can be, and what can't be one.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use serde_json::json;

use super::{assert_sound, assert_untouched, below, bundle, layers, project, told, with_mounts};
use crate::support::walk::{assert_same, walk};
use crate::support::{Cmd, Env};

/// Several, in each other, in a volume, with a volume in one of them, at a place that the image does not have: each is itself.
#[test]
fn mounts_in_mounts() {
    let env = Env::new();
    let [outer, inner, volume, cache, deep] = [(); 5].map(|()| project(&env));
    let befores = [&outer, &inner, &deep].map(|dir| (dir, walk(dir)));
    fs::create_dir(volume.join("x")).expect("mkdir");
    let binds = [
        (outer.as_path(), "/work"),
        (&inner, "/work/new/sub"),
        (&cache, "/work/cache"),
        (&volume, "/data"),
        (&deep, "/data/x/cow"),
    ];
    let rules = r#"{"/work": "cow", "/work/new/sub": "cow", "/data/x/cow": "cow"}"#;
    let bundle = with_mounts(&env, &binds, rules);
    bundle.start();
    let id = bundle.id.as_str();
    bundle
        .sh("set -e; cat /work/src/one /work/new/sub/src/one /data/src/one /data/x/cow/src/one /work/cache/src/one
             echo w >/work/src/one; echo s >/work/new/sub/src/one; echo s >/work/new/sub/added; echo d >/data/written
             rm /data/x/cow/src/one; echo c >/work/cache/written; echo o >/outside; rm -r /work/src/deep")
        .expect(0);
    let want = [
        "added /outside",
        "added /work/new/sub/added",
        "deleted /data/x/cow/src/one",
        "deleted /work/src/deep",
        "modified /work/new/sub/src/one",
        "modified /work/src/one",
    ];
    assert_eq!(told(&bundle.show()), want.map(String::from).into());
    assert_eq!(told(&env.json(["diff", id, "--json"])), want.map(String::from).into());
    assert_eq!(
        bundle.sh("cat /work/src/one /work/new/sub/added /work/cache/written; ls /data/x/cow/src").ok(),
        "w\ns\nc\ndeep\nhard\ntwo"
    );
    assert_eq!(fs::read_to_string(volume.join("written")).expect("a volume is the host's"), "d\n");
    assert_eq!(fs::read_to_string(cache.join("written")).expect("one in a layered mount too"), "c\n");
    bundle.sh("rmdir /work/cache /work/new/sub /work 2>&1; mv /work/new /work/newer").expect(1);
    for (dir, before) in &befores {
        assert_untouched(before, dir);
    }
    env.ok(["rollback", id, "0"]);
    assert_eq!(bundle.sh("cat /work/src/one /work/new/sub/src/one /data/x/cow/src/one").ok(), "one\none\none");
    assert_sound(&env);
    env.ok(["delete", "--force", id]);
    assert_eq!(layers(&env), 0);
}

/// An exec that only looks, or writes what was there, leaves nothing; the root's own directories on the way are no change.
#[test]
fn what_changes_nothing_is_empty() {
    let env = Env::new();
    let host = project(&env);
    let bundle = with_mounts(&env, &[(&host, "/some/where/work")], r#"{"/some/where/work/": "cow"}"#);
    bundle.start();
    for script in [
        "true",
        "cd /some/where/work; cat src/one; touch x; rm x; chmod 644 src/one",
        "cat >>/some/where/work/src/two </dev/null",
    ] {
        bundle.sh(script).expect(0);
        assert_eq!(bundle.show()["disposition"], "empty", "{script}: {}", bundle.show());
    }
    assert_eq!(layers(&env), 1, "the first process's");
    bundle.sh("chmod 700 /some/where; echo x >/some/where/work/x").expect(0);
    assert_eq!(told(&bundle.show()), ["added /some/where/work/x", "metadata /some/where"].map(String::from).into());
    let mode = "stat -c %a /some/where /some/where/work";
    assert_eq!(bundle.sh(mode).ok(), "700\n755");
    bundle.sh("chmod 1770 /some/where/work").expect(0);
    assert_eq!(told(&bundle.show()), ["metadata /some/where/work".to_owned()].into());
    assert_eq!(bundle.sh(mode).ok(), "700\n1770");
    assert_eq!(host.metadata().expect("stat").mode() & 0o7777, 0o755);
}

/// A read-only root stays read-only in execs, which are layered for the mount alone.
#[test]
fn a_read_only_root() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let mut bundle = bundle(&env, &host);
    bundle.config["root"]["readonly"] = true.into();
    fs::create_dir(bundle.rootfs.join("work")).expect("mkdir");
    bundle.start();
    bundle.sh("echo x >/work/x; ! touch /y 2>/dev/null; ! mkdir /work/../z 2>/dev/null").expect(0);
    assert_eq!(told(&bundle.show()), ["added /work/x".to_owned()].into());
    assert_eq!(bundle.show()["disposition"], "committed");
    assert_eq!(bundle.sh("cat /work/x; grep ' / / ro' /proc/self/mountinfo | wc -l").ok(), "x\n1");
    assert_untouched(&before, &host);
}

/// In a user namespace of its own the container's root writes to the layer as the host's user that it is.
#[test]
fn a_user_namespace() {
    let env = Env::new();
    let host = project(&env);
    Cmd::new("chown").args(["-R", "100000:100000"]).arg(&host).ok();
    Cmd::new("chmod").args(["-R", "a+rX"]).arg(&host).ok();
    let before = walk(&host);
    let mut bundle = bundle(&env, &host);
    let map = json!([{"containerID": 0, "hostID": 100_000, "size": 65_536}]);
    bundle.config["linux"]["uidMappings"] = map.clone();
    bundle.config["linux"]["gidMappings"] = map;
    let namespaces = bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces");
    namespaces.push(json!({"type": "user"}));
    Cmd::new("chown").args(["-R", "100000:100000"]).arg(&bundle.rootfs).ok();
    bundle.start();
    bundle.sh("set -e; echo x >/work/x; echo more >>/work/src/two; rm /work/run; chown 5:5 /work/x").expect(0);
    let want = ["added /work/x", "deleted /work/run", "modified /work/src/hard"];
    let told = told(&bundle.show());
    assert!(told.contains(want[0]) && told.contains(want[1]), "{told:?}");
    assert_eq!(bundle.sh("cat /work/x; stat -c %u:%g /work/x /work; ls /work/run 2>&1 | wc -l").ok(), "x\n5:5\n0:0\n1");
    assert_untouched(&before, &host);
}

/// Other filesystems than the store's: a tmpfs, an overlay, ext4 in a file; and the flags of the mount are the overlay's.
#[test]
fn sources_of_other_filesystems_and_flags() {
    let env = Env::new();
    let tmpfs = tempfile::tempdir_in("/dev/shm").expect("a directory on a tmpfs");
    fs::write(tmpfs.path().join("f"), "tmpfs\n").expect("write");
    let over = env.dir.join("over");
    let parts = ["l", "u", "w", "m"].map(|name| over.join(name));
    parts.iter().for_each(|part| fs::create_dir_all(part).expect("mkdir"));
    fs::write(parts[0].join("f"), "overlay\n").expect("write");
    let options =
        format!("lowerdir={},upperdir={},workdir={}", parts[0].display(), parts[1].display(), parts[2].display());
    Cmd::new("mount").args(["-t", "overlay", "over", "-o", &options]).arg(&parts[3]).ok();
    let befores = [tmpfs.path(), &parts[3]].map(|dir| (dir.to_owned(), walk(dir)));
    let rules = r#"{"/t": "cow", "/o": "cow"}"#;
    let mut bundle = with_mounts(&env, &[(tmpfs.path(), "/t"), (&parts[3], "/o")], rules);
    let mounts = bundle.config["mounts"].as_array_mut().expect("mounts");
    mounts.last_mut().expect("a mount")["options"] = json!(["rbind", "nosuid", "nodev", "noexec"]);
    bundle.start();
    bundle.sh("set -e; cat /t/f /o/f; echo more >>/t/f; echo more >>/o/f; cp /bin/busybox /o/echo; cp /bin/busybox /t/echo").expect(0);
    assert_eq!(
        bundle.sh("cat /t/f /o/f; /t/echo hi; /o/echo hi 2>/dev/null || echo no").ok(),
        "tmpfs\nmore\noverlay\nmore\nhi\nno"
    );
    let flags = "grep ' /o ' /proc/self/mountinfo | cut -d' ' -f6";
    assert!(bundle.sh(flags).ok().starts_with("rw,nosuid,nodev,noexec"));
    assert!(bundle.sh_with(["--layer", "shared"], flags).ok().starts_with("rw,nosuid,nodev,noexec"));
    for (dir, before) in &befores {
        assert_untouched(before, dir);
    }
    env.ok(["delete", "--force", &bundle.id]);
    Cmd::new("umount").arg(&parts[3]).ok();
}

/// Names with every byte that means something somewhere.
#[test]
fn odd_names_of_mounts_and_sources() {
    let env = Env::new();
    for name in ["a,b", "a:b", "a\\b", "a\nb", "a b", "ü\"'"] {
        let host = env.dir.join(format!("host {name}"));
        fs::create_dir_all(&host).expect("mkdir");
        fs::write(host.join("f"), "host\n").expect("write");
        let before = walk(&host);
        let at = format!("/in {name}/at {name}");
        let bundle = with_mounts(&env, &[(&host, &at)], &json!({ &at: "cow" }).to_string());
        bundle.start();
        let exec =
            env.cmd(["exec", "--cwd", &at, &bundle.id, "sh", "-c", "cat f; echo x >\"$PWD\"/x; echo y >>f"]).run();
        assert_eq!(exec.ok(), "host", "{name:?}");
        let want = [format!("added {at}/x"), format!("modified {at}/f")];
        assert_eq!(told(&bundle.show()), want.into(), "{name:?}");
        assert_untouched(&before, &host);
        env.ok(["delete", "--force", &bundle.id]);
    }
    assert_eq!(layers(&env), 0);
    assert_sound(&env);
}

/// A destination that is a symbolic link of the image is where that leads to.
#[test]
fn a_destination_that_is_a_link() {
    let env = Env::new();
    let host = project(&env);
    let bundle = with_mounts(&env, &[(&host, "/link/work")], r#"{"/link/work": "cow"}"#);
    fs::create_dir(bundle.rootfs.join("real")).expect("mkdir");
    symlink("real", bundle.rootfs.join("link")).expect("symlink");
    bundle.start();
    bundle.sh("echo x >/link/work/x").expect(0);
    assert_eq!(told(&bundle.show()), ["added /real/work/x".to_owned()].into());
}

/// What can't be copy on write is refused when the container is made, in words that say what to do, and leaves nothing.
#[test]
fn what_is_refused() {
    let env = Env::new();
    let host = project(&env);
    let refused = |binds: &[(&std::path::Path, &str)], rules: &str, option: &str| {
        let mut bundle = with_mounts(&env, binds, rules);
        if !option.is_empty() {
            let mounts = bundle.config["mounts"].as_array_mut().expect("mounts");
            mounts.last_mut().expect("a mount")["options"].as_array_mut().expect("options").push(option.into());
        }
        let run = bundle.run();
        assert_ne!(run.code, 0, "{}", run.line);
        env.run(["state", &bundle.id]).expect(1);
        run.both()
    };
    let file = host.join("run");
    for (bind, rules, option, words) in [
        ((host.as_path(), "/work"), r#"{"/other": "cow"}"#, "", "/other: nothing is mounted there"),
        ((&host, "/work"), r#"{"/work": "cow"}"#, "ro", "/work: it is mounted read-only"),
        ((&host, "/work"), r#"{"/work": "cow", "/dev/shm": "cow"}"#, "", "/dev/shm: a tmpfs is mounted there"),
        ((&host, "/work"), r#"{"/work": "caw"}"#, "", "unknown word"),
        ((&file, "/work"), r#"{"/work": "cow"}"#, "", "run is not a directory: mount the directory that it is in"),
        ((&host.join("none"), "/work"), r#"{"/work": "cow"}"#, "", "project"),
        ((&env.dir, "/work"), r#"{"/work": "cow"}"#, "", "the layers are in"),
    ] {
        let said = refused(&[bind], rules, option);
        assert!(said.contains(words), "{rules} {option}: {said}");
    }
    let inner = host.join("empty");
    Cmd::new("mount").args(["-t", "tmpfs", "none"]).arg(&inner).ok();
    let said = refused(&[(&host, "/work")], r#"{"/work": "cow"}"#, "");
    Cmd::new("umount").arg(&inner).ok();
    assert!(said.contains("is mounted in") && said.contains("instead of `rbind`"), "{said}");
    assert_eq!(layers(&env), 0);
    assert_sound(&env);
}

/// The host's directory was exchanged while the container lived: execs are refused rather than run on something else.
#[test]
fn a_source_that_is_exchanged() {
    let env = Env::new();
    let host = project(&env);
    let bundle = bundle(&env, &host);
    bundle.start();
    bundle.sh("echo x >/work/x").expect(0);
    let moved = host.with_extension("moved");
    fs::rename(&host, &moved).expect("rename");
    symlink("/etc", &host).expect("symlink");
    bundle.sh("cat /work/passwd").expect(255);
    fs::remove_file(&host).expect("remove");
    fs::create_dir(&host).expect("mkdir");
    let said = bundle.sh("true").expect(255).both();
    assert!(said.contains("is not the directory any more"), "{said}");
    fs::remove_dir(&host).expect("rmdir");
    fs::rename(&moved, &host).expect("rename");
    assert_eq!(bundle.sh("cat /work/x").ok(), "x");
}

/// Files of other users, closed to all: read and changed by the container's root as on the host, the changes with their owners.
#[test]
fn files_of_other_users() {
    let env = Env::new();
    let host = project(&env);
    fs::write(host.join("secret"), "s\n").expect("write");
    fs::set_permissions(host.join("secret"), fs::Permissions::from_mode(0o000)).expect("chmod");
    Cmd::new("chown").arg("12345:54321").arg(host.join("secret")).ok();
    let note = rustix::fs::setxattr(host.join("secret"), "user.note", b"kept", rustix::fs::XattrFlags::empty());
    note.expect("setxattr");
    let before = walk(&host);
    let bundle = bundle(&env, &host);
    bundle.start();
    bundle.sh("echo more >>/work/secret; chown 7:8 /work/run").expect(0);
    let result = bundle.show();
    let now = super::seen(&bundle);
    assert_same(&result, &below("/work", walk(&host)), &now);
    let secret = &now[b"/work/secret".as_slice()];
    assert_eq!((secret.owner, secret.mode, secret.xattrs.len()), ((12345, 54321), 0, 1));
    assert_untouched(&before, &host);
}

/// What the host mounts in its directory later is not seen by execs, and is neither told nor compared with.
#[test]
fn what_the_host_mounts_there_is_not_told() {
    let env = Env::new();
    let host = project(&env);
    let seen_before = below("/work", walk(&host));
    let bundle = bundle(&env, &host);
    bundle.start();
    let (dir, file) = (host.join("src"), host.join("run"));
    Cmd::new("mount").args(["-t", "tmpfs", "none"]).arg(&dir).ok();
    Cmd::new("mount").arg("--bind").args([host.join(".git/HEAD"), file.clone()]).ok();
    fs::write(dir.join("theirs"), "x").expect("write");
    bundle.sh("cd /work; rm -r src/deep; echo more >>src/one; echo more >>run; ls src/theirs").expect(1);
    let (result, now) = (bundle.show(), super::seen(&bundle));
    let patch = env.ok(["diff", &bundle.id, "--patch"]);
    Cmd::new("umount").args([&dir, &file]).ok();
    assert_same(&result, &seen_before, &now);
    assert!(patch.contains(" one\n+more") && patch.contains(" #!/bin/sh\n+more"), "{patch}");
}
