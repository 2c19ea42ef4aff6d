/*
 * gather.c - hash and reorder bytes in one pass, while they are in the cache
 */
#include "libcommon/plan/gather.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/elements.h"
#include "libcommon/plan/stats.h"

/*
 * Runs of an interleaved or boxed tensor are hashed and copied in one pass if they have at least MIN_FUSED_RUN bytes.
 * The CRC of each run is then shifted to its position in the record and in the item, which takes two products (22 ns).
 * For shorter runs, two passes over blocks that fit in the cache are faster.
 */
enum { MIN_FUSED_RUN = 1024, CACHE_BYTES = 32768 };

static uint64_t slice_run_bytes(const struct tmap_slice *s)
{
    return s->box ? s->box->level[s->box->n - 1].len : s->row_part;
}

void gather_begin(struct gather *g)
{
    const struct tmap *m = g->item->map;

    g->hash_output = tmap_layers(m) > 1 || g->item->op != PLAN_COPY ||
                     g->item->transpose_row;
    if (!tmap_scatters(m))
        return;
    g->hash_output |= !plan_counts_all(g->plan, g->item_no);
    for (int k = 0; k < m->n_slices; k++)
        if (slice_run_bytes(&m->slice[k]) < MIN_FUSED_RUN)
            g->hash_output = true;
}

bool gather_needs_output(const struct gather *g)
{
    return g->hash_output || tmap_scatters(g->item->map);
}

/* Add the CRC of bytes [at, at+len) of the chunk's output, which is `crc`, to the CRC of the item. */
static void add_to_item(const struct gather *g, uint64_t at, uint64_t len, uint32_t crc)
{
    const struct plan_item *it = g->item;

    crc_sum_add(&g->item->crc, plan_out_bytes(it, it->len), plan_out_bytes(it, g->from - it->from) + at, len, crc);
}

static int add_to_record(const struct gather *g, const struct tmap_piece *pc, uint64_t skip, uint64_t len,
                         uint32_t crc, struct err *e)
{
    const struct extent x = { pc->src.record, pc->src.at + skip, len };

    if (plan_record_add(g->plan, g->item_no, &x, crc, e) == 0)
        return 0;
    if (!g->report)
        return -1;
    report_add_err(g->report, "crc", e);
    return 0;
}

/*
 * Hash n bytes at src. If dst is not NULL, also copy them to dst. Invalid values are counted while the bytes are in the
 * cache.
 */
static uint32_t hash_run(const struct gather *g, uint8_t *dst, const uint8_t *src, uint64_t n)
{
    struct plan_item *it = g->item;
    struct values v = {0};
    uint32_t crc = 0;

    if (it->values == PLAN_VALUES_NONE)
        return dst ? crc_copy(0, dst, src, n) : crc_bytes(0, src, n);
    for (uint64_t at = 0, k; at < n; at += k) {
        k = min_u64(CACHE_BYTES, n - at);
        crc = dst ? crc_copy(crc, dst + at, src + at, k) : crc_bytes(crc, src + at, k);
        if (it->values == PLAN_VALUES_SCALES)
            values_add_scales(&v, it->scale_type, src + at, k);
        else
            values_add(&v, it->map->dtype, src + at, k, it->values == PLAN_VALUES_NEGATIVE);
    }
    if (v.n_nan)
        it->n_nan += v.n_nan;
    if (v.n_inf)
        it->n_inf += v.n_inf;
    if (v.n_negative)
        it->n_negative += v.n_negative;
    if (v.n_zero)
        it->n_zero += v.n_zero;
    return crc;
}

/* Bytes [skip, skip + n) of a piece. The bytes of the piece begin at src. */
struct gather_span {
    const uint8_t *src;
    uint64_t skip, n;
    uint8_t *dst;                       /* address to which the bytes are copied, or NULL */
};

/*
 * Hash a span for the CRC of its record, and copy it. The same CRC is also added to the item, except if the item hashes
 * its output.
 */
static int pass_run(const struct gather *g, const struct tmap_piece *pc, struct gather_span x, struct err *e)
{
    uint64_t k;

    for (; x.n; x.skip += k, x.n -= k) {
        bool counts;
        uint32_t crc;

        k = min_u64(plan_counted(g->plan, g->item_no, pc, x.skip, &counts), x.n);
        crc = hash_run(g, x.dst, x.src + x.skip, k);
        x.dst = x.dst ? x.dst + k : NULL;
        if (!g->hash_output)
            add_to_item(g, pc->dst + x.skip, k, crc);
        if (counts && add_to_record(g, pc, x.skip, k, crc, e) < 0)
            return -1;
    }
    return 0;
}

/* Copy many short runs, with two passes over each block that fits in the cache. */
static int scatter_short_runs(const struct gather *g, const struct tmap_piece *pc, const uint8_t *src,
                              uint8_t *dst, struct err *e)
{
    uint64_t per_block = max_u64(CACHE_BYTES / pc->run, 1);

    for (uint64_t i = 0, n; i < pc->n; i += n) {
        n = min_u64(per_block, pc->n - i);
        if (pass_run(g, pc, (struct gather_span){ src, i * pc->run, n * pc->run, NULL }, e) < 0)
            return -1;
        for (uint64_t k = i; k < i + n; k++)
            memcpy(dst + k * pc->stride, src + k * pc->run, pc->run);
    }
    return 0;
}

