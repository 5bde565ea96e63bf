/* Shifts the clock of a node: CLOCK_SKEW is "n1=+120 n2=-90", the node is SLURMD_NODENAME.

   Preloaded into the processes of jobs. Times of files are the server's, as everywhere. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

static long skew(void) {
    const char *all = getenv("CLOCK_SKEW"), *name = getenv("SLURMD_NODENAME");
    if (!all || !name) return 0;
    for (const char *at = all; (at = strstr(at, name)); at++)
        if (at[strlen(name)] == '=') return atol(at + strlen(name) + 1);
    return 0;
}

int clock_gettime(clockid_t id, struct timespec *t) {
    int done = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(id, t);
    if (done == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += skew();
    return done;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    int done = ((int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday"))(t, zone);
    if (done == 0) t->tv_sec += skew();
    return done;
}
time_t time(time_t *to) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (to) *to = t.tv_sec;
    return t.tv_sec;
}
