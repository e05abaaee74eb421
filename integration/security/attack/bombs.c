/* What uses things up, and forgeries of overlayfs' own marks. */
#include "attack.h"

/* Prints how far it came: `forks N ERRNO`. */
static int forks(long limit) {
    long n = 0;
    while (n < limit) {
        pid_t child = fork();
        if (child == 0) pause(), _exit(0);
        if (child < 0) break;
        n++;
    }
    printf("forks %ld %s\n", n, n < limit ? strerrorname_np(errno) : "ok");
    fflush(stdout);
    /* Whoever is left is the runtime's to end. */
    return 0;
}

static int memory(long megabytes) {
    for (long n = 1; n <= megabytes; n++) {
        char *block = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) return printf("memory %ld %s\n", n, strerrorname_np(errno)), 0;
        for (int at = 0; at < 1 << 20; at += 4096) block[at] = (char)n;
        if (n % 16 == 0) printf("memory %ld\n", n), fflush(stdout);
    }
    return printf("memory %ld ok\n", megabytes), 0;
}

static int disk(long megabytes, const char *path) {
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    long n = 0;
    while (fd >= 0 && n < megabytes && write(fd, block, sizeof block) == sizeof block) n++;
    printf("disk %ld %s\n", n, n < megabytes ? strerrorname_np(errno) : "ok");
    return 0;
}

static int files(long limit, const char *dir) {
    char path[PATH_MAX];
    mkdir(dir, 0755);
    long n = 0;
    for (; n < limit; n++) {
        snprintf(path, sizeof path, "%s/%ld", dir, n);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (fd < 0) break;
        close(fd);
    }
    printf("files %ld %s\n", n, n < limit ? strerrorname_np(errno) : "ok");
    return 0;
}

/* `bomb KIND LIMIT [PATH]`: the limit is for the host's sake, should there be no other. */
int bomb(int argc, char **argv) {
    if (argc < 4) return 2;
    const long limit = atol(argv[3]);
    if (!strcmp(argv[2], "forks")) return forks(limit);
    if (!strcmp(argv[2], "memory")) return memory(limit);
    if (argc < 5) return 2;
    if (!strcmp(argv[2], "disk")) return disk(limit, argv[4]);
    if (!strcmp(argv[2], "files")) return files(limit, argv[4]);
    return 2;
}

/* ---- forgeries ---- */

static const char *path_of;
static const char *value_of;

static long set(long name) { return setxattr(path_of, (char *)name, value_of, strlen(value_of), 0); }
static long whiteout(long mode) { return mknod(path_of, mode, makedev(0, 0)); }

/* `forge DIR FILE TARGET`: marks DIR as opaque and redirected to TARGET, FILE as without data of its own and as whiteout,
 * in every form that overlayfs and its tools have had; and plants a whiteout device beside them. */
int forge(int argc, char **argv) {
    if (argc < 5) return 2;
    static const char *PREFIXES[] = {"trusted.overlay.", "user.overlay.", "trusted.overlay.overlay."};
    char name[4][96], beside[PATH_MAX];
    for (size_t n = 0; n < sizeof PREFIXES / sizeof *PREFIXES; n++) {
        static const char *ENDS[] = {"opaque", "redirect", "metacopy", "whiteout"};
        for (int m = 0; m < 4; m++) snprintf(name[m], sizeof name[m], "%s%s", PREFIXES[n], ENDS[m]);
        path_of = argv[2];
        value_of = n == 1 ? "y" : "x";
        play(name[0], set, (long)name[0]);
        value_of = argv[4];
        play(name[1], set, (long)name[1]);
        path_of = argv[3];
        play(name[2], set, (long)name[2]);
        value_of = "";
        play(name[3], set, (long)name[3]);
        value_of = argv[4];
        char onfile[104];
        snprintf(onfile, sizeof onfile, "file:%s", name[1]);
        play(onfile, set, (long)name[1]);
    }
    snprintf(beside, sizeof beside, "%s/forged-whiteout", argv[2]);
    path_of = beside;
    play("mknod-whiteout", whiteout, S_IFCHR | 0600);
    snprintf(beside, sizeof beside, "%s/forged-block", argv[2]);
    play("mknod-whiteout-block", whiteout, S_IFBLK | 0600);
    snprintf(beside, sizeof beside, "%s/.wh.passwd", argv[2]);
    play("mknod-whiteout-aufs", whiteout, S_IFREG | 0600);
    return 0;
}
