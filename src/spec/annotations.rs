//! The names of our annotations: the only place where they are spelt.

/// What becomes of an exec's layer: `commit`, `commit-on-success`, `discard`, `hold`, `shared`.
pub const LAYER: &str = "dev.agentsbx.layer";
/// When committed layers are applied to the container's own root filesystem: `idle`, `never`.
pub const SETTLE: &str = "dev.agentsbx.settle";
/// How long an exec may take: seconds, or a number with `s`, `m`, `h`; `0` is no limit.
pub const TIMEOUT: &str = "dev.agentsbx.timeout";
/// What becomes of processes that an exec leaves running: `kill`, `wait`.
pub const ORPHANS: &str = "dev.agentsbx.orphans";
/// What this version can't do, with the values that ask for nothing beyond what it does. A container that asks for more is
/// refused: it would run with less than its owner believes.
pub const RESERVED: &[(&str, &[&str])] = &[(SETTLE, &["never"]), (SNAPSHOT, &[]), (LAYERS, &[]), (HOOKS, &[])];

/// What the names of all begin with.
pub const PREFIX: &str = "dev.agentsbx.";
/// All that may be asked for.
pub const SETTABLE: &[&str] = &[LAYER, TIMEOUT, ORPHANS, PROFILE, MOUNTS, FILES];
/// What we write.
const WRITTEN: &[&str] = &[GENERATION, DIFF];

/// Whether there is an annotation of this name. What we write is known too: a bundle can be used again.
pub fn is_known(name: &str) -> bool {
    SETTABLE.contains(&name) || WRITTEN.contains(&name) || RESERVED.iter().any(|(reserved, _)| *reserved == name)
}

/// Name of the snapshot to start from.
pub const SNAPSHOT: &str = "dev.agentsbx.snapshot";
/// Names of snapshots to put read-only under the root filesystem.
pub const LAYERS: &str = "dev.agentsbx.layers";
/// JSON: hooks around snapshot and restore.
pub const HOOKS: &str = "dev.agentsbx.hooks";
/// Hardening profile: `strict`, `oci`.
pub const PROFILE: &str = "dev.agentsbx.profile";
/// JSON: what becomes of bind mounts: `ro`, `rw`, `cow`, `exec` for each destination.
pub const MOUNTS: &str = "dev.agentsbx.mounts";
/// JSON: path rules, `deny`, `readOnly`, `allowWrite`, each a list of absolute paths.
pub const FILES: &str = "dev.agentsbx.files";
/// Written by us: the generation that HEAD is.
pub const GENERATION: &str = "dev.agentsbx.generation";
/// Written by us: the last ended exec's result document, bounded in size.
pub const DIFF: &str = "dev.agentsbx.diff";
