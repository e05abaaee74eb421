//! The steps, in the order in which they are taken, each with its reason.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};

use super::{InitError, Plan, Stdio, program};
use crate::error::errno_text;
use crate::rootfs::view;
use crate::spec::passwd;
use crate::sys::mountattr::{self, MountAttr};
use crate::sys::process::{Door, Fork};
use crate::sys::{SysError, attributes, landlock, ns, process, signal, socket, tty};

/// A step's name and what it does.
pub(super) type Step = (&'static str, fn(&mut State<'_>) -> Result<(), InitError>);

/// What steps leave for later ones.
pub(super) struct State<'a> {
    plan: Plan,
    cgroups: &'a [PathBuf],
    channel: RawFd,
    root: Option<OwnedFd>,
    layered: Vec<(PathBuf, OwnedFd)>,
    apparmor: Option<OwnedFd>,
    selinux: Option<OwnedFd>,
    cwd_later: bool,
    program: Option<CString>,
    /// Where the pid of a second process goes, if one is to become the command.
    second: Option<OwnedFd>,
    /// By which the second process joins the groups.
    doors: Vec<Door>,
}

impl<'a> State<'a> {
    pub(super) fn new(plan: Plan, cgroups: &'a [PathBuf], channel: RawFd, second: Option<OwnedFd>) -> State<'a> {
        State {
            plan,
            cgroups,
            channel,
            root: None,
            layered: Vec::new(),
            apparmor: None,
            selinux: None,
            cwd_later: false,
            program: None,
            second,
            doors: Vec::new(),
        }
    }
}

pub(super) const STEPS: &[Step] = &[
    // First, so that a supervisor that dies from here on takes the command with it.
    ("tie to the supervisor", tie),
    ("look for the supervisor", supervised),
    // Before anything is done that the container's limits should cover.
    ("cgroups", cgroups),
    // The container must not look into a process that still has the host's descriptors.
    ("hide", |_| sys("hide from the container", attributes::set_dumpable(false))),
    // Raising limits or priorities takes capabilities of the host's user namespace, so before it is left.
    ("limits", limits),
    // By the host's /proc; a container could have mounted anything on its own.
    ("open label files", open_labels),
    ("keyring", keyring),
    // Where the kernel could not mount it detached, in the host's view of the layers, so before that is left.
    ("layered root", mount_root),
    ("namespaces", namespaces),
    ("view", enter_view),
    // Only now is anything of it seen in the container's pid namespace.
    ("second process", second_process),
    // A session of its own, before a terminal can become its controlling one.
    ("session", session),
    ("terminal", terminal),
    ("labels", write_labels),
    ("personality", personality),
    ("umask", |s| {
        rustix::process::umask(Mode::from_raw_mode(s.plan.user.umask));
        Ok(())
    }),
    // As root first: the directory may be closed to the user.
    ("working directory", chdir),
    ("own the streams", own_streams),
    // Before a filter that may not know the call; what is opened from here on is close-on-exec by itself.
    ("close on exec", |s| {
        sys("mark descriptors close-on-exec", attributes::close_on_exec_from(3 + s.plan.preserve_fds))
    }),
    // Without no_new_privs, loading a filter takes CAP_SYS_ADMIN, which the next step may drop.
    ("seccomp, privileged", |s| if s.plan.no_new_privileges { Ok(()) } else { seccomp(s) }),
    ("identity", identity),
    // As the user: the directory may be closed to the container's root (NFS, FUSE).
    ("working directory, again", chdir_again),
    ("verify the working directory", verify_cwd),
    ("no new privileges", |s| {
        if s.plan.no_new_privileges { sys("set no_new_privs", attributes::set_no_new_privs()) } else { Ok(()) }
    }),
    ("find the program", find_program),
    // The change of ids has cleared it (prctl(2)).
    ("tie to the supervisor, again", tie),
    // Behind it neither this process nor its children see into others; before the filter, which need not allow it.
    ("fence", fence),
    // As late as can be, so that the filter need not allow what this list does.
    ("seccomp", |s| if s.plan.no_new_privileges { seccomp(s) } else { Ok(()) }),
    ("exec", execute),
];

fn sys<T>(doing: &'static str, result: Result<T, SysError>) -> Result<T, InitError> {
    result.map_err(|source| InitError::Sys { doing, source })
}

fn errno<T>(doing: &'static str, call: &'static str, on: &str, result: rustix::io::Result<T>) -> Result<T, InitError> {
    sys(doing, result.map_err(|e| SysError::new(call, on, e)))
}

fn tie(_: &mut State<'_>) -> Result<(), InitError> {
    sys("tie the command to its supervisor", attributes::set_parent_death_signal(libc::SIGKILL))
}

/// Ends this process if the supervisor died before it was tied to it.
fn supervised(state: &mut State<'_>) -> Result<(), InitError> {
    let channel = borrow(state.channel);
    let mut fds = [PollFd::from_borrowed_fd(channel, PollFlags::IN)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        match poll(&mut fds, Some(&none)) {
            Ok(0) => return Ok(()),
            // The supervisor says nothing, so there is only the end of it to read.
            Ok(_) => process::exit_now(255),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return errno("look for the supervisor", "poll", "the supervisor's socket", Err(e)),
        }
    }
}

fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    crate::sys::process::borrow_for_life(fd)
}

