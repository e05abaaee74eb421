//! The mounts that make a container's root filesystem, as containerd lists them, and taking them away again.
//!
//! Each is made detached and then attached, so that one that is not right is never seen. What is mounted is an image's, made
//! by anybody: below the target no symbolic link leads out of it.

mod ids;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use containerd_shim_protos::api::Mount;
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use self::ids::Ids;
use super::ShimError;
use crate::sys::fsmount::{self, FsOption};
use crate::sys::loopdev::LoopDevice;
use crate::sys::mountattr::{self, MountAttr};
use crate::sys::{SysError, mapped, mount, mountinfo};

/// How many times to unmount what is in use, before it is taken away lazily.
const TRIES: u32 = 20;
/// How long to wait in between.
const PAUSE: Duration = Duration::from_millis(50);
/// The most mounts that are taken from one place.
const STACKED: usize = 1000;
/// This thread's mounts.
const MOUNTINFO: &str = "/proc/thread-self/mountinfo";

/// One mount's options, read.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    set: u64,
    clear: u64,
    propagation: Option<(u64, bool)>,
    /// A bind mount, of all below too if true.
    bind: Option<bool>,
    image: bool,
    /// Whose its files are, where they are not seen to be whose they are on disk.
    ids: Option<Ids>,
    data: Vec<FsOption>,
}

/// Mounts what is listed on the directory `target`, in order. If one fails those before it are taken away again.
///
/// # Errors
/// [`ShimError::Invalid`] for options that are not understood, [`ShimError::Io`] for the mount that failed.
pub fn mount_all(mounts: &[Mount], target: &Path) -> Result<(), ShimError> {
    let mut mounted = Vec::new();
    for each in mounts {
        match mount_one(each, target) {
            Ok(fd) => mounted.push(fd),
            Err(err) => {
                for fd in mounted.iter().rev() {
                    if let Err(err) = fsmount::unmount_tree(fd.as_fd()) {
                        tracing::warn!(target = %target.display(), %err, "a mount of a failed list stays");
                    }
                }
                return Err(err);
            }
        }
    }
    Ok(())
}

/// Mounts one and returns it.
fn mount_one(each: &Mount, target: &Path) -> Result<OwnedFd, ShimError> {
    let options = read(each)?;
    let failed = |err: SysError| ShimError::Mount { what: describe(each), target: target.to_owned(), source: err };
    let place = || -> Result<OwnedFd, SysError> {
        let root = fsmount::open_target(target)?;
        let below = each.target.trim_start_matches('/');
        if below.is_empty() { Ok(root) } else { fsmount::open_in_root(root.as_fd(), Path::new(below)) }
    };
    let on = place().map_err(failed)?;
    let attr = MountAttr { set: options.set, propagation: 0 };
    let mounted = (|| {
        let userns = options.ids.as_ref().map(Ids::namespace).transpose()?;
        let detached = match options.bind {
            Some(recursive) => {
                let source = fsmount::open_source(Path::new(&each.source))?;
                let tree = mount::clone_tree(source.as_fd(), recursive, &each.source)?;
                if (options.set, options.clear) != (0, 0) {
                    mountattr::change(&tree, attr, options.clear, false)?;
                }
                if let Some(userns) = &userns {
                    mountattr::map_ids(&tree, userns.as_fd(), recursive)?;
                }
                Some(tree)
            }
            None => {
                let read_only = options.set & mountattr::RDONLY != 0;
                // The mount keeps the device; ours goes at the end of this function.
                let device = options.image.then(|| LoopDevice::on(Path::new(&each.source), read_only)).transpose()?;
                let source =
                    device.as_ref().map_or(each.source.as_str(), |device| device.path().to_str().unwrap_or_default());
                let flags = MountAttrFlags::from_bits_retain(u32::try_from(options.set).unwrap_or_default());
                match &userns {
                    // Of an overlay the kernel only maps the layers.
                    Some(userns) if each.type_ == "overlay" => {
                        Some(mapped::overlay(source, &options.data, flags, userns.as_fd())?)
                    }
                    userns => {
                        let tree = fsmount::detached(&each.type_, source, &options.data, flags)?;
                        if let (Some(tree), Some(userns)) = (&tree, userns) {
                            mountattr::map_ids(tree, userns.as_fd(), false)?;
                        }
                        tree
                    }
                }
            }
        };
        let mounted = match detached {
            Some(tree) => {
                mount::attach(tree.as_fd(), on.as_fd(), &target.display())?;
                tree
            }
            None => {
                fsmount::overlay_on(on.as_fd(), &each.source, &options.data)?;
                let mounted = place()?;
                mountattr::set(&mounted, attr, false)?;
                mounted
            }
        };
        if let Some((propagation, recursive)) = options.propagation {
            let attr = MountAttr { set: 0, propagation };
            mountattr::set(&mounted, attr, recursive).inspect_err(|_| undo(&mounted))?;
        }
        Ok(mounted)
    })();
    mounted.map_err(failed)
}

