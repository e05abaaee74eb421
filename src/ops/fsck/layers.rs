//! Layers held against the record: each path that an exec was said to have changed is in its layer, as it was said to be.
//!
//! The record is the exec's result in the store, and its digest is the one of the generation and of the event log. Only
//! the layer itself is looked at, never what is below, which others may write to.

use std::collections::HashMap;
use std::os::fd::AsFd;

use super::{Area, RESTORE, Report};
use crate::diff::{self, Change, Diff, Entry, FileType, Kind, Namespace, PathBytes};
use crate::id::{ExecId, LayerId};
use crate::ops::{OpsError, publish};
use crate::rootfs::open_dir;
use crate::store::{Container, ExecRecord, Store, StoreError};

/// How many paths of one layer are told.
const TOLD: usize = 5;

/// A layer to look at.
struct Sealed<'a> {
    name: String,
    layer: LayerId,
    exec: &'a ExecId,
    digest: Option<&'a str>,
}

pub(super) fn look(store: &Store, report: &mut Report) -> Result<(), OpsError> {
    for container in store.containers()? {
        match of_container(store, &container, report) {
            // It was deleted meanwhile.
            Err(OpsError::Store(StoreError::ContainerRemoved { .. } | StoreError::ExecNotFound { .. })) => {}
            other => other?,
        }
    }
    Ok(())
}

fn of_container(store: &Store, container: &Container, report: &mut Report) -> Result<(), OpsError> {
    let execs: HashMap<ExecId, ExecRecord> = store.execs(container.key)?.into_iter().map(|e| (e.id, e)).collect();
    let generations = store.generations(container.key)?;
    report.looked.containers += 1;
    report.looked.generations += generations.len() as u64;
    report.looked.execs += execs.len() as u64;
    let committed = generations.iter().map(|row| Sealed {
        name: format!("generation {} of {}", row.number, container.id),
        layer: row.layer,
        exec: &row.exec,
        digest: row.digest.as_deref(),
    });
    let held = execs.values().filter(|e| e.disposition.is_some_and(|d| d.is_held())).filter_map(|e| {
        let name = format!("held layer of exec {}", e.id);
        e.layer.map(|layer| Sealed { name, layer, exec: &e.id, digest: None })
    });
    for sealed in committed.chain(held) {
        let mut wrong = Vec::new();
        if !execs.contains_key(sealed.exec) {
            // It began after we read the execs.
            continue;
        }
        let Some((changes, whole)) = publish::recorded(store, container, sealed.exec)? else { continue };
        if let Some(digest) = sealed.digest.filter(|_| whole) {
            let diff = Diff { changes, ..Diff::default() };
            if diff::digest(&diff) != digest {
                wrong.push("the recorded changes do not have the recorded digest".to_owned());
            }
            compare(store, &sealed, &diff.changes, report, &mut wrong)?;
        } else {
            compare(store, &sealed, &changes, report, &mut wrong)?;
        }
        if wrong.is_empty() || !store.is_needed(&sealed.layer)? {
            continue;
        }
        let more = wrong.len().saturating_sub(TOLD);
        wrong.truncate(TOLD);
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        let what = format!("{} (layer {}): {}{more}", sealed.name, sealed.layer, wrong.join("; "));
        report.for_a_person(Area::Layers, what, RESTORE);
    }
    Ok(())
}

fn compare(
    store: &Store,
    sealed: &Sealed<'_>,
    changes: &[Change],
    report: &mut Report,
    wrong: &mut Vec<String>,
) -> Result<(), OpsError> {
    let upper = match open_dir(&store.upper(&sealed.layer)) {
        Ok(upper) => upper,
        // Told by those who look for the layers' directories, or deleted meanwhile.
        Err(_) => return Ok(()),
    };
    for change in changes {
        report.looked.paths += 1;
        let is = diff::lookup(&[upper.as_fd()], &change.path, Namespace::Trusted)?;
        if let Some(what) = differs(change, is.as_ref()) {
            wrong.push(format!("{}: {what}", shown(&change.path)));
        }
    }
    Ok(())
}

fn shown(path: &PathBytes) -> String {
    path.to_string_lossy().into_owned()
}

/// How an entry of a layer is not what the record says.
fn differs(change: &Change, is: Option<&Entry>) -> Option<String> {
    // A whiteout is a device 0:0 to who looks at one layer alone.
    let is = is.filter(|entry| !(entry.file_type == FileType::Char && entry.rdev == Some((0, 0))));
    let Some(is) = is else {
        return (change.kind != Kind::Deleted).then(|| "it is missing".to_owned());
    };
    if change.kind == Kind::Deleted {
        return Some("it was deleted, and is there".to_owned());
    }
    if is.file_type != change.file_type {
        return Some(format!("it was a {:?}, and is a {:?}", change.file_type, is.file_type).to_lowercase());
    }
    if change.file_type == FileType::Directory {
        // A later commit may have given it the attributes that others had changed.
        return None;
    }
    if change.size.is_some_and(|size| size != is.size) {
        return Some(format!("it had {} bytes, and has {}", change.size.unwrap_or_default(), is.size));
    }
    if change.target.is_some() && change.target != is.target {
        return Some("its target is another one".to_owned());
    }
    if (change.mode, change.uid, change.gid) != (is.mode, is.uid, is.gid) {
        let of = |mode: &dyn std::fmt::Display, uid, gid| format!("mode {mode} of {uid}:{gid}");
        let (was, now) = (of(&change.mode, change.uid, change.gid), of(&is.mode, is.uid, is.gid));
        return Some(format!("it had {was}, and has {now}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::FileMode;

    #[test]
    fn what_differs() {
        let change = |json: &str| -> Change { serde_json::from_str(json).unwrap() };
        let file = |size| Entry {
            file_type: FileType::File,
            size,
            mode: FileMode(0o644),
            uid: 0,
            gid: 0,
            mtime: (0, 0),
            target: None,
            rdev: None,
            layer: 0,
        };
        let whiteout = Entry { file_type: FileType::Char, rdev: Some((0, 0)), ..file(0) };
        let fields = r#""path":"/x","type":"file","size":3,"mode":"0644","uid":0,"gid":0"#;
        let added = change(&format!(r#"{{"kind":"added",{fields}}}"#));
        let deleted = change(&format!(r#"{{"kind":"deleted",{fields}}}"#));
        assert_eq!(differs(&added, Some(&file(3))), None);
        assert_eq!(differs(&added, Some(&file(0))).unwrap(), "it had 3 bytes, and has 0");
        assert_eq!(differs(&added, None).unwrap(), "it is missing");
        assert_eq!(differs(&added, Some(&whiteout)).unwrap(), "it is missing");
        let other = Entry { uid: 5, ..file(3) };
        assert_eq!(differs(&added, Some(&other)).unwrap(), "it had mode 0644 of 0:0, and has mode 0644 of 5:0");
        let link = Entry { file_type: FileType::Symlink, ..file(3) };
        assert_eq!(differs(&added, Some(&link)).unwrap(), "it was a file, and is a symlink");
        assert_eq!(differs(&deleted, Some(&whiteout)), None);
        assert_eq!(differs(&deleted, None), None);
        assert_eq!(differs(&deleted, Some(&file(3))).unwrap(), "it was deleted, and is there");
    }
}
