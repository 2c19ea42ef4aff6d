/*
 * setup.c - create a trainer that is ready for its first step, from options and possibly a checkpoint
 *
 * The device of a rank is its own GPU if every rank has one; otherwise the device of all ranks is the CPU.
 */
#include "tools/train/run/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/processors.h"
#include "tools/train/checkpoint/checkpoint.h"
#include "tools/train/guard/digest.h"
#include "tools/train/guard/retain.h"
#include "tools/train/network/pipeline_schedule.h"
#include "tools/train/run/batches.h"
#include "tools/train/run/memory_plan.h"
#include "tools/train/run/resume.h"
#include "tools/train/run/savedir.h"
#include "tools/train/run/trainer.h"
#include "tools/train/trace/trace.h"

/* ---- the device ---- */

/*
 * The GPU of one rank, in the form in which ranks exchange this. `who` is the name of the GPU. It is "" if the rank has
 * no GPU, and `why` is then the reason.
 */
struct gpu_card {
    char who[64], why[448];
};

/*
 * Returns the first rank that has no GPU of its own, with the reason in *e. Returns -1 if all ranks have one. The
 * result is the same on every rank.
 */
static int rank_without_gpu(const struct trainer *t, const struct gpu_card *all, struct err *e)
{
    for (int r = 0; r < t->ranks.place->size; r++) {
        const struct comm_place *p = comm_place_of(t->ranks.world, r);

        if (!all[r].who[0]) {
            err_usage(e, "rank %d: %s", r, all[r].why);
            return r;
        }
        for (int q = 0; q < r; q++)
            if (comm_place_of(t->ranks.world, q)->node == p->node && !strcmp(all[q].who, all[r].who)) {
                err_usage(e, "ranks %d and %d would share %s of host %s: start one rank for each GPU", q, r,
                          all[r].who, p->host);
                return r;
            }
    }
    return -1;
}

/*
 * Open one GPU per rank, and the communication between the GPUs. If any rank has no GPU, or its communication fails,
 * returns NULL and sets *e on every rank. *some is set to true if the run has several ranks, at least one of which has
 * a GPU.
 */
static const struct kernels *open_gpus(struct trainer *t, const struct kernel_opts *o, bool *some, struct err *e)
{
    const int size = t->ranks.place->size;
    struct gpu_card mine = {0}, *all = xcalloc((size_t)size, sizeof *all);
    struct err why = {0};
    const struct kernels *k = kernels_cuda_open(o, &why);
    const struct dev_net *net = k && size > 1 ? k->net(&why) : NULL;
    int without = -1;

    if (net) {
        struct dev_who who;

        k->dev->who(&who);
        snprintf(mine.who, sizeof mine.who, "%s", who.uuid);
    }
    snprintf(mine.why, sizeof mine.why, "%.440s", why.msg);
    if (size == 1)
        *e = why;
    else if (comm_host_all_gather(comm_world_group(t->ranks.world), &mine, all, sizeof mine, e) < 0)
        comm_abort(t->ranks.world, 1, e->msg);
    else
        without = rank_without_gpu(t, all, e);
    for (int r = 0; r < size; r++)
        *some |= all[r].who[0] != '\0';
    free(all);
    if (k && without >= 0) {
        kernels_close(k);
        k = NULL;
    }
    if (k)
        comm_use_device(t->ranks.world, trace_net(t->trace, net));
    return k;
}

/*
 * Send the name of this rank's device to all ranks, so that their messages about this rank can name the device as well.
 */
static int name_device(struct trainer *t, struct err *e)
{
    struct dev_who who;
    char text[100] = "";

    t->k->dev->who(&who);
    if (who.uuid[0])
        snprintf(text, sizeof text, "%s at %s", who.uuid, who.pci);
    return comm_name_device(t->ranks.world, text, e);
}

/*
 * Open the GPUs if every rank has one and the options do not exclude them, otherwise the CPU. With --preflight, the CPU
 * is not tested instead of GPUs: it is an error if only some ranks have a GPU.
 */
static const struct kernels *open_kernels(struct trainer *t, struct err *e)
{
    const struct kernel_opts o = {
        .threads = t->o.threads ? (int)t->o.threads : processors_default_threads(t->ranks.place->local_size),
        .device = t->ranks.place->local_rank,
    };
    const struct kernels *k = NULL;
    struct err why = {0};
    bool some = false;

    if (t->o.backend == BACKEND_CUDA && !memory_plan_elsewhere(t))
        return open_gpus(t, &o, &some, e);
    if (t->o.backend == BACKEND_AUTO)
        k = open_gpus(t, &o, &some, &why);
    if (!k && some && t->o.preflight) {
        *e = why;
        e->kind = ERR_SYS;
        t->failure.on_all_ranks = true;
        return NULL;
    }
    if (!k && t->o.backend == BACKEND_AUTO && trainer_is_rank0(t) && (some || t->o.preflight))
        fprintf(stderr, "note: processors are used: %s\n", why.msg);
    return k ? k : kernels_cpu_open(&o, e);
}

