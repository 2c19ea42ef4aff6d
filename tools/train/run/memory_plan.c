/*
 * memory_plan.c - compute how much memory every rank needs before any is allocated, and find changes that would make it
 * fit
 *
 * The memory plan of a rank is computed by the functions that the setup uses, such as stage_new() and model_bytes(),
 * without allocating anything. A login node can therefore plan for GPUs (--device-memory, --dry-run-ranks). The
 * suggestions are not rules of thumb: a plan is computed for each suggested change, which is printed only if the plan
 * fits.
 */
#include "tools/train/run/memory_plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/progress.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/network/pipeline_schedule.h"
#include "tools/train/run/batches.h"
#include "tools/train/run/shape.h"
#include "tools/train/run/show.h"
#include "tools/train/run/trainer.h"

/*
 * Number of bytes of GPU memory that CUDA's libraries use and the plan does not include: contexts, cuBLAS's workspaces,
 * NCCL's buffers.
 */
#define RESERVE UINT64_C(2000000000)

/*
 * Number of bytes of host memory that a process uses and the plan does not otherwise include: code and libraries and,
 * in a run that saves, the writer's buffers. This was measured with MPI and OpenBLAS; a GPU's libraries use hundreds of
 * megabytes more.
 */
#define PROGRAM UINT64_C(28000000)
#define WRITER UINT64_C(7000000)

static const char *const part_name[MEMORY_PLAN_PARTS] = { "weights", "gradients", "masters and moments", "activations",
                                                   "optimizer", "batches", "snapshot of a save", "program" };

/* ---- one configuration ---- */

/* The settings that may be changed to make a run fit. */
struct setting {
    struct topology topo;
    int b;
    enum opts_recompute recompute;
    bool sequence_parallel;
};

static struct setting setting_of(const struct trainer *t)
{
    const struct model_opts *o = &t->network.model_opts;

    return (struct setting){ t->ranks.topo, o->b, o->recompute, o->sequence_parallel };
}

/*
 * Returns the number of bytes of scratch memory that attention needs on a GPU, which is one float per row. The CPU's
 * kernel needs more, because it stores whole rows. The other scratch buffers are small and have similar sizes on both.
 */
static uint64_t gpu_attention_scratch(const struct kernel_attention *a)
{
    return (uint64_t)a->b * (uint64_t)a->heads * (uint64_t)a->s * sizeof(float);
}

/*
 * The kernels of the device that the run is planned for: the kernels of this machine, or a copy that is changed to have
 * the properties of a GPU's kernels.
 */
struct planned {
    struct kernels k;
    struct dev_ops dev;
};

static const struct kernels *planned_kernels(const struct trainer *t, struct planned *p)
{
    if (!memory_plan_elsewhere(t) || !dev_on_host(t->k->dev))
        return t->k;
    p->k = *t->k;
    p->dev = *t->k->dev;
    p->dev.name = "cuda";
    p->k.dev = &p->dev;
    p->k.attention_scratch = gpu_attention_scratch;
    return &p->k;
}

static void plan_one(const struct trainer *t, const struct setting *x, const int *blocks, int pp,
                     struct memory_plan *out)
{
    struct model_config config = t->shape.config;
    struct model_opts mo = t->network.model_opts;
    struct batches_opts bo = { .b = x->b, .s = mo.s, .n_slots = pipeline_slots(x->topo, pp) };
    const int64_t unit = t->o.make_vocab_size_divisible_by * x->topo.tp;
    struct planned room;
    const struct kernels *k = planned_kernels(t, &room);
    struct stage *g;

    if (config.vocab % x->topo.tp)
        config.vocab = (config.vocab + unit - 1) / unit * unit;
    mo.b = x->b;
    mo.recompute = x->recompute;
    mo.sequence_parallel = x->sequence_parallel;
    mo.n_slots = bo.n_slots;
    g = stage_new(&config, x->topo, pp, 0, 0, blocks);
    *out = (struct memory_plan){ .stage = pp };
    out->part[0] = (uint64_t)g->flat_n * (uint64_t)dtype_size(t->shape.weights);
    out->part[1] = (uint64_t)g->flat_n * (uint64_t)dtype_size(mo.grad_t ? mo.t : DTYPE_F32);
    out->part[2] = (uint64_t)g->shard_n * 12;
    out->part[3] = model_bytes(g, k, &mo) + pipeline_bytes(g, &mo);
    if (!dev_on_host(k->dev))
        out->part[3] += pipeline_boxes(g, &mo);
    out->part[4] = optimizer_bytes(g, &t->network.optimizer_opts);
    out->part[5] = batches_bytes(&bo);
    /* The snapshot is counted only once, because the two processes of a rank share it. */
    if (t->o.save)
        out->part[MEMORY_PLAN_SNAPSHOT] = checkpoint_snapshot_bytes(g, t->shape.weights, t->saves.memory_bytes);
    if (dev_on_host(k->dev))
        out->part[MEMORY_PLAN_PROGRAM] = PROGRAM + (t->o.save ? WRITER : 0);
    out->n_parts = dev_on_host(k->dev) ? MEMORY_PLAN_PARTS : MEMORY_PLAN_SNAPSHOT;
    for (int i = 0; i < out->n_parts; i++)
        out->total += out->part[i];
    stage_free(g);
}

