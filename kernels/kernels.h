/*
 * kernels.h - the mathematical operations of a transformer, with one contract for all devices
 *
 * cpu/ is the reference implementation: it follows the formulas. cuda/ is the fast one and queues its work on the
 * given stream. Neither waits, prints, or fails half-way: a launch that is refused is reported by dev_ops.check().
 * The caller guarantees shapes and dtypes; they are only asserted. The formulas are in docs/training.md, whose
 * sections 1 and 3 name the sources.
 *
 * Terms used in all contracts:
 *   T        the dtype of weights and activations, DTYPE_BF16, DTYPE_F16 or DTYPE_F32; `t` in calls
 *   m        number of rows, one per token: sample-major, row = sample * s + position
 *   [a, b]   row-major, b contiguous
 * Arithmetic is in fp32 (or better) for every T. Each result is rounded to T once, to nearest even. A value too
 * large for fp16 becomes infinity. Neither an infinity nor a NaN is ever lost on the way to a gradient, because
 * loss scaling detects overflows that way. Gradients of parameters are fp32. They are added to the old values if
 * `add` is set; else they overwrite them. With `grad_t`, which is allowed for DTYPE_F16, gradients have type T: g =
 * T(new), and with `add` g = T(g + T(new)), as PyTorch accumulates fp16. Equal input gives equal bits in every run
 * and with any number of threads: no order of additions depends on timing. Pointers are device pointers and aligned
 * to 16 bytes. Outputs must not overlap inputs unless the contract allows it.
 */
#ifndef SHARDKIT_KERNELS_KERNELS_H
#define SHARDKIT_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/dev.h"
#include "libcommon/base/dev_net.h"
#include "libcommon/base/dtype.h"

/*
 * Dropout. Whether an element is kept depends only on a key and on the position of the element (counter-based random
 * numbers). The mask therefore needs no memory: recomputation produces the same mask again. Positions count in the
 * whole global batch, so a mask does not depend on the topology.
 *
 * Each element has a random number u of 16 bits. It is kept iff u >= limit, where limit is p * 2^16 rounded to
 * nearest. Kept elements are multiplied by 1 / (1 - limit / 2^16), which uses the effective p. p = 0 means no
 * dropout; p is at most 0.999. The numbers come from Philox4x32 with the key (Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3", SC11). It uses 7 rounds, the smallest number for which its authors found no failing
 * test of BigCrush.
 *
 *   hidden tensors  u of element i = (row0 + row) * columns + column is half i % 8 of the block whose counter
 *                   is (i / 8 low, i / 8 high, 0, 0). Halves 2 w and 2 w + 1 are the lower and the upper half
 *                   of word w.
 *   attention       2 queries by 16 keys share the 16 words of 4 blocks. Word w of block j is word 4 j + w of
 *                   the 16. The counter of the block is (key / 16 * 4 + j, query / 2, head0 + head, sample),
 *                   with sample counted from row0 / s. Bit i of u is bit query % 2 * 16 + key % 16 of word i. A machine
 *                   that computes with words thus compares 32 elements at once, with only 4 blocks.
 */
struct kernel_dropout {
    float p;
    uint32_t key[2];
    /* number of row 0 in the global batch; for attention, the number of sample 0 times s */
    int64_t row0;
};
/*
 * The limit for the random numbers of elements, and the factor for kept elements. An element is dropped if its random
 * number is less than the limit.
 */
static inline uint32_t kernel_dropout_limit(float p) { return (uint32_t)((double)p * 65536 + 0.5); }
static inline float kernel_dropout_keep(float p) { return 65536.0f / (float)(65536 - kernel_dropout_limit(p)); }

/*
 * A linear layer: linear() computes y = x w^T + bias, with w stored as in PyTorch. In the structs for its gradients, m,
 * n and k have the same meaning as here.
 */
