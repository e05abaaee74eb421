//! Paths of a root filesystem, resolved as its own processes would, and never out of it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The kernel's own limit for links in one path.
const LINKS_MAX: usize = 40;

/// Opens a root filesystem's directory (`O_PATH`).
pub fn open_root(rootfs: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(rootfs, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens `path` below `root` (`O_PATH`), symlinks resolved inside it as in a chroot.
pub fn open(root: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)?)
}

/// Opens `path` below `root` without passing any symlink; of a symlink at the end, the link itself.
fn open_plain(root: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    rustix::fs::openat2(
        root,
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )
}

/// The file type at `path` below `root`, no symlink followed anywhere; `None` if nothing is there.
pub fn file_type(root: impl AsFd, path: &Path) -> io::Result<Option<FileType>> {
    match open_plain(root, strip(path)) {
        Ok(fd) => Ok(Some(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(err) => Err(err.into()),
    }
}

fn strip(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// The absolute path that `path` leads to inside `root`, every symlink on the way replaced, the last included; parts
/// that do not exist stay as they are.
pub fn resolve(root: impl AsFd, path: &Path) -> io::Result<PathBuf> {
    let mut todo: Vec<OsString> = parts(path);
    todo.reverse();
    let mut done = PathBuf::new();
    let mut links = 0;
    while let Some(part) = todo.pop() {
        if part == OsStr::new("..") {
            done.pop();
            continue;
        }
        let next = done.join(&part);
        let fd = match open_plain(&root, &next) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => {
                done = next;
                continue;
            }
            Err(err) => return Err(err.into()),
        };
        if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FileType::Symlink {
            done = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(&fd, c"", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            done = PathBuf::new();
        }
        todo.extend(parts(target).into_iter().rev());
    }
    Ok(Path::new("/").join(done))
}

fn parts(path: &Path) -> Vec<OsString> {
    path.components()
        .filter_map(|c| match c {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            _ => None,
        })
        .collect()
}

/// Makes the directory `path` and its parents below `root`, symlinks resolved inside it; what is made gets `mode` and
/// `owner`. True if anything was made.
pub fn make_dirs(root: impl AsFd, path: &Path, mode: u32, owner: Option<(u32, u32)>) -> io::Result<bool> {
    let path = resolve(&root, path)?;
    let mut at = PathBuf::new();
    let mut made = false;
    for part in parts(&path) {
        let parent = open_plain(&root, &at)?;
        match rustix::fs::mkdirat(&parent, &part, Mode::from_raw_mode(mode)) {
            Ok(()) => {
                made = true;
                if let Some((uid, gid)) = owner {
                    let ids = (Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)));
                    rustix::fs::chownat(&parent, &part, ids.0, ids.1, AtFlags::SYMLINK_NOFOLLOW)?;
                }
            }
            Err(Errno::EXIST) => {}
            Err(err) => return Err(err.into()),
        }
        at.push(part);
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_resolved_inside_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let at = |p: &str| dir.path().join(p);
        std::fs::create_dir_all(at("etc")).unwrap();
        std::fs::create_dir_all(at("usr/lib")).unwrap();
        symlink("../run/resolve/stub.conf", at("etc/resolv.conf")).unwrap();
        symlink("/usr/lib", at("lib")).unwrap();
        symlink("../../../../usr", at("etc/up")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let root = open_root(dir.path()).unwrap();
        for (path, want) in [
            ("/etc/resolv.conf", "/run/resolve/stub.conf"),
            ("/lib/x/y", "/usr/lib/x/y"),
            ("/etc/up/lib", "/usr/lib"),
            ("/missing/a/../b", "/missing/b"),
            ("/../../etc", "/etc"),
            ("/", "/"),
        ] {
            assert_eq!(resolve(&root, Path::new(path)).unwrap(), Path::new(want), "{path}");
        }
        assert_eq!(resolve(&root, Path::new("/loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn directories_are_made_below_the_root_only() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), dir.path().join("out")).unwrap();
        let root = open_root(dir.path()).unwrap();
        assert!(make_dirs(&root, Path::new("/out/work"), 0o755, None).unwrap());
        assert!(!make_dirs(&root, Path::new("/out/work"), 0o755, None).unwrap());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0, "nothing made outside");
        let inside = dir.path().join(outside.path().strip_prefix("/").unwrap()).join("work");
        assert!(inside.is_dir());
    }
}
