# options.sh - sourced by the cases NAME-options: who knows which options of a tool
#
# compare TOOL SECTION: --help, the manual page from SECTION to EXIT STATUS, the parser, and what bash and zsh complete.
# Options of the reference that --help only tells in prose are not completed.
long() { grep -oE -- '--[A-Za-z][A-Za-z0-9_-]*' | tr _ - | sort -u; }

# What bash offers behind the words that are given.
offers() {
    tool=$1
    bash -c 'eval "$('"$tool"' --completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
             "_shardkit_$1"; printf "%s\n" "${COMPREPLY[@]}"' - "$@"
}

compare() {
    "$1" --help | long >help
    "$1" --help | grep -oE '^  (-.,|   ) --[a-z-]*' | long >lines
    sed -n "/^\\.SH $2/,/^\\.SH EXIT/p" "$ROOT/docs/$1.1" | sed 's/\\-/-/g' | long >man
    "$1" --completion list | grep -v '^--completion$' | sort >parser
    offers "$1" -- | sort >bash
    "$1" --completion zsh | grep -oE "^    ['{(].*\[" | sed 's/\[.*//; s/^.*,//' | long >zsh
    wc -l <parser
    diff help man && diff help parser && diff lines bash && diff lines zsh && echo same
}