struct kernel_linear {
    int64_t m, n, k;                    /* rows, outputs, inputs */
    const void *x;                      /* T [m, k] */
    const void *w;                      /* T [n, k] */
    const void *bias;                   /* T [n], or NULL */
    void *y;                            /* T [m, n] */
    /* For linear_gelu: T [m, n], receives the input of the GELU; NULL if no gradient will be computed. */
    void *pre;
};
struct kernel_linear_dx {
    int64_t m, n, k;
    const void *dy;                     /* T [m, n] */
    const void *w;                      /* T [n, k] */
    /* for linear_dx_gelu: T [m, k], the input of the GELU that precedes the layer */
    const void *pre;
    void *dx;                           /* T [m, k] */
    bool add;                           /* linear_dx: add to dx */
};
struct kernel_linear_dw {
    int64_t m, n, k;
    const void *dy;                     /* T [m, n] */
    const void *x;                      /* T [m, k] */
    void *dw;                           /* fp32 or T [n, k] */
    void *dbias;                        /* same type, [n], or NULL */
    bool add, grad_t;
};

/* LayerNorm of rows of h elements. mean and rstd are saved for the gradient. */
struct kernel_layernorm {
    int64_t m, h;
    const void *x;                      /* T [m, h] */
    const void *gamma, *beta;           /* T [h] */
    float eps;
    void *y;                            /* T [m, h] */
    float *mean, *rstd;                 /* fp32 [m], or NULL */
};
struct kernel_layernorm_back {
    int64_t m, h;
    const void *dy;                     /* T [m, h]; may be dx */
    const void *x;                      /* T [m, h] */
    const void *gamma;                  /* T [h] */
    const float *mean, *rstd;           /* fp32 [m], as computed by layernorm() */
    const void *add_dx;                 /* T [m, h], added to dx, or NULL; may be dx */
    void *dx;                           /* T [m, h] */
    void *dgamma, *dbeta;               /* fp32 or T [h] */
    bool add, grad_t;                   /* for dgamma and dbeta */
    void *scratch;                      /* layernorm_scratch() bytes */
};
/*
 * Arguments of residual_norm(), which computes z = residual + dropout(a + bias) and the LayerNorm of z in the same
 * pass.
 */
struct kernel_residual_norm {
    const void *a;                      /* T [m, h] */
    const void *bias;                   /* T [h] */
    const void *residual;               /* T [m, h] */
    struct kernel_dropout drop;
    void *z;                            /* T [m, h]; may be `residual` or `a` */
    /*
     * norm.m and norm.h are the sizes of all tensors. norm.x is ignored, because the input of the LayerNorm is z. If
     * norm.gamma is NULL, only z is computed.
     */
    struct kernel_layernorm norm;
};
/* The gradient of the dropout in residual_norm(): da = dz * mask / (1 - p). */
struct kernel_dropout_back {
    int64_t m, h;
    const void *dz;                     /* T [m, h] */
    struct kernel_dropout drop;
    void *da;                           /* T [m, h]; may be dz, in which case nothing is copied if p = 0 */
    void *dbias;                        /* fp32 or T [h], or NULL */
    bool add, grad_t;                   /* for dbias */
    void *scratch;                      /* layernorm_scratch() bytes */
};

/* Causal attention over b samples of s tokens, for the heads of this rank only. */
struct kernel_attention {
    int b, s;
    int heads, hd;                      /* number of local heads, and their dimension */
    int head0;                          /* index of the first head of this rank among all heads; used for dropout */
    /*
     * q, k, v of (sample, token, head) begin at q[(sample * s + token) * token_stride + head * head_stride]. For
     * Megatron's packing per head, [heads, 3, hd], token_stride is 3 * heads * hd and head_stride is 3 * hd.
     */
    const void *q, *k, *v;
    int64_t token_stride, head_stride;  /* in elements */
    void *o;                            /* T [b * s, heads * hd] */
    float *lse;                         /* fp32 [b, heads, s]: log of the sum of exponentials of scores */
    float scale;                        /* factor of q . k: 1 / sqrt(hd) */
    /*
     * bias[i * s + j] is added to the scores of the key at position j in head i; NULL: no bias. For ALiBi it is slope *
     * j, rounded to T as in the reference (docs/training.md 1.5).
     */
    const float *bias;
    /*
     * If this is not 0, each score x = scale * q . k + bias is replaced by round_unit * T(x / round_unit) before the
     * softmax, in the forward and the backward pass. This reproduces an effect of the reference's query-key layer
     * scaling. The reference stores x / unit in T, where unit is the number of the layer, and multiplies by unit in a
     * softmax that computes in fp32. The effect is visible in the losses (1.5e-3 at one step in ten of a small model in
     * bf16). The fast cuda kernels (head dimensions 64, 80, 96, 128) ignore this value and keep scores in fp32, which
     * cannot overflow as fp16 could. All other kernels apply it.
     */
    float round_unit;
    struct kernel_dropout drop;
};
struct kernel_attention_back {
    const void *d_o;                    /* T [b * s, heads * hd] */
    void *dq, *dk, *dv;                 /* T, with the strides of q, k, v */
    void *scratch;                      /* attention_scratch() bytes */
};

