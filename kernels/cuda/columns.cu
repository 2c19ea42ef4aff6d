/*
 * columns.cu - column sums: gradients of biases, and of a dropout after them
 *
 * There are two stages. In the first, each block processes a strip of 32 packs of columns and a chunk of rows, 8 rows
 * at a time, and writes its sums. The second stage adds the sums of all chunks in order.
 *
 * H200, bf16 [16384, 2048]: the sums take 23 us (2.9 TB/s for both launches, 3.4 TB/s for the first alone). Without
 * BATCH they took 40 us: `da` may be the same memory as `x`, so the compiler does not move a load across a store. With
 * dropout they take 66 us, mostly for Philox.
 */
#include "kernels/cuda/columns.cuh"

#define LANES      32                   /* packs per strip */
#define ROW_LANES  8
#define MAX_CHUNKS 512
#define FILL       1024                 /* number of blocks that keeps the GPU busy */

static int64_t strips(int64_t n, int width)
{
    return ceil_div(n, (int64_t)LANES * width);
}

/*
 * The number of chunks depends only on the shape, not on T. fp32 has twice as many strips; the same number of chunks
 * suits it as well.
 */
int64_t cuda_column_chunks(int64_t m, int64_t n)
{
    int64_t want = min_i64(MAX_CHUNKS, ceil_div(FILL, strips(n, 8)));

    return max_i64(1, min_i64(want, m / (2 * ROW_LANES)));
}

/*
 * number of rows that a thread loads ahead; the code does this explicitly, because `da` may be the same memory as `x`
 */
#define BATCH 4

/*
 * Sum a strip of columns over a chunk of `rows` rows, in one block. With MOVE, v = x * mask is rounded to T and stored
 * in `da` before it is added.
 */
template <typename T, int N, bool MOVE>
static __global__ void __launch_bounds__(LANES * ROW_LANES)
sum_strips(const struct cuda_columns c, int64_t rows)
{
    __shared__ float room[ROW_LANES][LANES * N + 1];
    const int64_t m = c.m, n = c.n;
    const T *x = (const T *)c.x;
    T *da = (T *)c.da;
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
                    if (c.drop.keep != 0)
                        drop(v, c.drop, (c.drop.row0 + i + k * ROW_LANES) * n + col);
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
    if (!c.part)
        return;
    for (int j = threadIdx.y * LANES + threadIdx.x; j < LANES * N; j += LANES * ROW_LANES) {
        int64_t at = (int64_t)blockIdx.x * LANES * N + j;
        float all = 0;

        #pragma unroll
        for (int r = 0; r < ROW_LANES; r++)
            all += room[r][j];
        if (at < n)
            c.part[blockIdx.y * n + at] = all;
    }
}

template <typename T, int N>
static void launch(const struct cuda_columns &c, struct dev_stream *s)
{
    int64_t chunks = cuda_column_chunks(c.m, c.n), rows = ceil_div(c.m, chunks);
    dim3 grid((unsigned)strips(c.n, N), (unsigned)chunks), block(LANES, ROW_LANES);

    if (c.da)
        sum_strips<T, N, true><<<grid, block, 0, cuda_stream(s)>>>(c, rows);
    else
        sum_strips<T, N, false><<<grid, block, 0, cuda_stream(s)>>>(c, rows);
}

void cuda_columns(const struct cuda_columns *c, enum dtype t, struct dev_stream *s)
{
    if (!c->m || !c->n)
        return;
    WITH_T(t, {
        if (c->n % wide<T>::n == 0)
            launch<T, wide<T>::n>(*c, s);
        else
            launch<T, 1>(*c, s);
    });
}

/* ---- second stage ---- */

#define CHUNK_LANES 32

template <typename G>
static __global__ void __launch_bounds__(32 * CHUNK_LANES)
add_chunks(const struct cuda_chunks c)
{
    __shared__ float room[CHUNK_LANES][33];
    const float *part = blockIdx.y ? c.part + c.h : c.part;
    G *out = (G *)(blockIdx.y ? c.out2 : c.out);
    int64_t col = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0;

    if (col < c.h)
        for (int64_t i = threadIdx.y; i < c.chunks; i += CHUNK_LANES)
            sum += part[i * c.stride + col];
    room[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    /* After the transposition, a warp has the CHUNK_LANES sums of one column. */
    sum = warp_sum(room[threadIdx.x][threadIdx.y]);
    col = (int64_t)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && col < c.h)
        grad_put(out + col, sum, c.add);
}

void cuda_add_chunks(const struct cuda_chunks *c, struct dev_stream *s)
{
    dim3 grid((unsigned)ceil_div(c->h, 32), c->out2 ? 2 : 1);

    if (c->h)
        WITH_G(c->g, add_chunks<G><<<grid, dim3(32, CHUNK_LANES), 0, cuda_stream(s)>>>(*c));
}

void cuda_bias_back(const struct kernel_linear_dw *l, enum dtype t, struct dev_stream *s)
{
    struct cuda_columns columns = {};
    struct cuda_chunks chunks = {};
    float *part = (float *)cuda_room(s);

    if (!part)
        return;
    columns.m = l->m, columns.n = l->n;
    columns.x = l->dy;
    columns.part = part;
    cuda_columns(&columns, t, s);
    chunks.part = part;
    chunks.chunks = l->m ? cuda_column_chunks(l->m, l->n) : 0;
    chunks.stride = chunks.h = l->n;
    chunks.out = l->dbias;
    chunks.add = l->add;
    chunks.g = l->grad_t ? t : DTYPE_F32;
    cuda_add_chunks(&chunks, s);
    cuda_launched("column sums");
}
