//! System calls, devices and files of the kernel that a container has no business with.

use super::host::Canary;
use super::lab::{ASKS, Asks, PLACES, at, hostile, outcomes, serving, strict};
use crate::support::Env;

/// What the kernel may answer to a row of the attacker's tables.
fn refusals(name: &str) -> &'static [&'static str] {
    /// A signal is the answer of a filter to another architecture's calls.
    const BAD_SYSTEM_CALL: &str = "signal:31";
    match name {
        // Masked files are empty; some this kernel does not have.
        _ if name.starts_with("read:") => &["ENODATA", "ENOENT", "EACCES", "EPERM"],
        _ if name.starts_with("write:") => &["EROFS", "EACCES", "EPERM", "ENOENT"],
        // Programs look for it and fall back to clone only after ENOSYS.
        _ if name.starts_with("clone3-") => &["ENOSYS"],
        _ if name.starts_with("int80-") || name.starts_with("x32-") => &["EPERM", "ENOSYS", BAD_SYSTEM_CALL],
        _ if name.starts_with("image-") => &["EACCES", "EPERM"],
        // Where nothing can be made, the last place tried says why.
        _ if name.starts_with("mknod-") => &["EPERM", "EACCES"],
        "dev-mem" | "dev-kmsg" => &["ENOENT"],
        "socket-alg" | "socket-vsock" => &["EPERM", "EACCES", "EAFNOSUPPORT"],
        "socket-packet" => &["EPERM", "EAFNOSUPPORT"],
        "socket-raw" | "socket-raw6" => &["EPERM"],
        _ => &["EPERM", "ENOSYS"],
    }
}

/// How many attacks the tables have, at least: a run that ended early is none.
const ATTACKS: usize = 150;

/// Every attack of the tables, in the first process and in execs of all kinds, whatever the engine asks for.
#[test]
fn every_attack_on_the_kernel_is_refused() {
    let env = strict();
    let canary = Canary::new(&env);
    let mut wrong = Vec::new();
    for asks in ASKS {
        let bundle = serving(&env, asks);
        for place in PLACES {
            let output = at(place, &bundle, &["tables"]);
            if place.may_be_refused() && output.code == 255 {
                // Asking for it at all may be refused.
                continue;
            }
            let got = outcomes(&output.stdout);
            assert!(got.len() >= ATTACKS, "{asks:?} {place:?}: {} attacks: {}", got.len(), output.both());
            for (name, outcome) in got {
                if !refusals(&name).contains(&outcome.as_str()) {
                    wrong.push(format!("{asks:?} {place:?} {name}: {outcome}"));
                }
            }
        }
    }
    canary.assert_untouched(&[]);
    assert!(wrong.is_empty(), "{} attacks were not refused: {wrong:#?}", wrong.len());
}

/// What not every kernel or machine has, so that it fails where nothing stands in its way too: here no module loading,
/// kexec, port access, x32, `/dev/mem`; the kernel's own limits; files of one cgroup version only; a disk that the tests'
/// own surroundings do not let them read.
const NOT_EVERYWHERE: &[&str] = &[
    "delete_module",
    "finit_module",
    "init_module",
    "kexec_file_load",
    "kexec_load",
    "ioperm",
    "iopl",
    "x32-mount",
    "x32-unshare",
    "socket-alg",
    "dev-kmsg",
    "dev-mem",
    "image-disk",
    "mknod-open-disk",
    "read:/proc/kcore",
    "read:/proc/sched_debug",
    "read:/sys/firmware/dmi/tables/DMI",
    "write:/proc/sys/kernel/modprobe",
    "write:/proc/sysrq-trigger",
    "write:/sys/fs/cgroup/cgroup.procs",
    "write:/sys/fs/cgroup/cgroup.subtree_control",
    "write:/sys/fs/cgroup/devices/cgroup.procs",
    "write:/sys/fs/cgroup/devices/devices.allow",
    "write:/sys/fs/cgroup/devices/release_agent",
    "write:/sys/fs/cgroup/memory.max",
    "write:/sys/fs/cgroup/memory/cgroup.procs",
    "write:/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "write:/sys/fs/cgroup/pids.max",
    "write:/sys/fs/cgroup/pids/cgroup.procs",
    "write:/sys/fs/cgroup/pids/pids.max",
    "write:/sys/fs/cgroup/pids/tasks",
    "write:/sys/fs/cgroup/release_agent",
    "write:/sys/fs/cgroup/systemd/release_agent",
    "write:/sys/fs/cgroup/unified/cgroup.procs",
    "write:/sys/kernel/uevent_helper",
    "write:/sys/kernel/uevent_seqnum",
];

/// The same tables where nothing stands in their way: what works there is really an attack.
#[test]
fn the_attacks_work_where_nothing_stands_in_their_way() {
    let env = Env::with_config("profile = 'oci'\n");
    let output = hostile(&env, Asks::Everything, ["/attack", "tables"]).run();
    let got = outcomes(&output.stdout);
    assert!(got.len() >= ATTACKS, "{}", output.both());
    let refused = got.iter().filter(|(name, outcome)| refusals(name).contains(&outcome.as_str()));
    let harmless: Vec<_> = refused.filter(|(name, _)| !NOT_EVERYWHERE.contains(&name.as_str())).collect();
    assert!(harmless.is_empty(), "{harmless:?}");
    // In a hierarchy of one version or the other its own limits could be written.
    assert!(got.iter().any(|(name, outcome)| name.starts_with("write:/sys/fs/cgroup") && outcome == "ok"), "{got:#?}");
}
