#!/bin/sh
# `jem report`, end to end: small runs on the digits and on classes with unkind names. What reads
# the page needs python3, what looks at it Chromium. Ends with the line `N passed, N failed`.
BUILD=${BUILD:-build}
export OMP_NUM_THREADS=1
passed=0 failed=0
root=$PWD dir=$PWD/$BUILD/report
case $BUILD in /*) jem=$BUILD/jem dir=$BUILD/report ;; *) jem=$root/$BUILD/jem ;; esac
[ -x "$jem" ] || { echo "$jem is not there"; echo "0 passed, 1 failed"; exit 1; }
rm -rf "$dir"
mkdir -p "$dir" && cd "$dir" || exit 1
ln -s "$root/examples" examples
mnist=examples/models/mnist.safetensors
judge=examples/models/judge-mnist.safetensors
python=""
for name in python3 /usr/bin/python3; do
    $name -c "import zlib" 2>/dev/null && python=$name && break
done

not_ok() {
    failed=$((failed + 1))
    echo "FAILED $1"
    for f in out err; do [ -f $f ] && tail -n 4 $f | cut -c 1-300; done
}
# check NAME COMMAND...: the command succeeds.
check() {
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then passed=$((passed + 1)); else not_ok "$name"; fi
}
# status N NAME ARGUMENTS...: jem report exits with N; what it says is in out and err.
status() {
    want=$1 name=$2
    shift 2
    "$jem" report "$@" >out 2>err </dev/null
    is=$?
    if [ $is = "$want" ]; then passed=$((passed + 1))
    else not_ok "$name: status $is, not $want: $*"; fi
}
says() { check "says: $1" grep -q -e "$1" out; }
refuses() {
    want=$1 pattern=$2
    shift 2
    status "$want" "$pattern" "$@"
    check "says: $pattern" grep -q -e "$pattern" err
}
holds() { check "$1: the page holds: $2" grep -q -e "$2" "$1.txt"; }
# read_page NAME PICTURES SECTIONS: NAME.html, read by a strict reader into NAME.txt.
read_page() {
    [ -n "$python" ] || return
    $python "$root/tests/tools/report.py" "$1.html" "$1.txt" "$1.commands" >out 2>err
    if [ $? = 0 ]; then passed=$((passed + 1)); else not_ok "$1.html is well-formed"; fi
    says "^$2 pictures, $3 sections$"
}
# look NAME WIDTH MAIN: the page in a browser, photographed; what it shows is MAIN wide. A window
# may not get as narrow as a telephone: so the page is made so in a copy, which reports its layout.
look() {
    script="<style>html{width:$2px}</style><script>addEventListener('load',()=>{document.title=
        [...document.images].filter(i=>i.naturalWidth).length+' seen, '+
        [...document.images].filter(i=>!i.naturalWidth).length+' not, '+
        document.querySelector('main').scrollWidth+' wide'})</script></body></html>"
    sed 's|</body></html>||' "$1.html" >look.html
    echo "$script" >>look.html
    browse --window-size="$2,900" --dump-dom "file://$PWD/look.html" | grep '<title>' >out
    says "<title>11 seen, 0 not, $3 wide</title>"
    browse --window-size="$2,9000" --screenshot="$PWD/$1-$2.png" "file://$PWD/$1.html" >out
    check "a screenshot, $2 wide" test "$(wc -c <"$1-$2.png")" -gt 50000
}
browse() {
    ${CHROMIUM:-chromium} --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
        --disable-background-networking --disable-component-update --disable-sync \
        --user-data-dir="$(mktemp -d "$dir/home.XXXXXX")" "$@" </dev/null 2>/dev/null
}

echo "help and what cannot be"
status 0 "--help" --help
says "jem report RUN|MODEL"
refuses 2 "jem report RUN|MODEL"
refuses 1 "nowhere: cannot be opened" nowhere
refuses 2 "minutes x: a number" $mnist --minutes x
echo "a photograph" >p5.png && cp p5.png copy.png
for name in p5.png .html; do
    refuses 2 "$name: the page is written to a name that ends in .html" $mnist --out $name
done
check "the photograph is still there" cmp p5.png copy.png
mkdir none
refuses 2 "none/: is not the folder of a run: it has no last.safetensors" none/
refuses 1 "out/where.html: cannot be" $mnist --out out/where.html
refuses 1 "/dev/null: is not a file" $mnist --out /dev/null
check "no page, nothing left" sh -c '! ls *.html* 2>/dev/null'

echo "a run"
"$jem" train --dataset digits --iters 24 --print-every 4 --widths 8,8 --n-steps 2 --batch-size 32 \
    --buffer-size 32 --n-valid 200 --out run >out 2>err
status 0 "report" run --n 8 --threads 1 --judge $judge --beside $mnist
says "^1 of 11: Model"
says "^8 of 11: Out of distribution, [0-9.]* s$"
says "^run/report.html$"
check "nothing was left out" sh -c '! grep -q "left out$" out'
check "no other file is left" test "$(ls run | grep -c 'report')" = 1
ln run/report.html run.html
if [ -n "$python" ]; then
    read_page run 11 12
    holds run "^24 ([0-9.]* epochs)$\|^updates 24 ([0-9.]* epochs)$"
    holds run "^retries after divergence 0$"
    holds run "^No section was omitted"
    echo "the commands of the page print what it holds"
    while read -r word command; do
        echo "$command" >asked
        case $command in info*) more="" ;; *) more="--out again.png" ;; esac
        case $command in eval*safetensors\ --*) more="" ;; esac
        eval "'$jem' $command $more" >said 2>err </dev/null
        time=""                         # the last column of the table of ood
        case $command in eval*\ ood\ *) time='s/ [0-9]*[.][0-9]$//' ;; esac
        sed "$time" run.txt >held.txt
        missing=$(sed '/again.png/d; /^processor time/d; s/  */ /g; s/^ //; s/ $//' said |
            sed "$time" | grep -vFx -f held.txt)
        if [ "$word" = jem ] && [ -s said ] && [ -z "$missing" ]; then passed=$((passed + 1))
        else not_ok "jem $command: the page does not hold: $missing"; fi
    done <run.commands
    check "ten commands and one beside" test "$(wc -l <run.commands)" = 11
