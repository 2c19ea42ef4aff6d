/*
 * checkpoint_match.c - match the checkpoint's parameters with the stage's, and check their shapes
 */
#include <string.h>

#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/train/checkpoint/checkpoint_impl.h"

struct matching {
    struct checkpoint *c;
    const struct stage *s;
    const struct checkpoint_load_opts *o;
    const struct param **from;  /* [n_params] */
    struct checkpoint_loaded *out;
};

static int wrong_shape(const struct matching *l, const struct stage_param *p, const struct param *q, struct err *e)
{
    const struct checkpoint_info *i = &l->c->info;

    err_usage(e, "%s: %s is [%lld, %lld], the requested model has [%lld, %lld] (the checkpoint: %lld layers, hidden "
              "%lld, %lld heads)", i->path, q->name, (long long)q->shape[0], (long long)(q->ndim > 1 ? q->shape[1] : 1),
              (long long)p->shape[0], (long long)(p->ndim > 1 ? p->shape[1] : 1), (long long)i->model.n_layers,
              (long long)i->model.hidden, (long long)i->model.n_heads);
    return -1;
}

static int match_vocab_rows(const struct matching *l, int64_t rows, int64_t have, struct err *e)
{
    int64_t V0 = l->c->info.model.vocab_tokens;

    l->out->new_rows = rows > have ? rows - have : 0;
    l->out->lost_rows = rows < have ? have - rows : 0;
    if (l->out->lost_rows && (V0 <= 0 || rows < V0)) {
        err_usage(e, "%s: %lld rows of vocabulary cannot hold the checkpoint's %lld tokens", l->c->info.path,
                  (long long)rows, (long long)(V0 > 0 ? V0 : have));
        return -1;
    }
    if (l->out->new_rows)
        report_add(l->o->notes, SEV_WARNING, "vocab", l->c->info.path, ERR_NO_BYTE, NULL,
                   "vocabulary grows from %lld to %lld rows: %lld rows of zeros are added, and the loss will "
                   "move (they take their share of the softmax)", (long long)have, (long long)rows,
                   (long long)l->out->new_rows);
    if (l->out->lost_rows)
        report_add(l->o->notes, SEV_WARNING, "vocab", l->c->info.path, ERR_NO_BYTE, NULL,
                   "vocabulary shrinks from %lld to %lld rows: trained padding rows are dropped, and the loss will "
                   "move", (long long)have, (long long)rows);
    return 0;
}

static int match(const struct matching *l, int i, struct err *e)
{
    const struct stage_param *p = &l->s->param[i];
    const struct param *q = checkpoint_find(l->c->src, l->c->first_layer, p);
    bool vocab = p->merge == MERGE_VOCAB;

    if (!q) {
        err_usage(e, "%s: has no parameter %s, which the requested model has", l->c->info.path, p->name);
        return -1;
    }
    if (q->ndim != p->ndim || q->merge != p->merge || (!vocab && q->shape[0] != p->shape[0]) ||
        (p->ndim > 1 && q->shape[1] != p->shape[1]))
        return wrong_shape(l, p, q, e);
    l->from[i] = q;
    return vocab && !p->tied_copy ? match_vocab_rows(l, p->shape[0], q->shape[0], e) : 0;
}

int checkpoint_match(struct checkpoint *of, const struct stage *s, const struct checkpoint_load_opts *o,
                     const struct param **from, struct checkpoint_loaded *out, struct err *e)
{
    const struct matching l = { of, s, o, from, out };
    const struct checkpoint_info *c = &of->info;

    if (c->model.n_layers && c->model.n_layers != s->model.n_layers) {
        err_usage(e, "%s: has %lld layers, the requested model has %lld", c->path, (long long)c->model.n_layers,
                  (long long)s->model.n_layers);
        return -1;
    }
    if (c->model.n_heads && c->model.n_heads != s->model.n_heads) {
        err_usage(e, "%s: has %lld attention heads, the requested model has %lld", c->path, (long long)c->model.n_heads,
                  (long long)s->model.n_heads);
        return -1;
    }
    if (!c->has_optimizer && !o->no_optim) {
        const struct param *bare = source_has_moments(of->src) ? checkpoint_bare(of) : NULL;

        err_usage(e, "%s: %s%s%s; --no-load-optim or --finetune starts with a new optimizer state", c->path,
                  bare ? "parameter " : "holds weights only", bare ? bare->name : "",
                  bare ? " has no moments of Adam, others have" : "");
        return -1;
    }
    for (int i = 0; i < s->n_params; i++)
        if (match(&l, i, e) < 0)
            return -1;
    return 0;
}
