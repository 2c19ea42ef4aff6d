/*
 * deepspeed_params.c - make the parameter list and its tensor maps from the stage tables
 *
 * The range of a parameter in the flat group follows from param_shapes. It is cut at every multiple of the partition
 * length. This gives one extent in each data-parallel rank that holds a part of the parameter. The extents of one
 * tensor rank are a slice of the tensor map, and the merge rule defines how the slices form the whole tensor
 * (docs/formats.md, section 4.7):
 *
 *   flat group of tp 0   [.. E ..|.. qkv ..|...]      [.. E ..|.. qkv ..|...]   of tp 1
 *   dp ranks             |--- dp 0 ---|--- dp 1 ---|
 *   slice of qkv         extent in dp 0, extent in dp 1
 */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/merge_slices.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/model/family.h"
#include "libcommon/model/merge_patterns.h"
#include "libcommon/model/zero_partition.h"

static const enum state flat_state[DS_STATES] = { STATE_FP32, STATE_EXP_AVG, STATE_EXP_AVG_SQ };

/* What is known about one parameter while the parameter list is made. */
struct draft {
    const struct ds_entry *owner, *tied;        /* tied: the last stage's entry of the same name, or NULL */
    int layer;                                  /* layer number in the name; -1 for an embedding, whose name has none */
    int position;                               /* position among the tensors of its layer file */
    /*
     * [TP]: the tensor in each rank's layer file, or NULL if the file does not have it. The array is NULL if no file
     * has the tensor.
     */
    const struct pt_tensor **bf16;
};

/* ---- layers ---- */

static int cmp_layer_numbers(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;

    return (x > y) - (x < y);
}

/*
 * Return the layer number of the tied embedding, whose name has no number. It is the number of the lowest layer file,
 * or 1 if that file is missing.
 */
static int embedding_layer(const struct ds *d)
{
    int lowest = INT_MAX;

    for (int i = 0; i < d->index.n; i++) {
        int layer = ds_layer_of(d->index.entry[i].name);

        lowest = layer >= 0 && layer < lowest ? layer : lowest;
    }
    return d->n_layers && d->layer_no[0] < lowest ? d->layer_no[0] : 1;
}

/*
 * Write the layer numbers that follow from the stages' parameter names to out[], in ascending order. The tied
 * embedding's layer comes first. Returns how many numbers were written.
 */
static int expected_layers(const struct ds *d, int *out)
{
    int n = 0, k = 0;
    bool tied = false;

    for (int i = 0; i < d->index.n; i++) {
        int layer = ds_layer_of(d->index.entry[i].name);

        if (layer >= 0)
            out[n++] = layer;
        tied |= layer < 0;
    }
    if (tied)
        out[n++] = embedding_layer(d);
    qsort(out, (size_t)n, sizeof *out, cmp_layer_numbers);
    for (int i = 0; i < n; i++)
        if (i == 0 || out[i] != out[k - 1])
            out[k++] = out[i];
    return k;
}

void ds_check_layers(struct ds *d)
{
    int *want = xmalloc(((size_t)d->index.n + 1) * sizeof *want), n = expected_layers(d, want);
    char buf[96];

    for (int i = 0; i < n; i++)
        if (!bsearch(&want[i], d->layer_no, (size_t)d->n_layers, sizeof *want, cmp_layer_numbers))
            for (int tp = 0; tp < d->topo.tp; tp++)
                ds_missing(d, ds_layer_name(want[i], tp, buf));
    for (int i = 0; i < d->n_layers && ds_all_stages(d); i++) {
        if (bsearch(&d->layer_no[i], want, (size_t)n, sizeof *want, cmp_layer_numbers))
            continue;
        for (int tp = 0; tp < d->topo.tp; tp++) {
            int file = d->layer_file[i * d->topo.tp + tp];

            if (file >= 0)
                report_add(d->r, SEV_ERROR, "extra_file", files_name(d->s->files, d->s->file[file].file),
                           ERR_NO_BYTE, NULL, "no stage has layer %d", d->layer_no[i]);
        }
    }
    free(want);
}

