//! What containerd's client says about how its containers are to be run, and what is kept of it in the bundle for
//! `delete`, which may have to clean up after a shim that was killed.
//!
//! `containerd.runc.v1.Options` is what `ctr` and Docker send, as for runc's shim. Kubernetes sends, for a runtime that it
//! does not know, `runtimeoptions.v1.Options`, of which the path of a configuration is taken. Others are ignored: a client
//! can't know which its runtime understands.

use std::path::{Path, PathBuf};
use std::process::Command;

use containerd_shim_protos::protobuf::rt::WireType;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{CodedInputStream, Message};
use containerd_shim_protos::shim::oci;
use serde::{Deserialize, Serialize};

use super::ShimError;
use crate::durable;
use crate::sys::open_files;

/// Below it each namespace of containerd has its containers' state, as with runc.
const ROOT: &str = "/run/containerd/agentsbx";
/// The runtime's program.
const PROGRAM: &str = "agentsbx";
/// The file in a bundle.
const FILE: &str = "shim.json";

/// The options of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The runtime's program, where it is not the one beside the shim.
    pub binary: Option<PathBuf>,
    /// Where the runtime keeps its state, without the namespace.
    pub root: Option<PathBuf>,
    /// The runtime's configuration, where it is not the usual one.
    pub config: Option<PathBuf>,
    /// Cgroups are systemd's.
    pub systemd_cgroup: bool,
    /// `create --no-pivot`.
    pub no_pivot_root: bool,
    /// `create --no-new-keyring`.
    pub no_new_keyring: bool,
    /// The cgroup of the shim itself, below each hierarchy.
    pub shim_cgroup: Option<PathBuf>,
    /// Owner of the pipes that processes get.
    pub io_uid: u32,
    /// Their group.
    pub io_gid: u32,
}

impl Options {
    /// From a request. No options, or those of another runtime, are the defaults.
    ///
    /// # Errors
    /// If they say that they are of a type that is known, and can't be decoded.
    pub fn of(any: Option<&Any>) -> Result<Options, ShimError> {
        let Some(any) = any else { return Ok(Options::default()) };
        // `type.googleapis.com/containerd.runc.v1.Options`, or without that.
        let name = any.type_url.rsplit('/').next().unwrap_or_default();
        let invalid = |err| ShimError::Invalid(format!("options of type {}: {err}", any.type_url));
        match name {
            "containerd.runc.v1.Options" => {
                oci::Options::parse_from_bytes(&any.value).map(Options::of_runc).map_err(invalid)
            }
            "runtimeoptions.v1.Options" => {
                config_path(&any.value).map(|config| Options { config, ..Options::default() }).map_err(invalid)
            }
            _ => Ok(Options::default()),
        }
    }

    fn of_runc(options: oci::Options) -> Options {
        let path = |text: String| Some(text).filter(|text| !text.is_empty()).map(PathBuf::from);
        Options {
            binary: path(options.binary_name),
            root: path(options.root),
            config: None,
            systemd_cgroup: options.systemd_cgroup,
            no_pivot_root: options.no_pivot_root,
            no_new_keyring: options.no_new_keyring,
            shim_cgroup: path(options.shim_cgroup),
            io_uid: options.io_uid,
            io_gid: options.io_gid,
        }
    }

    /// What is kept, with everything decided. `cgroups_path` is the configuration's: in systemd's form it calls for systemd,
    /// also where the client could not say so.
    pub fn saved(&self, namespace: &str, cgroups_path: Option<&str>) -> Saved {
        Saved {
            runtime: self.binary.clone().unwrap_or_else(beside_the_shim),
            root: self.root.clone().unwrap_or_else(|| ROOT.into()).join(namespace),
            config: self.config.clone(),
            systemd_cgroup: self.systemd_cgroup || cgroups_path.is_some_and(is_systemd),
        }
    }
}

/// `config_path`, the second field; the message is not among containerd's.
fn config_path(bytes: &[u8]) -> Result<Option<PathBuf>, containerd_shim_protos::protobuf::Error> {
    let mut input = CodedInputStream::from_bytes(bytes);
    let mut found = None;
    while let Some(tag) = input.read_raw_tag_or_eof()? {
        match (tag >> 3, WireType::new(tag & 7)) {
            (2, Some(WireType::LengthDelimited)) => found = Some(input.read_string()?),
            (_, Some(wire)) => input.skip_field(wire)?,
            (_, None) => return Ok(None),
        }
    }
    Ok(found.filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// `SLICE:PREFIX:NAME`.
fn is_systemd(cgroups_path: &str) -> bool {
    let parts: Vec<_> = cgroups_path.split(':').collect();
    matches!(parts[..], [slice, _, name] if !name.is_empty() && !slice.contains('/') && (slice.is_empty() || slice.ends_with(".slice")))
}

fn beside_the_shim() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|shim| shim.with_file_name(PROGRAM));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PROGRAM.into())
}

