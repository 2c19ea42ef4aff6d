#!/bin/sh
# backup_remote.sh - ckpt-backup with a remote, `rclone serve` on loopback, that is killed, damaged, answers 500, is
# full or unavailable
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
kills=${KILLS:-10} flips=${FLIPS:-${KILLS:-10}}
quick && kills=1 flips=1
[ -n "${SOAK:-}" ] && kills=1000 flips=10000
n_flipped=0
# A .pack is made in TMPDIR before it is sent. Nothing may remain there.
mkdir "$W/tmp" "$W/locks" && export TMPDIR="$W/tmp" XDG_RUNTIME_DIR="$W/locks"
staged() { [ -z "$(ls "$TMPDIR")" ]; }

"$TBIN/bench/mkckpt" --layers 1 --hidden 64 --heads 4 --vocab 640 --tp 2 --pp 1 --dp 2 --steps 7 "$W/in" >/dev/null || exit 1
mkdir "$W/run" "$W/far"
for s in 10 20; do cp -r "$W/in/global_step7" "$W/run/global_step$s"; done
echo global_step20 >"$W/run/latest"
src=$W/run/global_step10
same() { diff -r "$1" "$2" >/dev/null; }

# ---- without rclone ----

mkdir "$W/bin" && ln -s "$BIN/ckpt-backup" "$W/bin"
check_exit "no rclone" 1 "gcs:bucket/run: a remote needs the program rclone" \
    env -i PATH="$W/bin" XDG_RUNTIME_DIR="$W/locks" ckpt-backup copy -q "$src" gcs:bucket/run
printf 'keep-last 1\nplace gcs:bucket/run\nfull-every 10\n' >"$W/rules"
check_exit "no rclone: forget" 1 "needs the program rclone" \
    env -i PATH="$W/bin" XDG_RUNTIME_DIR="$W/locks" ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
check "no rclone: nothing goes" same "$src" "$W/in/global_step7"
command -v rclone >/dev/null || { echo "rclone is not installed: remotes are not tested"; finish; }

# ---- a server ----

# Use few retries, because most failures here persist. Some are necessary, because a server holds a killed client's
# lock for a moment.
export RCLONE_CONFIG="$W/rclone.conf" RCLONE_RETRIES=3 RCLONE_RETRIES_SLEEP=1s RCLONE_LOW_LEVEL_RETRIES=2 RCLONE_CONTIMEOUT=5s
place=far:backups/run
server=
up() {
    rclone serve webdav "$W/far" --addr 127.0.0.1:$port --dir-cache-time 0s >"$W/server.log" 2>&1 & server=$!
    i=0
    until rclone lsf far: >/dev/null 2>&1 || [ $i -ge 100 ]; do sleep 0.1; i=$((i + 1)); done
    kill -0 $server 2>/dev/null
}
# Another test may have the port; then its server answers.
tries=0
until
    port=$((18000 + $(random 2000)))
    printf '[far]\ntype = webdav\nurl = http://127.0.0.1:%s\nvendor = other\n' $port >"$RCLONE_CONFIG"
    up || [ $tries -ge 5 ]
do tries=$((tries + 1)); done
down() { [ -z "$server" ] || { kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; }; server=; }
trap down EXIT
# Wait until a server listens on this port.
until_listens() {
    n=0
    until grep -q "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$1") [0-9A-F:]* 0A " /proc/net/tcp || [ $n -gt 300 ]; do
        n=$((n + 1)); sleep 0.1
    done
}
is_sound() { ckpt-backup list --json "$place" 2>/dev/null | grep -F "\"name\":\"$1\"" | grep -qF '"sound":true'; }
far=$W/far/backups/run

