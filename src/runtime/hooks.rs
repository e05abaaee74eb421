//! The hooks that we run ourselves (poststart, poststop): in the bundle's directory, with the state on stdin.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use serde_json::{Value, json};

use super::error::RuntimeError;
use super::state::{Record, Status};
use crate::sys::proc;

/// How much of a failed hook's output is told, in bytes.
const OUTPUT_MAX: u64 = 2048;

/// The state document of the runtime specification, as hooks get it.
pub fn oci_state(record: &Record, status: Status) -> Value {
    let mut state = json!({
        "ociVersion": record.oci_version,
        "id": record.id,
        "status": status.to_string(),
        "bundle": record.bundle,
    });
    let pid = record.shown_pid(status);
    if pid != 0 {
        state["pid"] = json!(pid);
    }
    if !record.annotations.is_empty() {
        state["annotations"] = json!(record.annotations);
    }
    state
}

/// Runs `hooks` one after another; stops at the first that fails.
pub fn run(phase: &'static str, hooks: &[Value], record: &Record, status: Status) -> Result<(), RuntimeError> {
    let state = oci_state(record, status).to_string();
    for hook in hooks {
        let path = hook["path"].as_str().unwrap_or_default();
        one(hook, path, &state, record).map_err(|why| RuntimeError::Hook { phase, path: path.to_owned(), why })?;
    }
    Ok(())
}

fn one(hook: &Value, path: &str, state: &str, record: &Record) -> Result<(), String> {
    let strings = |key: &str| -> Vec<String> {
        let list = hook[key].as_array();
        list.map(|l| l.iter().filter_map(Value::as_str).map(str::to_owned).collect()).unwrap_or_default()
    };
    let text = |err: std::io::Error| err.to_string();
    let output: File = rustix::fs::memfd_create("hook", MemfdFlags::CLOEXEC).map_err(|e| text(e.into()))?.into();
    let stdio = || output.try_clone().map(Stdio::from).map_err(text);
    let mut command = Command::new(path);
    let args = strings("args");
    if let Some((arg0, rest)) = args.split_first() {
        command.arg0(arg0).args(rest);
    }
    command.env_clear().current_dir(&record.bundle).stdin(Stdio::piped()).stdout(stdio()?).stderr(stdio()?);
    for entry in strings("env") {
        if let Some((key, value)) = entry.split_once('=') {
            command.env(key, value);
        }
    }
    let mut child = command.spawn().map_err(text)?;
    let pid = child.id() as i32;
    if let Some(mut stdin) = child.stdin.take() {
        // A hook that does not read its state is fine: the pipe breaks, or the state stays in it (it fits).
        let _ = stdin.write_all(state.as_bytes());
    }
    if let Some(seconds) = hook["timeout"].as_u64() {
        let start = proc::stat(pid).map_err(text)?.map(|s| s.start_time).unwrap_or_default();
        let ended = match proc::PidFd::open(pid, start).map_err(|err| text(err.into()))? {
            Some(pidfd) => pidfd.wait_ended(Duration::from_secs(seconds)).map_err(text)?,
            None => true,
        };
        if !ended {
            // It is ours and unreaped, so the pid is still its own.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("timed out after {seconds} s"));
        }
    }
    let status = child.wait().map_err(text)?;
    if status.success() {
        return Ok(());
    }
    let mut told = Vec::new();
    let mut output = output;
    // What it printed is an extra; the status is the failure.
    let _ = output.rewind();
    let _ = output.take(OUTPUT_MAX).read_to_end(&mut told);
    let told = String::from_utf8_lossy(&told).trim().to_owned();
    Err(if told.is_empty() { status.to_string() } else { format!("{status}: {told}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::state::tests::sample;

    fn record(dir: &std::path::Path) -> Record {
        let mut record = sample(dir);
        record.bundle = dir.to_owned();
        record
    }

    #[test]
    fn a_hook_runs_in_the_bundle_with_the_state_on_stdin() {
        let dir = tempfile::tempdir().unwrap();
        let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", "cat >state; echo $A >env"], "env": ["A=b"]});
        run("poststart", &[hook], &record(dir.path()), Status::Running).unwrap();
        let state: Value = serde_json::from_slice(&std::fs::read(dir.path().join("state")).unwrap()).unwrap();
        assert_eq!(state["status"], "running");
        assert_eq!(state["id"], "c1");
        assert_eq!(std::fs::read_to_string(dir.path().join("env")).unwrap(), "b\n");
    }

    #[test]
    fn failure_and_timeout_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let sh = |script: &str| json!({"path": "/bin/sh", "args": ["sh", "-c", script], "timeout": 1});
        let fail = |script: &str| {
            run("poststop", &[sh(script)], &record(dir.path()), Status::Stopped).unwrap_err().to_string()
        };
        assert_eq!(fail("echo no >&2; exit 3"), "poststop hook /bin/sh: exit status: 3: no");
        assert_eq!(fail("exec sleep 30"), "poststop hook /bin/sh: timed out after 1 s");
    }
}
