#!/bin/sh
# disk.sh - a full disk, a failing disk, a disk without O_DIRECT, a kernel without io_uring
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh

"$TBIN/bench/mkckpt" --layers 2 --hidden 256 --heads 4 --vocab 8000 --tp 2 --pp 1 --dp 2 --steps 7 "$W/in" >/dev/null || exit 1
in=$W/in/global_step7
for form in pt hdf5 virtual; do ds2universal -q --format $form "$in" "$W/ref-$form"; done

# ---- every way of doing I/O gives the same bytes ----
if ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl; then
    shim="env LD_PRELOAD=$W/badio.so ASAN_OPTIONS=verify_asan_link_order=0"
    for form in pt hdf5; do
        check "$form without io_uring" $shim BADIO_URING=0 ds2universal -q --format $form "$in" "$W/o1"
        check "$form without io_uring: same bytes" diff -r "$W/o1" "$W/ref-$form"
        check "$form without O_DIRECT" $shim BADIO_DIRECT=0 ds2universal -q --format $form "$in" "$W/o2"
        check "$form without O_DIRECT: same bytes" diff -r "$W/o2" "$W/ref-$form"
        check "$form with neither" $shim BADIO_DIRECT=0 BADIO_URING=0 ds2universal -q --format $form "$in" "$W/o3"
        check "$form with neither: same bytes" diff -r "$W/o3" "$W/ref-$form"
        rm -rf "$W"/o?
    done

    # ---- calls that fail: no OUT, a message with the reason, and --resume completes the work ----
    for call in pread:40 pwrite:3 pwrite:90 fsync:2 fallocate:4; do
        for errno in 5:Input/output 28:'No space'; do
            case $call:$errno in pread*:28:*|fallocate*:5:*) continue ;; esac   # not what these calls say
            check_exit "$call errno ${errno%%:*}" 1 "${errno#*:}" \
                $shim BADIO_URING=0 BADIO="$call+:${errno%%:*}" ds2universal -q "$in" "$W/out"
            check "$call errno ${errno%%:*}: no OUT" [ ! -e "$W/out" ]
            rm -rf "$W/again"
            if [ -e "$W/out.part" ]; then
                check "$call: resume" ds2universal -q --resume "$in" "$W/out"
                check "$call: same bytes" diff -r "$W/out" "$W/ref-pt"
            fi
            rm -rf "$W/out" "$W/out.part" "$W/out.part.job"
        done
    done
    check_exit "a journal cut short" 1 "bytes: No space" \
        $shim BADIO_URING=0 BADIO=short:1:28 ds2universal -q "$in" "$W/out"
    check "a journal cut short: resume" ds2universal -q --resume "$in" "$W/out"
    check "a journal cut short: same bytes" diff -r "$W/out" "$W/ref-pt"
    rm -rf "$W/out"
    check_exit "EIO while verifying" 1 "Input/output" $shim BADIO_URING=0 BADIO=pread:60+:5 ckpt-inspect verify "$in"
else
    echo "no shared-object compiler: failing calls are not tested"
fi

# ---- the shell's limit on file size ----
check_exit "limit of a file's size" 1 "File too large" sh -c "ulimit -f 100; ds2universal -q '$in' '$W/limited'"
check "limit of a file's size: no OUT" [ ! -e "$W/limited" ]
rm -rf "$W"/limited*

