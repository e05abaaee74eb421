//! Layers under Docker: what becomes of an exec's writes, and that every other Docker command sees HEAD.

use std::fs;
use std::time::Duration;

use crate::support::docker::Container;
use crate::support::engines::engines;
use crate::support::walk::assert_same;
use crate::support::{result, wait_until};

/// The next exec sees what the last one left, and the diff says exactly what a walk of the whole tree shows.
#[test]
fn committed_changes_are_seen_and_told() {
    let container = Container::idle([]);
    let before = container.walk();
    container
        .sh("echo new >/root/new; echo more >>/etc/passwd; chmod 600 /etc/group; rm /bin/vi; mkdir -p /a/b; \
             mv /bin/wc /bin/count; ln -s /x /link; rm -r /home; echo file >/home; mkfifo /fifo; cp -a /bin/ls /bin/dir2")
        .expect(0);
    assert_eq!(container.sh("cat /root/new; cat /home; ls -d /a/b").ok(), "new\nfile\n/a/b");
    let after = container.walk();
    assert_same(&container.diff([]), &before, &after);
    container.sh("echo again >/root/new; rm -r /a; mv /link /link2").expect(0);
    assert_same(&container.diff([]), &before, &container.walk());
    // From one generation to the next.
    assert_same(&container.diff(["1..2"]), &after, &container.walk());
}

/// A rollback shows the older state at once, can be undone, and 0 is the image.
#[test]
fn rollback_goes_anywhere_and_back() {
    let container = Container::idle([]);
    let image = container.walk();
    container.sh("echo 1 >/n; rm -r /home").expect(0);
    container.sh("echo 2 >/n; mkdir /home; echo h >/home/h").expect(0);
    container.sh("rm /n; chmod 700 /home").expect(0);
    let seen = || container.sh("cat /n 2>/dev/null; ls -ld /home /home/h 2>/dev/null | cut -c1-10").stdout;
    let third = seen();
    for (to, expected) in [("2", "2\ndrwxr-xr-x\n-rw-r--r--\n"), ("1", "1\n"), ("3", third.as_str())] {
        container.agentsbx("rollback", [to]).ok();
        assert_eq!(seen(), expected, "rollback {to}");
    }
    container.agentsbx("rollback", ["@-2"]).ok();
    assert_eq!(seen(), "1\n");
    container.agentsbx("rollback", ["0"]).ok();
    assert_same(&serde_json::json!({"changes": []}), &image, &container.walk());
    assert_eq!(container.diff([])["changes"], serde_json::json!([]));
}

/// `discard` leaves nothing, not even for the exec that comes next.
#[test]
fn discard_leaves_nothing() {
    let container = Container::idle([]);
    let before = container.walk();
    let output = container.sh_layer("discard", "echo x >/file; rm -r /bin; echo still running").expect(0);
    assert_eq!(output.stdout, "still running\n");
    let result = container.show();
    assert_eq!(result::disposition(&result), "discarded");
    assert!(result["changes"].to_string().contains("/file"), "{result}");
    assert_same(&serde_json::json!({"changes": []}), &before, &container.walk());
    container.sh("ls /file").expect(1);
}

/// A held layer is seen by nobody until it is committed; then by everybody.
#[test]
fn hold_is_invisible_until_commit() {
    let container = Container::idle([]);
    container.sh_layer("hold", "echo held >/held").expect(0);
    let result = container.show();
    assert_eq!(result::disposition(&result), "held");
    container.sh("ls /held").expect(1);
    assert!(!container.merged().join("held").exists());
    container.agentsbx("commit", [result::exec(&result)]).ok();
    assert_eq!(container.sh("cat /held").ok(), "held");
}

/// A held layer that is discarded is gone, and cannot be committed any more.
#[test]
fn a_held_layer_can_be_discarded() {
    let container = Container::idle([]);
    container.sh_layer("hold", "echo held >/held").expect(0);
    let exec = result::exec(&container.show()).to_owned();
    container.agentsbx("discard", [&exec]).ok();
    container.agentsbx("commit", [&exec]).run().expect(1);
    container.sh("ls /held").expect(1);
}

/// `commit-on-success` keeps what a command that succeeded did, and drops a failed one.
#[test]
fn commit_on_success_drops_failures() {
    let container = Container::idle([]);
    container.sh_layer("commit-on-success", "echo bad >/bad; exit 3").expect(3);
    assert_eq!(result::disposition(&container.show()), "discarded");
    container.sh_layer("commit-on-success", "echo good >/good").expect(0);
    assert_eq!(result::disposition(&container.show()), "committed");
    container.sh_layer("commit-on-success", "echo bad >/bad; kill -9 $$").expect(137);
    assert_eq!(container.sh("ls /good /bad 2>/dev/null").stdout, "/good\n");
}

