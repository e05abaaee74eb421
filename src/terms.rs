//! Words with a fixed set of values, and durations, as annotations, flags, the database and documents spell them; and how
//! many of something there are, as texts for people say it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Classify, Kind};

/// On cgroup v2, the group of a container's first process, below the container's. Those of execs have an id instead of a word.
pub const FIRST_GROUP: &str = "agentsbx-first";

/// The system calls, a line each but for comments: the name, then its number for each ABI.
pub const SYSTEM_CALLS: &str = include_str!("terms/system_calls.txt");

/// Whether a system call has this name.
pub fn is_system_call(name: &str) -> bool {
    let named = |line: &str| !line.starts_with('#') && line.split(' ').next() == Some(name);
    !name.is_empty() && SYSTEM_CALLS.lines().any(named)
}

/// A value that is none of the word's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {word} {value:?}: expected {expected}")]
pub struct UnknownValue {
    /// What was asked for, for people.
    pub word: &'static str,
    /// What was given.
    pub value: String,
    /// What could have been given.
    pub expected: String,
}

impl Classify for UnknownValue {
    fn kind(&self) -> Kind {
        Kind::InvalidInput
    }
}

/// How many of what: `1 generation`, `2 generations`, `0 processes`. `what` is in the singular.
pub fn count(n: impl TryInto<u64>, what: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    format!("{n} {}", noun(n, what))
}

/// The word as it is after a number, or before a list of so many: `generation` for one, else `generations`.
pub fn noun(n: impl TryInto<u64>, what: &str) -> String {
    let ending = match n.try_into() {
        Ok(1) => "",
        _ if what.ends_with('s') || what.ends_with("sh") => "es",
        _ => "s",
    };
    format!("{what}{ending}")
}

/// Declares an enum whose variants have fixed names, the same in text and in JSON.
macro_rules! word {
    ($(#[$doc:meta])* $name:ident ($word:literal) { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),* }

        impl $name {
            /// Every value, in the order of the declaration.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// Its name.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownValue;
            fn from_str(s: &str) -> Result<Self, UnknownValue> {
                match s {
                    $($text => Ok($name::$variant),)*
                    _ => Err(UnknownValue { word: $word, value: s.to_owned(), expected: [$($text),*].join(", ") }),
                }
            }
        }
    };
}

word! {
    /// What is to become of an exec's layer.
    LayerMode ("layer mode") {
        /// Commit it, however the command ends.
        Commit = "commit",
        /// Commit it if the command exits with 0, else drop it.
        CommitOnSuccess = "commit-on-success",
        /// Drop it.
        Discard = "discard",
        /// Hold it for a later decision.
        Hold = "hold",
        /// Run without a layer, in the first process's own mount namespace.
        Shared = "shared",
    }
}

word! {
    /// What became of an exec's layer.
    Disposition ("disposition") {
        /// It is a generation.
        Committed = "committed",
        /// It was dropped.
        Discarded = "discarded",
        /// It waits for `commit` or `discard`.
        Held = "held",
        /// Held, because to commit it would lose an update.
        Conflict = "conflict",
        /// Nothing changed: there is no layer.
        Empty = "empty",
        /// Its supervisor died; what there is of it is held.
        Aborted = "aborted",
        /// It ran without one.
        Shared = "shared",
    }
}

#[expect(clippy::derivable_impls, reason = "the macro above derives for all words alike")]
impl Default for Profile {
    fn default() -> Profile {
        Profile::Strict
    }
}

impl Disposition {
    /// Whether the layer waits for a decision.
    pub const fn is_held(self) -> bool {
        matches!(self, Disposition::Held | Disposition::Conflict | Disposition::Aborted)
    }
}

word! {
    /// What is done with processes that outlive an exec's command.
    Orphans ("orphans policy") {
        /// They are killed.
        Kill = "kill",
        /// The exec ends when they have.
        Wait = "wait",
    }
}

word! {
    /// How much of what an engine asks for a container gets.
    Profile ("profile") {
        /// Hardened: what model-written code needs, and no more.
        Strict = "strict",
        /// The configuration exactly as given.
        Oci = "oci",
    }
}

word! {
    /// What the configuration's `allow` lets a container ask for, though it loosens the profile `strict`.
    Allow ("word of allow") {
        /// The annotation `dev.agentsbx.profile` may say `oci`.
        Profile = "profile",
        /// The host's network.
        HostNetwork = "host-network",
        /// The host's processes.
        HostPid = "host-pid",
        /// The host's System V IPC and message queues.
        HostIpc = "host-ipc",
        /// The host's name.
        HostUts = "host-uts",
        /// The host's mounts.
        HostMount = "host-mount",
        /// The host's cgroups: a container's `/proc/self/cgroup` shows where it is among them.
        HostCgroup = "host-cgroup",
        /// Mounts that see what is mounted on the host later, and pass on what is mounted in the container.
        MountPropagation = "mount-propagation",
        /// The annotation `dev.agentsbx.mounts` may make mounts executable.
        MountExec = "mount-exec",
        /// The annotation `dev.agentsbx.mounts` may leave mounts writable where `mounts.default` is not `as-given`.
        MountWrite = "mount-write",
        /// Execs without a layer, by variable or annotation.
        SharedLayer = "shared-layer",
    }
}

word! {
    /// What becomes of writes to a bind mount that its engine gives as writable.
    #[derive(Default)]
    Writes ("default of mounts") {
        /// They go to the host's directory.
        #[default]
        AsGiven = "as-given",
        /// They are refused.
        ReadOnly = "ro",
        /// They go to layers.
        CopyOnWrite = "cow",
    }
}

word! {
    /// How a command ended.
    EndKind ("end") {
        /// By itself, with a code.
        Exited = "exited",
        /// By a signal.
        Signaled = "signaled",
        /// Because its time was up.
        Timeout = "timeout",
        /// Because the memory that it may use was used up.
        Oom = "oom",
        /// The runtime could not start it, lost it, or ended it as its layer was over its limit; the message says which.
        Error = "error",
    }
}

word! {
    /// A bound of a container's history: a key of `[retention]`.
    #[derive(PartialOrd, Ord)]
    Bound ("bound of history") {
        /// How many generations.
        Generations = "generations",
        /// How much their layers take.
        Bytes = "bytes",
        /// How old they are.
        Age = "age",
    }
}

/// How much of a container's history is kept; none is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Generations.
    pub generations: Option<u64>,
    /// Bytes of their layers, as recorded when they were committed.
    pub bytes: Option<u64>,
    /// Time since they were committed.
    pub age: Option<Duration>,
}

