//! Limits of the strict profile, attacks on them, and what an exec is said to have used.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::bundle::Bundle;
use crate::support::env::process;
use crate::support::{Cmd, Env, wait_until};

const MIB: u64 = 1 << 20;

/// An environment whose containers are strict, with these further lines of configuration.
fn strict(lines: &str) -> Env {
    Env::with_config(&format!("profile = 'strict'\n{lines}"))
}

/// A file of the container's cgroup, of v1's `controller` or of v2.
fn cgroup_file(bundle: &Bundle<'_>, controller: &str, v1: &str, v2: &str) -> Option<String> {
    let group = format!("{}/{}", process().cgroup.trim_start_matches('/'), bundle.id);
    let places = [
        PathBuf::from(format!("/sys/fs/cgroup/{controller}/{group}/{v1}")),
        PathBuf::from(format!("/sys/fs/cgroup/{group}/{v2}")),
    ];
    places.iter().find_map(|path| fs::read_to_string(path).ok()).map(|text| text.trim().to_owned())
}

fn layer_limit(bundle: &Bundle<'_>) -> Option<u64> {
    let record = fs::read_to_string(bundle.env.root.join(&bundle.id).join("agentsbx.json")).expect("read the record");
    serde_json::from_str::<Value>(&record).expect("JSON")["confinement"]["layerBytes"].as_u64()
}

/// A bundle that sets no limits has those of the profile; what its engine sets stays as it is.
#[test]
fn strict_limits_what_the_engine_did_not() {
    let env = strict("");
    let bare = Bundle::running(&env);
    let file = |bundle: &Bundle<'_>, controller, v1, v2| cgroup_file(bundle, controller, v1, v2);
    let pids = |bundle: &Bundle<'_>| file(bundle, "pids", "pids.max", "pids.max");
    let memory = |bundle: &Bundle<'_>| file(bundle, "memory", "memory.limit_in_bytes", "memory.max");
    assert_eq!(pids(&bare).as_deref(), Some("256"));
    assert_eq!(memory(&bare), Some((2048 * MIB).to_string()));
    let quota = file(&bare, "cpu", "cpu.cfs_quota_us", "cpu.max").expect("a quota");
    assert!(quota == "200000" || quota == "200000 100000", "{quota}");
    if let Some(swap) = file(&bare, "memory", "memory.memsw.limit_in_bytes", "memory.swap.max") {
        assert!(swap == (2048 * MIB).to_string() || swap == "0", "{swap}");
    }
    assert_eq!(layer_limit(&bare), Some(5120 * MIB));

    let mut given = Bundle::new(&env, ["sleep", "100000"]);
    given.config["linux"]["resources"]["memory"] = json!({"limit": 64 * MIB, "swap": 128 * MIB});
    given.config["linux"]["resources"]["pids"] = json!({"limit": 1000});
    given.config["linux"]["resources"]["cpu"] = json!({"quota": 50_000, "period": 50_000});
    given.start();
    assert_eq!((pids(&given).as_deref(), memory(&given)), (Some("1000"), Some((64 * MIB).to_string())));
    let quota = file(&given, "cpu", "cpu.cfs_quota_us", "cpu.max").expect("a quota");
    assert!(quota == "50000" || quota == "50000 50000", "{quota}");

    let oci = Env::new();
    let open = Bundle::running(&oci);
    assert_eq!(pids(&open).as_deref(), Some("max"));
}

