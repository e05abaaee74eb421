//! What a diff says: changes, their summary, and the forms these have in the result document.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::path::PathBytes;

/// How a path differs from the lower view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Kind {
    /// Not in the lower view.
    Added,
    /// Same type; the content, the symbolic link's target or the device number differs.
    Modified,
    /// Same content; mode, owner, extended attributes or (but for directories) the modification time differ.
    Metadata,
    /// In the lower view only.
    Deleted,
    /// The type changed.
    Replaced,
    /// A deleted and an added path that are the same file (regular, or a symbolic link).
    Renamed,
}

/// The type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FileType {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    Char,
    /// Block device.
    Block,
}

/// A part of the metadata that differs. As a string: `mode`, `owner`, `mtime`, `acl` (either POSIX ACL), `capability`
/// (`security.capability`), `xattr:NAME` for any other extended attribute, in whose name bytes that are not printable
/// ASCII, and the backslash, are written as Rust's `escape_ascii` does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attribute {
    /// Permission bits with set-user-ID, set-group-ID and sticky.
    Mode,
    /// User or group.
    Owner,
    /// Modification time.
    Mtime,
    /// `system.posix_acl_access` or `system.posix_acl_default`.
    Acl,
    /// `security.capability`.
    Capability,
    /// Another extended attribute.
    Xattr(String),
}

impl Attribute {
    /// The bytes of a name that the container chose.
    pub(crate) fn name_len(&self) -> usize {
        if let Attribute::Xattr(name) = self { name.len() } else { 0 }
    }

    /// The attribute for the extended attribute of this name.
    pub(crate) fn of_xattr(name: &[u8]) -> Self {
        match name {
            b"system.posix_acl_access" | b"system.posix_acl_default" => Attribute::Acl,
            b"security.capability" => Attribute::Capability,
            name => Attribute::Xattr(name.escape_ascii().to_string()),
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Mode => f.write_str("mode"),
            Attribute::Owner => f.write_str("owner"),
            Attribute::Mtime => f.write_str("mtime"),
            Attribute::Acl => f.write_str("acl"),
            Attribute::Capability => f.write_str("capability"),
            Attribute::Xattr(name) => write!(f, "xattr:{name}"),
        }
    }
}

impl Serialize for Attribute {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Attribute {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(match text.as_str() {
            "mode" => Attribute::Mode,
            "owner" => Attribute::Owner,
            "mtime" => Attribute::Mtime,
            "acl" => Attribute::Acl,
            "capability" => Attribute::Capability,
            other => match other.strip_prefix("xattr:") {
                Some(name) => Attribute::Xattr(name.to_owned()),
                None => return Err(de::Error::unknown_variant(other, &["mode", "owner", "mtime", "xattr:NAME"])),
            },
        })
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Attribute {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Attribute".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A part of the metadata that differs.",
            "type": "string",
            "pattern": "^(mode|owner|mtime|acl|capability|xattr:.+)$"
        })
    }
}

/// Permission bits, set-user-ID, set-group-ID and sticky (at most 0o7777); as a string four octal digits: `0644`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileMode(pub u32);

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl Serialize for FileMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.len() != 4 || !text.bytes().all(|b| (b'0'..=b'7').contains(&b)) {
            return Err(de::Error::custom(format_args!("mode {text:?} is not four octal digits")));
        }
        u32::from_str_radix(&text, 8).map(FileMode).map_err(de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for FileMode {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FileMode".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Permission bits in four octal digits, set-user-ID, set-group-ID and sticky first.",
            "type": "string",
            "pattern": "^[0-7]{4}$"
        })
    }
}

/// One changed path. The type, size, mode, owner, target and device number are those after the change; of a deleted
/// path, those it had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// How it differs.
    pub kind: Kind,
    /// The path, absolute inside the container.
    pub path: PathBytes,
    /// The type of the inode.
    #[serde(rename = "type")]
    pub file_type: FileType,
    /// Of a regular file, its size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: FileMode,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a renamed path, its old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBytes>,
    /// Of a replaced path, the type it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_type: Option<FileType>,
    /// Of a `metadata`, `modified` or `renamed` change, the metadata that differ, sorted. The modification time of a
    /// `modified` path is not among them: it changes with the content. Of a `renamed` one only ACLs, capabilities and
    /// extended attributes can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
    /// Of a symbolic link, its target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<PathBytes>,
    /// Of a path that is a hard link to another name in the same layer, that name: one that existed before if there is
    /// one, else the first by byte order (which itself has no `linkTo`). It need not be among the changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_to: Option<PathBytes>,
    /// Of a directory that was deleted, or replaced by something else: how many paths lay under it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
    /// Of a device, `MAJOR:MINOR` in decimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdev: Option<String>,
    /// Of an added directory, a digest of its mode, owner and extended attributes. Not in the document: it serves
    /// [`super::touched`], on a diff just made.
    #[serde(skip)]
    pub(crate) attributes_digest: Option<[u8; 16]>,
    /// Of a regular file with holes, what it takes, in bytes. Not in the document either: it serves the summary of a diff just
    /// made.
    #[serde(skip)]
    pub(crate) taken: Option<u64>,
}

