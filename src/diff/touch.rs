//! What a layer touched, and whether two layers can follow each other without losing an update.
//!
//! The rule. Two sets conflict at a path that is in both, unless both made it as a new directory with the same mode,
//! owner and extended attributes: such directories merge. They also conflict where one *covers* a directory (deleted
//! it, put something else there, or made it anew over the old one) and the other touched something below. A directory
//! that a layer only passed through is not in its set. A rename touches both its paths.

use std::cmp::Ordering;

use super::change::{Diff, FileType, Kind};
use super::error::DiffError;
use super::path::{PathBytes, is_below};

const MAGIC: [u8; 3] = *b"TCH";
const VERSION: u8 = 1;
const COVERS: u8 = 1;
const DIRECTORY: u8 = 2;
/// The longest path that is decoded, in bytes: deeper than any walk goes.
const PATH_MAX: usize = 2 << 20;
/// The most bytes of paths that are decoded.
const TOTAL_MAX: usize = 1 << 30;

/// One path that a layer touched.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Touched {
    /// The path.
    pub path: PathBytes,
    /// Everything that lower layers have below the path is gone or hidden.
    pub covers: bool,
    /// The layer made it as a new directory; the digest is of its mode, owner and extended attributes.
    pub new_directory: Option<[u8; 16]>,
}

/// What a diff's layers touched, sorted by path, each path once. The diff must come from [`super::compare`] or
/// [`super::seal`]: one read back from a document lacks what tells directories apart, and is taken strictly.
pub fn touched(diff: &Diff) -> Vec<Touched> {
    let mut all = Vec::with_capacity(diff.changes.len() + diff.hides.len());
    let mut put = |path: &PathBytes, covers: bool, new_directory: Option<[u8; 16]>| {
        all.push(Touched { path: path.clone(), covers, new_directory });
    };
    for change in &diff.changes {
        let covers = matches!(change.kind, Kind::Deleted | Kind::Replaced);
        let new = change.kind == Kind::Added && change.file_type == FileType::Directory;
        put(&change.path, covers, change.attributes_digest.filter(|_| new));
        if let Some(from) = &change.from {
            put(from, true, None);
        }
    }
    for path in &diff.hides {
        put(path, true, None);
    }
    united(all)
}

/// What several layers touched, as if it had been one: what conflicts with one of them conflicts with it.
pub fn union(sets: Vec<Vec<Touched>>) -> Vec<Touched> {
    united(sets.concat())
}

fn united(mut all: Vec<Touched>) -> Vec<Touched> {
    all.sort_unstable();
    all.dedup_by(|next, kept| {
        let same = next.path == kept.path;
        if same {
            kept.covers |= next.covers;
            kept.new_directory = None;
        }
        same
    });
    all
}

/// Whether a path is in a set, sorted as [`touched`] gives it, or below something in it that covers.
pub fn touches(set: &[Touched], path: &PathBytes) -> bool {
    if set.binary_search_by(|touched| touched.path.cmp(path)).is_ok() {
        return true;
    }
    let bytes = path.as_bytes();
    let above = (1..bytes.len()).filter(|end| bytes[*end] == b'/').map(|end| PathBytes::new(&bytes[..end]));
    let mut covering = above.filter_map(|dir| {
        let at = set.binary_search_by(|touched| touched.path.cmp(&dir)).ok()?;
        Some(set[at].covers)
    });
    covering.any(|covers| covers)
}