/* ---- the list ---- */

/*
 * Make one draft per parameter name. If a name is on more than one stage, this is an error, except for a tied
 * embedding.
 */
static int make_drafts(struct ds *d, struct draft *out)
{
    int n = 0;

    for (int i = 0, end; i < d->index.n; i = end) {
        const struct ds_entry *owner = &d->index.entry[i];
        struct draft *p = &out[n++];

        *p = (struct draft){ .owner = owner, .layer = ds_layer_of(owner->name), .position = INT_MAX };
        for (end = i + 1; end < d->index.n && strcmp(d->index.entry[end].name, owner->name) == 0; end++) {
            const struct ds_entry *other = &d->index.entry[end];

            if (other->pp == owner->pp)
                report_add(d->r, SEV_ERROR, "stage", d->s->path, ERR_NO_BYTE, owner->name,
                           "listed twice by stage %d", owner->pp);
            else if (!param_is_tied(owner->name) || other->pp != d->topo.pp - 1 || owner->pp != 0)
                report_add(d->r, SEV_ERROR, "stage", d->s->path, ERR_NO_BYTE, owner->name,
                           "appears on stages %d and %d", owner->pp, other->pp);
            else if (!shape_equal(other->slice->ndim, other->slice->shape, owner->slice->ndim, owner->slice->shape))
                report_add(d->r, SEV_ERROR, "shape", d->s->path, ERR_NO_BYTE, owner->name,
                           "its tied copy on stage %d has another shape", other->pp);
            else
                p->tied = other;
        }
    }
    return n;
}

static int by_owner_name(const void *key, const void *draft)
{
    return strcmp(key, ((const struct draft *)draft)->owner->name);
}

/* Assign the tensors of layer files to their parameters, and record their positions in the files. */
static void assign_layer_tensors(struct ds *d, struct draft *p, int n)
{
    int tp_n = d->topo.tp;

    for (int i = 0; i < d->n_layers * tp_n; i++) {
        const struct ds_layer *l = &d->layer[i];

        for (int k = 0; k < l->n; k++) {
            struct draft *hit = bsearch(l->tensor[k].name, p, (size_t)n, sizeof *p, by_owner_name);

            if (!hit->bf16)
                hit->bf16 = xcalloc((size_t)tp_n, sizeof *hit->bf16);
            if (hit->bf16[i % tp_n])
                report_add(d->r, SEV_ERROR, "stage", files_name(d->s->files, d->s->file[d->layer_file[i]].file),
                           ERR_NO_BYTE, hit->owner->name, "is also in another layer file");
            hit->bf16[i % tp_n] = &l->tensor[k].t;
            if (hit->position > k)
                hit->position = k;
        }
    }
}

static int by_draft_place(const void *a, const void *b)
{
    const struct draft *x = a, *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->position != y->position)
        return x->position < y->position ? -1 : 1;
    if (x->owner->group != y->owner->group)
        return x->owner->group < y->owner->group ? -1 : 1;
    return (x->owner->slice->first > y->owner->slice->first) - (x->owner->slice->first < y->owner->slice->first);
}

/* ---- rules and shapes ---- */

/*
 * The source of the merge rules. If `patterns` is set, the rules are the checkpoint's own patterns, which are equal in
 * all mp_rank files. Otherwise, if `family` is set, they are those of the model family that has all the names; this is
 * used if the built-in table lacks names. If both are NULL, they are the built-in table.
 */
struct ds_rules {
    struct merge_patterns *patterns;
    struct family *family;
};

static void ds_find_merge_rules(struct ds *d, const struct draft *p, int n, struct ds_rules *rules)
{
    const struct source_file *f = ds_first_mp(d);
    const char **names = xmalloc((size_t)n * sizeof *names), *lacking;
    struct err e = {0};
    bool known = true;

    for (int i = 0; i < n; i++) {
        names[i] = p[i].owner->name;
        known = known && merge_rule_known(names[i]);
    }
    rules->patterns = merge_patterns_new(pk_get(pt_root(f->pt), "universal_checkpoint_info"), names, n, false,
                                         files_name(d->s->files, f->file), d->r);
    rules->family = rules->patterns || known ? NULL : family_of_names(names, n, true, &lacking, &e);
    if (e.kind != ERR_NONE)
        report_add_err(d->r, "merge_rule", &e);
    free(names);
}

