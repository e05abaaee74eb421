//! A seccomp profile compiled to the program that the kernel takes.
//!
//! The profile is compiled once, when a container is created; its first process and every exec load the same bytes. With
//! profile `strict` the program is the list's and the engine's in one ([`strict()`]).

mod assemble;
mod bpf;
mod chain;
mod enosys;
mod numbers;
mod rules;
mod strict;
#[cfg(test)]
mod tests;

use std::io::{Read, Seek};
use std::os::fd::AsFd;

use libseccomp::{ScmpAction, ScmpArch, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall, ScmpVersion};
use oci_spec::runtime::{
    Arch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompFilterFlag, LinuxSeccompOperator,
};
use serde::{Deserialize, Serialize};

pub use rules::Strictness;
pub(super) use strict::pass;
pub use strict::strict;

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
    /// A program that computes what it returns: libseccomp makes none.
    #[error("seccomp: the engine's filter can't be joined with another: it computes its answer")]
    Computed,
    /// Both filters together are longer than the kernel takes.
    #[error(
        "seccomp: the engine's filter and that of profile strict are {instructions} instructions together, and the kernel \
         takes {}: give the container a profile with fewer rules",
        bpf::MAX
    )]
    TooLong {
        /// What they are together.
        instructions: usize,
    },
    /// The configuration names a call that does not exist.
    #[error("seccomp: no system call {0:?} is known")]
    Unknown(String),
    /// The configuration both allows and refuses a call.
    #[error("seccomp: {0} is both allowed and refused")]
    Contradiction(String),
    /// There is no table of numbers for the machine.
    #[error("seccomp: profile strict has no list of system calls for {0}")]
    Machine(&'static str),
    /// The list that is built in is broken.
    #[error("seccomp: the list of profile strict")]
    List(#[source] serde_json::Error),
    /// The compiled program could not be read back.
    #[error("seccomp: read the compiled program")]
    Export(#[source] std::io::Error),
}

impl Classify for SeccompError {
    fn kind(&self) -> Kind {
        match self {
            SeccompError::Notify(_) | SeccompError::Computed | SeccompError::Machine(_) => Kind::Unsupported,
            SeccompError::Rule { .. }
            | SeccompError::Filter { .. }
            | SeccompError::TooLong { .. }
            | SeccompError::Unknown(_)
            | SeccompError::Contradiction(_) => Kind::InvalidInput,
            SeccompError::List(_) => Kind::Corrupt,
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

/// Which library compiles: `(major, minor, micro)`. None where it does not tell.
pub fn compiler() -> Option<(u32, u32, u32)> {
    let version = ScmpVersion::current().ok()?;
    Some((version.major, version.minor, version.micro))
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
