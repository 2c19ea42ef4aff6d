#!/bin/sh
# lint_words.sh - names of functions and comments use plain words
#
# No function of the product is named with a verb that has a plainer one (tell: report_, print_, log_; take: parse_,
# acquire_, add_; settle: resolve_; judge: check_; note: record_; turn: transpose_ ...), and no comment has a word or
# phrase of the list below, which read as riddles. Comments of tests are checked, too. Prints file:line and the word, and exits 1. Names
# need Universal Ctags; without it a line reports that they were not checked.
cd "$(dirname "$0")/.." || exit 1
# shellcheck disable=SC2046
set -- $(find include libcommon tools kernels examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort)
bad=0

verbs='tells?|told|says?|said|hears?|heard|takes?|took|taken|settles?|settled|looks?|judges?|judged|note|turns?|turned'
verbs="$verbs|anew|fresh|deals?|dealt|meeting|speaks?|becomes?|became|kin|beside|behind|whoever|talks?|canonical"
if ctags --version 2>/dev/null | grep -q Universal; then
    found=$(ctags --kinds-C=f --kinds-C++=f --kinds-CUDA=f --map-CUDA=+.cuh --fields=+n -f - "$@" 2>/dev/null |
            awk -F'\t' -v verbs="(^|_)($verbs)(_|\$)" '
                $1 ~ verbs { sub(/line:/, "", $5); print $2 ":" $5 ": function " $1 }')
    [ -z "$found" ] || { echo "$found" >&2; bad=1; }
else
    echo "lint: no Universal Ctags here, names of functions not checked" >&2
fi

# shellcheck disable=SC2046
awk '
    BEGIN {
        riddle = "(^|[^a-z_-])(whoever|of which|that is what|anew|kin|beside|behind|tells?|told|said|says|hears?|heard" \
                 "|settles?|settled|judges?|judged|speaks|nobody|somebody|what is to be|nothing of|in whose" \
                 "|held against|strangers?)([^a-z_-]|$)"
    }
    function check(text) {
        text = tolower(text)
        gsub(/`[^`]*`|"[^"]*"|\*[a-z_]+/, "", text)            # names in the code
        gsub(/(each|all|most|some|none|one|two|both) of which/, "", text)
        if (match(text, riddle)) {
            print FILENAME ":" began ": " substr(text, RSTART, RLENGTH)
            n++
        }
    }
    FNR == 1 { inside = 0 }
    {
        line = $0
        for (;;) {
            if (!inside) {
                gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
                if (!match(line, /\/\*|\/\//)) break
                began = FNR
                text = ""
                if (substr(line, RSTART, 2) == "//") { check(substr(line, RSTART)); break }
                line = substr(line, RSTART + 2)
                inside = 1
            }
            if (!match(line, /\*\//)) {
                sub(/^[ \t]*\*?[ \t]*/, "", line)
                text = text " " line
                break
            }
            part = substr(line, 1, RSTART - 1)
            sub(/^[ \t]*\*?[ \t]*/, "", part)
            check(text " " part)
            line = substr(line, RSTART + 2)
            inside = 0
        }
    }
    END { exit n > 0 }
' "$@" $(find tests/unit tests/lib -name '*.[ch]' | LC_ALL=C sort) >&2 || bad=1
exit $bad
