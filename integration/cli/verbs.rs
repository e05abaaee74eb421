//! agentsbx's own verbs: what they print, and how they refuse.

use std::time::Duration;

use crate::support::bundle::Bundle;
use crate::support::{Cmd, Env, result, wait_until};

/// `diff` in all its forms says the same.
#[test]
fn diff_has_many_forms() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let id = bundle.id.as_str();
    bundle.sh("echo new >/new; sed -i s/user/agent/ /etc/passwd; rm /bin/vi").expect(0);
    let names = env.ok(["diff", id, "--name-only"]);
    assert_eq!(names.lines().collect::<Vec<_>>(), ["/bin/vi", "/etc/passwd", "/new"]);
    let plain = env.ok(["diff", id]);
    for path in ["/bin/vi", "/etc/passwd", "/new"] {
        assert!(plain.contains(path), "{path} not in {plain}");
    }
    let patch = env.ok(["diff", id, "--patch"]);
    for line in ["-user:x:1000:1000:user:/home/user:/bin/sh", "+agent:x:1000:1000:user:/home/user:/bin/sh", "+new"] {
        assert!(patch.lines().any(|l| l == line), "{line} not in {patch}");
    }
    assert!(!env.ok(["diff", id, "--stat"]).is_empty());
    let limited = env.ok(["diff", id, "--name-only", "/etc"]);
    assert_eq!(limited, "/etc/passwd");
    bundle.sh("rm /new").expect(0);
    assert!(!env.ok(["diff", id, "--name-only"]).contains("/new"));
    assert_eq!(env.ok(["diff", id, "1..2", "--name-only"]), "/new");
    assert_eq!(env.ok(["diff", id, "@-1..@", "--name-only"]), "/new");
    assert_eq!(env.ok(["diff", id, "2", "--name-only"]), "");
    assert_eq!(env.json(["diff", id, "--json"])["summary"]["deleted"], 1);
}

/// A container is found by a unique prefix of its id, whatever runtime root it was made with.
#[test]
fn containers_are_found_by_prefix_and_whatever_root() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("echo x >/x").expect(0);
    let prefix = &bundle.id[..bundle.id.len() - 1];
    assert_eq!(env.json(["show", prefix, "--json"])["container"], bundle.id.as_str());
    let elsewhere = crate::support::Cmd::new(crate::support::env::binary());
    let output = elsewhere.arg("--store").arg(&env.store).args(["show", &bundle.id, "--json"]).run().expect(0);
    assert!(output.stdout.contains(&bundle.id));
}

/// What does not exist, or cannot be, is refused with code 1 and a message that names it.
#[test]
fn an_option_behind_its_verb_is_told_where_it_belongs() {
    let env = Env::new();
    for (told, option) in [
        (env.run(["log", "--store", "/x"]).expect(1), "--store"),
        (env.run(["exec", "--root=/x", "c", "true"]).expect(255), "--root"),
    ] {
        assert!(told.stderr.contains(&format!("{option} comes before the verb")), "{}", told.stderr);
    }
}

/// What is missing, or too much, is told with what to write.
#[test]
fn a_line_that_is_no_command_is_told_what_to_write() {
    let env = Env::new();
    for (line, wanted) in [
        (
            &["config"][..],
            "config wants a verb of its own: `agentsbx config show` shows what is in force, and where it comes from",
        ),
        (&["log", "c", "e1"], "log takes no exec: `agentsbx show c e1` shows what one did"),
        (&["log", "c", "e1", "e2"], "unexpected argument 'e2' found"),
    ] {
        let told = env.cmd(line).run().expect(1);
        assert!(told.stderr.contains(&format!("msg=\"{wanted}\"")), "{line:?}: {}", told.stderr);
    }
}

