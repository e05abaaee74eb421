//! A file system by its type and options as engines write them, mounted detached with the new mount API; overlays with lower
//! directories of any number and length.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags};

use super::{Call, SysError, mount};

/// An option: a key, and a value unless it is a flag.
pub type FsOption = (String, Option<String>);

/// The type of overlays.
pub(super) const OVERLAY: &str = "overlay";
/// The longest value that fsconfig(2) takes, in bytes.
const VALUE_MAX: usize = 255;
/// The longest option string that mount(2) takes, in bytes: a page with its end.
const PAGE: usize = 4095;
/// SELinux's labels. In mount(2)'s option string one stands in quotation marks, since it can have commas; fsconfig(2) takes it
/// without.
pub const LABELS: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];
/// Flags of mount(2) that the option string has not.
const RDONLY: &str = "ro";

/// Makes the file system `kind` on `source`, attached nowhere. `attr` are the mount's own flags.
///
/// `None` for an overlay where the kernel does not take its lower directories one by one (before Linux 6.7): see
/// [`overlay_on`].
pub fn detached(
    kind: &str,
    source: &str,
    options: &[FsOption],
    attr: MountAttrFlags,
) -> Result<Option<OwnedFd>, SysError> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).call("fsopen", || kind.to_owned())?;
    let context = context.as_fd();
    if !source.is_empty() {
        set(context, kind, "source", source)?;
    }
    // Descriptors of directories whose paths are too long; they stay open until the file system is there.
    let mut held = Vec::new();
    for (key, value) in options {
        match value {
            Some(value) if kind == OVERLAY && key == "lowerdir" => {
                if !set_lowers(context, value, &mut held)? {
                    return Ok(None);
                }
            }
            Some(value) if kind == OVERLAY && (key == "upperdir" || key == "workdir") && value.len() > VALUE_MAX => {
                set(context, kind, key, &by_descriptor(&unescape(value), &mut held)?)?;
            }
            Some(value) => set(context, kind, key, value)?,
            None => rustix::mount::fsconfig_set_flag(context, key.as_str())
                .call("fsconfig", || format!("{kind} {key}{}", mount::kernel_log(context)))?,
        }
    }
    rustix::mount::fsconfig_create(context)
        .call("fsconfig", || format!("{kind} create, source {source:?}{}", mount::kernel_log(context)))?;
    rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attr).call("fsmount", || kind.to_owned()).map(Some)
}

fn set(context: BorrowedFd<'_>, kind: &str, key: &str, value: &str) -> Result<(), SysError> {
    rustix::mount::fsconfig_set_string(context, key, value)
        .call("fsconfig", || format!("{kind} {key}={value}{}", mount::kernel_log(context)))
}

/// Gives the lower directories one by one; false where the kernel does not take them so.
fn set_lowers(context: BorrowedFd<'_>, value: &str, held: &mut Vec<OwnedFd>) -> Result<bool, SysError> {
    if mount::overlay_takes_lower_one_by_one().is_err() {
        return Ok(false);
    }
    for (n, lower) in lowers(value).into_iter().enumerate() {
        let key = if lower.data_only { "datadir+" } else { "lowerdir+" };
        // The kernel takes the name as it is here; one that it could read in another way goes by descriptor.
        let plain = lower.path.len() <= VALUE_MAX && !lower.path.contains(['\\', ':']);
        let path = if plain { lower.path } else { by_descriptor(&lower.path, held)? };
        rustix::mount::fsconfig_set_string(context, key, path.as_str())
            .call("fsconfig", || format!("overlay {key}={path}, layer {n}{}", mount::kernel_log(context)))?;
    }
    Ok(true)
}

/// A lower directory of an overlay.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lower {
    /// As it is in the file system.
    pub(super) path: String,
    /// Only what its metadata is in another layer is taken from it.
    data_only: bool,
}

/// The directories of a `lowerdir` option: separated by colons, by two from the first that is data only on; a backslash
/// makes the next character an ordinary one.
pub(super) fn lowers(value: &str) -> Vec<Lower> {
    let mut found: Vec<Lower> = Vec::new();
    let (mut path, mut data_only) = (String::new(), false);
    let mut chars = value.chars();
    let mut colon_before = false;
    loop {
        let next = chars.next();
        match next {
            Some(':') if colon_before => data_only = true,
            Some(':') | None => {
                found.extend((!path.is_empty()).then(|| Lower { path: std::mem::take(&mut path), data_only }))
            }
            Some('\\') => path.extend(chars.next()),
            Some(c) => path.push(c),
        }
        colon_before = next == Some(':');
        if next.is_none() {
            return found;
        }
    }
}

fn unescape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        out.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    out
}

/// A short path of the directory at `path`, for as long as `held` lives.
fn by_descriptor(path: &str, held: &mut Vec<OwnedFd>) -> Result<String, SysError> {
    let dir = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .call("open", || path.to_owned())?;
    let short = mount::fd_path(dir.as_fd());
    held.push(dir);
    Ok(short)
}

