//! What the host's kernel can do, found by trying each thing, in children and detached mounts of which nothing stays.
//!
//! Versions are not asked for: distributions backport, and filters and security modules forbid. What is found is plain
//! data; what follows from it is for others to say.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::proc::PidFd;
use super::process::{self, Fork, exit_now, fork, in_child};
use super::{Call, SysError, attributes, landlock, mount, ns};

/// Why something could not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Call, object and answer.
    pub text: String,
    /// The answer, where it was an errno.
    pub errno: Option<i32>,
}

impl Failure {
    fn new(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), errno: None }
    }
}

impl From<SysError> for Failure {
    fn from(err: SysError) -> Failure {
        Failure { errno: err.errno(), text: err.to_string() }
    }
}

/// Whether something worked when it was tried.
pub type Tried = Result<(), Failure>;

/// What the kernel can do for this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    /// The effective user id is 0.
    pub root: bool,
    /// fsopen, fsmount, open_tree and move_mount.
    pub mount_api: Tried,
    /// overlayfs takes its lower directories one a call (`lowerdir+`).
    pub lowerdir_append: Tried,
    /// mount_setattr makes a detached copy of this program's file read-only.
    pub read_only_binary: Tried,
    /// openat2 holds a path beneath a directory, refuses symbolic links, and resolves inside a root.
    pub openat2: Tried,
    /// pidfd_open, pidfd_send_signal.
    pub pidfd_signal: Tried,
    /// setns with a pidfd, into several namespaces at once.
    pub pidfd_setns: Tried,
    /// waitid tells of an end and leaves the child (`WNOWAIT`), and reaps by pidfd.
    pub wait_nowait: Tried,
    /// close_range with `CLOSE_RANGE_CLOEXEC`.
    pub close_range: Tried,
    /// A seccomp filter can be loaded and does what it says.
    pub seccomp: Tried,
    /// A user namespace can be made, with all capabilities in it.
    pub user_namespaces: Tried,
    /// A session keyring can be joined.
    pub keyring: Tried,
    /// The version of Landlock, if it is on.
    pub landlock: Option<u32>,
    /// AppArmor is on.
    pub apparmor: bool,
    /// SELinux is on.
    pub selinux: bool,
}

impl Features {
    /// Tries everything. Takes some milliseconds; the process must be single-threaded (see [`process::fork`]).
    pub fn probe() -> Features {
        Features {
            root: rustix::process::geteuid().is_root(),
            mount_api: child(mount_api),
            lowerdir_append: child(lowerdir_append),
            read_only_binary: child(read_only_binary),
            openat2: child(openat2),
            pidfd_signal: child(pidfd_signal),
            pidfd_setns: child(pidfd_setns),
            wait_nowait: child(wait_nowait),
            close_range: child(close_range),
            seccomp: child(seccomp),
            user_namespaces: child(user_namespaces),
            keyring: child(keyring),
            landlock: landlock::version(),
            apparmor: std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
                .is_ok_and(|text| text.trim() == "Y"),
            selinux: Path::new("/sys/fs/selinux/enforce").exists(),
        }
    }
}

/// Tries `work` in a child, whose changes to itself end with it.
fn child(work: fn() -> Tried) -> Tried {
    let (exit, said) = in_child(|channel| {
        process::close_others_in_child(&[channel.as_fd()]);
        match work() {
            Ok(()) => 0,
            Err(failure) => {
                say(channel, &failure);
                1
            }
        }
    })?;
    match (exit.code, exit.signal) {
        (Some(0), _) => Ok(()),
        (_, Some(signal)) => Err(Failure::new(format!("the trial was ended by signal {signal}"))),
        _ => Err(heard(&said)),
    }
}

/// A failure as bytes: the errno or 0 in four, then the text.
fn say(channel: OwnedFd, failure: &Failure) {
    let message = [&failure.errno.unwrap_or(0).to_ne_bytes(), failure.text.as_bytes()].concat();
    // Without a reader nobody is left to tell.
    let _ = std::fs::File::from(channel).write_all(&message);
}

fn heard(said: &[u8]) -> Failure {
    let (errno, text) = said
        .split_first_chunk()
        .map_or((0, &b"the trial ended without a word"[..]), |(errno, text)| (i32::from_ne_bytes(*errno), text));
    Failure { text: String::from_utf8_lossy(text).into_owned(), errno: Some(errno).filter(|n| *n != 0) }
}

