#!/bin/sh
# Sees to it that the compiler finds stb_image.h and stb_image_write.h, which the examples use for
# picture files. Missing ones come from the system's package manager if that needs no password;
# otherwise this prints the command and fails.
cc=${CC:-cc}

found() {
    for dir in stb/ ""; do
        printf '#include <%sstb_image.h>\n#include <%sstb_image_write.h>\n' "$dir" "$dir" |
            $cc -idirafter build -E -x c - >/dev/null 2>&1 && return 0
    done
    return 1
}
found && exit 0
if ! command -v "${cc%% *}" >/dev/null 2>&1; then
    echo "There is no C compiler '$cc': install one, or name yours with make CC=..." >&2
    exit 1
fi

by_hand="put stb_image.h and stb_image_write.h of https://github.com/nothings/stb into build/stb/"
if command -v apt-get >/dev/null; then
    # A stale or partly broken list of sources may still have the package, so go on in any case.
    install="apt-get update; apt-get install -y libstb-dev"
elif command -v dnf >/dev/null; then
    install="dnf install -y stb_image-devel stb_image_write-devel"
elif command -v pacman >/dev/null; then install="pacman -S --noconfirm stb"
elif command -v zypper >/dev/null; then install="zypper --non-interactive install stb-devel"
elif command -v apk >/dev/null; then install="apk add stb"
else
    echo "stb_image.h is missing, and no package manager known here has it:" >&2
    echo "    $by_hand" >&2
    exit 1
fi

if [ "$(id -u)" = 0 ]; then sudo=; shown="$install"
else sudo="sudo -n"; shown="sudo sh -c '$install'"
fi
if [ -z "$sudo" ] || sudo -n true 2>/dev/null; then
    echo "stb_image.h is missing; installing it: $install"
    log=build/get_stb.log
    mkdir -p build
    DEBIAN_FRONTEND=noninteractive $sudo sh -c "$install" >$log 2>&1 </dev/null
    found && exit 0
    tail -n 5 $log >&2
fi
echo "stb_image.h is missing. Install it with" >&2
echo "    $shown" >&2
echo "or $by_hand" >&2
exit 1
