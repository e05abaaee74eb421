//! What of the host and of the runtime could be seen from inside: descriptors, processes, files, working directories.

use std::time::Duration;

use super::host::Canary;
use super::lab::{ASKS, Asks, PLACES, Place, at, hostile, outcomes, serving, strict};
use crate::support::bundle::Bundle;
use crate::support::{Env, wait_until};

/// Only the three streams are open, in the first process and in execs, and pid 1 of an exec has no more.
#[test]
fn only_the_streams_are_open() {
    let env = strict();
    let bundle = serving(&env, Asks::Everything);
    for place in PLACES {
        if place.may_be_refused() {
            continue;
        }
        for of in ["self", "1"] {
            let output = at(place, &bundle, &["descriptors", of]);
            // Names of another process's descriptors are seen, what is behind them is not.
            let names: Vec<&str> = output.stdout.lines().filter_map(|l| l.split(' ').nth(1)).collect();
            let open = names.iter().all(|name| ["0", "1", "2"].contains(name)) && names.len() <= 3;
            assert!(open || names == ["EACCES"], "{place:?} {of}: {}", output.both());
            assert!(of == "1" || names.len() == 3, "{place:?}: {}", output.both());
        }
    }
}

/// No process but the container's own is visible: not the supervisor, nothing of the host.
#[test]
fn no_process_of_the_host_is_visible() {
    let env = strict();
    for asks in ASKS {
        let bundle = serving(&env, asks);
        for place in PLACES {
            let output = at(place, &bundle, &["processes"]);
            if place.may_be_refused() && output.code == 255 {
                continue;
            }
            let names: Vec<&str> = output.stdout.lines().filter_map(|l| l.split(' ').nth(2)).collect();
            let own = names.iter().all(|name| *name == "attack");
            assert!(own && (1..=3).contains(&names.len()), "{asks:?} {place:?}: {}", output.both());
        }
    }
}

/// What is in the container's pid namespace before it is the command, of a container that waits or of an exec that begins,
/// shows no argument of the runtime's: they are paths of the host.
#[test]
fn no_argument_of_the_runtime_is_visible() {
    for profile in ["strict", "oci"] {
        let env = Env::with_config(&format!("profile = '{profile}'\n"));
        let script = "while :; do cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'; done 2>/dev/null";
        let bundle = Bundle::new(&env, ["sh", "-c", script]);
        bundle.start();
        let seen = || std::fs::read_to_string(bundle.dir.join("out")).expect("read");
        wait_until("an exec that begins", Duration::from_secs(60), || {
            bundle.sh("true").expect(0);
            seen().contains("agentsbx init")
        });
        for word in ["--root", "exec", &env.root.display().to_string()] {
            assert!(!seen().lines().any(|line| line == word), "{profile}: {word} was seen");
        }
    }
}

/// A file of the host that the container was not given is nowhere to be found.
#[test]
fn no_file_of_the_host_is_visible() {
    let env = strict();
    let canary = Canary::new(&env);
    for asks in ASKS {
        let bundle = serving(&env, asks);
        for place in [Place::First, Place::Exec, Place::Shared] {
            let got = outcomes(&at(place, &bundle, &["find", &canary.name]).stdout);
            assert!(got["looked"].parse::<u32>().expect("a number") > 300, "{asks:?} {place:?}: {got:?}");
            assert_eq!(got["found"], "0", "{asks:?} {place:?}: {got:?}");
        }
    }
    canary.assert_untouched(&[]);
}

/// No file of the kernel below /proc and /sys can be opened for writing, cgroups included; no directory takes a new one.
#[test]
fn nothing_of_the_kernel_can_be_written() {
    let env = strict();
    for asks in ASKS {
        let bundle = serving(&env, asks);
        for place in [Place::First, Place::Exec, Place::Shared] {
            let output = at(place, &bundle, &["walk", "/proc", "/sys"]);
            let got = outcomes(&output.stdout);
            assert!(got["looked"].parse::<u32>().expect("a number") > 1000, "{asks:?} {place:?}: {got:?}");
            assert_eq!(got["found"], "0", "{asks:?} {place:?}: {}", output.stdout);
        }
    }
}

/// The same search where nothing stands in its way finds much.
#[test]
fn the_kernels_files_can_be_written_without_the_profile() {
    let env = Env::with_config("profile = 'oci'\n");
    let bundle = serving(&env, Asks::Everything);
    let got = outcomes(&at(Place::First, &bundle, &["walk", "/proc", "/sys"]).stdout);
    assert!(got["found"].parse::<u32>().expect("a number") > 100, "{got:?}");
}

/// CVE-2024-21626: a working directory behind a descriptor that the runtime might have left open.
#[test]
fn a_working_directory_behind_a_descriptor_is_refused() {
    let env = strict();
    let running = hostile(&env, Asks::Usual, ["sleep", "100000"]);
    for n in 3..=20 {
        let link = running.rootfs.join(format!("work-{n}"));
        std::os::unix::fs::symlink(format!("/proc/self/fd/{n}"), link).expect("symlink");
    }
    running.start();
    let mut first = hostile(&env, Asks::Usual, ["/attack", "find", "no-such-name"]);
    for n in 3..=20 {
        let link = first.rootfs.join(format!("work-{n}"));
        std::os::unix::fs::symlink(format!("/proc/self/fd/{n}"), link).expect("symlink");
        let layers: [&[&str]; 2] = [&[], &["--layer", "shared"]];
        for cwd in [format!("/proc/self/fd/{n}"), format!("/work-{n}"), format!("/proc/self/fd/{n}/../../..")] {
            let options = layers[n % 2];
            let output =
                env.cmd(["exec", "--cwd", &cwd]).args(options).args([&running.id, "sh", "-c", "pwd; ls"]).run();
            assert_eq!((output.code, output.stdout.as_str()), (255, ""), "exec {cwd}: {}", output.both());
        }
        for cwd in [format!("/proc/self/fd/{n}"), format!("/work-{n}")] {
            first.config["process"]["cwd"] = cwd.clone().into();
            let output = first.run();
            assert!(output.code != 0 && output.stdout.is_empty(), "run {cwd}: {}", output.both());
        }
    }
}
