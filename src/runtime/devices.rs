//! The device rules of a container: on cgroup v2, which has no files for them, compiled to a BPF program; on v1, where
//! libcontainer writes them, without what it adds of its own.
//!
//! Rules are kept in order, and for each kind of access the last one that matches decides. Nothing is allowed by default;
//! the devices that every container has come last, as in runc.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use serde_json::Value;

use super::error::{On, RuntimeError};
use super::members;
use crate::spec::SpecError;
use crate::sys::bpf::{self, Insn};

// Bits of the request, `linux/bpf.h`.
const BLOCK: i32 = 1;
const CHAR: i32 = 2;
const MKNOD: i32 = 1;
const READ: i32 = 2;
const WRITE: i32 = 4;
const ALL: i32 = MKNOD | READ | WRITE;

/// One rule; `None` is any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    allow: bool,
    kind: Option<i32>,
    major: Option<i32>,
    minor: Option<i32>,
    access: i32,
}

impl Rule {
    const fn allow(kind: i32, major: Option<i32>, minor: Option<i32>, access: i32) -> Rule {
        Rule { allow: true, kind: Some(kind), major, minor, access }
    }

    /// Decides on whatever is asked.
    fn is_final(&self) -> bool {
        self.kind.is_none() && self.major.is_none() && self.minor.is_none() && self.access == ALL
    }
}

/// What every container may do: make any node, and use the devices that are put into its `/dev`.
const DEFAULT: [Rule; 11] = [
    Rule::allow(CHAR, None, None, MKNOD),
    Rule::allow(BLOCK, None, None, MKNOD),
    // null, zero, full, tty, random, urandom
    Rule::allow(CHAR, Some(1), Some(3), ALL),
    Rule::allow(CHAR, Some(1), Some(5), ALL),
    Rule::allow(CHAR, Some(1), Some(7), ALL),
    Rule::allow(CHAR, Some(5), Some(0), ALL),
    Rule::allow(CHAR, Some(1), Some(8), ALL),
    Rule::allow(CHAR, Some(1), Some(9), ALL),
    // /dev/pts/N, /dev/ptmx, and the console that is bound over one of them
    Rule::allow(CHAR, Some(136), None, ALL),
    Rule::allow(CHAR, Some(5), Some(2), ALL),
    Rule::allow(CHAR, Some(5), Some(1), ALL),
];

/// Confines the v2 cgroup at `dir` to the devices that `linux.resources.devices` (`rules`, null if absent) allows.
pub fn confine(dir: &Path, rules: &Value) -> Result<(), RuntimeError> {
    let Some(program) = compile(&parse(rules)?) else { return Ok(()) };
    let cgroup = fs::File::open(dir).on("open cgroup", dir)?;
    bpf::load_device_program(&program)
        .and_then(|program| bpf::attach_device_program(cgroup.as_fd(), program.as_fd()))
        .on("confine the devices of cgroup", dir)
}

/// Takes from the v1 cgroup at `dir` what libcontainer allows of /dev/net/tun (10:200) and `rules` do not: it makes network
/// interfaces, and other runtimes do not give it either.
pub fn without_tun(dir: &Path, rules: &Value) -> Result<(), RuntimeError> {
    let denied = denied_of_tun(&parse(rules)?);
    if denied.is_empty() {
        return Ok(());
    }
    let file = dir.join("devices.deny");
    members::write(&file, &format!("c 10:200 {denied}")).on("write", &file)
}

/// The letters of the access to it that no rule gives.
fn denied_of_tun(rules: &[Rule]) -> String {
    let covers = |rule: &&Rule| {
        rule.kind.is_none_or(|kind| kind == CHAR)
            && rule.major.is_none_or(|n| n == 10)
            && rule.minor.is_none_or(|n| n == 200)
    };
    let given = rules[..rules.len() - DEFAULT.len()].iter().filter(covers).fold(0, |given, rule| match rule.allow {
        true => given | rule.access,
        false => given & !rule.access,
    });
    // Making a file of it is what everybody may, as of any device.
    [('r', READ), ('w', WRITE)].into_iter().filter(|(_, bit)| given & bit == 0).map(|(letter, _)| letter).collect()
}

