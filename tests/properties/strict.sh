#!/bin/sh
# Compiles jem.h by itself, with every warning as an error: {gcc, clang, both for AArch64, gcc for
# Windows and for 32-bit x86, clang for WebAssembly without and with simd128} x {C99, C11, C++11,
# C++17} x {each macro} x {with, without the implementation}. Each is one test. No OpenMP and no
# optimisation here: the test programs have both. after_windows.h: the implementation where macros
# of <windows.h>, such as far and min, are defined. JEM_FILE: under another name, from a folder that
# has no jem.h. JEM_DECLARATIONS: with the implementation asked for, too, nothing is defined. Of the
# implementation's own objects: what it never calls. Then, where Wine is, test programs of Windows
# run; and one with -ffast-math.
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)}
flags="-Werror -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow"
dir=${BUILD:-build}/strict

# compile COMPILER STANDARD FLAGS...: what comes on standard input
compile() {
    case $1 in
        gcc-arm) compiler=aarch64-linux-gnu-gcc ;;
        clang-arm) compiler="clang --target=aarch64-linux-gnu" ;;
        gcc-windows) compiler=x86_64-w64-mingw32-gcc ;;
        gcc-32) compiler="gcc -m32 -isystem /usr/include/$(uname -m)-linux-gnu" ;;
        wasm) compiler=${WASM_CC:-clang --target=wasm32-wasi --sysroot=/usr} ;;
        wasm-simd128) compiler="${WASM_CC:-clang --target=wasm32-wasi --sysroot=/usr} -msimd128" ;;
        *) compiler=$1 ;;
    esac
    case $2 in c++*) language=c++ ;; *) language=c ;; esac
    standard=$2
    shift 2
    $compiler -x $language -std=$standard $flags -I. "$@" -
}

