#!/bin/sh
# Runs the tests named as arguments and adds them up; `make test` names them all.
#   build/test_x   a program whose last line is `N passed, N failed`
#   build/other    an example or tool: one test, that it was built
#   two_units sanitized neon s390x wasm strict documents smoke lessons python mutate mpi playground site slides grade
#   cmake get_data cli uses report limits fuzz musl clang exceptions folders compilers x86_32
#   processors portability examine graphs windows
#                  the functions and scripts below
#   with           items after it run in parallel to the others, on another core, and are shown last
# A test that crashes, hangs, or does not end with that line is one failure. A test that a busy machine
# kept from finishing in time is skipped with a warning (limited, below).
BUILD=${BUILD:-build} CC=${CC:-cc} CXX=${CXX:-c++}
passed=0 failed=0 broken="" late=""
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}  # or waiting threads use up the processor
export PYTHONDONTWRITEBYTECODE=1                    # beside the sources
mkdir -p "$BUILD/log"

# Tests that would not finish by TEST_UNTIL (seconds since 1970; .ci/run sets it) on a slow machine are
# left out, and listed. Without it everything runs. On a still slower one, those that run at TEST_STOP
# are ended: the machine is too busy for them (limited).
room() { [ -z "$TEST_UNTIL" ] || [ $(($(date +%s) + $(longest "$1"))) -lt "$TEST_UNTIL" ]; }
longest() {                                         # seconds on a slow machine
    case $1 in
        neon_kernels) echo 480 ;; lessons) echo 800 ;; strict) echo 330 ;; smoke) echo 240 ;;
        fuzz | portability | examine | report) echo 180 ;;
        test_kernels | test_models | test_faults) echo 120 ;;
        cli | cmake | wasm_*) echo 100 ;; uses | mutate | sanitized | windows) echo 240 ;;
        playground | slides | python | mpi | get_data) echo 60 ;; *) echo 40 ;;
    esac
}
stopped() { [ -n "$TEST_STOP" ] && [ "$(date +%s)" -ge "$TEST_STOP" ]; }
left_out() { echo "== $1: LEFT OUT for lack of time (make test runs it)"; }
# skipped NAME WHY: a failure if MUST_RUN names it: .ci/run has installed what it needs.
skipped() {
    echo "== $1: SKIPPED, $2"
    case " $MUST_RUN " in *" $1 "*)
        count 0 1
        broken="$broken, $1"
        echo "FAILED $1: skipped, although its packages are installed" ;;
    esac
}

count() { passed=$((passed + $1)); failed=$((failed + $2)); }

# limited COMMAND...: ends it, with status 124 and the reason in $outcome, if it
#   spun: took more than 2 TEST_SECONDS (2 x 600) of processor time, all its processes together,
#   hung: took hardly any for TEST_IDLE seconds (120), or
#   late: took more than TEST_WALL seconds, by default 3 TEST_SECONDS times the load of the machine,
#         or had not finished at TEST_STOP, unless it had ample time until then.
# Only the last is due to the machine. Without /proc, processor time is unknown, and only the last is
# detected. $outcome is a file, since many commands run in a subshell.
outcome=$(cd "$BUILD/log" && pwd)/outcome.$$
why=$outcome.why                                    # reasons, repeated at the end: logs are cut there
trap 'rm -f "$outcome" "$outcome.pid" "$why"' EXIT
limited() {
    command -v timeout >/dev/null || { "$@"; return; }
    wall=${TEST_WALL:-$((3 * ${TEST_SECONDS:-600} * $(busy) / 100))} ample=$wall
    if [ -n "$TEST_STOP" ]; then
        ample=$(longest "$name")
        [ "$ample" -ge "$(longest "$item_name")" ] || ample=$(longest "$item_name")
        ample=${TEST_AMPLE:-$((4 * ample + 300))}
        left=$((TEST_STOP - $(date +%s)))
        [ $left -ge 1 ] || left=1
        [ $left -ge $wall ] || wall=$left
    fi
    rm -f "$outcome.pid"
    watcher=""
    if [ -r /proc/self/stat ]; then
        watch >/dev/null 2>&1 </dev/null &
        watcher=$!
    fi
    began=$(date +%s)
    timeout -k 5 "$wall" sh -c 'echo $$ >"$0" && exec "$@"' "$outcome.pid" "$@"
    ended=$?
    [ -z "$watcher" ] || { kill "$watcher" && wait "$watcher"; } 2>/dev/null
    if [ -s "$outcome" ]; then ended=124
    elif [ $ended != 124 ] && [ $ended != 137 ]; then :        # 137: it had to be killed, ..
    elif [ $(($(date +%s) - began)) -lt "$wall" ]; then :      # .. or was, by something else
    elif [ $wall -gt $ample ]; then
        echo "spun: it had not finished after $wall seconds, which is ample" >"$outcome"
    else
        echo "late: it had not finished after $wall seconds, but was still working" >"$outcome"
        ended=124
    fi
    return $ended
}

