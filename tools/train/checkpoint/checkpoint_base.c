/*
 * checkpoint_base.c - what a new checkpoint carries on from the loaded one, or begins with
 *
 * The files of a save are the loaded checkpoint's, brought to this topology and to this
 * run's arguments, so keys that we know nothing of live on. From scratch there is nothing to
 * bring: a checkpoint of one rank is made up in memory first, and then goes the same way.
 * The result, some small files, is what the writer process is told at set-up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "tools/train/checkpoint/checkpoint_impl.h"
#include "tools/train/options/deepspeed_json.h"

/* ---- the files that the writer gets ---- */

static struct checkpoint_base_file *add_file(struct checkpoint_base *s, int pp, int tp)
{
    s->file = xrealloc(s->file, ((size_t)s->n_files + 1) * sizeof *s->file);
    s->file[s->n_files] = (struct checkpoint_base_file){ .pp = pp, .tp = tp };
    return &s->file[s->n_files++];
}

static void set_text(struct arena *a, struct pk *root, const char *key, const char *text)
{
    if (text)
        pk_set_str(a, root, key, pk_str(a, text));
}

/* This rank's own mp_rank file, with this run's arguments and random states. */
static int renew_own(const struct checkpoint_saver_opts *o, struct checkpoint_base_file *f, const char *prefix,
                     struct err *e)
{
    struct files *files = files_new();
    struct pt *pt = pt_open(files, files_add_mem(files, f->bytes, f->size, "mp_rank file"), e);
    struct arena *a = arena_new(0);
    struct memory_storages st = {0};
    struct pk *root = pt ? memory_copy(a, &st, pt, files, pt_root(pt), e) : NULL, *args;
    uint8_t *bytes;

    if (root) {
        args = pk_get(root, "args");
        if (!args || pk_is_none(args)) {
            args = pk_object(a, "argparse", "Namespace", pk_dict(a));
            pk_set_str(a, root, "args", args);
        }
        checkpoint_args_of_run(a, args, o);
        if (o->ds_config)
            pk_set_str(a, root, "ds_config", deepspeed_json_tree(a, o->ds_config));
        set_text(a, root, "ds_version", o->ds_version);
        if (o->no_rng)
            checkpoint_rng_remove(root);
        else if (o->fresh_rng || !pk_get(root, "torch_rng_state"))
            checkpoint_rng_set(a, root, &st, o->seed, f->pp, f->tp);
        bytes = memory_pt(prefix, root, &st, &f->size);
        free(f->bytes);
        f->bytes = bytes;
    }
    memory_storages_free(&st);
    arena_free(a);
    pt_close(pt);
    files_free(files);
    return root ? 0 : -1;
}

static int add_mp(struct checkpoint_base *s, const struct ds_target *t, int pp, int tp,
                  const struct checkpoint_saver_opts *o, struct err *e)
{
    struct checkpoint_base_file *f = add_file(s, pp, tp);
    struct arena *a = arena_new(0);
    const struct source_file *from;
    struct pk *root;
    char name[96], *prefix;
    int rc;

    ds_mp_name(topo_mp(t->topo, pp, tp), name);
    prefix = str_fmt("%.*s", (int)(strlen(name) - strlen(".pt")), name);
    root = ds_tree_mp(t, a, pp, tp, &from, e);
    rc = root ? pt_build(prefix, root, from->pt, t->src->files, &f->bytes, &f->size, e) : -1;
    arena_free(a);
    if (rc == 0 && o)
        rc = renew_own(o, f, prefix, e);
    free(prefix);
    return rc;
}

struct shrinking {
    struct arena *arena;
    struct memory_storages *st;
};

/* Flat tensors without their elements; a step keeps its one. */
static struct pk *shrink(void *ctx, const struct pk *v)
{
    struct shrinking *x = ctx;
    const int64_t none = 0;
    const float zero = 0;
    uint32_t n = 0, ndim = 0;
    struct pk **arg;
    int64_t grad = 0;

    if (v->type != PK_CALL || !pk_is_class(v->fn, "torch._utils", "_rebuild_tensor_v2"))
        return NULL;
    arg = pk_items(v->args, &n);
    pk_items(arg[2], &ndim);
    pk_as_int(arg[4], &grad);
    return memory_tensor(x->arena, x->st, &(struct pt_new){ .dtype = DTYPE_F32, .ndim = ndim > 0, .shape = &none,
                                                            .requires_grad = grad != 0 }, &zero);
}

/* Settings of all groups: those of a stage that has them all. */
static void add_shard(struct checkpoint_base *s, const struct ds_target *t, const struct checkpoint_saver_opts *o)
{
    int pp = 0;
    struct checkpoint_base_file *f = add_file(s, -1, -1);
    struct arena *a = arena_new(0);
    struct memory_storages st = {0};
    struct shrinking x = { a, &st };
    struct ds_tree tree;
    struct pk *root;

    while (pp < t->topo.pp - 1 && t->stage[pp].n_groups < t->n_groups)
        pp++;
    ds_tree_zero(t, pp, 0, &tree);
    root = pk_copy_swap(a, tree.root, shrink, &x);
    if (o->ds_config)
        pk_set_str(a, root, "ds_config", deepspeed_json_tree(a, o->ds_config));
    set_text(a, root, "ds_version", o->ds_version);
    set_text(a, pk_get(root, "optimizer_state_dict"), "ds_version", o->ds_version);
    f->bytes = memory_pt("shard", root, &st, &f->size);
    ds_tree_free(&tree);
    memory_storages_free(&st);
    arena_free(a);
}

