#!/bin/sh
# lint_types.sh - the name of a struct, union or enum means one thing in the product, in files that never meet, too
#
# A struct that kernels.h only declares is each device's own: kernels/cpu and kernels/cuda define it once each.
# Prints the second file:line that defines a name, and the first, and exits 1.
cd "$(dirname "$0")/.." || exit 1

# shellcheck disable=SC2046
awk '
    FILENAME == "kernels/kernels.h" && /^struct [a-z_0-9]+;/ { sub(/;.*/, "", $2); opaque[$2] }
    /^[ \t]*(typedef |static |const )*(struct|union|enum) [A-Za-z_0-9]+ \{/ {
        match($0, /(struct|union|enum) [A-Za-z_0-9]+ \{/)
        split(substr($0, RSTART, RLENGTH), w, " ")
        room = FILENAME
        sub(/\/[^\/]*$/, "", room)
        key = w[2] in opaque ? w[2] " " room : w[2]
        if (key in first) { print FILENAME ":" FNR ": a second " w[1] " " w[2] ", the first is at " first[key]; n++ }
        else first[key] = FILENAME ":" FNR
    }
    END { exit n > 0 }
' kernels/kernels.h $(find include libcommon tools kernels -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' |
                     grep -v '^kernels/kernels.h$' | LC_ALL=C sort) >&2
