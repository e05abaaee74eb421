//! The execs at work on a container: a small file for each in the container's state directory, from its begin to its end,
//! so that a signal for an exec, or the question whose a process is, needs no database.
//!
//! `ROOT/ID/execs/EXEC` has one line of JSON from before the exec's row is in the store, and a second one from when the command
//! runs. A file whose supervisor is dead says nothing, and goes when the container is repaired.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::id::ExecId;
use crate::runtime::error::{On, RuntimeError};
use crate::runtime::members;
use crate::runtime::state::{ProcessId, Record};
use crate::sys::proc;

const DIR: &str = "execs";

/// An exec that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its id.
    pub id: ExecId,
    /// Its command, once that runs.
    pub command: Option<ProcessId>,
    beginning: Beginning,
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Beginning {
    /// The engine's own id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    engine_exec: Option<String>,
    supervisor: ProcessId,
    /// Its own cgroups.
    cgroups: Vec<PathBuf>,
}

impl Entry {
    /// The engine's id for it, or else ours.
    pub fn name(&self) -> String {
        self.beginning.engine_exec.clone().unwrap_or_else(|| self.id.to_string())
    }

    /// Its own cgroups.
    pub fn cgroups(&self) -> &[PathBuf] {
        &self.beginning.cgroups
    }

    fn is_called(&self, name: &str) -> bool {
        self.beginning.engine_exec.as_deref() == Some(name)
    }

    fn is_supervised(&self) -> Result<bool, RuntimeError> {
        let ProcessId { pid, start_time } = self.beginning.supervisor;
        proc::is_alive(pid, start_time).during("read /proc")
    }
}

/// This process's own entry, as the supervisor of an exec; it goes when this is dropped.
#[derive(Debug)]
#[must_use = "the exec is not to be found once this is dropped"]
pub struct Listed {
    path: PathBuf,
    file: fs::File,
}

impl Listed {
    /// Lists exec `id`, whose groups will be `cgroups`.
    pub fn enter(
        record: &Record,
        id: ExecId,
        engine_exec: Option<String>,
        cgroups: Vec<PathBuf>,
    ) -> Result<Listed, RuntimeError> {
        let (pid, start_time) = proc::this().during("read /proc/self/stat")?;
        let beginning = Beginning { engine_exec, supervisor: ProcessId { pid, start_time }, cgroups };
        let dir = record.dir.join(DIR);
        let path = dir.join(id.to_string());
        // Without a name until its first line is there, by which it is known whose it is.
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::TMPFILE | OFlags::CLOEXEC;
        let open = || rustix::fs::open(&dir, flags, Mode::from_raw_mode(0o600));
        let file = match open() {
            // The container's first one.
            Err(rustix::io::Errno::NOENT) => {
                match rustix::fs::mkdir(&dir, Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(errno) => return Err(errno).on("make", &dir),
                }
                open()
            }
            opened => opened,
        };
        let (file, named) = match file {
            // The filesystem has no files without a name (an overlay, before Linux 6.1).
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
                let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                (rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).on("make", &path)?, true)
            }
            file => (file.on("make", &path)?, false),
        };
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut listed = Listed { path, file: file.into() };
        listed.add(&beginning)?;
        if !named {
            let linked = rustix::fs::linkat(CWD, unnamed, CWD, &listed.path, AtFlags::SYMLINK_FOLLOW);
            linked.on("name", &listed.path)?;
        }
        Ok(listed)
    }

    /// Adds that the command runs, as process `pid`.
    pub fn runs(&mut self, pid: i32) -> Result<(), RuntimeError> {
        // It stays until this process ends, be it as a zombie.
        let stat = proc::stat(pid).and_then(|stat| stat.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH)));
        let start_time = stat.during("read /proc/PID/stat of the command")?.start_time;
        self.add(&ProcessId { pid, start_time })
    }

    fn add(&mut self, line: &impl Serialize) -> Result<(), RuntimeError> {
        let mut text = serde_json::to_vec(line).map_err(io::Error::other).on("encode", &self.path)?;
        text.push(b'\n');
        self.file.write_all(&text).on("write", &self.path)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // Gone with the whole directory, or to go with it: it says nothing once this process has ended.
        let _ = fs::remove_file(&self.path);
    }
}

/// Takes out what killed supervisors left in the container's state directory `dir`: how many there were.
pub fn sweep(dir: &Path) -> Result<usize, RuntimeError> {
    let mut swept = 0;
    for id in ids(dir)? {
        if let Some(entry) = read(dir, id)?
            && !entry.is_supervised()?
        {
            // Gone meanwhile is gone.
            let _ = fs::remove_file(dir.join(DIR).join(id.to_string()));
            swept += 1;
        }
    }
    Ok(swept)
}

/// The execs of a container, the newest first.
pub fn all(record: &Record) -> Result<Vec<Entry>, RuntimeError> {
    let mut entries = Vec::new();
    for id in ids(&record.dir)? {
        entries.extend(look(record, id)?);
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.id));
    Ok(entries)
}