/// The paths at which two sets, each sorted and without duplicates as [`touched`] gives them, conflict; sorted. Of a
/// covered directory and what was touched below it, the lower path is told. One sort and one pass.
pub fn conflicts(ours: &[Touched], theirs: &[Touched]) -> Vec<PathBytes> {
    // In the order of the tree, what lies below a directory follows it at once.
    let in_tree_order = |set: &[Touched]| -> Vec<usize> {
        let mut order: Vec<usize> = (0..set.len()).collect();
        order.sort_by(|a, b| tree_order(set[*a].path.as_bytes(), set[*b].path.as_bytes()));
        order
    };
    let (our_order, their_order) = (in_tree_order(ours), in_tree_order(theirs));
    let (mut our, mut their) = (our_order.iter().peekable(), their_order.iter().peekable());
    // The outermost directory that each side covers around where the pass is.
    let (mut we_cover, mut they_cover): (Option<&PathBytes>, Option<&PathBytes>) = (None, None);
    let mut found = Vec::new();
    loop {
        let next = match (our.peek(), their.peek()) {
            (Some(a), Some(b)) => tree_order(ours[**a].path.as_bytes(), theirs[**b].path.as_bytes()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => break,
        };
        let mine = if next.is_le() { our.next().map(|index| &ours[*index]) } else { None };
        let other = if next.is_ge() { their.next().map(|index| &theirs[*index]) } else { None };
        let under = |cover: Option<&PathBytes>, path: &PathBytes| {
            cover.is_some_and(|cover| is_below(path.as_bytes(), cover.as_bytes()))
        };
        match (mine, other) {
            (Some(mine), Some(other)) => {
                let merges = mine.new_directory.is_some()
                    && mine.new_directory == other.new_directory
                    && !mine.covers
                    && !other.covers;
                if !merges || under(they_cover, &mine.path) || under(we_cover, &other.path) {
                    found.push(mine.path.clone());
                }
            }
            (Some(mine), None) if under(they_cover, &mine.path) => found.push(mine.path.clone()),
            (None, Some(other)) if under(we_cover, &other.path) => found.push(other.path.clone()),
            _ => {}
        }
        if let Some(mine) = mine.filter(|mine| mine.covers && !under(we_cover, &mine.path)) {
            we_cover = Some(&mine.path);
        }
        if let Some(other) = other.filter(|other| other.covers && !under(they_cover, &other.path)) {
            they_cover = Some(&other.path);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// By bytes, the slash before all others; the root first.
fn tree_order(a: &[u8], b: &[u8]) -> Ordering {
    let (a, b) = (a.strip_suffix(b"/").unwrap_or(a), b.strip_suffix(b"/").unwrap_or(b));
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let rank = |path: &[u8]| path.get(same).map_or(0, |byte| if *byte == b'/' { 1 } else { u16::from(*byte) + 2 });
    rank(a).cmp(&rank(b))
}

/// A compact form of a set: `TCH`, the version (1), the number of paths, and each path as the length it shares with
/// the one before, the length of its rest, the rest, a byte of flags (1 covers, 2 new directory), and for a new
/// directory its digest of 16 bytes. Numbers are LEB128.
pub fn encode_touched(set: &[Touched]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + set.len() * 24);
    out.extend_from_slice(&MAGIC);
    out.push(VERSION);
    put_number(&mut out, set.len());
    let mut last: &[u8] = b"";
    for touched in set {
        let path = touched.path.as_bytes();
        let shared = last.iter().zip(path).take_while(|(a, b)| a == b).count();
        put_number(&mut out, shared);
        put_number(&mut out, path.len() - shared);
        out.extend_from_slice(&path[shared..]);
        out.push(u8::from(touched.covers) * COVERS + u8::from(touched.new_directory.is_some()) * DIRECTORY);
        out.extend_from_slice(touched.new_directory.as_ref().map_or(&[][..], |digest| &digest[..]));
        last = path;
    }
    out
}

/// Reads what [`encode_touched`] wrote. The paths come out absolute, sorted, without duplicates, or not at all.
///
/// # Errors
/// [`DiffError::Version`] for another version, [`DiffError::Damaged`] for anything else; what is allocated is bounded
/// by the input's length and by 1 GiB of paths.
pub fn decode_touched(bytes: &[u8]) -> Result<Vec<Touched>, DiffError> {
    let mut reader = Bytes { bytes, at: 0 };
    if reader.take(MAGIC.len())? != MAGIC {
        return Err(reader.damaged("not a set of touched paths"));
    }
    match reader.take(1)?[0] {
        VERSION => {}
        version => return Err(DiffError::Version { version }),
    }
    let count = reader.number()?;
    // Each takes four bytes at least.
    if count > bytes.len() / 4 {
        return Err(reader.damaged("more paths than bytes"));
    }
    let mut set: Vec<Touched> = Vec::with_capacity(count);
    let mut total = 0usize;
    for _ in 0..count {
        let (shared, rest) = (reader.number()?, reader.number()?);
        let last = set.last().map_or(&[][..], |touched| touched.path.as_bytes());
        if shared > last.len() || rest > PATH_MAX || shared + rest > PATH_MAX {
            return Err(reader.damaged("a path's length"));
        }
        total += shared + rest;
        if total > TOTAL_MAX {
            return Err(reader.damaged("too many bytes of paths"));
        }
        let path = [&last[..shared], reader.take(rest)?].concat();
        if path.first() != Some(&b'/') || (!set.is_empty() && path.as_slice() <= last) {
            return Err(reader.damaged("a path that is not absolute or out of order"));
        }
        let flags = reader.take(1)?[0];
        if flags > COVERS | DIRECTORY {
            return Err(reader.damaged("unknown flags"));
        }
        let mut new_directory = None;
        if flags & DIRECTORY != 0 {
            let mut digest = [0; 16];
            digest.copy_from_slice(reader.take(16)?);
            new_directory = Some(digest);
        }
        set.push(Touched { path: PathBytes::new(path), covers: flags & COVERS != 0, new_directory });
    }
    if reader.at != bytes.len() {
        return Err(reader.damaged("bytes after the end"));
    }
    Ok(set)
}

fn put_number(out: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

struct Bytes<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Bytes<'b> {
    fn damaged(&self, reason: &'static str) -> DiffError {
        DiffError::Damaged { offset: self.at, reason }
    }

    fn take(&mut self, len: usize) -> Result<&'b [u8], DiffError> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else { return Err(self.damaged("it ends early")) };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    /// At most 35 bits, in its shortest form.
    fn number(&mut self) -> Result<usize, DiffError> {
        let mut number = 0u64;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(self.damaged("a number that is too long"));
                }
                return usize::try_from(number).map_err(|_| self.damaged("a number that is too large"));
            }
        }
        Err(self.damaged("a number that is too large"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `-path` covers, `+path=D` is a new directory with digest D, `path` is anything else.
    fn set(texts: &[&str]) -> Vec<Touched> {
        let mut set: Vec<Touched> = texts
            .iter()
            .map(|text| {
                let covers = text.starts_with('-');
                let (path, digest) = text.trim_start_matches(['-', '+']).split_once('=').unwrap_or((text, ""));
                let new_directory = digest.bytes().next().map(|byte| [byte; 16]);
                let path = PathBytes::from(path.trim_start_matches('-'));
                Touched { path, covers, new_directory }
            })
            .collect();
        set.sort();
        set
    }

    #[test]
    fn the_conflict_rule() {
        for (ours, theirs, want) in [
            (&["/a"][..], &["/b"][..], &[][..]),
            (&["/a"], &["/a"], &["/a"]),
            (&["/d/a"], &["/d/b"], &[]),
            (&["/d/a"], &["/d"], &[]),
            (&["-/d"], &["/d/a", "/d/b/c", "/d-e", "/e"], &["/d/a", "/d/b/c"]),
            (&["/d/a", "/d/b/c", "/d-e"], &["-/d"], &["/d/a", "/d/b/c"]),
            (&["-/d"], &["-/d"], &["/d"]),
            (&["-/d", "-/d/x"], &["/d/x/y"], &["/d/x/y"]),
            (&["-/d", "-/e"], &["/d-x", "/e/y"], &["/e/y"]),
            (&["-/d/x"], &["/d/y", "-/d/x/z"], &["/d/x/z"]),
            (&["+/d=1", "/d/a"], &["+/d=1", "/d/b"], &[]),
            (&["+/d=1", "/d/a"], &["+/d=1", "/d/a"], &["/d/a"]),
            (&["+/d=1"], &["+/d=2"], &["/d"]),
            (&["+/d=1"], &["/d"], &["/d"]),
            (&["/"], &["/a"], &[]),
            (&["/"], &["/"], &["/"]),
            (&["-/"], &["/a"], &["/a"]),
            (&["-/a"], &["-/a/b", "/a/b/c"], &["/a/b", "/a/b/c"]),
            (&["-/a", "/c"], &["/a.b", "/a/b", "/c"], &["/a/b", "/c"]),
            (&[], &["/a"], &[]),
        ] {
            let (ours, theirs) = (set(ours), set(theirs));
            let want: Vec<PathBytes> = want.iter().map(|path| PathBytes::from(*path)).collect();
            assert_eq!(conflicts(&ours, &theirs), want, "{ours:?} {theirs:?}");
            assert_eq!(conflicts(&theirs, &ours), want, "{theirs:?} {ours:?}");
        }
    }

    /// Against the rule spelled out, pair by pair.
    #[test]
    fn the_pass_is_the_rule() {
        let paths = ["/a", "/a-b", "/a/b", "/a/b/c", "/a/b-", "/b", "/a.c", "/a/c", "/"];
        let mut random = 7u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % n
        };
        for _ in 0..3000 {
            let mut any = || {
                let mut set = Vec::new();
                for path in paths.iter().filter(|_| below(2) == 0).copied().collect::<Vec<_>>() {
                    let new_directory = (below(2) == 0).then_some([1; 16]);
                    let covers = new_directory.is_none() && below(2) == 0;
                    set.push(Touched { path: PathBytes::from(path), covers, new_directory });
                }
                set.sort();
                set
            };
            let (ours, theirs) = (any(), any());
            let mut want = Vec::new();
            for (a, b) in ours.iter().flat_map(|a| theirs.iter().map(move |b| (a, b))) {
                let (p, q) = (a.path.as_bytes(), b.path.as_bytes());
                if p == q && !(a.new_directory.is_some() && a.new_directory == b.new_directory) {
                    want.push(a.path.clone());
                }
                if a.covers && is_below(q, p) {
                    want.push(b.path.clone());
                }
                if b.covers && is_below(p, q) {
                    want.push(a.path.clone());
                }
            }
            want.sort();
            want.dedup();
            assert_eq!(conflicts(&ours, &theirs), want, "{ours:?} {theirs:?}");
        }
    }

    #[test]
    fn encoding_both_ways() {
        let long = format!("/{}", "x".repeat(300));
        for texts in [&[][..], &["/"], &["-/a", "+/a/b=7", "/a/b/c", "/b"], &["/a", long.as_str()]] {
            let set = set(texts);
            assert_eq!(decode_touched(&encode_touched(&set)).unwrap(), set);
        }
    }

    #[test]
    fn damaged_input_is_refused() {
        let good = encode_touched(&set(&["-/a", "+/a/b=7", "/a/b/c"]));
        for end in 0..good.len() {
            assert!(matches!(decode_touched(&good[..end]), Err(DiffError::Damaged { .. })), "{end}");
        }
        let edit = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            decode_touched(&bytes)
        };
        assert!(matches!(edit(0, b'X'), Err(DiffError::Damaged { .. })));
        assert!(matches!(edit(3, 2), Err(DiffError::Version { version: 2 })));
        assert!(edit(4, 0xff).is_err() && edit(5, 3).is_err() && edit(7, b'b').is_err() && edit(9, 4).is_err());
        assert!(decode_touched(&[&good[..], b"\0"].concat()).is_err());
        // A claim of many paths allocates nothing.
        assert!(decode_touched(b"TCH\x01\xff\xff\xff\xff\x0f").is_err());
        assert!(decode_touched(b"TCH\x01\x01\x00\xff\xff\xff\xff\x7f").is_err());
        // Neither order nor an absolute path is taken on trust.
        for texts in [&["/b", "/a"][..], &["/a", "/a"], &["a"]] {
            let set: Vec<Touched> = texts.iter().map(|text| set(&[text]).remove(0)).collect();
            assert!(decode_touched(&encode_touched(&set)).is_err(), "{texts:?}");
        }
    }
}
