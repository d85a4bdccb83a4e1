#!/bin/sh
# How many SGLD steps a second ten MNIST chains make in one thread: natively, and as WebAssembly
# under node and, where it is installed, in Chromium. `make bench-wasm` has built what this runs.
sandbox=""
[ "$(id -u)" = 0 ] && sandbox=--no-sandbox         # root cannot have one
seconds=${SECONDS_EACH:-5} dir=${BUILD:-build}
modules="$dir/wasm/bench_scalar.wasm $dir/wasm/bench_simd128.wasm"

printf '%-34s %7s %7s\n' 'steps a second, 10 chains' mean best
"$dir/bench_wasm" "$seconds" || exit 1
node tools/bench_wasm.js "$seconds" node $modules || exit 1
for browser in chromium chromium-browser google-chrome; do
    command -v $browser >/dev/null || continue
    node tools/bench_wasm.js "$seconds" page $modules >"$dir/wasm/bench.html" || exit 1
    profile=$(mktemp -d) || exit 1
    $browser --headless $sandbox --disable-gpu --no-first-run --disable-background-networking \
        --disable-component-update --disable-sync --user-data-dir="$profile" \
        --dump-dom "file://$(realpath "$dir/wasm/bench.html")" 2>/dev/null |
        sed -n 's/^.*<pre>//; s/<\/pre>.*//; /^  wasm/p' >"$dir/wasm/browser.txt"
    rm -rf "$profile"
    cat "$dir/wasm/browser.txt"
    [ -s "$dir/wasm/browser.txt" ] || echo "  ($browser printed nothing)"
    test -s "$dir/wasm/browser.txt"
    exit
done
echo "  (no Chromium here)"
