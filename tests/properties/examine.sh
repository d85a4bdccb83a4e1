#!/bin/sh
# What tools find that look at a program, or at its text, from outside:
#     examine.sh static    gcc -fanalyzer, clang --analyze, cppcheck and clang-tidy on jem.h,
#                                with the checks and the exceptions below
#     examine.sh threads   ThreadSanitizer: whole lives of a model (test_soak.c), tasks
#                                shuffled over five threads, two contexts at once
#     examine.sh leaks     valgrind: the same life, and the tests of misuse
#     examine.sh soak      test_soak.c for SOAK seconds (an hour); memory stays flat
#     examine.sh           threads: for `make test`, where other analysers may be installed
# Several parts may be named; `make examine` runs them all but the soak.
BUILD=${BUILD:-build} CC=${CC:-cc} dir=${BUILD:-build}/examine passed=0 failed=0
warn="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow ${WERROR--Werror}"
mkdir -p "$dir"
has() { command -v "$1" >/dev/null || { echo "SKIPPED $2: needs $1"; false; }; }
ok() { passed=$((passed + 1)); echo "ok $1"; }
not_ok() { failed=$((failed + 1)); echo "FAILED $1"; grep -v '^$' "$2" | head -n 40; }

# clean NAME COMMAND...: succeeds and prints no warning.
clean() {
    name=$1
    shift
    if "$@" >"$dir/log.txt" 2>&1 && ! grep -qE '(warning|error|style|performance|portability):' \
            "$dir/log.txt"
    then ok "$name"
    else not_ok "$name" "$dir/log.txt"
    fi
}
# passes NAME COMMAND...: a test program.
passes() {
    name=$1
    shift
    if "$@" >"$dir/log.txt" 2>&1 && grep -qE '^[0-9]+ passed, 0 failed$' "$dir/log.txt"
    then ok "$name: $(grep -E ' passed, ' "$dir/log.txt")"
    else not_ok "$name" "$dir/log.txt"
    fi
}

# One instruction set is enough: each has the same text, and the analysers take minutes over it.
unit() {
    printf '#define JEM_IMPLEMENTATION\n#include "jem.h"\n' >"$dir/unit.c"
}
# gcc's leaks: jem__alloc aligns what it is given, and gcc takes the start for lost. valgrind and
# LeakSanitizer do not.
static() {
    unit
    has gcc "gcc -fanalyzer" &&
        clean "gcc -fanalyzer" gcc -std=c99 -O1 -fanalyzer -Wno-analyzer-malloc-leak $warn \
            -DJEM_NO_SIMD -I. -c "$dir/unit.c" -o "$dir/unit.o"
    has clang "clang --analyze" &&
        clean "clang --analyze" clang -std=c99 --analyze --analyzer-output text -DJEM_NO_SIMD -I. \
            "$dir/unit.c"
    has cppcheck cppcheck && quickly_cppcheck
    has clang-tidy clang-tidy &&
        clean clang-tidy clang-tidy --quiet --warnings-as-errors='*' --checks="$tidy" \
            --header-filter='jem\.h' "$dir/unit.c" -- -std=c99 -DJEM_NO_SIMD -I.
}
quickly_cppcheck() {
    clean cppcheck cppcheck --quiet --std=c99 --enable=warning,portability,performance \
        --error-exitcode=1 -DJEM_NO_SIMD -I. "$dir/unit.c"
}
tidy="-*,bugprone-*,cert-*,clang-analyzer-*,misc-*,performance-*,portability-*"
# Not asked for: parameters of one type (a picture is width, height, channels); products of int as
# an offset (within an image or a block of registers, which are small); results of snprintf (a
# message may be cut); strcmp as a truth; names and types as arguments of macros; sizeof a pointer,
# in arrays of them; integer divisions that are intended; an address made even to
# 64.
for check in bugprone-easily-swappable-parameters bugprone-implicit-widening-of-multiplication-result \
    cert-err33-c bugprone-suspicious-string-compare bugprone-macro-parentheses \
    bugprone-sizeof-expression bugprone-integer-division performance-no-int-to-ptr
do tidy="$tidy,-$check"; done

threads() {
    for who in clang gcc; do
        command -v $who >/dev/null || continue
        if ! $who -std=c99 -O1 -g -fsanitize=thread -pthread -I. tests/properties/test_soak.c \
                -o "$dir/threads" -lm >"$dir/log.txt" 2>&1
        then echo "ThreadSanitizer of $who: SKIPPED, it does not link"; continue
        fi
        passes "ThreadSanitizer ($who): two contexts, shuffled tasks" "$dir/threads" 0
        return
    done
}

leaks() {
    has valgrind "leaks" || return
    for test in soak misuse finite; do
        case $test in soak) args=0 ;; *) args="" ;; esac
        if $CC -std=c99 -O1 -g -pthread $warn -I. tests/*/test_$test.c -o "$dir/leaks" -lm \
                >"$dir/log.txt" 2>&1
        then passes "valgrind: test_$test" valgrind --quiet --leak-check=full \
                --show-leak-kinds=all --error-exitcode=99 "$dir/leaks" $args
        else not_ok "valgrind: test_$test does not compile" "$dir/log.txt"
        fi
    done
}

soak() {
    if $CC -std=c99 -O2 -pthread $warn -I. tests/properties/test_soak.c -o "$dir/soak" -lm \
            >"$dir/log.txt" 2>&1
    then passes "soak of ${SOAK:-3600} s" "$dir/soak" "${SOAK:-3600}"
        grep rounds "$dir/log.txt"
    else not_ok "the soak does not compile" "$dir/log.txt"
    fi
}

if [ $# = 0 ]; then
    threads
    echo "left out here, done by \`make examine\` and \`make soak\`: analysis, valgrind, a soak"
fi
for part in "$@"; do
    case $part in
        static | threads | leaks | soak) $part ;;
        *) echo "examine.sh [static] [threads] [leaks] [soak]"; failed=$((failed + 1)) ;;
    esac
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
