//! The use cases: the only place where runtime, store, diff and report meet. Each owns its order and its locks.

pub mod apply;
pub mod check;
pub mod commit;
pub mod create;
pub mod delete;
pub mod discard;
mod error;
pub mod exec;
#[cfg(test)]
mod fixture;
pub mod fsck;
pub mod gc;
pub mod history;
pub mod kill;
mod owners;
pub mod policy;
mod presence;
mod process;
mod publish;
pub mod recover;
pub mod retain;
pub mod rollback;
pub mod squash;
mod stack;
pub mod state;

pub use error::OpsError;
pub use process::{ProcessFlags, ProcessSource};

use crate::config::Config;
use crate::runtime::state::Record;
use crate::store::{Container, ContainerKey, Store, StoreError};

/// What is done in the store, and what failed after it: the store is the truth, so nothing of that undoes it or is to make
/// anybody do it again.
#[derive(Debug)]
#[must_use = "what failed is to be told"]
pub struct Done<T> {
    /// What was done.
    pub what: T,
    /// What could not be written where others read, or put away. `show` and `log` have it all the same; the next exec that ends
    /// writes HEAD again, and `gc` puts away.
    pub warning: Option<OpsError>,
}

/// What every use case needs.
#[derive(Debug)]
pub struct Context {
    /// The configuration.
    pub config: Config,
}

/// A container's row, by the key in its runtime's record; `None` if this store has none.
///
/// Keys are numbers from 1 on in every store: a key of another store's names some other container in this one.
fn row_of(store: &Store, record: &Record) -> Result<Option<Container>, OpsError> {
    let Some(key) = record.store_key else { return Ok(None) };
    match store.container(ContainerKey(key)) {
        Ok(row) => {
            Ok(Some(row)
                .filter(|row| row.id == record.id && row.bundle == record.bundle && row.rootfs == record.rootfs))
        }
        Err(StoreError::ContainerNotFound { .. } | StoreError::ContainerRemoved { .. }) => Ok(None),
        Err(err) => Err(err.into()),
    }
}

/// What `work` on a container comes to; where it fails since the container was deleted meanwhile, and its layers with it,
/// that is what is told.
fn unless_removed<T>(
    store: &Store,
    key: ContainerKey,
    work: impl FnOnce() -> Result<T, OpsError>,
) -> Result<T, OpsError> {
    work().map_err(|err| match store.container(key) {
        Err(removed @ (StoreError::ContainerNotFound { .. } | StoreError::ContainerRemoved { .. })) => removed.into(),
        // The first failure is the one to tell.
        _ => err,
    })
}

impl Context {
    /// Opens the store, which must be there: a mistyped path is not to become a new, empty one.
    pub fn store(&self) -> Result<Store, OpsError> {
        Ok(Store::open_existing(&self.config.store)?.keeping_events(self.config.keep_events))
    }

    /// Opens the store, and makes it if it is not there.
    pub fn made_store(&self) -> Result<Store, OpsError> {
        Ok(Store::open(&self.config.store)?.keeping_events(self.config.keep_events))
    }

    /// Opens the store, which must be there, for a use case that frees space.
    pub fn store_to_free(&self) -> Result<Store, OpsError> {
        Ok(Store::open_to_free(&self.config.store)?.keeping_events(self.config.keep_events))
    }

    /// Opens the store, finds the container that `prefix` names, and repairs what killed supervisors left of it.
    pub fn container(&self, prefix: &str) -> Result<(Store, Container), OpsError> {
        Self::find_in(self.store()?, prefix)
    }

    /// As [`Context::container`], for who only looks: also in a store that can't be written, where nothing is repaired.
    pub fn container_to_read(&self, prefix: &str) -> Result<(Store, Container), OpsError> {
        self.or_to_read(self.container(prefix), |store| {
            let container = store.find(prefix)?;
            Ok((store, container))
        })
    }

    /// Opens the store, which must be there, for who only looks.
    pub fn store_to_read(&self) -> Result<Store, OpsError> {
        self.or_to_read(self.store(), Ok)
    }

    /// What came of opening the store to write, or what `look` makes of it where it can only be read.
    fn or_to_read<T>(
        &self,
        opened: Result<T, OpsError>,
        look: impl FnOnce(Store) -> Result<T, OpsError>,
    ) -> Result<T, OpsError> {
        match opened {
            Err(OpsError::Store(err)) if err.is_read_only() => look(Store::open_to_read(&self.config.store)?),
            other => other,
        }
    }

    /// As [`Context::container`], for a use case that frees space or undoes what took it.
    pub fn container_to_free(&self, prefix: &str) -> Result<(Store, Container), OpsError> {
        Self::find_in(self.store_to_free()?, prefix)
    }

    fn find_in(store: Store, prefix: &str) -> Result<(Store, Container), OpsError> {
        let container = store.find(prefix)?;
        recover::container(&store, container.key)?;
        let container = store.container(container.key)?;
        Ok((store, container))
    }
}
