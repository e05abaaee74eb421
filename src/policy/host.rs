//! What [`super::harden`] has to know of the host, looked up before by who may look.

/// Facts about the host and about the paths that a configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// The version of Landlock; none where the kernel has none.
    pub landlock: Option<u32>,
}
