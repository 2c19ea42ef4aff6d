/*
 * gemm.c - blocks of a matrix product, and their distribution over threads
 *
 *   for each block of columns of the result
 *       all threads pack B's panels of these columns, for the whole length of the sum
 *       each thread, for its own rows, one strip at a time
 *           for each cut of the sum
 *               pack A's panels, multiply them with B's, add to fp32 sums
 *               after the last cut finish the results: bias, GELU, rounding
 *
 * Use of the caches: a panel of B (256 slots * PANEL_B * 4 bytes) is in the first-level cache; A's panels and the
 * sums are in the second; B's block is in the third, shared by all threads. With AMX tiles a panel of A is in the
 * first, and B's block in the second. The sums leave the second-level cache only once, finished.
 *
 * The order of additions for a result does not depend on where the borders of its tile are, so the assignment of rows
 * to threads may depend on the number of threads. Only the cuts of the sum must not depend on it, because they change
 * results (except with AMX tiles).
 *
 * Variants tried, in GFLOP/s of y [2048, 4096] with k 1024, fp32, on a Xeon with AVX-512, with 1 and 8 threads.
 * OpenBLAS 0.3.21 (SkylakeX) has 228 and 1700, and the micro-kernel alone 245:
 *     155, 1010  blocks of 960 x 1024 results, both operands packed again for each 256 of the sum; the
 *                sums, 4 MB at a stride of 4096 bytes, leave the second-level cache and return each time
 *     201, 1060  the same with a stride that is not a power of two, and the sums prefetched
 *     195, 1410  blocks of 1920 x 2048: fewer barriers, but then the sums are in a distant cache
 *     211, 1400  the current version
 *     + 6 to 10 % where sums are 256 long, nothing at 1024: squares of 16 transposed by AVX-512 for the
 *                panels, and each tile finished while it is in the first-level cache
 * An AMD Zen 3 (AVX2) has 90 with one thread, OpenBLAS 93. Sums of 128, 384 or 512 slots, and chunks of 96 or 384
 * rows, are within 3 %, mostly below.
 *
 * bf16 with AMX, where the tiles alone reach 2600 and fp32's FMAs 166 (y and dx of m 2048, n 1024, k 1024, one
 * thread):
 *     1054, 1063 256 slots, 192 rows, 1024 columns: B's block fills the second-level cache
 *     1129, 1154 512 slots, 512 columns
 *     1332, 1287 the current version: 96 rows, and A's panel stays; dw is slower this way, 865 instead
 *                of 951, as is k 4096
 * Reading A in place, without panels, is 1 to 13 % slower. Finishing each tile separately is 9 to 14 % slower where
 * sums are 256 long. vdpbf16ps instead of tiles has 83 (m 1024, n 768, k 256), where bf16 widened for fp32's FMAs
 * has 152.
 *
 * fp16 is also widened for fp32's FMAs, and is as fast as fp32: 134 GFLOP/s, fp32 108, bf16's tiles 802 (y of m
 * 512, n 512, k 1024, one thread, the best of some runs on a busy Xeon with AMX). That generation has no tiles that
 * multiply fp16 (AMX-FP16). AVX512-FP16's own FMAs round every sum to fp16, whereas the contract requires fp32. Not
 * tried: an fp16 is the sum of two bf16, so its product is that of four bf16 tiles.
 *
 * Comparison with libraries (tests/bench/bench_gemm, a Xeon with AMX, 16 cores of a shared host, 24 products of the
 * trainer's shapes, h 256 and 1024): our speed relative to theirs, geometric mean, minimum and maximum.
 *     threads   fp32: OpenBLAS 0.3.21     oneDNN 2.6.3          bf16: oneDNN
 *     1         0.93 (0.77 to 1.19)       0.92 (0.81 to 1.04)   1.11 (0.68 to 1.72)
 *     2         0.92 (0.63 to 1.28)       0.87 (0.64 to 1.00)   0.96 (0.44 to 1.43)
 *     8         1.06 (0.73 to 1.55)       0.86 (0.66 to 1.39)   0.90 (0.61 to 1.12)
 * On that host single measurements vary by half from minute to minute. The table was measured before two changes: a
 * different distribution over 2 and 8 threads was abandoned, with which fp32 was up to 9 % slower at 8 threads; and
 * strips of tiles were finished one panel at a time, which cost 5 to 10 % where sums are 256 long. With one thread bf16
 * is thus no slower than oneDNN except for small products (n 256: 0.7, n 192 and k 64: 0.4). oneDNN is mostly faster in
 * fp32 and with 8 threads, OpenBLAS with 1 and 2. This implementation is kept for two reasons: the order of its sums
 * depends only on the shape, not on the threads or on the other rows; and its finish is fused, whereas the libraries
 * need another pass over the result.
 */
#include <omp.h>

#include "kernels/cpu/cpu_gemm.h"
#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/vmath.h"