/*
 * Open the device: set t->k, and open the communication between the ranks' devices. Fails with ERR_USAGE on every rank
 * if the device that the options request is not available.
 */
static int open_device(struct trainer *t, struct err *e)
{
    if (t->o.trace && !trainer_is_check_only(t))
        t->trace = trace_new(t->o.traced.first, t->o.traced.last);
    t->k = trace_kernels(t->trace, open_kernels(t, e));
    if (!t->k)
        return -1;
    if (!dev_on_host(t->k->dev))
        watch_queues(comm_watch(t->ranks.world));
    return name_device(t, e);
}

/* ---- shapes and settings ---- */

/* Returns the initial loss scale according to the options. Without fp16 it is 1. */
static struct loss_scale initial_loss_scale(const struct train_opts *o, enum dtype weights)
{
    struct loss_scale s;

    if (weights != DTYPE_F16)
        return loss_scale_static(1);
    if (o->loss_scale > 0)
        return loss_scale_static(o->loss_scale);
    s = loss_scale_dynamic(o->initial_loss_scale);
    s.min = o->min_loss_scale;
    s.window = o->loss_scale_window;
    s.hysteresis = s.left = o->hysteresis;
    s.consecutive = o->consecutive_hysteresis;
    return s;
}

static void resolve_model_opts(struct trainer *t)
{
    const struct run_ranks *r = &t->ranks;
    const struct train_opts *o = &t->o;
    const bool grad_t = o->fp16 && !o->accumulate_allreduce_grads_in_fp32;
    const bool overlap = !dev_on_host(t->k->dev) || memory_plan_elsewhere(t);

    /*
     * On CPUs, communication takes time from the computation. If gradients were summed early, this would only delay the
     * previous stage.
     */
    if (!OPTS_GIVEN(o, overlap_grad_reduce))
        t->o.overlap_grad_reduce = overlap;
    if (!OPTS_GIVEN(o, overlap_param_gather))
        t->o.overlap_param_gather = overlap;
    t->network.model_opts = (struct model_opts){
        .t = t->shape.weights, .grad_t = grad_t, .b = (int)o->micro_batch_size, .s = (int)o->seq_length,
        .n_slots = pipeline_slots(r->topo, r->rank_pp), .recompute = (enum opts_recompute)o->recompute_granularity,
        .hidden_dropout = (float)o->hidden_dropout, .attention_dropout = (float)o->attention_dropout,
        .eps = (float)o->layernorm_epsilon, .seed = (uint64_t)o->seed, .sequence_parallel = o->sequence_parallel,
    };
    t->network.optimizer_opts = (struct optimizer_opts){
        .t = t->shape.weights, .grad_t = grad_t,
        .reduce = o->grad_reduce_dtype == REDUCE_FP32 ? DTYPE_F32 : t->shape.weights,
        .beta1 = (float)o->adam_beta1, .beta2 = (float)o->adam_beta2, .eps = (float)o->adam_eps,
        .weight_decay = (float)o->weight_decay, .clip = o->clip_grad,
        .overlap_reduce = o->overlap_grad_reduce, .overlap_gather = o->overlap_param_gather,
    };
}

/* Determine all sizes. No large memory is allocated yet. */
static int resolve_shapes(struct trainer *t, struct err *e)
{
    struct run_ranks *r = &t->ranks;

    if (options_check(&t->o, trainer_ranks_planned(t), OPTIONS_COMPLETE, e) < 0)
        return -1;
    t->shape.weights = t->o.bf16 ? DTYPE_BF16 : t->o.fp16 ? DTYPE_F16 : DTYPE_F32;
    t->progress.scale = initial_loss_scale(&t->o, t->shape.weights);
    run_ranks_place(r, (struct topology){ (int)t->o.tensor_model_parallel_size,
                                          (int)t->o.pipeline_model_parallel_size, t->o.data_parallel_size });
    if (shape_resolve_model(t, e) < 0 || (!t->o.preflight && schedule_init(&t->progress.schedule, &t->o, e) < 0))
        return -1;
    t->network.stage = stage_new(&t->shape.config, r->topo, r->rank_pp, r->rank_dp, r->rank_tp, t->shape.blocks);
    if (open_device(t, e) < 0)
        return -1;
    resolve_model_opts(t);
    return 0;
}

/* ---- memory, model and optimizer ---- */

/*
 * The minimum number of tokens in a step for which digests of all weights are recorded in each step. Such a step takes
 * a thousand times as long as reading the weights once: it has 6 operations per token and parameter at 400 TFLOP/s,
 * whereas reading takes 2 bytes per parameter at 3 TB/s.
 */
enum { DIGEST_TOKENS = 50000 };

/* Returns true if there are copies to compare, or if work must be repeated for --replay-check. */
static bool wants_digests(const struct trainer *t)
{
    return (t->o.digest_interval > 0 && t->ranks.place->size > 1) || t->o.replay_check > 0;
}

