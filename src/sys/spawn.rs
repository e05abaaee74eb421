//! Starting a program that gets more descriptors than the first three, from a process with threads.
//!
//! The standard library passes only 0 to 2 without running code of ours between fork and exec, which is not safe beside
//! other threads. posix_spawn(3) takes a list of what to do instead, and its C code is made for that place.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use super::{Call, SysError, open_files};

/// The first descriptor number that is not taken by standard streams.
const FIRST: i32 = 3;

/// A list of what is done to descriptors in the child.
struct Actions(libc::posix_spawn_file_actions_t);

/// How the child differs otherwise.
struct Attributes(libc::posix_spawnattr_t);

/// Starts the program at `path` with the arguments `argv` (the first is its name) and the environment `env`. Its
/// descriptors 0 to 2 are /dev/null, from 3 on they are `fds`; all others must be close-on-exec. Its signals have their
/// default actions and none is blocked. Returns its pid; it is a child, to be reaped.
///
/// # Errors
/// What execve(2) gives for the program; what keeps a process from being made.
pub fn spawn(path: &CStr, argv: &[CString], env: &[CString], fds: &[BorrowedFd<'_>]) -> Result<u32, SysError> {
    let on = || path.to_string_lossy().into_owned();
    // Copies with numbers above those that they are to have: none of them is overwritten before it is passed on.
    let above = FIRST + i32::try_from(fds.len()).unwrap_or(i32::MAX / 2);
    let copies: Result<Vec<OwnedFd>, _> = fds.iter().map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, above)).collect();
    let copies = copies.call("fcntl", || "F_DUPFD_CLOEXEC".into())?;
    let mut actions = Actions::new().call("posix_spawn_file_actions_init", on)?;
    actions.null(0, libc::O_RDONLY).call("posix_spawn_file_actions_addopen", on)?;
    for output in [1, 2] {
        actions.null(output, libc::O_WRONLY).call("posix_spawn_file_actions_addopen", on)?;
    }
    for (fd, number) in copies.iter().zip(FIRST..) {
        actions.pass(fd.as_fd(), number).call("posix_spawn_file_actions_adddup2", on)?;
    }
    let attributes = Attributes::new().call("posix_spawnattr_init", on)?;
    let pointers = |strings: &[CString]| -> Vec<*mut libc::c_char> {
        strings.iter().map(|s| s.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
    };
    let (argv_ptrs, env_ptrs) = (pointers(argv), pointers(env));
    let mut pid = 0;
    // SAFETY: both vectors end with a null pointer and point to strings that outlive the call, which does not change them;
    // the list and the attributes are initialised; the descriptors in the list are open until `copies` is dropped.
    let ret = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            path.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            argv_ptrs.as_ptr(),
            env_ptrs.as_ptr(),
        )
    };
    result(ret).call("posix_spawn", on)?;
    // posix_spawn(3) knows no limits.
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        open_files::give_back_to(pid);
    }
    Ok(pid.unsigned_abs())
}

/// These functions return the error instead of setting `errno`.
fn result(ret: libc::c_int) -> Result<(), io::Error> {
    if ret == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(ret)) }
}

impl Actions {
    fn new() -> io::Result<Actions> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the function initialises what it is given, unless it fails.
        unsafe {
            result(libc::posix_spawn_file_actions_init(actions.as_mut_ptr()))?;
            Ok(Actions(actions.assume_init()))
        }
    }

    fn null(&mut self, number: i32, flags: i32) -> io::Result<()> {
        // SAFETY: the list is initialised; the path is static and copied.
        let ret =
            unsafe { libc::posix_spawn_file_actions_addopen(&raw mut self.0, number, c"/dev/null".as_ptr(), flags, 0) };
        result(ret)
    }

    fn pass(&mut self, fd: BorrowedFd<'_>, number: i32) -> io::Result<()> {
        // SAFETY: the list is initialised; it only notes the two numbers.
        result(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, fd.as_raw_fd(), number) })
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: initialised by `new`, and not used after this.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

impl Attributes {
    /// All signals with their default actions, none blocked.
    fn new() -> io::Result<Attributes> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the function initialises what it is given, unless it fails.
        let mut attributes = unsafe {
            result(libc::posix_spawnattr_init(attributes.as_mut_ptr()))?;
            Attributes(attributes.assume_init())
        };
        let (mut all, mut none) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        // SAFETY: sigfillset and sigemptyset initialise the sets, which the setters copy; the attributes are initialised.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::sigemptyset(none.as_mut_ptr());
            result(libc::posix_spawnattr_setsigdefault(&raw mut attributes.0, all.as_ptr()))?;
            result(libc::posix_spawnattr_setsigmask(&raw mut attributes.0, none.as_ptr()))?;
            result(libc::posix_spawnattr_setflags(&raw mut attributes.0, flags as libc::c_short))?;
        }
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised by `new`, and not used after this.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_program_gets_the_descriptors_in_order_and_no_others() {
        let pipes: Vec<_> = (0..3).map(|_| std::io::pipe().unwrap()).collect();
        // In the order opposite to their numbers.
        let fds: Vec<_> = pipes.iter().rev().map(|(_, write)| write.as_fd()).collect();
        let script = c"for i in 3 4 5; do echo $i $A >&$i; done; exec sleep 100";
        let argv = [c"sh".to_owned(), c"-c".to_owned(), script.to_owned()];
        let pid = spawn(c"/bin/sh", &argv, &[c"A=b".to_owned(), c"PATH=/bin".to_owned()], &fds).unwrap();
        drop(fds);
        let (mut reads, writes): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
        drop(writes);
        let mut lines = |i: usize| {
            let mut text = [0; 4];
            reads[i].read_exact(&mut text).unwrap();
            String::from_utf8(text.to_vec()).unwrap()
        };
        assert_eq!([lines(0), lines(1), lines(2)], ["5 b\n", "4 b\n", "3 b\n"]);
        while std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() != "sleep\n" {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // Each pipe has one writer in the program: the numbers that were used on the way are gone.
        let links = |fd: &std::path::Path| std::fs::read_link(fd).unwrap_or_default();
        let theirs: Vec<_> =
            std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|e| links(&e.unwrap().path())).collect();
        for read in &reads {
            let pipe = links(format!("/proc/self/fd/{}", read.as_raw_fd()).as_ref());
            assert_eq!(theirs.iter().filter(|link| **link == pipe).count(), 1, "{theirs:?}");
        }
        for number in 0..3 {
            assert_eq!(links(format!("/proc/{pid}/fd/{number}").as_ref()).to_str(), Some("/dev/null"));
        }
        let child = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        let exit = super::super::process::wait(pid as i32, true).unwrap().unwrap();
        assert_eq!(exit.signal, Some(libc::SIGKILL));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error_of_the_call() {
        let err = spawn(c"/nonexistent", &[c"x".to_owned()], &[], &[]).unwrap_err();
        assert_eq!(err.errno(), Some(libc::ENOENT), "{err}");
    }
}
