//! Whether execs on layers will work on this host: each thing that they need is tried, and what follows is said.
//!
//! Finding out (`sys::probe`, [`trial`]) is apart from judging: [`judge`] is a pure table from what was found to what is
//! lost by it and what to do.

pub mod trial;

use serde::Serialize;

use super::Context;
use crate::sys::landlock::{AUDIT, FENCE, WRITES};
use crate::sys::probe::{Failure, Features, Tried};
use crate::sys::signal::SignalFd;
use trial::{CgroupTrial, StoreTrial};

/// How far a feature is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It works.
    Enforced,
    /// Something else is done instead; the detail says what is lost.
    Fallback,
    /// It does not work, and nothing takes its place.
    Absent,
}

/// One feature of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// What it is.
    pub name: &'static str,
    /// How far it is there.
    pub state: State,
    /// Without it no exec on a layer works.
    pub needed: bool,
    /// What it gives, or what was tried, what came of it and what is lost.
    pub detail: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Execs on layers will work.
    pub ready: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Each feature, those that all others hang on first.
    pub features: Vec<Feature>,
}

/// Tries everything. Some tens of milliseconds, and longer where the store's event log is long; nothing stays behind.
///
/// The process must be single-threaded. Signals stay blocked afterwards: one that came in the middle would have left a
/// directory.
pub fn run(context: &Context) -> Report {
    let features = Features::probe();
    // Without it an interrupt could come at a bad moment, which is no reason not to try.
    let _signals = SignalFd::block_all();
    let store = trial::store(&context.config.store);
    judge(&features, &store, &trial::cgroups())
}

/// What was found, as a report.
pub fn judge(found: &Features, store: &StoreTrial, cgroups: &CgroupTrial) -> Report {
    let judge = Judge { root: found.root };
    let mut features = vec![judge.root()];
    features.extend(judge.of_store(store));
    features.extend(judge.of_kernel(found));
    features.extend(judge.of_cgroups(cgroups));
    features.extend(judge.of_security(found));
    let missing: Vec<&Feature> = features.iter().filter(|f| f.needed && f.state == State::Absent).collect();
    let reason = missing.first().map(|first| {
        let rest: Vec<&str> = missing[1..].iter().map(|f| f.name).collect();
        let rest = if rest.is_empty() { String::new() } else { format!("; also absent: {}", rest.join(", ")) };
        format!("{}: {}{rest}", first.name, first.detail)
    });
    Report { ready: reason.is_none(), reason, features }
}

struct Judge {
    root: bool,
}

fn feature(name: &'static str, state: State, detail: impl Into<String>, remedy: Option<&str>) -> Feature {
    Feature { name, state, needed: false, detail: detail.into(), remedy: remedy.map(str::to_owned) }
}

impl Judge {
    fn root(&self) -> Feature {
        let name = "root";
        let mut root = match self.root {
            true => feature(name, State::Enforced, "the effective user is root", None),
            false => feature(name, State::Absent, "mounts, namespaces and cgroups take root", Some("run it as root")),
        };
        root.needed = true;
        root
    }

    /// What to do about a failure; `since` is the Linux version that has the call.
    fn remedy(&self, failure: &Failure, since: &str) -> Option<String> {
        match failure.errno {
            // A flag that an older kernel does not know is an invalid argument to it.
            Some(libc::ENOSYS | libc::EINVAL) => Some(format!("run Linux {since} or later")),
            Some(libc::EPERM | libc::EACCES) if !self.root => Some("run it as root".into()),
            Some(libc::EPERM | libc::EACCES) => Some(
                "allow it: root here lacks a capability, or a seccomp filter or security module (of a container \
                 around this?) forbids it"
                    .into(),
            ),
            Some(libc::ENODEV) => Some("load the kernel's module for it (modprobe overlay)".into()),
            Some(libc::EROFS) => Some("mount it writable".into()),
            _ => None,
        }
    }

    /// A feature without which nothing works.
    fn needed(&self, name: &'static str, tried: &Tried, gives: &str, since: &str) -> Feature {
        let mut told = self.without(name, tried, gives, gives, since);
        told.needed = true;
        if let Err(failure) = tried {
            told.detail.clone_from(&failure.text);
        }
        told
    }

