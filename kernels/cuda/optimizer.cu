/*
 * optimizer.cu - the gradient norm and AdamW
 *
 * Both process a whole list of runs (one per parameter) in one launch; a table maps each block to its run. With a
 * launch per parameter, the 290 parameters of a 560M model left the GPU idle for one hundredth of a step. Both are
 * limited by memory bandwidth: on a GPU whose device copy reaches 4.23 TB/s, adamw reached 4.21 (30 bytes per element;
 * torch's fused version 3.2) and sumsq 4.46 on one long run.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.cuh"

#define THREADS     256
#define QUAD        4                   /* number of fp32 in 16 bytes */
#define STEP        (THREADS * QUAD)    /* elements per AdamW block */
#define SUM_THREADS 512
#define SUM_CHUNK   (SUM_THREADS * QUAD * 8)    /* elements per norm block */

/* ---- lists of runs ---- */

/* A run of struct kernel_run in the form that the kernels use. */
struct optimizer_run {
    int64_t at, n, w_at;
    int64_t first_step, first_chunk;    /* the index of its first block in the kernels adamw and sumsq_runs */
    int64_t chunks;
    int out;
    float decay;
};

struct kernel_runs {
    char *memory;                       /* device memory for all arrays below */
    struct optimizer_run *run;
    int *of_step, *of_chunk;            /* for each block of a kernel, the index of its run */
    double *sums;                       /* one number per block of sumsq_runs */
    int n;
    int64_t steps, chunks;
};

static void *carve_scratch(char **at, uint64_t bytes)
{
    void *p = *at;

    *at += (bytes + 255) / 256 * 256;
    return p;
}

/* Returns an array with the index of the run that each of `blocks` blocks belongs to. The caller frees it. */
static int *blocks_of(const struct optimizer_run *run, int n, int64_t blocks, bool steps)
{
    int *of = (int *)malloc((size_t)(blocks + 1) * sizeof *of);

    if (!of)
        abort();
    for (int i = 0; i < n; i++) {
        int64_t b = steps ? run[i].first_step : run[i].first_chunk;
        int64_t end = i + 1 == n ? blocks : steps ? run[i + 1].first_step : run[i + 1].first_chunk;

        for (; b < end; b++)
            of[b] = i;
    }
    return of;
}

static void fill(struct kernel_runs *r, const struct optimizer_run *run)
{
    int *steps = blocks_of(run, r->n, r->steps, true), *chunks = blocks_of(run, r->n, r->chunks, false);

    cuda_dev.copy(r->run, run, (uint64_t)r->n * sizeof *run, NULL);
    cuda_dev.copy(r->of_step, steps, (uint64_t)r->steps * sizeof *steps, NULL);
    cuda_dev.copy(r->of_chunk, chunks, (uint64_t)r->chunks * sizeof *chunks, NULL);
    cuda_dev.stream_sync(NULL);
    free(steps);
    free(chunks);
}

static struct kernel_runs *runs_new(const struct kernel_run *given, int n, struct err *e)
{
    struct kernel_runs *r = (struct kernel_runs *)calloc(1, sizeof *r);
    struct optimizer_run *run = (struct optimizer_run *)calloc((size_t)n + 1, sizeof *run);
    uint64_t len;
    char *at;

    if (!r || !run)
        abort();
    r->n = n;
    for (int i = 0; i < n; i++) {
        run[i] = { given[i].at, given[i].n, given[i].w_at, r->steps, r->chunks, ceil_div(given[i].n, SUM_CHUNK),
                   given[i].out, given[i].decay };
        r->steps += ceil_div(given[i].n, STEP);
        r->chunks += run[i].chunks;
    }
    len = (uint64_t)n * sizeof *run + (uint64_t)r->steps * 4 + (uint64_t)r->chunks * 12 + 4 * 256;
    at = r->memory = (char *)cuda_dev.alloc(len, e);
    if (at) {
        r->run = (struct optimizer_run *)carve_scratch(&at, (uint64_t)n * sizeof *run);
        r->sums = (double *)carve_scratch(&at, (uint64_t)r->chunks * sizeof *r->sums);
        r->of_step = (int *)carve_scratch(&at, (uint64_t)r->steps * sizeof *r->of_step);
        r->of_chunk = (int *)carve_scratch(&at, (uint64_t)r->chunks * sizeof *r->of_chunk);
        fill(r, run);
    }
    free(run);
    if (at)
        return r;
    free(r);
    return NULL;
}

static void runs_free(struct kernel_runs *r)
{
    if (r)
        cuda_dev.free(r->memory);
    free(r);
}

