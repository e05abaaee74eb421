//! Layers made by somebody who knows overlayfs: forged marks, hostile names, and what they do to those who look.

use std::fs;

use super::host::Canary;
use super::lab::{Asks, Place, at, hostile, outcomes, serving, strict};

/// Marks of overlayfs' own (opaque, redirect, metacopy, whiteout) that an exec sets: those that the kernel would heed are
/// refused, those that it keeps mean nothing to anybody.
#[test]
fn forged_marks_of_overlayfs_mean_nothing() {
    let env = strict();
    let canary = Canary::new(&env);
    for asks in [Asks::Usual, Asks::Everything] {
        let bundle = hostile(&env, asks, ["/attack", "serve"]);
        fs::create_dir_all(bundle.rootfs.join("d/sub")).expect("mkdir");
        fs::write(bundle.rootfs.join("d/file"), "below\n").expect("write");
        fs::write(bundle.rootfs.join("d/other"), "below\n").expect("write");
        fs::write(bundle.rootfs.join("d/passwd"), "below\n").expect("write");
        bundle.start();
        let target = canary.dir.display().to_string();
        for (place, dir) in [(Place::Exec, "/d"), (Place::Shared, "/d"), (Place::First, "/d/sub")] {
            let file = if place == Place::First { "/d/other" } else { "/d/file" };
            let output = at(place, &bundle, &["forge", dir, file, &target]);
            let got = outcomes(&output.stdout);
            assert!(got.len() >= 18, "{}", output.both());
            for (name, outcome) in &got {
                if name.contains("trusted.") {
                    assert!(["EPERM", "EOPNOTSUPP"].contains(&outcome.as_str()), "{place:?} {name}: {outcome}");
                }
                if name.starts_with("mknod-whiteout") && name != "mknod-whiteout-aufs" && place != Place::First {
                    assert!(
                        ["EPERM", "EACCES", "EIO"].contains(&outcome.as_str())
                            || outcome == "ok" && place == Place::Shared,
                        "{place:?} {name}: {outcome}"
                    );
                }
            }
            assert!(
                got.iter().any(|(name, outcome)| name.starts_with("user.") && outcome == "ok"),
                "{place:?}: {got:?}"
            );
        }
        // Nothing is hidden, nothing redirected, for a later exec as for the first process.
        let script = "ls /d; cat /d/file /d/other /d/passwd; ls /d/sub";
        for options in [&[] as &[&str], &["--layer", "shared"]] {
            let seen = env.cmd(["exec"]).args(options).args([&bundle.id, "sh", "-c", script]).run().stdout;
            assert_eq!(seen.matches("below").count(), 3, "{options:?}: {seen}");
            for name in ["file", "other", "passwd", "sub", ".wh.passwd"] {
                assert!(name == ".wh.passwd" || seen.lines().any(|line| line == name), "{options:?}: {name}: {seen}");
            }
        }
        // And no diff takes them for deletions.
        let diff = env.ok(["diff", &bundle.id, "--json", "--recursive"]);
        assert!(!diff.contains("\"deleted\",") && !diff.contains("\"kind\":\"deleted\""), "{diff}");
        canary.assert_untouched(&[&diff, &env.ok(["diff", &bundle.id, "--patch"])]);
    }
}

/// What a terminal would take for orders, in names and arguments, is never printed as it is.
#[test]
fn names_cannot_give_orders_to_a_terminal() {
    let env = strict();
    let bundle = serving(&env, Asks::Usual);
    let orders =
        ["\x1b]0;owned\x07", "\x1b[2J\x1b[1;1H", "a\r\x1b[Kb", "\u{9b}31m", "new\nline", "\u{202e}txt.exe", "\x08\x08"];
    for order in orders {
        let script = "mkdir -p \"/dir$1\"; echo \"$1\" >\"/file$1\"; echo \"$1\" >\"/dir$1/x$1\"; ln -s \"$1\" \"/link$1\"; rm -rf \"/dir$1/x$1\"";
        env.cmd(["exec", &bundle.id, "sh", "-c", script, order, order]).run().expect(0);
        let failed = env.cmd(["exec", &bundle.id, order]).run();
        assert_eq!(failed.code, 255);
        let log = failed.both();
        assert!(!log.contains('\x1b') && !log.contains('\u{9b}'), "{log:?}");
    }
    let show = bundle.show()["exec"].as_str().expect("an exec").to_owned();
    let views: &[&[&str]] = &[
        &["log", &bundle.id],
        &["show", &bundle.id],
        &["show", &bundle.id, &show],
        &["diff", &bundle.id],
        &["diff", &bundle.id, "--stat"],
        &["diff", &bundle.id, "--name-only"],
        &["diff", &bundle.id, "--json"],
        &["ps", &bundle.id],
    ];
    for view in views {
        for terminal in [false, true] {
            let cmd = env.cmd(view.iter());
            let text = if terminal { cmd.on_terminal() } else { cmd }.run().ok();
            let text = text.replace("\r\n", "\n");
            // JSON is for programs: other than the control characters of ASCII everything is as it is.
            let shown = if view.contains(&"--json") { 6 } else { 8 };
            let harms = ["\x1b]", "\x1b[2J", "\x1b[1;1H", "\r", "\x07", "\x08", "\u{9b}", "\u{202e}"];
            for harm in &harms[..shown] {
                assert!(!text.contains(*harm), "{view:?}, terminal {terminal}: {harm:?} in {text:?}");
            }
        }
    }
}

