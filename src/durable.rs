//! Files that survive: replace one whole, publish a new one, append, and locks that a dead process lets go.
//!
//! Every persistent write of the runtime goes through here, so that "what is on disk if we stop now" has one answer:
//! the old file or the new one. Each step that changes the disk first passes [`fault::step`], where a test can stop it.
//! Paths given here are ours (store, state, bundle), never chosen by a container.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags};

/// Replaces (or makes) the file at `path` with `bytes`: readers see the old content or the new, whole, also after a
/// power loss. Its mode will be exactly `mode` (permission bits such as `0o600`), whatever the umask.
///
/// Writes a temporary file in the same directory, syncs it, renames it, syncs the directory. A symlink at `path` is
/// replaced, not followed.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    put(path, bytes, mode, true, RenameFlags::empty())
}

/// Like [`replace`] without the two syncs: for runtime state on tmpfs, and where the data described is not synced
/// either.
pub fn replace_unsynced(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    put(path, bytes, mode, false, RenameFlags::empty())
}

/// Gives `bytes` to the file that a caller named, synced if `sync`. A regular file is replaced as by [`replace`]; what only
/// takes bytes (a device such as `/dev/null`, a pipe) is written to, as by a shell: replacing it would
/// leave the host with a file in its place. A pipe without a reader is an error.
pub fn deliver(path: &Path, bytes: &[u8], mode: u32, sync: bool) -> io::Result<()> {
    let takes_bytes = std::fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir());
    if !takes_bytes {
        return put(path, bytes, mode, sync, RenameFlags::empty());
    }
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    File::from(file).write_all(bytes)
}

/// Like [`replace`], but fails with `AlreadyExists` where there is something at `path`.
pub fn publish(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    put(path, bytes, mode, true, RenameFlags::NOREPLACE)
}

/// Adds `bytes` at the end of the file at `path` in one write, making it (0600) if need be, and syncs its data.
pub fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fault::step("append")?;
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(bytes)?;
    fault::step("append: sync")?;
    file.sync_data()
}

/// Makes a directory with `mode`, less the umask; its parent must exist. Fails with `AlreadyExists` where there is one.
pub fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fault::step("mkdir")?;
    Ok(rustix::fs::mkdir(path, Mode::from_raw_mode(mode))?)
}

/// Moves a file or directory to a name that must be free, on the same file system, without a sync.
pub fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    fault::step("rename")?;
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

/// Moves a file over another one, on the same file system, without a sync.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fault::step("rename")?;
    Ok(rustix::fs::rename(from, to)?)
}

/// Removes a file; one that is not there is no error.
pub fn remove_file(path: &Path) -> io::Result<()> {
    fault::step("unlink")?;
    match rustix::fs::unlink(path) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// The directory and the last name of a path.
fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    Ok((dir, name))
}

fn put(path: &Path, bytes: &[u8], mode: u32, sync: bool, how: RenameFlags) -> io::Result<()> {
    let (dir, name) = split(path)?;
    let dir = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let (temp, mut file) = temporary(&dir)?;
    let result = (|| {
        file.write_all(bytes)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        if sync {
            fault::step("replace: sync file")?;
            file.sync_all()?;
        }
        fault::step("replace: rename")?;
        match how {
            // Plain rename where nothing special is asked: some file systems have no renameat2.
            f if f.is_empty() => rustix::fs::renameat(&dir, temp.as_str(), &dir, name)?,
            f => rustix::fs::renameat_with(&dir, temp.as_str(), &dir, name, f)?,
        }
        if sync {
            fault::step("replace: sync directory")?;
            rustix::fs::fsync(&dir)?;
        }
        Ok(())
    })();
    if result.is_err() && fault::step("replace: clean up").is_ok() {
        // The first error is what the caller must see; a temporary file left behind is only litter.
        let _ = rustix::fs::unlinkat(&dir, temp.as_str(), AtFlags::empty());
    }
    result
}

