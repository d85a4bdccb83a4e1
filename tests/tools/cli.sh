#!/bin/sh
# The command line, end to end: runs build/jem on the digits that ship. Says what failed, and ends
# with the line `N passed, N failed`.
BUILD=${BUILD:-build}
export OMP_NUM_THREADS=1
passed=0 failed=0
root=$PWD dir=$PWD/$BUILD/cli
case $BUILD in /*) jem=$BUILD/jem dir=$BUILD/cli ;; *) jem=$root/$BUILD/jem ;; esac
[ -x "$jem" ] || { echo "$jem is not there"; echo "0 passed, 1 failed"; exit 1; }
rm -rf "$dir"
mkdir -p "$dir/data" && cd "$dir" || exit 1
ln -s "$root/examples" examples

ok() { passed=$((passed + 1)); }
not_ok() {
    failed=$((failed + 1))
    echo "FAILED $1"
    for f in out err; do tail -n 3 $f | cut -c 1-300; done
}
# check NAME COMMAND...: the command succeeds.
check() {
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then ok; else not_ok "$name"; fi
}
# status N NAME ARGUMENTS...: jem exits with N; what it says is in out and err.
status() {
    want=$1 name=$2
    shift 2
    "$jem" "$@" >out 2>err </dev/null
    is=$?
    if [ $is = "$want" ]; then ok; else not_ok "$name: status $is, not $want: jem $*"; fi
}
# refuses N PATTERN ARGUMENTS...: status N, one line on stderr that has the pattern, and no folder.
refuses() {
    want=$1 pattern=$2
    shift 2
    rm -rf new
    status "$want" "$pattern" "$@"
    if [ "$(wc -l <err)" = 1 ] && grep -q -e "$pattern" err
    then ok; else not_ok "says: $pattern"; fi
    check "$pattern: leaves nothing" test ! -e new
}
says() { if grep -q -e "$1" out; then ok; else not_ok "says: $1"; fi; }

# The numbers of a safetensors file, without its header; and the header without what may differ.
numbers() { tail -c +$(($(od -A n -t u8 -N 8 "$1") + 9)) "$1"; }
header() {
    head -c $(($(od -A n -t u8 -N 8 "$1") + 8)) "$1" | tail -c +9 |
        sed 's/"run.seconds":"[0-9.]*",*//; s/"train.threads":"[0-9]*",*//; s/ *$//'
}
same_run() {                            # all but the time it took
    for file in last best; do
        for part in numbers header; do
            $part "$1/$file.safetensors" >part1
            $part "$2/$file.safetensors" >part2
            [ -s part1 ] || return 1    # two that are missing are not one run
            cmp part1 part2 || return 1
        done
    done
    sed 's/,[^,]*$//' "$1/log.csv" >part1
    sed 's/,[^,]*$//' "$2/log.csv" >part2
    [ -s part1 ] && cmp part1 part2
}
# differs A B: both are there.
differs() { [ -s "$1" ] && [ -s "$2" ] && { cmp -s "$1" "$2"; [ $? = 1 ]; }; }
# rises LOG: has rows, each of a later update than the one before.
rises() {
    cut -d, -f1 "$1" | tail -n +2 >part1
    [ -s part1 ] && sort -n -u -c part1
}
height() { od -A n -t u1 -j 22 -N 2 "$1" | awk '{ print $1 * 256 + $2 }'; }
is_png() { [ "$(head -c 4 "$1" | tail -c 3)" = PNG ] && [ "$(wc -c <"$1")" -gt "${2:-500}" ]; }

small="--threads 1 --batch-size 32 --n-steps 3 --buffer-size 100 --negatives 16 --n-valid 100"
small="$small --print-every 5 --warmup-iters 0 --reinit-freq .05 --ema 0"
tiny="$small --widths 8,16"

echo "help and bad usage"
status 0 "help" help; says "jem train"
status 0 "help of a command" help train; says "^jem train \[OPTIONS\]"
refuses 2 "unknown command nonsense" help nonsense
for command in train sample classify score eval info export; do
    status 0 "$command --help" $command --help
    says "jem $command"
done
for arguments in "--help --dataset cifar10" "--dataset cifar10 --help"; do
    status 0 "train $arguments" train $arguments
    says "14400 "
    says "^  --weight-decay X  *0  *\.2 "
done
status 0 "another optimiser" train --dataset cifar10 --optimizer adam --help
says "^  --weight-decay X  *0  *0 "
status 0 "the preset's" train --dataset cifar10 --optimizer muon --help
says "^  --weight-decay X  *0  *\.2 "
status 2 "no command"
refuses 2 "unknown command nonsense" nonsense
set -- --out new
refuses 2 "unknown option --nonsense" train --nonsense 1 "$@"
refuses 2 "unknown option -x" train -x "$@"
refuses 2 "unexpected 'word'" train word "$@"
refuses 2 "unexpected 'digits': the data set is mnist already" train digits --dataset mnist "$@"
refuses 2 "needs a value" train --lr
refuses 2 "resume has an empty value" train --resume "" "$@"
refuses 2 "unknown option --no-flip" train --no-flip=on "$@"
refuses 2 "use --out DIR" train --dataset ..
refuses 2 "not UTF-8" train --dataset "$(printf 'tw\377')" "$@"
refuses 2 "lr 1e-3x: a number" train --lr 1e-3x "$@"
refuses 2 "lr 0: a number" train --lr 0 "$@"
refuses 2 "lr nan: a number" train --lr nan "$@"
refuses 2 "iters 1.5: a whole number" train --iters 1.5 "$@"
refuses 2 "seed 99999999999: a whole number" train --seed 99999999999 "$@"
refuses 2 "choose from adam|sgd" train --optimizer adamw "$@"
refuses 2 "a list of 1 to 8 numbers from 1 to 4096" train --widths 8,x "$@"
refuses 2 "both set the length" train --epochs 3 --iters 3 "$@"
refuses 2 "must be above 0" train --iters 0 "$@"
refuses 2 "6k + 4" train --net wrn --depth 11 "$@"
refuses 2 "is for --net wrn" train --net convnet --norm batch "$@"
refuses 2 "is for --net convnet" train --net wrn --widths 8 "$@"
refuses 2 "nothing to learn" train --p-x-weight 0 --p-y-given-x-weight 0 "$@"
refuses 2 "crop, --pad and --stretch need --size" train --crop "$@"
refuses 2 "crop, --pad and --stretch exclude" train --size 8 --crop --pad "$@"
refuses 2 "crop, --pad and --stretch exclude" train --size 8 --pad --stretch "$@"
refuses 2 "sam excludes" train --sam 1 --score-weight 1 "$@"
refuses 2 "kl-weight needs" train --kl-weight 1 --n-steps 0 "$@"
refuses 2 "p-x-y-weight needs" train --p-x-y-weight 1 --label-wide .5 "$@"
refuses 2 "needs two images" train --informative 1 "$@"
refuses 2 "informative excludes" train --informative 5 --fresh-steps 5 "$@"
refuses 2 "uncond has no p(x,y)" train --uncond --class-cond-p-x-sample "$@"
refuses 2 "multiple of the number of classes" train --class-cond-p-x-sample --buffer-size 101 "$@"
refuses 2 "n-valid 9000 of 9000" train --n-valid 9000 "$@"
refuses 2 "batch-size 9000 is more" train --batch-size 9000 "$@"
refuses 2 "labels-per-class 5000: class" train --labels-per-class 5000 "$@"
refuses 2 "shift must be smaller" train --shift 28 "$@"
refuses 2 "cutout must not be larger" train --cutout 29 --batches separate "$@"
refuses 2 "cutout needs --batches separate" train --cutout 8 "$@"
refuses 2 "layers = 8: too many: the images are too small" train --widths 8,8,8,8,8,8,8,8 "$@"
refuses 2 "out starts a new run" train --resume somewhere "$@"
refuses 2 "init starts a new run" train --resume somewhere --init something
refuses 2 "jem sample MODEL" sample
refuses 2 "jem classify MODEL PICTURE" classify model.safetensors
refuses 2 "jem info FILE" info
refuses 2 "jem export FROM TO" export one

echo "files that are not there, or not what they should be"
head -c 3000 /dev/urandom >noise.safetensors
refuses 1 "run tools/get-data mnist" train --dataset mnist "$@"
refuses 1 "nowhere" train --dataset ./nowhere "$@"
refuses 1 "nowhere/last.safetensors: cannot be opened" train --resume nowhere
mkdir none
refuses 2 "none: is not the folder of a run: it has no last.safetensors" train --resume none/
refuses 1 "not a safetensors file" train --init noise.safetensors "$@"
refuses 1 "not a safetensors file" sample noise.safetensors --out new
refuses 1 "cannot be opened" eval nowhere.safetensors
refuses 2 "jem eval: unexpected 'calibraton'; usage: jem eval MODEL " eval nowhere.safetensors \
    calibraton
refuses 1 "cannot be read" info examples
refuses 1 "not a safetensors file" export noise.safetensors new
refuses 1 "cannot be created: Not a directory" train $tiny --iters 5 --out noise.safetensors/a

echo "an interrupted run and a whole one are the same"
status 0 "a whole run" train --dataset digits --iters 80 $small --out a
says "80/80"
accuracy=$(sed -n 's/.*accuracy \([0-9.]*\)%, -log.*/\1/p' out)
check "it learns: $accuracy%" test "${accuracy%.*}" -gt 60
trained=$(sed -n 's/.*\(accuracy .*\); retries.*/\1/p' out)
status 0 "the same, stopped" train --dataset digits --iters 80 $small --stop-at 40 --out b
says "to continue: jem train --resume b"
status 0 "in a folder with a blank" train --dataset digits --iters 80 $small --stop-at 1 --out "b c"
says "to continue: jem train --resume 'b c'"
refuses 1 "run DATA='it'.''s data' tools/get-data mnist" train --dataset mnist --data "it's data"
status 0 "and resumed" train --resume b
says "resuming after update 40"
check "80 = 40 + 40" same_run a b
for file in curves.png samples.png samples_film.png; do
    check "$file" is_png a/$file
    check "$file, resumed" cmp a/$file b/$file
done
check "a row per report" test "$(grep -c '^[0-9]' a/log.csv)" = 16
status 0 "eval" eval a/last.safetensors --threads 1
says "digits, test, 1000 images: ${trained:-nothing}"
# $1: options; 20 updates at once, and stopped twice
again() {
    rm -rf c d
    status 0 "whole: $1" train $small --iters 20 $1 --out c
    status 0 "stopped: $1" train $small --iters 20 $1 --stop-at 7 --out d
    status 0 "stopped again: $1" train --resume d --stop-at 16 --threads 2
    status 0 "resumed: $1" train --resume d
    check "the same: $1" same_run c d
}
again "--widths 8,16 --ema .9 --labels-per-class 5 --flip --seed 3"
says "50 labels"
again "--widths 8,8 --p-x-weight 0 --score-weight .01 --p-x-batch 24 --shift 0 --n-valid 2000
       --guidance 40 --sample-steps 70 --sample-fraction .3 --sample-last-sigma .2"
status 0 "info of a run with a sampler" info d/last.safetensors
says "guidance   40 log p(y|x)"
says "70 noise-blind steps that remove 0.3 of the noise"
says "last step  of a sample removes noise of at most 0.2"
# a data set of 40 grey images in the format of MNIST, whose preset has a sampler
mkdir -p grey/mnist
for part in train t10k; do
    { printf '\0\0\10\3\0\0\0\50\0\0\0\34\0\0\0\34'
      head -c 31360 /dev/zero | tr '\0' U; } >grey/mnist/$part-images-idx3-ubyte
    { printf '\0\0\10\1\0\0\0\50'
      for ten in 1 2 3 4; do printf '\0\1\2\3\4\5\6\7\10\11'; done
    } >grey/mnist/$part-labels-idx1-ubyte
done
short="--dataset mnist --data grey --n-valid 10 --iters 1 --batch-size 8 --p-x-weight 0 --threads 1"
status 0 "a preset with a sampler" train $short --out preset
status 0 "its info" info preset/last.safetensors
says "guidance   5 log p(y|x)"
says "150 noise-blind steps that remove 0.4 of the noise"
status 0 "another network" train $short --net wrn --depth 10 --width 1 --stem-stride 4 --out other
status 0 "its info" info other/last.safetensors
check "stores no sampler" sh -c "! grep -q -e guidance -e noise-blind out"
status 0 "no score" train $short --score-weight 0 --scale 10 --out unscored
status 0 "its info" info unscored/last.safetensors
check "stores no sampler either" sh -c "! grep -q -e guidance -e noise-blind out"
status 0 "another scale, its own guidance" train $short --scale 5 --guidance 3 --out rescaled
status 0 "its info" info rescaled/last.safetensors
says "guidance   3 log p(y|x)"
check "no other part of a sampler" sh -c "! grep -q noise-blind out"
again "--net wrn --width 1 --stem-stride 4 --norm act --dropout-rate .1 --batches separate"
again "--net wrn --width 1 --stem-stride 4 --norm batch --head pooled --warmup-iters 5 --size 20"
again "--widths 8 --optimizer sgd --class-cond-p-x-sample --p-x-y-weight .1 --schedule steps
       --decay-epochs 1 2 --clf-only"
again "--widths 8,8 --kl-weight .3 --sam .1 --informative 20 --move-chains .5 --plain-p-x
       --cutout 8"
again "--widths 8,8 --kl-weight .3 --entropy 0 --class-cond-p-x-sample --spectral-norm 1.5
       --clamp-grad .5 --ema .9 --informative 5"
again "--widths 8,8 --uncond --energy-l2 .01 --weight-decay 1e-3 --precision exact"
again "--widths 8,8 --score-weight .016 --scale 10 --label-noise .3 --label-wide .5
       --chains-from .4 --chains-lr 1e-4 --fresh-steps 5 --reinit-freq .2 --sgld-lr .01 --sgld-std .1
       --class-cond-p-x-sample"
status 0 "info of a score" info d/last.safetensors
says "of noise 0.12 to 2, log p(x) = 10 logsumexp f(x)"
status 0 "its samples" sample d/last.safetensors --n 20 --steps 3 --fresh-steps 4 --class all \
    --out f1.png --chains f2.png
says "20 samples after 7 steps from noise"
status 0 "more guidance" sample d/last.safetensors --n 20 --steps 3 --fresh-steps 4 --class all \
    --out f3.png --guidance 50
status 0 "export with guidance" export d/last.safetensors guided.safetensors --guidance 50
status 0 "its information" info guided.safetensors
says "guidance   50 log p(y|x)"
status 0 "guided by itself" sample guided.safetensors --n 20 --steps 3 --fresh-steps 4 --class all \
    --out f4.png
check "the guidance of the file" cmp -s f3.png f4.png
status 0 "larger steps" sample d/last.safetensors --n 20 --steps 3 --fresh-steps 4 --class all \
    --out f5.png --fraction .3
check "they have an effect" differs f1.png f5.png
status 0 "a draft" sample d/last.safetensors --n 4 --draft --out draft.png
says "4 samples after 60 steps from noise"
status 0 "its steps" sample d/last.safetensors --n 4 --fresh-steps 15 --fraction .3 --steps 45 \
    --out steps.png
check "are the same" cmp -s draft.png steps.png
status 0 "fewer" sample d/last.safetensors --n 4 --draft --steps 3 --out steps.png
says "4 samples after 18 steps from noise"
refuses 2 "draft is for --from noise" sample d/last.safetensors --draft --from buffer --out new
status 0 "export with a sampler" export d/last.safetensors sampler.safetensors --fresh-steps 4 \
    --fraction .3
