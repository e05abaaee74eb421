//! What a layer takes on disk, looked at while its command runs: cheap looks at the filesystem, a walk only when it grew.
//!
//! A look compares the filesystem's free space with that of the last walk. Between two walks the layer can't have grown by
//! more than the filesystem did, unless somebody else freed as much meanwhile, and then the host has lost nothing. So the
//! layer is walked ([`walk`]) only when the filesystem has grown by half of what the layer may still take. Growth that the
//! walk does not find may be in files that were unlinked while they were open; those of the exec's processes are counted
//! too ([`unlinked`]).

mod unlinked;
mod walk;

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::sys::{Call, SysError};

/// How often it is looked.
const EVERY: Duration = Duration::from_millis(250);
/// A walk follows the last one no sooner than after so many times as long as that took.
const REST: u32 = 4;
/// How often it is walked where the filesystem does not say how many inodes it has.
const BLINDLY: Duration = Duration::from_secs(5);
/// A file, directory or whiteout for each so many bytes of the limit: inodes are as scarce as blocks.
const BYTES_A_FILE: u64 = 5 << 10;
/// The least number of files that a limit stands for.
const FILES_MIN: u64 = 1_000;

/// What a layer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Allocated bytes.
    pub bytes: u64,
    /// Names: files, directories, whiteouts and so on.
    pub files: u64,
}

impl Limit {
    /// Of a limit in bytes: one name for each 5 KiB, but at least 1000. 5 GiB are 1,048,576 names.
    pub fn of_bytes(bytes: u64) -> Limit {
        Limit { bytes, files: (bytes / BYTES_A_FILE).max(FILES_MIN) }
    }
}

/// A limit that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// On bytes.
    Bytes {
        /// The limit.
        limit: u64,
        /// What the layer took when it was looked at.
        used: u64,
    },
    /// On names.
    Files {
        /// The limit.
        limit: u64,
    },
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Over::Bytes { limit, used } => {
                write!(f, "layer limit of {} exceeded: it took {} on disk", Size(*limit), Size(*used))
            }
            Over::Files { limit } => write!(f, "layer limit of {limit} files and directories exceeded"),
        }
    }
}

/// Bytes for people: `5 GiB`, `16.2 MiB`.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
            .into_iter()
            .find(|(unit, _)| self.0 >= *unit)
            .unwrap_or((1, "bytes"));
        match self.0 % unit {
            0 => write!(f, "{} {name}", self.0 / unit),
            // Rounded up: what is over a limit never reads as the limit.
            _ => write!(f, "{:.1} {name}", (self.0 as f64 / unit as f64 * 10.0).ceil() / 10.0),
        }
    }
}

/// Blocks and inodes of a filesystem, or of a directory's project where that has a quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Taken {
    bytes: u64,
    files: u64,
}

impl Taken {
    /// What of it came since `then`.
    fn since(self, then: Taken) -> Taken {
        Taken { bytes: self.bytes.saturating_sub(then.bytes), files: self.files.saturating_sub(then.files) }
    }
}

/// One layer's budget.
#[derive(Debug)]
pub struct Budget {
    limit: Limit,
    /// The layer's directory, with all that it is made of.
    place: OwnedFd,
    /// The filesystem at the beginning.
    first: Taken,
    /// The filesystem at the last walk, and what the walk found.
    last: (Taken, Taken),
    /// When that walk ended, and what it took.
    walked: (Instant, Duration),
    next: Instant,
    /// The filesystem says how many inodes it has.
    tells_files: bool,
}

