/*
 * open.cu - open and close the CUDA kernels
 */
#include <stdlib.h>

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/common.h"
#include "kernels/cuda/cuda_gemm.h"

static void cuda_close(const struct kernels *k)
{
    (void)k;
    cudaDeviceSynchronize();
    cuda_gemm_lt_close();
    cuda_device_close();
}

const struct kernels *kernels_cuda_open(const struct kernel_opts *o, struct err *e)
{
    static struct kernels k;

    /*
     * Streams that share a hardware queue wait for each other, so with too few queues a message could wait for a later
     * one.
     */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (cuda_device_open(o->device, e) < 0)
        return NULL;
    if (cuda_gemm_lt_open(e) < 0) {
        cuda_device_close();
        return NULL;
    }
    k.dev = &cuda_dev;
    k.close = cuda_close;
    k.net = cuda_net_open;
    cuda_flat_fill(&k);
    cuda_optimizer_fill(&k);
    cuda_norm_fill(&k);
    cuda_linear_fill(&k);
    cuda_embed_fill(&k);
    cuda_xent_fill(&k);
    k.attention = cuda_attention;
    k.attention_back = cuda_attention_back;
    k.attention_scratch = cuda_attention_scratch;
    return &k;
}
