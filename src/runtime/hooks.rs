//! The hooks of the runtime specification, with the container's state on stdin and their output kept for the error.
//!
//! poststart and poststop are run where they happen, startContainer by the payload. The three phases of a create can only
//! happen inside libcontainer, at moments that it offers to its own hooks; but those do not get the process's id in
//! createContainer, and their output is lost. So libcontainer is given one hook in each place, this program ([`relay`]),
//! with an [`Errand`] that says what to run:
//!
//! | phase | run by | namespaces | `status` | `pid` |
//! |---|---|---|---|---|
//! | prestart, createRuntime | relay | the runtime's | creating | as the runtime sees it |
//! | createContainer | relay | the container's, before its root is entered | creating | as the container sees it |
//! | startContainer | the first process, filtered and without privileges | the container's | created | as the container sees it |
//! | poststart | `start` | the runtime's | running | as the runtime sees it |
//! | poststop | `delete` | the runtime's | stopped | none |

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::RuntimeError;
use super::place::{self, Place};
use super::state::{Record, Status};
use crate::sys::{attributes, process};

/// What every pipe takes at once, in bytes: a page (pipe(7)).
const PIPE_MIN: usize = 4096;
/// How much of a failed hook's output is told, in bytes.
const OUTPUT_MAX: u64 = 2048;
/// How often a hook is looked at that has a time limit, or has not taken all of its state.
const TICK: Duration = Duration::from_millis(2);

/// All phases, in the order in which they happen.
pub const PHASES: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
/// The verb by which libcontainer runs this program in the place of hooks.
pub const RELAY_VERB: &str = "create-hooks";
/// The variables that hold the [`Errand`]: this with 0, 1, … behind it, each a piece of the text ([`ERRAND_PIECE`]).
pub const ERRAND: &str = "AGENTSBX_HOOKS_";
/// Longest piece of an errand, in bytes. The kernel takes no string of 128 KiB (MAX_ARG_STRLEN in execve(2)), but many.
const ERRAND_PIECE: usize = 64 << 10;
/// Longest state document that is read, in bytes.
const STATE_MAX: u64 = 16 << 20;

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

/// Runs `hooks` one after another in the bundle; stops at the first that fails.
pub fn run(phase: &'static str, hooks: &[Value], record: &Record, status: Status) -> Result<(), RuntimeError> {
    let state = oci_state(record, status).to_string();
    run_in(phase, hooks, &state, Some(&record.bundle), &[])
}

/// Runs `hooks` one after another in `dir` (the current directory if none); stops at the first that fails. A hook without
/// an environment of its own gets `env`, each entry `NAME=value`.
pub(super) fn run_in(
    phase: &'static str,
    hooks: &[Value],
    state: &str,
    dir: Option<&Path>,
    env: &[String],
) -> Result<(), RuntimeError> {
    for hook in hooks {
        let path = hook["path"].as_str().unwrap_or_default();
        one(hook, path, state, dir, env).map_err(|why| RuntimeError::Hook { phase, path: path.to_owned(), why })?;
    }
    Ok(())
}

