//! What [`super::harden`] has to know of the host, looked up before by who may look.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Facts about the host and about the paths that a configuration names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Host {
    /// The memory controller counts what is swapped out, so that it can be limited.
    pub swap_accounting: bool,
    /// How many processors' worth of time the cgroups above the container's have, where they have a limit that a group
    /// below may not exceed (v1).
    pub cpu_ceiling: Option<f64>,
    /// The version of Landlock; none where the kernel has none.
    pub landlock: Option<u32>,
    /// The kinds of namespaces that the configuration joins by a path that leads to the host's own.
    pub namespaces: Vec<String>,
    /// The sources of bind mounts, by the mount's place in `mounts`.
    pub sources: BTreeMap<usize, Source>,
    /// The root filesystem's directory, with what is mounted below it.
    pub root: Option<Source>,
    /// Where mounts lead to inside the root filesystem, by the mount's place in `mounts`: symbolic links of the image on the
    /// way replaced.
    pub destinations: BTreeMap<usize, PathBuf>,
    /// Directories of this runtime (the store, the state directories), canonical: no container gets at them.
    pub own: Vec<PathBuf>,
    /// The most open files that this process may allow another.
    pub nofile: Option<u64>,
    /// The devices that `devices.allow` names by path, where the configuration asks for any.
    pub devices: Vec<Node>,
}

/// What a bind mount's source is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where it is, without symbolic links.
    pub path: PathBuf,
    /// The symbolic links on the way that the configuration names.
    pub links: Vec<Link>,
    /// Its type.
    pub kind: SourceKind,
    /// The filesystem's magic number, `f_type` of statfs(2).
    pub filesystem: i64,
    /// What is mounted below it and comes with it: where on the host, and the filesystem's type.
    pub below: Vec<(PathBuf, String)>,
}

/// A symbolic link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Where it is: its directory is canonical.
    pub at: PathBuf,
    /// What it leads to, canonical.
    pub to: PathBuf,
}

/// A file's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A socket or a pipe: somebody listens at its other end.
    Channel,
    /// A device file.
    Device(Node),
}

/// A device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// A block device, else a character device.
    pub block: bool,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}
