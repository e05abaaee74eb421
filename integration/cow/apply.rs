//! `apply`: the host's directory becomes what HEAD shows, when it is asked for, and as it was planned.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use serde_json::Value;

use super::{assert_sound, assert_untouched, below, bundle, project, seen, with_mounts};
use crate::support::walk::{Tree, compare, walk};
use crate::support::{Env, result};

fn steps(document: &Value) -> BTreeSet<String> {
    let list = document["steps"].as_array().expect("steps");
    list.iter()
        .map(|s| format!("{} {}", s["action"].as_str().expect("an action"), s["path"].as_str().unwrap_or("?")))
        .collect()
}

fn reasons(document: &Value, what: &str) -> Vec<String> {
    let list = document[what].as_array().expect("a list");
    list.iter()
        .map(|s| format!("{}: {}", s["path"].as_str().expect("a path"), s["reason"].as_str().expect("a reason")))
        .collect()
}

/// What applying leaves of a tree: sockets and devices are not made.
fn applied(tree: &Tree) -> Tree {
    tree.iter()
        .filter(|(_, e)| !matches!(e.kind, "socket" | "char" | "block"))
        .map(|(p, e)| (p.clone(), e.clone()))
        .collect()
}

/// All kinds of changes reach the host, as the plan says; the second time there is nothing to do; it is in the log.
#[test]
fn the_host_becomes_what_head_shows() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let bundle = bundle(&env, &host);
    bundle.start();
    let id = bundle.id.as_str();
    for script in [
        "echo x >new; mkdir -p d/e/f; echo y >d/e/f/y; ln -s /nowhere newlink; mkfifo newpipe; : >nothing",
        "echo more >>src/one; ln -sf /elsewhere link; chmod 750 run; chown 5:6 src; rm -r src/deep; echo file >src/deep",
        "rm -r empty pipe; echo now-a-file >empty; rm out; mkdir out; echo in >out/in; touch -d @1234567890 src/two; chmod 700 .",
        "rm new; mv nothing something; mv 'a,b:c' src; printf z >\"$(printf 'other\\nline')\"; truncate -s 6000000 sparse",
    ] {
        bundle.sh_with(["--cwd", "/work"], script).expect(0);
        assert_eq!(result::disposition(&bundle.show()), "committed");
    }
    assert_untouched(&before, &host);
    let wanted = seen(&bundle);
    let text = env.ok(["apply", id, "--dry-run"]);
    let planned = env.json(["apply", id, "/work", "--dry-run", "--json"]);
    assert_untouched(&before, &host);
    assert_eq!(planned["applied"], false);
    assert!(text.contains("create") && text.contains(&format!("{}/d/e/f/y", host.display())), "{text}");
    assert!(text.contains(" -> /elsewhere  ") && text.contains(" -> /nowhere  "), "where links lead: {text}");
    let relative = env.run(["apply", id, "work"]).expect(1);
    assert!(relative.stderr.contains("is not an absolute path"), "{}", relative.stderr);
    let done = env.json(["apply", id, "--json"]);
    assert_eq!(done["steps"], planned["steps"]);
    assert_eq!((done["applied"].as_bool(), done["conflicts"].as_array().map(Vec::len)), (Some(true), Some(0)));
    let different = compare(&wanted, &below("/work", walk(&host)));
    assert!(different.is_empty(), "{different:#?}");
    assert_eq!(env.ok(["apply", id]), "0 applied");
    assert_eq!(env.ok(["log", id]).matches("apply of generation 4").count(), 1);
    assert!(compare(&wanted, &seen(&bundle)).is_empty(), "and execs see the same");
    // More on top of it, some of it of files that were applied.
    bundle.sh_with(["--cwd", "/work"], "echo again >>src/one; rm -r d out; rm something; mkdir d").expect(0);
    let done = env.json(["apply", id, "--json"]);
    assert_eq!(reasons(&done, "conflicts"), Vec::<String>::new());
    assert!(compare(&seen(&bundle), &below("/work", walk(&host))).is_empty());
    assert_eq!(env.ok(["apply", id]), "0 applied");
    assert_sound(&env);
    // It stays on the host, whatever becomes of the container.
    env.ok(["rollback", id, "0"]);
    assert_eq!(env.ok(["apply", id]), "0 applied");
    let after = walk(&host);
    env.ok(["delete", "--force", id]);
    assert_untouched(&after, &host);
}

