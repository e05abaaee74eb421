//! The system calls of profile strict, made by a first process and by execs: what is refused gets exactly the errno that
//! docs/strict.md tells, and what is allowed does its work.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::support::bundle::Bundle;
use crate::support::images::repository;
use crate::support::{Cmd, Env};

const EPERM: &str = "1";
const ENOSYS: &str = "38";
const NOT_SUPPORTED: &str = "95";
const PROTOCOL: &str = "93";
const FAMILY: &str = "97";

/// Label, ABI, number, arguments, and what strict answers.
type Probe = (&'static str, u32, u64, &'static [u64], &'static str);

/// Numbers of x86-64 (64) and of 32-bit x86 (32), where a 64-bit program makes the calls by `int 0x80`.
const REFUSED: &[Probe] = &[
    ("mount", 64, 165, &[], EPERM),
    ("umount2", 64, 166, &[], EPERM),
    ("pivot_root", 64, 155, &[], EPERM),
    ("chroot", 64, 161, &[], EPERM),
    ("move_mount", 64, 429, &[], EPERM),
    ("fsopen", 64, 430, &[], EPERM),
    ("fsconfig", 64, 431, &[], EPERM),
    ("fsmount", 64, 432, &[], EPERM),
    ("fspick", 64, 433, &[], EPERM),
    ("open_tree", 64, 428, &[], EPERM),
    ("mount_setattr", 64, 442, &[], EPERM),
    ("open_tree_attr", 64, 467, &[], EPERM),
    ("statmount", 64, 457, &[], ENOSYS),
    ("listmount", 64, 458, &[], ENOSYS),
    ("unshare-nothing", 64, 272, &[], EPERM),
    ("unshare-user", 64, 272, &[0x1000_0000], EPERM),
    ("setns", 64, 308, &[0, 0], EPERM),
    ("clone-newuser", 64, 56, &[0x1000_0011], EPERM),
    ("clone-newns", 64, 56, &[0x0002_0011], EPERM),
    ("clone-newcgroup", 64, 56, &[0x0200_0011], EPERM),
    ("clone-parent", 64, 56, &[0x0000_8011], EPERM),
    ("clone3", 64, 435, &[], ENOSYS),
    ("bpf", 64, 321, &[], EPERM),
    ("perf_event_open", 64, 298, &[], EPERM),
    ("keyctl", 64, 250, &[], EPERM),
    ("add_key", 64, 248, &[], EPERM),
    ("request_key", 64, 249, &[], EPERM),
    ("userfaultfd", 64, 323, &[], EPERM),
    ("io_uring_setup", 64, 425, &[], EPERM),
    ("io_uring_enter", 64, 426, &[], EPERM),
    ("io_uring_register", 64, 427, &[], EPERM),
    ("kexec_load", 64, 246, &[], EPERM),
    ("init_module", 64, 175, &[], EPERM),
    ("finit_module", 64, 313, &[], EPERM),
    ("delete_module", 64, 176, &[], EPERM),
    ("open_by_handle_at", 64, 304, &[], EPERM),
    ("process_vm_readv", 64, 310, &[], EPERM),
    ("process_vm_writev", 64, 311, &[], EPERM),
    ("process_madvise", 64, 440, &[], EPERM),
    ("kcmp", 64, 312, &[], EPERM),
    ("pidfd_getfd", 64, 438, &[], EPERM),
    ("personality-rie", 64, 135, &[0x0040_0000], EPERM),
    ("personality-mmap0", 64, 135, &[0x0010_0000], EPERM),
    ("quotactl", 64, 179, &[], EPERM),
    ("quotactl_fd", 64, 443, &[], EPERM),
    ("syslog", 64, 103, &[3, 0, 0], EPERM),
    ("iopl", 64, 172, &[], EPERM),
    ("ioperm", 64, 173, &[], EPERM),
    ("settimeofday", 64, 164, &[], EPERM),
    ("clock_settime", 64, 227, &[], EPERM),
    ("fanotify_init", 64, 300, &[], EPERM),
    ("sethostname", 64, 170, &[], EPERM),
    ("get_mempolicy", 64, 239, &[], ENOSYS),
    ("mbind", 64, 237, &[], ENOSYS),
    ("modify_ldt", 64, 154, &[], ENOSYS),
    ("memfd_secret", 64, 447, &[], ENOSYS),
    ("cachestat", 64, 451, &[], ENOSYS),
    ("lsm_list_modules", 64, 461, &[], ENOSYS),
    ("file_setattr", 64, 469, &[], ENOSYS),
    ("ustat", 64, 136, &[], ENOSYS),
    ("not-yet", 64, 700, &[], ENOSYS),
    ("x32-getpid", 64, 0x4000_0000 + 39, &[], ENOSYS),
    ("tiocsti", 64, 16, &[0, 0x5412], EPERM),
    ("tiocsti-high", 64, 16, &[0, 0x1_0000_5412], EPERM),
    ("tioclinux", 64, 16, &[0, 0x541c], EPERM),
    ("tiocsetd", 64, 16, &[0, 0x5423], EPERM),
    ("fs_ioc_setflags", 64, 16, &[0, 0x4008_6602], NOT_SUPPORTED),
    ("fs_ioc_fssetxattr", 64, 16, &[0, 0x401c_5820], NOT_SUPPORTED),
    ("af_vsock", 64, 41, &[40, 1, 0], FAMILY),
    ("af_alg", 64, 41, &[38, 5, 0], FAMILY),
    ("af_packet", 64, 41, &[17, 3, 0], FAMILY),
    ("sock_packet", 64, 41, &[2, 10, 0], PROTOCOL),
    ("sctp-by-type", 64, 41, &[2, 5, 0], PROTOCOL),
    ("netlink-audit", 64, 41, &[16, 3, 9], PROTOCOL),
    ("netlink-netfilter", 64, 41, &[16, 3, 12], PROTOCOL),
    ("sctp", 64, 41, &[2, 1, 132], PROTOCOL),
    ("socketpair-tipc", 64, 53, &[30, 1, 0], FAMILY),
    ("mount", 32, 21, &[], EPERM),
    ("umount", 32, 22, &[], EPERM),
    ("unshare", 32, 310, &[], EPERM),
    ("setns", 32, 346, &[], EPERM),
    ("clone-newuser", 32, 120, &[0x1000_0011], EPERM),
    ("clone3", 32, 435, &[], ENOSYS),
    ("bpf", 32, 357, &[], EPERM),
    ("keyctl", 32, 288, &[], EPERM),
    ("stime", 32, 25, &[], EPERM),
    ("clock_settime64", 32, 404, &[], EPERM),
    ("vm86old", 32, 113, &[], EPERM),
    ("vm86", 32, 166, &[], EPERM),
    ("modify_ldt", 32, 123, &[], ENOSYS),
    ("socketcall-socket", 32, 102, &[1], ENOSYS),
    ("socket-vsock", 32, 359, &[40, 1, 0], FAMILY),
    ("tiocsti", 32, 54, &[0, 0x5412], EPERM),
    ("personality-rie", 32, 136, &[0x0040_0000], EPERM),
];

const ALLOWED: &[Probe] = &[
    ("getpid", 64, 39, &[], "0"),
    ("clone-fork", 64, 56, &[17], "0"),
    ("personality-ask", 64, 135, &[0xffff_ffff], "0"),
    ("personality-no-aslr", 64, 135, &[0x0004_0000], "0"),
    ("personality-linux32", 64, 135, &[8], "0"),
    ("unix", 64, 41, &[1, 1, 0], "0"),
    ("unix-seqpacket", 64, 41, &[1, 0x80005, 0], "0"),
    ("tcp", 64, 41, &[2, 1, 6], "0"),
    ("udp6", 64, 41, &[10, 2, 0], "0"),
    ("netlink-route", 64, 41, &[16, 3, 0], "0"),
    ("memfd", 64, 319, &[0, 0], "14"),
    ("eventfd2", 64, 290, &[0, 0], "0"),
    ("epoll_create1", 64, 291, &[0], "0"),
    ("inotify_init1", 64, 294, &[0], "0"),
    ("pidfd_open", 64, 434, &[1, 0], "0"),
    ("membarrier", 64, 324, &[0, 0, 0], "0"),
    ("landlock-version", 64, 444, &[0, 0, 1], "0"),
    ("fchmodat2", 64, 452, &[0, 0, 0, 0], "14"),
    ("mseal", 64, 462, &[0, 0, 0], "0"),
    ("sync_file_range", 64, 162, &[], "0"),
    ("getpid", 32, 20, &[], "0"),
    ("unix", 32, 359, &[1, 1, 0], "0"),
    ("personality-ask", 32, 136, &[0xffff_ffff], "0"),
    // A socket that is none: it comes to the kernel.
    ("socketcall-listen", 32, 102, &[4, 0], "14"),
];

/// Puts the program and a list of calls into the root filesystem.
fn install(bundle: &Bundle<'_>, probes: &[&Probe]) {
    let program = bundle.rootfs.join("calls");
    let source = repository().join("integration/cli/calls.c");
    Cmd::new("gcc").args(["-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(program).arg(source).ok();
    let mut list = String::new();
    for (label, abi, number, args, _) in probes {
        let arg = |at: usize| args.get(at).copied().unwrap_or(0).to_string();
        list.push_str(&format!("{label}/{abi} {abi} {number} {}\n", [0, 1, 2, 3, 4, 5].map(arg).join(" ")));
    }
    fs::write(bundle.rootfs.join("list"), list).expect("write the list");
}

fn answers(output: &str) -> BTreeMap<String, String> {
    output.lines().filter_map(|line| line.split_once(' ')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

/// Whether the kernel takes 32-bit calls at all.
fn has_32_bits() -> bool {
    let env = Env::new();
    let probe: Probe = ("getpid", 32, 20, &[], "0");
    let bundle = Bundle::new(&env, ["/calls", "/list"]);
    install(&bundle, &[&probe]);
    let answers = answers(&bundle.run().ok());
    match answers["getpid/32"].as_str() {
        "0" => true,
        other => {
            eprintln!("the 32-bit calls are left out: getpid by int 0x80 is {other} on this kernel");
            false
        }
    }
}

#[track_caller]
fn assert_answers(who: &str, probes: &[&Probe], output: &str) {
    let answers = answers(output);
    let differ: Vec<_> = probes
        .iter()
        .map(|(label, abi, _, _, want)| (format!("{label}/{abi}"), *want))
        .filter(|(label, want)| answers.get(label).map(String::as_str) != Some(*want))
        .map(|(label, want)| format!("{label}: {:?}, not {want}", answers.get(&label)))
        .collect();
    assert!(differ.is_empty(), "{who}: {differ:#?}");
}

fn probes() -> Vec<&'static Probe> {
    let both = has_32_bits();
    REFUSED.iter().chain(ALLOWED).filter(|probe| both || probe.1 == 64).collect()
}

/// A profile that allows everything, as far as an engine is concerned.
fn open_profile() -> Value {
    json!({"defaultAction": "SCMP_ACT_ALLOW",
           "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"], "syscalls": []})
}

/// The same answers for the first process and an exec, with a profile of the engine's and without. Under profile oci most
/// of the same calls get other answers: it is the filter that is seen here.
#[test]
fn strict_answers_alike_in_first_process_and_exec() {
    let probes = probes();
    let env = Env::with_config("");
    for profile in [Value::Null, open_profile()] {
        let mut bundle = Bundle::new(&env, ["/calls", "/list"]);
        install(&bundle, &probes);
        bundle.config["linux"]["seccomp"] = profile.clone();
        assert_answers("first process", &probes, &bundle.run().ok());
        let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
        install(&bundle, &probes);
        bundle.config["linux"]["seccomp"] = profile;
        bundle.start();
        assert_answers("exec", &probes, &bundle.exec(["/calls", "/list"]).ok());
        assert_eq!(bundle.sh("grep ^Seccomp: /proc/self/status /proc/1/status | cut -f2 | uniq").ok(), "2");
    }
    let oci = Env::new();
    let bundle = Bundle::new(&oci, ["/calls", "/list"]);
    install(&bundle, &probes);
    let open = answers(&bundle.run().ok());
    let refused = probes.iter().filter(|p| p.4 != "0");
    let other = refused.filter(|(label, abi, _, _, want)| open[&format!("{label}/{abi}")] != *want).count();
    assert!(other > 30, "only {other} calls are answered otherwise without the filter: {open:#?}");
}

/// What the engine's profile refuses stays refused, with its errno; what it allows is still strict's to refuse.
#[test]
fn the_engines_refusals_hold_too() {
    let probes: [&Probe; 5] = [
        &("getpid", 64, 39, &[], "0"),
        &("getppid", 64, 110, &[], "71"),
        &("socket-unix", 64, 41, &[1, 1, 0], "13"),
        &("socket-tcp", 64, 41, &[2, 1, 0], "0"),
        &("mount", 64, 165, &[], EPERM),
    ];
    let env = Env::with_config("");
    let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
    install(&bundle, &probes);
    bundle.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["getppid"], "action": "SCMP_ACT_ERRNO", "errnoRet": 71},
        {"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13,
         "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]},
    ]});
    bundle.start();
    assert_answers("exec", &probes, &bundle.exec(["/calls", "/list"]).ok());
}