void memory_plan_stage(const struct trainer *t, int pp, struct memory_plan *out)
{
    const struct setting x = setting_of(t);

    plan_one(t, &x, t->shape.blocks, pp, out);
}

/*
 * The smallest size in bytes of the ring for the snapshot. With a smaller ring the optimizer would wait almost all the
 * time.
 */
#define RING_LEAST UINT64_C(64000000)

void memory_plan_snapshot(struct trainer *t)
{
    struct memory_plan p;
    uint64_t total, left, rest, room, want;
    char has[16], wants[16];

    t->saves.memory_bytes = (uint64_t)(t->o.save_memory * 1e9);
    memory_plan_stage(t, t->ranks.rank_pp, &p);
    want = checkpoint_snapshot_bytes(t->network.stage, t->shape.weights, 0);
    /* A dry run for other machines cannot determine how much host memory these have. */
    if (!t->o.save || (!t->saves.memory_bytes && (memory_plan_elsewhere(t) || t->o.dry_run_ranks)))
        return;
    if (!t->saves.memory_bytes) {
        mem_host(&total, &left);
        rest = dev_on_host(t->k->dev) ? p.total - p.part[MEMORY_PLAN_SNAPSHOT] : 0;
        room = left / 10 * 9 / (uint64_t)t->ranks.place->local_size;
        room = max_u64(room - min_u64(room, rest), RING_LEAST);
        t->saves.memory_bytes = left > 0 && room < want ? room : 0;
    }
    if (t->saves.memory_bytes && t->saves.memory_bytes < want)
        show_line(&t->log,
                  "note: a save's state, %s per rank, is copied through %s of its host's memory: after the first part "
                  "the optimizer waits for the disk", bytes_text(want, wants), bytes_text(t->saves.memory_bytes, has));
}

uint64_t memory_plan_aside(const struct trainer *t)
{
    uint64_t total, left;

    if (dev_on_host(t->k->dev))
        return 0;
    t->k->dev->memory(&total, &left);
    left -= min_u64(left, RESERVE);
    if (!OPTS_GIVEN(&t->o, save_device_memory))
        return left;
    return min_u64(left, (uint64_t)(t->o.save_device_memory * 1e9));
}

void memory_plan_show(struct trainer *t)
{
    struct strbuf sb = {0};
    const uint64_t n = (uint64_t)model_n_params(&t->shape.config);
    struct memory_plan p;
    char text[16];

    if (!trainer_is_rank0(t))
        return;
    strbuf_addf(&sb, "parameters: %llu\n", (unsigned long long)n);
    for (int i = 0; i < t->ranks.topo.pp; i++) {
        memory_plan_stage(t, i, &p);
        strbuf_addf(&sb, "memory of a rank of stage %d: %s", i, bytes_text(p.total, text));
        for (int k = 0; k < p.n_parts; k++)
            if (p.part[k])
                strbuf_addf(&sb, "%s %s %s", k ? "," : ":", part_name[k], bytes_text(p.part[k], text));
        if (p.n_parts <= MEMORY_PLAN_SNAPSHOT && p.part[MEMORY_PLAN_SNAPSHOT])
            strbuf_addf(&sb, "; of its host: %s %s", part_name[MEMORY_PLAN_SNAPSHOT],
                        bytes_text(p.part[MEMORY_PLAN_SNAPSHOT], text));
        strbuf_addf(&sb, "\n");
    }
    strbuf_addf(&sb, "a checkpoint: %s\n", bytes_text(schedule_checkpoint_bytes(n), text));
    trainlog_flush(t->log.lines, &sb);
    strbuf_free(&sb);
}

/* ---- other configurations ---- */

/* Returns true if options_check() would accept the setting *x, and the plan has ranks for it. */
static bool is_possible(const struct trainer *t, const struct setting *x)
{
    const struct train_opts *o = &t->o;
    const int tp = x->topo.tp;

    return x->topo.dp >= 1 && o->num_attention_heads % tp == 0 && o->hidden_size % tp == 0 &&
           o->ffn_hidden_size % tp == 0 && (o->pad_vocab_size_to == 0 || o->pad_vocab_size_to % tp == 0) &&
           o->num_layers >= x->topo.pp && o->global_batch_size % ((int64_t)x->b * x->topo.dp) == 0 &&
           (!x->sequence_parallel || (tp > 1 && o->seq_length % tp == 0)) &&
           topo_world(x->topo) <= MEMORY_PLAN_RANKS_MAX;
}

