#!/bin/sh
# soak.sh - what `make soak` does: every test, with the fault suite and the fuzzers at length
#
# SOAK=1 tells tests that know it to do the long version (500 kills instead of 20, 100,000 mutated
# checkpoints under ASan and UBSan instead of 60 ...);
# each fuzzer runs FUZZ_SECONDS (600). Hours, not minutes; nothing else should be running.
cd "$(dirname "$0")/.." || exit 1
export SOAK=1 JOBS="${JOBS:-1}" FLIP_SHARE=1 FUZZ_SECONDS="${FUZZ_SECONDS:-600}" CASE_SECONDS="${CASE_SECONDS:-14400}"
bash tests/run.sh "${1:-*}"
status=$?
bash tests/run.sh check "${1:-*}" || status=1
exit $status
