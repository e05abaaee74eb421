//! Overlays whose lower layers show other owners than they have on disk.
//!
//! The kernel maps the ids of a mount, and takes the layers of an overlay by path. So each lower directory is covered by a
//! clone of it that is mapped, in a mount namespace that only one thread is in. There the options are right as they are written;
//! nobody else sees the clones, and they go with the thread, also where the process is killed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountPropagationFlags};

use super::fsmount::{self, FsOption, OVERLAY};
use super::mountattr::{self, MountAttr};
use super::{Call, SysError, mount, ns};

/// The stack of the thread, in bytes.
const STACK: usize = 256 << 10;

/// Makes an overlay of these options, attached nowhere, that sees the files of its lower directories as `userns` maps them. Its
/// upper directory is not mapped: what is copied up belongs there to whom it was seen to belong. `attr` are the mount's own
/// flags.
///
/// # Errors
/// `EINVAL` where the options have no lower directory, where the file system of one has no mapped mounts, or the kernel takes
/// none as a layer (before Linux 5.19); `EPERM` where one lies on a mount that is mapped already; what the calls give. Nothing
/// is left mounted.
pub fn overlay(
    source: &str,
    options: &[FsOption],
    attr: MountAttrFlags,
    userns: BorrowedFd<'_>,
) -> Result<OwnedFd, SysError> {
    apart(|| {
        let place = cover_all(options, userns)?;
        match fsmount::detached(OVERLAY, source, options, attr)? {
            Some(overlay) => Ok(overlay),
            None => by_options(source, options, attr, &place),
        }
    })
}

/// Does the work in a mount namespace of its own, whose mounts nobody else sees. What others unmount meanwhile is gone from it,
/// too, where mounts are shared: nobody finds a file system in use on its account.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, SysError> + Send) -> Result<T, SysError> {
    thread::scope(|scope| {
        let inside = || {
            ns::unshare_mounts()?;
            let receive = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", receive).call("mount", || "/, slave".to_owned())?;
            work()
        };
        let started = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, inside);
        let ended = started.call("clone", || "a thread, to mount in".to_owned())?.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Covers each lower directory of the options by a mapped clone of it; the first one's path.
fn cover_all(options: &[FsOption], userns: BorrowedFd<'_>) -> Result<String, SysError> {
    let values = options.iter().filter(|(key, _)| key == "lowerdir").filter_map(|(_, value)| value.as_deref());
    let lowers: Vec<String> = values.flat_map(fsmount::lowers).map(|lower| lower.path).collect();
    for (n, path) in lowers.iter().enumerate() {
        cover(path, userns)
            .map_err(|err| SysError { on: format!("{}, of overlay's layer {n}, {path}", err.on), ..err })?;
    }
    lowers.into_iter().next().ok_or_else(|| SysError::new("fsconfig", "overlay without lowerdir", Errno::INVAL))
}

fn cover(path: &str, userns: BorrowedFd<'_>) -> Result<(), SysError> {
    let dir = mount::open_dir_path(Path::new(path))?;
    let clone = mount::clone_tree(dir.as_fd(), false, &path)?;
    mountattr::map_ids(&clone, userns, false)?;
    mount::attach(clone.as_fd(), dir.as_fd(), &path)?;
    // What is mounted over the root directory is not seen by paths.
    if mount_id(mount::open_dir_path(Path::new(path))?.as_fd())? != mount_id(clone.as_fd())? {
        return Err(SysError::new("move_mount", "a directory that cannot be covered", Errno::INVAL));
    }
    Ok(())
}

fn mount_id(fd: BorrowedFd<'_>) -> Result<u64, SysError> {
    let stat = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).call("statx", || mount::fd_path(fd))?;
    Ok(stat.stx_mnt_id)
}

