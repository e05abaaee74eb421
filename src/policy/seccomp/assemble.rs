//! Rules by number to BPF: for each ABI a binary search over ranges of numbers with the same answer.
//!
//! Most calls need no look at their arguments, and neighbours often get the same answer, so that an ABI is about a hundred
//! ranges, found by seven comparisons. What does need a look is a range of its own.

use std::collections::BTreeMap;

use super::bpf::{
    AND, ARCH, Instruction, JUMP, JUMP_EQUAL, JUMP_GREATER_EQUAL, KILL_PROCESS, LOAD, NR, RETURN, argument, instruction,
};
use super::rules::{Branch, Test};

/// The calls of one ABI.
pub(super) struct Section<'a> {
    /// `AUDIT_ARCH_*`.
    pub audit: u32,
    /// What each number gets; the last branch has no tests.
    pub calls: BTreeMap<u32, &'a [Branch]>,
    /// What every other number gets.
    pub other: u32,
}

/// Numbers from one on that get the same, up to the next range.
struct Range<'a> {
    first: u32,
    answer: Answer<'a>,
}

#[derive(Clone, Copy, PartialEq)]
enum Answer<'a> {
    Always(u32),
    Branches(&'a [Branch]),
}

/// The whole program. A call of an ABI that has no section ends the process, as libseccomp has it too.
pub(super) fn assemble(sections: &[Section<'_>]) -> Vec<Instruction> {
    let bodies: Vec<Vec<Instruction>> = sections.iter().map(|section| search(&ranges(section))).collect();
    let mut program = vec![instruction(LOAD, ARCH, 0, 0)];
    // Behind the two instructions of each section and the end for those that have none.
    let mut begin = 1 + 2 * sections.len() + 1;
    for (section, body) in sections.iter().zip(&bodies) {
        program.push(instruction(JUMP_EQUAL, section.audit, 0, 1));
        program.push(instruction(JUMP, (begin - program.len() - 1) as u32, 0, 0));
        begin += 1 + body.len();
    }
    program.push(instruction(RETURN, KILL_PROCESS, 0, 0));
    for body in bodies {
        program.push(instruction(LOAD, NR, 0, 0));
        program.extend(body);
    }
    program
}

fn ranges<'a>(section: &Section<'a>) -> Vec<Range<'a>> {
    let other = Answer::Always(section.other);
    let mut ranges: Vec<Range<'a>> = Vec::new();
    let mut next = 0;
    let mut push = |first, answer| {
        if ranges.last().is_none_or(|last| last.answer != answer) {
            ranges.push(Range { first, answer });
        }
    };
    for (number, branches) in &section.calls {
        if *number > next {
            push(next, other);
        }
        push(
            *number,
            match branches {
                [only] if only.tests.is_empty() => Answer::Always(only.answer),
                many => Answer::Branches(many),
            },
        );
        next = number + 1;
    }
    push(next, other);
    ranges
}

/// With the number loaded: the answer of the range that it is in.
fn search(ranges: &[Range<'_>]) -> Vec<Instruction> {
    if let [one] = ranges {
        return match one.answer {
            Answer::Always(answer) => vec![instruction(RETURN, answer, 0, 0)],
            Answer::Branches(branches) => branches.iter().flat_map(branch).collect(),
        };
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let first = upper.first().map_or(0, |range| range.first);
    let (lower, upper) = (search(lower), search(upper));
    let mut steps = match u8::try_from(lower.len()) {
        Ok(over) => vec![instruction(JUMP_GREATER_EQUAL, first, over, 0)],
        Err(_) => vec![instruction(JUMP_GREATER_EQUAL, first, 0, 1), instruction(JUMP, lower.len() as u32, 0, 0)],
    };
    steps.extend(lower);
    steps.extend(upper);
    steps
}

/// The answer if the tests hold, else on to what follows. A call has six arguments, so that no jump is over 255.
fn branch(branch: &Branch) -> Vec<Instruction> {
    let mut steps: Vec<Instruction> = branch.tests.iter().flat_map(test).collect();
    steps.push(instruction(RETURN, branch.answer, 0, 0));
    let end = steps.len();
    for (at, step) in steps.iter_mut().enumerate().filter(|(_, step)| step.code == JUMP_EQUAL) {
        step.no = (end - at - 1) as u8;
    }
    steps
}

/// Goes on where the test holds; where the jumps lead otherwise is filled in by [`branch`]. The halves of an argument are
/// looked at one by one, and those whose mask is 0 not at all.
fn test(test: &Test) -> Vec<Instruction> {
    let mut steps = Vec::new();
    for (offset, shift) in [(0, 0), (4, 32)] {
        let (mask, value) = ((test.mask >> shift) as u32, (test.value >> shift) as u32);
        if mask == 0 {
            continue;
        }
        steps.push(instruction(LOAD, argument(test.argument) + offset, 0, 0));
        if mask != u32::MAX {
            steps.push(instruction(AND, mask, 0, 0));
        }
        steps.push(instruction(JUMP_EQUAL, value, 0, 0));
    }
    steps
}
