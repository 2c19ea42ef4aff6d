#!/bin/sh
# lint.sh - includes follow the arrows: tools -> api -> check -> layout -> write -> ckpt -> plan -> {format, model} -> base
#
# Prints each include that does not as file:line, and exits 1. Also: our headers are named
# from the repository root, no .c file is included, and no header includes ckpt/checkpoint.h, so that a change of
# struct source compiles only the sources that read it; only layouts know which layouts there are (lint_layouts.sh);
# files are in no circle, also across folders (lint_circles.sh); functions have few parameters (lint_params.sh);
# sources begin with their purpose and have at most 120 columns (lint_text.sh); a type's name means one thing
# (lint_types.sh); names of functions and comments use plain words (lint_words.sh); nothing external is there for
# tests alone (lint_symbols.sh).
# tests/tools/lint_fails.sh breaks each rule once.
cd "$(dirname "$0")/.." || exit 1

grep -rnE --include='*.[ch]' --include='*.cu' --include='*.cuh' '^[ \t]*#[ \t]*include[ \t]*"' \
     libcommon tools kernels tests 2>/dev/null |
awk '
    function bad(why) { print place ": " why ": \"" inc "\""; n++ }

    # The rooms that `from` may include; a trailing slash ends each.
    function allowed(from,    below) {
        if (from == "libcommon/base")   return "libcommon/base/"
        if (from == "libcommon/cli")    return "libcommon/cli/ libcommon/base/"
        if (from == "libcommon/tokens") return "libcommon/tokens/ libcommon/base/"
        if (from == "libcommon/comm")   return "libcommon/comm/ libcommon/base/"
        if (from == "libcommon/format/pickle") return "libcommon/format/pickle/ libcommon/base/"
        if (from == "libcommon/format/pack") return "libcommon/format/pack/ libcommon/base/"
        if (from == "libcommon/format/delta") return "libcommon/format/delta/ libcommon/format/pack/ libcommon/base/"
        if (from == "libcommon/format") return "libcommon/format/ libcommon/base/"
        if (from == "libcommon/model")  return "libcommon/model/ libcommon/format/ libcommon/base/"
        if (from == "libcommon/plan")   return "libcommon/plan/ libcommon/format/ libcommon/model/ libcommon/base/"
        below = "libcommon/ckpt/ libcommon/plan/ libcommon/format/ libcommon/model/ libcommon/base/"
        if (from == "libcommon/ckpt")   return below
        if (from == "libcommon/write")  return "libcommon/write/ " below
        # A layout includes the files of libcommon/layout, and engine/, but no other layout.
        if (from ~ "^libcommon/layout/(dcp|deepspeed|engine|hf|universal|zero)$")
            return "libcommon/layout/*.h libcommon/layout/engine/ " from "/ libcommon/write/ " below
        below = "libcommon/layout/ libcommon/write/ " below
        if (from ~ "^libcommon/layout") return below
        if (from == "libcommon/check")  return "libcommon/check/ " below
        if (from == "libcommon/api")    return "include/ libcommon/api/ libcommon/check/ " below
        if (from == "kernels")          return "kernels/kernels.h libcommon/base/"
        if (from ~ "^kernels/")         return "kernels/kernels.h libcommon/base/ " from "/"
        if (from == "tools/train")      return "libcommon/ kernels/kernels.h tools/train/"
        below = "libcommon/ kernels/kernels.h tools/train/options/ "
        if (from == "tools/train/options")    return below
        if (from == "tools/train/log")        return below from "/"
        if (from == "tools/train/network")    return below from "/"
        if (from == "tools/train/checkpoint") return below "tools/train/log/ tools/train/network/ " from "/"
        if (from == "tools/train/guard")      return below "tools/train/log/ tools/train/network/ " from "/"
        if (from == "tools/train/trace")      return "libcommon/ kernels/kernels.h " from "/"
        if (from == "tools/train/run")        return below "tools/train/trace/ tools/train/log/ tools/train/network/ tools/train/checkpoint/ " \
                                                     "tools/train/guard/ " from "/"
        if (from == "tools/train/health")     return below "tools/train/log/ tools/train/run/ " from "/"
        if (from == "tools/ckpt-backup/rules") return "libcommon/ " from "/"
        if (from == "tools/ckpt-backup/delta") return "libcommon/ " from "/"
        if (from == "tools/ckpt-backup/place") return "libcommon/ tools/ckpt-backup/rules/ tools/ckpt-backup/delta/ " from "/"
        if (from == "tools/run-watch/picture") return "libcommon/ tools/run-watch/past/ " from "/"
        if (from ~ "^tools/")           return "libcommon/ tools/common/ " from "/"
        if (from ~ "^tests/")           return "include/ libcommon/ kernels/ tools/train/ tools/ckpt-backup/ tools/ckpt-inspect/ tools/run-watch/ tests/lib/ " from "/"
        return ""
    }

    {
        split($0, f, ":")
        place = f[1] ":" f[2]
        inc = $0
        sub(/^[^"]*"/, "", inc)
        sub(/".*/, "", inc)
        room = f[1]
        sub(/\/[^\/]*$/, "", room)

        if (inc ~ /^\.\.?\// || inc !~ /\//) { bad("not named from the repository root"); next }
        if (inc ~ /\.c$/)                    { bad("includes a .c file"); next }
        if (inc == "libcommon/ckpt/checkpoint.h" && f[1] ~ /\.h$/ && f[1] !~ /^tests\//) {
            bad("a header includes all of struct source; source_parts.h, source_open.h or source_facts.h suffices")
            next
        }
        count = split(allowed(room), ok, " ")
        for (i = 1; i <= count; i++)
            if (ok[i] == "libcommon/layout/*.h" ? inc ~ /^libcommon\/layout\/[^\/]*$/ : index(inc, ok[i]) == 1)
                next
        bad(count ? room " may not include" : "a room that lint.sh does not know")
    }

    END {
        if (n) { print "lint: " n " includes point the wrong way"; exit 1 }
    }
' >&2 || exit 1
sh tests/lint_layouts.sh || exit 1
sh tests/lint_circles.sh || exit 1
sh tests/lint_params.sh || exit 1
sh tests/lint_text.sh || exit 1
sh tests/lint_types.sh || exit 1
sh tests/lint_words.sh || exit 1
sh tests/lint_symbols.sh || exit 1
