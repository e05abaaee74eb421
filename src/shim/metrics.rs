//! What a container uses, as containerd's clients read it: `ctr task metrics`, `docker stats`, the kubelet.
//!
//! The message is that of the host's cgroup version, and has what containerd's own shim puts there. A file that the kernel
//! does not have leaves its fields 0, or its part out.

use std::collections::HashMap;
use std::path::Path;

use containerd_shim_protos::cgroups::metrics as v1;
use containerd_shim_protos::cgroups_v2::metrics as v2;
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;

use super::ShimError;
use super::cgroup::CgroupPaths;
use crate::sys::cgroup::{Device, Files};
use crate::sys::proc;

/// Ticks of cpuacct.stat a second, as nanoseconds: USER_HZ is 100 on every Linux.
const NS_PER_TICK: u64 = 10_000_000;
/// The names of the messages, by which clients know them.
const V1: &str = "io.containerd.cgroups.v1.Metrics";
const V2: &str = "io.containerd.cgroups.v2.Metrics";

/// Reads what the container uses: some fifty small files, so not in a task that others wait for.
///
/// # Errors
/// [`ShimError::NotFound`] if its cgroups are gone.
pub fn collect(cgroups: &CgroupPaths) -> Result<Any, ShimError> {
    if !cgroups.exist() {
        return Err(ShimError::NotFound("cgroup of the container".into()));
    }
    let (name, encoded) = if cgroups.is_v2() {
        (V2, of_v2(&cgroups.files("")).write_to_bytes())
    } else {
        (V1, of_v1(cgroups).write_to_bytes())
    };
    let value = encoded.map_err(|err| ShimError::Invalid(format!("metrics: {err}")))?;
    Ok(Any { type_url: name.to_owned(), value, ..Any::default() })
}

fn of_v1(cgroups: &CgroupPaths) -> v1::Metrics {
    let mut metrics = v1::Metrics::new();
    let pids = cgroups.files("pids");
    if pids.0.is_some() {
        metrics.pids = Some(v1::PidsStat {
            current: pids.number("pids.current").unwrap_or(0),
            limit: pids.number("pids.max").unwrap_or(0),
            ..Default::default()
        })
        .into();
    }
    metrics.cpu = Some(cpu_v1(&cgroups.files("cpu"), &cgroups.files("cpuacct"))).into();
    let memory = cgroups.files("memory");
    if memory.0.is_some() {
        metrics.memory = Some(memory_v1(&memory)).into();
        let control = memory.pairs("memory.oom_control");
        metrics.memory_oom_control = Some(v1::MemoryOomControl {
            oom_kill_disable: control.value("oom_kill_disable"),
            under_oom: control.value("under_oom"),
            oom_kill: control.value("oom_kill"),
            ..Default::default()
        })
        .into();
    }
    let blkio = cgroups.files("blkio");
    if blkio.0.is_some() {
        metrics.blkio = Some(blkio_v1(&blkio)).into();
    }
    let hugetlb = cgroups.files("hugetlb");
    metrics.hugetlb = hugetlb.huge_pages(".usage_in_bytes").into_iter().map(|size| huge_v1(&hugetlb, size)).collect();
    metrics
}

fn cpu_v1(cpu: &Files<'_>, acct: &Files<'_>) -> v1::CPUStat {
    let stat = acct.pairs("cpuacct.stat");
    let usage = v1::CPUUsage {
        total: acct.number("cpuacct.usage").unwrap_or(0),
        kernel: stat.value("system").saturating_mul(NS_PER_TICK),
        user: stat.value("user").saturating_mul(NS_PER_TICK),
        per_cpu: acct.numbers("cpuacct.usage_percpu"),
        ..Default::default()
    };
    let stat = cpu.pairs("cpu.stat");
    let throttling = v1::Throttle {
        periods: stat.value("nr_periods"),
        throttled_periods: stat.value("nr_throttled"),
        throttled_time: stat.value("throttled_time"),
        ..Default::default()
    };
    v1::CPUStat { usage: Some(usage).into(), throttling: Some(throttling).into(), ..Default::default() }
}

