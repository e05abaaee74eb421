//! Nothing leaks: the host is after many execs what it was before.

use std::fs;

use crate::support::bundle::Bundle;
use crate::support::engines::mounts_below;
use crate::support::env::process;
use crate::support::{Cmd, Env};

/// Mounts, cgroups, descriptors, state files and layers of one container, counted.
fn counts(env: &Env, bundle: &Bundle) -> Vec<(&'static str, usize)> {
    let find = |dir: &std::path::Path, depth: &str| {
        Cmd::new("find").arg(dir).args(["-mindepth", "1", "-maxdepth", depth]).run().stdout.lines().count()
    };
    let cgroups = Cmd::new("find").args(["/sys/fs/cgroup", "-type", "d", "-path"]).arg(format!(
        "*{}/{}*",
        process().cgroup,
        bundle.id
    ));
    vec![
        ("mounts", mounts_below(&env.dir).len()),
        ("cgroups", cgroups.run().stdout.lines().count()),
        ("state", find(&env.root, "9")),
        ("layers", find(&env.store.join("layers"), "1")),
        ("trash", find(&env.store.join("trash"), "1")),
        ("locks", find(&env.store.join("locks"), "1")),
        ("bundle", fs::read_dir(&bundle.dir).expect("readdir").count()),
    ]
}

/// Execs that change nothing, fail, are killed, run out of time or are discarded leave no trace but their rows and results.
#[test]
fn execs_leave_nothing_behind() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh_with(["--layer", "discard"], "echo x >/x").expect(0);
    let before = counts(&env, &bundle);
    for _ in 0..40 {
        bundle.exec(["true"]).expect(0);
        bundle.sh("exit 3").expect(3);
        bundle.sh("kill -9 $$").expect(137);
        bundle.exec(["no-such-command"]).expect(255);
        bundle.sh_with(["--layer", "discard"], "echo x >/x; sleep 1000 &").expect(0);
    }
    bundle.sh_with(["--timeout", "1"], "sleep 1000").expect(124);
    assert_eq!(counts(&env, &bundle), before);
}

/// A deleted container leaves no layers, mounts, cgroups or state.
#[test]
fn delete_takes_everything_along() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    for n in 0..5 {
        bundle.sh(&format!("echo {n} >/file{n}")).expect(0);
        bundle.sh_with(["--layer", "hold"], &format!("echo {n} >/held{n}")).expect(0);
    }
    env.ok(["delete", "--force", &bundle.id]);
    for (what, count) in counts(&env, &bundle) {
        if what != "bundle" {
            assert_eq!(count, 0, "{what}");
        }
    }
}
