//! User namespaces of more than one range of ids.
//!
//! libcontainer writes one range itself. For more it runs `newuidmap` and `newgidmap`, which are for users without
//! privileges: they want the host's root to have such ranges in `/etc/subuid`, and whether they refuse is not looked at. So
//! where root makes the container this program stands in their place, and writes what it is told.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::error::{On, RuntimeError};
use super::state::Record;
use crate::error::errno_text;
use crate::spec::Config;
use crate::sys::userns::{self, IdRange};
use crate::sys::{mount, process};

/// The programs that libcontainer looks for, with the file that each writes and the configuration's name for its content.
const PROGRAMS: [(&str, &str, &str); 2] =
    [("newuidmap", "uid_map", "uidMappings"), ("newgidmap", "gid_map", "gidMappings")];

/// Names the inherited descriptor that takes the text of a failure.
pub const REPORT: &str = "AGENTSBX_MAP_REPORT";

/// The directory of the programs in the container's state directory.
const DIR: &str = "idmap";

/// While it lives, libcontainer finds this program where it looks for the two.
#[derive(Debug)]
pub struct StandIn {
    path: Option<OsString>,
    // What PATH names, close-on-exec: the programs are found before it is closed.
    _dir: OwnedFd,
}

impl StandIn {
    /// Where one is needed: for a user namespace that is made by root, with more than one range of users or of groups.
    /// `report` is an inherited descriptor that takes what fails. The process must be single-threaded.
    pub fn of(record: &Record, config: &Config, report: RawFd) -> Result<Option<StandIn>, RuntimeError> {
        let ranges = |name: &str| config.value()["linux"][name].as_array().map_or(0, Vec::len);
        let makes_one = config.namespaces().iter().any(|(kind, path)| kind == "user" && path.is_none());
        if !makes_one || !rustix::process::geteuid().is_root() || PROGRAMS.iter().all(|(.., name)| ranges(name) < 2) {
            return Ok(None);
        }
        let dir = record.dir.join(DIR);
        std::fs::create_dir(&dir).on("make directory", &dir)?;
        for (program, ..) in PROGRAMS {
            let link = dir.join(program);
            symlink("/proc/self/exe", &link).on("make link", &link)?;
        }
        // By its descriptor: the path may have a colon in it.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&dir, flags, Mode::empty()).on("open", &dir)?;
        let path = mount::fd_path(fd.as_fd());
        process::replace_env(REPORT, Some(OsStr::new(&report.to_string())));
        Ok(Some(StandIn { path: process::replace_env("PATH", Some(OsStr::new(&path))), _dir: fd }))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        process::replace_env(REPORT, None);
        process::replace_env("PATH", self.path.as_deref());
    }
}

/// Does the work of `newuidmap` or `newgidmap`, where `argv` (the program's name first) calls this program so. `report` is
/// what the variable [`REPORT`] says. Whether it could; none where it is called otherwise.
pub fn stand_in(argv: &[OsString], report: impl FnOnce() -> Option<OsString>) -> Option<bool> {
    let (program, arguments) = argv.split_first()?;
    let name = Path::new(program).file_name()?;
    let (_, file, field) = PROGRAMS.iter().find(|(program, ..)| name == *program)?;
    let report: RawFd = report()?.to_str()?.parse().ok().filter(|fd| *fd > 2)?;
    let written = write(Path::new("/proc"), file, arguments);
    if let Err(why) = &written {
        let report = process::borrow_for_life(report);
        // The other program may have failed, too.
        let more = rustix::fs::fstat(report).is_ok_and(|stat| stat.st_size > 0);
        let text = format!("{}linux.{field}: {why}", if more { "; " } else { "" });
        // The exit code still says that it failed.
        let _ = rustix::io::write(report, text.as_bytes());
    }
    Some(written.is_ok())
}

/// `arguments` are a pid, then for each range its first id inside, its first id outside, its size.
fn write(proc: &Path, file: &str, arguments: &[OsString]) -> Result<(), String> {
    let numbers: Option<Vec<u32>> = arguments.iter().map(|word| word.to_str()?.parse().ok()).collect();
    let numbers = numbers.ok_or("no numbers")?;
    let (pid, ranges) = numbers.split_first().ok_or("no process")?;
    let (ranges, rest) = ranges.as_chunks::<3>();
    if !rest.is_empty() {
        return Err("a range of less than three numbers".to_owned());
    }
    let ranges: Vec<_> = ranges.iter().map(|&[inside, outside, size]| IdRange { inside, outside, size }).collect();
    let text: String = ranges.iter().map(|range| format!("{range}\n")).collect();
    let path: PathBuf = proc.join(pid.to_string()).join(file);
    let opened = OpenOptions::new().write(true).open(&path);
    // The kernel takes all of them at once, and once.
    opened.and_then(|mut map| map.write_all(text.as_bytes())).map_err(|err| {
        // Ranges that it never takes have been refused before.
        let long = err.raw_os_error() == Some(libc::EINVAL) && text.len() >= rustix::param::page_size();
        let hint = if long {
            format!(": written out they have {} bytes, and a page of memory is not enough: take fewer", text.len())
        } else {
            String::new()
        };
        format!("the kernel refuses the ranges ({}): {}{hint}", userns::shown(&ranges), errno_text(&err))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn ranges_are_written_at_once() {
        let proc = tempfile::tempdir().unwrap();
        let file = proc.path().join("7/uid_map");
        std::fs::create_dir(proc.path().join("7")).unwrap();
        crate::durable::replace_unsynced(&file, b"", 0o600).unwrap();
        write(proc.path(), "uid_map", &words("7 0 0 10 10 1000 65535")).unwrap();
        assert_eq!(std::fs::read_to_string(file).unwrap(), "0 0 10\n10 1000 65535\n");
        for wrong in ["8 0 0 1", "x", "7 0 0 -1", "7 0 0"] {
            assert!(write(proc.path(), "uid_map", &words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_by_their_names_and_for_us() {
        assert_eq!(stand_in(&words("/usr/bin/agentsbx list"), || Some("3".into())), None);
        for report in [None, Some("2"), Some("x")] {
            assert_eq!(stand_in(&words("/x/newuidmap 1 0 0 1"), || report.map(OsString::from)), None, "{report:?}");
        }
        assert_eq!(stand_in(&[], || Some("3".into())), None);
    }
}
