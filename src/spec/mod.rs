//! The bundle's `config.json`: read as JSON, so that fields we do not know stay, and looked at through typed accessors.

pub mod annotations;
pub mod file_rules;
pub mod idmap;
pub mod inherited;
pub mod inroot;
pub mod mount_rules;
pub mod normalise;
pub mod passwd;
mod reach;
mod typed;
mod types;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Capability, Process};
use serde_json::Value;

use crate::durable;
use crate::error::{Classify, Kind};
use inherited::Inherited;
pub use typed::typed;

/// The bundle's configuration.
pub const CONFIG: &str = "config.json";
/// The configuration as the engine wrote it, kept beside.
pub const ENGINE_CONFIG: &str = "config.engine.json";
/// What we made of it, to tell later whether somebody edited `config.json`.
const MADE_CONFIG: &str = "agentsbx/config.json";
/// What setresuid(2) and its kin take for "leave it as it is", so no user's or group's id.
pub const NO_ID: u32 = u32::MAX;
/// Largest configuration that is read, in bytes.
const CONFIG_MAX: u64 = 32 << 20;

/// What is wrong with a bundle or its configuration.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// A bundle without configuration; it begins with runc's own text.
    #[error("JSON specification file {CONFIG} not found in {}: name the bundle's directory with --bundle", dir_of(.0))]
    Missing(PathBuf),
    /// Reading a file of the bundle failed.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Writing a file of the bundle failed.
    #[error("write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Not JSON.
    #[error("parse {path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A field that must be there, or has a value that cannot be.
    #[error("invalid {field} in {CONFIG}: {why}")]
    Field {
        /// The field's path in the document.
        field: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A field with a value that is not of its type.
    #[error("invalid {field} in {CONFIG}: {why}")]
    Type {
        /// The field's path in the document.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// A mount that can't be as it is written.
    #[error("invalid mounts[{}] in {CONFIG}: {why}", at.display())]
    Mount {
        /// Its destination, as written.
        at: PathBuf,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// A path of the root filesystem could not be looked at.
    #[error("resolve {path} in the root filesystem: {source}")]
    Resolve {
        /// The path as the container would see it.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Asked for, but not something this runtime does.
    #[error("{0}")]
    Unsupported(&'static str),
}

fn dir_of(path: &Path) -> std::path::Display<'_> {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).display()
}

impl Classify for SpecError {
    fn kind(&self) -> Kind {
        match self {
            SpecError::Missing(_) => Kind::NotFound,
            SpecError::Read { source, .. } | SpecError::Write { source, .. } | SpecError::Resolve { source, .. } => {
                Kind::of_io(source)
            }
            SpecError::Json { .. } | SpecError::Field { .. } | SpecError::Type { .. } | SpecError::Mount { .. } => {
                Kind::InvalidInput
            }
            SpecError::Unsupported(_) => Kind::Unsupported,
        }
    }
}

/// Writes a new configuration; one that is there is left as it is and the error says so.
pub fn write_new(path: &Path, text: &[u8]) -> std::io::Result<()> {
    durable::publish(path, text, 0o666)
}

/// Puts the engine's configuration back where `config.json` still is what we made of it (but for the annotations that we
/// write), so that a bundle can be used again. One that somebody edited meanwhile stays.
pub fn restore(bundle: &Path) -> Result<(), SpecError> {
    let made = match Config::read(&bundle.join(MADE_CONFIG)) {
        Err(SpecError::Missing(_)) => return Ok(()),
        other => other?.without_results(),
    };
    let engine = Config::read(&bundle.join(ENGINE_CONFIG));
    let now = match (engine, Config::load(bundle)) {
        (Err(SpecError::Missing(_)), _) | (_, Err(SpecError::Missing(_))) => return Ok(()),
        (engine, now) => engine.and(now)?,
    };
    if now.without_results() == made {
        let path = bundle.join(CONFIG);
        durable::rename(&bundle.join(ENGINE_CONFIG), &path).map_err(|source| SpecError::Write { path, source })?;
    }
    for name in [MADE_CONFIG, ENGINE_CONFIG] {
        let path = bundle.join(name);
        durable::remove_file(&path).map_err(|source| SpecError::Write { path, source })?;
    }
    Ok(())
}

/// Whether `config.json` is what we made of the engine's, which is kept beside. Else it is the engine's own, as where a `create`
/// has put it back that found the bundle in use by another container, and failed.
pub fn is_replaced(bundle: &Path) -> bool {
    bundle.join(ENGINE_CONFIG).exists()
}

/// A configuration, as JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    value: Value,
}

impl Config {
    /// Reads `BUNDLE/config.json`.
    pub fn load(bundle: &Path) -> Result<Config, SpecError> {
        Config::read(&bundle.join(CONFIG))
    }

    /// Reads a configuration from a file.
    pub fn read(path: &Path) -> Result<Config, SpecError> {
        let path = path.to_owned();
        let file = std::fs::File::open(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => SpecError::Missing(path.clone()),
            _ => SpecError::Read { path: path.clone(), source },
        })?;
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(file, CONFIG_MAX), &mut bytes)
            .map_err(|source| SpecError::Read { path: path.clone(), source })?;
        let value = serde_json::from_slice(&bytes).map_err(|source| SpecError::Json { path, source })?;
        Ok(Config { value })
    }

    /// A configuration from JSON.
    pub fn from_value(value: Value) -> Config {
        Config { value }
    }

    /// The document.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The document, to be changed.
    pub fn value_mut(&mut self) -> &mut Value {
        &mut self.value
    }

    /// Replaces `BUNDLE/config.json` by this one.
    pub fn store(&self, bundle: &Path) -> Result<(), SpecError> {
        let path = bundle.join(CONFIG);
        let bytes = serde_json::to_vec(&self.value).map_err(|source| SpecError::Json { path: path.clone(), source })?;
        durable::replace_unsynced(&path, &bytes, 0o644).map_err(|source| SpecError::Write { path, source })
    }

    /// Replaces `config.json`, which the engine wrote, by this one made from it. The engine's is kept beside, byte for byte.
    pub fn replace(&self, bundle: &Path) -> Result<(), SpecError> {
        let put = |path: PathBuf, bytes: &[u8]| {
            durable::replace_unsynced(&path, bytes, 0o644).map_err(|source| SpecError::Write { path, source })
        };
        let path = bundle.join(CONFIG);
        let engine = std::fs::read(&path).map_err(|source| SpecError::Read { path: path.clone(), source })?;
        let ours = serde_json::to_vec(&self.value).map_err(|source| SpecError::Json { path, source })?;
        let dir = bundle.join("agentsbx");
        std::fs::create_dir_all(&dir).map_err(|source| SpecError::Write { path: dir, source })?;
        put(bundle.join(ENGINE_CONFIG), &engine)?;
        put(bundle.join(MADE_CONFIG), &ours)?;
        put(bundle.join(CONFIG), &ours)
    }

    /// The configuration without the annotations that we write into it while the container lives.
    fn without_results(mut self) -> Value {
        if let Some(notes) = self.value.get_mut("annotations").and_then(Value::as_object_mut) {
            notes.remove(annotations::GENERATION);
            notes.remove(annotations::DIFF);
        }
        self.value
    }

    fn at(&self, pointer: &str) -> Option<&Value> {
        self.value.pointer(pointer).filter(|v| !v.is_null())
    }

    fn text(&self, pointer: &str) -> Option<&str> {
        self.at(pointer)?.as_str()
    }

    /// `ociVersion`.
    pub fn version(&self) -> &str {
        self.text("/ociVersion").unwrap_or_default()
    }

    /// `root.path`, as written.
    pub fn root_path(&self) -> Option<&str> {
        self.text("/root/path")
    }

    /// `root.readonly`.
    pub fn readonly_root(&self) -> bool {
        self.at("/root/readonly").and_then(Value::as_bool).unwrap_or(false)
    }

    /// `process.args`.
    pub fn args(&self) -> Vec<String> {
        self.strings("/process/args")
    }

    /// `process.env`, in order, duplicates kept.
    pub fn env(&self) -> Vec<String> {
        self.strings("/process/env")
    }

    fn strings(&self, pointer: &str) -> Vec<String> {
        let list = self.at(pointer).and_then(Value::as_array);
        list.map(|l| l.iter().filter_map(Value::as_str).map(str::to_owned).collect()).unwrap_or_default()
    }

    /// `process.cwd`.
    pub fn cwd(&self) -> &str {
        self.text("/process/cwd").unwrap_or_default()
    }

    /// `process.terminal`.
    pub fn terminal(&self) -> bool {
        self.at("/process/terminal").and_then(Value::as_bool).unwrap_or(false)
    }

    /// `process.consoleSize`: rows and columns.
    pub fn console_size(&self) -> Option<(u16, u16)> {
        let side =
            |name| self.at(&format!("/process/consoleSize/{name}"))?.as_u64().and_then(|n| u16::try_from(n).ok());
        Some((side("height")?, side("width")?)).filter(|size| *size != (0, 0))
    }

    /// `process.user`: uid and gid.
    pub fn user(&self) -> (u32, u32) {
        let id = |name| {
            self.at(&format!("/process/user/{name}")).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok())
        };
        (id("uid").unwrap_or(0), id("gid").unwrap_or(0))
    }

    /// Refuses ids of `process.user` that are none.
    pub fn check_user_ids(&self) -> Result<(), SpecError> {
        let more = self.at("/process/user/additionalGids").and_then(Value::as_array);
        let named = ["uid", "gid"].map(|name| self.at(&format!("/process/user/{name}")));
        let mut ids = named.into_iter().flatten().chain(more.into_iter().flatten());
        match ids.find(|id| id.as_u64().is_none_or(|n| n >= NO_ID.into())) {
            Some(id) => {
                Err(SpecError::Field { field: "process.user", why: format!("{id} is no id of a user or group") })
            }
            None => Ok(()),
        }
    }

    /// `process.user.additionalGids`.
    pub fn additional_gids(&self) -> Vec<u32> {
        let list = self.at("/process/user/additionalGids").and_then(Value::as_array);
        list.map(|l| l.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()).unwrap_or_default()
    }

    /// `process.noNewPrivileges`.
    pub fn no_new_privileges(&self) -> bool {
        self.at("/process/noNewPrivileges").and_then(Value::as_bool).unwrap_or(false)
    }

    /// What the container's process has that its execs take from it.
    pub fn inherited(&self) -> Result<Inherited, SpecError> {
        let document = self.at("/process").cloned().unwrap_or_default();
        let wrong = |err: serde_json::Error| SpecError::Field { field: "process", why: err.to_string() };
        Ok(Inherited::from(&process(document).map_err(wrong)?))
    }

    /// `linux.cgroupsPath`, if not empty.
    pub fn cgroups_path(&self) -> Option<&str> {
        self.text("/linux/cgroupsPath").filter(|p| !p.is_empty())
    }

    /// `annotations`.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        let map = self.at("/annotations").and_then(Value::as_object);
        map.map(|m| m.iter().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect())
            .unwrap_or_default()
    }

    /// `linux.namespaces`: type and the path of the one to join, if any.
    pub fn namespaces(&self) -> Vec<(String, Option<PathBuf>)> {
        let list = self.at("/linux/namespaces").and_then(Value::as_array);
        list.map(|l| {
            l.iter()
                .filter_map(|ns| {
                    let path = ns["path"].as_str().filter(|p| !p.is_empty()).map(PathBuf::from);
                    Some((ns["type"].as_str()?.to_owned(), path))
                })
                .collect()
        })
        .unwrap_or_default()
    }

    /// The kind of namespace that is listed twice, if one is: which of them it is to be nobody can tell.
    pub fn twice_a_namespace(&self) -> Option<String> {
        let kinds: Vec<String> = self.namespaces().into_iter().map(|(kind, _)| kind).collect();
        kinds.iter().enumerate().find(|(n, kind)| kinds[..*n].contains(kind)).map(|(_, kind)| kind.clone())
    }

    /// True if the container has a namespace of this type (`pid`, `user` …), its own or a joined one.
    pub fn has_namespace(&self, kind: &str) -> bool {
        self.namespaces().iter().any(|(k, _)| k == kind)
    }

    /// `mounts`.
    pub fn mounts(&self) -> Vec<Mount> {
        let list = self.at("/mounts").and_then(Value::as_array);
        list.map(|l| l.iter().filter_map(Mount::of).collect()).unwrap_or_default()
    }

    /// The host's id for the container's user id `id`, by `linux.uidMappings`; the same where there is no mapping.
    pub fn host_uid(&self, id: u32) -> Option<u32> {
        self.map_id("/linux/uidMappings", id)
    }

    /// As [`Config::host_uid`], for groups.
    pub fn host_gid(&self, id: u32) -> Option<u32> {
        self.map_id("/linux/gidMappings", id)
    }

    fn map_id(&self, pointer: &str, id: u32) -> Option<u32> {
        if !self.has_namespace("user") {
            return Some(id);
        }
        let one = |m: &idmap::Mapping| {
            id.checked_sub(m.inside).filter(|n| *n < m.size).and_then(|n| m.outside.checked_add(n))
        };
        idmap::list(self.at(pointer)?)?.iter().find_map(one)
    }

    /// `hooks`, as written; null if there are none.
    pub fn hooks(&self) -> Value {
        self.at("/hooks").cloned().unwrap_or_default()
    }
}

