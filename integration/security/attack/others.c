/* Attacks on other processes of the container, and searches of what can be seen: other files of /proc and /sys that can be
 * written, names that only the host knows. */
#include "attack.h"

#include <ftw.h>
#include <sys/resource.h>

static char base[64];

static const char *below(const char *name) {
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", base, name);
    return path;
}

static long attach(long pid) { return ptrace(PTRACE_ATTACH, pid, 0, 0); }
static long seize(long pid) { return ptrace(PTRACE_SEIZE, pid, 0, 0); }
/* Reads the first bytes of the program's text by its memory file. */
static long mem_read(long pid) {
    (void)pid;
    char byte;
    int fd = open(below("mem"), O_RDONLY);
    return fd < 0 ? -1 : pread(fd, &byte, 1, 0x401000) == 1 ? 0 : -1;
}
static long mem_write(long pid) { return (void)pid, can_open(below("mem"), O_RDWR); }
static long file(long name) { return can_open(below((char *)name), O_RDONLY); }
static long wfile(long name) { return can_open(below((char *)name), O_WRONLY); }
static long link_of(long name) {
    char target[PATH_MAX];
    return readlink(below((char *)name), target, sizeof target);
}
/* The first name in a directory: where only opening it is allowed there is none. */
static long listing(long name) {
    DIR *dir = opendir(below((char *)name));
    if (!dir) return -1;
    struct dirent *entry;
    errno = 0;
    while ((entry = readdir(dir)))
        if (*entry->d_name != '.') return 0;
    if (!errno) errno = ENOENT;
    return -1;
}
/* Opened and empty is as good as closed: `environ` of a process that may not be looked into. */
static long text(long name) {
    char byte[2];
    long n = slurp(below((char *)name), byte, sizeof byte);
    if (n == 0) return errno = ENODATA, -1;
    return n;
}
static long fd_reopen(long flags) {
    DIR *dir = opendir(below("fd"));
    if (!dir) return -1;
    struct dirent *entry;
    int seen = ENOENT;
    while ((entry = readdir(dir))) {
        if (*entry->d_name == '.') continue;
        int fd = openat(dirfd(dir), entry->d_name, flags | O_NONBLOCK | O_NOCTTY);
        if (fd >= 0) return 0;
        seen = errno;
    }
    return errno = seen, -1;
}
static long vm(long pid, long nr) {
    char byte;
    struct {
        void *base;
        size_t len;
    } here = {&byte, 1}, there = {(void *)0x401000, 1};
    return syscall(nr, pid, &here, 1, &there, 1, 0);
}
static long vm_readv(long pid) { return vm(pid, SYS_process_vm_readv); }
static long vm_writev(long pid) { return vm(pid, SYS_process_vm_writev); }
static long getfd(long pid) {
    /* The descriptor that the victim has open besides its streams. */
    return syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, pid, 0), 3, 0);
}
static long do_kcmp(long pid) { return syscall(SYS_kcmp, pid, getpid(), 2, 0, 0); }
static long advise(long pid) {
    struct {
        void *base;
        size_t len;
    } there = {(void *)0x401000, 4096};
    return syscall(SYS_process_madvise, syscall(SYS_pidfd_open, pid, 0), &there, 1, 20 /* COLD */, 0);
}
static long move_pages(long pid) { return syscall(SYS_move_pages, pid, 0, NULL, NULL, NULL, 0); }

int against(int argc, char **argv) {
    if (argc < 3) return 2;
    long pid = atol(argv[2]);
    snprintf(base, sizeof base, "/proc/%ld", pid);
    const struct attack rows[] = {
        {"ptrace-attach", attach, pid},
        {"ptrace-seize", seize, pid},
        {"mem-read", mem_read, pid},
        {"mem-write", mem_write, pid},
        {"root", file, (long)"root/"},
        {"root-file", file, (long)"root/victims-file"},
        {"root-write", wfile, (long)"root/victims-file"},
        {"root-link", link_of, (long)"root"},
        {"cwd", file, (long)"cwd/"},
        {"cwd-link", link_of, (long)"cwd"},
        {"exe", file, (long)"exe"},
        {"fd-link", link_of, (long)"fd/0"},
        {"fd-read", fd_reopen, O_RDONLY},
        {"fd-write", fd_reopen, O_WRONLY},
        {"fdinfo", listing, (long)"fdinfo"},
        {"map_files", listing, (long)"map_files"},
        {"environ", text, (long)"environ"},
        {"maps", text, (long)"maps"},
        {"auxv", text, (long)"auxv"},
        {"pagemap", file, (long)"pagemap"},
        {"ns", file, (long)"ns/mnt"},
        {"process_vm_readv", vm_readv, pid},
        {"process_vm_writev", vm_writev, pid},
        {"pidfd_getfd", getfd, pid},
        {"kcmp", do_kcmp, pid},
        {"process_madvise", advise, pid},
        {"move_pages", move_pages, pid},
        {0},
    };
    play_all(rows);
    return 0;
}

/* ---- searches ---- */

static int found, looked;

/* The process's own and other processes' directories are `against`'s. */
static int skipped(const char *path) {
    if (strncmp(path, "/proc/", 6)) return 0;
    const char *name = path + 6;
    return (*name >= '0' && *name <= '9') || !strncmp(name, "self", 4) || !strncmp(name, "thread-self", 11);
}

static int writable(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)at;
    if (skipped(path)) return FTW_SKIP_SUBTREE;
    if (type == FTW_D || type == FTW_DNR || type == FTW_DP) {
        char made[PATH_MAX];
        snprintf(made, sizeof made, "%s/attack", path);
        if (mkdir(made, 0755) == 0) printf("mkdir %s\n", path), rmdir(made), found++;
        return FTW_CONTINUE;
    }
    if (type != FTW_F) return FTW_CONTINUE;
    looked++;
    /* Root may open any file for writing; that a file takes writes at all is in its mode. A
     * device in a file's place masks it. */
    if (!S_ISREG(st->st_mode) || !(st->st_mode & 0222)) return FTW_CONTINUE;
    if (can_open(path, O_WRONLY) == 0) printf("writable %s\n", path), found++;
    return FTW_CONTINUE;
}

/* Prints every file below the paths given that can be opened for writing, and every directory that takes a new one. */
int walk(int argc, char **argv) {
    for (int n = 2; n < argc; n++) nftw(argv[n], writable, 16, FTW_PHYS | FTW_ACTIONRETVAL);
    printf("looked %d\nfound %d\n", looked, found);
    return 0;
}

static const char *wanted;

static int named(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    if (skipped(path) || !strcmp(path, "/sys")) return FTW_SKIP_SUBTREE;
    looked++;
    if (type != FTW_NS && !strcmp(path + at->base, wanted)) printf("visible %s\n", path), found++;
    return FTW_CONTINUE;
}

/* Looks for a file of that name everywhere that this process can go. */
int find(int argc, char **argv) {
    if (argc < 3) return 2;
    wanted = argv[2];
    nftw("/", named, 16, FTW_PHYS | FTW_ACTIONRETVAL);
    printf("looked %d\nfound %d\n", looked, found);
    return 0;
}
