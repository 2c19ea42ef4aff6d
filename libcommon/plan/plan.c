/*
 * plan.c - the items of a plan, and the assignment of each byte of a record to the item that adds it to the record's
 * CRC
 *
 * For every item, plan_close() lists the runs that the item reads from records with a CRC. These runs are called
 * claims. The claims are sorted by record and offset, and processed once in this order:
 *
 *   record   |------------------------------------------|
 *   claims    [---- a ----]   [-- b --][--- d ---]
 *                                [-- c --]
 *   counted   aaaaaaaaaaaaa   bbbbbbbbbdddddddddd        c is inside b and the start of d
 *   gaps     g             ggg                   ggggggg
 *
 * A claim counts only the bytes after the end of all claims before it. Every byte is therefore counted once, and a
 * claim only needs to store where its counted bytes begin. Gaps become check-only items. In nearly all records no
 * claims overlap; for these no table is needed afterwards.
 */
#include "libcommon/plan/plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

struct claim {
    int record, item, slice;
    int place;                  /* rank of the record in the order of file names and offsets (rank_records()) */
    uint64_t slice_at;          /* offset of the claim's first byte in the slice; it distinguishes two reads of the
                                 * same item */
    uint64_t at, len;           /* range of bytes in the record */
    uint64_t skip;              /* number of bytes at the start that earlier claims count */
};

struct item {
    struct plan_item pub;
    struct plan_part *part;     /* sorted by place of the record */
    int n_parts;
    bool overlaps;              /* some bytes that the item reads are counted for another item */
};

struct record_state {
    struct crc_sum sum;
    bool touched;
    int place;
    int first_claim, n_claims;  /* range in p->claim; empty if no byte of the record is read twice */
};

/* The map of a check-only item that plan_close() has made. */
struct gap {
    struct tmap map;
    struct tmap_slice slice;
    char *name;
    struct gap *next;
};

struct plan {
    struct files *files;
    struct item **item;         /* array of pointers, so that an item keeps its address when items are added */
    int n_items, cap_items;
    struct plan_dst *dst;
    int n_dst, cap_dst;
    bool closed;
    bool no_gaps;               /* true: no check-only items are added for the bytes that no item reads */
    struct record_state *record;
    int n_records;
    /*
     * All claims until the end of plan_close(). After that, only the claims in records whose bytes are partly read
     * twice.
     */
    struct claim *claim;
    int n_claims, cap_claims;
    struct gap *gap;
};

struct plan *plan_new(struct files *f)
{
    struct plan *p = xcalloc(1, sizeof *p);

    p->files = f;
    return p;
}

void plan_free(struct plan *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_items; i++) {
        free(p->item[i]->pub.out);
        free(p->item[i]->part);
        free(p->item[i]);
    }
    for (int i = 0; i < p->n_dst; i++)
        free(p->dst[i].path);
    while (p->gap) {
        struct gap *g = p->gap;

        p->gap = g->next;
        free(g->slice.extent);
        free(g->name);
        free(g);
    }
    free(p->item);
    free(p->dst);
    free(p->record);
    free(p->claim);
    free(p);
}

struct files *plan_files(const struct plan *p)
{
    return p->files;
}

int plan_add_sized(struct plan *p, const char *path, uint64_t size)
{
    ARRAY_ROOM(p->dst, p->cap_dst, p->n_dst + 1);
    p->dst[p->n_dst] = (struct plan_dst){ xstrdup(path), size };
    return p->n_dst++;
}

int plan_add_dst(struct plan *p, const char *path)
{
    return plan_add_sized(p, path, 0);
}

static int append_plan_item(struct plan *p, struct plan_item pub)
{
    ARRAY_ROOM(p->item, p->cap_items, p->n_items + 1);
    p->item[p->n_items] = xcalloc(1, sizeof **p->item);
    p->item[p->n_items]->pub = pub;
    p->item[p->n_items]->pub.first_differ = UINT64_MAX;
    p->item[p->n_items]->pub.number = p->n_items;
    return p->n_items++;
}

