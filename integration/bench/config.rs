//! The `config.json` of every container that is measured: as Docker writes one for `docker run --memory 2g --pids-limit
//! 4096`, the same for all runtimes.

use libseccomp::ScmpSyscall;
use serde_json::{Value, json};

/// What Docker's profile keeps from a container without further capabilities. Everything else that the library knows is
/// allowed, which makes a program of the same shape and length.
const DENIED: [&str; 56] = [
    "acct",
    "add_key",
    "bpf",
    "clock_adjtime",
    "clock_adjtime64",
    "clock_settime",
    "clock_settime64",
    "clone",
    "clone3",
    "create_module",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_kernel_syms",
    "get_mempolicy",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mbind",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "personality",
    "pivot_root",
    "query_module",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "set_mempolicy",
    "setns",
    "settimeofday",
    "swapoff",
    "swapon",
    "sysfs",
    "umount2",
    "unshare",
    "userfaultfd",
    "vhangup",
];

/// The namespace flags of clone(2).
const CLONE_NAMESPACES: u64 = 0x7e02_0000;

/// The capabilities that Docker gives a container.
pub const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// A container's configuration: `args` is its first process, `cgroup` its cgroup's path.
pub fn config(args: &[&str], cgroup: &str) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": args,
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=box", "HOME=/root"],
            "cwd": "/",
            "capabilities": {"bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES},
            "oomScoreAdj": 0
        },
        "root": {"path": "rootfs"},
        "hostname": "box",
        "mounts": [
            mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            mount("/dev/pts", "devpts", "devpts",
                  &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
            mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
            mount("/sys/fs/cgroup", "cgroup", "cgroup", &["ro", "nosuid", "noexec", "nodev"]),
            mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
            mount("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=67108864"])
        ],
        "linux": {
            "cgroupsPath": cgroup,
            "resources": {
                "devices": [
                    {"allow": false, "access": "rwm"},
                    {"allow": true, "type": "c", "major": 1, "minor": 5, "access": "rwm"},
                    {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
                    {"allow": true, "type": "c", "major": 1, "minor": 9, "access": "rwm"},
                    {"allow": true, "type": "c", "major": 1, "minor": 8, "access": "rwm"},
                    {"allow": true, "type": "c", "major": 5, "minor": 0, "access": "rwm"},
                    {"allow": true, "type": "c", "major": 5, "minor": 1, "access": "rwm"},
                    {"allow": false, "type": "c", "major": 10, "minor": 229, "access": "rwm"}
                ],
                "memory": {"limit": 2_147_483_648_u64},
                "pids": {"limit": 4096}
            },
            "namespaces": [
                {"type": "mount"}, {"type": "network"}, {"type": "uts"}, {"type": "pid"}, {"type": "ipc"}
            ],
            "maskedPaths": [
                "/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
                "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"
            ],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            "seccomp": seccomp()
        }
    })
}

fn mount(destination: &str, kind: &str, source: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": kind, "source": source, "options": options})
}

/// An allow-list of a few hundred system calls, and three that depend on their arguments.
fn seccomp() -> Value {
    let mut allowed: Vec<String> = (0..500)
        .filter_map(|number| ScmpSyscall::from(number).get_name().ok())
        .filter(|name| !DENIED.contains(&name.as_str()))
        .collect();
    allowed.sort();
    let when = |index: u32, value: u64, op: &str| json!([{"index": index, "value": value, "op": op}]);
    let mut rules = vec![json!({"names": allowed, "action": "SCMP_ACT_ALLOW"})];
    for value in [0, 8, 0x20000, 0x20008, 0xffff_ffff] {
        let args = when(0, value, "SCMP_CMP_EQ");
        rules.push(json!({"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": args}));
    }
    let args = json!([{"index": 0, "value": CLONE_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]);
    rules.push(json!({"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": args}));
    rules.push(json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}));
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": match cfg!(target_arch = "aarch64") {
            true => json!(["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]),
            false => json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]),
        },
        "syscalls": rules
    })
}
