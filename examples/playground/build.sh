#!/bin/sh
# Puts the playground together: build.sh PAGE WASM JEM PLAIN > playground.html, from this folder's
# sources and the three files. In PAGE, a line
#     @@file NAME          becomes that file
#     @@code NAME MARK     the lines of that file from [MARK] to [end], for reading
#     @@base64 NAME        the file in base64
#     @@data wasm|jem|plain    one of the three, as gzip in base64, for `inlined` in page.js
# digits.png holds ten held-out digits of each class, a class per row, cut out of
# examples/data/digits.png (their licence is there).
set -e
dir=$(dirname "$0")
page=$1 wasm=$2 jem=$3 plain=$4
while IFS= read -r line; do
    set -f
    set -- $line
    case $1 in
        @@file) cat "$dir/$2" ;;
        @@base64) base64 <"$dir/$2" ;;
        @@code) awk -v mark="[$3]" -v name="$2" '
            /\/\* \[end\] \*\// { on = 0 }
            index($0, "/* " mark) {
                on = found = 1
                sub(/\/\* \[[a-z]*\] ?/, "/* ")
                if ($0 == "/* */") next
            }
            on && /^PAGE\(/ { sub(/^PAGE\(/, ""); sub(/, /, " "); sub(/\)\(/, "(") }
            on { gsub(/&/, "\\&amp;"); gsub(/</, "\\&lt;"); print }
            END { print ""; if (!found) { print name ": no " mark >"/dev/stderr"; exit 1 } }
            ' "$dir/$2" ;;
        @@data)
            case $2 in wasm) file=$wasm ;; jem) file=$jem ;; *) file=$plain ;; esac
            [ -r "$file" ] || { echo "build.sh: cannot read $file" >&2; exit 1; }
            echo "<script type=\"text/plain\" id=\"$2\">"
            gzip -9nc "$file" | base64
            echo "</script>" ;;
        *) printf '%s\n' "$line" ;;
    esac
    set +f
done <"$page"