int plan_add(struct plan *p, const struct plan_range *r, int dst, uint64_t dst_at)
{
    assert(!p->closed && dst < p->n_dst && r->from <= r->map->len && r->len <= r->map->len - r->from);
    return append_plan_item(p, (struct plan_item){ .map = r->map,
                                                   .from = r->from,
                                                   .len = r->len,
                                                   .dst = dst,
                                                   .dst_at = dst_at,
                                                   .policy = r->policy,
                                                   .name = r->name,
                                                   .user = r->user });
}

int plan_add_columns(struct plan *p, const struct plan_range *r, uint64_t part, const struct plan_out *out, int n_outs)
{
    int i = plan_add(p, r, -1, 0);
    struct plan_item *it = plan_item(p, i);

    assert(n_outs > 0 && part > 0 && r->len % (part * (uint64_t)n_outs) == 0);
    it->n_outs = n_outs;
    it->part = part;
    it->out = xmalloc((size_t)n_outs * sizeof *it->out);
    memcpy(it->out, out, (size_t)n_outs * sizeof *it->out);
    return i;
}

int plan_n(const struct plan *p)
{
    return p->n_items;
}

int plan_op_of(enum dtype from, enum dtype to)
{
    if (from == to)
        return PLAN_COPY;
    if (from == DTYPE_F32)
        return to == DTYPE_BF16 ? PLAN_F32_TO_BF16 : to == DTYPE_F16 ? PLAN_F32_TO_F16 : -1;
    if (from == DTYPE_BF16)
        return to == DTYPE_F32 ? PLAN_BF16_TO_F32 : to == DTYPE_F16 ? PLAN_BF16_TO_F16 : -1;
    if (from == DTYPE_F16)
        return to == DTYPE_F32 ? PLAN_F16_TO_F32 : to == DTYPE_BF16 ? PLAN_F16_TO_BF16 : -1;
    return -1;
}

struct plan_item *plan_item(struct plan *p, int i)
{
    return &p->item[i]->pub;
}

int plan_n_dst(const struct plan *p)
{
    return p->n_dst;
}

const struct plan_dst *plan_dst(const struct plan *p, int i)
{
    return &p->dst[i];
}

uint64_t plan_read_bytes(const struct plan *p)
{
    uint64_t sum = 0;

    for (int i = 0; i < p->n_items; i++) {
        const struct plan_item *it = &p->item[i]->pub;

        if (!it->done)
            sum += it->len * tmap_layers(it->map);
    }
    return sum;
}

uint64_t plan_write_bytes(const struct plan *p)
{
    uint64_t sum = 0;

    for (int i = 0; i < p->n_items; i++)
        if (!p->item[i]->pub.done && plan_writes(&p->item[i]->pub))
            sum += plan_out_bytes(&p->item[i]->pub, p->item[i]->pub.len);
    return sum;
}

/* ---- closing: claims, overlaps, gaps ---- */

struct ranked {
    int record;
    const char *file;
    uint64_t at;
};

static int by_file(const void *va, const void *vb)
{
    const struct ranked *a = va, *b = vb;
    int d = a->file == b->file ? 0 : strcmp(a->file, b->file);

    return d ? d
         : a->at != b->at ? (a->at > b->at) - (a->at < b->at) : (a->record > b->record) - (a->record < b->record);
}

/*
 * Set the place of each record, which is its rank in the order of file names and offsets. A journal refers to records
 * by their places, because a place is the same in every run. The number of a record differs between runs, because
 * several threads open files in an unpredictable order.
 */
static void rank_records(struct plan *p)
{
    struct ranked *r = xmalloc((size_t)p->n_records * sizeof *r);

    for (int i = 0; i < p->n_records; i++) {
        const struct record *rec = files_record(p->files, i);

        r[i] = (struct ranked){ .record = i, .file = files_name(p->files, rec->file), .at = rec->at };
    }
    if (p->n_records)
        qsort(r, (size_t)p->n_records, sizeof *r, by_file);
    for (int i = 0; i < p->n_records; i++)
        p->record[r[i].record].place = i;
    free(r);
}

