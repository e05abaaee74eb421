//! `update`.

use std::io::Read;

use anyhow::{Context, bail};

use super::Global;
use crate::runtime::update::{self, BlockIo, Cpu, Memory, Pids, Resources};

/// Largest resources document, in bytes.
const RESOURCES_MAX: u64 = 1 << 20;

/// Update container resource constraints
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File with the resources as JSON (LinuxResources of the runtime specification), or - for stdin; other options are
    /// ignored then
    #[arg(long, short, value_name = "FILE")]
    pub resources: Option<String>,
    /// Cgroup weight of block IO, 10 to 1000
    #[arg(long, value_name = "N")]
    pub blkio_weight: Option<u64>,
    /// CPU CFS period (in usecs); 0 leaves it
    #[arg(long, value_name = "N")]
    pub cpu_period: Option<u64>,
    /// CPU CFS hardcap limit (in usecs): CPU time in a period
    #[arg(long, value_name = "N")]
    pub cpu_quota: Option<i64>,
    /// CPU CFS hardcap burst limit (in usecs)
    #[arg(long, value_name = "N")]
    pub cpu_burst: Option<u64>,
    /// CPU shares (relative weight)
    #[arg(long, value_name = "N")]
    pub cpu_share: Option<u64>,
    /// CPU realtime period (in usecs)
    #[arg(long, value_name = "N")]
    pub cpu_rt_period: Option<u64>,
    /// CPU realtime hardcap limit (in usecs)
    #[arg(long, value_name = "N")]
    pub cpu_rt_runtime: Option<i64>,
    /// CPU(s) to use
    #[arg(long, value_name = "LIST")]
    pub cpuset_cpus: Option<String>,
    /// Memory node(s) to use
    #[arg(long, value_name = "LIST")]
    pub cpuset_mems: Option<String>,
    /// Set cgroup SCHED_IDLE or not: 1 or 0
    #[arg(long, value_name = "N")]
    pub cpu_idle: Option<i64>,
    /// Accepted for old callers; the kernel has no such limit any more
    #[arg(long, value_name = "BYTES", hide = true)]
    pub kernel_memory: Option<String>,
    /// Accepted for old callers; the kernel has no such limit any more
    #[arg(long, value_name = "BYTES", hide = true)]
    pub kernel_memory_tcp: Option<String>,
    /// Memory limit (in bytes, or with a unit)
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// Memory reservation or soft limit (in bytes, or with a unit)
    #[arg(long, value_name = "BYTES")]
    pub memory_reservation: Option<String>,
    /// Total memory usage (memory + swap); -1 for no limit
    #[arg(long, value_name = "BYTES")]
    pub memory_swap: Option<String>,
    /// Maximum number of pids allowed in the container
    #[arg(long, value_name = "N")]
    pub pids_limit: Option<i64>,
    /// Intel RDT/CAT L3 cache schema (not supported)
    #[arg(long, value_name = "SCHEMA")]
    pub l3_cache_schema: Option<String>,
    /// Intel RDT/MBA memory bandwidth schema (not supported)
    #[arg(long, value_name = "SCHEMA")]
    pub mem_bw_schema: Option<String>,
    /// The container
    #[arg(value_name = "CONTAINER-ID")]
    pub id: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let (root, id) = global.place(&args.id)?;
    if args.l3_cache_schema.is_some() || args.mem_bw_schema.is_some() {
        bail!("updating Intel RDT schemata is not supported");
    }
    let resources = match &args.resources {
        Some(source) => read(source)?,
        None => from_flags(args)?,
    };
    update::update(&root, &id, &resources)?;
    Ok(0)
}

fn read(source: &str) -> anyhow::Result<Resources> {
    let mut text = String::new();
    match source {
        "-" => std::io::stdin().take(RESOURCES_MAX).read_to_string(&mut text).context("read resources from stdin")?,
        path => {
            let file = std::fs::File::open(path).with_context(|| format!("open {path}"))?;
            file.take(RESOURCES_MAX).read_to_string(&mut text).with_context(|| format!("read {path}"))?
        }
    };
    Resources::parse(&text).with_context(|| format!("parse resources from {source}"))
}

fn from_flags(args: Args) -> anyhow::Result<Resources> {
    let size = |name: &str, text: &Option<String>| -> anyhow::Result<Option<i64>> {
        let Some(text) = text.as_deref().filter(|t| !t.is_empty()) else { return Ok(None) };
        bytes(text).map(Some).with_context(|| format!("invalid value for {name}: {text:?}"))
    };
    Ok(Resources {
        memory: Some(Memory {
            limit: size("memory", &args.memory)?,
            reservation: size("memory-reservation", &args.memory_reservation)?,
            swap: size("memory-swap", &args.memory_swap)?,
            check_before_update: None,
        }),
        cpu: Some(Cpu {
            shares: args.cpu_share,
            quota: args.cpu_quota,
            period: args.cpu_period,
            realtime_runtime: args.cpu_rt_runtime,
            realtime_period: args.cpu_rt_period,
            cpus: args.cpuset_cpus,
            mems: args.cpuset_mems,
            idle: args.cpu_idle,
            burst: args.cpu_burst,
        }),
        pids: Some(Pids { limit: args.pids_limit }),
        block_io: Some(BlockIo { weight: args.blkio_weight }),
        unified: None,
    })
}

/// A number of bytes: plain, -1, or with `k m g t p` (powers of 1024), optionally followed by `b` or `ib`.
fn bytes(text: &str) -> Option<i64> {
    if text == "-1" {
        return Some(-1);
    }
    let lower = text.trim().to_ascii_lowercase();
    let number_end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(number_end);
    let unit = unit.trim().trim_end_matches('b').trim_end_matches('i');
    let power = match unit {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    if power == 0 {
        return number.parse().ok();
    }
    let value = number.parse::<f64>().ok()? * 1024f64.powi(power);
    (value < i64::MAX as f64).then_some(value as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, want) in [
            ("33554432", Some(33554432)),
            ("-1", Some(-1)),
            ("32m", Some(32 << 20)),
            ("1.5G", Some(3 << 29)),
            ("2KiB", Some(2048)),
            ("10b", Some(10)),
            ("x", None),
            ("-2", None),
            ("99999999999p", None),
        ] {
            assert_eq!(bytes(text), want, "{text:?}");
        }
    }
}
