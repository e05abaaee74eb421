/* play: changes to a filesystem, one a line on standard input, as a program inside a container makes them.
 *
 * A line is `[?|!]OP ARG...`, separated by single spaces; in an argument `%XX` is the byte XX, so that names and
 * contents may be any bytes. `?`: failing is as good. `!`: it must fail. Otherwise a failure ends the program with
 * status 1 and a message. `sync` answers `ok` on standard output and so tells that all before it is done. Standard
 * input's end is the end. Paths are relative to the root directory, or to the working directory with `--here`.
 *
 * Built with -static at test time: it has to run in any root filesystem.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define ARGS 8

static char *arg[ARGS];
static size_t len[ARGS];

static long number(int i) { return arg[i] ? strtol(arg[i], NULL, 0) : 0; }

static int done(int fd, int ret) {
    int saved = errno;
    close(fd);
    errno = saved;
    return ret;
}

static int put(const char *path, int flags, const char *bytes, size_t n, off_t at) {
    /* A pipe that nobody reads is waited for by nobody. */
    int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC, 0644);
    if (fd < 0) return -1;
    ssize_t got = n == 0 ? 0 : at < 0 ? write(fd, bytes, n) : pwrite(fd, bytes, n, at);
    return done(fd, got == (ssize_t)n ? 0 : -1);
}

static int remove_tree(int dir, const char *name) {
    if (unlinkat(dir, name, 0) == 0) return 0;
    if (errno != EISDIR && errno != EPERM) return -1;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    DIR *list = fdopendir(fd);
    struct dirent *entry;
    int ret = 0;
    while (ret == 0 && (entry = readdir(list)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) ret = remove_tree(fd, entry->d_name);
    int saved = errno;
    closedir(list);
    errno = saved;
    return ret ? ret : unlinkat(dir, name, AT_REMOVEDIR);
}

/* A chain of directories whose path is far longer than PATH_MAX, each with a file in it. */
static int deep(const char *path, long depth, long width) {
    int at = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char name[NAME_MAX + 1];
    memset(name, 'd', sizeof name);
    name[width] = 0;
    while (at >= 0 && depth-- > 0) {
        if (mkdirat(at, name, 0755) && errno != EEXIST) return done(at, -1);
        int next = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (next < 0) return done(at, -1);
        int file = openat(next, "f", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (file < 0 || write(file, "x", 1) != 1) return done(next, -1);
        close(file);
        close(at);
        at = next;
    }
    return at < 0 ? -1 : done(at, 0);
}

static int many(const char *path, long dirs, long files, const char *bytes, size_t n) {
    char name[PATH_MAX];
    for (long d = 0; d < dirs; d++) {
        snprintf(name, sizeof name, "%s/%ld", path, d);
        if (mkdir(name, 0755) && errno != EEXIST) return -1;
        for (long f = 0; f < files; f++) {
            snprintf(name, sizeof name, "%s/%ld/file%ld", path, d, f);
            if (put(name, O_WRONLY | O_CREAT, bytes, n, -1)) return -1;
        }
    }
    return 0;
}

/* Times: seconds and nanoseconds; not followed. */
static int touch(const char *path, long seconds, long nanoseconds) {
    struct timespec times[2] = {{0, UTIME_OMIT}, {seconds, nanoseconds}};
    return utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
}

/* Other bytes of the same length, with the modification time put back. */
static int disguise(const char *path, const char *bytes, size_t n) {
    struct stat stat;
    if (lstat(path, &stat) || put(path, O_WRONLY, bytes, n, 0)) return -1;
    return touch(path, stat.st_mtim.tv_sec, stat.st_mtim.tv_nsec);
}

static int tmpfile_linked(const char *dir, const char *path, const char *bytes, size_t n) {
    int fd = open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0640);
    if (fd < 0) return -1;
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (write(fd, bytes, n) != (ssize_t)n) return done(fd, -1);
    return done(fd, linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW));
}

/* Deleted while it is open, and written afterwards: the data are nowhere. */
static int write_unlinked(const char *path, const char *bytes, size_t n) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return -1;
    if (unlink(path)) return done(fd, -1);
    return done(fd, write(fd, bytes, n) == (ssize_t)n ? 0 : -1);
}