/// By the name that its caller gave, to be typed again: the beginning of its id.
#[test]
fn hints_name_the_container() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    for n in [1, 2] {
        bundle.sh(&format!("echo {n} >/x{n}")).expect(0);
    }
    let name = &bundle.id[..bundle.id.len() - 1];
    for (line, wanted) in [
        (
            &["rollback", name, "77"][..],
            format!("generation 77 not found: `agentsbx log {name}` shows the generations there are"),
        ),
        (&["show", name, "zzz"], format!("`agentsbx log {name}` shows the execs there are")),
        (&["commit", name, "zzz"], format!("`agentsbx log {name}` shows the execs there are")),
        (&["discard", name, "zzz"], format!("`agentsbx log {name}` shows the execs there are")),
        (&["diff", name, "zzz"], format!("as `agentsbx log {name}` shows them")),
        (&["diff", name, "2..1"], format!("`agentsbx diff {name} 1..2` shows what changed in between")),
        (&["diff", name, "77"], format!("`agentsbx log {name}` shows the generations there are")),
    ] {
        let told = env.cmd(line).run().expect(1).stderr;
        assert!(told.contains(&wanted) && !told.contains("CONTAINER"), "{line:?}: {told}");
    }
}

#[test]
fn refusals_name_their_object() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let id = bundle.id.as_str();
    bundle.sh("echo x >/x").expect(0);
    let committed = result::exec(&bundle.show()).to_owned();
    let refused = |args: &[&str], word: &str| {
        let output = env.cmd(args).run().expect(1);
        assert_eq!(output.stdout, "", "{args:?}");
        assert!(output.stderr.contains(word) && !output.stderr.contains("panicked"), "{args:?}: {}", output.stderr);
    };
    refused(&["show", "no-such-container"], "no-such-container");
    refused(&["diff", "no-such-container"], "no-such-container");
    refused(&["rollback", id, "99"], "99");
    refused(&["rollback", id, "@-9"], "@-9");
    refused(&["rollback", id, "not-a-number"], "not-a-number");
    refused(&["show", id, "01JDVW3K6Q8ZJ4M2T9X5R7C1AB"], "01JDVW3K6Q8ZJ4M2T9X5R7C1AB");
    refused(&["commit", id, &committed], &committed);
    refused(&["discard", id, &committed], &committed);
}

/// `show` prints for people what `--json` says to programs.
#[test]
fn show_is_for_people_too() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("echo x >/shown; exit 3").expect(3);
    let text = env.ok(["show", &bundle.id]);
    for word in ["/shown", "committed", "3"] {
        assert!(text.contains(word), "{word} not in {text}");
    }
    // Not on a terminal: no colours.
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

/// The version is what engines parse; help knows every verb.
#[test]
fn version_and_help() {
    let env = Env::new();
    let version = env.ok(["--version"]);
    assert!(version.starts_with(&format!("agentsbx version {}\n", env!("CARGO_PKG_VERSION"))), "{version}");
    assert!(version.contains("\nspec: 1."), "{version}");
    let help = env.ok(["--help"]);
    for verb in ["create", "exec", "log", "show", "diff", "commit", "discard", "rollback", "reset", "recover"] {
        assert!(help.contains(verb), "{verb} not in {help}");
    }
}

/// `state` and the bundle's config.json carry the generation and the last result; the engine's own spec is kept beside.
#[test]
fn state_carries_generation_and_diff() {
    let env = Env::new();
    let bundle = Bundle::new(&env, ["sleep", "100000"]).annotate("org.example.mine", "kept");
    bundle.start();
    let annotations = || (bundle.read()["annotations"].clone(), bundle.state()["annotations"].clone());
    let (config, state) = annotations();
    assert_eq!((&config["dev.agentsbx.generation"], &state["dev.agentsbx.generation"]), (&"0".into(), &"0".into()));
    bundle.sh("echo x >/x").expect(0);
    let (config, state) = annotations();
    for annotations in [&config, &state] {
        assert_eq!(annotations["dev.agentsbx.generation"], "1");
        assert_eq!(annotations["org.example.mine"], "kept");
        let diff: serde_json::Value =
            serde_json::from_str(annotations["dev.agentsbx.diff"].as_str().expect("a diff")).expect("JSON");
        assert_eq!(diff, bundle.show());
    }
    let engine = std::fs::read_to_string(bundle.dir.join("config.engine.json")).expect("read config.engine.json");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&engine).expect("JSON"), bundle.config);
}

