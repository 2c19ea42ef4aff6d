#!/bin/sh
# lint_text.sh - sources say what they are, keep to 120 columns, and cite what is in the repository
#
# Each source of the product begins with a comment "NAME - what it is"; a tool's main.c may give the tool's name.
# A section that a comment cites is a heading of docs/formats.md or docs/training.md; nobody cites another document's
# sections by number. Prints file:line of what does not and exits 1.
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
' $(find libcommon tools kernels -type f -name '*.[ch]' -o -type f -name '*.cu' -o -type f -name '*.cuh' \
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
exit $bad
