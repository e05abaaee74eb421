//! From the process that an engine describes to the plan that the child carries out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

use oci_spec::runtime::{
    IOPriorityClass, LinuxSchedulerFlag, LinuxSchedulerPolicy, PosixRlimitType, Process, Scheduler,
};

use super::ExecError;
use crate::init::User;
use crate::policy::capabilities::{self, Sets};
use crate::spec::NO_ID;
use crate::sys::attributes::SchedAttr;

/// The parts of a plan that come from the engine's process alone.
#[derive(Debug)]
pub struct Described {
    /// The command and its arguments.
    pub argv: Vec<CString>,
    /// `NAME=value`, in order, a name that is given again keeping its last value.
    pub env: Vec<CString>,
    /// Its user.
    pub user: User,
    /// Its capabilities.
    pub capabilities: Sets,
    /// `RLIMIT_*`, soft, hard.
    pub rlimits: Vec<(u32, u64, u64)>,
    /// I/O class and level.
    pub io_priority: Option<(u32, u32)>,
    /// Scheduling policy.
    pub scheduler: Option<SchedAttr>,
    /// Rows and columns.
    pub console_size: Option<(u16, u16)>,
}

/// Reads an engine's process. Its wording for what is missing is runc's.
pub fn describe(process: &Process) -> Result<Described, ExecError> {
    let argv = c_strings("process.args", process.args().iter().flatten())?;
    if argv.is_empty() {
        return Err(ExecError::NoArgs);
    }
    if !process.cwd().is_absolute() {
        return Err(ExecError::CwdNotAbsolute);
    }
    if process.cwd().as_os_str().as_bytes().contains(&0) {
        return Err(ExecError::NulByte("process.cwd"));
    }
    let user = process.user();
    let umask = user.umask().unwrap_or(0o022);
    if umask > 0o777 {
        return Err(ExecError::Invalid { field: "process.user.umask", value: format!("{umask:#o}") });
    }
    let user =
        User { uid: user.uid(), gid: user.gid(), groups: user.additional_gids().clone().unwrap_or_default(), umask };
    if let Some(id) = [user.uid, user.gid].iter().chain(&user.groups).find(|id| **id == NO_ID) {
        return Err(ExecError::Invalid { field: "process.user", value: id.to_string() });
    }
    let rlimits = process.rlimits().iter().flatten().map(|l| (rlimit(l.typ()), l.soft(), l.hard())).collect();
    let size = process.console_size().filter(|s| s.height() > 0 && s.width() > 0);
    Ok(Described {
        argv,
        env: last_value_wins(c_strings("process.env", process.env().iter().flatten())?),
        user,
        capabilities: process.capabilities().as_ref().map(capabilities::sets).unwrap_or_default(),
        rlimits,
        io_priority: process.io_priority().as_ref().map(io_priority).transpose()?,
        scheduler: process.scheduler().as_ref().map(scheduler),
        console_size: size.map(|s| (s.height() as u16, s.width() as u16)),
    })
}

fn c_strings<'a>(field: &'static str, strings: impl Iterator<Item = &'a String>) -> Result<Vec<CString>, ExecError> {
    strings.map(|s| CString::new(s.as_str()).map_err(|_| ExecError::NulByte(field))).collect()
}

fn last_value_wins(env: Vec<CString>) -> Vec<CString> {
    fn name(pair: &CString) -> &[u8] {
        pair.to_bytes().split(|b| *b == b'=').next().unwrap_or_default()
    }
    let mut kept: Vec<CString> = Vec::with_capacity(env.len());
    // A command may have very many; the map's keys are copies, as `kept` changes under them.
    let mut places: HashMap<Vec<u8>, usize> = HashMap::with_capacity(env.len());
    for pair in env {
        match places.entry(name(&pair).to_vec()) {
            Entry::Occupied(place) => kept[*place.get()] = pair,
            Entry::Vacant(place) => {
                place.insert(kept.len());
                kept.push(pair);
            }
        }
    }
    kept
}

fn rlimit(kind: PosixRlimitType) -> u32 {
    match kind {
        PosixRlimitType::RlimitCpu => libc::RLIMIT_CPU,
        PosixRlimitType::RlimitFsize => libc::RLIMIT_FSIZE,
        PosixRlimitType::RlimitData => libc::RLIMIT_DATA,
        PosixRlimitType::RlimitStack => libc::RLIMIT_STACK,
        PosixRlimitType::RlimitCore => libc::RLIMIT_CORE,
        PosixRlimitType::RlimitRss => libc::RLIMIT_RSS,
        PosixRlimitType::RlimitNproc => libc::RLIMIT_NPROC,
        PosixRlimitType::RlimitNofile => libc::RLIMIT_NOFILE,
        PosixRlimitType::RlimitMemlock => libc::RLIMIT_MEMLOCK,
        PosixRlimitType::RlimitAs => libc::RLIMIT_AS,
        PosixRlimitType::RlimitLocks => libc::RLIMIT_LOCKS,
        PosixRlimitType::RlimitSigpending => libc::RLIMIT_SIGPENDING,
        PosixRlimitType::RlimitMsgqueue => libc::RLIMIT_MSGQUEUE,
        PosixRlimitType::RlimitNice => libc::RLIMIT_NICE,
        PosixRlimitType::RlimitRtprio => libc::RLIMIT_RTPRIO,
        PosixRlimitType::RlimitRttime => libc::RLIMIT_RTTIME,
    }
}

