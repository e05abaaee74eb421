//! What an engine's event says of an ended exec, `dev.agentsbx.exec-result/v1`: the result document without the paths, and
//! where the whole of it is.

use std::io;
use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{End, Generations, Schema, Usage, result_file};
use crate::diff::Summary;
use crate::error::{Classify, Kind};
use crate::terms::Disposition;

/// The document's name and version.
pub const EXEC_RESULT_SCHEMA: &str = "dev.agentsbx.exec-result/v1";
/// containerd's topic for it.
pub const EXEC_RESULT_TOPIC: &str = "/agentsbx/exec-result";
/// Under which clients of containerd register a type for it.
pub const EXEC_RESULT_TYPE: &str = "types.agentsbx.dev/exec-result/v1";

/// The longest event, bytes.
const MAX: usize = 16 * 1024;

/// How one exec ended, what became of its changes, what it cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecResult {
    /// Always `dev.agentsbx.exec-result/v1`.
    pub schema: ExecResultSchema,
    /// The container's id.
    pub container: String,
    /// The exec's id, a ULID.
    pub exec: String,
    /// The engine's own id for it, where known.
    pub engine_exec: Option<String>,
    /// What it started from, and where HEAD was when its result was written.
    pub generation: Generations,
    /// What became of its layer.
    pub disposition: Disposition,
    /// How it ended.
    pub end: End,
    /// What it cost. A value that the kernel could not tell is null.
    pub usage: Usage,
    /// How many paths changed in which way.
    pub summary: Summary,
    /// How many paths are in conflict with somebody else's commit.
    pub conflicts: u64,
    /// The file that has the whole result document, on the host, until the engine removes the bundle. Null for an exec that
    /// changed nothing.
    pub result: Option<String>,
}

/// The constant `schema` field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ExecResultSchema {
    /// The only version there is.
    #[serde(rename = "dev.agentsbx.exec-result/v1")]
    V1,
}

/// No event could be made of a result document.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// It is none of ours, or of an exec that has not ended.
    #[error("parse the result document of an exec")]
    Document(#[source] serde_json::Error),
}

impl Classify for ReportError {
    fn kind(&self) -> Kind {
        match self {
            ReportError::Document(err) if err.is_io() => Kind::System,
            ReportError::Document(_) => Kind::Corrupt,
        }
    }
}

/// What is taken of a result document; the rest is skipped while it is read, however long it is.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Taken {
    #[serde(rename = "schema")]
    _schema: Schema,
    container: String,
    exec: String,
    engine_exec: Option<String>,
    generation: Generations,
    disposition: Disposition,
    end: End,
    usage: Usage,
    summary: Summary,
    // Of no size: only their number is kept.
    conflicts: Vec<IgnoredAny>,
}

/// The event of an ended exec, whose JSON has at most 16 KiB, from its result document (what `exec --result` writes, and
/// `show --json` prints). `bundle` is the container's.
///
/// # Errors
/// If that is no result document, or one of an exec that still runs.
pub fn exec_result(document: impl io::Read, bundle: &Path) -> Result<ExecResult, ReportError> {
    let taken: Taken = serde_json::from_reader(io::BufReader::new(document)).map_err(ReportError::Document)?;
    let kept = super::is_kept(taken.disposition, &taken.end);
    let mut event = ExecResult {
        schema: ExecResultSchema::V1,
        result: kept.then(|| result_file(bundle, &taken.exec).to_string_lossy().into_owned()),
        container: taken.container,
        exec: taken.exec,
        engine_exec: taken.engine_exec,
        generation: taken.generation,
        disposition: taken.disposition,
        end: taken.end,
        usage: taken.usage,
        summary: taken.summary,
        conflicts: taken.conflicts.len() as u64,
    };
    // What can be long of it is what a failed start said.
    while event.to_json().len() > MAX
        && let Some(message) = &mut event.end.message
        && !message.is_empty()
    {
        let half = message.floor_char_boundary(message.trim_end_matches('…').len() / 2);
        message.truncate(half);
        if half > 0 {
            message.push('…');
        }
    }
    Ok(event)
}

impl ExecResult {
    /// What is sent.
    pub fn to_json(&self) -> Vec<u8> {
        // Writing to memory can't fail, and all that it has has a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const DOCUMENT: &str = include_str!("../../runtime-spec/examples/result-committed.json");
    const PAGE: &str = include_str!("../../runtime-spec/events.md");

    fn event(document: &Value) -> Value {
        let event = exec_result(document.to_string().as_bytes(), Path::new("/b")).unwrap();
        serde_json::from_slice(&event.to_json()).unwrap()
    }

    /// The page's example is the event of the example beside it.
    #[test]
    fn the_page_shows_what_is_sent() {
        let shown = PAGE.split_once("```json\n").unwrap().1.split_once("```").unwrap().0;
        let bundle = Path::new("/run/containerd/io.containerd.runtime.v2.task/default/box");
        let made = exec_result(DOCUMENT.as_bytes(), bundle).unwrap().to_json();
        let made: Value = serde_json::from_slice(&made).unwrap();
        assert_eq!(serde_json::from_str::<Value>(shown).unwrap(), made);
        assert_eq!(made["result"], format!("{}/agentsbx/execs/01M8KYQNJZCNCCYS60G2Z0DGQE.json", bundle.display()));
        for word in [EXEC_RESULT_TOPIC, EXEC_RESULT_TYPE, EXEC_RESULT_SCHEMA] {
            assert!(PAGE.contains(word), "{word}");
        }
    }

    #[test]
    fn where_there_is_no_file_none_is_named() {
        let mut document: Value = serde_json::from_str(DOCUMENT).unwrap();
        document["disposition"] = "empty".into();
        assert_eq!(event(&document)["result"], Value::Null);
        document["end"]["kind"] = "error".into();
        assert_ne!(event(&document)["result"], Value::Null);
        document["conflicts"] = serde_json::json!(["/a", {"pathBase64": "/w=="}]);
        assert_eq!(event(&document)["conflicts"], 2);
    }

    #[test]
    fn it_is_bounded() {
        let mut document: Value = serde_json::from_str(DOCUMENT).unwrap();
        for message in ["\u{1}".repeat(8192), "ü".repeat(20_000), "short".to_owned()] {
            document["end"]["message"] = message.clone().into();
            let event = exec_result(document.to_string().as_bytes(), Path::new("/b")).unwrap();
            assert!(event.to_json().len() <= MAX);
            let told = event.end.message.unwrap();
            assert!(told.len() > 1000 && told.ends_with('…') || told == message, "{} bytes", told.len());
        }
    }

    #[test]
    fn what_is_no_ended_execs_document_is_refused() {
        let mut running: Value = serde_json::from_str(DOCUMENT).unwrap();
        running["disposition"] = Value::Null;
        for text in [&running.to_string(), "", "{}", &DOCUMENT.replace("result/v1", "result/v9"), &DOCUMENT[..900]] {
            assert!(exec_result(text.as_bytes(), Path::new("/b")).is_err(), "{text}");
        }
    }
}