status 0 "its sampler" info sampler.safetensors
says "samples    4 noise-blind steps that remove 0.3 of the noise"
status 0 "larger steps by itself" sample sampler.safetensors --n 20 --steps 3 --class all --out f6.png
says "20 samples after 7 steps from noise"
check "the sampler of the file" cmp -s f5.png f6.png
status 0 "other steps than its own" sample sampler.safetensors --n 20 --steps 3 --class all \
    --out f6.png --fraction .05
check "the options count" cmp -s f1.png f6.png
status 0 "a smaller last step" sample d/last.safetensors --n 20 --steps 3 --fresh-steps 4 \
    --class all --out f7.png --last-sigma .05
check "it has an effect" differs f1.png f7.png
status 0 "export with a last step" export d/last.safetensors last.safetensors --last-sigma .05
status 0 "its information" info last.safetensors
says "last step  of a sample removes noise of at most 0.05"
status 0 "the last step by itself" sample last.safetensors --n 20 --steps 3 --fresh-steps 4 \
    --class all --out f8.png
check "the last step of the file" cmp -s f7.png f8.png
refuses 2 "last-sigma is for --steps N" sample d/last.safetensors --n 20 --from buffer --last-sigma .1 \
    --out new
refuses 2 "an ONNX graph has no sampler: leave out --last-sigma" export d/last.safetensors new.onnx \
    --onnx --last-sigma .1
for file in f1.png f2.png; do check $file is_png $file 100; done
check "it has an effect" differs f1.png f3.png

echo "what may change when a run goes on"
sums() { sed -n 's/.*\(accuracy .*\); retries.*/\1/p' out; }
status 0 "averaged weights" train $small --widths 8,8 --iters 20 --ema .9 --sgld-lr .01 --out step
averaged=$(sums)
at=$(header step/last.safetensors | grep -o '"run.state":{[^}]*}' | grep -o 's":\[[0-9]*' |
    grep -o '[0-9]*$')
printf '\000\000\000\077' | dd of=step/last.safetensors bs=1 conv=notrunc 2>/dev/null \
    seek=$(($(od -A n -t u8 -N 8 step/last.safetensors) + 8 + at + 44))
status 0 "half a step is left of them" train --resume step
check "they stay" test "$(sums)" = "${averaged:-none}"
status 0 "then whole ones are asked for" train --resume step --sgld-lr .01
check "they stay, too" test "$(sums)" = "${averaged:-none}"
status 0 "a run without chains" train $small --widths 8,8 --iters 5 --p-x-weight 0 --out plain
check "and so without pictures of them" sh -c '! ls plain | grep -q samples'
status 0 "L_KL alone" train $small --widths 8,8 --iters 3 --p-x-weight 0 --p-y-given-x-weight 0 \
    --kl-weight .1 --out kl
status 0 "in batches of its own" train $small --widths 8,8 --iters 3 --p-x-weight 0 \
    --p-y-given-x-weight 0 --kl-weight .1 --batches separate --out kl2
header plain/last.safetensors | grep -o '"run.validation":"[^"]*"' >before
status 0 "a run that is complete" train --resume plain
header plain/last.safetensors | grep -o '"run.validation":"[^"]*"' >after
check "keeps its validation" sh -c '[ -s before ] && cmp before after'
status 0 "a steep density" train --dataset digits --n-valid 64 --widths 8,8 --iters 1 \
    --p-x-weight 0 --score-weight 1e-6 --scale 1e4 --out steep
check "a wall below the score's noise" grep -q "noise of 0.015 to 0.12, .*a wall" err
check "a remedy" grep -q "noise-lo 0.03 --sigma 0.03 may have none" err
status 0 "a flat one" train --dataset digits --n-valid 64 --widths 8,8 --iters 1 \
    --p-x-weight 0 --score-weight 1e-6 --scale 10 --out flat
check "has no wall" sh -c '! grep -q wall err'
status 0 "a score alone" train $small --widths 8,8 --iters 5 --p-x-weight 0 --score-weight .01 \
    --fresh-steps 5 --out dreams
check "its error is in the log" awk -F, 'END { exit !($15 > .5 && $15 < 1.5 && $16 > .5 && $16 < 1.5) }' \
    dreams/log.csv
check "and is drawn" test "$(height dreams/curves.png)" = 1190
status 0 "chains alone" train $small --widths 8,8 --iters 5 --out chained
check "a panel less" test "$(height chained/curves.png)" = 900
check "have none" sh -c 'tail -n 1 chained/log.csv | cut -d, -f15,16 | grep -qx ","'
status 0 "samples of it" sample dreams/last.safetensors --n 2 --steps 1 --fresh-steps 1 --out s0.png
check "are poor" grep -q "dreams/last.safetensors: .* a score alone, .*: its samples are poor$" err
status 0 "stopped before its chains" train $small --widths 8,8 --iters 20 --score-weight .01 \
    --fresh-steps 5 --chains-from .8 --stop-at 3 --out fresh
status 0 "its buffer" info fresh/last.safetensors
says "buffer     100 chains of (1,28,28), not filled yet: the chains have not begun$"
mkdir early && cp step/last.safetensors early
cp dreams/last.safetensors early/best.safetensors
status 0 "a best one without chains" sample early/best.safetensors --n 2 --steps 1 --fresh-steps 1 \
    --out s0.png
check "names the last one, with chains" grep -q "are poor; use early/last.safetensors$" err
status 0 "samples with chains" sample step/last.safetensors --n 2 --steps 1 --out s0.png
check "have no such note" sh -c "! grep -q poor err"
check "but few images calibrate them" grep -q "^jem sample: 100 images calibrate familiarity" err
check "dreams all the same" sh -c 'ls dreams | grep -q samples_film.png'
check "has no f(x-)" sh -c 'tail -n 1 plain/log.csv | cut -d, -f8 | grep -qx ""'
check "a run with them has" sh -c 'tail -n 1 step/log.csv | cut -d, -f8 | grep -q "[0-9]"'
refuses 2 "batch-size 5: this run has 32" train --resume b --batch-size 5
refuses 2 "already exists: --resume b" train --out b
mkdir kept && cp b/best.safetensors kept && sums=$(md5sum kept/best.safetensors)
refuses 2 "kept/best.safetensors already exists" train --out kept
check "it stays" test "$sums" = "$(md5sum kept/best.safetensors)"
status 0 "longer" train --resume d --iters 22
says "22/22"
status 0 "values again, spelled in other ways" train --resume d/last.safetensors --batch_size=32 \
    --decay-rate 0.3 --widths "8 8"
says "all updates are done"
says "results go to d$"
cp d/last.safetensors done.safetensors
refuses 2 "3 updates requested, but 22 are done" train --resume d --iters 3
check "nothing was written" cmp d/last.safetensors done.safetensors
cp -r d dd
status 0 "a lower rate" train --resume dd --iters 24 --lr 1e-4
status 0 "gentler" train --resume d --iters 24 --lr 1e-4 --sigma .1 --n-steps 2
check "the rate is lower" sh -c 'tail -n 1 d/log.csv | cut -d, -f3 | grep -q "e-0[6-9]"'
loss() { tail -n 1 "$1/log.csv" | cut -d, -f4; }
check "more noise, fewer steps" test "$(loss d)" != "$(loss dd)"
cp b/last.safetensors kept.safetensors

echo "each option has an effect"
# rows NAME OPTIONS: a run's log, without the seconds; of a network of this shape.
shape="--widths 8,8 --iters 15"
rows() {
    to=rows_$1 && shift
    rm -rf told
    status 0 "$*" train $small $shape "$@" --out told
    sed 's/,[^,]*$//' told/log.csv >$to
}
# each BASE OPTION...: a run with BASE alone, and with each of the options; none does nothing.
each() {
    rows base $1
    base=$1 && shift
    for option; do
        rows more $base $option
        check "$base $option" differs rows_base rows_more
    done
}
each "" "--weight-decay 1" "--clip-grad .01" "--reinit-freq 1" "--energy-l2 1" "--clf-only" \
    "--spectral-norm .5" "--optimizer sgd" "--move-chains 1" "--plain-p-x" "--shift 0" "--flip" \
    "--label-smoothing .5" "--sam .5" "--clamp-grad .001" "--informative 5" \
    "--class-cond-p-x-sample" "--sigma .3" "--labels-per-class 5" "--uncond" "--ema .9" \
    "--seed 2" "--activation tanh" "--batch-size 16" "--lr 1e-2" "--warmup-iters 9" \
    "--p-x-batch 8" "--p-y-given-x-weight 3" "--p-x-weight .3" "--p-x-y-weight 1" "--n-steps 4" \
    "--sgld-lr .3" "--sgld-std .3" "--negatives 8" "--buffer-size 50" "--schedule steps" \
    "--score-weight .01"
shape="--net wrn --batch-size 8 --negatives 8 --n-steps 1 --iters 5"
each "--depth 10 --width 1" "--stem-stride 2" "--blocks zero" "--unet" "--norm layer" \
    "--norm act" "--dropout-rate .5" "--head pooled"
each "--depth 10" "--width 1"
each "--width 1" "--depth 16"
shape="--widths 8,8 --iters 15"
each "--n-valid 8900 --schedule steps --decay-epochs 99" "--decay-epochs 1" \
    "--decay-epochs 1 --decay-rate .9"
each "--batches separate" "--cutout 9"
each "--optimizer muon" "--adam-rate 3"
each "--kl-weight .3" "--entropy 0"
each "--score-weight .016 --chains-from .2" "--noise-lo .5" "--noise-hi 1" "--label-noise .3" \
    "--label-wide .5" "--fresh-steps 5" "--scale 10" "--chains-lr 1e-2"
echo "a run that is stopped has the familiarity of its last update; its chains cannot start early"
statistics() { header "$1/last.safetensors" | tr ',' '\n' | grep 'jem\.statistics'; }
short="$small --widths 8,8 --n-valid 8900 --iters 9 --stop-at 5"
rm -rf told first
status 0 "stopped before a validation" train $short --eval-every 2 --out told
status 0 "stopped after it" train $short --eval-every 5 --out first
statistics told >part1
statistics first >part2
check "the same calibration" sh -c '[ -s part1 ] && cmp part1 part2'
rm -rf told first
status 0 "chains late" train $small --widths 8,8 --score-weight .016 --chains-from .5 --iters 20 \
    --chains-lr 1e-2 --stop-at 8 --out told
says "5/20  at least .* left"
refuses 2 "would start its chains now, at update 8 instead of 10; it needs 16 updates or more" \
    train --resume told --iters 10
status 0 "not earlier" train --resume told --iters 16
check "with chains: the time left" sh -c '! grep -q "at least" out'
chains() { tail -n 1 told/log.csv | cut -d, -f8 | grep -q '[0-9]'; }
status 0 "longer, and chains have begun" train --resume told --iters 60 --stop-at 25
check "they go on" chains
cp -r told whole
status 0 "at once" train --resume whole --stop-at 45
status 0 "again" train --resume told --stop-at 35
check "they still do" chains
status 0 "once more" train --resume told --stop-at 45
check "with the same rates: the same run" same_run whole told
rm -rf told whole
status 0 "dear chains" train $small --widths 8,8 --score-weight .016 --chains-from .7 --iters 10 \
    --n-steps 800 --print-every 1 --n-valid 0 --out told
rate() { sed -n "s|^epoch .*  $1/10  .* left  \([^ ]*\)/s.*|\1|p" out; }
check "their updates are much slower, at once: $(rate 7), $(rate 9)" \
    awk "BEGIN { exit !($(rate 7) > 3 * $(rate 9)) }" /dev/null
