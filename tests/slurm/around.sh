#!/bin/sh
# around.sh - conversions over several nodes, PMIx, containers, and cron without cron, on a real Slurm
# Functions are called through until_true.
# shellcheck disable=SC2317
. "$(dirname "$0")/lib.sh"

# ---- conversions ----

in=tests/data/bloom-tp2pp2dp2/global_step20
ds2universal -q $in "$W/want"
job=$(sbatch --parsable --nodes=2 --ntasks-per-node=2 --output="$W/convert.out" --chdir="$PWD" "$KIT/convert.sbatch" \
    ds2universal $in "$W/srun")
check_until "a conversion on two nodes ends" 60 state_is "$job" COMPLETED
check "and has made what one process makes" diff -r "$W/want" "$W/srun"
job=$(sbatch --parsable --nodes=1 --array=5-7 --output="$W/convert-%a.out" --chdir="$PWD" "$KIT/convert.sbatch" \
    ds2universal $in "$W/array")
check_until "a conversion by an array ends" 60 state_is "$job" COMPLETED
check "and has made the same" diff -r "$W/want" "$W/array"

# ---- ranks that PMIx brings together ----

# Slurm's plugin loads libpmix.so, which Debian has in libpmix-dev.
if ! train --version | grep -qi mpi; then
    skip_part "ranks that PMIx brings together" "train is built without MPI"
elif ! srun --mpi=pmix --nodes=1 --ntasks=1 true 2>"$W/log"; then
    skip_part "ranks that PMIx brings together" "Slurm cannot load PMIx"
else
    new_run pmix
    MPI=pmix TRAIN_SAMPLES=1280 submit
    check_until "with PMIx it ends" 90 state_is "$job" COMPLETED
    check "and has trained to the end" [ "$(stop_reason)" = finished ]
fi

# ---- containers: programs that do what pyxis and enroot do with words and environment ----

mkdir "$W/fakes"
# Slurm's own srun does not know pyxis's options without its plugin: they are noted, and taken away.
cat >"$W/fakes/srun" <<TEXT
#!/bin/sh
seen=none
for word; do
    shift
    case \$word in --container-*) seen="\$seen \$word" ;; *) set -- "\$@" "\$word" ;; esac
done
echo "\$seen" >>$W/pyxis.seen
exec $(command -v srun) "\$@"
TEXT
# What is in the host's environment stays outside, but for what environ() of the configuration prints.
cat >"$W/fakes/enroot" <<TEXT
#!/bin/bash
[ "\$1" = start ] && shift || exit 90
while :; do
    case \$1 in
    --rw) shift ;;
    --conf) . "\$2" || exit 91; shift 2 ;;
    --mount) echo "\$2" >>$W/enroot.mounts; shift 2 ;;
    shardkit) shift; break ;;
    *) exit 92 ;;
    esac
done
while IFS= read -r line; do set -- "\$line" "\$@"; done < <(environ)
exec env -i PATH="$BIN:/usr/bin:/bin" "\$@"
TEXT
chmod +x "$W/fakes/srun" "$W/fakes/enroot"
own_path=$PATH PATH=$W/fakes:$PATH
new_run pyxis
CONTAINER=/images/shardkit.sqsh CONTAINER_MOUNTS=/data:/data,$RUN:$RUN TRAIN_SAMPLES=1280 submit
pyxis=$job pyxis_run=$RUN
new_run enroot
CONTAINER=shardkit CONTAINER_TOOL=enroot CONTAINER_MOUNTS=/data:/data,$RUN:$RUN TRAIN_SAMPLES=1280 submit
PATH=$own_path
check_until "in enroot's container it ends" 120 state_is "$job" COMPLETED
check "its ranks know each other" grep -q '^using world size: 4' "$RUN/logs/main_log.txt"
check "and have trained to the end" [ "$(stop_reason)" = finished ]
sort -u "$W/enroot.mounts" >"$W/got"
check "the container has both mounts" sh -c "printf '/data:/data\n$RUN:$RUN\n' | sort | cmp - '$W/got'"
RUN=$pyxis_run
check_until "with pyxis it ends" 120 state_is "$pyxis" COMPLETED
check "and has trained to the end" [ "$(stop_reason)" = finished ]
sort "$W/pyxis.seen" | uniq -c >"$W/got"
# Each node alone, both together, the run.
check "each of its steps had image and mounts" \
    grep -qxE " *4 none --container-image=/images/shardkit.sqsh --container-mounts=/data:/data,$RUN:$RUN" "$W/got"

# ---- cron without cron ----

mkdir "$W/cron.hourly"
printf '#!/bin/sh\n#SBATCH --output=/dev/null\necho came >>%s/came\n' "$W" >"$W/cron.hourly/a.slurm"
printf '#!/bin/sh\nexit 1\n' >"$W/cron.hourly/not-this"
chain() { OUTPUT=$W/cron.out STATE_FILE=$W/watch.json EVERY=3 UNIT=seconds FOLDER=$W/cron.hourly \
    sbatch --parsable --job-name=cron-hourly --output="$W/cron.out" "$KIT/cron.sbatch"; }
chain >"$W/first"
came() { [ "$(wc -l <"$W/came")" -ge "$1" ]; }
check_until "the chain submits itself, and the folder's jobs" 90 came 3
chain >/dev/null
check_until "a second chain of the name ends" 60 grep -q 'is this chain already' "$W/cron.out"
crons() { run-watch crons --state "$W/watch.json" "$@"; }
check "while it comes by all is well" crons cron-hourly
scancel --name=cron-hourly
check_exit "once it is gone, that is told" 1 "late: cron-hourly" crons --now $(($(date +%s) + 120))

finish
