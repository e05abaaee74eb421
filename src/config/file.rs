//! The file: TOML, read into values of the right type; a mistake is told with its line and its key.

use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::rules::{
    Capabilities, Devices, Files, Limits, Mounts, Paths, Rules, Scalar, Seccomp, Sysctl, bytes, bytes_or_none, seccomp,
    whole,
};
use super::{Config, ConfigError, DEFAULT_KEEP_EVENTS, DEFAULT_RETENTION, DEFAULT_TIMEOUT};
use crate::terms::{self, Age, Allow, LayerMode, Orphans, Profile, Timeout};

/// All keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct File {
    pub(super) profile: Profile,
    #[serde(deserialize_with = "read_store")]
    pub(super) store: Option<PathBuf>,
    pub(super) allow: Vec<Allow>,
    pub(super) exec: Exec,
    pub(super) log: Log,
    pub(super) retention: Retention,
    pub(super) capabilities: Capabilities,
    #[serde(deserialize_with = "seccomp")]
    pub(super) seccomp: Seccomp,
    pub(super) mounts: Mounts,
    pub(super) devices: Devices,
    pub(super) sysctl: Sysctl,
    pub(super) paths: Paths,
    pub(super) limits: Limits,
    pub(super) files: Files,
}

impl Default for File {
    fn default() -> File {
        let rules = Rules::default();
        File {
            profile: Profile::Strict,
            store: None,
            allow: rules.allow,
            exec: Exec::default(),
            log: Log::default(),
            retention: Retention::default(),
            capabilities: rules.capabilities,
            seccomp: rules.seccomp,
            mounts: rules.mounts,
            devices: rules.devices,
            sysctl: rules.sysctl,
            paths: rules.paths,
            limits: rules.limits,
            files: rules.files,
        }
    }
}

/// `[exec]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Exec {
    layer: LayerMode,
    #[serde(deserialize_with = "read_timeout", serialize_with = "write_timeout")]
    timeout: Timeout,
    orphans: Orphans,
}

impl Default for Exec {
    fn default() -> Exec {
        Exec { layer: LayerMode::Commit, timeout: Timeout(Some(DEFAULT_TIMEOUT)), orphans: Orphans::Kill }
    }
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Log {
    #[serde(deserialize_with = "read_keep")]
    keep: u64,
}

impl Default for Log {
    fn default() -> Log {
        Log { keep: DEFAULT_KEEP_EVENTS }
    }
}

/// `[retention]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Retention {
    #[serde(deserialize_with = "read_generations")]
    generations: u64,
    #[serde(deserialize_with = "bytes", serialize_with = "bytes_or_none")]
    bytes: Option<u64>,
    #[serde(deserialize_with = "read_age", serialize_with = "write_age")]
    age: Age,
}

impl Default for Retention {
    fn default() -> Retention {
        let terms::Retention { generations, bytes, age } = DEFAULT_RETENTION;
        Retention { generations: generations.unwrap_or(0), bytes, age: Age(age) }
    }
}

impl Retention {
    fn bounds(&self) -> terms::Retention {
        let generations = Some(self.generations).filter(|n| *n > 0);
        terms::Retention { generations, bytes: self.bytes, age: self.age.0 }
    }
}

fn read_store<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    match path.is_absolute() {
        true => Ok(Some(path)),
        false => Err(D::Error::custom(format!("{path:?}: expected an absolute path"))),
    }
}

fn read_keep<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    whole(deserializer, "all")
}

fn read_generations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    whole(deserializer, "no bound")
}

fn read_age<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Age, D::Error> {
    Scalar::deserialize(deserializer)?.0.parse().map_err(D::Error::custom)
}

fn write_age<S: Serializer>(age: &Age, serializer: S) -> Result<S::Ok, S::Error> {
    const DAY: u64 = 86_400;
    match age.0.unwrap_or_default().as_secs() {
        days if days > 0 && days % DAY == 0 => serializer.collect_str(&format_args!("{}d", days / DAY)),
        seconds => serializer.serialize_u64(seconds),
    }
}

fn read_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timeout, D::Error> {
    Scalar::deserialize(deserializer)?.0.parse().map_err(D::Error::custom)
}

