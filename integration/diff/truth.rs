//! What two walks say must be told, path by path and field by field, and whether a document tells it: by brute force,
//! over whole trees, with nothing of the code that made the document.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::support::walk::{Entry, Tree, below, bytes_of, kind_of_change, shown};

/// Up to so many deleted files of one look, a moved one must be found among them.
const LOOKALIKES: usize = 8;

/// One change, its fields as the document has them; what a field is not told for is left out.
type Told = Map<String, Value>;

/// Changes by path.
type Changes = BTreeMap<Vec<u8>, Told>;

/// Whether `document` (a result, or what `diff --json` prints) tells the way from `before` to `after`: each change with
/// all its fields, in order, none twice, and the counts. `recursive`: each path under a deleted directory is listed.
pub fn check(document: &Value, before: &Tree, after: &Tree, recursive: bool) -> Result<(), String> {
    let told = read(document)?;
    let mut truth = expected(before, after);
    take_renames(&told, &mut truth, before, after)?;
    let summary = count(&truth);
    let (least, most) = taken(&truth, after);
    match document["summary"]["bytes"].as_u64() {
        Some(bytes) if (least..=most).contains(&bytes) => {}
        bytes => return Err(format!("summary.bytes is {bytes:?}, not from {least} to {most}")),
    }
    for (field, value) in &summary {
        if document["summary"][field] != *value {
            return Err(format!("summary.{field} is {}, not {value}", document["summary"][field]));
        }
    }
    if !recursive {
        let unlisted: Vec<Vec<u8>> = truth.keys().filter(|path| goes_with_a_directory(path, &truth)).cloned().collect();
        unlisted.iter().for_each(|path| drop(truth.remove(path)));
    }
    let mut wrong = Vec::new();
    for path in truth.keys().chain(told.keys()).collect::<BTreeSet<_>>() {
        let (is, should) = (told.get(path), truth.get(path));
        if is != should {
            let text =
                |told: Option<&Told>| told.map_or("nothing".to_owned(), |t| Value::Object(t.clone()).to_string());
            wrong.push(format!("{}:\n    told {}\n    true {}", shown(path), text(is), text(should)));
        }
    }
    let more = wrong.len().saturating_sub(12);
    wrong.truncate(12);
    if wrong.is_empty() { Ok(()) } else { Err(format!("{} (and {more} more)", wrong.join("\n"))) }
}

/// Whether two views are the same in all that a walk sees, which names are links of each other too. The root
/// directory's own time is each layer's.
pub fn same_view(now: &Tree, then: &Tree) -> Result<(), String> {
    same(now, then, |_| true, |_| None)
}

/// Whether the view `now`, after a commit, is the one that the exec itself had at its end, `after`. A directory's time
/// is kept where the exec made the directory or changed what is in it. Where a copy was made and left as it was, the
/// original is seen again, with the links it had.
pub fn same_after_commit(now: &Tree, before: &Tree, after: &Tree) -> Result<(), String> {
    let truth = expected(before, after);
    let parent = |path: &[u8]| path[..path.iter().rposition(|b| *b == b'/').unwrap_or(0)].to_vec();
    let changed_in: BTreeSet<Vec<u8>> = truth.keys().map(|path| parent(path)).collect();
    let links = link_groups(before);
    let timed = |path: &Vec<u8>| changed_in.contains(path) || truth.contains_key(path);
    same(now, after, timed, |path| if truth.contains_key(path) { None } else { Some(links.get(path).cloned()) })
}

