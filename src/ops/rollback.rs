//! Going back: HEAD moves to an older generation, and nothing is lost by it.

use std::time::{Duration, Instant};

use super::{Context, Done, OpsError, publish, recover};
use crate::id::Revision;
use crate::runtime::exec::cgroup::KILL_PATIENCE;
use crate::runtime::members;
use crate::store::{Container, Rollback, Store, StoreError};

/// How long `reset` waits for the execs that it has killed to be recorded.
const RESET_PATIENCE: Duration = Duration::from_secs(30);

/// Moves HEAD.
pub fn to(context: &Context, container: &str, revision: Revision) -> Result<Done<Rollback>, OpsError> {
    let (store, container) = context.container_to_free(container)?;
    let target = store.resolve(container.key, revision)?;
    move_head(&store, &container, || store.rollback(container.key, target))
}

/// Kills every exec of the container and goes back to generation 0: how many were killed.
pub fn reset(context: &Context, container: &str) -> Result<Done<(usize, Rollback)>, OpsError> {
    let (store, container) = context.container_to_free(container)?;
    let running = store.running(container.key)?;
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    let mut left = running.clone();
    // Their supervisors write the results; a commit that one of them makes meanwhile is left behind by the rollback.
    while !left.is_empty() && begun.elapsed() < RESET_PATIENCE {
        // Each time: one that has only its row yet gets its cgroup, and its command, later.
        for exec in &left {
            members::kill(&exec.cgroups, KILL_PATIENCE)?;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
        recover::container(&store, container.key)?;
        let now = store.running(container.key)?;
        left.retain(|exec| now.iter().any(|now| now.id == exec.id));
    }
    let killed = running.len() - left.len();
    let Done { what, warning } = move_head(&store, &container, || store.reset(container.key, killed as u64))?;
    Ok(Done { what: (killed, what), warning })
}

fn move_head(
    store: &Store,
    container: &Container,
    moving: impl FnOnce() -> Result<Rollback, StoreError>,
) -> Result<Done<Rollback>, OpsError> {
    let what = {
        let _lock = store.commit_lock(container.key)?;
        moving()?
    };
    Ok(Done { what, warning: publish::annotate(store, container, None).err() })
}
