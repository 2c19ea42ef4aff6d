/*
 * torchdist_buckets.c - find the place of each parameter in the buckets of a distributed optimizer
 */
#include "libcommon/layout/dcp/buckets/torchdist_buckets.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/layout/dcp/torchdist_names.h"
#include "libcommon/layout/engine/tile_join.h"
#include "libcommon/plan/tmap_slice.h"

enum {
    ALIGN = 64, COMPARED = 4096, RANKS_MAX = 1 << 12, EXPERTS_MAX = 1 << 16, BUFFERS_MAX = 1 << 8,
    BUCKETS_MAX = 1 << 16, KINDS = 3,
    TABLE_MAX = 1 << 22,                /* buckets of all buffers */
    TRIED_MAX = 64                      /* placements whose values are compared */
};

static const char bucket_prefix[] = "optimizer.distributed.dp_group_idx_";
static const char *const chained_prefix[] = { "chained_0.optimizer.distributed.dp_group_idx_",
                                              "chained_1.optimizer.distributed.dp_group_idx_" };
static const char *const kind_names[KINDS] = { "param", "exp_avg", "exp_avg_sq" };
static const enum state kind_state[KINDS] = { STATE_FP32, STATE_EXP_AVG, STATE_EXP_AVG_SQ };

/* ---- tables ---- */

struct state_bucket {
    int64_t n_elems;
    const struct tmap *map[KINDS];
    const struct dcp_entry *entry;      /* that of the masters */
    size_t n_bounds;
    int64_t *bound;                     /* [n_bounds] sorted: where chunks of the masters begin and end */
};

/* One tensor rank's part of a piece: one box, or two boxes for a gated MLP. */
struct local_part {
    int n_boxes;
    const struct dcp_chunk *box[2];
    int64_t n_elems;
};

/* A parameter, or the piece of it that belongs to one expert. The list of these is in the order of the model. */
struct placed_param {
    int param;                          /* index in s->param */
    const struct dcp_entry *entry;      /* the entry of its weight; a stack if row >= 0 */
    int row;
    int expert;                         /* number of the expert on its expert-parallel rank; -1: all experts */
    int next;                           /* index of the parameter's next piece in the list; -1: none */
    int run;                            /* the run of parameters that has this one, see bucket_placing */
    int bucket;
    int64_t at;                         /* the parameter's first element in its bucket */
    struct local_part *part;            /* [tp] */
};

/* The parameters that an optimizer has. With expert parallelism, the experts have a second optimizer of their own. */
enum placed_kind { PLACED_ALL, PLACED_OTHERS, PLACED_EXPERTS };

/*
 * The parameters of the model, in its order, are divided into runs. A tensor rank has one buffer per run. If each
 * pipeline stage has one buffer, run r belongs to stage r. If it has several, one per virtual stage, run r is buffer r
 * / stages of stage r % stages. Group g of the optimizer belongs to tensor rank g % tp of stage g / tp. For experts,
 * the tensor ranks are all pairs of an expert-parallel rank (ep of these) and an expert-tensor rank (etp).
 */
struct bucket_placing {
    struct source *s;
    enum placed_kind kind;
    const char *prefix;                 /* the text before the number of the group in names of entries */
    int n_groups, n_buffers, n_buckets; /* numbers of groups, of a group's buffers, and most buckets of a buffer */
    struct state_bucket *bucket;        /* [n_groups * n_buffers * n_buckets], see bucket_of() */
    int tp, stages, n_runs;
    int ep, etp;                        /* tp = ep * etp for the optimizer of experts; otherwise ep is 1 */
    int n_ordered;
    struct placed_param *ordered;       /* the parameters in the order of the model; experts are not split */
    int n;
    struct placed_param *placed;
    /* the last stage's copy of the first parameter, a tied embedding; it follows the stage's own parameters */
    bool has_copy;
    struct placed_param copy;
    int64_t *ways;                      /* [n_runs * (n + 1)] see count_ways(); -1: not counted yet */
};

/* The parameters chosen for a run: placed[from] to placed[to - 1], and if `copy` is true, the copy of placed[0]. */
struct run_choice {
    int run, from, to;
    bool copy;
};

/* The placements tried so far, and the states that they give to the parameters. */
struct placing_trial {
    bool compare;
    struct tmap **map;                  /* [n_params * KINDS] the states by a placement that fits; NULL: none */
    int64_t n_ways;                     /* placements that lengths and bounds permit */
    int64_t n_fit;                      /* those that the values permit */
    const char *why;                    /* why the last other one does not fit */
};

static struct state_bucket *bucket_of(const struct bucket_placing *x, int group, int buffer, int bucket)
{
    return &x->bucket[(group * x->n_buffers + buffer) * x->n_buckets + bucket];
}

/* Returns the bucket of a run on a tensor rank. */
static const struct state_bucket *bucket_of_run(const struct bucket_placing *x, int t, int run, int bucket)
{
    return bucket_of(x, run % x->stages * x->tp + t, run / x->stages, bucket);
}

/* Returns the number of buckets of a buffer. */
static int count_buckets_of(const struct bucket_placing *x, int group, int buffer)
{
    int n = 0;

    while (n < x->n_buckets && bucket_of(x, group, buffer, n)->entry)
        n++;
    return n;
}

/* Parse the number that follows `word` in a name. Returns -1 if there is none. */
static int number_after(const char *name, const char *word, int most)
{
    const char *s = strstr(name, word);
    const size_t n = s ? strspn(s + strlen(word), "0123456789") : 0;
    const int number = n > 0 && n < 8 ? atoi(s + strlen(word)) : -1;

    return number < most ? number : -1;
}

/* Returns true if the entry is one of the optimizer. */
static bool is_own_entry(const struct bucket_placing *x, const char *name)
{
    return str_starts(name, x->prefix);
}

