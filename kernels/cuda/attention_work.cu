/*
 * attention_work.cu - host code that prepares the arguments of Hopper's attention kernels: tensor maps and items
 */
#include "kernels/cuda/attention_tile.cuh"

/* ---- tensor maps ---- */

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                    const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/*
 * Returns the driver's function that encodes tensor maps, or NULL if the driver is too old. It is looked up by name,
 * because the driver's library is not linked.
 */
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
    bool wide = a->hd % 64 == 0;        /* the same choice as in struct head_row */
    cuuint64_t size[4] = { (cuuint64_t)a->hd, (cuuint64_t)a->heads, (cuuint64_t)a->s, (cuuint64_t)a->b };
    cuuint64_t stride[3] = { 2 * (cuuint64_t)head_stride, 2 * (cuuint64_t)token_stride,
                             2 * (cuuint64_t)(token_stride * a->s) };
    cuuint32_t box[4] = { wide ? 64u : 32u, 1, (cuuint32_t)rows, 1 }, step[4] = { 1, 1, 1, 1 };
    encode_function encode = encoder();

    /* The type is declared as a type of two bytes. Its kind does not matter, because the data is only copied. */
    return encode && aligned16(p) && head_stride % 8 == 0 && token_stride % 8 == 0 &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)p, size, stride, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, wide ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* ---- work ---- */

/* The part of the L2 cache that is used for the two tensors that all items of a head read. */
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
