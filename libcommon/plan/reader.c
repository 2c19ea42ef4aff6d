/*
 * reader.c - tmap_read() with combined copies, and with CRC checks as long as reads are in order
 *
 * A plan of one item records the bytes of each record that have been read, and their CRC so far. A read that does not
 * begin where the previous one ended frees the plan, because a byte that is counted twice would spoil the sum.
 */
#include "libcommon/plan/reader.h"

#include <stdlib.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"

struct reader {
    const struct tmap *map;
    struct files *files;
    enum replica_policy policy;
    struct plan *plan;          /* NULL: reads are no longer in order */
    uint64_t next;              /* number of bytes that were read in order */
    uint32_t crc;               /* CRC of those bytes */
};

struct reader *reader_new(const struct tmap *m, struct files *f, enum replica_policy policy)
{
    struct reader *r = xcalloc(1, sizeof *r);

    r->map = m;
    r->files = f;
    r->policy = policy;
    r->plan = plan_new(f);
    plan_add(r->plan, &(struct plan_range){ .map = m, .len = m->len, .policy = policy }, -1, 0);
    plan_close_parts(r->plan);
    return r;
}

void reader_free(struct reader *r)
{
    if (!r)
        return;
    plan_free(r->plan);
    free(r);
}

/* Callback for the bytes of one piece: add each byte that is counted to its record's CRC. */
static int seen(void *ctx, const struct tmap_piece *pc, const void *bytes, struct err *e)
{
    struct reader *r = ctx;
    uint64_t n;

    if (!r->plan)
        return 0;
    for (uint64_t skip = 0; skip < pc->src.len; skip += n) {
        struct extent x;
        bool counts;

        n = plan_counted(r->plan, 0, pc, skip, &counts);
        x = (struct extent){ pc->src.record, pc->src.at + skip, n };
        if (counts && plan_record_add(r->plan, 0, &x, crc_bytes(0, (const uint8_t *)bytes + skip, n), e) < 0)
            return -1;
    }
    return 0;
}

/* Read all copies and combine them into buf. */
static int read_combined_copies(struct reader *r, uint64_t from, uint64_t len, void *buf, struct err *e)
{
    int n = r->map->n_slices, rc = 0;
    const void **copy = xcalloc((size_t)n, sizeof *copy);
    uint8_t *bytes = xmalloc((size_t)n * len);
    struct tmap_watch watch = { seen, r };

    for (int k = 0; k < n && rc == 0; k++) {
        copy[k] = bytes + (uint64_t)k * len;
        rc = tmap_read_seen(r->map, r->files, (struct tmap_range){ k, from, len }, bytes + (uint64_t)k * len, &watch,
                            e);
    }
    if (rc == 0 && replicas_combine(copy, n, len, r->map->dtype, r->policy, buf) > 0 && r->policy == REPLICAS_FAIL) {
        const struct record *rec = files_record(r->files, r->map->slice[0].extent[0].record);

        err_data(e, files_name(r->files, rec->file), rec->at + r->map->slice[0].extent[0].at,
                 "the %d tensor-parallel copies disagree; " REPLICAS_NEXT_STEP, n);
        rc = -1;
    }
    free(copy);
    free(bytes);
    return rc;
}

int reader_read(struct reader *r, uint64_t from, uint64_t len, void *buf, struct err *e)
{
    /* True if there is nothing to combine. tmap_read_seen() adds the parts of a sum itself. */
    bool alone = r->map->op != TMAP_REPLICAS || r->map->n_slices == 1 || r->policy == REPLICAS_FIRST;
    struct tmap_watch watch = { seen, r };
    int rc;

    if (from != r->next) {
        plan_free(r->plan);
        r->plan = NULL;
    }
    rc = alone ? tmap_read_seen(r->map, r->files, (struct tmap_range){ 0, from, len }, buf, &watch,
                                e) : read_combined_copies(r, from, len, buf, e);
    if (rc == 0 && r->plan) {
        r->crc = crc_bytes(r->crc, buf, len);
        r->next += len;
    }
    return rc;
}

bool reader_crc(const struct reader *r, uint32_t *crc)
{
    *crc = r->crc;
    return r->plan && r->next == r->map->len;
}