# Prints the duration of a fixed task, in percent of its duration on idle processors.
busy() {
    load=$(awk '{ print $1 }' /proc/loadavg 2>/dev/null || echo 0)
    awk -v load="${load:-0}" -v n="$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)" \
        'BEGIN { slow = (load + 2) / (n < 2 ? 1 : n); printf "%d", 100 * (slow < 1 ? 1 : slow) }'
}

# watch: looks at the process whose number limited noted; asks timeout, its parent, to end it.
watch() {
    hertz=$(getconf CLK_TCK) seen=0 since=$(date +%s) most=$((2 * ${TEST_SECONDS:-600}))
    while sleep "${TEST_POLL:-5}"; do
        [ -s "$outcome.pid" ] || continue
        read -r root <"$outcome.pid"
        set -- $(cat /proc/[0-9]*/stat 2>/dev/null | descendants "$root")
        [ $# = 2 ] || continue
        now=$(date +%s)
        if [ "$1" -gt $((most * hertz)) ]
        then echo "spun: it took more than $most seconds of processor time" >"$outcome"
        elif [ $(($1 - seen)) -gt "$hertz" ] || [ "$1" -lt "$seen" ]
        then seen=$1 since=$now
        elif [ $((now - since)) -ge "${TEST_IDLE:-120}" ]
        then echo "hung: hardly any processor time for ${TEST_IDLE:-120} seconds" >"$outcome"
        fi
        [ ! -s "$outcome" ] || { kill "$2"; return; }
    done
}
# descendants PID: its and its descendants' processor time in ticks, and its parent.
descendants() {
    awk -v root="$1" '
        { pid = $1; sub(/^.*\) /, ""); parent[pid] = $2; ticks[pid] = $12 + $13 + $14 + $15 }
        END {
            if (!(root in parent)) exit
            for (pid in parent) {
                for (up = pid; up in parent && up != root; ) up = parent[up]
                if (up == root) sum += ticks[pid]
            }
            print sum, parent[root]
        }'
}
# skip_late NAME [LOG]: true, with a warning, if the machine was too busy for it, and nothing in
# the log has failed.
skip_late() {
    grep -q '^late' "$outcome" 2>/dev/null || return 1
    [ -z "${2:-}" ] || ! grep -q FAILED "$2" || return 1
    late="$late, $1"
    echo "WARNING $1: SKIPPED, the machine is too busy ($(cat "$outcome"))"
}

# run NAME COMMAND...: shows what it prints, adds up its last line.
run() {
    name=$1 log=$BUILD/log/$1.txt
    shift
    echo "== $name"
    rm -f "$outcome"
    limited "$@" >"$log" 2>&1 </dev/null
    status=$?
    cat "$log"
    skip_late "$name" "$log" && return
    counts=$(tail -n 1 "$log" |
        sed -n 's/^\([0-9]\{1,9\}\) passed, \([0-9]\{1,9\}\) failed$/\1 \2/p')
    case "$name:$status:$counts" in
        beside:0:"0 0") reason="" ;;               # all of it was left out
        *:"" | *:"0 0") reason="it does not end with a count of tests (status $status)" ;;
        *:0:*" 0" | *:1:*" "[1-9]*) count ${counts% *} ${counts#* }; reason="" ;;
        *) count ${counts% *} ${counts#* }; reason="its status is $status after '$counts'" ;;
    esac
    [ ! -s "$outcome" ] || reason=$(cat "$outcome")
    if [ -n "$reason" ]; then count 0 1; echo "FAILED $name: $reason"; fi
    if [ -n "$reason" ] || [ "${counts#* }" != 0 ]; then
        broken="$broken, $name"
        { grep FAILED "$log" || tail -n 3 "$log"; echo "$reason"; } | tail -n 4 | cut -c 1-150 >>"$why"
    fi
}

# try NAME COMMAND...: one test, that the command succeeds.
try() {
    name=$1
    shift
    rm -f "$outcome"
    if stopped; then echo "late: there was no time left for it" >"$outcome"; fi
    if skip_late "$name"; then :
    elif "$@"; then count 1 0; echo "ok $name"
    elif skip_late "$name"; then :
    else count 0 1; broken="$broken, $name"; echo "FAILED $name"
    fi
}

# What jem.h must choose on this processor (jem__x86_has says of which flags): common.h, check_isa.
# Empty if that is unknown.
native_isa() {
    case $(uname -m) in
        aarch64) echo neon ;;
        x86_64) [ ! -r /proc/cpuinfo ] || awk '
            function all(names, of, n, k) {
                n = split(names, of)
                for (k = 1; k <= n; k++) if (!(of[k] in has)) return 0
                return 1
            }
            /^flags/ { for (i = 3; i <= NF; i++) has[$i]
                print !all("avx fma avx2") ? "scalar" \
                    : all("avx512f avx512dq avx512bw avx512vl") ? "avx512" : "avx2"
                exit }' /proc/cpuinfo ;;
    esac
}