fn parse(rules: &Value) -> Result<Vec<Rule>, RuntimeError> {
    let bad = |why: String| SpecError::Field { field: "linux.resources.devices", why };
    let mut parsed = Vec::new();
    for rule in rules.as_array().into_iter().flatten() {
        let kind = match rule["type"].as_str() {
            None | Some("" | "a") => None,
            Some("b") => Some(BLOCK),
            Some("c" | "u") => Some(CHAR),
            Some(other) => return Err(bad(format!("type {other:?} is not a device's")).into()),
        };
        let number = |name: &str| match rule[name].as_i64() {
            None | Some(-1) => Ok(None),
            Some(n) => i32::try_from(n).ok().filter(|n| *n >= 0).map(Some).ok_or(bad(format!("{name} {n}"))),
        };
        let mut access = 0;
        for letter in rule["access"].as_str().unwrap_or_default().chars() {
            access |= match letter {
                'r' => READ,
                'w' => WRITE,
                'm' => MKNOD,
                other => return Err(bad(format!("access {other:?} is none of r, w, m")).into()),
            };
        }
        if access == 0 {
            return Err(bad("access must not be empty".into()).into());
        }
        let allow = rule["allow"].as_bool().unwrap_or(false);
        parsed.push(Rule { allow, kind, major: number("major")?, minor: number("minor")?, access });
    }
    parsed.extend(DEFAULT);
    Ok(parsed)
}

// Registers of the program.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
/// The kinds of access that are asked for and that no rule has allowed yet.
const WANTED: u8 = 2;
const KIND: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;
const SCRATCH: u8 = 6;

// Operations, `linux/bpf.h`; arithmetic and jumps on 32 bits.
const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xb4;
const MOVE_REGISTER: u8 = 0xbc;
const AND: u8 = 0x54;
const SHIFT_RIGHT: u8 = 0x74;
const JUMP_IF_EQUAL: u8 = 0x16;
const JUMP_UNLESS_EQUAL: u8 = 0x56;
const EXIT: u8 = 0x95;

