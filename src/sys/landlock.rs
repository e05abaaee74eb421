//! Landlock: a process fences itself and its children in; there is no way back.
//!
//! Two things come of it. Processes of different fences cannot look into each other: ptrace(2), and what `/proc/PID` has
//! for who may trace (`root`, `cwd`, `fd`, `mem`, `environ`), are refused, whatever their user and capabilities. And
//! writing can be limited to some paths.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::check;
use crate::error::{Classify, Kind};

/// The interface's version from which a fence keeps `rename` and `link` between directories (Linux 5.19).
pub const FENCE: u32 = 2;
/// … from which limits on writing cover truncate(2) (Linux 6.2).
pub const WRITES: u32 = 3;
/// … from which the kernel's audit log can tell of refusals (Linux 6.15).
pub const AUDIT: u32 = 7;

/// Why a process could not be fenced in.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// A place that writing is limited to could not be opened.
    #[error("open {path} for a file rule{}", symlink(*errno))]
    Place {
        /// The place.
        path: PathBuf,
        /// The answer.
        #[source]
        errno: Errno,
    },
    /// A rule or the whole could not be made or put in force.
    #[error("landlock: {doing}")]
    Rules {
        /// What was being done.
        doing: &'static str,
        /// The answer.
        #[source]
        source: RulesetError,
    },
    /// The kernel enforces less than was asked for.
    #[error("landlock: the kernel can't enforce all of the rules")]
    Partial,
}

fn symlink(errno: Errno) -> &'static str {
    if errno == Errno::LOOP { " (it must not lead through a symbolic link: name what it leads to)" } else { "" }
}

impl Classify for LandlockError {
    fn kind(&self) -> Kind {
        match self {
            LandlockError::Place { .. } => Kind::InvalidInput,
            LandlockError::Rules { .. } => Kind::System,
            LandlockError::Partial => Kind::Unsupported,
        }
    }
}

/// The version of the kernel's interface; `None` where it has none or it is off.
pub fn version() -> Option<u32> {
    // SAFETY: with this flag the kernel takes no attribute, only a null pointer and size 0.
    let ret = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) };
    check(ret).ok().and_then(|version| u32::try_from(version).ok())
}

/// Fences this process in. It must have `no_new_privs`.
///
/// With `writes` files can be written, made and removed beneath these absolute paths only (those that are not there are
/// left out), and devices and the process's own `/proc` files as before. `audit`: the kernel's audit log tells of
/// refusals.
pub fn fence(writes: Option<&[PathBuf]>, audit: bool) -> Result<(), LandlockError> {
    let doing = |doing| move |source| LandlockError::Rules { doing, source };
    let handled = match writes {
        // Rules have to be about something. Moving between directories is what any would forbid, unless it is allowed.
        None => AccessFs::Refer.into(),
        Some(_) => AccessFs::from_write(ABI::V3),
    };
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(handled)
        .and_then(Ruleset::create)
        .map_err(doing("make the rules"))?;
    rules = match writes {
        None => allow(rules, Path::new("/"), AccessFs::Refer.into())?,
        Some(places) => {
            let places = places.iter().map(|path| (path.as_path(), handled));
            let always = [
                ("/dev", AccessFs::WriteFile.into()),
                ("/dev/shm", handled),
                ("/proc", AccessFs::WriteFile | AccessFs::Truncate),
            ];
            let always = always.map(|(path, access): (&str, BitFlags<AccessFs>)| (Path::new(path), access));
            places.chain(always).try_fold(rules, |rules, (path, access)| allow(rules, path, access))?
        }
    };
    if audit {
        rules = rules.log_new_exec(true).map_err(doing("have refusals logged"))?;
    }
    match rules.restrict_self().map_err(doing("enforce the rules"))?.ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        _ => Err(LandlockError::Partial),
    }
}

/// Allows `access` beneath `path`. The path is the container's: one with a symbolic link in it could lead to more.
fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, LandlockError> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let place = match rustix::fs::openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Ok(place) => place,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(rules),
        Err(errno) => return Err(LandlockError::Place { path: path.to_owned(), errno }),
    };
    let access = if is_directory(&place) { access } else { access & AccessFs::from_file(ABI::V3) };
    rules
        .add_rule(PathBeneath::new(place.as_fd(), access))
        .map_err(|source| LandlockError::Rules { doing: "add a rule", source })
}

fn is_directory(place: &OwnedFd) -> bool {
    rustix::fs::fstat(place).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process::{Fork, exit_now, fork, wait};

    /// Runs `work` fenced in, in a child; its answer is the exit code.
    fn fenced(writes: Option<&[PathBuf]>, work: impl FnOnce() -> i32) -> i32 {
        match fork().unwrap() {
            Fork::Child => {
                let ready = crate::sys::attributes::set_no_new_privs().is_ok() && fence(writes, false).is_ok();
                exit_now(if ready { work() } else { 250 })
            }
            Fork::Parent(pid) => wait(pid, true).unwrap().unwrap().code.expect("the child exits"),
        }
    }

    fn errno(result: rustix::io::Result<impl Sized>) -> i32 {
        result.map_or_else(|e| e.raw_os_error(), |_| 0)
    }

    #[test]
    fn a_fence_hides_others_and_keeps_renames() {
        if version().is_none_or(|v| v < FENCE) {
            eprintln!("skipped: no Landlock of version {FENCE}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let file = dir.path().join("a/x");
        std::fs::File::create(&file).unwrap();
        let parent = format!("/proc/{}/root", std::process::id());
        let see = || errno(rustix::fs::open(parent.as_str(), OFlags::PATH, Mode::empty()));
        let to = dir.path().join("b/x");
        assert_eq!(see(), 0);
        assert_eq!(fenced(None, see), libc::EACCES);
        assert_eq!(fenced(None, || errno(rustix::fs::rename(&file, &to))), 0);
        assert_eq!(fenced(None, || errno(rustix::fs::open("/proc/self/root", OFlags::PATH, Mode::empty()))), 0);
    }

    #[test]
    fn writing_is_limited_to_the_paths() {
        if version().is_none_or(|v| v < WRITES) {
            eprintln!("skipped: no Landlock of version {WRITES}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (open, shut) = (dir.path().join("open"), dir.path().join("shut"));
        std::fs::create_dir(&open).unwrap();
        std::fs::File::create(&shut).unwrap();
        let writes = [open.clone(), dir.path().join("missing")];
        let make =
            |path: PathBuf| errno(rustix::fs::open(path, OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o600)));
        assert_eq!(fenced(Some(&writes), || make(open.join("new"))), 0);
        assert_eq!(fenced(Some(&writes), || make(dir.path().join("new"))), libc::EACCES);
        assert_eq!(fenced(Some(&writes), || make(shut.clone())), libc::EACCES);
        assert_eq!(fenced(Some(&writes), || errno(rustix::fs::unlink(&shut))), libc::EACCES);
        assert_eq!(fenced(Some(&writes), || make("/dev/null".into())), 0);
        // As `echo NAME > /proc/self/comm` does.
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC;
        let proc = || errno(rustix::fs::open("/proc/self/comm", flags, Mode::from_raw_mode(0o600)));
        assert_eq!(fenced(Some(&writes), proc), 0);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert_eq!(fenced(Some(&[link]), || 0), 250, "a link could lead anywhere");
    }
}