rm -rf told
status 0 "the last layer" train $small --widths 8,8 --iters 1 --lr 1e-9 --clf-only --out first
rm -rf told
status 0 "the same, longer" train $small --widths 8,8 --iters 9 --lr 1e-2 --clf-only --out told
# numbers_of NAME FILE: those of a tensor.
numbers_of() {
    range=$(header "$2" | tr '{' '\n' | grep -A 1 "\"$1\":$" | tail -n 1 |
        sed -n 's/.*data_offsets":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/p')
    skip=$((8 + $(od -A n -t u8 -N 8 "$2") + ${range% *}))
    tail -c +$((skip + 1)) "$2" | head -c $((${range#* } - ${range% *}))
}
for name in $(header told/last.safetensors | tr '{' '\n' | sed -n 's/.*"\([a-z0-9_]*[.]weight\)":$/\1/p'); do
    numbers_of $name first/last.safetensors >part1
    numbers_of $name told/last.safetensors >part2
    case $name in
    class_output.weight) check "$name has learned" differs part1 part2 ;;
    *) check "$name has not" sh -c '[ -s part1 ] && cmp part1 part2' ;;
    esac
done

echo "interrupted by a signal"
for signal in INT:130 TERM:143; do
    rm -rf e
    "$jem" train $tiny --iters 100000 --out e >out 2>err </dev/null &
    pid=$!
    i=0
    while [ $((i += 1)) -lt 120 ] && ! grep -q '^10,' e/log.csv 2>/dev/null; do sleep .5; done
    kill -s ${signal%:*} $pid
    wait $pid
    is=$?
    check "${signal%:*}: status $is" test $is = ${signal#*:}
    check "it says that it heard" grep -q "saving after this update" err
    says "to continue: jem train --resume e"
    at=$(sed -n 's/stopped after update \([0-9]*\);.*/\1/p' out)
    status 0 "goes on after update $at" train --resume e --stop-at $((${at:-0} + 3))
    says "resuming after update $at"
    check "rows of the log rise" rises e/log.csv
done

echo "a power failure, with a checkpoint after every update"
rm -rf e
safe="$tiny --iters 100000 --save-minutes 0"
"$jem" train $safe --out e >out 2>err </dev/null &
pid=$!
i=0
while [ $((i += 1)) -lt 1200 ] && ! grep -q '^10,' e/log.csv 2>/dev/null; do sleep .5; done
kill -s KILL $pid
wait $pid 2>/dev/null
status 0 "the checkpoint is whole" info e/last.safetensors
last=$(tail -n 1 e/log.csv | cut -d, -f1)
end=$((last + 40))
status 0 "goes on" train --resume e --stop-at $end
at=$(sed -n 's/resuming after update \([0-9]*\)$/\1/p' out)
check "from the update before, or the last one: ${at:-none}" test "${at:-0}" -ge $((last - 1))
status 0 "without a power failure" train $safe --stop-at $end --out safe
numbers e/last.safetensors >part1
numbers safe/last.safetensors >part2
check "the same run" sh -c '[ -s part1 ] && cmp part1 part2'

echo "one run in a folder"
rm -rf e
"$jem" train $tiny --iters 100000 --out e >out2 2>err2 </dev/null &
pid=$!
i=0
while [ $((i += 1)) -lt 120 ] && ! grep -q '^10,' e/log.csv 2>/dev/null; do sleep .5; done
refuses 1 "another jem train uses" train --resume e
kill -s INT $pid
wait $pid
check "the first goes on" grep -q "to continue: jem train --resume e" out2

echo "a run that diverges"
wild="$tiny --iters 130 --lr .03 --clamp 0 --clip-grad 0 --p-x-weight 1 --activation leaky-relu"
status 0 "it comes back" train $wild --out f
check "with other random numbers" grep -q "rollback to update 1, other random numbers (1 of 8)" err
check "again" grep -q "rollback to update .*, other random numbers (2 of 8)" err
says "130/130"
check "retries are counted" sh -c 'tail -n 1 f/log.csv | cut -d, -f12 | grep -q "^[2-9]$"'
check "rows of the log rise" rises f/log.csv
status 1 "it gives up" train $wild --retries 1 --out g
check "says so" grep -q "the guard has already rolled back 1 times" err
status 0 "what is left is whole" info g/last.safetensors
status 1 "one more attempt" train --resume g --retries 1
check "fails like it" grep -q "the guard has already rolled back 1 times" err
check "and no more" sh -c '! grep -q "rollback to update" err'
status 0 "chains in the middle of a row" train $tiny --sgld-std .01 --iters 120 --print-every 100 \
    --chains-from .825 --score-weight .01 --scale 10 --out middle
same_size="END { exit !(a * a < 100 * b * b) }"
check "means of samples since then" \
    awk -F, "\$1 == 100 { a = \$8 } \$1 == 120 { b = \$8 } $same_size" middle/log.csv
check "and of data" awk -F, "\$1 == 100 { a = \$7 } \$1 == 120 { b = \$7 } $same_size" middle/log.csv
for from in .825 0; do
    status 0 "no chains, from $from" train $tiny --iters 120 --print-every 100 --chains-from $from \
        --p-x-weight 0 --score-weight .01 --scale 10 --out none$from
    cut -d, -f7 none$from/log.csv >f$from
done
check "have the same means" cmp f.825 f0
worse="$tiny --batch-size 8 --negatives 4 --n-valid 8900 --print-every 12 --iters 120 --lr .02"
worse="$worse --eval-every 1"
refuses 2 "pause-gap is for --score-weight with --p-x-weight or --p-x-y-weight" \
    train digits --pause-gap 5 --out new
status 0 "it gets worse" train $worse --max-gap 8 --p-x-weight .5 --seed 2 --retries 40 --out best
left=$(cut -d, -f11 best/log.csv | grep '^[0-9]' | sort -n | head -n 1)
status 0 "the best is kept" info best/last.safetensors
kept=$(sed -n 's/.*lowest loss \([0-9.]*\).*/\1/p' out)
check "best has $kept, what is left in log.csv $left" \
    sh -c "echo '$kept $left' | awk '{ exit !(NF == 2 && \$1 < \$2) }'"

status 0 "for p(x|y) alone" train $tiny --p-y-given-x-weight 0 --p-x-weight 0 --p-x-y-weight 1 \
    --lr 5e-3 --iters 60 --out alone
check "cross-entropy, which it does not learn, is no reason to go back" \
    sh -c '! grep -q "cross-entropy is" err'

echo "a full disk"
status 0 "before" train $tiny --buffer-size 1000 --iters 20 --stop-at 10 --out h
cp h/last.safetensors before
refuses 2 "are the same file" sample h/last.safetensors --n 2 --steps 1 --out h/../h/last.safetensors
refuses 2 "h/last.safetensors: contains a run" sample a/last.safetensors --n 2 --steps 1 \
    --out new --chains h/last.safetensors
refuses 2 "h/last.safetensors: contains a run" judge --iters 1 --out h/last.safetensors
check "a run is no place for pictures" cmp h/last.safetensors before
full() {                                # no file may grow beyond 300 KB or so
    (trap '' XFSZ; ulimit -f 600; "$jem" "$@" >out 2>err </dev/null)
}
full train --resume h
is=$?
check "status $is" test $is = 1
check "says so" grep -q "h/last.safetensors: cannot be written: " err
check "the checkpoint is whole" cmp h/last.safetensors before
check "nothing is left" sh -c "! ls h | grep -q tmp"
status 0 "and goes on" train --resume h
full sample examples/models/mnist.safetensors --n 400 --columns 20 --steps 1 --fresh-steps 0 \
    --zoom 8 --out big.png
is=$?
check "a picture: status $is" test $is = 1
check "says so" grep -q "big.png: cannot be written" err
check "nothing is left of it" sh -c '! ls | grep -q "big.png"'
echo untouched >victim
ln -s victim link.png
refuses 1 "link.png: is a symbolic link" sample examples/models/mnist.safetensors --n 2 --steps 1 \
    --fresh-steps 0 --out link.png
check "what it leads to is as it was" grep -q untouched victim
mkdir planted                           # names that an older version would have followed
for name in new.png log.csv; do ln -s ../victim planted/$name.tmp; done
status 0 "planted links" sample examples/models/mnist.safetensors --n 2 --steps 1 --fresh-steps 0 \
    --out planted/new.png
status 0 "planted links" train $tiny --iters 1 --out planted
check "are not followed" grep -q untouched victim
cp -r h unread                          # (a log that breaks off while it is read: test_faults.c)
rm unread/log.csv
mkdir unread/log.csv
status 1 "an invalid log" train --resume unread --iters 30
check "says so" grep -q "unread/log.csv: cannot be " err
check "nothing is left beside it" sh -c '! ls unread | grep -q tmp'
if [ -e /dev/full ]; then
    status 1 "a full device" sample examples/models/mnist.safetensors --n 2 --steps 1 --fresh-steps 0 \
        --out /dev/full
    "$jem" help >/dev/full 2>err
    is=$?
    check "standard output: status $is" test $is = 1
fi

echo "damaged checkpoints"
for bytes in 0 7 8 100 5000 100000; do
    head -c $bytes kept.safetensors >b/last.safetensors
    status 1 "cut to $bytes bytes" train --resume b
    status 1 "cut to $bytes bytes: info" info b/last.safetensors
done
cp b/best.safetensors b/last.safetensors
status 1 "a network alone is no run" train --resume b
check "says so" grep -q "not a run that this program can continue" err
cp kept.safetensors b/last.safetensors

echo "using what was trained"
model=b/last.safetensors
status 0 "info" info $model b/best.safetensors
says "convnet 16 32 64 64, silu, 112586 parameters"
says "after update 80"; says "100 chains of (1,28,28)"
says "--iters 80"; says "10 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
LC_ALL=C sed 's/"jem.net":"convnet"/"jem.net":"a-gated"/' $model >own.safetensors
status 0 "info of a network of one's own" info own.safetensors
says "of the kind 'a-gated'"; says "class_output.weight  *F32 (10,576)"
refuses 1 "register its constructor" classify own.safetensors each
status 0 "sample" sample $model --n 20 --steps 15 --out s1.png --chains c1.png --each each
says "20 samples after 15 steps from noise"
for file in s1.png c1.png each/000019.png; do check $file is_png $file 100; done
check "20 files" test "$(ls each | wc -l)" = 20
status 0 "on two threads" sample $model --n 20 --steps 15 --out s2.png --threads 2
check "the same samples" cmp s1.png s2.png
status 0 "another seed" sample $model --n 20 --steps 15 --out s3.png --seed 2
check "other samples" differs s1.png s3.png
for how in "--class 7" "--class all" "--from buffer" "--from buffer --class 1 --n 2 --steps 5"; do
    rm -f s4.png
    status 0 "sample $how" sample $model --n 20 --steps 5 --out s4.png $how
    check "another picture: $how" differs s1.png s4.png
done
refuses 2 "class 10: the network has classes 0 to 9$" sample $model --class 10 --out new
refuses 2 "has no replay buffer" sample b/best.safetensors --from buffer --out new
refuses 1 "the buffer has too few" sample $model --from buffer --min-visits 100000 --out new.png
check "too few, and no picture" test ! -e new.png
refuses 1 "nowhere" sample $model --n 1 --steps 1 --out noise.safetensors/nowhere.png
status 0 "classify" classify $model each/000000.png --top 3
check "three classes" test "$(grep -c '(p = ' out)" = 3
LC_ALL=C sed 's/"train.print-every":"\([0-9]*\)"/"jem.temperature":"00\1"/' a/last.safetensors >warm
status 0 "begin with it" train --init ./warm $small --iters 2 --n-valid 0 --out cold
check "its temperature is not that of the new network" \
    sh -c '[ -s cold/last.safetensors ] && ! grep -q jem.temperature cold/last.safetensors'
status 0 "classify at a temperature" classify warm each/000000.png --top 10
check "all at the same" sh -c \
    "sed 's/.*(p = \([0-9.]*\)).*/\1/' out | awk '{ p += \$1 } END { exit !(p > .99 && p < 1.01) }'"
label=$(sed -n '1s/.*: \([0-9]\) (p.*/\1/p' out) other=$(((${label:-0} + 1) % 10))
for class in "${label:-0}" $other; do
    for i in 00 01 02 03 04 05 06 07 08 09 10 11; do
        for half in train test; do
            mkdir -p sorted/$half/$class && cp each/000000.png sorted/$half/$class/$i.png
        done
    done
done
status 0 "the first of a folder" eval a/last.safetensors --dataset ./sorted --n 12
check "are of both classes" sh -c "! grep -q 'accuracy 100.00%\|accuracy 0.00%' out"
says "log p(x)"
"$jem" classify $model - <s1.png >out 2>err
check "from standard input" grep -q "^-: .*; from [0-9]* x [0-9]*" out
status 0 "of another size" classify $model s1.png examples/gallery/chains.png --invert
says "from [0-9]* x [0-9]*.* to 28 x 28 grey"
# A thick bar on paper, in the corner of a picture.
LC_ALL=C awk 'BEGIN {
    printf "P5 90 60 255\n"
    for (i = 0; i < 60; i++)
        for (j = 0; j < 90; j++) printf "%c", (i > 3 && i < 30 && j > 70 && j < 76) ? 11 : 240
}' >bar.pgm
status 0 "on paper, in a corner" classify $model bar.pgm
says "bar.pgm: .* from 90 x 60 grey to 28 x 28 grey, framed, inverted"
status 0 "as it is" classify $model bar.pgm --no-frame
check "not framed" sh -c "! grep -q framed out"
says ", stretched$"
for fitting in crop pad; do
    LC_ALL=C sed "s/\"train.$fitting\":\"off\"/\"train.$fitting\": \"on\"/" $model >fitting
    status 0 "as training fits it" classify fitting bar.pgm --no-frame
    says "grey, ${fitting}[pd]ed$"
    mkdir -p bars && cp bar.pgm bars/1.pgm
    status 0 "a folder of them" classify fitting bars --no-frame
    check "are counted" grep -q "^1 picture: .*, 1 ${fitting}[pd]ed; classes: [0-9]: 1" err
done
# A seven that fills the network's 28 x 28 pixels.
LC_ALL=C awk 'BEGIN {
    printf "P5 28 28 255\n"
    for (i = 0; i < 28; i++)
        for (j = 0; j < 28; j++) {
            off = j - 24 + (i - 3) * .62
            printf "%c", (i < 4 || (off > -2.2 && off < 2.2)) ? 250 : 3
        }
}' >seven.pgm
status 0 "a picture of the network's size" classify examples/models/mnist.safetensors seven.pgm
says "seven.pgm: [0-689] (p"
check "is not framed by itself" sh -c "! grep -q framed out"
status 0 "on request" classify examples/models/mnist.safetensors seven.pgm --frame
says "seven.pgm: 7 (p = .*; framed$"
status 0 "of a model that frames nothing" classify examples/models/cifar10-wrn.safetensors seven.pgm --frame
check "has no effect" grep -q "has no framing: --frame has no effect" err
# A black bar on a transparent canvas: a TGA file, 60 x 60, 32 bits.
{
    printf '\0\0\2\0\0\0\0\0\0\0\0\0\74\0\74\0\40\50'
    LC_ALL=C awk 'BEGIN {
        for (i = 0; i < 60; i++)
            for (j = 0; j < 60; j++)
                printf "%c%c%c%c", 0, 0, 0, (i > 9 && i < 50 && j > 26 && j < 33) ? 255 : 0
    }'
} >bar.tga
status 0 "dark ink on a transparent canvas" classify $model bar.tga
says "framed, inverted; transparent pixels over grey 255"
"$jem" classify $model - <bar.tga >out 2>err
says "^-: .*framed, inverted; transparent pixels over grey 255"
awk 'BEGIN { printf "P5 9 9 255\n"; for (i = 0; i < 81; i++) printf "c" }' >blank.pgm
status 0 "a blank picture" classify $model blank.pgm
says "blank.pgm: the image has one colour: nothing to see; from 9 x 9"
check "no verdict" sh -c "! grep -q -e typical -e familiar out"
status 1 "one that is no image" classify $model nowhere.png each/000001.png
says "each/000001.png: "
echo "words that look like options, and limits"
cp each/000000.png ./-7.png
refuses 2 "unknown option -7.png" classify $model -7.png
status 0 "after --" classify --top 2 $model -- -7.png
says "^-7.png: "
esc=$(printf '\033') csi=$(printf '\302\233') line=$(printf 'x\ny')
cp each/000000.png "a$esc[31m.png" && cp $model "m$csi$line.safetensors"
harmless() {
    status 0 "a name that commands: $1" "$@"
    check "is printed without it" sh -c "! LC_ALL=C grep -q '$esc\|$csi\|^y' out err && grep -q '?' out"
}
harmless classify $model "a$esc[31m.png"
harmless info "m$csi$line.safetensors"
harmless export $model "e$esc[1m$line.safetensors"
harmless sample $model --n 1 --steps 1 --out "s$esc[1m$line.png"
status 1 "one that is not there" classify $model "no$esc[1m.png"
check "is printed without it as well" sh -c "! grep -q '$esc' err && grep -q 'no?' err"
cp $model ./--m
status 0 "info --" info -- --m
says "^--m: "
refuses 2 "unknown option --m" info --m
cp $model ./-m
status 0 "eval -- -m calibration" eval -- -m calibration
rm ./-m calibration.png
status 0 "export --" export -- --m -new.safetensors
check "is written" test -s ./-new.safetensors
rm ./-7.png ./--m ./-new.safetensors
echo "means of weights"
for seed in 7 8; do
    status 0 "a network of seed $seed" train $tiny --iters 1 --seed $seed --out mean$seed
done
status 0 "a mean" export mean7/last.safetensors m78 --average mean8/last.safetensors
status 0 "the other way round" export mean8/last.safetensors m87 --average mean7/last.safetensors
bytes=$(sed -n 's/^m87: \([0-9]*\) parameters/\1 * 4/p' out)
check "has the same weights" sh -c "tail -c $((${bytes:-0})) m78 >end && tail -c $((${bytes:-0})) m87 |
    cmp - end && test -s end"
status 0 "one of them" export mean7/last.safetensors m7
check "has others" sh -c "! tail -c $((${bytes:-0})) m7 | cmp -s - end"
status 0 "of one with itself" export m7 m77 --average m7
check "the same weights" sh -c "tail -c $((${bytes:-0})) m7 >end && tail -c $((${bytes:-0})) m77 |
    cmp - end"
status 0 "of other activations" train $tiny --iters 1 --activation relu --out mean9
refuses 1 "have different networks" export m7 new --average mean9/last.safetensors
status 0 "its info" info m78
says "familiar   not calibrated"
status 0 "it classifies" eval m78
refuses 1 "have different networks" export $model new --average mean8/last.safetensors
refuses 2 "m87 and m87 are the same file" export m78 m87 --average m87
if [ -e /dev/zero ]; then
    refuses 1 "/dev/zero: is larger than 100 MB (--max-file" classify $model /dev/zero
    refuses 1 "/dev/zero: is larger than 3 MB" classify $model /dev/zero --max-file 3
fi
refuses 1 "out of memory.*--max-memory N" classify $model s1.png --max-memory 1
refuses 1 "digits.png: is 2800 x 2800, which takes 8 MB, more than 7 (--max-picture" train $tiny \
    --iters 1 --max-picture 7 --out new
refuses 1 "9000 images of 28 x 28 take 8 MB, more than 5 (--max-memory" train $tiny --iters 1 \
    --max-memory 5 --out new
refuses 1 "digits.png: is larger than 1 MB (--max-file" train $tiny --iters 1 --max-file 1 --out new
status 0 "export" export $model small.safetensors
refuses 2 "are the same file" export small.safetensors ./small.safetensors
refuses 2 "dtype f16: choose from f32|bf16" export $model new --dtype f16
refuses 2 "unknown option --half" export --half $model new
refuses 2 "unexpected 'three'" export $model new three
refuses 2 "no sampler: leave out --guidance" export --onnx --guidance 5 $model new
refuses 2 "no-slope needs --onnx" export --no-slope $model new
refuses 2 "flat/best.safetensors: is the best network of the run" export $model \
    flat/best.safetensors
