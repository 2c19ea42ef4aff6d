#!/bin/sh
# hub_sync.sh - ops/hub-sync is killed at random moments while a run appends to its log
#
# KILLS is the number of kills (20). The next run completes the work: the hub has every byte, each version of the log
# in the hub is a prefix of the log, and both repositories are intact.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh
if ! command -v git >/dev/null; then rm -rf "$W"; echo "0 passed, 0 failed, 1 skipped"; exit 0; fi
kills=${KILLS:-20} sync=$PWD/ops/hub-sync
HOME=$W/home GIT_CONFIG_NOSYSTEM=1
export HOME GIT_CONFIG_NOSYSTEM
mkdir "$HOME"
git config --global init.defaultBranch main
git init -q --bare "$W/hub.git"
git clone -q "$W/hub.git" "$W/logs" 2>/dev/null
# A hub is another machine. It detects that its client has ended and is not killed with it.
git -C "$W/logs" config remote.origin.receivepack "setsid git-receive-pack"
mkdir -p "$W/logs/logs" "$W/logs/tensorboard"

once() { "$sync" --quiet --repo-path "$W/logs" --patterns 'tensorboard/*tfevents*' 'logs/*.txt'; }

: >"$W/appending"
(i=0; while [ -e "$W/appending" ]; do i=$((i + 1)); echo "iteration $i" >>"$W/logs/logs/main_log.txt"; sleep 0.01; done) &
writer=$!
echo x >"$W/logs/tensorboard/events.out.tfevents.0"
start=$(date +%s%N); once; whole_ms=$((($(date +%s%N) - start) / 1000000))
i=0 cut=0
while [ $i -lt "$kills" ]; do
    i=$((i + 1))
    head -c 1000000 /dev/urandom >"$W/logs/tensorboard/events.out.tfevents.$i"
    setsid "$sync" --quiet --repo-path "$W/logs" --patterns 'tensorboard/*tfevents*' 'logs/*.txt' 2>/dev/null &
    pid=$!
    ms=$(random $((whole_ms * 4)))
    sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
    kill -s KILL -- "-$pid" 2>/dev/null
    wait $pid 2>/dev/null
    [ $? -eq 137 ] && cut=$((cut + 1))
done
rm "$W/appending"; wait $writer
# A hub on this machine that has not yet detected the end of its client holds the lock that it inherited.
check "the last hub has ended" flock -w 60 "$W/logs/.git/hub-sync.lock" true
# A git that is killed while it moves a branch leaves other locks than that of the index. This is rare, so they are
# made by hand.
echo "some-host 1" >"$W/logs/.git/hub-sync.lock"
: >"$W/logs/.git/HEAD.lock"; : >"$W/logs/.git/refs/heads/main.lock"
check "the next run finishes the work" once
check "and there is nothing left to do" sh -c "cd '$W/logs' && test -z \"\$(git status --porcelain)\""
check "this repository is whole" git -C "$W/logs" fsck --no-dangling
check "the hub is whole" git -C "$W/hub.git" fsck --no-dangling
git clone -q "$W/hub.git" "$W/there"
check "the hub has every byte" diff -r -x .git "$W/logs" "$W/there"
git -C "$W/hub.git" log --format=%h main -- logs/main_log.txt >"$W/versions"
beginning() { git -C "$W/hub.git" show "$1:logs/main_log.txt" >"$W/version" && cmp -n "$(wc -c <"$W/version")" "$W/version" "$W/logs/logs/main_log.txt"; }
while read -r version; do check "version $version of the log" beginning "$version"; done <"$W/versions"
echo "$cut of $kills were cut off"
finish
