#!/bin/sh
# backup.sh - ckpt-backup under kills, flipped bits, full disks, places that become unavailable, and two runs at once:
# nothing is lost, nothing damaged is accepted, and the next run finishes
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
kills=${KILLS:-40} flips=${FLIPS:-$((${KILLS:-40} * 10))}
[ -n "${SOAK:-}" ] && kills=1000 flips=10000
n_flipped=0

"$TBIN/bench/mkckpt" --layers 1 --hidden 64 --heads 4 --vocab 640 --tp 2 --pp 1 --dp 2 --steps 7 "$W/in" >/dev/null || exit 1
mkdir "$W/run" "$W/ref" "$W/store" "$W/store/.ckpt-backup"
# One checkpoint under the names of a run that saved every 10 steps. ckpt-backup takes the step from the folder's
# name.
for s in 10 20 30 40; do cp -r "$W/in/global_step7" "$W/run/global_step$s"; done
echo global_step40 >"$W/run/latest"
cp -rp "$W/run/." "$W/ref"
src=$W/run/global_step10

same() { diff -r "$1" "$2" >/dev/null; }
# is_sound NAME: succeed if the store lists the named backup as sound.
is_sound() { ckpt-backup list --json "$W/store" 2>/dev/null | grep -F "\"name\":\"$1\"" | grep -qF '"sound":true'; }
is_sound_in() { ckpt-backup list --json "$1" 2>/dev/null | grep -qF '"sound":true'; }
n_sound() { ckpt-backup list --json "$W/store" 2>/dev/null | grep -cF '"sound":true'; }
clean() { rm -rf "$W/store" && mkdir -p "$W/store/.ckpt-backup"; }

# ---- killed anywhere ----

# kill_copy VERB SUFFIX MS: kill one backup of this form (words of the command line); SUFFIX ends the name of its
# backup.
# shellcheck disable=SC2086
kill_copy() {       # VERB SUFFIX MS
    backup=global_step10$2
    ckpt-backup $1 -q "$src" "$W/store" 2>/dev/null & pid=$!
    kill_after "$3" $pid
    if is_sound "$backup"; then
        check "$1 killed after $3 ms: what is said to be sound is" ckpt-backup verify -q "$W/store"
    elif [ -e "$W/store/$backup" ] && [ ! -e "$W/store/.ckpt-backup/$backup.json" ]; then
        fail "$1 killed after $3 ms: $backup without a receipt"
    fi
    check "$1 killed after $3 ms: the next run finishes" ckpt-backup $1 -q "$src" "$W/store"
    check "$1 killed after $3 ms: restored" ckpt-backup restore -q "$W/store" "$backup" "$W/out"
    if [ "$1" = weights ]; then check "weights killed: same bytes" sh -c "cd '$W/out' && for f in *; do cmp \$f $src/\$f || exit 1; done"
    else check "$1 killed after $3 ms: same bytes" same "$W/out" "$src"; fi
    left=$(find "$W/store" -name '*.part' -o -name '*.job')
    [ -z "$left" ] && pass || fail "$1 killed after $3 ms leaves $left"
    rm -rf "$W/out"; clean
}
# Kills are spread over the duration of a run, `span`. It is adapted after each run so that two of three kills hit
# one.
i=0 span=60
while [ $n_killed -lt "$kills" ]; do
    before=$n_killed
    case $((i % 4)) in
    0) kill_copy "copy --pack" .pack "$(random $span)" ;;
    1) kill_copy copy "" "$(random $span)" ;;
    2) kill_copy tar .tar "$(random $span)" ;;
    3) kill_copy weights -weights "$(random $span)" ;;
    esac
    if [ $n_killed -gt $before ]; then span=$((span + span / 20 + 1)); else span=$((span - span / 10)); fi
    i=$((i + 1))
done

# A kill at the last operation, or between the last two, is rare, so these states are made by hand.
check "a copy" ckpt-backup copy -q "$src" "$W/store"
rm "$W/store/latest"; echo half >"$W/store/latest.4321.part"
check "latest not moved: the next run finishes" ckpt-backup copy -q "$src" "$W/store"
check "latest names the copy" [ "$(cat "$W/store/latest")" = global_step10 ]
check "latest.4321.part is gone" [ ! -e "$W/store/latest.4321.part" ]
clean

