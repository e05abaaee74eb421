//! The plan: which paths of the host are made, replaced, deleted or get other attributes, and what is in the way.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;
use serde::Serialize;

use super::base::{Base, Since};
use super::host::{HostNode, Mount, mount_of};
use crate::diff::change::{Diff, FileMode, FileType, Kind};
use crate::diff::content::{Comparer, open_file};
use crate::diff::descent::{DIR_FLAGS, Found, Side};
use crate::diff::error::DiffError;
use crate::diff::locate::{Locator, file_type, mtime, rdev, size};
use crate::diff::path::PathBytes;
use crate::diff::touch::{Touched, touches};
use crate::diff::xattr::{Namespace, Reader, Xattrs};

/// The bits that make a program run as somebody else.
pub(super) const SET_ID: u32 = 0o6000;
pub(super) const CAPABILITY: &[u8] = b"security.capability";
const MOUNTED_IN: &str = "another filesystem is mounted in it on the host";
const SOURCE: &str = "it is, or holds, the directory of another copy-on-write mount";

/// What is done to one path of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// It is made.
    Create,
    /// Something else, or another content, takes its place.
    Replace,
    /// It is removed.
    Delete,
    /// Mode, owner, times, extended attributes.
    Metadata,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// The path in the container.
    pub path: PathBytes,
    /// The path on the host, to be told.
    pub host: PathBytes,
    /// The type of what is there afterwards; of what is removed, the type it has.
    #[serde(rename = "type")]
    pub file_type: FileType,
    /// Of a file, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Of a symbolic link that is made, what it leads to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<PathBytes>,
    /// Permission bits afterwards.
    pub mode: FileMode,
    /// Owner afterwards.
    pub uid: u32,
    /// Group afterwards.
    pub gid: u32,
    /// What the layer has and the host does not get: `setuid`, `setgid`, `capability`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<&'static str>,
    /// What the host had when this was planned: device, inode, size, mtime.
    #[serde(skip)]
    pub(super) seen: Seen,
}

/// What a path of the host had: device, inode, size, mtime. None: nothing.
pub(super) type Seen = Option<(u64, u64, u64, (i64, u32))>;

/// A change that is not made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// The path in the container.
    pub path: PathBytes,
    /// Why not.
    pub reason: &'static str,
}

/// A path that was changed on the host too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Clash {
    /// The path in the container.
    pub path: PathBytes,
    /// The path on the host.
    pub host: PathBytes,
    /// What happened there.
    pub reason: &'static str,
}

/// What is to be done, by path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The steps.
    pub steps: Vec<Step>,
    /// What would be lost by some of them.
    pub conflicts: Vec<Clash>,
    /// What is left out.
    pub skipped: Vec<Skipped>,
}

/// A generation, for telling whose a state of the host is.
#[derive(Debug)]
pub struct Past {
    /// Its layer's upper. Opened only while it is looked at: there may be more generations than descriptors.
    pub upper: PathBuf,
    /// What it touched.
    pub touched: Vec<Touched>,
    /// What the host had where it did; none if that is not on record.
    pub base: Option<Base>,
}

impl Past {
    fn touches(&self, path: &PathBytes) -> bool {
        touches(&self.touched, path)
    }
}

/// Plans to make the directories of `mounts` equal to what `uppers` (newest first) show, at the paths that `diff` tells of
/// and `wanted` takes. The diff is of those uppers, lists each path under a deleted directory and tells no renames. `past`:
/// the generations, oldest first.
///
/// # Errors
/// [`DiffError::Call`] and [`DiffError::Host`] where the kernel refuses.
pub fn plan(
    mounts: &[Mount<'_>],
    uppers: &[BorrowedFd<'_>],
    diff: &Diff,
    past: &[Past],
    wanted: impl Fn(&PathBytes) -> bool,
) -> Result<Plan, DiffError> {
    let source = |mount: &Mount<'_>| {
        let stat = fstat(mount.dir).map_err(|errno| mount.failed("fstat", &mount.at, errno))?;
        Ok((stat.st_dev, stat.st_ino))
    };
    let mut planner = Planner {
        mounts,
        sources: mounts.iter().map(source).collect::<Result<_, DiffError>>()?,
        layers: Locator::new(Side::layers(uppers), Namespace::Trusted, usize::MAX)?,
        past,
        compare: Compare::new(),
        steps: BTreeMap::new(),
        there: BTreeSet::new(),
        plan: Plan::default(),
    };
    for change in diff.changes.iter().filter(|change| wanted(&change.path)) {
        if let Some(mount) = mount_of(mounts, &change.path) {
            planner.path(mount, &change.path, change.kind == Kind::Deleted)?;
        }
    }
    let mut plan = planner.plan;
    plan.steps = planner.steps.into_values().collect();
    plan.conflicts.sort_by(|a, b| a.path.cmp(&b.path));
    plan.conflicts.dedup_by(|a, b| a.path == b.path);
    Ok(plan)
}

/// A node of either side, by its directory.
pub(super) struct Node<'a> {
    pub dir: BorrowedFd<'a>,
    pub name: &'a CStr,
    pub stat: &'a Stat,
}