refuses 2 "small.safetensors: the name of a graph must end in .onnx" export --onnx $model \
    small.safetensors
cp small.safetensors small.onnx
refuses 2 "small.onnx: is a model, and would be replaced" export --onnx $model small.onnx
cp $model spare.safetensors
refuses 2 "are the same file" eval spare.safetensors calibration --dataset digits --n 20 \
    --out spare.safetensors
status 0 "export, rounded" export --dtype bf16 $model half.safetensors
# The parameters take half, except those of the last layer, of 10 classes; the header, which holds
# the text of the calibration, remains.
data_bytes() { echo $(($(wc -c <"$1") - 8 - $(od -An -t u8 -N 8 "$1"))); }
last=$(grep -ao '"class_output.weight":{"dtype":"F32","shape":.[0-9,]*' half.safetensors |
    sed 's/.*\[//; s/,/*/')
check "half as large, apart from the last layer" \
    [ $(($(data_bytes half.safetensors) * 2)) = \
    $(($(data_bytes small.safetensors) + 4 * (${last:-0} + 10))) ]
check "the last layer is in full: ${last:-no}" [ "$last" ]
check "others are not" grep -aq '"conv1.weight":{"dtype":"BF16"' half.safetensors
status 0 "the rounded network" eval half.safetensors --dataset digits
half=$(sed -n 's/.*accuracy \([0-9.]*\)%.*/\1/p' out)
check "hardly worse: ${half:-nothing}%" sh -c "[ ${half%.*} -gt 60 ]"
status 0 "in full again" export half.safetensors half2.safetensors --dtype f32
status 0 "and rounded again" export half2.safetensors half3.safetensors --dtype=bf16
check "the same file" cmp half.safetensors half3.safetensors
mkfifo pipe
refuses 1 "pipe: is not a regular file" export $model pipe
check "the pipe is one" test -p pipe
status 0 "the same network" eval small.safetensors --dataset digits
says "images: ${trained:-nothing}"
check "and no more" [ "$(data_bytes small.safetensors)" -lt 452000 ]
status 0 "begin with it" train $small --init ./small.safetensors --iters 5 --out i
accuracy=$(sed -n 's/.*accuracy \([0-9.]*\)%, -log.*/\1/p' out)
check "it begins where that one was: $accuracy%" test "${accuracy%.*}" -gt 60
check "no word of its validation" sh -c "! grep -q 'of validation' err"
status 0 "the same images" train $small --init ./small.safetensors --iters 1 --seed 9 --out iii
check "for every seed" sh -c "! grep -q 'of validation' err"
status 0 "more for validation" train $small --init ./small.safetensors --iters 1 --n-valid 3000 \
    --out iiii
check "are reported" grep -q "small.safetensors: has learned some of the images of validation" err
status 0 "the same, stopped" train $small --init ./small.safetensors --iters 5 --stop-at 2 --out ii
rm small.safetensors
status 0 "and resumed" train --resume ii
check "5 = 2 + 3" same_run i ii
status 0 "export of it" export i/last.safetensors begun.safetensors
status 0 "without folders" info begun.safetensors
says "--init small.safetensors"
wrn="--dataset digits --n-valid 100 --net wrn --width 1 --head pooled --p-x-weight 0"
wrn="$wrn --batch-size 16 --no-class-cond-p-x-sample --print-every 1"
status 0 "a residual network" train $wrn --blocks zero --depth 10 --iters 4 --out shallow
from=shallow/last.safetensors
status 0 "a deeper one" train $wrn --blocks zero --depth 16 --init $from --iters 1 --lr 1e-12 \
    --out deeper
check "is reported" grep -q "$from: is shallower: the blocks that it lacks begin as the id" err
status 0 "the first one's answers" classify $from each/000000.png --no-frame
sed "s/;.*//" out >first.txt
status 0 "the same answers" classify deeper/last.safetensors each/000000.png --no-frame
check "at first" sh -c "sed 's/;.*//' out | cmp - first.txt && grep -q log.p first.txt"
status 0 "a deeper and wider one" train $wrn --width 2 --blocks zero --depth 16 --init $from \
    --iters 1 --lr 1e-12 --out wider
check "is reported" grep -q "$from: is narrower: its outputs begin with weights of 0 on the new" err
status 0 "the same answers" classify wider/last.safetensors each/000000.png --no-frame
check "at first" sh -c "sed 's/;.*//' out | cmp - first.txt"
status 0 "a wider one, at first" train $wrn --width 2 --blocks zero --depth 10 --init $from \
    --iters 1 --lr 1e-12 --out wide0
status 0 "has the same answers" classify wide0/last.safetensors each/000000.png --no-frame
check "as the narrow one" sh -c "sed 's/;.*//' out | cmp - first.txt"
status 0 "a wider one" train $wrn --width 2 --blocks zero --depth 10 --init $from --iters 3 \
    --lr 1e-2 --ema 0 --warmup-iters 0 --out wide1
check "is not called shallower" sh -c "! grep -q shallower err"
status 0 "other answers" classify wide1/last.safetensors each/000000.png --no-frame
check "after it has learned" sh -c "! sed 's/;.*//' out | cmp -s - first.txt"
refuses 1 '"f.conv1.weight" is F32 (32,1,3,3)' train $wrn --blocks zero --depth 16 --out new \
    --init wider/last.safetensors
refuses 1 'weight" is F32 (16,16,3,3)' train $wrn --depth 10 --width 2 --out new --init $from
refuses 1 '"f.conv1.weight" is F32 (16,1,3,3)' train $wrn --blocks zero --unet --width 2 \
    --depth 10 --out new --init $from
refuses 1 'weight" is F32 (16,1,3,3)' train $wrn --blocks zero --unet --width 2 --depth 16 \
    --out new --init $from
refuses 1 'lacks "f.' train $wrn --blocks zero --norm instance --depth 16 --out new --init $from
refuses 1 'lacks "f.layer1.1' train $wrn --depth 16 --out new --init $from
LC_ALL=C sed '1s/"f.layer2.0.conv2.weight"/"f.layer2.0.other.weight"/' $from >part.safetensors
refuses 1 'lacks "f.layer2.0.conv2.weight"' train $wrn --blocks zero --depth 16 --out new \
    --init part.safetensors
mkdir -p two/train/dark two/train/light two/test/dark two/test/light
for i in 0 1 2 3 4 5 6 7 8 9; do
    cp each/00000$i.png two/train/dark/$i.png && cp each/00001$i.png two/train/light/$i.png
done
cp each/000000.png two/test/dark && cp each/000010.png two/test/light
status 0 "a folder of images per class" train $tiny --dataset two --size 16 --batch-size 8 \
    --n-valid 4 --iters 4 --out j
says "two: 20 images of 16 x 16, 2 classes"
status 0 "its classes have names" classify j/last.safetensors each/000000.png
says ": \(dark\|light\) (p = "
status 0 "its own data" eval j/last.safetensors
status 2 "images that do not fit" eval j/last.safetensors --dataset digits
check "says so" grep -q "digits has 10 classes, .*last.safetensors 2$" err
status 0 "a run of it" train $tiny --dataset two --size 16 --batch-size 8 --n-valid 0 --iters 4 \
    --eval-every 1 --stop-at 2 --out k
check "no validation, no number" sh -c 'tail -n 1 k/log.csv | cut -d, -f10,11 | grep -q "^,$"'
status 0 "few images" train --threads 1 --widths 8,8 --dataset two --iters 2 --out n
says "two: few images: --n-valid is 2, not [0-9]"
says "two: few images: --batch-size is 18, not [0-9]"
says "two: few images: --eval-every is 100, not [0-9]"
says "two: only 2 images calibrate familiarity: 1 in 3 usual images may"
status 0 "still few" train --resume n --iters 3
status 0 "classified by it" classify n/last.safetensors two
check "with a warning" grep -q "^jem classify: only 2 images calibrate familiarity: 1 in 3" err
check "and in the summary" grep -q "; about [0-9]* of [0-9]* usual images may be strange by chance" err
mv two moved
refuses 1 "no such folder" train --resume k
status 0 "elsewhere" train --resume k --dataset moved/ --stop-at 3
mv moved/train/light moved/train/airy; mv moved/test/light moved/test/airy
refuses 1 "not the data that this run started with" train --resume k
refuses 2 "the model has no class 'airy'; its classes are" eval k/last.safetensors
echo "no picture" >moved/test/airy/broken.png
status 1 "a damaged test picture" train $tiny --dataset ./moved --size 16 --batch-size 8 \
    --n-valid 0 --iters 2 --out broken
check "is named" grep -q "broken.png: is not a picture" err
check "of the test images" grep -q "test images: ./moved: 1 of 3 pictures cannot be read" err
check "and nothing begins" test ! -e broken/log.csv
rm -r moved/test
mv moved/train/airy moved/train/light
mv moved/train/light "moved/train/$(printf 'l\351ger')"
rm -rf o
status 0 "a class whose name cannot be kept" train $tiny --dataset ./moved --size 16 --batch-size 8 \
    --n-valid 0 --iters 2 --out o
status 0 "is known by its number" eval o/last.safetensors --split train
mv "moved/train/$(printf 'l\351ger')" moved/train/light
status 0 "without test images" train --resume k
check "says so at once" grep -q "no final test" err
says "no test images"
echo "the best network, where all classify alike"
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    for half in train test; do
        mkdir -p easy/$half/dark easy/$half/light
        { printf 'P5 16 16 255\n'
          head -c $((i * 9)) /dev/zero | tr '\0' '\100'
          head -c $((256 - i * 9)) /dev/zero
        } >easy/$half/dark/$i.pgm
        { printf 'P5 16 16 255\n'
          head -c $((i * 9)) /dev/zero | tr '\0' '\377'
          head -c $((256 - i * 9)) /dev/zero | tr '\0' '\277'
        } >easy/$half/light/$i.pgm
    done
done
easy="$tiny --dataset easy --n-valid 8 --batch-size 8 --print-every 2 --n-steps 2 --fresh-steps 5"
status 0 "an easy folder" train $easy --iters 40 --eval-every 5 --chains-from .5 --out easy1
check "it is right early" sh -c "sed -n 6p easy1/log.csv | cut -d, -f10 | grep -q '^1'"
check "with a score" sh -c "grep -q 'f_sample' easy1/log.csv && head -c 200000 easy1/last.safetensors |
    LC_ALL=C grep -aq '\"train.score-weight\":\".016\"'"
check "with pauses" \
    sh -c "head -c 200000 easy1/last.safetensors | LC_ALL=C grep -aq '\"train.pause-gap\":\"5\"'"
status 0 "a validation in every second update" train $easy --iters 1000 --eval-every 1 --stop-at 4 \
    --p-x-weight 0 --fresh-steps 200 --out slow1
slow=$(sed -n 's|^epoch .*  4/1000  \([0-9]*\):\([0-9]*\) min left  \([0-9.]*\)/s.*|\1 \2 \3|p' out)
check "takes part of the time left: ${slow:-none}" \
    sh -c "echo '$slow' | awk '{ exit !(60 * \$1 + \$2 > 3 * 996 / \$3 && \$3 > 0) }'"
status 0 "updates in epochs of two" train $easy --iters 3 --p-x-weight 0 --out slow2
says "easy: few images: --eval-every is 50, not 1"
mv easy elsewhere
refuses 1 "easy: no such folder.*that path is from the training" eval easy1/last.safetensors
refuses 1 "gone: no such folder[^;]*$" eval easy1/last.safetensors --dataset gone
status 0 "images of the folder that moved" eval easy1/best.safetensors ood --dataset elsewhere \
    --save moved.safetensors --n 4
says "calibrated with .* images that training held out"
mv elsewhere easy
status 0 "its best" info easy1/best.safetensors
says "update 40"
says "use        classification (100.00% of 8 validation images.*score error.*with score and chains"
status 0 "stopped where chains begin" train $easy --iters 20 --eval-every 5 --chains-from .5 \
    --stop-at 10 --out easy5
check "has validated, and has no best network" \
    sh -c "cut -d, -f1,10 easy5/log.csv | grep -q '^10,[.01]' && test ! -e easy5/best.safetensors"
status 0 "chains alone" train $easy --iters 1 --score-weight 0 --n-steps 1 --out easy0
status 0 "without chains" train $easy --iters 10 --eval-every 5 --p-x-weight 0 --score-weight 0 \
    --out easy2
status 0 "is good for less" info easy2/best.safetensors
says "not for samples"
mkdir -p flat
for class in dark light; do
    mkdir flat/$class
    for i in 1 2 3 4 5 6 7 8 9 10 11 12; do cp easy/train/dark/1.pgm flat/$class/$i.pgm; done
done
flat="$tiny --dataset flat --n-valid 2 --batch-size 4 --iters 1 --fresh-steps 2"
status 0 "a folder without test images" train $flat --test-split random --out flat1
status 0 "begun with it, other test images" train $flat --init flat1/last.safetensors --out flat2
check "is reported" grep -q "flat1/last.safetensors: may have learned .*--test-split random" err
status 0 "the same ones" train $flat --init flat2/last.safetensors --out flat3
check "is not" sh -c "! grep -q 'may have learned' err"
mkdir -p mixed && cp -r easy/train/dark easy/train/light mixed
status 0 "a tenth at random" train $flat --dataset mixed --test-split random --seed 4 --out mixed1
status 0 "a tenth by name" train $flat --dataset mixed --out mixed2
refuses 2 "mixed1 and mixed2 have different test images of mixed" eval mixed1/last.safetensors attack \
    --beside mixed2/last.safetensors --out new
status 0 "a judge of them" judge --dataset flat --iters 1 --threads 1 --out judge.safetensors
refuses 2 "need --size" judge --dataset flat --crop --out new

echo "a folder of pictures, and what may be wrong with it"
refuses 2 "new/a.jpg: pictures are written as PNG.*--out FILE.png" sample $model --out new/a.jpg
refuses 2 "(--chains FILE.png)" sample $model --out s1.png --chains new
refuses 2 "(--out FILE.png)" eval $model calibration --dataset digits --n 20 --out new
refuses 2 "(--smallest FILE.png)" eval $model attack --dataset digits --n 20 --smallest new
mkdir -p lots/dark/more lots/light pair/a pair/b loose
for i in 0 1 2 3 4 5 6 7 8 9; do
    cp each/00000$i.png lots/dark && cp each/00001$i.png lots/light
