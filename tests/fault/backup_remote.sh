#!/bin/sh
# backup_remote.sh - ckpt-backup and a remote, `rclone serve` on loopback: killed, damaged, answering 500, gone
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
kills=${KILLS:-10} flips=${KILLS:-10}
[ -n "${SOAK:-}" ] && kills=100 flips=1000

"$TBIN/bench/mkckpt" --layers 1 --hidden 64 --heads 4 --vocab 640 --tp 2 --pp 1 --dp 2 --steps 7 "$W/in" >/dev/null || exit 1
mkdir "$W/run" "$W/far"
for s in 10 20; do cp -r "$W/in/global_step7" "$W/run/global_step$s"; done
echo global_step20 >"$W/run/latest"
src=$W/run/global_step10
same() { diff -r "$1" "$2" >/dev/null; }

# ---- without rclone ----

mkdir "$W/bin" && ln -s "$BIN/ckpt-backup" "$W/bin"
check_exit "no rclone" 1 "gcs:bucket/run: is a remote, and needs the program rclone" \
    env -i PATH="$W/bin" ckpt-backup copy -q "$src" gcs:bucket/run
printf 'keep-last 1\nplace gcs:bucket/run\nfull-every 10\n' >"$W/rules"
check_exit "no rclone: forget" 1 "needs the program rclone" \
    env -i PATH="$W/bin" ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
check "no rclone: nothing goes" same "$src" "$W/in/global_step7"
command -v rclone >/dev/null || { echo "rclone is not installed: remotes are not tested"; finish; }

# ---- a server ----

# Few retries: of what fails here most goes on failing. Not none: a server holds a killed client's lock for a moment.
export RCLONE_CONFIG="$W/rclone.conf" RCLONE_RETRIES=3 RCLONE_RETRIES_SLEEP=1s RCLONE_LOW_LEVEL_RETRIES=2 RCLONE_CONTIMEOUT=5s
port=$((18000 + $(random 2000)))
printf '[far]\ntype = webdav\nurl = http://127.0.0.1:%s\nvendor = other\n' $port >"$RCLONE_CONFIG"
place=far:backups/run
server=
up() {
    rclone serve webdav "$W/far" --addr 127.0.0.1:$port --dir-cache-time 0s >"$W/server.log" 2>&1 & server=$!
    i=0
    until rclone lsf far: >/dev/null 2>&1 || [ $i -ge 100 ]; do sleep 0.1; i=$((i + 1)); done
}
down() { [ -z "$server" ] || { kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; }; server=; }
trap down EXIT
up
is_sound() { ckpt-backup list --json "$place" 2>/dev/null | grep -F "\"name\":\"$1\"" | grep -qF '"sound":true'; }
far=$W/far/backups/run

