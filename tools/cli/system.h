/* The first include of each part of `jem`: names of POSIX that -std=c99 hides. */
#ifndef CLI_SYSTEM_H
#define CLI_SYSTEM_H

#if !defined(_WIN32) && !defined(_XOPEN_SOURCE)
#define _XOPEN_SOURCE 600                          /* clock_gettime, isatty, sigaction, fsync */
#define _DARWIN_C_SOURCE                           /* how much memory there is, on macOS */
#endif

#endif
