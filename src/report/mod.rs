//! The result document of an exec, `dev.agentsbx.result/v1`, and the short forms of it that an annotation and an event
//! carry.

mod event;
#[cfg(feature = "schema")]
mod schema;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::diff::{Change, PathBytes, Summary};
use crate::id::Generation;
use crate::terms::{Bound, Disposition, EndKind};

pub use event::{
    EXEC_RESULT_SCHEMA, EXEC_RESULT_TOPIC, EXEC_RESULT_TYPE, ExecResult, ExecResultSchema, ReportError, exec_result,
};
#[cfg(feature = "schema")]
pub use schema::{exec_result_schema, json_schema};

/// The document's name and version.
pub const SCHEMA: &str = "dev.agentsbx.result/v1";

/// The longest annotation, bytes.
pub const MAX_ANNOTATION: usize = 16 * 1024;

/// What one exec did: how it ended, what it changed, what became of that, what it cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResultDocument {
    /// Always `dev.agentsbx.result/v1`.
    pub schema: Schema,
    /// The container's id.
    pub container: String,
    /// The exec's id, a ULID.
    pub exec: String,
    /// The engine's own id for it, where known.
    pub engine_exec: Option<String>,
    /// The command and its arguments. Where they were too long to keep, the last one says how many bytes are left out.
    pub args: Vec<String>,
    /// The working directory, inside.
    #[serde(with = "bytes_of_path")]
    #[cfg_attr(feature = "schema", schemars(with = "PathBytes"))]
    pub cwd: PathBuf,
    /// Who ran it.
    pub user: UserIds,
    /// What it started from, and where HEAD was when its result was written.
    pub generation: Generations,
    /// What became of its layer; null only while it runs.
    pub disposition: Option<Disposition>,
    /// If its layer was committed and is gone since, to keep the container's history within bounds: how it went. What it
    /// changed is still in the generation that it was merged into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<Dropped>,
    /// How it ended; null only while it runs.
    pub end: Option<End>,
    /// When it was started, RFC 3339 in UTC.
    pub started_at: String,
    /// When its result was written, RFC 3339 in UTC; null only while it runs.
    pub finished_at: Option<String>,
    /// What it cost. A value that the kernel could not tell is null.
    pub usage: Usage,
    /// How many paths changed in which way.
    pub summary: Summary,
    /// The changed paths, by the bytes of their names.
    pub changes: Vec<Change>,
    /// With disposition `conflict`: the paths that somebody else's commit has changed too.
    pub conflicts: Vec<PathBytes>,
    /// With disposition `conflict`: why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_reason: Option<String>,
    /// What the container's profile took of what the exec asked for beyond its container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policy: Vec<PolicyDecision>,
    /// Processes that it left running and that were killed.
    pub survivors_killed: Option<u64>,
    /// Whether paths are left out of `changes` or `conflicts`. `summary` always counts all.
    pub truncated: bool,
}

/// One thing that an exec asked for and did not get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PolicyDecision {
    /// The field of `process.json`, such as `process.capabilities`.
    pub field: String,
    /// What was asked for; null if nothing was said.
    pub from: serde_json::Value,
    /// What it got; null if the field was taken away.
    pub to: serde_json::Value,
    /// Why.
    pub why: String,
}

/// How a committed layer went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dropped {
    /// The bound of the configuration's `[retention]` by which it went.
    pub why: Bound,
    /// When, RFC 3339 in UTC; null where the log does not tell it any more.
    pub at: Option<String>,
    /// The generation that it was merged into; null where a rollback had left it and nothing was made on it, or where the log
    /// does not tell it any more.
    pub into: Option<Generation>,
}

/// The constant `schema` field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Schema {
    /// The only version there is.
    #[serde(rename = "dev.agentsbx.result/v1")]
    V1,
}

/// User and group, as numbers inside the container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UserIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Where an exec stands in the container's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Generations {
    /// HEAD when it began: what it saw.
    pub base: Generation,
    /// HEAD when this document was made: with `committed`, the generation that it made.
    pub head: Generation,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct End {
    /// In which way.
    pub kind: EndKind,
    /// What `exec` exited with: the command's own code, 128 + signal, 124 for a timeout, 255 for a runtime error.
    pub code: Option<u8>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// For people: what went wrong.
    pub message: Option<String>,
}

/// What an exec cost; null where the kernel could not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usage {
    /// From the start of the command's set-up in the container to its end, nanoseconds.
    pub wall_ns: Option<u64>,
    /// CPU time in user mode of all its processes, its set-up included, nanoseconds.
    pub user_ns: Option<u64>,
    /// CPU time in the kernel, nanoseconds.
    pub system_ns: Option<u64>,
    /// Most memory in use at one time, page cache included, bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Most processes and threads at one time.
    pub max_pids: Option<u64>,
    /// Bytes of files on disk that it and the processes it waited for made dirty or wrote directly, and those that it left
    /// running and that were killed. What is in memory only (tmpfs, pipes) does not count; what is deleted again does.
    pub written_bytes: Option<u64>,
}

