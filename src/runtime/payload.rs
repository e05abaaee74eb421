//! The last steps inside the container, just before its command: what libcontainer calls an executor.
//!
//! Runs in the forked first process, after namespaces, ids, capabilities and seccomp are in place. Whatever cannot be
//! executed is found before `create` returns, in the words that engines map to exit codes 126 and 127.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use oci_spec::runtime::Spec;
use rustix::fs::{Access, AtFlags, Mode, OFlags};

use crate::error::errno_text;
use crate::spec::{Config, normalise, passwd};
use crate::sys::{SysError, process, signal};

/// The command and what belongs to it, taken from the configuration as the engine wrote it.
#[derive(Debug, Clone)]
pub struct Payload {
    args: Vec<String>,
    env: Vec<String>,
    uid: u32,
    needs_home: bool,
    console_size: Option<(u16, u16)>,
    null_stdio: [Option<OFlags>; 3],
    listen_fds: Option<u32>,
    lock: RawFd,
}

impl Payload {
    /// From the engine's configuration. `listen_fds` is the number of sockets passed by socket activation; `lock` is a
    /// lock that is the parent's alone, so that a waiting container does not hold it.
    pub fn new(config: &Config, listen_fds: Option<u32>, lock: RawFd) -> Payload {
        let env = config.env();
        Payload {
            args: config.args(),
            uid: config.user().0,
            needs_home: normalise::home_of(&env).is_none(),
            console_size: config.console_size().filter(|_| config.terminal()),
            null_stdio: if config.terminal() { [None; 3] } else { null_stdio() },
            listen_fds: listen_fds.filter(|n| *n > 0),
            env,
            lock,
        }
    }

    /// `PATH` as the command will have it: of several, the last.
    fn path_var(&self) -> &str {
        self.env.iter().rev().find_map(|e| e.strip_prefix("PATH=")).unwrap_or_default()
    }

    /// As written, in order; of several entries for one name the last counts, as in runc.
    fn environment(&self) -> Vec<String> {
        let name = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
        let mut seen = std::collections::HashSet::new();
        let mut env: Vec<String> = self.env.iter().rev().filter(|e| seen.insert(name(e))).cloned().collect();
        env.reverse();
        if self.needs_home {
            env.retain(|e| e != "HOME=");
            let file = std::fs::File::open("/etc/passwd").ok();
            let home = file.and_then(|f| passwd::home(f, self.uid).ok().flatten());
            env.push(format!("HOME={}", home.as_deref().unwrap_or("/")));
        }
        if let Some(n) = self.listen_fds {
            env.push(format!("LISTEN_FDS={n}"));
            env.push("LISTEN_PID=1".to_owned());
        }
        env
    }
}

/// Which of our stdio are `/dev/null`, and how they were opened: libcontainer reopens them read-only.
fn null_stdio() -> [Option<OFlags>; 3] {
    let mode = |fd: BorrowedFd<'_>| {
        let stat = rustix::fs::fstat(fd).ok()?;
        let null = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device()
            && stat.st_rdev == rustix::fs::makedev(1, 3);
        null.then(|| rustix::fs::fcntl_getfl(fd).ok()).flatten().map(|flags| flags & OFlags::RWMODE)
    };
    [mode(rustix::stdio::stdin()), mode(rustix::stdio::stdout()), mode(rustix::stdio::stderr())]
}

impl Executor for Payload {
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        let name = self.args.first().map(String::as_str).unwrap_or_default();
        look_up(name, self.path_var()).map_err(ExecutorValidationError::ArgValidationError)?;
        process::close_in_child(self.lock);
        signal::end_when_asked();
        self.fix_stdio()
            .map_err(|err| ExecutorValidationError::ArgValidationError(format!("reopen /dev/null: {err}")))?;
        if let Some((rows, columns)) = self.console_size {
            let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            // runc does not fail for it either: a terminal of another size is still a terminal.
            let _ = rustix::termios::tcsetwinsize(rustix::stdio::stdin(), size);
        }
        Ok(())
    }

    /// The environment is given to execve directly; this process's own is left alone.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let name = self.args.first().map(String::as_str).unwrap_or_default();
        let failed = match self.try_exec(name) {
            Ok(err) => format!("exec {name}: {}", errno_text(&err.source)),
            Err(text) => text,
        };
        // `create` is long gone: the container's own stderr is the only place left to say it, as runc does.
        let _ = rustix::io::write(rustix::stdio::stderr(), format!("{failed}\n").as_bytes());
        process::exit_now(1)
    }
}

