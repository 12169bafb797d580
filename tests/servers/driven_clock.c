/* driven_clock: the wall clock of an unmodified server, turned by hand.
 *
 * Preloaded into a process, this answers clock_gettime(CLOCK_REALTIME), gettimeofday() and time() from eight
 * bytes that another process writes: the file named by HEADGATE_DRIVEN_CLOCK holds one int64 in native byte
 * order, microseconds since 1970. Zero means "the real clock", so a server can be started on real time and
 * taken over later.
 *
 * Every other clock stays real, CLOCK_MONOTONIC above all: event loops time their cron by it, and a server
 * whose cron stands still would no longer expire keys by itself or notice idle clients.
 *
 * Valkey from 9.1 on asks for the wall clock only once a millisecond and adds what the processor's tick counter
 * (TSC) measured since, so a frozen clock would creep, and a step would be seen late. It does so only where
 * /proc/cpuinfo promises a constant tick rate; hiding that file from it makes it fall back to the system calls
 * below. (On ARM it needs no such promise, and cannot be driven this way.)
 *
 * A clock file that cannot be read ends the process with a sentence. Falling back to real time would let a
 * test pass or fail for the wrong reason.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CELL_VARIABLE "HEADGATE_DRIVEN_CLOCK"
#define US_PER_SECOND 1000000

/* NULL until the constructor ran: allocators read the clock earlier than that, and then get the real one. */
static const int64_t *cell;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv(CELL_VARIABLE);
    if (path == NULL)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *cell, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        fprintf(stderr, "driven_clock: cannot map %s (%s)\n", path, strerror(errno));
        _exit(70);
    }
    close(fd);
    cell = page;
}

static int64_t driven_us(void)
{
    return cell == NULL ? 0 : __atomic_load_n(cell, __ATOMIC_RELAXED);
}

static int is_wall_clock(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int64_t us = is_wall_clock(clock) ? driven_us() : 0;
    if (us == 0)
        return (int)syscall(SYS_clock_gettime, clock, now);
    now->tv_sec = us / US_PER_SECOND;
    now->tv_nsec = us % US_PER_SECOND * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
        return (time_t)-1;
    if (now != NULL)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

typedef FILE *opener(const char *, const char *);

static FILE *open_unless_hidden(const char *symbol, const char *path, const char *mode)
{
    if (cell != NULL && strcmp(path, "/proc/cpuinfo") == 0) {
        errno = ENOENT;
        return NULL;
    }
    opener *real;
    *(void **)&real = dlsym(RTLD_NEXT, symbol);
    return real(path, mode);
}

FILE *fopen(const char *restrict path, const char *restrict mode)
{
    return open_unless_hidden("fopen", path, mode);
}

FILE *fopen64(const char *restrict path, const char *restrict mode)
{
    return open_unless_hidden("fopen64", path, mode);
}
