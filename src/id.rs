//! Identifiers, parsed once where they come in and trusted from there on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Classify, Kind};

/// The longest container id, in bytes.
const ID_MAX: usize = 1024;

/// What is wrong with an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// A container id that runc refuses too; it begins with its text.
    #[error("invalid container ID format: 1 to {ID_MAX} letters, digits, _ + - and . (but not . or .. alone)")]
    Container,
    /// Neither a ULID nor an engine's name for an exec.
    #[error("invalid exec id {0:?}: expected a ULID such as 01JDVW3K6Q8ZJ4M2T9X5R7C1AB")]
    Exec(String),
    /// Not a layer's id.
    #[error("invalid layer id {0:?}")]
    Layer(String),
    /// Not a generation's number.
    #[error("invalid generation {0:?}: expected a number, @ or @-N")]
    Generation(String),
}

impl Classify for IdError {
    fn kind(&self) -> Kind {
        Kind::InvalidInput
    }
}

/// A container's id: 1 to 1024 of `[A-Za-z0-9_+.-]`, not `.` or `..` (runc's rule, with a bound).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

impl ContainerId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ContainerId {
    type Err = IdError;
    fn from_str(s: &str) -> Result<Self, IdError> {
        let fits = !s.is_empty()
            && s.len() <= ID_MAX
            && s != "."
            && s != ".."
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"_+-.".contains(&b));
        if fits { Ok(ContainerId(s.to_owned())) } else { Err(IdError::Container) }
    }
}

impl TryFrom<String> for ContainerId {
    type Error = IdError;
    fn try_from(s: String) -> Result<Self, IdError> {
        s.parse()
    }
}

impl From<ContainerId> for String {
    fn from(id: ContainerId) -> String {
        id.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! ulid_id {
    ($(#[$doc:meta])* $name:ident, $err:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(ulid::Ulid);

        impl $name {
            /// A new id: 48 bits of time in milliseconds, 80 random bits; later ids sort after earlier ones.
            #[allow(clippy::new_without_default)]
            pub fn new() -> Self {
                $name(ulid::Ulid::generate())
            }

            /// When it was made: milliseconds since 1970 UTC.
            pub fn made_ms(&self) -> i64 {
                i64::try_from(self.0.timestamp_ms()).unwrap_or(i64::MAX)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(s: &str) -> Result<Self, IdError> {
                ulid::Ulid::from_string(s).map($name).map_err(|_| IdError::$err(s.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(s: String) -> Result<Self, IdError> {
                s.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

ulid_id!(
    /// An exec's id, a ULID of 26 characters.
    ExecId,
    Exec
);
ulid_id!(
    /// A layer's id, a ULID of 26 characters; also the name of its directory.
    LayerId,
    Layer
);

/// A generation of one container: 0 is the root filesystem as created; numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Generation(pub u64);

impl Generation {
    /// The root filesystem as created.
    pub const ZERO: Generation = Generation(0);
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A generation as a person names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revision {
    /// By its number.
    Number(Generation),
    /// `@` is HEAD (0), `@-N` its Nth parent.
    Ancestor(u64),
}

impl FromStr for Revision {
    type Err = IdError;
    fn from_str(s: &str) -> Result<Self, IdError> {
        let bad = || IdError::Generation(s.to_owned());
        let digits = |t: &str| -> Result<u64, IdError> {
            if t.is_empty() || !t.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad());
            }
            t.parse().map_err(|_| bad())
        };
        match s.strip_prefix('@') {
            Some("") => Ok(Revision::Ancestor(0)),
            Some(rest) => digits(rest.strip_prefix('-').ok_or_else(bad)?).map(Revision::Ancestor),
            None => digits(s).map(|n| Revision::Number(Generation(n))),
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Revision::Number(g) => g.fmt(f),
            Revision::Ancestor(0) => f.write_str("@"),
            Revision::Ancestor(n) => write!(f, "@-{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids() {
        for good in ["a", "...", "74f1a4cb3801", "A_b+c-d.e"] {
            assert!(good.parse::<ContainerId>().is_ok(), "{good:?}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "a\n", "é", &"x".repeat(1025)] {
            assert_eq!(bad.parse::<ContainerId>(), Err(IdError::Container), "{bad:?}");
        }
    }

    #[test]
    fn revisions() {
        let number = |n| Ok(Revision::Number(Generation(n)));
        for (text, want) in
            [("0", number(0)), ("17", number(17)), ("@", Ok(Revision::Ancestor(0))), ("@-3", Ok(Revision::Ancestor(3)))]
        {
            assert_eq!(text.parse::<Revision>(), want, "{text:?}");
            assert_eq!(text.parse::<Revision>().unwrap().to_string(), text);
        }
        for bad in ["", "-1", "+1", "@1", "@--1", "@-", "x", "99999999999999999999999"] {
            assert!(bad.parse::<Revision>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ulids_sort_by_time_and_round_trip() {
        let id = ExecId::new();
        assert_eq!(id.to_string().len(), 26);
        assert_eq!(id.to_string().parse::<ExecId>().unwrap(), id);
        assert!("".parse::<LayerId>().is_err());
    }
}
