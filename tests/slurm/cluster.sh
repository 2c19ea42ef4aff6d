#!/bin/sh
# cluster.sh - a real Slurm of several nodes on this machine: cluster.sh up DIR [NODES] | in DIR COMMAND... | down DIR
#
# Debian's slurmd takes one node a host, so each node is a host to all that runs there: a hostname, a network, processes
# and mounts of its own (namespaces), on a bridge that only the cluster knows. Everything is below one process whose
# end is the end of all of it; nothing outside DIR is written, no port of the machine is taken. Needs root, slurmctld,
# slurmd and munged; with slurmdbd and mariadbd there is accounting (sacct), else jobs are listed in DIR/jobcomp.
#
#   controller   ctl    10.77.0.254   slurmctld, slurmdbd, mariadbd, munged; `in DIR COMMAND` runs here
#   node K       nodeK  10.77.0.K     slurmd, munged is the controller's; `in DIR -n nodeK COMMAND` runs there
#
# All see one file system, and DIR/small, one of 24 MB; a node's mounts are its own: mounting over a file breaks it
# on that node alone.
set -u
me=cluster.sh
self=$(cd "$(dirname "$0")" && pwd)/cluster.sh
PATH=$PATH:/usr/sbin:/sbin
say() { echo "$me: $*" >&2; }
fail() { say "$*"; exit 1; }
usage() { echo "Usage: $me up DIR [NODES] | in DIR [-n NODE] COMMAND... | down DIR | can" >&2; exit 2; }

# Wait until a command is true, at most $1 tenths of a second.
until_true() {
    tenths=$1; shift
    until "$@" >/dev/null 2>&1; do
        [ "$tenths" -gt 0 ] || return 1
        tenths=$((tenths - 1)); sleep 0.1
    done
}

# ---- can it be here? Prints what is missing ----

can() {
    for program in slurmctld slurmd sbatch munged ip unshare nsenter; do
        command -v $program >/dev/null || { echo "no $program here"; return 1; }
    done
    unshare --net --mount --uts --pid --fork --mount-proc sh -c 'ip link add br0 type bridge && hostname ctl' \
        2>/dev/null || { echo "no namespaces here (root is needed)"; return 1; }
}

accounting() {
    for program in slurmdbd mariadbd mariadb-install-db; do command -v $program >/dev/null || return 1; done
}

# ---- the files of a cluster ----

write_files() {     # in $dir
    mkdir -p "$dir/spool" "$dir/state" "$dir/log" "$dir/run" "$dir/small"
    # munged and its clients insist on folders that nobody else can write to.
    chmod 755 "$dir" "$dir/run"
    head -c 1024 /dev/urandom >"$dir/munge.key" && chmod 400 "$dir/munge.key"
    { echo "127.0.0.1 localhost"; echo "10.77.0.254 ctl"; } >"$dir/hosts"
    cat >"$dir/slurm.conf" <<CONF
ClusterName=tests
SlurmctldHost=ctl(10.77.0.254)
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
TmpFS=$dir/tmp/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=20
KillWait=5
MessageTimeout=30
UnkillableStepTimeout=60
MinJobAge=3600
JobRequeue=0
GresTypes=gpu
$(if accounting; then
    echo "AccountingStorageType=accounting_storage/slurmdbd"
    echo "AccountingStorageHost=ctl"
    echo "AccountingStoreFlags=job_comment"
    echo "JobAcctGatherType=jobacct_gather/linux"
    echo "JobAcctGatherFrequency=5"
else
    echo "JobCompType=jobcomp/filetxt"
    echo "JobCompLoc=$dir/jobcomp"
fi)
CONF
    # Devices by name only: Slurm counts them and hands out numbers, as on a node with GPUs.
    { [ -e "$dir/gpu0" ] || mknod "$dir/gpu0" c 1 3; } && { [ -e "$dir/gpu1" ] || mknod "$dir/gpu1" c 1 3; } || return
    echo "NodeName=node[1-$nodes] Name=gpu AutoDetect=off File=$dir/gpu[0-1]" >"$dir/gres.conf"
    i=1
    while [ $i -le "$nodes" ]; do
        echo "10.77.0.$i node$i" >>"$dir/hosts"
        echo "NodeName=node$i NodeAddr=10.77.0.$i CPUs=4 RealMemory=1000 Gres=gpu:2 State=UNKNOWN" >>"$dir/slurm.conf"
        # PMIx takes it that this is a node's own.
        mkdir -p "$dir/tmp/node$i" "$dir/spool/node$i"
        i=$((i + 1))
    done
    echo "PartitionName=all Nodes=node[1-$nodes] Default=YES MaxTime=UNLIMITED State=UP" >>"$dir/slurm.conf"
    cat >"$dir/slurmdbd.conf" <<CONF
AuthType=auth/munge
DbdHost=ctl
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StorageLoc=slurm
LogFile=$dir/log/slurmdbd
PidFile=$dir/run/slurmdbd.pid
CONF
    chmod 600 "$dir/slurmdbd.conf"
}

# ---- inside: the controller's namespaces ----

private_host() {    # NAME
    mount --make-rprivate / && mount --bind "$dir/hosts" /etc/hosts && hostname "$1" && ip link set lo up
}

