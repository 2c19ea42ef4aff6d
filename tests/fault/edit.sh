#!/bin/sh
# edit.sh - SIGKILL at random moments of an edit in place: afterwards the old or the new checkpoint is there
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
kills=${KILLS:-40}
[ -n "${SOAK:-}" ] && kills=200
"$TBIN/bench/mkckpt" --layers 2 --hidden 256 --heads 4 --vocab 8000 --tp 2 --pp 1 --dp 2 "$W/in" >/dev/null 2>&1 || exit 1
ds2universal -q --format pt "$W/in/global_step20" "$W/universal" || exit 1

# kill_some LAYOUT MS VERB ARGUMENT...: kill edits of the checkpoint in $W/was, whose result must be $W/want, within
# MS.
kill_some() {
    layout=$1 ms=$2 verb=$3
    shift 3
    i=0 n_killed=0 n_old=0 n_new=0
    while [ $i -lt "$kills" ]; do
        cp -r "$W/was" "$W/tag"
        ckpt-edit -q "$verb" --in-place "$@" "$W/tag" & pid=$!
        kill_after "$(random "$ms")" $pid
        if diff -r "$W/was" "$W/tag" >/dev/null; then pass; n_old=$((n_old + 1))
        elif diff -r "$W/want" "$W/tag" >/dev/null; then pass; n_new=$((n_new + 1))
        else fail "$layout, kill $i: neither the old one nor the new one"; fi
        # The remains can be rolled back; otherwise the edit is repeated.
        if [ -e "$W/tag.before-edit" ]; then check "$layout, kill $i: rollback" ckpt-edit -q rollback "$W/tag"; fi
        check "$layout, kill $i: the old one again" diff -r "$W/was" "$W/tag"
        if [ -e "$W/tag.before-edit.part.job" ]; then resume=--resume; else resume=; fi
        # shellcheck disable=SC2086
        check "$layout, kill $i: the edit again" ckpt-edit -q "$verb" --in-place $resume "$@" "$W/tag"
        check "$layout, kill $i: the new one" diff -r "$W/want" "$W/tag"
        check "$layout, kill $i: committed" ckpt-edit -q commit "$W/tag"
        [ "$(cd "$W" && echo tag*)" = tag ] && pass || fail "$layout, kill $i: left $(cd "$W" && echo tag*)"
        rm -rf "$W"/tag*
        i=$((i + 1))
    done
    echo "$layout, $verb: $n_killed of $kills killed at work; $n_old found the old one, $n_new the new one"
}

# kill_edit LAYOUT FOLDER VERB ARGUMENT...: make the expected result first. Kills are spread over the time that takes.
kill_edit() {
    layout=$1 folder=$2 verb=$3
    shift 3
    rm -rf "$W/was" "$W/want"
    cp -r "$folder" "$W/was"
    cp -r "$W/was" "$W/tag"             # a manifest names the tag that it was made of
    from=$(date +%s%N)
    check "$layout, $verb without a kill" ckpt-edit -q "$verb" "$@" "$W/tag" "$W/want"
    took=$((($(date +%s%N) - from) / 1000000))
    rm -rf "$W/tag"
    kill_some "$layout" $((took + 1)) "$verb" "$@"
}

kill_edit dcp tests/data/dcp/fsdp/ckpt zero '*'
kill_edit dcp tests/data/dcp/fsdp/ckpt drop optimizer
kill_edit dcp tests/data/dcp/fsdp/ckpt set optim.param_groups.0.lr=0.5
reshape -q --to dcp --mesh 2x2 "$W/in/global_step20" "$W/mesh" || exit 1
kill_edit "dcp of a mesh" "$W/mesh" cast bf16
ckpt-edit -q drop optimizer "$W/mesh" "$W/fat" || exit 1
kill_edit "dcp with bytes that nothing names" "$W/fat" thin
kill_edit torch_dist tests/data/torchdist/stacked/iter_0000002 layers keep 1,0,1
kill_edit "3d shards" tests/data/bloom-tp2pp2dp2/global_step20 layers drop 1
kill_edit "3d shards" tests/data/bloom-tp2pp2dp2/global_step20 vocab --tokens 600
ds2universal -q tests/data/zero/zero2-edge-3ranks/ckpt "$W/universal-zero" || exit 1
kill_edit "universal of ZeRO" "$W/universal-zero" layers keep 0,0,0
kill_edit universal "$W/universal" zero '*'
ds2universal -q --format hdf5 "$W/in/global_step20" "$W/hdf5" || exit 1
kill_edit hdf5 "$W/hdf5" zero '*'
kill_edit hdf5 "$W/hdf5" layers keep 1,0,0
kill_edit deepspeed "$W/in/global_step20" zero '*'

