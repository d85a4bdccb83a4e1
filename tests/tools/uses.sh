#!/bin/sh
# `jem eval MODEL calibration|ood|attack|impute|noise|samples`, end to end, on the MNIST model and
# the digits that ship. Says what failed, and ends with the line `N passed, N failed`.
BUILD=${BUILD:-build}
export OMP_NUM_THREADS=1
passed=0 failed=0
root=$PWD dir=$PWD/$BUILD/uses
case $BUILD in /*) jem=$BUILD/jem dir=$BUILD/uses ;; *) jem=$root/$BUILD/jem ;; esac
[ -x "$jem" ] || { echo "$jem is not there"; echo "0 passed, 1 failed"; exit 1; }
rm -rf "$dir"
mkdir -p "$dir" && cd "$dir" || exit 1
ln -s "$root/examples" examples
model=examples/models/mnist.safetensors plain=examples/models/mnist-plain.safetensors

not_ok() {
    failed=$((failed + 1))
    echo "FAILED $1"
    for f in out err; do tail -n 3 $f | cut -c 1-300; done
}
# check NAME COMMAND...: the command succeeds.
check() {
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then passed=$((passed + 1)); else not_ok "$name"; fi
}
# status N NAME ARGUMENTS...: jem eval exits with N; what it says is in out and err.
status() {
    want=$1 name=$2
    shift 2
    "$jem" eval "$@" >out 2>err </dev/null
    is=$?
    if [ $is = "$want" ]; then passed=$((passed + 1))
    else not_ok "$name: status $is, not $want: $*"; fi
}
says() { if grep -q -e "$1" out; then passed=$((passed + 1)); else not_ok "says: $1"; fi; }
refuses() {
    want=$1 pattern=$2
    shift 2
    status "$want" "$pattern" "$@" --out new.png
    check "says: $pattern" grep -q -e "$pattern" err
    check "$pattern: no picture" test ! -e new.png
}
# number N ROW: the Nth number in the last row of `out` that begins so.
number() {
    grep "^ *$2" out | tail -n 1 | sed "s/^ *$2//" | grep -o '[0-9.][0-9.]*' | sed -n "$1p"
}
# holds NAME A OP B: a comparison of numbers.
holds() { check "$1: $2 $3 $4" awk "BEGIN { exit !($2 $3 $4) }" /dev/null; }
is_png() { [ "$(head -c 4 "$1" | tail -c 3)" = PNG ] && [ "$(wc -c <"$1")" -gt 1000 ]; }
# numbers N B: N bytes, each of them B.
numbers() { head -c "$1" /dev/zero | tr '\0' "\\$(printf %o "$2")"; }
# idx NAME N SIDE PIXELS LABELS: N grey images, their bytes and labels out of files, as IDX.
idx() {
    big() { printf "\\0\\0\\$(printf %o $(($1 / 256)))\\$(printf %o $(($1 % 256)))"; }
    { printf '\0\0\10\3'; big "$2"; big "$3"; big "$3"; cat $4; } >"$1-images-idx3-ubyte"
    { printf '\0\0\10\1'; big "$2"; cat $5; } >"$1-labels-idx1-ubyte"
}

echo "help and what cannot be"
status 0 "eval --help" $model --help
says "calibration|ood|attack|impute|noise|samples"
status 0 "options first" --n 100 $model calibration --dataset digits --out first.png
says "ECE"
check "and a picture" is_png first.png
status 0 "an option and its value in one word" $model --dataset=digits --n=20 --out=first.png \
    calibration
says "ECE"
status 0 "what is asked for, behind --help" $model --help calibration
says "jem eval MODEL calibration"
status 0 "and behind --" --dataset digits --n 20 --out first.png $model -- calibration
says "ECE"
status 2 "a value that is a name" $model --out ood --nowhere
check "is none: it is no option of eval alone" grep -q "unknown option --out" err
for what in calibration ood attack impute noise samples; do
    status 0 "$what --help" $model $what --help
    says "jem eval MODEL $what"
    refuses 1 "nowhere.safetensors: cannot be opened" nowhere.safetensors $what
    refuses 2 "n 0: a whole number" $model $what --n 0
    refuses 1 "no such folder" $model $what --dataset ./nowhere
done
refuses 2 "jem eval MODEL attack" attack
refuses 2 "jem eval MODEL ood" $model ood another
refuses 2 "eps .1: must be increasing" $model attack --dataset digits --eps .2,.1
refuses 2 "eps ,: 0 entries; 1 to 12 are allowed" $model attack --dataset digits --eps ,
refuses 2 "13 entries; 1 to 12 are allowed" $model attack --dataset digits \
    --eps 1,2,3,4,5,6,7,8,9,10,11,12,13
refuses 2 "eps x: must be increasing" $model attack --dataset digits --eps x
refuses 2 "eps 2/: must be increasing" $model attack --dataset digits --eps 1/255,2/
refuses 2 "eps 1/0: must be increasing" $model attack --dataset digits --eps 1/0
refuses 2 "choose from half" $model impute --hide all
refuses 1 "nowhere.safetensors: cannot be opened" $model attack --beside nowhere.safetensors \
    --dataset digits
refuses 2 "digits has images (1,28,28)" \
    $model calibration --beside examples/models/cifar10.safetensors --dataset digits
status 1 "a folder that is not there" $model calibration --dataset digits --n 20 --out out/where.png
check "says so" grep -q "out/where.png: .*cannot be" err

echo "calibration"
status 0 "calibration" $model calibration --dataset digits --out c.png --beside $model
check "c.png" is_png c.png
holds "accuracy" "$(number 2 'mnist  ')" ">" 97
holds "a temperature" "$(number 1 'T fitted')" "<" 1
error=$(number 4 "mnist  ")
right=$(number 2 "mnist  ")
check "beside itself: the same numbers" test "$(grep -c "^  mnist  .*${error:-none}" out)" = 2
status 0 "accuracy" $model --dataset digits
says "1000 images: accuracy ${right:-0}%"
status 0 "a plain classifier" $plain calibration --dataset digits --out c.png
before=$(number 4 "mnist-plain  ")
fitted=$(number 4 "T fitted")
holds "its ECE, fitted" "${fitted:-9}" "<" "${before:-0}"
status 0 "its temperature" $plain calibration --dataset digits --out c.png \
    --save tempered.safetensors
says "tempered.safetensors: the model, whose answers divide its logits by a temperature of [0-9.][0-9.]*"
check "is stored" grep -aq '"jem.temperature":"[0-9.]*"' tempered.safetensors
check "with its origin" grep -aq '"run.tempered":"1000 .*images of digits"' tempered.safetensors
status 0 "which jem eval leaves out" tempered.safetensors --dataset digits
says "(at temperature 1; jem classify divides the logits by [0-9.][0-9.]*)"

echo "ood"
"$jem" train --dataset digits --iters 2 --widths 8,8 --n-steps 2 --n-valid 0 --out t >out 2>err
status 0 "ood, not calibrated" t/last.safetensors ood --n 100 --other digits --out o.png \
    --save c.jem
says "calibrated with 5000 training images"
check "their count is stored" grep -aq '"run.calibrated":"5000"' c.jem
before=$(number 6 mean)
echo "1,2" >table.csv
refuses 1 "table.csv is a table; the model has images" $model ood --n 20 --dataset digits \
    --other table.csv
cp -r t again && cp t/last.safetensors t.jem
refuses 2 "t/last.safetensors and t/../t/last.safetensors are the same file" t/last.safetensors ood \
    --n 20 --other digits --save t/../t/last.safetensors
check "nothing was measured" test ! -s out
refuses 2 "again/last.safetensors: contains a run" t/last.safetensors ood --n 20 --other digits \
    --save again/last.safetensors
refuses 2 "c.jem and ./c.jem are the same file" t/last.safetensors ood --n 20 --other digits \
    --beside c.jem --save ./c.jem
check "the run is as it was" cmp t/last.safetensors t.jem
check "the other too" cmp again/last.safetensors t.jem
"$jem" export c.jem again/last.safetensors >out 2>err
check "export: not onto a run" test $? = 2
check "says so" grep -q "jem export: again/last.safetensors: contains a run" err
check "nor was it" cmp again/last.safetensors t.jem
status 0 "ood, calibrated" c.jem ood --n 100 --other digits --out o.png
check "nothing to calibrate" sh -c '! grep -q calibrated out'
check "the same numbers: $before" test "$(number 6 mean)" = "${before:-none}"
check "false alarms of each class" test "$(grep -c "^  [0-9]   *10  .*%" out)" = 10
status 0 "ood, two scores" c.jem ood --n 100 --other digits --out o.png --scores usual,logp \
    --calibrate 500
says "calibrated with 500 training images"
says "processor time: [0-9.]* ms an answer, [0-9.]* times that of its logits"
check "two columns, images and seconds" test "$(grep '^  black' out | wc -w)" = 5
refuses 2 "--scores mode: no such score; there are logp " c.jem ood --n 20 --other digits \
    --scores logp,mode
status 0 "ood" $model ood --dataset digits --n 100 --data nowhere --out o.png
check "o.png" is_png o.png
check "default data sets that are missing are left out" test "$(grep -c "left out: now" err)" = 2
check "MNIST is no other: the digits are of it" sh -c '! grep -q "left out: .*/mnist" err'
holds "black pictures, log p(x)" "$(number 1 black)" ">" .97
holds "black pictures, usual" "$(number 6 black)" ">" .97
holds "noise, usual" "$(number 6 'uniform noise')" ">" .999
holds "a mean" "$(number 6 mean)" ">" .94
status 0 "ood beside" $model ood --dataset digits --n 40 --other digits --beside $plain --out o.png
check "a row more for each of nine, and the mean" test "$(grep -c '^  mnist-plain' out)" = 10
check "the data set itself is not an outlier" sh -c '! grep -q "^  digits" out'
refuses 1 "other: ./nothing: no such folder" $model ood --dataset digits --n 40 \
    --other digits,./nothing
