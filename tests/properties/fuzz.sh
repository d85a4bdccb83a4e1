#!/bin/sh
# Hostile files for every loader: fuzz/NAME.c is a target, fuzz/corpus/NAME what it begins with.
# Each target runs its corpus, with any compiler; and where clang has libFuzzer, it is fuzzed under
# the address and undefined-behaviour sanitizers; fuzz/pickles.py needs Python.
#     fuzz.sh             a minute in all, from seed 1: for `make test`
#     fuzz.sh SECONDS     time for each target, continuing from last time: `make fuzz`
#     fuzz.sh SECONDS NAME...    only these targets
# What is found stays in build/fuzz/NAME-crash-...; run it again with build/fuzz/NAME FILE.
BUILD=${BUILD:-build} CC=${CC:-cc} dir=${BUILD:-build}/fuzz
flags="-std=c99 -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow ${WERROR--Werror}"
flags="$flags -D_XOPEN_SOURCE=700 -DJEM_NO_SIMD -I. -idirafter build"
each=$1
[ $# -gt 0 ] && shift
names=${*:-model checkpoint idx gzip cifar sheet picture table pickles}
passed=0 failed=0
export UBSAN_OPTIONS=print_stacktrace=1

ok() { passed=$((passed + 1)); echo "ok $1"; }
not_ok() { failed=$((failed + 1)); echo "FAILED $1"; [ -f "$2" ] && tail -n 30 "$2"; }

fuzzer=""
mkdir -p "$dir"
# stb adds 0 to NULL, and shifts into the sign: not ours. Its memory errors are.
printf '[undefined]\nsrc:*stb_image*.h\n' >"$dir/ignore.txt"
echo '#include <stddef.h>
int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n);
int LLVMFuzzerTestOneInput(const unsigned char *p, size_t n) { return p == NULL && n > 0; }' \
    >"$dir/probe.c"
clang -fsanitize=fuzzer,address,undefined "$dir/probe.c" -o "$dir/probe" >/dev/null 2>&1 &&
    "$dir/probe" -runs=1 >/dev/null 2>&1 && fuzzer=clang
[ -n "$fuzzer" ] || echo "fuzzing SKIPPED: clang with libFuzzer is not here (make fuzz fetches it)"
seed=-seed=1 python=""
[ -n "$each" ] && seed=""
command -v python3 >/dev/null && python=python3
count=0
for name in $names; do count=$((count + 1)); done
seconds=${each:-$((60 / count))}

# Loaders of data call a few functions of jem.h: it is compiled once for all of them.
library() { "$@" -x c -DJEM_IMPLEMENTATION -c jem.h; }
needs_library() { case $1 in idx | gzip | cifar | sheet | picture | table) true ;; *) false ;; esac; }
sanitizers="-fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
for name in $names; do
    needs_library $name || continue
    library $CC $flags -O1 -g -o "$dir/alone.o" >"$dir/library.txt" 2>&1 ||
        not_ok "jem.h" "$dir/library.txt"
    [ -z "$fuzzer" ] || library clang $flags -O1 -g $sanitizers -fsanitize=fuzzer-no-link \
        -o "$dir/fuzzed.o" >"$dir/library.txt" 2>&1 || not_ok "jem.h, fuzzed" "$dir/library.txt"
    break
done

for name in $names; do
    if [ $name = pickles ]; then
        [ -n "$python" ] || { echo "pickles: SKIPPED, needs python3"; continue; }
        if $python tests/properties/fuzz/pickles.py ${each:+--new} --seconds $seconds \
            --keep "$dir" \
                >"$dir/pickles.txt" 2>&1
        then ok "pickles: $(tail -n 1 "$dir/pickles.txt")"
        else not_ok pickles "$dir/pickles.txt"
        fi
        continue
    fi
    corpus=tests/properties/fuzz/corpus/$name
    alone="" fuzzed=""
    needs_library $name && alone=$dir/alone.o fuzzed=$dir/fuzzed.o
    if $CC $flags -O1 -g -DFUZZ_ALONE tests/properties/fuzz/$name.c $alone \
            -o "$dir/${name}_alone" -lm >"$dir/$name.txt" 2>&1 &&
            "$dir/${name}_alone" "$corpus" >"$dir/$name.txt" 2>&1
    then ok "$name: $(tail -n 1 "$dir/$name.txt") of the corpus"
    else not_ok "$name: its corpus" "$dir/$name.txt"
    fi
    [ -n "$fuzzer" ] || continue
    if ! clang $flags -O1 -g $sanitizers -fsanitize=fuzzer \
            -fsanitize-ignorelist="$dir/ignore.txt" \
            tests/properties/fuzz/$name.c $fuzzed -o "$dir/$name" -lm >"$dir/$name.txt" 2>&1
    then not_ok "$name: it does not compile" "$dir/$name.txt"; continue
    fi
    grown=$dir/corpus_$name
    [ -n "$each" ] || rm -rf "$grown"
    mkdir -p "$grown"
    if "$dir/$name" -max_total_time=$seconds $seed -max_len=20000 -timeout=20 \
            -rss_limit_mb=2000 -print_final_stats=1 -artifact_prefix="$dir/$name-" "$grown" \
            "$corpus" >"$dir/$name.txt" 2>&1
    then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/$name.txt")
        ok "$name: $runs inputs in $seconds seconds"
    else not_ok "$name: fuzzing" "$dir/$name.txt"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
