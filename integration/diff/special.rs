//! What needs a container of its own: many files, user namespaces, histories that are merged, execs that overtake each
//! other, paths that are asked for.

use std::path::Path;
use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use serde_json::{Value, json};

use super::cases::all;
use super::session::{Session, bundle, play_here, view};
use super::truth::{check, same_after_commit, same_view};
use crate::support::walk::{Tree, bytes_of, walk};
use crate::support::{Cmd, Env, result};

fn lines(text: &str) -> Vec<String> {
    text.split('\n').map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// Many files, in one directory and in many: added, changed, deleted; each is told.
fn many(one: u32, spread: u32) {
    let env = Env::new();
    let bundle = bundle(&env, &lines("mkdir t\nmkdir t/one\nmkdir t/spread"));
    bundle.start();
    let make = |bytes: &str| lines(&format!("many t/one 1 {one} {bytes}\nmany t/spread {spread} 100 {bytes}"));
    for (what, lines) in [
        ("added", make("1")),
        ("same size", make("2")),
        ("other size", make("three")),
        ("deleted", lines("rmtree t/one\nrmtree t/spread")),
    ] {
        let mut session = Session::start(&bundle, &[]);
        let before = session.walk();
        session.play(&lines);
        let after = session.walk();
        let start = Instant::now();
        let told = session.end();
        println!("{what}: {:?}", start.elapsed());
        assert_eq!(result::disposition(&told), "committed", "{what}: {}", told["end"]);
        check(&told, &before, &after, false).unwrap_or_else(|why| panic!("{what}: {why}"));
        let head = result::head(&told);
        let diff = env.json(["diff", &bundle.id, &format!("{}..{head}", head - 1), "--recursive", "--json"]);
        check(&diff, &before, &after, true).unwrap_or_else(|why| panic!("{what}, diff: {why}"));
        same_after_commit(&view(&bundle), &before, &after).unwrap_or_else(|why| panic!("{what}, the view: {why}"));
    }
}

#[test]
fn many_files_are_told_one_by_one() {
    many(1_500, 15);
}

#[test]
#[ignore = "takes minutes"]
fn soak_two_hundred_thousand_files_are_told_one_by_one() {
    many(100_000, 1_000);
}

/// In a container with a user namespace the same is told, with the owners that the container sees.
#[test]
fn a_user_namespace_changes_nothing_but_who_is_who() {
    let env = Env::new();
    // Devices are the host's alone to make.
    let cases: Vec<_> = all().into_iter().filter(|case| !case.image.iter().any(|l| l.contains("240"))).collect();
    let image: Vec<String> = cases.iter().flat_map(|case| case.image.clone()).collect();
    let mut bundle = bundle(&env, &[vec!["mkdir t".to_owned()], image].concat());
    let map = json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
    bundle.config["linux"]["uidMappings"] = map.clone();
    bundle.config["linux"]["gidMappings"] = map;
    bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces").push(json!({"type": "user"}));
    Cmd::new("chown").args(["-hR", "100000:100000"]).arg(&bundle.rootfs).ok();
    bundle.start();
    for cases in cases.chunks(16) {
        let mut session = Session::start(&bundle, &[]);
        let before = session.walk();
        // What needs the host's root fails, and is left out.
        let possible = |line: &String| format!("?{}", line.trim_start_matches(['?', '!']));
        session.play(&cases.iter().flat_map(|case| &case.change).map(possible).collect::<Vec<_>>());
        let after = session.walk();
        let told = session.end();
        check(&told, &as_inside(&before), &as_inside(&after), false).unwrap_or_else(|why| panic!("{why}"));
        let shown = bundle.env.json(["diff", &bundle.id, "@-1..@", "--json"]);
        for change in shown["changes"].as_array().expect("changes") {
            assert!(change["uid"].as_u64() < Some(65536), "an id of the host: {change}");
        }
        same_after_commit(&view(&bundle), &before, &after).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// A tree with the owners that a container sees whose ids begin at 100,000 of the host's.
fn as_inside(tree: &Tree) -> Tree {
    let id = |host: u32| host.checked_sub(100_000).unwrap_or(65534);
    let mut tree = tree.clone();
    tree.values_mut().for_each(|entry| entry.owner = (id(entry.owner.0), id(entry.owner.1)));
    tree
}

/// A history so long that its layers are merged: every range of it is told, every generation is as it was.
#[test]
fn merged_layers_are_told_as_they_were() {
    let env = Env::new();
    let image = "mkdir t\nmkdir t/d\nput t/d/x old\nput t/f 1\nlink t/f t/g\nsymlink f t/l";
    let bundle = bundle(&env, &lines(image));
    bundle.start();
    let kinds = [
        "put t/d/N 1",
        "mkdir t/N",
        "rmtree t/d\nmkdir t/d\nput t/d/N x",
        "link t/f t/N",
        "append t/f x",
        "rm t/g\nput t/g N",
        "chmod t/d 700",
        "setx t/f user.n N",
        "?mv t/P t/N",
        "?rmtree t/P",
        "fifo t/N",
        "symlink N t/N",
        "chmod t/d 755",
    ];
    let keep = [0u64, 20, 40, 64, 65, 66, 80];
    let mut states = Vec::new();
    for n in 1..=80u64 {
        if keep.contains(&(n - 1)) {
            states.push((n - 1, view(&bundle)));
        }
        let script =
            kinds[n as usize % kinds.len()].replace('N', &n.to_string()).replace('P', &n.saturating_sub(4).to_string());
        let mut session = Session::start(&bundle, &[]);
        session.play(&lines(&format!("{script}\nput t/always {n}")));
        let told = session.end();
        assert_eq!(result::head(&told), n, "{script}: {}", told["end"]);
    }
    states.push((80, view(&bundle)));
    for (n, (from, before)) in states.iter().enumerate() {
        for (to, after) in &states[n + 1..] {
            let diff = env.json(["diff", &bundle.id, &format!("{from}..{to}"), "--recursive", "--json"]);
            check(&diff, before, after, true).unwrap_or_else(|why| panic!("{from}..{to}: {why}"));
        }
    }
    for (generation, state) in states.iter().rev().chain(&states) {
        env.ok(["rollback", &bundle.id, &generation.to_string()]);
        same_view(&view(&bundle), state).unwrap_or_else(|why| panic!("generation {generation}: {why}"));
    }
}

/// A new link to an old file keeps that file in the layer. Where somebody else changed the file meanwhile, what they
/// wrote is seen; where not, the two names are one file.
#[test]
fn a_link_to_an_old_file_does_not_revert_it() {
    let env = Env::new();
    for (theirs, shown, linked) in
        [("put t/f theirs", "theirs", false), ("put t/other theirs", "old", true), ("rm t/f", "gone", false)]
    {
        let bundle = bundle(&env, &lines("mkdir t\nput t/f old\nmkdir t/d\nput t/d/g old\nmkdir t/d/e"));
        bundle.start();
        let mut ours = Session::start(&bundle, &[]);
        let mut other = Session::start(&bundle, &[]);
        ours.play(&lines("link t/f t/link\nlink t/d/g t/d/e/link"));
        other.play(&lines(theirs));
        assert_eq!(result::disposition(&other.end()), "committed");
        assert_eq!(result::disposition(&ours.end()), "committed");
        assert_eq!(bundle.sh("cat /t/f 2>/dev/null || echo gone").stdout.trim(), shown);
        assert_eq!(bundle.sh("cat /t/link").stdout, "old");
        let tree = view(&bundle);
        let link = |path: &str| tree.get(path.as_bytes()).and_then(|entry| entry.link);
        assert_eq!(link("/t/f").is_some() && link("/t/f") == link("/t/link"), linked, "{theirs}");
        assert!(link("/t/d/g").is_some() && link("/t/d/g") == link("/t/d/e/link"), "{theirs}");
    }
}

/// `diff C PATH…`: what is there, what went with a directory above it, and their counts alone.
#[test]
fn paths_that_are_asked_for_are_told_and_counted() {
    let env = Env::new();
    let bundle = bundle(&env, &lines("mkdir t\nmkdir t/d\nmkdir t/d/e\nput t/d/e/x 1\nput t/d/e/y 22\nput t/f 1"));
    bundle.start();
    bundle.exec(["/bin/sh", "-c", "rm -r /t/d/e; echo more >>/t/f; echo new >/t/n; mv /t/f /t/g"]).expect(0);
    let told = |options: &[&str]| -> (Vec<String>, Value) {
        let text = env.cmd(["diff", &bundle.id]).args(options).arg("--json").ok();
        let diff: Value = serde_json::from_str(&text).expect("JSON");
        let path = |change: &Value| String::from_utf8(bytes_of(&change["path"]).expect("a path")).expect("UTF-8");
        (diff["changes"].as_array().expect("changes").iter().map(path).collect(), diff["summary"].clone())
    };
    for (options, paths, deleted, added) in [
        (&["/t/d"][..], &["/t/d/e"][..], 3, 0),
        (&["/t/d", "--recursive"], &["/t/d/e", "/t/d/e/x", "/t/d/e/y"], 3, 0),
        (&["/t/d/e/x"], &["/t/d/e/x"], 1, 0),
        (&["/t/n", "/t/d/e/y"], &["/t/d/e/y", "/t/n"], 1, 1),
        (&["/nowhere"], &[], 0, 0),
    ] {
        let (found, summary) = told(options);
        assert_eq!(found, paths, "{options:?}");
        assert_eq!(
            (&summary["deleted"], &summary["added"]),
            (&json!(deleted), &json!(added)),
            "{options:?}: {summary}"
        );
        assert_eq!(summary["modified"], 0, "{options:?}");
    }
    // Between a generation and itself there is nothing, in every form.
    for form in ["--patch", "--stat", "--name-only"] {
        let output = env.cmd(["diff", &bundle.id, "@..@", form]).run().expect(0);
        assert!(!output.stdout.contains("/t"), "{form}: {}", output.stdout);
    }
}

/// A tree too deep to be walked is told as that, and the layer is held; nothing else suffers.
#[test]
fn a_tree_without_end_is_held() {
    let env = Env::new();
    let bundle = bundle(&env, &lines("mkdir t"));
    bundle.start();
    let before = view(&bundle);
    let mut session = Session::start(&bundle, &[]);
    session.play(&lines("deep t 5000 1\nput t/f x"));
    let told = session.end();
    assert_eq!(result::disposition(&told), "aborted", "{}", told["end"]);
    assert!(told["end"]["message"].as_str().is_some_and(|text| text.contains("4096")), "{}", told["end"]);
    same_view(&view(&bundle), &before).unwrap_or_else(|why| panic!("{why}"));
    env.ok(["discard", &bundle.id, result::exec(&told)]);
    bundle.exec(["/bin/sh", "-c", "echo x >/t/f"]).expect(0);
    env.ok(["gc"]);
}

/// A root filesystem that has what an older layer would mark: devices 0:0, marks of either namespace. The container
/// sees of it what an overlay shows, and so does the diff.
#[test]
fn an_image_with_marks_is_what_an_overlay_shows_of_it() {
    let env = Env::new();
    let bundle =
        bundle(&env, &lines("mkdir t\nmkdir t/d\nput t/d/x 1\nmkdir t/e\nput t/e/y 1\nput t/f 1\nput t/w\nmkdir t/u"));
    let at = |name: &str| bundle.rootfs.join("t").join(name);
    let mark = |path: &Path, name: &str, value: &str| {
        setxattr(path, name, value.as_bytes(), XattrFlags::empty()).expect("setxattr");
    };
    mknodat(CWD, at("d/gone"), FileType::CharacterDevice, Mode::empty(), 0).expect("mknod");
    mknodat(CWD, at("none"), FileType::CharacterDevice, Mode::empty(), 0).expect("mknod");
    mark(&at("e"), "trusted.overlay.opaque", "y");
    mark(&at("u"), "user.overlay.opaque", "y");
    mark(&at("f"), "trusted.overlay.origin", "");
    mark(&at("w"), "user.overlay.whiteout", "y");
    bundle.start();
    for script in [
        "put t/d/new 1\nput t/e/new 1\nappend t/f x",
        "put t/none 1\nput t/d/gone 1",
        "rmtree t/e\nmkdir t/e\nrmx t/u user.overlay.opaque",
        "rm t/none\nrmtree t/d\nappend t/w x",
    ] {
        let mut session = Session::start(&bundle, &[]);
        let before = session.walk();
        session.play(&lines(script));
        let after = session.walk();
        let told = session.end();
        check(&told, &before, &after, false).unwrap_or_else(|why| panic!("{script}: {why}"));
        same_after_commit(&view(&bundle), &before, &after).unwrap_or_else(|why| panic!("{script}: {why}"));
    }
}

/// The player does on a directory of the host what it does in a container.
#[test]
fn the_player_plays() {
    let dir = tempfile::tempdir().expect("tempdir");
    play_here(dir.path(), &lines("mkdir a%20b\nput a%20b/%ff hello\n!mkdir a%20b\n?rm none\nlink a%20b/%ff l"));
    let tree = walk(dir.path());
    assert_eq!(tree[&b"/a b/\xff"[..]].size, Some(5));
    assert!(tree[&b"/l"[..]].link.is_some() && tree.len() == 4, "{tree:?}");
}
