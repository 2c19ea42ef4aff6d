/* zip_layout.c - compute where this project's writer puts the records of a zip, and the bytes around them */
#include "libcommon/format/zip.h"

#include <stdlib.h>

#include "libcommon/format/zip_bytes.h"

struct zip_layout {
    struct zip_out *record;             /* the caller's array */
    int n;
    uint64_t *header_at;
    uint64_t dir_at, dir_size, size;
    struct strbuf bytes;                /* the bytes of all runs, one run after the other */
    struct zip_run *run;
};

static struct zip_item zip_layout_item(const struct zip_layout *l, int i)
{
    const struct zip_out *r = &l->record[i];

    return (struct zip_item){ .name = r->name, .size = r->size, .header_at = l->header_at[i], .crc = r->crc };
}

/*
 * Compute the offsets of the records. The headers are built once to get their lengths, which do not depend on the CRCs.
 */
struct zip_layout *zip_layout_new(struct zip_out *records, int n)
{
    struct zip_layout *l = xcalloc(1, sizeof *l);
    struct strbuf sb = {0};
    uint64_t at = 0;

    l->record = records;
    l->n = n;
    l->header_at = xcalloc((size_t)n + 1, sizeof *l->header_at);
    l->run = xcalloc((size_t)n + 1, sizeof *l->run);
    for (int i = 0; i < n; i++) {
        struct zip_item it;

        l->header_at[i] = at;
        it = zip_layout_item(l, i);
        sb.len = 0;
        zip_put_local(&sb, ZIP_SHARDKIT, &it);
        records[i].at = at + sb.len;
        at = records[i].at + records[i].size;
    }
    l->dir_at = at;
    sb.len = 0;
    for (int i = 0; i < n; i++) {
        struct zip_item it = zip_layout_item(l, i);

        zip_put_central(&sb, ZIP_SHARDKIT, &it);
    }
    l->dir_size = sb.len;
    zip_put_end(&sb, ZIP_SHARDKIT, (uint64_t)n, l->dir_at, l->dir_size);
    l->size = l->dir_at + sb.len;
    strbuf_free(&sb);
    return l;
}

void zip_layout_free(struct zip_layout *l)
{
    if (!l)
        return;
    strbuf_free(&l->bytes);
    free(l->header_at);
    free(l->run);
    free(l);
}

uint64_t zip_layout_size(const struct zip_layout *l)
{
    return l->size;
}

int zip_layout_runs(struct zip_layout *l, const struct zip_run **runs)
{
    uint64_t used = 0;

    l->bytes.len = 0;
    for (int i = 0; i <= l->n; i++) {
        size_t before = l->bytes.len;

        if (i < l->n) {
            struct zip_item it = zip_layout_item(l, i);

            zip_put_local(&l->bytes, ZIP_SHARDKIT, &it);
            l->run[i].at = it.header_at;
        } else {
            for (int k = 0; k < l->n; k++) {
                struct zip_item it = zip_layout_item(l, k);

                zip_put_central(&l->bytes, ZIP_SHARDKIT, &it);
            }
            zip_put_end(&l->bytes, ZIP_SHARDKIT, (uint64_t)l->n, l->dir_at, l->dir_size);
            l->run[i].at = l->dir_at;
        }
        l->run[i].len = l->bytes.len - before;
    }
    /* l->bytes may have moved in memory while it grew, so the addresses of the runs are set only now. */
    for (int i = 0; i <= l->n; i++) {
        l->run[i].bytes = (const uint8_t *)l->bytes.buf + used;
        used += l->run[i].len;
    }
    *runs = l->run;
    return l->n + 1;
}
