#!/bin/sh
# next_step.sh - the message of a converter that could not finish names the option that helps, and the option works
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh

if ! ${CC:-cc} -D_GNU_SOURCE -shared -fPIC -o "$W/badio.so" tests/fault/shim/badio.c -ldl; then
    echo "no shared-object compiler: stops at chosen calls are not tested"
    finish
fi
shim="env LD_PRELOAD=$W/badio.so ASAN_OPTIONS=verify_asan_link_order=0 BADIO_URING=0"
"$TBIN/bench/mkckpt" --slim --layers 2 --steps 7 "$W/in" >/dev/null 2>&1 || exit 1
"$TBIN/bench/mkckpt" --slim --drift 4.input_layernorm.weight:fp32:1:5 "$W/drift" >/dev/null 2>&1 || exit 1
in=$W/in/global_step7

# helped NAME COMMAND: COMMAND IN OUT must name --resume after SIGINT or a disk failure, and --mem if memory is short.
helped() {
    name=$1
    shift
    check "$name" "$@" -q "$in" "$W/ref"
    check_exit "$name: stopped" 130 "stopped by a signal; $W/out.part was kept, --resume continues the conversion" \
        $shim BADIO=pwrite:3:stop "$@" -q "$in" "$W/out"
    check "$name: resumed" "$@" -q --resume "$in" "$W/out"
    check "$name: the same" diff -r "$W/ref" "$W/out"
    rm -r "$W/out"
    check_exit "$name: full disk" 1 "No space left on device; $W/out.part was kept, --resume continues the conversion" \
        $shim BADIO=pwrite:3+:28 "$@" -q "$in" "$W/out"
    check "$name: resumed on a free disk" "$@" -q --resume "$in" "$W/out"
    rm -r "$W/out"
    check_exit "$name: no memory" 1 "Cannot allocate memory; give a smaller --mem" \
        $shim BADIO=mmap:1+:12 "$@" -q "$in" "$W/out"
    check "$name: with less of it" "$@" -q --mem 8M -f "$in" "$W/out"
    rm -rf "$W"/out* "$W/ref"
}
# A file of IN that was replaced while no run was at work, by one of the same size and modification time (as `cp -p`
# restores it), is another input.
cp -rp "$in" "$W/repaired"
for tool in "reshape --target-tp 1" ds2universal export-hf; do
    check_exit "$tool: stopped before a repair" 130 "--resume continues the conversion" \
        $shim BADIO=pwrite:3:stop $tool -q "$W/repaired" "$W/out"
    cp -p "$in"/layer_01-model_00-model_states.pt "$W/repaired/"
    check_exit "$tool: resumed after a repair" 2 "from another input or with other options; --force starts from the beginning" \
        $tool -q --resume "$W/repaired" "$W/out"
    rm -rf "$W"/out*
done
helped reshape reshape --target-tp 1
helped merge-tp merge-tp
helped ds2universal ds2universal
helped export-hf export-hf

# Copies that drifted apart.
for tool in "reshape --target-tp 1" merge-tp ds2universal "ds2universal --format virtual"; do
    check_exit "$tool: drift" 1 "--replicas average, first or majority " $tool "$W/drift" "$W/out"
    check_exit "$tool: drift" 1 "--check lists the differences" $tool "$W/drift" "$W/out"
done
check_exit "the check" 1 "input_layernorm" merge-tp --check "$W/drift"
check "resolved" ds2universal --replicas average "$W/drift" "$W/out"
finish
