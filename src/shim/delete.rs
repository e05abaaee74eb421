//! `delete`: cleans up after a shim that is gone, or that never got as far as a container, and tells containerd how the
//! container ended.
//!
//! containerd gives it five seconds and takes what it writes for the truth. So each step has its bound, a step that fails
//! keeps none of the others from being taken, and there is always an answer.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

use containerd_shim_protos::api::DeleteResponse;
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::options::Saved;
use super::runtime::Memory;
use super::{ShimError, bootstrap, io, mounts, record, socket};

/// How long the runtime may take. It waits itself for supervisors that write their results.
const RUNTIME: Duration = Duration::from_millis(2300);
/// How long the runtime may take that was started again after its mounts were taken away.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a runtime that still makes the container may take to end when it is killed.
const CREATION: Duration = Duration::from_millis(300);
/// How long another process may hold the socket's lock.
const LOCK: Duration = Duration::from_millis(300);
/// The code of a process whose end nobody has seen: as if killed by SIGKILL, which the runtime has just done if need be.
const KILLED: u32 = 128 + 9;
/// The file in the bundle with the first process's pid.
const PID_FILE: &str = "init.pid";
/// The most that is read of what the runtime says, in bytes.
const SAID_MAX: u64 = 4096;

/// How long the runtime may take to tell whose a container is.
const WHOSE: Duration = Duration::from_millis(300);

/// What was done, and what was not.
#[derive(Debug)]
pub struct Deleted {
    /// What containerd is to read from standard output.
    pub answer: Vec<u8>,
    /// What failed.
    pub failed: Vec<ShimError>,
}

/// Does `delete` for the container `id`. The bundle may be half made, or gone.
pub fn delete(bundle: &Path, namespace: &str, id: &str) -> Deleted {
    let mut failed = Vec::new();
    let mut keep = |result: Result<(), ShimError>| failed.extend(result.err());
    // Read before the runtime ends what may still run: the end that somebody saw is the container's, not this one.
    let ended = record::read_exit(bundle);
    let pid = record::read_pid(&bundle.join(PID_FILE)).ok().or(ended.as_ref().map(|ended| ended.pid));
    let saved = Saved::load(bundle, namespace);
    // Most shims end after their last container: then a whole process is saved.
    let deleted = if record::was_deleted(bundle) || is_anothers(&saved, id, bundle) {
        Ok(())
    } else {
        end_creation(Path::new("/proc"), &saved, id, CREATION);
        force_delete(&saved, id, RUNTIME)
    };
    let hangs = matches!(deleted, Err(ShimError::State(_)));
    keep(deleted);
    keep(mounts::unmount_all(&bundle.join("rootfs")));
    if hangs {
        // What it waited for may have been in what is unmounted now.
        keep(force_delete(&saved, id, AGAIN));
    }
    if let Some(path) = bootstrap::socket_of(bundle) {
        keep(remove_socket(&path));
    }
    io::remove_lost_consoles();
    let exited_at = ended.as_ref().map_or_else(SystemTime::now, |ended| ended.exited_at.into());
    let response = DeleteResponse {
        pid: pid.unwrap_or_default(),
        exit_status: ended.map_or(KILLED, |ended| ended.status),
        exited_at: Some(Timestamp::from(exited_at)).into(),
        ..DeleteResponse::default()
    };
    // Three numbers can always be encoded; without an answer containerd would take the defaults.
    Deleted { answer: response.write_to_bytes().unwrap_or_default(), failed }
}

/// Whether the runtime has the container from another bundle. Two containerds on a host share the directory of its state; when
/// one asks for an id that the other has, the runtime refuses, and this is called for what was never made.
fn is_anothers(saved: &Saved, id: &str, bundle: &Path) -> bool {
    let Some(theirs) = bundle_of(saved, id) else { return false };
    // Where the bundle is gone its name is all that there is.
    let ours = bundle.canonicalize().unwrap_or_else(|_| bundle.to_owned());
    theirs != ours && theirs != bundle
}

/// The bundle that the runtime has for a container; none where it has none, or can't be asked.
fn bundle_of(saved: &Saved, id: &str) -> Option<PathBuf> {
    let told = Memory::new(b"").ok()?;
    let mut command = saved.command();
    command.args(["state", id]).current_dir("/").stdin(Stdio::null()).stderr(Stdio::null()).stdout(told.stdio().ok()?);
    let mut child = command.spawn().ok()?;
    let Ok(Some(status)) = wait_within(&mut child, WHOSE) else {
        // It only looks.
        let _ = child.kill();
        let _ = child.wait();
        return None;
    };
    let state: serde_json::Value = status.success().then(|| serde_json::from_str(&told.text()).ok())??;
    state["bundle"].as_str().map(PathBuf::from)
}