/*
 * Copy long runs. All of their bytes count for the CRC of the record. Both CRCs are computed by Horner's rule. Before a
 * run is added, the CRC of the record is shifted by one run, and the CRC of the item by one row.
 */
static int scatter_long_runs(const struct gather *g, const struct tmap_piece *pc, const uint8_t *src,
                             uint8_t *dst, struct err *e)
{
    uint32_t by_run = crc_factor(pc->run), by_row = crc_factor(pc->stride), in_record = 0, in_item = 0;
    uint64_t end = g->from - g->item->from + pc->dst + (pc->n - 1) * pc->stride + pc->run;

    for (uint64_t i = 0; i < pc->n; i++) {
        uint32_t crc = hash_run(g, dst + i * pc->stride, src + i * pc->run, pc->run);

        in_record = crc_times(in_record, by_run) ^ crc;
        in_item = crc_times(in_item, by_row) ^ crc;
    }
    crc_sum_merge(&g->item->crc, pc->src.len, crc_shift(in_item, g->item->len - end));
    if (!files_record(plan_files(g->plan), pc->src.record)->has_crc)
        return 0;
    return add_to_record(g, pc, 0, pc->src.len, in_record, e);
}

int gather_piece(const struct gather *g, const struct tmap_piece *pc, const uint8_t *src, struct err *e)
{
    uint8_t *dst = g->out ? g->out + pc->dst : NULL;

    if (dst && tmap_overlays(g->item->map))
        dst += (uint64_t)pc->slice * g->copy_stride;
    if (pc->n == 1)
        return pass_run(g, pc, (struct gather_span){ src, 0, pc->src.len, dst }, e);
    return g->hash_output ? scatter_short_runs(g, pc, src, dst, e) : scatter_long_runs(g, pc, src, dst, e);
}

static void lower_to(_Atomic uint64_t *least, uint64_t v)
{
    uint64_t old = *least;

    while (v < old && !atomic_compare_exchange_weak(least, &old, v))
        ;
}

/*
 * Combine the slices. Copies are combined, and the elements on which they differ are counted. Parts of a sum are added.
 * Returns false if copies differ under REPLICAS_FAIL.
 */
static bool combine(const struct gather *g)
{
    struct plan_item *it = g->item;
    int n = it->map->n_slices;
    const void **copy = xmalloc((size_t)n * sizeof *copy);
    uint64_t n_differ, elem = (uint64_t)dtype_size(it->map->dtype), first;

    for (int k = 0; k < n; k++)
        copy[k] = g->out + (uint64_t)k * g->copy_stride;
    if (it->map->op == TMAP_SUM) {
        tmap_add(copy, n, g->len, it->map->dtype, g->out);
        free(copy);
        return true;
    }
    first = replicas_first_difference(copy, n, g->len, it->map->dtype);
    n_differ = replicas_combine(copy, n, g->len, it->map->dtype, it->policy, g->out);
    if (n_differ) {
        atomic_fetch_add(&it->n_differ, n_differ);
        lower_to(&it->first_differ, (g->from - it->from) / elem + first);
    }
    free(copy);
    return !(n_differ && it->policy == REPLICAS_FAIL);
}

static void convert_gathered_elems(const struct gather *g)
{
    struct elements_loss loss = {0};

    elements_convert(g->item->op, g->out, g->len / plan_elem_bytes(g->item), &loss);
    atomic_fetch_add(&g->item->n_overflow, loss.n_overflow);
    atomic_fetch_add(&g->item->n_flushed, loss.n_flushed);
}

bool gather_end(const struct gather *g)
{
    uint64_t len = plan_out_bytes(g->item, g->len);

    if (tmap_layers(g->item->map) > 1 && !combine(g))
        return false;
    if (g->item->op != PLAN_COPY)
        convert_gathered_elems(g);
    if (g->hash_output && !g->item->transpose_row)
        add_to_item(g, 0, len, crc_bytes(0, g->out, len));
    return true;
}

struct gather_matrix gather_matrix(const struct gather *g)
{
    const struct plan_item *it = g->item;
    uint64_t row = it->transpose_row, in = plan_elem_bytes(it), out = plan_out_bytes(it, in);

    return (struct gather_matrix){ .run = g->len / row * out, .stride = it->len / row * out,
                                   .at = (g->from - it->from) / row * out, .n = row / in };
}

void gather_transpose(const struct gather *g, uint8_t *to)
{
    struct gather_matrix m = gather_matrix(g);
    uint64_t end = m.at + (m.n - 1) * m.stride + m.run, rows = g->len / g->item->transpose_row;
    uint32_t sum = 0, by_stride = crc_factor(m.stride);

    elements_transpose(to, m.run, g->out, rows, m.n, (int)(m.run / rows));
    /* This is Horner's rule: the sum is shifted by one stride, then the CRC of the next run is added. */
    for (uint64_t i = 0; i < m.n; i++)
        sum = crc_times(sum, by_stride) ^ crc_bytes(0, to + i * m.run, m.run);
    crc_sum_merge(&g->item->crc, m.n * m.run, crc_shift(sum, plan_out_bytes(g->item, g->item->len) - end));
}
