/*
 * checkpoint_files.c - which files a rank's state goes to, and how they look at this save
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/deepspeed/deepspeed.h"
#include "tools/train/checkpoint/checkpoint_write.h"

/* ---- set-up ---- */

static int find_place(const struct save_engine *g, int i, struct checkpoint_place *to, struct err *e)
{
    const struct stage_param *p = &g->s->param[i];
    const struct ds_stage *st = &g->t->stage[g->s->pp];

    for (int k = 0; k < st->n_groups; k++)
        for (int m = 0; m < st->group[k].n; m++) {
            const struct ds_slice *member = &st->group[k].slice[m];
            const struct ds_tparam *q = &g->t->param[member->param];

            if (!checkpoint_same(q->name, g->t->first_layer, p))
                continue;
            *to = (struct checkpoint_place){ .param = member->param, .group = k, .first = member->first,
                                             .layer_file = -1 };
            if (q->slice_elems == p->n)
                return 0;
            err_data(e, g->mem->path, ERR_NO_BYTE, "parameter %s: %lld elements a rank in the files, %lld in memory",
                     p->name, (long long)q->slice_elems, (long long)p->n);
            return -1;
        }
    err_data(e, g->mem->path, ERR_NO_BYTE, "parameter %s has no place in the files", p->name);
    return -1;
}

static int add_file(struct save_engine *g, int layer, int dp)
{
    const struct ds spelling = { .bf16_prefix = g->t->bf16_prefix };
    struct save_file *f = &g->file[g->n_files];
    char buf[96];

    *f = (struct save_file){ .layer = layer, .dp = dp };
    f->name = arena_fmt(g->arena, "%s", layer >= 0 ? ds_layer_name(layer, g->s->tp, buf)
                                       : ds_zero_name(&spelling, topo_mp(g->s->topo, g->s->pp, g->s->tp), dp, buf));
    f->prefix = arena_fmt(g->arena, "%.*s", (int)(strlen(f->name) - strlen(".pt")), f->name);
    return g->n_files++;
}

static int layer_file(struct save_engine *g, int layer)
{
    for (int i = 0; i < g->n_files; i++)
        if (g->file[i].layer == layer)
            return i;
    /* Headers of layer files are written by the data-parallel ranks in turn. */
    return add_file(g, layer, g->n_files % g->s->topo.dp);
}

static int find_places(struct save_engine *g, struct err *e)
{
    g->place = arena_alloc(g->arena, (size_t)g->s->n_params * sizeof *g->place);
    g->file = arena_alloc(g->arena, (size_t)(g->s->n_params + g->s->topo.dp) * sizeof *g->file);
    for (int i = 0; i < g->s->n_params; i++) {
        if (find_place(g, i, &g->place[i], e) < 0)
            return -1;
        if (!g->s->param[i].tied_copy && !g->s->param[i].untrained)
            g->place[i].layer_file = layer_file(g, g->t->param[g->place[i].param].layer);
    }
    for (int dp = 0; dp < g->s->topo.dp; dp++)
        add_file(g, -1, dp);
    return 0;
}

static struct source *open_memory(const struct checkpoint_base *s, struct err *e)
{
    struct memory_mp *mp = xcalloc((size_t)s->n_files, sizeof *mp);
    struct memory_parts parts = { .topo = s->topo, .weights = s->weights, .mp = mp, .bf16_prefix = s->bf16_prefix };
    struct source *src;

    for (int i = 0; i < s->n_files; i++) {
        const struct checkpoint_base_file *f = &s->file[i];

        if (f->pp >= 0) {
            mp[parts.n_mp++] = (struct memory_mp){ f->pp, f->tp, f->bytes, f->size };
        } else {
            parts.optimizer = f->bytes;
            parts.optimizer_size = f->size;
        }
    }
    src = memory_source_new(&parts, e);
    free(mp);
    return src;
}

struct save_engine *save_engine_new(const void *setup, size_t n, const void *area, struct err *e)
{
    struct save_engine *g = xcalloc(1, sizeof *g);
    struct report *notes = report_new();
    struct ds_request q = { .step = -1 };

