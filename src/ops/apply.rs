//! `apply`: what was committed at copy-on-write mounts is copied to the host's directories, on request only.
//!
//! The layers are those of HEAD and its ancestors, which nobody writes to any more; what is read of the live container is
//! nothing. It is not undone by a rollback: afterwards the host's directory is what lies under all generations.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde_json::json;

use super::commit::touched_of;
use super::history::uppers_between;
use super::{Context, OpsError, stack, unless_removed};
use crate::diff::apply::{Action, Base, Mount, Past, Plan, carry_out, plan, tidy};
use crate::diff::{self, PathBytes};
use crate::id::Generation;
use crate::store::{Container, Store};

/// How long another run is waited for. A container that has the directory as an ordinary mount can lock it too.
const LOCK_WAIT: Duration = Duration::from_secs(60);
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The container: its id or a prefix of it.
    pub container: String,
    /// A mount, something above or below one; none: all mounts.
    pub path: Option<PathBytes>,
    /// Only plan.
    pub dry_run: bool,
    /// Also where something is lost that others changed on the host.
    pub force: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Applied {
    /// The container.
    pub container: Container,
    /// HEAD, whose state is applied.
    pub generation: Generation,
    /// What was, or would be, done.
    pub plan: Plan,
    /// It was done.
    pub done: bool,
}

/// Plans, and unless something is in the way (see [`Plan::conflicts`]) carries it out.
pub fn apply(context: &Context, request: &Request) -> Result<Applied, OpsError> {
    let (store, container) = context.container(&request.container)?;
    unless_removed(&store, container.key, || apply_in(&store, container.clone(), request))
}

fn apply_in(store: &Store, container: Container, request: &Request) -> Result<Applied, OpsError> {
    let _lock = store.read_lock(container.key)?;
    let lowers = stack::lowers_at(store, &container, Generation::ZERO)?;
    let mounts = lowers.mounts();
    if mounts.is_empty() {
        return Err(OpsError::NoCowMount(container.id.to_string()));
    }
    let wanted = |path: &PathBytes| request.path.as_ref().is_none_or(|want| path.is_below(want));
    if let Some(path) = request.path.as_ref()
        && !mounts.iter().any(|mount| path.is_below(&mount.at) || mount.at.is_below(path))
    {
        let known = mounts.iter().map(|mount| mount.at.to_string_lossy().into_owned()).collect();
        return Err(OpsError::NotOnCowMount { path: path.to_string_lossy().into_owned(), known });
    }
    lock(&mounts, LOCK_WAIT)?;
    let head = store.head(container.key)?;
    let uppers = uppers_between(store, &container, Generation::ZERO, head)?;
    let fds: Vec<_> = uppers.iter().map(AsFd::as_fd).collect();
    let mut applied = Applied { container, generation: head, plan: Plan::default(), done: !request.dry_run };
    if fds.is_empty() {
        return Ok(applied);
    }
    let container = &applied.container;
    let options = diff::Options { recursive: true, renames: false, ..stack::options_of(container) };
    let found = diff::compare(&fds, lowers.view(), &options)?;
    let past = past(store, container, head)?;
    applied.plan = plan(&mounts, &fds, &found, &past, wanted)?;
    // Whoever looks at the plan wants to know where links would lead.
    let targets: BTreeMap<_, _> = found.changes.iter().filter_map(|c| Some((&c.path, c.target.as_ref()?))).collect();
    for step in applied.plan.steps.iter_mut().filter(|step| step.action != Action::Delete) {
        step.target = targets.get(&step.path).map(|target| (*target).clone());
    }
    if request.dry_run {
        return Ok(applied);
    }
    if !applied.plan.conflicts.is_empty() && !request.force {
        applied.done = false;
        return Ok(applied);
    }
    tidy(&mounts, &past, wanted)?;
    if !applied.plan.steps.is_empty() {
        // Before anything is done: what is half done is on record too.
        let path = request.path.as_ref().map_or(&b"/"[..], PathBytes::as_bytes);
        let path = Path::new(OsStr::from_bytes(path));
        store.append_applied(container.key, path, head, &event(request, &applied))?;
        carry_out(&applied.plan, &mounts, &fds)?;
    }
    Ok(applied)
}

