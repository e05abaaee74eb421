//! Nothing lost, nothing leaked: execs by the hundred, kills at any moment and at every step, disks that fail, damage.
//!
//! Each subject has a short form, which is a test like any other, and a long one that is `#[ignore]`d: run it by name with
//! `--ignored`. What is random is printed with its seed; `AGENTSBX_SOAK_SEED` repeats it. `AGENTSBX_SOAK_ROUNDS` sets how
//! many rounds the long forms take.

mod census;
mod damage;
mod descriptors;
mod disk;
mod disks;
mod fsck;
mod kills;
mod leaks;
mod model;
pub mod random;
mod shims;
mod steps;

use serde_json::Value;

use crate::support::Env;

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// The rounds of a long form.
pub fn rounds(default: u64) -> u64 {
    setting("AGENTSBX_SOAK_ROUNDS").unwrap_or(default)
}

/// What `fsck` finds; it must have been able to look.
#[track_caller]
fn fsck(env: &Env) -> Value {
    let output = env.run(["fsck", "--json"]);
    let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", output.both()));
    assert_eq!(output.code, i32::from(report["clean"] != true), "{report:#}");
    report
}

/// Asserts that there is nothing for `fsck` to find.
#[track_caller]
fn assert_clean(env: &Env, when: &str) {
    let report = fsck(env);
    assert_eq!(report["clean"], true, "{when}: {report:#}");
    assert_eq!(report["notes"], serde_json::json!([]), "{when}: {report:#}");
}
