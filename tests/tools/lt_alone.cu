/*
 * lt_alone - run cuBLASLt's products without any code of shardkit around them
 *
 * If compute-sanitizer reports a product inside shardkit-cuda.so and reports it here too, the cause is the library
 * or the sanitizer itself. Each product has its own memory from cudaMalloc, exactly as large as the matrices, and
 * the program waits for it. The first failure is printed with the product that it belongs to; the exit status is
 * then 1.
 */
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#define ROOM (32 << 20)

struct product {
    int m, n, k;
    cudaDataType_t type;
    cublasLtEpilogue_t epilogue;
};

static void *device_bytes(size_t n, int value)
{
    void *p = NULL;

    if (cudaMalloc(&p, n) != cudaSuccess || cudaMemset(p, value, n) != cudaSuccess) {
        fprintf(stderr, "lt_alone: no memory\n");
        exit(1);
    }
    return p;
}

/* Compute y^T [n, m] = b [n, k] a^T [k, m], all row-major, as in gemm_lt.cu. Returns false if cuBLASLt offers no
 * algorithm. */
static bool multiply(cublasLtHandle_t lt, const struct product *p, void *room)
{
    size_t unit = p->type == CUDA_R_32F ? 4 : 2, room_bytes = ROOM;
    void *a = device_bytes(unit * p->m * p->k, 0), *b = device_bytes(unit * p->n * p->k, 0);
    void *y = device_bytes(unit * p->m * p->n, 0), *bias = device_bytes(unit * p->n, 0);
    cublasLtMatrixLayout_t la, lb, ly;
    cublasLtMatmulPreference_t want;
    cublasLtMatmulHeuristicResult_t found;
    cublasLtMatmulDesc_t desc;
    cublasOperation_t transposed = CUBLAS_OP_T;
    float one = 1, zero = 0;
    int n = 0;

    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue);
    if (p->epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    cublasLtMatrixLayoutCreate(&la, p->type, p->k, p->n, p->k);
    cublasLtMatrixLayoutCreate(&lb, p->type, p->k, p->m, p->k);
    cublasLtMatrixLayoutCreate(&ly, p->type, p->n, p->m, p->n);
    cublasLtMatmulPreferenceCreate(&want);
    cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room_bytes,
                                         sizeof room_bytes);
    cublasLtMatmulAlgoGetHeuristic(lt, desc, la, lb, ly, ly, want, 1, &found, &n);
    if (n > 0)
        cublasLtMatmul(lt, desc, &one, b, la, a, lb, &zero, y, ly, y, ly, &found.algo, room, ROOM, NULL);
    cudaDeviceSynchronize();
    cublasLtMatmulPreferenceDestroy(want);
    cublasLtMatrixLayoutDestroy(la), cublasLtMatrixLayoutDestroy(lb), cublasLtMatrixLayoutDestroy(ly);
    cublasLtMatmulDescDestroy(desc);
    cudaFree(a), cudaFree(b), cudaFree(y), cudaFree(bias);
    return n > 0;
}

int main(void)
{
    static const int shapes[][3] = { { 77, 72, 264 }, { 300, 1000, 520 }, { 513, 2056, 1032 }, { 2048, 3072, 1024 },
                                     { 129, 4104, 96 } };
    static const cudaDataType_t types[] = { CUDA_R_32F, CUDA_R_16BF };
    static const cublasLtEpilogue_t epilogues[] = { CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                                    CUBLASLT_EPILOGUE_GELU_BIAS };
    void *room = device_bytes(ROOM, 0);
    cublasLtHandle_t lt;
    int done = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (cublasLtCreate(&lt) != CUBLAS_STATUS_SUCCESS)
        return 1;
    for (const auto &s : shapes)
        for (cudaDataType_t type : types)
            for (cublasLtEpilogue_t epilogue : epilogues) {
                struct product p = { s[0], s[1], s[2], type, epilogue };
                bool ran = multiply(lt, &p, room);
                cudaError_t status = cudaGetLastError();

                if (status != cudaSuccess) {
                    printf("lt_alone: m %d, n %d, k %d, %s, epilogue %d: %s\n", p.m, p.n, p.k,
                           type == CUDA_R_32F ? "fp32" : "bf16", (int)epilogue, cudaGetErrorString(status));
                    return 1;
                }
                done += ran;
            }
    printf("lt_alone: %d products, no failure\n", done);
    return 0;
}