    g->arena = arena_new(0);
    g->area = area;
    if (checkpoint_base_unpack(setup, n, &g->set, e) < 0)
        goto fail;
    q.stages = g->set.blocks;
    q.n_stages = g->set.topo.pp;
    g->s = stage_new(&g->set.model, g->set.topo, g->set.pp, g->set.dp, g->set.tp, g->set.blocks);
    g->at = checkpoint_area_of(g->s, g->set.weights);
    g->rank = topo_rank(g->set.topo, g->set.pp, g->set.dp, g->set.tp);
    g->mem = open_memory(&g->set, e);
    g->t = g->mem ? ds_target_new(g->mem, &q, notes, e) : NULL;
    if (!g->t || find_places(g, e) < 0)
        goto fail;
    report_free(notes);
    return g;
fail:
    report_free(notes);
    save_engine_free(g);
    return NULL;
}

void save_engine_free(struct save_engine *g)
{
    if (!g)
        return;
    ds_target_free(g->t);
    source_close(g->mem);
    stage_free(g->s);
    checkpoint_base_free(&g->set);
    arena_free(g->arena);
    free(g);
}

/* ---- what changes from save to save ---- */

static void renew(struct arena *a, struct pk *d, const char *key, struct pk *v)
{
    if (d && pk_get(d, key))
        pk_set_str(a, d, key, v);
}

static struct pk *betas_of(struct arena *a, const struct checkpoint_group *s)
{
    struct pk *t = pk_tuple(a);

    pk_add(a, t, pk_float(a, s->beta1));
    pk_add(a, t, pk_float(a, s->beta2));
    return t;
}

static void renew_shard(const struct save_engine *g, const struct checkpoint_now *now, struct ds_tree *x)
{
    struct pk *opt = pk_get(x->root, "optimizer_state_dict");
    uint32_t n = 0;
    struct pk **group = pk_items(pk_get(pk_get(opt, "base_optimizer_state"), "param_groups"), &n);

    for (uint32_t i = 0; i < n; i++) {
        const bool decays = g->t->stage[g->s->pp].group[i].rule < g->t->n_groups - 1;
        const struct checkpoint_group *s = decays ? &now->decay : &now->no_decay;

        renew(x->arena, group[i], "lr", pk_float(x->arena, s->lr));
        renew(x->arena, group[i], "betas", betas_of(x->arena, s));
        renew(x->arena, group[i], "eps", pk_float(x->arena, s->eps));
        renew(x->arena, group[i], "weight_decay", pk_float(x->arena, s->weight_decay));
    }
    renew(x->arena, opt, "clip_grad", pk_float(x->arena, now->clip_grad));
    if (now->has_scaler) {
        pk_set_str(x->arena, opt, "loss_scaler", loss_scale_write(x->arena, &now->scaler));
        pk_set_str(x->arena, opt, "dynamic_loss_scale", pk_bool(x->arena, now->scaler.dynamic));
        pk_set_str(x->arena, opt, "overflow", pk_bool(x->arena, now->overflow));
    }
}

static void renew_schedule(struct arena *a, struct pk *root, const struct checkpoint_schedule *c)
{
    struct pk *d = pk_get(root, "lr_scheduler");

    if (!c->present)
        return;
    if (!d || pk_is_none(d)) {
        d = pk_dict(a);
        pk_set_str(a, root, "lr_scheduler", d);
    }
    pk_set_str(a, d, "max_lr", pk_float(a, c->max_lr));
    pk_set_str(a, d, "warmup_steps", pk_int(a, c->warmup_steps));
    pk_set_str(a, d, "num_steps", pk_int(a, c->num_steps));
    pk_set_str(a, d, "warmup_tokens", pk_int(a, c->warmup_tokens));
    pk_set_str(a, d, "num_tokens", pk_int(a, c->num_tokens));
    pk_set_str(a, d, "decay_style", pk_str(a, c->decay_style));
    pk_set_str(a, d, "decay_steps", pk_int(a, c->decay_steps));
    pk_set_str(a, d, "min_lr", pk_float(a, c->min_lr));
}

/*
 * The genuine trainer's stages do not agree about the size of the model (the last one of a
 * gpt2 counts its position table), so each keeps a count of its own. Their ratio stays.
 */
static double own_gigaflos(const struct save_engine *g, const struct pk *args, double first)
{
    double was_first, was;

    if (pk_as_double(pk_get(g->mem->run.args, "gigaflos_no_embeds"), &was_first) && was_first > 0 &&
        pk_as_double(pk_get(args, "gigaflos_no_embeds"), &was))
        return first == was_first ? was : first * (was / was_first);
    return first;
}

