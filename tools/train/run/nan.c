/*
 * nan.c - find the first tensor with a value that is not finite
 *
 * The tensors are searched in the order in which a step computes them: first the weights, then the activations that the
 * forward pass of the last micro-batch has left, then the loss of all micro-batches, then the gradients. Every rank
 * searches its own tensors, and the earliest finding of all ranks is reported.
 */
#include "tools/train/run/nan.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/cli/cli.h"
#include "tools/train/network/model_impl.h"
#include "tools/train/run/trainer.h"

enum { CHUNK = 1 << 16 };

/* Returns the number of values in device memory that are not finite. *first receives the index of the first one. */
static int64_t count_bad(const struct trainer *t, const void *p, int64_t n, enum dtype dt, int64_t *first)
{
    const int size = dtype_size(dt);
    char *host = xmalloc((size_t)CHUNK * (size_t)size);
    int64_t bad = 0;

    for (int64_t at = 0; at < n; at += CHUNK) {
        int64_t m = n - at < CHUNK ? n - at : CHUNK;

        t->k->dev->copy(host, (const char *)p + at * size, (uint64_t)(m * size), NULL);
        t->k->dev->stream_sync(NULL);
        for (int64_t i = 0; i < m; i++)
            if (!isfinite(dtype_value(dt, host + i * size)) && bad++ == 0)
                *first = at + i;
    }
    free(host);
    return bad;
}

/*
 * A tensor with a value that is not finite. Of several such tensors, the one with the smallest `order` was computed
 * first. The struct contains no pointers and is gathered from all ranks as bytes.
 */
struct culprit {
    int32_t order, pad;
    int64_t element;
    char kind[16], name[112];
};

struct dump {
    const struct trainer *t;
    struct strbuf sb;
    int n;
    struct culprit first;
};

/*
 * Returns the position of a tensor in the order of computation. Activations are computed from the embedding to the
 * head, gradients from the head to the embedding.
 */
static int32_t tensor_compute_order(const struct dump *d, const char *kind, const char *name, int block)
{
    const int last = (int)d->t->shape.config.n_layers + 1;
    const struct stage *g = d->t->network.stage;
    /*
     * Parameters outside of blocks that are used after the last block. On the last stage these include the tied copy of
     * the embedding, which is the output head.
     */
    const bool after_blocks = str_starts(name, "after the last") ||
                        ((g->norm || g->last) && (!g->first || !str_starts(name, "tied_modules")));
    const int place = block >= 0 ? block + 1 : after_blocks ? last : 0;

    if (!strcmp(kind, "weight"))
        return place;
    if (!strcmp(kind, "activation"))
        return last + 1 + place;
    return !strcmp(kind, "loss") ? 2 * (last + 1) : 2 * (last + 1) + 1 + last - place;
}

struct nan_tensor {
    const char *kind, *name;
    int block;                  /* number of the block; -1: the tensor is not in a block */
    const void *p;              /* address in device memory, or NULL */
    int64_t n;
    enum dtype dt;
};

/* Search one tensor for values that are not finite. If there are any, add a line to the dump. */
static void search_tensor(struct dump *d, struct nan_tensor x)
{
    int64_t first = 0, bad = x.p ? count_bad(d->t, x.p, x.n, x.dt, &first) : 0;
    const int32_t order = bad ? tensor_compute_order(d, x.kind, x.name, x.block) : INT_MAX;

    if (bad && order < d->first.order) {
        d->first.order = order;
        d->first.element = first;
        snprintf(d->first.kind, sizeof d->first.kind, "%s", x.kind);
        if (strcmp(x.kind, "activation") || x.block < 0)
            snprintf(d->first.name, sizeof d->first.name, "%s", x.name);
        else
            snprintf(d->first.name, sizeof d->first.name, "%s of block %d", x.name, x.block);
    }
    if (bad)
        strbuf_addf(&d->sb, "%s\n  {\"kind\": \"%s\", \"name\": \"%s\", \"block\": %d, \"elements\": %lld, "
                    "\"not_finite\": %lld, \"first\": %lld}", d->n++ ? "," : "", x.kind, x.name, x.block,
                    (long long)x.n, (long long)bad, (long long)first);
}

static void search_block_tensors(struct dump *d, const struct model *m, int slot, int i)
{
    const struct model_block *a = &m->slot[slot].block[i];
    const int block = m->stage->first_block + i;
    const enum dtype dt = m->opts.t;

    search_tensor(d, (struct nan_tensor){ "activation", "block input", block, a->input, m->own_rows * m->hidden, dt });
    /*
     * With full recomputation, only the inputs of the blocks are stored. All blocks share their other buffers, which
     * contain the values of the block that used them last.
     */
    if (m->opts.recompute == RECOMPUTE_FULL)
        return;
    search_tensor(
        d, (struct nan_tensor){ "activation", "query_key_value", block, a->qkv, m->rows * 3 * m->heads_width, dt });
    search_tensor(
        d, (struct nan_tensor){ "activation", "attention output", block, a->attended, m->rows * m->heads_width, dt });
    search_tensor(
        d, (struct nan_tensor){ "activation", "after attention", block, a->middle, m->own_rows * m->hidden, dt });
    search_tensor(d, (struct nan_tensor){ "activation", "mlp before gelu", block, a->gelu_in, m->rows * m->ffn, dt });
}