check "copy" ckpt-backup copy -q "$src" "$place"
check "copy: same bytes there" same "$src" "$far/global_step10"
check "copy: latest" [ "$(cat "$far/latest")" = global_step10 ]
check "weights" ckpt-backup weights -q "$src" "$place"
check "there already" ckpt-backup copy -q "$src" "$place"
# The run was killed between the receipt and its last operations. The next run completes them.
echo unfinished >"$far/.ckpt-backup/global_step10.job"; echo global_step7 >"$far/latest"
check "the last acts are left" ckpt-backup copy -q "$src" "$place"
check "the last acts: no note" [ ! -e "$far/.ckpt-backup/global_step10.job" ]
check "the last acts: latest" [ "$(cat "$far/latest")" = global_step10 ]
check "list" is_sound global_step10
check "rclone takes the sums" rclone check --checkfile crc32 "$far/.ckpt-backup/global_step10.crc32" "$far/global_step10"
check "rclone takes the sums from the remote" \
    rclone check --download --checkfile crc32 "$far/.ckpt-backup/global_step10.crc32" $place/global_step10
check "restore" ckpt-backup restore -q "$place" global_step10 "$W/out"
check "restore: same bytes" same "$src" "$W/out"
rm -r "$W/out"
# verb_of NAME: print the command line words of the form that makes a backup of this name.
verb_of() { case $1 in *.tar) echo tar ;; *.pack) echo "copy --pack" ;; *) echo copy ;; esac; }
# shellcheck disable=SC2046
put() { ckpt-backup $(verb_of "$1") -q "$src" "$place"; }
for kind in global_step10.tar global_step10.pack; do
    check "$kind" put $kind
    check "$kind: there already" put $kind
    check "$kind: sound" ckpt-backup verify -q "$place" $kind
    check "$kind: rclone takes the sums" \
        rclone check --include "/$kind" --checkfile crc32 "$far/.ckpt-backup/$kind.crc32" "$far"
    check "$kind: restored" ckpt-backup restore -q "$place" $kind "$W/out"
    check "$kind: same bytes" same "$src" "$W/out"
    check "$kind: nothing is left beside it" [ "$(cd "$W" && echo out*)" = out ]
    rm -r "$W/out"
done
check "the tar is one" tar -C "$W" -xf "$far/global_step10.tar" --one-top-level=untarred
check "the tar: same bytes" same "$src" "$W/untarred/global_step10"
rm -r "$W/untarred"
check "no pack is left here" staged
# Killed as soon as the receipt has arrived: the next run also removes the .pack that was sent.
mkdir "$W/shim" && cat >"$W/shim/rclone" <<SHIM && chmod +x "$W/shim/rclone"
#!/bin/sh
$(command -v rclone) "\$@"; status=\$?
case "\$*" in *rcat*global_step10.pack.json) kill -KILL \$PPID ;; esac
exit \$status
SHIM
rm "$far/global_step10.pack" "$far/.ckpt-backup/global_step10.pack.json"
PATH="$W/shim:$PATH" ckpt-backup copy --pack -q "$src" "$place" 2>/dev/null
staged && fail "killed behind the receipt: no pack is left, so this tests nothing"
check "killed behind the receipt: the next run" put global_step10.pack
check "killed behind the receipt: no pack is left here" staged
# An upload that replaces the receipt is interrupted, and the server has deleted the old file.
cat >"$W/shim/rclone" <<SHIM
#!/bin/sh
case "\$*" in *"rcat "*/global_step10.json) $(command -v rclone) deletefile "\$3"; echo cut off >&2; exit 1 ;; esac
exec $(command -v rclone) "\$@"
SHIM
PATH="$W/shim:$PATH" ckpt-backup verify -q "$place" global_step10 >"$W/log" 2>&1
grep -q "rclone rcat failed" "$W/log" && [ ! -e "$far/.ckpt-backup/global_step10.json" ] ||
    fail "the receipt was replaced, so this tests nothing: $(cat "$W/log")"