static void renew_mp(const struct save_engine *g, struct arena *a, struct pk *root, const struct checkpoint_now *now)
{
    struct pk *args = pk_get(root, "args");

    pk_set_str(a, root, "iteration", pk_int(a, now->iteration));
    pk_set_str(a, root, "tokens", pk_int(a, now->consumed_tokens));
    pk_set_str(a, root, "global_steps", pk_int(a, now->iteration));
    renew(a, root, "skipped_steps", pk_int(a, now->skipped_steps));
    pk_set_str(a, root, "global_samples", pk_int(a, now->consumed_train_samples));
    renew_schedule(a, root, &now->schedule);
    pk_set_str(a, args, "consumed_train_samples", pk_int(a, now->consumed_train_samples));
    pk_set_str(a, args, "consumed_valid_samples", pk_int(a, now->consumed_valid_samples));
    pk_set_str(a, args, "consumed_train_tokens", pk_int(a, now->consumed_tokens));
    /* Words of ours: a run that skipped nothing has the reference's arguments alone. */
    if (now->skipped_train_iteration > 0 || pk_get(args, "skipped_train_samples")) {
        pk_set_str(a, args, "skipped_train_samples", pk_int(a, now->skipped_train_samples));
        pk_set_str(a, args, "skipped_train_iteration", pk_int(a, now->skipped_train_iteration));
    }
    pk_set_str(a, args, "gigaflos_no_embeds", pk_float(a, own_gigaflos(g, args, now->gigaflos)));
    pk_set_str(a, args, "iteration", pk_int(a, now->iteration));
}

uint8_t *save_engine_mp_file(const struct save_engine *g, const struct checkpoint_now *now, const char *prefix,
                             uint64_t *size, struct err *e)
{
    const struct source_file *f = ds_mp_file(g->mem, g->s->pp, g->s->tp);
    struct arena *a = arena_new(0);
    struct pk *root = pk_copy(a, pt_root(f->pt));
    uint8_t *bytes = NULL;
    int rc;

    renew_mp(g, a, root, now);
    rc = pt_build(prefix, root, f->pt, g->mem->files, &bytes, size, e);
    arena_free(a);
    return rc == 0 ? bytes : NULL;
}

/* ---- laying out ---- */

void save_engine_lay_out(struct save_engine *g, const struct checkpoint_now *now)
{
    g->t->opt_step = now->opt_step;
    for (int i = 0; i < g->n_files; i++) {
        struct save_file *f = &g->file[i];
        uint64_t *len;

        if (f->layer >= 0) {
            ds_tree_layer(g->t, f->layer, &f->tree);
        } else {
            ds_tree_zero(g->t, g->s->pp, f->dp, &f->tree);
            renew_shard(g, now, &f->tree);
        }
        len = xcalloc((size_t)f->tree.n + 1, sizeof *len);
        for (int k = 0; k < f->tree.n; k++)
            len[k] = f->tree.storage[k].len;
        f->im = pt_image_new(f->prefix, f->tree.root, f->tree.n, len);
        f->sum = xcalloc((size_t)f->tree.n + 1, sizeof *f->sum);
        f->dst = -1;
        free(len);
    }
}

void save_engine_forget(struct save_engine *g)
{
    for (int i = 0; i < g->n_files; i++) {
        pt_image_free(g->file[i].im);
        ds_tree_free(&g->file[i].tree);
        free(g->file[i].sum);
        g->file[i].im = NULL;
    }
}

uint64_t save_engine_disk_bytes(struct save_engine *g)
{
    const struct checkpoint_now now = {0};
    uint64_t sum = 0;

    save_engine_lay_out(g, &now);
    for (int i = 0; i < g->n_files; i++)
        if (g->file[i].dp == g->s->dp)
            sum += align_up(pt_image_size(g->file[i].im), 4096);
    save_engine_forget(g);
    for (int i = 0; i < g->set.n_files && g->s->dp == 0; i++)
        if (g->set.file[i].pp == g->s->pp && g->set.file[i].tp == g->s->tp)
            sum += align_up(g->set.file[i].size + 4096, 4096);
    return sum;
}
