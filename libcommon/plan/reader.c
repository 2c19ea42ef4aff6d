/*
 * reader.c - read a tensor with tmap_read(), combine copies, and check CRCs
 *
 * reader_new() lists the records in which the range lies. A record is `covered` if each of its bytes is in the range
 * exactly once; the CRCs of its pieces are then added up while they are read. All other records are checked before the
 * first read. If a read does not begin where the previous one ended, CRCs are no longer added up, and all records are
 * checked.
 */
#include "libcommon/plan/reader.h"

#include <stdlib.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"

struct reader_record {
    int record;
    bool covered;
    uint64_t at, len;           /* the range of bytes in the record; contiguous if `covered` */
    struct crc_sum sum;         /* CRC of the bytes that were read from it */
};

struct reader {
    const struct tmap *map;
    struct files *files;
    enum replica_policy policy;
    struct reader_record *rec;  /* [n_rec], sorted by record number */
    int n_rec, cap_rec;
    bool checked;               /* all records that are not covered have been checked */
    bool in_order;              /* every read so far began where the previous one ended */
    uint64_t next;              /* offset at which the next read begins if reads are in order */
    uint64_t from;
    uint32_t crc;               /* CRC of the bytes that were read so far, in order */
};

/* Returns true if slice 0 alone has the values, so that no slices need to be combined. */
static bool reads_one_slice(const struct tmap *m, enum replica_policy policy)
{
    return m->op == TMAP_REPLICAS && (m->n_slices == 1 || policy == REPLICAS_FIRST);
}

/* ---- the records of the range ---- */

static int compare_records(const void *va, const void *vb)
{
    const struct reader_record *a = va, *b = vb;

    return (a->record > b->record) - (a->record < b->record);
}

static int compare_runs(const void *va, const void *vb)
{
    const struct reader_record *a = va, *b = vb;
    const int order = compare_records(va, vb);

    return order ? order : (a->at > b->at) - (a->at < b->at);
}

/* Append the runs of bytes that lie in records which have a CRC and have not been checked. Adjacent runs are joined. */
static void list_runs(struct reader *r, uint64_t from, uint64_t len)
{
    struct reader_record *last = NULL;
    struct tmap_cursor c;
    struct tmap_piece pc;

    tmap_begin(&c, r->map, from, len, reads_one_slice(r->map, r->policy) ? 0 : -1);
    while (tmap_next(&c, UINT64_MAX, &pc)) {
        if (files_is_checked(r->files, pc.src.record))
            continue;
        if (last && last->record == pc.src.record && last->at + last->len == pc.src.at) {
            last->len += pc.src.len;
            continue;
        }
        ARRAY_ROOM(r->rec, r->cap_rec, r->n_rec + 1);
        last = &r->rec[r->n_rec++];
        *last = (struct reader_record){ .record = pc.src.record, .at = pc.src.at, .len = pc.src.len };
    }
}

/* Join the runs of each record, and mark the records that they cover. */
static void join_runs(struct reader *r)
{
    int n = 0;

    if (r->n_rec)
        qsort(r->rec, (size_t)r->n_rec, sizeof *r->rec, compare_runs);
    for (int i = 0; i < r->n_rec; n++) {
        struct reader_record x = r->rec[i++];

        for (x.covered = true; i < r->n_rec && r->rec[i].record == x.record; i++) {
            x.covered = x.covered && r->rec[i].at == x.at + x.len;
            x.len += r->rec[i].len;
        }
        x.covered = x.covered && x.at == 0 && x.len == files_record(r->files, x.record)->len;
        r->rec[n] = x;
    }
    r->n_rec = n;
}

struct reader *reader_new(const struct tmap *m, struct files *f, enum replica_policy policy, uint64_t from,
                          uint64_t len)
{
    struct reader *r = xcalloc(1, sizeof *r);

    r->map = m;
    r->files = f;
    r->policy = policy;
    r->in_order = true;
    r->from = r->next = from;
    list_runs(r, from, len);
    join_runs(r);
    return r;
}

void reader_free(struct reader *r)
{
    if (!r)
        return;
    free(r->rec);
    free(r);
}

/* ---- reading ---- */

/* Check the records that the reads do not cover. If the reads were not in order, check all records. */
static int check_records(struct reader *r, struct err *e)
{
    for (int i = 0; i < r->n_rec; i++)
        if ((!r->in_order || !r->rec[i].covered) && files_check_record(r->files, r->rec[i].record, e) < 0)
            return -1;
    r->checked = true;
    return 0;
}

/* Called for the bytes of each piece. If the record of the piece is covered, the bytes are added to its CRC. */
static int seen(void *ctx, const struct tmap_piece *pc, const void *bytes, struct err *e)
{
    struct reader *r = ctx;
    const struct reader_record want = { .record = pc->src.record };
    struct reader_record *x;
    uint64_t total;

    if (!r->in_order || !r->n_rec)
        return 0;
    x = bsearch(&want, r->rec, (size_t)r->n_rec, sizeof *x, compare_records);
    if (!x || !x->covered)
        return 0;
    total = files_record(r->files, x->record)->len;
    crc_sum_add(&x->sum, total, pc->src.at, pc->src.len, crc_bytes(0, bytes, pc->src.len));
    return x->sum.seen == total ? files_compare_crc(r->files, x->record, x->sum.acc, NULL, e) : 0;
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
                 "the %d tensor-parallel copies differ; " REPLICAS_NEXT_STEP, n);
        rc = -1;
    }
    free(copy);
    free(bytes);
    return rc;
}

int reader_read(struct reader *r, uint64_t from, uint64_t len, void *buf, struct err *e)
{
    /* If the map is a sum, tmap_read_seen() itself adds the parts. */
    const bool combine = r->map->op == TMAP_REPLICAS && !reads_one_slice(r->map, r->policy);
    struct tmap_watch watch = { seen, r };
    int rc;

    if (from != r->next && r->in_order) {
        r->in_order = false;
        r->checked = false;
    }
    if (!r->checked && check_records(r, e) < 0)
        return -1;
    rc = combine ? read_combined_copies(r, from, len, buf, e)
       : tmap_read_seen(r->map, r->files, (struct tmap_range){ 0, from, len }, buf, &watch, e);
    if (rc == 0 && r->in_order) {
        r->crc = crc_bytes(r->crc, buf, len);
        r->next += len;
    }
    return rc;
}

bool reader_crc(const struct reader *r, uint32_t *crc)
{
    *crc = r->crc;
    return r->in_order && r->from == 0 && r->next == r->map->len;
}