check "copy" ckpt-backup copy -q "$src" "$place"
check "copy: same bytes there" same "$src" "$far/global_step10"
check "copy: latest" [ "$(cat "$far/latest")" = global_step10 ]
check "weights" ckpt-backup weights -q "$src" "$place"
check "there already" ckpt-backup copy -q "$src" "$place"
# Killed between the receipt and the last acts: they are done later.
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
check_exit "a tar" 2 "a .tar is made in a folder of this machine" ckpt-backup tar -q "$src" "$place"
touch "$src"/*
check "other times, the same bytes" ckpt-backup copy -q "$src" "$place"
rm -r "$W/out"

# ---- flipped bits, one in each file at a time ----

flip() {            # FILE
    at=$(random "$(wc -c <"$1")")
    # shellcheck disable=SC2059
    printf "\\$(printf %o $(($(od -An -tu1 -j "$at" -N 1 "$1") ^ (1 << $(random 8)))))" |
        dd of="$1" bs=1 seek="$at" conv=notrunc 2>/dev/null
}
i=0
while [ $i -lt "$flips" ]; do
    n=0
    for f in "$far"/global_step10/*; do flip "$f"; n=$((n + 1)); done
    ckpt-backup verify -q "$place" global_step10 >"$W/log" 2>&1 && fail "flips are not seen"
    [ "$(grep -c 'does not come back as crc' "$W/log")" -eq $n ] && pass || fail "$n files are damaged: $(cat "$W/log")"
    is_sound global_step10 && fail "a damaged backup counts"
    # Same sizes, and a remote without times: only what is read back is known to be right.
    check "flips: sent again" ckpt-backup copy -q "$src" "$place"
    check "flips: same bytes" same "$src" "$far/global_step10"
    i=$((i + n))
done
flip "$far/.ckpt-backup/global_step10.json"
check_exit "a damaged receipt" 1 "is no receipt of a backup, or damaged" ckpt-backup list -q "$place"
check "a damaged receipt: made anew" ckpt-backup copy -q "$src" "$place"
check "a damaged receipt: sound" is_sound global_step10

# ---- killed ----

i=0
while [ $i -lt "$kills" ]; do
    ms=$(random 3000)
    rclone purge $place
    ckpt-backup copy -q "$src" "$place" 2>/dev/null & pid=$!
    sleep "$((ms / 1000)).$(printf '%03d' $((ms % 1000)))"
    kill -KILL $pid 2>/dev/null; wait $pid 2>/dev/null
    if is_sound global_step10; then check "killed after $ms ms: sound is whole" same "$src" "$far/global_step10"; fi
    check "killed after $ms ms: the next run finishes" ckpt-backup copy -q "$src" "$place"
    check "killed after $ms ms: same bytes" same "$src" "$far/global_step10"
    [ -z "$(find "$far" -name '*.job')" ] && pass || fail "killed after $ms ms: an unfinished note is left"
    i=$((i + 1))
done

# ---- forgetting ----

printf 'keep-last 1\nplace %s\nfull-every 10\n' "$place" >"$W/rules"
i=0
while [ $i -lt $((kills / 3)) ]; do
    check "copy by rules" ckpt-backup copy -q --rules "$W/rules" "$W/run"
    ckpt-backup forget -q --apply --rules "$W/rules" "$W/run" & pid=$!
    sleep "0.$(random 10)"; kill -KILL $pid 2>/dev/null; wait $pid 2>/dev/null
    check "forget killed: the next run finishes" ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
    check "forget: it is gone here" [ ! -e "$src" ]
    check "forget: and comes back" ckpt-backup restore -q "$place" global_step10 "$src"
    check "forget: same bytes" same "$src" "$W/in/global_step7"
    i=$((i + 1))
done
ckpt-backup copy -q --rules "$W/rules" "$W/run"
printf 'place %s\nfull-every 10\nkeep-last 1\n' "$place" >"$W/there.rules"
echo mine >"$far/global_step10/notes.txt"
check_exit "a foreign file there" 1 "holds global_step10/notes.txt, which is no part of a backup" \
    ckpt-backup forget -q --apply --rules "$W/there.rules" "$W/run"
check "a foreign file there: nothing is removed" [ -e "$far/global_step10/mp_rank_00_model_states.pt" ]
rm "$far/global_step10/notes.txt"
ckpt-backup forget -q --apply --rules "$W/there.rules" "$W/run" & pid=$!
sleep "1.$(random 10)"; kill -KILL $pid 2>/dev/null; wait $pid 2>/dev/null
check "forgotten there" ckpt-backup forget -q --apply --rules "$W/there.rules" "$W/run"
check "forgotten there: only that" [ "$(cd "$far" && echo *)" = "global_step20 latest" ]
check "forgotten there: the other is sound" ckpt-backup verify -q "$place"

# ---- gone, and back; answering 500 ----

down
check_exit "the server is gone" 1 "error: $place: rclone lsjson failed" ckpt-backup copy -q "$src" "$place"
[ "$(wc -l <"$W/log")" -eq 1 ] && pass || fail "the server is gone: not one line but $(cat "$W/log")"
check_exit "the server is gone: forget" 1 "rclone lsjson failed" \
    ckpt-backup forget -q --apply --rules "$W/rules" "$W/run"
check "the server is gone: nothing goes" same "$src" "$W/in/global_step7"
if ${CC:-cc} -o "$W/badhttp" tests/fault/badhttp.c; then
    "$W/badhttp" $port & server=$!
    sleep 0.2
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
finish
