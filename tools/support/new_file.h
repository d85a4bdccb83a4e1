/* Files that tools and examples write. A file replaces another only when it is complete (see
   jem_file in jem.h); a missing directory is created; a device or a pipe is written to directly.

       new_file n;
       int ok = new_file_open(&n, path) && new_file_text(&n, text);
       if (!new_file_done(&n, ok)) ...print n.message...          path is unchanged */
#ifndef SUPPORT_NEW_FILE_H
#define SUPPORT_NEW_FILE_H

#include <stdio.h>

#include "jem.h"

/* Creates a directory and its parents. Returns 1 if it is there, or 0 with the reason in errno. */
int make_folder(const char *path);

typedef struct new_file {
    const char *path;      /* belongs to the caller */
    jem_ctx *ctx;
    jem_file *file;        /* or NULL: a device */
    FILE *device;          /* or NULL */
    char message[640];     /* reason of failure, with the path; "": no failure */
} new_file;

/* Each returns 1, or 0 after a failure. new_file_done completes the file or, if ok is 0, removes
   it; it frees everything in each case, also after a failed new_file_open. new_file_fail sets the
   reason if there is no other yet. */
int new_file_open(new_file *n, const char *path);
int new_file_put(new_file *n, const void *bytes, size_t size);
int new_file_text(new_file *n, const char *text);
int new_file_fail(new_file *n, const char *reason);
int new_file_done(new_file *n, int ok);

#endif
