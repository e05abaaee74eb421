//! What a container uses, read from its cgroups, in the JSON shape of runc's `events --stats`.

use serde_json::{Map, Value, json};

use super::cgroup::CgroupDir;
use super::error::RuntimeError;
use super::state::{Record, Status};
use crate::sys::cgroup::{Device, Files, Pairs};

/// Ticks of cpuacct.stat a second, as nanoseconds: USER_HZ is 100 on every Linux.
const NS_PER_TICK: u64 = 10_000_000;

/// The `data` of a `stats` event. Fields that are 0 or unknown are left out where runc leaves them out.
pub fn stats(record: &Record) -> Result<Value, RuntimeError> {
    if record.status()? == Status::Stopped {
        return Err(RuntimeError::IsNotRunning(record.id.to_string()));
    }
    Ok(of_cgroups(&record.cgroups))
}

fn of_cgroups(dirs: &[CgroupDir]) -> Value {
    let v1 = dirs.iter().any(|d| !d.is_v2());
    let find = |name: &str| Files(dirs.iter().find(|d| d.has(name)).map(|d| d.path.as_path()));
    let (cpu, cpuset, memory, pids, blkio, hugetlb) = if v1 {
        let (cpu, acct, memory, blkio) = (find("cpu"), find("cpuacct"), find("memory"), find("blkio"));
        (
            cpu_v1(&cpu, &acct),
            cpuset_v1(&find("cpuset")),
            memory_v1(&memory),
            find("pids"),
            blkio_v1(&blkio),
            find("hugetlb"),
        )
    } else {
        let all = Files(dirs.first().map(|d| d.path.as_path()));
        (cpu_v2(&all), json!({}), memory_v2(&all), all, io_v2(&all), all)
    };
    let mut pids_out = Map::new();
    put(&mut pids_out, "current", pids.number("pids.current").unwrap_or(0));
    put(&mut pids_out, "limit", pids.number("pids.max").unwrap_or(0));
    json!({
        "cpu": cpu,
        "cpuset": cpuset,
        "memory": memory,
        "pids": pids_out,
        "blkio": blkio,
        "hugetlb": hugetlb_of(&hugetlb, v1),
        "intel_rdt": {},
        "network_interfaces": null,
    })
}

/// Go's `omitempty`.
fn put(map: &mut Map<String, Value>, key: &str, number: u64) {
    if number != 0 {
        map.insert(key.to_owned(), json!(number));
    }
}

fn put_list(map: &mut Map<String, Value>, key: &str, list: Vec<u64>) {
    if !list.is_empty() {
        map.insert(key.to_owned(), json!(list));
    }
}

fn throttling(pairs: &Pairs, time_key: &str, factor: u64) -> Value {
    let mut map = Map::new();
    put(&mut map, "periods", pairs.value("nr_periods"));
    put(&mut map, "throttledPeriods", pairs.value("nr_throttled"));
    put(&mut map, "throttledTime", pairs.value(time_key).saturating_mul(factor));
    Value::Object(map)
}

fn cpu_v1(cpu: &Files<'_>, acct: &Files<'_>) -> Value {
    let stat = acct.pairs("cpuacct.stat");
    let all: Vec<Vec<u64>> = acct
        .text("cpuacct.usage_all")
        .unwrap_or_default()
        .lines()
        .skip(1)
        .map(|l| l.split_whitespace().filter_map(|n| n.parse().ok()).collect())
        .collect();
    let mut usage = Map::new();
    put(&mut usage, "total", acct.number("cpuacct.usage").unwrap_or(0));
    put_list(&mut usage, "percpu", acct.numbers("cpuacct.usage_percpu"));
    put_list(&mut usage, "percpu_kernel", all.iter().filter_map(|l| l.get(2).copied()).collect());
    put_list(&mut usage, "percpu_user", all.iter().filter_map(|l| l.get(1).copied()).collect());
    usage.insert("kernel".into(), json!(stat.value("system") * NS_PER_TICK));
    usage.insert("user".into(), json!(stat.value("user") * NS_PER_TICK));
    json!({"usage": usage, "throttling": throttling(&cpu.pairs("cpu.stat"), "throttled_time", 1)})
}