static int open_digests(struct trainer *t, struct err *e)
{
    const struct digest_groups groups = { .world = t->ranks.world, .tp = t->ranks.tp, .dp = t->ranks.dp,
                                          .tied = t->ranks.tied };

    t->copies.whole_tokens = DIGEST_TOKENS;
    t->copies.digests = digest_new(t->network.stage, &t->network.state, t->shape.weights, t->k, &groups, e);
    return t->copies.digests ? 0 : -1;
}

static int build_network(struct trainer *t, struct err *e)
{
    struct run_network *net = &t->network;
    const struct optimizer_groups groups = { comm_world_group(t->ranks.world), t->ranks.dp, t->ranks.tied };
    const struct batches_opts bo = {
        .b = net->model_opts.b, .s = net->model_opts.s, .dp = t->ranks.topo.dp, .d = t->ranks.rank_dp,
        .n_slots = net->model_opts.n_slots, .vocab = t->shape.config.vocab, .eod = t->shape.eod,
        .eod_mask_loss = t->o.eod_mask_loss, .watch = comm_watch(t->ranks.world),
    };

    if (run_network_allocate(net, t->k->dev, e) < 0)
        return -1;
    if (t->from) {
        if (resume_load(t, e) < 0)
            return -1;
    } else {
        run_network_init_weights(net, &t->o, t->k);
        t->progress.opt_step = t->o.adam_initial_step;
    }
    net->model = model_new(net->stage, &net->state, t->k, t->ranks.tp, &net->model_opts, e);
    net->batches = net->model ? batches_new(t->k, &bo, e) : NULL;
    net->pipeline = net->batches ? pipeline_new(&(struct pipeline_parts){
        .stage = net->stage, .model = net->model, .kernels = t->k, .opts = &net->model_opts, .group = t->ranks.pipe,
        .watch = comm_watch(t->ranks.world), .get = batches_get, .ctx = net->batches,
    }, e) : NULL;
    if (net->pipeline)
        net->optimizer = optimizer_new(net->stage, &net->state, t->k, &groups, &net->optimizer_opts, e);
    if (net->optimizer)
        model_hook(net->model, &(struct model_hooks){ optimizer_weights_ready, optimizer_grads_done, net->optimizer });
    net->loss = net->optimizer ? t->k->dev->alloc_host(sizeof *net->loss, e) : NULL;
    if (!net->loss)
        return -1;
    return wants_digests(t) ? open_digests(t, e) : 0;
}

/* ---- the whole setup ---- */

int trainer_setup(struct trainer *t, struct err *e)
{
    t->progress.stored_lr = -1;
    t->saves.saved_iteration = -1;
    if (resume_open(t, e) < 0 || savedir_check_steps(t, e) < 0 || resolve_shapes(t, e) < 0)
        return -1;
    resume_apply_settings(t);
    show_settings(t);
    resume_print_changes(t);
    memory_plan_snapshot(t);
    if (t->o.dry_run)
        memory_plan_show(t);
    if (memory_plan_check(t, e) < 0 || savedir_check(t, e) < 0)
        return -1;
    if (t->o.dry_run)
        return sets_open(t, e);

    /* From this point on large memory is allocated. */
    if (run_ranks_group(&t->ranks, e) < 0)
        return -1;
    if (t->o.save &&
        checkpoint_saver_begin(t->saves.writer, t->network.stage, t->shape.weights, t->saves.memory_bytes, e) < 0)
        return -1;
    if (build_network(t, e) < 0 || sets_open(t, e) < 0 || (t->o.save && saving_open(t, e) < 0))
        return -1;
    savedir_set_latest(t);
    checkpoint_close(t->from);
    t->from = NULL;
    t->progress.ready = true;
    return 0;
}

int trainer_setup_preflight(struct trainer *t, struct err *e)
{
    if (!t->o.num_layers && !t->o.load)
        return open_device(t, e);
    return resume_open(t, e) < 0 ? -1 : resolve_shapes(t, e);
}

void trainer_free(struct trainer *t)
{
    struct run_network *net = &t->network;
    checkpoint_saver_free(t->saves.saver);
    checkpoint_close(t->from);
    sets_close(t);
    if (net->loss)
        t->k->dev->free_host(net->loss);
    batches_free(net->batches);
    /* Close the groups before the memory that their members share is freed. */
    run_ranks_close_groups(&t->ranks);
    retain_free(t->saves.retain);
    digest_free(t->copies.digests);
    optimizer_free(net->optimizer);
    pipeline_free(net->pipeline);
    model_free(net->model);
    if (net->memory)
        t->k->dev->free(net->memory);
    stage_free(net->stage);
    comm_use_device(t->ranks.world, NULL);
    watch_outside(comm_watch(t->ranks.world), "the device to end", -1, NULL);
    kernels_close(t->k);
    watch_outside_end(comm_watch(t->ranks.world));
    free(t->shape.blocks);
    free(t->shape.saved_method);
}