/// A store that does not exist yet is made once, however many commands need it at the same time.
#[test]
fn a_new_store_can_be_made_by_many_at_once() {
    for _ in 0..2 {
        let env = Env::new();
        let bundles: Vec<_> = (0..8).map(|_| Bundle::new(&env, ["sleep", "100000"])).collect();
        let create = |bundle: &Bundle<'_>| {
            bundle.write();
            let create = env.cmd(["create", "--bundle"]).arg(&bundle.dir).arg(&bundle.id);
            create.output_to(bundle.dir.join("out")).spawn()
        };
        let commands: Vec<_> = bundles.iter().map(create).collect();
        for command in commands {
            command.wait().expect(0);
        }
        assert_eq!(env.ok(["log"]).lines().count(), 1 + bundles.len());
    }
}

/// A mistyped `--store` is an error that names it, and no new store.
#[test]
fn only_making_a_container_makes_a_store() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let typo = env.dir.join("stroe");
    let empty = env.dir.join("empty");
    std::fs::create_dir(&empty).expect("make a directory");
    let verbs: [(&[&str], i32); 10] = [
        (&["log"], 1),
        (&["log", "c"], 1),
        (&["show", "c"], 1),
        (&["diff", "c"], 1),
        (&["commit", "c", "x"], 1),
        (&["rollback", "c", "0"], 1),
        (&["reset", "c"], 1),
        (&["gc"], 1),
        (&["recover"], 1),
        (&["exec", &bundle.id, "true"], 255),
    ];
    for (args, code) in verbs {
        for store in [&typo, &empty] {
            let refused = env.cmd(["--store"]).arg(store).args(args).run().expect(code);
            let path = store.to_str().expect("text");
            assert!(
                refused.stderr.contains(path) && refused.stderr.contains("--store"),
                "{args:?}: {}",
                refused.stderr
            );
        }
    }
    assert!(!typo.exists());
    assert!(std::fs::read_dir(&empty).expect("list").next().is_none());
}

/// Whoever gives an engine's name for a container is told how to come by the id.
#[test]
fn a_name_that_is_no_id_is_answered_with_the_way_to_the_id() {
    let env = Env::new();
    let _bundle = Bundle::running(&env);
    let refused = env.run(["show", "webserver"]).expect(1);
    for list in ["agentsbx log", "docker ps", "podman ps", "nerdctl ps", "crictl ps", "ctr has ids alone"] {
        assert!(refused.stderr.contains(list), "{list}: {}", refused.stderr);
    }
}