/*
 * ---- AdamW: every operation is rounded as on the CPU, so the bits are equal; 30 bytes per element are read or written
 * ----
 */

struct moments {
    float p, m, v;
};

static __device__ __forceinline__ struct moments adamw_one(struct moments x, float g, const struct kernel_adamw &a,
                                                           float decay)
{
    float rest1 = 1 - a.beta1, rest2 = 1 - a.beta2, update;
    struct moments y;

    /* Intrinsics prevent the compiler from fusing multiply and add, as -ffp-contract=off does for the CPU. */
    g = __fmul_rn(g, a.grad_scale);
    y.m = __fadd_rn(__fmul_rn(a.beta1, x.m), __fmul_rn(rest1, g));
    y.v = __fadd_rn(__fmul_rn(a.beta2, x.v), __fmul_rn(__fmul_rn(rest2, g), g));
    update = __fdiv_rn(__fdiv_rn(y.m, a.c1), __fadd_rn(__fsqrt_rn(__fdiv_rn(y.v, a.c2)), a.eps));
    update = __fadd_rn(update, __fmul_rn(decay, x.p));
    y.p = __fsub_rn(x.p, __fmul_rn(a.lr, update));
    return y;
}

template <typename T, typename G>
static __global__ void __launch_bounds__(THREADS)
adamw_runs(const struct kernel_adamw_buffers b, const struct optimizer_run *runs, const int *of_step,
           const struct kernel_adamw *step)
{
    float *p = b.p, *m = b.m, *v = b.v;
    const G *g = (const G *)b.g;
    const struct kernel_adamw a = *step;
    const struct optimizer_run r = runs[of_step[blockIdx.x]];
    int64_t i = ((blockIdx.x - r.first_step) * THREADS + threadIdx.x) * QUAD, at = r.at + i;
    float xp[QUAD], xm[QUAD], xv[QUAD], xg[QUAD];
    T *w = (T *)b.w + r.w_at + i;

    if (i + QUAD <= r.n) {
        load(xp, p + at);
        load(xm, m + at);
        load(xv, v + at);
        load(xg, g + at);
        #pragma unroll
        for (int j = 0; j < QUAD; j++) {
            struct moments y = adamw_one({ xp[j], xm[j], xv[j] }, xg[j], a, r.decay);

            xp[j] = y.p;
            xm[j] = y.m;
            xv[j] = y.v;
        }
        store(p + at, xp);
        store(m + at, xm);
        store(v + at, xv);
        store(w, xp);
        return;
    }
    for (int j = 0; i + j < r.n; j++) {
        struct moments y = adamw_one({ p[at + j], m[at + j], v[at + j] }, up(g[at + j]), a, r.decay);

        p[at + j] = y.p;
        m[at + j] = y.m;
        v[at + j] = y.v;
        w[j] = down<T>(y.p);
    }
}

static void adamw(const struct kernel_adamw_buffers *b, const struct kernel_runs *r, const struct kernel_adamw *step,
                  enum dtype t, struct dev_stream *s)
{
    if (r->steps)
        WITH_T_AND_G(t, b->grad_t, {
            adamw_runs<T, G><<<(unsigned)r->steps, THREADS, 0, cuda_stream(s)>>>(*b, r->run, r->of_step, step);
        });
    cuda_launched("adamw");
}

/* ---- sums of squares, in fp64 ---- */

/* Returns the sum of squares of chunk k of x[n], which the whole block computes. Only thread 0 receives the result. */
template <typename G>
static __device__ __forceinline__ double chunk_squares(const G *x, int64_t n, int64_t k, double *room)
{
    int64_t first = k * SUM_CHUNK, end = min(first + SUM_CHUNK, n);
    double sum = 0;

    if (end - first == SUM_CHUNK) {
        float v[8][QUAD];

        #pragma unroll
        for (int i = 0; i < 8; i++)
            load(v[i], x + first + (i * SUM_THREADS + threadIdx.x) * QUAD);
        #pragma unroll
        for (int i = 0; i < 8; i++)
            #pragma unroll
            for (int j = 0; j < QUAD; j++)
                sum += (double)v[i][j] * v[i][j];       /* exact: 24 + 24 bits fit in 53 */
    } else {
        for (int64_t i = first + threadIdx.x; i < end; i += SUM_THREADS)
            sum += (double)up(x[i]) * up(x[i]);
    }
    return block_sum<SUM_THREADS / 32>(sum, room);
}

