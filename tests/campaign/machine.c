/* A machine whose clock jumps and whose disk is slow, for the processes that load this file before libc (LD_PRELOAD).

   The file named by BRORL_CAMPAIGN_MACHINE holds two 64-bit numbers, which may change at any moment: seconds that the
   clock of the day is ahead, and microseconds that each fsync and rename takes. Waits until a time of day are moved
   back by as much, since the kernel waits by its own clock. Times of files are the kernel's, as on a disk of another
   machine. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NO_TIME_OF_DAY 1000000000 /* seconds: a clock that counts from the start of the machine is below */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static volatile const int64_t *settings;

__attribute__((constructor)) static void open_settings(void) {
    const char *path = getenv("BRORL_CAMPAIGN_MACHINE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *memory = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (memory != MAP_FAILED) settings = memory;
}

static int64_t seconds_ahead(void) { return settings ? settings[0] : 0; }

static void wait_for_disk(void) {
    if (settings && settings[1]) usleep((useconds_t)settings[1]);
}

static struct timespec by_kernel(const struct timespec *moment) {
    struct timespec moved = *moment;
    if (moved.tv_sec > NO_TIME_OF_DAY) moved.tv_sec -= seconds_ahead();
    return moved;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = NEXT(clock_gettime)(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += seconds_ahead();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = NEXT(gettimeofday)(now, zone);
    if (result == 0) now->tv_sec += seconds_ahead();
    return result;
}

time_t time(time_t *now) {
    time_t found = NEXT(time)(NULL) + seconds_ahead();
    if (now) *now = found;
    return found;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict moment) {
    __typeof__(&pthread_cond_timedwait) next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec moved = by_kernel(moment);
    return (next ? next : NEXT(pthread_cond_timedwait))(condition, mutex, &moved);
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict moment) {
    struct timespec moved = by_kernel(moment);
    return NEXT(pthread_cond_clockwait)(condition, mutex, clock, &moved);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict moment) {
    struct timespec moved = by_kernel(moment);
    return NEXT(pthread_mutex_timedlock)(mutex, &moved);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict moment) {
    struct timespec moved = by_kernel(moment);
    return NEXT(sem_timedwait)(semaphore, &moved);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict moment) {
    struct timespec moved = by_kernel(moment);
    return NEXT(sem_clockwait)(semaphore, clock, &moved);
}

long syscall(long number, ...) {
    long given[6];
    va_list rest;
    va_start(rest, number);
    for (int index = 0; index < 6; index++) given[index] = va_arg(rest, long);
    va_end(rest);
    struct timespec moved;
    int waits = (given[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && given[1] & FUTEX_CLOCK_REALTIME;
    if (number == SYS_futex && waits && given[3]) {
        moved = by_kernel((const struct timespec *)given[3]);
        given[3] = (long)&moved;
    }
    return NEXT(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

int fsync(int file) {
    wait_for_disk();
    return NEXT(fsync)(file);
}

int fdatasync(int file) {
    wait_for_disk();
    return NEXT(fdatasync)(file);
}

int rename(const char *old, const char *new) {
    wait_for_disk();
    return NEXT(rename)(old, new);
}
