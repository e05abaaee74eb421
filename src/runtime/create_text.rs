//! Why a first process could not be set up, told in one line: libcontainer's outermost words, and where they say nothing,
//! the cause that its child processes logged.

use crate::spec::Config;

/// What libcontainer wraps around the words that matter.
const WRAPPERS: [&str; 5] = [
    "error in executing process : ",
    "failed to create container: ",
    "exec process failed with error ",
    "intermediate process error ",
    "failed to receive. ",
];
/// Words of libcontainer that only say that something failed.
const EMPTY_WORDS: [&str; 12] = [
    "failed to unix syscall",
    "failed syscall",
    "failed to prepare rootfs",
    "io error",
    "syscall error",
    "failed to run hooks",
    "failed to setup tty",
    "device error",
    "failed apparmor",
    "failed to mount path as readonly",
    "failed to mount path as masked",
    "failed to set sysctl",
];
/// Longest explanation, in bytes: callers read it from pipes that nobody may drain.
const TEXT_MAX: usize = 4096;

/// `raw` is the error as text, `captured` what was logged on the way, deepest cause first.
pub fn explain(raw: &str, captured: &[String], config: &Config) -> String {
    let mut text = raw.split(". error during cleanup:").next().unwrap_or(raw);
    while let Some(rest) = WRAPPERS.iter().find_map(|w| text.strip_prefix(w)) {
        text = rest;
    }
    if let Some(line) = captured.iter().find(|l| l.starts_with("failed to chdir")) {
        return format!("chdir to cwd ({:?}) set in {} failed: {}", config.cwd(), crate::spec::CONFIG, errno_in(line));
    }
    let vague = text.is_empty() || EMPTY_WORDS.contains(&text) || text.contains("Broken") || text.contains("msg:");
    let mut full = match captured.first() {
        Some(cause) if vague || !says_errno(text) => {
            let head =
                if text.contains("Broken") || text.contains("msg:") { "error during container init" } else { text };
            if cause.contains(text) { cause.clone() } else { format!("{head}: {cause}") }
        }
        _ => text.to_owned(),
    };
    if full.len() > TEXT_MAX {
        let cut = (0..=TEXT_MAX).rev().find(|i| full.is_char_boundary(*i)).unwrap_or(0);
        full.truncate(cut);
        full.push('…');
    }
    full
}

/// Already precise: the words of our own executor, or a system call's error.
fn says_errno(text: &str) -> bool {
    text.starts_with("exec: ") || text.contains("os error") || text.contains("container's cgroup")
}

fn errno_in(line: &str) -> &'static str {
    [("ENOENT", "no such file or directory"), ("EACCES", "permission denied"), ("ENOTDIR", "not a directory")]
        .into_iter()
        .find(|(name, _)| line.contains(name))
        .map_or("operation not permitted", |(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn explanations() {
        let config = Config::from_value(json!({"process": {"cwd": "/x"}}));
        let lines = |l: &[&str]| l.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        for (raw, captured, want) in [
            (
                "failed to create container: exec process failed with error exec: \"x\": executable file not found in $PATH",
                lines(&["failed to initialize container process: exec"]),
                "exec: \"x\": executable file not found in $PATH",
            ),
            (
                "failed to create container: exec process failed with error failed to unix syscall",
                lines(&["failed to chdir e=ENOENT"]),
                "chdir to cwd (\"/x\") set in config.json failed: no such file or directory",
            ),
            (
                "failed to create container: exec process failed with error failed to prepare rootfs",
                lines(&["failed to mount /m: EPERM", "failed to prepare rootfs"]),
                "failed to prepare rootfs: failed to mount /m: EPERM",
            ),
            (
                "failed to create container: x (os error 2). error during cleanup: y",
                lines(&["noise"]),
                "x (os error 2)",
            ),
        ] {
            assert_eq!(explain(raw, &captured, &config), want);
        }
        assert!(explain(&"é".repeat(5000), &[], &config).len() < TEXT_MAX + 8);
    }
}