impl<'a> Node<'a> {
    pub(super) fn on_host(node: &'a HostNode) -> Node<'a> {
        Node { dir: node.dir.as_fd(), name: &node.name, stat: &node.stat }
    }
}

/// The node that layers show at a path, if they do; a directory by its own descriptor.
pub(super) fn in_layers<T>(
    layers: &mut Locator,
    path: &PathBytes,
    then: impl FnOnce(Option<Node<'_>>) -> Result<T, DiffError>,
) -> Result<T, DiffError> {
    match layers.find(path)? {
        Found::Absent | Found::Whiteout => then(None),
        Found::Node { at, stat } => {
            let dir = layers.dirs()[at].fd();
            then(Some(Node { dir, name: layers.name(), stat: &stat }))
        }
        Found::Dir { stat, dirs, .. } => then(dirs.first().map(|dir| Node { dir: dir.fd(), name: c".", stat: &stat })),
    }
}

/// How a layer's node differs from the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Differs {
    Not,
    Metadata,
    Content,
}

/// What is kept from file to file.
pub(super) struct Compare {
    content: Comparer,
    pub xattrs: Reader,
}

impl Compare {
    pub(super) fn new() -> Compare {
        Compare { content: Comparer::new(), xattrs: Reader::new(Namespace::Trusted) }
    }