/*
 * Returns true if each tensor rank has a complete copy of the row-parallel biases, that is, if gpt_j_residual is
 * recorded as off. With gpt_j_residual, GPT-NeoX adds the outputs of attention and MLP before it sums over the tensor
 * ranks, so the biases of both are summed as well.
 */
static bool has_copies(const struct ds *d)
{
    int64_t parallel = 1;

    return pk_as_int(pk_get(d->s->run.args, "gpt_j_residual"), &parallel) && !parallel;
}

static enum merge_rule ds_family_merge_rule(const struct ds *d, const struct family *f, const char *name)
{
    struct family_hit h;
    enum merge_rule rule;

    if (!family_find(f, name, &h))
        return MERGE_CAT0;              /* not reached: the family was chosen because it has all names */
    rule = family_merge(h.rule, name);
    return rule == MERGE_SUM && has_copies(d) ? MERGE_REPLICATED : rule;
}

/*
 * Returns true if `name` is the first linear layer of an MLP. In a gated MLP this layer contains gate and up
 * projection.
 */
static bool is_up(const char *name)
{
    static const char *const others[] = { "mlp.linear1.weight", "mlp.linear1.bias", "mlp.fc1_weight", "mlp.fc1_bias" };
    bool up = param_ends(name, ROLE_UP_W) || param_ends(name, ROLE_UP_B);

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        up |= str_ends(name, others[i]);
    return up;
}

static enum merge_rule ds_param_merge_rule(struct ds *d, const struct ds_rules *rules, const char *name)
{
    enum merge_rule rule;

    if (rules->patterns)
        return merge_patterns_rule(rules->patterns, name);
    rule = rules->family ? ds_family_merge_rule(d, rules->family, name) : merge_rule_of(name);
    if (rule == MERGE_CAT0 && d->s->config.glu && is_up(name))
        return MERGE_CAT0_HALVES;
    if (d->topo.tp > 1 && !rules->family && !merge_rule_known(name))
        report_add(d->r, SEV_ERROR, "merge_rule", d->s->path, ERR_NO_BYTE, name,
                   "its merge from %d tensor-parallel ranks is unknown: the checkpoint has no usable "
                   "universal_checkpoint_info, and no family of rules has all names", d->topo.tp);
    return rule;
}

/* ---- tensor maps ---- */

/*
 * Make an empty map whose inputs are the slices of one state, in ascending order of tensor rank. The merge rule orders
 * them later.
 */
static struct tmap *ds_new_slice_map(struct ds *d, enum dtype dtype)
{
    struct tmap *m = arena_alloc(d->s->arena, sizeof *m);

    m->dtype = dtype;
    m->n_slices = d->topo.tp;
    m->slice = arena_alloc(d->s->arena, (size_t)m->n_slices * sizeof *m->slice);
    return m;
}

/* Set [*first, *last] to the data-parallel ranks whose partitions hold a part of the parameter's slice. */
static void dp_range(const struct ds *d, const struct ds_entry *en, int *first, int *last)
{
    int64_t partition = d->ref[en->pp]->group[en->group].partition;

    *first = (int)(en->slice->first / partition);
    *last = (int)((en->slice->first + en->slice->n_elems - 1) / partition);
}

static const struct ds_run *ds_find_flat_run(const struct ds *d, const struct ds_entry *en, int tp, int dp, int state)
{
    const struct ds_shard *shard = &d->shard[topo_mp(d->topo, en->pp, tp) * d->topo.dp + dp];
    const struct ds_run *run = shard->run ? &shard->run[en->group][state] : NULL;

    return run && run->record >= 0 ? run : NULL;
}

