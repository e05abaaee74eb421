//! `update`: limits of a living container, written to its cgroups. What is to be written is planned first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::cgroup::CgroupDir;
use super::error::{On, RuntimeError};
use super::leaf;
use super::members;
use super::state::{Record, Status};
use super::systemd;
use crate::id::ContainerId;
use crate::spec;
use crate::sys::proc;

/// The part of the runtime specification's `LinuxResources` that can be updated. Absent values are left as they are; so
/// is 0, as in runc.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// Memory, in bytes; -1 is no limit.
    pub memory: Option<Memory>,
    /// CPU time and placement.
    pub cpu: Option<Cpu>,
    /// Number of processes.
    pub pids: Option<Pids>,
    /// Block devices.
    #[serde(rename = "blockIO")]
    pub block_io: Option<BlockIo>,
    /// v2 files by name.
    pub unified: Option<BTreeMap<String, String>>,
}

impl Resources {
    /// From JSON.
    ///
    /// # Errors
    /// What is no JSON, or has a value of another type than its field.
    pub fn parse(text: &str) -> Result<Resources, serde_json::Error> {
        spec::typed(&serde_json::from_str(text)?)
    }
}

/// Memory limits.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// Hard limit.
    pub limit: Option<i64>,
    /// Soft limit.
    pub reservation: Option<i64>,
    /// Limit of memory and swap together.
    pub swap: Option<i64>,
    /// Refuse a limit below what is used now.
    pub check_before_update: Option<bool>,
}

/// CPU limits.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cpu {
    /// Relative weight, 2 to 262144.
    pub shares: Option<u64>,
    /// Microseconds a period; -1 is no limit.
    pub quota: Option<i64>,
    /// Microseconds.
    pub period: Option<u64>,
    /// Microseconds a real-time period.
    pub realtime_runtime: Option<i64>,
    /// Microseconds.
    pub realtime_period: Option<u64>,
    /// CPUs to use, as a list.
    pub cpus: Option<String>,
    /// Memory nodes to use, as a list.
    pub mems: Option<String>,
    /// SCHED_IDLE for all: 1 or 0.
    pub idle: Option<i64>,
    /// Microseconds that may be saved up.
    pub burst: Option<u64>,
}

/// Process limit.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pids {
    /// At most so many; -1 is no limit.
    pub limit: Option<i64>,
}

/// Block device weight.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BlockIo {
    /// 10 to 1000.
    pub weight: Option<u64>,
}

/// One file to write. Alternatives are for kernels that name it otherwise: the first that exists is written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Write {
    files: Vec<PathBuf>,
    value: String,
}

/// Applies `resources` to the container.
pub fn update(root: &Path, id: &ContainerId, resources: &Resources) -> Result<(), RuntimeError> {
    let record = Record::load(root, id)?;
    if record.status()? == Status::Stopped {
        return Err(RuntimeError::NotRunning);
    }
    apply(&record, resources).map_err(|err| record.or_gone(err, RuntimeError::NotRunning))
}

fn apply(record: &Record, resources: &Resources) -> Result<(), RuntimeError> {
    let v1 = record.cgroups.iter().any(|d| !d.is_v2());
    let plan = if v1 { plan_v1(resources, &record.cgroups)? } else { plan_v2(resources, &record.cgroups)? };
    carry_out(plan)?;
    if !v1 {
        record.cgroups.iter().for_each(|dir| leaf::mirror_to_all(&dir.path));
    }
    if record.systemd_cgroup && systemd::is_for_us() {
        record.cgroups.iter().try_for_each(|dir| systemd::follow(&dir.path))?;
    }
    Ok(())
}

/// Writes the values, or leaves those that there were.
///
/// The kernel refuses one that does not fit the others (quota, period and burst; a parent's share), though it would when they
/// are written too. So what is refused as invalid is tried again behind the rest.
fn carry_out(plan: Vec<Write>) -> Result<(), RuntimeError> {
    let mut before = Vec::new();
    let mut put = |write: &Write| {
        let existing = write.files.iter().find(|f| f.exists());
        let Some(file) = existing.or(write.files.first()) else { return Ok(()) };
        let old = proc::read_text(file);
        members::write(file, &write.value).on("write", file)?;
        before.extend(old.ok().map(|old| (file.clone(), old)));
        Ok(())
    };
    let all = || {
        let mut later = Vec::new();
        for write in plan {
            match put(&write) {
                Err(RuntimeError::Io { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                    later.push(write)
                }
                done => done?,
            }
        }
        later.iter().try_for_each(&mut put)
    };
    let outcome = all();
    if outcome.is_err() {
        for (file, old) in before.iter().rev() {
            // The failure is what is told.
            let _ = members::write(file, old.trim());
        }
    }
    outcome
}

fn given(value: Option<i64>) -> Option<i64> {
    value.filter(|v| *v != 0)
}

fn list(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|t| !t.is_empty())
}