static int kind_of_bucket(const char *name)
{
    const char *end = strrchr(name, '.');

    for (int k = 0; end && k < KINDS; k++)
        if (strcmp(end + 1, kind_names[k]) == 0)
            return k;
    return -1;
}

/* Find the numbers of groups, buffers and buckets. Returns the reason if the names have another form. */
static const char *count_buckets(struct bucket_placing *x)
{
    for (int i = 0; i < x->s->dcp->n; i++) {
        const struct dcp_entry *en = &x->s->dcp->entry[i];
        int group, buffer, bucket;

        if (!is_own_entry(x, en->name))
            continue;
        group = number_after(en->name, bucket_prefix, RANKS_MAX);
        if (group < 0)
            return arena_fmt(x->s->arena, "%s has no number of a group", en->name);
        x->n_groups = group + 1 > x->n_groups ? group + 1 : x->n_groups;
        if (!en->is_tensor)
            continue;
        buffer = number_after(en->name, ".gbuf_idx_", BUFFERS_MAX);
        bucket = number_after(en->name, ".bucket_idx_", BUCKETS_MAX);
        if (buffer < 0 || bucket < 0 || kind_of_bucket(en->name) < 0 || en->dtype != DTYPE_F32 || en->ndim != 1)
            return arena_fmt(x->s->arena, "%s is not a state of fp32 in a bucket", en->name);
        x->n_buffers = buffer + 1 > x->n_buffers ? buffer + 1 : x->n_buffers;
        x->n_buckets = bucket + 1 > x->n_buckets ? bucket + 1 : x->n_buckets;
    }
    if ((int64_t)x->n_groups * x->n_buffers * x->n_buckets > TABLE_MAX)
        return "there are more buckets than are tried";
    return x->n_buckets ? NULL : "there are no buckets";
}

