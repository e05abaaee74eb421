//! The process that an exec runs: the engine's `process.json`, or the container's own process with what the flags say.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;

use oci_spec::runtime::{Capability, LinuxCapabilities, Process};

use super::OpsError;
use crate::spec;

/// Where an exec's process comes from.
#[derive(Debug, Clone)]
pub enum ProcessSource {
    /// `--process FILE`.
    File(PathBuf),
    /// Arguments and flags.
    Flags(ProcessFlags),
}

/// runc's flags that describe a process.
#[derive(Debug, Clone, Default)]
pub struct ProcessFlags {
    /// The command and its arguments: bytes, as the caller gave them.
    pub args: Vec<OsString>,
    /// `--cwd`.
    pub cwd: Option<PathBuf>,
    /// `--env`, after the container's own.
    pub env: Vec<String>,
    /// `--tty`.
    pub tty: bool,
    /// `--user UID[:GID]`.
    pub user: Option<String>,
    /// `--additional-gids`.
    pub additional_gids: Vec<u32>,
    /// `--process-label`.
    pub process_label: Option<String>,
    /// `--apparmor`.
    pub apparmor: Option<String>,
    /// `--no-new-privs`.
    pub no_new_privs: bool,
    /// `--cap`, each `CAP_NAME`.
    pub caps: Vec<String>,
}

/// Reads or makes the process. `own` gives the process of the container's configuration when it is needed.
pub fn build(
    source: &ProcessSource,
    own: impl FnOnce() -> Result<Option<Process>, OpsError>,
) -> Result<Process, OpsError> {
    match source {
        ProcessSource::File(path) => {
            let file = |source| OpsError::File { doing: "read", path: path.clone(), source };
            let text = std::fs::read(path).map_err(file)?;
            serde_json::from_slice(&text).and_then(spec::process).map_err(|err| {
                // The error of the short way, which takes more, says where.
                let source = serde_json::from_slice::<Process>(&text).err().unwrap_or(err);
                OpsError::Json { path: path.clone(), source }
            })
        }
        ProcessSource::Flags(flags) => from_flags(flags, own()?.unwrap_or_default()),
    }
}

fn from_flags(flags: &ProcessFlags, mut process: Process) -> Result<Process, OpsError> {
    process.set_args(Some(flags.args.iter().map(|a| a.to_string_lossy().into_owned()).collect()));
    // The container's size is that of its own terminal.
    process.set_terminal(Some(flags.tty)).set_console_size(None);
    if let Some(cwd) = &flags.cwd {
        process.set_cwd(cwd.clone());
    }
    if !flags.env.is_empty() {
        let mut env = process.env().clone().unwrap_or_default();
        env.extend(flags.env.iter().cloned());
        process.set_env(Some(env));
    }
    if let Some(label) = &flags.process_label {
        process.set_selinux_label(Some(label.clone()));
    }
    if let Some(profile) = &flags.apparmor {
        process.set_apparmor_profile(Some(profile.clone()));
    }
    if flags.no_new_privs {
        process.set_no_new_privileges(Some(true));
    }
    if let Some(user) = &flags.user {
        let bad =
            || OpsError::Flag { flag: "--user", reason: format!("{user:?}: expected UID or UID:GID, as numbers") };
        let (uid, gid) = user.split_once(':').map_or((user.as_str(), None), |(u, g)| (u, Some(g)));
        let number = |text: &str| text.parse::<u32>().map_err(|_| bad());
        let mut who = process.user().clone();
        who.set_uid(number(uid)?);
        if let Some(gid) = gid {
            who.set_gid(number(gid)?);
        }
        process.set_user(who);
    }
    if !flags.additional_gids.is_empty() {
        let mut who = process.user().clone();
        let mut gids = who.additional_gids().clone().unwrap_or_default();
        gids.extend(&flags.additional_gids);
        who.set_additional_gids(Some(gids));
        process.set_user(who);
    }
    add_caps(&mut process, &flags.caps)?;
    Ok(process)
}

