#!/bin/sh
# Installs a dependency if it is missing:
#     tools/get_package.sh stb      stb_image.h and stb_image_write.h, for picture files
#     tools/get_package.sh fuzzer   clang with libFuzzer, for make fuzz
#     tools/get_package.sh torch    PyTorch, for bench-torch and check-torch; prints the python
#                                   that has it
#     tools/get_package.sh wasm     clang for WebAssembly with its C library, and node, for the tests
#                                   and bench-wasm; WASM_CC names another compiler
#     tools/get_package.sh browser  Chromium and node, for the tests of playground and jem report
#     tools/get_package.sh cross    compilers and emulators of other processors, for make portability
#     tools/get_package.sh examine  valgrind, clang, cppcheck and clang-tidy, for make examine
#     tools/get_package.sh onnxruntime   onnxruntime for node, from npm, in build/onnxruntime (110 MB),
#                                   for bench-peers; test_onnx.py uses it if it is there
#     tools/get_package.sh mpi      Open MPI (or another one), for make mpi
# It uses the system's package manager if that needs no password; otherwise it prints the command and
# fails.
cc=${CC:-cc}

found_browser() {
    command -v "${CHROMIUM:-chromium}" >/dev/null && command -v node >/dev/null
}
reads_stb() {
    for dir in stb/ ""; do
        printf '#include <%sstb_image.h>\n#include <%sstb_image_write.h>\n' "$dir" "$dir" |
            $cc -idirafter build -E -x c - >/dev/null 2>&1 && return 0
    done
    return 1
}
# A compiler for another C library (musl-gcc) does not read the system's headers: copies these two.
found_stb() {
    reads_stb && return 0
    for dir in /usr/include/stb /usr/include; do
        [ -f $dir/stb_image.h ] && [ -f $dir/stb_image_write.h ] || continue
        mkdir -p build/stb && cp $dir/stb_image.h $dir/stb_image_write.h build/stb/
        reads_stb && return 0
    done
    return 1
}
found_fuzzer() {
    mkdir -p build
    echo 'int LLVMFuzzerTestOneInput(const void *p, unsigned long n) { return p && n > 1e9; }' |
        clang -fsanitize=fuzzer -x c - -o build/fuzzer_probe >/dev/null 2>&1
}
found_cross() {
    for command in clang aarch64-linux-gnu-gcc s390x-linux-gnu-gcc qemu-aarch64 qemu-s390x; do
        command -v $command >/dev/null || return 1
    done
}
found_examine() {
    for command in clang valgrind cppcheck clang-tidy; do
        command -v $command >/dev/null || return 1
    done
}
found_mpi() { command -v "${MPICC:-mpicc}" >/dev/null && command -v mpirun >/dev/null; }
# The system's python may not be the first one in the PATH.
found_torch() {
    for python in ${PYTHON:-python3 /usr/bin/python3}; do
        $python tools/bench_torch.py --check >/dev/null 2>&1 && echo "$python" && return 0
    done
    return 1
}
found_wasm() {
    mkdir -p build
    printf '#include <math.h>\n#include <stdio.h>\n%s\n' \
            'int main(void) { return printf("%f %Lf", pow(2, .5), 2.0L) < 0; }' |
        ${WASM_CC:-clang --target=wasm32-wasi --sysroot=/usr} -msimd128 -x c - -lm \
            -o build/empty.wasm >/dev/null 2>&1 &&
        node -e 'process.exit(+(parseInt(process.versions.node) < 16))' >/dev/null 2>&1
}

# The packages as they are, without the scripts of an installation: they bring their libraries.
onnxruntime=1.30.0
found_onnxruntime() {
    (cd "${BUILD:-build}/onnxruntime" 2>/dev/null &&
        node -e 'require("./node_modules/onnxruntime-node")' >/dev/null 2>&1)
}
if [ "$1" = onnxruntime ]; then
    found_onnxruntime && exit 0
    modules=${BUILD:-build}/onnxruntime/node_modules
    for package in onnxruntime-common onnxruntime-node; do
        mkdir -p "$modules/$package" && (
            cd "$modules" && npm pack $package@$onnxruntime >/dev/null 2>&1 &&
                tar xzf $package-$onnxruntime.tgz -C $package --strip-components 1
            code=$?
            rm -f $package-$onnxruntime.tgz
            exit $code
        ) || break
    done
    found_onnxruntime && exit 0
    echo "onnxruntime is missing: needs node and npm, and a processor and system that" >&2
    echo "    https://www.npmjs.com/package/onnxruntime-node supports" >&2
    exit 1
fi