/*
 * Returns true if a map of this state can be made. Without source_opts.holes, every shard that holds a part of the
 * state must be usable. With it, one readable shard of the checkpoint is sufficient, because the optimizer's settings
 * are read from that shard.
 */
static bool flat_usable(const struct ds *d, const struct ds_entry *en, int state)
{
    int first, last;

    if (d->o->holes)
        return d->lead >= 0;
    dp_range(d, en, &first, &last);
    for (int tp = 0; tp < d->topo.tp; tp++)
        for (int dp = first; dp <= last; dp++)
            if (!ds_find_flat_run(d, en, tp, dp, state))
                return false;
    return true;
}

/* Describe tensor rank tp's slice of a state as parts, one for each data-parallel rank that holds some of it. */
static void flat_slice(struct ds *d, const struct ds_entry *en, int tp, int state, struct tmap_slice *out)
{
    const struct ds_slice *s = en->slice;
    int64_t partition = d->ref[en->pp]->group[en->group].partition;
    int first, last;

    dp_range(d, en, &first, &last);
    out->len = (uint64_t)s->n_elems * sizeof(float);
    out->n_extents = last - first + 1;
    out->extent = arena_alloc(d->s->arena, (size_t)out->n_extents * sizeof *out->extent);
    for (int dp = first; dp <= last; dp++) {
        const struct ds_run *run = ds_find_flat_run(d, en, tp, dp, state);
        int64_t start, skip, n = zero_fragment(s->first, s->n_elems, partition, dp, &start, &skip);
        char buf[96];

        if (!run) {
            out->extent[dp - first] = ds_hole(d, ds_zero_name(d, topo_mp(d->topo, en->pp, tp), dp, buf),
                                              (uint64_t)n * sizeof(float));
            continue;
        }
        assert(start + n <= run->n_elems);      /* check_lengths() guarantees this */
        out->extent[dp - first] = (struct extent){
            .record = run->record, .at = run->at + (uint64_t)start * sizeof(float),
            .len = (uint64_t)n * sizeof(float),
        };
    }
}

static struct tmap *ds_make_flat_map(struct ds *d, const struct param *p, const struct ds_entry *en, int state)
{
    struct tmap *m;

    if (!flat_usable(d, en, state))
        return NULL;
    m = ds_new_slice_map(d, DTYPE_F32);
    for (int tp = 0; tp < d->topo.tp; tp++)
        flat_slice(d, en, tp, state, &m->slice[tp]);
    merge_map(d->s->arena, p, flat_state[state] != STATE_FP32, m);
    return m;
}

/*
 * Report a layer file that was read but lacks the tensor of parameter p. If the file was not read, the reason has
 * already been reported.
 */
static void missing_tensor(struct ds *d, const struct draft *p, int tp)
{
    int no = p->layer >= 0 ? p->layer : embedding_layer(d);
    const int *hit = bsearch(&no, d->layer_no, (size_t)d->n_layers, sizeof no, cmp_layer_numbers);
    int i = hit ? (int)(hit - d->layer_no) * d->topo.tp + tp : -1;

    if (i >= 0 && d->layer[i].ok)
        report_add(d->r, SEV_ERROR, "missing_key", files_name(d->s->files, d->s->file[d->layer_file[i]].file),
                   ERR_NO_BYTE, p->owner->name, "no file has a usable tensor for it");
}

/*
 * Return a tensor of this parameter's weights. If all of these are lost, return a tensor of any parameter, or NULL if
 * there is none.
 */
static const struct pt_tensor *some_weights(const struct ds *d, const struct draft *dr)
{
    for (int tp = 0; tp < d->topo.tp; tp++)
        if (dr->bf16 && dr->bf16[tp])
            return dr->bf16[tp];
    for (int i = 0; i < d->n_layers * d->topo.tp; i++)
        if (d->layer[i].n)
            return &d->layer[i].tensor[0].t;
    return NULL;
}

/*
 * Returns true if each tensor rank has its part of the weights, or has lost it while lost parts are permitted, and all
 * parts have the same dtype.
 */
