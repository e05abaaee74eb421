//! The container's seccomp filter, compiled when it is created for its first process, or taken from an earlier container's
//! ([`filters`](super::filters)), and kept beside its record for every exec.

use std::path::{Path, PathBuf};

use oci_spec::runtime::LinuxSeccomp;
use serde::{Deserialize, Serialize};

use super::error::{On, RuntimeError};
use super::filters::Slot;
use super::state::Record;
use crate::durable;
use crate::policy::seccomp::{Program, SeccompError, Strictness, compile, strict};
use crate::spec::{self, Config, SpecError};

/// What an exec has to load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Filter {
    /// The container has none.
    #[default]
    None,
    /// The compiled program; its `SECCOMP_FILTER_FLAG_*`.
    Compiled(u32),
    /// It has one that no exec can be given; why.
    Refused(String),
}

/// The compiled program in the container's state directory: `struct sock_filter` of 8 bytes each.
const FILE: &str = "seccomp.bpf";

/// The longest program that the kernel takes: 4096 instructions.
const MAX_BYTES: usize = 4096 * 8;

fn path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// Compiles the configuration's profile into the state directory, joined with the list of profile `strict` where there is
/// a `strictness`. The program is for the first process; none where there is neither, or a profile with a listener.
pub fn prepare(
    config: &Config,
    strictness: Option<&Strictness>,
    dir: &Path,
) -> Result<(Filter, Option<Program>), RuntimeError> {
    let value = &config.value()["linux"]["seccomp"];
    let profile: Option<LinuxSeccomp> =
        spec::typed(value).map_err(|err| SpecError::Field { field: "linux.seccomp", why: err.to_string() })?;
    // Without a filter there is nothing to be kept, nor to be looked for.
    let has_filter = profile.is_some() || strictness.is_some();
    let slot = dir.parent().filter(|_| has_filter).and_then(|root| Slot::of(root, value, strictness));
    let known = slot.as_ref().and_then(Slot::get);
    let is_new = known.is_none();
    let program = match known.map_or_else(|| program(profile.as_ref(), strictness), |known| Ok(Some(known))) {
        Ok(Some(program)) => program,
        Ok(None) => return Ok((Filter::None, None)),
        Err(err @ SeccompError::Notify(_)) if strictness.is_none() => {
            return Ok((Filter::Refused(crate::error::chain(&err)), None));
        }
        Err(err) => return Err(RuntimeError::Start(crate::error::chain(&err))),
    };
    if let Some(slot) = slot.filter(|_| is_new) {
        slot.put(&program);
    }
    let path = path(dir);
    durable::replace_unsynced(&path, &program.instructions, 0o600).on("write", &path)?;
    Ok((Filter::Compiled(program.flags), Some(program)))
}

/// Compiles what there is.
fn program(profile: Option<&LinuxSeccomp>, strictness: Option<&Strictness>) -> Result<Option<Program>, SeccompError> {
    match (strictness, profile) {
        (None, None) => Ok(None),
        (Some(strictness), profile) => strict(profile, strictness).map(Some),
        (None, Some(profile)) => compile(profile).map(Some),
    }
}

/// The filter for an exec. One that is missing or damaged is an error: nothing runs with less than the container has.
pub fn load(record: &Record) -> Result<Option<Program>, RuntimeError> {
    let flags = match &record.seccomp {
        Filter::None => return Ok(None),
        Filter::Refused(why) => return Err(RuntimeError::Start(why.clone())),
        Filter::Compiled(flags) => *flags,
    };
    let path = path(&record.dir);
    let instructions = std::fs::read(&path).on("read", &path)?;
    if instructions.is_empty() || instructions.len() > MAX_BYTES || instructions.len() % 8 != 0 {
        return Err(RuntimeError::Invalid { what: "compiled seccomp filter", why: path.display().to_string() });
    }
    Ok(Some(Program { instructions, flags }))
}
