#!/bin/sh
# formats_forms.sh - every tensor of genuine checkpoints, in every form that shardkit writes, compared with
# expected.json
#
# $FORMATS holds folders with expected.json. Without it the inputs are tests/data/dcp and torchdist
# (tests/data/README.md). The forms are the folder itself, its universal form, a model folder of it, other numbers of
# ranks and back, and other layouts and back. Each form is compared with expected.json, not with the previous form.
# CASES=PATTERN selects folders. Needs a Python. QUICK=1 uses one folder.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python json "a json module"
equal() { "$python" tests/golden/forms/formats_forms_check.py "$@"; }
echo '{"architectures": ["AnyForCausalLM"]}' >"$W/config.json"

# through NAME EXPECTED COMMAND...: the output of the command in $W/out must be equal, moments included. It stays
# there.
through() {
    name=$1 expected=$2
    shift 2
    rm -rf "$W/out"
    check "$name" "$@" "$W/out"
    check "$name: equal" equal "$expected" "$W/out"
}
# back NAME EXPECTED COMMAND...: the same for a result made from $W/out.
back() {
    rm -rf "$W/in" && mv "$W/out" "$W/in"
    name=$1 expected=$2
    shift 2
    through "$name" "$expected" "$@" "$W/in"
}

quick && FORMATS=
for f in tests/data/dcp/fsdp $(quick || echo tests/data/torchdist/stacked) ${FORMATS:+"$FORMATS"/dcp-* "$FORMATS"/torchdist-* "$FORMATS"/zero*}; do
    ckpt=$f/ckpt b=$(basename "$f")
    case $b in ${CASES:-*}) ;; *) continue ;; esac
    [ -d "$ckpt" ] || ckpt=$(echo "$f"/iter_*)
    e=$f/expected.json
    check "$b" equal "$e" "$ckpt"
    ckpt-inspect ls --json "$ckpt" | grep -q exp_avg && trained=y || trained=
    [ -z "$trained" ] || through "$b: universal" "$e" ds2universal -q --verify "$ckpt"
    check "$b: model" export-hf -q --verify --dtype fp32 --config "$W/config.json" "$ckpt" "$W/hf"
    check "$b: model, equal" equal "$e" "$W/hf" weights
    rm -rf "$W/hf"
    case $b in
    zero*) through "$b: to 7 ranks" "$e" reshape -q --target-dp 7 "$ckpt"
           back "$b: to 3" "$e" reshape -q --target-dp 3
           back "$b: to dcp" "$e" reshape -q --to dcp --mesh 2x2
           back "$b: to zero2" "$e" reshape -q --to zero2 --ranks 2 ;;
    *) through "$b: to 5 ranks" "$e" reshape -q --ranks 5 "$ckpt"
       back "$b: to 2x2" "$e" reshape -q --mesh 2x2
       if [ -n "$trained" ]; then
           back "$b: to zero3" "$e" reshape -q --to zero3 --ranks 3
           back "$b: to zero1" "$e" reshape -q --to zero1 --ranks 2
       fi
       back "$b: to dcp" "$e" reshape -q --to dcp --ranks 3 ;;
    esac
done

# A model folder in several files: itself, and converted and converted back.
for type in fp32 bf16; do
    f=${FORMATS:+$FORMATS/hf-llama-sharded}
    [ -d "$f" ] || continue
    case hf-$type in ${CASES:-*}) ;; *) continue ;; esac
    e=$f/expected-$type.json
    check "hf $type" equal "$e" "$f/$type"
    check "hf $type: sound" ckpt-inspect verify "$f/$type"
    through "hf $type: to dcp" "$e" reshape -q --to dcp --ranks 3 "$f/$type"
    back "hf $type: and back" "$e" export-hf -q --config "$f/$type/config.json" --max-shard-size 60KB
    check "hf $type: of the checkpoint" export-hf -q --dtype $type --config "$f/$type/config.json" \
        "$FORMATS/dcp-fsdp2-llama-3ranks/ckpt" "$W/hf"
    check "hf $type: of the checkpoint, equal" equal "$e" "$W/hf"
    rm -rf "$W/hf"
done
finish
