#!/bin/sh
# lint_fails.sh - check that each rule of `make lint` reports a violation, each in a copy of the
# tree
#
# It needs the objects of build/release; those of changed sources are compiled in the copy. It ends
# with "N passed, N failed".
cd "$(dirname "$0")/../.." || exit 1
root=$PWD passed=0 failed=0
W=$(mktemp -d "${TMPDIR:-/tmp}/lint-XXXXXX") || exit 1
trap 'rm -rf "$W"' EXIT INT TERM

# Sources keep their times, so objects are as up to date in the copy as in the tree. Objects are
# links, because none is written to.
tar cf - Makefile include examples libcommon kernels tools tests/*.sh tests/unit tests/lib docs README.md | tar xf - -C "$W"
mkdir -p "$W/build/release" "$W/tests/data"
cp -alr build/release/libcommon build/release/kernels build/release/tools build/release/flags "$W/build/release/"
cd "$W" || exit 1

# restore FILE...: bring the files back to their original contents.
restore() {
    for was; do
        if [ -f "$root/$was" ]; then cp -p "$root/$was" "$was"; else rm -f "$was"; fi
        o=build/release/${was%.c}.o
        if [ -f "$o" ]; then rm -f "$o"; cp -al "$root/$o" "$o"; fi
    done
}
# Check that LINT reports TEXT, then restore the FILEs.
fails() {       # NAME LINT TEXT FILE...
    name=$1 lint=$2 text=$3
    shift 3
    if sh "tests/$lint" >said 2>&1; then
        echo "FAIL  $name: $lint finds nothing"; failed=$((failed + 1))
    elif ! grep -q -- "$text" said; then
        echo "FAIL  $name: expected '$text', found:"; head -n 5 said; failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
    restore "$@"
}
holds() {       # LINT
    if sh "tests/$1" >said 2>&1; then passed=$((passed + 1))
    else echo "FAIL  $1 of the tree as it is:"; cat said; failed=$((failed + 1)); fi
}
compile() {     # FILE.c
    rm -f "build/release/${1%.c}.o"
    ${CC:-cc} -O2 -I. -D_GNU_SOURCE -fopenmp -DSHARDKIT_VERSION='""' -c -o "build/release/${1%.c}.o" "$1" ||
        { echo "FAIL  $1 does not compile"; failed=$((failed + 1)); }
}

for lint in lint_circles.sh lint_layouts.sh lint_text.sh lint_types.sh lint_words.sh lint_symbols.sh; do holds $lint; done

f=libcommon/base/utf8.c g=libcommon/base/names.c t=tests/unit/base/test_base.c
echo '#include "libcommon/ckpt/checkpoint.h"' >>$f
fails "an include against the arrows" lint.sh "$f:[0-9]*: libcommon/base may not include" $f
echo '#include "mem.h"' >>$f
fails "an include that is not named from the root" lint.sh "not named from the repository root" $f
echo '#include "libcommon/base/mem.c"' >>$f
fails "a source that is included" lint.sh "includes a .c file" $f
i=libcommon/api/view.h
echo '#include "libcommon/ckpt/checkpoint.h"' >>$i
fails "a header that includes struct source" lint.sh "$i:[0-9]*: a header includes all of struct source" $i
l=libcommon/layout/zero/zero_state.c
echo '#include "libcommon/layout/dcp/dcp.h"' >>$l
fails "a layout that includes another" lint.sh "$l:[0-9]*: libcommon/layout/zero may not include" $l

printf 'int utf8_one(void);\nint names_one(void);\nint utf8_one(void) { return names_one(); }\nint utf8_two(void) { return 2; }\n' >>$f
printf 'int utf8_two(void);\nint names_one(void);\nint names_one(void) { return utf8_two(); }\n' >>$g
compile $f
compile $g
fails "two files that use each other" lint_circles.sh \
    "circle of files: libcommon/base/utf8 uses libcommon/base/names" $f $g
h=libcommon/plan/tiles.c
printf 'int tiles_one(void);\nint utf8_two(void);\nint tiles_one(void) { return utf8_two(); }\n' >>$h
printf 'int utf8_two(void);\nint tiles_one(void);\nint utf8_two(void) { return tiles_one(); }\n' >>$f
compile $f
compile $h
fails "files of two folders that use each other" lint_circles.sh \
    "circle of files: libcommon/base/utf8 uses libcommon/plan/tiles" $f $h

c=libcommon/check/copies.c
echo 'static bool is_hf(const struct source *s) { return s->layout == &hf_layout; }' >>$c
fails "a check that compares with a layout" lint_layouts.sh "$c:.*&hf_layout" $c
echo 'static bool is_zero3(const struct source *s) { return s->zero_stage == 3; }' >>$c
fails "a check of a member that one layout fills" lint_layouts.sh "$c:.*zero_stage" $c
echo 'static bool is_dcp(const struct source *s) { return !strcmp(source_layout_name(s), "dcp"); }' >>tools/reshape/reshape_run.c
fails "a tool that compares a layout's name" lint_layouts.sh "reshape_run.c:.*strcmp" tools/reshape/reshape_run.c
echo 'static bool is_model(const struct source *s) { return s->layout->model_folder; }' >>$c
fails "a check that reads a property of the layout" lint_layouts.sh "$c:.*layout->model_folder" $c
echo 'static bool same(const struct source *a, const struct source *b) { return a->layout == b->layout; }' >>$c
fails "a check that compares two layouts" lint_layouts.sh "$c:.*->layout ==" $c
echo 'static bool is_of_zero(const struct source *s) { return source_is_from_zero(s); }' >>$c
fails "a check that calls a function for layouts alone" lint_layouts.sh "$c:.*source_is_from_zero" $c
echo '#include "libcommon/ckpt/layout.h"' >>tools/reshape/reshape_run.c
fails "a tool that includes the properties of layouts" lint_layouts.sh "reshape_run.c:.*ckpt/layout.h" tools/reshape/reshape_run.c

echo 'int utf8_tested(void) { return 1; }' >>$f
echo 'int utf8_tested(void);' >>$t
compile $f
fails "a function that only tests call" lint_symbols.sh "$f: utf8_tested: only tests use it" $f $t
echo 'int utf8_nobody(void) { return 1; }' >>$f
compile $f
fails "an external function that nobody calls" lint_symbols.sh "$f: utf8_nobody: no other file uses it" $f

echo 'struct plan { int n; };' >>tools/reshape/reshape_run.c
fails "a second struct plan" lint_types.sh "a second struct plan, the first is at" tools/reshape/reshape_run.c
printf '/* one more */\nenum dtype { NONE };\n' >>kernels/cpu/norm.c
fails "a second enum dtype" lint_types.sh "a second enum dtype" kernels/cpu/norm.c