# one COMPILER STANDARD MACRO PART
one() {
    case $4 in
        implementation) text="#define JEM_IMPLEMENTATION" ;;
        after_windows.h) text="#define JEM_IMPLEMENTATION\n#include <windows.h>" ;;
        *) text="" ;;
    esac
    name="$1 -std=$2 $3 $4"
    object=$dir/$1-$2-$3-$4.o header=jem.h define=-D$3 from=.
    if [ $3 = JEM_FILE ]; then
        header=renamed.h define='-DJEM_FILE="renamed.h"' from=$dir/renamed object=../${object##*/}
    fi
    # The newer of two standards adds no code: without an object, it takes a third of the time.
    case $2$4 in c11* | c++17* | *windows.h) how=-fsyntax-only ;; *) how=-c ;; esac
    if (cd "$from" && printf "$text"'\n#include "%s"\n' "$header" |
        compile $1 $2 "$define" $how -o "$object") >"$dir/$1-$2-$3-$4.txt" 2>&1
    then echo "ok $name"
    else echo "FAILED $name"; head -n 8 "$dir/$1-$2-$3-$4.txt"
    fi
}
if [ $# = 4 ]; then one "$@"; exit 0; fi

mkdir -p "$dir/renamed"
cp jem.h "$dir/renamed/renamed.h"
for who in gcc clang gcc-arm clang-arm gcc-windows gcc-32 wasm wasm-simd128; do
    for std in c99 c11 c++11 c++17; do
        if ! printf '#include <errno.h>\n#include <math.h>\n' |
                compile $who $std -c -o "$dir/empty.o" >/dev/null 2>&1; then
            echo "SKIPPED $who -std=$std: not on this machine" >&2
            continue
        fi
        extra=""
        [ $who != gcc-windows ] || extra=JEM_WINDOWS_SIMD
        for macro in JEM_PLAIN JEM_STATIC JEM_NO_STDIO JEM_NO_SIMD $extra; do
            # Static functions without bodies are of no use to anyone, as gcc rightly says.
            [ $macro = JEM_STATIC ] || echo $who $std $macro interface
            echo $who $std $macro implementation
        done
        echo $who $std JEM_DECLARATIONS interface
        echo $who $std JEM_DECLARATIONS implementation
        # Each processor includes itself in lines of its own.
        [ $std != c99 ] || echo $who $std JEM_FILE implementation
        [ -z "$extra" ] || [ $std = c++11 ] || for macro in JEM_PLAIN JEM_WINDOWS_SIMD; do
            echo $who $(echo $std | sed s/c11/gnu17/) $macro after_windows.h
        done
    done
done >"$dir/asked.txt"
xargs -n 4 -P "$jobs" "$0" <"$dir/asked.txt" >"$dir/all.txt"
asked=$(wc -l <"$dir/asked.txt") answered=$(grep -c -e '^ok ' -e '^FAILED ' "$dir/all.txt")
[ "$asked" -eq "$answered" ] || echo "FAILED $asked compilations, $answered results" >>"$dir/all.txt"
# What an object refers to; what it defines.
never='_*(v|f|vf|d)?printf(_chk)?|f?puts|f?putc|putchar|fwrite|perror|std(out|err)'
never="$never|_*(exit|Exit|quick_exit|abort|assert_fail|assert_rtn)"
silent() {
    nm -u "$1" >"$dir/symbols.txt" && grep -q memcpy "$dir/symbols.txt" &&
        ! awk '{ print $NF }' "$dir/symbols.txt" | grep -E -x "$never"
}
nothing() { [ -s "$1" ] && nm "$1" >"$dir/symbols.txt" && ! grep ' [TDBR] ' "$dir/symbols.txt"; }
if command -v nm >/dev/null; then
    for who in gcc clang; do
        command -v $who >/dev/null || continue
        for macro in JEM_PLAIN JEM_NO_STDIO; do    # of JEM_STATIC, unused, clang leaves nothing
            object=$dir/$who-c99-$macro-implementation.o name="$who $macro: no exit, assert, print"
            if silent "$object" >"$dir/nm.txt"; then echo "ok $name"
            else echo "FAILED $name"; cat "$dir/nm.txt"
            fi
        done
        name="$who JEM_DECLARATIONS: no implementation"
        if nothing "$dir/$who-c99-JEM_DECLARATIONS-implementation.o" >"$dir/nm.txt"
        then echo "ok $name"
        else echo "FAILED $name"; head -n 4 "$dir/nm.txt"
        fi
        name="$who JEM_API: exported by a library that hides the rest"
        if printf '#define JEM_IMPLEMENTATION\n#include "jem.h"\n' |
                compile $who c99 -O0 -fPIC -shared -fvisibility=hidden -o "$dir/$who.so" -lm \
                '-DJEM_API=__attribute__((visibility("default"))) extern' >"$dir/nm.txt" 2>&1 &&
                nm -D "$dir/$who.so" >"$dir/symbols.txt" && grep -q ' T jem_trim' "$dir/symbols.txt"
        then echo "ok $name"
        else echo "FAILED $name"; head -n 4 "$dir/nm.txt"
        fi
    done >>"$dir/all.txt"
else echo "SKIPPED what objects refer to: needs nm" >&2
fi
# Windows: random numbers, and every op with its gradients, in the same bits as elsewhere; files,
# which are in $dir. A program that Wine does not even start (it may still be shutting down from the
# one before) is tried again.
windows() {
    for again in 1 2 3; do
        (cd "$dir" && WINEDEBUG=-all exec wine "./test_$1.exe") \
            >"$dir/wine_$1.txt" 2>&1 </dev/null && return 0
        [ -s "$dir/wine_$1.txt" ] && return 1
        sleep 3
    done
    return 1
}
if command -v wine >/dev/null && command -v x86_64-w64-mingw32-gcc >/dev/null; then
    simd="-DJEM_WINDOWS_SIMD -Wa,-muse-unaligned-vector-move"
    for test in rng ops "ops simd" windows_files; do
        name="Windows, under Wine: test_$test" also=""
        case $test in *simd) also=$simd test=${test% simd} ;; esac
        source=tests/*/test_$test.c
        [ $test != windows_files ] || source=tests/properties/$test.c
        if x86_64-w64-mingw32-gcc -std=c99 -O2 $flags $also -I. $source \
                -o "$dir/test_$test.exe" -lm >"$dir/wine_$test.txt" 2>&1 && windows $test
        then echo "ok $name"
        else echo "FAILED $name"; tail -n 8 "$dir/wine_$test.txt"
        fi
    done >>"$dir/all.txt"
else echo "SKIPPED Windows programs: needs wine and x86_64-w64-mingw32-gcc" >&2
fi
# Under -ffast-math numbers may differ, but a step that is not finite must still be an error.
for who in gcc clang; do
    name="$who -ffast-math: test_finite"
    if ! command -v $who >/dev/null; then echo "SKIPPED $name: not on this machine" >&2
    elif $who -std=c99 -O2 -ffast-math $flags -I. tests/properties/test_finite.c \
            -o "$dir/finite" -lm \
            >"$dir/finite.txt" 2>&1 && "$dir/finite" >"$dir/finite.txt" 2>&1
    then echo "ok $name"
    else echo "FAILED $name"; tail -n 8 "$dir/finite.txt"
    fi
done >>"$dir/all.txt"
grep -v '^ok ' "$dir/all.txt"
passed=$(grep -c '^ok ' "$dir/all.txt") failed=$(grep -c '^FAILED ' "$dir/all.txt")
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
