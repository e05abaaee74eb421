//! How one exec is to be run: layer, timeout, orphans; flag before the exec's environment before annotation before
//! configuration.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use oci_spec::runtime::Process;

use super::OpsError;
use crate::config::Config;
use crate::spec::annotations;
use crate::terms::{LayerMode, Orphans, Timeout, UnknownValue};

/// What flags say, as typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--layer`.
    pub layer: Option<String>,
    /// `--timeout`.
    pub timeout: Option<String>,
    /// `--orphans`.
    pub orphans: Option<String>,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// What becomes of the layer.
    pub layer: LayerMode,
    /// How long the command may run.
    pub timeout: Option<Duration>,
    /// What becomes of what it leaves running.
    pub orphans: Orphans,
}

/// Variables with this prefix are for the runtime: the command does not get them.
const PREFIX: &str = "AGENTSBX_";

impl Settings {
    /// Decides, and takes the runtime's variables out of the command's environment. With `layered` none of these may ask
    /// for no layer.
    pub fn resolve(
        config: &Config,
        annotations: &BTreeMap<String, String>,
        process: &mut Process,
        flags: &Overrides,
        layered: bool,
    ) -> Result<Settings, OpsError> {
        let variables = take_variables(process);
        // What asks for it may be the image, whose environment execs have.
        if layered
            && flags.layer.is_none()
            && variables.get("LAYER").is_some_and(|mode| mode == LayerMode::Shared.as_str())
        {
            return Err(OpsError::SharedLayer);
        }
        let sources = Sources { annotations, variables: &variables };
        let terminal = process.terminal().unwrap_or(false);
        let timeout = if terminal { Timeout(None) } else { config.timeout };
        Ok(Settings {
            layer: sources.pick("--layer", &flags.layer, "LAYER", annotations::LAYER)?.unwrap_or(config.layer),
            timeout: sources.pick("--timeout", &flags.timeout, "TIMEOUT", annotations::TIMEOUT)?.unwrap_or(timeout).0,
            orphans: sources
                .pick("--orphans", &flags.orphans, "ORPHANS", annotations::ORPHANS)?
                .unwrap_or(config.orphans),
        })
    }
}

/// Finds a wrong value when the container is made, not at its first exec.
pub fn check_annotations(given: &BTreeMap<String, String>) -> Result<(), OpsError> {
    let nothing = BTreeMap::new();
    let sources = Sources { annotations: given, variables: &nothing };
    sources.pick::<LayerMode>("", &None, "LAYER", annotations::LAYER)?;
    sources.pick::<Timeout>("", &None, "TIMEOUT", annotations::TIMEOUT)?;
    sources.pick::<Orphans>("", &None, "ORPHANS", annotations::ORPHANS)?;
    Ok(())
}

struct Sources<'a> {
    annotations: &'a BTreeMap<String, String>,
    variables: &'a BTreeMap<String, String>,
}

impl Sources<'_> {
    /// The first source that says something; an empty value says nothing.
    fn pick<T: FromStr<Err = UnknownValue>>(
        &self,
        flag: &str,
        typed: &Option<String>,
        variable: &str,
        annotation: &str,
    ) -> Result<Option<T>, OpsError> {
        let found = [
            (flag.to_owned(), typed.as_ref()),
            (format!("environment variable {PREFIX}{variable}"), self.variables.get(variable)),
            (format!("annotation {annotation}"), self.annotations.get(annotation)),
        ];
        let found = found.into_iter().find_map(|(from, value)| Some((from, value.filter(|v| !v.is_empty())?)));
        found.map(|(from, value)| value.parse().map_err(|source| OpsError::Setting { from, source })).transpose()
    }
}

/// Takes those of the runtime's variables out that the container's own process has with the same value: they came with the
/// image or the container, not with this exec. An image must not decide whether its changes are watched, or for how long
/// a command may run; `own` gives that process, and is asked only when there is such a variable.
pub fn drop_inherited(
    process: &mut Process,
    own: impl FnOnce() -> Result<Option<Process>, OpsError>,
) -> Result<(), OpsError> {
    let Some(env) = process.env().as_ref().filter(|env| env.iter().any(|pair| pair.starts_with(PREFIX))) else {
        return Ok(());
    };
    let own = own()?.and_then(|own| own.env().clone()).unwrap_or_default();
    let mut inherited: Vec<String> = own.into_iter().filter(|pair| pair.starts_with(PREFIX)).collect();
    // Each of them once: what the exec says comes after it, and may well be the same.
    let keep = |pair: &&String| match inherited.iter().position(|own| own == *pair) {
        Some(at) => {
            inherited.swap_remove(at);
            false
        }
        None => true,
    };
    let left: Vec<String> = env.iter().filter(keep).cloned().collect();
    process.set_env(Some(left));
    Ok(())
}

