#!/bin/sh
# Grades the assignments: grade.sh FOLDER, with langevin.c, learn.c and jem.c in it. Status 0 if all
# points were reached. make grade ANSWERS=FOLDER
BUILD=${BUILD:-build} CC=${CC:-cc}
answers=${1:-examples/assignments}
seconds=${GRADE_SECONDS:-60}
patience=${GRADE_COMPILE_SECONDS:-60}
status=0 got=0
include=$BUILD/grade/include
rm -rf "$include"
mkdir -p "$include"
cp jem.h "$include"
answer=$BUILD/grade/answer.c
case $answer in /*) included=$answer ;; *) included=$PWD/$answer ;; esac

# Prints the folders of the system's headers.
system_folders() {
    LC_ALL=C $CC -E -v -x c - </dev/null 2>&1 | sed -n '/^#include </,/^End of/s/^ //p' |
        while read -r folder; do (cd "$folder" 2>/dev/null && pwd -P); done
}
system=$(system_folders)

# Prints the files that the compiler has read, but for those that an answer may include. The list is
# the compiler's: a search of the text would miss a name made by a macro.
foreign() {
    [ -n "$system" ] || return                      # a compiler that does not print its folders
    sed -e 's/^answer://' -e 's/\\$//' -e 's/\\ /\\_/g' "$BUILD/grade/answer.d" | tr ' ' '\n' |
        sed 's/\\_/ /g' |                          # spaces in names
        grep -v -x -F -e "" -e "tools/grade/$name.c" -e "$included" \
            -e tools/grade/grade.h -e "${include#./}/jem.h" |
        while read -r header; do
            folder=$(cd "$(dirname "$header")" 2>/dev/null && pwd -P)
            known=""
            for one in $system; do
                case $folder/ in "$one"/*) known=yes ;; esac
            done
            [ -n "$known" ] || echo "$header"
        done
}

# limited SECONDS ELAPSED COMMAND...: runs it into $log. Its limits are of computing time, of time
# elapsed, of the size of a file (100 MB) and, where the system has such a limit, of memory (4 GB).
limited() {
    limit=""
    if command -v timeout >/dev/null; then limit="timeout -k 5 $2"; fi
    (
        ulimit -t "$1"
        ulimit -f 204800                            # of 512 bytes; some shells count 1024
        ulimit -v 4000000 2>/dev/null
        shift 2
        exec $limit "$@"
    ) >"$log" 2>&1 </dev/null
}

# Compiles a copy of the answer, which cannot include files beside it; messages name the original.
# Students' compilers define M_PI unless asked for a standard: gnu99.
compile() {
    {
        printf '#line 1 "%s"\n' "$(printf %s "$answers/$name.c" | sed 's/[\"]/\\&/g')"
        cat "$answers/$name.c"
    } >"$answer"
    limited "$patience" "$patience" $CC -std=gnu99 -Wall -Wextra -O2 -I"$include" -MD -MT answer \
        -MF "$BUILD/grade/answer.d" -DJEM_DECLARATIONS -DANSWER="\"$included\"" \
        "tools/grade/$name.c" "$BUILD/jem.o" $OPENMP -o "$program" -lm
    ended=$?
    grep -E 'error|warning' "$log" | head -n 10
    case $ended in
    0)
        others=$(foreign)
        [ -n "$others" ] || return 0
        why="it includes $(echo $others); only standard headers and jem.h are allowed"
        ;;
    124 | 137) why="it does not compile within $patience s (GRADE_COMPILE_SECONDS)" ;;
    *) why="it does not compile" ;;
    esac
    echo "$name: 0 of 10 points: $why"
    return 1
}

# Shows 50 lines of the log, and the points that are below them.
show() {
    LC_ALL=C awk 'NR <= 50 || (/^  [0-9] of [0-9]  |^[a-z]+: / && shown++ < 10) {
            print substr($0, 1, 200)
        }
        NR == 51 { print "  .. the rest is in " FILENAME }' "$log"
}

for name in langevin learn jem; do
    program=$BUILD/grade/$name log=$BUILD/grade/$name.txt
    rm -f "$program"
    echo "== $answers/$name.c"
    if [ ! -f "$answers/$name.c" ]; then
        echo "$name: 0 of 10 points: there is no $answers/$name.c"
        status=1
        continue
    fi
    if ! compile; then
        status=1
        continue
    fi
    # Points that were printed before the limit count. It is of computing time, so that a busy
    # machine stops no correct answer; an answer that waits is stopped by the time elapsed.
    limited "$seconds" $((10 * seconds)) "$program"
    ended=$?
    show
    points=$(awk '/^  [0-9] of [0-9]  / { sum += $1 } END { print sum + 0 }' "$log")
    case $ended in
    0 | 1) why="it ended too early" ;;
    124) why="stopped after $((10 * seconds)) s" ;;
    137 | 152) why="stopped after $seconds s of computing time, or 10 times as long in all" ;;
    153) why="stopped after 100 MB of output" ;;
    *) why="it crashed (status $ended)" ;;
    esac
    if ! grep -q "^$name: " "$log"; then echo "$name: $points of 10 points: $why"; fi
    got=$((got + points))
done
echo "$got of 30 points"
[ "$got" -eq 30 ] || status=1
exit $status
