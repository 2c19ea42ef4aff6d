/*
 * attention.cu - which attention kernel takes a call, and how the copy engine is told of its tensors
 */
#include <assert.h>
#include <string.h>

#include "kernels/cuda/attention_tile.cuh"

/* ---- which ---- */

static bool is_hopper(void)
{
    static int major;                   /* the same whoever asks first */

    if (!major) {
        int device = 0;

        cuda_note("cudaGetDevice", cudaGetDevice(&device));
        cuda_note("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    }
    return major == 9;
}

static bool is_fast(const struct kernel_attention *a, enum dtype t)
{
    bool hd = a->hd == 64 || a->hd == 80 || a->hd == 96 || a->hd == 128;

    return t == DTYPE_BF16 && hd && is_hopper();
}

extern "C" void cuda_attention(const struct kernel_attention *a, enum dtype t, struct dev_stream *s)
{
    assert(a->hd <= CUDA_ATTENTION_MAX_HD);
    if (!is_fast(a, t) || !attention_forward_fast(a, s))
        attention_forward_plain(a, t, s);
}

extern "C" void cuda_attention_back(const struct kernel_attention *a, const struct kernel_attention_back *g,
                                    enum dtype t, struct dev_stream *s)
{
    float *dot = (float *)g->scratch;

    assert(a->hd <= CUDA_ATTENTION_MAX_HD);
    if (!is_fast(a, t) || !attention_back_q_fast(a, g, dot, s)) {
        attention_dots(dot, a, g, t, s);
        attention_back_q_plain(a, g, dot, t, s);
    }
    if (!is_fast(a, t) || !attention_back_kv_fast(a, g, dot, s))
        attention_back_kv_plain(a, g, dot, t, s);
}

extern "C" uint64_t cuda_attention_scratch(const struct kernel_attention *a)
{
    return (uint64_t)a->b * (uint64_t)a->heads * (uint64_t)a->s * sizeof(float);
}

/* ---- tensor maps ---- */

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                    const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's, asked for by name: nothing links the driver's library. NULL when it is too old. */
static encode_function encoder(void)
{
    static void *f;
    static bool asked;
    cudaDriverEntryPointQueryResult found;

    if (!asked && (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) !=
                       cudaSuccess ||
                   found != cudaDriverEntryPointSuccess)) {
        cudaGetLastError();
        f = NULL;
    }
    asked = true;
    return (encode_function)f;
}

bool attention_map(CUtensorMap *map, const struct kernel_attention *a, const void *p, int64_t token_stride,
                   int64_t head_stride, int rows)
{
    bool wide = a->hd % 64 == 0;        /* as head_row has it */
    cuuint64_t size[4] = { (cuuint64_t)a->hd, (cuuint64_t)a->heads, (cuuint64_t)a->s, (cuuint64_t)a->b };
    cuuint64_t stride[3] = { 2 * (cuuint64_t)head_stride, 2 * (cuuint64_t)token_stride,
                             2 * (cuuint64_t)(token_stride * a->s) };
    cuuint32_t box[4] = { wide ? 64u : 32u, 1, (cuuint32_t)rows, 1 }, step[4] = { 1, 1, 1, 1 };
    encode_function encode = encoder();

    return encode && aligned16(p) && head_stride % 8 == 0 && token_stride % 8 == 0 &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)p, size, stride, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, wide ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* ---- work ---- */

/* Of the L2 cache, for the two tensors that all items of a head read. */
#define SECTION_BYTES (32 << 20)

struct attention_work attention_work_of(const struct kernel_attention *a, int tiles, float *dot)
{
    static unsigned launches;
    struct attention_work w = {};

    w.bias = a->bias;
    w.lse = a->lse;
    w.dot = dot;
    w.s = a->s;
    w.heads = a->heads;
    w.n_heads = a->b * a->heads;
    w.tiles = tiles;
    w.section = (int)max_i64(1, min_i64(w.n_heads, SECTION_BYTES / ((int64_t)a->s * a->hd * 4)));
    w.scale = a->scale;
    w.scale2 = a->scale * LOG2E;
    w.drop = dropout_of(&a->drop);
    w.sample0 = (uint32_t)(a->drop.row0 / a->s);
    w.head0 = a->head0;
    w.queue = (int)(__sync_fetch_and_add(&launches, 1) % QUEUES);
    return w;
}