static int shell(const char *script) {
    pid_t child = fork();
    if (child == 0) {
        dup2(2, 1);
        execl("/bin/sh", "sh", "-ec", script, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    errno = ECHILD;
    return status == 0 ? 0 : -1;
}

static int run(const char *op) {
#define IS(name) (strcmp(op, name) == 0)
    const char *path = arg[0];
    if (IS("sync")) return printf("ok\n") < 0 || fflush(stdout) ? -1 : 0;
    if (IS("mkdir")) return mkdir(path, 0755);
    if (IS("rmdir")) return rmdir(path);
    if (IS("rm")) return unlink(path);
    if (IS("rmtree")) return remove_tree(AT_FDCWD, path);
    if (IS("mv")) return rename(path, arg[1]);
    if (IS("exchange")) return renameat2(AT_FDCWD, path, AT_FDCWD, arg[1], RENAME_EXCHANGE);
    if (IS("mv-whiteout")) return renameat2(AT_FDCWD, path, AT_FDCWD, arg[1], RENAME_WHITEOUT);
    if (IS("link")) return linkat(AT_FDCWD, path, AT_FDCWD, arg[1], 0);
    if (IS("symlink")) return symlink(path, arg[1]);
    if (IS("put")) return put(path, O_WRONLY | O_CREAT | O_TRUNC, arg[1], len[1], -1);
    if (IS("append")) return put(path, O_WRONLY | O_APPEND, arg[1], len[1], -1);
    if (IS("write-at")) return put(path, O_WRONLY | O_CREAT, arg[2], len[2], number(1));
    if (IS("open")) return put(path, O_RDWR, "", 0, -1);
    if (IS("truncate")) return put(path, O_WRONLY | O_CREAT, "", 0, -1) ? -1 : truncate(path, number(1));
    if (IS("chmod")) return chmod(path, strtol(arg[1], NULL, 8));
    if (IS("chown")) return lchown(path, number(1), number(2));
    if (IS("touch")) return touch(path, number(1), number(2));
    if (IS("disguise")) return disguise(path, arg[1], len[1]);
    if (IS("setx")) return lsetxattr(path, arg[1], arg[2], len[2], 0);
    if (IS("rmx")) return lremovexattr(path, arg[1]);
    if (IS("fifo")) return mknod(path, S_IFIFO | 0600, 0);
    if (IS("socket")) return mknod(path, S_IFSOCK | 0600, 0);
    if (IS("char")) return mknod(path, S_IFCHR | 0600, makedev(number(1), number(2)));
    if (IS("block")) return mknod(path, S_IFBLK | 0600, makedev(number(1), number(2)));
    if (IS("deep")) return deep(path, number(1), number(2));
    if (IS("many")) return many(path, number(1), number(2), arg[3], len[3]);
    if (IS("tmpfile")) return tmpfile_linked(path, arg[1], arg[2], len[2]);
    if (IS("write-unlinked")) return write_unlinked(path, arg[1], len[1]);
    if (IS("sh")) return shell(path);
    errno = ENOSYS;
    return -1;
}

/* Splits the line in place. */
static const char *split(char *line) {
    char *word = strtok(line, " ");
    for (int i = 0; i < ARGS; i++) {
        char *from = word ? strtok(NULL, " ") : NULL;
        arg[i] = from;
        len[i] = 0;
        if (!from) continue;
        char *to = from;
        while (*from) {
            unsigned byte;
            if (*from == '%' && sscanf(from + 1, "%2x", &byte) == 1) {
                *to++ = (char)byte;
                from += 3;
            } else {
                *to++ = *from++;
            }
        }
        *to = 0;
        len[i] = (size_t)(to - arg[i]);
    }
    for (int i = 0; i < 3; i++)
        if (!arg[i]) arg[i] = "";
    return word ? word : "";
}

int main(int argc, char **argv) {
    umask(022);
    if (!(argc > 1 && strcmp(argv[1], "--here") == 0) && chdir("/")) return 2;
    char *line = NULL, *copy = NULL;
    size_t room = 0;
    ssize_t got;
    while ((got = getline(&line, &room, stdin)) > 0) {
        line[strcspn(line, "\n")] = 0;
        free(copy);
        copy = strdup(line);
        char mark = line[0];
        int marked = mark == '?' || mark == '!';
        const char *op = split(line + marked);
        errno = 0;
        int ret = run(op);
        if (mark == '?') continue;
        if ((ret == 0) == (mark == '!')) {
            fprintf(stderr, "%s: %s\n", copy, ret == 0 ? "it did not fail" : strerror(errno));
            return 1;
        }
    }
    return 0;
}
