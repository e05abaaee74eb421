//! The configuration: `/etc/agentsbx/config.toml`, the environment and flags, made into one immutable value.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Classify, Kind};
use crate::terms::{LayerMode, Orphans, Profile, Timeout, UnknownValue};

/// Where the file is looked for if nothing else is said.
pub const DEFAULT_FILE: &str = "/etc/agentsbx/config.toml";

/// Where the store is if nothing else is said.
pub const DEFAULT_STORE: &str = "/var/lib/agentsbx";

/// How long an exec without a terminal may take if nothing else is said.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// How many events the store's log keeps if nothing else is said.
pub const DEFAULT_KEEP_EVENTS: u64 = 100_000;

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is there but can't be read.
    #[error("read configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The answer.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML, or has a key that does not exist, or a value of the wrong type; the text has line and key.
    #[error("configuration {path}: {text}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's text, with line and key.
        text: String,
    },
    /// A value that its key can't have.
    #[error("configuration {path}: {key}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The key, with its table.
        key: &'static str,
        /// What is wrong.
        #[source]
        source: UnknownValue,
    },
    /// The store is not an absolute path.
    #[error("{from}: the store must be an absolute path, not {path:?}")]
    Relative {
        /// Flag, variable or file.
        from: &'static str,
        /// What was given.
        path: PathBuf,
    },
}

impl Classify for ConfigError {
    fn kind(&self) -> Kind {
        match self {
            ConfigError::Read { source, .. } => Kind::of_io(source),
            _ => Kind::InvalidInput,
        }
    }
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The store's directory.
    pub store: PathBuf,
    /// What becomes of layers where neither annotation, variable nor flag says.
    pub layer: LayerMode,
    /// How long an exec without a terminal may take.
    pub timeout: Timeout,
    /// What becomes of processes that an exec leaves running.
    pub orphans: Orphans,
    /// About how many events the store's log keeps; 0: all.
    pub keep_events: u64,
    /// How containers are hardened where their annotations don't say.
    pub profile: Profile,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            store: DEFAULT_STORE.into(),
            layer: LayerMode::Commit,
            timeout: Timeout(Some(DEFAULT_TIMEOUT)),
            orphans: Orphans::Kill,
            keep_events: DEFAULT_KEEP_EVENTS,
            profile: Profile::default(),
        }
    }
}

/// What the front door found out: flags and environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// `AGENTSBX_CONFIG`: another file, which then must exist.
    pub file: Option<PathBuf>,
    /// `--store`.
    pub store_flag: Option<PathBuf>,
    /// `AGENTSBX_STORE`.
    pub store_env: Option<PathBuf>,
    /// `$XDG_DATA_HOME/agentsbx`, for a user without root.
    pub user_data: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    store: Option<PathBuf>,
    profile: Option<String>,
    #[serde(default)]
    exec: Exec,
    #[serde(default)]
    log: Log,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Log {
    keep: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exec {
    layer: Option<String>,
    timeout: Option<Number>,
    orphans: Option<String>,
}

/// A duration with or without a unit: `"5m"`, `300`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Bare(u64),
    Text(String),
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Bare(seconds) => seconds.fmt(f),
            Number::Text(text) => text.fmt(f),
        }
    }
}

/// Reads the file, if there is one, and resolves it with the rest: flag before environment before file.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    let path = sources.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound && sources.file.is_none() => String::new(),
        Err(source) => return Err(ConfigError::Read { path: path.to_owned(), source }),
    };
    resolve(&text, path, sources)
}

fn resolve(text: &str, path: &Path, sources: &Sources) -> Result<Config, ConfigError> {
    let file: File = if text.is_empty() {
        File::default()
    } else {
        toml::from_str(text).map_err(|err| ConfigError::Parse { path: path.to_owned(), text: err.to_string() })?
    };
    let value = |key| move |source| ConfigError::Value { path: path.to_owned(), key, source };
    let default = Config::default();
    let store = [
        ("--store", sources.store_flag.clone()),
        ("AGENTSBX_STORE", sources.store_env.clone()),
        ("configuration key store", file.store),
        ("XDG_DATA_HOME", sources.user_data.clone()),
    ];
    let store = match store.into_iter().find_map(|(from, path)| Some((from, path?))) {
        Some((from, path)) if !path.is_absolute() => return Err(ConfigError::Relative { from, path }),
        Some((_, path)) => path,
        None => default.store,
    };
    let parse = |text: Option<String>| text.map(|t| t.parse()).transpose();
    Ok(Config {
        store,
        layer: parse(file.exec.layer).map_err(value("exec.layer"))?.unwrap_or(default.layer),
        timeout: file
            .exec
            .timeout
            .map(|t| t.to_string().parse())
            .transpose()
            .map_err(value("exec.timeout"))?
            .unwrap_or(default.timeout),
        orphans: file
            .exec
            .orphans
            .map(|t| t.parse())
            .transpose()
            .map_err(value("exec.orphans"))?
            .unwrap_or(default.orphans),
        keep_events: file.log.keep.unwrap_or(default.keep_events),
        profile: file
            .profile
            .map(|text| text.parse())
            .transpose()
            .map_err(value("profile"))?
            .unwrap_or(default.profile),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, sources: &Sources) -> Result<Config, String> {
        resolve(text, Path::new("/c.toml"), sources).map_err(|err| crate::error::chain(&err))
    }

    #[test]
    fn precedence_of_the_store() {
        let all = Sources {
            store_flag: Some("/flag".into()),
            store_env: Some("/env".into()),
            user_data: Some("/user".into()),
            ..Sources::default()
        };
        let store = |sources: &Sources, text: &str| with(text, sources).unwrap().store;
        assert_eq!(store(&all, "store = '/file'"), Path::new("/flag"));
        let env = Sources { store_flag: None, ..all.clone() };
        assert_eq!(store(&env, "store = '/file'"), Path::new("/env"));
        let file = Sources { store_env: None, ..env };
        assert_eq!(store(&file, "store = '/file'"), Path::new("/file"));
        assert_eq!(store(&file, ""), Path::new("/user"));
        assert_eq!(store(&Sources::default(), ""), Path::new(DEFAULT_STORE));
        let relative = Sources { store_flag: Some("x".into()), ..Sources::default() };
        assert_eq!(with("", &relative).unwrap_err(), r#"--store: the store must be an absolute path, not "x""#);
    }

    #[test]
    fn values_and_mistakes() {
        let got = with("[exec]\nlayer = 'hold'\ntimeout = '5m'\norphans = 'wait'\n", &Sources::default()).unwrap();
        assert_eq!((got.layer, got.orphans), (LayerMode::Hold, Orphans::Wait));
        assert_eq!(got.timeout, Timeout(Some(Duration::from_secs(300))));
        assert_eq!(got.keep_events, DEFAULT_KEEP_EVENTS);
        assert_eq!(with("[log]\nkeep = 0\n", &Sources::default()).unwrap().keep_events, 0);
        let bare = with("[exec]\ntimeout = 7\n", &Sources::default()).unwrap();
        assert_eq!(bare.timeout, Timeout(Some(Duration::from_secs(7))));
        let unknown = with("[exec]\nlayr = 'hold'\n", &Sources::default()).unwrap_err();
        assert!(unknown.contains("line 2") && unknown.contains("layr"), "{unknown}");
        let bad = with("[exec]\nlayer = 'no'\n", &Sources::default()).unwrap_err();
        assert!(bad.starts_with("configuration /c.toml: exec.layer: invalid layer mode \"no\""), "{bad}");
    }
}