fn one(hook: &Value, path: &str, state: &str, dir: Option<&Path>, default_env: &[String]) -> Result<(), String> {
    let strings = |key: &str| -> Option<Vec<String>> {
        let list = hook[key].as_array()?;
        Some(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    };
    let text = |err: std::io::Error| err.to_string();
    // Where the container's filter forbids it the output is lost, and nothing else.
    let output: Option<File> = rustix::fs::memfd_create("hook", MemfdFlags::CLOEXEC).ok().map(File::from);
    let stdio = || match &output {
        Some(file) => file.try_clone().map(Stdio::from).map_err(text),
        None => Ok(Stdio::null()),
    };
    let mut command = Command::new(path);
    if let Some((arg0, rest)) = strings("args").unwrap_or_default().split_first() {
        command.arg0(arg0).args(rest);
    }
    if let Some(dir) = dir {
        command.current_dir(dir);
    }
    command.env_clear().stdin(Stdio::piped()).stdout(stdio()?).stderr(stdio()?);
    for entry in strings("env").unwrap_or_else(|| default_env.to_vec()) {
        if let Some((key, value)) = entry.split_once('=') {
            command.env(key, value);
        }
    }
    let mut child = command.spawn().map_err(text)?;
    // One that was over before the beginning is none the less one.
    let timeout = hook["timeout"].as_u64().or_else(|| hook["timeout"].as_i64().map(|_| 0));
    let status = wait(&mut child, state.as_bytes(), timeout)?;
    if status.success() {
        return Ok(());
    }
    let mut told = Vec::new();
    if let Some(mut output) = output {
        // What it printed is an extra; the status is the failure.
        let _ = output.rewind();
        let _ = output.take(OUTPUT_MAX).read_to_end(&mut told);
    }
    let told = String::from_utf8_lossy(&told).trim().to_owned();
    Err(if told.is_empty() { status.to_string() } else { format!("{status}: {told}") })
}

/// Gives the hook its `state` and waits for its end, at most `seconds`; then it is killed.
fn wait(child: &mut Child, state: &[u8], seconds: Option<u64>) -> Result<ExitStatus, String> {
    let text = |err: std::io::Error| err.to_string();
    // One that is beyond the clock is none.
    let limit = seconds.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
    let mut feed = Feed::begin(child.stdin.take(), state);
    loop {
        feed.go_on();
        if feed.pipe.is_none() && limit.is_none() {
            return child.wait().map_err(text);
        }
        if let Some(status) = child.try_wait().map_err(text)? {
            return Ok(status);
        }
        if limit.is_some_and(|limit| Instant::now() >= limit) {
            // It is ours and unreaped, so the pid is still its own.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("timed out after {} s", seconds.unwrap_or_default()));
        }
        std::thread::sleep(TICK);
    }
}

/// The state on its way into a hook's stdin. A pipe takes 64 KiB, annotations may be more, and a hook need not read: so
/// nobody waits until it does.
struct Feed<'a> {
    pipe: Option<File>,
    rest: &'a [u8],
}

impl Feed<'_> {
    fn begin(stdin: Option<ChildStdin>, state: &[u8]) -> Feed<'_> {
        let pipe = stdin.map(|stdin| File::from(OwnedFd::from(stdin)));
        if state.len() > PIPE_MIN {
            // Our end alone: the hook's is a file description of its own. Where a filter forbids it, most states fit all the
            // same.
            let _ = pipe.as_ref().map(|pipe| rustix::io::ioctl_fionbio(pipe, true));
        }
        Feed { pipe, rest: state }
    }

    /// Writes what the pipe takes, and closes it behind the last byte.
    fn go_on(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        while !self.rest.is_empty() {
            match pipe.write(self.rest) {
                Ok(n) => self.rest = &self.rest[n..],
                Err(err) if err.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(err) if err.kind() == std::io::ErrorKind::Interrupted => {}
                // A hook that closes its stdin has no need of it.
                Err(_) => break,
            }
        }
        self.pipe = None;
    }
}

/// What a [`relay`] is to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Errand {
    /// The configuration's `ociVersion`.
    oci_version: String,
    /// The engine's bundle; libcontainer works in one of its own.
    bundle: PathBuf,
    /// Where to run them, if not in the current directory: as runc does it, createContainer hooks begin in the root
    /// filesystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dir: Option<PathBuf>,
    /// Phases and their hooks, in order.
    phases: Vec<(String, Vec<Value>)>,
    /// An inherited descriptor that takes the text of a failure.
    report: RawFd,
    /// Mounts to be put in place before the hooks run, and the root filesystem that they are in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mounts: Option<(PathBuf, Vec<Place>)>,
}