static __global__ void __launch_bounds__(SUM_THREADS) sumsq_chunks(double *sums, const float *x, int64_t n)
{
    __shared__ double room[SUM_THREADS / 32];
    double sum = chunk_squares(x, n, blockIdx.x, room);

    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

template <typename G>
static __global__ void __launch_bounds__(SUM_THREADS) sumsq_chunks_of_runs(double *sums, const G *x,
                                                                           const struct optimizer_run *runs,
                                                                           const int *of_chunk)
{
    __shared__ double room[SUM_THREADS / 32];
    const struct optimizer_run r = runs[of_chunk[blockIdx.x]];
    double sum = chunk_squares(x + r.at, r.n, blockIdx.x - r.first_chunk, room);

    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

/* Set *out to x[0] + .. + x[n - 1]. One block adds the numbers in a fixed order. */
static __device__ __forceinline__ void sum_all(double *out, const double *x, int64_t n)
{
    __shared__ double room[32];
    double sum = 0;

    #pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += 1024)
        sum += x[i];
    sum = block_sum<32>(sum, room);
    if (threadIdx.x == 0)
        *out = sum;
}

static __global__ void __launch_bounds__(1024) sumsq_total(double *out, const double *sums, int64_t n)
{
    sum_all(out, sums, n);
}

static __global__ void __launch_bounds__(1024) sumsq_totals(double *out, const double *sums,
                                                            const struct optimizer_run *runs)
{
    const struct optimizer_run r = runs[blockIdx.x];

    sum_all(out + r.out, sums + r.first_chunk, r.chunks);
}

static int64_t sumsq_scratch(int64_t n) { return ceil_div(n, SUM_CHUNK); }

static void sumsq(double *out, const float *x, int64_t n, double *tmp, struct dev_stream *s)
{
    int64_t chunks = sumsq_scratch(n);

    if (chunks)
        sumsq_chunks<<<(unsigned)chunks, SUM_THREADS, 0, cuda_stream(s)>>>(tmp, x, n);
    sumsq_total<<<1, 1024, 0, cuda_stream(s)>>>(out, tmp, chunks);
    cuda_launched("sumsq");
}

/* ---- the first value that is not finite ---- */

/*
 * Find the first element that is not finite, in the same chunks as the sums of squares. *out is initially -1, which is
 * the largest unsigned number, and keeps this value if all elements are finite.
 */
template <typename G>
static __global__ void __launch_bounds__(SUM_THREADS) first_of_chunks(unsigned long long *out, const G *x,
                                                                      const struct optimizer_run *runs,
                                                                      const int *of_chunk)
{
    const struct optimizer_run r = runs[of_chunk[blockIdx.x]];
    int64_t first = r.at + (blockIdx.x - r.first_chunk) * SUM_CHUNK, end = min(first + SUM_CHUNK, r.at + r.n);

    for (int64_t i = first + threadIdx.x; i < end; i += SUM_THREADS)
        if (!isfinite(up(x[i]))) {
            /* the smallest index is kept, whatever the order of the blocks */
            atomicMin(out, (unsigned long long)i);
            return;
        }
}

static void first_not_finite(int64_t *out, const void *x, enum dtype t, const struct kernel_runs *r,
                             struct dev_stream *s)
{
    cuda_record_fault("first_not_finite", cudaMemsetAsync(out, 0xff, sizeof *out, cuda_stream(s)));
    if (r->chunks)
        WITH_G(t, first_of_chunks<G><<<(unsigned)r->chunks, SUM_THREADS, 0, cuda_stream(s)>>>(
                      (unsigned long long *)out, (const G *)x, r->run, r->of_chunk));
    cuda_launched("first_not_finite");
}

/* ---- digests ---- */

static __device__ __forceinline__ unsigned long long digest_word(unsigned long long w, int64_t i)
{
    unsigned long long u = (w ^ (unsigned long long)(i + 1) * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;

    u = (u ^ u >> 32) * 0x94d049bb133111ebull;
    return u ^ u >> 29;
}

/* Returns n bytes, 1 to 7, as a word padded with zeros. */
static __device__ unsigned long long digest_rest(const char *p, int64_t n)
{
    unsigned long long w = 0;

    for (int i = 0; i < n; i++)
        w |= (unsigned long long)(unsigned char)p[i] << 8 * i;
    return w;
}

/* One of the buffers of struct kernel_digest, in the form that the kernel uses. */
struct digest_buffer {
    const char *x;
    int size;                           /* size of an element in bytes */
    unsigned begin;                     /* index of its first block */
    const struct optimizer_run *run;
    const int *of_chunk;
    unsigned long long *out;
};

struct digest_buffers {
    struct digest_buffer of[KERNEL_DIGESTS];
    int n;
};

/* Number of loads of 16 bytes per thread, for a chunk of SUM_CHUNK elements of 16 bits. */
#define DIGEST_LOADS (SUM_CHUNK * 2 / (SUM_THREADS * 16))

/*
 * Returns the digest of the words that the block reads from p. The first of these words is number `word` of the run.
 * All loads are issued before any value is used.
 */
static __device__ __forceinline__ unsigned long long digest_full(const char *p, int64_t word)
{
    ulonglong2 w[DIGEST_LOADS];
    unsigned long long sum = 0;

    #pragma unroll
    for (int i = 0; i < DIGEST_LOADS; i++)
        w[i] = *(const ulonglong2 *)(p + (i * SUM_THREADS + threadIdx.x) * 16);
    #pragma unroll
    for (int i = 0; i < DIGEST_LOADS; i++) {
        const int64_t at = word + (i * SUM_THREADS + threadIdx.x) * 2;

        sum += digest_word(w[i].x, at) + digest_word(w[i].y, at + 1);
    }
    return sum;
}

/* The sums are integers, so the order in which the blocks add their sums does not matter. */
static __global__ void __launch_bounds__(SUM_THREADS) digest_chunks(const struct digest_buffers of)
{
    __shared__ unsigned long long room[SUM_THREADS / 32];
    struct digest_buffer d = of.of[0];

    #pragma unroll
    for (int i = 1; i < KERNEL_DIGESTS; i++)
        if (i < of.n && blockIdx.x >= of.of[i].begin)
            d = of.of[i];

    const int64_t chunk = blockIdx.x - d.begin;
    const struct optimizer_run r = d.run[d.of_chunk[chunk]];
    const int64_t end = min((chunk - r.first_chunk + 1) * SUM_CHUNK, r.n) * d.size;
    const char *p = d.x + r.at * d.size;
    const int64_t step = (int64_t)DIGEST_LOADS * SUM_THREADS * 16;
    int64_t b = (chunk - r.first_chunk) * SUM_CHUNK * d.size;
    unsigned long long sum = 0;

    for (; end - b >= step; b += step)
        sum += digest_full(p + b, b / 8);
    for (b += threadIdx.x * 8; b < end; b += SUM_THREADS * 8)
        sum += digest_word(end - b >= 8 ? *(const unsigned long long *)(p + b) : digest_rest(p + b, end - b), b / 8);
    sum = block_sum<SUM_THREADS / 32>(sum, room);
    if (threadIdx.x == 0)
        atomicAdd(d.out + r.out, sum);
}

static void digest_runs(uint64_t *out, int64_t n, const struct kernel_digests *all, struct dev_stream *s)
{
    struct digest_buffers d = {};
    int64_t blocks = 0;

    for (const struct kernel_digest *of = all->of; of < all->of + all->n; of++)
        if (of->runs->chunks) {
            d.of[d.n++] = { (const char *)of->x, dtype_size(of->t), (unsigned)blocks, of->runs->run,
                            of->runs->of_chunk, (unsigned long long *)out + of->out };
            blocks += of->runs->chunks;
        }
    cuda_record_fault("digest_runs", cudaMemsetAsync(out, 0, (size_t)n * sizeof *out, cuda_stream(s)));
    if (blocks)
        digest_chunks<<<(unsigned)blocks, SUM_THREADS, 0, cuda_stream(s)>>>(d);
    cuda_launched("digest of runs");
}

static void sumsq_runs(double *out, const void *x, enum dtype t, const struct kernel_runs *r, struct dev_stream *s)
{
    if (r->chunks)
        WITH_G(t, sumsq_chunks_of_runs<<<(unsigned)r->chunks, SUM_THREADS, 0, cuda_stream(s)>>>(
                      r->sums, (const G *)x, r->run, r->of_chunk));
    if (r->n)
        sumsq_totals<<<(unsigned)r->n, 1024, 0, cuda_stream(s)>>>(out, r->sums, r->run);
    cuda_launched("sumsq of runs");
}

void cuda_optimizer_fill(struct kernels *k)
{
    k->runs_new = runs_new;
    k->runs_free = runs_free;
    k->adamw = adamw;
    k->sumsq = sumsq;
    k->sumsq_scratch = sumsq_scratch;
    k->sumsq_runs = sumsq_runs;
    k->first_not_finite = first_not_finite;
    k->digest_runs = digest_runs;
}