impl ResultDocument {
    /// The document as JSON, changes (then conflicts) left out at the end until it is at most `limit` bytes long, and
    /// marked `truncated` if any are. Where the rest of it is longer already, arguments are left out, as its field says,
    /// and then what `policy` tells.
    pub fn to_json_within(&self, limit: usize) -> serde_json::Result<String> {
        self.shortened(serde_json::to_string(self)?, limit)
    }

    /// [`ResultDocument::to_json_within`] for a caller that has the whole document as JSON already.
    pub fn shortened(&self, whole: String, limit: usize) -> serde_json::Result<String> {
        if whole.len() <= limit {
            return Ok(whole);
        }
        let mut short = ResultDocument { changes: Vec::new(), conflicts: Vec::new(), ..self.clone() };
        let mut room = match limit.checked_sub(serde_json::to_string(&short)?.len()) {
            Some(room) => room,
            None => short.shorten_fixed_part(limit)?,
        };
        short.conflicts = fitting(&self.conflicts, &mut room)?;
        short.changes = fitting(&self.changes, &mut room)?;
        short.truncated |= short.conflicts.len() < self.conflicts.len() || short.changes.len() < self.changes.len();
        serde_json::to_string(&short)
    }

    /// Of a script that is passed as an argument half of `limit` is kept, so that there is room for what it changed: how
    /// much of it is left, in bytes.
    fn shorten_fixed_part(&mut self, limit: usize) -> serde_json::Result<usize> {
        let (args, policy) = (std::mem::take(&mut self.args), std::mem::take(&mut self.policy));
        let left = |short: &Self| Ok::<_, serde_json::Error>(limit.saturating_sub(serde_json::to_string(short)?.len()));
        self.args = fitting_args(&args, left(self)? / 2);
        // Its name, where it has something in it.
        let mut room = (left(self)? / 2).saturating_sub(16);
        self.policy = fitting(&policy, &mut room)?;
        left(self)
    }
}

/// What stands for the end of arguments that are too long to be kept.
pub fn left_out(bytes: u64) -> String {
    format!("{LEFT_OUT_START}{bytes}{LEFT_OUT_END}")
}

const LEFT_OUT_START: &str = "… ";
const LEFT_OUT_END: &str = " bytes left out";

/// Arguments whose JSON, a comma each, is no longer than `room`, the last one saying how many bytes are left out.
fn fitting_args(args: &[String], room: usize) -> Vec<String> {
    let told = |arg: &String| arg.strip_prefix(LEFT_OUT_START)?.strip_suffix(LEFT_OUT_END)?.parse().ok();
    // What was left out before.
    let (args, mut dropped): (_, u64) = match args.split_last().and_then(|(last, args)| Some((args, told(last)?))) {
        Some(told) => told,
        None => (args, 0),
    };
    let mut room = room.saturating_sub(left_out(u64::MAX).len() + 3);
    let mut kept = Vec::new();
    let mut args = args.iter();
    for arg in args.by_ref() {
        let mut end = 0;
        // Quotes and a comma.
        let mut cost = 3;
        for (at, c) in arg.char_indices() {
            cost += match c {
                '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
                c if c < ' ' => 6,
                c => c.len_utf8(),
            };
            if cost > room {
                break;
            }
            end = at + c.len_utf8();
        }
        if cost <= room {
            room -= cost;
            kept.push(arg.clone());
            continue;
        }
        if end > 0 {
            kept.push(arg[..end].to_owned());
        }
        dropped += (arg.len() - end) as u64;
        break;
    }
    dropped += args.map(|arg| arg.len() as u64).sum::<u64>();
    kept.push(left_out(dropped));
    kept
}

/// A path that need not be UTF-8, as the paths of changes are written.
mod bytes_of_path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::diff::PathBytes;

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        PathBytes::new(path.as_os_str().as_bytes()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        PathBytes::deserialize(deserializer).map(|path| PathBuf::from(OsString::from_vec(path.into_bytes())))
    }
}

/// Where the whole result of an exec is, in the bundle.
pub fn result_file(bundle: &Path, exec: &str) -> PathBuf {
    bundle.join("agentsbx/execs").join(format!("{exec}.json"))
}

/// Whether the result of an exec is kept there: of one that changed nothing its row in the log is enough.
pub fn is_kept(disposition: Disposition, end: &End) -> bool {
    disposition != Disposition::Empty || end.kind == EndKind::Error
}