    /// A feature without which something is lost.
    fn without(&self, name: &'static str, tried: &Tried, gives: &str, lost: &str, since: &str) -> Feature {
        match tried {
            Ok(()) => feature(name, State::Enforced, gives, None),
            Err(failure) => Feature {
                remedy: self.remedy(failure, since),
                ..feature(name, State::Absent, format!("{lost} ({})", failure.text), None)
            },
        }
    }

    fn of_store(&self, store: &StoreTrial) -> Vec<Feature> {
        let place = match &store.instead {
            Some(dir) => format!("{} will be made; tried in {}", store.root.display(), dir.display()),
            None => store.root.display().to_string(),
        };
        let elsewhere = "choose a directory of your own on ext4, xfs or btrfs: --store, AGENTSBX_STORE";
        let mut open = self.needed("store", &store.open, &place, "5.12");
        if open.state == State::Absent {
            open.remedy = Some(elsewhere.into());
        }
        let findings = match &store.findings {
            Ok(list) if list.is_empty() => feature("store integrity", State::Enforced, "nothing is wrong", None),
            Ok(list) => {
                let more = if list.len() > 1 { format!(", and {} more", list.len() - 1) } else { String::new() };
                let detail = format!("{}{more}", list[0]);
                let remedy = "`agentsbx fsck` says all that is wrong and what to do about it";
                feature("store integrity", State::Fallback, detail, Some(remedy))
            }
            Err(failure) => feature("store integrity", State::Absent, failure.text.clone(), None),
        };
        let mut overlay = self.needed(
            "overlay on the store",
            &store.overlay,
            "a layer was mounted, written, and had its whiteout and opaque mark",
            "5.12",
        );
        let mut xattr =
            self.needed("trusted.* attributes", &store.trusted_xattr, "opaque directories can be marked", "5.12");
        for (told, tried) in [(&mut overlay, &store.overlay), (&mut xattr, &store.trusted_xattr)] {
            // What overlayfs says of an upper directory on a filesystem that can't hold one.
            let unfit = |f: &Failure| matches!(f.errno, Some(libc::EINVAL | libc::EOPNOTSUPP));
            if tried.as_ref().is_err_and(unfit) {
                told.remedy = Some(elsewhere.into());
            }
        }
        let quota = match &store.quota {
            Ok(()) => feature("layer quota", State::Enforced, "what is too much for a layer is refused", None),
            Err(failure) => feature(
                "layer quota",
                State::Fallback,
                format!("a command whose layer is found to be too large is ended ({})", failure.text),
                Some("mount the store's filesystem, ext4 or xfs, with prjquota"),
            ),
        };
        vec![open, findings, overlay, xattr, quota]
    }

    fn of_kernel(&self, found: &Features) -> Vec<Feature> {
        let append = match &found.lowerdir_append {
            // An older kernel knows no such option; any other failure is that of the mount API.
            Err(failure) if failure.errno == Some(libc::EINVAL) => feature(
                "overlay lowerdir+",
                State::Fallback,
                "all layers in one option string, some two hundred; stacks are merged long before",
                Some("run Linux 6.7 or later"),
            ),
            tried => self.without("overlay lowerdir+", tried, "any depth of layers", "not to be told", "6.7"),
        };
        vec![
            self.needed("mount API", &found.mount_api, "fsopen, fsmount, open_tree, move_mount", "5.2"),
            append,
            self.needed(
                "read-only binary",
                &found.read_only_binary,
                "mount_setattr; a container can't overwrite the runtime",
                "5.12",
            ),
            self.needed("openat2", &found.openat2, "a container's paths are held beneath its root", "5.6"),
            self.needed("pidfd signals", &found.pidfd_signal, "a signal reaches the very process, or none", "5.3"),
            self.needed("setns by pidfd", &found.pidfd_setns, "all namespaces of a container in one call", "5.8"),
            self.needed("close_range", &found.close_range, "no descriptor is inherited by a command", "5.11"),
            self.needed("waitid WNOWAIT", &found.wait_nowait, "an end is seen and left to be reaped", "5.4"),
        ]
    }

