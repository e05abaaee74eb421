//! Files of an exec that have no name any more and still take space: open in one of its processes, or mapped.
//!
//! They are found by the links of `/proc/PID/fd` and `/proc/PID/map_files`, whose text the kernel makes without asking a
//! filesystem. One that is only in a message on its way through a socket is not found.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags};

use crate::sys::proc;

/// What the kernel puts behind a path that is not there any more.
const GONE: &[u8] = b" (deleted)";

/// The bytes that unlinked files on the overlays of `processes` take.
pub fn bytes(processes: &[i32]) -> u64 {
    let mut seen = HashSet::new();
    processes
        .iter()
        .map(|pid| {
            let overlays = overlays(*pid);
            bytes_of(*pid, &mut seen, &|stat| overlays.contains(&stat.stx_mnt_id))
        })
        .sum()
}

/// The mounts of overlays that a process sees.
fn overlays(pid: i32) -> HashSet<u64> {
    let text = proc::read(format!("/proc/{pid}/mountinfo").as_ref()).unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n').filter(|line| line.windows(11).any(|w| w == b" - overlay "));
    lines.filter_map(|line| str::from_utf8(line.split(|b| *b == b' ').next()?).ok()?.parse().ok()).collect()
}

/// The bytes that unlinked regular files of process `pid` take, of those that `counts`, each once.
pub(super) fn bytes_of(pid: i32, seen: &mut HashSet<(u32, u32, u64)>, counts: &dyn Fn(&Statx) -> bool) -> u64 {
    let mut sum = 0;
    for links in ["fd", "map_files"] {
        let path = format!("/proc/{pid}/{links}");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A process that has ended holds nothing.
        let Ok(dir) = rustix::fs::open(&path, flags, Mode::empty()) else { continue };
        let Ok(entries) = Dir::read_from(&dir) else { continue };
        for entry in entries.flatten() {
            let Some(stat) = unlinked(&dir, OsStr::from_bytes(entry.file_name().to_bytes())) else { continue };
            let id = (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
            if counts(&stat) && seen.insert(id) {
                sum += stat.stx_blocks.saturating_mul(512);
            }
        }
    }
    sum
}

/// The state of the file behind a link, if that is an unlinked regular one. A remote filesystem is not asked.
fn unlinked(dir: &OwnedFd, name: &OsStr) -> Option<Statx> {
    let target = rustix::fs::readlinkat(dir.as_fd(), name, Vec::new()).ok()?;
    target.to_bytes().ends_with(GONE).then_some(())?;
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let stat = rustix::fs::statx(dir.as_fd(), name, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    let is_file = FileType::from_raw_mode(stat.stx_mode.into()).is_file();
    (is_file && stat.stx_nlink == 0).then_some(stat)
}
