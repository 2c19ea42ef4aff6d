/*
 * kernels.h - the mathematics of a transformer, one contract for every device
 *
 * cpu/ is the reference: it follows the formulas. cuda/ is the fast one and queues its work
 * on the stream it is given; neither waits, prints or fails half-way: a launch that is
 * refused is told by dev_ops.check(). Shapes and dtypes are the caller's promise and only
 * asserted. Formulas: docs/training.md, sections 1 and 3 of which name the sources.
 *
 * Words used in all contracts:
 *   T        the dtype of weights and activations, DTYPE_BF16, DTYPE_F16 or DTYPE_F32, `t` in calls
 *   m        rows, one per token: sample-major, row = sample * s + position
 *   [a, b]   row-major, b contiguous
 * Arithmetic is fp32 (or better) whatever T is; each result is rounded to T once, to nearest
 * even. What is too large for fp16 becomes infinity, and neither that nor a NaN is ever lost on
 * the way to a gradient: that is how loss scaling hears of an overflow.
 * Gradients of parameters are fp32 and are added to when `add` is set, else overwritten. With
 * `grad_t`, which DTYPE_F16 may set, they are of T: g = T(new), and added to g = T(g + T(new)), as
 * PyTorch accumulates fp16. Equal input gives equal bits on every run and any number of threads: no
 * order of additions depends on timing. Pointers are the device's and aligned to 16 bytes;
 * outputs do not overlap inputs unless the contract says so.
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
 * Dropout by counter: whether an element is kept follows from a key and from where it is, so a mask needs no memory and
 * recomputation finds it again. Places are counted in the whole global batch: a mask does not depend on the topology.
 *
 * Each element has a random number u of 16 bits. It is kept iff u >= limit, p * 2^16 to the nearest; kept elements are
 * multiplied by 1 / (1 - limit / 2^16), from the p that is really used. p = 0: no dropout; p is at most 0.999.
 * Numbers come from Philox4x32 with the key (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11), of 7
 * rounds, the fewest of which its authors found no test of BigCrush to fail.
 *
 * hidden tensors  u of element i = (row0 + row) * columns + column is half i % 8 of the block whose counter is
 *                 (i / 8 low, i / 8 high, 0, 0): halves 2 w and 2 w + 1 are the lower and the upper of word w.
 * attention       2 queries by 16 keys share the 16 words of 4 blocks: word w of block j is word 4 j + w of them, the
 *                 block's counter (key / 16 * 4 + j, query / 2, head0 + head, sample), sample counted from row0 / s.
 *                 Bit i of u is bit query % 2 * 16 + key % 16 of word i. So machines that compute
 *                 with words compare 32 elements at once, and 4 blocks do for them.
 */
struct kernel_dropout {
    float p;
    uint32_t key[2];
    int64_t row0;                       /* number of row 0 in the global batch (attention: of sample 0, times s) */
};
/* The limit, and what kept elements are multiplied by. */
static inline uint32_t kernel_dropout_limit(float p) { return (uint32_t)((double)p * 65536 + 0.5); }
static inline float kernel_dropout_keep(float p) { return 65536.0f / (float)(65536 - kernel_dropout_limit(p)); }

/*
 * A linear layer, w as PyTorch stores it: linear() gives y = x w^T + bias. Its ways back have the
 * same m, n and k: the layer's, whatever is computed.
 */
struct kernel_linear {
    int64_t m, n, k;                    /* rows, outputs, inputs */
    const void *x;                      /* T [m, k] */
    const void *w;                      /* T [n, k] */
    const void *bias;                   /* T [n], or NULL */
    void *y;                            /* T [m, n] */
    void *pre;                          /* linear_gelu: T [m, n], what the GELU sees; NULL when nobody goes back */
};
struct kernel_linear_dx {
    int64_t m, n, k;
    const void *dy;                     /* T [m, n] */
    const void *w;                      /* T [n, k] */
    const void *pre;                    /* linear_dx_gelu: T [m, k], what the GELU in front of the layer saw */
    void *dx;                           /* T [m, k] */
    bool add;                           /* linear_dx: dx is added to */
};
struct kernel_linear_dw {
    int64_t m, n, k;
    const void *dy;                     /* T [m, n] */
    const void *x;                      /* T [m, k] */
    void *dw;                           /* fp32 or T [n, k] */
    void *dbias;                        /* the same [n], or NULL */
    bool add, grad_t;
};

