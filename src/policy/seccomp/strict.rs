//! The filter of profile `strict`: its own list, and what the engine's profile lets through besides.

use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction, LinuxSeccompFilterFlag};
use serde_json::{Value, json};

use super::assemble::{Section, assemble};
use super::bpf::{Instruction, decode, encode};
use super::chain::chain;
use super::numbers::{Abi, Numbers, abis};
use super::rules::{List, Strictness, by_number, resolve};
use super::{Program, SeccompError, compile};
use crate::error::chain as text;
use crate::policy::{Refusal, Work};

/// What a call may do that both the list and the engine's profile permit, arguments included; without a profile, what the
/// list permits. Where both refuse a call, the engine's answer is the one that is seen.
pub fn strict(engine: Option<&LinuxSeccomp>, strictness: &Strictness) -> Result<Program, SeccompError> {
    let own = own(strictness)?;
    let Some(engine) = engine else { return Ok(Program { instructions: encode(&own), flags: 0 }) };
    let theirs = compile(engine)?;
    let both = chain(&decode(&theirs.instructions), &own)?;
    Ok(Program { instructions: encode(&both), flags: theirs.flags })
}

/// The list's program for this machine.
fn own(strictness: &Strictness) -> Result<Vec<Instruction>, SeccompError> {
    own_for(machine()?, strictness)
}

fn machine() -> Result<&'static [Abi], SeccompError> {
    let machine = std::env::consts::ARCH;
    abis(machine).ok_or(SeccompError::Machine(machine))
}

/// The list's program for some ABIs.
pub(super) fn own_for(abis: &[Abi], strictness: &Strictness) -> Result<Vec<Instruction>, SeccompError> {
    let (list, numbers) = (List::read()?, Numbers::read());
    let calls = resolve(&list, &numbers, strictness)?;
    let section =
        |abi: &Abi| Section { audit: abi.audit, calls: by_number(&calls, &numbers, *abi), other: list.unknown() };
    Ok(assemble(&abis.iter().map(section).collect::<Vec<_>>()))
}

const WHY: &str = "a system call that no usual program needs is a way into the kernel";
const WHY_FLAGS: &str = "the processor's speculation would be less guarded than without a filter";

/// The part of the profile that is about `linux.seccomp`: notes what the filter will be, and refuses what can't be one. The
/// profile stays in the configuration as the engine wrote it; the filter is made of it when the container is.
pub(in crate::policy) fn pass(work: &mut Work<'_>) -> Result<(), Refusal> {
    let strictness = Strictness::of(work.policy, work.confinement);
    let refusal = |what: String, why: String, remedy: &str| Refusal { what, why, remedy: remedy.to_owned() };
    let known = machine().and_then(|_| strictness.check(&Numbers::read()));
    known.map_err(|err| {
        let remedy = match err {
            SeccompError::Machine(_) => "set profile = 'oci' in the configuration",
            _ => "correct seccomp.allow or seccomp.refuse in the configuration",
        };
        refusal("profile strict".to_owned(), text(&err), remedy)
    })?;
    let field = &mut work.spec["linux"]["seccomp"];
    let mut to = if field.is_null() { "strict" } else { "strict and the engine's" }.to_owned();
    for (word, names) in [("allowed", &strictness.allow), ("refused", &strictness.refuse)] {
        if !names.is_empty() {
            to.push_str(&format!("; {word} besides: {}", names.join(", ")));
        }
    }
    let mut from = field["defaultAction"].clone();
    if !field.is_null() {
        let what = |what: &str| format!("linux.seccomp{what}");
        let profile: LinuxSeccomp = serde_json::from_value(field.clone())
            .map_err(|err| refusal(what(""), err.to_string(), "correct the configuration of the container"))?;
        if let Some(call) = listener(&profile) {
            return Err(refusal(
                what(&format!(": SCMP_ACT_NOTIFY for {call}")),
                "the agent would answer in the place of the list, and execs have no way to it".to_owned(),
                "give the call another action, or set profile = 'oci' in the configuration",
            ));
        }
        let flags = profile.flags().clone().unwrap_or_default();
        let kept: Vec<_> =
            flags.iter().filter(|flag| **flag != LinuxSeccompFilterFlag::SeccompFilterFlagSpecAllow).collect();
        if kept.len() < flags.len() {
            let (was, kept) = (field["flags"].take(), json!(kept));
            field["flags"] = kept.clone();
            work.decide("linux.seccomp.flags", was, kept, WHY_FLAGS);
        }
    } else {
        from = Value::Null;
    }
    work.decide("linux.seccomp", from, to.into(), WHY);
    Ok(())
}

/// What the profile hands to an agent.
fn listener(profile: &LinuxSeccomp) -> Option<String> {
    let notify = LinuxSeccompAction::ScmpActNotify;
    if profile.default_action() == notify {
        return Some("the default".to_owned());
    }
    let rule = profile.syscalls().iter().flatten().find(|rule| rule.action() == notify)?;
    Some(rule.names().join(", "))
}
