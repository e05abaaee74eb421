//! Every key with what it is for: the file of defaults, and what is in force and where it comes from, are made from it.

use serde::Serialize;
use toml::{Table, Value};

use super::Origin;
use super::file::File;

/// One key of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// With its table: `exec.layer`.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
}

const fn key(name: &'static str, about: &'static str) -> Key {
    Key { name, about }
}

/// All keys, those without a table first.
pub const KEYS: &[Key] = &[
    key("profile", "How containers are hardened: strict, or oci (the engine's configuration untouched)."),
    key("store", "Where layers and history are kept: a directory on a filesystem that can hold overlay uppers."),
    key(
        "allow",
        "What a container may ask for though it loosens strict: profile, host-network, host-pid, host-ipc, host-uts, \
         host-mount, host-cgroup, mount-propagation, mount-exec, mount-write, shared-layer.",
    ),
    key("exec.layer", "What becomes of an exec's layer: commit, commit-on-success, discard, hold, shared."),
    key("exec.timeout", "How long an exec without a terminal may take: seconds, or \"5m\"; 0 is for ever."),
    key("exec.orphans", "What becomes of processes that an exec leaves running: kill, wait."),
    key("log.keep", "About how many events the store's log keeps; 0: all."),
    key("retention.generations", "How many generations of a container's history are kept; 0: all."),
    key(
        "retention.bytes",
        "What the layers of that history may hold besides what HEAD stands on; \"none\": any amount.",
    ),
    key("retention.age", "How long generations are kept: seconds, or \"30d\"; 0 is for ever."),
    key(
        "capabilities.add",
        "Capabilities that containers may have besides those of strict, where their engine gives them.",
    ),
    key("capabilities.drop", "Capabilities that no container has."),
    key("seccomp.allow", "System calls that pass besides those of strict."),
    key("seccomp.refuse", "System calls that are refused besides."),
    key(
        "mounts.allow",
        "Paths of the host that may be mounted, or be a root filesystem, with what lies below them, though strict refuses them.",
    ),
    key("mounts.refuse", "Paths of the host that may not be mounted, nor what lies below them."),
    key(
        "mounts.exec",
        "Paths of the host whose programs can be executed where they, or what lies below them, are mounted.",
    ),
    key("mounts.default", "What becomes of writes to bind mounts: as-given, ro, cow (they go to layers)."),
    key(
        "devices.allow",
        "Devices that containers may have besides the standard ones: \"/dev/fuse\", \"c 10:229 rwm\".",
    ),
    key("sysctl.allow", "Kernel parameters that containers may set besides those of strict; a * at the end is any."),
    key("paths.mask", "Paths of the container that are covered, besides those of strict."),
    key("paths.read-only", "Paths of the container that are read-only, besides those of strict."),
    key("limits.cpus", "Processors' worth of time, where the engine sets no limit; \"none\" is no limit."),
    key("limits.memory", "Memory, swap included, where the engine sets no limit."),
    key("limits.pids", "Processes and threads, where the engine sets no limit."),
    key("limits.layer", "What the layer of one exec may hold."),
    key("limits.nofile", "Open files of a process, where the engine sets no limit, and the most that it may set."),
    key("files.deny", "Paths of the container that its programs can neither read, write nor execute."),
    key("files.read-only", "Paths of the container that its programs cannot write."),
    key(
        "files.allow-write",
        "The only paths of the container that its programs can write, with what lies below them; \"all\" is no such limit.",
    ),
    key("files.audit", "Whether the kernel's audit log tells what these rules refuse."),
];

/// One key's value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The key, with its table.
    pub key: &'static str,
    /// The value, as the file would have it.
    pub value: Value,
    /// Where it comes from.
    pub source: Origin,
}

/// What is in force, in the order of [`KEYS`]. `text` is the file as written, `file` what was read from it, with the
/// store as decided by `store`.
pub(super) fn entries(text: &str, file: &File, store: Origin) -> Vec<Entry> {
    let written: Table = toml::from_str(text).unwrap_or_default();
    let values = table(file);
    let entry = |key: &Key| {
        let source = match key.name {
            "store" => store,
            name if look_up(&written, name).is_some() => Origin::File,
            _ => Origin::Default,
        };
        Some(Entry { key: key.name, value: look_up(&values, key.name)?.clone(), source })
    };
    KEYS.iter().filter_map(entry).collect()
}

