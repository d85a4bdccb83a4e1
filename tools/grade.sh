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
    # The points printed before an end by the limit count. Seconds of computing time: a busy machine
    # stops no correct answer.
    (ulimit -t "$seconds"; exec "$program") >"$log" 2>&1
    ended=$?
    cat "$log"
    points=$(awk '/^  [0-9] of [0-9]  / { sum += $1 } END { print sum + 0 }' "$log")
    case $ended in
    0 | 1) why="it ended too early" ;;
    137 | 152) why="stopped after $seconds s of computing time (GRADE_SECONDS)" ;;
    *) why="it crashed (status $ended)" ;;
    esac
    if ! grep -q "^$name: " "$log"; then echo "$name: $points of 10 points: $why"; fi
    [ "$ended" = 0 ] || status=1
    got=$((got + points))
done
echo "$got of 30 points"
exit $status
