#!/bin/sh
# `jem train` in several processes (build/jem-mpi under mpirun), on the digits that ship. Says what
# failed, and ends with the line `N passed, N failed`.
BUILD=${BUILD:-build}
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# More processes than processors must not wait for each other with all their might.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_hwloc_base_binding_policy=none
passed=0 failed=0
root=$PWD dir=$PWD/$BUILD/mpi
case $BUILD in /*) jem=$BUILD/jem-mpi dir=$BUILD/mpi ;; *) jem=$root/$BUILD/jem-mpi ;; esac
[ -x "$jem" ] || { echo "$jem is not there"; echo "0 passed, 1 failed"; exit 1; }
rm -rf "$dir"
mkdir -p "$dir" && cd "$dir" || exit 1
ln -s "$root/examples" examples

# check NAME COMMAND...: the command succeeds.
check() {
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name"
        for f in out err; do tail -n 5 $f | cut -c 1-300; done
    fi
}
# ranks N STATUS ARGUMENTS...: in N processes, jem ends with that status; output in out and err.
ranks() {
    n=$1 want=$2
    shift 2
    mpirun -n $n "$jem" "$@" >out 2>err </dev/null
    is=$?
    check "$n processes, status $is, not $want: $*" test $is = "$want"
}
# One curve: the numbers of two logs, but for the time, differ by 1 in 10,000 at most.
same_curve() {
    paste -d, "$1/log.csv" "$2/log.csv" | awk -F, '
        NR > 1 { rows++; for (i = 1; i < NF / 2; i++) {
            d = $i - $(i + NF / 2); m = $i < 0 ? -$i : $i
            if (d < 0) d = -d
            if (d > 1e-4 * (m + 1)) exit bad = 1 } }
        END { exit bad || rows < 5 }'
}
one_line() { [ "$(grep -c "$1" err)" = 1 ]; }

small="--threads 1 --batch-size 64 --negatives 64 --n-steps 3 --buffer-size 200 --n-valid 100"
small="$small --print-every 5 --warmup-iters 0 --widths 8,16"
# with a score, classes in noise, and fresh chains of each class
score="$small --iters 30 --score-weight .016 --scale 10 --label-noise .3 --label-wide .5"
score="$score --chains-from .3 --fresh-steps 4 --reinit-freq .5 --class-cond-p-x-sample"
score="$score --sgld-lr .01 --sgld-std .1 --sigma .12"

echo "one curve on 1, 2 and 4 processes"
for kind in chains score; do
    case $kind in
        chains) options="$small --iters 30" numbers="1 4" ;;
        score) options=$score numbers="1 2 4" ;;
    esac
    for n in $numbers; do
        ranks $n 0 train $options --out $kind$n
        check "$kind: $n processes" same_curve ${kind}1 $kind$n
        check "$kind: $n processes write one folder" test -s $kind$n/last.safetensors -a \
            -s $kind$n/best.safetensors -a -s $kind$n/curves.png
    done
    check "$kind: processes said who they are" grep -q "^4 processes" out
done

echo "resuming with another number"
ranks 4 0 train $score --stop-at 15 --out moves
check "it stopped" grep -q "stopped after update 15" out
ranks 1 0 train --resume moves --stop-at 20
ranks 2 0 train --resume moves
check "the curve of one process" same_curve score1 moves

echo "a run that diverges"
ranks 2 0 train $small --iters 30 --max-gap 1.1 --retries 30 --n-steps 1 --lr 3e-3 --out wild2
ranks 1 0 train $small --iters 30 --max-gap 1.1 --retries 30 --n-steps 1 --lr 3e-3 --out wild1
check "it rolled back" grep -q "rollback to update" err
check "the same way" same_curve wild1 wild2

echo "processes that are asked to stop, or die"
long="$small --batch-size 48 --negatives 48 --iters 1000000 --save-minutes 0"
rank_of() {                             # rank_of N: process id of that rank in this test
    for f in $(grep -lzx "JEM_TEST=$dir" /proc/[0-9]*/environ 2>/dev/null); do
        grep -qzx "OMPI_COMM_WORLD_RANK=$1" "$f" 2>/dev/null && f=${f#/proc/} && echo "${f%/*}"
    done
}
begin() {                               # begin FOLDER: three processes, until they have saved
    JEM_TEST=$dir mpirun -n 3 "$jem" train $long --out "$1" >out 2>err </dev/null &
    job=$!
    for i in $(seq 3000); do
        sleep .2
        [ "$(grep -c ^ "$1/log.csv" 2>/dev/null || echo 0)" -gt 3 ] && return
    done
    kill $job                           # or it would be waited for without end
    sleep 5
    kill -9 $job 2>/dev/null
}
begin asked
kill -TERM "$(rank_of 2)"
wait $job
check "asked: all stopped in order" grep -q "stopped after update" out
check "asked: the checkpoint is whole" "$root/$BUILD/jem" info asked/last.safetensors
begin dies
kill -9 "$(rank_of 1)"
wait $job
is=$?
check "dies: status $is" test $is != 0
check "dies: says which" grep -q "rank 1 .* signal 9" err
check "dies: no process remains" test -z "$(rank_of 0)$(rank_of 2)"
check "dies: the checkpoint is whole" "$root/$BUILD/jem" info dies/last.safetensors
at=$("$root/$BUILD/jem" info dies/last.safetensors | sed -n 's/.*after update \([0-9]*\),.*/\1/p')
ranks 2 0 train --resume dies --iters $((at + 5))
check "dies: and goes on" grep -q "resuming after update $at" out

echo "mistakes, said once"
ranks 3 2 train $small --iters 5 --out odd
check "not divided" one_line "3 processes: the batch (64 images, 64 labelled) and --negatives (64)"
ranks 2 2 train --frobnicate
check "unknown option" one_line "unknown option --frobnicate"
ranks 2 2 train $small --iters 30 --out chains1
check "a folder in use" one_line "already exists"
mpirun -n 1 "$jem" train $small --iters 5 --out other : \
    -n 1 "$jem" train $small --iters 5 --data nowhere --dataset mnist --out other >out 2>err
check "one lacks the data: status" test $? = 1
check "one lacks the data: which" grep -q "^process 1: .*mnist" err
mpirun -n 1 "$jem" train $small --iters 5 --out seeds : \
    -n 1 "$jem" train $small --iters 5 --out seeds --seed 9 >out 2>err
check "another seed: status" test $? = 1
check "another seed: says so" grep -q "differ in data, weights or chains" err
ranks 2 0 info chains1/last.safetensors
check "other commands run once" test "$(grep -c "[0-9] tensors," out)" = 1

echo "$passed passed, $failed failed"
[ $failed = 0 ]
