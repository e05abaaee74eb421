//! The list of profile `strict`: `strict/seccomp.json`, and what a configuration changes of it.
//!
//! The file has the form of an OCI profile, with the reasons beside the rules. Of the rules of a call the first that applies
//! is taken, which says "any but these" without a second list.

use std::collections::BTreeMap;

use oci_spec::runtime::{LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompOperator};
use serde::{Deserialize, Serialize};

use super::SeccompError;
use super::bpf::{ALLOW, ERRNO};
use super::numbers::{Abi, Numbers, X86_64};
use crate::policy::{Confinement, Policy};

const LIST: &str = include_str!("../strict/seccomp.json");

/// What a configuration changes of the list. By default nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Strictness {
    /// System calls to allow whatever their arguments, by the kernel's names.
    pub allow: Vec<String>,
    /// System calls to refuse with `EPERM`, and with them what does the same in 32 bits (`clock_settime64`, `socketcall`).
    pub refuse: Vec<String>,
    /// `PTRACE_ATTACH` and `PTRACE_SEIZE` too: only where Landlock keeps an exec from the processes of other execs. Without
    /// them a process can trace its own children that ask for it.
    pub ptrace: bool,
}

impl Strictness {
    /// What a policy says, for a container that is confined so: Landlock's fence keeps an exec from the processes of others.
    pub fn of(policy: &Policy, confinement: &Confinement) -> Strictness {
        let rules = &policy.rules.seccomp;
        Strictness { allow: rules.allow.clone(), refuse: rules.refuse.clone(), ptrace: confinement.fence.is_some() }
    }

    /// Whether all calls that are named exist, and none is both allowed and refused.
    pub(super) fn check(&self, numbers: &Numbers) -> Result<Named, SeccompError> {
        let named = |names: &[String]| -> Result<Vec<&'static str>, SeccompError> {
            names.iter().map(|name| numbers.known(name).ok_or_else(|| SeccompError::Unknown(name.clone()))).collect()
        };
        let (allow, refuse) = (named(&self.allow)?, named(&self.refuse)?);
        match allow.iter().find(|name| refuse.contains(name)) {
            Some(both) => Err(SeccompError::Contradiction((*both).to_owned())),
            None => Ok(Named { allow, refuse }),
        }
    }
}

/// The calls that a configuration names.
pub(super) struct Named {
    allow: Vec<&'static str>,
    refuse: Vec<&'static str>,
}

/// The file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "'de: 'static"))]
pub(super) struct List {
    /// What a number without a rule gets.
    pub default_errno_ret: u16,
    pub syscalls: Vec<Rule>,
}

/// What becomes of some calls, if the arguments are so.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "'de: 'static"))]
pub(super) struct Rule {
    pub names: Vec<&'static str>,
    pub action: LinuxSeccompAction,
    #[serde(default)]
    pub errno_ret: u16,
    #[serde(default)]
    pub args: Vec<LinuxSeccompArg>,
    /// The condition, the reason, and what usual programs do, for people.
    #[cfg(test)]
    pub when: Option<String>,
    #[cfg(test)]
    pub why: Option<String>,
    #[cfg(test)]
    pub then: Option<String>,
}

/// `argument & mask == value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Test {
    pub argument: u32,
    pub mask: u64,
    pub value: u64,
}

/// What a call gets if all tests hold: `SECCOMP_RET_*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Branch {
    pub tests: Vec<Test>,
    pub answer: u32,
}

impl List {
    pub(super) fn read() -> Result<List, SeccompError> {
        serde_json::from_str(LIST).map_err(SeccompError::List)
    }

    /// What a number that has no rule gets: as of a kernel that is older than the call.
    pub(super) fn unknown(&self) -> u32 {
        ERRNO | u32::from(self.default_errno_ret)
    }
}

/// The list after a configuration's changes: each call's branches, the last one without tests.
pub(super) fn resolve(
    list: &List,
    numbers: &Numbers,
    strictness: &Strictness,
) -> Result<BTreeMap<&'static str, Vec<Branch>>, SeccompError> {
    let mut calls: BTreeMap<&'static str, Vec<Branch>> = BTreeMap::new();
    for rule in &list.syscalls {
        let answer = match rule.action {
            LinuxSeccompAction::ScmpActAllow => ALLOW,
            _ => ERRNO | u32::from(rule.errno_ret),
        };
        let tests: Vec<Test> = rule.args.iter().map(test).collect();
        for name in &rule.names {
            calls.entry(name).or_default().push(Branch { tests: tests.clone(), answer });
        }
    }
    let Named { allow, mut refuse } = strictness.check(numbers)?;
    let asked = refuse.clone();
    refuse.extend(numbers.names().filter(|name| {
        let base = base(name, numbers);
        asked.iter().any(|refused| base == Some(refused) || parts(name).contains(refused))
    }));
    let always = |answer| vec![Branch { tests: Vec::new(), answer }];
    if strictness.ptrace {
        calls.insert("ptrace", always(ALLOW));
    }
    calls.extend(allow.into_iter().map(|name| (name, always(ALLOW))));
    calls.extend(refuse.into_iter().map(|name| (name, always(ERRNO | libc::EPERM as u32))));
    Ok(calls)
}

/// An ABI's numbers with their branches.
pub(super) fn by_number<'a>(
    calls: &'a BTreeMap<&'static str, Vec<Branch>>,
    numbers: &Numbers,
    abi: Abi,
) -> BTreeMap<u32, &'a [Branch]> {
    calls.iter().filter_map(|(name, branches)| Some((numbers.of(name, abi)?, branches.as_slice()))).collect()
}

fn test(arg: &LinuxSeccompArg) -> Test {
    let (mask, value) = match arg.op() {
        LinuxSeccompOperator::ScmpCmpMaskedEq => (arg.value(), arg.value_two().unwrap_or(0)),
        // The list has no other operator; its tests see to that.
        _ => (u64::MAX, arg.value()),
    };
    Test { argument: arg.index() as u32, mask, value }
}

/// The call that one of 32 bits is another form of: `clock_settime` for `clock_settime64`.
fn base<'n>(name: &'n str, numbers: &Numbers) -> Option<&'n str> {
    let base = ["_time64", "64", "32", "2"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let base = base.or_else(|| name.strip_prefix("_new")).or_else(|| name.strip_prefix('_'))?;
    let of_32_bits_only = numbers.of(name, X86_64).is_none();
    (of_32_bits_only && numbers.known(base).is_some()).then_some(base)
}

/// The calls that one of 32-bit x86 or arm is the way to.
fn parts(name: &str) -> &'static [&'static str] {
    match name {
        "socketcall" => &[
            "socket",
            "bind",
            "connect",
            "listen",
            "accept",
            "getsockname",
            "getpeername",
            "socketpair",
            "sendto",
            "recvfrom",
            "shutdown",
            "setsockopt",
            "getsockopt",
            "sendmsg",
            "recvmsg",
            "accept4",
            "recvmmsg",
            "sendmmsg",
        ],
        "ipc" => &[
            "semop",
            "semget",
            "semctl",
            "semtimedop",
            "msgsnd",
            "msgrcv",
            "msgget",
            "msgctl",
            "shmat",
            "shmdt",
            "shmget",
            "shmctl",
        ],
        "send" => &["sendto"],
        "recv" => &["recvfrom"],
        "umount" => &["umount2"],
        "stime" => &["settimeofday"],
        "waitpid" => &["wait4"],
        "fstatat64" => &["newfstatat"],
        "ugetrlimit" => &["getrlimit"],
        "nice" => &["setpriority"],
        _ => &[],
    }
}
