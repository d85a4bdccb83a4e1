#!/bin/sh
# Does every part of a recipe earn its place? A row per change of the fast preset, all of the same
# processor time, two seeds each (tools/seeds.sh), for the tables in examples/models/README.md.
#     tools/recipes.sh DATASET SECONDS [OPTIONS OF jem train]   SEEDS="1 2"; ROWS="NAME..." for some
# How many updates fit into the time is measured first, so begin on a quiet machine; everything is
# kept in build/seeds, and what is there is not run again.
set -u
cd "$(dirname "$0")/.." || exit 1
[ $# -ge 2 ] || { echo "tools/recipes.sh DATASET SECONDS [OPTIONS OF jem train]"; exit 2; }
build=${BUILD:-build} dataset=$1 seconds=$2
shift 2
dir=$build/seeds
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
mkdir -p "$dir"

# name | what is changed
case $dataset in
cifar10) half=6e-4 twice=2.4e-3 weak=.001 strong=.01 other=--no-class-cond-p-x-sample ;;
mnist) half=7.5e-4 twice=3e-3 weak=.005 strong=.05 other=--class-cond-p-x-sample ;;
*) half=7.5e-4 twice=3e-3 weak=.005 strong=.05 other=--no-class-cond-p-x-sample ;;
esac
rows() {
    cat <<END
preset|
no-chains|--p-x-weight 0 --no-class-cond-p-x-sample
chains-from-half|--chains-from .5
chains-from-start|--chains-from 0
chains-from-noise|--fresh-steps 0
other-chains|$other
cd-alone|--score-weight 0 --scale 1 --p-x-weight .1 --label-noise 0 --label-wide 0 --sigma .03 \
--p-y-given-x-weight 1 --chains-from 0 --fresh-steps 0 --sgld-lr 1 --sgld-std .01 --buffer-size 1000
scale-3|--scale 3
scale-30|--scale 30
noise-from-.05|--noise-lo .05 --sigma .05
noise-to-1|--noise-hi 1
noise-to-4|--noise-hi 4
weak-score|--score-weight $weak
strong-score|--score-weight $strong
lr-half|--lr $half
lr-twice|--lr $twice
no-wide-labels|--label-wide 0
fp32|--precision fast
END
}

# Processor seconds of a run.
cost() {
    ("$build/jem" train --preset fast --dataset "$dataset" --n-valid 0 --out "$dir/try" "$@" \
        >"$dir/try.log" 2>&1; times) |
        awk 'NR == 2 { gsub(/[ms]/, " "); print 60 * $1 + $2 + 60 * $3 + $4 }'
}

rows | while IFS='|' read -r name options; do
    case " ${ROWS:-$name} " in *" $name "*) ;; *) continue ;; esac
    length=$dir/$dataset-$name.updates
    # shellcheck disable=SC2086
    if [ ! -s "$length" ]; then
        rm -rf "$dir/try"
        short=$(cost "$@" $options --iters 20)
        rm -rf "$dir/try"
        long=$(cost "$@" $options --iters 220)
        awk -v s="$seconds" -v a="$short" -v b="$long" \
            'BEGIN { if (b > a) print int(200 * s / (b - a)) }' >"$length"
    fi
    if [ ! -s "$length" ]; then echo "$name: failed"; tail -n 3 "$dir/try.log"; continue; fi
    echo "$name, $(cat "$length") updates"
    # shellcheck disable=SC2086
    SEEDS=${SEEDS:-1 2} NAME=$dataset-$name sh tools/seeds.sh "$dataset" "$@" $options \
        --iters "$(cat "$length")"
done
rm -rf "$dir/try"
