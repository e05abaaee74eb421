/* System calls that a container has no business with, one row each. Arguments are such that a kernel that lets the call
 * through answers with anything but EPERM, and that nothing is changed if it succeeds. */
#include "attack.h"

#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <sys/timex.h>

/* ---- namespaces ---- */

static long do_unshare(long flag) { return syscall(SYS_unshare, flag); }

static long do_clone(long flag) {
    long child = syscall(SYS_clone, flag | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    return child;
}

static long do_clone3(long flag) {
    struct clone_args args = {.flags = flag, .exit_signal = SIGCHLD};
    long child = syscall(SYS_clone3, &args, sizeof args);
    if (child == 0) _exit(0);
    return child;
}

/* Into a namespace that this process is in already, or that pid 1 is: no change, if it is let through. */
static long enter(const char *pattern, long flag) {
    static const struct {
        long flag;
        const char *name;
    } FILES[] = {{CLONE_NEWNS, "mnt"}, {CLONE_NEWUTS, "uts"}, {CLONE_NEWIPC, "ipc"},       {CLONE_NEWUSER, "user"},
                 {CLONE_NEWPID, "pid"}, {CLONE_NEWNET, "net"}, {CLONE_NEWCGROUP, "cgroup"}};
    for (size_t n = 0; n < sizeof FILES / sizeof *FILES; n++) {
        if (FILES[n].flag != flag) continue;
        char path[64];
        snprintf(path, sizeof path, pattern, FILES[n].name);
        int fd = open(path, O_RDONLY);
        /* A file that can't even be opened: the call itself is still tried. */
        return syscall(SYS_setns, fd, flag);
    }
    return -1;
}
static long do_setns(long flag) { return enter("/proc/self/ns/%s", flag); }
static long setns_init(long flag) { return enter("/proc/1/ns/%s", flag); }
static long setns_pidfd(long flag) { return syscall(SYS_setns, syscall(SYS_pidfd_open, 1, 0), flag); }

/* A user namespace, and in it what its root may. */
static long userns_root(long flag) {
    if (syscall(SYS_unshare, CLONE_NEWUSER)) return -1;
    return syscall(SYS_unshare, flag);
}

static void put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (write(fd, text, strlen(text)) < 0) close(-1);
    close(fd);
}
/* 64 user namespaces, one in the other; the kernel itself ends that at 32. */
static long deep(long flag) {
    for (int n = 0; n < 64; n++) {
        if (syscall(SYS_unshare, flag)) return n < 16 ? -1 : 0;
        put("/proc/self/setgroups", "deny");
        put("/proc/self/uid_map", "0 0 1");
        put("/proc/self/gid_map", "0 0 1");
    }
    return 0;
}

