//! What [`super::harden`] has to know of the host, looked up before by who may look.

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
}
