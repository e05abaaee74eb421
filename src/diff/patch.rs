//! Changes for people and for `git apply`: a unified patch of text, a line for everything else.

use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Stat, readlinkat};
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline, group_diff_ops};

use super::Namespace;
use super::change::{Attribute, Change, FileMode, FileType, Kind};
use super::content::{open_file, read_bounded};
use super::descent::{Found, Side};
use super::error::DiffError;
use super::locate::{Locator, file_type, mtime, size};
use super::path::PathBytes;
use super::view::View;
use super::xattr::{Reader, Xattrs};

/// How many bytes of an extended attribute's value are shown.
const VALUE_SHOWN: usize = 64;

/// Bounds on a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchLimits {
    /// A file with more bytes, before or after, is told like a binary one.
    pub file_bytes: u64,
    /// After so many bytes of hunks the rest is told like binary files.
    pub total_bytes: u64,
    /// How long the lines of one file are matched before the rest of it is told as all new.
    pub time_per_file: Duration,
    /// Lines of context.
    pub context: usize,
}

impl Default for PatchLimits {
    fn default() -> Self {
        PatchLimits { file_bytes: 1 << 20, total_bytes: 64 << 20, time_per_file: Duration::from_secs(1), context: 3 }
    }
}

/// A file or a symbolic link on one side.
struct Content {
    file_type: FileType,
    mode: u32,
    size: u64,
    /// None above the bound.
    bytes: Option<Vec<u8>>,
}

/// Writes `changes`, made by comparing the same stacks, as a patch in git's format: text line by line, `Binary file /x
/// changed: 10 -> 20 bytes` for a file with a NUL byte or above a bound, a line of its own for what git does not keep
/// (directories, modes other than 0644 and 0755, owners, extended attributes, special files). Names with control characters,
/// quotes, backslashes or bytes that are not UTF-8 are quoted as git quotes them. `owners` makes the users and groups that the
/// layers have those of the container.
///
/// # Errors
/// [`DiffError::Write`] where `out` fails, [`DiffError::Call`] where a layer can't be read, [`DiffError::NoLayers`].
pub fn patch<'a>(
    uppers: &[BorrowedFd<'_>],
    lowers: impl Into<View<'a>>,
    changes: &[Change],
    namespace: Namespace,
    limits: &PatchLimits,
    owners: &dyn Fn(u32, u32) -> (u32, u32),
    out: &mut dyn Write,
) -> Result<(), DiffError> {
    let lowers = lowers.into();
    if uppers.is_empty() || lowers.layers.is_empty() {
        return Err(DiffError::NoLayers { operation: "patch" });
    }
    let mut patcher = Patcher {
        above: Locator::new(Side::layers(uppers), namespace, usize::MAX)?,
        below: Locator::new(Side::view(&lowers), namespace, usize::MAX)?,
        xattrs: Reader::new(namespace),
        limits,
        owners,
        left: limits.total_bytes,
    };
    changes.iter().try_for_each(|change| patcher.change(change, out))
}

struct Patcher<'l> {
    above: Locator,
    below: Locator,
    xattrs: Reader,
    limits: &'l PatchLimits,
    owners: &'l dyn Fn(u32, u32) -> (u32, u32),
    left: u64,
}

