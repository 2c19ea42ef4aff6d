/*
 * trace_kernels.c - wrappers that record kernels, copies and exchanges
 *
 * Each traced function calls the kernel between trace_begin() and trace_end(). The functions of struct kernels
 * receive no context pointer, so the wrappers find the process's only trace in the static variable `here`.
 */
#include "tools/train/trace/trace_impl.h"

static struct trace *here;

/*
 * The kernels that are traced. Each row has a kernel's name, its class, its parameters with their types, and the same
 * parameters as arguments of a call. In all rows the parameter for the stream must be named s.
 */
#define KERNELS(X) \
    X(linear, LINEAR, (const struct kernel_linear *l, enum dtype t, struct dev_stream *s), (l, t, s)) \
    X(linear_gelu, LINEAR, (const struct kernel_linear *l, enum dtype t, struct dev_stream *s), (l, t, s)) \
    X(linear_dx, LINEAR, (const struct kernel_linear_dx *l, enum dtype t, struct dev_stream *s), (l, t, s)) \
    X(linear_dx_gelu, LINEAR, (const struct kernel_linear_dx *l, enum dtype t, struct dev_stream *s), (l, t, s)) \
    X(linear_dw, LINEAR, (const struct kernel_linear_dw *l, enum dtype t, struct dev_stream *s), (l, t, s)) \
    X(gelu, ELEMENTWISE, (void *y, const void *pre, int64_t n, enum dtype t, struct dev_stream *s), \
      (y, pre, n, t, s)) \
    X(layernorm, NORM, (const struct kernel_layernorm *n, enum dtype t, struct dev_stream *s), (n, t, s)) \
    X(layernorm_back, NORM, (const struct kernel_layernorm_back *n, enum dtype t, struct dev_stream *s), (n, t, s)) \
    X(residual_norm, NORM, (const struct kernel_residual_norm *r, enum dtype t, struct dev_stream *s), (r, t, s)) \
    X(dropout_back, ELEMENTWISE, (const struct kernel_dropout_back *d, enum dtype t, struct dev_stream *s), \
      (d, t, s)) \
    X(attention, ATTENTION, (const struct kernel_attention *a, enum dtype t, struct dev_stream *s), (a, t, s)) \
    X(attention_back, ATTENTION, (const struct kernel_attention *a, const struct kernel_attention_back *g, \
      enum dtype t, struct dev_stream *s), (a, g, t, s)) \
    X(embed, EMBEDDING, (const struct kernel_embed *g, enum dtype t, struct dev_stream *s), (g, t, s)) \
    X(embed_back, EMBEDDING, (const struct kernel_embed_back *g, enum dtype t, struct dev_stream *s), (g, t, s)) \
    X(embed_finish, EMBEDDING, (const struct kernel_embed_finish *g, enum dtype t, struct dev_stream *s), (g, t, s)) \
    X(position_back, EMBEDDING, (const struct kernel_position_back *g, enum dtype t, struct dev_stream *s), \
      (g, t, s)) \
    X(xent_stat, LOSS, (float *stat, const struct kernel_xent *x, enum dtype t, struct dev_stream *s), \
      (stat, x, t, s)) \
    X(xent_loss, LOSS, (float *loss, float *lse, const float *stat, int tp, int64_t m, struct dev_stream *s), \
      (loss, lse, stat, tp, m, s)) \
    X(xent_back, LOSS, (const struct kernel_xent *x, const float *lse, const float *scale, enum dtype t, \
      struct dev_stream *s), (x, lse, scale, t, s)) \
    X(weighted_sum, LOSS, (double *out, const float *x, const float *w, int64_t n, struct dev_stream *s), \
      (out, x, w, n, s)) \
    X(sum_doubles, LOSS, (double *y, const double *x, int64_t n, struct dev_stream *s), (y, x, n, s)) \
    X(sumsq, OPTIMIZER, (double *out, const float *x, int64_t n, double *tmp, struct dev_stream *s), \
      (out, x, n, tmp, s)) \
    X(sumsq_runs, OPTIMIZER, (double *out, const void *x, enum dtype t, const struct kernel_runs *r, \
      struct dev_stream *s), (out, x, t, r, s)) \
    X(first_not_finite, OPTIMIZER, (int64_t *out, const void *x, enum dtype t, const struct kernel_runs *r, \
      struct dev_stream *s), (out, x, t, r, s)) \
    X(adamw, OPTIMIZER, (const struct kernel_adamw_buffers *b, const struct kernel_runs *r, \
      const struct kernel_adamw *step, enum dtype t, struct dev_stream *s), (b, r, step, t, s)) \
    X(digest_runs, DIGEST, (uint64_t *out, int64_t n, const struct kernel_digests *d, struct dev_stream *s), \
      (out, n, d, s)) \
    X(cast, ELEMENTWISE, (void *dst, enum dtype to, const void *src, enum dtype from, int64_t n, \
      struct dev_stream *s), (dst, to, src, from, n, s)) \
    X(scale, ELEMENTWISE, (void *x, float f, int64_t n, enum dtype t, struct dev_stream *s), (x, f, n, t, s)) \
    X(add, ELEMENTWISE, (void *y, const void *x, int64_t n, enum dtype t, struct dev_stream *s), (y, x, n, t, s))