    fn differs(&mut self, path: &PathBytes, layer: &Node<'_>, host: &Node<'_>) -> Result<Differs, DiffError> {
        let (kind, other) = (file_type(layer.stat), file_type(host.stat));
        if kind != other {
            return Ok(Differs::Content);
        }
        let fail = |call, source| DiffError::Call { call, path: path.clone(), layer: 0, source };
        let same = match kind {
            FileType::File if size(layer.stat) != size(host.stat) => false,
            FileType::File => {
                let ours = open_file(layer.dir, layer.name).map_err(|source| fail("openat", source))?;
                // What can't be read is not the same.
                open_file(host.dir, host.name).is_ok_and(|theirs| {
                    self.content.same(ours.as_fd(), theirs.as_fd(), size(layer.stat)).unwrap_or(false)
                })
            }
            FileType::Symlink => {
                let target = readlinkat(layer.dir, layer.name, Vec::new());
                let target = target.map_err(|source| fail("readlinkat", source))?;
                readlinkat(host.dir, host.name, Vec::new()).is_ok_and(|other| other == target)
            }
            FileType::Char | FileType::Block => rdev(layer.stat) == rdev(host.stat),
            FileType::Directory | FileType::Fifo | FileType::Socket => true,
        };
        if !same {
            return Ok(Differs::Content);
        }
        let wanted = Wanted::of(path, layer, Some(host), &mut self.xattrs)?;
        let theirs = kept(self.xattrs.read(host.dir, host.name).unwrap_or_default(), None);
        let key = |stat: &Stat| (stat.st_uid, stat.st_gid);
        let mode = kind == FileType::Symlink || wanted.mode == host.stat.st_mode & 0o7777;
        let time = kind != FileType::File || mtime(layer.stat) == mtime(host.stat);
        let ours: Xattrs = wanted.xattrs.into_iter().filter(|(name, _)| name != CAPABILITY).collect();
        let equal = mode && time && key(layer.stat) == key(host.stat) && ours == theirs;
        Ok(if equal { Differs::Not } else { Differs::Metadata })
    }
}

/// The attributes that the host is to get.
pub(super) struct Wanted {
    pub mode: u32,
    pub xattrs: Xattrs,
    pub dropped: Vec<&'static str>,
}

impl Wanted {
    pub(super) fn of(
        path: &PathBytes,
        layer: &Node<'_>,
        host: Option<&Node<'_>>,
        xattrs: &mut Reader,
    ) -> Result<Wanted, DiffError> {
        let fail = |source| DiffError::Call { call: "listxattrat", path: path.clone(), layer: 0, source };
        let ours = xattrs.read(layer.dir, layer.name).map_err(fail)?;
        let host = host.filter(|host| file_type(host.stat) == FileType::File);
        let theirs = host.map(|host| xattrs.read(host.dir, host.name).unwrap_or_default()).unwrap_or_default();
        let mode = layer.stat.st_mode & 0o7777;
        let mut dropped = Vec::new();
        let mut allowed = mode;
        if file_type(layer.stat) == FileType::File {
            allowed &= !SET_ID | host.map_or(0, |host| host.stat.st_mode);
            for (bit, name) in [(0o4000, "setuid"), (0o2000, "setgid")] {
                if mode & !allowed & bit != 0 {
                    dropped.push(name);
                }
            }
        }
        let capability = ours.iter().find(|(name, _)| name == CAPABILITY);
        let had = capability.filter(|capability| theirs.contains(capability)).cloned();
        if capability.is_some() && had.is_none() {
            dropped.push("capability");
        }
        Ok(Wanted { mode: allowed, xattrs: kept(ours, had), dropped })
    }
}

/// Whether an extended attribute is a user's own or an access list.
pub(super) fn copied(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
}

/// Extended attributes that are copied: a user's own and access lists, and a capability that the host's file has.
fn kept(xattrs: Xattrs, capability: Option<(Vec<u8>, Vec<u8>)>) -> Xattrs {
    xattrs.into_iter().filter(|(name, _)| copied(name)).chain(capability).collect()
}

struct Planner<'p> {
    mounts: &'p [Mount<'p>],
    /// Their directories' devices and inodes.
    sources: Vec<(u64, u64)>,
    layers: Locator,
    past: &'p [Past],
    compare: Compare,
    steps: BTreeMap<PathBytes, Step>,
    /// Directories that the host has, or will have.
    there: BTreeSet<PathBytes>,
    plan: Plan,
}