impl Patcher<'_> {
    fn change(&mut self, change: &Change, out: &mut dyn Write) -> Result<(), DiffError> {
        let name = quoted(b"", &change.path);
        match change.kind {
            Kind::Added => {
                let new = read(&mut self.above, &change.path, self.limits.file_bytes)?;
                match new {
                    Some(new) => self.added(&change.path, &new, out),
                    None => {
                        writeln!(out, "{} {name} added (mode {})", noun(change.file_type), change.mode).map_err(write)
                    }
                }
            }
            Kind::Deleted => match read(&mut self.below, &change.path, self.limits.file_bytes)? {
                Some(old) => self.contents(&change.path, Some(&old), None, out),
                None => {
                    write!(out, "{} {name} deleted", noun(change.file_type)).map_err(write)?;
                    match change.entries {
                        Some(1) => writeln!(out, ": 1 path in it"),
                        Some(entries) => writeln!(out, ": {entries} paths in it"),
                        None => writeln!(out),
                    }
                    .map_err(write)
                }
            },
            Kind::Replaced => {
                let was = change.from_type.map_or("Path", noun);
                writeln!(out, "{was} {name} replaced by {}", noun(change.file_type).to_lowercase()).map_err(write)?;
                let old = read(&mut self.below, &change.path, self.limits.file_bytes)?;
                let new = read(&mut self.above, &change.path, self.limits.file_bytes)?;
                if old.is_some() {
                    self.contents(&change.path, old.as_ref(), None, out)?;
                }
                new.map_or(Ok(()), |new| self.added(&change.path, &new, out))
            }
            Kind::Renamed => {
                let from = change.from.as_ref().unwrap_or(&change.path);
                let (old, new) = (quoted(b"a", from), quoted(b"b", &change.path));
                let (from, to) = (quoted_relative(from), quoted_relative(&change.path));
                let differing = self.differing(change, change.from.as_ref().unwrap_or(&change.path))?;
                metadata(&name, &differing.into_iter().map(|(_, told)| told).collect::<Vec<_>>(), out)?;
                writeln!(out, "diff --git {old} {new}\nsimilarity index 100%\nrename from {from}\nrename to {to}")
                    .map_err(write)
            }
            Kind::Modified | Kind::Metadata => {
                let old = read(&mut self.below, &change.path, self.limits.file_bytes)?;
                let new = read(&mut self.above, &change.path, self.limits.file_bytes)?;
                // git knows of a file's mode whether it can be run, and takes nothing else for a change.
                let seen_by_git =
                    old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| old.git_mode() != new.git_mode());
                let git_tells =
                    old.as_ref().zip(new.as_ref()).is_some_and(|(o, n)| o.git_tells_all() && n.git_tells_all());
                let differing = self.differing(change, &change.path)?.into_iter();
                let unseen: Vec<String> = differing
                    .filter_map(|(attribute, told)| (*attribute != Attribute::Mode || !git_tells).then_some(told))
                    .collect();
                metadata(&name, &unseen, out)?;
                if change.kind == Kind::Metadata && !seen_by_git {
                    return Ok(());
                }
                match (old, new) {
                    (Some(old), Some(new)) => self.contents(&change.path, Some(&old), Some(&new), out),
                    _ if change.file_type == FileType::Directory => Ok(()),
                    _ => writeln!(out, "{} {name} changed", noun(change.file_type)).map_err(write),
                }
            }
        }
    }

    /// What of its metadata differs, with the values before and after where there are short ones. It was at `from`.
    fn differing<'c>(
        &mut self,
        change: &'c Change,
        from: &PathBytes,
    ) -> Result<Vec<(&'c Attribute, String)>, DiffError> {
        if change.attributes.is_empty() {
            return Ok(Vec::new());
        }
        let old = Metadata::read(&mut self.below, from, &mut self.xattrs)?;
        let new = Metadata::read(&mut self.above, &change.path, &mut self.xattrs)?;
        let told = |attribute: &Attribute| match (&old, &new) {
            (Some(old), Some(new)) => {
                let values = [old, new].map(|side| side.value(attribute, self.owners));
                match values {
                    [Some(old), Some(new)] => format!("{attribute} {old} -> {new}"),
                    _ => attribute.to_string(),
                }
            }
            _ => attribute.to_string(),
        };
        Ok(change.attributes.iter().map(|attribute| (attribute, told(attribute))).collect())
    }

    /// A file or a symbolic link that was not there. A mode that git has no form for gets a line of its own: what is
    /// set-user-ID, or for all to write, must be seen.
    fn added(&mut self, path: &PathBytes, new: &Content, out: &mut dyn Write) -> Result<(), DiffError> {
        if !new.git_tells_all() {
            let (noun, name, mode) = (noun(new.file_type), quoted(b"", path), FileMode(new.mode));
            writeln!(out, "{noun} {name} added (mode {mode})").map_err(write)?;
        }
        self.contents(path, None, Some(new), out)
    }

    fn contents(
        &mut self,
        path: &PathBytes,
        old: Option<&Content>,
        new: Option<&Content>,
        out: &mut dyn Write,
    ) -> Result<(), DiffError> {
        let (a, b) = (quoted(b"a", path), quoted(b"b", path));
        writeln!(out, "diff --git {a} {b}").map_err(write)?;
        match (old, new) {
            (None, Some(new)) => writeln!(out, "new file mode {:06o}", new.git_mode()),
            (Some(old), None) => writeln!(out, "deleted file mode {:06o}", old.git_mode()),
            (Some(old), Some(new)) if old.git_mode() != new.git_mode() => {
                writeln!(out, "old mode {:06o}\nnew mode {:06o}", old.git_mode(), new.git_mode())
            }
            _ => Ok(()),
        }
        .map_err(write)?;
        let text = |side: Option<&Content>| side.is_none_or(Content::is_text);
        let size = old.map_or(0, |old| old.size) + new.map_or(0, |new| new.size);
        if !text(old) || !text(new) || size > self.left {
            if let (Some(old), Some(new)) = (old, new)
                && old.bytes.is_some()
                && old.bytes == new.bytes
            {
                return Ok(());
            }
            let name = quoted(b"", path);
            return match (old, new) {
                (Some(old), Some(new)) => {
                    writeln!(out, "Binary file {name} changed: {} -> {} bytes", old.size, new.size)
                }
                (None, Some(new)) => writeln!(out, "Binary file {name} added: {} bytes", new.size),
                (Some(old), None) => writeln!(out, "Binary file {name} deleted: {} bytes", old.size),
                (None, None) => Ok(()),
            }
            .map_err(write);
        }
        self.left -= size;
        let before = old.and_then(|old| old.bytes.as_deref()).unwrap_or_default();
        let after = new.and_then(|new| new.bytes.as_deref()).unwrap_or_default();
        if before == after {
            return Ok(());
        }
        let a = if old.is_some() { a } else { "/dev/null".to_owned() };
        let b = if new.is_some() { b } else { "/dev/null".to_owned() };
        // As git does: a tab ends a name that has a space.
        let tab = |name: &str| if name.contains(' ') { "\t" } else { "" };
        writeln!(out, "--- {a}{}\n+++ {b}{}", tab(&a), tab(&b)).map_err(write)?;
        hunks(before, after, self.limits, out).map_err(write)
    }
}