fn expect(true_of_the_kernel: bool, otherwise: &str) -> Tried {
    if true_of_the_kernel { Ok(()) } else { Err(Failure::new(otherwise)) }
}

/// A process that waits until it is killed, or until this one ends. Dropping it kills and reaps it.
#[derive(Debug)]
pub struct Waiting {
    pid: i32,
    hold: Option<OwnedFd>,
}

impl Waiting {
    /// Starts one, which does `first` before it waits.
    ///
    /// # Errors
    /// That of `first`, or of starting it.
    pub fn start(first: impl FnOnce() -> Result<(), SysError>) -> Result<Waiting, Failure> {
        let pipe = || {
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).call("pipe2", || "of a waiting process".into())
        };
        let ((wait, hold), (listen, channel)) = (pipe()?, pipe()?);
        let pid = match fork()? {
            Fork::Child => {
                drop((hold, listen));
                process::close_others_in_child(&[wait.as_fd(), channel.as_fd()]);
                match first() {
                    Ok(()) => drop(channel),
                    Err(err) => say(channel, &err.into()),
                }
                // Ends with the last copy of the other side, which is our parent's.
                let _ = rustix::io::read(&wait, &mut [0u8; 1]);
                exit_now(0)
            }
            Fork::Parent(pid) => pid,
        };
        let waiting = Waiting { pid, hold: Some(hold) };
        drop(channel);
        let mut said = Vec::new();
        std::fs::File::from(listen).take(4096).read_to_end(&mut said).call("read", || "a waiting process".into())?;
        if said.is_empty() { Ok(waiting) } else { Err(heard(&said)) }
    }

    /// Its id.
    pub fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It ends by itself now, should the signal be refused.
        self.hold = None;
        // Our own child until it is reaped, here or by the test of it; else both calls find nobody.
        if let Ok(None) = process::peek(self.pid) {
            let _ = PidFd::of(self.pid).and_then(|pidfd| pidfd.send(libc::SIGKILL));
        }
        let _ = process::wait(self.pid, true);
    }
}

/// A mount namespace of this process's own, from which nothing reaches another.
fn own_mounts() -> Result<(), SysError> {
    ns::unshare_mounts()?;
    mount::make_private("/", true)
}

fn mount_api() -> Tried {
    own_mounts()?;
    let on = || "tmpfs".to_owned();
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).call("fsopen", on)?;
    rustix::mount::fsconfig_create(context.as_fd()).call("fsconfig", on)?;
    let made = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        .call("fsmount", on)?;
    // Attached first: before Linux 6.15 a mount that is nowhere can't be copied, and nobody here needs that.
    mount::attach(made.as_fd(), mount::root_dir()?.as_fd(), &"/")?;
    mount::clone_tree(made.as_fd(), true, &"tmpfs")?;
    Ok(())
}

fn lowerdir_append() -> Tried {
    Ok(mount::overlay_takes_lower_one_by_one()?)
}

fn read_only_binary() -> Tried {
    let path = "/proc/self/exe";
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).call("open", || path.into())?;
    let copy = mount::read_only_file(file.as_fd())?;
    expect(mount::is_read_only(copy.as_fd())?, "mount_setattr: the copy is not read-only")
}

fn openat2() -> Tried {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let dir = mount::open_dir_path(Path::new("/proc"))?;
    let open = |path: &str, how| rustix::fs::openat2(&dir, path, flags, Mode::empty(), how);
    for (path, how, want) in [
        ("self", ResolveFlags::BENEATH, None),
        ("..", ResolveFlags::BENEATH, Some(Errno::XDEV)),
        ("self", ResolveFlags::NO_SYMLINKS, Some(Errno::LOOP)),
        ("self/exe", ResolveFlags::NO_MAGICLINKS, Some(Errno::LOOP)),
        ("../..", ResolveFlags::IN_ROOT, None),
    ] {
        let on = || format!("/proc, {path}, {how:?}");
        match (open(path, how), want) {
            (Ok(_), None) => {}
            (Err(errno), Some(want)) if errno == want => {}
            (Err(errno), _) => return Err(SysError::new("openat2", on(), errno).into()),
            (Ok(_), Some(_)) => return Err(Failure::new(format!("openat2({}) was not refused", on()))),
        }
    }
    Ok(())
}