fn plan_v1(resources: &Resources, dirs: &[CgroupDir]) -> Result<Vec<Write>, RuntimeError> {
    let mut plan = Vec::new();
    let mut add = |controller: &'static str, names: &[&str], value: Option<String>| -> Result<(), RuntimeError> {
        let Some(value) = value else { return Ok(()) };
        let dir = dirs.iter().find(|d| d.has(controller));
        let dir = dir.ok_or(RuntimeError::Unsupported("updating a limit whose cgroup controller the host lacks"))?;
        plan.push(Write { files: names.iter().map(|n| dir.path.join(n)).collect(), value });
        Ok(())
    };
    if let Some(memory) = &resources.memory {
        let limit = given(memory.limit);
        let mut swap = given(memory.swap);
        let file = |name: &str| dirs.iter().find(|d| d.has("memory")).map(|d| d.path.join(name));
        let now = |name: &str| file(name).and_then(|f| std::fs::read_to_string(f).ok()?.trim().parse::<i64>().ok());
        if limit == Some(-1) && swap.is_none() && file("memory.memsw.limit_in_bytes").is_some_and(|f| f.exists()) {
            // Memory without limit under a limit of both would be refused.
            swap = Some(-1);
        }
        let writes = [("memory.limit_in_bytes", limit), ("memory.memsw.limit_in_bytes", swap)];
        // Memory may never be above both together, not even between the two writes.
        let grows = swap.is_some_and(|s| s == -1 || now("memory.limit_in_bytes").is_some_and(|l| l < s));
        let order = if limit.is_some() && grows { [1, 0] } else { [0, 1] };
        for (name, value) in order.map(|i| writes[i]) {
            add("memory", &[name], value.map(|v| v.to_string()))?;
        }
        add("memory", &["memory.soft_limit_in_bytes"], given(memory.reservation).map(|v| v.to_string()))?;
    }
    if let Some(cpu) = &resources.cpu {
        let number = |v: Option<u64>| v.filter(|v| *v != 0).map(|v| v.to_string());
        add("cpu", &["cpu.shares"], number(cpu.shares))?;
        add("cpu", &["cpu.rt_period_us"], number(cpu.realtime_period))?;
        add("cpu", &["cpu.rt_runtime_us"], given(cpu.realtime_runtime).map(|v| v.to_string()))?;
        add("cpu", &["cpu.cfs_period_us"], number(cpu.period))?;
        add("cpu", &["cpu.cfs_quota_us"], given(cpu.quota).map(|v| v.to_string()))?;
        add("cpu", &["cpu.cfs_burst_us"], cpu.burst.map(|v| v.to_string()))?;
        add("cpu", &["cpu.idle"], cpu.idle.map(|v| v.to_string()))?;
        add("cpuset", &["cpuset.cpus"], list(&cpu.cpus).map(str::to_owned))?;
        add("cpuset", &["cpuset.mems"], list(&cpu.mems).map(str::to_owned))?;
    }
    add("pids", &["pids.max"], resources.pids.as_ref().and_then(|p| given(p.limit)).map(max_or))?;
    let weight = resources.block_io.as_ref().and_then(|b| b.weight).filter(|w| *w != 0);
    add("blkio", &["blkio.weight", "blkio.bfq.weight"], weight.map(|w| w.to_string()))?;
    if resources.unified.as_ref().is_some_and(|u| !u.is_empty()) {
        return Err(RuntimeError::Unsupported("a \"unified\" resource on a host with cgroup v1"));
    }
    Ok(plan)
}

/// v2 writes "no limit" as `max`.
fn max_or(value: i64) -> String {
    if value < 0 { "max".to_owned() } else { value.to_string() }
}

