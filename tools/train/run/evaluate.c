/*
 * evaluate.c - evaluate validation and test sets, and write logits
 */
#include "tools/train/run/evaluate.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/tensor.h"
#include "libcommon/format/npy.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/network/pipeline_schedule.h"
#include "tools/train/run/batches.h"
#include "tools/train/run/show.h"
#include "tools/train/run/trainer.h"

/*
 * All tensor ranks of the last stage have the same loss. Only the first rank of each tensor group adds it to the sum.
 */
void evaluate_loss_fetch(struct trainer *t)
{
    *t->network.loss = 0;
    if (t->network.stage->last && t->ranks.rank_tp == 0)
        t->k->dev->copy(t->network.loss, model_loss(t->network.model), sizeof *t->network.loss, NULL);
}

double evaluate_loss_mean(const struct trainer *t, int64_t micro_batches)
{
    return *t->network.loss / (double)micro_batches / t->ranks.topo.dp;
}

/*
 * Evaluate one set: eval_iters batches, each with as many micro-batches as the last training step. *loss receives the
 * mean loss.
 */
static int evaluate(struct trainer *t, struct evaluate_set *v, double *loss, struct err *e)
{
    const struct run_network *net = &t->network;
    const int64_t batch = t->progress.micro_batches * t->o.micro_batch_size * t->ranks.topo.dp;
    double sum = 0;

    for (int64_t i = 0; i < t->o.eval_iters; i++) {
        batches_begin(net->batches, v->data, v->at, (int)t->progress.micro_batches, 1);
        if (pipeline_eval(net->pipeline, (int)t->progress.micro_batches, NULL, e) < 0)
            return -1;
        evaluate_loss_fetch(t);
        /*
         * Wait with comm_sync(), so that the watch measures how long this rank waits for other stages and tensor ranks.
         * If there is only one rank, comm_sync() does not wait for its GPU, so stream_sync() does.
         */
        if (comm_sync(comm_world_group(t->ranks.world), NULL, e) < 0)
            return -1;
        t->k->dev->stream_sync(NULL);
        if (comm_host_all_reduce(comm_world_group(t->ranks.world), net->loss, 1, DTYPE_F64, COMM_SUM, e) < 0 ||
            t->k->dev->check(e) < 0)
            return -1;
        v->at += batch;
        sum += evaluate_loss_mean(t, t->progress.micro_batches);
    }
    *loss = sum / (double)t->o.eval_iters;
    return 0;
}

int evaluate_all(struct trainer *t, struct evaluate_set *set, int n, const char *where, bool count, struct err *e)
{
    struct run_progress *p = &t->progress;
    struct strbuf sb = {0};

    show_phase(t, "valid");
    for (int i = 0; i < n; i++) {
        const struct trainlog_step step = {
            .iteration = p->iteration, .samples = p->consumed_samples, .tokens = p->consumed_tokens,
            .gigaflos = p->gigaflos,
        };
        double loss;

        if (evaluate(t, &set[i], &loss, e) < 0)
            return -1;
        if (count)
            p->consumed_valid_samples += t->o.eval_iters * p->micro_batches * t->o.micro_batch_size * t->ranks.topo.dp;
        if (!trainer_is_rank0(t))
            continue;
        trainlog_add_valid(&sb, set[i].name, where, loss);
        trainlog_flush(t->log.lines, &sb);
        trainlog_tb_valid(t->log.events, &t->o, &step, set[i].name, loss);
    }
    strbuf_free(&sb);
    show_phase(t, "train");
    return 0;
}

/* ---- logits ---- */

struct logits {
    struct trainer *t;
    char *part;                 /* this rank's logits, of type T, [m, V / tp] */
    int64_t v;
};

static void store_logit_chunk(void *ctx, int64_t row0, int64_t rows, const void *logits)
{
    struct logits *x = ctx;
    const int64_t row = x->v * dtype_size(x->t->shape.weights);

    x->t->k->dev->copy(x->part + row0 * row, logits, (uint64_t)(rows * row), NULL);
    x->t->k->dev->stream_sync(NULL);
}

/* Combine the parts of all tensor ranks into logits fp32 [m, V]. The caller frees the result. */
static float *merge_logit_parts(struct logits *x, const char *all, int64_t m)
{
    const int tp = x->t->ranks.topo.tp, size = dtype_size(x->t->shape.weights);
    float *out = xmalloc((size_t)(m * x->v * tp) * sizeof *out);

    for (int r = 0; r < tp; r++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < x->v; j++)
                out[i * x->v * tp + r * x->v + j] =
                    (float)dtype_value(x->t->shape.weights, all + ((r * m + i) * x->v + j) * size);
    return out;
}

/* Write a file in the format .npy, with its header and its values. */
static int write_npy(const char *path, enum dtype dt, int ndim, const int64_t *shape, const void *data, struct err *e)
{
    struct strbuf sb = {0};
    int rc;

    npy_header(&sb, dt, ndim, shape);
    strbuf_add(&sb, data, (size_t)shape_bytes(ndim, shape, dt));
    rc = file_replace(path, sb.buf, sb.len, e);
    strbuf_free(&sb);
    return rc;
}

static int write_logits(struct trainer *t, const struct micro_batch *mb, const float *logits, int64_t V, struct err *e)
{
    struct run_network *net = &t->network;
    const int64_t b = net->model_opts.b, s = net->model_opts.s;
    const int64_t shape[3] = { b, s, V };
    const size_t n = (size_t)(b * s);
    char *name = str_fmt("%s.tokens.npy", t->o.dump_logits);
    int32_t *tokens = xmalloc(n * sizeof *tokens);
    int rc;

    t->k->dev->copy(tokens, mb->tokens, n * sizeof *tokens, NULL);
    t->k->dev->stream_sync(NULL);
    rc = write_npy(t->o.dump_logits, DTYPE_F32, 3, shape, logits, e);
    if (rc == 0)
        rc = write_npy(name, DTYPE_I32, 2, shape, tokens, e);
    free(tokens);
    free(name);
    return rc;
}

int evaluate_dump_logits(struct trainer *t, struct err *e)
{
    const struct run_network *net = &t->network;
    const int64_t m = (int64_t)net->model_opts.b * net->model_opts.s, v = t->shape.config.vocab / t->ranks.topo.tp;
    const size_t part = (size_t)(m * v) * (size_t)dtype_size(t->shape.weights);
    struct logits x = { t, net->stage->last ? xmalloc(part) : NULL, v };
    char *all = x.part ? xmalloc(part * (size_t)t->ranks.topo.tp) : NULL;
    struct micro_batch mb;
    int rc = 0;

    if (t->sets.n_valid == 0) {
        err_usage(e, "--dump-logits needs validation data, and --eval-iters above 0");
        return -1;
    }
    batches_begin(net->batches, t->sets.valid[0].data, t->sets.valid[0].at, 1, 1);
    model_set_logits_callback(net->model, store_logit_chunk, &x);
    if (pipeline_eval(net->pipeline, 1, NULL, e) < 0)
        return -1;
    model_set_logits_callback(net->model, NULL, NULL);
    if (x.part && comm_host_all_gather(t->ranks.tp, x.part, all, part, e) < 0)
        return -1;
    if (x.part && t->ranks.rank_tp == 0 && t->ranks.rank_dp == 0) {
        float *logits = merge_logit_parts(&x, all, m);

        rc = batches_get(net->batches, 0, 0, &mb, e) < 0 ? -1 : write_logits(t, &mb, logits, v * t->ranks.topo.tp, e);
        free(logits);
    }
    free(all);
    free(x.part);
    return rc;
}
