#!/bin/sh
# around.sh - conversions over several nodes, PMIx, and cron without cron, on a real Slurm
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

if srun --mpi=list 2>&1 | grep -q pmix && train --version | grep -qi mpi; then
    new_run pmix
    MPI=pmix TRAIN_SAMPLES=1280 submit
    check_until "with PMIx it ends" 90 state_is "$job" COMPLETED
    check "and has trained to the end" [ "$(stop_reason)" = finished ]
fi

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
