#!/bin/sh
# `jem` for Windows, under Wine: it does the same as `jem` here, bit for bit. Ends with the line
# `N passed, N failed`.
BUILD=${BUILD:-build}
export OMP_NUM_THREADS=1 WINEDEBUG=-all
passed=0 failed=0
root=$PWD
case $BUILD in /*) ;; *) BUILD=$root/$BUILD ;; esac
jem=$BUILD/jem exe=$BUILD/windows/jem.exe dir=$BUILD/windows_test
${MAKE:-make} -s windows >"$BUILD/windows.txt" 2>&1 ||
    { tail -n 8 "$BUILD/windows.txt"; echo "0 passed, 1 failed"; exit 1; }
rm -rf "$dir"
mkdir -p "$dir/here" "$dir/there" && cd "$dir" || exit 1
for side in here there; do ln -s "$root/examples" $side/examples; done
digit=examples/models/mnist.safetensors

# check NAME COMMAND...: the command succeeds.
check() {
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1))
    echo "FAILED $name"
    tail -n 4 here.txt there.txt
}
# A program that Wine does not even start (it may still be shutting down from the one before) is
# tried again.
windows() { windows_input /dev/null "$@"; }
windows_input() {
    input=$1
    shift
    for again in 1 2 3; do
        (cd there && exec wine "$exe" "$@") >there.raw 2>&1 <"$input"
        is=$?
        [ -s there.raw ] && break
        sleep 3
    done
    # Wine may report itself; rates and durations differ.
    grep -v '^wine: ' there.raw | tr -d '\r' >there.txt
    return $is
}
# status N ARGUMENTS...: both exit with N.
status() {
    want=$1
    shift
    (cd here && exec "$jem" "$@") >here.txt 2>&1 </dev/null
    check "here: status $want: $*" test $? = "$want"
    windows "$@"
    check "Windows: status $want: $*" test $? = "$want"
}
# same N ARGUMENTS...: both exit with N, and print the same.
same() {
    status "$@"
    check "the same output: $*" cmp here.txt there.txt
}
# The arrays of a network; the header before them has the duration of the run.
same_arrays() {
    for side in here there; do tail -c 400000 "$side/$1" >$side/arrays; done
    check "the same arrays: $1" cmp here/arrays there/arrays
}
same_file() { check "the same file: $1" cmp "here/$1" "there/$1"; }

same 0 classify $digit examples/data/seven.png
windows classify 'examples\models\mnist.safetensors' 'examples\data\seven.png'
check "the same output with backslashes" cmp here.txt there.txt
status 0 classify $digit examples/data --out classes.csv
same_file classes.csv
same 2 classify
same 1 classify $digit no.png
same 2 sample $digit --out no.txt
same 0 sample $digit --n 4 --steps 6 --fresh-steps 6 --out 'ä 漢.png' --threads 1
same_file 'ä 漢.png'

train="--threads 1 --eval-every 4 --n-valid 200"
status 0 train --dataset digits --out runs/a/ --iters 6 $train
status 0 train --resume runs/a/ --iters 9
for name in best.safetensors samples.png samples_film.png; do same_file runs/a/$name; done
for side in here there; do cut -d, -f1-5 $side/runs/a/log.csv >$side/log.csv; done     # without times
same_file log.csv
same 2 train --dataset digits --out runs/a
same 0 eval runs/a/last.safetensors --threads 1
same 2 export runs/a/best.safetensors runs/a/last.safetensors
same 0 export runs/a/last.safetensors copy.safetensors
same_arrays copy.safetensors
same 2 export copy.safetensors ./runs/../copy.safetensors
rm -r here/runs/a && cp -r there/runs/a here/runs/a
status 0 train --resume runs/a --iters 10
status 0 export runs/a/last.safetensors continued.safetensors
same_arrays continued.safetensors
rm -r there/runs/a && cp -r here/runs/a there/runs/a
status 0 train --resume runs/a --iters 11
status 0 export runs/a/last.safetensors again.safetensors
same_arrays again.safetensors

awk 'BEGIN {
    srand(3)
    for (i = 0; i < 900; i++) { u = rand(); printf "%.3f,%.3f\r\n", u, 2 * u + .1 * rand() }
}' >here/table.csv
cp here/table.csv there/
status 0 train table.csv --iters 60 --threads 1
same_file runs/table/best.safetensors
status 0 score runs/table/best.safetensors table.csv --out scores.csv
same_file scores.csv
printf '1,2\n' >row.csv
windows_input row.csv score runs/table/best.safetensors -
check "score -: rows from standard input" grep '^1,' there.txt

for side in here there; do
    mkdir -p "$side/my pictures/ö" "$side/my pictures/b"
    for i in 1 2 3 4 5; do
        cp "$root/examples/data/seven.png" "$side/my pictures/ö/$i.PNG"
        cp "$root/examples/gallery/glance.png" "$side/my pictures/b/$i.png"
    done
done
status 0 train --dataset 'my pictures' --size 28 --crop --iters 2 --threads 1 --n-valid 0 --out runs/own
status 0 export runs/own/last.safetensors own.safetensors
same_arrays own.safetensors
status 0 report runs/a --minutes .05 --threads 1 --out page.html
check "the page is complete" grep -q '</html>' there/page.html
check "no temporary file is left" sh -c "! find there -name '*tmp*' | grep -q ."
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