/// A fork bomb fills its container and no more: others work, and it can be killed, and the container used and deleted.
#[test]
fn a_fork_bomb_ends_at_the_limit() {
    let env = strict("");
    let bundle = Bundle::running(&env);
    let result = env.dir.join("bomb.json");
    let bomb = env.cmd(["exec", "--timeout", "5", "--result"]).arg(&result);
    let bomb = bomb.args([&bundle.id, "sh", "-c", "b() { b | b & }; b; sleep 100"]).spawn();
    wait_until("the limit is reached", Duration::from_secs(20), || {
        cgroup_file(&bundle, "pids", "pids.current", "pids.current")
            .is_some_and(|n| n.parse::<u64>().unwrap_or(0) > 250)
    });
    let second = Bundle::running(&env);
    second.exec(["true"]).expect(0);
    // It can be looked into: a command that needs no process of its own besides.
    assert_eq!(bundle.exec(["echo", "in"]).ok(), "in");
    assert_eq!(bundle.state()["status"], "running");
    let ended = bomb.wait();
    assert_eq!(ended.code, 124, "{}", ended.stderr);
    let text = fs::read_to_string(&result).expect("read the result");
    let result: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(result["end"]["kind"], "timeout");
    let most = result["usage"]["maxPids"].as_u64();
    assert!(most.is_none_or(|n| (200..=256).contains(&n)), "{most:?}");
    bundle.sh("echo alive >/alive").expect(0);
    env.run(["delete", "--force", &bundle.id]).expect(0);
}

/// The same by the first process: nothing is left of it by `delete`.
#[test]
fn a_first_process_that_is_a_fork_bomb_can_be_deleted() {
    let env = strict("");
    let bundle = Bundle::new(&env, ["sh", "-c", "b() { b | b & }; b; sleep 1000"]);
    bundle.start();
    wait_until("the limit is reached", Duration::from_secs(20), || {
        cgroup_file(&bundle, "pids", "pids.current", "pids.current")
            .is_some_and(|n| n.parse::<u64>().unwrap_or(0) > 250)
    });
    env.run(["delete", "--force", &bundle.id]).expect(0);
    assert_eq!(cgroup_file(&bundle, "pids", "pids.current", "pids.current"), None);
}

/// Of an exec that takes all memory the kernel ends a process; the result says so, and nothing else ends.
#[test]
fn a_memory_bomb_is_told_as_such() {
    let env = strict("[limits]\nmemory = '64MiB'\n");
    let bundle = Bundle::running(&env);
    let ended = bundle.sh("x=$(head -c 200m /dev/zero | tr '\\0' x)");
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    let result = bundle.show();
    assert_eq!(result["end"]["kind"], "oom");
    if let Some(peak) = result["usage"]["peakMemoryBytes"].as_u64() {
        assert!((32 * MIB..=64 * MIB).contains(&peak), "{peak}");
    }
    assert_eq!(bundle.state()["status"], "running");
    bundle.sh("kill -KILL $$").expect(137);
    assert_eq!(bundle.show()["end"]["kind"], "signaled");
}

/// What a directory takes on disk, in bytes. Not what its filesystem has left: others write there too.
fn used(path: &std::path::Path) -> u64 {
    let text = Cmd::new("du").args(["--summarize", "--block-size=1"]).arg(path).ok();
    text.split_whitespace().next().and_then(|size| size.parse().ok()).expect("a size")
}

/// A command that fills the disk is ended, its layer discarded, and the space is there again. What was there before stays.
#[test]
fn a_disk_bomb_is_ended_and_its_layer_discarded() {
    let env = strict("[limits]\nlayer = '16MiB'\n");
    let bundle = Bundle::running(&env);
    bundle.sh("echo kept >/kept").expect(0);
    let before = used(&env.store);
    let ended = bundle.sh("dd if=/dev/zero of=/big bs=1M count=64 2>/dev/null; sleep 60");
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    assert!(ended.took < Duration::from_secs(20), "{:?}", ended.took);
    let result = bundle.show();
    assert_eq!((&result["end"]["kind"], &result["disposition"]), (&json!("error"), &json!("discarded")), "{result}");
    let message = result["end"]["message"].as_str().expect("a message");
    assert!(message.starts_with("layer limit of 16 MiB exceeded"), "{message}");
    assert_eq!(result["changes"][0]["path"], "/big");
    assert_eq!(bundle.sh("ls /; cat /kept").ok().lines().filter(|l| *l == "big" || *l == "kept").count(), 2);
    wait_until("the space is free again", Duration::from_secs(20), || used(&env.store) < before + MIB);
    // Below the limit nothing happens, however it is written.
    bundle.sh("dd if=/dev/zero of=/small bs=1M count=8 2>/dev/null; truncate -s 1T /sparse; sleep 1").expect(0);
    assert_eq!(bundle.show()["disposition"], "committed");
}

