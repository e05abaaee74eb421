//! `diff`.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;

use super::render::{self, Paint};
use super::{Global, hints, print, print_bytes};
use crate::diff::{FileType, Kind, PathBytes};
use crate::ops::OpsError;
use crate::ops::history::{self, Range};
use crate::store::StoreError;

/// Show what changed between two generations
///
/// Several layers are composed: what was added and deleted again is no change. Letters: A added, M modified, m metadata
/// only, D deleted, T type changed, R renamed.
///
/// "diff C" compares generation 0 with HEAD, "diff C 3" generation 3 with HEAD, "diff C 3..5" 3 with 5, "diff C
/// @-1.." HEAD's
/// parent with HEAD, "diff C EXEC" what one exec saw with what it left, "diff C 3..5 /etc" only what is below /etc.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON object with the changes and their summary
    #[arg(long, group = "form")]
    json: bool,
    /// Counts by kind and by directory
    #[arg(long, group = "form")]
    stat: bool,
    /// Paths only, one a line, control characters as escapes
    #[arg(long, group = "form")]
    name_only: bool,
    /// With --name-only: paths byte for byte, a NUL after each
    #[arg(long, short = 'z', requires = "name_only")]
    null: bool,
    /// A unified patch of text files
    #[arg(long, short, group = "form")]
    patch: bool,
    /// List each path under a deleted directory
    #[arg(long, short)]
    recursive: bool,
    /// The container: its id, or the start of it if no other begins so; not an engine's name for it
    #[arg(value_name = "CONTAINER")]
    container: String,
    /// FROM, FROM..TO or one exec's id (by default 0..@); then paths to look at only
    #[arg(value_name = "FROM[..TO]|PATH")]
    rest: Vec<OsString>,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let (range, paths) = split(&args.rest)?;
    let compared = history::compare(&global.context()?, &args.container, &range, args.recursive, &paths);
    let compared = compared.map_err(|err| match err {
        OpsError::Store(StoreError::ExecNotFound { name }) => anyhow::anyhow!(
            "{name:?} is neither a generation nor an exec, as `agentsbx log {}` shows them, nor a path: those begin with a \
             slash",
            args.container
        ),
        other => hints::told(other, &args.container),
    })?;
    let (changes, summary) = (&compared.diff.changes, &compared.diff.summary);
    if args.json {
        let mut text = serde_json::to_vec_pretty(&Told { summary, changes })?;
        text.push(b'\n');
        print_bytes(&text)?;
    } else if args.name_only {
        let mut text = Vec::new();
        for change in changes {
            if args.null {
                text.extend_from_slice(change.path.as_bytes());
                text.push(0);
            } else {
                // A name is whatever its maker wanted it to be; -z has it byte for byte.
                text.extend_from_slice(render::visible(&change.path.to_string_lossy()).as_bytes());
                text.push(b'\n');
            }
        }
        print_bytes(&text)?;
    } else if args.patch {
        let mut text = Vec::new();
        compared.patch(&mut text)?;
        if std::io::stdout().is_terminal() {
            print(&render::visible_lines(&String::from_utf8_lossy(&text)))?;
        } else {
            print_bytes(&text)?;
        }
    } else if args.stat {
        print(&stat(changes, summary))?;
    } else {
        let paint = Paint::stdout();
        let mut text = String::new();
        for change in changes {
            text.push_str(&render::change(paint, change));
            text.push('\n');
        }
        print(&text)?;
    }
    Ok(0)
}

/// What `--json` prints.
#[derive(serde::Serialize)]
struct Told<'a> {
    summary: &'a crate::diff::Summary,
    changes: &'a [crate::diff::Change],
}

/// The first argument is a range unless it starts with a slash.
fn split(rest: &[OsString]) -> anyhow::Result<(Range, Vec<PathBytes>)> {
    let (range, paths) = match rest.split_first() {
        Some((first, paths)) if !first.as_bytes().starts_with(b"/") => (Some(first), paths),
        _ => (None, rest),
    };
    let text = range.map(|r| r.to_str().ok_or_else(|| anyhow::anyhow!("{r:?} is no generation"))).transpose()?;
    let mut wanted = Vec::new();
    for path in paths {
        anyhow::ensure!(path.as_bytes().starts_with(b"/"), "{path:?}: paths are absolute, inside the container");
        let trimmed = path.as_bytes().strip_suffix(b"/").filter(|p| !p.is_empty()).unwrap_or(path.as_bytes());
        wanted.push(PathBytes::new(trimmed));
    }
    Ok((Range::parse(text)?, wanted))
}

/// Counts by the directory that the paths are in, the busiest first, and the sum.
fn stat(changes: &[crate::diff::Change], summary: &crate::diff::Summary) -> String {
    use std::collections::BTreeMap;
    let mut by_dir: BTreeMap<String, (u64, u64, u64, u64)> = BTreeMap::new();
    for change in changes {
        let path = change.path.to_string_lossy();
        let dir = path.rfind('/').map_or("/", |at| if at == 0 { "/" } else { &path[..at] });
        let count = by_dir.entry(dir.to_owned()).or_default();
        match change.kind {
            Kind::Added => count.0 += 1,
            Kind::Deleted => count.2 += 1 + change.entries.unwrap_or(0),
            _ => count.1 += 1,
        }
        if change.file_type == FileType::File && matches!(change.kind, Kind::Added | Kind::Modified | Kind::Replaced) {
            count.3 += change.taken();
        }
    }
    let mut dirs: Vec<_> = by_dir.into_iter().collect();
    dirs.sort_by_key(|(name, c)| (std::cmp::Reverse(c.0 + c.1 + c.2), name.clone()));
    let mut rows = vec![["ADDED", "CHANGED", "DELETED", "SIZE", "IN"].map(str::to_owned).to_vec()];
    rows.extend(dirs.into_iter().map(|(name, (added, changed, deleted, size))| {
        vec![added.to_string(), changed.to_string(), deleted.to_string(), render::bytes(size), render::visible(&name)]
    }));
    format!("{}{}\n", if rows.len() > 1 { render::table(&rows) } else { String::new() }, render::summary(summary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Generation, Revision};

    #[test]
    fn ranges_and_paths() {
        let args = |words: &[&str]| split(&words.iter().map(OsString::from).collect::<Vec<_>>());
        let whole = Range::Generations(Revision::Number(Generation(0)), Revision::Ancestor(0));
        assert_eq!(args(&[]).unwrap(), (whole.clone(), vec![]));
        assert_eq!(args(&["/root/"]).unwrap(), (whole.clone(), vec![PathBytes::new("/root")]));
        assert_eq!(args(&["/"]).unwrap(), (whole, vec![PathBytes::new("/")]));
        assert!(matches!(args(&["2..3", "/etc"]).unwrap().0, Range::Generations(..)));
        assert!(args(&["2", "etc"]).is_err());
    }
}
