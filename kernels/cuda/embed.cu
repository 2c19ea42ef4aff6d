/*
 * embed.cu - embedding lookup, and gradients of the table
 *
 * For the gradients, tokens are sorted by row (stable, so ascending within a row). The tokens of a row are then
 * added in that order, by one block per row. If a word is very frequent, one block would still be busy with its row
 * when all others are done. Such a row is therefore processed by several blocks, and each has a few columns.
 *
 * H200, 16384 tokens of a text-like distribution, h 2048: embed takes 32 us (4.1 TB/s); the gradient takes 160 to
 * 180 us, including 40 for the sort. One warp per row, with tokens one after the other, took 454, because each
 * load waited for the previous one.
 */
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/device.cuh"

#define THREADS 256

/* ---- forward ---- */

/* Each thread processes N elements, called a pack. A row consists of `packs` packs. */
template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
gather(const struct kernel_embed g, int64_t packs)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, token = i / packs, col = i % packs * N;

    if (token >= g.m)
        return;
    int64_t row = g.id[token] - g.first;
    pack<T, N> v = {};

    if (row >= 0 && row < g.rows)
        v = *(const pack<T, N> *)((const T *)g.table + row * packs * N + col);
    *(pack<T, N> *)((T *)g.y + token * packs * N + col) = v;
}

static void embed(const struct kernel_embed *g, enum dtype t, struct dev_stream *s)
{
    if (!g->m || !g->h)
        return;
    WITH_T(t, {
        const int N = wide<T>::n;
        bool whole = g->h % N == 0;
        int64_t packs = whole ? g->h / N : g->h;
        unsigned blocks = (unsigned)ceil_div(g->m * packs, THREADS);

        if (whole)
            gather<T, N><<<blocks, THREADS, 0, cuda_stream(s)>>>(*g, packs);
        else
            gather<T, 1><<<blocks, THREADS, 0, cuda_stream(s)>>>(*g, packs);
    });
    cuda_launched("embed");
}

/* ---- gradients ---- */

/* If a row has more tokens than LONG, several threads share each of its columns. A warp inspects LONG + 2 keys. */
#define LONG 30

/*
 * The tokens sorted by key. The key of a token is its row. Tokens of rows on other ranks have the key `rows`, so they
 * are sorted to the end.
 */
struct sorted {
    uint32_t *key_in, *key, *token_in, *token;
    void *temp;
    size_t temp_bytes;
};

static size_t sort_temp(int64_t m)
{
    size_t bytes = 0;

    /* The memory is computed for keys of 32 bits, for which a sort of m items needs the most. */
    cuda_record_fault("sort", cub::DeviceRadixSort::SortPairs(NULL, bytes, (const uint32_t *)NULL, (uint32_t *)NULL,
                                                              (const uint32_t *)NULL, (uint32_t *)NULL, (int)m, 0, 32));
    return bytes;
}

static int64_t array_bytes(int64_t m)
{
    return ceil_div(m * 4, 256) * 256;
}

static uint64_t embed_scratch(int64_t m, int64_t rows)
{
    (void)rows;
    return 4 * (uint64_t)array_bytes(m) + sort_temp(m);
}

static struct sorted sorted_in(void *scratch, int64_t m)
{
    char *p = (char *)scratch;
    int64_t step = array_bytes(m);

    return { (uint32_t *)p, (uint32_t *)(p + step), (uint32_t *)(p + 2 * step), (uint32_t *)(p + 3 * step),
             p + 4 * step, sort_temp(m) };
}

static __global__ void make_keys(struct sorted a, const int32_t *id, int64_t first, int64_t rows, int64_t m)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= m)
        return;
    int64_t row = id[i] - first;

    a.key_in[i] = (uint32_t)(row >= 0 && row < rows ? row : rows);
    a.token_in[i] = (uint32_t)i;
}

#define BATCH 8                         /* tokens that a thread loads ahead */

/*
 * Add the rows of dy of n tokens to sum. token(i) is the number of the i-th token; this thread adds every step-th
 * token.
 */