done
for folder in lots lots/dark/more pair/a pair/b loose; do cp each/000000.png $folder; done
echo "no picture" >lots/dark/notes.txt && echo "no picture" >lots/light/list
few="--threads 1 --widths 8,8 --iters 2 --fresh-steps 2 --n-steps 1"
status 0 "other files in a folder" train $few --dataset lots --out lots1
says "lots: 4 files or folders are not read.*: 000000.png, dark/more, dark/notes.txt, \\.\\.$"
status 0 "its test images" eval lots1/last.safetensors
says "lots, test, 3 images"
status 0 "all its images" eval lots1/last.safetensors --split all
says "lots, all, 20 images"
cp -r lots more && rm -r more/dark/more
status 0 "another folder" eval lots1/last.safetensors --dataset more
check "says how many it leaves out" grep -q "more: 3 test images, about a tenth of each class" err
status 0 "two pictures" train $few --dataset pair --out pair1
refuses 1 "pair: no pictures remain for testing.*--split all" eval pair1/last.safetensors
status 0 "both" eval pair1/last.safetensors --split all
says "pair, all, 2 images"
status 0 "without validation" train $few --iters 3 --dataset pair --n-valid 0 --out pair2
says "no best.safetensors was written, because there are no validation .*: use pair2/last.saf"
says "no familiarity, because calibration needs at least 2 images, and has 0"
refuses 1 "pair2 is a folder; its model is the file pair2/last.safetensors" classify pair2 s1.png
refuses 1 "b is a folder; its model is the file b/best.safetensors" classify b s1.png
refuses 1 "b is a folder; its model is the file b/last.safetensors" sample b --out new
refuses 1 "best.safetensors is not there, but pair2/last.safetensors is" info pair2/best.safetensors
mkdir -p single/a lone/a lone/b
for i in 0 1 2 3 4; do cp each/00000$i.png single/a && cp each/00000$i.png lone/a; done
cp each/000010.png lone/b
status 0 "one class" train $few --dataset single --out single1
says "single: the only class is a, so only p(x) is learned"
check "no accuracy" sh -c "! grep -q accuracy out"
status 0 "nor in its answers" classify single1/last.safetensors single/a/000000.png
says "^single/a/000000.png: log p(x) = "
status 0 "nor in its evaluation" eval single1/last.safetensors --split all
says "^single, all, 5 images: mean log p(x) [-0-9.]*$"
status 2 "attacks on one class" eval single1/last.safetensors attack --split all --out new
check "say why not" grep -q "single1 has one class, so it is always right" err
status 0 "a class with one picture" train $few --dataset lone --n-valid 5 --iters 1 --out lone1
says "lone: class a has no image for training, because validation takes all"
status 0 "its picture is for training" train $few --dataset lone --n-valid 4 --iters 1 --out lone2
check "no class without images" sh -c "! grep -q 'no image for training' out"
says "lone: validation has no image of 1 of 2 classes (b): "
check "a ratio of 5 is no note" sh -c "! grep -q 'differ in size' out"
cp each/000011.png lone/a
status 0 "very unequal classes" train $few --dataset lone --n-valid 4 --iters 1 --out lone3
says "lone: classes differ in size: a has 6 images, b has 1; always answering a is right for 86%$"
cp lone/a/000003.png lone/b/copy.png
status 0 "copies in two classes" train $few --dataset lone --n-valid 4 --iters 1 --out lone4
says "in another class: 2 (the first: lone/a/000003.png and lone/b/copy.png)$"
rm lone/b/copy.png lone/a/000011.png
mkdir -p ink/a ink/b
for i in 1 2 3; do cp bar.tga ink/a/$i.tga && cp bar.tga ink/b/$i.tga; done
cp each/000000.png ink/a
refuses 2 "ink: 6 of 7 pictures have transparent pixels, and are nearly one colour over grey 0: --backgr" \
    train $few --dataset ink --size 16 --out new
status 0 "over white" train $few --dataset ink --size 16 --background 255 --iters 1 --out ink1
status 0 "as they are" train $few --dataset ink --size 16 --background 0 --iters 1 --out ink2
says "ink: 6 of them are nearly one colour now: --background 255 shows dark ink"
status 1 "weights for another size" train $few --dataset lone --size 14 --out new \
    --init lone1/last.safetensors
check "says which" grep -q "the model has images of 28 x 28, the data of 14 x 14 (--size N" err
if [ -d /sys/kernel ]; then                        # where nobody can create a folder
    why=$(LC_ALL=C mkdir /sys/kernel/jem 2>&1 | sed 's/.*: //')
    refuses 1 "/sys/kernel/jem/a/b: cannot be created: $why" train $tiny --out /sys/kernel/jem/a/b
fi
refuses 2 "best.safetensors: is the network alone.*--init" train --resume lone1/best.safetensors
head -c 200 each/000000.png >cut.png
refuses 1 "cut.png: is damaged or cut short" classify $model cut.png
refuses 1 "notes.txt: is not a picture that can be read (png, jpg" classify $model lots/dark/notes.txt
status 0 "weights from pictures over black" train $few --dataset ./lots \
    --init lots1/last.safetensors --background 200 --iters 1 --out lots4
check "are noted" grep -q "lots1/last.safetensors: was trained with --background 0, unlike" err
status 1 "weights that were not written" train $few --dataset pair --init pair2/best.safetensors \
    --out pair3
check "and those that were" grep -q "is not there, but pair2/last.safetensors is" err
mkdir -p rare/a rare/b rare/c typo/train/a typo/train/b typo/test/a typo/test/bb deep/er
for i in 0 1 2 3 4 5 6 7 8 9; do
    cp each/00000$i.png rare/a && cp each/00000$i.png typo/train/a
    cp each/00001$i.png rare/b && cp each/00001$i.png typo/train/b
done
cp each/000019.png rare/c && cp -r pair/a pair/b deep/er
cp each/000001.png typo/test/a && cp each/000011.png typo/test/bb
status 0 "classes of few pictures" train $few --dataset rare --n-valid 2 --out rare1
says "rare: validation has no image of [12] of 3 classes (.*): accuracy"
refuses 1 "typo/test/bb: no such class in train (there are a, b): rename the folder" \
    train $few --dataset typo --out new
refuses 1 "deep/er: has no pictures in it, but folders (a, ..): .* is deep/er the data set" \
    train $few --dataset deep --out new
refuses 1 "loose: .*it has pictures (1), but no folder per class: put them into loose/CLASS or, .* loose/all$" \
    train $few --dataset loose --out new
mkdir pair/void
refuses 1 "pair/void: has no pictures in it: add some, or remove" train $few --dataset pair --out new
echo >pair/void/list.txt
refuses 1 "pair/void: has no pictures in it (list.txt is hidden or not a picture): add" \
    train $few --dataset pair --out new
rm -r pair/void
for out in pair pair/a pair/run "$PWD/pair/b/new/run" ./lone/../pair/a/x; do
    refuses 2 "${out#"$PWD/"}: is in the data set pair/: a run's own pictures do not belong among the data" \
        train $few --dataset pair/ --out "$out"
    check "$out: is not made" sh -c "test ! -e pair/run && test ! -e pair/b/new && test ! -e pair/a/x"
done
for out in moved moved/train moved/train/run; do
    refuses 2 "$out: is in the data set moved" train $few --dataset moved --out $out
done
status 0 "beside the folders of training and test" train $few --dataset moved --iters 1 --out moved/run
rm -r moved/run
if ln -s nowhere.png pair/a/gone.png 2>/dev/null && [ -h pair/a/gone.png ]; then
    refuses 1 "pair/a/gone.png: is a link to nothing" train $few --dataset pair --out new
    rm pair/a/gone.png
fi
echo "all pictures of a folder"
mkdir -p "album/a,b" album/void
cp each/000000.png 'album/a,b/q"0.png' && cp each/000001.png album/1.png && cp bar.pgm album/bar.pgm
cp blank.pgm album/ && echo no picture >album/z.png && echo >album/list.txt
ln -s .. "album/a,b/loop" 2>/dev/null || :
status 1 "of which one is damaged" classify $model album/
says "^album/1.png: "
says '^album/a,b/q"0.png: '
says "bar.pgm: .*framed, inverted"
check "each once" test "$(grep -c -e '(p = ' -e 'one colour' out)" = 4
check "the damaged one is named" grep -q "album/z.png: is not a picture" err
check "so is another file" grep -q "album/: 1 file is not a picture: list.txt$" err
check "a summary" grep -q "^5 pictures: .* 1 of one colour, 1 unreadable, 1 framed, 1 inverted; classes: [0-9]: [0-9]" err
rm album/z.png album/list.txt
status 0 "as a table" classify $model album each/000002.png --out album.csv
says "^5 pictures: .* strange, 1 of one colour, 1 framed, 1 inverted; classes: [0-9]: [0-9]"
check "columns" test "$(head -1 album.csv)" = \
    "file,log_p,familiarity,verdict,label,probability,reason,changes"
row='^("album/a,b/q""0.png"|[a-z0-9/]*[.]p[ngm]*),[-0-9.e+]*,[-0-9.e]*'
check "a row for each" test "$(grep -cE "$row,(familiar|odd|strange|blank)," album.csv)" = 5
check "and no other" test "$(wc -l <album.csv)" -eq 6
check "a blank one has no answer" grep -q "^album/blank.pgm,,,blank,,,,from 9 x 9" album.csv
check "changes" grep -q '^album/bar.pgm,.*,"from 90 x 60 grey to 28 x 28 grey, framed, inverted"$' album.csv
status 1 "one that is not there" classify $model nowhere.png album/1.png --out album.csv
check "has a row all the same" grep -q "^nowhere.png,,,unreadable,,,,$" album.csv
check "and so has the other" test "$(wc -l <album.csv)" -eq 3
cp album.csv before.csv
status 1 "nothing that can be read" classify $model nowhere.png album/void --out album.csv
check "replaces no table" sh -c 'grep -q "album.csv: is not written" err && cmp -s album.csv before.csv'
ln -s nowhere.png "album/a,b/dangling.png"
status 1 "a link to nothing in a folder" classify $model album --out album.csv
check "is a row of its own" grep -q '^"album/a,b/dangling.png",,,unreadable,,,,$' album.csv
check "among all others" test "$(wc -l <album.csv)" -eq 6
rm "album/a,b/dangling.png"
if mkfifo slow 2>/dev/null; then
    { echo >opened && exec sleep 60; } >slow &
    writer=$!
    "$jem" classify $model each/000000.png slow each/000001.png --out stopped.csv >out 2>err &
    reader=$!
    until [ -e opened ] || ! kill -0 $reader 2>/dev/null; do sleep .1; done
    kill -TERM $reader
    wait $reader
    check "a table that is stopped" test $? = 143
    check "has the rows so far" grep -q "^each/000000.png,.*" stopped.csv
    check "and not the one that was cut" test "$(wc -l <stopped.csv)" -eq 2
    kill $writer
    rm slow
fi
guess() { "$jem" classify $model "$1" 2>err | sed -n '1s/.*: \([0-9]\) (p = .*/\1/p'; }
right=$(guess each/000000.png) wrong=$(((${right:-0} + 1) % 10)) other=$(guess each/000003.png)
mkdir -p "sure/a,b \"c/$wrong" "sure/$right" sure/x "sure/$(((${other:-0} + 1) % 10))"
cp each/000000.png "sure/a,b \"c/$wrong/1,\"2.png" && cp each/000000.png "sure/$right/right.png"
cp each/000000.png sure/x/none.png && cp blank.pgm "sure/$wrong.pgm"
cp each/000003.png "sure/$(((${other:-0} + 1) % 10))/3.png"
status 0 "pictures in the folder of another class" classify $model sure --wrong --out sure.csv
says "; of 3 in the folder of a class, the answer is another for 2$"
check "are listed" test "$(wc -l <sure.csv)" -eq 3
check "with their names" grep -q "^\"sure/a,b \"\"c/$wrong/1,\"\"2.png\",.*,$right,[0-9.]*,[^,]*,$" sure.csv
check "the most certain first" sh -c \
    "sed '1d; s/.*,\([0-9]*,[0-9.]*\),[^,]*,[^,]*$/\1/' sure.csv | cut -d, -f2 | sort -c -g -r"
status 0 "pictures in no folder of a class" classify $model sure/x --wrong --out none.csv
check "are explained" grep -q "no picture is in a folder with the name of a class" err
refuses 2 "wrong is for the table of --out" classify $model sure --wrong
refuses 2 "s1.png: the name of a table must end in .csv" classify $model album --out s1.png
refuses 2 "top is for lines, not for the table" classify $model album --top 3 --out new.csv
refuses 1 "album/1.png/new.csv: cannot be created" classify $model album --out album/1.png/new.csv
refuses 1 "album/void: has no pictures in it" classify $model album/void
check "no table of refused requests" test ! -e new.csv
refuses 1 "s1.png: .*(the model comes first: best.safetensors of a run)" classify s1.png $model
refuses 1 "loose: .*(--split all takes them as pictures of the class of that name)" \
    eval lots1/last.safetensors --dataset loose
cp -r lots/dark dark && rm -r dark/more
status 0 "pictures of one class" eval lots1/last.safetensors --dataset dark --split all
says "dark, all, 10 images"
cp -r loose "a folder, with blanks"
status 0 "a row of one class" sample $model --class all --n 5 --columns 5 --steps 1 \
    --fresh-steps 0 --out row.png
check "is noted" grep -q "shows 1 of 10 classes" err
status 0 "a row per class" sample $model --class all --steps 1 --fresh-steps 0 --out row.png
check "is not" sh -c "! grep -q shows err"
status 0 "a quoted name" eval lots1/last.safetensors ood --n 20 --scores maxp \
    --other 'pair,"a folder, with blanks"' --out loose.png
says "with blanks  *[0-9.]*  *1 "
status 0 "other folders, without test images or classes" eval lots1/last.safetensors ood --n 20 \
    --scores maxp --other pair,./loose --out loose.png
