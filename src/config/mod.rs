//! The configuration: `/etc/agentsbx/config.toml`, the environment and flags, made into one immutable value.
//!
//! `file` reads the file, `rules` has what it says of the profile `strict`, `keys` tells what each key is for.

mod file;
mod keys;
mod rules;

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::error::{Classify, Kind};
use crate::terms::{LayerMode, Orphans, Profile, Retention, Timeout};

pub use keys::{Entry, KEYS, Key, defaults};
pub use rules::{Capabilities, Device, Devices, Files, Limits, Mounts, Paths, Rules, Seccomp, Sysctl};

use file::File;

/// Where the file is looked for if nothing else is said.
pub const DEFAULT_FILE: &str = "/etc/agentsbx/config.toml";

/// Largest file that is read, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Where the store is if nothing else is said.
pub const DEFAULT_STORE: &str = "/var/lib/agentsbx";

/// How long an exec without a terminal may take if nothing else is said.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// How many events the store's log keeps if nothing else is said.
pub const DEFAULT_KEEP_EVENTS: u64 = 100_000;

/// How much of a container's history is kept if nothing else is said: enough to undo a long task, and bounded, so that
/// a pool's disk is not filled by containers that live for long. Nothing goes by age alone: who comes back after a holiday
/// finds what he left.
pub const DEFAULT_RETENTION: Retention = Retention { generations: Some(1000), bytes: Some(20 << 30), age: None };

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
    /// The file is not TOML, or has a key that does not exist, or a value that its key can't have.
    #[error("configuration {path}, {place}: {text}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1, and key with its table: `line 2, exec.layer`.
        place: String,
        /// What is wrong.
        text: String,
    },
    /// What is there is no configuration, or not only its owner's to say.
    #[error("configuration {path}: {what}; {remedy}")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The store of a flag or a variable is not an absolute path.
    #[error("{from}: the store must be an absolute path, not {path:?}")]
    Relative {
        /// Flag or variable.
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
#[derive(Debug, Clone, PartialEq)]
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
    /// How much of a container's history is kept.
    pub retention: Retention,
    /// How containers are hardened where their annotations don't say.
    pub profile: Profile,
    /// What the profile `strict` lets pass or takes besides.
    pub rules: Rules,
}

impl Default for Config {
    fn default() -> Config {
        let store = DEFAULT_STORE.into();
        File::default().config(store)
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

impl Sources {
    /// The file that is read, if it is there.
    pub fn path(&self) -> &Path {
        self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE))
    }

    fn text(&self) -> Result<String, ConfigError> {
        let failed = |source| ConfigError::Read { path: self.path().to_owned(), source };
        // A pipe is not waited for.
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(self.path());
        let file = match opened {
            Err(err) if err.kind() == std::io::ErrorKind::NotFound && self.file.is_none() => return Ok(String::new()),
            other => other.map_err(failed)?,
        };
        let meta = file.metadata().map_err(failed)?;
        let unfit = |what, remedy| Err(ConfigError::Unfit { path: self.path().to_owned(), what, remedy });
        // /dev/null is an empty one.
        if !meta.is_file() && !meta.file_type().is_char_device() {
            return unfit("it is no file", "name a file, or remove it");
        }
        if meta.is_file() && meta.mode() & 0o002 != 0 {
            return unfit("everybody can write to it, and with it loosen the profile", "chmod o-w it");
        }
        let mut text = String::new();
        file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > FILE_MAX {
            return unfit("it is larger than 1 MiB", "name the right file, or make it smaller");
        }
        Ok(text)
    }

    /// The store: flag before environment before file.
    fn store(&self, file: &File) -> Result<(Origin, PathBuf), ConfigError> {
        let given = [
            (Origin::Flag, "--store", self.store_flag.clone()),
            (Origin::Environment, "AGENTSBX_STORE", self.store_env.clone()),
            (Origin::File, "configuration key store", file.store.clone()),
            (Origin::Environment, "XDG_DATA_HOME", self.user_data.clone()),
        ];
        match given.into_iter().find_map(|(origin, from, path)| Some((origin, from, path?))) {
            Some((_, from, path)) if !path.is_absolute() => Err(ConfigError::Relative { from, path }),
            Some((origin, _, path)) => Ok((origin, path)),
            None => Ok((Origin::Default, DEFAULT_STORE.into())),
        }
    }
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Nobody says.
    Default,
    /// The file.
    File,
    /// A variable of the runtime's environment.
    Environment,
    /// A flag.
    Flag,
}

/// Reads the file, if there is one, and resolves it with the rest.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    resolve(&sources.text()?, sources)
}