/*
 * Returns the number of bytes of memory that the most demanding stage needs with the settings *x. Returns UINT64_MAX if
 * these settings are not possible.
 */
static uint64_t need_of(const struct trainer *t, const struct setting *x)
{
    uint64_t most = 0;
    struct err e = {0};
    struct memory_plan p;
    int *blocks;

    if (!is_possible(t, x))
        return UINT64_MAX;
    blocks = xcalloc((size_t)x->topo.pp, sizeof *blocks);
    if (x->topo.pp == t->ranks.topo.pp)
        memcpy(blocks, t->shape.blocks, (size_t)x->topo.pp * sizeof *blocks);
    else if (shape_cut(t, x->topo, x->recompute, blocks, &e) < 0)
        most = UINT64_MAX;
    for (int i = 0; i < x->topo.pp && most != UINT64_MAX; i++) {
        plan_one(t, x, blocks, i, &p);
        most = p.total > most ? p.total : most;
    }
    free(blocks);
    return most;
}

/* ---- advice ---- */

struct advice {
    const struct trainer *t;
    uint64_t room;
    const char *also;                   /* text with the changes that all suggestions assume; or "" */
    struct strbuf *out;
    int n_offered;
};

static bool add_fitting_setting(struct advice *a, const struct setting *x, const char *fmt, ...) PRINTF_LIKE(3, 4);
static bool add_fitting_setting(struct advice *a, const struct setting *x, const char *fmt, ...)
{
    const uint64_t need = need_of(a->t, x);
    const int ranks = topo_world(x->topo), here = topo_world(a->t->ranks.topo);
    char what[120], text[16];
    va_list ap;

    if (need > a->room)
        return false;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    strbuf_addf(a->out, "would fit: %s%s", a->also, what);
    if (ranks != here)
        strbuf_addf(a->out, " on %d ranks", ranks);
    if (ranks != here || x->topo.dp != a->t->ranks.topo.dp)
        strbuf_addf(a->out, " (TP %d, PP %d, DP %d)", x->topo.tp, x->topo.pp, x->topo.dp);
    strbuf_addf(a->out, ": %s per rank\n", bytes_text(need, text));
    a->n_offered++;
    return true;
}

/*
 * Suggest the smallest tensor or pipeline degree with which the run fits. First try degrees with the same number of
 * ranks, which reduces data parallelism; if none fits, try more ranks.
 */
static void offer_degree(struct advice *a, const struct setting *from, const char *option, bool tensor)
{
    for (int more = 0; more < 2; more++)
        for (int f = 2; f <= 64; f *= 2) {
            struct setting x = *from;

            if (!more && x.topo.dp % f)
                break;
            if (!more)
                x.topo.dp /= f;
            if (tensor)
                x.topo.tp *= f;
            else
                x.topo.pp *= f;
            if (tensor && x.topo.tp > 8)        /* tensor parallelism across hosts would be very slow */
                break;
            if (add_fitting_setting(a, &x, "%s %d", option, tensor ? x.topo.tp : x.topo.pp))
                return;
        }
}

/* Suggest more data-parallel ranks, because master weights, moments and averaged gradients are divided among them. */
static void offer_ranks(struct advice *a, const struct setting *from)
{
    for (int f = 2; f <= 64; f *= 2) {
        struct setting x = *from;

        x.topo.dp *= f;
        if (add_fitting_setting(a, &x, "data-parallel size %d", x.topo.dp))
            return;
    }
}

static void offer_topologies(struct advice *a, const struct setting *from)
{
    offer_degree(a, from, "--tensor-model-parallel-size", true);
    offer_degree(a, from, "--pipeline-model-parallel-size", false);
    offer_ranks(a, from);
}

/* Suggest changes of a single setting, in the order of their cost. */
static void offer_changes(struct advice *a, const struct setting *now)
{
    struct setting x = *now;

    for (x.b = now->b - 1; x.b > 0; x.b--)
        if (now->b % x.b == 0 && add_fitting_setting(a, &x, "--micro-batch-size %d", x.b))
            break;
    x = *now;
    x.sequence_parallel = true;
    if (!now->sequence_parallel)
        add_fitting_setting(a, &x, "--sequence-parallel");
    x = *now;
    x.recompute = RECOMPUTE_SELECTIVE;
    if (now->recompute == RECOMPUTE_NONE)
        add_fitting_setting(a, &x, "--recompute-granularity selective");
    x.recompute = RECOMPUTE_FULL;
    if (now->recompute != RECOMPUTE_FULL)
        add_fitting_setting(a, &x, "--recompute-granularity full");
    offer_topologies(a, now);
}

