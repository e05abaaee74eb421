//! Two filters as one program: a call is permitted where both permit it.
//!
//! ```text
//!   first:  …  RET ERRNO  …  JA ──┐  …  RET KILL  …  JA ──┐     what permitted now jumps on
//!   second, for ALLOW:  ◄─────────┘   … RET ERRNO … RET ALLOW   │
//!   second, for LOG:    ◄───────────────────────────────────────┘  … RET ERRNO … RET LOG
//! ```
//!
//! The first program keeps its length, and so its jumps. One program is run where the kernel would run two, and the kernel
//! still finds out beforehand which calls are always allowed, since all it has to follow are loads of number and
//! architecture, comparisons and jumps (`seccomp_is_const_allow`).

use super::SeccompError;
use super::bpf::{ACTION, ALLOW, Instruction, JUMP, LOG, MAX, RETURN, RETURN_A, TRACE, instruction};

/// Puts `second` behind `first`.
///
/// Where both permit, the more restrictive of the two actions is taken by the kernel's order (`TRACE`, `LOG`, `ALLOW`), of
/// equal ones the first program's. A refusal of the first is final: its errno is the one that is seen, and so is what it
/// does instead of an errno.
pub(super) fn chain(first: &[Instruction], second: &[Instruction]) -> Result<Vec<Instruction>, SeccompError> {
    if first.iter().any(|step| step.code == RETURN_A) {
        return Err(SeccompError::Computed);
    }
    let mut program = first.to_vec();
    let mut copies: Vec<(u32, usize)> = Vec::new();
    for (at, step) in first.iter().enumerate() {
        if step.code != RETURN || !permits(step.value) {
            continue;
        }
        let copy = copies.iter().find(|(value, _)| *value == step.value).map(|(_, begin)| *begin);
        let begin = copy.unwrap_or_else(|| {
            let begin = program.len();
            copies.push((step.value, begin));
            program.extend(second.iter().map(|step_two| match step_two.code {
                RETURN => Instruction { value: stricter(step.value, step_two.value), ..*step_two },
                _ => *step_two,
            }));
            begin
        });
        program[at] = instruction(JUMP, (begin - at - 1) as u32, 0, 0);
    }
    match program.len() {
        0..=MAX => Ok(program),
        instructions => Err(SeccompError::TooLong { instructions }),
    }
}

/// Whether the call is done: `TRACE`, `LOG` and `ALLOW`; a tracer answers for itself.
pub(super) fn permits(value: u32) -> bool {
    [TRACE, LOG, ALLOW].contains(&(value & ACTION))
}

fn stricter(first: u32, second: u32) -> u32 {
    if rank(second) < rank(first) { second } else { first }
}

/// The kernel's order: the lowest wins, as a signed number, so that `KILL_PROCESS` is below all.
fn rank(value: u32) -> i32 {
    (value & ACTION).cast_signed()
}
