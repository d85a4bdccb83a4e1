#!/bin/sh
# Do the limits of tests/run.sh tell what hangs from what a busy machine slows down? Each program
# here is one item of a run of its own, with limits of seconds.
dir=${BUILD:-build}/limits passed=0 failed=0
rm -rf "$dir"
mkdir -p "$dir"

# expect NAME SECONDS WALL WANTED PROGRAM [ITEM]: the run of the program says WANTED, a regular
# expression.
expect() {
    item=$dir/${6:-test_$1}
    printf '#!/bin/sh\n%s\n' "$5" >"$item"
    chmod +x "$item"
    TEST_UNTIL="" TEST_STOP=$stop TEST_AMPLE=$ample TEST_IDLE=$idle BUILD=$dir TEST_POLL=1 \
        TEST_SECONDS=$2 TEST_WALL=$3 \
        tests/run.sh "$item" >"$dir/$1.txt" 2>&1 </dev/null
    if tr '\n' ' ' <"$dir/$1.txt" | grep -Eq "$4"
    then passed=$((passed + 1)); echo "ok $1"
    else failed=$((failed + 1)); echo "FAILED $1"; cat "$dir/$1.txt"
    fi
}
one="echo '1 passed, 0 failed'" stop="" ample=60 idle=60
spin='while :; do :; done'
expect well 60 60 '^== 1 items.*-- 1 of 1 .*1 passed, 0 failed $' "$one"
idle=4
expect hangs 60 60 'FAILED test_hangs: hung: hardly any.* 0 passed, 1 failed $' "sleep 50; $one"
idle=60
expect spins 1 60 'FAILED test_spins: spun: it took more than 2 sec.* 0 passed, 1 failed $' "$spin"
expect child 1 60 'FAILED test_child: spun: it took.* 0 passed, 1 failed $' "($spin) & wait; $one"
expect late 60 5 \
    'WARNING test_late: SKIPPED, the machine.*late: it.*too busy: test_late 0 passed, 0 failed $' \
    "$spin"
stop=$(($(date +%s) + 3))
expect stopped 60 60 'WARNING test_stopped: SKIPPED, .* 0 passed, 0 failed $' "$one; $spin"
stop=$(($(date +%s) + 4)) ample=0
expect ample 60 60 'FAILED test_ample: spun: it had not finished.* ample.* 0 passed, 1 failed $' \
    "$spin"
expect after 60 60 'WARNING build .*: SKIPPED, .*no time left.* 0 passed, 0 failed $' "$one" other
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
