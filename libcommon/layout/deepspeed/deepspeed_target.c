/*
 * deepspeed_target.c - compute the shape of a sharded checkpoint from a request
 *
 * The source's own param_shapes show the conventions of its trainer: the layers of each stage, the number of optimizer
 * groups, which parameters have weight decay, and the order of the parameters. The rule in docs/formats.md, section
 * 4.4, is first applied to the source's own topology. Only if the result agrees with the source's files is the same
 * rule used for the target.
 */
#include "libcommon/layout/deepspeed/deepspeed_target.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/deepspeed/deepspeed_edit.h"
#include "libcommon/layout/deepspeed/deepspeed_pickles.h"
#include "libcommon/layout/deepspeed/deepspeed_tree.h"
#include "libcommon/model/zero_partition.h"

enum { DEGREE_MAX = 1 << 16 };

/* ---- the parameters that the source's ranks list ---- */

/*
 * Refuse a model whose output head is not tied to the embedding. Also refuse one whose embedding is on one stage only:
 * the last stage then has no copy of it.
 */
static int refuse_untied(const struct source *s, const struct ds_shape *o, struct err *e)
{
    for (int i = 0; i < o->index.n; i++) {
        const char *name = o->index.entry[i].name;

        if (!str_ends(name, PARAM_HEAD) && (ds_layer_of(name) < 0 || !param_ends(name, ROLE_WORD)))
            continue;
        err_data(e, s->path, ERR_NO_BYTE, "parameter %s: the embedding and the head are different tensors; only models "
                                          "with tied embeddings can be resharded", name);
        return -1;
    }
    return 0;
}

static int read_source_shape(const struct source *s, struct ds_shape *o, struct err *e)
{
    return ds_shape_read(o, s, e) < 0 || refuse_untied(s, o, e) < 0 || ds_shape_find_layers(o, s, e) < 0 ? -1 : 0;
}

/* ---- the parameters ---- */

static int by_param_file_order(const void *a, const void *b)
{
    const struct ds_tparam *x = a, *y = b;

    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer)
         : x->order != y->order ? x->order - y->order : x->param - y->param;
}

static int new_number(const struct ds_target *t, const struct ds_shape *o, int no)
{
    return no == o->final_norm ? t->final_norm : no - o->first_layer + t->first_layer;
}

static int ds_make_target_param(struct ds_target *t, const struct ds_shape *o, int i, struct err *e)
{
    const struct param *p = &t->src->param[i];
    const struct ds_entry *l = ds_index_find(&o->index, p->name);
    struct ds_tparam *to = &t->param[i];
    int no = ds_layer_of(p->name);

    if (!l || (no < 0 && !param_is_tied(p->name))) {
        err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: %s", p->name,
                 l ? "is in no layer and is not a tied embedding" : "is in no rank's param_shapes");
        return -1;
    }
    *to = (struct ds_tparam){ .param = i, .from = p, .ndim = p->ndim, .decays = ds_shape_decays(o, l),
                              .place = ds_shape_place(o, l) };
    memcpy(to->shape, p->shape, sizeof to->shape);
    if (no < 0) {
        const char *dot = strchr(p->name + strlen("tied_modules."), '.');

        to->layer = t->embedding;
        to->name = p->name;
        to->key = dot ? dot + 1 : p->name;
    } else {
        to->layer = new_number(t, o, no);
        to->name = arena_fmt(t->arena, "%d%s", to->layer, strchr(p->name, '.'));
        to->key = strchr(to->name, '.') + 1;
    }
    to->order = t->src->layout->pipeline_files && !t->no_tensors ? i : param_order(p->name);
    return 0;
}

static int ds_make_target_params(struct ds_target *t, const struct ds_shape *o, struct err *e)
{
    t->n_params = t->src->n_params;
    t->param = arena_alloc(t->arena, (size_t)t->n_params * sizeof *t->param);
    for (int i = 0; i < t->n_params; i++)
        if (ds_make_target_param(t, o, i, e) < 0)
            return -1;
    for (int i = 0; i < o->index.n; i++)
        if (!source_param(t->src, o->index.entry[i].name)) {
            err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: is listed in param_shapes, but no file has it",
                     o->index.entry[i].name);
            return -1;
        }
    qsort(t->param, (size_t)t->n_params, sizeof *t->param, by_param_file_order);
    return 0;
}