/* LayerNorm of rows of h. mean and rstd are kept for the way back. */
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
    const float *mean, *rstd;           /* fp32 [m], as layernorm() gave them */
    const void *add_dx;                 /* T [m, h], added to dx, or NULL; may be dx */
    void *dx;                           /* T [m, h] */
    void *dgamma, *dbeta;               /* fp32 or T [h] */
    bool add, grad_t;                   /* dgamma and dbeta */
    void *scratch;                      /* layernorm_scratch() bytes */
};
/* z = residual + dropout(a + bias), and its LayerNorm in the same pass. */
struct kernel_residual_norm {
    const void *a;                      /* T [m, h] */
    const void *bias;                   /* T [h] */
    const void *residual;               /* T [m, h] */
    struct kernel_dropout drop;
    void *z;                            /* T [m, h]; may be `residual` or `a` */
    struct kernel_layernorm norm;       /* m and h of all of it; its x is z, whatever it says. gamma NULL: z only */
};
/* The way back through that dropout: da = dz * mask / (1 - p). */
struct kernel_dropout_back {
    int64_t m, h;
    const void *dz;                     /* T [m, h] */
    struct kernel_dropout drop;
    void *da;                           /* T [m, h]; may be dz: with p = 0 nothing is moved then */
    void *dbias;                        /* fp32 or T [h], or NULL */
    bool add, grad_t;                   /* dbias */
    void *scratch;                      /* layernorm_scratch() bytes */
};

/* Causal attention over b samples of s tokens; only this rank's heads. */
struct kernel_attention {
    int b, s;
    int heads, hd;                      /* local heads, their dimension */
    int head0;                          /* number of the first local head: for dropout */
    /*
     * q, k, v of (sample, token, head) at q[(sample * s + token) * token_stride + head * head_stride]:
     * Megatron's per-head packing [heads, 3, hd] is token_stride 3 * heads * hd, head_stride 3 * hd.
     */
    const void *q, *k, *v;
    int64_t token_stride, head_stride;  /* elements */
    void *o;                            /* T [b * s, heads * hd] */
    float *lse;                         /* fp32 [b, heads, s]: log of the sum of exponentials of scores */
    float scale;                        /* of q . k: 1 / sqrt(hd) */
    /*
     * Added to the score of key position j in head i: bias[i * s + j], or NULL. ALiBi gives
     * slope * j, rounded to T as the reference rounds it (docs/training.md 1.5).
     */
    const float *bias;
    /*
     * Unless 0, scores x = scale * q . k + bias become round_unit * T(x / round_unit) before the
     * softmax, both ways: what is left of the reference's query-key layer scaling, which
     * stores x / unit in T, unit being the layer's number, and multiplies by it in an fp32 softmax. Its
     * losses show it (1.5e-3 at one step in ten of a small model in bf16). The fast kernels of cuda (head
     * dims 64, 80, 96, 128) keep fp32 whatever this says, where fp16 cannot overflow; all others obey.
     */
    float round_unit;
    struct kernel_dropout drop;
};
struct kernel_attention_back {
    const void *d_o;                    /* T [b * s, heads * hd] */
    void *dq, *dk, *dv;                 /* T, strides as q, k, v */
    void *scratch;                      /* attention_scratch() bytes */
};

/* Rows of a table by token; the table holds rows first .. first + rows of the vocabulary. */
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
/* What follows the embedding: positions and dropout. */
struct kernel_embed_finish {
    int64_t m, h;
    int64_t s;                          /* tokens of a sample */
    const void *x;                      /* T [m, h] */
    const void *position;               /* T [.., h], or NULL */
    const int32_t *pos;                 /* [m], rows of `position`; NULL: row % s */
    struct kernel_dropout drop;
    void *y;                            /* T [m, h]; may be x */
};
struct kernel_position_back {
    int64_t m, h;
    int64_t s, n_pos;                   /* tokens of a sample; positions of the table */
    const void *dx;                     /* T [m, h], dropout already undone */
    const int32_t *pos;                 /* as above */
    void *dposition;                    /* fp32 or T [n_pos, h] */
    bool add, grad_t;
};

/* Logits of a vocabulary that may be split over ranks: columns first .. first + v are here. */
struct kernel_xent {
    int64_t m, v;
    int64_t first;
    const int32_t *target;              /* [m], numbers in the whole vocabulary */
    void *logits;                       /* T [m, v]; xent_stat() only reads them */
};

/* One step of AdamW (docs/training.md 3.5); in device memory, so that queued work may read it late. */
struct kernel_adamw {
    float lr, beta1, beta2, eps;
    float c1, c2;                       /* 1 - beta^t, from double */
    float grad_scale;                   /* every gradient is multiplied by this first: clipping, 1 / loss scale */
};

