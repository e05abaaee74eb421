//! What the host's directory had, where a layer changed something, when the layer was sealed.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Stat, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::host::{HostNode, Mount, beneath, mount_of};
use super::plan::{CAPABILITY, copied};
use crate::diff::change::{Diff, FileMode, FileType, Kind};
use crate::diff::error::DiffError;
use crate::diff::locate::{file_type, mtime, size};
use crate::diff::path::PathBytes;
use crate::diff::touch::{Touched, touches};
use crate::diff::xattr::{Namespace, Reader, Xattrs};
use crate::durable;

/// The deepest nesting of a deleted directory that is recorded.
const MAX_DEPTH: usize = 1024;

/// By what a path of the host is known again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fingerprint {
    #[serde(rename = "type")]
    file_type: FileType,
    size: u64,
    mtime: (i64, u32),
    inode: u64,
    mode: FileMode,
    uid: u32,
    gid: u32,
    /// A digest of the extended attributes that are copied, ACLs and a capability among them; none where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    xattrs: Option<String>,
    /// It was changed while the exec ran, which may have seen it before or after.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unsure: bool,
}

impl Fingerprint {
    fn of(dir: BorrowedFd<'_>, name: &CStr, stat: &Stat, since: (i64, u32)) -> Fingerprint {
        let (is_dir, changed) =
            (file_type(stat) == FileType::Directory, (stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or(0)));
        Fingerprint {
            file_type: file_type(stat),
            // A directory's change with what is in it, which is known by itself.
            size: if is_dir { 0 } else { size(stat) },
            mtime: if is_dir { (0, 0) } else { mtime(stat) },
            inode: stat.st_ino,
            mode: FileMode(stat.st_mode & 0o7777),
            uid: stat.st_uid,
            gid: stat.st_gid,
            xattrs: xattrs_of(dir, name, stat),
            unsure: !is_dir && changed > since,
        }
    }
}

fn xattrs_of(dir: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> Option<String> {
    if file_type(stat) == FileType::Symlink {
        return None;
    }
    let all = Reader::new(Namespace::Trusted).read(dir, name).unwrap_or_default();
    let told: Xattrs = all.into_iter().filter(|(name, _)| copied(name) || name == CAPABILITY).collect();
    if told.is_empty() {
        return None;
    }
    let mut hash = Sha256::new();
    for bytes in told.iter().flat_map(|(name, value)| [name, value]) {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    // Half of it tells apart what is on one path.
    Some(durable::hex(&hash.finalize()[..16]))
}

impl HostNode {
    fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.dir.as_fd(), &self.name, &self.stat, (i64::MAX, 0))
    }
}

/// What the host had at the paths that a layer changed; what is not in it was not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Base(BTreeMap<PathBytes, Fingerprint>);

/// How a path of the host is now, held against a [`Base`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    /// As it was.
    Same,
    /// Other than it was.
    Changed,
    /// It was not there.
    Made,
}

