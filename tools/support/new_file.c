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

/* Creates the missing directories of a path. A failure is reported when the file is created. */
static void new_file__directories(const char *path) {
    char directory[512] = "";
    for (size_t i = 0; path[i] && i + 1 < sizeof directory; i++) {
        if (path[i] == '/' && i > 0)
#ifdef _WIN32
            _mkdir(directory);
#else
            mkdir(directory, 0777);
#endif
        directory[i] = path[i];
        directory[i + 1] = 0;
    }
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
    new_file__directories(path);
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
