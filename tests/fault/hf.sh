#!/bin/sh
# hf.sh - export-hf both ways, killed, on a full disk, and with I/O that fails
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
kills=${KILLS:-6}
[ -n "${SOAK:-}" ] && kills=200

model="--layers 4 --hidden 512 --heads 8 --vocab 20000 --steps 7"
"$TBIN/bench/mkckpt" $model --tp 2 --pp 2 --dp 2 "$W/bloom" >/dev/null 2>&1 || exit 1
"$TBIN/bench/mkckpt" $model --positions absolute --tp 2 --pp 1 --dp 2 "$W/gpt2" >/dev/null 2>&1 || exit 1
check "model to import" export-hf -q "$W/gpt2/global_step7" "$W/hf"
state_of() { (cd "$W" && find bloom gpt2 hf -type f | sort | xargs cksum); }
before=$(state_of)

# kills_of NAME IN OPTIONS...: do one complete run, then runs that are killed, checked, and resumed.
kills_of() {
    what=$1 in=$W/$2 ref=$W/ref-$1
    shift 2
    check "$what without a kill" export-hf "$@" -q "$in" "$ref"
    i=0
    while [ $i -lt "$kills" ]; do
        ms=$(random 250)
        export-hf "$@" -q "$in" "$W/out" 2>/dev/null &
        pid=$!
        sleep "$(printf '0.%03d' "$ms")"
        kill -KILL $pid 2>/dev/null
        wait $pid 2>/dev/null
        if [ -e "$W/out" ] && ! diff -r "$W/out" "$ref" >/dev/null; then
            fail "$what killed after $ms ms: OUT is there and wrong"
        fi
        check "$what killed after $ms ms: resume" export-hf "$@" -q --resume "$in" "$W/out"
        check "$what killed after $ms ms: same bytes" diff -r "$W/out" "$ref"
        [ -e "$W/out.part" ] || [ -e "$W/out.part.job" ] && fail "$what killed after $ms ms: leftovers"
        rm -rf "$W/out"
        i=$((i + 1))
    done
}
kills_of bloom bloom/global_step7 --max-shard-size 5MB
kills_of gpt2 gpt2/global_step7 --dtype fp32
kills_of pickled gpt2/global_step7 --format bin --per-layer
kills_of import hf --import --target-tp 2 --target-pp 2 --target-dp 2
check "import: sound" ckpt-inspect verify -q "$W/ref-import"

if ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl; then
    shim="env LD_PRELOAD=$W/badio.so ASAN_OPTIONS=verify_asan_link_order=0"
    for off in BADIO_URING=0 BADIO_DIRECT=0; do
        check "$off: export" $shim $off export-hf -q --dtype fp32 "$W/gpt2/global_step7" "$W/o1"
        check "$off: same bytes" diff -r "$W/o1" "$W/ref-gpt2"
        check "$off: import" $shim $off export-hf -q --import --target-tp 2 --target-pp 2 --target-dp 2 "$W/hf" "$W/o2"
        check "$off: same bytes" diff -r "$W/o2" "$W/ref-import"
        rm -rf "$W"/o?
    done
    for call in pread:40 pwrite:3 pwrite:90 fsync:2 fallocate:1; do
        for errno in 5:Input/output 28:'No space'; do
            case $call:$errno in pread*:28:*|fallocate*:5:*) continue ;; esac   # not what these calls say
            check_exit "$call errno ${errno%%:*}" 1 "${errno#*:}" \
                $shim BADIO_URING=0 BADIO="$call+:${errno%%:*}" export-hf -q --dtype fp32 "$W/gpt2/global_step7" "$W/out"
            check "$call errno ${errno%%:*}: no OUT" [ ! -e "$W/out" ]
            if [ -e "$W/out.part" ]; then
                : >"$W/out.part/config.json.4711.part"      # what a kill may leave
                check "$call: resume" export-hf -q --resume --dtype fp32 "$W/gpt2/global_step7" "$W/out"
                check "$call: same bytes" diff -r "$W/out" "$W/ref-gpt2"
            fi
            rm -rf "$W/out" "$W/out.part" "$W/out.part.job"
        done
    done
    check_exit "import: a spool file that cannot be written" 1 "No space" \
        $shim BADIO_URING=0 BADIO="pwrite:1+:28" export-hf -q --import "$W/hf" "$W/out"
    check "import: no OUT" [ ! -e "$W/out" ]
    rm -rf "$W"/out*
else
    echo "no shared-object compiler: failing calls are not tested"
fi

mkdir "$W/small"
if mount -t tmpfs -o size=6m tmpfs "$W/small" 2>/dev/null; then
    check_exit "too small a disk is seen before the first byte" 1 "are free" export-hf -q "$W/bloom/global_step7" "$W/small/out"
    check_exit "too small a disk for the spool file" 1 "spool file" export-hf -q --import "$W/hf" "$W/small/out"
    check "too small a disk: nothing is left" [ -z "$(ls -A "$W/small")" ]
    umount "$W/small"
else
    echo "cannot mount a tmpfs here: the full disk is not tested"
fi

# ---- damage ----
cp -r "$W/hf" "$W/bad"
size=$(stat -c %s "$W/bad/model.safetensors")
truncate -s $((size - 1)) "$W/bad/model.safetensors"
check_exit "a model cut short" 1 "cut short" export-hf -q --import "$W/bad" "$W/out"
cp -r "$W/bloom" "$W/flip"
victim=$(ls "$W"/flip/global_step7/layer_04* | head -1)
printf '\377' | dd of="$victim" bs=1 seek=100000 conv=notrunc 2>/dev/null
check_exit "a flipped bit in a layer file" 1 "crc" export-hf -q "$W/flip/global_step7" "$W/out"
check "damage: no OUT" [ ! -e "$W/out" ]
check "input untouched" [ "$before" = "$(state_of)" ]
finish