/* The 32-bit entry of the kernel has call numbers of its own, which a filter for 64 bits does not know. */
static long int80(long nr, long a, long b, long c, long d, long e) {
    long got;
    __asm__ volatile("int $0x80" : "=a"(got) : "a"(nr), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e) : "memory", "r8", "r9", "r10", "r11");
    if (got < 0 && got > -4096) return errno = -got, -1;
    return got;
}
static long unshare32(long flag) { return int80(310, flag, 0, 0, 0, 0); }
static long clone32(long flag) {
    long child = int80(120, flag | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    return child;
}
static long mount32(long unused) {
    (void)unused;
    char *low = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memcpy(low, "/tmp\0tmpfs", 11);
    return int80(21, (long)low + 5, (long)low, (long)low + 5, 0, 0);
}
static long x32(long nr) { return syscall(0x40000000 + nr, CLONE_NEWUSER, 0, 0, 0, 0); }

#define EACH(ROW)                                                                                                      \
    ROW("mount", CLONE_NEWNS), ROW("uts", CLONE_NEWUTS), ROW("ipc", CLONE_NEWIPC), ROW("user", CLONE_NEWUSER),         \
        ROW("pid", CLONE_NEWPID), ROW("net", CLONE_NEWNET), ROW("cgroup", CLONE_NEWCGROUP)
#define UNSHARE(NAME, FLAG) {"unshare-" NAME, do_unshare, FLAG}
#define CLONE(NAME, FLAG) {"clone-" NAME, do_clone, FLAG}
#define CLONE3(NAME, FLAG) {"clone3-" NAME, do_clone3, FLAG}
#define SETNS(NAME, FLAG) {"setns-" NAME, do_setns, FLAG}
#define SETNS_INIT(NAME, FLAG) {"setns-init-" NAME, setns_init, FLAG}

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

const struct attack NAMESPACES[] = {
    EACH(UNSHARE),
    {"unshare-time", do_unshare, CLONE_NEWTIME},
    EACH(CLONE),
    EACH(CLONE3),
    {"clone3-time", do_clone3, CLONE_NEWTIME},
    EACH(SETNS),
    EACH(SETNS_INIT),
    {"setns-pidfd", setns_pidfd, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET},
    {"userns-mount", userns_root, CLONE_NEWNS},
    {"userns-deep", deep, CLONE_NEWUSER},
    {"unshare-all", do_unshare, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID},
    {"int80-unshare", unshare32, CLONE_NEWUSER},
    {"int80-clone", clone32, CLONE_NEWUSER},
    {"int80-mount", mount32, 0},
    {"x32-unshare", x32, SYS_unshare},
    {"x32-mount", x32, SYS_mount},
    {0},
};

/* ---- mounts ---- */

static long mount_fs(const char *type, const char *options) { return mount(type, "/tmp", type, 0, options); }
static long mount_tmpfs(long u) { return (void)u, mount_fs("tmpfs", NULL); }
static long mount_proc(long u) { return (void)u, mount_fs("proc", NULL); }
static long mount_sysfs(long u) { return (void)u, mount_fs("sysfs", NULL); }
static long mount_cgroup2(long u) { return (void)u, mount_fs("cgroup2", NULL); }
static long mount_devtmpfs(long u) { return (void)u, mount_fs("devtmpfs", NULL); }
static long mount_binfmt(long u) { return (void)u, mount_fs("binfmt_misc", NULL); }
static long mount_overlay(long u) {
    return (void)u, mount_fs("overlay", "lowerdir=/bin:/dev");
}
/* CVE-2022-0492: a v1 hierarchy mounted by hand has a release_agent to write. */
static long mount_cgroup1(long u) { return (void)u, mount_fs("cgroup", "devices"); }
static long bind_root(long u) { return (void)u, mount("/", "/tmp", NULL, MS_BIND | MS_REC, NULL); }
static long bind_proc_sys(long u) { return (void)u, mount("/proc/sys", "/tmp", NULL, MS_BIND, NULL); }
static long move_mount_old(long u) { return (void)u, mount("/dev/shm", "/tmp", NULL, MS_MOVE, NULL); }
static long remount_rw(long path) { return mount(NULL, (char *)path, NULL, MS_REMOUNT | MS_BIND, NULL); }
static long share(long u) { return (void)u, mount(NULL, "/", NULL, MS_SHARED | MS_REC, NULL); }
static long unmount(long path) { return umount2((char *)path, MNT_DETACH); }
static long sys_fsopen(long u) { return (void)u, syscall(SYS_fsopen, "tmpfs", 0); }
static long sys_open_tree(long u) { return (void)u, syscall(SYS_open_tree, AT_FDCWD, "/", 1 /* CLONE */); }
static long sys_move_mount(long u) { return (void)u, syscall(SYS_move_mount, -1, "", -1, "", 4); }
static long sys_fspick(long u) { return (void)u, syscall(SYS_fspick, AT_FDCWD, "/dev/shm", 0); }
static long sys_fsmount(long u) { return (void)u, syscall(SYS_fsmount, -1, 0, 0); }
static long sys_fsconfig(long u) { return (void)u, syscall(SYS_fsconfig, -1, 6, NULL, NULL, 0); }
static long sys_mount_setattr(long path) {
    uint64_t attr[4] = {0, 1 /* clear RDONLY */, 0, 0};
    return syscall(SYS_mount_setattr, AT_FDCWD, (char *)path, 0, attr, sizeof attr);
}
static long sys_pivot_root(long u) { return (void)u, syscall(SYS_pivot_root, "/", "/"); }

const struct attack MOUNTS[] = {
    {"mount-tmpfs", mount_tmpfs, 0},
    {"mount-proc", mount_proc, 0},
    {"mount-sysfs", mount_sysfs, 0},
    {"mount-cgroup1", mount_cgroup1, 0},
    {"mount-cgroup2", mount_cgroup2, 0},
    {"mount-devtmpfs", mount_devtmpfs, 0},
    {"mount-binfmt", mount_binfmt, 0},
    {"mount-overlay", mount_overlay, 0},
    {"mount-bind-root", bind_root, 0},
    {"mount-bind-proc-sys", bind_proc_sys, 0},
    {"mount-move", move_mount_old, 0},
    {"mount-shared", share, 0},
    {"remount-root", remount_rw, (long)"/"},
    {"remount-proc", remount_rw, (long)"/proc"},
    {"remount-proc-sys", remount_rw, (long)"/proc/sys"},
    {"remount-sys", remount_rw, (long)"/sys"},
    {"umount-proc", unmount, (long)"/proc"},
    {"umount-proc-sys", unmount, (long)"/proc/sys"},
    {"umount-masked", unmount, (long)"/proc/keys"},
    {"umount-root", unmount, (long)"/"},
    {"fsopen", sys_fsopen, 0},
    {"open_tree", sys_open_tree, 0},
    {"move_mount", sys_move_mount, 0},
    {"fspick", sys_fspick, 0},
    {"fsmount", sys_fsmount, 0},
    {"fsconfig", sys_fsconfig, 0},
    {"mount_setattr-root", sys_mount_setattr, (long)"/"},
    {"mount_setattr-proc-sys", sys_mount_setattr, (long)"/proc/sys"},
    {"pivot_root", sys_pivot_root, 0},
    {0},
};

/* ---- the rest of the kernel ---- */

static long io_uring(long u) {
    (void)u;
    struct io_uring_params p = {0};
    return syscall(SYS_io_uring_setup, 1, &p);
}
static long io_uring_rest(long nr) { return syscall(nr, -1, 0, 0, 0, 0, 0); }
static long bpf_map(long u) {
    (void)u;
    union bpf_attr attr = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
    return syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof attr);
}
static long perf(long config) {
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = config, .exclude_kernel = 1};
    return syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}