static int add_files(struct checkpoint_base *s, const struct ds_target *t, const struct checkpoint_saver_opts *o,
                     struct err *e)
{
    for (int pp = 0; pp < s->topo.pp; pp++)
        if (add_mp(s, t, pp, 0, s->tp == 0 && s->pp == pp ? o : NULL, e) < 0)
            return -1;
    if (s->tp > 0 && add_mp(s, t, s->pp, s->tp, o, e) < 0)
        return -1;
    add_shard(s, t, o);
    return 0;
}

/* ---- which source ---- */

static struct ds_target *target_of(const struct source *src, const struct checkpoint_saver_opts *o, struct report *told,
                                   struct err *e)
{
    const struct stage *s = o->stage;
    struct ds_request q = { .topo = s->topo, .stages = o->blocks, .n_stages = s->topo.pp, .vocab = s->model.vocab,
                            .step = -1 };

    return ds_target_new(src, &q, told, e);
}

/* A loaded checkpoint whose files can be carried on: not another optimizer's, nor one without. */
static bool usable(const struct checkpoint_saver_opts *o)
{
    const struct checkpoint *c = o->from;

    return c && c->info.has_optimizer && c->src->zero_stage_1 == (o->weights == DTYPE_F16);
}

static void pass_notes(const struct report *told, struct report *notes)
{
    for (int i = 0; i < report_n(told); i++) {
        const struct finding *f = report_get(told, i);

        if (!strcmp(f->code, "rng"))
            report_add(notes, SEV_NOTE, f->code, f->file, f->at, f->param, "%s", f->text);
    }
}

int checkpoint_base_make(const struct checkpoint_saver_opts *o, struct checkpoint_base *out, struct report *notes,
                         struct err *e)
{
    const struct stage *s = o->stage;
    struct checkpoint_scratch x = {0};
    struct report *told = report_new();
    struct err why = {0};
    struct ds_target *t = usable(o) ? target_of(o->from->src, o, told, &why) : NULL;
    int rc = -1;

    *out = (struct checkpoint_base){ .topo = s->topo, .pp = s->pp, .dp = s->dp, .tp = s->tp, .model = s->model,
                                     .weights = o->weights, .bf16_prefix = o->weights == DTYPE_BF16,
                                     .threads = o->threads > 0 ? o->threads : 1,
                                     .area_bytes = checkpoint_area_of(s, o->weights).bytes };
    out->blocks = xmalloc((size_t)s->topo.pp * sizeof *out->blocks);
    memcpy(out->blocks, o->blocks, (size_t)s->topo.pp * sizeof *out->blocks);
    if (!t && o->from)
        report_add(notes, SEV_NOTE, "anew", o->from->info.path, ERR_NO_BYTE, NULL,
                   "saves take over its arguments only%s%s", why.kind == ERR_NONE ? "" : ": ", why.msg);
    else
        pass_notes(told, notes);
    if (!t && checkpoint_scratch_make(&x, o, o->from ? o->from->src->run.args : NULL, e) == 0)
        t = target_of(x.src, o, told, e);
    if (t)
        rc = add_files(out, t, o, e);
    ds_target_free(t);
    checkpoint_scratch_free(&x);
    report_free(told);
    if (rc < 0)
        checkpoint_base_free(out);
    return rc;
}

void checkpoint_base_free(struct checkpoint_base *s)
{
    for (int i = 0; i < s->n_files; i++)
        free(s->file[i].bytes);
    free(s->file);
    free(s->blocks);
    memset(s, 0, sizeof *s);
}

/* ---- as bytes, for a process made by fork: same machine, same build ---- */

void checkpoint_base_pack(const struct checkpoint_base *s, struct strbuf *out)
{
    strbuf_add(out, s, sizeof *s);
    strbuf_add(out, s->blocks, (size_t)s->topo.pp * sizeof *s->blocks);
    for (int i = 0; i < s->n_files; i++) {
        strbuf_add(out, &s->file[i], sizeof s->file[i]);
        strbuf_add(out, s->file[i].bytes, s->file[i].size);
    }
}

int checkpoint_base_unpack(const void *msg, size_t n, struct checkpoint_base *out, struct err *e)
{
    const char *p = msg, *end = p + n;

    memcpy(out, p, sizeof *out);
    p += sizeof *out;
    out->blocks = xmalloc((size_t)out->topo.pp * sizeof *out->blocks);
    memcpy(out->blocks, p, (size_t)out->topo.pp * sizeof *out->blocks);
    p += (size_t)out->topo.pp * sizeof *out->blocks;
    out->file = xcalloc((size_t)out->n_files, sizeof *out->file);
    for (int i = 0; i < out->n_files; i++) {
        struct checkpoint_base_file *f = &out->file[i];

        memcpy(f, p, sizeof *f);
        p += sizeof *f;
        f->bytes = xmalloc(f->size + 1);
        memcpy(f->bytes, p, f->size);
        p += f->size;
    }
    if (p == end)
        return 0;
    checkpoint_base_free(out);
    err_data(e, "writer process", ERR_NO_BYTE, "a set-up message of %zu bytes does not end where it should", n);
    return -1;
}
