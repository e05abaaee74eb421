//! What execs may have left on the host: mounts inside the store, and cgroups of execs that do not run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{Area, Repair, Report};
use crate::id::{ExecId, LayerId};
use crate::ops::OpsError;
use crate::runtime::state::Record;
use crate::store::Store;
use crate::sys::mountinfo::unescape;

const MOUNTS: &str = "/proc/self/mountinfo";

pub(super) fn look(store: &Store, report: &mut Report) -> Result<(), OpsError> {
    let text = std::fs::read(MOUNTS).map_err(|source| OpsError::File { doing: "read", path: MOUNTS.into(), source })?;
    let root = std::fs::canonicalize(store.root()).unwrap_or_else(|_| store.root().to_owned());
    let is_layer = |id: &LayerId| store.layer_dir(id).symlink_metadata().is_ok();
    for (point, why) in inside(&text, &root, is_layer) {
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
fn inside(mountinfo: &[u8], root: &Path, is_layer: impl Fn(&LayerId) -> bool) -> Vec<(PathBuf, &'static str)> {
    let mut found = Vec::new();
    for line in mountinfo.split(|b| *b == b'\n') {
        let mut fields = line.split(|b| *b == b' ');
        let Some(point) = fields.nth(4).map(unescape) else { continue };
        let options = fields.next_back().unwrap_or_default();
        if point != root && point.starts_with(root) {
            found.push((point, "something is mounted inside the store"));
        } else if upper(options).is_some_and(|path| path.starts_with(root) || layers_in(&path).any(|id| is_layer(&id)))
        {
            found.push((point, "a layer of the store is mounted where no exec is"));
        }
    }
    found
}

/// The upper directory among an overlay's options, as whoever mounted it has called it.
fn upper(options: &[u8]) -> Option<PathBuf> {
    options.split(|b| *b == b',').find_map(|option| Some(unescape(option.strip_prefix(b"upperdir=")?)))
}

/// The layers that a path leads into. The runtime calls an upper directory by a descriptor, with the last names of its path
/// at the end: `/proc/self/fd/7/../../LAYER/upper`.
fn layers_in(path: &Path) -> impl Iterator<Item = LayerId> {
    let names: Vec<&str> = path.iter().filter_map(OsStr::to_str).collect();
    let ids = names.windows(2).filter(|pair| pair[1] == "upper").filter_map(|pair| pair[0].parse().ok());
    ids.collect::<Vec<_>>().into_iter()
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
        let (ours, gone) = (LayerId::new(), LayerId::new());
        let by_descriptor =
            |id: &LayerId, rest: &str| format!("lowerdir+=/l,upperdir=/proc/self/fd/7/../..{rest}/{id}/upper");
        let lines = [
            ("/", "ext4 /dev/sda rw".to_owned(), false),
            ("/var/lib/agent\\040sbx", "ext4 /dev/sdb rw".to_owned(), false),
            ("/var/lib/agent\\040sbx/layers/X/upper", "tmpfs tmpfs rw".to_owned(), true),
            ("/var/lib/agent\\040sbx-other", "tmpfs tmpfs rw".to_owned(), false),
            ("/a", "overlay overlay rw,lowerdir=/l,upperdir=/var/lib/agent\\040sbx/layers/Y/upper".to_owned(), true),
            ("/b", "overlay overlay rw,upperdir=/var/lib/docker/layers/Y".to_owned(), false),
            ("/c", format!("overlay overlay rw,{},volatile", by_descriptor(&ours, "")), true),
            ("/d", format!("overlay overlay rw,{}/data,volatile", by_descriptor(&ours, "/../../layers")), true),
            ("/e", format!("overlay overlay rw,{}", by_descriptor(&gone, "")), false),
            ("/f", format!("overlay overlay rw,lowerdir=/x/{ours}/upper,upperdir=/y/upper"), false),
        ];
        let text: String =
            lines.iter().map(|(at, rest, _)| format!("22 1 8:1 / {at} rw,nosuid shared:4 - {rest}\n")).collect();
        let found = inside(text.as_bytes(), Path::new("/var/lib/agent sbx"), |id| *id == ours);
        let points: Vec<PathBuf> = found.into_iter().map(|(point, _)| point).collect();
        let want = lines.iter().filter(|(.., found)| *found).map(|(at, ..)| unescape(at.as_bytes()));
        assert_eq!(points, want.collect::<Vec<_>>());
    }
}