/// The configuration allows and refuses calls; names that do not exist, and profiles with a listener, make no container.
#[test]
fn the_configuration_has_its_say() {
    let probes: [&Probe; 4] = [
        &("unshare-nothing", 64, 272, &[], "0"),
        &("getppid", 64, 110, &[], EPERM),
        &("getpid", 64, 39, &[], "0"),
        &("bpf", 64, 321, &[], EPERM),
    ];
    let env = Env::with_config("[seccomp]\nallow = ['unshare']\nrefuse = ['getppid']\n");
    let bundle = Bundle::new(&env, ["/calls", "/list"]);
    install(&bundle, &probes);
    assert_answers("first process", &probes, &bundle.run().ok());

    let wrong = Env::with_config("[seccomp]\nrefuse = ['getppidd']\n");
    let output = Bundle::new(&wrong, ["true"]).run().expect(1);
    let told = "config.toml, line 2, seccomp.refuse: \\\"getppidd\\\": no system call has this name";
    assert!(output.stderr.contains(told), "{}", output.stderr);
    assert!(wrong.run(["config", "show"]).expect(1).stderr.contains(told), "found before there is a container");

    let strict = Env::with_config("");
    let mut bundle = Bundle::new(&strict, ["true"]);
    bundle.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}]});
    let output = bundle.run().expect(1);
    assert!(output.stderr.contains("SCMP_ACT_NOTIFY for mkdir"), "{}", output.stderr);
}

