//! Bounds of histories: what goes, what stays, what is told of what is gone, and that nobody waits for it.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cow;
use crate::support::bundle::Bundle;
use crate::support::walk::{assert_same, compare, walk};
use crate::support::{Cmd, Env, result, wait_until};

fn env(bounds: &str) -> Env {
    Env::with_config(&format!("profile = 'oci'\n[retention]\n{bounds}\n"))
}

/// The lines of `log --json`.
fn log(bundle: &Bundle<'_>) -> Vec<Value> {
    let text = bundle.env.ok(["log", &bundle.id, "--json"]);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The numbers of the generations that are there.
fn kept(bundle: &Bundle<'_>) -> Vec<u64> {
    let of = |entry: &Value| entry["generation"].as_u64().filter(|_| entry["dropped"].is_null());
    log(bundle).iter().filter_map(of).collect()
}

#[track_caller]
fn assert_sound(env: &Env) {
    let told = env.run(["fsck"]);
    assert_eq!(told.code, 0, "{}", told.both());
}

fn layers(env: &Env) -> usize {
    fs::read_dir(env.store.join("layers")).expect("layers").count()
}

/// What the store's layers take on disk, KiB.
fn size(env: &Env) -> u64 {
    let told = Cmd::new("du").arg("-sk").arg(env.store.join("layers")).ok();
    told.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a size")
}

/// A rollback can be undone, whatever the bounds say of what it left: nobody may lose HEAD by looking at what was before.
#[test]
fn what_the_last_rollback_left_stays() {
    let env = env("generations = 2\nage = \"1s\"");
    let bundle = Bundle::running(&env);
    let id = bundle.id.as_str();
    for n in 1..=5 {
        bundle.sh(&format!("echo {n} >/n")).expect(0);
    }
    for go in ["rollback", "reset"] {
        std::thread::sleep(Duration::from_millis(1100));
        if go == "rollback" {
            env.ok(["rollback", id, "0"]);
        } else {
            env.ok(["reset", id]);
        }
        bundle.sh("echo other >/other").expect(0);
        env.ok(["gc"]);
        env.ok(["recover"]);
        env.ok(["rollback", id, "5"]);
        assert_eq!(bundle.sh("cat /n").ok(), "5", "after {go}");
        assert_sound(&env);
    }
    // Only the last one.
    env.ok(["rollback", id, "0"]);
    bundle.sh("echo again >/again").expect(0);
    env.ok(["rollback", id, "0"]);
    std::thread::sleep(Duration::from_millis(1100));
    env.ok(["gc"]);
    assert!(kept(&bundle).len() <= 1, "{:?}", kept(&bundle));
    // What was left for good is in nothing else, and is told to be.
    let text = env.ok(["log", id]);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("dropped: over retention.")).collect();
    assert!(lines.iter().any(|line| line.ends_with("; left by a rollback)")), "{text}");
    assert!(lines.iter().all(|line| line.contains("merged into") != line.contains("left by")), "{text}");
    let left: Vec<Value> = log(&bundle)
        .into_iter()
        .filter(|entry| entry["type"] == "retention" && entry["event"]["into"].is_null())
        .collect();
    let number = left[0]["event"]["from"].as_u64().expect("a number");
    let exec = log(&bundle).into_iter().find(|entry| entry["type"] == "exec" && entry["generation"] == number);
    let exec = exec.expect("its exec")["exec"].as_str().expect("an id").to_owned();
    let shown = env.ok(["show", id, &exec]);
    assert!(shown.lines().any(|line| line.starts_with("dropped") && line.ends_with(", left by a rollback")), "{shown}");
}

