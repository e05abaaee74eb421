/* Makes system calls by number and prints what each gets: "LABEL ERRNO" a line, 0 for success.
 *
 *   calls FILE      each line of FILE is "LABEL ABI NUMBER ARG0 … ARG5"; ABI is 64 or 32 (int 0x80)
 *
 * Each call is made in a child of its own, by plain clone(2): what it does to the process is gone with it.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __x86_64__
static long call32(long nr, const unsigned long *a) {
    long ret;
    /* The sixth argument is in ebp, which the compiler may need: no call that is tried has one. */
    __asm__ volatile("int $0x80"
                     : "=a"(ret)
                     : "a"(nr), "b"((unsigned)a[0]), "c"((unsigned)a[1]), "d"((unsigned)a[2]), "S"((unsigned)a[3]),
                       "D"((unsigned)a[4])
                     : "memory", "r8", "r9", "r10", "r11");
    return ret;
}
#else
static long call32(long nr, const unsigned long *a) {
    (void)nr, (void)a;
    return -ENOSYS;
}
#endif

int main(int argc, char **argv) {
    FILE *file = argc > 1 ? fopen(argv[1], "r") : NULL;
    char label[64];
    int abi;
    long nr;
    unsigned long a[6];
    if (!file) {
        perror("calls");
        return 1;
    }
    while (fscanf(file, "%63s %d %li %li %li %li %li %li %li", label, &abi, &nr, (long *)&a[0], (long *)&a[1],
                  (long *)&a[2], (long *)&a[3], (long *)&a[4], (long *)&a[5]) == 9) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            long ret = abi == 32 ? call32(nr, a) : syscall(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
            if (abi != 32 && ret < 0) ret = -errno;
            _exit(ret < 0 && ret > -256 ? -ret : 0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child) {
            perror(label);
            return 1;
        }
        if (WIFEXITED(status)) {
            printf("%s %d\n", label, WEXITSTATUS(status));
        } else {
            printf("%s signal-%d\n", label, WTERMSIG(status));
        }
    }
    return 0;
}