    fn of_cgroups(&self, cgroups: &CgroupTrial) -> Vec<Feature> {
        let v1 = !cgroups.v1.is_empty();
        let mut group = self.needed(
            "cgroup of an exec",
            &cgroups.group,
            "a group was made, a process put there, and killed there",
            "5.12",
        );
        if group.state == State::Absent && group.remedy.is_none() {
            group.remedy = Some("mount a cgroup hierarchy at /sys/fs/cgroup".into());
        }
        let version = match (v1, cgroups.v2.is_some()) {
            (false, true) => feature("cgroup v2", State::Enforced, "the only version here", None),
            (true, v2) => feature(
                "cgroup v2",
                State::Fallback,
                format!(
                    "{}: no systemd cgroup driver, no containers without root",
                    if v2 { "v1 with v2 beside it (hybrid)" } else { "v1 only" }
                ),
                None,
            ),
            (false, false) => feature("cgroup v2", State::Absent, "no cgroup hierarchy is mounted", None),
        };
        let tried = cgroups.group.is_ok();
        let better = |name, works: bool, gives: &str, lost: &str, remedy| match (tried, works) {
            (false, _) => feature(name, State::Absent, "not tried: an exec has no cgroup", None),
            (true, true) => feature(name, State::Enforced, gives, None),
            (true, false) => feature(name, State::Fallback, lost, Some(remedy)),
        };
        let counts = |name, controller: &str, counted: bool, gives: &str, lost: &str| {
            let remedy = "enable the controller (kernel command line, or its module)";
            better(name, cgroups.has(controller) || counted, gives, lost, remedy)
        };
        let cpu = if v1 { "cpuacct" } else { "cpu" };
        vec![
            group,
            version,
            better(
                "cgroup.kill",
                cgroups.kill,
                "what an exec leaves running is killed at once",
                "processes are signalled one by one until none is left",
                "run Linux 5.14 or later with cgroup v2",
            ),
            better(
                "cgroup freezer",
                cgroups.freeze,
                "pause; nothing forks away from a kill",
                "no pause; a kill may need several rounds",
                "enable the freezer controller, or use cgroup v2",
            ),
            counts(
                "cgroup pids",
                "pids",
                cgroups.usage.max_pids.is_some(),
                if v1 {
                    "limit and highest count of processes"
                } else {
                    "limit and highest count, of containers that can't change their cgroups"
                },
                "no limit on processes; maxPids is null",
            ),
            counts(
                "cgroup memory",
                "memory",
                cgroups.usage.peak_memory.is_some(),
                match v1 {
                    true => "limit, peak, and out-of-memory told apart",
                    false => "limit, out-of-memory told apart, and peak, of containers that can't change their cgroups",
                },
                "no memory limit; peakMemoryBytes is null; a kill for memory looks like any SIGKILL",
            ),
            counts(
                "cgroup CPU time",
                cpu,
                cgroups.usage.user_ns.is_some(),
                "time of all that an exec started",
                "CPU time is the command's own and its waited-for children's",
            ),
        ]
    }

    fn of_security(&self, found: &Features) -> Vec<Feature> {
        let none = |what: &str| format!("a container that asks for a {what} is refused");
        let keyring = match &found.keyring {
            Err(failure) if failure.errno == Some(libc::ENOSYS) => {
                feature("session keyring", State::Fallback, "the kernel has no keyrings to keep apart", None)
            }
            tried => {
                let mut told = self.needed("session keyring", tried, "a container does not share the caller's", "2.6");
                if self.root && told.state == State::Absent {
                    told.remedy = Some("allow keyctl, or have the engine pass --no-new-keyring".into());
                }
                told
            }
        };
        vec![
            self.needed("seccomp", &found.seccomp, "a filter was loaded and filtered", "3.17"),
            self.without(
                "user namespaces",
                &found.user_namespaces,
                "containers can have their own",
                "no container with a user namespace of its own",
                "3.8",
            ),
            keyring,
            fence(found.landlock),
            match found.apparmor {
                true => feature("AppArmor", State::Enforced, "profiles are applied", None),
                false => feature("AppArmor", State::Absent, none("profile"), None),
            },
            match found.selinux {
                true => feature("SELinux", State::Fallback, none("label"), Some("run containers without labels")),
                false => feature("SELinux", State::Absent, none("label"), None),
            },
        ]
    }
}