# Kill restores and removals: a complete copy of each step must exist somewhere at any moment.
cat >"$W/rules" <<RULES
keep-last 1
place store
full-every 10
RULES
i=0
while [ $i -lt $((kills / 4)) ]; do
    ckpt-backup copy -q --rules "$W/rules" "$W/run" || fail "copy by rules"
    ckpt-backup restore -q "$W/store" global_step10 "$W/out" 2>/dev/null & pid=$!
    kill_after "$(random 80)" $pid
    if [ -e "$W/out" ]; then check "restore killed: OUT is whole" same "$W/out" "$src"
    else check "restore killed: the next run finishes" ckpt-backup restore -q "$W/store" global_step10 "$W/out"; fi
    rm -rf "$W/out" "$W"/out.part*
    ckpt-backup forget -q --apply --rules "$W/rules" "$W/run" & pid=$!
    kill_after "$(random 60)" $pid
    check "forget killed: all backups are sound" [ "$(n_sound)" = 4 ]
    check "forget killed: the next run finishes" ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
    check "forget killed: latest and nothing else is left" [ "$(cd "$W/run" && echo *)" = "global_step40 latest" ]
    for s in 10 20 30; do ckpt-backup restore -q "$W/store" global_step$s "$W/run/global_step$s"; done
    check "forget killed: restored, all is as it was" same "$W/run" "$W/ref"
    i=$((i + 1))
done
clean

# ---- flipped bits ----

