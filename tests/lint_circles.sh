#!/bin/sh
# lint_circles.sh - files use each other one way: no circles of external symbols, within a folder or across folders
#
# Usage: lint_circles.sh [FOLDER...]; default: every folder of the product, together.
# Reads the objects of build/$B (release) that are newer than their sources, by nm. Prints each use that is part of a
# circle, or lies between two circles, with its symbols, and exits 1. A folder without such objects is reported.
cd "$(dirname "$0")/.." || exit 1
objects=build/${B:-release}
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(find libcommon kernels tools -name "*.[ch]" -o -name "*.cu" | sed "s,/[^/]*$,," | LC_ALL=C sort -u)

# Print each object FILE.o or FILE.ISA.o of a folder that is not older than its source.
current_objects() {
    for o in "$objects/$1"/*.o; do
        stem=${o##*/} stem=${stem%%.*}
        for src in "$1/$stem.c" "$1/$stem.cu"; do
            [ -f "$src" ] && [ -f "$o" ] && [ ! "$src" -nt "$o" ] && echo "$o"
        done
    done
}

list=
for folder; do
    of_folder=$(current_objects "$folder")
    [ -n "$of_folder" ] || echo "lint: $folder: no current objects in $objects, circles not checked" >&2
    list="$list $of_folder"
done
# shellcheck disable=SC2086
nm -A -g $list 2>/dev/null | awk -v objects="$objects/" '
    # The programs are linked apart: one name may be a symbol of several. Everything else is shared.
    function program(file) {
        return match(file, /^tools\/[^\/]+/) && file !~ /^tools\/common\// ? substr(file, 1, RLENGTH) : "shared"
    }
    {
        file = $1
        sub(/:.*/, "", file)
        sub(objects, "", file)
        sub(/(\.[a-z0-9_]+)?\.o$/, "", file)
        files[file]
        # Weak symbols are copies of inline functions and templates, without an owner.
        if ($(NF - 1) ~ /^[TDBRC]$/) owner[program(file), $NF] = file
        else if ($(NF - 1) == "U") uses[file, $NF]
    }
    END {
        for (u in uses) {
            split(u, p, SUBSEP)
            from = program(p[1])
            if (!((from, p[2]) in owner)) from = "shared"
            if (((from, p[2]) in owner) && owner[from, p[2]] != p[1])
                edge[p[1], owner[from, p[2]]] = edge[p[1], owner[from, p[2]]] " " p[2]
        }
        # A file that uses none of those left, or is used by none, is in no circle.
        do {
            gone = 0
            split("", up)
            split("", down)
            for (k in edge) {
                split(k, p, SUBSEP)
                if (p[1] in files && p[2] in files) { down[p[1]]++; up[p[2]]++ }
            }
            for (f in files)
                if (!up[f] || !down[f]) { delete files[f]; gone++ }
        } while (gone)
        for (k in edge) {
            split(k, p, SUBSEP)
            if (p[1] in files && p[2] in files) {
                print "circle of files: " p[1] " uses " p[2] ":" edge[k]
                n++
            }
        }
        exit n > 0
    }' >&2
