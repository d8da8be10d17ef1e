/*
 * A moment that a test can make last, for a process that preloads this: once the process has put
 * another process group into the foreground of its terminal, it creates the file named by
 * LOCKMOD_KEYS_GIVEN, and goes on when the file named by LOCKMOD_KEYS_GATE is there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

int tcsetpgrp(int terminal, pid_t group) {
    int (*real)(int, pid_t) = (int (*)(int, pid_t))dlsym(RTLD_NEXT, "tcsetpgrp");
    int result = real(terminal, group);
    const char *given = getenv("LOCKMOD_KEYS_GIVEN"), *gate = getenv("LOCKMOD_KEYS_GATE");
    if (!given || !gate || group == getpgrp()) return result;
    close(open(given, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    while (access(gate, F_OK) != 0) usleep(1000);
    return result;
}
