//! Our record of a container, `ROOT/ID/agentsbx.json`, and the status computed from it and from the kernel.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::cgroup::{self, CgroupDir};
use super::cow::CowSource;
use super::error::{On, RuntimeError};
use super::freezer::Turn;
use super::members;
use super::seccomp::Filter;
use super::start;
use crate::durable;
use crate::id::ContainerId;
use crate::policy::{Confinement, Decision};
use crate::spec::idmap::IdMaps;
use crate::spec::inherited::Inherited;
use crate::sys::proc;

/// The record's file in the container's state directory.
pub const RECORD: &str = "agentsbx.json";
/// libcontainer's own state lies below this directory of the container's state directory.
pub const LIBCONTAINER: &str = "libcontainer";
/// The record's version that we write, and the newest that we read.
pub const VERSION: u32 = 1;

/// What a container does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// `create` is at work (hooks see this).
    Creating,
    /// The first process waits for `start`.
    Created,
    /// It runs.
    Running,
    /// It is frozen.
    Paused,
    /// The first process has ended.
    Stopped,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Creating => "creating",
            Status::Created => "created",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Stopped => "stopped",
        })
    }
}

/// A process, by pid and start time (field 22 of `/proc/PID/stat`, clock ticks since boot).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    /// Its pid.
    pub pid: i32,
    /// When it started.
    pub start_time: u64,
}

/// A namespace of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceRef {
    /// `pid`, `mount`, `network` …
    #[serde(rename = "type")]
    pub kind: String,
    /// The namespace that was joined; none if it is the container's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}

/// What we know of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Version of this document.
    pub version: u32,
    /// The container's id.
    pub id: ContainerId,
    /// The configuration's `ociVersion`.
    pub oci_version: String,
    /// The bundle, absolute.
    pub bundle: PathBuf,
    /// The root filesystem, absolute and canonical.
    pub rootfs: PathBuf,
    /// When it was created, RFC 3339 with nanoseconds.
    pub created: String,
    /// User id that created it.
    pub owner: u32,
    /// Pid of the first process; 0 while it is being created.
    pub pid: i32,
    /// Its start time: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
    /// The `create` that is at work, until it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<ProcessId>,
    /// The container's cgroup in each hierarchy; never a hierarchy's root.
    pub cgroups: Vec<CgroupDir>,
    /// The cgroup as libcgroups takes it.
    pub cgroup_path: PathBuf,
    /// The container can change its own cgroups. A record that does not say was made when nobody asked.
    #[serde(default = "unknown")]
    pub manages_cgroups: bool,
    /// The systemd driver was asked for.
    pub systemd_cgroup: bool,
    /// `root.readonly` of the configuration.
    pub readonly_root: bool,
    /// The configuration's annotations at create.
    pub annotations: BTreeMap<String, String>,
    /// Row of the layer store, if it is registered there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_key: Option<i64>,
    /// The configuration's namespaces.
    pub namespaces: Vec<NamespaceRef>,
    /// The seccomp filter of its execs.
    #[serde(default)]
    pub seccomp: Filter,
    /// `linux.personality` of the configuration, for personality(2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub personality: Option<u64>,
    /// It has a session keyring of its own, which its execs join.
    #[serde(default)]
    pub keyring: bool,
    /// What its execs take from its process.
    #[serde(default)]
    pub inherited: Inherited,
    /// `hooks` of the configuration: the bundle may be gone or changed when the later ones are due.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub hooks: serde_json::Value,
    /// The mappings of its user namespace, where its configuration has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_maps: Option<IdMaps>,
    /// What its profile makes of every exec.
    #[serde(default)]
    pub confinement: Confinement,
    /// What its profile changed of the engine's configuration; only while it is created.
    #[serde(skip)]
    pub decisions: Vec<Decision>,
    /// The sources of its copy-on-write mounts; only while it is created.
    #[serde(skip)]
    pub cows: Vec<CowSource>,
    /// The state directory this was loaded from.
    #[serde(skip)]
    pub dir: PathBuf,
}

fn unknown() -> bool {
    true
}

/// What has become of a container that somebody was at work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// It was deleted; its id may be another's by now.
    Deleted,
    /// Its first process has ended or is ending, or there is none yet.
    Ended,
}

/// How long the threads of a first process that is ending may take.
const ENDING: Duration = Duration::from_millis(200);

impl Record {
    /// Whether `other` is the same container, and not one that got its id later.
    pub fn is_same(&self, other: &Record) -> bool {
        (&self.id, &self.created, &self.bundle) == (&other.id, &other.created, &other.bundle)
    }

