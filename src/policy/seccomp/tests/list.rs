//! The list itself: complete, with its reasons, and what it says of the calls that matter.

use std::collections::BTreeMap;

use oci_spec::runtime::{LinuxSeccompAction, LinuxSeccompOperator};

use super::super::SeccompError;
use super::super::bpf::{ALLOW, AUDIT_X86_64, ERRNO, Instruction, KILL_PROCESS, X32_BIT};
use super::super::numbers::{Abi, Numbers, X86, X86_64, abis};
use super::super::rules::{List, Rule, Strictness};
use super::super::strict::{own_for, strict};
use super::compile::errno_of_mkdir;
use super::interpreter::{Call, run};

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn every_call_has_rules_and_every_rule_its_reason() {
    let (list, numbers) = (List::read().unwrap(), Numbers::read());
    assert_eq!(list.default_errno_ret, libc::ENOSYS as u16);
    let mut of: BTreeMap<&str, Vec<&Rule>> = BTreeMap::new();
    for rule in &list.syscalls {
        let names = &rule.names;
        assert!(names.is_sorted(), "{names:?}");
        let said = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty() && !t.ends_with('.'));
        match rule.action {
            LinuxSeccompAction::ScmpActAllow => assert_eq!(rule.errno_ret, 0, "{names:?}"),
            LinuxSeccompAction::ScmpActErrno => {
                assert!(rule.errno_ret > 0 && said(&rule.why) && said(&rule.then), "{names:?} {:?}", rule.when);
            }
            other => panic!("{names:?} {other:?}"),
        }
        for arg in &rule.args {
            assert_eq!(arg.op(), LinuxSeccompOperator::ScmpCmpMaskedEq, "{names:?}");
            assert!(arg.index() < 6, "{names:?}");
            assert_eq!(arg.value_two().unwrap() & !arg.value(), 0, "{names:?}: never true");
        }
        assert!(rule.args.is_empty() || said(&rule.when), "{names:?}");
        for name in names {
            assert!(numbers.known(name).is_some(), "{name} has no number");
            of.entry(name).or_default().push(rule);
        }
    }
    for name in numbers.names() {
        let rules = of.get(name).unwrap_or_else(|| panic!("{name} has no rule"));
        let (last, before) = rules.split_last().unwrap();
        assert!(last.args.is_empty(), "{name}: the last rule has a condition");
        assert!(before.iter().all(|rule| !rule.args.is_empty()), "{name}: a rule that nothing comes behind");
    }
}

fn answer(program: &[Instruction], abi: Abi, name: &str, args: &[u64]) -> u32 {
    let number = Numbers::read().of(name, abi).unwrap_or_else(|| panic!("{name}"));
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    run(program, &Call::new(abi.audit, number, all))
}

const EPERM: u32 = ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = ERRNO | libc::ENOSYS as u32;
const FAMILY: u32 = ERRNO | libc::EAFNOSUPPORT as u32;
const PROTOCOL: u32 = ERRNO | libc::EPROTONOSUPPORT as u32;
const NOT_SUPPORTED: u32 = ERRNO | libc::EOPNOTSUPP as u32;