/* Embedding lookup. The table holds rows first .. first + rows of the vocabulary. */
struct kernel_embed {
    int64_t m, h;
    int64_t first, rows;
    const int32_t *id;                  /* [m] */
    const void *table;                  /* T [rows, h] */
    void *y;                            /* T [m, h] */
};
struct kernel_embed_back {
    int64_t m, h;
    int64_t first, rows;
    const int32_t *id;                  /* [m] */
    const void *dy;                     /* T [m, h] */
    void *dtable;                       /* fp32 or T [rows, h] */
    bool add, grad_t;
    void *scratch;                      /* embed_scratch() bytes */
};
/* Arguments of embed_finish(): the operations after the embedding lookup, which are position embeddings and dropout. */
struct kernel_embed_finish {
    int64_t m, h;
    int64_t s;                          /* tokens per sample */
    const void *x;                      /* T [m, h] */
    const void *position;               /* T [.., h], or NULL */
    const int32_t *pos;                 /* [m], rows of `position`; NULL: row % s */
    struct kernel_dropout drop;
    void *y;                            /* T [m, h]; may be x */
};
struct kernel_position_back {
    int64_t m, h;
    int64_t s, n_pos;                   /* tokens per sample; number of positions in the table */
    const void *dx;                     /* T [m, h], with the gradient of dropout already applied */
    const int32_t *pos;                 /* as above */
    void *dposition;                    /* fp32 or T [n_pos, h] */
    bool add, grad_t;
};

/* The logits of the vocabulary, which may be split over ranks. This rank has columns first .. first + v. */
struct kernel_xent {
    int64_t m, v;
    int64_t first;
    const int32_t *target;              /* [m], indices in the whole vocabulary */
    void *logits;                       /* T [m, v]; read-only for xent_stat() */
};

/*
 * The numbers of one AdamW step (docs/training.md 3.5). The struct is stored in device memory, so that queued work can
 * read it later.
 */
struct kernel_adamw {
    float lr, beta1, beta2, eps;
    float c1, c2;                       /* 1 - beta1^t and 1 - beta2^t, computed in double */
    /* factor by which every gradient is multiplied first: clipping and 1 / loss scale */
    float grad_scale;
};

/* The flat buffers that AdamW updates. */
struct kernel_adamw_buffers {
    float *p, *m, *v;                   /* parameters; moving averages of gradients and of their squares */
    const void *g;                      /* gradients, fp32 or T */
    void *w;                            /* weights: parameters rounded to T */
    bool grad_t;
};

/*
 * A range of the flat buffers. It is a parameter, or the part of a parameter that a rank owns. Offsets are multiples of
 * 8 elements.
 */
struct kernel_run {
    int64_t at, n;                      /* range in the buffers of parameters and gradients */
    int64_t w_at;                       /* used by adamw: offset in the weights */
    int out;                            /* used by sumsq_runs and digest_runs: index of its result */
    float decay;                        /* used by adamw: weight decay */
};
struct kernel_runs;

/*
 * One of the buffers for digest_runs(), with its address x, its dtype `t`, its runs, and the index `out` of its first
 * result.
 */
struct kernel_digest {
    const void *x;
    enum dtype t;
    const struct kernel_runs *runs;
    int64_t out;
};
#define KERNEL_DIGESTS 4
struct kernel_digests {
    struct kernel_digest of[KERNEL_DIGESTS];
    int n;
};

struct kernels {
    const struct dev_ops *dev;

