/*
 * cpu.h - what the files of the CPU backend share
 *
 * open.c, threads.c, device.c and amx.c are compiled once. Every other file is compiled once per instruction
 * set (ISA = base, avx2, avx512, avx512bf16, with -march to match), so plain loops become
 * the vector code of each machine and open.c picks a whole set when it starts.
 * ISA_NAME() keeps their names apart.
 *
 * All are compiled with -ffp-contract=off: whether an element lies in a vector loop's body or
 * in its tail must not change its bits, so a multiply-add is fused only where MADD() says so.
 *
 * Code for all dtypes is one inline function with a constant argument `t`, which WITH_T() gives it. The constant
 * must be written inside the parallel region: OpenMP hands what stands outside of it over in memory.
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

/* ---- device.c ---- */
extern const struct dev_ops cpu_dev;

/* ---- threads.c ---- */
extern int cpu_threads;                 /* of every parallel region */
/* n threads; 0: as many as OpenMP says. */
void cpu_threads_open(int n);
void cpu_threads_close(void);
/* Room of thread `me`, 64-byte aligned, kept for its next call: tiles, not tensors. Aborts without memory. */
void *cpu_room(int me, uint64_t bytes);
/* Panels and sums of the matrix products, shared by all threads. */
void *cpu_gemm_room(uint64_t bytes);

/* ---- isa.c: one set of functions per instruction set ---- */
void cpu_fill_base(struct kernels *k);
void cpu_fill_avx2(struct kernels *k);
void cpu_fill_avx512(struct kernels *k);
void cpu_fill_avx512bf16(struct kernels *k);

/* ---- each file's functions, into *k ---- */
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

/* Run a statement with the constant T = t. */
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
