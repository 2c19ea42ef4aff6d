/*
 * gemm_lt.cu - matrix products through cuBLASLt
 *
 * cuBLASLt is queried once for each kind of product (shape, layout, types, epilogue), and its answer is kept. cuBLASLt
 * stores matrices by columns, so our row-major [m, n] is its column-major [n, m], and it computes
 *     y^T [n, m] = b [n, k] a^T [k, m]
 * with our b as its A and our a as its B. The bias is then along its rows, which is the direction that it supports.
 *
 * Its first answer is always used: choosing by measured time could give different bits on another day. If cuBLASLt
 * splits the sum over k into parts, these are stored and added in fp32 and in a fixed order. The workspace for the
 * parts belongs to the stream, so streams do not share it.
 *
 * H200, cuBLAS 13.1, bf16, 16,384 rows, TFLOP/s: h 2048 qkv y / dx / dw+= 686, 796, 709; proj 684, 690, 703; fc1 (y
 * with bias and GELU) 601, 640, 687; fc2 (dx with gelu') 704, 628, 687; head (4,096 rows) 690, 690, 630. Tried: the
 * best of its first 16 answers by sustained time (fc1 681, head y 766, others equal). Alone it is up to 13 %
 * faster, but whole steps of BLOOM-1b7 were 1.8 % slower, 580 instead of 591; the limit there is the card's power,
 * not the kernel. GELU_AUX_BIAS and DGELU add 56 and 0 us to 860, whereas separate passes take 135 and 200. A
 * custom kernel that overlaps the GELU with the next tile was no faster, for the same reason (docs/performance.md).
 * BGRADB is 0 to 12 % slower than dw followed by columns.cu.
 */
#include <cublasLt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_gemm.h"

/*
 * The properties of a product for which cuBLASLt is queried once. They are compared as bytes, so the struct must be
 * zeroed before it is filled.
 */
struct kind {
    int64_t m, n, k;
    int in, out, finish;
    char a_across, b_across, add, bias, pre;
};

struct lt_plan {
    struct kind kind;
    bool usable;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, y;
    cublasLtMatmulAlgo_t algo;
};

static cublasLtHandle_t handle;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lt_plan *plans;
static size_t n_plans, cap_plans;

int cuda_gemm_lt_open(struct err *e)
{
    cublasStatus_t status = cublasLtCreate(&handle);

    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    err_usage(e, "cuBLASLt: %s", cublasLtGetStatusString(status));
    return -1;
}

static void lt_plan_free(struct lt_plan *p)
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
        lt_plan_free(&plans[i]);
    free(plans);
    plans = NULL;
    n_plans = cap_plans = 0;
    if (handle)
        cublasLtDestroy(handle);
    handle = NULL;
}

/* ---- creating a plan ---- */

static cudaDataType_t lt_type(int t)
{
    return t == DTYPE_BF16 ? CUDA_R_16BF : t == DTYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
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

/* Create the descriptors of a plan. On failure p->y is NULL. */
static void describe(struct lt_plan *p)
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

/*
 * The number of answers to request. It must be the same as in the measurements, because a longer list may begin with
 * different answers.
 */
#define ANSWERS 16

static void choose(struct lt_plan *p)
{
    cublasLtMatmulPreference_t want = NULL;
    cublasLtMatmulHeuristicResult_t found[ANSWERS];
    size_t room = CUDA_ROOM_BYTES;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;        /* the parts of a split k stay fp32 */
    cublasStatus_t status;
    int n = 0;

    if (cublasLtMatmulPreferenceCreate(&want) != CUBLAS_STATUS_SUCCESS)
        return;
    cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
    cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                                         sizeof reduction);
    status = cublasLtMatmulAlgoGetHeuristic(handle, p->desc, p->a, p->b, p->y, p->y, want, ANSWERS, found, &n);
    if (status == CUBLAS_STATUS_SUCCESS && n > 0 && found[0].state == CUBLAS_STATUS_SUCCESS) {
        p->algo = found[0].algo;
        p->usable = true;
    }
    cublasLtMatmulPreferenceDestroy(want);
}

static struct lt_plan *plan_for(const struct kind *kind)
{
    struct lt_plan p;

    for (size_t i = 0; i < n_plans; i++)
        if (memcmp(&plans[i].kind, kind, sizeof *kind) == 0)
            return &plans[i];
    memset(&p, 0, sizeof p);
    p.kind = *kind;
    describe(&p);
    if (p.y)
        choose(&p);
    if (n_plans == cap_plans) {
        cap_plans = cap_plans ? 2 * cap_plans : 64;
        plans = (struct lt_plan *)realloc(plans, cap_plans * sizeof *plans);
        /* the list has only a few kilobytes, so no caller could handle this failure better */
        if (!plans) {
            fprintf(stderr, "out of memory\n");
            abort();
        }
    }
    plans[n_plans] = p;
    return &plans[n_plans++];
}

/* ---- running a product ---- */

/*
 * Returns true if all rows begin at multiples of 16 bytes and have lengths that are multiples of 16 bytes. cuBLASLt's
 * fast kernels require this. The plain kernel computes all other products.
 */
static bool fits(const struct cuda_gemm *g)
{
    int64_t unit = g->in == DTYPE_F32 ? 4 : 8;
    uintptr_t all = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->y | (uintptr_t)g->pre | (uintptr_t)g->bias;

    return g->m && g->n && g->k && g->n % unit == 0 && (g->a_across ? g->m : g->k) % unit == 0 &&
           (g->b_across || g->k % unit == 0) && all % 16 == 0;
}

static struct kind kind_of(const struct cuda_gemm *g)
{
    struct kind k;

    memset(&k, 0, sizeof k);
    k.m = g->m, k.n = g->n, k.k = g->k;
    k.in = g->in, k.out = g->out, k.finish = g->finish;
    k.a_across = g->a_across, k.b_across = g->b_across, k.add = g->add;
    k.bias = g->bias != NULL, k.pre = g->pre != NULL;
    return k;
}

bool cuda_gemm_lt(const struct cuda_gemm *g, struct dev_stream *s)
{
    struct kind kind = kind_of(g);
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    float one = 1, beta = g->add;
    bool usable;
    struct lt_plan *p;
    void *room;

    if (!fits(g))
        return false;
    room = cuda_room(s);
    if (!room)
        /* the caller must not try another implementation, because the failure has been recorded */
        return true;
    pthread_mutex_lock(&lock);
    p = plan_for(&kind);
    usable = p->usable;
    if (g->bias)
        SET(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g->bias);
    if (g->pre)
        SET(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g->pre);
    if (usable)
        status = cublasLtMatmul(handle, p->desc, &one, g->b, p->a, g->a, p->b, &beta, g->y, p->y, g->y, p->y, &p->algo,
                                room, CUDA_ROOM_BYTES, cuda_stream(s));
    pthread_mutex_unlock(&lock);
    if (status != CUBLAS_STATUS_SUCCESS)
        cuda_record_fault_text("cublasLtMatmul", cublasLtGetStatusString(status));
    return usable;
}