/// Joins the exec's groups; where a second process becomes the command, that one does, so that it alone is counted there.
fn cgroups(state: &mut State<'_>) -> Result<(), InitError> {
    const DOING: &str = "join the exec's cgroups";
    match state.second {
        Some(_) => state.doors = sys(DOING, state.cgroups.iter().map(|path| Door::open(path)).collect())?,
        None => sys(DOING, process::join_cgroups(state.cgroups))?,
    }
    Ok(())
}

fn limits(state: &mut State<'_>) -> Result<(), InitError> {
    let plan = &state.plan;
    if let Some(score) = plan.oom_score_adj {
        let path = "/proc/self/oom_score_adj";
        let write = || File::options().write(true).open(path)?.write_all(score.to_string().as_bytes());
        write().map_err(|source| InitError::Io { doing: format!("write {score} to {path}"), source })?;
    }
    if let Some((class, level)) = plan.io_priority {
        sys("set the I/O priority", attributes::set_io_priority(class, level))?;
    }
    if let Some(attr) = &plan.scheduler {
        sys("set the scheduling policy", attributes::set_scheduler(attr))?;
    }
    for (resource, soft, hard) in &plan.rlimits {
        sys("error setting rlimits", attributes::set_rlimit(*resource, *soft, *hard))?;
    }
    Ok(())
}

fn open_labels(state: &mut State<'_>) -> Result<(), InitError> {
    let open = |paths: &[&str]| {
        paths.iter().find_map(|p| rustix::fs::open(*p, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).ok())
    };
    if let Some(profile) = &state.plan.apparmor {
        let missing = || InitError::Label { label: "AppArmor", profile: profile.clone() };
        if !std::path::Path::new("/sys/module/apparmor").exists() {
            return Err(missing());
        }
        state.apparmor = Some(open(&["/proc/self/attr/apparmor/exec", "/proc/self/attr/exec"]).ok_or_else(missing)?);
    }
    if let Some(label) = &state.plan.selinux {
        let missing = || InitError::Label { label: "SELinux", profile: label.clone() };
        if !std::path::Path::new("/sys/fs/selinux/enforce").exists() {
            return Err(missing());
        }
        state.selinux = Some(open(&["/proc/self/attr/exec"]).ok_or_else(missing)?);
    }
    Ok(())
}

fn write_labels(state: &mut State<'_>) -> Result<(), InitError> {
    let write = |fd: Option<OwnedFd>, text: String, what: &str| match fd {
        Some(fd) => File::from(fd)
            .write_all(text.as_bytes())
            .map_err(|source| InitError::Io { doing: format!("{what}: apply {text:?}"), source }),
        None => Ok(()),
    };
    let profile = state.plan.apparmor.as_deref().unwrap_or_default();
    write(state.apparmor.take(), format!("exec {profile}"), "apparmor")?;
    write(state.selinux.take(), state.plan.selinux.clone().unwrap_or_default(), "selinux")
}

fn keyring(state: &mut State<'_>) -> Result<(), InitError> {
    let Some(name) = &state.plan.keyring else { return Ok(()) };
    match attributes::join_session_keyring(name) {
        // A quota of keys that is used up is no reason not to run (runc).
        Err(err) if err.errno() == Some(libc::EDQUOT) => Ok(()),
        other => sys("join the container's session keyring", other.map(drop)),
    }
}

fn namespaces(state: &mut State<'_>) -> Result<(), InitError> {
    sys("join the container's namespaces", ns::join(state.plan.pidfd.as_fd(), state.plan.namespaces))?;
    if state.plan.namespaces & libc::CLONE_NEWUSER != 0 {
        // Host ids mean nothing in there.
        sys("become root of the container's user namespace", attributes::set_ids(0, 0))?;
    }
    Ok(())
}

fn mount_root(state: &mut State<'_>) -> Result<(), InitError> {
    for layered in std::mem::take(&mut state.plan.layered) {
        state.layered.push(layered.mounted()?);
    }
    if let Some(root) = state.plan.root.take() {
        let root = root.mounted()?;
        if state.plan.root_flags != 0 {
            let attr = MountAttr { set: state.plan.root_flags, propagation: 0 };
            sys("set flags of the layered root", mountattr::set(&root, attr, false))?;
        }
        state.root = Some(root);
    }
    Ok(())
}