check "a receipt cut off: the backup counts" is_sound global_step10
check "a receipt cut off: it is there already" ckpt-backup copy -q "$src" "$place"
check "a receipt cut off: the next verify" ckpt-backup verify -q "$place" global_step10
check "a receipt cut off: it is whole again" [ "$(cd "$far/.ckpt-backup" && echo global_step10.json*)" = global_step10.json ]
touch "$src"/*
check "other times, the same bytes" ckpt-backup copy -q "$src" "$place"

# whole KIND: check on the server's own disk that the backup has the expected bytes. A .tar and a .pack of the same
# files have the same bytes each time.
whole() { if [ "$1" = global_step10 ]; then same "$src" "$far/$1"; else cmp -s "$W/ref/$1" "$far/$1"; fi; }
# afresh: make every kind again and verify each by restoring it. `whole` compares with *.tar and *.pack.
afresh() {
    rm -rf "$far" "$W/ref" && mkdir "$W/ref"
    for kind in global_step10 global_step10.tar global_step10.pack; do
        check "$kind afresh" put $kind
        check "$kind afresh: restored" ckpt-backup restore -q "$place" $kind "$W/out"
        check "$kind afresh: same bytes" same "$src" "$W/out"
        rm -rf "$W/out"
        [ $kind = global_step10 ] || cp "$far/$kind" "$W/ref"
    done
}

# ---- flipped bits, one in each file at a time ----

flip() {            # FILE...
    "$TBIN/tools/flip" "$W/flipped" "$@" || fail "flip"
    n_flipped=$((n_flipped + $#))
}
# A set of many ranks: rclone starts as often for the files of 64 ranks as for those of 2.
quick || { "$TBIN/bench/mkckpt" --layers 1 --hidden 64 --heads 4 --vocab 640 --tp 2 --pp 1 --dp 64 --steps 10 "$W/wide" >/dev/null &&
    src=$W/wide/global_step10 place=far:backups/wide far=$W/far/backups/wide; }
afresh
round=0
while [ $n_flipped -lt "$flips" ]; do
    n=$n_flipped
    flip "$far"/global_step10/* "$far/global_step10.tar" "$far/global_step10.pack"
    n=$((n_flipped - n))
    ckpt-backup verify -q "$place" >"$W/log" 2>&1 && fail "flips are not seen"
    [ "$(grep -c 'do not have the expected CRC-32' "$W/log")" -eq $n ] && pass || fail "$n files are damaged: $(cat "$W/log")"
    ckpt-backup list --json "$place" 2>/dev/null | grep -qF '"sound":true' && fail "a damaged backup counts"
    ckpt-backup restore -q "$place" global_step10.pack "$W/out" 2>/dev/null && fail "a damaged .pack is restored"
    # rclone runs once per member. In a .tar the bit may be between members; then all members are restored correctly.
    if [ $((round % 10)) -eq 0 ] && ckpt-backup restore -q "$place" global_step10.tar "$W/out" 2>/dev/null; then
        check "a damaged .tar is restored: the same bytes" same "$src" "$W/out"
        rm -rf "$W/out"
    fi
    # The sizes are equal and the remote has no times, so only reading the files back proves that they are right.
    for kind in global_step10 global_step10.tar global_step10.pack; do
        check "flips: $kind sent again" put $kind
        check "flips: $kind has the same bytes" whole $kind
    done
    round=$((round + 1))
done
src=$W/run/global_step10 place=far:backups/run far=$W/far/backups/run
quick || afresh
flip "$far/.ckpt-backup/global_step10.json"
check_exit "a damaged receipt" 1 "is not a receipt of a backup, or is damaged" ckpt-backup list -q "$place"
check "a damaged receipt: made anew" ckpt-backup copy -q "$src" "$place"
check "a damaged receipt: sound" is_sound global_step10

# ---- killed ----

# Kills are spread over the duration of a run, `span`. It is adapted after each run so that two of three kills hit
# one.
span=2500 begun=$n_killed
while [ $((n_killed - begun)) -lt "$kills" ]; do
    case $((n_killed % 3)) in 0) kind=global_step10 ;; 1) kind=global_step10.tar ;; 2) kind=global_step10.pack ;; esac
    ms=$(random $span)
    rm -rf "$far"                       # which purges faster than rclone
    # shellcheck disable=SC2046
    ckpt-backup $(verb_of $kind) -q "$src" "$place" 2>/dev/null & pid=$!
    if kill_after "$ms" $pid; then span=$((span + span / 20 + 1)); else span=$((span - span / 10)); fi
    if [ -e "$far/.ckpt-backup/$kind.json" ]; then
        check "$kind killed after $ms ms: what has a receipt is whole" whole $kind
        ! is_sound $kind || check "$kind killed after $ms ms: sound is sound" ckpt-backup verify -q "$place"
    fi
    check "$kind killed after $ms ms: the next run finishes" put $kind
    check "$kind killed after $ms ms: same bytes" whole $kind
    [ -z "$(find "$far" -name '*.job')" ] && pass || fail "$kind killed after $ms ms: an unfinished note is left"
    check "$kind killed after $ms ms: no pack is left here" staged
    [ $((n_killed % 10)) -gt 0 ] || check "$kind killed after $ms ms: it counts" is_sound $kind
done
# Kill restores as well.
i=0
[ "$kills" -lt 5 ] || afresh
while [ $i -lt $((kills / 5)) ]; do
    case $((i % 3)) in 0) kind=global_step10 ;; 1) kind=global_step10.tar ;; 2) kind=global_step10.pack ;; esac
    ckpt-backup restore -q "$place" $kind "$W/out" 2>/dev/null & pid=$!
    kill_after "$(random $span)" $pid
    [ -e "$W/out" ] || check "restore of $kind killed: the next run finishes" ckpt-backup restore -q "$place" $kind "$W/out"
    check "restore of $kind killed: same bytes" same "$src" "$W/out"
    rm -rf "$W/out"
    check "restore of $kind killed: nothing is left" sh -c "! ls -d $W/out* 2>/dev/null"
    i=$((i + 1))
done
rclone purge $place

# ---- forgetting ----

printf 'keep-last 1\nplace %s\nfull-every 10\n' "$place" >"$W/rules"
i=0
while [ $i -lt $((kills / 5)) ]; do
    check "copy by rules" ckpt-backup copy -q --rules "$W/rules" "$W/run"
    ckpt-backup forget -q --apply --rules "$W/rules" "$W/run" & pid=$!
    kill_after "$(random $span)" $pid
    check "forget killed: the next run finishes" ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
    check "forget: it is gone here" [ ! -e "$src" ]
    check "forget: and comes back" ckpt-backup restore -q "$place" global_step10 "$src"
    check "forget: same bytes" same "$src" "$W/in/global_step7"
    i=$((i + 1))
done
ckpt-backup copy -q --rules "$W/rules" "$W/run"
printf 'place %s\nfull-every 10\nkeep-last 1\n' "$place" >"$W/there.rules"
echo mine >"$far/global_step10/notes.txt"
check_exit "a foreign file there" 1 "holds global_step10/notes.txt, which is not part of a backup" \
    ckpt-backup forget -q --apply --rules "$W/there.rules" "$W/run"
check "a foreign file there: nothing is removed" [ -e "$far/global_step10/mp_rank_00_model_states.pt" ]
rm "$far/global_step10/notes.txt"
ckpt-backup forget -q --apply --rules "$W/there.rules" "$W/run" & pid=$!
kill_after "$(random $span)" $pid
check "forgotten there" ckpt-backup forget -q --apply --rules "$W/there.rules" "$W/run"
check "forgotten there: only that" [ "$(cd "$far" && echo *)" = "global_step20 latest" ]
check "forgotten there: the other is sound" ckpt-backup verify -q "$place"

# ---- unavailable and available again; answering 500 ----

down
check_exit "the server is gone" 1 "error: $place: rclone lsjson failed" ckpt-backup copy -q "$src" "$place"
[ "$(wc -l <"$W/log")" -eq 1 ] && pass || fail "the server is gone: not one line but $(cat "$W/log")"
check_exit "the server is gone: forget" 1 "rclone lsjson failed" \
    ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
check "the server is gone: nothing goes" same "$src" "$W/in/global_step7"
if ${CC:-cc} -o "$W/badhttp" tests/fault/shim/badhttp.c; then
    "$W/badhttp" $port & server=$!
    until_listens $port
    check_exit "the server answers 500" 1 "500 Internal Server Error" ckpt-backup copy -q "$src" "$place"
    [ "$(wc -l <"$W/log")" -eq 1 ] && pass || fail "500: not one line but $(cat "$W/log")"
    check_exit "the server answers 500: forget" 1 "500 Internal Server Error" \
        ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
    check "the server answers 500: nothing goes" same "$src" "$W/in/global_step7"
    down
fi
up
check "it is back: the next run finishes" ckpt-backup copy -q "$src" "$place"
check "it is back: sound" ckpt-backup verify -q "$place"

# ---- a server that fails occasionally ----

# try LINES COMMAND...: repeat the command until it succeeds. A failure must be exit 1 with at most LINES lines.
try() {
    lines=$1 times=30; shift
    while ! "$@" >"$W/log" 2>&1; do
        [ "$(wc -l <"$W/log")" -le "$lines" ] || { echo "more than $lines lines:"; cat "$W/log"; return 1; }
        times=$((times - 1)); failures=$((failures + 1))
        [ $times -gt 0 ] || { cat "$W/log"; return 1; }
    done
}
if [ -x "$W/badhttp" ] && ! quick; then
    rclone purge $place
    # The new port is below 20000; the trainers of other tests use ports from 20000 on.
    "$W/badhttp" $((port - 2000)) $port 40 & bad=$!
    sed "s/:$port/:$((port - 2000))/" "$RCLONE_CONFIG" >"$W/bad.conf"
    good=$RCLONE_CONFIG failures=0
    export RCLONE_CONFIG="$W/bad.conf" RCLONE_RETRIES=1 RCLONE_LOW_LEVEL_RETRIES=1
    until_listens $((port - 2000))
    for kind in global_step10 global_step10.tar global_step10.pack; do
        try 1 put $kind && pass || fail "$kind now and then 500: does not end"
        try 1 ckpt-backup restore -q "$place" $kind "$W/out" && pass || fail "$kind now and then 500: not restored"
        check "$kind now and then 500: same bytes" same "$src" "$W/out"
        rm -rf "$W/out"
    done
    try 2 ckpt-backup copy -q --rules "$W/rules" "$W/run" && pass || fail "now and then 500: copy by rules"
    try 2 ckpt-backup forget -q --apply --rules "$W/rules" "$W/run" && pass || fail "now and then 500: forget"
    [ $failures -gt 0 ] && pass || fail "a server that fails now and then: no run saw it"
    check "now and then 500: forgotten here" [ ! -e "$src" ]
    kill $bad; wait $bad 2>/dev/null
    export RCLONE_CONFIG="$good" RCLONE_RETRIES=3 RCLONE_LOW_LEVEL_RETRIES=2
    check "now and then 500: all is sound" ckpt-backup verify -q "$place"
    check "now and then 500: and comes back" ckpt-backup restore -q "$place" global_step10 "$src"
    check "now and then 500: same bytes" same "$src" "$W/in/global_step7"
fi

# ---- a remote without free space ----

down
if mount -t tmpfs -o size=900k tmpfs "$W/far" 2>/dev/null; then
    up
    for kind in global_step10 $(quick || echo global_step10.tar) global_step10.pack; do
        check_exit "$kind: no room there" 1 "error: $place: rclone" put $kind
        [ "$(wc -l <"$W/log")" -eq 1 ] && pass || fail "$kind: no room there: not one line but $(cat "$W/log")"
        is_sound $kind && fail "$kind: no room there, and it counts"
        mount -o remount,size=64m "$W/far"
        check "$kind: with room the next run finishes" put $kind
        check "$kind: with room it is sound" ckpt-backup verify -q "$place"
        rclone purge $place
        mount -o remount,size=900k "$W/far"
    done
    check "no pack is left here" staged
    down
    umount "$W/far"
else
    echo "cannot mount a tmpfs here: a remote without room is not tested"
fi
echo "$n_killed kills, $n_flipped bits flipped"
finish