fn cpu_v2(files: &Files<'_>) -> Value {
    let stat = files.pairs("cpu.stat");
    let ns = |key| stat.value(key).saturating_mul(1000);
    let mut usage = Map::new();
    put(&mut usage, "total", ns("usage_usec"));
    usage.insert("kernel".into(), json!(ns("system_usec")));
    usage.insert("user".into(), json!(ns("user_usec")));
    json!({"usage": usage, "throttling": throttling(&stat, "throttled_usec", 1000)})
}

fn cpuset_v1(files: &Files<'_>) -> Value {
    let mut map = Map::new();
    let list = |name: &str| -> Vec<u64> { expand(files.text(name).unwrap_or_default().trim()) };
    put_list(&mut map, "cpus", list("cpuset.cpus"));
    for (key, file) in [
        ("cpu_exclusive", "cpuset.cpu_exclusive"),
        ("mems", "cpuset.mems"),
        ("mem_hardwall", "cpuset.mem_hardwall"),
        ("mem_exclusive", "cpuset.mem_exclusive"),
        ("memory_migrate", "cpuset.memory_migrate"),
        ("memory_spread_page", "cpuset.memory_spread_page"),
        ("memory_spread_slab", "cpuset.memory_spread_slab"),
        ("memory_pressure", "cpuset.memory_pressure"),
        ("sched_load_balance", "cpuset.sched_load_balance"),
    ] {
        match key {
            "mems" => put_list(&mut map, key, list(file)),
            _ => drop(map.insert(key.to_owned(), json!(files.number(file).unwrap_or(0)))),
        }
    }
    let level = files.text("cpuset.sched_relax_domain_level");
    let level: i64 = level.and_then(|t| t.trim().parse().ok()).unwrap_or(0);
    map.insert("sched_relax_domain_level".into(), json!(level));
    Value::Object(map)
}

/// `0-2,5` as numbers.
fn expand(list: &str) -> Vec<u64> {
    list.split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (from.parse::<u64>().ok()?, to.parse::<u64>().ok()?);
            (to < 65536).then_some(from..=to)
        })
        .flatten()
        .collect()
}

fn memory_entry(limit: u64, usage: u64, max: u64, failcnt: u64) -> Value {
    let mut map = Map::new();
    map.insert("limit".into(), json!(limit));
    put(&mut map, "usage", usage);
    put(&mut map, "max", max);
    map.insert("failcnt".into(), json!(failcnt));
    Value::Object(map)
}

fn memory_v1(files: &Files<'_>) -> Value {
    let stat = files.pairs("memory.stat");
    let entry = |part: &str| {
        let number = |name: &str| files.number(&format!("memory.{part}{name}")).unwrap_or(0);
        memory_entry(
            number("limit_in_bytes"),
            number("usage_in_bytes"),
            number("max_usage_in_bytes"),
            number("failcnt"),
        )
    };
    let mut map = Map::new();
    put(&mut map, "cache", stat.value("cache"));
    map.insert("usage".into(), entry(""));
    map.insert("swap".into(), entry("memsw."));
    map.insert("kernel".into(), entry("kmem."));
    map.insert("kernelTCP".into(), entry("kmem.tcp."));
    map.insert("raw".into(), raw(stat));
    Value::Object(map)
}

fn raw(mut stat: Pairs) -> Value {
    stat.0.sort();
    Value::Object(stat.0.into_iter().map(|(k, v)| (k, json!(v))).collect())
}

