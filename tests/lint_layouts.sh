#!/bin/sh
# lint_layouts.sh - only libcommon/layout and libcommon/ckpt know which layouts there are
#
# Elsewhere code decides by what is true of an opened checkpoint (ckpt/source_facts.h), and `struct layout` is opaque.
# Prints each line that names a layout, an enumerator of layouts, or a member of struct source that only some layouts
# fill, that reads or compares the member `layout`, or that includes ckpt/layout.h, and exits 1.
cd "$(dirname "$0")/.." || exit 1
layouts='deepspeed|zero|universal_pt|universal_hdf5|universal_virtual|hf|hfstorage|dcp|torchdist|fsdp|megatron|dsmoe'
found=$(grep -rnE --include='*.[ch]' --include='*.cu' --include='*.cuh' \
             -e "&($layouts)_layout([^a-z0-9_]|$)" -e '(^|[^A-Z_])LAYOUT_[A-Z]+([^A-Z_0-9]|$)' -e '[a-z]->dcp[^a-z_]' \
             -e '(^|[^a-z_])(s|src|source|like|from|[ab])->zero_(stage|root|stage_1)([^a-z0-9_]|$)' \
             -e '->(n_models|groups_by_settings)([^a-z_]|$)' -e '->layout(->| *[!=]=)' \
             -e '(^|[^a-z_])source_(is_from_zero|zero_stage)\(' -e 'str(n|case)?cmp\([^;]*source_layout_name' \
             -e '^#include "libcommon/ckpt/layout\.h"' -e '^struct layout \{' \
             libcommon/api libcommon/base libcommon/check libcommon/cli libcommon/comm libcommon/plan libcommon/tokens \
             libcommon/write kernels tools tests/lib)
[ -z "$found" ] && exit 0
echo "$found" >&2
echo "lint: a layout is named outside of libcommon/layout and libcommon/ckpt" >&2
exit 1