/// One entry of `mounts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where, inside the container.
    pub destination: PathBuf,
    /// Filesystem type, or empty. `bind` where an option says so: whatever else is written is then of no account.
    pub kind: String,
    /// What.
    pub source: Option<PathBuf>,
    /// As written.
    pub options: Vec<String>,
    /// `uidMappings` and `gidMappings`, as far as they are there.
    pub mappings: [Option<Vec<idmap::Mapping>>; 2],
}

impl Mount {
    /// From its document; `None` without a destination.
    pub fn of(value: &Value) -> Option<Mount> {
        let list = value["options"].as_array();
        let options: Vec<String> =
            list.map(|l| l.iter().filter_map(Value::as_str).map(str::to_owned).collect()).unwrap_or_default();
        let binds = options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind"));
        let kind = if binds { "bind" } else { value["type"].as_str().unwrap_or_default() };
        Some(Mount {
            destination: PathBuf::from(value["destination"].as_str()?),
            kind: kind.to_owned(),
            source: value["source"].as_str().filter(|source| !source.is_empty()).map(PathBuf::from),
            options,
            mappings: ["uidMappings", "gidMappings"].map(|name| idmap::list(&value[name])),
        })
    }

    /// A bind mount, by type or by option.
    pub fn is_bind(&self) -> bool {
        self.kind == "bind"
    }