fn memory_v2(files: &Files<'_>) -> Value {
    let stat = files.pairs("memory.stat");
    let limit = files.number("memory.max").unwrap_or(u64::MAX);
    let usage = files.number("memory.current").unwrap_or(0);
    let peak = files.number("memory.peak").unwrap_or(0);
    let swap_usage = files.number("memory.swap.current").unwrap_or(0);
    let swap_limit = files.number("memory.swap.max").map_or(u64::MAX, |s| s.saturating_add(limit));
    let failures = files.pairs("memory.events").value("max");
    let mut map = Map::new();
    put(&mut map, "cache", stat.value("file"));
    map.insert("usage".into(), memory_entry(limit, usage, peak, failures));
    map.insert("swap".into(), memory_entry(swap_limit, swap_usage + usage, 0, 0));
    map.insert("kernel".into(), memory_entry(0, 0, 0, 0));
    map.insert("kernelTCP".into(), memory_entry(0, 0, 0, 0));
    map.insert("raw".into(), raw(stat));
    Value::Object(map)
}

fn device_entry(device: &Device) -> Value {
    let mut map = Map::new();
    put(&mut map, "major", device.major);
    put(&mut map, "minor", device.minor);
    if !device.op.is_empty() {
        map.insert("op".into(), json!(device.op));
    }
    put(&mut map, "value", device.value);
    Value::Object(map)
}

fn blkio_v1(files: &Files<'_>) -> Value {
    let mut map = Map::new();
    for (key, names) in [
        (
            "ioServiceBytesRecursive",
            &["bfq.io_service_bytes_recursive", "throttle.io_service_bytes_recursive", "throttle.io_service_bytes"][..],
        ),
        (
            "ioServicedRecursive",
            &["bfq.io_serviced_recursive", "throttle.io_serviced_recursive", "throttle.io_serviced"][..],
        ),
        ("ioQueueRecursive", &["bfq.io_queued_recursive"][..]),
        ("ioServiceTimeRecursive", &["bfq.io_service_time_recursive"][..]),
        ("ioWaitTimeRecursive", &["bfq.io_wait_time_recursive"][..]),
        ("ioMergedRecursive", &["bfq.io_merged_recursive"][..]),
        ("ioTimeRecursive", &["bfq.time_recursive"][..]),
        ("sectorsRecursive", &["bfq.sectors_recursive"][..]),
    ] {
        let entries = names.iter().map(|n| files.devices(&format!("blkio.{n}")));
        if let Some(entries) = entries.into_iter().find(|e| !e.is_empty()) {
            map.insert(key.to_owned(), Value::Array(entries.iter().map(device_entry).collect()));
        }
    }
    Value::Object(map)
}

fn io_v2(files: &Files<'_>) -> Value {
    let (mut bytes, mut count) = (Vec::new(), Vec::new());
    for device in files.io() {
        let (list, op) = match device.op.as_str() {
            "rbytes" => (&mut bytes, "Read"),
            "wbytes" => (&mut bytes, "Write"),
            "dbytes" => (&mut bytes, "Discard"),
            "rios" => (&mut count, "Read"),
            "wios" => (&mut count, "Write"),
            "dios" => (&mut count, "Discard"),
            _ => continue,
        };
        list.push(device_entry(&Device { op: op.to_owned(), ..device }));
    }
    let mut map = Map::new();
    for (key, list) in [("ioServiceBytesRecursive", bytes), ("ioServicedRecursive", count)] {
        if !list.is_empty() {
            map.insert(key.to_owned(), Value::Array(list));
        }
    }
    Value::Object(map)
}