fn write_timeout<S: Serializer>(timeout: &Timeout, serializer: S) -> Result<S::Ok, S::Error> {
    let whole = timeout.0.unwrap_or_default();
    match whole.subsec_millis() {
        0 => serializer.serialize_u64(whole.as_secs()),
        _ => serializer.collect_str(&format_args!("{}ms", whole.as_millis())),
    }
}

impl File {
    /// Reads `text`, which is the content of `path`.
    pub(super) fn parse(text: &str, path: &Path) -> Result<File, ConfigError> {
        if text.is_empty() {
            return Ok(File::default());
        }
        toml::from_str(text).map_err(|err| {
            let at = err.span().map_or(0, |span| span.start.min(text.len()));
            let words = err.message().trim().replace('\n', ": ");
            ConfigError::Parse { path: path.to_owned(), place: place(text, at), text: words }
        })
    }

    /// The configuration that it makes, with what was decided about the store.
    pub(super) fn config(self, store: PathBuf) -> Config {
        Config {
            store,
            layer: self.exec.layer,
            timeout: self.exec.timeout,
            orphans: self.exec.orphans,
            keep_events: self.log.keep,
            retention: self.retention.bounds(),
            profile: self.profile,
            rules: Rules {
                allow: self.allow,
                capabilities: self.capabilities,
                seccomp: self.seccomp,
                mounts: self.mounts,
                devices: self.devices,
                sysctl: self.sysctl,
                paths: self.paths,
                limits: self.limits,
                files: self.files,
            },
        }
    }
}

