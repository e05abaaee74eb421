//! A census of everything that an exec could leave: compared before and after, entry by entry.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::leaks::REAPERS_CHILD;
use crate::support::Cmd;
use crate::support::Env;
use crate::support::bundle::Bundle;
use crate::support::env::process;

/// All that was there, as lines `what: which`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census(BTreeSet<String>);

impl Census {
    /// Of one running container, its state, and its store but for the database.
    pub fn of(env: &Env, bundle: &Bundle) -> Census {
        let mut found = BTreeSet::new();
        let mut put = |what: &str, which: String| {
            found.insert(format!("{what}: {which}"));
        };
        let pid = bundle.state()["pid"].as_u64().expect("the first process's pid");
        for line in of_host(&env.dir, &env.root) {
            put("mount of the host", line);
        }
        for line in read(&format!("/proc/{pid}/mountinfo")).lines() {
            put("mount of the container", line.to_owned());
        }
        let group = format!("*{}/{}*", process().cgroup, bundle.id);
        for line in lines(Cmd::new("find").args(["/sys/fs/cgroup", "-type", "d", "-path", &group])) {
            put("cgroup", line);
        }
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).expect("the first process's descriptors") {
            let link = fs::read_link(entry.expect("readdir").path()).unwrap_or_default();
            put("descriptor of the first process", link.display().to_string());
        }
        for dir in [&env.root, &env.store, &bundle.dir] {
            let mut find = Cmd::new("find").arg(dir);
            // The root filesystem is what execs are there to change; databases are files of any size.
            find =
                find.args(["(", "-path", "*/rootfs", "-o", "-path", "*/upper", "-o", "-path", "*/work", ")", "-prune"]);
            for line in lines(find.args(["-o", "-printf", "%y %p\\n"])) {
                put("file", line);
            }
        }
        for (n, process) in processes(&env.root, &format!("{}/{}", process().cgroup, bundle.id)).into_iter().enumerate()
        {
            put("process", format!("{n}th {process}"));
        }
        let keyrings = read("/proc/keys").lines().filter(|line| line.contains(&format!("_ses.{}:", bundle.id))).count();
        put("keyrings", keyrings.to_string());
        for line in read("/proc/net/unix").lines().filter(|l| l.contains(&env.root.display().to_string())) {
            put("socket", line.rsplit(' ').next().unwrap_or_default().to_owned());
        }
        Census(found)
    }

    /// The same once it is at rest: keyrings go a moment after their last user.
    pub fn at_rest(env: &Env, bundle: &Bundle) -> Census {
        let mut last = Census::of(env, bundle);
        loop {
            std::thread::sleep(Duration::from_millis(400));
            let now = Census::of(env, bundle);
            if now == last {
                return now;
            }
            last = now;
        }
    }

    /// Asserts that nothing came and nothing went since `before`. What ends by itself may take ten seconds for it.
    #[track_caller]
    pub fn assert_unchanged(env: &Env, bundle: &Bundle, before: &Census, when: &str) {
        Census::assert_unchanged_but(env, bundle, before, when, |_| ());
    }

    /// The same without what `forget` takes out of a census.
    #[track_caller]
    pub fn assert_unchanged_but(env: &Env, bundle: &Bundle, before: &Census, when: &str, forget: impl Fn(&mut Census)) {
        let begun = Instant::now();
        loop {
            let mut now = Census::of(env, bundle);
            forget(&mut now);
            if now == *before {
                return;
            }
            if begun.elapsed() > Duration::from_secs(10) {
                let came: Vec<_> = now.0.difference(&before.0).take(20).collect();
                let went: Vec<_> = before.0.difference(&now.0).take(20).collect();
                panic!("{when}: left behind: {came:#?}\ngone: {went:#?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// What there is of a container that was deleted: nothing, it is asserted.
#[track_caller]
pub fn assert_gone(env: &Env, id: &str) {
    assert_eq!(of_host(&env.dir, &env.root), Vec::<String>::new(), "mounts");
    assert!(!env.root.join(id).exists(), "state");
    let group = format!("*{}/{id}*", process().cgroup);
    let groups = || lines(Cmd::new("find").args(["/sys/fs/cgroup", "-type", "d", "-path", &group]));
    assert_eq!(groups(), Vec::<String>::new(), "cgroups");
    let begun = Instant::now();
    loop {
        let left = processes(&env.root, &format!("{}/{id}", process().cgroup));
        if left.is_empty() {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(2), "processes: {left:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn of_host(dir: &Path, root: &Path) -> Vec<String> {
    let ours = |line: &&str| [dir, root].iter().any(|dir| line.contains(&format!("{}/", dir.display())));
    read("/proc/self/mountinfo").lines().filter(ours).map(str::to_owned).collect()
}

/// Processes that are in the group, or have the runtime's root among their arguments or in their environment, zombies too.
fn processes(root: &Path, group: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("list /proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line == REAPERS_CHILD {
            continue;
        }
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        let groups = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let root = root.as_os_str().as_bytes();
        if groups.lines().any(|l| l.contains(&format!("{group}/")) || l.ends_with(group))
            || [&line, &environ].iter().any(|text| text.windows(root.len()).any(|part| part == root))
        {
            found.push(match line.is_empty() {
                true => format!("zombie {pid}"),
                false => String::from_utf8_lossy(&line).replace('\0', " "),
            });
        }
    }
    found.sort();
    found
}

fn read(path: &str) -> String {
    // Bytes of any kind may be in a mount's options.
    String::from_utf8_lossy(&fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"))).into_owned()
}

fn lines(cmd: Cmd) -> Vec<String> {
    cmd.run().stdout.lines().map(str::to_owned).collect()
}

impl Census {
    /// Leaves out which layers there are.
    pub fn forget_layers(&mut self) {
        self.0.retain(|line| !line.contains("/store/layers/"));
    }

    /// Leaves out which results there are, and scratch files of tests.
    pub fn forget_results(&mut self) {
        self.0.retain(|line| !["/agentsbx/execs/", ".pid", ".out"].iter().any(|part| line.contains(part)));
    }
}