# A killed commit has removed some of the old files, so rollback must not restore them as the checkpoint.
if ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl; then
    # Kill at each rename. An edit that is complete but not yet in its place can be continued in two ways, and the
    # message names both.
    n_made=0
    for at in 1 2 3 4 5 6 7 8; do
        for way in resume rollback; do
            cp -r "$W/was" "$W/tag"
            BADIO=rename:$at:kill LD_PRELOAD=$W/badio.so ASAN_OPTIONS=verify_asan_link_order=0 \
                ckpt-edit -q zero --in-place '*' "$W/tag" 2>/dev/null
            if [ -e "$W/tag.before-edit" ] && diff -r "$W/was" "$W/tag" >/dev/null; then
                n_made=$((n_made + 1))
                check_exit "rename $at: commit" 2 "with --resume makes it replace the checkpoint, and rollback" ckpt-edit commit "$W/tag"
                check_exit "rename $at: again" 2 "makes it replace the checkpoint, rollback" ckpt-edit zero -i '*' "$W/tag"
                check_exit "rename $at: another command" 2 "the command that made it with --resume" ckpt-edit zero -i --resume '3.*' "$W/tag"
                check "rename $at: as it was" diff -r "$W/was" "$W/tag"
            fi
            if [ $way = rollback ] && [ -e "$W/tag.before-edit" ]; then
                check "rename $at: rollback" ckpt-edit -q rollback "$W/tag"
                check "rename $at: the old one" diff -r "$W/was" "$W/tag"
            elif ! diff -r "$W/want" "$W/tag" >/dev/null; then
                if [ -e "$W/tag.before-edit.part.job" ] || [ -e "$W/tag.before-edit" ]; then resume=--resume; else resume=; fi
                # shellcheck disable=SC2086
                check "rename $at: gone on" ckpt-edit -q zero --in-place $resume '*' "$W/tag"
                check "rename $at: the new one" diff -r "$W/want" "$W/tag"
                check "rename $at: undone" ckpt-edit -q rollback "$W/tag"
                check "rename $at: the old one" diff -r "$W/was" "$W/tag"
            fi
            rm -rf "$W"/tag*
        done
    done
    if [ $n_made -ge 2 ]; then pass; else fail "no kill came between the rename and the exchange"; fi
    # A file system that cannot exchange two names.
    cp -r "$W/was" "$W/tag"
    check_exit "no exchange" 1 "rollback removes the edited checkpoint" env BADIO_EXCHANGE=0 LD_PRELOAD="$W/badio.so" \
        ASAN_OPTIONS=verify_asan_link_order=0 ckpt-edit -q zero --in-place '*' "$W/tag"
    check "no exchange: rollback" ckpt-edit -q rollback "$W/tag"
    check "no exchange: as it was" diff -r "$W/was" "$W/tag"
    [ "$(cd "$W" && echo tag*)" = tag ] && pass || fail "no exchange: left $(cd "$W" && echo tag*)"
    rm -rf "$W"/tag*
    for at in 1 2 5; do
        cp -r "$W/was" "$W/tag"
        check "commit, kill $at: edited" ckpt-edit -q zero --in-place '*' "$W/tag"
        BADIO=unlinkat:$at:kill LD_PRELOAD=$W/badio.so ASAN_OPTIONS=verify_asan_link_order=0 \
            ckpt-edit -q commit "$W/tag" 2>/dev/null
        check_exit "commit, kill $at: rollback" 2 "run commit again" ckpt-edit -q rollback "$W/tag"
        check "commit, kill $at: the new one" diff -r "$W/want" "$W/tag"
        check "commit, kill $at: finished" ckpt-edit -q commit "$W/tag"
        [ "$(cd "$W" && echo tag*)" = tag ] && pass || fail "commit, kill $at: left $(cd "$W" && echo tag*)"
        rm -rf "$W"/tag*
    done
else
    echo "no shared library can be made here: commits are not killed"
fi

# Every run is process 1, as in containers, so the temporary file of a killed run has the same name as that of the
# next.
if unshare --pid --fork true 2>/dev/null; then
    cp -r "$W/was" "$W/tag"
    : >"$W/tag.before-edit.json.1.part"
    check "process 1 again" unshare --pid --fork "$BIN/ckpt-edit" -q zero --in-place '*' "$W/tag"
    check "process 1 again: the new one" diff -r "$W/want" "$W/tag"
    rm -rf "$W"/tag*
    (ulimit -f 1; exec ckpt-edit -q zero '*' "$W/was" "$W/out") >/dev/null 2>&1
    : >"$W/out.part.job/ready.1.part"
    check "process 1 resumes" unshare --pid --fork "$BIN/ckpt-edit" -q zero --resume '*' "$W/was" "$W/out"
    check "process 1 resumes: the new one" diff -r "$W/want" "$W/out"