size_of() { wc -c <"$1"; }
flip() {            # FILE BYTE BIT
    old=$(od -An -tu1 -j "$2" -N 1 "$1")
    # shellcheck disable=SC2059
    printf "\\$(printf %o $((old ^ (1 << $3))))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
# any_file ARGUMENTS: print a random one of the files that `find` finds with these arguments.
any_file() { find "$@" -type f | sort >"$W/files"; sed -n "$(($(random "$(wc -l <"$W/files")") + 1))p" "$W/files"; }

# Flip one bit in each of the four backups, or in a receipt: none may count as sound. After flipping the bits back,
# all must.
# shellcheck disable=SC2086
for verb in copy "copy --pack" tar weights; do check "$verb before flips" ckpt-backup $verb -q "$src" "$W/store"; done
set --
for name in global_step10 global_step10.pack global_step10.tar global_step10-weights; do
    set -- "$@" "$W/store/$name,$W/store/.ckpt-backup/$name.json"
done
i=0
while [ $i -lt $(((flips + 7) / 8)) ]; do
    "$TBIN/tools/flip" "$W/flipped" "$@" || fail "flip"
    n_flipped=$((n_flipped + 4))
    ckpt-backup verify -q "$W/store" >"$W/log" 2>&1 && fail "verify is content with $(cat "$W/flipped")"
    if [ "$(n_sound)" = 0 ]; then pass; else fail "$(n_sound) backups still count with $(cat "$W/flipped")"; fi
    "$TBIN/tools/flip" -b "$W/flipped" || fail "flip back"
    ckpt-backup verify -q "$W/store" >/dev/null 2>&1 || fail "healed, and still not sound: $(cat "$W/flipped")"
    i=$((i + 1))
done
# The next copy replaces damaged files, and `forget` removes nothing in the meantime.
f=$W/store/global_step10/mp_rank_00_model_states.pt
flip "$f" 5000 3; ckpt-backup verify -q "$W/store" >/dev/null 2>&1
check "a damaged backup is replaced" ckpt-backup copy -q "$src" "$W/store"
check "a damaged backup is replaced: same bytes" same "$W/store/global_step10" "$src"
flip "$W/store/.ckpt-backup/global_step10.json" 100 3
check "one with a damaged receipt is replaced" ckpt-backup copy -q "$src" "$W/store"
echo mine >"$W/store/global_step10/notes.txt"; flip "$f" 5000 3; ckpt-backup verify -q "$W/store" >/dev/null 2>&1
check_exit "not with what is not ours" 2 "holds notes.txt, which its receipt does not list" ckpt-backup copy -q "$src" "$W/store"
rm "$W/store/global_step10/notes.txt"
check "not with what is not ours: the next run finishes" ckpt-backup copy -q "$src" "$W/store"
check "all are sound" ckpt-backup verify -q "$W/store"
clean

# Flip one bit in each of the run's four steps. Where ckpt-inspect verify finds no error, the byte is outside of the
# records, no reader of the archive uses it, and a warning names its offset: such a step is copied as it is. Each other
# step gives one line and no backup. (A wrong length in a local header is a warning and moves a record: an error too.)
i=0
while [ $i -lt $(((flips + 7) / 8)) ]; do
    "$TBIN/tools/flip" "$W/flipped" "$W"/run/global_step*0 || fail "flip"
    n_flipped=$((n_flipped + 4)) n_refused=0
    ckpt-backup copy -q --rules "$W/rules" "$W/run" >"$W/log" 2>&1; status=$?
    while read -r byte bit file; do
        step=${file#"$W/run/"} step=${step%%/*}
        if ckpt-inspect verify "$W/run/$step" >"$W/verdict" 2>&1; then
            grep -q "^warning: $file: at byte $byte: .* expected \(here \)\?(as " "$W/verdict" && pass ||
                fail "bit $bit of byte $byte of $file is flipped: verify names it in no warning: $(cat "$W/verdict")"
            same "$W/store/$step" "$W/run/$step" && pass ||
                fail "bit $bit of byte $byte of $file, which no reader uses: $step is not copied: $(cat "$W/log")"
        else
            n_refused=$((n_refused + 1))
            [ ! -e "$W/store/$step" ] && [ "$(grep -c "^ckpt-backup: error: $W/run/$step[/:]" "$W/log")" = 1 ] && pass ||
                fail "bit $bit of byte $byte of $file is flipped: $step is copied, or there is not one line: $(cat "$W/log")"
        fi
    done <"$W/flipped"
    [ $status -eq $((n_refused > 0)) ] && [ "$(wc -l <"$W/log")" -eq $n_refused ] && pass ||
        fail "flips in the source: status $status, $n_refused are to be refused: $(cat "$W/log")"
    left=$(find "$W/store" -name '*.part' -o -name '*.job')
    [ -z "$left" ] && pass || fail "flips in the source leave $left"
    clean
    "$TBIN/tools/flip" -b "$W/flipped" || fail "flip back"
    i=$((i + 1))
done

# Flip a bit after verification: forget reads the copies again, detects it, and nothing that depends on that backup is removed.
ckpt-backup copy -q --rules "$W/rules" "$W/run" || fail "copy by rules"
flip "$W/store/global_step20/mp_rank_00_model_states.pt" 3000 1
check_exit "forget rot" 1 "global_step20 is damaged; no step that has its only other copy there is removed" \
    ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
check "forget rot: the others go, this one stays" [ "$(cd "$W/run" && echo *)" = "global_step20 global_step40 latest" ]
check "forget rot: copied again" ckpt-backup copy -q --rules "$W/rules" "$W/run"
for s in 10 30; do ckpt-backup restore -q "$W/store" global_step$s "$W/run/global_step$s"; done
check "forget rot: all is as it was" same "$W/run" "$W/ref"
clean

# In a place, an old backup is removed in favour of the newest, so these are read as well.
mkdir -p "$W/last/.ckpt-backup"
printf 'place last\nfull-every 10\n' >"$W/last.rules"
ckpt-backup copy -q --rules "$W/last.rules" "$W/run" || fail "copy by rules"
flip "$W/last/global_step40/mp_rank_00_model_states.pt" 3000 1
echo keep-last 1 >>"$W/last.rules"
check_exit "forget rot in a place" 1 "global_step40 is damaged; no step that has its only other copy there is removed" \
    ckpt-backup forget -q --apply --rules "$W/last.rules" "$W/run"
check "forget rot in a place: the newest good one stays" [ -e "$W/last/global_step30" ]
check "forget rot in a place: copied again" ckpt-backup copy -q --rules "$W/last.rules" "$W/run"
check "forget rot in a place: sound" ckpt-backup forget -q --apply --rules "$W/last.rules" "$W/run"
check "forget rot in a place: the newest stays" [ "$(cd "$W/last" && echo global*)" = global_step40 ]
rm -rf "$W/last" "$W/last.rules"

# ---- still being written ----

cp -r "$src" "$W/run/global_step50"
rm "$W/run/global_step50/mp_rank_01_model_states.pt"
check_exit "a step newer than latest that is not whole" 1 "the checkpoint is damaged or still being written" \
    ckpt-backup copy -q "$W/run/global_step50" "$W/store"
check "a step newer than latest that is not whole: the others are copied" ckpt-backup copy -q --rules "$W/rules" "$W/run"
check "a step newer than latest that is not whole: no backup" [ "$(n_sound)" = 4 ]
clean; rm -r "$W/run/global_step50"
cp -r "$src" "$W/run/global_step5"
f=$W/run/global_step5/mp_rank_01_model_states.pt
head -c 3000 "$src/mp_rank_01_model_states.pt" >"$f"
check_exit "a file cut short" 1 "the checkpoint is damaged or still being written: $f" ckpt-backup copy -q "$W/run/global_step5" "$W/store"
rm "$f"
check_exit "a file that is not there yet" 1 "the checkpoint is damaged or still being written" \
    ckpt-backup copy -q "$W/run/global_step5" "$W/store"
rm -r "$W/run/global_step5"
f=$src/mp_rank_00_model_states.pt; : >"$W/begun"
while :; do touch "$f"; done & pid=$!
n=0; until [ "$f" -nt "$W/begun" ] || [ $n -gt 300 ]; do n=$((n + 1)); sleep 0.1; done
check_exit "a file that changes meanwhile" 1 "changed while it was copied" ckpt-backup copy -q "$src" "$W/store"
kill $pid; wait $pid 2>/dev/null
check "still being written: no backup" [ "$(n_sound)" = 0 ]

# ---- two at once, and from cron ----

n=0
while [ $n -lt 5 ]; do
    ckpt-backup copy -q "$src" "$W/store" 2>"$W/one" & pid=$!
    ckpt-backup copy -q "$src" "$W/store" 2>"$W/two"; two=$?
    wait $pid; one=$?
    case $one$two in
    00) pass ;;
    01|10) check "two at once: one line" grep -q "store: another ckpt-backup.* is running in this place" "$W/one" "$W/two" ;;
    *) fail "two at once: $one and $two" ;;
    esac
    check "two at once: sound" ckpt-backup verify -q "$W/store"
    clean; n=$((n + 1))