# The implementation in one file, its use in another: both C, both C++, one of each.
two_units() {
    dir=$BUILD/two_units
    mkdir -p "$dir"
    cxx="$CXX -x c++ -std=c++11"
    echo "== two_units"
    for pair in "c c" "cxx cxx" "c cxx"; do
        set -- $pair
        try "two_units: a.c as $1, b.c as $2" unit_pair $1 $2
    done
}
unit_pair() {
    for unit in a b; do
        case $1 in c) compiler="$CC -std=c99" ;; *) compiler=$cxx ;; esac
        $compiler $WARN -O1 -I. -c tests/properties/two_units/$unit.c -o "$dir/$unit.o" || return 1
        shift
    done
    rm -f "$dir/both"
    case $compiler in "$cxx") linker=$CXX ;; *) linker=$CC ;; esac
    $linker "$dir/a.o" "$dir/b.o" -o "$dir/both" -lm && limited "$dir/both"
}

# What calls everything, rightly and wrongly, under the address and undefined-behaviour sanitizers.
# All of the tests: make sanitize.
sanitized() {
    dir=$BUILD/sanitized
    cc="$CC -std=c99 $WARN -O1 -fno-omit-frame-pointer -fsanitize=address,undefined \
        -fno-sanitize-recover=all -I. -idirafter build"
    mkdir -p "$dir"
    if ! echo 'int main(void) { return 0; }' | $cc -x c - -o "$dir/try" || ! "$dir/try"; then
        skipped sanitized "$CC has no sanitizers"
        return
    fi
    rm -f "$dir"/*.[oa] "$dir"/test_*
    try "jem.h compiles with sanitizers" $cc -x c -DJEM_IMPLEMENTATION -c jem.h -o "$dir/jem.o"
    for test in calls details misuse uses; do
        if stopped; then left_out "sanitized_$test"; continue; fi
        program=$dir/test_$test
        source=$(echo tests/*/test_$test.c)
        if $cc -DJEM_DECLARATIONS "$source" $(shared "$source" "$dir" ar $cc) "$dir/jem.o" \
            -o "$program" -lm
        then run "sanitized_$test" "$program"
        else try "build $program" false
        fi
    done
}

# shared SOURCE FOLDER AR COMPILER...: an archive in the folder of what programs share, if the test
# includes any of it; prints its name.
shared() {
    grep -qE '#include "(tools|examples)/' "$1" || return
    folder=$2 ar=$3
    shift 3
    if [ ! -e "$folder/support.a" ]; then
        for part in tools/support/*.c tools/cli/*.c; do
            [ $part != tools/cli/jem.c ] || continue
            "$@" -c "$part" -o "$folder/shared_$(echo "${part%.c}" | tr / _).o" || return
        done
        $ar rcs "$folder/support.a" "$folder"/shared_*.o
    fi
    echo "$folder/support.a"
}

# emulated NAME ARCHITECTURE TESTS FLAGS...: the same programs for another processor.
emulated() {
    what=$1 machine=$2 tests=$3 emulator=""
    compiler=$machine-linux-gnu-gcc
    [ $machine = aarch64 ] && compiler=${ARM_CC:-$compiler}
    shift 3
    for name in qemu-$machine qemu-$machine-static; do
        command -v $name >/dev/null && emulator=$name && break
    done
    if [ -z "$tests" ]; then skipped "$what" "no tests are named for it"; return; fi
    if [ -z "$emulator" ] || ! command -v "$compiler" >/dev/null; then
        skipped "$what" "needs $compiler and qemu-$machine (for: $(echo $tests))"
        return
    fi
    mkdir -p "$BUILD/$what"
    rm -f "$BUILD/$what"/*.[oa]
    for test in $tests; do
        program=$BUILD/$what/test_$test
        room "${what}_$test" || { left_out "${what}_$test"; continue; }
        rm -f "$program"
        source=$(echo tests/*/test_$test.c)
        cc="$compiler -std=c99 $WARN -O2 $* -I. -idirafter build -idirafter /usr/include"
        if $cc -static "$source" $(shared "$source" "$BUILD/$what" $machine-linux-gnu-ar $cc) \
            -o "$program" -lm
        then run "${what}_$test" env JEM_WANT_ISA="$([ $what != neon ] || echo neon)" \
                $emulator "$program"
        else try "build $program" false
        fi
    done
}
# The other kind of vector registers.
neon() { emulated neon aarch64 "$NEON_TESTS"; }
# The other byte order. Without the flag, gcc computes in double there with -std=c99.
s390x() { emulated s390x s390x "$S390X_TESTS" -fexcess-precision=fast; }