impl Budget {
    /// Of a layer that is still empty, by its directory.
    pub fn new(layer: &Path, limit: Limit) -> Result<Budget, SysError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::open(layer, flags, Mode::empty()).call("open", || layer.display().to_string())?;
        let first = taken(&place)?;
        let tells_files = rustix::fs::fstatfs(&place).is_ok_and(|fs| fs.f_files > 0);
        let now = Instant::now();
        let last = (first, Taken::default());
        Ok(Budget { limit, place, first, last, walked: (now, Duration::ZERO), next: now + EVERY, tells_files })
    }

    /// How long until the next look.
    pub fn due_in(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// Looks, if it is time to; `processes` are those that may write to the layer. What can't be looked at is let pass:
    /// the next look is soon.
    pub fn look(&mut self, now: Instant, processes: impl FnOnce() -> Vec<i32>) -> Option<Over> {
        if now < self.next {
            return None;
        }
        self.next = now + EVERY;
        let filesystem = taken(&self.place).ok()?;
        let urgent = self.grown(filesystem, |left, limit| left + limit);
        let since = now.saturating_duration_since(self.walked.0);
        let blindly = !self.tells_files && since >= BLINDLY;
        let rested = since >= self.walked.1 * REST;
        (urgent || rested && (blindly || self.grown(filesystem, |left, _| left / 2))).then(|| self.walk(processes))?
    }

    /// The last look, when no process is left that could write.
    pub fn last_look(&mut self) -> Option<Over> {
        let filesystem = taken(&self.place).ok()?;
        (!self.tells_files || self.grown(filesystem, |left, _| left / 2)).then(|| self.walk(Vec::new))?
    }

    /// Whether the filesystem has grown since the last walk by what `enough` makes of what is left of a limit, and it.
    fn grown(&self, filesystem: Taken, enough: impl Fn(u64, u64) -> u64) -> bool {
        let (then, layer) = self.last;
        let grown = filesystem.since(then);
        let is = |grown: u64, used: u64, limit: u64| grown > enough(limit.saturating_sub(used), limit);
        is(grown.bytes, layer.bytes, self.limit.bytes) || is(grown.files, layer.files, self.limit.files)
    }

    fn walk(&mut self, processes: impl FnOnce() -> Vec<i32>) -> Option<Over> {
        let begun = Instant::now();
        // Before the walk: what is written during it counts as growth after it.
        let filesystem = taken(&self.place).ok()?;
        let mut found = match walk::measure(self.place.as_fd(), self.limit.files) {
            Ok(found) => found,
            Err(err) => {
                tracing::warn!(error = %err, "the layer could not be measured");
                return None;
            }
        };
        let unseen = filesystem.since(self.first).bytes.saturating_sub(found.bytes);
        if unseen > self.limit.bytes.saturating_sub(found.bytes) / 2 {
            found.bytes += unlinked::bytes(&processes());
        }
        self.last = (filesystem, found);
        self.walked = (Instant::now(), begun.elapsed());
        let Limit { bytes, files } = self.limit;
        if found.bytes > bytes {
            return Some(Over::Bytes { limit: bytes, used: found.bytes });
        }
        (found.files > files).then_some(Over::Files { limit: files })
    }
}