/// Makes a file in `dir` under a name of its own: `fill` writes it and gives it its attributes. It is synced, and then `put`,
/// which gets its name, renames it to its place; the directory is not synced.
pub fn place(
    dir: &OwnedFd,
    fill: impl FnOnce(&File) -> io::Result<()>,
    put: impl FnOnce(&str) -> io::Result<()>,
) -> io::Result<()> {
    let (temp, file) = temporary(dir)?;
    let result = fill(&file).and_then(|()| {
        fault::step("place: sync file")?;
        file.sync_all()?;
        put(&temp)
    });
    if result.is_err() && fault::step("place: clean up").is_ok() {
        // The first error is what the caller must see; a temporary file left behind is only litter.
        let _ = rustix::fs::unlinkat(dir, temp.as_str(), AtFlags::empty());
    }
    result
}

/// A name for what is made beside its place and then renamed to it: no other call of this process has it.
pub fn temporary_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{TEMPORARY}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Bytes as text for names and documents: two lower-case hex digits each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a name is one that temporary files have.
pub fn is_temporary(name: &[u8]) -> bool {
    std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(TEMPORARY)).is_some_and(is_number_pair)
}

/// A new file with a name of its own in `dir`.
fn temporary(dir: &OwnedFd) -> io::Result<(String, File)> {
    fault::step("replace: create")?;
    loop {
        let name = temporary_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(dir, name.as_str(), flags, Mode::from_raw_mode(0o600)) {
            Ok(fd) => {
                // By this others see that it is no litter. Where there are no locks, nobody takes it for litter either.
                let locked = flock(&fd, FlockOperation::LockExclusive);
                if locked.is_ok() && rustix::fs::fstat(&fd)?.st_nlink == 0 {
                    // Swept before we had it.
                    continue;
                }
                return Ok((name, File::from(fd)));
            }
            // Litter of a process that had our pid, or of one in another pid namespace that has it now.
            Err(rustix::io::Errno::EXIST) => continue,
            Err(e) => return Err(e.into()),
        }
    }
}

/// What the names of temporary files begin with.
const TEMPORARY: &str = ".agentsbx-tmp-";