# The same programs on WebAssembly, in plain C (the same bits) and with simd128 (close to them). In
# plain C, `rng` and `ops` pass too, if named: in a minute. A page's module needs no imports.
wasm() {
    cc="${WASM_CC:-clang --target=wasm32-wasi --sysroot=/usr} -std=c99 $WARN -O2 -I."
    if ! tools/get_package.sh wasm; then skipped wasm "needs clang for WebAssembly and node"; return; fi
    mkdir -p "$BUILD/wasm"
    for test in $WASM_TESTS; do
        program=$BUILD/wasm/$test.wasm
        room "wasm_$test" || { left_out "wasm_$test"; continue; }
        case $test in simd128_*) simd=-msimd128 ;; *) simd="" ;; esac
        rm -f "$program"
        if $cc $simd -Wl,-z,stack-size=1048576 tests/*/test_${test#*_}.c -o "$program" -lm
        then run "wasm_$test" node tests/support/wasm.js "$program"
        else try "build $program" false
        fi
    done
    echo "== wasm"
    try "tools/bench_wasm.c steps without an import" bench_wasm
}
bench_wasm() {
    module=$BUILD/wasm/bench_simd128.wasm log=$BUILD/log/wasm.txt
    ${MAKE:-make} -s BUILD="$BUILD" "$module" &&
        node tools/bench_wasm.js 0.1 node "$module" >"$log" && cat "$log" &&
        grep -q '  [0-9.]*  *[0-9.]*$' "$log"
}

# The programs in the documentation: what the reader copies must compile, and do what it says.
documents() {
    dir=$BUILD/documents
    mkdir -p "$dir"
    echo "== documents"
    sed -n '/A COMPLETE PROGRAM/,/^   THE IDEA/p' jem.h |
        sed -n '/#define JEM_IMPLEMENTATION/,$s/^       //p' >"$dir/header.c"
    sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' >"$dir/readme.c"
    try "jem.h: the complete program compiles" document header
    try "jem.h: it ends without an error" header_ends
    cat "$dir/header.txt"
    try "jem.h: it separates the moons" sh -c "cut -c 1-6 '$dir/header.txt' | tr '\n' , |
        grep -q '^moon 0,moon 1,'"
    try "README.md: the program compiles" document readme
    try "README.md: it knows the seven" sh -c "'$dir/readme' examples/data/seven.png |
        grep -qx 'a 7 (p = 1.00), familiar'"
    try "README.md: it rejects a photograph" sh -c "'$dir/readme' examples/gallery/cifar10.png |
        grep -q '^a [0-9] .*, strange'"
    try "README.md: without an argument, it prints its usage" sh -c "'$dir/readme' |
        grep -q '^usage: '"
    try "README.md: an unreadable picture is named" sh -c "'$dir/readme' nowhere.png |
        grep -q '^nowhere.png: cannot be read: '"
    try "README.md: failures have a status" sh -c "'$dir/readme' nowhere.png; test \$? = 1"
    awk '/^   TRY/ { on = 1 } /^ *$|^   RUN/ { on = 0 } on' examples/*.c >"$dir/to_try.txt"
    try "lessons: numbers to try are floats, as the compiler requires" sh -c "
        test \$(wc -l <'$dir/to_try.txt') -gt 20 && ! grep -E \
        '(^|[^A-Za-z0-9_.])([0-9]*\.[0-9]+|[0-9.]+e-?[0-9]+)([^0-9fe]|\$)' '$dir/to_try.txt'"
}
header_ends() { limited "$dir/header" >"$dir/header.txt"; }
document() { $CC -std=c99 $WARN -O2 -I. -idirafter build "$dir/$1.c" -o "$dir/$1" -lm; }

# The examples, run as a reader would, in a folder of their own: a short demo, what uses its model.
smoke() {
    folder smoke
    examples "film --quick" "films_energy --quick" "films --quick" \
        "films_learn --quick" "films_jem --quick" "samplers --quick" \
        "mend_it --quick" "glance --quick" "demo --updates 15" hello "sample 7" \
        "train --iters 3" autograd own_energy own_op own_net frame "tiny_jem 10" \
        "worlds --quick" "worlds --quick all" "ways --quick" compose three_densities score \
        out_of_distribution calibration "attack examples/models/mnist.safetensors" \
        imputation vectors
    pictures "film 646 227" "film_strip 1406 709" "films_digit 420 168" \
        "films_push 480 320" "films_diverge 416 377" "films_chain 700 330" \
        "films_bowl 700 330" "films_both 376 369" "films_turn 640 330" "samplers 1206 779" \
        "samplers_traces 1206 660" \
        "dreams 582 582" \
        "train 582 582" "autograd 800 560" "own_energy 720 720" "own_net 640 640" \
        "tiny_jem 930 582" "worlds 1076 2261" "ways 900 820" "compose 1076 569" \
        "three_densities 886 911" "frame 848 700" "vectors 1000 420"
    refused "attack examples/models/cifar10.safetensors" "not a network for digits"
    refused "tiny_jem many" usage
    refused "compose_images --updates" usage
    for beyond in 4294967299 99999999999999999999 3x many; do
        for command in "train --iters" "demo --updates" "demo --seed" tiny_jem \
            "compose_images --updates"
        do refused "$command $beyond" "a whole number from 1 to 100000000"
        done
    done
    refused "frame nowhere.safetensors" "nowhere.safetensors"
    try "examples: frame prints an error once" sh -c "test \$(grep -c nowhere '$dir/refused.txt') = 1"
    refused "vectors train.csv" usage
    refused "vectors nowhere.csv nowhere.csv" "nowhere.csv: cannot be opened"
    awk 'BEGIN { print "a,b"; for (i = 0; i < 60; i++) print sin(i) "," 5 + cos(i) }' >"$dir/ab.csv"
    printf 'b,a\n5,1\n1,5\n' >"$dir/ba.csv"
    printf 'b,c\n5,1\n' >"$dir/bc.csv"
    refused "vectors ab.csv bc.csv" "bc.csv, line 1: has no column 'a'"
    try "examples: vectors finds columns by name" sh -c "cd '$dir' && '$root/$BUILD/vectors' ab.csv \
        ba.csv | awk -F , '{ logp[NR] = \$1 } END { exit !(NR == 2 && logp[1] > logp[2] + 9) }'"
    try "examples: of the new readings that vectors writes, the last four are strange" \
        limited sh -c "cd '$dir' && '$root/$BUILD/vectors' --write . && '$root/$BUILD/jem' train sensors.csv --out s &&
        '$root/$BUILD/jem' score s/last.safetensors new.csv >scores.txt &&
        awk -F , '\$4 == \"strange\" { n++; if (\$1 < 17) bad = 1 } END { exit bad || n != 4 }' scores.txt"
    try "examples: reading judges them alike, and names a value" sh -c "cd '$dir' &&
        '$root/$BUILD/reading' s/last.safetensors <new.csv >readings.txt &&
        test \$(grep -c ', strange (.* would fit the others)' readings.txt) = 4 &&
        test \$(grep -c '^row' readings.txt) = \$(grep -c '^[0-9]*,' scores.txt)"
    awk 'BEGIN { print "p,q"; for (i = 0; i < 600; i++) printf "%.9g,%d\n", 1013250 + i % 7 / 8, i % 11 }' >"$dir/pascal.csv"
    try "examples: reading prints all digits of a number with a large offset" limited sh -c "cd '$dir' &&
        '$root/$BUILD/jem' train pascal.csv --iters 60 --out pascal && echo 1013300.5,5 |
        '$root/$BUILD/reading' pascal/last.safetensors | grep -q '(p is 1013300.5; 10132[45][0-9][.][0-9]'"
    try "examples: reading skips the mark of UTF-8 before names and before numbers" sh -c "cd '$dir' &&
        for first in 1 2; do
            { printf '\\357\\273\\277' && sed -n \"\$first,2p\" new.csv; } |
                '$root/$BUILD/reading' s/last.safetensors | grep -q '^row 1: ' || exit 1
        done"
    try "examples: reading continues after a row that it cannot judge" sh -c "cd '$dir' &&
        { sed -n 1,2p new.csv; echo 1,2; sed -n 2p new.csv | sed 's/[^,]*/nan/'; sed -n 3p new.csv; } |
        '$root/$BUILD/reading' s/last.safetensors >readings.txt 2>unread.txt; test \$? = 1 &&
        test \$(grep -c '^row [14]:' readings.txt) = 2 && grep -q '^row 2: needs' unread.txt &&
        grep -q '^row 3: ' unread.txt"
    # What the examples printed: the numbers that their texts promise.
    claim vectors "mixed regimes are unusual" \
        '/two regimes mixed/ { seen = $4 > 0.99 && $6 > 0.97 } END { exit !seen }'
    try "claim: vectors: the table of the course" quoted_table vectors
    claim autograd "the curve is fitted" \
        '$1 == "step" { loss = $4 } END { exit !(loss < 0.02 && loss > 0) }'
    claim films_energy "Z grows with the box, and converges with a bowl" '
        /as trained/ { z = $NF } /in both logits/ { bowl = $NF }
        END { exit !(z > 3000 && z < 3300 && bowl > 41 && bowl < 43) }'
    claim films "tempered chains cross: the numbers of the course" '
        /^one temperature/ { one = $3 } /^tempered/ { more = $2 }
        END { exit !(one == "0%" && more == "65%") }'
    claim films_jem "a 9 is familiar, as is the 6 that it becomes, but not between" '
        / degrees/ { seen[$1] = $NF; label[$1] = $4 + 0 }
        END { exit !(seen[0] >= 0.1 && seen[180] >= 0.1 && seen[90] < 0.1 && seen[270] < 0.1 &&
            label[0] == 9 && label[180] == 6) }'
    claim own_energy "the banana's moments" \
        '/[0-9]$/ { n++; if (($NF - $(NF - 1))^2 > 0.01) bad = 1 } END { exit bad || n != 5 }'
    for lines in "worlds 6 8" "film 5 6"; do       # field of log Z, number of lines with one
        set -- $lines
        claim $1 "log Z by a grid and by AIS" '/by AIS/ { n++; off = $'$2' - $('$2' + 3)
            if (off < 0) off = -off
            if (off > 4.5 * $('$2' + 5) + 0.02) bad = 1 } END { exit bad || n != '$3' }'
    done
    claim samplers "MALA, HMC, tempering are exact; ULA, SGLD are not; two modes need tempering" '
        { for (i = 1; i < NF; i++) if ($i == "error") off = $(i + 1) + 0; if (off < 0) off = -off }
        /^(narrow|banana)/ && /MALA|HMC|tempered/ { n++; if (off > 4.5) bad = 1 }
        /^narrow/ && /ULA|SGLD/ { n++; if (off < 8) bad = 1 }
        /^two modes/ && /tempered/ { n++; if (off > 4.5 || $NF > 1.2) bad = 1 }
        /^two modes/ && !/tempered/ { n++; if ($NF < 2) bad = 1 }
        END { exit bad || n != 13 }'
    claim attack "familiarity rejects noise that is classified as a digit" '
        /^ +[0-9] +[01]/ { n++; f = $(NF - 1) + 0; if (f > most) most = f; odd += $NF == "odd" }
        /^noise classified/ { n++; for (i = NF - 9; i <= NF; i++) if ($i != "0.00") bad = 1 }
        END { exit bad || n != 11 || odd != 2 || most != .0358 }'
    claim compose "the moments of what is composed" '
        /sampled/ { n++; for (i = 1; i < NF; i++) {
            if ($i == "exact") off = $(i + 1) + 0
            if ($i == "sampled") off -= $(i + 1) + 0
            if ($i == "+-" && off^2 > (4 * $(i + 1) + 0.01)^2) bad = 1
        } } END { exit bad || n != 8 }'
    claim three_densities "the density in a classifier is none, in a JEM it is" '
        { p[$1] = $NF; if ($2 == "accuracy" && $3 + 0 < 95) bad = 1 }
        END { exit bad || !("JEM" in p && "mixture" in p && p["JEM"] > p["mixture"] - 0.1 &&
            p["classifier"] < p["JEM"] - 3) }'
}
# Those that take longest: after all others.
lessons() {
    folder lessons
    examples film learn break_it mend_it pooled compose_nets compose_images
    pictures "learn 1006 989" "break_it 1006 999" "pooled 1024 262" "compose_nets 1178 644" \
        "compose_images 1008 778"
    claim learn "the exact way is the best, one step from data or twenty from noise are the worst" '
        { p[$1] = $NF } END { exit !("exact" in p && "CD-1" in p && "short-run" in p &&
            p["exact"] > p["persistent"] && p["exact"] > p["score"] &&
            p["persistent"] > p["CD-1"] + 0.2 && p["persistent"] > p["short-run"] + 0.2) }'
    claim break_it "failures and their remedies" '
        /diverged/ { diverged = 1 } /mean log p/ { p[$1 " " $2 " " $4] = $NF }
        END { for (k in p) { if (k ~ /^healthy/) well = p[k]; if (k ~ /^no noise/) still = p[k]
                if (k ~ /^one step/) one = p[k]; if (k ~ /^rate x L2/) mended = p[k] }
            exit !(diverged && well && mended && well > -3.5 && mended > -3.5 &&
                still < well - 1 && one < well - 5) }'
    claim film "the density was best after about 430 updates: the course says so" '
        /^update/ { n = $2 + 0; p = $0; sub(/.*points /, "", p); p += 0
            if (!best || p > top) { best = n; top = p } }
        END { exit !(best > 425 && best < 436) }'
    claim mend_it "the numbers of the course (test_answers has their text)" '
        { p[$1 " " $2] = sprintf("%.2f", $NF) } END { exit !(p["as before"] == "-7.04" &&
            p["tempered mean"] == "-2.23" && p["broad noise"] == "-3.01") }'
    claim pooled "with a flat head there is one shape, with a pooled one often none or two" '
        /^(flat|pooled)/ { right = $4 + 0; if (right < 95) bad = 1; share[$1] = $9 + 0 }
        END { exit bad || !(share["flat"] >= 90 && share["pooled"] <= 70) }'
    claim compose_nets "both networks see what was asked for" '
        /^[0-9] and/ { n++; if ($9 + 0 < 80 || $12 + 0 < 80) bad = 1 } END { exit bad || n != 3 }'
    claim compose_nets "chains of digit or clothes follow the larger log p on noise: the course" '
        /^on noise/ { ahead = $9 - ($6 + 0) } / or clothes/ { n++; as = $8 + 0 }
        END { exit !(ahead > 400 && ahead < 600 && n == 1 && as == 0) }'
    claim compose_images "most samples are what was asked for, as is a red square" '
        /^red and square and left/ { seen = $6 + 0 }   /^of all samples/ { all = $4 + 0 }
        END { exit !(seen >= 60 && all >= 80) }'
}
folder() {
    dir=$BUILD/$1 root=$PWD
    echo "== $1"
    rm -rf "$dir"
    mkdir -p "$dir/build"
    ln -s "$root/examples" "$dir/examples"
}
# refused COMMAND WHY: it ends with status 1 or 2, and says why.
refused() { try "examples: $1 is refused" refuses "$1" "$2"; }
refuses() {
    (cd "$dir" && limited "$root/$BUILD/"$1 >refused.txt 2>&1)
    case $? in 1 | 2) grep -q "$2" "$dir/refused.txt" ;; *) false ;; esac
}
claim() { try "claim: $1: $2" awk "$3" "$dir/$1.txt"; }
# Each row of the table that a lesson prints (words, then numbers) is one of the course's.
quoted_table() {
    sed -n 's/^  *\([a-z][a-z ]*[a-z]\)  *\([0-9].*\)$/\1  \2/p' "$dir/$1.txt" |
        sed 's/   */ | /g; s/| 0\(\.[0-9]* |\)/| \1/g' >"$dir/$1.rows"
    [ -s "$dir/$1.rows" ] || return 1
    while IFS= read -r row; do
        grep -qxF "| $row |" "$root/examples/README.md" || { echo "not there: $row"; return 1; }
    done <"$dir/$1.rows"
}
pictures() { for picture; do try "picture: $picture" picture $picture; done; }
picture() { "$root/$BUILD/test_lessons" "$dir/build/pictures/$1.png" $2 $3; }
examples() { for command; do try "examples: $command" example $command; done; }
example() {
    lesson=$1
    shift
    (cd "$dir" && limited "$root/$BUILD/$lesson" "$@" >"$lesson.txt" 2>&1) ||
        { tail -n 3 "$dir/$lesson.txt"; false; }
}