check "nothing was measured" test ! -s out
mkdir -p damaged/test/left damaged/test/right
for i in 1 2; do echo "no picture" | tee damaged/test/left/$i.png >damaged/test/right/$i.png; done
cp -R damaged/test damaged/train
status 1 "other pictures that cannot be read" $model ood --dataset digits --n 40 --other damaged
check "are all named" test "$(grep -c "^jem eval: damaged/test/[a-z]*/[12].png: is " err)" = 4
refuses 2 "other a,.*: 9 entries; 0 to 8 are allowed" $model ood --dataset digits \
    --other a,b,c,d,e,f,g,h,i
mkdir sorted
numbers 4096 0 >black && numbers 4096 255 >white && numbers 64 0 >zeros && numbers 64 1 >ones
idx sorted/test 128 8 "black white" "zeros ones"
status 0 "class after class" $model ood --dataset digits --n 40 --other ./sorted --out o.png
holds "black ones and white ones, rise" "$(number 4 '..sorted')" ">" .2
status 0 "ood beside itself" $model ood --dataset digits --n 40 --other digits --beside $model \
    --out o.png
both=$(number 6 mnist)
check "the same numbers" test "$(number 6 mean)" = "${both:-none}"
holds "what is none moves, in ten steps that suit the network" "$(number 5 'two images mixed')" \
    ">" .95