/* Append the runs that item i reads to the claims. Adjacent runs are joined. */
static void claim_item(struct plan *p, int i)
{
    const struct plan_item *it = &p->item[i]->pub;
    struct claim *last = NULL;
    struct tmap_cursor c;
    struct tmap_piece pc;

    tmap_begin(&c, it->map, it->from, it->len, -1);
    while (tmap_next(&c, UINT64_MAX, &pc)) {
        if (!files_record(p->files, pc.src.record)->has_crc)
            continue;
        if (last && last->record == pc.src.record && last->slice == pc.slice &&
            last->slice_at + last->len == pc.at && last->at + last->len == pc.src.at) {
            last->len += pc.src.len;
            continue;
        }
        ARRAY_ROOM(p->claim, p->cap_claims, p->n_claims + 1);
        last = &p->claim[p->n_claims++];
        *last = (struct claim){ .record = pc.src.record, .place = p->record[pc.src.record].place, .item = i,
                                .slice = pc.slice, .slice_at = pc.at, .at = pc.src.at, .len = pc.src.len };
    }
}

static int cmp_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_reader(const void *va, const void *vb)
{
    const struct claim *a = va, *b = vb;

    return a->place != b->place ? (a->place > b->place) - (a->place < b->place)
         : a->item != b->item ? (a->item > b->item) - (a->item < b->item)
         : a->slice != b->slice ? (a->slice > b->slice) - (a->slice < b->slice)
         : cmp_u64(a->slice_at, b->slice_at);
}

static int compare_claims(const void *va, const void *vb)
{
    const struct claim *a = va, *b = vb;

    return a->place != b->place ? (a->place > b->place) - (a->place < b->place)
         : a->at != b->at ? cmp_u64(a->at, b->at) : by_reader(a, b);
}

static int by_record(const void *a, const void *b)
{
    int x = ((const struct plan_part *)a)->place, y = ((const struct plan_part *)b)->place;

    return (x > y) - (x < y);
}

/* List the records to which the claims [first, end) of item i refer, each record once. */
static void list_parts(struct plan *p, int i, int first, int end)
{
    struct item *it = p->item[i];
    int n = 0;

    if (first == end)
        return;
    it->part = xcalloc((size_t)(end - first), sizeof *it->part);
    for (int k = first; k < end; k++)
        it->part[k - first] = (struct plan_part){ .record = p->claim[k].record, .place = p->claim[k].place };
    qsort(it->part, (size_t)(end - first), sizeof *it->part, by_record);
    for (int k = 0; k < end - first; k++)
        if (n == 0 || it->part[n - 1].record != it->part[k].record)
            it->part[n++] = it->part[k];
    it->n_parts = n;
    it->part = xrealloc(it->part, (size_t)n * sizeof *it->part);
}

/*
 * Add bytes [at, end) of a record, which no item reads, to the record's check-only item. *g is the map of this item. If
 * *g is NULL, the record has no check-only item yet, and one is made.
 */
static void add_record_gap(struct plan *p, struct gap **g, int record, uint64_t at, uint64_t end)
{
    struct extent *x;

    if (at == end || p->no_gaps)
        return;
    if (!*g) {
        const struct record *r = files_record(p->files, record);

        *g = xcalloc(1, sizeof **g);
        (*g)->name = str_fmt("padding of %s in %s", r->name, files_name(p->files, r->file));
        (*g)->map = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_U8, .n_slices = 1, .slice = &(*g)->slice };
        (*g)->next = p->gap;
        p->gap = *g;
    }
    (*g)->slice.extent = xrealloc((*g)->slice.extent, (size_t)((*g)->slice.n_extents + 1) * sizeof *x);
    x = &(*g)->slice.extent[(*g)->slice.n_extents++];
    *x = (struct extent){ .record = record, .at = at, .len = end - at };
    (*g)->slice.len = (*g)->map.len += end - at;
}

/*
 * Process the claims of one record. They must be sorted by offset (see the drawing at the top). Returns true if any
 * claims overlap.
 */
