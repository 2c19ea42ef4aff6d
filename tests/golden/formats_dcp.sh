#!/bin/sh
# formats_dcp.sh - every tensor and value of torch.distributed.checkpoint and torch_dist checkpoints written by torch,
# compared with torch's own list
#
# The inputs are tests/data/dcp and torchdist, and if $FORMATS is set its folders dcp-* and torchdist-*, each with
# expected.json. Needs a Python.
cd "$(dirname "$0")/../.." && . tests/fault/lib.sh && . tests/lib/python.sh
need_python json "a json module"
script=tests/golden/forms/dcp_check.py

for folder in tests/data/dcp/* tests/data/torchdist/* ${FORMATS:+"$FORMATS"/dcp-* "$FORMATS"/torchdist-*}; do
    ckpt=$(echo "$folder"/ckpt "$folder"/iter_*)        # one of them is there
    ckpt=${ckpt% */iter_\*} ckpt=${ckpt#*/ckpt }
    check "$folder: cat" "$python" "$script" cat ckpt-inspect "$ckpt" "$folder/expected.json"
    check "$folder: verify" ckpt-inspect verify --strict "$ckpt"
    check "$folder: no difference to itself" ckpt-inspect diff "$ckpt" "$ckpt"
done
tar -cf "$W/x.tar" -C tests/data/dcp/mesh ckpt
check "in an archive" "$python" "$script" cat ckpt-inspect "$W/x.tar" tests/data/dcp/mesh/expected.json
finish
