#!/bin/sh
# picture.sh - print docs/verify.svg: a terminal with a damaged checkpoint, made from real output
#
# picture.sh CHECKPOINT: copies the folder of a run, overwrites one byte of an optimizer file, runs the commands that a
# user would run, and prints what they print as SVG. The tools are found in PATH. A test compares the result with
# docs/verify.svg.
set -eu
from=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "${work:?}"' EXIT
cd "$work"
cp -r "$from" run
chmod -R u+w run
printf X | dd of=run/global_step20/bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt bs=1 seek=9000 conv=notrunc 2>/dev/null

show() {    # COMMAND: its line and what it prints
    echo "\$ $1"
    sh -c "$1" 2>&1 || true
}
{
    show 'shardkit verify run'
    show 'shardkit damage run'
    show 'shardkit edit -q salvage run fixed'
    show 'shardkit verify fixed'
} | awk '
    function escape(s) { gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s); return s }
    function add(s, class) { line[++n] = s; kind[n] = class }
    {
        class = /^\$ / ? "cmd" : /^error/ ? "bad" : /sound$/ ? "good" : "out"
        s = $0
        while (length(s) > 100) {                   # wrap at a space, continue with an indent
            for (at = 100; at > 40 && substr(s, at, 1) != " "; at--) ;
            add(substr(s, 1, at - 1), class)
            s = "    " substr(s, at + 1)
        }
        add(s, class)
    }
    END {
        height = n * 20 + 36
        printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"880\" height=\"%d\" viewBox=\"0 0 880 %d\">\n", height, height
        print "<title>shardkit finds one damaged byte, lists what it hit, and writes a checkpoint that training resumes from</title>"
        print "<style>text { font: 14px monospace; white-space: pre } .out { fill: #c9d1d9 } .cmd { fill: #ffffff; font-weight: bold }"
        print ".bad { fill: #ff8a80 } .good { fill: #7ee787 }</style>"
        printf "<rect width=\"880\" height=\"%d\" rx=\"8\" fill=\"#161b22\"/>\n", height
        for (i = 1; i <= n; i++)
            printf "<text x=\"16\" y=\"%d\" class=\"%s\" textLength=\"%.1f\" xml:space=\"preserve\">%s</text>\n",
                   i * 20 + 12, kind[i], length(line[i]) * 8.43, escape(line[i])
        print "</svg>"
    }'