fn memory_v1(files: &Files<'_>) -> v1::MemoryStat {
    let stat = files.pairs("memory.stat");
    let mut memory = v1::MemoryStat::new();
    let m = &mut memory;
    for (field, key) in [
        (&mut m.cache, "cache"),
        (&mut m.rss, "rss"),
        (&mut m.rss_huge, "rss_huge"),
        (&mut m.mapped_file, "mapped_file"),
        (&mut m.dirty, "dirty"),
        (&mut m.writeback, "writeback"),
        (&mut m.pg_pg_in, "pgpgin"),
        (&mut m.pg_pg_out, "pgpgout"),
        (&mut m.pg_fault, "pgfault"),
        (&mut m.pg_maj_fault, "pgmajfault"),
        (&mut m.inactive_anon, "inactive_anon"),
        (&mut m.active_anon, "active_anon"),
        (&mut m.inactive_file, "inactive_file"),
        (&mut m.active_file, "active_file"),
        (&mut m.unevictable, "unevictable"),
        (&mut m.hierarchical_memory_limit, "hierarchical_memory_limit"),
        (&mut m.hierarchical_swap_limit, "hierarchical_memsw_limit"),
        (&mut m.total_cache, "total_cache"),
        (&mut m.total_rss, "total_rss"),
        (&mut m.total_rss_huge, "total_rss_huge"),
        (&mut m.total_mapped_file, "total_mapped_file"),
        (&mut m.total_dirty, "total_dirty"),
        (&mut m.total_writeback, "total_writeback"),
        (&mut m.total_pg_pg_in, "total_pgpgin"),
        (&mut m.total_pg_pg_out, "total_pgpgout"),
        (&mut m.total_pg_fault, "total_pgfault"),
        (&mut m.total_pg_maj_fault, "total_pgmajfault"),
        (&mut m.total_inactive_anon, "total_inactive_anon"),
        (&mut m.total_active_anon, "total_active_anon"),
        (&mut m.total_inactive_file, "total_inactive_file"),
        (&mut m.total_active_file, "total_active_file"),
        (&mut m.total_unevictable, "total_unevictable"),
    ] {
        *field = stat.value(key);
    }
    for (field, part) in
        [(&mut m.usage, ""), (&mut m.swap, "memsw."), (&mut m.kernel, "kmem."), (&mut m.kernel_tcp, "kmem.tcp.")]
    {
        let number = |name: &str| files.number(&format!("memory.{part}{name}"));
        let Some(usage) = number("usage_in_bytes") else { continue };
        *field = Some(v1::MemoryEntry {
            limit: number("limit_in_bytes").unwrap_or(0),
            usage,
            max: number("max_usage_in_bytes").unwrap_or(0),
            failcnt: number("failcnt").unwrap_or(0),
            ..Default::default()
        })
        .into();
    }
    memory
}

fn blkio_v1(files: &Files<'_>) -> v1::BlkIOStat {
    let mut blkio = v1::BlkIOStat::new();
    let mut names = None;
    let b = &mut blkio;
    for (field, sources) in [
        (
            &mut b.io_service_bytes_recursive,
            &["bfq.io_service_bytes_recursive", "throttle.io_service_bytes_recursive", "throttle.io_service_bytes"][..],
        ),
        (
            &mut b.io_serviced_recursive,
            &["bfq.io_serviced_recursive", "throttle.io_serviced_recursive", "throttle.io_serviced"][..],
        ),
        (&mut b.io_queued_recursive, &["bfq.io_queued_recursive"][..]),
        (&mut b.io_service_time_recursive, &["bfq.io_service_time_recursive"][..]),
        (&mut b.io_wait_time_recursive, &["bfq.io_wait_time_recursive"][..]),
        (&mut b.io_merged_recursive, &["bfq.io_merged_recursive"][..]),
        (&mut b.io_time_recursive, &["bfq.time_recursive"][..]),
        (&mut b.sectors_recursive, &["bfq.sectors_recursive"][..]),
    ] {
        let found = sources.iter().map(|name| files.devices(&format!("blkio.{name}")));
        let Some(found) = found.into_iter().find(|list| !list.is_empty()) else { continue };
        let names = names.get_or_insert_with(device_names);
        *field = found.into_iter().map(|device| blkio_entry(device, names)).collect();
    }
    blkio
}

fn blkio_entry(device: Device, names: &HashMap<(u64, u64), String>) -> v1::BlkIOEntry {
    v1::BlkIOEntry {
        device: names.get(&(device.major, device.minor)).cloned().unwrap_or_default(),
        op: device.op,
        major: device.major,
        minor: device.minor,
        value: device.value,
        ..Default::default()
    }
}

