//! Why a first process could not be set up, told in one line: libcontainer's outermost words, and where they say nothing,
//! the cause that its child processes logged.

use std::path::Path;

use crate::error::beginning;
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
const EMPTY_WORDS: [&str; 13] = [
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
    "failed hooks",
];
/// Errnos that libcontainer logs by name only, and the words that engines look for.
const ERRNOS: [(&str, i32); 16] = [
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("EIO", libc::EIO),
    ("EACCES", libc::EACCES),
    ("EBUSY", libc::EBUSY),
    ("EEXIST", libc::EEXIST),
    ("ENODEV", libc::ENODEV),
    ("ENOTDIR", libc::ENOTDIR),
    ("EISDIR", libc::EISDIR),
    ("EINVAL", libc::EINVAL),
    ("ENOSPC", libc::ENOSPC),
    ("EROFS", libc::EROFS),
    ("ENOMEM", libc::ENOMEM),
    ("EAGAIN", libc::EAGAIN),
    ("ELOOP", libc::ELOOP),
    ("ENOSYS", libc::ENOSYS),
];
/// Longest explanation, in bytes: callers read it from pipes that nobody may drain.
const TEXT_MAX: usize = 4096;

/// `raw` is the error as text, `captured` what was logged on the way, deepest cause first; `config` is the engine's.
pub fn explain(raw: &str, captured: &[String], config: &Config) -> String {
    let mut text = raw.split(". error during cleanup:").next().unwrap_or(raw);
    while let Some(rest) = WRAPPERS.iter().find_map(|w| text.strip_prefix(w)) {
        text = rest;
    }
    // An error that came while another message was waited for is told inside of it, as Rust prints a string.
    let inner = ["OtherError(\"", "ExecFailed(\""].iter().find_map(|w| text.split_once(w));
    let unescaped = inner.and_then(|(_, rest)| rest.split_once("\"), expected")).map(|(t, _)| t.replace("\\\"", "\""));
    let text = unescaped.as_deref().unwrap_or(text);
    if let Some(line) = captured.iter().find(|l| l.starts_with("failed to chdir") && !is_precise(text)) {
        let why = errno_in(line).unwrap_or_else(|| "not possible".to_owned());
        return format!("chdir to cwd ({:?}) set in {} failed: {why}", config.cwd(), crate::spec::CONFIG);
    }
    let mut full = match captured.first() {
        _ if is_precise(text) => text.to_owned(),
        None => text.to_owned(),
        Some(cause) => {
            let empty = text.is_empty() || EMPTY_WORDS.iter().any(|w| text.starts_with(w)) || text.contains("Broken");
            let rest = if empty || cause.contains(text) { String::new() } else { format!(": {text}") };
            let cause = of_mount(cause, config);
            format!("error during container init: {}{rest}", cause.as_deref().unwrap_or(captured[0].as_str()))
        }
    };
    // It has no name of ours for a bind mount's source that is not there.
    let unfound = |source: &Path| format!("failed to canonicalize {source:?}");
    for mount in config.mounts().iter().filter(|mount| mount.is_bind()) {
        if let Some(source) = mount.source.as_deref().filter(|source| full.contains(&unfound(source))) {
            let (at, of) = (mount.destination.display(), source.display());
            full = full.replacen(&unfound(source), &format!("mounts[{at}]: open source of a bind mount {of}"), 1);
            break;
        }
    }
    if full.contains("failed to fork init process")
        && let Some(1) = config.value()["linux"]["resources"]["pids"]["limit"].as_i64()
    {
        full.push_str(": linux.resources.pids.limit is 1, and it takes 2 processes to make a container");
    }
    let said = full.to_ascii_lowercase();
    let errno = captured.iter().filter(|_| !is_precise(text)).find_map(|line| errno_in(line));
    if let Some(errno) = errno.filter(|words| !said.contains(words.as_str())) {
        full = format!("{full}: {errno}");
    }
    beginning(&full, TEXT_MAX)
}