/// Engines have runtime roots of their own. Without `--root` the verbs of a running container find one by its history: by its
/// whole id, or the twelve digits that Docker prints, and no less, since what they find they change.
#[test]
fn a_container_of_an_engine_is_found_without_its_root() {
    let env = Env::new();
    let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
    bundle.id = format!("{:016x}{:048x}", std::process::id(), 7);
    bundle.start();
    let cmd = |args: &[&str]| {
        let cmd = Cmd::new(env.binary.as_os_str()).arg("--store").arg(&env.store).args(args);
        cmd.env("AGENTSBX_CONFIG", &env.config).run()
    };
    let (id, short) = (bundle.id.as_str(), &bundle.id[..12]);
    for name in [id, short] {
        let state: serde_json::Value = serde_json::from_str(&cmd(&["state", name]).ok()).expect("JSON");
        assert_eq!(state["id"], id);
        assert_eq!(cmd(&["exec", name, "echo", "here"]).ok(), "here");
        assert!(cmd(&["ps", "--format", "json", "--execs", name]).ok().starts_with("[{\"pid\":"));
        cmd(&["update", "--pids-limit", "50", name]).expect(0);
        cmd(&["events", "--stats", name]).expect(0);
        cmd(&["pause", name]).expect(0);
        assert_eq!(bundle.state()["status"], "paused");
        cmd(&["resume", name]).expect(0);
        cmd(&["kill", name, "0"]).expect(0);
        let exec = env.cmd(["exec", "--detach", "--pid-file"]).arg(env.dir.join(format!("named-{}.pid", name.len())));
        exec.args([id, "sleep", "1000"]).output_to(env.dir.join("out")).run().expect(0);
        let named = format!("named-{}", name.len());
        cmd(&["kill", "--exec", &named, name, "KILL"]).expect(0);
        assert_eq!(result::end(&env.json(["show", id, &named, "--json", "--wait"])).0, "signaled");
    }
    for args in [["kill", &id[..11], "KILL"], ["state", &id[..11], ""], ["kill", "c", "KILL"]] {
        let args: Vec<&str> = args.into_iter().filter(|word| !word.is_empty()).collect();
        let refused = cmd(&args).expect(1);
        assert!(refused.stderr.contains("does not exist"), "{args:?}: {}", refused.stderr);
    }
    // A root that is named is the one that is meant, and what makes or removes a container takes no other's.
    let elsewhere = env.dir.join("elsewhere");
    let named = env.binary.as_os_str();
    let kill = Cmd::new(named).arg("--root").arg(&elsewhere).arg("--store").arg(&env.store).args(["kill", id, "KILL"]);
    assert!(kill.run().expect(1).stderr.contains("does not exist"));
    cmd(&["delete", "--force", id]).expect(0);
    assert_eq!(bundle.state()["status"], "running");
    cmd(&["kill", short, "KILL"]).expect(0);
    crate::support::wait_until("the end", std::time::Duration::from_secs(10), || bundle.state()["status"] == "stopped");
}

/// Output that can't be written is a failure; that its reader has gone is not one to talk of.
#[test]
fn what_could_not_be_printed_is_told() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("echo x >/x").expect(0);
    let id = bundle.id.as_str();
    let forms: [&[&str]; 15] = [
        &["log"],
        &["log", id],
        &["log", id, "--json"],
        &["show", id],
        &["show", id, "--json"],
        &["diff", id],
        &["diff", id, "--name-only", "-z"],
        &["diff", id, "--patch"],
        &["diff", id, "--stat"],
        &["state", id],
        &["list"],
        &["ps", id],
        &["gc", "--dry-run"],
        &["--version"],
        &["exec", "--help"],
    ];
    let shell = |redirected: &str, args: &[&str]| {
        let command = env.cmd(args.iter().copied());
        command.in_shell(redirected).run()
    };
    for args in forms {
        let full = shell("\"$@\" >/dev/full", args).expect(1);
        assert!(full.stderr.contains("no space left on device"), "{args:?}: {}", full.stderr);
        // The pipe's other end is closed before anything is written.
        let end = "(trap '' PIPE; while printf x 2>/dev/null; do sleep 0.01; done)";
        let gone = shell(&format!("{{ {end}; \"$@\"; echo $? >&2; }} | true"), args).expect(0);
        assert_eq!(gone.stderr, "141\n", "{args:?}");
    }
}

/// An exec that has its row and not yet its cgroup when `reset` looks is killed too: it ran on, `reset` waited half a minute
/// for it, and then told that it had killed it.
#[test]
fn reset_kills_what_is_just_beginning() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let mut killed = 0;
    for n in 0..60u64 {
        let exec = env.cmd(["exec", &bundle.id, "sleep", "65436"]).spawn();
        std::thread::sleep(Duration::from_micros(n % 20 * 500));
        let reset = env.cmd(["reset", &bundle.id]).run();
        assert!(reset.code == 0 && reset.took < Duration::from_secs(10), "{n}: {reset:?}");
        if reset.stdout.starts_with("1 exec killed") {
            killed += 1;
        } else {
            // It began afterwards.
            wait_until("the exec", Duration::from_secs(10), || {
                bundle.sh_with(["--layer", "discard"], "ps | grep -q 'sleep 6543[6]'").code == 0
            });
            env.ok(["reset", &bundle.id]);
        }
        assert_ne!(exec.wait().code, 0);
    }
    assert!(killed > 0);
}

