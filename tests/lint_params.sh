#!/bin/sh
# lint_params.sh - functions take at most six parameters: beyond that they take a struct with named fields
#
# Prints "count file:line name" of each function of the product with more and exits 1. Reads what ctags finds; without
# Universal Ctags it says that nothing was looked at.
cd "$(dirname "$0")/.." || exit 1
# Each argument says something of its own there, or another's interface asks for them.
known='fetch net_all_reduce net_reduce_scatter pt_build report_add sk_read store_tile tma_load'
# shellcheck disable=SC2046
set -- $(find include libcommon kernels tools examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort)
if ! ctags --version 2>/dev/null | grep -q Universal; then
    echo "lint: no Universal Ctags here, parameters not counted" >&2
    exit 0
fi
ctags --kinds-C=f --kinds-C++=f --kinds-CUDA=f --map-CUDA=+.cuh --fields=+nS -f - "$@" 2>/dev/null |
awk -F'\t' -v known="$known" '
    BEGIN { split(known, names, /[ \n]+/); for (i in names) exempt[names[i]] }
    {
        line = list = ""
        for (i = 4; i <= NF; i++) {
            if ($i ~ /^line:/) line = substr($i, 6)
            if ($i ~ /^signature:/) list = substr($i, 11)
        }
        depth = 0
        n = list ~ /^\((void)?\)$/ ? 0 : 1
        for (i = 1; i <= length(list); i++) {
            c = substr(list, i, 1)
            if (c ~ /[(<]/) depth++
            else if (c ~ /[)>]/) depth--
            else if (c == "," && depth == 1) n++
        }
        if (n > 6 && !($1 in exempt)) { print n, $2 ":" line, $1; over++ }
    }
    END {
        if (over) print "lint: " over " functions with more than 6 parameters"
        exit over > 0
    }' >&2