/// A file of all keys with their defaults, each with what it is for.
pub fn defaults() -> String {
    let values = table(&File { store: Some(super::DEFAULT_STORE.into()), ..File::default() });
    let mut text =
        "# The configuration of agentsbx: every key, with its default. A key that is left out has it too.\n".to_owned();
    let mut current = "";
    for key in KEYS {
        let (table, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if table != current {
            text.push_str(&format!("\n[{table}]\n"));
            current = table;
        } else {
            text.push('\n');
        }
        if let Some(value) = look_up(&values, key.name) {
            text.push_str(&format!("# {}\n{name} = {value}\n", key.about));
        }
    }
    text
}

fn table(file: &File) -> Table {
    // Every field can be written as TOML: they are texts, numbers and lists.
    Table::try_from(file).unwrap_or_default()
}

fn look_up<'a>(table: &'a Table, name: &str) -> Option<&'a Value> {
    let mut parts = name.split('.');
    let first = table.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::config::{Config, Sources, explain, resolve};
    use crate::terms::Allow;

    /// The names of all values of a table.
    fn names(table: &Table) -> BTreeSet<String> {
        let inner = |(name, value): (&String, &Value)| match value {
            Value::Table(inner) => inner.keys().map(|key| format!("{name}.{key}")).collect(),
            _ => vec![name.clone()],
        };
        table.iter().flat_map(inner).collect()
    }

    #[test]
    fn the_file_of_defaults_is_the_default_and_has_every_key() {
        let text = defaults();
        assert_eq!(resolve(&text, &Sources::default()).unwrap(), Config::default(), "{text}");
        let keys: BTreeSet<String> = KEYS.iter().map(|key| key.name.to_owned()).collect();
        assert_eq!(keys.len(), KEYS.len(), "no key twice");
        let written: Table = toml::from_str(&text).unwrap();
        assert_eq!(names(&written), keys, "what the file of defaults has");
        let file = File { store: Some("/s".into()), ..File::default() };
        assert_eq!(names(&table(&file)), keys, "what the types have");
    }

    #[test]
    fn every_word_of_allow_is_told() {
        let about = KEYS.iter().find(|key| key.name == "allow").unwrap().about;
        let words: Vec<&str> = Allow::ALL.iter().map(|word| word.as_str()).collect();
        assert!(about.ends_with(&format!(": {}.", words.join(", "))), "{about}");
    }

    /// Each key has a row `| `key` | `default` | meaning |` in docs/configuration.md.
    #[test]
    fn every_key_is_documented_with_its_default() {
        let text = include_str!("../../docs/configuration.md");
        let values = table(&File { store: Some(super::super::DEFAULT_STORE.into()), ..File::default() });
        let rows: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | `"))
            .filter_map(|(key, rest)| Some((key, rest.split_once("` |")?.0)))
            .collect();
        let wanted: Vec<(String, String)> =
            KEYS.iter().map(|key| (key.name.to_owned(), look_up(&values, key.name).unwrap().to_string())).collect();
        let rows: Vec<(String, String)> = rows.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        assert_eq!(rows, wanted);
    }

    #[test]
    fn each_value_says_where_it_comes_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        crate::durable::replace_unsynced(&path, b"store = '/file'\n[exec]\nlayer = 'hold'\n", 0o644).unwrap();
        let of = |sources: &Sources, key: &str| {
            let found = explain(sources).unwrap().into_iter().find(|entry| entry.key == key).unwrap();
            (found.value.to_string(), found.source)
        };
        let sources = Sources { file: Some(path), ..Sources::default() };
        assert_eq!(of(&sources, "exec.layer"), (r#""hold""#.to_owned(), Origin::File));
        assert_eq!(of(&sources, "exec.orphans"), (r#""kill""#.to_owned(), Origin::Default));
        assert_eq!(of(&sources, "limits.memory"), (r#""2GiB""#.to_owned(), Origin::Default));
        assert_eq!(of(&sources, "store"), (r#""/file""#.to_owned(), Origin::File));
        let flag = Sources { store_flag: Some("/flag".into()), ..sources };
        assert_eq!(of(&flag, "store"), (r#""/flag""#.to_owned(), Origin::Flag));
        let none = Sources { file: Some(Path::new("/none").into()), ..Sources::default() };
        assert!(explain(&none).unwrap_err().to_string().starts_with("read configuration /none"));
    }
}