done
if command -v flock >/dev/null; then
    ckpt-backup copy -q "$src" "$W/store"
    # The lock is held as long as $W/held exists.
    # shellcheck disable=SC2016
    flock "$W/store/.ckpt-backup/lock" sh -c ': >"$0"; while [ -e "$0" ]; do sleep 0.1; done' "$W/held" &
    n=0; until [ -e "$W/held" ] || [ $n -gt 300 ]; do n=$((n + 1)); sleep 0.1; done
    check_exit "while another runs: copy reports it" 1 "is running in this place" ckpt-backup copy -q "$src" "$W/store"
    { sleep 1; rm "$W/held"; } &
    check "while another runs: verify waits to record its result" ckpt-backup verify -q "$W/store"
    clean
fi
check "an empty environment" env -i "$BIN/ckpt-backup" copy --rules "$W/rules" "$W/run"
check "an empty environment: four" [ "$(n_sound)" = 4 ]

# ---- files of other owners stay ----

echo mine >"$W/store/global_step10/notes.txt"
printf 'place store\nfull-every 1000\nkeep-last 1\n' >"$W/foreign.rules"
check_exit "a foreign file in a backup" 1 "nothing was removed, because the folder holds notes.txt, which its receipt does not list" \
    ckpt-backup forget -q --apply --rules "$W/foreign.rules" "$W/run"
