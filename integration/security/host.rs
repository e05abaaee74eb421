//! What of the host must be as it was, whatever a container has done.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::walk::{Tree, walk};
use crate::support::{Env, env::unique};

/// Files of the kernel that a breakout would change.
const KNOBS: &[&str] = &[
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/poweroff_cmd",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/vm/panic_on_oom",
    "/sys/kernel/uevent_helper",
];

/// A directory beside the bundles that no container was ever given, and the state of the host's knobs.
#[derive(Debug)]
pub struct Canary {
    /// The directory.
    pub dir: PathBuf,
    /// The name of the file in it: nowhere else is one of that name.
    pub name: String,
    /// What that file has in it.
    pub secret: String,
    tree: Tree,
    knobs: BTreeMap<&'static str, String>,
}

fn knobs() -> BTreeMap<&'static str, String> {
    KNOBS.iter().filter_map(|path| Some((*path, fs::read_to_string(path).ok()?))).collect()
}

impl Canary {
    /// Puts one into an environment's directory.
    pub fn new(env: &Env) -> Canary {
        let name = unique("canary");
        let dir = env.dir.join(format!("host-of-{name}"));
        let secret = format!("secret of the host: {name} {}", std::process::id());
        fs::create_dir_all(dir.join("sub")).expect("mkdir");
        fs::write(dir.join(&name), format!("{secret}\n")).expect("write");
        fs::write(dir.join("sub/file"), "a file of the host\n").expect("write");
        let tree = walk(&dir);
        Canary { dir, name, secret, tree, knobs: knobs() }
    }

    /// Asserts that nothing of it was changed, and that none of these texts shows it.
    #[track_caller]
    pub fn assert_untouched(&self, texts: &[&str]) {
        assert_eq!(walk(&self.dir), self.tree, "the host's files");
        assert_eq!(knobs(), self.knobs, "the host's knobs");
        for text in texts {
            assert!(!text.contains(&self.secret), "the host's secret is shown: {text}");
        }
    }
}

/// The lines of the host's own mount table that have this directory in them.
pub fn mounts_below(dir: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("read mountinfo");
    let dir = dir.display().to_string();
    table.lines().filter(|line| line.contains(&dir)).map(str::to_owned).collect()
}
