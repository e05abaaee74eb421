//! The JSON Schemas of the result document and of the event, generated from the Rust types; `runtime-spec/*.schema.json`
//! are copies of them that a test keeps equal.

use serde_json::Value;

use super::{EXEC_RESULT_SCHEMA, ExecResult, ResultDocument, SCHEMA};

/// The schema (JSON Schema, draft 2020-12) of what the runtime writes: a field that is always written is required, also
/// where its value may be null.
pub fn json_schema() -> Value {
    schema_of::<ResultDocument>(SCHEMA)
}

/// The same of the event of an ended exec.
pub fn exec_result_schema() -> Value {
    schema_of::<ExecResult>(EXEC_RESULT_SCHEMA)
}

fn schema_of<T: schemars::JsonSchema>(title: &str) -> Value {
    let generator = schemars::generate::SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".into(), title.into());
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    fn spec() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("runtime-spec")
    }

    fn read(path: &Path) -> Value {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// With AGENTSBX_UPDATE_SCHEMA=1 the files are rewritten instead of compared.
    #[test]
    fn the_published_schemas_are_what_the_types_say() {
        for (name, generated) in
            [("result.schema.json", json_schema()), ("exec-result.schema.json", exec_result_schema())]
        {
            let path = spec().join(name);
            if std::env::var_os("AGENTSBX_UPDATE_SCHEMA").is_some_and(|v| v == "1") {
                let text = format!("{}\n", serde_json::to_string_pretty(&generated).unwrap());
                crate::durable::replace_unsynced(&path, text.as_bytes(), 0o644).unwrap();
            }
            assert!(
                read(&path) == generated,
                "{} is out of date: run `make schema` and look at what changed",
                path.display()
            );
        }
    }

    /// Every example is valid, and none of its fields is unknown to the types or lost by them.
    #[test]
    fn the_examples_are_documents() {
        let validator = jsonschema::validator_for(&json_schema()).unwrap();
        let mut dispositions = Vec::new();
        let mut ends = Vec::new();
        for entry in std::fs::read_dir(spec().join("examples")).unwrap() {
            let path = entry.unwrap().path();
            let value = read(&path);
            let errors: Vec<String> =
                validator.iter_errors(&value).map(|e| format!("{e} at {}", e.instance_path())).collect();
            assert!(errors.is_empty(), "{}: {errors:#?}", path.display());
            let document: ResultDocument = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(&document).unwrap(), value, "{}", path.display());
            dispositions.extend(document.disposition.map(|d| d.as_str()));
            ends.extend(document.end.map(|e| e.kind.as_str()));
        }
        for wanted in ["committed", "conflict", "empty"] {
            assert!(dispositions.contains(&wanted), "no example of {wanted} in {dispositions:?}");
        }
        for wanted in ["exited", "timeout", "error"] {
            assert!(ends.contains(&wanted), "no example of {wanted} in {ends:?}");
        }
    }

    /// A schema that accepted everything would pass the tests above.
    #[test]
    fn what_is_no_result_is_refused() {
        let validator = jsonschema::validator_for(&json_schema()).unwrap();
        let good = read(&spec().join("examples/result-committed.json"));
        assert!(validator.is_valid(&good));
        let fields: Vec<String> = good.as_object().unwrap().keys().cloned().collect();
        for field in fields {
            let mut document = good.clone();
            document.as_object_mut().unwrap().shift_remove(&field);
            assert!(!validator.is_valid(&document), "valid without {field}");
        }
        for (pointer, wrong) in [
            ("/schema", serde_json::json!("dev.agentsbx.result/v0")),
            ("/disposition", "merged".into()),
            ("/end/kind", "finished".into()),
            ("/end/code", 256.into()),
            ("/generation/base", "0".into()),
            ("/changes/0/kind", "touched".into()),
            ("/changes/0/mode", "644".into()),
            ("/usage/wallNs", (-1).into()),
        ] {
            let mut document = good.clone();
            *document.pointer_mut(pointer).unwrap() = wrong;
            assert!(!validator.is_valid(&document), "valid with another {pointer}");
        }
    }
}
