/* A count from the command line. For programs of one file. */
#ifndef EXAMPLES_COUNT_H
#define EXAMPLES_COUNT_H

#include <errno.h>
#include <stdlib.h>

#define COUNT_MOST 100000000
#define COUNT_RANGE "a whole number from 1 to 100000000"

/* Returns a whole number from 1 to COUNT_MOST, or 0 if the text is not one. */
static inline int count_of(const char *text) {
    char *end;
    errno = 0;
    const long n = strtol(text, &end, 10);
    if (end == text || *end || errno || n < 1 || n > COUNT_MOST) return 0;
    return (int)n;
}

#endif