/// One run at a time for a directory, whoever's container it is: all in one order, so that no two wait for each other, and
/// each once, since several mounts of one directory would wait for themselves.
fn lock(mounts: &[Mount<'_>], wait: Duration) -> Result<(), OpsError> {
    let failed = |mount: &Mount<'_>, doing, errno: Errno| {
        let source = errno.into();
        OpsError::File { doing, path: mount.path.to_owned(), source }
    };
    let mut dirs = BTreeMap::new();
    for mount in mounts {
        let stat = rustix::fs::fstat(mount.dir).map_err(|errno| failed(mount, "stat", errno))?;
        dirs.entry((stat.st_dev, stat.st_ino)).or_insert(mount);
    }
    let end = Instant::now() + wait;
    for mount in dirs.into_values() {
        loop {
            match rustix::fs::flock(mount.dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(LOCK_RETRY),
                Err(Errno::WOULDBLOCK) => return Err(OpsError::Locked(mount.path.to_owned())),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failed(mount, "lock", errno)),
            }
        }
    }
    Ok(())
}

fn event(request: &Request, applied: &Applied) -> serde_json::Value {
    let count = |action| applied.plan.steps.iter().filter(|step| step.action == action).count();
    json!({
        "path": request.path.as_ref().map_or("/".into(), |path| path.to_string_lossy()),
        "generation": applied.generation,
        "created": count(Action::Create),
        "replaced": count(Action::Replace),
        "deleted": count(Action::Delete),
        "metadata": count(Action::Metadata),
        "skipped": applied.plan.skipped.len(),
        "overridden": applied.plan.conflicts.len(),
    })
}

/// The generations up to `head`, oldest first.
fn past(store: &Store, container: &Container, head: Generation) -> Result<Vec<Past>, OpsError> {
    let mut past = Vec::new();
    for row in store.chain(container.key, head)?.iter().rev() {
        past.push(Past {
            upper: store.upper(&row.layer),
            touched: touched_of(store, container, &row.layer, row.parent)?,
            base: store.read_base(&row.layer)?.and_then(|bytes| Base::decode(&bytes)),
        });
    }
    Ok(past)
}

/// A path as it is typed, cleaned.
pub fn path_of(typed: &std::path::Path) -> Result<PathBytes, OpsError> {
    if !typed.is_absolute() {
        let why = format!("{typed:?} is not an absolute path: it is one of the container's, such as /work");
        return Err(OpsError::Flag { flag: "PATH", reason: why });
    }
    Ok(PathBytes::new(crate::spec::normalise::clean_absolute(typed).as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two mounts of one directory are locked once: each for itself, the second would wait for the first for ever. A lock of
    /// somebody else's is an error in the end.
    #[test]
    fn each_directory_is_locked_once() {
        let dir = tempfile::tempdir().unwrap();
        let open = || std::fs::File::open(dir.path()).unwrap();
        let (one, two, theirs) = (open(), open(), open());
        let mounts = [("/one", &one), ("/two", &two)];
        let mounts = mounts.map(|(at, dir_fd)| Mount { at: at.into(), dir: dir_fd.as_fd(), path: dir.path() });
        lock(&mounts, Duration::ZERO).unwrap();
        rustix::fs::flock(&theirs, FlockOperation::NonBlockingLockExclusive).unwrap_err();
        rustix::fs::flock(&one, FlockOperation::Unlock).unwrap();
        rustix::fs::flock(&theirs, FlockOperation::LockExclusive).unwrap();
        let err = lock(&mounts, Duration::from_millis(50)).unwrap_err().to_string();
        assert!(err.contains("is locked by another process (flock)"), "{err}");
    }
}
