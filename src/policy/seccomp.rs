//! A seccomp profile compiled to the program that the kernel takes.
//!
//! The profile is compiled once, when a container is created; its first process and every exec load the same bytes.

use std::io::{Read, Seek};
use std::os::fd::AsFd;

use libseccomp::{ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall};
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompFilterFlag, LinuxSeccompOperator,
};
use serde::{Deserialize, Serialize};

use super::enosys;
use crate::error::{Classify, Kind};

/// Why a profile could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// A profile that hands calls to an agent; an exec has no way to give it the descriptor.
    #[error("seccomp: SCMP_ACT_NOTIFY is not supported for exec: give the profile another action for {0}")]
    Notify(String),
    /// The library refused a rule.
    #[error("seccomp: rule for {name}")]
    Rule {
        /// The system call's name.
        name: String,
        /// The library's answer.
        #[source]
        source: libseccomp::error::SeccompError,
    },
    /// The library refused something that concerns the whole filter.
    #[error("seccomp: {what}")]
    Filter {
        /// What was being done.
        what: String,
        /// The library's answer.
        #[source]
        source: libseccomp::error::SeccompError,
    },
    /// The compiled program could not be read back.
    #[error("seccomp: read the compiled program")]
    Export(#[source] std::io::Error),
}

impl Classify for SeccompError {
    fn kind(&self) -> Kind {
        match self {
            SeccompError::Notify(_) => Kind::Unsupported,
            SeccompError::Rule { .. } | SeccompError::Filter { .. } => Kind::InvalidInput,
            SeccompError::Export(err) => Kind::of_io(err),
        }
    }
}

/// A compiled filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// `struct sock_filter` of 8 bytes each, native byte order.
    pub instructions: Vec<u8>,
    /// `SECCOMP_FILTER_FLAG_*` for seccomp(2).
    pub flags: u32,
}

