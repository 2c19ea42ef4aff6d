/*
 * torchdist_buckets.c - find the place of each parameter in the buckets of a distributed optimizer
 */
#include "libcommon/layout/dcp/torchdist_buckets.h"

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

enum { ALIGN = 64, COMPARED = 4096, RANKS_MAX = 1 << 12, BUCKETS_MAX = 1 << 16, KINDS = 3 };

static const char bucket_prefix[] = "optimizer.distributed.dp_group_idx_";
static const char *const kind_names[KINDS] = { "param", "exp_avg", "exp_avg_sq" };
static const enum state kind_state[KINDS] = { STATE_FP32, STATE_EXP_AVG, STATE_EXP_AVG_SQ };

/* ---- tables ---- */

struct state_bucket {
    int64_t n_elems;
    const struct tmap *map[KINDS];
    const struct dcp_entry *entry;      /* that of the masters */
};

/* The part of a weight that one tensor rank has: one box, or two for a gated MLP. */
struct local_part {
    int n_boxes;
    const struct dcp_chunk *box[2];
    int64_t n_elems;
};

/* A parameter, in the order of the model. */
struct placed_param {
    int param;                          /* index in s->param */
    const struct dcp_entry *entry;      /* the entry of its weight; a stack if row >= 0 */
    int row;
    int bucket;
    int64_t at;                         /* the parameter's first element in its bucket */
    struct local_part *part;            /* [tp] */
};

struct bucket_placing {
    struct source *s;
    int tp, n_buckets;                  /* numbers of tensor ranks, and of buckets of each */
    struct state_bucket *bucket;        /* [tp * n_buckets] */
    int n;
    struct placed_param *placed;
};

/* Parse the number that follows `word` in a name. Returns -1 if there is none. */
static int number_after(const char *name, const char *word, int most)
{
    const char *s = strstr(name, word);
    const size_t n = s ? strspn(s + strlen(word), "0123456789") : 0;
    const int number = n > 0 && n < 8 ? atoi(s + strlen(word)) : -1;

    return number < most ? number : -1;
}

static int kind_of_bucket(const char *name)
{
    const char *end = strrchr(name, '.');

    for (int k = 0; end && k < KINDS; k++)
        if (strcmp(end + 1, kind_names[k]) == 0)
            return k;
    return -1;
}

/* Find the numbers of ranks and buckets. Returns a reason if the names have another form. */
static const char *count_buckets(struct bucket_placing *x)
{
    for (int i = 0; i < x->s->dcp->n; i++) {
        const struct dcp_entry *en = &x->s->dcp->entry[i];
        int rank, bucket;

        if (!torchdist_is_bucket(en->name))
            continue;
        rank = number_after(en->name, bucket_prefix, RANKS_MAX);
        if (!str_starts(en->name, bucket_prefix) || rank < 0)
            return "there are several optimizers, or one of experts";
        x->tp = rank + 1 > x->tp ? rank + 1 : x->tp;
        if (!en->is_tensor)
            continue;
        bucket = number_after(en->name, ".bucket_idx_", BUCKETS_MAX);
        if (number_after(en->name, ".gbuf_idx_", 1) != 0 || bucket < 0 || kind_of_bucket(en->name) < 0 ||
            en->dtype != DTYPE_F32 || en->ndim != 1)
            return arena_fmt(x->s->arena, "%s is not a state of fp32 in a bucket of the only buffer", en->name);
        x->n_buckets = bucket + 1 > x->n_buckets ? bucket + 1 : x->n_buckets;
    }
    return x->n_buckets ? NULL : "there are no buckets";
}

/* Fill in the table of buckets. Returns a reason if one is missing, or if tensor ranks have other lengths. */
static const char *list_buckets(struct bucket_placing *x)
{
    struct source_hit hit;

    x->bucket = arena_alloc(x->s->arena, (size_t)x->tp * (size_t)x->n_buckets * sizeof *x->bucket);
    for (int i = 0; i < x->s->dcp->n; i++) {
        const struct dcp_entry *en = &x->s->dcp->entry[i];
        const int rank = number_after(en->name, bucket_prefix, RANKS_MAX), kind = kind_of_bucket(en->name);
        struct state_bucket *b;

        if (!torchdist_is_bucket(en->name) || !en->is_tensor)
            continue;
        b = &x->bucket[rank * x->n_buckets + number_after(en->name, ".bucket_idx_", BUCKETS_MAX)];
        if (!source_find_entry(x->s, en->name, &hit) || !hit.value || !hit.value->map || b->map[kind] ||
            (b->n_elems && b->n_elems != en->shape[0]))
            return arena_fmt(x->s->arena, "%s cannot be read, or has another length than other states", en->name);
        b->n_elems = en->shape[0];
        b->map[kind] = hit.value->map;
        if (kind == 0)
            b->entry = en;
    }
    for (int i = 0; i < x->tp * x->n_buckets; i++) {
        const struct state_bucket *b = &x->bucket[i];

        if (!b->map[0] || !b->map[1] || !b->map[2])
            return arena_fmt(x->s->arena, "bucket %d of tensor rank %d is missing, or lacks a state",
                             i % x->n_buckets, i / x->n_buckets);
        if (b->n_elems != x->bucket[i % x->n_buckets].n_elems)
            return arena_fmt(x->s->arena, "bucket %d of tensor rank %d has another length than that of rank 0",
                             i % x->n_buckets, i / x->n_buckets);
    }
    return NULL;
}

