/* Files that replace others only when they are complete. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#ifndef S_ISREG
#define S_ISREG(mode) (((mode) & S_IFMT) == S_IFREG)
#endif
#else
#include <unistd.h>
#if defined(__GLIBC__) && defined(__STRICT_ANSI__) && !defined(__USE_XOPEN2K)
extern ssize_t readlink(const char *, char *, size_t);     /* -std=c99 hides it */
#endif
#endif

#include "jem.h"
#include "tools/support/new_file.h"

static FILE *new_file__create(const char *temp) {
#ifdef _WIN32
    const int fd = _open(temp, _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY, _S_IREAD | _S_IWRITE);
    return fd < 0 ? NULL : _fdopen(fd, "wb");
#else
    return fopen(temp, "wbx");
#endif
}

int new_file_open(new_file *n, const char *path) {
    struct stat s;
    memset(n, 0, sizeof *n);
    errno = 0;
    const int there = stat(path, &s) == 0, device = there && !S_ISREG(s.st_mode);
#ifndef _WIN32
    char target;
    if (!device && readlink(path, &target, 1) >= 0)
        return errno = 0, n->wrong = "is a symbolic link, and will not be replaced", 0;
#endif
    errno = 0;
    jem_rng names = jem_rng_seed((uint64_t)time(NULL) << 32 ^ (uint64_t)clock() ^ (uintptr_t)n);
    if (device) n->f = fopen(path, "wb");
    else if (strlen(path) + 14 > sizeof n->temp) errno = ENAMETOOLONG;
    else for (int i = 0; i < 100 && !n->f; i++) {
        snprintf(n->temp, sizeof n->temp, "%.580s.%08x.tmp", path, (unsigned)jem_rng_u32(&names));
        n->f = new_file__create(n->temp);
        if (!n->f && errno != EEXIST) break;
    }
    if (!n->f) n->wrong = "cannot be created";
    return n->f != NULL;
}

int new_file_done(new_file *n, const char *path, int ok) {
    if (!n->f) return 0;
    if ((ok && fflush(n->f)) || ferror(n->f)) ok = 0;
    int error = errno;
    if (fclose(n->f) && ok) ok = 0, error = errno;
    n->f = NULL;
    if (!ok && !n->wrong) n->wrong = "cannot be written";
#ifdef _WIN32
    if (ok && *n->temp) remove(path);              /* there, rename does not replace */
#endif
    if (ok && *n->temp && rename(n->temp, path))
        ok = 0, error = errno, n->wrong = "cannot be replaced";
    if (!ok && *n->temp) remove(n->temp);
    errno = error;
    return ok;
}
