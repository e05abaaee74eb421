//! From the store's chain to open directories: what an exec at some generation sees below its own layer.

use std::path::PathBuf;

use super::OpsError;
use crate::id::Generation;
use crate::rootfs::Lowers;
use crate::store::{Container, Lower, Store};

/// The uppers of a chain, newest first.
pub fn uppers(store: &Store, chain: &[Lower]) -> Vec<PathBuf> {
    chain.iter().map(|lower| store.upper(&lower.layer)).collect()
}

/// Opens what shows at generation `at`: its layers, newest first, and the container's root.
pub fn lowers_at(store: &Store, container: &Container, at: Generation) -> Result<Lowers, OpsError> {
    let chain = store.mount_chain(container.key, at)?;
    Ok(Lowers::open(&uppers(store, &chain), &container.rootfs)?)
}