/* ---- the order of the parameters ---- */

static void add_placed(struct bucket_placing *x, int param, const struct dcp_entry *en, int row)
{
    x->placed[x->n++] = (struct placed_param){ .param = param, .entry = en, .row = row };
}

/* Returns the stack of weights that is stored in the entry, or NULL. */
static const struct source_stack *weight_stack(const struct source *s, const struct dcp_entry *en)
{
    struct source_hit hit;
    const bool found = en->is_tensor && source_find_entry(s, en->name, &hit) && hit.stack;

    return found && (hit.stack->state == STATE_BF16 || hit.stack->state == STATE_FP32) && hit.stack->row ? hit.stack
                                                                                                        : NULL;
}

/* Add layer by layer the parameters of all stacks that have the prefix of the stack in entry `first`. */
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

/* List the parameters in the order of the model. Returns a reason if there is one that has no place in it. */
static const char *order_params(struct bucket_placing *x)
{
    const struct dcp_table *t = x->s->dcp;
    struct names *done = names_new(x->s->arena);
    struct source_hit hit;

    x->placed = arena_alloc(x->s->arena, ((size_t)x->s->n_params + 1) * sizeof *x->placed);
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
    if (x->n != x->s->n_params)
        return arena_fmt(x->s->arena, "the order of %d of the parameters is not known", x->s->n_params - x->n);
    for (int i = 0; i < x->n; i++)
        if (!x->s->param[x->placed[i].param].state[STATE_BF16])
            return arena_fmt(x->s->arena, "parameter %s has no weights of 16 bits, so that its states are in another "
                             "buffer", x->s->param[x->placed[i].param].name);
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

/*
 * Find the parts of the tensor ranks: the chunks of the weight in the order of their places are one for each rank, or
 * two for a gated MLP, or one that all have. Returns a reason if there is another number.
 */
static const char *find_local_parts(const struct bucket_placing *x, struct placed_param *p)
{
    const struct dcp_chunk **c = xcalloc((size_t)p->entry->n_chunks + 1, sizeof *c);
    int n = 0, ndim = p->entry->ndim;
    const char *why = NULL;

    for (int i = 0; i < p->entry->n_chunks; i++) {
        const struct dcp_chunk *k = &p->entry->chunk[i];

        if (p->row >= 0 && k->at[0] <= p->row && k->at[0] + k->len[0] > p->row && k->len[0] != 1)
            why = "chunks of weights have several layers";
        if (p->row < 0 || k->at[0] == p->row)
            c[n++] = k;
    }
    if (!why && n != 1 && n != x->tp && n != 2 * x->tp)
        why = arena_fmt(x->s->arena, "the weight %s has %d chunks, which %d tensor ranks do not share",
                        x->s->param[p->param].name, n, x->tp);
    if (n)
        qsort_r(c, (size_t)n, sizeof *c, by_chunk_place, &ndim);
    p->part = arena_alloc(x->s->arena, (size_t)x->tp * sizeof *p->part);
    for (int t = 0; t < x->tp && !why; t++) {
        struct local_part *part = &p->part[t];

        *part = (struct local_part){ .n_boxes = n == 2 * x->tp ? 2 : 1 };
        for (int b = 0; b < part->n_boxes; b++) {
            part->box[b] = c[n == 1 ? 0 : b * x->tp + t];
            part->n_elems += shape_count(ndim, part->box[b]->len);
        }
        if (part->n_elems != p->part[0].n_elems)
            why = arena_fmt(x->s->arena, "tensor ranks have parts of different sizes of %s",
                            x->s->param[p->param].name);
    }
    free(c);
    return why;
}

/* ---- places ---- */

static int by_number(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

/* Returns the sorted bounds of the bucket's chunks. The caller frees them. */
static int64_t *list_bounds(const struct state_bucket *b, size_t *n)
{
    int64_t *bound = xcalloc((size_t)b->entry->n_chunks * 2 + 1, sizeof *bound);

    *n = 0;
    for (int i = 0; i < b->entry->n_chunks; i++) {
        bound[(*n)++] = b->entry->chunk[i].at[0];
        bound[(*n)++] = b->entry->chunk[i].at[0] + b->entry->chunk[i].len[0];
    }
    qsort(bound, *n, sizeof *bound, by_number);
    return bound;
}

/* Place all parameters by order and alignment. Returns a reason if buckets do not end with a parameter. */
static const char *place_by_order(struct bucket_placing *x)
{
    int bucket = 0;
    int64_t end = 0;

    for (int i = x->n - 1; i >= 0; i--) {
        struct placed_param *p = &x->placed[i];
        const int64_t n = p->part[0].n_elems;

        p->bucket = bucket;
        p->at = (end + ALIGN - 1) / ALIGN * ALIGN;
        end = p->at + n;
        if (bucket == x->n_buckets || end > x->bucket[bucket].n_elems)
            return arena_fmt(x->s->arena, "no placement fits: in the order of the model, parameter %s does not end in "
                             "bucket %d of %d", x->s->param[p->param].name, bucket, x->n_buckets);
        if (end == x->bucket[bucket].n_elems) {
            bucket++;
            end = 0;
        }
    }
    return bucket == x->n_buckets && end == 0
               ? NULL : arena_fmt(x->s->arena, "no placement fits: in the order of the model, the parameters end in "
                                  "bucket %d of %d", bucket, x->n_buckets);
}

/* Returns a reason if a parameter does not begin and end where chunks of its bucket do, on some tensor rank. */
static const char *compare_bounds(const struct bucket_placing *x)
{
    const char *why = NULL;

    for (int b = 0; b < x->tp * x->n_buckets && !why; b++) {
        size_t n;
        int64_t *bound = list_bounds(&x->bucket[b], &n);

        for (int i = 0; i < x->n && !why; i++) {
            const int64_t at = x->placed[i].at, end = at + x->placed[i].part[0].n_elems;

            if (x->placed[i].bucket == b % x->n_buckets &&
                (!bsearch(&at, bound, n, sizeof at, by_number) || !bsearch(&end, bound, n, sizeof end, by_number)))
                why = arena_fmt(x->s->arena, "no placement fits: parameter %s would be at element %" PRId64 " of "
                                "bucket %d, where no chunk begins", x->s->param[x->placed[i].param].name, at,
                                x->placed[i].bucket);
        }
        free(bound);
    }
    return why;
}

/* ---- states ---- */

/* Make the map of a state of one parameter from the buckets of all tensor ranks. Returns a reason if that fails. */
static const char *join_placed(const struct bucket_placing *x, const struct placed_param *p, int kind,
                               struct tmap **map)
{
    const struct param *of = &x->s->param[p->param];
    const int skip = p->row >= 0;
    struct tile_part *part = xcalloc((size_t)x->tp * 2, sizeof *part);
    const char *why = NULL;
    int n = 0;

    for (int t = 0; t < x->tp; t++) {
        const struct tmap *m = x->bucket[t * x->n_buckets + p->bucket].map[kind];
        uint64_t at = (uint64_t)p->at * sizeof(float);

        for (int b = 0; b < p->part[t].n_boxes; b++) {
            const struct dcp_chunk *box = p->part[t].box[b];
            const uint64_t len = (uint64_t)shape_count(p->entry->ndim, box->len) * sizeof(float);
            /* two parts, so that the result is one slice of extents */
            const struct tmap *cut = tmap_parts(x->s->arena, (const struct tmap_part[]){ { m, at, len },
                                                                                        { m, at + len, 0 } }, 2);

            part[n] = (struct tile_part){ .ndim = of->ndim, .rank = t, .n_extents = cut->slice[0].n_extents,
                                          .extent = cut->slice[0].extent };
            for (int d = 0; d < of->ndim; d++) {
                part[n].at[d] = box->at[d + skip];
                part[n].len[d] = box->len[d + skip];
            }
            at += len;
            n++;
        }
    }
    *map = tile_join(x->s->arena, &(struct tile_tensor){ DTYPE_F32, of->ndim, of->shape }, part, n, &why);
    free(part);
    return why;
}

/* Returns a reason if the first masters of a parameter, rounded, are not its weights. */
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

/* Make the maps of all states, and set them if none of them fails. Returns a reason if one does. */
static const char *set_bucket_states(const struct bucket_placing *x, bool compare)
{
    struct tmap **map = arena_alloc(x->s->arena, ((size_t)x->n * KINDS + 1) * sizeof(*map));
    const char *why = NULL;

    for (int i = 0; i < x->n && !why; i++) {
        for (int k = 0; k < KINDS && !why; k++)
            why = join_placed(x, &x->placed[i], k, &map[i * KINDS + k]);
        if (!why && compare)
            why = compare_masters(x, &x->s->param[x->placed[i].param], map[i * KINDS]);
    }
    for (int i = 0; i < x->n * KINDS && !why; i++)
        x->s->param[x->placed[i / KINDS].param].state[kind_state[i % KINDS]] = map[i];
    return why;
}

/* ---- settings ---- */

/* Returns the value in this object of a tensor rank, which is the only item of a list, or NULL. *name: its name. */
static const struct pk *find_rank_object(const struct bucket_placing *x, int t, const char *what, const char **name)
{
    const struct pk *tree = NULL;
    uint32_t n = 0;
    struct pk **item;

    *name = arena_fmt(x->s->arena, "%s%d.%s/shard_0_1", bucket_prefix, t, what);
    for (int i = 0; i < x->s->n_values && !tree; i++)
        if (strcmp(x->s->value[i].name, *name) == 0)
            tree = x->s->value[i].tree;
    item = tree ? pk_items(tree, &n) : NULL;
    return item && n == 1 ? item[0] : NULL;
}

/*
 * Compare the lengths of buckets that a tensor rank's object lists, [{(types): [length, ...]}], with the buckets.
 * Lengths with padding may be larger. Returns a reason if they differ.
 */
static const char *compare_lengths(const struct bucket_placing *x, int t, const char *what, bool padded)
{
    const char *name;
    uint32_t n = 0, n_pairs = 0;
    struct pk **item = pk_items(find_rank_object(x, t, what, &name), &n);
    struct pk **pair = item && n == 1 ? pk_pairs(item[0], &n_pairs) : NULL;
    struct pk **length = pair && n_pairs == 1 ? pk_items(pair[1], &n) : NULL;

    if (!length || n != (uint32_t)x->n_buckets)
        return arena_fmt(x->s->arena, "%s is missing, or does not list the lengths of %d buckets", name, x->n_buckets);
    for (int b = 0; b < x->n_buckets; b++) {
        const int64_t have = x->bucket[t * x->n_buckets + b].n_elems;
        int64_t stated = -1;

        pk_as_int(length[b], &stated);
        if (padded ? stated < have : stated != have)
            return arena_fmt(x->s->arena, "%s states %" PRId64 " elements for bucket %d, which has %" PRId64, name,
                             stated, b, have);
    }
    return NULL;
}

/* Find the settings, which each tensor rank has. Returns a reason if they differ or are missing. */
static const char *find_bucket_settings(const struct bucket_placing *x, const struct pk **optimizer)
{
    *optimizer = NULL;
    for (int t = 0; t < x->tp; t++) {
        const char *name;
        const struct pk *own = find_rank_object(x, t, "optimizer", &name);

        if (!pk_get(own, "param_groups"))
            return arena_fmt(x->s->arena, "%s does not have the settings of the optimizer", name);
        if (*optimizer && !pk_same_text(*optimizer, own))
            return "tensor ranks have different settings of the optimizer";
        *optimizer = own;
    }
    return NULL;
}

/* Remove the entries of the buckets from the table and from the values. */
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

const char *torchdist_place_buckets(struct source *s, bool compare, const struct pk **optimizer)
{
    struct bucket_placing x = { .s = s };
    const int64_t stages = pk_int_or(pk_get(s->run.args, "pipeline_model_parallel_size"), 1);
    const char *why = stages > 1 ? "with several pipeline ranks, its buckets are those of stages" : NULL;

    if (!why)
        why = count_buckets(&x);
    if (!why)
        why = list_buckets(&x);
    for (int t = 0; t < x.tp && !why; t++)
        why = compare_lengths(&x, t, "per_bucket_numel_unpadded", false);
    for (int t = 0; t < x.tp && !why; t++)
        why = compare_lengths(&x, t, "per_bucket_numel", true);
    if (!why)
        why = order_params(&x);
    for (int i = 0; i < x.n && !why; i++)
        why = find_local_parts(&x, &x.placed[i]);
    if (!why)
        why = place_by_order(&x);
    if (!why)
        why = compare_bounds(&x);
    if (!why)
        why = find_bucket_settings(&x, optimizer);
    if (!why)
        why = set_bucket_states(&x, compare);
    if (!why)
        remove_buckets(s);
    return why;
}
