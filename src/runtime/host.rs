//! What a policy has to know of the host before it hardens a configuration, looked up.

use std::path::Path;

use super::cgroup::Hierarchy;
use crate::policy::Host;
use crate::spec::Config;
use crate::sys::{landlock, proc};

/// The facts about cgroups and Landlock for the container of `engine`.
pub fn look(engine: &Config, all: &[Hierarchy]) -> Host {
    let path = engine.cgroups_path().unwrap_or_default();
    Host {
        landlock: landlock::version(),
        swap_accounting: counts_swap(all),
        cpu_ceiling: cpu_ceiling(Path::new(&path), all),
        ..Host::default()
    }
}

/// Whether the memory controller can limit what is swapped out. Its file is in every group but v2's root.
fn counts_swap(all: &[Hierarchy]) -> bool {
    let there = |dir: &Path, file: &str| dir.join(file).exists();
    match all.iter().find(|h| h.controllers.split(',').any(|c| c == "memory")) {
        Some(v1) => there(&v1.mount_point, "memory.memsw.limit_in_bytes"),
        None => all.iter().filter(|h| h.controllers.is_empty()).any(|v2| {
            let groups = std::fs::read_dir(&v2.mount_point).into_iter().flatten().flatten();
            there(&v2.mount_point, "memory.swap.max") || groups.into_iter().any(|g| there(&g.path(), "memory.swap.max"))
        }),
    }
}

/// How many processors' worth of time a new group at `path` can be given at most on v1; none: no limit, or no v1.
fn cpu_ceiling(path: &Path, all: &[Hierarchy]) -> Option<f64> {
    let cpu = all.iter().find(|h| h.controllers.split(',').any(|c| c == "cpu"))?;
    let group = cpu.mount_point.join(path.strip_prefix("/").unwrap_or(path));
    let number = |dir: &Path, file: &str| proc::read_text(&dir.join(file)).ok()?.trim().parse::<i64>().ok();
    let above = group.ancestors().skip(1).take_while(|dir| dir.starts_with(&cpu.mount_point));
    let ceilings = above.filter_map(|dir| {
        let (quota, period) = (number(dir, "cpu.cfs_quota_us")?, number(dir, "cpu.cfs_period_us")?);
        (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
    });
    ceilings.reduce(f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::replace_unsynced;

    #[test]
    fn the_lowest_quota_above_is_the_ceiling() {
        let top = tempfile::tempdir().unwrap();
        let all = [Hierarchy { controllers: "cpu".into(), mount_point: top.path().into(), root: "/".into() }];
        let set = |dir: &str, quota: &str| {
            let dir = top.path().join(dir);
            std::fs::create_dir_all(&dir).unwrap();
            replace_unsynced(&dir.join("cpu.cfs_quota_us"), quota.as_bytes(), 0o600).unwrap();
            replace_unsynced(&dir.join("cpu.cfs_period_us"), b"100000\n", 0o600).unwrap();
        };
        set("", "-1\n");
        set("a", "150000\n");
        set("a/b", "300000\n");
        assert_eq!(cpu_ceiling(Path::new("/a/b/c"), &all), Some(1.5));
        assert_eq!(cpu_ceiling(Path::new("/a"), &all), None);
        assert_eq!(cpu_ceiling(Path::new("/none/here"), &all), None);
        // The group itself has no say in what it is given.
        set("c", "10000\n");
        assert_eq!(cpu_ceiling(Path::new("/c"), &all), None);
    }

    #[test]
    fn swap_accounting_is_seen_by_its_file() {
        let top = tempfile::tempdir().unwrap();
        for (controllers, file) in [("memory", "memory.memsw.limit_in_bytes"), ("", "group/memory.swap.max")] {
            let all = [Hierarchy { controllers: controllers.into(), mount_point: top.path().into(), root: "/".into() }];
            assert!(!counts_swap(&all));
            std::fs::create_dir_all(top.path().join("group")).unwrap();
            replace_unsynced(&top.path().join(file), b"max\n", 0o600).unwrap();
            assert!(counts_swap(&all));
        }
        assert!(!counts_swap(&[]));
    }
}