/// Removes the group's socket unless other containers of the group are served there.
fn remove_socket(path: &Path) -> Result<(), ShimError> {
    if path.parent().is_some_and(Path::is_dir) { socket::remove_unserved(path, LOCK) } else { Ok(()) }
}

/// Kills the runtime if it still makes the container: whose shim is gone, and what it made after this would be nobody's.
/// What it has made so far is deleted as any other.
fn end_creation(proc: &Path, saved: &Saved, id: &str, limit: Duration) {
    let deadline = Instant::now() + limit;
    loop {
        let pids: Vec<i32> = std::fs::read_dir(proc)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| creates(proc, *pid, saved, id))
            .collect();
        if pids.is_empty() || Instant::now() >= deadline {
            return;
        }
        for pid in pids {
            let Some(number) = Pid::from_raw(pid) else { continue };
            let Ok(process) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else { continue };
            // Looked at again: the pid may have been another's when it was listed.
            if creates(proc, pid, saved, id) {
                // It has ended by itself, or ends now; the next round looks.
                let _ = rustix::process::pidfd_send_signal(&process, Signal::KILL);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process is the runtime that makes the container, or the container's first process before it has become
/// another program. The runtime knows the container by its root directory and its id.
fn creates(proc: &Path, pid: i32, saved: &Saved, id: &str) -> bool {
    let line = std::fs::read(proc.join(pid.to_string()).join("cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = line.strip_suffix(b"\0").unwrap_or(&line).split(|byte| *byte == 0).collect();
    let root = saved.root.as_os_str().as_bytes();
    let has_root = words.windows(2).any(|pair| pair[0] == b"--root" && pair[1] == root);
    has_root && words.contains(&b"create".as_slice()) && words.last() == Some(&id.as_bytes())
}

/// Runs the runtime's `delete --force`. One that takes longer is left to itself: killed half-way it would leave more.
fn force_delete(saved: &Saved, id: &str, limit: Duration) -> Result<(), ShimError> {
    let mut command = saved.command();
    command.args(["delete", "--force", id]).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(ShimError::io("start the runtime", &saved.runtime))?;
    let status = wait_within(&mut child, limit).map_err(ShimError::io("wait for", &saved.runtime))?;
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => {
            let mut said = Vec::new();
            if let Some(pipe) = child.stderr.take() {
                // It has ended, and so has what it said. What can't be read is missing from a message.
                let _ = pipe.take(SAID_MAX).read_to_end(&mut said);
            }
            let said = String::from_utf8_lossy(&said).trim().to_owned();
            let message = if said.is_empty() { status.to_string() } else { said };
            if message.contains("does not exist") {
                Ok(())
            } else {
                Err(ShimError::Runtime { doing: "delete", message })
            }
        }
        None => Err(ShimError::State(format!("{} delete {id}: still at it after {limit:?}", saved.runtime.display()))),
    }
}

fn wait_within(child: &mut Child, limit: Duration) -> std::io::Result<Option<std::process::ExitStatus>> {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// The bundle: where containerd says, else the working directory; if that has been removed, where it was.
pub fn bundle(given: Option<PathBuf>) -> Result<PathBuf, ShimError> {
    /// What the kernel adds to the name of a directory that is gone.
    const GONE: &str = " (deleted)";
    let link = "/proc/self/cwd";
    let here = std::fs::read_link(link).map_err(ShimError::io("readlink", link))?;
    let here = here.to_str().and_then(|text| text.strip_suffix(GONE)).map_or(here.clone(), PathBuf::from);
    // An absolute path stands for itself.
    Ok(given.map_or_else(|| here.clone(), |path| here.join(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    struct Lab(tempfile::TempDir);

    impl Lab {
        /// A bundle whose runtime is this shell script.
        fn new(runtime: &str) -> Lab {
            let lab = Lab(tempfile::tempdir().unwrap());
            std::fs::create_dir(lab.path("rootfs")).unwrap();
            lab.put("runtime", &format!("#!/bin/sh\ncd '{}'\n{runtime}", lab.0.path().display()), 0o755);
            Saved { runtime: lab.path("runtime"), root: "/r/ns".into(), config: None, systemd_cgroup: true }
                .save(lab.0.path())
                .unwrap();
            lab
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn put(&self, name: &str, text: &str, mode: u32) {
            durable::replace_unsynced(&self.path(name), text.as_bytes(), mode).unwrap();
        }

        fn delete(&self) -> (DeleteResponse, Vec<String>) {
            let deleted = delete(self.0.path(), "ns", "c1");
            let response = DeleteResponse::parse_from_bytes(&deleted.answer).unwrap();
            (response, deleted.failed.iter().map(ToString::to_string).collect())
        }
    }

    #[test]
    fn the_end_that_was_seen_is_told() {
        let lab = Lab::new("echo \"$@\" >called");
        lab.put("init.pid", "77", 0o600);
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        record::write_exit(lab.0.path(), 77, super::super::reaper::Exit { code: 3, at }).unwrap();
        let (response, failed) = lab.delete();
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!((response.pid, response.exit_status, response.exited_at.seconds), (77, 3, 1_700_000_000));
        let called = std::fs::read_to_string(lab.path("called")).unwrap();
        assert_eq!(called, "--root /r/ns --systemd-cgroup delete --force c1\n");
    }

    #[test]
    fn what_the_shim_has_deleted_is_not_deleted_again() {
        let lab = Lab::new("echo \"$@\" >called");
        let exit = super::super::reaper::Exit { code: 3, at: SystemTime::UNIX_EPOCH };
        record::write_exit(lab.0.path(), 77, exit).unwrap();
        record::write_deleted(lab.0.path()).unwrap();
        let (response, failed) = lab.delete();
        assert!(failed.is_empty() && !lab.path("called").exists(), "{failed:?}");
        assert_eq!((response.pid, response.exit_status), (77, 3));
        record::forget_deleted(lab.0.path()).unwrap();
        record::forget_deleted(lab.0.path()).unwrap();
        lab.delete();
        assert!(lab.path("called").exists());
    }

    #[test]
    fn an_end_that_nobody_saw_is_a_kill() {
        let lab = Lab::new("echo 'container does not exist' >&2; exit 1");
        let (response, failed) = lab.delete();
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!((response.pid, response.exit_status), (0, 137));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(response.exited_at.seconds.cast_unsigned()) < 60);
        let lab = Lab::new("echo 'disk on fire' >&2; exit 1");
        let (response, failed) = lab.delete();
        assert_eq!(response.exit_status, 137);
        assert_eq!(failed, ["OCI runtime delete failed: disk on fire"]);
    }

    /// Two containerds share the runtime's state: a create that was refused for an id that the other has ended the other's.
    #[test]
    fn anothers_container_stays() {
        let state = |bundle: &str| {
            Lab::new(&format!(
                "case \"$*\" in *state*) echo '{{\"bundle\": \"{bundle}\"}}';; *) echo $* >called;; esac"
            ))
        };
        let lab = state("/another/bundle");
        assert!(lab.delete().1.is_empty());
        assert!(!lab.path("called").exists());
        let lab = state("BUNDLE");
        lab.put(
            "runtime",
            &std::fs::read_to_string(lab.path("runtime")).unwrap().replace("BUNDLE", lab.0.path().to_str().unwrap()),
            0o755,
        );
        assert!(lab.delete().1.is_empty());
        assert!(lab.path("called").exists());
    }

    /// Nothing is left of the bundle, or nothing was ever made: there is an answer all the same.
    #[test]
    fn without_a_bundle() {
        let deleted = delete(Path::new("/no/such/bundle"), "ns-of-no-one", "no-such-container-of-ours");
        assert_eq!(DeleteResponse::parse_from_bytes(&deleted.answer).unwrap().exit_status, 137);
    }

    /// containerd's five seconds are kept when the runtime hangs, and the other steps are taken.
    #[test]
    fn a_runtime_that_hangs() {
        let lab = Lab::new("exec sleep 8");
        let socket = lab.path(&"0".repeat(64));
        drop(UnixListener::bind(&socket).unwrap());
        lab.put("address", &socket::address(&socket), 0o600);
        let begun = Instant::now();
        let (response, failed) = lab.delete();
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        assert_eq!((response.exit_status, failed.len()), (137, 2));
        assert!(!socket.exists());
    }

    /// A shim was killed while its runtime made the container: `delete` found none, and then there was one, for ever.
    #[test]
    fn a_runtime_that_still_makes_the_container_is_ended_first() {
        let lab = Lab::new("echo $1 $2 >>called");
        let create = |root: &str, id: &str| {
            // The script's first command line stays, as that of a shell that waits.
            let script = "trap : USR1; while :; do sleep 0.1; done";
            Command::new("/bin/sh").args(["-c", script, "--root", root, "create", id]).spawn().unwrap()
        };
        let mut all = [create("/r/ns", "c1"), create("/r/ns", "c2"), create("/r/other", "c1")];
        // Until each has become a shell.
        let read = |child: &Child| std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
        while !all.iter().all(|child| read(child).starts_with(b"/bin/sh")) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(lab.delete().1.is_empty());
        let ended: Vec<bool> = all.iter_mut().map(|child| child.try_wait().unwrap().is_some()).collect();
        for child in &mut all {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(ended, [true, false, false]);
        assert!(lab.path("called").exists());
    }

    #[test]
    fn a_socket_that_is_served_stays() {
        let lab = Lab::new("exit 0");
        let socket = lab.path(&"1".repeat(64));
        let _listener = UnixListener::bind(&socket).unwrap();
        lab.put("address", &socket::address(&socket), 0o600);
        assert!(lab.delete().1.is_empty());
        assert!(socket.exists());
    }
}
