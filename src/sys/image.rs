//! The program's own image in memory.

/// `PF_W` of `<elf.h>`.
const WRITABLE: u32 = 2;

/// Lets go of the pages of the program's code and constants, for a process that is going to wait: what it needs again comes
/// back from the page cache, as it came the first time. Best effort.
pub fn release() {
    // SAFETY: getauxval takes an integer.
    let (table, count) = unsafe { (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM)) };
    if table == 0 {
        return;
    }
    // SAFETY: the kernel gave the address and the number of the program headers, which are part of the image.
    let headers = unsafe { std::slice::from_raw_parts(table as *const libc::Elf64_Phdr, count as usize) };
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    // A program that is not position-independent is where its file says, and need not say where the headers are.
    let moved = own.map_or(0, |header| table.wrapping_sub(header.p_vaddr));
    // SAFETY: sysconf takes an integer.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & WRITABLE == 0) {
        let begin = header.p_vaddr.wrapping_add(moved) & !(page - 1);
        let end = header.p_vaddr.wrapping_add(moved) + header.p_memsz;
        // SAFETY: the segment is mapped from the file and has never been writable, so its pages are the file's, and
        // reading one that was let go reads the same bytes again.
        unsafe { libc::madvise(begin as *mut libc::c_void, (end - begin) as usize, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    /// Pages of files that are mapped, in KiB.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssFile:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn code_that_was_let_go_runs_again() {
        let before = resident();
        super::release();
        let after = resident();
        // Other tests run meanwhile, and fetch what they need.
        assert!(after < before, "{before} KiB, then {after}");
        assert_eq!("1,2,3".split(',').map(|n| n.parse::<u32>().unwrap()).sum::<u32>(), 6);
    }
}
