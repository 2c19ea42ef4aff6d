#!/bin/sh
# hostile.sh - truncated, missing, swapped, inconsistent and malicious files: one clear line, exit 1, nothing
# converted
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh

"$TBIN/bench/mkckpt" --layers 2 --hidden 64 --heads 4 --vocab 300 --tp 2 --pp 2 --dp 2 --steps 7 "$W/sound" >/dev/null || exit 1
zero=bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt
mp=mp_rank_01_model_states.pt
layer=layer_03-model_01-model_states.pt

# refused NAME TEXT: verify and the conversion of $W/in both print TEXT and exit 1 quickly, without OUT.
refused() {
    check_exit "$1: verify" 1 "$2" timeout 20 ckpt-inspect verify "$W/in"
    check_exit "$1: convert" 1 "$2" timeout 20 ds2universal -q "$W/in" "$W/out"
    check "$1: no OUT" [ ! -e "$W/out" ]
    check "$1: no leftovers" [ ! -e "$W/out.part" ]
}
# found NAME TEXT: only verify reports it, because the conversion does not need the file.
found() { check_exit "$1: verify" 1 "$2" timeout 20 ckpt-inspect verify "$W/in"; }
fresh() { rm -rf "$W/in" "$W/out" "$W/out.part" "$W/out.part.job"; cp -r "$W/sound" "$W/in"; d=$W/in/global_step7; }

check "sound" ckpt-inspect verify "$W/sound"

# ---- truncated, at every kind of place ----
size=$(stat -c %s "$W/sound/global_step7/$zero")
for keep in 0 1 3 29 100 $((size / 2)) $((size - 100)) $((size - 22)) $((size - 1)); do
    fresh; truncate -s $keep "$d/$zero"; refused "cut to $keep bytes" "$zero"
done
# Bytes after the end of the zip archive are no part of it: a warning, which --strict makes a failure.
fresh; head -c 100 /dev/zero >> "$d/$zero"
past="$zero: at byte $size: 100 bytes after the end of the zip archive"
check_exit "trailing bytes: verify" 0 "$past" timeout 20 ckpt-inspect verify "$W/in"
check_exit "trailing bytes: verify --strict" 1 "$past" timeout 20 ckpt-inspect verify --strict "$W/in"
check_exit "trailing bytes: convert" 0 "$past" timeout 20 ds2universal -q "$W/in" "$W/out"

# ---- missing, extra, swapped, twice ----
for f in $zero $mp $layer; do fresh; rm "$d/$f"; found "missing $f" "$f"; done
fresh; rm "$d/$zero"; refused "missing shard" "$zero"
fresh; cp "$d/$zero" "$d/bf16_zero_pp_rank_2_mp_rank_02_optim_states.pt"; found "a shard too many" "pp_rank_2"
fresh; mv "$d/$zero" "$W/t"; mv "$d/bf16_zero_pp_rank_0_mp_rank_02_optim_states.pt" "$d/$zero"
mv "$W/t" "$d/bf16_zero_pp_rank_0_mp_rank_02_optim_states.pt"; refused "swapped data ranks" "optim_states.pt"
fresh; mv "$d/$mp" "$W/t"; mv "$d/mp_rank_02_model_states.pt" "$d/$mp"; mv "$W/t" "$d/mp_rank_02_model_states.pt"
refused "swapped stages" "model_states.pt"
fresh; cp "$d/$zero" "$d/zero_pp_rank_1_mp_rank_02_optim_states.pt"; refused "two prefixes" "present"
fresh; "$TBIN/bench/mkckpt" --layers 2 --hidden 64 --heads 4 --vocab 300 --tp 2 --pp 2 --dp 2 --steps 8 "$W/later" >/dev/null
cp "$W/later/global_step8/$mp" "$d/$mp"; refused "two saves mixed" "iteration"
rm -rf "$W/later"

# Weights of fp32 are copies of the masters. Those of another run are detected, although the conversion does not use
# them.
rm -rf "$W/in"; cp -r tests/data/zero/zero1-fp16-gpt2-2ranks/ckpt/global_step5 "$W/in"; chmod -R u+w "$W/in"
cp tests/data/zero/zero1-fp32-gpt2-2ranks/ckpt/global_step5/mp_rank_00_model_states.pt "$W/in"
check_exit "weights of another run: verify" 1 "f32 differs from its rounded fp32 master in" ckpt-inspect verify "$W/in"
check_exit "weights of another run: convert" 1 "differ from the rounded masters in" ds2universal -q "$W/in" "$W/out"

# ---- latest ----
fresh; printf 'global_step9' > "$W/in/latest"; refused "latest points nowhere" "global_step9"
fresh; printf '../elsewhere' > "$W/in/latest"; refused "latest with a path" "latest"
fresh; : > "$W/in/latest"; refused "empty latest" "latest"

# ---- malicious ----
for kind in class bomb deep twice lie huge; do
    fresh; "$TBIN/tools/forge" $kind "$d/$mp"; refused "forged $kind" "$mp"
done
check "nothing was executed" [ ! -e hacked ]
check_exit "hostile class is named" 1 "os.system" ckpt-inspect verify "$( "$TBIN/tools/forge" class "$W/c.pt"; echo "$W/c.pt")"

# ---- links ----
fresh; ln -s loop "$d/loop"; ln -s . "$d/self"; check_exit "links beside the files" 0 "" timeout 20 ckpt-inspect "$W/in"
fresh; rm "$d/$zero"; ln -s "$zero" "$d/$zero"; refused "a link to itself" "$zero"
fresh; rm "$d/$zero"; mkdir "$d/$zero"; refused "a folder instead of a file" "$zero"
fresh; rm "$d/$zero"; mkfifo "$d/$zero"; refused "a pipe instead of a file" "$zero"

# ---- paths ----
fresh
check_exit "OUT is a run's folder" 2 "holds global_step7, which is not part of a checkpoint" ds2universal -q "$d" "$W/sound"
check "a conversion" ds2universal -q "$d" "$W/there"
check_exit "OUT exists" 2 "exists already" ds2universal -q "$d" "$W/there"
check_exit "OUT inside IN" 2 "inside the input" ds2universal -q "$d" "$d/out"
check_exit "OUT contains IN" 2 "" ds2universal -q -f "$d" "$W/in"
check_exit "IN is missing" 1 "No such file" ds2universal -q "$W/none" "$W/out"
check "input untouched" diff -r "$W/in" "$W/sound"
: > "$W/plain"; check_exit "OUT's folder cannot be made" 1 "exists, but is not a folder" ds2universal -q "$d" "$W/plain/out"
finish