/* ---- layers that are picked ---- */

static void renumber(struct ds_target *t, struct ds_tparam *p, int layer)
{
    p->layer = layer;
    p->name = arena_fmt(t->arena, "%d%s", layer, strchr(p->from->name, '.'));
    p->key = strchr(p->name, '.') + 1;
}

/*
 * Keep only the blocks of the source listed in picked[], and number them in that order. The number of the final
 * LayerNorm changes accordingly.
 */
static void pick_target_layers(struct ds_target *t, const int *picked, int n)
{
    const int end = t->first_layer + t->n_layers, final_norm = t->final_norm - t->n_layers + n;
    struct ds_tparam *to;
    int count = 0;

    to = arena_alloc(t->arena, (size_t)t->n_params * ((size_t)n + 1) * sizeof *to);
    for (int i = 0; i < t->n_params; i++) {
        const struct ds_tparam *p = &t->param[i];

        if (p->layer < t->first_layer || p->layer >= end) {
            to[count++] = *p;
            if (p->layer == t->final_norm)
                renumber(t, &to[count - 1], final_norm);
            continue;
        }
        for (int k = 0; k < n; k++) {
            if (picked[k] != p->layer - t->first_layer)
                continue;
            to[count++] = *p;
            renumber(t, &to[count - 1], t->first_layer + k);
        }
    }
    t->param = to;
    t->n_params = count;
    t->n_layers = n;
    t->final_norm = final_norm;
    qsort(t->param, (size_t)t->n_params, sizeof *t->param, by_param_file_order);
}

/* ---- states ---- */

static int check_param_states(struct ds_target *t, struct err *e)
{
    if (t->no_tensors)
        return 0;
    for (int i = 0; i < t->n_params; i++) {
        const struct param *p = t->param[i].from;
        bool flat = p->state[STATE_FP32] &&
                    (t->zero_moments || (p->state[STATE_EXP_AVG] && p->state[STATE_EXP_AVG_SQ]));

        if (p->state[STATE_BF16])
            t->weights = p->state[STATE_BF16]->dtype;
        if ((!p->state[STATE_BF16] && !p->state[STATE_FP32]) || (t->optimizer && !flat)) {
            err_data(e, t->src->path, ERR_NO_BYTE, "parameter %s: %s", p->name,
                     t->optimizer ? "has no optimizer state; --weights-only converts without it" : "has no weights");
            return -1;
        }
    }
    return 0;
}

/* ---- numbering, vocabulary, degrees ---- */

static void resolve_layer_numbers(struct ds_target *t, const struct ds_shape *o, const struct ds_shape *like,
                                  enum ds_numbering how)
{
    int gap = o->final_norm - (o->first_layer + o->n_layers);

    t->embedding = 1;
    t->n_layers = o->n_layers;
    t->first_layer = o->first_layer;
    if (how == NUMBERING_KEEP && like) {
        t->first_layer = like->first_layer;
        gap = like->final_norm - (like->first_layer + like->n_layers);
    } else if (how != NUMBERING_KEEP) {
        t->first_layer = how == NUMBERING_MSMD ? 2 : 3;
        gap = how == NUMBERING_MSMD ? 0 : how == NUMBERING_NEW ? 1 : 2;
    }
    t->final_norm = t->first_layer + t->n_layers + gap;
}

static int resolve_padded_vocab(struct ds_target *t, const struct ds_request *q, struct report *notes, struct err *e)
{
    int64_t V = t->src->config.vocab, V0 = t->src->config.vocab_tokens, tp = t->topo.tp, unit;

    t->vocab = q->vocab ? q->vocab : V;
    if (!q->vocab && V % tp) {
        unit = pk_int_or(pk_get(t->src->run.args, "make_vocab_size_divisible_by"), 128);
        unit = (unit > 0 && unit < 1 << 20 ? unit : 128) * tp;
        t->vocab = (V + unit - 1) / unit * unit;
        report_add(notes, SEV_WARNING, "vocab", NULL, ERR_NO_BYTE, NULL,
                   "the padded vocabulary of %lld rows is not divisible by TP %lld, so %lld rows of zeros are added "
                   "(%lld rows in total)",
                   (long long)V, (long long)tp, (long long)(t->vocab - V), (long long)t->vocab);
    }
    if (t->vocab % tp) {
        err_usage(e, "the padded vocabulary of %lld rows is not divisible by TP %lld",
                  (long long)t->vocab, (long long)tp);
        return -1;
    }
    if (t->vocab < V && (V0 <= 0 || t->vocab < V0)) {
        err_usage(e, "a padded vocabulary of %lld rows cannot hold %lld tokens", (long long)t->vocab,
                  (long long)(V0 > 0 ? V0 : V));
        return -1;
    }
    if (q->vocab && q->vocab != V)
        report_add(notes, SEV_NOTE, "vocab", NULL, ERR_NO_BYTE, NULL,
                   "the padded vocabulary of %lld rows is changed to %lld rows: %s",
                   (long long)V, (long long)t->vocab,
                   t->vocab < V ? "trained padding rows are removed" : "the new rows are zeros");
    return 0;
}