/// The same with mount(2), for kernels to which the lower directories cannot be given one by one: on the directory `place`, in
/// the namespace of [`apart`].
fn by_options(source: &str, options: &[FsOption], attr: MountAttrFlags, place: &str) -> Result<OwnedFd, SysError> {
    let under = mount::open_dir_path(Path::new(place))?;
    fsmount::overlay_on(under.as_fd(), source, options)?;
    let mounted = mount::open_dir_path(Path::new(place))?;
    let overlay = mount::clone_tree(mounted.as_fd(), false, &place)?;
    mountattr::set(&overlay, MountAttr { set: attr.bits().into(), propagation: 0 }, false)?;
    Ok(overlay)
}

#[cfg(test)]
mod tests {
    use super::super::userns::{self, IdRange};
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    fn owner(path: &Path) -> u32 {
        fs::metadata(path).unwrap().uid()
    }

    /// Two layers with a file each, an upper directory, and options for them; none where the file system has no mapped mounts.
    fn layers(dir: &Path) -> Option<(Vec<FsOption>, OwnedFd)> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root maps ids that are not its own");
            return None;
        }
        for name in ["one/file", "two/other"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        let ids = [IdRange { inside: 0, outside: 100_000, size: 65_536 }];
        let userns = userns::with_maps(&ids, &ids).unwrap();
        let here = mount::open_dir_path(dir).unwrap();
        let clone = mount::clone_tree(here.as_fd(), false, &"").unwrap();
        if let Err(err) = mountattr::map_ids(&clone, userns.as_fd(), false) {
            eprintln!("skipped: {}: {err}", dir.display());
            return None;
        }
        let lower = format!("{0}/one:{0}/two", dir.display());
        Some((vec![("ro".into(), None), ("lowerdir".into(), Some(lower))], userns))
    }

    fn looked_at(overlay: &OwnedFd) -> (u32, u32, bool) {
        let path = PathBuf::from(mount::fd_path(overlay.as_fd()));
        let read_only = mount::is_read_only(overlay.as_fd()).unwrap();
        (owner(&path.join("file")), owner(&path.join("other")), read_only)
    }

    #[test]
    fn with_either_way_of_mounting() {
        let dir = tempfile::tempdir().unwrap();
        let Some((options, userns)) = layers(dir.path()) else { return };
        let flags = MountAttrFlags::MOUNT_ATTR_RDONLY;
        let made = overlay("one", &options, flags, userns.as_fd()).unwrap();
        assert_eq!(looked_at(&made), (100_000, 100_000, true));
        // As kernels before 6.7 have to be asked.
        let made = apart(|| by_options("two", &options, flags, &cover_all(&options, userns.as_fd())?)).unwrap();
        assert_eq!(looked_at(&made), (100_000, 100_000, true));
    }

    /// At no time is anything mounted where others see it; so a process that is killed meanwhile leaves nothing.
    #[test]
    fn nobody_else_sees_the_clones() {
        let dir = tempfile::tempdir().unwrap();
        let Some((options, userns)) = layers(dir.path()) else { return };
        let name = dir.path().display().to_string();
        let name = name.as_str();
        let mounts = move || {
            let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            text.lines().filter(|line| line.contains(name)).count()
        };
        let own = || fs::read_link("/proc/thread-self/ns/mnt").unwrap();
        let outside = own();
        let (seen, see) = std::sync::mpsc::sync_channel(0);
        let (looked, wait) = std::sync::mpsc::sync_channel::<()>(0);
        let file = dir.path().join("one/file");
        let (options, userns, below) = (&options, &userns, &file);
        thread::scope(|scope| {
            let inside = move || {
                cover_all(options, userns.as_fd())?;
                seen.send((mounts(), owner(below), own())).unwrap();
                wait.recv().unwrap();
                Ok(())
            };
            let making = scope.spawn(|| apart(inside));
            let (clones, owned_by, namespace) = see.recv().unwrap();
            assert_eq!((clones, owned_by), (2, 100_000));
            assert_eq!((mounts(), owner(&file)), (0, 0));
            assert!(own() == outside && namespace != outside);
            looked.send(()).unwrap();
            making.join().unwrap().unwrap();
        });
        assert_eq!(mounts(), 0);
    }
}
