//! System calls that a profile could not know of: the kernel's own answer for a call that it lacks, instead of the
//! profile's refusal.
//!
//! A program that tries a new call falls back to an older one on `ENOSYS`, and gives up on `EPERM`. So, as in runc, a call
//! with a number above the newest that any rule of the profile names, for that architecture, is `ENOSYS`: a few
//! instructions before the compiled filter.

use libseccomp::{ScmpArch, ScmpSyscall};
use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction};

use super::bpf::{
    ARCH, AUDIT_X86_64, ERRNO, Instruction, JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_SET, LOAD, NR, RETURN, X32_BIT,
    encode, instruction,
};

/// The kernel's own answer.
const RET_ENOSYS: u32 = ERRNO | libc::ENOSYS as u32;

/// The newest call that the profile names, for one architecture as the kernel tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Newest {
    /// `AUDIT_ARCH_*`.
    audit: u32,
    /// The newest number; none if the profile names no call of the architecture.
    number: Option<u32>,
    /// The same for x32, without its bit.
    x32: Option<u32>,
    /// s390 and s390x: number 0 stands for all numbers that do not fit an instruction.
    zero_is_any: bool,
}

/// The instructions to put before the compiled filter, 8 bytes each; none where the default is no refusal, or is
/// `ENOSYS` itself. `architectures` are those of the filter, the native one among them.
pub(super) fn prefix(profile: &LinuxSeccomp, architectures: &[ScmpArch]) -> Vec<u8> {
    use LinuxSeccompAction::{ScmpActAllow, ScmpActErrno, ScmpActLog, ScmpActTrace};
    let action = profile.default_action();
    // A tracer answers for itself.
    if matches!(action, ScmpActAllow | ScmpActLog | ScmpActTrace)
        || (action == ScmpActErrno && profile.default_errno_ret() == Some(libc::ENOSYS as u32))
    {
        return Vec::new();
    }
    encode(&assemble(&newest(profile, architectures)))
}

fn newest(profile: &LinuxSeccomp, architectures: &[ScmpArch]) -> Vec<Newest> {
    let names = || profile.syscalls().iter().flatten().flat_map(|rule| rule.names());
    let mut all: Vec<Newest> = Vec::new();
    for arch in architectures {
        let arch = if *arch == ScmpArch::Native { ScmpArch::native() } else { *arch };
        let Some(audit) = audit_arch(arch) else { continue };
        // Calls that the architecture lacks have negative numbers.
        let number = names()
            .filter_map(|name| ScmpSyscall::from_name_by_arch(name, arch).ok())
            .filter_map(|call| u32::try_from(i32::from(call)).ok())
            .max();
        let at = all.iter().position(|n| n.audit == audit).unwrap_or_else(|| {
            let zero_is_any = matches!(arch, ScmpArch::S390 | ScmpArch::S390X);
            all.push(Newest { audit, number: None, x32: None, zero_is_any });
            all.len() - 1
        });
        match arch {
            ScmpArch::X32 => all[at].x32 = number.map(|n| n & !X32_BIT),
            _ => all[at].number = number,
        }
    }
    all.retain(|n| n.number.is_some() || n.x32.is_some());
    all
}

fn assemble(newest: &[Newest]) -> Vec<Instruction> {
    let mut program = Vec::new();
    for one in newest {
        let mut section = vec![instruction(LOAD, NR, 0, 0)];
        if one.zero_is_any {
            section.extend([instruction(JUMP_EQUAL, 0, 0, 1), instruction(RETURN, RET_ENOSYS, 0, 0)]);
        }
        // Each way ends with a jump over all that follows, which is not known yet.
        let compare = |number: Option<u32>, bit: u32| {
            let refuse =
                number.map(|n| [instruction(JUMP_GREATER, n | bit, 0, 1), instruction(RETURN, RET_ENOSYS, 0, 0)]);
            let mut way: Vec<Instruction> = refuse.into_iter().flatten().collect();
            way.push(instruction(JUMP, 0, 0, 0));
            way
        };
        let plain = compare(one.number, 0);
        if one.audit == AUDIT_X86_64 {
            section.push(instruction(JUMP_SET, X32_BIT, plain.len() as u8, 0));
            section.extend(plain);
            section.extend(compare(one.x32, X32_BIT));
        } else {
            section.extend(plain);
        }
        program.push(instruction(LOAD, ARCH, 0, 0));
        program.push(instruction(JUMP_EQUAL, one.audit, 0, section.len() as u8));
        program.extend(section);
    }
    let end = program.len();
    for (at, step) in program.iter_mut().enumerate().filter(|(_, step)| step.code == JUMP) {
        step.value = (end - at - 1) as u32;
    }
    program
}