impl Content {
    fn is_text(&self) -> bool {
        self.bytes.as_ref().is_some_and(|bytes| !bytes.contains(&0))
    }

    fn git_mode(&self) -> u32 {
        match self.file_type {
            FileType::Symlink => 0o120_000,
            _ if self.mode & 0o100 != 0 => 0o100_755,
            _ => 0o100_644,
        }
    }

    /// Whether [`Self::git_mode`] is the whole mode.
    fn git_tells_all(&self) -> bool {
        self.file_type == FileType::Symlink || self.git_mode() & 0o7777 == self.mode
    }
}

/// What differs in a path's metadata, if anything does.
fn metadata(name: &str, differing: &[String], out: &mut dyn Write) -> Result<(), DiffError> {
    if differing.is_empty() {
        return Ok(());
    }
    writeln!(out, "Metadata of {name} changed: {}", differing.join(", ")).map_err(write)
}

/// None where there is neither a file nor a symbolic link.
fn read(stack: &mut Locator, path: &PathBytes, limit: u64) -> Result<Option<Content>, DiffError> {
    let Found::Node { at, stat } = stack.find(path)? else { return Ok(None) };
    let dir = &stack.dirs()[at];
    let bytes = match file_type(&stat) {
        FileType::File => {
            let file: Result<OwnedFd, _> = open_file(dir.fd(), stack.name());
            let file = file.map_err(|source| stack.failed("openat", dir.layer, source))?;
            read_bounded(&file, limit).map_err(|source| stack.failed("pread64", dir.layer, source))?
        }
        FileType::Symlink => {
            let target = readlinkat(dir.fd(), stack.name(), Vec::new());
            Some(target.map_err(|source| stack.failed("readlinkat", dir.layer, source))?.into_bytes())
        }
        _ => return Ok(None),
    };
    Ok(Some(Content { file_type: file_type(&stat), mode: stat.st_mode & 0o7777, size: size(&stat), bytes }))
}

/// What an inode has besides its contents.
struct Metadata {
    stat: Stat,
    xattrs: Xattrs,
}

impl Metadata {
    /// None where there is nothing.
    fn read(stack: &mut Locator, path: &PathBytes, reader: &mut Reader) -> Result<Option<Metadata>, DiffError> {
        let (stat, layer, xattrs) = match stack.find(path)? {
            Found::Node { at, stat } => {
                let dir = &stack.dirs()[at];
                (stat, dir.layer, reader.read(dir.fd(), stack.name()))
            }
            Found::Dir { stat, dirs, .. } => {
                let Some(newest) = dirs.first() else { return Ok(None) };
                (stat, newest.layer, reader.read(newest.fd(), c"."))
            }
            Found::Absent | Found::Whiteout => return Ok(None),
        };
        let xattrs = xattrs.map_err(|source| stack.failed("lgetxattr", layer, source))?;
        Ok(Some(Metadata { stat, xattrs }))
    }

    /// The value of an attribute, as people read it; none for those that they don't.
    fn value(&self, attribute: &Attribute, owners: &dyn Fn(u32, u32) -> (u32, u32)) -> Option<String> {
        match attribute {
            Attribute::Mode => Some(FileMode(self.stat.st_mode & 0o7777).to_string()),
            Attribute::Owner => {
                let (uid, gid) = owners(self.stat.st_uid, self.stat.st_gid);
                Some(format!("{uid}:{gid}"))
            }
            Attribute::Mtime => {
                let (seconds, nanoseconds) = mtime(&self.stat);
                // A year that is too far away has no form.
                let time = chrono::DateTime::from_timestamp(seconds, nanoseconds)?;
                Some(time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true))
            }
            Attribute::Acl | Attribute::Capability => None,
            Attribute::Xattr(name) => {
                let found = self.xattrs.iter().find(|(its, _)| its.escape_ascii().to_string() == *name);
                Some(found.map_or_else(|| "none".to_owned(), |(_, value)| short(value)))
            }
        }
    }
}

