#!/bin/sh
# lint_text.sh - sources say what they are, keep to 120 columns and their folder's size, and cite what is there
#
# Each source of the product begins with a comment "NAME - what it is"; a tool's main.c may give the tool's name.
# A section that a comment cites is a heading of docs/formats.md or docs/training.md; nobody cites another document's
# sections by number. A folder has at most 32 files and 8,000 lines. Prints file:line of what does not and exits 1.
cd "$(dirname "$0")/.." || exit 1
bad=0

# shellcheck disable=SC2046
awk '
    function fail(why) { print FILENAME ":" FNR ": " why; n++ }
    FNR == 1 {
        parts = split(FILENAME, path, "/")
        name = path[parts]
        tool = name == "main.c" ? path[parts - 1] : name
        begins = /^#!/ || /^\/\*$/ ? 2 : 1
    }
    FNR == begins && (!/^(\/\*| \*|#) / || (index($0, " " name " - ") == 0 && index($0, " " tool " - ") == 0)) {
        fail("a source begins with a comment \"" name " - what it is\"")
    }
    length($0) > 120 { fail("a line of " length($0) " columns, 120 are enough") }
    END { exit n > 0 }
' $(find include libcommon tools kernels examples -type f -name '*.[ch]' -o -type f -name '*.cu' -o -type f -name '*.cuh' \
         -o -type f -name '*.sh' | LC_ALL=C sort) >&2 || bad=1

if grep -rnE '(^|[^a-zA-Z_])[Ss]pec(ification)?(,? sections?)? [0-9]' --include='*.[ch]' --include='*.cu' \
        --include='*.cuh' --include='*.sh' --include='*.py' --include='*.md' --include='*.1' \
        libcommon tools kernels tests docs README.md >&2; then
    echo "lint: sections of a document that is not here" >&2
    bad=1
fi

for doc in formats training; do
    grep -rnoE --include='*.[ch]' --include='*.cu' --include='*.cuh' "$doc\\.md,? (sections? )?[0-9]+(\\.[0-9]+)?" \
         libcommon tools kernels tests |
    awk -v doc="docs/$doc.md" '
        BEGIN { while ((getline line < doc) > 0) if (line ~ /^##+ [0-9]/) { split(line, w, " "); sub(/\.$/, "", w[2]); has[w[2]] } }
        { if (!($NF in has)) { print $0 ": no such section"; n++ } }
        END { exit n > 0 }' >&2 || bad=1
done
# A folder that one can overlook: at most 32 files and 8,000 lines, its subfolders apart (test data is data).
find libcommon tools kernels tests -path tests/data -prune -o -path tests/fuzz/corpus -prune -o -type f -print |
awk -F/ '
    { folder = $0; sub(/\/[^\/]*$/, "", folder); files[folder]++
      while ((getline line < $0) > 0) lines[folder]++
      close($0) }
    END {
        for (f in files)
            if (files[f] > 32 || lines[f] > 8000) {
                print f ": " files[f] " files, " lines[f] " lines: 32 and 8000 are enough for a folder"
                n++
            }
        exit n > 0
    }' >&2 || bad=1

# What lies beside the rooms of tests/unit is not built.
for f in tests/unit/*.c; do
    [ ! -f "$f" ] || { echo "$f: a test of a room lies in the folder of that room" >&2; bad=1; }
done
exit $bad