fn pidfd_signal() -> Tried {
    let waiting = Waiting::start(|| Ok(()))?;
    PidFd::of(waiting.pid())?.send(libc::SIGKILL)?;
    let exit = process::wait(waiting.pid(), true)?;
    expect(exit.is_some_and(|e| e.signal == Some(libc::SIGKILL)), "pidfd_send_signal: the signal did not arrive")
}

fn pidfd_setns() -> Tried {
    let other = Waiting::start(|| ns::unshare(libc::CLONE_NEWUTS | libc::CLONE_NEWIPC))?;
    let pidfd = PidFd::of(other.pid())?;
    ns::join(pidfd.as_fd(), ns::differing(other.pid())?)?;
    expect(ns::differing(other.pid())? == 0, "setns: the namespaces are not those of the process")
}

fn wait_nowait() -> Tried {
    let waiting = Waiting::start(|| Ok(()))?;
    let pidfd = PidFd::of(waiting.pid())?;
    pidfd.send(libc::SIGKILL)?;
    pidfd.wait_ended(std::time::Duration::from_secs(5)).call("poll", || "a pidfd".into())?;
    // Twice: the first look must not have reaped it.
    let seen = (process::peek(waiting.pid())?, process::peek(waiting.pid())?, pidfd.try_reap()?);
    let killed = |exit: Option<process::Exit>| exit.is_some_and(|e| e.signal == Some(libc::SIGKILL));
    expect(killed(seen.0) && killed(seen.1) && killed(seen.2), "waitid: WNOWAIT did not leave the child")
}

fn close_range() -> Tried {
    let fd = rustix::fs::open("/dev/null", OFlags::RDONLY, Mode::empty()).call("open", || "/dev/null".into())?;
    attributes::close_on_exec_from(3)?;
    let flags = rustix::io::fcntl_getfd(&fd).call("fcntl", || "F_GETFD".into())?;
    expect(flags.contains(rustix::io::FdFlags::CLOEXEC), "close_range: the descriptor is still inherited")
}

