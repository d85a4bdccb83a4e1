/* Files that tools and examples write. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <direct.h>
#ifndef S_ISREG
#define S_ISREG(mode) (((mode) & S_IFMT) == S_IFREG)
#define S_ISDIR(mode) (((mode) & S_IFMT) == S_IFDIR)
#endif
#endif

#include "tools/support/new_file.h"

static int new_file__mkdir(const char *path) {
#ifdef _WIN32
    return _mkdir(path);
#else
    return mkdir(path, 0777);
#endif
}

int make_folder(const char *path) {
    char part[1024];
    struct stat s;
    int above = 0;                                 /* why a folder above it could not be created */
    snprintf(part, sizeof part, "%s", path);
    for (char *c = part; *c; c++)
        if (*c == '/' && c > part) {
            *c = 0;
            if (new_file__mkdir(part) && errno != EEXIST && errno != ENOENT) above = errno;
            *c = '/';
        }
    errno = 0;
    if (new_file__mkdir(part) == 0) return 1;
    if (errno == EEXIST && stat(part, &s) == 0 && S_ISDIR(s.st_mode)) return 1;
    if (errno == EEXIST) errno = ENOTDIR;
    if (errno == ENOENT && above) errno = above;
    return 0;
}

/* Creates the directory of a file. A failure is reported when the file is created. */
static void new_file__directory(const char *path) {
    const char *slash = strrchr(path, '/');
    char directory[1024];
    if (!slash || slash == path) return;
    snprintf(directory, sizeof directory, "%.*s", (int)(slash - path), path);
    make_folder(directory);
}

int new_file_fail(new_file *n, const char *reason) {
    const char *system = errno ? strerror(errno) : "";
    const char *colon = errno ? ": " : "";
    if (*n->message) return 0;
    snprintf(n->message, sizeof n->message, "%.300s: %s%s%s", n->path, reason, colon, system);
    return 0;
}

/* Keeps the library's message. */
static int new_file__failed(new_file *n) {
    if (!*n->message) snprintf(n->message, sizeof n->message, "%s", jem_error(n->ctx));
    return 0;
}

int new_file_open(new_file *n, const char *path) {
    struct stat s;
    memset(n, 0, sizeof *n);
    n->path = path;
    new_file__directory(path);
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode)) {
        errno = 0;
        n->device = fopen(path, "wb");
        return n->device || new_file_fail(n, "cannot be opened");
    }
    n->ctx = jem_ctx_create(NULL);
    errno = 0;
    if (!n->ctx) return new_file_fail(n, "cannot be created: no memory");
    n->file = jem_file_create(n->ctx, path);
    return n->file || new_file__failed(n);
}

int new_file_put(new_file *n, const void *bytes, size_t size) {
    errno = 0;
    if (n->device && fwrite(bytes, 1, size, n->device) == size) return 1;
    if (n->device) return new_file_fail(n, "cannot be written");
    if (n->file && jem_file_put(n->file, bytes, size) == JEM_OK) return 1;
    return n->ctx && new_file__failed(n);
}
int new_file_text(new_file *n, const char *text) {
    return new_file_put(n, text, strlen(text));
}

int new_file_done(new_file *n, int ok) {
    const int opened = n->device || n->file;
    errno = 0;
    if (n->device && (fflush(n->device) || ferror(n->device)))
        ok = new_file_fail(n, "cannot be written");
    if (n->device && fclose(n->device)) ok = new_file_fail(n, "cannot be closed");
    if (ok && n->file && jem_file_commit(n->file) != JEM_OK) ok = new_file__failed(n);
    if (n->ctx) {
        jem_file_free(n->file);
        jem_ctx_free(n->ctx);
    }
    n->device = NULL;
    n->file = NULL;
    n->ctx = NULL;
    return ok && opened;
}