cat >bins.c <<'END'
#include "tools/support/measures.h"
int main(void) {
    static const double v[] = { -1e30, -.1, 0, 1.9, 2, 59.9, 60, 1e30, INFINITY, NAN };
    static const int is[] = { 0, 0, 0, 1, 2, 59, 59, 59, 59, 0 };
    int wrong = 0;
    for (int i = 0; i < 10; i++) wrong += measure_bin(v[i], 0, 60, 60) != is[i];
    return wrong;
}
END
${CC:-cc} -std=c99 -I"$root" bins.c -o bins -lm >out 2>err
check "the bars of a histogram, also for what no int holds" ./bins
status 0 "fpr95" $model ood --dataset digits --n 50 --measure fpr95 --other digits --out o.png
says "FPR at 95% TPR of 50 test images"
holds "noise is let in" "$(number 6 'uniform noise')" == 0

echo "attack"
status 0 "attack" $model attack --dataset digits --n 60 --steps 10 --eps 0,.05,.1,.3 --out a.png
check "a.png" is_png a.png
holds "nothing done, FGSM" "$(number 1 '0  ')" ">" 95
holds "nothing done, PGD" "$(number 2 '0  ')" == "$(number 1 '0  ')"
holds "a little" "$(number 2 '0.05')" ">" 85
holds "much" "$(number 2 '0.3 ')" "<" 40
holds "PGD beats FGSM" "$(number 2 '0.3 ')" "<" "$(number 1 '0.3 ')"
cp out first
status 0 "attack again" $model attack --dataset digits --n 60 --steps 10 --eps 0,.05,.1,.3 \
    --out a.png --threads 2
