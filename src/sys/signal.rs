//! Signals: names and numbers, the mask, and receiving them as readable data.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Call, SysError, check};

const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];
/// The kernel's numbers as libc presents them: the first two of the kernel's real-time signals are the C library's own.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// Signal number of `text`: a number 0 to 64, or a name with or without `SIG`, in any case, `RTMIN`, `RTMIN+3`,
/// `RTMAX-2` included. `None` if it is neither.
pub fn parse(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (0..=RTMAX).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let offset = |rest: &str, sign: char| -> Option<i32> {
        if rest.is_empty() {
            return Some(0);
        }
        let digits = rest.strip_prefix(sign)?;
        (digits.len() <= 2 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
    };
    let number = if let Some(rest) = name.strip_prefix("RTMIN") {
        RTMIN + offset(rest, '+')?
    } else if let Some(rest) = name.strip_prefix("RTMAX") {
        RTMAX - offset(rest, '-')?
    } else {
        return match name {
            "CLD" => Some(libc::SIGCHLD),
            "IOT" => Some(libc::SIGABRT),
            "POLL" => Some(libc::SIGIO),
            "UNUSED" => Some(libc::SIGSYS),
            _ => NAMES.iter().position(|n| *n == name).map(|i| i as i32 + 1),
        };
    };
    (RTMIN..=RTMAX).contains(&number).then_some(number)
}

fn set_of(fill: unsafe extern "C" fn(*mut libc::sigset_t) -> libc::c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `fill` is sigfillset or sigemptyset, which initialise the whole set.
    unsafe {
        fill(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Makes `set` the set of this thread's blocked signals.
fn set_mask(set: &libc::sigset_t) -> Result<(), SysError> {
    // SAFETY: `set` is initialised; the old mask is not asked for.
    let ret = unsafe { libc::sigprocmask(libc::SIG_SETMASK, set, std::ptr::null_mut()) };
    check(ret.into()).map(drop).call("sigprocmask", String::new)
}

/// All signals of this thread blocked and readable here instead. The mask stays blocked when this is dropped.
#[derive(Debug)]
pub struct SignalFd {
    fd: OwnedFd,
}

impl SignalFd {
    /// Blocks every signal and opens a descriptor that yields them (non-blocking, close-on-exec).
    pub fn block_all() -> Result<SignalFd, SysError> {
        let set = set_of(libc::sigfillset);
        set_mask(&set)?;
        // SAFETY: `set` is initialised and -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        let fd = check(fd.into()).call("signalfd", || "all".into())?;
        // SAFETY: a fresh descriptor that nothing else owns.
        Ok(SignalFd { fd: unsafe { OwnedFd::from_raw_fd(fd as i32) } })
    }

    /// The next pending signal's number, or `None` if there is none.
    pub fn next(&self) -> Result<Option<i32>, SysError> {
        let mut buffer = [0u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut buffer) {
            // ssi_signo is the first field, a u32.
            Ok(n) if n == buffer.len() => {
                Ok(Some(u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]) as i32))
            }
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(errno) => Err(SysError::new("read", "signalfd", errno)),
        }
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Before execve: nothing blocked, SIGPIPE as the default (the Rust runtime ignores it, and an ignored signal would be
/// inherited). What the caller ignores stays ignored.
pub fn reset_for_exec() -> Result<(), SysError> {
    default_action(libc::SIGPIPE);
    unblock_all()
}

/// Blocks nothing any more.
pub fn unblock_all() -> Result<(), SysError> {
    set_mask(&set_of(libc::sigemptyset))
}

/// Before execve: nothing blocked and nothing ignored, whatever the caller's caller did.
pub fn reset_all_for_exec() -> Result<(), SysError> {
    (1..=libc::SIGRTMAX()).for_each(default_action);
    unblock_all()
}

fn default_action(signal: i32) {
    // SAFETY: SIG_DFL is a valid action for every signal; those that can't be changed answer EINVAL.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Makes children be waited for, also where the caller ignores SIGCHLD: that is inherited, and the kernel then reaps them
/// unasked, and nobody learns how they ended (waitid(2)).
pub fn keep_children() {
    default_action(libc::SIGCHLD);
}

/// Makes the signals that ask a process to end do so even for the first process of a pid namespace, for which the kernel
/// ignores those without a handler. Ignored ones stay ignored. execve undoes it.
pub fn end_when_asked() {
    extern "C" fn end(signal: libc::c_int) {
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(128 + signal) }
    }
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the structure is valid for writing, and zeroed it is a valid one to begin with; the handler only calls
        // _exit.
        unsafe {
            if libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) == 0
                && now.assume_init_ref().sa_sigaction == libc::SIG_DFL
            {
                libc::signal(signal, end as extern "C" fn(libc::c_int) as libc::sighandler_t);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (text, want) in [
            ("9", Some(9)),
            ("0", Some(0)),
            ("37", Some(37)),
            ("64", Some(64)),
            ("65", None),
            ("-1", None),
            ("KILL", Some(9)),
            ("SIGKILL", Some(9)),
            ("sigkill", Some(9)),
            ("term", Some(15)),
            ("SIGSYS", Some(31)),
            ("CHLD", Some(17)),
            ("CLD", Some(17)),
            ("RTMIN", Some(34)),
            ("SIGRTMIN+3", Some(37)),
            ("rtmin+30", Some(64)),
            ("RTMIN+31", None),
            ("RTMAX", Some(64)),
            ("SIGRTMAX-1", Some(63)),
            ("RTMAX+1", None),
            ("RTMIN3", None),
            ("SIG", None),
            ("", None),
            ("NOPE", None),
        ] {
            assert_eq!(parse(text), want, "{text:?}");
        }
    }
}
