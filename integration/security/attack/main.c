/* attack: what hostile code in a container tries. Each subcommand prints lines of `NAME OUTCOME`; what is refused is for
 * the tests to know. Nothing here does harm where it succeeds: a file that must not be written is opened, not written. */
#include "attack.h"

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

long slurp(const char *path, char *to, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return -1;
    long n = read(fd, to, size - 1);
    int saved = errno;
    close(fd);
    errno = saved;
    to[n > 0 ? n : 0] = 0;
    return n;
}

int can_open(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return -1;
    close(fd);
    return 0;
}

void play(const char *name, long (*run)(long), long arg) {
    int channel[2];
    if (pipe(channel)) {
        printf("%s no-pipe\n", name);
        return;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        close(channel[0]);
        alarm(10);
        /* Where that is possible, what is done to mounts is for this attack alone. */
        if (syscall(SYS_unshare, CLONE_NEWNS) == 0) mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL);
        int code = run(arg) < 0 ? errno : 0;
        _exit(write(channel[1], &code, sizeof code) != sizeof code);
    }
    close(channel[1]);
    int code, status = 0;
    ssize_t got = child < 0 ? -1 : read(channel[0], &code, sizeof code);
    close(channel[0]);
    if (child > 0) waitpid(child, &status, 0);
    if (child < 0) printf("%s no-fork\n", name);
    else if (got == sizeof code && code == 0) printf("%s ok\n", name);
    else if (got == sizeof code) printf("%s %s\n", name, strerrorname_np(code) ? strerrorname_np(code) : "unknown");
    else printf("%s signal:%d\n", name, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

void play_all(const struct attack *rows) {
    for (; rows->name; rows++) play(rows->name, rows->run, rows->arg);
}

/* All tables, or the rows whose names begin with a word. */
static int tables(int argc, char **argv) {
    const struct attack *all[] = {NAMESPACES, MOUNTS, KERNEL, SOCKETS, DEVICES};
    for (int n = 0; n < 5; n++)
        for (const struct attack *row = all[n]; row->name; row++)
            if (argc < 3 || !strncmp(row->name, argv[2], strlen(argv[2]))) play(row->name, row->run, row->arg);
    return 0;
}

/* Who this process is: `uid euid capEff capBnd noNewPrivs seccomp`. */
static int identity(int argc, char **argv) {
    (void)argc, (void)argv;
    char text[8192];
    if (slurp("/proc/self/status", text, sizeof text) < 0) return perror("/proc/self/status"), 1;
    printf("uid %d\neuid %d\n", getuid(), geteuid());
    const char *fields[] = {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"};
    for (size_t n = 0; n < sizeof fields / sizeof *fields; n++) {
        char key[32], *at;
        snprintf(key, sizeof key, "\n%s:", fields[n]);
        if ((at = strstr(text, key))) printf("%s %s\n", fields[n], strtok(strdup(at + strlen(key)), "\t\n "));
    }
    return 0;
}

/* The descriptors of this process and of a process given: `fd N TARGET`, without the one that lists them. */
static int descriptors(int argc, char **argv) {
    const char *of = argc > 2 ? argv[2] : "self";
    char path[64], target[PATH_MAX];
    snprintf(path, sizeof path, "/proc/%s/fd", of);
    DIR *dir = opendir(path);
    if (!dir) return printf("fd %s\n", strerrorname_np(errno)), 0;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        if (*entry->d_name == '.' || (!strcmp(of, "self") && atoi(entry->d_name) == dirfd(dir))) continue;
        ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        printf("fd %s %s\n", entry->d_name, target);
    }
    return 0;
}

/* Every process that is visible and has not ended: `process PID COMM`. */
static int processes(int argc, char **argv) {
    (void)argc, (void)argv;
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    while (proc && (entry = readdir(proc))) {
        char path[300], comm[64] = "";
        if (!atoi(entry->d_name)) continue;
        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        slurp(path, comm, sizeof comm);
        char stat[512] = "", *state;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        if (slurp(path, stat, sizeof stat) > 0 && (state = strrchr(stat, ')')) && state[1] && state[2] == 'Z') continue;
        printf("process %s %s\n", entry->d_name, strtok(comm, "\n") ? comm : "?");
    }
    return 0;
}

/* Waits to be attacked, with something to steal in memory, environment, an open file and the working directory. */
static int victim(int argc, char **argv) {
    (void)argc, (void)argv;
    static char secret[64];
    /* Not to end with its supervisor. */
    prctl(PR_SET_PDEATHSIG, 0);
    signal(SIGTERM, SIG_IGN);
    snprintf(secret, sizeof secret, "secret-in-memory");
    int fd = open("victims-file", O_RDWR | O_CREAT, 0600);
    if (fd < 0 || write(fd, "secret-in-file", 14) != 14) return perror("victims-file"), 1;
    /* The address is of the static program's data: the same in every process of it. */
    printf("pid %d\n", getpid());
    fflush(stdout);
    while (strcmp(secret, "secret-in-memory") == 0) usleep(50000);
    printf("overwritten\n");
    return 0;
}

/* Does what the host writes into /order, once for each: the way to make the first process do something later. */
static int serve(int argc, char **argv) {
    (void)argc;
    char line[4096];
    for (;;) {
        if (slurp("/order", line, sizeof line) > 0 && unlink("/order") == 0) {
            char *words[32] = {argv[0]};
            int n = 1;
            for (char *w = strtok(line, " \n"); w && n < 31; w = strtok(NULL, " \n")) words[n++] = w;
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) execv("/attack", words), _exit(127);
            /* As pid 1 it also gets what others leave. */
            waitpid(child, NULL, 0);
            printf("done\n");
            fflush(stdout);
        }
        while (waitpid(-1, NULL, WNOHANG) > 0);
        usleep(5000);
    }
}

static const struct {
    const char *name;
    int (*run)(int, char **);
} COMMANDS[] = {
    {"tables", tables},   {"identity", identity}, {"descriptors", descriptors}, {"processes", processes},
    {"victim", victim},   {"serve", serve},       {"against", against},         {"walk", walk},
    {"scan", scan},       {"overwrite", overwrite}, {"swap", swap},             {"bomb", bomb},
    {"forge", forge},     {"find", find},
};

int main(int argc, char **argv) {
    for (size_t n = 0; argc > 1 && n < sizeof COMMANDS / sizeof *COMMANDS; n++)
        if (!strcmp(argv[1], COMMANDS[n].name)) {
            int code = COMMANDS[n].run(argc, argv);
            return fflush(stdout) ? 1 : code;
        }
    fprintf(stderr, "attack: no such attack\n");
    return 2;
}