fn insn(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Insn {
    Insn { code, registers: from << 4 | to, offset, immediate }
}

fn answer(allow: bool) -> [Insn; 2] {
    [insn(MOVE, RESULT, 0, 0, i32::from(allow)), insn(EXIT, 0, 0, 0, 0)]
}

/// The program for `rules`; `None` if they allow everything.
fn compile(rules: &[Rule]) -> Option<Vec<Insn>> {
    // The last rule decides first. What comes after a final one is never asked; the kernel refuses such code.
    let last = rules.iter().rposition(Rule::is_final);
    let asked = &rules[last.map_or(0, |at| at + 1)..];
    let otherwise = last.is_some_and(|at| rules[at].allow);
    if otherwise && asked.iter().all(|rule| rule.allow) {
        return None;
    }
    let mut program = vec![
        insn(LOAD_WORD, WANTED, CONTEXT, 0, 0),
        insn(MOVE_REGISTER, KIND, WANTED, 0, 0),
        insn(AND, KIND, 0, 0, 0xffff),
        insn(SHIFT_RIGHT, WANTED, 0, 0, 16),
        insn(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        insn(LOAD_WORD, MINOR, CONTEXT, 8, 0),
    ];
    for rule in asked.iter().rev() {
        let tests = [(KIND, rule.kind), (MAJOR, rule.major), (MINOR, rule.minor)];
        let tests: Vec<(u8, i32)> = tests.into_iter().filter_map(|(register, want)| Some((register, want?))).collect();
        let then = match rule.allow {
            true => vec![
                insn(AND, WANTED, 0, 0, ALL & !rule.access),
                insn(JUMP_UNLESS_EQUAL, WANTED, 0, 2, 0),
                answer(true)[0],
                answer(true)[1],
            ],
            false => vec![
                insn(MOVE_REGISTER, SCRATCH, WANTED, 0, 0),
                insn(AND, SCRATCH, 0, 0, rule.access),
                insn(JUMP_IF_EQUAL, SCRATCH, 0, 2, 0),
                answer(false)[0],
                answer(false)[1],
            ],
        };
        for (at, (register, want)) in tests.iter().enumerate() {
            let behind = tests.len() - at - 1 + then.len();
            program.push(insn(JUMP_UNLESS_EQUAL, *register, 0, behind as i16, *want));
        }
        program.extend(then);
    }
    program.extend(answer(otherwise));
    Some(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What the kernel's interpreter would answer.
    fn run(program: &[Insn], kind: i32, major: i32, minor: i32, access: i32) -> bool {
        let context = [access << 16 | kind, major, minor];
        let mut registers = [0i32; 11];
        let mut at = 0usize;
        loop {
            let Insn { code, registers: both, offset, immediate } = program[at];
            let (to, from) = ((both & 15) as usize, (both >> 4) as usize);
            at += 1;
            match code {
                LOAD_WORD => registers[to] = context[offset as usize / 4],
                MOVE => registers[to] = immediate,
                MOVE_REGISTER => registers[to] = registers[from],
                AND => registers[to] &= immediate,
                SHIFT_RIGHT => registers[to] = ((registers[to] as u32) >> immediate) as i32,
                JUMP_IF_EQUAL if registers[to] == immediate => at += offset as usize,
                JUMP_UNLESS_EQUAL if registers[to] != immediate => at += offset as usize,
                JUMP_IF_EQUAL | JUMP_UNLESS_EQUAL => {}
                EXIT => return registers[RESULT as usize] != 0,
                other => panic!("{other:#x}"),
            }
        }
    }

    #[test]
    fn a_tunnel_is_only_for_those_who_are_given_it() {
        let denied = |rules: Value| denied_of_tun(&parse(&rules).unwrap());
        let all = |allow: bool| json!({"allow": allow, "access": "rwm"});
        let tun = |access: &str| json!({"allow": true, "type": "c", "major": 10, "minor": 200, "access": access});
        for (rules, want) in [
            (Value::Null, "rw"),
            (json!([all(false)]), "rw"),
            (json!([all(false), tun("rwm")]), ""),
            (json!([all(false), tun("r")]), "w"),
            (json!([all(true)]), ""),
            (json!([tun("rw"), all(false)]), "rw"),
            (json!([{"allow": true, "type": "b", "access": "rwm"}]), "rw"),
            (json!([{"allow": true, "type": "c", "major": 10, "minor": -1, "access": "rw"}]), ""),
        ] {
            assert_eq!(denied(rules.clone()), want, "{rules}");
        }
    }

    fn program(rules: Value) -> Option<Vec<Insn>> {
        compile(&parse(&rules).unwrap())
    }

    #[test]
    fn the_last_rule_that_matches_decides_on_each_kind_of_access() {
        let deny_all = json!({"allow": false, "access": "rwm"});
        let allow = |kind: &str, major: i64, access: &str| json!({"allow": true, "type": kind, "major": major, "access": access});
        let rules = json!([deny_all, allow("b", 254, "r"), allow("b", 254, "m"), allow("c", 10, "rwm"),
            {"allow": false, "type": "c", "major": 10, "minor": 229, "access": "w"}]);
        let program = program(rules).unwrap();
        for (kind, major, minor, access, want) in [
            (BLOCK, 254, 0, READ, true),
            (BLOCK, 254, 9, READ | MKNOD, true),
            (BLOCK, 254, 0, READ | WRITE, false),
            (BLOCK, 8, 0, READ, false),
            (BLOCK, 8, 0, MKNOD, true),
            (CHAR, 254, 0, READ, false),
            (CHAR, 10, 1, READ | WRITE, true),
            (CHAR, 10, 229, READ, true),
            (CHAR, 10, 229, READ | WRITE, false),
            (CHAR, 1, 3, READ | WRITE, true),
            (CHAR, 1, 1, READ, false),
            (CHAR, 136, 77, READ | WRITE, true),
        ] {
            assert_eq!(run(&program, kind, major, minor, access), want, "{kind} {major}:{minor} {access}");
        }
    }

    #[test]
    fn no_rules_are_the_default_devices_and_all_allowed_is_no_program() {
        let defaults = program(Value::Null).unwrap();
        assert!(run(&defaults, CHAR, 1, 5, READ) && !run(&defaults, CHAR, 10, 200, READ));
        assert_eq!(program(json!([{"allow": true, "access": "rwm"}])), None);
        let most = program(json!([{"allow": true, "type": "a", "access": "rwm"},
            {"allow": false, "type": "b", "major": 8, "access": "w"}]))
        .unwrap();
        assert!(
            run(&most, BLOCK, 8, 0, READ) && run(&most, CHAR, 10, 200, ALL) && !run(&most, BLOCK, 8, 1, READ | WRITE)
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            json!([{"allow": true, "type": "p", "access": "r"}]),
            json!([{"allow": true, "type": "c", "access": ""}]),
            json!([{"allow": true, "type": "c", "access": "rx"}]),
            json!([{"allow": true, "type": "c", "major": -2, "access": "r"}]),
        ] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }

    /// The kernel's verifier takes what is made here.
    #[test]
    fn the_kernel_takes_the_program() {
        let many: Vec<Value> = (0..50)
            .map(|n| json!({"allow": n % 2 == 0, "type": "c", "major": n, "minor": n, "access": "rw"}))
            .collect();
        for rules in [
            Value::Null,
            json!(many),
            json!([{"allow": true, "access": "rwm"}, {"allow": false, "type": "b", "access": "w"}]),
        ] {
            bpf::load_device_program(&program(rules).unwrap()).unwrap();
        }
    }
}
