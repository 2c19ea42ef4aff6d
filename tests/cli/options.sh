# options.sh - sourced by the cases NAME-options: who knows which options of a tool
#
# compare TOOL: --help, the manual page's OPTIONS, the parser, and what bash, zsh and fish complete. The page is as `make man`
# leaves it. Options that --help only lists (without effect, or refused) are not completed.
long() { grep -oE -- '--[A-Za-z][A-Za-z0-9_-]*' | tr _ - | sort -u; }

# What bash offers behind the words that are given.
offers() {
    tool=$1
    bash -c 'eval "$('"$tool"' --completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
             "_shardkit_$1"; printf "%s\n" "${COMPREPLY[@]}"' - "$@"
}

compare() {
    "$1" --help | sed '/^Exit status:/,$d' | long >help
    "$1" --help | grep -oE '^  (-.,|   ) --[A-Za-z0-9-]*' | long >lines
    "$1" --completion man | awk -f "$ROOT/docs/options.awk" - "$ROOT/docs/$1.1" | diff "$ROOT/docs/$1.1" -
    awk '/^\.SH/ { on = $0 == ".SH OPTIONS" } on' "$ROOT/docs/$1.1" | sed 's/\\-/-/g' | long >man
    "$1" --completion list | long >parser
    offers "$1" -- | sort >bash
    "$1" --completion zsh | grep -oE "^    ['{(].*\[" | sed 's/\[.*//; s/^.*,//' | long >zsh
    "$1" --completion fish | grep -oE "^complete -c $1( -n '[^']*')? -l [a-z0-9-]*" | sed 's/.* -l /--/' | sort -u >fish
    wc -l <parser
    diff help man && diff help parser && diff lines bash && diff lines zsh && diff lines fish && echo same
}
