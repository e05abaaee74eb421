//! Keeping mount stacks shallow: old layers are merged into one that is mounted in their place. History is kept.

use std::os::fd::{AsFd, OwnedFd};

use super::OpsError;
use crate::diff;
use crate::id::{Generation, LayerId};
use crate::rootfs::open_dir;
use crate::store::{Container, Lower, Squash, Store};

/// How many layers of one level are merged into one of the next. Each lower layer costs an exec's mount some twenty
/// microseconds; the kernel's limit is 500.
const WIDTH: usize = 16;

/// How deep a stack may be before some of it is merged.
pub const DEEP: usize = 2 * WIDTH;

/// Merges layers below `generation` if its stack is deep. A failure is no failure of the commit that came before: the
/// stack stays as it is, and the next commit tries again.
pub fn if_deep(store: &Store, container: &Container, generation: Generation) -> Result<(), OpsError> {
    if let Err(err) = try_squash(store, container, generation) {
        tracing::warn!(container = %container.id, %generation, error = %crate::error::chain(&err), "layers could not be merged");
    }
    Ok(())
}

fn try_squash(store: &Store, container: &Container, generation: Generation) -> Result<(), OpsError> {
    if store.mount_chain(container.key, generation)?.len() < DEEP {
        return Ok(());
    }
    let _lock = store.commit_lock(container.key)?;
    loop {
        // Anew each time: another supervisor may have merged while we waited, and one merge can call for the next.
        let chain = store.mount_chain(container.key, generation)?;
        let merged = store.squashes(container.key)?;
        let level = |layer: &LayerId| merged.iter().find(|s| s.layer == *layer).map_or(0, |s| s.level);
        let levels: Vec<u32> = chain.iter().map(|lower| level(&lower.layer)).collect();
        let Some((from, to, next)) = due(&levels) else { return Ok(()) };
        squash(store, container, &chain[from..to], next)?;
    }
}

/// The part of a chain (by the levels of its layers, newest first) that is to be merged, and the level it gets.
///
/// Of a level's layers the newest `WIDTH` are left alone, so that a rollback by a few steps mounts what is there.
fn due(levels: &[u32]) -> Option<(usize, usize, u32)> {
    let mut start = 0;
    while start < levels.len() {
        let level = levels[start];
        let end = levels[start..].iter().position(|l| *l != level).map_or(levels.len(), |n| start + n);
        if end - start >= 2 * WIDTH {
            return Some((end - WIDTH, end, level + 1));
        }
        start = end;
    }
    None
}

fn squash(store: &Store, container: &Container, chain: &[Lower], level: u32) -> Result<(), OpsError> {
    let (Some(newest), Some(oldest)) = (chain.first(), chain.last()) else { return Ok(()) };
    let staged = store.create_layer()?;
    let out = open_dir(&staged.upper())?;
    let layers: Vec<OwnedFd> = chain.iter().map(|l| open_dir(&store.upper(&l.layer))).collect::<Result<_, _>>()?;
    let fds: Vec<_> = layers.iter().map(AsFd::as_fd).collect();
    let _size = diff::merge(&fds, out.as_fd(), &diff::Options::default())?;
    let row = Squash { last: newest.last, below: oldest.below, level, layer: staged.id() };
    store.add_squash(container.key, &row)?;
    staged.keep();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due() {
        let levels = |parts: &[(u32, usize)]| -> Vec<u32> {
            parts.iter().flat_map(|(level, n)| std::iter::repeat_n(*level, *n)).collect()
        };
        assert_eq!(due(&[]), None);
        assert_eq!(due(&levels(&[(0, 31)])), None);
        assert_eq!(due(&levels(&[(0, 32)])), Some((16, 32, 1)));
        assert_eq!(due(&levels(&[(0, 32), (1, 5)])), Some((16, 32, 1)));
        assert_eq!(due(&levels(&[(0, 20), (1, 31), (2, 1)])), None);
        assert_eq!(due(&levels(&[(0, 20), (1, 32)])), Some((36, 52, 2)));
    }

    /// A million generations are a stack of some hundred layers at most, far below the kernel's limit.
    #[test]
    fn stacks_stay_shallow() {
        let mut levels: Vec<u32> = Vec::new();
        let mut deepest = 0;
        for _ in 0..1_000_000 {
            levels.insert(0, 0);
            while let Some((from, to, next)) = due(&levels) {
                levels.splice(from..to, [next]);
            }
            deepest = deepest.max(levels.len());
        }
        assert!(deepest < 160, "{deepest}");
    }
}
