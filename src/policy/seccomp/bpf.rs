//! Classic BPF as seccomp takes it: the instructions that filters here are made of, and their bytes.

/// Classic BPF, as in `<linux/bpf_common.h>`.
pub(super) const LOAD: u16 = 0x20;
pub(super) const RETURN: u16 = 0x06;
pub(super) const RETURN_A: u16 = 0x16;
pub(super) const JUMP: u16 = 0x05;
pub(super) const JUMP_EQUAL: u16 = 0x15;
pub(super) const JUMP_GREATER: u16 = 0x25;
pub(super) const JUMP_GREATER_EQUAL: u16 = 0x35;
pub(super) const JUMP_SET: u16 = 0x45;
pub(super) const AND: u16 = 0x54;

/// Offsets in `struct seccomp_data`.
pub(super) const NR: u32 = 0;
pub(super) const ARCH: u32 = 4;
/// The low half of an argument on a little-endian machine; the high half is 4 on.
pub(super) const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// `SECCOMP_RET_*` of `<linux/seccomp.h>`; the low 16 bits are the action's data.
pub(super) const KILL_PROCESS: u32 = 0x8000_0000;
pub(super) const ERRNO: u32 = 0x0005_0000;
pub(super) const TRACE: u32 = 0x7ff0_0000;
pub(super) const LOG: u32 = 0x7ffc_0000;
pub(super) const ALLOW: u32 = 0x7fff_0000;
/// The bits of the action.
pub(super) const ACTION: u32 = 0xffff_0000;

/// `AUDIT_ARCH_X86_64`, which x32 has too.
pub(super) const AUDIT_X86_64: u32 = 0xc000_003e;
/// Set in the number of a call by the x32 ABI.
pub(super) const X32_BIT: u32 = 1 << 30;

/// The longest program that the kernel takes, in instructions (`BPF_MAXINSNS`).
pub(super) const MAX: usize = 4096;

/// One `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Instruction {
    pub code: u16,
    /// How many instructions a conditional jump skips where its condition holds.
    pub yes: u8,
    /// And where it does not.
    pub no: u8,
    pub value: u32,
}

pub(super) const fn instruction(code: u16, value: u32, yes: u8, no: u8) -> Instruction {
    Instruction { code, yes, no, value }
}

/// The bytes that the kernel takes, in the machine's order.
pub(super) fn encode(program: &[Instruction]) -> Vec<u8> {
    let bytes = |step: &Instruction| {
        let (code, value) = (step.code.to_ne_bytes(), step.value.to_ne_bytes());
        [code[0], code[1], step.yes, step.no, value[0], value[1], value[2], value[3]]
    };
    program.iter().flat_map(bytes).collect()
}

/// The instructions of a program; bytes after the last whole one are left out.
pub(super) fn decode(bytes: &[u8]) -> Vec<Instruction> {
    let (steps, _) = bytes.as_chunks::<8>();
    let step = |s: &[u8; 8]| {
        instruction(u16::from_ne_bytes([s[0], s[1]]), u32::from_ne_bytes([s[4], s[5], s[6], s[7]]), s[2], s[3])
    };
    steps.iter().map(step).collect()
}