says "  pair  "
says "  ./loose  "
says "^  *max p(y|x)  *images  *seconds$"
check "as many as there are" grep -q "^  pair  *[0-9.]*  *2  *[0-9.]*$" out
mkdir -p a_folder/with_a_long_name && cp -r lots/dark/*.png a_folder/with_a_long_name
echo >a_folder/with_a_long_name/Thumbs.db
status 0 "a long name, all images" eval lots1/last.safetensors ood --scores maxp --split all \
    --other ./a_folder/with_a_long_name --out loose.png
says "AUROC of 20 images of .* against"
status 0 "more others than test images" eval lots1/last.safetensors ood --scores maxp --n 9 \
    --other ./a_folder/with_a_long_name,pair --out loose.png
says "AUROC of 3 test images of .* against"
says "^  \.\.der/with_a_long_name  *[0-9.]*  *9  *[0-9.]*$"
says "^  \.\.der/with_a_long_name  "
check "what is not read there" grep -q "1 file or folder is not read.*: Thumbs.db$" err
mkdir -p side/sub && cp lots/dark/*.png side/sub && cp loose/*.png side/z.png
status 0 "another folder with folders" eval lots1/last.safetensors ood --scores maxp --split all \
    --dataset ./lots --other side --out loose.png
check "all pictures of it" grep -q "^  side  *[0-9.]*  *11  *[0-9.]*$" out
refuses 2 "calibration needs at least 4 images, not 3 of ./lots (--n N" \
    eval lots1/last.safetensors calibration --dataset ./lots --out new.png
status 0 "calibration of all" eval lots1/last.safetensors calibration --split all --out loose.png
says "15 bins, 20 images; each half"
mv typo/test/bb typo/test/aa && mv typo/train/a typo/train/aa
refuses 2 "the model has no class 'aa'; its classes are a, b, c (rename the folder?)" \
    eval rare1/last.safetensors --dataset typo --split train
status 0 "its own folder" eval lots1/last.safetensors ood --n 20 --scores maxp --other ./lots \
    --out loose.png
check "is left out" grep -q "other ./lots: left out, it is the model's own" err

mkdir -p wide/train/a wide/train/b
for i in 1 2 3 4 5 6; do
    cp examples/gallery/score.png wide/train/a/$i.png
    cp examples/gallery/score.png wide/train/b/$i.png
done
status 1 "nothing is stretched unasked" train $easy --dataset wide --size 40 --iters 1 --out new
check "says which" grep -q "wide: 12 of 12 pictures have other proportions than 40 x 40, the first, wide/train/a/1.png, has [0-9]* x [0-9]* (width x height): --crop takes the middle, --pad" err
check "in one line" test "$(wc -l <err)" = 1
check "nothing is trained" test ! -e new
status 1 "nor by a judge" judge --dataset wide --size 40 --out new
check "says how" grep -q "other proportions than 40 x 40" err
wide="--dataset wide --size 40 --stretch"
status 0 "larger images" train $easy $wide --grey --n-valid 2 --iters 1 --out easy3
says "^wide: 12 of 12 pictures are stretched to 40 x 40$"
says "^wide: copies of other pictures: 11 of 12; with copies in another class: 12 (the first: wide/train/a/1.png and wide/train/b/1.png)$"
says "an image has 1600 numbers, more than 784: --score-weight is lowered to 0.0078"
says "an image has 1600 numbers, more than 784: --p-x-weight is lowered to 0.0024"
check "grey on purpose" sh -c '! grep -q "are grey" out'
cp easy/train/dark/1.pgm wide/train/a
status 0 "grey and colour" train $easy $wide --n-valid 2 --iters 1 --out easy4
says "^wide: 1 of 13 pictures is grey (the first: wide/train/a/1.pgm), the others in colour: --grey makes"
cp easy/train/dark/2.pgm wide/train/a
status 0 "two grey ones" train $easy $wide --n-valid 2 --iters 1 --out easy6
says "^wide: 2 of 14 pictures are grey .* colour: all are of class a, so grey alone determines it; --grey"
cp easy/train/dark/1.pgm wide/train/b
status 0 "grey in two classes" train $easy $wide --n-valid 2 --iters 1 --out easy7
says "^wide: 3 of 15 pictures are grey (the first: wide/train/a/1.pgm), the others in colour: --grey"
rm wide/train/a/*.pgm wide/train/b/*.pgm

mkdir -p noisy/a noisy/b
awk 'BEGIN {
    srand(3)
    for (f = 0; f < 80; f++) {
        name = "noisy/" (f % 2 ? "a/" : "b/") f ".pgm"
        printf "P5 8 8 255\n" >name
        for (i = 0; i < 64; i++) printf "%c", 40 + int(80 * rand()) >name
        close(name)
    }
}'
status 0 "classes that only memory can learn" train --dataset noisy --net mlp --widths 64 \
    --batch-size 16 --iters 300 --optimizer adam --lr 1e-2 --warmup-iters 0 --ema 0 --shift 0 \
    --sigma 0 --p-x-weight 0 --score-weight 0 --label-noise 0 --label-wide 0 --label-smoothing 0 \
    --n-valid 20 --threads 1 --out noisy1
says "^overfitting: -log p(y|x) of the validation images was [0-9.]* after update 102, and is "
check "no copies" sh -c '! grep -q copies out'
check "images are counted" grep -q "2 classes; 20 for validation, 57 for training; 3 more for" out
status 0 "images that it has learned" eval noisy1/last.safetensors --split all
check "are noted" grep -q "noisy1/last.safetensors has learned most of these images" err

status 1 "pictures above the limit" train $easy $wide --max-picture 1 --iters 1 --out new
check "a limit for all" grep -q "^jem train: wide: 12 of 12 pictures are too large: --max-picture 2 allows all$" err
mkdir -p long/a long/b
for i in 1 2 3 4 5 6; do
    { printf "P5 1500 100 255\n" && head -c 150000 "$root/jem.h"; } >long/a/$i.pgm
    { printf "P5 1501 100 255\n" && tail -c 150100 "$root/jem.h"; } >long/b/$i.pgm
done
status 1 "margins above the limit" train $easy --dataset long --size 40 --pad --max-picture 1 --out new
check "a limit for all of them" grep -q "long: 12 of 12 pictures are too large: --max-picture 3 allows all$" err
rm -r long
for i in 2 5; do echo "not a picture" >wide/train/a/$i.png; done
head -c 9000 examples/gallery/score.png >wide/train/b/1.png
status 1 "pictures that cannot be read" train $easy $wide --iters 1 --out new
check "are all named" sh -c 'test "$(grep -c "^jem train: wide/train/[ab]/[125].png: is " err)" = 3'
check "and counted" grep -q "^jem train: wide: 3 of 12 pictures cannot be read: repair or remove" err
check "nothing is trained" test ! -e new
status 1 "and some above the limit" train $easy $wide --max-picture 1 --iters 1 --out new
check "has both remedies" grep -q "12 of 12 pictures cannot .* to PNG; --max-picture 2 allows the large ones$" err
mkdir -p wide/test/a && echo "not a picture" >wide/test/a/1.png
status 1 "nor test pictures" train $easy $wide --iters 1 --out new
check "are named with them" sh -c 'test "$(grep -c "^jem train: wide/t[a-z]*/[ab]/[125].png: is " err)" = 4'
check "and counted, too" grep -q "^jem train: test images: wide: 1 of 1 pictures cannot be read" err
rm -r wide/test
status 1 "a judge of pictures that cannot be read" judge --dataset wide --out new
check "they are named, too" sh -c 'test "$(grep -c "^jem judge: wide/train/[ab]/[125].png: is " err)" = 3'
check "nothing is written" test ! -e new

status 0 "unused labels" train $tiny --p-y-given-x-weight 0 --batches separate \
    --iters 5 --out l
check "no cross-entropy" sh -c 'tail -n 1 l/log.csv | cut -d, -f5,6 | grep -q "^,$"'
status 0 "unconditional" train $tiny --uncond --iters 2 --out m
refuses 2 "has no p(x,y)" sample m/last.safetensors --class 3 --out new

echo "options without effect, outputs that would replace others"
refuses 2 "--adam-rate is for --optimizer muon" train $tiny --optimizer adam --adam-rate .1 --out new
refuses 2 "--decay-rate is for --schedule steps" train $tiny --schedule cosine --decay-rate .1 --out new
refuses 2 "--chains-lr is for --schedule cosine" train $tiny --schedule steps --chains-lr .1 --out new
refuses 2 "--entropy is for --kl-weight" train $tiny --entropy .5 --out new
refuses 2 "--cutout is for --p-y-given-x-weight" train $tiny --p-y-given-x-weight 0 --cutout 4 \
    --batches separate --out new
refuses 2 "--sample-steps is for --score-weight" train $tiny --sample-steps 9 --out new
refuses 2 "--guidance is for p(x,y)" train $tiny --uncond --guidance 3 --out new
refuses 2 "--move-chains is for --shift" train $tiny --shift 0 --move-chains .5 --out new
refuses 2 "--plain-p-x is for training of p(x)" train $tiny --p-x-weight 0 --plain-p-x --out new
status 0 "what is off is no mistake" train $tiny --iters 1 --p-x-weight 0 --p-x-batch 0 --entropy 0 \
    --out idle
refuses 2 "--fraction is for models that learned a score" eval idle/last.safetensors samples \
    --fraction .5 --judge none --out new
refuses 2 "--noise-step is for models that learned a score" eval idle/last.safetensors impute \
    --noise-step .5 --out new
mkdir -p drawn
refuses 2 "drawn/000001.png is the name of a sample of --each" sample $model --each drawn \
    --out drawn/000001.png
refuses 2 "/drawn/000002.png is the name of a sample of --each" sample $model --each drawn/ \
    --out "$dir/drawn/000002.png"
touch wall
refuses 1 "wall/j.safetensors: cannot be created" judge --dataset digits --out wall/j.safetensors
refuses 1 "wall/c.safetensors: cannot be created" export $model wall/c.safetensors
refuses 1 "wall/s.safetensors: cannot be created" eval $model ood --save wall/s.safetensors
printf '12345678{}' >looks.bin
status 0 "a file that begins like a model is none" export $model looks.bin
status 0 "a folder that is missing" export $model made/for/it.safetensors
refuses 2 "--min-visits is for --from buffer" sample $model --min-visits 3 --out new
refuses 2 "--fraction is for models that learned" sample $model --fraction .5 --out new
refuses 2 "--sgld-lr is for --steps" sample $model --steps 0 --sgld-lr .5 --out new
refuses 2 "--chains is for --refine" eval $model attack --chains 3 --out new
refuses 2 "--share is for --hide random" eval $model impute --share .5 --out new
refuses 2 "--fraction is for --fresh-steps above 0" sample examples/models/mnist.safetensors \
    --fresh-steps 0 --fraction .5 --out new
refuses 2 "--noise-lo is for --score-weight" train $tiny --noise-lo .1 --out new
mkdir -p taken
refuses 1 "jem sample: taken: is a folder" sample $model --n 10000 --out taken
refuses 1 "jem eval: taken: is a folder" eval $model attack --smallest taken
refuses 2 "would be replaced" eval $model samples --judge kept.safetensors --keep kept.safetensors
refuses 2 "new would be written twice" sample $model --out new --chains new
refuses 2 "new would be written twice" eval $model samples --keep new --out new
refuses 2 "./new would be written twice" sample $model --out new --chains ./new
refuses 1 "enlarged 32 times, are too much for a picture" \
    sample examples/models/cifar10.safetensors --n 400 --zoom 32 --out new.png
check "too large, and no picture" test ! -e new.png
refuses 2 "--fresh-steps is for models that learned a score" export idle/last.safetensors new \
    --fresh-steps 9
refuses 2 "--last-sigma is for models that learned a score" export idle/last.safetensors new \
    --last-sigma .1
refuses 2 "--last-sigma is for models that learned a score" sample idle/last.safetensors \
    --last-sigma .1 --out new
refuses 2 "--guidance is for models of p(x,y)" export m/last.safetensors new --guidance 3
refuses 2 "--chains-lr is for chains that begin later" train $tiny --chains-from 0 --chains-lr .1 \
    --schedule cosine --out new
refuses 2 "is the best network of the run" sample $model --out idle/best.safetensors
check "it is still there" sh -c "'$jem' info idle/best.safetensors | grep -q network"
refuses 2 "new.onnx: a name that ends in .onnx is for a graph: add --onnx" export $model new.onnx
status 0 "a graph" export --onnx $model graph.onnx
refuses 1 "graph.onnx is an ONNX graph, for other programs" classify graph.onnx s1.png
refuses 1 "none.onnx: cannot be opened" classify none.onnx s1.png

status 0 "another network than the preset's" info examples/models/cifar10-unet.safetensors
says "options .* --unet .* --scale 1 "
status 0 "the preset's network" info examples/models/mnist-wide.safetensors
says "options *--preset fast --dataset mnist --precision bf16$"

echo "rows of a table"
# rows N SHIFT SEED: three kinds of machine as CSV without a header: four sensors, then the kind.
table_rows() {
    awk -v n="$1" -v shift="$2" -v seed="$3" '
        function normal() { return sqrt(-2 * log(1 - rand())) * cos(6.28318530718 * rand()) }
        BEGIN {
            srand(seed)
            split("idle run cool", name, " ")
            for (i = 0; i < n; i++) {
                kind = i % 3
                a = normal()
                printf "%.5g,%.5g,%.5g,%.5g,%s\n", 4 * kind + a, 1000 * (a + .2 * normal()),
                    1e-3 * (kind - a + .2 * normal()) + shift, 50 + normal(), name[kind + 1]
            }
        }'
}
{ echo "volt,rpm,bar,temp,state"; table_rows 600 0 1; } >rows.csv
cut -d, -f1-4 rows.csv >plain.csv
{ echo "label,temp,bar,when,rpm,volt"
  table_rows 200 0 2 | awk -F, '{ print "0," $4 "," $3 ",12:00," $2 "," $1 }'
  table_rows 200 .004 3 | awk -F, '{ print "1," $4 "," $3 ",12:01," $2 "," $1 }'; } >new.csv
brief="--threads 1 --iters 300 --print-every 50"
status 0 "one class" train plain.csv $brief --out t1
says "plain.csv: 600 rows of 4 numbers, without labels; 120 for validation"
says "jem score t1/best.safetensors FILE.csv"
check "its log has the loss and log p(x)" sh -c "head -n 1 t1/log.csv | grep -q ',nce,valid_log_p,' &&
    tail -n 1 t1/log.csv | cut -d, -f13,14 | grep -q '^[0-9.e-]*,-[0-9.]*$'"
check "and no accuracy of one class" sh -c 'tail -n 1 t1/log.csv | cut -d, -f5,6,10,11 | grep -qx ",,,"'
check "two curves are drawn" test "$(height t1/curves.png)" = 610
status 0 "the same, stopped" train plain.csv $brief --out t2 --stop-at 130
status 0 "stopped again" train --resume t2 --stop-at 171 --threads 2
status 0 "and resumed" train --resume t2
check "interrupted and whole are the same" same_run t1 t2
for columns in 12 14; do
    rm -rf t0 && cp -r t2 t0
    cut -d, -f1-$columns t2/log.csv >part1
    cut -d, -f17 t2/log.csv | paste -d, part1 - >t0/log.csv
    status 0 "an older log" train --resume t0 --iters 310
    check "gets the columns" awk -F, 'NF != 17 || (NR > 1 && $17 == "") { bad = 1 } END { exit bad }' \
        t0/log.csv
done
status 0 "another seed" train plain.csv $brief --seed 2 --out t3
check "another split" differs t1/last.safetensors t3/last.safetensors
status 0 "info" info t1/best.safetensors
says "rows       4 numbers: volt rpm bar temp"
says "log p(x) of rows (noise-contrastive estimation), familiarity"
says "calibrated: it can rate the familiarity of rows"
says "validation mean log p(x) -[0-9.]* of 120 rows$"
status 0 "info of a run" info t1/last.safetensors
says "health     retries after divergence: 0"
status 0 "columns by name, others are skipped" score t1/last.safetensors new.csv --out s.csv
says "400 rows: "
auroc=$(sed -n 's/.*AUROC of log p(x) \([0-9.]*\),.*/\1/p' out)
check "AUROC $auroc" sh -c "echo '$auroc' | awk '{ exit !(\$1 > .97) }'"
check "a line per row" test "$(grep -c '^[0-9]*,-*[0-9.e+]*,[0-9.]*,[a-z]*,' s.csv)" = 400
check "and names" grep -qx "row,log_p,familiarity,verdict,column,gain,better" s.csv
check "verdicts agree with the familiarity as it is printed" awk -F, '
    NR > 1 { verdict = $3 < .01 ? "strange" : $3 < .1 ? "odd" : "familiar"; bad += verdict != $4 }
    END { exit NR < 400 || bad }' s.csv
check "familiar rows have no column to blame" test "$(grep -c ',familiar,,,$' s.csv)" = \
    "$(grep -c familiar, s.csv)"
check "the shifted one is named" sh -c "tail -n 200 s.csv | grep strange | awk -F, '
    \$5 == \"bar\" && \$6 > 0 { n++ } END { exit !(NR > 100 && n > .95 * NR) }'"
status 0 "to standard output" score t1/last.safetensors new.csv --threads 2
check "the same lines" cmp out s.csv
status 0 "without columns to blame" score t1/last.safetensors new.csv --no-blame
cut -d, -f1-4 s.csv >few.csv
check "has the others" cmp out few.csv
check "a summary" grep -q "400 rows: .* familiar, .* odd, .* strange; mean log p(x)" err
status 0 "columns to keep" score t1/last.safetensors new.csv --no-blame --keep "when,label"
check "are beside the scores" test "$(sed -n '1p;2p;400p' out | cut -d, -f1,5- | tr '\n' /)" = \
    "row,when,label/1,12:00,0/399,12:01,1/"
cut -d, -f1-4 out >kept.csv
check "which are the same" cmp kept.csv few.csv
{ echo 'volt;"id, of row";rpm;bar;temp'; echo '1;"a, ""b""";2;3;4'; echo '1;c,d;x;3;4'; } >ids.csv
status 1 "a quoted one" score t1/last.safetensors ids.csv --keep '"id, of row",2' --out w.csv
check "is kept once" grep -q "column 'id, of row' is kept twice" err
status 1 "a row that cannot be read" score t1/last.safetensors ids.csv --keep '"id, of row"' --out w.csv
check "keeps them, too" test "$(cut -d, -f1,8- w.csv | tr '\n' /)" = \
    'row,"id, of row"/1,"a, ""b"""/2,"c,d"/'
