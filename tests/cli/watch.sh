# watch.sh - sourced by the cases run-watch-*: a run as it looks from outside, a clock that stands, programs that are not here
#
# NOW is the time of all rounds; what is remembered lies in the case's folder.
NOW=1800000000
START=$((NOW - 9000))
HOME=$PWD XDG_STATE_HOME=
TZ=UTC
export HOME XDG_STATE_HOME TZ

# status.json of a run: HEARTBEAT's age in seconds, ITERATION, and fields that differ (JSON).
status_json() {     # AGE ITERATION [FIELDS]
    mkdir -p ckpt/global_step100
    touch -d "@$((START + 8000))" ckpt/global_step100
    echo "{\"host\":\"node1\",\"pid\":12,\"world_size\":8,\"started_s\":$START,\"updated_s\":$((NOW - $1)),\"phase\":\"train\",\"iteration\":$2,\"loss\":2.0,\"iteration_s\":60.0,\"last_complete_tag\":\"global_step100\",\"stalled\":null,\"stop_reason\":null,\"message\":null${3:+,}${3:-}}" >ckpt/status.json
}

# A log of N iterations; what is wrong with its end: slow, spike, gone (a spike that is over), long (one, of iterations
# of 700 s), nan, inf.
log_lines() {       # N [FAULT]
    awk -v n="$1" -v f="${2:-}" 'BEGIN {
        for (i = 1; i <= n; i++) {
            loss = 2 + 0.01 * (i % 3); t = 60 + 0.1 * (i % 2)
            if (f == "slow" && i > n - 6) t = 64
            if (f == "long") { t = 700; if (i == n - 1) loss = 2.4 }
            if ((f == "spike" && i >= n - 1) || (f == "gone" && i == n - 4)) loss = 2.4
            text = sprintf(" lm loss: %.6E |", loss)
            if (f == "nan" && i == n) text = ""
            if (f == "inf" && i == n) text = " lm loss: inf |"
            printf " iteration %8d/%8d | consumed samples: %12d | elapsed time per iteration (s): %.2f |", i, 1000, i * 64, t
            printf "%s number of nan iterations:   0 | samples per second: %.3f | TFLOPs: 100.00 |\n", text, 64 / t
        }
    }'
}

# A program of that name in PATH, as its text says; first in PATH is ./fakes.
fake() {            # NAME TEXT
    mkdir -p fakes
    printf '#!/bin/sh\n%s\n' "$2" >"fakes/$1"
    chmod +x "fakes/$1"
}
PATH=$PWD/fakes:$PATH
try() { "$@"; echo "status $?"; }
