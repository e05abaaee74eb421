//! The program's entry point: what [`exe::protect`](super::exe::protect) does, before anything else has been done.
//!
//! The start of the C library and of Rust takes most of a millisecond on a virtual machine (each `cpuid` leaves it), and
//! the program that is going to run itself again need not pay that twice. So the verbs that enter a container are looked
//! for in the arguments as the kernel left them on the stack, and the second run begins from there. Where a step fails, or
//! the word was no verb, the program starts as any other, and `exe::protect` finds out why.
//!
//! Nothing of the C library works yet: no thread-local storage, no `memcpy` (its kind is chosen at the start). The code
//! here therefore uses registers and its own stack only. `build.rs` gives the entry point's name to the linker.

#[cfg(target_arch = "x86_64")]
mod entry {
    use core::arch::{asm, global_asm};
    use core::mem::MaybeUninit;

    // The stack pointer that the kernel gave is the only argument. What is in rdx is for the C library's start.
    global_asm!(
        ".globl agentsbx_start",
        ".type agentsbx_start, @function",
        "agentsbx_start:",
        "xor ebp, ebp",
        "mov r12, rdx",
        "mov r13, rsp",
        "mov rdi, rsp",
        "and rsp, -16",
        "call {early}",
        "mov rsp, r13",
        "mov rdx, r12",
        "jmp _start",
        early = sym early,
    );

    const EMPTY_PATH: usize = libc::AT_EMPTY_PATH as usize;
    /// `OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH`.
    const CLONE: usize = 1 | libc::O_CLOEXEC as usize | EMPTY_PATH;
    /// `MOUNT_ATTR_RDONLY`.
    const MOUNT_RDONLY: u64 = 1;
    /// Where `f_flags` is in the kernel's `struct statfs`, in words of eight bytes.
    const STATFS_FLAGS: usize = 10;

    extern "C" fn early(stack: *const usize) {
        // SAFETY: at the entry point the stack holds the number of arguments, pointers to them, a null pointer, and the
        // environment in the same form (System V ABI, AMD64 supplement, 3.4.1). The kernel made the strings, each ended by
        // NUL, and nobody has touched them.
        unsafe {
            let count = *stack;
            let (argv, envp) = (stack.add(1), stack.add(count + 2));
            let mut n = 1;
            while n < count {
                if enters(*argv.add(n) as *const u8) {
                    run_again(argv, envp);
                    return;
                }
                n += 1;
            }
        }
    }

    /// # Safety
    /// `word` ends with NUL.
    unsafe fn enters(word: *const u8) -> bool {
        // SAFETY: no byte after the NUL is read: a comparison ends at the first that differs.
        unsafe { is(word, b"create\0") || is(word, b"exec\0") || is(word, b"run\0") }
    }

    /// # Safety
    /// `word` ends with NUL, and so does `verb`.
    unsafe fn is(word: *const u8, verb: &[u8]) -> bool {
        let mut n = 0;
        while n < verb.len() {
            // SAFETY: all bytes before this one were the verb's, so none of them was the NUL.
            if unsafe { *word.add(n) } != verb[n] {
                return false;
            }
            n += 1;
        }
        true
    }

    /// Runs the program from a read-only mount of its file, unless it is run from one; returns if it can't.
    ///
    /// # Safety
    /// `argv` and `envp` are arrays of strings as execve(2) takes them.
    unsafe fn run_again(argv: *const usize, envp: *const usize) {
        let mut statfs = MaybeUninit::<[u64; 16]>::uninit();
        let attr = [MOUNT_RDONLY, 0, 0, 0];
        let (path, empty) = (c"/proc/self/exe".as_ptr() as usize, c"".as_ptr() as usize);
        // SAFETY: every pointer is to a string that lives as long as the program, to a live local of the size that the
        // call reads or writes (struct statfs is 120 bytes, struct mount_attr the 32 that are passed), or of the caller's.
        unsafe {
            let flags = (libc::O_PATH | libc::O_CLOEXEC) as usize;
            let exe = call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0]);
            if exe < 0 {
                return;
            }
            let known = call(libc::SYS_fstatfs, [exe as usize, statfs.as_mut_ptr() as usize, 0, 0, 0]) == 0;
            let protected = known && *statfs.as_ptr().cast::<u64>().add(STATFS_FLAGS) & libc::ST_RDONLY != 0;
            if known && !protected {
                let tree = call(libc::SYS_open_tree, [exe as usize, empty, CLONE, 0, 0]);
                if tree >= 0 {
                    let tree = tree as usize;
                    let set = [tree, empty, EMPTY_PATH, attr.as_ptr() as usize, size_of_val(&attr)];
                    if call(libc::SYS_mount_setattr, set) == 0 {
                        call(libc::SYS_execveat, [tree, empty, argv as usize, envp as usize, EMPTY_PATH]);
                    }
                    call(libc::SYS_close, [tree, 0, 0, 0, 0]);
                }
            }
            call(libc::SYS_close, [exe as usize, 0, 0, 0, 0]);
        }
    }

    /// A system call with at most five arguments; a negative number is an error's.
    ///
    /// # Safety
    /// The arguments are valid for the call.
    unsafe fn call(number: libc::c_long, args: [usize; 5]) -> isize {
        let result: isize;
        // SAFETY: the kernel's convention for x86-64: it changes rax, rcx and r11, and memory that the arguments name.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") number as isize => result,
                in("rdi") args[0], in("rsi") args[1], in("rdx") args[2], in("r10") args[3], in("r8") args[4],
                lateout("rcx") _, lateout("r11") _,
                options(nostack),
            );
        }
        result
    }
}
