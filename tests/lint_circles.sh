#!/bin/sh
# lint_circles.sh - the files of a folder use each other one way: no circles of external symbols
#
# Usage: lint_circles.sh [FOLDER...]; default: every folder of the product.
# Reads the objects of build/$B (release) that are newer than their sources, by nm. A circle is printed with the
# symbols that close it, exit 1. A folder without objects is said, not passed over in silence.
cd "$(dirname "$0")/.." || exit 1
objects=build/${B:-release}
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(find libcommon kernels tools -name "*.[ch]" -o -name "*.cu" | sed "s,/[^/]*$,," | LC_ALL=C sort -u)

# Each object FILE.o or FILE.ISA.o of a folder that is not older than its source.
fresh() {
    for o in "$objects/$1"/*.o; do
        stem=${o##*/} stem=${stem%%.*}
        for src in "$1/$stem.c" "$1/$stem.cu"; do
            [ -f "$src" ] && [ -f "$o" ] && [ ! "$src" -nt "$o" ] && echo "$o"
        done
    done
}

bad=0
for folder; do
    list=$(fresh "$folder")
    if [ -z "$list" ]; then
        echo "lint: $folder: no fresh objects in $objects, circles not looked for" >&2
        continue
    fi
    # shellcheck disable=SC2086
    nm -A -g $list 2>/dev/null | awk -v folder="$folder" '
        {
            file = $1
            sub(/:.*/, "", file); sub(/.*\//, "", file); sub(/\..*/, "", file)
            files[file]
            # Weak ones are copies of inline functions and templates: whose, nobody can say.
            if ($(NF - 1) ~ /^[TDBRC]$/) owner[$NF] = file
            else if ($(NF - 1) == "U") uses[file, $NF]
        }
        END {
            for (u in uses) {
                split(u, p, SUBSEP)
                if (p[2] in owner && owner[p[2]] != p[1])
                    edge[p[1], owner[p[2]]] = edge[p[1], owner[p[2]]] " " p[2]
            }
            # Whoever uses nobody that is left, or is used by nobody, is in no circle.
            do {
                gone = 0
                for (f in files) {
                    up = down = 0
                    for (k in edge) {
                        split(k, p, SUBSEP)
                        if (p[1] == f && p[2] in files) down++
                        if (p[2] == f && p[1] in files) up++
                    }
                    if (!up || !down) { delete files[f]; gone++ }
                }
            } while (gone)
            for (k in edge) {
                split(k, p, SUBSEP)
                if (p[1] in files && p[2] in files) {
                    print folder ": circle of files: " p[1] " uses " p[2] ":" edge[k]
                    n++
                }
            }
            exit n > 0
        }' >&2 || bad=1
done
exit $bad