/// The runtime's variables without their prefix; the last value of a name counts.
fn take_variables(process: &mut Process) -> BTreeMap<String, String> {
    let Some(env) = process.env().clone() else { return BTreeMap::new() };
    let (ours, theirs): (Vec<String>, Vec<String>) = env.into_iter().partition(|pair| pair.starts_with(PREFIX));
    process.set_env(Some(theirs));
    ours.iter()
        .filter_map(|pair| pair[PREFIX.len()..].split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(
        terminal: bool,
        env: &[&str],
        annotations: &[(&str, &str)],
        flag: Option<&str>,
    ) -> Result<(Settings, Vec<String>), String> {
        let mut process = Process::default();
        process.set_terminal(Some(terminal)).set_env(Some(env.iter().map(|s| (*s).to_owned()).collect()));
        let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let flags = Overrides { layer: flag.map(str::to_owned), ..Overrides::default() };
        Settings::resolve(&Config::default(), &annotations, &mut process, &flags, false)
            .map(|s| (s, process.env().clone().unwrap()))
            .map_err(|e| crate::error::chain(&e))
    }

    #[test]
    fn precedence() {
        let layer = |env: &[&str], note: &[(&str, &str)], flag| resolve(false, env, note, flag).unwrap().0.layer;
        let note = [(annotations::LAYER, "hold")];
        assert_eq!(layer(&["AGENTSBX_LAYER=discard"], &note, Some("shared")), LayerMode::Shared);
        assert_eq!(layer(&["AGENTSBX_LAYER=discard"], &note, None), LayerMode::Discard);
        assert_eq!(layer(&["AGENTSBX_LAYER="], &note, None), LayerMode::Hold);
        assert_eq!(layer(&[], &[], None), LayerMode::Commit);
    }

    #[test]
    fn our_variables_are_taken_out() {
        let (settings, env) =
            resolve(false, &["A=1", "AGENTSBX_TIMEOUT=2", "B=AGENTSBX_X", "AGENTSBX_ORPHANS=wait"], &[], None).unwrap();
        assert_eq!(env, ["A=1", "B=AGENTSBX_X"]);
        assert_eq!((settings.timeout, settings.orphans), (Some(Duration::from_secs(2)), Orphans::Wait));
    }

    #[test]
    fn what_came_with_the_container_is_no_order() {
        let with = |env: &[&str]| {
            let mut process = Process::default();
            process.set_env(Some(env.iter().map(|s| (*s).to_owned()).collect()));
            process
        };
        let left = |exec: &[&str], own: &[&str]| {
            let mut process = with(exec);
            drop_inherited(&mut process, || Ok(Some(with(own)))).unwrap();
            process.env().clone().unwrap()
        };
        let (shared, hold) = ("AGENTSBX_LAYER=shared", "AGENTSBX_LAYER=hold");
        assert!(left(&[shared], &[shared]).is_empty());
        assert_eq!(left(&["A=1", hold], &["A=1", shared]), ["A=1", hold]);
        assert_eq!(left(&[shared, hold], &[shared]), [hold]);
        // As with --env: the container's, then the exec's.
        assert_eq!(left(&[shared, shared], &[shared]), [shared]);
        let untouched = drop_inherited(&mut with(&["A=1"]), || unreachable!("nothing to look for"));
        assert!(untouched.is_ok());
    }

    #[test]
    fn a_terminal_has_no_timeout_unless_asked_for() {
        assert_eq!(resolve(true, &[], &[], None).unwrap().0.timeout, None);
        assert_eq!(resolve(false, &[], &[], None).unwrap().0.timeout, Some(Duration::from_secs(300)));
        assert_eq!(
            resolve(true, &[], &[(annotations::TIMEOUT, "1m")], None).unwrap().0.timeout,
            Some(Duration::from_secs(60))
        );
        assert_eq!(resolve(false, &["AGENTSBX_TIMEOUT=0"], &[], None).unwrap().0.timeout, None);
    }

    #[test]
    fn a_mistake_says_where_it_is() {
        assert_eq!(
            resolve(false, &["AGENTSBX_LAYER=x"], &[], None).unwrap_err(),
            r#"environment variable AGENTSBX_LAYER: invalid layer mode "x": expected commit, commit-on-success, discard, hold, shared"#
        );
        let note = resolve(false, &[], &[(annotations::TIMEOUT, "soon")], None).unwrap_err();
        assert!(note.starts_with("annotation dev.agentsbx.timeout: invalid timeout \"soon\""), "{note}");
    }
}