impl Errand {
    /// What libcontainer is to run in the place of the hooks of `phases`, after `places` are filled; nothing if there are
    /// neither.
    pub(super) fn hook(record: &Record, phases: &[&str], report: RawFd, places: Vec<Place>) -> Option<Value> {
        let phases: Vec<(String, Vec<Value>)> = phases
            .iter()
            .map(|phase| ((*phase).to_owned(), record.hooks_of(phase).to_vec()))
            .filter(|(_, hooks)| !hooks.is_empty())
            .collect();
        if phases.is_empty() && places.is_empty() {
            return None;
        }
        let dir = phases.iter().any(|(phase, _)| phase == "createContainer").then(|| record.rootfs.clone());
        let mounts = (!places.is_empty()).then(|| (record.rootfs.clone(), places));
        let (oci_version, bundle) = (record.oci_version.clone(), record.bundle.clone());
        let errand = Errand { oci_version, bundle, dir, phases, report, mounts };
        let text = json!(errand).to_string();
        let env: Vec<String> = pieces(&text).enumerate().map(|(n, piece)| format!("{ERRAND}{n}={piece}")).collect();
        Some(json!({"path": "/proc/self/exe", "args": [super::NAME, RELAY_VERB], "env": env}))
    }
}

/// `text` in pieces of at most [`ERRAND_PIECE`] bytes.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (piece, behind) = rest.split_at(rest.floor_char_boundary(ERRAND_PIECE));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Runs the hooks of an `errand` (JSON), with the state that libcontainer wrote to `state`
/// completed. What fails is written to the errand's report, and true is returned if nothing did.
pub fn relay(errand: &str, state: impl Read) -> bool {
    let Ok(errand) = serde_json::from_str::<Errand>(errand) else { return false };
    if errand.report < 0 {
        return false;
    }
    let report = process::borrow_for_life(errand.report);
    // The hooks have no business with it.
    if attributes::close_on_exec_from(3).is_err() {
        return false;
    }
    let ran = completed(&errand, state).and_then(|state| {
        if let Some((rootfs, places)) = &errand.mounts {
            let pid = serde_json::from_str::<Value>(&state).ok().and_then(|state| state["pid"].as_i64());
            place::put(places, rootfs, pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0))?;
        }
        let known = |(name, hooks)| Some((*PHASES.iter().find(|p| *p == name)?, hooks));
        let mut phases = errand.phases.iter().map(|(name, hooks)| (name, hooks)).filter_map(known);
        phases.try_for_each(|(phase, hooks)| {
            run_in(phase, hooks, &state, errand.dir.as_deref(), &[]).map_err(|err| err.to_string())
        })
    });
    if let Err(text) = &ran {
        // The exit code still says that it failed.
        let _ = rustix::io::write(report, text.as_bytes());
    }
    ran.is_ok()
}

