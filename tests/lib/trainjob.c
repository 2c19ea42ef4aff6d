#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/check/verify.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"
#include "tests/lib/ptdiff.h"
#include "tests/lib/ranks.h"
#include "tests/lib/trainjob.h"

void job_must(int ok, const struct err *e)
{
    if (!ok)
        fail_msg("%s", e->msg);
}

/* ---- devices ---- */

static void *mem_alloc(uint64_t n, struct err *e)
{
    (void)e;
    return xcalloc(1, n + 1);
}

static void mem_copy(void *dst, const void *src, uint64_t n, struct dev_stream *s)
{
    (void)s;
    memcpy(dst, src, n);
}

static void mem_zero(void *dst, uint64_t n, struct dev_stream *s)
{
    (void)s;
    memset(dst, 0, n);
}

static void mem_sync(struct dev_stream *s)
{
    (void)s;
}

static int mem_check(struct err *e)
{
    (void)e;
    return 0;
}

static struct dev_stream *no_stream(void) { return NULL; }
static struct dev_event *no_event(void) { return NULL; }
static void no_event_free(struct dev_event *v) { (void)v; }

static void no_event_record(struct dev_event *v, struct dev_stream *s)
{
    (void)v;
    (void)s;
}

static void no_wait(struct dev_stream *s, struct dev_event *v)
{
    (void)s;
    (void)v;
}

#define MEMORY_DEVICE                                                                                               \
    .alloc = mem_alloc, .free = free, .alloc_host = mem_alloc, .free_host = free, .copy = mem_copy,                 \
    .zero = mem_zero, .stream_new = no_stream,                                                                      \
    .stream_free = mem_sync, .stream_sync = mem_sync, .event_new = no_event, .event_free = no_event_free,           \
    .event_record = no_event_record, .stream_wait = no_wait, .check = mem_check
const struct dev_ops job_host = { .name = "cpu", MEMORY_DEVICE };
const struct dev_ops job_other = { .name = "other", MEMORY_DEVICE };

/* ---- all ranks of a job ---- */

void job_new(struct job *j, const struct model_config *m, struct topology topo, const int *blocks,
             enum dtype weights)
{
    *j = (struct job){ .topo = topo, .weights = weights, .n = topo_world(topo) };
    assert_true(j->n <= JOB_RANKS_MAX && topo.pp <= JOB_RANKS_MAX);
    memcpy(j->blocks, blocks, (size_t)topo.pp * sizeof *blocks);
    for (int i = 0; i < j->n; i++) {
        struct rank *r = &j->rank[i];
        size_t flat, shard;

        r->s = stage_new(m, topo, i / topo.tp / topo.dp, i / topo.tp % topo.dp, i % topo.tp, blocks);
        flat = (size_t)r->s->flat_n;
        shard = (size_t)r->s->shard_n;
        r->st = (struct stage_state){ .weights = xcalloc(flat, 4), .grads = xcalloc(flat, 4),
                                      .master = xcalloc(shard, 4), .exp_avg = xcalloc(shard, 4),
                                      .exp_avg_sq = xcalloc(shard, 4) };
        /* Fill the buffers, so that their earlier contents cannot produce correct results. */
        memset(r->st.weights, 0x7f, flat * 4);
        memset(r->st.master, 0x7f, shard * 4);
        memset(r->st.exp_avg, 0x7f, shard * 4);
        memset(r->st.exp_avg_sq, 0x7f, shard * 4);
    }
}

void job_free(struct job *j)
{
    for (int i = 0; i < j->n; i++) {
        struct rank *r = &j->rank[i];

        checkpoint_saver_free(r->saver);
        writer_end(r->w);
        stage_free(r->s);
        free(r->st.weights);
        free(r->st.grads);
        free(r->st.master);
        free(r->st.exp_avg);
        free(r->st.exp_avg_sq);
    }
    if (j->world)
        comm_world_close(j->world);
}

static void *start_writers(void *job)
{
    struct job *j = job;
    struct err *e = xcalloc(1, sizeof *e);

    for (int i = 0; i < j->n; i++)
        if (!(j->rank[i].w = writer_start(e)))
            return e;
    free(e);
    return NULL;
}

