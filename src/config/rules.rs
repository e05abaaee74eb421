//! What the configuration says of the profile `strict`: what it lets pass, and what it takes besides.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use oci_spec::runtime::Capability;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::terms::{Allow, Writes, is_system_call};

/// All of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    /// What a container may ask for though it loosens.
    pub allow: Vec<Allow>,
    /// Capabilities.
    pub capabilities: Capabilities,
    /// System calls.
    pub seccomp: Seccomp,
    /// Mounts.
    pub mounts: Mounts,
    /// Device files.
    pub devices: Devices,
    /// Kernel parameters.
    pub sysctl: Sysctl,
    /// Masked and read-only paths.
    pub paths: Paths,
    /// Limits where the engine sets none.
    pub limits: Limits,
    /// Files of the container that its programs may not touch.
    pub files: Files,
}

impl Rules {
    /// Whether `what` may be asked for.
    pub fn allows(&self, what: Allow) -> bool {
        self.allow.contains(&what)
    }
}

/// `[capabilities]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Capabilities {
    /// May be had besides the profile's, where the engine gives them: `CAP_…`.
    #[serde(deserialize_with = "capabilities")]
    pub add: Vec<String>,
    /// May not be had though the profile has them.
    #[serde(deserialize_with = "capabilities")]
    pub drop: Vec<String>,
}

/// `[seccomp]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Seccomp {
    /// Names of calls that pass besides those of the profile.
    #[serde(deserialize_with = "calls")]
    pub allow: Vec<String>,
    /// Names of calls that do not though the profile has them.
    #[serde(deserialize_with = "calls")]
    pub refuse: Vec<String>,
}

/// `[mounts]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mounts {
    /// Sources of the host that may be mounted though the profile refuses them.
    #[serde(deserialize_with = "paths")]
    pub allow: Vec<PathBuf>,
    /// Sources that may not be mounted, nor what lies below them.
    #[serde(deserialize_with = "paths")]
    pub refuse: Vec<PathBuf>,
    /// Sources, with what lies below them, whose programs can be executed.
    #[serde(deserialize_with = "paths")]
    pub exec: Vec<PathBuf>,
    /// What becomes of writes to bind mounts that are not read-only.
    pub default: Writes,
}

/// `[devices]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Devices {
    /// Devices that a container may have besides the standard ones, where its engine gives them.
    pub allow: Vec<Device>,
}

/// `[sysctl]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sysctl {
    /// Names, or the start of names with a `*` at the end.
    #[serde(deserialize_with = "names")]
    pub allow: Vec<String>,
}

/// `[paths]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Paths {
    /// Paths of the container that are covered, besides the profile's.
    #[serde(deserialize_with = "paths_below")]
    pub mask: Vec<PathBuf>,
    /// Paths of the container that are read-only, besides the profile's.
    #[serde(deserialize_with = "paths_below")]
    pub read_only: Vec<PathBuf>,
}

/// `[limits]`: what holds where the engine says nothing; none is no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// Processors' worth of time.
    #[serde(deserialize_with = "cpus", serialize_with = "or_none")]
    pub cpus: Option<f64>,
    /// Memory, swap included, bytes.
    #[serde(deserialize_with = "bytes", serialize_with = "bytes_or_none")]
    pub memory: Option<u64>,
    /// Processes and threads.
    #[serde(deserialize_with = "pids", serialize_with = "or_none")]
    pub pids: Option<i64>,
    /// What the layer of one exec may hold, bytes.
    #[serde(deserialize_with = "layer", serialize_with = "bytes_or_none")]
    pub layer: Option<u64>,
    /// Open files of a process; also the most that an engine may set.
    #[serde(deserialize_with = "nofile", serialize_with = "or_none")]
    pub nofile: Option<u64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { cpus: Some(2.0), memory: Some(2 << 30), pids: Some(256), layer: Some(5 << 30), nofile: Some(65_536) }
    }
}

/// `[files]`: paths of the container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Files {
    /// Cannot be read, written or executed.
    #[serde(deserialize_with = "paths_below")]
    pub deny: Vec<PathBuf>,
    /// Cannot be written.
    #[serde(deserialize_with = "paths")]
    pub read_only: Vec<PathBuf>,
    /// Nothing else can be written; none is no such limit.
    #[serde(deserialize_with = "paths_or_all", serialize_with = "all_or")]
    pub allow_write: Option<Vec<PathBuf>>,
    /// The kernel's audit log tells of refusals.
    pub audit: bool,
}