static long do_keyctl(long u) { return (void)u, syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 1); }
static long do_add_key(long u) { return (void)u, syscall(SYS_add_key, "user", "attack", "x", 1, KEY_SPEC_PROCESS_KEYRING); }
static long do_request_key(long u) { return (void)u, syscall(SYS_request_key, "user", "attack", NULL, 0); }
static long uffd(long u) { return (void)u, syscall(SYS_userfaultfd, O_CLOEXEC); }
static long kexec(long nr) { return syscall(nr, 0, 0, NULL, 0, 0); }
static long do_init_module(long u) { return (void)u, syscall(SYS_init_module, "junk", 4, ""); }
static long do_finit_module(long u) { return (void)u, syscall(SYS_finit_module, open("/attack", O_RDONLY), "", 0); }
static long do_delete_module(long u) { return (void)u, syscall(SYS_delete_module, "no-such-module", O_NONBLOCK); }
static long do_kcmp(long u) { return (void)u, syscall(SYS_kcmp, 1, getpid(), 0, 0, 0); }
static long vm_read(long u) {
    (void)u;
    char byte;
    struct {
        void *base;
        size_t len;
    } here = {&byte, 1}, there = {(void *)vm_read, 1};
    return syscall(SYS_process_vm_readv, getppid(), &here, 1, &there, 1, 0);
}
static long vm_write(long u) {
    (void)u;
    static char byte;
    struct {
        void *base;
        size_t len;
    } here = {&byte, 1}, there = {&byte, 1};
    return syscall(SYS_process_vm_writev, getppid(), &here, 1, &there, 1, 0);
}
static long getfd(long u) { return (void)u, syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, getppid(), 0), 0, 0); }
static long do_personality(long domain) { return syscall(SYS_personality, domain); }
static long do_swapon(long u) { return (void)u, syscall(SYS_swapon, "/no-such-file", 0); }
static long do_swapoff(long u) { return (void)u, syscall(SYS_swapoff, "/no-such-file"); }
static long do_reboot(long u) { return (void)u, syscall(SYS_reboot, 0xfee1dead, 672274793, 0, NULL); }
static long tick(long u) {
    (void)u;
    struct timex t = {0};
    if (syscall(SYS_adjtimex, &t) < 0) return -1;
    t.modes = ADJ_TICK; /* to what it is */
    return syscall(SYS_clock_adjtime, CLOCK_REALTIME, &t);
}
static long dmesg(long u) {
    static char text[4096];
    return (void)u, syscall(SYS_syslog, 3, text, sizeof text);
}
static long do_acct(long u) { return (void)u, syscall(SYS_acct, "/no-such-file"); }
static long quota(long u) { return (void)u, syscall(SYS_quotactl, 0x80000700 /* Q_GETFMT */, "/no-such-device", 0, NULL); }
static long do_iopl(long u) { return (void)u, syscall(SYS_iopl, 3); }
static long do_ioperm(long u) { return (void)u, syscall(SYS_ioperm, 0x80, 1, 1); }
static long fanotify(long u) { return (void)u, syscall(SYS_fanotify_init, 4 /* CLASS_CONTENT */, O_RDONLY); }

