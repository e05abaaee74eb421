//! Processes of an exec that left its group: where a container can write to its cgroups, they can move themselves beside the
//! exec's, and would outlive it.
//!
//! They are known by the layer: it is mounted in the exec's own mount namespace (and in those that were made from it) and
//! nowhere else.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::ExecError;
use crate::id::LayerId;
use crate::runtime::cgroup::CgroupDir;
use crate::runtime::members::{self, Killed};
use crate::sys::proc::{self, PidFd};

/// Where an exec's processes may have gone, and how they are told from others.
#[derive(Debug)]
pub struct Strays {
    groups: Vec<PathBuf>,
    layer: String,
}

impl Strays {
    /// Of an exec with this layer, in a container with these groups.
    pub fn new(container: &[CgroupDir], layer: &LayerId) -> Strays {
        Strays { groups: container.iter().map(|dir| dir.path.clone()).collect(), layer: layer.to_string() }
    }

    /// Kills those that there are and waits until they are gone, at most `patience`.
    pub fn kill(&self, patience: Duration, mut note: impl FnMut(i32)) -> Result<Killed, ExecError> {
        let mut killed = Killed::default();
        let begun = Instant::now();
        let mut known = Vec::new();
        loop {
            let found = self.find()?;
            let Some((first, _)) = found.first() else { return Ok(Killed { left: None, ..killed }) };
            if begun.elapsed() > patience {
                return Ok(Killed { left: Some(*first), ..killed });
            }
            for (pid, pidfd) in &found {
                if !known.contains(pid) {
                    note(*pid);
                    known.push(*pid);
                }
                // One that has ended meanwhile is not found again.
                let _ = pidfd.send(libc::SIGKILL);
            }
            killed.seen = known.len() as u32;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn find(&self) -> Result<Vec<(i32, PidFd)>, ExecError> {
        let listed = members::pids(&self.groups)?;
        // Opened first: then it is the one that is looked at, or one that has ended.
        let open = listed.into_iter().filter_map(|pid| Some((pid, PidFd::of(pid).ok()?)));
        Ok(open.filter(|(pid, _)| self.sees_layer(*pid)).collect())
    }

    fn sees_layer(&self, pid: i32) -> bool {
        // Of one that has ended there is nothing to be read.
        let mounts = proc::read(Path::new(&format!("/proc/{pid}/mountinfo"))).unwrap_or_default();
        has_upper(&mounts, &self.layer)
    }
}

/// Whether an overlay of a mountinfo file has the layer as its upper directory.
fn has_upper(mountinfo: &[u8], layer: &str) -> bool {
    // A copy-on-write mount has a directory in there.
    let (upper, within) = (format!("/{layer}/upper"), format!("/{layer}/upper/"));
    let has = |text: &[u8], part: &str| text.windows(part.len()).any(|w| w == part.as_bytes());
    let upper_of = |line: &[u8]| {
        let at = line.windows(10).position(|w| w == b",upperdir=")? + 10;
        let path = line[at..].split(|b| *b == b',').next()?;
        Some(path.ends_with(upper.as_bytes()) || has(path, &within))
    };
    mountinfo.split(|b| *b == b'\n').any(|line| upper_of(line).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layer_is_found_as_an_upper_directory_only() {
        let line = |options: &str| format!("40 2 0:30 / / rw,relatime - overlay overlay rw,{options}\n");
        for (text, found) in [
            (line("lowerdir=/s/layers/B/upper:/r,upperdir=/s/layers/A/upper,workdir=/s/layers/A/work"), true),
            (line("lowerdir=/s/layers/A/upper,upperdir=/s/layers/B/upper,workdir=/s/layers/B/work"), false),
            (line("lowerdir+=/r,upperdir=/proc/self/fd/7/../../../A/upper/data,volatile"), true),
            (line("lowerdir+=/r,upperdir=A/upper,volatile"), false),
            ("22 1 8:1 / / rw - ext4 /dev/sda rw\n".to_owned(), false),
        ] {
            assert_eq!(has_upper(text.as_bytes(), "A"), found, "{text}");
        }
    }

    #[test]
    fn nobody_is_killed_who_does_not_see_the_layer() {
        let dir = tempfile::tempdir().unwrap();
        let me = std::process::id();
        crate::durable::replace_unsynced(&dir.path().join("cgroup.procs"), format!("{me}\n").as_bytes(), 0o600)
            .unwrap();
        let group = CgroupDir { controllers: String::new(), path: dir.path().to_owned() };
        let strays = Strays::new(&[group], &LayerId::new());
        assert_eq!(strays.kill(Duration::ZERO, |_| panic!("noted")).unwrap(), Killed::default());
    }
}