    /* ---- linear layers ---- */
    /* y = x w^T + bias */
    void (*linear)(const struct kernel_linear *l, enum dtype t, struct dev_stream *s);
    /* pre = x w^T + bias, rounded to T; y = gelu(pre), tanh form */
    void (*linear_gelu)(const struct kernel_linear *l, enum dtype t, struct dev_stream *s);
    /*
     * Compute dx (+)= dy w. Here and below, (+)= adds to the old value if `add` is set, and otherwise replaces the old
     * value.
     */
    void (*linear_dx)(const struct kernel_linear_dx *l, enum dtype t, struct dev_stream *s);
    /* Compute dx = (dy w) * gelu'(pre): the gradient of the input of the GELU that precedes the layer. */
    void (*linear_dx_gelu)(const struct kernel_linear_dx *l, enum dtype t, struct dev_stream *s);
    /* dw (+)= dy^T x; dbias (+)= column sums of dy */
    void (*linear_dw)(const struct kernel_linear_dw *l, enum dtype t, struct dev_stream *s);
    /* y = gelu(pre) for n elements; used for recomputation */
    void (*gelu)(void *y, const void *pre, int64_t n, enum dtype t, struct dev_stream *s);

    /* ---- LayerNorm ---- */
    /* y = LN(x) */
    void (*layernorm)(const struct kernel_layernorm *n, enum dtype t, struct dev_stream *s);
    /* Compute dx = LN'(dy) + add_dx, and dgamma and dbeta (+)= their gradients. */
    void (*layernorm_back)(const struct kernel_layernorm_back *n, enum dtype t, struct dev_stream *s);
    uint64_t (*layernorm_scratch)(int64_t m, int64_t h);
    /* Compute z, rounded to T, and y, the LayerNorm of the rounded z. */
    void (*residual_norm)(const struct kernel_residual_norm *r, enum dtype t, struct dev_stream *s);
    /* Compute da, and dbias (+)= the column sums of da. */
    void (*dropout_back)(const struct kernel_dropout_back *d, enum dtype t, struct dev_stream *s);

    /* ---- attention ---- */
    void (*attention)(const struct kernel_attention *a, enum dtype t, struct dev_stream *s);
    void (*attention_back)(const struct kernel_attention *a, const struct kernel_attention_back *g, enum dtype t,
                           struct dev_stream *s);
    uint64_t (*attention_scratch)(const struct kernel_attention *a);

    /* ---- embedding ---- */
    /* y = table[id - first], or zeros if the id belongs to another rank */
    void (*embed)(const struct kernel_embed *g, enum dtype t, struct dev_stream *s);
    /* dtable (+)= sum of dy over the tokens of each row */
    void (*embed_back)(const struct kernel_embed_back *g, enum dtype t, struct dev_stream *s);
    uint64_t (*embed_scratch)(int64_t m, int64_t rows);
    /* y = dropout(x + position[pos]) */
    void (*embed_finish)(const struct kernel_embed_finish *g, enum dtype t, struct dev_stream *s);
    /* dposition (+)= sum of dx over the tokens at each position */
    void (*position_back)(const struct kernel_position_back *g, enum dtype t, struct dev_stream *s);

    /* ---- vocabulary-parallel cross entropy ---- */
    /*
     * Set stat, fp32 [m, 3]. For each row it holds the maximum, the sum of exp(logit - maximum), and the target's logit
     * (0 if another rank has it).
     */
    void (*xent_stat)(float *stat, const struct kernel_xent *x, enum dtype t, struct dev_stream *s);
    /*
     * Compute lse, fp32 [m], and loss, fp32 [m], which is lse - the target's logit. stat [tp, m, 3] holds the results
     * of xent_stat() on all tp ranks.
     */
    void (*xent_loss)(float *loss, float *lse, const float *stat, int tp, int64_t m, struct dev_stream *s);
    /*
     * In place: logits = (exp(logit - lse) - [column is target]) * scale[row];
     * scale fp32 [m] = mask / (sum mask * M)
     */
    void (*xent_back)(const struct kernel_xent *x, const float *lse, const float *scale, enum dtype t,
                      struct dev_stream *s);
    /* Set *out, fp64, to the sum of x[i] * w[i] or, if w is NULL, of x[i]. The order of additions depends only on n. */
    void (*weighted_sum)(double *out, const float *x, const float *w, int64_t n, struct dev_stream *s);
    /* Add x[i] to y[i], both fp64 [n]. Used for a running sum of losses. */
    void (*sum_doubles)(double *y, const double *x, int64_t n, struct dev_stream *s);