/* "Shocker": the root directory of the filesystem that this root is part of, by its well-known inode number. */
static long by_handle(long inode) {
    struct {
        struct {
            unsigned bytes;
            int type;
        } head;
        unsigned id[2];
    } handle = {{8, 1}, {inode, 0}};
    int at = open("/", O_RDONLY | O_DIRECTORY);
    return syscall(SYS_open_by_handle_at, at, &handle, O_RDONLY);
}
/* The same over the inodes and generations of the first few, on every mount that there is. */
static long by_handles(long u) {
    (void)u;
    static const char *MOUNTS_HERE[] = {"/", "/dev", "/dev/shm", "/proc", "/sys"};
    int seen = EBADF;
    for (size_t m = 0; m < sizeof MOUNTS_HERE / sizeof *MOUNTS_HERE; m++) {
        int at = open(MOUNTS_HERE[m], O_RDONLY | O_DIRECTORY);
        for (unsigned inode = 1; at >= 0 && inode < 200; inode++)
            for (int type = 1; type < 3; type++) {
                struct {
                    unsigned bytes;
                    int type;
                    unsigned id[4];
                } handle = {type == 1 ? 8 : 16, type, {inode, 0, 2, 0}};
                if (syscall(SYS_open_by_handle_at, at, &handle, O_RDONLY) >= 0) return 0;
                if (errno != ESTALE) seen = errno;
            }
        close(at);
    }
    return errno = seen, -1;
}

/* Terminals: characters typed for whoever reads this terminal next. */
static long tiocsti(long request) {
    char c = '\n';
    int fd = open("/dev/tty", O_RDWR | O_NOCTTY);
    return syscall(SYS_ioctl, fd < 0 ? 0 : fd, request, &c);
}
static long tioclinux(long request) {
    char code = 3;
    int fd = open("/dev/tty", O_RDWR | O_NOCTTY);
    return syscall(SYS_ioctl, fd < 0 ? 0 : fd, request, &code);
}