/// `links` gives the names that a path may be linked with instead.
fn same(
    now: &Tree,
    then: &Tree,
    timed: impl Fn(&Vec<u8>) -> bool,
    links: impl Fn(&Vec<u8>) -> Option<Option<Vec<Vec<u8>>>>,
) -> Result<(), String> {
    let (now_links, then_links) = (link_groups(now), link_groups(then));
    let mut wrong = Vec::new();
    for path in now.keys().chain(then.keys()).collect::<BTreeSet<_>>() {
        let seen = |tree: &Tree| {
            tree.get(path).map(|entry| {
                let timeless = entry.kind == "directory" && (!timed(path) || path.as_slice() == b"/");
                Entry { link: None, blocks: 0, mtime: if timeless { (0, 0) } else { entry.mtime }, ..entry.clone() }
            })
        };
        let (is, was) = (seen(now), seen(then));
        if is != was {
            wrong.push(format!("{}:\n    now  {is:?}\n    then {was:?}", shown(path)));
        } else if now_links.get(path) != then_links.get(path)
            && links(path).is_none_or(|may| may.as_ref() != now_links.get(path))
        {
            let names = |links: &BTreeMap<Vec<u8>, Vec<Vec<u8>>>| {
                links.get(path).map(|names| names.iter().map(|name| shown(name)).collect::<Vec<_>>())
            };
            wrong.push(format!("{}: links now {:?}, then {:?}", shown(path), names(&now_links), names(&then_links)));
        }
    }
    let more = wrong.len().saturating_sub(12);
    wrong.truncate(12);
    if wrong.is_empty() { Ok(()) } else { Err(format!("{} (and {more} more)", wrong.join("\n"))) }
}

/// The paths that differ.
pub fn changed_paths(before: &Tree, after: &Tree) -> BTreeSet<Vec<u8>> {
    expected(before, after).into_keys().collect()
}

/// Each path that is a hard link of others: all names of its inode, in order.
fn link_groups(tree: &Tree) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut inodes: BTreeMap<(u64, u64), Vec<Vec<u8>>> = BTreeMap::new();
    for (path, entry) in tree {
        if let Some(inode) = entry.link {
            inodes.entry(inode).or_default().push(path.clone());
        }
    }
    let groups = inodes.into_values().filter(|names| names.len() > 1);
    groups.flat_map(|names| names.clone().into_iter().map(move |path| (path, names.clone()))).collect()
}

/// What a document tells, by path. Order, duplicates and fields that nobody knows are its faults.
fn read(document: &Value) -> Result<Changes, String> {
    let mut told = Changes::new();
    let mut last: Option<Vec<u8>> = None;
    for change in document["changes"].as_array().ok_or("no changes")? {
        let path = bytes_of(&change["path"]).ok_or_else(|| format!("no path in {change}"))?;
        if last.as_ref().is_some_and(|last| *last >= path) {
            return Err(format!("{} is out of order or there twice", shown(&path)));
        }
        let fields = change.as_object().ok_or("a change is no object")?;
        told.insert(path.clone(), fields.clone());
        last = Some(path);
    }
    Ok(told)
}

/// Text where the bytes are UTF-8, else an object with them in base64.
fn bytes(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => serde_json::json!({ "pathBase64": base64(bytes) }),
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |n| byte >> n & 1)).collect();
    let digit = |six: &[u8]| (0..6).fold(0, |value, n| value << 1 | usize::from(*six.get(n).unwrap_or(&0)));
    let mut text: String = bits.chunks(6).map(|six| char::from(DIGITS[digit(six)])).collect();
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

