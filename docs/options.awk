# options.awk - renew the OPTIONS of a manual page: TOOL --completion man | awk -f docs/options.awk - docs/TOOL.1
#
# What the tool prints of its table of options becomes the section between .SH OPTIONS and the next .SH. What the page
# says more of an option stands behind a line '.\" more', up to the next .TP or .SS, and stays. Text for an option that
# the tool does not have is an error.
function key_of(line) {
    if (line ~ /^\.S/)
        return line
    match(line, /\\-\\-[A-Za-z0-9*\\-]+/)
    return substr(line, RSTART, RLENGTH)
}
# Does the line begin a block, or name the one that .TP began? Sets key.
function begins(line) {
    if (head) {
        key = key_of(line)
        head = 0
    } else if (line ~ /^\.S[HS] /) {
        key = line
        return 1
    } else if (line == ".TP") {
        return head = 1
    }
    return 0
}
function flush(   i) {
    printf "%s", more[".SH OPTIONS"]
    delete more[".SH OPTIONS"]
    for (i = 1; i <= n; i++) {
        printf "%s%s", text[i], more[name[i]]
        delete more[name[i]]
    }
    for (key in more) {
        print FILENAME ": has text about " key ", which is no option" >"/dev/stderr"
        bad = 1
    }
}
FNR == 1 { head = 0; key = "" }
NR == FNR {
    n += begins($0)
    text[n] = text[n] $0 "\n"
    name[n] = key
    next
}
in_options && /^\.SH / { flush(); in_options = 0 }
!in_options { print; if ($0 == ".SH OPTIONS") { in_options = 1; key = $0 } next }
begins($0) { keep = 0 }
/^\.\\" more$/ { keep = 1 }
keep { more[key] = more[key] $0 "\n" }
END { exit bad }