/// `AUDIT_ARCH_*` of `<linux/audit.h>`: the ELF machine, `0x8000_0000` for 64 bits, `0x4000_0000` for little endian,
/// `0x2000_0000` for MIPS n32.
fn audit_arch(arch: ScmpArch) -> Option<u32> {
    Some(match arch {
        ScmpArch::X86 => 0x4000_0003,
        ScmpArch::X8664 | ScmpArch::X32 => AUDIT_X86_64,
        ScmpArch::Arm => 0x4000_0028,
        ScmpArch::Aarch64 => 0xc000_00b7,
        ScmpArch::Mips => 0x0000_0008,
        ScmpArch::Mips64 => 0x8000_0008,
        ScmpArch::Mips64N32 => 0xa000_0008,
        ScmpArch::Mipsel => 0x4000_0008,
        ScmpArch::Mipsel64 => 0xc000_0008,
        ScmpArch::Mipsel64N32 => 0xe000_0008,
        ScmpArch::Ppc => 0x0000_0014,
        ScmpArch::Ppc64 => 0x8000_0015,
        ScmpArch::Ppc64Le => 0xc000_0015,
        ScmpArch::S390 => 0x0000_0016,
        ScmpArch::S390X => 0x8000_0016,
        ScmpArch::Riscv64 => 0xc000_00f3,
        ScmpArch::Parisc => 0x0000_000f,
        ScmpArch::Parisc64 => 0x8000_000f,
        ScmpArch::Loongarch64 => 0xc000_0102,
        ScmpArch::M68k => 0x0000_0004,
        ScmpArch::Sh => 0x4000_002a,
        ScmpArch::Sheb => 0x0000_002a,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::interpreter::{Call, End, run_part};
    use super::*;

    /// What the instructions say of a call: `ENOSYS`, or on to the filter (`None`).
    fn run(program: &[Instruction], arch: u32, nr: u32) -> Option<u32> {
        match run_part(program, &Call::new(arch, nr, [0; 6])) {
            End::Returned(value) => Some(value),
            End::Over => None,
        }
    }

    #[test]
    fn newer_calls_of_each_architecture_are_told_apart() {
        let plain = |audit, number| Newest { audit, number: Some(number), x32: None, zero_is_any: false };
        let program = assemble(&[
            Newest { x32: Some(500), ..plain(AUDIT_X86_64, 400) },
            plain(0x4000_0003, 300),
            Newest { zero_is_any: true, ..plain(0x8000_0016, 200) },
        ]);
        for (arch, nr, refused) in [
            (AUDIT_X86_64, 0, false),
            (AUDIT_X86_64, 400, false),
            (AUDIT_X86_64, 401, true),
            (AUDIT_X86_64, X32_BIT | 500, false),
            (AUDIT_X86_64, X32_BIT | 501, true),
            (AUDIT_X86_64, u32::MAX, true),
            (0x4000_0003, 300, false),
            (0x4000_0003, 301, true),
            (0x8000_0016, 0, true),
            (0x8000_0016, 200, false),
            (0x8000_0016, 201, true),
            (0xc000_00b7, 9999, false),
        ] {
            assert_eq!(run(&program, arch, nr), refused.then_some(RET_ENOSYS), "{arch:#x} {nr:#x}");
        }
        let without_x32 = assemble(&[plain(AUDIT_X86_64, 400)]);
        assert_eq!(run(&without_x32, AUDIT_X86_64, X32_BIT | 9999), None, "not the profile's to judge");
    }

    #[test]
    fn only_a_default_that_refuses_needs_it() {
        let profile = |default: &str| {
            let text = format!(
                r#"{{{default},"syscalls":[{{"names":["read","mkdirat","nonsense"],"action":"SCMP_ACT_ALLOW"}}]}}"#
            );
            serde_json::from_str::<LinuxSeccomp>(&text).unwrap()
        };
        let length = |default: &str| prefix(&profile(default), &[ScmpArch::Native]).len();
        for none in ["SCMP_ACT_ALLOW", "SCMP_ACT_LOG", "SCMP_ACT_TRACE"] {
            assert_eq!(length(&format!(r#""defaultAction":"{none}""#)), 0, "{none}");
        }
        assert_eq!(length(r#""defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38"#), 0);
        for some in [r#""defaultAction":"SCMP_ACT_ERRNO""#, r#""defaultAction":"SCMP_ACT_KILL""#] {
            assert!(length(some) > 0, "{some}");
        }
        let of_x86 = newest(&profile(r#""defaultAction":"SCMP_ACT_ERRNO""#), &[ScmpArch::X86, ScmpArch::X8664]);
        assert_eq!(
            of_x86.iter().map(|n| (n.audit, n.number)).collect::<Vec<_>>(),
            [(0x4000_0003, Some(296)), (AUDIT_X86_64, Some(258))]
        );
    }
}
