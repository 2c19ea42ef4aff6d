/*
 * dcp_convert.c - describe a source as a folder of torch.distributed.checkpoint
 */
#include "libcommon/layout/dcp/dcp_convert.h"

#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/ds_request.h"
#include "libcommon/layout/layouts.h"

/*
 * Returns the name of a given option that cannot be applied to a folder of entries, or NULL if there is none. If source
 * and result have the same layout, all entries are kept, so the optimizer cannot be left out.
 */
static const char *get_non_dcp_option(const struct write_request *q, bool renames, bool same)
{
    const struct ds_request *d = q->shards;
    const char *option = ds_request_option(d);

    return d->topo.tp && !renames ? "--target-tp" : d->topo.pp ? "--target-pp" : d->topo.dp ? "--target-dp" :
           d->vocab && !renames ? "--pad-vocab-size-to" : option ? option : d->like ? "--like" :
           q->certificate ? "--certificate" : !same ? NULL : q->weights_only ? "--weights-only" :
           d->no_optimizer ? "--drop-optimizer" : NULL;
}

int dcp_check_request(const struct source *s, const struct write_request *q, bool renames, bool same, struct err *e)
{
    const char *option = get_non_dcp_option(q, renames, same);

    if (option)
        err_usage(e, "%s: %s does not apply to a checkpoint of torch.distributed, which can only be converted to "
                  "another number of ranks (--ranks, --mesh)%s", s->path, option,
                  q->shards->no_optimizer && same ? "; ckpt-edit drop optimizer leaves the optimizer out" : "");
    else if ((q->rules || (q->config && !q->weights_only)) && !renames)
        err_usage(e, "%s: --rules and --config translate names between Megatron and Transformers, but OUT keeps the "
                  "names of IN", s->path);
    else if (q->mesh_rows == 0 && q->ranks == 0 && !s->layout->model_folder)
        err_usage(e, "%s: the number of ranks is missing; give --ranks or --mesh", s->path);
    return e->kind == ERR_NONE ? 0 : -1;
}

int dcp_accepts(const struct source *s, const struct write_request *q, struct err *e)
{
    const bool same = s->layout == &dcp_layout;

    if (q->distributed) {
        err_usage(e, "%s: --distributed-optimizer needs --to torchdist and an IN of another layout; entries of "
                  "torchdist keep their form", s->path);
        return -1;
    }
    return dcp_check_request(s, q, q->renames && !same, same, e);
}

/* ---- the target ---- */

int dcp_describe_entries(struct source *s, const struct write_request *q, const struct dcp_conversion *how,
                         struct report *notes, struct layout_target *t, struct err *e)
{
    struct dcp_described *f = xcalloc(1, sizeof *f);

    if (q->shards->no_optimizer)
        source_drop_moments(s);
    t->ops = how->ops;
    t->of = f;
    f->how = how;
    f->mesh = q->mesh_rows ? (struct dcp_mesh){ q->mesh_rows, q->mesh_columns }
            : (struct dcp_mesh){ q->ranks ? q->ranks : 1, 1 };
    f->entries = how->make(s, q, notes, e);
    return f->entries ? 0 : -1;
}

struct sink *dcp_open_folder(const struct layout_target *t, const struct sink_opts *o)
{
    const struct dcp_described *f = t->of;

    return dcp_sink(o, f->entries, f->mesh);
}

char *dcp_folder_text(const struct layout_target *t)
{
    const struct dcp_described *f = t->of;

    return str_fmt("%s, %d ranks, %d parameters, %d entries", f->how->name, f->mesh.rows * f->mesh.columns,
                   t->src->n_params, f->entries->table.n);
}

void dcp_folder_facts(const struct layout_target *t, json_t *o)
{
    const struct dcp_described *f = t->of;

    json_object_set_new(o, "ranks", json_integer(f->mesh.rows * f->mesh.columns));
}

void dcp_list_entries(const struct layout_target *t, struct strbuf *sb)
{
    const struct dcp_described *f = t->of;

    for (int i = 0; i < f->entries->table.n; i++) {
        const struct dcp_entry *en = &f->entries->table.entry[i];
        char shape[SHAPE_TEXT];

        strbuf_addf(sb, "  %s %s%s%s\n", en->name, en->is_tensor ? dtype_name(en->dtype) : "value",
                    en->ndim ? " " : "", en->ndim ? shape_text(en->ndim, en->shape, shape) : "");
    }
}

void dcp_folder_free(void *of)
{
    struct dcp_described *f = of;

    dcp_target_free(f->entries);
    free(f);
}

static const struct layout_target_ops dcp_target_ops = {
    .pointer = "latest", .open_sink = dcp_open_folder, .text = dcp_folder_text, .facts = dcp_folder_facts,
    .list = dcp_list_entries, .free = dcp_folder_free,
};

static struct dcp_target *make_dcp_target(const struct source *s, const struct write_request *q, struct report *notes,
                                          struct err *e)
{
    (void)q;
    return dcp_target_new(s, notes, e);
}

int describe_as_dcp(struct source *s, const struct write_request *q, struct report *notes, struct layout_target *t,
                    struct err *e)
{
    static const struct dcp_conversion how = { &dcp_target_ops, "dcp", make_dcp_target };

    if (s->layout != &dcp_layout)
        source_add_buffers(s);
    return dcp_describe_entries(s, q, &how, notes, t, e);
}