/// `reset` is no rollback in the log; branches that were left are beside HEAD's line, and say where they began.
#[test]
fn the_log_is_a_graph() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let id = bundle.id.as_str();
    for script in ["echo 1 >/1", "echo 2 >/2", "echo 3 >/3"] {
        bundle.sh(script).expect(0);
    }
    env.ok(["rollback", id, "1"]);
    bundle.sh("echo 4 >/4").expect(0);
    // Graph and number, which come before the exec's id or the spaces in its place.
    let graph = || -> Vec<String> {
        let text = env.ok(["log", id]);
        let exec = text.find("EXEC").expect("a heading");
        text.lines().skip(1).map(|line| line[..exec].trim_end().to_owned()).collect()
    };
    assert_eq!(graph(), ["*    0", "*    1", "| -  2 on 1", "| -  3", "|", "@    4"]);
    env.ok(["rollback", id, "3"]);
    assert_eq!(graph()[3..], ["@    3", "", "  -  4 on 1", ""]);
    assert_eq!(env.ok(["reset", id]), "0 execs killed, HEAD 3 -> 0");
    assert_eq!(graph()[0], "@    0");
    assert!(env.ok(["log", id]).ends_with("reset from 3 to 0, execs killed: 0"));
    let last = env.ok(["log", id, "--json"]).lines().last().map(str::to_owned).expect("a line");
    let last: serde_json::Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(last["type"], "reset");
    assert_eq!(last["event"], serde_json::json!({"from": 3, "to": 0, "killed": 0}));
}

/// Generations that are not above each other can't be compared; what can is named.
#[test]
fn diff_across_branches_says_what_can_be_compared() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let id = bundle.id.as_str();
    bundle.sh("echo 1 >/1").expect(0);
    bundle.sh("echo 2 >/2").expect(0);
    env.ok(["rollback", id, "1"]);
    bundle.sh("echo 3 >/3").expect(0);
    let refused = |range: &str| env.run(["diff", id, range]).expect(1).stderr;
    let apart = refused("2..3");
    assert!(apart.contains("part at 1") && apart.contains("1..2") && apart.contains("1..3"), "{apart}");
    let backwards = refused("3..1");
    assert!(backwards.contains("1..3"), "{backwards}");
    let path = refused("etc");
    assert!(path.contains("slash"), "{path}");
    assert_eq!(env.ok(["diff", id, "1..2", "--name-only"]), "/2");
}

/// A name is whatever its maker wanted: no form of `diff` but `-z` sends its control characters to a terminal.
#[test]
fn names_of_paths_do_not_drive_the_terminal() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("touch \"$(printf '/\\033[31mred\\nline')\"").expect(0);
    for form in [&["--name-only"][..], &[], &["--stat"], &["--patch"]] {
        let shown = env.cmd(["diff", &bundle.id]).args(form).ok();
        assert!(!shown.contains('\x1b'), "{form:?}: {shown:?}");
    }
    assert_eq!(env.ok(["diff", &bundle.id, "--name-only"]), r"/\u{1b}[31mred\nline");
    assert_eq!(env.run(["diff", &bundle.id, "--name-only", "-z"]).expect(0).stdout, "/\u{1b}[31mred\nline\0");
    // Contents neither, but in a patch that another program reads.
    bundle.sh("printf 'a\\033[2Jb\\tc\\n' >/clear").expect(0);
    let patch = ["diff", &bundle.id, "@-1..@", "--patch"];
    assert!(env.ok(patch).contains("+a\u{1b}[2Jb\tc"));
    let shown = env.cmd(patch).on_terminal().run().expect(0).stdout;
    assert!(shown.contains(r"+a\u{1b}[2Jb") && !shown.contains("\u{1b}[2J"), "{shown:?}");
}