    /// A bind mount on `/dev` itself.
    pub fn is_dev_bind(&self) -> bool {
        self.is_bind() && normalise::clean_absolute(&self.destination) == Path::new("/dev")
    }

    /// A bind mount whose source the root of the container's user namespace cannot get to. A relative source is one of
    /// the `bundle`'s.
    fn is_out_of_reach(&self, config: &Config, bundle: &Path) -> bool {
        let root = config.host_uid(0).zip(config.host_gid(0));
        match (&self.source, root) {
            (Some(source), Some((uid, gid)))
                if config.has_namespace("user") && self.is_bind() && !self.is_dev_bind() =>
            {
                !reach::can_search(&bundle.join(source), uid, gid)
            }
            _ => false,
        }
    }

    /// A bind mount that libcontainer is not given: it maps ids, or its source is out of reach. One on `/dev` is another
    /// matter.
    pub fn is_withheld(&self, config: &Config, bundle: &Path) -> bool {
        self.is_bind() && !self.is_dev_bind() && (self.maps_ids() || self.is_out_of_reach(config, bundle))
    }

    /// A bind mount in whose place `given` has a placeholder.
    pub fn is_replaced_by(&self, given: &Mount) -> bool {
        let file = Some(Path::new(normalise::NO_FILE));
        let other = !given.is_bind() || given.source.as_deref() == file && self.source.as_deref() != file;
        self.is_bind() && !self.is_dev_bind() && other
    }