impl Retention {
    /// Whether there is no bound at all.
    pub fn is_unbounded(&self) -> bool {
        *self == Retention::default()
    }
}

/// How long something is kept; `None` is for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age(pub Option<Duration>);

impl FromStr for Age {
    type Err = UnknownValue;

    /// Seconds, or a number with `s`, `m`, `h` or `d`; `0` is for ever.
    fn from_str(s: &str) -> Result<Self, UnknownValue> {
        duration(s, &[("", 1_000), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)])
            .map(Age)
            .ok_or_else(|| UnknownValue {
                word: "age",
                value: s.to_owned(),
                expected: "seconds, or a number with s, m, h or d (such as 12h or 30d); write 0 for no bound".into(),
            })
    }
}

/// Reads a number with one of `units`, each with its milliseconds; 0 is none. `None` where it is nothing of the kind.
fn duration(text: &str, units: &[(&str, u64)]) -> Option<Option<Duration>> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let (_, millis) = units.iter().find(|(unit, _)| *unit == &text[digits..])?;
    let total = number.checked_mul(*millis)?;
    Some((total > 0).then(|| Duration::from_millis(total)))
}

/// How long a command may run; `None` is for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeout(pub Option<Duration>);

impl FromStr for Timeout {
    type Err = UnknownValue;

    /// Seconds, or a number with `ms`, `s`, `m` or `h`; `0` is for ever.
    fn from_str(s: &str) -> Result<Self, UnknownValue> {
        duration(s, &[("ms", 1), ("", 1_000), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)]).map(Timeout).ok_or_else(
            || UnknownValue {
                word: "timeout",
                value: s.to_owned(),
                expected: "seconds, or a number with ms, s, m or h (such as 90 or 5m); write 0 for none".into(),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_text_and_json() {
        for mode in LayerMode::ALL {
            assert_eq!(mode.as_str().parse::<LayerMode>().unwrap(), *mode);
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.as_str());
        }
        assert_eq!(
            "x".parse::<LayerMode>().unwrap_err().to_string(),
            r#"invalid layer mode "x": expected commit, commit-on-success, discard, hold, shared"#
        );
    }

    #[test]
    fn one_and_many() {
        assert_eq!(
            (count(1, "layer"), count(0, "layer"), count(2, "layer")),
            ("1 layer".into(), "0 layers".into(), "2 layers".into())
        );
        assert_eq!((count(2usize, "process"), count(1u32, "process")), ("2 processes".into(), "1 process".into()));
        assert_eq!((noun(1, "squash"), noun(3, "squash")), ("squash".into(), "squashes".into()));
    }

    #[test]
    fn timeouts() {
        for (text, want) in [
            ("0", None),
            ("0s", None),
            ("90", Some(90_000)),
            ("5m", Some(300_000)),
            ("1h", Some(3_600_000)),
            ("250ms", Some(250)),
        ] {
            assert_eq!(text.parse::<Timeout>().unwrap(), Timeout(want.map(Duration::from_millis)), "{text}");
        }
        for bad in ["", "m", "-1", "1.5", "5 m", "1d", "99999999999999999999", "18446744073709551615h"] {
            assert!(bad.parse::<Timeout>().is_err(), "{bad}");
        }
        for (text, want) in
            [("0", None), ("0d", None), ("90", Some(90)), ("12h", Some(43_200)), ("30d", Some(2_592_000))]
        {
            assert_eq!(text.parse::<Age>().unwrap(), Age(want.map(Duration::from_secs)), "{text}");
        }
        for bad in ["", "d", "-1d", "1.5d", "5ms", "1w", "9999999999999999d"] {
            assert!(bad.parse::<Age>().is_err(), "{bad}");
        }
    }
}
