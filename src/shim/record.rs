//! What the shim reads and writes in a bundle: the engine's configuration, pid files, the first process's exit code.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use chrono::{DateTime, Utc};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::ShimError;
use super::reaper::Exit;
use crate::durable;

/// The longest configuration, bytes.
const CONFIG_MAX: u64 = 16 << 20;
/// Annotations that name a container's group, in this order.
const GROUPS: [&str; 2] = ["io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"];
/// Where containerd's plugin for sandboxes that a shim makes by itself has their bundles: there is no container in one.
const SANDBOXES: &str = "io.containerd.sandbox.controller.v1.shim";
/// The longest id of an exec, bytes: a file is named after it.
const EXEC_ID_MAX: usize = 200;
/// The file with the exit code.
const EXIT_FILE: &str = "exit.json";
/// The file that says that the runtime knows the container no more.
const DELETED_FILE: &str = "deleted";

/// The parts of `config.json` that the shim looks at.
#[derive(Debug, Default, Deserialize)]
pub struct Config {
    #[serde(default)]
    annotations: Option<HashMap<String, String>>,
    #[serde(default)]
    linux: Linux,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Linux {
    #[serde(default)]
    cgroups_path: Option<String>,
    #[serde(default)]
    namespaces: Vec<Namespace>,
}

#[derive(Debug, Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: String,
}

impl Config {
    /// Of the bundle.
    ///
    /// # Errors
    /// [`ShimError::Unimplemented`] for a sandbox without a container.
    pub fn read(bundle: &Path) -> Result<Config, ShimError> {
        let path = bundle.join("config.json");
        let mut text = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(CONFIG_MAX).read_to_end(&mut text));
        if let Err(err) = read {
            let sandbox = path.components().any(|part| part.as_os_str() == SANDBOXES);
            return Err(match err.kind() {
                io::ErrorKind::NotFound if sandbox => ShimError::Unimplemented(
                    "sandboxer = \"shim\" (take it out of the runtime's table in containerd's configuration)".into(),
                ),
                _ => ShimError::io("read", &path)(err),
            });
        }
        serde_json::from_slice(&text).map_err(|err| ShimError::Invalid(format!("{}: {err}", path.display())))
    }

    /// The group that it names: containers with one are served by one process.
    pub fn group(&self) -> Option<&str> {
        let annotations = self.annotations.as_ref()?;
        GROUPS.iter().find_map(|name| annotations.get(*name).map(String::as_str).filter(|group| !group.is_empty()))
    }

    /// `linux.cgroupsPath`.
    pub fn cgroups_path(&self) -> Option<&str> {
        self.linux.cgroups_path.as_deref()
    }

    /// Whether the first process is the first of a pid namespace that is made for it.
    pub fn has_own_pid_namespace(&self) -> bool {
        self.linux.namespaces.iter().any(|namespace| namespace.kind == "pid" && namespace.path.is_empty())
    }
}

/// The directory of a bundle, to be looked at by [`is_gone`] later.
pub fn open(bundle: &Path) -> Result<OwnedFd, ShimError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(bundle, flags, Mode::empty()).map_err(|errno| ShimError::io("open", bundle)(errno.into()))
}

/// Whether a directory has been removed.
pub fn is_gone(directory: &OwnedFd) -> bool {
    rustix::fs::fstat(directory).is_ok_and(|stat| stat.st_nlink == 0)
}

/// An exec's id that a file can be named after.
pub fn check_exec_id(id: &str) -> Result<&str, ShimError> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.:+@=".contains(c);
    // The runtime takes leading dots off a pid file's name, as another shim puts one there.
    if id.is_empty() || id.len() > EXEC_ID_MAX || id.starts_with('.') || !id.chars().all(good) {
        return Err(ShimError::Invalid(format!("exec id {id:?}")));
    }
    Ok(id)
}

