#!/bin/sh
# Does training in bf16 follow fp32? The same recipe on MNIST, three seeds of each, drawn into
# build/bf16.png. UPDATES=300 by default; about a minute per run on one core.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}
updates=${UPDATES:-300}
tools/get-data mnist
for seed in 1 2 3; do
    for precision in exact bf16; do
        rm -rf "$build/bf16/$precision$seed"
        "$build/jem" train --dataset mnist --iters "$updates" --precision $precision --seed $seed \
            --sigma .03 --print-every 5 --n-valid 500 --out "$build/bf16/$precision$seed" \
            >"$build/bf16.log" 2>&1 || { tail -n 3 "$build/bf16.log"; exit 1; }
        if grep "this processor .*--precision fast" "$build/bf16.log"; then exit 1; fi  # ran in fp32
        echo "$precision, seed $seed: $(tail -n 1 "$build/bf16.log")"
    done
done
"$build/runs_chart" "$build/bf16.png" "MNIST: cross-entropy, three seeds each" ce \
    fp32 "$build/bf16/exact1" "$build/bf16/exact2" "$build/bf16/exact3" -- \
    bf16 "$build/bf16/bf161" "$build/bf16/bf162" "$build/bf16/bf163"
echo "$build/bf16.png"