impl Planner<'_> {
    fn path(&mut self, mount: &Mount<'_>, path: &PathBytes, deleted: bool) -> Result<(), DiffError> {
        let host = match mount.find(path) {
            Ok(host) => host,
            Err(DiffError::Host { source: Errno::XDEV, .. }) => {
                return self.skip(path, "another filesystem is mounted there on the host");
            }
            Err(err) => return Err(err),
        };
        if deleted {
            let Some(host) = host else { return Ok(()) };
            // What a run that was killed left, in a directory that is gone now: swept with it.
            if crate::durable::is_temporary(path.file_name()) {
                return Ok(());
            }
            // Another mount of the container is there: its point was made by the runtime.
            if self.mounts.iter().any(|mount| mount.at == *path) {
                return Ok(());
            }
            if !self.steps.contains_key(path)
                && let Some(reason) = self.stays(mount, path, &host)?
            {
                return self.skip(path, reason);
            }
            let planned = step(mount, path, Action::Delete, &host.stat, Some(&host.stat));
            self.check(mount, &planned, Some(&host))?;
            self.steps.insert(path.clone(), planned);
            return self.clear(mount, path, &host);
        }
        let (compare, mut found) = (&mut self.compare, None);
        in_layers(&mut self.layers, path, |layer| {
            let Some(layer) = layer else { return Ok(()) };
            let host = host.as_ref().map(Node::on_host);
            let differs = host.as_ref().map(|host| compare.differs(path, &layer, host)).transpose()?;
            let action = match differs {
                None => Action::Create,
                Some(Differs::Not) => return Ok(()),
                // Its other names keep what they have.
                Some(Differs::Metadata) if host.as_ref().is_some_and(has_other_names) => Action::Replace,
                Some(Differs::Metadata) => Action::Metadata,
                Some(Differs::Content) => Action::Replace,
            };
            let wanted = Wanted::of(path, &layer, host.as_ref(), &mut compare.xattrs)?;
            let mut planned = step(mount, path, action, layer.stat, host.map(|host| host.stat));
            planned.mode = FileMode(wanted.mode);
            planned.dropped = wanted.dropped;
            found = Some(planned);
            Ok(())
        })?;
        let Some(planned) = found else { return Ok(()) };
        // A layer has the directories above its changes as they were. If they differ, the host has changed them.
        if planned.action == Action::Metadata
            && planned.file_type == FileType::Directory
            && !self.past.iter().any(|past| past.touches(path))
        {
            return Ok(());
        }
        match planned.file_type {
            FileType::Char | FileType::Block => return self.skip(path, "devices are never made on the host"),
            FileType::Socket => return self.skip(path, "sockets are never made on the host"),
            _ if mount.inside(path).split(|b| *b == b'/').any(crate::durable::is_temporary) => {
                return self.skip(path, "its name is one of the runtime's temporary files");
            }
            _ => {}
        }
        if let Some(host) = &host
            && planned.file_type != FileType::Directory
            && let Some(reason) = self.stays(mount, path, host)?
        {
            return self.skip(path, reason);
        }
        if !self.lead_to(mount, path)? {
            return Ok(());
        }
        self.check(mount, &planned, host.as_ref())?;
        if planned.file_type == FileType::Directory {
            self.there.insert(path.clone());
        } else if let Some(host) = &host {
            self.clear(mount, path, host)?;
        }
        self.steps.insert(path.clone(), planned);
        Ok(())
    }

    /// Plans to delete what is in a directory of the host: also what no layer tells of, since the first process deleted it.
    fn clear(&mut self, mount: &Mount<'_>, path: &PathBytes, host: &HostNode) -> Result<(), DiffError> {
        if file_type(&host.stat) != FileType::Directory {
            return Ok(());
        }
        let mut todo = vec![path.clone()];
        while let Some(dir) = todo.pop() {
            for (name, path) in mount.list(&dir)? {
                if crate::durable::is_temporary(&name) || self.steps.contains_key(&path) {
                    continue;
                }
                let Some(host) = mount.find(&path)? else { continue };
                let planned = step(mount, &path, Action::Delete, &host.stat, Some(&host.stat));
                self.check(mount, &planned, Some(&host))?;
                self.steps.insert(path.clone(), planned);
                if file_type(&host.stat) == FileType::Directory {
                    todo.push(path);
                }
            }
        }
        Ok(())
    }

    /// Why a directory of the host can't be removed, if so: something is mounted in it, or it is or holds the source of another
    /// mount of the container, which would have none any more.
    fn stays(&self, mount: &Mount<'_>, path: &PathBytes, host: &HostNode) -> Result<Option<&'static str>, DiffError> {
        if file_type(&host.stat) != FileType::Directory {
            return Ok(None);
        }
        let identity = |stat: &Stat| (stat.st_dev, stat.st_ino);
        if self.sources.contains(&identity(&host.stat)) {
            return Ok(Some(SOURCE));
        }
        let mut todo = vec![path.clone()];
        while let Some(dir) = todo.pop() {
            for (_, path) in mount.list(&dir)? {
                match mount.find(&path) {
                    Ok(Some(inner)) if self.sources.contains(&identity(&inner.stat)) => return Ok(Some(SOURCE)),
                    Ok(Some(inner)) if file_type(&inner.stat) == FileType::Directory => todo.push(path),
                    Ok(_) => {}
                    Err(DiffError::Host { source: Errno::XDEV, .. }) => return Ok(Some(MOUNTED_IN)),
                    Err(err) => return Err(err),
                }
            }
        }
        Ok(None)
    }

    fn skip(&mut self, path: &PathBytes, reason: &'static str) -> Result<(), DiffError> {
        self.plan.skipped.push(Skipped { path: path.clone(), reason });
        Ok(())
    }

    /// Makes sure that the directories above are there: the first process may have made them, which no generation tells.
    fn lead_to(&mut self, mount: &Mount<'_>, path: &PathBytes) -> Result<bool, DiffError> {
        let bytes = path.as_bytes();
        let slashes = (mount.at.as_bytes().len() + 1..bytes.len()).filter(|end| bytes[*end] == b'/');
        for dir in slashes.map(|end| PathBytes::new(&bytes[..end])) {
            if self.there.contains(&dir) {
                continue;
            }
            match mount.find(&dir)? {
                Some(host) if file_type(&host.stat) == FileType::Directory => {}
                Some(_) => {
                    self.clash(mount, path, "something that is no directory is above it on the host");
                    return Ok(false);
                }
                None => {
                    let (mut made, xattrs) = (None, &mut self.compare.xattrs);
                    in_layers(&mut self.layers, &dir, |layer| {
                        let Some(layer) = layer else { return Ok(()) };
                        let wanted = Wanted::of(&dir, &layer, None, xattrs)?;
                        made = Some(Step {
                            mode: FileMode(wanted.mode),
                            ..step(mount, &dir, Action::Create, layer.stat, None)
                        });
                        Ok(())
                    })?;
                    let Some(made) = made else { return Ok(false) };
                    self.steps.insert(dir.clone(), made);
                }
            }
            self.there.insert(dir);
        }
        Ok(true)
    }

    fn clash(&mut self, mount: &Mount<'_>, path: &PathBytes, reason: &'static str) {
        self.plan.conflicts.push(Clash { path: path.clone(), host: host_path(mount, path), reason });
    }

    /// Whether the host's state is one that the container has seen or made itself.
    fn check(&mut self, mount: &Mount<'_>, planned: &Step, host: Option<&HostNode>) -> Result<(), DiffError> {
        let path = &planned.path;
        let first = self.past.iter().find(|past| past.touches(path));
        let base = first.and_then(|past| past.base.as_ref());
        let reason = match (host, base) {
            (None, None) => return Ok(()),
            (None, Some(base)) if !base.had(path) => return Ok(()),
            (None, Some(_)) => "it was deleted on the host",
            (Some(_), None) => "how it was on the host is not on record",
            (Some(host), Some(base)) => match base.since(path, host) {
                Since::Same => return Ok(()),
                // What is in it is checked by itself.
                Since::Changed
                    if planned.action == Action::Metadata
                        && base.is_between(path, host, planned.mode, (planned.uid, planned.gid)) =>
                {
                    return Ok(());
                }
                Since::Changed if planned.action == Action::Delete && file_type(&host.stat) == FileType::Directory => {
                    return Ok(());
                }
                Since::Changed => "it was changed on the host",
                Since::Made => "it was made on the host",
            },
        };
        for past in self.past.iter().filter(|past| past.touches(path)) {
            let upper = openat(CWD, &past.upper, DIR_FLAGS, Mode::empty());
            let upper =
                upper.map_err(|source| DiffError::Call { call: "openat", path: path.clone(), layer: 0, source })?;
            let stack = [upper.as_fd()];
            let mut layer = Locator::new(Side::layers(&stack), Namespace::Trusted, usize::MAX)?;
            let compare = &mut self.compare;
            let shown = in_layers(&mut layer, path, |node| match (node, host) {
                (None, None) => Ok(true),
                (Some(node), Some(host)) => Ok(compare.differs(path, &node, &Node::on_host(host))? == Differs::Not),
                _ => Ok(false),
            })?;
            if shown {
                return Ok(());
            }
        }
        self.clash(mount, path, reason);
        Ok(())
    }
}