/// The host's block devices as `/dev/NAME`, by their numbers.
fn device_names() -> HashMap<(u64, u64), String> {
    let text = proc::read_text(Path::new("/proc/partitions")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [major, minor, _, name] = words[..] else { return None };
        Some(((major.parse().ok()?, minor.parse().ok()?), format!("/dev/{name}")))
    });
    lines.collect()
}

fn huge_v1(files: &Files<'_>, pagesize: String) -> v1::HugetlbStat {
    let number = |name: &str| files.number(&format!("hugetlb.{pagesize}.{name}")).unwrap_or(0);
    v1::HugetlbStat {
        usage: number("usage_in_bytes"),
        max: number("max_usage_in_bytes"),
        failcnt: number("failcnt"),
        pagesize: pagesize.clone(),
        ..Default::default()
    }
}

/// A number, all ones for `max`, 0 where there is no such file.
fn limit(files: &Files<'_>, name: &str) -> u64 {
    let text = files.text(name).unwrap_or_default();
    if text.trim() == "max" { u64::MAX } else { text.trim().parse().unwrap_or(0) }
}

fn of_v2(files: &Files<'_>) -> v2::Metrics {
    let mut metrics = v2::Metrics::new();
    metrics.pids = Some(v2::PidsStat {
        current: limit(files, "pids.current"),
        limit: limit(files, "pids.max"),
        ..Default::default()
    })
    .into();
    let cpu = files.pairs("cpu.stat");
    metrics.cpu = Some(v2::CPUStat {
        usage_usec: cpu.value("usage_usec"),
        user_usec: cpu.value("user_usec"),
        system_usec: cpu.value("system_usec"),
        nr_periods: cpu.value("nr_periods"),
        nr_throttled: cpu.value("nr_throttled"),
        throttled_usec: cpu.value("throttled_usec"),
        nr_bursts: cpu.value("nr_bursts"),
        burst_usec: cpu.value("burst_usec"),
        psi: pressure(files, "cpu.pressure").into(),
        ..Default::default()
    })
    .into();
    metrics.memory = Some(memory_v2(files)).into();
    let events = files.pairs("memory.events");
    metrics.memory_events = Some(v2::MemoryEvents {
        low: events.value("low"),
        high: events.value("high"),
        max: events.value("max"),
        oom: events.value("oom"),
        oom_kill: events.value("oom_kill"),
        oom_group_kill: events.value("oom_group_kill"),
        ..Default::default()
    })
    .into();
    metrics.io = Some(io_v2(files)).into();
    metrics.hugetlb = files.huge_pages(".current").into_iter().map(|size| huge_v2(files, size)).collect();
    metrics
}

fn memory_v2(files: &Files<'_>) -> v2::MemoryStat {
    let stat = files.pairs("memory.stat");
    let mut memory = v2::MemoryStat::new();
    let m = &mut memory;
    for (field, key) in [
        (&mut m.anon, "anon"),
        (&mut m.file, "file"),
        (&mut m.kernel_stack, "kernel_stack"),
        (&mut m.slab, "slab"),
        (&mut m.sock, "sock"),
        (&mut m.shmem, "shmem"),
        (&mut m.file_mapped, "file_mapped"),
        (&mut m.file_dirty, "file_dirty"),
        (&mut m.file_writeback, "file_writeback"),
        (&mut m.anon_thp, "anon_thp"),
        (&mut m.inactive_anon, "inactive_anon"),
        (&mut m.active_anon, "active_anon"),
        (&mut m.inactive_file, "inactive_file"),
        (&mut m.active_file, "active_file"),
        (&mut m.unevictable, "unevictable"),
        (&mut m.slab_reclaimable, "slab_reclaimable"),
        (&mut m.slab_unreclaimable, "slab_unreclaimable"),
        (&mut m.pgfault, "pgfault"),
        (&mut m.pgmajfault, "pgmajfault"),
        (&mut m.workingset_nodereclaim, "workingset_nodereclaim"),
        (&mut m.pgrefill, "pgrefill"),
        (&mut m.pgscan, "pgscan"),
        (&mut m.pgsteal, "pgsteal"),
        (&mut m.pgactivate, "pgactivate"),
        (&mut m.pgdeactivate, "pgdeactivate"),
        (&mut m.pglazyfree, "pglazyfree"),
        (&mut m.pglazyfreed, "pglazyfreed"),
        (&mut m.thp_fault_alloc, "thp_fault_alloc"),
        (&mut m.thp_collapse_alloc, "thp_collapse_alloc"),
    ] {
        *field = stat.value(key);
    }
    // Since Linux 5.9 counted apart for anonymous and file pages.
    let both = |key: &str| stat.value(key) + stat.value(&format!("{key}_anon")) + stat.value(&format!("{key}_file"));
    m.workingset_refault = both("workingset_refault");
    m.workingset_activate = both("workingset_activate");
    m.usage = limit(files, "memory.current");
    m.usage_limit = limit(files, "memory.max");
    m.max_usage = limit(files, "memory.peak");
    m.swap_usage = limit(files, "memory.swap.current");
    m.swap_limit = limit(files, "memory.swap.max");
    m.swap_max_usage = limit(files, "memory.swap.peak");
    m.psi = pressure(files, "memory.pressure").into();
    memory
}