/// How the runtime is called for a container: `shim.json` in its bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Saved {
    /// Its program: a path, or a name to look up.
    pub runtime: PathBuf,
    /// `--root`.
    pub root: PathBuf,
    /// `AGENTSBX_CONFIG`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// `--systemd-cgroup`.
    #[serde(default)]
    pub systemd_cgroup: bool,
}

impl Saved {
    /// The runtime's command line, up to where the verb goes.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.runtime);
        command.arg("--root").arg(&self.root);
        if self.systemd_cgroup {
            command.arg("--systemd-cgroup");
        }
        if let Some(config) = &self.config {
            command.env("AGENTSBX_CONFIG", config);
        }
        // A container gets what the runtime has, where nothing else is said.
        open_files::give_back(&mut command);
        command
    }

    /// Writes it into the bundle.
    pub fn save(&self, bundle: &Path) -> Result<(), ShimError> {
        let path = bundle.join(FILE);
        let text = serde_json::to_vec(self).unwrap_or_default();
        durable::replace_unsynced(&path, &text, 0o600).map_err(ShimError::io("write", path))
    }

    /// Reads it from the bundle; where there is none (`create` did not come so far), what holds without options.
    pub fn load(bundle: &Path, namespace: &str) -> Saved {
        let saved = std::fs::read(bundle.join(FILE)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        saved.unwrap_or_else(|| Options::default().saved(namespace, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(type_url: &str, value: Vec<u8>) -> Any {
        Any { type_url: type_url.into(), value, ..Any::default() }
    }

    #[test]
    fn options_of_each_client() {
        let runc = oci::Options {
            binary_name: "/opt/agentsbx".into(),
            root: "/run/x".into(),
            systemd_cgroup: true,
            io_uid: 7,
            ..oci::Options::default()
        };
        let bytes = runc.write_to_bytes().unwrap();
        for url in ["containerd.runc.v1.Options", "type.googleapis.com/containerd.runc.v1.Options"] {
            let options = Options::of(Some(&any(url, bytes.clone()))).unwrap();
            assert_eq!((options.binary.as_deref(), options.io_uid), (Some(Path::new("/opt/agentsbx")), 7));
            let saved = options.saved("k8s.io", None);
            assert_eq!((saved.root.as_path(), saved.systemd_cgroup), (Path::new("/run/x/k8s.io"), true));
        }
        // type_url, config_path, config_body
        let cri = b"\x0a\x01t\x12\x0d/etc/x/y.toml\x1a\x03abc".to_vec();
        let options = Options::of(Some(&any("runtimeoptions.v1.Options", cri))).unwrap();
        assert_eq!(options.config.as_deref(), Some(Path::new("/etc/x/y.toml")));
        assert_eq!(Options::of(Some(&any("x.y.Options", vec![0xff; 9]))).unwrap(), Options::default());
        assert_eq!(Options::of(None).unwrap(), Options::default());
        Options::of(Some(&any("containerd.runc.v1.Options", vec![0xff; 9]))).unwrap_err();
    }

    #[test]
    fn systemd_is_seen_by_the_path() {
        for (path, systemd) in [
            ("kubepods-burstable.slice:cri-containerd:abc", true),
            (":docker:abc", true),
            ("/kubepods/abc", false),
            ("/a:b:c", false),
            ("a:b:c", false),
            ("x.slice:b:", false),
            ("", false),
        ] {
            assert_eq!(Options::default().saved("n", Some(path)).systemd_cgroup, systemd, "{path}");
        }
    }

    #[test]
    fn what_is_saved_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let none = Saved::load(dir.path(), "ns");
        assert_eq!(none.root, Path::new("/run/containerd/agentsbx/ns"));
        let saved = Options { config: Some("/c".into()), ..Options::default() }.saved("ns", Some("a.slice:b:c"));
        saved.save(dir.path()).unwrap();
        assert_eq!(Saved::load(dir.path(), "other"), saved);
    }
}