#define TRACED(name, class, params, args) \
    static void traced_##name params \
    { \
        int traced = trace_begin(here, TRACE_##class, #name, s); \
        here->k->name args; \
        trace_end(here, traced, s); \
    }
KERNELS(TRACED)

/* ---- the device itself ---- */

static void traced_copy(void *dst, const void *src, uint64_t bytes, struct dev_stream *s)
{
    int i = trace_begin(here, TRACE_COPY, "copy", s);

    here->k->dev->copy(dst, src, bytes, s);
    trace_end(here, i, s);
}

static void traced_zero(void *dst, uint64_t bytes, struct dev_stream *s)
{
    int i = trace_begin(here, TRACE_COPY, "zero", s);

    here->k->dev->zero(dst, bytes, s);
    trace_end(here, i, s);
}

/* On a CPU there is nothing to wait for, so the span would have no length. */
static void traced_sync(struct dev_stream *s)
{
    trace_host_begin(here, TRACE_WAIT, "device");
    here->k->dev->stream_sync(s);
    trace_host_end(here);
}

static void traced_close(const struct kernels *k)
{
    (void)k;
    kernels_close(here->k);
}

const struct kernels *trace_kernels(struct trace *t, const struct kernels *k)
{
    if (!t || !k)
        return k;
    here = t;
    t->k = k;
    t->traced = *k;
#define TAKE(name, class, params, args) t->traced.name = traced_##name;
    KERNELS(TAKE)
#undef TAKE
    t->traced_dev = *k->dev;
    t->traced_dev.copy = traced_copy;
    t->traced_dev.zero = traced_zero;
    t->traced_dev.stream_sync = traced_sync;
    t->traced.dev = &t->traced_dev;
    t->traced.close = traced_close;
    return &t->traced;
}

/* ---- exchanges between devices ---- */

#define EXCHANGES(X) \
    X(all_reduce, (struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max, \
      struct dev_stream *s, struct err *e), (l, in, out, n, t, max, s, e)) \
    X(reduce_scatter, (struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max, \
      struct dev_stream *s, struct err *e), (l, in, out, n, t, max, s, e)) \
    X(all_gather, (struct dev_link *l, const void *in, void *out, uint64_t n_bytes, struct dev_stream *s, \
      struct err *e), (l, in, out, n_bytes, s, e)) \
    X(broadcast, (struct dev_link *l, void *buf, uint64_t n_bytes, int root, struct dev_stream *s, struct err *e), \
      (l, buf, n_bytes, root, s, e)) \
    X(send, (struct dev_link *l, const void *buf, uint64_t n_bytes, struct dev_stream *s, struct err *e), \
      (l, buf, n_bytes, s, e)) \
    X(recv, (struct dev_link *l, void *buf, uint64_t n_bytes, struct dev_stream *s, struct err *e), \
      (l, buf, n_bytes, s, e))

#define TRACED_EXCHANGE(name, params, args) \
    static int traced_##name params \
    { \
        int traced = trace_begin(here, TRACE_EXCHANGE, #name, s), rc = here->net->name args; \
        trace_end(here, traced, s); \
        return rc; \
    }
EXCHANGES(TRACED_EXCHANGE)

const struct dev_net *trace_net(struct trace *t, const struct dev_net *net)
{
    if (!t || !net)
        return net;
    here = t;
    t->net = net;
    t->traced_net = *net;
#define TAKE(name, params, args) t->traced_net.name = traced_##name;
    EXCHANGES(TAKE)
#undef TAKE
    return &t->traced_net;
}
