/*
 * gemm.c - blocks of a matrix product, and who computes which
 *
 * for each block of columns of the result
 *     all threads pack B's panels of these columns, the whole sum long
 *     each thread, for its own rows, GEMM_ROWS at a time
 *         for each GEMM_SLOTS of the sum
 *             pack A's panels, multiply them with B's, add to fp32 sums
 *         finish the rows: bias, GELU, rounding
 *
 * What is in which cache: a panel of B (GEMM_SLOTS * PANEL_B * 4 bytes) in the first; A's panels
 * and the sums in the second; B's block in the third, shared by all threads. The sums leave
 * the second cache once only, finished.
 *
 * A result's additions are the same wherever its tile's borders are, so the threads' rows may
 * follow from their number; only the cuts of the sum must not.
 *
 * Tried, as GFLOP/s of y [2048, 4096] with k 1024, fp32, on a Xeon with AVX-512, 1 and 8 threads, where
 * OpenBLAS 0.3.21 (SkylakeX) has 228 and 1700, and the micro-kernel alone 245:
 *     155, 1010  blocks of 960 x 1024 results, both operands packed anew for each 256 of the sum; the
 *                sums, 4 MB at a stride of 4096 bytes, go out of the second cache and back each time
 *     201, 1060  the same with a stride that is no power of two, and the sums prefetched
 *     195, 1410  blocks of 1920 x 2048: fewer barriers, but then the sums are far away
 *     211, 1400  as here
 * An AMD Zen 3 (AVX2) has 90 with one thread, OpenBLAS 93. Sums of 128, 384 or 512 slots, and
 * chunks of 96 or 384 rows, are within 3 %, mostly below.
 *
 * Beside libraries (tests/bench/bench_gemm, one thread, a Xeon with AMX, 33 products of the trainer's shapes): fp32
 * 0.61 to 1.17 of OpenBLAS 0.3.21, geometric mean 0.92, and 0.58 to 1.02 of oneDNN 2.6.3, mean 0.88. Ours is kept there
 * for sums whose order follows from the shape alone, whatever the threads, and for the finish that is fused. bf16 is
 * 0.12 to 0.29 of oneDNN, mean 0.18: it has AMX's tiles, which ours does not use.
 */
#include <omp.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/vmath.h"

#define GEMM_SLOTS 256
#define GEMM_ROWS  (2 * PANEL_LCM)
#define GEMM_COLS  1024                 /* of a block, at most */
#define GEMM_BLOCK (4 << 20)            /* slots of B's block, unless a sum is longer than GEMM_BLOCK / PANEL_B */
#define GEMM_LD    (GEMM_COLS + 32)     /* floats from row to row of the sums: no power of two, for the caches' sake */

/* One thread's */
struct room {
    uint32_t a[GEMM_ROWS * GEMM_SLOTS];
    float sum[GEMM_ROWS * GEMM_LD];
};

/* What is multiplied with what: fp32, to which bf16 is widened; pairs of bf16; tiles of pairs */
enum how { SINGLES, PAIRS, TILES };
static const struct form {
    int a, b;                           /* rows of a panel */
    int per_slot;                       /* numbers of the sum */
    int slots;                          /* come together: sums are filled up with zeros to a multiple of it */
} forms[] = {
    [SINGLES] = { PANEL_A, PANEL_B, 1, 1 },
    [PAIRS] = { PANEL_A, PANEL_B, 2, 1 },
    [TILES] = { AMX_WIDTH, AMX_WIDTH, 2, AMX_SLOTS },
};

/* A block of columns, j0 .. j0 + n, as every thread sees it */
struct block {
    const struct gemm *g;
    enum how how;
    int64_t j0, n, slots;               /* slots of the whole sum */
    uint32_t *b;                        /* [cut of the sum][panel][slot of the cut][row of the panel] */
};

/* One thread's panels: first and one past the last. */
struct part {
    int64_t a0, a1, b0, b1;
};

/*
 * Cut na x nb panels into `all` rectangles so that the largest is smallest; packing a panel of A
 * costs as much as a tile, and threads with the same rows all do it.
 */
static struct part part_of(int64_t na, int64_t nb, int me, int all)
{
    int best = 1;
    int64_t least = INT64_MAX;

    for (int rows = 1; rows <= all; rows++) {
        int64_t cols = all / rows, size;

        if (all % rows)
            continue;
        size = ((na + rows - 1) / rows) * ((nb + cols - 1) / cols + 1);
        if (size < least) {
            least = size;
            best = rows;
        }
    }
    int cols = all / best, row = me / cols, col = me % cols;

    return (struct part){ na * row / best, na * (row + 1) / best, nb * col / cols, nb * (col + 1) / cols };
}

/* Rows i0 .. i0 + n of an operand, of which slots s0 .. s0 + slots of the sum, as panels of `width` */
struct cut {
    const struct operand *x;
    int64_t i0, n, s0, slots;
    int width;
};

