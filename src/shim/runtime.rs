//! The runtime's program, run once for each step of a container's life.
//!
//! Its log goes to a file in memory, one a call: containers' and execs' errors do not mix, nothing is left in the bundle,
//! and nobody waits for a pipe that nobody reads.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use rustix::fs::MemfdFlags;
use tokio::sync::Notify;

use super::ShimError;
use super::io::ChildStdio;
use super::options::Saved;
use super::reaper::Reaper;
use crate::error::beginning;

/// How much is read of what a call has written, bytes.
const OUTPUT_MAX: u64 = 4 << 20;

/// The longest message that containerd is told, bytes.
const MESSAGE_MAX: usize = 16 << 10;

/// The verbs that start a process.
const STARTS: [&str; 2] = ["start", "exec"];

/// Calls the runtime for one container.
#[derive(Debug, Clone)]
pub struct Runtime {
    saved: Saved,
    id: String,
    debug: bool,
    reaper: Reaper,
    given_up: Arc<Notify>,
}

/// A file in memory that is not inherited; a child opens it by its path.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// With `content`, to be read from the start.
    pub fn new(content: &[u8]) -> Result<Memory, ShimError> {
        let failed = |source| ShimError::Io { doing: "create", path: "a file in memory".into(), source };
        let mut file: File =
            rustix::fs::memfd_create("agentsbx-shim", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?.into();
        file.write_all(content).and_then(|()| file.rewind()).map_err(failed)?;
        Ok(Memory(file))
    }

    /// Its path, for as long as it lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// For a child to write to.
    pub fn stdio(&self) -> Result<Stdio, ShimError> {
        let file = self.0.try_clone().map_err(ShimError::io("duplicate", "a file in memory"))?;
        Ok(Stdio::from(OwnedFd::from(file)))
    }

    /// What is in it, at most 4 MiB.
    pub fn text(mut self) -> String {
        let mut bytes = Vec::new();
        // What can't be read is missing from a message.
        let _ = self.0.rewind().and_then(|()| (&self.0).take(OUTPUT_MAX).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Runtime {
    /// For the container `id`.
    pub fn new(saved: Saved, id: &str, debug: bool, reaper: Reaper) -> Runtime {
        Runtime { saved, id: id.to_owned(), debug, reaper, given_up: Arc::default() }
    }

    /// Kills the calls under way that would start a process: `start` and `exec` of a container that has ended.
    pub fn give_up_starts(&self) {
        self.given_up.notify_waiters();
    }

    /// `create`: makes the container, whose first process waits for `start`. Its pid is in `pid_file`.
    pub async fn create(
        &self,
        bundle: &Path,
        pid_file: &Path,
        options: &super::options::Options,
        streams: ChildStdio,
    ) -> Result<(), ShimError> {
        let mut args = args(["--bundle"]);
        args.extend([bundle.into(), "--pid-file".into(), pid_file.into()]);
        if options.no_pivot_root {
            args.push("--no-pivot".into());
        }
        if options.no_new_keyring {
            args.push("--no-new-keyring".into());
        }
        if let Some(socket) = &streams.console_socket {
            args.extend(["--console-socket".into(), socket.into()]);
        }
        args.push((&self.id).into());
        self.with_streams("create", &args, streams).await
    }

    /// `exec --detach`: `process` is the process's JSON; the pid is written to `pid_file` before this returns, the result
    /// to `result` before that process ends.
    pub async fn exec(
        &self,
        process: &Memory,
        pid_file: &Path,
        result: &Path,
        streams: ChildStdio,
    ) -> Result<(), ShimError> {
        let mut args = args(["--process"]);
        args.extend([process.path().into(), "--detach".into(), "--pid-file".into(), pid_file.into()]);
        args.extend(["--result".into(), result.into()]);
        if let Some(socket) = &streams.console_socket {
            args.extend(["--console-socket".into(), socket.into()]);
        }
        args.push((&self.id).into());
        self.with_streams("exec", &args, streams).await
    }

    /// `start`.
    pub async fn start(&self) -> Result<(), ShimError> {
        self.simple("start", &[], None).await.map(drop)
    }

    /// `kill`, of the first process or of all.
    pub async fn kill(&self, signal: u32, all: bool) -> Result<(), ShimError> {
        let all: &[&str] = if all { &["--all"] } else { &[] };
        self.killed(self.call("kill", &args(all), &[&signal.to_string()], None).await)
    }

    /// `kill --exec`.
    ///
    /// # Errors
    /// [`ShimError::NotFound`] also while the exec is being started and the runtime does not know it yet.
    pub async fn kill_exec(&self, exec: &str, signal: u32) -> Result<(), ShimError> {
        let killed = self.killed(self.call("kill", &args(["--exec", exec]), &[&signal.to_string()], None).await);
        killed.map_err(|err| match err {
            ShimError::NotFound(_) => ShimError::NotFound(format!("process {exec} does not exist")),
            other => other,
        })
    }

    fn killed(&self, result: Result<String, ShimError>) -> Result<(), ShimError> {
        match result {
            Ok(_) => Ok(()),
            Err(ShimError::Runtime { message, .. }) => {
                let lower = message.to_lowercase();
                let ended = ["process already finished", "container not running", "no such process"];
                Err(match lower {
                    _ if ended.iter().any(|text| lower.contains(text)) => ShimError::Finished,
                    _ if lower.contains("does not exist") => ShimError::NotFound("no such container".into()),
                    _ => ShimError::Runtime { doing: "kill", message },
                })
            }
            Err(other) => Err(other),
        }
    }

    /// `delete`. A container that is not there is deleted.
    pub async fn delete(&self) -> Result<(), ShimError> {
        match self.simple("delete", &["--force"], None).await {
            Err(ShimError::Runtime { message, .. }) if message.contains("does not exist") => Ok(()),
            other => other.map(drop),
        }
    }

    /// `pause`.
    pub async fn pause(&self) -> Result<(), ShimError> {
        self.simple("pause", &[], None).await.map(drop)
    }

    /// `resume`.
    pub async fn resume(&self) -> Result<(), ShimError> {
        self.simple("resume", &[], None).await.map(drop)
    }

    /// `update`, with the runtime specification's `linux.resources` as JSON.
    pub async fn update(&self, resources: &[u8]) -> Result<(), ShimError> {
        self.simple("update", &["--resources", "-"], Some(resources)).await.map(drop)
    }

    /// `ps`: each process's pid, with the id of the exec that it belongs to.
    pub async fn ps(&self) -> Result<Vec<Process>, ShimError> {
        let text = self.simple("ps", &["--format", "json", "--execs"], None).await?;
        serde_json::from_str(&text).map_err(|err| ShimError::Runtime {
            doing: "ps",
            message: beginning(&format!("{err} in {text:?}"), MESSAGE_MAX),
        })
    }

    async fn simple(&self, verb: &'static str, options: &[&str], stdin: Option<&[u8]>) -> Result<String, ShimError> {
        self.call(verb, &args(options), &[], stdin).await
    }

    /// Runs a verb and returns what it wrote to its standard output.
    async fn call(
        &self,
        verb: &'static str,
        options: &[OsString],
        operands: &[&str],
        stdin: Option<&[u8]>,
    ) -> Result<String, ShimError> {
        let (stdout, stderr) = (Memory::new(b"")?, Memory::new(b"")?);
        let input = stdin.map(Memory::new).transpose()?;
        let mut all = options.to_vec();
        all.push((&self.id).into());
        all.extend(operands.iter().map(OsString::from));
        let streams = ChildStdio {
            stdin: input.as_ref().map_or(Ok(Stdio::null()), Memory::stdio)?,
            stdout: stdout.stdio()?,
            stderr: stderr.stdio()?,
            console_socket: None,
        };
        match self.run(verb, &all, streams).await {
            Ok(()) => Ok(stdout.text()),
            Err(Failed::Told(message)) => Err(ShimError::Runtime { doing: verb, message }),
            Err(Failed::Silent(code)) => {
                let text = stderr.text();
                Err(match text.trim() {
                    "" => ShimError::Silent { doing: verb, code },
                    said => ShimError::Runtime { doing: verb, message: beginning(said, MESSAGE_MAX) },
                })
            }
            Err(Failed::Not(err)) => Err(err),
        }
    }

    /// As [`Runtime::call`], where the streams are another process's.
    async fn with_streams(&self, verb: &'static str, args: &[OsString], streams: ChildStdio) -> Result<(), ShimError> {
        self.run(verb, args, streams).await.map_err(|failed| match failed {
            Failed::Told(message) => ShimError::Runtime { doing: verb, message },
            Failed::Silent(code) => ShimError::Silent { doing: verb, code },
            Failed::Not(err) => err,
        })
    }

    async fn run(&self, verb: &'static str, args: &[OsString], streams: ChildStdio) -> Result<(), Failed> {
        let log = Memory::new(b"")?;
        let mut command = self.saved.command();
        command.arg("--log").arg(log.path()).args(["--log-format", "json"]);
        if self.debug {
            command.arg("--debug");
        }
        // It is about the shim's service manager, or its own start.
        for name in ["NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "TTRPC_ADDRESS", "GRPC_ADDRESS", "NAMESPACE"] {
            command.env_remove(name);
        }
        command.arg(verb).args(args).stdin(streams.stdin).stdout(streams.stdout).stderr(streams.stderr);
        let started = self.reaper.spawn(&mut command);
        // The command holds the streams that the child has got: they must not be open here while it runs.
        drop(command);
        let (pid, mut end) = started.map_err(ShimError::io("start the runtime", &self.saved.runtime))?;
        let ended = tokio::select! {
            biased;
            ended = &mut end => ended,
            () = self.given_up.notified(), if STARTS.contains(&verb) => {
                tracing::error!(container = self.id, verb, "the runtime does not come back: killed");
                self.reaper.kill(pid);
                end.await
            }
        };
        let Ok(exit) = ended else { return Err(ShimError::State("the shim is ending".into()).into()) };
        match exit.code {
            0 => Ok(()),
            code => Err(last_error(&log.text()).map_or(Failed::Silent(code), Failed::Told)),
        }
    }
}

/// How a call failed.
enum Failed {
    /// With this as the last error of its log.
    Told(String),
    /// With a code and no word in its log.
    Silent(u32),
    /// It did not run.
    Not(ShimError),
}

impl From<ShimError> for Failed {
    fn from(err: ShimError) -> Failed {
        Failed::Not(err)
    }
}

/// A process of a container.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Process {
    /// As the host sees it.
    pub pid: u32,
    /// The exec that started it, directly or not.
    #[serde(default)]
    pub exec: Option<String>,
}

fn args<S: AsRef<OsStr>>(list: impl IntoIterator<Item = S>) -> Vec<OsString> {
    list.into_iter().map(|arg| arg.as_ref().to_owned()).collect()
}

/// The message of the last line of level `error`.
fn last_error(log: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Line {
        level: String,
        msg: String,
    }
    let lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines.filter(|line| line.level == "error").map(|line| beginning(&line.msg, MESSAGE_MAX)).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_a_log() {
        let log = "{\"level\":\"error\",\"msg\":\"first\",\"time\":\"x\"}\nnot JSON\n{\"level\":\"error\",\"msg\":\"last\"}\n{\"level\":\"debug\",\"msg\":\"d\"}\n";
        assert_eq!(last_error(log).as_deref(), Some("last"));
        assert_eq!(last_error("{\"level\":\"debug\",\"msg\":\"d\"}\n"), None);
        assert_eq!(last_error(""), None);
    }

    /// An answer of more than 4 MiB is taken by nobody.
    #[test]
    fn a_message_has_a_bound() {
        let log = serde_json::json!({"level": "error", "msg": "ö".repeat(1 << 20)}).to_string();
        let told = last_error(&log).unwrap();
        assert!(told.starts_with('ö') && told.ends_with('…') && told.len() <= MESSAGE_MAX + 3, "{}", told.len());
    }
}
