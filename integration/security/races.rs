//! Paths that are swapped for symbolic links while the runtime resolves them: mount points, and what a diff, a commit and
//! a rollback read and write.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use super::host::{Canary, mounts_below};
use super::lab::{Asks, hostile, outcomes, serving, strict};
use crate::support::bundle::Bundle;
use crate::support::{Cmd, Env, env, result, wait_until};

/// Adds a bind mount of a directory of the host.
fn bind(bundle: &mut Bundle<'_>, source: &std::path::Path, destination: &str) {
    let mount = json!({"destination": destination, "type": "bind", "source": source, "options": ["rbind", "rw"]});
    bundle.config["mounts"].as_array_mut().expect("mounts").push(mount);
}

/// Starts a container whose first process swaps `path` (in its volume /vol) between a directory and a link to `target`.
fn swapper<'e>(env: &'e Env, volume: &std::path::Path, target: &str, seconds: u64) -> Bundle<'e> {
    let seconds = seconds.to_string();
    let mut bundle = hostile(env, Asks::Usual, ["/attack", "swap", "/vol/sub", target, &seconds]);
    bind(&mut bundle, volume, "/vol");
    bundle.start();
    wait_until("the swapper", Duration::from_secs(10), || {
        fs::read_to_string(bundle.dir.join("out")).is_ok_and(|text| text.contains("swapping"))
    });
    bundle
}