/// An exec that changes nothing makes no generation.
#[test]
fn an_exec_that_changes_nothing_is_empty() {
    let container = Container::idle([]);
    container.sh("echo x >/x").expect(0);
    container.sh("cat /x; echo y >/y; rm /y").expect(0);
    let result = container.show();
    assert_eq!(result::disposition(&result), "empty");
    assert_eq!(result::head(&result), 1);
}

/// Twenty execs at a time that write twenty different files all commit, and no file is lost.
#[test]
fn parallel_execs_that_touch_different_files_all_commit() {
    let container = Container::idle(["--tmpfs", "/sync"]);
    let children: Vec<_> = (0..20)
        .map(|n| {
            // They wait for one another, so that all twenty start from the same generation.
            let script = format!(
                "touch /sync/{n}; while [ $(ls /sync | wc -l) -lt 20 ]; do sleep 0.05; done; echo {n} >/file{n}"
            );
            container.exec_with([], &["sh", "-c", &script]).spawn()
        })
        .collect();
    for child in children {
        child.wait().expect(0);
    }
    let found = container.sh("for n in $(seq 0 19); do cat /file$n; done").ok();
    assert_eq!(found, (0..20).map(|n| n.to_string()).collect::<Vec<_>>().join("\n"));
    let results: Vec<_> =
        container.results().into_iter().filter(|r| r["args"].to_string().contains("/sync/")).collect();
    assert_eq!(results.len(), 20);
    assert!(results.iter().all(|r| result::disposition(r) == "committed"), "{results:#?}");
    let mut heads: Vec<_> = results.iter().map(result::head).collect();
    heads.sort_unstable();
    assert_eq!(heads, (1..=20).collect::<Vec<_>>());
}

/// Two execs that write the same file: one commits, the other is a conflict that names the path and is held; forcing
/// it lets the later one win.
#[test]
fn a_lost_update_is_refused() {
    let container = Container::idle(["--tmpfs", "/sync"]);
    let children: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let script = format!(
                "touch /sync/{name}; while [ $(ls /sync | wc -l) -lt 2 ]; do sleep 0.05; done; \
                 echo {name} >/same; echo {name} >/own-{name}"
            );
            container.exec_with([], &["sh", "-c", &script]).spawn()
        })
        .collect();
    for child in children {
        child.wait().expect(0);
    }
    let results = container.results();
    let of =
        |disposition: &str| -> Vec<_> { results.iter().filter(|r| result::disposition(r) == disposition).collect() };
    let (committed, conflict) = (of("committed"), of("conflict"));
    assert_eq!((committed.len(), conflict.len()), (1, 1), "{results:#?}");
    let named = result::conflicts(conflict[0]);
    assert!(named.contains("/same") && !named.contains("/own-"), "{named}");
    let winner = container.sh("cat /same").ok();
    assert!(committed[0]["args"].to_string().contains(&format!("own-{winner}")), "{winner} {committed:?}");
    assert_eq!(container.sh("ls / | grep own").ok(), format!("own-{winner}"));
    let loser = if winner == "a" { "b" } else { "a" };
    let refused = container.agentsbx("commit", [result::exec(conflict[0])]).run().expect(1);
    assert!(refused.stderr.contains("/same"), "{}", refused.stderr);
    container.agentsbx("commit", [result::exec(conflict[0]), "--force"]).ok();
    assert_eq!(container.sh("cat /same; ls / | grep own").ok(), format!("{loser}\nown-a\nown-b"));
}

/// A long exec never sees what others commit meanwhile, and its own commit does not undo theirs.
#[test]
fn a_running_exec_sees_no_commit_of_others() {
    let container = Container::idle(["--tmpfs", "/sync"]);
    let script = "touch /sync/started; while [ ! -e /sync/go ]; do sleep 0.05; done; \
                  ls /new /etc/passwd 2>/dev/null; wc -l </etc/passwd; echo mine >/mine";
    let long = container.exec_with([], &["sh", "-c", script]).spawn();
    wait_until("the long exec", Duration::from_secs(20), || {
        container.sh_layer("discard", "ls /sync/started").code == 0
    });
    container.sh("echo new >/new; echo line >>/etc/passwd; rm /bin/vi").expect(0);
    assert_eq!(container.sh("cat /new").ok(), "new");
    container.sh_layer("discard", "touch /sync/go").expect(0);
    let output = long.wait().expect(0);
    assert_eq!(output.stdout, "/etc/passwd\n2\n");
    assert_eq!(
        container.sh("cat /new /mine; wc -l </etc/passwd; ls /bin/vi 2>&1 | grep -c such").ok(),
        "new\nmine\n3\n1"
    );
}

