#!/bin/sh
# Builds the playground and visits it with a browser, all of it or the parts that are named (story
# walk); screenshots go to build/playground/. Needs what `tools/get_package.sh wasm` and
# `tools/get_package.sh browser` install.
BUILD=${BUILD:-build}
if ! ${MAKE:-make} --no-print-directory playground BUILD="$BUILD"; then
    echo "0 passed, 1 failed"
    exit 1
fi
photos=examples/models/cifar10.safetensors
if ${MAKE:-make} "$BUILD/playground.models" BUILD="$BUILD" PLAYGROUND_JEM=$photos 2>&1 |
        grep -q "^$photos: the playground needs a model of 28 x 28 grey images"
then :
else
    echo "FAILED a model of photographs is refused"
    echo "0 passed, 1 failed"
    exit 1
fi
mkdir -p "$BUILD/playground"
node tests/tools/playground.mjs "$BUILD/playground.html" "$BUILD/playground" "$@"