/// `IOPRIO_CLASS_*` and the level within it.
fn io_priority(priority: &oci_spec::runtime::LinuxIOPriority) -> Result<(u32, u32), ExecError> {
    let class = match priority.class() {
        IOPriorityClass::IoprioClassRt => 1,
        IOPriorityClass::IoprioClassBe => 2,
        IOPriorityClass::IoprioClassIdle => 3,
    };
    match u32::try_from(priority.priority()) {
        Ok(level @ 0..=7) => Ok((class, level)),
        _ => Err(ExecError::Invalid { field: "process.ioPriority.priority", value: priority.priority().to_string() }),
    }
}

/// `SCHED_*` and `SCHED_FLAG_*` of `<linux/sched.h>`.
fn scheduler(scheduler: &Scheduler) -> SchedAttr {
    let mut attr = SchedAttr::default();
    attr.policy = match scheduler.policy() {
        LinuxSchedulerPolicy::SchedOther => 0,
        LinuxSchedulerPolicy::SchedFifo => 1,
        LinuxSchedulerPolicy::SchedRr => 2,
        LinuxSchedulerPolicy::SchedBatch => 3,
        LinuxSchedulerPolicy::SchedIso => 4,
        LinuxSchedulerPolicy::SchedIdle => 5,
        LinuxSchedulerPolicy::SchedDeadline => 6,
    };
    attr.flags = scheduler.flags().iter().flatten().fold(0, |all, flag| {
        all | match flag {
            LinuxSchedulerFlag::SchedResetOnFork => 0x01,
            LinuxSchedulerFlag::SchedFlagReclaim => 0x02,
            LinuxSchedulerFlag::SchedFlagDLOverrun => 0x04,
            LinuxSchedulerFlag::SchedFlagKeepPolicy => 0x08,
            LinuxSchedulerFlag::SchedFlagKeepParams => 0x10,
            LinuxSchedulerFlag::SchedFlagUtilClampMin => 0x20,
            LinuxSchedulerFlag::SchedFlagUtilClampMax => 0x40,
        }
    });
    attr.nice = scheduler.nice().unwrap_or(0);
    attr.priority = scheduler.priority().unwrap_or(0) as u32;
    attr.runtime = scheduler.runtime().unwrap_or(0);
    attr.deadline = scheduler.deadline().unwrap_or(0);
    attr.period = scheduler.period().unwrap_or(0);
    attr
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(json: &str) -> Process {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn environment_keeps_its_order() {
        let p = process(r#"{"user":{"uid":5,"gid":6},"cwd":"/","args":["x"],"env":["B=1","A=2","B=3","C=","D"]}"#);
        let env: Vec<String> = describe(&p).unwrap().env.into_iter().map(|c| c.into_string().unwrap()).collect();
        assert_eq!(env, ["B=3", "A=2", "C=", "D"]);
    }

    #[test]
    fn refusals_are_in_runcs_words() {
        for (json, text) in [
            (r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":[]}"#, "process args cannot be empty"),
            (r#"{"user":{"uid":0,"gid":0},"cwd":"/"}"#, "process args cannot be empty"),
            (r#"{"user":{"uid":0,"gid":0},"cwd":"x","args":["a"]}"#, "Cwd must be an absolute path"),
            (r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":["a\u0000b"]}"#, "process.args: a string has a NUL byte"),
            // The kernel takes it for "unchanged": the command would have run as root.
            (r#"{"user":{"uid":4294967295,"gid":0},"cwd":"/","args":["a"]}"#, "process.user: invalid value 4294967295"),
            (r#"{"user":{"uid":5,"gid":4294967295},"cwd":"/","args":["a"]}"#, "process.user: invalid value 4294967295"),
            (
                r#"{"user":{"uid":5,"gid":5,"additionalGids":[4294967295]},"cwd":"/","args":["a"]}"#,
                "process.user: invalid value 4294967295",
            ),
        ] {
            assert_eq!(describe(&process(json)).unwrap_err().to_string(), text, "{json}");
        }
    }

    #[test]
    fn identity_and_limits() {
        let p = process(
            r#"{"user":{"uid":5,"gid":6,"additionalGids":[7,8],"umask":18},"cwd":"/","args":["x"],
            "rlimits":[{"type":"RLIMIT_NOFILE","soft":10,"hard":20}],"consoleSize":{"height":24,"width":80},
            "ioPriority":{"class":"IOPRIO_CLASS_BE","priority":4}}"#,
        );
        let d = describe(&p).unwrap();
        assert_eq!(d.user, User { uid: 5, gid: 6, groups: vec![7, 8], umask: 0o22 });
        assert_eq!(d.rlimits, [(libc::RLIMIT_NOFILE, 10, 20)]);
        assert_eq!((d.console_size, d.io_priority), (Some((24, 80)), Some((2, 4))));
        assert_eq!(d.capabilities, Sets::default());
    }
}
