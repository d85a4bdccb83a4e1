#!/bin/sh
# Makes the slides and visits them with a browser, all of it or the parts that are named (contents
# sizes answers keyboard printed); screenshots go to build/slides/.
BUILD=${BUILD:-build}
if ! ${MAKE:-make} --no-print-directory playground slides BUILD="$BUILD"; then
    echo "0 passed, 1 failed"
    exit 1
fi
mkdir -p "$BUILD/slides"
node tests/tools/slides.mjs "$BUILD/slides.html" "$BUILD/slides" "$@"