/// Line and key of the byte at `at`, for people: the last key that is written up to there, in the last table.
fn place(text: &str, at: usize) -> String {
    let end = text[at..].find('\n').map_or(text.len(), |n| at + n);
    let (mut table, mut key) = ("", "");
    for line in text[..end].lines().map(str::trim) {
        if let Some(name) =
            line.strip_prefix('[').and_then(|rest| rest.strip_prefix('[').unwrap_or(rest).split(']').next())
        {
            // An inner list that stands on a line of its own is none.
            if name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
                (table, key) = (name, "");
            }
        } else if let Some((name, _)) = line.split_once('=')
            && name.trim().bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        {
            key = name.trim();
        }
    }
    let number = text[..at].matches('\n').count() + 1;
    match (table, key) {
        ("", "") => format!("line {number}"),
        ("", one) | (one, "") => format!("line {number}, {one}"),
        (table, key) => format!("line {number}, {table}.{key}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::rules::Device;
    use crate::terms::Writes;

    fn parse(text: &str) -> Result<Config, String> {
        let file = File::parse(text, Path::new("/c.toml")).map_err(|err| err.to_string())?;
        Ok(file.config("/s".into()))
    }

    #[test]
    fn values() {
        let got = parse(
            "profile = 'oci'\nallow = ['profile', 'host-network']\n\
             [exec]\nlayer = 'hold'\ntimeout = '5m'\norphans = 'wait'\n[log]\nkeep = 0\n\
             [retention]\ngenerations = 7\nbytes = '1G'\nage = '2d'\n\
             [capabilities]\nadd = ['net_raw', 'CAP_SYS_PTRACE']\ndrop = ['CAP_CHOWN']\n\
             [seccomp]\nallow = ['ptrace']\nrefuse = ['socket']\n\
             [mounts]\nallow = ['/etc//ssl/']\nrefuse = ['/data']\nexec = ['/opt']\ndefault = 'cow'\n\
             [devices]\nallow = ['/dev/fuse', 'c 10:* rw']\n[sysctl]\nallow = ['kernel.x', 'net.*']\n\
             [paths]\nmask = ['/proc/x']\nread-only = ['/proc/y']\n\
             [limits]\ncpus = 0.5\nmemory = '512M'\npids = 'none'\nlayer = 0\nnofile = 1024\n\
             [files]\ndeny = ['/a']\nread-only = ['/b']\nallow-write = ['/c']\naudit = true\n",
        )
        .unwrap();
        assert_eq!((got.profile, got.layer, got.orphans), (Profile::Oci, LayerMode::Hold, Orphans::Wait));
        assert_eq!((got.timeout, got.keep_events), (Timeout(Some(Duration::from_secs(300))), 0));
        let age = Some(Duration::from_secs(2 * 86_400));
        let bounds = terms::Retention { generations: Some(7), bytes: Some(1 << 30), age };
        assert_eq!(got.retention, bounds);
        let none = parse("[retention]\ngenerations = 0\nbytes = 'none'\nage = 0\n").unwrap().retention;
        assert!(none.is_unbounded(), "{none:?}");
        let rules = got.rules;
        assert!(rules.allows(Allow::HostNetwork) && !rules.allows(Allow::HostPid));
        assert_eq!(rules.capabilities.add, ["CAP_NET_RAW", "CAP_SYS_PTRACE"]);
        assert_eq!(rules.mounts.allow, [Path::new("/etc/ssl")]);
        assert_eq!(rules.mounts.default, Writes::CopyOnWrite);
        let any = Device::Rule { kind: 'c', major: Some(10), minor: None, access: "rw".into() };
        assert_eq!(rules.devices.allow, [Device::Path("/dev/fuse".into()), any]);
        let limits = Limits { cpus: Some(0.5), memory: Some(512 << 20), pids: None, layer: None, nofile: Some(1024) };
        assert_eq!(rules.limits, limits);
        assert_eq!(rules.files.allow_write, Some(vec![PathBuf::from("/c")]));
        assert!(rules.files.audit);
        assert_eq!(parse("[files]\nallow-write = []\n").unwrap().rules.files.allow_write, Some(Vec::new()));
        assert_eq!(parse("[exec]\ntimeout = 7\n").unwrap().timeout, Timeout(Some(Duration::from_secs(7))));
        assert_eq!(parse("[limits]\nmemory = '2GiB'\n").unwrap().rules.limits.memory, Some(2 << 30));
        assert_eq!(parse("[limits]\nmemory = 4096\n").unwrap().rules.limits.memory, Some(4096));
    }

    #[test]
    fn mistakes_are_told_with_line_and_key() {
        for (text, place, words) in [
            ("[exec]\nlayr = 'hold'\n", "line 2, exec.layr", "unknown field `layr`, expected one of `layer`"),
            ("\nprofil = 'oci'\n", "line 2, profil", "unknown field"),
            ("[exec]\nlayer = 'no'\n", "line 2, exec.layer", "unknown variant `no`, expected one of `commit`"),
            ("[exec]\ntimeout = 'soon'\n", "line 2, exec.timeout", "invalid timeout \"soon\""),
            ("[exec]\ntimeout = true\n", "line 2, exec.timeout", "expected a number or a text"),
            (
                "allow = [\n  'profile',\n  'everything',\n]\n",
                "line 3, allow",
                "expected one of `profile`, `host-network`",
            ),
            ("[capabilities]\nadd = ['CAP_X']\n", "line 2, capabilities.add", "expected a capability"),
            ("[seccomp]\nallow = ['a b']\n", "line 2, seccomp.allow", "\"a b\": no system call has this name"),
            ("[seccomp]\nallow = ['']\n", "line 2, seccomp.allow", "no system call"),
            ("[seccomp]\nallow = ['#']\n", "line 2, seccomp.allow", "no system call"),
            (
                "[seccomp]\nallow = ['ptrace']\nrefuse = [\n  'socket',\n  'sockett',\n]\n",
                "line 5, seccomp.refuse",
                "\"sockett\": no system call has this name; expected one such as \"ptrace\"",
            ),
            (
                "[seccomp]\nallow = ['bpf', 'ptrace']\nrefuse = ['ptrace']\n",
                "line 1, seccomp",
                "\"ptrace\" is both allowed and refused: take it out of one list",
            ),
            ("profile = 'oci'\nstore = 'x'\n", "line 2, store", "\"x\": expected an absolute path"),
            ("store = ''\n", "line 1, store", "expected an absolute path"),
            ("store = 1\n", "line 1, store", "invalid type"),
            ("[mounts]\nexec = [\n  '/a',\n  'opt',\n]\n", "line 4, mounts.exec", "expected an absolute path"),
            ("[mounts]\nexec = ['opt']\n", "line 2, mounts.exec", "expected an absolute path"),
            ("[mounts]\nallow = ['/a/../b']\n", "line 2, mounts.allow", "without \"..\""),
            ("[mounts]\ndefault = 'rw'\n", "line 2, mounts.default", "`as-given`"),
            ("[devices]\nallow = ['x 1:3 r']\n", "line 2, devices.allow", "is no device"),
            ("[sysctl]\nallow = ['*']\n", "line 2, sysctl.allow", "expected a name"),
            ("[limits]\nmemory = '2 apples'\n", "line 2, limits.memory", "expected a size"),
            ("[limits]\nmemory = -1\n", "line 2, limits.memory", "expected a size"),
            ("[limits]\ncpus = -1\n", "line 2, limits.cpus", "expected processors"),
            ("[limits]\npids = 1.5\n", "line 2, limits.pids", "expected a whole number"),
            ("[limits]\npids = 4194305\n", "line 2, limits.pids", "from 1 to 4194304"),
            ("[limits]\nnofile = 31\n", "line 2, limits.nofile", "from 32 to"),
            ("[limits]\nmemory = '8388608T'\n", "line 2, limits.memory", "expected a size"),
            ("[limits]\nlayer = '63K'\n", "line 2, limits.layer", "at least 64KiB"),
            ("[limits]\ncpus = 0.001\n", "line 2, limits.cpus", "at least 0.01"),
            ("[[limits]]\npids = 1\n", "line 1, limits", "invalid type"),
            ("[paths]\nmask = ['/']\n", "line 2, paths.mask", "below the root directory"),
            ("[paths]\nread-only = ['//']\n", "line 2, paths.read-only", "below the root directory"),
            ("[files]\ndeny = ['/.']\n", "line 2, files.deny", "below the root directory"),
            ("[files]\nallow-write = 'some'\n", "line 2, files.allow-write", "or \"all\""),
            ("[files]\nallow-write = ['x']\n", "line 2, files.allow-write", "expected an absolute path"),
            (
                "[log]\nkeep = 'all'\n",
                "line 2, log.keep",
                "\"all\": expected a whole number such as 1000; write 0 for all",
            ),
            (
                "[retention]\ngenerations = -1\n",
                "line 2, retention.generations",
                "\"-1\": expected a whole number such as 1000; write 0 for no bound",
            ),
            (
                "[retention]\ngenerations = 'none'\n",
                "line 2, retention.generations",
                "\"none\": expected a whole number such as 1000; write 0 for no bound",
            ),
            ("[retention]\ngenerations = 1.5\n", "line 2, retention.generations", "expected a whole number"),
            (
                "[retention]\nbytes = 'much'\n",
                "line 2, retention.bytes",
                "expected a size: a whole number of bytes, or",
            ),
            (
                "[retention]\nbytes = '1.5G'\n",
                "line 2, retention.bytes",
                "\"1.5G\": write \"1536M\": expected a whole number of bytes, or one with K, M, G or T (powers of 1024), \
                 such as \"512M\"; \"none\" or 0 is no bound",
            ),
            ("[retention]\nbytes = '0.1 KiB'\n", "line 2, retention.bytes", "write \"102\""),
            ("[retention]\nbytes = '1.5X'\n", "line 2, retention.bytes", "one with K, M, G or T"),
            (
                "[retention]\nbytes = '99999999999T'\n",
                "line 2, retention.bytes",
                "a size of at most 9223372036854775807",
            ),
            (
                "[retention]\nage = 'none'\n",
                "line 2, retention.age",
                "invalid age \"none\": expected seconds, or a number with s, m, h or d (such as 12h or 30d); write 0 for no \
                 bound",
            ),
            ("[exec]\ntimeout = 'none'\n", "line 2, exec.timeout", "write 0 for none"),
            ("[retention]\nage = '3w'\n", "line 2, retention.age", "invalid age \"3w\": expected seconds"),
            ("[retention]\ntime = 3\n", "line 2, retention.time", "unknown field"),
            ("x = [[\n", "line 1, x", "unclosed array"),
            ("[exec\n", "line 1, exec", "unclosed table"),
        ] {
            let err = parse(text).unwrap_err();
            let start = format!("configuration /c.toml, {place}: ");
            assert!(err.starts_with(&start) && err.contains(words) && !err.contains('\n'), "{text}: {err}");
        }
    }
}
