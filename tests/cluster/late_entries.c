/* Makes new entries of a folder appear late to other nodes, as a network file system's caches do.

   Preloaded into the processes of jobs. LATE_ROOT is the folder, LATE_S the seconds, and the node is
   SLURMD_NODENAME (else "login"). Who makes an entry below LATE_ROOT leaves its node and the time in
   an attribute of the inode; other nodes neither list nor open nor stat it until LATE_S later. The
   server knows better: whoever creates it in vain sees it from then on. */
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
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define BORN "user.late.born"

static const char *node(void) {
    const char *name = getenv("SLURMD_NODENAME");
    return name ? name : "login";
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static const char *at(int dir, const char *path, char *full) {
    if (dir == AT_FDCWD || path[0] == '/') return path;
    snprintf(full, PATH_MAX, "/proc/self/fd/%d/%s", dir, path);
    return full;
}

static int below(const char *path) {
    const char *root = getenv("LATE_ROOT");
    char copy[PATH_MAX], real[PATH_MAX];
    if (!root) return 0;
    snprintf(copy, sizeof copy, "%s", path);
    char *slash = strrchr(copy, '/');
    if (slash) *(slash == copy ? slash + 1 : slash) = 0;
    return realpath(slash ? copy : ".", real) && !strncmp(real, root, strlen(root));
}

static void seen_name(char *name) { snprintf(name, 128, "user.late.seen.%s", node()); }

/* 1 if another node made it a short time ago; errno is kept */
static int hidden(const char *path) {
    char said[128], who[64], name[128];
    double born;
    int before = errno, late = 0;
    ssize_t size = lgetxattr(path, BORN, said, sizeof said - 1);
    if (size > 0) {
        said[size] = 0;
        seen_name(name);
        if (sscanf(said, "%63s %lf", who, &born) == 2 && strcmp(who, node()) &&
            now() - born < atof(getenv("LATE_S") ? getenv("LATE_S") : "0"))
            late = lgetxattr(path, name, 0, 0) < 0;
    }
    errno = before;
    return late;
}

static void made(const char *path) {
    char said[128];
    int before = errno;
    if (below(path)) {
        snprintf(said, sizeof said, "%s %.6f", node(), now());
        lsetxattr(path, BORN, said, strlen(said), 0);
    }
    errno = before;
}

static void seen(const char *path) {
    char name[128];
    int before = errno;
    seen_name(name);
    if (below(path)) lsetxattr(path, name, "1", 1, 0);
    errno = before;
}

static int exists(const char *path) {
    struct stat s;
    int before = errno, is = REAL(lstat)(path, &s) == 0;
    errno = before;
    return is;
}

static int created(int result, const char *path) {
    if (result >= 0) made(path);
    else if (errno == EEXIST) seen(path);
    return result;
}

#define GONE do { errno = ENOENT; return -1; } while (0)

static int opened(int dir, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    const char *there = at(dir, path, full);
    if (!(flags & O_CREAT)) {
        if (hidden(there)) GONE;
        return REAL(openat)(dir, path, flags, mode);
    }
    int new = !exists(there);
    int fd = REAL(openat)(dir, path, flags, mode);
    if (fd >= 0 && new) made(there);
    else if (fd >= 0 || errno == EEXIST) seen(there);
    return fd;
}

#define MODE(flags) mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); mode = va_arg(a, mode_t); va_end(a); }

int open(const char *p, int f, ...) { MODE(f) return opened(AT_FDCWD, p, f, mode); }
int open64(const char *p, int f, ...) { MODE(f) return opened(AT_FDCWD, p, f, mode); }
int openat(int d, const char *p, int f, ...) { MODE(f) return opened(d, p, f, mode); }
int openat64(int d, const char *p, int f, ...) { MODE(f) return opened(d, p, f, mode); }

int stat(const char *p, struct stat *s) { if (hidden(p)) GONE; return REAL(stat)(p, s); }
int stat64(const char *p, struct stat64 *s) { if (hidden(p)) GONE; return REAL(stat64)(p, s); }
int lstat(const char *p, struct stat *s) { if (hidden(p)) GONE; return REAL(lstat)(p, s); }
int lstat64(const char *p, struct stat64 *s) { if (hidden(p)) GONE; return REAL(lstat64)(p, s); }
int fstatat(int d, const char *p, struct stat *s, int f) {
    char full[PATH_MAX];
    if (*p && hidden(at(d, p, full))) GONE;
    return REAL(fstatat)(d, p, s, f);
}
int fstatat64(int d, const char *p, struct stat64 *s, int f) {
    char full[PATH_MAX];
    if (*p && hidden(at(d, p, full))) GONE;
    return REAL(fstatat64)(d, p, s, f);
}
int access(const char *p, int m) { if (hidden(p)) GONE; return REAL(access)(p, m); }
int faccessat(int d, const char *p, int m, int f) {
    char full[PATH_MAX];
    if (hidden(at(d, p, full))) GONE;
    return REAL(faccessat)(d, p, m, f);
}

static int listed(DIR *dir, const char *name) {
    char full[PATH_MAX];
    if (!strcmp(name, ".") || !strcmp(name, "..")) return 1;
    return !hidden(at(dirfd(dir), name, full));
}
struct dirent *readdir(DIR *dir) {
    struct dirent *one;
    do one = REAL(readdir)(dir); while (one && !listed(dir, one->d_name));
    return one;
}
struct dirent64 *readdir64(DIR *dir) {
    struct dirent64 *one;
    do one = REAL(readdir64)(dir); while (one && !listed(dir, one->d_name));
    return one;
}

int link(const char *a, const char *b) { return created(REAL(link)(a, b), b); }
int linkat(int d, const char *a, int e, const char *b, int f) {
    char full[PATH_MAX];
    return created(REAL(linkat)(d, a, e, b, f), at(e, b, full));
}
int mkdir(const char *p, mode_t m) { return created(REAL(mkdir)(p, m), p); }
int mkdirat(int d, const char *p, mode_t m) {
    char full[PATH_MAX];
    return created(REAL(mkdirat)(d, p, m), at(d, p, full));
}
/* what takes the place of another entry was never absent: nobody misses it */
static int renamed(int d, const char *a, int e, const char *b) {
    char from[PATH_MAX], to[PATH_MAX];
    const char *there = at(e, b, to);
    int before = errno, new = !exists(there);
    if (!new) lremovexattr(at(d, a, from), BORN);
    errno = before;
    int done = REAL(renameat)(d, a, e, b);
    if (done == 0 && new) made(there);
    return done;
}
int rename(const char *a, const char *b) { return renamed(AT_FDCWD, a, AT_FDCWD, b); }
int renameat(int d, const char *a, int e, const char *b) { return renamed(d, a, e, b); }