fn ids(dir: &Path) -> Result<Vec<ExecId>, RuntimeError> {
    let dir = dir.join(DIR);
    let files = match fs::read_dir(&dir) {
        Ok(files) => files,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(err) => return Err(err).on("list", &dir),
    };
    Ok(files.flatten().filter_map(|file| file.file_name().to_str()?.parse().ok()).collect())
}

/// The exec that has this id, or the newest that the engine calls `name`.
pub fn find(record: &Record, name: &str) -> Result<Option<Entry>, RuntimeError> {
    if let Ok(id) = name.parse::<ExecId>()
        && let Some(entry) = look(record, id)?
    {
        return Ok(Some(entry));
    }
    Ok(all(record)?.into_iter().find(|entry| entry.is_called(name)))
}

/// The exec with this id, if it has not ended.
pub fn look(record: &Record, id: ExecId) -> Result<Option<Entry>, RuntimeError> {
    match read(&record.dir, id)? {
        Some(entry) if entry.is_supervised()? => Ok(Some(entry)),
        _ => Ok(None),
    }
}

fn read(dir: &Path, id: ExecId) -> Result<Option<Entry>, RuntimeError> {
    let path = dir.join(DIR).join(id.to_string());
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err).on("read", &path),
    };
    // A line without its end is being written.
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let Some(first) = lines.next() else { return Ok(None) };
    let damaged = |err: serde_json::Error| io::Error::new(io::ErrorKind::InvalidData, err);
    let beginning = serde_json::from_str(first).map_err(damaged).on("parse", &path)?;
    let command =
        lines.next().map(|line| serde_json::from_str(line).map_err(damaged).on("parse", &path)).transpose()?;
    Ok(Some(Entry { id, command, beginning }))
}

/// The processes of a container, ascending, each with the exec in whose groups it is, if it is in one's.
pub fn processes(record: &Record) -> Result<Vec<(i32, Option<String>)>, RuntimeError> {
    // Before the execs: whoever is listed then has its exec listed too, or has ended with it.
    let pids = crate::runtime::pids(record)?;
    let mut owners = HashMap::new();
    for entry in all(record)? {
        // Each of its groups has all its processes.
        for pid in members::pids(entry.cgroups().get(..1).unwrap_or_default())? {
            owners.insert(pid, entry.name());
        }
    }
    Ok(pids.into_iter().map(|pid| (pid, owners.remove(&pid))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::state::tests::sample;

    #[test]
    fn an_exec_is_found_by_its_names_while_its_supervisor_lives() {
        let dir = tempfile::tempdir().unwrap();
        let record = sample(dir.path());
        assert_eq!(all(&record).unwrap(), []);
        assert_eq!(find(&record, "e").unwrap(), None);
        let enter = |engine: Option<&str>| {
            let id = ExecId::new();
            (id, Listed::enter(&record, id, engine.map(str::to_owned), vec!["/g".into()]).unwrap())
        };
        let (old, mut first) = enter(Some("e"));
        std::thread::sleep(std::time::Duration::from_millis(2));
        let (new, second) = enter(Some("e"));
        let (nameless, third) = enter(None);
        let found = find(&record, "e").unwrap().unwrap();
        assert_eq!((found.id, found.command, found.cgroups()), (new, None, &["/g".into()][..]));
        drop(second);
        assert_eq!(find(&record, "e").unwrap().unwrap().id, old);
        assert_eq!(find(&record, &nameless.to_string()).unwrap().unwrap().name(), nameless.to_string());
        let (pid, start_time) = proc::this().unwrap();
        first.runs(pid).unwrap();
        assert_eq!(find(&record, "e").unwrap().unwrap().command, Some(ProcessId { pid, start_time }));
        drop((first, third));
        assert_eq!(all(&record).unwrap(), []);
    }

    #[test]
    fn what_a_killed_supervisor_left_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let record = sample(dir.path());
        let id = ExecId::new();
        let listed = Listed::enter(&record, id, Some("e".into()), Vec::new()).unwrap();
        let text = fs::read_to_string(&listed.path).unwrap();
        let (pid, start) = proc::this().unwrap();
        // Another process has its pid.
        let dead = text.replace(&format!("\"startTime\":{start}"), &format!("\"startTime\":{}", start + 1));
        assert!(text.contains(&pid.to_string()) && dead != text);
        crate::durable::replace_unsynced(&listed.path, dead.as_bytes(), 0o600).unwrap();
        assert_eq!(find(&record, "e").unwrap(), None);
        // A line that is being written says nothing yet.
        crate::durable::replace_unsynced(&listed.path, &text.as_bytes()[..text.len() - 1], 0o600).unwrap();
        assert_eq!(find(&record, "e").unwrap(), None);
        assert_eq!(sweep(dir.path()).unwrap(), 0, "what is being written is somebody's");
        crate::durable::replace_unsynced(&listed.path, dead.as_bytes(), 0o600).unwrap();
        assert_eq!(sweep(dir.path()).unwrap(), 1);
        assert!(!listed.path.exists());
    }
}