static bool resolve_record_claims(struct plan *p, struct claim *c, int n)
{
    int record = c->record;
    uint64_t pos = 0, len = files_record(p->files, record)->len;
    struct gap *g = NULL;
    bool overlaps = false;

    p->record[record].touched = true;
    for (int k = 0; k < n; k++) {
        assert(c[k].at <= len && c[k].len <= len - c[k].at);
        if (c[k].at > pos)
            add_record_gap(p, &g, record, pos, c[k].at);
        if (c[k].at < pos) {
            c[k].skip = min_u64(pos - c[k].at, c[k].len);
            p->item[c[k].item]->overlaps = overlaps = true;
        }
        pos = max_u64(pos, c[k].at + c[k].len);
    }
    add_record_gap(p, &g, record, pos, len);
    if (g) {
        int i =
            append_plan_item(p, (struct plan_item){ .map = &g->map, .len = g->map.len, .dst = -1, .name = g->name });

        p->item[i]->part = xcalloc(1, sizeof *p->item[i]->part);
        p->item[i]->part->record = record;
        p->item[i]->part->place = p->record[record].place;
        p->item[i]->n_parts = 1;
    }
    return overlaps;
}

void plan_close(struct plan *p)
{
    int kept = 0;

    assert(!p->closed);
    p->closed = true;
    p->n_records = files_n_records(p->files);
    p->record = xcalloc((size_t)p->n_records + 1, sizeof *p->record);
    rank_records(p);
    for (int i = 0; i < p->n_items; i++) {
        int first = p->n_claims;

        claim_item(p, i);
        list_parts(p, i, first, p->n_claims);
    }
    if (p->n_claims)
        qsort(p->claim, (size_t)p->n_claims, sizeof *p->claim, compare_claims);
    for (int k = 0, n; k < p->n_claims; k += n) {
        struct record_state *r = &p->record[p->claim[k].record];

        for (n = 1; k + n < p->n_claims && p->claim[k + n].record == p->claim[k].record; n++)
            ;
        if (!resolve_record_claims(p, p->claim + k, n))
            continue;
        qsort(p->claim + k, (size_t)n, sizeof *p->claim, by_reader);
        memmove(p->claim + kept, p->claim + k, (size_t)n * sizeof *p->claim);
        r->first_claim = kept;
        r->n_claims = n;
        kept += n;
    }
    p->n_claims = p->cap_claims = kept;
    p->claim = xrealloc(p->claim, (size_t)max_u64((uint64_t)kept, 1) * sizeof *p->claim);
}

void plan_close_parts(struct plan *p)
{
    p->no_gaps = true;
    plan_close(p);
}

/* ---- sums of records ---- */

bool plan_counts_all(const struct plan *p, int i)
{
    return !p->item[i]->overlaps;
}

/* Returns the claim of item i that contains this piece. The record of the piece must have overlapping claims. */
static const struct claim *find_claim(const struct plan *p, int i, const struct tmap_piece *pc)
{
    const struct record_state *r = &p->record[pc->src.record];
    const struct claim want = { .place = r->place, .item = i, .slice = pc->slice, .slice_at = pc->at };
    int lo = r->first_claim, hi = lo + r->n_claims;

    /* Search for the last claim that begins at or before the start of the piece. */
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;

        if (by_reader(&p->claim[mid], &want) <= 0)
            lo = mid;
        else
            hi = mid;
    }
    return &p->claim[lo];
}

uint64_t plan_counted(const struct plan *p, int i, const struct tmap_piece *pc, uint64_t skip, bool *counts)
{
    const struct claim *c;
    uint64_t in_claim;

    if (!files_record(p->files, pc->src.record)->has_crc) {
        *counts = false;
        return pc->src.len - skip;
    }
    *counts = true;
    if (p->record[pc->src.record].n_claims == 0)
        return pc->src.len - skip;
    c = find_claim(p, i, pc);
    in_claim = pc->src.at + skip - c->at;
    if (in_claim >= c->skip)
        return pc->src.len - skip;
    *counts = false;
    return min_u64(c->skip - in_claim, pc->src.len - skip);
}

struct crc_sum *plan_record_sum(struct plan *p, int record)
{
    assert(p->closed);
    return &p->record[record].sum;
}

struct plan_part *plan_item_parts(struct plan *p, int i, int *n)
{
    *n = p->item[i]->n_parts;
    return p->item[i]->part;
}

/*
 * Returns the name of the first item that reads the record. (The last item is not used, because it differs between
 * runs.)
 */
