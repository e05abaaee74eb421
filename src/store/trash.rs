//! Deleting trees: moved to `trash/` first, then taken apart without following a symlink or leaving the file system.
//!
//! What is in the trees was written by containers, so nothing about them is trusted: depth costs no descriptors (what
//! is too deep is moved up and deleted on its own), names are bytes, and something mounted inside stops the deletion.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use crate::durable::{self, fault};

use super::layer::open_dir;

/// Directories that are open at once.
const MAX_DEPTH: usize = 32;
/// How often a directory is read again because entries appeared while it was being emptied.
const MAX_RESCANS: u32 = 16;

/// Moves `dir` to `trash/name` and deletes it there. A directory that is not there (any more) is no error.
///
/// A layer that holds nothing is removed where it is, which takes no descriptor: there may be none left.
pub(super) fn discard(dir: &Path, trash: &Path, name: &str) -> io::Result<()> {
    if remove_empty(dir)? {
        return Ok(());
    }
    let _at_work = at_work(trash)?;
    match durable::rename_to_free(dir, &trash.join(name)) {
        // Gone: somebody has moved it, perhaps we before a crash.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        other => other?,
    }
    empty(trash, name)
}

/// Removes a layer if it holds nothing but the directories that it was made with, and those of overlayfs.
fn remove_empty(dir: &Path) -> io::Result<bool> {
    fault::step("rmdir")?;
    for inside in ["upper", "work/index", "work/work", "work", "."] {
        let path = if inside == "." { dir.to_owned() } else { dir.join(inside) };
        match rustix::fs::rmdir(&path) {
            Ok(()) => {}
            Err(Errno::NOENT) if inside != "." => {}
            Err(Errno::NOENT) => return Ok(true),
            // It holds something, or somebody else's way of deleting has better words for what is wrong.
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// A shared lock on the trash, by which others see that what is in it may be on its way out ([`is_idle`]).
fn at_work(trash: &Path) -> io::Result<OwnedFd> {
    let fd = open_dir(trash)?;
    durable::flock(&fd, FlockOperation::LockShared)?;
    Ok(fd)
}

/// Whether nobody is deleting: what is in the trash then was left by somebody who was killed.
pub(super) fn is_idle(trash: &Path) -> io::Result<bool> {
    match durable::flock(open_dir(trash)?, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Deletes the file or tree `trash/name`. Goes on after an entry that can't be deleted and returns the first error.
pub(super) fn empty(trash: &Path, name: impl AsRef<OsStr>) -> io::Result<()> {
    fault::step("delete tree")?;
    let trash = at_work(trash)?;
    let name = CString::new(name.as_ref().as_bytes())?;
    let mut deletion = Deletion { trash: &trash, pending: vec![name], first_error: None };
    while let Some(name) = deletion.pending.pop() {
        deletion.tree(&name);
    }
    deletion.first_error.map_or(Ok(()), |e| Err(e.into()))
}

struct Deletion<'a> {
    trash: &'a OwnedFd,
    /// Names in the trash that are still to be deleted.
    pending: Vec<CString>,
    first_error: Option<Errno>,
}

/// A directory being emptied.
struct Frame {
    fd: OwnedFd,
    entries: Dir,
    /// Its name in the frame below, or in the trash.
    name: CString,
    failed: bool,
    rescans: u32,
}

impl Frame {
    fn open(parent: &OwnedFd, name: &CStr) -> Result<Frame, Errno> {
        let fd = open_beneath(parent, name)?;
        let entries = Dir::read_from(&fd)?;
        Ok(Frame { fd, entries, name: name.to_owned(), failed: false, rescans: 0 })
    }
}

impl Deletion<'_> {
    fn failed(&mut self, e: Errno) {
        self.first_error.get_or_insert(e);
    }

    fn tree(&mut self, name: &CStr) {
        let top = match remove(self.trash, name, FileType::Unknown) {
            Ok(()) => return,
            Err(Errno::NOTEMPTY | Errno::EXIST) => Frame::open(self.trash, name),
            Err(e) => Err(e),
        };
        let mut stack = match top {
            Ok(frame) => vec![frame],
            Err(Errno::NOENT) => return,
            Err(e) => return self.failed(e),
        };
        while let Some(frame) = stack.last_mut() {
            match frame.entries.read() {
                Some(Ok(entry)) => {
                    let name = entry.file_name();
                    if name == c"." || name == c".." {
                        continue;
                    }
                    let deep = match remove(&frame.fd, name, entry.file_type()) {
                        Ok(()) => continue,
                        Err(Errno::NOTEMPTY | Errno::EXIST) => name.to_owned(),
                        Err(e) => {
                            frame.failed = true;
                            self.failed(e);
                            continue;
                        }
                    };
                    let next = if stack.len() < MAX_DEPTH {
                        stack.last().map(|frame| Frame::open(&frame.fd, &deep))
                    } else {
                        stack.last().and_then(|frame| self.move_up(&frame.fd, &deep).err()).map(Err)
                    };
                    match next {
                        Some(Ok(frame)) => stack.push(frame),
                        None | Some(Err(Errno::NOENT)) => {}
                        Some(Err(e)) => {
                            self.failed(e);
                            stack.last_mut().iter_mut().for_each(|frame| frame.failed = true);
                        }
                    }
                }
                Some(Err(e)) => {
                    self.failed(e);
                    self.leave(&mut stack, true);
                }
                None => self.leave(&mut stack, false),
            }
        }
    }

    /// Removes the directory on top, which has been read to its end (or, if `broken`, can't be), and its frame.
    fn leave(&mut self, stack: &mut Vec<Frame>, broken: bool) {
        let Some(mut frame) = stack.pop() else { return };
        let parent = stack.last().map_or(self.trash, |below| &below.fd);
        let mut failed = frame.failed || broken;
        if !failed {
            match remove(parent, &frame.name, FileType::Directory) {
                Ok(()) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) if frame.rescans < MAX_RESCANS => {
                    frame.rescans += 1;
                    frame.entries.rewind();
                    stack.push(frame);
                    return;
                }
                Err(e) => {
                    self.failed(e);
                    failed = true;
                }
            }
        }
        if failed {
            stack.last_mut().iter_mut().for_each(|below| below.failed = true);
        }
    }

    /// Moves a directory that lies too deep to the top of the trash, to be deleted from there.
    fn move_up(&mut self, parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let Ok(to) = CString::new(format!("deep-{}-{number}", std::process::id())) else {
                return Err(Errno::INVAL);
            };
            let rename = || rustix::fs::renameat_with(parent, name, self.trash, &to, RenameFlags::NOREPLACE);
            let result = match rename() {
                Err(Errno::ACCESS) => make_accessible(parent, name).and_then(|()| rename()),
                other => other,
            };
            match result {
                Err(Errno::EXIST) => continue,
                Ok(()) => {
                    self.pending.push(to);
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
    }
}

/// Removes a file or an empty directory; one that is not there is no error. `NOTEMPTY` means: a directory with entries.
fn remove(parent: &OwnedFd, name: &CStr, kind: FileType) -> Result<(), Errno> {
    let once = || {
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => {}
                other => return other,
            }
        }
        rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
    };
    let result = match once() {
        // Without root: the directory that it is in may have been made unwritable.
        Err(Errno::ACCESS) => rustix::fs::fchmod(parent, Mode::RWXU).and_then(|()| once()),
        other => other,
    };
    if result == Err(Errno::NOENT) { Ok(()) } else { result }
}

fn open_beneath(parent: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    match open_with(parent, name, OFlags::RDONLY) {
        Err(Errno::ACCESS) => {
            make_accessible(parent, name)?;
            open_with(parent, name, OFlags::RDONLY)
        }
        other => other,
    }
}

fn open_with(parent: &OwnedFd, name: &CStr, how: OFlags) -> Result<OwnedFd, Errno> {
    let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    rustix::io::retry_on_intr(|| rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve))
}

/// Gives a directory mode 0700, for a caller without root: overlayfs's own `work/work` has mode 0000, and so may any.
fn make_accessible(parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let fd = open_with(parent, name, OFlags::PATH)?;
    // chmod by descriptor needs 6.6 for O_PATH ones; the link in /proc leads to exactly this directory.
    rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), Mode::RWXU)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn trash() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn is_empty(dir: &Path) -> bool {
        std::fs::read_dir(dir).unwrap().next().is_none()
    }

    #[test]
    fn hostile_names_and_types_go_and_nothing_outside_does() {
        let (trash, outside) = (trash(), trash());
        durable::replace(&outside.path().join("precious"), b"x", 0o600).unwrap();
        let top = trash.path().join("t");
        std::fs::create_dir_all(top.join("a/b/c")).unwrap();
        for name in [&b"new\nline"[..], b"\xff\xfe", b"-rf", &[b'x'; 255]] {
            let dir = top.join(std::ffi::OsStr::from_bytes(name));
            std::fs::create_dir(&dir).unwrap();
            durable::replace(&dir.join("f"), b"", 0o000).unwrap();
        }
        symlink(outside.path(), top.join("link")).unwrap();
        symlink(outside.path(), top.join("a/b/link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, top.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::fs::set_permissions(top.join("a/b"), std::fs::Permissions::from_mode(0o000)).unwrap();
        empty(trash.path(), "t").unwrap();
        assert!(is_empty(trash.path()));
        assert!(outside.path().join("precious").exists());
        // Once more, and a link in the place of the tree itself.
        empty(trash.path(), "t").unwrap();
        symlink(outside.path(), &top).unwrap();
        empty(trash.path(), "t").unwrap();
        assert!(is_empty(trash.path()) && outside.path().join("precious").exists());
    }

    #[test]
    fn depth_costs_no_descriptors() {
        let trash = trash();
        let mut at = open_dir(trash.path()).unwrap();
        // 3,000 deep: its path is longer than PATH_MAX, and it would need as many descriptors as there are levels.
        for level in 0..3000 {
            let name = if level == 0 { "t" } else { "d" };
            rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            rustix::fs::openat(&at, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
        }
        drop(at);
        empty(trash.path(), "t").unwrap();
        assert!(is_empty(trash.path()));
    }

    #[test]
    fn several_may_delete_the_same_tree() {
        let trash = trash();
        for i in 0..400 {
            let dir = trash.path().join(format!("t/{}/{}", i % 7, i));
            std::fs::create_dir_all(&dir).unwrap();
            durable::replace_unsynced(&dir.join("f"), b"", 0o600).unwrap();
        }
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| empty(trash.path(), "t").unwrap());
            }
        });
        assert!(is_empty(trash.path()));
    }

    #[test]
    fn what_holds_nothing_goes_without_descriptors_and_what_holds_something_is_left() {
        let dir = trash();
        let layer = dir.path().join("layer");
        let made = |inside: &[&str]| inside.iter().for_each(|path| std::fs::create_dir_all(layer.join(path)).unwrap());
        made(&["upper", "work/work", "work/index"]);
        assert!(remove_empty(&layer).unwrap() && !layer.exists());
        assert!(remove_empty(&layer).unwrap());
        made(&["upper/d", "work/work"]);
        assert!(!remove_empty(&layer).unwrap());
        assert!(layer.join("upper/d").is_dir() && layer.join("work/work").is_dir());
    }

    #[test]
    fn discard_is_done_when_it_was_done_before() {
        let dir = trash();
        let (trash, layer) = (dir.path().join("trash"), dir.path().join("layer"));
        std::fs::create_dir(&trash).unwrap();
        std::fs::create_dir_all(layer.join("upper")).unwrap();
        for _ in 0..2 {
            discard(&layer, &trash, "layer").unwrap();
            assert!(!layer.exists() && is_empty(&trash));
        }
    }

    /// Needs root, to mount a tmpfs in the temporary directory; proves nothing without.
    #[test]
    fn a_mount_inside_stops_the_deletion() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let trash = trash();
        let mounted = trash.path().join("t/sub/mnt");
        std::fs::create_dir_all(&mounted).unwrap();
        let run = |script: &str| {
            let status = std::process::Command::new("sh").args(["-c", script]).arg("sh").arg(&mounted).status();
            assert!(status.unwrap().success(), "{script}");
        };
        run("mount -t tmpfs none \"$1\" && touch \"$1/precious\"");
        let result = empty(trash.path(), "t");
        let survived = mounted.join("precious").exists();
        run("umount \"$1\"");
        assert!(survived, "deleted under a mount");
        let errno = result.unwrap_err().raw_os_error();
        assert!(errno == Some(libc::EBUSY) || errno == Some(libc::EXDEV), "{errno:?}");
        empty(trash.path(), "t").unwrap();
        assert!(is_empty(trash.path()));
    }
}