/// Counts of paths by kind, and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// Added paths.
    pub added: u64,
    /// Modified paths.
    pub modified: u64,
    /// Paths of which only metadata changed.
    pub metadata: u64,
    /// Deleted paths: each path under a deleted directory counts, listed or not; the old path of a rename does not.
    pub deleted: u64,
    /// Paths whose type changed.
    pub replaced: u64,
    /// Renamed paths.
    pub renamed: u64,
    /// Copies in the layer that equal the lower view (directories are not counted).
    pub unchanged: u64,
    /// What added, modified and replaced regular files take, in bytes: their sizes, but for the holes of files of 1 MiB and
    /// more; each hard link counts.
    pub bytes: u64,
}

impl Change {
    /// What a regular file takes, in bytes: its size but for holes; 0 of anything else. Of a change that was read from a
    /// document, which has no more, the size.
    pub fn taken(&self) -> u64 {
        self.taken.or(self.size).unwrap_or(0)
    }
}

impl Summary {
    /// True where nothing changed; unchanged copies do not count.
    pub fn is_empty(&self) -> bool {
        self.changes() == 0
    }

    /// The number of changed paths.
    pub fn changes(&self) -> u64 {
        self.added + self.modified + self.metadata + self.deleted + self.replaced + self.renamed
    }

    /// Counts one change and its bytes.
    pub(crate) fn tell(&mut self, change: &Change) {
        self.count(change.kind);
        if matches!(change.kind, Kind::Added | Kind::Modified | Kind::Replaced) {
            self.bytes = self.bytes.saturating_add(change.taken());
        }
    }

    pub(crate) fn count(&mut self, kind: Kind) {
        match kind {
            Kind::Added => self.added += 1,
            Kind::Modified => self.modified += 1,
            Kind::Metadata => self.metadata += 1,
            Kind::Deleted => self.deleted += 1,
            Kind::Replaced => self.replaced += 1,
            Kind::Renamed => self.renamed += 1,
        }
    }
}

/// The difference between a stack of layers and what is below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diff {
    /// The changes, sorted by the bytes of their paths.
    pub changes: Vec<Change>,
    /// Counts over all paths, whether listed in `changes` or not.
    pub summary: Summary,
    /// Paths that the layers hold a copy of, identical to the lower view (not directories), sorted.
    pub unchanged: Vec<PathBytes>,
    /// Directories that exist below and were made anew, so that they hide what the lower layers have in them, sorted.
    /// They need not be among the changes.
    pub hides: Vec<PathBytes>,
}

impl Diff {
    /// Leaves what is said of the paths that are wanted (a rename by either of its paths), and counts anew. The diff must
    /// list each path under a deleted directory; unless `recursive`, those are then left out where the directory is listed.
    pub fn keep(&mut self, wanted: impl Fn(&PathBytes) -> bool, recursive: bool) {
        self.changes.retain(|change| wanted(&change.path) || change.from.as_ref().is_some_and(&wanted));
        self.unchanged.retain(&wanted);
        self.hides.retain(&wanted);
        self.summary = Summary { unchanged: self.unchanged.len() as u64, ..Summary::default() };
        for change in &self.changes {
            self.summary.tell(change);
        }
        if recursive {
            return;
        }
        // By bytes, a name like `a-b` comes between `a` and what is below it.
        let gone: HashSet<PathBytes> =
            self.changes.iter().filter(|change| change.entries.is_some()).map(|change| change.path.clone()).collect();
        self.changes.retain(|change| {
            let path = change.path.as_bytes();
            let mut above = (1..path.len()).filter(|end| path[*end] == b'/').map(|end| &path[..end]);
            change.kind != Kind::Deleted || !above.any(|dir| gone.contains(dir))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_counted() {
        let change = |kind: &str, path: &str, more: &str| {
            let json =
                format!(r#"{{"kind":"{kind}","path":"{path}","type":"file","mode":"0644","uid":0,"gid":0{more}}}"#);
            serde_json::from_str::<Change>(&json).unwrap()
        };
        let diff = Diff {
            changes: vec![
                change("deleted", "/d", r#","entries":2"#),
                change("deleted", "/d-e", ""),
                change("deleted", "/d/x", ""),
                change("renamed", "/e/n", r#","from":"/d/y","size":5"#),
                change("modified", "/f", r#","size":7"#),
            ],
            unchanged: vec!["/d2".into(), "/f2".into()],
            ..Diff::default()
        };
        let kept = |want: &str, recursive: bool| {
            let mut kept = diff.clone();
            kept.keep(|path| path.is_below(&want.into()), recursive);
            let paths: Vec<String> = kept.changes.iter().map(|change| change.path.to_string()).collect();
            let s = kept.summary;
            (paths.join(" "), (s.deleted, s.renamed, s.modified, s.bytes, s.unchanged))
        };
        assert_eq!(kept("/", false), ("/d /d-e /e/n /f".into(), (3, 1, 1, 7, 2)));
        assert_eq!(kept("/d", false), ("/d /e/n".into(), (2, 1, 0, 0, 0)));
        assert_eq!(kept("/d", true), ("/d /d/x /e/n".into(), (2, 1, 0, 0, 0)));
        assert_eq!(kept("/d/x", false), ("/d/x".into(), (1, 0, 0, 0, 0)));
        assert_eq!(kept("/f2", false), (String::new(), (0, 0, 0, 0, 1)));
    }
}