template <typename T, int N, typename F>
__device__ __forceinline__ void add_tokens(float (&sum)[N], const T *dy, int64_t h, int n, int step, F token)
{
    for (int i = 0; i < n; i += BATCH * step) {
        pack<T, N> p[BATCH];

        #pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (i + k * step < n)
                p[k] = fetch_pack<T, N>(dy + (int64_t)token(i + k * step) * h);
        #pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (i + k * step < n) {
                float v[N];

                unpack(v, p[k]);
                #pragma unroll
                for (int j = 0; j < N; j++)
                    sum[j] += v[j];
            }
    }
}

/*
 * Add the tokens of short rows. There is one block for each sorted token and THREADS packs of columns. If the token is
 * the first of its row, and the row has at most LONG tokens, the block processes this row. A warp reads all surrounding
 * keys at once, so it waits for memory once instead of LONG times.
 */
template <typename T, typename G, int N>
static __global__ void __launch_bounds__(THREADS)
short_rows(const struct kernel_embed_back g, struct sorted a)
{
    const T *dy = (const T *)g.dy;
    const int64_t rows = g.rows, m = g.m, h = g.h;
    int lane = threadIdx.x % 32;
    int64_t at = blockIdx.x, col = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * N, look = at - 1 + lane;
    uint32_t row = a.key[at];
    bool mine = look >= 0 && look < m && lane < LONG + 2 && a.key[look] == row;
    unsigned run = __ballot_sync(0xffffffffu, mine);    /* bit 0 is the previous token */
    int n = __ffs((int)~(run >> 1)) - 1;

    if (row >= rows || run % 2 || n > LONG || col >= h)
        return;
    G *to = (G *)g.dtable + (int64_t)row * h + col;
    float sum[N] = {};

    grad_begin(sum, to, g.add);
    add_tokens<T, N>(sum, dy + col, h, n, 1, [&](int i) { return a.token[at + i]; });
    grad_end(to, sum, g.add);
}

#define LONG_PACKS 16
#define LONG_ROWS  (THREADS / LONG_PACKS)

/*
 * Add the tokens of long rows. A row with more than LONG tokens contains a sorted token whose index is a multiple of
 * LONG. Block x inspects the sorted token x * LONG. If this is the first such token of a long row, the block processes
 * the row. Block y processes LONG_PACKS packs of columns.
 */
template <typename T, typename G, int N>
static __global__ void __launch_bounds__(THREADS)
long_rows(const struct kernel_embed_back g, struct sorted a)
{
    const T *dy = (const T *)g.dy;
    const int64_t rows = g.rows, m = g.m, h = g.h;
    __shared__ float room[LONG_ROWS][LONG_PACKS * N + 1];
    int64_t at = (int64_t)blockIdx.x * LONG, first = (int64_t)blockIdx.y * LONG_PACKS * N, start = at - threadIdx.x;
    int lane = threadIdx.x / LONG_PACKS, col = threadIdx.x % LONG_PACKS * N, n, more;
    uint32_t row = a.key[at];
    float sum[N] = {}, all = 0;

    if (row >= rows || (at > 0 && a.key[at - LONG] == row))
        return;
    /*
     * Count the tokens of the row. Fewer than LONG of them precede `at`. Those that follow `at` are counted in steps of
     * one block of threads.
     */
    n = __syncthreads_count(threadIdx.x && threadIdx.x < LONG && start >= 0 && a.key[start] == row);
    start = at - n;
    do {
        int64_t i = start + n + threadIdx.x;

        more = __syncthreads_count(i < m && a.key[i] == row);
        n += more;
    } while (more == THREADS);
    if (n <= LONG)
        return;
    if (first + col < h) {
        const uint32_t *token = a.token + start + lane;

        add_tokens<T, N>(sum, dy + first + col, h, n - lane, LONG_ROWS, [&](int i) { return token[i]; });
    }
    #pragma unroll
    for (int j = 0; j < N; j++)
        room[lane][col + j] = sum[j];
    __syncthreads();
    col = threadIdx.x;
    if (col >= LONG_PACKS * N || first + col >= h)
        return;
    for (int r = 0; r < LONG_ROWS; r++)
        all += room[r][col];
    grad_put((G *)g.dtable + (int64_t)row * h + first + col, all, g.add);
}

