/*
 * cpu.h - declarations shared by the files of the CPU backend
 *
 * cpu_open.c, threads.c, cpu_device.c and amx.c are compiled once. Every other file is compiled once per instruction
 * set (ISA = base, avx2, avx512, avx512bf16, with a matching -march). Plain loops thus become vector code for each
 * machine, and cpu_open.c selects one whole set of functions at start. ISA_NAME() keeps the function names distinct.
 * Only gemm.c and panels.c use instructions of avx512bf16 (PANEL_PAIRS): the other objects of this set are those of
 * avx512 with changed names.
 *
 * All files are compiled with -ffp-contract=off, so that multiply and add are fused only where the code uses MADD().
 * Otherwise the bits of an element could depend on whether the body or the tail of a vector loop processes it.
 *
 * Code for all dtypes is one inline function with a constant argument `t`, which WITH_T() provides. The constant
 * must be defined inside the parallel region, because OpenMP passes variables from outside through memory.
 */
#ifndef SHARDKIT_KERNELS_CPU_CPU_H
#define SHARDKIT_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

#ifndef ISA
#define ISA base
#endif
#define ISA_PASTE_(f, isa) f##_##isa
#define ISA_PASTE(f, isa)  ISA_PASTE_(f, isa)
#define ISA_NAME(f)        ISA_PASTE(f, ISA)

/* ---- cpu_device.c ---- */
extern const struct dev_ops cpu_dev;

/* ---- threads.c ---- */
extern int cpu_threads;                 /* number of threads of every parallel region */
/* Set the number of threads. If n is 0, use OpenMP's default. */
void cpu_threads_open(int n);
void cpu_threads_close(void);
/*
 * Returns a buffer of thread `me`, aligned to 64 bytes. The buffer is kept for later calls. It is meant for tiles, not
 * for whole tensors. Aborts if there is not enough memory.
 */
void *cpu_room(int me, uint64_t bytes);
/* Returns a buffer for the packed panels of matrix products. All threads share it. */
void *cpu_gemm_room(uint64_t bytes);

/* ---- isa.c: one set of functions per instruction set ---- */
void cpu_fill_base(struct kernels *k);
void cpu_fill_avx2(struct kernels *k);
void cpu_fill_avx512(struct kernels *k);
void cpu_fill_avx512bf16(struct kernels *k);

/* ---- each source file has a function that sets its members of *k ---- */
#define flat_fill      ISA_NAME(flat_fill)
#define norm_fill      ISA_NAME(norm_fill)
#define linear_fill    ISA_NAME(linear_fill)
#define embed_fill     ISA_NAME(embed_fill)
#define xent_fill      ISA_NAME(xent_fill)
#define attention_fill ISA_NAME(attention_fill)
#define attention_back_fill ISA_NAME(attention_back_fill)
void flat_fill(struct kernels *k);
void norm_fill(struct kernels *k);
void linear_fill(struct kernels *k);
void embed_fill(struct kernels *k);
void xent_fill(struct kernels *k);
void attention_fill(struct kernels *k);
void attention_back_fill(struct kernels *k);

/* Execute a statement in which T is a compile-time constant equal to t. */
#define WITH_T(t, ...)                                     \
    do {                                                   \
        if ((t) == DTYPE_BF16) {                           \
            const enum dtype T = DTYPE_BF16;               \
            __VA_ARGS__;                                   \
        } else if ((t) == DTYPE_F16) {                     \
            const enum dtype T = DTYPE_F16;                \
            __VA_ARGS__;                                   \
        } else {                                           \
            const enum dtype T = DTYPE_F32;                \
            __VA_ARGS__;                                   \
        }                                                  \
    } while (0)

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t up_i64(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

#endif