check "a foreign file: the backup is whole" same "$W/store/global_step40" "$W/run/global_step40"
echo mine >"$W/run/global_step20/notes.txt"
ckpt-backup copy -q "$W/run/global_step20" "$W/store"
check_exit "a foreign file in a tag" 1 "holds notes.txt" ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
check "a foreign file in a tag: it stays" [ -e "$W/run/global_step20/mp_rank_00_model_states.pt" ]
rm -rf "$W/run" "$W/store" && cp -rp "$W/ref" "$W/run" && clean
mkdir "$W/store/global_step10"
check_exit "a folder that is no backup" 2 "exists, but is not a backup of ckpt-backup" ckpt-backup copy -q "$src" "$W/store"
clean
check "a place that went away is not made up for" rmdir "$W/store/.ckpt-backup"
check_exit "an empty folder may be a disk that is not mounted" 1 "is not a folder of backups yet, or its disk is not mounted" \
    ckpt-backup copy -q --rules "$W/rules" "$W/run"
check_exit "forget with a place that does not answer" 1 "is not a folder of backups yet" \
    ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
check "forget with a place that does not answer: nothing goes" same "$W/run" "$W/ref"
clean

# ---- calls that fail ----

if ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl; then
    shim="env LD_PRELOAD=$W/badio.so ASAN_OPTIONS=verify_asan_link_order=0 BADIO_URING=0"
    for fault in pwrite:2+:28 pwrite:9+:5 pwrite:20+:122 fsync:1+:5 fsync:3+:28 fallocate:2+:28 rename:1:28 rename:2:5 rename:3:30; do
        check_exit "$fault" 1 "error: $W/store" $shim BADIO=$fault ckpt-backup copy -q "$src" "$W/store"
        [ "$(wc -l <"$W/log")" -eq 1 ] && pass || fail "$fault: not one line but $(cat "$W/log")"
        [ "$(n_sound)" = 0 ] && pass || fail "$fault: a backup that failed counts"
        check "$fault: the next run finishes" ckpt-backup copy -q "$src" "$W/store"
        check "$fault: same bytes" same "$W/store/global_step10" "$src"
        clean
    done
    # Everything is written and recorded but not yet read back completely; then the disk loses a bit.
    for verb in copy tar; do
        BADIO_AT=.crc32 $shim BADIO=rename:1:kill ckpt-backup $verb -q "$src" "$W/store" 2>/dev/null
        f=$(any_file "$W"/store/*.part)
        flip "$f" $(($(size_of "$f") / 2)) 4
        check_exit "$verb: the disk lost a bit" 1 "is corrupt" ckpt-backup $verb -q "$src" "$W/store"
        [ "$(n_sound)" = 0 ] && pass || fail "$verb: a backup that the disk damaged counts"
        check "$verb: the next run begins anew" ckpt-backup $verb -q "$src" "$W/store"
        check "$verb: and is sound" ckpt-backup verify -q "$W/store"
        clean
    done
    # A step changes between its check and its removal: it is saved again, or `latest` names it.
    ckpt-backup copy -q --rules "$W/rules" "$W/run" || fail "copy by rules"
    $shim BADIO_SLOW=300 ckpt-backup forget -q --apply --rules "$W/rules" "$W/run" 2>"$W/said" & pid=$!
    until [ -n "$(find "$W/store/.ckpt-backup" -name '*.part')" ] || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done
    touch "$W/run/global_step30/mp_rank_00_model_states.pt"
    echo global_step20 >"$W/run/latest"
    wait $pid; [ $? -eq 1 ] && pass || fail "changed before it was removed: $(cat "$W/said")"
    check "saved anew before it was removed" grep -q "global_step30: not removed, because it has changed since .* made its backup" "$W/said"
    check "latest before it was removed" grep -q "global_step20: not removed, because the file .latest. names it now" "$W/said"
    check "both stay" [ "$(cd "$W/run" && echo *)" = "global_step20 global_step30 global_step40 latest" ]
    rm -rf "$W/run" && cp -rp "$W/ref" "$W/run" && clean
    check "without O_DIRECT" $shim BADIO_DIRECT=0 ckpt-backup copy -q "$src" "$W/store"
    check "without O_DIRECT: packed" $shim BADIO_DIRECT=0 ckpt-backup copy --pack -q "$src" "$W/store"
    check "without O_DIRECT: unpacked" $shim BADIO_DIRECT=0 ckpt-backup restore -q "$W/store" global_step10.pack "$W/out"
    check "without O_DIRECT: same bytes" same "$W/out" "$src"
    rm -rf "$W/out"
    check "without O_DIRECT: sound" ckpt-backup verify -q "$W/store"
    clean
else
    echo "no shared-object compiler: failing calls are not tested"
fi

# ---- a disk that is full, and one that goes away ----

mkdir "$W/small"
if mount -t tmpfs -o size=400k tmpfs "$W/small" 2>/dev/null; then
    check_exit "too small a disk" 1 "bytes are needed" ckpt-backup copy -q "$src" "$W/small"
    check "too small a disk: no backup" [ ! -e "$W/small/global_step10" ]
    mount -o remount,size=64m "$W/small"
    check "with room the next run finishes" ckpt-backup copy -q "$src" "$W/small"
    check "with room: same bytes" same "$W/small/global_step10" "$src"
    # A place that cannot be written (a snapshot, an archive of another owner) is still read.
    mount -o remount,ro "$W/small"
    check_exit "a read-only place: verified" 0 "global_step10: sound" ckpt-backup verify "$W/small"
    check_exit "a read-only place: nothing is recorded" 0 "the result of the check was not recorded in the receipt: $W/small/" ckpt-backup verify "$W/small"
    check "a read-only place: restored" ckpt-backup restore -q "$W/small" global_step10 "$W/out"
    rm -rf "$W/out"
    mount -o remount,rw "$W/small"
    f=$W/small/global_step10/mp_rank_00_model_states.pt
    flip "$f" 5000 3
    mount -o remount,ro "$W/small"
    check_exit "a read-only place: damage is found" 1 "$f" ckpt-backup verify "$W/small"
    check "a read-only place: and not recorded" is_sound_in "$W/small"
    mount -o remount,rw "$W/small"
    flip "$f" 5000 3
    printf 'keep-last 1\nplace small\nfull-every 10\n' >"$W/small.rules"
    umount "$W/small"
    check_exit "its disk is not mounted" 1 "or its disk is not mounted" \
        ckpt-backup forget -q --apply --rules "$W/small.rules" "$W/run"
    check "its disk is not mounted: nothing goes" same "$W/run" "$W/ref"
else
    echo "cannot mount a tmpfs here: the full disk is not tested"
fi

# ---- the run's files, mounted in a place ----

cp -r "$W/ref/." "$W/run"; clean
check "a mount: copied by rules" ckpt-backup copy -q --rules "$W/rules" "$W/run"
if mount --bind "$W/run/global_step20" "$W/store/global_step20" 2>/dev/null; then
    check_exit "a mount of the run's files is no copy" 1 "global_step20: has the same inodes as global_step20 in" \
        ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
    check "a mount: the step stays" same "$W/run/global_step20" "$W/ref/global_step20"
    umount "$W/store/global_step20"
else
    echo "cannot mount a folder here: a mount of the run's files is not tested"
fi
rm -rf "$W/run" && cp -rp "$W/ref" "$W/run" && clean

# ---- a quota ----

# btrfs applies quotas to root, too.
quota_disk() {
    command -v mkfs.btrfs btrfs && truncate -s 128M "$W/quota.img" && mkfs.btrfs -q "$W/quota.img" &&
        mkdir "$W/quota" && mount -o loop "$W/quota.img" "$W/quota" && btrfs quota enable "$W/quota"
}
if quota_disk >/dev/null 2>&1; then
    for verb in copy tar "copy --pack"; do
        btrfs subvolume create "$W/quota/store" >/dev/null
        btrfs qgroup limit 700k "$W/quota/store"
        # shellcheck disable=SC2086
        check_exit "$verb over the quota" 1 "Disk quota exceeded" ckpt-backup $verb -q "$src" "$W/quota/store"
        [ "$(wc -l <"$W/log")" -eq 1 ] && pass || fail "$verb over the quota: not one line but $(cat "$W/log")"
        ckpt-backup list --json "$W/quota/store" 2>/dev/null | grep -qF '"sound":true' && fail "$verb over the quota counts"
        btrfs qgroup limit none "$W/quota/store"
        # shellcheck disable=SC2086
        check "$verb: with more quota the next run finishes" ckpt-backup $verb -q "$src" "$W/quota/store"
        check "$verb: with more quota it is sound" ckpt-backup verify -q "$W/quota/store"
        btrfs subvolume delete "$W/quota/store" >/dev/null
    done
    umount "$W/quota"
else
    mountpoint -q "$W/quota" && umount "$W/quota"
    echo "cannot make a btrfs here: a quota is not tested"
fi
# ---- deltas: killed, flipped or cut, with a damaged or lost base ----

mkdir "$W/pair" "$W/deltas"
cp -r "$W/in/global_step7" "$W/pair/global_step10"
ckpt-edit -q retag --step 20 "$W/pair/global_step10" "$W/pair/global_step20" || exit 1
two_src=$W/pair/global_step20 delta=global_step20.delta
check "the base" ckpt-backup copy -q "$W/pair/global_step10" "$W/deltas"
copy_delta() { ckpt-backup copy -q --delta-from global_step10 "$two_src" "$W/deltas"; }

i=0 span=80
while [ $i -lt $((kills / 4)) ]; do
    ckpt-backup copy -q --delta-from global_step10 "$two_src" "$W/deltas" 2>/dev/null & pid=$!
    kill_after "$(random $span)" $pid
    [ -e "$W/deltas/$delta" ] && [ ! -e "$W/deltas/.ckpt-backup/$delta.json" ] && fail "killed: a delta without a receipt"
    check "killed: all that is listed is sound" ckpt-backup verify -q "$W/deltas"
    check "killed: the next run finishes" copy_delta
    ckpt-backup restore -q "$W/deltas" $delta "$W/back" 2>/dev/null & pid=$!
    kill_after "$(random $span)" $pid
    [ -e "$W/back" ] || check "restore killed: the next run finishes" ckpt-backup restore -q "$W/deltas" $delta "$W/back"
    check "restored: same bytes" same "$W/back" "$two_src"
    left=$(find "$W/deltas" -name '*.part' -o -name '*.job')
    [ -z "$left" ] && pass || fail "killed: left $left"
    rm -rf "$W/back" "$W"/back.part* "$W/deltas/$delta" "$W/deltas/.ckpt-backup/$delta".*
    i=$((i + 1))
done
check "a delta" copy_delta

# refused WHAT: neither verify nor restore accept the delta.
refused() {
    ckpt-backup verify -q "$W/deltas" $delta >/dev/null 2>&1 && fail "$1: verify accepts it" || pass
    ckpt-backup restore -q "$W/deltas" $delta "$W/back" >/dev/null 2>&1 && fail "$1: restored" || pass
    [ ! -e "$W/back" ] && pass || fail "$1: OUT exists"
    rm -rf "$W"/back*
}
i=0
while [ $i -lt $((flips / 20)) ]; do
    what="$W/deltas/$delta"
    [ $((i % 2)) = 0 ] || what="$W/deltas/global_step10"
    "$TBIN/tools/flip" "$W/flipped" "$what" || fail "flip"
    refused "flipped: $(cat "$W/flipped")"
    "$TBIN/tools/flip" -b "$W/flipped" || fail "flip back"
    check "healed" ckpt-backup verify -q "$W/deltas"
    i=$((i + 1))
done
cp "$W/deltas/$delta" "$W/whole_delta"
for cut in 0 1 16 100 $(($(wc -c <"$W/whole_delta") / 2)) $(($(wc -c <"$W/whole_delta") - 1)); do
    head -c "$cut" "$W/whole_delta" >"$W/deltas/$delta"; refused "cut to $cut bytes"
done
{ cat "$W/whole_delta"; echo; } >"$W/deltas/$delta"; refused "one byte more"
cp "$W/whole_delta" "$W/deltas/$delta"
for f in "$W/deltas/global_step10"/*.pt; do
    mv "$f" "$W/moved_base"; refused "lost: $f"; head -c 1000 "$W/moved_base" >"$f"; refused "cut: $f"; mv "$W/moved_base" "$f"
done
mv "$W/deltas/.ckpt-backup/global_step10.json" "$W/moved_base"
check_exit "no receipt of the base" 1 "needs the whole backup global_step10" ckpt-backup verify -q "$W/deltas" $delta
mv "$W/moved_base" "$W/deltas/.ckpt-backup/global_step10.json"
check "all is as it was" ckpt-backup verify -q "$W/deltas"

echo "$n_killed kills, $n_flipped bits flipped"
finish
