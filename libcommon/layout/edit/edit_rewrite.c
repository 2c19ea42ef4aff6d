/*
 * edit_rewrite.c - run another layout's sink, and share the files that do not belong to the layout
 */
#include "libcommon/layout/edit/edit_rewrite.h"

#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_share.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/write/sink.h"

/* The functions of the other sink, with edit_rewrite_sink_finish() replaced. Allocated in the edit's arena. */
struct rewrite_ops {
    struct sink_ops ops;                /* must be first: the sink points to it */
    const struct sink_ops *inner;
    struct edit *x;
};

/*
 * Returns true for a file that does not belong to the layout. The source lists the layout's files; one of HDF5 and
 * one of a model folder list all other files too.
 */
static bool is_sibling_file(const struct edit *x, const struct edit_file *f)
{
    const struct source_file *own = source_file(x->s, f->name);

    if (x->rewrite->hf && strcmp(f->name, "config.json") == 0)
        return false;
    return strcmp(f->name, MANIFEST_NAME) != 0 &&
           (!own || ((x->s->layout->datasets || x->rewrite->hf) && own->cls == FILE_OTHER && !own->pt));
}

static struct sink *hdf5_sink(const struct sink_opts *o, const struct edit_rewrite *n)
{
    struct sink_opts own = *o;

    own.vocab = VOCAB_KEEP;
    own.split = n->hdf5_split;
    return universal_hdf5_sink(&own);
}

static int edit_rewrite_sink_finish(struct sink *k, struct plan *p, struct err *e)
{
    const struct rewrite_ops *w = (const struct rewrite_ops *)(const void *)k->ops;
    int rc = w->inner->finish(k, p, e);

    for (int i = 0; i < w->x->n_files && rc == 0; i++)
        if (is_sibling_file(w->x, &w->x->file[i]))
            rc = edit_share_or_copy(w->x, &w->x->file[i], k->dir, k->o.rehearsal, e);
    return rc;
}

struct sink *edit_rewrite_sink(const struct sink_opts *o, struct edit *x)
{
    const struct edit_rewrite *n = x->rewrite;
    struct sink *k = n->ds ? deepspeed_sink(o, n->ds) : n->hdf5 ? hdf5_sink(o, n)
                   : n->hf ? hf_sink(o, n->hf) : zero_sink(o, n->zero);
    struct rewrite_ops *w = arena_alloc(x->arena, sizeof *w);

    *w = (struct rewrite_ops){ .ops = *k->ops, .inner = k->ops, .x = x };
    w->ops.finish = edit_rewrite_sink_finish;
    k->ops = &w->ops;
    return k;
}

void edit_rewrite_free(struct edit_rewrite *n)
{
    if (!n)
        return;
    ds_target_free(n->ds);
    zero_target_free(n->zero);
    hf_target_free(n->hf);
    json_decref(n->config);
}