/// The temporary files in `dir` that were left by processes that were killed while they replaced a file there.
pub fn litter(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(found),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let ours = is_temporary(entry.file_name().as_encoded_bytes());
        if ours && entry.file_type()?.is_file() && LockFile::is_free(&entry.path())? && entry.path().exists() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Removes what [`litter`] finds; how many files there were.
pub fn sweep(dir: &Path) -> io::Result<usize> {
    let mut swept = 0;
    for path in litter(dir)? {
        let fd = match rustix::fs::open(&path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => continue,
            other => other?,
        };
        // Held while it goes: who has just made it waits, and then finds that it is gone.
        if flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok() && is_at(&fd, &path)? {
            remove_file(&path)?;
            swept += 1;
        }
    }
    Ok(swept)
}

fn is_number_pair(text: &str) -> bool {
    let number = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    text.split_once('-').is_some_and(|(a, b)| number(a) && number(b))
}

/// A `flock` on a file, exclusive but where it is said to be shared, held until it is dropped or its process ends in whatever way.
///
/// Holding it means holding the file that is at the path now: one that was unlinked while we waited is not taken.
/// The descriptor is close-on-exec; a child that is forked shares the lock until it calls execve.
#[derive(Debug)]
pub struct LockFile {
    fd: OwnedFd,
    path: PathBuf,
}

impl LockFile {
    /// Waits for the lock, without bound. Makes the file (0600) if need be.
    pub fn lock(path: &Path) -> io::Result<LockFile> {
        loop {
            let fd = open_lock(path)?;
            flock(&fd, FlockOperation::LockExclusive)?;
            if is_at(&fd, path)? {
                return Ok(LockFile { fd, path: path.to_owned() });
            }
        }
    }

    /// Waits for a shared lock, without bound: with others that share it, and without one who has it alone. Makes the file
    /// (0600) if need be.
    pub fn share(path: &Path) -> io::Result<LockFile> {
        loop {
            let fd = open_lock(path)?;
            flock(&fd, FlockOperation::LockShared)?;
            if is_at(&fd, path)? {
                return Ok(LockFile { fd, path: path.to_owned() });
            }
        }
    }

    /// Takes the lock if nobody has it. Makes the file (0600) if need be.
    pub fn try_lock(path: &Path) -> io::Result<Option<LockFile>> {
        loop {
            let fd = open_lock(path)?;
            match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&fd, path)? => return Ok(Some(LockFile { fd, path: path.to_owned() })),
                Ok(()) => continue,
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits for the lock for at most `timeout`; `None` if somebody had it all the time.
    pub fn lock_for(path: &Path, timeout: Duration) -> io::Result<Option<LockFile>> {
        let end = Instant::now() + timeout;
        let mut pause = Duration::from_micros(100);
        loop {
            if let Some(lock) = LockFile::try_lock(path)? {
                return Ok(Some(lock));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }

    /// Whether nobody has the lock; true as well where there is no such file. Makes no file.
    pub fn is_free(path: &Path) -> io::Result<bool> {
        let fd = match rustix::fs::open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT) => return Ok(true),
            Err(e) => return Err(e.into()),
        };
        // Shared: two who ask at once do not see each other.
        match flock(&fd, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether the file that is held still is the one at its path: nobody has removed it, or put another there.
    pub fn is_at_its_path(&self) -> io::Result<bool> {
        is_at(&self.fd, &self.path)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, then lets the lock go: nobody can find the file and take the lock in between.
    pub fn unlink(self) -> io::Result<()> {
        remove_file(&self.path)
    }
}

impl AsFd for LockFile {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open_lock(path: &Path) -> io::Result<OwnedFd> {
    fault::step("lock: open")?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?)
}

/// flock(2), again where a signal came in between.
pub(crate) fn flock(fd: impl AsFd, how: FlockOperation) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::flock(fd.as_fd(), how))
}

/// Whether the file behind `fd` is what `path` names now.
pub(crate) fn is_at(fd: impl AsFd, path: &Path) -> io::Result<bool> {
    let ours = rustix::fs::fstat(fd)?;
    match rustix::fs::lstat(path) {
        Ok(there) => Ok(there.st_dev == ours.st_dev && there.st_ino == ours.st_ino),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Where a test stops a sequence of durable steps, as a crash would: the step and all after it fail, clean-up too.
pub mod fault {
    #[cfg(test)]
    use std::cell::Cell;
    use std::io;

    #[cfg(test)]
    thread_local! {
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Called before each step that changes the disk; an error means "the process died here".
    #[cfg(not(test))]
    #[inline(always)]
    pub fn step(_what: &'static str) -> io::Result<()> {
        Ok(())
    }

    /// Called before each step that changes the disk; an error means "the process died here".
    #[cfg(test)]
    pub fn step(what: &'static str) -> io::Result<()> {
        LEFT.with(|left| match left.get() {
            None => Ok(()),
            Some(0) => Err(io::Error::other(format!("stopped before: {what}"))),
            Some(n) => {
                left.set(Some(n - 1));
                Ok(())
            }
        })
    }

    /// Runs `f` on this thread with all durable steps after the first `k` failing. Returns its value and whether it
    /// got that far, i.e. whether some step was stopped or would have been next.
    #[cfg(test)]
    pub fn stop_after<T>(k: u64, f: impl FnOnce() -> T) -> (T, bool) {
        LEFT.with(|left| left.set(Some(k)));
        let value = f();
        let left = LEFT.with(|left| left.replace(None));
        (value, left == Some(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// `--result /dev/null` had replaced the host's /dev/null by a regular file.
    #[test]
    fn what_only_takes_bytes_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        deliver(&file, b"one", 0o644, false).unwrap();
        deliver(&file, b"two", 0o644, true).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(deliver(&fifo, b"x", 0o644, false).unwrap_err().raw_os_error(), Some(libc::ENXIO));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        let mut reader = File::from(rustix::fs::open(&fifo, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap());
        for path in [&fifo, &link] {
            deliver(path, b"told", 0o644, true).unwrap();
            let mut text = [0; 4];
            std::io::Read::read_exact(&mut reader, &mut text).unwrap();
            assert_eq!(&text, b"told");
        }
        use std::os::unix::fs::FileTypeExt;
        assert!(std::fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
        assert!(std::fs::symlink_metadata(&link).unwrap().file_type().is_symlink());
        assert!(deliver(dir.path(), b"x", 0o644, false).is_err(), "a directory takes none");
    }

    #[test]
    fn replace_makes_and_replaces_with_the_mode_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for (bytes, mode) in [(&b"one"[..], 0o600), (b"", 0o644), (b"three", 0o666)] {
            replace(&path, bytes, mode).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, mode);
        }
        assert_eq!(names(dir.path()), ["f"]);
    }

    #[test]
    fn replace_does_not_follow_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        replace(&target, b"old", 0o600).unwrap();
        symlink("target", &link).unwrap();
        replace_unsynced(&link, b"new", 0o600).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        assert!(link.symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn publish_refuses_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        publish(&path, b"a", 0o600).unwrap();
        assert_eq!(publish(&path, b"b", 0o600).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"a");
        assert_eq!(names(dir.path()), ["f"]);
    }

    #[test]
    fn stopped_at_any_step_the_file_is_old_or_new() {
        for k in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("f");
            replace(&path, b"old", 0o600).unwrap();
            let (result, stopped) = fault::stop_after(k, || replace(&path, b"new", 0o600));
            let content = std::fs::read(&path).unwrap();
            assert!(content == b"old" || content == b"new", "step {k}: {content:?}");
            if result.is_ok() {
                assert_eq!(content, b"new");
                assert!(k >= 4, "only {k} steps");
                break;
            }
            assert!(stopped);
        }
    }

    /// A process that was killed while it replaced a file left its temporary one for ever.
    #[test]
    fn what_a_kill_leaves_is_swept_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        replace(&path, b"old", 0o600).unwrap();
        // Stopped before the rename: clean-up is a step too.
        let (result, _) = fault::stop_after(2, || replace(&path, b"new", 0o600));
        result.unwrap_err();
        let there = open(dir.path());
        let (_, being_written) = temporary(&there).unwrap();
        for name in [".agentsbx-tmp-", ".agentsbx-tmp-1-x", ".agentsbx-tmp-1", ".tmp-1-1"] {
            replace_unsynced(&dir.path().join(name), b"theirs", 0o600).unwrap();
        }
        assert_eq!(names(dir.path()).len(), 7);
        assert_eq!(sweep(dir.path()).unwrap(), 1);
        assert_eq!(litter(dir.path()).unwrap(), Vec::<PathBuf>::new());
        drop(being_written);
        assert_eq!(sweep(dir.path()).unwrap(), 1);
        assert_eq!(names(dir.path()).len(), 5);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(sweep(&dir.path().join("none")).unwrap(), 0);
    }

    fn open(dir: &Path) -> OwnedFd {
        rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn append_adds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        append(&path, b"a\n").unwrap();
        append(&path, b"b\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"a\nb\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_lock_excludes_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        assert!(LockFile::is_free(&path).unwrap());
        assert!(!path.exists(), "asking makes no file");
        let held = LockFile::lock(&path).unwrap();
        assert!(!LockFile::is_free(&path).unwrap());
        assert!(LockFile::try_lock(&path).unwrap().is_none());
        assert!(LockFile::lock_for(&path, Duration::from_millis(5)).unwrap().is_none());
        drop(held);
        assert!(LockFile::is_free(&path).unwrap());
        LockFile::try_lock(&path).unwrap().unwrap().unlink().unwrap();
        assert!(!path.exists());
    }

    /// Who waits for a lock whose file is unlinked by its holder must end up with the lock of the new file.
    #[test]
    fn waiting_on_an_unlinked_lock_takes_the_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let held = LockFile::lock(&path).unwrap();
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || LockFile::lock(&path).unwrap()
        });
        std::thread::sleep(Duration::from_millis(30));
        held.unlink().unwrap();
        let lock = waiter.join().unwrap();
        assert!(path.exists());
        assert!(!LockFile::is_free(&path).unwrap());
        drop(lock);
    }
}
