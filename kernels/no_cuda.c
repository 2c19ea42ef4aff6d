/*
 * no_cuda.c - the GPU's door in a build without CUDA
 */
#include "kernels/kernels.h"

const struct kernels *kernels_cuda_open(const struct kernel_opts *o, struct err *e)
{
    (void)o;
    err_usage(e, "this program was built without CUDA");
    return NULL;
}
