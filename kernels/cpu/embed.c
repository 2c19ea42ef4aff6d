/*
 * embed.c - embedding lookup, and gradients of the table
 */
#include <assert.h>
#include <omp.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/philox.h"

static void embed(const struct kernel_embed *g, enum dtype t, struct dev_stream *s)
{
    size_t bytes = (size_t)(g->h * bytes_t(t));

    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < g->m; i++) {
        int64_t row = g->id[i] - g->first;

        if (row >= 0 && row < g->rows)
            memcpy(out_t(g->y, i * g->h, t), at_t(g->table, row * g->h, t), bytes);
        else
            memset(out_t(g->y, i * g->h, t), 0, bytes);
    }
}

/* ---- gradients: tokens are sorted by row first; one thread then adds all tokens of a row, in a fixed order ---- */

static uint64_t embed_scratch(int64_t m, int64_t rows)
{
    return ((uint64_t)m + (uint64_t)rows + 1) * sizeof(int32_t);
}

/* Sort the tokens by row: the tokens of row r are token[start[r]] .. token[start[r + 1] - 1], in ascending order. */
static void sort_tokens(int32_t *start, int32_t *token, const struct kernel_embed_back *g)
{
    const int32_t *id = g->id;
    const int64_t first = g->first, rows = g->rows, m = g->m;

    memset(start, 0, ((size_t)rows + 1) * sizeof *start);
    for (int64_t i = 0; i < m; i++)
        if (id[i] >= first && id[i] - first < rows)
            start[id[i] - first + 1]++;
    for (int64_t r = 0; r < rows; r++)
        start[r + 1] += start[r];
    /*
     * The loop advances start[r] to the end of row r, which is where row r + 1 starts. The memmove below undoes that.
     */
    for (int64_t i = 0; i < m; i++)
        if (id[i] >= first && id[i] - first < rows)
            token[start[id[i] - first]++] = (int32_t)i;
    memmove(start + 1, start, (size_t)rows * sizeof *start);
    start[0] = 0;
}

static void grad_row(void *row, const float *sum, int64_t h, bool add, enum dtype g)
{
    for (int64_t j = 0; j < h; j++)
        WITH_T(g, put_grad(row, j, sum[j], add, T));
}

/* Compute row r of the table's gradient from its n tokens. If the row is fp32, it is accumulated in place. */
static void table_row(const struct kernel_embed_back *g, int64_t r, const int32_t *token, int32_t n, enum dtype t)
{
    const int64_t h = g->h;
    const enum dtype to = g->grad_t ? t : DTYPE_F32;
    void *row = out_t(g->dtable, r * h, to);
    float *sum = to == DTYPE_F32 ? row : cpu_room(omp_get_thread_num(), (uint64_t)h * sizeof *sum);

    if (!g->add)
        memset(row, 0, (size_t)(h * bytes_t(to)));
    if (!n)
        return;
    if (sum != row)
        memset(sum, 0, (size_t)h * sizeof *sum);
    for (int32_t i = 0; i < n; i++)
        WITH_T(t, add_run(sum, g->dy, token[i] * h, h, T));
    if (sum != row)
        grad_row(row, sum, h, g->add, to);
}

static void embed_back(const struct kernel_embed_back *g, enum dtype t, struct dev_stream *s)
{
    int32_t *start = g->scratch, *token = start + g->rows + 1;

    (void)s;
    assert(g->m < INT32_MAX);
    sort_tokens(start, token, g);
    /*
     * The schedule is dynamic because frequent words have adjacent rows, so rows differ much in cost. The sum of a row
     * does not depend on the thread that computes it.
     */
    #pragma omp parallel for num_threads(cpu_threads) schedule(dynamic, 64)
    for (int64_t r = 0; r < g->rows; r++)
        table_row(g, r, token + start[r], start[r + 1] - start[r], t);
}

/* ---- positions ---- */

static int64_t position_of(const int32_t *pos, int64_t row, int64_t s)
{
    return pos ? pos[row] : row % s;
}

ALWAYS_INLINE void finish_row(const struct kernel_embed_finish *g, int64_t row, enum dtype t)
{
    const int64_t h = g->h;
    const void *x = at_t(g->x, row * h, t);
    const void *position = g->position ? at_t(g->position, position_of(g->pos, row, g->s) * h, t) : NULL;
    void *y = out_t(g->y, row * h, t);
    float v[DROP_RUN], mask[DROP_RUN];

    for (int64_t j0 = 0; j0 < h; j0 += DROP_RUN) {
        int64_t n = min_i64(DROP_RUN, h - j0);

        load_run(v, x, j0, n, t);
        if (position)
            add_run(v, position, j0, n, t);
        if (drop_active(&g->drop)) {
            drop_run(mask, &g->drop, (g->drop.row0 + row) * h + j0, n);
            for (int64_t j = 0; j < n; j++)
                v[j] *= mask[j];
        }
        store_run(y, j0, v, n, t);
    }
}

static void embed_finish(const struct kernel_embed_finish *g, enum dtype t, struct dev_stream *s)
{
    (void)s;
    if (g->x == g->y && !g->position && !drop_active(&g->drop))
        return;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < g->m; i++)
        WITH_T(t, finish_row(g, i, T));
}

/* number of columns of a work item; a work item processes all tokens in order */
#define POSITION_COLS 64

/* Sum columns col .. col + n of the gradients of all positions in `sum`, which has `ld` floats per row. */
static void position_cols(const struct kernel_position_back *g, float *sum, int64_t ld, int64_t col, int64_t n,
                          enum dtype t)
{
    for (int64_t i = 0; i < g->m; i++) {
        int64_t p = position_of(g->pos, i, g->s);

        assert(p >= 0 && p < g->n_pos);
        WITH_T(t, add_run(sum + p * ld, g->dx, i * g->h + col, n, T));
    }
}

static void position_back(const struct kernel_position_back *g, enum dtype t, struct dev_stream *s)
{
    const int64_t h = g->h, n_pos = g->n_pos;

    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t col = 0; col < h; col += POSITION_COLS) {
        const int64_t n = min_i64(POSITION_COLS, h - col);
        const size_t bytes = (size_t)(n_pos * POSITION_COLS) * sizeof(float);
        float *sum = (float *)g->dposition + col;

        if (!g->grad_t) {
            for (int64_t p = 0; p < n_pos && !g->add; p++)
                memset(sum + p * h, 0, (size_t)n * sizeof *sum);
            position_cols(g, sum, h, col, n, t);
            continue;
        }
        sum = cpu_room(omp_get_thread_num(), bytes);
        memset(sum, 0, bytes);
        position_cols(g, sum, POSITION_COLS, col, n, t);
        for (int64_t p = 0; p < n_pos; p++)
            grad_row(out_t(g->dposition, p * h + col, t), sum + p * POSITION_COLS, n, g->add, t);
    }
}

void embed_fill(struct kernels *k)
{
    k->embed = embed;
    k->embed_back = embed_back;
    k->embed_scratch = embed_scratch;
    k->embed_finish = embed_finish;
    k->position_back = position_back;
}
