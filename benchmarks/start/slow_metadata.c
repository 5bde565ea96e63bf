/* Makes each call with a path take as long as a busy metadata server would, and notes its path.

   Preloaded. STORM_MS is the delay; STORM_LOG a folder with a file for each process. Paths of the
   kernel's own file systems are free; so is what the dynamic loader opens by itself, which no
   library can see. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* 1 if no server is asked; what lies below a folder that is held open (/proc/PID/fd/N/) is asked for */
static int of_the_kernel(const char *path) {
    const char *held = strstr(path, "/fd/");
    if (!strncmp(path, "/proc/", 6)) return !held || !strchr(held + 4, '/');
    return !strncmp(path, "/sys/", 5) || !strncmp(path, "/dev/", 5);
}

static void asked(const char *call, int dir, const char *path) {
    const char *log = getenv("STORM_LOG"), *ms = getenv("STORM_MS");
    char place[PATH_MAX], full[PATH_MAX], line[2 * PATH_MAX];
    int before = errno;
    if (!path || !*path || !log) return;
    full[0] = 0;
    if (path[0] != '/' && dir != AT_FDCWD) {
        snprintf(place, sizeof place, "/proc/self/fd/%d", dir);
        ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, place, full, sizeof full - 1);
        full[size < 0 ? 0 : size] = 0;
        if (!strncmp(full, "/proc/", 6)) { errno = before; return; }
    }
    if (of_the_kernel(path)) { errno = before; return; }
    snprintf(place, sizeof place, "%s/%d", log, getpid());
    int fd = syscall(SYS_openat, AT_FDCWD, place, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        int size = snprintf(line, sizeof line, "%s %s%s%s\n", call, full, *full ? "/" : "", path);
        syscall(SYS_write, fd, line, size);
        syscall(SYS_close, fd);
    }
    double s = ms ? atof(ms) / 1e3 : 0;
    struct timespec t = {(time_t)s, (long)((s - (time_t)s) * 1e9)};
    if (s > 0) syscall(SYS_nanosleep, &t, 0);
    errno = before;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CALL(type, name, args, dir, path, ...) \
    type name args { asked(#name, dir, path); return REAL(name)(__VA_ARGS__); }
#define OPEN(name, args, dir, ...) int name args { \
    mode_t m = 0; \
    if (f & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, f); m = va_arg(a, mode_t); va_end(a); } \
    asked(#name, dir, p); return REAL(name)(__VA_ARGS__, f, m); }
#define HERE AT_FDCWD

OPEN(open, (const char *p, int f, ...), HERE, p)
OPEN(open64, (const char *p, int f, ...), HERE, p)
OPEN(openat, (int d, const char *p, int f, ...), d, d, p)
OPEN(openat64, (int d, const char *p, int f, ...), d, d, p)
CALL(FILE *, fopen, (const char *p, const char *m), HERE, p, p, m)
CALL(FILE *, fopen64, (const char *p, const char *m), HERE, p, p, m)
CALL(DIR *, opendir, (const char *p), HERE, p, p)
CALL(int, stat, (const char *p, struct stat *s), HERE, p, p, s)
CALL(int, stat64, (const char *p, struct stat64 *s), HERE, p, p, s)
CALL(int, lstat, (const char *p, struct stat *s), HERE, p, p, s)
CALL(int, lstat64, (const char *p, struct stat64 *s), HERE, p, p, s)
CALL(int, fstatat, (int d, const char *p, struct stat *s, int f), d, p, d, p, s, f)
CALL(int, fstatat64, (int d, const char *p, struct stat64 *s, int f), d, p, d, p, s, f)
CALL(int, statfs, (const char *p, struct statfs *s), HERE, p, p, s)
CALL(int, statfs64, (const char *p, struct statfs64 *s), HERE, p, p, s)
CALL(int, statvfs, (const char *p, struct statvfs *s), HERE, p, p, s)
CALL(int, statvfs64, (const char *p, struct statvfs64 *s), HERE, p, p, s)
CALL(int, access, (const char *p, int m), HERE, p, p, m)
CALL(int, faccessat, (int d, const char *p, int m, int f), d, p, d, p, m, f)
CALL(int, chdir, (const char *p), HERE, p, p)
CALL(int, chmod, (const char *p, mode_t m), HERE, p, p, m)
CALL(int, mkdir, (const char *p, mode_t m), HERE, p, p, m)
CALL(int, mkdirat, (int d, const char *p, mode_t m), d, p, d, p, m)
CALL(int, rmdir, (const char *p), HERE, p, p)
CALL(int, unlink, (const char *p), HERE, p, p)
CALL(int, unlinkat, (int d, const char *p, int f), d, p, d, p, f)
CALL(int, rename, (const char *a, const char *b), HERE, b, a, b)
CALL(int, renameat, (int d, const char *a, int e, const char *b), e, b, d, a, e, b)
CALL(int, link, (const char *a, const char *b), HERE, b, a, b)
CALL(int, linkat, (int d, const char *a, int e, const char *b, int f), e, b, d, a, e, b, f)
CALL(int, symlink, (const char *a, const char *b), HERE, b, a, b)
CALL(ssize_t, readlink, (const char *p, char *b, size_t n), HERE, p, p, b, n)
CALL(ssize_t, readlinkat, (int d, const char *p, char *b, size_t n), d, p, d, p, b, n)
CALL(char *, realpath, (const char *p, char *r), HERE, p, p, r)
CALL(ssize_t, getxattr, (const char *p, const char *n, void *v, size_t s), HERE, p, p, n, v, s)