# Scripts that need no more than Python's own library.
python() {
    if command -v python3 >/dev/null
    then run pt2safetensors python3 tests/tools/test_pt2safetensors.py
    else skipped python "needs python3"
    fi
    if ! /usr/bin/python3 -c "import numpy" 2>/dev/null
    then skipped jem_py "needs python3-numpy"
    else run jem_py /usr/bin/python3 tests/tools/test_jem_py.py "$BUILD/libjem.so" "$BUILD/jem"
    fi
    if ! /usr/bin/python3 -c "import numpy" 2>/dev/null
    then skipped onnx "needs python3-numpy"
    else run onnx /usr/bin/python3 tests/tools/test_onnx.py "$BUILD/jem" "$BUILD/libjem.so"
    fi
    if ! /usr/bin/python3 -c "import sklearn" 2>/dev/null
    then skipped sklearn "needs python3-sklearn"
    else
        run sklearn_vectors /usr/bin/python3 tests/tools/sklearn_vectors.py "$BUILD/vectors"
        run sklearn_sensors /usr/bin/python3 tests/tools/sklearn_sensors.py "$BUILD/vectors"
    fi
    if ! /usr/bin/python3 -c "import torch" 2>/dev/null
    then skipped torch_unet "needs python3-torch"
    elif limited "$BUILD/test_unet" "$BUILD/unet.safetensors" >/dev/null
    then run torch_unet /usr/bin/python3 tests/rooms/torch_unet.py "$BUILD/unet.safetensors"
    else try "test_unet writes a case for PyTorch" false
    fi
    torch_graphs "${GRAPHS:-50}" 1000
}
# torch_graphs COUNT SEED: random graphs of ops, here and in PyTorch.
torch_graphs() {
    if ! /usr/bin/python3 -c "import torch" 2>/dev/null
    then skipped torch_graphs "needs python3-torch"
    elif limited "$BUILD/test_graphs" "$BUILD/graphs.safetensors" "$1" "$2" >/dev/null
    then run torch_graphs /usr/bin/python3 tests/properties/torch_graphs.py \
        "$BUILD/graphs.safetensors"
    else try "test_graphs writes $1 graphs for PyTorch" false
    fi
    rm -f "$BUILD/graphs.safetensors"
}

