/*
 * Ten steps in fp16 from the reference's step 20, losses, norms and scales against its log.
 *
 * The reference's run did not average gradients over data parallelism: each of its two data-parallel ranks updated
 * the part of the parameters that it owns with the gradients of its own samples. That this is all the difference
 * is shown by doing so here: one rank makes both sets of gradients, and of each element takes the owner's. (The
 * trainer averages; tests/golden/train_fp16.sh has what that is worth.) What is then left is the order of sums.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/files.h"
#include "libcommon/model/schedule_lr.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/network/optimizer.h"
#include "tools/train/network/pipeline.h"
#include "tools/train/run/batches.h"

enum { TP = 2, PP = 2, DP = 2, S = 128, BATCH = 16, FIRST = 21, LAST = 30 };

static struct comm_world *world;
static const struct kernels *k;

static void must(bool ok, const struct err *e)
{
    if (!ok)
        fail_msg("%s", e->msg);
}

/* ---- who owned what ---- */

/* Of one stage of the reference: its parameters as it flattened them, by the number they have in the model. */
struct flat {
    struct stage *g;
    int n;
    struct { int group; int64_t first; } *of;           /* by id; group -1: not here */
    int64_t partition[3];
};

static int by_id(const void *a, const void *b)
{
    return (*(const struct stage_param *const *)a)->id - (*(const struct stage_param *const *)b)->id;
}

/* Three groups: the decaying ones in two halves by number, then the others; each in parts for the ranks. */
static void flatten(struct flat *f, const struct model_config *m, int pp, const int *blocks)
{
    const struct stage_param **list;
    int64_t sum[3] = { 0 };
    int n_decay = 0, seen = 0;

    f->g = stage_new(m, (struct topology){ TP, PP, DP }, pp, 0, 0, blocks);
    f->n = f->g->n_ids;
    f->of = calloc((size_t)f->n, sizeof *f->of);
    list = malloc((size_t)f->g->n_params * sizeof *list);
    for (int i = 0; i < f->n; i++)
        f->of[i].group = -1;
    for (int i = 0; i < f->g->n_params; i++) {
        list[i] = &f->g->param[i];
        n_decay += list[i]->decays;
    }
    qsort(list, (size_t)f->g->n_params, sizeof *list, by_id);
    for (int i = 0; i < f->g->n_params; i++) {
        int group = !list[i]->decays ? 2 : seen++ >= n_decay / 2;

        f->of[list[i]->id].group = group;
        f->of[list[i]->id].first = sum[group];
        sum[group] += list[i]->n;
    }
    for (int i = 0; i < 3; i++)
        f->partition[i] = (sum[i] + 2 * DP - 1) / (2 * DP) * (2 * DP) / DP;
    free(list);
}

/* The data-parallel rank that owned element `at` of a merged parameter. */
static int owner(const struct flat *stage, const struct stage_param *p, int64_t at)
{
    const struct flat *f = stage[0].of[p->id].group >= 0 ? &stage[0] : &stage[1];
    const int64_t columns = p->ndim == 2 ? p->shape[1] : 1, slice = p->shape[0] * columns / TP;
    int64_t in_slice = at;

    if (p->merge == MERGE_CAT1)
        in_slice = at / columns * (columns / TP) + at % columns % (columns / TP);
    else if (p->split)
        in_slice = at % slice;
    return (int)((f->of[p->id].first + in_slice) / f->partition[f->of[p->id].group]);
}

/* ---- the run ---- */

struct run {
    struct checkpoint *c;
    struct stage *g;
    struct stage_state st;
    struct model *m;
    struct pipeline *p;
    struct optimizer *o;
    struct batches *batches[DP];
    struct dataset *data;
    int d;                              /* whose samples come */
    struct flat flat[PP];
    uint16_t *grads[DP], *head[DP];     /* what each rank made */
    int64_t n_head;
};

static int get(void *ctx, int i, int slot, struct micro_batch *mb, struct err *e)
{
    struct run *r = ctx;

    return batches_get(r->batches[r->d], i, slot, mb, e);
}

