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
finish