fn plan_v2(resources: &Resources, dirs: &[CgroupDir]) -> Result<Vec<Write>, RuntimeError> {
    let dir = dirs.first().ok_or(RuntimeError::Unsupported("updating a container without a cgroup"))?;
    let mut plan = Vec::new();
    let read = |name: &str| std::fs::read_to_string(dir.path.join(name)).unwrap_or_default().trim().to_owned();
    let mut add = |names: &[&str], value: Option<String>| {
        if let Some(value) = value {
            plan.push(Write { files: names.iter().map(|n| dir.path.join(n)).collect(), value });
        }
    };
    if let Some(memory) = &resources.memory {
        let limit = given(memory.limit);
        if memory.check_before_update == Some(true)
            && let Some(limit) = limit.filter(|l| *l > 0)
            && let Ok(usage) = read("memory.current").parse::<i64>()
            && usage > limit
        {
            let why = format!("unable to set memory limit to {limit} (current usage: {usage})");
            return Err(RuntimeError::Invalid { what: "memory limit", why });
        }
        let swap = match given(memory.swap) {
            None if limit == Some(-1) => Some("max".to_owned()),
            None => None,
            Some(-1) => Some("max".to_owned()),
            Some(both) => {
                // The specification counts memory and swap together, v2 swap alone.
                let limit = limit.or_else(|| read("memory.max").parse().ok());
                let swap = limit.filter(|l| *l >= 0).map(|l| both - l).filter(|s| *s >= 0);
                let why = "memory+swap limit without, or below, a memory limit".to_owned();
                Some(swap.ok_or(RuntimeError::Invalid { what: "memory swap", why })?.to_string())
            }
        };
        add(&["memory.swap.max"], swap);
        add(&["memory.max"], limit.map(max_or));
        add(&["memory.low"], given(memory.reservation).map(max_or));
    }
    if let Some(cpu) = &resources.cpu {
        add(&["cpu.weight"], cpu.shares.filter(|s| *s != 0).map(|shares| weight_of(shares).to_string()));
        let (quota, period) = (given(cpu.quota), cpu.period.filter(|p| *p != 0));
        if quota.is_some() || period.is_some() {
            let now = read("cpu.max");
            let (now_quota, now_period) = now.split_once(' ').unwrap_or(("max", "100000"));
            let quota = quota.map_or_else(|| now_quota.to_owned(), max_or);
            let period = period.map_or_else(|| now_period.to_owned(), |p| p.to_string());
            add(&["cpu.max"], Some(format!("{quota} {period}")));
        }
        add(&["cpu.max.burst"], cpu.burst.map(|v| v.to_string()));
        add(&["cpu.idle"], cpu.idle.map(|v| v.to_string()));
        add(&["cpuset.cpus"], list(&cpu.cpus).map(str::to_owned));
        add(&["cpuset.mems"], list(&cpu.mems).map(str::to_owned));
        if given(cpu.realtime_runtime).is_some() || cpu.realtime_period.is_some_and(|p| p != 0) {
            return Err(RuntimeError::Unsupported("a real-time CPU limit on cgroup v2"));
        }
    }
    add(&["pids.max"], resources.pids.as_ref().and_then(|p| given(p.limit)).map(max_or));
    if let Some(weight) = resources.block_io.as_ref().and_then(|b| b.weight).filter(|w| *w != 0) {
        match dir.path.join("io.bfq.weight").exists() {
            true => add(&["io.bfq.weight"], Some(weight.to_string())),
            false => add(&["io.weight"], Some((1 + (weight.clamp(10, 1000) - 10) * 9999 / 990).to_string())),
        }
    }
    for (name, value) in resources.unified.iter().flatten() {
        if name.contains('/') || !name.contains('.') || name.starts_with('.') {
            return Err(RuntimeError::Invalid { what: "unified resource", why: format!("{name:?} is no cgroup file") });
        }
        add(&[name], Some(value.clone()));
    }
    Ok(plan)
}

