//! Limits where the engine set none: processors, memory with swap, processes, and what a layer takes on disk.
//!
//! What an engine did set stays, larger or smaller, and "unlimited" (-1) too: somebody asked for it. Only what nobody
//! thought of gets a bound, so that one container can't take the whole machine.

use serde_json::{Value, json};

use super::{Refusal, Work};

/// The period of a quota, microseconds: the kernel's own default.
const PERIOD: u64 = 100_000;
/// The kernel takes no smaller quota, microseconds.
const QUOTA_MIN: u64 = 1_000;

const CPU: &str = "the engine set no limit on processor time";
const CPU_CEILING: &str = "the engine set no limit on processor time, and the cgroup above has less than the default";
const MEMORY: &str = "the engine set no limit on memory";
const SWAP: &str = "memory that is swapped out is memory too";
const NO_SWAP: &str = "the host does not account for swap, so only memory can be limited";
const PIDS: &str = "the engine set no limit on processes";

/// The pass of `strict`.
pub(super) fn limits(work: &mut Work<'_>) -> Result<(), Refusal> {
    let limits = &work.policy.rules.limits;
    let (cpus, bytes, count) = (limits.cpus, limits.memory, limits.pids);
    work.confinement.layer_bytes = limits.layer;
    cpu(work, cpus);
    memory(work, bytes);
    pids(work, count);
    Ok(())
}

/// A number that sets something: absent, null and 0 (as in runc) don't.
fn is_set(value: &Value) -> bool {
    value.as_i64().is_some_and(|n| n != 0) || value.as_u64().is_some_and(|n| n != 0)
}

/// What the engine says of a kind of resource; null where it says nothing, or what is none.
fn resource<'a>(work: &'a Work<'_>, kind: &str) -> &'a Value {
    &work.spec["linux"]["resources"][kind]
}

/// Whether the engine has given v2's own file a value.
fn is_unified(work: &Work<'_>, files: &[&str]) -> bool {
    let unified = resource(work, "unified");
    files.iter().any(|file| unified[*file].as_str().is_some_and(|text| !text.is_empty()))
}

fn put(work: &mut Work<'_>, kind: &str, key: &str, to: Value, why: &'static str) {
    fn object<'a>(parent: &'a mut Value, key: &str) -> Option<&'a mut Value> {
        let value = parent.as_object_mut()?.entry(key).or_insert(Value::Null);
        if value.is_null() {
            *value = json!({});
        }
        Some(value)
    }
    // What has another type is refused by who reads it next.
    let of_kind = object(work.spec, "linux").and_then(|linux| object(linux, "resources")).and_then(|r| object(r, kind));
    if let Some(map) = of_kind.and_then(Value::as_object_mut) {
        let from = map.insert(key.to_owned(), to.clone()).unwrap_or(Value::Null);
        work.decide(format!("linux.resources.{kind}.{key}"), from, to, why);
    }
}

fn cpu(work: &mut Work<'_>, cpus: Option<f64>) {
    let Some(cpus) = cpus else { return };
    let given = resource(work, "cpu").clone();
    let set = is_set(&given["quota"]) || given["cpus"].as_str().is_some_and(|list| !list.is_empty());
    if set || is_unified(work, &["cpu.max", "cpuset.cpus"]) {
        return;
    }
    let period = given["period"].as_u64().filter(|period| *period != 0);
    let quota = |cpus: f64| ((cpus * period.unwrap_or(PERIOD) as f64) as u64).max(QUOTA_MIN);
    // v1 refuses more than the group above has, where v2 takes the smaller of both.
    let (quota, why) = match work.host.cpu_ceiling {
        Some(ceiling) if ceiling < cpus => (quota(ceiling), CPU_CEILING),
        _ => (quota(cpus), CPU),
    };
    put(work, "cpu", "quota", json!(quota), why);
    if period.is_none() {
        put(work, "cpu", "period", json!(PERIOD), why);
    }
}

fn memory(work: &mut Work<'_>, bytes: Option<u64>) {
    let Some(bytes) = bytes.filter(|_| !is_unified(work, &["memory.max", "memory.swap.max"])) else { return };
    let given = resource(work, "memory").clone();
    let swap_set = is_set(&given["swap"]);
    let limit = match given["limit"].as_i64() {
        Some(limit) if limit != 0 => limit,
        _ => {
            // Memory may not be above both together.
            let both = given["swap"].as_u64().filter(|both| *both > 0);
            let limit = both.map_or(bytes, |both| both.min(bytes));
            put(work, "memory", "limit", json!(limit), MEMORY);
            limit as i64
        }
    };
    if limit < 0 || swap_set {
        return;
    }
    match work.host.swap_accounting {
        true => put(work, "memory", "swap", json!(limit), SWAP),
        false => work.decide("linux.resources.memory.swap", Value::Null, Value::Null, NO_SWAP),
    }
}