# ---- a disk that is really full ----
mkdir "$W/small"
if mount -t tmpfs -o size=6m tmpfs "$W/small" 2>/dev/null; then
    check_exit "too small a disk is seen before the first byte" 1 "are free" ds2universal -q "$in" "$W/small/out"
    check "too small a disk: nothing is left" [ -z "$(ls -A "$W/small")" ]
    umount "$W/small"
    tag=tests/data/bloom-tp2pp2dp2/global_step20
    # The result fits, but not what a conversion requires before it starts: the dry run reports that, too.
    mount -t tmpfs -o size=4600k tmpfs "$W/small"
    check_exit "barely too small a disk: the run refuses" 1 "needs 5.2 MB" reshape -q "$tag" "$W/small/out"
    check_exit "barely too small a disk: so does the dry run" 1 "not enough, because 5.2 MB must be free" \
        reshape -n "$tag" "$W/small/out"
    umount "$W/small"
    # The estimated space is free at first, and another file fills it during the write.
    mount -t tmpfs -o size=64m tmpfs "$W/small"
    head -c 50000000 /dev/zero > "$W/small/neighbour"
    check_exit "disk fills" 1 "free" ds2universal -q "$in" "$W/small/out"
    rm "$W/small/neighbour"
    check "with room it works" ds2universal -q --resume "$in" "$W/small/out"
    check "with room: same bytes" diff -r "$W/small/out" "$W/ref-pt"
    check_exit "standard output on a full disk" 1 "No space" sh -c "ckpt-inspect ls '$in' > /dev/full"
    umount "$W/small"
else
    echo "cannot mount a tmpfs here: the full disk is not tested"
fi
# ---- a file that the system refuses to open or read is not lost: damage and salvage report the cause ----
D=$PWD/tests/data
rm -rf "$W/out"*

# is_refused FILE CAUSE: succeed if damage and salvage fail, name the file and the cause, call nothing lost, and write
# nothing.
is_refused() {
    ! $bad ckpt-inspect damage "$in" >"$W/damage" 2>&1 || return 1
    ! $bad ckpt-edit salvage --allow-lost "$in" "$W/out" >"$W/salvage" 2>&1 || return 1
    for text in "$W/damage" "$W/salvage"; do
        grep "$1.*: $2; correct this first" "$text" >/dev/null && ! grep 'is lost' "$text" >/dev/null || return 1
    done
    [ ! -e "$W/out" ] && [ ! -e "$W/out.part" ]
}

# try WHAT IN FILE: refuse to open FILE with EACCES and with EIO.
try() {
    in=$D/$2
    for no in 13:"Permission denied" 5:"Input/output error"; do
        bad="$shim BADIO_URING=0 BADIO_DIRECT=0 BADIO=openat:1+:${no%%:*} BADIO_AT=$3"
        check "$1: $3: ${no#*:}" is_refused "$3" "${no#*:}"
    done
}
bloom=bloom-tp2pp2dp2/global_step20 zero=zero/zero2-fp16-3ranks/ckpt/global_step5
if [ -e "$W/badio.so" ]; then
    try "3D shards" $bloom layer_03-model_00-model_states.pt
    try "3D shards" $bloom bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt
    try "3D shards" $bloom mp_rank_01_model_states.pt
    try universal ${bloom}_universal 3.input_layernorm.weight/fp32.pt
    try ZeRO-2 $zero zero_pp_rank_0_mp_rank_00_optim_states.pt
    try ZeRO-2 $zero zero_pp_rank_1_mp_rank_00_optim_states.pt
    try ZeRO-2 $zero mp_rank_00_model_states.pt
    try ZeRO-3 zero/zero3-edge-2ranks/ckpt/global_step5 zero_pp_rank_1_mp_rank_00_model_states.pt
    try AutoTP zero/zero2-autotp-tp2dp2/ckpt/global_step3 mp_rank_00_model_states.pt
    try DCP dcp/fsdp/ckpt __0_0.distcp
    try torch_dist torchdist/gpt/iter_0000005 __0_0.distcp

    # A disk that fails while records are read.
    in=$D/$bloom
    bad="$shim BADIO_URING=0 BADIO_DIRECT=0 BADIO=pread:1+:5 BADIO_LEAST=30000"
    check "3D shards: a record that cannot be read" is_refused "" "Input/output error"
fi

# A file that does not exist is lost.
cp -r "$D/$bloom" "$W/lost" && chmod -R u+w "$W/lost"
rm "$W/lost/bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt"
check "a file that does not exist is replaced" ckpt-edit salvage -q "$W/lost" "$W/replaced"
finish
