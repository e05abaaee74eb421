//! What profiles say, straight from their JSON and without any program: the other implementation that the programs are
//! compared with.

use std::collections::HashMap;

use libseccomp::{ScmpArch, ScmpSyscall};
use serde_json::Value;

use super::super::bpf::{ALLOW, AUDIT_X86_64, ERRNO, KILL_PROCESS, X32_BIT};
use super::super::numbers::{Numbers, X86, X86_64};
use super::interpreter::Call;

pub const AUDIT_X86: u32 = 0x4000_0003;

/// Whether an OCI condition holds. In 32 bits, and x32 is so to it, the library compares 32 bits.
fn holds(arg: &Value, call: &Call) -> bool {
    let width = if call.arch == AUDIT_X86 || call.nr & X32_BIT != 0 { u64::from(u32::MAX) } else { u64::MAX };
    let number = |name: &str| arg[name].as_u64().unwrap_or(0) & width;
    let (value, two) = (number("value"), number("valueTwo"));
    let given = call.args[arg["index"].as_u64().unwrap() as usize] & width;
    match arg["op"].as_str().unwrap() {
        "SCMP_CMP_NE" => given != value,
        "SCMP_CMP_LT" => given < value,
        "SCMP_CMP_LE" => given <= value,
        "SCMP_CMP_EQ" => given == value,
        "SCMP_CMP_GE" => given >= value,
        "SCMP_CMP_GT" => given > value,
        "SCMP_CMP_MASKED_EQ" => given & value == two,
        other => panic!("{other}"),
    }
}

fn answer(action: &str, errno: &Value, default: u64) -> u32 {
    let errno = errno.as_u64().unwrap_or(default) as u32;
    match action {
        "SCMP_ACT_ALLOW" => ALLOW,
        "SCMP_ACT_LOG" => 0x7ffc_0000,
        "SCMP_ACT_TRACE" => 0x7ff0_0000 | errno,
        "SCMP_ACT_ERRNO" => ERRNO | errno,
        "SCMP_ACT_TRAP" => 0x0003_0000,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => 0,
        "SCMP_ACT_KILL_PROCESS" => KILL_PROCESS,
        other => panic!("{other}"),
    }
}

fn args(rule: &Value) -> &[Value] {
    rule["args"].as_array().map_or(&[], Vec::as_slice)
}

fn names(rule: &Value) -> impl Iterator<Item = &str> {
    rule["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap())
}

/// An engine's profile: rules of one call are alternatives. Number by name, for the three ABIs of x86.
pub struct Engine {
    profile: Value,
    names: HashMap<(u32, u32), String>,
    newest: [i32; 3],
}

impl Engine {
    pub fn new(profile: Value) -> Engine {
        let table = Numbers::read();
        let mut by_number = HashMap::new();
        let mut newest = [-1; 3];
        for rule in profile["syscalls"].as_array().unwrap() {
            for name in names(rule) {
                let abis = [(AUDIT_X86_64, ScmpArch::X8664), (AUDIT_X86_64, ScmpArch::X32), (AUDIT_X86, ScmpArch::X86)];
                for (at, (arch, of)) in abis.into_iter().enumerate() {
                    let Ok(number) = ScmpSyscall::from_name_by_arch(name, of).map(i32::from) else { continue };
                    if number >= 0 {
                        by_number.insert((arch, number as u32), name.to_owned());
                        newest[at] = newest[at].max(number);
                    } else if let (ScmpArch::X86, Some(direct)) = (of, table.of(name, X86)) {
                        // A part of socketcall or ipc, and a call of its own since Linux 4.3.
                        by_number.insert((arch, direct), name.to_owned());
                    }
                }
            }
        }
        Engine { profile, names: by_number, newest }
    }

    /// What the profile says; none for `socketcall` and `ipc`, of which each part is allowed or not.
    pub fn says(&self, call: &Call) -> Option<u32> {
        let x32 = call.arch == AUDIT_X86_64 && call.nr & X32_BIT != 0;
        let which = if x32 {
            1
        } else if call.arch == AUDIT_X86_64 {
            0
        } else {
            2
        };
        if call.arch == AUDIT_X86 && [102, 117].contains(&call.nr) {
            return None;
        }
        let profile = &self.profile;
        let default = answer(profile["defaultAction"].as_str().unwrap(), &profile["defaultErrnoRet"], 1);
        let permits = default >= 0x7ff0_0000 && default != KILL_PROCESS;
        if !permits
            && default != ERRNO | 38
            && (i64::from(call.nr)) > i64::from(self.newest[which])
            && self.newest[which] >= 0
        {
            return Some(ERRNO | 38);
        }
        let Some(name) = self.names.get(&(call.arch, call.nr)) else { return Some(default) };
        let rules = profile["syscalls"].as_array().unwrap().iter().filter(|rule| names(rule).any(|n| n == name));
        let mut applies = rules.filter(|rule| args(rule).iter().all(|arg| holds(arg, call)));
        Some(applies.next().map_or(default, |rule| answer(rule["action"].as_str().unwrap(), &rule["errnoRet"], 1)))
    }
}

/// The list of `strict`: the first rule that applies.
pub struct Strict {
    list: Value,
    names: HashMap<(u32, u32), &'static str>,
}

impl Strict {
    pub fn new() -> Strict {
        let table = Numbers::read();
        let mut names = HashMap::new();
        for (name, abi) in table.names().flat_map(|name| [X86_64, X86].map(|abi| (name, abi))) {
            names.extend(table.of(name, abi).map(|number| ((abi.audit, number), name)));
        }
        Strict { list: serde_json::from_str(include_str!("../../strict/seccomp.json")).unwrap(), names }
    }

    pub fn says(&self, call: &Call) -> u32 {
        if ![AUDIT_X86, AUDIT_X86_64].contains(&call.arch) {
            return KILL_PROCESS;
        }
        let Some(name) = self.names.get(&(call.arch, call.nr)) else {
            return ERRNO | self.list["defaultErrnoRet"].as_u64().unwrap() as u32;
        };
        let masked = |arg: &Value| {
            let number = |name: &str| arg[name].as_u64().unwrap();
            call.args[number("index") as usize] & number("value") == number("valueTwo")
        };
        let mut rules = self.list["syscalls"].as_array().unwrap().iter();
        let rule = rules.find(|rule| names(rule).any(|n| n == *name) && args(rule).iter().all(masked));
        let rule = rule.unwrap_or_else(|| panic!("{name} has no last rule"));
        answer(rule["action"].as_str().unwrap(), &rule["errnoRet"], 0)
    }
}