/// What of Landlock there is: the fence around each exec, and limits on where its processes write.
fn fence(version: Option<u32>) -> Feature {
    const NAME: &str = "Landlock";
    const REMEDY: Option<&str> = Some("enable it (kernel parameter lsm=landlock,…; Linux 6.2 for all of it)");
    match version {
        Some(AUDIT..) => {
            let detail = "execs cannot look into each other; writing can be limited, and refusals be in the audit log";
            feature(NAME, State::Enforced, detail, None)
        }
        Some(WRITES..) => {
            feature(NAME, State::Enforced, "execs cannot look into each other; writing can be limited", None)
        }
        Some(FENCE..) => feature(
            NAME,
            State::Fallback,
            "execs cannot look into each other; a container with allowWrite is refused",
            REMEDY,
        ),
        Some(_) | None => feature(
            NAME,
            State::Absent,
            "execs of a container can look into each other by /proc, ptrace is refused",
            REMEDY,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::exec::cgroup::Usage;
    use crate::store::Finding;

    fn all_there() -> (Features, StoreTrial, CgroupTrial) {
        let features = Features {
            root: true,
            mount_api: Ok(()),
            lowerdir_append: Ok(()),
            read_only_binary: Ok(()),
            openat2: Ok(()),
            pidfd_signal: Ok(()),
            pidfd_setns: Ok(()),
            wait_nowait: Ok(()),
            close_range: Ok(()),
            seccomp: Ok(()),
            user_namespaces: Ok(()),
            keyring: Ok(()),
            landlock: Some(WRITES),
            apparmor: true,
            selinux: false,
        };
        let store = StoreTrial {
            root: "/s".into(),
            instead: None,
            open: Ok(()),
            findings: Ok(Vec::new()),
            overlay: Ok(()),
            trusted_xattr: Ok(()),
            quota: Ok(()),
        };
        let cgroups = CgroupTrial {
            v1: Vec::new(),
            v2: Some(["cpu", "memory", "pids"].map(str::to_owned).to_vec()),
            group: Ok(()),
            kill: true,
            freeze: true,
            usage: Usage::default(),
        };
        (features, store, cgroups)
    }

    fn fails<T>(errno: i32) -> Result<T, Failure> {
        Err(Failure { text: "call(x): no".into(), errno: Some(errno) })
    }

    fn named<'a>(report: &'a Report, name: &str) -> &'a Feature {
        report.features.iter().find(|f| f.name == name).unwrap()
    }

    #[test]
    fn a_host_that_has_all_is_ready() {
        let (features, store, cgroups) = all_there();
        let report = judge(&features, &store, &cgroups);
        assert!(report.ready && report.reason.is_none());
        let other: Vec<_> = report.features.iter().filter(|f| f.state != State::Enforced).map(|f| f.name).collect();
        assert_eq!(other, ["SELinux"]);
        let mut names: Vec<_> = report.features.iter().map(|f| f.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), report.features.len(), "a name twice");
    }

    #[test]
    fn one_thing_that_is_needed_decides() {
        type Break = fn(&mut Features, &mut StoreTrial, &mut CgroupTrial);
        let breaks: [(&str, Break); 13] = [
            ("root", |f, _, _| f.root = false),
            ("store", |_, s, _| s.open = fails(libc::EACCES)),
            ("overlay on the store", |_, s, _| s.overlay = fails(libc::EINVAL)),
            ("trusted.* attributes", |_, s, _| s.trusted_xattr = fails(libc::EOPNOTSUPP)),
            ("mount API", |f, _, _| f.mount_api = fails(libc::ENOSYS)),
            ("read-only binary", |f, _, _| f.read_only_binary = fails(libc::ENOSYS)),
            ("openat2", |f, _, _| f.openat2 = fails(libc::ENOSYS)),
            ("pidfd signals", |f, _, _| f.pidfd_signal = fails(libc::ENOSYS)),
            ("setns by pidfd", |f, _, _| f.pidfd_setns = fails(libc::EINVAL)),
            ("close_range", |f, _, _| f.close_range = fails(libc::EINVAL)),
            ("waitid WNOWAIT", |f, _, _| f.wait_nowait = fails(libc::EINVAL)),
            ("seccomp", |f, _, _| f.seccomp = fails(libc::EINVAL)),
            ("cgroup of an exec", |_, _, c| c.group = fails(libc::EROFS)),
        ];
        for (name, break_it) in breaks {
            let (mut features, mut store, mut cgroups) = all_there();
            break_it(&mut features, &mut store, &mut cgroups);
            let report = judge(&features, &store, &cgroups);
            assert!(!report.ready, "{name}");
            assert!(report.reason.as_ref().unwrap().starts_with(&format!("{name}: ")), "{:?}", report.reason);
            assert_eq!(named(&report, name).state, State::Absent);
        }
    }

    #[test]
    fn what_is_only_better_is_a_fallback() {
        type Break = fn(&mut Features, &mut StoreTrial, &mut CgroupTrial);
        let breaks: [(&str, Break); 10] = [
            ("overlay lowerdir+", |f, _, _| f.lowerdir_append = fails(libc::EINVAL)),
            ("session keyring", |f, _, _| f.keyring = fails(libc::ENOSYS)),
            ("Landlock", |f, _, _| f.landlock = Some(FENCE)),
            ("cgroup v2", |_, _, c| c.v1 = ["cpuacct", "freezer"].map(str::to_owned).to_vec()),
            ("cgroup.kill", |_, _, c| c.kill = false),
            ("cgroup freezer", |_, _, c| c.freeze = false),
            ("cgroup memory", |_, _, c| c.v2 = Some(vec!["pids".into(), "cpu".into()])),
            ("SELinux", |f, _, _| f.selinux = true),
            ("layer quota", |_, s, _| s.quota = fails(libc::ESRCH)),
            ("store integrity", |_, s, _| {
                s.findings = Ok(vec![Finding { invariant: "HEAD exists", what: "container c: 7".into() }]);
            }),
        ];
        for (name, break_it) in breaks {
            let (mut features, mut store, mut cgroups) = all_there();
            break_it(&mut features, &mut store, &mut cgroups);
            let report = judge(&features, &store, &cgroups);
            assert!(report.ready, "{name}: {:?}", report.reason);
            assert_eq!(named(&report, name).state, State::Fallback, "{name}");
        }
    }

    #[test]
    fn the_remedy_follows_the_errno() {
        for (root, errno, want) in [
            (true, libc::ENOSYS, Some("run Linux 5.2 or later")),
            (true, libc::EINVAL, Some("run Linux 5.2 or later")),
            (false, libc::EPERM, Some("run it as root")),
            (true, libc::EPERM, Some("allow it: ")),
            (true, libc::EIO, None),
        ] {
            let (mut features, store, cgroups) = all_there();
            (features.root, features.mount_api) = (root, fails(errno));
            let report = judge(&features, &store, &cgroups);
            let remedy = named(&report, "mount API").remedy.as_deref();
            assert!(
                remedy.is_some() == want.is_some() && remedy.unwrap_or("").starts_with(want.unwrap_or("")),
                "{remedy:?}"
            );
        }
    }

    #[test]
    fn a_filesystem_that_holds_no_upper_is_to_be_left() {
        let (features, mut store, cgroups) = all_there();
        (store.overlay, store.trusted_xattr) = (fails(libc::EINVAL), fails(libc::EOPNOTSUPP));
        let report = judge(&features, &store, &cgroups);
        for name in ["overlay on the store", "trusted.* attributes"] {
            assert!(named(&report, name).remedy.as_ref().unwrap().contains("--store"), "{name}");
        }
    }

    #[test]
    fn without_a_group_nothing_is_said_of_what_it_could_do() {
        let (features, store, mut cgroups) = all_there();
        cgroups.group = fails(libc::EROFS);
        let report = judge(&features, &store, &cgroups);
        let told: Vec<_> = report.features.iter().filter(|f| f.detail.starts_with("not tried")).collect();
        assert_eq!(told.len(), 5);
        assert!(told.iter().all(|f| f.state == State::Absent && f.remedy.is_none()));
    }

    #[test]
    fn a_forbidden_keyring_is_no_fallback() {
        let (mut features, store, cgroups) = all_there();
        features.keyring = fails(libc::EPERM);
        let report = judge(&features, &store, &cgroups);
        assert!(!report.ready && named(&report, "session keyring").remedy.as_ref().unwrap().contains("keyctl"));
    }
}
