#!/bin/sh
# Does every part of a recipe earn its place? A row per change of the fast preset, all of the same
# processor time, two seeds each (tools/seeds.sh), for the tables in examples/models/recipes.md.
#     tools/recipes.sh DATASET SECONDS [OPTIONS OF jem train]   SEEDS="1 2"; ROWS="NAME..." for some
# 80 s for MNIST and Fashion-MNIST, 600 s for CIFAR-10, whose updates are slow.
# The preset's row says how many updates fit into the time; a row of other work (*) is timed
# in turns with the preset, so that changes in the machine's speed favour neither; a row that costs
# as much as zero-2-half (=) makes as many updates. Everything is kept in build/seeds, and what is
# there is not run again.
set -u
export LC_ALL=C                                     # numbers in the output of times
cd "$(dirname "$0")/.." || exit 1
[ $# -ge 2 ] || { echo "tools/recipes.sh DATASET SECONDS [OPTIONS OF jem train]"; exit 2; }
build=${BUILD:-build} dataset=$1 seconds=$2
shift 2
dir=$build/seeds data=$(echo "$dataset" | tr / _)
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
mkdir -p "$dir"
asked=$dir/$data.asked
[ -s "$asked" ] || echo "$seconds s $*" >"$asked"
if [ "$(cat "$asked")" != "$seconds s $*" ]; then
    echo "$dir has rows of '$(cat "$asked")', not of '$seconds s $*': BUILD=DIR, or remove them"
    exit 1
fi

# name, * or = where an update costs something else | what is changed
noise="noise-from-.05|--noise-lo .05 --sigma .05" gap=3000
case $dataset in
cifar10) half=7.5e-4 twice=3e-3 weak=.001 strong=.01 other=--no-class-cond-p-x-sample
    noise="noise-from-.12|--noise-lo .12 --sigma .1" ;;
mnist) half=2.5e-3 twice=1e-2 weak=.005 strong=.05 other=--no-class-cond-p-x-sample gap=100 ;;
*) half=1.5e-3 twice=6e-3 weak=.005 strong=.05 other=--no-class-cond-p-x-sample ;;
esac
rows() {
    cat <<END
preset|
no-chains*|--p-x-weight 0 --no-class-cond-p-x-sample
chains-from-half*|--chains-from .5
chains-from-start*|--chains-from 0
chains-from-noise*|--fresh-steps 0
other-chains*|$other
cd-alone*|--score-weight 0 --scale 1 --p-x-weight .1 --label-noise 0 --label-wide 0 --sigma .03 \
--p-y-given-x-weight 1 --chains-from 0 --fresh-steps 0 --sgld-lr 1 --sgld-std .01 \
--buffer-size 1000 --max-gap $gap
scale-3|--scale 3
scale-30|--scale 30
$noise
noise-to-1|--noise-hi 1
noise-to-4|--noise-hi 4
weak-score|--score-weight $weak
strong-score|--score-weight $strong
lr-half|--lr $half
lr-twice|--lr $twice
no-wide-labels|--label-wide 0
fp32*|--precision fast
END
    [ "$dataset" = cifar10 ] && networks
}
# Networks of .2 to 2.6 million parameters, with the optimiser that suits them. The preset is
# zero-2-half with a width of 3, half of Muon's rate, and weight decay, which these rows lack. Rows
# named half have 16 images for the score; others have 32, or 8 (few). The rows after zero-2-half
# change one option of it.
networks() {
    wrn="--net wrn --depth 10 --head pooled --p-x-batch 32"
    muon="--optimizer muon --lr 3e-3 --weight-decay 0"
    adam="--optimizer adam --lr 1.2e-3"
    unet="--blocks zero --unet --scale 1 --max-gap 3000" other="--no-unet --scale 10 --guidance 3"
    zero="$wrn --width 2 --blocks zero $other $muon --p-x-batch 16"
    convnet="--net convnet --widths 32,96,192,256 --scale 10 --p-x-batch 32"
    cat <<END
convnet*|$convnet $adam
convnet-muon*|$convnet $muon
wrn-2*|$wrn --width 2 --blocks wrn $other $adam
zero-2*|$wrn --width 2 --blocks zero $other $muon
zero-2-half*|$zero
shift-0=|$zero --shift 0
shift-2=|$zero --shift 2
warmup-0=|$zero --warmup-iters 0
warmup-200=|$zero --warmup-iters 200
batch-128*|$zero --batch-size 128
depth-16*|$zero --depth 16
unet-2-adam*|$wrn --width 2 $unet $adam
unet-1*|$wrn --width 1 $unet $muon
unet-2*|$wrn --width 2 $unet $muon
unet-4*|$wrn --width 4 $unet $muon
unet-2-few*|$wrn --width 2 $unet $muon --p-x-batch 8
unet-2-half*|$wrn --width 2 $unet $muon --p-x-batch 16
unet-3-half*|$wrn --width 3 $unet $muon --lr 1.5e-3 --p-x-batch 16
END
}

