/*
 * norm.cu - LayerNorm, the residual with dropout before it, and the gradients of both
 *
 * A row is held in the registers of W warps, NV packs of 16 bytes per thread. It is read only once, although each
 * statistic has its own pass, as on the CPU. If rows do not fit (h is not a multiple of a pack, or is very large), the
 * *_any kernels are used, which read the row again for each pass.
 *
 * H200, bf16 [16384, 2048], in TB/s, where a device copy has 4.23:
 *   layernorm        3.56   (3.23 if one warp holds the row as fp32: too few rows in flight)
 *   residual_norm    3.68, with dropout 3.26   (2.84 and 2.44 likewise)
 *   layernorm_back   2.63, added 2.95   (2.1, 2.6 with the next row in registers; 1.75 when packs were
 *                    read from shared memory two bytes at a time, see fetch_pack())
 */
#include "kernels/cuda/columns.cuh"

#define ANY_THREADS 256
#define ANY_WARPS   (ANY_THREADS / 32)

struct norm_args {
    void *z, *y;                        /* z is used by residual_norm only */
    float *mean, *rstd;
    const void *x, *bias, *residual;
    const void *gamma, *beta;           /* if gamma is NULL, only z is computed */
    struct dropout drop;
    int64_t m, h;
    float eps;
};

/* Returns the sum of x over the W warps that hold one row. All warps of a block must call this function together. */
template <int W> __device__ __forceinline__ float row_sum(float x, float *room)
{
    int warp = threadIdx.x / 32, first = warp / W * W;
    float sum = 0;

    x = warp_sum(x);
    if (W == 1)
        return x;
    __syncthreads();                    /* wait until all threads have read the sum of the previous call */
    if (threadIdx.x % 32 == 0)
        room[warp] = x;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < W; i++)
        sum += room[first + i];
    return sum;
}

/* Returns one pack of residual + dropout(x + bias), rounded to T. */
template <typename T, int N>
__device__ __forceinline__ pack<T, N> residual_pack(pack<T, N> x, pack<T, N> residual, const struct norm_args &a,
                                                    int64_t row, int64_t col)
{
    float v[N], w[N];

    unpack(v, x);
    if (a.bias) {
        load(w, (const T *)a.bias + col);
        #pragma unroll
        for (int j = 0; j < N; j++)
            v[j] += w[j];
    }
    if (a.drop.keep != 0)
        drop(v, a.drop, (a.drop.row0 + row) * a.h + col);
    unpack(w, residual);
    #pragma unroll
    for (int j = 0; j < N; j++)
        v[j] = w[j] + v[j];
    return packed<T>(v);
}

template <int W> struct rows_per {
    static const int block = W < 4 ? 4 / W : 1;
};

/* Loop over the packs of this thread. In the body, i is the number of the pack and `at` is its first column. */
#define EACH_PACK                                                                   \
    _Pragma("unroll")                                                               \
    for (int i = 0, at = lane * N; i < NV; i++, at += LANES * N)                    \
        if (at < h)

/* The packs stay in registers as T, not as fp32. This takes half the registers, so twice as many rows are in flight. */
template <typename T, int NV, int W, bool RESIDUAL>
static __global__ void __launch_bounds__(32 * W * rows_per<W>::block, (RESIDUAL ? 20 : 32) / (W < 4 ? 4 : W))
norm_rows(const struct norm_args a)
{
    const int N = wide<T>::n, LANES = 32 * W;
    __shared__ float room[W * rows_per<W>::block];
    int lane = threadIdx.x % LANES, h = (int)a.h;
    int64_t row = (int64_t)blockIdx.x * rows_per<W>::block + threadIdx.x / LANES;
    /* a row number past the end repeats the last row; its results are not stored */
    int64_t from = min(row, a.m - 1) * a.h;
    pack<T, N> x[NV], residual[NV];
    float sum = 0, squares = 0, mu, r, v[N];

    EACH_PACK
        x[i] = fetch_pack<T, N>((const T *)a.x + from + at);
    if (RESIDUAL) {
        EACH_PACK
            residual[i] = fetch_pack<T, N>((const T *)a.residual + from + at);
        EACH_PACK
            x[i] = residual_pack<T>(x[i], residual[i], a, row, at);
        if (row < a.m) {
            EACH_PACK
                *(pack<T, N> *)((T *)a.z + from + at) = x[i];
        }
        if (!a.gamma)
            return;
    }
    EACH_PACK {
        unpack(v, x[i]);
        #pragma unroll
        for (int j = 0; j < N; j++)
            sum += v[j];
    }
    mu = row_sum<W>(sum, room) / (float)h;
    EACH_PACK {
        unpack(v, x[i]);
        #pragma unroll
        for (int j = 0; j < N; j++)
            squares += (v[j] - mu) * (v[j] - mu);
    }
    r = 1.0f / sqrtf(row_sum<W>(squares, room) / (float)h + a.eps);
    if (row >= a.m)
        return;
    EACH_PACK {
        float g[N], b[N];

        unpack(v, x[i]);
        load(g, (const T *)a.gamma + at);
        load(b, (const T *)a.beta + at);
        #pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = fmaf((v[j] - mu) * r, g[j], b[j]);
        store((T *)a.y + from + at, v);
    }
    if (lane == 0 && a.mean)
        a.mean[row] = mu;
    if (lane == 0 && a.rstd)
        a.rstd[row] = r;
}