/// CVE-2021-30465: two containers share a volume; one swaps a directory in it for a link while mounts on it are made for
/// the other. Whatever comes of it, nothing is mounted or made outside, and nothing of the host is inside.
///
/// With `mapped` ids are mapped (to themselves) on what the other container has of it: such mounts are made in another way.
fn shared_volume(profile: &str, seconds: u64, mapped: bool) {
    let env = Env::with_config(profile);
    let canary = Canary::new(&env);
    let volume = env.dir.join("volume");
    fs::create_dir_all(volume.join("sub")).expect("mkdir");
    let above = "../../../../../../../../../../../..";
    let marker = env::unique("attack-mark");
    let mounts = mounts_below(&env.dir);
    let mut made = 0;
    let host = canary.dir.display().to_string();
    for target in [above.to_owned(), "/".to_owned(), host, "/proc/self/root".to_owned(), "/proc".to_owned()] {
        let swapping = swapper(&env, &volume, &target, seconds + 30);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(seconds * 1000 / 5) {
            let mut other = hostile(&env, Asks::Usual, ["/attack", "find", &canary.name]);
            bind(&mut other, &volume, "/vol");
            // Made where they are missing: a directory that would show outside.
            for n in 0..3 {
                let destination = format!("/vol/sub/{marker}-{n}");
                let tmpfs =
                    json!({"destination": destination, "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]});
                other.config["mounts"].as_array_mut().expect("mounts").push(tmpfs);
            }
            // So is a working directory.
            if made % 2 == 1 {
                other.config["process"]["cwd"] = format!("/vol/sub/{marker}-3").into();
            }
            bind(&mut other, &volume, "/vol/sub/again");
            let mounts = other.config["mounts"].as_array_mut().expect("mounts");
            for mount in mounts.iter_mut().filter(|mount| mapped && mount["source"] == json!(volume)) {
                for name in ["uidMappings", "gidMappings"] {
                    mount[name] = json!([{"containerID": 0, "hostID": 0, "size": 65_536}]);
                }
            }
            let output = other.run();
            if output.code == 0 {
                made += 1;
                let got = outcomes(&output.stdout);
                assert_eq!(got["found"], "0", "{target}: {}", output.both());
            }
            let _ = fs::remove_dir_all(&other.dir);
        }
        env.ok(["delete", "--force", &swapping.id]);
        assert_eq!(mounts_below(&env.dir), mounts, "{target}");
        let _ = fs::remove_dir_all(volume.join("sub"));
        let _ = fs::remove_file(volume.join("sub"));
        let _ = fs::remove_file(volume.join("sub.other"));
        let _ = fs::remove_dir_all(volume.join("sub.other"));
    }
    for n in 0..4 {
        let outside = std::path::PathBuf::from(format!("/{marker}-{n}"));
        assert!(!outside.exists(), "{} was made", outside.display());
    }
    assert!(!canary.dir.join("again").exists());
    canary.assert_untouched(&[]);
    assert!(made > 0, "no container was ever made: the race was not played");
}

/// Under the default profile.
#[test]
fn mounts_on_a_volume_that_another_container_swaps_stay_inside() {
    shared_volume("", 5, false);
}

/// And without it: this is not the profile's work.
#[test]
fn mounts_on_a_swapped_volume_stay_inside_without_the_profile() {
    shared_volume("profile = 'oci'\n", 5, false);
}

/// Mounts that map ids are put in place by another hand.
#[test]
fn mounts_on_a_swapped_volume_that_maps_ids_stay_inside() {
    shared_volume("", 5, true);
}

/// The same for longer.
#[test]
#[ignore = "ten minutes"]
fn long_mounts_on_a_volume_that_another_container_swaps_stay_inside() {
    for profile in ["", "profile = 'oci'\n"] {
        shared_volume(profile, 200, false);
    }
    for profile in ["", "profile = 'oci'\n"] {
        shared_volume(profile, 100, true);
    }
}

/// Execs change files below a directory that the first process swaps for a link out of the container, while their layers
/// are compared with what is below, committed and taken back.
fn swapped_below(rounds: u32) {
    let env = strict();
    let canary = Canary::new(&env);
    let bundle = serving(&env, Asks::Usual);
    let up = format!("../../../../../../../../../../..{}", canary.dir.display());
    let root = &bundle.rootfs;
    for name in ["absolute", "relative"] {
        fs::create_dir_all(root.join(name).join("sub")).expect("mkdir");
        fs::write(root.join(name).join(&canary.name), "a file of the image\n").expect("write");
        fs::write(root.join(name).join("sub/file"), "a file of the image\n").expect("write");
    }
    let host = canary.dir.display().to_string();
    let swap = |name: &str, target: &str| {
        let out = bundle.dir.join(format!("swap-{name}"));
        let exec = env.cmd(["exec", "--detach", "--timeout", "0", "--layer", "shared", &bundle.id]);
        exec.args(["/attack", "swap", &format!("/{name}"), target, "600"]).output_to(&out).run().expect(0);
        wait_until("the swapper", Duration::from_secs(10), || {
            fs::read_to_string(&out).is_ok_and(|t| t.contains("swapping"))
        });
    };
    swap("absolute", &host);
    swap("relative", &up);
    let script = format!(
        "for d in absolute relative; do echo new >/$d/{0}; rm -f /$d/sub/file; mkdir -p /$d/more; done 2>/dev/null; \
         mv /absolute /moved 2>/dev/null; ln -sfn {host} /relative 2>/dev/null; echo x >/always; exit 0",
        canary.name
    );
    let mut shown = Vec::new();
    for round in 0..rounds {
        let modes = ["hold", "commit", "discard"];
        let output = bundle.sh_with(["--layer", modes[round as usize % 3]], &script);
        assert_eq!(output.code, 0, "{}", output.both());
        let show = bundle.show();
        if result::disposition(&show) == "held" {
            let exec = result::exec(&show).to_owned();
            shown.push(env.run(["commit", &bundle.id, &exec, "--force"]).both());
        }
        shown.push(show.to_string());
        shown.push(env.run(["diff", &bundle.id, "--patch"]).both());
        shown.push(env.run(["rollback", &bundle.id, "0"]).both());
    }
    let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
    assert!(shown.iter().any(|text| text.contains("always")), "no change was ever seen");
    canary.assert_untouched(&shown);
    // Nor did the diff read it and say no more than that it is the same.
    for text in shown {
        assert!(!text.contains("a file of the host"), "{text}");
    }
}

/// Short.
#[test]
fn a_diff_of_what_is_swapped_meanwhile_stays_inside() {
    swapped_below(15);
}

/// Long.
#[test]
#[ignore = "minutes"]
fn a_long_diff_of_what_is_swapped_meanwhile_stays_inside() {
    swapped_below(1500);
}

/// Links that are there from the start, in the places where an exec's changes are: out of the root, to /proc, in a circle.
#[test]
fn links_out_of_the_root_are_not_followed() {
    let env = strict();
    let canary = Canary::new(&env);
    let bundle = hostile(&env, Asks::Usual, ["sleep", "100000"]);
    let host = canary.dir.display().to_string();
    for (name, target) in [
        ("out", host.as_str()),
        ("first", "/proc/1/root"),
        ("own", "/proc/self/root"),
        ("circle", "/circle"),
        ("up", "../../../../../.."),
    ] {
        std::os::unix::fs::symlink(target, bundle.rootfs.join(name)).expect("symlink");
    }
    bundle.start();
    let script = format!(
        "mkdir -p {host}/sub; echo changed >{host}/{0}; echo changed >{host}/sub/file; \
         rm /out /first /own /circle /up; for d in out first own circle up; do mkdir -p /$d/sub; echo {0} >/$d/{0}; done",
        canary.name
    );
    bundle.sh(&script).expect(0);
    let diff = env.ok(["diff", &bundle.id, "--patch"]);
    // Inside there is such a path now, of the container's own.
    assert!(diff.contains(&canary.name), "{diff}");
    let list = Cmd::new("find").arg(&canary.dir).run().ok();
    canary.assert_untouched(&[&diff, &bundle.show().to_string()]);
    env.ok(["rollback", &bundle.id, "0"]);
    env.ok(["reset", &bundle.id]);
    assert_eq!(Cmd::new("find").arg(&canary.dir).run().ok(), list);
    canary.assert_untouched(&[]);
}

/// One container's changes of a copy-on-write mount are applied to the host's directory while another, which has that
/// directory itself, swaps what is in it for a link: nothing outside is written or deleted.
fn applied_below(rounds: u32) {
    let env = strict();
    let canary = Canary::new(&env);
    let volume = env.dir.join("project");
    fs::create_dir_all(volume.join("sub")).expect("mkdir");
    let up = format!("../../../../../../../../../../..{}", canary.dir.display());
    let mut done = 0;
    for target in [canary.dir.display().to_string(), up] {
        let swapping = swapper(&env, &volume, &target, 600);
        let mut bundle = hostile(&env, Asks::Usual, ["sleep", "100000"]);
        bind(&mut bundle, &volume, "/work");
        bundle.config["annotations"] = json!({"dev.agentsbx.mounts": r#"{"/work": "cow"}"#});
        bundle.start();
        for round in 0..rounds {
            let script = format!(
                "cd /work; rm -rf sub; mkdir -p sub/sub; echo {round} >sub/{0}; echo {round} >sub/sub/file; \
                 echo {round} >sub/new; echo {round} >beside",
                canary.name
            );
            bundle.sh(&script).expect(0);
            for options in [&[] as &[&str], &["--force"]] {
                done += u32::from(env.cmd(["apply", &bundle.id]).args(options).run().code == 0);
            }
        }
        for id in [&swapping.id, &bundle.id] {
            env.ok(["delete", "--force", id]);
        }
        for name in ["sub", "sub.other"] {
            let _ = fs::remove_file(volume.join(name));
            let _ = fs::remove_dir_all(volume.join(name));
        }
        canary.assert_untouched(&[]);
    }
    assert!(done > 0 && volume.join("beside").exists(), "nothing was ever applied");
}

/// Short.
#[test]
fn applying_what_is_swapped_meanwhile_stays_inside() {
    applied_below(8);
}

/// Long.
#[test]
#[ignore = "minutes"]
fn a_long_applying_of_what_is_swapped_meanwhile_stays_inside() {
    applied_below(400);
}