# Users' projects that find the library by CMake and by pkg-config.
users_projects() {
    if command -v cmake >/dev/null
    then run cmake tests/tools/cmake.sh
    else skipped cmake "needs cmake"
    fi
}

# Does tests/mutate.py tell three mutants apart? All of them: make mutate.
mutate() {
    if command -v python3 >/dev/null && command -v gcov >/dev/null
    then run mutate python3 tests/mutate.py --smoke
    else skipped mutate "needs python3 and gcov"
    fi
}

# The page in a browser, where both are or can be installed.
playground() {
    if tools/get_package.sh wasm && tools/get_package.sh browser
    then run playground tests/tools/playground.sh
    else skipped playground "needs clang for WebAssembly, Chromium and node"
    fi
}
slides() {
    if command -v python3 >/dev/null && tools/get_package.sh wasm && tools/get_package.sh browser
    then run slides tests/tools/slides.sh
    else skipped slides "needs python3, clang for WebAssembly, Chromium and node"
    fi
}
site() {
    if command -v python3 >/dev/null && tools/get_package.sh wasm
    then
        rm -rf "$BUILD/site"
        try "make site" ${MAKE:-make} -s site BUILD="$BUILD"
        run site python3 tests/tools/test_site.py "$BUILD/site"
    else skipped site "needs python3 and clang for WebAssembly"
    fi
}