#define GEMM_ROWS  (2 * PANEL_LCM)
#define GEMM_A     (GEMM_ROWS * 256)    /* maximum number of slots in the panels of A of one strip */
#define GEMM_COLS  1024                 /* maximum number of columns of a block */
/* maximum number of slots of B per cut of the sum; they fill half of the second-level cache */
#define GEMM_NEAR  (1 << 18)
/* maximum number of slots in B's block; exceeded only if a single panel of B is larger */
#define GEMM_BLOCK (4 << 20)
/*
 * number of floats per row of the sums; it is not a power of two, so that rows do not compete for the same cache sets
 */
#define GEMM_LD    (GEMM_COLS + 32)

/* The buffers of one thread. */
struct room {
    uint32_t a[GEMM_A];
    float sum[GEMM_ROWS * GEMM_LD];
};

/*
 * The ways in which operands are multiplied. SINGLES multiplies fp32, to which bf16 is widened. PAIRS multiplies pairs
 * of bf16. TILES and TILES_LONG multiply AMX tiles of pairs. AMX is so fast that B's block should fit in the
 * second-level cache. TILES therefore uses longer cuts and narrower blocks, at the price of packing A more often. This
 * pays off for sums of at most two cuts if the rows of A are stored along. TILES_LONG is for all other products.
 */
enum how { SINGLES, PAIRS, TILES, TILES_LONG };
static const struct gemm_form {
    int a, b;                           /* rows per panel of a and of b */
    int per_slot;                       /* numbers of the sum per slot */
    int slots;                          /* slots are padded with zeros to a multiple of this */
    /* number of slots of the sum per cut; with SINGLES and PAIRS, the bits of the results depend on it */
    int cut;
    int rows;                           /* maximum number of rows of a strip */
} forms[] = {
    [SINGLES] = { PANEL_A, PANEL_B, 1, 1, 256, GEMM_ROWS },
    [PAIRS] = { PANEL_A, PANEL_B, 2, 1, 256, GEMM_ROWS },
    [TILES] = { AMX_WIDTH, AMX_WIDTH, 2, AMX_SLOTS, 512, GEMM_ROWS / 2 },
    [TILES_LONG] = { AMX_WIDTH, AMX_WIDTH, 2, AMX_SLOTS, 256, GEMM_ROWS },
};

/* A block of columns of the result, j0 .. j0 + n, which all threads process together. */
struct block {
    const struct gemm *g;
    enum how how;
    int64_t j0, n, slots;               /* number of slots of the whole sum */
    uint32_t *b;                        /* [cut of the sum][panel][slot of the cut][row of the panel] */
};

/* The panels that one thread processes: [a0, a1) of A and [b0, b1) of B. */
struct part {
    int64_t a0, a1, b0, b1;
};

/*
 * Split na x nb panels among `all` threads, and return the part of thread `me`. The parts are rectangles, and the
 * largest one is as small as possible. The cost of packing a panel of A is counted as one tile of the result, because
 * each thread packs all rows of its part.
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

/*
 * A cut of an operand, which consists of rows i0 .. i0 + n and slots s0 .. s0 + slots of the sum. It is to be packed as
 * panels of `width` rows.
 */
struct cut {
    const struct operand *x;
    int64_t i0, n, s0, slots;
    int width;
};

/* Pack panels first .. end of the cut *c. */
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
    if (b->how < TILES)
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
    int64_t panels = panels_b(b), width = forms[b->how].b, at_once = forms[b->how].cut;

    for (int64_t s = 0; s < b->slots; s += at_once) {
        struct cut c = { &b->g->b, b->j0, b->n, s, min_i64(at_once, b->slots - s), (int)width };

        pack(b->b + s * panels * width, b, &c, panels * me / all, panels * (me + 1) / all);
    }
}

/*
 * The part of the result that a thread processes at a time. It consists of panels a .. a + panels of A, and all columns
 * of the thread.
 */
struct strip {
    const struct block *b;
    const struct part *t;
    int64_t a, panels;
};

/*
 * Pass finished results to the caller. These are the results of panels t.a0 .. t.a1 of the strip and t.b0 .. t.b1 of B,
 * whose sums are complete.
 */
static void finish(const struct room *r, const struct strip *p, struct part t)
{
    const struct gemm *g = p->b->g;
    const struct gemm_form *f = &forms[p->b->how];
    int64_t row = (p->a + t.a0) * f->a, col = t.b0 * f->b;

    g->finish(g->arg, &(struct gemm_tile){
        .acc = r->sum + t.a0 * f->a * GEMM_LD + (t.b0 - p->t->b0) * f->b, .ld = GEMM_LD,
        .row = row, .rows = min_i64((t.a1 - t.a0) * f->a, g->m - row),
        .col = p->b->j0 + col, .cols = min_i64((t.b1 - t.b0) * f->b, p->b->n - col),
    });
}

/*
 * Multiply slots s .. s + slots of the sum. A panel of B stays in the first-level cache while all panels of A are
 * processed. Each tile of results is finished as soon as its sum is complete.
 */