/// Mounts an overlay with mount(2) on the directory `target`, for kernels for which [`detached`] does not do.
///
/// The options must fit into a page. Where they do not, the lower directories go by descriptor, which is enough for some
/// two hundred of them.
///
/// # Errors
/// `E2BIG` where even that is too long; what mount(2) gives.
pub fn overlay_on(target: BorrowedFd<'_>, source: &str, options: &[FsOption]) -> Result<(), SysError> {
    let mut held = Vec::new();
    let mut text = joined(options);
    if text.len() > PAGE {
        let mut short = options.to_vec();
        for (key, value) in &mut short {
            let Some(value) = value.as_mut().filter(|_| key == "lowerdir") else { continue };
            let mut names = String::new();
            for lower in lowers(value) {
                if !names.is_empty() {
                    names.push_str(if lower.data_only { "::" } else { ":" });
                }
                names.push_str(&by_descriptor(&lower.path, &mut held)?);
            }
            *value = names;
        }
        text = joined(&short);
    }
    let on = || format!("overlay, {} bytes of options, {} by descriptor", text.len(), held.len());
    if text.len() > PAGE {
        return Err(SysError::new(
            "mount",
            on() + ": more layers than this kernel takes (Linux 6.7 does)",
            Errno::TOOBIG,
        ));
    }
    let data = std::ffi::CString::new(text.as_str()).map_err(|_| SysError::new("mount", on(), Errno::INVAL))?;
    let read_only = options.iter().any(|(key, value)| key == RDONLY && value.is_none());
    let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    rustix::mount::mount(source, mount::fd_path(target).as_str(), OVERLAY, flags, Some(data.as_c_str()))
        .call("mount", on)
}

fn joined(options: &[FsOption]) -> String {
    let words = options.iter().filter(|(key, value)| value.is_some() || key != RDONLY);
    let word = |(key, value): &FsOption| match value {
        Some(value) if LABELS.contains(&key.as_str()) => format!("{key}=\"{value}\""),
        Some(value) => format!("{key}={}", commas_escaped(value)),
        None => key.clone(),
    };
    words.map(word).collect::<Vec<_>>().join(",")
}

/// `value` as a part of overlayfs's option string, in which a comma would end it.
fn commas_escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend([c].into_iter().chain(chars.next())),
            ',' => out.push_str("\\,"),
            c => out.push(c),
        }
    }
    out
}

/// Unmounts what is on top at `name` in the directory `dir`, not following a symbolic link.
pub fn unmount_in(dir: BorrowedFd<'_>, name: &Path, lazily: bool) -> Result<(), Errno> {
    use rustix::mount::UnmountFlags;
    let flags = UnmountFlags::NOFOLLOW | if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(Path::new(&mount::fd_path(dir)).join(name), flags)
}

/// Unmounts an attached mount, and all on it, by its descriptor.
pub fn unmount_tree(mounted: BorrowedFd<'_>) -> Result<(), SysError> {
    let path = mount::fd_path(mounted);
    rustix::mount::unmount(path.as_str(), rustix::mount::UnmountFlags::DETACH).call("umount2", || path)
}

/// Opens the directory `path` in `root` as a process that has it as its root would, to mount on it.
pub fn open_in_root(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, SysError> {
    use rustix::fs::ResolveFlags;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(root, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), how) {
            // A rename somewhere on the system made the kernel unsure; it asks to try again.
            Err(Errno::AGAIN) => continue,
            opened => return opened.call("openat2", || path.display().to_string()),
        }
    }
}

/// Opens the file or directory at `path`, to mount it elsewhere.
pub fn open_source(path: &Path) -> Result<OwnedFd, SysError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).call("open", || path.display().to_string())
}

/// Opens the directory at `path`, which must not be a symbolic link, to mount on it.
pub fn open_target(path: &Path) -> Result<OwnedFd, SysError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).call("open", || path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_directories() {
        for (value, want) in [
            ("/a", vec![("/a", false)]),
            ("/a:/b", vec![("/a", false), ("/b", false)]),
            ("/a\\:b:/c\\\\", vec![("/a:b", false), ("/c\\", false)]),
            ("/a:/b::/d::/e", vec![("/a", false), ("/b", false), ("/d", true), ("/e", true)]),
            ("", vec![]),
        ] {
            let got: Vec<_> = lowers(value).into_iter().map(|lower| (lower.path, lower.data_only)).collect();
            assert_eq!(got, want.into_iter().map(|(p, d)| (p.to_owned(), d)).collect::<Vec<_>>(), "{value}");
        }
    }

    #[test]
    fn an_option_string() {
        let options = [("ro", None), ("lowerdir", Some("/a,b:/c\\,d\\:")), ("userxattr", None)];
        let options = options.map(|(key, value)| (key.to_owned(), value.map(str::to_owned)));
        assert_eq!(joined(&options), "lowerdir=/a\\,b:/c\\,d\\:,userxattr");
        let label = [("context".to_owned(), Some("u:r:t:s0:c1,c2".to_owned()))];
        assert_eq!(joined(&label), r#"context="u:r:t:s0:c1,c2""#);
    }
}
