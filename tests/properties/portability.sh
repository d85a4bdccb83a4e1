#!/bin/sh
# test_portable.c, whose fingerprints are the same everywhere, for other compilers and for
# other processors:
#     portability.sh compilers   {gcc, clang} x {C99 .. C17, C++11 .. C++20} x {-O0 .. -O3}
#     portability.sh x86_32      32 bits, in SSE registers: the same bits. In those of x87,
#                                      which round elsewhere: tests that allow for rounding
#     portability.sh processors  x86-64 under qemu, as one without AVX2 and as one with it:
#                                      the right instructions are chosen
#     portability.sh musl        another C library (Debian: musl-tools): its messages, its
#                                      numbers, and OpenMP, which it has not
#     portability.sh clang       by the Makefile with CC=clang: networks and files
#     portability.sh exceptions  clang's checks that are no errors in C: divisions by zero,
#                                      conversions that lose a part of a number
#     portability.sh folders     builds and runs in a folder whose name has spaces and quotes
#     portability.sh             a part of each, for `make test`
# `make portability` runs all of it, and more of tests/run.sh for AArch64 and s390x.
BUILD=${BUILD:-build} dir=${BUILD:-build}/portability
warn="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow ${WERROR--Werror}"
part=${1:-quick} passed=0 failed=0 RUN=""
mkdir -p "$dir"
quick() { [ $part = quick ]; }
wanted() { quick || [ $part = $1 ]; }
has() { command -v "$1" >/dev/null || { echo "SKIPPED $2: needs $1"; false; }; }

# build TEST COMMAND...: the command makes a program of test_TEST.c.
build() {
    source=tests/*/test_$1.c
    shift
    rm -f "$dir/program"
    "$@" $warn -I. $source -o "$dir/program" -lm >"$dir/log.txt" 2>&1
}
# passes NAME: the program that was built. RUN: what it runs under.
passes() {
    if [ -x "$dir/program" ] && $RUN "$dir/program" >"$dir/log.txt" 2>&1
    then passed=$((passed + 1)); echo "ok $1: $(tail -n 1 "$dir/log.txt")"
    else failed=$((failed + 1)); echo "FAILED $1"; tail -n 12 "$dir/log.txt"
    fi
}
test() {
    title=$1
    shift
    build "$@"
    passes "$title"
}

compilers() {
    for who in gcc clang; do
        has $who "$who, every standard" || continue
        for std in c99 c11 c17 c++11 c++14 c++17 c++20; do
            for level in 0 1 2 3; do
                # strict.sh compiles more of them, and the test programs are gcc -std=c99 -O2.
                if quick; then case $who-$std-$level in
                    gcc-c17-3 | gcc-c++20-0 | clang-c++14-0) ;;
                    *) continue ;;
                esac; fi
                case $std in c++*) language=c++ ;; *) language=c ;; esac
                test "$who -std=$std -O$level" portable $who -x $language -std=$std -O$level
            done
        done
    done
}

x86_32() {
    cc="gcc -m32 -isystem /usr/include/$(uname -m)-linux-gnu -std=c99 -O1"
    if ! echo 'int main(void) { return 0; }' | $cc -x c - -o "$dir/program" 2>/dev/null ||
        ! "$dir/program"
    then echo "SKIPPED 32-bit x86: gcc -m32 makes no program that runs (Debian: gcc-12-multilib)"
        return
    fi
    test "32-bit x86, SSE2: portable" portable $cc -msse2 -mfpmath=sse
    quick && return
    for name in rng ops; do
        test "32-bit x86, SSE2: $name" $name $cc -msse2 -mfpmath=sse
        test "32-bit x86, x87: $name" $name $cc
    done
}

processors() {
    [ "$(uname -m)" = x86_64 ] || { echo "SKIPPED other x86-64: not on x86-64"; return; }
    has qemu-x86_64 "x86-64 as other processors" || return
    for name in portable rng; do
        quick && [ $name = rng ] && continue
        build $name ${CC:-cc} -std=c99 -O2 -static
        for cpu in Nehalem:scalar Haswell:avx2; do
            export JEM_WANT_ISA=${cpu#*:}
            RUN="qemu-x86_64 -cpu ${cpu%:*}"
            passes "x86-64 as ${cpu%:*}: $name, $JEM_WANT_ISA"
        done
    done
    RUN=""
    unset JEM_WANT_ISA
}

musl() {
    has musl-gcc musl || return
    # The Makefile must not choose an OpenMP with which no program starts.
    # stb is not where musl-gcc looks, and this program does not need it.
    if ${MAKE:-make} -s -o stb CC=musl-gcc BUILD="$dir/musl" "$dir/musl/test_io" >"$dir/log.txt" 2>&1
    then cp "$dir/musl/test_io" "$dir/program"
    else rm -f "$dir/program"
    fi
    passes "musl, by the Makefile: io"
    quick && return
    for name in portable rng misuse; do test "musl: $name" $name musl-gcc -std=c99 -O2; done
}

# made NAME COMMAND...: builds a program by the Makefile.
made() {
    rm -f "$dir/program"
    target=$1
    shift
    ${MAKE:-make} -s -o stb "$@" "$target" >"$dir/log.txt" 2>&1 && cp "$target" "$dir/program"
}

clang_by_make() {
    has clang "the Makefile with CC=clang" || return
    made "$dir/clang/test_portable" CC=clang BUILD="$dir/clang"
    passes "clang, by the Makefile: portable"
    quick && return
    for name in io graphs rng; do
        made "$dir/clang/test_$name" CC=clang BUILD="$dir/clang"
        passes "clang, by the Makefile: $name"
    done
}

# Random numbers and hashes wrap and cut by design; the conversions of those are not checked.
exceptions() {
    quick && return
    has clang "divisions by zero and conversions" || return
    check="-fsanitize=float-divide-by-zero,implicit-signed-integer-truncation"
    check="$check,implicit-integer-sign-change -fno-sanitize-recover=all"
    for name in portable graphs samplers score; do
        test "without divisions by zero: $name" $name clang -std=c99 -O1 $check
    done
}

folders() {
    odd="$dir/a folder, 'quoted' \"twice\""
    rm -rf "$odd"
    mkdir -p "$odd"
    cp -R Makefile jem.h LICENSE examples tests tools "$odd/"
    rm -f "$dir/program"
    (cd "$odd" && ${MAKE:-make} -s -o stb BUILD=build CFLAGS=-O0 build/test_portable build/jem &&
        build/test_portable && build/jem info examples/models/mnist.safetensors) \
        >"$dir/log.txt" 2>&1
    if [ $? = 0 ]
    then passed=$((passed + 1)); echo "ok a folder with spaces and quotes"
    else failed=$((failed + 1)); echo "FAILED a folder with spaces and quotes"
        tail -n 12 "$dir/log.txt"
    fi
    rm -rf "$odd"
}

for each in musl clang_by_make exceptions folders compilers x86_32 processors; do
    wanted ${each%_by_make} && $each
done
quick && echo "left out here, done by \`make portability\`: all but io on musl, 53 of 56
standards and levels, rng and ops in 32 bits, all but io, rng, kernels on AArch64, all but portable
on s390x"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
