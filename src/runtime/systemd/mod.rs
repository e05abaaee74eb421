//! The systemd cgroup driver: a container's cgroup is a scope, started and stopped by systemd, with limits that it knows.
//!
//! A scope begins with a process. It is a child of `create` that only waits, until the container's first process is in
//! the scope's cgroup. From then on the cgroup is used like any other, since it is delegated; systemd is told of the limits
//! that are in force there, or it would set its own again when it reloads its units.

mod bus;
mod wire;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Classify, Kind};
use crate::sys::process::{Fork, exit_now, fork, wait};
use crate::sys::{SysError, attributes};

use bus::{Bus, BusError};
use wire::{Property, Value};

/// How long systemd may take to start a scope or to stop one that has no process.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a scope of the same name may take to go away.
const SAME_NAME: Duration = Duration::from_secs(3);

/// What went wrong with a scope.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// The configuration's `cgroupsPath` names no scope.
    #[error("linux.cgroupsPath {path:?}: {why}")]
    Path {
        /// As given.
        path: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A call to systemd.
    #[error("{unit}: {source}")]
    Bus {
        /// The scope.
        unit: String,
        /// Why.
        #[source]
        source: BusError,
    },
    /// It accepted the job and did not do it.
    #[error("systemd has not {what} {unit} within {} seconds", PATIENCE.as_secs())]
    Slow {
        /// `started`, `stopped`.
        what: &'static str,
        /// The scope.
        unit: String,
    },
    /// The waiting child.
    #[error(transparent)]
    Sys(#[from] SysError),
}

impl Classify for SystemdError {
    fn kind(&self) -> Kind {
        match self {
            SystemdError::Path { .. } => Kind::InvalidInput,
            SystemdError::Bus { source, .. } => source.kind(),
            SystemdError::Slow { .. } => Kind::System,
            SystemdError::Sys(err) => err.kind(),
        }
    }
}

/// Whether this process is root on the host, whose systemd listens to it. Without root, libcontainer talks to the user's.
pub fn is_for_us() -> bool {
    let full = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
    rustix::process::geteuid().is_root() && fs::read_to_string("/proc/self/uid_map").is_ok_and(full)
}

/// The slice and the name of the scope that a `cgroupsPath` `slice:prefix:name` stands for.
fn names(path: &str) -> Result<(String, String), SystemdError> {
    let bad = |why| SystemdError::Path { path: path.to_owned(), why };
    let parts: Vec<&str> = path.split(':').collect();
    let [slice, prefix, name] = parts[..] else {
        return Err(bad("with the systemd cgroup driver it has the form slice:prefix:name"));
    };
    if name.is_empty() || path.contains(['/', '\0']) {
        return Err(bad("it must have a name, and no slash"));
    }
    if name.ends_with(".slice") {
        return Err(bad("a slice of its own for a container is not supported"));
    }
    let slice = if slice.is_empty() { "system.slice" } else { slice };
    if !slice.ends_with(".slice") {
        return Err(bad("its first part is no slice"));
    }
    let unit = if prefix.is_empty() { format!("{name}.scope") } else { format!("{prefix}-{name}.scope") };
    Ok((slice.to_owned(), unit))
}

/// A scope that runs, and the child that keeps it until the container's first process is there.
#[derive(Debug)]
#[must_use = "the scope ends when its child does"]
pub struct Scope {
    /// The unit's name.
    unit: String,
    /// The cgroup, as `/proc/PID/cgroup` names it.
    pub path: PathBuf,
    /// The limits that systemd gives every scope.
    initial: Vec<Property>,
    child: Waiting,
}

impl Scope {
    /// Starts the scope that `cgroups_path` stands for, on a host whose v2 hierarchy is mounted at `mount_point`. One of
    /// the same name that is ending is waited for.
    pub fn start(cgroups_path: &str, id: &str, mount_point: &Path) -> Result<Scope, SystemdError> {
        let (slice, unit) = names(cgroups_path)?;
        let failed = |source| SystemdError::Bus { unit: unit.clone(), source };
        let mut bus = Bus::connect().map_err(failed)?;
        let child = Waiting::new()?;
        let properties: [Property; 10] = [
            ("Description", Value::Text(format!("{} container {id}", super::NAME))),
            ("Slice", Value::Text(slice)),
            ("Delegate", Value::Bool(true)),
            ("MemoryAccounting", Value::Bool(true)),
            ("CPUAccounting", Value::Bool(true)),
            ("IOAccounting", Value::Bool(true)),
            ("TasksAccounting", Value::Bool(true)),
            ("DefaultDependencies", Value::Bool(false)),
            // A process killed for memory makes the scope a failed one, which would stay for ever.
            ("CollectMode", Value::Text("inactive-or-failed".into())),
            ("PIDs", Value::Pids(vec![child.0 as u32])),
        ];
        let begun = Instant::now();
        loop {
            match bus.start_transient_unit(&unit, &properties) {
                Ok(()) => break,
                Err(err) if err.is("org.freedesktop.systemd1.UnitExists") && begun.elapsed() < SAME_NAME => {
                    // Fails where it is not a failed one.
                    let _ = bus.reset_failed_unit(&unit);
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(err) => return Err(failed(err)),
            }
        }
        while begun.elapsed() < PATIENCE {
            if let Some(path) = cgroup_of(child.0).filter(|p| p.file_name().is_some_and(|n| n == unit.as_str())) {
                let initial = limits(&mount_point.join(path.strip_prefix("/").unwrap_or(&path)));
                return Ok(Scope { unit, path, initial, child });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // It may still come; nothing is left in it once the child has ended.
        let _ = bus.stop_unit(&unit);
        Err(SystemdError::Slow { what: "started", unit })
    }

    /// Ends the child: the container's first process is in the scope now. Tells systemd the limits of its cgroup, `dir`.
    pub fn hand_over(self, dir: &Path) -> Result<(), SystemdError> {
        let Scope { unit, initial, child, .. } = self;
        drop(child);
        let changed: Vec<Property> = limits(dir).into_iter().filter(|limit| !initial.contains(limit)).collect();
        tell_limits(&unit, &changed)
    }
}

/// Process `pid`'s v2 cgroup.
fn cgroup_of(pid: i32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
}

/// A child that does nothing and ends with this value, or with this process.
#[derive(Debug)]
struct Waiting(i32);

impl Waiting {
    fn new() -> Result<Waiting, SystemdError> {
        let parent = rustix::process::getpid();
        match fork()? {
            Fork::Parent(pid) => Ok(Waiting(pid)),
            Fork::Child => {
                let set = attributes::set_parent_death_signal(libc::SIGKILL);
                if set.is_err() || rustix::process::getppid() != Some(parent) {
                    exit_now(1);
                }
                loop {
                    std::thread::sleep(Duration::from_secs(3600));
                }
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A child that is not reaped keeps its pid. If killing fails, waiting would be for ever.
        let killed = crate::sys::proc::PidFd::of(self.0).and_then(|child| child.send(libc::SIGKILL));
        if killed.is_ok() {
            let _ = wait(self.0, true);
        }
    }
}

/// The scope's name, if the cgroup at `dir` is a scope's.
fn unit_of(dir: &Path) -> Option<&str> {
    dir.file_name()?.to_str().filter(|name| name.ends_with(".scope"))
}

/// Tells systemd the limits that the files of the scope's cgroup have now.
pub fn follow(dir: &Path) -> Result<(), SystemdError> {
    match unit_of(dir) {
        Some(unit) => tell_limits(unit, &limits(dir)),
        None => Ok(()),
    }
}

fn tell_limits(unit: &str, properties: &[Property]) -> Result<(), SystemdError> {
    if properties.is_empty() {
        return Ok(());
    }
    let failed = |source| SystemdError::Bus { unit: unit.to_owned(), source };
    Bus::connect().and_then(|mut bus| bus.set_unit_properties(unit, properties)).map_err(failed)
}

/// Stops the scope whose cgroup is, or was, at `dir`, and waits until systemd has forgotten it. All processes have ended.
pub fn stop(dir: &Path) -> Result<(), SystemdError> {
    let Some(unit) = unit_of(dir) else { return Ok(()) };
    let failed = |source| SystemdError::Bus { unit: unit.to_owned(), source };
    let is_gone = |err: &BusError| err.is("org.freedesktop.systemd1.NoSuchUnit");
    let mut bus = Bus::connect().map_err(failed)?;
    match bus.stop_unit(unit) {
        Err(err) if is_gone(&err) => return Ok(()),
        stopped => stopped.map_err(failed)?,
    }
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    while begun.elapsed() < PATIENCE {
        match bus.get_unit(unit) {
            Err(err) if is_gone(&err) => return Ok(()),
            there => there.map_err(failed)?,
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    Err(SystemdError::Slow { what: "stopped", unit: unit.to_owned() })
}

/// The properties that stand for the files of the cgroup at `dir`.
fn limits(dir: &Path) -> Vec<Property> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).map(|text| text.trim().to_owned()).ok();
    let number = |text: &str| if text == "max" { Some(u64::MAX) } else { text.parse().ok() };
    let mut list = Vec::new();
    for (file, property) in [
        ("memory.max", "MemoryMax"),
        ("memory.high", "MemoryHigh"),
        ("memory.low", "MemoryLow"),
        ("memory.swap.max", "MemorySwapMax"),
        ("cpu.weight", "CPUWeight"),
        ("pids.max", "TasksMax"),
    ] {
        // A host may lack the controller. With cpu.idle, the weight reads as 0, which is none.
        let value = read(file).as_deref().and_then(number).filter(|v| property != "CPUWeight" || *v > 0);
        list.extend(value.map(|value| (property, Value::U64(value))));
    }
    if let Some((quota, period)) = read("cpu.max").as_deref().and_then(|text| text.split_once(' '))
        && let (Some(quota), Some(period)) = (number(quota), period.parse::<u64>().ok().filter(|p| *p > 0))
    {
        list.push(("CPUQuotaPerSecUSec", Value::U64(per_second(quota, period))));
        list.push(("CPUQuotaPeriodUSec", Value::U64(period)));
    }
    for (file, property) in [("cpuset.cpus", "AllowedCPUs"), ("cpuset.mems", "AllowedMemoryNodes")] {
        let mask = read(file).as_deref().and_then(bitmask);
        list.extend(mask.map(|mask| (property, Value::Bytes(mask))));
    }
    list
}

/// Microseconds of CPU time a second. systemd keeps whole percents, so it is rounded up to one, as runc does: what a
/// reload sets must not be less than what was asked for.
fn per_second(quota: u64, period: u64) -> u64 {
    const PERCENT: u128 = 10_000;
    if quota == u64::MAX {
        return u64::MAX;
    }
    let exact = u128::from(quota) * 1_000_000 / u128::from(period);
    u64::try_from(exact.div_ceil(PERCENT) * PERCENT).unwrap_or(u64::MAX)
}

/// A list like `0-2,5` as bits, the lowest first; `None` if it is no such list.
fn bitmask(list: &str) -> Option<Vec<u8>> {
    const MOST: usize = 1 << 16;
    let mut mask: Vec<u8> = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= MOST {
            return None;
        }
        for bit in first..=last {
            mask.resize(mask.len().max(bit / 8 + 1), 0);
            mask[bit / 8] |= 1 << (bit % 8);
        }
    }
    Some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let ok = |path: &str| names(path).unwrap();
        assert_eq!(ok("system.slice:docker:ab"), ("system.slice".into(), "docker-ab.scope".into()));
        assert_eq!(ok(":agentsbx:c"), ("system.slice".into(), "agentsbx-c.scope".into()));
        assert_eq!(ok("kube-pod1.slice:cri:x"), ("kube-pod1.slice".into(), "cri-x.scope".into()));
        assert_eq!(ok("a.slice::x"), ("a.slice".into(), "x.scope".into()));
        for bad in ["", "/a/b", "a:b", "a.slice:p:", "a:p:n", "a.slice:p:n.slice", "a.slice:p:../n", "a.slice:p:n:m"] {
            assert!(names(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_are_those_of_the_files() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            crate::durable::replace_unsynced(&dir.path().join(name), text.as_bytes(), 0o644).unwrap();
        };
        for (name, text) in [
            ("memory.max", "max\n"),
            ("memory.low", "0\n"),
            ("cpu.weight", "0\n"),
            ("cpu.max", "max 100000\n"),
            ("cpuset.cpus", "\n"),
        ] {
            put(name, text);
        }
        assert_eq!(
            limits(dir.path()),
            [
                ("MemoryMax", Value::U64(u64::MAX)),
                ("MemoryLow", Value::U64(0)),
                ("CPUQuotaPerSecUSec", Value::U64(u64::MAX)),
                ("CPUQuotaPeriodUSec", Value::U64(100_000)),
                ("AllowedCPUs", Value::Bytes(vec![])),
            ]
        );
        for (name, text) in
            [("memory.max", "200\n"), ("pids.max", "5\n"), ("cpu.max", "75111 50000\n"), ("cpuset.cpus", "0-1,9\n")]
        {
            put(name, text);
        }
        assert_eq!(
            limits(dir.path()),
            [
                ("MemoryMax", Value::U64(200)),
                ("MemoryLow", Value::U64(0)),
                ("TasksMax", Value::U64(5)),
                ("CPUQuotaPerSecUSec", Value::U64(1_510_000)),
                ("CPUQuotaPeriodUSec", Value::U64(50_000)),
                ("AllowedCPUs", Value::Bytes(vec![3, 2])),
            ]
        );
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(bitmask("").unwrap(), Vec::<u8>::new());
        assert_eq!(bitmask("0").unwrap(), [1]);
        assert_eq!(bitmask("7-8").unwrap(), [0x80, 1]);
        assert_eq!(bitmask("0-99999999999"), None);
        assert_eq!(bitmask("x"), None);
    }

    #[test]
    fn only_scopes_have_units() {
        assert_eq!(unit_of(Path::new("/sys/fs/cgroup/system.slice/docker-a.scope")), Some("docker-a.scope"));
        assert_eq!(unit_of(Path::new("/sys/fs/cgroup/docker/a")), None);
    }
}