impl Base {
    /// Looks at what `mounts` have where `diff` tells of a change, and below directories that are gone. `since`: when the
    /// exec began, in seconds and nanoseconds since 1970 UTC.
    ///
    /// # Errors
    /// [`DiffError::Host`] where the kernel refuses.
    pub fn record(diff: &Diff, mounts: &[Mount<'_>], since: (i64, u32)) -> Result<Base, DiffError> {
        let mut base = Base::default();
        for change in &diff.changes {
            base.put(&change.path, mounts, since)?;
            if let Some(from) = &change.from {
                base.put(from, mounts, since)?;
            }
            if matches!(change.kind, Kind::Deleted | Kind::Replaced) {
                base.below(&change.path, mounts, since)?;
            }
        }
        for hidden in &diff.hides {
            base.below(hidden, mounts, since)?;
        }
        Ok(base)
    }

    fn put(&mut self, path: &PathBytes, mounts: &[Mount<'_>], since: (i64, u32)) -> Result<(), DiffError> {
        let Some(mount) = mount_of(mounts, path) else { return Ok(()) };
        match mount.find(path) {
            Ok(Some(found)) => {
                self.0.insert(path.clone(), Fingerprint::of(found.dir.as_fd(), &found.name, &found.stat, since));
                Ok(())
            }
            // Nothing is done where something else is mounted.
            Ok(None) | Err(DiffError::Host { source: Errno::XDEV, .. }) => Ok(()),
            Err(err) => Err(err),
        }
    }

    fn below(&mut self, path: &PathBytes, mounts: &[Mount<'_>], since: (i64, u32)) -> Result<(), DiffError> {
        let Some(mount) = mount_of(mounts, path) else { return Ok(()) };
        let dir = match beneath(mount.dir, mount.inside(path)) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(()),
            Err(source) => return Err(mount.failed("openat2", path, source)),
        };
        let mut todo: Vec<(OwnedFd, Vec<u8>, usize)> = vec![(dir, path.as_bytes().to_vec(), 0)];
        while let Some((dir, path, depth)) = todo.pop() {
            let fail = |call, source| mount.failed(call, &PathBytes::new(path.as_slice()), source);
            let entries = Dir::read_from(&dir).map_err(|source| fail("openat", source))?;
            for entry in entries {
                let entry = entry.map_err(|source| fail("getdents64", source))?;
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                let Ok(stat) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                let path = [&path, &b"/"[..], name.to_bytes()].concat();
                self.0.insert(PathBytes::new(path.as_slice()), Fingerprint::of(dir.as_fd(), name, &stat, since));
                // What is deeper counts as made later, so that nothing is lost.
                if file_type(&stat) == FileType::Directory
                    && depth < MAX_DEPTH
                    && let Ok(inner) = beneath(dir.as_fd(), name.to_bytes())
                {
                    todo.push((inner, path, depth + 1));
                }
            }
        }
        Ok(())
    }

    /// How what is at `path` now compares.
    pub(super) fn since(&self, path: &PathBytes, now: &HostNode) -> Since {
        match self.0.get(path) {
            None => Since::Made,
            Some(was) if !was.unsure && *was == now.fingerprint() => Since::Same,
            Some(_) => Since::Changed,
        }
    }

    /// Whether the attributes of what is at `path` now are part the old ones, part those that it is to get: an `apply` that
    /// was killed leaves them so.
    pub(super) fn is_between(&self, path: &PathBytes, now: &HostNode, mode: FileMode, (uid, gid): (u32, u32)) -> bool {
        let Some(was) = self.0.get(path).filter(|was| !was.unsure) else { return false };
        let is = now.fingerprint();
        let owner = (is.uid, is.gid);
        (owner == (was.uid, was.gid) || owner == (uid, gid))
            // A change of owner takes bits away.
            && [was.mode, mode, FileMode(was.mode.0 & !0o6000)].contains(&is.mode)
            && (was.file_type, was.size, was.mtime, was.inode) == (is.file_type, is.size, is.mtime, is.inode)
    }

    /// Whether something was there.
    pub(super) fn had(&self, path: &PathBytes) -> bool {
        self.0.contains_key(path)
    }

    /// What it is for several layers as if they had been one: of each path, what the first of them to touch it found. `layers`:
    /// oldest first, each with what it touched. `None` where one of them has nothing on record.
    pub fn united(layers: &[(Vec<Touched>, Option<Base>)]) -> Option<Base> {
        let mut all = Base::default();
        for (at, (_, base)) in layers.iter().enumerate() {
            for (path, found) in &base.as_ref()?.0 {
                if !layers[..at].iter().any(|(earlier, _)| touches(earlier, path)) {
                    all.0.insert(path.clone(), found.clone());
                }
            }
        }
        Some(all)
    }

    /// As bytes, for [`Base::decode`].
    pub fn encode(&self) -> Vec<u8> {
        let list: Vec<(&PathBytes, &Fingerprint)> = self.0.iter().collect();
        serde_json::to_vec(&list).unwrap_or_default()
    }

    /// From the bytes of [`Base::encode`]; `None` where they are not.
    pub fn decode(bytes: &[u8]) -> Option<Base> {
        let list: Vec<(PathBytes, Fingerprint)> = serde_json::from_slice(bytes).ok()?;
        Some(Base(list.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_known_again() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            crate::durable::replace_unsynced(&dir.path().join(name), text.as_bytes(), 0o644).unwrap();
        };
        std::fs::create_dir_all(dir.path().join("gone/in")).unwrap();
        for name in ["mod", "gone/a", "gone/in/b", "other"] {
            write(name, "1");
        }
        let json = r#""type":"file","mode":"0644","uid":0,"gid":0"#;
        let change = |kind: &str, path: &[u8]| {
            let mut change: crate::diff::Change =
                serde_json::from_str(&format!(r#"{{"kind":"{kind}","path":"/",{json}}}"#)).unwrap();
            change.path = PathBytes::new(path);
            change
        };
        let changes = vec![
            change("added", b"/w/new\xff"),
            change("deleted", b"/w/gone"),
            change("modified", b"/w/mod"),
            change("modified", b"/elsewhere"),
        ];
        let diff = Diff { changes, ..Diff::default() };
        let top = std::fs::File::open(dir.path()).unwrap();
        let mounts = [Mount { at: "/w".into(), dir: top.as_fd(), path: dir.path() }];
        let base = Base::record(&diff, &mounts, (i64::MAX, 0)).unwrap();
        let base = Base::decode(&base.encode()).unwrap();
        assert!(Base::decode(b"[[").is_none());
        let paths: Vec<String> = base.0.keys().map(PathBytes::to_string).collect();
        assert_eq!(paths, ["/w/gone", "/w/gone/a", "/w/gone/in", "/w/gone/in/b", "/w/mod"]);
        let since = |path: &str| base.since(&path.into(), &mounts[0].find(&path.into()).unwrap().unwrap());
        write("gone/c", "1");
        assert_eq!(["/w/mod", "/w/gone", "/w/gone/c"].map(since), [Since::Same, Since::Same, Since::Made]);
        // An extended attribute, such as an ACL, is a change too; without it the file is as it was.
        let name = dir.path().join("mod");
        rustix::fs::setxattr(&name, "user.note", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        assert_eq!(since("/w/mod"), Since::Changed);
        rustix::fs::removexattr(&name, "user.note").unwrap();
        assert_eq!(since("/w/mod"), Since::Same);
        write("mod", "2");
        assert_eq!(since("/w/mod"), Since::Changed);
        // Of layers that are merged the first to touch a path tells: what it did not find was not there.
        let set = |paths: &[&str]| -> Vec<Touched> {
            let one = |path: &&str| Touched { path: (*path).into(), covers: *path == "/w/gone", new_directory: None };
            paths.iter().map(one).collect()
        };
        let first = (set(&["/w/gone", "/w/other"]), Some(Base::default()));
        let second = (set(&["/w/mod"]), Some(base.clone()));
        let united = Base::united(&[first.clone(), second.clone()]).unwrap();
        assert_eq!(united.0.keys().map(PathBytes::to_string).collect::<Vec<_>>(), ["/w/mod"]);
        assert_eq!(Base::united(&[second, first]).unwrap(), base);
        assert_eq!(Base::united(&[(set(&["/w/mod"]), None)]), None);
        // Changed while the exec ran.
        let base = Base::record(&diff, &mounts, (0, 0)).unwrap();
        assert_eq!(base.since(&"/w/mod".into(), &mounts[0].find(&"/w/mod".into()).unwrap().unwrap()), Since::Changed);
    }
}
