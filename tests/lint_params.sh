#!/bin/sh
# lint_params.sh - functions take at most six parameters: beyond that they take a struct with named fields
#
# Usage: lint_params.sh [-a | FILE...]; default: the files that are clean and shall stay so; -a: all of the product,
# to see what is left. Prints "count file:line name" of each function with more and exits 1. Reads what ctags
# finds; without Universal Ctags it says that nothing was looked at.
cd "$(dirname "$0")/.." || exit 1
if [ "${1:-}" = -a ]; then
    set -- $(git ls-files 'libcommon/*.[ch]' 'kernels/*.[ch]' 'kernels/*.cu' 'kernels/*.cuh' 'tools/*.[ch]')
elif [ $# -eq 0 ]; then
    set -- $(git ls-files 'kernels/*.h' 'kernels/cpu/*.[ch]' 'libcommon/*.[ch]' 'tools/*.[ch]' \
        ':!libcommon/base/report.[ch]' ':!libcommon/format/pt.h' ':!libcommon/format/pt_write.c' \
        ':!libcommon/layout/deepspeed/deepspeed_tree.[ch]' ':!libcommon/plan/gather.c' ':!tools/train/*') \
        tools/train/network/model*.[ch] tools/train/network/pipeline.[ch] tools/train/network/stage.[ch] \
        tools/train/run/nan.c
fi
if ! ctags --version 2>/dev/null | grep -q Universal; then
    echo "lint: no Universal Ctags here, parameters not counted" >&2
    exit 0
fi
ctags --kinds-C=f --kinds-C++=f --kinds-CUDA=f --map-CUDA=+.cuh --fields=+nS -f - "$@" 2>/dev/null | awk -F'\t' '
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
        if (n > 6) { print n, $2 ":" line, $1; over++ }
    }
    END {
        if (over) print "lint: " over " functions with more than 6 parameters"
        exit over > 0
    }' >&2
