/*
 * megatron_buffers.c - read distrib_optim.pt, in which a distributed optimizer stores its states end to end
 *
 *   {"buckets_coalesced": True, <buffer>: {(torch.bfloat16, torch.float32): {"param", "exp_avg", "exp_avg_sq": fp32 in
 *    one dimension, "numel_unpadded": n}}}
 *
 * A file is that of one tensor and pipeline rank, and whole over all data ranks. It has no names. A buffer has the
 * parameters of one chunk of the model, the last one first (megatron/core/distributed/param_and_grad_buffer.py). In a
 * bucket, a parameter begins at a multiple of 64 elements from the bucket's begin; a bucket ends with its last
 * parameter, and the next one follows it in the file without a gap. The ends of buckets are not stored. Where both are
 * possible, the parameter's place is the one whose values, rounded, are the weights that the model's file has.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/megatron/megatron.h"

/* PLACED_MAX: maximum number of weights, because each weight of a stage is a level of recursion */
enum { ALIGN = 64, COMPARED = 4096, TRIED_MAX = 1 << 16, PLACED_MAX = 1 << 14 };

static const char *const state_keys[] = { "param", "exp_avg", "exp_avg_sq" };
static const enum state state_of_key[] = { STATE_FP32, STATE_EXP_AVG, STATE_EXP_AVG_SQ };
enum { N_KEYS = sizeof state_keys / sizeof *state_keys };

/* A buffer of a stage: its tensors in the files of all tensor ranks, and the weights whose states it holds. */
struct buffer {
    const struct megatron *x;
    int stage, n_weights, n_found, n_tried;
    const struct megatron_weight **weight;      /* [n_weights]: in the order of the buffer */
    struct pt_tensor *state[N_KEYS];    /* [tp] */
    int64_t *at, *found;                /* [n_weights]: where each weight begins, in elements */
    int64_t n_elems;
    struct err *e;
};

/* ---- places ---- */

/* Read n elements of a contiguous tensor, starting at element `at`. */
static int read_elements(const struct buffer *b, const struct pt_tensor *t, int64_t at, int64_t n, void *out)
{
    const uint64_t size = (uint64_t)dtype_size(t->dtype);
    const struct extent x = { t->record, t->at + (uint64_t)at * size, (uint64_t)n * size };

    return files_read_extent(b->x->s->files, &x, out, b->e);
}

/*
 * Compare the first elements of a weight with the master weights at element `at`, on all tensor ranks. Returns 1 if
 * they are equal when rounded, 0 if not. Returns -1 with *b->e set if a file cannot be read.
 */
static int masters_are_of(const struct buffer *b, const struct megatron_weight *w, int64_t at)
{
    const struct megatron *x = b->x;

    for (int t = 0; t < x->tp; t++) {
        const struct pt_tensor *part = &w->part[t], *m = &b->state[0][t];
        const int64_t n = part->n_elems < COMPARED ? part->n_elems : COMPARED;
        float *master = xcalloc((size_t)n + 1, sizeof *master);
        uint16_t *weight = xcalloc((size_t)n + 1, sizeof *weight);
        int rc = 1;

        if (!part->contiguous || dtype_size(part->dtype) != 2)
            rc = 1;
        else if (read_elements(b, m, at, n, master) < 0 || read_elements(b, part, 0, n, weight) < 0)
            rc = -1;
        for (int64_t i = 0; rc == 1 && i < n; i++)
            if (weight[i] != f32_to_half(part->dtype, master[i]))
                rc = 0;
        free(weight);
        free(master);
        if (rc != 1)
            return rc;
    }
    return 1;
}

/*
 * Place weight number i and all later weights. Weight i - 1 ends at `end`, and its bucket begins at `bucket`. Counts
 * the possible placements in b->n_found, and keeps the first one in b->found. Returns -1 with *b->e set if a file
 * cannot be read.
 */
static int place_weights(struct buffer *b, int i, int64_t bucket, int64_t end)
{
    const int64_t next = bucket + (end - bucket + ALIGN - 1) / ALIGN * ALIGN;

    if (i == b->n_weights) {
        if (end == b->n_elems && b->n_found++ == 0)
            memcpy(b->found, b->at, (size_t)b->n_weights * sizeof *b->at);
        return 0;
    }
    for (int way = 0; way < (next == end ? 1 : 2) && b->n_found < 2; way++) {
        const int64_t at = way ? end : next, n = b->weight[i]->part[0].n_elems;
        int rc = at + n <= b->n_elems && b->n_tried++ < TRIED_MAX;

        if (rc && next != end)
            rc = masters_are_of(b, b->weight[i], at);
        b->at[i] = at;
        if (rc < 0 || (rc && place_weights(b, i + 1, way ? end : bucket, at + n) < 0))
            return -1;
    }
    return 0;
}

/* Place all weights in one bucket. Returns true if the result has the length of the buffer. */
static bool place_as_one_bucket(struct buffer *b)
{
    int64_t end = 0;

    for (int i = 0; i < b->n_weights; i++) {
        b->found[i] = (end + ALIGN - 1) / ALIGN * ALIGN;
        end = b->found[i] + b->weight[i]->part[0].n_elems;
    }
    return end == b->n_elems;
}