static const char *reader_of(const struct plan *p, int record)
{
    const struct plan_part want = { .place = p->record[record].place };

    for (int i = 0; i < p->n_items; i++) {
        const struct item *it = p->item[i];

        if (it->n_parts && bsearch(&want, it->part, (size_t)it->n_parts, sizeof want, by_record))
            return it->pub.name;
    }
    return NULL;
}

static int check_record_sum(const struct plan *p, int record, struct err *e)
{
    const uint32_t crc = p->record[record].sum.acc;
    const char *reader = crc != files_record(p->files, record)->crc ? reader_of(p, record) : NULL;

    return files_compare_crc(p->files, record, crc, reader, e);
}

int plan_record_add(struct plan *p, int i, const struct extent *x, uint32_t crc, struct err *e)
{
    struct item *it = p->item[i];
    struct record_state *rec = &p->record[x->record];
    struct plan_part *part = bsearch(&(struct plan_part){ .place = rec->place }, it->part, (size_t)it->n_parts,
                                     sizeof *part, by_record);
    uint64_t total = files_record(p->files, x->record)->len;
    uint32_t shifted = crc_shift(crc, total - x->at - x->len);

    crc_sum_merge(&part->sum, x->len, shifted);
    if (crc_sum_merge(&rec->sum, x->len, shifted) != total)
        return 0;
    return check_record_sum(p, x->record, e);
}

int plan_check_records(struct plan *p, struct err *e)
{
    for (int i = 0; i < p->n_records; i++) {
        const struct record *r = files_record(p->files, i);

        if (!p->record[i].touched)
            continue;
        if (p->record[i].sum.seen != r->len) {
            err_data(e, files_name(p->files, r->file), r->at, "record %s: %llu of %llu bytes were checked", r->name,
                     (unsigned long long)p->record[i].sum.seen, (unsigned long long)r->len);
            return -1;
        }
        if (check_record_sum(p, i, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- a plan that several processes share ---- */

/* Returns the records from which items read, sorted by place. The caller frees the array. */
static int *touched_records(const struct plan *p, int *n)
{
    int *at = xmalloc(((size_t)p->n_records + 1) * sizeof *at);

    for (int i = 0; i < p->n_records; i++)
        at[p->record[i].place] = i;
    *n = 0;
    for (int k = 0; k < p->n_records; k++)
        if (p->record[at[k]].touched)
            at[(*n)++] = at[k];
    return at;
}

uint32_t plan_mark(const struct plan *p, const char *root)
{
    int n, *record = touched_records(p, &n);
    uint32_t crc = 0;

    for (int i = 0; i < p->n_items; i++) {
        const struct plan_item *it = &p->item[i]->pub;
        const uint64_t fields[] = { it->map->len, it->from, it->len, (uint64_t)it->op };

        crc = crc_bytes(crc, fields, sizeof fields);
    }
    for (int k = 0; k < n; k++) {
        const struct record *r = files_record(p->files, record[k]);
        const uint64_t fields[] = { (uint64_t)p->record[record[k]].place, r->at, r->len, r->crc };
        const char *name = files_name(p->files, r->file);

        if (str_starts(name, root))
            name += strlen(root);
        crc = crc_bytes(crc_bytes(crc, fields, sizeof fields), name, strlen(name));
    }
    free(record);
    return crc;
}

int plan_seen(const struct plan *p, struct plan_seen *out)
{
    int n, *record = touched_records(p, &n);

    for (int k = 0; out && k < n; k++) {
        const struct crc_sum *sum = &p->record[record[k]].sum;

        out[k] = (struct plan_seen){ sum->seen, sum->acc };
    }
    free(record);
    return n;
}

int plan_seen_add(struct plan *p, const struct plan_seen *other, struct err *e)
{
    int n, *record = touched_records(p, &n), rc = 0;

    for (int k = 0; k < n && rc == 0; k++)
        if (other[k].bytes && crc_sum_merge(&p->record[record[k]].sum, other[k].bytes, (uint32_t)other[k].acc) ==
                                  files_record(p->files, record[k])->len)
            rc = check_record_sum(p, record[k], e);
    free(record);
    return rc;
}