fn enter_view(state: &mut State<'_>) -> Result<(), InitError> {
    if let Some(root) = state.root.take() {
        view::enter(root.as_fd(), &state.plan.submounts, &state.layered, state.plan.read_only_root)?;
        state.layered.clear();
    }
    Ok(())
}

/// Where another process is to become the command: makes it, with no descriptor of the host's but those that it needs, and
/// ends this one.
fn second_process(state: &mut State<'_>) -> Result<(), InitError> {
    let Some(report) = state.second.take() else { return Ok(()) };
    let console = match &state.plan.stdio {
        Stdio::Terminal { console, .. } => Some(console.as_raw_fd()),
        Stdio::Inherit => None,
    };
    let passed = 3..3 + state.plan.preserve_fds as RawFd;
    let doors = std::mem::take(&mut state.doors);
    let keep = [state.channel, report.as_raw_fd()].into_iter().chain(console).chain(passed);
    let keep = keep.chain(doors.iter().map(|door| door.as_fd().as_raw_fd()));
    process::close_others_in_child(&keep.map(borrow).collect::<Vec<_>>());
    match sys("start the command", process::fork_sibling())? {
        Fork::Parent(pid) => {
            // Without a reader there is no supervisor, and the command ends as it is tied to it.
            let _ = rustix::io::write(&report, &pid.to_ne_bytes());
            process::exit_now(0)
        }
        Fork::Child => {
            drop(report);
            tie(state)?;
            supervised(state)?;
            // They lead to no other file: who gets hold of one can but put itself where it ends with this exec.
            sys("join the exec's cgroups", doors.iter().try_for_each(Door::enter))
        }
    }
}

fn session(_: &mut State<'_>) -> Result<(), InitError> {
    match rustix::process::setsid() {
        // Already the leader of one.
        Ok(_) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(e) => errno("start a session", "setsid", "", Err(e)),
    }
}

fn terminal(state: &mut State<'_>) -> Result<(), InitError> {
    let Stdio::Terminal { console, size } = &state.plan.stdio else { return Ok(()) };
    const DOING: &str = "set up the terminal";
    let (master, slave) = sys(DOING, tty::open_pty())?;
    if let Some((rows, columns)) = size {
        sys(DOING, tty::set_size(master.as_fd(), *rows, *columns))?;
    }
    sys("send the terminal to the console socket", socket::send_fd(console.as_fd(), master.as_fd(), b"/dev/ptmx"))?;
    sys(DOING, tty::set_controlling(slave.as_fd()))?;
    errno(DOING, "dup2", "terminal", rustix::stdio::dup2_stdin(&slave))?;
    errno(DOING, "dup2", "terminal", rustix::stdio::dup2_stdout(&slave))?;
    errno(DOING, "dup2", "terminal", rustix::stdio::dup2_stderr(&slave))
}

fn personality(state: &mut State<'_>) -> Result<(), InitError> {
    match state.plan.personality {
        Some(domain) => sys("set the execution domain", attributes::set_personality(domain)),
        None => Ok(()),
    }
}

fn chdir(state: &mut State<'_>) -> Result<(), InitError> {
    match rustix::process::chdir(&state.plan.cwd) {
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
            state.cwd_later = true;
            Ok(())
        }
        other => other.map_err(|e| bad_cwd(state, e)),
    }
}

fn chdir_again(state: &mut State<'_>) -> Result<(), InitError> {
    if state.cwd_later { rustix::process::chdir(&state.plan.cwd).map_err(|e| bad_cwd(state, e)) } else { Ok(()) }
}

fn bad_cwd(state: &State, errno: rustix::io::Errno) -> InitError {
    // Engines look for the C library's words.
    InitError::Cwd { cwd: state.plan.cwd.clone(), reason: errno_text(&errno.into()) }
}

/// A working directory that was reached through a leaked descriptor is not below the root (CVE-2024-21626).
fn verify_cwd(_: &mut State<'_>) -> Result<(), InitError> {
    let cwd = errno("verify the working directory", "getcwd", "", rustix::process::getcwd(Vec::new()));
    match cwd {
        Ok(path) if path.to_bytes().starts_with(b"/") => Ok(()),
        _ => Err(InitError::CwdOutside),
    }
}

/// Lets the user of the command reopen its own streams (`/dev/stdout`): they belong to whoever made them.
fn own_streams(state: &mut State<'_>) -> Result<(), InitError> {
    let null = rustix::fs::makedev(1, 3);
    for fd in 0..3 {
        let stream = borrow(fd);
        // A caller may have closed one.
        let Ok(stat) = rustix::fs::fstat(stream) else { continue };
        let is_null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == null;
        if is_null || stat.st_uid == state.plan.user.uid {
            continue;
        }
        match rustix::fs::fchown(stream, Some(rustix::fs::Uid::from_raw(state.plan.user.uid)), None) {
            // A user without a mapping here, a read-only filesystem, or a socket of somebody else: nothing to be done.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::PERM | rustix::io::Errno::ROFS) => {}
            Err(e) => return errno("give the user its streams", "fchown", &format!("fd {fd}"), Err(e)),
        }
    }
    Ok(())
}