/// A filter that gives mkdirat an errno of its own and allows all else.
fn seccomp_program(errno: u32) -> Vec<u8> {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const NUMBER_AT: u32 = 0;
    let list = [
        (LOAD_WORD, 0u8, 0u8, NUMBER_AT),
        (JUMP_IF_EQUAL, 0, 1, libc::SYS_mkdirat as u32),
        (RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        (RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    list.iter()
        .flat_map(|(code, jt, jf, k)| [&code.to_ne_bytes()[..], &[*jt, *jf], &k.to_ne_bytes()].concat())
        .collect()
}

fn seccomp() -> Tried {
    attributes::set_no_new_privs()?;
    attributes::load_seccomp(&seccomp_program(libc::EXFULL as u32), 0)?;
    let answer = rustix::fs::mkdirat(rustix::fs::CWD, c"", Mode::empty());
    expect(answer == Err(Errno::XFULL), "seccomp: the filter is loaded and does not filter")
}

fn user_namespaces() -> Tried {
    ns::unshare(libc::CLONE_NEWUSER)?;
    // Some distributions allow the namespace and take its capabilities away.
    Ok(ns::unshare(libc::CLONE_NEWUTS)?)
}

fn keyring() -> Tried {
    match attributes::join_session_keyring(c"_agentsbx.check")? {
        true => Ok(()),
        false => Err(SysError::new("keyctl", "join session keyring", Errno::NOSYS).into()),
    }
}

/// Whether `trusted.*` attributes can be kept on `dir`: overlayfs marks opaque directories with them.
pub fn trusted_xattr(dir: BorrowedFd<'_>) -> Tried {
    let (name, value) = ("trusted.agentsbx.check", b"y");
    rustix::fs::fsetxattr(dir, name, value, XattrFlags::empty()).call("fsetxattr", || name.into())?;
    let mut read = [0u8; 4];
    let got = rustix::fs::fgetxattr(dir, name, &mut read[..]).call("fgetxattr", || name.into())?;
    rustix::fs::fremovexattr(dir, name).call("fremovexattr", || name.into())?;
    expect(read[..got] == value[..], "fgetxattr: another value than was set")
}

/// Whether writes through an overlay arrive in its upper as they should. `mounted` is the root of the (detached) mount,
/// `upper` its upper directory; the lower layer has a file `gone` and a directory `anew`.
pub fn overlay_writes(mounted: BorrowedFd<'_>, upper: BorrowedFd<'_>) -> Tried {
    let new = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = rustix::fs::openat(mounted, "made", new, Mode::RWXU).call("openat", || "overlay, made".into())?;
    rustix::io::write(&made, b"x").call("write", || "overlay, made".into())?;
    rustix::fs::unlinkat(mounted, "gone", AtFlags::empty()).call("unlinkat", || "overlay, gone".into())?;
    rustix::fs::unlinkat(mounted, "anew", AtFlags::REMOVEDIR).call("unlinkat", || "overlay, anew".into())?;
    rustix::fs::mkdirat(mounted, "anew", Mode::RWXU).call("mkdirat", || "overlay, anew".into())?;
    let stat = |name: &str| {
        rustix::fs::statat(upper, name, AtFlags::SYMLINK_NOFOLLOW).call("fstatat", || format!("upper, {name}"))
    };
    expect(stat("made")?.st_size == 1, "overlay: what was written is not in the upper")?;
    let gone = stat("gone")?;
    let whiteout = FileType::from_raw_mode(gone.st_mode).is_char_device() && gone.st_rdev == 0;
    expect(whiteout, "overlay: a deleted file left no whiteout")?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let anew = rustix::fs::openat(upper, "anew", flags, Mode::empty()).call("openat", || "upper, anew".into())?;
    let mut value = [0u8; 4];
    let name = "trusted.overlay.opaque";
    let got =
        rustix::fs::fgetxattr(&anew, name, &mut value[..]).call("fgetxattr", || format!("upper, anew, {name}"))?;
    expect(value[..got] == *b"y", "overlay: a directory made anew is not opaque")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests run in threads: a child that waits would hold a copy of the other's pipe.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// What needs no privilege works wherever the tests run.
    #[test]
    fn what_every_supported_kernel_has() {
        let _turn = ONE_AT_A_TIME.lock();
        let found = Features::probe();
        assert_eq!(found.openat2, Ok(()));
        assert_eq!(found.pidfd_signal, Ok(()));
        assert_eq!(found.wait_nowait, Ok(()));
        assert_eq!(found.close_range, Ok(()));
        assert_eq!(found.seccomp, Ok(()));
    }

    #[test]
    fn failures_come_back_from_the_child_with_their_errno() {
        let _turn = ONE_AT_A_TIME.lock();
        let failed = child(|| Err(SysError::new("fsopen", "overlay", Errno::PERM).into())).unwrap_err();
        assert_eq!(failed.errno, Some(libc::EPERM));
        assert!(failed.text.starts_with("fsopen(overlay): "), "{failed:?}");
        let killed = child(|| {
            let _ = PidFd::of(rustix::process::getpid().as_raw_pid()).map(|me| me.send(libc::SIGKILL));
            Ok(())
        });
        assert_eq!(killed.unwrap_err(), Failure::new("the trial was ended by signal 9"));
        assert_eq!(child(|| Err(Failure::new("x"))).unwrap_err(), Failure::new("x"));
        assert_eq!(child(|| exit_now(3)).unwrap_err().errno, None);
    }

    #[test]
    fn a_waiting_process_is_gone_when_it_is_dropped() {
        let _turn = ONE_AT_A_TIME.lock();
        let waiting = Waiting::start(|| Ok(())).unwrap();
        let pid = waiting.pid();
        assert_eq!(process::peek(pid).unwrap(), None);
        drop(waiting);
        assert_eq!(process::peek(pid).unwrap_err().errno(), Some(libc::ECHILD));
        let failed = Waiting::start(|| Err(SysError::new("unshare", "x", Errno::PERM))).unwrap_err();
        assert_eq!(failed.errno, Some(libc::EPERM));
    }

    #[test]
    fn a_directory_is_no_overlay() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("anew")).unwrap();
        std::fs::File::create(dir.path().join("gone")).unwrap();
        let fd = std::fs::File::open(dir.path()).unwrap();
        // The same directory on both sides: what is deleted is just gone.
        assert!(overlay_writes(fd.as_fd(), fd.as_fd()).unwrap_err().text.starts_with("fstatat(upper, gone)"));
    }
}
