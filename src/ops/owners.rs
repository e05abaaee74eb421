//! Owners of changed paths as the container sees them: layers and the store have the host's ids.

use crate::diff::Change;
use crate::spec::Config;
use crate::spec::idmap::IdMaps;
use crate::store::Container;

/// The mappings of a container, by its bundle; none where it has none, or the bundle is gone: the ids are then the host's.
pub fn maps_of(container: &Container) -> Option<IdMaps> {
    Config::load(&container.bundle).ok().as_ref().and_then(IdMaps::of)
}

/// The changes with their owners as the container sees them.
pub fn as_inside(mut changes: Vec<Change>, maps: Option<&IdMaps>) -> Vec<Change> {
    if let Some(maps) = maps {
        changes.iter_mut().for_each(|change| (change.uid, change.gid) = maps.inside(change.uid, change.gid));
    }
    changes
}
