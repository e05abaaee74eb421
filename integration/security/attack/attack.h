/* What the parts of the attacker share: an attack is a function that returns -1 with errno where it was refused. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

struct attack {
    const char *name;
    long (*run)(long);
    long arg;
};

/* Plays one attack in a child process and prints `NAME OUTCOME`: `ok`, the errno's name, or `signal:N`. */
void play(const char *name, long (*run)(long), long arg);
/* The same for every row up to the one without a name. */
void play_all(const struct attack *rows);
/* Opens and closes: a file that can be opened could have been read or written. */
int can_open(const char *path, int flags);
/* Seconds since some start. */
double now(void);
/* Reads a small file, always NUL-terminated; its length, or -1. */
long slurp(const char *path, char *to, size_t size);

extern const struct attack KERNEL[], MOUNTS[], NAMESPACES[], DEVICES[], SOCKETS[];

int against(int argc, char **argv);
int walk(int argc, char **argv);
int scan(int argc, char **argv);
int overwrite(int argc, char **argv);
int swap(int argc, char **argv);
int bomb(int argc, char **argv);
int forge(int argc, char **argv);
int find(int argc, char **argv);
