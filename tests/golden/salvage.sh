#!/bin/sh
# salvage.sh - remove or truncate each file of a genuine TP 2, PP 2, DP 2 set, or flip a bit in it: all other data is
# recovered bit for bit
#
# The result is sound. A tensor differs from that of the intact set only in states for which repair.jsonl lists
# widened or zeroed elements, and in no more elements. Weights are always equal. Training continues from the result:
# in the full form one step from each of the 72 results.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/train.sh
G=tests/data/bloom-tp2pp2dp2/global_step20
X=$W/ckpt/global_step20

# damage HOW FILE: make a copy of the set with one damaged file, in $X.
damage() {
    rm -rf "$W/ckpt" "$W/out"
    mkdir "$W/ckpt" && cp -r "$G" "$W/ckpt" && echo global_step20 >"$W/ckpt/latest"
    size=$(wc -c <"$X/$2")
    case $1 in
    lost) rm "$X/$2" ;;
    cut)  head -c $((size * 6 / 10)) "$G/$2" >"$X/$2" ;;
    flip) byte=$(od -An -tu1 -j $((size / 2)) -N 1 "$G/$2" | tr -d ' ')
          # shellcheck disable=SC2059
          printf "\\$(printf %03o $((byte ^ 16)))" | dd of="$X/$2" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null ;;
    esac
}

# Print the states that differ and the number of different elements, "name state n", from diff's JSON.
differing() {
    ckpt-inspect diff --json --tensors-only --max 1000 "$G" "$W/out" | tr '{' '\n' |
        sed -n 's/.*"name":"\([^"]*\)".*"state":"\([^"]*\)".*"n_differ":\([0-9]*\).*/\1 \2 \3/p' | sort
}
# Print the same from repair.jsonl, for elements that were widened or zeroed.
made_up() {
    sed -n 's/.*"parameter":"\([^"]*\)".*"state":"\([^"]*\)".*/\1 \2 &/p' "$W/out/repair.jsonl" |
        awk '{ n = 0; s = $0
               while (match(s, /"(widened|zeroed)":[0-9]+/)) {
                   v = substr(s, RSTART, RLENGTH); sub(/.*:/, "", v); n += v; s = substr(s, RSTART + RLENGTH)
               }
               if (n) print $1, $2, n }' | sort
}
within() {      # every state that differs was made up, and at least as many elements of it
    differing >"$W/differ" && made_up >"$W/made"
    awk 'NR == FNR { most[$1 " " $2] = $3; next }
         $2 == "bf16" || !(($1 " " $2) in most) || $3 > most[$1 " " $2] { print "differs:", $0; bad = 1 }
         END { exit bad }' "$W/made" "$W/differ"
}
none_made_up() { [ -z "$(made_up)" ] && [ -z "$(differing)" ]; }

# resumes NAME STEP: move $W/out away; training continues from it and reaches the step.
resumes() {
    mkdir "$W/run" && mv "$W/out" "$W/run/global_step20" && echo global_step20 >"$W/run/latest"
    # shellcheck disable=SC2086
    check "$1: training resumes" launch 4 $COMMON $BLOOM --data-path "$DATA_DIR/text_document" --load "$W/run" \
        --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --backend cpu --exit-interval "$2"
    grep -q "^ iteration *$2/" "$W/log" && pass || fail "$1: no step $2"
    rm -rf "$W/run"
}

# salvaged HOW FILE
salvaged() {
    damage "$1" "$2"
    check "$1 $2: salvage" ckpt-edit -q salvage "$X" "$W/out"
    check "$1 $2: the result is sound" ckpt-inspect verify --strict -q "$W/out"
    check "$1 $2: what is not said to be made up is equal" within
    case $2 in
    *zero*) [ "$1" = flip ] || check_exit "$1 $2: verify names the way" 1 "ckpt-inspect damage" ckpt-inspect verify "$X"
            check_exit "$1 $2: damage" 1 "training: repair with: ckpt-edit salvage" ckpt-inspect damage "$X"
            check_exit "$1 $2: damage says what to do with the weights" 1 "weights: complete; export with" ckpt-inspect damage "$X" ;;
    *) check "$1 $2: nothing is made up" none_made_up ;;
    esac
    quick || resumes "$1 $2" 21
}

