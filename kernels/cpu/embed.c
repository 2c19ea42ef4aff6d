/*
 * embed.c - rows of a table by token, and gradients back into them
 */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/philox.h"

static void embed(const struct kernel_embed *g, enum dtype t, struct dev_stream *s)
{
    bool bf = t == DTYPE_BF16;
    size_t bytes = (size_t)g->h * (bf ? 2 : 4);

    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < g->m; i++) {
        int64_t row = g->id[i] - g->first;

        if (row >= 0 && row < g->rows)
            memcpy(out_t(g->y, i * g->h, bf), at_t(g->table, row * g->h, bf), bytes);
        else
            memset(out_t(g->y, i * g->h, bf), 0, bytes);
    }
}

/* ---- back: tokens are sorted by row first, so that each row has one owner and one order ---- */

static uint64_t embed_scratch(int64_t m, int64_t rows)
{
    return ((uint64_t)m + (uint64_t)rows + 1) * sizeof(int32_t);
}

/* token[start[r]] .. token[start[r + 1]]: the tokens of row r, ascending */
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
    /* Filling moves each start to its row's end, which is the next row's start: moved back after. */
    for (int64_t i = 0; i < m; i++)
        if (id[i] >= first && id[i] - first < rows)
            token[start[id[i] - first]++] = (int32_t)i;
    memmove(start + 1, start, (size_t)rows * sizeof *start);
    start[0] = 0;
}

ALWAYS_INLINE void row_add(float *sum, const void *x, int64_t h, bool bf)
{
    for (int64_t j = 0; j < h; j++)
        sum[j] += load_t(x, j, bf);
}

static void embed_back(const struct kernel_embed_back *g, enum dtype t, struct dev_stream *s)
{
    int32_t *start = g->scratch, *token = start + g->rows + 1;
    int64_t h = g->h;

    (void)s;
    assert(g->m < INT32_MAX);
    sort_tokens(start, token, g);
    /* Dynamic: frequent words sit together. Who adds a row does not change its sum. */
    #pragma omp parallel for num_threads(cpu_threads) schedule(dynamic, 64)
    for (int64_t r = 0; r < g->rows; r++) {
        float *sum = (float *)g->dtable + r * h;

        if (!g->add)
            memset(sum, 0, (size_t)h * sizeof *sum);
        for (int32_t i = start[r]; i < start[r + 1]; i++)
            if (t == DTYPE_BF16)
                row_add(sum, at_t(g->dy, token[i] * h, true), h, true);
            else
                row_add(sum, at_t(g->dy, token[i] * h, false), h, false);
    }
}

/* ---- positions ---- */

static int64_t position_of(const int32_t *pos, int64_t row, int64_t s)
{
    return pos ? pos[row] : row % s;
}

ALWAYS_INLINE void finish_row(const struct kernel_embed_finish *g, int64_t row, bool bf)
{
    const int64_t h = g->h;
    const void *x = at_t(g->x, row * h, bf);
    const void *position = g->position ? at_t(g->position, position_of(g->pos, row, g->s) * h, bf) : NULL;
    void *y = out_t(g->y, row * h, bf);
    float v[DROP_RUN], mask[DROP_RUN];

    for (int64_t j0 = 0; j0 < h; j0 += DROP_RUN) {
        int64_t n = min_i64(DROP_RUN, h - j0);

        for (int64_t j = 0; j < n; j++)
            v[j] = load_t(x, j0 + j, bf);
        if (position)
            for (int64_t j = 0; j < n; j++)
                v[j] += load_t(position, j0 + j, bf);
        if (drop_active(&g->drop)) {
            drop_run(mask, &g->drop, (g->drop.row0 + row) * h + j0, n);
            for (int64_t j = 0; j < n; j++)
                v[j] *= mask[j];
        }
        for (int64_t j = 0; j < n; j++)
            store_t(y, j0 + j, v[j], bf);
    }
}

static void embed_finish(const struct kernel_embed_finish *g, enum dtype t, struct dev_stream *s)
{
    (void)s;
    if (g->x == g->y && !g->position && !drop_active(&g->drop))
        return;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < g->m; i++)
        if (t == DTYPE_BF16)
            finish_row(g, i, true);
        else
            finish_row(g, i, false);
}

#define POSITION_COLS 64                /* columns of one work item, which sees all tokens in order */

static void position_back(const struct kernel_position_back *g, enum dtype t, struct dev_stream *s)
{
    int64_t h = g->h;

    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t col = 0; col < h; col += POSITION_COLS) {
        int64_t n = min_i64(POSITION_COLS, h - col);

        for (int64_t p = 0; p < g->n_pos && !g->add; p++)
            memset((float *)g->dposition + p * h + col, 0, (size_t)n * sizeof(float));
        for (int64_t i = 0; i < g->m; i++) {
            int64_t p = position_of(g->pos, i, g->s);

            assert(p >= 0 && p < g->n_pos);
            if (t == DTYPE_BF16)
                row_add((float *)g->dposition + p * h + col, at_t(g->dx, i * h + col, true), n, true);
            else
                row_add((float *)g->dposition + p * h + col, at_t(g->dx, i * h + col, false), n, false);
        }
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