/// The weight on v2 (1 to 10,000) of v1's shares (2 to 262,144): a curve through both ends on which the default of 1024 is
/// the default of 100, as libcgroups has it when a container is made, and runc from 1.3.2 on.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]
fn weight_of(shares: u64) -> u64 {
    let log = (shares.clamp(2, 262_144) as f64).log2();
    let exponent = log * (log + 125.0) / 612.0 - 7.0 / 34.0;
    (10_f64.powf(exponent).ceil() as u64).clamp(1, 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(resources: serde_json::Value, v2: bool, files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            crate::durable::replace_unsynced(&dir.path().join(name), text.as_bytes(), 0o644).unwrap();
        }
        let controllers = if v2 { "" } else { "memory,cpu,cpuset,pids,blkio" };
        let dirs = [CgroupDir { controllers: controllers.into(), path: dir.path().to_owned() }];
        let resources: Resources = serde_json::from_value(resources).unwrap();
        let plan = if v2 { plan_v2(&resources, &dirs) } else { plan_v1(&resources, &dirs) };
        plan.unwrap()
            .iter()
            .map(|w| format!("{}={}", w.files[0].file_name().unwrap().to_str().unwrap(), w.value))
            .collect()
    }

    #[test]
    fn resources_are_objects() {
        assert_eq!(Resources::parse(r#"{"pids": {"limit": 7}}"#).unwrap().pids, Some(Pids { limit: Some(7) }));
        for text in [r#"{"pids": [7]}"#, r#"[{"limit": 7}]"#] {
            let why = Resources::parse(text).unwrap_err().to_string();
            assert_eq!(why, "invalid type: a list, expected an object");
        }
    }

    #[test]
    fn v1_orders_memory_and_swap() {
        let both = json!({"memory": {"limit": 100, "swap": 200}});
        let grow = plan(both.clone(), false, &[("memory.limit_in_bytes", "50")]);
        assert_eq!(grow, ["memory.memsw.limit_in_bytes=200", "memory.limit_in_bytes=100"]);
        let shrink = plan(both, false, &[("memory.limit_in_bytes", "500")]);
        assert_eq!(shrink, ["memory.limit_in_bytes=100", "memory.memsw.limit_in_bytes=200"]);
        let open = plan(json!({"memory": {"limit": -1}}), false, &[("memory.memsw.limit_in_bytes", "9")]);
        assert_eq!(open, ["memory.memsw.limit_in_bytes=-1", "memory.limit_in_bytes=-1"]);
    }

    #[test]
    fn v1_values_and_zero_is_unset() {
        let all = json!({"cpu": {"shares": 512, "quota": 50000, "period": 100000, "cpus": "0"},
            "pids": {"limit": -1}, "blockIO": {"weight": 0}, "memory": {"limit": 0, "reservation": 7}});
        assert_eq!(
            plan(all, false, &[]),
            [
                "memory.soft_limit_in_bytes=7",
                "cpu.shares=512",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=50000",
                "cpuset.cpus=0",
                "pids.max=max"
            ]
        );
    }

    #[test]
    fn v2_converts() {
        let all = json!({"memory": {"limit": 100, "swap": 150}, "cpu": {"shares": 1024, "quota": -1},
            "pids": {"limit": 5}, "blockIO": {"weight": 1000}, "unified": {"memory.high": "9"}});
        assert_eq!(
            plan(all, true, &[("cpu.max", "5000 20000\n")]),
            [
                "memory.swap.max=50",
                "memory.max=100",
                "cpu.weight=100",
                "cpu.max=max 20000",
                "pids.max=5",
                "io.weight=10000",
                "memory.high=9"
            ]
        );
    }

    /// An update with the shares that a container was made with changed its weight.
    #[test]
    fn the_weight_is_that_of_creation() {
        for (shares, weight) in
            [(1, 1), (2, 1), (102, 17), (512, 59), (1024, 100), (2048, 174), (262_144, 10_000), (1 << 40, 10_000)]
        {
            assert_eq!(weight_of(shares), weight, "{shares}");
        }
    }

    #[test]
    fn v2_refuses_paths_and_nonsense() {
        let dirs = [CgroupDir { controllers: String::new(), path: "/nonexistent".into() }];
        for bad in [
            json!({"unified": {"../x.y": "1"}}),
            json!({"memory": {"swap": 5}}),
            json!({"cpu": {"realtimeRuntime": 5}}),
        ] {
            assert!(plan_v2(&serde_json::from_value(bad.clone()).unwrap(), &dirs).is_err(), "{bad}");
        }
    }
}