/// Compiles a profile.
///
/// A system call that this build of the library does not know is left to the default action, as runc does; so is a rule
/// whose action is the default one. Calls newer than any that the profile names are `ENOSYS` (see [`enosys`]).
pub fn compile(profile: &LinuxSeccomp) -> Result<Program, SeccompError> {
    let default = action(profile.default_action(), profile.default_errno_ret(), "the default")?;
    let filter_error = |what: &str| {
        let what = what.to_owned();
        move |source| SeccompError::Filter { what, source }
    };
    let mut context = ScmpFilterContext::new(default).map_err(filter_error("default action"))?;
    let mut architectures = vec![ScmpArch::Native];
    for arch in profile.architectures().iter().flatten() {
        architectures.push(architecture(*arch));
        context.add_arch(architecture(*arch)).map_err(filter_error(&format!("architecture {arch}")))?;
    }
    for rule in profile.syscalls().iter().flatten() {
        for name in rule.names() {
            let act = action(rule.action(), rule.errno_ret(), name)?;
            if act == default {
                continue;
            }
            let Ok(call) = ScmpSyscall::from_name(name) else { continue };
            add_rule(&mut context, act, call, rule.args().as_deref().unwrap_or_default())
                .map_err(|source| SeccompError::Rule { name: name.clone(), source })?;
        }
    }
    let mut file = std::fs::File::from(
        rustix::fs::memfd_create("seccomp", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(|errno| SeccompError::Export(errno.into()))?,
    );
    context.export_bpf(file.as_fd()).map_err(filter_error("export"))?;
    let mut instructions = enosys::prefix(profile, &architectures);
    file.rewind().and_then(|()| file.read_to_end(&mut instructions)).map_err(SeccompError::Export)?;
    let flags = profile.flags().iter().flatten().map(|flag| flag_bits(*flag)).fold(0, |all, bit| all | bit);
    Ok(Program { instructions, flags })
}

/// One rule. Conditions on the same argument can't be joined by "and" in the library; as in runc each is then a rule of
/// its own, so that any of them suffices.
fn add_rule(
    context: &mut ScmpFilterContext,
    act: ScmpAction,
    call: ScmpSyscall,
    args: &[LinuxSeccompArg],
) -> Result<(), libseccomp::error::SeccompError> {
    let compares: Vec<ScmpArgCompare> = args
        .iter()
        .map(|arg| {
            let (op, datum) = operator(arg);
            ScmpArgCompare::new(arg.index() as u32, op, datum)
        })
        .collect();
    let repeated = args.iter().enumerate().any(|(n, a)| args[..n].iter().any(|b| b.index() == a.index()));
    if compares.is_empty() {
        context.add_rule(act, call)?;
    } else if repeated {
        for compare in &compares {
            context.add_rule_conditional(act, call, std::slice::from_ref(compare))?;
        }
    } else {
        context.add_rule_conditional(act, call, &compares)?;
    }
    Ok(())
}

fn action(action: LinuxSeccompAction, errno: Option<u32>, name: &str) -> Result<ScmpAction, SeccompError> {
    let errno = errno.map_or(libc::EPERM, |e| e as i32);
    Ok(match action {
        LinuxSeccompAction::ScmpActKill | LinuxSeccompAction::ScmpActKillThread => ScmpAction::KillThread,
        LinuxSeccompAction::ScmpActKillProcess => ScmpAction::KillProcess,
        LinuxSeccompAction::ScmpActTrap => ScmpAction::Trap,
        LinuxSeccompAction::ScmpActErrno => ScmpAction::Errno(errno),
        LinuxSeccompAction::ScmpActTrace => ScmpAction::Trace(errno as u16),
        LinuxSeccompAction::ScmpActAllow => ScmpAction::Allow,
        LinuxSeccompAction::ScmpActLog => ScmpAction::Log,
        LinuxSeccompAction::ScmpActNotify => return Err(SeccompError::Notify(name.to_owned())),
    })
}

/// The library's operator and the number to compare with. A masked comparison is `argument & value == valueTwo`.
fn operator(arg: &LinuxSeccompArg) -> (ScmpCompareOp, u64) {
    let plain = |op| (op, arg.value());
    match arg.op() {
        LinuxSeccompOperator::ScmpCmpNe => plain(ScmpCompareOp::NotEqual),
        LinuxSeccompOperator::ScmpCmpLt => plain(ScmpCompareOp::Less),
        LinuxSeccompOperator::ScmpCmpLe => plain(ScmpCompareOp::LessOrEqual),
        LinuxSeccompOperator::ScmpCmpEq => plain(ScmpCompareOp::Equal),
        LinuxSeccompOperator::ScmpCmpGe => plain(ScmpCompareOp::GreaterEqual),
        LinuxSeccompOperator::ScmpCmpGt => plain(ScmpCompareOp::Greater),
        LinuxSeccompOperator::ScmpCmpMaskedEq => {
            (ScmpCompareOp::MaskedEqual(arg.value()), arg.value_two().unwrap_or(0))
        }
    }
}

/// `SECCOMP_FILTER_FLAG_*` of `<linux/seccomp.h>`.
fn flag_bits(flag: LinuxSeccompFilterFlag) -> u32 {
    match flag {
        // An exec's process has one thread when it loads the filter, so there is nothing to synchronise.
        LinuxSeccompFilterFlag::SeccompFilterFlagTsync => 0,
        LinuxSeccompFilterFlag::SeccompFilterFlagLog => 2,
        LinuxSeccompFilterFlag::SeccompFilterFlagSpecAllow => 4,
        // Only means something with a listener, which is refused above.
        LinuxSeccompFilterFlag::SeccompFilterFlagWaitKillableRecv => 0,
    }
}

fn architecture(arch: Arch) -> ScmpArch {
    match arch {
        Arch::ScmpArchNative => ScmpArch::Native,
        Arch::ScmpArchX86 => ScmpArch::X86,
        Arch::ScmpArchX86_64 => ScmpArch::X8664,
        Arch::ScmpArchX32 => ScmpArch::X32,
        Arch::ScmpArchArm => ScmpArch::Arm,
        Arch::ScmpArchAarch64 => ScmpArch::Aarch64,
        Arch::ScmpArchMips => ScmpArch::Mips,
        Arch::ScmpArchMips64 => ScmpArch::Mips64,
        Arch::ScmpArchMips64n32 => ScmpArch::Mips64N32,
        Arch::ScmpArchMipsel => ScmpArch::Mipsel,
        Arch::ScmpArchMipsel64 => ScmpArch::Mipsel64,
        Arch::ScmpArchMipsel64n32 => ScmpArch::Mipsel64N32,
        Arch::ScmpArchPpc => ScmpArch::Ppc,
        Arch::ScmpArchPpc64 => ScmpArch::Ppc64,
        Arch::ScmpArchPpc64le => ScmpArch::Ppc64Le,
        Arch::ScmpArchS390 => ScmpArch::S390,
        Arch::ScmpArchS390x => ScmpArch::S390X,
        Arch::ScmpArchRiscv64 => ScmpArch::Riscv64,
        Arch::ScmpArchParisc => ScmpArch::Parisc,
        Arch::ScmpArchParisc64 => ScmpArch::Parisc64,
        Arch::ScmpArchLoongarch64 => ScmpArch::Loongarch64,
        Arch::ScmpArchM68k => ScmpArch::M68k,
        Arch::ScmpArchSh => ScmpArch::Sh,
        Arch::ScmpArchSheb => ScmpArch::Sheb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program in a child process and reports the errno of `mkdirat` with a bad pointer there: the filter's
    /// errno where it refuses the call, `EFAULT` where the kernel came to look at the arguments.
    fn errno_of_mkdir(program: &Program) -> i32 {
        match crate::sys::process::fork().unwrap() {
            crate::sys::process::Fork::Child => {
                let loaded = crate::sys::attributes::set_no_new_privs()
                    .and_then(|()| crate::sys::attributes::load_seccomp(&program.instructions, program.flags));
                if loaded.is_err() {
                    crate::sys::process::exit_now(255);
                }
                let err = rustix::fs::mkdirat(rustix::fs::CWD, c"", rustix::fs::Mode::empty()).unwrap_err();
                crate::sys::process::exit_now(err.raw_os_error());
            }
            crate::sys::process::Fork::Parent(pid) => {
                crate::sys::process::wait(pid, true).unwrap().unwrap().code.expect("the child exits")
            }
        }
    }

    fn profile(json: &str) -> LinuxSeccomp {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_refused_call_gets_the_profiles_errno() {
        let refuse = profile(
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat","no_such_call"],"action":"SCMP_ACT_ERRNO","errnoRet":38}]}"#,
        );
        assert_eq!(errno_of_mkdir(&compile(&refuse).unwrap()), libc::ENOSYS);
        let allow = profile(r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[]}"#);
        assert_eq!(errno_of_mkdir(&compile(&allow).unwrap()), libc::ENOENT);
    }

    #[test]
    fn conditions_on_one_argument_are_alternatives() {
        let json = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":1,
            "args":[{"index":2,"value":7,"op":"SCMP_CMP_EQ"},{"index":2,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#;
        assert_eq!(errno_of_mkdir(&compile(&profile(json)).unwrap()), libc::EPERM);
    }

    /// `mkdirat`'s mode argument is 0 here: it matches `mode & 0o700 == 0` and not `mode & 0o700 == 0o100`.
    #[test]
    fn a_masked_condition_compares_the_masked_bits() {
        for (value_two, want) in [(0, libc::EPERM), (0o100, libc::ENOENT)] {
            let json = format!(
                r#"{{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{{"names":["mkdirat"],"action":"SCMP_ACT_ERRNO",
                "args":[{{"index":2,"value":448,"valueTwo":{value_two},"op":"SCMP_CMP_MASKED_EQ"}}]}}]}}"#
            );
            assert_eq!(errno_of_mkdir(&compile(&profile(&json)).unwrap()), want, "valueTwo {value_two}");
        }
    }

    /// A program gives up on `EPERM` where on `ENOSYS` it would take an older call. `mkdirat` has a number above those of
    /// all calls that are always named here, `fchmodat2` one above its.
    #[test]
    fn a_call_newer_than_the_profile_is_unknown_and_not_forbidden() {
        for (more, want) in [("munmap", libc::ENOSYS), ("fchmodat2", libc::EPERM), ("mkdirat", libc::ENOENT)] {
            let json = format!(
                r#"{{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{{"names":["exit","exit_group","write","{more}"],
                "action":"SCMP_ACT_ALLOW"}}]}}"#
            );
            assert_eq!(errno_of_mkdir(&compile(&profile(&json)).unwrap()), want, "{more}");
        }
    }

    #[test]
    fn a_listener_is_refused() {
        let json = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_NOTIFY"}]}"#;
        assert!(matches!(compile(&profile(json)), Err(SeccompError::Notify(name)) if name == "mkdir"));
    }
}
