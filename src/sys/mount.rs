//! Mounts by the new mount API: built detached, moved into place when they are right.

use std::ffi::CString;
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};

use super::mountattr::{self, MountAttr};
use super::{Call, SysError};

/// Opens `path` as a directory descriptor without the right to read it (`O_PATH`).
pub fn open_dir_path(path: &Path) -> Result<OwnedFd, SysError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .call("open", || path.display().to_string())
}

/// A path that names an open descriptor, for calls that only take paths.
pub fn fd_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// What an overlay is made of. `lowers` is newest first; none of the directories needs a path in this namespace.
pub struct Overlay<'a> {
    /// The read-only layers, the one that shows first in front.
    pub lowers: &'a [BorrowedFd<'a>],
    /// Where writes go.
    pub upper: BorrowedFd<'a>,
    /// An empty directory on the upper's filesystem.
    pub work: BorrowedFd<'a>,
    /// Store overlayfs's own attributes as `user.overlay.*` (an unprivileged runtime).
    pub userxattr: bool,
}

/// Options that distributions set differently by default.
const PINNED: [(&str, &str); 3] = [("redirect_dir", "off"), ("metacopy", "off"), ("index", "off")];

/// Options without a value.
///
/// `volatile` (Linux 5.10): nothing of the layer is synced to disk. Without it the kernel writes out the upper's whole
/// filesystem, other programs' files too, when the overlay is unmounted: at the end of each command, which waits for it.
fn flags(parts: &Overlay<'_>) -> impl Iterator<Item = &'static str> {
    ["volatile"].into_iter().chain(parts.userxattr.then_some("userxattr"))
}

/// What shows as the mount's source in the command's mountinfo.
const SOURCE: &str = "agentsbx";

/// Mounts an overlay that is attached nowhere yet. It goes away with the descriptor unless it is moved.
///
/// `None` where the kernel does not take lower layers one by one (`lowerdir+`, Linux 6.7). In one string they could have
/// 255 bytes together, so such a kernel is given all options by mount(2): see [`overlay_by_options`]. Linux 6.5 and 6.6
/// say so when the option is given; older ones only at the end.
pub fn overlay(parts: &Overlay<'_>) -> Result<Option<OwnedFd>, SysError> {
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).call("fsopen", || "overlay".into())?;
    let set = |key: &'static str, value: &str| {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)
            .call("fsconfig", || format!("overlay {key}={value}"))
    };
    set("source", SOURCE)?;
    for (n, lower) in parts.lowers.iter().enumerate() {
        match set("lowerdir+", &fd_path(*lower)) {
            Err(err) if n == 0 && err.errno() == Some(libc::EINVAL) => return Ok(None),
            other => other?,
        }
    }
    set("upperdir", &named_path(parts.upper))?;
    set("workdir", &fd_path(parts.work))?;
    for (key, value) in PINNED {
        set(key, value)?;
    }
    for flag in flags(parts) {
        rustix::mount::fsconfig_set_flag(context.as_fd(), flag).call("fsconfig", || format!("overlay {flag}"))?;
    }
    match rustix::mount::fsconfig_create(context.as_fd()) {
        Err(rustix::io::Errno::INVAL) if overlay_takes_any_option()? => return Ok(None),
        created => created.call("fsconfig", || {
            format!("overlay create, {} lower layers{}", parts.lowers.len(), kernel_log(context.as_fd()))
        })?,
    }
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        .call("fsmount", || "overlay".into())
        .map(Some)
}

/// Whether overlayfs looks at its options only when it is mounted (before Linux 6.5): then it takes one that is not there.
fn overlay_takes_any_option() -> Result<bool, SysError> {
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).call("fsopen", || "overlay".into())?;
    Ok(rustix::mount::fsconfig_set_flag(context.as_fd(), "no-such-option").is_ok())
}

/// Whether overlayfs takes its lower directories one a call.
pub fn overlay_takes_lower_one_by_one() -> Result<(), SysError> {
    let on = || "overlay lowerdir+=/".to_owned();
    if overlay_takes_any_option()? {
        return Err(SysError::new("fsconfig", on(), rustix::io::Errno::INVAL));
    }
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).call("fsopen", || "overlay".into())?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "lowerdir+", "/").call("fsconfig", on)
}

/// How many names of an upper directory's path are shown.
const NAMES: usize = 8;

/// The path of an upper directory by its descriptor, with its last names at the end
/// (`/proc/self/fd/7/../../LAYER/upper`): the kernel shows the text in mountinfo, where a layer is then known by it.
fn named_path(upper: BorrowedFd<'_>) -> String {
    let path = fd_path(upper);
    let target = rustix::fs::readlink(&path, Vec::new()).unwrap_or_default().into_string().unwrap_or_default();
    // Other names would have to be escaped, which each way of mounting does in its own way.
    let plain = |name: &&str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) && *name != ".."
    };
    let mut names: Vec<&str> = target.rsplit('/').take_while(plain).take(NAMES).collect();
    names.reverse();
    [&*path].into_iter().chain(names.iter().map(|_| "..")).chain(names.iter().copied()).collect::<Vec<_>>().join("/")
}

/// The options of an overlay as mount(2) takes them: at most a page, which is enough for some two hundred layers.
fn overlay_options(parts: &Overlay<'_>) -> String {
    let lowers = parts.lowers.iter().map(|fd| fd_path(*fd)).collect::<Vec<_>>().join(":");
    let mut options = format!("lowerdir={lowers},upperdir={},workdir={}", named_path(parts.upper), fd_path(parts.work));
    for (key, value) in PINNED {
        options.push_str(&format!(",{key}={value}"));
    }
    for flag in flags(parts) {
        options.push(',');
        options.push_str(flag);
    }
    options
}