/// One entry a page size that the cgroup has files for.
fn hugetlb_of(files: &Files<'_>, v1: bool) -> Value {
    let mut out = Map::new();
    let sizes = files.huge_pages(if v1 { ".usage_in_bytes" } else { ".current" });
    for size in sizes {
        let number = |name: &str| files.number(&format!("hugetlb.{size}.{name}")).unwrap_or(0);
        let mut map = Map::new();
        if v1 {
            put(&mut map, "usage", number("usage_in_bytes"));
            put(&mut map, "max", number("max_usage_in_bytes"));
            map.insert("failcnt".into(), json!(number("failcnt")));
        } else {
            put(&mut map, "usage", number("current"));
            map.insert("failcnt".into(), json!(files.pairs(&format!("hugetlb.{size}.events")).value("max")));
        }
        out.insert(size, Value::Object(map));
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            crate::durable::replace_unsynced(&dir.path().join(name), text.as_bytes(), 0o644).unwrap();
        }
        dir
    }

    #[test]
    fn v1_as_runc_prints_it() {
        let dir = dir(&[
            ("cpuacct.usage", "70\n"),
            ("cpuacct.usage_percpu", "60 10 \n"),
            ("cpuacct.usage_all", "cpu user system\n0 4 1\n1 0 2\n"),
            ("cpuacct.stat", "user 2\nsystem 3\n"),
            ("cpu.stat", "nr_periods 5\nnr_throttled 0\nthrottled_time 9\n"),
            ("memory.stat", "total_rss 5\ncache 4096\n"),
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "10\n"),
            ("memory.failcnt", "0\n"),
            ("pids.current", "1\n"),
            ("pids.max", "max\n"),
            ("blkio.throttle.io_service_bytes", "8:0 Read 4096\n8:0 Total 4096\nTotal 4096\n"),
        ]);
        let all = |c: &str| CgroupDir { controllers: c.into(), path: dir.path().to_owned() };
        let got = of_cgroups(&[all("cpu"), all("cpuacct"), all("memory"), all("pids"), all("blkio")]);
        let cpu = json!({"usage": {"total": 70, "percpu": [60, 10], "percpu_kernel": [1, 2], "percpu_user": [4, 0],
            "kernel": 30000000, "user": 20000000}, "throttling": {"periods": 5, "throttledTime": 9}});
        assert_eq!(got["cpu"], cpu);
        assert_eq!(got["memory"]["usage"], json!({"limit": 1000, "usage": 10, "failcnt": 0}));
        assert_eq!(got["memory"]["cache"], 4096);
        assert_eq!(got["memory"]["raw"].to_string(), r#"{"cache":4096,"total_rss":5}"#);
        assert_eq!(got["pids"], json!({"current": 1}));
        assert_eq!(got["blkio"]["ioServiceBytesRecursive"][0], json!({"major": 8, "op": "Read", "value": 4096}));
    }

    #[test]
    fn v2() {
        let dir = dir(&[
            ("cpu.stat", "usage_usec 7\nuser_usec 4\nsystem_usec 3\nnr_throttled 2\nthrottled_usec 1\n"),
            ("memory.current", "10\n"),
            ("memory.max", "100\n"),
            ("memory.swap.max", "50\n"),
            ("memory.swap.current", "2\n"),
            ("memory.stat", "file 6\n"),
            ("pids.current", "3\n"),
            ("pids.max", "9\n"),
            ("io.stat", "8:0 rbytes=5 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n"),
        ]);
        let got = of_cgroups(&[CgroupDir { controllers: String::new(), path: dir.path().to_owned() }]);
        assert_eq!(got["cpu"]["usage"], json!({"total": 7000, "kernel": 3000, "user": 4000}));
        assert_eq!(got["cpu"]["throttling"], json!({"throttledPeriods": 2, "throttledTime": 1000}));
        assert_eq!(got["memory"]["swap"], json!({"limit": 150, "usage": 12, "failcnt": 0}));
        assert_eq!(got["pids"], json!({"current": 3, "limit": 9}));
        assert_eq!(got["blkio"]["ioServicedRecursive"][0], json!({"major": 8, "op": "Read", "value": 1}));
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(expand("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(expand(""), Vec::<u64>::new());
        assert_eq!(expand("0-99999999999"), Vec::<u64>::new());
    }
}
