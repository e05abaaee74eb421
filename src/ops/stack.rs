//! From the store's chain to open directories: what an exec at some generation sees below its own layer.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::OpsError;
use crate::diff::apply::Mount;
use crate::diff::{Graft, Options, PathBytes, View};
use crate::id::Generation;
use crate::rootfs::view::{self, Submount};
use crate::rootfs::{self, cow::Cow};
use crate::runtime::Record;
use crate::store::{Container, ContainerKey, Lower, Store};

/// What shows below a layer: the layers under it and the container's root, and what its copy-on-write mounts show.
#[derive(Debug)]
pub struct Lowers {
    /// The root's.
    pub root: rootfs::Lowers,
    /// The mounts; what is above comes first.
    pub cows: Vec<Cow>,
}

impl Lowers {
    /// Opens a chain of the container, newest first.
    pub fn open(store: &Store, container: &Container, chain: &[Lower], cows: Vec<Cow>) -> Result<Lowers, OpsError> {
        Ok(Lowers { root: rootfs::Lowers::open(&uppers(store, chain), &container.rootfs)?, cows })
    }

    /// The copy-on-write mounts, with the host's directories.
    pub fn mounts(&self) -> Vec<Mount<'_>> {
        self.cows.iter().map(|cow| Mount { at: path_of(cow), dir: cow.source(), path: cow.source_path() }).collect()
    }

    /// For the comparison.
    pub fn view(&self) -> View<'_> {
        View { layers: self.root.fds(), grafts: self.cows.iter().map(graft).collect() }
    }
}

fn graft(cow: &Cow) -> Graft<'_> {
    Graft { at: path_of(cow), base: cow.base().to_vec() }
}

fn path_of(cow: &Cow) -> PathBytes {
    PathBytes::new(cow.at.as_os_str().as_bytes())
}

/// How the container's layers are compared: what was only made to mount a volume on is no change.
pub fn options(mounts: &[Submount]) -> Options {
    let ignore = mounts.iter().map(|mount| PathBytes::new(mount.at().as_os_str().as_bytes())).collect();
    Options { ignore, ..Options::default() }
}

/// The same for a container that is looked at from outside. One that has ended has no mounts to ask for.
pub fn options_of(container: &Container) -> Options {
    let record = Record::load(&container.root, &container.id).ok();
    let alive = record.filter(|record| matches!(record.init(), Ok(Some(_))));
    let mounts = alive.and_then(|record| view::submounts(record.pid, &record.confinement.copy_on_write).ok());
    options(&mounts.unwrap_or_default())
}

/// The uppers of a chain, newest first.
fn uppers(store: &Store, chain: &[Lower]) -> Vec<PathBuf> {
    chain.iter().map(|lower| store.upper(&lower.layer)).collect()
}

/// Opens a container's copy-on-write mounts.
pub fn cows(store: &Store, key: ContainerKey) -> Result<Vec<Cow>, OpsError> {
    let open = |mount: crate::store::CowMount| {
        let first = store.upper(&mount.layer);
        Cow::open(&mount.destination, mount.flags, &first, &mount.source, mount.identity)
    };
    Ok(store.cow_mounts(key)?.into_iter().map(open).collect::<Result<_, _>>()?)
}

/// Opens what shows at generation `at`: its layers, newest first, the container's root, its copy-on-write mounts.
pub fn lowers_at(store: &Store, container: &Container, at: Generation) -> Result<Lowers, OpsError> {
    let chain = store.mount_chain(container.key, at)?;
    Lowers::open(store, container, &chain, cows(store, container.key)?)
}