case $1 in
    browser)
        what="Chromium or node"
        apt="chromium nodejs" dnf="chromium nodejs" pacman="chromium nodejs"
        zypper="chromium nodejs" apk="chromium nodejs"
        by_hand="set CHROMIUM=... to a browser like Chromium, and put node into the PATH"
        ;;
    stb)
        what="stb_image.h"
        apt="libstb-dev" dnf="stb_image-devel stb_image_write-devel" pacman="stb"
        zypper="stb-devel" apk="stb"
        by_hand="put stb_image.h and stb_image_write.h of https://github.com/nothings/stb"
        by_hand="$by_hand into build/stb/"
        ;;
    fuzzer)
        what="clang with libFuzzer"
        # The runtime must match the installed clang, or the one to be installed.
        version=$(clang -dumpversion 2>/dev/null | cut -d . -f 1)
        [ -n "$version" ] || version=$(apt-cache depends clang 2>/dev/null |
            sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
        apt="clang libclang-rt-${version:-14}-dev" dnf="clang compiler-rt"
        pacman="clang compiler-rt" zypper="clang" apk="clang compiler-rt"
        by_hand="put a clang with libFuzzer in the path"
        ;;
    torch)
        # Debian's PyTorch comes with a BLAS that is 15 times too slow: no comparison.
        what="PyTorch with numpy and a fast BLAS"
        apt="python3-torch python3-numpy libopenblas0-openmp" dnf="python3-torch python3-numpy"
        pacman="python-pytorch python-numpy" zypper="python3-torch python3-numpy"
        apk="py3-pytorch py3-numpy"
        by_hand="select a python that has it: make bench-torch PYTHON=..."
        ;;
    wasm)
        what="clang for wasm32-wasi with its C library, or node,"
        apt="clang lld wasi-libc libclang-rt-dev-wasm32 nodejs" dnf="" pacman="" zypper="" apk=""
        by_hand="select a compiler that links for it: make test WASM_CC='clang --target=wasm32-wasi"
        by_hand="$by_hand --sysroot=...', and put node into the PATH"
        ;;
    cross)
        what="clang, or gcc or qemu for AArch64 or s390x,"
        apt="clang gcc-aarch64-linux-gnu libc6-dev-arm64-cross gcc-s390x-linux-gnu"
        apt="$apt libc6-dev-s390x-cross qemu-user musl-tools" dnf="" pacman="" zypper="" apk=""
        by_hand="select the available ones: make portability PLATFORMS='compilers x86_32'"
        ;;
    examine)
        what="clang, valgrind, cppcheck or clang-tidy"
        apt="clang clang-tidy cppcheck valgrind" dnf="clang clang-tools-extra cppcheck valgrind"
        pacman="clang cppcheck valgrind" zypper="clang clang-tools cppcheck valgrind"
        apk="clang clang-extra-tools cppcheck valgrind"
        by_hand="select the available ones: make examine PARTS='leaks threads'"
        ;;
    mpi)
        what="MPI"
        apt="openmpi-bin libopenmpi-dev" dnf="openmpi-devel" pacman="openmpi"
        zypper="openmpi4-devel" apk="openmpi-dev"
        by_hand="put the mpicc and mpirun of an MPI into the PATH"
        ;;
    *) echo "get_package.sh stb|fuzzer|torch|wasm|browser|cross|examine|mpi|onnxruntime" >&2; exit 2 ;;
esac

found_$1 && exit 0
if [ $1 = stb ] && ! command -v "${cc%% *}" >/dev/null 2>&1; then
    echo "There is no C compiler '$cc': install one, or select yours with make CC=..." >&2
    exit 1
fi

if command -v apt-get >/dev/null; then
    # A stale or partly broken list of sources may still have the package, so continue in any case.
    install="apt-get update; apt-get install -y $apt"
elif [ "$dnf" ] && command -v dnf >/dev/null; then install="dnf install -y $dnf"
elif [ "$pacman" ] && command -v pacman >/dev/null; then install="pacman -S --noconfirm $pacman"
elif [ "$zypper" ] && command -v zypper >/dev/null; then install="zypper --non-interactive install $zypper"
elif [ "$apk" ] && command -v apk >/dev/null; then install="apk add $apk"
else
    echo "$what is missing, and no supported package manager has it:" >&2
    echo "    $by_hand" >&2
    exit 1
fi

if [ "$(id -u)" = 0 ]; then sudo=; shown="$install"
else sudo="sudo -n"; shown="sudo sh -c '$install'"
fi
if [ -z "$sudo" ] || sudo -n true 2>/dev/null; then
    echo "$what is missing; installing it: $install" >&2
    log=build/get_$1.log
    mkdir -p build
    DEBIAN_FRONTEND=noninteractive $sudo sh -c "$install" >$log 2>&1 </dev/null
    found_$1 && exit 0
    tail -n 5 $log >&2
fi
echo "$what is missing. Install it with" >&2
echo "    $shown" >&2
echo "or $by_hand" >&2
# With a slow BLAS there is still something to see: bench_torch.py says so.
[ $1 = torch ] && for python in ${PYTHON:-python3 /usr/bin/python3}; do
    $python -c "import torch, numpy" 2>/dev/null && echo "$python" && exit 0
done
exit 1
