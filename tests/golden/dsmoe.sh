#!/bin/sh
# dsmoe.sh - DeepSpeed's engine with layers of its MoE loads what reshape --target-ep made for other ranks
#
# An engine with 2 expert-parallel ranks of 4 saves two steps. With 4 and 1 of them, an engine has after loading the
# masters and moments of every parameter, bit for bit, and the next loss is that of an engine that loads only the
# original weights. (The arithmetic of the engine differs with the number of expert-parallel ranks, so the loss is not
# that of the run that saved.) Back at 2, three more steps have the losses of the run that continued. Needs a Python
# with deepspeed and torch (tests/lib/python.sh); skipped without. CASES=PATTERN selects cases.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python 'torch, deepspeed.moe.layer' "deepspeed and torch"
script=$PWD/tests/golden/zero/dsmoe_check.py
OMP_NUM_THREADS=1 PATH=$(dirname "$(command -v "$python")"):$PATH       # its build of kernels wants ninja
export OMP_NUM_THREADS PATH

engine() {
    n=$1; shift
    "$python" -W ignore -m torch.distributed.run --standalone --nproc-per-node "$n" "$script" "$@"
}

# regroups NAME RANKS OPTIONS: `RANKS` are "EP DP" for the target; OPTIONS those of the engine.
regroups() {
    what=$1 ep=${2% *} dp=${2#* }; shift 2
    case $what in ${CASES:-*}) ;; *) return ;; esac
    rm -rf "$W/run"; mkdir -p "$W/run/to" "$W/run/back"
    echo global_step2 | tee "$W/run/to/latest" >"$W/run/back/latest"
    check "$what: save" engine 4 save "$W/run/was" "$W/run/was.json" "$@"
    check "$what: there" reshape -q --verify --target-ep "$ep" --target-dp "$dp" "$W/run/was" "$W/run/to/global_step2"
    check "$what: and back" reshape -q --verify --target-ep 2 --target-dp 4 "$W/run/to" "$W/run/back/global_step2"
    check "$what: load" engine "$dp" load "$W/run/to" "$W/run/to.json" "$@" --ep "$ep"
    check "$what: states" "$python" "$script" equal "$W/run/was.json" "$W/run/to.json" states; cat "$W/log"
    check "$what: weights" engine "$dp" weights "$W/run/was" "$W/run/weights.json" "$@" --ep "$ep"
    check "$what: next loss" "$python" "$script" equal "$W/run/weights.json" "$W/run/to.json" first; cat "$W/log"
    check "$what: load back" engine 4 load "$W/run/back" "$W/run/back.json" "$@"
    check "$what: losses" "$python" "$script" equal "$W/run/was.json" "$W/run/back.json" states losses; cat "$W/log"
}

regroups "zero0 to 4" "4 4" --stage 0
regroups "zero2 to 4" "4 4" --stage 2
quick && finish
regroups "zero1 to 4, groups by size" "4 4" --stage 1 --groups 2 --max_group 40
regroups "zero0 to 1, fp32, groups by size" "1 4" --stage 0 --type fp32 --max_group 40
regroups "zero2 to 1, on 2 ranks" "1 2" --stage 2
regroups "zero1 to 4, data first" "4 4" --stage 1 --type fp32 --data_first 1
finish
