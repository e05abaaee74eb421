//! The process: first and exec alike.

use oci_spec::runtime::Process;
use serde_json::{Value, json};

use super::{Confinement, Decision, Refusal, Work};

const NO_NEW_PRIVILEGES: &str = "a setuid program or file capabilities of the image would give what the profile takes";

/// The first process.
pub(super) fn first(work: &mut Work<'_>) -> Result<(), Refusal> {
    let field = &mut work.spec["process"]["noNewPrivileges"];
    if *field != json!(true) {
        let from = field.take();
        *field = json!(true);
        work.decide("process.noNewPrivileges", from, json!(true), NO_NEW_PRIVILEGES);
    }
    Ok(())
}

/// An exec's.
pub(super) fn exec(_: &Confinement, process: &mut Process) -> Vec<Decision> {
    let mut decisions = Vec::new();
    if process.no_new_privileges() != Some(true) {
        decisions.push(Decision {
            field: "process.noNewPrivileges".to_owned(),
            from: process.no_new_privileges().map_or(Value::Null, Value::from),
            to: json!(true),
            why: NO_NEW_PRIVILEGES.into(),
        });
        process.set_no_new_privileges(Some(true));
    }
    decisions
}
