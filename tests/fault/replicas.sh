#!/bin/sh
# replicas.sh - ten ways in which tensor ranks drift apart: each is found, named, and resolved
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh

mk() { "$TBIN/bench/mkckpt" --slim --layers 3 --heads 6 --hidden 48 --pad-vocab 384 --steps 7 "$@" >/dev/null 2>&1; }
bloom="--tp 3 --pp 2 --dp 2"
gpt2="--tp 3 --pp 2 --dp 1 --positions absolute"
embed=tied_modules.embed
mk $bloom "$W/bloom" && mk $gpt2 "$W/gpt2" || exit 1
for m in bloom gpt2; do
    check "$m: in sync" merge-tp -q --check "$W/$m"
    check "$m: reference" reshape -q "$W/$m" "$W/ref-$m"
done

# Join each line of the report with the next, since a name is on the line before its figures.
check_joined() {
    merge-tp --check "$1" >"$W/said"
    rc=$?
    awk 'NR > 1 { next_line = $0; sub(/^ +/, "", next_line); print last " | " next_line } { last = $0 }' "$W/said"
    return $rc
}

# Each line has the model, the drift (PARAM[@last]:STATE:RANK:COUNT), and the name of it in the report.
n=0
while read -r model drift param state where; do
    n=$((n + 1))
    eval "shape=\$$model"
    rm -rf "$W/in" "$W/fixed" "$W/out"
    # shellcheck disable=SC2154
    mk $shape --drift "$drift" "$W/in"
    count=${drift##*:}
    check_exit "$drift: --check names it" 1 "  $param $state${where:+ $where} | $count of" check_joined "$W/in"
    check_exit "$drift: only it" 1 ": 1 out of sync" merge-tp --check "$W/in"
    check_exit "$drift: no merge" 1 "copies of 1 parameter differ" merge-tp -q "$W/in" "$W/out"
    check "$drift: no OUT" [ "$(echo "$W"/out*)" = "$W/out*" ]
    case $drift in
    *@last*) ;;                         # reshape needs the first stage's copies only to agree on their own
    *) check_exit "$drift: no reshape" 1 "$param" reshape -q "$W/in" "$W/out"
       check_exit "$drift: no reshape, how many" 1 " $count of" reshape -q "$W/in" "$W/out" ;;
    esac
    check "$drift: repair" merge-tp -q --repair --replicas majority --certificate "$W/proof" -f "$W/in" "$W/fixed"
    check_exit "$drift: one line of the journal" 0 "\"parameter\":\"$param\"" sed -n 2p "$W/fixed/repair.jsonl"
    check "$drift: and no other" [ "$(wc -l <"$W/fixed/repair.jsonl")" -eq 2 ]
    check "$drift: in sync again" merge-tp -q --check "$W/fixed"
    check "$drift: proof" ckpt-inspect verify -q --strict --certificate "$W/proof" "$W/fixed"
    rm -f "$W/fixed/repair.jsonl" "$W/fixed/manifest.json"
    check "$drift: the sound bytes" diff -r -x manifest.json "$W/fixed" "$W/ref-$model"
done <<END
bloom 3.input_layernorm.weight:exp_avg_sq:1:1 3.input_layernorm.weight exp_avg_sq
bloom 4.input_layernorm.bias:exp_avg:2:1 4.input_layernorm.bias exp_avg
bloom 5.post_attention_layernorm.weight:fp32:0:2 5.post_attention_layernorm.weight fp32
bloom 5.post_attention_layernorm.bias:bf16:1:1 5.post_attention_layernorm.bias bf16
bloom 3.self_attention.dense.bias:fp32:2:48 3.self_attention.dense.bias fp32
bloom 4.mlp.dense_4h_to_h.bias:exp_avg:1:7 4.mlp.dense_4h_to_h.bias exp_avg
bloom $embed.word_embeddings.norm.weight:bf16:0:3 $embed.word_embeddings.norm.weight bf16
bloom 7.weight:exp_avg_sq:2:5 7.weight exp_avg_sq
gpt2 $embed.position_embeddings.weight:fp32:1:1 $embed.position_embeddings.weight fp32
gpt2 $embed.position_embeddings.weight@last:exp_avg:2:4 $embed.position_embeddings.weight exp_avg (last stage)
END
check "all ten" [ $n -eq 10 ]
finish