#[test]
fn thirty_execs_with_ten_generations() {
    let env = env("generations = 10");
    let bundle = Bundle::running(&env);
    let id = bundle.id.as_str();
    let mut states = vec![bundle.walk_as_exec()];
    for n in 1..=30 {
        let script =
            format!("echo {n} >/n; echo {n} >/file{n}; rm -f /file{}; head -c 1000000 /dev/zero >/blob", n - 2);
        bundle.sh(&script).expect(0);
        states.push(bundle.walk_as_exec());
    }
    wait_until("the history to be within its bounds", Duration::from_secs(20), || kept(&bundle).len() <= 12);
    let now = kept(&bundle);
    assert!(now.len() >= 10 && now.ends_with(&[29, 30]), "{now:?}");
    assert!(layers(&env) <= 13, "a layer each, and perhaps one that is being made: {}", layers(&env));
    assert!(size(&env) < 14_000, "{} KiB; without bounds there would be 30 MB", size(&env));
    assert!(compare(&states[30], &bundle.walk_as_exec()).is_empty());
    assert_eq!(bundle.read()["annotations"]["dev.agentsbx.generation"], "30");

    // Exactly: as it is planned.
    let plan = env.ok(["gc", "--dry-run"]);
    assert_eq!(kept(&bundle), now, "only planned");
    let (before, there) = (layers(&env), now.len());
    let done = env.ok(["gc"]);
    // Each merged layer is one more that is deleted, and one that is new.
    let said = format!("{} generations dropped, {} layers deleted with them", there - 10, before - 10 + 1);
    assert!(done.contains(&said) || there == 10, "{said}: {done}");
    assert!(done.ends_with("\n0 leftovers deleted, 10 layers in use") || there == 10, "{done}");
    let lines = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("container ")).map(str::to_owned).collect()
    };
    assert_eq!(lines(&plan), lines(&done));
    assert_eq!(kept(&bundle), (21..=30).collect::<Vec<_>>());
    assert_eq!(layers(&env), 10);
    assert_sound(&env);
    assert!(compare(&states[30], &bundle.walk_as_exec()).is_empty());

    // What is left can be returned to and compared, what is gone is told to be.
    for n in [25, 21, 30, 22, 0, 30] {
        env.ok(["rollback", id, &n.to_string()]);
        let different = compare(&states[n], &bundle.walk_as_exec());
        assert!(different.is_empty(), "rollback {n}: {different:#?}");
    }
    assert_same(&env.json(["diff", id, "--recursive", "--json"]), &states[0], &states[30]);
    assert_same(&env.json(["diff", id, "23..27", "--recursive", "--json"]), &states[23], &states[27]);
    for args in [vec!["rollback", id, "3"], vec!["diff", id, "3..25"], vec!["diff", id, "3"]] {
        let refused = env.cmd(&args).run().expect(1);
        assert!(
            refused.stderr.contains("generation 3 was dropped") && refused.stderr.contains("retention.generations"),
            "{args:?}: {}",
            refused.stderr
        );
    }
    assert!(env.run(["rollback", id, "@-20"]).expect(1).stderr.contains("was dropped"));
    env.ok(["rollback", id, "@-9"]);
    assert_eq!(bundle.sh_with(["--layer", "discard"], "cat /n").ok(), "21");
    env.ok(["rollback", id, "30"]);
    let none = env.run(["rollback", id, "31"]).expect(1);
    assert!(none.stderr.contains("generation 31 not found"), "{}", none.stderr);

    // Rows and results of what is gone.
    let text = env.ok(["log", id]);
    let execs: Vec<Value> = log(&bundle).into_iter().filter(|entry| entry["disposition"] == "committed").collect();
    assert_eq!(execs.len(), 30);
    assert_eq!(text.lines().filter(|line| line.contains("echo") && line.contains("dropped")).count(), 20, "{text}");
    assert!(text.contains("dropped: over retention.generations"), "{text}");
    let third = execs[2]["exec"].as_str().expect("an id");
    assert_eq!((&execs[2]["generation"], &execs[2]["dropped"]), (&3.into(), &"generations".into()));
    let shown = env.json(["show", id, third, "--json"]);
    assert_eq!(result::disposition(&shown), "committed");
    assert!(shown["changes"].to_string().contains("/file3"), "{shown}");
    // When, why and where to.
    let event = |number: u64| {
        let dropped = |entry: &&Value| {
            let runs = entry["event"]["generations"].as_array().into_iter().flatten();
            entry["type"] == "retention"
                && runs.filter_map(|run| run[0].as_u64().zip(run[1].as_u64())).any(|(a, b)| (a..=b).contains(&number))
        };
        let events: Vec<Value> = log(&bundle).iter().filter(dropped).cloned().collect();
        assert_eq!(events.len(), 1, "{events:?}");
        events.into_iter().next().expect("one")
    };
    let told = event(3);
    let want = serde_json::json!({"why": "generations", "at": told["time"], "into": told["event"]["into"]});
    assert_eq!(shown["dropped"], want);
    let at = &told["time"].as_str().expect("a time")[..19];
    let into = told["event"]["into"].as_u64().expect("a number");
    let shown = env.ok(["show", id, third]);
    let line = shown.lines().find(|line| line.starts_with("dropped")).unwrap_or_else(|| panic!("{shown}"));
    assert!(
        line.contains(at) && line.ends_with(&format!("retention.generations, merged into generation {into}")),
        "{line}"
    );
    for verb in ["commit", "discard"] {
        let refused = env.run([verb, id, third]).expect(1).stderr;
        let want = format!("it was committed as generation 3, which was dropped at {at}Z to keep the history within");
        assert!(refused.contains(&want), "{verb}: {refused}");
    }
    assert!(env.run(["diff", id, third]).expect(1).stderr.contains("was dropped"));
    let merged = execs[20]["exec"].as_str().expect("an id");
    assert!(env.run(["diff", id, merged]).expect(1).stderr.contains("older generations were merged"));
    let fifth = execs[24]["exec"].as_str().expect("an id");
    assert!(env.ok(["diff", id, fifth]).contains("/file25"));
}