check "the same numbers" cmp out first
status 0 "L2" $model attack --dataset digits --n 40 --steps 10 --norm l2 --eps 0,1,9 --out a.png
holds "L2 of 1" "$(number 2 '1  ')" ">" 60
holds "L2 of 9" "$(number 2 '9  ')" "<" 20
says "attack, L2, 40 images; FGSM: 1 step; PGD: 10 steps, 1 start$"
says "^eps: most that the root of the sum of squared changes may be, for pixels in \[0,1\]"

# eps_of ARGUMENTS...: the eps of the table.
eps_of() {
    status 0 "eps: $*" "$@" --n 2 --steps 1 --out a.png
    echo $(sed -n 's/^  \([0-9][^ ]*\)  .*%.*/\1/p' out)
}
mkdir -p photographs/left photographs/right
for i in 1 2 3 4 5 6 7 8 9 10; do
    cp examples/gallery/curves.png photographs/left/$i.png
    cp examples/gallery/cifar10-curves.png photographs/right/$i.png
done
"$jem" train --dataset ./photographs --size 16 --crop --iters 1 --widths 8,8 --n-steps 1 --n-valid 2 \
    --out colour >out 2>err
colour=colour/last.safetensors
check "photographs" test "$(eps_of $colour attack)" = "0 1/255 2/255 4/255 8/255"
check "photographs, L2" test "$(eps_of $colour attack --norm l2)" = "0 0.125 0.25 0.5 1"
check "digits" test "$(eps_of $model attack --dataset digits)" = "0 0.025 0.05 0.1 0.15 0.2 0.3"
check "digits, L2" test "$(eps_of $model attack --dataset digits --norm l2)" = "0 0.25 0.5 1 1.5 2 3"

status 0 "pictures and labels only" $model attack --dataset digits --n 20 --steps 10 --norm l2 \
    --eps 1,3,9 --queries 300 --smallest small.png --beside $model --out a.png
check "small.png" is_png small.png
says "mnist, labels only, 300 queries per image, on [12][0-9] of 20"
far=$(grep "labels only" out | head -n 1 | grep -o "[0-9.]* (50%)" | cut -d ' ' -f 1)
holds "labels only: farther than the least eps, nearer than another digit" "${far:-0}" ">" 1
holds "labels only, an upper end" "${far:-99}" "<" 9
"$jem" train --dataset digits --size 40 --iters 1 --widths 8,8 --n-steps 1 --n-valid 0 \
    --out large >out 2>err
status 0 "beside a model of larger images" $model attack --dataset digits --n 20 --steps 1 \
    --eps 0,.3 --smallest small.png --beside large/last.safetensors --out a.png
says "large has images of another shape: it is not in the picture"
says "^  0  .*%  .*%  .*%  .*%"
check "both models' least eps" test "$(grep -c '^  \(mnist\|large\)  .*  0.3' out)" = 2
status 0 "refined" $model attack --dataset digits --n 20 --steps 3 --eps 0,.3 --refine 3 --chains 2 \
    --out a.png
says "refined first: 3 SGLD steps of 2 chains; gradients through"
holds "refined, nothing done" "$(number 2 '0  ')" ">" 80
holds "refined, much" "$(number 2 '0.3 ')" "<" "$(number 2 '0  ')"
status 0 "straight" $model attack --dataset digits --n 20 --steps 3 --eps 0,.3 --refine 3 --chains 2 \
    --gradient straight --out a.png
says "past the steps"

echo "impute"
for hide in half block random; do
    status 0 "impute $hide" $model impute --dataset digits --n 16 --steps 60 --hide $hide \
        --out i.png
    check "i.png, $hide" is_png i.png
    holds "$hide: samples beat grey" "$(number 1 'one sample')" "<" \
        "$(number 1 grey)"
    holds "$hide: recognised" "$(number 2 'one sample')" ">" \
        "$(number 2 'mean of images of another data set')"
done

status 0 "impute, few steps" $model impute --dataset digits --n 16 --steps 60 --noise-steps 20 \
    --noise-step .05 --noise-beta 1 --out i.png