    /// Whether the container is gone, or has begun to go: then its files, cgroups and namespaces vanish one after another, and
    /// whatever failed with one of them has this for its reason.
    pub fn gone(&self) -> Result<Option<Gone>, RuntimeError> {
        match Record::load(self.root(), &self.id) {
            Ok(now) if now.is_same(self) => {}
            Ok(_) | Err(RuntimeError::NotFound) => return Ok(Some(Gone::Deleted)),
            Err(err) => return Err(err),
        }
        let until = Instant::now() + ENDING;
        loop {
            let stat = proc::stat(self.pid).during("read /proc")?.filter(|stat| stat.start_time == self.start_time);
            match stat {
                Some(stat) if stat.is_dead() || (stat.exiting && stat.threads <= 1) => return Ok(Some(Gone::Ended)),
                // Its first thread alone, or one after the other.
                Some(stat) if stat.exiting && Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
                Some(_) => return Ok(None),
                None => return Ok(Some(Gone::Ended)),
            }
        }
    }

    /// What to tell of a failure: that there is no such container any more, or `ended` where its end is the reason.
    pub fn or_gone(&self, err: RuntimeError, ended: RuntimeError) -> RuntimeError {
        match self.gone() {
            Ok(Some(Gone::Deleted)) => RuntimeError::NotFound,
            Ok(Some(Gone::Ended)) => ended,
            // The first failure is the one to tell.
            Ok(None) | Err(_) => err,
        }
    }

    /// The directory of the state directories.
    pub fn root(&self) -> &Path {
        self.dir.parent().unwrap_or(Path::new("/"))
    }

    /// The state directory of container `id`.
    pub fn dir_of(root: &Path, id: &ContainerId) -> PathBuf {
        root.join(id.as_str())
    }