static void search_all_tensors(struct dump *d)
{
    const struct trainer *t = d->t;
    const struct run_shape *s = &t->shape;
    const struct run_network *net = &t->network;
    const struct stage *g = net->stage;
    const int slot = (int)((t->progress.micro_batches - 1) % net->model_opts.n_slots);
    const enum dtype grads = run_network_grads(net);

    for (int i = 0; i < g->n_params; i++)
        search_tensor(d, (struct nan_tensor){ "weight", g->param[i].name, g->param[i].block,
                                     (char *)net->state.weights + g->param[i].at * dtype_size(s->weights),
                                     g->param[i].n, s->weights });
    for (int i = 0; i < g->n_blocks; i++)
        search_block_tensors(d, net->model, slot, i);
    if (g->norm)
        search_tensor(d, (struct nan_tensor){ "activation", "after the last block", -1, model_output(net->model, slot),
                                     model_boundary(g, &net->model_opts), s->weights });
    if (g->last)
        search_tensor(d, (struct nan_tensor){ "loss", "of the micro-batches", -1, model_loss(net->model), 1,
                                              DTYPE_F64 });
    for (int i = 0; i < g->n_params; i++)
        search_tensor(d, (struct nan_tensor){ "gradient", g->param[i].name, g->param[i].block,
                                     (char *)net->state.grads + g->param[i].at * dtype_size(grads), g->param[i].n,
                                     grads });
}

static void write_dump(const struct trainer *t, const struct strbuf *sb)
{
    char *path = str_fmt("%s/nan_iteration%lld.rank%d.json", t->o.save, (long long)t->progress.iteration + 1,
                         t->ranks.place->rank);
    struct err e = {0};

    if (dir_make(t->o.save, &e) < 0 || file_replace(path, sb->buf, sb->len, &e) < 0)
        cli_printf(stderr, "%s: %s\n", cli_typed_name("train"), e.msg);
    free(path);
}

/* Append a text about the earliest finding of all ranks. */
static int name_first(struct trainer *t, const struct culprit *mine, struct strbuf *sb, struct err *e)
{
    const int size = t->ranks.place->size;
    struct culprit *all = xcalloc((size_t)size, sizeof *all);
    int rc = comm_host_all_gather(comm_world_group(t->ranks.world), mine, all, sizeof *mine, e), first = 0;

    for (int r = 1; rc == 0 && r < size; r++)
        if (all[r].order < all[first].order)
            first = r;
    if (rc == 0 && all[first].order < INT_MAX) {
        strbuf_addf(sb, "; it began with ");
        if (!strcmp(all[first].kind, "loss"))
            strbuf_addf(sb, "the loss");
        else
            strbuf_addf(sb, "element %lld of %s %s", (long long)all[first].element, all[first].kind, all[first].name);
        strbuf_addf(sb, " on rank %d (host %s)", first, comm_place_of(t->ranks.world, first)->host);
        t->failure.culprit = first + 1;
        snprintf(t->failure.tensor, sizeof t->failure.tensor, "%s", all[first].name);
    }
    free(all);
    return rc;
}

int nan_report_first(struct trainer *t, double norm, double loss, struct err *e)
{
    const struct run_ranks *r = &t->ranks;
    struct dump d = { .t = t, .first = { .order = INT_MAX } };
    struct strbuf first = {0};
    char least[80] = "";
    int rc;

    strbuf_addf(&d.sb, "{\"iteration\": %lld, \"rank\": %d, \"stage\": %d, \"dp\": %d, \"tp\": %d, \"loss\": \"%g\", "
                "\"grad_norm\": \"%g\", \"not_finite\": [", (long long)t->progress.iteration + 1, r->place->rank,
                r->rank_pp, r->rank_dp, r->rank_tp, loss, norm);
    search_all_tensors(&d);
    strbuf_addf(&d.sb, "]}\n");
    if (t->o.save)
        write_dump(t, &d.sb);
    rc = name_first(t, &d.first, &first, e);
    if (t->shape.weights == DTYPE_F16)
        snprintf(least, sizeof least, "the loss scale is already at its minimum of %g, and ", t->progress.scale.min);
    if (rc == 0)
        err_data(e, "training", ERR_NO_BYTE, "iteration %lld: %sthe gradient norm is %g, the loss %g; expected finite "
                 "numbers%s%s", (long long)t->progress.iteration + 1, least, isnan(norm) ? (double)NAN : norm,
                 isnan(loss) ? (double)NAN : loss, first.buf ? first.buf : "",
                 t->o.save ? "; see nan_iteration*.json in the folder of --save" : "");
    strbuf_free(&first);
    strbuf_free(&d.sb);
    return rc;
}