fn undo(mounted: &OwnedFd) {
    if let Err(err) = fsmount::unmount_tree(mounted.as_fd()) {
        tracing::warn!(%err, "a mount that is not right stays");
    }
}

fn describe(each: &Mount) -> String {
    format!("{} of {:?}", each.type_, each.source)
}

/// Reads a mount's options.
fn read(each: &Mount) -> Result<Options, ShimError> {
    let invalid = |why: String| ShimError::Invalid(format!("mount {}: {why}", describe(each)));
    let mut options = Options::default();
    let mut ids = Ids::default();
    if each.type_ == "bind" {
        options.bind = Some(false);
    }
    for word in each.options.iter().flat_map(|word| split(&each.type_, word)) {
        if let Some((set, clear)) = mountattr::flags_of(word) {
            options.set = options.set & !clear | set;
            options.clear = options.clear & !set | clear;
            // The file system, too, is not written to then.
            if word == "ro" {
                options.data.push((word.to_owned(), None));
            }
        } else if let Some(propagation) = mountattr::propagation_of(word) {
            options.propagation = Some(propagation);
        } else {
            match word {
                "bind" => options.bind = Some(options.bind.unwrap_or_default()),
                "rbind" => options.bind = Some(true),
                "loop" => options.image = true,
                "" | "defaults" | "async" => {}
                // For those who list mounts, and for containerd itself.
                word if word.starts_with("X-") || word.starts_with("x-") => {}
                "remount" => return Err(invalid("option remount".into())),
                word => match word.split_once('=') {
                    Some((key, value)) if ids::KEYS.contains(&key) => {
                        ids.take(key, value).map_err(|why| invalid(format!("option {word}: {why}")))?;
                    }
                    Some((key, value)) => options.data.push((key.to_owned(), Some(unquoted(key, value).to_owned()))),
                    None => options.data.push((word.to_owned(), None)),
                },
            }
        }
    }
    options.ids = (!ids.none().map_err(invalid)?).then_some(ids);
    Ok(options)
}

/// The options in one string: containerd gives one in each, but snapshotters may give several with commas. The paths of an
/// overlay and lists of ids can have commas themselves, and are alone; SELinux's labels have them in quotation marks.
fn split<'a>(kind: &str, word: &'a str) -> Vec<&'a str> {
    let is = |keys: &[&str]| word.split_once('=').is_some_and(|(key, _)| keys.contains(&key));
    if is(&ids::KEYS) || kind == "overlay" && is(&["lowerdir", "upperdir", "workdir"]) {
        return vec![word];
    }
    let mut quoted = false;
    let ends = |c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    };
    word.split(ends).collect()
}

/// A label without the quotation marks that containerd puts around it: they are the option string's, not the label's.
fn unquoted<'a>(key: &str, value: &'a str) -> &'a str {
    let inner = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.filter(|_| fsmount::LABELS.contains(&key)).unwrap_or(value)
}

