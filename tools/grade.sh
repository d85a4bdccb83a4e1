#!/bin/sh
# Grades the assignments: grade.sh FOLDER, with langevin.c, learn.c and jem.c in it. Status 0 if all
# points were reached. make grade ANSWERS=FOLDER
BUILD=${BUILD:-build} CC=${CC:-cc}
answers=${1:-examples/assignments}
seconds=${GRADE_SECONDS:-60}
status=0 got=0
mkdir -p "$BUILD/grade"
for name in langevin learn jem; do
    program=$BUILD/grade/$name log=$BUILD/grade/$name.txt
    rm -f "$program"
    echo "== $answers/$name.c"
    if [ ! -f "$answers/$name.c" ]; then
        echo "$name: 0 of 10 points: there is no $answers/$name.c"
        status=1
        continue
    fi
    case $answers in /*) file=$answers/$name.c ;; *) file=$PWD/$answers/$name.c ;; esac
    if ! $CC -std=c99 -Wall -Wextra -O2 -I. -DJEM_DECLARATIONS -DANSWER="\"$file\"" \
        "tools/grade/$name.c" "$BUILD/jem.o" $OPENMP -o "$program" -lm >"$log" 2>&1; then
        grep -E 'error|warning' "$log" | head -n 10
        echo "$name: 0 of 10 points: it does not compile"
        status=1
        continue
    fi
    grep -E 'warning' "$log" | head -n 10
    # Points that were printed before the limit count. It is of computing time, so that a busy
    # machine stops no correct answer; an answer that waits is stopped by the time elapsed.
    limit=""
    if command -v timeout >/dev/null; then limit="timeout $((10 * seconds))"; fi
    (ulimit -t "$seconds"; exec $limit "$program") >"$log" 2>&1 </dev/null
    ended=$?
    cat "$log"
    points=$(awk '/^  [0-9] of [0-9]  / { sum += $1 } END { print sum + 0 }' "$log")
    case $ended in
    0 | 1) why="it ended too early" ;;
    124) why="stopped after $((10 * seconds)) s" ;;
    137 | 152) why="stopped after $seconds s of computing time (GRADE_SECONDS)" ;;
    *) why="it crashed (status $ended)" ;;
    esac
    if ! grep -q "^$name: " "$log"; then echo "$name: $points of 10 points: $why"; fi
    got=$((got + points))
done
echo "$got of 30 points"
[ "$got" -eq 30 ] || status=1
exit $status
