/*
 * embed.c - rows of a table by token, and gradients back into them
 */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/philox.h"

static void embed(void *y, const int32_t *id, const void *table, int64_t first, int64_t rows, int64_t m, int64_t h,
                  enum dtype t, struct dev_stream *s)
{
    bool bf = t == DTYPE_BF16;
    size_t bytes = (size_t)h * (bf ? 2 : 4);

    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        int64_t row = id[i] - first;

        if (row >= 0 && row < rows)
            memcpy(out_t(y, i * h, bf), at_t(table, row * h, bf), bytes);
        else
            memset(out_t(y, i * h, bf), 0, bytes);
    }
}

/* ---- back: tokens are sorted by row first, so that each row has one owner and one order ---- */

static uint64_t embed_scratch(int64_t m, int64_t rows)
{
    return ((uint64_t)m + (uint64_t)rows + 1) * sizeof(int32_t);
}

/* token[start[r]] .. token[start[r + 1]]: the tokens of row r, ascending */
static void sort_tokens(int32_t *start, int32_t *token, const int32_t *id, int64_t first, int64_t rows, int64_t m)
{
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

static void embed_back(float *dtable, const int32_t *id, const void *dy, int64_t first, int64_t rows, int64_t m,
                       int64_t h, bool add, void *scratch, enum dtype t, struct dev_stream *s)
{
    int32_t *start = scratch, *token = start + rows + 1;

    (void)s;
    assert(m < INT32_MAX);
    sort_tokens(start, token, id, first, rows, m);
    /* Dynamic: frequent words sit together. Who adds a row does not change its sum. */
    #pragma omp parallel for num_threads(cpu_threads) schedule(dynamic, 64)
    for (int64_t r = 0; r < rows; r++) {
        float *sum = dtable + r * h;

        if (!add)
            memset(sum, 0, (size_t)h * sizeof *sum);
        for (int32_t i = start[r]; i < start[r + 1]; i++)
            if (t == DTYPE_BF16)
                row_add(sum, at_t(dy, token[i] * h, true), h, true);
            else
                row_add(sum, at_t(dy, token[i] * h, false), h, false);
    }
}

/* ---- positions ---- */

static int64_t position_of(const int32_t *pos, int64_t row, int64_t s_len)
{
    return pos ? pos[row] : row % s_len;
}

ALWAYS_INLINE void finish_row(void *y, const void *x, const void *position, const struct kernel_dropout *drop,
                              int64_t row, int64_t h, bool bf)
{
    float v[DROP_RUN], mask[DROP_RUN];

    for (int64_t j0 = 0; j0 < h; j0 += DROP_RUN) {
        int64_t n = min_i64(DROP_RUN, h - j0);

        for (int64_t j = 0; j < n; j++)
            v[j] = load_t(x, j0 + j, bf);
        if (position)
            for (int64_t j = 0; j < n; j++)
                v[j] += load_t(position, j0 + j, bf);
        if (drop_active(drop)) {
            drop_run(mask, drop, (drop->row0 + row) * h + j0, n);
            for (int64_t j = 0; j < n; j++)
                v[j] *= mask[j];
        }
        for (int64_t j = 0; j < n; j++)
            store_t(y, j0 + j, v[j], bf);
    }
}

static void embed_finish(void *y, const void *x, const void *position, const int32_t *pos, int64_t s_len,
                         const struct kernel_dropout *drop, int64_t m, int64_t h, enum dtype t, struct dev_stream *s)
{
    bool bf = t == DTYPE_BF16;

    (void)s;
    if (x == y && !position && !drop_active(drop))
        return;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < m; i++) {
        const void *p = position ? at_t(position, position_of(pos, i, s_len) * h, bf) : NULL;

        if (bf)
            finish_row(out_t(y, i * h, true), at_t(x, i * h, true), p, drop, i, h, true);
        else
            finish_row(out_t(y, i * h, false), at_t(x, i * h, false), p, drop, i, h, false);
    }
}

#define POSITION_COLS 64                /* columns of one work item, which sees all tokens in order */

static void position_back(float *dposition, int64_t n_pos, const void *dx, const int32_t *pos, int64_t s_len, int64_t m,
                          int64_t h, bool add, enum dtype t, struct dev_stream *s)
{
    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t col = 0; col < h; col += POSITION_COLS) {
        int64_t n = min_i64(POSITION_COLS, h - col);

        for (int64_t p = 0; p < n_pos && !add; p++)
            memset(dposition + p * h + col, 0, (size_t)n * sizeof(float));
        for (int64_t i = 0; i < m; i++) {
            int64_t p = position_of(pos, i, s_len);

            assert(p >= 0 && p < n_pos);
            if (t == DTYPE_BF16)
                row_add(dposition + p * h + col, at_t(dx, i * h + col, true), n, true);
            else
                row_add(dposition + p * h + col, at_t(dx, i * h + col, false), n, false);
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
