#!/bin/sh
# reshape.sh - failing and full disks, and damaged input, for reshape and merge-tp
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh

"$TBIN/bench/mkckpt" --layers 2 --hidden 256 --heads 4 --vocab 8000 --tp 2 --pp 1 --dp 2 --steps 7 "$W/sound" >/dev/null 2>&1 || exit 1
tag=$W/sound/global_step7
zero=bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt
mp=mp_rank_01_model_states.pt
layer=layer_03-model_01-model_states.pt
kinds="grow merge"
state_of() { (cd "$W/sound" && find . -type f | sort | xargs cksum); }
before=$(state_of)
command_of() { case $1 in grow) echo "reshape -q --target-tp 4 --target-dp 3" ;; merge) echo "merge-tp -q" ;; esac; }
for kind in $kinds; do check "$kind: sound" $(command_of $kind) "$tag" "$W/ref-$kind"; done

# ---- every way of doing I/O gives the same bytes; a call that fails leaves no OUT, and --resume finishes ----
if ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl; then
    shim="env LD_PRELOAD=$W/badio.so ASAN_OPTIONS=verify_asan_link_order=0"
    for kind in $kinds; do
        cmd=$(command_of $kind)
        for way in BADIO_URING=0 BADIO_DIRECT=0 "BADIO_DIRECT=0 BADIO_URING=0"; do
            check "$kind with $way" $shim $way $cmd "$tag" "$W/o"
            check "$kind with $way: same bytes" diff -r "$W/o" "$W/ref-$kind"
            rm -rf "$W/o"
        done
        for call in pread:60 pwrite:3 pwrite:40 fsync:2 fallocate:4 rename:1; do
            for errno in 5:Input/output 28:'No space'; do
                case $call:$errno in pread*:28:*|fallocate*:5:*|rename*:28:*) continue ;; esac  # not what these calls say
                check_exit "$kind: $call errno ${errno%%:*}" 1 "${errno#*:}" \
                    $shim BADIO_URING=0 BADIO="$call+:${errno%%:*}" $cmd "$tag" "$W/out"
                check "$kind: $call errno ${errno%%:*}: no OUT" [ ! -e "$W/out" ]
                if [ -e "$W/out.part" ]; then
                    check "$kind: $call: resume" $cmd --resume "$tag" "$W/out"
                    check "$kind: $call: same bytes" diff -r "$W/out" "$W/ref-$kind"
                fi
                rm -rf "$W/out" "$W/out.part" "$W/out.part.job"
            done
        done
    done
else
    echo "no shared-object compiler: failing calls are not tested"
fi

# ---- a disk that is really full ----
mkdir "$W/small"
if mount -t tmpfs -o size=6m tmpfs "$W/small" 2>/dev/null; then
    for kind in $kinds; do
        check_exit "$kind: too small a disk is seen before the first byte" 1 "are free" $(command_of $kind) "$tag" "$W/small/out"
        check "$kind: too small a disk: nothing is left" [ -z "$(ls -A "$W/small")" ]
    done
    umount "$W/small"
    # There is space for OUT, but not for its certificate.
    "$TBIN/bench/mkckpt" --slim --drift 4.input_layernorm.weight:fp32:1:5 "$W/drift" >/dev/null 2>&1
    mount -t tmpfs -o size=64m tmpfs "$W/small"
    mkdir "$W/tiny" && mount -t tmpfs -o size=4k tmpfs "$W/tiny"
    check_exit "no room for the certificate" 1 "No space" merge-tp -q --replicas first --certificate "$W/tiny/c" "$W/drift" "$W/small/out"
    check "no room for the certificate: OUT stands" ckpt-inspect verify "$W/small/out"
    check "with room" merge-tp -q --resume --replicas first --certificate "$W/c" "$W/drift" "$W/small/out"
    check "the certificate holds" ckpt-inspect verify -q --certificate "$W/c" "$W/small/out"
    umount "$W/tiny" "$W/small"
else
    echo "cannot mount a tmpfs here: the full disk is not tested"
fi

# ---- damage ----
# refused NAME TEXT: both tools print TEXT and exit with 1 quickly, without OUT or leftover files.
refused() {
    for kind in $kinds; do
        check_exit "$1: $kind" 1 "$2" timeout 20 $(command_of $kind) "$W/in/global_step7" "$W/out"
        check "$1: $kind: nothing is left" [ "$(echo "$W"/out*)" = "$W/out*" ]
    done
}
fresh() { rm -rf "$W/in" "$W"/out*; cp -r "$W/sound" "$W/in"; d=$W/in/global_step7; }

size=$(stat -c %s "$tag/$zero")
for keep in 0 29 $((size / 2)) $((size - 22)) $((size - 1)); do
    fresh; truncate -s $keep "$d/$zero"; refused "shard cut to $keep bytes" "$zero"
done
fresh; truncate -s 1000 "$d/$layer"; refused "layer file cut" "$layer"
for f in $zero $mp $layer; do fresh; rm "$d/$f"; refused "missing $f" "$f"; done
fresh; printf '\377' | dd of="$d/$zero" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null; refused "a flipped byte of a shard" "$zero"
fresh; printf '\377' | dd of="$d/$layer" bs=1 seek=100000 conv=notrunc 2>/dev/null; refused "a flipped byte of a layer" "$layer"
fresh; mv "$d/$mp" "$W/t"; mv "$d/mp_rank_00_model_states.pt" "$d/$mp"; mv "$W/t" "$d/mp_rank_00_model_states.pt"
refused "swapped tensor ranks" "another file under this name"
fresh; "$TBIN/bench/mkckpt" --layers 2 --hidden 256 --heads 4 --vocab 8000 --tp 2 --pp 1 --dp 2 --steps 8 "$W/later" >/dev/null 2>&1
cp "$W/later/global_step8/$mp" "$d/$mp"; refused "two saves mixed" "iteration"
fresh; cp "$W/later/global_step8/$zero" "$d/$zero"; refused "a shard of another save" "$zero"
rm -rf "$W/later"
for kind in class bomb deep twice lie huge; do
    fresh; "$TBIN/tools/forge" $kind "$d/$mp"; refused "forged $kind" "$mp"
done
check "nothing was executed" [ ! -e hacked ]
fresh; rm "$d/$zero"; mkfifo "$d/$zero"; refused "a pipe instead of a file" "$zero"

# A certificate whose checkpoint changed after it was written.
check "with a certificate" reshape -q --certificate "$W/proof" "$tag" "$W/kept"
check "it holds" ckpt-inspect verify -q --certificate "$W/proof" "$W/kept"
check "another step" reshape -q --zero-moments "$tag" "$W/zeroed"
check_exit "moments lost" 1 "exp_avg_sq has digest" ckpt-inspect verify --certificate "$W/proof" "$W/zeroed"
sed 's/"verdict":"equal"/"verdict":"equaI"/' "$W/proof" >"$W/forged"
check_exit "a forged certificate" 1 "the CRC-32 of the certificate does not match" ckpt-inspect verify --certificate "$W/forged" "$W/kept"
for keep in 0 10 500; do
    head -c $keep "$W/proof" >"$W/cut"
    check_exit "a certificate cut to $keep bytes" 1 "certificate" ckpt-inspect verify --certificate "$W/cut" "$W/kept"
done
check "input untouched" [ "$before" = "$(state_of)" ]
finish
