//! What the profile `strict` lets a container have, as tables: each entry with its reason. docs/strict.md shows them.

#[cfg(test)]
mod docs;

use crate::terms::Allow;

/// Capabilities of a container: what running as root in an image needs, to install packages and to change user.
pub(super) const CAPABILITIES: &[(&str, &str)] = &[
    ("CAP_CHOWN", "package managers and tar give files their owners"),
    ("CAP_DAC_OVERRIDE", "root of an image reads and writes files of the image's users"),
    ("CAP_FOWNER", "package managers and tar set modes and times of files of other owners"),
    ("CAP_FSETID", "a setuid or setgid bit that a package has stays when its file is written"),
    ("CAP_KILL", "a first process that runs as root ends services that run as other users"),
    ("CAP_NET_BIND_SERVICE", "servers listen on ports below 1024"),
    ("CAP_SETFCAP", "packages give files capabilities (no_new_privileges leaves them without effect)"),
    ("CAP_SETGID", "su, apt and servers change to another group"),
    ("CAP_SETUID", "su, apt and servers change to another user"),
];

/// Kinds of namespaces that a container must have as its own or share with other containers, never with the host.
pub(super) const NAMESPACES: &[(&str, Allow, &str)] = &[
    ("mount", Allow::HostMount, "every mount and unmount would be the host's"),
    ("pid", Allow::HostPid, "it would see the host's processes, and with the right user id signal them"),
    ("network", Allow::HostNetwork, "it would reach the host's loopback services, abstract sockets and interfaces"),
    ("ipc", Allow::HostIpc, "it would reach the host's shared memory, semaphores and message queues"),
    ("uts", Allow::HostUts, "it would have the host's name"),
];

/// Filesystems that a configuration may mount, where, and which flags they have besides `nosuid`.
pub(super) const FILESYSTEMS: &[Filesystem] = &[
    Filesystem {
        kind: "proc",
        at: Some("/proc"),
        flags: &["nodev", "noexec"],
        why: "one at another place would be without masked paths",
    },
    Filesystem {
        kind: "sysfs",
        at: Some("/sys"),
        flags: &["nodev", "noexec", "ro"],
        why: "writing to it configures the host's devices",
    },
    Filesystem {
        kind: "tmpfs",
        at: None,
        flags: &["nodev", "noexec"],
        why: "but for /dev itself, which has device files",
    },
    Filesystem { kind: "devpts", at: Some("/dev/pts"), flags: &["noexec"], why: "terminals are device files" },
    Filesystem { kind: "mqueue", at: Some("/dev/mqueue"), flags: &["nodev", "noexec"], why: "message queues" },
    Filesystem {
        kind: "cgroup",
        at: Some("/sys/fs/cgroup"),
        flags: &["nodev", "noexec", "ro"],
        why: "writing to it would lift limits",
    },
    Filesystem { kind: "cgroup2", at: Some("/sys/fs/cgroup"), flags: &["nodev", "noexec", "ro"], why: "the same" },
];

/// See [`FILESYSTEMS`].
pub(super) struct Filesystem {
    /// Its type.
    pub(super) kind: &'static str,
    /// The only place where it may be; none is any.
    pub(super) at: Option<&'static str>,
    /// Flags that it gets.
    pub(super) flags: &'static [&'static str],
    /// Why so.
    pub(super) why: &'static str,
}

/// What of a path of the host cannot be a bind mount's source. What lies above such a path never can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// The directory itself; what lies below it can.
    Itself,
    /// The directory itself; what lies below it can be read only.
    Read,
    /// It, and directories below it; files below it can.
    Directories,
    /// It, and all below it.
    Below,
}

/// Paths of the host that cannot be mounted.
pub(super) const SOURCES: &[(&str, Reach, &str)] = &[
    ("/bin", Reach::Read, "the host's programs"),
    ("/boot", Reach::Below, "kernels and the boot loader"),
    ("/dev", Reach::Below, "the host's devices"),
    ("/etc", Reach::Read, "the host's configuration, its secrets among it"),
    ("/etc/agentsbx", Reach::Below, "the configuration of this runtime"),
    ("/etc/containerd", Reach::Below, "an engine's configuration"),
    ("/etc/docker", Reach::Below, "an engine's configuration"),
    ("/etc/gshadow", Reach::Below, "the host's passwords"),
    ("/etc/kubernetes", Reach::Below, "keys of the cluster"),
    ("/etc/shadow", Reach::Below, "the host's passwords"),
    ("/etc/ssh", Reach::Below, "the host's keys"),
    ("/etc/sudoers", Reach::Below, "who is root on the host"),
    ("/etc/sudoers.d", Reach::Below, "who is root on the host"),
    ("/home", Reach::Itself, "all users' files"),
    ("/lib", Reach::Read, "the host's programs"),
    ("/lib32", Reach::Read, "the host's programs"),
    ("/lib64", Reach::Read, "the host's programs"),
    ("/opt", Reach::Itself, "programs that were added to the host"),
    ("/proc", Reach::Below, "the host's processes and kernel parameters"),
    ("/root", Reach::Itself, "root's files, keys among them"),
    ("/root/.ssh", Reach::Below, "root's keys"),
    ("/run", Reach::Directories, "sockets of the host's services"),
    ("/run/containerd", Reach::Itself, "an engine's state and socket"),
    ("/run/containers", Reach::Itself, "an engine's state"),
    ("/run/docker", Reach::Itself, "an engine's state and sockets"),
    ("/run/k3s", Reach::Itself, "an engine's state and socket"),
    ("/run/k3s/containerd", Reach::Itself, "an engine's state and socket"),
    ("/sbin", Reach::Read, "the host's programs"),
    ("/sys", Reach::Below, "the host's devices and kernel"),
    ("/usr", Reach::Read, "the host's programs"),
    ("/var/lib/apt", Reach::Read, "what the host has installed"),
    ("/var/lib/containerd", Reach::Itself, "an engine's images and containers"),
    ("/var/lib/containers", Reach::Itself, "an engine's images and containers"),
    ("/var/lib/docker", Reach::Itself, "an engine's images and containers"),
    ("/var/lib/docker/containers", Reach::Itself, "an engine's containers"),
    ("/var/lib/docker/overlay2", Reach::Itself, "other containers' files"),
    ("/var/lib/docker/volumes", Reach::Itself, "other containers' volumes"),
    ("/var/lib/dpkg", Reach::Read, "what the host has installed"),
    ("/var/lib/kubelet", Reach::Itself, "the kubelet's keys, and other pods' volumes"),
    ("/var/lib/kubelet/pki", Reach::Below, "the kubelet's keys"),
    ("/var/lib/kubelet/pods", Reach::Itself, "other pods' volumes"),
    ("/var/spool/cron", Reach::Read, "what the host runs, and when"),
];