void *job_in_thread(void *(*fn)(void *), void *arg)
{
    pthread_t thread;
    void *result;

    assert_int_equal(pthread_create(&thread, NULL, fn, arg), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    return result;
}

void job_writers(struct job *j)
{
    struct err *failed = job_in_thread(start_writers, j);

    job_must(failed == NULL, failed);
}

int job_load(struct job *j, struct checkpoint *c, const struct checkpoint_load_opts *o, struct report *notes,
             struct checkpoint_loaded *out, struct err *e)
{
    struct checkpoint_load_opts told = *o;

    told.notes = notes;
    for (int i = 0; i < j->n; i++)
        if (checkpoint_load(c, j->rank[i].s, &j->rank[i].st, &told, out, e) < 0)
            return -1;
    return 0;
}

void job_savers(struct job *j, const struct checkpoint_saver_opts *like, const char *dir, struct report *notes)
{
    const struct comm_options alone = {0};
    struct err e = {0};

    ranks_clear_env();
    if (!j->world)
        job_must(comm_world_open(&alone, &j->world, &e) == 0, &e);
    for (int i = 0; i < j->n; i++) {
        struct checkpoint_saver_opts o = *like;

        o.dir = dir;
        o.stage = j->rank[i].s;
        o.state = &j->rank[i].st;
        o.blocks = j->blocks;
        o.weights = j->weights;
        if (!o.dev)
            o.dev = &job_host;
        o.writer = j->rank[i].w;
        o.world = o.tp = comm_world_group(j->world);
        o.watch = comm_watch(j->world);
        o.local_rank = topo_rank(j->topo, o.stage->pp, 0, o.stage->tp) % 8;
        j->rank[i].saver = checkpoint_saver_new(&o, notes, &e);
        job_must(j->rank[i].saver != NULL, &e);
    }
}

void job_start_save(struct job *j, const struct checkpoint_now *now)
{
    struct err e = {0};

    for (int i = 0; i < j->n; i++)
        job_must(checkpoint_save(j->rank[i].saver, now, &e) == 0, &e);
}

struct checkpoint_saved job_wait(struct job *j)
{
    struct checkpoint_saved out[JOB_RANKS_MAX];
    struct err e = {0};

    for (int i = 0; i < j->n; i++)
        job_must(checkpoint_save_wait(j->rank[i].saver, &out[i], &e) == 0, &e);
    return out[0];
}

void job_save(struct job *j, const struct checkpoint_now *now)
{
    struct checkpoint_saved out;

    job_start_save(j, now);
    out = job_wait(j);
    job_must(out.outcome == SAVE_COMPLETE, &out.err);
}

/* ---- the state recorded in a checkpoint, as input of the next save ---- */

struct checkpoint_now job_now_of(const struct checkpoint_info *i)
{
    return (struct checkpoint_now){
        .iteration = i->iteration, .consumed_train_samples = i->consumed_train_samples,
        .consumed_valid_samples = i->consumed_valid_samples, .consumed_tokens = i->consumed_tokens,
        .gigaflos = i->gigaflos, .schedule = i->schedule, .opt_step = i->opt_step, .decay = i->group[0],
        .no_decay = i->group[i->n_groups ? i->n_groups - 1 : 0], .clip_grad = i->clip_grad,
    };
}

struct checkpoint *job_open(const char *dir, bool universal)
{
    struct checkpoint_from from = { .dir = dir, .universal = universal, .force = true };
    struct report *notes = report_new();
    struct checkpoint *c = NULL;
    struct err e = {0};

    job_must(checkpoint_open(&from, &c, notes, &e) == 1, &e);
    report_free(notes);
    return c;
}

const struct checkpoint_load_opts job_plain_load = { .weights = DTYPE_BF16, .replicas = REPLICAS_FAIL,
                                                    .dev = &job_host };

/* Distribute `n` layers evenly over the blocks. */
void job_even_blocks(int64_t n, int pp, int *blocks)
{
    for (int i = 0; i < pp; i++)
        blocks[i] = (int)(n * (i + 1) / pp - n * i / pp);
}

void job_expect_sound(const char *dir)
{
    struct verify_opts o = { .threads = 2, .mem_bytes = 8 << 20 };
    struct report *r = report_new();
    struct err e = {0};

    job_must(verify_run(dir, &o, r, &e) == 0, &e);
    for (int i = 0; i < report_n(r); i++)
        if (report_get(r, i)->severity != SEV_NOTE)
            fail_msg("%s: %s", dir, finding_text(report_get(r, i)));
    report_free(r);
}

void job_expect_latest(const char *dir, const char *tag)
{
    char *path = path_join(dir, "latest"), *text;
    struct err e = {0};
    uint64_t n;

    text = file_slurp(path, 4096, &n, &e);
    job_must(text != NULL, &e);
    assert_string_equal(text, tag);
    free(text);
    free(path);
}

/* Expect only tags and the pointer files in the folder. */
void job_expect_clean(const char *dir)
{
    char *cmd = str_fmt("ls -A '%s' | grep -vE '^(global_step[0-9]+|latest)$' >&2", dir);

    if (system(cmd) == 0)
        fail_msg("%s: leftovers", dir);
    free(cmd);
}

void job_reshape(const char *in, struct topology topo, const char *out)
{
    struct err e = {0};
    struct source *s = source_open(in, NULL, NULL, &e);
    struct report *notes = report_new();
    int blocks[JOB_RANKS_MAX];
    struct ds_request q = { .topo = topo, .stages = blocks, .n_stages = topo.pp, .step = -1 };
    struct sink_opts ko = { .replicas = REPLICAS_FAIL, .final_path = out, .n_parts = 1, .threads = 2 };
    struct convert_opts o = { .out = out, .options_text = "", .n_parts = 1, .threads = 2, .mem_bytes = 8 << 20,
                              .progress = PROGRESS_NEVER, .force = true };
    struct convert_result res;
    struct ds_target *t;

    job_must(s != NULL, &e);
    job_even_blocks(s->config.n_layers, topo.pp, blocks);
    t = ds_target_new(s, &q, notes, &e);
    job_must(t != NULL, &e);
    job_must(convert_run(s, deepspeed_sink(&ko, t), &o, &res, &e) == 0, &e);
    ds_target_free(t);
    report_free(notes);
    source_close(s);
}

void job_same_bytes(const char *want, const char *got)
{
    char **names;
    int n = ptdiff_list(want, &names);

    assert_true(n > 0);
    for (int i = 0; i < n; i++)
        if (!ptdiff_same_bytes(want, got, names[i]))
            fail_msg("%s against %s: %s has other bytes", got, want, names[i]);
    ptdiff_list_free(names, n);
}

void job_same_state(const struct job *a, const struct job *b)
{
    for (int i = 0; i < a->n; i++) {
        const struct rank *x = &a->rank[i], *y = &b->rank[i];
        size_t shard = (size_t)x->s->shard_n * 4;

        assert_memory_equal(x->st.master, y->st.master, shard);
        assert_memory_equal(x->st.exp_avg, y->st.exp_avg, shard);
        assert_memory_equal(x->st.exp_avg_sq, y->st.exp_avg_sq, shard);
        assert_memory_equal(x->st.weights, y->st.weights, (size_t)x->s->flat_n * (size_t)dtype_size(a->weights));
    }
}

/* ---- a made-up model ---- */

struct model_config job_small_model(const char *position)
{
    struct model_config m = { .n_layers = 5, .hidden = 16, .n_heads = 4, .ffn_hidden = 64, .seq_len = 8,
                              .max_positions = 8, .vocab = 48, .vocab_tokens = 33, .embed_layernorm = true };

    snprintf(m.position, sizeof m.position, "%s", position);
    m.embed_layernorm = !strcmp(position, "alibi");
    return m;
}

/* Return a value that depends on parameter, state and merged index only, so it is the same in every topology. */
static float value(const struct stage *s, const struct stage_param *p, enum state st, int64_t i)
{
    int64_t row = p->ndim == 2 ? i / p->slice[1] : i, column = p->ndim == 2 ? i % p->slice[1] : 0, merged;
    uint32_t x;

    if (p->merge == MERGE_CAT1)
        column += s->tp * p->slice[1];
    else if (p->split)
        row += s->tp * p->slice[0];
    merged = row * (p->ndim == 2 ? p->shape[1] : 1) + column;
    x = ((uint32_t)p->id * 7919u + (uint32_t)merged * 31u + (uint32_t)st * 1000003u) * 2654435761u;
    /* First moments as small as Adam's are for such second moments. */
    return (float)(x >> 8) / (float)(1 << 24) * (st == STATE_EXP_AVG_SQ ? 1e-3f : st == STATE_EXP_AVG ? 1e-2f : 1);
}

void job_fill(struct job *j, int salt)
{
    for (int i = 0; i < j->n; i++) {
        const struct stage *s = j->rank[i].s;
        struct stage_state *st = &j->rank[i].st;
        float *const flat[STATE_N] = { NULL, st->master, st->exp_avg, st->exp_avg_sq };

        if (j->rank[i].saver)
            checkpoint_save_release(j->rank[i].saver, 0);
        memset(st->weights, 0, (size_t)s->flat_n * 4);
        for (int k = 0; k < s->n_params; k++)
            for (int64_t e = 0; e < s->param[k].n; e++) {
                float v = value(s, &s->param[k], STATE_FP32, e) + (float)salt;

                if (j->weights == DTYPE_F32)
                    ((float *)st->weights)[s->param[k].at + e] = v;
                else
                    ((uint16_t *)st->weights)[s->param[k].at + e] = j->weights == DTYPE_F16 ? f32_to_f16(v)
                                                                                           : f32_to_bf16(v);
            }
        for (int f = STATE_FP32; f < STATE_N; f++) {
            memset(flat[f], 0, (size_t)s->shard_n * 4);
            for (int k = 0; k < s->n_runs; k++)
                for (int64_t e = 0; e < s->run[k].n; e++) {
                    const struct stage_param *p = &s->param[s->run[k].param];

                    float v = value(s, p, (enum state)f, s->run[k].from + e) + (float)(f == STATE_FP32 ? salt : 0);

                    flat[f][s->run[k].shard_at + e] = p->untrained && f > STATE_FP32 ? 0 : v;
                }
        }
    }
}

const struct checkpoint_now job_fresh_now = {
    .iteration = 7, .consumed_train_samples = 56, .consumed_valid_samples = 16, .consumed_tokens = 448, .gigaflos = 1.5,
    .schedule = { .present = true, .max_lr = 2e-3, .min_lr = 2e-4, .warmup_steps = 80, .num_steps = 56,
                  .decay_steps = 1500, .num_tokens = 448, .decay_style = "cosine" },
    .opt_step = 8, .decay = { 1e-3, 0.9, 0.95, 1e-8, 0.1 }, .no_decay = { 1e-3, 0.9, 0.95, 1e-8, 0 }, .clip_grad = 1,
};

static const struct checkpoint_value fresh_args[] = {
    { .name = "micro_batch_size", .type = CHECKPOINT_INT, .i = 2 },
    { .name = "lr", .type = CHECKPOINT_FLOAT, .f = 2e-3 },
    { .name = "rampup_batch_size", .type = CHECKPOINT_TEXT, .s = "['4', '4', '96']" },
    { .name = "tensorboard_dir", .type = CHECKPOINT_TEXT, .s = "None" },
    { .name = "pp_partition_method", .type = CHECKPOINT_STR, .s = "type:transformer|embedding" },
    { .name = "position_embedding_type", .type = CHECKPOINT_STR, .s = "overruled" },
};

void job_save_fresh(struct job *j, const char *dir, int salt)
{
    struct checkpoint_saver_opts o = { .seed = 42, .n_args = sizeof fresh_args / sizeof *fresh_args, .args = fresh_args,
                                       .ds_config = "ds.json" };
    struct report *notes = report_new();

    job_writers(j);
    job_fill(j, salt);
    job_savers(j, &o, dir, notes);
    job_save(j, &job_fresh_now);
    report_free(notes);
}