/// `reset` ends every exec and gives the clean image back.
#[test]
fn reset_is_a_clean_container() {
    let container = Container::idle([]);
    let before = container.walk();
    container.sh("echo x >/x; rm -r /home").expect(0);
    let exec = container.exec_with([], &["sleep", "100002"]).spawn();
    wait_until("the exec", Duration::from_secs(10), || container.verb(["top"]).run().stdout.contains("100002"));
    container.agentsbx("reset", []).ok();
    assert_eq!(exec.wait().code, 137);
    assert!(!container.verb(["top"]).ok().contains("100002"));
    assert_same(&serde_json::json!({"changes": []}), &before, &container.walk());
    container.sh("ls /x").expect(1);
}

/// Two containers of one image know nothing of one another's layers.
#[test]
fn containers_are_apart() {
    let (one, two) = (Container::idle([]), Container::idle([]));
    one.sh("echo one >/one").expect(0);
    two.sh("ls /one").expect(1);
    two.sh("echo two >/two").expect(0);
    assert_eq!(result::head(&two.show()), 1);
    one.sh("ls /two").expect(1);
}

/// When a container is removed, nothing of it is left in the store but its log.
#[test]
fn a_removed_container_leaves_no_layers() {
    let container = Container::idle([]);
    let marker = "marker-of-a-removed-container";
    container.sh(&format!("echo x >/{marker}")).expect(0);
    container.sh_layer("hold", &format!("echo x >/{marker}-held")).expect(0);
    let find = || {
        let layers = engines().store.join("layers");
        crate::support::Cmd::new("find").arg(layers).args(["-name", &format!("{marker}*")]).run().stdout
    };
    assert_eq!(find().lines().count(), 2);
    container.verb(["rm", "--force"]).ok();
    assert_eq!(find(), "");
}

/// A health check every second is an exec like any other, and leaves the container at its generation.
#[test]
fn health_checks_make_no_generation() {
    let options = ["--health-cmd", "test -e /bin/sh", "--health-interval", "1s", "--health-start-period", "0s"];
    let container = Container::idle(options);
    container.sh("echo x >/x").expect(0);
    wait_until("a healthy container", Duration::from_secs(30), || {
        container.inspect("{{.State.Health.Status}}") == "healthy"
    });
    std::thread::sleep(Duration::from_secs(3));
    container.sh("echo y >/y").expect(0);
    let written: Vec<_> = container.results().into_iter().filter(|r| result::disposition(r) == "committed").collect();
    assert_eq!(written.iter().map(result::head).collect::<Vec<_>>(), [1, 2], "{written:#?}");
    let log = container.verb(["inspect", "--format", "{{json .State.Health.Log}}"]).ok();
    assert!(!log.contains("\"ExitCode\":1"), "{log}");
}

/// A user without root works in its layer as in the image: its own files are its own, others' are not to be written.
#[test]
fn a_user_without_root_works_in_its_layer() {
    let container = Container::idle(["--user", "user"]);
    let before = container.walk();
    container.sh("cd; echo mine >file; mkdir dir; chmod 700 dir; echo x >/tmp/x").expect(0);
    container.sh("echo x >/etc/passwd").expect(1);
    container.sh("rm -f /bin/vi").expect(1);
    let result = container.results().into_iter().find(|r| r["args"].to_string().contains("mine")).expect("a result");
    assert_eq!(result["user"], serde_json::json!({"uid": 1000, "gid": 1000}), "{result}");
    assert_eq!(container.sh("stat -c '%U %a' /home/user/file /home/user/dir").ok(), "user 644\nuser 700");
    assert_same(&container.diff([]), &before, &container.walk());
    container.agentsbx("rollback", ["0"]).ok();
    container.sh("ls /home/user/file").expect(1);
}

/// A `shared` exec runs in the first process' own view: what it writes is there at once, and is no generation.
#[test]
fn a_shared_exec_has_no_layer() {
    let container = Container::idle([]);
    let file = container.merged().join("at-once");
    let script = "echo x >/at-once; while [ -e /at-once ]; do sleep 0.05; done";
    let exec = container.exec_with(["-e", "AGENTSBX_LAYER=shared"], &["sh", "-c", script]).spawn();
    wait_until("the file", Duration::from_secs(10), || file.exists());
    fs::remove_file(&file).expect("unlink");
    exec.wait().expect(0);
    let result = container.show();
    assert_eq!(result::disposition(&result), "shared");
    assert_eq!(result::head(&result), 0);
}
