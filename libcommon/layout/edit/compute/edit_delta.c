/*
 * edit_delta.c - find the tensors of a delta in a checkpoint, compare them with the base, and compute the result
 */
#include "libcommon/layout/edit/compute/edit_delta.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/delta/delta_block.h"
#include "libcommon/layout/edit/compute/edit_compute.h"
#include "libcommon/plan/reader.h"

struct edit_delta {
    struct source *s;
    const struct delta *d;
    struct edit_computed *changed;      /* [n_changed]; `arg` is the struct delta_tensor */
    struct edit_computed *same;         /* [n_same]: tensors that only have to be those of the base */
    int n_changed, n_same;
    bool *found;                        /* [s->n_params * STATE_N]: the states of the source that the delta has */
    bool (*stopped)(void);              /* as in edit_delta_opts */
};

/* ---- the list of tensors ---- */

static int refuse_base_shape(const struct source *s, const struct param *p, const struct delta_tensor *t, struct err *e)
{
    char have[SHAPE_TEXT], want[SHAPE_TEXT];

    err_usage(e, "%s: %s %s is %s %s, but in the base of the patch it is %s %s", s->path, t->name, state_name(t->state),
              dtype_name(p->state[t->state]->dtype), shape_text(p->ndim, p->shape, have), dtype_name(t->dtype),
              shape_text(t->ndim, t->shape, want));
    return -1;
}

/*
 * Check a delta that contains the second name of a tied weight. The edit of the first name changes the bytes of both
 * names. Therefore the delta must also contain the first name, with the same bytes in the base and in the result.
 */
static int check_second_name(const struct delta_index *x, const struct param *p, const struct delta_tensor *t,
                             struct err *e)
{
    const struct delta_tensor *u = NULL;

    for (int i = 0; i < x->n && !u; i++)
        if (x->tensor[i].state == t->state && strcmp(x->tensor[i].name, p->shared_with) == 0)
            u = &x->tensor[i];
    if (u && u->base_crc == t->base_crc && u->result_crc == t->result_crc)
        return 0;
    err_usage(e, "%s is tied to %s, but the patch %s", t->name, p->shared_with,
              u ? "has other values for it" : "does not have that tensor");
    return -1;
}

static int add_delta_tensor(struct edit_delta *k, const struct delta_tensor *t, struct err *e)
{
    const struct delta_index *x = delta_index(k->d);
    struct param *p = source_param(k->s, t->name);

    if (!p || !p->state[t->state]) {
        err_usage(e, "%s: has no %s %s, which is in the patch of %s", k->s->path, t->name, state_name(t->state),
                  x->base.name);
        return -1;
    }
    if (p->state[t->state]->dtype != t->dtype || p->state[t->state]->len != t->bytes ||
        !shape_equal(p->ndim, p->shape, t->ndim, t->shape))
        return refuse_base_shape(k->s, p, t, e);
    if (edit_second_name(k->s, p, t->state) && check_second_name(x, p, t, e) < 0)
        return -1;
    const struct edit_computed c = { .p = p, .state = t->state, .len = t->bytes, .arg = t };

    if (delta_is_changed(x, t) && !edit_second_name(k->s, p, t->state))
        k->changed[k->n_changed++] = c;
    else
        k->same[k->n_same++] = c;
    return 0;
}

/*
 * Check that the delta lists no tensor twice. If the delta is not partial, check also that it has every state of the
 * source's parameters.
 */
static int check_delta_list(struct edit_delta *k, struct err *e)
{
    const struct source *s = k->s;
    const struct delta_index *x = delta_index(k->d);
    int rc = 0;

    k->found = xcalloc((size_t)s->n_params * STATE_N + 1, sizeof *k->found);
    for (int i = 0; i < k->n_changed + k->n_same && rc == 0; i++) {
        const struct edit_computed *c = i < k->n_changed ? &k->changed[i] : &k->same[i - k->n_changed];
        bool *is = &k->found[(c->p - s->param) * STATE_N + c->state];

        if (*is) {
            err_data(e, delta_path(k->d), ERR_NO_BYTE, "the patch lists %s %s twice", c->p->name,
                     state_name(c->state));
            rc = -1;
        }
        *is = true;
    }
    for (int i = 0; i < s->n_params * STATE_N && rc == 0 && !x->partial; i++)
        if (s->param[i / STATE_N].state[i % STATE_N] && !k->found[i]) {
            err_usage(e, "%s: has %s %s, which is not in the patch of %s", s->path, s->param[i / STATE_N].name,
                      state_name((enum state)(i % STATE_N)), x->base.name);
            rc = -1;
        }
    return rc;
}

struct edit_delta *edit_delta_open(struct source *s, const struct delta *d, struct err *e)
{
    const struct delta_index *x = delta_index(d);
    struct edit_delta *k = xcalloc(1, sizeof *k);
    int rc = 0;

