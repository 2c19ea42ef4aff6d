#!/bin/sh
# every_layout.sh - every layout to every layout, and every command of ckpt-edit on every layout
#
# The lists of layouts and commands are those that the tools print. A conversion or an edit may be refused: with status
# 1 or 2, one error on standard error, and no output. Otherwise its result verifies, and its tensors are those of the
# source of the conversion, or of the same edit of another layout. Refused cells are printed, because a fault that is
# noticed while it is written shows as a refusal.
cd "$(dirname "$0")/../.." || exit 1
. tests/fault/lib.sh
export BIN W
base=$PWD/tests/data/bloom-tp2pp2dp2/global_step20

# Prints the words that a tool lists in its refusal of an unknown one.
expected() { "$@" 2>&1 | sed -n '1s/.*the value must be //p' | sed 's/ or / /g; s/,//g'; }

# Succeeds if a command of status $1 was refused: it prints one error of the tool, and leaves no output.
refused() {  # STATUS TOOL OUT
    [ "$1" -eq 1 ] || [ "$1" -eq 2 ] || return 1
    [ ! -e "$3" ] && [ "$(grep -vc -e "^Try '" -e "^$2: warning: " "$W/err.$row")" -eq 1 ] &&
        grep -q "^$2: " "$W/err.$row"
}

# Succeeds if OUT is sound. The configuration of a renamed model still lists the old names: this alone is reported.
sound() {  # NAME OUT
    ckpt-inspect verify "$2" >"$W/log.$row" 2>&1 && return
    case $1 in rename*) [ -e "$2/config.json" ] ;; *) false ;; esac &&
        ! grep '^error: ' "$W/log.$row" | grep -qv 'config.json describes it'
}

# result NAME STATUS TOOL OUT LIKE...: check what a command left. Each LIKE is a checkpoint with the tensors of OUT; one
# of them has tensors of the same states.
result() {
    name=$1 status=$2 tool=$3 out=$4; shift 4
    if [ "$status" -ne 0 ]; then
        if refused "$status" "$tool" "$out"; then echo "refused $name"; else
            echo "FAIL $name: status $status, and no refusal in one line without output"; head -5 "$W/err.$row"; fi
        return
    fi
    if ! sound "$name" "$out"; then echo "FAIL $name: verify"; tail -n 5 "$W/log.$row"; return; fi
    for like; do
        ckpt-inspect diff --tensors-only "$like" "$out" >"$W/log.$row" 2>&1
        case $?,$(tail -n 1 "$W/log.$row") in
        0,compared\ [1-9]*\ tensors:\ equal) echo "pass"; return ;;
        # a configuration that lists the old names: see sound()
        1,*no\ difference\ was\ found*) case $name in rename*) echo "pass"; return ;; esac; break ;;
        1,*no\ tensor\ is\ in\ both | 1,*no\ weights\ have\ one\ type\ on\ both\ sides) ;;
        *) break ;;
        esac
    done
    echo "FAIL $name: differs from $like"; tail -n 5 "$W/log.$row"
}

# convert FROM TO OUT: write FROM in the layout TO, with two ranks if the layout needs a number of them.
convert() {
    case $2 in
    pt|hdf5|virtual) ds2universal -q --format "$2" "$1" "$3" >/dev/null 2>"$W/err.$row" ;;
    *)  reshape -q --to "$2" "$1" "$3" >/dev/null 2>"$W/err.$row" && return 0
        grep -q -- --ranks "$W/err.$row" || return 2
        reshape -q --to "$2" --ranks 2 "$1" "$3" >/dev/null 2>"$W/err.$row" ;;
    esac
}

# One row of the first table: the layout $1 to every layout.
row_of_conversions() {
    row=$1
    for to in $layouts; do
        convert "$W/from/$1" "$to" "$W/$1-$to"; status=$?
        case $to in pt|hdf5|virtual) tool=ds2universal ;; *) tool='[a-z0-9-]*' ;; esac
        result "$1 to $to" $status "$tool" "$W/$1-$to" "$W/from/$1"
        rm -rf "$W/$1-$to"
    done
}

# The arguments of a command before IN OUT. $first is a parameter, by the name that it has in this layout.
arguments() {
    case $1 in
    put) echo "$first $W/$row.npy" ;;
    zero) echo "$first" ;;
    set) echo args.lr=1e-4 ;;
    drop) echo optimizer ;;
    average|ema) [ "$1" = average ] || printf '%s ' --decay 0.5; echo "$W/from/$row" ;;
    retag) echo --step 21 ;;
    cast) echo bf16 ;;
    rename) echo '--accept-mismatch (.*)bias$ $1shift' ;;
    layers) echo keep 0-1 ;;
    vocab) echo --tokens 256 ;;
    thin|salvage) ;;
    merge-adapter) echo "$W/adapter.$row" ;;
    apply) echo "$W/patch.$row" ;;
    *) return 1 ;;
    esac
}

# The model of a layout: results are compared with those of the same model.
model() { [ -e "$W/from/$1.other" ] && echo "$1" || echo base; }

