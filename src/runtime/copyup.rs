//! `tmpcopyup`: a tmpfs that starts with what the root filesystem has at its place.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timestamps, Uid};

/// How deep a tree is followed.
const DEPTH_MAX: u32 = 128;

/// Copies what is in the directory `from` into the directory `to`: files, directories, links, devices, with mode, owner
/// and times. Nothing is followed out of either. Both must be readable descriptors of directories.
pub fn copy(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    copy_dir(from, to, 0)
}

fn copy_dir(from: &OwnedFd, to: &OwnedFd, depth: u32) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    for entry in Dir::read_from(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                match rustix::fs::mkdirat(to, name, Mode::RWXU) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(err) => return Err(err.into()),
                }
                let (sub_from, sub_to) = (open_dir(from, name)?, open_dir(to, name)?);
                copy_dir(&sub_from, &sub_to, depth + 1)?;
                rustix::fs::fchown(&sub_to, uid(&stat), gid(&stat))?;
                rustix::fs::fchmod(&sub_to, mode)?;
            }
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let mut source = std::fs::File::from(rustix::fs::openat(from, name, flags, Mode::empty())?);
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut target = std::fs::File::from(rustix::fs::openat(to, name, flags, Mode::RUSR)?);
                io::copy(&mut source, &mut target)?;
                // Owner first: changing it clears setuid.
                rustix::fs::fchown(&target, uid(&stat), gid(&stat))?;
                rustix::fs::fchmod(&target, mode)?;
            }
            FileType::Symlink => {
                let link = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&link, to, name)?;
                rustix::fs::chownat(to, name, uid(&stat), gid(&stat), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            kind @ (FileType::CharacterDevice | FileType::BlockDevice | FileType::Fifo) => {
                rustix::fs::mknodat(to, name, kind, mode, stat.st_rdev)?;
                rustix::fs::chownat(to, name, uid(&stat), gid(&stat), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            // A socket's file means nothing without the process that listens.
            _ => continue,
        }
        rustix::fs::utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn open_dir(at: impl AsFd, name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

fn uid(stat: &Stat) -> Option<Uid> {
    Some(Uid::from_raw(stat.st_uid))
}

fn gid(stat: &Stat) -> Option<Gid> {
    Some(Gid::from_raw(stat.st_gid))
}

fn times(stat: &Stat) -> Timestamps {
    let time = |sec: i64, nsec: u64| rustix::fs::Timespec { tv_sec: sec, tv_nsec: nsec as _ };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn trees_are_copied_and_links_are_not_followed() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(from.path().join("d")).unwrap();
        crate::durable::replace_unsynced(&from.path().join("d/f"), b"data", 0o640).unwrap();
        std::fs::set_permissions(from.path().join("d"), std::fs::Permissions::from_mode(0o1777)).unwrap();
        symlink("/etc/passwd", from.path().join("l")).unwrap();
        let open = |p: &std::path::Path| {
            rustix::fs::open(p, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
        };
        copy(&open(from.path()), &open(to.path())).unwrap();
        assert_eq!(std::fs::read(to.path().join("d/f")).unwrap(), b"data");
        assert_eq!(std::fs::metadata(to.path().join("d")).unwrap().mode() & 0o7777, 0o1777);
        assert_eq!(std::fs::read_link(to.path().join("l")).unwrap(), std::path::Path::new("/etc/passwd"));
        let mtime = |p: std::path::PathBuf| std::fs::metadata(p).unwrap().modified().unwrap();
        assert_eq!(mtime(from.path().join("d/f")), mtime(to.path().join("d/f")));
    }
}
