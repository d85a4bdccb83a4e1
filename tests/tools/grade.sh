#!/bin/sh
# The assignments' checker: full points for the solutions, none for the starter files, fewer for each
# of some errors that students make. Ends with the line `N passed, N failed`.
BUILD=${BUILD:-build}
passed=0 failed=0
dir=$BUILD/graded
solutions=tests/tools/solutions
rm -rf "$dir"
mkdir -p "$dir/one"
# grade FOLDER SECONDS: the points of all assignments in it.
grade() {
    BUILD="$BUILD" GRADE_SECONDS=$2 tools/grade.sh "$1" >"$dir/log.txt" 2>&1
    sed -n 's/^\([0-9]*\) of 30 points$/\1/p' "$dir/log.txt"
}
check() {                                           # check WHAT POINTS-EXPECTED POINTS
    if [ "$2" = "$3" ]; then passed=$((passed + 1)); echo "ok $1: $3"
    else failed=$((failed + 1)); echo "FAILED $1: $3, not $2"; cat "$dir/log.txt"; fi
}
# wrong WHAT POINTS ASSIGNMENT FROM TO [SECONDS]: a solution of one assignment, with one error.
wrong() {
    rm -f "$dir/one/"*
    sed "s|$4|$5|" "$solutions/$3.c" >"$dir/one/$3.c"
    if cmp -s "$dir/one/$3.c" "$solutions/$3.c"; then check "$1: made" yes no; fi
    check "$1" "$2" "$(grade "$dir/one" "${6:-120}")"
}
check "the solutions" 30 "$(grade $solutions 120)"
check "the solutions: warnings" 0 "$(grep -c warning "$dir/log.txt")"
rm -rf "$dir/two words"
cp -r $solutions "$dir/two words"
BUILD="$BUILD" GRADE_SECONDS=120 make -s grade ANSWERS="$dir/two words" >"$dir/log.txt" 2>&1
check "a folder with a space" 30 "$(sed -n 's/^\([0-9]*\) of 30 points$/\1/p' "$dir/log.txt")"
mkdir -p "$dir/our build"
cp "$BUILD/jem.o" "$dir/our build"
check "a build folder with a space" 30 "$(BUILD="$dir/our build"; grade $solutions 120)"
# Students get a copy without the tests.
mkdir -p "$dir/copy"
cp Makefile "$dir/copy"
ln -sfn "$PWD/examples" "$dir/copy/examples"
ln -sfn "$PWD/tools" "$dir/copy/tools"
check "a copy without tests: make has no complaint" "" \
    "$(make --no-print-directory -C "$dir/copy" help 2>&1 >/dev/null)"
check "the starter files" 0 "$(grade examples/assignments 120)"
check "the starter files: warnings" 0 "$(grep -c warning "$dir/log.txt")"
wrong "twice the noise" 8 langevin '+ sqrt(a) \* noise' '+ 2 * sqrt(a) * noise'
wrong "a step of a instead of a/2" 7 langevin '\*x += a / 2' '*x += a'
wrong "no q in the ratio" 6 langevin ' + log_q(from, to, slope_to, a) - log' '; (void)slope_to; (void)log'
wrong "the mean is not subtracted" 7 langevin 'mean += x\[i\] / n' 'mean += 0' 10
wrong "samples raise f" 3 learn 'g\[k\] -= pow(samples' 'g[k] += pow(samples'
wrong "no noise" 3 learn 'sqrt(a) \* (double)' '0 * (double)'
wrong "the maximum is not subtracted" 8 jem 'most = fmax(most, logits\[k\])' 'most = 0'
wrong "cross-entropy alone" 8 jem 'k == y ? -1 : 0' 'exp(data[k]) - (k == y)'
wrong "an error of syntax" 0 jem 'return (1.0 + below)' 'retrun (1.0 + below)'
wrong "an end before its time" 8 jem 'int below = 0' 'exit(0); int below = 0'
check "its status" 1 "$(BUILD="$BUILD" tools/grade.sh "$dir/one" >/dev/null 2>&1; echo $?)"
wrong "a crash" 8 jem 'int below = 0' 'int below = *(volatile int *)0'
wrong "a loop without an end" 8 jem 'int below = 0' 'volatile int below = 0; while (!below) continue' 5
# replaced WHAT POINTS MESSAGE [SECONDS]: the solutions, with langevin.c from stdin; the log has
# MESSAGE.
replaced() {
    rm -f "$dir/one/"*
    cp $solutions/*.c "$dir/one"
    cat >"$dir/one/langevin.c"
    check "$1" "$2" "$(grade "$dir/one" "${4:-120}")"
    check "$1: its message" yes "$(grep -q "$3" "$dir/log.txt" && echo yes || echo no)"
}
export GRADE_COMPILE_SECONDS=10
replaced "a compiler without an end" 20 "^langevin: 0 .* does not compile within 10 s" <<'END'
#if __INCLUDE_LEVEL__ < 150
#include ANSWER
#include ANSWER
#endif
END
unset GRADE_COMPILE_SECONDS
replaced "a print loop" 20 "^langevin: 0 of 10 points: stopped after 100 MB of output" <<'END'
static void langevin_step(double *x, double slope, double a, double noise) {
    for (;;) printf("%g %g %g %g\n", *x, slope, a, noise);
}
static double mala_log_ratio(double from, double logp_from, double slope_from, double to,
                             double logp_to, double slope_to, double a) {
    return from + logp_from + slope_from + to + logp_to + slope_to + a;
}
static double autocorrelation_time(const double *x, int n) { return x[n - 1]; }
END
check "a print loop: few lines are shown" yes \
    "$([ "$(wc -l <"$dir/log.txt")" -lt 100 ] && echo yes || echo no)"
sed 's|sqrt(a) \* noise|M_PI / acos(-1) * &|' $solutions/langevin.c >"$dir/pi.c"
replaced "M_PI" 30 "^langevin: 10 of 10 points" <"$dir/pi.c"
absolute=$(cd $solutions && pwd)/langevin.c
replaced "a path of this repository" 20 "/one/langevin.c:1:.*error: .*solutions/langevin.c" <<'END'
#include "tests/tools/solutions/langevin.c"
END
replaced "an absolute path in a macro" 20 "^langevin: 0 .* it includes $absolute; only" <<END
#define OTHER "$absolute"
#pragma GCC system_header
#include OTHER
END
replaced "a path from a system folder" 20 "^langevin: 0 .* includes .*/langevin.c; only" <<END
#include <../../../../../../../../../../../..$absolute>
END
cp $solutions/langevin.c "$dir/one/other.h"
check "a file beside the answer" 20 "$(echo '#include "other.h"' >"$dir/one/langevin.c" &&
    grade "$dir/one" 120)"
{ echo '#include "jem.h"'; echo '#include <float.h>'; cat $solutions/langevin.c; } |
    sed 's|\*x += a / 2 \*|*x += FLT_RADIX * a / 4 *|' >"$dir/one/langevin.c"
echo '#error This is another jem.h.' >"$dir/one/jem.h"
check "jem.h and a standard header" 30 "$(grade "$dir/one" 120)"
rm -f "$dir/one/"*
sed 's|\*x += a|puts("here"); &|' $solutions/langevin.c \
    >"$dir/one/langevin.c"
check "100001 printed lines before the last points" 10 "$(grade "$dir/one" 120)"
check "points below them are shown" yes \
    "$(grep -q "^  3 of 3 " "$dir/log.txt" && echo yes || echo no)"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