awk -F, -v OFS=, 'NR > 1 { print "id" NR, $0 }' plain.csv >numbered.csv
status 1 "text without a header" score t1/last.safetensors numbered.csv
sed 1d plain.csv | awk -F, -v OFS=, '{ print NR, $0 }' >numbered.csv
"$jem" score t1/last.safetensors plain.csv --no-blame >few_plain.csv 2>err
status 0 "a number to keep" score t1/last.safetensors numbered.csv --keep 1 --no-blame
check "is not judged" test "$(sed -n 3p out)" = "$(sed 1d few_plain.csv | sed -n 2p),2"
refuses 1 "line 1: has no column 'who' to keep (its columns: label, temp, bar, when, rpm, volt)" \
    score t1/last.safetensors new.csv --keep who
refuses 1 "column 'temp' cannot be kept: the model judges it" \
    score t1/last.safetensors new.csv --keep temp
sed 1d plain.csv >bare.csv
status 0 "without a header, by position" score t1/last.safetensors bare.csv
cp out lines.csv
check "from a pipe" sh -c "cat bare.csv | '$jem' score t1/last.safetensors - --out piped.csv"
check "the same as from a file" cmp piped.csv lines.csv
status 0 "help of score" score --help
says "FILE -: standard input, rows as they arrive$"
# The second row is written into the pipe when the answer to the first has come back.
mkfifo rows_in rows_out
"$jem" score t1/last.safetensors - <rows_in >rows_out 2>err &
waits=$!
exec 8>rows_in 9<rows_out
sed -n '1,2p' plain.csv >&8
IFS= read -r first <&9
IFS= read -r second <&9
sed -n '3p' plain.csv >&8
IFS= read -r third <&9
exec 8>&-
check "ends with its input" wait $waits
exec 9<&-
check "rows are scored as they arrive" test "$first/$second/$third" = \
    "row,log_p,familiarity,verdict,column,gain,better/$(sed -n 2p lines.csv)/$(sed -n 3p lines.csv)"
status 0 "classes by name" train rows.csv --label state $brief --out t4
says "600 rows of 4 numbers, 3 classes; 120 for validation, 480 labels"
check "four curves are drawn" test "$(height t4/curves.png)" = 1190
{ head -n 3 rows.csv; echo "1,2,3,4,"; } >unlabelled.csv
refuses 1 "column .state. has no label" eval t4/last.safetensors --dataset unlabelled.csv
{ head -n 30 rows.csv; echo "1,2,3,4,NA"; } >unlabelled.csv
refuses 1 "column .state. has no label" train unlabelled.csv --label state --out new
awk -F, -v OFS=, 'NR == 1 { $5 = "label" } NR > 1 { $5 = 1 + NR % 2 } 1' rows.csv >from_one.csv
status 0 "labels from 1 on" score t1/last.safetensors from_one.csv
check "the lowest is usual" grep -q "label 1 against others: AUROC" err
awk -F, -v OFS=, 'NR == 1 { $5 = "label" } NR > 1 { $5 = 1 } 1' rows.csv >one.csv
status 0 "a single label, 1" train one.csv --iters 3 --n-valid 12 --out t18
says "one.csv: all rows have the label 1: only p(x) is learned"
check "the class has its name" sh -c "'$jem' info t18/last.safetensors | grep -q 'classes    1: 1$'"
awk -F, -v OFS=, 'NR == 1 { $5 = "label" } NR > 1 { $5 = NR % 3 ? -1 : 1 } 1' rows.csv >signs.csv
status 0 "two of three rows are of another label" score t18/last.safetensors signs.csv
check "the model's class is usual" grep -q "label 1 against others: AUROC" err
printf 'volt,rpm,bar,temp,label\nx,1,1,1,1\n' >unread.csv
status 1 "labels of rows that cannot be read" score t18/last.safetensors unread.csv --label label
status 1 "for classes, too" score t4/last.safetensors unread.csv --label label
sed 's/,-1$/,-1.0/; s/,1$/,1.0/; $s/,[^,]*$/,odd/' signs.csv >pandas.csv
status 0 "labels -1 and 1" train signs.csv --iters 3 --n-valid 12 --out t24
says "2 classes"
check "are two classes" sh -c "'$jem' info t24/last.safetensors | grep -q 'classes    2: -1, 1$'"
cp signs.csv copy.csv
status 0 "labels -1.0, 1.0 and a name" score t24/last.safetensors pandas.csv --out s.csv
check "are the model's" grep -q "accuracy [0-9]" out
status 0 "a path of this machine" train "$PWD/signs.csv" --iters 3 --n-valid 12 --out t26
status 0 "is not exported" export t26/last.safetensors t26.safetensors
check "but its name" sh -c "'$jem' info t26.safetensors | grep -q -e '--dataset signs.csv'"
refuses 2 "copy.csv: the model has learned its rows" eval t24/last.safetensors --dataset copy.csv
head -n 500 signs.csv >shorter.csv && mv shorter.csv signs.csv
status 0 "rows that have changed" eval t24/last.safetensors --dataset signs.csv
check "are noted" grep -q "signs.csv: has changed since training" err
refuses 2 "copy.csv: is not a model, and would be replaced" export t24/last.safetensors copy.csv
refuses 2 "must end in .csv" score t24/last.safetensors copy.csv --out new.png
printf 'a,b,note\n1,2,"two\nlines"\n' >lines.csv
refuses 1 "line 2: column 'note': a quoted value does not end in its line" \
    train lines.csv --drop note --out new
mkdir -p t25/curves.png
status 0 "a picture that cannot be drawn" train signs.csv --iters 3 --n-valid 12 --out t25
check "is reported" grep -q "curves.png is not drawn from log.csv; training continues" err
check "without loss" test -s t25/last.safetensors
status 0 "their labels" score t4/last.safetensors rows.csv --out s.csv
accuracy=$(sed -n 's/.*accuracy \([0-9]*\).*/\1/p' out)
check "accuracy $accuracy%" test "${accuracy:-0}" -ge 95
check "names of classes" grep -q "^[0-9]*,.*,familiar,cool,[01][.][0-9]*,,,$" s.csv
status 0 "the column of labels by number" train rows.csv --label 5 $brief --iters 20 --out t7
says "600 rows of 4 numbers, 3 classes"
sed 's/cool/cold/' rows.csv >cold.csv
status 0 "a label of no class" score t4/last.safetensors cold.csv --out s.csv
check "is named" grep -q "the label 'cold' of 200 rows is no class of the model" err
says "^labels idle, run against others: AUROC of log p(x) [01][.][0-9]*, of familiarity [01]"
status 0 "all labels known" score t4/last.safetensors rows.csv --out s.csv
check "no others" sh -c "! grep -q AUROC out"
status 0 "names" score t1/last.safetensors cold.csv --label state --out s.csv
says "^label [a-z]* against others: .* (--usual names all usual labels)$"
status 0 "usual ones" score t1/last.safetensors cold.csv --label state --usual "run, idle" --out s.csv
says "^labels idle, run against others: AUROC of log p(x) [01][.][0-9]*, of familiarity [01][.][0-9]*$"
status 0 "usual ones of a model with classes" score t4/last.safetensors rows.csv --usual run --out s.csv
says "^label run against others: AUROC"
status 0 "all are usual" score t1/last.safetensors rows.csv --label state --usual "run,idle,cool" --out s.csv
check "no AUROC" sh -c "! grep -q AUROC out"
status 1 "a usual label that is not there" score t1/last.safetensors rows.csv --label state \
    --usual "run,Idle" --out s.csv
check "is named" grep -q "jem score: --usual: no row has the label 'Idle'" err
check "the table is there" test "$(wc -l <s.csv)" -eq 601
check "without AUROC" sh -c "! grep -q AUROC out"
status 1 "a usual label without labels" score t1/last.safetensors plain.csv --usual run
check "needs them" grep -q "jem score: --usual: the rows have no labels (--label NAME)" err
refuses 2 "has no class 'cold'; its classes are .* (correct the label, or use jem score)" \
    eval t4/last.safetensors --dataset cold.csv --split train
head -n 2 rows.csv | sed 's/idle/cold/' >cold.csv
status 0 "a single row" score t4/last.safetensors cold.csv
check "its summary" grep -q "^1 row: [01] familiar" err
check "its label" grep -q "the label 'cold' of 1 row is no class of the model" err
# In other units, log p(x) is lower by log 1000 for each row: units are of the new data.
awk -F, -v OFS=, 'NR > 1 { $1 *= 1000 } 1' plain.csv >milli.csv
status 0 "weights of other data" train milli.csv --init t1/last.safetensors --iters 1 --out t8
says "milli.csv: 120 rows calibrate familiarity: .* 1% needs about 500"
mean() { sed -n 's/.*mean log p(x) \([-0-9.]*\).*/\1/p' err; }
status 0 "their scores" score t8/last.safetensors milli.csv
milli=$(mean)
check "says how few rows calibrated" grep -q "jem score: 120 rows calibrate familiarity" err
check "not in the summary, as 1% is within reach" sh -c '! grep -q "by chance" err'
status 0 "rows in other units" score t1/last.safetensors milli.csv
check "are suspected" grep -q "nearly all rows are strange: are their units" err
status 0 "those of the others" score t1/last.safetensors plain.csv
check "are not" sh -c "! grep -q 'nearly all' err"
check "log p(x) is $milli after $(mean)" \
    sh -c "awk 'BEGIN { d = $milli - $(mean) + log(1000); exit !(d > -.2 && d < .2) }'"
status 0 "a dozen rows calibrate" train plain.csv --n-valid 12 --iters 1 --out t10
says "plain.csv: only 12 rows calibrate .*: 1 in 13 usual rows may .* 1 in 100 needs at least 99 rows"
status 0 "their limit" score t10/last.safetensors plain.csv
check "cannot be 1%" grep -q "jem score: only 12 rows calibrate .*: 1 in 13 usual rows may" err
check "nor in the summary" \
    grep -q "^600 rows: .*; about 46 of 600 usual rows may be strange by chance (12 calibration rows); with at" err
status 0 "stopped before a validation" train plain.csv --n-valid 12 --iters 9 --stop-at 5 --out t16
status 0 "their limit, too" score t16/last.safetensors plain.csv
check "cannot be 1%, either" grep -q "jem score: only 12 rows calibrate" err
status 0 "help for a table" train plain.csv --help; says "and fast (for plain.csv)"
check "without the options of images" sh -c "grep -q -e --drop out && ! grep -q -e --shift -e --crop out"
awk -F, -v OFS=, 'NR > 1 { $5 = NR % 2 ? "low" : "inf" } 1' rows.csv >words.csv
status 0 "a class named inf" train words.csv --label state --iters 3 --n-valid 12 --out t17
says "600 rows of 4 numbers, 2 classes"
status 0 "its uses" info t17/last.safetensors
says "use        log p(x) of rows (noise-contrastive estimation), familiarity, classification$"
refuses 1 "column 1 of the model is 'volt', of the data 'temp'" \
    train new.csv --label none --drop when --init t1/last.safetensors --out new
refuses 1 "t1/last.safetensors: the model has 1 class, the data 3" \
    train rows.csv --label state --init t1/last.safetensors --out new
refuses 1 "not the data that this run started with: 600 rows then, 600 now" \
    train --resume t1 --dataset milli.csv
awk -F, -v OFS=, '{ print (NR == 1 ? "clock" : NR), $0 }' plain.csv >clock.csv
{ echo "2024-01-01T00:00,21.5,40"; echo "2024-01-01T00:10,21.6,41"
    awk 'BEGIN { for (i = 0; i < 98; i++) print "2024-01-02T00:00,2" i ".5,4" i % 10 }'; } >times.csv
{ printf 'temp \260C,bar\n' && cut -d, -f1,2 plain.csv | sed 1d; } >latin.csv
status 0 "names in Latin-1" train latin.csv --label none $brief --iters 1 --out u40
says "latin.csv: line 1 is not UTF-8, so letters in names of columns become '?': save it as CSV in UTF-8"
{ printf 'temp \302\260C,bar\n' && sed 1d latin.csv; } >utf8.csv
status 0 "names in UTF-8" train utf8.csv --label none $brief --iters 1 --out u41
check "have no note" sh -c "! grep -q UTF-8 out"
status 0 "a text column, dropped by number" train times.csv --drop 1 $brief --iters 1 --out u22
says "times.csv: 100 rows of 2 numbers"
sed '1,$s/^[^,]*/P-7: a long name of sixty-four letters or more that no column may have/' \
    times.csv >named.csv
status 0 "names of machines, dropped by number" train named.csv --drop 1 $brief --iters 1 --out u30
says "named.csv: 100 rows of 2 numbers"
{ echo "sample,400,410"; sed 1d times.csv; } >waves.csv
status 0 "names that are numbers" train waves.csv --drop 1 $brief --iters 1 --out u31
says "waves.csv: 99 rows of 2 numbers"
printf '"temp, C",bar\n21,1\n' >commas.csv
refuses 1 '(its columns: "temp, C", bar)' score t1/last.safetensors commas.csv
status 0 "kept by number" score u22/last.safetensors times.csv --keep 1
check "no row is lost" sh -c "grep -c ^ out | grep -q 101 && grep -q '2024-01-01T00:00' out"
awk -F, -v OFS=, '{ $5 = NR == 1 ? "state" : NR == 9 ? "nan" : NR % 2 "" } 1' rows.csv >nans.csv
refuses 1 "nans.csv, line 9: column 'state' has no label" train nans.csv --label state --out new
awk -F, -v OFS=, 'NR == 9 { $1 = "nan" } 1' plain.csv >nans.csv
refuses 1 "nans.csv, line 9: 'nan' in column .* is not a number: a missing value" \
    train nans.csv --label none --out new
status 0 "without a calibration" train plain.csv --label none $brief --n-valid 0 --iters 1 --out u23
status 0 "no verdicts" score u23/last.safetensors plain.csv
check "is said" grep -q "600 not judged (the model is not calibrated: train with --n-valid 99" err
awk -F, -v OFS=, '{ print $0, NR == 1 ? "label" : NR % 2 }' plain.csv >pairs.csv
status 0 "with labels" score u23/last.safetensors pairs.csv --label label
check "no AUROC of familiarity" sh -c "grep -q 'AUROC of log p(x)' err && ! grep -q familiarity.0 err"
awk -F, -v OFS=, 'NR > 1 { $5 = "kind" $5 } 1' rows.csv >kinds.csv
{ cat plain.csv && sed 1d milli.csv; } >more.csv
status 0 "weights of a part of the rows" train more.csv --init t1/last.safetensors $brief --iters 1 --out more
check "are reported" grep -q "other rows: if some of them are here again, it may have learned" err
status 0 "weights of the same rows" train plain.csv --init t1/last.safetensors $brief --iters 1 --out more2
check "are not" sh -c "! grep -q 'rows of validation' err"
status 0 "weights of the same rows, another seed" train plain.csv --init t1/last.safetensors $brief \
    --seed 7 --iters 1 --out more3
check "are reported, too" grep -q "has learned some of the rows of validation here" err
status 0 "weights of other classes" train kinds.csv --label state --init t4/last.safetensors $brief \
    --iters 1 --out u24
check "are reported" grep -q "class 0 of the model is .*, of the data 'kind.*the weights of another" err
status 0 "a clock" train clock.csv $brief --iters 1 --out t9
says "column 'clock' never falls from row to row: .*: train again with --drop clock (and another --out)"
check "and no sensor" test "$(grep -c 'never falls' out)" = 2
check "again at the end" test "$(tail -n 1 out | grep -c 'never falls')" = 1
awk -F, -v OFS=, 'NR == 1 { print "volt,\"rpm, max\",bar,flat,kind" } NR > 1 {
    print (NR % 99 ? $1 : -999), (NR == 7 ? 99999999 : $2), $3, 5, NR == 9 ? "odd" : $5 }' \
    rows.csv >notes.csv