/*
 * Print each change of a single setting with which the run fits into `room` bytes per rank, and the number of bytes
 * that the run then needs. If there is none, print pairs of changes.
 */
static void advise(const struct trainer *t, uint64_t room, struct strbuf *out)
{
    const struct setting now = setting_of(t);
    struct setting least = now;
    struct advice a = { t, room, "", out, 0 };
    char text[16];

    offer_changes(&a, &now);
    if (a.n_offered)
        return;
    /*
     * No single change is sufficient. Start from the settings with which this model needs the least memory, and try
     * more ranks.
     */
    least.b = 1;
    least.recompute = RECOMPUTE_FULL;
    if (add_fitting_setting(&a, &least, "--micro-batch-size 1 --recompute-granularity full"))
        return;
    a.also = "--micro-batch-size 1 --recompute-granularity full ";
    offer_topologies(&a, &least);
    if (!a.n_offered)
        strbuf_addf(out,
                    "nothing that was tried fits: with micro-batch size 1 and full recomputation it needs %s per "
                    "rank\n",
                    bytes_text(need_of(t, &least), text));
}

/* ---- checking the plan ---- */

bool memory_plan_elsewhere(const struct trainer *t)
{
    return t->o.dry_run && t->o.device_memory > 0 && t->o.backend != BACKEND_CPU;
}

/*
 * Returns the number of bytes that a rank may use on this machine. Returns UINT64_MAX if no limit was given and the
 * device is a CPU, whose memory is shared with other processes.
 */
static uint64_t room_here(const struct trainer *t)
{
    uint64_t total = UINT64_MAX, left = UINT64_MAX;

    if (t->o.device_memory > 0)
        left = (uint64_t)(t->o.device_memory * 1e9);
    else if (!dev_on_host(t->k->dev))
        t->k->dev->memory(&total, &left);
    if (left == UINT64_MAX || (dev_on_host(t->k->dev) && !memory_plan_elsewhere(t)))
        return left;
    return left > RESERVE ? left - RESERVE : 0;
}

/* How much memory each rank needs, and how much it has. */
struct account {
    uint64_t need, room;
    int32_t stage, pad;
    struct dev_who who;
};

static void account_here(const struct trainer *t, struct account *mine)
{
    struct memory_plan p, most = {0};

    memset(mine, 0, sizeof *mine);
    /* If a dry run consists of one process, this process has to check all stages. */
    for (int i = 0; i < t->ranks.topo.pp; i++)
        if (t->o.dry_run_ranks || i == t->ranks.rank_pp) {
            memory_plan_stage(t, i, &p);
            most = p.total > most.total ? p : most;
        }
    mine->need = most.total;
    mine->stage = most.stage;
    mine->room = room_here(t);
    t->k->dev->who(&mine->who);
}

/*
 * Set *e to the error that the plan of `rank` does not fit, with the same message on every rank. Rank 0 first prints
 * suggestions.
 */
static void refuse_memory_plan(struct trainer *t, int rank, const struct account *x, struct err *e)
{
    const struct comm_place *p = comm_place_of(t->ranks.world, rank);
    struct strbuf sb = {0};
    char need[16], room[16];

    if (trainer_is_rank0(t)) {
        advise(t, x->room, &sb);
        trainlog_flush(t->log.lines, &sb);
    }
    strbuf_free(&sb);
    bytes_text(x->need, need);
    bytes_text(x->room, room);
    if (t->o.device_memory > 0)
        err_usage(e, "does not fit: a rank of stage %d needs %s, %s of --device-memory %g GB are available", x->stage,
                  need, room, t->o.device_memory);
    else
        err_usage(e, "does not fit: rank %d (host %s, %s at %s) needs %s for stage %d, %s of its memory are available",
                  rank, p->host, x->who.uuid, x->who.pci, need, x->stage, room);
    e->kind = ERR_SYS;
    t->failure.on_all_ranks = true;
}

int memory_plan_check(struct trainer *t, struct err *e)
{
    const int size = t->ranks.place->size;
    struct account mine, *all = xcalloc((size_t)size, sizeof *all), *worst;
    char need[16], room[16];
    int rc;

    account_here(t, &mine);
    rc = comm_host_all_gather(comm_world_group(t->ranks.world), &mine, all, sizeof mine, e);
    worst = all;
    for (int r = 1; rc == 0 && r < size; r++)
        if ((double)all[r].need / (double)all[r].room > (double)worst->need / (double)worst->room)
            worst = &all[r];
    if (rc == 0 && worst->need > worst->room) {
        refuse_memory_plan(t, (int)(worst - all), worst, e);
        rc = -1;
    } else if (rc == 0 && t->o.dry_run && worst->room != UINT64_MAX) {
        show_line(&t->log, "it fits: at most %s per rank, %s are available", bytes_text(worst->need, need),
                  bytes_text(worst->room, room));
    }
    free(all);
    return rc;
}