#[test]
fn what_the_list_says() {
    let high = 1 << 32;
    let program = own_for(&[X86_64, X86], &Strictness::default()).unwrap();
    let both = |name, args: &[u64], want| {
        for abi in [X86_64, X86] {
            assert_eq!(answer(&program, abi, name, args), want, "{name} {args:x?} {abi:?}");
        }
    };
    for flag in [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000, 0x8000] {
        both("clone", &[flag], EPERM);
        both("clone", &[flag | 17], EPERM);
    }
    // A thread of glibc, fork, vfork, a pidfd.
    for flags in [0x003d_0f00, 17, 0x4111, 0x1011] {
        both("clone", &[flags], ALLOW);
    }
    both("clone3", &[], ENOSYS);
    for request in [0x5412, 0x541c, 0x5423] {
        both("ioctl", &[0, request], EPERM);
        // The kernel takes the request as 32 bits.
        assert_eq!(answer(&program, X86_64, "ioctl", &[0, request | high]), EPERM);
    }
    for request in [0x4008_6602, 0x4004_6602, 0x401c_5820] {
        both("ioctl", &[0, request], NOT_SUPPORTED);
        assert_eq!(answer(&program, X86_64, "ioctl", &[0, request | 0xffff_ffff << 32]), NOT_SUPPORTED);
    }
    for request in [0x5401, 0x5413, 0x541b, 0x8008_6601, 0x4004_9409] {
        both("ioctl", &[0, request], ALLOW);
    }
    for (persona, want) in [
        (0, ALLOW),
        (8, ALLOW),
        (0x0002_0000, ALLOW),
        (0x0002_0008, ALLOW),
        (0x0004_0000, ALLOW),
        (0xffff_ffff, ALLOW),
        (0x0040_0000, EPERM),
        (0x0010_0000, EPERM),
        (4, EPERM),
        (0xffff_fffe, EPERM),
    ] {
        both("personality", &[persona], want);
        assert_eq!(answer(&program, X86_64, "personality", &[persona | high]), want);
    }
    for (args, want) in [
        ([1, 1, 0], ALLOW),
        ([1, 0x80005, 0], ALLOW),
        ([2, 1, 0], ALLOW),
        ([2, 1, 6], ALLOW),
        ([2, 2, 17], ALLOW),
        ([2, 3, 1], ALLOW),
        ([10, 2, 58], ALLOW),
        ([16, 3, 0], ALLOW),
        ([2, 1, 132], PROTOCOL),
        ([10, 1, 262], PROTOCOL),
        ([2, 3, 58], PROTOCOL),
        ([16, 3, 9], PROTOCOL),
        ([16, 3, 12], PROTOCOL),
        ([2, 10, 0], PROTOCOL),
        ([2, 0x8000a, 0], PROTOCOL),
        ([2, 5, 0], PROTOCOL),
        ([10, 6, 0], PROTOCOL),
        ([1, 5, 0], ALLOW),
        ([2, 0x80801, 0], ALLOW),
        ([17, 3, 0], FAMILY),
        ([38, 5, 0], FAMILY),
        ([40, 1, 0], FAMILY),
        ([31, 3, 1], FAMILY),
        ([0, 1, 0], FAMILY),
    ] {
        both("socket", &args, want);
        let same = args.map(|arg| arg | high);
        assert_eq!(answer(&program, X86_64, "socket", &same), want, "{args:?}");
    }
    both("socketpair", &[1, 1, 0], ALLOW);
    both("socketpair", &[30, 1, 0], FAMILY);
    for (call, want) in [(1, ENOSYS), (8, ENOSYS), (2, ALLOW), (3, ALLOW), (17, ALLOW)] {
        assert_eq!(answer(&program, X86, "socketcall", &[call]), want, "socketcall {call}");
    }
    for (request, want) in [(16, EPERM), (0x4206, EPERM), (0, ALLOW), (7, ALLOW), (0x4200, ALLOW)] {
        both("ptrace", &[request], want);
    }
    for name in ["stime", "clock_settime64", "umount", "vm86", "vm86old"] {
        assert_eq!(answer(&program, X86, name, &[]), EPERM, "{name}");
    }
}

/// Numbers without a call, x32's and newer ones, are answered as by a kernel without; an ABI without a table is no such.
#[test]
fn what_is_not_in_the_table() {
    let program = own_for(&[X86_64, X86], &Strictness::default()).unwrap();
    for nr in [470, 500, 512, 547, 1000, X32_BIT, X32_BIT | 1, X32_BIT | 520, u32::MAX] {
        assert_eq!(run(&program, &Call::new(AUDIT_X86_64, nr, [0; 6])), ENOSYS, "{nr:#x}");
        if nr < X32_BIT {
            assert_eq!(run(&program, &Call::new(X86.audit, nr, [0; 6])), ENOSYS, "{nr:#x}");
        }
    }
    assert_eq!(run(&program, &Call::new(0xc000_00b7, 63, [0; 6])), KILL_PROCESS);
}