template <typename T, typename G, int N>
static void add_rows(const struct kernel_embed_back *g, struct sorted a, cudaStream_t s)
{
    dim3 each((unsigned)g->m, (unsigned)ceil_div(g->h, THREADS * N));
    dim3 some((unsigned)ceil_div(g->m, LONG), (unsigned)ceil_div(g->h, LONG_PACKS * N));

    short_rows<T, G, N><<<each, THREADS, 0, s>>>(*g, a);
    long_rows<T, G, N><<<some, THREADS, 0, s>>>(*g, a);
}

static int bits_of(int64_t x)
{
    int n = 0;

    for (; x; x >>= 1)
        n++;
    return n;
}

static void embed_back(const struct kernel_embed_back *g, enum dtype t, struct dev_stream *s)
{
    struct sorted a = sorted_in(g->scratch, g->m);
    cudaStream_t on = cuda_stream(s);

    if (!g->add)
        cuda_dev.zero(g->dtable, (uint64_t)g->rows * (uint64_t)g->h * (g->grad_t ? 2 : 4), s);
    if (!g->m || !g->h)
        return;
    make_keys<<<(unsigned)ceil_div(g->m, THREADS), THREADS, 0, on>>>(a, g->id, g->first, g->rows, g->m);
    cuda_record_fault("sort", cub::DeviceRadixSort::SortPairs(a.temp, a.temp_bytes, a.key_in, a.key, a.token_in,
                                                              a.token, (int)g->m, 0, bits_of(g->rows), on));
    WITH_T_AND_G(t, g->grad_t, {
        if (g->h % wide<T>::n == 0)
            add_rows<T, G, wide<T>::n>(g, a, on);
        else
            add_rows<T, G, 1>(g, a, on);
    });
    cuda_launched("embed_back");
}

/* ---- positions ---- */

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS)
finish(const struct kernel_embed_finish g, const struct dropout d, int64_t packs)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, token = i / packs, col = i % packs * N;
    float v[N], p[N];

    if (token >= g.m)
        return;
    load(v, (const T *)g.x + i * N);
    if (g.position) {
        load(p, (const T *)g.position + (g.pos ? g.pos[token] : token % g.s) * packs * N + col);
        #pragma unroll
        for (int j = 0; j < N; j++)
            v[j] += p[j];
    }
    if (d.keep != 0)
        drop(v, d, (d.row0 + token) * packs * N + col);
    store((T *)g.y + i * N, v);
}

static void embed_finish(const struct kernel_embed_finish *g, enum dtype t, struct dev_stream *s)
{
    struct dropout d = dropout_of(&g->drop);

    if ((g->x == g->y && !g->position && d.keep == 0) || !g->m || !g->h)
        return;
    WITH_T(t, {
        const int N = wide<T>::n;
        bool whole = g->h % N == 0;
        int64_t packs = whole ? g->h / N : g->h;
        unsigned blocks = (unsigned)ceil_div(g->m * packs, THREADS);

        if (whole)
            finish<T, N><<<blocks, THREADS, 0, cuda_stream(s)>>>(*g, d, packs);
        else
            finish<T, 1><<<blocks, THREADS, 0, cuda_stream(s)>>>(*g, d, packs);
    });
    cuda_launched("embed_finish");
}

#define POSITION_COLS 8                 /* number of columns per thread; they are THREADS apart */

/*
 * Compute the gradient of one position (block x) in THREADS * POSITION_COLS columns (block y). The block scans the
 * tokens, THREADS at a time, lists the tokens at this position in order, and adds their rows. `pos` is read from the L2
 * cache.
 */