fn identity(state: &mut State<'_>) -> Result<(), InitError> {
    let (user, caps) = (&state.plan.user, &state.plan.capabilities);
    sys("limit the bounding set", attributes::limit_bounding_set(caps.bounding))?;
    sys("keep capabilities", attributes::keep_capabilities(true))?;
    match attributes::set_groups(&user.groups) {
        // In a user namespace made without privileges setgroups is off; with no groups asked for nothing is lost.
        Err(err) if user.groups.is_empty() && err.errno() == Some(libc::EPERM) => {}
        other => sys("set the groups", other)?,
    }
    sys("set the user", attributes::set_ids(user.uid, user.gid))?;
    sys("keep capabilities", attributes::keep_capabilities(false))?;
    sys("set the capabilities", attributes::set_capabilities(caps.effective, caps.permitted, caps.inheritable))?;
    sys("set the ambient capabilities", attributes::set_ambient(caps.ambient & caps.permitted & caps.inheritable))
}

fn fence(state: &mut State<'_>) -> Result<(), InitError> {
    match &state.plan.fence {
        Some(fence) => Ok(landlock::fence(fence.allow_write.as_deref(), fence.audit)?),
        None => Ok(()),
    }
}

fn seccomp(state: &mut State<'_>) -> Result<(), InitError> {
    match &state.plan.seccomp {
        Some(program) => sys("load the seccomp filter", attributes::load_seccomp(&program.instructions, program.flags)),
        None => Ok(()),
    }
}

fn find_program(state: &mut State<'_>) -> Result<(), InitError> {
    add_home(&mut state.plan);
    if let Some(name) = state.plan.argv.first() {
        state.program = Some(program::find(name, &state.plan.env)?);
    }
    Ok(())
}

/// `HOME` from the container's own user database where the engine set none (runc).
fn add_home(plan: &mut Plan) {
    if plan.env.iter().any(|pair| pair.to_bytes().starts_with(b"HOME=")) {
        return;
    }
    let mut pair = b"HOME=".to_vec();
    pair.extend(home_of(plan.user.uid).unwrap_or_else(|| b"/".to_vec()));
    plan.env.extend(CString::new(pair));
}

fn home_of(uid: u32) -> Option<Vec<u8>> {
    /// More than any real one; the file is the container's.
    const MAX_PASSWD: u64 = 1 << 20;
    let mut text = Vec::new();
    passwd::open().ok()?.take(MAX_PASSWD).read_to_end(&mut text).ok()?;
    home_in(&text, uid)
}

fn home_in(passwd: &[u8], uid: u32) -> Option<Vec<u8>> {
    passwd.split(|b| *b == b'\n').find_map(|line| {
        let mut fields = line.split(|b| *b == b':');
        let id: u32 = std::str::from_utf8(fields.nth(2)?).ok()?.parse().ok()?;
        let home = fields.nth(2)?;
        (id == uid && !home.is_empty()).then(|| home.to_vec())
    })
}

fn execute(state: &mut State<'_>) -> Result<(), InitError> {
    let Some(path) = state.program.take() else {
        return Err(program::ProgramError::NotInPath(String::new()).into());
    };
    sys("reset the signals", signal::reset_all_for_exec())?;
    let err = process::exec(&path, &state.plan.argv, &state.plan.env);
    let shown = path.to_string_lossy().into_owned();
    Err(program::ProgramError::Exec(shown, errno_text(&err.source)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\nbroken\nu:x:1000:1000::/home/u:/bin/sh\nv:x:7:7:::/bin/sh\n";
        assert_eq!(home_in(passwd, 0).unwrap(), b"/root");
        assert_eq!(home_in(passwd, 1000).unwrap(), b"/home/u");
        assert_eq!(home_in(passwd, 7), None);
        assert_eq!(home_in(passwd, 8), None);
    }

    #[test]
    fn the_filter_comes_after_what_it_may_forbid() {
        let at = |name: &str| STEPS.iter().position(|(n, _)| *n == name).unwrap();
        assert!(at("namespaces") < at("view") && at("view") < at("second process"));
        assert!(at("second process") < at("session") && at("second process") < at("labels"));
        assert!(at("identity") < at("seccomp") && at("seccomp, privileged") < at("identity"));
        assert!(at("find the program") < at("seccomp") && at("close on exec") < at("seccomp"));
        assert_eq!(at("exec"), STEPS.len() - 1);
    }
}