/// One that has ended before it was looked at is found at its end; an allocation without a size counts.
#[test]
fn a_layer_that_is_too_large_at_the_end_is_not_committed() {
    let env = strict("[limits]\nlayer = '16MiB'\n");
    let bundle = Bundle::running(&env);
    let ended = bundle.sh("fallocate -l 67108864 /big");
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    assert_eq!(bundle.show()["disposition"], "discarded");
    bundle.sh("test ! -e /big").expect(0);
    // Also where it was to be held, and the engine only sees its code.
    bundle.sh_with(["--layer", "hold"], "fallocate -l 67108864 /big").expect(137);
    assert_eq!(bundle.show()["disposition"], "discarded");
}

/// Space that has no name: a file is written that was unlinked while it was open.
#[test]
fn an_unlinked_file_counts() {
    let env = strict("[limits]\nlayer = '16MiB'\n");
    let bundle = Bundle::running(&env);
    let ended = bundle.sh("exec 3>/big; rm /big; dd if=/dev/zero bs=1M count=64 2>/dev/null >&3; sleep 60");
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    assert!(bundle.show()["end"]["message"].as_str().is_some_and(|m| m.contains("layer limit")), "{}", bundle.show());
}

/// Very many files are as bad as large ones.
#[test]
fn a_million_files_are_too_many() {
    let env = strict("[limits]\nlayer = '8MiB'\n");
    let bundle = Bundle::running(&env);
    let ended = bundle.sh("mkdir /d; n=0; while :; do n=$((n+1)); : >/d/$n; done");
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    let result = bundle.show();
    let message = result["end"]["message"].as_str().expect("a message");
    assert!(
        message.starts_with("layer limit of 1638 files") || message.starts_with("layer limit of 8 MiB"),
        "{message}"
    );
    assert_eq!(result["disposition"], "discarded");
    bundle.sh("test ! -e /d").expect(0);
}

/// What `usage` says of execs one after the other: CPU time, memory, processes, bytes.
#[test]
fn usage_is_what_was_used() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let of = |script: &str| {
        bundle.sh(script).expect(0);
        bundle.show()["usage"].clone()
    };
    let number = |usage: &Value, field: &str| usage[field].as_u64().unwrap_or_else(|| panic!("no {field}: {usage}"));

    // A second of CPU time by the shell's own count of it.
    let usage = of("while :; do for i in 1 2 3 4 5 6 7 8 9; do :; done; \
        set -- $(cut -d' ' -f14,15 /proc/$$/stat); [ $(($1 + $2)) -ge 100 ] && break; done");
    let cpu = number(&usage, "userNs") + number(&usage, "systemNs");
    // Besides its own there is that of very many `cut`s, on the same CPUs.
    assert!(cpu >= 950_000_000 && cpu <= 2 * number(&usage, "wallNs") + 100_000_000, "{usage}");

    let idle = of("true");
    assert!(number(&idle, "userNs") + number(&idle, "systemNs") < 200_000_000, "{idle}");
    assert!(number(&idle, "writtenBytes") < MIB, "{idle}");

    let usage = of("head -c 10485760 /dev/zero >/ten; cp /ten /again; rm /again");
    let written = number(&usage, "writtenBytes");
    assert!((20 * MIB..=22 * MIB).contains(&written), "{usage}");
    // By a process that was left and killed.
    let usage = of("(head -c 10485760 /dev/zero >/left; sleep 100) & sleep 1");
    let written = number(&usage, "writtenBytes");
    assert!((10 * MIB..=11 * MIB).contains(&written), "{usage}");
    // A tmpfs is no disk.
    let usage = of("head -c 10485760 /dev/zero >/dev/shm/ten");
    assert!(number(&usage, "writtenBytes") < MIB, "{usage}");

    if !idle["peakMemoryBytes"].is_null() {
        let usage = of("x=$(head -c 30m /dev/zero | tr '\\0' x); true");
        let peak = number(&usage, "peakMemoryBytes");
        assert!((30 * MIB..=200 * MIB).contains(&peak), "{usage}");
        assert!(number(&idle, "peakMemoryBytes") < 20 * MIB, "{idle}");
    }
    if !idle["maxPids"].is_null() {
        assert_eq!(number(&of("for i in 1 2 3 4 5 6 7 8 9; do sleep 1 & done; wait"), "maxPids"), 10);
    }
}