/// The beginning of a value that a container has chosen, in quotes.
fn short(value: &[u8]) -> String {
    let (shown, more) = match value.len() {
        len if len > VALUE_SHOWN => (&value[..VALUE_SHOWN], format!("… ({len} bytes)")),
        _ => (value, String::new()),
    };
    format!("\"{}\"{more}", shown.escape_ascii())
}

fn hunks(before: &[u8], after: &[u8], limits: &PatchLimits, out: &mut dyn Write) -> io::Result<()> {
    let old: Vec<&[u8]> = before.split_inclusive(|byte| *byte == b'\n').collect();
    let new: Vec<&[u8]> = after.split_inclusive(|byte| *byte == b'\n').collect();
    let deadline = Instant::now().checked_add(limits.time_per_file);
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline);
    for group in group_diff_ops(ops, limits.context) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let (a, b) = (first.old_range().start..last.old_range().end, first.new_range().start..last.new_range().end);
        writeln!(out, "@@ -{} +{} @@", range(a.start, a.len()), range(b.start, b.len()))?;
        for op in &group {
            match op {
                DiffOp::Equal { .. } => lines(b' ', &old[op.old_range()], out)?,
                _ => {
                    lines(b'-', &old[op.old_range()], out)?;
                    lines(b'+', &new[op.new_range()], out)?;
                }
            }
        }
    }
    Ok(())
}

fn range(start: usize, len: usize) -> String {
    match len {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        _ => format!("{},{len}", start + 1),
    }
}

fn lines(sign: u8, lines: &[&[u8]], out: &mut dyn Write) -> io::Result<()> {
    for line in lines {
        out.write_all(&[sign])?;
        out.write_all(line)?;
        if !line.ends_with(b"\n") {
            out.write_all(b"\n\\ No newline at end of file\n")?;
        }
    }
    Ok(())
}

fn noun(file_type: FileType) -> &'static str {
    match file_type {
        FileType::File => "File",
        FileType::Directory => "Directory",
        FileType::Symlink => "Symbolic link",
        FileType::Fifo => "Named pipe",
        FileType::Socket => "Socket",
        FileType::Char => "Character device",
        FileType::Block => "Block device",
    }
}

fn quoted_relative(path: &PathBytes) -> String {
    let bytes = path.as_bytes();
    quoted(b"", &PathBytes::new(bytes.strip_prefix(b"/").unwrap_or(bytes)))
}

/// The name behind a prefix, in double quotes with C's escapes where it has what could be misread.
fn quoted(prefix: &[u8], path: &PathBytes) -> String {
    let bytes = [prefix, path.as_bytes()].concat();
    let special = |c: char| c.is_control() || c == '"' || c == '\\';
    let text = match String::from_utf8(bytes) {
        Ok(text) if !text.contains(special) => return text,
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    };
    let mut out = String::from("\"");
    for byte in text {
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'\r' => out.push_str("\\r"),
            0x07 => out.push_str("\\a"),
            0x08 => out.push_str("\\b"),
            0x0b => out.push_str("\\v"),
            0x0c => out.push_str("\\f"),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\{byte:03o}")),
        }
    }
    out.push('"');
    out
}

fn write(error: io::Error) -> DiffError {
    DiffError::Write(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_git_does() {
        for (path, want) in [
            (&b"/x y"[..], "a/x y"),
            ("/é".as_bytes(), "a/é"),
            (b"/a\nb", "\"a/a\\nb\""),
            (b"/q\"\\", "\"a/q\\\"\\\\\""),
            (b"/\xff\x01", "\"a/\\377\\001\""),
            // A control character beyond ASCII could drive a terminal too.
            ("/\u{9b}".as_bytes(), "\"a/\\302\\233\""),
        ] {
            assert_eq!(quoted(b"a", &PathBytes::new(path)), want);
        }
    }

    #[test]
    fn hunks_count_lines_from_one() {
        let show = |before: &str, after: &str| {
            let mut out = Vec::new();
            hunks(before.as_bytes(), after.as_bytes(), &PatchLimits::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(show("", "a\n"), "@@ -0,0 +1 @@\n+a\n");
        assert_eq!(show("a", ""), "@@ -1 +0,0 @@\n-a\n\\ No newline at end of file\n");
        assert_eq!(show("a\nb\nc\n", "a\nB\nc\n"), "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
    }
}