# Processor seconds of a run; then what a run costs apart from its updates (chains must begin
# somewhere), and an update: of two tries the faster.
cost() {
    rm -rf "$dir/try"
    ("$build/jem" train --preset fast --dataset "$dataset" --n-valid 0 --out "$dir/try" "$@" \
        >"$dir/try.log" 2>&1; times) |
        awk 'NR == 2 { gsub(/[ms]/, " "); print 60 * $1 + $2 + 60 * $3 + $4 }'
}
costs() {
    for try in 1 2; do echo "$(cost "$@" --iters 20) $(cost "$@" --iters 220)"; done |
        awk 'NR == 1 || $1 < short { short = $1 } NR == 1 || $2 < long { long = $2 }
            END { if (long > short) print short - (long - short) / 10, (long - short) / 200 }'
}

rm -f "$dir/failed"
rows | while IFS='|' read -r name options; do
    work=${name#"${name%?}"} name=${name%[*=]}
    case " preset ${ROWS:-$name} " in *" $name "*) ;; *) continue ;; esac
    length=$dir/$data-$name.updates first=$dir/$data-preset.updates
    [ "$work" = "=" ] && first=$dir/$data-zero-2-half.updates
    # shellcheck disable=SC2086
    if [ -s "$length" ]; then :
    elif [ "$name" = preset ]; then
        echo "$seconds $(costs "$@")" |
            awk 'NF == 3 && $1 > $2 { print int(($1 - $2) / $3) }' >"$length"
    elif [ "$work" = "*" ]; then
        echo "$(cat "$first") $(costs "$@") $(costs "$@" $options)" |
            awk 'NF == 5 && $2 + $1 * $3 > $4 { print int(($2 + $1 * $3 - $4) / $5) }' >"$length"
    else cp "$first" "$length"
    fi
    if [ ! -s "$length" ]; then
        echo "$name: failed"
        tail -n 3 "$dir/try.log"
        touch "$dir/failed"
        continue
    fi
    echo "$name, $(cat "$length") updates"
    # shellcheck disable=SC2086
    SEEDS=${SEEDS:-1 2} KEPT=$data-$name sh tools/seeds.sh "$dataset" "$@" $options \
        --iters "$(cat "$length")" || exit
done || exit
rm -rf "$dir/try"

echo
echo "| | updates | accuracy | -log p(y\\|x) | recognised, of the class | rollbacks |"
echo "| --- | --: | --: | --: | --: | --: |"
rows | while IFS='|' read -r name options; do
    name=${name%[*=]}
    [ -s "$dir/$data-$name.txt" ] &&
        awk -v name="$name" -v updates="$(cat "$dir/$data-$name.updates")" '
            function after(word) {
                if (!match($0, word " [0-9.]+")) return "-"
                return substr($0, RSTART + length(word) + 1, RLENGTH - length(word) - 1)
            }
            /^seed / {
                right = right " " after("accuracy"); nll = nll " " after("y.x.")
                back = back " " (/gave up/ ? "gave up" : after("retries:"))
                sub(/.* samples /, "are ")
                seen = seen ", " after("are"); sub(/.* recognised,/, "of")
                seen = seen " " after("of")
            }
            END { print "| " name " | " updates " |" right " |" nll " | " substr(seen, 3) " |" \
                back " |" }' "$dir/$data-$name.txt"
done
[ ! -e "$dir/failed" ]