/// Takes away all that is mounted on the directory `target` and below it; nothing mounted, or no such directory, is no
/// error. What stays in use for a second is taken away lazily.
///
/// # Errors
/// [`ShimError::Io`] where the kernel refuses for another reason.
pub fn unmount_all(target: &Path) -> Result<(), ShimError> {
    let failed = |errno: Errno| ShimError::io("unmount", target)(errno.into());
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(failed(Errno::INVAL));
    };
    let parent = match mount::open_dir_path(parent) {
        Err(err) if err.errno() == Some(libc::ENOENT) => return Ok(()),
        opened => opened.map_err(|err| ShimError::io("open", parent)(err.into()))?,
    };
    let mut lazily = false;
    let mut tries = 0;
    for _ in 0..STACKED {
        match fsmount::unmount_in(parent.as_fd(), Path::new(name), lazily) {
            Ok(()) => {}
            // Nothing is mounted there (any more), or it is a symbolic link.
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(Errno::BUSY) if !lazily => {
                if unmount_below(&parent, Path::new(name)) {
                    continue;
                }
                tries += 1;
                if tries == TRIES {
                    tracing::warn!(target = %target.display(), "in use for long: it is unmounted lazily");
                    lazily = true;
                } else {
                    std::thread::sleep(PAUSE);
                }
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::BUSY))
}