/// Kinds of filesystems, by their magic numbers (statfs(2)), of which nothing can be mounted.
pub(super) const MAGIC: &[(i64, &str)] = &[
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0xcafe_4a11, "bpf"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0x6165_676c, "pstore"),
    (0xde5e_81e4, "efivarfs"),
    (0x6265_6570, "configfs"),
    (0x4249_4e4d, "binfmt_misc"),
    (0x6e73_6673, "nsfs"),
    (0x1cd1, "devpts"),
    (0x1980_0202, "mqueue"),
];

/// Programs of the host that engines mount into containers to be their first process (`--init`): they can be executed.
pub(super) const PROGRAMS: &[&str] = &[
    "/usr/bin/catatonit",
    "/usr/bin/docker-init",
    "/usr/bin/tini",
    "/usr/bin/tini-static",
    "/usr/lib/podman/catatonit",
    "/usr/libexec/docker/docker-init",
    "/usr/libexec/podman/catatonit",
    "/usr/local/bin/docker-init",
    "/usr/sbin/docker-init",
    "/usr/sbin/tini-static",
];

/// Files of `/proc` that a bind mount may cover: what lxcfs offers for a container's own figures.
pub(super) const PROC_FILES: &[&str] =
    &["cpuinfo", "diskstats", "loadavg", "meminfo", "slabinfo", "stat", "swaps", "uptime"];

/// Paths of the container that are covered, besides those of the engine.
pub(super) const MASKED: &[(&str, &str)] = &[
    ("/proc/acpi", "firmware's tables and switches"),
    ("/proc/asound", "the host's sound cards"),
    ("/proc/interrupts", "what the host's devices do, by which keystrokes of others can be told"),
    ("/proc/kallsyms", "the kernel's addresses"),
    ("/proc/kcore", "the host's memory"),
    ("/proc/keys", "keys of others"),
    ("/proc/kpagecgroup", "the host's memory"),
    ("/proc/kpagecount", "the host's memory"),
    ("/proc/kpageflags", "the host's memory"),
    ("/proc/latency_stats", "what other processes wait for"),
    ("/proc/sched_debug", "other processes"),
    ("/proc/scsi", "the host's disks"),
    ("/proc/timer_list", "the kernel's addresses"),
    ("/proc/timer_stats", "other processes"),
    ("/sys/devices/virtual/powercap", "energy meters, by which keys of others can be told"),
    ("/sys/firmware", "firmware's tables and variables"),
];

/// Paths of the container that are read-only, besides those of the engine.
pub(super) const READ_ONLY: &[(&str, &str)] = &[
    ("/proc/bus", "the host's buses"),
    ("/proc/fs", "settings of filesystems"),
    ("/proc/irq", "where the host's interrupts go"),
    ("/proc/pressure", "monitors there make the kernel work, for as long as they are open"),
    ("/proc/sys", "kernel parameters"),
    ("/proc/sysrq-trigger", "it reboots the host"),
];

/// Device files of a container, by major and minor number.
pub(super) const DEVICES: &[(&str, u32, Option<u32>)] = &[
    ("/dev/null", 1, Some(3)),
    ("/dev/zero", 1, Some(5)),
    ("/dev/full", 1, Some(7)),
    ("/dev/random", 1, Some(8)),
    ("/dev/urandom", 1, Some(9)),
    ("/dev/tty", 5, Some(0)),
    ("/dev/console", 5, Some(1)),
    ("/dev/ptmx", 5, Some(2)),
    ("/dev/pts/*", 136, None),
];

/// Kernel parameters that a container may set, where it has the namespace that keeps them from the host.
pub(super) const SYSCTLS: &[(&str, &str)] = &[
    ("fs.mqueue.*", "ipc"),
    ("kernel.domainname", "uts"),
    ("kernel.hostname", "uts"),
    ("kernel.msg_next_id", "ipc"),
    ("kernel.msgmax", "ipc"),
    ("kernel.msgmnb", "ipc"),
    ("kernel.msgmni", "ipc"),
    ("kernel.sem", "ipc"),
    ("kernel.sem_next_id", "ipc"),
    ("kernel.shm_next_id", "ipc"),
    ("kernel.shm_rmid_forced", "ipc"),
    ("kernel.shmall", "ipc"),
    ("kernel.shmmax", "ipc"),
    ("kernel.shmmni", "ipc"),
    ("net.*", "network"),
];