/// Gives this thread, and with it a process that has no other, a mount namespace of its own whose mounts nobody else sees.
pub fn unshare_private() -> Result<(), SysError> {
    super::ns::unshare_mounts()?;
    make_private("/", true)
}

/// Mounts an overlay with mount(2) over the directory `place` and returns it detached. To be called after
/// [`unshare_private`]: the mount at `place` goes when this process leaves that namespace.
pub fn overlay_by_options(parts: &Overlay<'_>, place: &Path) -> Result<OwnedFd, SysError> {
    let options = overlay_options(parts);
    let length = options.len();
    let data = CString::new(options).map_err(|_| SysError::new("mount", "overlay", rustix::io::Errno::INVAL))?;
    rustix::mount::mount(SOURCE, place, "overlay", MountFlags::empty(), Some(data.as_c_str()))
        .call("mount", || format!("overlay, {} lower layers, {length} bytes of options", parts.lowers.len()))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(CWD, place, flags).call("open_tree", || place.display().to_string())
}

/// What the kernel says about a failed mount, read from the filesystem context.
pub(super) fn kernel_log(context: BorrowedFd<'_>) -> String {
    let mut text = String::new();
    let mut buffer = [0u8; 512];
    while let Ok(n) = rustix::io::read(context, &mut buffer) {
        if n == 0 {
            break;
        }
        text.push_str("; ");
        text.push_str(String::from_utf8_lossy(&buffer[..n]).trim_end());
    }
    text
}

/// A detached copy of the mount tree at `fd` (the mount itself and, if `recursive`, all below it).
pub fn clone_tree(fd: BorrowedFd<'_>, recursive: bool, on: &dyn Display) -> Result<OwnedFd, SysError> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(fd, "", flags).call("open_tree", || on.to_string())
}

/// Attaches the detached mount `from` at the object that `to` stands for.
pub fn attach(from: BorrowedFd<'_>, to: BorrowedFd<'_>, on: &dyn Display) -> Result<(), SysError> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(from, "", to, "", flags).call("move_mount", || on.to_string())
}

/// Opens what `path` names beneath `root`, following no symbolic link and leaving no mount behind (`O_PATH`).
pub fn open_beneath(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, rustix::io::Errno> {
    let relative = path.strip_prefix("/").unwrap_or(path);
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(root, relative, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how) {
            // A rename somewhere on the system made the kernel unsure; it asks to try again.
            Err(rustix::io::Errno::AGAIN) => continue,
            other => return other,
        }
    }
}

/// Stops mount events from leaving or reaching the mount at `path` (with `recursive`, those below it too).
pub fn make_private(path: &str, recursive: bool) -> Result<(), SysError> {
    let mut flags = MountPropagationFlags::PRIVATE;
    if recursive {
        flags |= MountPropagationFlags::REC;
    }
    rustix::mount::mount_change(path, flags).call("mount", || format!("{path}, private"))
}

/// Makes `new_root` (an attached mount) the root of this mount namespace and lazily unmounts the old one.
///
/// The old tree is made private first, so that its unmounting reaches no peer.
pub fn pivot_into(new_root: BorrowedFd<'_>) -> Result<(), SysError> {
    rustix::process::fchdir(new_root).call("fchdir", || "new root".into())?;
    rustix::process::pivot_root(".", ".").call("pivot_root", || "., .".into())?;
    // The old root is now mounted over the new one at "/", and the working directory is still the new one below it.
    make_private("/", true)?;
    rustix::mount::unmount("/", UnmountFlags::DETACH).call("umount2", || "old root".into())?;
    rustix::process::chdir("/").call("chdir", || "/".into())
}

/// A detached, read-only copy of the mount of one file.
pub fn read_only_file(fd: BorrowedFd<'_>) -> Result<OwnedFd, SysError> {
    let tree = clone_tree(fd, false, &"a file")?;
    let read_only = MountAttr { set: mountattr::RDONLY, propagation: 0 };
    mountattr::set(&tree, read_only, false)?;
    Ok(tree)
}

/// Whether the mount that `fd` lies on is read-only.
pub fn is_read_only(fd: BorrowedFd<'_>) -> Result<bool, SysError> {
    let stat = rustix::fs::fstatvfs(fd).call("fstatvfs", || fd_path(fd))?;
    Ok(stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// The root directory of this process as a descriptor.
pub fn root_dir() -> Result<OwnedFd, SysError> {
    rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .call("open", || "/".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upper_is_named_where_its_name_is_plain() {
        let dir = tempfile::tempdir().unwrap();
        for (name, ends) in [("a,b/01ABC/upper", "/../../01ABC/upper"), ("a,b/upper", "/../upper"), ("x/y:z", "")] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            let fd = std::fs::File::open(&path).unwrap();
            let named = named_path(fd.as_fd());
            assert_eq!(named, format!("{}{ends}", fd_path(fd.as_fd())));
            assert_eq!(std::fs::canonicalize(&named).unwrap(), std::fs::canonicalize(&path).unwrap());
        }
        let deep = dir.path().join("01ABC/upper/home/me/.x/my-work");
        std::fs::create_dir_all(&deep).unwrap();
        let fd = std::fs::File::open(&deep).unwrap();
        let named = named_path(fd.as_fd());
        assert!(named.ends_with("/01ABC/upper/home/me/.x/my-work"), "{named}");
        assert_eq!(std::fs::canonicalize(&named).unwrap(), std::fs::canonicalize(&deep).unwrap());
    }
}
