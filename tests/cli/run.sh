#!/bin/sh
# run.sh [PATTERN] - the tools as a user calls them; SHARE=K/N: every Nth case from the Kth on
#
# A case is a folder here: `cmd` is a shell script, `out`, `err` and `code` are what it must
# print and return (absent: nothing, 0); `seconds` is its time limit (absent: 300), which is
# multiplied by $SLOWNESS (1). It runs in an empty scratch folder with the built tools and the
# programs of tests/bench and tests/tools in $PATH and
#   $DATA   tests/data, not to be written to
#   $ROOT   the repository
# In what it printed, the paths of $DATA and of the scratch folder become $DATA and $TMP, so
# expectations hold anywhere. A failing case keeps its scratch folder. ACCEPT=1 rewrites
# expectations; review the diff. Cases that need files of tests/bench build with tests-bin.
set -u
cd "$(dirname "$0")/../.." || exit 1
pattern=${1:-*}
ROOT=$PWD
DATA=$ROOT/tests/data
: "${BIN:=$ROOT/bin}" "${TBIN:=$ROOT/build/release/tests}"
PATH=$BIN:$TBIN/bench:$TBIN/tools:$PATH
LC_ALL=C
export ROOT DATA PATH LC_ALL
unset OMPI_COMM_WORLD_RANK PMI_RANK SLURM_PROCID
passed=0 failed=0
for tool in shardkit ckpt-inspect ckpt-backup ckpt-edit ds2universal reshape merge-tp export-hf preprocess train run-watch mkckpt; do
    command -v $tool >/dev/null || { echo "$tool is not built"; echo "0 passed, 1 failed"; exit 1; }
done

# Both names of a folder: as we call it and as the system resolves it.
plain() {   # FILE SCRATCH
    sed -e "s|$DATA|\$DATA|g" -e "s|$2|\$TMP|g" "$1"
}

expect() {  # CASE NAME ACTUAL: does the file say what it should?
    if [ "${ACCEPT:-0}" = 1 ]; then
        if [ -s "$3" ]; then cp "$3" "$1/$2"; else rm -f "$1/$2"; fi
        return 0
    fi
    if [ -e "$1/$2" ]; then diff -u "$1/$2" "$3"; else diff -u /dev/null "$3"; fi
}

# A pattern that means nothing must not look like success.
# shellcheck disable=SC2254
for case in tests/cli/*/; do case=${case%/}; case ${case##*/} in $pattern) break ;; esac; case=; done
[ -n "$case" ] || { echo "no case is called '$pattern'; they are the folders of tests/cli"; echo "0 passed, 1 failed"; exit 1; }

n=0 share=${SHARE:-0/1}
begun=$(mktemp "${TMPDIR:-/tmp}/shardkit-cli-XXXXXX")
for case in tests/cli/*/; do
    case=${case%/}
    name=${case##*/}
    # shellcheck disable=SC2254
    case $name in $pattern) ;; *) continue ;; esac
    n=$((n + 1))
    [ $((n % ${share#*/})) -eq "${share%/*}" ] || continue
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/shardkit-cli-XXXXXX")
    mkdir "$scratch/work"
    limit=300
    [ ! -e "$ROOT/$case/seconds" ] || read -r limit <"$ROOT/$case/seconds"
    (cd "$scratch/work" && timeout $((limit * ${SLOWNESS:-1})) sh "$ROOT/$case/cmd") >"$scratch/stdout" 2>"$scratch/stderr" </dev/null
    status=$?
    plain "$scratch/stdout" "$scratch/work" >"$scratch/out"
    plain "$scratch/stderr" "$scratch/work" >"$scratch/err"
    [ $status -eq 0 ] && : >"$scratch/code" || echo $status >"$scratch/code"
    ok=1
    for f in out err code; do
        expect "$case" $f "$scratch/$f" >"$scratch/diff-$f" || ok=0
    done
    if [ $ok -eq 1 ]; then
        passed=$((passed + 1))
        rm -rf "$scratch"
    else
        failed=$((failed + 1))
        echo "FAIL $name (kept: $scratch)"
        head -n 30 -q "$scratch"/diff-*
    fi
done
# A new hard link changes a file as well: its change time is part of what --resume compares, and cases run side by side.
changed=$(find "$DATA" -type f -cnewer "$begun" | head -n 3)
rm -f "$begun"
if [ -n "$changed" ]; then failed=$((failed + 1)); echo "FAIL files of tests/data were changed or linked: $changed"; fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