    k->s = s;
    k->d = d;
    k->changed = xcalloc((size_t)x->n + 1, sizeof *k->changed);
    k->same = xcalloc((size_t)x->n + 1, sizeof *k->same);
    for (int i = 0; i < x->n && rc == 0; i++)
        rc = add_delta_tensor(k, &x->tensor[i], e);
    if (rc == 0)
        rc = check_delta_list(k, e);
    if (rc == 0)
        return k;
    edit_delta_free(k);
    return NULL;
}

void edit_delta_free(struct edit_delta *k)
{
    if (!k)
        return;
    free(k->changed);
    free(k->same);
    free(k->found);
    free(k);
}

int edit_delta_changed(const struct edit_delta *k)
{
    return k->n_changed;
}

void edit_delta_kept(const struct edit_delta *k, bool kept[STATE_N])
{
    for (int i = 0; i < k->n_changed; i++) {
        const struct param *p = k->changed[i].p;

        for (int st = 0; st < STATE_N; st++)
            kept[st] |= p->state[st] && !k->found[(p - k->s->param) * STATE_N + st];
    }
}

uint64_t edit_delta_bytes(const struct edit_delta *k)
{
    return edit_computed_bytes(k->changed, k->n_changed);
}

/* ---- the values ---- */

static int refuse_other_base(const struct edit_delta *k, const struct delta_tensor *t, struct err *e)
{
    err_usage(e, "%s: %s %s does not have the values of %s, from which the patch %s was made; apply it to "
                 "that checkpoint",
              k->s->path, t->name, state_name(t->state), delta_index(k->d)->base.name, delta_path(k->d));
    return -1;
}

/*
 * Read the tensor and compare it with the base. If o is not NULL, also pass the bytes of the result on, and compare
 * them with the result's digest.
 */
static int apply_to_tensor(const struct edit_delta *k, const struct edit_computed *c, struct edit_output *o,
                           struct err *e)
{
    const struct delta_tensor *t = c->arg;
    struct reader *r = reader_new(c->p->state[c->state], k->s->files, REPLICAS_FAIL, 0, c->len);
    struct delta_coder *coder = delta_coder_new();
    uint8_t *buf = xmalloc(DELTA_BLOCK);
    uint32_t was = 0, is = 0;
    int rc = 0;

    for (uint64_t at = 0; at < c->len && rc == 0; at += DELTA_BLOCK) {
        const uint32_t n = delta_block_bytes(t, at);

        rc = reader_read(r, at, n, buf, e);
        if (rc == 0 && k->stopped && k->stopped()) {
            err_stop(e);
            rc = -1;
        }
        if (rc == 0)
            was = crc_bytes(was, buf, n);
        if (rc == 0 && o)
            rc = delta_apply(k->d, coder, t, at, buf, e);
        if (rc == 0 && o)
            rc = edit_output_add(o, buf, n, e);
        if (rc == 0)
            is = crc_bytes(is, buf, n);
    }
    if (rc == 0 && was != t->base_crc)
        rc = refuse_other_base(k, t, e);
    if (rc == 0 && o && is != t->result_crc) {
        err_data(e, delta_path(k->d), ERR_NO_BYTE, "%s %s: the result has another checksum than the patch states",
                 t->name, state_name(t->state));
        rc = -1;
    }
    free(buf);
    delta_coder_free(coder);
    reader_free(r);
    return rc;
}

static int compute_delta(const void *ctx, const struct edit_computed *c, struct edit_output *o, struct err *e)
{
    return apply_to_tensor(ctx, c, o, e);
}

/* Compare tensors with the base in parallel. If several differ, the error of the first one in the list is returned. */
static int check_base_values(const struct edit_delta *k, const struct edit_computed *list, int n, int threads,
                             struct err *e)
{
    struct err *each = xcalloc((size_t)n + 1, sizeof *each);
    int rc = 0;

    #pragma omp parallel for schedule(dynamic) num_threads(threads > 0 ? threads : 1)
    for (int i = 0; i < n; i++)
        if (apply_to_tensor(k, &list[i], NULL, &each[i]) < 0 && each[i].kind == ERR_NONE)
            err_stop(&each[i]);
    for (int i = 0; i < n && rc == 0; i++)
        if (each[i].kind != ERR_NONE) {
            *e = each[i];
            rc = -1;
        }
    free(each);
    return rc;
}

int edit_delta_apply(struct edit *x, struct edit_delta *k, const struct edit_delta_opts *o, struct err *e)
{
    const struct edit_compute how = { .tensor = compute_delta, .ctx = k, .threads = o->threads, .stopped = o->stopped,
                                      .fd = o->fd, .notes = o->notes };

    k->stopped = o->stopped;
    if (check_base_values(k, k->same, k->n_same, o->threads, e) < 0)
        return -1;
    if (o->fd < 0 && check_base_values(k, k->changed, k->n_changed, o->threads, e) < 0)
        return -1;
    return edit_compute(x, k->s, &how, k->changed, k->n_changed, e);
}