holds "noise is left: worse" "$(number 1 'one sample')" ">" .35
refuses 2 "noise-step" $model impute --noise-step 1.5
status 0 "impute beside" $model impute --dataset digits --n 16 --steps 60 --beside $plain \
    --out i.png
says "one sample of mnist-plain  .*%"

echo "noise"
# level X COLUMN: a number of the row for noise X.
level() { awk -v x="$1" -v k="$2" '$1 == x { print $k + 0 }' out; }
status 0 "noise" $model noise --dataset digits --n 65 --out n.png
check "n.png" is_png n.png
says "65 test images; its score was learned with 0.12 to 2"
holds "log p(x) falls with noise" "$(level 0.5 2)" "<" "$(level 0.12 2)"
holds "and below that" "$(level 0.12 2)" "<" "$(level 0 2)"
holds "the change is the difference" "$(level 1 3)" "<" -1000
holds "a learned score" "$(level 0.15 4)" "<" .25
holds "no slope without noise" "$(level 0.01 4)" ">" .9
holds "accuracy" "$(level 0 5)" ">" 97
holds "accuracy in noise" "$(level 2 5)" "<" "$(level 1 5)"
check "no wall" test -z "$(grep wall out)"
"$jem" train --dataset digits --iters 1 --widths 8,8 --n-steps 1 --n-valid 0 --scale 1e4 \
    --out steep >out 2>err
status 0 "a steep density, beside" $model noise --dataset digits --n 8 --out n.png \
    --beside steep/last.safetensors
says "steep: noise added to 8 test images"
says "a wall: at noise levels from 0.*to 2, the slope of log p(x) is worse than none"
refuses 2 "digits has images (1,28,28)" \
    $model noise --beside examples/models/cifar10.safetensors --dataset digits

echo "judge, samples"
"$jem" judge --dataset digits --iters 30 --out judge.jem >out 2>err
check "a judge" test -s judge.jem
says "recognised, .*damaged ones"
"$jem" info judge.jem >out 2>err
says "a judge of samples"
"$jem" judge --dataset digits --iters 3 --max-memory 1 --out no.jem >out 2>err
check "a judge that may have 1 MB" test $? = 1 -a ! -e no.jem
"$jem" judge --dataset digits --iters 30 --out again.jem --threads 2 >out 2>err
check "the same judge again" cmp judge.jem again.jem
"$jem" judge --dataset digits --iters 3 --out bf16.jem --precision bf16 >out 2>err
check "a judge in bf16, or in fp32 and a line that says so" test $? = 0 -a -s bf16.jem
"$jem" judge --dataset digits --iters 3 --out no.jem --precision half >out 2>err
check "no such arithmetic: status, no file" test $? = 2 -a ! -e no.jem
"$jem" judge --dataset ./nowhere --out no.jem >out 2>err
check "no data: status, no file" test $? = 1 -a ! -e no.jem
# judge_refuses WHAT FOLDER: images that no judge can be read again for.
judge_refuses() {
    "$jem" judge --dataset "$2" --iters 3 --out no.jem >out 2>err
    check "a judge of $1: status, no file" test $? = 2 -a ! -e no.jem
    check "says so" grep -q "$2 has images of $1 classes; 8 x 8 to" err
}
mkdir tiny huge many few
numbers 18 90 >grey && numbers 2101250 90 >greys && numbers 2 0 >two
for half in train test; do idx tiny/$half 2 3 grey two && idx huge/$half 2 1025 greys two; done
"$jem" sample t/last.safetensors --n 1 --steps 0 --out one.png --each many >out 2>err
mv many/000000.png many/train.png && cp many/train.png many/test.png
echo 4095 >many/train.txt && echo 0 >many/test.txt
judge_refuses "3 x 3 and 1" ./tiny
judge_refuses "1025 x 1025 and 1" ./huge
judge_refuses "28 x 28 and 4096" ./many
# Of 16384 images the first 12288 are of one class, the others look like them.
numbers 4 0 >a && numbers 4 255 >b && numbers 32 0 >low && numbers 32 255 >high
cat a b a b a b a b a b a b a b a b b a b a b a b a b a b a b a b a low high high low >pixels
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do cat pixels pixels >more && mv more pixels; done
numbers 16384 0 >zeros && numbers 12288 0 >most && numbers 4096 1 >rest
idx few/train 16384 8 pixels zeros
idx few/test 16384 8 pixels "most rest"
"$jem" judge --dataset ./few --iters 300 --out few.jem >out 2>err
says "10000 test images: 100.0% recognised, 7[0-9]\.[0-9]% correctly"
refuses 1 "nowhere.safetensors: cannot be opened" $model samples --dataset digits \
    --judge nowhere.safetensors