/// Of execs at the same time each has its own.
#[test]
fn usage_of_parallel_execs_is_each_ones_own() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let start = |name: &str, script: &str| {
        let result = env.dir.join(format!("{name}.json"));
        let flags = ["exec", "--layer", "discard", "--result"];
        (env.cmd(flags).arg(&result).args([&bundle.id, "sh", "-c", script]).spawn(), result)
    };
    let scripts = [
        ("writes", "head -c 20971520 /dev/zero >/f; sleep 2"),
        ("forks", "for i in 1 2 3 4 5 6 7 8 9; do sleep 2 & done; wait"),
        ("sleeps", "sleep 2; true"),
        ("burns", "while :; do set -- $(cut -d' ' -f14,15 /proc/$$/stat); [ $(($1 + $2)) -ge 50 ] && break; done"),
        ("holds", "x=$(head -c 30m /dev/zero | tr '\\0' x); sleep 2"),
    ];
    let running = scripts.map(|(name, script)| start(name, script));
    let usages = running.map(|(exec, result)| {
        exec.wait().expect(0);
        let text = fs::read_to_string(result).expect("read a result");
        serde_json::from_str::<Value>(&text).expect("JSON")["usage"].clone()
    });
    let [writes, forks, sleeps, burns, holds] = &usages;
    let of = |usage: &Value, field: &str| usage[field].as_u64().unwrap_or_else(|| panic!("no {field}: {usage}"));
    assert!((20 * MIB..=21 * MIB).contains(&of(writes, "writtenBytes")), "{writes}");
    for other in [forks, sleeps, burns, holds] {
        assert!(of(other, "writtenBytes") < MIB, "{other}");
    }
    let cpu = |usage| of(usage, "userNs") + of(usage, "systemNs");
    // The shell's own half second, and that of its many children.
    assert!(cpu(burns) >= 450_000_000 && cpu(sleeps) < 200_000_000, "{burns} {sleeps}");
    if !sleeps["maxPids"].is_null() {
        assert_eq!((of(forks, "maxPids"), of(sleeps, "maxPids")), (10, 2));
    }
    if !sleeps["peakMemoryBytes"].is_null() {
        assert!(
            of(holds, "peakMemoryBytes") > 30 * MIB && of(sleeps, "peakMemoryBytes") < 20 * MIB,
            "{holds} {sleeps}"
        );
    }
}

/// Of two execs that end by SIGKILL at the same time only the one that took too much memory is told so.
#[test]
fn of_parallel_ends_only_one_is_out_of_memory() {
    let env = strict("[limits]\nmemory = '64MiB'\n");
    let bundle = Bundle::running(&env);
    let start = |name: &str, script: &str| {
        let result = env.dir.join(format!("{name}.json"));
        (env.cmd(["exec", "--result"]).arg(&result).args([&bundle.id, "sh", "-c", script]).spawn(), result)
    };
    let killed = start("killed", "sleep 4; kill -KILL $$");
    let bomb = start("bomb", "sleep 1; x=$(head -c 200m /dev/zero | tr '\\0' x)");
    let kinds = [killed, bomb].map(|(exec, result)| {
        exec.wait().expect(137);
        let text = fs::read_to_string(result).expect("read a result");
        serde_json::from_str::<Value>(&text).expect("JSON")["end"]["kind"].clone()
    });
    assert_eq!(kinds, [json!("signaled"), json!("oom")]);
}