else echo "SKIPPED what reads the page: needs python3"
fi

echo "names that would be HTML, a model alone, little time"
"$jem" sample $mnist --n 40 --steps 1 --fresh-steps 1 --each some --out s.png >out 2>err
one='a <b>&"c" '"d'" two='<!-- ü' unkind="$(printf 'x<i>&\377')"
mkdir -p "data/$one" "data/$two"
for i in 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 19; do
    mv some/0000$i.png "data/$one/"
done
mv some/*.png "data/$two/"
"$jem" train --dataset ./data --test-split tenth --iters 2 --widths 8,8 --n-steps 1 --n-valid 0 \
    --out 'x<i>&' >out 2>err
mv 'x<i>&/last.safetensors' "$unkind.safetensors"
status 0 "report" "$unkind.safetensors" --n 4 --out unkind.html
check "no judge" grep -q "judge-.*cannot be opened" err
check "tags are text" sh -c '! grep -q -e "<b>" -e "<i>" unkind.html'
if [ -n "$python" ]; then
    read_page unkind 8 9
    holds unkind '^x<i>&�$'
    holds unkind "images 28 x 28 grey, 2 classes: <!-- ü, a <b>&\"c\" d'"
    holds unkind "^Samples in the replay buffer: the buffer has too few chains"
    holds unkind "^Training: the argument is not the directory of its run"
    holds unkind "^Samples, judged: .*cannot be opened"
fi
status 0 "no time" "$unkind.safetensors" --minutes .00001 --out quick.htm
mv quick.htm quick.html
says "^5 of 10: .*, left out$"
says "^2 of 10: Samples from noise, [0-9.]* s$"
check "a draft, by this command" grep -q "jem sample .* --draft<" quick.html
check "says that it is a draft" grep -q ">A draft in a tenth of the steps" quick.html
check "not so with time" sh -c '! grep -q "A draft" unkind.html'
check "the page says so" grep -q "<li>Calibration: not enough time" quick.html
refuses 1 "cifar10.safetensors has (3,32,32)" $mnist --beside "${mnist%mnist*}cifar10.safetensors" \
    --out none.html
ln -s "$unkind.safetensors" same.html
refuses 2 "are the same file" "$unkind.safetensors" --out same.html
refuses 1 "nosuch.safetensors: cannot be opened" $mnist --beside nosuch.safetensors --out none.html
refuses 1 "nosuch.safetensors: cannot be opened" $mnist --judge nosuch.safetensors --out none.html
check "no page then" sh -c '! ls | grep -q none.html'
status 1 "no images" $mnist --data nowhere --n 10 --out dreams.html
check "a page all the same" grep -q "<li>Accuracy: nowhere" dreams.html
for signal in TERM:143 HUP:129; do
    "$jem" report $mnist --n 10000 --out stopped.html >out 2>err &
    i=0
    while [ $((i += 1)) -lt 600 ] && ! ls | grep -q stopped; do sleep .1; done
    kill -${signal%:*} $!
    wait $!
    check "stopped by ${signal%:*}: status ${signal#*:}" test $? = ${signal#*:}
    check "stopped: nothing is left" sh -c '! ls | grep -q stopped'
done
# Temporary files that have no room, where one may put such a tmpfile before the system's.
printf '#include <stdio.h>\nFILE *tmpfile(void) { return fmemopen(NULL, 300, "w+"); }\n' >full.c
if [ "$(uname -s)" = Linux ] && ${CC:-cc} -D_GNU_SOURCE -shared -fPIC full.c -o full.so; then
    export LD_PRELOAD="$PWD/full.so"
    refuses 1 "full.html: was not written: temporary files" $mnist --n 4 --minutes .01 --out full.html
    unset LD_PRELOAD
    check "a page that is not whole is none" sh -c '! ls | grep -q full.html'
else echo "SKIPPED temporary files without room"
fi

if command -v ${CHROMIUM:-chromium} >/dev/null 2>&1; then
    echo "in a browser"
    look run 1100 940
    look run 390 390
else echo "SKIPPED in a browser: needs Chromium (tools/get_package.sh browser)"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
