/*
 * columns.cu - column sums: gradients of biases, and the dropout they may lie behind
 *
 * Two stages. A block takes a strip of 32 packs of columns and a chunk of rows, 8 rows at a
 * time, and writes its sums; the second stage adds the chunks in order.
 *
 * H200, bf16 [16384, 2048]: sums 23 us (2.9 TB/s with both launches, 3.4 the first alone), from 40 before
 * BATCH: `da` may be `x`, so the compiler moves no load over a store by itself. With dropout 66 us,
 * most of it Philox.
 */
#include "kernels/cuda/columns.cuh"

#define LANES      32                   /* packs of a strip */
#define ROW_LANES  8
#define MAX_CHUNKS 512
#define FILL       1024                 /* blocks that keep the GPU busy */

static int64_t strips(int64_t n, int width)
{
    return ceil_div(n, (int64_t)LANES * width);
}

/* Shape alone decides, not T: fp32 has twice the strips of bf16, and may as well have the same chunks. */
int64_t cuda_column_chunks(int64_t m, int64_t n)
{
    int64_t want = min_i64(MAX_CHUNKS, ceil_div(FILL, strips(n, 8)));

    return max_i64(1, min_i64(want, m / (2 * ROW_LANES)));
}

#define BATCH 4                         /* rows of a thread on their way; written out, as `da` may be `x` */

/*
 * MOVE: v = x * mask, rounded to T and kept in `da`, before it is summed. One block: a strip and a
 * chunk of `rows` rows.
 */
template <typename T, int N, bool MOVE>
static __global__ void __launch_bounds__(LANES * ROW_LANES)
sum_strips(float *part, T *da, const T *x, struct dropout d, int64_t m, int64_t n, int64_t rows)
{
    __shared__ float room[ROW_LANES][LANES * N + 1];
    int64_t col = ((int64_t)blockIdx.x * LANES + threadIdx.x) * N;
    int64_t first = (int64_t)blockIdx.y * rows, end = min(first + rows, m);
    float sum[N] = {};

    for (int64_t i = first + threadIdx.y; i < end && col < n; i += BATCH * ROW_LANES) {
        pack<T, N> p[BATCH];

        #pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (i + k * ROW_LANES < end)
                p[k] = fetch_pack<T, N>(x + (i + k * ROW_LANES) * n + col);
        #pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (i + k * ROW_LANES < end) {
                float v[N];

                unpack(v, p[k]);
                if (MOVE) {
                    if (d.keep != 0)
                        drop(v, d, (d.row0 + i + k * ROW_LANES) * n + col);
                    p[k] = packed<T>(v);
                    unpack(v, p[k]);
                    *(pack<T, N> *)(da + (i + k * ROW_LANES) * n + col) = p[k];
                }
                #pragma unroll
                for (int j = 0; j < N; j++)
                    sum[j] += v[j];
            }
    }
    #pragma unroll
    for (int j = 0; j < N; j++)
        room[threadIdx.y][threadIdx.x * N + j] = sum[j];
    __syncthreads();
    if (!part)
        return;
    for (int c = threadIdx.y * LANES + threadIdx.x; c < LANES * N; c += LANES * ROW_LANES) {
        int64_t at = (int64_t)blockIdx.x * LANES * N + c;
        float all = 0;

        #pragma unroll
        for (int r = 0; r < ROW_LANES; r++)
            all += room[r][c];
        if (at < n)
            part[blockIdx.y * n + at] = all;
    }
}

template <typename T, int N>
static void launch(float *part, T *da, const T *x, struct dropout d, int64_t m, int64_t n, struct dev_stream *s)
{
    int64_t chunks = cuda_column_chunks(m, n), rows = ceil_div(m, chunks);
    dim3 grid((unsigned)strips(n, N), (unsigned)chunks), block(LANES, ROW_LANES);

    if (da)
        sum_strips<T, N, true><<<grid, block, 0, cuda_stream(s)>>>(part, da, x, d, m, n, rows);
    else
        sum_strips<T, N, false><<<grid, block, 0, cuda_stream(s)>>>(part, da, x, d, m, n, rows);
}

void cuda_columns(float *part, void *da, const void *x, const struct kernel_dropout *drop, int64_t m, int64_t n,
                  enum dtype t, struct dev_stream *s)
{
    struct dropout d = dropout_of(drop);

    if (!m || !n)
        return;
    WITH_T(t, {
        if (n % wide<T>::n == 0)
            launch<T, wide<T>::n>(part, (T *)da, (const T *)x, d, m, n, s);
        else
            launch<T, 1>(part, (T *)da, (const T *)x, d, m, n, s);
    });
}

/* ---- second stage ---- */

#define CHUNK_LANES 32

static __global__ void __launch_bounds__(32 * CHUNK_LANES)
add_chunks(float *out, float *out2, const float *part, int64_t chunks, int64_t stride, int64_t h, bool add)
{
    __shared__ float room[CHUNK_LANES][33];
    int64_t col = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0;

    if (blockIdx.y) {
        out = out2;
        part += h;
    }
    if (col < h)
        for (int64_t c = threadIdx.y; c < chunks; c += CHUNK_LANES)
            sum += part[c * stride + col];
    room[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    /* Turned: a warp now holds one column's CHUNK_LANES sums. */
    sum = warp_sum(room[threadIdx.x][threadIdx.y]);
    col = (int64_t)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && col < h)
        out[col] = (add ? out[col] : 0) + sum;
}

void cuda_add_chunks(float *out, float *out2, const float *part, int64_t chunks, int64_t stride, int64_t h, bool add,
                     struct dev_stream *s)
{
    dim3 grid((unsigned)ceil_div(h, 32), out2 ? 2 : 1);

    if (h)
        add_chunks<<<grid, dim3(32, CHUNK_LANES), 0, cuda_stream(s)>>>(out, out2, part, chunks, stride, h, add);
}

void cuda_column_sums(float *out, const void *x, int64_t m, int64_t n, bool add, enum dtype t, struct dev_stream *s)
{
    float *part = (float *)cuda_room(s);
    int64_t chunks = m ? cuda_column_chunks(m, n) : 0;

    if (!part)
        return;
    cuda_columns(part, NULL, x, NULL, m, n, t, s);
    cuda_add_chunks(out, NULL, part, chunks, n, n, add, s);
    cuda_launched("column sums");
}