static void open_data(struct run *r)
{
    const struct dataset_opts o = { .n_samples = 1200, .s = S, .seed = 42, .cut = 0.95,
                                    .index_dir = "tests/data/text" };
    char prefix[] = "tests/data/text/text_document";
    char *paths[] = { prefix };
    struct data_groups groups = { 0 };
    struct err e = { 0 };
    double share[3];

    must(data_parse_split("949,50,1", share, &e) == 0 && data_add_paths(&groups, 1, paths, share, 0, &e) == 0, &e);
    must(dataset_open(&groups.group[0], &o, &r->data, &e) == 0, &e);
    data_groups_free(&groups);
    for (int d = 0; d < DP; d++) {
        const struct batches_opts bo = { .b = 1, .s = S, .dp = DP, .d = d, .n_slots = 1, .vocab = r->g->model.vocab,
                                         .eod = -1, .watch = comm_watch(world) };

        r->batches[d] = batches_new(k, &bo, &e);
        must(r->batches[d] != NULL, &e);
    }
}

static void open_run(struct run *r)
{
    const struct checkpoint_from from = { .dir = "tests/data/gpt2-fp16-tp2pp2dp2" };
    const struct model_opts mo = { .t = DTYPE_F16, .grad_t = true, .b = 1, .s = S, .n_slots = 1, .eps = 1e-5f };
    const struct optimizer_opts oo = { .t = DTYPE_F16, .grad_t = true, .reduce = DTYPE_F16, .beta1 = 0.9f,
                                       .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1 };
    struct comm *all = comm_world_group(world);
    const struct optimizer_groups groups = { all, all, NULL };
    struct checkpoint_loaded loaded;
    struct report *notes = report_new();
    struct err e = { 0 };
    int blocks;

    must(checkpoint_open(&from, &r->c, notes, &e) == 1, &e);
    blocks = (int)checkpoint_info(r->c)->model.n_layers;
    r->g = stage_new(&checkpoint_info(r->c)->model, (struct topology){ 1, 1, 1 }, 0, 0, 0, &blocks);
    r->st = (struct stage_state){ calloc((size_t)r->g->flat_n, 2), calloc((size_t)r->g->flat_n, 2),
                                  calloc((size_t)r->g->shard_n, 4), calloc((size_t)r->g->shard_n, 4),
                                  calloc((size_t)r->g->shard_n, 4) };
    must(checkpoint_load(r->c, r->g, &r->st, &(struct checkpoint_load_opts){ .weights = DTYPE_F16, .dev = k->dev,
                                                                              .notes = notes }, &loaded, &e) == 0, &e);
    assert_int_equal(loaded.opt_step, 13);
    r->m = model_new(r->g, &r->st, k, all, &mo, &e);
    must(r->m != NULL, &e);
    r->p = pipeline_new(&(struct pipeline_parts){ .stage = r->g, .model = r->m, .kernels = k, .opts = &mo, .group = all,
                                                  .watch = comm_watch(world), .get = get, .ctx = r }, &e);
    must(r->p != NULL, &e);
    r->o = optimizer_new(r->g, &r->st, k, &groups, &oo, &e);
    must(r->o != NULL, &e);
    for (int pp = 0; pp < PP; pp++)
        flatten(&r->flat[pp], &r->g->model, pp, checkpoint_info(r->c)->blocks);
    r->n_head = r->g->model.vocab * r->g->model.hidden;
    for (int d = 0; d < DP; d++) {
        r->grads[d] = malloc((size_t)r->g->flat_n * 2);
        r->head[d] = malloc((size_t)r->n_head * 2);
    }
    open_data(r);
    report_free(notes);
}

static void close_run(struct run *r)
{
    for (int d = 0; d < DP; d++) {
        batches_free(r->batches[d]);
        free(r->grads[d]);
        free(r->head[d]);
    }
    for (int pp = 0; pp < PP; pp++) {
        stage_free(r->flat[pp].g);
        free(r->flat[pp].of);
    }
    dataset_close(r->data);
    optimizer_free(r->o);
    pipeline_free(r->p);
    model_free(r->m);
    free(r->st.weights);
    free(r->st.grads);
    free(r->st.master);
    free(r->st.exp_avg);
    free(r->st.exp_avg_sq);
    stage_free(r->g);
    checkpoint_close(r->c);
}