# Write an adapter of rank 1 for the weight beside the bias $first, whose factors have equal values: adapter FOLDER CKPT
adapter() {
    module=base_model.model.${first%.bias}
    shape=$(ckpt-inspect ls --param "${first%bias}weight" "$2" 2>/dev/null | awk 'END { gsub(/[],[]/, " "); print $1, $2 }')
    rows=${shape% *} cols=${shape#* }
    head=$(printf '{"%s.lora_A.weight":{"dtype":"F32","shape":[1,%d],"data_offsets":[0,%d]},%s' "$module" "$cols" \
        $((4 * cols)) "\"$module.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[$rows,1],\"data_offsets\":[$((4 * cols)),$((4 * (rows + cols)))]}}")
    n=${#head}
    mkdir "$1"
    printf '{"peft_type": "LORA", "r": 1, "lora_alpha": 256, "target_modules": ["%s"]}\n' "${first%.bias}" \
        >"$1/adapter_config.json"
    {
        printf "\\$(printf %o $((n % 256)))\\$(printf %o $((n / 256)))\\0\\0\\0\\0\\0\\0"
        printf %s "$head"
        i=0; while [ $i -lt $((rows + cols)) ]; do printf '\000\000\200\073'; i=$((i + 1)); done
    } >"$1/adapter_model.safetensors"
}

# Write a patch that sets the parameter $first to 0, with its masters or without them: patch FILE CKPT
patch() {
    ckpt-edit zero -q "$first:bf16" "$first:fp32" "$2" "$1.zeroed" 2>/dev/null ||
        ckpt-edit zero -q "$first:bf16" "$2" "$1.zeroed" 2>/dev/null ||
        ckpt-edit zero -q "$first:fp32" "$2" "$1.zeroed" 2>/dev/null
    ckpt-inspect diff -q --patch "$1" "$2" "$1.zeroed" 2>/dev/null
    rm -rf "$1.zeroed"
}

# One row of the second table: every command on the layout $1.
row_of_edits() {
    row=$1 to=$W/edit/$(model "$1")
    mkdir -p "$to"
    for pattern in '*dense_4h_to_h.bias' '*linear_fc2.bias'; do
        first=$(ckpt-inspect ls --param "$pattern" "$W/from/$1" 2>/dev/null | awk '$NF ~ /bias/ { print $NF; exit }')
        [ -z "$first" ] || break
    done
    ckpt-inspect cat --npy -o "$W/$1.npy" "$W/from/$1" "$first"
    adapter "$W/adapter.$1" "$W/from/$1"
    patch "$W/patch.$1" "$W/from/$1"
    for verb in $verbs; do
        arg=$(arguments "$verb") || { echo "FAIL $verb: no arguments here for this command"; continue; }
        case $verb in
        merge-adapter) set -- "$1" "$W/from/$1" $arg ;;
        *) set -- "$1" $arg "$W/from/$1" ;;
        esac
        layout=$1; shift
        ckpt-edit "$verb" -q "$@" "$to/$verb.$layout" >/dev/null 2>"$W/err.$verb.$layout"
        echo $? >"$W/status.$verb.$layout"
        set -- "$layout"
    done
}

# Check a row of the second table. The rows are complete, so each result is compared with those of the other layouts.
row_of_edited() {
    row=$1 to=$W/edit/$(model "$1")
    for verb in $verbs; do
        cp "$W/err.$verb.$1" "$W/err.$1"
        # cast rounds the masters if there are any, and else the weights: results of different layouts may differ.
        # A renamed model with a configuration cannot be read by the names that others have. A model folder has no
        # masters: an adapter is merged into rounded weights there, and a patch is one of the weights.
        like="$to/$verb.*"
        case $verb in
        cast) like=$to/$verb.$1 ;;
        rename|merge-adapter|apply) [ ! -e "$to/$verb.$1/config.json" ] || like=$to/$verb.$1 ;;
        esac
        result "$verb on $1" "$(cat "$W/status.$verb.$1")" ckpt-edit "$to/$verb.$1" $like
    done
}

# Rows of a table, two at a time: rows FUNCTION LAYOUT...
rows() {
    row_function=$1; shift
    while [ $# -gt 0 ]; do
        $row_function "$1" >"$W/rows.$row_function.$1" 2>&1 &
        [ $# -gt 1 ] && $row_function "$2" >"$W/rows.$row_function.$2" 2>&1
        wait
        shift; [ $# -eq 0 ] || shift
    done
}

layouts="$(expected reshape --to nothing "$base" "$W/none") $(expected ds2universal --format nothing "$base" "$W/none")"
# Commands on one checkpoint in place, which have no result of their own, are tested by tests/cli.
verbs=$(ckpt-edit --help | sed -n '/^Commands:/,/^Options:/s/^  \([a-z][a-z-]*\) .*/\1/p' | sort -u |
    grep -vx -e latest -e rollback -e commit)
mkdir "$W/from" "$W/edit"
row=base
for to in $layouts; do
    convert "$base" "$to" "$W/from/$to"
    result "3D shards to $to" $? '[a-z0-9-]*' "$W/from/$to" "$base"
    # What cannot be made of this model is there as another model.
    [ -e "$W/from/$to" ] || { cp -r "$PWD/tests/data/$to"-gpt2 "$W/from/$to" && : >"$W/from/$to.other"; }
done >"$W/rows.base" 2>&1
rows row_of_conversions $layouts
rows row_of_edits $layouts
rows row_of_edited $layouts
cat "$W"/rows.* >"$W/rows"
grep -v '^pass' "$W/rows" | grep -v '^refused'
sed -n '/^refused/p' "$W/rows" | LC_ALL=C sort
passed=$(grep -c -e '^pass' -e '^refused' "$W/rows") failed=$(grep -c '^FAIL' "$W/rows")
finish