echo 'int no_comment;' >libcommon/base/new.c
fails "a source that does not say what it is" lint_text.sh "new.c:1: a source begins with a comment" libcommon/base/new.c
printf '/* %0120d */\n' 0 >>$f
fails "a line too long" lint_text.sh "$f:[0-9]*: a line of 126 columns" $f
printf '/* as sp%s 3.2 says */\n' ec >>$f
fails "a document that is not here" lint_text.sh "sections of a document that is not here" $f
echo '/* docs/formats.md 99.9 */' >>$f
fails "a section that is not there" lint_text.sh "no such section" $f
for i in 1 2 3 4 5 6 7 8 9; do printf '/*\n * more%d.h - one file more\n */\n' $i >libcommon/base/more$i.h; done
fails "a folder of too many files" lint_text.sh "libcommon/base: [0-9]* files" libcommon/base/more?.h
awk 'BEGIN { print "/*\n * long.c - lines\n */"; for (i = 0; i < 8000; i++) print "" }' >libcommon/base/long.c
fails "a folder of too many lines" lint_text.sh "libcommon/base: .* lines: 32 and 8000" libcommon/base/long.c
echo >tests/unit/test_new.c
fails "a test beside the rooms" lint_text.sh "a test of a room lies in the folder" tests/unit/test_new.c
printf '/* Whoever reads this, of\n * which there are two. */\n' >>$f
fails "a comment that is a riddle" lint_words.sh "$f:[0-9]*: *whoever" $f
printf '/* files, of\n * which one is lost */\n' >>$f
fails "a phrase of the list on two lines" lint_words.sh "$f:[0-9]*: *of which" $f
if ctags --version 2>/dev/null | grep -q Universal; then
    echo 'int utf8_take(void) { return 1; }' >>$f
    fails "a function with a verb that has a plainer one" lint_words.sh "$f:[0-9]*: function utf8_take" $f
    echo 'int seven(int a, int b, int c, int d, int e, int f, int g) { return a + b + c + d + e + f + g; }' >>$f
    fails "seven parameters" lint_params.sh "1 functions with more than 6" $f
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