/// `--cap` adds to the bounding, effective and permitted sets, and to the ambient one where the process inherits (runc).
fn add_caps(process: &mut Process, names: &[String]) -> Result<(), OpsError> {
    if names.is_empty() {
        return Ok(());
    }
    let mut added = HashSet::new();
    for name in names {
        let upper = name.to_ascii_uppercase();
        let value = serde_json::Value::from(if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") });
        let cap: Capability = serde_json::from_value(value)
            .map_err(|_| OpsError::Flag { flag: "--cap", reason: format!("unknown capability {name:?}") })?;
        added.insert(cap);
    }
    let mut caps = process.capabilities().clone().unwrap_or_default();
    let with = |set: &Option<HashSet<Capability>>| {
        let mut set = set.clone().unwrap_or_default();
        set.extend(&added);
        Some(set)
    };
    let sets: LinuxCapabilities = caps.clone();
    caps.set_bounding(with(sets.bounding()))
        .set_effective(with(sets.effective()))
        .set_permitted(with(sets.permitted()));
    process.set_capabilities(Some(caps));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Result<Option<Process>, OpsError> {
        let text = r#"{"user":{"uid":1000,"gid":1001,"additionalGids":[5]},
            "cwd":"/tmp","args":["init"],"env":["A=1"],"noNewPrivileges":false,"oomScoreAdj":123,
            "rlimits":[{"type":"RLIMIT_NOFILE","soft":2047,"hard":2047}],
            "capabilities":{"bounding":["CAP_KILL"],"effective":["CAP_KILL"],"permitted":["CAP_KILL"]}}"#;
        Ok(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn without_flags_it_is_the_containers_own() {
        let flags = ProcessFlags { args: vec!["ls".into()], ..ProcessFlags::default() };
        let p = build(&ProcessSource::Flags(flags), own).unwrap();
        assert_eq!((p.user().uid(), p.user().gid(), p.cwd().to_str()), (1000, 1001, Some("/tmp")));
        assert_eq!(p.args().clone().unwrap(), ["ls"]);
        assert_eq!((p.oom_score_adj(), p.terminal()), (Some(123), Some(false)));
    }

    #[test]
    fn flags_add_and_replace() {
        let flags = ProcessFlags {
            args: vec!["ls".into()],
            env: vec!["B=2".into()],
            user: Some("7:8".into()),
            additional_gids: vec![9],
            caps: vec!["sys_admin".into(), "CAP_CHOWN".into()],
            cwd: Some("/".into()),
            tty: true,
            no_new_privs: true,
            ..ProcessFlags::default()
        };
        let p = build(&ProcessSource::Flags(flags), own).unwrap();
        assert_eq!(p.env().clone().unwrap(), ["A=1", "B=2"]);
        assert_eq!((p.user().uid(), p.user().gid()), (7, 8));
        assert_eq!(p.user().additional_gids().clone().unwrap(), [5, 9]);
        assert_eq!(p.no_new_privileges(), Some(true));
        let caps = p.capabilities().clone().unwrap();
        assert!(caps.effective().as_ref().unwrap().contains(&Capability::SysAdmin));
        assert!(caps.bounding().as_ref().unwrap().contains(&Capability::Kill));
    }

    #[test]
    fn mistakes_are_named() {
        for (flags, text) in [
            (
                ProcessFlags { user: Some("root".into()), ..ProcessFlags::default() },
                "--user: \"root\": expected UID or UID:GID, as numbers",
            ),
            (
                ProcessFlags { caps: vec!["nope".into()], ..ProcessFlags::default() },
                "--cap: unknown capability \"nope\"",
            ),
        ] {
            assert_eq!(build(&ProcessSource::Flags(flags), own).unwrap_err().to_string(), text);
        }
    }

    /// A process was taken that runc and the policy would not see as one.
    #[test]
    fn a_file_is_read_as_by_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |user: &str, more: &str| {
            let text = format!(r#"{{"user":{user},"cwd":"/"{more}}}"#);
            crate::durable::replace_unsynced(file.path(), text.as_bytes(), 0o600).unwrap();
            build(&ProcessSource::File(file.path().to_owned()), own).map_err(|err| crate::error::chain(&err))
        };
        let user = r#"{"uid":7,"gid":8}"#;
        assert_eq!(read(user, r#","capabilities":{"bounding":["CAP_NEW"]}"#).unwrap().user().uid(), 7);
        assert!(read("7", "").unwrap_err().contains("at line 1 column"));
        assert!(read("[7,8]", "").is_err());
        assert!(read(user, r#","rlimits":[{"type":{"RLIMIT_CPU":null},"soft":1,"hard":1}]"#).is_err());
    }
}