fn pids(work: &mut Work<'_>, count: Option<i64>) {
    let Some(count) = count else { return };
    if !is_set(&resource(work, "pids")["limit"]) && !is_unified(work, &["pids.max"]) {
        put(work, "pids", "limit", json!(count), PIDS);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Confinement, Decision, Host, Policy};
    use super::*;
    use crate::terms::Profile;

    fn hardened(resources: Value, host: &Host) -> (Value, Vec<Decision>, Confinement) {
        let mut spec = json!({"linux": {"resources": resources}});
        let policy = Policy { profile: Profile::Strict, ..Policy::default() };
        let (mut confinement, mut decisions) = (Confinement::default(), Vec::new());
        let mut work =
            Work { spec: &mut spec, policy: &policy, host, confinement: &mut confinement, decisions: &mut decisions };
        limits(&mut work).unwrap();
        (spec["linux"]["resources"].take(), decisions, confinement)
    }

    const GIB2: u64 = 2 << 30;

    fn host() -> Host {
        Host { swap_accounting: true, ..Host::default() }
    }

    #[test]
    fn what_nobody_set_is_set_and_told() {
        for nothing in [
            Value::Null,
            json!({"cpu": {"shares": 512}, "memory": {"limit": 0, "swap": null}, "pids": {"limit": 0}, "devices": []}),
        ] {
            let (got, decisions, confinement) = hardened(nothing, &host());
            assert_eq!((&got["cpu"]["quota"], &got["cpu"]["period"]), (&json!(200_000), &json!(100_000)));
            assert_eq!((&got["memory"]["limit"], &got["memory"]["swap"]), (&json!(GIB2), &json!(GIB2)));
            assert_eq!(got["pids"]["limit"], 256);
            assert_eq!(confinement.layer_bytes, Some(5 << 30));
            let fields: Vec<&str> = decisions.iter().map(|d| d.field.as_str()).collect();
            assert_eq!(
                fields,
                ["cpu.quota", "cpu.period", "memory.limit", "memory.swap", "pids.limit"]
                    .map(|f| format!("linux.resources.{f}"))
            );
        }
    }

    #[test]
    fn what_is_no_resource_is_left_to_its_reader() {
        for odd in [json!([]), json!("x"), json!({"cpu": 1, "memory": [], "pids": "y"})] {
            let (got, decisions, _) = hardened(odd.clone(), &host());
            assert_eq!((got, decisions), (odd, vec![]));
        }
    }

    #[test]
    fn what_the_engine_set_stays() {
        let given = json!({"cpu": {"quota": 50_000, "period": 100_000}, "memory": {"limit": 9, "swap": -1},
            "pids": {"limit": -1}});
        let (got, decisions, _) = hardened(given.clone(), &host());
        assert_eq!((got, decisions), (given, vec![]));
        let given = json!({"cpu": {"cpus": "0-3"}, "memory": {"limit": -1}, "pids": {"limit": 9999}});
        let (got, decisions, _) = hardened(given.clone(), &host());
        assert_eq!((got, decisions), (given, vec![]));
    }

    #[test]
    fn values_of_v2s_own_files_are_the_engines() {
        let given = json!({"unified": {"memory.max": "max", "cpu.max": "max 100000", "pids.max": "9"}});
        let (got, decisions, _) = hardened(given.clone(), &host());
        assert_eq!((&got["unified"], decisions), (&given["unified"], vec![]));
        let (got, ..) = hardened(json!({"unified": {"memory.high": "1000"}}), &host());
        assert_eq!(got["memory"]["limit"], GIB2);
    }

    /// Twice the memory by way of swap is what a limit on memory alone means.
    #[test]
    fn swap_is_included_in_the_engines_limit() {
        let (got, decisions, _) = hardened(json!({"memory": {"limit": 1000}}), &host());
        assert_eq!(got["memory"], json!({"limit": 1000, "swap": 1000}));
        assert!(decisions.iter().any(|d| d.field == "linux.resources.memory.swap" && d.to == 1000));
        let (got, ..) = hardened(json!({"memory": {"swap": 5000}}), &host());
        assert_eq!(got["memory"], json!({"limit": 5000, "swap": 5000}));
    }

    #[test]
    fn without_swap_accounting_it_is_left_out_and_told() {
        let (got, decisions, _) = hardened(Value::Null, &Host::default());
        assert_eq!(got["memory"], json!({"limit": GIB2}));
        let told = decisions.iter().find(|d| d.field == "linux.resources.memory.swap").unwrap();
        assert_eq!((&told.to, told.why.as_ref()), (&Value::Null, NO_SWAP));
    }

    #[test]
    fn the_quota_follows_the_period_and_the_group_above() {
        let (got, ..) = hardened(json!({"cpu": {"period": 50_000}}), &host());
        assert_eq!(got["cpu"], json!({"period": 50_000, "quota": 100_000}));
        let (got, decisions, _) = hardened(Value::Null, &Host { cpu_ceiling: Some(0.5), ..host() });
        assert_eq!(got["cpu"]["quota"], 50_000);
        assert_eq!(decisions[0].why, CPU_CEILING);
        let (got, ..) = hardened(Value::Null, &Host { cpu_ceiling: Some(64.0), ..host() });
        assert_eq!(got["cpu"]["quota"], 200_000);
    }
}