/// A filter is compiled once for all containers that have the same: the next gets the same program, also where what is kept
/// was damaged, and one whose profile or configuration differs gets its own.
#[test]
fn a_kept_filter_is_what_the_container_would_get() {
    let probes: [&Probe; 2] = [&("bpf", 64, 321, &[], EPERM), &("getpid", 64, 39, &[], "0")];
    let env = Env::with_config("");
    let kept = || -> Vec<_> {
        let entries = fs::read_dir(env.root.join("@seccomp")).into_iter().flatten();
        entries.map(|entry| entry.expect("readdir").path()).collect()
    };
    let program = |errno: u32| {
        let mut bundle = Bundle::new(&env, ["sleep", "100000"]);
        install(&bundle, &probes);
        bundle.config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": ["getppid"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno}]});
        bundle.start();
        assert_answers("exec", &probes, &bundle.exec(["/calls", "/list"]).ok());
        assert_eq!(bundle.sh("grep ^Seccomp: /proc/self/status /proc/1/status | cut -f2 | uniq").ok(), "2");
        let program = fs::read(env.root.join(&bundle.id).join("seccomp.bpf")).expect("the program");
        env.ok(["delete", "--force", &bundle.id]);
        program
    };
    let first = program(71);
    assert_eq!(kept().len(), 1);
    let entry = fs::read(&kept()[0]).expect("an entry");
    assert!(entry.ends_with(&first));
    assert_eq!(program(71), first);
    assert_eq!(kept().len(), 1);

    // One that would let everything through: a first instruction that returns SECCOMP_RET_ALLOW.
    let mut damaged = entry.clone();
    let at = damaged.len() - first.len();
    damaged[at..at + 8].copy_from_slice(&[6, 0, 0, 0, 0, 0, 0xff, 0x7f]);
    fs::write(&kept()[0], damaged).expect("damage it");
    assert_eq!(program(71), first);
    assert_eq!(fs::read(&kept()[0]).expect("the entry"), entry, "it was put there anew");

    assert_ne!(program(72), first);
    assert_eq!(kept().len(), 2);
    fs::write(&env.config, "[seccomp]\nallow = [\"setns\"]\n").expect("configure");
    assert_ne!(program(71), first);
    assert_eq!(kept().len(), 3);
    assert!(env.ok(["list", "-q"]).is_empty(), "they are no containers");
}
