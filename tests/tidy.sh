#!/bin/sh
# tidy.sh [-n] [FILE...] - lay out C and CUDA sources as .clang-format says; default: all of them
#
# What reads as a table is laid by hand, and clang-format can only break it into one item a line or pull it apart:
# lists in braces (initialisers, enumerators, structs in one line), chains of ?:, texts of several literals, attributes
# and assembler, macros. Statements that hold such are left alone, everything else is formatted.
# -n changes nothing, names the files that `make tidy` would change, and exits 1.
cd "$(dirname "$0")/.." || exit 2
format=${CLANG_FORMAT:-clang-format}
check=
if [ "${1:-}" = -n ]; then check=1; shift; fi

version=$("$format" --version 2>/dev/null | sed -n 's/.*version \([0-9][0-9]*\).*/\1/p')
if [ "${version:-0}" -lt 23 ]; then
    echo "tidy: needs clang-format 23 or later, here is ${version:-none} (pip install clang-format==23.1.5; CLANG_FORMAT=PATH)" >&2
    exit 2
fi
if [ $# -eq 0 ]; then
    find include examples libcommon kernels tools tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort |
        xargs -n 20 -P "$(nproc)" sh tests/tidy.sh ${check:+-n} || exit 1
    exit 0
fi

# --lines=A:B for all of a file but what is laid by hand.
ranges() {
    awk '
        # A line without strings, characters and comments.
        function bare(s,    out, c, i) {
            out = ""
            for (i = 1; i <= length(s); i++) {
                c = substr(s, i, 1)
                if (comment) { if (substr(s, i, 2) == "*/") { comment = 0; i++ } }
                else if (substr(s, i, 2) == "/*") { comment = 1; i++ }
                else if (substr(s, i, 2) == "//") break
                else if (c == "\"" || c == "\047") {
                    out = out "q"
                    for (i++; i <= length(s) && substr(s, i, 1) != c; i++)
                        if (substr(s, i, 1) == "\\") i++
                } else out = out c
            }
            sub(/[ \t]+$/, "", out)
            return out
        }
        # The statement that lines a to b are part of.
        function leave(a, b,    k) {
            while (a > 1 && line[a - 1] !~ /(^|[;{}:])$/ && !macro[a - 1]) a--
            while (b < NR && line[b] !~ /[;{}:)]$/) b++
            if (a in opened && line[a] ~ /\} [a-z_]+\[.*\{/) a = opened[a]         # struct { ... } table[] = {
            for (k = a; k <= b; k++) left[k] = 1
        }
        {
            line[NR] = bare($0)
            by_hand[NR] = /^[ \t]*("|\? |: |asm )|" "/ || line[NR] ~ /\?.*\?|case .*: *case|case .*;.*;|(case .*|default):  / ||
                          line[NR] ~ /(^|[ \t])(struct|union)( [a-z_0-9]+)? \{.*\}|^static .*\).*\{.*\}/
            macro[NR] = hash || /^[ \t]*#/
            hash = macro[NR] && /\\$/
        }
        END {
            for (n = 1; n <= NR; n++) {
                if (macro[n]) { left[n] = 1; continue }
                if (by_hand[n]) leave(n, n)
                if (line[n] ~ /__launch_bounds__|^__attribute__/) leave(n, n + 1)
                for (i = 1; i <= length(line[n]); i++) {
                    c = substr(line[n], i, 1)
                    if (c == "{") {
                        before = substr(line[n], 1, i - 1)
                        kind[++depth] = lists > 0 || before ~ /([=,(]|\)|\])[ ]?$/ && before !~ /\) $/ ||
                                        before ~ /(^|[^a-z_])enum( [a-z_0-9]+)? $/
                        lists += kind[depth]
                        open[depth] = n
                        if (kind[depth] && lists == 1) first = n
                    } else if (c == "}" && depth > 0) {
                        opened[n] = open[depth]
                        lists -= kind[depth--]
                        if (lists == 0 && kind[depth + 1]) leave(first, n)
                    }
                }
            }
            for (n = 1; n <= NR; n = end + 1) {
                for (end = n; end < NR && !(end + 1 in left); end++) ;
                if (!(n in left)) printf " --lines=%d:%d", n, end
                else end = n
            }
        }' "$1"
}

new=$(mktemp) || exit 2
trap 'rm -f "$new"' EXIT
changed=0
for file; do
    lines=$(ranges "$file")
    [ "$lines" ] || continue            # all of it by hand; without --lines all of it would be formatted
    # shellcheck disable=SC2086
    "$format" --style=file $lines "$file" >"$new" && [ -s "$new" ] || exit 2
    cmp -s "$file" "$new" && continue
    changed=$((changed + 1))
    echo "$file"
    [ "$check" ] || cat "$new" >"$file"
done
[ -z "$check" ] || [ $changed -eq 0 ]
