/*
 * Any bytes as a .safetensors file: an error with a byte, or tensors that fill the file
 * without gap, each found by its name.
 */
#include <stdlib.h>

#include "libcommon/format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct files *f = files_new();
    struct err e = {0};
    struct safetensors *st = safetensors_open(f, files_add_mem(f, bytes, size, "fuzz"), &e);
    uint64_t at = st ? 8 + safetensors_header_bytes(st) : 0;

    require(st || e.kind == ERR_DATA);
    for (int i = 0; st && i < safetensors_n(st); i++) {
        const struct safetensors_tensor *t = safetensors_tensor(st, i);

        require(t->at == at && safetensors_find(st, t->name) == t);
        at += t->len;
    }
    require(!st || at == size);
    safetensors_close(st);
    files_free(f);
    return 0;
}
