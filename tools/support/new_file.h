/* A file that replaces another only when it is complete: written under a name of its own in the
   same directory, path.XXXXXXXX.tmp, which must not exist before (so neither a planted link nor
   another writer's file is followed), then renamed. jem.h writes its files the same way.

       new_file n;
       int ok = new_file_open(&n, path) && fputs(text, n.f) >= 0;
       if (!new_file_done(&n, path, ok)) ...report n.wrong, errno...          path is unchanged */
#ifndef SUPPORT_NEW_FILE_H
#define SUPPORT_NEW_FILE_H

#include <stdio.h>

typedef struct new_file {
    FILE *f;
    const char *wrong;     /* reason of failure; NULL: no failure */
    char temp[600];        /* "": f is path itself, a device */
} new_file;

/* Returns 1, or 0 with the reason in n->wrong. A device or a pipe at path is written to
   directly. */
int new_file_open(new_file *n, const char *path);

/* Closes the file and renames it; if ok is 0 or that fails, removes it. */
int new_file_done(new_file *n, const char *path, int ok);

#endif