/// One entry of `devices.allow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// A device file of the host.
    Path(PathBuf),
    /// A kind of devices: `c 10:229 rwm`.
    Rule {
        /// `c`, `b`.
        kind: char,
        /// Major number; none is any.
        major: Option<u32>,
        /// Minor number; none is any.
        minor: Option<u32>,
        /// Of `r`, `w`, `m`.
        access: String,
    },
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        let wrong =
            || format!("{text:?} is no device: expected a path such as \"/dev/dri/renderD128\", or \"c 10:229 rwm\"");
        if text.starts_with('/') {
            return absolute(text).map(Device::Path);
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let [kind @ ("c" | "b"), numbers, access] = words[..] else { return Err(wrong()) };
        let number = |text: &str| match text {
            "*" => Ok(None),
            number => number.parse().map(Some).map_err(|_| wrong()),
        };
        let (major, minor) = numbers.split_once(':').ok_or_else(wrong)?;
        if access.is_empty() || !access.chars().all(|c| "rwm".contains(c)) {
            return Err(wrong());
        }
        let kind = if kind == "b" { 'b' } else { 'c' };
        Ok(Device::Rule { kind, major: number(major)?, minor: number(minor)?, access: access.to_owned() })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: &Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
        match self {
            Device::Path(path) => path.display().fmt(f),
            Device::Rule { kind, major, minor, access } => {
                write!(f, "{kind} {}:{} {access}", number(major), number(minor))
            }
        }
    }
}

impl Serialize for Device {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Device, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A number or a text, as text.
pub(super) struct Scalar(pub(super) String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
        struct AsText;
        impl Visitor<'_> for AsText {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a text")
            }
            fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(value.to_string()))
            }
            fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar(value.trim().to_owned()))
            }
        }
        deserializer.deserialize_any(AsText)
    }
}

impl Scalar {
    fn is_none(&self) -> bool {
        self.0 == "none" || self.0 == "0"
    }
}

fn cpus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let text = Scalar::deserialize(deserializer)?;
    let number = text.0.parse::<f64>().ok().filter(|n| (0.01..=100_000.0).contains(n));
    match number {
        Some(number) => Ok(Some(number)),
        None if text.is_none() => Ok(None),
        None => Err(D::Error::custom(format!(
            "{:?}: expected processors such as 2 or 0.5, at least 0.01; \"none\" or 0 is no limit",
            text.0
        ))),
    }
}

/// The kernel takes no more (`PID_MAX_LIMIT`).
const PIDS_MAX: i64 = 4_194_304;
/// What it takes to make a container.
const NOFILE_MIN: u64 = 32;

fn pids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    count(deserializer, 1, PIDS_MAX)
}

fn nofile<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    count(deserializer, NOFILE_MIN, u64::MAX)
}

fn count<'de, D: Deserializer<'de>, N: FromStr + PartialOrd + fmt::Display>(
    deserializer: D,
    least: N,
    most: N,
) -> Result<Option<N>, D::Error> {
    let text = Scalar::deserialize(deserializer)?;
    match text.0.parse::<N>().ok().filter(|n| (&least..=&most).contains(&n)) {
        Some(number) => Ok(Some(number)),
        None if text.is_none() => Ok(None),
        None => {
            let range = format!("{:?}: expected a whole number from {least} to {most}", text.0);
            Err(D::Error::custom(format!("{range}; \"none\" or 0 is no limit")))
        }
    }
}

/// Units of sizes: powers of 1024, as engines' command lines have them.
const UNITS: [(&str, u32); 4] = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];

/// Limits are signed in a configuration of a container.
const BYTES_MAX: u64 = i64::MAX as u64;

pub(super) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = Scalar::deserialize(deserializer)?;
    if text.is_none() {
        return Ok(None);
    }
    let digits = text.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.0.len());
    let shift = unit_of(&text.0[digits..]);
    let number = text.0[..digits].parse::<u64>().ok();
    let size =
        number.zip(shift).and_then(|(n, shift)| n.checked_mul(1 << shift)).filter(|n| (1..=BYTES_MAX).contains(n));
    size.map(Some).ok_or_else(|| D::Error::custom(no_size(&text.0, shift)))
}

/// What is wrong with a size, and what to write instead. `shift` is that of its unit where it is a whole number.
fn no_size(text: &str, shift: Option<u32>) -> String {
    let instead = match (fraction(text), shift) {
        (Some(n), _) => format!("write {:?}: expected a whole number of bytes", size(n)),
        (None, Some(_)) if text.starts_with(|c: char| c.is_ascii_digit()) => {
            format!("expected a size of at most {BYTES_MAX} bytes")
        }
        _ => "expected a size: a whole number of bytes".to_owned(),
    };
    format!(
        "{text:?}: {instead}, or one with K, M, G or T (powers of 1024), such as \"512M\"; \"none\" or 0 is no bound"
    )
}

/// The bytes of a size that is not whole, `1.5G`.
fn fraction(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse::<f64>().ok().filter(|_| text[..end].contains('.'))?;
    let bytes = (number * (1_u64 << unit_of(&text[end..])?) as f64).round();
    (1.0..9e18).contains(&bytes).then_some(bytes as u64)
}

/// A size as the file can have it, with the largest unit of which it is a whole number.
fn size(n: u64) -> String {
    UNITS
        .iter()
        .find(|(_, shift)| n.is_multiple_of(1 << shift))
        .map_or_else(|| n.to_string(), |(name, shift)| format!("{}{name}", n >> shift))
}

/// The power of two that a unit stands for: `G`, `GB` and `GiB` are the same.
fn unit_of(text: &str) -> Option<u32> {
    let unit = text.trim().to_ascii_uppercase();
    match unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit) {
        "" => Some(0),
        unit => UNITS.iter().find(|(name, _)| *name == unit).map(|(_, shift)| *shift),
    }
}

