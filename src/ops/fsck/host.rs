//! What execs may have left on the host: mounts inside the store, and cgroups of execs that do not run.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Area, Repair, Report};
use crate::id::ExecId;
use crate::ops::OpsError;
use crate::runtime::state::Record;
use crate::store::Store;
use crate::sys::mountinfo::unescape;

const MOUNTS: &str = "/proc/self/mountinfo";

pub(super) fn look(store: &Store, report: &mut Report) -> Result<(), OpsError> {
    let text = std::fs::read(MOUNTS).map_err(|source| OpsError::File { doing: "read", path: MOUNTS.into(), source })?;
    let root = std::fs::canonicalize(store.root()).unwrap_or_else(|_| store.root().to_owned());
    for (point, why) in inside(&text, &root) {
        let advice = "see who needs it (`findmnt`, `fuser -m`), then umount it";
        report.for_a_person(Area::Host, format!("mount {}: {why}", point.display()), advice);
    }
    for group in stray_cgroups(store)? {
        let what = format!("cgroup {}: its exec does not run", group.display());
        report.problem(Area::Host, Repair::Cgroup, what);
    }
    Ok(())
}

/// The mounts of a mountinfo file that are below `root`, or have a layer of its as their upper directory.
fn inside(mountinfo: &[u8], root: &Path) -> Vec<(PathBuf, &'static str)> {
    let layers = [b"upperdir=", root.as_os_str().as_bytes(), b"/layers/"].concat();
    let mut found = Vec::new();
    for line in mountinfo.split(|b| *b == b'\n') {
        let mut fields = line.split(|b| *b == b' ');
        let Some(point) = fields.nth(4).map(unescape) else { continue };
        let options = fields.next_back().unwrap_or_default();
        if point != root && point.starts_with(root) {
            found.push((point, "something is mounted inside the store"));
        } else if options.split(|b| *b == b',').any(|o| unescape(o).as_os_str().as_bytes().starts_with(&layers)) {
            found.push((point, "a layer of the store is mounted where no exec is"));
        }
    }
    found
}

/// The groups of execs that have ended, or never were.
pub(super) fn stray_cgroups(store: &Store) -> Result<Vec<PathBuf>, OpsError> {
    let mut found = Vec::new();
    for container in store.containers()? {
        let Ok(record) = Record::load(&container.root, &container.id) else { continue };
        // Groups before rows: a group is made when its exec has a row, and removed before the row says that it ended.
        let groups: Vec<(ExecId, PathBuf)> = record.cgroups.iter().flat_map(|dir| execs_in(&dir.path)).collect();
        let running = store.running(container.key)?;
        let stray = |(exec, path): (ExecId, PathBuf)| {
            let runs = running.iter().any(|record| record.id == exec);
            (!runs && path.is_dir()).then_some(path)
        };
        found.extend(groups.into_iter().filter_map(stray));
    }
    Ok(found)
}

fn execs_in(dir: &Path) -> Vec<(ExecId, PathBuf)> {
    let name = |name: &OsStr| name.to_str()?.strip_prefix("agentsbx-")?.parse::<ExecId>().ok();
    // A container that is being deleted has no group any more.
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((name(&entry.file_name())?, entry.path()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_a_store() {
        let text = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            23 22 0:5 / /var/lib/agent\\040sbx rw - ext4 /dev/sdb rw\n\
            24 22 0:6 / /var/lib/agent\\040sbx/layers/X/upper rw,nosuid shared:4 - tmpfs tmpfs rw\n\
            25 22 0:7 / /var/lib/agent\\040sbx-other rw - tmpfs tmpfs rw\n\
            26 22 0:8 / /mnt rw - overlay overlay rw,lowerdir=/l,upperdir=/var/lib/agent\\040sbx/layers/Y/upper\n\
            27 22 0:9 / /other rw - overlay overlay rw,upperdir=/var/lib/docker/layers/Y\n\n";
        let points: Vec<PathBuf> = inside(text, Path::new("/var/lib/agent sbx")).into_iter().map(|(p, _)| p).collect();
        assert_eq!(points, [Path::new("/var/lib/agent sbx/layers/X/upper"), Path::new("/mnt")]);
    }
}
