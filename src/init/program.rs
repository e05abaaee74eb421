//! Finding the program that a command names, with runc's words for what can't be run: engines match on them.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, FileType};

/// A command that can't be run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A bare name that no directory of PATH has.
    #[error("exec: {0:?}: executable file not found in $PATH")]
    NotInPath(String),
    /// A path that does not exist.
    #[error("exec: {0:?}: stat {1}: no such file or directory")]
    Missing(String, String),
    /// A path that is a directory, or that this user may not run.
    #[error("exec: {0:?}: permission denied")]
    Denied(String),
    /// The kernel refused it.
    #[error("exec {0}: {1}")]
    Exec(String, String),
}

/// The path of the program that `name` names for the calling user, in its root and working directory.
pub fn find(name: &CStr, env: &[CString]) -> Result<CString, ProgramError> {
    let shown = name.to_string_lossy().into_owned();
    if name.to_bytes().contains(&b'/') {
        return match runnable(name) {
            Ok(()) => Ok(name.to_owned()),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
                Err(ProgramError::Missing(shown.clone(), shown))
            }
            Err(_) => Err(ProgramError::Denied(shown)),
        };
    }
    let path = env.iter().rev().find_map(|pair| pair.to_bytes().strip_prefix(b"PATH=")).unwrap_or_default();
    for dir in path.split(|b| *b == b':') {
        let dir = if dir.is_empty() { b"." } else { dir };
        let full = Path::new(std::ffi::OsStr::from_bytes(dir)).join(std::ffi::OsStr::from_bytes(name.to_bytes()));
        // Both parts come from C strings.
        let Ok(full) = CString::new(full.as_os_str().as_bytes()) else { continue };
        if !name.is_empty() && runnable(&full).is_ok() {
            return Ok(full);
        }
    }
    Err(ProgramError::NotInPath(shown))
}

fn runnable(path: &CStr) -> Result<(), rustix::io::Errno> {
    let stat = rustix::fs::stat(path)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return Err(rustix::io::Errno::ISDIR);
    }
    // Root may "execute" any file for access(2) only if some execute bit is set, so this holds for it too.
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)
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
        let d = dir.path().to_str().unwrap();
        let env = [c"PATH=/nonexistent".to_owned(), CString::new(format!("PATH=/nonexistent:{d}")).unwrap()];
        let ask = |name: &str| {
            find(&CString::new(name).unwrap(), &env).map(|p| p.into_string().unwrap()).map_err(|e| e.to_string())
        };
        assert_eq!(ask("tool"), Ok(format!("{d}/tool")));
        assert_eq!(ask(&format!("{d}/tool")), Ok(format!("{d}/tool")));
        assert_eq!(ask("data"), Err(r#"exec: "data": executable file not found in $PATH"#.into()));
        assert_eq!(ask(""), Err(r#"exec: "": executable file not found in $PATH"#.into()));
        assert_eq!(ask("/nope"), Err(r#"exec: "/nope": stat /nope: no such file or directory"#.into()));
        assert_eq!(ask(&format!("{d}/data")), Err(format!(r#"exec: "{d}/data": permission denied"#)));
        assert_eq!(ask(&format!("{d}/sub")), Err(format!(r#"exec: "{d}/sub": permission denied"#)));
    }
}
