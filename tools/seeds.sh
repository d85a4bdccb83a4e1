#!/bin/sh
# Does it depend on luck? The same training from seed after seed, a line each: accuracy on test
# images, -log p(y|x), how often the run had to go back (or that it gave up), and what a judge says
# of 200 samples.
#     tools/seeds.sh DATASET [OPTIONS OF jem train]    SEEDS="1 2 3"; `demo` is `make demo`'s run
# Lines are kept in build/seeds/DATASET.txt, below what was asked: a seed that has one there is not
# run again, and results of another command go under another name, KEPT=NAME. JUDGE="..." are
# further options for the judge's samples; JUDGE=none: no samples.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build} dataset=${1:-demo} seeds=${SEEDS:-1 2 3}
[ $# -gt 0 ] && shift
name=$(echo "${KEPT:-$dataset}" | tr / _) dir=$build/seeds failed=0
table=$dir/$name.txt asked="$dataset${*:+ $*}"
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
mkdir -p "$dir"
[ -s "$table" ] || echo "$asked" >"$table"
if [ "$(head -n 1 "$table")" != "$asked" ]; then
    echo "$table is of '$(head -n 1 "$table")', not of '$asked': KEPT=NAME keeps these elsewhere"
    exit 1
fi

# What 200 samples look like to a judge, if there is one for these images; nothing if there is none.
judged() {
    kind=$dataset
    [ "$kind" = demo ] && kind=mnist
    [ "${JUDGE:-}" != none ] && [ -f "examples/models/judge-$kind.safetensors" ] || return 0
    # shellcheck disable=SC2086
    told=$("$build/jem" eval "$1" samples --dataset "$kind" --n 200 --out "$out.png" ${JUDGE:-} \
        2>>"$log") || return 1
    echo "$told" |
        awk '$1 == "from" && $2 == "noise" { print "of " $3 " samples " $4 " recognised, " $5 \
            " of the class asked for" }'
}

# If training is interrupted, this script stops, too; a run that gave up counts as a result.
trained() {
    "$@" >"$log" 2>&1
    status=$?
    [ $status -gt 128 ] && exit $status
    [ $status = 0 ] && return 0
    if tail -n 1 "$log" | grep -q "has already rolled back"; then echo "seed $seed: gave up" >>"$table"
    else failed=1; echo "seed $seed: failed"; tail -n 3 "$log"
    fi
    return 1
}

for seed in $seeds; do
    grep -q "^seed $seed: " "$table" && continue
    out=$dir/$name-$seed log=$dir/$name-$seed.log
    rm -rf "$out"
    if [ "$dataset" = demo ]; then
        trained "$build/demo" --seed "$seed" || continue
        cp build/digits.safetensors "$out.safetensors"
        said=$(sed -n 's/^trained in .* s, \(rollbacks: [0-9]*\); held-out \(.*\)/\2; \1/p' "$log")
    else
        trained "$build/jem" train --preset fast --dataset "$dataset" --seed "$seed" --out "$out" \
            "$@" || continue
        "$build/jem" export "$out/last.safetensors" "$out.safetensors" >>"$log" 2>&1 || {
            failed=1
            echo "seed $seed: cannot be exported"
            continue
        }
        said=$(sed -n 's/^trained in .*test images: //p' "$log")
    fi
    [ -n "$said" ] || said="trained, and there are no test images"
    if ! seen=$(judged "$out.safetensors"); then
        echo "seed $seed: its samples are not judged:"
        tail -n 1 "$log"
    fi
    echo "seed $seed: $said; $seen" | sed 's/; $//' >>"$table"
done
cat "$table"
exit $failed