    /// Has this very option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|o| o == option)
    }
}

/// A process (`process.json`, or `process` of a configuration) from its document.
///
/// Capabilities that are not known here are left out, as the specification has it: an engine may be newer.
pub fn process(mut document: Value) -> Result<Process, serde_json::Error> {
    drop_unknown_capabilities(&mut document);
    typed(&document)
}

/// Takes the names that are not known out of the capability sets of a process.
pub(crate) fn drop_unknown_capabilities(process: &mut Value) {
    let is_known = |name: &Value| !name.is_string() || serde_json::from_value::<Capability>(name.clone()).is_ok();
    let sets = process.get_mut("capabilities").and_then(Value::as_object_mut);
    for set in sets.into_iter().flat_map(|sets| sets.values_mut()).filter_map(Value::as_array_mut) {
        set.retain(is_known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The kernel takes the largest number for "unchanged": such a process would have stayed root.
    #[test]
    fn ids_that_are_none_are_refused() {
        let check = |user: Value| Config::from_value(json!({"process": {"user": user}})).check_user_ids();
        for fine in [json!({}), json!({"uid": 0, "gid": 4294967294u32, "additionalGids": [1, 2]})] {
            check(fine).unwrap();
        }
        for bad in [
            json!({"uid": 4294967295u32}),
            json!({"uid": 1, "gid": 4294967295u32}),
            json!({"uid": 1, "gid": 1, "additionalGids": [5, 4294967295u32]}),
            json!({"uid": 4294967296u64}),
            json!({"uid": -1}),
            json!({"gid": "root"}),
        ] {
            let err = check(bad.clone()).unwrap_err().to_string();
            assert!(err.starts_with("invalid process.user"), "{bad}: {err}");
        }
    }

    #[test]
    fn ids_are_mapped_only_through_a_namespace_of_its_own() {
        let mut value = json!({"linux": {"namespaces": [{"type": "user"}],
            "uidMappings": [{"containerID": 0, "hostID": 100000, "size": 10}, {"containerID": 50, "hostID": 7, "size": 1}]}});
        let config = Config::from_value(value.clone());
        assert_eq!(config.host_uid(0), Some(100000));
        assert_eq!(config.host_uid(9), Some(100009));
        assert_eq!(config.host_uid(10), None);
        assert_eq!(config.host_uid(50), Some(7));
        // What is left out is 0, as everywhere.
        value["linux"]["uidMappings"] =
            json!([{"hostID": 9, "size": 2}, {"containerID": 7, "hostID": u32::MAX, "size": 2}]);
        let short = Config::from_value(value.clone());
        assert_eq!([0, 1, 2, 8].map(|id| short.host_uid(id)), [Some(9), Some(10), None, None]);
        value["linux"]["namespaces"] = json!([{"type": "pid"}]);
        assert_eq!(Config::from_value(value).host_uid(5), Some(5));
    }

    /// A container of an engine that knew one more capability than we do was refused.
    #[test]
    fn capabilities_that_are_unknown_are_left_out() {
        let base = |caps: Value| json!({"args": ["x"], "cwd": "/", "user": {"uid": 0, "gid": 0}, "capabilities": caps});
        let given = base(json!({"bounding": ["CAP_NEW", "CAP_KILL"], "ambient": ["CAP_NEW"]}));
        let want = base(json!({"bounding": ["CAP_KILL"], "ambient": []}));
        assert_eq!(process(given.clone()).unwrap(), serde_json::from_value(want).unwrap());
        Config::from_value(json!({"process": given})).inherited().unwrap();
        // What is no name at all is still a mistake.
        process(base(json!({"bounding": [7]}))).unwrap_err();
    }

    /// A bundle whose configuration we have replaced: it, the engine's, ours.
    fn replaced() -> (tempfile::TempDir, Config, Config) {
        let dir = tempfile::tempdir().unwrap();
        let engine = Config::from_value(json!({"linux": {"seccomp": {"a": 1}}}));
        let made = Config::from_value(json!({"linux": {"seccomp": {"a": 2}, "cgroupsPath": "/x"}, "annotations": {}}));
        let text = serde_json::to_string_pretty(&engine.value).unwrap();
        durable::replace_unsynced(&dir.path().join(CONFIG), text.as_bytes(), 0o644).unwrap();
        made.replace(dir.path()).unwrap();
        (dir, engine, made)
    }

    #[test]
    fn a_bundle_can_be_used_again() {
        let (dir, engine, made) = replaced();
        let mut annotated = made.clone();
        annotated.value["annotations"] = json!({annotations::GENERATION: "7", annotations::DIFF: "{}"});
        annotated.store(dir.path()).unwrap();
        for _ in 0..2 {
            restore(dir.path()).unwrap();
            let text = std::fs::read_to_string(dir.path().join(CONFIG)).unwrap();
            assert_eq!(text, serde_json::to_string_pretty(&engine.value).unwrap(), "byte for byte");
            assert!(!dir.path().join(ENGINE_CONFIG).exists());
        }
    }

    #[test]
    fn an_edited_configuration_stays() {
        let (dir, _, mut edited) = replaced();
        edited.value["hostname"] = json!("new");
        edited.store(dir.path()).unwrap();
        restore(dir.path()).unwrap();
        assert_eq!(Config::load(dir.path()).unwrap(), edited);
        assert!(!dir.path().join(ENGINE_CONFIG).exists());
    }

    #[test]
    fn unknown_fields_and_their_order_survive_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"ociVersion":"1.0.2","zeta":{"b":1,"a":2},"process":{"args":["x"]}}"#;
        durable::replace_unsynced(&dir.path().join(CONFIG), text.as_bytes(), 0o644).unwrap();
        Config::load(dir.path()).unwrap().store(dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join(CONFIG)).unwrap(), text);
    }

    #[test]
    fn a_missing_configuration_has_the_text_that_callers_know() {
        let dir = tempfile::tempdir().unwrap();
        let err = Config::load(dir.path()).unwrap_err();
        let text = err.to_string();
        let rest = text.strip_prefix("JSON specification file config.json not found").unwrap();
        assert_eq!(rest, format!(" in {}: name the bundle's directory with --bundle", dir.path().display()));
    }
}
