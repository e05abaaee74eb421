//! What to do about an error, with the container as the caller named it: the tiers below know no name to type again.

use std::fmt::Write;

use crate::ops::OpsError;
use crate::store::StoreError;

/// The error of a verb that was given `container`, and the command that shows what there is instead.
pub fn told(err: OpsError, container: &str) -> anyhow::Error {
    let mut hint = String::new();
    // Writing to a text cannot fail.
    let _ = match &err {
        OpsError::Store(StoreError::ExecNotFound { .. }) => {
            write!(hint, "`agentsbx log {container}` shows the execs there are")
        }
        OpsError::Store(StoreError::GenerationNotFound { .. }) => {
            write!(hint, "`agentsbx log {container}` shows the generations there are")
        }
        OpsError::Store(StoreError::GenerationDropped { .. } | StoreError::LayerDropped { .. }) => {
            write!(hint, "`agentsbx log {container}` shows what is left")
        }
        OpsError::Backwards { from, to } => {
            write!(hint, "`agentsbx diff {container} {to}..{from}` shows what changed in between")
        }
        OpsError::Apart { from, to, fork } => write!(
            hint,
            "`agentsbx diff {container} {fork}..{from}` and `agentsbx diff {container} {fork}..{to}` show what changed on \
             each"
        ),
        _ => return err.into(),
    };
    anyhow::anyhow!("{err}: {hint}")
}

/// The command that shows what can be given for a verb's missing arguments, of which clap has these names.
pub fn missing(names: &[String], container: Option<&str>) -> Option<String> {
    let lacks = |name: &str| names.iter().any(|missing| missing == name);
    match container {
        _ if lacks("<CONTAINER>") => Some("`agentsbx log` shows the containers there are".to_owned()),
        Some(container) if lacks("<EXEC>") => Some(format!("`agentsbx log {container}` shows the execs there are")),
        Some(container) if lacks("<GENERATION>") => {
            Some(format!("`agentsbx log {container}` shows the generations there are"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Generation;

    #[test]
    fn hints_name_the_container_as_it_was_given() {
        let (from, to, fork) = (Generation(5), Generation(3), Generation(1));
        for (err, want) in [
            (
                StoreError::ExecNotFound { name: "e".into() }.into(),
                "exec \"e\" not found: `agentsbx log c7` shows the execs there are",
            ),
            (
                StoreError::GenerationNotFound { generation: from }.into(),
                "generation 5 not found: `agentsbx log c7` shows the generations there are",
            ),
            (
                OpsError::Backwards { from, to },
                "generation 5 comes after 3: `agentsbx diff c7 3..5` shows what changed in between",
            ),
            (
                OpsError::Apart { from, to, fork },
                "generations 5 and 3 are on branches that part at 1: `agentsbx diff c7 1..5` and `agentsbx diff c7 1..3` show \
                 what changed on each",
            ),
            (
                StoreError::TooFarBack { back: 3, depth: 1 }.into(),
                "@-3 reaches behind generation 0: HEAD has 1 generation below it",
            ),
        ] {
            assert_eq!(told(err, "c7").to_string(), want);
        }
        let dropped = StoreError::GenerationDropped { generation: to, why: None };
        let text = told(dropped.into(), "c7").to_string();
        assert!(
            text.starts_with("generation 3 was dropped") && text.ends_with(": `agentsbx log c7` shows what is left"),
            "{text}"
        );
    }
}