#[test]
fn bytes_are_bounded() {
    let env = env("generations = 0\nbytes = '3M'");
    let bundle = Bundle::running(&env);
    // Only its time changes: overlayfs copies it whole.
    for n in 1..=20 {
        bundle
            .sh(&format!("[ -e /blob ] || yes | head -c 1000000 >/blob; touch -d @{n} /blob; echo {n} >/n"))
            .expect(0);
    }
    env.ok(["gc"]);
    // HEAD, three that count, and the one that all stand on.
    assert_eq!(kept(&bundle), (16..=20).collect::<Vec<_>>());
    assert!(size(&env) < 6_000, "{} KiB", size(&env));
    env.ok(["rollback", &bundle.id, "16"]);
    assert_eq!(bundle.sh_with(["--layer", "discard"], "cat /n").ok(), "16");
    let refused = env.run(["rollback", &bundle.id, "15"]).expect(1);
    assert!(refused.stderr.contains("retention.bytes"), "{}", refused.stderr);
    assert_sound(&env);
}

#[test]
fn age_is_bounded_by_gc_and_recover() {
    for verb in ["gc", "recover"] {
        let env = env("age = '2s'");
        let bundles = [Bundle::running(&env), Bundle::running(&env)];
        for bundle in &bundles {
            for n in 1..=3 {
                bundle.sh(&format!("echo {n} >/n; echo {n} >/file{n}")).expect(0);
            }
        }
        let quiet = env.ok([verb]);
        assert!(!quiet.contains("generation"), "{quiet}");
        std::thread::sleep(Duration::from_millis(2100));
        let plan = env.ok(["gc", "--dry-run"]);
        assert_eq!(plan.matches("generations 1-2: over retention.age").count(), 2, "{plan}");
        assert!(plan.contains("4 generations to drop"), "{plan}");
        let done = env.ok([verb]);
        assert!(done.contains("4 generations dropped"), "{done}");
        for bundle in &bundles {
            assert_eq!(kept(bundle), [3]);
            assert_eq!(bundle.sh_with(["--layer", "discard"], "cat /n /file1").ok(), "3\n1");
            let refused = env.run(["rollback", &bundle.id, "2"]).expect(1);
            assert!(refused.stderr.contains("retention.age"), "{}", refused.stderr);
        }
        assert_sound(&env);
    }
}

/// The layer of an old exec is decided on when what it was based on would be long gone.
#[test]
fn held_layers_keep_what_they_are_based_on() {
    let env = env("generations = 3");
    let bundle = Bundle::running(&env);
    bundle.sh("echo 1 >/a; echo 1 >/b").expect(0);
    let mut held = Vec::new();
    for script in ["echo held >/held", "echo held >/a"] {
        bundle.sh_with(["--layer", "hold"], script).expect(0);
        held.push(result::exec(&bundle.show()).to_owned());
    }
    for n in 2..=20 {
        bundle.sh(&format!("echo {n} >/a; echo {n} >/n")).expect(0);
    }
    env.ok(["gc"]);
    assert_eq!(kept(&bundle), [1, 19, 20]);
    assert_sound(&env);
    env.ok(["commit", &bundle.id, &held[0]]);
    assert_eq!(bundle.sh_with(["--layer", "discard"], "cat /held /a /b").ok(), "held\n20\n1");
    // What changed the same path was merged since; it is a conflict all the same.
    let refused = env.run(["commit", &bundle.id, &held[1]]);
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("conflicts") && refused.stderr.contains("/a"), "{}", refused.stderr);
    env.ok(["commit", &bundle.id, &held[1], "--force"]);
    assert_eq!(bundle.sh_with(["--layer", "discard"], "cat /a /n").ok(), "held\n20");
    env.ok(["gc"]);
    assert_eq!(kept(&bundle), [20, 21, 22]);
    assert_sound(&env);
}