/// Every changed path, renames not told.
fn expected(before: &Tree, after: &Tree) -> Changes {
    let mut truth = Changes::new();
    for path in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let (old, new) = (before.get(path), after.get(path));
        let Some(kind) = kind_of_change(old, new) else { continue };
        let Some(entry) = new.or(old) else { continue };
        let mut told = Told::new();
        told.insert("kind".into(), kind.into());
        told.insert("path".into(), bytes(path));
        told.insert("type".into(), entry.kind.into());
        told.insert("mode".into(), format!("{:04o}", entry.mode).into());
        told.insert("uid".into(), entry.owner.0.into());
        told.insert("gid".into(), entry.owner.1.into());
        if let Some(size) = entry.size {
            told.insert("size".into(), size.into());
        }
        if entry.kind == "symlink" {
            told.insert("target".into(), bytes(&entry.content));
        }
        if let Some((major, minor)) = entry.rdev {
            told.insert("rdev".into(), format!("{major}:{minor}").into());
        }
        if let (Some(old), Some(new)) = (old, new) {
            if kind == "replaced" {
                told.insert("fromType".into(), old.kind.into());
            } else {
                let mut attributes = attributes(old, new);
                if kind == "modified" || new.kind == "directory" {
                    attributes.remove("mtime");
                }
                tell_attributes(&mut told, attributes);
            }
        }
        if old.is_some_and(|old| old.kind == "directory") && matches!(kind, "deleted" | "replaced") {
            told.insert("entries".into(), below(before, path).count().into());
        }
        truth.insert(path.clone(), told);
    }
    tell_links(&mut truth, after);
    truth
}

fn attributes(old: &Entry, new: &Entry) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (differs, word) in
        [(old.mode != new.mode, "mode"), (old.owner != new.owner, "owner"), (old.mtime != new.mtime, "mtime")]
    {
        if differs {
            found.insert(word.to_owned());
        }
    }
    for name in old.xattrs.keys().chain(new.xattrs.keys()) {
        if old.xattrs.get(name) != new.xattrs.get(name) {
            found.insert(match name.as_slice() {
                b"system.posix_acl_access" | b"system.posix_acl_default" => "acl".to_owned(),
                b"security.capability" => "capability".to_owned(),
                name => format!("xattr:{}", name.escape_ascii()),
            });
        }
    }
    found
}

fn tell_attributes(told: &mut Told, attributes: BTreeSet<String>) {
    if attributes.is_empty() {
        return;
    }
    const ORDER: [&str; 5] = ["mode", "owner", "mtime", "acl", "capability"];
    let mut sorted: Vec<String> = attributes.into_iter().collect();
    sorted.sort_by_key(|word| (ORDER.iter().position(|w| w == word).unwrap_or(ORDER.len()), word.clone()));
    told.insert("attributes".into(), sorted.into());
}

/// A changed path that shares its inode with others is told to be a link to one that was there before, else to the
/// first.
fn tell_links(truth: &mut Changes, after: &Tree) {
    let groups: BTreeSet<Vec<Vec<u8>>> = link_groups(after).into_values().collect();
    for names in groups {
        let is_new = |path: &Vec<u8>| truth.get(path).is_some_and(|t| t["kind"] == "added" || t["kind"] == "replaced");
        let first = names.iter().min_by_key(|path| (is_new(path), path.to_vec())).cloned().unwrap_or_default();
        for path in names.iter().filter(|path| **path != first) {
            if let Some(told) = truth.get_mut(path) {
                told.insert("linkTo".into(), bytes(&first));
            }
        }
    }
}

/// What must agree between a deleted and an added path for them to be the same file moved.
fn look(entry: &Entry) -> impl Ord + Clone + use<> {
    (entry.kind, entry.size, entry.mtime, entry.mode, entry.owner, entry.content.clone())
}

