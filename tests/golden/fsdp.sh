#!/bin/sh
# fsdp.sh - torch.distributed.checkpoint loads the output of reshape and ckpt-edit into FSDP2 on 2 and on 5 ranks
#
# Each folder is converted to another number of ranks, and edited: a tensor replaced, a layer removed, another
# vocabulary. The result must equal, bit for bit, the folder merged and changed by torch. If $FORMATS is set, its
# folders dcp-* are used as well. Needs a Python with torch that has FSDP2; skipped without, and with QUICK=1, because
# it takes a minute.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
quick && skip "many starts of torch"
need_python 'numpy, torch.distributed.fsdp, torch.distributed.checkpoint.format_utils' "torch with FSDP2"
load() { "$python" -W ignore tests/golden/forms/fsdp_check.py "$@"; }

# loads NAME IN HOW... -- COMMAND...: torch must load the output of the command in $W/out.
loads() {
    this=$1 in=$2 how=
    shift 2
    while [ "$1" != -- ]; do how="$how $1"; shift; done
    shift
    rm -rf "$W/out"
    check "$this" "$@" "$W/out"
    for world in 2 5; do
        # shellcheck disable=SC2086
        check "$this, $world ranks" load "$W/out" $world "$in" $how
        grep '^FSDP2' "$W/log" | sed "s|^|$this: |"
    done
}

for f in tests/data/dcp/fsdp ${FORMATS:+"$FORMATS"/dcp-*}; do
    ckpt=$f/ckpt b=$(basename "$f")
    case $b in ${CASES:-*}) ;; *) continue ;; esac
    name=$(ckpt-inspect ls --json "$ckpt" | grep -o '"name":"[^"]*"' | sed -n '1s/.*:"\(.*\)"/\1/p')
    ckpt-inspect cat --npy "$ckpt" "$name:exp_avg" >"$W/new.npy" 2>/dev/null
    loads "$b: put" "$ckpt" put "$name" "$W/new.npy" -- ckpt-edit -q put "$name" "$W/new.npy" "$ckpt"
    loads "$b: 4 ranks" "$ckpt" -- reshape -q --ranks 4 "$ckpt"
    case $b in *llama*) ;; *) continue ;; esac
    loads "$b: layers" "$ckpt" drop 0 -- ckpt-edit -q layers drop 0 "$ckpt"
    loads "$b: vocab" "$ckpt" vocab 320 -- ckpt-edit -q vocab --tokens 320 "$ckpt"
done
finish
