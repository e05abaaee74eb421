//! What a containerd's tasks may leave behind, by listing: shims, mounts, cgroups, FIFOs, sockets, temporary files, state
//! of the runtime, layers in the store.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::daemon::{Containerd, Shim, processes};
use crate::support::Cmd;

/// All that is there, as lines `what: which`.
pub fn census(containerd: &Containerd) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut put = |what: &str, which: String| {
        found.insert(format!("{what}: {which}"));
    };
    for mount in crate::support::engines::mounts_below(&containerd.run) {
        put("mount", mount);
    }
    for hierarchy in lines(Cmd::new("find").args(["/sys/fs/cgroup", "-maxdepth", "1", "-mindepth", "1", "-type", "d"]))
    {
        let parent = format!("{hierarchy}{}", containerd.cgroup);
        if Path::new(&parent).is_dir() {
            lines(Cmd::new("find").arg(&parent).args(["-mindepth", "1", "-type", "d"]))
                .into_iter()
                .for_each(|line| put("cgroup", line));
        }
    }
    // Bundles, FIFOs, temporary files. A namespace's own directory stays.
    let bundles = containerd.bundle("").display().to_string();
    let files = lines(Cmd::new("find").arg(&containerd.run).args(["-printf", "%y %p\\n"]));
    let files = files.into_iter().filter(|line| bundles.trim_end_matches('/') != &line[2..]);
    files.for_each(|line| put("file", line));
    for root in ["/run/containerd/runc", "/run/containerd/agentsbx"] {
        let root = Path::new(root).join(&containerd.namespace);
        if root.is_dir() {
            let inside = lines(Cmd::new("find").arg(&root).args(["-mindepth", "1"]));
            // Compiled filters are kept for the next container.
            inside.into_iter().filter(|path| !path.contains("/@seccomp")).for_each(|line| put("state", line));
        }
    }
    for entry in fs::read_dir(containerd.store.join("layers")).into_iter().flatten() {
        put("layer", entry.expect("readdir").path().display().to_string());
    }
    let run = containerd.run.display().to_string();
    for (pid, line) in processes() {
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let ours = line.contains("shim") && line.contains(&containerd.namespace);
        let calls = line.contains(&run) && !line.contains("containerd.toml") && !line.contains("/bin/ctr ");
        if ours || calls || groups.lines().any(|group| group.contains(&format!("{}/", containerd.cgroup))) {
            put("process", format!("{pid} {line}"));
        }
    }
    found
}

/// The file of the socket that the shim of a container has, from 1.6 on: its name is a digest. Ours tells itself apart from
/// others.
pub fn socket_file(containerd: &Containerd, id: &str) -> std::path::PathBuf {
    let mut address = containerd.run.join("containerd.sock").join(&containerd.namespace).join(id);
    if Shim::under_test() == Shim::Ours {
        address.push("agentsbx");
    }
    let digest = Sha256::digest(address.as_os_str().as_encoded_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new("/run/containerd/s").join(hex)
}

/// Asserts that what is there is what was there `before`; what ends by itself may take 15 seconds for it.
#[track_caller]
pub fn assert_unchanged(containerd: &Containerd, before: &BTreeSet<String>, when: &str) {
    let begun = Instant::now();
    loop {
        let now = census(containerd);
        let came: Vec<_> = now.difference(before).collect();
        if came.is_empty() {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(15), "{when}: left behind: {came:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Asserts that nothing is left of any task.
#[track_caller]
pub fn assert_empty(containerd: &Containerd) {
    let begun = Instant::now();
    loop {
        let all = census(containerd);
        let bundles =
            format!("{}/containerd/io.containerd.runtime.v2.task/{}/", containerd.run.display(), containerd.namespace);
        let fifos = format!("{}/fifo/", containerd.run.display());
        let temporary = format!("{}/tmp/", containerd.run.display());
        let left: Vec<_> = all
            .iter()
            .filter(|line| {
                !line.starts_with("file: ") || [&bundles, &fifos, &temporary].iter().any(|dir| line.contains(*dir))
            })
            .collect();
        if left.is_empty() {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(15), "left behind: {left:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn lines(cmd: Cmd) -> Vec<String> {
    cmd.run().stdout.lines().map(str::to_owned).collect()
}