/*
 * Process one row per block. A thread processes the same columns in each pass, so it may read data that it has written.
 */
template <typename T, bool RESIDUAL>
static __global__ void __launch_bounds__(ANY_THREADS) norm_any(const struct norm_args a)
{
    __shared__ float room[ANY_WARPS];
    int64_t row = blockIdx.x, from = row * a.h;
    const T *x = (const T *)(RESIDUAL ? a.z : a.x) + from;
    float sum = 0, squares = 0, mu, r;

    for (int64_t j = threadIdx.x; j < a.h; j += ANY_THREADS) {
        if (RESIDUAL) {
            pack<T, 1> v = fetch_pack<T, 1>((const T *)a.x + from + j);
            pack<T, 1> z = residual_pack<T>(v, fetch_pack<T, 1>((const T *)a.residual + from + j), a, row, j);

            ((T *)a.z)[from + j] = z.v[0];
        }
        sum += up(x[j]);
    }
    if (RESIDUAL && !a.gamma)
        return;
    mu = block_sum<ANY_WARPS>(sum, room) / (float)a.h;
    for (int64_t j = threadIdx.x; j < a.h; j += ANY_THREADS)
        squares += (up(x[j]) - mu) * (up(x[j]) - mu);
    r = 1.0f / sqrtf(block_sum<ANY_WARPS>(squares, room) / (float)a.h + a.eps);
    for (int64_t j = threadIdx.x; j < a.h; j += ANY_THREADS)
        ((T *)a.y)[from + j] =
            down<T>(fmaf((up(x[j]) - mu) * r, up(((const T *)a.gamma)[j]), up(((const T *)a.beta)[j])));
    if (threadIdx.x == 0 && a.mean)
        a.mean[row] = mu;
    if (threadIdx.x == 0 && a.rstd)
        a.rstd[row] = r;
}

/*
 * Returns the arguments of the kernel, filled from `n`. The member x and the members that only residual_norm uses are
 * not set.
 */
static struct norm_args norm_args_of(const struct kernel_layernorm *n)
{
    struct norm_args a = {};

    a.y = n->y;
    a.mean = n->mean, a.rstd = n->rstd;
    a.gamma = n->gamma, a.beta = n->beta;
    a.m = n->m, a.h = n->h;
    a.eps = n->eps;
    return a;
}

template <typename T, bool RESIDUAL> static void norm_launch(const struct norm_args &a, struct dev_stream *s)
{
    int64_t packs = a.h / wide<T>::n;

    if (!a.m || !a.h)
        return;
#define ROWS(NV, W)                                                             \
    norm_rows<T, NV, W, RESIDUAL><<<(unsigned)ceil_div(a.m, rows_per<W>::block), \
                                    32 * W * rows_per<W>::block, 0, cuda_stream(s)>>>(a)
    if (a.h % wide<T>::n != 0 || packs > 2048)
        norm_any<T, RESIDUAL><<<(unsigned)a.m, ANY_THREADS, 0, cuda_stream(s)>>>(a);
    else if (packs <= 32)
        ROWS(1, 1);
    else if (packs <= 64)
        ROWS(2, 1);
    else if (packs <= 128)
        ROWS(4, 1);
    else if (packs <= 256)
        ROWS(4, 2);
    else if (packs <= 512)
        ROWS(4, 4);
    else if (packs <= 1024)
        ROWS(4, 8);
    else
        ROWS(4, 16);
#undef ROWS
    cuda_launched(RESIDUAL ? "residual_norm" : "layernorm");
}