fn taken(place: &OwnedFd) -> Result<Taken, SysError> {
    let fs = rustix::fs::fstatfs(place).call("fstatfs", || "the layer".to_owned())?;
    Ok(Taken {
        bytes: fs.f_blocks.saturating_sub(fs.f_bfree).saturating_mul(fs.f_bsize.cast_unsigned()),
        // Filesystems that make inodes as they go tell neither number.
        files: fs.f_files.saturating_sub(fs.f_ffree),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;

    struct Lab {
        _dir: tempfile::TempDir,
        upper: std::path::PathBuf,
        budget: Budget,
    }

    fn lab(limit: Limit) -> Lab {
        let dir = tempfile::tempdir().unwrap();
        let budget = Budget::new(dir.path(), limit).unwrap();
        Lab { upper: dir.path().to_owned(), _dir: dir, budget }
    }

    fn fill(file: &File, bytes: usize) {
        file.write_all_at(&vec![7; bytes], 0).unwrap();
    }

    const MIB: usize = 1 << 20;

    #[test]
    fn bytes_over_the_limit_are_found_and_a_sparse_file_is_none() {
        let mut lab = lab(Limit::of_bytes(4 << 20));
        File::create(lab.upper.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(lab.budget.walk(Vec::new), None);
        let file = File::create(lab.upper.join("f")).unwrap();
        fill(&file, 3 * MIB);
        assert_eq!(lab.budget.walk(Vec::new), None);
        fill(&file, 5 * MIB);
        let Some(Over::Bytes { limit, used }) = lab.budget.walk(Vec::new) else { panic!("not found") };
        assert!(limit == 4 << 20 && (5 << 20..6 << 20).contains(&used), "{used}");
        // An allocation beyond a file's end is no size, but it is space.
        fs::remove_file(lab.upper.join("f")).unwrap();
        let file = File::create(lab.upper.join("g")).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 6 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert!(matches!(lab.budget.walk(Vec::new), Some(Over::Bytes { .. })));
    }

    #[test]
    fn files_over_the_limit_are_found() {
        let mut lab = lab(Limit { bytes: 1 << 40, files: 40 });
        for n in 0..40 {
            File::create(lab.upper.join(format!("f{n}"))).unwrap();
        }
        assert_eq!(lab.budget.walk(Vec::new), None);
        File::create(lab.upper.join("one-more")).unwrap();
        assert_eq!(lab.budget.walk(Vec::new), Some(Over::Files { limit: 40 }));
    }

    #[test]
    fn it_is_walked_only_when_the_filesystem_grew() {
        let mut lab = lab(Limit { bytes: 64 << 20, files: 1000 });
        // The filesystem is others' too: as if it had been fuller at the last walk.
        lab.budget.last.0 = Taken { bytes: u64::MAX / 2, files: u64::MAX / 2 };
        let walked = lab.budget.walked.0;
        assert_eq!(lab.budget.look(Instant::now() + EVERY, Vec::new), None);
        assert_eq!(lab.budget.last_look(), None);
        assert_eq!(lab.budget.walked.0, walked);
        lab.budget.last.0 = Taken::default();
        assert_eq!(lab.budget.look(Instant::now(), Vec::new), None, "not before it is due");
        assert_eq!(lab.budget.walked.0, walked);
        assert_eq!(lab.budget.look(Instant::now() + 2 * EVERY, Vec::new), None);
        assert!(lab.budget.walked.0 > walked);
    }

    /// Space without a name: the walk can't see it, the process's descriptor can.
    #[test]
    fn a_file_unlinked_while_it_is_open_counts() {
        let mut lab = lab(Limit::of_bytes(4 << 20));
        let path = lab.upper.join("f");
        let file = File::create(&path).unwrap();
        fill(&file, 6 * MIB);
        fs::remove_file(&path).unwrap();
        // As if only this had grown.
        lab.budget.first = Taken::default();
        assert_eq!(lab.budget.walk(Vec::new), None);
        // An exec's files are on an overlay, which is how they are told from a volume's; this test's are not.
        assert_eq!(unlinked::bytes(&[std::process::id() as i32]), 0);
        let all = |_: &rustix::fs::Statx| true;
        assert!(unlinked::bytes_of(std::process::id() as i32, &mut Default::default(), &all) >= 6 << 20);
    }

    #[test]
    fn texts() {
        for (over, text) in [
            (
                Over::Bytes { limit: 5 << 30, used: (5 << 30) + 1 },
                "layer limit of 5 GiB exceeded: it took 5.1 GiB on disk",
            ),
            (Over::Bytes { limit: 700, used: 900 }, "layer limit of 700 bytes exceeded: it took 900 bytes on disk"),
            (Over::Files { limit: 9 }, "layer limit of 9 files and directories exceeded"),
        ] {
            assert_eq!(over.to_string(), text);
        }
        assert_eq!(Limit::of_bytes(5 << 30).files, 1_048_576);
        assert_eq!(Limit::of_bytes(0).files, FILES_MIN);
    }
}