/// Only what is below the path is applied; a path on no mount is refused.
#[test]
fn a_part_of_it() {
    let env = Env::new();
    let (host, other) = (project(&env), project(&env));
    let bundle =
        with_mounts(&env, &[(&host, "/work"), (&other, "/work/sub")], r#"{"/work": "cow", "/work/sub": "cow"}"#);
    bundle.start();
    let id = bundle.id.as_str();
    bundle
        .sh("for d in /work /work/sub; do cd $d; echo x >src/new; echo x >new; rm src/two; done; echo x >/elsewhere")
        .expect(0);
    let plan = |path: &str| steps(&env.json(["apply", id, path, "--dry-run", "--json"]));
    assert_eq!(plan("/work/src/"), ["create /work/src/new", "delete /work/src/two"].map(String::from).into());
    assert_eq!(plan("/work/sub").len(), 3);
    assert_eq!(plan("/").len(), 6);
    let refused = env.run(["apply", id, "/elsewhere"]).expect(1).both();
    assert!(refused.contains("is on no copy-on-write mount: the container has /work, /work/sub"), "{refused}");
    env.ok(["apply", id, "/work/sub"]);
    assert!(other.join("new").exists() && !host.join("new").exists());
    let plain = crate::support::bundle::Bundle::running(&env);
    let refused = env.run(["apply", &plain.id]).expect(1).both();
    assert!(refused.contains("has no copy-on-write mount"), "{refused}");
}

/// What somebody else changed on the host since is not overwritten, nor deleted, unless it is forced.
#[test]
fn conflicts_with_the_host() {
    let env = Env::new();
    let host = project(&env);
    let bundle = bundle(&env, &host);
    bundle.start();
    let id = bundle.id.as_str();
    bundle
        .sh_with(
            ["--cwd", "/work"],
            "echo ours >>src/one; echo ours >made; rm -r .git; rm run; echo ours >>src/two; chmod 640 'a,b:c'",
        )
        .expect(0);
    fs::write(host.join("src/one"), "theirs\n").expect("write");
    fs::write(host.join("made"), "theirs too\n").expect("write");
    fs::write(host.join(".git/config"), "theirs\n").expect("write");
    fs::remove_file(host.join("src/two")).expect("remove");
    let before = walk(&host);
    let refused = env.run(["apply", id, "--json"]).expect(1);
    let document: Value = serde_json::from_str(&refused.stdout).expect("JSON");
    let want = [
        "/work/.git/config: it was made on the host",
        "/work/made: it was made on the host",
        "/work/src/one: it was changed on the host",
        "/work/src/two: it was deleted on the host",
    ];
    assert_eq!(reasons(&document, "conflicts"), want);
    assert_untouched(&before, &host);
    let text = env.run(["apply", id]).expect(1).stdout;
    assert!(text.contains("4 conflicts: nothing is applied unless with --force"), "{text}");
    // One that has come to the same is none.
    fs::write(host.join("made"), "ours\n").expect("write");
    bundle.sh("touch -r /work/made /dev/shm/x").expect(0);
    let text = env.ok(["apply", id, "--force", "--dry-run"]);
    assert!(text.contains("it was changed on the host: to be overwritten") && !text.contains(" applied"), "{text}");
    let text = env.ok(["apply", id, "--force"]);
    for words in ["it was changed on the host: overwritten", "it was deleted on the host: overwritten"] {
        assert!(text.contains(words), "{text}");
    }
    let last = text.lines().last().expect("a line");
    assert!(
        text.matches(": overwritten").count() == 4 && last.ends_with(" applied, over 4 conflicts (--force)"),
        "{text}"
    );
    assert!(compare(&seen(&bundle), &below("/work", walk(&host))).is_empty());
    assert_eq!(env.ok(["apply", id]), "0 applied");
    // Changed on the host after it was applied, then by the container again.
    fs::write(host.join("src/one"), "edited\n").expect("write");
    bundle.sh("echo ours again >>/work/src/one").expect(0);
    env.run(["apply", id]).expect(1);
    assert_eq!(fs::read_to_string(host.join("src/one")).expect("read"), "edited\n");
}

/// A change on the host while an exec runs, which it may or may not have seen, is a conflict as well.
#[test]
fn a_change_while_the_exec_runs() {
    let env = Env::new();
    let host = project(&env);
    let bundle = bundle(&env, &host);
    bundle.start();
    let gate = "echo ours >>/work/src/one; touch /dev/shm/ready; while [ ! -e /dev/shm/go ]; do sleep 0.02; done";
    let exec = env.cmd(["exec", &bundle.id, "sh", "-c", gate]).spawn();
    crate::support::wait_until("ready", std::time::Duration::from_secs(10), || {
        bundle.sh("test -e /dev/shm/ready").code == 0
    });
    fs::write(host.join("src/one"), "theirs\n").expect("write");
    bundle.sh("touch /dev/shm/go").expect(0);
    exec.wait().expect(0);
    let refused = env.run(["apply", &bundle.id]).expect(1).both();
    assert!(refused.contains("it was changed on the host"), "{refused}");
    assert_eq!(fs::read_to_string(host.join("src/one")).expect("read"), "theirs\n");
}

/// Nothing leads out of the directory: not links in the layer, not links that were applied before, not links of the host.
#[test]
fn nothing_leads_out() {
    let env = Env::new();
    let host = project(&env);
    let outside = env.dir.join("outside");
    fs::create_dir(&outside).expect("mkdir");
    fs::write(outside.join("precious"), "x").expect("write");
    let before = walk(&outside);
    symlink(&outside, host.join("hostlink")).expect("symlink");
    let bundle = bundle(&env, &host);
    fs::create_dir_all(bundle.rootfs.join(outside.strip_prefix("/").expect("absolute"))).expect("mkdir");
    bundle.start();
    let id = bundle.id.as_str();
    let out = outside.display();
    bundle
        .sh(&format!(
            "ln -s {out} /work/lnk; ln -s ../../../../../../..{out} /work/src/up; mkdir /work/dir; echo x >/work/dir/f"
        ))
        .expect(0);
    env.ok(["apply", id]);
    assert_eq!(fs::read_link(host.join("lnk")).expect("a link"), outside);
    // The links that are there now become directories, and a directory becomes a link.
    bundle.sh(&format!("cd /work; rm lnk src/up hostlink; mkdir lnk src/up hostlink; echo evil >lnk/precious; echo evil >src/up/precious
        echo evil >hostlink/precious; rm -r dir; ln -s {out} dir")).expect(0);
    env.ok(["apply", id]);
    assert_eq!(fs::read_to_string(host.join("lnk/precious")).expect("read"), "evil\n");
    assert!(host.join("dir").is_symlink());
    assert_untouched(&before, &outside);
    assert!(compare(&seen(&bundle), &below("/work", walk(&host))).is_empty());
    // Behind a directory that the host has exchanged for a link in the meantime nothing is written.
    bundle.sh("echo evil >/work/lnk/more; rm /work/lnk/precious").expect(0);
    fs::remove_dir_all(host.join("lnk")).expect("remove");
    let elsewhere = env.dir.join("elsewhere");
    fs::create_dir(&elsewhere).expect("mkdir");
    symlink(&elsewhere, host.join("lnk")).expect("symlink");
    env.run(["apply", id]).expect(1);
    env.run(["apply", id, "--force"]);
    assert_eq!(fs::read_dir(&elsewhere).expect("list").count(), 0);
    assert_untouched(&before, &outside);
}

/// Devices and sockets are not made, set-user-ID bits only kept where the host's file has them, and this is said.
#[test]
fn what_is_left_out() {
    let env = Env::new();
    let host = project(&env);
    fs::write(host.join("suid"), "host\n").expect("write");
    fs::set_permissions(host.join("suid"), fs::Permissions::from_mode(0o4755)).expect("chmod");
    let mut bundle = bundle(&env, &host);
    let caps = ["bounding", "effective", "permitted"];
    for set in caps {
        let list = bundle.config["process"]["capabilities"][set].as_array_mut().expect("a set");
        list.push("CAP_MKNOD".into());
    }
    bundle.config["linux"]["resources"]["devices"] = serde_json::json!([{"allow": true, "access": "rwm"}]);
    bundle.start();
    let id = bundle.id.as_str();
    let script =
        "cd /work; mknod dev c 1 3; cp /bin/busybox program; chmod 6755 program; echo more >>suid; chmod 4755 suid
        nc -l -U sock & sleep 0.3; mkdir d; chmod 3777 d; : >.agentsbx-tmp-1-1; kill %1; true";
    bundle.sh(script).expect(0);
    let planned = env.json(["apply", id, "--json"]);
    let mut skipped = reasons(&planned, "skipped");
    skipped.retain(|reason| !reason.starts_with("/work/sock"));
    let want = [
        "/work/.agentsbx-tmp-1-1: its name is one of the runtime's temporary files",
        "/work/dev: devices are never made on the host",
    ];
    assert_eq!(skipped, want);
    let program =
        planned["steps"].as_array().expect("steps").iter().find(|s| s["path"] == "/work/program").expect("a step");
    assert_eq!(program["dropped"], serde_json::json!(["setuid", "setgid"]));
    let mode = |name: &str| host.join(name).metadata().expect("stat").mode() & 0o7777;
    assert_eq!((mode("program"), mode("suid"), mode("d")), (0o755, 0o4755, 0o3777));
    assert!(!host.join("dev").exists() && !host.join(".agentsbx-tmp-1-1").exists());
    assert!(!host.join("sock").symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket()));
    assert_eq!(env.ok(["apply", id]).lines().last(), Some("0 applied"));
    assert!(compare(&applied(&below("/work", walk(&host))), &below("/work", walk(&host))).is_empty());
}

/// The mode and the owner of a named pipe and of a link; a directory with a name of the runtime's own is left out with all
/// that is in it.
#[test]
fn pipes_links_and_names_of_ours() {
    let env = Env::new();
    let host = project(&env);
    let bundle = bundle(&env, &host);
    bundle.start();
    let id = bundle.id.as_str();
    let script = "cd /work; chmod 640 pipe; chown -h 5:6 link pipe; mkdir -p src/.agentsbx-tmp-1-1/in; echo x >src/.agentsbx-tmp-1-1/in/x";
    bundle.sh(script).expect(0);
    let planned = env.json(["apply", id, "--json"]);
    assert_eq!(steps(&planned), ["metadata /work/link", "metadata /work/pipe"].map(String::from).into());
    assert_eq!(reasons(&planned, "skipped").len(), 3, "{planned}");
    let meta = |name: &str| {
        let meta = host.join(name).symlink_metadata().expect("stat");
        (meta.mode() & 0o7777, meta.uid(), meta.gid())
    };
    assert_eq!((meta("pipe"), meta("link").1), ((0o640, 5, 6), 5));
    assert!(!host.join("src/.agentsbx-tmp-1-1").exists());
    assert!(env.ok(["apply", id]).ends_with("0 applied"));
}

/// A path that is longer than the kernel takes in one call is no obstacle to the rest, and is applied and removed as well.
#[test]
fn paths_longer_than_the_kernel_takes() {
    let env = Env::new();
    let host = project(&env);
    let bundle = bundle(&env, &host);
    bundle.start();
    let id = bundle.id.as_str();
    // Two halves, one moved into the other.
    let script = "cd /work; n=$(head -c 100 /dev/zero | tr '\\0' b); p=.; for i in $(seq 35); do p=$p/$n; done
        mkdir -p x/$p y/$p; echo leaf >x/$p/leaf; mv x y/$p/; echo more >>src/one";
    bundle.sh(script).expect(0);
    let planned = env.json(["apply", id, "--json"]);
    assert_eq!(reasons(&planned, "conflicts"), Vec::<String>::new());
    assert!(compare(&seen(&bundle), &below("/work", walk(&host))).is_empty());
    assert_eq!(env.ok(["apply", id]), "0 applied");
    fs::rename(host.join("y"), env.dir.join("y")).expect("rename");
    fs::remove_dir_all(env.dir.join("y")).expect("remove");
    assert_eq!(env.json(["apply", id, "--json"])["steps"].as_array().map(Vec::len), Some(73));
    let script = "cd /work/y; n=$(ls); p=.; for i in $(seq 35); do p=$p/$n; done; (cd $p && rm -r x); rm -r /work/y";
    bundle.sh(script).expect(0);
    assert_eq!(reasons(&env.json(["apply", id, "--json"]), "conflicts"), Vec::<String>::new());
    assert!(!host.join("y").exists());
    assert_eq!(env.ok(["apply", id]), "0 applied");
}

/// What the host does to a directory that the container has only changed something in is the host's: no conflict, and not
/// undone. What inherits an access list there is as in the layer all the same, at once.
#[test]
fn directories_above_changes_stay_the_hosts() {
    let env = Env::new();
    let host = project(&env);
    let bundle = bundle(&env, &host);
    bundle.start();
    let id = bundle.id.as_str();
    bundle
        .sh("cd /work; echo x >src/new; mkdir src/dir; mkfifo src/pipe; echo more >>src/one; chmod 700 .git")
        .expect(0);
    // user::rwx user:66:rwx group::r-x mask::rwx other::r-x
    let list = [(1u16, 7u16, u32::MAX), (2, 7, 66), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
    let entry =
        |(tag, perm, id): (u16, u16, u32)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
    let value = [2u32.to_le_bytes().to_vec(), list.map(entry).concat()].concat();
    let name = "system.posix_acl_default";
    rustix::fs::setxattr(host.join("src"), name, &value, rustix::fs::XattrFlags::empty()).expect("setxattr");
    fs::set_permissions(host.join("src"), fs::Permissions::from_mode(0o775)).expect("chmod");
    let done = env.json(["apply", id, "--json"]);
    let want = [
        "create /work/src/dir",
        "create /work/src/new",
        "create /work/src/pipe",
        "metadata /work/.git",
        "replace /work/src/one",
    ];
    assert_eq!(steps(&done), want.map(String::from).into());
    assert_eq!(env.ok(["apply", id]), "0 applied");
    assert_eq!(host.join("src").metadata().expect("stat").mode() & 0o777, 0o775);
    let (mut ours, mut theirs) = (seen(&bundle), below("/work", walk(&host)));
    assert_eq!(theirs.get(&b"/work/src"[..]).expect("a directory").xattrs.len(), 1);
    for tree in [&mut ours, &mut theirs] {
        tree.remove(&b"/work/src"[..]);
    }
    let different = compare(&ours, &theirs);
    assert!(different.is_empty(), "{different:#?}");
}

/// One directory at two places: a run does not wait for itself, and what both changed is one conflict more, not a mixture.
#[test]
fn one_directory_at_two_places() {
    let env = Env::new();
    let host = project(&env);
    let bundle = with_mounts(&env, &[(&host, "/one"), (&host, "/two")], r#"{"/one": "cow", "/two": "cow"}"#);
    bundle.start();
    let id = bundle.id.as_str();
    bundle.sh("echo one >/one/first; echo two >/two/second; ls /one/second /two/first").expect(1);
    env.ok(["apply", id]);
    assert_eq!(bundle.sh("cat /one/second /two/first").ok(), "two\none");
    bundle.sh("echo 1 >>/one/src/one; echo 2 >>/two/src/one").expect(0);
    let said = env.run(["apply", id]).expect(1).both();
    assert!(said.contains("was changed on the host meanwhile"), "{said}");
    assert_eq!(fs::read_to_string(host.join("src/one")).expect("read"), "one\n1\n");
    assert!(env.run(["apply", id]).expect(1).both().contains("it was changed on the host"));
    assert_sound(&env);
}

/// The directory of a mount that is also in the directory of another one stays, though a program removes it by that way: the
/// container goes on.
#[test]
fn a_directory_in_a_directory() {
    let env = Env::new();
    let host = project(&env);
    let inner = host.join("src/deep");
    let bundle = with_mounts(&env, &[(&host, "/work"), (&inner, "/inner")], r#"{"/work": "cow", "/inner": "cow"}"#);
    bundle.start();
    let id = bundle.id.as_str();
    bundle.sh("rm -r /work/src; echo x >/inner/new").expect(0);
    let done = env.json(["apply", id, "--json"]);
    let want = ["/work/src", "/work/src/deep"]
        .map(|path| format!("{path}: it is, or holds, the directory of another copy-on-write mount"));
    assert_eq!(reasons(&done, "skipped"), want);
    assert!(!host.join("src/one").exists() && inner.join("new").exists());
    bundle.sh("ls /inner/new").expect(0);
    assert_sound(&env);
}

/// What the host mounts in its directory, and all that is in it, stays as it is, and so do the directories above it; the
/// rest is applied, and the base of the rest is on record.
#[test]
fn what_the_host_mounts_there_stays() {
    let env = Env::new();
    let host = project(&env);
    for dir in ["mnt/deep/point", "meta", "file"] {
        fs::create_dir_all(host.join(dir)).expect("mkdir");
    }
    fs::write(host.join("mnt/other"), "x").expect("write");
    fs::write(host.join("target"), "x").expect("write");
    let mut bundle = with_mounts(&env, &[(&host, "/work")], r#"{"/work": "cow"}"#);
    bundle.config["mounts"].as_array_mut().expect("mounts").last_mut().expect("a mount")["options"] =
        serde_json::json!(["bind"]);
    bundle.start();
    let id = bundle.id.as_str();
    let other = env.dir.join("other-file");
    fs::write(&other, "other").expect("write");
    let points = [host.join("mnt/deep/point"), host.join("meta"), host.join("file"), host.join("target")];
    let sh = |script: &str| {
        let args = points.iter().map(|point| point.as_os_str()).chain([other.as_os_str()]);
        crate::support::Cmd::new("sh").args(["-c", script, "sh"]).args(args).ok()
    };
    sh(
        "set -e; mount -t tmpfs none \"$1\"; echo in >\"$1/in\"; mount --bind \"$2\" \"$2\"; mount --bind \"$3\" \"$3\"; mount --bind \"$5\" \"$4\"",
    );
    let before = [walk(&points[0]), walk(&points[1]), walk(&points[2])];
    let script = "cd /work; rm -r mnt; chmod 700 meta; rm -r file; echo x >file; chmod 600 target; echo more >>src/one";
    bundle.sh(script).expect(0);
    let planned = env.run(["apply", id, "--json"]);
    let other_mode = other.metadata().expect("stat").mode() & 0o777;
    let after = [walk(&points[0]), walk(&points[1]), walk(&points[2])];
    sh("umount \"$1\" \"$2\" \"$3\" \"$4\"");
    let document: Value = serde_json::from_str(&planned.expect(0).stdout).expect("JSON");
    assert_eq!(steps(&document), ["delete /work/mnt/other", "replace /work/src/one"].map(String::from).into());
    let skipped = reasons(&document, "skipped");
    for (path, place) in
        [("mnt", "in it"), ("mnt/deep", "in it"), ("mnt/deep/point", "there"), ("meta", "there"), ("target", "there")]
    {
        let want = format!("/work/{path}: another filesystem is mounted {place} on the host");
        assert!(skipped.contains(&want), "{want}: {skipped:?}");
    }
    assert!(compare(&before[0], &after[0]).is_empty() && compare(&before[1], &after[1]).is_empty());
    assert!(compare(&before[2], &after[2]).is_empty());
    assert_eq!(other_mode, 0o644);
    // When they are gone, so is what was in the way.
    env.ok(["apply", id, "--force"]);
    assert!(compare(&seen(&bundle), &below("/work", walk(&host))).is_empty());
}

/// What the first process wrote is not applied, but for directories that committed files are in; what it deleted is no obstacle.
#[test]
fn the_first_processs_changes_are_its_own() {
    let env = Env::new();
    let host = project(&env);
    let mut bundle = bundle(&env, &host);
    let script = "cd /work; mkdir -p first/dir; echo first >first/file; echo first >>src/two; rm .git/HEAD; : >/dev/shm/go; sleep 99999";
    bundle.config["process"]["args"] = serde_json::json!(["sh", "-c", script]);
    bundle.start();
    crate::support::wait_until("go", std::time::Duration::from_secs(10), || bundle.sh("test -e /dev/shm/go").code == 0);
    bundle.sh("cd /work; echo exec >first/dir/exec; echo exec >>src/hard; rmdir .git").expect(0);
    let planned = env.json(["apply", &bundle.id, "--json"]);
    let want = [
        "create /work/first",
        "create /work/first/dir",
        "create /work/first/dir/exec",
        "delete /work/.git",
        "delete /work/.git/HEAD",
        "replace /work/src/hard",
    ];
    assert_eq!(steps(&planned), want.map(String::from).into());
    assert_eq!(fs::read_to_string(host.join("first/dir/exec")).expect("read"), "exec\n");
    assert_eq!(fs::read_to_string(host.join("src/two")).expect("read"), "two\n");
    assert!(!host.join("first/file").exists() && !host.join(".git").exists());
}

/// A run that was killed half-way: the next finishes, and what the first left beside its places goes.
#[test]
fn half_of_it_done() {
    let env = Env::new();
    let host = project(&env);
    let bundle = bundle(&env, &host);
    bundle.start();
    let id = bundle.id.as_str();
    bundle.sh("cd /work; for n in $(seq 300); do echo $n >n$n; done; mkdir -p a/b/c; echo x >a/b/c/x; rm -r src; ln -s x newlink").expect(0);
    for _ in 0..3 {
        let run = env.cmd(["apply", id]).spawn();
        std::thread::sleep(std::time::Duration::from_millis(60));
        run.signal(rustix::process::Signal::KILL);
        run.wait();
    }
    fs::write(host.join(".agentsbx-tmp-99999-1"), "half").expect("write");
    symlink("x", host.join(".agentsbx-tmp-99999-2")).expect("symlink");
    bundle.sh("echo one more >/work/one-more").expect(0);
    env.ok(["apply", id]);
    assert!(compare(&seen_without_litter(&bundle), &below("/work", walk(&host))).is_empty());
    assert_eq!(env.ok(["apply", id]), "0 applied");
    assert!(!Path::new(&host).join(".agentsbx-tmp-99999-1").exists());
}

fn seen_without_litter(bundle: &crate::support::bundle::Bundle<'_>) -> Tree {
    let mut tree = seen(bundle);
    tree.retain(|path, _| !String::from_utf8_lossy(path).contains(".agentsbx-tmp-"));
    tree
}

/// A history of more generations than there are descriptors: each had a layer opened, and from some hundreds on nothing
/// could be applied any more under the usual limit of 1024.
#[test]
fn a_long_history_is_applied_with_few_descriptors() {
    let env = Env::new();
    let host = project(&env);
    let bundle = bundle(&env, &host);
    bundle.start();
    for n in 0..220 {
        bundle.sh(&format!("echo {n} >/work/file{}", n % 50)).expect(0);
    }
    env.cmd(["apply", &bundle.id, "/work"]).in_shell("ulimit -n 200; exec \"$@\"").ok();
    assert_eq!(fs::read_to_string(host.join("file19")).expect("an applied file"), "219\n");
}