static void layernorm(const struct kernel_layernorm *n, enum dtype t, struct dev_stream *s)
{
    struct norm_args a = norm_args_of(n);

    a.x = n->x;
    WITH_T(t, norm_launch<T, false>(a, s));
}

static void residual_norm(const struct kernel_residual_norm *r, enum dtype t, struct dev_stream *s)
{
    struct norm_args a = norm_args_of(&r->norm);

    a.z = r->z;
    a.x = r->a;
    a.bias = r->bias;
    a.residual = r->residual;
    a.drop = dropout_of(&r->drop);
    WITH_T(t, norm_launch<T, true>(a, s));
}

/*
 * ---- gradients: rows are divided into chunks; each chunk has its own sums over rows, which are added in order at the
 * end ----
 */

struct back_args {
    void *dx;
    float *part;                        /* [chunks, 2, h] */
    const void *dy, *x, *gamma;
    const float *mean, *rstd;
    const void *add_dx;                 /* may be NULL */
    int64_t m, h, rows;                 /* rows per chunk */
};

/*
 * The shared memory that holds the rows being loaded, as [STAGES][dy, x, add_dx][NV][threads] packs. Each thread later
 * reads only the packs that it has copied itself, so no barrier is needed.
 */
template <int NV> struct stages {
    static const int n = NV == 1 ? 4 : 2;
    static int bytes(int threads) { return n * 3 * NV * threads * 16; }
};