const struct attack KERNEL[] = {
    {"io_uring_setup", io_uring, 0},
    {"io_uring_enter", io_uring_rest, SYS_io_uring_enter},
    {"io_uring_register", io_uring_rest, SYS_io_uring_register},
    {"bpf", bpf_map, 0},
    {"perf_event_open", perf, PERF_COUNT_SW_CPU_CLOCK},
    {"keyctl", do_keyctl, 0},
    {"add_key", do_add_key, 0},
    {"request_key", do_request_key, 0},
    {"userfaultfd", uffd, 0},
    {"kexec_load", kexec, SYS_kexec_load},
    {"kexec_file_load", kexec, SYS_kexec_file_load},
    {"init_module", do_init_module, 0},
    {"finit_module", do_finit_module, 0},
    {"delete_module", do_delete_module, 0},
    {"open_by_handle_at", by_handle, 2},
    {"open_by_handle_at-many", by_handles, 0},
    {"kcmp", do_kcmp, 0},
    {"process_vm_readv", vm_read, 0},
    {"process_vm_writev", vm_write, 0},
    {"pidfd_getfd", getfd, 0},
    {"personality-mmap-page-zero", do_personality, 0x0100000},
    {"personality-read-implies-exec", do_personality, 0x0400000},
    {"swapon", do_swapon, 0},
    {"swapoff", do_swapoff, 0},
    {"reboot", do_reboot, 0},
    {"clock_adjtime", tick, 0},
    {"syslog", dmesg, 0},
    {"acct", do_acct, 0},
    {"quotactl", quota, 0},
    {"iopl", do_iopl, 0},
    {"ioperm", do_ioperm, 0},
    {"fanotify_init", fanotify, 0},
    {"tiocsti", tiocsti, TIOCSTI},
    {"tiocsti-high-bits", tiocsti, TIOCSTI | 0x100000000L},
    {"tioclinux", tioclinux, TIOCLINUX},
    {"tioclinux-high-bits", tioclinux, TIOCLINUX | 0x7fffffff00000000L},
    {0},
};

/* ---- sockets ---- */

static long do_socket(long what) { return socket(what & 0xff, (what >> 8) & 0xff, what >> 16); }
static long socketcall32(long family) {
    unsigned *low = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    low[0] = family, low[1] = SOCK_STREAM, low[2] = 0;
    return int80(102, 1, (long)low, 0, 0, 0);
}
#define SOCKET(FAMILY, TYPE, PROTOCOL) ((FAMILY) | (TYPE) << 8 | (PROTOCOL) << 16)

const struct attack SOCKETS[] = {
    {"socket-raw", do_socket, SOCKET(AF_INET, SOCK_RAW, 1)},
    {"socket-raw6", do_socket, SOCKET(AF_INET6, SOCK_RAW, 58)},
    {"socket-packet", do_socket, SOCKET(AF_PACKET, SOCK_RAW, 0)},
    {"socket-alg", do_socket, SOCKET(AF_ALG, SOCK_SEQPACKET, 0)},
    {"socket-vsock", do_socket, SOCKET(AF_VSOCK, SOCK_STREAM, 0)},
    {"int80-socket-vsock", socketcall32, AF_VSOCK},
    {0},
};

/* ---- devices, and files of the kernel ---- */

#define BLOCK(MAJOR, MINOR) (1 << 20 | (MAJOR) << 8 | (MINOR))
#define CHAR(MAJOR, MINOR) ((MAJOR) << 8 | (MINOR))

static dev_t device(long what, mode_t *mode) {
    *mode = (what >> 20 ? S_IFBLK : S_IFCHR) | 0666;
    return makedev((what >> 8) & 0xfff, what & 0xff);
}
static long make(long what) {
    mode_t mode;
    dev_t dev = device(what, &mode);
    return mknod("/tmp/attack-node", mode, dev) ? -1 : unlink("/tmp/attack-node");
}
/* Made on every filesystem that can be written to, until one lets it be opened. */
static long make_and_open(long what) {
    static const char *PLACES[] = {"/attack-node", "/tmp/attack-node", "/dev/attack-node", "/dev/shm/attack-node"};
    mode_t mode;
    dev_t dev = device(what, &mode);
    int seen = ENOENT;
    for (size_t n = 0; n < sizeof PLACES / sizeof *PLACES; n++) {
        if (mknod(PLACES[n], mode, dev) == 0) {
            int opened = can_open(PLACES[n], O_RDONLY);
            seen = errno;
            unlink(PLACES[n]);
            if (opened == 0) return 0;
        } else if (seen == ENOENT)
            seen = errno;
    }
    return errno = seen, -1;
}
static long read_file(long path) { return can_open((char *)path, O_RDONLY); }
static long write_file(long path) { return can_open((char *)path, O_WRONLY); }
/* What is masked may be opened, but is empty. */
static long content(long path) {
    char byte[2];
    long n = slurp((char *)path, byte, sizeof byte);
    if (n == 0) return errno = ENODATA, -1;
    return n < 0 ? -1 : 0;
}