/* The flat buffers it works on. */
struct kernel_adamw_buffers {
    float *p, *m, *v;                   /* parameters; averages of gradients and of their squares */
    const void *g;                      /* gradients, fp32 or T */
    void *w;                            /* weights: parameters rounded to T */
    bool grad_t;
};

/* A stretch of flat buffers: a parameter, or what a rank owns of it. Places are multiples of 8 elements. */
struct kernel_run {
    int64_t at, n;                      /* in buffers of parameters and gradients */
    int64_t w_at;                       /* adamw: in the weights */
    int out;                            /* sumsq_runs, digest_runs: where its sum goes */
    float decay;                        /* adamw */
};
struct kernel_runs;

/* One of the buffers that digest_runs goes over: x of dtype `t`, its runs, and where the digests of these begin. */
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
    /* dx (+)= dy w */
    void (*linear_dx)(const struct kernel_linear_dx *l, enum dtype t, struct dev_stream *s);
    /* dx = (dy w) * gelu'(pre): the data gradient of the layer behind the GELU, and the GELU's */
    void (*linear_dx_gelu)(const struct kernel_linear_dx *l, enum dtype t, struct dev_stream *s);
    /* dw (+)= dy^T x; dbias (+)= column sums of dy */
    void (*linear_dw)(const struct kernel_linear_dw *l, enum dtype t, struct dev_stream *s);
    /* y = gelu(pre), n elements: recomputation */
    void (*gelu)(void *y, const void *pre, int64_t n, enum dtype t, struct dev_stream *s);

    /* ---- LayerNorm ---- */
    /* y = LN(x) */
    void (*layernorm)(const struct kernel_layernorm *n, enum dtype t, struct dev_stream *s);
    /* dx = LN'(dy) + add_dx; dgamma, dbeta (+)= */
    void (*layernorm_back)(const struct kernel_layernorm_back *n, enum dtype t, struct dev_stream *s);
    uint64_t (*layernorm_scratch)(int64_t m, int64_t h);
    /* z, rounded to T, and y = LN(z) of the rounded z */
    void (*residual_norm)(const struct kernel_residual_norm *r, enum dtype t, struct dev_stream *s);
    /* da; dbias (+)= column sums of da */
    void (*dropout_back)(const struct kernel_dropout_back *d, enum dtype t, struct dev_stream *s);

    /* ---- attention ---- */
    void (*attention)(const struct kernel_attention *a, enum dtype t, struct dev_stream *s);
    void (*attention_back)(const struct kernel_attention *a, const struct kernel_attention_back *g, enum dtype t,
                           struct dev_stream *s);
    uint64_t (*attention_scratch)(const struct kernel_attention *a);

    /* ---- embedding ---- */
    /* y = table[id - first], or zeros where the id is another rank's */
    void (*embed)(const struct kernel_embed *g, enum dtype t, struct dev_stream *s);
    /* dtable (+)= sum of dy over the tokens of each row */
    void (*embed_back)(const struct kernel_embed_back *g, enum dtype t, struct dev_stream *s);
    uint64_t (*embed_scratch)(int64_t m, int64_t rows);
    /* y = dropout(x + position[pos]) */
    void (*embed_finish)(const struct kernel_embed_finish *g, enum dtype t, struct dev_stream *s);
    /* dposition (+)= sum of dx over the tokens at each position */
    void (*position_back)(const struct kernel_position_back *g, enum dtype t, struct dev_stream *s);

    /* ---- vocabulary-parallel cross entropy ---- */
    /* stat fp32 [m, 3]: maximum, sum of exp(logit - maximum), the target's logit (0 when it is another rank's) */
    void (*xent_stat)(float *stat, const struct kernel_xent *x, enum dtype t, struct dev_stream *s);
    /* From the stats of all tp ranks, [tp, m, 3]: lse fp32 [m], and loss fp32 [m] = lse - target's logit */
    void (*xent_loss)(float *loss, float *lse, const float *stat, int tp, int64_t m, struct dev_stream *s);
    /*
     * In place: logits = (exp(logit - lse) - [column is target]) * scale[row];
     * scale fp32 [m] = mask / (sum mask * M)
     */
    void (*xent_back)(const struct kernel_xent *x, const float *lse, const float *scale, enum dtype t,
                      struct dev_stream *s);
    /* *out fp64 = sum of x[i] * w[i] (w NULL: 1), added in an order that depends on n alone */
    void (*weighted_sum)(double *out, const float *x, const float *w, int64_t n, struct dev_stream *s);
    /* y[i] += x[i], fp64 [n]: a running sum of losses */
    void (*sum_doubles)(double *y, const double *x, int64_t n, struct dev_stream *s);

    /* ---- optimizer, over flat buffers ---- */
    /* *out fp64 = sum of x[i]^2. tmp fp64 [sumsq_scratch(n)] */
    void (*sumsq)(double *out, const float *x, int64_t n, double *tmp, struct dev_stream *s);
    int64_t (*sumsq_scratch)(int64_t n);
    /* A list of n runs for the calls below, which do not overlap; the call may wait. NULL and *e without memory. */
    struct kernel_runs *(*runs_new)(const struct kernel_run *run, int n, struct err *e);
    void (*runs_free)(struct kernel_runs *r);   /* NULL is fine; waits for nothing that still uses it */
    /*
     * out[run.out] = sumsq of each run of x, the same bits as one by one. x: DTYPE_F32 or F16, `t`. Squares are of
     * fp64: a sum is infinite or a NaN iff an element is, so the norm tells of an overflow at no cost of its own.
     */
    void (*sumsq_runs)(double *out, const void *x, enum dtype t, const struct kernel_runs *r, struct dev_stream *s);
    /* *out = the least place `at` in x, of elements in runs, that is infinite or a NaN; -1: none is. x as above */
    void (*first_not_finite)(int64_t *out, const void *x, enum dtype t, const struct kernel_runs *r,
                             struct dev_stream *s);
    /*
     * What the bits of each run of some buffers are, in 64: out[d.out + run.out] = sum modulo 2^64 over the run's
     * 64-bit words w_i, i from 0 on, the last one filled up with zeros, of mix(w_i ^ (i + 1) 0x9e3779b97f4a7c15), where
     * mix(u) is u *= 0xbf58476d1ce4e5b9, u ^= u >> 32, u *= 0x94d049bb133111eb, u ^= u >> 29. It can be undone, so one
     * word that differs always shows. Equal on every device. What else is in out[n] becomes 0.
     */
    void (*digest_runs)(uint64_t *out, int64_t n, const struct kernel_digests *d, struct dev_stream *s);
    /*
     * On the elements of all runs: g' = g * step->grad_scale; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2;
     * p = p - lr ((m/c1) / (sqrt(v/c2) + eps) + decay p); w = p rounded to T. `step` is in device memory.
     */
    void (*adamw)(const struct kernel_adamw_buffers *b, const struct kernel_runs *r, const struct kernel_adamw *step,
                  enum dtype t, struct dev_stream *s);
    /* dst = src in another dtype (F32 <-> BF16, F32 <-> F16), or in the same */
    void (*cast)(void *dst, enum dtype to, const void *src, enum dtype from, int64_t n, struct dev_stream *s);
    /* x *= f; y += x; in DTYPE_F32 or F16, `t` */
    void (*scale)(void *x, float f, int64_t n, enum dtype t, struct dev_stream *s);
    void (*add)(void *y, const void *x, int64_t n, enum dtype t, struct dev_stream *s);
    /*
     * Normal deviates for initial weights: x[i] = std * g(first + i), two per Philox block by Box-Muller in fp64:
     * with words w0..w3 of block j / 2, u(a, b) = (((a << 32 | b) >> 12) + 0.5) / 2^52 and
     * r = sqrt(-2 ln u(w0, w1)), g(j) rounded to fp32 = r cos(2 pi u(w2, w3)) for even j, r sin() for odd.
     */
    void (*normal)(float *x, int64_t first, int64_t n, float std, const uint32_t key[2], struct dev_stream *s);

    /* What carries messages between such devices, for comm_use_device(); NULL: ranks talk over the host. */
    const struct dev_net *(*net)(struct err *e);
    void (*close)(const struct kernels *k);     /* kernels_close() calls it */
};

struct kernel_opts {
    int threads;                        /* cpu: OpenMP threads; 0 = what OpenMP says */
    int device;                         /* cuda: ordinal; of no account where only one is visible */
};
/* The process's one instance of a device's kernels. NULL and *e when the device cannot be had. */
MUST_CHECK const struct kernels *kernels_cpu_open(const struct kernel_opts *o, struct err *e);
MUST_CHECK const struct kernels *kernels_cuda_open(const struct kernel_opts *o, struct err *e);
void kernels_close(const struct kernels *k);    /* NULL is fine */

#endif