/// On other machines the same calls get the same.
#[test]
fn other_machines() {
    for machine in ["aarch64", "riscv64", "loongarch64"] {
        let abis = abis(machine).unwrap();
        let program = own_for(abis, &Strictness::default()).unwrap();
        assert!(program.len() < 2000, "{machine}: {}", program.len());
        for abi in abis {
            for (name, args, want) in [
                ("read", [0, 0], ALLOW),
                ("clone", [17, 0], ALLOW),
                ("clone", [0x1000_0000, 0], EPERM),
                ("clone3", [0, 0], ENOSYS),
                ("mount", [0, 0], EPERM),
                ("bpf", [0, 0], EPERM),
                ("ioctl", [0, 0x5412], EPERM),
                ("ioctl", [0, 0x5401], ALLOW),
                ("socket", [40, 1], FAMILY),
                ("fchmodat2", [0, 0], ALLOW),
                ("open_tree_attr", [0, 0], EPERM),
            ] {
                assert_eq!(answer(&program, *abi, name, &args), want, "{machine} {name} {args:x?}");
            }
        }
    }
    assert!(abis("s390x").is_none());
}

#[test]
fn a_configuration_can_allow_and_refuse() {
    let strictness = Strictness {
        allow: names(&["socketcall", "perf_event_open", "ioctl"]),
        refuse: names(&["clock_gettime", "connect", "prctl"]),
        ptrace: true,
    };
    let refused_mux = own_for(&[X86_64, X86], &Strictness { allow: Vec::new(), ..strictness.clone() }).unwrap();
    for name in ["clock_gettime", "clock_gettime64", "connect", "socketcall", "prctl"] {
        assert_eq!(answer(&refused_mux, X86, name, &[3]), EPERM, "{name}");
    }
    assert_eq!(answer(&refused_mux, X86_64, "clock_gettime", &[]), EPERM);
    assert_eq!(answer(&refused_mux, X86_64, "clock_nanosleep", &[]), ALLOW);
    assert_eq!(answer(&refused_mux, X86_64, "ptrace", &[16]), ALLOW);
    let program = own_for(&[X86_64, X86], &Strictness { refuse: Vec::new(), ..strictness.clone() }).unwrap();
    assert_eq!(answer(&program, X86, "socketcall", &[1]), ALLOW);
    assert_eq!(answer(&program, X86_64, "perf_event_open", &[]), ALLOW);
    assert_eq!(answer(&program, X86_64, "ioctl", &[0, 0x5412]), ALLOW);
    assert_eq!(answer(&program, X86_64, "bpf", &[]), EPERM);
    let of = |strictness: Strictness| own_for(&[X86_64], &strictness).unwrap_err();
    let unknown = of(Strictness { refuse: names(&["no_such_call"]), ..Strictness::default() });
    assert!(matches!(&unknown, SeccompError::Unknown(name) if name == "no_such_call"), "{unknown}");
    let both = of(Strictness { allow: names(&["bpf"]), refuse: names(&["bpf"]), ptrace: false });
    assert!(matches!(&both, SeccompError::Contradiction(name) if name == "bpf"), "{both}");
}

/// In a process: `mkdirat` reaches the kernel; where the configuration or the engine refuses it, it does not.
#[test]
fn the_kernel_takes_the_program() {
    let of = |engine: Option<&str>, refuse: &[&str]| {
        let engine = engine.map(|json| serde_json::from_str(json).unwrap());
        let strictness = Strictness { refuse: names(refuse), ..Strictness::default() };
        errno_of_mkdir(&strict(engine.as_ref(), &strictness).unwrap())
    };
    assert_eq!(of(None, &[]), libc::ENOENT);
    assert_eq!(of(None, &["mkdirat"]), libc::EPERM);
    assert_eq!(of(Some(super::property::DOCKER), &[]), libc::ENOENT);
    assert_eq!(of(Some(super::property::DOCKER), &["mkdirat"]), libc::EPERM);
    let engine = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":38}]}"#;
    assert_eq!(of(Some(engine), &["mkdirat"]), libc::ENOSYS, "the engine's errno is the one that is seen");
}
