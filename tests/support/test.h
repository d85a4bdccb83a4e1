/* The test harness: CHECK conditions, end main with `return test_report();`. A test program is one
   .c file, so the counters may be static.

       build/test_x          runs every test
       build/test_x NAME     those whose name contains NAME
       build/test_x --list   prints the names */
#ifndef TEST_H
#define TEST_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if defined(__GNUC__)
#define TEST__FN(format_at) __attribute__((unused, format(printf, format_at, format_at + 1)))
#else
#define TEST__FN(format_at)
#endif

/* CHECK(n == 3, "three of %d", n): counts; prints place and message on failure; returns 1 or 0. */
#define CHECK(condition, ...) \
    test__check((condition) ? 1 : 0, __FILE__, __LINE__, #condition, __VA_ARGS__)
/* Checks |a - b| <= tolerance, which is false for a NaN or an infinity. */
#define CHECK_CLOSE(a, b, tolerance, ...) \
    test__close((double)(a), (double)(b), (double)(tolerance), __FILE__, __LINE__, \
                #a " ~ " #b, __VA_ARGS__)

static int test__passed, test__failed;

static int test__count(int ok, const char *file, int line, const char *what)
{
    if (ok) { test__passed++; return 0; }
    /* One broken loop must not hide the rest under a thousand lines. */
    if (++test__failed == 26) printf("(further failures are counted, not shown)\n");
    if (test__failed > 25) return 0;
    printf("%s:%d: FAILED %s: ", file, line, what);
    return 1;
}

static void test__say(const char *format, va_list args)
{
    vprintf(format, args);
    printf("\n");
    fflush(stdout);                    /* a later crash must not lose it */
}

TEST__FN(5) static int test__check(int ok, const char *file, int line, const char *what,
                                   const char *format, ...)
{
    if (test__count(ok, file, line, what)) {
        va_list args;
        va_start(args, format);
        test__say(format, args);
        va_end(args);
    }
    return ok;
}

TEST__FN(7) static int test__close(double a, double b, double tolerance, const char *file,
                                   int line, const char *what, const char *format, ...)
{
    int ok = fabs(a - b) <= tolerance;
    if (test__count(ok, file, line, what)) {
        va_list args;
        printf("%.9g and %.9g differ by %.3g > %.3g: ", a, b, fabs(a - b), tolerance);
        va_start(args, format);
        test__say(format, args);
        va_end(args);
    }
    return ok;
}

/* Returns the larger one; NaN is larger than any number, unlike in fmax. */
static inline double most_of(double worst, double d)
{
    return d <= worst || worst != worst ? worst : d;
}

/* ---- one test by its name -------------------------------------------------------------------- */

struct jem_ctx;

/* A test without parameters, or in the program's context. */
typedef struct test_case {
    const char *name;
    void (*run)(void);
    void (*run_in)(struct jem_ctx *ctx);
} test_case;
#define TEST(function) { #function, function, NULL }
#define TEST_IN(function) { #function, NULL, function }
#define TEST_COUNT(all) (sizeof (all) / sizeof *(all))

static const char *test__only;                     /* NAME, or NULL: every test */
static int test__list, test__chosen;

/* Reads NAME or --list; the first call in main, unless the program has read the argument. */
static inline void test_begin(int argc, char **argv)
{
    if (argc < 2) return;
    test__list = !strcmp(argv[1], "--list");
    if (!test__list) test__only = argv[1];
}

/* Returns 1 if every test runs, for checks of the whole program. */
static inline int test_all(void) { return !test__only && !test__list; }

/* Returns 1 if the test of this name runs; with --list prints the name instead. */
static inline int test_wants(const char *name)
{
    if (test__list) printf("%s\n", name);
    if (test__list || (test__only && !strstr(name, test__only))) return 0;
    test__chosen++;
    return 1;
}

/* Runs the selected ones of n tests in order. */
static inline void test_run(const test_case *all, size_t n, struct jem_ctx *ctx)
{
    for (size_t i = 0; i < n; i++) {
        if (!test_wants(all[i].name)) continue;
        if (all[i].run) all[i].run();
        else all[i].run_in(ctx);
    }
}

/* Prints the line that tests/run.sh adds up; a program without checks is a failure. */
static int test_report(void)
{
    if (test__list) return test__failed > 0;
    if (test__only && !test__chosen) {
        printf("no test is named '%s': --list prints the names\n", test__only);
        test__failed++;
    }
    printf("%d passed, %d failed\n", test__passed, test__failed);
    fflush(stdout);
    return test__failed > 0 || test__passed == 0;
}

/* Runs the tests of a program without a context: its main. */
static inline int test_main(int argc, char **argv, const test_case *all, size_t n)
{
    test_begin(argc, argv);
    test_run(all, n, NULL);
    return test_report();
}

#endif