static __device__ __forceinline__ void copy_16(uint4 *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

/* Commit one group of copies per row, even if it is empty, because the wait counts groups. */
template <typename T, int NV, int W>
__device__ __forceinline__ void fetch_row(uint4 *stage, const struct back_args &a, int64_t row, bool there)
{
    const int N = wide<T>::n, THREADS = 32 * W;

    if (there) {
        #pragma unroll
        for (int i = 0; i < NV; i++) {
            int at = (threadIdx.x + i * THREADS) * N;
            int64_t from = row * a.h + at;

            if (at < a.h) {
                copy_16(stage + i * THREADS, (const T *)a.dy + from);
                copy_16(stage + (NV + i) * THREADS, (const T *)a.x + from);
                if (a.add_dx)
                    copy_16(stage + (2 * NV + i) * THREADS, (const T *)a.add_dx + from);
            }
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/*
 * Returns the sums of a and b over the block. There is only one barrier, so two consecutive calls must not use the same
 * `room`.
 */
template <int W> __device__ __forceinline__ float2 pair_sum(float a, float b, float2 *room)
{
    float2 sum = { 0, 0 };

    a = warp_sum(a);
    b = warp_sum(b);
    if (W == 1)
        return make_float2(a, b);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = make_float2(a, b);
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < W; i++) {
        sum.x += room[i].x;
        sum.y += room[i].y;
    }
    return sum;
}

/*
 * Compute the gradients of the rows of one chunk per block. With g = dy * gamma: dx = rstd * (g - mean(g) - xhat *
 * mean(g * xhat)) + add_dx.
 */
template <typename T, int NV, int W, int BLOCKS>
static __global__ void __launch_bounds__(32 * W, BLOCKS) back_rows(const struct back_args a)
{
    const int N = wide<T>::n, LANES = 32 * W, STAGES = stages<NV>::n, STAGE = 3 * NV * LANES;
    extern __shared__ uint4 staged[];
    __shared__ float2 room[2][W];
    int lane = threadIdx.x, h = (int)a.h;
    int64_t row = blockIdx.x * a.rows, end = min(row + a.rows, a.m);
    float dgamma[NV][N] = {}, dbeta[NV][N] = {}, mean = a.mean[row], rstd = a.rstd[row];
    const float per_h = 1.0f / (float)h;
    float gamma[NV][N];

    EACH_PACK
        load(gamma[i], (const T *)a.gamma + at);
    for (int k = 0; k < STAGES - 1; k++)
        fetch_row<T, NV, W>(staged + k * STAGE + lane, a, row + k, row + k < end);
    for (int turn = 0, slot = 0; row < end; row++, turn ^= 1) {
        const uint4 *now = staged + slot * STAGE + lane;
        float sum = 0, sum_x = 0, next_mean = 0, next_rstd = 0, g[NV][N], xhat[NV][N], v[N];
        int last = slot == 0 ? STAGES - 1 : slot - 1;

        /* Load a new row into the stage that the previous row occupied. */
        fetch_row<T, NV, W>(staged + last * STAGE + lane, a, row + STAGES - 1, row + STAGES - 1 < end);
        if (row + 1 < end) {
            next_mean = a.mean[row + 1];
            next_rstd = a.rstd[row + 1];
        }
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 1) : "memory");
        EACH_PACK {
            load(g[i], (const T *)(now + i * LANES));
            load(xhat[i], (const T *)(now + (NV + i) * LANES));
            #pragma unroll
            for (int j = 0; j < N; j++) {
                xhat[i][j] = (xhat[i][j] - mean) * rstd;
                dgamma[i][j] += g[i][j] * xhat[i][j];
                dbeta[i][j] += g[i][j];
                g[i][j] *= gamma[i][j];
                sum += g[i][j];
                sum_x += g[i][j] * xhat[i][j];
            }
        }
        float2 sums = pair_sum<W>(sum, sum_x, room[turn]);

        sum = sums.x * per_h;
        sum_x = sums.y * per_h;
        EACH_PACK {
            if (a.add_dx)
                load(v, (const T *)(now + (2 * NV + i) * LANES));
            #pragma unroll
            for (int j = 0; j < N; j++)
                g[i][j] = rstd * (g[i][j] - sum - xhat[i][j] * sum_x) + (a.add_dx ? v[j] : 0.0f);
            store((T *)a.dx + row * a.h + at, g[i]);
        }
        slot = slot == STAGES - 1 ? 0 : slot + 1;
        mean = next_mean;
        rstd = next_rstd;
    }
    EACH_PACK {
        float *to = a.part + blockIdx.x * 2 * a.h + at;

        #pragma unroll
        for (int j = 0; j < N; j++) {
            to[j] = dgamma[i][j];
            to[a.h + j] = dbeta[i][j];
        }
    }
}

template <typename T> static __global__ void __launch_bounds__(ANY_THREADS) back_any(const struct back_args a)
{
    __shared__ float room[ANY_WARPS];
    int64_t first = blockIdx.x * a.rows, end = min(first + a.rows, a.m);
    float *dgamma = a.part + blockIdx.x * 2 * a.h, *dbeta = dgamma + a.h;
    const T *gamma = (const T *)a.gamma;

    for (int64_t j = threadIdx.x; j < a.h; j += ANY_THREADS)
        dgamma[j] = dbeta[j] = 0;
    for (int64_t row = first; row < end; row++) {
        const T *dy = (const T *)a.dy + row * a.h, *x = (const T *)a.x + row * a.h;
        const T *plus = a.add_dx ? (const T *)a.add_dx + row * a.h : NULL;
        float mean = a.mean[row], rstd = a.rstd[row], sum = 0, sum_x = 0;

        for (int64_t j = threadIdx.x; j < a.h; j += ANY_THREADS) {
            float d = up(dy[j]), xhat = (up(x[j]) - mean) * rstd, g = d * up(gamma[j]);

            sum += g;
            sum_x += g * xhat;
            dgamma[j] += d * xhat;
            dbeta[j] += d;
        }
        sum = block_sum<ANY_WARPS>(sum, room) / (float)a.h;
        sum_x = block_sum<ANY_WARPS>(sum_x, room) / (float)a.h;
        for (int64_t j = threadIdx.x; j < a.h; j += ANY_THREADS) {
            float xhat = (up(x[j]) - mean) * rstd, g = up(dy[j]) * up(gamma[j]);
            float v = rstd * (g - sum - xhat * sum_x);

            ((T *)a.dx)[row * a.h + j] = down<T>(plus ? up(plus[j]) + v : v);
        }
    }
}

/*
 * The shape of the blocks for rows of h elements: NV packs per thread, W warps, and the number of such blocks that run
 * on one multiprocessor.
 */
struct back_shape {
    int nv, w, blocks;
};

template <typename T> static struct back_shape back_shape(int64_t h)
{
    int64_t packs = h / wide<T>::n;

    if (h % wide<T>::n != 0 || packs > 2048)
        return { 0, ANY_WARPS, 4 };
    if (packs <= 32)
        return { 1, 1, 16 };
    if (packs <= 64)
        return { 1, 2, 16 };
    if (packs <= 128)
        return { 1, 4, 8 };
    if (packs <= 256)
        return { 1, 8, 4 };
    if (packs <= 512)
        return { 1, 16, 2 };
    if (packs <= 1024)
        return { 2, 16, 1 };
    return { 4, 16, 1 };
}

/* Returns the number of chunks. It is limited to the number of blocks that the GPU runs at the same time. */
static int64_t back_chunks(int64_t m, struct back_shape b)
{
    int64_t chunks = max_i64(1, min_i64(m, (int64_t)cuda_sm_count() * b.blocks));

    return max_i64(1, ceil_div(m, ceil_div(max_i64(m, 1), chunks)));
}

static uint64_t layernorm_scratch(int64_t m, int64_t h)
{
    int64_t back = max_i64(back_chunks(m, back_shape<bf16>(h)), back_chunks(m, back_shape<float>(h)));

    return (uint64_t)max_i64(2 * back, cuda_column_chunks(m, h)) * (uint64_t)h * sizeof(float);
}

template <typename T, int NV, int W, int BLOCKS> static void back_start(const struct back_args &a, int64_t chunks,
                                                                        cudaStream_t s)
{
    int bytes = stages<NV>::bytes(32 * W);

    cuda_record_fault("layernorm_back", cudaFuncSetAttribute(back_rows<T, NV, W, BLOCKS>,
                                                             cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    back_rows<T, NV, W, BLOCKS><<<(unsigned)chunks, 32 * W, bytes, s>>>(a);
}

template <typename T> static void back_launch(const struct back_args &a, struct back_shape b, int64_t chunks,
                                              cudaStream_t s)
{
#define BACK(NV, W, BLOCKS) \
    if (b.nv == NV && b.w == W) \
        back_start<T, NV, W, BLOCKS>(a, chunks, s)
    if (b.nv == 0)
        back_any<T><<<(unsigned)chunks, ANY_THREADS, 0, s>>>(a);
    BACK(1, 1, 16);
    BACK(1, 2, 16);
    BACK(1, 4, 8);
    BACK(1, 8, 4);
    BACK(1, 16, 2);
    BACK(2, 16, 1);
    BACK(4, 16, 1);
#undef BACK
}

static void layernorm_back(const struct kernel_layernorm_back *n, enum dtype t, struct dev_stream *s)
{
    struct back_shape b = t == DTYPE_F32 ? back_shape<float>(n->h) : back_shape<bf16>(n->h);
    int64_t chunks = back_chunks(n->m, b);
    struct back_args a = {};
    struct cuda_chunks sums = {};

    a.dx = n->dx;
    a.part = (float *)n->scratch;
    a.dy = n->dy, a.x = n->x, a.gamma = n->gamma;
    a.mean = n->mean, a.rstd = n->rstd;
    a.add_dx = n->add_dx;
    a.m = n->m, a.h = n->h;
    a.rows = ceil_div(n->m, chunks);
    if (n->m)
        WITH_T(t, back_launch<T>(a, b, chunks, cuda_stream(s)));
    sums.part = a.part;
    sums.chunks = n->m ? chunks : 0, sums.stride = 2 * n->h, sums.h = n->h;
    sums.out = n->dgamma, sums.out2 = n->dbeta;
    sums.add = n->add;
    sums.g = n->grad_t ? t : DTYPE_F32;
    cuda_add_chunks(&sums, s);
    cuda_launched("layernorm_back");
}

static void dropout_back(const struct kernel_dropout_back *d, enum dtype t, struct dev_stream *s)
{
    bool moves = d->da != d->dz || d->drop.p > 0;
    struct cuda_columns columns = {};
    struct cuda_chunks sums = {};

    if (!moves && !d->dbias)
        return;
    columns.m = d->m, columns.n = d->h;
    columns.x = d->dz;
    columns.drop = dropout_of(&d->drop);
    columns.da = moves ? d->da : NULL;
    columns.part = d->dbias ? (float *)d->scratch : NULL;
    cuda_columns(&columns, t, s);
    sums.part = columns.part;
    sums.chunks = d->m ? cuda_column_chunks(d->m, d->h) : 0, sums.stride = sums.h = d->h;
    sums.out = d->dbias;
    sums.add = d->add;
    sums.g = d->grad_t ? t : DTYPE_F32;
    if (d->dbias)
        cuda_add_chunks(&sums, s);
    cuda_launched("dropout_back");
}

void cuda_norm_fill(struct kernels *k)
{
    k->layernorm = layernorm;
    k->layernorm_back = layernorm_back;
    k->layernorm_scratch = layernorm_scratch;
    k->residual_norm = residual_norm;
    k->dropout_back = dropout_back;
}