/// What failed of a mount, in runc's words; none if `cause` is no such failure. libcontainer prints all that it knows of it.
fn of_mount(cause: &str, config: &Config) -> Option<String> {
    let rest = cause.strip_prefix("failed to mount Mount { destination: \"")?;
    let (at, rest) = rest.split_once("\", typ: ")?;
    let (_, why) = rest.split_once(" }: ")?;
    let mounts = config.mounts();
    let source =
        mounts.iter().rfind(|mount| mount.destination == Path::new(at)).and_then(|mount| mount.source.as_ref());
    let source = source.map_or(String::new(), |source| format!("{source:?} "));
    let why = match why {
        "create next directory component failed" if config.has_namespace("user") => {
            "its mount point is missing, and the root of the container's user namespace can't make it: make it in the root \
             filesystem, or give that to this root"
        }
        "create next directory component failed" => {
            "its mount point is missing and can't be made in the root filesystem"
        }
        why => why,
    };
    Some(format!("error mounting {source}to rootfs at {at:?}: {why}"))
}

/// The words of our own executor, or a system call's error: nothing to add.
fn is_precise(text: &str) -> bool {
    const OURS: [&str; 5] = ["exec: ", "chdir to cwd", "current working directory is", "load the seccomp", "set the "];
    OURS.iter().any(|words| text.starts_with(words)) || text.contains("os error") || text.starts_with("sysctl ")
}

/// The first errno that `line` names, in words.
fn errno_in(line: &str) -> Option<String> {
    let word =
        line.split(|c: char| !c.is_ascii_alphanumeric()).find_map(|w| ERRNOS.iter().find(|(name, _)| *name == w));
    word.map(|(_, errno)| crate::error::errno_text(&std::io::Error::from_raw_os_error(*errno)))
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
                "error during container init: failed to mount /m: EPERM: operation not permitted",
            ),
            (
                "failed to create container: received unexpected message: OtherError(\"cgroup \\\"x\\\": y (os error 13)\"), expected: Z",
                lines(&[]),
                "cgroup \"x\": y (os error 13)",
            ),
            (
                "failed to create container: x (os error 2). error during cleanup: y",
                lines(&["noise"]),
                "x (os error 2)",
            ),
        ] {
            assert_eq!(explain(raw, &captured, &config), want);
        }
        let mount = json!({"destination": "/m", "source": "/h"});
        let user = Config::from_value(json!({"mounts": [mount], "linux": {"namespaces": [{"type": "user"}]}}));
        let failed = |why: &str| {
            let rest =
                "typ: Some(\"tmpfs\"), source: None, options: Some([\"x\"]), uid_mappings: None, gid_mappings: None }";
            explain("", &lines(&[&format!("failed to mount Mount {{ destination: \"/m\", {rest}: {why}")]), &user)
        };
        let told = failed("create next directory component failed");
        let want = "error during container init: error mounting \"/h\" to rootfs at \"/m\": its mount point is missing, and the root of";
        assert!(told.starts_with(want), "{told}");
        assert!(
            failed("EPERM").ends_with("\"/h\" to rootfs at \"/m\": EPERM: operation not permitted"),
            "{}",
            failed("EPERM")
        );
        let mounts = json!([{"destination": "/d", "source": "/none", "options": ["bind"]}]);
        let bound = Config::from_value(json!({"mounts": mounts}));
        let unfound = lines(&["failed to canonicalize \"/none\": ENOENT"]);
        assert_eq!(
            explain("failed to prepare rootfs", &unfound, &bound),
            "error during container init: mounts[/d]: open source of a bind mount /none: ENOENT: no such file or directory"
        );
        let one = Config::from_value(json!({"linux": {"resources": {"pids": {"limit": 1}}}}));
        let fork = lines(&["failed to fork init process: failed to clone process"]);
        assert!(explain("", &fork, &one).ends_with("pids.limit is 1, and it takes 2 processes to make a container"));
        assert!(!explain("", &fork, &config).contains("pids.limit"));
        assert!(explain(&"é".repeat(5000), &[], &config).len() < TEXT_MAX + 8);
    }
}