/* Compute the shape of each parameter's slice in one tensor rank. */
static int compute_param_slices(struct ds_target *t, struct err *e)
{
    int64_t heads = t->src->config.n_heads;
    int tp = t->topo.tp;

    if (heads <= 0 || heads % tp) {
        err_usage(e, "the %lld heads cannot be divided over TP %d", (long long)heads, tp);
        return -1;
    }
    for (int i = 0; i < t->n_params; i++) {
        struct ds_tparam *p = &t->param[i];
        int dim = p->from->merge == MERGE_CAT1;
        int64_t parts = p->from->merge == MERGE_CAT0_HALVES ? 2 * (int64_t)tp : tp;

        if (p->from->merge == MERGE_VOCAB)
            p->shape[0] = t->vocab;
        if (p->from->merge == MERGE_SUM && tp > 1) {
            err_usage(e, "%s: the parts of the tensor-parallel ranks are summed, and no rule divides the sum over TP "
                         "%d; --target-tp 1 writes the sum", p->name, tp);
            return -1;
        }
        memcpy(p->slice, p->shape, sizeof p->slice);
        if (p->from->merge != MERGE_REPLICATED && p->from->merge != MERGE_SUM) {
            if (dim >= p->ndim || p->shape[dim] % parts || (dim == 1 && p->ndim != 2)) {
                err_usage(e, "%s: dimension %d of size %lld cannot be divided over TP %d", p->name, dim,
                          (long long)(dim < p->ndim ? p->shape[dim] : 0), tp);
                return -1;
            }
            p->slice[dim] /= tp;
        }
        p->slice_elems = shape_count(p->ndim, p->slice);
    }
    return 0;
}

/* ---- stages ---- */

static int given_stages(struct ds_target *t, const struct ds_request *q, int *layers, struct err *e)
{
    int64_t sum = 0;
    int last = 0;

    for (int i = 0; i < q->n_stages; i++) {
        sum += layers[i] = q->stages[i];
        last = layers[i] ? i : last;
    }
    /*
     * If the last stage has no layers, it has only the head. DeepSpeed splits in this way for
     * type:transformer|embedding.
     */
    t->norm_stage = q->norm_last ? q->n_stages - 1 : last;
    if (q->n_stages != t->topo.pp)
        err_usage(e, "--stages has %d numbers for %d pipeline stages", q->n_stages, t->topo.pp);
    else if (sum != t->n_layers)
        err_usage(e, "the numbers of --stages add up to %lld layers, but the model has %d",
                  (long long)sum, t->n_layers);
    else
        return 0;
    return -1;
}

/*
 * Return the number of elements that one tensor rank trains in layer `layer`. The embedding's LayerNorm is not counted
 * (pipeline_cuts.h).
 */
static int64_t spec_elems(const struct ds_target *t, int layer)
{
    int64_t n = 0;

    for (int i = 0; i < t->n_params; i++)
        if (t->param[i].layer == layer && (layer != t->embedding || ds_has_copy(t->param[i].name)))
            n += t->param[i].slice_elems;
    return n;
}

static int method_stages(struct ds_target *t, const struct ds_request *q, int *layers, struct report *notes,
                         struct err *e)
{
    const struct source *of = q->like ? q->like : t->src;
    const char *saved = pk_as_str(pk_get(of->run.args, "pp_partition_method"));
    enum pipeline_balance how = q->balance_given ? q->balance : pipeline_balance_of(of->run.ds_version);
    struct pipeline_specs specs = { .n = t->final_norm + 3, .embedding = t->embedding, .first_layer = t->first_layer,
                                    .n_layers = t->n_layers, .final_norm = t->final_norm,
                                    .embedding_elems = spec_elems(t, t->embedding),
                                    .layer_elems = spec_elems(t, t->first_layer),
                                    .final_norm_elems = spec_elems(t, t->final_norm) };
    const struct model_config *c = &t->src->config;

