//! The last steps inside the container, just before its command: what libcontainer calls an executor.
//!
//! Runs in the forked first process, in its namespaces and on its root, still as their root unless libcontainer was left
//! to take the identity (see [`super::launch`]). Whatever cannot be executed is found before `create` returns, in the words
//! that engines map to exit codes 126 and 127. In order, before `create` returns ([`Executor::validate`]):
//!
//! 1. stdio and the terminal's size as asked for;
//! 2. the working directory, as root: it may be closed to the user;
//! 3. without `no_new_privs` the filter: it takes `CAP_SYS_ADMIN`, which the next step drops;
//! 4. groups, ids, capabilities;
//! 5. the working directory, as the user: it may be closed to root (user namespaces, NFS, FUSE);
//! 6. the program is looked for;
//!
//! and after `start` ([`Executor::exec`]): signals, the fence, with `no_new_privs` the filter, the startContainer hooks, execve.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use oci_spec::runtime::Spec;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::hooks;
use super::launch::Identity;
use super::state::{Record, Status};
use crate::error::{chain, errno_text};
use crate::init::program;
use crate::policy::capabilities::{self, Sets};
use crate::policy::files::Fence;
use crate::policy::seccomp::Program;
use crate::spec::{self, Config, SpecError, normalise, passwd};
use crate::sys::{SysError, attributes, landlock, process, signal};

/// The command and what belongs to it, taken from the configuration as the engine wrote it.
#[derive(Debug, Clone)]
pub struct Payload {
    args: Vec<String>,
    env: Vec<String>,
    user: User,
    identity: Identity,
    filter: Option<Program>,
    fence: Option<Fence>,
    needs_home: bool,
    console_size: Option<(u16, u16)>,
    null_stdio: [Option<OFlags>; 3],
    listen_fds: Option<u32>,
    start_hooks: Vec<Value>,
    state: Value,
    parents: Vec<RawFd>,
}

/// Who the command runs as, and where.
#[derive(Debug, Clone)]
struct User {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    capabilities: Sets,
    no_new_privileges: bool,
    cwd: PathBuf,
}

/// What a payload takes besides the configuration.
#[derive(Debug)]
pub struct Given<'a> {
    /// The container's record, for hooks.
    pub record: &'a Record,
    /// The filter of the first process.
    pub filter: Option<Program>,
    /// Number of sockets passed by socket activation.
    pub listen_fds: Option<u32>,
    /// Descriptors that are the parent's alone: a waiting container does not hold them.
    pub parents: Vec<RawFd>,
}

impl Payload {
    /// From the engine's configuration.
    pub fn new(config: &Config, given: Given<'_>) -> Result<Payload, SpecError> {
        let env = config.env();
        let (uid, gid) = config.user();
        let Given { record, filter, listen_fds, parents } = given;
        Ok(Payload {
            args: config.args(),
            user: User {
                uid,
                gid,
                groups: config.additional_gids(),
                capabilities: capabilities_of(config)?,
                no_new_privileges: config.no_new_privileges(),
                cwd: config.cwd().into(),
            },
            identity: Identity::of(&record.seccomp),
            filter,
            fence: record.confinement.fence.clone(),
            needs_home: normalise::home_of(&env).is_none(),
            console_size: config.console_size().filter(|_| config.terminal()),
            null_stdio: if config.terminal() { [None; 3] } else { null_stdio() },
            listen_fds: listen_fds.filter(|n| *n > 0),
            env,
            start_hooks: record.hooks_of("startContainer").to_vec(),
            state: hooks::oci_state(record, Status::Created),
            parents,
        })
    }

    /// As written, in order; of several entries for one name the last counts, as in runc.
    fn environment(&self) -> Vec<String> {
        let name = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
        let mut seen = std::collections::HashSet::new();
        let mut env: Vec<String> = self.env.iter().rev().filter(|e| seen.insert(name(e))).cloned().collect();
        env.reverse();
        if self.needs_home {
            env.retain(|e| e != "HOME=");
            let home = passwd::open().and_then(|file| passwd::home(file, self.user.uid)).ok().flatten();
            env.push(format!("HOME={}", home.as_deref().unwrap_or("/")));
        }
        if let Some(n) = self.listen_fds {
            env.push(format!("LISTEN_FDS={n}"));
            env.push("LISTEN_PID=1".to_owned());
        }
        env
    }

    fn prepare(&self) -> Result<(), String> {
        self.parents.iter().for_each(|fd| process::close_in_child(*fd));
        // The host's, of which this process has no need on the container's root.
        process::cover_directories_in_child().map_err(|err| chain(&err))?;
        signal::end_when_asked();
        self.fix_stdio().map_err(|err| format!("reopen /dev/null: {err}"))?;
        if let Some((rows, columns)) = self.console_size {
            let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            // runc does not fail for it either: a terminal of another size is still a terminal.
            let _ = rustix::termios::tcsetwinsize(rustix::stdio::stdin(), size);
        }
        if self.identity == Identity::Payload {
            self.user.become_it(|| if self.user.no_new_privileges { Ok(()) } else { self.load_filter() })?;
        }
        let name = self.args.first().map(String::as_str).unwrap_or_default();
        program::find(&c_string(name)?, &c_strings(&self.env)?).map_err(|err| err.to_string()).map(drop)
    }

