//! Power that an image, an engine or a process asks for beyond what the profile gives.

use super::lab::{ASKS, Asks, PLACES, Place, at, hostile, outcomes, serving, strict};
use crate::support::Env;

/// What any process may have at most, bits of `<linux/capability.h>`: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID,
/// SETUID, NET_BIND_SERVICE, SYS_CHROOT, SETFCAP.
const MOST: u64 = 0xfb | 1 << 10 | 1 << 18 | 1 << 31;

fn mask(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// No process has a capability beyond the few, now or after any execve, nor runs without a filter or with new privileges.
#[test]
fn no_process_has_more_than_the_profile_gives() {
    let env = strict();
    for asks in ASKS {
        let bundle = serving(&env, asks);
        for place in PLACES {
            let output = at(place, &bundle, &["identity"]);
            if place.may_be_refused() && output.code == 255 {
                continue;
            }
            let got = outcomes(&output.stdout);
            for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                let beyond = mask(&got[set]) & !MOST;
                assert_eq!(beyond, 0, "{asks:?} {place:?}: {set} has {beyond:#x} too much: {got:?}");
            }
            assert_eq!((got["NoNewPrivs"].as_str(), got["Seccomp"].as_str()), ("1", "2"), "{asks:?} {place:?}");
        }
    }
}

/// A setuid program and one with file capabilities, of the image, run by a user: nothing is gained.
#[test]
fn programs_of_the_image_give_no_privileges() {
    let env = strict();
    let running = serving(&env, Asks::Usual);
    for program in ["/attack-setuid", "/attack-capable"] {
        let mut first = hostile(&env, Asks::Usual, [program, "identity"]);
        first.config["process"]["user"] = serde_json::json!({"uid": 1000, "gid": 1000});
        let exec = |options: &[&str]| env.cmd(["exec"]).args(options).args([&running.id, program, "identity"]).run();
        let user = ["--user", "1000:1000"];
        for output in [first.run(), exec(&user), exec(&[&["--layer", "shared"], &user as &[&str]].concat())] {
            let got = outcomes(&output.stdout);
            // One that the kernel will not run at all gains nothing either.
            if got.is_empty() && output.both().to_lowercase().contains("operation not permitted") {
                continue;
            }
            assert_eq!((got["uid"].as_str(), got["euid"].as_str()), ("1000", "1000"), "{program}: {}", output.both());
            assert_eq!((mask(&got["CapEff"]), mask(&got["CapPrm"])), (0, 0), "{program}: {got:?}");
        }
    }
}

/// A setuid program made by an exec, under a name, a link and a hard link of its own, gives the next exec's user nothing.
#[test]
fn setuid_programs_that_an_exec_makes_give_nothing() {
    let env = strict();
    let bundle = serving(&env, Asks::Usual);
    bundle
        .sh("cp /attack /made && chmod 6755 /made && ln /made /hard && ln -s /made /soft && mkdir /d && ln /made /d/x")
        .expect(0);
    for program in ["/made", "/hard", "/soft", "/d/x"] {
        let got = outcomes(&env.cmd(["exec", "--user", "1000:1000", &bundle.id, program, "identity"]).run().ok());
        assert_eq!((got["euid"].as_str(), mask(&got["CapEff"])), ("1000", 0), "{program}: {got:?}");
    }
    // Also when they came in with a mount: shared memory is common to all.
    bundle.sh("cp /attack /dev/shm/made && chmod 6755 /dev/shm/made").expect(0);
    let output = env.cmd(["exec", "--user", "1000:1000", &bundle.id, "/dev/shm/made", "identity"]).run();
    assert!(output.code != 0 || outcomes(&output.stdout)["euid"] == "1000", "{}", output.both());
}

/// An annotation that loosens the profile is refused where the configuration does not allow it.
#[test]
fn an_annotation_does_not_loosen_the_profile() {
    let env = strict();
    let bundle = hostile(&env, Asks::Usual, ["/attack", "identity"]).annotate("dev.agentsbx.profile", "oci");
    let output = bundle.run();
    assert_ne!(output.code, 0, "{}", output.both());
    assert!(output.stderr.contains("dev.agentsbx.profile") && outcomes(&output.stdout).is_empty(), "{}", output.both());
}

/// Variables of the image's environment are no orders to the runtime: layer, timeout and profile are its owner's affair.
#[test]
fn an_images_environment_loosens_nothing() {
    let env = strict();
    let mut bundle = hostile(&env, Asks::Usual, ["sleep", "100000"]);
    let list = bundle.config["process"]["env"].as_array_mut().expect("variables");
    for pair in [
        "AGENTSBX_LAYER=shared",
        "AGENTSBX_TIMEOUT=0",
        "AGENTSBX_ORPHANS=wait",
        "AGENTSBX_PROFILE=oci",
        "AGENTSBX_STORE=/tmp",
        "AGENTSBX_CONFIG=/attack",
        "LD_PRELOAD=/attack",
        "LD_LIBRARY_PATH=/",
        "GCONV_PATH=/",
        "GLIBC_TUNABLES=glibc.malloc.check=3",
    ] {
        list.push(pair.into());
    }
    bundle.start();
    let got = outcomes(&at(Place::Exec, &bundle, &["identity"]).stdout);
    assert_eq!((got["NoNewPrivs"].as_str(), got["Seccomp"].as_str()), ("1", "2"), "{got:?}");
    // On a layer of its own: the change is told, and not in the first process's files.
    bundle.sh("echo x >/written").expect(0);
    assert_eq!(bundle.show()["disposition"], "committed");
    assert!(!bundle.rootfs.join("written").exists());
    // What it leaves running is ended.
    bundle.sh("sleep 4321 & exit 0").expect(0);
    assert_eq!(bundle.show()["survivorsKilled"], 1);
}

/// Where no policy stands in the way the same programs do give privileges.
#[test]
fn the_programs_of_the_image_work_without_the_profile() {
    let env = Env::with_config("profile = 'oci'\n");
    let bundle = serving(&env, Asks::Everything);
    let run =
        |program: &str| outcomes(&env.cmd(["exec", "--user", "1000:1000", &bundle.id, program, "identity"]).run().ok());
    assert_eq!(run("/attack-setuid")["euid"], "0");
    let got = run("/attack-capable");
    assert!(mask(&got["CapEff"]) & !MOST != 0 && got["euid"] == "1000", "{got:?}");
}
