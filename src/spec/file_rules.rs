//! Where a container's processes can read and write, as an annotation and the configuration say it: lists of absolute
//! paths.
//!
//! `{"deny": ["/root/.ssh"], "readOnly": ["/etc"], "allowWrite": ["/work", "/tmp"]}`

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::SpecError;
use super::annotations::FILES;
use super::normalise::clean_absolute;

/// The rules. Paths are the container's: absolute and clean.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FileRules {
    /// Neither read nor written: something empty is mounted there.
    pub deny: Vec<PathBuf>,
    /// Mounted read-only.
    pub read_only: Vec<PathBuf>,
    /// Writing is possible beneath these only; none: wherever it is otherwise.
    pub allow_write: Option<Vec<PathBuf>>,
    /// The kernel's audit log tells of refusals, where it can.
    pub audit: bool,
}

impl FileRules {
    /// True where nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == FileRules::default()
    }

    /// Cleans the paths; the first that is not absolute is the error.
    pub fn cleaned(mut self) -> Result<FileRules, PathBuf> {
        let lists = [Some(&mut self.deny), Some(&mut self.read_only), self.allow_write.as_mut()];
        for path in lists.into_iter().flatten().flatten() {
            if !path.is_absolute() {
                return Err(path.clone());
            }
            *path = clean_absolute(path);
        }
        Ok(self)
    }

    /// These rules and those of `other`, all of which hold: writing is possible only where both allow it.
    pub fn and(mut self, other: FileRules) -> FileRules {
        self.deny.extend(other.deny);
        self.read_only.extend(other.read_only);
        self.audit |= other.audit;
        self.allow_write = match (self.allow_write, other.allow_write) {
            (Some(ours), Some(theirs)) => Some(common(&ours, &theirs)),
            (ours, theirs) => ours.or(theirs),
        };
        self
    }
}

/// What is beneath a path of both lists.
fn common(ours: &[PathBuf], theirs: &[PathBuf]) -> Vec<PathBuf> {
    let beneath = |path: &Path, list: &[PathBuf]| list.iter().any(|above| path.starts_with(above));
    let mut both: Vec<PathBuf> = ours.iter().filter(|path| beneath(path, theirs)).cloned().collect();
    both.extend(theirs.iter().filter(|path| beneath(path, ours)).cloned());
    both.sort();
    both.dedup();
    both
}

/// Reads the annotation's value.
pub fn parse(text: &str) -> Result<FileRules, SpecError> {
    let wrong = |why: String| SpecError::Field { field: FILES, why };
    let rules: FileRules = serde_json::from_str(text).map_err(|err| {
        wrong(format!("{text:?}: expected a JSON object such as {{\"allowWrite\": [\"/work\"]}}: {err}"))
    })?;
    rules.cleaned().map_err(|path| wrong(format!("{path:?} is not an absolute path")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_mistakes() {
        let rules = parse(r#"{"deny": ["/a/../b"], "allowWrite": []}"#).unwrap();
        assert_eq!((rules.deny, rules.allow_write), (vec![PathBuf::from("/b")], Some(Vec::new())));
        for (text, words) in [
            ("/work", "expected a JSON object"),
            (r#"{"allow": []}"#, "unknown field `allow`"),
            (r#"{"readOnly": ["etc"]}"#, "\"etc\" is not an absolute path"),
        ] {
            let err = parse(text).unwrap_err().to_string();
            assert!(err.starts_with("invalid dev.agentsbx.files") && err.contains(words), "{text}: {err}");
        }
    }

    #[test]
    fn writing_takes_both() {
        let rules = |paths: Option<&[&str]>| FileRules {
            allow_write: paths.map(|list| list.iter().map(PathBuf::from).collect()),
            ..FileRules::default()
        };
        for (ours, theirs, want) in [
            (None, None, None),
            (Some(&["/a"][..]), None, Some(&["/a"][..])),
            (None, Some(&["/a"][..]), Some(&["/a"][..])),
            (Some(&["/a", "/b/c"][..]), Some(&["/a/x", "/b", "/d"][..]), Some(&["/a/x", "/b/c"][..])),
            (Some(&["/a"][..]), Some(&["/ab"][..]), Some(&[][..])),
        ] {
            assert_eq!(rules(ours).and(rules(theirs)), rules(want));
        }
    }
}