/// As [`load`], for what must go on whatever the file has come to: ending containers, and repairing. What is wrong with the
/// file comes beside. Nothing is then dropped by bounds, since nobody knows which ones were meant; the store is where flag,
/// environment or the file say, the latter if it is TOML at all.
pub fn load_or_least(sources: &Sources) -> (Config, Option<ConfigError>) {
    let err = match load(sources) {
        Ok(config) => return (config, None),
        Err(err) => err,
    };
    let text = sources.text().unwrap_or_default();
    let written: toml::Table = toml::from_str(&text).unwrap_or_default();
    let file = written.get("store").and_then(toml::Value::as_str).map(PathBuf::from);
    let places = [sources.store_flag.clone(), sources.store_env.clone(), file, sources.user_data.clone()];
    let store = places.into_iter().flatten().find(|path| path.is_absolute());
    let mut config = Config { retention: Retention::default(), keep_events: 0, ..Config::default() };
    config.store = store.unwrap_or(config.store);
    (config, Some(err))
}

/// As [`load`], key by key, each value with where it comes from.
pub fn explain(sources: &Sources) -> Result<Vec<Entry>, ConfigError> {
    let text = sources.text()?;
    let file = File::parse(&text, sources.path())?;
    let (origin, store) = sources.store(&file)?;
    Ok(keys::entries(&text, &File { store: Some(store), ..file }, origin))
}

fn resolve(text: &str, sources: &Sources) -> Result<Config, ConfigError> {
    let file = File::parse(text, sources.path())?;
    let (_, store) = sources.store(&file)?;
    Ok(file.config(store))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, sources: &Sources) -> Result<Config, String> {
        let sources = Sources { file: Some("/c.toml".into()), ..sources.clone() };
        resolve(text, &sources).map_err(|err| crate::error::chain(&err))
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
    fn what_is_no_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let told = |path: PathBuf| {
            let got = load(&Sources { file: Some(path), ..Sources::default() });
            got.map_err(|err| crate::error::chain(&err))
        };
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let put = |name: &str, text: &[u8], mode| crate::durable::replace_unsynced(&at(name), text, mode).unwrap();
        put("large", "#".repeat(1 + FILE_MAX as usize).as_bytes(), 0o644);
        put("full", "#".repeat(FILE_MAX as usize).as_bytes(), 0o644);
        put("bytes", b"profile = '\xff'", 0o644);
        put("open", b"profile = 'oci'", 0o644);
        std::fs::set_permissions(at("open"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        for (path, words) in [
            (at("pipe"), "it is no file"),
            (dir.path().to_owned(), "it is no file"),
            (at("large"), "larger than 1 MiB"),
            ("/dev/zero".into(), "larger than 1 MiB"),
            (at("open"), "everybody can write to it"),
            (at("bytes"), "valid UTF-8"),
            (at("none"), "read configuration"),
        ] {
            let err = told(path.clone()).unwrap_err();
            assert!(err.contains(words) && err.contains(&path.display().to_string()), "{err}");
        }
        for fine in ["/dev/null".into(), at("full")] {
            assert_eq!(told(fine).unwrap(), Config::default());
        }
    }

    #[test]
    fn what_must_go_on_without_the_file_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        let read = |text: &str, sources: &Sources| {
            crate::durable::replace_unsynced(&path, text.as_bytes(), 0o644).unwrap();
            load_or_least(&Sources { file: Some(path.clone()), ..sources.clone() })
        };
        let none = Sources::default();
        let (config, err) = read("store = '/file'\n[retention]\ngenerations = 3\n", &none);
        assert!(err.is_none());
        assert_eq!((config.store.as_path(), config.retention.generations), (Path::new("/file"), Some(3)));
        let flag = Sources { store_flag: Some("/flag".into()), ..Sources::default() };
        for (text, sources, store) in [
            // An unknown key, a wrong value, no TOML, a store that is none.
            ("store = '/file'\nprofil = 'oci'\n[retention]\ngenerations = 3\n", &none, "/file"),
            ("store = '/file'\n[log]\nkeep = 'all'\n", &none, "/file"),
            ("store = '/file'\n[log]\nkeep = 'all'\n", &flag, "/flag"),
            ("store = '/file'\n[log\n", &none, DEFAULT_STORE),
            ("store = 'file'\n", &none, DEFAULT_STORE),
        ] {
            let (config, err) = read(text, sources);
            assert!(err.is_some(), "{text}");
            assert_eq!(config.store, Path::new(store), "{text}");
            assert!(config.retention.is_unbounded() && config.keep_events == 0, "{text}");
        }
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(with("", &Sources::default()).unwrap(), Config::default());
    }
}