#define WRITE(PATH) {"write:" PATH, write_file, (long)PATH}
#define READ(PATH) {"read:" PATH, content, (long)PATH}

const struct attack DEVICES[] = {
    {"mknod-loop", make, BLOCK(7, 0)},
    {"mknod-disk", make, BLOCK(254, 0)},
    {"mknod-mem", make, CHAR(1, 1)},
    {"mknod-kmsg", make, CHAR(1, 11)},
    {"mknod-open-loop", make_and_open, BLOCK(7, 0)},
    {"mknod-open-disk", make_and_open, BLOCK(254, 0)},
    {"mknod-open-kmsg", make_and_open, CHAR(1, 11)},
    {"mknod-open-fuse", make_and_open, CHAR(10, 229)},
    {"mknod-open-kvm", make_and_open, CHAR(10, 232)},
    {"image-loop", read_file, (long)"/image-loop"},
    {"image-disk", read_file, (long)"/image-disk"},
    {"image-scsi", read_file, (long)"/image-scsi"},
    {"image-kmsg", read_file, (long)"/image-kmsg"},
    {"image-mem", read_file, (long)"/image-mem"},
    {"dev-mem", read_file, (long)"/dev/mem"},
    {"dev-kmsg", read_file, (long)"/dev/kmsg"},
    WRITE("/proc/sys/kernel/core_pattern"),
    WRITE("/proc/sys/kernel/modprobe"),
    WRITE("/proc/sys/kernel/hostname"),
    WRITE("/proc/sys/kernel/poweroff_cmd"),
    WRITE("/proc/sys/vm/panic_on_oom"),
    WRITE("/proc/sys/vm/drop_caches"),
    WRITE("/proc/sys/fs/file-max"),
    WRITE("/proc/sysrq-trigger"),
    WRITE("/proc/irq/default_smp_affinity"),
    WRITE("/sys/kernel/uevent_helper"),
    WRITE("/sys/kernel/uevent_seqnum"),
    WRITE("/sys/class/net/lo/mtu"),
    WRITE("/sys/kernel/mm/transparent_hugepage/enabled"),
    WRITE("/sys/fs/cgroup/release_agent"),
    WRITE("/sys/fs/cgroup/devices/release_agent"),
    WRITE("/sys/fs/cgroup/cgroup.procs"),
    WRITE("/sys/fs/cgroup/cgroup.subtree_control"),
    WRITE("/sys/fs/cgroup/memory.max"),
    WRITE("/sys/fs/cgroup/pids.max"),
    WRITE("/sys/fs/cgroup/pids/pids.max"),
    WRITE("/sys/fs/cgroup/pids/cgroup.procs"),
    WRITE("/sys/fs/cgroup/pids/tasks"),
    WRITE("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    WRITE("/sys/fs/cgroup/memory/cgroup.procs"),
    WRITE("/sys/fs/cgroup/devices/devices.allow"),
    WRITE("/sys/fs/cgroup/devices/cgroup.procs"),
    WRITE("/sys/fs/cgroup/systemd/release_agent"),
    WRITE("/sys/fs/cgroup/unified/cgroup.procs"),
    READ("/proc/kcore"),
    READ("/proc/keys"),
    READ("/proc/timer_list"),
    READ("/proc/sched_debug"),
    READ("/proc/kmsg"),
    READ("/sys/firmware/dmi/tables/DMI"),
    {0},
};

