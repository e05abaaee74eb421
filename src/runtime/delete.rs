//! `delete`: everything of a container is ended and removed; what cannot be is said, and the next `delete` goes on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cgroup;
use super::claim::{BundleLock, Claim};
use super::error::{On, RuntimeError};
use super::freezer::Turn;
use super::hooks;
use super::members;
use super::state::{Record, Status};
use super::systemd;
use crate::durable::LockFile;
use crate::id::ContainerId;
use crate::spec;
use crate::sys::proc::PidFd;

/// What `delete` is asked for.
#[derive(Debug)]
pub struct DeleteRequest {
    /// Directory of the state directories.
    pub root: PathBuf,
    /// The container.
    pub id: ContainerId,
    /// Also if it lives; and an unknown id is no error.
    pub force: bool,
}

/// Deletes the container. What fails without keeping it is returned as a warning: a poststop hook, or the bundle's
/// configuration, which the next `create` there puts right.
pub fn delete(request: &DeleteRequest) -> Result<Option<RuntimeError>, RuntimeError> {
    delete_seen(request, None)
}

/// The same for the container `seen`, and no other that has its id by now: then there is none to delete.
pub fn delete_seen(request: &DeleteRequest, seen: Option<&Record>) -> Result<Option<RuntimeError>, RuntimeError> {
    let Some(record) = end(request, seen)? else {
        return if request.force { Ok(None) } else { Err(RuntimeError::NotFound) };
    };
    let (_turn, hooks) = run_hooks(&record)?;
    let restored = remove(&record)?;
    Ok(hooks.and(restored).err())
}

/// The lock's file, in the state directory, of who runs the poststop hooks.
const HOOKS_LOCK: &str = "poststop.lock";
/// How long the poststop hooks that another `delete` runs are waited for.
const OTHERS_HOOKS: Duration = Duration::from_secs(30);

/// Runs the poststop hooks, unless another `delete` of the container has; what became of them. With it goes what keeps others
/// from running them again: it must be held until the container is gone.
///
/// Only who deletes it is kept out meanwhile: hooks may take their time, and look at the container.
fn run_hooks(record: &Record) -> Result<(Option<LockFile>, Result<(), RuntimeError>), RuntimeError> {
    let hooks = record.hooks_of("poststop");
    if hooks.is_empty() {
        return Ok((None, Ok(())));
    }
    let turn = match LockFile::lock_for(&record.dir.join(HOOKS_LOCK), OTHERS_HOOKS) {
        Ok(Some(turn)) => Some(turn),
        Ok(None) => return Err(RuntimeError::HooksRun(record.id.to_string())),
        // Gone with its directory; or a full disk, which is no reason to leave them out.
        Err(_) => None,
    };
    match Record::load(record.root(), &record.id) {
        Ok(now) if now.is_same(record) => Ok((turn, hooks::run("poststop", hooks, record, Status::Stopped))),
        // Whoever has deleted it has run them.
        Ok(_) | Err(RuntimeError::NotFound) => Ok((turn, Ok(()))),
        Err(err) => Err(err),
    }
}

/// Ends the container and removes its cgroups. `None` if there is no such container; what is left of a `create` that was
/// killed at its very beginning is removed.
fn end(request: &DeleteRequest, seen: Option<&Record>) -> Result<Option<Record>, RuntimeError> {
    let Some(claim) = Claim::lock(&Record::dir_of(&request.root, &request.id))? else { return Ok(None) };
    let mut record = match Record::load(&request.root, &request.id) {
        Ok(record) => record,
        Err(RuntimeError::NotFound) => {
            // A `create` that lives keeps us out until it has a record: nothing was started.
            remove_dir(claim.path())?;
            return Ok(None);
        }
        Err(err) => return Err(err),
    };
    if seen.is_some_and(|seen| !seen.is_same(&record)) {
        return Ok(None);
    }
    match record.status()? {
        Status::Stopped | Status::Created => {}
        status if !request.force => return Err(RuntimeError::NotStopped { id: record.id.to_string(), status }),
        Status::Creating => {
            stop_creator(&record)?;
            // It may have come to its end at last.
            record = Record::load(&request.root, &request.id)?;
        }
        Status::Running | Status::Paused => {}
    }
    if let Some(init) = record.init()? {
        match init.send(libc::SIGKILL) {
            Ok(()) => {}
            Err(err) if err.errno() == Some(libc::ESRCH) => {}
            Err(err) => return Err(err).during("kill"),
        }
    }
    {
        let _turn = Turn::take_to_signal(&record, libc::SIGKILL);
        cgroup::kill_all(&record.cgroups)?;
    }
    if record.systemd_cgroup && systemd::is_for_us() {
        // Before its directory goes: systemd would not notice, and keep the scope.
        record.cgroups.iter().try_for_each(|dir| systemd::stop(&dir.path))?;
    }
    members::remove(&record.cgroups)?;
    remove_resctrl(&record);
    Ok(Some(record))
}