    fn load_filter(&self) -> Result<(), String> {
        let Some(filter) = &self.filter else { return Ok(()) };
        attributes::load_seccomp(&filter.instructions, filter.flags)
            .map_err(|err| format!("load the seccomp filter: {}", chain(&err)))
    }

    /// Returns only when execve failed.
    fn try_exec(&self, name: &str) -> Result<SysError, String> {
        let env = self.environment();
        let (argv, envp) = (c_strings(&self.args)?, c_strings(&env)?);
        let path = program::find(&c_string(name)?, &envp).map_err(|err| err.to_string())?;
        let reset = || signal::reset_for_exec().map_err(|err| format!("reset signals: {err}"));
        // Before the filter, which need not allow it; where there are hooks, to which it must allow far more, behind them: one
        // that closes its stdin must not end this process.
        match self.start_hooks.is_empty() {
            true => reset()?,
            false => signal::unblock_all().map_err(|err| format!("unblock signals: {err}"))?,
        }
        if let Some(fence) = &self.fence {
            landlock::fence(fence.allow_write.as_deref(), fence.audit).map_err(|err| chain(&err))?;
        }
        if self.identity == Identity::Payload && self.user.no_new_privileges {
            self.load_filter()?;
        }
        if !self.start_hooks.is_empty() {
            let mut state = self.state.clone();
            state["pid"] = json!(rustix::process::getpid().as_raw_nonzero().get());
            hooks::run_in("startContainer", &self.start_hooks, &state.to_string(), None, &env)
                .map_err(|err| err.to_string())?;
            reset()?;
        }
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

impl User {
    /// Takes the identity and enters the working directory; `privileged` is done with all capabilities still there.
    fn become_it(&self, privileged: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let said = |doing: &'static str| move |err: SysError| format!("{doing}: {}", chain(&err));
        let later = match rustix::process::chdir(&self.cwd) {
            Ok(()) => false,
            Err(Errno::ACCESS | Errno::PERM) => true,
            Err(errno) => return Err(bad_cwd(&self.cwd, errno)),
        };
        privileged()?;
        let caps = &self.capabilities;
        attributes::limit_bounding_set(caps.bounding).map_err(said("limit the bounding set"))?;
        attributes::keep_capabilities(true).map_err(said("keep capabilities"))?;
        match attributes::set_groups(&self.groups) {
            // In a user namespace made without privileges setgroups is off; with no groups asked for nothing is lost.
            Err(err) if self.groups.is_empty() && err.errno() == Some(libc::EPERM) => {}
            other => other.map_err(said("set the groups"))?,
        }
        attributes::set_ids(self.uid, self.gid).map_err(said("set the user"))?;
        attributes::keep_capabilities(false).map_err(said("keep capabilities"))?;
        attributes::set_capabilities(caps.effective, caps.permitted, caps.inheritable)
            .map_err(said("set the capabilities"))?;
        attributes::set_ambient(caps.ambient & caps.permitted & caps.inheritable)
            .map_err(said("set the ambient capabilities"))?;
        if later {
            rustix::process::chdir(&self.cwd).map_err(|errno| bad_cwd(&self.cwd, errno))?;
        }
        // One that was reached through a leaked descriptor is not below the root (CVE-2024-21626).
        match rustix::process::getcwd(Vec::new()) {
            Ok(path) if path.to_bytes().starts_with(b"/") => Ok(()),
            _ => Err("current working directory is outside of container mount namespace root -- possible container \
                      breakout detected"
                .to_owned()),
        }
    }
}

/// Without the field a process has none, as in runc.
fn capabilities_of(config: &Config) -> Result<Sets, SpecError> {
    let value = &config.value()["process"]["capabilities"];
    if value.is_null() {
        return Ok(Sets::default());
    }
    let mut process = json!({"capabilities": value});
    spec::drop_unknown_capabilities(&mut process);
    let spec = serde_json::from_value(process["capabilities"].take())
        .map_err(|err| SpecError::Field { field: "process.capabilities", why: err.to_string() })?;
    Ok(capabilities::sets(&spec))
}

fn bad_cwd(cwd: &Path, errno: Errno) -> String {
    format!("chdir to cwd ({cwd:?}) set in {} failed: {}", crate::spec::CONFIG, errno_text(&errno.into()))
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("exec: {text:?}: NUL byte in an argument"))
}

fn c_strings(list: &[String]) -> Result<Vec<CString>, String> {
    list.iter().map(|text| c_string(text)).collect()
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
        self.prepare().map_err(ExecutorValidationError::ArgValidationError)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_environment_keeps_its_order_and_the_last_of_each_name() {
        let dir = tempfile::tempdir().unwrap();
        let config = json!({"process": {"args": ["x"], "env": ["Z=1", "A=2", "Z=3", "HOME=/h", "PATH=/a", "PATH=/b"]}});
        let record = crate::runtime::state::tests::sample(dir.path());
        let given = Given { record: &record, filter: None, listen_fds: Some(2), parents: Vec::new() };
        let payload = Payload::new(&Config::from_value(config), given).unwrap();
        assert_eq!(payload.environment(), ["A=2", "Z=3", "HOME=/h", "PATH=/b", "LISTEN_FDS=2", "LISTEN_PID=1"]);
    }
}
