/*
 * ref_kernels.h - reference implementation of the transformer's mathematics in fp64
 *
 * It is written from the formulas, not from the kernels: whole matrices and whole rows of probabilities, without
 * tiles. Arrays are dense and row-major. The *_back functions overwrite all their outputs. Sizes have the same
 * names as in kernels/kernels.h.
 */
#ifndef SHARDKIT_TESTS_REF_KERNELS_H
#define SHARDKIT_TESTS_REF_KERNELS_H

#include <stdint.h>

#include "kernels/kernels.h"

/* Compute Philox4x32 of a 128-bit counter. */
void ref_philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2], int rounds);
/* Return the dropout factor of element i of a hidden tensor: 0 or 1 / (1 - p), with the p that is really used. */
double ref_drop(const struct kernel_dropout *d, int64_t i);
/* Return the same for a probability. sample and head count in the whole batch and model. */
double ref_drop_attention(const struct kernel_dropout *d, int64_t sample, int64_t head, int64_t query, int64_t key);
double ref_normal(const uint32_t key[2], int64_t i);

/* Round x to T. */
double ref_round(double x, enum dtype t);
double ref_gelu(double x);
double ref_gelu_slope(double x);

/* y [m, n] = x [m, k] w [n, k]^T + bias (NULL: 0) */
void ref_linear(double *y, const double *x, const double *w, const double *bias, int64_t m, int64_t n, int64_t k);
/* Compute dx, dw and dbias of the same function. Each may be NULL. */
void ref_linear_back(double *dx, double *dw, double *dbias, const double *dy, const double *x, const double *w,
                     int64_t m, int64_t n, int64_t k);

void ref_layernorm(double *y, double *mean, double *rstd, const double *x, const double *gamma, const double *beta,
                   int64_t m, int64_t h, double eps);
void ref_layernorm_back(double *dx, double *dgamma, double *dbeta, const double *dy, const double *x,
                        const double *gamma, int64_t m, int64_t h, double eps);

/* Causal attention. q, k, v, o and their gradients are [b, s, heads, hd], lse is [b, heads, s]. */
struct ref_attention {
    int64_t b, s, heads, hd, head0;
    const double *q, *k, *v;
    const double *bias;                 /* [heads, s] or NULL */
    double scale;
    double round_unit;                  /* unless 0, scores become T(score / unit) * unit */
    struct kernel_dropout drop;
    enum dtype t;                       /* the type T of round_unit */
};
void ref_attention(double *o, double *lse, const struct ref_attention *a);
void ref_attention_back(double *dq, double *dk, double *dv, const double *d_o, const struct ref_attention *a);

/* Compute loss [m] and d sum(loss * scale) / d logits [m, v]. dlogits may be NULL. */
void ref_xent(double *loss, double *lse, double *dlogits, const double *logits, const int32_t *target,
              const double *scale, int64_t m, int64_t v);

/* Update one element. Returns the new p. */
double ref_adamw(double p, double *m, double *v, double g, double decay, const struct kernel_adamw *step);

/*
 * Return the largest difference between `grad` and central differences of f() over the n numbers of x, relative to
 * the largest |grad|. f() reads x through `arg`.
 */
double ref_gradient_error(double (*f)(const void *arg), const void *arg, double *x, int64_t n, const double *grad);

#endif
