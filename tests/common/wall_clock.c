/*
 * A wall clock that a test can step, for a process that preloads this library: CLOCK_REALTIME is
 * off by the number of milliseconds in the file named by LOCKMOD_WALL_CLOCK. The monotonic clocks
 * stay true: the tests check that leases use them and not the wall clock.
 *
 * libfaketime would do, but hangs in servers with jemalloc, whose first allocation reads the clock.
 * So nothing here allocates or looks up a symbol: the true time comes from a bare system call.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Shared with the test, which writes it atomically; NULL before the constructor has run. */
static const volatile int64_t *offset_ms;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("LOCKMOD_WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *offset_ms, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) offset_ms = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result != 0 || !offset_ms) return result;
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return result;
    int64_t off = *offset_ms;
    now->tv_sec += off / 1000;
    now->tv_nsec += off % 1000 * 1000000;
    if (now->tv_nsec < 0) now->tv_nsec += 1000000000, now->tv_sec--;
    if (now->tv_nsec >= 1000000000) now->tv_nsec -= 1000000000, now->tv_sec++;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    if (seconds) *seconds = precise.tv_sec;
    return precise.tv_sec;
}