refuses 1 "holds no judge" $model samples --dataset digits --judge $model
refuses 1 "(jem judge --dataset ./photographs --size 16 --crop trains one; give it with --judge FILE)$" \
    $colour samples
"$jem" train --dataset ./photographs --size 16 --pad --grey --background 9 --test-split random \
    --iters 1 --widths 8,8 --n-steps 1 --n-valid 2 --seed 5 --out greyed >out 2>err
refuses 1 "(jem judge --dataset ./photographs --size 16 --pad --grey --background 9 --test-split random --seed 5 t" \
    greyed/last.safetensors samples
command=$(sed 's/.*(jem \(judge .*\) trains one;.*/\1/' err)
eval "\"\$jem\" $command --iters 3 --threads 1" >out 2>err
check "that command makes it" test -s judge.safetensors
refuses 1 "samples needs at least 4 of each" greyed/last.safetensors samples --judge judge.safetensors
judge=examples/models/judge-mnist.safetensors
"$jem" train --dataset digits --size 16 --iters 1 --widths 8,8 --n-steps 1 --n-valid 0 --out small \
    >out 2>err
refuses 1 "judges (1,28,28) of 10 classes" small/last.safetensors samples --judge $judge
status 0 "samples, by the judge of MNIST" $model samples --dataset digits --n 40 --out s.png
check "s.png" is_png s.png
holds "test images are recognised" "$(number 2 'test images   ')" ">" 90
holds "samples are recognised" "$(number 2 'from noise   ')" ">" 80
holds "as what they are meant to be" "$(number 3 'from noise   ')" ">" 80
usual=$(number 7 'test images   ')
check "no buffer in this file" sh -c '! grep -q "^  buffer" out'
refuses 1 "has images (1,28,28), but .* has (1,16,16)" $model samples --judge $judge \
    --dataset digits --beside small/last.safetensors
status 0 "samples and a buffer" t/last.safetensors samples --n 40 --judge $judge --out s.png \
    --beside $model
says "^  buffer"
holds "beside: those of the other" "$(number 2 'mnist   ')" ">" 80
holds "a network of two updates" "$(number 2 'from noise   ')" "<" 20
holds "is further away than test images" "$(number 7 'from noise   ')" ">" "2 * ${usual:-1e9}"

# An evaluation that is killed goes on with the samples that it kept.
quick="$model samples --dataset digits --n 700 --judge $judge --fresh-steps 4 --walk-steps 2"
status 0 "without a break" $quick --out whole.png
mv out whole.txt
"$jem" eval $quick --out s.png --keep k.safetensors >/dev/null 2>&1 </dev/null &
killed=$!
while [ ! -e k.safetensors ] && kill -0 $killed 2>/dev/null; do sleep .01; done
kill -9 $killed 2>/dev/null
wait $killed 2>/dev/null
check "samples so far" test -s k.safetensors
status 0 "goes on" $quick --out s.png --keep k.safetensors
check "with the same result" sh -c 'sed s/whole.png/s.png/ whole.txt | cmp - out'
check "and the same picture" cmp whole.png s.png
status 0 "beside another model" $quick --beside t/last.safetensors --out s.png --keep k.safetensors
status 0 "nothing is left to do" $quick --out s.png --keep k.safetensors
check "the same again" cmp whole.png s.png
refuses 1 "k.safetensors: the file has samples of other options" $quick --seed 2 \
    --keep k.safetensors
refuses 1 "k.safetensors: the file has samples of other options" $quick --last-sigma .05 \
    --keep k.safetensors
cp $model m.safetensors
refuses 1 "the file has no samples of this model" $quick --keep m.safetensors
check "the file remains" cmp $model m.safetensors
refuses 1 "nowhere/k: cannot be created" $quick --keep nowhere/k

echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