    /* ---- optimizer, over flat buffers ---- */
    /* Set *out, fp64, to the sum of x[i]^2. tmp is fp64 [sumsq_scratch(n)]. */
    void (*sumsq)(double *out, const float *x, int64_t n, double *tmp, struct dev_stream *s);
    int64_t (*sumsq_scratch)(int64_t n);
    /*
     * Create a list of n runs for the calls below. The runs must not overlap. The call may wait for the device. Returns
     * NULL with *e filled if there is not enough memory.
     */
    struct kernel_runs *(*runs_new)(const struct kernel_run *run, int n, struct err *e);
    /* NULL is allowed; the call does not wait for queued work that still uses the list */
    void (*runs_free)(struct kernel_runs *r);
    /*
     * Set out[run.out], for each run, to the sum of squares of the run in x, with the same bits as sumsq() for each
     * run. x has type `t`, which is DTYPE_F32 or F16. Squares are computed in fp64, so a sum is infinite or NaN if and
     * only if an element is. The norm therefore reveals an overflow at no extra cost.
     */
    void (*sumsq_runs)(double *out, const void *x, enum dtype t, const struct kernel_runs *r, struct dev_stream *s);
    /*
     * Set *out to the smallest index in x of an infinite or NaN element that belongs to a run. If there is none, *out
     * is set to -1. x and t are as for sumsq_runs().
     */
    void (*first_not_finite)(int64_t *out, const void *x, enum dtype t, const struct kernel_runs *r,
                             struct dev_stream *s);
    /*
     * Compute a 64-bit digest of the bits of each run of some buffers. The digest out[d.out + run.out] is the sum,
     * modulo 2^64, of mix(w_i ^ (i + 1) 0x9e3779b97f4a7c15) over the 64-bit words w_i of the run. i counts from 0, and
     * the last word is padded with zeros. mix(u) is u *= 0xbf58476d1ce4e5b9, u ^= u >> 32, u *= 0x94d049bb133111eb, u
     * ^= u >> 29. mix() is invertible, so a difference in a single word always changes the digest. The result is equal
     * on every device. All other elements of out[n] are set to 0.
     */
    void (*digest_runs)(uint64_t *out, int64_t n, const struct kernel_digests *d, struct dev_stream *s);
    /*
     * Update the elements of all runs: g' = g * step->grad_scale; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2; p =
     * p - lr ((m/c1) / (sqrt(v/c2) + eps) + decay p); w = p rounded to T. `step` is in device memory.
     */
    void (*adamw)(const struct kernel_adamw_buffers *b, const struct kernel_runs *r, const struct kernel_adamw *step,
                  enum dtype t, struct dev_stream *s);
    /* Set dst to src, converted to another dtype (F32 <-> BF16, F32 <-> F16) or copied. */
    void (*cast)(void *dst, enum dtype to, const void *src, enum dtype from, int64_t n, struct dev_stream *s);
    /* scale(): x *= f; add(): y += x. Type `t` is DTYPE_F32 or F16. */
    void (*scale)(void *x, float f, int64_t n, enum dtype t, struct dev_stream *s);
    void (*add)(void *y, const void *x, int64_t n, enum dtype t, struct dev_stream *s);
    /*
     * Generate normal deviates for initial weights: x[i] = std * g(first + i). Each Philox block gives two of them
     * by Box-Muller in fp64. With words w0..w3 of block j / 2, u(a, b) = (((a << 32 | b) >> 12) + 0.5) / 2^52 and r
     * = sqrt(-2 ln u(w0, w1)), g(j) rounded to fp32 is r cos(2 pi u(w2, w3)) for even j and r sin() for odd j.
     */
    void (*normal)(float *x, int64_t first, int64_t n, float std, const uint32_t key[2], struct dev_stream *s);

    /*
     * Returns the interface for messages between devices of this kind, which the caller passes to comm_use_device().
     * Returns NULL if ranks communicate through the host.
     */
    const struct dev_net *(*net)(struct err *e);
    void (*close)(const struct kernels *k);     /* kernels_close() calls it */
};

struct kernel_opts {
    int threads;                        /* cpu: number of OpenMP threads; 0 = OpenMP's default */
    int device;                         /* cuda: device ordinal; ignored if only one device is visible */
};
/*
 * Open the kernels of a device. Each process has only one instance per device. Returns NULL with *e filled if the
 * device cannot be used.
 */
MUST_CHECK const struct kernels *kernels_cpu_open(const struct kernel_opts *o, struct err *e);
MUST_CHECK const struct kernels *kernels_cuda_open(const struct kernel_opts *o, struct err *e);
void kernels_close(const struct kernels *k);    /* NULL is allowed */

#endif