/// The state with the bundle that the engine knows, and with the pid: where libcontainer gives none, this process was
/// started by the container's first process itself, and sees it as the container does.
fn completed(errand: &Errand, state: impl Read) -> Result<String, String> {
    let mut state: Value =
        serde_json::from_reader(state.take(STATE_MAX)).map_err(|err| format!("read the container's state: {err}"))?;
    state["ociVersion"] = json!(errand.oci_version);
    state["bundle"] = json!(errand.bundle);
    if state["pid"].as_i64().is_none_or(|pid| pid <= 0) {
        state["pid"] = json!(rustix::process::getppid().map_or(1, |pid| pid.as_raw_nonzero().get()));
    }
    Ok(state.to_string())
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
        // A limit below 0 was none, and the `delete` hung; runc ends the hook at once.
        let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", "exec sleep 30"], "timeout": -1});
        let why = run("poststop", &[hook], &record(dir.path()), Status::Stopped).unwrap_err().to_string();
        assert_eq!(why, "poststop hook /bin/sh: timed out after 0 s");
    }

    /// The time limit did not hold while the state was written, and one that the clock can't hold was a panic.
    #[test]
    fn a_hook_need_not_read_a_state_that_a_pipe_cannot_hold() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = record(dir.path());
        record.annotations.insert("long".into(), "x".repeat(300 << 10));
        let sh =
            |script: &str, timeout: u64| json!({"path": "/bin/sh", "args": ["sh", "-c", script], "timeout": timeout});
        let go = |hook| run("poststop", &[hook], &record, Status::Stopped).map_err(|err| err.to_string());
        let begun = Instant::now();
        assert_eq!(go(sh("exec sleep 30", 1)), Err("poststop hook /bin/sh: timed out after 1 s".to_owned()));
        assert_eq!(go(sh("exec <&-; sleep 0.1", u64::MAX)), Ok(()));
        // What it leaves behind holds the pipe, and is not waited for either.
        assert_eq!(
            go(json!({"path": "/bin/sh", "args": ["sh", "-c", "exec 3<&0; sleep 30 <&3 >/dev/null 2>&1 &"]})),
            Ok(())
        );
        assert!(begun.elapsed() < Duration::from_secs(15));
        go(sh("cat >state", 20)).unwrap();
        let state: Value = serde_json::from_slice(&std::fs::read(dir.path().join("state")).unwrap()).unwrap();
        assert_eq!(state["annotations"]["long"].as_str().unwrap().len(), 300 << 10);
    }

    #[test]
    fn a_hook_without_an_environment_has_the_one_that_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let sh = |env: Value| json!({"path": "/bin/sh", "args": ["sh", "-c", "echo $A >>env"], "env": env});
        let hooks = [sh(Value::Null), sh(json!(["B=1"]))];
        run_in("startContainer", &hooks, "{}", Some(dir.path()), &["A=given".to_owned()]).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("env")).unwrap(), "given\n\n");
    }

    /// Hooks of more than 128 KiB together could not be passed on, and no container with them was made.
    #[test]
    fn a_long_errand_goes_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = record(dir.path());
        record.hooks = json!({"prestart": [{"path": "/x", "args": ["ä".repeat(3 * ERRAND_PIECE)]}]});
        let hook = Errand::hook(&record, &["prestart"], 3, Vec::new()).unwrap();
        let env: Vec<&str> = hook["env"].as_array().unwrap().iter().map(|entry| entry.as_str().unwrap()).collect();
        assert!(env.len() > 6 && env.iter().all(|entry| entry.len() < 128 << 10));
        let piece = |(n, entry): (usize, &&str)| entry.strip_prefix(&format!("{ERRAND}{n}=")).unwrap().to_owned();
        let text: String = env.iter().enumerate().map(piece).collect();
        let errand: Errand = serde_json::from_str(&text).unwrap();
        assert_eq!(json!(errand.phases[0].1), record.hooks["prestart"]);
    }

    #[test]
    fn an_errand_goes_through_a_hook_and_completes_the_state() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = record(dir.path());
        assert!(Errand::hook(&record, &["prestart"], 3, Vec::new()).is_none());
        record.hooks = json!({"prestart": [], "createRuntime": [{"path": "/x"}], "poststop": [{"path": "/y"}]});
        assert!(Errand::hook(&record, &["prestart", "createContainer"], 3, Vec::new()).is_none());
        let hook = Errand::hook(&record, &["prestart", "createRuntime"], 3, Vec::new()).unwrap();
        assert_eq!(hook["env"].as_array().unwrap().len(), 1);
        let text = hook["env"][0].as_str().unwrap().strip_prefix("AGENTSBX_HOOKS_0=").unwrap().to_owned();
        let errand: Errand = serde_json::from_str(&text).unwrap();
        assert_eq!(errand.phases, [("createRuntime".to_owned(), vec![json!({"path": "/x"})])]);
        let given = json!({"ociVersion": "v1", "id": "c1", "status": "creating", "pid": 7, "bundle": "/theirs"});
        let state: Value = serde_json::from_str(&completed(&errand, given.to_string().as_bytes()).unwrap()).unwrap();
        assert_eq!((&state["pid"], &state["bundle"]), (&json!(7), &json!(dir.path())));
        assert_eq!((&state["ociVersion"], &state["status"]), (&json!("1.0.2"), &json!("creating")));
        let without: Value = serde_json::from_str(&completed(&errand, &b"{}"[..]).unwrap()).unwrap();
        assert!(without["pid"].as_i64().unwrap() > 0);
        assert!(completed(&errand, &b"{"[..]).is_err());
    }
}