# The tool as a Windows program.
windows() {
    if command -v wine >/dev/null && command -v x86_64-w64-mingw32-gcc >/dev/null
    then run windows tests/tools/windows.sh
    else skipped windows "needs wine and x86_64-w64-mingw32-gcc"
    fi
}

# Several processes: make has installed Open MPI and built jem-mpi, if it could.
mpi() {
    if mpirun --version 2>/dev/null | grep -q "Open MPI"
    then run mpi tests/tools/mpi.sh
    else skipped mpi "needs Open MPI (tools/get_package.sh mpi)"
    fi
}

# What is waited for: how many items there are, and how long they take. The whole of `make test`
# took 14 minutes on two cores that had nothing else to do.
takes_time() { case $1 in with) false ;; */test_*) ;; */*) false ;; esac; }
items=0 item=0
for test in "$@"; do
    if takes_time "$test"; then items=$((items + 1)); fi
done
case " $* " in
    *" with "*) about=", about $((14 * $(busy) / 100)) minutes on this machine as it is now" ;;
    *) about="" ;;
esac
[ -n "$BESIDE" ] || echo "== $items items$about"
if [ -z "$BESIDE" ] && [ -e "$BUILD/incomplete" ]; then
    rm -f "$BUILD/incomplete"
    count 0 1
    broken="$broken, make"
    echo "FAILED make: what programs share does not compile; those of an earlier build run"
fi

# Not shown as it comes: two at once would be unreadable.
here="" beside=""
for test in "$@"; do
    case $test:$beside in
        with:*) beside=" " ;;
        *:"") here="$here $test" ;;
        *) beside="$beside$test " ;;
    esac
done
second=$BUILD/log/second.txt
if [ -n "$beside" ]; then BESIDE=1 "$0" $beside >"$second" 2>&1 </dev/null & other_half=$!; fi

for test in $here; do
    if [ -z "$BESIDE" ] && takes_time "$test"; then
        item=$((item + 1))
        echo "-- $item of $items"
    fi
    item_name=${test##*/}
    if ! room "$item_name"; then left_out "$item_name"; continue; fi
    case $test in
        graphs) torch_graphs "${GRAPHS:-4000}" "${SEED:-1}" ;;
        two_units | sanitized | neon | s390x | wasm | documents | smoke | lessons | python | \
        mutate | mpi | playground | site | slides | windows) $test ;;
        cmake) users_projects ;;
        grade) OPENMP=$(cat "$BUILD/command" 2>/dev/null | grep -o -e -fopenmp) run grade tests/tools/grade.sh ;;
        strict | get_data | cli | uses | report | fuzz | limits) run $test tests/*/$test.sh ;;
        musl | clang | exceptions | folders | compilers | x86_32 | processors)
            run $test tests/properties/portability.sh $test ;;
        portability | examine) run $test tests/*/$test.sh ;;
        */test_*)
            if [ -x "$test" ]
            then run "${test##*/}" env JEM_WANT_ISA="$(native_isa)" "$test"
            else try "build $test" false
            fi ;;
        *) try "build $test" test -x "$test" ;;
    esac
done
if [ -n "$beside" ]; then
    wait "$other_half"                             # not $!: items run in the background, too
    other_status=$? TEST_STOP=""
    run beside sh -c "cat '$second'; exit $other_status"
fi
[ -n "$late" ] && echo "skipped, the machine is too busy: ${late#, }"
[ -n "$broken" ] && echo "failing: ${broken#, }"
[ ! -s "$why" ] || sed '/^$/d; s/^/    /' "$why"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && { [ "$passed" -gt 0 ] || [ -n "$BESIDE" ]; }
