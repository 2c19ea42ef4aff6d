/*
 * attention.cu - select the attention kernel for a call
 */
#include <assert.h>

#include "kernels/cuda/cuda_attention.h"

/* This kernel does nothing. Its attributes show for which architecture all kernels of this program were compiled. */
static __global__ void compiled_for() {}

/*
 * Returns true if the GPU has wgmma and the kernels were compiled for wgmma. The wgmma kernels are empty if the library
 * was built only for the A100, and the driver of a Hopper GPU has compiled the kernels itself.
 */
static bool is_hopper(void)
{
    enum { HOPPER_MAJOR = 9, HOPPER_CODE = 90 };
    static int answer = -1;             /* the same for all threads, so a race is harmless */

    if (answer < 0) {
        int device = 0, major = 0;
        cudaFuncAttributes code = {};

        cuda_record_fault("cudaGetDevice", cudaGetDevice(&device));
        cuda_record_fault("cudaDeviceGetAttribute",
                          cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
        cuda_record_fault("cudaFuncGetAttributes", cudaFuncGetAttributes(&code, compiled_for));
        answer = major == HOPPER_MAJOR && code.ptxVersion >= HOPPER_CODE;
    }
    return answer == 1;
}

static bool is_fast(const struct kernel_attention *a, enum dtype t)
{
    bool hd = a->hd == 64 || a->hd == 80 || a->hd == 96 || a->hd == 128;

    return t != DTYPE_F32 && hd && is_hopper();
}

extern "C" void cuda_attention(const struct kernel_attention *a, enum dtype t, struct dev_stream *s)
{
    assert(a->hd <= CUDA_ATTENTION_MAX_HD);
    if (!is_fast(a, t) || !attention_forward_fast(a, t, s))
        attention_forward_plain(a, t, s);
}

extern "C" void cuda_attention_back(const struct kernel_attention *a, const struct kernel_attention_back *g,
                                    enum dtype t, struct dev_stream *s)
{
    float *dot = (float *)g->scratch;

    assert(a->hd <= CUDA_ATTENTION_MAX_HD);
    if (!is_fast(a, t) || !attention_back_q_fast(a, g, dot, t, s)) {
        attention_dots(dot, a, g, t, s);
        attention_back_q_plain(a, g, dot, t, s);
    }
    if (!is_fast(a, t) || !attention_back_kv_fast(a, g, dot, t, s))
        attention_back_kv_plain(a, g, dot, t, s);
}

extern "C" uint64_t cuda_attention_scratch(const struct kernel_attention *a)
{
    return (uint64_t)a->b * (uint64_t)a->heads * (uint64_t)a->s * sizeof(float);
}