/// Believes each rename that is told and can be one, and asks for those that are not told and must be.
fn take_renames(told: &Changes, truth: &mut Changes, before: &Tree, after: &Tree) -> Result<(), String> {
    let is = |truth: &Changes, path: &[u8], kind: &str| truth.get(path).is_some_and(|told| told["kind"] == kind);
    for (path, change) in told.iter().filter(|(_, change)| change["kind"] == "renamed") {
        let from = change.get("from").and_then(bytes_of).ok_or_else(|| format!("{}: no from", shown(path)))?;
        if !is(truth, path, "added") || !is(truth, &from, "deleted") {
            return Err(format!("{} renamed from {}: no such paths came and went", shown(path), shown(&from)));
        }
        let (old, new) = (&before[&from], &after[path]);
        if look(old) != look(new) || !matches!(new.kind, "file" | "symlink") {
            return Err(format!("{} renamed from {}: not the same: {old:?} {new:?}", shown(path), shown(&from)));
        }
        truth.remove(&from);
        if let Some(truth) = truth.get_mut(path) {
            truth.insert("kind".into(), "renamed".into());
            truth.insert("from".into(), bytes(&from));
            tell_attributes(truth, attributes(old, new));
        }
    }
    // What is left must not look like a rename, but where too many look alike.
    let mut alike: BTreeMap<_, usize> = BTreeMap::new();
    for entry in before.iter().filter(|(path, _)| !after.contains_key(*path)).map(|(_, entry)| entry) {
        *alike.entry(look(&Entry { content: Vec::new(), ..entry.clone() })).or_default() += 1;
    }
    #[derive(Default)]
    struct Left<'p> {
        gone: Vec<&'p Vec<u8>>,
        new: Vec<&'p Vec<u8>>,
    }
    let mut looks: BTreeMap<_, Left<'_>> = BTreeMap::new();
    for (path, told) in truth.iter() {
        match told["kind"].as_str() {
            Some("deleted") => looks.entry(look(&before[path])).or_default().gone.push(path),
            Some("added") => looks.entry(look(&after[path])).or_default().new.push(path),
            _ => {}
        }
    }
    for Left { gone, new } in looks.values() {
        let (Some(from), Some(to)) = (gone.first(), new.first()) else { continue };
        let entry = &after[*to];
        let certain = match (entry.kind, entry.size) {
            ("file", Some(0)) => gone.len() == 1 && new.len() == 1 && empties_like(entry, before, after) == 2,
            ("file" | "symlink", _) => alike[&look(&Entry { content: Vec::new(), ..entry.clone() })] <= LOOKALIKES,
            _ => false,
        };
        if certain {
            return Err(format!("{} is {} renamed, and that is not told", shown(to), shown(from)));
        }
    }
    Ok(())
}

/// How many empty files that look like this one came or went, those told as renamed too.
fn empties_like(entry: &Entry, before: &Tree, after: &Tree) -> usize {
    let only = |here: &Tree, there: &Tree| {
        here.iter().filter(|(path, e)| !there.contains_key(*path) && look(e) == look(entry)).count()
    };
    only(before, after) + only(after, before)
}

/// A path that went because a directory above it did.
fn goes_with_a_directory(path: &[u8], truth: &Changes) -> bool {
    if truth[path]["kind"] != "deleted" {
        return false;
    }
    let ends = (1..path.len()).filter(|n| path[*n] == b'/');
    ends.into_iter().any(|n| truth.get(&path[..n]).is_some_and(|t| t["kind"] == "deleted" || t["kind"] == "replaced"))
}

fn count(truth: &Changes) -> Map<String, Value> {
    let mut counts = Map::new();
    for kind in ["added", "modified", "metadata", "deleted", "replaced", "renamed"] {
        counts.insert(kind.into(), truth.values().filter(|t| t["kind"] == kind).count().into());
    }
    counts
}

/// What the files that are new or have other contents take, at least and at most. From 1 MiB on holes don't count; a
/// filesystem counts blocks of its own for a file in many pieces, and may do so later.
fn taken(truth: &Changes, after: &Tree) -> (u64, u64) {
    let of = |(path, told): (&Vec<u8>, &Told)| {
        let entry =
            after.get(path).filter(|_| matches!(told["kind"].as_str(), Some("added" | "modified" | "replaced")))?;
        let size = entry.size?;
        let loose = 64 << 10;
        Some(match size {
            size if size < 1 << 20 => (size, size),
            size if entry.blocks >= size => (size - loose, size),
            size => (entry.blocks.saturating_sub(loose), size.min(entry.blocks + loose)),
        })
    };
    truth.iter().filter_map(of).fold((0, 0), |(least, most), (from, to)| (least + from, most + to))
}