/* Passes of all ranks, and of each element the gradient of its owner. The mean loss. */
static double passes(struct run *r, int iteration, int64_t consumed, double scale)
{
    struct err e = { 0 };
    double loss = 0;

    for (r->d = 0; r->d < DP; r->d++) {
        batches_begin(r->batches[r->d], r->data, consumed, BATCH / DP, scale);
        must(pipeline_train(r->p, BATCH / DP, iteration, NULL, &e) == 0, &e);
        loss += *model_loss(r->m) / (BATCH / DP) / DP;
        memcpy(r->grads[r->d], r->st.grads, (size_t)r->g->flat_n * 2);
        memcpy(r->head[r->d], model_head_grad(r->m), (size_t)r->n_head * 2);
    }
    for (int i = 0; i < r->g->n_params; i++) {
        const struct stage_param *p = &r->g->param[i];

        for (int64_t j = 0; j < p->n; j++) {
            const int d = owner(r->flat, p, j);

            ((uint16_t *)r->st.grads)[p->at + j] = r->grads[d][p->at + j];
            if (p->role == ROLE_WORD)
                ((uint16_t *)model_head_grad(r->m))[j] = r->head[d][j];
        }
    }
    return loss;
}

static double field(const char *line, const char *name)
{
    const char *at = strstr(line, name);

    if (!at)
        fail_msg("no '%s' in %s", name, line);
    return atof(at + strlen(name));
}

static void compare(char *log, int iteration, double loss, double norm, double scale)
{
    char start[32], *line;

    snprintf(start, sizeof start, " iteration %8d/", iteration);
    line = strstr(log, start);
    assert_non_null(line);
    /* Ten steps of rounding otherwise; printed with seven and four digits. */
    if (!(fabs(loss - field(line, "lm loss: ")) <= 1e-4))
        fail_msg("iteration %d: loss %.6f, the reference's is %.6f", iteration, loss, field(line, "lm loss: "));
    if (!(fabs(norm / field(line, "grad norm: ") - 1) <= 1.5e-3))
        fail_msg("iteration %d: norm %.4f, the reference's is %.3f", iteration, norm, field(line, "grad norm: "));
    assert_true(scale == field(line, "loss scale: "));
}

static void as_the_reference(void **state)
{
    struct run r = { 0 };
    struct err e = { 0 };
    struct schedule_lr lr;
    struct loss_scale scale;
    int64_t consumed, t = 14;
    uint64_t size;
    char *log = file_slurp("tests/data/logs/gpt2-fp16-tp2pp2dp2.log", 1 << 20, &size, &e);

    (void)state;
    must(log != NULL, &e);
    open_run(&r);
    consumed = checkpoint_info(r.c)->consumed_train_samples;
    scale = checkpoint_info(r.c)->scaler;
    lr = (struct schedule_lr){ .max_lr = 2e-3, .min_lr = 2e-4, .warmup_steps = 80, .decay_steps = 1500,
                               .style = DECAY_COSINE, .num_steps = checkpoint_info(r.c)->schedule.num_steps };
    for (int i = FIRST; i <= LAST; i++) {
        const double used = scale.scale, loss = passes(&r, i, consumed, used);
        double norm, none = 0;

        must(optimizer_reduce(r.o, model_head_grad(r.m), &norm, &none, NULL, &e) == 0, &e);
        assert_int_equal(loss_scale_update(&scale, !isfinite(norm)), LOSS_SCALE_GOOD);
        compare(log, i, loss, norm / used, scale.scale);
        must(optimizer_update(r.o, &(struct optimizer_update){ schedule_lr_now(&lr), t++, norm, scale.scale }, NULL,
                              &e) == 0, &e);
        schedule_lr_step(&lr, BATCH, 0);
        consumed += BATCH;
    }
    close_run(&r);
    free(log);
}

static int open_all(void **state)
{
    struct err e = { 0 };
    struct comm_options co = { 0 };
    struct kernel_opts ko = { .threads = 1 };

    (void)state;
    unsetenv("OMPI_COMM_WORLD_SIZE");
    k = kernels_cpu_open(&ko, &e);
    return k && comm_world_open(&co, &world, &e) == 0 ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    kernels_close(k);
    comm_world_close(world);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(as_the_reference) };

    return cmocka_run_group_tests_name("golden_fp16", tests, open_all, close_all);
}
