#!/bin/sh
# Grades the assignments: grade.sh FOLDER, with langevin.c, learn.c and jem.c in it. Status 0 if all
# points were reached. make grade ANSWERS=FOLDER
BUILD=${BUILD:-build} CC=${CC:-cc}
answers=${1:-examples/assignments}
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
    # An endless loop keeps the points printed before; without `timeout`, stop it by hand.
    limit=""
    if command -v timeout >/dev/null; then limit="timeout ${GRADE_SECONDS:-60}"; fi
    $limit "$program" >"$log" 2>&1 || status=1
    cat "$log"
    points=$(awk '/^  [0-9] of [0-9]  / { sum += $1 } END { print sum + 0 }' "$log")
    if ! grep -q "^$name: " "$log"; then
        echo "$name: $points of 10 points: it crashed, or did not end"
        status=1
    fi
    got=$((got + points))
done
echo "$got of 30 points"
exit $status
