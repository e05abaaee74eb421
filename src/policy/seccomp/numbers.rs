//! The numbers of system calls, for each ABI that profile `strict` knows: [`SYSTEM_CALLS`].
//!
//! A table of our own, since a build of libseccomp knows only the calls that were there when it was released, and looks
//! names up one by one.

use super::bpf::AUDIT_X86_64;
use crate::terms::SYSTEM_CALLS;

/// One way to make system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abi {
    /// `AUDIT_ARCH_*`, by which the kernel tells it.
    pub audit: u32,
    column: usize,
}

pub(super) const X86_64: Abi = Abi { audit: AUDIT_X86_64, column: 0 };
pub(super) const X86: Abi = Abi { audit: 0x4000_0003, column: 1 };
const AARCH64: Abi = Abi { audit: 0xc000_00b7, column: 2 };
const RISCV64: Abi = Abi { audit: 0xc000_00f3, column: 2 };
const LOONGARCH64: Abi = Abi { audit: 0xc000_0102, column: 2 };
const ARM: Abi = Abi { audit: 0x4000_0028, column: 3 };

/// The ABIs of a machine (`std::env::consts::ARCH`), its own first. x32 is not among them: hardly a kernel has it switched
/// on, and its calls, which are those of x86-64 with another bit, are answered as by a kernel without.
pub(super) fn abis(machine: &str) -> Option<&'static [Abi]> {
    Some(match machine {
        "x86_64" => &[X86_64, X86],
        "aarch64" => &[AARCH64, ARM],
        "riscv64" => &[RISCV64],
        "loongarch64" => &[LOONGARCH64],
        _ => return None,
    })
}

/// A call's number by column.
type Row = (&'static str, [Option<u32>; 4]);

/// The table, sorted by name.
pub(super) struct Numbers(Vec<Row>);

impl Numbers {
    pub(super) fn read() -> Numbers {
        let row = |line: &'static str| {
            let mut fields = line.split(' ');
            let name = fields.next().unwrap_or_default();
            (name, [(); 4].map(|()| fields.next().and_then(|number| number.parse().ok())))
        };
        Numbers(SYSTEM_CALLS.lines().filter(|line| !line.starts_with('#')).map(row).collect())
    }

    fn row(&self, name: &str) -> Option<&Row> {
        self.0.binary_search_by_key(&name, |row| row.0).ok().map(|at| &self.0[at])
    }

    /// The table's own copy of a name.
    pub(super) fn known(&self, name: &str) -> Option<&'static str> {
        self.row(name).map(|row| row.0)
    }

    pub(super) fn of(&self, name: &str, abi: Abi) -> Option<u32> {
        self.row(name)?.1[abi.column]
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|row| row.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use libseccomp::{ScmpArch, ScmpSyscall};

    use super::*;

    #[test]
    fn the_table_is_sorted_and_no_number_stands_twice() {
        let numbers = Numbers::read();
        assert!(numbers.0.is_sorted_by(|a, b| a.0 < b.0));
        for abi in [X86_64, X86, AARCH64, ARM] {
            let all: Vec<u32> = numbers.names().filter_map(|name| numbers.of(name, abi)).collect();
            assert!(all.len() > 300, "{abi:?}");
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{abi:?}");
        }
        assert!(SYSTEM_CALLS.lines().filter(|l| !l.starts_with('#')).all(|l| l.split(' ').count() == 5));
    }

    /// The newest number of Linux 6.18.
    const NEWEST: i32 = 469;

    /// The other source of numbers says the same of each call that it knows, and knows none that the table lacks.
    #[test]
    fn libseccomp_agrees() {
        let numbers = Numbers::read();
        for (abi, arch) in [
            (X86_64, ScmpArch::X8664),
            (X86, ScmpArch::X86),
            (AARCH64, ScmpArch::Aarch64),
            (ARM, ScmpArch::Arm),
            (RISCV64, ScmpArch::Riscv64),
        ] {
            let mut both = 0;
            for number in 0..600 {
                let Ok(name) = ScmpSyscall::from(number).get_name_by_arch(arch) else { continue };
                if number > NEWEST && numbers.known(&name).is_none() {
                    continue; // a call of a later kernel
                }
                assert_eq!(numbers.of(&name, abi), Some(number as u32), "{name} {arch:?}");
                both += 1;
            }
            assert!(both > 250, "{arch:?}: {both}");
        }
    }

    /// The kernel that the tests run on is the judge of what calls there are, if it is none that came after the table.
    #[test]
    fn this_kernels_calls_are_in_the_table() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let version: Vec<u32> = release.split('.').take(2).map_while(|part| part.parse().ok()).collect();
        let Ok(symbols) = std::fs::read_to_string("/proc/kallsyms") else { return };
        if version.as_slice() > &[6, 18] {
            return;
        }
        let numbers = Numbers::read();
        let calls: Vec<&str> = symbols
            .lines()
            .filter_map(|line| line.split_whitespace().nth(2)?.strip_prefix("__x64_sys_"))
            // Other names of the same calls, compatibility entries and other architectures' leftovers.
            .filter(|name| {
                !name.contains('.') && !name.ends_with("16") && !name.ends_with("_time32") && !name.starts_with("ia32_")
            })
            .filter(|name| !name.starts_with("old") && !name.starts_with("new") && !name.starts_with("s390_"))
            .filter(|name| !name.ends_with("32") && !name.starts_with("spu_"))
            .filter(|name| {
                !["gethostname", "llseek", "mmap_pgoff", "ni_syscall", "rtas", "subpage_prot", "sync_file_range2"]
                    .contains(name)
            })
            .collect();
        let missing: Vec<_> = calls.iter().filter(|name| numbers.known(name).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