/// Takes away what is mounted below `name` in `parent`, the last mounted first; whether any was.
fn unmount_below(parent: &OwnedFd, name: &Path) -> bool {
    let Ok(text) = std::fs::read(MOUNTINFO) else { return false };
    let Ok(top) = std::fs::read_link(mount::fd_path(parent.as_fd())) else { return false };
    let mut any = false;
    for (point, _) in mountinfo::below(&text, &top.join(name)).into_iter().rev() {
        let Ok(relative) = point.strip_prefix(&top) else { continue };
        let (Some(dir), Some(last)) = (relative.parent(), relative.file_name()) else { continue };
        // By the directory that it is in, so that no link on the way leads elsewhere.
        let Ok(dir) = mount::open_beneath(parent.as_fd(), dir) else { continue };
        any |= fsmount::unmount_in(dir.as_fd(), Path::new(last), false).is_ok();
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    pub fn of(kind: &str, source: &str, options: &[&str]) -> Mount {
        Mount {
            type_: kind.into(),
            source: source.into(),
            options: options.iter().map(|o| (*o).to_owned()).collect(),
            ..Mount::default()
        }
    }

    #[test]
    fn options() {
        let overlay = read(&of(
            "overlay",
            "overlay",
            &["ro,nosuid", "index=off", "lowerdir=/a,b:/c", "X-containerd.x=1", "userxattr"],
        ));
        let data = [("ro", None), ("index", Some("off")), ("lowerdir", Some("/a,b:/c")), ("userxattr", None)];
        assert_eq!(
            overlay.unwrap(),
            Options {
                set: mountattr::RDONLY | mountattr::NOSUID,
                data: data.map(|(key, value)| (key.to_owned(), value.map(str::to_owned))).to_vec(),
                ..Options::default()
            }
        );
        // containerd writes the label of a container with SELinux so.
        let labelled =
            read(&of("overlay", "overlay", &["userxattr", r#"ro,context="u:r:t:s0:c1,c2",index=off"#])).unwrap();
        let data = [("userxattr", None), ("ro", None), ("context", Some("u:r:t:s0:c1,c2")), ("index", Some("off"))];
        assert_eq!(labelled.data, data.map(|(key, value)| (key.to_owned(), value.map(str::to_owned))));
        let bind = read(&of("bind", "/a", &["ro", "rbind", "rw", "noatime", "rprivate"])).unwrap();
        assert_eq!(
            (bind.bind, bind.set, bind.clear),
            (Some(true), libc::MOUNT_ATTR_NOATIME, mountattr::RDONLY | mountattr::ATIME)
        );
        assert_eq!(bind.propagation, Some((libc::MS_PRIVATE, true)));
        assert!(read(&of("ext4", "/a", &["loop"])).unwrap().image);
        assert!(matches!(read(&of("bind", "/", &["remount"])), Err(ShimError::Invalid(_))));
    }

    /// Runs `work` in a mount namespace of its own, if we may have one.
    pub fn apart(work: impl FnOnce(&Path) + Send + 'static) {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let thread = std::thread::spawn(|| {
            crate::sys::mount::unshare_private().unwrap();
            let dir = tempfile::tempdir().unwrap();
            // Overlays want a file system that can be an upper one.
            let tmpfs = of("tmpfs", "tmpfs", &["size=16m"]);
            mount_all(&[tmpfs], dir.path()).unwrap();
            work(dir.path());
            unmount_all(dir.path()).unwrap();
        });
        thread.join().unwrap();
    }

    pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
        mountinfo::below(&std::fs::read(MOUNTINFO).unwrap(), dir).into_iter().map(|(path, _)| path).collect()
    }

    pub fn make(dir: &Path, names: &[&str]) {
        for name in names {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
    }

    #[test]
    fn an_overlay_of_few_layers_and_of_many() {
        apart(|dir| {
            let long = "x".repeat(250);
            make(dir, &["rootfs", "up", "work"]);
            let mut lowers = Vec::new();
            for n in 0..120 {
                // Names that have to be escaped, and that are longer than an option can be.
                let name = if n == 7 { format!("{long}/{long}") } else { format!("a:b,{n}") };
                make(dir, &[&format!("{name}/dir")]);
                std::fs::File::create(dir.join(&name).join(format!("of-{n}"))).unwrap();
                lowers.push(dir.join(name).display().to_string().replace(':', "\\:"));
            }
            for count in [2, 120] {
                let options = [
                    format!("lowerdir={}", lowers[..count].join(":")),
                    format!("upperdir={}", dir.join("up").display()),
                    format!("workdir={}", dir.join("work").display()),
                ];
                let overlay = of("overlay", "overlay", &options.each_ref().map(String::as_str));
                mount_all(std::slice::from_ref(&overlay), &dir.join("rootfs")).unwrap();
                assert_eq!(std::fs::read_dir(dir.join("rootfs")).unwrap().count(), count + 1);
                unmount_all(&dir.join("rootfs")).unwrap();
                assert_eq!(std::fs::read_dir(dir.join("rootfs")).unwrap().count(), 0);
                // As kernels before 6.7 have to be asked.
                let on = fsmount::open_target(&dir.join("rootfs")).unwrap();
                let options = read(&overlay).unwrap();
                fsmount::overlay_on(on.as_fd(), "overlay", &options.data).unwrap();
                assert_eq!(std::fs::read_dir(dir.join("rootfs")).unwrap().count(), count + 1);
                unmount_all(&dir.join("rootfs")).unwrap();
            }
        });
    }

    #[test]
    fn binds_and_targets_below() {
        apart(|dir| {
            make(dir, &["rootfs", "tree/etc", "more"]);
            std::fs::File::create(dir.join("more/file")).unwrap();
            // A link of the image's: as root of a container it leads to its own /etc.
            symlink("/etc", dir.join("tree/link")).unwrap();
            let source = |name: &str| dir.join(name).display().to_string();
            let mut below = of("bind", &source("more"), &["bind", "ro"]);
            below.target = "/link".into();
            mount_all(&[of("bind", &source("tree"), &["rbind", "rw", "nosuid"]), below], &dir.join("rootfs")).unwrap();
            assert!(dir.join("rootfs/etc/file").exists() && !Path::new("/etc/file").exists());
            let refused = std::fs::File::create(dir.join("rootfs/etc/new")).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
            std::fs::File::create(dir.join("rootfs/new")).unwrap();
            assert_eq!(mounts_below(dir).len(), 2);
            unmount_all(&dir.join("rootfs")).unwrap();
            assert!(mounts_below(dir).is_empty() && dir.join("tree/new").exists());
        });
    }

    #[test]
    fn a_list_that_fails_leaves_nothing_and_says_why() {
        apart(|dir| {
            make(dir, &["rootfs", "a"]);
            let bind = of("bind", &dir.join("a").display().to_string(), &["bind"]);
            let missing = of("overlay", "overlay", &["lowerdir=/no/such:/a"]);
            let err = mount_all(&[bind.clone(), bind.clone(), missing], &dir.join("rootfs")).unwrap_err().to_string();
            assert!(err.contains("/no/such") && err.contains("layer 0") && err.contains("No such file"), "{err}");
            assert!(mounts_below(dir).is_empty());
            let unknown = of("no-such-filesystem", "x", &[]);
            let err = mount_all(&[bind, unknown], &dir.join("rootfs")).unwrap_err().to_string();
            assert!(err.contains("no-such-filesystem"), "{err}");
            assert!(mounts_below(dir).is_empty());
        });
    }

    #[test]
    fn an_image_by_a_loop_device() {
        apart(|dir| {
            make(dir, &["rootfs"]);
            let image = dir.join("image");
            std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
            let made = std::process::Command::new("mke2fs").args(["-q", "-t", "ext4"]).arg(&image).status();
            if !made.is_ok_and(|status| status.success()) || !Path::new("/dev/loop-control").exists() {
                return;
            }
            let mounts = [of("ext4", &image.display().to_string(), &["loop", "ro"])];
            mount_all(&mounts, &dir.join("rootfs")).unwrap();
            assert!(dir.join("rootfs/lost+found").exists());
            let refused = std::fs::File::create(dir.join("rootfs/new")).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
            let attached = || {
                let files =
                    std::fs::read_dir("/sys/block").unwrap().flatten().map(|e| e.path().join("loop/backing_file"));
                files
                    .filter_map(|file| std::fs::read_to_string(file).ok())
                    .filter(|f| f.contains(&*image.to_string_lossy()))
                    .count()
            };
            assert_eq!(attached(), 1);
            unmount_all(&dir.join("rootfs")).unwrap();
            let gone = (0..100).any(|_| {
                std::thread::sleep(Duration::from_millis(20));
                attached() == 0
            });
            assert!(gone, "the device goes with the mount");
        });
    }

    #[test]
    fn all_is_taken_away_and_no_link_followed() {
        apart(|dir| {
            make(dir, &["rootfs/a/b", "other"]);
            let tmpfs = || [of("tmpfs", "tmpfs", &[])];
            for _ in 0..3 {
                mount_all(&tmpfs(), &dir.join("rootfs")).unwrap();
                make(dir, &["rootfs/a/b"]);
                mount_all(&tmpfs(), &dir.join("rootfs/a")).unwrap();
                make(dir, &["rootfs/a/b"]);
                mount_all(&tmpfs(), &dir.join("rootfs/a/b")).unwrap();
            }
            assert_eq!(mounts_below(dir).len(), 9);
            // In use: what stays open goes with its user.
            let held = std::fs::File::open(dir.join("rootfs/a/b")).unwrap();
            unmount_all(&dir.join("rootfs")).unwrap();
            assert!(mounts_below(dir).is_empty());
            drop(held);
            mount_all(&tmpfs(), &dir.join("other")).unwrap();
            symlink(dir.join("other"), dir.join("link")).unwrap();
            unmount_all(&dir.join("link")).unwrap();
            assert_eq!(mounts_below(dir).len(), 1);
            assert!(mount_all(&tmpfs(), &dir.join("link")).is_err());
            unmount_all(&dir.join("other")).unwrap();
            unmount_all(&dir.join("none/rootfs")).unwrap();
        });
    }
}