impl Payload {
    /// Returns only when execve failed.
    fn try_exec(&self, name: &str) -> Result<SysError, String> {
        let path = look_up(name, self.path_var())?;
        let c = |s: &str| CString::new(s).map_err(|_| format!("exec: {s:?}: NUL byte in an argument"));
        let path = c(path.to_str().unwrap_or_default())?;
        let argv = self.args.iter().map(|a| c(a)).collect::<Result<Vec<_>, _>>()?;
        let envp = self.environment().iter().map(|e| c(e)).collect::<Result<Vec<_>, _>>()?;
        signal::reset_for_exec().map_err(|err| format!("reset signals: {err}"))?;
        Ok(process::exec(&path, &argv, &envp))
    }

    fn fix_stdio(&self) -> std::io::Result<()> {
        for (fd, mode) in self.null_stdio.iter().enumerate() {
            let Some(mode) = mode else { continue };
            let null: OwnedFd = rustix::fs::open("/dev/null", *mode | OFlags::CLOEXEC, Mode::empty())?;
            match fd {
                0 => rustix::stdio::dup2_stdin(null.as_fd())?,
                1 => rustix::stdio::dup2_stdout(null.as_fd())?,
                _ => rustix::stdio::dup2_stderr(null.as_fd())?,
            }
        }
        Ok(())
    }
}

/// The file that `name` stands for, as execvp(3) would find it; else runc's (Go's) words for why not.
fn look_up(name: &str, path_var: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        return match executable(Path::new(name)) {
            Ok(()) => Ok(PathBuf::from(name)),
            Err(why) => Err(format!("exec: {name:?}: {why}")),
        };
    }
    path_var
        .split(':')
        .map(|dir| Path::new(if dir.is_empty() { "." } else { dir }).join(name))
        .find(|file| !name.is_empty() && executable(file).is_ok())
        .ok_or_else(|| format!("exec: {name:?}: executable file not found in $PATH"))
}

fn executable(path: &Path) -> Result<(), String> {
    let meta = std::fs::metadata(path).map_err(|err| format!("stat {}: {}", path.display(), errno_text(&err)))?;
    if meta.is_dir() {
        return Err("permission denied".to_owned());
    }
    let special = meta.file_type().is_block_device() || meta.file_type().is_char_device();
    let may = rustix::fs::accessat(rustix::fs::CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok();
    if special || !may || meta.mode() & 0o111 == 0 {
        return Err("permission denied".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn look_up_speaks_as_engines_expect() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("plain");
        crate::durable::replace_unsynced(&file, b"#!/bin/sh\n", 0o644).unwrap();
        let tool = dir.path().join("tool");
        crate::durable::replace_unsynced(&tool, b"#!/bin/sh\n", 0o755).unwrap();
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("/nonexistent:{}", dir.path().display());
        assert_eq!(look_up("tool", &path).unwrap(), tool);
        assert_eq!(look_up("plain", &path).unwrap_err(), "exec: \"plain\": executable file not found in $PATH");
        assert_eq!(look_up("x", "").unwrap_err(), "exec: \"x\": executable file not found in $PATH");
        assert_eq!(look_up("/no/x", "").unwrap_err(), "exec: \"/no/x\": stat /no/x: no such file or directory");
        assert_eq!(look_up("/etc", "").unwrap_err(), "exec: \"/etc\": permission denied");
        let plain = file.to_str().unwrap();
        assert_eq!(look_up(plain, "").unwrap_err(), format!("exec: {plain:?}: permission denied"));
        assert_eq!(look_up(tool.to_str().unwrap(), "").unwrap(), tool, "an absolute name needs no PATH");
    }

    #[test]
    fn the_environment_keeps_its_order_and_the_last_of_each_name() {
        let config = json!({"process": {"args": ["x"], "env": ["Z=1", "A=2", "Z=3", "HOME=/h", "PATH=/a", "PATH=/b"]}});
        let payload = Payload::new(&Config::from_value(config), Some(2), -1);
        assert_eq!(payload.path_var(), "/b");
        assert_eq!(payload.environment(), ["A=2", "Z=3", "HOME=/h", "PATH=/b", "LISTEN_FDS=2", "LISTEN_PID=1"]);
    }
}