static bool bf16_usable(struct ds *d, const struct draft *dr)
{
    bool whole = true;

    for (int tp = 0; tp < d->topo.tp; tp++) {
        const struct pt_tensor *t = dr->bf16 ? dr->bf16[tp] : NULL;

        if (!t) {
            if (d->n_layers)
                missing_tensor(d, dr, tp);
            whole = d->o->holes && some_weights(d, dr);
        } else if (dr->bf16[0] && t->dtype != dr->bf16[0]->dtype) {
            report_add(d->r, SEV_ERROR, "dtype", d->s->path, ERR_NO_BYTE, dr->owner->name, "%s on tp 0, %s on tp %d",
                       dtype_name(dr->bf16[0]->dtype), dtype_name(t->dtype), tp);
            whole = false;
        }
    }
    return whole;
}

/*
 * Make the map of the weights. Its dtype is that in the files, because runs without --bf16 keep fp32 or fp16 weights.
 * Returns NULL if the weights are not usable.
 */
static struct tmap *bf16_map(struct ds *d, const struct param *p, const struct draft *dr)
{
    const enum dtype dtype = bf16_usable(d, dr) ? some_weights(d, dr)->dtype : DTYPE_N;
    struct tmap *m;
    char buf[96];

    if (dtype == DTYPE_N)
        return NULL;
    m = ds_new_slice_map(d, dtype);
    for (int tp = 0; tp < d->topo.tp; tp++) {
        const struct pt_tensor *t = dr->bf16 ? dr->bf16[tp] : NULL;
        struct tmap_slice *s = &m->slice[tp];

        s->len = (uint64_t)dr->owner->slice->n_elems * (uint64_t)dtype_size(dtype);
        s->n_extents = 1;
        s->extent = arena_alloc(d->s->arena, sizeof *s->extent);
        *s->extent = t ? (struct extent){ t->record, t->at, s->len }
                       : ds_hole(d, ds_layer_name(dr->layer >= 0 ? dr->layer : embedding_layer(d), tp, buf), s->len);
    }
    merge_map(d->s->arena, p, false, m);
    return m;
}

static void ds_make_param(struct ds *d, const struct ds_rules *rules, const struct draft *dr, struct param *p)
{
    p->name = dr->owner->name;
    p->stage = dr->owner->pp;
    p->group = dr->owner->group;
    p->merge = ds_param_merge_rule(d, rules, p->name);
    p->ndim = dr->owner->slice->ndim;
    memcpy(p->shape, dr->owner->slice->shape, sizeof p->shape);
    if (!merge_shape(p, d->topo.tp, d->s->path, d->r))
        return;
    p->state[STATE_BF16] = bf16_map(d, p, dr);
    if (d->o->no_optimizer)
        return;
    for (int s = 0; s < DS_STATES; s++) {
        p->state[flat_state[s]] = ds_make_flat_map(d, p, dr->owner, s);
        if (dr->tied)
            p->tied[flat_state[s]] = ds_make_flat_map(d, p, dr->tied, s);
    }
    if (dr->tied && param_ends(p->name, ROLE_POSITION))
        report_add(d->r, SEV_NOTE, "tied_positions", d->s->path, ERR_NO_BYTE, p->name,
                   "stage %d has an untrained copy of the parameter; the copy of stage 0 is used", dr->tied->pp);
}

void ds_make_params(struct ds *d)
{
    struct source *s = d->s;
    struct draft *p = xcalloc((size_t)d->index.n, sizeof *p);
    int n = make_drafts(d, p);
    struct ds_rules rules;

    assign_layer_tensors(d, p, n);
    qsort(p, (size_t)n, sizeof *p, by_draft_place);
    ds_find_merge_rules(d, p, n, &rules);
    s->param = arena_alloc(s->arena, (size_t)n * sizeof *s->param);
    s->n_params = n;
    for (int i = 0; i < n; i++)
        ds_make_param(d, &rules, &p[i], &s->param[i]);
    merge_patterns_free(rules.patterns);
    family_free(rules.family);
    for (int i = 0; i < n; i++)
        free(p[i].bf16);
    free(p);
}
