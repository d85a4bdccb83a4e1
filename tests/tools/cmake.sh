#!/bin/sh
# Builds a user's program with tools/cmake: by FetchContent, add_subdirectory and find_package, and
# by pkg-config, with a static and a shared library. Ends with the line `N passed, N failed`.
# JEM_NO_SIMD: the library is the plain one, which compiles in seconds.
BUILD=${BUILD:-build}
passed=0 failed=0
root=$PWD
case $BUILD in /*) dir=$BUILD/cmake ;; *) dir=$root/$BUILD/cmake ;; esac
rm -rf "$dir"
mkdir -p "$dir" && cd "$dir" || exit 1
quick="-DCMAKE_C_FLAGS=-DJEM_NO_SIMD -DCMAKE_BUILD_TYPE=Debug"

# check NAME COMMAND...: the command succeeds; what it says is shown if not.
check() {
    name=$1
    shift
    if "$@" >"$dir/out.txt" 2>&1; then passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name: $*"
        tail -n 12 "$dir/out.txt"
    fi
}
# classifies NAME PROGRAM: it runs, and names a class.
classifies() { check "$1 runs" sh -c "'$2' '$dir/saved.safetensors' | grep -q '^class [01]$'"; }
# project NAME ARGUMENTS...: configures and builds the user's project, and runs its programs.
project() {
    folder=$1
    shift
    check "$folder: configured" cmake -S "$root/tests/tools/cmake" -B "$folder" $quick "$@"
    check "$folder: built" cmake --build "$folder"
    classifies "$folder: the C program" "$folder/program_c"
    classifies "$folder: the C++ program" "$folder/program_cxx"
}
# by_pkg_config KIND: a program compiled by hand, with what jem.pc says.
by_pkg_config() {
    pc=$(find "$dir/moved_$1" -name jem.pc)
    PKG_CONFIG_PATH=$(dirname "$pc")
    export PKG_CONFIG_PATH
    check "jem.pc of the $1 library: its version" pkg-config --atleast-version=0.3 jem
    check "jem.pc of the $1 library: compiled" sh -c "${CC:-cc} -std=c99 \
        '$root/tests/tools/cmake/program.c' -o by_pc_$1 \$(pkg-config --cflags --libs jem) \
        -Wl,-rpath,\$(pkg-config --variable=libdir jem)"
    classifies "jem.pc of the $1 library: the program" "$dir/by_pc_$1"
}

command -v cmake >/dev/null || { echo "needs cmake"; echo "0 passed, 1 failed"; exit 1; }
project fetch -DHOW=fetch
project subdirectory -DHOW=subdirectory -DJEM_OPENMP=OFF
# README: jem.h and tools/cmake are enough.
mkdir -p alone/tools && cp "$root/jem.h" alone && cp -R "$root/tools/cmake" alone/tools
project copied -DHOW=subdirectory -DJEM_SOURCE="$dir/alone" -DJEM_OPENMP=OFF
# A parent's variable is respected. (A fetched library is in a folder of its own.)
project fetch_shared -DHOW=fetch -DSHARED=ON
project subdirectory_shared -DHOW=subdirectory -DSHARED=ON -DJEM_OPENMP=OFF \
    -DCMAKE_C_VISIBILITY_PRESET=hidden
for folder in fetch subdirectory; do
    check "$folder: static" sh -c "find $folder -name libjem.a | grep -q ."
    check "$folder: shared, as its parent asks" sh -c "find ${folder}_shared -name 'libjem.so*' |
        grep -q . && ! find ${folder}_shared -name libjem.a | grep -q ."
done
if command -v clang >/dev/null && command -v clang++ >/dev/null; then
    project clang -DHOW=subdirectory -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
    check "clang: an installation" sh -c "cmake -S '$root/tools/cmake' -B clang_library $quick \
        -DCMAKE_C_COMPILER=clang -DCMAKE_INSTALL_PREFIX='$dir/installed_clang' &&
        cmake --build clang_library && cmake --install clang_library"
    if command -v pkg-config >/dev/null; then
        check "clang: by jem.pc" sh -c "
            export PKG_CONFIG_PATH=\$(dirname \$(find '$dir/installed_clang' -name jem.pc))
            ${CC:-cc} -std=c99 '$root/tests/tools/cmake/program.c' -o by_pc_clang \
            \$(pkg-config --cflags --libs jem)"
        classifies "clang: the program" "$dir/by_pc_clang"
    fi
else echo "SKIPPED clang: it is not there"
fi
if command -v x86_64-w64-mingw32-gcc >/dev/null; then
    check "gcc for Windows: configured" cmake -S "$root/tools/cmake" -B windows \
        -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc
    check "gcc for Windows: vector kernels" sh -c "cd windows/CMakeFiles/jem.dir &&
        grep -e -DJEM_WINDOWS_SIMD flags.make && grep -e -muse-unaligned flags.make"
else echo "SKIPPED gcc for Windows: it is not there"
fi
check "a subproject installs nothing of its own" \
    sh -c "! grep -q 'jem.pc' fetch/_deps/jem-build/cmake_install.cmake"
for kind in static shared; do
    shared=OFF
    [ $kind = static ] || shared=ON
    check "$kind: configured" cmake -S "$root/tools/cmake" -B $kind $quick \
        -DBUILD_SHARED_LIBS=$shared -DCMAKE_INSTALL_PREFIX="$dir/installed_$kind"
    check "$kind: built" cmake --build $kind
    check "$kind: installed" cmake --build $kind --target install
    check "$kind: moved elsewhere" mv "installed_$kind" "moved_$kind"
    project find_$kind -DCMAKE_PREFIX_PATH="$dir/moved_$kind"
    if command -v pkg-config >/dev/null; then by_pkg_config $kind
    else echo "SKIPPED pkg-config: it is not there"
    fi
done
check "the libraries are what was asked for" sh -c "find moved_static -name libjem.a | grep -q . &&
    ! find moved_shared -name libjem.a | grep -q ."
echo "$passed passed, $failed failed"
[ $failed = 0 ]