    pipeline_costs(&specs, c->hidden, c->ffn_hidden, c->seq_len, t->vocab);

    if (q->method || q->like)
        t->method = q->method ? q->method : saved;
    if (!q->method && saved && !pipeline_method_known(saved)) {
        report_add(notes, SEV_WARNING, "stages", NULL, ERR_NO_BYTE, NULL,
                   "the partition method '%.60s' is unknown; the layers are divided by type:transformer", saved);
        saved = t->method = NULL;
    }
    t->norm_stage = pipeline_cut(&specs, q->method ? q->method : saved ? saved : "type:transformer", how, t->topo.pp,
                                 layers, e);
    return t->norm_stage < 0 ? -1 : 0;
}

static int resolve_stage_layers(struct ds_target *t, const struct ds_shape *o, const struct ds_request *q, int *layers,
                                struct report *notes, struct err *e)
{
    if (t->n_layers < t->topo.pp) {
        err_usage(e, "%d layers cannot be divided over %d pipeline stages", t->n_layers, t->topo.pp);
        return -1;
    }
    if (q->stages)
        return given_stages(t, q, layers, e);
    if (t->topo.pp == o->pp && !q->method && !q->balance_given && !q->like && !q->picked) {
        for (int pp = 0; pp < o->pp; pp++)
            layers[pp] = o->stage[pp].n_layers;
        t->norm_stage = o->norm_stage;
        return 0;
    }
    return method_stages(t, q, layers, notes, e);
}

/* ---- groups ---- */

/* What a stage holds, as ranges for is_stage_param(). */
struct holdings {
    int pp, n_stages;
    int first, end;                     /* numbers of its first layer, and of the one after its last */
    int embedding, final_norm, norm_stage;
};

static bool is_stage_param(const struct holdings *h, const struct ds_tparam *p)
{
    if (p->layer == h->embedding)
        return h->pp == 0 || (h->pp == h->n_stages - 1 && ds_has_copy(p->name));
    if (p->layer == h->final_norm)
        return h->pp == h->norm_stage;
    return p->layer >= h->first && p->layer < h->end;
}

static int by_optimizer_order(const void *a, const void *b)
{
    const struct ds_tparam *x = *(struct ds_tparam *const *)a, *y = *(struct ds_tparam *const *)b;

    return x->layer != y->layer ? (x->layer > y->layer) - (x->layer < y->layer) : x->place - y->place;
}

static void add_group_slice(const struct ds_target *t, struct ds_group *g, const struct ds_tparam *p, bool tied_copy)
{
    struct ds_slice *s = &g->slice[g->n++];

    *s = (struct ds_slice){ .name = p->name, .ndim = p->ndim, .n_elems = p->slice_elems, .first = g->sum,
                            .param = (int)(p - t->param), .tied_copy = tied_copy };
    memcpy(s->shape, p->slice, sizeof s->shape);
    g->sum += s->n_elems;
}

/*
 * Fill the groups of one stage. The last group has the parameters without weight decay. If there are three groups, the
 * parameters with weight decay are split by their number into two halves.
 */
static void fill_stage_groups(const struct ds_target *t, const struct holdings *h, int n_groups, struct ds_group *group)
{
    struct ds_tparam **list = xmalloc((size_t)t->n_params * sizeof *list);

    for (int pass = 0; pass < 2; pass++) {
        int n = 0;

        for (int i = 0; i < t->n_params; i++)
            if (t->param[i].decays == (pass == 0) && is_stage_param(h, &t->param[i]))
                list[n++] = &t->param[i];
        if (n)
            qsort(list, (size_t)n, sizeof *list, by_optimizer_order);
        for (int i = 0; i < n; i++) {
            struct ds_group *g = &group[pass ? n_groups - 1 : n_groups == 3 && i >= n / 2];

            if (!g->slice)
                g->slice = arena_alloc(t->arena, (size_t)n * sizeof *g->slice);
            add_group_slice(t, g, list[i], h->pp > 0 && list[i]->layer == h->embedding);
        }
    }
    free(list);
}