    /// Reads the record of `id`; [`RuntimeError::NotFound`] if there is none.
    pub fn load(root: &Path, id: &ContainerId) -> Result<Record, RuntimeError> {
        let dir = Record::dir_of(root, id);
        let bytes = fs::read(dir.join(RECORD)).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => RuntimeError::NotFound,
            _ => RuntimeError::Record { id: id.to_string(), source },
        })?;
        let damaged = |why: String| RuntimeError::Record {
            id: id.to_string(),
            source: io::Error::new(io::ErrorKind::InvalidData, why),
        };
        let mut record: Record = serde_json::from_slice(&bytes).map_err(|err| damaged(err.to_string()))?;
        if record.version > VERSION {
            return Err(damaged(format!("version {} is newer than this runtime's {VERSION}", record.version)));
        }
        if record.id != *id {
            return Err(damaged(format!("it is of container {}", record.id)));
        }
        record.dir = dir;
        Ok(record)
    }

    /// Writes the record to its directory.
    pub fn save(&self) -> Result<(), RuntimeError> {
        let path = self.dir.join(RECORD);
        let bytes = serde_json::to_vec(self).map_err(io::Error::other).on("encode", &path)?;
        durable::replace_unsynced(&path, &bytes, 0o600).on("write", &path)
    }

    /// Ids in `root`, sorted; entries that are no container are left out.
    pub fn list(root: &Path) -> Result<Vec<ContainerId>, RuntimeError> {
        let entries = match fs::read_dir(root) {
            Ok(entries) => entries,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(err) => return Err(err).on("read directory", root),
        };
        let mut ids = Vec::new();
        for entry in entries {
            let entry = entry.on("read directory", root)?;
            let id = entry.file_name().to_str().and_then(|name| name.parse::<ContainerId>().ok());
            if let Some(id) = id
                && entry.path().join(RECORD).is_file()
            {
                ids.push(id);
            }
        }
        ids.sort();
        Ok(ids)
    }

    /// The hooks of one phase (`poststart`, `poststop` …).
    pub fn hooks_of(&self, phase: &str) -> &[serde_json::Value] {
        self.hooks.get(phase).and_then(serde_json::Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// libcontainer's directory for this container.
    pub fn libcontainer_dir(&self) -> PathBuf {
        self.dir.join(LIBCONTAINER).join(self.id.as_str())
    }

    /// The socket on which the first process waits for `start`; it is removed once start was told.
    pub fn start_socket(&self) -> PathBuf {
        self.libcontainer_dir().join("notify.sock")
    }

    /// The first process, if it has not ended.
    pub fn init(&self) -> Result<Option<proc::PidFd>, RuntimeError> {
        proc::PidFd::open(self.pid, self.start_time).during("open pidfd of the container's first process")
    }

    /// What the container does now. Somebody who has frozen it only to signal all its processes is waited for, for a moment.
    pub fn status(&self) -> Result<Status, RuntimeError> {
        match self.status_now()? {
            Status::Paused => {
                // While it is our turn nobody has it frozen for a moment.
                let _turn = Turn::take(self);
                self.status_now()
            }
            status => Ok(status),
        }
    }

    /// The same by what the kernel says: for whoever has the turn with its freezer.
    pub(super) fn status_now(&self) -> Result<Status, RuntimeError> {
        if let Some(creator) = self.creator {
            let alive = proc::is_alive(creator.pid, creator.start_time).during("read /proc")?;
            return Ok(if alive { Status::Creating } else { Status::Stopped });
        }
        if !proc::is_alive(self.pid, self.start_time).during("read /proc")? {
            return Ok(Status::Stopped);
        }
        if cgroup::is_frozen(&self.cgroups) {
            return Ok(Status::Paused);
        }
        // The socket is removed by `start`, which may have been killed before that.
        let waits = self.start_socket().exists() && !start::is_past(&self.dir);
        Ok(if waits { Status::Created } else { Status::Running })
    }

    /// The pid to show: 0 once the container has stopped.
    pub fn shown_pid(&self, status: Status) -> i32 {
        if status == Status::Stopped { 0 } else { self.pid }
    }

    /// Whether a process in its pid namespace may be able to trace one that is not the container's: no fence keeps it
    /// from that, or the namespace is another container's too.
    pub fn may_trace(&self) -> bool {
        self.confinement.fence.is_none() || !self.has_own_pid_namespace()
    }

    /// True if the container has a pid namespace of its own, whose processes end with the first.
    pub fn has_own_pid_namespace(&self) -> bool {
        self.namespaces.iter().any(|ns| ns.kind == "pid" && ns.path.is_none())
    }
}

/// All pids in the container's cgroup, those of child cgroups (execs) included, ascending.
pub fn pids(record: &Record) -> Result<Vec<i32>, RuntimeError> {
    // One hierarchy knows them all; which, depends on the host.
    let best = |name: &str| record.cgroups.iter().find(|d| d.has(name));
    let one = best("pids").or_else(|| best("devices")).or_else(|| record.cgroups.iter().find(|d| d.is_v2()));
    Ok(match one {
        Some(dir) => members::pids(&[dir])?,
        None => members::pids(&record.cgroups)?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(dir: &Path) -> Record {
        Record {
            version: VERSION,
            id: "c1".parse().unwrap(),
            oci_version: "1.0.2".into(),
            bundle: "/b".into(),
            rootfs: "/b/rootfs".into(),
            created: "2024-01-01T00:00:00.000000000Z".into(),
            owner: 0,
            pid: 0,
            start_time: 0,
            creator: None,
            cgroups: Vec::new(),
            cgroup_path: "/agentsbx/c1".into(),
            manages_cgroups: false,
            systemd_cgroup: false,
            readonly_root: false,
            annotations: BTreeMap::new(),
            store_key: None,
            namespaces: Vec::new(),
            seccomp: Filter::None,
            personality: None,
            keyring: true,
            inherited: Inherited::default(),
            hooks: serde_json::Value::Null,
            id_maps: None,
            confinement: Confinement::default(),
            decisions: Vec::new(),
            cows: Vec::new(),
            dir: dir.to_owned(),
        }
    }

    #[test]
    fn round_trip_and_unknown_id() {
        let root = tempfile::tempdir().unwrap();
        let id: ContainerId = "c1".parse().unwrap();
        assert_eq!(Record::load(root.path(), &id).unwrap_err().to_string(), "container does not exist");
        let dir = root.path().join("c1");
        fs::create_dir(&dir).unwrap();
        let record = sample(&dir);
        record.save().unwrap();
        assert_eq!(Record::load(root.path(), &id).unwrap(), record);
        fs::create_dir(root.path().join("leftover")).unwrap();
        assert_eq!(Record::list(root.path()).unwrap(), [id]);
    }

    #[test]
    fn a_newer_record_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("c1");
        fs::create_dir(&dir).unwrap();
        let mut record = sample(&dir);
        record.version = VERSION + 1;
        record.save().unwrap();
        let err = Record::load(root.path(), &record.id).unwrap_err();
        assert!(crate::error::chain(&err).contains("newer"), "{err}");
    }

    #[test]
    fn status_by_pid_and_start_time() {
        let root = tempfile::tempdir().unwrap();
        let mut record = sample(root.path());
        assert_eq!(record.status().unwrap(), Status::Stopped);
        (record.pid, record.start_time) = proc::this().unwrap();
        assert_eq!(record.status().unwrap(), Status::Running);
        fs::create_dir_all(record.libcontainer_dir()).unwrap();
        durable::replace_unsynced(&record.start_socket(), b"", 0o600).unwrap();
        assert_eq!(record.status().unwrap(), Status::Created);
        record.start_time += 1;
        assert_eq!(record.status().unwrap(), Status::Stopped, "a recycled pid is another process");
        record.creator = Some(ProcessId { pid: proc::this().unwrap().0, start_time: proc::this().unwrap().1 });
        assert_eq!(record.status().unwrap(), Status::Creating);
    }
}
