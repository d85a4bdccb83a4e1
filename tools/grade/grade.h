/* Points for the assignments. A checker includes this file, then the answers: -DANSWER='"FILE"'. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jem.h"

static int grade_got, grade_most;

/* Prints one line, and adds up the points. */
static void points(int worth, int right, const char *what) {
    grade_most += worth;
    grade_got += right ? worth : 0;
    printf("  %d of %d  %s\n", right ? worth : 0, worth, what);
    fflush(stdout);                                /* before a crash */
}

/* Returns 1 if a is within `off` of b; not if it is not a number. */
static int near(double a, double b, double off) { return fabs(a - b) <= off; }

static int total(const char *name) {
    printf("%s: %d of %d points\n", name, grade_got, grade_most);
    return grade_got < grade_most;
}
