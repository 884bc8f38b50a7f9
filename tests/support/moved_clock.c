/* Preloaded library that moves the wall clock of a process, and of all processes that it starts, by
 * $MOVED_CLOCK seconds: what they read, absolute times they wait for, and times of files.
 * Monotonic clocks are not moved. Built and used by scripts/moved.sh.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>

static long offset(void) {
    static long known;
    static int asked;
    if (!asked) {
        const char *said = getenv("MOVED_CLOCK");
        known = said ? atol(said) : 0;
        asked = 1;
    }
    return known;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static struct timespec back(const struct timespec *moved) {
    struct timespec at = *moved;
    at.tv_sec -= offset();
    return at;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int done = real(clock, now);
    if (!done && wall(clock)) now->tv_sec += offset();
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(gettimeofday);
    int done = real(now, zone);
    if (!done) now->tv_sec += offset();
    return done;
}

time_t time(time_t *now) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now) *now = at.tv_sec;
    return at.tv_sec;
}

/* Absolute times to wait for. Those of a monotonic clock are counted from the start of the machine. */
static int monotonic(const struct timespec *until) { return until->tv_sec < 1000000000; }

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) { /* the older version of this symbol has another layout of conditions */
        *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    }
    struct timespec at = monotonic(until) ? *until : back(until);
    return real(condition, mutex, &at);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until) {
    REAL(pthread_cond_clockwait);
    struct timespec at = wall(clock) ? back(until) : *until;
    return real(condition, mutex, clock, &at);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    REAL(pthread_mutex_timedlock);
    struct timespec at = back(until);
    return real(mutex, &at);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    REAL(sem_timedwait);
    struct timespec at = back(until);
    return real(semaphore, &at);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until) {
    REAL(sem_clockwait);
    struct timespec at = wall(clock) ? back(until) : *until;
    return real(semaphore, clock, &at);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    REAL(clock_nanosleep);
    struct timespec at = wall(clock) && (flags & TIMER_ABSTIME) ? back(until) : *until;
    return real(clock, flags, &at, left);
}

/* Times of files. */
static void shift(struct stat *found) {
    found->st_atim.tv_sec += offset();
    found->st_mtim.tv_sec += offset();
    found->st_ctim.tv_sec += offset();
}

/* Programs call the names that end in 64 where they were built for large files: the same on 64 bits. */
#define MOVED_STAT(name, parameters, ...) \
    int name parameters { \
        REAL(name); \
        int done = real(__VA_ARGS__); \
        if (!done) shift((struct stat *)found); \
        return done; \
    }
MOVED_STAT(stat, (const char *restrict path, struct stat *restrict found), path, found)
MOVED_STAT(stat64, (const char *restrict path, struct stat64 *restrict found), path, found)
MOVED_STAT(lstat, (const char *restrict path, struct stat *restrict found), path, found)
MOVED_STAT(lstat64, (const char *restrict path, struct stat64 *restrict found), path, found)
MOVED_STAT(fstat, (int file, struct stat *found), file, found)
MOVED_STAT(fstat64, (int file, struct stat64 *found), file, found)
MOVED_STAT(fstatat, (int directory, const char *restrict path, struct stat *restrict found, int flags),
           directory, path, found, flags)
MOVED_STAT(fstatat64, (int directory, const char *restrict path, struct stat64 *restrict found, int flags),
           directory, path, found, flags)

int utimensat(int directory, const char *path, const struct timespec times[2], int flags) {
    REAL(utimensat);
    if (!times) return real(directory, path, times, flags);
    struct timespec at[2] = {times[0], times[1]};
    for (int i = 0; i < 2; i++)
        if (at[i].tv_nsec != UTIME_NOW && at[i].tv_nsec != UTIME_OMIT) at[i].tv_sec -= offset();
    return real(directory, path, at, flags);
}

int futimens(int file, const struct timespec times[2]) {
    REAL(futimens);
    if (!times) return real(file, times);
    struct timespec at[2] = {times[0], times[1]};
    for (int i = 0; i < 2; i++)
        if (at[i].tv_nsec != UTIME_NOW && at[i].tv_nsec != UTIME_OMIT) at[i].tv_sec -= offset();
    return real(file, at);
}