fn has_other_names(node: &Node<'_>) -> bool {
    file_type(node.stat) == FileType::File && node.stat.st_nlink > 1
}

fn host_path(mount: &Mount<'_>, path: &PathBytes) -> PathBytes {
    let host: PathBuf = mount.host_path(path);
    PathBytes::new(std::os::unix::ffi::OsStringExt::into_vec(host.into_os_string()))
}

fn step(mount: &Mount<'_>, path: &PathBytes, action: Action, stat: &Stat, seen: Option<&Stat>) -> Step {
    Step {
        action,
        path: path.clone(),
        host: host_path(mount, path),
        file_type: file_type(stat),
        size: (file_type(stat) == FileType::File).then(|| size(stat)),
        target: None,
        mode: FileMode(stat.st_mode & 0o7777),
        uid: stat.st_uid,
        gid: stat.st_gid,
        dropped: Vec::new(),
        seen: seen.map(key),
    }
}

/// By what a node of the host is known again between planning and doing.
pub(super) fn key(stat: &Stat) -> (u64, u64, u64, (i64, u32)) {
    let is_dir = file_type(stat) == FileType::Directory;
    (stat.st_dev, stat.st_ino, if is_dir { 0 } else { size(stat) }, if is_dir { (0, 0) } else { mtime(stat) })
}