/// A patch of changed modes and contents is one that git takes.
#[test]
fn git_takes_the_patch() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let before = env.dir.join("before");
    std::fs::create_dir_all(before.join("etc")).expect("make a directory");
    std::fs::copy(bundle.rootfs.join("etc/passwd"), before.join("etc/passwd")).expect("copy");
    bundle.sh("chmod 600 /etc/passwd; echo new >/new; chmod 4750 /new; echo 'x:x:9:9::/:' >>/etc/passwd").expect(0);
    // Not the repository that these files lie in.
    Cmd::new("git").args(["init", "--quiet"]).arg(&before).ok();
    let patch = env.run(["diff", &bundle.id, "--patch"]).expect(0).stdout;
    assert!(patch.contains("Metadata of /etc/passwd changed: mode 0644 -> 0600"), "{patch}");
    assert!(patch.contains("File /new added (mode 4750)\ndiff --git a/new b/new\nnew file mode 100755\n"), "{patch}");
    Cmd::new("git").args(["-C"]).arg(&before).args(["apply", "-"]).stdin(patch.as_str()).ok();
    assert_eq!(std::fs::read_to_string(before.join("new")).expect("read"), "new\n");
    assert!(std::fs::read_to_string(before.join("etc/passwd")).expect("read").contains("x:x:9:9::/:"));
}

/// An owner that differs is told as the container sees it, before and after.
#[test]
fn a_patch_tells_owners_as_the_container_sees_them() {
    let env = Env::new();
    let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
    crate::conformance::lab::with_user_namespace(&mut bundle);
    bundle.start();
    bundle.sh("chown 1:2 /etc/passwd; touch -d '2001-09-09 01:46:40' /etc/group").expect(0);
    let patch = env.run(["diff", &bundle.id, "--patch", "/etc/passwd"]).expect(0).stdout;
    assert_eq!(patch, "Metadata of /etc/passwd changed: owner 0:0 -> 1:2\n");
    let patch = env.run(["diff", &bundle.id, "--patch", "/etc/group"]).expect(0).stdout;
    let times = "mtime 1970-01-01T00:00:00Z -> 2001-09-09T01:46:40Z";
    assert_eq!(patch, format!("Metadata of /etc/group changed: {times}\n"));
}

/// git's form has two modes of files, 0644 and 0755: every other, above all a set-user-ID program, has a line of its own.
#[test]
fn a_patch_tells_every_mode() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("mkdir /dir; for f in kept plain exe; do echo $f >/$f; chmod 644 /$f; done; ln -s plain /link").expect(0);
    bundle
        .sh("cp /bin/busybox /suid; chmod 4755 /suid; echo x >/all; chmod 2777 /all; mkdir /d; chmod 1777 /d
             echo n >/new; chmod 644 /new; echo p >/program; chmod 755 /program
             chmod 4755 /plain; chmod 755 /exe; chmod 2775 /dir; echo more >>/kept; chmod 6711 /kept
             rm /link; echo s >/link; chmod 4711 /link")
        .expect(0);
    let patch = env.run(["diff", &bundle.id, "@-1..@", "--patch"]).expect(0).stdout;
    let told: Vec<&str> = patch.lines().filter(|line| line.contains("mode ")).collect();
    let wanted = [
        "File /all added (mode 2777)",
        "new file mode 100755",
        "Directory /d added (mode 1777)",
        "Metadata of /dir changed: mode 0755 -> 2775",
        "old mode 100644",
        "new mode 100755",
        "Metadata of /kept changed: mode 0644 -> 6711",
        "old mode 100644",
        "new mode 100755",
        "deleted file mode 120000",
        "File /link added (mode 4711)",
        "new file mode 100755",
        "new file mode 100644",
        "Metadata of /plain changed: mode 0644 -> 4755",
        "old mode 100644",
        "new mode 100755",
        "new file mode 100755",
        "File /suid added (mode 4755)",
        "new file mode 100755",
    ];
    assert_eq!(told, wanted, "{patch}");
}

