/*
 * Any bytes as the .metadata of torch.distributed.checkpoint: an error with a byte, or tables whose places are plain
 * files and whose sizes can be multiplied; written and read again they are as many.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dcp/dcp_names.h"
#include "libcommon/layout/dcp/dcp_write.h"
#include "libcommon/layout/layouts.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void check_entry(const struct dcp_entry *en)
{
    uint64_t bytes = (uint64_t)dtype_size(en->dtype);

    require(en->name && *en->name && en->ndim >= 0 && en->ndim <= TENSOR_MAX_DIM && en->n_chunks >= 0);
    for (int d = 0; en->is_tensor && d < en->ndim; d++)
        require(en->shape[d] >= 0 && mul_u64(bytes, en->shape[d] ? (uint64_t)en->shape[d] : 1, &bytes));
    for (int k = 0; k < en->n_chunks; k++) {
        const char *file = en->chunk[k].place.file;

        require(!file || (*file && !strchr(file, '/') && strcmp(file, "..") != 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct arena *a = arena_new(0);
    struct report *r = report_new(), *again = report_new();
    struct dcp_table t, u;
    struct strbuf sb = {0};
    struct err e = {0};
    struct source s = { .layout = &dcp_layout, .arena = a, .path = "fuzz" };
    struct dcp_naming naming = { .s = &s, .table = &t, .path = "fuzz" };

    if (dcp_metadata_read(a, &(struct dcp_pickle){ "fuzz", bytes, size, NULL, "" }, &t, r, &e) < 0) {
        require(e.kind == ERR_DATA);
        goto out;
    }
    for (int i = 0; i < t.n; i++)
        check_entry(&t.entry[i]);
    naming.role = arena_alloc(a, ((size_t)t.n + 1) * sizeof *naming.role);
    require(dcp_names_assign(&naming, r, &e) == 0);
    if (report_count(r, SEV_ERROR))
        goto out;
    dcp_metadata_write(&t, NULL, &sb);
    require(dcp_metadata_read(a, &(struct dcp_pickle){ "again", sb.buf, sb.len, NULL, "" }, &u, again, &e) == 0);
    require(u.n == t.n && report_count(again, SEV_ERROR) == 0);
out:
    strbuf_free(&sb);
    report_free(r);
    report_free(again);
    arena_free(a);
    return 0;
}