static void multiply(struct room *r, const struct strip *p, int64_t s, int64_t slots)
{
    const struct block *b = p->b;
    const uint32_t *b_cut = b->b + s * panels_b(b) * PANEL_B;

    for (int64_t j = p->t->b0; j < p->t->b1; j++)
        for (int64_t i = 0; i < p->panels; i++) {
            const uint32_t *pa = r->a + i * slots * PANEL_A, *pb = b_cut + j * slots * PANEL_B;
            float *c = r->sum + i * PANEL_A * GEMM_LD + (j - p->t->b0) * PANEL_B;

            if (b->how == PAIRS)
                panel_multiply_pairs(slots, pa, pb, c, GEMM_LD, s > 0);
            else
                panel_multiply(slots, (struct panel_rows){ (const float *)pa, PANEL_A }, (const float *)pb, c, GEMM_LD,
                               s > 0);
            if (s + slots == b->slots)
                finish(r, p, (struct part){ i, i + 1, j, j + 1 });
        }
}

/*
 * Multiply slots s .. s + slots of a strip like multiply(), with AMX tiles. Here a panel of A stays in the cache. The
 * strip is finished as a whole, so that the CPU switches less often between tile code and other code.
 */
static void multiply_tiles(struct room *r, const struct strip *p, int64_t s, int64_t slots)
{
    const struct block *b = p->b;
    const uint32_t *b_cut = b->b + s * panels_b(b) * AMX_WIDTH;

    for (int64_t i = 0; i < p->panels; i++)
        for (int64_t j = p->t->b0; j < p->t->b1; j++)
            amx_found->multiply(slots / AMX_SLOTS, r->a + i * slots * AMX_WIDTH, b_cut + j * slots * AMX_WIDTH,
                                r->sum + i * AMX_WIDTH * GEMM_LD + (j - p->t->b0) * AMX_WIDTH, GEMM_LD, s > 0);
    if (s + slots == b->slots)
        finish(r, p, (struct part){ 0, p->panels, p->t->b0, p->t->b1 });
}

static void rows(struct room *r, const struct strip *p)
{
    const struct block *b = p->b;
    const struct gemm_form *f = &forms[b->how];
    int64_t i0 = p->a * f->a, n = min_i64(p->panels * f->a, b->g->m - i0), s = 0;

    do {                                /* execute once even for k = 0: the sums are zeros */
        struct cut c = { &b->g->a, i0, n, s, min_i64(f->cut, b->slots - s), f->a };

        pack(r->a, b, &c, 0, p->panels);
        if (b->how < TILES)
            multiply(r, p, s, c.slots);
        else
            multiply_tiles(r, p, s, c.slots);
        s += f->cut;
    } while (s < b->slots);
}

/* Process one block. All threads of the parallel region must call this function. */
static void block(const struct block *b)
{
    int me = omp_get_thread_num(), all = omp_get_num_threads();
    int64_t width = forms[b->how].a, at_once = forms[b->how].rows / width;
    struct room *r = cpu_room(me, sizeof *r);
    struct part t = part_of((b->g->m + width - 1) / width, panels_b(b), me, all);
    int64_t chunks = (t.a1 - t.a0 + at_once - 1) / at_once, mine = t.a1 - t.a0;

    pack_b(b, me, all);
    #pragma omp barrier
    if (b->how >= TILES)
        amx_found->begin();
    /* Use chunks of equal size. A last chunk with only a few rows would make little use of B's panels. */
    for (int64_t c = 0; t.b1 > t.b0 && c < chunks; c++)
        rows(r, &(struct strip){ b, &t, t.a0 + mine * c / chunks, mine * (c + 1) / chunks - mine * c / chunks });
    if (b->how >= TILES)
        amx_found->end();
    #pragma omp barrier                 /* a thread must not overwrite packed panels that others still use */
}

/*
 * Returns the number of columns per block. All blocks have about equal size, because A would have to be packed for too
 * few results if the last block were narrow.
 */
static int64_t block_cols(const struct gemm *g, const struct gemm_form *f, int64_t slots)
{
    int64_t fit = min_i64(GEMM_BLOCK / max_i64(slots, 1), GEMM_NEAR / max_i64(min_i64(slots, f->cut), 1));
    int64_t cols = max_i64(min_i64(fit, GEMM_COLS) / f->b, 1) * f->b, blocks = max_i64((g->n + cols - 1) / cols, 1);

    return up_i64((g->n + blocks - 1) / blocks, f->b);
}

void gemm_run(const struct gemm *g)
{
    enum how tiles = g->a.across || g->k > 2 * forms[TILES].cut ? TILES_LONG : TILES;
    enum how how = g->a.t != DTYPE_BF16 ? SINGLES : amx_found ? tiles : PANEL_PAIRS ? PAIRS : SINGLES;
    const struct gemm_form *f = &forms[how];
    int64_t slots = up_i64((g->k + f->per_slot - 1) / f->per_slot, f->slots), cols = block_cols(g, f, slots);
    uint32_t *b = cpu_gemm_room((uint64_t)(max_i64(slots, 1) * cols) * sizeof *b);

    #pragma omp parallel num_threads(cpu_threads)
    for (int64_t j = 0; j < g->n; j += cols)
        block(&(struct block){ g, how, j, min_i64(cols, g->n - j), slots, b });
}