fn io_v2(files: &Files<'_>) -> v2::IOStat {
    let mut usage: Vec<v2::IOEntry> = Vec::new();
    for Device { major, minor, op, value } in files.io() {
        // One line a device: its entries follow each other.
        if usage.last().is_none_or(|last| (last.major, last.minor) != (major, minor)) {
            usage.push(v2::IOEntry { major, minor, ..Default::default() });
        }
        let Some(entry) = usage.last_mut() else { continue };
        match op.as_str() {
            "rbytes" => entry.rbytes = value,
            "wbytes" => entry.wbytes = value,
            "rios" => entry.rios = value,
            "wios" => entry.wios = value,
            _ => {}
        }
    }
    v2::IOStat { usage, psi: pressure(files, "io.pressure").into(), ..Default::default() }
}

fn huge_v2(files: &Files<'_>, pagesize: String) -> v2::HugeTlbStat {
    v2::HugeTlbStat {
        current: limit(files, &format!("hugetlb.{pagesize}.current")),
        max: limit(files, &format!("hugetlb.{pagesize}.max")),
        failcnt: files.pairs(&format!("hugetlb.{pagesize}.events")).value("max"),
        pagesize,
        ..Default::default()
    }
}

/// A pressure file, where the kernel has them on.
fn pressure(files: &Files<'_>, name: &str) -> Option<v2::PSIStats> {
    let text = files.text(name)?;
    let line = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let field = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let average = |key: &str| field(key).and_then(|n| n.parse().ok()).unwrap_or(0.0);
        Some(v2::PSIData {
            avg10: average("avg10"),
            avg60: average("avg60"),
            avg300: average("avg300"),
            total: field("total").and_then(|n| n.parse().ok()).unwrap_or(0),
            ..Default::default()
        })
    };
    Some(v2::PSIStats { some: line("some").into(), full: line("full").into(), ..Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::cgroup::CgroupDir;
    use containerd_shim_protos::protobuf::MessageFull;

    fn group(controllers: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, CgroupPaths) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            crate::durable::replace_unsynced(&dir.path().join(name), text.as_bytes(), 0o644).unwrap();
        }
        let one = |controllers: &str| CgroupDir { controllers: controllers.into(), path: dir.path().to_owned() };
        let paths = CgroupPaths::from_dirs(controllers.split(' ').map(one).collect());
        (dir, paths)
    }

    #[test]
    fn the_names_are_those_of_the_messages() {
        assert_eq!(v1::Metrics::descriptor().full_name(), V1);
        assert_eq!(v2::Metrics::descriptor().full_name(), V2);
    }

    #[test]
    fn v1() {
        let (dir, paths) = group(
            "cpu,cpuacct memory pids blkio hugetlb",
            &[
                ("cpuacct.usage", "70\n"),
                ("cpuacct.usage_percpu", "60 10 \n"),
                ("cpuacct.stat", "user 2\nsystem 3\n"),
                ("cpu.stat", "nr_periods 5\nnr_throttled 1\nthrottled_time 9\n"),
                ("memory.stat", "cache 4096\npgpgin 7\nhierarchical_memsw_limit 99\ntotal_rss 5\n"),
                ("memory.usage_in_bytes", "10\n"),
                ("memory.limit_in_bytes", "1000\n"),
                ("memory.max_usage_in_bytes", "20\n"),
                ("memory.failcnt", "3\n"),
                ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
                ("pids.current", "1\n"),
                ("pids.max", "max\n"),
                ("blkio.throttle.io_serviced_recursive", "8:0 Read 4\n8:0 Total 4\nTotal 4\n"),
                ("hugetlb.2MB.usage_in_bytes", "1\n"),
                ("hugetlb.2MB.max_usage_in_bytes", "2\n"),
                ("hugetlb.2MB.failcnt", "3\n"),
                ("hugetlb.2MB.rsvd.usage_in_bytes", "1\n"),
            ],
        );
        let any = collect(&paths).unwrap();
        assert_eq!(any.type_url, V1);
        let metrics = v1::Metrics::parse_from_bytes(&any.value).unwrap();
        assert_eq!((metrics.pids.current, metrics.pids.limit), (1, 0));
        assert_eq!(metrics.cpu.usage.per_cpu, [60, 10]);
        assert_eq!(
            (metrics.cpu.usage.total, metrics.cpu.usage.user, metrics.cpu.usage.kernel),
            (70, 20_000_000, 30_000_000)
        );
        assert_eq!(metrics.cpu.throttling.throttled_time, 9);
        let memory = &metrics.memory;
        assert_eq!((memory.cache, memory.pg_pg_in, memory.hierarchical_swap_limit, memory.total_rss), (4096, 7, 99, 5));
        assert_eq!((memory.usage.limit, memory.usage.usage, memory.usage.max, memory.usage.failcnt), (1000, 10, 20, 3));
        assert!(memory.swap.is_none(), "a kernel without swap accounting");
        assert_eq!(metrics.memory_oom_control.oom_kill, 2);
        let entries: Vec<_> = metrics.blkio.io_serviced_recursive.iter().map(|e| (e.major, &*e.op, e.value)).collect();
        assert_eq!(entries, [(8, "Read", 4), (8, "Total", 4)]);
        let huge: Vec<_> = metrics.hugetlb.iter().map(|h| (&*h.pagesize, h.usage, h.max, h.failcnt)).collect();
        assert_eq!(huge, [("2MB", 1, 2, 3)]);
        drop(dir);
        assert!(matches!(collect(&paths).unwrap_err(), ShimError::NotFound(_)));
    }

    #[test]
    fn v2() {
        let (_dir, paths) = group(
            "",
            &[
                ("cpu.stat", "usage_usec 7\nuser_usec 4\nsystem_usec 3\nnr_throttled 2\nthrottled_usec 1\n"),
                ("cpu.pressure", "some avg10=1.50 avg60=0.00 avg300=0.00 total=42\n"),
                ("memory.current", "10\n"),
                ("memory.max", "max\n"),
                ("memory.swap.max", "50\n"),
                ("memory.stat", "file 6\nworkingset_refault_anon 1\nworkingset_refault_file 2\n"),
                ("memory.events", "max 4\noom 2\noom_kill 1\n"),
                ("pids.current", "3\n"),
                ("pids.max", "9\n"),
                (
                    "io.stat",
                    "8:0 rbytes=5 wbytes=6 rios=1 wios=2 dbytes=0 dios=0\n9:1 rbytes=7 wbytes=0 rios=0 wios=0\n",
                ),
                ("hugetlb.1GB.current", "1\n"),
                ("hugetlb.1GB.max", "max\n"),
                ("hugetlb.1GB.events", "max 8\n"),
            ],
        );
        let any = collect(&paths).unwrap();
        assert_eq!(any.type_url, V2);
        let metrics = v2::Metrics::parse_from_bytes(&any.value).unwrap();
        assert_eq!((metrics.pids.current, metrics.pids.limit), (3, 9));
        assert_eq!((metrics.cpu.usage_usec, metrics.cpu.nr_throttled, metrics.cpu.throttled_usec), (7, 2, 1));
        assert_eq!(
            (metrics.cpu.psi.some.avg10, metrics.cpu.psi.some.total, metrics.cpu.psi.full.is_none()),
            (1.5, 42, true)
        );
        let memory = &metrics.memory;
        assert_eq!((memory.usage, memory.usage_limit, memory.swap_limit, memory.swap_usage), (10, u64::MAX, 50, 0));
        assert_eq!((memory.file, memory.workingset_refault), (6, 3));
        assert_eq!((metrics.memory_events.max, metrics.memory_events.oom_kill), (4, 1));
        let io: Vec<_> =
            metrics.io.usage.iter().map(|e| (e.major, e.minor, e.rbytes, e.wbytes, e.rios, e.wios)).collect();
        assert_eq!(io, [(8, 0, 5, 6, 1, 2), (9, 1, 7, 0, 0, 0)]);
        let huge: Vec<_> = metrics.hugetlb.iter().map(|h| (&*h.pagesize, h.current, h.max, h.failcnt)).collect();
        assert_eq!(huge, [("1GB", 1, u64::MAX, 8)]);
    }
}