/// A process that moved itself out of its exec's groups, which it can where they are mounted writable, ends with the exec.
#[test]
fn what_leaves_the_execs_groups_ends_with_it() {
    let env = Env::new();
    let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
    let mounts = bundle.config["mounts"].as_array_mut().expect("mounts");
    mounts.push(json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"]}));
    bundle.start();
    let moved = bundle
        .sh("(while :; do sleep 1; done) & for procs in $(find /sys/fs/cgroup -name cgroup.procs -maxdepth 2); do \
         echo $! >$procs; done; cat /proc/$!/cgroup >&2; touch /f");
    moved.clone().expect(0);
    println!("{}", moved.stderr);
    let survivors = bundle.show()["survivorsKilled"].as_u64();
    assert!(survivors.is_some_and(|n| n >= 1), "{}", bundle.show());
    assert_eq!(bundle.exec(["ps"]).ok().matches("while").count(), 0);
    assert_eq!(bundle.state()["status"], "running");
}

/// A disk of the store's own, mounted with project quotas, where this kernel can: there a command meets the limit itself.
#[test]
fn a_filesystem_with_project_quotas_refuses_what_is_too_much() {
    for (kind, make, words) in [
        (
            "ext4",
            ["mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"].as_slice(),
            "Disk quota exceeded",
        ),
        ("xfs", ["mkfs.xfs", "-q"].as_slice(), "No space left on device"),
    ] {
        let env = strict("[limits]\nlayer = '16MiB'\n");
        let (image, point) = (env.dir.join("image"), env.dir.join("store"));
        fs::create_dir(&point).expect("mkdir");
        Cmd::new("truncate").args(["-s", "400M"]).arg(&image).ok();
        Cmd::new(make[0]).args(&make[1..]).arg(&image).ok();
        let mount = Cmd::new("mount").args(["-t", kind, "-o", "loop,prjquota"]).args([&image, &point]).run();
        if mount.code != 0 {
            println!("{kind} with project quotas can't be mounted here: {}", mount.stderr);
            continue;
        }
        let _mounted = Mounted(point.clone());
        fs::set_permissions(&point, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("chmod");
        quota_holds(&env, words);
    }
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn quota_holds(env: &Env, words: &str) {
    let bundle = Bundle::running(env);
    // A file that was copied up, too: it is made in the overlay's work directory and moved.
    bundle.sh("head -c 4194304 /dev/zero >/four").expect(0);
    let output = bundle.sh("chmod 600 /four; dd if=/dev/zero of=/big bs=1M count=64; ls -l /big; df -k / | tail -n 1");
    output.clone().expect(0);
    assert!(output.stderr.contains(words), "{words} is not in {}", output.stderr);
    let result = bundle.show();
    assert_eq!((&result["end"]["kind"], &result["disposition"]), (&json!("exited"), &json!("committed")), "{result}");
    let big = result["changes"].as_array().expect("changes").iter().find(|c| c["path"] == "/big").expect("/big");
    let size = big["size"].as_u64().expect("a size");
    assert!((8 * MIB..=16 * MIB).contains(&size), "{size}");
    // Each exec has its own limit, and of files there is one too.
    bundle.sh("head -c 8388608 /dev/zero >/eight").expect(0);
    let output = bundle.sh("mkdir /d; n=0; while : >/d/$n; do n=$((n+1)); done");
    assert!(output.stderr.contains(words), "{words} is not in {}", output.stderr);
    assert_eq!(bundle.show()["end"]["kind"], "exited");
    let made = bundle.sh("ls /d | wc -l").ok().trim().parse::<u64>().expect("a number");
    assert!((3000..=3300).contains(&made), "{made}");
    bundle.env.run(["delete", "--force", &bundle.id]).expect(0);
}
