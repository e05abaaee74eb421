//! Finding the program that a command names, with runc's words for what can't be run: engines match on them.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, FileType};
use rustix::io::Errno;

use crate::error::errno_text;

/// A command that can't be run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A bare name that no directory of PATH has.
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotInPath(String),
    /// A path that can't be looked at, as when it does not exist; why.
    #[error("exec: {0:?}: stat {0}: {1}")]
    Missing(String, String),
    /// A path that is a directory, or that this user may not run.
    #[error("exec: {0:?}: permission denied")]
    Denied(String),
    /// One of a filesystem that programs cannot be run from.
    #[error(
        "exec: {0:?}: permission denied: it is on a mount with noexec (profile strict: list the mount's source in \
         mounts.exec of the configuration, or run it by its interpreter)"
    )]
    NoExec(String),
    /// The kernel refused it.
    #[error("exec {0}: {1}")]
    Exec(String, String),
}

/// The path of the program that `name` names for the calling user, in its root and working directory. `env` has entries
/// `NAME=value`; of several `PATH` the last counts.
pub fn find(name: &CStr, env: &[CString]) -> Result<CString, ProgramError> {
    let shown = shown(name);
    if name.to_bytes().contains(&b'/') {
        return match runnable(name) {
            Ok(true) => Ok(name.to_owned()),
            Ok(false) if is_file(name) && on_noexec(name) => Err(ProgramError::NoExec(shown)),
            Ok(false) => Err(ProgramError::Denied(shown)),
            Err(errno) => Err(ProgramError::Missing(shown, errno_text(&errno.into()))),
        };
    }
    let path = env.iter().rev().find_map(|pair| pair.to_bytes().strip_prefix(b"PATH=")).unwrap_or_default();
    for dir in path.split(|b| *b == b':') {
        let dir = if dir.is_empty() { b"." } else { dir };
        let full = Path::new(std::ffi::OsStr::from_bytes(dir)).join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        // Both parts come from C strings.
        let Ok(full) = CString::new(full.as_os_str().as_bytes()) else { continue };
        if !name.is_empty() && runnable(&full) == Ok(true) {
            return Ok(full);
        }
    }
    Err(ProgramError::NotInPath(shown))
}

/// The name for messages: one that is longer than any path would leave no room for the reason.
fn shown(name: &CStr) -> String {
    const MAX: usize = 1024;
    let mut shown = name.to_string_lossy().into_owned();
    if shown.len() > MAX {
        shown.truncate(shown.floor_char_boundary(MAX));
        shown.push('…');
    }
    shown
}

/// Whether the calling user may execute the file; an error if it can't be looked at.
fn runnable(path: &CStr) -> Result<bool, Errno> {
    let stat = rustix::fs::stat(path)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory || stat.st_mode & 0o111 == 0 {
        return Ok(false);
    }
    // A filter may forbid the question, which is no answer to it.
    let may = rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS);
    Ok(matches!(may, Ok(()) | Err(Errno::NOSYS | Errno::PERM)))
}

fn is_file(path: &CStr) -> bool {
    let runs = |stat: rustix::fs::Stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & 0o111 != 0
    };
    rustix::fs::stat(path).is_ok_and(runs)
}

fn on_noexec(path: &CStr) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lookups() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let path = dir.path().join(name);
            std::fs::File::create(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        file("tool", 0o755);
        file("data", 0o644);
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::os::unix::fs::symlink("loop", dir.path().join("loop")).unwrap();
        let d = dir.path().to_str().unwrap();
        let env = [c"PATH=/nonexistent".to_owned(), CString::new(format!("PATH=/nonexistent:{d}")).unwrap()];
        let ask_in = |env: &[CString], name: &str| {
            find(&CString::new(name).unwrap(), env).map(|p| p.into_string().unwrap()).map_err(|e| e.to_string())
        };
        let ask = |name: &str| ask_in(&env, name);
        assert_eq!(ask("tool"), Ok(format!("{d}/tool")));
        assert_eq!(ask(&format!("{d}/tool")), Ok(format!("{d}/tool")));
        assert_eq!(ask_in(&[], &format!("{d}/tool")), Ok(format!("{d}/tool")), "an absolute name needs no PATH");
        for name in ["data", "", "sub", "nope"] {
            assert_eq!(ask(name), Err(format!("exec: {name:?}: executable file not found in $PATH")));
        }
        assert_eq!(ask_in(&[], "tool"), Err(r#"exec: "tool": executable file not found in $PATH"#.into()));
        assert_eq!(ask("/nope"), Err(r#"exec: "/nope": stat /nope: no such file or directory"#.into()));
        let under = format!("{d}/data/x");
        assert_eq!(ask(&under), Err(format!("exec: {under:?}: stat {under}: not a directory")));
        let turning = format!("{d}/loop");
        assert_eq!(ask(&turning), Err(format!("exec: {turning:?}: stat {turning}: too many levels of symbolic links")));
        let long = ask(&format!("/{}", "x/".repeat(50_000))).unwrap_err();
        assert!(long.ends_with("…: file name too long") && long.len() < 3000, "{long}");
        for name in ["data", "sub"] {
            assert_eq!(ask(&format!("{d}/{name}")), Err(format!(r#"exec: "{d}/{name}": permission denied"#)));
        }
    }
}