start_database() {
    # Names in it are made of process numbers, which are the same ones in another cluster.
    TMPDIR=$dir/tmp
    export TMPDIR
    mariadb-install-db --no-defaults --user="$(id -un)" --datadir="$dir/db" --skip-test-db \
        >"$dir/log/mariadb-install" 2>&1 || fail "mariadb-install-db failed: $dir/log/mariadb-install"
    mariadbd --no-defaults --user="$(id -un)" --datadir="$dir/db" --socket="$dir/run/db.socket" \
        --bind-address=127.0.0.1 --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 \
        >"$dir/log/mariadbd" 2>&1 &
    until_true 600 mariadb --no-defaults --socket="$dir/run/db.socket" -e 'select 1' || fail "mariadbd does not answer"
    mariadb --no-defaults --socket="$dir/run/db.socket" -e "create database slurm;
        create user slurm@'127.0.0.1'; grant all on slurm.* to slurm@'127.0.0.1';
        create user slurm@localhost; grant all on slurm.* to slurm@localhost" || fail "the database cannot be set up"
    slurmdbd -D >"$dir/log/slurmdbd.err" 2>&1 &
    until_true 600 sacctmgr -n show cluster || fail "slurmdbd does not answer: $dir/log/slurmdbd"
    sacctmgr -i add cluster tests >/dev/null 2>&1
    sacctmgr -i add account tests >/dev/null 2>&1
    sacctmgr -i add user "$(id -un)" account=tests >/dev/null 2>&1
    unset TMPDIR
}

inside() {
    # Clients of slurmdbd look for munged's socket nowhere but there.
    { private_host ctl && mount -t tmpfs run /run && mkdir /run/munge &&
        mount -t tmpfs -o size=24m small "$dir/small"; } || fail "the controller's namespaces cannot be set up"
    { ip link add br0 type bridge && ip addr add 10.77.0.254/24 dev br0 && ip link set br0 up; } || fail "no bridge"
    munged --force --key-file="$dir/munge.key" --pid-file="$dir/run/munged.pid" --log-file="$dir/log/munged" \
        --seed-file="$dir/run/munge.seed" || fail "munged does not start: $dir/log/munged"
    ! accounting || start_database
    slurmctld -c -D >"$dir/log/slurmctld.err" 2>&1 &
    i=1
    while [ $i -le "$nodes" ]; do
        start_node $i
        i=$((i + 1))
    done
    # An orphan of a step must not hold the namespaces up; this shell reaps them as it waits.
    until_true 600 all_idle || { say "not every node came up:"; sinfo >&2; exit 1; }
    : >"$dir/up"
    while :; do sleep 3600 & wait $!; done
}

all_idle() { [ "$(sinfo -h -N -o '%T' | grep -c '^idle$')" -eq "$nodes" ]; }

start_node() {      # K: called again it brings a node back that was ended
    unshare --net --mount --uts --pid --fork --kill-child --mount-proc sh "$self" node "$dir" "$1" \
        >"$dir/log/node$1.err" 2>&1 &
    outer=$!
    until_true 100 pgrep -P $outer || fail "node$1 does not start: $dir/log/node$1.err"
    pid=$(pgrep -P $outer)
    echo "$pid" >"$dir/run/node$1"
    { ip link add "v$1" type veth peer name eth0 netns "$pid" && ip link set "v$1" master br0 up; } ||
        fail "node$1 gets no network"
}

node() {            # K, in its namespaces
    private_host "node$1" || exit 1
    until_true 100 ip link show eth0 || exit 1
    ip addr add "10.77.0.$1/24" dev eth0 && ip link set eth0 up || exit 1
    exec slurmd -D -N "node$1"
}

# ---- outside ----

running() { [ -s "$dir/pid" ] && kill -0 "$(cat "$dir/pid")" 2>/dev/null; }

up() {
    why=$(can) || fail "$why"
    ! running || fail "$dir: a cluster is up there already"
    write_files || fail "$dir: its files cannot be written"
    rm -f "$dir/up"
    setsid unshare --net --mount --uts --pid --fork --kill-child --mount-proc sh "$self" inside "$dir" "$nodes" \
        >"$dir/log/inside" 2>&1 </dev/null &
    outer=$!
    until_true 100 pgrep -P $outer || { cat "$dir/log/inside" >&2; fail "no namespaces"; }
    pgrep -P $outer >"$dir/pid"
    tenths=1800
    until [ -e "$dir/up" ]; do
        if running && [ $tenths -gt 0 ]; then tenths=$((tenths - 1)); sleep 0.1; continue; fi
        cat "$dir/log/inside" >&2
        down
        fail "it did not come up; logs: $dir/log"
    done
}

in_there() {
    if [ "${1:-}" = -n ]; then
        pid=$(cat "$dir/run/$2") || fail "there is no node $2"
        shift 2
        # The number is that of the controller's process namespace.
        set -- nsenter --target "$pid" --all -- env SLURM_CONF="$dir/slurm.conf" "$@"
    fi
    # shellcheck disable=SC2016
    exec nsenter --target "$(cat "$dir/pid")" --mount --net --uts --pid -- sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

down() {
    running || return 0
    kill -9 "$(cat "$dir/pid")"
    until_true 200 not_running
    rm -f "$dir/pid" "$dir/up"
}
not_running() { ! running; }

what=${1:-}
case $what in can) can; exit ;; esac
[ $# -ge 2 ] || usage
dir=$(mkdir -p "$2" && cd "$2" && pwd) || exit 1
shift 2
nodes=6
case $what in
up | inside) nodes=${1:-6} ;;
esac
SLURM_CONF=$dir/slurm.conf
export SLURM_CONF
case $what in
up) up ;;
down) down ;;
in) [ $# -gt 0 ] || usage; in_there "$@" ;;
start-node) start_node "$1" ;;         # in the cluster: one that was ended
inside) inside ;;
node) node "$1" ;;
*) usage ;;
esac
