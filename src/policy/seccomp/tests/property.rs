//! A joined program permits exactly what both of its parts permit, and the parts say what their JSON says: every number of
//! the x86 ABIs, others at random, with arguments at the edges of every condition. The seed is fixed.

use oci_spec::runtime::LinuxSeccomp;
use serde_json::{Value, json};

use super::super::bpf::{ACTION, ALLOW, AUDIT_X86_64, Instruction, MAX, X32_BIT, decode};
use super::super::chain::chain;
use super::super::numbers::{Numbers, X86, X86_64};
use super::super::rules::Strictness;
use super::super::strict::own_for;
use super::super::{compile, strict};
use super::interpreter::{Call, always_allowed, run};
use super::oracle::{AUDIT_X86, Engine, Strict};

pub const DOCKER: &str = include_str!("docker-default.json");

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Every number that a condition compares with, and its neighbours.
fn edges(profiles: &[&Value]) -> Vec<u64> {
    let mut all = vec![0, 1, 8, u64::from(u32::MAX), u64::MAX, 1 << 32, 0x0002_0000, 0x7e02_8000, 0x1000_0000];
    for arg in
        profiles.iter().flat_map(|p| p["syscalls"].as_array().unwrap()).flat_map(|r| r["args"].as_array()).flatten()
    {
        for value in ["value", "valueTwo"].iter().filter_map(|name| arg[name].as_u64()) {
            all.extend([value, value.wrapping_add(1), value.wrapping_sub(1), value | 1 << 32, !value]);
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Calls of every number that there is, of numbers that there are not, and of ABIs that nobody knows.
fn calls(random: &mut Random, edges: &[u64], each: usize) -> Vec<Call> {
    let mut numbers: Vec<(u32, u32)> = Vec::new();
    for nr in 0..600 {
        numbers.extend([(AUDIT_X86_64, nr), (AUDIT_X86, nr), (AUDIT_X86_64, nr | X32_BIT)]);
    }
    for nr in [u32::MAX, u32::MAX - 1, 0x7fff_ffff, X32_BIT - 1, 0x8000_0000, 0x000f_0001] {
        numbers.extend([(AUDIT_X86_64, nr), (AUDIT_X86, nr)]);
    }
    for _ in 0..200 {
        let nr = random.next() as u32;
        numbers.extend([(AUDIT_X86_64, nr), (AUDIT_X86, nr), (random.next() as u32, nr)]);
    }
    let mut all = Vec::new();
    for (arch, nr) in numbers {
        for _ in 0..each {
            let mut args = [0; 6];
            for arg in &mut args {
                *arg = if random.below(4) == 0 { random.next() } else { *random.of(edges) };
                // The kernel gives a filter 32 bits of what a 32-bit program has.
                *arg &= if arch == AUDIT_X86 { u64::from(u32::MAX) } else { u64::MAX };
            }
            all.push(Call::new(arch, nr, args));
        }
    }
    all
}

/// The kernel's order of two answers, written down as it is in seccomp(2).
fn stricter_of(first: u32, second: u32) -> u32 {
    let order = [0x8000_0000, 0, 0x0003_0000, 0x0005_0000, 0x7fc0_0000, 0x7ff0_0000, 0x7ffc_0000, ALLOW];
    let place = |value: u32| {
        order.iter().position(|action| *action == value & ACTION).unwrap_or_else(|| panic!("action {value:#x}"))
    };
    if place(second) < place(first) { second } else { first }
}

fn is_permitted(value: u32) -> bool {
    [0x7ff0_0000, 0x7ffc_0000, ALLOW].contains(&(value & ACTION))
}

/// Compares all there is of one profile. How many calls were permitted by both, by one only, and by none.
fn check(profile: &Value, random: &mut Random, each: usize) -> [usize; 3] {
    let typed: LinuxSeccomp = serde_json::from_value(profile.clone()).unwrap();
    let first = decode(&compile(&typed).unwrap().instructions);
    let second = own_for(&[X86_64, X86], &Strictness::default()).unwrap();
    let both = decode(&strict(Some(&typed), &Strictness::default()).unwrap().instructions);
    assert!(both.len() <= MAX);
    let (engine, list) = (Engine::new(profile.clone()), Strict::new());
    let listed = serde_json::from_str(include_str!("../../strict/seccomp.json")).unwrap();
    let edges = edges(&[profile, &listed]);
    let native_only = profile["architectures"].is_null();
    let mut seen = [0; 3];
    for call in calls(random, &edges, each) {
        let (a, b, c) = (run(&first, &call), run(&second, &call), run(&both, &call));
        assert_eq!(b, list.says(&call), "strict's list and its program: {call:x?}");
        let foreign = ![AUDIT_X86, AUDIT_X86_64].contains(&call.arch) || native_only && call.arch != AUDIT_X86_64;
        let without_x32 = native_only && call.nr >= X32_BIT;
        if !foreign
            && !without_x32
            && let Some(says) = engine.says(&call)
        {
            assert_eq!(a, says, "the engine's profile and its program: {call:x?}\n{profile}");
        }
        let want = if is_permitted(a) { stricter_of(a, b) } else { a };
        assert_eq!(c, want, "joined: {call:x?}, {a:#x} and {b:#x}\n{profile}");
        assert_eq!(is_permitted(c), is_permitted(a) && is_permitted(b));
        seen[2 - usize::from(is_permitted(a)) - usize::from(is_permitted(b))] += 1;
    }
    seen
}

#[test]
fn dockers_default_profile() {
    let seen = check(&serde_json::from_str(DOCKER).unwrap(), &mut Random(1), 12);
    assert!(seen.iter().all(|n| *n > 500), "{seen:?}");
}

/// Conditions that each name a 32-bit comparison or a mask.
fn random_profile(random: &mut Random) -> Value {
    let numbers = Numbers::read();
    let names: Vec<&str> = numbers.names().filter(|n| !["socketcall", "ipc"].contains(n)).collect();
    let permits = ["SCMP_ACT_ALLOW", "SCMP_ACT_LOG", "SCMP_ACT_TRACE"];
    let refuses = ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_TRAP", "SCMP_ACT_KILL_THREAD"];
    let (default, rules) =
        if random.below(2) == 0 { (&permits[..], &refuses[..]) } else { (&refuses[..], &permits[..]) };
    let ops = ["NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"];
    let values = [0, 1, 2, 10, 16, 0x5412, 0x7e02_0000, 0xffff_ffff, 0x0004_0000];
    let mut list = Vec::new();
    let mut used = std::collections::BTreeSet::new();
    for _ in 0..30 + random.below(40) {
        let name = *random.of(&names);
        let conditional = ["clone", "ioctl", "personality", "ptrace", "prctl", "openat", "kill", "fcntl"];
        let name = if random.below(3) == 0 { *random.of(&conditional) } else { name };
        if !used.insert(name) {
            continue;
        }
        // The rules of one call have one action: what two of them that apply would mean is the library's secret.
        let action = *random.of(rules);
        // Each answer that permits, a tracer's message among them, takes a copy of the list's program.
        let (errno, with_args) = (random.below(3), conditional.contains(&name));
        // Several rules of one call with several conditions each are mixed up by the library (2.5.4): `a > 16 and b & 1`
        // together with `a != 1 and b == 1` refuses what neither does.
        let (rules, conditions) = match random.below(2) {
            _ if !with_args => (1, 0),
            0 => (1, 1 + random.below(3)),
            _ => (1 + random.below(3), 1),
        };
        for _ in 0..rules {
            let mut rule = json!({"names": [name], "action": action, "errnoRet": errno});
            if conditions > 0 {
                let first = random.below(4);
                let mut args = Vec::new();
                for index in first..(first + conditions).min(6) {
                    let value = *random.of(&values);
                    let mut arg =
                        json!({"index": index, "value": value, "op": format!("SCMP_CMP_{}", random.of(&ops))});
                    if arg["op"] == "SCMP_CMP_MASKED_EQ" {
                        // The library mixes rules up where a mask has no bits.
                        let mask: u64 = value.max(1);
                        arg["value"] = mask.into();
                        arg["valueTwo"] = (mask & random.next()).into();
                    }
                    args.push(arg);
                }
                rule["args"] = args.into();
            }
            list.push(rule);
        }
    }
    let mut profile = json!({"defaultAction": random.of(default), "syscalls": list});
    if random.below(3) > 0 {
        profile["architectures"] = json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]);
    }
    if random.below(3) == 0 {
        profile["defaultErrnoRet"] = (1 + random.below(60)).into();
    }
    profile
}

#[test]
fn random_profiles() {
    let mut random = Random(2);
    let mut seen = [0; 3];
    for _ in 0..60 {
        let profile = random_profile(&mut random);
        let of_this = check(&profile, &mut random, 2);
        seen.iter_mut().zip(of_this).for_each(|(all, n)| *all += n);
    }
    assert!(seen.iter().all(|n| *n > 10_000), "{seen:?}");
}

/// With a joined program the kernel still skips the filter for calls that are always allowed.
#[test]
fn the_kernels_cache_sees_through_the_joint() {
    let typed: LinuxSeccomp = serde_json::from_str(DOCKER).unwrap();
    let both = decode(&strict(Some(&typed), &Strictness::default()).unwrap().instructions);
    let alone = decode(&strict(None, &Strictness::default()).unwrap().instructions);
    let numbers = Numbers::read();
    for name in ["read", "write", "openat", "close", "futex", "mmap", "epoll_wait", "execve", "exit_group"] {
        for (program, abi) in [&both, &alone].into_iter().flat_map(|p| [X86_64, X86].map(|abi| (p, abi))) {
            let nr = numbers.of(name, abi).unwrap();
            assert!(always_allowed(program, abi.audit, nr), "{name}");
        }
    }
    // Room for profiles that are longer than Docker's.
    assert!(alone.len() < 700 && both.len() < 2500, "{} and {} instructions", alone.len(), both.len());
    for name in ["clone", "ioctl", "socket", "mount", "bpf"] {
        assert!(!always_allowed(&both, AUDIT_X86_64, numbers.of(name, X86_64).unwrap()), "{name}");
    }
}

/// One answer of the second program is a copy of it for each of the first's; a kernel that would take less is told before.
#[test]
fn too_long_a_program_is_an_error() {
    let ret = |value| super::super::bpf::instruction(super::super::bpf::RETURN, value, 0, 0);
    let long: Vec<Instruction> = (0..1000).map(|n| ret(0x7ff0_0000 | n)).collect();
    let three = [ret(ALLOW); 3];
    assert_eq!(chain(&long[..1], &three).unwrap().len(), 4);
    let err = chain(&long, &[ret(ALLOW); 4]).unwrap_err();
    assert!(err.to_string().contains("5000 instructions"), "{err}");
}
