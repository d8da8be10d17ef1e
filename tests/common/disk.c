/*
 * A disk that a test can watch and fill, for a process that preloads this library. Syncs and
 * renames of files with "lockmod" in their names, and syncs of folders, are written to the file
 * named by LOCKMOD_DISK_LOG, one line per call. While the file named by LOCKMOD_DISK_FULL exists,
 * no such file can be synced unless it is empty.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void note(const char *what, const char *path) {
    const char *log = getenv("LOCKMOD_DISK_LOG");
    int file = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (file < 0) return;
    char line[4200];
    int length = snprintf(line, sizeof line, "%s %s\n", what, path);
    if (length > 0 && write(file, line, (size_t)length) < 0) { /* the test will miss the line */ }
    close(file);
}

int fsync(int file) {
    char link[64], path[4096];
    struct stat status;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    int is_folder = fstat(file, &status) == 0 && S_ISDIR(status.st_mode);
    const char *name = strrchr(path, '/');
    if (is_folder || (name && strstr(name, "lockmod"))) {
        const char *full = getenv("LOCKMOD_DISK_FULL");
        if (!is_folder && status.st_size > 0 && full && access(full, F_OK) == 0) {
            errno = ENOSPC;
            return -1;
        }
        note(is_folder ? "sync-folder" : "sync", path);
    }
    return (int)syscall(SYS_fsync, file);
}

/* Valkey lets a module bind to the C library before what is preloaded. */
void *dlopen(const char *file, int mode) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next ? next(file, mode & ~RTLD_DEEPBIND) : NULL;
}

int rename(const char *from, const char *to) {
    int result = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (result == 0 && strstr(from, "lockmod")) note("rename", to);
    return result;
}