template <typename T, typename G>
static __global__ void __launch_bounds__(THREADS)
position_rows(const struct kernel_position_back g)
{
    __shared__ int32_t hits[THREADS];
    __shared__ int count[THREADS / 32];
    const int64_t m = g.m, h = g.h, first = (int64_t)blockIdx.y * THREADS * POSITION_COLS + threadIdx.x;
    const T *dx = (const T *)g.dx + first;
    G *to = (G *)g.dposition + blockIdx.x * h + first;
    float sum[POSITION_COLS][1] = {};
    int warp = threadIdx.x / 32;

#define EACH_COLUMN                                                     \
    _Pragma("unroll")                                                   \
    for (int c = 0; c < POSITION_COLS; c++)                             \
        if (first + c * THREADS < h)
    EACH_COLUMN
        grad_begin(sum[c], to + c * THREADS, g.add);
    for (int64_t base = 0; base < m; base += THREADS) {
        int64_t i = base + threadIdx.x;
        bool hit = i < m && (g.pos ? g.pos[i] : i % g.s) == blockIdx.x;
        unsigned votes = __ballot_sync(0xffffffffu, hit);
        int before = 0, all = 0;

        if (!__syncthreads_or(hit))     /* this call is also a barrier: all threads have processed the previous list */
            continue;
        if (threadIdx.x % 32 == 0)
            count[warp] = __popc(votes);
        __syncthreads();
        for (int w = 0; w < THREADS / 32; w++) {
            before += w < warp ? count[w] : 0;
            all += count[w];
        }
        if (hit)
            hits[before + __popc(votes & ((1u << threadIdx.x % 32) - 1))] = (int32_t)threadIdx.x;
        __syncthreads();
        for (int k = 0; k < all; k++)
            EACH_COLUMN
                sum[c][0] += up(dx[(base + hits[k]) * h + c * THREADS]);
    }
    EACH_COLUMN
        grad_end(to + c * THREADS, sum[c], g.add);
#undef EACH_COLUMN
}

/*
 * Compute the gradient of positions if pos is row % s, so that the tokens of each position are known. N columns per
 * thread.
 */
template <typename T, typename G, int N>
static __global__ void __launch_bounds__(THREADS)
position_strides(const struct kernel_position_back g, int64_t packs)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, p = i / packs;
    const T *dx = (const T *)g.dx;
    G *to = (G *)g.dposition + i * N;
    float sum[N] = {}, v[N];

    if (p >= g.n_pos)
        return;
    grad_begin(sum, to, g.add);
    if (p < g.s) {
        #pragma unroll 4
        for (int64_t token = p; token < g.m; token += g.s) {
            load(v, dx + token * packs * N + i % packs * N);
            #pragma unroll
            for (int j = 0; j < N; j++)
                sum[j] += v[j];
        }
    }
    grad_end(to, sum, g.add);
}

static void position_back(const struct kernel_position_back *g, enum dtype t, struct dev_stream *s)
{
    bool whole = g->h % 4 == 0;
    int64_t packs = whole ? g->h / 4 : g->h;
    unsigned blocks = (unsigned)ceil_div(g->n_pos * packs, THREADS);
    dim3 some((unsigned)g->n_pos, (unsigned)ceil_div(g->h, THREADS * POSITION_COLS));
    cudaStream_t on = cuda_stream(s);

    if (!g->n_pos || !g->h)
        return;
    WITH_T_AND_G(t, g->grad_t, {
        if (g->pos)
            position_rows<T, G><<<some, THREADS, 0, on>>>(*g);
        else if (whole)
            position_strides<T, G, 4><<<blocks, THREADS, 0, on>>>(*g, packs);
        else
            position_strides<T, G, 1><<<blocks, THREADS, 0, on>>>(*g, packs);
    });
    cuda_launched("position_back");
}

void cuda_embed_fill(struct kernels *k)
{
    k->embed = embed;
    k->embed_back = embed_back;
    k->embed_scratch = embed_scratch;
    k->embed_finish = embed_finish;
    k->position_back = position_back;
}