/// A pid file as the runtime writes it.
pub fn read_pid(path: &Path) -> Result<u32, ShimError> {
    let text = std::fs::read_to_string(path).map_err(ShimError::io("read", path))?;
    let pid = text.trim().parse().ok().filter(|pid| *pid != 0);
    pid.ok_or_else(|| ShimError::Io {
        doing: "read a pid from",
        path: path.into(),
        source: io::ErrorKind::InvalidData.into(),
    })
}

/// A directory that is there already is as good as a new one.
pub fn there(err: io::Error) -> io::Result<()> {
    if err.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(err) }
}

/// The first process's end: what `delete` answers when the shim is gone, so that containerd tells no second code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// Its pid, which may be another's by now.
    pub pid: u32,
    /// Its exit code, or 128 and the signal that killed it.
    pub status: u32,
    /// When.
    pub exited_at: DateTime<Utc>,
}

/// Records the first process's end in the bundle.
pub fn write_exit(bundle: &Path, pid: u32, exit: Exit) -> io::Result<()> {
    let text = serde_json::to_vec(&Ended { pid, status: exit.code, exited_at: exit.at.into() })?;
    durable::replace_unsynced(&bundle.join(EXIT_FILE), &text, 0o600)
}

/// What was recorded; `None` if it had not ended when the shim did.
pub fn read_exit(bundle: &Path) -> Option<Ended> {
    let text = std::fs::read(bundle.join(EXIT_FILE)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Records that the runtime has deleted the container, so that `delete`, which containerd calls after every shim's end, has
/// no need to ask it again.
pub fn write_deleted(bundle: &Path) -> io::Result<()> {
    durable::replace_unsynced(&bundle.join(DELETED_FILE), b"", 0o600)
}

/// Takes that back: a container is about to be made of the bundle.
pub fn forget_deleted(bundle: &Path) -> Result<(), ShimError> {
    let path = bundle.join(DELETED_FILE);
    durable::remove_file(&path).map_err(ShimError::io("unlink", path))
}

/// Whether it was recorded.
pub fn was_deleted(bundle: &Path) -> bool {
    bundle.join(DELETED_FILE).is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_of_a_configuration() {
        let config = |text: &str| serde_json::from_str::<Config>(text).unwrap();
        let own = config(r#"{"linux": {"cgroupsPath": "/a/b", "namespaces": [{"type": "pid"}, {"type": "ipc"}]}}"#);
        assert_eq!((own.cgroups_path(), own.has_own_pid_namespace()), (Some("/a/b"), true));
        let joined = config(r#"{"linux": {"namespaces": [{"type": "pid", "path": "/proc/1/ns/pid"}]}}"#);
        assert_eq!((joined.cgroups_path(), joined.has_own_pid_namespace()), (None, false));
        assert!(!config("{}").has_own_pid_namespace());
    }

    #[test]
    fn exec_ids_name_files() {
        for good in ["a", "exec-1", "3f0a", "a.b_c"] {
            assert_eq!(check_exec_id(good).unwrap(), good);
        }
        let long = "a".repeat(201);
        for bad in ["", ".", "..", "../x", "a/b", ".a", "a\0", "a\n", &long] {
            check_exec_id(bad).unwrap_err();
        }
    }

    #[test]
    fn a_bundle_that_is_gone_is_not_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().join("b");
        std::fs::create_dir(&bundle).unwrap();
        let first = open(&bundle).unwrap();
        assert!(!is_gone(&first));
        std::fs::remove_dir(&bundle).unwrap();
        std::fs::create_dir(&bundle).unwrap();
        assert!(is_gone(&first) && !is_gone(&open(&bundle).unwrap()));
    }

    #[test]
    fn an_exit_code_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_exit(dir.path()), None);
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_700_000_000_123_456_789);
        write_exit(dir.path(), 77, Exit { code: 137, at }).unwrap();
        let read = read_exit(dir.path()).unwrap();
        assert_eq!((read.pid, read.status, read.exited_at), (77, 137, at.into()));
    }
}
