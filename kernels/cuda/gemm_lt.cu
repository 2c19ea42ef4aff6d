/*
 * gemm_lt.cu - matrix products through cuBLASLt
 *
 * cuBLASLt is asked once for each kind of product (shape, layout, types, epilogue); its answer is kept.
 * It sees everything turned: our row-major [m, n] is its column-major [n, m], so
 *     y^T [n, m] = b [n, k] a^T [k, m]
 * with b as its A and a as its B, and bias along its rows, which is the direction it has.
 *
 * Its first answer is taken unless a file of plans says better (gemm_plans.cu): choosing by time
 * would give other bits on another day. Where it splits k, the parts are kept and added in fp32 and
 * in a fixed order; the room for them is the stream's own, so streams do not meet in it.
 *
 * H200, cuBLAS 13, bf16, TFLOP/s at 16,384 rows: h 2048 qkv y / dx / dw+= 686, 796, 709; proj 684, 690,
 * 703; fc1 (y with bias and GELU) 601, 640, 687; fc2 (dx with gelu') 704, 628, 687; head (4,096
 * rows) 690, 690, 630. The best of its first 8 answers wins 0 to 12 % more (fc1 665, head dw 673). The
 * epilogues GELU_AUX_BIAS and DGELU cost 56 and 0 us of 860 where separate passes cost 135 and 200;
 * BGRADB was dropped: 5 to 12 % slower than dw and then columns.cu.
 */
#include <cublasLt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/gemm.h"

/* What tells two kinds of product apart. Compared as bytes: zeroed before it is filled. */
struct kind {
    int64_t m, n, k;
    int in, out, finish;
    char a_across, b_across, add, bias, pre;
};

struct plan {
    struct kind kind;
    bool usable;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, y;
    cublasLtMatmulAlgo_t algo;
};

static cublasLtHandle_t handle;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct plan *plans;
static size_t n_plans, cap_plans;

int cuda_gemm_lt_open(struct err *e)
{
    cublasStatus_t status = cublasLtCreate(&handle);

    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    err_usage(e, "cuBLASLt: %s", cublasLtGetStatusString(status));
    return -1;
}

static void plan_free(struct plan *p)
{
    if (p->desc)
        cublasLtMatmulDescDestroy(p->desc);
    if (p->a)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->y)
        cublasLtMatrixLayoutDestroy(p->y);
}

void cuda_gemm_lt_close(void)
{
    for (size_t i = 0; i < n_plans; i++)
        plan_free(&plans[i]);
    free(plans);
    plans = NULL;
    n_plans = cap_plans = 0;
    if (handle)
        cublasLtDestroy(handle);
    handle = NULL;
    cuda_gemm_plans_close();
}

/* ---- making a plan ---- */

