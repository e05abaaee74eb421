//! Reading result documents: the few questions that most tests ask.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// The results of all execs that have ended, from `BUNDLE/agentsbx/execs`.
pub fn in_bundle(bundle: &Path) -> Vec<Value> {
    let dir = bundle.join("agentsbx/execs");
    let mut files: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.expect("readdir").path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    files
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path).expect("read a result");
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        })
        .collect()
}

/// The disposition.
#[track_caller]
pub fn disposition(result: &Value) -> &str {
    result["disposition"].as_str().unwrap_or_else(|| panic!("no disposition in {result}"))
}

/// The exec's id.
#[track_caller]
pub fn exec(result: &Value) -> &str {
    result["exec"].as_str().unwrap_or_else(|| panic!("no exec in {result}"))
}

/// How it ended: kind and code.
#[track_caller]
pub fn end(result: &Value) -> (&str, Option<i64>) {
    let kind = result["end"]["kind"].as_str().unwrap_or_else(|| panic!("no end in {result}"));
    (kind, result["end"]["code"].as_i64())
}

/// The generation that was HEAD once the exec had ended.
#[track_caller]
pub fn head(result: &Value) -> u64 {
    result["generation"]["head"].as_u64().unwrap_or_else(|| panic!("no head in {result}"))
}

/// The paths in conflict, as text, whatever else each entry says.
pub fn conflicts(result: &Value) -> String {
    result["conflicts"].to_string()
}