/// An engine can always look at a container, end it and get rid of it, and a person repair, whatever the configuration has
/// come to; what would run, or be dropped, by other rules than its owner wrote is not.
#[test]
fn a_broken_configuration_stops_what_begins_and_not_what_ends() {
    for (name, text, mode, words) in [
        ("unknown key", "[exec]\nlayr = 1\n", 0o644, "line 2, exec.layr: unknown field"),
        ("no TOML", "[retention]\ngenerations = 1\n[exec\n", 0o644, "unclosed table"),
        ("wrong value", "[retention]\ngenerations = 1\nage = 'none'\n", 0o644, "write 0 for no bound"),
        ("not the owner's alone", "", 0o666, "everybody can write to it"),
    ] {
        let env = Env::new();
        let bundle = Bundle::running(&env);
        for n in 1..=3 {
            bundle.sh(&format!("echo {n} >/n")).expect(0);
        }
        bundle.sh_with(["--layer", "hold"], "echo held >/held").expect(0);
        let held = result::exec(&bundle.show()).to_owned();
        let config = env.dir.join("broken.toml");
        std::io::Write::write_all(&mut std::fs::File::create(&config).expect("create"), text.as_bytes())
            .expect("write");
        std::fs::set_permissions(&config, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("chmod");
        let with = |args: &[&str]| env.cmd(args).env("AGENTSBX_CONFIG", &config).run();
        let id = bundle.id.as_str();
        let other = Bundle::new(&env, ["true"]);
        other.write();
        let dir = other.dir.to_str().expect("a name");
        for (args, code) in [
            (&["exec", id, "true"][..], 255),
            (&["create", "--bundle", dir, &other.id], 1),
            (&["run", "--bundle", dir, &other.id], 1),
            (&["commit", id, &held], 1),
            (&["discard", id, &held], 1),
            (&["rollback", id, "1"], 1),
            (&["reset", id], 1),
            (&["apply", id], 1),
            (&["gc"], 1),
            (&["fsck", "--repair"], 2),
        ] {
            let refused = with(args).expect(code);
            assert!(refused.stderr.contains(words), "{name}, {args:?}: {}", refused.stderr);
            assert_eq!(refused.stdout, "", "{name}, {args:?}");
        }
        // What engines call says what it says, and nothing besides.
        let mut goes_on = vec![
            vec!["state", id],
            vec!["list"],
            vec!["list", "--format", "json"],
            vec!["ps", id],
            vec!["ps", "--format", "json", id],
            vec!["events", "--stats", id],
            vec!["pause", id],
            vec!["resume", id],
            vec!["features"],
            vec!["--version"],
            vec!["kill", id, "0"],
        ];
        let told = with(&["recover"]).expect(0);
        assert!(told.stdout.starts_with("nothing to recover"), "{name}: {}", told.both());
        assert!(told.stderr.contains(words), "{name}: {}", told.stderr);
        assert!(told.stderr.contains(&format!("the store is {}", env.store.display())), "{name}: {}", told.stderr);
        let kept = env.ok(["log", id, "--json"]);
        assert_eq!(kept.lines().filter(|line| line.contains(r#""disposition":"committed""#)).count(), 3, "{kept}");
        assert!(!kept.contains("retention"), "{name}: {kept}");
        goes_on.extend([vec!["kill", id, "KILL"], vec!["delete", "--force", id]]);
        let log = env.dir.join("log.json");
        for args in goes_on {
            let output = env
                .cmd(["--log", log.to_str().expect("a name"), "--log-format", "json"])
                .args(&args)
                .env("AGENTSBX_CONFIG", &config)
                .run()
                .expect(0);
            assert_eq!(output.stderr, "", "{name}, {args:?}");
        }
        // Of these only delete needs the store, and tells the log what it does without.
        let lines = std::fs::read_to_string(&log).expect("a log");
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.len(), 1, "{name}: {lines:#?}");
        assert!(lines[0].contains(r#""level":"warning""#) && lines[0].contains("the store is"), "{name}: {lines:#?}");
        assert!(env.run(["show", id]).expect(1).stderr.contains("not found"), "{name}");
    }
}

/// A container is ended though the file that says where the store is has a mistake: the store is the file's all the same.
#[test]
fn a_store_that_a_broken_configuration_names_is_found() {
    let env = Env::with_config("profile = 'oci'\n");
    let bundle = Bundle::running(&env);
    bundle.sh("echo x >/x").expect(0);
    let config = env.dir.join("broken.toml");
    let text = format!("store = '{}'\nprofil = 'oci'\n", env.store.display());
    std::io::Write::write_all(&mut std::fs::File::create(&config).expect("create"), text.as_bytes()).expect("write");
    let deleted = Cmd::new(&env.binary)
        .env("AGENTSBX_CONFIG", &config)
        .arg("--root")
        .arg(&env.root)
        .args(["delete", "--force", &bundle.id])
        .on_terminal()
        .run()
        .expect(0);
    // A person is told.
    assert!(deleted.both().contains("unknown field `profil`"), "{}", deleted.both());
    assert!(env.run(["show", &bundle.id]).expect(1).stderr.contains("not found"));
}

/// The clock of an exec runs from the start of its command to its end.
#[test]
fn wall_time_is_that_of_the_command() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("sleep 0.3").expect(0);
    let wall = bundle.show()["usage"]["wallNs"].as_u64().expect("a number");
    assert!((300_000_000..5_000_000_000).contains(&wall), "{wall}");
    for _ in 0..10 {
        bundle.exec(["true"]).expect(0);
        let usage = bundle.show()["usage"].clone();
        assert!(usage["wallNs"].as_u64() > Some(100_000), "a process can't end sooner: {usage}");
    }
}

/// A missing argument was told by clap's name for it alone.
#[test]
fn a_missing_argument_is_told_with_what_can_be_given() {
    let env = Env::new();
    for (args, what, usage, hint) in [
        (&["discard", "c1"][..], "<EXEC>", "agentsbx discard <CONTAINER> <EXEC>", "`agentsbx log c1` shows the execs"),
        (&["commit", "c1"], "<EXEC>", "agentsbx commit", "`agentsbx log c1` shows the execs"),
        (&["rollback", "c1"], "<GENERATION>", "<CONTAINER> <GENERATION>", "`agentsbx log c1` shows the generations"),
        (&["rollback"], "<CONTAINER> <GENERATION>", "<CONTAINER> <GENERATION>", "`agentsbx log` shows the containers"),
    ] {
        let said = env.cmd(args).run().expect(1).stderr;
        let begin = format!("msg=\"the following required arguments were not provided: {what}: usage: agentsbx ");
        assert!(said.contains(&begin) && said.contains(usage) && said.contains(hint), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// What is not there is told with the place where it was looked for, and what can be given.
#[test]
fn what_is_not_there_is_told_with_its_place() {
    let env = Env::new();
    let empty = env.dir.join("empty");
    std::fs::create_dir(&empty).expect("mkdir");
    let said = env.cmd(["run", "--bundle"]).arg(&empty).arg("c1").run().expect(1).stderr;
    let want = format!("JSON specification file config.json not found in {}: name", empty.display());
    assert!(said.contains(&want), "{said}");
    let mut bundle = Bundle::new(&env, ["true"]);
    crate::conformance::lab::add_mount(
        &mut bundle,
        serde_json::json!({"destination": "/data", "source": "/no-such", "options": ["bind"]}),
    );
    let said = bundle.run().expect(1).stderr;
    let want = "mounts[/data]: open source of a bind mount /no-such: no such file or directory";
    assert!(said.contains(want), "{said}");
    let said = env.cmd(["run", "--bundle"]).arg(&empty).arg("a/b").run().expect(1).stderr;
    assert!(said.contains("invalid container ID format: 1 to 1024 letters, digits, _ + - and ."), "{said}");
}