/*
 * Returns the group of stage pp that has the number `rule` in the whole run. If the stage omits that group, an empty
 * group is returned.
 */
static struct ds_group find_stage_group(const struct ds_shape *o, int pp, int rule)
{
    for (int g = 0; g < o->stage[pp].n_groups; g++)
        if (o->stage[pp].group[g].rule == rule)
            return o->stage[pp].group[g];
    return (struct ds_group){0};
}

static int check_group(const struct ds_target *t, const struct ds_group *want, const struct ds_group *got, int pp,
                       struct err *e)
{
    for (int i = 0; i < want->n || i < got->n; i++) {
        const char *name = i < want->n ? t->param[want->slice[i].param].from->name : "nothing";
        const char *found = i < got->n ? got->slice[i].name : "nothing";

        if (i < want->n && i < got->n && strcmp(found, name) == 0)
            continue;
        err_data(e, t->src->path, ERR_NO_BYTE,
                 "stage %d, optimizer group %d: has %s where %s is expected, so the order is not that of a known "
                 "trainer",
                 pp, want->rule, found, name);
        return -1;
    }
    return 0;
}

/*
 * Apply the layout rule to the source's own stages and groups. Returns -1 with *e set if the result differs from the
 * source's files.
 */
static int check_layout_rule(const struct ds_target *t, const struct ds_shape *o, struct err *e)
{
    int first = t->first_layer;

    for (int pp = 0; pp < o->pp; pp++) {
        struct holdings h = { pp, o->pp, first, first + o->stage[pp].n_layers, t->embedding, t->final_norm,
                               o->norm_stage };
        struct ds_group group[3] = {0};

        fill_stage_groups(t, &h, o->n_groups, group);
        for (int g = 0; g < o->n_groups; g++) {
            const struct ds_group got = find_stage_group(o, pp, g);

            group[g].rule = g;
            if (check_group(t, &group[g], &got, pp, e) < 0)
                return -1;
        }
        first = h.end;
    }
    return 0;
}

/* Remove groups without parameters, because a stage numbers its optimizer groups without gaps. */
static void close_gaps(const struct ds_target *t, struct ds_stage *st)
{
    for (int g = 0; g < t->n_groups; g++) {
        if (st->group[g].n == 0)
            continue;
        st->group[g].rule = g;
        st->group[g].partition = zero_partition_elems(st->group[g].sum, t->topo.dp);
        st->group[st->n_groups++] = st->group[g];
    }
}

static int fill_target_stages(struct ds_target *t, const int *layers, struct err *e)
{
    int first = t->first_layer;

    t->stage = arena_alloc(t->arena, (size_t)t->topo.pp * sizeof *t->stage);
    for (int pp = 0; pp < t->topo.pp; pp++) {
        struct holdings h = { pp, t->topo.pp, first, first + layers[pp], t->embedding, t->final_norm, t->norm_stage };
        struct ds_stage *st = &t->stage[pp];

        st->n_layers = layers[pp];
        st->group = arena_alloc(t->arena, (size_t)t->n_groups * sizeof *st->group);
        fill_stage_groups(t, &h, t->n_groups, st->group);
        close_gaps(t, st);
        if (st->n_groups == 0) {
            err_usage(e, "stage %d would have no layer and no other parameter", pp);
            return -1;
        }
        first = h.end;
    }
    return 0;
}

/* ---- the rest of the run state ---- */

static void resolve_zero_file_spelling(struct ds_target *t)
{
    const struct source *s = t->src;
    int64_t bf16 = 1;
    bool found = t->no_tensors;

    t->bf16_prefix = t->no_tensors && t->weights == DTYPE_BF16;
    for (int i = 0; i < s->n_files && !found; i++) {
        struct ds_name n = ds_name_parse(s->file[i].name);

        if (n.kind != DS_ZERO)
            continue;
        found = true;
        t->bf16_prefix = n.bf16;
        t->joined = n.joined;
    }
    if (!found && pk_as_int(pk_get(s->run.args, "bf16"), &bf16))
        t->bf16_prefix = bf16 != 0;
    else if (!found)
        t->bf16_prefix = true;
}

static void resolve_weights_dtype(struct ds_target *t, const struct ds_request *q)
{
    const struct pk *v = pk_get(t->src->run.args, "params_dtype");

    t->weights = q->no_tensors ? q->weights
               : pk_is_class(v, "torch", "float16") ? DTYPE_F16
               : pk_is_class(v, "torch", "float32") ? DTYPE_F32 : DTYPE_BF16;
}

