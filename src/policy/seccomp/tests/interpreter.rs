//! What the kernel does with a filter: the instructions that libseccomp and this module emit, one by one.

use super::super::bpf::{
    ALLOW, AND, ARCH, Instruction, JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL, JUMP_SET, LOAD, NR, RETURN,
};

/// `struct seccomp_data` without the instruction pointer, which no filter here looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub nr: u32,
    pub arch: u32,
    pub args: [u64; 6],
}

impl Call {
    pub fn new(arch: u32, nr: u32, args: [u64; 6]) -> Call {
        Call { nr, arch, args }
    }

    fn word(&self, offset: u32) -> u32 {
        let (argument, half) = ((offset.wrapping_sub(16) / 8) as usize, offset % 8);
        match offset {
            NR => self.nr,
            ARCH => self.arch,
            16..64 if half == 0 => self.args[argument] as u32,
            16..64 if half == 4 => (self.args[argument] >> 32) as u32,
            other => panic!("load from {other}"),
        }
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It returned this.
    Returned(u32),
    /// It ran over its end, as a part of a program may.
    Over,
}

/// What a whole program returns.
#[track_caller]
pub fn run(program: &[Instruction], call: &Call) -> u32 {
    match run_part(program, call) {
        End::Returned(value) => value,
        End::Over => panic!("{call:x?}: over the end of {} instructions", program.len()),
    }
}

/// The same for a program that another one follows.
#[track_caller]
pub fn run_part(program: &[Instruction], call: &Call) -> End {
    let (mut at, mut a) = (0, 0u32);
    while let Some(step) = program.get(at) {
        let branch = |yes: bool| usize::from(if yes { step.yes } else { step.no });
        at += 1 + match step.code {
            RETURN => return End::Returned(step.value),
            LOAD => {
                a = call.word(step.value);
                0
            }
            AND => {
                a &= step.value;
                0
            }
            JUMP => step.value as usize,
            JUMP_EQUAL => branch(a == step.value),
            JUMP_GREATER => branch(a > step.value),
            JUMP_GREATER_EQUAL => branch(a >= step.value),
            JUMP_SET => branch(a & step.value != 0),
            other => panic!("instruction {other:#x}"),
        };
    }
    assert_eq!(at, program.len(), "{call:x?}: beyond the end");
    End::Over
}

/// Whether the kernel's cache of calls that are always allowed takes this one: it runs the program with only number and
/// architecture known, and gives up where anything else is asked for.
pub fn always_allowed(program: &[Instruction], arch: u32, nr: u32) -> bool {
    let (mut at, mut a) = (0, 0u32);
    loop {
        let step = program[at];
        let branch = |yes: bool| usize::from(if yes { step.yes } else { step.no });
        at += 1 + match step.code {
            RETURN => return step.value == ALLOW,
            LOAD if step.value == NR || step.value == ARCH => {
                a = if step.value == NR { nr } else { arch };
                0
            }
            AND => {
                a &= step.value;
                0
            }
            JUMP => step.value as usize,
            JUMP_EQUAL => branch(a == step.value),
            JUMP_GREATER => branch(a > step.value),
            JUMP_GREATER_EQUAL => branch(a >= step.value),
            JUMP_SET => branch(a & step.value != 0),
            _ => return false,
        };
    }
}