/// The first items whose JSON, a comma each, is no longer than `room`.
pub(crate) fn fitting<T: Serialize + Clone>(items: &[T], room: &mut usize) -> serde_json::Result<Vec<T>> {
    let mut kept = Vec::new();
    for item in items {
        let length = serde_json::to_string(item)?.len() + 1;
        if length > *room {
            break;
        }
        *room -= length;
        kept.push(item.clone());
    }
    Ok(kept)
}

/// A time as the documents have it: RFC 3339, UTC, nanoseconds. `ns` counts from 1970.
pub fn rfc3339(ns: i64) -> String {
    chrono::DateTime::from_timestamp_nanos(ns).to_rfc3339_opts(chrono::SecondsFormat::Nanos, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../runtime-spec/examples/result-committed.json");

    fn example(copies: usize) -> ResultDocument {
        let mut document: ResultDocument = serde_json::from_str(EXAMPLE).unwrap();
        let first = document.changes[0].clone();
        document.changes = (0..copies)
            .map(|n| Change { path: PathBytes::new(format!("/root/file-{n:06}")), ..first.clone() })
            .collect();
        document
    }

    #[test]
    fn the_example_is_what_the_types_say() {
        let document: ResultDocument = serde_json::from_str(EXAMPLE).unwrap();
        let again = serde_json::to_value(&document).unwrap();
        assert_eq!(again, serde_json::from_str::<serde_json::Value>(EXAMPLE).unwrap());
    }

    #[test]
    fn an_annotation_is_bounded_and_says_so() {
        let short = example(3);
        assert_eq!(short.to_json_within(MAX_ANNOTATION).unwrap(), serde_json::to_string(&short).unwrap());
        let text = example(100_000).to_json_within(MAX_ANNOTATION).unwrap();
        assert!(text.len() <= MAX_ANNOTATION && text.len() > MAX_ANNOTATION - 400, "{} bytes", text.len());
        let back: ResultDocument = serde_json::from_str(&text).unwrap();
        assert!(back.truncated && back.changes.len() > 50);
        assert_eq!(back.changes[1].path.to_string_lossy(), "/root/file-000001");
    }

    /// A script that is an argument is often longer than an annotation: it was given whole, however long.
    #[test]
    fn long_arguments_leave_room_for_what_they_did() {
        for arg in ["x".repeat(100_000), "\u{1}\"é".repeat(30_000)] {
            let mut document = example(3);
            document.args = vec!["sh".into(), "-c".into(), arg.clone(), "more".into()];
            let text = document.to_json_within(MAX_ANNOTATION).unwrap();
            assert!(text.len() <= MAX_ANNOTATION && text.len() > MAX_ANNOTATION / 2 - 400, "{} bytes", text.len());
            let mut back: ResultDocument = serde_json::from_str(&text).unwrap();
            assert_eq!((&back.changes, back.truncated), (&document.changes, false));
            let [sh, c, start, told] = back.args.as_slice() else { panic!("{:?}", back.args) };
            assert!([sh, c] == ["sh", "-c"] && arg.starts_with(start));
            assert_eq!(*told, left_out((arg.len() - start.len() + "more".len()) as u64));
            // Once more: what was left out before counts.
            let kept = start.len();
            let text = back.to_json_within(MAX_ANNOTATION / 4).unwrap();
            assert!(text.len() <= MAX_ANNOTATION / 4, "{} bytes", text.len());
            back = serde_json::from_str(&text).unwrap();
            assert!(back.args[2].len() < kept);
            assert_eq!(back.args[3], left_out((arg.len() - back.args[2].len() + "more".len()) as u64));
        }
        let mut document = example(100_000);
        document.args.push("y".repeat(20_000));
        let many = PolicyDecision { field: "f".repeat(100), from: "a".into(), to: "b".into(), why: "w".repeat(100) };
        document.policy = vec![many; 200];
        let text = document.to_json_within(MAX_ANNOTATION).unwrap();
        assert!(text.len() <= MAX_ANNOTATION, "{} bytes", text.len());
        let back: ResultDocument = serde_json::from_str(&text).unwrap();
        assert!(back.truncated && !back.changes.is_empty() && back.policy.len() > 5);
    }

    /// A directory may have any name: its exec had no result, neither on file nor by `show`.
    #[test]
    fn a_directory_need_not_be_text() {
        use std::os::unix::ffi::OsStringExt;
        let cwd = PathBuf::from(std::ffi::OsString::from_vec(b"/\xff".to_vec()));
        let document = ResultDocument { cwd, ..example(1) };
        let text = serde_json::to_string(&document).unwrap();
        assert!(text.contains(r#""cwd":{"pathBase64":"L/8="}"#), "{text}");
        assert_eq!(serde_json::from_str::<ResultDocument>(&text).unwrap(), document);
    }

    #[test]
    fn times() {
        assert_eq!(rfc3339(1_700_000_000_123_456_789), "2023-11-14T22:13:20.123456789Z");
    }
}