/*
 * Find the number of GPUs per node from the source's (rank, local_rank) pairs. It is 8 if all pairs agree with 8 GPUs,
 * and 0 if rank and local_rank are always equal. Otherwise it is the first difference between the two.
 */
static void infer_gpus_per_node(struct ds_target *t)
{
    bool eight = true, plain = true;
    /* first difference between rank and local_rank, a multiple of the number of GPUs per node */
    int64_t apart = 0;

    for (int mp = 0; mp < t->src->topo.pp * t->src->topo.tp; mp++) {
        const struct source_file *f = ds_mp_file(t->src, mp / t->src->topo.tp, mp % t->src->topo.tp);
        const struct pk *args = pk_get(f ? pt_root(f->pt) : t->made ? t->mp_root : NULL, "args");
        int64_t rank, local;

        if (!pk_as_int(pk_get(args, "rank"), &rank) || !pk_as_int(pk_get(args, "local_rank"), &local))
            continue;
        eight = eight && local == rank % 8;
        plain = plain && local == rank;
        if (apart == 0 && local < rank && rank - local <= DEGREE_MAX)
            apart = rank - local;
    }
    t->local_ranks = eight ? 8 : plain ? 0 : (int)apart;
}

static bool has_dropout(const struct source *s)
{
    double hidden = 0, attention = 0;

    pk_as_double(pk_get(s->run.args, "hidden_dropout"), &hidden);
    pk_as_double(pk_get(s->run.args, "attention_dropout"), &attention);
    return hidden > 0 || attention > 0;
}

static void report_topology_losses(const struct ds_target *t, struct report *notes)
{
    const struct topology from = t->src->topo, to = t->topo;
    int64_t batch = pk_int_or(pk_get(t->src->run.args, "global_batch_size"), 0),
            micro = pk_int_or(pk_get(t->src->run.args, "micro_batch_size"), 0);

    if (to.pp > from.pp || to.tp > from.tp)
        report_add(notes, SEV_NOTE, "rng", NULL, ERR_NO_BYTE, NULL,
                   "random states of ranks beyond PP %d, TP %d are copied from rank (pp mod %d, tp mod %d)", from.pp,
                   from.tp, from.pp, from.tp);
    if (to.pp < from.pp || to.tp < from.tp)
        report_add(notes, SEV_NOTE, "rng", NULL, ERR_NO_BYTE, NULL,
                   "random states of ranks beyond PP %d, TP %d are omitted",
                   to.pp < from.pp ? to.pp : from.pp, to.tp < from.tp ? to.tp : from.tp);
    if ((to.pp != from.pp || to.tp != from.tp) && has_dropout(t->src))
        report_add(notes, SEV_NOTE, "rng", NULL, ERR_NO_BYTE, NULL,
                   "dropout: a run with TP %d, PP %d would use other masks next than a run with TP %d, PP %d",
                   from.tp, from.pp, to.tp, to.pp);
    if (batch > 0 && micro > 0 && batch % (micro * to.dp))
        report_add(notes, SEV_WARNING, "batch", NULL, ERR_NO_BYTE, NULL,
                   "the global batch size %lld is not divisible by micro-batch size %lld x DP %d; the trainer needs "
                   "another batch size",
                   (long long)batch, (long long)micro, to.dp);
    if (t->src->run.consumed_samples < 0)
        report_add(notes, SEV_NOTE, "counters", NULL, ERR_NO_BYTE, NULL,
                   "IN does not record the number of consumed samples");
}

static int resolve_target_optimizer(struct ds_target *t, const struct ds_request *q, struct report *notes,
                                    struct err *e)
{
    const struct run_state *r = &t->src->run;

    t->optimizer = !q->no_optimizer;
    t->zero_moments = q->zero_moments;
    t->iteration = q->step;
    t->opt_step = r->opt_step;
    if (q->zero_moments)
        t->opt_step = 0;
    else if (q->step >= 0 && r->opt_step >= 0 && r->iteration >= 0)
        t->opt_step = r->opt_step + q->step - r->iteration;
    if (t->opt_step < 0 && r->opt_step >= 0) {
        err_usage(e, "--step %lld: the step counter %lld of the optimizer would become negative", (long long)q->step,
                  (long long)r->opt_step);
        return -1;
    }
    return t->optimizer ? ds_tree_optimizer(t, notes, e) : 0;
}