/* Find where each weight begins. Returns the reason if that cannot be found. */
static const char *find_places(struct buffer *b)
{
    struct arena *a = b->x->s->arena;

    if (place_as_one_bucket(b))
        return NULL;
    if (b->n_weights > PLACED_MAX)
        return arena_fmt(a, "%d parameters in several buckets are more than are tried", b->n_weights);
    if (place_weights(b, 0, 0, 0) < 0)
        return arena_fmt(a, "%s", b->e->msg);
    if (b->n_tried >= TRIED_MAX)
        return "the buckets can end at more places than are tried";
    if (b->n_found == 0)
        return arena_fmt(a, "no ends of buckets were found with which %d parameters have %" PRId64 " elements and the "
                         "masters are the weights, rounded", b->n_weights, b->n_elems);
    return b->n_found > 1 ? "the buckets can end at several places where the masters are the weights, rounded" : NULL;
}

/* ---- states ---- */

/*
 * Find the tensors of buffer number `index`, which has weights of one dtype, on all tensor ranks. Returns the reason if
 * that fails.
 */
static const char *open_buffer(struct buffer *b, int index)
{
    const struct megatron *x = b->x;

    for (int t = 0; t < x->tp; t++) {
        const struct pt *pt = megatron_pt(x, MEGATRON_DISTRIBUTED, b->stage, t);
        const struct pk *buffer = NULL;
        uint32_t n = 0, n_types = 0;
        struct pk **pair = pt ? pk_pairs(pt_root(pt), &n) : NULL, **type;

        for (uint32_t i = 0; pair && i < n && !buffer; i++)
            if (pair[2 * i]->type == PK_INT && pair[2 * i]->i == index)
                buffer = pair[2 * i + 1];
        type = buffer ? pk_pairs(buffer, &n_types) : NULL;
        if (!type || n_types != 1)
            return type ? "a buffer has parameters of several types" : "distrib_optim.pt has no buffer of this chunk";
        if (!pk_int_or(pk_get(pt_root(pt), "buckets_coalesced"), 0))
            return "distrib_optim.pt is of a release that stores each bucket by itself (no buckets_coalesced)";
        for (int k = 0; k < N_KEYS; k++) {
            struct pt_tensor *v = &b->state[k][t];

            if (!pt_tensor(pt, pk_get(type[1], state_keys[k]), v) || v->dtype != DTYPE_F32 || v->ndim != 1 ||
                !v->contiguous)
                return arena_fmt(x->s->arena, "the buffer has no %s of fp32 in one dimension", state_keys[k]);
            if (v->n_elems != b->state[0][0].n_elems)
                return "the buffer's states, or its tensor ranks, have different lengths";
        }
    }
    b->n_elems = b->state[0][0].n_elems;
    return NULL;
}

/* Join the states of one weight, which begin at element `at` of the buffer. Returns the reason if that fails. */
static const char *join_buffer_states(const struct buffer *b, const struct megatron_weight *w, int64_t at)
{
    const struct megatron *x = b->x;

    for (int k = 0; k < N_KEYS; k++) {
        struct pt_tensor *part = arena_alloc(x->s->arena, (size_t)x->tp * sizeof *part);
        int64_t shape[TENSOR_MAX_DIM];
        const char *why = NULL;
        struct tmap *map;

        for (int t = 0; t < x->tp; t++) {
            part[t] = w->part[t];
            part[t].dtype = DTYPE_F32;
            part[t].contiguous = true;
            part[t].record = b->state[k][t].record;
            part[t].at = b->state[k][t].at + (uint64_t)at * sizeof(float);
            for (int d = part[t].ndim - 1; d >= 0; d--)
                part[t].stride[d] = d + 1 < part[t].ndim ? part[t].stride[d + 1] * part[t].shape[d + 1] : 1;
        }
        map = megatron_join(x, w->cut, part, shape, &why);
        if (!map)
            return why;
        megatron_set_state(x, w, state_of_key[k], map);
    }
    return NULL;
}

/* Read the buffer of one chunk of the stage. Returns the reason if that fails. */
static const char *read_buffer(struct buffer *b, int chunk)
{
    const struct megatron_stage *st = &b->x->stage[b->stage];
    const char *why;

    for (int i = st->n - 1; i >= 0; i--) {
        if (st->weight[i].chunk != chunk)
            continue;
        if (dtype_size(st->weight[i].part[0].dtype) != 2)
            return "the model has parameters of fp32, whose buffer is another one";
        b->weight[b->n_weights++] = &st->weight[i];
    }
    why = open_buffer(b, chunk);
    if (!why)
        why = find_places(b);
    for (int i = 0; i < b->n_weights && !why; i++)
        why = join_buffer_states(b, b->weight[i], b->found[i]);
    return why;
}

bool megatron_read_buffers(const struct megatron *x, int p)
{
    const size_t n = (size_t)x->stage[p].n + 1;
    struct err e = {0};
    const char *why = NULL;

    for (int t = 0; t < x->tp; t++)
        if (!megatron_pt(x, MEGATRON_DISTRIBUTED, p, t))
            return true;                /* has been reported */
    for (int c = 0; c < x->chunks && !why; c++) {
        struct buffer b = { .x = x, .stage = p, .e = &e };

        b.weight = xcalloc(n, sizeof *b.weight);
        b.at = xcalloc(n, sizeof *b.at);
        b.found = xcalloc(n, sizeof *b.found);
        for (int k = 0; k < N_KEYS; k++)
            b.state[k] = xcalloc((size_t)x->tp, sizeof *b.state[k]);
        why = read_buffer(&b, c);
        for (int k = 0; k < N_KEYS; k++)
            free(b.state[k]);
        free(b.found);
        free(b.at);
        free(b.weight);
    }
    return why ? megatron_refuse_optimizer(x, megatron_pt(x, MEGATRON_DISTRIBUTED, p, 0), why) : true;
}