static cudaDataType_t lt_type(int t)
{
    return t == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasLtEpilogue_t epilogue_of(const struct kind *k)
{
    switch (k->finish) {
    case GEMM_GELU:
        if (k->pre)
            return k->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        return k->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case GEMM_SLOPE:
        return CUBLASLT_EPILOGUE_DGELU;
    default:
        return k->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

#define SET(desc, what, value) cublasLtMatmulDescSetAttribute(desc, what, &(value), sizeof(value))

/* Does what it can; without p->y it failed. */
static void describe(struct plan *p)
{
    const struct kind *k = &p->kind;
    cublasOperation_t turn_b = k->b_across ? CUBLAS_OP_N : CUBLAS_OP_T;
    cublasOperation_t turn_a = k->a_across ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = epilogue_of(k);
    uint64_t n = (uint64_t)k->n, m = (uint64_t)k->m, d = (uint64_t)k->k;
    cudaDataType_t in = lt_type(k->in), out = lt_type(k->out);

    if (cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS)
        return;
    SET(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, turn_b);
    SET(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, turn_a);
    SET(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (k->pre)
        SET(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, k->n);
    if (k->b_across)
        cublasLtMatrixLayoutCreate(&p->a, in, n, d, k->n);
    else
        cublasLtMatrixLayoutCreate(&p->a, in, d, n, k->k);
    if (k->a_across)
        cublasLtMatrixLayoutCreate(&p->b, in, m, d, k->m);
    else
        cublasLtMatrixLayoutCreate(&p->b, in, d, m, k->k);
    cublasLtMatrixLayoutCreate(&p->y, out, n, m, k->n);
}

#define MAX_ANSWERS 16

/* How many ways cuBLASLt knows, best guess first. */
static int answers(const struct plan *p, cublasLtMatmulHeuristicResult_t *found)
{
    cublasLtMatmulPreference_t want = NULL;
    size_t room = CUDA_ROOM_BYTES;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;        /* parts of a split k stay fp32 */
    int n = 0;

    if (cublasLtMatmulPreferenceCreate(&want) != CUBLAS_STATUS_SUCCESS)
        return 0;
    cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
    cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                                         sizeof reduction);
    if (cublasLtMatmulAlgoGetHeuristic(handle, p->desc, p->a, p->b, p->y, p->y, want, MAX_ANSWERS, found, &n) !=
        CUBLAS_STATUS_SUCCESS)
        n = 0;
    cublasLtMatmulPreferenceDestroy(want);
    return n;
}

/* With y and pre apart, so that candidates can be tried on other memory. */
static cublasStatus_t multiply(struct plan *p, const struct gemm *g, const cublasLtMatmulAlgo_t *algo, void *y, void *pre,
                               void *room, cudaStream_t s)
{
    float one = 1, beta = g->add;

    if (g->bias)
        SET(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g->bias);
    if (pre)
        SET(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, pre);
    return cublasLtMatmul(handle, p->desc, &one, g->b, p->a, g->a, p->b, &beta, y, p->y, y, p->y, algo, room,
                          CUDA_ROOM_BYTES, s);
}

/* ---- choosing by time, when there is a file to keep the choice in ---- */

#define ROUNDS   3
#define RUN_MS   8                      /* of one candidate: a shorter run would not feel the card's power limit */
#define MAX_RUNS 64

/* Milliseconds of one product of n in a row; 1e30 when it is refused. */
static float time_run(struct plan *p, const struct gemm *g, const cublasLtMatmulAlgo_t *algo, void *y, void *pre,
                      void *room, int n, cudaStream_t s, cudaEvent_t *mark)
{
    float ms = 1e30f;

    cudaEventRecord(mark[0], s);
    for (int i = 0; i < n; i++)
        if (multiply(p, g, algo, y, pre, room, s) != CUBLAS_STATUS_SUCCESS)
            return 1e30f;
    cudaEventRecord(mark[1], s);
    if (cudaEventSynchronize(mark[1]) != cudaSuccess || cudaEventElapsedTime(&ms, mark[0], mark[1]) != cudaSuccess)
        return 1e30f;
    return ms / (float)n;
}

/* One run of each a round, so that a warming GPU favours nobody; a way's time is its least. */
static int fastest(struct plan *p, const struct gemm *g, const cublasLtMatmulHeuristicResult_t *found, int n, void *y,
                   void *pre, void *room, cudaStream_t s)
{
    float least[MAX_ANSWERS], best = 1e30f;
    cudaEvent_t mark[2] = {};
    int winner = 0;

    if (cudaEventCreate(&mark[0]) != cudaSuccess || cudaEventCreate(&mark[1]) != cudaSuccess)
        n = 0;
    /* Alone and cold first: loads code, and tells how many make a run. */
    for (int i = 0; i < n; i++) {
        time_run(p, g, &found[i].algo, y, pre, room, 1, s, mark);
        least[i] = time_run(p, g, &found[i].algo, y, pre, room, 1, s, mark);
        best = least[i] < best ? least[i] : best;
    }
    for (int round = 0; round < ROUNDS; round++) {
        int runs = best < RUN_MS ? (int)(RUN_MS / best) + 1 : 1;
        float before = best;

        runs = runs > MAX_RUNS ? MAX_RUNS : runs;
        for (int i = 0; i < n; i++) {
            float ms;

            if (least[i] > 1.25f * before)                      /* out of the race */
                continue;
            ms = time_run(p, g, &found[i].algo, y, pre, room, runs, s, mark);
            if (round == 0 || ms < least[i])
                least[i] = ms;
        }
        best = 1e30f;
        for (int i = 0; i < n; i++)
            if (least[i] < best) {
                best = least[i];
                winner = i;
            }
    }
    for (int i = 0; i < 2; i++)
        if (mark[i])
            cudaEventDestroy(mark[i]);
    return winner;
}

/* -1 when it cannot be tried now: the stream is being captured, or there is no memory for a second y. */
static int try_all(struct plan *p, const struct gemm *g, const cublasLtMatmulHeuristicResult_t *found, int n, void *room,
                   cudaStream_t s)
{
    size_t bytes = (size_t)(g->m * g->n) * (g->out == DTYPE_BF16 ? 2 : 4);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    bool with_pre = g->finish == GEMM_GELU && g->pre;           /* written; GEMM_SLOPE only reads it */
    char *y = NULL;
    int winner = -1;

    if (cudaStreamIsCapturing(s, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone)
        return -1;
    if (cudaMalloc((void **)&y, bytes * (with_pre ? 2 : 1)) == cudaSuccess) {
        cudaMemsetAsync(y, 0, bytes, s);
        winner = fastest(p, g, found, n, y, with_pre ? y + bytes : g->pre, room, s);
        cudaStreamSynchronize(s);
    } else {
        cudaGetLastError();                                     /* it is no fault of the caller's */
    }
    cudaFree(y);
    return winner;
}

static void choose(struct plan *p, const struct gemm *g, void *room, cudaStream_t s)
{
    cublasLtMatmulHeuristicResult_t found[MAX_ANSWERS];
    const struct kind *k = &p->kind;
    int n = answers(p, found), pick;
    char name[160];

    if (n == 0)
        return;
    snprintf(name, sizeof name, "%lld %lld %lld %d%d%d%d%d%d%d%d", (long long)k->m, (long long)k->n, (long long)k->k,
             k->in == DTYPE_BF16, k->out == DTYPE_BF16, k->finish, k->a_across, k->b_across, k->add, k->bias, k->pre);
    pick = cuda_gemm_plan_read(name);
    if (pick < 0 && cuda_gemm_plans_wanted() && n > 1) {
        pick = try_all(p, g, found, n, room, s);
        if (pick >= 0)
            cuda_gemm_plan_write(name, pick);
    }
    p->algo = found[pick >= 0 && pick < n ? pick : 0].algo;
    p->usable = true;
}

static struct plan *plan_for(const struct kind *kind, const struct gemm *g, void *room, cudaStream_t s)
{
    struct plan p;

    for (size_t i = 0; i < n_plans; i++)
        if (memcmp(&plans[i].kind, kind, sizeof *kind) == 0)
            return &plans[i];
    memset(&p, 0, sizeof p);
    p.kind = *kind;
    describe(&p);
    if (p.y)
        choose(&p, g, room, s);
    if (n_plans == cap_plans) {
        cap_plans = cap_plans ? 2 * cap_plans : 64;
        plans = (struct plan *)realloc(plans, cap_plans * sizeof *plans);
        if (!plans) {                   /* a few kilobytes: no caller could do better */
            fprintf(stderr, "out of memory\n");
            abort();
        }
    }
    plans[n_plans] = p;
    return &plans[n_plans++];
}

/* ---- running it ---- */

/* Rows of whole 16 bytes at whole 16 bytes: what its fast kernels want; the rest is for the plain one. */
static bool fits(const struct gemm *g)
{
    int64_t unit = g->in == DTYPE_BF16 ? 8 : 4;
    uintptr_t all = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->y | (uintptr_t)g->pre | (uintptr_t)g->bias;

    return g->m && g->n && g->k && g->n % unit == 0 && (g->a_across ? g->m : g->k) % unit == 0 &&
           (g->b_across || g->k % unit == 0) && all % 16 == 0;
}

static struct kind kind_of(const struct gemm *g)
{
    struct kind k;

    memset(&k, 0, sizeof k);
    k.m = g->m, k.n = g->n, k.k = g->k;
    k.in = g->in, k.out = g->out, k.finish = g->finish;
    k.a_across = g->a_across, k.b_across = g->b_across, k.add = g->add;
    k.bias = g->bias != NULL, k.pre = g->pre != NULL;
    return k;
}

bool cuda_gemm_lt(const struct gemm *g, struct dev_stream *s)
{
    struct kind kind = kind_of(g);
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    bool usable;
    struct plan *p;
    void *room;

    if (!fits(g))
        return false;
    room = cuda_room(s);
    if (!room)
        return true;                    /* noted */
    pthread_mutex_lock(&lock);
    p = plan_for(&kind, g, room, cuda_stream(s));
    usable = p->usable;
    if (usable)
        status = multiply(p, g, &p->algo, g->y, g->pre, room, cuda_stream(s));
    pthread_mutex_unlock(&lock);
    if (status != CUBLAS_STATUS_SUCCESS)
        cuda_note_text("cublasLtMatmul", cublasLtGetStatusString(status));
    return usable;
}