/* Panels first .. end of it */
static void pack(uint32_t *to, const struct block *b, const struct cut *c, int64_t first, int64_t end)
{
    int64_t per_slot = forms[b->how].per_slot, k0 = per_slot * c->s0, row = first * c->width;
    struct operand_part part = {
        .i0 = c->i0 + row, .n = min_i64(end * c->width, c->n) - row,
        .k0 = k0, .nk = min_i64(per_slot * c->slots, b->g->k - k0),
    };

    if (first >= end)
        return;
    to += first * c->slots * c->width;
    if (b->how != TILES)
        panels_pack(to, c->x, part, c->width, b->how == PAIRS);
    else if (c->x == &b->g->a)
        tiles_pack_a(to, c->x, part);
    else
        tiles_pack_b(to, c->x, part);
}

static int64_t panels_b(const struct block *b)
{
    return (b->n + forms[b->how].b - 1) / forms[b->how].b;
}

static void pack_b(const struct block *b, int me, int all)
{
    int64_t panels = panels_b(b), width = forms[b->how].b;

    for (int64_t s = 0; s < b->slots; s += GEMM_SLOTS) {
        struct cut c = { &b->g->b, b->j0, b->n, s, min_i64(GEMM_SLOTS, b->slots - s), (int)width };

        pack(b->b + s * panels * width, b, &c, panels * me / all, panels * (me + 1) / all);
    }
}

static void multiply(struct room *r, const struct block *b, const struct part *t, int64_t panels_a, int64_t s,
                     int64_t slots)
{
    const struct form *f = &forms[b->how];
    const uint32_t *b_cut = b->b + s * panels_b(b) * f->b;

    for (int64_t j = t->b0; j < t->b1; j++)
        for (int64_t i = 0; i < panels_a; i++) {
            const uint32_t *pa = r->a + i * slots * f->a, *pb = b_cut + j * slots * f->b;
            float *c = r->sum + i * f->a * GEMM_LD + (j - t->b0) * f->b;

            if (b->how == TILES)
                amx->multiply(slots / AMX_SLOTS, pa, pb, c, GEMM_LD, s > 0);
            else if (b->how == PAIRS)
                panel_multiply_pairs(slots, pa, pb, c, GEMM_LD, s > 0);
            else
                panel_multiply(slots, (struct panel_rows){ (const float *)pa, PANEL_A }, (const float *)pb, c, GEMM_LD,
                               s > 0);
        }
}

/* Rows of the panels a .. a + panels of A, this thread's columns */
static void rows(struct room *r, const struct block *b, const struct part *t, int64_t a, int64_t panels)
{
    const struct form *f = &forms[b->how];
    const struct gemm *g = b->g;
    int64_t i0 = a * f->a, n = min_i64(panels * f->a, g->m - i0);
    int64_t col = t->b0 * f->b, width = min_i64(t->b1 * f->b, b->n) - col, s = 0;

    do {                                /* once even for k = 0: the sums are zeros */
        struct cut c = { &g->a, i0, n, s, min_i64(GEMM_SLOTS, b->slots - s), f->a };

        pack(r->a, b, &c, 0, panels);
        multiply(r, b, t, panels, s, c.slots);
        s += GEMM_SLOTS;
    } while (s < b->slots);
    for (int64_t i = 0; i < n; i++)
        g->finish(g->arg, r->sum + i * GEMM_LD, i0 + i, b->j0 + col, width);
}

/* Every thread of the region calls it. */
static void block(const struct block *b)
{
    int me = omp_get_thread_num(), all = omp_get_num_threads();
    int64_t width = forms[b->how].a, at_once = GEMM_ROWS / width;
    struct room *r = cpu_room(me, sizeof *r);
    struct part t = part_of((b->g->m + width - 1) / width, panels_b(b), me, all);
    int64_t chunks = (t.a1 - t.a0 + at_once - 1) / at_once, mine = t.a1 - t.a0;

    pack_b(b, me, all);
    #pragma omp barrier
    if (b->how == TILES)
        amx->begin();
    /* Chunks of equal size: a last one of a few rows would use B's panels for too little. */
    for (int64_t c = 0; t.b1 > t.b0 && c < chunks; c++)
        rows(r, b, &t, t.a0 + mine * c / chunks, mine * (c + 1) / chunks - mine * c / chunks);
    if (b->how == TILES)
        amx->end();
    #pragma omp barrier                 /* nobody packs over panels still in use */
}

void gemm_run(const struct gemm *g)
{
    enum how how = g->a.t != DTYPE_BF16 ? SINGLES : amx ? TILES : PANEL_PAIRS ? PAIRS : SINGLES;
    const struct form *f = &forms[how];
    int64_t slots = up_i64((g->k + f->per_slot - 1) / f->per_slot, f->slots);
    int64_t fit = GEMM_BLOCK / max_i64(slots, 1) / f->b * f->b, cols = min_i64(max_i64(fit, f->b), GEMM_COLS);
    uint32_t *b = cpu_gemm_room((uint64_t)(max_i64(slots, 1) * up_i64(min_i64(cols, g->n), f->b)) * sizeof *b);

    #pragma omp parallel num_threads(cpu_threads)
    for (int64_t j = 0; j < g->n; j += cols)
        block(&(struct block){ g, how, j, min_i64(cols, g->n - j), slots, b });
}