else
    echo "no processes of their own number can be made here: process 1 is not tested"
fi

# A value that fp16 cannot hold was found before a kill. The resumed run must still report it.
python3 - "$W/model" <<'END'
import json, os, struct, sys
os.mkdir(sys.argv[1])
head = json.dumps({'a': {'dtype': 'F32', 'shape': [1], 'data_offsets': [0, 4]},
                   'b': {'dtype': 'F32', 'shape': [1 << 26], 'data_offsets': [4, 4 + (4 << 26)]}}).encode()
head += b' ' * (-len(head) % 8)
with open(sys.argv[1] + '/model.safetensors', 'wb') as f:
    f.write(struct.pack('<Q', len(head)) + head + struct.pack('<f', 1e6))
    f.truncate(8 + len(head) + 4 + (4 << 26))
END
ckpt-edit -q -j 1 cast fp16 "$W/model" "$W/narrow" 2>/dev/null & pid=$!
while kill -0 $pid 2>/dev/null && ! grep -q . "$W/narrow.part.job/journal.0" 2>/dev/null; do :; done
kill -KILL $pid 2>/dev/null; wait $pid 2>/dev/null
if [ -e "$W/narrow.part.job" ]; then resume=--resume; else resume=; fi
# shellcheck disable=SC2086
check_exit "fp16, gone on after a kill" 1 "above 65504" ckpt-edit -q cast fp16 $resume "$W/model" "$W/narrow"
rm -rf "$W/model" "$W"/narrow*

# A disk that becomes full: the checkpoint on it is unchanged.
mkdir "$W/small"
if mount -t tmpfs -o size=60m tmpfs "$W/small" 2>/dev/null; then
    cp -r "$W/was" "$W/small/tag"
    head -c 20000000 /dev/zero >"$W/small/neighbour" 2>/dev/null
    check_exit "a full disk" 1 "No space left" ckpt-edit -q zero --in-place '*' "$W/small/tag"
    check "a full disk: as it was" diff -r "$W/was" "$W/small/tag"
    truncate -s -4000000 "$W/small/neighbour"
    check_exit "a full disk: the way that needs no room" 1 "--hard-links shares unchanged files" \
        ckpt-edit -q set args.lr=1 "$W/small/tag" "$W/small/out"
    check "a full disk: hard links" ckpt-edit -q --hard-links set args.lr=1 "$W/small/tag" "$W/small/out"
    check "a full disk: as it was" diff -r "$W/was" "$W/small/tag"
    umount "$W/small"
else
    echo "cannot mount a tmpfs here: the full disk is not tested"
fi

# A file system with reflinks: unchanged data takes no space, and a write into OUT leaves IN unchanged.
truncate -s 300M "$W/btrfs.img"
if command -v mkfs.btrfs >/dev/null && mkfs.btrfs -q "$W/btrfs.img" >/dev/null 2>&1 &&
   mount -o loop "$W/btrfs.img" "$W/small" 2>/dev/null; then
    cp -r "$W/was" "$W/small/in"
    check_exit "reflinks: set" 0 "shared with IN by reflinks" ckpt-edit set args.lr=1 "$W/small/in" "$W/small/out"
    check_exit "reflinks: dry run" 0 "files shared by reflinks" ckpt-edit -n set args.lr=2 "$W/small/in" "$W/small/no"
    check "reflinks: sound" ckpt-inspect verify -q "$W/small/out"
    for f in "$W/small/out"/*; do printf X | dd of="$f" bs=1 seek=100 conv=notrunc 2>/dev/null; done
    check "reflinks: IN as it was" diff -r "$W/was" "$W/small/in"
    check_exit "reflinks: from another file system" 0 "copied" ckpt-edit set args.lr=1 "$W/was" "$W/small/far"
    check_exit "reflinks: in place" 0 "by reflinks" ckpt-edit set -i args.lr=1 "$W/small/in"
    check "reflinks: rollback" ckpt-edit -q rollback "$W/small/in"
    check "reflinks: IN as it was" diff -r "$W/was" "$W/small/in"
    # The run is killed while it writes, and resumed.
    (ulimit -f 1; exec ckpt-edit -q set args.lr=1 "$W/small/in" "$W/small/two") >/dev/null 2>&1
    if [ -e "$W/small/two.part.job" ]; then resume=--resume; else resume=; fi
    # shellcheck disable=SC2086
    check "reflinks: gone on" ckpt-edit -q set $resume args.lr=1 "$W/small/in" "$W/small/two"
    check "reflinks: sound" ckpt-inspect verify -q "$W/small/two"
    umount "$W/small"
else
    echo "no btrfs can be mounted here: reflinks are not tested"
fi
finish