/// A history is brought within its bounds though some exec always runs: it keeps what it has mounted.
#[test]
fn what_runs_keeps_its_layers() {
    let env = env("generations = 3");
    let bundle = Bundle::running(&env);
    for n in 1..=3 {
        bundle.sh(&format!("echo {n} >/n; echo {n} >/file{n}")).expect(0);
    }
    let script =
        "touch /dev/shm/ready; while [ ! -e /dev/shm/go ]; do sleep 0.02; done; cat /n /file*; echo late >/late";
    let late = env.cmd(["exec", &bundle.id, "sh", "-c", script]).spawn();
    wait_until("ready", Duration::from_secs(10), || {
        bundle.sh_with(["--layer", "discard"], "ls /dev/shm/ready").code == 0
    });
    for n in 4..=15 {
        bundle.sh(&format!("echo {n} >/n; rm -f /file{}; echo {n} >/file{n}", n - 3)).expect(0);
    }
    // Whatever was merged meanwhile: of layers that are mounted it is said that they stay, and for how long.
    let done = env.ok(["gc"]);
    assert!(done.contains("to be deleted when the execs that run on them have ended: "), "{done}");
    assert_eq!(kept(&bundle), [3, 14, 15]);
    assert_eq!(env.ok(["gc", "--dry-run"]), format!("0 leftovers to delete, {} layers in use now", layers(&env)));
    bundle.sh_with(["--layer", "discard"], "touch /dev/shm/go").expect(0);
    assert_eq!(late.wait().ok(), "3\n1\n2\n3");
    assert_eq!(bundle.sh_with(["--layer", "discard"], "cat /late; ls / | grep -c file").ok(), "late\n3");
    env.ok(["gc"]);
    assert_eq!(layers(&env), 3);
    assert_sound(&env);
}

/// What was applied is known to be the container's own when its generations have been merged.
#[test]
fn applied_changes_are_known_again() {
    let env = env("generations = 2");
    let host = cow::project(&env);
    let bundle = cow::bundle(&env, &host);
    bundle.start();
    let id = bundle.id.as_str();
    let work = |script: &str| bundle.sh_with(["--cwd", "/work"], script).expect(0);
    for n in 1..=4 {
        work(&format!("echo {n} >src/one; echo {n} >new; rm -rf src/deep; mkdir -p d; echo {n} >d/{n}"));
    }
    env.ok(["apply", id]);
    for n in 5..=9 {
        work(&format!("echo {n} >src/one; echo {n} >new; echo {n} >d/{n}"));
    }
    fs::write(host.join("src/two"), "theirs").expect("write");
    work("echo ours >src/two");
    env.ok(["gc"]);
    // 4 is what the host has.
    assert_eq!(kept(&bundle), [4, 10]);
    let plan = env.json(["apply", id, "--dry-run", "--json"]);
    assert_eq!(plan["conflicts"], Value::Array(Vec::new()), "{plan}");
    env.ok(["apply", id]);
    assert!(compare(&cow::seen(&bundle), &cow::below("/work", walk(&host))).is_empty());
    // What others write is still found.
    work("echo mine >src/one");
    fs::write(host.join("src/one"), "theirs").expect("write");
    env.ok(["gc"]);
    let plan = env.json(["apply", id, "--dry-run", "--json"]);
    assert!(plan["conflicts"].to_string().contains("/work/src/one"), "{plan}");
    assert_sound(&env);
}

/// An exec's caller does not wait for layers being merged, and what merges them ends by itself.
#[test]
fn nobody_waits_for_it() {
    let env = env("generations = 2");
    let bundle = Bundle::running(&env);
    // Many files, so that merging takes its time.
    bundle.sh("mkdir /many; cd /many; seq 1 20000 | xargs touch").expect(0);
    let mut times = Vec::new();
    for n in 1..=12 {
        let begun = Instant::now();
        bundle.sh(&format!("echo {n} >/n")).expect(0);
        times.push(begun.elapsed());
    }
    times.sort();
    println!("execs beside merges of 20,000 files: median {:?}, longest {:?}", times[6], times[11]);
    wait_until("the history to be within its bounds", Duration::from_secs(30), || kept(&bundle).len() <= 3);
    env.ok(["gc"]);
    assert_eq!(kept(&bundle), [12, 13]);
    assert_eq!(bundle.sh("ls /many | wc -l; cat /n").ok(), "20000\n12");
    assert_sound(&env);
}

/// What an exec costs in a history at its bound, beside one in a short history.
#[test]
#[ignore = "a measurement"]
fn cost_at_the_bound() {
    let env = env("generations = 1000");
    let bundle = Bundle::running(&env);
    let mut times = Vec::new();
    for n in 0..2400 {
        let begun = Instant::now();
        bundle.exec(["touch", &format!("/f{}", n % 500)]).expect(0);
        times.push(begun.elapsed());
    }
    let of = |name: &str, times: &[Duration]| {
        let mut sorted = times.to_vec();
        sorted.sort();
        let mean = times.iter().sum::<Duration>() / times.len() as u32;
        let (half, most) = (sorted[sorted.len() / 2], sorted[sorted.len() * 99 / 100]);
        println!("{name}: median {half:?}, mean {mean:?}, 99 of 100 {most:?}");
        (half, mean)
    };
    let (early, at) = (of("generations 10 to 250", &times[10..250]), of("generations 2000 to 2400", &times[2000..]));
    println!("ratio: median {:.2}, mean {:.2}", at.0.div_duration_f64(early.0), at.1.div_duration_f64(early.1));
    println!("kept: {}", kept(&bundle).len());
}