status 0 "notes" train notes.csv --label kind $brief --iters 1 --out t19
says "notes.csv: column 'volt': 6 of 600 values are -999, the others .*: if that is a code .*(--drop volt)$"
says "column 'rpm, max': 1 of 600 values are far from the others (1e+08; .*(--drop '\"rpm, max\"')$"
says "column 'flat' is 5 in every row: .*; --drop flat skips it$"
says "column 'kind': 1 of 4 labels occur once or twice, such as 'odd': .*--drop kind)$"
check "once" test "$(grep -c "^notes.csv: column" out)" = 4
awk 'BEGIN { print "k"; for (i = 0; i < 600; i++) print i % 60 == 5 ? 99999999 : 7000 }' >codes.csv
status 0 "a column of one value and codes" train codes.csv --iters 60 --out codes
says "codes.csv: 600 rows of 1 number, without labels"
says "column 'k': 10 of 600 values are 100000000, the others 7000 to 7000: if that is a code"
check "it is calibrated" sh -c "! grep -q 'no familiarity' out && test -s codes/best.safetensors"
awk -v OFS=, 'BEGIN { print "k,alarm"; for (i = 0; i < 600; i++) print i % 60, i % 200 == 5 }' >alarm.csv
# regimes EVERY: of 600 rows, one in EVERY is of a machine that is off.
regimes() {
    awk -v every="$1" 'BEGIN {
        print "rpm,amps,state"
        for (i = 0; i < 600; i++) {
            off = i % every == 3
            printf "%g,%g,%s\n", off ? 0 : 1450 + i % 17, off ? i % 7 / 100 : 5 + i % 13 / 10,
                off ? "off" : "run"
        }
    }'
}
regimes 40 >regimes.csv
status 0 "a rare regime" train regimes.csv --label none --drop state --iters 1 --out regimes1
says "column 'rpm': 15 of 600 values are far .*: if they are a rare regime, keep them; if .*(--drop rpm)$"
status 0 "a rare regime with a label" train regimes.csv --label state --iters 1 --out regimes2
check "is not taken for errors" sh -c "! grep -q 'far from the others' out"
sed 's/,off$/,run/; 9,200s/run$/walk/' regimes.csv >mixed.csv
status 0 "a rare regime without its label" train mixed.csv --label state --iters 1 --out regimes3
says "column 'rpm': 15 of 600 values are far"
awk -F, -v OFS=, 'NR > 1 { $3 = "id" NR } 1' regimes.csv >mixed.csv
status 0 "labels that are ids" train mixed.csv --label state --iters 1 --out regimes4
says "column 'rpm': 15 of 600 values are far"
regimes 15 >regimes.csv
status 0 "a regime of 7%" train regimes.csv --label none --drop state --iters 1 --out regimes5
check "is not taken for errors, either" sh -c "! grep -q 'far from the others' out"
awk -v OFS=, 'BEGIN { print "often,high,power,offset"
    for (i = 0; i < 600; i++)
        print (i % 10 < 4 ? -9999 : 20 + i % 7), (i % 2 ? 65535 : 300 + i % 9), (i % 3 ? 0 : 999 - i),
            101325000 + i % 16 }' >often.csv
awk -v OFS=, 'BEGIN { print "p,q"; for (i = 0; i < 600; i++) printf "%.9g,%d\n", 1013250 + i % 7 / 8, i % 11 }' >pascal.csv
printf 'p,q\n1013300,5\n' >far.csv
status 0 "a large offset" train pascal.csv --iters 60 --out pascal
status 0 "a row beyond it" score pascal/last.safetensors far.csv
check "the better value has all digits" grep -q ',strange,p,[0-9.]*,10132[45][0-9][.][0-9]' out
status 0 "codes in many rows" train often.csv --iters 1 --out often
says "column 'often': 240 of 600 values are -9999, the others 20 to 26: if that is a code of errors"
says "column 'high': 300 of 600 values are 65535, the others 300 to 308: if that is a code of errors"
check "a machine that is often off has none" sh -c "! grep -q \"column 'power'\" out"
says "column 'offset' is 1.01325e+08 with a deviation of only [1-9].*: subtract 1.01325e+08 from it"
status 0 "a flag that is rarely set" train alarm.csv --iters 1 --out alarm
check "is no code" sh -c "! grep -q \"column 'alarm'\" out"
status 0 "their remedies" train notes.csv --label none --drop 'volt,"rpm, max",flat,kind' $brief \
    --iters 1 --out t20
check "no notes" sh -c "! grep -q column out"
awk -F, -v OFS=, '{ $5 = NR == 1 ? "id" : "id" NR } 1' rows.csv >ids.csv
awk -F, -v OFS=, 'NR > 1 { $5 = NR % 4 ? "on" : "On" } 1' rows.csv >cases.csv
status 0 "labels in two cases" train cases.csv --label state $brief --iters 1 --out cases
says "cases.csv: column 'state': labels that .* case, such as 'On' (150 rows) and 'on' (450), are diff"
status 0 "labels in one case" train rows.csv --label state $brief --iters 1 --out cases2
check "have no note" sh -c "! grep -q 'only in case' out"
status 0 "a label per row" train ids.csv --label id $brief --iters 1 --out t21
says "column 'id' has 600 different labels in 600 rows: .*--label none --drop id skips them"
sed '5s/^[^,]*//; 9s/^[^,]*/x/' rows.csv >holes.csv
refuses 1 "holes.csv, line 5: '' in column .*; 2 of 600 rows cannot be read (--skip-rows leaves" \
    train holes.csv --label state --out new
awk -F, -v OFS=, 'NR > 1 && NR % 3 { $1 = "id" NR } 1' rows.csv >ids.csv
refuses 1 "'id2' in column .*; 400 of 600 rows (most) cannot be read (--skip-rows leaves them out, --drop skips" \
    train ids.csv --label state --out new
status 0 "rows without a value left out" train holes.csv --label state --skip-rows $brief \
    --iters 20 --out t15
says "holes.csv: 2 rows cannot be read, and are left out; the first: holes.csv, line 5: '' in"
says "598 rows of 4 numbers, 3 classes"
status 0 "and from a test set" eval t15/last.safetensors --dataset holes.csv --split train
says "holes.csv, 598 rows: accuracy"
check "counted" grep -q "holes.csv: 2 rows cannot be read, and are left out" err
refuses 1 "2 of 600 rows cannot be read (--skip-rows leaves them out)$" \
    eval t4/last.safetensors --dataset holes.csv
status 0 "leaves them out" eval t4/last.safetensors --dataset holes.csv --skip-rows
says "holes.csv, 598 rows: accuracy"
refuses 1 "2 of 600 rows cannot be read" \
    eval t15/last.safetensors --dataset holes.csv --split train --no-skip-rows
awk -F, -v OFS=, 'NR == 1 { $5 = "kind" } 1' holes.csv >kinds_too.csv
refuses 1 "line 1: has no column 'none_such' of labels" \
    eval t4/last.safetensors --dataset kinds_too.csv --label none_such
status 0 "labels of another name" eval t4/last.safetensors --dataset kinds_too.csv --label kind --skip-rows
says "kinds_too.csv, 598 rows: accuracy"
for option in "--label state" --skip-rows; do
    refuses 2 "jem eval: ${option%% *} is for a table, whose name ends in .csv" \
        eval examples/models/mnist.safetensors --dataset digits $option
done
refuses 2 "--skip-rows is for a table, whose name ends in .csv" train digits --skip-rows --out new
sed 1d rows.csv >bare.csv
sed 1d plain.csv >numbers.csv
status 0 "a column dropped, without a header" train numbers.csv --drop 2 --label none $brief \
    --iters 20 --out t11
status 0 "dropped again" score t11/last.safetensors numbers.csv
status 0 "chains of four columns, without a picture" train rows.csv --label state --iters 20 \
    --nce-weight 0 --p-x-weight .1 --sgld-lr .01 --out t12
check "none is written" test ! -e t12/samples.png
status 0 "the last column, without a header" train bare.csv --label last $brief --iters 20 --out t5
says "3 classes"
status 0 "rows with labels" score t5/last.safetensors bare.csv
check "they are compared" grep -q "accuracy" err
cut -d, -f1-4 bare.csv >few.csv
status 0 "rows without labels" score t5/last.safetensors few.csv
check "are not" sh -c "! grep -q accuracy err"
status 0 "a column less" train rows.csv --drop "state,temp" $brief --iters 20 --out t6
says "600 rows of 3 numbers, without labels"
head -n 600 rows.csv >other.csv                      # not the same rows
status 0 "eval of other rows" eval t4/last.safetensors --dataset other.csv
says "other.csv, 599 rows: accuracy [0-9.]*%, -log p(y|x) [0-9.]*, mean log p(x)"
refuses 2 "other.csv is a table" eval t4/last.safetensors --dataset other.csv --mirror
status 0 "a default folder" train plain.csv $brief --iters 3
check "is of the file's name" test -s runs/plain/last.safetensors
status 0 "the last column by its name" train rows.csv --label last --drop temp $brief --iters 20 \
    --out t13
awk -F, -v OFS=, '{ print $5, $1, $2, $3 }' rows.csv >first.csv
status 0 "the same, first" score t13/last.safetensors first.csv
check "are labels" grep -q "accuracy" err
status 0 "another one, last" score t13/last.safetensors plain.csv
check "is no label" sh -c "! grep -q accuracy err"
status 0 "the paper's preset" train rows.csv --label state --preset paper --net mlp --iters 3 \
    --n-valid 100 --print-every 1 --out t14
refuses 2 "rows.csv: the model has learned its rows: --dataset OTHER.csv" eval t4/last.safetensors
refuses 1 "rows.csv, line 2: 'idle' in column 'state' is not a number (--drop skips columns" \
    train rows.csv --out new
refuses 1 "rows.csv, line 1: has no column 'kind' of labels (its columns: volt, rpm, bar, temp, state)" \
    train rows.csv --label kind --out new
refuses 1 "line 1: has no column 'kind' to drop (its columns: volt, rpm, bar, temp, state)" \
    train rows.csv --drop kind --out new
{ echo "volt,rpm,,volt"; sed 1d plain.csv; } >twins.csv
refuses 1 "twins.csv, line 1: columns 1 and 4 are both named 'volt': rename one" \
    train twins.csv --out new
refuses 1 "twins.csv, line 1: columns 1 and 4 .*: rename one, or give its number" \
    train twins.csv --drop volt --out new
refuses 1 "twins.csv, line 1: column 3 has no name: name it, or skip it (--drop 3)" \
    train twins.csv --drop 4 --out new
status 0 "columns by number" train twins.csv --drop "3,4" $brief --iters 1 --out t22
refuses 1 "columns 1 and 4 are both named 'volt': the model needs one, so rename the other" \
    score t22/last.safetensors twins.csv
{ echo "volt,rpm,bar,temp"; echo "1,5,2,5,3,5,4,5"; } >points.csv
refuses 1 "points.csv, line 2: more than 4 values .*; if it has decimal commas, write points$" \
    train points.csv --out new
sed 1q plain.csv >header.csv
refuses 1 "header.csv: no rows of numbers after the names of columns" \
    score t1/last.safetensors header.csv
cut -d, -f1,2 rows.csv >few.csv
refuses 1 "few.csv, line 1: has no column 'bar', which the model needs" \
    score t1/last.safetensors few.csv
cut -d, -f1,2 bare.csv >few.csv
refuses 1 "few.csv, line 1: 2 columns of values, but the model has 4" score t1/last.safetensors few.csv
sed '7s/,/,x/' plain.csv >wrong.csv
refuses 1 "wrong.csv, line 7: 'x[-0-9.]*' in column 'rpm' is not a number" train wrong.csv --out new
status 1 "a row that cannot be read" score t1/last.safetensors wrong.csv --out w.csv
check "is named" grep -q "wrong.csv, line 7: 'x[-0-9.]*' in column 'rpm' is not a number" err
check "with a remedy" grep -q "is not a number; such rows have no score until they are corrected" err
check "is unreadable" test "$(sed -n 7p w.csv)" = "6,,,unreadable,,,"
alarm=$(sed -n "s/.*\`awk -F, '\(NR > 1 .*\)' scores.csv\`.*/\1/p" "$root/README.md")
check "the alarm of README counts it" sh -c "awk -F, '${alarm:-0}' w.csv | grep -q '^6,,,unreadable'"
alarm=$(sed -n "s/.*grep -E '\(.*\)'$/\1/p" "$root/tools/README.md")
check "and that of tools/README" sh -c "grep -E '${alarm:-none}' w.csv | grep -q '^6,,,unreadable'"
check "the others are not" test "$(grep -c '^[0-9]*,-*[0-9.e+-]*,[0-9.]\+,[a-z]*,' w.csv)" = 599
says "600 rows: .* 1 unreadable; mean log p(x)"
if mkfifo rows.pipe 2>/dev/null; then
    echo old >kept.csv
    for rows in 0 3; do
        { head -n $((rows ? rows + 1 : 0)) rows.csv && echo >written.$rows && exec sleep 60; } \
            >rows.pipe &
        writer=$!
        "$jem" score t4/last.safetensors - --out kept.csv <rows.pipe >out 2>err &
        reader=$!
        until [ -e written.$rows ] || ! kill -0 $reader 2>/dev/null; do sleep .1; done
        sleep 1
        kill -TERM $reader
        wait $reader
        check "a stream that is stopped after $rows rows" test $? = 143
        kill $writer
        [ $rows != 0 ] || check "replaces no file without rows" grep -qx old kept.csv
    done
    stopped=$(sed -n 's/.*stopped: kept.csv has the first \([0-9]*\) rows/\1/p' err)
    [ -z "$stopped" ] || check "has $stopped rows" test "$(wc -l <kept.csv)" -eq $((stopped + 1))
    rm rows.pipe
fi
head -n 9 plain.csv >short.csv
refuses 2 "short.csv: has 8 rows: 20 at least are needed" train short.csv --out new
refuses 1 "nowhere.csv: cannot be opened: No such file" score t1/last.safetensors nowhere.csv
sed 's/,/;/g; s/\./,/g' plain.csv >commas.csv
status 0 "decimal commas between semicolons" train commas.csv $brief --out commas
says "commas.csv: commas in numbers are read as decimal points"
numbers commas/best.safetensors >part1
numbers t1/best.safetensors >part2
check "the same network as from points" sh -c '[ -s part1 ] && cmp part1 part2'
status 0 "rows with commas" score t1/last.safetensors commas.csv --out w.csv
status 0 "rows with points" score t1/last.safetensors plain.csv --out s.csv
check "the same scores" cmp w.csv s.csv
sed '9s/[^;]*/1.234,5/' commas.csv >thousands.csv
refuses 1 "thousands.csv, line 9: '1.234,5' in column 'volt' is not a number (a comma and a point" \
    train thousands.csv --out new
status 1 "a row with both" score t1/last.safetensors thousands.csv --out w.csv
check "is unreadable" test "$(sed -n 9p w.csv)" = "8,,,unreadable,,,"
refuses 1 "nowhere.csv: No such file" train nowhere.csv --out new
refuses 2 "size is for images" train plain.csv --size 8 --out new
refuses 2 "label is for a table" train --label x --out new
refuses 2 "needs --net mlp" train plain.csv --net convnet --widths 8 --out new
refuses 2 "n-valid -1 is for a CSV file" train --n-valid -1 --out new
refuses 2 "has one class: --nce-weight 1" train plain.csv --nce-weight 0 --p-x-weight 0 --out new
refuses 2 "has rows of 4 numbers, not images" sample t1/last.safetensors --out new
refuses 2 "has rows of 4 numbers, not images" eval t1/last.safetensors ood
refuses 2 "has images of 28 x 28, not rows" score examples/models/mnist.safetensors plain.csv

echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