n=0
for file in "$G"/*.pt; do
    file=$(basename "$file")
    salvaged lost "$file"
    if ! quick || [ $((n % 4)) -eq 0 ]; then salvaged cut "$file"; salvaged flip "$file"; fi
    n=$((n + 1))
done

# ---- weights alone, without an mp_rank file ----
export-hf -q "$G" "$W/hf" && reshape -q --weights-only --target-tp 1 "$G" "$W/weights" || exit 1
for rank in 00 01 02 03; do
    damage lost mp_rank_${rank}_model_states.pt
    check "export-hf without mp_rank_$rank" export-hf -q "$X" "$W/out"
    check "... the same model" cmp "$W/hf/model.safetensors" "$W/out/model.safetensors"
    check "... and configuration" cmp "$W/hf/config.json" "$W/out/config.json"
    for tool in "reshape --target-tp 1" merge-tp; do
        rm -rf "$W/out"
        # shellcheck disable=SC2086
        check "$tool without mp_rank_$rank" $tool -q --weights-only "$X" "$W/out"
        check "... the same weights" ckpt-inspect diff --tensors-only -q "$W/weights" "$W/out"
    done
done
rm -rf "$W/out"
reshape -q "$G" "$W/listed" && rm "$W/listed/mp_rank_01_model_states.pt"
check "weights of a folder with a manifest, without mp_rank_01" reshape -q --weights-only --target-tp 1 "$W/listed" "$W/out"
check "... the same weights" ckpt-inspect diff --tensors-only -q "$W/weights" "$W/out"
check_exit "with the optimizer it is refused" 1 "missing mp_rank_03" reshape --target-tp 1 "$X" "$W/no"

# ---- every mp_rank file is lost: another tag of the run ----
damage lost mp_rank_00_model_states.pt
rm "$X"/mp_rank_*
check_exit "no mp_rank file and no other tag" 1 "mp_rank" ckpt-edit salvage "$X" "$W/out"
cp -r "$G" "$W/ckpt/global_step10"
check "... with another tag" ckpt-edit -q salvage "$X" "$W/out"
check "... all tensors" ckpt-inspect diff --tensors-only -q "$G" "$W/out"

# ---- another checkpoint has the states ----
damage lost bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt
check "--from the same step" ckpt-edit -q salvage --from "$G" "$X" "$W/out"
check "... all tensors" ckpt-inspect diff --tensors-only -q "$G" "$W/out"
rm -rf "$W/out"
rm "$X"/layer_05-model_00-model_states.pt
check_exit "weights and masters lost" 1 "elements of its state bf16 are in no other file" ckpt-edit salvage "$X" "$W/out"
[ ! -e "$W/out" ] && pass || fail "a refusal left a result"
check "... from another checkpoint" ckpt-edit -q salvage --from "$G" "$X" "$W/out"
check "... all tensors" ckpt-inspect diff --tensors-only -q "$G" "$W/out"
rm -rf "$W/out"
check "... or zeros" ckpt-edit -q salvage --allow-lost "$X" "$W/out"
check "... sound" ckpt-inspect verify -q "$W/out"

# ---- in place, with undo ----
damage lost layer_03-model_01-model_states.pt
check "in place" ckpt-edit -q salvage --in-place "$X"
check "... all tensors" ckpt-inspect diff --tensors-only -q "$G" "$X"
check "... undone" ckpt-edit -q rollback "$X"
[ ! -e "$X/layer_03-model_01-model_states.pt" ] && pass || fail "rollback left the salvaged one"

# ---- training continues from the full form, in each case above ----
if quick; then
    for file in bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt mp_rank_00_model_states.pt; do
        damage lost "$file"
        ckpt-edit -q salvage "$X" "$W/out" && resumes "lost $file" 22
    done
fi
finish