/// Puts the engine's configuration back and removes the state directory, unless somebody else has done it meanwhile. What
/// became of the configuration.
fn remove(record: &Record) -> Result<Result<(), RuntimeError>, RuntimeError> {
    // Before the claim, as in `create`.
    let bundle = BundleLock::wait(&record.bundle, BUNDLE_WITHIN);
    let Some((claim, _)) = Claim::of(record)? else { return Ok(Ok(())) };
    let restored = match bundle {
        Ok(Some(_lock)) => spec::restore(&record.bundle).map_err(RuntimeError::from),
        // A `create` is at work there. It has put it back, or will, before it looks at it.
        Ok(None) => Ok(()),
        Err(err) => Err(err),
    };
    remove_dir(claim.path())?;
    Ok(restored)
}

/// How long a `create` in the same bundle is waited for.
const BUNDLE_WITHIN: Duration = Duration::from_secs(2);

fn stop_creator(record: &Record) -> Result<(), RuntimeError> {
    let Some(creator) = record.creator else { return Ok(()) };
    let pidfd = PidFd::open(creator.pid, creator.start_time).during("open pidfd of the creating process")?;
    if let Some(pidfd) = pidfd {
        // It may have ended by itself just now.
        let _ = pidfd.send(libc::SIGKILL);
        pidfd.wait_ended(Duration::from_secs(5)).during("wait for the creating process")?;
    }
    Ok(())
}

/// Removes the directories that libcontainer made for Intel RDT, which it notes in its own state.
fn remove_resctrl(record: &Record) {
    let Ok(bytes) = fs::read(record.libcontainer_dir().join("state.json")) else { return };
    let Ok(state) = serde_json::from_slice::<serde_json::Value>(&bytes) else { return };
    for key in ["intelRdtMonitoringDir", "intelRdtDir"] {
        let dir = state[key].as_str().map(Path::new).filter(|d| d.starts_with("/sys/fs/resctrl/"));
        // Shared with another container, or gone: either way not ours to insist on.
        let _ = dir.map(fs::remove_dir);
    }
}

/// How long supervisors may take to write down the ends of commands that were killed just now.
const WRITING: Duration = Duration::from_secs(4);

/// Removes a state directory, in which supervisors of the execs that ended with the container may still be writing.
fn remove_dir(dir: &Path) -> Result<(), RuntimeError> {
    let begun = Instant::now();
    loop {
        match fs::remove_dir_all(dir) {
            Err(err)
                if matches!(err.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound)
                    && dir.exists()
                    && begun.elapsed() < WRITING =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err).on("remove", dir),
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::state::tests::sample;

    #[test]
    fn unknown_leftover_and_stopped() {
        let root = tempfile::tempdir().unwrap();
        let request = |force| DeleteRequest { root: root.path().to_owned(), id: "c1".parse().unwrap(), force };
        assert!(delete(&request(true)).unwrap().is_none());
        assert_eq!(delete(&request(false)).unwrap_err().to_string(), "container does not exist");
        fs::create_dir_all(root.path().join("c1/rest")).unwrap();
        assert!(delete(&request(true)).unwrap().is_none());
        assert!(!root.path().join("c1").exists());
        fs::create_dir(root.path().join("c1")).unwrap();
        sample(&root.path().join("c1")).save().unwrap();
        assert!(delete(&request(false)).unwrap().is_none());
        assert!(!root.path().join("c1").exists());
    }

    /// A forced delete failed with "directory not empty" when a supervisor had just put a file there.
    #[test]
    fn what_is_written_meanwhile_goes_too() {
        let root = tempfile::tempdir().unwrap();
        for n in 0..30 {
            let dir = root.path().join(n.to_string());
            fs::create_dir(&dir).unwrap();
            let begun = Instant::now();
            let writing = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // Until there is no place for it any more.
                    for n in 0.. {
                        let made = crate::durable::replace_unsynced(&dir.join(format!("f{n}")), b"x", 0o600);
                        if n == 50 {
                            writing.wait();
                        }
                        if n > 50 && (made.is_err() || begun.elapsed() > Duration::from_millis(20)) {
                            return;
                        }
                    }
                });
                writing.wait();
                remove_dir(&dir).unwrap();
            });
            assert!(!dir.exists());
        }
    }

    #[test]
    fn a_living_one_is_refused_without_force() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("c1")).unwrap();
        let mut record = sample(&root.path().join("c1"));
        (record.pid, record.start_time) = crate::sys::proc::this().unwrap();
        record.save().unwrap();
        let request = DeleteRequest { root: root.path().to_owned(), id: "c1".parse().unwrap(), force: false };
        assert_eq!(
            delete(&request).unwrap_err().to_string(),
            "cannot delete container c1 that is not stopped: running"
        );
        assert!(root.path().join("c1").exists());
    }
}
