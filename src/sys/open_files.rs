//! How many files this process may have open: all that it is allowed, while what it starts keeps the limit that it had.
//!
//! systemd gives services 1024, and lets those who can use more ask for it. A child must not inherit that: a program that
//! uses select(2) breaks above 1024, and one that closes all numbers up to the limit takes long.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

/// The limit that this process was started with, once it has been raised.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit to the hard one; the first call does, others do nothing.
pub fn raise() {
    BEFORE.get_or_init(|| {
        let before = getrlimit(Resource::Nofile);
        if before.current != before.maximum {
            // What the kernel may refuse (more than fs.nr_open, since lowered) leaves the limit as it was.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
        }
        before
    });
}

/// The limit that a child has to get back, if this process has another.
fn to_give_back() -> Option<Rlimit> {
    BEFORE.get().filter(|before| before.current != before.maximum).copied()
}

/// Has the program of `command` start with the limit from before [`raise`].
pub fn give_back(command: &mut Command) {
    let Some(before) = to_give_back() else { return };
    let lower = move || Ok(setrlimit(Resource::Nofile, before)?);
    // SAFETY: between fork and exec only async-signal-safe things may be done. This is one system call, without allocation
    // or lock; the error is made of its number.
    unsafe { command.pre_exec(lower) };
}

/// Gives a child that was just started the limit from before [`raise`]. It has had the higher one for a moment.
pub fn give_back_to(pid: Pid) {
    if let Some(before) = to_give_back() {
        // Only a child that has ended can't be given it: it is not reaped, so it is nobody else.
        let _ = prlimit(Some(pid), Resource::Nofile, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both are the process's: so this runs in one of its own.
    #[test]
    fn a_child_has_the_limit_from_before() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["sys::open_files::tests::alone", "--exact", "--ignored", "--test-threads=1"]);
        let output = alone.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    #[ignore = "changes the process's limits: run by the test above"]
    fn alone() {
        let soft = || getrlimit(Resource::Nofile).current;
        let hard = getrlimit(Resource::Nofile).maximum;
        let given_back = || {
            let mut command = Command::new("/bin/sh");
            give_back(command.args(["-c", "ulimit -Sn"]));
            String::from_utf8(command.output().unwrap().stdout).unwrap().trim().parse().ok()
        };
        setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum: hard }).unwrap();
        assert_eq!(given_back(), Some(100u64), "as it is before");
        raise();
        assert_eq!(soft(), hard);
        raise();
        assert_eq!(given_back(), Some(100));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        give_back_to(Pid::from_child(&child));
        let text = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap();
        assert_eq!(line.split_whitespace().nth(3), Some("100"), "{line}");
    }
}
