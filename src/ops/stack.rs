//! From the store's chain to open directories: what an exec at some generation sees below its own layer.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::OpsError;
use crate::diff::{Options, PathBytes};
use crate::id::Generation;
use crate::rootfs::{Lowers, view};
use crate::runtime::Record;
use crate::store::{Container, Lower, Store};

/// How the container's layers are compared: what was only made to mount a volume on is no change.
pub fn options(mounts: &[PathBuf]) -> Options {
    let ignore = mounts.iter().map(|path| PathBytes::new(path.as_os_str().as_bytes())).collect();
    Options { ignore, ..Options::default() }
}

/// The same for a container that is looked at from outside. One that has ended has no mounts to ask for.
pub fn options_of(container: &Container) -> Options {
    let record = Record::load(&container.root, &container.id).ok();
    let alive = record.filter(|record| matches!(record.init(), Ok(Some(_))));
    options(&alive.and_then(|record| view::submounts(record.pid).ok()).unwrap_or_default())
}

/// The uppers of a chain, newest first.
pub fn uppers(store: &Store, chain: &[Lower]) -> Vec<PathBuf> {
    chain.iter().map(|lower| store.upper(&lower.layer)).collect()
}

/// Opens what shows at generation `at`: its layers, newest first, and the container's root.
pub fn lowers_at(store: &Store, container: &Container, at: Generation) -> Result<Lowers, OpsError> {
    let chain = store.mount_chain(container.key, at)?;
    Ok(Lowers::open(&uppers(store, &chain), &container.rootfs)?)
}
