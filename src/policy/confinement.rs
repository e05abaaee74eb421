//! What holds for every exec of a container, decided when the container is created.

use std::path::PathBuf;

use oci_spec::runtime::Process;
use serde::{Deserialize, Serialize};

use super::files::Fence;
use super::process::Bounds;
use super::{Decision, process};
use crate::terms::Profile;

/// Kept in the container's record. Without one (`Default`) nothing is taken from an exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Confinement {
    /// The profile that the container was made with.
    pub profile: Profile,
    /// Destinations of bind mounts that every exec gets as an overlay, whose writes are in its layer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copy_on_write: Vec<PathBuf>,
    /// What a layer may take on disk, in bytes; none: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_bytes: Option<u64>,
    /// What fences its processes off from those of other execs, and limits where they write; none where the kernel can't.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// Paths that a file rule denies, for whoever mounts.
    #[serde(skip)]
    pub denied: Vec<PathBuf>,
    /// `MOUNT_ATTR_*` flags (mount_setattr(2)) of the root, the container's and each exec's.
    pub root_flags: u64,
    /// Its execs cannot ask for no layer by a variable.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub layered: bool,
    /// What its processes can have at most.
    pub(super) bounds: Bounds,
}

impl Default for Confinement {
    fn default() -> Confinement {
        Confinement {
            profile: Profile::Oci,
            copy_on_write: Vec::new(),
            layer_bytes: None,
            fence: None,
            denied: Vec::new(),
            root_flags: 0,
            layered: false,
            bounds: Bounds::default(),
        }
    }
}

impl Confinement {
    /// Hardens an exec's process; what was changed.
    pub fn harden(&self, process: &mut Process) -> Vec<Decision> {
        match self.profile {
            Profile::Strict => process::exec(self, process),
            Profile::Oci => Vec::new(),
        }
    }
}
