#!/bin/sh
# first_steps.sh - the commands of a new user, from an empty Python environment to safetensors for a server, with times
#
# Prints a table of the seconds and the command of each step, and their sums: with pip, and with uvx where uv is on PATH.
# The wheel is that of this machine in dist (`make release DEB=0`); WHEEL names another. SET (tests/data/bloom-tp2pp2dp2)
# is the checkpoint, MODEL the form that the server reads. Nothing is downloaded: the wheel needs no other package.
# Needs venv with pip.
export LC_ALL=C
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh || exit 1
wheel=${WHEEL:-$(find "$PWD/dist" -maxdepth 1 -name "shardkit-*_$(uname -m).whl" 2>/dev/null | head -n 1)}
set_=${SET:-$PWD/tests/data/bloom-tp2pp2dp2}

[ -n "$wheel" ] || skip "first_steps: no wheel in dist: make release DEB=0"
python3 -c 'import ensurepip, venv' 2>/dev/null || skip "first_steps: no venv with pip (python3-venv)"
mkdir "$W/home" "$W/user"
ln -s "$(realpath "$set_")" "$W/user/run"
ln -s "$(realpath "$wheel")" "$W/user/${wheel##*/}"

# Run a command in the user's folder, with no program of this repository on PATH, and print the time it took.
step() { # NAME SHOWN-COMMAND COMMAND...
    name=$1 shown=$2
    shift 2
    begin=$(date +%s%N)
    check "$name" env -i -C "$W/user" HOME="$W/home" PATH="$W/user/env/bin:/usr/local/bin:/usr/bin:/bin" LC_ALL=C "$@"
    ms=$((($(date +%s%N) - begin) / 1000000))
    sum=$((sum + ms)) commands=$((commands + 1))
    printf '  %4d.%02d s  %s\n' $((ms / 1000)) $((ms % 1000 / 10)) "$shown"
    cp "$W/log" "$W/$name.text"
}
reached() { printf '  %4d.%02d s  = %s, %d commands\n' $((sum / 1000)) $((sum % 1000 / 10)) "$1" $commands; }

# The server's reader needs the header of safetensors: its length, and JSON whose offsets end where the file ends.
is_model() {
    python3 - "$1/model.safetensors" "$1/config.json" <<'PYTHON'
import json
import os
import sys
with open(sys.argv[1], "rb") as f:
    n = int.from_bytes(f.read(8), "little")
    tensors = {k: v for k, v in json.loads(f.read(n)).items() if k != "__metadata__"}
assert tensors and 8 + n + max(t["data_offsets"][1] for t in tensors.values()) == os.path.getsize(sys.argv[1])
assert json.load(open(sys.argv[2]))["model_type"]
PYTHON
}

# ---- pip -----------------------------------------------------------------------------

sum=0 commands=0
echo "with pip, $(du -shL "$wheel" | cut -f 1) wheel, checkpoint of $(du -shL "$set_" | cut -f 1):"
step environment "python3 -m venv env && . env/bin/activate" python3 -m venv env
step install "pip install ${wheel##*/}" pip install -q --no-index "./${wheel##*/}"
step verify "shardkit verify run" shardkit verify run
check "verify says that the set is sound" grep -q '^verified .*: sound$' "$W/verify.text"
reached verified
step convert "shardkit convert run --to hf model" shardkit convert run --to hf model
check "a server's reader can open the model" is_model "$W/user/model"
reached "safetensors for a server"
step module "python3 -c 'import shardkit; ...'" python3 -c '
import shardkit
with shardkit.open("run") as ck:
    assert len(ck) > 0 and all(name for name in ck)
assert shardkit.verify("run").sound'
reached "tensors in Python"

# ---- uv ------------------------------------------------------------------------------

if command -v uvx >/dev/null; then
    sum=0 commands=0
    rm -rf "$W/user/env"
    uvx=$(command -v uvx)
    echo "with uv $("$uvx" --version | cut -d ' ' -f 2), an empty cache:"
    step "uvx inspect" "uvx --from ${wheel##*/} shardkit inspect run" "$uvx" --offline --no-config -q --from "./${wheel##*/}" \
        shardkit inspect run
    check "uvx: inspect describes the set" grep -q '^run' "$W/uvx inspect.text"
    step "uvx verify" "uvx --from ${wheel##*/} shardkit verify run" "$uvx" --offline --no-config -q --from "./${wheel##*/}" \
        shardkit verify run
    check "uvx: the set is sound" grep -q '^verified .*: sound$' "$W/uvx verify.text"
    reached verified
    step "uvx convert" "uvx --from ${wheel##*/} shardkit convert run --to hf model-uv" "$uvx" --offline --no-config -q \
        --from "./${wheel##*/}" shardkit convert run --to hf model-uv
    check "uvx: the same model" cmp "$W/user/model/model.safetensors" "$W/user/model-uv/model.safetensors"
    reached "safetensors for a server"
else
    echo "skipped: uvx: no uv on PATH"
fi
finish
