/* The first include of each part of `jem`: names of POSIX that -std=c99 hides, and the
   differences between POSIX and Windows. */
#ifndef CLI_SYSTEM_H
#define CLI_SYSTEM_H

#if !defined(_WIN32) && !defined(_XOPEN_SOURCE)
#define _XOPEN_SOURCE 600                          /* clock_gettime, isatty, sigaction, fsync */
#define _DARWIN_C_SOURCE                           /* how much memory there is, on macOS */
#endif

#include <stdio.h>

/* On Windows, replaces '\' by '/' in all arguments, since any may be a path, and removes '/' at
   their ends: names of columns and classes with these cannot be given there. Also makes a console
   show UTF-8 until the program ends. */
void system_begin(int argc, char **argv);

/* Returns the length of a path without slashes at its end, except that of a root: / or C:/. */
size_t system_path_length(const char *path);

/* Returns the absolute path of a file or folder, without links, to be freed; NULL if there is no
   such file. */
char *system_path(const char *path);

/* Opens a file that disappears when it is closed. Returns NULL if it cannot be created. */
FILE *system_temporary(void);

/* Creates a file, and locks it until system_unlock(*lock); *lock is -1 where that is impossible.
   Returns 0 if another process has locked it. */
int system_lock(const char *path, int *lock);
void system_unlock(int lock);

/* Calls `handler` at SIGINT, SIGTERM and SIGHUP (unless nohup ignores it). */
void system_on_signals(void (*handler)(int number));

/* Returns the size of main memory in bytes; 0 if it is unknown. */
double system_memory(void);

/* Returns the width of the terminal that is standard output, in characters; 0 if it is unknown. */
int system_columns(void);

#endif
