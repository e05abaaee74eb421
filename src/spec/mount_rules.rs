//! What an annotation says of the container's bind mounts: a JSON object of destinations and words.
//!
//! `{"/work": "cow", "/tools": "ro,exec", "/out": "rw"}`. Each destination has one or more of these words, with commas:
//!
//! | word | meaning |
//! |---|---|
//! | `ro` | read-only |
//! | `rw` | stays writable, where the configuration's default is not |
//! | `cow` | copy on write: writes go to layers, the host's directory is never written |
//! | `exec` | programs on it can be executed |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::SpecError;
use super::annotations::MOUNTS;
use super::normalise::clean_absolute;

/// What becomes of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// They are refused.
    ReadOnly,
    /// They go to the host's directory.
    ReadWrite,
    /// They go to layers.
    CopyOnWrite,
}

/// What is asked for one bind mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MountRule {
    /// What becomes of writes; none: what the configuration says.
    pub access: Option<Access>,
    /// Programs on it can be executed.
    pub exec: bool,
}

/// Reads the annotation's value. Keys are cleaned absolute paths.
pub fn parse(text: &str) -> Result<BTreeMap<PathBuf, MountRule>, SpecError> {
    let wrong = |why: String| SpecError::Field { field: MOUNTS, why };
    let given: BTreeMap<String, String> = serde_json::from_str(text)
        .map_err(|err| wrong(format!("{text:?}: expected a JSON object such as {{\"/work\": \"cow\"}}: {err}")))?;
    let mut rules = BTreeMap::new();
    for (path, words) in given {
        if !Path::new(&path).is_absolute() {
            return Err(wrong(format!("{path:?} is not an absolute path")));
        }
        let at = clean_absolute(Path::new(&path));
        if rules.insert(at, rule(&words).map_err(|why| wrong(format!("{path:?}: {why}")))?).is_some() {
            return Err(wrong(format!("{path:?} is there twice")));
        }
    }
    Ok(rules)
}

fn rule(words: &str) -> Result<MountRule, String> {
    let mut rule = MountRule::default();
    for word in words.split(',').map(str::trim) {
        let access = match word {
            "exec" => {
                rule.exec = true;
                continue;
            }
            "ro" => Access::ReadOnly,
            "rw" => Access::ReadWrite,
            "cow" => Access::CopyOnWrite,
            other => return Err(format!("unknown word {other:?}: expected ro, rw, cow, exec")),
        };
        if rule.access.is_some_and(|before| before != access) {
            return Err(format!("{words:?}: only one of ro, rw, cow"));
        }
        rule.access = Some(access);
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_mistakes() {
        let rules = parse(r#"{"/work/": "cow", "/tools/./bin": "ro, exec", "/x": "exec"}"#).unwrap();
        assert_eq!(rules[Path::new("/work")], MountRule { access: Some(Access::CopyOnWrite), exec: false });
        assert_eq!(rules[Path::new("/tools/bin")], MountRule { access: Some(Access::ReadOnly), exec: true });
        assert_eq!(rules[Path::new("/x")], MountRule { access: None, exec: true });
        for (text, words) in [
            ("/work=cow", "expected a JSON object"),
            (r#"{"work":"cow"}"#, "\"work\" is not an absolute path"),
            (r#"{"/w":"cow,ro"}"#, "only one of ro, rw, cow"),
            (r#"{"/w":""}"#, "unknown word \"\""),
            (r#"{"/w":"cow","/w/":"ro"}"#, "is there twice"),
        ] {
            let err = parse(text).unwrap_err().to_string();
            assert!(err.starts_with("invalid dev.agentsbx.mounts") && err.contains(words), "{text}: {err}");
        }
    }
}