/// Arguments and an environment as large as the kernel takes, or larger: an answer, and the runtime lives.
#[test]
fn huge_arguments_are_answered() {
    let env = strict();
    let bundle = serving(&env, Asks::Usual);
    let process = |args: serde_json::Value, list: serde_json::Value| {
        let file = env.dir.join("process.json");
        let text = serde_json::json!({"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": args, "env": list});
        fs::write(&file, text.to_string()).expect("write");
        env.cmd(["exec", "--process"]).arg(&file).arg(&bundle.id).run()
    };
    let path = "PATH=/bin".to_owned();
    let many: Vec<String> = (0..100_000).map(|n| format!("V{n}=x")).chain([path.clone()]).collect();
    process(serde_json::json!(["true"]), serde_json::json!(many)).expect(0);
    let long = "x".repeat(8 << 20);
    assert_eq!(process(serde_json::json!(["true", long]), serde_json::json!([path])).code, 255);
    assert_eq!(process(serde_json::json!(["true"]), serde_json::json!([path, format!("V={long}")])).code, 255);
    let words: Vec<&str> = std::iter::once("true").chain(std::iter::repeat_n("x", 2_000_000)).collect();
    assert_eq!(process(serde_json::json!(words), serde_json::json!([path])).code, 255);
    assert_eq!(bundle.sh("echo fine").ok(), "fine");
    assert!(env.ok(["log", &bundle.id]).len() < 100_000);
}

/// So many layers that the runtime merges them, in which a directory and a link out of the container take turns in one
/// place, with files written below: nothing is written through a link, and what is seen is what the last exec made.
#[test]
fn merging_layers_follows_no_link() {
    let env = strict();
    let canary = Canary::new(&env);
    let bundle = hostile(&env, Asks::Usual, ["/attack", "serve"]);
    fs::create_dir_all(bundle.rootfs.join("d/sub")).expect("mkdir");
    bundle.start();
    let host = canary.dir.display();
    let up = format!("../../../../../../../../../../..{host}");
    for round in 0..40 {
        let script = match round % 4 {
            0 => format!("rm -rf /d && ln -s {host} /d"),
            1 => format!(
                "rm -rf /d && mkdir -p /d/sub && echo {round} >/d/{0} && echo {round} >/d/sub/file",
                canary.name
            ),
            2 => format!("rm -rf /d/sub && ln -s {host}/sub /d/sub; ln -sfn {up} /e"),
            _ => format!(
                "rm -rf /d/sub /e && mkdir -p /d/sub /e/sub && echo {round} >/d/sub/file && echo x >/e/{}",
                canary.name
            ),
        };
        bundle.sh(&script).expect(0);
    }
    canary.assert_untouched(&[&env.ok(["diff", &bundle.id, "--patch"])]);
    assert_eq!(bundle.sh(&format!("cat /d/sub/file /d/{0} /e/{0}", canary.name)).ok(), "39\n37\nx");
    env.ok(["rollback", &bundle.id, "37"]);
    // Of the 37th generation: the link is there, as a link.
    assert_eq!(bundle.sh("readlink /d").ok(), host.to_string());
    env.ok(["gc"]);
    env.ok(["rollback", &bundle.id, "0"]);
    assert_eq!(bundle.sh("ls -A /d/sub").ok(), "");
    canary.assert_untouched(&[]);
}
