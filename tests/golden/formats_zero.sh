#!/bin/sh
# formats_zero.sh - every tensor of checkpoints that DeepSpeed's engine wrote without pipeline
#
# Each folder of tests/data/zero has tensors.sha256, with one line per merged tensor: SHA-256, state and name, as the
# genuine software gathered it before the save. FORMATS=DIR adds its folders called zero*, whose expected.json holds
# the same data (needs jq). The conversion passes through 120 ranks, whose numbers sort differently from their names;
# with QUICK=1 through 12.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
many=120
quick && many=12

# sums FOLDER: print the list, whichever form it has.
sums() {
    if [ -f "$1/tensors.sha256" ]; then
        cat "$1/tensors.sha256"
    else
        jq -r '.tensors | to_entries[] | "\(.value.sha256) \(.key | sub("/"; " "))"' "$1/expected.json"
    fi
}

# equal FOLDER: for each tensor in the list, cat must print its bytes.
equal() {
    sums "$1" >"$W/sums"
    while read -r sha state name; do
        case $state in
        fp32) ckpt-inspect cat --raw "$1/ckpt" "$name" ;;       # a frozen one has weights, a buffer its own type
        *) ckpt-inspect cat --raw "$1/ckpt" "$name:$state" ;;
        esac >"$W/raw" 2>"$W/err" && echo "$sha  $W/raw" | sha256sum -c --quiet >/dev/null 2>&1 && continue
        echo "$name $state differs: $(cat "$W/err")"
        return 1
    done <"$W/sums"
    [ -s "$W/sums" ]
}

# listed FOLDER: ls must name exactly the tensors of the list.
listed() {
    sums "$1" | sed 's/^[^ ]* [^ ]* //' | sort -u >"$W/want"
    { ckpt-inspect ls --json "$1/ckpt" | grep -o '"name":"[^"]*"' | sed 's/"name":"\(.*\)"/\1/'
      ckpt-inspect ls -v "$1/ckpt" | sed -n '/^other than/,$s/^[a-z0-9]* \[.*\]  \([a-z_]*\)$/\1/p'; } | sort -u >"$W/have"
    diff "$W/want" "$W/have"
}

# universal FOLDER OTHER [BUT]: OTHER must have all trained tensors of the list, and the values of the others, except
# for lines that match BUT.
universal() {
    ckpt-inspect diff "$1/ckpt" "$2" >"$W/diff"
    # Frozen weights of 16 bits are fp32 in the universal form; nothing else may differ.
    # ZeRO-3 and the universal form have no weights beside masters.
    grep -E 'only in the|values differ|elements' "$W/diff" |
        grep -vE "^note|fp32: only in the second\$|bf16: only in the|other than the|tensors other than|${3:-^note}" && return 1
    grep -q "^compared [1-9]" "$W/diff"
}

echo '{"architectures": ["AnyForCausalLM"]}' >"$W/config.json"
for f in tests/data/zero/* ${FORMATS:+"$FORMATS"/zero*}; do
    [ -d "$f/ckpt" ] || continue
    b=$(basename "$f")
    check "$b: tensors" equal "$f"
    check "$b: names" listed "$f"
    check "$b: sound" ckpt-inspect verify "$f/ckpt"
    check "$b: equal to itself" ckpt-inspect diff "$f/ckpt" "$f/ckpt"
    check "$b: stats" ckpt-inspect stats "$f/ckpt"
    check "$b: universal" ds2universal -q --verify "$f/ckpt" "$W/universal"
    check "$b: universal tensors" universal "$f" "$W/universal"
    [ ! -d "$f/ckpt/universal" ] || check "$b: as DeepSpeed's" ckpt-inspect diff "$W/universal" "$f/ckpt/universal"
    # Export to safetensors: the names are the model's own.
    check "$b: export" export-hf -q --verify --dtype fp32 --max-shard-size 10KB --config "$W/config.json" "$f/ckpt" "$W/hf"
    check "$b: exported" universal "$f" "$W/hf" '^lm_head.weight fp32: only in the first$'
    check "$b: export of weights" export-hf -q --verify --config "$W/config.json" "$f/ckpt" "$W/hf16"
    check "$b: of the universal form" export-hf -q --verify --config "$W/config.json" "$W/universal" "$W/hfu"
    rm -rf "$W/hf" "$W/hf16" "$W/hfu"
    # Conversion to other numbers of ranks and back gives the same files as an identical copy by the same writer.
    check "$b: rewritten" reshape -q --verify "$f/ckpt" "$W/ours"
    check "$b: to 2 ranks" reshape -q --verify --target-dp 2 "$f/ckpt" "$W/two"
    check "$b: equal on 2" ckpt-inspect diff "$f/ckpt" "$W/two"
    check "$b: to $many" reshape -q --target-dp $many "$W/two" "$W/many"
    check "$b: universal of $many" ds2universal -q "$W/many" "$W/universal_of_many"
    check "$b: universal forms are equal" ckpt-inspect diff "$W/universal" "$W/universal_of_many"
    check "$b: and back" reshape -q --target-dp "$(ls "$f"/ckpt/global_step*/*_00_optim_states.pt | wc -l)" "$W/many" "$W/back"
    check "$b: the same files" diff -r --exclude=manifest.json "$W/ours" "$W/back"
    check "$b: from the universal form" reshape -q --verify "$W/universal_of_many" "$W/from"
    # The universal form holds states as fp32, so bf16 states come back as fp32 with the same values.
    if [ "$b" = zero2-bf16-states ]; then
        check "$b: universal of $many again" ds2universal -q "$W/from" "$W/universal_of_from"
        check "$b: on $many again" ckpt-inspect diff "$W/universal" "$W/universal_of_from"
    else
        check "$b: on $many again" ckpt-inspect diff "$W/many" "$W/from"
    fi
    for to in zero2 zero3; do
        case $b in *elastic*) continue ;; esac
        check "$b: as $to" reshape -q --verify --to $to --target-dp 3 "$f/ckpt" "$W/$to"
        check "$b: equal as $to" universal "$f" "$W/$to"
        rm -rf "$W/$to"
    done
    rm -rf "$W"/universal* "$W/ours" "$W/two" "$W/many" "$W/back" "$W/from"
done
finish