/// A whole number, `what` told of 0.
pub(super) fn whole<'de, D: Deserializer<'de>>(deserializer: D, what: &str) -> Result<u64, D::Error> {
    let text = Scalar::deserialize(deserializer)?.0;
    // What is kept in the database is signed.
    let number = text.parse::<u64>().ok().filter(|n| *n <= BYTES_MAX);
    number
        .ok_or_else(|| D::Error::custom(format!("{text:?}: expected a whole number such as 1000; write 0 for {what}")))
}

/// A layer takes some even where nothing is in it.
const LAYER_MIN: u64 = 64 << 10;

fn layer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match bytes(deserializer)? {
        Some(size) if size < LAYER_MIN => {
            Err(D::Error::custom(format!("{size}: expected at least 64KiB; \"none\" or 0 is no limit")))
        }
        size => Ok(size),
    }
}

pub(super) fn bytes_or_none<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        None => serializer.serialize_str("none"),
        Some(n) => match UNITS.iter().find(|(_, shift)| n % (1 << shift) == 0) {
            Some((name, shift)) => serializer.collect_str(&format_args!("{}{name}iB", n >> shift)),
            None => serializer.serialize_u64(*n),
        },
    }
}

fn or_none<S: Serializer, N: Serialize>(value: &Option<N>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        None => serializer.serialize_str("none"),
        Some(n) => n.serialize(serializer),
    }
}

fn paths_or_all<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<PathBuf>>, D::Error> {
    struct PathsOrAll;
    impl<'de> Visitor<'de> for PathsOrAll {
        type Value = Option<Vec<PathBuf>>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of paths, or \"all\"")
        }
        fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Self::Value, E> {
            if value == "all" { Ok(None) } else { Err(E::invalid_value(serde::de::Unexpected::Str(value), &self)) }
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
            paths(serde::de::value::SeqAccessDeserializer::new(list)).map(Some)
        }
    }
    deserializer.deserialize_any(PathsOrAll)
}

fn all_or<S: Serializer>(value: &Option<Vec<PathBuf>>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        None => serializer.serialize_str("all"),
        Some(paths) => paths.serialize(serializer),
    }
}

/// An absolute path, cleaned of doubled and trailing slashes.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if !path.is_absolute() || path.components().any(|c| c == std::path::Component::ParentDir) || text.contains('\0') {
        return Err(format!("{text:?}: expected an absolute path without \"..\""));
    }
    Ok(path.components().collect())
}

/// As [`absolute`], but for the root: without it there would be no container.
fn below_root(text: &str) -> Result<PathBuf, String> {
    let path = absolute(text)?;
    match path.parent() {
        Some(_) => Ok(path),
        None => Err(format!("{text:?}: expected a path below the root directory")),
    }
}

fn call(text: &str) -> Result<String, String> {
    let unknown = || format!("{text:?}: no system call has this name; expected one such as \"ptrace\"");
    is_system_call(text).then(|| text.to_owned()).ok_or_else(unknown)
}

/// The table, in which no call is both allowed and refused.
pub(super) fn seccomp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Seccomp, D::Error> {
    let table = Seccomp::deserialize(deserializer)?;
    match table.allow.iter().find(|name| table.refuse.contains(name)) {
        Some(both) => Err(D::Error::custom(format!("{both:?} is both allowed and refused: take it out of one list"))),
        None => Ok(table),
    }
}

fn name(text: &str) -> Result<String, String> {
    let stem = text.strip_suffix('*').unwrap_or(text);
    let fits = !stem.is_empty() && stem.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b));
    let wrong = || format!("{text:?}: expected a name such as \"net.core.somaxconn\", or \"net.ipv4.*\"");
    fits.then(|| text.to_owned()).ok_or_else(wrong)
}

fn capability(text: &str) -> Result<String, String> {
    let upper = text.to_ascii_uppercase();
    let name = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
    match serde_json::from_value::<Capability>(name.as_str().into()) {
        Ok(_) => Ok(name),
        Err(_) => Err(format!("{text:?}: expected a capability, such as \"CAP_NET_RAW\"")),
    }
}

/// Makes a reader of lists whose items are read one by one, so that a mistake is told with its line.
macro_rules! list {
    ($name:ident: $of:ty, $parse:path) => {
        fn $name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<$of>, D::Error> {
            struct Item($of);
            impl<'de> Deserialize<'de> for Item {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Item, D::Error> {
                    struct Read;
                    impl Visitor<'_> for Read {
                        type Value = Item;
                        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                            f.write_str("a string")
                        }
                        // An error of the visitor is told with the line of the item, a later one with that of the list.
                        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Item, E> {
                            $parse(text).map(Item).map_err(E::custom)
                        }
                    }
                    deserializer.deserialize_str(Read)
                }
            }
            Ok(Vec::<Item>::deserialize(deserializer)?.into_iter().map(|item| item.0).collect())
        }
    };
}

list!(paths: PathBuf, absolute);
list!(paths_below: PathBuf, below_root);
list!(calls: String, call);
list!(names: String, name);
list!(capabilities: String, capability);