static int by_number(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

/* Fill in the sorted bounds of the bucket's chunks. */
static void list_bounds(struct arena *a, struct state_bucket *b)
{
    b->bound = arena_alloc(a, ((size_t)b->entry->n_chunks * 2 + 1) * sizeof *b->bound);
    for (int i = 0; i < b->entry->n_chunks; i++) {
        b->bound[b->n_bounds++] = b->entry->chunk[i].at[0];
        b->bound[b->n_bounds++] = b->entry->chunk[i].at[0] + b->entry->chunk[i].len[0];
    }
    qsort(b->bound, b->n_bounds, sizeof *b->bound, by_number);
}

/* Returns the reason if a bucket is missing although its buffer has a later one, or if a bucket lacks a state. */
static const char *check_buckets_whole(struct bucket_placing *x)
{
    for (int i = 0; i < x->n_groups * x->n_buffers; i++) {
        const int group = i / x->n_buffers, buffer = i % x->n_buffers;
        int n = x->n_buckets;

        while (n > 1 && !bucket_of(x, group, buffer, n - 1)->n_elems)
            n--;
        for (int k = 0; k < n; k++) {
            struct state_bucket *b = bucket_of(x, group, buffer, k);

            if (!b->map[0] || !b->map[1] || !b->map[2])
                return arena_fmt(x->s->arena, "bucket %d of buffer %d of group %d is missing, or lacks a state", k,
                                 buffer, group);
            list_bounds(x->s->arena, b);
        }
    }
    return NULL;
}

/* Fill in the table of buckets. Returns the reason if a bucket is missing. */
static const char *list_buckets(struct bucket_placing *x)
{
    struct source_hit hit;

    x->bucket = arena_alloc(x->s->arena, (size_t)x->n_groups * (size_t)x->n_buffers * (size_t)x->n_buckets *
                                             sizeof *x->bucket);
    for (int i = 0; i < x->s->dcp->n; i++) {
        const struct dcp_entry *en = &x->s->dcp->entry[i];
        const int kind = kind_of_bucket(en->name);
        struct state_bucket *b;

        if (!is_own_entry(x, en->name) || !en->is_tensor)
            continue;
        b = bucket_of(x, number_after(en->name, bucket_prefix, RANKS_MAX),
                      number_after(en->name, ".gbuf_idx_", BUFFERS_MAX),
                      number_after(en->name, ".bucket_idx_", BUCKETS_MAX));
        if (!source_find_entry(x->s, en->name, &hit) || !hit.value || !hit.value->map || b->map[kind] ||
            (b->n_elems && b->n_elems != en->shape[0]))
            return arena_fmt(x->s->arena, "%s cannot be read, or has another length than other states", en->name);
        b->n_elems = en->shape[0];
        b->map[kind] = hit.value->map;
        if (kind == 0)
            b->entry = en;
    }
    return check_buckets_whole(x);
}

/* Returns the reason if the tensor ranks of a stage have buckets of different lengths. */
static const char *compare_tensor_ranks(const struct bucket_placing *x)
{
    for (int g = 0; g < x->n_groups; g++)
        for (int i = 0; i < x->n_buffers * x->n_buckets; i++) {
            const int first = g / x->tp * x->tp, buffer = i / x->n_buckets, bucket = i % x->n_buckets;

            if (bucket_of(x, g, buffer, bucket)->n_elems != bucket_of(x, first, buffer, bucket)->n_elems)
                return arena_fmt(x->s->arena, "bucket %d of buffer %d of group %d has another length than that of "
                                 "group %d, which is of the same stage", bucket, buffer, g, first);
        }
    return NULL;
}

/* ---- the order of the parameters ---- */

static void add_placed(struct bucket_placing *x, int param, const struct dcp_entry *en, int row)
{
    x->ordered[x->n_ordered++] = (struct placed_param){ .param = param, .entry = en, .row = row, .expert = -1,
                                                        .next = -1 };
}

/* Returns the stack of weights that is stored in the entry, or NULL. */
static const struct source_stack *weight_stack(const struct source *s, const struct dcp_entry *en)
{
    struct source_hit hit;
    const bool found = en->is_tensor && source_find_entry(s, en->name, &hit) && hit.stack;

    return found && (hit.stack->state == STATE_BF16 || hit.stack->state == STATE_FP32) && hit.stack->row ? hit.stack
                                                                                                        : NULL;
}

/* Add the parameters of all stacks that have the same prefix as the stack in entry `first`, layer by layer. */
static void add_stacked_layers(struct bucket_placing *x, int first)
{
    const struct dcp_table *t = x->s->dcp;
    const int at = torchdist_number_place(t->entry[first].name);

    for (int l = 0; l < t->entry[first].shape[0]; l++)
        for (int i = first; i < t->n; i++) {
            const struct source_stack *k = weight_stack(x->s, &t->entry[i]);

            if (k && strncmp(t->entry[i].name, t->entry[first].name, (size_t)at + 1) == 0 && l < t->entry[i].shape[0])
                add_placed(x, k->row[l], &t->entry[i], l);
        }
}

/* List the parameters in the order of the model. Returns the reason if a parameter has no place in this order. */
static const char *order_params(struct bucket_placing *x)
{
    const struct dcp_table *t = x->s->dcp;
    struct names *done = names_new(x->s->arena);
    struct source_hit hit;

    x->ordered = arena_alloc(x->s->arena, ((size_t)x->s->n_params + 1) * sizeof *x->ordered);
    for (int i = 0; i < t->n; i++) {
        const struct dcp_entry *en = &t->entry[i];
        const struct source_stack *k = weight_stack(x->s, en);

        if (k) {
            const char *prefix = arena_strndup(x->s->arena, en->name, (size_t)torchdist_number_place(en->name));

            if (names_find(done, prefix) < 0)
                add_stacked_layers(x, i);
            names_add(done, prefix, i);
        } else if (en->is_tensor && source_find_entry(x->s, en->name, &hit) && hit.param && hit.state >= 0 &&
                   (hit.state == STATE_BF16 || hit.state == STATE_FP32)) {
            add_placed(x, source_param_index(x->s, hit.param), en, -1);
        }
    }
    if (x->n_ordered != x->s->n_params)
        return arena_fmt(x->s->arena, "the order of %d of the parameters is not known", x->s->n_params - x->n_ordered);
    for (int i = 0; i < x->n_ordered; i++)
        if (!x->s->param[x->ordered[i].param].state[STATE_BF16])
            return arena_fmt(x->s->arena, "parameter %s has no weights of 16 bits, so that its states are in another "
                             "buffer", x->s->param[x->ordered[i].param].name);
    return NULL;
}

/*
 * The parameters of Megatron-core's GPT in the order of its modules. In names, those of a layer follow "layers." and a
 * number. This order is needed because a save that is divided over data-parallel ranks writes the keys in another
 * order.
 */
static const char *const known_begin[] = { "embedding.word_embeddings.weight", "embedding.position_embeddings.weight",
                                           NULL };
static const char *const known_end[] = { "decoder.final_layernorm.weight", "decoder.final_layernorm.bias",
                                         "output_layer.weight", "output_layer.bias", NULL };
static const char *const known_layer[] = {
    "self_attention.linear_qkv.layer_norm_weight", "self_attention.linear_qkv.layer_norm_bias",
    "self_attention.linear_proj.weight", "self_attention.linear_proj.bias",
    "self_attention.linear_qkv.weight", "self_attention.linear_qkv.bias",
    "self_attention.q_layernorm.weight", "self_attention.q_layernorm.bias",
    "self_attention.k_layernorm.weight", "self_attention.k_layernorm.bias",
    "pre_mlp_layernorm.weight", "pre_mlp_layernorm.bias",
    "mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.layer_norm_bias", "mlp.linear_fc1.weight",
    "mlp.linear_fc1.bias", "mlp.linear_fc2.weight", "mlp.linear_fc2.bias", "mlp.router.weight",
    "mlp.experts.experts.linear_fc1.weight", "mlp.experts.experts.linear_fc2.weight", NULL
};
/* With Transformer Engine, the first norm is a part of linear_qkv, which follows linear_proj. */
enum { FIRST_NORM = 2, PROJECTION = 4 };

static int find_known_name(const char *const *list, const char *name)
{
    for (int i = 0; list[i]; i++)
        if (strcmp(list[i], name) == 0)
            return i;
    return -1;
}

/* Returns the place of a parameter in the order of the modules, or -1 if it is not known. */
static int64_t known_place(const struct placed_param *p, bool fused_norm)
{
    const char *name = p->entry->name;
    const int at = torchdist_number_place(name), begin = find_known_name(known_begin, name),
              end = find_known_name(known_end, name);
    const size_t digits = at ? strspn(name + at + 1, "0123456789") : 0;
    int64_t layer = p->row, i;

    if (begin >= 0 || end >= 0)
        return begin >= 0 ? begin : INT64_MAX / 2 + end;
    if (!str_starts(name, "decoder.layers.") || digits > 6)
        return -1;
    if (digits)
        layer = atoi(name + at + 1);
    i = find_known_name(known_layer, name + at + 1 + (digits ? digits + 1 : 0));
    if (i < 0 || layer < 0)
        return -1;
    if (fused_norm && i < PROJECTION)
        i = i < FIRST_NORM ? i + PROJECTION - FIRST_NORM : i - FIRST_NORM;
    return (layer + 1) * (int64_t)(sizeof known_layer / sizeof *known_layer) + i;
}

static int by_known_place(const void *a, const void *b, void *ctx)
{
    const int64_t x = known_place(a, *(const bool *)ctx), y = known_place(b, *(const bool *)ctx);

    return x < y ? -1 : x > y;
}

/*
 * Sort the parameters in the order of the modules. Returns false and leaves their order if a module is not known, or if
 * fused_norm is set but there is no norm that could be fused.
 */
static bool sort_by_modules(struct bucket_placing *x, bool fused_norm)
{
    bool has_norm = false;

    for (int i = 0; i < x->n_ordered; i++) {
        if (known_place(&x->ordered[i], fused_norm) < 0)
            return false;
        has_norm |= strstr(x->ordered[i].entry->name, known_layer[0]) != NULL;
    }
    if (fused_norm && !has_norm)
        return false;
    qsort_r(x->ordered, (size_t)x->n_ordered, sizeof *x->ordered, by_known_place, &fused_norm);
    return true;
}

/* Returns true if the weight has an axis of experts. In the model, each expert is a parameter of its own. */
static bool is_of_experts(const struct placed_param *p)
{
    const int dim = p->row >= 0;

    return strstr(p->entry->name, ".experts.experts.") != NULL && p->entry->ndim > dim;
}

/* Returns the number of experts per expert-parallel rank, or 0 if the ranks have different numbers. */
static int64_t count_local_experts(const struct bucket_placing *x, const struct placed_param *p)
{
    const int64_t n = p->entry->shape[p->row >= 0];

    return n % x->ep ? 0 : n / x->ep;
}

/* Returns true if a layer ends between the parameters. */
static bool layer_ends(const struct placed_param *before, const struct placed_param *after)
{
    const int x = torchdist_number_place(before->entry->name), y = torchdist_number_place(after->entry->name);

    if (x == 0 || x != y || strncmp(before->entry->name, after->entry->name, (size_t)x) != 0)
        return true;
    return before->row != after->row || atoi(before->entry->name + x + 1) != atoi(after->entry->name + y + 1);
}

static void add_piece(struct bucket_placing *x, const struct placed_param *p, int expert)
{
    x->placed[x->n] = *p;
    x->placed[x->n++].expert = expert;
}

/*
 * Add the experts of ordered[from] to ordered[to - 1], which belong to one layer. If `by_expert` is true, all weights
 * of an expert follow each other; otherwise all experts of a weight do.
 */
static void add_experts(struct bucket_placing *x, int from, int to, bool by_expert)
{
    const int n = (int)count_local_experts(x, &x->ordered[from]);

    for (int i = 0; i < n * (to - from); i++) {
        const int which = by_expert ? i % (to - from) : i / n, expert = by_expert ? i / (to - from) : i % n;

        add_piece(x, &x->ordered[from + which], expert);
    }
}

/* Link the pieces of each parameter. */
static void link_pieces(struct bucket_placing *x)
{
    int *last = xcalloc((size_t)x->s->n_params + 1, sizeof *last);

    for (int i = x->n - 1; i >= 0; i--) {
        x->placed[i].next = last[x->placed[i].param] - 1;
        last[x->placed[i].param] = i + 1;
    }
    free(last);
}

/*
 * List the parameters and pieces that the optimizer has, in the order of the model. The experts of a layer are listed
 * expert by expert (by_expert), or weight by weight, as in modules of grouped experts. *differ is set to true if the
 * two orders differ. Returns the reason if the experts cannot be divided over the ranks.
 */
static const char *list_pieces(struct bucket_placing *x, bool by_expert, bool *differ)
{
    size_t room = 1;

    for (int i = 0; i < x->n_ordered; i++) {
        const struct placed_param *p = &x->ordered[i];
        const int64_t n = is_of_experts(p) ? count_local_experts(x, p) : 1;

        if (n < 1 || n > EXPERTS_MAX)
            return arena_fmt(x->s->arena, "the experts of %s cannot be divided over %d expert-parallel ranks",
                             x->s->param[p->param].name, x->ep);
        room += (size_t)n;
    }
    x->placed = arena_alloc(x->s->arena, room * sizeof *x->placed);
    x->n = 0;
    for (int i = 0, k; i < x->n_ordered; i = k) {
        const bool experts = is_of_experts(&x->ordered[i]);

        for (k = i + 1; experts && k < x->n_ordered && is_of_experts(&x->ordered[k]) &&
                        x->ordered[k].entry->shape[x->ordered[k].row >= 0] ==
                            x->ordered[i].entry->shape[x->ordered[i].row >= 0] &&
                        !layer_ends(&x->ordered[k - 1], &x->ordered[k]);)
            k++;
        if (x->kind == (experts ? PLACED_OTHERS : PLACED_EXPERTS))
            continue;
        if (experts)
            add_experts(x, i, k, by_expert);
        else
            add_piece(x, &x->ordered[i], -1);
        *differ |= experts && k - i > 1 && count_local_experts(x, &x->ordered[i]) > 1;
    }
    link_pieces(x);
    return NULL;
}

/* ---- the parts of tensor ranks ---- */

static int by_chunk_place(const void *a, const void *b, void *ctx)
{
    const struct dcp_chunk *x = *(const struct dcp_chunk *const *)a, *y = *(const struct dcp_chunk *const *)b;
    const int ndim = *(const int *)ctx;

    for (int d = 0; d < ndim; d++)
        if (x->at[d] != y->at[d])
            return x->at[d] < y->at[d] ? -1 : 1;
    return 0;
}

/* Returns true if the chunk has elements of the piece's layer and of `expert`. -1 stands for all experts. */
static bool chunk_is_of(const struct placed_param *p, const struct dcp_chunk *k, int64_t expert)
{
    const int dim = p->row >= 0;

    return (p->row < 0 || (k->at[0] <= p->row && k->at[0] + k->len[0] > p->row)) &&
           (expert < 0 || (k->at[dim] <= expert && k->at[dim] + k->len[dim] > expert));
}

/*
 * Find the parts of `ranks` tensor ranks. The chunks of the weight, or of one expert in it, are sorted by place. There
 * must be one chunk per rank, two per rank (gated MLP), or one chunk that all ranks have. Returns the reason if there
 * is another number of chunks.
 */
static const char *find_parts_of(const struct bucket_placing *x, const struct placed_param *p, int64_t expert,
                                 int ranks, struct local_part *part)
{
    const struct dcp_chunk **c = xcalloc((size_t)p->entry->n_chunks + 1, sizeof *c);
    int n = 0, ndim = p->entry->ndim;
    const char *why = NULL;

    for (int i = 0; i < p->entry->n_chunks; i++) {
        const struct dcp_chunk *k = &p->entry->chunk[i];

        if (!chunk_is_of(p, k, expert))
            continue;
        if ((p->row >= 0 && k->len[0] != 1) || (expert >= 0 && k->len[p->row >= 0] != 1))
            why = "chunks of weights have several layers or experts";
        c[n++] = k;
    }
    if (!why && n != 1 && n != ranks && n != 2 * ranks)
        why = arena_fmt(x->s->arena, "the weight %s has %d chunks, which %d tensor ranks do not share",
                        x->s->param[p->param].name, n, ranks);
    if (n)
        qsort_r(c, (size_t)n, sizeof *c, by_chunk_place, &ndim);
    for (int t = 0; t < ranks && !why; t++) {
        part[t] = (struct local_part){ .n_boxes = n == 2 * ranks ? 2 : 1 };
        for (int b = 0; b < part[t].n_boxes; b++) {
            part[t].box[b] = c[n == 1 ? 0 : b * ranks + t];
            part[t].n_elems += shape_count(ndim, part[t].box[b]->len);
        }
    }
    free(c);
    return why;
}

/* Find the parts of all ranks of a stage. Returns the reason if a part is not known, or if the parts differ in size. */
static const char *find_local_parts(const struct bucket_placing *x, struct placed_param *p)
{
    const char *why = NULL;

    p->part = arena_alloc(x->s->arena, (size_t)x->tp * sizeof *p->part);
    if (p->expert < 0)
        why = find_parts_of(x, p, -1, x->tp, p->part);
    for (int e = 0; p->expert >= 0 && e < x->ep && !why; e++)
        why = find_parts_of(x, p, e * count_local_experts(x, p) + p->expert, x->etp, &p->part[e * x->etp]);
    for (int t = 0; t < x->tp && !why; t++)
        if (p->part[t].n_elems != p->part[0].n_elems)
            why = arena_fmt(x->s->arena, "tensor ranks have parts of different sizes of %s",
                            x->s->param[p->param].name);
    return why;
}

/* ---- places ---- */

/*
 * Find the numbers of tensor ranks and of stages: those that the arguments state. If these are missing, there are as
 * many tensor ranks as the embedding (or else the first weight) has chunks. If that number does not divide the number
 * of groups, all groups are tensor ranks. For experts, the number of stages is already known, and there is one
 * expert-tensor rank if the arguments do not state the number.
 */
static const char *find_ranks(struct bucket_placing *x)
{
    const struct pk *args = x->s->run.args;
    const int64_t stages = x->stages ? x->stages : pk_int_or(pk_get(args, "pipeline_model_parallel_size"), 0);
    const int64_t tp = x->stages ? x->n_groups / x->stages : pk_int_or(pk_get(args, "tensor_model_parallel_size"), 0);
    const int64_t etp = pk_int_or(pk_get(args, "expert_tensor_parallel_size"), 1);
    int n = x->n_ordered ? x->ordered[0].entry->n_chunks : 0;

    for (int i = 0; i < x->n_ordered; i++)
        if (strcmp(x->ordered[i].entry->name, known_begin[0]) == 0)
            n = x->ordered[i].entry->n_chunks;
    if (tp < 0 || stages < 0 || (tp > 0 && x->n_groups % tp) || (stages > 0 && x->n_groups % stages) ||
        (tp > 0 && stages > 0 && x->n_groups / tp != stages))
        return arena_fmt(x->s->arena, "%s...: it has %d groups, which do not fit %" PRId64 " tensor and %" PRId64
                         " pipeline ranks", x->prefix, x->n_groups, tp, stages);
    x->tp = tp > 0 ? (int)tp : stages > 0 ? x->n_groups / (int)stages
                             : n > 0 && x->n_groups % n == 0 ? n : x->n_groups;
    x->stages = x->n_groups / x->tp;
    x->n_runs = x->stages * x->n_buffers;
    x->ep = 1;
    x->etp = x->tp;
    if (x->kind == PLACED_EXPERTS && (etp < 1 || x->tp % etp))
        return arena_fmt(x->s->arena, "%d ranks with experts cannot be divided into expert-tensor ranks of %" PRId64,
                         x->tp, etp);
    if (x->kind == PLACED_EXPERTS) {
        x->etp = (int)etp;
        x->ep = x->tp / x->etp;
    }
    return NULL;
}

/* Returns true if a chunk of the bucket begins or ends at element `at`. */
static bool is_bound(const struct state_bucket *b, int64_t at)
{
    return bsearch(&at, b->bound, b->n_bounds, sizeof at, by_number) != NULL;
}

/* Returns the reason if, on some tensor rank, a parameter begins or ends where no chunk of its bucket does. */
static const char *compare_bounds(const struct bucket_placing *x, const struct placed_param *p)
{
    for (int t = 0; t < x->tp; t++) {
        const struct state_bucket *b = bucket_of_run(x, t, p->run, p->bucket);

        if (!is_bound(b, p->at) || !is_bound(b, p->at + p->part[0].n_elems))
            return arena_fmt(x->s->arena, "no placement fits: parameter %s would be at element %" PRId64 " of bucket "
                             "%d, where no chunk begins", x->s->param[p->param].name, p->at, p->bucket);
    }
    return NULL;
}

/* Place the parameters of a run in reverse order, each aligned. Returns the reason if they do not fit the buckets. */
static const char *place_run(struct bucket_placing *x, const struct run_choice *c)
{
    const int n_buckets = count_buckets_of(x, c->run % x->stages * x->tp, c->run / x->stages);
    int bucket = 0;
    int64_t end = 0;
    const char *why = NULL;

    for (int i = c->copy ? c->to : c->to - 1; i >= c->from && !why; i--) {
        struct placed_param *p = i == c->to ? &x->copy : &x->placed[i];
        const int64_t n = p->part[0].n_elems;

        p->run = c->run;
        p->bucket = bucket;
        p->at = (end + ALIGN - 1) / ALIGN * ALIGN;
        end = p->at + n;
        if (bucket == n_buckets || end > bucket_of_run(x, 0, c->run, bucket)->n_elems)
            return arena_fmt(x->s->arena, "no placement fits: in the order of the model, parameter %s does not end in "
                             "bucket %d of %d", x->s->param[p->param].name, bucket, n_buckets);
        why = compare_bounds(x, p);
        if (end == bucket_of_run(x, 0, c->run, bucket)->n_elems) {
            bucket++;
            end = 0;
        }
    }
    if (!why && (bucket != n_buckets || end != 0))
        why = arena_fmt(x->s->arena, "no placement fits: in the order of the model, the parameters end in bucket %d of "
                        "%d", bucket, n_buckets);
    return why;
}

/*
 * Advance to the next choice of parameters for a run. Start with to = from. The last run gets all parameters that are
 * left, first without the copy of the embedding, then with it. Returns false after the last choice.
 */
static bool next_choice(const struct bucket_placing *x, struct run_choice *c)
{
    if (c->run == x->n_runs - 1) {
        if (c->to == x->n && (c->copy || x->stages == 1 || x->kind == PLACED_EXPERTS))
            return false;
        c->copy = c->to == x->n && c->to > c->from;
        c->to = x->n;
        return c->to > c->from || c->copy;
    }
    do
        c->to++;
    while (c->to < x->n && !layer_ends(&x->placed[c->to - 1], &x->placed[c->to]));
    return c->to < x->n;
}

/* Returns the number of ways to place the parameters from placed[from] to the last one in `run` and the later runs. */
static int64_t count_ways(struct bucket_placing *x, int run, int from)
{
    struct run_choice c = { .run = run, .from = from, .to = from };
    int64_t *ways = &x->ways[(size_t)run * ((size_t)x->n + 1) + (size_t)from];

    if (*ways >= 0)
        return *ways;
    *ways = 0;
    while (*ways <= INT32_MAX && next_choice(x, &c))
        if (!place_run(x, &c))
            *ways += run == x->n_runs - 1 ? 1 : count_ways(x, run + 1, c.to);
    return *ways;
}

/* ---- states ---- */

/*
 * Add the parts of a parameter's state that tensor rank t has, according to the parameter's place. Returns their
 * number.
 */
static int add_placed_parts(const struct bucket_placing *x, const struct placed_param *p, int kind, int t,
                            struct tile_part *part)
{
    const int ndim = x->s->param[p->param].ndim, skip = p->row >= 0;
    const struct tmap *m = bucket_of_run(x, t, p->run, p->bucket)->map[kind];
    uint64_t at = (uint64_t)p->at * sizeof(float);

    for (int b = 0; b < p->part[t].n_boxes; b++) {
        const struct dcp_chunk *box = p->part[t].box[b];
        const uint64_t len = (uint64_t)shape_count(p->entry->ndim, box->len) * sizeof(float);
        /* two parts, so that the result is one slice of extents */
        const struct tmap *cut = tmap_parts(x->s->arena, (const struct tmap_part[]){ { m, at, len },
                                                                                    { m, at + len, 0 } }, 2);

        part[b] = (struct tile_part){ .ndim = ndim, .rank = p->run % x->stages * x->tp + t,
                                      .n_extents = cut->slice[0].n_extents, .extent = cut->slice[0].extent };
        for (int d = 0; d < ndim; d++) {
            part[b].at[d] = box->at[d + skip];
            part[b].len[d] = box->len[d + skip];
        }
        at += len;
    }
    return p->part[t].n_boxes;
}

/*
 * Make the map of a state from the buckets of all tensor ranks. The parameter's first piece is placed[first]. Returns
 * the reason if that fails.
 */
static const char *join_placed(const struct bucket_placing *x, int first, int kind, struct tmap **map)
{
    const struct param *of = &x->s->param[x->placed[first].param];
    struct tile_part *part;
    const char *why = NULL;
    size_t room = 1;
    int n = 0;

    for (int i = first; i >= 0; i = x->placed[i].next)
        room++;
    part = xcalloc(room * (size_t)x->tp * 2, sizeof *part);
    for (int i = first; i >= 0; i = x->placed[i].next)
        for (int t = 0; t < x->tp; t++)
            n += add_placed_parts(x, &x->placed[i], kind, t, part + n);
    for (int t = 0; t < x->tp && first == 0 && x->has_copy; t++)
        n += add_placed_parts(x, &x->copy, kind, t, part + n);
    *map = tile_join(x->s->arena, &(struct tile_tensor){ DTYPE_F32, of->ndim, of->shape }, part, n, &why);
    free(part);
    return why;
}

/* Returns the reason if the first master weights of a parameter, when rounded, differ from its weights. */
static const char *compare_masters(const struct bucket_placing *x, const struct param *p, const struct tmap *masters)
{
    const struct tmap *weights = p->state[STATE_BF16];
    const uint64_t n = weights->len / 2 < COMPARED ? weights->len / 2 : COMPARED;
    float *master = xcalloc(n + 1, sizeof *master);
    uint16_t *weight = xcalloc(n + 1, sizeof *weight);
    struct err e = {0};
    const char *why = NULL;

    if (tmap_read(masters, x->s->files, (struct tmap_range){ 0, 0, n * sizeof *master }, master, &e) < 0 ||
        tmap_read(weights, x->s->files, (struct tmap_range){ 0, 0, n * sizeof *weight }, weight, &e) < 0)
        why = arena_fmt(x->s->arena, "%s", e.msg);
    for (uint64_t i = 0; i < n && !why; i++)
        if (weight[i] != f32_to_half(weights->dtype, master[i]))
            why = arena_fmt(x->s->arena, "no placement fits: where the masters of parameter %s would be, element "
                            "%" PRIu64 " is %g, which is not its weight, rounded", p->name, i, (double)master[i]);
    free(weight);
    free(master);
    return why;
}

/*
 * Make the maps of all states according to the places of the parameters. Returns the reason if values contradict these
 * places.
 */
static const char *make_bucket_states(const struct bucket_placing *x, bool compare, struct tmap **map)
{
    const char *why = NULL;

    for (int i = 0; i < x->n && !why; i++) {
        struct tmap **of = &map[x->placed[i].param * KINDS];

        if (of[0])                      /* a piece of a parameter that was made with an earlier piece */
            continue;
        for (int k = 0; k < KINDS && !why; k++)
            why = join_placed(x, i, k, &of[k]);
        if (!why && compare)
            why = compare_masters(x, &x->s->param[x->placed[i].param], of[0]);
    }
    return why;
}

/*
 * For each way to place the parameters from placed[from] to the last one in `run` and the later runs, compare the
 * values.
 */
static void try_placements(struct bucket_placing *x, int run, int from, struct placing_trial *trial)
{
    struct run_choice c = { .run = run, .from = from, .to = from };
    struct tmap **map;
    const char *why;

    if (run == x->n_runs) {
        map = arena_alloc(x->s->arena, ((size_t)x->s->n_params * KINDS + 1) * sizeof(*map));
        why = make_bucket_states(x, trial->compare, map);
        if (why)
            trial->why = why;
        else
            trial->map = map;
        trial->n_fit += !why;
        return;
    }
    while (next_choice(x, &c)) {
        if (run < x->n_runs - 1 && count_ways(x, run + 1, c.to) == 0)
            continue;
        x->has_copy = c.copy;
        if (!place_run(x, &c))
            try_placements(x, run + 1, c.to, trial);
    }
}

/* Try to place the parameters in one order. Returns the reason if no placement fits the lengths and bounds. */
static const char *try_order(struct bucket_placing *x, struct placing_trial *trial)
{
    const size_t n_ways = (size_t)x->n_runs * ((size_t)x->n + 1);
    const char *why = NULL;
    int64_t n;

    for (int i = 0; i < x->n && !why; i++)
        why = find_local_parts(x, &x->placed[i]);
    if (why)
        return why;
    x->ways = arena_alloc(x->s->arena, n_ways * sizeof *x->ways);
    memset(x->ways, -1, n_ways * sizeof *x->ways);
    if (x->n)
        x->copy = x->placed[0];
    n = count_ways(x, 0, 0);
    trial->n_ways += n;
    if (n == 0 && x->n_runs == 1)
        return place_run(x, &(struct run_choice){ 0, 0, x->n, false });
    if (n == 0)
        return arena_fmt(x->s->arena, "no placement fits: the parameters in the order of the model cannot be divided "
                         "over the buckets of %d stages with %d buffers", x->stages, x->n_buffers);
    if (trial->n_ways <= TRIED_MAX)
        try_placements(x, 0, 0, trial);
    return NULL;
}

/* Try both orders that the experts of a layer can have. Returns the reason if no placement fits lengths and bounds. */
static const char *try_orders_of_experts(struct bucket_placing *x, struct placing_trial *trial)
{
    bool differ = false;
    const char *why = list_pieces(x, true, &differ), *other;

    if (!why)
        why = try_order(x, trial);
    if (!differ)
        return why;
    other = list_pieces(x, false, &differ);
    if (!other)
        other = try_order(x, trial);
    return other ? why : NULL;
}

/*
 * Place all parameters of the optimizer in the order of the entries, or, if that does not fit, in the order of the
 * known modules. Returns the reason if no placement fits, or if several do.
 */
static const char *place_params(struct bucket_placing *x, struct placing_trial *trial)
{
    const char *why = try_orders_of_experts(x, trial);

    if (trial->n_ways == 0)
        for (int fused = 0; fused < 2 && sort_by_modules(x, fused); fused++)
            try_orders_of_experts(x, trial);
    if (trial->n_ways > TRIED_MAX || trial->n_fit > 1)
        return arena_fmt(x->s->arena, "%" PRId64 " placements fit, in which parameters of equal sizes are exchanged",
                         trial->n_ways > TRIED_MAX ? trial->n_ways : trial->n_fit);
    return trial->n_fit ? NULL : trial->why ? trial->why : why;
}

/* ---- settings ---- */

/*
 * Returns the value of a group in this object, or NULL. The value is the only item of a list. *name is set to its name.
 */
static const struct pk *find_rank_object(const struct bucket_placing *x, int t, const char *what, const char **name)
{
    const struct pk *tree = NULL;
    uint32_t n = 0;
    struct pk **item;

    *name = arena_fmt(x->s->arena, "%s%d.%s/shard_0_1", x->prefix, t, what);
    for (int i = 0; i < x->s->n_values && !tree; i++)
        if (strcmp(x->s->value[i].name, *name) == 0)
            tree = x->s->value[i].tree;
    item = tree ? pk_items(tree, &n) : NULL;
    return item && n == 1 ? item[0] : NULL;
}

/*
 * Compare the lengths of the buckets with those in a group's object: [{(types): [length, ...]}, ...], one dict per
 * buffer. Lengths with padding may be larger than the buckets. Returns the reason if they differ.
 */
static const char *compare_lengths(const struct bucket_placing *x, int group, const char *what, bool padded)
{
    const char *name;
    uint32_t n = 0, n_items = 0, n_pairs = 0;
    struct pk **item = pk_items(find_rank_object(x, group, what, &name), &n_items);

    for (int k = 0; k < x->n_buffers; k++) {
        const int n_buckets = count_buckets_of(x, group, k);
        struct pk **pair = item && n_items == (uint32_t)x->n_buffers ? pk_pairs(item[k], &n_pairs) : NULL;
        struct pk **length = pair && n_pairs == 1 ? pk_items(pair[1], &n) : NULL;

        if (!length || n != (uint32_t)n_buckets)
            return arena_fmt(x->s->arena, "%s is missing, or does not list the lengths of %d buckets", name, n_buckets);
        for (int b = 0; b < n_buckets; b++) {
            const int64_t have = bucket_of(x, group, k, b)->n_elems;
            int64_t stated = -1;

            pk_as_int(length[b], &stated);
            if (padded ? stated < have : stated != have)
                return arena_fmt(x->s->arena, "%s states %" PRId64 " elements for bucket %d, which has %" PRId64, name,
                                 stated, b, have);
        }
    }
    return NULL;
}

/* Find the settings. Each group stores a copy. Returns the reason if the copies differ or one is missing. */
static const char *find_bucket_settings(const struct bucket_placing *x, const struct pk **optimizer)
{
    *optimizer = NULL;
    for (int t = 0; t < x->n_groups; t++) {
        const char *name;
        const struct pk *own = find_rank_object(x, t, "optimizer", &name);

        if (!pk_get(own, "param_groups"))
            return arena_fmt(x->s->arena, "%s does not have the settings of the optimizer", name);
        if (*optimizer && !pk_same_text(*optimizer, own))
            return "tensor ranks or stages have different settings of the optimizer";
        *optimizer = own;
    }
    return NULL;
}

/* Remove the entries of the buckets from the table of entries and from the source's values. */
static void remove_buckets(struct source *s)
{
    struct dcp_table *t = (struct dcp_table *)s->dcp;
    int n = 0, n_values = 0;

    for (int i = 0; i < t->n; i++)
        if (!torchdist_is_bucket(t->entry[i].name))
            t->entry[n++] = t->entry[i];
    for (int i = 0; i < s->n_values; i++)
        if (!torchdist_is_bucket(s->value[i].name))
            s->value[n_values++] = s->value[i];
    t->n = n;
    t->buckets = true;
    s->n_values = n_values;
    s->names->value = NULL;
}

/* Place the parameters of one optimizer, and find its settings. Returns the reason if that fails. */
static const char *place_optimizer(struct bucket_placing *x, struct placing_trial *trial, const struct pk **optimizer)
{
    const char *why = count_buckets(x);

    if (!why)
        why = list_buckets(x);
    for (int g = 0; g < x->n_groups && !why; g++)
        why = compare_lengths(x, g, "per_bucket_numel_unpadded", false);
    for (int g = 0; g < x->n_groups && !why; g++)
        why = compare_lengths(x, g, "per_bucket_numel", true);
    if (!why)
        why = order_params(x);
    if (!why)
        why = find_ranks(x);
    if (!why)
        why = compare_tensor_ranks(x);
    if (!why)
        why = find_bucket_settings(x, optimizer);
    return why ? why : place_params(x, trial);
}

/*
 * Count the optimizers: one, or two if experts have an optimizer of their own. Returns the reason if there are others.
 */
static const char *count_optimizers(const struct source *s, int *n)
{
    *n = 1;
    for (int i = 0; i < s->dcp->n; i++) {
        const char *name = s->dcp->entry[i].name;

        if (!torchdist_is_bucket(name))
            continue;
        if (str_starts(name, chained_prefix[0]) || str_starts(name, chained_prefix[1]))
            *n = 2;
        else if (!str_starts(name, bucket_prefix))
            return arena_fmt(s->arena, "%s is of one of more optimizers than one for experts and one for others", name);
    }
    return NULL;
}

const char *torchdist_place_buckets(struct source *s, bool compare, const struct pk **optimizer)
{
    struct pk *both = pk_dict(s->arena);
    struct placing_trial trial[2] = { { .compare = compare }, { .compare = compare } };
    int n, stages = 0;
    const char *why = count_optimizers(s, &n);

    for (int k = 0; k < n && !why; k++) {
        struct bucket_placing x = { .s = s, .kind = n == 1 ? PLACED_ALL : k ? PLACED_EXPERTS : PLACED_OTHERS,
                                    .prefix = n == 1 ? bucket_prefix : chained_prefix[k], .stages = stages };

        why = place_optimizer(&x, &trial[k], optimizer);
        stages = x.stages;
        if (!why && n > 1)
            pk_set(s->arena, both, pk_int(s->arena, k), pk_copy(s->arena, *optimizer));
    }
    if (why)
        return why;
    for (int i = 0; i < n * s->n_params * KINDS; i++) {
        const int at = i % (s->n_params * KINDS);
        struct tmap *map = trial[i / (s->n_params * KINDS)].map[at];

        if (map)
            s->param[at / KINDS].state[kind_state[at % KINDS]] = map;
    }
    if (n > 1)
        *optimizer = both;
    remove_buckets(s);
    return NULL;
}