static int resolve_target_degrees(struct ds_target *t, const struct ds_request *q, struct err *e)
{
    t->topo = (struct topology){
        .tp = q->topo.tp ? q->topo.tp : t->src->topo.tp,
        .pp = q->topo.pp ? q->topo.pp : q->stages ? q->n_stages : t->src->topo.pp,
        .dp = q->topo.dp ? q->topo.dp : t->src->topo.dp,
    };
    if (t->topo.tp < 1 || t->topo.pp < 1 || t->topo.dp < 1 || t->topo.tp > DEGREE_MAX || t->topo.pp > DEGREE_MAX ||
        t->topo.dp > DEGREE_MAX) {
        err_usage(e, "TP %d, PP %d, DP %d: each number must be from 1 to %d", t->topo.tp, t->topo.pp, t->topo.dp,
                  DEGREE_MAX);
        return -1;
    }
    return 0;
}

static int resolve_ds_request(struct ds_target *t, const struct ds_request *q, struct ds_shape *o,
                              struct ds_shape *like, struct report *notes, struct err *e)
{
    int *layers = NULL, rc = -1;

    if (resolve_target_degrees(t, q, e) < 0 || read_source_shape(t->src, o, e) < 0 ||
        (q->like && read_source_shape(q->like, like, e) < 0))
        return -1;
    resolve_layer_numbers(t, o, q->like ? like : NULL, q->numbering);
    t->no_tensors = q->no_tensors;
    t->n_groups = q->n_groups ? q->n_groups : q->like ? like->n_groups : o->n_groups;
    layers = xcalloc((size_t)t->topo.pp + (size_t)q->n_stages, sizeof *layers);
    resolve_weights_dtype(t, q);
    if (resolve_padded_vocab(t, q, notes, e) < 0 || ds_make_target_params(t, o, e) < 0 ||
        compute_param_slices(t, e) < 0 || check_layout_rule(t, o, e) < 0)
        goto out;
    if (q->picked)
        pick_target_layers(t, q->picked, q->n_picked);
    if (resolve_stage_layers(t, o, q, layers, notes, e) < 0 || resolve_target_optimizer(t, q, notes, e) < 0 ||
        check_param_states(t, e) < 0 || fill_target_stages(t, layers, e) < 0)
        goto out;
    if (q->cast)
        t->weights = q->weights;
    resolve_zero_file_spelling(t);
    if (q->cast)
        t->bf16_prefix = q->weights == DTYPE_BF16;
    infer_gpus_per_node(t);
    report_topology_losses(t, notes);
    rc = ds_edits_read(t, q->set, q->n_set, e);
out:
    free(layers);
    return rc;
}

struct ds_target *ds_target_new(const struct source *s, const struct ds_request *q, struct report *notes, struct err *e)
{
    struct ds_target *t = xcalloc(1, sizeof *t);
    const struct source_file *first = ds_mp_file(s, 0, 0);
    struct ds_shape o = {0}, like = {0};
    int rc;

    t->arena = arena_new(0);
    t->src = s;
    if (source_has_unknown_family(s)) {
        err_data(e, s->path, ERR_NO_BYTE,
                 "3D shards need the settings of a BLOOM or GPT-2 model, which this checkpoint does not record; for "
                 "such a model, run export-hf --config FILE IN MODEL, then export-hf --import MODEL OUT");
        ds_target_free(t);
        return NULL;
    }
    t->made = ds_shape_is_of_groups(s);
    t->mp_root = t->made ? ds_pickles_mp(s, t->arena) : first ? pt_root(first->pt) : NULL;
    rc = resolve_ds_request(t, q, &o, &like, notes, e);
    ds_shape_free(&o);
    ds_shape_free(&like);
    if (rc == 0)
        return t;
    ds_target_free(t);
    return NULL;
}

void ds_target_free(struct ds_target *t)
{
    if (!t)
        return;
    arena_free(t->arena);
    free(t);
}

int ds_target_n_files(const struct ds_target *t)
{
    int mp = t->topo.tp * t->topo.pp;

    return t->topo.tp * (t->n_layers + 2) + mp + (t->optimizer ? mp * t->topo.dp : 0);
}
